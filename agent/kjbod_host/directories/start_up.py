"""The start of the agent up to the point where it knows its directories.

Everything here may be refused, with one line that says what is wrong, and a refusal leaves the disks as they were: the
rules are checked before anything is written (:func:`.start_up_rules.examine`), and locks are taken before a
missing ``directory.id`` is added.

No directory waits for another one longer than the rules need. They need every *head* (``meta.properties``, the names in
it), all of which are read at the same time; what takes time in proportion to the replicas comes later, directory by
directory, while the agent registers and watches its disks. A head that is not there after
:data:`PATIENCE_MS` is no longer waited for, if the memory knows a directory under that path: then nobody has made a
mistake that would have to be refused. It is *late*: offline for now, and nothing that may lie in it is made anew. When
it comes after all, it is added as ``kjbod dirs add`` would. The same goes for a directory that answers no more when it
is to be locked: it is registered, and whether it is dead is for the health monitor to say.
"""

import asyncio
import contextlib
import errno
import json
import os
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.documents import int_of, parse_document
from kjbod.errors import ConfigError, StorageError
from kjbod.ids import Uuid
from kjbod.meta_properties import KNOWN_DIRECTORIES_NAME, MetaProperties, format_command, render_meta_properties
from kjbod.permissions import DENIED, explain
from kjbod_host.directories.known_directories import KnownDirectories
from kjbod_host.directories.start_up_rules import (
    Directory,
    Load,
    Memory,
    StartUp,
    StartUpError,
    examine,
    require_outside,
)
from kjbod_host.files.file_process import FileProcess
from kjbod_host.health.evidence import device_text
from kjbod_host.health.mountinfo import read_mounts
from kjbod_host.health.mounts import Mount, not_mounted
from kjbod_host.health.verdict import Health
from kjbod_host.health.watched import DirectoryStatus
from kjbod_host.reporter import Log
from kjbod_host.storage.api import (
    DirectoryAgent,
    DirectoryError,
    DirectoryTimeout,
    LoadedDirectory,
    StorageAgent,
    WorkerUnavailable,
    errno_name,
)
from kjbod_host.storage.meaning import Meaning, asks_probe, in_work, remedy

T = TypeVar("T")

LOAD_TIMEOUT_MS: Final = 10_000
"""Timeout of each read of a directory. A directory that does not answer is offline from the start."""
LOCK_TIMEOUT_MS: Final = 10_000
PATIENCE_MS: Final = 3_500
"""How long directories that answer wait for one that does not, at each of the two steps. More than a disk at rest needs
to spin up a little, and more than the storage agent waits for the worker of an earlier agent."""
STATE_TIMEOUT_MS: Final = 10_000
LOCK_PATIENCE_MS: Final = 3_000
"""Time that an earlier agent may take to end, from its last log line on."""
REMEMBER_EVERY_MS: Final = 600_000
CLOSE_TIMEOUT_MS: Final = 500
"""Timeout of the clean-shutdown mark. Without the mark the next start takes longer; waiting would delay the whole
stop."""
BLOCKED_MS: Final = 250
"""A directory that has not answered for so long gets no more requests when the agent stops."""


class Opened(Struct):
    """The open directories of this agent, including directories that are added while it runs."""

    start_up: StartUp
    agents: dict[Uuid, DirectoryAgent]
    """Storage agents of all directories that were read."""
    failed: Mapping[Uuid, str]
    """Directories that failed between loading and now, and why: registered, and reported offline at once."""
    loading: set[Uuid] = field(default_factory=set)
    """Directories whose replicas were not read yet."""
    unprepared: set[Uuid] = field(default_factory=set)
    """Those of them that are not locked yet, see :func:`prepare`."""
    late: set[str] = field(default_factory=set)
    """Paths whose heads have not come yet."""

    def put(self, directory: Directory, agent: DirectoryAgent, order: Collection[str]) -> None:
        """Add a directory, or replace the one with the same path; ``order`` are all configured paths."""
        start_up = self.start_up
        for before in start_up.log_dirs:
            if before.path == directory.path:
                self.agents.pop(before.directory_id, None)
                self.loading.discard(before.directory_id)
                self.unprepared.discard(before.directory_id)
        by_path = {d.path: d for d in (*start_up.log_dirs, directory)}
        self.agents[directory.directory_id] = agent
        self.start_up = replace(
            start_up,
            log_dirs=tuple(by_path[path] for path in dict.fromkeys((*order, *by_path)) if path in by_path),
            unreadable=tuple(u for u in start_up.unreadable if u.path != directory.path),
        )


