"""The shell of :mod:`.recall`: the file, the mount tables, and a directory that is watched before it could be read."""

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
"""How long a start waits for the file of an earlier release: the next one that is written knows nothing of the
directories that do not answer now."""
PATIENCE_MS: Final = 2_000
"""How long it waits for links on the way to a directory."""
AGAIN_MS: Final = 60_000
"""Before a file that could not be written is written again."""
HOST_MOUNTINFO: Final = "/proc/1/mountinfo"


class Recollection(Protocol):
    """Memory of the directories that were read."""

    async def recall(self, path: str) -> Remembered | str:
        """The directory as it was read last, while it does not answer; or why it is not taken, in words. Touches no
        watched disk."""

    def read(self, path: str, loaded: LoadedDirectory) -> None:
        """Remember what a directory of this broker has said."""

    def surveyed(self, path: str, survey: Survey) -> None:
        """Remember what lies around it."""

    def forget(self, path: str) -> None:
        """Forget a directory: what is there is not this broker's, or somebody is about to replace it."""


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
        remembering: has the file, and was loaded.
        links: follows paths, and may get stuck in a disk that nobody remembers.
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
        """Take up what is remembered, and the file of an earlier release, which :meth:`run` then replaces. A file that
        cannot be used is left out, with a line: it is only a memory."""
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
        """The directory as it was read last, or why it is not taken (:class:`Recollection`)."""
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
        """Target of a path. One question at a time: while one is stuck, no other one is asked."""
        while self._following is not None:
            await asyncio.wait([self._following])
        asked = self._following = asyncio.ensure_future(self._links.call("leads_to", path, points))
        asked.add_done_callback(self._followed)
        return await asyncio.shield(asked)

    def _followed(self, asked: asyncio.Future[str]) -> None:
        self._following = None
        if not asked.cancelled():
            asked.exception()  # perhaps nobody waits for it any more

    def read(self, path: str, loaded: LoadedDirectory) -> None:
        """Remember what a directory has said (:class:`Recollection`)."""
        place = _place(loaded.real_path, _mounts(MOUNTINFO))
        if place is None or place.mount_id != loaded.identity.mount_id:  # another mount is there by now
            self.forget(path)
            return
        before = self._memory.directories.get(path)
        survey = before.survey if before is not None and before.place.is_same(place) else None
        self._keep(path, Remembered(replace(loaded, replicas=()), survey, place, self._clock.wall_ms()))

    def surveyed(self, path: str, survey: Survey) -> None:
        """Remember what lies around a directory (:class:`Recollection`)."""
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
        """Write the file whenever there is something new, until cancelled."""
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
        """Remove the file of an earlier release, now that the new one is durable. Where that fails the next start tries
        again."""
        if not self._replaces_old:
            return
        self._replaces_old = False
        with contextlib.suppress(OSError):
            inode = await self._remembering.files.call("inode_of", str(self._old_file))
            if inode is not None:
                await self._remembering.files.call("remove", str(self._old_file), inode)


class Unread:
    """A directory that is taken from memory and does not answer, for the monitor. Implements ``CanProbe``.

    Nothing is written there before it was read: a probe reads it first. One that is answered is none, since what is
    there may be another disk: what it says is :attr:`found`, and whoever waits for :attr:`answered` judges it.

    Attributes:
        found: what it said at last; None: it has not answered yet.
        answered: set when it has.
    """

    def __init__(self, agent: DirectoryAgent) -> None:
        self._agent = agent
        self.found: LoadedDirectory | None = None
        self.answered = asyncio.Event()

    @property
    def path(self) -> str:
        """The log directory as configured."""
        return self._agent.path

    @property
    def on_late_answer(self) -> Callable[[LateAnswer], None] | None:
        """Called with answers that nobody waits for any more (``CanProbe``)."""
        return self._agent.on_late_answer

    @on_late_answer.setter
    def on_late_answer(self, told: Callable[[LateAnswer], None] | None) -> None:
        self._agent.on_late_answer = told

    def blocked(self) -> BlockedCall | None:
        """The request in progress (``CanProbe``)."""
        return self._agent.blocked()

    async def probe(self, *, full: bool, timeout_ms: int) -> ProbeResult:
        """Read the directory.

        Raises:
            StorageError: it does not answer; or it has.
        """
        self.found = await self._agent.load_head(timeout_ms=timeout_ms)
        self.answered.set()
        raise WorkerUnavailable(self.path, "it answers, and is read anew")


async def pause(unread: Unread | None, time_ms: int) -> None:
    """Wait so long, or until a directory answers that has not yet."""
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
    """A mount table; nothing where it cannot be read. Never blocks."""
    try:
        return read_mounts(path)
    except OSError:
        return ()


async def _soon(work: Awaitable[T], time_ms: int) -> T:
    """Result of a file call within a time.

    Raises:
        OSError: of the call, or it does not return.
    """
    try:
        async with asyncio.timeout(time_ms / 1000):
            return await work
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, f"no answer within {time_ms} ms") from None
