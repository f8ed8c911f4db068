"""FAN_FS_ERROR: ext4 tells of each error in its own structures, and of an aborted journal, through fanotify(7).

Linux 5.16, ext4 only: on XFS and btrfs the kernel takes the mark (6.18), and nothing ever comes. Needs CAP_SYS_ADMIN in
the host's user namespace; seccomp and systemd count ``fanotify_init`` among the privileged system calls.

The daemon makes the fanotify group and reads it: a read takes records from memory and neither opens nor waits for
anything. Marking needs a path on the file system, so a short-lived process does that (:mod:`fanotify_mark`). The start
waits a moment for it, to be able to say what is active; a file system whose path does not answer in time is active
as soon as it does.

The kernel merges errors that nobody has read yet, into one record with a count for each file system: a storm is cheap.
"""

import asyncio
import contextlib
import ctypes
import errno
import os
import select
import signal
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from kjbod_host import helpers
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sources import fanotify_mark
from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.sources.descriptor_watch import Watch, errno_text, reason_of

MARK_TIMEOUT_MS = 500
"""How long the start waits for the marks; they take some 30 ms."""
CLOSE_TIMEOUT_MS = 100
"""How long the end waits for a marker that was killed, to reap it; one that the system's disk holds is left behind."""
READ_BYTES = 16 * 1024
"""Read in one wake-up: some 200 records."""

_CAP_SYS_ADMIN = 21
_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_REPORT_FID = 0x1, 0x2, 0x200
_FAN_Q_OVERFLOW, _FAN_FS_ERROR = 0x4000, 0x8000
_INFO_FID, _INFO_ERROR = 1, 5
_FILEID_INO32_GEN = 1
_METADATA = struct.Struct("=IBBHQii")  # length, version, reserved, length of this, mask, fd, pid
_INFO = struct.Struct("=BBH")  # type, pad, length


class FsError(Struct, frozen=True):
    """A record of the fanotify group.

    Attributes:
        fsid: of the file system, as statvfs has it; None when the kernel ran out of memory for records: of any.
        error: errno of the first error.
        count: how many errors there were since the last record.
        inode: that it is about; 0 where it is about the file system.
    """

    fsid: int | None
    error: int
    count: int
    inode: int = 0


def parse_events(data: bytes) -> Iterator[FsError]:
    """The records that a read of the group gives; a part that has not the form of one ends it."""
    offset = 0
    while offset + _METADATA.size <= len(data):
        length, _, _, head, mask, _, _ = _METADATA.unpack_from(data, offset)
        if length < head or head < _METADATA.size or offset + length > len(data):
            return
        if mask & _FAN_Q_OVERFLOW:
            yield FsError(None, 0, 0)
        elif mask & _FAN_FS_ERROR:
            yield _parse_infos(data[offset + head : offset + length])
        offset += length


def _parse_infos(data: bytes) -> FsError:
    fsid, error, count, inode = None, 0, 0, 0
    while len(data) >= _INFO.size:
        kind, _, length = _INFO.unpack_from(data)
        if length < _INFO.size or length > len(data):
            break
        if kind == _INFO_ERROR and length >= 12:
            error, count = struct.unpack_from("=iI", data, 4)
        elif kind == _INFO_FID and length >= 20:
            low, high, size, handle = struct.unpack_from("=IIIi", data, 4)
            fsid = low | high << 32
            if handle == _FILEID_INO32_GEN and size >= 4 and length >= 24:
                (inode,) = struct.unpack_from("=I", data, 20)
        data = data[length:]
    return FsError(fsid, error, count, inode)


class _FileSystem(Struct):
    """An ext4 file system: one mark for all log directories on it."""

    mount: Mount
    paths: tuple[str, ...]
    answer: int | None = None
    """errno of the mark; None while its process has not answered."""
    fsid: int | None = None


class FsErrors:
    """Implements ``KernelSource``; see the head of this module."""

    name = "fs-error"

    def __init__(self) -> None:
        self._file_systems: list[_FileSystem] = []
        self._group = -1
        self._watch: Watch | None = None
        self._marker: _Marker | None = None

    def start(self, subjects: Sequence[Subject], on_event: Callable[[KernelEvent], None]) -> Mapping[str, str | None]:
        """Begin to listen (``KernelSource.start``). Takes some 30 ms, at most MARK_TIMEOUT_MS."""
        self._on_event = on_event
        result: dict[str, str | None] = {}
        systems: dict[str, _FileSystem] = {}
        for subject in subjects:
            mount = subject.mount
            if mount is None:
                result[subject.path] = "its mount is not in the mount table"
            elif mount.fstype != "ext4":
                result[subject.path] = f"{mount.fstype} does not raise FAN_FS_ERROR"
            else:
                result[subject.path] = None
                system = systems.setdefault(mount.device, _FileSystem(mount, ()))
                system.paths = (*system.paths, subject.path)
        self._file_systems = list(systems.values())
        if not self._file_systems:
            return result
        if (reason := self._begin()) is not None:
            self.close()
            return result | dict.fromkeys((path for system in systems.values() for path in system.paths), reason)
        for system in systems.values():
            result.update(dict.fromkeys(system.paths, _state_of(system)))
        return result

    def _begin(self) -> str | None:
        """Make the group and have it marked; why that cannot be done."""
        if not has_capability(_CAP_SYS_ADMIN):
            return "needs CAP_SYS_ADMIN"
        try:
            self._group = _fanotify_init()
            self._watch = Watch(self._group, self._readable)
            self._marker = _Marker(self._group, [system.mount for system in self._file_systems], self._marked)
        except OSError as error:
            return reason_of(error)
        self._marker.wait(MARK_TIMEOUT_MS)
        return None

    def _marked(self, position: int, code: int, fsid: int) -> None:
        system = self._file_systems[position]
        system.answer, system.fsid = code, fsid

    def poll(self) -> None:
        """Do nothing: every event wakes the loop (``KernelSource.poll``)."""

    def _readable(self) -> None:
        try:
            data = os.read(self._group, READ_BYTES)
        except OSError:
            return
        for event in parse_events(data):
            paths = tuple(path for system in self._concerned(event) for path in system.paths)
            lost = event.fsid is None and not event.count
            text = "the kernel lost records of file system errors" if lost else _describe(event)
            self._on_event(KernelEvent(source=self.name, paths=paths, text=text, damage=not lost))

    def _concerned(self, event: FsError) -> list[_FileSystem]:
        if event.fsid is None:
            return self._file_systems
        # A mark whose answer is still on its way has no id yet.
        unknown = [system for system in self._file_systems if system.answer is None]
        return [system for system in self._file_systems if system.fsid == event.fsid] or unknown

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._marker is not None:
            self._marker.close()
            self._marker = None
        if self._group >= 0:
            os.close(self._group)
            self._group = -1


