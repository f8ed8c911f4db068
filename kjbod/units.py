"""Moments, durations and counts as people read them."""

from datetime import UTC, datetime


def moment(wall_ms: int) -> str:
    """A moment in UTC, to the second: ``2026-11-21 17:29:54Z``."""
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def duration(seconds: float) -> str:
    """``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = max(0, int(seconds))
    for name, length, below, small in (("d", 86_400, "h", 3_600), ("h", 3_600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {name} {whole % length // small} {below}"
    return f"{whole} s"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 stray``, ``2 strays``."""
    return f"{count} {one if count == 1 else many or one + 's'}"
