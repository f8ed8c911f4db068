"""Steps about the broker as a whole: when it is given up, and how. Pure.

==========  ====================================================  =====================================================
state       when                                                  then
==========  ====================================================  =====================================================
absent      its process is there                                  starting
starting    registered and unfenced                               serving
serving     in controlled shutdown                                stopping
any of      it must be given up, and may be                       fencing: *cut* what may be cut, *kill*, *fence*; where
these                                                             its process is there 200 ms later *reset*, *destroy*
likewise    it must be, and may not                               crippled, with the reason
serving     its process has ended, unfenced, and no shutdown      fencing: *fence*, so that leaders move at once and not
            was granted                                           when its session times out
fencing     its node is a controller too                          *fence* comes first, as a claim, and *cut* and *kill*
                                                                  only when the metadata show it; crippled where they
                                                                  show that of another broker before it
fencing     all was done                                          fenced
fenced      the metadata show the same epoch unfenced             *fence*, once more: a heartbeat of its own came late
fenced      its process has ended                                 *unreset* where it was reset; ended
fencing     another process is there, or it registered anew       the rest is left; likewise
fencing     a guard before us was about to kill, and the broker   asked about again, and killed; where no broker is
            is there                                              there the rest is done
ended       another process is there                              starting
crippled    the kill did not work                                 again ten seconds later, after three times ten minutes
==========  ====================================================  =====================================================

A fence is asked about again before each step up to the kill: what spoke against it a moment later still counts. Where
two guards want one at the same time the broker with the lower id comes first (:data:`.budget.TURN_MS`), and the other
one sees it in the metadata. That orders them, and does not exclude both. Where it may not be both, since each takes a
voter from the quorum, the metadata log decides: whose fence is recorded first goes on, and the others, whose brokers
unfence themselves by their next heartbeat, see it before theirs.
"""

from dataclasses import replace
from enum import StrEnum
from typing import Final

from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard.budget import FENCE_AGAIN_MS, TURN_MS, TURNS
from kjbod_agent.guard.effects import Cut, Destroy, Effect, Fence, Kill, Move, Reset, Unreset
from kjbod_agent.guard.means import Done, Outcome

