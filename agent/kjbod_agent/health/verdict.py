"""The verdict on a log directory: pure, from evidence.

Theory
======

Four facts decide the design.

1. *An error is not yet a verdict.* Errors come from the disk, from a path lookup in the middle of an unmount, from a
   host adapter that resets. Asking again costs milliseconds, so every error is confirmed by a second probe that began
   after it. A directory between the two is ``suspect``. An error that does not come back is remembered for
   ``strike_window_ms``: the second one in that time is a failure although probes pass in between, because an fsync
   that failed and then succeeds has lost data (the kernel tells it once), and a bad sector hits the agent's own work
   and not the probe.
2. *Silence is not yet a verdict either.* A blocked probe looks the same on a dead disk, on a slow one and on a healthy
   one whose file system is frozen for a snapshot. The counters of the block device tell them apart:

       requests in flight and none completed all the time    the device is **hung**
       requests completed                                    it is **slow**: progress vetoes the deadline
       nothing in flight, none completed                     it is **held** above the device (frozen, throttled)
       no counters to be had                                 only a longer deadline is left

3. *Only time that was observed counts.* After a pause of this process or of the whole machine every age is long and
   nobody has looked. So silence is added up from sample to sample, at most ``sample_gap_ms`` for each, and a worker
   that is stopped, that waits for a processor, or that has not taken its request is no evidence at all.
4. *All disks of a host do not die in the same second.* When they seem to, it is the adapter, the kernel, or us. Each
   then has to be confirmed on its own after ``host_settle_ms``, and hung ones after twice the time.

Transitions
===========

``failed`` is sticky until a restart, as in Kafka (``LogDirFailureChannel``). Rows are what happens, first match wins:

    ==================================================  ========================================================
    event                                               becomes
    ==================================================  ========================================================
    anything, when failed                               failed
    probe succeeded, but began before the suspicion     unchanged; probe again
    probe succeeded, could not allocate                 full
    probe succeeded, not a full one, when full          full (only creating something new can tell)
    probe succeeded, took ``slow_ms`` or more: as       slow
      many in a row as ``slow_probes``, or when slow
    probe succeeded, took ``slow_ms`` or more           online
    probe succeeded, quick, when slow                   slow, until ``slow_recoveries`` in a row: online
    probe succeeded                                     online
    error that says nothing about the disk              unchanged (own work: probe at once)
    ENOSPC, EDQUOT                                      full
    other error, when suspect of an error and the       failed (host fault: suspect, until the settling time)
      probe began after the suspicion
    other error, second in ``strike_window_ms``         failed (host fault: suspect)
    other error                                         suspect; probe at once
    mount missing or other                              suspect; probe at once, which gets ESTALE
    mount missing or other, when suspect and blocked    failed: no probe can confirm it, and the table was read twice
    mount read-only, emergency_ro, shutdown             unchanged; probe at once, which gets EROFS or EIO
    blocked, hung for ``probe_timeout_ms``              failed
    blocked, hung for a quarter of it, not slow before  suspect
    blocked, held for ``held_timeout_ms`` (0: never)    failed
    blocked, held for ``probe_timeout_ms``              held
    blocked for ``blind_timeout_ms`` without counters   failed
    blocked for ``blind_timeout_ms`` after an error     failed
    blocked for ``probe_timeout_ms``, with progress     slow
    no probe possible for ``blind_timeout_ms``          suspect (unwatched): never failed by that alone
    ==================================================  ========================================================

Bounds. An idle dead disk is failed at most one probe interval, one probe and one confirming probe after its death; a
hung one after at most one interval, ``probe_timeout_ms`` and one sample; a held one after ``held_timeout_ms``; one
without counters after ``blind_timeout_ms``.
"""

import errno
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from kjbod_agent.health.block import BlockCounters
from kjbod_agent.health.mounts import MountChange


class Health(StrEnum):
    """What a log directory is in."""

    ONLINE = "online"
    SUSPECT = "suspect"
    """Something is wrong and is being confirmed; not offline."""
    FAILED = "failed"
    """Offline until restart."""
    SLOW = "slow"
    """Answers late, but the device makes progress."""
    HELD = "held"
    """Stands still above the device: frozen for a snapshot, or throttled to nothing."""
    FULL = "full"
    """The medium is well and nothing new can be allocated."""


