"""Search for the process that holds the log directories, in a separate process.

A command line is in the memory of its process. Reading it needs a lock that a stuck thread of the broker may hold. So
the guard starts a separate process of some MiB for that read. The broker's pidfd reports the end of the broker at once.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Final

from kjbod.runtime.waiting import process_sleep
from kjbod_guard.binding import Holder
from kjbod_host.files.file_process import FileProcess

TIMEOUT_MS: Final = 3_000
_BY_INODE: Final = frozenset({"btrfs", "overlay"})
"""File systems whose device numbers in ``/proc/locks`` differ from the device numbers of their files."""

Lock = tuple[int, int, int]
"""Device numbers and inode of a ``.lock``."""


class Processes:
    """Search for the processes that hold ``.lock``."""

    def __init__(self) -> None:
        self._files = FileProcess("kjbod-procs")
        self._left: tuple[int, ...] = ()
        """Pids of search processes that did not answer."""
        self._asking = False
        self._pid: int | None = None
        self._pidfd = -1

    def process_ids(self) -> tuple[int, ...]:
        """Return the pids of the search processes that work now."""
        return self._files.process_ids() if self._asking else ()

    async def holders(
        self, locks: Mapping[str, Lock], file_systems: Mapping[str, str | None]
    ) -> dict[str, Holder | None] | None:
        """Return the holders of ``.lock`` by path; None: no answer in time."""
        self._left = tuple(pid for pid in self._left if process_sleep(pid)[0] not in ("", "Z"))
        if self._left:
            return None  # one stuck process is enough
        paths = list(locks)
        by_inode = any(file_systems.get(path) in _BY_INODE for path in paths)
        self._asking = True
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                told = await self._files.call("holders", [list(locks[path]) for path in paths], by_inode)
        except (TimeoutError, OSError):
            self._left = self._files.process_ids()
            for pid in self._left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return None
        finally:
            self._asking = False
            self._files.rest()
        return {path: None if one is None else _holder(one) for path, one in zip(paths, told, strict=True)}

    async def content(self, path: str) -> bytes | None:
        """Return the content of a file that is on no watched disk; None: no answer in time, or it cannot be read."""
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                content: bytes = await self._files.call("read", path)
        except (TimeoutError, OSError):
            return None
        finally:
            self._files.rest()
        return content

    def watch(self, pid: int | None, ended: Callable[[], None]) -> None:
        """Call ``ended`` once when that process ends; None: stop watching."""
        if pid == self._pid:
            return
        self._forget()
        if pid is None:
            return
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            return  # it has ended, or is in another pid namespace: the next look finds out
        self._pid = pid

        def told() -> None:
            self._forget()
            ended()

        asyncio.get_running_loop().add_reader(self._pidfd, told)

    def _forget(self) -> None:
        self._pid = None
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1

    def close(self) -> None:
        """Close the search process and the pidfd, without waiting."""
        self._forget()
        self._files.close()


def _holder(told: tuple[int, int, list[str], dict[str, str]]) -> Holder:
    pid, started, arguments, files = told
    return Holder(pid, started, tuple(arguments), files)
