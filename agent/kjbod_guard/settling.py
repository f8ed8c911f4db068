"""Settling of what the guard has changed, or was about to: when a replica list need not be written down any more. Pure.

It stands in the journal until the metadata have shown it as it was left, and then another one: as it was before, or
somebody else's. Where they have not shown it as it was left for :data:`UNSEEN_MS`, the request was not taken; that time
begins anew where the metadata were not followed meanwhile.
"""

from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import Final

from kjbod_guard.budget import is_back
from kjbod_guard.journal import Demoted, Evicted
from kjbod_guard.observing import Key, Observed

UNSEEN_MS: Final = 10_000
"""A change that metadata which are followed have not shown for so long was not made."""
UNFOLLOWED_MS: Final = 3_000
"""Between two looks: the metadata were not followed meanwhile, or the guard stood still."""


class Shown(Enum):
    """State of a list that was changed, as the metadata show it."""

    AS_LEFT = auto()
    RETURNING = auto()
    """As it was before, and its leader not yet."""
    AS_BEFORE = auto()
    OTHERWISE = auto()
    """Changed by somebody else, or its topic is gone."""


def eviction_shown(key: Key, one: Evicted, observed: Observed) -> Shown:
    """State of a partition that the broker was taken out of."""
    now = observed.others.get(key)
    without = tuple(broker for broker in one.before if broker != observed.broker_id)
    if now is not None and now.replicas == without:
        return Shown.AS_LEFT
    if now is not None and set(now.replicas) < set(without):
        return Shown.AS_LEFT  # others have been taken out after us, and come back before us
    there = observed.partitions.get(key)
    if there is not None and observed.broker_id in there.removing:
        return Shown.AS_LEFT  # Kafka completes it when all other replicas are in sync, maybe much later
    return Shown.AS_BEFORE if key in observed.partitions else Shown.OTHERWISE


def demotion_shown(key: Key, one: Demoted, observed: Observed) -> Shown:
    """State of a partition whose list was put in another order."""
    now = observed.partitions.get(key)
    if now is not None and now.replicas == one.after:
        return Shown.AS_LEFT
    if now is None or now.replicas != one.before:
        return Shown.OTHERWISE
    return Shown.AS_BEFORE if is_back(now, one.before, observed.broker_id) else Shown.RETURNING


class Settling:
    """Memory of what the metadata have shown of lists that are written down.

    Args:
        unfollowed_ms: where two looks are further apart, the metadata were not followed, or the guard stood still.
    """

    def __init__(self, unfollowed_ms: int) -> None:
        self._unfollowed_ms = unfollowed_ms
        self._seen: set[Key] = set()
        self._unseen: dict[Key, int] = {}
        """Since when the metadata have not shown a change, on the monotonic clock: the wall clock may be set."""
        self._settled_ms = 0

    def begun(self, keys: Iterable[Key]) -> None:
        """Lists are about to be changed (again): what was seen of them is over."""
        for key in keys:
            self._seen.discard(key)
            self._unseen.pop(key, None)

    def settle(self, shown: Mapping[Key, Shown], now_ms: int) -> tuple[list[Key], list[Key]]:
        """Compare lists with the metadata, which are followed; those that are as they were before, and those that are
        otherwise: neither need be written down any longer."""
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
