"""A disk that fails on demand: one file, served over /dev/fuse by a process of its own. Linux, root.

Put a loop device on that file and there is a real *block device* whose requests fail, wait, vanish or lie, with the
kernel's own errors all the way up (:mod:`kjbod.faults.disks` does so). The content lives in memory.

The server (:mod:`kjbod.faults.fuseserver`) obeys any process that can reach its control socket, also from another
mount or pid namespace, and is its own janitor: when the process that made the disk ends, however it ends, or when
anyone calls :meth:`DiskControl.close`, the server unmounts what was built upon it, its own mount included, and goes.

Nothing here is tied to a Python process::

    disk = FuseDisk(64 << 20)
    DiskControl(disk.directory).set(FaultMode.EIO)      # from here or from any other process
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from msgspec import Struct

from kjbod.faults import syscalls
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.orders import CONTROL_SOCKET, MAX_ORDER_BYTES, FaultMode, short_path

TAG_VARIABLE = "KJBOD_DISK_TAG"
"""Environment variable whose value becomes part of the image's name, so that a run can tell its disks from others'."""
_START_TIMEOUT_S = 20.0
_OFFSETS_PER_ORDER = 4000
_ANSWER_TIMEOUT_S = 20.0


class DiskCounters(Struct, frozen=True):
    """Numbers of requests to the disk since it exists, and of those that it holds back now (hang or delay)."""

    reads: int
    writes: int
    flushes: int
    held: int


class DiskControl:
    """The remote control of a :class:`FuseDisk`, by its directory; usable from any process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def set(self, mode: FaultMode) -> None:
        """From the return of this call on, every request meets ``mode``; those held back before are answered in it."""
        self._ask({"do": "set", "mode": mode.value})

    def recover_writes(self) -> None:
        """End :attr:`FaultMode.LOSE_WRITES`, or any other mode; what was lost is stored after all."""
        self._ask({"do": "set", "mode": FaultMode.OK.value, "recover": True})

    def refuse_one_write(self, pattern: bytes, number: int) -> None:
        """Answer the next write that holds ``pattern`` with that errno, and store nothing of it: one write of one
        file's data fails, and its file system lives on."""
        self._ask({"do": "refuse", "pattern": pattern.hex(), "errno": number})

    def has_refused(self) -> bool:
        """Whether that write has come."""
        return not self.state()["refusing"]

    def keep(self) -> None:
        """Remember the content, and the size, for :meth:`restore`; nothing happens if something is kept already."""
        self._ask({"do": "content", "how": "keep"})

    def restore(self) -> bool:
        """Go back to what :meth:`keep` remembered and forget it; False if nothing is kept.

        Whoever has a file system mounted on the disk must let go of it first.
        """
        return bool(self._ask({"do": "content", "how": "restore"})["answer"])

    def wipe(self) -> None:
        """Make every stored byte zero."""
        self._ask({"do": "content", "how": "wipe"})

    def truncate(self, size_bytes: int) -> None:
        """Cut the content, not the disk: reads behind it fail with EIO until something is written there or later."""
        self._ask({"do": "content", "how": "truncate", "size_bytes": size_bytes})

    def resize(self, size_bytes: int) -> None:
        """Give the disk another size; a loop device on it has to be told (``LOOP_SET_CAPACITY``)."""
        os.truncate(self.image_path(), size_bytes)

    def rot(self) -> None:
        """Flip one bit in each sector that has been written; what is written later is stored well."""
        self._ask({"do": "content", "how": "rot"})

    def scribble(self, offsets: Sequence[int], length: int) -> None:
        """Overwrite so many stored bytes at each offset, past the kernel's caches."""
        for start in range(0, len(offsets), _OFFSETS_PER_ORDER):
            some = list(offsets[start : start + _OFFSETS_PER_ORDER])
            self._ask({"do": "content", "how": "scribble", "offsets": some, "length": length})

    def misread(self, offsets: Sequence[int], *, every: int = 1, times: int | None = None) -> None:
        """Answer now and then with another block: of the reads that cover one of these blocks of 4 KiB, each
        ``every``-th gives the content of another block in its place, so many times; None for ever. The stored content
        stays as it is. Ends what an earlier call began."""
        self._ask({"do": "content", "how": "misread", "offsets": list(offsets), "every": every, "times": times})

    def find(self, pattern: bytes, step: int, at: int = 0) -> list[int]:
        """The offsets, multiples of ``step``, that have ``pattern`` ``at`` bytes behind them in the stored content."""
        order = {"do": "content", "how": "find", "pattern": pattern.hex(), "step": step, "at": at}
        found: list[int] = []
        while True:
            start = found[-1] + 1 if found else 0
            some = self._ask({**order, "start": start, "limit": _OFFSETS_PER_ORDER})["answer"]
            found += some
            if len(some) < _OFFSETS_PER_ORDER:
                return found

    def fence(self) -> None:
        """Fail from now on, with EIO, whoever has the image open: a loop device that is still held by somebody."""
        self._ask({"do": "fence"})

    def plug(self) -> None:
        """After :meth:`kill`: serve the image again, with its content. What was open before stays dead."""
        self._ask({"do": "plug"})

    def image_path(self) -> Path:
        """The file to put a loop device on."""
        return self.directory / "fuse" / str(self._ask({"do": "counters"})["image"])

    def state(self) -> dict[str, Any]:
        """State of the disk: ``mode``, ``delay_us``, ``plugged``, ``size_bytes``, ``pid`` and the counters."""
        return self._ask({"do": "counters"})

    def delay_us(self, delay_us: int) -> None:
        """Answer each later read, write and flush that many microseconds late; 0 ends it."""
        self._ask({"do": "delay", "delay_us": delay_us})

    def counters(self) -> DiskCounters:
        answer = self._ask({"do": "counters"})
        return DiskCounters(answer["reads"], answer["writes"], answer["flushes"], answer["held"])

    def server_pid(self) -> int:
        """The server's process id, in the pid namespace where it runs."""
        return int(self._ask({"do": "counters"})["pid"])

    def janitor(self, mount_point: Path, *, remove: bool) -> None:
        """Have the server unmount ``mount_point`` at its end, and then remove the directory if ``remove``."""
        self._ask({"do": "janitor", "path": str(mount_point), "remove": remove})

    def release(self) -> None:
        """Let the disk outlive the process that made it; somebody must call :meth:`close` then."""
        self._ask({"do": "release"})

    def kill(self) -> None:
        """Pull the disk out: every request fails from now on, also those that hang, until :meth:`plug`."""
        self._ask({"do": "kill"})

    def abort(self) -> None:
        """As :meth:`kill`, by the kernel's crowbar (fusectl), which works even when the server does not answer.

        To be called in the mount namespace of the disk.
        """
        minor = os.minor(os.stat(self.directory / "fuse").st_dev)
        fusectl = Path(tempfile.mkdtemp(prefix="kjbod-fusectl-"))
        try:
            syscalls.mount("kjbod-fusectl", fusectl, "fusectl")
            try:
                (fusectl / str(minor) / "abort").write_text("1")
            finally:
                syscalls.umount(fusectl, syscalls.MNT_DETACH)
        finally:
            fusectl.rmdir()

    def close(self) -> None:
        """Unmount everything built on the disk, and the disk, and end the server. Nothing happens if it is gone."""
        with contextlib.suppress(DiskGoneError):
            self._ask({"do": "close"}, expect_answer=False)

    def _ask(self, request: dict[str, Any], *, expect_answer: bool = True) -> dict[str, Any]:
        with self._connect() as connection:
            try:
                connection.send(json.dumps(request).encode())
                answer = connection.recv(MAX_ORDER_BYTES)
            except TimeoutError:
                raise FaultsError(
                    f"disk {self.directory}: its server did not answer in {_ANSWER_TIMEOUT_S:g} s"
                ) from None
            except OSError as error:
                raise DiskGoneError(self.directory) from error
        if not answer:
            if expect_answer:
                raise DiskGoneError(self.directory)
            return {}
        decoded: dict[str, Any] = json.loads(answer)
        if "error" in decoded:
            raise FaultsError(f"disk {self.directory}: {decoded['error']}")
        return decoded

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        connection.settimeout(_ANSWER_TIMEOUT_S)
        try:
            with short_path(self.directory) as directory:
                connection.connect(f"{directory}/{CONTROL_SOCKET}")
        except PermissionError:
            connection.close()
            raise FaultsError(f"disk {self.directory}: only root may ask it: run it with sudo") from None
        except OSError as error:
            connection.close()
            raise DiskGoneError(self.directory) from error
        return connection


