"""The log directories that a block device concerns: down from a mount to the disks at the bottom, all from sysfs.

A failed request of a dm or md stack is told of the disk at the bottom, a resize of the volume on top. So every layer
counts: a partition and its disk, a volume and all it lies on (``slaves``), each device of a btrfs file system. The
layers are looked up once, at the start: disks that a volume gets later are not watched until the next one.
"""

from collections.abc import Sequence
from pathlib import Path

from kjbod_host.health.sources.api import Subject
from kjbod_host.health.sources.descriptor_watch import read_text
from kjbod_host.health.sysfs import SYS

MAX_DEPTH = 8
"""Maximum number of layers."""


class DeviceMap:
    """Block devices, all layers, and the log directories that lie on them.

    Attributes:
        names: log directories by the kernel's device name, ``"sda1"``.
        numbers: names by ``"major:minor"``.
        missing: log directories without a block device: overlay, FUSE, NFS, tmpfs.
    """

    def __init__(self, subjects: Sequence[Subject], sys: Path = SYS) -> None:
        self.names: dict[str, tuple[str, ...]] = {}
        self.numbers: dict[str, str] = {}
        self.missing: set[str] = set()
        for subject in subjects:
            found = _layers(subject, sys)
            if not found:
                self.missing.add(subject.path)
            for name, number in found.items():
                self.names[name] = (*self.names.get(name, ()), subject.path)
                if number is not None:
                    self.numbers[number] = name


def _layers(subject: Subject, sys: Path) -> dict[str, str | None]:
    """Return the names and numbers of all devices below a log directory."""
    found: dict[str, str | None] = {}
    starts = [sys / "block" / name for name in subject.device.names]
    if subject.mount is not None and not subject.mount.device.startswith("0:"):
        starts.append(sys / "dev" / "block" / subject.mount.device)
    for start in starts:
        try:
            _descend(start.resolve(strict=True), found, MAX_DEPTH)
        except (OSError, RuntimeError):  # RuntimeError: a loop of symbolic links
            continue
    return found


def _descend(device: Path, found: dict[str, str | None], depth: int) -> None:
    if depth == 0 or device.name in found:
        return
    found[device.name] = read_text(device / "dev")
    if (device / "partition").exists():
        _descend(device.parent, found, depth)
    for below in sorted((device / "slaves").glob("*")):
        _descend(below.resolve(), found, depth - 1)
