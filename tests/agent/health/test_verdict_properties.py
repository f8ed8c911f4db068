"""The verdict against measured evidence, and against every story that a disk can tell.

The tables are rows of measurements on real kernels. The properties drive the core of a host with a model of disks,
workers and device counters (``model_host``), and compare each verdict with what the model knows to be true.
"""

import errno
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kjbod_host.health.block import BlockCounters
from kjbod_host.health.core import SAMPLE_EVERY_MS
from kjbod_host.health.mounts import MountChange
from kjbod_host.health.silence import DeviceSilence, observe_device
from kjbod_host.health.verdict import (
    Cause,
    DirectoryHealth,
    Event,
    Health,
    HealthSettings,
    KernelSaid,
    MountChanged,
    ProbeBlocked,
    ProbeFailed,
    ProbeSucceeded,
    judge,
)
from tests.agent.health.model_host import Directory, Mode, ModelDisk, ModelHost
from tests.depth import steps

SETTINGS = HealthSettings()
SLACK_MS = 60
"""Of the model: a confirming probe waits some milliseconds, a sample comes some after its time."""
SLOWEST_MS = 900
DIRECTORIES = ("/a1", "/a2", "/b")
"""The first two lie on one device."""


# tables from measured evidence ---------------------------------------------------------------------------------------
#
# What probes got and samples showed when real file systems were broken (Linux 6.18; ext4, XFS and btrfs in this order).


def _errors(number: int, *calls: str) -> list[tuple[int, Event]]:
    """The probe gets it, and so does the one that confirms."""
    return [(1000 + 10 * n, ProbeFailed(998 + 10 * n, number, call)) for n, call in enumerate(calls)]