def _describe(event: FsError) -> str:
    where = f" at inode {event.inode}" if event.inode else ""
    times = f", {event.count} errors" if event.count > 1 else ""
    return f"ext4 reported an error: {errno_text(event.error)}{where}{times} (FAN_FS_ERROR)"


def _state_of(system: _FileSystem) -> str | None:
    if system.answer is None:
        return f"no answer from {system.mount.mount_point} in {MARK_TIMEOUT_MS} ms; active as soon as there is one"
    if system.answer == 0:
        return None
    if system.answer == errno.EPERM:
        return "needs CAP_SYS_ADMIN in the host's user namespace"
    return f"fanotify_mark on {system.mount.mount_point}: {os.strerror(system.answer)}"


class _Marker:
    """The process that marks; see :mod:`fanotify_mark`."""

    def __init__(self, group: int, mounts: Sequence[Mount], marked: Callable[[int, int, int], None]) -> None:
        self._marked = marked
        self._waiting = len(mounts)
        self._buffer = b""
        self._watch: Watch | None = None
        self._loop = asyncio.get_running_loop()
        self._answers, answers = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            self._pid = _spawn(group, answers, mounts)
            self._pidfd = os.pidfd_open(self._pid)
        except BaseException:
            os.close(self._answers)
            raise
        finally:
            os.close(answers)
        self._loop.add_reader(self._pidfd, self._reap)

    def wait(self, timeout_ms: int) -> None:
        """Until all have answered, or the time is over: from then on answers are taken as they come."""
        deadline = self._loop.time() + timeout_ms / 1000
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while self._waiting > 0 and (left_s := deadline - self._loop.time()) > 0:
            poll.poll(left_s * 1000)
            self._read()
        if self._waiting > 0:
            self._watch = Watch(self._answers, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._answers, 4096)
        except OSError:
            return
        if not data:  # the end: whoever has not answered by now was killed
            self._waiting = 0
            if self._watch is not None:
                self._watch.close()
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            position, code, fsid = map(int, line.split())
            self._waiting -= 1
            self._marked(position, code, fsid)

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        helpers.has_ended(self._pid)

    def close(self) -> None:
        """Kill it, if it is still there. Its children may be stuck in the kernel, and are not waited for."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        os.close(self._answers)
        if self._pidfd < 0:
            return
        if not self._loop.is_closed():
            self._loop.remove_reader(self._pidfd)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        ended.poll(CLOSE_TIMEOUT_MS)
        os.close(self._pidfd)
        self._pidfd = -1
        helpers.has_ended(self._pid)


def _spawn(group: int, answers: int, mounts: Sequence[Mount]) -> int:
    """Exec the marker with nothing but its two descriptors; its pid.

    Raises:
        OSError: it cannot be started.
    """
    named = [argument for mount in mounts for argument in (mount.device, mount.mount_point)]
    descriptors = {fanotify_mark.GROUP_FD: group, fanotify_mark.ANSWER_FD: answers}
    return helpers.start(fanotify_mark.__file__, str(os.getpid()), *named, descriptors=descriptors)


def _fanotify_init() -> int:
    """A fanotify group, non-blocking.

    Raises:
        OSError: ENOSYS, EPERM (seccomp), EMFILE.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _FAN_CLOEXEC | _FAN_NONBLOCK | _FAN_REPORT_FID
    group: int = libc.fanotify_init(ctypes.c_uint(flags), ctypes.c_uint(os.O_RDONLY))
    if group < 0:
        raise OSError(ctypes.get_errno(), f"fanotify_init: {os.strerror(ctypes.get_errno())}")
    return group


def has_capability(number: int, status: Path = Path("/proc/self/status")) -> bool:
    """Whether this process has a capability (capabilities(7)) in effect; True where that cannot be read."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return True
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), None)
    return effective is None or bool(int(effective, 16) >> number & 1)