class DiskGoneError(FaultsError):
    """The disk's server has ended, or never ran."""

    def __init__(self, directory: Path) -> None:
        super().__init__(f"disk {directory}: its server is gone")


def image_name(directory: Path) -> str:
    """Name of the image of a new disk with that directory: no other disk has it."""
    return f"kjbod-{os.environ.get(TAG_VARIABLE, 'disk')}-{directory.name}"[:200]


class Server(Protocol):
    """The process behind a disk, as :class:`subprocess.Popen` has it: ``stdin`` is its life line."""

    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float) -> int: ...


def start_by_exec(arguments: Sequence[str], log: IO[bytes]) -> Server:
    """The server of a disk, just started, with ``log`` as its standard error."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "kjbod.faults.fuseserver", *arguments],
        # The life line: the server sees its end when this process ends, even by SIGKILL.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd="/",
        start_new_session=True,
    )


start_server: Callable[[Sequence[str], IO[bytes]], Server] = start_by_exec
"""The start of a disk's server. Who makes hundreds of disks may have one that does not import everything each time."""


class FuseDisk(DiskControl):
    """A new disk of ``size_bytes`` and its remote control; :attr:`image` is the file to put a loop device on.

    ``directory`` (default: a new one below the system's temporary directory) gets the control socket and the FUSE mount
    point; what the disk put there is removed at its end. Raises :class:`FaultsError` when the machine cannot do it.
    """

    def __init__(self, size_bytes: int, directory: Path | None = None) -> None:
        own = directory is None
        super().__init__(Path(tempfile.mkdtemp(prefix="kjbod-disk-")) if directory is None else directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = image_name(self.directory)
        self.image = self.directory / "fuse" / name
        self.size_bytes = size_bytes
        arguments = [str(self.directory), name, str(size_bytes)]
        with open(self.directory / "server.log", "wb") as log:
            self._server = start_server([*arguments, "--remove-directory"] if own else arguments, log)
        try:
            self._wait_until_ready()
        except BaseException:
            self._server.kill()
            self._reap()
            raise

    def _wait_until_ready(self) -> None:
        assert self._server.stdout is not None
        ready, _, _ = select.select([self._server.stdout], [], [], _START_TIMEOUT_S)
        if ready and self._server.stdout.readline() == b"ready\n":
            return
        reason = (self.directory / "server.log").read_text(errors="replace").strip().rpartition("\n")[2]
        raise FaultsError(f"no FUSE disk in {self.directory}: {reason or 'its server did not start in time'}")

    def release(self) -> None:
        """Let the disk outlive this process; somebody must call :meth:`DiskControl.close` then."""
        super().release()
        _released.append(self._server)

    def close(self) -> None:
        """Unmount everything built on the disk, and the disk, and wait for the end of the server."""
        super().close()
        if self._server not in _released:
            self._reap()

    def _reap(self) -> None:
        for stream in (self._server.stdin, self._server.stdout):
            if stream is not None:
                stream.close()
        self._server.wait(_ANSWER_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_released: list[Server] = []
"""Servers that are meant to go on: referenced for ever, since a Popen that is collected complains about its child."""
