"""Real processes for tests and for the demo: started, watched through their logs, and always reaped.

::

    with Processes(log_directory) as processes:
        agent = processes.kjbod("agent", "-c", str(config), name="agent-1")
        agent.wait_for_event("agent.unfenced")
        agent.signal(signal.SIGKILL)

Each process leads a session of its own, and dies with the thread that started it (prctl PR_SET_PDEATHSIG), so that
even a SIGKILL of the test run leaves none.
"""

import contextlib
import ctypes
import datetime
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

from scripts.rig.preloaded import PLAIN, Preloaded
from scripts.rig.rig_error import RigError

T = TypeVar("T")

PATIENCE = 4
"""A deadline is what an idle machine keeps easily; so many times as long is waited, since others may use this one."""
_POLL_S, _POLL_MAX_S = 0.01, 0.2
_POLL_SHARE = 0.04
"""Of the time that has been waited: who waits for long looks less often."""
_POLL_COST = 3
"""So many times as long as a look takes is paused: the processors are for what is waited for."""
_KILL_TIMEOUT_S = 20.0
_TAIL_LINES = 15
_PR_SET_CHILD_SUBREAPER = 36
# Below the range from which the kernel takes the local ports of outgoing connections (32768 and up): a port from here
# cannot be taken by one between our look and the server's bind.
_FIRST_PORT, _LAST_PORT = 15000, 32000


class WaitTimeoutError(RigError):
    """An end of waiting for what did not come."""


def wait_until(predicate: Callable[[], T], timeout_s: float, what: str) -> T:
    """Call ``predicate`` every 10 ms, and less often after a while or where it takes long, until it returns something
    true; that is returned.

    Raises :class:`WaitTimeoutError`, naming ``what`` and the predicate's last value, after :data:`PATIENCE` times
    ``timeout_s``.
    """
    waited_s = timeout_s * PATIENCE
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        value = predicate()
        if value:
            return value
        now = time.monotonic()
        if now - began > waited_s:
            raise WaitTimeoutError(f"waited {waited_s:g} s for {what}; last seen: {value!r}")
        time.sleep(min(max(_POLL_S, _POLL_SHARE * (now - began), _POLL_COST * (now - asked)), _POLL_MAX_S))


def at_wall_s(line: Mapping[str, Any]) -> float:
    """The moment of a log line, in seconds of the wall clock."""
    return datetime.datetime.fromisoformat(line["timestamp"]).timestamp()


_HELD_PORTS_MAX = 100
_held_ports: deque[int] = deque()
"""Descriptors."""


def free_port() -> int:
    """A loopback TCP port that nobody listens on, and that is given to nobody else, here or by another process, until
    :data:`_HELD_PORTS_MAX` later ones were given or this process ends.

    It stays bound, without listening, by a socket that lets others bind it too if they ask for that, as every server
    does (SO_REUSEADDR) and the search for a free port does not.
    """
    chooser = random.SystemRandom()
    for _ in range(1000):
        port = chooser.randrange(_FIRST_PORT, _LAST_PORT)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder, contextlib.suppress(OSError):
            holder.bind(("127.0.0.1", port))
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _held_ports.append(holder.detach())
            if len(_held_ports) > _HELD_PORTS_MAX:
                os.close(_held_ports.popleft())
            return port
    raise RigError(f"no free TCP port between {_FIRST_PORT} and {_LAST_PORT}")


