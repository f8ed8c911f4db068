"""The C library's allocator and Python's collector, set for a daemon that starts with a burst and then does little.

The allocator is glibc's (``mallopt(3)``, ``malloc_trim(3)``); with another one nothing here does anything.
"""

import ctypes
import gc
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
MMAP_THRESHOLD_BYTES: Final = 128 << 10
"""glibc's own at the start; setting it keeps it from growing with the first large buffer that is freed."""


def economize() -> None:
    """Let all threads allocate from one heap, and give large buffers back as soon as they are freed.

    Threads of a daemon write logs and reports. An arena for each of them would keep what a burst of lines once needed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def settle() -> None:
    """Keep what there is now: the collector need not look at it again. What a burst left free goes back."""
    gc.collect(1)
    gc.freeze()
    trim()


def trim() -> None:
    """Give free pages of the heap back to the kernel."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
