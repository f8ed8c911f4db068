"""The worker: one process per log directory, the only one that touches it.

Runs in an interpreter started with ``python -I -S`` (see ``zygote.py``), so it imports next to nothing and nothing of
kjbod. It may get stuck in the kernel at any call, for ever. Therefore it holds nothing that the daemon needs: no
inherited descriptor but its own socket, no lock (those are the keeper's), and it is never waited for.

Protocol: dicts of plain values over a stream socket, as :func:`frame` makes them. One request at a time.

    ``{"n": 7, "op": "probe", "expect": [identity, directory id], ...}``
    ``{"n": 7, "us": 4100, "ok": {...}}``                                  done
    ``{"n": 7, "us": 380, "errno": 5, "call": "fsync of .kjbod_probe"}``   the kernel, or a comparison, said no
    ``{"n": 7, "us": 10, "trouble": "..."}``                               our own trouble, not the disk's

Before each step it writes the request's number and the step's name into memory that it shares with the daemon, so that
the daemon can tell where it is stuck.

Sources of names and files: Kafka's ``LogManager``, ``UnifiedLog``, ``PartitionMetadataFile``,
``CleanShutdownFileHandler``.
"""

# pathlib knows no dir_fd, and importing it costs every worker memory.
# ruff: noqa: PTH102, PTH106, PTH108, PTH116, PTH118, PTH120, PTH208

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import marshal
import mmap
import os
import re
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

BLOCK = 4096
NAME_BYTES = 255
"""Longest name of a file (NAME_MAX), and of a replica directory in Kafka."""
STATUS_SIZE = 128
"""Bytes of the status record: request number (u64), length of the step's name (u8), the name (UTF-8)."""
HEADER_SIZE = 4
"""Bytes before each message: its length, little-endian."""
RECEIVE_BYTES = 16 << 10
SMALL_FILE_BYTES = 64 << 10
"""Maximum size of ``meta.properties`` and similar files. A larger buffer would cost more page faults at each read."""
KNOWN_BLOCKS = 64
"""Old known content: 64 blocks, one of them read from the medium by each probe, in turn. A file of another size is of
another version, and is replaced: change the size with the content."""

FS_IOC_SETFLAGS = 0x40086602
FS_NOCOW_FL = 0x00800000
"""btrfs: overwrite in place, for which a full file system needs no room. Others refuse the flag."""
FS_IOC_GETFSUUID = 0x80111500
"""``_IOR(0x15, 0, struct fsuuid2)``, include/uapi/linux/fs.h."""
AT_EMPTY_PATH = 0x1000
STATX_MNT_ID = 0x1000
STATX_MNT_ID_UNIQUE = 0x4000
_STATX_MNT_ID_OFFSET = 144
PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
WARM_UP_PROBES = 20
"""Number of probes until the interpreter has adapted its code."""

LOCK_ANSWER_TIMEOUT_MS = 1000
"""Answer timeout of the keeper. A late keeper is kjbod's own problem, not the disk's."""

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
PARTITION_METADATA = "partition.metadata"
NOT_LOGS = ("remote-log-index-cache",)
KAFKA_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
"""Files that a Kafka broker makes in each log directory when it starts, even empty (``CheckpointFile``). An agent
writes one only for a replica that it moves, and only where the other directory has one."""
METADATA_PREFIX = "__cluster_metadata-"
"""Begin of the name of the metadata log, which an agent keeps too."""
TRACE_REPLICAS = 256
"""Replica directories in which a start looks for segments with data."""
_SUFFIXED = re.compile(r"^(\S+)-(\S+)\.(\S+)-(delete|future|stray)$")
_NONCE = re.compile(rb"kjbod probe ([0-9a-f]{24}) [0-9]+\n")
_DIRECTORY_ID = re.compile(rb"^[ \t\f]*directory\.id[ \t\f]*[=: \t\f][ \t\f]*(\S*)[ \t\f]*\r?$", re.MULTILINE)

_TEXT = re.compile(rb"[\t\n\f\r -~]*")

_TOPIC_ID = re.compile(rb"version: ?(\d+)\r?\ntopic_id: ?([A-Za-z0-9_-]{22})={0,2}\s*")
_RESERVED_ID = re.compile(rb"A{21}[A-Za-f]")
"""0, and 1, which is that of the metadata log: no topic has them. The last character has two bits of the id."""

NO_FILE = (errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESPIPE)
"""Errors of a read that meets a directory, a link loop, a path through a file, a socket or a FIFO."""
DENIED = (errno.EACCES, errno.EPERM)
ONE_REPLICA = (errno.ENOKEY, *NO_FILE, *DENIED)
"""Errors of a read that concern one replica and not the medium: Kafka's directory stays online."""
ANOTHER = (errno.ENOENT, errno.ESTALE, *NO_FILE, *DENIED)
"""Errors of a read of ``meta.properties`` that is gone, not accessible, or another file. They do not concern the
medium."""
BESIDE_MAX = 64
"""Maximum number of names beside a log directory in an answer."""
ACCESS_SAMPLES = 8
"""Number of replica directories whose access rights are checked at the start."""
USABLE = os.R_OK | os.W_OK | os.X_OK
"""Access that a broker needs to a directory."""
AT_FDCWD = -100
AT_EACCESS = 0x200
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_libc = ctypes.CDLL(None)
_faccessat = ctypes.CDLL(None, use_errno=True).faccessat
_statx = getattr(_libc, "statx", None)
_statx_buffer = ctypes.create_string_buffer(256)


