"""The block device under a mount, and its counters, from sysfs: never touches the device and never blocks.

Counters are those of ``/sys/block/X/stat`` (Documentation/block/stat.rst). They tell a hung device (requests in flight,
none completed) from a slow one (some completed) and from one that nobody asks (nothing in flight: frozen or throttled
above the device).

What stands for the device of a mount:

    a partition            the whole disk: requests to another partition show as well that it is alive
    dm, md, loop, NVMe     the device itself, which counts the requests that its users wait for
    btrfs                  all devices of the file system, summed; mountinfo has no device number for it
    anything else          none: overlay, FUSE, NFS, tmpfs. The verdict then has the deadline alone
"""

from dataclasses import dataclass
from pathlib import Path

from kjbod_agent.health.mounts import Mount

SYS = Path("/sys")
SECTOR_BYTES = 512
"""The unit of ``stat``, whatever the device's own sectors are."""


@dataclass(frozen=True, slots=True)
class BlockCounters:
    """Counters of the device of a log directory, or the sum over several devices.

    Attributes:
        in_flight: requests that wait for the device now.
        completed: reads, writes, discards and flushes that it has completed since it exists.
        busy_ms: time with something in flight.
        reads: completed.
        read_bytes: of these.
        writes: completed.
        write_bytes: of these.
        errors: requests that failed (``ioerr_cnt``); None where the driver does not count them: only SCSI does.
    """

    in_flight: int
    completed: int
    busy_ms: int
    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    write_bytes: int = 0
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """What a log directory lies on.

    Attributes:
        names: kernel names, ``("sdb",)``; empty when there is none to be had.
        device: ``"major:minor"`` of the first, or of the mount when there is none.
        model: of the disk, where the kernel tells.
        serial: of the disk, where the kernel tells.
        reason: why there are no counters; None when there are.
    """

    names: tuple[str, ...]
    device: str
    model: str | None = None
    serial: str | None = None
    reason: str | None = None


def block_device_of(mount: Mount, sys: Path = SYS) -> BlockDevice:
    """The block device of a mount; reads sysfs only."""
    if not mount.device.startswith("0:"):
        name = _whole_disk(sys / "dev" / "block" / mount.device)
        names: tuple[str, ...] = () if name is None else (name,)
        reason = None if names else f"{sys}/dev/block/{mount.device} is not there"
    elif mount.fstype == "btrfs":
        names = _btrfs_devices(mount.source, sys)
        reason = None if names else f"no btrfs file system in {sys}/fs/btrfs has the device {mount.source}"
    else:
        names, reason = (), f"{mount.fstype} has no block device"
    if not names:
        return BlockDevice((), mount.device, reason=reason)
    first = sys / "block" / names[0]
    leaf = _leaf(first)
    return BlockDevice(
        names,
        _text(first / "dev") or mount.device,
        model=_text(leaf / "device" / "model"),
        serial=_text(leaf / "device" / "serial") or _text(leaf / "serial"),
    )


def read_counters(device: BlockDevice, sys: Path = SYS) -> BlockCounters | None:
    """The counters now; None when there are none, as after a disk was pulled."""
    sums = [0] * 17
    for name in device.names:
        fields = (_text(sys / "block" / name / "stat") or "").split()
        if len(fields) < 11:
            return None
        for position, field in enumerate(fields[:17]):
            sums[position] += int(field)
    if not device.names:
        return None
    return BlockCounters(
        in_flight=sums[8],
        completed=sums[0] + sums[4] + sums[11] + sums[15],  # reads, writes; Linux 4.18: discards; 5.5: flushes
        busy_ms=sums[9],
        reads=sums[0],
        read_bytes=sums[2] * SECTOR_BYTES,
        writes=sums[4],
        write_bytes=sums[6] * SECTOR_BYTES,
        errors=_errors(device.names, sys),
    )


def _errors(names: tuple[str, ...], sys: Path) -> int | None:
    texts = [_text(sys / "block" / name / "device" / "ioerr_cnt") for name in names]
    return sum(int(text, 16) for text in texts if text) if all(texts) else None


def _whole_disk(link: Path) -> str | None:
    try:
        found = link.resolve(strict=True)
    except OSError:
        return None
    return found.parent.name if (found / "partition").exists() else found.name


def _btrfs_devices(source: str, sys: Path) -> tuple[str, ...]:
    """Kernel names of all devices of the btrfs file system that ``source`` belongs to."""
    name = source.rpartition("/")[2]
    mapped = {_text(path): path.parent.parent.name for path in sys.glob("block/dm-*/dm/name")}
    name = mapped.get(name, name)
    for devices in sys.glob("fs/btrfs/*/devices"):
        links = sorted(devices.iterdir())
        if name in {link.name for link in links}:
            return tuple(sorted({disk for link in links if (disk := _whole_disk(link)) is not None}))
    return ()


def _leaf(device: Path) -> Path:
    """The first physical device under a dm or md stack."""
    for _ in range(8):
        below = sorted((device / "slaves").glob("*"))
        if not below:
            break
        device = below[0].resolve()
        if (device / "partition").exists():
            device = device.parent
    return device


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
