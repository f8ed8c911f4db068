"""Server process of a :class:`~kjbod.faults.fusedisk.FuseDisk`: ``python -m kjbod.faults.fuseserver DIR NAME SIZE``.

The server speaks the kernel's FUSE protocol (``linux/fuse.h``, 7.x) on /dev/fuse without a library, and serves one
file. It takes orders as one JSON object per packet on the socket ``DIR/control``. It writes ``ready`` once to standard
output. The end of standard input is the order to close.

Closing needs an order: a second thread unmounts the file systems on the disk *while the first continues to serve*,
because an unmount writes to this disk. Only then does the process release /dev/fuse.
"""

import contextlib
import enum
import errno
import heapq
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kjbod.faults import syscalls
from kjbod.faults.mount_table import is_own, mount_on
from kjbod.faults.orders import CONTROL_SOCKET, MAX_ORDER_BYTES, FaultMode, short_path

MAX_IO_BYTES = 1 << 20
_UNMOUNT_TIMEOUT_S = 10.0
_LINGER_S = 2.0
_VALID_S = 3600  # how long the kernel may keep names and attributes: they never change
_ROOT, _IMAGE = 1, 2  # inode numbers
_OPEN_DIRECT_IO = 1

_IN_HEADER = struct.Struct("<IIQQIIIHH")  # len, opcode, unique, nodeid, uid, gid, pid, extension length, padding
_OUT_HEADER = struct.Struct("<IiQ")  # len, -errno, unique
_IO = struct.Struct("<QQI")  # fh, offset, size: the start of fuse_read_in and fuse_write_in
_HANDLE = struct.Struct("<Q")  # the start of these two and of fuse_fsync_in
_WRITE_IN_BYTES = 40
_SETATTR_IN = struct.Struct("<IIQQ")  # valid, padding, fh, size: the start of fuse_setattr_in
_FATTR_SIZE = 1 << 3
_COPY_BYTES = 1 << 20
_SECTOR_BYTES = 512
_BLOCK_BYTES = 4096
_INIT_IN = struct.Struct("<IIII")  # major, minor, max_readahead, flags
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
_INIT_FLAGS = 1 << 0 | 1 << 5 | 1 << 15 | 1 << 22  # ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("<QQQQII")
_ATTR_VALID = struct.Struct("<QII")
_OPEN_OUT = struct.Struct("<QIi")
_WRITE_OUT = struct.Struct("<II")
_STATFS_OUT = struct.Struct("<QQQQQIIII24x")


class Opcode(enum.IntEnum):
    """Values of ``enum fuse_opcode`` that a kernel uses for a file under a loop device."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


_IO_OPCODES = frozenset({Opcode.READ, Opcode.WRITE, Opcode.FSYNC})
_UNANSWERED = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT})
_NOTHING_TO_DO = frozenset(
    {Opcode.RELEASE, Opcode.FLUSH, Opcode.RELEASEDIR, Opcode.FSYNCDIR, Opcode.ACCESS, Opcode.DESTROY, Opcode.READDIR}
)

_FAILURES: dict[tuple[FaultMode, Opcode], int] = {
    (FaultMode.EIO, Opcode.READ): errno.EIO,
    (FaultMode.EIO, Opcode.WRITE): errno.EIO,
    (FaultMode.EIO, Opcode.FSYNC): errno.EIO,
    (FaultMode.EIO_READS, Opcode.READ): errno.EIO,
    (FaultMode.EIO_WRITES, Opcode.WRITE): errno.EIO,
    (FaultMode.EIO_WRITES, Opcode.FSYNC): errno.EIO,
    (FaultMode.ENOSPC, Opcode.WRITE): errno.ENOSPC,
}


def holds_back(mode: FaultMode, opcode: int) -> bool:
    """Return whether a request waits for another mode."""
    return mode is FaultMode.HANG or (mode is FaultMode.HANG_WRITES and opcode != Opcode.READ)


class Request(NamedTuple):
    """A request of the kernel; ``body`` starts after the header."""

    opcode: int
    unique: int
    node: int
    body: bytes


def _extents(fd: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of the sparse file with content: (offset, length), in pieces of at most ``_COPY_BYTES``."""
    position = 0
    while True:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError:  # ENXIO: the rest is a hole
            return
        position = os.lseek(fd, start, os.SEEK_HOLE)
        for offset in range(start, position, _COPY_BYTES):
            yield offset, min(_COPY_BYTES, position - offset)


