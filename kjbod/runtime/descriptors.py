"""Standard descriptors 0, 1 and 2 of this process, and the sockets that it closes before an exit."""

import contextlib
import os
import stat
from pathlib import Path


def keep_standard_descriptors() -> None:
    """Open ``/dev/null`` in place of closed standard descriptors. Otherwise the next file or socket would get such a
    number, and would receive output for a log or a person."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def close_channels() -> None:
    """Close all sockets and pipes of this process, except the standard descriptors; for the last moment before
    ``os._exit``.

    A thread that is stuck in the kernel keeps an exited process and its open descriptors. Clients would wait for its
        sockets, and so would parents for its end. Files stay open: closing a file may wait for the disk.
    """
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptor = int(link.name)
            mode = os.fstat(descriptor).st_mode
            if descriptor > 2 and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
                os.close(descriptor)
