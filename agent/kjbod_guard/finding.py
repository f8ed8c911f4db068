"""The shell that finds the broker: the process that holds the log directories, and whether it uses this file.

Without a broker the guard looks for one again and again. The kernel reports the end of a broker.
"""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kjbod.config import Config
from kjbod.config.properties import parse_properties
from kjbod_guard.binding import (
    Holder,
    outdated,
    why_changed,
    why_not_ours,
    why_not_registered,
)
from kjbod_guard.following import Following
from kjbod_guard.processes import Processes
from kjbod_guard.watching import Watching, same_file_system
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.state import Health

EVERY_MS: Final = 5_000
"""Time between two looks for the broker's process, while there is none."""
AGAIN_MS: Final = 60_000
"""Time between two looks while the broker runs. The kernel reports the end of the process."""


NOT_LOOKED: Final = "which process holds the log directories is not known yet"


class Finding:
    """The broker's process, as it was found.

    Args:
        config: of the broker.
        source: real path of the broker's file.
        processes: looks for the holders of locks.
        watching: the directories.
        monitor: knows their file systems.
        following: the metadata.
        found: told the broker's process, while there is one that is the broker of the file.
        review: looks at everything again.
    """

    def __init__(
        self,
        config: Config,
        source: str,
        processes: Processes,
        watching: Watching,
        monitor: HealthMonitor,
        following: Following,
        *,
        found: Callable[[Holder | None], Awaitable[None]],
        review: Callable[[], None],
    ) -> None:
        self._config = config
        self._source = source
        self._processes = processes
        self._watching = watching
        self._monitor = monitor
        self._following = following
        self._found = found
        self._review = review
        self._holders: dict[str, Holder | None] | None = None
        self._compared: tuple[int, int] | None = None
        """Pid and start time of the last process for which the file was compared."""
        self._changed: str | None = None
        self._failed_in_place: set[str] = set()
        """Paths that failed while their mount was unchanged."""
        self._ended_holder: Holder | None = None
        self._broker_ended = asyncio.Event()

    async def run(self) -> None:
        """Find the broker's process again and again."""
        while True:
            owned, entries = self._watching.owned, self._watching.entries
            surveys = {path: entries[path].survey for path in owned}
            locks = {path: one.lock for path, one in surveys.items() if one is not None and one.lock is not None}
            kinds = {status.path: status.file_system for status in self._monitor.status()}
            self._failed_in_place &= {one.path for one in self._monitor.status() if one.health.health is Health.FAILED}
            found = await self._processes.holders(locks, kinds)
            if found is not None:
                await self._compare(found)
                free = {path: None for path, one in surveys.items() if one is not None and one.lock is None}
                self._holders = {**found, **free}
                self._review()
                if self.holder is None:
                    self._watching.nobody_holds()
            if found is not None:  # otherwise keep watching the process from before
                self._processes.watch(self.pid, functools.partial(self._has_ended, self.holder))
            if self.unbound is None:
                await self._found(self.holder)
            every_ms = EVERY_MS if self.unbound is not None or found is None else AGAIN_MS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(every_ms / 1000):
                    await self._broker_ended.wait()
            self._broker_ended.clear()

    async def _compare(self, found: Mapping[str, Holder | None]) -> None:
        """Compare the file with the content that the guard read, once for each new process. A new broker has read the
        present file."""
        holder = next((one for one in found.values() if one is not None), None)
        if holder is None or self._compared == (holder.pid, holder.started):
            return
        content = await self._processes.content(self._source)
        try:
            now = None if content is None else parse_properties(content)
        except ValueError:
            now = None
        self._changed = None if now is None else why_changed(self._source, self._config.properties, now)
        self._compared = (holder.pid, holder.started)

    def is_kept(self, path: str) -> bool:
        """Whether the mount of a directory has changed here, but not in the mount namespace of the broker (a
        container). Probes then do not reach the broker's disk. A disk that failed before the change of its mount does
        not count."""
        if not self._watching.is_elsewhere(path):
            self._failed_in_place.add(path)
            return False
        if path in self._failed_in_place or self.holder is None:
            return False
        return same_file_system(self._watching.entries[path].place, self._watching.place(path, self.holder.pid))

    @property
    def looked(self) -> bool:
        """Whether it is known which process holds the log directories, if any."""
        return self._holders is not None

    @property
    def unbound(self) -> str | None:
        """Reason why the broker of this file was not found; None: it was found."""
        if not self._watching.owned:
            return "no log directory of this broker could be read"
        if self._holders is None:
            return NOT_LOOKED
        reason = why_not_ours(self._holders, self._source, self._config.properties) or self._changed
        if reason is not None or not self._following.is_followed:
            return reason
        owned = [one.directory_id for one in self._watching.owned.values()]
        unread = len(self._watching.unwatched) + len(self._watching.unread)
        return why_not_registered(self._following.observed, owned, unread)

    @property
    def outdated(self) -> list[str]:
        """Paths of directories known from memory that, by the broker's registration, were replaced."""
        watching, log_dirs = self._watching, self._config.log_dirs  # a metadata-only directory is in no registration
        if not watching.unread or not self._following.is_followed:
            return []
        read = {path: one.directory_id for path, one in watching.owned.items()}
        unread = {path: read.pop(path) for path in watching.unread & read.keys() if path in log_dirs}
        unwatched = sum(path in log_dirs for path in watching.unwatched)
        return outdated(self._following.observed, unread, read.values(), unwatched)

    @property
    def holder(self) -> Holder | None:
        """Process that holds the log directories; None: none does, or not known."""
        return next((one for one in (self._holders or {}).values() if one is not None), None)

    @property
    def pid(self) -> int | None:
        """Pid of the process that holds the log directories."""
        return None if self.holder is None else self.holder.pid

    @property
    def ended_pid(self) -> int | None:
        """Pid of the broker's process that has ended; None also if a new broker process has the same pid."""
        ended, now = self._ended_holder, self.holder
        if ended is None or (now is not None and now.pid == ended.pid and now.started != ended.started):
            return None
        return ended.pid

    def _has_ended(self, holder: Holder | None) -> None:
        """Note that a process of the broker has ended, as the kernel reports."""
        self._ended_holder = holder
        self._broker_ended.set()
        self._review()
