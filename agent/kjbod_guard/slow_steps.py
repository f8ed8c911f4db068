"""Steps about a log directory whose disk is slow but works: leadership moves away, and comes back. Pure.

The guard demotes a disk as Cruise Control does. It moves the broker to the end of the replica lists of partitions that
the broker leads there. Then an election of the preferred leaders makes another in-sync replica lead. Nothing is copied,
and the broker follows.
The lists are put back when the verdict is online again, which takes three quick probes in a row.

=========  =====================================================  =====================================================
state      when                                                   then
=========  =====================================================  =====================================================
leading    slow, and partitions there may be led by others        *demote* → demoting
demoting   the controllers have answered                          demoted
demoted    slow, and partitions there may be led by others, ten   *demote* → demoting: twice for a partition, so that
           seconds later                                          two slow disks do not hand it to each other for ever
any        healthy, and lists are as they were left               *promote* → promoting, three times at most
promoting  the controllers have answered                          leading, when the metadata show it
any        healthy, and nothing is left to be put back            leading
=========  =====================================================  =====================================================

Partitions that the controllers refused are asked for again later (:mod:`.retries`); they hold up no other.

Nothing begins while the disk is neither slow nor healthy, while something else is done about the directory, or while
the broker is not there or is being fenced. A guard that starts after this one puts back what is in the journal
(:mod:`.journal`). A list that somebody has changed since is left unchanged.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod_guard.actions import Done
from kjbod_guard.effects import Demote, Effect, Move, Promote
from kjbod_guard.observing import Key

AGAIN_MS: Final = 10_000
"""Time from one request to the next. By then the metadata show the result of the first."""
DEMOTES_MAX: Final = 2
"""Maximum number of demotions of a partition while its disk is slow."""
PROMOTES_MAX: Final = 3
"""Maximum number of requests that the controllers accepted, but the metadata do not show."""


class State(StrEnum):
    """State of the leadership of a directory."""

    LEADING = "leading"
    DEMOTING = "demoting"
    DEMOTED = "demoted"
    PROMOTING = "promoting"


class Standing(Struct, frozen=True, kw_only=True):
    """State of a directory whose disk is slow, or was slow.

    Attributes:
        state: see the table.
        since_ms: when the directory entered that state, or got the last answer.
        reason: in words, why the last request failed.
        asked: how often each partition was demoted.
        attempts: requests to restore lists that the controllers accepted for all partitions.
        taken_ms: when the controllers last accepted a request for at least some partitions; None: never.
        under_way: the effect that is being carried out.
    """

    state: State = State.LEADING
    since_ms: int = 0
    reason: str = ""
    asked: Mapping[Key, int] = field(default_factory=dict)
    attempts: int = 0
    taken_ms: int | None = None
    under_way: Effect | None = None


class Facts(Struct, frozen=True, kw_only=True):
    """Knowledge of a directory at one moment.

    Attributes:
        path: as configured.
        directory_id: as text; None: not known.
        slow: whether its disk is slow, and leadership is to move.
        well: whether its disk is healthy, or slow disks are to be left unchanged.
        free: whether nothing else is done about the directory, and the broker is there.
        demote: present and new lists of partitions that other brokers may lead now.
        promote: original lists of partitions that are unchanged since the demotion, and may be restored now.
        later: number of partitions that may be restored later.
    """

    path: str
    directory_id: str | None
    slow: bool = False
    well: bool = True
    free: bool = True
    demote: Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    promote: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)
    later: int = 0


def advance(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """Return the next step about the leadership of a directory."""
    if now.under_way is not None or facts.directory_id is None or not facts.free:
        return Move(now)
    if facts.slow:
        return _demote(now, facts, facts.directory_id, now_ms)
    if facts.well:
        return _promote(now, facts, facts.directory_id, now_ms)
    return Move(now)


def came_of(now: Standing, done: Done, now_ms: int, refused: Collection[Key] = ()) -> Standing:
    """Return the state after the effect in progress has ended; ``refused``: the partitions for which it failed."""
    effect = now.under_way
    happened = done.happened
    now = replace(now, under_way=None, since_ms=now_ms, reason=done.reason)
    match effect:
        case Demote() if happened:
            asked = {key: now.asked.get(key, 0) + 1 for key in effect.after if key not in refused}
            return replace(now, state=State.DEMOTED, asked={**now.asked, **asked})
        case Demote():
            return replace(now, state=State.DEMOTED if now.asked else State.LEADING)
        case Promote():
            taken_ms = now_ms if happened else now.taken_ms
            return replace(now, attempts=now.attempts + (happened and not refused), taken_ms=taken_ms)
    return now


# ------------------------------------------------------------------------------------------------------------- the rows


def _demote(now: Standing, facts: Facts, directory_id: str, now_ms: int) -> Move[Standing]:
    if now.state is State.PROMOTING:  # slow again before all lists were restored
        now = Standing(state=State.DEMOTED, since_ms=now.since_ms)
    due = {key: lists for key, lists in facts.demote.items() if now.asked.get(key, 0) < DEMOTES_MAX}
    if not due:
        return Move(now)
    if now.asked and (wait_ms := now.since_ms + AGAIN_MS - now_ms) > 0:
        return Move(now, again_ms=wait_ms)
    before = {key: lists[0] for key, lists in due.items()}
    after = {key: lists[1] for key, lists in due.items()}
    return _do(now, State.DEMOTING, Demote(facts.path, directory_id, before, after), now_ms)


def _promote(now: Standing, facts: Facts, directory_id: str, now_ms: int) -> Move[Standing]:
    if not facts.promote:
        over = not facts.later and now != Standing(since_ms=now.since_ms)
        return Move(Standing(since_ms=now_ms) if over else now)
    begun = now.attempts if now.state is State.PROMOTING else 0
    if begun >= PROMOTES_MAX:
        return Move(now)
    taken_ms = now.taken_ms if now.state is State.PROMOTING else None
    if taken_ms is not None and (wait_ms := taken_ms + AGAIN_MS - now_ms) > 0:
        return Move(now, again_ms=wait_ms)
    now = replace(now, attempts=begun, taken_ms=taken_ms, asked={})
    return _do(now, State.PROMOTING, Promote(facts.path, directory_id, facts.promote), now_ms)


def _do(now: Standing, state: State, effect: Effect, now_ms: int) -> Move[Standing]:
    since_ms = now.since_ms if now.state is state else now_ms
    return Move(replace(now, state=state, since_ms=since_ms, under_way=effect), effect)
