"""Reads of a file's medium, whatever the page cache says. Blocking code; Linux.

When the device refuses a write, the kernel tells one fsync of it, and keeps the pages as if they had been written:
clean, readable, with what is nowhere else. From then on each fsync succeeds, and each process reads what is gone as
soon as the pages are (PostgreSQL's "fsyncgate" of 2018; ``Documentation/filesystems/vfs.rst``, "Handling errors during
writeback"). So after an end that nobody knows, a file is believed only as it comes from the medium:

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
"""Pages may be locked for a moment, or on a processor's list of new ones."""
_PAUSE_S = 0.01
_READ_BYTES = 1 << 20
_STATFS_BYTES = 256
"""More than any ``struct statfs`` has; it begins with the type, a long."""
_IN_MEMORY = frozenset({0x01021994, 0x858458F6})
"""TMPFS_MAGIC, RAMFS_MAGIC (``linux/magic.h``)."""
_NOT_ALLOWED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})
"""What a filter of system calls (seccomp) answers to mincore(2): nobody knows what is cached, so all is compared."""
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)


def read_anew(path: Path, *, bytes_max: int | None = None) -> None:
    """Read a file from its medium: what the page cache has of it from now on is what is there.

    Raises:
        StorageError: it cannot be synced or read, is no regular file, or has more than ``bytes_max``; or the page cache
            has something else, and cannot be dropped.
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
    """Whether the page cache let go of the file."""
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
    """Whether the page cache has any page of the file, or nobody may tell."""
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
    """The cache stayed: it must have what the medium has.

    Raises:
        StorageError: it has not, or nobody can tell.
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
        # Page by page: btrfs takes the rest of a read that stops at a hole from the cache.
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