LINK = "it is a symbolic link"
_KINDS = {
    stat.S_IFLNK: LINK,
    stat.S_IFREG: "it is a file",
    stat.S_IFIFO: "it is a FIFO",
    stat.S_IFSOCK: "it is a socket",
}


def obstacle_of(entry: os.DirEntry[str]) -> str | None:
    """Kind of an entry that has the name of a current or future replica and is no directory; None: it is none such.

    A link is not followed: what it leads to may be on a disk that hangs, or not mounted.
    """
    parsed = parse_replica(entry.name)
    if parsed is None or parsed[2] not in ("", "future") or entry.is_dir(follow_symlinks=False):
        return None
    return _KINDS.get(stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode), "it is a device")


class Refused(Exception):  # noqa: N818  an answer, not an accident
    """A failed comparison, with its errno and its step."""

    def __init__(self, number: int, call: str) -> None:
        super().__init__(number, call)
        self.number = number
        self.call = call


class Trouble(Exception):  # noqa: N818  an answer, not an accident
    """A failure that the disk has not caused."""


def denied(directory: int, name: str, mode: int) -> int:
    """Return EACCES or EPERM if this process has no access of ``mode`` to ``name``; 0 otherwise, also after another
    error.

    ``os.access`` does not tell why: on a read-only file system nothing may be written either.
    """
    if _faccessat(directory, os.fsencode(name), mode, AT_EACCESS) == 0:
        return 0
    number = ctypes.get_errno()
    return number if number in DENIED else 0


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends, also when that has happened already.

    The parent's pid is compared, not 1: in a container the parent may be process 1.
    """
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)


def find_title() -> tuple[int, int]:
    """Addresses of the command line of this process and of each that it forks: the first byte and the one behind the
    last (``arg_start`` and ``arg_end`` of proc_pid_stat(5)); zeros when this may not be known."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
        return int(fields[45]), int(fields[46])
    return 0, 0


def entitle(name: str, title: str, place: tuple[int, int]) -> None:
    """Name this process: ``comm`` (15 bytes), and the command line as far as the old one reached.

    The old one is overwritten where it is: ``place``, as :func:`find_title` found it before the fork.
    """
    _libc.prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    start, end = place
    if 0 < start < end:
        text = title.encode("utf-8", "surrogateescape")[: end - start - 1]
        ctypes.memmove(start, text + bytes(end - start - len(text)), end - start)


def frame(message: dict[str, Any]) -> bytes:
    """A message as it goes over the socket: length, then the marshalled dict.

    Both ends are the same interpreter running the same code, for which marshal is made. It is part of the interpreter,
    where JSON is one more package to load into each worker.
    """
    data = marshal.dumps(message)
    return len(data).to_bytes(HEADER_SIZE, "little") + data


class Unframer:
    """Parser that turns bytes from a socket into messages."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield all messages that are complete with ``data``."""
        buffer = self._buffer + data if self._buffer else data
        while len(buffer) >= HEADER_SIZE:
            end = HEADER_SIZE + int.from_bytes(buffer[:HEADER_SIZE], "little")
            if len(buffer) < end:
                break
            message: dict[str, Any] = marshal.loads(buffer[HEADER_SIZE:end])
            buffer = buffer[end:]
            yield message
        self._buffer = buffer


PARTITION_MAX = (1 << 31) - 1


def parse_replica(name: str) -> tuple[str, int, str] | None:
    """Topic, partition and suffix of a replica directory's name, None when Kafka could not parse it.

    ``UnifiedLog.parseTopicPartitionName``: with a suffix the part after the last dot is dropped, then the last ``-``
    separates topic and partition. As in ``Integer.parseInt`` a partition may begin with "+" and has 31 bits.
    """
    suffix = ""
    if name.endswith(("-delete", "-future", "-stray")):
        if _SUFFIXED.match(name) is None:
            return None
        name, _, tail = name.rpartition(".")
        suffix = tail.rpartition("-")[2]
    topic, _, partition = name.rpartition("-")
    partition = partition.removeprefix("+")
    if not topic or not (partition.isascii() and partition.isdigit()) or int(partition) > PARTITION_MAX:
        return None
    return topic, int(partition), suffix


UNFINISHED = ".kjbod-new-delete"
"""Suffix of the temporary name under which a replica is made. The directory has only its metadata then."""


def delete_form(name: str) -> str:
    """The name under which a replica directory is removed: that of a future or stray one with the other suffix, the
    topic cut where it would get too long (``UnifiedLog.logDeleteDirName``)."""
    stem, _, tail = name.rpartition(".")
    unique, _, suffix = tail.rpartition("-")
    if suffix == "delete":
        return name
    topic, _, partition = stem.rpartition("-")
    rest = f"-{partition}.{unique}-delete"
    return os.fsdecode(os.fsencode(topic)[: NAME_BYTES - len(os.fsencode(rest))]) + rest


