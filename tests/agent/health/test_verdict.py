"""The verdict as tables from measured evidence, and what no sequence of events may do."""

import errno
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.observed import SUSPENDED
from kjbod_host.health.block import BlockCounters
from kjbod_host.health.mounts import MountChange
from kjbod_host.health.verdict import (
    AnotherIsWell,
    Ask,
    Cause,
    DirectoryHealth,
    Event,
    Health,
    HealthSettings,
    Judgement,
    KernelSaid,
    MountChanged,
    ProbeBlocked,
    ProbeFailed,
    ProbeImpossible,
    ProbeSucceeded,
    judge,
    next_sample_ms,
)
from kjbod_host.health.witness import is_host_fault, must_settle

SETTINGS = HealthSettings()
NOTHING_DONE = BlockCounters(0, 0, 0)
HARD = [
    errno.EIO,
    errno.EROFS,
    errno.ENXIO,
    errno.ENODEV,
    errno.ESHUTDOWN,
    errno.EUCLEAN,
    errno.EBADMSG,
    errno.EILSEQ,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENOTEMPTY,
    errno.EREMOTEIO,
    errno.ETIMEDOUT,
]


def well(now_ms: int, *, duration_ms: int = 4, full: bool = False, no_space: str | None = None) -> ProbeSucceeded:
    return ProbeSucceeded(now_ms, duration_ms, full, no_space)


def error(now_ms: int, number: int = errno.EIO, *, own_work: bool = False) -> ProbeFailed:
    return ProbeFailed(now_ms, number, "fsync of .kjbod_probe", own_work)


def feed(events: Sequence[tuple[int, Event]], state: DirectoryHealth | None = None) -> Judgement:
    judgement = Judgement(state or DirectoryHealth())
    for now_ms, event in events:
        judgement = judge(judgement.state, event, now_ms, SETTINGS)
    return judgement


def blocked(
    age_ms: int,
    *,
    in_flight: int = 0,
    completed: int = 0,
    counters: bool = True,
    wchan: str = "",
    process_state: str = "D",
    call: str = "fsync of .kjbod_probe",
    number: int = 1,
    device_ms: int = 0,
) -> ProbeBlocked:
    now = BlockCounters(in_flight, completed, 0) if counters else None
    before = BlockCounters(0, 0, 0) if counters else None
    return ProbeBlocked(number, call, age_ms, wchan, process_state, before, now, device_ms)


def silence(until_ms: int, every_ms: int = 200, **sample: object) -> list[tuple[int, Event]]:
    return [(at, blocked(at, **sample)) for at in range(every_ms, until_ms + 1, every_ms)]  # type: ignore[arg-type]


# errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", HARD)
def test_an_error_makes_suspect_and_the_same_from_a_second_probe_makes_failed(number: int) -> None:
    first = feed([(100, error(90, number))])
    assert (first.state.health, first.ask) == (Health.SUSPECT, Ask.PROBE)
    second = judge(first.state, error(105, number), 106, SETTINGS)
    assert (second.state.health, second.state.cause) == (Health.FAILED, Cause.ERROR)


def test_a_probe_that_began_before_the_suspicion_neither_confirms_nor_clears_it() -> None:
    suspect = feed([(100, error(100, own_work=True))]).state
    for event in (error(90), well(90)):
        judgement = judge(suspect, event, 101, SETTINGS)
        assert (judgement.state.health, judgement.ask) == (Health.SUSPECT, Ask.PROBE)


def test_an_error_that_does_not_come_back_is_forgiven_once_a_minute() -> None:
    once = feed([(100, error(90)), (110, well(105))])
    assert once.state.health is Health.ONLINE
    assert feed([(60_000, error(59_999))], once.state).state.cause is Cause.REPEATED_ERRORS
    assert feed([(60_200, error(60_100))], once.state).state.health is Health.SUSPECT


def test_own_work_that_fails_twice_is_a_failure_although_probes_pass() -> None:
    events: list[tuple[int, Event]] = [
        (100, error(100, own_work=True)),
        (110, well(105)),
        (120, error(120, own_work=True)),
    ]
    assert feed(events).state.health is Health.FAILED


@pytest.mark.parametrize(
    "number",
    [errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EINVAL, errno.EMFILE, errno.EPERM, errno.EACCES],
)
def test_own_work_that_fails_over_a_name_or_rights_or_over_us_only_asks_for_a_probe(number: int) -> None:
    judgement = feed([(100, error(100, number, own_work=True))])
    assert (judgement.state.health, judgement.ask) == (Health.ONLINE, Ask.PROBE)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_full_until_a_full_probe_could_allocate(number: int) -> None:
    full = feed([(100, error(90, number))]).state
    assert full.health is Health.FULL
    assert feed([(200, well(190))], full).state.health is Health.FULL
    assert feed([(300, well(290, full=True, no_space="ENOSPC"))], full).state.health is Health.FULL
    assert feed([(300, well(290, full=True))], full).state.health is Health.ONLINE