STILL_THERE_MS: Final = 200
"""After the kill: a process that is there for longer has a thread in the kernel."""
HEARTBEAT_AGAIN_MS: Final = 500
FENCES_MAX: Final = 2
FENCE_ATTEMPTS_MAX: Final = 20
"""Heartbeats that reached no controller."""
KILL_AGAIN_MS: Final = 10_000
"""After a kill that did not work."""
CLAIM_MS: Final = 1_000
"""So long the metadata may take to show a claim."""
CLAIM_OVER_MS: Final = 5_000
"""So long a claim counts: half of what others wait for it (:data:`.observing.RIVAL_MS`), who may have seen it a second
before its answer."""
CLAIMS_MAX: Final = 3
"""Claims in vain before the broker is left for :data:`.budget.FENCE_AGAIN_MS`."""
KILLS_MAX: Final = 3
"""Kills that did not work before it is left for :data:`.budget.FENCE_AGAIN_MS`."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The broker.

    Attributes:
        state: see the table.
        since_ms: when it entered that.
        reason: why it is given up, or must be and is not, in words.
        pid: of its process; while it is given up and after, of the one that was.
        epoch: of its registration, likewise.
        left: effects of a fence that are still to come.
        fences: heartbeats that fenced it, for this epoch.
        attempts: such that reached no controller.
        begun: whether a disk was cut for it.
        killed_ms: when it was killed; None: it was not.
        kills: how often it was killed in vain.
        not_before_ms: when a fence may begin again after a kill that did not work.
        reset: whether its ports answer with a reset.
        claims: how often its fence was claimed in vain.
        claimed_ms: when its fence was claimed; None: it was not, or by a guard before us, which begins anew.
        claimed_after: offset in the metadata of its fence before that.
        under_way: what is being done now.
    """

    state: State = State.ABSENT
    since_ms: int = 0
    reason: str = ""
    pid: int | None = None
    epoch: int | None = None
    left: tuple[Effect, ...] = ()
    fences: int = 0
    attempts: int = 0
    begun: bool = False
    killed_ms: int | None = None
    kills: int = 0
    not_before_ms: int = 0
    reset: bool = False
    claims: int = 0
    claimed_ms: int | None = None
    claimed_after: int = -1
    under_way: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Knowledge of the broker at one moment.

    Attributes:
        pid: of the process that is there and is this broker; None: none is, or it is not known.
        ended: pid of the process that the kernel said has ended, of those that were this broker.
        epoch: of its registration.
        fenced: whether it is; None where the metadata are not followed.
        stopping: whether it is in controlled shutdown.
        wanted: why it must be given up, in words; None: it need not.
        refusal: why it may not be now; None: it may.
        cuts: directories whose file systems are to be cut with it.
        place: of its id among those of the brokers.
        claims: whether its fence has to be the first one in the metadata: the node is a controller too.
        fenced_at: offset in the metadata of the last record that fenced it; -1: none is known.
        looked: whether somebody has looked by now who the broker is, and the hand was told.
    """

    pid: int | None = None
    ended: int | None = None
    epoch: int | None = None
    fenced: bool | None = None
    stopping: bool = False
    wanted: str | None = None
    refusal: str | None = None
    cuts: tuple[str, ...] = ()
    place: int = 0
    claims: bool = False
    fenced_at: int = -1
    looked: bool = True


def advance(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """The next step about the broker."""
    if now.under_way is not None:
        return Move(now)
    if now.state is State.FENCING:
        return _fencing(now, facts, now_ms)
    if now.state is State.FENCED:
        return _fenced(now, facts, now_ms)
    return _running(now, facts, now_ms)


def came_of(now: Standing, done: Done, now_ms: int) -> Standing:
    """The state after what was under way, which is over."""
    effect, now = now.under_way, replace(now, under_way=None)
    happened = done.happened
    match effect:
        case Kill() if not happened:
            # It lives, and its next heartbeat would undo a fence.
            wait_ms = KILL_AGAIN_MS if now.kills + 1 < KILLS_MAX else FENCE_AGAIN_MS
            now = replace(now, left=(), kills=now.kills + 1, not_before_ms=now_ms + wait_ms)
            return _at(now, State.CRIPPLED, now_ms, f"not killed: {done.reason}")
        case Kill():
            return replace(now, killed_ms=now_ms, left=now.left[1:])
        case Fence() if _is_claim(now) and not happened:
            return _claimed_in_vain(now, done.reason, now_ms)
        case Fence() if _is_claim(now):
            return replace(now, claimed_ms=now_ms, left=now.left[1:])
        case Fence() if not happened:
            over = done.outcome is Outcome.REFUSED or now.attempts + 1 >= FENCE_ATTEMPTS_MAX
            left = now.left[1:] if over else (*now.left[1:], now.left[0])  # the rest first
            return replace(now, attempts=now.attempts + 1, since_ms=now_ms, left=left)
        case Fence():
            return replace(now, fences=now.fences + 1, since_ms=now_ms, left=now.left[1:])
        case Cut():
            return replace(now, begun=now.begun or happened, left=now.left[1:])
        case Reset():
            return replace(now, reset=now.reset or happened, left=now.left[1:])
        case Unreset():
            return replace(now, reset=False)
    return replace(now, left=now.left[1:])


def is_claimed(standing: Standing) -> bool:
    """Whether a fence that the metadata show may be the guard's own claim."""
    asked = standing.under_way is not None and bool(standing.left) and _is_claim(standing)
    return standing.state is State.FENCING and (asked or standing.claimed_ms is not None)


def claimed_at(standing: Standing, fenced_at: int) -> int | None:
    """Offset in the metadata of the fence that was claimed; None: none was, or they do not show it.

    Args:
        standing: of the broker.
        fenced_at: offset of the last record that fenced it.
    """
    shown = standing.claimed_ms is not None and fenced_at > standing.claimed_after
    return fenced_at if shown and standing.state is State.FENCING else None


def lost(standing: Standing) -> str | None:
    """Words for a broker that was given up, has ended without a granted shutdown, or must be given up and is not; None:
    neither."""
    if not standing.reason:
        return None
    match standing.state:
        case State.CRIPPLED:
            return f"the broker cannot go on: {standing.reason}"
        case State.FENCING | State.FENCED | State.ENDED:
            return f"the broker is lost ({standing.reason}): start it, without a disk that has failed"
    return None


