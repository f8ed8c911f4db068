"""Storage agent with log directories in memory, for simulations and tests with injected faults.

No thread, no file, no clock of its own: time passes only in ``asyncio`` timers, so under a loop with virtual time a
simulated hour costs nothing. A :class:`MemoryDisk` outlives the storage agent that works on it, as a disk outlives a
process.

Each operation changes the disk at once and as a whole when it is carried out, since every operation of a storage agent
is durable when it is answered. What a crash can do is to come between the carrying out and the answer.
"""

import asyncio
import binascii
import errno
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kjbod_host.storage.api import CopyBuffer, StorageOptions
from kjbod_host.storage.checkpoints import CHECKPOINT_FILES, changed
from kjbod_host.storage.directory_client import Call, DirectoryClient
from kjbod_host.storage.segments import BatchCheck, LogEnd, segment_base
from kjbod_host.storage.worker import (
    KAFKA_CHECKPOINTS,
    METADATA_PREFIX,
    PARTITION_METADATA,
    TRACE_REPLICAS,
    Refused,
    delete_form,
    directory_id_of,
    parse_replica,
    topic_id_of,
    why_no_topic_id,
)

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
DELETABLE = ("delete", "stray", "future")


@dataclass(eq=False)
class MemoryDisk:
    """A log directory and the disk under it.

    Attributes:
        meta_properties: the file's content; None: not formatted.
        directories: sub-directories by name; the value is the content of ``partition.metadata``, None without one.
        obstacles: what has the name of a replica and is no directory, by name: what it is, in the words of
            ``worker.obstacle_of``.
        files: other files of a replica: content by name, by name of its directory. Assign another content and it has
            changed now; delete the name from ``inodes`` too and it is another file.
        checkpoints: content of Kafka's checkpoint files, by name.
        clean_shutdown: content of ``.kafka_cleanshutdown``; None without one.
        present: False: the directory is not there.
        number: which disk is in the place; another number is another disk.
        total_bytes: size.
        usable_bytes: what is left.
        copies_on_write: when it is full, nothing can be overwritten either, as on btrfs.
        wiped: nothing that was written before can be read; what is written from now on can.
        delay_ms: how long each request takes.
        locked_by: whoever holds ``.lock``.
        requests: how many were carried out.
    """

    meta_properties: bytes | None = None
    directories: dict[str, bytes | None] = field(default_factory=dict)
    obstacles: dict[str, str] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    checkpoints: dict[str, bytes] = field(default_factory=dict)
    clean_shutdown: bytes | None = None
    present: bool = True
    number: int = 1
    total_bytes: int = 1 << 30
    usable_bytes: int = 1 << 29
    copies_on_write: bool = False
    wiped: bool = False
    delay_ms: float = 0.0
    locked_by: object | None = None
    requests: int = 0
    inodes: dict[tuple[str, str], int] = field(default_factory=dict)
    _next: int = 100
    _times: dict[tuple[str, str], tuple[bytes, int]] = field(default_factory=dict)
    """Content when the time of change was set, and that time in ns: another content has changed since."""
    _errors: dict[str, int] = field(default_factory=dict)
    _hangs: bool = False
    _moving: list[Callable[[], None]] = field(default_factory=list)

    def fail(self, number: int, operations: Iterable[str] = ("*",)) -> None:
        """Answer this errno to these operations, to all by default, until :meth:`heal`."""
        for operation in operations:
            self._errors[operation] = number

    def fill(self) -> None:
        """Make the disk full: nothing new can be allocated."""
        self.usable_bytes = 0

    def hang(self) -> None:
        """Answer nothing, until :meth:`heal`."""
        self._hangs = True

    def heal(self) -> None:
        """End errors, hanging and delays; what hangs is answered."""
        self._errors.clear()
        self._hangs = False
        self.delay_ms = 0.0
        moving, self._moving = self._moving, []
        for go_on in moving:
            go_on()

    @property
    def hangs(self) -> bool:
        """Whether the disk answers no request."""
        return self._hangs

    def when_moving(self, go_on: Callable[[], None]) -> None:
        """Call back once when the disk no longer hangs."""
        self._moving.append(go_on)

    def error_of(self, operation: str) -> int | None:
        """Return the errno that this operation gets; None: no error."""
        return self._errors.get(operation, self._errors.get("*"))

    def identity(self) -> list[Any]:
        """Return the fields of ``MountIdentity``."""
        return [self.number, self.number, f"0:{self.number}", 2, f"{self.number:x}", None]

    def kafka_trace(self) -> str | None:
        """The file that shows that a Kafka broker has used this directory; see ``LoadedDirectory``."""
        if checkpoints := [name for name in KAFKA_CHECKPOINTS if name in self.checkpoints]:
            return checkpoints[0]
        replicas = [name for name in sorted(self.directories) if parse_replica(name)]
        for name in [name for name in replicas if not name.startswith(METADATA_PREFIX)][:TRACE_REPLICAS]:
            for file, content in sorted(self.files.get(name, {}).items()):
                if file.endswith(".log") and content:
                    return f"{name}/{file}"
        return None

    # files of replicas ---------------------------------------------------------------------------------------------

    def content(self, name: str, file: str) -> bytes | None:
        """Return the content of a file of a replica; None: there is no such file."""
        if file == PARTITION_METADATA:
            return self.directories.get(name)
        return self.files.get(name, {}).get(file)

    def topic_id(self, name: str) -> tuple[str | None, str]:
        """Topic id of a replica, and why there is none although it may have data; empty: it has none."""
        content, files = self.directories.get(name), self.files.get(name, {})
        if content is not None:
            topic_id = topic_id_of(content)
            return topic_id, "" if topic_id is not None else why_no_topic_id(content)
        segments = [file for file in sorted(files) if file.endswith(".log")]
        if any(files[file] for file in segments):
            return None, f"it has no {PARTITION_METADATA}, and data"
        return None, "" if segments else f"it has no {PARTITION_METADATA} and no segment: is its disk not mounted?"

    def file_names(self, name: str) -> list[str]:
        """Return the names of all files of a replica, sorted."""
        own = [] if self.directories[name] is None else [PARTITION_METADATA]
        return sorted([*own, *self.files.get(name, {})])

    def status(self, name: str, file: str) -> list[Any]:
        """Return the fields of ``FileStatus``."""
        content, key = self.content(name, file) or b"", (name, file)
        if key not in self.inodes:
            self._next += 1
            self.inodes[key] = self._next
        if key not in self._times or self._times[key][0] != content:
            self._next += 1
            self._times[key] = content, self._next * 1_000_000
        return [file, len(content), self._times[key][1], self.inodes[key], len(content)]

    def put(self, name: str, file: str, content: bytes, mtime_ns: int | None = None) -> None:
        """Give a file this content, when there is room for it; and this time of change.

        Raises:
            Refused: ENOSPC.
        """
        growth = len(content) - len(self.content(name, file) or b"")
        if growth > self.usable_bytes or (growth >= 0 and self.usable_bytes <= 0 and content):
            raise Refused(errno.ENOSPC, f"write of {name}/{file}")
        self.usable_bytes -= growth
        self.files.setdefault(name, {})[file] = content
        if mtime_ns is not None:
            self._times[name, file] = content, mtime_ns

    def remove(self, name: str, file: str) -> None:
        """Remove a file, if it exists."""
        content = self.files.get(name, {}).pop(file, None)
        self.usable_bytes += len(content or b"")
        self.inodes.pop((name, file), None)
        self._times.pop((name, file), None)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a replica, with all that belongs to it."""
        self.directories[new_name] = self.directories.pop(name)
        if name in self.files:
            self.files[new_name] = self.files.pop(name)
        for file in self.file_names(new_name):
            if (name, file) in self.inodes:
                self.inodes[new_name, file] = self.inodes.pop((name, file))
            if (name, file) in self._times:
                self._times[new_name, file] = self._times.pop((name, file))


@dataclass(eq=False)
class MemoryCopyBuffer:
    """Slots in memory. Implements ``CopyBuffer``."""

    slots: int
    slot_bytes: int
    memory: list[bytearray] = field(init=False)

    def __post_init__(self) -> None:
        self.memory = [bytearray() for _ in range(self.slots)]

    def close(self) -> None:
        """Do nothing: memory needs no end."""


class MemoryDirectoryAgent(DirectoryClient):
    """All work on one disk in memory. Implements ``DirectoryAgent``."""

    def __init__(self, path: str, disk: MemoryDisk, options: StorageOptions) -> None:
        super().__init__(path, options.clock)
        self.disk = disk
        self._closed = False

    def _where(self, call: Call) -> tuple[str, int, str, str]:
        return f"{call.operation} of memory", 0, "", ""

    def _ready(self) -> bool:
        if self._closed:
            self._fail_all("the storage agent was closed")
        return not self._closed

    def _transmit(self, request: dict[str, Any]) -> None:
        # Never at once, as with a real worker: an answer comes from the event loop.
        asyncio.get_running_loop().call_later(self.disk.delay_ms / 1000, self._serve, request)

    def _serve(self, request: dict[str, Any]) -> None:
        if self._closed:
            return
        if self.disk.hangs:
            self.disk.when_moving(lambda: self._transmit(request))
            return
        self.disk.requests += 1
        answer: dict[str, Any] = {"us": round(self.disk.delay_ms * 1000)}
        try:
            answer["ok"] = self._carry_out(request)
        except Refused as refusal:
            answer |= {"errno": refusal.number, "call": refusal.call}
        self._answered(answer)

    def _carry_out(self, request: dict[str, Any]) -> Any:
        operation: str = request["op"]
        if (number := self.disk.error_of(operation)) is not None:
            raise Refused(number, f"{operation} of memory")
        if not self.disk.present:
            raise Refused(errno.ENOENT, f"open of {self._path}")
        identity, directory_id = request["expect"]
        if identity is not None and identity != self.disk.identity():
            raise Refused(errno.ESTALE, f"identity of {self._path}")
        return getattr(self, f"_op_{operation}")(request, directory_id)

    def _write(self, what: str) -> None:
        if self.disk.usable_bytes <= 0:
            raise Refused(errno.ENOSPC, f"write of {what}")

    def _op_load(self, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        disk = self.disk
        meta, clean = disk.meta_properties, disk.clean_shutdown
        return {
            "meta": None if meta is None else meta.decode("latin-1"),
            "directory_id": None if meta is None else directory_id_of(meta),
            "clean": None if clean is None else clean.decode("latin-1"),
            "names": [[name, parse_replica(name)] for name in sorted(disk.directories)],
            "obstacles": [[name, parse_replica(name), what] for name, what in sorted(disk.obstacles.items())],
            "kafka": disk.kafka_trace(),
            "real_path": self._path,
            "identity": disk.identity(),
            "capacity": [disk.total_bytes, disk.usable_bytes],
        }

    def _op_list_replicas(self, request: dict[str, Any], directory_id: str | None) -> list[list[Any]]:
        found = [[name, parsed] for name in sorted(self.disk.directories) if (parsed := parse_replica(name))]
        return [*found, *([name, parse_replica(name), what] for name, what in self.disk.obstacles.items())]

    def _op_topic_ids(self, request: dict[str, Any], directory_id: str | None) -> list[tuple[str | None, str]]:
        return [self.disk.topic_id(name) for name in request["names"]]

    def _op_write_meta_properties(self, request: dict[str, Any], directory_id: str | None) -> str | None:
        self._write("meta.properties")
        self.disk.meta_properties = request["content"].encode("latin-1")
        return directory_id_of(self.disk.meta_properties)

    def _op_lock(self, request: dict[str, Any], directory_id: str | None) -> None:
        if self.disk.locked_by not in (None, self):
            raise Refused(errno.EAGAIN, "lock of .lock")
        self.disk.locked_by = self

    def _op_unlock(self, request: dict[str, Any], directory_id: str | None) -> None:
        if self.disk.locked_by is self:
            self.disk.locked_by = None

    def _op_probe(self, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        disk = self.disk
        found = None if disk.meta_properties is None else directory_id_of(disk.meta_properties)
        if directory_id is not None and found is None:
            raise Refused(errno.ENOENT, "read of meta.properties")
        if directory_id is not None and found != directory_id:
            raise Refused(errno.ESTALE, "directory.id in meta.properties")
        if disk.wiped:
            raise Refused(errno.EILSEQ, "comparison of .kjbod_known block 0")
        written = disk.usable_bytes > 0 or not disk.copies_on_write
        full_up = not written or (request["full"] and disk.usable_bytes <= 0)
        return {
            "steps": [["fsync", round(disk.delay_ms * 1000)]],
            "no_space": "ENOSPC" if full_up else None,
            "written": written,
            "identity": disk.identity(),
            "capacity": [disk.total_bytes, disk.usable_bytes],
        }

    def _op_usable_bytes(self, request: dict[str, Any], directory_id: str | None) -> int:
        return self.disk.usable_bytes

    def _op_create_replica(self, request: dict[str, Any], directory_id: str | None) -> None:
        self._create(request, "")

    def _op_create_future(self, request: dict[str, Any], directory_id: str | None) -> None:
        self._create(request, "future")

    def _create(self, request: dict[str, Any], suffix: str) -> None:
        name, topic_id = request["name"], request["topic_id"]
        self._named(name, f"create of {name}", suffix)
        content = self.disk.directories.get(name)
        if name in self.disk.obstacles or (content is not None and topic_id_of(content) != topic_id):
            raise Refused(errno.EEXIST, f"create of {name}")
        if content is None and self.disk.files.get(name):
            raise Refused(errno.EEXIST, f"create of {name}")
        if content is None:
            self._write(name)
            self.disk.directories[name] = f"version: 0\ntopic_id: {topic_id}".encode()

    def _named(self, name: str, call: str, *suffixes: str) -> None:
        parsed = parse_replica(name)
        if "/" in name or parsed is None or (suffixes and parsed[2] not in suffixes):
            raise Refused(errno.EINVAL, call)

    def _op_rename_replica(self, request: dict[str, Any], directory_id: str | None) -> None:
        name, new_name = request["name"], request["new_name"]
        call = f"rename of {name} to {new_name}"
        for part in (name, new_name):
            self._named(part, call)
        if new_name in self.disk.directories or new_name in self.disk.obstacles:
            raise Refused(errno.EEXIST, call)
        if name not in self.disk.directories:
            raise Refused(errno.ENOENT, call)
        if len(new_name.encode()) > 255:
            raise Refused(errno.ENAMETOOLONG, call)
        self.disk.rename(name, new_name)

    def _op_delete_replica(self, request: dict[str, Any], directory_id: str | None) -> bool:
        name, disk = request["name"], self.disk
        self._named(name, f"delete of {name}", *DELETABLE)
        for known in (name, delete_form(name)):
            if known not in disk.directories:
                continue
            content = disk.directories[known]
            found = None if content is None else topic_id_of(content)
            if found != request["topic_id"] and (content is not None or disk.files.get(known)):
                raise Refused(errno.ESTALE, f"comparison of {known}/{PARTITION_METADATA}")
            for file in disk.file_names(known):
                disk.remove(known, file)
            disk.files.pop(known, None)
            del disk.directories[known]
        return False

    # files of a replica --------------------------------------------------------------------------------------------

    def _op_replica_sizes(self, request: dict[str, Any], directory_id: str | None) -> list[int | None]:
        return [
            sum(
                len(self.disk.content(name, file) or b"")
                for file in self.disk.file_names(name)
                if file.endswith(request["suffix"])
            )
            if name in self.disk.directories
            else None
            for name in request["names"]
        ]

    def _replica(self, request: dict[str, Any], call: str, *suffixes: str) -> str:
        """Return the name of the request's replica; refuse a replica that does not exist."""
        name: str = request["name"]
        self._named(name, call, *suffixes)
        if name not in self.disk.directories:
            raise Refused(errno.ENOENT, call)
        return name

    def _content(self, request: dict[str, Any], call: str) -> bytes:
        name = self._replica(request, call)
        content = self.disk.content(name, request["file"])
        if content is None:
            raise Refused(errno.ENOENT, call)
        return content

    def _op_log_end_offset(self, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        name = self._replica(request, f"list of {request['name']}")
        bases = [base for file in self.disk.file_names(name) if (base := segment_base(file)) is not None]
        if not bases:
            return {"end": 0}
        content = self.disk.files[name][f"{max(bases):020d}.log"]
        end = LogEnd(max(bases), len(content), lambda offset, size: content[offset : offset + size])
        end.advance(len(content))
        return {"end": end.offset}

    def _op_list_files(self, request: dict[str, Any], directory_id: str | None) -> list[list[Any]]:
        name = self._replica(request, f"list of {request['name']}")
        return [self.disk.status(name, file) for file in self.disk.file_names(name)]

    def _op_read_piece(self, request: dict[str, Any], directory_id: str | None) -> list[Any]:
        content = self._content(request, f"read of {request['name']}/{request['file']}")
        offset, place = request["offset"], request["place"]
        data = content[offset : offset + min(request["length"], place[1])]
        self._slot(request)[:] = data
        return [len(data), binascii.crc32(data), False]

    def _slot(self, request: dict[str, Any]) -> bytearray:
        buffer: MemoryCopyBuffer = request["buffer"]
        offset: int = request["place"][0]
        return buffer.memory[offset // buffer.slot_bytes]

    def _op_write_piece(self, request: dict[str, Any], directory_id: str | None) -> None:
        file, (length, crc, hole) = request["file"], request["piece"]
        call = f"write of {request['name']}/{file}"
        name = self._replica(request, call, "future")
        self._single(file, call)
        data = bytes(length) if hole else bytes(self._slot(request)[:length])
        if binascii.crc32(data) != crc or len(data) != length:
            raise Refused(errno.EILSEQ, f"comparison of the slot for {name}/{file}")
        before = self.disk.content(name, file) or b""
        offset = request["offset"]
        self.disk.put(name, file, before[:offset].ljust(offset, b"\0") + data + before[offset + length :])

    def _single(self, file: str, call: str) -> None:
        if "/" in file or file in ("", ".", "..", PARTITION_METADATA):
            raise Refused(errno.EINVAL, call)

    def _op_finish_file(self, request: dict[str, Any], directory_id: str | None) -> None:
        file, size = request["file"], request["size"]
        call = f"write of {request['name']}/{file}"
        name = self._replica(request, call, "future")
        self._single(file, call)
        content = (self.disk.content(name, file) or b"")[:size].ljust(size, b"\0")
        self.disk.put(name, file, content, request["mtime_ns"])

    def _op_remove_file(self, request: dict[str, Any], directory_id: str | None) -> None:
        call = f"unlink of {request['name']}/{request['file']}"
        name = self._replica(request, call, "future")
        self._single(request["file"], call)
        self.disk.remove(name, request["file"])

    def _op_checksum(self, request: dict[str, Any], directory_id: str | None) -> list[Any]:
        content = self._content(request, f"read of {request['name']}/{request['file']}")
        data = content[request["offset"] : request["offset"] + request["length"]]
        return [len(data), binascii.crc32(data), False]

    def _op_check_batches(self, request: dict[str, Any], directory_id: str | None) -> list[Any]:
        base = segment_base(request["file"])
        if base is None:
            raise Refused(errno.EINVAL, f"read of {request['name']}/{request['file']}: it is no segment")
        check = BatchCheck(base) if request["state"] is None else BatchCheck.of(request["state"])
        content = self._content(request, f"read of {request['name']}/{request['file']}")
        data = content[request["offset"] : request["offset"] + request["length"]]
        check.feed(memoryview(data))
        return [[len(data), binascii.crc32(data), False], check.state]

    # checkpoints ---------------------------------------------------------------------------------------------------

    def _op_read_checkpoint(self, request: dict[str, Any], directory_id: str | None) -> str | None:
        content = self.disk.checkpoints.get(request["name"])
        return None if content is None else content.decode("latin-1")

    def _op_change_checkpoint(self, request: dict[str, Any], directory_id: str | None) -> None:
        name = request["name"]
        if name not in CHECKPOINT_FILES:
            raise Refused(errno.EINVAL, f"write of {name}")
        content = changed(self.disk.checkpoints.get(name), [(t, p, o) for t, p, o in request["changes"]])
        if content is not None:
            self._write(name)
            self.disk.checkpoints[name] = content

    def _op_clear_clean_shutdown(self, request: dict[str, Any], directory_id: str | None) -> None:
        self.disk.clean_shutdown = None

    def _op_write_clean_shutdown(self, request: dict[str, Any], directory_id: str | None) -> None:
        self._write(".kafka_cleanshutdown")
        content = {"version": 0, "brokerEpoch": request["epoch"]}
        self.disk.clean_shutdown = json.dumps(content, separators=(",", ":")).encode()

    def shut(self) -> None:
        """Release the disk and fail every waiting call."""
        self._closed = True
        if self.disk.locked_by is self:
            self.disk.locked_by = None
        self._fail_all("the storage agent was closed")
        self._lost("the storage agent was closed")


class MemoryStorageAgent:
    """Disks in memory. Implements ``StorageAgent``.

    Args:
        options: as for every storage agent.
        disks: by path of the log directory; a path that is not among them gets an empty disk of its own.
    """

    def __init__(self, options: StorageOptions, disks: dict[str, MemoryDisk] | None = None) -> None:
        self.disks = {} if disks is None else disks
        self._options = options
        self._directories: dict[str, MemoryDirectoryAgent] = {}

    async def start(self) -> None:
        """Do nothing: memory needs no start."""

    def directory(self, path: str) -> MemoryDirectoryAgent:
        if path not in self._directories:
            disk = self.disks.setdefault(path, MemoryDisk(number=len(self.disks) + 1))
            self._directories[path] = MemoryDirectoryAgent(path, disk, self._options)
        return self._directories[path]

    def renew(self, path: str) -> MemoryDirectoryAgent:
        if (old := self._directories.pop(path, None)) is not None:
            old.shut()
        return self.directory(path)

    def copy_buffer(self, slots: int, slot_bytes: int) -> CopyBuffer:
        return MemoryCopyBuffer(slots, slot_bytes)

    async def close(self) -> None:
        for agent in self._directories.values():
            agent.shut()
