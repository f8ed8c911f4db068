"""AlterPartitionReassignments and ListPartitionReassignments (KIP-455; ``ReplicationControlManager``,
``PartitionReassignmentReplicas``, ``PartitionReassignmentRevert``).

A reassignment begins with a record that adds the new replicas to those that are there, and says which are to come and
which to go. The leader takes the newcomers into the ISR as they catch up; the AlterPartition with the last of them
completes it (:mod:`.elections`). What needs no newcomer is complete at once: another order, or fewer replicas that are
all in sync. One that is in progress may be changed, or cancelled: then the partition gets back what it had.
"""

from collections.abc import Iterable

from msgspec import Struct, field, structs

from kjbod.ids import Uuid
from kjbod.metadata.image import Change, MetadataImage, PartitionChange, PartitionRegistration, TopicDeleted
from kjbod.metadata.records import PartitionChangeRecord
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
)
from kjbod_controller_stub.partitions.elections import Election, PartitionChangeBuilder
from kjbod_controller_stub.partitions.new_partitions import RECORDS_PER_REQUEST_MAX, TOO_LARGE, NewPartitions
from kjbod_controller_stub.partitions.replication import Replication
from kjbod_controller_stub.results import ApiError, Draft, PartitionKey


def is_reassigning(partition: PartitionRegistration) -> bool:
    """Return whether the partition has adding or removing replicas."""
    return bool(partition.adding_replicas or partition.removing_replicas)