def _copy(source: int) -> int:
    """Return a new memory file with the content of another; holes stay holes."""
    target = os.memfd_create("kjbod-disk")
    os.ftruncate(target, os.fstat(source).st_size)
    for offset, length in _extents(source):
        os.pwrite(target, os.pread(source, length, offset), offset)
    return target


class Image:
    """Content of the disk, and its answers to reads and writes.

    The content is a memory file, not a mapping: it can be truncated and copied with its holes.
    """

    def __init__(self, size_bytes: int) -> None:
        self.content = os.memfd_create("kjbod-disk")
        self.size_bytes = size_bytes
        os.ftruncate(self.content, size_bytes)
        self.lost: int | None = None
        """Content without the lost writes, while writes are lost."""
        self.kept: tuple[int, int] | None = None
        """Content and size that ``restore`` brings back."""
        self.refused: tuple[bytes, int] | None = None
        """Pattern of the single write that must fail, and its errno."""
        self.misreads: tuple[frozenset[int], int, int | None] = frozenset(), 1, None
        """Blocks that are sometimes misread, the interval in reads, and the remaining times; None: without end."""
        self.covered = 0
        """Number of reads that covered one of these blocks."""
        self.counters = {"reads": 0, "writes": 0, "flushes": 0}

    def answer(self, mode: FaultMode, request: Request) -> int | bytes:
        """Return an errno, or the payload of the answer to a READ, WRITE or FSYNC."""
        opcode = Opcode(request.opcode)
        self.counters[{Opcode.READ: "reads", Opcode.WRITE: "writes"}.get(opcode, "flushes")] += 1
        if failure := _FAILURES.get((mode, opcode)):
            return failure
        if opcode is Opcode.FSYNC:
            return b""
        _, offset, size = _IO.unpack_from(request.body)
        if opcode is Opcode.READ:
            return self._read(mode, offset, size)
        data = request.body[_WRITE_IN_BYTES : _WRITE_IN_BYTES + size]
        if self.refused is not None and self.refused[0] in data:
            failure, self.refused = self.refused[1], None
            return failure
        target = self.content if self.lost is None else self.lost
        os.pwrite(target, data, offset)
        return _WRITE_OUT.pack(size, 0)

    def _read(self, mode: FaultMode, offset: int, size: int) -> int | bytes:
        wanted = max(0, min(size, self.size_bytes - offset))
        data = os.pread(self.content, wanted, offset)
        if len(data) < wanted:  # beyond the end of a truncated content
            return errno.EIO
        if mode is FaultMode.FLIP_READS and data:
            return bytes([data[0] ^ 0xFF]) + data[1:]
        return self._misread(offset, data) if self.misreads[0] else data

    def misread(self, offsets: Sequence[int], every: int, times: int | None) -> None:
        """Return another block in place of these blocks for some reads."""
        self.misreads, self.covered = (frozenset(offsets), every, times), 0

    def _misread(self, offset: int, data: bytes) -> bytes:
        blocks, every, times = self.misreads
        hit = next((at for at in range(0, len(data), _BLOCK_BYTES) if offset + at in blocks), None)
        if hit is None:
            return data
        self.covered += 1
        if self.covered % every or (times is not None and self.covered // every > times):
            return data
        another = os.pread(self.content, _BLOCK_BYTES, 0).ljust(_BLOCK_BYTES, b"\xa5")
        return data[:hit] + another + data[hit + _BLOCK_BYTES :]

    def lose_writes(self, lose: bool, *, recover: bool) -> None:
        """Start or end losing writes. With ``recover``, lost writes are stored after all."""
        if lose and self.lost is None:
            self.lost = _copy(self.content)
        elif not lose and self.lost is not None:
            unwanted = self.lost
            if recover:
                unwanted, self.content = self.content, self.lost
            os.close(unwanted)
            self.lost = None

    def keep(self) -> None:
        """Remember content and size, unless something is kept already."""
        if self.kept is None:
            self.kept = _copy(self.content), self.size_bytes

    def restore(self) -> bool:
        """Restore the remembered content; False if there is none."""
        if self.kept is None:
            return False
        self.lose_writes(False, recover=False)
        os.close(self.content)
        (self.content, self.size_bytes), self.kept = self.kept, None
        return True

    def wipe(self) -> None:
        os.ftruncate(self.content, 0)
        os.ftruncate(self.content, self.size_bytes)

    def truncate(self, size_bytes: int) -> None:
        """Truncate the content, as ``truncate`` does with an image file in use: the device does not get smaller."""
        os.ftruncate(self.content, size_bytes)

    def resize(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        os.ftruncate(self.content, size_bytes)

    def rot(self) -> None:
        """Flip one bit in each sector that has been written."""
        for offset, length in _extents(self.content):
            data = bytearray(os.pread(self.content, length, offset))
            for start in range(0, length, _SECTOR_BYTES):
                sector = (offset + start) // _SECTOR_BYTES
                # Within the first 64 bytes, so that a short file is hit too. The factor spreads the bits (Knuth).
                data[start + (sector * 2654435761 >> 8) % 64] ^= 1 << sector % 8
            os.pwrite(self.content, data, offset)

    def scribble(self, offsets: Sequence[int], length: int) -> None:
        """Overwrite stored bytes with a pattern that is no valid structure."""
        for offset in offsets:
            os.pwrite(self.content, b"\xa5" * length, offset)

    def find(self, pattern: bytes, step: int, at: int, start: int, limit: int) -> list[int]:
        """Return the first offsets from ``start`` on, multiples of ``step``, at which ``pattern`` is found after ``at``
        bytes."""
        found = []
        for offset, length in _extents(self.content):
            data = os.pread(self.content, length, offset)
            hits = (i for i in range(0, length, step) if data[i + at : i + at + len(pattern)] == pattern)
            found += [offset + i for i in hits if offset + i >= start]
            if len(found) >= limit:
                break
        return found[:limit]


class FuseServer:
    """State of the mount point, /dev/fuse and the unanswered requests."""

    def __init__(self, mount_point: Path, name: str, size_bytes: int) -> None:
        self.mount_point = mount_point
        self.name = name.encode()
        self.image = Image(size_bytes)
        self.mode = FaultMode.OK
        self.delay_us = 0
        self.held: list[Request] = []
        self.later: list[tuple[int, int, Request]] = []  # heap of (due in ns, unique, request)
        self.handle = 0  # of the newest open
        self.fenced = 0  # opens up to this handle get EIO
        mount_point.mkdir(mode=0o700, exist_ok=True)
        self.connect()

    def connect(self) -> None:
        """Mount; files opened through an earlier connection stay dead."""
        self.fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.connected = True  # false once the kernel has closed the connection
        options = f"fd={self.fd},rootmode=40000,user_id=0,group_id=0,allow_other,max_read={MAX_IO_BYTES}"
        try:
            syscalls.mount("kjbod-disk", self.mount_point, "fuse", data=options)
        except OSError:
            self.connected = False
            os.close(self.fd)
            raise

    def disconnect(self) -> None:
        """Close /dev/fuse: the kernel fails all waiting and later requests."""
        self.connected = False
        os.close(self.fd)
        self.held.clear()
        self.later.clear()

    def set_mode(self, mode: FaultMode, *, recover: bool = False) -> None:
        self.image.lose_writes(mode is FaultMode.LOSE_WRITES, recover=recover)
        self.mode = mode
        waiting, self.held = self.held, []
        for request in waiting:
            self._serve_io(request)

    def wait_ms(self) -> int | None:
        """Return the milliseconds that a poll may sleep until a delayed request is due; None: no limit."""
        if not self.later:
            return None
        return max(0, (self.later[0][0] - time.monotonic_ns()) // 1_000_000 + 1)

    def answer_delayed(self, *, everything: bool = False) -> None:
        while self.later and (everything or self.later[0][0] <= time.monotonic_ns()):
            self._serve_io(heapq.heappop(self.later)[2])

    def receive(self) -> None:
        """Take one request from the kernel. Answer it, or hold it back as mode and delay require."""
        try:
            packet = os.read(self.fd, MAX_IO_BYTES + 65536)
        except OSError as error:
            if error.errno not in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                self.connected = False  # ENODEV: unmounted or aborted
            return
        _, opcode, unique, node, *_ = _IN_HEADER.unpack_from(packet)
        request = Request(opcode, unique, node, packet[_IN_HEADER.size :])
        if opcode not in _IO_OPCODES:
            self._serve_name(request)
        elif self.delay_us and not holds_back(self.mode, opcode):
            heapq.heappush(self.later, (time.monotonic_ns() + self.delay_us * 1000, unique, request))
        else:
            self._serve_io(request)

    def _serve_io(self, request: Request) -> None:
        if _HANDLE.unpack_from(request.body)[0] <= self.fenced:
            self._reply(request, errno.EIO)
        elif holds_back(self.mode, request.opcode):
            self.held.append(request)
        else:
            self._reply(request, self.image.answer(self.mode, request))

    def _serve_name(self, request: Request) -> None:
        if request.opcode in _UNANSWERED:
            return
        if request.opcode in _NOTHING_TO_DO:
            self._reply(request, b"")
        elif answer := _NAME_ANSWERS.get(request.opcode):
            self._reply(request, answer(self, request))
        else:
            self._reply(request, errno.ENOSYS)  # the kernel does not repeat such requests: FALLOCATE, xattrs, locks

    def _reply(self, request: Request, answer: int | bytes) -> None:
        code, payload = (answer, b"") if isinstance(answer, int) else (0, answer)
        try:
            os.write(self.fd, _OUT_HEADER.pack(_OUT_HEADER.size + len(payload), -code, request.unique) + payload)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):  # the request was aborted
                self.connected = False

    def _init(self, request: Request) -> bytes:
        _, minor, readahead, flags = _INIT_IN.unpack_from(request.body)
        pages = MAX_IO_BYTES // mmap.PAGESIZE
        return _INIT_OUT.pack(7, min(minor, 38), readahead, flags & _INIT_FLAGS, 64, 48, MAX_IO_BYTES, 1, pages, 0, 0)

    def _lookup(self, request: Request) -> int | bytes:
        if request.node != _ROOT or request.body.rstrip(b"\0") != self.name:
            return errno.ENOENT
        return _ENTRY.pack(_IMAGE, 0, _VALID_S, _VALID_S, 0, 0) + self._attributes(_IMAGE)

    def _getattr(self, request: Request) -> bytes:
        return _ATTR_VALID.pack(_VALID_S, 0, 0) + self._attributes(request.node)

    def _attributes(self, node: int) -> bytes:
        size, mode, links = (0, 0o040700, 2) if node == _ROOT else (self.image.size_bytes, 0o100600, 1)
        return _ATTR.pack(node, size, (size + 511) // 512, *[0] * 6, mode, links, 0, 0, 0, 4096, 0)

    def _setattr(self, request: Request) -> bytes:
        valid, _, _, size = _SETATTR_IN.unpack_from(request.body)
        if valid & _FATTR_SIZE and request.node == _IMAGE:
            self.image.resize(size)
        return self._getattr(request)

    def _open(self, request: Request) -> bytes:
        self.handle += 1
        return _OPEN_OUT.pack(self.handle, _OPEN_DIRECT_IO if request.opcode == Opcode.OPEN else 0, 0)

    def fence(self) -> None:
        """Fail all later and held-back requests of processes that have the image open now."""
        self.fenced = self.handle
        waiting, self.held = self.held, []
        for request in waiting:
            self._serve_io(request)

    def _statfs(self, _request: Request) -> bytes:
        return _STATFS_OUT.pack(self.image.size_bytes // 4096, 0, 0, 2, 0, 4096, 255, 4096, 0)


_NAME_ANSWERS: dict[int, Callable[[FuseServer, Request], int | bytes]] = {
    Opcode.INIT: FuseServer._init,
    Opcode.LOOKUP: FuseServer._lookup,
    Opcode.GETATTR: FuseServer._getattr,
    Opcode.SETATTR: FuseServer._setattr,
    Opcode.OPEN: FuseServer._open,
    Opcode.OPENDIR: FuseServer._open,
    Opcode.STATFS: FuseServer._statfs,
}


class Janitor:
    """Unmounts everything on the disk, in a thread; :attr:`done_fd` becomes readable at the end."""

    def __init__(self, fuse_mount_point: Path, image: str) -> None:
        self._fuse_mount_point = fuse_mount_point
        self._image = image
        self._built: list[tuple[Path, bool]] = []
        self.done_fd, self._done_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.started = False

    def add(self, mount_point: Path, remove: bool) -> None:
        self._built.append((mount_point, remove))

    def start(self) -> None:
        self.started = True
        threading.Thread(target=self._run, name="janitor", daemon=True).start()

    def _run(self) -> None:
        try:
            for mount_point, _ in reversed(self._built):
                with contextlib.suppress(OSError):
                    self._unmount(mount_point)
            with contextlib.suppress(OSError):
                syscalls.umount_all(self._fuse_mount_point)
        finally:
            os.write(self._done_write_fd, b"x")

    def _unmount(self, mount_point: Path) -> None:
        """Unmount only mounts of this disk: another disk may be mounted there now."""
        while (mount := mount_on(mount_point)) is not None and is_own(mount, self._image):
            with contextlib.suppress(OSError):
                syscalls.thaw(mount_point)
            syscalls.umount(mount_point, syscalls.MNT_DETACH)

    def remove_mount_points(self) -> None:
        for mount_point, remove in reversed(self._built):
            if remove:
                with contextlib.suppress(OSError):
                    mount_point.rmdir()


class Program:
    """Poll loop for the kernel, the remote controls, standard input and the janitor."""

    def __init__(self, directory: Path, name: str, size_bytes: int) -> None:
        self.server = FuseServer(directory / "fuse", name, size_bytes)
        self.janitor = Janitor(self.server.mount_point, name)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        with short_path(directory) as short:
            self.listener.bind(f"{short}/{CONTROL_SOCKET}")
        self.listener.listen(16)
        self.clients: dict[int, socket.socket] = {}
        self.poll = select.poll()
        self.life_line = sys.stdin.fileno()
        for fd in (self.server.fd, self.listener.fileno(), self.life_line, self.janitor.done_fd):
            self.poll.register(fd, select.POLLIN)
        self.attached = True  # we hold /dev/fuse
        self.unmounted = False  # the janitor has done its work
        self.deadline_ns: int | None = None

    def run(self) -> None:
        """Serve until told to close and everything is unmounted, or until a deadline if that is impossible."""
        while not self._finished():
            events = dict(self.poll.poll(self._wait_ms()))
            self.server.answer_delayed()
            if self.attached and self.server.fd in events:
                self.server.receive()
            if self.attached and not self.server.connected:
                self._pull()
            if self.listener.fileno() in events:
                client, _ = self.listener.accept()
                self.clients[client.fileno()] = client
                self.poll.register(client, select.POLLIN)
            for fd in events.keys() & self.clients.keys():
                self._order(fd)
            if self.life_line in events:
                self.poll.unregister(self.life_line)
                self._close()
            if self.janitor.done_fd in events:
                os.read(self.janitor.done_fd, 1)
                self.unmounted = True
                self.deadline_ns = time.monotonic_ns() + int(_LINGER_S * 1e9)
        if self.attached:
            self._pull()  # frees the janitor's thread if its own request blocks it

    def _finished(self) -> bool:
        if self.unmounted and not self.attached:
            return True
        return self.deadline_ns is not None and time.monotonic_ns() > self.deadline_ns

    def _wait_ms(self) -> int | None:
        waits = [] if (delayed := self.server.wait_ms()) is None else [delayed]
        if self.deadline_ns is not None:
            waits.append(max(0, (self.deadline_ns - time.monotonic_ns()) // 1_000_000 + 1))
        return min(waits) if waits else None

    def _order(self, fd: int) -> None:
        client = self.clients[fd]
        try:
            packet = client.recv(MAX_ORDER_BYTES)
            if packet and (answer := self._obey(json.loads(packet))) is not None:
                client.send(json.dumps(answer).encode())
                packet = b""
        except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
            with contextlib.suppress(OSError):
                client.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
            packet = b""
        if not packet:  # answered or closed; the sender of a close order sees the end of this process instead
            self.poll.unregister(client)
            del self.clients[fd]
            client.close()

    def _obey(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """Execute an order and return its answer; None if the end of the process is the answer."""
        match order["do"]:
            case "set":
                self.server.set_mode(FaultMode(order["mode"]), recover=bool(order.get("recover")))
            case "delay":
                self.server.delay_us = int(order["delay_us"])
            case "content":
                return {"answer": self._change_content(order)}
            case "refuse":
                self.server.image.refused = bytes.fromhex(order["pattern"]), int(order["errno"])
            case "fence":
                self.server.fence()
            case "plug":
                self._plug()
            case "counters":
                held = len(self.server.held) + len(self.server.later)
                size_bytes = self.server.image.size_bytes
                name = self.server.name.decode()
                return {
                    **self.server.image.counters,
                    "held": held,
                    "pid": os.getpid(),
                    "image": name,
                    "size_bytes": size_bytes,
                    "mode": self.server.mode.value,
                    "delay_us": self.server.delay_us,
                    "refusing": self.server.image.refused is not None,
                    "plugged": self.attached,
                }
            case "janitor":
                self.janitor.add(Path(order["path"]), bool(order["remove"]))
            case "release":
                self._release()
            case "kill":
                self._pull()
            case "close":
                self._close()
                return None
            case unknown:
                return {"error": f"unknown order {unknown!r}"}
        return {}

    def _change_content(self, order: dict[str, Any]) -> object:
        image = self.server.image
        match order["how"]:
            case "keep":
                image.keep()
            case "restore":
                return image.restore()
            case "wipe":
                image.wipe()
            case "truncate":
                image.truncate(int(order["size_bytes"]))
            case "rot":
                image.rot()
            case "scribble":
                image.scribble(order["offsets"], int(order["length"]))
            case "misread":
                image.misread(order["offsets"], int(order["every"]), order["times"])
            case "find":
                numbers = (int(order[name]) for name in ("step", "at", "start", "limit"))
                return image.find(bytes.fromhex(order["pattern"]), *numbers)
            case unknown:
                raise ValueError(f"unknown change of content {unknown!r}")
        return None

    def _plug(self) -> None:
        """Serve the same content again after a pull, on a new FUSE mount at the same place."""
        if self.attached or self.janitor.started:
            return
        with contextlib.suppress(OSError):
            syscalls.umount(self.server.mount_point, syscalls.MNT_DETACH)
        self.server.connect()
        self.poll.register(self.server.fd, select.POLLIN)
        self.attached = True

    def _release(self) -> None:
        with contextlib.suppress(KeyError):
            self.poll.unregister(self.life_line)

    def _pull(self) -> None:
        if self.attached:
            self.attached = False
            self.poll.unregister(self.server.fd)
            self.server.disconnect()

    def _close(self) -> None:
        if self.janitor.started:
            return
        self.server.delay_us = 0
        self.server.set_mode(FaultMode.OK)
        self.server.answer_delayed(everything=True)
        self.deadline_ns = time.monotonic_ns() + int(_UNMOUNT_TIMEOUT_S * 1e9)
        self.janitor.start()


def main() -> int:
    """Start, report ready, serve, clean up."""
    place, name, size_bytes, *options = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    syscalls.become_io_flusher()
    directory = Path(place)
    try:
        program = Program(directory, name, int(size_bytes))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    os.write(1, b"ready\n")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    program.run()
    program.janitor.remove_mount_points()
    for file in (CONTROL_SOCKET, "server.log"):
        (directory / file).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (directory / "fuse").rmdir()
    if "--remove-directory" in options:
        with contextlib.suppress(OSError):
            directory.rmdir()
    sys.stdout.flush()
    os._exit(0)  # not sys.exit: a janitor stuck in the kernel must not delay the exit


if __name__ == "__main__":
    sys.exit(main())
