"""Descriptors 0, 1 and 2, which are there whatever a process was started with."""

import os


def keep_standard_descriptors() -> None:
    """Put ``/dev/null`` in the place of those that are closed: the next file or socket would get their number, and what
    is meant for a log or a person."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