class Cause(StrEnum):
    """Why it is in that state."""

    NONE = "none"
    ERROR = "error"
    REPEATED_ERRORS = "repeated-errors"
    MOUNT = "mount"
    HUNG = "hung"
    HELD = "held"
    SLOW = "slow"
    SILENT = "silent"
    """Blocked, and there are no counters, or an error came before."""
    FULL = "full"
    UNWATCHED = "unwatched"
    """No probe is possible, for reasons of our own."""


class Ask(StrEnum):
    """What the monitor is to do next."""

    NOTHING = "nothing"
    PROBE = "probe"
    """Probe at once."""
    PROBE_SETTLED = "probe-settled"
    """Probe when the settling time of a host fault has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Deadlines of the verdict, in milliseconds. Shorter: a failure is known sooner, and a fault of a moment counts.

    Attributes:
        probe_interval_ms: between the starts of two probes of an idle directory (``kjbod.probe.interval.ms``).
        probe_timeout_ms: silence without any progress that makes a device hung, and beyond which an answer is late
            (``kjbod.probe.timeout.ms``). Must be longer than the slowest single request of a healthy device.
        held_timeout_ms: standing still above the device (``kjbod.held.timeout.ms``); 0 waits for ever.
        blind_timeout_ms: silence where the device has no counters.
        slow_ms: a probe that took this long is slow; it is some five requests one after the other. Only the worker's
            own time counts, not what the request waited in this process: that is no fault of the disk.
        slow_probes: slow probes in a row that make a directory slow: one alone is a burst of somebody's writes.
        slow_recoveries: quick probes in a row that end slowness.
        strike_window_ms: two errors within this time are a failure although probes between them pass.
        host_window_ms: all directories in trouble within this time are a host fault.
        host_settle_ms: how long a directory of a host fault stays suspect at least.
        sample_gap_ms: the most that one sample of a blocked probe may add to the silence.
        full_probe_every: each how many-th probe is a full one.
    """

    probe_interval_ms: int = 1000
    probe_timeout_ms: int = 2000
    held_timeout_ms: int = 30_000
    blind_timeout_ms: int = 10_000
    slow_ms: int = 1000
    slow_probes: int = 2
    slow_recoveries: int = 3
    strike_window_ms: int = 60_000
    host_window_ms: int = 1000
    host_settle_ms: int = 500
    sample_gap_ms: int = 400
    full_probe_every: int = 10


# events -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProbeSucceeded:
    """A probe came back well.

    Attributes:
        begun_ms: when it was sent.
        duration_ms: how long the worker was at it.
        full: whether it also created and renamed.
        no_space: errno name when nothing could be allocated.
    """

    begun_ms: int
    duration_ms: int
    full: bool = False
    no_space: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """A probe, or the agent's own work on the directory, got an error.

    Attributes:
        begun_ms: when the request was sent.
        errno: what it said.
        call: at which step.
        own_work: not a probe; something else that the agent did there.
    """

    begun_ms: int
    errno: int
    call: str
    own_work: bool = False


@dataclass(frozen=True, slots=True)
class ProbeBlocked:
    """A sample of a request that has not been answered.

    Attributes:
        number: of the request; another number means progress.
        call: the step it is in; empty while its worker has not taken it.
        age_ms: since it was sent.
        wchan: kernel function in which the worker sleeps; empty when unknown.
        process_state: letter of ``/proc/PID/stat``; empty when unknown.
        before: counters of the device when the request was sent, None when there are none.
        now: counters at this sample.
    """

    number: int
    call: str
    age_ms: int
    wchan: str = ""
    process_state: str = ""
    before: BlockCounters | None = None
    now: BlockCounters | None = None


@dataclass(frozen=True, slots=True)
class ProbeImpossible:
    """No probe could be made for reasons that are not the disk's: the worker died, or could not be started."""

    reason: str


@dataclass(frozen=True, slots=True)
class MountChanged:
    """What the mount table says about the directory."""

    change: MountChange


Event = ProbeSucceeded | ProbeFailed | ProbeBlocked | ProbeImpossible | MountChanged

