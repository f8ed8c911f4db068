"""The ``kjbod`` command for tests, begun by one process for the session that has imported it.

In the deep form each is an exec: what is begun otherwise is held against it there. Tests of what is read from a command
line, of memory, or of a host without this or that start it by exec themselves.
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO

from kjbod.faults import fusedisk
from scripts.rig.preloaded import PLAIN, Preloaded, Started
from scripts.rig.processes import kjbod_command
from tests.depth import at

_sessions: list[Preloaded] = []
"""None or one: begun when it is first asked for."""


def preloaded() -> Preloaded | None:
    """The session's; None in the deep form."""
    if at(quick=False, ci=False, deep=True):
        return None
    if not _sessions:
        _sessions.append(Preloaded())
    return _sessions[0]


def preload_disks() -> None:
    """From now on the servers of our disks are begun by it, too, where they can be."""

    def start(arguments: Sequence[str], log: IO[bytes]) -> fusedisk.Server:
        one = preloaded()
        started = None if one is None else one.start_disk_server(arguments, log)
        return started or fusedisk.start_by_exec(arguments, log)

    fusedisk.start_server = start


def end_preloaded() -> None:
    """End it, if there is one."""
    fusedisk.start_server = fusedisk.start_by_exec
    while _sessions:
        _sessions.pop().close()


def begin_kjbod(*arguments: str, out: int, err: int) -> Started | subprocess.Popen[bytes]:
    """Begin the ``kjbod`` command with these descriptors as standard output and error, and nothing to read."""
    one = preloaded()
    started = None if one is None else one.start(arguments, os.environ, out, err, os.getcwd())
    return started or subprocess.Popen([kjbod_command(), *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=err)


def run_kjbod(
    *arguments: str,
    timeout_s: float = 60,
    check: bool = False,
    environment: Mapping[str, str] | None = None,
    plain: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the ``kjbod`` command to its end, with nothing to read; ``plain``: with :data:`PLAIN` before it.

    Raises :class:`subprocess.TimeoutExpired`, and with ``check`` :class:`subprocess.CalledProcessError` for an exit
    code that is not 0.
    """
    command = [*(PLAIN if plain else ()), kjbod_command(), *arguments]
    variables = os.environ if environment is None else environment
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        one = preloaded()
        started = None
        if one is not None:
            started = one.start(arguments, variables, out.fileno(), err.fileno(), os.getcwd(), tidy=False, plain=plain)
        if started is None:
            return subprocess.run(
                command, capture_output=True, text=True, check=check, timeout=timeout_s, env=dict(variables)
            )
        try:
            code = started.wait(timeout_s)
        except BaseException:
            started.send_signal(9)
            started.wait(timeout_s)
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    done = subprocess.CompletedProcess(command, code, *texts)
    if check:
        done.check_returncode()
    return done
