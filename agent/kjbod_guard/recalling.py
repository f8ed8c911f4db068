"""The shell of :mod:`.recall`: the file, the mount tables, and directories that are watched before they are read."""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod.config import Config
from kjbod.errors import KjbodError
from kjbod.files import reason_of
from kjbod_guard import recall
from kjbod_guard.boots import boot_id
from kjbod_guard.recall import NEVER_READ, DamagedError, Memory, Place, Remembered
from kjbod_host.directories.start_up import Remembering
from kjbod_host.files.file_process import FileProcess
from kjbod_host.health.mountinfo import MOUNTINFO, read_mounts
from kjbod_host.health.mounts import Mount, mount_of
from kjbod_host.health.sysfs import disk_sequence, mount_number
from kjbod_host.reporter import Log
from kjbod_host.storage.api import (
    BlockedCall,
    DirectoryAgent,
    LateAnswer,
    LoadedDirectory,
    ProbeResult,
    Survey,
    WorkerUnavailable,
)

T = TypeVar("T")

LOAD_MS: Final = 10_000
"""How long a start waits for the file of an earlier release. Without it, directories that do not answer now are lost
from memory at the next write."""
PATIENCE_MS: Final = 2_000
"""How long to wait for the symbolic links on the way to a directory."""
AGAIN_MS: Final = 60_000
"""Time to the next try after the file could not be written."""
HOST_MOUNTINFO: Final = "/proc/1/mountinfo"


class Recollection(Protocol):
    """Memory of the directories that were read."""

    async def recall(self, path: str) -> Remembered | str:
        """Return the directory as last read, while it does not answer; or why its memory is not used, in words. Touches
        no watched disk."""

    def read(self, path: str, loaded: LoadedDirectory) -> None:
        """Remember the content of a directory of this broker."""

    def surveyed(self, path: str, survey: Survey) -> None:
        """Remember the names around a directory on its file system."""

    def forget(self, path: str) -> None:
        """Forget a directory that is not this broker's, or is about to be replaced."""


class NoRecollection:
    """No memory. Implements :class:`Recollection`."""

    async def recall(self, path: str) -> Remembered | str:
        return NEVER_READ

    def read(self, path: str, loaded: LoadedDirectory) -> None: ...

    def surveyed(self, path: str, survey: Survey) -> None: ...

    def forget(self, path: str) -> None: ...


class Recalling:
    """The memory of a guard, in ``kjbod.state.dir``. Implements :class:`Recollection`.

    Args:
        config: of the broker.
        paths: its log directories, as configured.
        remembering: has the file, already loaded.
        links: resolves symbolic links, and may get stuck on a disk that is not remembered.
        clock: the time.
        log: for a file that cannot be used.
    """

    def __init__(
        self, config: Config, paths: Iterable[str], remembering: Remembering, links: FileProcess, clock: Clock, log: Log
    ) -> None:
        self._old_file = Path(config.kjbod_state_dir) / recall.OLD_NAME
        self._replaces_old = False
        self._paths = frozenset(paths)
        self._remembering = remembering
        self._links = links
        self._following: asyncio.Future[str] | None = None
        self._clock = clock
        self._log = log
        self._memory = Memory(config.node_id, boot_id(), {})
        self._changed = asyncio.Event()

    async def load(self) -> None:
        """Load the memory, also from the file of an earlier release, which :meth:`run` then replaces. A file that
        cannot be used is skipped with a log line: the guard can work without memory."""
        old, kept, part = await self._load_old(), None, self._remembering.last_read
        try:
            if isinstance(part, str):
                raise DamagedError(part)
            kept = None if part is None else recall.decode(part, self._memory.node, self._memory.boot_id)
        except DamagedError as error:
            if old is None:
                self._cannot_read(self._remembering.path, str(error))
        found = recall.newest(kept, old)
        if found is not None:
            known = {path: one for path, one in found.directories.items() if path in self._paths}
            self._memory = replace(self._memory, directories=known)

    async def _load_old(self) -> Memory | None:
        try:
            content = await _soon(self._remembering.files.call("read", str(self._old_file)), LOAD_MS)
            self._replace_old()
            return recall.decode_old(content, self._memory.node, self._memory.boot_id)
        except FileNotFoundError:
            return None
        except (DamagedError, OSError) as error:
            self._replace_old()
            self._cannot_read(self._old_file, reason_of(error) if isinstance(error, OSError) else str(error))
            return None

    def _replace_old(self) -> None:
        self._replaces_old = True
        self._changed.set()

    def _cannot_read(self, file: Path, reason: str) -> None:
        self._log.warning("guard.memory.not.read", reason=f"{file}: {reason}", consequence="it is made anew")

    async def recall(self, path: str) -> Remembered | str:
        """Return the directory as last read, or why its memory is not used (:class:`Recollection`)."""
        before = self._memory.directories.get(path)
        if before is None or not self._memory.boot_id:
            return NEVER_READ
        points = [one.place.mount_point for one in self._memory.directories.values()]
        try:
            leads_to = await _soon(self._leads_to(path, points), PATIENCE_MS)
        except OSError as error:
            return f"where its path leads cannot be told: {reason_of(error)}"
        mounts = _mounts(MOUNTINFO)
        now = _place(before.loaded.real_path, mounts)
        mount = mount_of(before.loaded.real_path, mounts)
        reason = recall.why_not(before, leads_to, now, shut_down=mount is not None and "shutdown" in mount.options)
        if reason is not None or now is None:
            return reason or recall.OTHER_MOUNT
        found = recall.taken(before, now)
        self._keep(path, found)
        return found

    async def _leads_to(self, path: str, points: list[str]) -> str:
        """Return the target of a path. Only one lookup at a time: a stuck lookup blocks all later ones."""
        while self._following is not None:
            await asyncio.wait([self._following])
        asked = self._following = asyncio.ensure_future(self._links.call("leads_to", path, points))
        asked.add_done_callback(self._followed)
        return await asyncio.shield(asked)

    def _followed(self, asked: asyncio.Future[str]) -> None:
        self._following = None
        if not asked.cancelled():
            asked.exception()  # the caller may have given up

    def read(self, path: str, loaded: LoadedDirectory) -> None:
        """Remember the content of a directory (:class:`Recollection`)."""
        place = _place(loaded.real_path, _mounts(MOUNTINFO))
        if place is None or place.mount_id != loaded.identity.mount_id:  # another mount is there now
            self.forget(path)
            return
        before = self._memory.directories.get(path)
        survey = before.survey if before is not None and before.place.is_same(place) else None
        self._keep(path, Remembered(replace(loaded, replicas=()), survey, place, self._clock.wall_ms()))

    def surveyed(self, path: str, survey: Survey) -> None:
        """Remember the names around a directory (:class:`Recollection`)."""
        before = self._memory.directories.get(path)
        if before is not None and before.survey != survey:
            self._keep(path, replace(before, survey=survey))

    def forget(self, path: str) -> None:
        """Forget a directory (:class:`Recollection`)."""
        left = {other: one for other, one in self._memory.directories.items() if other != path}
        if len(left) < len(self._memory.directories):
            self._memory = replace(self._memory, directories=left)
            self._changed.set()

    def _keep(self, path: str, one: Remembered) -> None:
        self._memory = replace(self._memory, directories={**self._memory.directories, path: one})
        self._changed.set()

    async def run(self) -> None:
        """Write the file after each change, until cancelled."""
        trouble = ""
        while True:
            await self._changed.wait()
            self._changed.clear()
            memory = replace(self._memory, written_ms=self._clock.wall_ms())
            try:
                await self._remembering.save_last_read(recall.encode(memory))
            except (OSError, KjbodError) as error:
                reason = reason_of(error) if isinstance(error, OSError) else str(error)
                if trouble != (trouble := reason):
                    self._log.warning("guard.memory.not.written", reason=f"{self._remembering.path}: {trouble}")
                self._changed.set()
                await asyncio.sleep(AGAIN_MS / 1000)
            else:
                trouble = ""
                await self._remove_old()

    async def _remove_old(self) -> None:
        """Remove the file of an earlier release, after the new file is durable. If that fails, the next start tries
        again."""
        if not self._replaces_old:
            return
        self._replaces_old = False
        with contextlib.suppress(OSError):
            inode = await self._remembering.files.call("inode_of", str(self._old_file))
            if inode is not None:
                await self._remembering.files.call("remove", str(self._old_file), inode)


