"""Directories that are added while the agent runs (``kjbod dirs add``): a replaced disk, one that is back, a new one.

Shipped Kafka needs a restart for each of these, which takes the healthy disks of the host along. Here the sequence is

1. *Refuse* what is no case for it, with one line that says what to do; nothing has changed then, but for the lock.
2. A fresh storage agent for the path, since the worker of the dead disk may be stuck for ever. It reads the new disk,
   which has to fit by the rules of the start (:func:`kjbod_host.directories.start_up_rules.examine_addition`), is
   locked, and has to pass a full probe: a disk that has only stopped to answer errors for a moment is not well.
3. *Remember* what lies where now, and which directory was retired, before anybody else is told.
4. *Register again*, the same incarnation with the new set of directories (``ClusterControlManager.registerBroker``
   amends the registration: epoch and fencing stay), while the health monitor watches the disk already.
5. When the metadata show that the controller has taken it, and not before: *forget* the retired directory and count on
   the new one. Only from then on may replicas be assigned to it; a controller takes an assignment to a directory that
   is not registered for one to an offline directory. The replicas of the retired one are then decided anew by the table
   of :mod:`kjbod_agent.replicas.table`, which makes none as long as another offline directory may hold a copy.

A controller that goes by the KIP's text does not bring a directory back that has failed under this incarnation; shipped
ones do. Then it stays offline, and waits for a restart.

A directory may be retired only when the controller has recorded its failure, because a registration moves no leader:
one that was left on the dead disk would stay there.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.config.load import Check, config_of
from kjbod.config.needs import AGENT_NEEDS, SERVER_NEEDS
from kjbod.errors import StorageError
from kjbod.ids import Uuid
from kjbod.permissions import DENIED, explain
from kjbod_agent.directories.loading import read_replicas
from kjbod_host.directories.start_up import (
    LOAD_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    Opened,
    Remembering,
    misconfigured,
    prepare,
    remember,
)
from kjbod_host.directories.start_up_rules import Addition, Directory, StartUpError, Unreadable, examine_addition
from kjbod_host.reporter import Log
from kjbod_host.storage.api import DirectoryAgent, DirectoryError, LoadedDirectory, Replica, StorageAgent

PROBE_TIMEOUT_MS: Final = 10_000
ANSWER_TIMEOUT_MS: Final = 10_000
"""How long the caller waits for the controller's answer. The addition goes on without him."""


class AdditionError(StorageError):
    """A directory cannot be added (now); the text says why and what to do, or what is waited for."""


class Added(Struct, frozen=True, kw_only=True):
    """A directory that the agent has to take in."""

    directory: Directory
    agent: DirectoryAgent
    retired: tuple[Uuid, ...]
    """Ids that it takes the place of."""
    unknown: bool
    """It takes the place of one that could not be read and whose id nobody remembers."""
    log_dirs: tuple[Uuid, ...]
    """All that are registered from now on."""


class AdditionsOwner(Protocol):
    """The agent, as additions use it. No method blocks."""

    def why_not_now(self, directories: int, failed: Uuid | None) -> str | None:
        """Reason why no directory can be added now, so that there are so many, in words that follow the path.
        ``failed`` is the one that it may take the place of."""

    def is_offline(self, directory_id: Uuid) -> bool:
        """Whether a directory has failed in this process."""

    def registered_elsewhere(self) -> Mapping[Uuid, int]:
        """Directories of other brokers, and whose they are."""

    def directory_added(self, added: Added) -> asyncio.Future[bool]:
        """A directory is to be registered from now on; says whether the controller took it, when that is known."""

    def directory_taken(self, added: Added, replicas: Sequence[Replica]) -> None:
        """The controller knows it: it counts, and what it took the place of no longer does."""

    def directory_refused(self, added: Added, reason: str) -> None:
        """The controller keeps it offline, and so does the agent."""


