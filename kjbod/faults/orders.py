"""Orders to a disk's server: where they go, and the modes that they set. Small: each disk's server starts with it."""

import contextlib
import enum
import os
from collections.abc import Iterator
from pathlib import Path

CONTROL_SOCKET = "control"
"""Name of the control socket in a disk's directory."""
MAX_ORDER_BYTES = 64 << 10
"""The longest order, and the longest answer."""


class FaultMode(enum.StrEnum):
    """Mode in which the disk answers the kernel. Where not said otherwise, other requests work."""

    OK = "ok"
    EIO = "eio"
    """Every read, write and flush fails."""
    EIO_READS = "eio-reads"
    EIO_WRITES = "eio-writes"
    """Writes and flushes fail."""
    HANG = "hang"
    """Nothing is answered until another mode is set; then all that waited is answered in that mode."""
    HANG_WRITES = "hang-writes"
    ENOSPC = "enospc"
    """Writes fail as those of a thin pool that is full."""
    LOSE_WRITES = "lose-writes"
    """Writes are acknowledged and forgotten, unless :meth:`DiskControl.recover_writes` ends it."""
    FLIP_READS = "flip-reads"
    """The first byte of every read is wrong."""


@contextlib.contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """A name of ``directory`` that fits into the 107 bytes of a socket address, however deep the directory lies."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