def silence(reason: str | None, fenced: bool, stopping: bool) -> str | None:
    """Silence of a broker as far as it speaks for giving it up. One that stops closes its listeners before it has
    written everything back, and of one that is fenced nobody waits for an answer."""
    return None if fenced or stopping else reason


# ------------------------------------------------------------------------------------------------------------- the rows


def _running(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    if now.pid is not None and facts.ended == now.pid and now.state is not State.ENDED:
        return _has_ended(now, facts, now_ms)
    if facts.pid is None:
        if now.state in (State.ABSENT, State.ENDED) or now.pid is not None:
            return Move(now)  # whose end the kernel has not told: nobody could say who holds .lock
        return Move(_at(now, State.ABSENT, now_ms))
    known = facts.pid == now.pid
    epoch = facts.epoch if facts.epoch is not None else now.epoch if known else None
    fences = now.fences if epoch == now.epoch else 0
    if not known:
        now = replace(now, kills=0, claims=0, not_before_ms=0)
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
    refusal = facts.refusal
    if facts.claims and facts.fenced:
        refusal = refusal or "it is fenced already, so that nobody waits for it, and its node is a controller too"
    if facts.claims and facts.stopping:
        refusal = refusal or "it is being shut down, and its node is a controller too"
    if refusal is not None:
        reason = f"{facts.wanted}, and it is not fenced: {refusal}"
        if now.state is not State.CRIPPLED or now.reason != reason:
            now = _at(now, State.CRIPPLED, now_ms, reason)
        return Move(now)
    if now.state is not State.CRIPPLED or now.reason != facts.wanted:
        now = _at(now, State.CRIPPLED, now_ms, facts.wanted)
    wait_ms = now.since_ms + min(facts.place, TURNS) * TURN_MS - now_ms
    if wait_ms > 0:
        return Move(now, again_ms=wait_ms)
    assert now.epoch is not None
    claim = (Fence(now.epoch),) if facts.claims else ()
    plan = (*claim, *map(Cut, facts.cuts), Kill(now.epoch), Fence(now.epoch), Reset(), Destroy())
    now = replace(
        _at(now, State.FENCING, now_ms, facts.wanted),
        left=plan,
        attempts=0,
        killed_ms=None,
        begun=False,
        claimed_ms=None,
        claimed_after=facts.fenced_at,
    )
    return _fencing(now, facts, now_ms)


def _has_ended(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """The process has ended, and nobody here has ended it."""
    granted = facts.stopping or now.state is State.STOPPING
    unfenced = facts.fenced is False or (facts.fenced is None and now.state in (State.SERVING, State.CRIPPLED))
    same = facts.epoch is None or facts.epoch == now.epoch
    if granted or not unfenced or not same or now.epoch is None or now.fences:
        return Move(_at(now, State.ENDED, now_ms))
    reason = "its process has ended, and no shutdown was granted"
    now = replace(_at(now, State.FENCING, now_ms, reason), left=(Fence(now.epoch),), attempts=0)
    return _fencing(now, facts, now_ms)


def _fencing(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    if now.left and _is_another(now, facts):  # after a guard that was killed on the way: this one did nothing
        return Move(replace(now, left=()), again_ms=0)
    if not now.left:
        return _fenced(replace(now, state=State.FENCED), facts, now_ms)
    if isinstance(now.left[0], Kill) and now.killed_ms is not None:  # a guard before us was about to, or has done it
        gone = facts.ended == now.pid
        if not gone and not facts.looked:
            return Move(now)
        if gone or facts.pid is None:  # or what is left of it is no broker any more: a thread in the kernel
            return _pass_over(now)
        now = replace(now, killed_ms=None)
    for row in (_given_up, _claimed, _fenced_by_now, _severed_by_now):
        move = row(now, facts, now_ms)
        if move is not None:
            return move
    return _begin(now)


def _given_up(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """The end of a fence that something speaks against before the kill, or that nothing speaks for any more."""
    if not _is_before_kill(now) and not (_must_claim(now, facts) and _is_claim(now)):
        return None
    # Once a disk was cut for it, that the broker has seen that disk fail speaks against it no more.
    passed = "what spoke for it has passed" if facts.wanted is None and not now.begun else None
    reason = passed if facts.refusal is None else facts.refusal
    if reason is None:
        return None
    if _must_claim(now, facts) and now.claimed_ms is not None:
        return Move(_claimed_in_vain(now, reason, now_ms))
    return Move(_at(replace(now, left=()), State.CRIPPLED, now_ms, f"not fenced: {reason}"))


def _claimed(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """The claim, which a node that is a controller too begins with, and what comes where it does not count."""
    if not _must_claim(now, facts):
        return None
    if _is_claim(now):
        return _begin(now)
    return _unclaimed(now, facts, now_ms) if _is_before_kill(now) else None


def _fenced_by_now(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """A heartbeat that need not be sent, or not yet."""
    if not isinstance(now.left[0], Fence):
        return None
    if facts.epoch is not None and facts.epoch != now.epoch:
        return _pass_over(now)  # another start of it: let it be
    if facts.fenced and facts.epoch == now.epoch:
        if now.claimed_ms is not None:
            now = replace(now, fences=max(now.fences, 1), since_ms=now_ms)
        return _pass_over(now)
    wait_ms = now.since_ms + HEARTBEAT_AGAIN_MS - now_ms if now.attempts else 0
    return Move(now, again_ms=wait_ms) if wait_ms > 0 else None


def _severed_by_now(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """Connections of a process that has ended, or may do so still by itself."""
    if not isinstance(now.left[0], Reset | Destroy):
        return None
    if facts.ended == now.pid:
        return _pass_over(now)
    assert now.killed_ms is not None
    wait_ms = now.killed_ms + STILL_THERE_MS - now_ms
    return Move(now, again_ms=wait_ms) if wait_ms > 0 else None


def _unclaimed(now: Standing, facts: Facts, now_ms: int) -> Move[Standing] | None:
    """The next step where a claim does not count, or not yet; None: it counts."""
    if now.claimed_ms is None:  # by a guard before us, or not at all
        return Move(_at(replace(now, left=()), State.CRIPPLED, now_ms, "not fenced: its fence is to be claimed first"))
    if now_ms - now.claimed_ms > CLAIM_OVER_MS:
        return Move(_claimed_in_vain(now, "its claim is too old", now_ms))
    if facts.fenced_at > now.claimed_after:
        return None
    wait_ms = now.claimed_ms + CLAIM_MS - now_ms
    if wait_ms > 0:
        return Move(now, again_ms=wait_ms)
    return Move(_claimed_in_vain(now, "no controller has recorded its fence", now_ms))


def _claimed_in_vain(now: Standing, reason: str, now_ms: int) -> Standing:
    """The broker is let be for a while: whoever was first has acted by then, and its own heartbeat unfences it."""
    wait_ms = KILL_AGAIN_MS if now.claims + 1 < CLAIMS_MAX else FENCE_AGAIN_MS
    now = replace(now, left=(), claims=now.claims + 1, claimed_ms=None, not_before_ms=now_ms + wait_ms)
    return _at(now, State.CRIPPLED, now_ms, f"not fenced: {reason}")


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


def _begin(now: Standing) -> Move[Standing]:
    return Move(replace(now, under_way=now.left[0]), now.left[0])


def _pass_over(now: Standing) -> Move[Standing]:
    return Move(replace(now, left=now.left[1:]), again_ms=0)


def _must_claim(now: Standing, facts: Facts) -> bool:
    return facts.claims and now.killed_ms is None


def _is_before_kill(now: Standing) -> bool:
    return isinstance(now.left[0], Cut | Kill) and now.killed_ms is None


def _is_claim(now: Standing) -> bool:
    """Whether the next effect is the fence before the kill."""
    return isinstance(now.left[0], Fence) and any(isinstance(one, Kill) for one in now.left)


def _is_another(now: Standing, facts: Facts) -> bool:
    """Whether the process that is there is another one than that which is given up. Pids come again after a reboot: a
    process that has registered anew is another one, too."""
    anew = None is not now.epoch != facts.epoch is not None
    return facts.pid is not None and (facts.pid != now.pid or anew)


def _at(now: Standing, state: State, now_ms: int, reason: str = "") -> Standing:
    return replace(now, state=state, since_ms=now_ms, reason=reason)
