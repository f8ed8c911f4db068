"""Retries of refused requests about partitions: when to send each again, and when to leave it to an operator. Pure.

Replica lists are changed by partition. What a controller refuses for one partition (a replica list with a broker that
is cordoned or not registered, a topic that was deleted, somebody else's reassignment) holds up no other. A refused
partition is asked for again after :data:`FIRST_MS`, then after twice as long each time, up to :data:`LAST_MS`, and at
once when a broker of its list is cordoned, uncordoned, registered or unregistered, or when controllers that did not
answer do so again.

Requests to restore a list never end: they stop when the controllers accept the list, or a person changes it. An
eviction or a
demotion is left to a person after :data:`GIVE_UP_MS`, with the controller's own reason; a partition that was not due
for :data:`FORGET_MS` begins again, as a new incident.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kjbod_guard.observing import Key

FIRST_MS: Final = 1_000
LAST_MS: Final = 60_000
GIVE_UP_MS: Final = 600_000
FORGET_MS: Final = 2 * LAST_MS
_BEGINS: Final = ("evict", "demote")
"""Actions that change lists; the other actions restore lists."""


class Refused(Struct, frozen=True):
    """A partition whose request was refused.

    Attributes:
        means: what was asked: ``evict``, ``restore``, ``demote`` or ``promote``.
        reason: of the controller.
        since_ms: monotonic time of the first refusal.
        due_ms: when the request is sent again.
        wait_ms: time from the last refusal to ``due_ms``.
        brokers: of its replica list, as it was before the guard changed it.
        barred: the brokers among them for which a controller may have refused the list (:func:`.budget.barred`).
    """

    means: str
    reason: str
    since_ms: int
    due_ms: int
    wait_ms: int
    brokers: tuple[int, ...] = ()
    barred: frozenset[int] = frozenset()

    @property
    def is_left(self) -> bool:
        """Whether the partition is left to a person."""
        return self.means in _BEGINS and self.due_ms - self.since_ms >= GIVE_UP_MS


Retries = Mapping[Key, Refused]
"""The partitions that were refused, by topic id and number."""
BarredOf = Callable[[tuple[int, ...]], frozenset[int]]


def after(
    before: Retries,
    means: str,
    asked: Mapping[Key, tuple[int, ...]],
    refused: Mapping[Key, str],
    now_ms: int,
    barred: BarredOf,
) -> Retries:
    """Return the retries after the answers to one request.

    Args:
        before: the retries until now.
        means: what was asked.
        asked: the partitions of the request, with their lists.
        refused: the reasons for those that were refused.
        now_ms: monotonic time.
        barred: tells the brokers of a list for which a controller may refuse the list at this moment.
    """
    found = {key: one for key, one in before.items() if key not in asked}
    for key, reason in refused.items():
        known, brokers = before.get(key), asked[key]
        its = barred(brokers)
        if known is None or known.means != means or _is_over(known, now_ms):
            found[key] = Refused(means, reason, now_ms, now_ms + FIRST_MS, FIRST_MS, brokers, its)
        else:
            wait_ms = min(2 * known.wait_ms, LAST_MS)
            due_ms = now_ms + wait_ms
            found[key] = replace(known, reason=reason, due_ms=due_ms, wait_ms=wait_ms, brokers=brokers, barred=its)
    return found


def due(retries: Retries, means: str, keys: Collection[Key], now_ms: int) -> list[Key]:
    """Return the partitions whose request may be sent now."""
    return [
        key
        for key in keys
        if (one := retries.get(key)) is None
        or one.means != means
        or (one.due_ms <= now_ms and not one.is_left)
        or _is_over(one, now_ms)
    ]


def at_once(retries: Retries, since_ms: int, now_ms: int) -> Retries:
    """Return the retries after controllers answer again that were silent since ``since_ms``. Retries that failed during
    the silence are due now, except retries that are left to a person."""
    return {
        key: replace(one, due_ms=min(one.due_ms, now_ms))
        if one.due_ms - one.wait_ms >= since_ms and not one.is_left
        else one
        for key, one in retries.items()
    }


def next_ms(retries: Retries, now_ms: int) -> int | None:
    """Return the time until the next partition is due; None: none is."""
    waits = [one.due_ms - now_ms for one in retries.values() if not one.is_left and one.due_ms > now_ms]
    return min(waits, default=None)


def kept(retries: Retries, wanted: Mapping[str, Collection[Key]], now_ms: int, barred: BarredOf) -> Retries:
    """Return the retries that still matter. A partition that is not among them is due at once.

    Args:
        retries: the retries until now.
        wanted: partitions that may be asked for, by means.
        now_ms: monotonic time.
        barred: as of :func:`after`. A refusal counts only while the same brokers are barred.
    """
    return {
        key: one
        for key, one in retries.items()
        if key in wanted.get(one.means, ()) and not _is_over(one, now_ms) and barred(one.brokers) == one.barred
    }


def _is_over(one: Refused, now_ms: int) -> bool:
    """Whether the incident of the refusal is over. Retries that restore a list never end."""
    return one.means in _BEGINS and now_ms - one.due_ms > FORGET_MS
