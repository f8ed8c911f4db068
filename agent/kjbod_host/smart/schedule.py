"""Schedule of the health queries to disks. Pure.

A query is a command to the disk. So a disk is queried only while all its directories are healthy: a query could make a
suspect, slow, held or failed disk worse. A disk that did not answer is not queried for a day.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from kjbod_host.health.state import Health
from kjbod_host.smart.names import is_physical

ASK_TIMEOUT_MS: Final = 30_000
"""Maximum time for a disk's answer; 0.25 s is usual."""
HUNG_PAUSE_MS: Final = 86_400_000
"""Time for which a disk that did not answer is not queried."""
WELL: Final = frozenset({Health.ONLINE, Health.FULL})


class Past(Struct, frozen=True):
    """The last question to a disk.

    Attributes:
        asked_ms: when.
        hung: whether the answer did not come in time.
    """

    asked_ms: int
    hung: bool = False


class Lying(Struct, frozen=True):
    """A directory and its disks.

    Attributes:
        disks: kernel names.
        health: of the directory.
        probed: whether a probe has passed.
    """

    disks: tuple[str, ...]
    health: Health
    probed: bool


def well_disks(directories: Iterable[Lying]) -> dict[str, bool]:
    """Return the physical disks below these directories, each with whether all its directories are healthy and
    probed."""
    found: dict[str, bool] = {}
    for one in directories:
        for disk in one.disks:
            if is_physical(disk):
                found[disk] = found.get(disk, True) and one.probed and one.health in WELL
    return found


def next_disk(disks: Mapping[str, bool], past: Mapping[str, Past], now_ms: int, interval_ms: int) -> str | None:
    """Return the disk to query now, which has waited longest; None: no query is due.

    Args:
        disks: whether each disk may be queried, by kernel name.
        past: last queries, by kernel name.
        now_ms: monotonic.
        interval_ms: between two questions to a disk.
    """
    due = [
        (before.asked_ms if before else -1, disk)
        for disk, is_well in disks.items()
        if is_well
        and ((before := past.get(disk)) is None or now_ms - before.asked_ms >= _pause_ms(before, interval_ms))
    ]
    return min(due)[1] if due else None


def _pause_ms(before: Past, interval_ms: int) -> int:
    return max(interval_ms, HUNG_PAUSE_MS) if before.hung else interval_ms
