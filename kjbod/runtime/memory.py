"""Settings of the C library's allocator and Python's collector for a daemon that starts with a burst and then does
little.

The allocator is glibc's (``mallopt(3)``, ``malloc_trim(3)``); with other allocators these functions do nothing.
"""

import ctypes
import gc
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
MMAP_THRESHOLD_BYTES: Final = 128 << 10
"""glibc's initial value. Setting it stops glibc from raising it when the first large buffer is freed."""


def economize() -> None:
    """Let all threads allocate from one heap, and return large buffers to the kernel as soon as they are freed.

    Threads of a daemon write logs and reports. With an arena per thread, each would keep the memory of its largest
    burst.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


def settle() -> None:
    """Exclude all current objects from garbage collection, and return memory that a burst left free."""
    gc.collect(1)
    gc.freeze()
    trim()


def trim() -> None:
    """Return free pages of the heap to the kernel."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
