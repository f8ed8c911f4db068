"""Partitions: leaders, ISR and directories after whatever happens to a broker (``ReplicationControlManager``).

Every method adds records to a :class:`~kjbod_controller_stub.results.Draft`; nothing here changes state. The order of
the records is Kafka's: a broker that goes away is left out of partitions first and fenced last; one that comes is
unfenced first; a directory leaves its registration after the partitions have left the directory.
"""

from collections.abc import Iterable, Mapping

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import BROKER, TOPIC, BrokerRegistration, MetadataImage, PartitionRegistration
from kjbod.metadata.records import (
    NO_LEADER,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
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
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectory,
    AssignReplicasToDirsResponsePartition,
    AssignReplicasToDirsResponseTopic,
)
from kjbod_controller_stub.elections import Election, PartitionChangeBuilder
from kjbod_controller_stub.partitions import PartitionIndex
from kjbod_controller_stub.results import ApiError, Draft, PartitionKey
from kjbod_controller_stub.rules import Rules

UNCLEAN_ELECTION = "unclean.leader.election.enable"

NOBODY = -1
"""No broker: nothing to remove or to add."""


class Replication:
    """Makes the records about partitions."""

    def __init__(self, image: MetadataImage, index: PartitionIndex, rules: Rules, *, unclean_election: bool) -> None:
        self._image = image
        self._index = index
        self._rules = rules
        self._unclean_election = unclean_election

    # ---- elections

    def builder(
        self,
        draft: Draft,
        key: PartitionKey,
        partition: PartitionRegistration,
        *,
        remove: int = NOBODY,
        add: int = NOBODY,
    ) -> PartitionChangeBuilder:
        """A change of one partition; see :meth:`leader_and_isr_updates` for ``remove`` and ``add``."""

        def acceptable(replica: int) -> bool:
            if replica == remove or replica not in partition.replicas:
                return False
            broker = draft.broker(replica)
            if broker is None or not (replica == add or broker.active):
                return False
            return broker.has_online_dir(partition.directory(replica))

        return PartitionChangeBuilder(
            key=key,
            partition=partition,
            acceptable=acceptable,
            default_dir=self._image.default_dir,
            metadata_version=self._image.metadata_version,
            election=Election.UNCLEAN if self._allows_unclean(key) else Election.ONLINE,
        )

    def _allows_unclean(self, key: PartitionKey) -> bool:
        if not self._image.configs:
            return self._unclean_election
        topic = self._image.topics[key[0]].name
        for resource in ((TOPIC, topic), (BROKER, "")):
            value = self._image.configs.get(resource, {}).get(UNCLEAN_ELECTION)
            if value is not None:
                return value.strip().lower() == "true"
        return self._unclean_election

    def leader_and_isr_updates(
        self, draft: Draft, keys: Iterable[PartitionKey], *, remove: int = NOBODY, add: int = NOBODY
    ) -> int:
        """Take the broker ``remove`` out of ISR and leadership, or let ``add`` lead (``generateLeaderAndIsrUpdates``).

        ``add`` counts as active although its registration still says fenced; ``remove`` never may lead.

        Returns:
            How many partitions got another leader.
        """
        moved = 0
        for key in keys:
            partition = draft.partition(key)
            if partition is None:
                continue
            builder = self.builder(draft, key, partition, remove=remove, add=add)
            if remove != NOBODY:
                builder.target_isr = tuple(replica for replica in partition.isr if replica != remove)
            record = builder.build()
            if record is not None:
                draft.add(record)
                moved += record.leader >= 0
        return moved

    # ---- brokers

    def broker_fenced(self, draft: Draft, broker: BrokerRegistration) -> int:
        """Fence a broker; how many leaders moved. A broker that is fenced already gets a record only from Kafka."""
        moved = self.leader_and_isr_updates(draft, self._index.in_isr(broker.id), remove=broker.id)
        if not broker.fenced or self._rules.repeats_fencing:
            draft.add(BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=1))
        return moved

    def broker_unfenced(self, draft: Draft, broker: BrokerRegistration) -> None:
        """Unfence a broker, and elect leaders for partitions that wait for it."""
        draft.add(BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, fenced=-1))
        self.leader_and_isr_updates(draft, self._index.leaderless(), add=broker.id)

    def broker_in_controlled_shutdown(self, draft: Draft, broker: BrokerRegistration) -> int:
        """Begin a controlled shutdown: all leaderships that can move do; how many did."""
        draft.add(
            BrokerRegistrationChangeRecord(broker_id=broker.id, broker_epoch=broker.epoch, in_controlled_shutdown=1)
        )
        return self.leader_and_isr_updates(draft, self._index.in_isr(broker.id), remove=broker.id)

    def broker_restarted(self, draft: Draft, broker_id: int) -> None:
        """A new incarnation registers: it is fenced, so it can neither lead nor be in sync."""
        self.leader_and_isr_updates(draft, self._index.in_isr(broker_id), remove=broker_id)

    def broker_unregistered(self, draft: Draft, broker_id: int) -> None:
        """Remove a broker from the cluster.

        Raises:
            ApiError: BROKER_ID_NOT_REGISTERED.
        """
        broker = self._image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
        self.leader_and_isr_updates(draft, self._index.in_isr(broker_id), remove=broker_id)
        draft.add(UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch))

    # ---- directories

    def directories_offline(self, draft: Draft, broker: BrokerRegistration, failed: frozenset[Uuid]) -> None:
        """Registered directories have failed: their replicas lose leadership and ISR, then they leave the registration
        (``handleDirectoriesOffline``). Writes a log line about it."""
        if not failed:
            return
        moved = sum(
            self.leader_and_isr_updates(draft, self._index.in_directory(broker.id, directory), remove=broker.id)
            for directory in sorted(failed)
        )
        stuck = 0
        if self._rules.suspects_unassigned and len(broker.log_dirs) > 1:
            suspects, stuck = self._suspects(draft, broker)
            moved += self.leader_and_isr_updates(draft, suspects, remove=broker.id)
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

    def directories_missing(self, draft: Draft, broker: BrokerRegistration, registered: Iterable[Uuid]) -> None:
        """The same incarnation registers again, without some of its directories: whatever is in them is offline."""
        for directory in sorted(set(broker.log_dirs) - set(registered)):
            self.leader_and_isr_updates(draft, self._index.in_directory(broker.id, directory), remove=broker.id)

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

    def assign_replicas(
        self, draft: Draft, broker: BrokerRegistration, request: AssignReplicasToDirsRequest
    ) -> AssignReplicasToDirsResponse:
        """Record in which directory each replica of a broker is (``handleAssignReplicasToDirs``).

        An assignment to a directory that is not online is recorded all the same: it is how a broker says that a
        replica is lost. The replica then loses leadership and ISR, after all assignments.

        Raises:
            ApiError: UNSUPPORTED_VERSION: the metadata.version has no directories.
        """
        if self._image.metadata_version < versions.DIRECTORY_ASSIGNMENT:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
        lost: dict[PartitionKey, None] = {}
        found: dict[PartitionKey, None] = {}
        directories = []
        for directory in request.directories:
            online = broker.has_online_dir(directory.id_)
            topics = []
            for topic in directory.topics:
                partitions = []
                for partition in topic.partitions:
                    key = (topic.topic_id, partition.partition_index)
                    error = self._assign(draft, key, broker.id, directory.id_)
                    if not error:
                        (found if online else lost)[key] = None
                        (lost if online else found).pop(key, None)
                    partitions.append(AssignReplicasToDirsResponsePartition(partition_index=key[1], error_code=error))
                topics.append(AssignReplicasToDirsResponseTopic(topic_id=topic.topic_id, partitions=tuple(partitions)))
            directories.append(AssignReplicasToDirsResponseDirectory(id_=directory.id_, topics=tuple(topics)))
        self.leader_and_isr_updates(draft, lost, remove=broker.id)
        if self._rules.elects_on_assignment:
            self.leader_and_isr_updates(draft, (key for key in found if self._is_leaderless(draft, key)))
        return AssignReplicasToDirsResponse(directories=tuple(directories))

    def _assign(self, draft: Draft, key: PartitionKey, broker_id: int, directory: Uuid) -> int:
        """One assignment; the error code of the answer."""
        if key[0] not in self._image.topics:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = draft.partition(key)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if broker_id not in partition.replicas:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if partition.directory(broker_id) != directory:
            draft.add(
                PartitionChangeRecord(
                    topic_id=key[0],
                    partition_id=key[1],
                    directories=_with_directory(partition, {broker_id: directory}),
                )
            )
        return 0

    def _is_leaderless(self, draft: Draft, key: PartitionKey) -> bool:
        partition = draft.partition(key)
        return partition is not None and partition.leader == NO_LEADER

    # ---- AlterPartition

    def alter_partition(
        self, draft: Draft, request: AlterPartitionRequest, *, with_epochs: bool
    ) -> AlterPartitionResponse:
        """A leader changes the ISR (``ReplicationControlManager.alterPartition``); ``with_epochs`` from version 3."""
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
        """The partition, when the caller leads it and knows its state (``validateAlterPartitionData``)."""
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
            if self._rules.guards_isr and not broker.has_online_dir(partition.directory(replica)):
                raise ApiError(ErrorCode.INELIGIBLE_REPLICA)


def _with_directory(partition: PartitionRegistration, given: Mapping[int, Uuid]) -> tuple[Uuid, ...]:
    return tuple(
        given.get(replica, directory)
        for replica, directory in zip(partition.replicas, partition.directories, strict=True)
    )


def _partition_answer(key: PartitionKey, partition: PartitionRegistration) -> AlterPartitionResponsePartition:
    return AlterPartitionResponsePartition(
        partition_index=key[1],
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=partition.isr,
        leader_recovery_state=partition.leader_recovery_state,
        partition_epoch=partition.partition_epoch,
    )
