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
       no counters to be had                                 only a longer deadline is left, and the worker's steps:
                                                             a probe that gets from one to the next makes progress

   A device stands still for all who use it, so its silence counts from the first request that it swallowed, the
   broker's own as well, and for each directory on it. Of a file system on several devices one hung device is enough.
3. *Only time that was observed counts.* After a pause of this process or of the whole machine every age is long and
   nobody has looked. So silence is added up from sample to sample; one that comes later than ``sample_gap_ms`` adds
   only what was planned. A worker that is stopped, that waits for a processor, or that has not taken its request is no
   evidence at all.
4. *All disks of a host do not die in the same second.* When they seem to, it is the adapter, the kernel, or us. So a
   failure needs a witness: a directory on another device, not in trouble itself, whose probe began after the trouble
   and passed (``witness.py``). A failure that is certain but for the witness is ``confirmed``, and final with the
   first one, unless it had to wait for it: then it is looked at once more.
   Without any, each directory has to be confirmed on its own after ``host_settle_ms``, and hung ones after twice the
   time. A host with one device (left) needs no witness.
5. *The kernel never decides.* What it says (:class:`KernelSaid`) asks for a full probe. Only damage that a file system
   itself reports of its structures is remembered: probes may pass for ever beside it.

Transitions
===========

``failed`` is sticky, as in Kafka (``LogDirFailureChannel``); after a restart or ``kjbod dirs add`` a directory begins
anew. Rows are what happens, first match wins; "settling" is what ``witness.must_settle`` says:

    ==================================================  ========================================================
    event                                               becomes
    ==================================================  ========================================================
    anything, when failed                               failed
    probe succeeded, but began before the suspicion     unchanged; probe again
    probe succeeded, when a repeated error waits for    failed with a witness, else unchanged; after the settling
      a witness                                         time as below
    probe succeeded, could not allocate                 full
    probe succeeded, not a full one, when full          full (only creating something new can tell)
    probe succeeded, took ``slow_ms`` or more: as       slow
      many in a row as ``slow_probes``, or when slow
    probe succeeded, late: the third time within        slow, until ``late_window_ms`` after the last time
      ``late_window_ms`` with quick ones in between
    probe succeeded, quick, when slow                   slow, until ``slow_recoveries`` in a row
    probe succeeded, damage was reported within         suspect (damage)
      ``strike_window_ms`` and before it began
    probe succeeded                                     online
    error of a name, the configuration or the host      unchanged (own work: full probe at once)
      (:mod:`kjbod_host.storage.meaning`)
    ENOSPC, EDQUOT                                      full
    other error, when suspect of an error and the       failed; settling: suspect, confirmed
      probe began after the suspicion
    other error, second in ``strike_window_ms``         failed; settling: suspect, confirmed
    other error                                         suspect; probe at once
    another directory is well, when confirmed           failed; confirmed longer than ``FRESH_MS`` ago: probe at
                                                        once
    mount missing or other                              suspect; probe at once, which gets ESTALE
    mount missing or other, when suspect and blocked    failed: no probe can confirm it, and the table was read twice
    mount read-only, emergency_ro, shutdown             unchanged; probe at once, which gets EROFS or EIO
    the kernel said something                           unchanged; full probe at once
    blocked, device hung for ``hung_after_ms``          failed; settling: after twice ``probe_timeout_ms``
    blocked, held for ``held_timeout_ms`` (0: never)    failed
    blocked for ``blind_timeout_ms`` without counters   failed
      in one step
    blocked for ``blind_timeout_ms`` in one step after  failed
      an error
    blocked, held for ``probe_timeout_ms``, or for a    held
      quarter of it where frozen file systems put one
    blocked, hung for a quarter of it, not slow before  suspect
    blocked for ``probe_timeout_ms``, with progress     slow
    no probe possible for ``blind_timeout_ms``          suspect (unwatched): never failed by that alone
    ==================================================  ========================================================

*Late* is a probe that took ``slow_ms``, or during which the device was silent for long enough to be suspected: one that
stands still for 1.5 s each 10 s is never hung, and quick whenever it is asked. It gets slow by three times in a minute
and well by a minute without one, so that it does not come and go with them.

