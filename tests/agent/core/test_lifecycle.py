"""The broker's life towards its controller, as scripts of events and effects. Ids are those of kafka-jbod 9.4."""

import itertools
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kjbod.ids import Uuid
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.lifecycle import (
    TRANSITIONS,
    BeginShutdown,
    BrokerState,
    CaughtUp,
    ControllerFound,
    Cordoned,
    DirectoryFailed,
    Effects,
    Ending,
    Event,
    Fenced,
    ForgetController,
    Halt,
    HeartbeatAnswered,
    Identity,
    Lifecycle,
    MetadataApplied,
    OfflineAcknowledged,
    OfflineForgotten,
    Paused,
    ReadyToUnfence,
    RegisterAgain,
    Registered,
    RegistrationAnswered,
    Rejected,
    RequestFailed,
    SendFarewell,
    SendHeartbeat,
    SendRegistration,
    Start,
    Stopped,
    TimePassed,
    Trigger,
    Unfenced,
    step,
    wakeup_ms,
)
from tests.depth import examples

A, B, C = (Uuid.of(1, n) for n in (1, 2, 3))
NEGATIVE = Uuid.of(-1, 5)
E = TypeVar("E")


def identity(**changes: Any) -> Identity:
    return structs.replace(
        Identity(
            broker_id=1,
            cluster_id="cluster",
            incarnation_id=Uuid.of(9, 9),
            listeners=(),
            log_dirs=(A, B, C),
        ),
        **changes,
    )


class Script:
    """A lifecycle, the time, and what it asked for last."""

    def __init__(self, **identity_changes: Any) -> None:
        self.life = Lifecycle(identity=identity(**identity_changes))
        self.now_ms = 1_000
        self.effects: Effects = ()

    def state(self) -> BrokerState:
        return self.life.state

    def on(self, event: Event) -> "Script":
        self.life, self.effects = step(self.life, event, self.now_ms)
        return self

    def after(self, milliseconds: int) -> "Script":
        self.now_ms += milliseconds
        return self.on(TimePassed())

    def one(self, kind: type[E]) -> E:
        found = [e for e in self.effects if isinstance(e, kind)]
        assert len(found) == 1, f"{kind.__name__} in {self.effects}"
        return found[0]

    def none(self, kind: type[Any]) -> None:
        assert not [e for e in self.effects if isinstance(e, kind)], self.effects

    def heartbeat_ok(self, **answer: Any) -> "Script":
        fields = {"is_caught_up": True, "is_fenced": False, **answer}
        return self.on(HeartbeatAnswered(self.life.serial, 0, **fields))

    def registered(self, epoch: int = 1000) -> "Script":
        self.on(Start())
        return self.on(RegistrationAnswered(self.life.serial, 0, epoch))

    def running(self) -> "Script":
        self.registered().on(MetadataApplied(1000)).heartbeat_ok(is_fenced=True).after(10).heartbeat_ok(is_fenced=True)
        self.on(ReadyToUnfence())
        self.heartbeat_ok()
        assert self.life.state is BrokerState.RUNNING
        return self


def test_lc_1_life_begins_with_starting_and_ends_with_shutting_down() -> None:
    script = Script()
    assert script.life.state is BrokerState.NOT_RUNNING
    assert script.on(Start()).life.state is BrokerState.STARTING
    assert script.on(BeginShutdown()).life.state is BrokerState.SHUTTING_DOWN
    assert script.one(Stopped).ending is Ending.UNCONTROLLED


def test_lc_2_registration_carries_the_previous_epoch_and_the_answer_s_epoch_is_used() -> None:
    script = Script(previous_broker_epoch=10)
    assert script.on(Start()).one(SendRegistration).request.previous_broker_epoch == 10
    script.on(RegistrationAnswered(script.life.serial, 0, 1000))
    assert script.one(Registered).broker_epoch == 1000
    assert script.one(SendHeartbeat).request.broker_epoch == 1000


def test_lc_3_a_controller_that_never_answers_ends_the_start_in_time_and_says_why() -> None:
    script = Script().on(Start())
    while script.life.active:
        script.on(RequestFailed(script.life.serial, "no controller is known"))
        wake = wakeup_ms(script.life)
        assert wake is not None
        script.after(max(0, wake - script.now_ms))
    stopped = script.one(Stopped)
    assert stopped.ending is Ending.REGISTRATION_TIMED_OUT
    assert "initial.broker.registration.timeout.ms" in stopped.reason
    assert "no controller is known" in stopped.reason
    assert script.now_ms == 1_000 + 60_000


