"""Choice of a directory for a new replica, where this broker may choose. Pure.

Kafka takes the directory with the fewest replicas, future ones included (``LogManager.nextLogDirs``). A replica of a
busy topic counts as much there as one of an empty topic, so disks fill unevenly; to choose by size has been asked for
since 2015 (apache/kafka pull request 484, then 6866, 7133, 11548 for KAFKA-8465 and KIP-178, all closed; Strimzi 7227,
Cruise Control 971). What speaks against it is that free bytes *now* mislead: the replicas that were just placed on the
emptiest disk are still empty there, and all that follow would go to the same disk. So what is still to come is taken
into account.

Policies (``kjbod.placement``):

``replicas``    fewest replicas, as Kafka; the first of ``log.dirs`` among equals
``free-bytes``  most bytes free after what is still to come; among equals as ``replicas``
``weighted``    by chance, weighted by those bytes: many brokers that place at once, or a disk that was just added,
                do not all choose the same disk

Before any policy comes the *standing* of a directory: a better class is always preferred to a worse one.

``NORMAL``       nothing is known against it
``DOUBTFUL``     slow, held or suspect: new replicas make a slow disk slower, but they work
``NEARLY_FULL``  used to ``kjbod.placement.full.percent`` or more, or the last probe found no room: one full directory
                 goes offline as a whole in Kafka, so it is worse than a slow one. It stays so until it is used to
                 :data:`LESS_PERCENT` points less, or a file that comes and goes would let the class flap
``CORDONED``     a person said no (``cordoned.log.dirs``, KIP-1066). Not never: a controller may place a replica on a
                 broker whose directories are all cordoned (seen on 4.3.1 with a manual assignment), and then it has to
                 lie somewhere

A failed directory is never chosen. A directory that is named by the metadata or by a person is not chosen here.

What is still to come
---------------------
Each replica that is placed is expected to become as large as the mean replica of its directory, of the host where that
has none, or :data:`SEGMENT_BYTES` where nothing is known. What a directory grows by, as later samples of its capacity
show, is taken off what was expected there, the oldest first; what has not come within :data:`GROWTH_MS` is no longer
expected: a follower has caught up by then, and a topic that is still empty may stay so. The bytes that moves between
directories have still to copy are added as they are.
"""

import enum
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal

from msgspec import Struct, field

from kjbod.ids import Uuid

Policy = Literal["replicas", "free-bytes", "weighted"]

SEGMENT_BYTES: Final = 1 << 30
"""What a replica is expected to take on a host that has none: one segment (the default of ``log.segment.bytes``)."""
GROWTH_MS: Final = 3_600_000
"""Time in which a new replica is expected to grow to the size of the others."""
LESS_PERCENT: Final = 5
"""A directory that was nearly full is so until it is used to so many points less than makes it nearly full, or to half
of that where it is less than these points."""
STEP_MS: Final = 10_000
"""What is expected is remembered by steps of this length, not by replica."""


class Standing(enum.IntEnum):
    """Preference of a directory, best first."""

    NORMAL = 0
    DOUBTFUL = 1
    NEARLY_FULL = 2
    CORDONED = 3


class Capacity(Struct, frozen=True):
    """A file system as last sampled, in bytes."""

    total_bytes: int
    usable_bytes: int

    @property
    def used_bytes(self) -> int:
        """Bytes that are not usable any more."""
        return self.total_bytes - self.usable_bytes


class Site(Struct, frozen=True):
    """A directory at the moment, as those see it who watch it."""

    capacity: Capacity | None = None
    """None: not known yet."""
    doubtful: bool = False
    """Slow, held or suspect."""
    no_room: bool = False
    """The last probe found no room."""
    cordoned: bool = False
    moving_bytes: int = 0
    """What moves into it have still to copy."""


_UNKNOWN: Final = Site()


def is_nearly_full(site: Site, full_percent: int, *, before: bool) -> bool:
    """Whether a directory is nearly full; ``before``: whether it was until now."""
    if site.no_room:
        return True
    if site.capacity is None or site.capacity.total_bytes <= 0:
        return before
    percent = max(full_percent - LESS_PERCENT, full_percent / 2) if before else full_percent
    return site.capacity.used_bytes * 100 >= site.capacity.total_bytes * percent


def standing(site: Site, *, nearly_full: bool) -> Standing:
    """The class of a directory that is online."""
    if site.cordoned:
        return Standing.CORDONED
    if nearly_full:
        return Standing.NEARLY_FULL
    return Standing.DOUBTFUL if site.doubtful else Standing.NORMAL


class _Expected(Struct):
    """Bytes that were placed in a directory and have not come yet."""

    steps: deque[tuple[int, int]] = field(default_factory=deque)
    """Time and bytes, oldest first."""
    total: int = 0
    used_bytes: int | None = None
    """As last sampled."""

    def add(self, now_ms: int, amount: int) -> None:
        """So much more is expected."""
        if self.steps and now_ms - self.steps[-1][0] < STEP_MS:
            then, before = self.steps.pop()
            self.steps.append((then, before + amount))
        else:
            self.steps.append((now_ms, amount))
        self.total += amount

    def sampled(self, now_ms: int, used_bytes: int) -> None:
        """So much is used: what has come, and what is too old, is no longer expected."""
        came = 0 if self.used_bytes is None else max(0, used_bytes - self.used_bytes)
        self.used_bytes = used_bytes
        while self.steps and (came > 0 or now_ms - self.steps[0][0] >= GROWTH_MS):
            then, amount = self.steps.popleft()
            rest = 0 if now_ms - then >= GROWTH_MS else max(0, amount - came)
            came = max(0, came - amount)
            self.total -= amount - rest
            if rest:
                self.steps.appendleft((then, rest))
                return


