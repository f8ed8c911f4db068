"""Namespaces around a program: nothing outlives it, and what it leaves is named."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.rig import namespaces
from scripts.rig.processes import Processes, wait_until

pytestmark = pytest.mark.usefixtures("as_root")

ENTER = [sys.executable, "-m", "scripts.rig.namespaces"]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """What is left on purpose is not told to the session, which it would fail."""
    told = {name: value for name, value in os.environ.items() if name != namespaces.LEFT_VARIABLE}
    return subprocess.run([*ENTER, *command], capture_output=True, text=True, check=False, timeout=60, env=told)


def test_this_session_runs_in_namespaces_of_its_own() -> None:
    assert namespaces.inside()
    assert Path("/proc/1/cmdline").read_bytes().split(b"\0")[3] == b"scripts.rig.namespaces"


@pytest.mark.parametrize(("script", "exit_code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_exit_code_is_that_of_the_command(script: str, exit_code: int) -> None:
    result = run("sh", "-c", script)
    assert (result.returncode, result.stderr) == (exit_code, "")


@pytest.mark.parametrize(("command_ends_with", "exit_code"), [(0, 1), (7, 7)])
def test_what_a_command_leaves_is_undone_and_named_and_no_success(
    tmp_path: Path, command_ends_with: int, exit_code: int
) -> None:
    result = run("sh", "-c", f"sleep 1234 & mount -t tmpfs none {tmp_path}; exit {command_ends_with}")
    assert result.returncode == exit_code
    process, mount = result.stderr.splitlines()
    assert process.startswith("left behind: process ") and process.endswith(" sleep 1234")
    assert mount.startswith(f"left behind: mount {tmp_path} (id ")
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not running("sleep\0001234")


def test_an_orphan_that_ends_by_itself_is_reaped_and_not_held_against_the_command() -> None:
    result = run("sh", "-c", "(sleep 0.2 & exit 0); exit 0")
    assert (result.returncode, result.stderr) == (0, "")


def test_killing_the_outside_kills_everything_inside(processes: Processes) -> None:
    outside = processes.start([*ENTER, "sh", "-c", "echo started >&2; sleep 4321 & wait"], name="outside")
    outside.wait_for_text("started")
    outside.signal(signal.SIGKILL)
    outside.wait()
    wait_until(lambda: not running("sleep\0004321"), 10, "everything inside to end")


LOOPBACK = """
import socket
from scripts.rig.namespaces import enter_network

enter_network()
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
    print(*(name for _, name in socket.if_nameindex()))
"""


def test_a_network_of_its_own_has_a_loopback_that_works_and_nothing_of_the_machines() -> None:
    result = subprocess.run([sys.executable, "-c", LOOPBACK], capture_output=True, text=True, check=False, timeout=60)
    # What the kernel makes in each (sit0, tunl0) depends on its modules.
    assert result.returncode == 0 and result.stdout.split()[0] == "lo", result.stderr
    assert "eth0" not in result.stdout


def running(command: str) -> bool:
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and command in (entry / "cmdline").read_text():
                return True
        except OSError:
            continue
    return False


def test_the_command_gets_the_sigterm_that_its_init_gets(processes: Processes) -> None:
    script = "trap 'echo got it; exit 3' TERM; echo started >&2; while :; do sleep 0.05; done"
    outside = processes.start([*ENTER, "sh", "-c", script], name="outside")
    outside.wait_for_text("started")
    init = int(Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()[0])
    os.kill(init, signal.SIGTERM)
    assert outside.wait() == 3
    assert outside.stdout() == "got it\n"


def test_namespaces_without_root_are_one_clear_line() -> None:
    program = (
        "import os; from scripts.rig import namespaces, rig_error\n"
        "os.setuid(65534)\n"
        "try: namespaces.require_namespaces()\n"
        "except rig_error.RigError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", program], stdout=-1, text=True, check=True)
    assert result.stdout == "mount and pid namespaces need root and this is uid 65534: run it with sudo\n"
