"""The storage agent for real disks: the daemon's side of the worker processes.

Nothing here touches a log directory. The event loop only sees sockets, pidfds, memory files and ``/proc/PID``.

What a directory's channel can be in:

    ========= ============================ ================================================================
    state     entered by                   leaves by
    ========= ============================ ================================================================
    absent    start; worker died           next call: a worker is asked for, at most one per RESPAWN_MS, and none
                                           while one that an earlier agent left behind is stuck there
    idle      worker asked for; answer     next call: its request is sent
    busy      request sent                 answer: idle (to its caller, or to ``on_late_answer``);
                                           end of the socket: absent
    ========= ============================ ================================================================

A call that times out leaves ``busy`` as it is: no second worker, no second request until the kernel lets go.
"""

import asyncio
import contextlib
import itertools
import marshal
import mmap
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from kjbod.errors import StorageError
from kjbod.runtime.waiting import process_sleep
from kjbod.wire.crc32c import package_directory
from kjbod_host import helpers
from kjbod_host.storage import leftovers, zygote
from kjbod_host.storage.api import BlockedCall, CopyBuffer, DirectoryTimeout, StorageOptions, Survey, WorkerUnavailable
from kjbod_host.storage.directory_client import Call, DirectoryClient
from kjbod_host.storage.worker import STATUS_SIZE, Unframer, frame

RECEIVE_BYTES = 64 << 10
RESPAWN_MS = 1000
"""Least time between two starts of one directory's worker, and of the zygote: a crash loop must stay cheap."""
CLOSE_TIMEOUT_MS = 150
LEFTOVER_AGAIN_MS = 50
"""Time between two looks at a worker that an earlier agent left behind. On a healthy disk it waits for milliseconds."""
LEFTOVER_TIMEOUT_MS = 3000
"""A directory with a worker that is stuck for longer does not answer. Long enough for the last call of a slow disk, and
short because all directories wait for each other at the start."""
LEFTOVER_FROZEN_TIMEOUT_MS = 9000
"""That time on a frozen file system, which may be thawed at any moment; less than the timeout of a load."""
LEFTOVER_CALL = "a call of an earlier agent"
ABANDONED = "the disk was replaced, and this agent of the old one abandoned"


class _Worker(Struct):
    """The daemon's end of a worker process."""

    number: int
    name: str
    channel: socket.socket
    status: int
    pid: int = 0
    unframer: Unframer = field(default_factory=Unframer)

    def close(self) -> None:
        self.channel.close()
        os.close(self.status)


class PosixCopyBuffer:
    """Slots in a memory file, which goes to a worker with each request that uses it. Implements ``CopyBuffer``."""

    def __init__(self, slots: int, slot_bytes: int) -> None:
        self._fd = -1
        if slots < 1 or slot_bytes < 1 or slot_bytes % mmap.ALLOCATIONGRANULARITY:
            raise ValueError(f"{slots} slots of {slot_bytes} bytes: each has to be whole pages")
        self.slots = slots
        self.slot_bytes = slot_bytes
        self._fd = os.memfd_create("kjbod-copy", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, slots * slot_bytes)

    def fileno(self) -> int:
        """Return the descriptor of the memory file; -1: it is closed."""
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


