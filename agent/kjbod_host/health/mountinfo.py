"""Reader and watcher of this host's mount table, which touch no mounted file system (:mod:`.mounts` parses it).

Two things tell about a change: a poll on the file, for mounts, unmounts and remounts; and the monitor's re-reading each
second, since ``emergency_ro`` and ``shutdown`` wake nobody.
"""

import asyncio
import contextlib
import select
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from kjbod_host.health.mounts import Mount, parse_mountinfo

MOUNTINFO = "/proc/self/mountinfo"


def read_mounts(path: str = MOUNTINFO) -> tuple[Mount, ...]:
    """Return the present mount table. Never blocks.

    Raises:
        OSError: there is no such file.
    """
    return parse_mountinfo(read_mountinfo(path))


def read_mountinfo(path: str = MOUNTINFO) -> bytes:
    """Return the text of the present mount table; as :func:`read_mounts`."""
    return Path(path).read_bytes()


class MountWatcher:
    """Calls back when the mount table changes: a wake-up 0.2 ms after the kernel's event.

    A poll on mountinfo reports "readable" at any time, so it cannot be given to an event loop. An epoll that asks only
    for ``EPOLLPRI | EPOLLERR`` can: its own descriptor becomes readable with the change. What that epoll then answers
    says nothing (it is always empty, the outer poll has consumed the event), so the callback itself is the event. A
    burst of changes gives one callback.

    Args:
        changed: called on the event loop.
    """

    def __init__(self, changed: Callable[[], None], path: str = MOUNTINFO) -> None:
        self._changed = changed
        self._path = path
        self._file: BinaryIO | None = None
        self._epoll: select.epoll | None = None

    def start(self) -> str | None:
        """Begin; needs a running event loop. Returns why it cannot be done on this host, None for success."""
        try:
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115  lives as long as the watcher
            self._file.read()
            self._epoll = select.epoll()
            self._epoll.register(self._file.fileno(), select.EPOLLPRI | select.EPOLLERR)
            self._epoll.poll(0)
        except OSError as error:
            self.close()
            return f"{self._path}: {error.strerror}"
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._woken)
        return None

    def _woken(self) -> None:
        if self._epoll is None or self._file is None:
            return
        self._epoll.poll(0)  # clears its ready list
        with contextlib.suppress(OSError):
            self._file.seek(0)
            self._file.read()
        self._changed()

    def close(self) -> None:
        """End; may be called again."""
        if self._epoll is not None:
            with contextlib.suppress(RuntimeError):  # no running loop: it has closed the rest
                asyncio.get_running_loop().remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        if self._file is not None:
            self._file.close()
            self._file = None
