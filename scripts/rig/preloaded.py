"""The ``kjbod`` command, begun by a process that has imported it already: an agent costs 0.25 s of CPU less.

::

    with Preloaded() as preloaded:
        process = preloaded.start(["agent", "-c", path], environment, out, err)   # None: start it by exec

What is begun is a process as any: a child of ours (clone(2), CLONE_PARENT), in a session of its own, with its own
standard streams and environment, which dies with the thread that made :class:`Preloaded`, and ends as Python ends. What
it inherits besides, such as namespaces, limits and rights, it has from the process that imported: where ours are others
by now, or where Python itself is told something by the environment, there is none to be had, and the caller starts it
by exec.

Three things can be seen: its command line is that of the process that imported, pages of code that only it would have
are shared, and ``sys.modules`` holds what another sub-command needs. So benchmarks, and tests of these, start by exec.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, NoReturn, Self

from scripts.rig.rig_error import RigError

_MODULES: Final = (
    "kjbod.cli.main",
    "kjbod.cli.agent",
    "kjbod.cli.controller",
    "kjbod.cli.guard",
    "kjbod.cli.dirs",
    "kjbod.cli.faults",
    "kjbod.cli.log_dirs",
    "kjbod.cli.move",
    "kjbod.cli.status",
    "kjbod.cli.storage",
    "kjbod.cli.strays",
    "kjbod.faults.fuseserver",
    "kjbod_agent.daemon",
    "kjbod_guard.daemon",
    "kjbod_host.storage.posix",
    "kjbod_controller_stub.server",
)
"""What costs most of a start, and what these import."""
_SYS_CLONE: Final = {"x86_64": 56, "aarch64": 220}.get(platform.machine())
_CLONE_PARENT: Final = 0x8000
_PR_SET_PDEATHSIG: Final = 1
_ORDER_BYTES_MAX: Final = 200_000
_ANSWER_TIMEOUT_S: Final = 60.0
_TOLD_BY_ENVIRONMENT: Final = ("PYTHON", "LD_", "MALLOC_", "LC_", "LANG", "TZ", "GLIBC_")
"""Beginnings of the variables that Python or its libraries read before our code runs."""
PLAIN: Final = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
    "--inh-caps=-dac_override,-dac_read_search",
)
"""Beginning of a command line by which root is as everybody else: stopped by permissions."""
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_PR_CAPBSET_DROP: Final = 24
_CAPABILITY_VERSION_3: Final = 0x20080522
_NAMESPACES: Final = ("mnt", "pid_for_children", "net", "user", "ipc", "uts", "cgroup")


class Started:
    """A process begun by :class:`Preloaded`, with what :class:`subprocess.Popen` has for a child: its four words."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.Lock()
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, None while it runs; negative: the signal that ended it."""
        with self._lock:
            if self._code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code

    def wait(self, timeout: float) -> int:
        """Its exit code, when it has ended. Raises :class:`subprocess.TimeoutExpired` after ``timeout`` seconds."""
        if (code := self.poll()) is not None:
            return code
        descriptor = os.pidfd_open(self.pid)
        try:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll(timeout * 1000)
        finally:
            os.close(descriptor)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("kjbod", timeout)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended: as long as nobody has waited for it, no other process has its id."""
        if self.poll() is None:
            os.kill(self.pid, number)