class PosixDirectoryAgent(DirectoryClient):
    """All work on one log directory, done by its worker process. Implements ``DirectoryAgent``."""

    def __init__(self, path: str, storage: "PosixStorageAgent") -> None:
        super().__init__(path, storage.options.clock)
        self._storage = storage
        self._worker: _Worker | None = None
        self._spawn_after_ms = 0
        self._pump_timer: asyncio.TimerHandle | None = None
        self._leftover: leftovers.Leftover | None = None
        self._leftover_since_ms = 0
        self._abandoned = False

    @property
    def worker_pid(self) -> int:
        """Pid of the worker; 0: there is no worker."""
        return 0 if self._worker is None else self._worker.pid

    async def survey(self, levels: Sequence[tuple[str, str]], *, timeout_ms: int) -> Survey:
        """Look at the names around the directory (``CanSurvey``)."""
        found = await self._ask("survey", timeout_ms, levels=[list(level) for level in levels])
        lock, beside = found["lock"], found["beside"]
        return Survey(None if lock is None else (lock[0], lock[1], lock[2]), None if beside is None else tuple(beside))

    def _where(self, call: Call) -> tuple[str, int, str, str]:
        worker = self._worker
        if worker is None:
            return "", 0, "", ""
        state, wchan = process_sleep(worker.pid) if worker.pid else ("", "")
        return _step_of(worker.status, call.number), worker.pid, state, wchan

    def _ready(self) -> bool:
        if self._abandoned:
            self._fail_all(ABANDONED)
            return False
        if self._pump_timer is not None:
            return False
        if self._worker is not None:
            return True
        now_ms = self._clock.monotonic_ms()
        delay_ms = max(self._spawn_after_ms, self._storage.not_before_ms()) - now_ms
        if delay_ms <= 0 and self._waits_for_leftover(now_ms):
            delay_ms = LEFTOVER_AGAIN_MS
        if delay_ms > 0:
            self._pump_timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._pump_again)
            return False
        self._spawn_after_ms = now_ms + RESPAWN_MS
        try:
            self._worker = self._storage.spawn(self)
        except OSError as error:
            self._fail_all(f"no worker could be started: {error}")
            return False
        asyncio.get_running_loop().add_reader(self._worker.channel.fileno(), self._readable)
        return True

    def _waits_for_leftover(self, now_ms: int) -> bool:
        """Whether a worker of an earlier agent is stuck here. After some time the waiting calls fail."""
        before, self._leftover = self._leftover, self._storage.leftover(self._path)
        if self._leftover is None:
            return False
        if before is None:
            self._leftover_since_ms = now_ms
        frozen = self._leftover.wchan == leftovers.FROZEN
        if now_ms - self._leftover_since_ms >= (LEFTOVER_FROZEN_TIMEOUT_MS if frozen else LEFTOVER_TIMEOUT_MS):
            self._fail_queued(self._overdue)
        return True

    def blocked(self) -> BlockedCall | None:
        """The request in progress, or the call of an earlier agent for which it waits."""
        found, left = super().blocked(), self._leftover
        if found is not None or left is None or self._worker is not None or self._storage.leftover(self._path) is None:
            return found
        age_ms = self._clock.monotonic_ms() - self._leftover_since_ms
        return BlockedCall(0, "leftover", LEFTOVER_CALL, age_ms, left.pid, "D", left.wchan)

    def _overdue(self) -> DirectoryTimeout | WorkerUnavailable:
        left = self._leftover
        if self._current is not None or left is None:
            return super()._overdue()
        age_ms = self._clock.monotonic_ms() - self._leftover_since_ms
        call = f"{LEFTOVER_CALL}, whose worker (pid {left.pid}) is stuck in it"
        return DirectoryTimeout(age_ms, left.wchan, call, self._path)

    def _pump_again(self) -> None:
        self._pump_timer = None
        self._pump()

    def _takes_ahead(self, call: Call) -> bool:
        buffer = call.arguments.get("buffer")
        return buffer is None or buffer.fileno() >= 0

    def _transmit(self, request: dict[str, Any]) -> None:
        buffer = request.pop("buffer", None)
        message = frame(request)
        assert self._worker is not None
        if buffer is not None and buffer.fileno() < 0:
            self._answered({"trouble": "the copy buffer was closed before its turn came", "us": 0})
            return
        try:
            if buffer is None:
                sent = self._worker.channel.send(message)
            else:
                sent = socket.send_fds(self._worker.channel, [message], [buffer.fileno()])
        except OSError as error:
            self._lose_worker(f"its worker is gone ({error})")
            return
        if sent != len(message):  # the socket's buffer has one small request at most, so this one is too long
            self._lose_worker(f"a request of {len(message)} bytes does not fit")

    def _readable(self) -> None:
        worker = self._worker
        if worker is None:
            return
        try:
            data = worker.channel.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose_worker("its worker died")
            return
        for answer in worker.unframer.feed(data):
            self._answered(answer)

    def _lose_worker(self, reason: str) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            asyncio.get_running_loop().remove_reader(worker.channel.fileno())
            worker.close()
            self._storage.options.log("worker.died", {"path": self._path, "pid": worker.pid, "reason": reason})
        self._lost(reason)

    def worker_name_and_pid(self) -> tuple[str, int]:
        """Name and pid of the worker process; empty and 0 while there is none."""
        return ("", 0) if self._worker is None else (self._worker.name, self._worker.pid)

    # for the storage agent -----------------------------------------------------------------------------------------

    def worker_has_pid(self, channel: int, pid: int) -> None:
        """Store the pid of the worker that serves this channel, as the zygote reports it."""
        if self._worker is not None and self._worker.number == channel:
            self._worker.pid = pid

    def locks_are_gone(self) -> None:
        """Note that the keeper died. The next call takes the lock again first, and fails if another process has it."""
        self._lock_lost = self._lock_wanted

    def abandon(self) -> None:
        """Forget the worker, end it if it can be ended, and fail every call from now on."""
        pid = self.worker_pid
        self._abandoned = True
        self.shut(ABANDONED)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def shut(self, reason: str = "the storage agent was closed") -> None:
        """Forget the worker and fail every waiting call."""
        if self._pump_timer is not None:
            self._pump_timer.cancel()
            self._pump_timer = None
        self._spawn_after_ms = 0  # so that a later call fails at once
        self._fail_all(reason)
        worker, self._worker = self._worker, None
        if worker is not None:
            asyncio.get_running_loop().remove_reader(worker.channel.fileno())
            worker.close()
        self._lost(reason)


