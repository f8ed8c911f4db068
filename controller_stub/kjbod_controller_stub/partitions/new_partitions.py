"""New partitions: placement of their replicas, and the records that create them.

A new partition's ISR is its active replicas, its leader the first of them, its directories the default ones: a broker
with one directory gets that one at once, any other chooses for itself and says so (``UNASSIGNED``).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import BrokerRegistration, MetadataImage
from kjbod.metadata.records import PartitionRecord, PartitionRecordRef
from kjbod.wire.admin_messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.access.mutation_quotas import UNLIMITED, Charge
from kjbod_controller_stub.configs.java_order import first_of_timeline
from kjbod_controller_stub.partitions.replica_placer import ReplicaPlacer, Shuffle, UsableBroker
from kjbod_controller_stub.results import ApiError, Draft
from kjbod_controller_stub.rules import Rules

RECORDS_PER_REQUEST_MAX = 10_000
"""Records that one user request may make (``QuorumController.MAX_RECORDS_PER_USER_OP``)."""
TOO_LARGE = ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


class NewPartitions(Struct, frozen=True):
    """Places replicas, and makes the records of partitions."""

    image: MetadataImage
    shuffle: Shuffle
    rules: Rules

    def check_assignment(
        self, replicas: Sequence[int], expected: int | None = None, *, present: Collection[int] = ()
    ) -> None:
        """Refuse an invalid replica assignment in a request (``validateManualPartitionAssignment``).

        Args:
            replicas: the brokers.
            expected: how many they should be.
            present: the brokers that have a replica of the partition already.

        Raises:
            ApiError: INVALID_REPLICA_ASSIGNMENT.
        """
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if not replicas:
            raise ApiError(invalid, "The manual partition assignment includes an empty replica list.")
        before = None
        for broker in sorted(replicas):
            if broker not in self.image.brokers:
                raise ApiError(
                    invalid,
                    f"The manual partition assignment includes broker {broker}, but no such broker is registered.",
                )
            spared = broker in present and self.rules.keeps_cordoned_members
            if not spared and not _has_uncordoned_dirs(self.image.brokers[broker]):
                raise ApiError(
                    invalid,
                    f"The manual partition assignment includes broker {broker}, but all its log directories are "
                    "cordoned.",
                )
            if broker == before:
                raise ApiError(invalid, f"The manual partition assignment includes the broker {broker} more than once.")
            before = broker
        if expected is not None and len(replicas) != expected:
            raise ApiError(
                invalid,
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {expected} replica(s).",
            )

    def check_active(self, number: int, replicas: Iterable[int]) -> None:
        """Refuse assigned replicas if none of them could lead.

        Raises:
            ApiError: INVALID_REPLICA_ASSIGNMENT.
        """
        if not any(self.image.brokers[broker].active for broker in replicas):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"All brokers specified in the manual partition assignment for partition {number} are fenced or in "
                "controlled shutdown.",
            )

    def place(self, partitions: int, replication_factor: int) -> list[tuple[int, ...]]:
        """Return the controller's placement of new partitions' replicas.

        Raises:
            ApiError: INVALID_REPLICATION_FACTOR.
        """
        placer = ReplicaPlacer(self._usable_brokers(), replication_factor, self.shuffle)
        return [placer.place() for _ in range(partitions)]

    def _usable_brokers(self) -> Iterable[UsableBroker]:
        """Return the brokers that may get replicas, including fenced ones. Brokers in controlled shutdown, or without a
        directory for new replicas, are left out."""
        for broker in self.image.brokers.values():
            if broker.in_controlled_shutdown and not broker.fenced:
                continue
            if not _has_uncordoned_dirs(broker):
                continue
            yield UsableBroker(broker.id, broker.rack, broker.fenced)

    def records(self, topic_id: Uuid, first: int, placed: Iterable[tuple[int, ...]]) -> Iterator[PartitionRecordRef]:
        """Return the records of new partitions, numbered from ``first`` on. At least one replica of each is active."""
        likes: dict[tuple[int, ...], PartitionRecord] = {}
        for number, replicas in enumerate(placed, start=first):
            like = likes.get(replicas)
            if like is None:
                like = likes[replicas] = self._record(topic_id, number, replicas)
            yield PartitionRecordRef(like, topic_id, number)

    def _record(self, topic_id: Uuid, number: int, replicas: tuple[int, ...]) -> PartitionRecord:
        isr = tuple(replica for replica in replicas if self.image.brokers[replica].active)
        directories: tuple[Uuid, ...] = ()
        if self.image.metadata_version >= versions.DIRECTORY_ASSIGNMENT:
            directories = tuple(self.image.default_dir(replica) for replica in replicas)
        return PartitionRecord(
            partition_id=number,
            topic_id=topic_id,
            replicas=replicas,
            isr=isr,
            leader=isr[0],
            leader_epoch=0,
            partition_epoch=0,
            directories=directories,
        )

    # ---- CreatePartitions

    def create(
        self, draft: Draft, request: CreatePartitionsRequest, charge: Charge = UNLIMITED
    ) -> CreatePartitionsResponse:
        """Add partitions to topics, each on its own: a refused topic does not stop the others. They count against the
        sender's quota, even if they are only validated."""
        if sum(map(self._wanted, request.topics)) > RECORDS_PER_REQUEST_MAX:
            refused = "Excessively large number of additional partitions per request."
            return CreatePartitionsResponse(
                results=tuple(
                    CreatePartitionsResponseTopic(
                        name=topic.name, error_code=ErrorCode.POLICY_VIOLATION, error_message=refused
                    )
                    for topic in request.topics
                )
            )
        topics = {topic.name: topic for topic in request.topics}
        twice = {topic.name for topic in request.topics if topics[topic.name] is not topic}
        records: list[PartitionRecordRef] = []
        results = []
        for name, topic in topics.items():
            try:
                if name in twice:
                    raise ApiError(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")
                records += self._more(topic, charge, room=RECORDS_PER_REQUEST_MAX - len(records))
            except ApiError as error:
                results.append(
                    CreatePartitionsResponseTopic(name=name, error_code=error.code, error_message=error.message or None)
                )
            else:
                results.append(CreatePartitionsResponseTopic(name=name))
        draft.add_partitions(() if request.validate_only else records)
        return CreatePartitionsResponse(results=tuple(results))

    def _wanted(self, topic: CreatePartitionsRequestTopic) -> int:
        """Return the number of partitions that a topic would get, 0 if there is no such topic."""
        topic_id = self.image.topic_ids.get(topic.name)
        return 0 if topic_id is None else max(0, topic.count - len(self.image.topics[topic_id].partitions))

    def _more(self, wanted: CreatePartitionsRequestTopic, charge: Charge, *, room: int) -> list[PartitionRecordRef]:
        """Return the records of one topic's new partitions."""
        topic_id = self.image.topic_ids.get(wanted.name)
        if topic_id is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = self.image.topics[topic_id].partitions
        if not partitions:  # a log from another writer
            raise ApiError(
                ErrorCode.UNKNOWN_SERVER_ERROR, f"Invalid state: topic {wanted.name} appears to have no partitions."
            )
        have, more = len(partitions), wanted.count - len(partitions)
        if more == 0:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {have} partition(s).")
        if more < 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {wanted.name} currently has {have} partition(s); {wanted.count} would not be an increase.",
            )
        if wanted.assignments is not None and len(wanted.assignments) != more:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {more} additional partition(s), but only {len(wanted.assignments)} assignment(s) "
                "were specified.",
            )
        charge.take(more)
        if more > room:
            raise TOO_LARGE
        first = 0 if self.rules.counts_replicas_of_first else first_of_timeline(have)
        factor = len(partitions[first].replicas)
        if wanted.assignments is None:
            placed = self.place(more, factor)
        else:
            placed = [assignment.broker_ids for assignment in wanted.assignments]
            for number, replicas in enumerate(placed, start=have):
                self.check_assignment(replicas, factor)
                self.check_active(number, replicas)
        return [*self.records(topic_id, have, placed)]


def _has_uncordoned_dirs(broker: BrokerRegistration) -> bool:
    """Return whether the broker accepts new replicas in some directory (KIP-1066,
    ``BrokerRegistration.hasUncordonedDirs``)."""
    return not broker.log_dirs or not set(broker.log_dirs) <= set(broker.cordoned_log_dirs or ())
