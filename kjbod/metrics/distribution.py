"""Durations, counted in buckets for Prometheus and kept for a while for Kafka's quantiles."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

RECENT_MAX = 1_028
"""Durations from which quantiles are made: as many as Kafka's histograms keep (``ExponentiallyDecayingSample``). There
they are drawn, recent ones more likely; here they are the most recent."""
BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets, s."""
_BOUNDS_NS = tuple(round(bound * 1e9) for bound in BOUNDS_S)


class Durations(Struct, frozen=True):
    """A :class:`Distribution` at one moment."""

    buckets: tuple[int, ...]
    """Durations up to each of :data:`BOUNDS_S` and above the one before; then those above the last."""
    sum_ns: int
    recent_ns: Sequence[int]

    @property
    def count(self) -> int:
        """All durations."""
        return sum(self.buckets)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' buckets: bound and count up to it."""
        total, made = 0, []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self.buckets, strict=True):
            total += count
            made.append((bound, float(total)))
        return made


class Distribution:
    """Counts durations. Cheap enough for each request."""

    def __init__(self) -> None:
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._sum_ns = 0
        self._recent_ns: deque[int] = deque(maxlen=RECENT_MAX)

    def add(self, duration_ns: int) -> None:
        """Count a duration."""
        self._buckets[bisect_left(_BOUNDS_NS, duration_ns)] += 1
        self._sum_ns += duration_ns
        self._recent_ns.append(duration_ns)

    def now(self) -> Durations:
        """A copy."""
        return Durations(tuple(self._buckets), self._sum_ns, tuple(self._recent_ns))