def directory_id_of(content: bytes) -> str | None:
    """Value of ``directory.id`` in a ``meta.properties``; the last one wins, as in ``java.util.Properties``."""
    found = _DIRECTORY_ID.findall(content)
    return found[-1].decode("latin-1").replace("\\", "") if found else None


def topic_id_of(content: bytes) -> str | None:
    """Text of the topic id in a ``partition.metadata``; None when it is not one of version 0 with an id that a
    topic may have (``PartitionMetadataFile.PartitionMetadataReadBuffer``, which takes 1, too)."""
    found = _TOPIC_ID.fullmatch(content)
    if found is None or int(found.group(1)) != 0 or _RESERVED_ID.fullmatch(found.group(2)):
        return None
    return found.group(2).decode("latin-1")


def why_no_topic_id(content: bytes) -> str:
    """Reason why there is no topic id in a ``partition.metadata``, in words that follow a path."""
    if not content.strip(b"\0"):
        return f"its {PARTITION_METADATA} is {'all NUL' if content else 'empty'}"
    version = re.match(rb"version: ?(\d+)\r?\n", content)
    if version is not None and int(version.group(1)) != 0:
        return f"its {PARTITION_METADATA} has version {int(version.group(1))}, and only 0 is known"
    return f"its {PARTITION_METADATA} has no topic id that can be read"