class PosixStorageAgent:
    """Workers for real disks, forked by a zygote. Implements ``StorageAgent``."""

    def __init__(self, options: StorageOptions) -> None:
        self.options = options
        self._directories: dict[str, PosixDirectoryAgent] = {}
        self._spawned: dict[int, PosixDirectoryAgent] = {}
        self._ids = itertools.count(1)
        self._control: socket.socket | None = None
        self._pid = 0
        self._pidfd = -1
        self._start_after_ms = 0
        self._closed = False
        self._keeper_pid = 0
        self._left_behind: dict[str, list[int]] = {}

    async def start(self) -> None:
        """Start the zygote.

        Raises:
            StorageError: it cannot be started.
        """
        try:
            self._left_behind = leftovers.named_processes()
            self._start_zygote()
        except OSError as error:
            raise StorageError(f"the worker processes cannot be started with {sys.executable}: {error}") from None

    def directory(self, path: str) -> PosixDirectoryAgent:
        return self._directories.setdefault(path, PosixDirectoryAgent(path, self))

    def renew(self, path: str) -> PosixDirectoryAgent:
        """Replace a directory's agent (``StorageAgent.renew``). A worker that stays stuck in the old disk counts as one
        that was left behind: where the new agent would work on that very disk again it waits for it."""
        old = self._directories.pop(path, None)
        if old is not None:
            name, pid = old.worker_name_and_pid()
            old.abandon()
            if pid:
                self._left_behind.setdefault(name, []).append(pid)
            self._unlock(path)
        return self.directory(path)

    def _unlock(self, path: str) -> None:
        """Have the keeper release the lock of a directory whose worker cannot do it."""
        if self._control is not None:
            with contextlib.suppress(OSError):  # the zygote is gone, and the lock with it
                self._control.send(marshal.dumps({"op": "unlock", "path": path}))

    def copy_buffer(self, slots: int, slot_bytes: int) -> CopyBuffer:
        """Make a buffer (``StorageAgent.copy_buffer``). Takes ``slots * slot_bytes`` of memory as it is used."""
        return PosixCopyBuffer(slots, slot_bytes)

    def process_ids(self) -> tuple[int, ...]:
        """Return the pids of zygote, keeper and workers (``HasProcesses``)."""
        return tuple(pid for pid in (self._pid, self._keeper_pid, *self.worker_ids()) if pid)

    def worker_ids(self) -> tuple[int, ...]:
        """Return the pids of the workers (``HasProcesses``)."""
        return tuple(agent.worker_pid for agent in self._directories.values() if agent.worker_pid)

    async def close(self) -> None:
        """End all processes (``StorageAgent.close``). The keeper ends first, so locks are free when this returns."""
        self._closed = True
        for agent in self._directories.values():
            agent.shut()
        if self._control is None:
            return
        with contextlib.suppress(OSError):
            self._control.send(marshal.dumps({"op": "close"}))
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._control.fileno())
        loop.remove_reader(self._pidfd)
        loop.add_reader(self._pidfd, ended.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_MS / 1000):
                await ended.wait()
        self._end_zygote()

    def leftover(self, path: str) -> leftovers.Leftover | None:
        """Return the stuck worker that an earlier agent left in this directory; None: there is none."""
        if not self._left_behind:
            return None
        name = leftovers.worker_name(self.options.role, path)
        return leftovers.stuck(name, self._left_behind.get(name, []))

    # the zygote ----------------------------------------------------------------------------------------------------

    def not_before_ms(self) -> int:
        """Return the monotonic time in ms before which no worker can be started."""
        return 0 if self._closed or self._control is not None else self._start_after_ms

    def spawn(self, agent: PosixDirectoryAgent) -> _Worker:
        """Request a worker from the zygote; requests can be sent to the worker at once.

        Raises:
            OSError: it could not be asked for.
        """
        if self._closed:
            raise OSError("the storage agent was closed")
        if self._control is None:
            self._start_zygote()
        assert self._control is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        status = os.memfd_create("kjbod-worker-status", os.MFD_CLOEXEC)
        number = next(self._ids)
        name = leftovers.worker_name(self.options.role, agent.path)
        worker = _Worker(number, name, ours, status)
        config = {"path": agent.path, "role": self.options.role, "name": name}
        request = marshal.dumps({"op": "spawn", "id": number, "config": config})
        try:
            socket.send_fds(self._control, [request], [theirs.fileno(), status])
        except OSError:
            worker.close()
            raise
        finally:
            theirs.close()
        self._spawned[number] = agent
        return worker

    def _start_zygote(self) -> None:
        """Exec the zygote. Blocks for the time of an exec from the system's disk, some milliseconds."""
        self._start_after_ms = self.options.clock.monotonic_ms() + RESPAWN_MS
        arguments = [str(os.getpid()), package_directory(), " " * zygote.TITLE_ROOM]
        self._pid, ours = helpers.start_connected(
            zygote.__file__, *arguments, at=[zygote.CONTROL_FD], kind=socket.SOCK_SEQPACKET
        )
        self._pidfd = os.pidfd_open(self._pid)
        self._control = ours
        loop = asyncio.get_running_loop()
        loop.add_reader(ours.fileno(), self._zygote_says)
        loop.add_reader(self._pidfd, self._zygote_died)

    def _zygote_says(self) -> None:
        assert self._control is not None
        try:
            text = self._control.recv(4096)
        except OSError:
            return
        if not text:  # its end is closed; the pidfd tells the rest
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            return
        message: dict[str, int] = marshal.loads(text)
        if "spawned" in message:
            self._spawned.pop(message["spawned"]).worker_has_pid(message["spawned"], message["pid"])
        elif "ready" in message:
            self._keeper_pid = message["ready"]
        elif "keeper" in message:
            self._keeper_pid = message["keeper"]
            self._lose_locks("the keeper died")

    def _zygote_died(self) -> None:
        self.options.log("zygote.died", {"pid": self._pid, "reason": "it ended; all workers end with it"})
        self._end_zygote()
        self._lose_locks("the zygote died")

    def _end_zygote(self) -> None:
        """End the zygote, and its children by PR_SET_PDEATHSIG. The zygote never waits for a disk."""
        loop = asyncio.get_running_loop()
        if self._control is None:
            return
        loop.remove_reader(self._control.fileno())
        loop.remove_reader(self._pidfd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._pidfd)
        self._control.close()
        self._control = None
        self._pid = self._keeper_pid = 0
        self._spawned.clear()

    def _lose_locks(self, reason: str) -> None:
        self.options.log("locks.lost", {"reason": reason})
        for agent in self._directories.values():
            agent.locks_are_gone()


def _step_of(status: int, number: int) -> str:
    """Return the step in the status file; empty: the file is about another request."""
    record = os.pread(status, STATUS_SIZE, 0)
    if len(record) < 9:
        return ""
    found, length = struct.unpack_from("=QB", record)
    return record[9 : 9 + length].decode("utf-8", "replace") if found == number else ""