class Reassignments(Struct):
    """Makes the records that begin, change and cancel reassignments, and knows which are in progress."""

    image: MetadataImage
    replication: Replication
    partitions: NewPartitions
    forgets_newcomers: bool = True
    """``Rules.forgets_newcomers``."""
    _in_progress: dict[Uuid, dict[int, None]] = field(default_factory=dict)
    """Partition numbers by topic: a list of reassignments does not walk over all partitions."""

    def apply(self, change: Change) -> None:
        """Follow one change of the image."""
        if isinstance(change, PartitionChange):
            if is_reassigning(change.new):
                self._in_progress.setdefault(change.topic_id, {})[change.partition] = None
            elif change.old is not None and is_reassigning(change.old):
                self._end(change.topic_id, change.partition)
        elif isinstance(change, TopicDeleted):
            self._in_progress.pop(change.topic.id, None)

    def at_rest(self, image: MetadataImage) -> "Reassignments":
        """Return the reassignments of ``image``, a fixed copy of the state, for reading."""
        in_progress = {topic_id: numbers.copy() for topic_id, numbers in self._in_progress.items()}
        return structs.replace(self, image=image, _in_progress=in_progress)

    def _end(self, topic_id: Uuid, number: int) -> None:
        numbers = self._in_progress.get(topic_id, {})
        numbers.pop(number, None)
        if not numbers:
            self._in_progress.pop(topic_id, None)

    # ---- list

    def list_in_progress(self, request: ListPartitionReassignmentsRequest) -> ListPartitionReassignmentsResponse:
        """Return the reassignments in progress, of the named partitions or all."""
        wanted: Iterable[tuple[Uuid, Iterable[int]]] = self._in_progress.items()
        if request.topics is not None:
            wanted = [
                (self.image.topic_ids[topic.name], dict.fromkeys(topic.partition_indexes))
                for topic in request.topics
                if topic.name in self.image.topic_ids
            ]
        topics = []
        for topic_id, numbers in wanted:
            moving = self._in_progress.get(topic_id, {})
            found = tuple(self._describe(topic_id, number) for number in numbers if number in moving)
            if found:
                topics.append(
                    ListPartitionReassignmentsResponseTopic(name=self.image.topics[topic_id].name, partitions=found)
                )
        return ListPartitionReassignmentsResponse(topics=tuple(topics))

    def _describe(self, topic_id: Uuid, number: int) -> ListPartitionReassignmentsResponsePartition:
        partition = self.image.topics[topic_id].partitions[number]
        return ListPartitionReassignmentsResponsePartition(
            partition_index=number,
            replicas=partition.replicas,
            adding_replicas=partition.adding_replicas,
            removing_replicas=partition.removing_replicas,
        )

    # ---- alter

    def alter(self, draft: Draft, request: AlterPartitionReassignmentsRequest) -> AlterPartitionReassignmentsResponse:
        """Begin, change or cancel, each partition on its own.

        Raises:
            ApiError: POLICY_VIOLATION: too many partitions.
        """
        if sum(len(topic.partitions) for topic in request.topics) > RECORDS_PER_REQUEST_MAX:
            raise TOO_LARGE
        allow = request.allow_replication_factor_change
        return AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=allow,
            responses=tuple(
                AlterPartitionReassignmentsResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        self._outcome(draft, topic.name, wanted, allow=allow) for wanted in topic.partitions
                    ),
                )
                for topic in request.topics
            ),
        )

    def _outcome(
        self, draft: Draft, topic: str, wanted: AlterPartitionReassignmentsRequestPartition, *, allow: bool
    ) -> AlterPartitionReassignmentsResponsePartition:
        number = wanted.partition_index
        try:
            record = self._record(draft, topic, wanted, allow=allow)
        except ApiError as error:
            return AlterPartitionReassignmentsResponsePartition(
                partition_index=number, error_code=error.code, error_message=error.message or None
            )
        if record is not None:
            draft.add(record)
        return AlterPartitionReassignmentsResponsePartition(partition_index=number)

    def _record(
        self, draft: Draft, topic: str, wanted: AlterPartitionReassignmentsRequestPartition, *, allow: bool
    ) -> PartitionChangeRecord | None:
        topic_id = self.image.topic_ids.get(topic)
        if topic_id is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
        key = (topic_id, wanted.partition_index)
        partition = draft.partition(key)
        if partition is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{wanted.partition_index}."
            )
        if wanted.replicas is None:
            return self._cancel(draft, key, partition, topic)
        self.partitions.check_assignment(wanted.replicas, present=partition.replicas)
        if not allow:
            _check_factor(partition, wanted.replicas)
        return self._change(draft, key, partition, wanted.replicas)

    def _builder(self, draft: Draft, key: PartitionKey, partition: PartitionRegistration) -> PartitionChangeBuilder:
        return self.replication.builder(draft, key, partition)

    def _change(
        self, draft: Draft, key: PartitionKey, partition: PartitionRegistration, target: tuple[int, ...]
    ) -> PartitionChangeRecord | None:
        """Change the replicas towards ``target``: new replicas are added; unwanted ones go to the end of the list and
        are removed later."""
        builder = self._builder(draft, key, partition)
        builder.election = Election.ONLINE
        removing = tuple(sorted(set(partition.replicas) - set(target)))
        adding = tuple(sorted(set(target) - set(partition.replicas)))
        builder.target_replicas = (*target, *removing)
        builder.target_removing = removing or None
        builder.target_adding = adding or None
        if self.forgets_newcomers:
            coming = set(adding) | set(partition.adding_replicas) & set(target)
            builder.target_removing, builder.target_adding = removing, tuple(sorted(coming))
        return builder.build()

    def _cancel(
        self, draft: Draft, key: PartitionKey, partition: PartitionRegistration, topic: str
    ) -> PartitionChangeRecord | None:
        """Revert to the replicas before the reassignment. If only new replicas are in sync, that may lose data
        (``unclean``)."""
        if not is_reassigning(partition):
            raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
        builder = self._builder(draft, key, partition)
        replicas = tuple(replica for replica in partition.replicas if replica not in partition.adding_replicas)
        isr = tuple(replica for replica in partition.isr if replica not in partition.adding_replicas)
        if not replicas:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "Invalid replica assignment: addingReplicas contains all replicas.",
            )
        if not isr and builder.election is not Election.UNCLEAN:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic}:{key[1]} because it would require an unclean "
                "leader election.",
            )
        builder.target_replicas = replicas
        builder.target_isr = isr or replicas[:1]
        builder.target_removing = builder.target_adding = ()
        return builder.build()


def _check_factor(partition: PartitionRegistration, target: tuple[int, ...]) -> None:
    """Refuse a change of the replication factor unless the request allows it (KIP-860)."""
    wanted = set(partition.replicas) | set(partition.adding_replicas)
    factor = len(wanted - set(partition.removing_replicas)) if is_reassigning(partition) else len(partition.replicas)
    if factor != len(target):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(target)}",
        )
