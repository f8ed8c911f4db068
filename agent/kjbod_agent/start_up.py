"""The start of the agent up to the point where it knows its directories and holds their locks.

Everything here may be refused, with one line that says what is wrong, and a refusal leaves the disks as they were: the
rules are checked before anything is written (:func:`kjbod_agent.directories.examine`), and locks are taken before a
missing ``directory.id`` is added.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod.meta_properties import render_meta_properties
from kjbod_agent.directories import Directory, KnownDirectories, Load, StartUp, StartUpError, examine
from kjbod_agent.reporting import Log
from kjbod_agent.reports import DaemonThreadExecutor
from kjbod_agent.storage.api import (
    DirectoryAgent,
    DirectoryError,
    DirectoryTimeout,
    LoadedDirectory,
    StorageAgent,
)

T = TypeVar("T")

LOAD_TIMEOUT_MS: Final = 10_000
"""For each piece of reading a directory. One that does not answer is offline from the start."""
LOCK_TIMEOUT_MS: Final = 10_000
STATE_TIMEOUT_MS: Final = 10_000
CLOSE_TIMEOUT_MS: Final = 500
"""For the mark of a clean shutdown. A directory without one costs a longer start, one that is waited for delays the
stop of all."""
BLOCKED_MS: Final = 250
"""A directory that has not answered for so long when the agent stops is not asked for more."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The directories of this agent, loaded and locked."""

    start_up: StartUp
    agents: Mapping[Uuid, DirectoryAgent]
    """Of every directory that was read."""
    failed: Mapping[Uuid, str]
    """Directories that failed between loading and now, and why: registered, and reported offline at once."""


async def open_directories(config: Config, storage: StorageAgent, clock: Clock, rng: random.Random, log: Log) -> Opened:
    """Load all directories, check them, lock them, give ids to those without, and remember which is where.

    Raises:
        StorageError: one line that says which directory cannot be used and what to do.
    """
    memory = KnownDirectories(Path(config.kjbod_state_dir), config.node_id)
    executor = DaemonThreadExecutor("kjbod-state")
    try:
        remembered = await _bounded(executor, memory.load, config.kjbod_state_dir)
        agents = {path: storage.directory(path) for path in dict.fromkeys((*config.log_dirs, config.metadata_log_dir))}
        start_up = examine(
            node_id=config.node_id,
            log_dirs=config.log_dirs,
            metadata_log_dir=config.metadata_log_dir,
            loads=_without_missing(await _load_all(agents), remembered),
            remembered=remembered,
            rng=rng,
        )
        _tell_replaced(start_up, remembered, log)
        failed = await _lock_all(start_up, agents)
        await _write_ids(start_up, agents, clock, skip=failed)
        failed |= await _clear_clean_shutdown(start_up, agents, skip=failed)
        known = {path: remembered[path] for path in agents if path in remembered}
        known |= {directory.path: directory.directory_id for directory in start_up.all}
        if known != remembered:
            await _remember(executor, memory, known, log, config.kjbod_state_dir)
    finally:
        executor.shutdown(wait=False)
    return Opened(start_up, {d.directory_id: agents[d.path] for d in start_up.all}, failed)


async def mark_clean(opened: Opened, directories: list[Uuid], broker_epoch: int) -> None:
    """Write ``.kafka_cleanshutdown`` into these directories, in bounded time; what does not work is left out."""

    async def write(agent: DirectoryAgent) -> None:
        blocked = agent.blocked()
        if blocked is not None and blocked.age_ms >= BLOCKED_MS:
            return
        await agent.write_clean_shutdown(broker_epoch, timeout_ms=CLOSE_TIMEOUT_MS)

    await asyncio.gather(*(write(opened.agents[d]) for d in directories), return_exceptions=True)


async def _bounded(executor: DaemonThreadExecutor, call: Callable[[], T], state_dir: str) -> T:
    """File work outside the watched disks, on a thread of its own that nobody waits for at the end."""
    try:
        async with asyncio.timeout(STATE_TIMEOUT_MS / 1000):
            return await asyncio.get_running_loop().run_in_executor(executor, call)
    except TimeoutError:
        raise StartUpError(
            f"kjbod.state.dir={state_dir}: no answer for {STATE_TIMEOUT_MS} ms: it must not be on a watched disk"
        ) from None


async def _remember(
    executor: DaemonThreadExecutor, memory: KnownDirectories, known: Mapping[str, Uuid], log: Log, state_dir: str
) -> None:
    """Save the memory. That it cannot be saved, on a full disk, is no reason to leave healthy disks without a broker:
    all that is lost is the id of a disk that cannot be read at the next start."""
    try:
        await _bounded(executor, lambda: memory.save(known), state_dir)
    except StartUpError as error:
        log.warning("state.not.saved", reason=str(error))


