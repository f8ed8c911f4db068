"""A command that is begun by a process which has imported it is a process as any."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.rig.preloaded import PLAIN, Preloaded, Started
from scripts.rig.processes import Processes, kjbod_command, wait_until

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def preloaded(world: None) -> Iterator[Preloaded]:
    with Preloaded() as one:
        yield one


def begin(preloaded: Preloaded, tmp_path: Path, *arguments: str, environment: dict[str, str] | None = None) -> Started:
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "err", "wb") as err:
        started = preloaded.start(arguments, environment or dict(os.environ), out.fileno(), err.fileno())
    assert started is not None
    return started


def test_it_says_what_the_command_says_and_ends_as_it_ends(preloaded: Preloaded, tmp_path: Path) -> None:
    for arguments in (["version-mapping"], ["status", "-c", "/nonexistent"], ["no-such-command"]):
        started = begin(preloaded, tmp_path, *arguments)
        code = started.wait(PATIENCE_S)
        kjbod = Path(sys.executable).parent / "kjbod"
        real = subprocess.run([kjbod, *arguments], capture_output=True, check=False, stdin=subprocess.DEVNULL)
        assert code == real.returncode == started.poll()
        assert ((tmp_path / "out").read_bytes(), (tmp_path / "err").read_bytes()) == (real.stdout, real.stderr)


def test_it_is_a_child_with_a_session_and_an_environment_of_its_own(preloaded: Preloaded, tmp_path: Path) -> None:
    (tmp_path / "c.properties").write_text("process.roles=controller\n")
    os.mkfifo(tmp_path / "fifo")
    started = begin(
        preloaded, tmp_path, "status", "-c", str(tmp_path / "fifo"), environment={**os.environ, "KJBOD_TESTED": "x"}
    )
    fields = Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()
    assert (int(fields[1]), int(fields[3])) == (os.getpid(), started.pid)
    assert started.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        started.wait(0.01)
    started.send_signal(signal.SIGKILL)
    assert started.wait(PATIENCE_S) == -signal.SIGKILL
    started.send_signal(signal.SIGKILL)  # which is nobody's by now


def test_none_is_begun_where_it_would_have_what_a_child_of_ours_has_not(preloaded: Preloaded, tmp_path: Path) -> None:
    assert begin(preloaded, tmp_path, "--version").wait(PATIENCE_S) == 0
    with open(os.devnull, "wb") as nothing:

        def refused(**environment: str) -> bool:
            return preloaded.start(["--version"], {**os.environ, **environment}, nothing.fileno(), 2) is None

        assert refused(PYTHONASYNCIODEBUG="1") and refused(LD_PRELOAD="x.so") and not refused(KJBOD_X="1")
        umask = os.umask(0o027)
        try:
            assert refused()
        finally:
            os.umask(umask)
        assert not refused()


def test_a_plain_one_has_the_rights_that_a_command_line_gives_it(
    as_root: None, preloaded: Preloaded, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")

    def told(preloaded: Preloaded | None) -> list[str]:
        with Processes(tmp_path, preloaded=preloaded) as processes:
            pid = processes.start(command, name="plain").pid
            wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "kjbod\n", PATIENCE_S, "the command")
            return rights(pid)

    command = [*PLAIN, kjbod_command(), "status", "-c", str(tmp_path / "fifo")]
    assert told(None) == told(preloaded) != rights(os.getpid())


def rights(pid: int) -> list[str]:
    """Lines of proc_pid_status(5)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [line for line in lines if line.startswith(("Cap", "NoNewPrivs", "Uid", "Gid"))]


def test_it_is_not_started_in_a_thread_whose_end_would_end_all(world: None) -> None:
    found: list[object] = []

    def ask() -> None:
        with Preloaded() as one:
            found.append(one.start(["--version"], os.environ, 1, 2))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [None]


def test_with_the_end_of_who_made_it_all_ends(world: None, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    program = (
        "import json, os, sys\nfrom scripts.rig.preloaded import Preloaded\n"
        f"started = Preloaded().start(['status', '-c', {str(tmp_path / 'fifo')!r}], os.environ, 1, 2)\n"
        "print(json.dumps(started.pid), flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=-1, stdout=-1) as maker:
        assert maker.stdout is not None
        descriptor = os.pidfd_open(json.loads(maker.stdout.readline()))
        maker.kill()
    from select import POLLIN, poll

    ended = poll()
    ended.register(descriptor, POLLIN)
    assert ended.poll(PATIENCE_S * 1000)
    os.close(descriptor)


def test_the_server_of_a_disk_is_a_child_too_which_cleans_up_when_its_maker_is_killed(as_root: None) -> None:
    program = (
        "import json, sys\nfrom kjbod.faults import fusedisk\nfrom scripts.rig.preloaded import Preloaded\n"
        "fusedisk.start_server = Preloaded().start_disk_server\ndisk = fusedisk.FuseDisk(1 << 20)\n"
        "print(json.dumps([str(disk.directory), disk.server_pid()]), flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=-1, stdout=-1) as maker:
        assert maker.stdout is not None
        directory, server = json.loads(maker.stdout.readline())
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        assert (int(fields[1]), int(fields[3])) == (maker.pid, server)
        assert (Path(directory) / "fuse").is_mount()
        maker.kill()
    wait_until(lambda: not Path(directory).exists(), PATIENCE_S, "the disk's directory to go")
