"""Steps about the broker as a whole: when it is fenced, and how. Pure.

==========  ====================================================  =====================================================
state       when                                                  then
==========  ====================================================  =====================================================
absent      its process is there                                  starting
starting    registered and unfenced                               serving
serving     in controlled shutdown                                stopping
any of      it must be fenced, and may be, and this guard's       fencing: *kill*, *fence*; when the metadata show the
these       record is first (:mod:`.suspects`)                    fence, *cut* its failed disks, so that the process can
..                                                                end; where it is there 200 ms later *reset*, *destroy*
likewise    it must be, and may not, or not yet                   stuck, with the reason
serving     its process has ended, unfenced, no shutdown was      fencing: *fence*, so that leaders move at once and not
..          granted, and the picture of the metadata is whole     when its session times out
fencing     all was done                                          fenced
fenced      the metadata show the same epoch unfenced             *fence*, once more: a heartbeat of its own came late
fenced      its process has ended                                 *unreset* where it was reset; ended
fencing     another process is there, or it registered anew       the rest is left; likewise
fencing     a guard before us was about to kill, and the broker   asked about again, and killed; where no broker is
..          is there                                              there the rest is done
ended       another process is there                              starting
stuck       the kill did not work                                 again ten seconds later, after three times ten minutes
==========  ====================================================  =====================================================

A fence is asked about again right before the kill. Two guards never fence two brokers at once: each needs its record in
the metadata log, and to be first there. A node that is a controller too is a voter of the quorum as well; it is fenced
only while the other voters have a majority (:mod:`.majority`).
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod_guard.actions import Done, Outcome
from kjbod_guard.budget import FENCE_AGAIN_MS
from kjbod_guard.effects import Cut, Destroy, Effect, Fence, Kill, Move, Reset, Unreset

STILL_THERE_MS: Final = 200
"""Time after the kill. A process that still exists then has a thread that is stuck in the kernel."""
SHOWN_MS: Final = 500
"""Maximum time until the metadata show a fence. After that the guard leaves the broker's disks unchanged."""
HEARTBEAT_AGAIN_MS: Final = 500
FENCES_MAX: Final = 2
FENCE_ATTEMPTS_MAX: Final = 20
"""Maximum number of fencing heartbeats that reach no controller."""
KILL_AGAIN_MS: Final = 10_000
"""Time from a kill that failed to the next kill."""
KILLS_MAX: Final = 3
"""Failed kills after which the guard waits for :data:`.budget.FENCE_AGAIN_MS`."""


class State(StrEnum):
    """State of the broker, as far as the guard is concerned with it."""

    ABSENT = "absent"
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    CRIPPLED = "crippled"
    FENCING = "fencing"
    FENCED = "fenced"
    ENDED = "ended"


class Standing(Struct, frozen=True, kw_only=True):
    """State of the broker on the escalation.

    Attributes:
        state: see the table; ``crippled`` is a broker that is stuck.
        since_ms: when the broker entered that state.
        reason: why the broker is fenced, or must be fenced and is not, in words.
        pid: of the broker's process; from the fence on, of the process that was fenced.
        epoch: of the broker's registration, likewise.
        left: effects of a fence that are still to come.
        fences: heartbeats that fenced it, for this epoch.
        attempts: fencing heartbeats that reached no controller.
        killed_ms: when it was killed; None: it was not.
        kills: how often it was killed in vain.
        not_before_ms: when a fence may begin again after a kill that did not work.
        reset: whether its ports answer with a reset.
        under_way: the effect that is being carried out.
    """

    state: State = State.ABSENT
    since_ms: int = 0
    reason: str = ""
    pid: int | None = None
    epoch: int | None = None
    left: tuple[Effect, ...] = ()
    fences: int = 0
    attempts: int = 0
    killed_ms: int | None = None
    kills: int = 0
    not_before_ms: int = 0
    reset: bool = False
    under_way: Effect | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """Knowledge of the broker at one moment.

    Attributes:
        pid: of this broker's process; None: no process runs, or it is not known.
        ended: pid of this broker's process that has ended, as the kernel reported.
        epoch: of its registration.
        fenced: whether the broker is fenced; None: the metadata are not followed.
        incomplete: whether the picture of the metadata is incomplete, so that nothing may begin.
        stopping: whether the broker is in controlled shutdown.
        wanted: why the broker must be fenced, in words; None: no fence is needed.
        refusal: why the broker may not be fenced now; None: it may be.
        may: whether this guard's record is in the metadata, and young enough.
        cuts: failed directories whose file systems may be shut down once the broker is fenced.
        not_cut: why a shutdown may not begin now, by path, in words.
        looked: whether the guard has looked for the broker's process, and has told the privileged helper.
    """

    pid: int | None = None
    ended: int | None = None
    epoch: int | None = None
    fenced: bool | None = None
    incomplete: bool = False
    stopping: bool = False
    wanted: str | None = None
    refusal: str | None = None
    may: bool = True
    cuts: tuple[str, ...] = ()
    not_cut: Mapping[str, str] = field(default_factory=dict)
    looked: bool = True