def _blocked(
    until_ms: int, call: str, wchan: str = "", *, in_flight: int = 0, per_request_ms: int = 0, state: str = "D"
) -> list[tuple[int, Event]]:
    """Samples of a probe that was sent at 0; ``per_request_ms``: the device completes one each so many ms."""
    return [
        (
            at_ms,
            ProbeBlocked(
                number=1,
                call=call,
                age_ms=at_ms,
                wchan=wchan,
                process_state=state,
                before=BlockCounters(0, 0, 0),
                now=BlockCounters(in_flight, at_ms // per_request_ms if per_request_ms else 0, 0),
            ),
        )
        for at_ms in (20, 60, 120, *range(200, until_ms + 1, 100))
    ]


def _blind(until_ms: int, call: str, wchan: str, state: str) -> list[tuple[int, Event]]:
    return [
        (at_ms, ProbeBlocked(number=1, call=call, age_ms=at_ms, wchan=wchan, process_state=state))
        for at_ms in (20, 60, 120, *range(200, until_ms + 1, 100))
    ]


def _well(*durations_ms: int, full: bool = False, no_space: str | None = None) -> list[tuple[int, Event]]:
    return [
        (1000 * n + took_ms, ProbeSucceeded(1000 * n, took_ms, full, no_space))
        for n, took_ms in enumerate(durations_ms)
    ]


def _mount(change: MountChange, *events: tuple[int, Event]) -> list[tuple[int, Event]]:
    return [(990, MountChanged(change)), *events]


Story = tuple[list[tuple[int, Event]], Health, Cause]
READ, FSYNC = "read of meta.properties", "fsync of .kjbod_probe"
FAILED_OF_ERROR = (Health.FAILED, Cause.ERROR)
MEASURED: dict[str, Story] = {
    "device answers EIO: ext4, XFS and btrfs read the medium": (_errors(errno.EIO, READ, READ), *FAILED_OF_ERROR),
    "device fails writes: fsync": (_errors(errno.EIO, FSYNC, FSYNC), *FAILED_OF_ERROR),
    "device fails writes: EIO, then read-only": (
        [_errors(errno.EIO, FSYNC)[0], (1010, ProbeFailed(1002, errno.EROFS, "open of .kjbod_probe"))],
        *FAILED_OF_ERROR,
    ),
    "device loses acknowledged writes: comparison": (
        _errors(errno.EILSEQ, "comparison of .kjbod_probe", "comparison of .kjbod_probe"),
        *FAILED_OF_ERROR,
    ),
    "device flips bits: btrfs finds it by its checksums": (_errors(errno.EIO, READ, READ), *FAILED_OF_ERROR),
    "device gone": (_errors(errno.ENXIO, READ, READ), *FAILED_OF_ERROR),
    "thin pool full: ENOSPC of the device": (_errors(errno.ENOSPC, FSYNC, FSYNC), Health.FULL, Cause.FULL),
    "thin pool full: ENOSPC, then EIO from the journal": (
        [*_errors(errno.ENOSPC, FSYNC), *((at + 100, ProbeFailed(at + 98, errno.EIO, FSYNC)) for at in (1000, 1010))],
        *FAILED_OF_ERROR,
    ),
    "file system full: overwriting works, creating does not": (
        _well(4, 4, full=True, no_space="ENOSPC"),
        Health.FULL,
        Cause.FULL,
    ),
    "quota": (_errors(errno.EDQUOT, FSYNC), Health.FULL, Cause.FULL),
    "metadata damaged: EBADMSG": (_errors(errno.EBADMSG, "open of meta.properties", READ), *FAILED_OF_ERROR),
    "metadata damaged: EUCLEAN": (_errors(errno.EUCLEAN, "open of meta.properties", READ), *FAILED_OF_ERROR),
    "immutable": (_errors(errno.EPERM, "open of .kjbod_probe", "open of .kjbod_probe"), *FAILED_OF_ERROR),
    "permissions": (_errors(errno.EACCES, "open of /d1", "open of /d1"), *FAILED_OF_ERROR),
    "remount,ro": (
        _mount(MountChange.READ_ONLY, *_errors(errno.EROFS, "open of .kjbod_probe", "open of .kjbod_probe")),
        *FAILED_OF_ERROR,
    ),
    "ext4 stops itself (emergency_ro)": (
        _mount(MountChange.EMERGENCY_RO, *_errors(errno.EROFS, "open of .kjbod_probe", "open of .kjbod_probe")),
        *FAILED_OF_ERROR,
    ),
    "unmounted": (_mount(MountChange.MISSING, *_errors(errno.ESTALE, "identity of /d1")), *FAILED_OF_ERROR),
    "something mounted over it": (
        _mount(MountChange.OTHER, *_errors(errno.ESTALE, "identity of /d1")),
        *FAILED_OF_ERROR,
    ),
    "unmounted for a moment, and there again": (
        _mount(MountChange.MISSING, (1004, ProbeSucceeded(1000, 4, full=True))),
        Health.ONLINE,
        Cause.NONE,
    ),
    "ext4 error, errors=continue: damage, and probes pass": (
        [(100, KernelSaid(damage=True)), (110, ProbeSucceeded(105, 4, full=True))],
        Health.SUSPECT,
        Cause.DAMAGE,
    ),
    "a kernel event that concerns another partition": (
        [(100, KernelSaid()), (110, ProbeSucceeded(105, 4, full=True))],
        Health.ONLINE,
        Cause.NONE,
    ),
    "one EIO that does not come back": (
        [*_errors(errno.EIO, FSYNC), (1010, ProbeSucceeded(1005, 4, full=True))],
        Health.ONLINE,
        Cause.NONE,
    ),
    "device hangs, fsync": (_blocked(1900, FSYNC, "folio_wait_bit", in_flight=1), Health.FAILED, Cause.HUNG),
    "device hangs, cold read": (_blocked(1900, READ, "folio_wait_bit_common", in_flight=1), Health.FAILED, Cause.HUNG),
    "device hangs, O_DIRECT read": (_blocked(1900, READ, "__iomap_dio_rw", in_flight=1), Health.FAILED, Cause.HUNG),
    "device hangs, half a second so far": (
        _blocked(600, FSYNC, "folio_wait_bit", in_flight=1),
        Health.SUSPECT,
        Cause.HUNG,
    ),
    "FUSE file system hangs: no counters, sleeps in S": (
        _blind(10_000, FSYNC, "request_wait_answer", "S"),
        Health.FAILED,
        Cause.SILENT,
    ),
    "FUSE file system hangs, nine seconds so far": (
        _blind(9000, FSYNC, "request_wait_answer", "S"),
        Health.SUSPECT,
        Cause.SILENT,
    ),
    "fsfreeze": (_blocked(5000, "open of .kjbod_probe", "percpu_rwsem_wait"), Health.HELD, Cause.HELD),
    "fsfreeze, thawed": (
        [*_blocked(5000, "open of .kjbod_probe", "percpu_rwsem_wait"), (5100, ProbeSucceeded(5090, 4))],
        Health.ONLINE,
        Cause.NONE,
    ),
    "fsfreeze for longer than the held timeout": (
        _blocked(30_000, "open of .kjbod_probe", "percpu_rwsem_wait"),
        Health.FAILED,
        Cause.HELD,
    ),
    "fsfreeze while others use the device": (
        _blocked(5000, "open of .kjbod_probe", "percpu_rwsem_wait", in_flight=3, per_request_ms=5),
        Health.HELD,
        Cause.HELD,
    ),
    "200 ms per request: 804 to 1,004 ms, one full probe of 1,606 ms": (
        _well(502, 402, 803, 1606, 804, 502),
        Health.ONLINE,
        Cause.NONE,
    ),
    "200 ms per request: full probes one after the other": (_well(1004, 1606), Health.SLOW, Cause.SLOW),
    "1 s per request": (
        _blocked(6000, FSYNC, "folio_wait_bit", in_flight=1, per_request_ms=1000),
        Health.SLOW,
        Cause.SLOW,
    ),
    "throttled to a request each five seconds": (
        _blocked(58_000, FSYNC, "folio_wait_bit", per_request_ms=5000),
        Health.HELD,
        Cause.HELD,
    ),
    "worker stopped by a signal": (_blocked(60_000, FSYNC, "", state="T"), Health.SUSPECT, Cause.UNWATCHED),
    "worker waits for a processor": (_blocked(60_000, FSYNC, "", state="R"), Health.SUSPECT, Cause.UNWATCHED),
    "worker has not taken the request": (_blocked(60_000, "", "", state="S"), Health.SUSPECT, Cause.UNWATCHED),
}


@pytest.mark.parametrize("evidence", MEASURED)
def test_measured_evidence_gets_its_verdict(evidence: str) -> None:
    events, health, cause = MEASURED[evidence]
    state = DirectoryHealth()
    for now_ms, event in events:
        state = judge(state, event, now_ms, SETTINGS).state
    assert (state.health, state.cause) == (health, cause)


def _silence(*samples: tuple[int, int, int, int]) -> DeviceSilence:
    """Of ``(at_ms, in_flight, completed, flushes)``."""
    silence = None
    for at_ms, in_flight, completed, flushes in samples:
        counters = BlockCounters(in_flight, completed, 0, flushes=flushes)
        silence = observe_device(silence, counters, at_ms, SETTINGS.sample_gap_ms)
    assert silence is not None
    return silence


@pytest.mark.parametrize(
    ("samples", "after_flush"),
    [
        pytest.param([(0, 2, 5, 0), (100, 2, 6, 1), (200, 2, 6, 1)], True, id="with the flush"),
        pytest.param([(0, 2, 5, 0), (100, 2, 6, 1), (1100, 1, 7, 1), (1200, 1, 7, 1)], True, id="another one's write"),
        pytest.param([(0, 1, 5, 0), (100, 0, 6, 1), (110, 1, 6, 1), (200, 1, 6, 1)], True, id="idle for a moment"),
        pytest.param([(0, 1, 5, 0), (10, 0, 6, 1), (500, 0, 6, 1), (1000, 1, 6, 1), (1100, 1, 6, 1)], False, id="idle"),
        pytest.param([(0, 1, 5, 0), (100, 1, 6, 0), (200, 1, 6, 0)], False, id="no flush"),
    ],
)
def test_a_silence_that_begins_behind_a_flush_may_be_two_requests_long(
    samples: list[tuple[int, int, int, int]], after_flush: bool
) -> None:
    assert _silence(*samples).after_flush is after_flush


@pytest.mark.parametrize(
    ("samples", "ended_ms"),
    [
        pytest.param([(0, 1, 5, 0), (200, 1, 5, 0), (400, 1, 5, 0), (600, 1, 6, 0)], 400, id="ended"),
        pytest.param([(0, 1, 5, 0), (200, 1, 5, 0), (400, 0, 5, 0)], 0, id="nothing completed"),
        pytest.param([(0, 1, 5, 0), (400, 1, 5, 0), (500, 1, 6, 0), (700, 1, 6, 0), (800, 1, 7, 0)], 400, id="longest"),
        pytest.param([(0, 1, 5, 0), (200, 1, 5, 0), (300, 0, 6, 0), (60_301, 0, 6, 0)], 0, id="a minute ago"),
    ],
)
def test_a_device_remembers_the_longest_silence_that_ended_within_a_minute(
    samples: list[tuple[int, int, int, int]], ended_ms: int
) -> None:
    assert _silence(*samples).ended_ms == ended_ms


def test_pauses_of_the_machine_within_one_request_add_up_to_no_more_than_was_planned_between_two_samples() -> None:
    pauses = [(3_600_000 * number, 1, 5, 0) for number in range(10)]
    assert _silence(*pauses).hung_ms == 9 * 200 < SETTINGS.probe_timeout_ms


# every story ---------------------------------------------------------------------------------------------------------


class DisksUnderWatch(RuleBasedStateMachine):
    """Anything that can happen to three directories on two devices."""

    @initialize(
        counters=st.booleans(), wchan=st.booleans(), neighbours=st.booleans(), held_for_ever=st.sampled_from([0, 0, 1])
    )
    def start(self, counters: bool, wchan: bool, neighbours: bool, held_for_ever: int) -> None:
        a = ModelDisk(counters=counters, wchan=wchan, neighbours=neighbours)
        b = ModelDisk()
        settings = HealthSettings(held_timeout_ms=0) if held_for_ever else SETTINGS
        self.host = ModelHost({"/a1": a, "/a2": a, "/b": b}, settings)
        self.disks = [a, b]
        self.stalls = 0
        self.disturbed: dict[str, int] = dict.fromkeys(DIRECTORIES, 0)
        self.stood_still: set[str] = set()
        """Directories whose disks have been in another mode than well before the present one."""
        """Running time when something last kept a directory from being watched."""
        self.checked = 0

    # what happens --------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 1), mode=st.sampled_from(Mode))
    def disk_becomes(self, number: int, mode: Mode) -> None:
        disk = self.disks[number]
        if disk.mode is not mode:
            if disk.mode is not Mode.WELL:
                self.stood_still |= {directory.name for directory in self._directories_of(disk)}
            self.host.set(disk, mode)
            for directory in self._directories_of(disk):
                self.disturbed[directory.name] = self.host.running_ms

    @rule(number=st.integers(0, 1), latency_ms=st.sampled_from([1, 20, 200, SLOWEST_MS]))
    def requests_take(self, number: int, latency_ms: int) -> None:
        self.disks[number].latency_ms = lambda: latency_ms

    @rule(number=st.integers(0, 1), full=st.booleans())
    def disk_is_full(self, number: int, full: bool) -> None:
        self.disks[number].full = full

    @rule(duration_ms=st.sampled_from([3, 100, 700, 1500, 2500, 9000, 12_000, 29_000, 40_000]))
    def time_passes(self, duration_ms: int) -> None:
        self.host.run(duration_ms)

    @rule(number=st.integers(0, 1), mode=st.sampled_from(Mode), duration_ms=st.sampled_from([400, 1900, 6400, 35_000]))
    def disk_becomes_and_time_passes(self, number: int, mode: Mode, duration_ms: int) -> None:
        self.disk_becomes(number, mode)
        self.host.run(duration_ms)

    @rule(duration_ms=st.sampled_from([50, 1000, 10_000, 3_600_000]), machine=st.booleans())
    def agent_stands_still(self, duration_ms: int, machine: bool) -> None:
        self.stalls += 1
        (self.host.suspend if machine else self.host.stall)(duration_ms)
        self._disturb(*DIRECTORIES)

    @rule(name=st.sampled_from(DIRECTORIES))
    def worker_is_stopped_or_continued(self, name: str) -> None:
        directory = self.host.watched[name]
        if directory.stopped:
            self.host.continue_worker(directory)
        else:
            self.host.stop_worker(directory)
        self._disturb(name)

    @rule(name=st.sampled_from(DIRECTORIES))
    def worker_is_killed(self, name: str) -> None:
        self.host.worker_died(self.host.watched[name])
        self._disturb(name)

    @rule(name=st.sampled_from(DIRECTORIES))
    def own_work_gets_an_error(self, name: str) -> None:
        self.host.report_error(self.host.watched[name])

    @rule(name=st.sampled_from(DIRECTORIES), damage=st.booleans())
    def kernel_says_something(self, name: str, damage: bool) -> None:
        self.host.kernel_said(self.host.watched[name], damage=damage)

    def _disturb(self, *names: str) -> None:
        for name in names:
            self.disturbed[name] = self.host.running_ms

    def _directories_of(self, disk: ModelDisk) -> list[Directory]:
        return [directory for directory in self.host.watched.values() if directory.disk is disk]

    # what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def failed_is_for_ever(self) -> None:
        for directory in self.host.watched.values():
            failures = [health for _, health, _ in directory.states if health is Health.FAILED]
            assert len(failures) <= 1
            assert not failures or directory.health.health is Health.FAILED

    @invariant()
    def every_failure_has_its_reason(self) -> None:
        for directory in self.host.watched.values():
            if directory.states and directory.states[-1][1] is Health.FAILED:
                at_ms, _, cause = directory.states[-1]
                self._check_reason(directory, at_ms, cause)

    def _check_reason(self, directory: Directory, at_ms: int, cause: Cause) -> None:
        settings, disk = self.host.settings, directory.disk
        errors = [error for error in directory.errors if error[1] <= at_ms]
        unseen_ms = self.stalls * settings.sample_gap_ms
        silent_ms = directory.silent_ms + unseen_ms
        if cause is Cause.ERROR:
            assert len(errors) >= 2, "an error without a confirmation"
        elif cause is Cause.REPEATED_ERRORS:
            times = [answered_ms for _, answered_ms in errors]
            assert any(b - a <= settings.strike_window_ms for a, b in pairwise(times))
        elif cause is Cause.HUNG:
            assert silent_ms >= settings.probe_timeout_ms, "hung, and the device moved"
        elif cause is Cause.HELD:
            assert settings.held_timeout_ms
            # What was between two samples, a short thaw or the time before the first one, is taken for what they saw.
            still_ms = max(silent_ms, directory.frozen_ms) + settings.sample_gap_ms
            assert still_ms >= settings.held_timeout_ms, "held, and the device moved"
        elif cause is Cause.SILENT:
            assert errors or not disk.counters
            assert directory.unanswered_ms + unseen_ms >= settings.blind_timeout_ms
        else:
            pytest.fail(f"failed of {cause}")

    @invariant()
    def the_core_is_woken_for_whatever_is_due(self) -> None:
        found = [self.host.core.watched(name) for name in DIRECTORIES]
        assert self.host.core.wake_ms() <= min(watched.next_ms() for watched in found if watched is not None)

    @invariant()
    def no_dead_disk_stays_online_past_its_bound(self) -> None:
        for directory in self.host.watched.values():
            bound_ms = self._bound_ms(directory)
            watched_ms = self.host.running_ms - self.disturbed[directory.name]
            if bound_ms is not None and not directory.stopped and watched_ms > bound_ms:
                assert directory.health.health is Health.FAILED, f"{directory.name} {directory.disk.mode}"

    def _bound_ms(self, directory: Directory) -> int | None:
        """At most how long after its death a directory is failed; None where no such promise is made."""
        settings, disk = self.host.settings, directory.disk
        begin_ms = settings.probe_interval_ms + SLOWEST_MS + SLACK_MS
        if disk.mode is Mode.EIO:
            return begin_ms + settings.host_settle_ms + SLOWEST_MS
        if disk.mode is Mode.HUNG:
            # Twice behind a flush; after a silence that has ended up to twice or four times that one.
            quick = disk.counters and directory.name not in self.stood_still
            quiet_ms = settings.probe_timeout_ms * 2 if quick else settings.blind_timeout_ms
            return begin_ms + quiet_ms + settings.sample_gap_ms
        if disk.mode is Mode.FROZEN and (disk.wchan or not disk.neighbours):
            if disk.counters or disk.wchan:
                return (
                    begin_ms + settings.held_timeout_ms + settings.sample_gap_ms if settings.held_timeout_ms else None
                )
            return begin_ms + settings.blind_timeout_ms + settings.sample_gap_ms
        return None

    def teardown(self) -> None:
        """What is not failed recovers, and that is seen."""
        if not hasattr(self, "host"):
            return
        for disk in self.disks:
            disk.latency_ms, disk.full = (lambda: 1), False
            self.host.set(disk, Mode.WELL)
        for directory in self.host.watched.values():
            self.host.continue_worker(directory)
        self.host.run(self.host.settings.strike_window_ms + 15_000)
        for directory in self.host.watched.values():
            assert directory.health.health in (Health.FAILED, Health.ONLINE), directory.states


TestDisksUnderWatch = DisksUnderWatch.TestCase
TestDisksUnderWatch.settings = settings(stateful_step_count=steps(30))


# one disk dies among well ones ---------------------------------------------------------------------------------------


def _host(counters: bool = True, neighbours: bool = False) -> ModelHost:
    return ModelHost(
        {"/a": ModelDisk(counters=counters, neighbours=neighbours), "/b": ModelDisk(), "/c": ModelDisk()}, SETTINGS
    )


LATENCY_MS = {"slow": 1_000, "throttled": 5_000}
"""Of each request in a story."""


def _suffer(host: ModelHost, directory: Directory, story: str, duration_ms: int) -> None:
    """One thing that a living disk can go through, and its end."""
    disk = directory.disk
    match story:
        case "slow":
            disk.latency_ms = lambda: LATENCY_MS["slow"]
            host.run(duration_ms)
            disk.latency_ms = lambda: 1
        case "throttled":
            host.set(disk, Mode.THROTTLED)
            disk.latency_ms = lambda: LATENCY_MS["throttled"]
            host.run(duration_ms)
            disk.latency_ms = lambda: 1
            host.set(disk, Mode.WELL)
        case "frozen":
            host.set(disk, Mode.FROZEN)
            host.run(min(duration_ms, 29_000))
            host.set(disk, Mode.WELL)
        case "short-hang":
            host.set(disk, Mode.HUNG)
            host.run(min(duration_ms, SETTINGS.probe_timeout_ms - 100))
            host.set(disk, Mode.WELL)
        case "full":
            disk.full = True
            host.run(duration_ms)
            disk.full = False
        case "worker-stopped":
            host.stop_worker(directory)
            host.run(duration_ms)
            host.continue_worker(directory)
        case "worker-killed":
            host.worker_died(directory)
        case "agent-stopped":
            host.stall(duration_ms)
        case "suspended":
            host.suspend(duration_ms)
        case "kernel-events":
            host.kernel_said(directory, damage=False)
        case "damage":
            host.kernel_said(directory, damage=True)
    host.run(6000)


STORIES = [
    "slow",
    "throttled",
    "frozen",
    "short-hang",
    "full",
    "worker-stopped",
    "worker-killed",
    "agent-stopped",
    "suspended",
    "kernel-events",
    "damage",
    "well",
]
histories = st.lists(st.tuples(st.sampled_from(STORIES), st.integers(1, 60_000)), max_size=12)


@given(histories, st.booleans())
def test_no_story_of_a_living_disk_ends_in_failed(history: list[tuple[str, int]], neighbours: bool) -> None:
    host = _host(neighbours=neighbours)
    for story, duration_ms in history:
        _suffer(host, host.watched["/a"], story, duration_ms)
    host.run(SETTINGS.strike_window_ms + 2000)  # so long damage is remembered
    for directory in host.watched.values():
        assert directory.health.health is Health.ONLINE, host.fed
    assert not host.watched["/b"].states or {"agent-stopped", "suspended"} & {story for story, _ in history}


@given(
    histories,
    st.integers(0, 3000),
    st.sampled_from(
        [(Mode.EIO, True), (Mode.HUNG, True), (Mode.HUNG, False), (Mode.FROZEN, True), (Mode.FROZEN, False)]
    ),
)
def test_a_disk_that_dies_among_well_ones_is_failed_within_the_stated_bound_whatever_came_before(
    history: list[tuple[str, int]], phase_ms: int, death: tuple[Mode, bool]
) -> None:
    mode, counters = death
    host = _host()
    directory = host.watched["/a"]
    for story, duration_ms in history:
        _suffer(host, directory, story, duration_ms)
    host.run(5_000 + phase_ms)
    directory.disk.counters = counters
    host.set(directory.disk, mode)
    # Four times the longest silence that has ended, which a slow request outlasts its story by.
    remembered_ms = 4 * (max((ms + LATENCY_MS.get(story, 0) for story, ms in history), default=0) + SAMPLE_EVERY_MS)
    behind_flush_ms = 2 * SETTINGS.probe_timeout_ms  # a device that dies there may be silent for two requests
    hung_ms = min(max(behind_flush_ms, remembered_ms), SETTINGS.blind_timeout_ms)
    hung_ms = hung_ms if counters else SETTINGS.blind_timeout_ms
    silence_ms = {Mode.EIO: 0, Mode.HUNG: hung_ms, Mode.FROZEN: SETTINGS.held_timeout_ms}[mode]
    host.run(SETTINGS.probe_interval_ms + silence_ms + SAMPLE_EVERY_MS + SLACK_MS)
    assert directory.health.health is Health.FAILED, host.fed
    assert {host.watched[name].health.health for name in ("/b", "/c")} == {Health.ONLINE}


@given(st.integers(0, 1000), st.integers(1, 400), st.sampled_from([Mode.EIO, Mode.HUNG]))
def test_a_host_adapter_that_is_away_for_a_moment_costs_no_directory(phase_ms: int, away_ms: int, mode: Mode) -> None:
    host = _host()
    host.run(10_000 + phase_ms)
    for directory in host.watched.values():
        host.set(directory.disk, mode)
    host.run(away_ms)
    for directory in host.watched.values():
        host.set(directory.disk, Mode.WELL)
    host.run(5_000)
    assert {directory.health.health for directory in host.watched.values()} == {Health.ONLINE}


@given(st.integers(0, 1000))
def test_when_all_disks_of_a_host_die_each_is_confirmed_on_its_own_after_the_settling_time(phase_ms: int) -> None:
    host = _host()
    host.run(10_000 + phase_ms)
    died_ms = host.now_ms
    for directory in host.watched.values():
        host.set(directory.disk, Mode.EIO)
    host.run(5_000)
    for directory in host.watched.values():
        suspected_ms, failed_ms = (at_ms for at_ms, _, _ in directory.states)
        assert failed_ms - suspected_ms >= SETTINGS.host_settle_ms
        assert failed_ms - died_ms <= SETTINGS.probe_interval_ms + SETTINGS.host_settle_ms + SLACK_MS
        assert any(suspected_ms < begun_ms <= failed_ms for begun_ms, _ in directory.errors), "not confirmed by itself"
