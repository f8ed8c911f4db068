"""System calls that the fault injection needs and Python lacks.

Sources: mount(2), umount(2), loop(4), ioctl_fs(2), ``linux/loop.h``, ``linux/fs.h``.
"""

import ctypes
import errno
import fcntl
import os
import struct
from pathlib import Path

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_SHARED = 1 << 20
MS_RELATIME = 1 << 21
MS_STRICTATIME = 1 << 24
MNT_DETACH = 2

_FS_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, u32); ext4, xfs, f2fs
_SHUTDOWN_NOLOGFLUSH = 2
_FIFREEZE = 0xC0045877
_FITHAW = 0xC0045878
_FS_IOC_GETFLAGS = 0x80086601
_FS_IOC_SETFLAGS = 0x40086602
FS_IMMUTABLE_FL = 0x10
_BLKFLSBUF = 0x1261
_XFS_IOC_FSGEOMETRY_V1 = 0x80705864  # _IOR('X', 100, struct xfs_fsop_geom_v1), of which bytes 64 to 80 are the UUID
_LOOP_SET_CAPACITY = 0x4C07
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A  # Linux 5.8
_LO_FLAGS_AUTOCLEAR = 4
_LOOP_MAJOR = 7
# struct loop_config { u32 fd, block_size; struct loop_info64 info; u64 reserved[8]; }
_LOOP_CONFIG = struct.Struct("=II QQQQQ IIII 64s 64s 32s QQ 64x")
_PR_SET_IO_FLUSHER = 57

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str, path: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}", path)


def mount(source: str, target: Path, fstype: str, flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError with the kernel's errno."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), fstype.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, "mount", str(target))


def umount(target: Path, flags: int = 0) -> None:
    """umount2(2). Raises OSError; EINVAL says that nothing is mounted there."""
    _check(_libc.umount2(os.fsencode(target), flags), "umount", str(target))


def umount_all(target: Path, limit: int = 16) -> int:
    """Detach all mounts on ``target``, over-mounts included, and return their number."""
    for count in range(limit):
        try:
            umount(target, MNT_DETACH)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):
                return count
            raise
    return limit


def filesystem_id(path: Path, fstype: str) -> str:
    """Return an id that distinguishes the file system of the directory ``path`` from all others, even after a reboot.
    Raises OSError.

    ext4 and btrfs derive their ``f_fsid`` from the UUID; that of XFS is only the device number (statfs(2)).
    """
    if fstype != "xfs":
        return f"{os.statvfs(path).f_fsid:016x}"
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(fd, _XFS_IOC_FSGEOMETRY_V1, bytes(112))[64:80].hex()
    finally:
        os.close(fd)


def disk_sequence(device: Path) -> int | None:
    """Return a number that no other disk of this boot has had, not even one with the same device (Linux 5.15),
    or None."""
    number = os.stat(device).st_rdev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    for directory in (place, place.parent):  # a partition uses the number of its disk
        try:
            return int((directory / "diskseq").read_text())
        except (OSError, ValueError):
            continue
    return None


def _directory_ioctl(path: Path, request: int, argument: int | bytes) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, request, argument)
    finally:
        os.close(fd)


def shutdown_filesystem(path: Path) -> None:
    """Shut down the file system without a log flush (FS_IOC_SHUTDOWN): ext4 and xfs then answer EIO to everything."""
    _directory_ioctl(path, _FS_IOC_SHUTDOWN, struct.pack("I", _SHUTDOWN_NOLOGFLUSH))


def freeze(path: Path) -> None:
    """Freeze the file system (FIFREEZE): writers wait in the kernel until :func:`thaw`."""
    _directory_ioctl(path, _FIFREEZE, 0)


def thaw(path: Path) -> bool:
    """Thaw the file system (FITHAW). Return False if it was not frozen."""
    try:
        _directory_ioctl(path, _FITHAW, 0)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP):
            return False
        raise
    return True


def inode_flags(path: Path) -> int:
    """Return the inode flags (FS_IOC_GETFLAGS), as ``lsattr`` shows them. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return int(struct.unpack("=i", fcntl.ioctl(fd, _FS_IOC_GETFLAGS, bytes(4)))[0])
    finally:
        os.close(fd)


def set_inode_flags(path: Path, flags: int) -> None:
    """Set the inode flags (FS_IOC_SETFLAGS), as ``chattr`` does. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _FS_IOC_SETFLAGS, struct.pack("=i", flags))
    finally:
        os.close(fd)


def forget_buffers(device: Path) -> None:
    """Write back and drop the kernel's buffers of a block device (BLKFLSBUF), including ext4's metadata."""
    _device_ioctl(device, _BLKFLSBUF)


def update_loop_capacity(device: Path) -> None:
    """Make a loop device use the current size of its file (LOOP_SET_CAPACITY), even under a mounted file system."""
    _device_ioctl(device, _LOOP_SET_CAPACITY)


def _device_ioctl(device: Path, request: int) -> None:
    fd = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, request, 0)
    finally:
        os.close(fd)


def sync_filesystem(path: Path) -> None:
    """syncfs(2). Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check(_libc.syncfs(fd), "syncfs", str(path))
    finally:
        os.close(fd)


def attach_loop(backing: Path) -> tuple[Path, int]:
    """Create a loop device over ``backing``. Return its path, and an open descriptor that keeps it.

    The device clears itself at its last close (LO_FLAGS_AUTOCLEAR, set by the same call that binds it). So not even a
    SIGKILL between this call and the mount leaves a device behind. Close the descriptor once something is mounted.
    """
    backing_fd = os.open(backing, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _attach_free_loop(backing_fd, backing)
    finally:
        os.close(backing_fd)


def _attach_free_loop(backing_fd: int, backing: Path) -> tuple[Path, int]:
    name = os.fsencode(backing.name)[:63]
    config = _LOOP_CONFIG.pack(backing_fd, 0, *[0] * 5, 0, 0, 0, _LO_FLAGS_AUTOCLEAR, name, b"", b"", 0, 0)
    for _ in range(64):
        with open("/dev/loop-control", "rb", buffering=0) as control:
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
        device = Path(f"/dev/loop{number}")
        if not device.exists():  # a container's /dev is not always the kernel's devtmpfs
            os.mknod(device, 0o060660, os.makedev(_LOOP_MAJOR, number))
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EBUSY:  # another process took it between the two calls
                continue
            raise
        return device, fd
    raise OSError(errno.EBUSY, "no free loop device after 64 tries", str(backing))


def become_io_flusher() -> None:
    """Tell the kernel that its own write-back waits for this process (prctl PR_SET_IO_FLUSHER), if it permits that.

    Otherwise an allocation here could wait for pages that only this process can write. It needs CAP_SYS_RESOURCE, which
    root in a container may lack. With the little memory used here the case is rare.
    """
    _libc.prctl(_PR_SET_IO_FLUSHER, 1, 0, 0, 0)