class Chooser:
    """The choice, and what it remembers of earlier ones. No I/O; time and chance are given.

    Args:
        policy: ``kjbod.placement``.
        full_percent: ``kjbod.placement.full.percent``.
        chance: numbers in [0, 1), for ``weighted``.
    """

    def __init__(
        self, policy: Policy = "replicas", full_percent: int = 90, chance: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._policy = policy
        self._full_percent = full_percent
        self._chance = chance
        self._sites: Mapping[Uuid, Site] = {}
        self._standings: dict[Uuid, Standing] = {}
        self._nearly_full: frozenset[Uuid] = frozenset()
        self._sizes: dict[Uuid, int] = {}
        self._expected: dict[Uuid, _Expected] = {}
        self._now_ms = 0

    def observe(self, sites: Mapping[Uuid, Site], counts: Mapping[Uuid, int], now_ms: int) -> None:
        """Take in the directories as they are now, and how many replicas each has; to be called before each burst of
        choices."""
        self._sites = sites
        self._now_ms = now_ms
        self._nearly_full = frozenset(
            d for d, site in sites.items() if is_nearly_full(site, self._full_percent, before=d in self._nearly_full)
        )
        self._standings = {d: standing(site, nearly_full=d in self._nearly_full) for d, site in sites.items()}
        for directory, site in sites.items():
            if site.capacity is not None:
                self._expected.setdefault(directory, _Expected()).sampled(now_ms, site.capacity.used_bytes)
        self._sizes = self._mean_sizes(sites, counts)

    def is_cordoned(self, directory_id: Uuid) -> bool:
        """Whether a person said that this directory gets no new replicas."""
        return self._sites.get(directory_id, _UNKNOWN).cordoned

    def is_nearly_full(self, directory_id: Uuid) -> bool:
        """Whether it is used to ``full_percent``, or was and is not used to :data:`LESS_PERCENT` points less yet."""
        return directory_id in self._nearly_full

    def standing(self, directory_id: Uuid) -> Standing:
        """The class of a directory."""
        return self._standings.get(directory_id, Standing.NORMAL)

    def placed(self, directory_id: Uuid) -> None:
        """A replica is being made there: it is expected to grow."""
        if self._policy != "replicas":
            size = self._sizes.get(directory_id, SEGMENT_BYTES)
            self._expected.setdefault(directory_id, _Expected()).add(self._now_ms, size)

    def free_bytes(self, directory_id: Uuid) -> int | None:
        """Free bytes after all expected data has been written; below zero if the data does not fit. None: not known."""
        site = self._sites.get(directory_id, _UNKNOWN)
        if site.capacity is None:
            return None
        expected = self._expected.get(directory_id)
        return site.capacity.usable_bytes - site.moving_bytes - (0 if expected is None else expected.total)

    def choose(self, counts: Mapping[Uuid, int]) -> Uuid | None:
        """The directory for one more replica; ``counts`` has those that can take it, in the order of ``log.dirs``,
        with their replicas. None when it is empty."""
        if not counts:
            return None
        best = min(self.standing(d) for d in counts)
        candidates = {d: n for d, n in counts.items() if self.standing(d) == best}
        if self._policy == "free-bytes":
            return min(candidates, key=lambda d: (*self._emptier_first(d), candidates[d]))
        if self._policy == "weighted":
            return self._by_chance(candidates)
        return min(candidates, key=candidates.__getitem__)

    def _emptier_first(self, directory: Uuid) -> tuple[bool, int]:
        """Directories with unknown capacity come last."""
        free = self.free_bytes(directory)
        return (True, 0) if free is None else (False, -free)

    def _by_chance(self, candidates: Mapping[Uuid, int]) -> Uuid:
        weights = {d: max(0, self.free_bytes(d) or 0) for d in candidates}
        left = self._chance() * sum(weights.values())
        for directory, weight in weights.items():
            left -= weight
            if weight and left < 0:
                return directory
        # Nothing is free or known; a sum of floats can also miss the last one by a hair.
        last = [d for d, weight in weights.items() if weight]
        return last[-1] if last else min(candidates, key=candidates.__getitem__)

    @staticmethod
    def _mean_sizes(sites: Mapping[Uuid, Site], counts: Mapping[Uuid, int]) -> dict[Uuid, int]:
        """Bytes that one more replica is expected to take, by directory."""
        known = {d: s.capacity.used_bytes for d, s in sites.items() if s.capacity is not None and counts.get(d, 0)}
        replicas = sum(counts[d] for d in known)
        anywhere = sum(known.values()) // replicas if replicas else SEGMENT_BYTES
        return {d: max(1, known[d] // counts[d] if d in known else anywhere) for d in sites}
