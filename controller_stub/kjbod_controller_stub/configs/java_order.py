"""Order of keys in Kafka's hash tables, for answers and logs that show it."""

from collections.abc import Iterable

FULL_TIMELINES = (5, 10, 21, 85)
"""Numbers of keys for which :func:`first_of_timeline` may be another one."""
_FIBONACCI = -7046029254386353131 & 0xFFFFFFFFFFFFFFFF


def hash_map_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of a ``java.util.HashMap``, in which Kafka checks and writes several updates."""
    unique = list(dict.fromkeys(names))
    buckets = 16
    while len(unique) > buckets * 3 // 4:
        buckets *= 2
    return sorted(unique, key=lambda name: _spread(name) & (buckets - 1))


def _spread(name: str) -> int:
    """Return ``HashMap.hash`` of a string, from its UTF-16 code units."""
    value = 0
    for unit in memoryview(name.encode("utf-16-le")).cast("H"):
        value = (31 * value + unit) & 0xFFFFFFFF
    return value ^ (value >> 16)


def first_of_timeline(count: int) -> int:
    """Return the first key of a ``timeline.TimelineHashMap`` with the keys 0, 1 ... ``count - 1``, inserted in that
    order: CreatePartitions counts the replicas of this partition.

    It is the one as long as none of them was put again: that widens a table that is full, as one more would, and of 5,
    10, 21 or 85 keys another one is the first then (:data:`FULL_TIMELINES`). What was changed when is not known here.
    """
    slots: list[list[int]] = [[], []]
    for key in range(count):
        if (key + 1) * 3 > len(slots) * 4:
            slots = _rehashed(slots)
        slots[_slot(key, len(slots))].append(key)
    return next(slot[-1] for slot in slots if slot)


def _rehashed(slots: list[list[int]]) -> list[list[int]]:
    wider: list[list[int]] = [[] for _ in range(2 * len(slots))]
    for slot in slots:
        for key in slot:
            wider[_slot(key, len(wider))].append(key)
    return wider


def _slot(key: int, slots: int) -> int:
    """Return ``BaseHashTable.findSlot``: the highest bits of a product with the golden ratio."""
    return (key * _FIBONACCI & 0xFFFFFFFFFFFFFFFF) >> (65 - slots.bit_length())
