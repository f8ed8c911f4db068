"""Change leaders, ISR and directories of partitions after broker events (``ReplicationControlManager``).

Every method adds records to a :class:`~kjbod_controller_stub.results.Draft`; nothing here changes state. The order of
the records is Kafka's: a broker that goes away is left out of partitions first and fenced last; one that comes is
unfenced first; a directory leaves its registration after the partitions have left the directory.

With eligible leader replicas (KIP-966) whoever leaves an ISR may stay eligible, which is safe as long as the replica
keeps its data. A broker that registers without having been shut down in order has not, nor has one of which nothing is
known: it is *unclean*, and leaves the eligible replicas too.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Generic, TypeVar

from msgspec import Struct, field
from msgspec.structs import fields

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid, is_online
from kjbod.metadata import versions
from kjbod.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, shape_of
from kjbod.metadata.records import (
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecordRef,
    UnregisterBrokerRecord,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestTopic,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectory,
    AssignReplicasToDirsResponsePartition,
    AssignReplicasToDirsResponseTopic,
)
from kjbod_controller_stub.configs.effective import EffectiveConfigs
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.partitions.elections import Election, PartitionChangeBuilder
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.results import ApiError, Draft, PartitionKey
from kjbod_controller_stub.rules import Rules

KNOWN_MAX = 4_096
"""So many registrations are known by identity, which is quicker than by shape; then all are forgotten."""
NOBODY = -1
"""No broker: nothing to remove or to add."""
ANY = 0
"""Partition number in a record that others are like."""

_inputs_of_topic: Callable[[PartitionChangeBuilder], tuple[Any, ...]] = attrgetter(
    *(
        each.name
        for each in fields(PartitionChangeBuilder)
        if each.name not in ("key", "partition", "acceptable", "default_dir")
    )
)
"""What a change depends on beside the shape of the partition, and the brokers, which are the same for all in a pass."""


T = TypeVar("T")


class _ByShape(Generic[T]):
    """Decisions for partitions, made once for all partitions of a shape."""

    def __init__(self, decide: Callable[[PartitionRegistration], T]) -> None:
        self._decide = decide
        self._shapes: dict[tuple[Any, ...], T] = {}
        self._known: dict[int, tuple[T, PartitionRegistration]] = {}
        """By identity, with the partition itself, so that nothing else gets that."""

    def of(self, partition: PartitionRegistration) -> T:
        """Return the decision for a partition."""
        found = self._known.get(id(partition))
        if found is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            shape = shape_of(partition)
            if shape not in self._shapes:
                self._shapes[shape] = self._decide(partition)
            found = self._known[id(partition)] = (self._shapes[shape], partition)
        return found[0]


class _Assignment(Struct, frozen=True):
    """Result of assigning a replica to a directory, for all partitions of one shape."""

    error: int
    like: PartitionChangeRecord | None
    is_made_anew: bool
    is_led: bool


class _Assigned(Struct):
    """Assignments of a request, and the partitions to check after all of them; the sets keep insertion order."""

    assigned: dict[Uuid, set[int]] = field(default_factory=dict)
    """Partitions by topic. The draft knows what became of these; all others are as they are registered."""

    lost: dict[PartitionKey, None] = field(default_factory=dict)
    """In a directory that is not online."""
    waiting: dict[PartitionKey, None] = field(default_factory=dict)
    """In one that is online, where it may be that nobody leads."""
    anew: dict[PartitionKey, None] = field(default_factory=dict)

    def add(self, key: PartitionKey, assignment: _Assignment, *, online: bool, last_counts: bool) -> None:
        """``last_counts``: where a replica is assigned twice, whether only the second one says where it is."""
        if assignment.error:
            return
        if assignment.is_made_anew:
            self.anew[key] = None
        if not online:
            self.lost[key] = None
            if last_counts:
                self.waiting.pop(key, None)
            return
        if assignment.is_made_anew or not assignment.is_led:
            self.waiting[key] = None
        if last_counts and self.lost:
            self.lost.pop(key, None)


class Replication:
    """Makes the records about partitions."""

    def __init__(
        self,
        image: MetadataImage,
        index: PartitionIndex,
        rules: Rules,
        configs: EffectiveConfigs,
        has_electable_dir: Callable[[BrokerRegistration, Uuid], bool],
    ) -> None:
        self._image = image
        self._index = index
        self._rules = rules
        self._configs = configs
        self._has_electable_dir = has_electable_dir

    # ---- elections

    def builder(
        self,
        draft: Draft,
        key: PartitionKey,
        partition: PartitionRegistration,
        *,
        remove: int = NOBODY,
        add: int = NOBODY,
        unclean: int = NOBODY,
    ) -> PartitionChangeBuilder:
        """Return the builder of a change of one partition; see :meth:`leader_and_isr_updates` for the brokers."""

        def acceptable(replica: int) -> bool:
            if replica in (remove, unclean) or replica not in partition.replicas:
                return False
            broker = draft.broker(replica)
            if broker is None or not (replica == add or broker.active):
                return False
            return self._has_electable_dir(broker, partition.directory(replica))

        return PartitionChangeBuilder(
            key=key,
            partition=partition,
            acceptable=acceptable,
            default_dir=self._image.default_dir,
            metadata_version=self._image.metadata_version,
            election=Election.UNCLEAN if self.allows_unclean(key) else Election.ONLINE,
            eligible_leader_replicas=eligible.is_enabled(self._image),
            min_isr=self._configs.min_in_sync(self._image.topics[key[0]]),
            unclean_shutdown=() if unclean == NOBODY else (unclean,),
            eligible_are_replicas=self._rules.eligible_are_replicas,
            remembers_last_member=self._rules.remembers_last_member,
        )

    def allows_unclean(self, key: PartitionKey) -> bool:
        """Return whether the partition's topic allows an out-of-sync replica to lead."""
        return self._configs.allows_unclean(self._image.topics[key[0]].name)

    def leader_and_isr_updates(
        self,
        draft: Draft,
        keys: Iterable[PartitionKey],
        *,
        remove: int = NOBODY,
        add: int = NOBODY,
        unclean: int = NOBODY,
    ) -> int:
        """Remove the broker ``remove`` from ISR and leadership, or let ``add`` lead (``generateLeaderAndIsrUpdates``).

        ``add`` counts as active although its registration still says fenced; ``remove`` never may lead. ``unclean`` is
        removed too, and leaves the eligible leader replicas. No key comes twice: each is looked at as it is before.

        Returns:
            How many partitions got another leader.
        """
        moved = 0
        # What is decided for one partition holds for all of its shape whose topics are configured alike.
        decisions: dict[tuple[Any, ...], _ByShape[PartitionChangeRecord | None]] = {}
        of_topic: dict[Uuid, _ByShape[PartitionChangeRecord | None]] = {}
        made: list[PartitionRecordRef] = []
        for key in keys:
            partition = draft.partition(key)
            if partition is None:
                continue
            topic_id, number = key
            decided = of_topic.get(topic_id)
            if decided is None:
                inputs = _inputs_of_topic(self.builder(draft, key, partition, remove=remove, add=add, unclean=unclean))
                if inputs not in decisions:
                    decide = partial(self._leader_and_isr, draft, key, remove=remove, add=add, unclean=unclean)
                    decisions[inputs] = _ByShape(decide)
                decided = of_topic[topic_id] = decisions[inputs]
            like = decided.of(partition)
            if like is not None:
                made.append(PartitionRecordRef(like, topic_id, number))
                moved += like.leader >= 0
        draft.add_partitions(made)
        return moved

    def _leader_and_isr(
        self,
        draft: Draft,
        key: PartitionKey,
        partition: PartitionRegistration,
        *,
        remove: int,
        add: int,
        unclean: int,
    ) -> PartitionChangeRecord | None:
        builder = self.builder(draft, key, partition, remove=remove, add=add, unclean=unclean)
        if remove in partition.isr or unclean in partition.isr:
            builder.target_isr = tuple(each for each in partition.isr if each not in (remove, unclean))
        return builder.build()

    # ---- brokers

    def broker_fenced(self, draft: Draft, broker: BrokerRegistration) -> int:
        """Fence a broker, and return the number of moved leaders. For a broker that is already fenced only Kafka writes
        a record."""
        moved = self.leader_and_isr_updates(draft, self._index.in_isr(broker.id), remove=broker.id)
        if not broker.fenced or self._rules.repeats_fencing:
            draft.add(BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=1))
        return moved

    def broker_unfenced(self, draft: Draft, broker: BrokerRegistration) -> None:
        """Unfence a broker, and elect leaders for partitions that wait for it."""
        draft.add(BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=-1))
        self.leader_and_isr_updates(draft, self._index.leaderless(), add=broker.id)

    def broker_in_controlled_shutdown(self, draft: Draft, broker: BrokerRegistration) -> int:
        """Begin a controlled shutdown: move all leaderships that can move, and return their number."""
        if not broker.in_controlled_shutdown:
            draft.add(
                BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1)
            )
        return self.leader_and_isr_updates(draft, self._index.in_isr(broker.id), remove=broker.id)

    def broker_restarted(self, draft: Draft, broker_id: int, *, clean: bool, log_dirs: tuple[Uuid, ...] = ()) -> None:
        """Fence a new incarnation at its registration, so that it can neither lead nor be in sync
        (``handleBrokerShutdown``).

        ``clean``: it says that the incarnation before it was shut down in order, so that its replicas stay eligible.
        With the KIP's rules only those in ``log_dirs`` do: what it left in a directory that it no longer has is lost.
        """
        in_isr, in_elr = self._index.in_isr(broker_id), self._index.in_elr(broker_id)
        if not eligible.is_enabled(self._image):
            self.leader_and_isr_updates(draft, in_isr, remove=broker_id)
        elif not clean:
            self.leader_and_isr_updates(draft, in_isr, unclean=broker_id)
            self.leader_and_isr_updates(draft, in_elr, unclean=broker_id)
        else:
            self.leader_and_isr_updates(draft, in_isr, remove=broker_id)
            if self._rules.lost_directory_is_unclean:
                missing = (key for key in (*in_isr, *in_elr) if not self._is_in(draft, key, broker_id, log_dirs))
                self.leader_and_isr_updates(draft, missing, unclean=broker_id)

    def _is_in(self, draft: Draft, key: PartitionKey, broker_id: int, log_dirs: tuple[Uuid, ...]) -> bool:
        """Return whether the broker's replica is known to be in one of the directories."""
        partition = draft.partition(key)
        return partition is None or is_online(partition.directory(broker_id), log_dirs)

    def broker_unregistered(self, draft: Draft, broker_id: int) -> None:
        """Remove a broker from the cluster.

        Raises:
            ApiError: BROKER_ID_NOT_REGISTERED.
        """
        broker = self._image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        self.leader_and_isr_updates(draft, self._index.in_isr(broker_id), remove=broker_id)
        self.leader_and_isr_updates(draft, self._index.in_elr(broker_id), remove=broker_id)
        draft.add(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))

    # ---- directories

    def directories_offline(self, draft: Draft, broker: BrokerRegistration, failed: frozenset[Uuid]) -> None:
        """Handle failed registered directories: their replicas lose leadership and ISR, then the directories leave the
        registration (``handleDirectoriesOffline``). Logs a line about it."""
        if not failed:
            return
        moved = sum(
            self._replicas_lost(draft, self._in_directory(broker, directory), broker.id) for directory in sorted(failed)
        )
        stuck = 0
        if self._rules.suspects_unassigned and len(broker.log_dirs) > 1:
            suspects, stuck = self._suspects(draft, broker)
            moved += self._replicas_lost(draft, suspects, broker.id)
        remaining = tuple(directory for directory in broker.log_dirs if directory not in failed)
        draft.add(BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, log_dirs=remaining))
        draft.note(
            "directories.offline",
            broker_id=broker.id,
            directory_ids=[str(directory) for directory in sorted(failed)],
            remaining=len(remaining),
            leaders_without_directory=stuck,
        )
        draft.note("leaders.moved", count=moved)

    def _in_directory(self, broker: BrokerRegistration, directory: Uuid) -> Iterable[PartitionKey]:
        keys = self._index.in_directory(broker.id, directory)
        if self._rules.knows_whose_replica:
            return keys
        others = (each for each in self._image.brokers if each != broker.id)
        return dict.fromkeys((*keys, *(key for other in others for key in self._index.in_directory(other, directory))))

    def directories_all_offline(self, draft: Draft, broker: BrokerRegistration) -> None:
        """Handle the failure of the last directory, which no record can express: the broker has lost all replicas."""
        if self._rules.lost_directory_is_unclean:
            keys = (*self._index.in_isr(broker.id), *self._index.in_elr(broker.id))
            self.leader_and_isr_updates(draft, keys, unclean=broker.id)

    def directories_missing(self, draft: Draft, broker: BrokerRegistration, registered: Iterable[Uuid]) -> None:
        """Handle a new registration of an incarnation without some of its directories: their replicas are offline."""
        for directory in sorted(set(broker.log_dirs) - set(registered)):
            self._replicas_lost(draft, self._index.in_directory(broker.id, directory), broker.id)

    def _replicas_lost(self, draft: Draft, keys: Iterable[PartitionKey], broker_id: int) -> int:
        """Handle the loss of a broker's replicas with their directory, and return the number of moved leaders."""
        if self._rules.lost_directory_is_unclean:
            return self.leader_and_isr_updates(draft, keys, unclean=broker_id)
        return self.leader_and_isr_updates(draft, keys, remove=broker_id)

    def _suspects(self, draft: Draft, broker: BrokerRegistration) -> tuple[list[PartitionKey], int]:
        """The broker's replicas that may be in any directory and that another member of the ISR can stand in for; and
        how many partitions it leads where nobody can."""
        suspects, stuck = [], 0
        for directory in (UNASSIGNED, MIGRATING):
            for key in self._index.in_directory(broker.id, directory):
                partition = draft.partition(key)
                if partition is None or broker.id not in partition.isr:
                    continue
                acceptable = self.builder(draft, key, partition, remove=broker.id).acceptable
                if any(acceptable(replica) for replica in partition.isr):
                    suspects.append(key)
                else:
                    stuck += partition.leader == broker.id
        return suspects, stuck

    def require_directories(self) -> None:
        """Refuse directory assignments while the metadata.version has no directories.

        Raises:
            ApiError: UNSUPPORTED_VERSION.
        """
        if self._image.metadata_version < versions.DIRECTORY_ASSIGNMENT:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")

    def assign_replicas(
        self, draft: Draft, broker: BrokerRegistration, request: AssignReplicasToDirsRequest
    ) -> AssignReplicasToDirsResponse:
        """Record the directory of each replica of a broker (``handleAssignReplicasToDirs``).

        An assignment to a directory that is not online is recorded all the same: it is how a broker says that a
        replica is lost. The replica then loses leadership and ISR, after all assignments.
        """
        outcome = _Assigned()
        answer = AssignReplicasToDirsResponse(
            directories=tuple(
                AssignReplicasToDirsResponseDirectory(
                    id_=directory.id_,
                    topics=tuple(
                        self._assign_topic(draft, broker, directory.id_, topic, outcome) for topic in directory.topics
                    ),
                )
                for directory in request.directories
            )
        )
        self._replicas_lost(draft, outcome.lost, broker.id)
        self.leader_and_isr_updates(draft, outcome.anew, unclean=broker.id)
        if self._rules.elects_on_assignment:
            self.leader_and_isr_updates(draft, [key for key in outcome.waiting if self._is_leaderless(draft, key)])
        return answer

    def _assign_topic(
        self,
        draft: Draft,
        broker: BrokerRegistration,
        directory: Uuid,
        topic: AssignReplicasToDirsRequestTopic,
        outcome: "_Assigned",
    ) -> AssignReplicasToDirsResponseTopic:
        """Assign replicas of one topic to a directory."""
        online = broker.has_online_dir(directory)
        if directory in (UNASSIGNED, MIGRATING) and self._rules.no_directory_is_offline:
            online = False
        known = self._image.topics.get(topic.topic_id)
        topic_id = topic.topic_id if known is None else known.id  # the same object: found at once everywhere
        unknown = int(ErrorCode.UNKNOWN_TOPIC_ID if known is None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        registered = {} if known is None else known.partitions
        assigned = outcome.assigned.setdefault(topic_id, set())
        decided = _ByShape(partial(self._assignment, draft, broker, directory, topic_id))
        answers = []
        for asked in topic.partitions:
            number = asked.partition_index
            key = (topic_id, number)
            partition = draft.partition(key) if number in assigned else registered.get(number)
            if partition is None:
                answers.append(_assignment_answer(number, unknown))
                continue
            assigned.add(number)
            assignment = decided.of(partition)
            answers.append(_assignment_answer(number, assignment.error))
            if assignment.like is not None:
                draft.records.append(PartitionRecordRef(assignment.like, topic_id, number))
            if outcome.lost or not (online and assignment.is_led and not assignment.is_made_anew):
                outcome.add(key, assignment, online=online, last_counts=self._rules.sees_own_changes)
        return AssignReplicasToDirsResponseTopic(topic_id=topic.topic_id, partitions=tuple(answers))

    def _assignment(
        self,
        draft: Draft,
        broker: BrokerRegistration,
        directory: Uuid,
        topic_id: Uuid,
        partition: PartitionRegistration,
    ) -> "_Assignment":
        """Return the result of an assignment, for all partitions of one shape."""
        error, like = 0, None
        if broker.id not in partition.replicas:
            error = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif not self._rules.sees_own_changes and not _is_settled(draft, partition):
            # In Kafka any change of a partition may elect its leader; here the election follows by itself.
            builder = self.builder(draft, (topic_id, ANY), partition)
            builder.election = Election.ONLINE
            builder.directories = {broker.id: directory}
            like = builder.build()
        elif partition.directory(broker.id) != directory:
            like = PartitionChangeRecord(
                topic_id=topic_id,
                partition_id=ANY,
                directories=_with_directory(partition.replicas, partition.directories, broker.id, directory),
            )
        is_made_anew = not error and self._is_made_anew(partition, broker)
        return _Assignment(error, like, is_made_anew, is_led=partition.leader != NO_LEADER)

    def _is_made_anew(self, partition: PartitionRegistration, broker: BrokerRegistration) -> bool:
        """Return whether an eligible replica was in a directory that the broker does not have. Then the replica was
        created anew, without the data that made it eligible."""
        return (
            self._rules.lost_directory_is_unclean
            and broker.id in partition.eligible_leader_replicas
            and not broker.has_online_dir(partition.directory(broker.id))
        )

    def _is_leaderless(self, draft: Draft, key: PartitionKey) -> bool:
        partition = draft.partition(key)
        return partition is not None and partition.leader == NO_LEADER

    # ---- AlterPartition

    def alter_partition(
        self, draft: Draft, request: AlterPartitionRequest, *, with_epochs: bool
    ) -> AlterPartitionResponse:
        """Change the ISR on request of the leader (``ReplicationControlManager.alterPartition``); ``with_epochs`` from
        version 3."""
        topics = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition_index)
                isr = partition.new_isr
                epochs: Mapping[int, int] = {}
                if with_epochs:
                    epochs = {state.broker_id: state.broker_epoch for state in partition.new_isr_with_epochs}
                    isr = tuple(state.broker_id for state in partition.new_isr_with_epochs)
                try:
                    answer = self._alter_one(draft, key, request.broker_id, partition, isr, epochs)
                except ApiError as error:
                    answer = AlterPartitionResponsePartition(partition_index=key[1], error_code=error.code)
                partitions.append(answer)
            topics.append(AlterPartitionResponseTopic(topic_id=topic.topic_id, partitions=tuple(partitions)))
        return AlterPartitionResponse(topics=tuple(topics))

    def _alter_one(
        self,
        draft: Draft,
        key: PartitionKey,
        broker_id: int,
        proposed: AlterPartitionRequestPartition,
        isr: tuple[int, ...],
        epochs: Mapping[int, int],
    ) -> AlterPartitionResponsePartition:
        partition = self._checked_partition(draft, key, broker_id, proposed, isr)
        self._check_eligible(draft, partition, isr, epochs)
        builder = self.builder(draft, key, partition)
        builder.target_isr = isr
        builder.target_recovery_state = proposed.leader_recovery_state
        record = builder.build()
        if record is None:
            return _partition_answer(key, partition)
        draft.add(record)
        changed = partition.merge(record)
        if changed.leader != partition.leader:
            # The change completed a reassignment away from the caller: it is recorded, and the caller is out.
            raise ApiError(ErrorCode.NEW_LEADER_ELECTED)
        return _partition_answer(key, changed)

    def _checked_partition(
        self,
        draft: Draft,
        key: PartitionKey,
        broker_id: int,
        proposed: AlterPartitionRequestPartition,
        isr: tuple[int, ...],
    ) -> PartitionRegistration:
        """Return the partition if the sender leads it and knows its state (``validateAlterPartitionData``)."""
        partition = draft.partition(key)
        if key[0] not in self._image.topics:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if proposed.leader_epoch > partition.leader_epoch or proposed.partition_epoch > partition.partition_epoch:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        if proposed.leader_epoch < partition.leader_epoch:
            raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
        if broker_id != partition.leader:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if proposed.partition_epoch < partition.partition_epoch:
            raise ApiError(ErrorCode.INVALID_UPDATE_VERSION)
        unique = set(isr)
        if not isr or len(unique) != len(isr) or not unique <= set(partition.replicas) or broker_id not in unique:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if proposed.leader_recovery_state not in (0, 1):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if proposed.leader_recovery_state and (len(isr) > 1 or not partition.leader_recovery_state):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        return partition

    def _check_eligible(
        self, draft: Draft, partition: PartitionRegistration, isr: tuple[int, ...], epochs: Mapping[int, int]
    ) -> None:
        for replica in isr:
            broker = draft.broker(replica)
            if broker is None or not broker.active or epochs.get(replica, -1) not in (-1, broker.epoch):
                raise ApiError(ErrorCode.INELIGIBLE_REPLICA)
            if self._rules.guards_isr and not self._has_electable_dir(broker, partition.directory(replica)):
                raise ApiError(ErrorCode.INELIGIBLE_REPLICA)


def _is_settled(draft: Draft, partition: PartitionRegistration) -> bool:
    """Return whether an election, or the end of a reassignment, would leave the partition unchanged."""
    broker = draft.broker(partition.leader)
    return (
        broker is not None
        and broker.active
        and partition.leader in partition.isr
        and broker.has_online_dir(partition.directory(partition.leader))
        and not partition.eligible_leader_replicas
        and not partition.last_known_elr
        and not partition.adding_replicas
        and not partition.removing_replicas
    )


@lru_cache(maxsize=4_096)
def _with_directory(
    replicas: tuple[int, ...], directories: tuple[Uuid, ...], broker_id: int, given: Uuid
) -> tuple[Uuid, ...]:
    return tuple(
        given if replica == broker_id else directory for replica, directory in zip(replicas, directories, strict=True)
    )


@lru_cache(maxsize=16_384)
def _assignment_answer(number: int, error: int) -> AssignReplicasToDirsResponsePartition:
    return AssignReplicasToDirsResponsePartition(partition_index=number, error_code=error)


def _partition_answer(key: PartitionKey, partition: PartitionRegistration) -> AlterPartitionResponsePartition:
    return AlterPartitionResponsePartition(
        partition_index=key[1],
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )
