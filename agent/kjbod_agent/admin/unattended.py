"""Work of the ``kjbod`` command while no agent runs: shows remembered directories, and removes or restores strays.

The memory lies on the host's own disk. Strays lie on log directories, which this process touches as little as the agent
does: through a storage agent, whose workers can be abandoned. A disk that hangs costs :data:`TIMEOUT_MS` and one line.

Looking changes nothing and takes no lock, so it may be done beside a Kafka broker that runs on the same directories. A
stray is only removed or restored under the lock of its directory (``.lock``, as Kafka takes it): what holds it, a
broker or an agent, believes that it knows what lies there. It is held until the work is done.

Whether a replica is stray is for the metadata to say, which nobody has here: the names say it, which end in ``-stray``.
So a stray that is restored is looked at again by the next agent or broker that starts.
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace

from kjbod.clock import Clock, SystemClock
from kjbod.config import Config
from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod_agent.replicas.inventory import NAME_BYTES_MAX
from kjbod_agent.replicas.stray_memory import Notes, StrayMemory
from kjbod_host.directories.known_directories import KnownDirectories
from kjbod_host.directories.start_up_rules import KnownDirectory
from kjbod_host.storage.api import DirectoryAgent, DirectoryError, Replica, StorageAgent, StorageOptions
from kjbod_host.storage.registry import create

T = TypeVar("T")

TIMEOUT_MS: Final = 10_000
"""For each piece of work on a disk."""


class UnattendedError(StorageError):
    """A stray cannot be removed or restored without an agent; the text says why and what to do."""


class FoundStray(Struct, frozen=True):
    """A stray as a disk shows it."""

    directory: str
    name: str
    topic: str
    partition: int
    topic_id: Uuid | None
    size: int | None = None
    """None: the disk did not say."""
    reason: str | None = None
    """Why it is one, as the last agent remembered; None: nobody does."""
    since_ms: int | None = None

    def row(self) -> dict[str, Any]:
        """As the agent would say it on its control socket; what only it knows is None."""
        topic_id = None if self.topic_id is None else str(self.topic_id)
        return asdict(self) | {"topic_id": topic_id, "online": None}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From what :meth:`row` gave."""
        topic_id = None if row["topic_id"] is None else Uuid.parse(row["topic_id"])
        return cls(row["directory"], row["name"], row["topic"], row["partition"], topic_id, row["size"])


class Survey(Struct, frozen=True):
    """The strays of all log directories.

    Attributes:
        strays: by directory, in the order of ``log.dirs``, and name.
        unreadable: why a directory could not be looked into, by path.
    """

    strays: tuple[FoundStray, ...]
    unreadable: Mapping[str, str]


def known_directories(config: Config) -> Mapping[str, KnownDirectory]:
    """Return the last agent's memory of its directories, by path, without touching them.

    Raises:
        StartUpError: the memory cannot be read.
    """
    state_dir = Path(config.kjbod_state_dir)
    if not state_dir.is_dir():
        return {}  # loading would make it
    return KnownDirectories(state_dir, config.node_id).load().directories


def survey(config: Config, clock: Clock | None = None) -> Survey:
    """Return the strays on all disks, without changing them."""

    notes = StrayMemory(Path(config.kjbod_state_dir), config.node_id).load()

    async def look(storage: StorageAgent) -> Survey:
        results = await asyncio.gather(*(_look(storage.directory(path), notes) for path in config.log_dirs))
        found = dict(zip(config.log_dirs, results, strict=True))
        return Survey(
            tuple(stray for result in results if not isinstance(result, StorageError) for stray in result),
            {path: str(error) for path, error in found.items() if isinstance(error, StorageError)},
        )

    return _run(config, clock, look)


def remove(config: Config, strays: Sequence[FoundStray], clock: Clock | None = None) -> Mapping[FoundStray, str | None]:
    """Remove strays; gives for each why not, None: it is gone."""

    async def work(agent: DirectoryAgent, stray: FoundStray) -> None:
        await agent.delete_replica(stray.name, stray.topic_id, timeout_ms=TIMEOUT_MS)

    return _run(config, clock, lambda storage: _change(storage, strays, work))


def restore(
    config: Config, strays: Sequence[FoundStray], clock: Clock | None = None
) -> Mapping[FoundStray, str | None]:
    """Give strays the names of replicas back; gives for each why not, None: it has its name."""

    async def work_with(storage: StorageAgent) -> Mapping[FoundStray, str | None]:
        taken = await _current_names(storage, config.log_dirs)

        async def work(agent: DirectoryAgent, stray: FoundStray) -> None:
            name = _restored_name(stray)
            if name in taken:
                raise UnattendedError(
                    f"there is a {name} in {taken[name]}: the same replica in two directories is an error for a broker"
                )
            taken[name] = stray.directory
            await agent.rename_replica(stray.name, name, timeout_ms=TIMEOUT_MS)

        return await _change(storage, strays, work)

    return _run(config, clock, work_with)