class Remembering:
    """Memory of the directory at each path, kept in ``kjbod.state.dir``.

    Args:
        config: for its path, and whose it is.
        log: for what cannot be saved.
        owner: who remembers, in words: others are told that it uses the directory.
    """

    def __init__(self, config: Config, log: Log, owner: str = "agent") -> None:
        self._owner = owner
        self.memory = Memory()
        self.last_read: Mapping[str, Any] | str | None = None
        """The part of a guard, see :meth:`.known_directories.KnownDirectories.last_read`."""
        self._file = KnownDirectories(Path(config.kjbod_state_dir), config.node_id)
        self._state_dir = config.kjbod_state_dir
        self._node_id = config.node_id
        self._log = log
        self.files = FileProcess("kjbod-state")
        """The process that does the file calls in the state directory."""
        self._saving = asyncio.Lock()
        self._new = asyncio.Event()
        self._trouble = ""
        """Reason why the last save failed, which was already logged."""

    async def load(self) -> Memory:
        """Lock the state directory, and read it.

        Raises:
            ConfigError: it is another node's.
            StartUpError: it cannot be used.
        """
        try:
            await self._lock()
            content = await self._bounded(self.files.call("read", str(self._file.path)))
        except FileNotFoundError:
            return self.memory
        except OSError as error:
            raise self._file.unusable(error) from None
        self.memory, self.last_read = self._file.parse(content), self._file.last_read(content)
        return self.memory

    async def _lock(self) -> None:
        """Lock the state directory, which serves a single agent: a second agent would overwrite the memory. An owner of
        the same node may be an agent that is just ending; for another node a restart cannot help."""
        owner = json.dumps({"node_id": self._node_id, "pid": os.getpid(), "name": self._owner})
        taken = await self._bounded(self.files.take(Path(self._state_dir), owner, LOCK_PATIENCE_MS))
        if taken is None:
            return
        other, pid, name = _owner_of(taken)
        where = f"kjbod.state.dir={self._state_dir} is in use by another {name} ({other}{pid})"
        if other == f"node {self._node_id}":
            raise StartUpError(f"{where}: stop it first")
        raise ConfigError(f"{where}: give each agent and guard on a host a kjbod.state.dir of its own")

    async def change(self, memory: Memory) -> None:
        """Save a changed memory. A failed save, as on a full disk, is only logged: it costs no more than the id of a
        disk that cannot be read at the next start."""
        if memory == self.memory:
            return
        self.memory = memory
        async with self._saving:
            trouble = ""
            try:
                await self._write()
            except OSError as error:
                trouble = str(self._file.unusable(error))
            except StartUpError as error:
                trouble = str(error)
            if trouble and trouble != self._trouble:
                self._log.warning("state.not.saved", reason=trouble)
            self._trouble = trouble

    async def save_last_read(self, last_read: Mapping[str, Any]) -> None:
        """Save the part of a guard.

        Raises:
            OSError: the file cannot be written.
            StartUpError: there is no answer in time.
        """
        self.last_read = last_read
        async with self._saving:
            await self._write()

    async def _write(self) -> None:
        content = self._file.content(self.memory, self.last_read)
        await self._bounded(self.files.call("write", str(self._file.path), content))

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.path

    async def keep_current(self, status: Callable[[], Iterable[DirectoryStatus]], clock: Clock) -> None:
        """Note which directories are there, and what they lie on: from time to time, and when one is new there
        (:meth:`is_new`). Until cancelled."""
        while True:
            self._new.clear()
            memory = self.memory
            for one in status():
                if one.health.health is not Health.FAILED:
                    memory = memory.seen(one.path, Uuid.parse(one.directory_id), clock.wall_ms())
                    memory = memory.on_device(one.path, device_text(one.device), one.device.serial, one.mount_point)
            await self.change(memory)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REMEMBER_EVERY_MS / 1000):
                    await self._new.wait()

    def is_new(self) -> None:
        """Note the present directories at once, because a disk was replaced."""
        self._new.set()

    async def read_file(self, path: str) -> bytes:
        """Return the content of another file that is on no watched disk.

        Raises:
            OSError: it cannot be read.
            StartUpError: there is no answer in time.
        """
        content: bytes = await self._bounded(self.files.call("read", path))
        return content

    def mounts(self) -> tuple[Mount, ...]:
        """The mount table, to compare what is remembered with; nothing where it cannot be read. Never blocks."""
        try:
            return read_mounts()
        except OSError:
            return ()

    async def real_path(self, path: str) -> str:
        """The path without symbolic links of another file or directory that is on no watched disk.

        Raises:
            StartUpError: there is no answer in time.
        """
        real: str = await self._bounded(self.files.call("realpath", path))
        return real

    async def write_file(self, path: Path, content: bytes) -> None:
        """Replace another file in the state directory.

        Raises:
            OSError: it cannot be written.
        """
        await self.files.call("write", str(path), content)

    def close(self) -> None:
        """Release the state directory; no more saves. Does not wait."""
        self.files.close()

    async def _bounded(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(STATE_TIMEOUT_MS / 1000):
                return await work
        except TimeoutError:
            raise StartUpError(
                f"kjbod.state.dir={self._state_dir}: no answer for {STATE_TIMEOUT_MS} ms: "
                "it must not be on a watched disk"
            ) from None


def _owner_of(text: str) -> tuple[str, str, str]:
    """Return the owner of a lock from its text: ``node 1``, ``, pid 4711`` and ``agent``."""
    try:
        owner = parse_document(text.encode())
        name = "guard" if owner.get("name") == "guard" else "agent"
        return f"node {int_of(owner['node_id'])}", f", pid {int_of(owner['pid'])}", name
    except (ValueError, KeyError, TypeError):
        return "of an unknown node", "", "agent"


async def _nothing_to_open() -> None:
    return


async def open_directories(
    config: Config,
    storage: StorageAgent,
    clock: Clock,
    rng: random.Random,
    log: Log,
    remembering: Remembering,
    *,
    open_companion: Callable[[], Awaitable[None]] = _nothing_to_open,
) -> Opened:
    """Read the heads of all directories, check them, lock them, give ids to those without, and remember which is where.

    Args:
        config: names them.
        storage: reaches them.
        clock: for what is remembered.
        rng: for missing ids.
        log: for what is not as it was.
        remembering: memory of the starts before.
        open_companion: on a combined node locks and reads the metadata directory, once nothing is wrong with any, and
            before anything is changed.

    Raises:
        StorageError: one line that says which directory cannot be used and what to do.
    """
    before = await remembering.load()
    agents = {path: storage.directory(path) for path in dict.fromkeys((*config.log_dirs, config.metadata_log_dir))}
    needed = {path for path in agents if path not in before.directories} | {config.metadata_log_dir}
    loads = await _load_heads(agents, needed, config.log_dirs)
    if "controller" in config.process_roles:
        require_metadata_disk(loads[config.metadata_log_dir], config, before, remembering.mounts())
    start_up = examine(
        node_id=config.node_id,
        log_dirs=config.log_dirs,
        metadata_log_dir=config.metadata_log_dir,
        loads=_without_denied(
            _without_unmounted(_without_missing(loads, before.ids), before, remembering.mounts()), before.ids, config
        ),
        remembered=before.ids,
        rng=rng,
        take_over=config.kjbod_agent_take_over,
        command=format_command(config.source, dynamic_controller=config.is_dynamic_controller),
    )
    for name, own in (("kjbod.state.dir", config.kjbod_state_dir), ("kjbod.reports.dir", config.kjbod_reports_dir)):
        require_outside(name, await remembering.real_path(own), start_up.all)
    late = {path for path, load in loads.items() if isinstance(load, DirectoryTimeout)}
    tell_unreadable(start_up, log, late)
    wall_ms = clock.wall_ms()
    await open_companion()
    locked = {config.metadata_log_dir} if "controller" in config.process_roles else set()
    failed, unprepared = await _prepare_all(start_up, agents, wall_ms, locked, remembered=before.ids)
    await remembering.change(remember(before, start_up.all, wall_ms, log).only(agents))
    return Opened(
        start_up,
        {d.directory_id: agents[d.path] for d in start_up.all},
        failed,
        loading={d.directory_id for d in start_up.log_dirs if d.directory_id not in failed},
        unprepared=unprepared,
        late=late,
    )


async def prepare(
    directory: Directory,
    agent: DirectoryAgent,
    to_write: MetaProperties | None,
    wall_ms: int,
    *,
    timeout_ms: int,
    locked: bool = False,
) -> None:
    """Lock a directory, unless this process has ``locked`` it, give it the id that it lacks, and remove the mark of a
    clean shutdown, so that a crash from here on counts as one. May be repeated after a timeout.

    Raises:
        DirectoryError: the disk.
        DirectoryTimeout: perhaps the disk.
        StartUpError: another process holds it, or its new id cannot be written (fatal, as in Kafka).
    """
    try:
        if not locked:
            await agent.lock(timeout_ms=timeout_ms)
    except DirectoryError as error:
        if error.errno != errno.EAGAIN:
            raise
        raise StartUpError(
            f"log directory {directory.path} is in use: another process holds {directory.path}/.lock "
            "(a Kafka broker or another agent)"
        ) from None
    if to_write is not None:
        moment = datetime.fromtimestamp(wall_ms / 1000, UTC).astimezone()
        try:
            await agent.write_meta_properties(render_meta_properties(to_write, moment), timeout_ms=LOAD_TIMEOUT_MS)
        except StorageError as error:
            raise StartUpError(f"cannot write directory.id into {directory.path}/meta.properties: {error}") from None
    if directory.loaded.clean_shutdown:
        await agent.clear_clean_shutdown(timeout_ms=timeout_ms)


def remember(before: Memory, directories: Collection[Directory], wall_ms: int, log: Log) -> Memory:
    """Return the memory with the present directories; log replaced and returned directories."""
    memory = before
    for directory in directories:
        memory = memory.seen(directory.path, directory.directory_id, wall_ms)
    for directory in directories:
        known, returned = before.directories.get(directory.path), before.retired_as(directory.directory_id)
        where = {"path": directory.path, "directory_id": str(directory.directory_id)}
        if known is not None and known.directory_id != directory.directory_id:
            log.warning("directory.replaced", **where, before=str(known.directory_id))
        if returned is not None:
            log.warning(
                "directory.returned",
                **where,
                replaced_by=str(returned.replaced_by),
                reason="a disk that was replaced is back: replicas that live elsewhere by now are strays in it",
            )
    return memory


async def mark_clean(opened: Opened, directories: list[Uuid], broker_epoch: int) -> None:
    """Write ``.kafka_cleanshutdown`` into these directories, in bounded time; what does not work is left out, and what
    was not loaded completely, unless it was clean before (``LogManager.shutdown``)."""
    clean = {d.directory_id for d in opened.start_up.log_dirs if d.loaded.clean_shutdown} if opened.loading else set()

    async def write(agent: DirectoryAgent) -> None:
        blocked = agent.blocked()
        if blocked is not None and blocked.age_ms >= BLOCKED_MS:
            return
        await agent.write_clean_shutdown(broker_epoch, timeout_ms=CLOSE_TIMEOUT_MS)

    complete = [d for d in directories if d not in opened.unprepared and (d not in opened.loading or d in clean)]
    await asyncio.gather(*(write(opened.agents[d]) for d in complete), return_exceptions=True)


async def _load_heads(
    agents: Mapping[str, DirectoryAgent], needed: Collection[str], log_dirs: Collection[str]
) -> dict[str, Load]:
    """Return the heads by path. Paths in ``needed`` get the full timeout; all paths do if no log directory has
    answered."""

    async def load(path: str, timeout_ms: int) -> Load:
        try:
            return await agents[path].load_head(timeout_ms=timeout_ms)
        except WorkerUnavailable as trouble:  # ours, not the disk's: it is worth waiting for
            if timeout_ms == LOAD_TIMEOUT_MS:
                return trouble
        except StorageError as error:
            return error
        return await load(path, LOAD_TIMEOUT_MS)

    async def load_all(paths: Collection[str], timeout_ms: int) -> dict[str, Load]:
        times = [LOAD_TIMEOUT_MS if path in needed else timeout_ms for path in paths]
        return dict(zip(paths, await asyncio.gather(*map(load, paths, times)), strict=True))

    loads = await load_all(agents, PATIENCE_MS)
    if not any(isinstance(loads[path], LoadedDirectory) for path in log_dirs):
        silent = [path for path, load in loads.items() if isinstance(load, DirectoryTimeout)]
        loads |= await load_all(silent, LOAD_TIMEOUT_MS)
    return loads


async def _prepare_all(
    start_up: StartUp,
    agents: Mapping[str, DirectoryAgent],
    wall_ms: int,
    locked: Collection[str],
    *,
    remembered: Mapping[str, Uuid],
) -> tuple[dict[Uuid, str], set[Uuid]]:
    """Prepare all directories; return the failed ones with reasons, and those that do not answer.

    Raises:
        ConfigError: a directory cannot be used as it is set up, and no restart can help; see :func:`misconfigured`.
    """

    async def attempt(directory: Directory) -> StorageError | None:
        to_write = start_up.to_write.get(directory.path)
        needed = directory is start_up.metadata or to_write is not None
        timeout_ms = LOCK_TIMEOUT_MS if needed else PATIENCE_MS
        try:
            await prepare(
                directory,
                agents[directory.path],
                to_write,
                wall_ms,
                timeout_ms=timeout_ms,
                locked=directory.path in locked,
            )
        except StorageError as error:
            return error
        return None

    failed: dict[Uuid, str] = {}
    unprepared: set[Uuid] = set()
    results = await asyncio.gather(*map(attempt, start_up.all))
    serves = any(error is None for d, error in zip(start_up.all, results, strict=True) if d in start_up.log_dirs)
    for directory, error in zip(start_up.all, results, strict=True):
        if (wrong := misconfigured(directory.path, error)) is not None:
            # As one that we may not use (:func:`_without_denied`): it takes no others along that are well.
            if directory is start_up.metadata or directory.path not in remembered or not serves:
                raise ConfigError(wrong)
            failed[directory.directory_id] = wrong
        elif isinstance(error, DirectoryTimeout) and directory is not start_up.metadata:
            unprepared.add(directory.directory_id)
        elif isinstance(error, DirectoryError | DirectoryTimeout):
            failed[directory.directory_id] = str(error)
        elif error is not None:
            raise error
    return failed, unprepared


def misconfigured(path: str, error: StorageError | None) -> str | None:
    """Return a line about a start error that is caused by the configuration, or by a name in the way of kjbod's file;
    None: the error may be the disk's."""
    if not isinstance(error, DirectoryError) or asks_probe(error.errno, error.call):
        return None
    if in_work(error.errno, error.call) not in (Meaning.CONFIGURATION, Meaning.NAME):
        return None
    file = error.call.rpartition(" of ")[2]
    todo = remedy(error.errno) or f"{path}/{file} is in the way: remove it"
    return f"log directory {path} cannot be used: {errno_name(error.errno)} at {error.call}: {todo}"


def require_metadata_disk(load: Load, config: Config, before: Memory, mounts: tuple[Mount, ...]) -> None:
    """Require the original metadata directory on a combined node. Another directory in its place would be a cluster
    without topics, and every broker would delete its replicas.

    Args:
        load: what the worker of ``metadata.log.dir`` said.
        config: of the node.
        before: memory of the starts before.
        mounts: what is mounted now.

    Raises:
        StartUpError: it is away, below the mount point of its disk, or not formatted.
    """
    path = config.metadata_log_dir
    known = before.directories.get(path)
    absent = isinstance(load, DirectoryError) and load.errno == errno.ENOENT
    bare = isinstance(load, LoadedDirectory) and load.meta_properties is None
    if known is not None and (absent or bare):
        where = "" if known.mount_point in (None, "/") else f" on {known.mount_point} first"
        raise StartUpError(
            f"{path} {'does not exist' if absent else 'has no meta.properties'}, and was the metadata directory "
            f"{known.directory_id} at the last start: mount its disk{where}, or restore it from a backup; formatted "
            "anew it would be a cluster without any topic"
        )
    if bare:
        flag = "" if config.controller_quorum_voters else " --standalone"
        raise StartUpError(
            f"{path} is not formatted: there is no meta.properties; is its disk mounted? For a new cluster run "
            f"`kjbod format -c {config.source} -t CLUSTER_ID{flag}` first"
        )
    mount_point = before.mounted_before(path, load.directory_id) if isinstance(load, LoadedDirectory) else None
    if known is None or mount_point is None:
        return
    assert isinstance(load, LoadedDirectory)
    if reason := not_mounted(mount_point, load.identity.mount_id, mounts):
        raise StartUpError(
            f"{path} {reason} (it was the metadata directory {known.directory_id} at the last start, and is another "
            f"one now); where the metadata are to lie here for good, take it out of "
            f"{config.kjbod_state_dir}/{KNOWN_DIRECTORIES_NAME}"
        )


def _without_missing(loads: Mapping[str, Load], remembered: Mapping[str, Uuid]) -> dict[str, Load]:
    """Treat a path as offline if it was a log directory at the last start and is none now: its disk is missing, or new
    and not formatted. Without a memory of the path, :func:`examine` refuses the start."""

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
            f"{remembered[path]} at the last start: {remedy}, then kjbod dirs add {path}, "
            "or start the agent if it does not run"
        )

    return {path: judge(path, load) for path, load in loads.items()}


