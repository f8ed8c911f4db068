"""Broker sessions from registration to expiry (``ClusterControlManager``, ``BrokerHeartbeatManager``, and the event
handlers of ``QuorumController`` that combine them).

What it is comes from the log, what it wants and has applied from its heartbeats (:mod:`.heartbeats`, which has the
table of states); what follows for partitions is made by
:class:`~kjbod_controller_stub.partitions.replication.Replication`.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata import versions
from kjbod.metadata.image import BrokerRegistration, MetadataImage
from kjbod.metadata.records import BrokerRegistrationChangeRecord
from kjbod.patience import Patience
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kjbod_controller_stub.brokers.cluster import Cluster
from kjbod_controller_stub.brokers.heartbeats import BrokerState, Contact, Heartbeats, Situation, next_state
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.partitions.replication import Replication
from kjbod_controller_stub.results import ApiError, Draft, Result
from kjbod_controller_stub.rules import Rules

_PREVIOUS_EPOCH_SINCE = 3
"""The version of BrokerRegistration that says whether the incarnation before was shut down in order."""
_UNDECIDED = frozenset({UNASSIGNED, MIGRATING})
_STEADY: Mapping[tuple[bool, bool], BrokerHeartbeatResponse] = {
    (caught_up, fenced): BrokerHeartbeatResponse(is_caught_up=caught_up, is_fenced=fenced)
    for caught_up in (False, True)
    for fenced in (False, True)
}


class BrokerSessions(Struct):
    """Registrations, heartbeats and sessions. Makes records; its only state is :attr:`registration_end_offsets`."""

    _image: MetadataImage
    _index: PartitionIndex
    _rules: Rules
    _cluster: Cluster
    _heartbeats: Heartbeats
    _replication: Replication
    _assignment_timeout_ms: int
    registration_end_offsets: dict[int, int] = field(default_factory=dict)
    """Where the last change of each registered broker ends, 0 for one from before the start: what was told of it waits
    for this offset."""

    def activate(self) -> None:
        """Find the brokers in a snapshot that were unfenced without waiting for all of their replicas. These could lead
        a partition, and only its unknown directory prevents that."""
        for key in self._index.leaderless():
            partition = self._image.partition(*key)
            assert partition is not None
            for broker_id in {*partition.isr, *partition.eligible_leader_replicas}:
                broker = self._image.brokers.get(broker_id)
                undecided = broker_id in partition.replicas and partition.directory(broker_id) in _UNDECIDED
                if broker is not None and broker.active and undecided and len(broker.log_dirs) > 1:
                    self._cluster.withhold(broker_id)

    def register(
        self, draft: Draft, request: BrokerRegistrationRequest, *, api_version: int, next_offset: int, now_ms: int
    ) -> BrokerRegistrationResponse:
        """Register a broker. ``next_offset``, the offset of the new record, becomes its epoch."""
        try:
            epoch, new = self._cluster.register(request, self._heartbeats, epoch=next_offset, now_ms=now_ms)
        except ApiError as error:
            draft.note("broker.refused", broker_id=request.broker_id, error_code=error.code, reason=error.message)
            return BrokerRegistrationResponse(error_code=error.code)
        if new:
            self._heartbeats.drop(request.broker_id)
            existing = self._image.brokers.get(request.broker_id)
            clean = (
                api_version >= _PREVIOUS_EPOCH_SINCE
                and existing is not None
                and existing.epoch == request.previous_broker_epoch
            )
            self._replication.broker_restarted(draft, request.broker_id, clean=clean, log_dirs=request.log_dirs)
        record = self._cluster.registration_record(request, epoch, new=new)
        if not new and self._rules.missing_directories_are_offline:
            self._replication.directories_missing(draft, self._image.brokers[request.broker_id], record.log_dirs)
        draft.add(record)
        draft.note(
            "broker.registered",
            broker_id=request.broker_id,
            broker_epoch=epoch,
            incarnation_id=str(request.incarnation_id),
            again=not new,
            directory_ids=[str(directory) for directory in record.log_dirs],
        )
        return BrokerRegistrationResponse(broker_epoch=epoch)

    def steady_heartbeat(
        self, request: BrokerHeartbeatRequest, now_ms: int, metadata_offset: int | None = None
    ) -> tuple[BrokerHeartbeatResponse, int] | None:
        """Return the answer to a heartbeat that only renews the session, and the offset up to which the log must be
        durable before the answer is sent. None: the heartbeat may change something, and needs the usual handling.
        ``metadata_offset`` is given if ``request`` was sent before and is now repeated with another offset.

        The one method that may run while another thread handles and applies a change. It reads

        - one registration, an immutable value, by one lookup;
        - where that broker's last change ends, *after* the registration. Whoever applies a change writes them the
          other way round, so that whoever is told of it waits for at least its end, and finds none when the broker is
          being unregistered;
        - the contact, which :class:`~kjbod_controller_stub.brokers.heartbeats.Heartbeats` guards. Its sets only grow.

        So the answer is one that could have been given before the change, or after it.
        """
        broker = self._image.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch or request.want_shut_down:
            return None
        offset = request.current_metadata_offset if metadata_offset is None else metadata_offset
        caught_up = offset >= broker.record_offset
        if broker.fenced:
            # Its replicas are checked each time, to measure progress.
            if caught_up and (not request.want_fence or self._cluster.awaits_placement(broker)):
                return None
        elif request.want_fence or broker.in_controlled_shutdown:
            return None
        contact = self._heartbeats.contact(broker.id, broker.epoch)
        if contact is None or contact.controlled_shutdown_offset is not None:
            return None
        if not (contact.accepted.issuperset(request.offline_log_dirs) and contact.accepted.isdisjoint(broker.log_dirs)):
            return None
        if self._changes_cordoned(broker, request):
            return None
        end_offset = self.registration_end_offsets.get(broker.id)
        if end_offset is None or not self._heartbeats.renew(broker.id, contact, now_ms, offset):
            return None
        return _STEADY[caught_up, broker.fenced], end_offset

    def heartbeat(self, draft: Draft, request: BrokerHeartbeatRequest, now_ms: int) -> Result:
        """Handle a heartbeat: the broker's wanted state, and its failed directories."""
        try:
            broker = self._cluster.require_epoch(request.broker_id, request.broker_epoch)
            self._check_reported(broker, request)
        except ApiError as error:
            return draft.result(BrokerHeartbeatResponse(error_code=error.code))
        rules = self._rules
        contact = self._heartbeats.touch(broker.id, broker.epoch, now_ms, request.current_metadata_offset)
        contact.offline |= set(request.offline_log_dirs) & set(broker.log_dirs)
        contact.accept(request.offline_log_dirs)
        situation = self._situation(broker, request, contact, now_ms)
        current = self._state(broker, contact)
        following = next_state(current, situation)
        # The KIP's rules handle directories first, so that an unfencing elects among the remaining ones.
        if rules.sees_own_changes and not situation.no_directory:
            self._take_offline(draft, broker, frozenset(contact.offline))
        if situation.no_directory:
            self._replication.directories_all_offline(draft, broker)
        if following is not current:
            if situation.no_directory:
                lost = [str(directory) for directory in broker.log_dirs]
                draft.note("directories.offline", broker_id=broker.id, directory_ids=lost, remaining=0)
            self._change_state(draft, broker, contact, following)
        elif situation.held and situation.caught_up and not request.want_fence:
            self._tell_held(draft, broker, contact)
        if not rules.sees_own_changes:
            self._take_offline(draft, broker, frozenset(request.offline_log_dirs))
        self._cordon(draft, broker, request)
        if following is BrokerState.SHUTDOWN_NOW and rules.session_ends_with_shutdown:
            self._heartbeats.drop(broker.id)
        answer = BrokerHeartbeatResponse(
            is_caught_up=situation.caught_up,
            is_fenced=following.fenced,
            should_shut_down=following is BrokerState.SHUTDOWN_NOW,
        )
        enters = following is BrokerState.CONTROLLED_SHUTDOWN and current is not following
        return draft.result(answer, enters_shutdown=(broker.id, broker.epoch) if enters else None)

    def expire_session(self, draft: Draft, now_ms: int) -> bool:
        """Fence the broker whose session expired first (``maybeFenceStaleBroker``). Return whether there was one.

        One broker per pass, so that others' heartbeats are read in between: one of them may be late only because the
        controller was.
        """
        while (broker_id := self._heartbeats.find_one_stale(now_ms)) is not None:
            self._heartbeats.drop(broker_id)
            broker = self._image.brokers.get(broker_id)
            if broker is None or (broker.fenced and not self._rules.repeats_fencing):
                continue
            moved = self._replication.broker_fenced(draft, broker)
            draft.note("broker.fenced", broker_id=broker_id, broker_epoch=broker.epoch, reason="session expired")
            if moved:
                draft.note("leaders.moved", count=moved)
            return True
        return False

    def _check_reported(self, broker: BrokerRegistration, request: BrokerHeartbeatRequest) -> None:
        """Refuse directories that the broker does not have, if the rules require it.

        A refused heartbeat changes nothing and renews no session: if it hid a real failure, the broker is fenced when
        the session expires, instead of leading unseen.
        """
        if not self._rules.checks_offline_directories or not request.offline_log_dirs:
            return
        if self._image.metadata_version < versions.DIRECTORY_ASSIGNMENT:
            return
        if unknown := self._cluster.unknown_directories(broker, request.offline_log_dirs):
            raise ApiError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"broker {broker.id} has no directory {', '.join(map(str, unknown))}"
            )

    def _situation(
        self, broker: BrokerRegistration, request: BrokerHeartbeatRequest, contact: Contact, now_ms: int
    ) -> Situation:
        rules = self._rules
        caught_up = request.current_metadata_offset >= broker.record_offset
        lost = bool(broker.log_dirs) and contact.offline.issuperset(broker.log_dirs)
        return Situation(
            want_fence=request.want_fence,
            want_shut_down=request.want_shut_down,
            caught_up=caught_up,
            leads=self._index.leads(broker.id) > 0,
            # Asked only where it counts: it looks at every broker.
            may_go=self._state(broker, contact) is BrokerState.CONTROLLED_SHUTDOWN
            and self._heartbeats.may_go(broker.id, broker.epoch, self._awaited()),
            held=(rules.shutdown_is_final and broker.in_controlled_shutdown)
            or (caught_up and self._waits_for_replicas(broker, contact, now_ms)),
            no_directory=lost and rules.fences_without_directories,
        )

    def _waits_for_replicas(self, broker: BrokerRegistration, contact: Contact, now_ms: int) -> bool:
        """Return whether replicas without a known directory keep the broker fenced, within the time limit."""
        if not self._cluster.awaits_placement(broker):
            return False
        if contact.patience is None:
            contact.patience = Patience(self._assignment_timeout_ms)
        return contact.patience.holds(self._index.undecided(broker.id), now_ms)

    def _tell_held(self, draft: Draft, broker: BrokerRegistration, contact: Contact) -> None:
        """Log once why a broker that asks to be unfenced must wait."""
        replicas = self._index.undecided(broker.id)
        if not replicas or contact.held_logged:
            return
        contact.held_logged = True
        draft.warn(
            "broker.held",
            broker_id=broker.id,
            broker_epoch=broker.epoch,
            replicas_without_directory=replicas,
            first=self._first_undecided(broker),
            timeout_ms=self._assignment_timeout_ms,
            reason="KIP-858: it stays fenced until each of its replicas is assigned to a directory, or nothing gets on "
            "for kjbod.assignment.timeout.ms",
        )

    def _first_undecided(self, broker: BrokerRegistration) -> str:
        for directory in (UNASSIGNED, MIGRATING):
            for topic_id, number in self._index.in_directory(broker.id, directory)[:1]:
                return f"{self._image.topics[topic_id].name}-{number}"
        return ""

    def _awaited(self) -> list[BrokerRegistration]:
        """Return the brokers whose offsets a controlled shutdown waits for: those that may lead. Kafka excludes brokers
        in controlled shutdown by soft state."""
        if self._rules.shutdown_is_final:
            return self._cluster.active()
        return [
            broker
            for broker in self._image.brokers.values()
            if not broker.fenced and not self._heartbeats.is_leaving(broker.id, broker.epoch)
        ]

    def _take_offline(self, draft: Draft, broker: BrokerRegistration, reported: frozenset[Uuid]) -> None:
        if self._image.metadata_version >= versions.DIRECTORY_ASSIGNMENT:
            self._replication.directories_offline(draft, broker, reported & frozenset(broker.log_dirs))

    def _state(self, broker: BrokerRegistration, contact: Contact) -> BrokerState:
        """Return the state of the broker. Shipped Kafka takes a controlled shutdown from soft state, which fencing
        ends."""
        if broker.fenced:
            return BrokerState.FENCED
        leaving = contact.controlled_shutdown_offset is not None
        if self._rules.shutdown_is_final:
            leaving = broker.in_controlled_shutdown
        return BrokerState.CONTROLLED_SHUTDOWN if leaving else BrokerState.UNFENCED

    def _change_state(self, draft: Draft, broker: BrokerRegistration, contact: Contact, following: BrokerState) -> None:
        moved = 0
        if following.fenced:
            contact.controlled_shutdown_offset = None
            moved = self._replication.broker_fenced(draft, broker)
            reason = "shutdown granted" if following is BrokerState.SHUTDOWN_NOW else "heartbeat"
            draft.note("broker.fenced", broker_id=broker.id, broker_epoch=broker.epoch, reason=reason)
        elif following is BrokerState.UNFENCED:
            self._replication.broker_unfenced(draft, broker)
            draft.note("broker.unfenced", broker_id=broker.id, broker_epoch=broker.epoch)
            if self._cluster.awaits_placement(broker):
                draft.warn(
                    "broker.unfenced.incomplete",
                    broker_id=broker.id,
                    broker_epoch=broker.epoch,
                    replicas_without_directory=self._index.undecided(broker.id),
                    first=self._first_undecided(broker),
                    reason="not assigned within kjbod.assignment.timeout.ms: these replicas are not elected until they "
                    "are",
                )
        else:
            moved = self._replication.broker_in_controlled_shutdown(draft, broker)
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
        if cordoned is None or self._image.metadata_version < versions.CORDONED_LOG_DIRS:
            return False
        return broker.cordoned_log_dirs is None or set(broker.cordoned_log_dirs) != set(cordoned)