# silence ------------------------------------------------------------------------------------------------------------


def test_a_device_that_completes_nothing_is_hung_at_the_timeout_and_not_before() -> None:
    assert feed(silence(400, in_flight=1)).state.health is Health.ONLINE
    assert feed(silence(1890, every_ms=10, in_flight=1)).state.health is Health.SUSPECT
    verdict = feed(silence(1900, every_ms=10, in_flight=1)).state
    assert (verdict.health, verdict.cause) == (Health.FAILED, Cause.HUNG)


def test_requests_that_the_probe_itself_completed_put_the_deadline_off_by_as_little() -> None:
    state = feed([(20, blocked(20, in_flight=1, completed=3))]).state
    now_ms = 20
    while state.health is not Health.FAILED:
        now_ms += next_sample_ms(state, SETTINGS)
        state = judge(state, blocked(now_ms, in_flight=1, completed=3), now_ms, SETTINGS).state
    assert now_ms == 1920


def test_a_device_that_goes_on_completing_is_slow_for_ever() -> None:
    events = [(at, blocked(at, in_flight=2, completed=at // 1000)) for at in range(200, 600_000, 200)]
    verdict = feed(events).state
    assert (verdict.health, verdict.cause) == (Health.SLOW, Cause.SLOW)


def test_a_frozen_file_system_is_held_at_the_timeout_and_failed_at_the_held_timeout() -> None:
    assert feed(silence(1890, every_ms=10)).state.health is Health.ONLINE
    assert feed(silence(29_800)).state.health is Health.HELD
    assert feed(silence(30_000)).state.cause is Cause.HELD
    assert feed(silence(30_000)).state.health is Health.FAILED


@pytest.mark.parametrize("process_state", ["S", "D"])
@pytest.mark.parametrize("wchan", sorted(SUSPENDED))
@pytest.mark.parametrize("counters", [True, False])
def test_a_worker_that_is_kept_from_running_is_no_evidence_for_anything_but_that(
    process_state: str, wchan: str, counters: bool
) -> None:
    frozen = silence(120_000, wchan=wchan, process_state=process_state, counters=counters)
    state = feed(frozen).state
    assert (state.health, state.cause) == (Health.SUSPECT, Cause.UNWATCHED)
    assert not state.in_trouble
    assert feed([*frozen, (120_001, well(120_001))]).state.health is Health.ONLINE


def test_what_it_waited_for_before_it_was_frozen_counts_no_more_time_meanwhile() -> None:
    waiting = silence(1_800, in_flight=1)
    frozen = [(at, blocked(at, in_flight=1, wchan="get_signal", process_state="S")) for at in range(2_000, 60_000, 200)]
    assert feed([*waiting, *frozen]).state.health is not Health.FAILED


def hang_each(period_ms: int, hang_ms: int, times: int, begin_ms: int = 0) -> list[tuple[int, Event]]:
    """A device that stands still so long each period, probed each second, with the samples of its counters."""
    events: list[tuple[int, Event]] = []
    for number in range(times):
        start = begin_ms + number * period_ms
        events += [(start + age, blocked(age, in_flight=1, number=number)) for age in range(200, hang_ms, 200)]
        events.append((start + hang_ms, well(start, duration_ms=hang_ms)))
        at = start + (hang_ms // 1000 + 1) * 1000
        events += [(each, well(each)) for each in range(at, start + period_ms, 1000)]
    return events


def states_of(events: Sequence[tuple[int, Event]]) -> list[tuple[int, Health]]:
    """Each change, and when."""
    state, changes = DirectoryHealth(), [(0, Health.ONLINE)]
    for now_ms, event in events:
        state = judge(state, event, now_ms, SETTINGS).state
        if state.health is not changes[-1][1]:
            changes.append((now_ms, state.health))
    return changes


@pytest.mark.parametrize("hang_ms", [700, 1_500])
@pytest.mark.parametrize("period_ms", [5_000, 10_000, 25_000, 29_000])
def test_a_device_that_hangs_again_and_again_is_slow_all_the_time_and_never_failed(
    period_ms: int, hang_ms: int
) -> None:
    changes = states_of(hang_each(period_ms, hang_ms, times=60))
    assert [health for _, health in changes] == [
        *[Health.ONLINE, Health.SUSPECT] * 3,
        Health.SLOW,
    ]
    assert changes[-1][0] == 2 * period_ms + hang_ms


def test_slowness_that_came_again_and_again_ends_a_minute_after_the_last_time() -> None:
    events = hang_each(10_000, 1_500, times=4)
    last = events[-1][0]
    quiet: list[tuple[int, Event]] = [(at, well(at)) for at in range(last + 1_000, last + 120_000, 1_000)]
    changes = states_of([*events, *quiet])
    assert changes[-1][1] is Health.ONLINE
    assert changes[-1][0] - 31_500 in range(60_000, 62_000)


def test_two_hangs_in_a_minute_are_two_suspicions_and_no_slowness() -> None:
    assert Health.SLOW not in {health for _, health in states_of(hang_each(31_000, 1_500, times=40))}


def test_slow_probes_in_a_row_are_one_time_and_three_quick_ones_end_them() -> None:
    slow: list[tuple[int, Event]] = [(at, well(at - 1_200, duration_ms=1_200)) for at in range(2_000, 40_000, 2_000)]
    quick: list[tuple[int, Event]] = [(at, well(at)) for at in range(40_000, 43_000, 1_000)]
    assert states_of([*slow, *quick])[-1] == (42_000, Health.ONLINE)


def test_snapshots_again_and_again_are_no_slowness() -> None:
    events: list[tuple[int, Event]] = []
    for start in range(0, 120_000, 10_000):
        frozen = [
            (start + age, blocked(age, wchan="percpu_rwsem_wait", number=start)) for age in range(200, 1_600, 200)
        ]
        events += [*frozen, (start + 1_600, well(start, duration_ms=1_600))]
        events += [(at, well(at)) for at in range(start + 2_000, start + 10_000, 1_000)]
    assert {health for _, health in states_of(events)} == {Health.ONLINE, Health.HELD}


def test_a_device_that_dies_while_it_is_slow_again_and_again_is_failed_in_the_usual_time() -> None:
    events = hang_each(10_000, 1_500, times=4)
    dead = [(40_000 + age, blocked(age, in_flight=1, number=99)) for age in range(200, 2_001, 200)]
    assert states_of([*events, *dead])[-1] == (42_000, Health.FAILED)


def test_a_held_timeout_of_zero_waits_for_ever() -> None:
    patient = HealthSettings(held_timeout_ms=0)
    state = DirectoryHealth()
    for now_ms, event in silence(3_600_000):
        state = judge(state, event, now_ms, patient).state
    assert state.health is Health.HELD


def test_a_frozen_file_system_on_a_busy_device_is_held_and_not_slow() -> None:
    events = [(at, blocked(at, in_flight=9, completed=at, wchan="percpu_rwsem_wait")) for at in range(200, 3000, 200)]
    assert feed(events).state.health is Health.HELD


def test_where_the_worker_sleeps_tells_a_freeze_at_once() -> None:
    assert feed(silence(400, wchan="percpu_rwsem_wait")).state.health is Health.ONLINE
    assert feed(silence(600, wchan="percpu_rwsem_wait")).state.health is Health.HELD
    assert feed(silence(600, wchan="percpu_rwsem_wait", counters=False)).state.health is Health.HELD


def test_without_counters_only_the_longer_deadline_decides() -> None:
    assert feed(silence(9_800, counters=False)).state.health is Health.SUSPECT
    verdict = feed(silence(10_000, counters=False)).state
    assert (verdict.health, verdict.cause) == (Health.FAILED, Cause.SILENT)


def test_an_error_and_then_silence_gets_no_benefit_of_progress() -> None:
    suspect = feed([(100, error(90))]).state
    events = [(100 + at, blocked(at, in_flight=2, completed=at)) for at in range(200, 10_001, 200)]
    assert feed(events, suspect).state.health is Health.FAILED


@pytest.mark.parametrize("sample", [{"process_state": "T"}, {"process_state": "R"}, {"call": ""}])
def test_a_worker_that_does_not_run_says_nothing_about_its_disk(sample: dict[str, str]) -> None:
    verdict = feed([(at, blocked(at, in_flight=1, **sample)) for at in range(200, 600_001, 200)]).state  # type: ignore[arg-type]
    assert (verdict.health, verdict.cause) == (Health.SUSPECT, Cause.UNWATCHED)


def test_time_before_a_stopped_worker_was_seen_running_again_counts_for_no_silence() -> None:
    stopped: list[tuple[int, Event]] = [(at, blocked(at, process_state="T")) for at in range(200, 1001, 200)]
    frozen: list[tuple[int, Event]] = [
        (at, blocked(at, counters=False, wchan="percpu_rwsem_wait")) for at in range(1200, 31_201, 200)
    ]
    assert feed([*stopped, *frozen[:-1]]).state.health is Health.HELD
    assert feed([*stopped, *frozen]).state.health is Health.FAILED


def test_a_request_that_was_under_way_before_anybody_looked_is_silent_from_the_first_sample_on() -> None:
    events: list[tuple[int, Event]] = [
        (at, replace(blocked(at, in_flight=1), before=None)) for at in range(1000, 2901, 100)
    ]
    assert feed(events[:-1]).state.health is Health.SUSPECT
    assert feed(events).state.health is Health.FAILED


def test_a_pause_of_the_whole_machine_fails_nothing() -> None:
    events: list[tuple[int, Event]] = [(200, blocked(200, in_flight=1)), (600_000, blocked(600_000, in_flight=1))]
    assert feed(events).state.health is not Health.FAILED
    assert feed([*events, (600_004, well(100, duration_ms=4))]).state.health is Health.ONLINE


def test_a_worker_that_keeps_dying_is_said_and_is_no_disk_failure() -> None:
    died = ProbeImpossible("its worker died")
    assert feed([(0, died), (9_999, died)]).state.health is Health.ONLINE
    verdict = feed([(0, died), (10_000, died), (999_999, died)]).state
    assert (verdict.health, verdict.cause) == (Health.SUSPECT, Cause.UNWATCHED)
    assert feed([(1_000_000, well(999_999))], verdict).state.health is Health.ONLINE


@pytest.mark.parametrize(
    ("health", "cause"),
    [(Health.SUSPECT, Cause.HUNG), (Health.HELD, Cause.HELD), (Health.FULL, Cause.FULL), (Health.SUSPECT, Cause.MOUNT)],
)
def test_recovery_is_seen_with_the_first_good_probe(health: Health, cause: Cause) -> None:
    state = DirectoryHealth(health, cause, since_ms=100)
    assert judge(state, well(200, full=True), 204, SETTINGS).state.health is Health.ONLINE


def test_one_slow_probe_alone_is_a_burst_of_writes_and_not_a_slow_disk() -> None:
    events: list[tuple[int, Event]] = [
        (1500, well(0, duration_ms=1500)),
        (1600, well(1595)),
        (4000, well(2500, duration_ms=1500)),
    ]
    assert feed(events).state.health is Health.ONLINE


@pytest.mark.parametrize("health", [Health.SUSPECT, Health.HELD])
def test_a_slow_answer_ends_a_suspicion_all_the_same(health: Health) -> None:
    state = DirectoryHealth(health, Cause.HUNG, since_ms=100)
    assert judge(state, well(200, duration_ms=1500), 1700, SETTINGS).state.health is Health.ONLINE


def test_slowness_ends_after_three_quick_probes_in_a_row() -> None:
    slow = feed([(2000, well(0, duration_ms=2000)), (4000, well(2000, duration_ms=2000))])
    assert slow.state.health is Health.SLOW
    events: list[tuple[int, Event]] = [(3000, well(3000)), (4000, well(4000))]
    assert feed(events, slow.state).state.health is Health.SLOW
    assert feed([*events, (5000, well(5000))], slow.state).state.health is Health.ONLINE
    again: list[tuple[int, Event]] = [*events, (6000, well(5000, duration_ms=1000)), (7000, well(7000))]
    assert feed(again, slow.state).state.health is Health.SLOW


# the mount table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [MountChange.MISSING, MountChange.OTHER])
def test_a_mount_that_is_gone_is_confirmed_by_the_probe(change: MountChange) -> None:
    first = feed([(100, MountChanged(change))])
    assert (first.state.health, first.ask) == (Health.SUSPECT, Ask.PROBE)
    assert judge(first.state, MountChanged(change), 101, SETTINGS).state.health is Health.SUSPECT
    assert judge(first.state, error(101, errno.ESTALE), 102, SETTINGS).state.health is Health.FAILED
    assert judge(first.state, well(101), 102, SETTINGS).state.health is Health.ONLINE


def test_a_mount_that_is_gone_while_the_probe_is_stuck_is_confirmed_by_reading_again() -> None:
    state = feed([*silence(600), (700, MountChanged(MountChange.MISSING))]).state
    assert judge(state, MountChanged(MountChange.MISSING), 701, SETTINGS).state.health is Health.FAILED


@pytest.mark.parametrize("change", [MountChange.READ_ONLY, MountChange.EMERGENCY_RO, MountChange.SHUTDOWN])
def test_a_read_only_mount_only_asks_for_a_probe(change: MountChange) -> None:
    judgement = feed([(100, MountChanged(change))])
    assert (judgement.state.health, judgement.ask) == (Health.ONLINE, Ask.PROBE)


# the host -----------------------------------------------------------------------------------------------------------


def _in_trouble(at_ms: int, health: Health = Health.SUSPECT) -> DirectoryHealth:
    return DirectoryHealth(health, Cause.ERROR, since_ms=at_ms, trouble_ms=at_ms)


@pytest.mark.parametrize(
    ("directories", "host_fault"),
    [
        ([_in_trouble(100), _in_trouble(900)], True),
        ([_in_trouble(100), _in_trouble(1200)], False),
        ([_in_trouble(100), DirectoryHealth()], False),
        ([_in_trouble(100)], False),
        ([_in_trouble(900), _in_trouble(900, Health.FAILED)], True),
        ([_in_trouble(-90_000, Health.FAILED), _in_trouble(900)], False),
        ([_in_trouble(-90_000, Health.FAILED), _in_trouble(900), _in_trouble(901)], True),
    ],
)
def test_all_directories_in_trouble_within_a_second_is_a_host_fault(
    directories: list[DirectoryHealth], host_fault: bool
) -> None:
    assert is_host_fault(directories, 1000, SETTINGS) is host_fault


def test_in_a_host_fault_each_directory_is_confirmed_after_the_settling_time() -> None:
    suspect = feed([(100, error(90))]).state
    early = judge(suspect, error(105), 106, SETTINGS, host_fault=True)
    assert (early.state.health, early.ask) == (Health.SUSPECT, Ask.PROBE_SETTLED)
    assert judge(early.state, error(600), 601, SETTINGS, host_fault=True).state.health is Health.FAILED
    assert judge(early.state, well(600), 601, SETTINGS, host_fault=True).state.health is Health.ONLINE


def test_in_a_host_fault_hung_takes_twice_the_time() -> None:
    state = DirectoryHealth()
    for now_ms, event in silence(3790, every_ms=10, in_flight=1):
        state = judge(state, event, now_ms, SETTINGS, host_fault=True).state
    assert state.health is Health.SUSPECT
    assert judge(state, blocked(3800, in_flight=1), 3800, SETTINGS, host_fault=True).state.health is Health.FAILED


def test_in_a_host_fault_a_silence_behind_a_flush_gets_twice_the_time_and_not_four_times() -> None:
    state = DirectoryHealth()
    for now_ms, event in silence(3790, every_ms=10, in_flight=1):
        assert isinstance(event, ProbeBlocked)
        state = judge(state, replace(event, after_flush=True), now_ms, SETTINGS, host_fault=True).state
    assert state.health is Health.SUSPECT
    last = replace(blocked(3800, in_flight=1), after_flush=True)
    assert judge(state, last, 3800, SETTINGS, host_fault=True).state.health is Health.FAILED


def _well_since(begun_ms: int, health: Health = Health.ONLINE, trouble_ms: int | None = None) -> DirectoryHealth:
    return DirectoryHealth(health, well_ms=begun_ms, trouble_ms=trouble_ms)


@pytest.mark.parametrize(
    ("elsewhere", "settles"),
    [
        ([], False),
        ([_well_since(501)], False),
        ([_well_since(499)], True),
        ([DirectoryHealth()], True),
        ([_well_since(501, Health.SLOW)], False),
        ([_in_trouble(700), _well_since(501)], False),
        ([_in_trouble(700)], True),
        ([_well_since(900, trouble_ms=600)], True),
        ([_well_since(900, trouble_ms=-600)], False),
        ([_in_trouble(700, Health.FAILED)], True),
        ([_in_trouble(-90_000, Health.FAILED)], False),
    ],
    ids=[
        "no other device",
        "another was probed since and is well",
        "another was well before",
        "another was never probed",
        "another is slow and passes probes",
        "one of two others is well",
        "the other is in trouble",
        "the other was in trouble and came back",
        "the other was in trouble long ago",
        "the other has just failed",
        "the other failed long ago",
    ],
)
def test_a_failure_waits_until_another_device_is_known_to_be_well(
    elsewhere: list[DirectoryHealth], settles: bool
) -> None:
    assert must_settle(_in_trouble(500), elsewhere, 1000, SETTINGS) is settles


def test_a_confirmed_failure_is_final_with_the_first_witness() -> None:
    suspect = feed([(100, error(90))]).state
    confirmed = judge(suspect, error(101), 103, SETTINGS, host_fault=True)
    assert (confirmed.state.health, confirmed.ask) == (Health.SUSPECT, Ask.PROBE_SETTLED)
    assert judge(confirmed.state, AnotherIsWell(), 104, SETTINGS, host_fault=True).state.health is Health.SUSPECT
    final = judge(confirmed.state, AnotherIsWell(), 104, SETTINGS).state
    assert (final.health, final.cause) == (Health.FAILED, Cause.ERROR)


def test_a_witness_that_comes_late_only_has_the_directory_looked_at_again() -> None:
    suspect = feed([(100, error(90))]).state
    confirmed = judge(suspect, error(101), 103, SETTINGS, host_fault=True).state
    late = judge(confirmed, AnotherIsWell(), 400, SETTINGS)
    assert (late.state.health, late.ask) == (Health.SUSPECT, Ask.PROBE)
    assert judge(late.state, well(401), 405, SETTINGS).state.health is Health.ONLINE
    assert judge(late.state, error(401), 405, SETTINGS).state.health is Health.FAILED


def test_another_directorys_health_alone_makes_nothing_failed() -> None:
    suspect = feed([(100, error(90))]).state
    assert judge(suspect, AnotherIsWell(), 101, SETTINGS).state == suspect


def test_a_repeated_error_waits_for_its_witness_although_probes_pass() -> None:
    once = feed([(100, error(100, own_work=True)), (110, well(105))]).state
    again = judge(once, error(9000, own_work=True), 9000, SETTINGS, host_fault=True).state
    passed = judge(again, well(9001), 9005, SETTINGS, host_fault=True)
    assert (passed.state.health, passed.ask) == (Health.SUSPECT, Ask.PROBE_SETTLED)
    assert judge(passed.state, AnotherIsWell(), 9006, SETTINGS).state.cause is Cause.REPEATED_ERRORS
    assert judge(passed.state, well(9501), 9505, SETTINGS, host_fault=True).state.health is Health.ONLINE


# devices that directories share ---------------------------------------------------------------------------------------


def test_the_silence_of_a_device_counts_from_the_request_that_it_swallowed_first() -> None:
    events = [(at, blocked(at, in_flight=1, device_ms=900 + at)) for at in range(20, 1001, 20)]
    verdict = feed(events).state
    assert (verdict.health, verdict.cause, verdict.since_ms) == (Health.FAILED, Cause.HUNG, 1000)


def test_a_silent_device_alone_fails_nothing_before_its_own_request_has_stood_still() -> None:
    events = [(at, blocked(at, in_flight=1, device_ms=60_000)) for at in range(20, 941, 20)]
    assert feed(events).state.health is Health.SUSPECT
    assert feed([*events, (945, well(0, duration_ms=945))]).state.health is Health.ONLINE


def test_one_hung_device_of_several_is_enough_whatever_the_others_complete() -> None:
    events = [(at, blocked(at, in_flight=3, completed=at, device_ms=at)) for at in range(20, 1901, 20)]
    verdict = feed(events).state
    assert (verdict.health, verdict.cause) == (Health.FAILED, Cause.HUNG)


def test_a_frozen_file_system_on_a_silent_device_is_held() -> None:
    events = [(at, blocked(at, in_flight=1, device_ms=at, wchan="percpu_rwsem_wait")) for at in range(100, 5000, 100)]
    assert feed(events).state.health is Health.HELD


# slow devices ---------------------------------------------------------------------------------------------------------


def test_without_counters_a_full_probe_of_sixteen_requests_of_a_second_each_is_slow() -> None:
    steps = [f"step {at // 1000}" for at in range(0, 16_001, 200)]
    events: list[tuple[int, Event]] = [
        (at * 200, blocked(at * 200, counters=False, call=call)) for at, call in enumerate(steps)
    ]
    assert feed(events).state.health is Health.SLOW
    done = [*events, (16_200, well(0, duration_ms=16_200, full=True))]
    assert feed([*done, *[(17_000 + at, well(17_000 + at)) for at in range(3)]]).state.health is Health.ONLINE


def test_without_counters_one_fsync_of_eight_requests_of_a_second_each_is_not_failed() -> None:
    assert feed(silence(8000, counters=False)).state.health is Health.SUSPECT
    assert feed([*silence(8000, counters=False), (8200, well(0, duration_ms=8200))]).state.health is Health.ONLINE


def test_after_an_error_a_probe_that_gets_on_is_waited_for_and_one_that_stands_still_is_not() -> None:
    suspect = feed([(100, error(90))]).state
    getting_on = [(at, blocked(at, counters=False, call=f"step {at // 1000}")) for at in range(200, 16_001, 200)]
    assert feed(getting_on, suspect).state.health is Health.SUSPECT
    assert feed(silence(10_200, counters=False), suspect).state.health is Health.FAILED


def test_a_device_that_takes_a_second_for_each_request_is_slow_and_never_failed() -> None:
    events = [(at, blocked(at, in_flight=1, completed=at // 1000, device_ms=at % 1000)) for at in range(50, 60_000, 50)]
    states = set()
    state = DirectoryHealth()
    for now_ms, event in events:
        state = judge(state, event, now_ms, SETTINGS).state
        states.add(state.health)
    assert Health.FAILED not in states
    assert state.health is Health.SLOW


def test_two_requests_that_the_kernel_counts_as_one_behind_a_flush_are_not_a_hang() -> None:
    """As measured at 1 s per request: the first flush is counted, then write and second flush together, 2 s later."""
    events: list[tuple[int, Event]] = []
    for at in range(20, 60_000, 20):
        round_ms = at % 3000
        done, flushes = at // 3000 * 3 + (round_ms >= 1000), at // 3000 * 2 + (round_ms >= 1000)
        events.append(
            (at, ProbeBlocked(1, "fsync", at, "", "D", NOTHING_DONE, BlockCounters(1, done, 0, flushes=flushes)))
        )
    state, states = DirectoryHealth(), set()
    for now_ms, event in events:
        state = judge(state, event, now_ms, SETTINGS).state
        states.add(state.health)
    assert states == {Health.ONLINE, Health.SUSPECT, Health.SLOW}


def test_a_device_that_hangs_behind_a_flush_is_hung_after_twice_the_time() -> None:
    begun: Event = ProbeBlocked(1, "fsync", 20, "", "D", NOTHING_DONE, BlockCounters(1, 1, 0, flushes=1))
    stuck = [
        (at, ProbeBlocked(1, "fsync", at, "", "D", NOTHING_DONE, BlockCounters(1, 1, 0, flushes=1)))
        for at in range(30, 3821, 10)
    ]
    assert feed([(20, begun), *stuck[:-1]]).state.health is Health.SUSPECT
    assert feed([(20, begun), *stuck]).state.cause is Cause.HUNG
    assert feed([(20, begun), *stuck]).state.health is Health.FAILED


@pytest.mark.parametrize(
    ("ended_ms", "after_flush", "after_ms"),
    [
        *((0, False, 1900), (900, False, 1900), (1500, False, 3000), (3000, False, 6000)),
        *((0, True, 3800), (1500, True, 6000), (3000, True, SETTINGS.blind_timeout_ms)),
        (60_000, False, SETTINGS.blind_timeout_ms),
    ],
)
def test_a_device_that_ended_a_silence_lately_gets_twice_its_length(
    ended_ms: int, after_flush: bool, after_ms: int
) -> None:
    """``faults inject slow --ms 1500`` makes silences of up to 3 s on ext4: a deadline of 2.85 s was too short. On a
    machine that was busy for an hour it made one of 3.8 s behind a flush."""
    nothing_done = BlockCounters(1, 1, 0)
    events: list[tuple[int, Event]] = [
        (
            at,
            ProbeBlocked(
                *(1, "fsync", at, "", "D", NOTHING_DONE, nothing_done), ended_ms=ended_ms, after_flush=after_flush
            ),
        )
        for at in range(20, after_ms + 40, 10)
    ]
    verdict = feed(events).state
    assert (verdict.health, verdict.cause) == (Health.FAILED, Cause.HUNG)
    assert after_ms <= verdict.since_ms <= after_ms + 30


# what the kernel says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [False, True])
def test_what_the_kernel_says_asks_for_a_probe_and_decides_nothing(damage: bool) -> None:
    judgement = feed([(100, KernelSaid(damage))])
    assert (judgement.state.health, judgement.ask) == (Health.ONLINE, Ask.PROBE)


def test_a_kernel_event_without_damage_leaves_no_trace_when_the_probe_passes() -> None:
    assert feed([(100, KernelSaid()), (110, well(101, full=True))]).state.health is Health.ONLINE


def test_damage_that_a_file_system_reports_is_suspect_while_probes_pass_until_nothing_was_said_for_a_minute() -> None:
    suspect = feed([(100, KernelSaid(damage=True)), (110, well(101))]).state
    assert (suspect.health, suspect.cause) == (Health.SUSPECT, Cause.DAMAGE)
    assert feed([(60_099, well(60_095))], suspect).state.health is Health.SUSPECT
    assert feed([(60_101, well(60_096))], suspect).state.health is Health.ONLINE
    again: list[tuple[int, Event]] = [(50_000, KernelSaid(damage=True)), (50_010, well(49_999)), (60_101, well(60_096))]
    assert feed(again, suspect).state.health is Health.SUSPECT
    assert feed([*again, (110_001, well(110_000))], suspect).state.health is Health.ONLINE


def test_damage_is_not_proven_by_a_probe_that_began_before_it() -> None:
    judgement = feed([(100, KernelSaid(damage=True)), (110, well(99))])
    assert (judgement.state.health, judgement.ask) == (Health.ONLINE, Ask.PROBE)


def test_a_damaged_file_system_that_gives_errors_is_confirmed_as_any_other() -> None:
    damaged = feed([(100, KernelSaid(damage=True)), (110, well(101))]).state
    assert not damaged.in_trouble
    events: list[tuple[int, Event]] = [(5000, error(4990)), (5010, error(5001))]
    verdict = feed(events, damaged).state
    assert (verdict.health, verdict.cause, verdict.trouble_ms) == (Health.FAILED, Cause.ERROR, 5000)


# no sequence may ----------------------------------------------------------------------------------------------------

gaps = st.integers(1, 5000)
any_event = st.one_of(
    st.builds(
        ProbeSucceeded,
        st.integers(0, 10**6),
        st.integers(0, 9000),
        st.booleans(),
        st.sampled_from([None, "ENOSPC", "EDQUOT"]),
    ),
    st.builds(
        ProbeFailed,
        st.integers(0, 10**6),
        st.sampled_from([*HARD, errno.ENOSPC, errno.EMFILE]),
        st.just("x"),
        st.booleans(),
    ),
    st.builds(
        ProbeBlocked,
        st.integers(1, 3),
        st.sampled_from(["", "fsync"]),
        st.integers(0, 10**6),
        st.sampled_from(["", "percpu_rwsem_wait", "folio_wait_bit"]),
        st.sampled_from(["", "D", "S", "T", "R"]),
        st.none() | st.builds(BlockCounters, st.integers(0, 2), st.integers(0, 3), st.just(0)),
        st.none() | st.builds(BlockCounters, st.integers(0, 2), st.integers(0, 3), st.just(0)),
    ),
    st.builds(ProbeImpossible, st.just("died")),
    st.builds(MountChanged, st.sampled_from(MountChange)),
    st.builds(KernelSaid, st.booleans()),
    st.just(AnotherIsWell()),
)


@given(st.lists(st.tuples(gaps, any_event, st.booleans()), max_size=60))
def test_failed_is_for_ever_and_nothing_is_failed_by_one_event(events: list[tuple[int, Event, bool]]) -> None:
    state, now_ms = DirectoryHealth(), 0
    for gap_ms, event, host_fault in events:
        now_ms += gap_ms
        after = judge(state, event, now_ms, SETTINGS, host_fault=host_fault).state
        if state.health is Health.FAILED:
            assert after == state
        if after.health is Health.FAILED and state.health is not Health.FAILED:
            assert state != DirectoryHealth(), "one event made a fresh directory failed"
        state = after


@given(
    st.lists(
        st.tuples(
            st.integers(1, 20_000),
            st.sampled_from(
                [
                    "well",
                    "slow",
                    "full",
                    "progress",
                    "steps",
                    "stopped",
                    "died",
                    "enospc",
                    "read-only",
                    "kernel",
                    "damage",
                ]
            ),
        ),
        max_size=200,
    )
)
def test_a_disk_that_makes_progress_is_never_failed(events: list[tuple[int, str]]) -> None:
    state, now_ms = DirectoryHealth(), 0
    for completed, (gap_ms, kind) in enumerate(events, start=1):
        now_ms += gap_ms
        choice: dict[str, Event] = {
            "well": well(now_ms),
            "slow": well(now_ms, duration_ms=15_000),
            "full": well(now_ms, full=True, no_space="ENOSPC"),
            "progress": blocked(gap_ms, in_flight=completed % 3, completed=completed),
            "steps": blocked(gap_ms, counters=False, call=f"step {completed}", number=completed),
            "kernel": KernelSaid(),
            "damage": KernelSaid(damage=True),
            "stopped": blocked(gap_ms, in_flight=1, process_state="T"),
            "died": ProbeImpossible("its worker died"),
            "enospc": error(now_ms, errno.ENOSPC),
            "read-only": MountChanged(MountChange.READ_ONLY),
        }
        state = judge(state, choice[kind], now_ms, SETTINGS).state
        assert state.health is not Health.FAILED


@given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=4), st.booleans())
def test_a_process_that_was_paused_at_will_fails_nothing_before_it_has_watched_long_enough(
    gaps_ms: list[int], counters: bool
) -> None:
    state, now_ms = DirectoryHealth(), 0
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        state = judge(state, blocked(now_ms, in_flight=1, counters=counters), now_ms, SETTINGS).state
    assert state.health is not Health.FAILED


@given(
    st.lists(st.tuples(gaps, any_event), max_size=30),
    st.sampled_from(HARD),
    st.lists(st.booleans(), min_size=0, max_size=10),
)
def test_a_dead_disk_is_failed_by_its_second_probe_whatever_came_before(
    history: list[tuple[int, Event]], number: int, own_work: list[bool]
) -> None:
    state, now_ms = DirectoryHealth(), 10**7
    for gap_ms, event in history:
        now_ms += gap_ms
        state = judge(state, event, now_ms, SETTINGS).state
    for _ in own_work:
        now_ms += 1
        state = judge(state, error(now_ms, own_work=True), now_ms, SETTINGS).state
    for _ in range(2):
        now_ms += 1000
        state = judge(state, error(now_ms - 4, number), now_ms, SETTINGS).state
    assert state.health is Health.FAILED


@given(
    st.lists(st.tuples(gaps, any_event), max_size=30), st.sampled_from(["hung", "held", "blind"]), st.integers(20, 200)
)
def test_a_disk_that_fell_silent_is_failed_within_its_deadline_whatever_came_before(
    history: list[tuple[int, Event]], kind: str, every_ms: int
) -> None:
    state, now_ms = DirectoryHealth(), 0
    for gap_ms, event in history:
        now_ms += gap_ms
        state = judge(state, event, now_ms, SETTINGS).state
    deadline_ms = {
        "hung": SETTINGS.probe_timeout_ms,
        "held": SETTINGS.held_timeout_ms,
        "blind": SETTINGS.blind_timeout_ms,
    }[kind] + 2 * every_ms
    begun_ms = now_ms
    while now_ms < begun_ms + deadline_ms:
        now_ms += every_ms
        sample = blocked(
            now_ms - begun_ms, in_flight=int(kind == "hung"), completed=7, counters=kind != "blind", number=99
        )
        state = judge(state, sample, now_ms, SETTINGS).state
    assert state.health is Health.FAILED