class ManagedProcess:
    """A process; standard output and error go to ``NAME.out`` and ``NAME.log`` in the log directory.

    Make it with :meth:`Processes.start`.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_directory: Path,
        environment: Mapping[str, str],
        preloaded: Preloaded | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.stdout_path = log_directory / f"{name}.out"
        self.stderr_path = log_directory / f"{name}.log"
        self._events: list[dict[str, Any]] = []
        self._events_end = 0  # bytes of standard error already looked at
        if shutil.which(command[0]) is None:
            raise RigError(f"cannot start {name}: {command[0]}: command not found")
        with open(self.stdout_path, "wb") as out, open(self.stderr_path, "wb") as err:
            started = None
            plain = tuple(command[: len(PLAIN)]) == PLAIN
            program, *arguments = command[len(PLAIN) :] if plain else command
            if preloaded is not None and program == kjbod_command():
                started = preloaded.start(arguments, environment, out.fileno(), err.fileno(), plain=plain)
            self._process = started or _popen(command, environment, out, err)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def stdout(self) -> str:
        return self.stdout_path.read_text(encoding="utf-8", errors="replace")

    def stderr(self) -> str:
        return self.stderr_path.read_text(encoding="utf-8", errors="replace")

    def events(self, event: str | None = None, **fields: object) -> list[dict[str, Any]]:
        """The JSON log lines so far, oldest first: those named ``event``, with these values of these fields."""
        self._read_events()
        return [
            line
            for line in self._events
            if event in (None, line.get("event")) and all(line.get(key) == value for key, value in fields.items())
        ]

    def _read_events(self) -> None:
        with open(self.stderr_path, "rb") as log:
            log.seek(self._events_end)
            whole, _, _ = log.read().rpartition(b"\n")
        if not whole:
            return
        self._events_end += len(whole) + 1
        for line in whole.split(b"\n"):
            with contextlib.suppress(ValueError):
                decoded = json.loads(line)
                if isinstance(decoded, dict):
                    self._events.append(decoded)

    def wait_for_event(
        self,
        event: str,
        timeout_s: float = 30.0,
        *,
        after: int = 0,
        where: Callable[[dict[str, Any]], bool] | None = None,
        **fields: object,
    ) -> dict[str, Any]:
        """The first log line named ``event`` with these fields, for which ``where`` holds, now or when it comes.

        ``after``: how many log lines to leave out from the start (``len(process.events())`` before a deed).
        Raises :class:`RigError` with the end of the log when the process ends first, :class:`WaitTimeoutError` when it
        does not come.
        """

        def find() -> dict[str, Any] | None:
            ended = not self.running  # asked first: what it wrote before its end counts
            for line in self.events()[after:]:
                matches = line.get("event") == event and all(line.get(k) == v for k, v in fields.items())
                if matches and (where is None or where(line)):
                    return line
            if ended:
                raise RigError(f"{self.name} ended with {self.exit_code} before it logged {event}:\n{self.tail()}")
            return None

        wanted = " ".join([event, *(f"{key}={value!r}" for key, value in fields.items())])
        found = wait_until(find, timeout_s, f"{wanted} in the log of {self.name} ({self.stderr_path})")
        assert found is not None
        return found

    def wait_for_text(self, text: str, timeout_s: float = 30.0) -> None:
        """Until ``text`` stands in standard output or error; errors as :meth:`wait_for_event`."""

        def find() -> bool:
            ended = not self.running
            if text in self.stderr() or text in self.stdout():
                return True
            if ended:
                raise RigError(f"{self.name} ended with {self.exit_code} before it wrote {text!r}:\n{self.tail()}")
            return False

        wait_until(find, timeout_s, f"{text!r} in the output of {self.name} ({self.stderr_path})")

    def tail(self) -> str:
        """The last lines of standard error, or of standard output where that is empty."""
        return "\n".join((self.stderr().strip() or self.stdout().strip()).splitlines()[-_TAIL_LINES:])

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone, not to its workers. Nothing happens if it has ended."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = 30.0) -> int:
        """Its exit code (negative: the signal) once it ends; :class:`WaitTimeoutError` if it does not in
        :data:`PATIENCE` times ``timeout_s``."""
        waited_s = timeout_s * PATIENCE
        try:
            return self._process.wait(waited_s)
        except subprocess.TimeoutExpired:
            raise WaitTimeoutError(
                f"{self.name} (pid {self.pid}) did not end in {waited_s:g} s; it waits in {self._wait_channel()}:\n"
                f"{self.tail()}"
            ) from None

    def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL to the process alone, and reap it."""
        self.signal(signal.SIGKILL)
        self.wait()

    def close(self) -> None:
        """SIGKILL to its whole process group, and reap it; also when it has already ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait(_KILL_TIMEOUT_S)

    def _wait_channel(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/wchan").read_text() or "user space"
        except OSError:
            return "an unknown place"


def _popen(
    command: Sequence[str], environment: Mapping[str, str], out: BinaryIO, err: BinaryIO
) -> subprocess.Popen[bytes]:
    # setpriv (util-linux) asks for SIGKILL at our death, and sh then looks whether that has already happened; both
    # become the command by exec, so that the process is ours and has one pid.
    guard = ["sh", "-c", 'test "$PPID" = "$0" && exec "$@"', str(os.getpid())]
    prefix = ["setpriv", "--pdeathsig", "KILL", *guard] if shutil.which("setpriv") else []
    return subprocess.Popen(
        [*prefix, *command],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        cwd="/",
        env=dict(environment),
        start_new_session=True,
    )


class Processes:
    """Starts processes, and at the end of the ``with`` block kills and reaps all that still run, last first.

    Args:
        log_directory: for what they write.
        environment: theirs; ours where it is not given.
        preloaded: begins those that are the ``kjbod`` command, where it can.
    """

    def __init__(
        self, log_directory: Path, environment: Mapping[str, str] | None = None, preloaded: Preloaded | None = None
    ) -> None:
        self.log_directory = log_directory
        self.preloaded = preloaded
        self.environment = os.environ if environment is None else environment
        self._started: list[ManagedProcess] = []

    def start(self, command: Sequence[str], *, name: str) -> ManagedProcess:
        """Start ``command``; a name that is used again (a restart) gets a number: ``agent-1``, ``agent-1.2``."""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        uses = sum(1 for process in self._started if process.name.partition(".")[0] == name)
        process = ManagedProcess(
            f"{name}.{uses + 1}" if uses else name, command, self.log_directory, self.environment, self.preloaded
        )
        self._started.append(process)
        return process

    def kjbod(self, *arguments: str, name: str) -> ManagedProcess:
        """Start the ``kjbod`` command of this environment, e.g. ``kjbod("agent", "-c", str(path), name="agent-1")``."""
        return self.start([kjbod_command(), *arguments], name=name)

    def running(self) -> Iterable[ManagedProcess]:
        return [process for process in self._started if process.running]

    def close(self) -> None:
        failures = []
        for process in reversed(self._started):
            try:
                process.close()
            except WaitTimeoutError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def adopt_orphans() -> None:
    """From now on whatever descends from this process, and has lost its parent, becomes a child of it (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Process ids of the children of this process, whichever of its threads started them, the dead ones too."""
    # Not from /proc/self/task/*/children: that of a thread that is ending goes to one that may have been read before.
    found: set[int] = set()
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            if int((one / "stat").read_bytes().rpartition(b") ")[2].split()[1]) == os.getpid():
                found.add(int(one.name))
    return found


def end_children(but: Collection[int]) -> None:
    """SIGKILL to all children of this process ``but`` these, and reap them, until there are no others: after
    :func:`adopt_orphans` nothing that they started is left either. :class:`WaitTimeoutError` for one stuck in the
    kernel."""

    def ended() -> bool:
        others = children() - set(but)
        for pid in others:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        return not others

    wait_until(ended, _KILL_TIMEOUT_S, "the end of what was started")


def kjbod_command() -> str:
    """The path of the ``kjbod`` command that belongs to this Python."""
    command = Path(sys.executable).parent / "kjbod"
    if not command.exists():
        raise RigError(f"{command}: no such command: run scripts/setup")
    return str(command)