``hung_after_ms`` is ``probe_timeout_ms``. A silence that began with a flush may be two requests long
(``silence.py``): it gets twice the time. A device that ended a silence within the last minute may be silent for as long
again: it gets twice the length of that silence, behind a flush twice that, at most ``blind_timeout_ms``. So a device
that completes each request within ``probe_timeout_ms`` is never hung, and one that gets slower step by step is not
either.

Bounds. An idle dead disk is failed at most one probe interval, one probe and one confirming probe after its death, or,
without a witness, ``host_settle_ms`` and one probe later. A hung disk is failed ``hung_after_ms`` and one sample
after the first request that it swallowed: at once on a busy disk, on an idle one that is the next probe. A held one
after ``held_timeout_ms``; one without counters after ``blind_timeout_ms`` in one step.
"""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from kjbod_host.health.mounts import MountChange
from kjbod_host.health.silence import Blockage, ProbeBlocked, observe
from kjbod_host.health.state import Cause, DirectoryHealth, Health, HealthSettings
from kjbod_host.storage.meaning import Meaning, in_probe, in_work

__all__ = [
    "AnotherIsWell",
    "Ask",
    "Blockage",
    "Cause",
    "DirectoryHealth",
    "Event",
    "Health",
    "HealthSettings",
    "Judgement",
    "KernelSaid",
    "MountChanged",
    "ProbeBlocked",
    "ProbeFailed",
    "ProbeImpossible",
    "ProbeSucceeded",
    "judge",
    "next_sample_ms",
]


class Ask(StrEnum):
    """The monitor's next action."""

    NOTHING = "nothing"
    PROBE = "probe"
    """Probe at once."""
    PROBE_SETTLED = "probe-settled"
    """Probe when the settling time of a host fault has passed."""


class ProbeSucceeded(Struct, frozen=True):
    """A probe has passed.

    Attributes:
        begun_ms: when it was sent.
        duration_ms: how long the worker was at it.
        full: whether it also created and renamed.
        no_space: errno name when there was no room, for something new or (where a file system copies) for anything.
    """

    begun_ms: int
    duration_ms: int
    full: bool = False
    no_space: str | None = None


class ProbeFailed(Struct, frozen=True):
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


class ProbeImpossible(Struct, frozen=True):
    """No probe could be made for reasons that are not the disk's: the worker died, or could not be started."""

    reason: str


class MountChanged(Struct, frozen=True):
    """News of the mount table about the directory."""

    change: MountChange


class KernelSaid(Struct, frozen=True):
    """A source of kernel events spoke of the directory. ``damage``: as in ``KernelEvent``."""

    damage: bool = False


class AnotherIsWell(Struct, frozen=True):
    """A directory on another device passed a probe: there may be a witness now."""


Event = ProbeSucceeded | ProbeFailed | ProbeBlocked | ProbeImpossible | MountChanged | KernelSaid | AnotherIsWell


class Judgement(Struct, frozen=True):
    """The state after an event, and what to do next."""

    state: DirectoryHealth
    ask: Ask = Ask.NOTHING


FRESH_MS = 100
"""A failure that waited longer than this for its witness is probed again: both disks may have recovered together."""


def judge(
    state: DirectoryHealth, event: Event, now_ms: int, settings: HealthSettings, *, host_fault: bool = False
) -> Judgement:
    """The state of a directory after an event; see the table on top.

    Args:
        state: before.
        event: what happened.
        now_ms: monotonic time.
        settings: deadlines.
        host_fault: what ``witness.must_settle`` says: nothing shows yet that the trouble is this device's alone.
    """
    if state.health is Health.FAILED:
        return Judgement(state)
    match event:
        case ProbeSucceeded():
            return _succeeded(state, event, now_ms, settings, host_fault)
        case ProbeFailed():
            return _failed(state, event, now_ms, settings, host_fault)
        case ProbeBlocked():
            return _blocked(state, event, now_ms, settings, host_fault)
        case ProbeImpossible():
            return _unwatched(replace(state, blockage=None), now_ms, settings)
        case MountChanged():
            return _mount_changed(state, event, now_ms, settings, host_fault)
        case KernelSaid():
            damaged_ms = now_ms if event.damage else state.damaged_ms
            return Judgement(replace(state, damaged_ms=damaged_ms), Ask.PROBE)
        case AnotherIsWell():
            if state.confirmed is None or host_fault:
                return Judgement(state)
            if now_ms - state.confirmed_ms > FRESH_MS:
                return Judgement(state, Ask.PROBE)
            return Judgement(_enter(state, Health.FAILED, state.confirmed, now_ms))


