"""Helpers, and processes that they have to do with, for tests."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from kjbod.faults.disks import RealDisk
from kjbod_guard import helper_broker
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.helper_link import HelperLink

Make = Callable[..., RealDisk]
Open = Callable[..., Awaitable[HelperLink]]
PATIENCE_S = 20

HOLDER = """
import fcntl, os, socket, sys
lock = open(sys.argv[1] + "/.lock", "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
listener = socket.create_server(("127.0.0.1", 0))
taken = []
print(listener.getsockname()[1], flush=True)
while True:
    taken.append(listener.accept())
"""
"""A broker, as far as the helper is concerned: it holds .lock, and listens."""


class Process:
    """A Python program of a few lines, and the first line that it said."""

    def __init__(self, program: str, *arguments: object) -> None:
        command = [sys.executable, "-I", "-S", "-c", program, *map(str, arguments)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.said = self.line()
        self.pid = self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], "it says nothing"
        return self.process.stdout.readline().strip()

    @property
    def identity(self) -> tuple[int, int]:
        started = helper_broker.started_at(self.pid)
        assert started is not None
        return self.pid, started

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def end(link: HelperLink) -> None:
    link.close()
    with contextlib.suppress(ProcessLookupError):
        os.kill(link.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(link.pid, 0)


def outcome(done: object) -> Outcome:
    assert isinstance(done, Done)
    return done.outcome


def refusal(done: object) -> str:
    assert isinstance(done, Done)
    assert done.outcome is Outcome.REFUSED, done
    assert "\n" not in done.reason
    return done.reason


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
