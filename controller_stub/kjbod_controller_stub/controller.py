"""The single writer: a request in, records and an answer out (``QuorumController``).

Three steps, and only the second changes hard state:

1. :meth:`Controller.handle` (or :meth:`Controller.expire_session`) reads the state and makes a
   :class:`~kjbod_controller_stub.results.Result`: records and an answer.
2. :meth:`Controller.apply` gives the records their offsets and versions and replays them, at once: the next request
   sees the *latest*, not the durable state.
3. The caller writes the bytes, syncs, and only then lets go of the answers that wait for an offset at or below the
   durable end (:class:`DeferredAnswers`). An answer without records waits too, for the last record it may have seen.

Recovery is replay of the log (:meth:`Controller.recover`). Soft state (:mod:`.brokers.heartbeats`) is not in the log.

Everything here is a pure function of (state, request, now_ms); ids and the shuffling of brokers come in from outside.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeAlias, TypeVar

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.acls import AclIndex, Acls
from kjbod.metadata.acls import Rules as AclRules
from kjbod.metadata.image import (
    BrokerChange,
    BrokerRegistration,
    Change,
    ConfigChange,
    FeatureChange,
    MetadataImage,
    OtherChange,
    PartitionChange,
    Replayer,
)
from kjbod.metadata.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    Alike,
    AnyRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    Endpoint,
    EndTransactionRecord,
    NoOpRecord,
    Record,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    UnregisterBrokerRecord,
    encode_alike,
    encode_record,
)
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.admin_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterClientQuotasRequest,
    AlterConfigsRequest,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    CreatePartitionsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    ListConfigResourcesRequest,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
    UpdateFeaturesRequest,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
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
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kjbod_controller_stub import describe
from kjbod_controller_stub.access import credentials, entries, producer_ids, quotas
from kjbod_controller_stub.access.authorizer import ANONYMOUS
from kjbod_controller_stub.access.mutation_quotas import (
    STRICT_SINCE_CREATE_PARTITIONS,
    STRICT_SINCE_CREATE_TOPICS,
    STRICT_SINCE_DELETE_TOPICS,
    WINDOW_NUM,
    WINDOW_SIZE_S,
    Charge,
    MutationQuotas,
)
from kjbod_controller_stub.brokers.cluster import SUPPORTED_FEATURES, Cluster, controller_record
from kjbod_controller_stub.brokers.heartbeats import BrokerState, Contact, Heartbeats, Situation, next_state
from kjbod_controller_stub.configs.altering import Configs
from kjbod_controller_stub.configs.describing import ConfigDescriber
from kjbod_controller_stub.configs.effective import UNCLEAN_ELECTION, EffectiveConfigs
from kjbod_controller_stub.features import Finalized, update_features
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.partitions.leader_elections import LeaderElections
from kjbod_controller_stub.partitions.new_partitions import NewPartitions
from kjbod_controller_stub.partitions.placement import Shuffle
from kjbod_controller_stub.partitions.reassignments import Reassignments
from kjbod_controller_stub.partitions.replaying import replay_alike
from kjbod_controller_stub.partitions.replication import Replication
from kjbod_controller_stub.partitions.topics import TopicDefaults, Topics, delete_topics
from kjbod_controller_stub.periodic import PeriodicTasks
from kjbod_controller_stub.results import ApiError, Draft, Result
from kjbod_controller_stub.rules import KIP_858, Rules

BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Largest batch that Kafka's raft writes and reads (``KafkaRaftClient.MAX_BATCH_SIZE_BYTES``)."""
_BALANCE = "electPreferred"
_RESCUE = "electUnclean"
"""Periodic tasks by their names in Kafka."""
_PREVIOUS_EPOCH_SINCE = 3
"""The version of BrokerRegistration that says whether the incarnation before was shut down in order."""
_BROKER_RECORDS = frozenset({RegisterBrokerRecord, BrokerRegistrationChangeRecord, UnregisterBrokerRecord})
_RECORD_OVERHEAD_BYTES = 16
_STEADY = {
    (caught_up, fenced): BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced)
    for caught_up in (False, True)
    for fenced in (False, True)
}
"""Upper bound of what a batch adds to a record's value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the controller has to know from its configuration."""

    node_id: int
    cluster_id: str
    rules: Rules = KIP_858
    session_timeout_ms: int = 9_000
    topic_defaults: TopicDefaults = field(default_factory=TopicDefaults)
    static_configs: Mapping[str, str] = field(default_factory=dict)
    """All of the node's ``server.properties``, for what it tells about itself and gives to topics."""
    delete_topic_enable: bool = True
    unclean_election: bool = False
    acl_rules: AclRules = field(default_factory=AclRules)
    min_isr: int = 1
    leader_imbalance_check_ms: int | None = 300_000
    """None: leadership is not given back to preferred replicas by itself."""
    unclean_election_check_ms: int = 300_000
    mutation_window_num: int = WINDOW_NUM
    mutation_window_size_s: int = WINDOW_SIZE_S
    """Their product is what a controller mutation quota may be used for at once, in seconds of its rate."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a handler may know about a request besides its message."""

    api_version: int
    principal: str = ANONYMOUS
    """Who asks: the peer, or whom a broker forwards for (KIP-590)."""
    host: str = ""
    """The address that it asks from."""
    forwarded: bool = False
    """Whether a broker forwards it."""
    token_authenticated: bool = False
    """Whether who asks has shown a delegation token."""
    client_id: str = ""
    """What who asks calls itself."""


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
        configs = EffectiveConfigs(
            image=self.image,
            node_id=settings.node_id,
            unclean_election=settings.unclean_election,
            min_isr=settings.min_isr,
        )
        self.replication = Replication(self.image, self.index, settings.rules, configs)
        self.elections = LeaderElections(self.image, self.index, self.replication)
        self.configs = Configs(
            image=self.image, node_id=settings.node_id, rules=settings.rules, static=settings.static_configs
        )
        self.partitions = NewPartitions(self.image, shuffle, settings.rules)
        self.topics = Topics(self.image, settings.topic_defaults, draw_id, self.partitions, self.configs)
        self.reassignments = Reassignments(
            self.image, self.replication, self.partitions, settings.rules.forgets_newcomers
        )
        self.mutation_quotas = MutationQuotas(
            capacity_s=settings.mutation_window_num * settings.mutation_window_size_s,
            bounds_throttle_time=settings.rules.bounds_throttle_time,
        )
        self.changes_end: dict[int, int] = {}
        """Where the last change of each broker's registration ends: what was told of it waits for this offset."""
        self.periodic = PeriodicTasks()
        self._draw_id = draw_id
        self._everything = Acls(AclRules(), (), principal="", host="")
        self._acl_index: AclIndex | None = None
        """None: nobody has asked for it yet."""
        if settings.leader_imbalance_check_ms is not None:
            self.periodic.add(_BALANCE, settings.leader_imbalance_check_ms, self._balance)
        self.periodic.add(_RESCUE, settings.unclean_election_check_ms, self._rescue)
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

    def recover_snapshot(self, snapshot_id: SnapshotId, records: Iterable[Record]) -> None:
        """Replay a snapshot at start, before the log after it. What it has counts as of its last record.

        Raises:
            kjbod.metadata.image.ReplayError: a record contradicts the ones before it.
        """
        self.next_offset = snapshot_id.end_offset - 1
        for record in records:
            change = self.image.replay(record, self.next_offset)
            if change is not None:
                self._follow(change)
        self.image.epoch = snapshot_id.epoch
        self.next_offset = snapshot_id.end_offset

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
        if isinstance(change, PartitionChange):  # nearly all are, and nobody else looks at them
            self.index.apply(change)
            self.reassignments.apply(change)
            return
        self.index.apply(change)
        self.cluster.apply(change)
        self.topics.apply(change)
        self.configs.apply(change)
        self.reassignments.apply(change)
        if isinstance(change, BrokerChange) and not self.settings.rules.keeps_offsets:
            registered = change.old and change.new and change.old.record_offset != change.new.record_offset
            self.heartbeats.forget_offset(change.broker_id, registered=bool(registered))
        if isinstance(change, FeatureChange):
            self.features_offset = self.next_offset
        elif isinstance(change, OtherChange) and self._acl_index is not None:
            if isinstance(change.record, AccessControlEntryRecord):
                self._acl_index.add(change.record)
            elif isinstance(change.record, RemoveAccessControlEntryRecord):
                self._acl_index.remove(change.record.id)
        elif isinstance(change, ConfigChange):
            self._config_changed(change)

    def _config_changed(self, change: ConfigChange) -> None:
        if change.name == UNCLEAN_ELECTION and self.settings.rules.elects_on_config_change:
            self.periodic.hasten(_RESCUE, 0)

    def activate(self, now_ms: int) -> Result:
        """Begin to serve after recovery: unfenced brokers get a session; a transaction that a crash cut is aborted."""
        self.heartbeats.activate(self.image.brokers.values(), now_ms)
        self.periodic.activate(now_ms)
        if self._replayer.in_transaction:
            return Result(records=(AbortTransactionRecord(reason="Controller failover"),))
        return Result()

    @property
    def acl_index(self) -> AclIndex:
        """All ACLs, as they are now."""
        if self._acl_index is None:
            self._acl_index = AclIndex(self.image.acls.values())
        return self._acl_index

    def permissions(self, principal: str, host: str) -> Acls:
        """What a principal on a host may do."""
        if not self.settings.acl_rules.class_name:
            return self._everything
        return Acls(self.settings.acl_rules, self.acl_index, principal=principal, host=host)

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
        values = self._values(result.records)
        records = list(result.records)
        split = sum(map(len, values)) + len(values) * _RECORD_OVERHEAD_BYTES > BATCH_BYTES_MAX
        if split and result.atomic and self.image.metadata_version >= versions.TRANSACTIONS:
            begin, end = BeginTransactionRecord(name="kjbod"), EndTransactionRecord()
            records = [begin, *records, end]
            values = [self._encode(begin), *values, self._encode(end)]
        write = Write(self.next_offset, tuple(_batches(values)))
        end_offset = write.end_offset
        partitions: list[Alike] = []
        for record in records:
            if isinstance(record, Alike):
                partitions.append(record)
                continue
            self._replay_alike(partitions)
            if type(record) in _BROKER_RECORDS:
                self.changes_end[record.broker_id] = end_offset  # type: ignore[attr-defined]  # see steady_heartbeat
            self.replay(record)
        self._replay_alike(partitions)
        if result.enters_shutdown is not None:
            self.heartbeats.enter_controlled_shutdown(*result.enters_shutdown, offset=self.next_offset - 1)
        return write

    def _replay_alike(self, records: list[Alike]) -> None:
        """Apply records that were just generated, and empty the list."""
        if records:
            replay_alike(records, self.image, self.index, self.reassignments)
            self.next_offset += len(records)
            self.image.offset = self.next_offset - 1
            records.clear()

    def _values(self, records: Iterable[AnyRecord]) -> list[bytes]:
        level = self.image.metadata_version
        encoders: dict[int, Callable[[Uuid, int], bytes]] = {}
        values = []
        for record in records:
            if isinstance(record, Alike):
                like, topic_id, partition_id = record
                encode = encoders.get(id(like))
                if encode is None:
                    encode = encoders[id(like)] = encode_alike(like, versions.record_version(like, level))
                values.append(encode(topic_id, partition_id))
            else:
                values.append(self._encode(record))
        return values

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

    def _balance(self, now_ms: int) -> Result | None:
        draft = self._draft()
        if self.elections.balance(draft):
            self.periodic.hasten(_BALANCE, now_ms)
        return draft.result(None, atomic=False) if draft.records else None

    def _rescue(self, now_ms: int) -> Result | None:
        draft = self._draft()
        if self.elections.rescue(draft):
            self.periodic.hasten(_RESCUE, now_ms)
        return draft.result(None, atomic=False) if draft.records else None

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
            existing = self.image.brokers.get(request.broker_id)
            clean = (
                context.api_version >= _PREVIOUS_EPOCH_SINCE
                and existing is not None
                and existing.epoch == request.previous_broker_epoch
            )
            self.replication.broker_restarted(draft, request.broker_id, clean=clean, log_dirs=request.log_dirs)
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

    def steady_heartbeat(
        self, request: BrokerHeartbeatRequest, now_ms: int, metadata_offset: int | None = None
    ) -> tuple[BrokerHeartbeatResponse, int] | None:
        """The answer to a heartbeat that renews the session and changes nothing else, and how far the log has to be
        durable before it may leave; None: it may change something, and has to be handled like any other request.
        ``metadata_offset`` is given where ``request`` was sent before and is now repeated with another offset.

        The one method that may run while another thread handles and applies a change. It reads

        - one registration, an immutable value, by one lookup;
        - where that broker's last change ends, *after* the registration. :meth:`apply` writes them the other way
          round, so that whoever is told of a change waits for at least its end;
        - the contact, which :class:`~kjbod_controller_stub.brokers.heartbeats.Heartbeats` guards. Its sets only grow.

        So the answer is one that could have been given before the change, or after it.
        """
        broker = self.image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch or request.want_shut_down:
            return None
        offset = request.current_metadata_offset if metadata_offset is None else metadata_offset
        caught_up = offset >= broker.record_offset
        if broker.fenced:
            if caught_up and not request.want_fence:
                return None
        elif request.want_fence or broker.in_controlled_shutdown:
            return None
        contact = self.heartbeats.contact(broker.id, broker.epoch)
        if contact is None or contact.controlled_shutdown_offset is not None:
            return None
        if not (contact.accepted.issuperset(request.offline_log_dirs) and contact.accepted.isdisjoint(broker.log_dirs)):
            return None
        if self._changes_cordoned(broker, request):
            return None
        if not self.heartbeats.renew(broker.id, contact, now_ms, offset):
            return None
        return _STEADY[caught_up, broker.fenced], self.changes_end.get(broker.id, 0)

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
        contact.accepted.update(request.offline_log_dirs)
        situation = self._situation(broker, request, contact)
        current = self._state(broker, contact)
        following = next_state(current, situation)
        # The KIP's rules take the directories first, so that an unfencing elects with what is left.
        if rules.sees_own_changes and not situation.no_directory:
            self._take_offline(draft, broker, frozenset(contact.offline))
        if situation.no_directory:
            self.replication.directories_all_offline(draft, broker)
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
            # Asked only where it counts: it looks at every broker.
            may_go=self._state(broker, contact) is BrokerState.CONTROLLED_SHUTDOWN
            and self.heartbeats.may_go(broker.id, broker.epoch, self._awaited()),
            held=(rules.shutdown_is_final and broker.in_controlled_shutdown)
            or self.cluster.awaits_placement(broker, self.index.unassigned(broker.id)),
            no_directory=lost and rules.fences_without_directories,
        )

    def _awaited(self) -> list[BrokerRegistration]:
        """The brokers whose offsets a controlled shutdown waits for: those that may lead. Kafka knows from soft state
        which of them are leaving themselves."""
        if self.settings.rules.shutdown_is_final:
            return self.cluster.active()
        return [
            broker
            for broker in self.image.brokers.values()
            if not broker.fenced and not self.heartbeats.is_leaving(broker.id, broker.epoch)
        ]

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
        if self._changes_cordoned(broker, request):
            draft.add(
                BrokerRegistrationChangeRecord(
                    broker_id=broker.id, broker_epoch=broker.epoch, cordoned_log_dirs=request.cordoned_log_dirs
                )
            )

    def _changes_cordoned(self, broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> bool:
        cordoned = request.cordoned_log_dirs
        if cordoned is None or self.image.metadata_version < versions.CORDONED_LOG_DIRS:
            return False
        return broker.cordoned_log_dirs is None or set(broker.cordoned_log_dirs) != set(cordoned)

    def _assign(self, request: AssignReplicasToDirsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            self.replication.require_directories()
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

    def _elect_leaders(self, request: ElectLeadersRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            answer = self.elections.elect(draft, request)
        except ApiError as error:
            return Result(answer=ElectLeadersResponse(error_code=error.code))
        return draft.result(answer, atomic=False)

    def _allocate_producer_ids(self, request: AllocateProducerIdsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            self.cluster.require_epoch(request.broker_id, request.broker_epoch)
            return draft.result(producer_ids.allocate(draft, self.image, request))
        except ApiError as error:
            return draft.result(AllocateProducerIdsResponse(error_code=error.code))

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
        charge = self._charge(context, STRICT_SINCE_CREATE_TOPICS, now_ms)
        answer = self.topics.create(draft, request, charge)
        return draft.result(replace(answer, throttle_time_ms=charge.throttle_time_ms))

    def _delete_topics(self, request: DeleteTopicsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        charge = self._charge(context, STRICT_SINCE_DELETE_TOPICS, now_ms)
        enabled = self.settings.delete_topic_enable
        answer = delete_topics(draft, request, version=context.api_version, enabled=enabled, charge=charge)
        return draft.result(replace(answer, throttle_time_ms=charge.throttle_time_ms))

    def _create_partitions(self, request: CreatePartitionsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        charge = self._charge(context, STRICT_SINCE_CREATE_PARTITIONS, now_ms)
        answer = self.partitions.create(draft, request, charge)
        return draft.result(replace(answer, throttle_time_ms=charge.throttle_time_ms))

    def _charge(self, context: Context, strict_since: int, now_ms: int) -> Charge:
        """The quota that a request's new and deleted partitions count against."""
        return self.mutation_quotas.charge(
            self.image.quotas,
            context.principal,
            context.client_id,
            strict=context.api_version >= strict_since,
            now_ms=now_ms,
        )

    def _alter_reassignments(
        self, request: AlterPartitionReassignmentsRequest, context: Context, now_ms: int
    ) -> Result:
        draft = self._draft()
        try:
            answer = self.reassignments.alter(draft, request)
        except ApiError as error:
            answer = AlterPartitionReassignmentsResponse(error_code=error.code, error_message=error.message)
        return draft.result(answer)

    def _list_reassignments(self, request: ListPartitionReassignmentsRequest, context: Context, now_ms: int) -> Result:
        return Result(answer=self.reassignments.list_in_progress(request))

    def _alter_configs(self, request: IncrementalAlterConfigsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(self.configs.alter_incrementally(draft, request, forwarded=context.forwarded))

    def _describe_configs(self, request: DescribeConfigsRequest, context: Context, now_ms: int) -> Result:
        return Result(answer=ConfigDescriber(self.configs).describe(request))

    def _list_config_resources(self, request: ListConfigResourcesRequest, context: Context, now_ms: int) -> Result:
        return Result(answer=ConfigDescriber(self.configs).list_resources(request, version=context.api_version))

    def _replace_configs(self, request: AlterConfigsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(self.configs.alter_whole(draft, request, forwarded=context.forwarded))

    def _alter_quotas(self, request: AlterClientQuotasRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(quotas.alter_quotas(draft, self.image, request, self.settings.rules))

    def _alter_credentials(self, request: AlterUserScramCredentialsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(credentials.alter_credentials(draft, self.image, request))

    def _create_acls(self, request: CreateAclsRequest, context: Context, now_ms: int) -> Result:
        if not self.settings.acl_rules.class_name:
            return Result(answer=entries.without_authorizer(request))
        draft = self._draft()
        return draft.result(entries.create_acls(draft, self.acl_index, request, self._draw_id, self.settings.rules))

    def _delete_acls(self, request: DeleteAclsRequest, context: Context, now_ms: int) -> Result:
        if not self.settings.acl_rules.class_name:
            return Result(answer=entries.without_authorizer(request))
        draft = self._draft()
        return draft.result(entries.delete_acls(draft, self.acl_index, request))

    def _describe_acls(self, request: DescribeAclsRequest, context: Context, now_ms: int) -> Result:
        if not self.settings.acl_rules.class_name:
            return Result(answer=entries.without_authorizer(request))
        return Result(answer=entries.describe_acls(self.acl_index, request))

    def _create_token(self, request: CreateDelegationTokenRequest, context: Context, now_ms: int) -> Result:
        return Result(
            answer=credentials.token_not_created(request, self._token_error(context), principal=context.principal)
        )

    def _renew_token(self, request: RenewDelegationTokenRequest, context: Context, now_ms: int) -> Result:
        code = self._token_error(context)
        moment = credentials.no_moment(code)
        return Result(answer=RenewDelegationTokenResponse(error_code=code, expiry_timestamp=moment))

    def _expire_token(self, request: ExpireDelegationTokenRequest, context: Context, now_ms: int) -> Result:
        code = self._token_error(context)
        moment = credentials.no_moment(code)
        return Result(answer=ExpireDelegationTokenResponse(error_code=code, expiry_timestamp=moment))

    def _token_error(self, context: Context) -> ErrorCode:
        return credentials.token_refusal(forwarded=context.forwarded, token_authenticated=context.token_authenticated)

    def _update_features(self, request: UpdateFeaturesRequest, context: Context, now_ms: int) -> Result:
        finalized = Finalized(
            image=self.image,
            node_id=self.settings.node_id,
            kraft_version=self.cluster.kraft_version,
            supported=SUPPORTED_FEATURES,
            names_losses=self.settings.rules.names_losses,
        )
        result = update_features(finalized, request, api_version=context.api_version)
        return eligible.with_safety_records(result, self.image, self.settings.min_isr)

    def _describe_cluster(self, request: DescribeClusterRequest, context: Context, now_ms: int) -> Result:
        return Result(
            answer=describe.describe_cluster(
                self.image,
                request,
                version=context.api_version,
                rules=self.settings.rules,
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
    AllocateProducerIdsRequest: Controller._allocate_producer_ids,
    ElectLeadersRequest: Controller._elect_leaders,
    UnregisterBrokerRequest: Controller._unregister,
    ControllerRegistrationRequest: Controller._register_controller,
    CreateTopicsRequest: Controller._create_topics,
    DeleteTopicsRequest: Controller._delete_topics,
    CreatePartitionsRequest: Controller._create_partitions,
    AlterPartitionReassignmentsRequest: Controller._alter_reassignments,
    ListPartitionReassignmentsRequest: Controller._list_reassignments,
    IncrementalAlterConfigsRequest: Controller._alter_configs,
    AlterConfigsRequest: Controller._replace_configs,
    DescribeConfigsRequest: Controller._describe_configs,
    ListConfigResourcesRequest: Controller._list_config_resources,
    DescribeClusterRequest: Controller._describe_cluster,
    MetadataRequest: Controller._metadata,
    UpdateFeaturesRequest: Controller._update_features,
    AlterClientQuotasRequest: Controller._alter_quotas,
    AlterUserScramCredentialsRequest: Controller._alter_credentials,
    CreateAclsRequest: Controller._create_acls,
    DeleteAclsRequest: Controller._delete_acls,
    DescribeAclsRequest: Controller._describe_acls,
    CreateDelegationTokenRequest: Controller._create_token,
    RenewDelegationTokenRequest: Controller._renew_token,
    ExpireDelegationTokenRequest: Controller._expire_token,
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