def next_sample_ms(state: DirectoryHealth, settings: HealthSettings) -> int:
    """Longest wait from now until the next sample of a blocked probe that still meets a deadline at its moment."""
    blockage = state.blockage
    rest_ms = settings.sample_gap_ms // 2
    if blockage is not None:
        hung_ms = blockage.silent_device_ms(settings.own_silence_ms)
        deadlines = [(hung_ms, settings.hung_after_ms(blockage))]
        deadlines += [(silent_ms, settings.probe_timeout_ms) for silent_ms in (blockage.held_ms, blockage.blind_ms)]
        for silent_ms, deadline_ms in deadlines:
            if 0 < silent_ms < deadline_ms:
                rest_ms = min(rest_ms, deadline_ms - silent_ms)
    return max(1, rest_ms)


def _enter(state: DirectoryHealth, health: Health, cause: Cause, now_ms: int) -> DirectoryHealth:
    if state.health is health and (state.cause is cause or health is Health.ONLINE):
        return state
    since_ms = state.since_ms if state.health is health else now_ms
    confirmed = state.confirmed if health is Health.SUSPECT else None
    after = replace(state, health=health, cause=cause, since_ms=since_ms, confirmed=confirmed)
    return replace(after, trouble_ms=now_ms) if after.in_trouble and not state.in_trouble else after


def _suspected_of_error(state: DirectoryHealth) -> bool:
    return state.health is Health.SUSPECT and state.cause in (Cause.ERROR, Cause.MOUNT)


def _succeeded(
    state: DirectoryHealth, event: ProbeSucceeded, now_ms: int, settings: HealthSettings, host_fault: bool
) -> Judgement:
    if _suspected_of_error(state) and event.begun_ms < state.since_ms:
        return Judgement(state, Ask.PROBE)
    stood_still = _stood_still(state, settings)
    state = replace(state, blockage=None, unwatched_ms=None, well_ms=event.begun_ms)
    if state.confirmed is Cause.REPEATED_ERRORS:
        if not host_fault:
            return Judgement(_enter(state, Health.FAILED, Cause.REPEATED_ERRORS, now_ms))
        if now_ms - state.since_ms < settings.host_settle_ms:
            return Judgement(state, Ask.PROBE_SETTLED)
    state = replace(state, confirmed=None)
    if event.no_space is not None or (state.health is Health.FULL and not event.full):
        return Judgement(_enter(state, Health.FULL, Cause.FULL, now_ms))
    is_slow = event.duration_ms >= settings.slow_ms
    state = _count_late(state, stood_still or is_slow, now_ms, settings)
    state = replace(state, slow_probes=state.slow_probes + 1 if is_slow else 0)
    if is_slow and (state.health is Health.SLOW or state.slow_probes >= settings.slow_probes):
        return Judgement(_enter(replace(state, quick_probes=0), Health.SLOW, Cause.SLOW, now_ms))
    if state.recurring:
        quick = 0 if is_slow else state.quick_probes + 1
        return Judgement(_enter(replace(state, quick_probes=quick), Health.SLOW, Cause.SLOW, now_ms))
    if state.health is Health.SLOW and state.quick_probes + 1 < settings.slow_recoveries:
        return Judgement(replace(state, quick_probes=state.quick_probes + 1))
    return _well(replace(state, quick_probes=0), event, now_ms, settings)


def _stood_still(state: DirectoryHealth, settings: HealthSettings) -> bool:
    """Whether the device was silent for long enough to be suspected while the probe was blocked that has just passed; a
    directory that is slow is not suspected of it."""
    blockage = state.blockage
    silent_ms = 0 if blockage is None else blockage.silent_device_ms(settings.own_silence_ms)
    suspected = state.health is Health.SUSPECT and state.cause in (Cause.HUNG, Cause.SILENT)
    return suspected or silent_ms >= settings.notice_ms