def _restored_name(stray: FoundStray) -> str:
    if len(os.fsencode(stray.name)) >= NAME_BYTES_MAX:
        raise UnattendedError(
            f"{stray.name}: perhaps the name of its topic was cut to fit: only an agent that runs knows the whole name"
        )
    return f"{stray.topic}-{stray.partition}"


async def _current_names(storage: StorageAgent, paths: Iterable[str]) -> dict[str, str]:
    """Return the names of current replicas in all directories, with their directories.

    Raises:
        UnattendedError: one of them cannot be looked into, and may hold any.
    """
    names: dict[str, str] = {}
    for path in paths:
        try:
            head = await storage.directory(path).load_head(timeout_ms=TIMEOUT_MS)
        except StorageError as error:
            raise UnattendedError(f"nothing was restored: {path} may hold the same replica: {error}") from None
        names.update({replica.name: path for replica in head.replicas if not replica.suffix})
    return names


async def _look(agent: DirectoryAgent, notes: Notes) -> tuple[FoundStray, ...] | StorageError:
    try:
        head = await agent.load_head(timeout_ms=TIMEOUT_MS)
        strays = [replica for replica in head.replicas if replica.suffix == "stray"]
        if not strays:
            return ()
        read = await agent.load_replicas(strays, timeout_ms=TIMEOUT_MS)
        directory_id = head.directory_id or ""
        found = [_found(agent.path, directory_id, replica, notes) for replica in sorted(read, key=lambda r: r.name)]
        sizes = await agent.replica_sizes([stray.name for stray in found], timeout_ms=TIMEOUT_MS)
    except StorageError as error:
        return error
    return tuple(replace(stray, size=sizes.get(stray.name)) for stray in found)


def _found(path: str, directory_id: str, replica: Replica, notes: Notes) -> FoundStray:
    found = FoundStray(path, replica.name, replica.topic, replica.partition, replica.topic_id)
    remembered = [note for (where, name), note in notes.items() if (str(where), name) == (directory_id, replica.name)]
    return replace(found, reason=remembered[0].reason, since_ms=remembered[0].since_ms) if remembered else found


async def _change(
    storage: StorageAgent, strays: Sequence[FoundStray], work: Callable[[DirectoryAgent, FoundStray], Awaitable[None]]
) -> Mapping[FoundStray, str | None]:
    """Do something with strays, under the locks of their directories; directories do not wait for each other."""
    results: dict[FoundStray, str | None] = {}

    async def in_directory(path: str) -> None:
        agent = storage.directory(path)
        refusal = await _lock(agent)
        for stray in (each for each in strays if each.directory == path):
            results[stray] = refusal or await _attempt(work(agent, stray))

    await asyncio.gather(*map(in_directory, _unique(stray.directory for stray in strays)))
    return {stray: results[stray] for stray in strays}


async def _lock(agent: DirectoryAgent) -> str | None:
    """Take the lock of a directory; the reason why it is not to be had, None: it is held."""
    try:
        await agent.load_head(timeout_ms=TIMEOUT_MS)  # so that nothing is changed on another disk than was looked at
        await agent.lock(timeout_ms=TIMEOUT_MS)
    except DirectoryError as error:
        if error.errno == errno.EAGAIN:
            holder = "another process (a Kafka broker or an agent)"
            return f"{agent.path} is in use: {holder} holds {agent.path}/.lock: stop it first"
        return str(error)
    except StorageError as error:
        return str(error)
    return None


async def _attempt(work: Awaitable[None]) -> str | None:
    try:
        await work
    except StorageError as error:
        return str(error)
    return None


def _unique(texts: Iterable[str]) -> Collection[str]:
    return dict.fromkeys(texts)


def _run(config: Config, clock: Clock | None, work: Callable[[StorageAgent], Awaitable[T]]) -> T:
    """Do ``work`` with a storage agent that exists as long as that."""
    options = StorageOptions(clock=clock or SystemClock(), role=config.kjbod_role)

    async def run() -> T:
        storage = create(config.kjbod_storage_agent, options)
        try:
            await storage.start()
            return await work(storage)
        finally:
            await storage.close()

    return asyncio.run(run())
