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
any        well, and lists are as they were left                  *promote* → promoting, three times at most
promoting  the controllers have answered                          leading, when the metadata show it
any        well, and nothing is left to be put back               leading
=========  =====================================================  =====================================================

Nothing is begun while the disk is neither slow nor well, while something else is done about the directory, or while the
broker is not there or is being given up. What stands in the journal (:mod:`.journal`) is put back also by a guard that
starts after this one, and where somebody has changed a list since, that is left alone.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Final

from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard.effects import Demote, Effect, Move, Promote
from kjbod_agent.guard.means import Done, Outcome
from kjbod_agent.guard.observing import Key

AGAIN_MS: Final = 10_000
"""From one request to the next: by then the metadata show what came of it."""
DEMOTES_MAX: Final = 2
"""For a partition, while its disk is slow."""
PROMOTES_MAX: Final = 3
ATTEMPTS_MAX: Final = 30
"""Requests in vain, while a disk is slow."""


class State(StrEnum):
    """State of a directory, as far as leadership goes."""

    LEADING = "leading"
    DEMOTING = "demoting"
    DEMOTED = "demoted"
    PROMOTING = "promoting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A directory whose disk is slow, or was.

    Attributes:
        state: see the table.
        since_ms: when it entered that, or the last answer came.
        reason: in words, why the last request was in vain.
        asked: how often each partition was demoted.
        attempts: requests in vain, or to put back.
        under_way: what is being done now.
    """

    state: State = State.LEADING
    since_ms: int = 0
    reason: str = ""
    asked: Mapping[Key, int] = field(default_factory=dict)
    attempts: int = 0
    under_way: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Knowledge of a directory at one moment.

    Attributes:
        path: as configured.
        directory_id: as text; None where nobody could read it.
        slow: whether its disk is slow, and leadership is to move.
        well: whether its disk is well, or slow ones are to be left alone.
        free: whether nothing else is done about the directory, and the broker is there.
        demote: lists of partitions that others may lead, as they are and as they are to be.
        promote: lists as they were of partitions that are as they were left.
    """

    path: str
    directory_id: str | None
    slow: bool = False
    well: bool = True
    free: bool = True
    demote: Mapping[Key, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    promote: Mapping[Key, tuple[int, ...]] = field(default_factory=dict)


def advance(now: Standing, facts: Facts, now_ms: int) -> Move[Standing]:
    """The next step about leadership of a directory."""
    if now.under_way is not None or facts.directory_id is None or not facts.free:
        return Move(now)
    if facts.slow:
        return _demote(now, facts, facts.directory_id, now_ms)
    if facts.well:
        return _promote(now, facts, facts.directory_id, now_ms)
    return Move(now)


def came_of(now: Standing, done: Done, now_ms: int) -> Standing:
    """The state after what was under way, which is over."""
    effect = now.under_way
    happened = done.happened
    now = replace(now, under_way=None, since_ms=now_ms, reason="" if happened else done.reason)
    match effect:
        case Demote() if happened:
            asked = {key: now.asked.get(key, 0) + 1 for key in effect.after}
            return replace(now, state=State.DEMOTED, asked={**now.asked, **asked}, attempts=0)
        case Demote():
            attempts = ATTEMPTS_MAX if done.outcome is Outcome.REFUSED else now.attempts + 1
            return replace(now, state=State.DEMOTED if now.asked else State.LEADING, attempts=attempts)
        case Promote():
            attempts = PROMOTES_MAX if done.outcome is Outcome.REFUSED else now.attempts + 1
            return replace(now, attempts=attempts)
    return now


# ------------------------------------------------------------------------------------------------------------- the rows


def _demote(now: Standing, facts: Facts, directory_id: str, now_ms: int) -> Move[Standing]:
    if now.state is State.PROMOTING:  # slow again before all had come back
        now = Standing(state=State.DEMOTED, since_ms=now.since_ms)
    due = {key: lists for key, lists in facts.demote.items() if now.asked.get(key, 0) < DEMOTES_MAX}
    if not due or now.attempts >= ATTEMPTS_MAX:
        return Move(now)
    if (now.asked or now.attempts) and (wait_ms := now.since_ms + AGAIN_MS - now_ms) > 0:
        return Move(now, again_ms=wait_ms)
    before = {key: lists[0] for key, lists in due.items()}
    after = {key: lists[1] for key, lists in due.items()}
    return _do(now, State.DEMOTING, Demote(facts.path, directory_id, before, after), now_ms)


def _promote(now: Standing, facts: Facts, directory_id: str, now_ms: int) -> Move[Standing]:
    if not facts.promote:
        return Move(now if now == Standing(since_ms=now.since_ms) else Standing(since_ms=now_ms))
    begun = now.attempts if now.state is State.PROMOTING else 0
    if begun >= PROMOTES_MAX:
        return Move(now)
    if begun and (wait_ms := now.since_ms + AGAIN_MS - now_ms) > 0:
        return Move(now, again_ms=wait_ms)
    now = replace(now, attempts=begun, asked={})
    return _do(now, State.PROMOTING, Promote(facts.path, directory_id, facts.promote), now_ms)


def _do(now: Standing, state: State, effect: Effect, now_ms: int) -> Move[Standing]:
    since_ms = now.since_ms if now.state is state else now_ms
    return Move(replace(now, state=state, since_ms=since_ms, under_way=effect), effect)