def _count_late(state: DirectoryHealth, is_late: bool, now_ms: int, settings: HealthSettings) -> DirectoryHealth:
    """Return the state after a passed probe, with whether late probes recur."""
    is_late = is_late and state.health is not Health.HELD
    late = state.late
    if is_late:
        late = (*(late[:-1] if state.was_late else late), now_ms)[-settings.late_episodes :]
    often = len(late) == settings.late_episodes and now_ms - late[0] < settings.late_window_ms
    lately = bool(late) and now_ms - late[-1] < settings.late_window_ms
    return replace(state, late=late, was_late=is_late, recurring=often or (state.recurring and lately))


def _well(state: DirectoryHealth, event: ProbeSucceeded, now_ms: int, settings: HealthSettings) -> Judgement:
    """Return the judgement online, unless damage was reported lately."""
    damaged_ms = state.damaged_ms
    if damaged_ms is None or now_ms - damaged_ms >= settings.strike_window_ms:
        return Judgement(_enter(replace(state, damaged_ms=None), Health.ONLINE, Cause.NONE, now_ms))
    if event.begun_ms >= damaged_ms or state.cause is Cause.DAMAGE:
        return Judgement(_enter(state, Health.SUSPECT, Cause.DAMAGE, now_ms))
    return Judgement(_enter(state, Health.ONLINE, Cause.NONE, now_ms), Ask.PROBE)


def _failed(
    state: DirectoryHealth, event: ProbeFailed, now_ms: int, settings: HealthSettings, host_fault: bool
) -> Judgement:
    meaning = (in_work if event.own_work else in_probe)(event.errno, event.call)
    if meaning not in (Meaning.MEDIUM, Meaning.ROOM):
        if event.own_work:
            return Judgement(state, Ask.PROBE)
        return _unwatched(replace(state, blockage=None), now_ms, settings)
    state = replace(state, unwatched_ms=None)
    if not event.own_work:
        state = replace(state, blockage=None)
    if meaning is Meaning.ROOM:
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
        confirmed = state.confirmed or cause
        if host_fault and now_ms - state.since_ms < settings.host_settle_ms:
            return Judgement(replace(state, confirmed=confirmed, confirmed_ms=now_ms), Ask.PROBE_SETTLED)
        return Judgement(_enter(state, Health.FAILED, confirmed, now_ms))
    recent = tuple(at for at in state.strikes if now_ms - at < settings.strike_window_ms)
    struck = replace(state, strikes=(*recent[-1:], now_ms))
    if recent and not host_fault:
        return Judgement(_enter(struck, Health.FAILED, Cause.REPEATED_ERRORS, now_ms))
    suspect = replace(_enter(struck, Health.SUSPECT, cause, now_ms), since_ms=now_ms)
    repeated = Cause.REPEATED_ERRORS if recent else None
    return Judgement(replace(suspect, confirmed=repeated, confirmed_ms=now_ms), Ask.PROBE)


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


def _blocked(
    state: DirectoryHealth, event: ProbeBlocked, now_ms: int, settings: HealthSettings, host_fault: bool
) -> Judgement:
    blockage, speaks = observe(state.blockage, event, now_ms, settings.sample_gap_ms)
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
    hung_ms = blockage.silent_device_ms(settings.own_silence_ms)
    if hung_ms >= max(settings.hung_after_ms(blockage), 2 * timeout_ms if host_fault else 0):
        return Health.FAILED, Cause.HUNG
    if settings.held_timeout_ms and blockage.held_ms >= settings.held_timeout_ms:
        return Health.FAILED, Cause.HELD
    silent_ms = blockage.step_ms if _suspected_of_error(state) else blockage.blind_ms
    if silent_ms >= settings.blind_timeout_ms:
        return Health.FAILED, Cause.SILENT
    if _suspected_of_error(state):
        return None, state.cause
    if blockage.held_ms >= timeout_ms or blockage.frozen_ms >= settings.notice_ms:
        return Health.HELD, Cause.HELD
    was_slow = state.health is Health.SLOW
    if hung_ms >= settings.notice_ms and not was_slow:
        return Health.SUSPECT, Cause.HUNG
    if blockage.blind_ms >= timeout_ms and not was_slow:
        return Health.SUSPECT, Cause.SILENT
    if blockage.observed_ms >= timeout_ms and not (hung_ms or blockage.held_ms or blockage.blind_ms):
        return Health.SLOW, Cause.SLOW
    return None, state.cause
