"""The block device under a mount, and its counters (read by :mod:`.sysfs`). Pure.

Counters are those of ``/sys/block/X/stat`` (Documentation/block/stat.rst). They tell a hung device (requests in flight,
none completed) from a slow one (some completed) and from one that nobody asks (nothing in flight: frozen or throttled
above the device).

What stands for the device of a mount:

    a partition            the whole disk: requests to another partition show as well that it is alive
    dm, md, loop, zram     the device itself, which counts the requests that its users wait for
    NVMe                   the device itself; where a multipath head does not count, its paths (:func:`.sysfs.below`)
    btrfs, bcachefs        all devices of the file system, by sysfs
    XFS with ``logdev=`` or ``rtdev=``, ext4 with an external journal
                           the data device, and these: a write waits for each of them
    a bind mount           as the file system that it shows a part of
    overlay                none: which file system its upper directory is on cannot be known from here
    anything else          none: FUSE, NFS, tmpfs. The verdict then has the deadline and the worker's steps

Two directories share a device when the same disks lie at the bottom of both (:attr:`BlockDevice.disks`). A disk
that has nothing but their journals is not counted here: each of them can die of its own disk, while the other lives.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace


class BlockCounters(Struct, frozen=True):
    """Counters of the device of a log directory, or the sum over several devices.

    Attributes:
        in_flight: requests that wait for the device now.
        completed: reads, writes, discards and flushes that it has completed since it exists.
        busy_ms: time with something in flight.
        reads: completed.
        read_bytes: of these.
        writes: completed.
        write_bytes: of these.
        flushes: completed; they are among ``completed`` as well. 0 before Linux 5.5.
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
    flushes: int = 0


class BlockDevice(Struct, frozen=True):
    """The block devices under a log directory.

    Attributes:
        names: kernel names, ``("sdb",)``; empty when there is none to be had.
        device: ``"major:minor"`` of the first, or of the mount when there is none.
        model: of the disk, where the kernel tells.
        serial: of the disk, where the kernel tells.
        reason: why there are no counters; None when there are.
        disks: kernel names of the disks at the bottom, below volumes and arrays.
        journal: of these, the ones that have nothing but the journal of the file system.
    """

    names: tuple[str, ...]
    device: str
    model: str | None = None
    serial: str | None = None
    reason: str | None = None
    disks: tuple[str, ...] = ()
    journal: tuple[str, ...] = ()

    def shares(self, other: "BlockDevice") -> bool:
        """Whether what happens to one happens to the other: a disk below both, or the same mounted device."""
        return self.device == other.device or not self._data_disks().isdisjoint(other._data_disks())

    def _data_disks(self) -> set[str]:
        return {*self.disks} - {*self.journal}

    def without_counters(self, reason: str) -> "BlockDevice":
        """A copy of the device that has no counters, for ``reason``."""
        return replace(self, names=(), reason=reason)


def total(counters: Sequence[BlockCounters]) -> BlockCounters:
    """Return the sums of the counters of one or more devices."""
    if len(counters) == 1:
        return counters[0]
    errors = [c.errors for c in counters if c.errors is not None]
    return BlockCounters(
        in_flight=sum(c.in_flight for c in counters),
        completed=sum(c.completed for c in counters),
        busy_ms=sum(c.busy_ms for c in counters),
        reads=sum(c.reads for c in counters),
        read_bytes=sum(c.read_bytes for c in counters),
        writes=sum(c.writes for c in counters),
        write_bytes=sum(c.write_bytes for c in counters),
        errors=sum(errors) if len(errors) == len(counters) else None,
        flushes=sum(c.flushes for c in counters),
    )