def advance(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """Return the next step about the broker."""
    if now.under_way is not None:
        return Move(now)
    if now.state is State.FENCING:
        return _fencing(now, facts, now_ms)
    if now.state is State.FENCED:
        return _fenced(now, facts, now_ms)
    return _running(now, facts, now_ms)


def came_of(now: Standing, done: Done, now_ms: int) -> Standing:
    """Return the state after the effect in progress has ended."""
    effect, now = now.under_way, replace(now, under_way=None)
    happened = done.happened
    match effect:
        case Kill() if not happened:
            # The broker lives, and its next heartbeat would undo a fence.
            wait_ms = KILL_AGAIN_MS if now.kills + 1 < KILLS_MAX else FENCE_AGAIN_MS
            now = replace(now, left=(), kills=now.kills + 1, not_before_ms=now_ms + wait_ms)
            return _at(now, State.CRIPPLED, now_ms, f"not killed: {done.reason}")
        case Kill():
            return replace(now, killed_ms=now_ms, since_ms=now_ms, left=now.left[1:])
        case Fence() if not happened:
            over = done.outcome is Outcome.REFUSED or now.attempts + 1 >= FENCE_ATTEMPTS_MAX
            left = now.left[1:] if over else (*now.left[1:], now.left[0])  # the rest first
            return replace(now, attempts=now.attempts + 1, since_ms=now_ms, left=left)
        case Fence():
            return replace(now, fences=now.fences + 1, since_ms=now_ms, left=now.left[1:])
        case Reset():
            return replace(now, reset=now.reset or happened, left=now.left[1:])
        case Unreset():
            return replace(now, reset=False)
    return replace(now, left=now.left[1:])


def lost(standing: Standing) -> str | None:
    """Return a line about a broker that was fenced, ended without a granted shutdown, or must be fenced and is not;
    None: there is no such problem."""
    if not standing.reason:
        return None
    match standing.state:
        case State.CRIPPLED:
            return f"the broker is stuck: {standing.reason}"
        case State.FENCING | State.FENCED | State.ENDED:
            return f"the broker is lost ({standing.reason}): start it, without a disk that has failed"
    return None


def is_killed(standing: Standing) -> bool:
    """Whether this guard has killed the broker that is being fenced."""
    return standing.state in (State.FENCING, State.FENCED) and standing.killed_ms is not None


def silence(reason: str | None, fenced: bool, stopping: bool) -> str | None:
    """Return the silence of a broker as a reason for a fence; None: it is no reason. A broker that stops closes its
    listeners before its last writes. Nobody waits for answers of a fenced broker."""
    return None if fenced or stopping else reason


# ------------------------------------------------------------------------------------------------------------- the rows


def _running(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    if now.pid is not None and facts.ended == now.pid and now.state is not State.ENDED:
        return _has_ended(now, facts, now_ms)
    if facts.pid is None:
        if now.state in (State.ABSENT, State.ENDED) or now.pid is not None:
            return Move(now)  # the kernel has not reported its end, so only the holder of .lock is not known
        return Move(_at(now, State.ABSENT, now_ms))
    known = facts.pid == now.pid
    epoch = facts.epoch if facts.epoch is not None else now.epoch if known else None
    fences = now.fences if epoch == now.epoch else 0
    if not known:
        now = replace(now, kills=0, not_before_ms=0)
    now = replace(now, pid=facts.pid, epoch=epoch, fences=fences)
    if facts.wanted is not None and epoch is not None and not (now.killed_ms is not None and known):
        return _must_go(now, facts, now_ms)
    killed = now.killed_ms if known else None
    state = State.STOPPING if facts.stopping else State.STARTING if facts.fenced is not False else State.SERVING
    if facts.fenced is None and known and now.state in (State.SERVING, State.STOPPING):
        state = now.state  # the metadata are silent for a while
    now = replace(now, killed_ms=killed)
    return Move(now if now.state is state else _at(now, state, now_ms))


def _must_go(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    assert facts.wanted is not None
    if now_ms < now.not_before_ms:
        return Move(now, again_ms=now.not_before_ms - now_ms)
    if facts.refusal is not None:
        reason = f"{facts.wanted}, and it is not fenced: {facts.refusal}"
        if now.state is not State.CRIPPLED or now.reason != reason:
            now = _at(now, State.CRIPPLED, now_ms, reason)
        return Move(now)
    if now.state is not State.CRIPPLED or now.reason != facts.wanted:
        now = _at(now, State.CRIPPLED, now_ms, facts.wanted)
    if not facts.may:
        return Move(now)
    assert now.epoch is not None
    plan = (Kill(now.epoch), Fence(now.epoch), *map(Cut, facts.cuts), Reset(), Destroy())
    now = replace(_at(now, State.FENCING, now_ms, facts.wanted), left=plan, attempts=0, killed_ms=None)
    return _fencing(now, facts, now_ms)


def _has_ended(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """Return the next step after the broker's process has ended without the guard."""
    granted = facts.stopping or now.state is State.STOPPING
    unfenced = facts.fenced is False or (facts.fenced is None and now.state in (State.SERVING, State.CRIPPLED))
    same = facts.epoch is None or facts.epoch == now.epoch
    if granted or facts.incomplete or not unfenced or not same or now.epoch is None or now.fences:
        return Move(_at(now, State.ENDED, now_ms))
    reason = "its process has ended, and no shutdown was granted"
    now = replace(_at(now, State.FENCING, now_ms, reason), left=(Fence(now.epoch),), attempts=0)
    return _fencing(now, facts, now_ms)


def _fencing(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    # An earlier guard was killed during the fence; the process that runs now is not to be fenced.
    if now.left and _is_another(now, facts):
        return Move(replace(now, left=()), again_ms=0)
    if not now.left:
        return _fenced(replace(now, state=State.FENCED), facts, now_ms)
    if isinstance(now.left[0], Kill) and now.killed_ms is not None:  # an earlier guard has killed it, or was about to
        gone = facts.ended == now.pid
        if not gone and not facts.looked:
            return Move(now)
        if gone or facts.pid is None:  # or only a thread in the kernel is left of the process
            return _pass_over(now)
        now = replace(now, killed_ms=None)
    for row in (_given_up, _fenced_by_now, _cut_by_now, _severed_by_now):
        move = row(now, facts, now_ms)
        if move is not None:
            return move
    return Move(replace(now, under_way=now.left[0]), now.left[0])


def _given_up(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """Cancel a fence before the kill, if a rule forbids the fence or its reason has passed."""
    if not isinstance(now.left[0], Kill) or now.killed_ms is not None:
        return None
    passed = "the reason for it has passed" if facts.wanted is None else None
    behind = None if facts.may else "its own record is not in the metadata log"
    reason = facts.refusal or passed or behind
    if reason is None:
        return None
    return Move(_at(replace(now, left=()), State.CRIPPLED, now_ms, f"not fenced: {reason}"))


def _fenced_by_now(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """Skip or delay a fencing heartbeat that is not needed, or not yet."""
    if not isinstance(now.left[0], Fence):
        return None
    if facts.epoch is not None and facts.epoch != now.epoch:
        return _pass_over(now)  # the broker has started again
    if facts.fenced and facts.epoch == now.epoch:
        return _pass_over(now)
    wait_ms = now.since_ms + HEARTBEAT_AGAIN_MS - now_ms if now.attempts else 0
    return Move(now, again_ms=wait_ms) if wait_ms > 0 else None


def _cut_by_now(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """Skip or delay a file-system shutdown: the committed metadata must show the fence first."""
    effect = now.left[0]
    if not isinstance(effect, Cut):
        return None
    if facts.ended == now.pid or effect.path not in facts.cuts:
        return _pass_over(now)
    if facts.fenced and facts.epoch == now.epoch and effect.path not in facts.not_cut:
        return None
    wait_ms = now.since_ms + SHOWN_MS - now_ms
    return Move(now, again_ms=wait_ms) if wait_ms > 0 else _pass_over(now)


def _severed_by_now(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """Skip or delay the reset of connections: the process has ended, or may still end by itself."""
    if not isinstance(now.left[0], Reset | Destroy):
        return None
    if facts.ended == now.pid:
        return _pass_over(now)
    assert now.killed_ms is not None
    wait_ms = now.killed_ms + STILL_THERE_MS - now_ms
    return Move(now, again_ms=wait_ms) if wait_ms > 0 else None


def _fenced(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    another = _is_another(now, facts)
    late = facts.epoch == now.epoch and facts.fenced is False and not facts.stopping
    if late and not another and 0 < now.fences < FENCES_MAX:
        wait_ms = now.since_ms + HEARTBEAT_AGAIN_MS - now_ms
        if wait_ms > 0:
            return Move(now, again_ms=wait_ms)
        assert now.epoch is not None
        return _fencing(replace(_at(now, State.FENCING, now_ms, now.reason), left=(Fence(now.epoch),)), facts, now_ms)
    if facts.ended == now.pid or another:
        if now.reset:
            effect = Unreset()
            return Move(replace(now, under_way=effect), effect)
        now = replace(now, killed_ms=None) if another else now
        return Move(_at(now, State.ENDED, now_ms, now.reason))
    return Move(now)


def _pass_over(now: Standing) -> Move[Standing]:
    return Move(replace(now, left=now.left[1:]), again_ms=0)


def _is_another(now: Standing, facts: Facts) -> bool:
    """Whether the running process is not the fenced process. Pids repeat after a reboot, so a process with a new
    registration is also another process."""
    anew = None is not now.epoch != facts.epoch is not None
    return facts.pid is not None and (facts.pid != now.pid or anew)


def _at(now: Standing, state: State, now_ms: int, reason: str = "") -> Standing:
    return replace(now, state=state, since_ms=now_ms, reason=reason)