class Watcher(Protocol):
    """The part of :class:`kjbod_host.health.monitor.HealthMonitor` that additions use."""

    def add(self, agent: DirectoryAgent, loaded: LoadedDirectory, directory_id: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def not_mounted(self, path: str, loaded: LoadedDirectory, remembered: str | None) -> str | None: ...


class Additions:
    """Adder of directories, one at a time.

    Args:
        config: as read at the start.
        storage: gives storage agents.
        opened: the directories; changed.
        remembering: the memory; changed.
        owner: the agent.
        monitor: gets what is to be watched.
        clock: the time.
        rng: for missing directory ids.
        log: for what was done.
        spawn: runs a coroutine in the daemon's TaskGroup.
        read_config: reads a configuration file again.
        checks: what the next start demands of it.
    """

    def __init__(
        self,
        *,
        config: Config,
        storage: StorageAgent,
        opened: Opened,
        remembering: Remembering,
        owner: AdditionsOwner,
        monitor: Watcher,
        clock: Clock,
        rng: random.Random,
        log: Log,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        read_config: Callable[[str], Awaitable[Config]] | None = None,
        checks: Sequence[Check] = (),
    ) -> None:
        self._config = config
        self._paths = config.log_dirs
        self._storage = storage
        self._opened = opened
        self._remembering = remembering
        self._owner = owner
        self._monitor = monitor
        self._clock = clock
        self._rng = rng
        self._log = log
        self._spawn = spawn
        self._read_config = read_config or self._read_again
        self._checks = checks
        self._needs = SERVER_NEEDS if "controller" in config.process_roles else AGENT_NEEDS  # of the next start
        self._one_at_a_time = asyncio.Lock()

    async def add(self, path: str, *, renew: bool = True) -> str:
        """Add the directory at ``path``; one line that says what was done.

        Args:
            path: as in ``log.dirs``.
            renew: whether the storage agent of this path is to be replaced by a fresh one.

        Raises:
            KjbodError: it cannot be added; one line says why and what to do, or what is waited for.
        """
        async with self._one_at_a_time:
            path = await self._configured(path)
            before = self._before(path)
            agent = self._storage.renew(path) if renew else self._storage.directory(path)
            addition, replicas = await self._examine(path, agent)
            return await self._take_in(addition.directory, agent, replicas, before)

    # ---- may it be added

    async def _configured(self, path: str) -> str:
        """The path as ``log.dirs`` spells it, which has it perhaps only by now."""
        found = _spelled(path, self._paths)
        if found is not None:
            return found
        config = await self._read_config(self._config.source)
        found = _spelled(path, config.log_dirs)
        if found is None:
            raise AdditionError(
                f"{path} is not in log.dirs of {self._config.source}: add it there, then run this again"
            )
        problem = next(self._next_start_problems(config), None)
        if problem is not None:
            raise AdditionError(f"{found} is not added, the next start would fail: {problem}")
        self._paths = tuple(p for p in config.log_dirs if p in {*self._paths, found})
        return found

    def _next_start_problems(self, config: Config) -> Iterator[str]:
        """Reasons why the agent would not start again with ``config``, as it runs now."""
        source, running = self._config.source, self._config
        for key, now, then in (
            ("node.id", running.node_id, config.node_id),
            ("process.roles", ",".join(sorted(running.process_roles)), ",".join(sorted(config.process_roles))),
        ):
            if then != now:
                yield f"{source}: {key} is {then}, the agent runs with {now}: set it back"
        if config.metadata_log_dir != running.metadata_log_dir:
            yield (
                f"{source}: the cluster metadata are in {running.metadata_log_dir}, and the next start would look for "
                f"them in {config.metadata_log_dir}: set metadata.log.dir={running.metadata_log_dir}"
            )
        for check in self._checks:
            yield from check(config)

    async def _read_again(self, source: str) -> Config:
        try:
            return config_of(await self._remembering.read_file(source), source, needs=self._needs)
        except OSError as error:
            raise AdditionError(f"{source}: {error.strerror}: expected a readable server.properties") from None

    def _before(self, path: str) -> Directory | Unreadable | None:
        """The directory that is configured under this path so far; None: there is none.

        Raises:
            AdditionError: nothing can be added there now.
        """
        start_up = self._opened.start_up
        entries: tuple[Directory | Unreadable, ...] = (*start_up.log_dirs, *start_up.unreadable)
        before = next((d for d in entries if d.path == path), None)
        if path in self._opened.late:
            raise AdditionError(
                f"{path} is still being waited for since the start: it is added by itself when it answers"
            )
        failed = before.directory_id if isinstance(before, Directory) else None
        if failed is not None and not self._owner.is_offline(failed):
            raise AdditionError(f"{path} is online already, with the directory.id {failed}")
        self._require_now(path, before)
        return before

    def _require_now(self, path: str, before: Directory | Unreadable | None) -> None:
        failed = before.directory_id if isinstance(before, Directory) else None
        reason = self._owner.why_not_now(len(self._opened.start_up.log_dirs) + (failed is None), failed)
        if reason is not None:
            raise AdditionError(f"{path} {reason}")

    async def _examine(self, path: str, agent: DirectoryAgent) -> tuple[Addition, tuple[Replica, ...]]:
        """Read a directory, check the rules, lock it, and probe it."""
        addition = self._rules(path, await _head(agent))
        loaded = addition.directory.loaded
        before = self._remembering.memory.mounted_before(path, loaded.directory_id)
        reason = self._monitor.not_mounted(path, loaded, before)
        if reason is not None:
            raise AdditionError(f"{path} {reason}")
        try:
            await agent.unlock(timeout_ms=LOCK_TIMEOUT_MS)  # the disk that was here before may still be locked
            await prepare(
                addition.directory, agent, addition.to_write, self._clock.wall_ms(), timeout_ms=LOCK_TIMEOUT_MS
            )
            await agent.probe(full=True, timeout_ms=PROBE_TIMEOUT_MS)
            replicas = await read_replicas(agent, addition.directory.loaded.replicas)
        except StorageError as error:
            await _let_go(agent)
            if isinstance(error, StartUpError):
                raise
            raise AdditionError(
                misconfigured(path, error)
                or f"{path} does not work: {error}: replace its disk, or add it when it is well"
            ) from None
        except BaseException:
            await _let_go(agent)
            raise
        return addition, replicas

    def _rules(self, path: str, load: LoadedDirectory | StorageError) -> Addition:
        if isinstance(load, DirectoryError) and load.errno in DENIED:
            raise StartUpError(f"{path}: {explain(load.barrier, [path])}")
        start_up = self._opened.start_up
        own = {d.path: d.directory_id for d in start_up.all if d.path != path}
        own |= {u.path: u.directory_id for u in start_up.unreadable if u.directory_id is not None and u.path != path}
        living = [d for d in start_up.all if d.path != path and not self._owner.is_offline(d.directory_id)]
        return examine_addition(
            load,
            path=path,
            metadata_log_dir=self._config.metadata_log_dir,
            node_id=self._config.node_id,
            cluster_id=start_up.cluster_id,
            own=own,
            real_paths={d.path: d.loaded.real_path for d in living},
            registered=self._owner.registered_elsewhere(),
            rng=self._rng,
            take_over=self._config.kjbod_agent_take_over,
        )

    # ---- it is added

    async def _take_in(
        self,
        directory: Directory,
        agent: DirectoryAgent,
        replicas: Sequence[Replica],
        before: Directory | Unreadable | None,
    ) -> str:
        try:
            self._require_now(directory.path, before)  # it took time: is that still so?
        except AdditionError:
            await _let_go(agent)
            raise
        memory = remember(self._remembering.memory, [directory], self._clock.wall_ms(), self._log)
        await self._remembering.change(memory)
        self._opened.put(directory, agent, self._paths)
        gone = None if before is None or before.directory_id == directory.directory_id else before.directory_id
        added = Added(
            directory=directory,
            agent=agent,
            retired=() if gone is None else (gone,),
            unknown=before is not None and before.directory_id is None,
            log_dirs=tuple(d.directory_id for d in self._opened.start_up.log_dirs),
        )
        taken = self._owner.directory_added(added)
        self._monitor.add(agent, directory.loaded, str(directory.directory_id))
        said = _said(directory, before, len(replicas))
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._spawn(self._finish(added, replicas, said, taken, done))
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
                if not await asyncio.shield(done):
                    raise AdditionError(_kept_offline(directory))
        except TimeoutError:
            return f"{said}; waits for the controller to answer the registration, its replicas are seen to after that"
        return said

    async def _finish(
        self,
        added: Added,
        replicas: Sequence[Replica],
        said: str,
        taken: asyncio.Future[bool],
        done: asyncio.Future[bool],
    ) -> None:
        path, directory_id = added.directory.path, str(added.directory.directory_id)
        if await taken:
            self._owner.directory_taken(added, replicas)
            self._log.info("directory.added", path=path, directory_id=directory_id, text=said)
        else:
            self._monitor.remove(path)
            self._owner.directory_refused(added, _kept_offline(added.directory))
        done.set_result(taken.result())


def _kept_offline(directory: Directory) -> str:
    return (
        f"{directory.path} waits for a restart of the agent: the controller keeps its directory "
        f"{directory.directory_id}, which has failed before, offline until then"
    )


def _spelled(path: str, paths: Sequence[str]) -> str | None:
    return next((p for p in paths if os.path.normpath(p) == os.path.normpath(path)), None)


async def _head(agent: DirectoryAgent) -> LoadedDirectory | StorageError:
    try:
        return await agent.load_head(timeout_ms=LOAD_TIMEOUT_MS)
    except StorageError as error:
        return error


async def _let_go(agent: DirectoryAgent) -> None:
    """Give the lock up, if that goes: it is not ours."""
    try:
        await agent.unlock(timeout_ms=LOCK_TIMEOUT_MS)
    except StorageError:
        return


def _said(directory: Directory, before: Directory | Unreadable | None, replicas: int) -> str:
    text = f"{directory.path} is online with the directory.id {directory.directory_id} and {replicas} replicas"
    if before is None:
        return f"{text}: it is new"
    if before.directory_id == directory.directory_id:
        return f"{text}: it is the one that was there before"
    known = "an unknown one" if before.directory_id is None else str(before.directory_id)
    return f"{text}: it takes the place of {known}"