class Unread:
    """A directory that is known from memory and does not answer, for the monitor. Implements ``CanProbe``.

    A probe only reads the directory, and writes nothing before the directory was read. An answer does not count as a
    passed probe, because another disk may be there. The answer is in :attr:`found`, and the task that waits for
    :attr:`answered` judges it.

    Attributes:
        found: content of the directory, once it has answered; None: no answer yet.
        answered: set when the directory has answered.
    """

    def __init__(self, agent: DirectoryAgent) -> None:
        self._agent = agent
        self.found: LoadedDirectory | None = None
        self.answered = asyncio.Event()

    @property
    def path(self) -> str:
        """Path of the log directory as configured."""
        return self._agent.path

    @property
    def on_late_answer(self) -> Callable[[LateAnswer], None] | None:
        """Callback for answers that come after their deadline (``CanProbe``)."""
        return self._agent.on_late_answer

    @on_late_answer.setter
    def on_late_answer(self, told: Callable[[LateAnswer], None] | None) -> None:
        self._agent.on_late_answer = told

    def blocked(self) -> BlockedCall | None:
        """Return the request in progress (``CanProbe``)."""
        return self._agent.blocked()

    async def probe(self, *, full: bool, timeout_ms: int) -> ProbeResult:
        """Read the directory.

        Raises:
            StorageError: always: the directory does not answer, or has answered and must be read again.
        """
        self.found = await self._agent.load_head(timeout_ms=timeout_ms)
        self.answered.set()
        raise WorkerUnavailable(self.path, "it answers, and is read anew")


async def pause(unread: Unread | None, time_ms: int) -> None:
    """Wait for ``time_ms``, or until an unread directory answers."""
    if unread is None:
        await asyncio.sleep(time_ms / 1000)
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(time_ms / 1000):
            await unread.answered.wait()
    unread.answered.clear()


def _place(real_path: str, mounts: tuple[Mount, ...]) -> Place | None:
    return recall.place_of(real_path, mounts, _mounts(HOST_MOUNTINFO), disk_sequence, mount_number)


def _mounts(path: str) -> tuple[Mount, ...]:
    """Return a mount table; empty if it cannot be read. Never blocks."""
    try:
        return read_mounts(path)
    except OSError:
        return ()


async def _soon(work: Awaitable[T], time_ms: int) -> T:
    """Return the result of a file call, if it comes within ``time_ms``.

    Raises:
        OSError: the call has failed, or is late.
    """
    try:
        async with asyncio.timeout(time_ms / 1000):
            return await work
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, f"no answer within {time_ms} ms") from None
