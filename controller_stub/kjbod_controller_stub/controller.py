"""The single writer: a request in, records and an answer out (``QuorumController``).

Three steps, and only the second changes hard state:

1. :meth:`Controller.handle` (or :meth:`Controller.expire_session`) reads the state and makes a
   :class:`~kjbod_controller_stub.results.Result`: records and an answer.
2. :meth:`Controller.apply` gives the records their offsets and versions and replays them, at once: the next request
   sees the *latest*, not the durable state.
3. The caller writes the bytes, syncs, and only then lets go of the answers that wait for an offset at or below the
   durable end (:class:`DeferredAnswers`). An answer without records waits too, for the last record it may have seen.

Recovery is replay of the log (:meth:`Controller.recover`). Soft state (:mod:`.heartbeats`) is not in the log.

Everything here is a pure function of (state, request, now_ms); ids and the shuffling of brokers come in from outside.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import BrokerRegistration, Change, FeatureChange, MetadataImage, Replayer
from kjbod.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    Endpoint,
    EndTransactionRecord,
    NoOpRecord,
    Record,
    encode_record,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kjbod_controller_stub import describe
from kjbod_controller_stub.authorizer import ANONYMOUS
from kjbod_controller_stub.cluster import SUPPORTED_FEATURES, Cluster, controller_record
from kjbod_controller_stub.configs import alter_configs
from kjbod_controller_stub.heartbeats import BrokerState, Contact, Heartbeats, Situation, next_state
from kjbod_controller_stub.partitions import PartitionIndex
from kjbod_controller_stub.periodic import PeriodicTasks
from kjbod_controller_stub.placement import Shuffle
from kjbod_controller_stub.reassignments import alter_reassignments, list_reassignments
from kjbod_controller_stub.replication import Replication
from kjbod_controller_stub.results import ApiError, Draft, Result
from kjbod_controller_stub.rules import KIP_858, Rules
from kjbod_controller_stub.topics import TopicDefaults, Topics

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Largest batch that Kafka's raft writes and reads (``KafkaRaftClient.MAX_BATCH_SIZE_BYTES``)."""
_RECORD_OVERHEAD_BYTES = 16
"""Upper bound of what a batch adds to a record's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the controller has to know from its configuration."""

    node_id: int
    cluster_id: str
    rules: Rules = KIP_858
    session_timeout_ms: int = 9_000
    topic_defaults: TopicDefaults = field(default_factory=TopicDefaults)
    unclean_election: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may know about a request besides its message."""

    api_version: int
    principal: str = ANONYMOUS
    """Who asks: the peer, or whom a broker forwards for (KIP-590)."""
    host: str = ""
    """The address that it asks from."""


@dataclass(frozen=True, slots=True)
class Write:
    """Encoded records that follow the log's end: one tuple of values per batch."""

    base_offset: int
    batches: tuple[tuple[bytes, ...], ...]

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + sum(len(batch) for batch in self.batches)


T = TypeVar("T")


