"""The verdict as tables from measured evidence, and what no sequence of events may do."""

import errno
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod_agent.health.block import BlockCounters
from kjbod_agent.health.mounts import MountChange
from kjbod_agent.health.verdict import (
    Ask,
    Cause,
    DirectoryHealth,
    Event,
    Health,
    HealthSettings,
    Judgement,
    MountChanged,
    ProbeBlocked,
    ProbeFailed,
    ProbeImpossible,
    ProbeSucceeded,
    is_host_fault,
    judge,
    next_sample_ms,
)

SETTINGS = HealthSettings()
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
) -> ProbeBlocked:
    now = BlockCounters(in_flight, completed, 0) if counters else None
    before = BlockCounters(0, 0, 0) if counters else None
    return ProbeBlocked(number, call, age_ms, wchan, process_state, before, now)


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


@pytest.mark.parametrize("number", [errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY, errno.EINVAL, errno.EMFILE])
def test_own_work_that_fails_over_a_name_or_over_us_only_asks_for_a_probe(number: int) -> None:
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
    assert feed(silence(1800, in_flight=1)).state.health is Health.SUSPECT
    verdict = feed(silence(2000, in_flight=1)).state
    assert (verdict.health, verdict.cause) == (Health.FAILED, Cause.HUNG)


def test_requests_that_the_probe_itself_completed_put_the_deadline_off_by_as_little() -> None:
    state = feed([(20, blocked(20, in_flight=1, completed=3))]).state
    now_ms = 20
    while state.health is not Health.FAILED:
        now_ms += next_sample_ms(state, SETTINGS)
        state = judge(state, blocked(now_ms, in_flight=1, completed=3), now_ms, SETTINGS).state
    assert now_ms == 2020


def test_a_device_that_goes_on_completing_is_slow_for_ever() -> None:
    events = [(at, blocked(at, in_flight=2, completed=at // 1000)) for at in range(200, 600_000, 200)]
    verdict = feed(events).state
    assert (verdict.health, verdict.cause) == (Health.SLOW, Cause.SLOW)


def test_a_frozen_file_system_is_held_at_the_timeout_and_failed_at_the_held_timeout() -> None:
    assert feed(silence(1800)).state.health is Health.ONLINE
    assert feed(silence(29_800)).state.health is Health.HELD
    assert feed(silence(30_000)).state.cause is Cause.HELD
    assert feed(silence(30_000)).state.health is Health.FAILED


def test_a_held_timeout_of_zero_waits_for_ever() -> None:
    patient = HealthSettings(held_timeout_ms=0)
    state = DirectoryHealth()
    for now_ms, event in silence(3_600_000):
        state = judge(state, event, now_ms, patient).state
    assert state.health is Health.HELD


def test_a_frozen_file_system_on_a_busy_device_is_held_and_not_slow() -> None:
    events = [(at, blocked(at, in_flight=9, completed=at, wchan="percpu_rwsem_wait")) for at in range(200, 3000, 200)]
    assert feed(events).state.health is Health.HELD


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
    for now_ms, event in silence(3800, in_flight=1):
        state = judge(state, event, now_ms, SETTINGS, host_fault=True).state
    assert state.health is Health.SUSPECT
    assert judge(state, blocked(4000, in_flight=1), 4000, SETTINGS, host_fault=True).state.health is Health.FAILED


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
)


@settings(deadline=None)  # what a machine under load needs says nothing
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


@settings(deadline=None)  # what a machine under load needs says nothing
@given(
    st.lists(
        st.tuples(
            st.integers(1, 20_000),
            st.sampled_from(["well", "slow", "full", "progress", "stopped", "died", "enospc", "read-only"]),
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
            "stopped": blocked(gap_ms, in_flight=1, process_state="T"),
            "died": ProbeImpossible("its worker died"),
            "enospc": error(now_ms, errno.ENOSPC),
            "read-only": MountChanged(MountChange.READ_ONLY),
        }
        state = judge(state, choice[kind], now_ms, SETTINGS).state
        assert state.health is not Health.FAILED


@settings(deadline=None)  # what a machine under load needs says nothing
@given(st.lists(st.integers(1, 1_000_000), min_size=1, max_size=4), st.booleans())
def test_a_process_that_was_paused_at_will_fails_nothing_before_it_has_watched_long_enough(
    gaps_ms: list[int], counters: bool
) -> None:
    state, now_ms = DirectoryHealth(), 0
    for gap_ms in gaps_ms:
        now_ms += gap_ms
        state = judge(state, blocked(now_ms, in_flight=1, counters=counters), now_ms, SETTINGS).state
    assert state.health is not Health.FAILED


@settings(deadline=None)  # what a machine under load needs says nothing
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


@settings(deadline=None)  # what a machine under load needs says nothing
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
    deadline_ms = {"hung": 2000, "held": 30_000, "blind": 10_000}[kind] + 2 * every_ms
    begun_ms = now_ms
    while now_ms < begun_ms + deadline_ms:
        now_ms += every_ms
        sample = blocked(
            now_ms - begun_ms, in_flight=int(kind == "hung"), completed=7, counters=kind != "blind", number=99
        )
        state = judge(state, sample, now_ms, SETTINGS).state
    assert state.health is Health.FAILED
