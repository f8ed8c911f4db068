"""Descriptors of this process: 0, 1 and 2, which are there whatever it was started with, and what it lets go of."""

import contextlib
import os
import stat
from pathlib import Path


def keep_standard_descriptors() -> None:
    """Put ``/dev/null`` in the place of those that are closed: the next file or socket would get their number, and what
    is meant for a log or a person."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def close_channels() -> None:
    """Close all sockets and pipes of this process, but standard ones; for the last moment before ``os._exit``.

    A thread that is stuck in the kernel keeps a process that has exited, and with it whatever is open: who connects to
    it would wait, and who waits for its end as well. Files stay: to close one may wait for the disk.
    """
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptor = int(link.name)
            mode = os.fstat(descriptor).st_mode
            if descriptor > 2 and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
                os.close(descriptor)
