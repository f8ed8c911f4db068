"""Return a scratch disk to work after a fault."""

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from kjbod.faults import syscalls
from kjbod.faults.disks import FILE_SYSTEMS, find_command
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Target
from kjbod.faults.mount_table import detach_own, holders, is_on_image, mount_on, mounts, mounts_below, mounts_on

_RELEASE_TIMEOUT_S = 5.0
_HELD_GRACE_S = 0.3  # a probe that is just ending
_LET_GO_TIMEOUT_S = 2.0
_CHECK_NAME = ".kjbod-fault-check"
_CHECK = b"kjbod" * 800
_FSCK_TIMEOUT_S = 60
_FSCK_MENDED = 1


def loop_devices(image: Path) -> list[Path]:
    """Return the loop devices on a file."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):  # cleared during the check
            if backing.read_text().strip() == str(image):
                found.append(Path("/dev") / backing.parts[3])
    return found


def works(target: Target) -> bool:
    """Return whether a file can be written, made durable, read back from the device and removed."""
    mount = mount_on(target.mount_point)
    if mount is None or not mount.is_writable() or not is_on_image(mount, target.control.image_path().name):
        return False
    path = target.mount_point / _CHECK_NAME
    try:
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _CHECK)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            same = os.pread(fd, len(_CHECK), 0) == _CHECK
        finally:
            os.close(fd)
        path.unlink()
        syscalls.sync_filesystem(target.mount_point)
    except OSError:
        return False
    return same


def _wait_until_released(image: Path, mount_ids: set[int]) -> bool:
    """Return whether all users release the unmounted file system. Returns False as soon as one clearly keeps it."""
    started = time.monotonic()
    while loop_devices(image):
        waited = time.monotonic() - started
        if waited > _RELEASE_TIMEOUT_S or (waited > _HELD_GRACE_S and holders(mount_ids)):
            return False
        time.sleep(0.005)
    return True


def revive(target: Target, repair: Callable[[], object] | None = None) -> None:
    """Unmount, ``repair`` the stored content, check it (ext4) and mount it again.

    Files that are still open get EIO from then on: two file systems must not write to one disk.

    Raises:
        FaultsError: the disk cannot be mounted; the text lists the processes in the way.
    """
    control = target.control
    image = control.image_path()
    if below := mounts_below(target.mount_point):
        raise FaultsError(f"{target.mount_point}: {below[0].mount_point} is mounted below it: unmount that first")
    mount = mount_on(target.mount_point)
    ids = {mount.mount_id for mount in mounts_on(target.mount_point)}
    if mount is not None and is_on_image(mount, image.name):
        with contextlib.suppress(OSError):
            syscalls.thaw(target.mount_point)
    if other := detach_own(target.mount_point, image.name):
        raise FaultsError(
            f"{target.mount_point}: {other.source}, which is not this disk, is mounted there: unmount it first"
        )
    in_the_way: list[str] = []
    if not _wait_until_released(image, ids):
        in_the_way = holders(ids)
        control.fence()
    if repair is not None:
        repair()
    if target.fstype == "ext4":
        _check_ext4(image)
    try:
        _mount_in_time(target, image)
        with contextlib.suppress(OSError):  # e2fsck makes the directory, and Kafka refuses to start with it
            (target.mount_point / "lost+found").rmdir()
    except OSError as error:
        blame = f"; stop what still holds the disk and undo again: {', '.join(in_the_way)}" if in_the_way else ""
        raise FaultsError(f"cannot mount {target.fstype} on {target.mount_point}: {error.strerror}{blame}") from None


def _mount_in_time(target: Target, image: Path) -> None:
    deadline = time.monotonic() + _LET_GO_TIMEOUT_S
    while True:
        try:
            return _mount(target, image)
        except OSError as error:
            if error.errno not in _passes(target.fstype) or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _passes(fstype: str) -> frozenset[int]:
    """Return errors of a mount that may be temporary. btrfs reports them while a process is still releasing the old
    mount with the same id. EINVAL was seen once too, while other disks were mounted beside it."""
    of_all = frozenset({errno.EBUSY, errno.EEXIST})
    return of_all | {errno.EINVAL} if fstype == "btrfs" else of_all


def _mount(target: Target, image: Path) -> None:
    options = FILE_SYSTEMS[target.fstype].mount_options
    device, fd = syscalls.attach_loop(image)
    try:
        syscalls.mount(str(device), target.mount_point, target.fstype, data=options)
    except OSError as error:
        if target.fstype != "xfs" or error.errno != errno.EINVAL:
            raise
        # A process still holds the old mount with the same id.
        syscalls.mount(str(device), target.mount_point, target.fstype, data="nouuid")
    finally:
        os.close(fd)


def _check_ext4(image: Path) -> None:
    command = find_command("e2fsck") or "e2fsck"
    result = subprocess.run(
        [command, "-f", "-y", str(image)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_FSCK_TIMEOUT_S,
        check=False,
    )
    if result.returncode not in (0, _FSCK_MENDED):
        lines = result.stdout.decode(errors="replace").strip().splitlines() or ["no output"]
        raise FaultsError(f"e2fsck on {image}: exit code {result.returncode}: {lines[-1]}")


def is_held(target: Target) -> bool:
    """Return whether a process has open files on the disk."""
    devices = {mount.device for mount in mounts_on(target.mount_point)}
    return bool(holders({mount.mount_id for mount in mounts() if mount.device in devices}))