class StartedServer(Started):
    """The server of a disk, begun by :class:`Preloaded`: a :class:`kjbod.faults.fusedisk.Server`."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        super().__init__(pid)
        self.stdin = stdin
        self.stdout = stdout

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """The process that has imported ``kjbod``; it is started by the first command, and ends with this one.

    Make it in the main thread: with its end all that was begun ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._inherited: Any = None
        self._environment: dict[str, str] = {}
        self._owner = 0

    def start(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        out: int,
        err: int,
        directory: str = "/",
        *,
        tidy: bool = True,
        plain: bool = False,
    ) -> Started | None:
        """Begin ``kjbod ARGUMENTS`` in ``directory``, with these descriptors as standard output and error, and nothing
        to read. ``tidy``: Python takes itself apart at the end, as always; that costs 0.03 s of CPU. ``plain``: as
        with :data:`PLAIN`.

        None where it would not have what a child of ours has, see above. Raises :class:`RigError` when the process that
        imported has ended.
        """
        order = {
            "standard": [1, 2],
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": directory,
            "tidy": tidy,
            "plain": plain,
        }
        pid = self._order(order, [out, err], environment)
        return None if pid is None else Started(pid)

    def start_disk_server(self, arguments: Sequence[str], log: IO[bytes]) -> StartedServer | None:
        """Begin ``python -m kjbod.faults.fuseserver ARGUMENTS``, with ``log`` as standard error; None as above.

        It does not die with our thread: it sees the end of this process by its life line, and cleans up.
        """
        life_line, ours = os.pipe()
        told, telling = os.pipe()
        with contextlib.ExitStack() as kept:
            stdin = kept.enter_context(open(ours, "wb", buffering=0))
            stdout = kept.enter_context(open(told, "rb"))
            try:
                pid = self._order(
                    {"standard": [0, 1, 2], "server": list(arguments)}, [life_line, telling, log.fileno()], os.environ
                )
            finally:
                os.close(life_line)
                os.close(telling)
            if pid is None:
                return None
            kept.pop_all()
            return StartedServer(pid, stdin, stdout)

    def _order(
        self, order: Mapping[str, Any], descriptors: Sequence[int], environment: Mapping[str, str]
    ) -> int | None:
        """The process id of what is begun; None: it cannot be."""
        with self._lock:
            if self._process is None and not self._begin():
                return None
            if os.getpid() != self._owner:  # a fork of ours: what is begun would be our child, and not its
                return None
            if _inherited() != self._inherited or _told(environment) != _told(self._environment):
                return None
            assert self._socket is not None
            text = json.dumps(order).encode()
            if len(text) > _ORDER_BYTES_MAX:
                return None
            try:
                socket.send_fds(self._socket, [text], descriptors)
                answer = self._socket.recv(64)
            except OSError as error:
                raise RigError(f"the process that has kjbod preloaded: {error}") from None
            if not answer:
                raise RigError("the process that has kjbod preloaded has ended")
            return int(answer)

    def _begin(self) -> bool:
        if _SYS_CLONE is None or threading.current_thread() is not threading.main_thread():
            return False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._inherited, self._environment, self._owner = _inherited(), dict(os.environ), os.getpid()
            ours.settimeout(_ANSWER_TIMEOUT_S)
            self._socket = ours
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return True

    def close(self) -> None:
        """End it, and wait for its end. What it began goes on."""
        with self._lock:
            if self._process is None or self._socket is None:
                return
            self._socket.close()
            self._process.wait()
            self._process = self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _inherited() -> object:
    """Inheritance of a process from its parent, but for environment, directory and descriptors."""
    limits = [resource.getrlimit(each) for name, each in vars(resource).items() if name.startswith("RLIMIT_")]
    namespaces = [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES]
    status = Path("/proc/self/status").read_text()
    kept = ("Umask:", "Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "SigIgn:")
    rights = [line for line in status.splitlines() if line.startswith(kept)]
    return limits, namespaces, rights, Path("/proc/self/cgroup").read_text(), os.getpriority(os.PRIO_PROCESS, 0)


def _told(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_TOLD_BY_ENVIRONMENT)}


def _serve(descriptor: int, parent: int) -> None:
    """Import, and become each command that is ordered, in a child, which ends with SystemExit, so as Python ends;
    returns at the end of the orders."""
    _die_with(parent)
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    with socket.socket(fileno=descriptor) as orders:
        while True:
            text, descriptors, _, _ = socket.recv_fds(orders, _ORDER_BYTES_MAX, 3)
            if not text:
                return
            pid = _clone()
            if pid == 0:
                order = json.loads(text)
                os.setsid()
                for descriptor, standard in zip(descriptors, order["standard"], strict=True):
                    os.dup2(descriptor, standard)
                    os.close(descriptor)
                if "server" not in order:
                    _become(order, parent)
                orders.send(b"%d" % os.getpid())
                break
            for each in descriptors:
                os.close(each)
    if "server" in order:
        _run_disk_server(order["server"])
    _run(tidy=order["tidy"])


def _run_disk_server(arguments: Sequence[str]) -> NoReturn:
    from kjbod.faults.fuseserver import main

    os.chdir("/")
    sys.argv = ["fuseserver", *arguments]
    sys.exit(main())


def _run(*, tidy: bool) -> None:
    from kjbod.cli.main import main

    try:
        main()
    except SystemExit as end:
        if tidy or not isinstance(end.code, int):
            raise
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


def _clone() -> int:
    """As :func:`os.fork`, but the child is our parent's. Python is told of it as by ``os.fork`` itself."""
    python = ctypes.pythonapi
    call = ctypes.PyDLL(None, use_errno=True).syscall
    python.PyOS_BeforeFork()
    pid = int(call(_SYS_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
    else:
        python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid


def _become(order: Mapping[str, Any], parent: int) -> None:
    """Get what a process has that was started for the command."""
    if order["plain"]:
        _become_plain()
    _die_with(parent)
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    command = Path(sys.executable).parent / "kjbod"
    sys.argv = [str(command), *order["arguments"]]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path[0] = str(command.parent)
    Path("/proc/self/comm").write_text("kjbod")


def _become_plain() -> None:
    """Lose for ever what :data:`PLAIN` takes away (capset(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    sets = ctypes.create_string_buffer(24)  # effective, permitted, inheritable; then the upper halves
    failed = libc.capget(header, sets)
    for lost in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
        failed |= libc.prctl(_PR_CAPBSET_DROP, lost, 0, 0, 0)
    kept = ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    lower, upper = struct.unpack("=3I", sets.raw[:12]), sets.raw[12:]
    failed |= libc.capset(header, struct.pack("=3I", *(word & kept for word in lower)) + upper)
    if failed:
        raise OSError(ctypes.get_errno(), "cannot give up capabilities")


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        _serve(int(sys.argv[1]), int(sys.argv[2]))
