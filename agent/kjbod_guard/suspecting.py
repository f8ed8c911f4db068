"""Steps about this guard's own record of suspected directories (:mod:`.suspects`). Pure.

=============  ==========================================================  =============================================
record         when                                                        then
=============  ==========================================================  =============================================
not there      a directory has failed, or the broker is to be fenced       *suspect*: written
there          other directories, or another registration of the broker    *suspect*: written again
there          an act is due, and it is older than ``VALID_MS``            *suspect*: written again, and last in order
there          no directory has failed                                     *trust*: removed
asked for      the metadata do not show it within :data:`SHOWN_MS`         *suspect* once more
asked for      the controllers refuse it, or do not answer                 again after 1 s, 2 s and so on up to 60 s
likewise       they did not answer, and do so again                        at once (:func:`at_once`)
=============  ==========================================================  =============================================

An act needs the record in the metadata (:func:`offset_of`): a guard without the right to write it does nothing that
cannot be undone. A record that an earlier run of this guard left behind is replaced or removed.
"""

from collections.abc import Collection
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard.actions import Done
from kjbod_guard.effects import Effect, Move, Suspect, Trust
from kjbod_guard.suspects import VALID_MS, Suspects

SHOWN_MS: Final = 2_000
"""How long the metadata may take to show a record that a controller has answered for."""
FIRST_MS: Final = 1_000
LAST_MS: Final = 60_000


class Wanted(Struct, frozen=True, kw_only=True):
    """Record that this guard wants in the metadata.

    Attributes:
        epoch: of the broker's registration; None: no registration, so nothing is written.
        directories: ids of the suspected directories.
        whole: whether the whole broker is suspected, because it is to be fenced.
        renew: whether an act is due, and needs a record that counts.
    """

    epoch: int | None = None
    directories: frozenset[Uuid] = frozenset()
    whole: bool = False
    renew: bool = False


NOTHING_WANTED: Final = Wanted()


class Standing(Struct, frozen=True, kw_only=True):
    """State of this guard's record.

    Attributes:
        run: unique name of this run of the guard, part of each mark.
        count: number of records requested.
        mark: of the last requested record; empty: the last request was to remove the record.
        asked_ms: monotonic time of the last request.
        answered: whether a controller has accepted the last request, or may have.
        due_ms: when a request may be sent again after one that failed.
        wait_ms: length of that wait.
        reason: why the last request failed, in words.
        under_way: the request that is not answered.
    """

    run: str
    count: int = 0
    mark: str = ""
    asked_ms: int = 0
    answered: bool = False
    due_ms: int = 0
    wait_ms: int = 0
    reason: str = ""
    under_way: Effect | None = None


def advance(now: Standing, wanted: Wanted, shown: Suspects | None, now_ms: int) -> Move[Standing]:
    """Return the next step about the record.

    Args:
        now: the state.
        wanted: the record as it should be.
        shown: the record as the metadata, which are followed, show it.
        now_ms: monotonic time.
    """
    if now.under_way is not None:
        return Move(now)
    if not wanted.whole and not wanted.directories:
        return Move(now) if shown is None else _remove(now, now_ms)
    if wanted.epoch is None:
        return Move(now)
    if shown is not None and _is(shown, now, wanted) and not (wanted.renew and now_ms - now.asked_ms > VALID_MS):
        return Move(now)
    is_shown = shown is None if not now.mark else shown is not None and shown.mark == now.mark
    if now.answered and not is_shown and now_ms - now.asked_ms < SHOWN_MS:
        return Move(now, again_ms=now.asked_ms + SHOWN_MS - now_ms)
    ids = () if wanted.whole else tuple(sorted(map(str, wanted.directories)))
    mark = f"{now.run}-{now.count + 1}"
    move = _ask(now, Suspect(wanted.epoch, ids, mark), now_ms)
    if move.effect is None:
        return move
    return replace(move, standing=replace(move.standing, count=now.count + 1, mark=mark, asked_ms=now_ms))


def came_of(now: Standing, done: Done, now_ms: int) -> Standing:
    """Return the state after the request in progress has ended."""
    now = replace(now, under_way=None, answered=done.happened, reason="" if done.happened else done.reason)
    if done.happened:
        return replace(now, wait_ms=0, due_ms=0)
    wait_ms = min(max(2 * now.wait_ms, FIRST_MS), LAST_MS)
    return replace(now, wait_ms=wait_ms, due_ms=now_ms + wait_ms)


def at_once(now: Standing, since_ms: int) -> Standing:
    """Return the state after controllers answer again that were silent since ``since_ms``. A request that failed during
    the silence need not wait."""
    return replace(now, due_ms=0) if now.due_ms - now.wait_ms >= since_ms else now


def offset_of(
    now: Standing, shown: Suspects | None, epoch: int | None, directories: Collection[Uuid] | None, now_ms: int
) -> int | None:
    """Return the offset of this guard's own record; None: it has none that counts for these directories.

    Args:
        now: the state.
        shown: the record as the metadata show it.
        epoch: of the broker's registration.
        directories: target of the action; None: the broker.
        now_ms: monotonic time.
    """
    if shown is None or not now.mark or shown.mark != now.mark or shown.epoch != epoch or shown.offset < 0:
        return None
    if now_ms - now.asked_ms > VALID_MS:
        return None
    covers = not shown.directories if directories is None else all(map(shown.has, directories))
    return shown.offset if covers else None


def has_written(now: Standing, shown: Suspects) -> bool:
    """Whether this run of the guard has written a record."""
    return shown.mark.startswith(f"{now.run}-")


def _is(shown: Suspects, now: Standing, wanted: Wanted) -> bool:
    """Whether the record is as wanted. A record from a snapshot has no place in the order."""
    directories = frozenset() if wanted.whole else wanted.directories
    ours = shown.mark == now.mark and (shown.offset >= 0 or not wanted.renew)
    return ours and shown.epoch == wanted.epoch and shown.directories == directories


def _remove(now: Standing, now_ms: int) -> Move[Standing]:
    if now.answered and not now.mark and now_ms - now.asked_ms < SHOWN_MS:
        return Move(now, again_ms=now.asked_ms + SHOWN_MS - now_ms)
    move = _ask(now, Trust(), now_ms)
    return move if move.effect is None else replace(move, standing=replace(move.standing, mark="", asked_ms=now_ms))


def _ask(now: Standing, effect: Effect, now_ms: int) -> Move[Standing]:
    if now_ms < now.due_ms:
        return Move(now, again_ms=now.due_ms - now_ms)
    return Move(replace(now, under_way=effect), effect)
