"""Read a file's content from its device, bypassing the page cache. Blocking code; Linux.

When the device refuses a write, the kernel reports it to one fsync. It keeps the pages as clean and readable, although
their data is not on the device. Later fsyncs succeed, and the data is lost when the pages are dropped (PostgreSQL's
"fsyncgate" of 2018; ``Documentation/filesystems/vfs.rst``, "Handling errors during writeback"). So after an unclean
end, a file is trusted only as read from the device:

- ``fsync`` writes what a killed process left dirty, and has the device empty its own cache;
- ``POSIX_FADV_DONTNEED`` drops the pages; ``mincore`` tells whether any stayed, since those that another process has
  mapped, or that are locked, do;
- what stayed is compared with what ``O_DIRECT`` reads past the cache;
- all of it is read, so that a sector that cannot be read is an error here, and not a SIGBUS for who maps the file.

ext4, XFS and btrfs can do all of it. tmpfs and ramfs have no medium but the cache, and nothing can be refused there.
"""

import ctypes
import errno
import mmap
import os
import struct
import time
from pathlib import Path

from kjbod.errors import StorageError
from kjbod.files import open_to_read

_TRIES = 20
"""Tries, because pages may be locked briefly, or on a processor's list of new pages."""
_PAUSE_S = 0.01
_READ_BYTES = 1 << 20
_STATFS_BYTES = 256
"""Larger than any ``struct statfs``, which begins with the type, a long."""
_IN_MEMORY = frozenset({0x01021994, 0x858458F6})
"""TMPFS_MAGIC, RAMFS_MAGIC (``linux/magic.h``)."""
_NOT_ALLOWED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})
"""Errors of mincore(2) under a filter of system calls (seccomp): the cache state is unknown, so everything is
compared."""
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def read_anew(path: Path, *, bytes_max: int | None = None) -> None:
    """Read a file from its device, so that the page cache has the device's content afterwards.

    Raises:
        StorageError: the file cannot be synced or read, is no regular file, or has more than ``bytes_max``; or the page
            cache has other content and cannot be dropped.
    """
    try:
        fd = open_to_read(path, bytes_max=bytes_max)
        try:
            os.fsync(fd)
            if not _is_dropped(fd):
                _compare(path, fd)
            _read(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageError(f"cannot read {path} from its disk: {error.strerror}") from error


def _is_dropped(fd: int) -> bool:
    """Return whether the page cache dropped the file."""
    for _ in range(_TRIES):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if not _is_cached(fd):
            return True
        if _is_in_memory(fd):
            break
        time.sleep(_PAUSE_S)
    return False


def _read(fd: int) -> None:
    buffer = bytearray(_READ_BYTES)
    position = 0
    while count := os.preadv(fd, [buffer], position):
        position += count


def _is_cached(fd: int) -> bool:
    """Return whether the page cache has any page of the file, or its state is unknown."""
    size = os.fstat(fd).st_size
    if not size:
        return False
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    try:
        pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
        if _libc.mincore(address, size, pages):
            number = ctypes.get_errno()
            if number in _NOT_ALLOWED:
                return True
            raise OSError(number, os.strerror(number))
        return any(page & 1 for page in pages.raw)
    finally:
        _libc.munmap(address, size)


def _compare(path: Path, fd: int) -> None:
    """Require that cached pages that could not be dropped equal the device's content.

    Raises:
        StorageError: they differ, or that is unknown.
        OSError: the file cannot be read.
    """
    if _is_in_memory(fd):
        return
    held = "and another process holds it there (mapped or locked): end that one, or mount the file system anew"
    try:
        direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        raise StorageError(f"what {path} holds on its disk cannot be told: the page cache has it, {held}") from None
    try:
        # Page by page: btrfs reads the rest of a request from the cache after a hole.
        with mmap.mmap(-1, mmap.PAGESIZE) as piece:
            for position in range(0, os.fstat(fd).st_size, mmap.PAGESIZE):
                count = os.preadv(direct, [piece], position)
                if piece[:count] != os.pread(fd, mmap.PAGESIZE, position):
                    raise StorageError(
                        f"{path} has other data on its disk than in the page cache at position {position}, {held}"
                    )
    finally:
        os.close(direct)


def _is_in_memory(fd: int) -> bool:
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    if _libc.fstatfs(fd, found):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return struct.unpack_from("@l", found)[0] & 0xFFFFFFFF in _IN_MEMORY
