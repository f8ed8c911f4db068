"""The controller's single writer: a request in, records and an answer out (``QuorumController``).

Three steps, and only the second changes hard state:

1. :meth:`Controller.handle` (or :meth:`Controller.expire_session`) reads the state and makes a
   :class:`~kjbod_controller_stub.results.Result`: records and an answer.
2. :meth:`Controller.apply` gives the records their offsets and versions and replays them, at once: the next request
   sees the *latest*, not the durable state.
3. The caller writes the bytes, syncs, and only then lets go of the answers that wait for an offset at or below the
   durable end (:class:`~kjbod_controller_stub.deferred.DeferredAnswers`). An answer without records waits too, for the
   last record it may have seen.

Recovery is replay of the log (:meth:`Controller.recover`). Soft state (:mod:`.brokers.heartbeats`) is not in the log.

Everything here is a pure function of (state, request, now_ms); ids, the shuffling of brokers and the time of day come
in from outside.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.acls import AclIndex, Acls
from kjbod.metadata.acls import Rules as AclRules
from kjbod.metadata.describing import describe_acls, list_config_resources
from kjbod.metadata.image import (
    BrokerChange,
    Change,
    ConfigChange,
    FeatureChange,
    MetadataImage,
    OtherChange,
    PartitionChange,
    Replayer,
    shallow_copy,
)
from kjbod.metadata.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    AnyRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    Endpoint,
    EndTransactionRecord,
    NoOpRecord,
    PartitionRecordRef,
    Record,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    UnregisterBrokerRecord,
)
from kjbod.metadata.snapshot import SnapshotId
from kjbod.metadata.token_requests import Requester, refuse
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
    ListConfigResourcesRequest,
    RenewDelegationTokenRequest,
    UnregisterControllerRequest,
    UnregisterControllerResponse,
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
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    ControllerRegistrationResponse,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    ResponseBody,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kjbod_controller_stub import cluster_description
from kjbod_controller_stub.access import credentials, entries, producer_ids, quotas
from kjbod_controller_stub.access.mutation_quotas import (
    STRICT_SINCE_CREATE_PARTITIONS,
    STRICT_SINCE_CREATE_TOPICS,
    STRICT_SINCE_DELETE_TOPICS,
    Charge,
    MutationQuotas,
)
from kjbod_controller_stub.access.tokens import DelegationTokens
from kjbod_controller_stub.brokers.cluster import SUPPORTED_FEATURES, Cluster
from kjbod_controller_stub.brokers.heartbeats import Heartbeats
from kjbod_controller_stub.brokers.sessions import BrokerSessions
from kjbod_controller_stub.configs.altering import Configs
from kjbod_controller_stub.configs.describe_configs import ConfigDescriber
from kjbod_controller_stub.configs.effective import UNCLEAN_ELECTION, EffectiveConfigs
from kjbod_controller_stub.context import Context, Settings
from kjbod_controller_stub.feature_control import Finalized, update_features
from kjbod_controller_stub.partitions import eligible
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.partitions.leader_elections import LeaderElections
from kjbod_controller_stub.partitions.new_partitions import NewPartitions
from kjbod_controller_stub.partitions.reassignments import Reassignments
from kjbod_controller_stub.partitions.replaying import replay_alike
from kjbod_controller_stub.partitions.replica_placer import Shuffle
from kjbod_controller_stub.partitions.replication import Replication
from kjbod_controller_stub.partitions.topics import Topics, delete_topics
from kjbod_controller_stub.periodic import PeriodicTasks
from kjbod_controller_stub.results import ApiError, Draft, Result
from kjbod_controller_stub.writing import Write, prepare

_BALANCE = "electPreferred"
_RESCUE = "electUnclean"
_REMOVE_EXPIRED = "expireDelegationTokens"
"""Periodic tasks by their names in Kafka."""


class Controller:
    """The controller's state, and all operations that change it.

    Args:
        settings: configuration values that the controller needs.
        draw_id: draws ids of topics, ACLs and delegation tokens.
        shuffle: shuffles brokers and racks, see :mod:`.partitions.replica_placer`.
        wall_ms: now since 1970, by which delegation tokens expire.
        lock: of the sessions, where they are renewed in another thread than that of a turn (:class:`Heartbeats`).
    """

    def __init__(
        self,
        settings: Settings,
        *,
        draw_id: Callable[[], Uuid],
        shuffle: Shuffle,
        wall_ms: Callable[[], int],
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
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
        self.heartbeats = Heartbeats(settings.session_timeout_ms, lock)
        self.cluster = Cluster(
            self.image,
            settings.rules,
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            also_broker=settings.also_broker,
            undecided=self.index.undecided,
        )
        configs = EffectiveConfigs(
            image=self.image,
            node_id=settings.node_id,
            unclean_election=settings.unclean_election,
            min_isr=settings.min_isr,
        )
        self.replication = Replication(self.image, self.index, settings.rules, configs, self.cluster.has_electable_dir)
        self.elections = LeaderElections(self.image, self.index, self.replication)
        self.configs = Configs(
            image=self.image, node_id=settings.node_id, rules=settings.rules, static=settings.static_configs
        )
        self.partitions = NewPartitions(self.image, shuffle, settings.rules)
        self.topics = Topics(self.image, settings.topic_defaults, draw_id, self.partitions, self.configs)
        self.reassignments = Reassignments(
            self.image, self.replication, self.partitions, settings.rules.forgets_newcomers
        )
        self.tokens = DelegationTokens(self.image, settings.tokens, draw_id, wall_ms)
        self.mutation_quotas = MutationQuotas(
            capacity_s=settings.mutation_window_num * settings.mutation_window_size_s,
            bounds_throttle_time=settings.rules.bounds_throttle_time,
        )
        self.sessions = BrokerSessions(
            self.image,
            self.index,
            settings.rules,
            self.cluster,
            self.heartbeats,
            self.replication,
            settings.assignment_timeout_ms,
        )
        self.periodic = PeriodicTasks()
        self._draw_id = draw_id
        self._everything = Acls(AclRules(), (), principal="", host="")
        self._acl_index: AclIndex | None = None
        """None: not requested yet."""
        if settings.leader_imbalance_check_ms is not None:
            self.periodic.add(_BALANCE, settings.leader_imbalance_check_ms, self._balance)
        self.periodic.add(_RESCUE, settings.unclean_election_check_ms, self._rescue)
        if settings.tokens.secret_key is not None:
            self.periodic.add(_REMOVE_EXPIRED, settings.tokens.check_interval_ms, self._remove_expired)
        self._replayer = Replayer(self.image)

    # ---- state

    def recover(self, offset: int, epoch: int, record: Record) -> None:
        """Replay one record of the log at start. A transaction takes effect at its end.

        Raises:
            kjbod.metadata.image.ReplayError: the record contradicts the ones before it.
        """
        self.next_offset = offset
        for change in self._replayer.replay(offset, epoch, record):
            self._follow(change)
        self._advance(record)

    def recover_batch(self, epoch: int, records: Iterable[tuple[int, AnyRecord]]) -> None:
        """Replay the records of a batch of the log at start, with their offsets.

        Raises:
            kjbod.metadata.image.ReplayError: as :meth:`recover`.
        """
        partitions: list[PartitionRecordRef] = []
        for offset, record in records:
            if isinstance(record, PartitionRecordRef) and not self._replayer.in_transaction:
                if not partitions:
                    self.next_offset = offset
                partitions.append(record)
                continue
            self._recover_alike(epoch, partitions)
            self.recover(offset, epoch, record.whole() if isinstance(record, PartitionRecordRef) else record)
        self._recover_alike(epoch, partitions)

    def _recover_alike(self, epoch: int, records: list[PartitionRecordRef]) -> None:
        if records:
            self._replay_alike(records)
            self.image.epoch = epoch

    def recover_snapshot(self, snapshot_id: SnapshotId, records: Iterable[Record]) -> None:
        """Replay a snapshot at start, before the log after it. Its state is that after its last record.

        Raises:
            kjbod.metadata.image.ReplayError: a record contradicts the ones before it.
        """
        self.next_offset = snapshot_id.end_offset - 1
        for record in records:
            change = self.image.replay(record, self.next_offset)
            if change is not None:
                self._follow(change)
        self.cluster.loaded()
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
        """Move past a record. Changes of a transaction take effect at its end, both live and in recovery."""
        if isinstance(record, BeginTransactionRecord):
            self._begun_offset = self.next_offset
        elif isinstance(record, EndTransactionRecord) and self.features_offset > self._begun_offset:
            self.features_offset = self.next_offset
        self.next_offset += 1

    def _follow(self, change: Change) -> None:
        if isinstance(change, PartitionChange):  # nearly all changes are, and no other part uses them
            self.index.apply(change)
            self.reassignments.apply(change)
            return
        self.index.apply(change)
        self.cluster.apply(change)
        self.topics.apply(change)
        self.configs.apply(change)
        self.reassignments.apply(change)
        self.tokens.apply(change)
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
        """Begin to serve after recovery: start sessions for unfenced brokers, and abort a transaction that a crash cut
        off."""
        own = self.settings.node_id if self.settings.also_broker else None
        self.heartbeats.activate(self.image.brokers.values(), now_ms, ended=own)
        self.sessions.activate()
        self.sessions.registration_end_offsets = dict.fromkeys(self.image.brokers, 0)
        self.periodic.activate(now_ms)
        self.index.forget_elections()
        if self._replayer.in_transaction:
            return Result(records=(AbortTransactionRecord(reason="Controller failover"),))
        return Result()

    @property
    def acl_index(self) -> AclIndex:
        """Index of all current ACLs."""
        if self._acl_index is None:
            self._acl_index = AclIndex(self.image.acls.values())
        return self._acl_index

    def at_rest(self) -> "Controller":
        """Return a controller with a fixed copy of the state, for read-only requests in any thread."""
        at_rest = copy.copy(self)
        at_rest.image = shallow_copy(self.image)
        at_rest.configs = dataclasses.replace(self.configs, image=at_rest.image)
        at_rest.reassignments = self.reassignments.at_rest(at_rest.image)
        at_rest._acl_index = None
        return at_rest

    def permissions(self, principal: str, host: str) -> Acls:
        """Return the permissions of a principal on a host."""
        if not self.settings.acl_rules.class_name:
            return self._everything
        return Acls(self.settings.acl_rules, self.acl_index, principal=principal, host=host)

    def unsupported_features(self) -> list[str]:
        """Return finalized features at levels that this controller does not support, each as ``name level``."""
        problems = []
        for name, level in self.cluster.finalized_features().items():
            low, high = SUPPORTED_FEATURES.get(name, (0, 0))
            if not low <= level <= high:
                problems.append(f"{name} {level}")
        return problems

    def apply(self, result: Result) -> Write | None:
        """Replay a result's records and encode them for the log; None if there are none."""
        if not result.records:
            return None
        records, write = prepare(result.records, self.next_offset, self.image.metadata_version, atomic=result.atomic)
        end_offset = write.end_offset
        partitions: list[PartitionRecordRef] = []
        for record in records:
            if isinstance(record, PartitionRecordRef):
                partitions.append(record)
                continue
            self._replay_alike(partitions)
            # Before the registrations themselves, see steady_heartbeat.
            if isinstance(record, UnregisterBrokerRecord):
                self.sessions.registration_end_offsets.pop(record.broker_id, None)
            elif isinstance(record, (RegisterBrokerRecord, BrokerRegistrationChangeRecord)):
                self.sessions.registration_end_offsets[record.broker_id] = end_offset
            self.replay(record)
        self._replay_alike(partitions)
        if result.enters_shutdown is not None:
            self.heartbeats.enter_controlled_shutdown(*result.enters_shutdown, offset=self.next_offset - 1)
        return write

    def _replay_alike(self, records: list[PartitionRecordRef]) -> None:
        """Apply records that were just generated, and empty the list."""
        if records:
            replay_alike(records, self.next_offset, self.image, self.index, self.reassignments)
            self.next_offset += len(records)
            records.clear()

    # ---- timers

    def next_timer_ms(self) -> int | None:
        """Return the next time at which a session can expire or a periodic task is due."""
        due = (self.heartbeats.next_check_ms(), self.periodic.next_due_ms())
        return min((ms for ms in due if ms is not None), default=None)

    def run_timers(self, now_ms: int) -> Result | None:
        """Return the result of an expired session, else of a due periodic task; None if there is none."""
        return self.expire_session(now_ms) or self.periodic.run(now_ms)

    def expire_session(self, now_ms: int) -> Result | None:
        """Fence the broker whose session expired first; None if no session has expired."""
        draft = self._draft()
        return draft.result(None) if self.sessions.expire_session(draft, now_ms) else None

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

    def _remove_expired(self, now_ms: int) -> Result | None:
        draft = self._draft()
        if self.tokens.remove_expired(draft):
            self.periodic.hasten(_REMOVE_EXPIRED, now_ms)
        return draft.result(None, atomic=False) if draft.records else None

    def no_op(self) -> Result:
        """Return a NoOp record that advances the offsets of an idle cluster, if the metadata.version supports it."""
        knows = self.image.metadata_version >= versions.NO_OP
        return Result(records=(NoOpRecord(),) if knows else ())

    # ---- requests

    def handle(self, request: object, context: Context, now_ms: int) -> Result:
        """Return the records and the answer for a request. Changes no hard state.

        Raises:
            KeyError: the controller does not serve this request.
        """
        return HANDLERS[type(request)](self, request, context, now_ms)

    def _draft(self) -> Draft:
        return Draft(self.image, cumulative=self.settings.rules.sees_own_changes)

    def _register(self, request: BrokerRegistrationRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        answer = self.sessions.register(
            draft, request, api_version=context.api_version, next_offset=self.next_offset, now_ms=now_ms
        )
        return draft.result(answer)

    def _heartbeat(self, request: BrokerHeartbeatRequest, context: Context, now_ms: int) -> Result:
        return self.sessions.heartbeat(self._draft(), request, now_ms)

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
        try:
            record = self.cluster.register_controller(request)
        except ApiError as error:
            return Result(answer=ControllerRegistrationResponse(error_code=error.code, error_message=error.message))
        return Result(answer=ControllerRegistrationResponse(), records=(record,))

    def _unregister_controller(self, request: UnregisterControllerRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        try:
            draft.add(self.cluster.unregister_controller(request.controller_id))
        except ApiError as error:
            return draft.result(UnregisterControllerResponse(error_code=error.code, error_message=error.message))
        draft.note("controller.unregistered", controller_id=request.controller_id)
        return draft.result(UnregisterControllerResponse())

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
        """Return the quota charge for a request's new and deleted partitions."""
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
        return Result(answer=list_config_resources(self.image, request, version=context.api_version))

    def _replace_configs(self, request: AlterConfigsRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(self.configs.alter_whole(draft, request, forwarded=context.forwarded))

    def _alter_quotas(self, request: AlterClientQuotasRequest, context: Context, now_ms: int) -> Result:
        draft = self._draft()
        return draft.result(quotas.alter_quotas(draft, self.image, request))

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
        return Result(answer=describe_acls(self.acl_index, request))

    def _create_token(self, request: CreateDelegationTokenRequest, context: Context, now_ms: int) -> Result:
        return self._with_tokens(self.tokens.create, request, context)

    def _renew_token(self, request: RenewDelegationTokenRequest, context: Context, now_ms: int) -> Result:
        return self._with_tokens(self.tokens.renew, request, context)

    def _expire_token(self, request: ExpireDelegationTokenRequest, context: Context, now_ms: int) -> Result:
        return self._with_tokens(self.tokens.expire, request, context)

    def _with_tokens(self, handle: Callable[[Draft, Any, str], ResponseBody], request: Any, context: Context) -> Result:
        asks = Requester(
            context.principal,
            self.permissions(context.principal, context.host),
            forwarded=context.forwarded,
            token_authenticated=context.token_authenticated,
        )
        draft = self._draft()
        return draft.result(refuse(request, asks) or handle(draft, request, context.principal))

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
            answer=cluster_description.describe_cluster(
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
            answer=cluster_description.metadata(
                self.image,
                request,
                version=context.api_version,
                cluster_id=self.settings.cluster_id,
                node_id=self.settings.node_id,
                controller=self.endpoint,
            )
        )


_Handler: TypeAlias = Callable[[Controller, Any, Context, int], Result]

HANDLERS: Mapping[type[Any], _Handler] = {
    BrokerRegistrationRequest: Controller._register,
    BrokerHeartbeatRequest: Controller._heartbeat,
    AssignReplicasToDirsRequest: Controller._assign,
    AlterPartitionRequest: Controller._alter_partition,
    AllocateProducerIdsRequest: Controller._allocate_producer_ids,
    ElectLeadersRequest: Controller._elect_leaders,
    UnregisterBrokerRequest: Controller._unregister,
    ControllerRegistrationRequest: Controller._register_controller,
    UnregisterControllerRequest: Controller._unregister_controller,
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
