"""Reads what lies in the directories while the agent registers, heartbeats and watches its disks: each on its own.

Ten thousand replicas are ten thousand small files to read. Until those of a directory are read it is "not loaded" for
:mod:`kjbod_agent.replicas.table`, which waits with what it may have a say in and keeps the broker fenced. A disk that
is slow delays nobody else. Whether one that does not answer is dead is for the health monitor to say, whose probes
go between any two pieces; when it says so, the directory has failed and nobody waits for it any more. Errors of the
disk end it after :data:`ATTEMPTS`, also where probes pass: in Kafka an unreadable file takes its directory offline too
(``LogManager.loadLogs``). Errors that speak of one replica (``worker.ONE_REPLICA``) are not errors of the disk.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from kjbod.clock import Clock
from kjbod.errors import KjbodError
from kjbod.ids import Uuid
from kjbod_host.directories.start_up import LOAD_TIMEOUT_MS, Opened, prepare
from kjbod_host.directories.start_up_rules import Directory, StartUpError
from kjbod_host.reporter import Log
from kjbod_host.storage.api import DirectoryAgent, DirectoryError, DirectoryTimeout, Replica, WorkerUnavailable

ATTEMPTS: Final = 3
"""Errors of the disk after which a directory that cannot be loaded has failed."""
RETRY_MS: Final = 1_000
SLICE: Final = 1_000
"""Replicas that are asked for in one go: what was read is not read again after a timeout."""


class LoadingOwner(Protocol):
    """The agent, as loading uses it. No method blocks."""

    def is_offline(self, directory_id: Uuid) -> bool:
        """Whether a directory has failed in this process."""

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        """Handle an error of the kernel in a directory."""

    def directory_failed(self, directory_id: Uuid, cause: str, text: str, since_ms: int) -> None:
        """A directory is offline from now on."""

    def directory_loaded(self, directory: Directory, agent: DirectoryAgent, replicas: Sequence[Replica]) -> None:
        """Note that all replicas of a directory are known."""

    def directory_missing(self, path: str, directory_id: Uuid | None) -> None:
        """Take a late directory offline that did not answer in time."""

    def refuse(self, reason: str) -> None:
        """End the process, because the directories cannot be used."""


class Loading:
    """Loads the directories that :func:`~kjbod_host.directories.start_up.open_directories` opened.

    Args:
        opened: the directories.
        owner: the agent.
        adopt: adds a directory whose head has come late, as ``kjbod dirs add`` does.
        agent_at: the storage agent of a path.
        clock: the time.
        log: for how long it took.
    """

    def __init__(
        self,
        opened: Opened,
        owner: LoadingOwner,
        *,
        adopt: Callable[[str], Awaitable[str]],
        agent_at: Callable[[str], DirectoryAgent],
        clock: Clock,
        log: Log,
    ) -> None:
        self._opened = opened
        self._owner = owner
        self._adopt = adopt
        self._agent_at = agent_at
        self._clock = clock
        self._log = log

    async def run(self) -> None:
        """Load all directories; return when each is loaded or has failed."""
        async with asyncio.TaskGroup() as tasks:
            for directory in self._opened.start_up.all:
                if directory.directory_id in self._opened.loading | self._opened.unprepared:
                    tasks.create_task(self._load(directory))
            for path in self._opened.late:
                tasks.create_task(self._wait_for(path))

    async def _load(self, directory: Directory) -> None:
        begun_ms, errors = self._clock.monotonic_ms(), 0
        directory_id, agent = directory.directory_id, self._opened.agents[directory.directory_id]
        found: list[Replica] = []
        while not self._owner.is_offline(directory_id):
            try:
                await self._prepare(directory, agent)
                await _read(agent, directory.loaded.replicas, found)
            except StartUpError as error:
                self._owner.refuse(str(error))
                return
            except DirectoryError as error:
                errors += 1
                if errors == ATTEMPTS:
                    self._owner.directory_failed(directory_id, "error", str(error), self._clock.monotonic_ms())
                    return
                self._owner.work_failed(directory_id, error)
            except (DirectoryTimeout, WorkerUnavailable) as trouble:
                self._log.warning("directory.load.delayed", path=directory.path, reason=str(trouble))
            else:
                self._done(directory, agent, found, self._clock.monotonic_ms() - begun_ms)
                return
            await asyncio.sleep(RETRY_MS / 1000)

    async def _prepare(self, directory: Directory, agent: DirectoryAgent) -> None:
        if directory.directory_id in self._opened.unprepared:
            # Never with a new id: one that gets it is prepared before the agent starts.
            await prepare(directory, agent, None, 0, timeout_ms=LOAD_TIMEOUT_MS)
            self._opened.unprepared.discard(directory.directory_id)

    def _done(self, directory: Directory, agent: DirectoryAgent, found: list[Replica], took_ms: int) -> None:
        if directory.directory_id not in self._opened.loading:
            return  # the metadata directory apart, or its disk was replaced meanwhile
        if self._owner.is_offline(directory.directory_id):
            return  # it failed with the last answer
        self._opened.loading.discard(directory.directory_id)
        self._log.info("directory.loaded", path=directory.path, replicas=len(found), took_ms=took_ms)
        self._owner.directory_loaded(directory, agent, found)

    async def _wait_for(self, path: str) -> None:
        """The head of a directory that did not come in time: wait for the rest of its time."""
        unreadable = next(u for u in self._opened.start_up.unreadable if u.path == path)
        try:
            try:
                await self._agent_at(path).load_head(timeout_ms=LOAD_TIMEOUT_MS)
            finally:
                self._opened.late.discard(path)
            await self._adopt(path)
        except KjbodError as error:
            if any(u.path == path for u in self._opened.start_up.unreadable):
                known = None if unreadable.directory_id is None else str(unreadable.directory_id)
                self._log.error("directory.unreadable", path=path, directory_id=known, reason=str(error))
                self._owner.directory_missing(path, unreadable.directory_id)


async def _read(agent: DirectoryAgent, replicas: Sequence[Replica], found: list[Replica]) -> None:
    """Add to ``found`` what is missing of ``replicas``, with their topic ids."""
    while len(found) < len(replicas):
        piece = replicas[len(found) : len(found) + SLICE]
        found.extend(await agent.load_replicas(piece, timeout_ms=LOAD_TIMEOUT_MS))


async def read_replicas(agent: DirectoryAgent, replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    """All of them with their topic ids.

    Raises:
        StorageError: what the storage agent answered.
    """
    found: list[Replica] = []
    await _read(agent, replicas, found)
    return tuple(found)