def test_lc_4_every_step_of_a_life_comes_through_heartbeats() -> None:
    script = Script().registered()
    assert script.one(SendHeartbeat).request.want_fence
    script.heartbeat_ok(is_caught_up=False, is_fenced=True)
    assert (script.state(), wakeup_ms(script.life)) == (BrokerState.STARTING, script.now_ms + 10)
    script.after(10).heartbeat_ok(is_fenced=True)
    script.one(CaughtUp)
    assert script.state() is BrokerState.RECOVERY
    assert wakeup_ms(script.life) == script.now_ms + 10
    assert script.after(10).one(SendHeartbeat).request.want_fence
    script.heartbeat_ok(is_fenced=True)
    assert wakeup_ms(script.life) == script.now_ms + 2000
    assert not script.on(ReadyToUnfence()).one(SendHeartbeat).request.want_fence
    script.heartbeat_ok()
    script.one(Unfenced)
    assert script.state() is BrokerState.RUNNING
    assert script.on(BeginShutdown()).one(SendHeartbeat).request.want_shut_down
    assert script.state() is BrokerState.PENDING_CONTROLLED_SHUTDOWN
    script.heartbeat_ok()
    assert script.life.next_send_ms == script.now_ms + 50
    script.after(50).heartbeat_ok()
    assert script.life.next_send_ms == script.now_ms + 2000
    script.after(2000).heartbeat_ok(should_shut_down=True)
    assert script.state() is BrokerState.SHUTTING_DOWN
    assert script.one(Stopped).ending is Ending.GRANTED


def test_lc_5_every_heartbeat_carries_all_directories_that_ever_failed() -> None:
    script = Script().running()
    seen = []
    for failed in (None, A, B, C):
        if failed is None:
            script.after(2000)
        else:
            script.on(DirectoryFailed(failed))
        seen.append(script.one(SendHeartbeat).request.offline_log_dirs)
        script.heartbeat_ok()
    assert seen == [(), (A,), (A, B), (A, B, C)]
    assert script.after(2000).one(SendHeartbeat).request.offline_log_dirs == (A, B, C)


def test_lc_6_registration_lists_all_directories_in_kafka_s_order() -> None:
    request = Script(log_dirs=(B, A, NEGATIVE)).on(Start()).one(SendRegistration).request
    assert request.log_dirs == (NEGATIVE, A, B)


def test_lc_7_registering_again_uses_the_new_epoch() -> None:
    script = Script().running()
    script.on(RegisterAgain()).one(SendRegistration)
    script.on(RegistrationAnswered(script.life.serial, 0, 1200))
    assert script.one(SendHeartbeat).request.broker_epoch == 1200


D = Uuid.of(1, 4)


def failed_and_recorded(directory: Uuid) -> Script:
    script = Script().running().on(DirectoryFailed(directory)).heartbeat_ok()
    assert directory in script.life.recorded
    return script


def test_a_replaced_disk_is_registered_by_the_same_incarnation_and_the_old_one_is_never_reported_again() -> None:
    script = failed_and_recorded(A)
    request = script.on(RegisterAgain((B, C, D), frozenset({D}))).one(SendRegistration).request
    assert request.log_dirs == (B, C, D)
    assert request.incarnation_id == script.life.identity.incarnation_id
    script.on(RegistrationAnswered(script.life.serial, 0, 1000))
    assert script.one(Registered).log_dirs == (B, C, D)
    script.none(OfflineForgotten)
    heartbeat = script.one(SendHeartbeat).request
    assert (heartbeat.offline_log_dirs, heartbeat.want_fence) == ((), False)
    assert script.heartbeat_ok().life.state is BrokerState.RUNNING


def test_the_same_disk_back_again_is_online_and_others_that_failed_are_reported_again() -> None:
    script = failed_and_recorded(A).on(DirectoryFailed(B)).heartbeat_ok()
    script.on(RegisterAgain((A, B, C), frozenset({A}))).one(SendRegistration)
    script.on(RegistrationAnswered(script.life.serial, 0, 1000))
    assert script.one(OfflineForgotten).directory_ids == (B,)
    assert script.one(SendHeartbeat).request.offline_log_dirs == (B,)
    script.on(DirectoryFailed(A))
    script.heartbeat_ok()
    assert script.one(SendHeartbeat).request.offline_log_dirs == (B, A)


def test_a_heartbeat_that_was_out_when_a_disk_was_replaced_acknowledges_nothing_of_it() -> None:
    script = Script().running().on(DirectoryFailed(A))
    script.on(RegisterAgain((B, C, D), frozenset({D})))
    script.heartbeat_ok()
    script.none(OfflineAcknowledged)
    assert script.one(SendRegistration).request.log_dirs == (B, C, D)


