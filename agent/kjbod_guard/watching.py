"""Log directories of the broker: reads and watches them, and looks for missing ones again.

A guard outlives many starts of its broker and many disks. So it looks again each :data:`AGAIN_MS` at a directory that
is unreadable, or is not this broker's. It looks at a failed directory each :data:`FAILED_AGAIN_MS` for a minute. A
failed directory counts as healthy when :data:`RETURN_PROBES` full probes in a row have passed. Each directory has its
own coroutine, so that no directory waits for the disk of another one.

A directory that does not answer is watched from memory, if a guard has read it before (:mod:`.recall`). When it
answers, its own content counts.

All access to a directory goes through its worker (role ``guard``). The worker takes no ``.lock``, and writes only its
own probe files.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct, field

from kjbod.clock import Clock
from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod_guard import surroundings
from kjbod_guard.binding import FORMAT, Heads, Owned, heads
from kjbod_guard.entry import Entry
from kjbod_guard.helper_directory import MASK_SOURCE
from kjbod_guard.recall import REPLACED, helpless, moment
from kjbod_guard.recalling import NoRecollection, Recollection, Unread, pause
from kjbod_host.health.mountinfo import read_mounts
from kjbod_host.health.mounts import Mount, mount_of
from kjbod_host.health.state import DirectoryHealth, Health
from kjbod_host.reporter import Log
from kjbod_host.storage.api import (
    CanProbe,
    CanSurvey,
    DirectoryAgent,
    DirectoryError,
    DirectoryTimeout,
    LoadedDirectory,
    StorageAgent,
    Survey,
)

HEAD_TIMEOUT_MS: Final = 10_000
PATIENCE_MS: Final = 3_500
"""How long the start waits for a directory that does not answer."""
AGAIN_MS: Final = 5_000
FAILED_AGAIN_MS: Final = 1_000
"""Time between two looks at a directory that has just failed. The step for it depends on whether its disk answers
again."""
JUST_MS: Final = 60_000
"""Time after a failure in which the guard looks each :data:`FAILED_AGAIN_MS`."""
RETURN_PROBES: Final = 3
REST_MS: Final = 60_000
"""How long a directory that was released is not touched, so that it can be unmounted; a new mount ends that."""
SURVEY_EVERY_MS: Final = 60_000
REPLICAS_PER_PIECE: Final = 500
MASKED: Final = (
    "{path}: the mask of a guard is mounted there. A guard that acts takes it off; else umount {path} when its disk is "
    "healthy, and restart the broker"
)
IN_DOUBT: Final = frozenset({Health.SUSPECT, Health.FAILED, Health.HELD})
"""States of a directory in which only probes may touch its disk."""


class Monitor(Protocol):
    """The part of :class:`kjbod_host.health.monitor.HealthMonitor` that is used here."""

    def add(self, agent: CanProbe, loaded: LoadedDirectory, directory_id: str, *, silent: bool = False) -> None: ...

    def health(self, path: str) -> DirectoryHealth: ...

    def remove(self, path: str) -> None: ...


class Watching(Struct):
    """Watch over all configured directories.

    Args:
        node_id: of the broker.
        paths: as configured.
        storage: has the workers of the directories.
        clock: the time.
        log: gets lines about changes.
        spawn: runs a coroutine for as long as the guard.
        changed: called with the path of a directory that is watched again.
        memory: of the directories that were read.
        command: command that formats a directory, for texts.
    """

    node_id: int
    paths: Sequence[str]
    storage: StorageAgent
    clock: Clock
    log: Log
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    changed: Callable[[str], None] = lambda path: None
    memory: Recollection = field(default_factory=NoRecollection)
    command: str = FORMAT
    entries: dict[str, Entry] = field(default_factory=dict)
    cluster_id: str | None = None
    _monitor: Monitor | None = None

    def __post_init__(self) -> None:
        self.entries = {path: Entry(path) for path in self.paths}

    # ---- state for other parts

    @property
    def owned(self) -> Mapping[str, Owned]:
        """Directories of this broker that were read, or are known from memory, by path."""
        return {path: entry.owned for path, entry in self.entries.items() if entry.owned is not None}

    @property
    def unwatched(self) -> Mapping[str, str]:
        """Reasons why directories are not watched, by path."""
        return {path: entry.reason for path, entry in self.entries.items() if entry.reason is not None}

    @property
    def unread(self) -> frozenset[str]:
        """Paths of directories that are known from memory, and have not answered since."""
        return frozenset(path for path, entry in self.entries.items() if entry.unread is not None)

    @property
    def helpless(self) -> Mapping[str, int]:
        """Wall clock of the first timeout, by path, of directories that are not watched because they do not answer."""
        found = (entry for entry in self.entries.values() if entry.owned is None and entry.silence is not None)
        return {entry.path: entry.silent_ms for entry in found}

    def why_suspect(self, path: str) -> str | None:
        """Return a line about a directory that is known from memory; None: it was read."""
        entry = self.entries[path]
        if entry.unread is None:
            return None
        return f"{path}: no answer since {moment(entry.silent_ms)}: it is known from what a guard read there before"

    def directory_id(self, path: str) -> Uuid | None:
        """Return the id of the directory at a path; None: not known."""
        owned = self.entries[path].owned
        return None if owned is None else owned.directory_id

    def is_elsewhere(self, path: str) -> bool:
        """Whether the path leads to another mount than at the last read: the old mount is gone, covered or swapped."""
        place = self.entries[path].place
        return bool(place) and self.place(path) != place

    def place(self, path: str, pid: int | None = None) -> str:
        """Return the name of the mount to which a path leads now, for this or another process; empty: not known."""
        owned = self.entries[path].owned
        return _place_of(path if owned is None else owned.loaded.real_path, pid)

    def mount(self, path: str) -> Mount | None:
        """Return the mount to which a path leads now."""
        entry = self.entries[path]
        return mount_of(entry.real_path or path, mounts_now())

    def why_over(self, path: str, failed_ms: int, started_ms: int, freed_ms: int | None = None) -> str | None:
        """Return why the failure of a directory may be over, in words; None: nothing shows that.

        Args:
            path: as configured.
            failed_ms: when the directory failed.
            started_ms: when the broker last started.
            freed_ms: when its disk completed the requests that had hung; None: it did not, or another request hangs.
        """
        entry = self.entries[path]
        if entry.passed:
            return "its probes pass again, and it is not called well yet"
        if freed_ms is not None and freed_ms > max(failed_ms, entry.still_ms):
            return "its disk answers again, and it is not called well yet"
        if max(failed_ms, entry.still_ms) < started_ms:
            return "it failed before the broker started, and was not looked at since"
        return None

    def errs(self, path: str) -> bool:
        """Whether a directory that is not watched answers EIO, like a file system that was shut down. The guard does
        not look at such a directory again, because the first look may hang with its disk."""
        return self.entries[path].errs or self._is_shut_down(self.entries[path])

    def is_masked(self, path: str) -> bool:
        """Whether a mask of a guard is over a directory, in the mount namespace of this process."""
        mount = self.mount(path)
        return mount is not None and mount.source == MASK_SOURCE

    def surveys(self) -> dict[str, Survey]:
        """Return the names around the directories on their file systems, by real path."""
        return {
            entry.owned.loaded.real_path: entry.survey
            for entry in self.entries.values()
            if entry.owned is not None and entry.survey is not None
        }

    def why_not_listed(self, path: str) -> str | None:
        """Return why a directory may not be listed now, in words; None: it may be. Only probes may touch a disk in
        doubt."""
        entry = self.entries[path]
        if entry.owned is None or self._monitor is None:
            return entry.reason or f"{path}: the guard has not read it yet"
        if (silent := self.why_suspect(path)) is not None:
            return silent
        health = self._monitor.health(path).health
        return f"{path} is {health}" if health in IN_DOUBT else None

    # ---- reading

    async def begin(self) -> tuple[tuple[DirectoryAgent, LoadedDirectory, str], ...]:
        """Read all directories at the same time, and return those that were read in time, for the monitor. Use the
        memory for directories that do not answer."""
        loads = await asyncio.gather(*(self._load(path, PATIENCE_MS) for path in self.paths))
        self._sort({path: load for path, load in zip(self.paths, loads, strict=True) if load is not None})
        read = self.owned
        await asyncio.gather(*(self._survey(self.entries[path]) for path in read))
        for entry in self.entries.values():
            if entry.silence is not None:
                await self._recall(entry, entry.silence)
        return tuple((self.storage.directory(path), one.loaded, str(one.directory_id)) for path, one in read.items())

    def tend(self, monitor: Monitor) -> None:
        """Start to watch each directory."""
        self._monitor = monitor
        for entry in self.entries.values():
            self._watch_unread(entry)
            self.spawn(self._tend(entry))

    async def _load(self, path: str, timeout_ms: int) -> LoadedDirectory | None:
        """Read the head of a directory; None: it cannot be read, and its entry has the reason."""
        entry = self.entries[path]
        try:
            loaded = await self.storage.directory(path).load_head(timeout_ms=timeout_ms)
        except DirectoryTimeout as silence:
            if entry.silence is None:
                entry.silence, entry.silent_ms = silence, self.clock.wall_ms() - silence.age_ms
            entry.errs = False
            return None
        except StorageError as error:
            entry.silence = None
            entry.errs = isinstance(error, DirectoryError) and error.errno == errno.EIO
            self._unwatched(entry, MASKED.format(path=path) if self.is_masked(path) else str(error))
            return None
        entry.place, entry.real_path, entry.silence = _place_of(loaded.real_path), loaded.real_path, None
        entry.errs = False
        return loaded

    def _sort(self, loads: Mapping[str, LoadedDirectory]) -> Heads:
        """Store the directories that were read, sorted by owner."""
        found = heads(self.node_id, loads, self.cluster_id, self.command)
        self.cluster_id = self.cluster_id or found.cluster_id
        for path in loads:
            entry = self.entries[path]
            if path in found.foreign:
                self._unwatched(entry, found.foreign[path])
                self.memory.forget(path)
            else:
                entry.owned, entry.reason, entry.passed = found.owned[path], None, 0
                self.memory.read(path, found.owned[path].loaded)
        return found

    def _unwatched(self, entry: Entry, reason: str) -> None:
        if entry.owned is None and entry.reason != reason:
            self.log.warning("directory.unwatched", path=entry.path, reason=reason)
            entry.reason = reason

    def nobody_holds(self) -> None:
        """Make a survey of each directory due, because no process holds a known ``.lock``. Kafka removes the file when
        it stops, and makes a new one when it starts."""
        due_ms = self.clock.monotonic_ms() - SURVEY_EVERY_MS
        for entry in self.entries.values():
            entry.surveyed_ms = min(entry.surveyed_ms, due_ms)

    def rest(self, path: str) -> None:
        """Do not touch a released directory for :data:`REST_MS`, so that it can be unmounted; a new mount there ends
        that time."""
        entry = self.entries[path]
        entry.rests_until_ms, entry.rests_on = self.clock.monotonic_ms() + REST_MS, self._place(entry)
        if entry.owned is None or self._monitor is None or self._monitor.health(path).health is Health.FAILED:
            return
        self._give_up(entry)  # the monitor probes it each second
        self._unwatched(entry, "it was released")

    def _place(self, entry: Entry) -> str:
        return _place_of(entry.real_path or entry.path)

    def _rests(self, entry: Entry) -> bool:
        """Whether not to touch a directory: it was released a short time ago, or its file system was shut down. After a
        shutdown it answers only after a new mount."""
        if entry.rests_until_ms > self.clock.monotonic_ms() and entry.rests_on == self._place(entry):
            return True
        return self._is_shut_down(entry)

    def _is_shut_down(self, entry: Entry) -> bool:
        """Whether the mount table shows that the file system was shut down. For ext4 it does; for XFS it never does."""
        mount = self.mount(entry.path)
        return mount is not None and "shutdown" in mount.options

    # ---- one directory

    async def _tend(self, entry: Entry) -> None:
        if entry.owned is not None:
            await self._read_replicas(entry)
        while True:
            await pause(entry.unread, self._pause_ms(entry))
            assert self._monitor is not None
            failed = entry.owned is None or self._monitor.health(entry.path).health is Health.FAILED
            if failed and self._rests(entry):
                entry.passed = 0
            elif entry.owned is None:
                await self._look_for(entry)
            elif failed:
                await self._look_whether_well(entry)
            elif entry.unread is not None:
                if entry.unread.found is not None and self._is_ours(entry, entry.unread.found):
                    await self._take_up(entry)
            elif self._is_survey_due(entry):
                await self._survey(entry)

    def _pause_ms(self, entry: Entry) -> int:
        """Return the time until the next look at a directory, in ms."""
        if entry.owned is None or self._monitor is None:
            return AGAIN_MS
        now = self._monitor.health(entry.path)
        just = now.health is Health.FAILED and (entry.passed or self.clock.monotonic_ms() - now.since_ms < JUST_MS)
        return FAILED_AGAIN_MS if just else AGAIN_MS

    async def _look_for(self, entry: Entry) -> None:
        """Watch a directory that was not watched, if it can be read now, or is known from memory."""
        self._renew_if_replaced(entry)
        loaded = await self._load(entry.path, HEAD_TIMEOUT_MS)
        if loaded is not None and self._is_ours(entry, loaded):
            await self._take_up(entry)
        elif loaded is None and entry.silence is not None:
            await self._recall(entry, entry.silence)
            self._watch_unread(entry)

    async def _look_whether_well(self, entry: Entry) -> None:
        """Look whether a failed directory is healthy again, or another directory is in its place."""
        agent = self._renew_if_replaced(entry)
        if agent.blocked() is not None:
            entry.still_ms = self.clock.monotonic_ms()
            return  # the disk has not answered yet
        try:
            if not entry.passed:
                loaded = await agent.load_head(timeout_ms=HEAD_TIMEOUT_MS)
                if not self._is_ours(entry, loaded, keep=True):
                    return
            await agent.probe(full=True, timeout_ms=HEAD_TIMEOUT_MS)
        except StorageError:
            entry.passed, entry.still_ms = 0, self.clock.monotonic_ms()
            return
        entry.passed += 1
        if entry.passed >= RETURN_PROBES:
            await self._take_up(entry)

    def _renew_if_replaced(self, entry: Entry) -> DirectoryAgent:
        """Return the worker of a directory; replace a worker that is stuck on a disk which is gone."""
        agent = self.storage.directory(entry.path)
        now = self._place(entry)
        if agent.blocked() is not None and self.is_elsewhere(entry.path) and now != entry.renewed:
            entry.renewed, entry.passed = now, 0
            return self.storage.renew(entry.path)
        return agent

    def _is_ours(self, entry: Entry, loaded: LoadedDirectory, *, keep: bool = False) -> bool:
        """Whether a directory that was read is this broker's; if so, store it. With ``keep``, a foreign directory does
        not replace the known one."""
        others = {path: owned.loaded for path, owned in self.owned.items() if path != entry.path}
        found = heads(self.node_id, {**others, entry.path: loaded}, self.cluster_id, self.command)
        if entry.path in found.owned:
            entry.owned, entry.place = found.owned[entry.path], _place_of(loaded.real_path)
            entry.unread = entry.silence = None
            self.memory.read(entry.path, loaded)
            return True
        if entry.unread is not None:
            self._give_up(entry)
        if not keep or entry.owned is None:
            self._unwatched(entry, found.foreign[entry.path])
        self.memory.forget(entry.path)
        return False

    def _give_up(self, entry: Entry) -> None:
        """Stop watching a directory, and forget its facts."""
        assert self._monitor is not None
        self._monitor.remove(entry.path)
        self.memory.forget(entry.path)
        entry.owned = entry.unread = entry.silence = None

    def disown(self, path: str) -> None:
        """Forget the remembered directory at a path that has not answered, because another directory is there."""
        entry = self.entries[path]
        silence, silent_ms = entry.silence, entry.silent_ms
        if entry.unread is None or silence is None or self._monitor is None:
            return
        self._give_up(entry)
        entry.silence = silence
        self._unwatched(entry, helpless(silence, silent_ms, REPLACED))

    async def _recall(self, entry: Entry, silence: DirectoryTimeout) -> None:
        """Use the memory of a directory that does not answer; without memory, log that the guard cannot act on it."""
        found = await self.memory.recall(entry.path)
        why = found if isinstance(found, str) else None
        if not isinstance(found, str):
            others = {path: owned.loaded for path, owned in self.owned.items() if path != entry.path}
            judged = heads(self.node_id, {**others, entry.path: found.loaded}, self.cluster_id, self.command)
            if entry.path in judged.owned:
                owned = entry.owned = judged.owned[entry.path]
                entry.reason, entry.passed, entry.survey = None, 0, found.survey
                entry.real_path, entry.place = found.loaded.real_path, _place_of(found.loaded.real_path)
                entry.unread = Unread(self.storage.directory(entry.path))
                self.cluster_id = self.cluster_id or owned.cluster_id
                read_at, directory_id = moment(found.at_ms), str(owned.directory_id)
                fields = {"path": entry.path, "directory_id": directory_id, "reason": str(silence), "read_at": read_at}
                self.log.warning("directory.recalled", **fields)
                return
            why = judged.foreign[entry.path]
        self._unwatched(entry, helpless(silence, entry.silent_ms, why or ""))

    def _watch_unread(self, entry: Entry) -> None:
        if entry.unread is not None and entry.owned is not None and self._monitor is not None:
            self._monitor.add(entry.unread, entry.owned.loaded, str(entry.owned.directory_id), silent=True)

    async def _take_up(self, entry: Entry) -> None:
        """Watch a directory from now on."""
        assert entry.owned is not None and self._monitor is not None
        entry.reason, entry.passed = None, 0
        self.cluster_id = self.cluster_id or entry.owned.cluster_id
        directory_id = str(entry.owned.directory_id)
        self._monitor.add(self.storage.directory(entry.path), entry.owned.loaded, directory_id)
        self.log.info("directory.watched", path=entry.path, directory_id=directory_id)
        self.changed(entry.path)
        await self._survey(entry)
        await self._read_replicas(entry)

    def _is_survey_due(self, entry: Entry) -> bool:
        """Whether the last survey is a minute old, or saw no ``.lock``. A broker makes that file when it starts."""
        overdue = self.clock.monotonic_ms() - entry.surveyed_ms >= SURVEY_EVERY_MS
        return overdue or entry.survey is None or entry.survey.lock is None

    async def _survey(self, entry: Entry) -> None:
        """Look at the names around a directory on its file system. After an error the last survey stays."""
        entry.surveyed_ms = self.clock.monotonic_ms()
        agent, owned = self.storage.directory(entry.path), entry.owned
        if owned is None or not isinstance(agent, CanSurvey):
            return
        mount = mount_of(owned.loaded.real_path, mounts_now())
        levels = [] if mount is None else surroundings.levels(owned.loaded.real_path, mount.mount_point)
        try:
            entry.survey = await agent.survey(levels, timeout_ms=HEAD_TIMEOUT_MS)
        except StorageError:
            return  # the monitor judges the disk
        self.memory.surveyed(entry.path, entry.survey)

    async def _read_replicas(self, entry: Entry) -> None:
        """Give the worker the replicas of a directory. Each probe reads a little of their old content."""
        agent, owned = self.storage.directory(entry.path), entry.owned
        replicas = () if owned is None else owned.loaded.replicas
        for start in range(0, len(replicas), REPLICAS_PER_PIECE):
            try:
                await agent.load_replicas(replicas[start : start + REPLICAS_PER_PIECE], timeout_ms=HEAD_TIMEOUT_MS)
            except StorageError:
                return  # Kafka has just removed a replica, or the disk fails, which the monitor judges


def mounts_now(pid: int | None = None) -> tuple[Mount, ...]:
    """Return the mount table of a process (default: this process); empty if it cannot be read. Never blocks."""
    try:
        return read_mounts() if pid is None else read_mounts(f"/proc/{pid}/mountinfo")
    except OSError:
        return ()


def same_file_system(one: str, other: str) -> bool:
    """Whether two names of mounts are of the same file system and the same directory in it."""
    return bool(one) and one.split(" ")[:2] == other.split(" ")[:2]


def _place_of(real_path: str, pid: int | None = None) -> str:
    """Return the name of the mount that a path leads to for a process; empty if its mount table does not show one."""
    mount = mount_of(real_path, mounts_now(pid))
    return "" if mount is None else f"{mount.device} {mount.root} {mount.mount_id}"
