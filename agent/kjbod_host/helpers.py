"""Helper processes of a daemon: start them, match their answers, and leave them behind.

A script runs on Python's own library alone (``-I -S``), has nothing of this process but the descriptors that it is
given and two variables, and is never waited for: one that is stuck in the kernel ends when the kernel lets go of it.

Not ``subprocess``: that would own the process, complain about those that are left behind, and drag the daemon's
environment along.
"""

import asyncio
import contextlib
import errno
import fcntl
import itertools
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

_KEPT_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH")


def start(script: str, *arguments: str, descriptors: Mapping[int, int]) -> int:
    """Exec a script and return its pid. Blocks for an exec from the system's disk, some milliseconds.

    Args:
        script: path of its source.
        arguments: after it.
        descriptors: ours, by the numbers under which it has them; of 0, 1 and 2 those that are not here are /dev/null.

    Raises:
        OSError: there is no room for it.
    """
    program = [sys.executable, "-I", "-S", str(Path(script)), *arguments]
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    actions: list[Any] = [
        (os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3) if fd not in descriptors
    ]
    high: list[int] = []
    try:
        for number, ours in descriptors.items():
            # Above all numbers that it gets: else one would overwrite another, and a dup2 onto itself stays
            # close-on-exec.
            high.append(fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, max(2, *descriptors) + 1))
            actions.append((os.POSIX_SPAWN_DUP2, high[-1], number))
        return os.posix_spawn(sys.executable, program, environment, file_actions=actions)
    finally:
        for fd in high:
            os.close(fd)


def start_connected(
    script: str,
    *arguments: str,
    at: Sequence[int],
    kind: socket.SocketKind = socket.SOCK_STREAM,
    descriptors: Mapping[int, int] | None = None,
) -> tuple[int, socket.socket]:
    """Exec a script with a socket to this process; return its pid and this end of the socket, which is non-blocking.

    Args:
        script: path of its source.
        arguments: after it.
        at: descriptor numbers of the script's end of the socket.
        kind: of the socket.
        descriptors: others that it has, as for :func:`start`.

    Raises:
        OSError: there is no room for it.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    try:
        pid = start(script, *arguments, descriptors={**dict.fromkeys(at, theirs.fileno()), **(descriptors or {})})
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return pid, ours


def has_ended(pid: int) -> bool:
    """Whether a child has ended; reap it if so. Does not wait."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    return True


class Calls:
    """Requests to a process that wait for an answer, by number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    def begin(self) -> tuple[int, asyncio.Future[Any]]:
        """Return the number of the next request, and the future of its answer."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        return number, answer

    def take(self, number: int) -> asyncio.Future[Any] | None:
        """Return the future of a request that is answered now; None: no caller waits for it any more."""
        answer = self._waiting.pop(number, None)
        return None if answer is None or answer.done() else answer

    def fail(self, reason: str) -> None:
        """Fail all waiting requests with EPIPE and the reason, because the process is gone."""
        while self._waiting:
            _, answer = self._waiting.popitem()
            if not answer.done():
                answer.set_exception(OSError(errno.EPIPE, reason))
