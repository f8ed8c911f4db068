"""Settling of the guard's changes: decides when the journal can forget an old replica list. Pure.

The journal keeps an old list until the metadata have shown the guard's change, and then another list: the old one, or a
change by others. If the metadata do not show the guard's change within :data:`UNSEEN_MS`, the controllers did not
accept it. That time begins again after a break in following the metadata.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final

from kjbod_guard.budget import is_back
from kjbod_guard.journal import Demoted, Evicted
from kjbod_guard.observing import Key, Observed

UNSEEN_MS: Final = 10_000
"""Time after which a change that the followed metadata do not show was not made."""
UNFOLLOWED_MS: Final = 3_000
"""Time between two looks from which the metadata count as not followed in between, or the guard stood still."""


class Shown(Enum):
    """State in the metadata of a list that the guard has changed."""

    AS_LEFT = auto()
    RETURNING = auto()
    """The list is as before the change, but its leader is not yet."""
    AS_BEFORE = auto()
    OTHERWISE = auto()
    """Others have changed the list, or its topic is gone."""


def eviction_shown(key: Key, one: Evicted, observed: Observed) -> Shown:
    """Return the state of a partition from which the broker was evicted."""
    now = observed.others.get(key)
    without = tuple(broker for broker in one.before if broker != observed.broker_id)
    if now is not None and now.replicas == without:
        return Shown.AS_LEFT
    if now is not None and set(now.replicas) < set(without):
        return Shown.AS_LEFT  # other brokers were evicted later, and come back earlier
    there = observed.partitions.get(key)
    if there is not None and observed.broker_id in there.removing:
        return Shown.AS_LEFT  # Kafka completes the reassignment when all other replicas are in sync, maybe much later
    return Shown.AS_BEFORE if key in observed.partitions else Shown.OTHERWISE


def demotion_shown(key: Key, one: Demoted, observed: Observed) -> Shown:
    """Return the state of a partition whose list was reordered."""
    now = observed.partitions.get(key)
    if now is not None and now.replicas == one.after:
        return Shown.AS_LEFT
    if now is None or now.replicas != one.before:
        return Shown.OTHERWISE
    return Shown.AS_BEFORE if is_back(now, one.before, observed.broker_id) else Shown.RETURNING


class Settling:
    """Memory of the metadata's states of lists in the journal.

    Args:
        unfollowed_ms: longer times between two looks mean that the metadata were not followed, or the guard stood
            still.
    """

    def __init__(self, unfollowed_ms: int) -> None:
        self._unfollowed_ms = unfollowed_ms
        self._seen: set[Key] = set()
        self._unseen: dict[Key, int] = {}
        """Monotonic time since when the metadata do not show a change, by partition."""
        self._settled_ms = 0

    def begun(self, keys: Iterable[Key]) -> None:
        """Forget earlier observations of lists that are about to be changed."""
        for key in keys:
            self._seen.discard(key)
            self._unseen.pop(key, None)

    def settle(self, shown: Mapping[Key, Shown], now_ms: int) -> tuple[list[Key], list[Key]]:
        """Compare lists with the metadata, which are followed. Return lists that are as before the change, and lists
        that others have changed: the journal needs neither any longer."""
        if now_ms - self._settled_ms > self._unfollowed_ms:
            self._unseen.clear()
        self._settled_ms = now_ms
        over: list[Key] = []
        changed: list[Key] = []
        for key, one in shown.items():
            if one is Shown.AS_LEFT:
                self._seen.add(key)
            elif (key in self._seen and one is not Shown.RETURNING) or self._is_overdue(key, now_ms):
                (changed if one is Shown.OTHERWISE else over).append(key)
        return over, changed

    def _is_overdue(self, key: Key, now_ms: int) -> bool:
        return now_ms - self._unseen.setdefault(key, now_ms) > UNSEEN_MS