def test_a_directory_that_is_added_while_a_registration_is_out_is_registered_with_the_next_one() -> None:
    script = Script().on(Start()).on(RegisterAgain((A, B, C, D)))
    script.none(SendRegistration)
    script.on(RegistrationAnswered(script.life.serial, 0, 7))
    assert script.one(Registered).log_dirs == (A, B, C)
    assert script.one(SendRegistration).request.log_dirs == (A, B, C, D)
    script.on(RegistrationAnswered(script.life.serial, 0, 7))
    assert script.one(Registered).log_dirs == (A, B, C, D)
    script.one(SendHeartbeat)


def test_a_directory_that_is_added_before_the_start_is_in_the_first_registration() -> None:
    script = Script().on(RegisterAgain((A, D)))
    assert script.on(Start()).one(SendRegistration).request.log_dirs == (A, D)


def test_a_directory_that_fails_while_a_heartbeat_is_out_goes_into_the_next_one_at_once_and_counts_only_then() -> None:
    script = Script().running().after(2000)
    script.on(DirectoryFailed(A))
    script.none(SendHeartbeat)
    script.heartbeat_ok()
    script.none(OfflineAcknowledged)
    assert script.one(SendHeartbeat).request.offline_log_dirs == (A,)
    assert script.heartbeat_ok().one(OfflineAcknowledged).directory_ids == (A,)


def test_a_directory_that_fails_before_the_registration_is_reported_before_the_broker_is_unfenced() -> None:
    script = Script().on(Start()).on(DirectoryFailed(B))
    script.none(SendHeartbeat)
    script.on(RegistrationAnswered(script.life.serial, 0, 7))
    first = script.one(SendHeartbeat).request
    assert (first.offline_log_dirs, first.want_fence) == ((B,), True)


def test_an_unreported_directory_is_retried_fast_and_without_end_while_other_failures_wait_an_interval() -> None:
    script = Script().running().after(2000)
    script.on(RequestFailed(script.life.serial, "timeout"))
    assert wakeup_ms(script.life) == script.now_ms + 2000
    script.after(2000).heartbeat_ok().on(DirectoryFailed(A))
    waits = []
    for _ in range(7):
        script.on(RequestFailed(script.life.serial, "timeout"))
        script.one(ForgetController)
        wake = wakeup_ms(script.life)
        assert wake is not None
        waits.append(wake - script.now_ms)
        script.after(waits[-1])
        assert script.one(SendHeartbeat).news == (A,)
    assert waits == [100, 200, 400, 800, 1600, 2000, 2000]


def test_a_new_controller_is_told_at_once_and_the_old_one_s_late_answer_changes_nothing() -> None:
    script = Script().running().on(DirectoryFailed(A))
    lost = script.life.serial
    script.on(ControllerFound())
    assert script.one(SendHeartbeat).request.offline_log_dirs == (A,)
    before = script.life
    assert script.on(HeartbeatAnswered(lost, 0, True, False)).life == before
    assert script.heartbeat_ok().one(OfflineAcknowledged).directory_ids == (A,)


def test_stale_broker_epoch_leads_to_a_new_registration_that_reports_dead_directories_again() -> None:
    script = Script().running().on(DirectoryFailed(A)).heartbeat_ok().after(2000)
    script.on(HeartbeatAnswered(script.life.serial, ErrorCode.STALE_BROKER_EPOCH))
    registration = script.one(SendRegistration).request
    assert registration.log_dirs == (A, B, C)
    script.on(RegistrationAnswered(script.life.serial, 0, 2000))
    assert script.one(OfflineForgotten).directory_ids == (A,)
    heartbeat = script.one(SendHeartbeat)
    assert (heartbeat.request.offline_log_dirs, heartbeat.news) == ((A,), (A,))
    assert script.heartbeat_ok().one(OfflineAcknowledged).directory_ids == (A,)


def test_a_controller_that_accepts_registrations_and_refuses_heartbeats_is_not_hammered() -> None:
    script = Script().running().after(2000)
    sent = 0
    end_ms = script.now_ms + 20_000
    while script.now_ms < end_ms:
        if script.life.in_flight is not None:
            sent += 1
            if script.life.in_flight.heartbeat:
                script.on(HeartbeatAnswered(script.life.serial, ErrorCode.STALE_BROKER_EPOCH))
            else:
                script.on(RegistrationAnswered(script.life.serial, 0, 5))
        else:
            script.after((wakeup_ms(script.life) or 0) - script.now_ms)
    assert sent < 30


