"""Sources of time and randomness: the only module that uses the real ones.

Pure modules take ``now_ms`` as an argument. Other modules take a :class:`Clock` and a ``random.Random``, so that a
simulation can replace both.
"""

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Source of the time, for modules with I/O."""

    def monotonic_ms(self) -> int:
        """Milliseconds since an arbitrary moment; never goes back. For deadlines and ages."""

    def monotonic_ns(self) -> int:
        """Monotonic nanoseconds, of the clock of :meth:`monotonic_ms`. For measured latencies."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump. For records and reports that people read."""


class SystemClock:
    """The machine's clocks."""

    def monotonic_ms(self) -> int:
        """``CLOCK_MONOTONIC`` in milliseconds."""
        return time.monotonic_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        """``CLOCK_MONOTONIC`` in nanoseconds."""
        return time.monotonic_ns()

    def wall_ms(self) -> int:
        """``CLOCK_REALTIME`` in milliseconds."""
        return time.time_ns() // 1_000_000


def system_random() -> random.Random:
    """Return the operating system's random source, for ids."""
    return random.SystemRandom()