async def _load_all(agents: Mapping[str, DirectoryAgent]) -> dict[str, Load]:
    async def load(agent: DirectoryAgent) -> Load:
        try:
            return await agent.load(timeout_ms=LOAD_TIMEOUT_MS)
        except StorageError as error:
            return error

    return dict(zip(agents, await asyncio.gather(*map(load, agents.values())), strict=True))


def _without_missing(loads: Mapping[str, Load], remembered: Mapping[str, Uuid]) -> dict[str, Load]:
    """A path that was a log directory at the last start and is none now lacks its disk, or has a new one that nobody
    has formatted: it is offline, and the others go on. Where nobody remembers one it is a mistake of whoever set it up,
    and :func:`examine` refuses it."""

    def judge(path: str, load: Load) -> Load:
        absent = load.errno == errno.ENOENT if isinstance(load, DirectoryError) else False
        bare = isinstance(load, LoadedDirectory) and load.meta_properties is None
        if path not in remembered or not (absent or bare):
            return load
        remedy = "mount its disk, or format the new one (kjbod format)"
        if isinstance(load, LoadedDirectory) and load.replicas:
            remedy = f"it has {len(load.replicas)} replicas, so restore the file"
        return StorageError(
            f"{path} {'does not exist' if absent else 'has no meta.properties'}, and had directory.id "
            f"{remembered[path]} at the last start: {remedy}, and restart the agent"
        )

    return {path: judge(path, load) for path, load in loads.items()}


def _tell_replaced(start_up: StartUp, remembered: Mapping[str, Uuid], log: Log) -> None:
    for directory in start_up.all:
        before = remembered.get(directory.path)
        if before not in (None, directory.directory_id):
            log.warning(
                "directory.replaced",
                path=directory.path,
                directory_id=str(directory.directory_id),
                before=str(before),
            )
    for unreadable in start_up.unreadable:
        log.error(
            "directory.unreadable",
            path=unreadable.path,
            directory_id=None if unreadable.directory_id is None else str(unreadable.directory_id),
            reason=unreadable.reason,
        )


async def _lock_all(start_up: StartUp, agents: Mapping[str, DirectoryAgent]) -> dict[Uuid, str]:
    """Directories that could not be locked because of the disk; one that another process holds is fatal."""

    async def lock(directory: Directory) -> StorageError | None:
        try:
            await agents[directory.path].lock(timeout_ms=LOCK_TIMEOUT_MS)
        except StorageError as error:
            return error
        return None

    failed: dict[Uuid, str] = {}
    results = await asyncio.gather(*map(lock, start_up.all))
    for directory, error in zip(start_up.all, results, strict=True):
        if isinstance(error, DirectoryError) and error.errno == errno.EAGAIN:
            raise StartUpError(
                f"log directory {directory.path} is in use: another process holds {directory.path}/.lock "
                "(a Kafka broker or another agent)"
            )
        if isinstance(error, DirectoryError | DirectoryTimeout):
            failed[directory.directory_id] = str(error)
        elif error is not None:
            raise error
    return failed


async def _write_ids(
    start_up: StartUp, agents: Mapping[str, DirectoryAgent], clock: Clock, skip: Mapping[Uuid, str]
) -> None:
    """Add a ``directory.id`` where there is none; a failure is fatal, as in Kafka."""
    moment = datetime.fromtimestamp(clock.wall_ms() / 1000, UTC).astimezone()
    for path, meta in start_up.to_write.items():
        if meta.directory_id in skip:
            continue
        try:
            await agents[path].write_meta_properties(render_meta_properties(meta, moment), timeout_ms=LOAD_TIMEOUT_MS)
        except StorageError as error:
            raise StartUpError(f"cannot write directory.id into {path}/meta.properties: {error}") from None


async def _clear_clean_shutdown(
    start_up: StartUp, agents: Mapping[str, DirectoryAgent], skip: Mapping[Uuid, str]
) -> dict[Uuid, str]:
    """Remove the marks of a clean shutdown, so that a crash from here on counts as one."""

    async def clear(directory: Directory) -> StorageError | None:
        if directory.directory_id in skip or not directory.loaded.clean_shutdown:
            return None
        try:
            await agents[directory.path].clear_clean_shutdown(timeout_ms=LOAD_TIMEOUT_MS)
        except StorageError as error:
            return error
        return None

    results = await asyncio.gather(*map(clear, start_up.all))
    return {d.directory_id: str(e) for d, e in zip(start_up.all, results, strict=True) if e is not None}
