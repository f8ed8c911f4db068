"""Orders to a disk's server: the socket for them, and the modes. A small module, because each disk's server
loads it."""

import contextlib
import enum
import os
from collections.abc import Iterator
from pathlib import Path

CONTROL_SOCKET = "control"
"""Name of the control socket in a disk's directory."""
MAX_ORDER_BYTES = 64 << 10
"""Maximum size of an order and of an answer."""


class FaultMode(enum.StrEnum):
    """Mode in which the disk answers the kernel. Other requests work unless noted."""

    OK = "ok"
    EIO = "eio"
    """Every read, write and flush fails."""
    EIO_READS = "eio-reads"
    EIO_WRITES = "eio-writes"
    """Writes and flushes fail."""
    HANG = "hang"
    """No request is answered until another mode is set; then all waiting requests are answered in that mode."""
    HANG_WRITES = "hang-writes"
    ENOSPC = "enospc"
    """Writes fail as on a full thin pool."""
    LOSE_WRITES = "lose-writes"
    """Writes are acknowledged and lost, unless :meth:`DiskControl.recover_writes` ends the mode."""
    FLIP_READS = "flip-reads"
    """The first byte of every read is wrong."""


@contextlib.contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """Yield a name of ``directory`` that fits into the 107 bytes of a socket address, however deep the directory is."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
