"""Watch of a descriptor with error events, at a bounded rate so that a storm of events does not block the event loop.

A dying disk fails thousands of requests a second and the kernel tells of each. The first is what counts: it wakes the
probe. So each wake-up reads a bounded amount and then the descriptor is left alone for a while, longer with each
wake-up that follows at once; what comes meanwhile waits in the kernel's own bounded buffer. In a storm that makes ten
wake-ups a second, under one percent of a core; what another disk says then is heard a little later, or not at all when
the kernel's buffer overflows: its next probe does not wait for it.
"""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

PAUSE_MS = 20
"""Pause after a wake-up in which the descriptor is not read."""
MAX_PAUSE_MS = 100
"""Maximum pause in a storm: the pause doubles with each wake-up that follows soon."""


class Watch:
    """Calls back when a descriptor can be read; see the head of this module.

    Args:
        fd: stays its owner's, who closes it after :meth:`close`.
        readable: called on the event loop; reads a bounded amount, or what was read is read again after the pause.
    """

    def __init__(self, fd: int, readable: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._readable = readable
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._pause_ms = PAUSE_MS
        self._armed_at = 0.0
        self._arm()

    def _arm(self) -> None:
        self._timer = None
        self._armed_at = self._loop.time()
        self._loop.add_reader(self._fd, self._woken)

    def _woken(self) -> None:
        quiet_ms = (self._loop.time() - self._armed_at) * 1000
        self._pause_ms = PAUSE_MS if quiet_ms > self._pause_ms else min(2 * self._pause_ms, MAX_PAUSE_MS)
        self._loop.remove_reader(self._fd)
        self._timer = self._loop.call_later(self._pause_ms / 1000, self._arm)
        self._readable()  # may close us

    def close(self) -> None:
        """Stop the callbacks. May be called again, also after the end of the loop."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._loop.is_closed():
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_reader(self._fd)


def read_text(path: Path) -> str | None:
    """Return the stripped content of a file of sysfs; None: it cannot be read, or is empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def errno_text(code: int) -> str:
    """Return the name of an errno: ``"EIO"`` for 5 or -5."""
    return errno.errorcode.get(abs(code), f"error {abs(code)}")


def reason_of(error: OSError) -> str:
    """Return an error as text for people: ``"/sys/x: Permission denied"``."""
    text = error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {text}" if error.filename else text