@pytest.mark.parametrize("code", [ErrorCode.LOG_DIR_NOT_FOUND, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_registration_that_the_controller_does_not_have_is_repaired(code: ErrorCode) -> None:
    script = Script().running().after(2000)
    script.on(HeartbeatAnswered(script.life.serial, code)).one(SendRegistration)


def test_another_incarnation_that_is_still_alive_is_waited_out() -> None:
    script = Script().on(Start())
    script.on(RegistrationAnswered(script.life.serial, ErrorCode.DUPLICATE_BROKER_REGISTRATION))
    assert "DUPLICATE_BROKER_REGISTRATION" in script.one(Rejected).reason
    script.none(ForgetController)
    assert wakeup_ms(script.life) == script.now_ms + 2000
    script.after(2000).one(SendRegistration)


@pytest.mark.parametrize("code", [ErrorCode.UNSUPPORTED_VERSION, ErrorCode.INVALID_REGISTRATION])
def test_a_refused_registration_has_the_reason_that_the_metadata_tell(code: ErrorCode) -> None:
    script = Script().on(Start())
    script.on(RegistrationAnswered(script.life.serial, code, reason="the cluster is at metadata.version 33"))
    told = script.life.trouble.endswith(": the cluster is at metadata.version 33")
    assert told is (code == ErrorCode.UNSUPPORTED_VERSION)
    script.after(2000).one(SendRegistration)


def test_disks_of_another_cluster_end_the_start_at_once() -> None:
    script = Script().on(Start())
    script.on(RegistrationAnswered(script.life.serial, ErrorCode.INCONSISTENT_CLUSTER_ID))
    stopped = script.one(Stopped)
    assert stopped.ending is Ending.REFUSED
    assert "cluster.id cluster" in stopped.reason


def test_not_controller_looks_for_the_leader_again() -> None:
    script = Script().running().after(2000)
    script.on(HeartbeatAnswered(script.life.serial, ErrorCode.NOT_CONTROLLER)).one(ForgetController)


def test_being_fenced_later_is_said_and_does_not_leave_running() -> None:
    script = Script().running().after(2000).heartbeat_ok(is_fenced=True)
    script.one(Fenced)
    assert script.life.state is BrokerState.RUNNING
    script.after(2000).heartbeat_ok().one(Unfenced)


def test_a_stop_does_not_wait_for_a_controller_that_is_silent() -> None:
    script = Script().running().on(BeginShutdown())
    begun_ms = script.now_ms
    while script.life.active:
        if script.life.in_flight is not None:
            script.on(RequestFailed(script.life.serial, "timed out"))
        script.after((wakeup_ms(script.life) or 0) - script.now_ms)
    assert script.one(Stopped).ending is Ending.TIMED_OUT
    assert script.now_ms - begun_ms <= 9_000


def test_a_controller_that_answers_and_never_lets_go_does_not_keep_the_process_for_ever() -> None:
    script = Script().running().on(BeginShutdown())
    begun_ms = script.now_ms
    while script.life.active:
        if script.life.in_flight is not None:
            script.heartbeat_ok()
        script.after((wakeup_ms(script.life) or 0) - script.now_ms)
    assert script.one(Stopped).ending is Ending.TIMED_OUT
    assert script.now_ms - begun_ms == 60_000


def test_halt_fences_with_one_farewell_and_does_not_wait() -> None:
    script = Script().running().on(DirectoryFailed(A)).heartbeat_ok().on(DirectoryFailed(B))
    script.on(Halt("no log directory is left"))
    farewell = script.one(SendFarewell).request
    assert (farewell.want_fence, farewell.want_shut_down) == (True, True)
    assert farewell.offline_log_dirs == (A,)
    assert script.one(Stopped).reason == "no log directory is left"
    assert wakeup_ms(script.life) is None


def test_cordons_are_left_out_until_ready_and_sent_at_once_when_they_change() -> None:
    script = Script().registered().on(Cordoned(()))
    assert script.heartbeat_ok(is_fenced=True).after(10).one(SendHeartbeat).request.cordoned_log_dirs is None
    script.heartbeat_ok(is_fenced=True)
    assert script.on(ReadyToUnfence()).one(SendHeartbeat).request.cordoned_log_dirs == ()
    assert script.heartbeat_ok().on(Cordoned((B,))).one(SendHeartbeat).request.cordoned_log_dirs == (B,)


def test_every_state_but_the_last_has_a_way_out() -> None:
    for state in BrokerState:
        ways = [trigger for (source, trigger) in TRANSITIONS if source is state]
        assert bool(ways) is (state is not BrokerState.SHUTTING_DOWN)
        if ways and state is not BrokerState.NOT_RUNNING:
            assert Trigger.END in ways


answers = st.sampled_from([0, 0, 0, 0, *(int(c) for c in (ErrorCode.NOT_CONTROLLER, ErrorCode.STALE_BROKER_EPOCH))])
moves = st.one_of(
    st.builds(lambda code: ("answer", code), answers),
    st.just(("lost", 0)),
    st.builds(lambda ms: ("time", ms), st.integers(0, 3000)),
    st.builds(lambda kind, n: (kind, n), st.sampled_from(["fail", "fail", "replace", "back"]), st.integers(0, 2)),
    st.sampled_from([("ready", 0), ("controller", 0), ("again", 0), ("late", 0)]),
)


@settings(max_examples=examples(300))
@given(st.lists(moves, max_size=60), st.booleans(), st.booleans())
def test_whatever_happens_one_request_is_out_all_failures_are_in_it_and_something_is_always_due(
    script_of: list[tuple[str, Any]], caught_up: bool, fenced: bool
) -> None:
    script = Script().on(Start())
    failed: list[Uuid] = []
    acknowledged: set[Uuid] = set()
    carried: dict[int, tuple[Uuid, ...]] = {}
    registered: set[Uuid] = set()
    fresh = (Uuid.of(4, n) for n in itertools.count())

    def check() -> None:
        sent = [e for e in script.effects if isinstance(e, SendHeartbeat | SendRegistration)]
        assert len(sent) <= 1
        for effect in script.effects:
            if isinstance(effect, SendHeartbeat):
                carried[effect.serial] = effect.request.offline_log_dirs
                assert effect.request.offline_log_dirs == tuple(failed)
                assert effect.request.want_fence is not script.life.ready_to_unfence
                assert set(script.life.identity.log_dirs) == registered, "nothing is said before all are registered"
            if isinstance(effect, OfflineAcknowledged):
                acknowledged.update(effect.directory_ids)
            if isinstance(effect, OfflineForgotten):
                acknowledged.difference_update(effect.directory_ids)
        assert set(script.life.recorded) == acknowledged
        assert script.life.in_flight is not None or script.life.next_send_ms is not None
        assert wakeup_ms(script.life) is not None or script.life.in_flight is not None

    check()
    for kind, value in itertools.islice(script_of, 60):
        serial = script.life.serial
        flight = script.life.in_flight
        if kind == "answer" and flight is not None:
            if flight.heartbeat:
                script.on(HeartbeatAnswered(serial, value, caught_up, fenced))
                if value == 0:
                    assert set(carried[serial]) & set(failed) <= set(script.life.recorded)
            else:
                if value == 0:
                    registered = set(flight.log_dirs)
                script.on(RegistrationAnswered(serial, value, 7))
        elif kind == "late":
            script.on(HeartbeatAnswered(serial - 1, 0, True, False))
        elif kind == "lost":
            script.on(RequestFailed(serial, "lost"))
        elif kind == "time":
            script.after(value)
            if not script.life.active:
                return
        elif kind == "fail":
            directory = script.life.identity.log_dirs[value]
            if directory not in failed:
                failed.append(directory)
            script.on(DirectoryFailed(directory))
        elif kind == "ready":
            script.on(ReadyToUnfence())
        elif kind == "controller":
            script.on(ControllerFound())
        elif kind == "again":
            script.on(RegisterAgain())
        elif kind in ("replace", "back") and failed:
            gone = failed.pop(value % len(failed))
            acknowledged.discard(gone)
            new = gone if kind == "back" else next(fresh)
            log_dirs = tuple(new if d == gone else d for d in script.life.identity.log_dirs)
            script.on(RegisterAgain(log_dirs, frozenset({new})))
        else:
            continue
        check()


def test_a_pause_before_the_registration_does_not_count_and_one_during_a_stop_does() -> None:
    script = Script().on(Start())
    limit = script.life.timing.registration_timeout_ms
    script.now_ms += 10 * limit
    script.on(Paused(10 * limit)).on(TimePassed())
    assert script.life.active
    script.on(RequestFailed(script.life.serial, "no controller is known")).after(limit)
    assert script.one(Stopped).ending is Ending.REGISTRATION_TIMED_OUT
    script = Script().running().on(BeginShutdown())
    before = script.life
    assert script.on(Paused(60_000)).life == before
    assert script.effects == ()
