"""Steps about a log directory whose disk is slow and works: leadership moves off it, and comes back. Pure.

As Cruise Control demotes a disk: the broker goes to the end of the replica lists of what it leads there, and an
election of the preferred leaders makes another replica that is in sync lead. Nothing is copied, and the broker follows.
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
"""From one request to the next: by then the metadata show what came of it."""
DEMOTES_MAX: Final = 2
"""For a partition, while its disk is slow."""
PROMOTES_MAX: Final = 3
"""Requests that the controllers took, and that the metadata do not show."""


class State(StrEnum):
    """State of a directory, as far as leadership goes."""

    LEADING = "leading"
    DEMOTING = "demoting"
    DEMOTED = "demoted"
    PROMOTING = "promoting"


class Standing(Struct, frozen=True, kw_only=True):
    """A directory whose disk is slow, or was.

    Attributes:
        state: see the table.
        since_ms: when it entered that, or the last answer came.
        reason: in words, why the last request was in vain.
        asked: how often each partition was demoted.
        attempts: requests to put back that the controllers took for all partitions.
        taken_ms: when they took one for some at least; None: they have taken none.
        under_way: what is being done now.
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
        directory_id: as text; None where nobody could read it.
        slow: whether its disk is slow, and leadership is to move.
        well: whether its disk is healthy, or slow disks are to be left unchanged.
        free: whether nothing else is done about the directory, and the broker is there.
        demote: lists of partitions that others may lead now, as they are and as they are to be.
        promote: lists as they were of partitions that are as they were left, and may be put back now.
        later: how many more may be put back later.
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
    """Return the state after the effect that was under way, which is over; ``refused``: the partitions for which it did
    not work."""
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
    if now.state is State.PROMOTING:  # slow again before all had come back
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
