"""Refused requests about partitions: when each is sent again, and when it is left to a person. Pure.

Replica lists are changed by partition. What a controller refuses for one partition (a replica list with a broker that
is cordoned or not registered, a topic that was deleted, somebody else's reassignment) holds up no other. A refused
partition is asked for again after :data:`FIRST_MS`, then after twice as long each time, up to :data:`LAST_MS`; after
:data:`GIVE_UP_MS` it is left to a person, with the controller's own reason. An eviction or a demotion that was not due
for :data:`FORGET_MS` begins anew: that is another incident.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard.observing import Key

FIRST_MS: Final = 1_000
LAST_MS: Final = 60_000
GIVE_UP_MS: Final = 600_000
FORGET_MS: Final = 2 * LAST_MS


@dataclass(frozen=True, slots=True)
class Refused:
    """A partition whose request was refused.

    Attributes:
        means: what was asked: ``evict``, ``restore``, ``demote`` or ``promote``.
        reason: the controller's.
        since_ms: monotonic time of the first refusal.
        due_ms: when it is asked for again.
        wait_ms: the wait before that.
    """

    means: str
    reason: str
    since_ms: int
    due_ms: int
    wait_ms: int

    @property
    def is_left(self) -> bool:
        """Whether it is left to a person."""
        return self.due_ms - self.since_ms >= GIVE_UP_MS


Retries = Mapping[Key, Refused]
"""The partitions that were refused, by topic id and number."""


def after(before: Retries, means: str, asked: Iterable[Key], refused: Mapping[Key, str], now_ms: int) -> Retries:
    """Return the retries after the answers to one request.

    Args:
        before: the retries until now.
        means: what was asked.
        asked: the partitions of the request.
        refused: the reasons for those that were refused.
        now_ms: monotonic time.
    """
    answered = set(asked)
    found = {key: one for key, one in before.items() if key not in answered}
    for key, reason in refused.items():
        known = before.get(key)
        if known is None or known.means != means or _is_over(known, now_ms):
            found[key] = Refused(means, reason, now_ms, now_ms + FIRST_MS, FIRST_MS)
        else:
            wait_ms = min(2 * known.wait_ms, LAST_MS)
            found[key] = replace(known, reason=reason, due_ms=now_ms + wait_ms, wait_ms=wait_ms)
    return found


def due(retries: Retries, means: str, keys: Collection[Key], now_ms: int) -> list[Key]:
    """Return the partitions that may be asked for now."""
    return [
        key
        for key in keys
        if (one := retries.get(key)) is None
        or one.means != means
        or (one.due_ms <= now_ms and not one.is_left)
        or _is_over(one, now_ms)
    ]


def next_ms(retries: Retries, now_ms: int) -> int | None:
    """Return the time until the next partition is due; None: none is."""
    waits = [one.due_ms - now_ms for one in retries.values() if not one.is_left and one.due_ms > now_ms]
    return min(waits, default=None)


def kept(retries: Retries, wanted: Mapping[str, Collection[Key]], now_ms: int) -> Retries:
    """Return the retries that still matter; ``wanted``: partitions that may be asked for, by means."""
    return {key: one for key, one in retries.items() if key in wanted.get(one.means, ()) and not _is_over(one, now_ms)}


def _is_over(one: Refused, now_ms: int) -> bool:
    """Whether the incident in which it was asked for is over. A list is to be put back however long that takes."""
    return one.means in ("evict", "demote") and now_ms - one.due_ms > FORGET_MS
