"""Block devices and their counters as sysfs shows them: read from ``/sys``, which never touches a device or blocks.

Which device stands for a mount, and what its counters tell, is in :mod:`.block`.
"""

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kjbod_agent.health.block import BlockCounters, BlockDevice, total
from kjbod_agent.health.mounts import Mount

SYS = Path("/sys")
SECTOR_BYTES = 512
"""The unit of ``stat``, whatever the device's own sectors are."""
_STAT_BYTES = 4096
MAX_DEPTH = 8
"""Layers of a stack that are looked through."""
NUMBERED = frozenset({"ext4", "f2fs", "xfs"})
"""File systems that have a directory ``/sys/fs/<type>/<device>`` for each that is mounted."""
NVME_HEAD = re.compile(r"nvme(\d+)n(\d+)")


def block_device_of(mount: Mount, sys: Path = SYS) -> BlockDevice:
    """The block device of a mount; reads sysfs only."""
    if not mount.device.startswith("0:"):
        name = _whole_disk(sys / "dev" / "block" / mount.device)
        names: tuple[str, ...] = () if name is None else (name,)
        reason = None if names else f"{sys}/dev/block/{mount.device} is not there"
    elif mount.fstype == "btrfs":
        names = _btrfs_devices(mount.source, sys)
        reason = None if names else f"no btrfs file system in {sys}/fs/btrfs has the device {mount.source}"
    elif mount.fstype == "overlay":
        names, reason = (), "overlay: the device of its upper directory cannot be known from here"
    else:
        names, reason = (), f"{mount.fstype} has no block device"
    if not names:
        return BlockDevice((), mount.device, reason=reason)
    leaves = sorted({leaf for name in names for leaf in _leaves((sys / "block" / name).resolve())})
    leaf = min(_leaves((sys / "block" / names[0]).resolve()))
    return BlockDevice(
        names,
        _text(sys / "block" / names[0] / "dev") or mount.device,
        model=_text(leaf / "device" / "model"),
        serial=_text(leaf / "device" / "serial") or _text(leaf / "serial"),
        disks=tuple(leaf.name for leaf in leaves),
    )


def below(device: BlockDevice, sys: Path = SYS) -> BlockDevice | None:
    """The devices one layer further down, for one whose own counters stand still; None when there are none.

    A multipath head of NVMe, md and bio-based dm count on some kernels and not on others; what they lie on counts.
    """
    names = {found.name for name in device.names for found in _below((sys / "block" / name).resolve(), sys)}
    return replace(device, names=tuple(sorted(names))) if names else None


def read_counters(device: BlockDevice, sys: Path = SYS) -> BlockCounters | None:
    """The counters now, of several devices their sums; None when there are none, as after a disk was pulled."""
    found = [_counters_of(name, sys) for name in device.names]
    each = [counters for counters in found if counters is not None]
    return total(each) if each and len(each) == len(found) else None


def _counters_of(name: str, sys: Path) -> BlockCounters | None:
    """Counters of one device. They are read all the time: no pathlib here, and nothing is taken apart twice."""
    content = _content(f"{sys}/block/{name}/stat")
    errors = _content(f"{sys}/block/{name}/device/ioerr_cnt") if name.startswith("sd") else b""
    return _parse(content, errors)


@functools.lru_cache(maxsize=64)
def _parse(content: bytes, errors: bytes) -> BlockCounters | None:
    fields = [int(field) for field in content.split()]
    if len(fields) < 11:
        return None
    fields += [0] * (17 - len(fields))  # Linux 4.18 added discards, 5.5 flushes
    return BlockCounters(
        in_flight=fields[8],
        completed=fields[0] + fields[4] + fields[11] + fields[15],
        busy_ms=fields[9],
        reads=fields[0],
        read_bytes=fields[2] * SECTOR_BYTES,
        writes=fields[4],
        write_bytes=fields[6] * SECTOR_BYTES,
        errors=int(errors, 16) if errors else None,
        flushes=fields[15],
    )


def _content(path: str) -> bytes:
    """A file of sysfs; empty when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _STAT_BYTES)
    except OSError:
        return b""
    finally:
        os.close(fd)


def disk_sequence(device: str, sys: Path = SYS) -> int | None:
    """The number of a block device, ``"8:17"``, or of the disk that it is a partition of: each that is added gets the
    next one, also where it has the device number of one that is gone. None before Linux 5.15, and where there is
    none."""
    link = sys / "dev" / "block" / device
    found = _text(link / "diskseq") or _text(link / ".." / "diskseq")
    return int(found) if found is not None and found.isdecimal() else None


def mount_number(mount: Mount, sys: Path = SYS) -> int | None:
    """The number of a mounted file system, another one whenever it is mounted anew, also with the same mount id: the
    inode of its directory in sysfs, which is made with each mount, and of which none is used again (kernfs). None for
    file systems without such a directory (FUSE, NFS)."""
    try:
        if mount.fstype == "btrfs":
            return next((found.stat().st_ino for found, _ in _btrfs(mount.source, sys)), None)
        if mount.fstype in NUMBERED:
            name = (sys / "dev" / "block" / mount.device).resolve(strict=True).name
            return (sys / "fs" / mount.fstype / name).stat().st_ino
    except OSError:
        return None
    return None


def _whole_disk(link: Path) -> str | None:
    try:
        found = link.resolve(strict=True)
    except OSError:
        return None
    return found.parent.name if (found / "partition").exists() else found.name


def _btrfs_devices(source: str, sys: Path) -> tuple[str, ...]:
    """Kernel names of all devices of the btrfs file system that ``source`` belongs to."""
    return next((tuple(sorted(disks)) for _, disks in _btrfs(source, sys)), ())


def _btrfs(source: str, sys: Path) -> Iterator[tuple[Path, set[str]]]:
    """The directory in sysfs of the btrfs file system that ``source`` belongs to, with its devices."""
    name = source.rpartition("/")[2]
    mapped = {_text(path): path.parent.parent.name for path in sys.glob("block/dm-*/dm/name")}
    name = mapped.get(name, name)
    for devices in sys.glob("fs/btrfs/*/devices"):
        try:
            links = sorted(devices.iterdir())
        except OSError:  # unmounted just now
            continue
        if name in {link.name for link in links}:
            yield devices.parent, {disk for link in links if (disk := _whole_disk(link)) is not None}


def _below(device: Path, sys: Path) -> Iterator[Path]:
    """Whole disks one layer further down."""
    for slave in sorted((device / "slaves").glob("*")):
        found = slave.resolve()
        yield found.parent if (found / "partition").exists() else found
    if head := NVME_HEAD.fullmatch(device.name):
        # The paths are hidden disks: nvme0c1n1 is namespace 1 of subsystem 0 by controller 1.
        yield from (path.resolve() for path in sys.glob(f"block/nvme{head[1]}c*n{head[2]}"))


def _leaves(device: Path, depth: int = MAX_DEPTH) -> set[Path]:
    """The disks at the bottom of a stack."""
    slaves = sorted((device / "slaves").glob("*")) if depth else []
    if not slaves:
        return {device.parent if (device / "partition").exists() else device}
    return {leaf for slave in slaves for leaf in _leaves(slave.resolve(), depth - 1)}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
