"""Log directories in memory: for simulations and tests. Same promises as the real ones, faults at will.

No thread, no file, no clock of its own: time passes only in ``asyncio`` timers, so under a loop with virtual time a
simulated hour costs nothing. A :class:`MemoryDisk` outlives the storage agent that works on it, as a disk outlives a
process.

Each operation changes the disk at once and as a whole when it is carried out, since every operation of a storage agent
is durable when it is answered. What a crash can do is to come between the carrying out and the answer.
"""

import asyncio
import errno
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kjbod_agent.storage.api import StorageOptions
from kjbod_agent.storage.client import Call, DirectoryClient
from kjbod_agent.storage.worker import Refused, directory_id_of, parse_replica, topic_id_of

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(eq=False)
class MemoryDisk:
    """A log directory and the disk under it.

    Attributes:
        meta_properties: the file's content; None: not formatted.
        directories: sub-directories by name; the value is the content of ``partition.metadata``, None without one.
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
    _errors: dict[str, int] = field(default_factory=dict)
    _hangs: bool = False
    _moving: list[Callable[[], None]] = field(default_factory=list)

    def fail(self, number: int, operations: Iterable[str] = ("*",)) -> None:
        """Answer this errno to these operations, to all by default, until :meth:`heal`."""
        for operation in operations:
            self._errors[operation] = number

    def fill(self) -> None:
        """Nothing new can be allocated."""
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
        """Whether nothing is answered."""
        return self._hangs

    def when_moving(self, go_on: Callable[[], None]) -> None:
        """Call back once when it no longer hangs."""
        self._moving.append(go_on)

    def error_of(self, operation: str) -> int | None:
        """The errno that this operation gets."""
        return self._errors.get(operation, self._errors.get("*"))

    def identity(self) -> list[Any]:
        """The fields of ``MountIdentity``."""
        return [self.number, self.number, f"0:{self.number}", 2, f"{self.number:x}", None]


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
            "real_path": self._path,
            "identity": disk.identity(),
            "capacity": [disk.total_bytes, disk.usable_bytes],
        }

    def _op_topic_ids(self, request: dict[str, Any], directory_id: str | None) -> list[str | None]:
        contents = (self.disk.directories.get(name) for name in request["names"])
        return [None if content is None else topic_id_of(content) for content in contents]

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

    def _op_create_replica(self, request: dict[str, Any], directory_id: str | None) -> None:
        name, topic_id = request["name"], request["topic_id"]
        content = self.disk.directories.get(name)
        if content is not None and topic_id_of(content) != topic_id:
            raise Refused(errno.EEXIST, f"create of {name}")
        if content is None:
            self._write(name)
            self.disk.directories[name] = f"version: 0\ntopic_id: {topic_id}".encode()

    def _op_rename_replica(self, request: dict[str, Any], directory_id: str | None) -> None:
        name, new_name = request["name"], request["new_name"]
        call = f"rename of {name} to {new_name}"
        if not all("/" not in part and parse_replica(part) for part in (name, new_name)):
            raise Refused(errno.EINVAL, call)
        if new_name in self.disk.directories:
            raise Refused(errno.EEXIST, call)
        if name not in self.disk.directories:
            raise Refused(errno.ENOENT, call)
        self.disk.directories[new_name] = self.disk.directories.pop(name)

    def _op_delete_replica(self, request: dict[str, Any], directory_id: str | None) -> None:
        name = request["name"]
        parsed = parse_replica(name)
        if "/" in name or parsed is None or parsed[2] != "delete":
            raise Refused(errno.EINVAL, f"delete of {name}")
        if name not in self.disk.directories:
            raise Refused(errno.ENOENT, f"delete of {name}")
        del self.disk.directories[name]

    def _op_clear_clean_shutdown(self, request: dict[str, Any], directory_id: str | None) -> None:
        self.disk.clean_shutdown = None

    def _op_write_clean_shutdown(self, request: dict[str, Any], directory_id: str | None) -> None:
        self._write(".kafka_cleanshutdown")
        content = {"version": 0, "brokerEpoch": request["epoch"]}
        self.disk.clean_shutdown = json.dumps(content, separators=(",", ":")).encode()

    def shut(self) -> None:
        """Let go of the disk and fail every waiting call."""
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
        """Nothing to do."""

    def directory(self, path: str) -> MemoryDirectoryAgent:
        """See ``StorageAgent.directory``."""
        if path not in self._directories:
            disk = self.disks.setdefault(path, MemoryDisk(number=len(self.disks) + 1))
            self._directories[path] = MemoryDirectoryAgent(path, disk, self._options)
        return self._directories[path]

    async def close(self) -> None:
        """See ``StorageAgent.close``."""
        for agent in self._directories.values():
            agent.shut()
