"""Block devices and their counters as sysfs shows them: read from ``/sys``, which never touches a device or blocks.

Which device stands for a mount, and what its counters tell, is in :mod:`.block`.
"""

import functools
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from kjbod_host.health.block import BlockCounters, BlockDevice, total
from kjbod_host.health.mounts import Mount

SYS = Path("/sys")
SECTOR_BYTES = 512
"""The unit of ``stat``, whatever the device's own sectors are."""
_STAT_BYTES = 4096
MAX_DEPTH = 8
"""Layers of a stack that are looked through."""
NUMBERED = frozenset({"ext4", "f2fs", "xfs"})
"""File systems that have a directory ``/sys/fs/<type>/<device>`` for each that is mounted."""
MEMBERS = {"btrfs": "devices/*", "bcachefs": "dev-*/block"}
"""File systems on several devices, with the links to these below their directory in ``/sys/fs/<type>``."""
DATA_OPTIONS = frozenset({"rtdev"})
"""Mount options that name another device with files (XFS)."""
JOURNAL_OPTIONS = frozenset({"logdev", "journal_path"})
"""Mount options that name a device with a journal (XFS, ext4)."""
JBD2 = frozenset({"ext3", "ext4"})
PROC = Path("/proc")
KERNEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9!_.-]{0,63}")
NVME_HEAD = re.compile(r"nvme(\d+)n(\d+)")


def block_device_of(mount: Mount, sys: Path = SYS, proc: Path = PROC) -> BlockDevice:
    """The block devices of a mount, all that its file system lies on; reads sysfs and procfs, and /dev for a name."""
    data, journal = _data_devices(mount, sys), _journal_devices(mount, sys, proc)
    names = tuple(dict.fromkeys(_disk_name(device) for device in (*data, *journal)))
    if not data:
        return BlockDevice((), mount.device, reason=_why_none(mount, sys))
    leaves = {leaf.name for name in names for leaf in _leaves((sys / "block" / name).resolve())}
    own = {leaf.name for device in data for leaf in _leaves((sys / "block" / _disk_name(device)).resolve())}
    leaf = min(_leaves((sys / "block" / names[0]).resolve()))
    return BlockDevice(
        names,
        _text(sys / "block" / names[0] / "dev") or mount.device,
        model=_text(leaf / "device" / "model"),
        serial=_text(leaf / "device" / "serial") or _text(leaf / "serial"),
        disks=tuple(sorted(leaves)),
        journal=tuple(sorted(leaves - own)),
    )


def _data_devices(mount: Mount, sys: Path) -> tuple[Path, ...]:
    """The devices that hold files, partitions as such, with that of the mount first."""
    if mount.fstype in MEMBERS:
        found = next((members for _, members in _file_systems(mount, sys)), set())
        if not found and mount.fstype == "bcachefs":  # its source names them, as far as it was mounted by name
            found = {device for name in mount.source.split(":") if (device := _device_named(name, sys)) is not None}
        if found:
            return tuple(sorted(found, key=_disk_name))
    if mount.device.startswith("0:"):
        return ()
    first = _numbered(mount.device, sys)
    return () if first is None else (first, *_of_options(mount, sys, DATA_OPTIONS))


def _journal_devices(mount: Mount, sys: Path, proc: Path) -> tuple[Path, ...]:
    """The devices that hold the journal of a file system and may hold nothing else of it."""
    return (*_of_options(mount, sys, JOURNAL_OPTIONS), *_external_journal(mount, sys, proc))


def _why_none(mount: Mount, sys: Path) -> str:
    if not mount.device.startswith("0:"):
        return f"{sys}/dev/block/{mount.device} is not there"
    if mount.fstype in MEMBERS:
        return f"no {mount.fstype} file system in {sys}/fs/{mount.fstype} has the device {mount.source}"
    if mount.fstype == "overlay":
        return "overlay: the device of its upper directory cannot be known from here"
    return f"{mount.fstype} has no block device"


def _of_options(mount: Mount, sys: Path, wanted: frozenset[str]) -> tuple[Path, ...]:
    """Return the devices in mount options."""
    given = (option.partition("=") for option in sorted(mount.options))
    found = (_device_named(value, sys) for name, _, value in given if name in wanted)
    return tuple(device for device in found if device is not None)


def _external_journal(mount: Mount, sys: Path, proc: Path) -> tuple[Path, ...]:
    """The device of an ext4 journal that is on another one. No mount option shows it: the name of the journal's thread
    does, ``jbd2/sdc1``; an internal one has an inode number behind it, ``jbd2/sdb1-8`` (fs/jbd2/journal.c)."""
    own = _numbered(mount.device, sys) if mount.fstype in JBD2 else None
    thread = None if own is None else _text(sys / "fs" / mount.fstype / own.name / "journal_task")
    name = None if thread is None else _text(proc / thread / "comm")
    if name is None or not name.startswith("jbd2/"):
        return ()
    device = _in_sysfs(name.removeprefix("jbd2/"), sys)
    return () if device is None else (device,)