def _without_unmounted(loads: Mapping[str, Load], before: Memory, mounts: tuple[Mount, ...]) -> dict[str, Load]:
    """Ignore a directory that was formatted on an unmounted mount point. It does not replace the original disk: its
    replicas would be created again, empty, on the file system below."""

    def judge(path: str, load: Load) -> Load:
        if not isinstance(load, LoadedDirectory):
            return load
        mount_point = before.mounted_before(path, load.directory_id)
        reason = None if mount_point is None else not_mounted(mount_point, load.identity.mount_id, mounts)
        if reason is None:
            return load
        return StorageError(
            f"{path} {reason} (directory.id {before.ids[path]}), then kjbod dirs add {path}, or start the agent if it "
            f"does not run; where it is to lie here for good, take it out of {KNOWN_DIRECTORIES_NAME}"
        )

    return {path: judge(path, load) for path, load in loads.items()}


def _without_denied(loads: Mapping[str, Load], remembered: Mapping[str, Uuid], config: Config) -> dict[str, Load]:
    """Treat a directory without access rights as offline (as in Kafka), if it was used at the last start and others
    work. It may be a mount point without its disk. Otherwise refuse the start.

    Raises:
        ConfigError: all of them, that of the metadata, or one that never was ours; names owner and remedy.
    """
    barred = {path: load for path, load in loads.items() if isinstance(load, DirectoryError) and load.errno in DENIED}
    serves = any(isinstance(loads[path], LoadedDirectory) for path in config.log_dirs)
    fatal = [path for path in barred if path == config.metadata_log_dir or path not in remembered or not serves]
    if fatal:
        raise ConfigError(f"{fatal[0]}: {explain(barred[fatal[0]].barrier, fatal)}")
    told: dict[str, Load] = {
        # A mount point is root's; to give it away would have the agent write where the disk should be.
        path: StorageError(f"{error}: mount its disk; if it is mounted, {explain(error.barrier, [path])}")
        for path, error in barred.items()
    }
    return {**loads, **told}


def tell_unreadable(start_up: StartUp, log: Log, late: Collection[str] = ()) -> None:
    """Log the directories that are offline from the start, except late ones, which may still come."""
    for unreadable in start_up.unreadable:
        if unreadable.path not in late:
            log.error(
                "directory.unreadable",
                path=unreadable.path,
                directory_id=None if unreadable.directory_id is None else str(unreadable.directory_id),
                reason=unreadable.reason,
            )