class DeferredAnswers(Generic[T]):
    """Answers that wait for the log to be durable up to an offset (``DeferredEventQueue``)."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, end_offset: int, answer: T) -> None:
        """Hold ``answer`` until the durable end reaches ``end_offset``, which never goes back from call to call.

        Raises:
            ValueError: it went back.
        """
        if self._waiting and self._waiting[-1][0] > end_offset:
            raise ValueError(f"answer for offset {end_offset} after one for {self._waiting[-1][0]}")
        self._waiting.append((end_offset, answer))

    def complete(self, durable_end: int) -> list[T]:
        """The answers that may leave now, in the order of their requests."""
        ready = []
        while self._waiting and self._waiting[0][0] <= durable_end:
            ready.append(self._waiting.popleft()[1])
        return ready


class Controller:
    """The controller's state and everything it does to it."""

    def __init__(self, settings: Settings, *, draw_id: Callable[[], Uuid], shuffle: Shuffle) -> None:
        self.settings = settings
        self.image = MetadataImage()
        self.endpoint = Endpoint(name="CONTROLLER", host="localhost", port=9093)
        """The controller listener as it is advertised; known when its port is."""
        self.next_offset = 0
        """Offset of the next record; control records count."""
        self.features_offset = -1
        """Offset of the last change of a finalized feature: their epoch in ApiVersions."""
        self._begun_offset = -1
        """Of the last BeginTransactionRecord."""
        self.index = PartitionIndex()
        self.heartbeats = Heartbeats(settings.session_timeout_ms)
        self.cluster = Cluster(
            self.image,
            settings.rules,
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
        )
        self.replication = Replication(
            self.image, self.index, settings.rules, unclean_election=settings.unclean_election
        )
        self.topics = Topics(self.image, settings.topic_defaults, draw_id, shuffle)
        self.periodic = PeriodicTasks()
        self._replayer = Replayer(self.image)

    # ---- state

    def recover(self, offset: int, epoch: int, record: Record) -> None:
        """Replay one record of the log at start. Transactions count from their end.

        Raises:
            kjbod.metadata.image.ReplayError: the record contradicts the ones before it.
        """
        self.next_offset = offset
        for change in self._replayer.replay(offset, epoch, record):
            self._follow(change)
        self._advance(record)

    def skip(self, offset: int) -> None:
        """Move past a control record of the log, in recovery or when this controller wrote it."""
        self.next_offset = offset + 1

    def replay(self, record: Record) -> None:
        """Apply a record that was just generated, at :attr:`next_offset`."""
        change = self.image.replay(record, self.next_offset)
        if change is not None:
            self._follow(change)
        self._advance(record)

    def _advance(self, record: Record) -> None:
        """Past a record. What a transaction changed counts from its end, live as in recovery."""
        if isinstance(record, BeginTransactionRecord):
            self._begun_offset = self.next_offset
        elif isinstance(record, EndTransactionRecord) and self.features_offset > self._begun_offset:
            self.features_offset = self.next_offset
        self.next_offset += 1

    def _follow(self, change: Change) -> None:
        self.index.apply(change)
        self.cluster.apply(change)
        self.topics.apply(change)
        if isinstance(change, FeatureChange):
            self.features_offset = self.next_offset

    def activate(self, now_ms: int) -> Result:
        """Begin to serve after recovery: unfenced brokers get a session; a transaction that a crash cut is aborted."""
        self.heartbeats.activate(self.image.brokers.values(), now_ms)
        self.periodic.activate(now_ms)
        if self._replayer.in_transaction:
            return Result(records=(AbortTransactionRecord(reason="Controller failover"),))
        return Result()

    def unsupported_features(self) -> list[str]:
        """Finalized features at levels that this controller cannot run, each as ``name level``."""
        problems = []
        for name, level in self.cluster.finalized_features().items():
            low, high = SUPPORTED_FEATURES.get(name, (0, 0))
            if not low <= level <= high:
                problems.append(f"{name} {level}")
        return problems

    def apply(self, result: Result) -> Write | None:
        """Replay a result's records and encode them for the log; None when there are none.

        An atomic result that does not fit into one batch becomes a metadata transaction (KIP-868), where the
        metadata.version knows those.
        """
        if not result.records:
            return None
        values = [self._encode(record) for record in result.records]
        records = list(result.records)
        split = sum(map(len, values)) + len(values) * _RECORD_OVERHEAD_BYTES > BATCH_BYTES_MAX
        if split and result.atomic and self.image.metadata_version >= versions.TRANSACTIONS:
            begin, end = BeginTransactionRecord(name="kjbod"), EndTransactionRecord()
            records = [begin, *records, end]
            values = [self._encode(begin), *values, self._encode(end)]
        write = Write(self.next_offset, tuple(_batches(values)))
        for record in records:
            self.replay(record)
        if result.enters_shutdown is not None:
            self.heartbeats.enter_controlled_shutdown(*result.enters_shutdown, offset=self.next_offset - 1)
        return write

    def _encode(self, record: Record) -> bytes:
        version = versions.record_version(record, self.image.metadata_version)
        if isinstance(record, BrokerRegistrationChangeRecord) and _says_nothing(record):
            # The report of the last directory under Kafka's rules, which a real controller writes in this version.
            version = versions.record_version_max(BrokerRegistrationChangeRecord, versions.DIRECTORY_ASSIGNMENT)
        return encode_record(record, version)

    # ---- timers

    def next_timer_ms(self) -> int | None:
        """When a session can expire, or a periodic task is due, next."""
        due = (self.heartbeats.next_check_ms(), self.periodic.next_due_ms())
        return min((ms for ms in due if ms is not None), default=None)

    def run_timers(self, now_ms: int) -> Result | None:
        """What time alone brings: a session that expired, else a periodic task; None when there is nothing."""
        return self.expire_session(now_ms) or self.periodic.run(now_ms)

    def expire_session(self, now_ms: int) -> Result | None:
        """Fence the broker whose session expired first (``maybeFenceStaleBroker``); None when all are good.

        One broker per pass, so that others' heartbeats are read in between: one of them may be late only because the
        controller was.
        """
        while (broker_id := self.heartbeats.find_one_stale(now_ms)) is not None:
            self.heartbeats.drop(broker_id)
            broker = self.image.brokers.get(broker_id)
            if broker is None or (broker.fenced and not self.settings.rules.repeats_fencing):
                continue
            draft = self._draft()
            moved = self.replication.broker_fenced(draft, broker)
            draft.note("broker.fenced", broker_id=broker_id, broker_epoch=broker.epoch, reason="session expired")
            if moved:
                draft.note("leaders.moved", count=moved)
            return draft.result(None)
        return None

    def no_op(self) -> Result:
        """Keeps offsets moving in an idle cluster, where the metadata.version knows the record."""
        knows = self.image.metadata_version >= versions.NO_OP
        return Result(records=(NoOpRecord(),) if knows else ())

    # ---- requests

    def handle(self, request: object, context: Context, now_ms: int) -> Result:
        """The records and the answer that a request asks for. Changes no hard state.

        Raises:
            KeyError: the controller does not serve this request.
        """
        return HANDLERS[type(request)](self, request, context, now_ms)

    def _draft(self) -> Draft:
        return Draft(self.image, cumulative=self.settings.rules.sees_own_changes)

    def _register(self, request: BrokerRegistrationRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            epoch, new = self.cluster.register(request, self.heartbeats, epoch=self.next_offset, now_ms=now_ms)
        except ApiError as error:
            draft.note("broker.refused", broker_id=request.broker_id, error_code=error.code, reason=error.message)
            return draft.result(BrokerRegistrationResponse(error_code=error.code))
        if new:
            self.heartbeats.drop(request.broker_id)
            self.replication.broker_restarted(draft, request.broker_id)
        record = self.cluster.registration_record(request, epoch, new=new)
        if not new and self.settings.rules.missing_directories_are_offline:
            self.replication.directories_missing(draft, self.image.brokers[request.broker_id], record.log_dirs)
        draft.add(record)
        draft.note(
            "broker.registered",
            broker_id=request.broker_id,
            broker_epoch=epoch,
            incarnation_id=str(request.incarnation_id),
            again=not new,
            directory_ids=[str(directory) for directory in record.log_dirs],
        )
        return draft.result(BrokerRegistrationResponse(broker_epoch=epoch))

    def _heartbeat(self, request: BrokerHeartbeatRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            broker = self.cluster.require_epoch(request.broker_id, request.broker_epoch)
            self._check_reported(broker, request)
        except ApiError as error:
            return draft.result(BrokerHeartbeatResponse(error_code=error.code))
        rules = self.settings.rules
        contact = self.heartbeats.touch(broker.id, broker.epoch, now_ms, request.current_metadata_offset)
        contact.offline |= set(request.offline_log_dirs) & set(broker.log_dirs)
        situation = self._situation(broker, request, contact)
        current = self._state(broker, contact)
        following = next_state(current, situation)
        # The KIP's rules take the directories first, so that an unfencing elects with what is left.
        if rules.sees_own_changes and not situation.no_directory:
            self._take_offline(draft, broker, frozenset(contact.offline))
        if following is not current:
            if situation.no_directory:
                lost = [str(directory) for directory in broker.log_dirs]
                draft.note("directories.offline", broker_id=broker.id, directory_ids=lost, remaining=0)
            self._change_state(draft, broker, contact, following)
        if not rules.sees_own_changes:
            self._take_offline(draft, broker, frozenset(request.offline_log_dirs))
        self._cordon(draft, broker, request)
        if following is BrokerState.SHUTDOWN_NOW and rules.session_ends_with_shutdown:
            self.heartbeats.drop(broker.id)
        answer = BrokerHeartbeatResponse(
            is_caught_up=situation.caught_up,
            is_fenced=following.fenced,
            should_shut_down=following is BrokerState.SHUTDOWN_NOW,
        )
        enters = following is BrokerState.CONTROLLED_SHUTDOWN and current is not following
        return draft.result(answer, enters_shutdown=(broker.id, broker.epoch) if enters else None)

    def _check_reported(self, broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> None:
        """Refuse directories that the broker does not have, where the rules say so.

        A refused heartbeat changes nothing and renews no session: if it hid a real failure, the broker is fenced when
        the session expires, instead of leading unseen.
        """
        if not self.settings.rules.checks_offline_directories or not request.offline_log_dirs:
            return
        if self.image.metadata_version < versions.DIRECTORY_ASSIGNMENT:
            return
        if unknown := self.cluster.unknown_directories(broker, request.offline_log_dirs):
            raise ApiError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"broker {broker.id} has no directory {', '.join(map(str, unknown))}"
            )

    def _situation(self, broker: BrokerRegistration, request: BrokerHeartbeatRequest, contact: Contact) -> Situation:
        rules = self.settings.rules
        lost = bool(broker.log_dirs) and contact.offline.issuperset(broker.log_dirs)
        return Situation(
            want_fence=request.want_fence,
            want_shut_down=request.want_shut_down,
            caught_up=request.current_metadata_offset >= broker.record_offset,
            leads=self.index.leads(broker.id) > 0,
            may_go=self.heartbeats.may_go(broker.id, broker.epoch, self.cluster.active()),
            held=(rules.shutdown_is_final and broker.in_controlled_shutdown)
            or self.cluster.awaits_placement(broker, self.index.unassigned(broker.id)),
            no_directory=lost and rules.fences_without_directories,
        )

    def _take_offline(self, draft: Draft, broker: BrokerRegistration, reported: frozenset[Uuid]) -> None:
        if self.image.metadata_version >= versions.DIRECTORY_ASSIGNMENT:
            self.replication.directories_offline(draft, broker, reported & frozenset(broker.log_dirs))

    def _state(self, broker: BrokerRegistration, contact: Contact) -> BrokerState:
        """What the broker is. Shipped Kafka takes a controlled shutdown from soft state, which fencing ends."""
        if broker.fenced:
            return BrokerState.FENCED
        leaving = contact.controlled_shutdown_offset is not None
        if self.settings.rules.shutdown_is_final:
            leaving = broker.in_controlled_shutdown
        return BrokerState.CONTROLLED_SHUTDOWN if leaving else BrokerState.UNFENCED

    def _change_state(self, draft: Draft, broker: BrokerRegistration, contact: Contact, following: BrokerState) -> None:
        moved = 0
        if following.fenced:
            contact.controlled_shutdown_offset = None
            moved = self.replication.broker_fenced(draft, broker)
            reason = "shutdown granted" if following is BrokerState.SHUTDOWN_NOW else "heartbeat"
            draft.note("broker.fenced", broker_id=broker.id, broker_epoch=broker.epoch, reason=reason)
        elif following is BrokerState.UNFENCED:
            self.replication.broker_unfenced(draft, broker)
            draft.note("broker.unfenced", broker_id=broker.id, broker_epoch=broker.epoch)
        else:
            moved = self.replication.broker_in_controlled_shutdown(draft, broker)
            draft.note("broker.shutdown.started", broker_id=broker.id, broker_epoch=broker.epoch)
        if moved:
            draft.note("leaders.moved", count=moved)

    def _cordon(self, draft: Draft, broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> None:
        cordoned = request.cordoned_log_dirs
        if cordoned is None or self.image.metadata_version < versions.CORDONED_LOG_DIRS:
            return
        if broker.cordoned_log_dirs is None or set(broker.cordoned_log_dirs) != set(cordoned):
            draft.add(
                BrokerRegistrationChangeRecord(
                    broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=cordoned
                )
            )

    def _assign(self, request: AssignReplicasToDirsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            broker = self.cluster.require_epoch(request.broker_id, request.broker_epoch)
            answer = self.replication.assign_replicas(draft, broker, request)
        except ApiError as error:
            return draft.result(AssignReplicasToDirsResponse(error_code=error.code))
        return draft.result(answer, atomic=False)

    def _alter_partition(self, request: AlterPartitionRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            self.cluster.require_epoch(request.broker_id, request.broker_epoch)
        except ApiError as error:
            return draft.result(AlterPartitionResponse(error_code=error.code))
        answer = self.replication.alter_partition(draft, request, with_epochs=context.api_version >= 3)
        return draft.result(answer, atomic=False)

    def _unregister(self, request: UnregisterBrokerRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            self.replication.broker_unregistered(draft, request.broker_id)
        except ApiError as error:
            return draft.result(UnregisterBrokerResponse(error_code=error.code, error_message=error.message))
        self.heartbeats.drop(request.broker_id)
        draft.note("broker.unregistered", broker_id=request.broker_id)
        return draft.result(UnregisterBrokerResponse())

    def _register_controller(self, request: ControllerRegistrationRequest, context: Context, now_ms: int) -> Result:
        if self.image.metadata_version < versions.CONTROLLER_REGISTRATION:
            return Result(
                answer=ControllerRegistrationResponse(
                    error_code=ErrorCode.UNSUPPORTED_VERSION,
                    error_message="The current MetadataVersion is too old to support controller registrations.",
                )
            )
        return Result(answer=ControllerRegistrationResponse(), records=(controller_record(request),))

    def _create_topics(self, request: CreateTopicsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(self.topics.create(draft, request))

    def _delete_topics(self, request: DeleteTopicsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(self.topics.delete(draft, request))

    def _alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest, context: Context, now_ms: int
    ) -> Result:
        return Result(answer=alter_reassignments(self.image, request))

    def _list_reassignments(self, request: ListPartitionReassignmentsRequest, context: Context, now_ms: int) -> Result:
        return Result(answer=list_reassignments())

    def _alter_configs(self, request: IncrementalAlterConfigsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(alter_configs(draft, request))

    def _describe_cluster(self, request: DescribeClusterRequest, context: Context, now_ms: int) -> Result:
        return Result(
            answer=describe.describe_cluster(
                self.image,
                request,
                cluster_id=self.settings.cluster_id,
                node_id=self.settings.node_id,
                controller=self.endpoint,
            )
        )

    def _metadata(self, request: MetadataRequest, context: Context, now_ms: int) -> Result:
        return Result(
            answer=describe.metadata(
                self.image,
                request,
                version=context.api_version,
                cluster_id=self.settings.cluster_id,
                node_id=self.settings.node_id,
                controller=self.endpoint,
            )
        )


_Handler: TypeAlias = Callable[[Controller, Any, Context, int], Result]

HANDLERS: dict[type[Any], _Handler] = {
    BrokerRegistrationRequest: Controller._register,
    BrokerHeartbeatRequest: Controller._heartbeat,
    AssignReplicasToDirsRequest: Controller._assign,
    AlterPartitionRequest: Controller._alter_partition,
    UnregisterBrokerRequest: Controller._unregister,
    ControllerRegistrationRequest: Controller._register_controller,
    CreateTopicsRequest: Controller._create_topics,
    DeleteTopicsRequest: Controller._delete_topics,
    AlterPartitionReassignmentsRequest: Controller._alter_reassignments,
    ListPartitionReassignmentsRequest: Controller._list_reassignments,
    IncrementalAlterConfigsRequest: Controller._alter_configs,
    DescribeClusterRequest: Controller._describe_cluster,
    MetadataRequest: Controller._metadata,
}


def _says_nothing(record: BrokerRegistrationChangeRecord) -> bool:
    return not (record.fenced or record.in_controlled_shutdown or record.log_dirs) and record.cordoned_log_dirs is None


def _batches(values: list[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Values in batches that Kafka reads."""
    batch: list[bytes] = []
    size = 0
    for value in values:
        size += len(value) + _RECORD_OVERHEAD_BYTES
        if batch and size > BATCH_BYTES_MAX:
            yield tuple(batch)
            batch, size = [], len(value) + _RECORD_OVERHEAD_BYTES
        batch.append(value)
    yield tuple(batch)