def below(device: BlockDevice, sys: Path = SYS) -> BlockDevice | None:
    """The devices one layer further down, for one whose own counters stand still; None when there are none.

    A multipath head of NVMe, md and bio-based dm count on some kernels and not on others; what they lie on counts.
    """
    lower = {name: {found.name for found in _below((sys / "block" / name).resolve(), sys)} for name in device.names}
    if not any(lower.values()):
        return None
    return replace(device, names=tuple(sorted(set().union(*(found or {name} for name, found in lower.items())))))


def read_counters(device: BlockDevice, sys: Path = SYS) -> BlockCounters | None:
    """The counters now, of several devices their sums; None when there are none, as after a disk was pulled."""
    found = [_counters_of(name, sys) for name in device.names]
    each = [counters for counters in found if counters is not None]
    return total(each) if each and len(each) == len(found) else None


def _counters_of(name: str, sys: Path) -> BlockCounters | None:
    """Read the counters of one device. This runs very often: it uses no pathlib, and parses no content twice."""
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
    """Return the content of a file of sysfs; empty if it cannot be read."""
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
            return next((place.stat().st_ino for place, _ in _file_systems(mount, sys)), None)
        if mount.fstype in NUMBERED:
            name = (sys / "dev" / "block" / mount.device).resolve(strict=True).name
            return (sys / "fs" / mount.fstype / name).stat().st_ino
    except OSError:
        return None
    return None


def _numbered(number: str, sys: Path) -> Path | None:
    """The directory in sysfs of a device, ``"8:17"``."""
    try:
        return (sys / "dev" / "block" / number).resolve(strict=True)
    except OSError:
        return None


def _disk_name(device: Path) -> str:
    """Return the kernel name of a device; for a partition the name of its disk."""
    return device.parent.name if (device / "partition").exists() else device.name


def _in_sysfs(name: str, sys: Path) -> Path | None:
    """Return the device with a kernel name."""
    if not KERNEL_NAME.fullmatch(name):
        return None
    places = (sys / "block" / name, *sys.glob(f"block/*/{name}"))
    return next(
        (place.resolve() for place in places if (place / "dev").exists() or (place / "partition").exists()), None
    )


def _device_named(path: str, sys: Path) -> Path | None:
    """Return the device with a path below /dev."""
    folder, _, name = path.rpartition("/")
    if folder == "/dev/mapper":
        name = next((p.parent.parent.name for p in sys.glob("block/dm-*/dm/name") if _text(p) == name), name)
    found = _in_sysfs(name, sys) if folder in ("/dev", "/dev/mapper") else None
    if found is not None:
        return found
    try:
        status = Path(path).stat()
    except (OSError, ValueError):
        return None
    number = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    return _numbered(number, sys) if stat.S_ISBLK(status.st_mode) else None


def _file_systems(mount: Mount, sys: Path) -> Iterator[tuple[Path, set[Path]]]:
    """The directory in sysfs of the file system that was mounted, with its devices; nothing where there is none."""
    sources = {part.rpartition("/")[2] for part in mount.source.split(":")}
    mapped = {_text(path): path.parent.parent.name for path in sys.glob("block/dm-*/dm/name")}
    wanted = {mapped.get(name, name) for name in sources}
    for place in sys.glob(f"fs/{mount.fstype}/*"):
        members = {path.resolve() for path in place.glob(MEMBERS[mount.fstype])}
        is_first = any(_text(member / "dev") == mount.device for member in members)
        if (
            is_first
            or place.name in {name.removeprefix("UUID=") for name in sources}
            or any(member.name in wanted for member in members)
        ):
            yield place, {member for member in members if member.is_dir()}


def _below(device: Path, sys: Path) -> Iterator[Path]:
    """Yield the whole disks one layer further down."""
    for slave in sorted((device / "slaves").glob("*")):
        found = slave.resolve()
        yield found.parent if (found / "partition").exists() else found
    if head := NVME_HEAD.fullmatch(device.name):
        # The paths are hidden disks: nvme0c1n1 is namespace 1 of subsystem 0 by controller 1.
        yield from (path.resolve() for path in sys.glob(f"block/nvme{head[1]}c*n{head[2]}"))


def _leaves(device: Path, depth: int = MAX_DEPTH) -> set[Path]:
    """Return the disks at the bottom of a stack."""
    slaves = sorted((device / "slaves").glob("*")) if depth else []
    if not slaves:
        return {device.parent if (device / "partition").exists() else device}
    return {leaf for slave in slaves for leaf in _leaves(slave.resolve(), depth - 1)}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