def known_block(index: int) -> bytes:
    """Return the content that block ``index`` of the known file must have."""
    line = (
        b"kjbod known content, block %04d. Do not change: it shows that this disk still gives back old data.\n" % index
    )
    return (line * (BLOCK // len(line) + 1))[:BLOCK]


def nonce_block(token: bytes, sequence: int) -> bytes:
    """Return the block that probe number ``sequence`` of the worker with this token writes."""
    line = b"kjbod probe %s %d\n" % (token, sequence)
    return (line * (BLOCK // len(line) + 1))[:BLOCK]


def token_of(content: bytes) -> bytes | None:
    """Return the token of the worker whose probe wrote this block; None: no probe wrote it."""
    found = _NONCE.match(content)
    if found is None or content != (found.group() * (BLOCK // len(found.group()) + 1))[:BLOCK]:
        return None
    return found.group(1)


def _statx_mount_id(fd: int, mask: int) -> int | None:
    """``stx_mnt_id`` of an open directory, None when this kernel or C library does not know this kind of id."""
    if _statx is None or _statx(fd, b"", AT_EMPTY_PATH, mask, _statx_buffer) != 0:
        return None
    if not struct.unpack_from("=I", _statx_buffer, 0)[0] & mask:
        return None
    return int(struct.unpack_from("=Q", _statx_buffer, _STATX_MNT_ID_OFFSET)[0])


def identity_of(fd: int) -> list[Any]:
    """Return the fields of ``MountIdentity`` for an open directory, in order."""
    status = os.fstat(fd)
    fs_uuid: str | None = None
    with contextlib.suppress(OSError):  # ENOTTY: this file system has none to tell (btrfs, FUSE)
        answer = fcntl.ioctl(fd, FS_IOC_GETFSUUID, bytes(17))
        fs_uuid = answer[1 : 1 + answer[0]].hex()
    return [
        _statx_mount_id(fd, STATX_MNT_ID) or 0,
        _statx_mount_id(fd, STATX_MNT_ID_UNIQUE),
        f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}",
        status.st_ino,
        f"{os.fstatvfs(fd).f_fsid:x}",
        fs_uuid,
    ]


def _read_cold(fd: int, size: int, offset: int = 0) -> bytes:
    """Read past the page cache: an ordinary buffered read succeeds on a dead disk.

    Not O_DIRECT: btrfs serves that from the cache, and some file systems refuse it.
    """
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return os.pread(fd, size, offset)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory, or a link to a directory."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno not in NO_FILE:
            raise
        return False


def _file_with_data(replica: int) -> str | None:
    """Return the name of a non-empty segment in an open replica directory; None: there is none."""
    with os.scandir(replica) as entries:
        for entry in entries:
            if entry.name.endswith(".log"):
                with contextlib.suppress(FileNotFoundError):
                    if entry.stat(follow_symlinks=False).st_size:
                        return entry.name
    return None


def _version(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


class Worker:
    """Carries out requests for one log directory.

    Args:
        path: the log directory.
        role: part of the names of the probe files, so that two watchers of one directory do not disturb each other.
        status: the memory file for the step.
        keeper: datagram socket to the process that holds the locks.
    """

    def __init__(self, path: str, role: str, status: int, keeper: socket.socket) -> None:
        self.path = path
        own = "" if role == "broker" else f"_{role}"
        self.probe_name = f".kjbod_probe{own}"
        self.created_name = f".kjbod_created{own}"
        self.known_name = f".kjbod_known{own}"
        os.ftruncate(status, STATUS_SIZE)
        self._status = mmap.mmap(status, STATUS_SIZE)
        self._keeper = keeper
        self._number = 0
        self._call = ""
        self._started = 0
        self._sequence = 0
        self._known_index = 0
        self._token = b"%08x%016x" % (os.getpid(), time.monotonic_ns())
        self._places: deque[str] = deque()
        """Replicas whose ``partition.metadata`` was found right: ``"1763737200000000000 topic-0"``, its time of change
        then (``st_ctime_ns``) and the name. One object for each: there may be thousands, in each worker."""
        self._last: tuple[tuple[int, int], bytes, bytes] | None = None
        self._steps: list[tuple[str, int]] = []

    # requests ------------------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; every outcome is an answer."""
        self._number = request["n"]
        self._started = time.monotonic_ns()
        self._call = f"open of {self.path}"
        outcome: dict[str, Any]
        try:
            outcome = {"ok": self._carry_out(request)}
        except Refused as refusal:
            outcome = {"errno": refusal.number, "call": refusal.call}
        except OSError as error:
            outcome = {"errno": error.errno or errno.EIO, "call": self._call}
            if error.errno in DENIED:
                outcome["barrier"] = self._barrier(error.filename or ".")
        except Trouble as trouble:
            outcome = {"trouble": str(trouble)}
        except Exception as bug:  # noqa: BLE001  a bug of ours must not look like a broken disk, nor end the worker
            outcome = {"trouble": f"{type(bug).__name__} at {self._call}: {bug}"}
        self._note("")
        return {"n": self._number, "us": self._elapsed_us(), **outcome}

    def _carry_out(self, request: dict[str, Any]) -> Any:
        operation = getattr(self, f"op_{request['op']}")
        identity, directory_id = request["expect"]
        self._step(f"open of {self.path}")
        root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._check_identity(root, identity)
            return operation(root, request, directory_id)
        finally:
            os.close(root)

    def _require_access(self, root: int, replicas: list[str]) -> None:
        """Require access to the directory. After a chown that was not recursive, the first change would otherwise look
        like a broken disk. A few replicas are checked; a single one of several without access is allowed. A read-only
        file system is not checked here."""
        for name, mode in ((".", USABLE), (".lock", os.R_OK | os.W_OK)):
            self._step(f"access to {self.path if name == '.' else name}")
            if number := denied(root, name, mode):
                raise PermissionError(number, os.strerror(number), name)
        sample = replicas[:ACCESS_SAMPLES]
        numbers = [denied(root, name, USABLE) for name in sample]
        if len(sample) > 1 and all(numbers):
            self._step(f"access to {sample[0]}")
            raise PermissionError(numbers[0], os.strerror(numbers[0]), sample[0])

    def _barrier(self, name: str) -> list[Any] | None:
        """Return the first path without access, from the root down to the requested name: name, owner, mode, and
        whether it is above the log directory."""
        above = [os.path.dirname(self.path)]
        while above[-1] != os.path.dirname(above[-1]):
            above.append(os.path.dirname(above[-1]))
        places = [(path, os.X_OK) for path in reversed(above)]
        places.append((self.path, os.R_OK | os.W_OK | os.X_OK))
        places.append((os.path.join(self.path, name), os.R_OK | os.W_OK))
        for number, (path, mode) in enumerate(places):
            if denied(AT_FDCWD, path, mode):
                with contextlib.suppress(OSError):
                    found = os.stat(path)
                    return [path, found.st_uid, found.st_mode, number < len(above)]
        return None

    def _elapsed_us(self) -> int:
        return (time.monotonic_ns() - self._started) // 1000

    def _note(self, call: str) -> None:
        text = call.encode("utf-8", "replace")[: STATUS_SIZE - 9]
        self._status[: 9 + len(text)] = struct.pack("=QB", self._number, len(text)) + text

    def _step(self, call: str) -> None:
        self._call = call
        self._note(call)

    def _check_identity(self, root: int, expected: list[Any] | None) -> None:
        """Require that an open directory is still the one that was loaded."""
        self._step(f"identity of {self.path}")
        self.identity = identity_of(root)
        if expected is not None and self.identity != expected:
            raise Refused(errno.ESTALE, self._call)
        self._steps = [("identity", self._elapsed_us())]

    # files ---------------------------------------------------------------------------------------------------------

    def _read(self, root: int, name: str, *, cold: bool = False, size: int = SMALL_FILE_BYTES) -> bytes | None:
        """Return the content of a small file; None: there is none."""
        self._step(f"read of {name}")
        try:
            fd = self._open_to_read(root, name)
        except FileNotFoundError:
            return None
        try:
            return _read_cold(fd, size) if cold else os.pread(fd, size, 0)
        finally:
            os.close(fd)

    def _open_to_read(self, root: int, name: str) -> int:
        """Open a file of the broker's. What a link leads to is looked at before: a guard may be root, and the owner of
        the directory is not, for whom it would open a device. Not blocking: a FIFO of this name must not stop the
        worker for ever."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=root)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        place = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=root)
        try:
            if not stat.S_ISREG(os.fstat(place).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
            return os.open(f"/proc/self/fd/{place}", flags)
        finally:
            os.close(place)

    def _read_if_file(self, root: int, name: str, otherwise: bytes | None) -> bytes | None:
        """:meth:`_read`; ``otherwise`` where something has the name that is no file: the disk has answered."""
        try:
            return self._read(root, name)
        except OSError as error:
            if error.errno not in NO_FILE:
                raise
            return otherwise

    def _replace(self, root: int, name: str, content: Iterable[bytes], mode: int = 0o644) -> None:
        """tmp, fsync, rename, fsync of the directory. In pieces: a worker keeps the memory that it once needed."""
        temporary = name + ".tmp"
        fd = self._create(root, temporary, mode)
        try:
            self._step(f"write of {temporary}")
            for piece in content:
                _write_all(fd, piece)
            self._step(f"fsync of {temporary}")
            os.fsync(fd)
        finally:
            os.close(fd)
        self._give_name(root, temporary, name)
        self._sync_directory(root)

    def _create(self, root: int, name: str, mode: int) -> int:
        """Create a temporary file. Replace the rest of a crash; do not follow a link of that name."""
        self._step(f"create of {name}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            return os.open(name, flags, mode, dir_fd=root)
        except FileExistsError:
            try:
                os.unlink(name, dir_fd=root)
            except IsADirectoryError:
                raise Trouble(f"{name} is in the way: it is a directory; remove it") from None
            except FileNotFoundError:
                raise self._rival(name) from None
        try:
            return os.open(name, flags, mode, dir_fd=root)
        except FileExistsError:
            raise self._rival(name) from None

    def _give_name(self, root: int, temporary: str, name: str) -> None:
        """Rename a file that this worker has just made. If it is gone, another process has removed it, not the disk."""
        self._step(f"rename to {name}")
        try:
            os.rename(temporary, name, src_dir_fd=root, dst_dir_fd=root)
        except FileNotFoundError:
            raise self._rival(name) from None

    def _rival(self, name: str) -> Trouble:
        return Trouble(f"another process writes to {name}: two agents of one role watch this directory")

    def _sync_directory(self, fd: int) -> None:
        self._step("fsync of the directory")
        os.fsync(fd)

    def _capacity(self, root: int) -> list[int]:
        self._step(f"statvfs of {self.path}")
        status = os.fstatvfs(root)
        return [status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize]

    def op_usable_bytes(self, root: int, request: dict[str, Any], directory_id: str | None) -> int:
        return self._capacity(root)[1]

    # start ---------------------------------------------------------------------------------------------------------

    def op_load(self, root: int, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        """Load everything except the contents of ``partition.metadata``; :meth:`op_topic_ids` loads those in
        batches."""
        self._places.clear()
        meta = self._read(root, META_PROPERTIES, cold=True)
        clean = self._read_if_file(root, CLEAN_SHUTDOWN, None)
        self._step(f"list of {self.path}")
        names, obstacles, checkpoints = [], [], []
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name in KAFKA_CHECKPOINTS:
                    checkpoints.append(entry.name)
                obstacle = obstacle_of(entry)
                if obstacle is not None:
                    obstacles.append([entry.name, parse_replica(entry.name), obstacle])
                elif not (entry.is_symlink() and parse_replica(entry.name)) and _is_directory(entry):
                    names.append(entry.name)
        replicas = [name for name in sorted(names) if parse_replica(name)]
        if meta is not None or replicas:  # else it may be a mount point without its disk
            self._require_access(root, replicas)
        kafka = min(checkpoints) if checkpoints else self._segment_with_data(root, replicas)
        self._step(f"realpath of {self.path}")
        return {
            "meta": None if meta is None else meta.decode("latin-1"),
            "directory_id": None if meta is None else directory_id_of(meta),
            "clean": None if clean is None else clean.decode("latin-1"),
            "names": [[name, parse_replica(name)] for name in sorted(names) if name not in NOT_LOGS],
            "obstacles": sorted(obstacles),
            "kafka": kafka,
            "real_path": os.path.realpath(self.path),
            "identity": self.identity,
            "capacity": self._capacity(root),
        }

    def _segment_with_data(self, root: int, replicas: list[str]) -> str | None:
        """Return the first segment with data in the first replicas, as ``orders-0/00000000000000000000.log``. None:
        there is no such segment. An agent makes no segments, and copies only those that are there."""
        logs = [name for name in replicas if not name.startswith(METADATA_PREFIX)]
        for name in logs[:TRACE_REPLICAS]:
            self._step(f"list of {name}")
            try:
                replica = self._open_replica(root, name)
            except OSError as error:
                if error.errno not in (errno.ENOENT, *ONE_REPLICA):  # a broker that runs may have just removed it
                    raise
                continue
            try:
                if (file := _file_with_data(replica)) is not None:
                    return f"{name}/{file}"
            except PermissionError:
                continue
            finally:
                os.close(replica)
        return None

    def _open_replica(self, root: int, name: str) -> int:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)

    def op_topic_ids(
        self, root: int, request: dict[str, Any], directory_id: str | None
    ) -> list[tuple[str | None, str]]:
        """Return the topic ids of the replicas in ``names``, in order. Without a topic id: why the replica may still
        have data, in words; empty: it has none. ``known``: probes know them already."""
        return [self._topic_id(root, name, known=request.get("known", False)) for name in request["names"]]

    def _topic_id(self, root: int, name: str, *, known: bool) -> tuple[str | None, str]:
        self._step(f"access of {name}")
        try:
            number = denied(root, name, USABLE)
            if number and not name.endswith(("-delete", "-stray")):
                raise PermissionError(number, os.strerror(number))
            content = self._read(root, f"{name}/{PARTITION_METADATA}")
            if content is None:
                return None, self._why_it_may_have_data(root, name)
        except OSError as error:
            if error.errno not in ONE_REPLICA:
                raise
            return None, f"it cannot be read: {errno.errorcode[error.errno]} at {self._call}"
        topic_id = topic_id_of(content)
        if topic_id is None:
            return None, why_no_topic_id(content)
        if not known:
            changed_ns = os.stat(f"{name}/{PARTITION_METADATA}", dir_fd=root).st_ctime_ns
            self._places.append(f"{changed_ns} {name}")
        return topic_id, ""

    def _why_it_may_have_data(self, root: int, name: str) -> str:
        """Reason why a replica without ``partition.metadata`` may have data; empty: it has none.

        A broker makes the first segment, then that file, and then appends: between them a crash leaves segments of no
        bytes (KAFKA-16814). A directory with nothing in it may be a mount point whose disk is not mounted.
        """
        self._step(f"list of {name}")
        try:
            replica = self._open_replica(root, name)
        except FileNotFoundError:
            return ""  # somebody has just removed or renamed it
        try:
            if (file := _file_with_data(replica)) is not None:
                return f"it has no {PARTITION_METADATA}, and data in {file}"
            if not any(file.endswith(".log") for file in os.listdir(replica)):
                return f"it has no {PARTITION_METADATA} and no segment: is its disk not mounted?"
        finally:
            os.close(replica)
        return ""

    def op_survey(self, root: int, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        """Return device and inode of ``.lock``, and the other names on the way from the mount point: ``levels`` are
        directories, each with the next name on the way. Opens no file, because closing it would end a lock of this
        process."""
        lock: list[int] | None = None
        self._step("stat of .lock")
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(".lock", dir_fd=root, follow_symlinks=False)
            lock = [os.major(found.st_dev), os.minor(found.st_dev), found.st_ino]
        beside: list[str] = []
        try:
            for directory, leads_on in request["levels"]:
                self._step(f"list of {directory}")
                beside += [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name != leads_on]
        except PermissionError:
            return {"lock": lock, "beside": None}
        return {"lock": lock, "beside": beside[:BESIDE_MAX]}

    def op_write_meta_properties(self, root: int, request: dict[str, Any], directory_id: str | None) -> str | None:
        """Replace ``meta.properties``; answers the directory id in it."""
        content = request["content"].encode("latin-1")
        self._replace(root, META_PROPERTIES, [content])
        return directory_id_of(content)

    # locks ---------------------------------------------------------------------------------------------------------

    def op_lock(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Have the keeper lock ``.lock``. First ask whether it holds the lock: closing a second open file would end the
        lock (POSIX)."""
        if self._ask_keeper("held") == b"yes":
            return
        while True:
            self._step("open of .lock")
            fd = os.open(".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644, dir_fd=root)
            try:
                self._step("lock of .lock")
                answer = self._ask_keeper("lock", fd)
                removed = not os.fstat(fd).st_nlink
            finally:
                os.close(fd)
            if answer != b"yes":
                raise Refused(int(answer), self._call)
            if not removed:
                return
            self._ask_keeper("unlock")  # the earlier holder has removed the file when it stopped: lock the new file

    def op_unlock(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Have the keeper release the lock."""
        self._ask_keeper("unlock")

    def _ask_keeper(self, question: str, *fds: int) -> bytes:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours, theirs:
            text = marshal.dumps([question, self.path])
            with contextlib.suppress(BlockingIOError):  # its queue is full: it stands still
                socket.send_fds(self._keeper, [text], [theirs.fileno(), *fds], socket.MSG_DONTWAIT)
            theirs.close()
            waiting = select.poll()
            waiting.register(ours, select.POLLIN)
            answer = ours.recv(16) if waiting.poll(LOCK_ANSWER_TIMEOUT_MS) else b""
        if not answer:
            raise Trouble("the process that keeps the locks does not answer")
        return answer

    # the probe -----------------------------------------------------------------------------------------------------

    def op_probe(self, root: int, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        """Probe the directory (``DirectoryAgent.probe``). Nothing is written before identity and directory id were
        found right.

        What is old is read before anything is written, so that a disk that is full *and* dead is a dead one.
        """
        if directory_id is not None:
            try:
                self._check_directory_id(root, directory_id)
            except (OSError, Refused) as error:
                if (error.number if isinstance(error, Refused) else error.errno) not in ANOTHER:
                    raise
                # Whose it is says nothing of the medium; where that is bad as well, it is what counts.
                call = self._call
                self._check_known(root)
                self._check_replica(root)
                self._step(call)
                raise
            self._done("meta")
        self._sequence += 1
        known = self._check_known(root)
        self._check_replica(root)
        no_space = self._unless_full(self._overwrite, root)
        written = no_space is None
        if request["full"]:
            if not known:
                no_space = self._unless_full(self._write_known, root) or no_space
            no_space = no_space or self._unless_full(self._create_and_rename, root)
        return {
            "steps": self._steps,
            "no_space": no_space,
            "written": written,
            "identity": self.identity,
            "capacity": self._capacity(root),
        }

    def _unless_full(self, step: Callable[[int], None], root: int) -> str | None:
        """Do a step of the probe; return the name of the errno if the file system is full."""
        try:
            step(root)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._remove_temporary(root)
            return errno.errorcode[error.errno]
        return None

    def _done(self, name: str) -> None:
        self._steps.append((name, self._elapsed_us() - sum(us for _, us in self._steps)))

    def _check_directory_id(self, root: int, expected: str) -> None:
        """Check ``meta.properties``, which is also old known content: a wiped or truncated disk shows here. Text
        without an id was written by a program; other content is damage."""
        content = self._read(root, META_PROPERTIES, cold=True)
        if content is None:
            raise Refused(errno.ENOENT, self._call)
        found = directory_id_of(content)
        if found is None and not _TEXT.fullmatch(content):
            raise Refused(errno.EILSEQ, f"comparison of {META_PROPERTIES}")
        if found != expected:
            raise Refused(errno.ESTALE, f"directory.id in {META_PROPERTIES}")

    def _open_own(self, root: int, name: str, flags: int) -> tuple[int, os.stat_result] | None:
        """Open one of the probe's own files; None: there is none. Refuse anything else with that name."""
        self._step(f"open of {name}")
        try:
            fd = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=root)
        except FileNotFoundError:
            return None
        except PermissionError as error:
            if error.errno == errno.EPERM:
                raise
            return None  # made by another user, before; where that matters, replacing it fails and tells
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise Trouble(f"{name} is in the way: it is no regular file; remove it") from None
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(fd)
            raise Trouble(f"{name} is in the way: it is no regular file, or has other names; remove it")
        return fd, status

    def _overwrite(self, root: int) -> None:
        name = self.probe_name
        opened = self._open_own(root, name, os.O_RDWR)
        if opened is None:
            self._make_probe_file(root)
            opened = self._open_own(root, name, os.O_RDWR)
            if opened is None:
                raise Refused(errno.EACCES, self._call)
        fd, status = opened
        try:
            self._done("open")
            before = self._check_last(fd, status)
            self._done("last")
            data = nonce_block(self._token, self._sequence)
            self._last = None  # the content is not known until it is read back
            self._step(f"write of {name}")
            if os.pwrite(fd, data, 0) != BLOCK:
                raise OSError(errno.ENOSPC, "short write")
            self._done("write")
            self._step(f"fsync of {name}")
            os.fsync(fd)
            self._done("fsync")
            self._step(f"read of {name}")
            found = _read_cold(fd, BLOCK)
            if found != data:
                if self._is_rivals(found, before):
                    raise self._rival(name)
                raise Refused(errno.EILSEQ, f"comparison of {name}")
            self._last = _version(os.fstat(fd)), data, before
            self._done("read")
        finally:
            os.close(fd)

    def _make_probe_file(self, root: int) -> None:
        temporary = self.probe_name + ".tmp"
        fd = self._create(root, temporary, 0o600)
        try:
            with contextlib.suppress(OSError):
                fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("=q", FS_NOCOW_FL))
            _write_all(fd, bytes(BLOCK))
            self._step(f"fsync of {temporary}")
            os.fsync(fd)
        finally:
            os.close(fd)
        self._give_name(root, temporary, self.probe_name)
        self._sync_directory(root)

    def _check_last(self, fd: int, status: os.stat_result) -> bytes:
        """Compare the medium with what the last probe wrote, if nobody has touched the file since.

        Sees writes that a device acknowledged, gave back once and lost, and a disk set back to an older state. Nobody
        else's write is taken for that: file and time of change must be as the last probe left them, and since that time
        has the grain of the kernel's clock, it must not be the block of another process.
        """
        self._step(f"read of {self.probe_name}")
        found = _read_cold(fd, BLOCK)
        if self._last is not None:
            version, written, before = self._last
            if version == _version(status) and found != written and not self._is_rivals(found, before):
                raise Refused(errno.EILSEQ, f"comparison of {self.probe_name} with the last probe")
        return found

    def _is_rivals(self, found: bytes, before: bytes) -> bool:
        """Whether another process has written the block since: it is neither this worker's block nor the one before
        it."""
        return token_of(found) not in (None, self._token) and found != before

    def _create_and_rename(self, root: int) -> None:
        temporary = self.created_name + ".tmp"
        self._step(f"create of {temporary}")
        fd = self._create(root, temporary, 0o600)
        try:
            _write_all(fd, known_block(0))
            self._step(f"fsync of {temporary}")
            os.fsync(fd)
        finally:
            os.close(fd)
        self._done("create")
        self._give_name(root, temporary, self.created_name)
        self._done("rename")
        self._sync_directory(root)
        self._done("dirsync")

    def _remove_temporary(self, root: int) -> None:
        for name in (self.created_name, self.known_name, self.probe_name):
            self._step(f"unlink of {name}.tmp")
            with contextlib.suppress(OSError):
                os.unlink(name + ".tmp", dir_fd=root)

    def _check_known(self, root: int) -> bool:
        """Check a block of old content from the medium; return False if there is no such file of this version.

        It was made by tmp, fsync, rename, so it is never there in part. Wrong content is damage; a wrong size is not,
        since it is read from the file system's memory.
        """
        name = self.known_name
        opened = self._open_own(root, name, os.O_RDONLY)
        if opened is None:
            return False
        fd, status = opened
        try:
            if status.st_size != KNOWN_BLOCKS * BLOCK:
                return False
            index = self._known_index
            self._step(f"read of {name} block {index}")
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead: one request
            if _read_cold(fd, BLOCK, index * BLOCK) != known_block(index):
                raise Refused(errno.EILSEQ, f"comparison of {name} block {index}")
        finally:
            os.close(fd)
        # Only now: the probe that is to confirm damage must meet the same block.
        self._known_index = (index + 1) % KNOWN_BLOCKS
        self._done("known")
        return True

    def _write_known(self, root: int) -> None:
        self._replace(root, self.known_name, map(known_block, range(KNOWN_BLOCKS)), 0o600)
        self._done("known")

    def _check_replica(self, root: int) -> None:
        """``partition.metadata`` of the next replica from the medium: old content where the logs lie.

        Only what was right before and has not been changed since is damaged when it no longer reads as it must. What
        could not be read or is damaged stays the next one, so that the probe that is to confirm it meets it again.
        """
        if not self._places:
            return
        changed_ns, _, name = self._places[0].partition(" ")
        self._step(f"open of {name}/{PARTITION_METADATA}")
        try:
            fd = self._open_to_read(root, f"{name}/{PARTITION_METADATA}")
            try:
                self._step(f"read of {name}/{PARTITION_METADATA}")
                found = topic_id_of(_read_cold(fd, BLOCK))
                now_ns = os.fstat(fd).st_ctime_ns
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in (errno.ENOENT, *DENIED, *NO_FILE):
                raise
            self._places.popleft()  # deleted, moved, or something else in its place
            return
        if found is None and now_ns == int(changed_ns):
            raise Refused(errno.EILSEQ, f"comparison of {name}/{PARTITION_METADATA}")
        self._places.popleft()
        if found is not None:
            self._places.append(f"{now_ns} {name}")
        self._done("replica")

    # clean shutdown ------------------------------------------------------------------------------------------------

    def op_clear_clean_shutdown(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Remove the clean-shutdown file, if it exists."""
        self._step(f"unlink of {CLEAN_SHUTDOWN}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(CLEAN_SHUTDOWN, dir_fd=root)
            self._sync_directory(root)

    def op_write_clean_shutdown(self, root: int, request: dict[str, Any], directory_id: str | None) -> None:
        """Write the clean-shutdown file (``CleanShutdownFileHandler``)."""
        self._replace(root, CLEAN_SHUTDOWN, [b'{"version":0,"brokerEpoch":%d}' % request["epoch"]])


def warm_up() -> None:
    """Make some probes of an empty directory in memory, in the process that forks the workers.

    The interpreter writes into its code and its tables when it runs something for the first times, and every page that
    is written to after the fork is one more page for each worker.
    """
    place = f"/dev/shm/kjbod-warm-up-{os.getpid()}"
    status = os.memfd_create("kjbod-warm-up")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    # Where there is no such file system, or it is full, the workers are a little larger.
    with ours, theirs, contextlib.suppress(OSError):
        os.mkdir(place, 0o700)
        try:
            worker = Worker(place, "broker", status, ours)
            for number in range(WARM_UP_PROBES):
                request = {"n": number, "op": "probe", "full": number % 2 == 0, "expect": [None, None]}
                for received in Unframer().feed(frame(request)):
                    frame(worker.answer(received))
        finally:
            for name in os.listdir(place):
                os.unlink(f"{place}/{name}")
            os.rmdir(place)
    os.close(status)


class Keeper:
    """Holder of the locks of all log directories, without other work.

    A worker that is stuck in the kernel survives SIGKILL and would keep its lock; this process never waits for a disk
    (a POSIX lock is memory only on local file systems), so its locks end with it, at once.

    POSIX locks belong to the process and the file: closing *any* descriptor of that file ends them. So a descriptor of
    a locked file is never closed before the lock is to go.
    """

    def __init__(self) -> None:
        self._held: dict[str, list[int]] = {}

    def answer(self, question: str, path: str, fds: list[int]) -> bytes:
        """Answer a question with ``yes``, or the number of the errno."""
        if question == "unlock":
            for fd in self._held.pop(path, []):
                os.close(fd)
            return b"yes"
        if question == "held":
            return b"yes" if path in self._held else b"0"
        place = os.fstat(fds[0])
        for other in self._held.values():
            if os.path.samestat(os.fstat(other[0]), place):
                other.extend(fds)  # the same directory by another path; closing would end the lock that is held
                return b"%d" % errno.EAGAIN
        try:
            fcntl.lockf(fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fds[0])
            return b"%d" % (errno.EAGAIN if error.errno == errno.EACCES else error.errno or errno.EIO)
        self._held[path] = fds
        return b"yes"


def keep(questions: socket.socket) -> None:
    """Serve lock requests for ever. Each comes with a socket for the answer, and with the open file to lock."""
    keeper = Keeper()
    while True:
        text, fds, _, _ = socket.recv_fds(questions, 1 << 16, 4)
        if not fds:
            continue
        with socket.socket(fileno=fds[0]) as reply, contextlib.suppress(OSError):
            question, path = marshal.loads(text)
            reply.sendall(keeper.answer(question, path, list(fds[1:])))


if __name__ == "__main__":
    sys.exit("started by zygote.py")
