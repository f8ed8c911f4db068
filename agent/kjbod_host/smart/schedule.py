"""The disk that is asked for its health next. Pure.

To ask is a command to the disk, so one is only asked while each directory on it is well: never one that is suspect,
slow, held or failed, whose trouble the question could add to. One that has not answered is left alone for a day.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from kjbod_host.health.state import Health
from kjbod_host.smart.names import is_physical

ASK_TIMEOUT_MS: Final = 30_000
"""Time that a disk may take to answer; a quarter of a second is usual."""
HUNG_PAUSE_MS: Final = 86_400_000
"""Time for which a disk that did not answer is not asked."""
WELL: Final = frozenset({Health.ONLINE, Health.FULL})


class Past(Struct, frozen=True):
    """The last question to a disk.

    Attributes:
        asked_ms: when.
        hung: whether it was not answered in time.
    """

    asked_ms: int
    hung: bool = False


class Lying(Struct, frozen=True):
    """A directory and the disks that it lies on.

    Attributes:
        disks: kernel names.
        health: of the directory.
        probed: whether a probe has passed.
    """

    disks: tuple[str, ...]
    health: Health
    probed: bool


def well_disks(directories: Iterable[Lying]) -> dict[str, bool]:
    """The physical disks below these directories, and whether each directory on them is well and has been probed."""
    found: dict[str, bool] = {}
    for one in directories:
        for disk in one.disks:
            if is_physical(disk):
                found[disk] = found.get(disk, True) and one.probed and one.health in WELL
    return found


def next_disk(disks: Mapping[str, bool], past: Mapping[str, Past], now_ms: int, interval_ms: int) -> str | None:
    """The disk to ask now, the one that has waited longest; None: it is nobody's turn.

    Args:
        disks: whether each may be asked.
        past: of those that were asked.
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
