"""A disk that fails on demand: one file, served over /dev/fuse by a separate process. Linux, root.

A loop device on that file is a real *block device* whose requests fail, wait, vanish or lie, with the kernel's own
errors all the way up (:mod:`kjbod.faults.disks` does so). The content is in memory.

The server (:mod:`kjbod.faults.fuseserver`) obeys any process that can reach its control socket, even from another mount
or pid namespace. It cleans up after itself: when the process that made the disk ends in any way, or after
:meth:`DiskControl.close`, the server unmounts everything on the disk, then its own mount, and exits.

Nothing here depends on a Python process::

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
"""Environment variable whose value becomes part of the image's name, so that a run can recognize its own disks."""
_START_TIMEOUT_S = 20.0
_OFFSETS_PER_ORDER = 4000
_ANSWER_TIMEOUT_S = 20.0


class DiskCounters(Struct, frozen=True):
    """Numbers of requests since the disk was made, and of requests that it holds back now (hang or delay)."""

    reads: int
    writes: int
    flushes: int
    held: int


class DiskControl:
    """Remote control of a :class:`FuseDisk`, by its directory; usable from any process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def set(self, mode: FaultMode) -> None:
        """Set the mode. When this call returns, every request gets ``mode``, including requests that were held back."""
        self._ask({"do": "set", "mode": mode.value})

    def recover_writes(self) -> None:
        """End :attr:`FaultMode.LOSE_WRITES`, or any other mode; lost writes are stored after all."""
        self._ask({"do": "set", "mode": FaultMode.OK.value, "recover": True})

    def refuse_one_write(self, pattern: bytes, number: int) -> None:
        """Fail the next write that contains ``pattern`` with that errno, and store no part of it. One write of one file
        fails, and its file system continues."""
        self._ask({"do": "refuse", "pattern": pattern.hex(), "errno": number})

    def has_refused(self) -> bool:
        """Return whether that write has come."""
        return not self.state()["refusing"]

    def keep(self) -> None:
        """Remember content and size for :meth:`restore`; does nothing if a copy already exists."""
        self._ask({"do": "content", "how": "keep"})

    def restore(self) -> bool:
        """Restore the content that :meth:`keep` remembered, and forget it; False if there is none.

        Unmount any file system on the disk first.
        """
        return bool(self._ask({"do": "content", "how": "restore"})["answer"])

    def wipe(self) -> None:
        """Make every stored byte zero."""
        self._ask({"do": "content", "how": "wipe"})

    def truncate(self, size_bytes: int) -> None:
        """Cut the content, not the disk: reads after the cut fail with EIO until data is written there or later."""
        self._ask({"do": "content", "how": "truncate", "size_bytes": size_bytes})

    def resize(self, size_bytes: int) -> None:
        """Change the size of the disk; a loop device on it must be told (``LOOP_SET_CAPACITY``)."""
        os.truncate(self.image_path(), size_bytes)

    def rot(self) -> None:
        """Flip one bit in each written sector; later writes are stored correctly."""
        self._ask({"do": "content", "how": "rot"})

    def scribble(self, offsets: Sequence[int], length: int) -> None:
        """Overwrite ``length`` stored bytes at each offset, bypassing the kernel's caches."""
        for start in range(0, len(offsets), _OFFSETS_PER_ORDER):
            some = list(offsets[start : start + _OFFSETS_PER_ORDER])
            self._ask({"do": "content", "how": "scribble", "offsets": some, "length": length})

    def misread(self, offsets: Sequence[int], *, every: int = 1, times: int | None = None) -> None:
        """Answer some reads with the content of another block. Of the reads that cover one of these 4 KiB blocks, each
        ``every``-th is wrong, ``times`` times; None: without end. The stored content is unchanged. Ends an earlier
        call."""
        self._ask({"do": "content", "how": "misread", "offsets": list(offsets), "every": every, "times": times})

    def find(self, pattern: bytes, step: int, at: int = 0) -> list[int]:
        """Return the offsets, multiples of ``step``, at which the stored content has ``pattern`` after ``at`` bytes."""
        order = {"do": "content", "how": "find", "pattern": pattern.hex(), "step": step, "at": at}
        found: list[int] = []
        while True:
            start = found[-1] + 1 if found else 0
            some = self._ask({**order, "start": start, "limit": _OFFSETS_PER_ORDER})["answer"]
            found += some
            if len(some) < _OFFSETS_PER_ORDER:
                return found

    def fence(self) -> None:
        """Fail all later requests, with EIO, of processes that have the image open now, such as a loop device
        in use."""
        self._ask({"do": "fence"})

    def plug(self) -> None:
        """Serve the image again after :meth:`kill`, with its content. Earlier open files stay dead."""
        self._ask({"do": "plug"})

    def image_path(self) -> Path:
        """Return the file for a loop device."""
        return self.directory / "fuse" / str(self._ask({"do": "counters"})["image"])

    def state(self) -> dict[str, Any]:
        """Return the state of the disk: ``mode``, ``delay_us``, ``plugged``, ``size_bytes``, ``pid`` and the
        counters."""
        return self._ask({"do": "counters"})

    def delay_us(self, delay_us: int) -> None:
        """Delay each later read, write and flush by that many microseconds; 0 ends it."""
        self._ask({"do": "delay", "delay_us": delay_us})

    def counters(self) -> DiskCounters:
        answer = self._ask({"do": "counters"})
        return DiskCounters(answer["reads"], answer["writes"], answer["flushes"], answer["held"])

    def server_pid(self) -> int:
        """Return the server's process id, in its own pid namespace."""
        return int(self._ask({"do": "counters"})["pid"])

    def janitor(self, mount_point: Path, *, remove: bool) -> None:
        """Make the server unmount ``mount_point`` at its end, and then remove the directory if ``remove``."""
        self._ask({"do": "janitor", "path": str(mount_point), "remove": remove})

    def release(self) -> None:
        """Let the disk outlive the process that made it. A later call of :meth:`close` is needed."""
        self._ask({"do": "release"})

    def kill(self) -> None:
        """Pull the disk out: every request fails from now on, including hanging ones, until :meth:`plug`."""
        self._ask({"do": "kill"})

    def abort(self) -> None:
        """Pull the disk out like :meth:`kill`, through the kernel (fusectl), which works even if the server does not
        answer.

        Call it in the mount namespace of the disk.
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
        """Unmount everything on the disk, and the disk, and end the server. Does nothing if it is gone."""
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
    """Return the unique name of the image of a new disk with that directory."""
    return f"kjbod-{os.environ.get(TAG_VARIABLE, 'disk')}-{directory.name}"[:200]


class Server(Protocol):
    """The process of a disk's server, with the interface of :class:`subprocess.Popen`. Closing its ``stdin``
    ends it."""

    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float) -> int: ...


def start_by_exec(arguments: Sequence[str], log: IO[bytes]) -> Server:
    """Start the server of a disk, with ``log`` as its standard error, and return its process."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "kjbod.faults.fuseserver", *arguments],
        # Through this pipe the server notices the end of this process, even after SIGKILL.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd="/",
        start_new_session=True,
    )


start_server: Callable[[Sequence[str], IO[bytes]], Server] = start_by_exec
"""Function that starts a disk's server. Tests with hundreds of disks can replace it by one that avoids the imports."""


class FuseDisk(DiskControl):
    """A new disk of ``size_bytes`` and its remote control; :attr:`image` is the file to put a loop device on.

    ``directory`` (default: a new one below the system's temporary directory) gets the control socket and the FUSE mount
    point; the disk removes its own files at its end. Raises :class:`FaultsError` if the machine cannot do it.
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
        """Let the disk outlive this process. A later call of :meth:`DiskControl.close` is needed."""
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
"""Servers that must continue: kept referenced, because a Popen that is collected complains about its child."""
