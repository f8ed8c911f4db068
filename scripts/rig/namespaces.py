"""Run a program in mount and pid namespaces of its own: what it mounts and starts cannot outlive it. Linux, root.

``python -m scripts.rig.namespaces COMMAND...`` enters them with unshare(1) and stays, as their init, between them and
the command: it reaps orphans and passes SIGTERM on (an init without handlers is deaf to signals), and when the command
has ended it looks for what that left behind: processes, mounts, loop devices. Whatever there is goes when the init
ends; but it is named on standard error, and turns success into exit code 1. For what would stay on the machine when all
of it is killed there is a :mod:`~scripts.rig.janitor` outside.

A test session calls :func:`reexec` once at its start.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from kjbod.faults.fusedisk import TAG_VARIABLE
from scripts.rig.janitor import start_janitor
from scripts.rig.rig_error import RigError

INSIDE_VARIABLE = "KJBOD_NAMESPACES"
"""Environment variable that is set for whatever runs in the namespaces."""
LEFT_VARIABLE = "KJBOD_LEFT_BEHIND"
"""Environment variable with the file to which what was left behind is appended, where nobody sees the exit code."""
_UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private")
_CLONE_NEWNET = 0x40000000
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1
_GRACE_S = 5.0  # workers that die with their parent, JVMs that end with the interpreter, loop devices being cleared
_POLL_S = 0.02


def inside() -> bool:
    """Whether this process already runs in namespaces of ours."""
    return INSIDE_VARIABLE in os.environ


def require_namespaces() -> None:
    """Raise :class:`RigError`, one line for a person, when this machine does not let us have namespaces."""
    if os.geteuid() != 0:
        raise RigError(f"mount and pid namespaces need root and this is uid {os.geteuid()}: run it with sudo")
    if shutil.which("unshare") is None:
        raise RigError("unshare: command not found (apt-get install util-linux)")
    trial = subprocess.run([*_UNSHARE, "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if trial.returncode:
        reason = trial.stderr.decode(errors="replace").strip()
        raise RigError(f"no mount and pid namespaces here: {reason} (in a container: --privileged)")


def command_in_namespaces(command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` in new namespaces; it ends with the command's exit code."""
    return [*_UNSHARE, sys.executable, "-P", "-m", "scripts.rig.namespaces", *command]


def environment(tag: str) -> dict[str, str]:
    """The environment for :func:`command_in_namespaces`; ``tag`` marks what is made inside and is the machine's."""
    return {**os.environ, INSIDE_VARIABLE: "1", TAG_VARIABLE: tag}


def _enter(command: Sequence[str]) -> NoReturn:
    """Become the namespaces around ``command``. The tag begins with that of the namespaces that we are in."""
    tag = "-".join(filter(None, (os.environ.get(TAG_VARIABLE), f"run{os.getpid()}")))
    start_janitor(tag)
    entering = command_in_namespaces(command)
    os.execvpe(entering[0], entering, environment(tag))


def reexec() -> None:
    """Replace this process by itself in new namespaces; returns only when it is already there.

    Raises :class:`RigError` when that cannot be done. File descriptors 0 to 2 must be those of the terminal or the log.
    """
    if inside():
        return
    require_namespaces()
    _enter([sys.executable, *sys.orig_argv[1:]])


def enter_network() -> None:
    """Move this process into a network namespace of its own, so that rules and destroyed sockets are nobody else's.

    Raises :class:`RigError` where there is none to be had.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET):
        raise RigError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))


def _mounts() -> set[str]:
    """Every mount of this namespace: its id, source and mount point."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    fields = [line.split(" ") for line in lines]
    return {f"{f[4]} (id {f[0]})" for f in fields}


def _processes() -> list[str]:
    """Every other process of this pid namespace, zombies aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it ended while we looked
            continue
        if state != "Z":
            found.append(f"{entry.name} {command[:200] or (entry / 'comm').read_text().strip()}")
    return found


def loop_devices(tag: str) -> list[str]:
    """Loop devices over images whose name carries ``tag``."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            name = backing.read_text().strip()
        except OSError:  # cleared while we looked
            continue
        if f"/kjbod-{tag}-" in name:
            found.append(f"{backing.parts[3]} ({name})")
    return found


def _left_behind(mounts_before: set[str]) -> list[str]:
    """A line for each thing that the command left, after a moment of grace for what is just ending."""
    deadline = time.monotonic() + _GRACE_S
    while True:
        _reap()
        left = [f"process {p}" for p in _processes()]
        left += [f"mount {m}" for m in sorted(_mounts() - mounts_before)]
        left += [f"loop device {d}" for d in loop_devices(os.environ.get(TAG_VARIABLE, ""))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(_POLL_S)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _run_as_init(command: Sequence[str]) -> int:
    """Run ``command`` to its end, reaping whatever is orphaned meanwhile; its exit code, 128 + signal if killed."""
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        if process is None:
            early.append(number)
        elif process.returncode is None:
            os.kill(process.pid, number)

    # Before the command, which may be up before we go on: an init without a handler loses the signal.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    process = subprocess.Popen(command)
    for missed in early:
        forward(missed, None)
    # Ctrl-C reaches the command by itself, as a member of the terminal's process group.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == process.pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode if process.returncode >= 0 else 128 - process.returncode


def main(command: Sequence[str]) -> NoReturn:
    """Be the init of the namespaces around ``command``, or enter them first when we are not."""
    if not command:
        sys.stderr.write("usage: python -m scripts.rig.namespaces COMMAND [ARGUMENT...]\n")
        sys.exit(2)
    if os.getpid() != 1:
        try:
            require_namespaces()
        except RigError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(error.exit_code)
        _enter(command)
    mounts_before = _mounts()
    exit_code = _run_as_init(command)
    left = _left_behind(mounts_before)
    said = "".join(f"left behind: {line}\n" for line in left)
    sys.stderr.write(said)
    sys.stderr.flush()
    if left and (path := os.environ.get(LEFT_VARIABLE)):
        with open(path, "a", encoding="utf-8") as file:
            file.write(said)
    os._exit(exit_code or (1 if left else 0))


if __name__ == "__main__":
    main(sys.argv[1:])