# state --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Blockage:
    """What has been observed of the request that is not answered.

    Attributes:
        number: of the request.
        sampled_ms: time of the last sample.
        observed_ms: sum of all observed time.
        hung_ms: observed time with requests in flight and none completed, up to now.
        held_ms: observed time with nothing in flight and none completed, up to now.
        blind_ms: observed time without counters.
        counters: at the last sample that had any.
    """

    number: int
    sampled_ms: int
    observed_ms: int = 0
    hung_ms: int = 0
    held_ms: int = 0
    blind_ms: int = 0
    counters: BlockCounters | None = None


@dataclass(frozen=True, slots=True)
class DirectoryHealth:
    """All that the verdict remembers about one directory.

    Attributes:
        health: the state.
        cause: why.
        since_ms: when it entered this state.
        trouble_ms: when it last became suspect, for the host fault guard; None while it has not.
        strikes: times of errors that were not confirmed, within ``strike_window_ms``.
        quick_probes: in a row, while slow.
        slow_probes: in a row.
        blockage: the request that is not answered.
        unwatched_ms: since when no probe was possible.
    """

    health: Health = Health.ONLINE
    cause: Cause = Cause.NONE
    since_ms: int = 0
    trouble_ms: int | None = None
    strikes: tuple[int, ...] = ()
    quick_probes: int = 0
    slow_probes: int = 0
    blockage: Blockage | None = None
    unwatched_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The state after an event, and what to do next."""

    state: DirectoryHealth
    ask: Ask = Ask.NOTHING


NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
OURS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN, errno.ENOSYS, errno.EINVAL})
"""Errors that speak of this process or host and not of a disk. Every other one is the disk's, as in Kafka, for which
any IOException takes a log directory offline."""
ABOUT_NAMES = frozenset({errno.EEXIST, errno.ENOENT, errno.ENOTEMPTY, errno.ENAMETOOLONG})
"""From the agent's own work these speak of a replica's name. From a probe ``ENOENT`` is a directory that is gone."""
FROZEN = frozenset({"percpu_rwsem_wait", "__percpu_down_read", "percpu_down_read"})
"""Where a writer to a frozen file system sleeps (``sb_start_write``). Held, whatever the device does for others."""
NOT_WAITING_FOR_A_DISK = frozenset("TtRZXx")
"""Process states: stopped by a signal, traced, wants a processor, dead. Not ``S``: FUSE waits in it at first."""


def judge(
    state: DirectoryHealth, event: Event, now_ms: int, settings: HealthSettings, *, host_fault: bool = False
) -> Judgement:
    """The state of a directory after an event; see the table on top.

    Args:
        state: before.
        event: what happened.
        now_ms: monotonic time.
        settings: deadlines.
        host_fault: what :func:`is_host_fault` says about all directories.
    """
    if state.health is Health.FAILED:
        return Judgement(state)
    match event:
        case ProbeSucceeded():
            return _succeeded(state, event, now_ms, settings)
        case ProbeFailed():
            return _failed(state, event, now_ms, settings, host_fault)
        case ProbeBlocked():
            return _blocked(state, event, now_ms, settings, host_fault)
        case ProbeImpossible():
            return _unwatched(replace(state, blockage=None), now_ms, settings)
        case MountChanged():
            return _mount_changed(state, event, now_ms, settings, host_fault)


def is_host_fault(directories: Collection[DirectoryHealth], now_ms: int, settings: HealthSettings) -> bool:
    """Whether all directories of the host got into trouble within ``host_window_ms``.

    Directories that failed before count no more; a host with one (other) directory has no such fault.
    """
    window = settings.host_window_ms + settings.host_settle_ms
    alive = [d for d in directories if d.health is not Health.FAILED or now_ms - d.since_ms <= window]
    if len(alive) < 2 or any(d.health not in (Health.SUSPECT, Health.FAILED) for d in alive):
        return False
    times = [d.trouble_ms if d.trouble_ms is not None else d.since_ms for d in alive]
    return max(times) - min(times) <= settings.host_window_ms


def next_sample_ms(state: DirectoryHealth, settings: HealthSettings) -> int:
    """How long from now the next sample of a blocked probe may at most wait to meet a deadline at its moment."""
    blockage = state.blockage
    rest_ms = settings.sample_gap_ms // 2
    if blockage is not None:
        for silent_ms in (blockage.hung_ms, blockage.held_ms, blockage.blind_ms):
            if 0 < silent_ms < settings.probe_timeout_ms:
                rest_ms = min(rest_ms, settings.probe_timeout_ms - silent_ms)
    return max(1, rest_ms)


def _enter(state: DirectoryHealth, health: Health, cause: Cause, now_ms: int) -> DirectoryHealth:
    if state.health is health and (state.cause is cause or health is Health.ONLINE):
        return state
    trouble_ms = now_ms if health is Health.SUSPECT and state.health is not Health.SUSPECT else state.trouble_ms
    since_ms = state.since_ms if state.health is health else now_ms
    return replace(state, health=health, cause=cause, since_ms=since_ms, trouble_ms=trouble_ms)


def _suspected_of_error(state: DirectoryHealth) -> bool:
    return state.health is Health.SUSPECT and state.cause in (Cause.ERROR, Cause.MOUNT)


def _succeeded(state: DirectoryHealth, event: ProbeSucceeded, now_ms: int, settings: HealthSettings) -> Judgement:
    if _suspected_of_error(state) and event.begun_ms < state.since_ms:
        return Judgement(state, Ask.PROBE)
    state = replace(state, blockage=None, unwatched_ms=None)
    if event.no_space is not None or (state.health is Health.FULL and not event.full):
        return Judgement(_enter(state, Health.FULL, Cause.FULL, now_ms))
    is_slow = event.duration_ms >= settings.slow_ms
    state = replace(state, slow_probes=state.slow_probes + 1 if is_slow else 0)
    if is_slow and (state.health is Health.SLOW or state.slow_probes >= settings.slow_probes):
        return Judgement(_enter(replace(state, quick_probes=0), Health.SLOW, Cause.SLOW, now_ms))
    if state.health is Health.SLOW and state.quick_probes + 1 < settings.slow_recoveries:
        return Judgement(replace(state, quick_probes=state.quick_probes + 1))
    return Judgement(_enter(replace(state, quick_probes=0), Health.ONLINE, Cause.NONE, now_ms))


def _failed(
    state: DirectoryHealth, event: ProbeFailed, now_ms: int, settings: HealthSettings, host_fault: bool
) -> Judgement:
    if event.own_work and event.errno in OURS | ABOUT_NAMES:
        return Judgement(state, Ask.PROBE)
    if event.errno in OURS:
        return _unwatched(replace(state, blockage=None), now_ms, settings)
    state = replace(state, unwatched_ms=None)
    if not event.own_work:
        state = replace(state, blockage=None)
    if event.errno in NO_SPACE:
        return Judgement(_enter(state, Health.FULL, Cause.FULL, now_ms))
    confirms = not event.own_work and event.begun_ms >= state.since_ms
    return _error(state, Cause.ERROR, confirms, now_ms, settings, host_fault)


def _error(
    state: DirectoryHealth, cause: Cause, confirms: bool, now_ms: int, settings: HealthSettings, host_fault: bool
) -> Judgement:
    """An error of the disk or of its mount; ``confirms``: it came from looking again after the suspicion."""
    if _suspected_of_error(state):
        if not confirms:
            return Judgement(state, Ask.PROBE)
        if host_fault and now_ms - state.since_ms < settings.host_settle_ms:
            return Judgement(state, Ask.PROBE_SETTLED)
        return Judgement(_enter(state, Health.FAILED, cause, now_ms))
    recent = tuple(at for at in state.strikes if now_ms - at <= settings.strike_window_ms)
    struck = replace(state, strikes=(*recent[-1:], now_ms))
    if recent and not host_fault:
        return Judgement(_enter(struck, Health.FAILED, Cause.REPEATED_ERRORS, now_ms))
    if struck.health is Health.SUSPECT:  # suspect of silence so far: from here on it is the error that is confirmed
        return Judgement(replace(struck, cause=cause, since_ms=now_ms), Ask.PROBE)
    return Judgement(_enter(struck, Health.SUSPECT, cause, now_ms), Ask.PROBE)


def _mount_changed(
    state: DirectoryHealth, event: MountChanged, now_ms: int, settings: HealthSettings, host_fault: bool
) -> Judgement:
    if event.change is MountChange.OK:
        return Judgement(state)
    if event.change not in (MountChange.MISSING, MountChange.OTHER):
        return Judgement(state, Ask.PROBE)
    if _suspected_of_error(state):
        confirms = state.blockage is not None and state.since_ms < now_ms
        return _error(state, Cause.MOUNT, confirms, now_ms, settings, host_fault)
    since_ms = now_ms if state.health is Health.SUSPECT else state.since_ms
    return Judgement(_enter(replace(state, since_ms=since_ms), Health.SUSPECT, Cause.MOUNT, now_ms), Ask.PROBE)


def _unwatched(state: DirectoryHealth, now_ms: int, settings: HealthSettings) -> Judgement:
    since_ms = now_ms if state.unwatched_ms is None else state.unwatched_ms
    state = replace(state, unwatched_ms=since_ms)
    if now_ms - since_ms >= settings.blind_timeout_ms and state.health is not Health.SUSPECT:
        return Judgement(_enter(state, Health.SUSPECT, Cause.UNWATCHED, now_ms))
    return Judgement(state)


def _observe(
    blockage: Blockage | None, event: ProbeBlocked, now_ms: int, settings: HealthSettings
) -> tuple[Blockage, bool]:
    """The blockage with one more sample, and whether anything spoke of the disk."""
    if blockage is None or blockage.number != event.number:
        begun_ms = now_ms - min(event.age_ms, settings.sample_gap_ms)
        blockage = Blockage(event.number, begun_ms, counters=event.before)
    passed_ms = max(0, min(now_ms - blockage.sampled_ms, settings.sample_gap_ms))
    if not event.call or event.process_state in NOT_WAITING_FOR_A_DISK:
        return replace(blockage, sampled_ms=now_ms), False
    earlier, now = blockage.counters, event.now
    frozen = event.wchan in FROZEN
    progress = earlier is not None and now is not None and now.completed != earlier.completed
    silent = not progress and now is not None
    hung = silent and now is not None and now.in_flight > 0 and not frozen
    held = frozen or (silent and not hung)
    return Blockage(
        number=blockage.number,
        sampled_ms=now_ms,
        observed_ms=blockage.observed_ms + passed_ms,
        hung_ms=blockage.hung_ms + passed_ms if hung else 0,
        held_ms=blockage.held_ms + passed_ms if held else 0,
        blind_ms=blockage.blind_ms + passed_ms if now is None and not frozen else 0,
        counters=now or earlier,
    ), True


def _blocked(
    state: DirectoryHealth, event: ProbeBlocked, now_ms: int, settings: HealthSettings, host_fault: bool
) -> Judgement:
    blockage, speaks = _observe(state.blockage, event, now_ms, settings)
    state = replace(state, blockage=blockage)
    if not speaks:
        return _unwatched(state, now_ms, settings)
    state = replace(state, unwatched_ms=None)
    health, cause = _judge_blockage(state, blockage, settings, host_fault)
    return Judgement(state if health is None else _enter(state, health, cause, now_ms))


def _judge_blockage(
    state: DirectoryHealth, blockage: Blockage, settings: HealthSettings, host_fault: bool
) -> tuple[Health | None, Cause]:
    timeout_ms = settings.probe_timeout_ms
    if blockage.hung_ms >= timeout_ms * (2 if host_fault else 1):
        return Health.FAILED, Cause.HUNG
    if settings.held_timeout_ms and blockage.held_ms >= settings.held_timeout_ms:
        return Health.FAILED, Cause.HELD
    silent_ms = blockage.observed_ms if _suspected_of_error(state) else blockage.blind_ms
    if silent_ms >= settings.blind_timeout_ms:
        return Health.FAILED, Cause.SILENT
    if _suspected_of_error(state):
        return None, state.cause
    if blockage.held_ms >= timeout_ms:
        return Health.HELD, Cause.HELD
    if blockage.hung_ms >= timeout_ms // 4 and state.health is not Health.SLOW:
        return Health.SUSPECT, Cause.HUNG
    if blockage.blind_ms >= timeout_ms:
        return Health.SUSPECT, Cause.SILENT
    if blockage.observed_ms >= timeout_ms and not (blockage.hung_ms or blockage.held_ms or blockage.blind_ms):
        return Health.SLOW, Cause.SLOW
    return None, state.cause
