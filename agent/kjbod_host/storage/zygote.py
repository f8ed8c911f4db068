"""The zygote: a small process, exec'd with ``python -I -S``, that forks the workers.

Why it exists: a forked child of the daemon would hold the daemon's listening sockets and locks, and would keep them
when it is stuck in the kernel; an exec'd interpreter per directory costs six times the memory. So the daemon execs this
one, which has nothing to inherit, and this one forks.

    daemon ── control socket ── zygote ─┬─ keeper (holds the locks)
                                        ├─ worker of /mnt/d1
                                        └─ worker of /mnt/d2

It never touches a log directory, so it can always be killed; its children die with it (``PR_SET_PDEATHSIG``), the stuck
ones as soon as the kernel lets go of them.

Control protocol, dicts of plain values as marshalled datagrams:

    ``{"op": "spawn", "id": 3, "config": {...}}`` with two descriptors: the worker's socket and its status file
    ``{"op": "unlock", "path": ...}``               have the keeper let go, since no worker can be asked to
    ``{"op": "close"}``                             end the keeper and all workers that can be ended, then yourself
    ``{"ready": pid of the keeper}``  ``{"spawned": 3, "pid": 4711}`` (0: none)  ``{"died": 4711}``
    ``{"keeper": pid}``                             there is a new keeper: all locks are gone
"""

# Importing pathlib costs memory.
# ruff: noqa: PTH100, PTH120

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import select
import signal
import socket
import sys
from collections.abc import Callable

TYPE_CHECKING = False  # importing typing costs memory
if TYPE_CHECKING:
    from typing import Any

CONTROL_FD = 3
CLOSE_TIMEOUT_MS = 100
"""How long ``close`` waits for the keeper, so that its locks are free when the daemon is told."""
KEEPER_AGAIN_MS = 200
"""Time between two attempts to fork a new keeper after its death."""
MAX_FD = 1 << 16
TITLE_ROOM = 512
"""Bytes of padding in the command line, where the processes write their titles."""


def main(parent: int) -> None:
    """Serve the control socket until the daemon ends.

    Args:
        parent: the daemon's pid.
    """
    os.chdir("/")
    with contextlib.suppress(PermissionError):  # already the leader of a session
        os.setsid()
    os.closerange(CONTROL_FD + 1, MAX_FD)
    _load_crc32c(sys.argv[2])
    from kjbod_host.storage import replica_worker, worker

    worker.die_with_parent(parent)
    title = worker.find_title()
    worker.entitle("kjbod-zygote", "kjbod-zygote", title)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the daemon ends us, not the terminal and not systemd's cgroup sweep
    worker.warm_up()
    gc.collect()
    gc.disable()
    gc.freeze()  # keeps the collector from writing to pages that all workers share
    Zygote(worker, replica_worker.run, title).serve()


def _load_crc32c(directory: str) -> None:
    """Make ``import crc32c`` the bare extension: the package around it has a command line and costs memory.

    Args:
        directory: of that package; the other packages beside it are out of reach.
    """
    sys.path.append(directory)
    import _crc32c  # type: ignore[import-not-found]

    sys.modules["crc32c"] = _crc32c
    sys.path.remove(directory)


class Zygote:
    """Server that forks workers and the keeper, and watches them by pidfd."""

    def __init__(self, worker: Any, run: Callable[..., None], title: tuple[int, int]) -> None:
        self._worker = worker
        self._run = run
        self._title = title
        self._pid = os.getpid()
        self._control = socket.socket(fileno=CONTROL_FD)
        self._questions, self._keeper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._children: dict[int, int] = {}
        self._poll = select.poll()
        self._keeper = 0

    def serve(self) -> None:
        """Fork on request and report dead children, until the control socket closes."""
        self._poll.register(self._control, select.POLLIN)
        self._keeper = self._fork_keeper()
        self._tell(ready=self._keeper)
        while True:
            for fd, _ in self._poll.poll(None if self._keeper else KEEPER_AGAIN_MS):
                if fd != CONTROL_FD:
                    self._reap(fd)
                elif not self._obey():
                    return
            if not self._keeper:
                self._replace_keeper()

    def _obey(self) -> bool:
        text, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 2)
        request: dict[str, Any] = marshal.loads(text) if text else {"op": "close"}
        if request["op"] == "close":
            self._close()
            return False
        if request["op"] == "unlock":
            self._unlock(request["path"])
            return True
        channel, status = fds
        config = request["config"]

        def run() -> None:
            title = f"kjbod-worker {config['role']} {config['path']}"
            self._worker.entitle(config["name"], title, self._title)
            self._run(config, socket.socket(fileno=channel), status, self._keeper_end)

        try:
            pid = self._fork(run, keep=[channel, status, self._keeper_end.fileno()])
        except OSError:  # no room for a process, EAGAIN: the daemon sees the channel closed, and asks again
            pid = 0
        os.close(channel)
        os.close(status)
        self._tell(spawned=int(request["id"]), pid=pid)
        return True

    def _unlock(self, path: str) -> None:
        """Send the keeper an unlock without waiting for the answer: later questions are served after it."""
        reply, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with reply, theirs, contextlib.suppress(BlockingIOError):  # its queue is full: it stands still
            question = marshal.dumps(["unlock", path])
            socket.send_fds(self._keeper_end, [question], [theirs.fileno()], socket.MSG_DONTWAIT)

    def _fork_keeper(self) -> int:
        def run() -> None:
            self._worker.entitle("kjbod-keeper", "kjbod-keeper of the .lock files", self._title)
            self._worker.keep(self._questions)

        return self._fork(run, keep=[self._questions.fileno()])

    def _fork(self, body: Callable[[], None], *, keep: list[int]) -> int:
        """Fork a child that runs ``body`` with only these descriptors and the standard ones; return its pid."""
        pid = os.fork()
        if pid:
            pidfd = os.pidfd_open(pid)
            self._children[pidfd] = pid
            self._poll.register(pidfd, select.POLLIN)
            return pid
        try:
            self._worker.die_with_parent(self._pid)
            os.setsid()
            for fd in range(CONTROL_FD, 1 + max([*self._children, *keep, self._keeper_end.fileno()])):
                if fd not in keep:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            body()
        finally:
            os._exit(0)  # nothing may escape: an escaped child would be a second zygote

    def _reap(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        os.waitpid(pid, 0)
        if pid != self._keeper:
            self._tell(died=pid)
            return
        self._keeper = 0
        self._replace_keeper()

    def _replace_keeper(self) -> None:
        """Fork a new keeper. If the host cannot start a process now, try again later: the end of the zygote would end
        all workers."""
        with contextlib.suppress(OSError):
            self._keeper = self._fork_keeper()
            self._tell(keeper=self._keeper)

    def _tell(self, **message: int) -> None:
        with contextlib.suppress(OSError):  # the daemon is gone: the end of the control socket comes next
            self._control.send(marshal.dumps(message))

    def _close(self) -> None:
        for pid in self._children.values():
            os.kill(pid, signal.SIGKILL)
        waiting = select.poll()
        for pidfd, pid in self._children.items():
            if pid == self._keeper:
                waiting.register(pidfd, select.POLLIN)
        waiting.poll(CLOSE_TIMEOUT_MS)


if __name__ == "__main__":
    # Isolated mode leaves out this file's folder; the source root goes last, so that nothing in it can stand in for a
    # module of Python's own library.
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    main(int(sys.argv[1]))
