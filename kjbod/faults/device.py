"""Faults of the block device, which only a scratch disk supports."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode
from kjbod.faults.model import Expectation, Fault, Injection
from kjbod.faults.mount_table import mount_on
from kjbod.faults.revive import revive, works

PROBE_MS = 1500
"""One interval, a probe, a second probe that confirms it, and scheduling delay on a busy host."""
FULL_PROBE_MS = 12_000
"""Ten intervals, because only each tenth probe creates, renames and re-reads old content, plus :data:`PROBE_MS`."""
HUNG_MS = 4000
"""One interval, the silence after which a device counts as hung, and one sample."""
SHRUNK_BYTES = 1 << 20
_SCRATCH = "a scratch disk"

FAILED = Expectation(("failed",), PROBE_MS)
EVERYWHERE = ("ext4", "xfs", "btrfs")


def everywhere(expectation: Expectation, **others: Expectation) -> dict[str, Expectation]:
    """Return expectations that are equal on all file systems except ``others``."""
    return {fstype: others.get(fstype, expectation) for fstype in EVERYWHERE}


def _answering(mode: FaultMode) -> Callable[[Injection], None]:
    return lambda injection: injection.target.control.set(mode)


def heal_device(injection: Injection) -> None:
    """Plug the device in, answer at normal speed, and mount the file system again if it did not survive."""
    target = injection.target
    control = target.control
    control.plug()
    control.recover_writes()
    control.delay_us(0)
    if not works(target):
        revive(target)


def _slow(injection: Injection) -> None:
    injection.target.control.delay_us(int(injection.options["ms"]) * 1000)


def _sync(injection: Injection) -> dict[str, Any]:
    syscalls.sync_filesystem(injection.target.mount_point)
    return {"size_bytes": injection.target.control.state()["size_bytes"]}


def keep(injection: Injection) -> None:
    """Make the disk remember its content."""
    injection.target.control.keep()


def heal_content(injection: Injection) -> None:
    """Restore the content from just before the action; later writes are lost."""
    target = injection.target
    control = target.control
    if control.state()["size_bytes"] != injection.details["size_bytes"]:
        control.resize(injection.details["size_bytes"])
    # The restore shows whether a copy exists, and it needs the file system unmounted.
    revive(target, control.restore)


def _shrink(injection: Injection) -> None:
    target = injection.target
    target.control.resize(SHRUNK_BYTES)
    if mount := mount_on(target.mount_point):
        syscalls.update_loop_capacity(Path(mount.source))


def _content(name: str, title: str, does: str, says: str, expectations: dict[str, Expectation], **steps: Any) -> Fault:
    return Fault(
        name=name,
        title=title,
        does=does,
        needs=f"{_SCRATCH}; undo gives back the content of the moment before",
        says=says,
        layer="device",
        expectations=expectations,
        prepare=_sync,
        arm=keep,
        heal=heal_content,
        **steps,
    )


def _device(name: str, title: str, does: str, says: str, expectations: dict[str, Expectation], **steps: Any) -> Fault:
    return Fault(
        name=name,
        title=title,
        does=does,
        needs=_SCRATCH,
        says=says,
        layer="device",
        expectations=expectations,
        heal=heal_device,
        **steps,
    )


_SLOW = Expectation(
    ("slow", "online"),
    12_000,
    "a probe is four to eight requests one after the other; below one second in all it is not called slow",
)
_THIN = Expectation(
    ("full", "failed"),
    PROBE_MS,
    "the device says ENOSPC: full, and well again when the pool has grown; failed once the file system gave up over a "
    "lost write of its own",
)

FAULTS = (
    _device(
        "eio",
        "every request fails",
        "the device answers EIO to every read, write and flush",
        "failed, EIO",
        everywhere(FAILED),
        deed=_answering(FaultMode.EIO),
    ),
    _device(
        "eio-writes",
        "writes fail",
        "the device answers EIO to writes and flushes; reads work",
        "failed, EIO at an fsync, or EROFS once the file system gave up",
        everywhere(FAILED),
        deed=_answering(FaultMode.EIO_WRITES),
    ),
    _device(
        "eio-reads",
        "reads fail",
        "the device answers EIO to reads; writes work",
        "failed, EIO at a read",
        everywhere(FAILED),
        deed=_answering(FaultMode.EIO_READS),
    ),
    _device(
        "device-gone",
        "the disk is pulled out",
        "every request fails for good, also those under way",
        "failed, EIO",
        everywhere(FAILED),
        deed=lambda injection: injection.target.control.kill(),
    ),
    _device(
        "lost-writes",
        "writes are acknowledged and forgotten",
        "as a disk that lies about its cache, or has lost it; undo stores them after all",
        "failed, EILSEQ: what is read back is not what was written (btrfs: EIO)",
        everywhere(FAILED),
        deed=_answering(FaultMode.LOSE_WRITES),
    ),
    _content(
        "bit-rot",
        "stored bits flip",
        "flips one bit in each stored sector; what is written from then on is well",
        "failed, EILSEQ or EUCLEAN (btrfs: EIO), when it re-reads old content",
        everywhere(Expectation(("failed",), FULL_PROBE_MS)),
        deed=lambda injection: injection.target.control.rot(),
    ),
    _content(
        "wiped",
        "the content is zeroed",
        "makes every stored byte zero under the mounted file system, as a dd to the wrong disk",
        "failed, EILSEQ: meta.properties is not what it was (btrfs: EIO)",
        everywhere(FAILED),
        deed=lambda injection: injection.target.control.wipe(),
    ),
    _content(
        "truncated",
        "the backing file is cut to nothing",
        "reads of what was stored answer EIO; what is written from then on can be read",
        "failed, EIO at a read",
        everywhere(FAILED),
        deed=lambda injection: injection.target.control.truncate(0),
    ),
    _content(
        "shrunk",
        "the device gets smaller under the file system",
        "cuts the device to 1 MiB, as an lvreduce or a resized image; requests behind that fail",
        "failed, EIO",
        everywhere(FAILED),
        deed=_shrink,
    ),
    _device(
        "thin-pool-full",
        "the thin pool is full",
        "the device answers ENOSPC to writes while the file system shows free space",
        "full, ENOSPC at an fsync; failed once the file system gave up",
        everywhere(_THIN),
        deed=_answering(FaultMode.ENOSPC),
    ),
    _device(
        "hang",
        "the disk answers nothing",
        "every request waits; so does every sync of the whole machine: keep it short",
        "failed, hung: requests in flight and none completed",
        everywhere(Expectation(("failed",), HUNG_MS)),
        deed=_answering(FaultMode.HANG),
    ),
    _device(
        "hang-writes",
        "the disk answers no writes",
        "writes and flushes wait, reads work; every sync of the whole machine waits too: keep it short",
        "failed, hung: requests in flight and none completed",
        everywhere(Expectation(("failed",), HUNG_MS)),
        deed=_answering(FaultMode.HANG_WRITES),
    ),
    _device(
        "slow",
        "each request takes longer",
        "the device answers each request that many milliseconds late (option ms)",
        "slow, never failed; online again after undo",
        everywhere(_SLOW),
        options={"ms": 200},
        deed=_slow,
    ),
)
