"""Whom a guard that acts goes on as, and that it has no rights then; and what it says where that cannot be."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kjbod.errors import ConfigError
from kjbod_agent.guard import rights
from kjbod_agent.guard.hand_rights import KEPT_CAPABILITIES
from kjbod_agent.guard.start_up import read_config
from scripts.rig.processes import Processes, wait_until
from tests.agent.daemon_cluster import Cluster
from tests.guard.conftest import Beside

pytestmark = pytest.mark.usefixtures("as_root")

NOBODY = rights.User(65534, 65534, (65534,))
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


def log_dir(path: Path, uid: int, *, formatted: bool = True) -> str:
    path.mkdir()
    if formatted:
        (path / "meta.properties").touch()
    os.chown(path, uid, uid)
    return str(path)


def status(pid: int | str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_a_guard_of_root_s_goes_on_as_the_owner_of_the_log_directories(tmp_path: Path) -> None:
    paths = [log_dir(tmp_path / "d1", 65534), log_dir(tmp_path / "d2", 65534)]
    unmounted, masked = log_dir(tmp_path / "d3", 0, formatted=False), log_dir(tmp_path / "d4", 0, formatted=False)
    (Path(masked) / "meta.properties").mkdir()
    user = rights.owner([unmounted, masked, *paths, str(tmp_path / "none")])
    assert (user.uid, user.gid, user.text) == (65534, 65534, "nobody (uid 65534)")
    assert 65534 in user.groups


def test_an_owner_without_a_name_has_the_group_of_his_directories(tmp_path: Path) -> None:
    assert rights.owner([log_dir(tmp_path / "d1", 54321)]) == rights.User(54321, 54321, ())


def test_log_directories_of_different_users_are_refused_in_one_line(tmp_path: Path) -> None:
    paths = [log_dir(tmp_path / "d1", 65534), log_dir(tmp_path / "d2", 0), log_dir(tmp_path / "d3", 0)]
    with pytest.raises(ConfigError) as refused:
        rights.owner(paths)
    said = str(refused.value)
    assert f"{paths[1]} is root's and {paths[0]} is nobody's" in said and "\n" not in said
    assert refused.value.exit_code == 78


def test_a_host_without_its_disks_may_be_asked_again(tmp_path: Path) -> None:
    path = log_dir(tmp_path / "d1", 0, formatted=False)
    with pytest.raises(rights.NoOwnerError, match="goes on as their owner: mount one") as refused:
        rights.owner([path])
    assert refused.value.exit_code == 1


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung, well = log_dir(tmp_path / "hung", 0), log_dir(tmp_path / "well", 65534)
    ask = rights._owner_of

    def hangs(path: str) -> tuple[int, int] | None:
        if path == hung:
            with open(tmp_path / "lock") as file:  # a description of its own
                fcntl.flock(file, fcntl.LOCK_EX)
        return ask(path)

    monkeypatch.setattr(rights, "_owner_of", hangs)
    monkeypatch.setattr(rights, "ANSWER_MS", 500)
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert rights.owner([hung, well]).uid == 65534
        fcntl.flock(lock, fcntl.LOCK_UN)
    os.wait()  # for the child that hung


GIVE_UP = """
import subprocess, sys
sys.path[:] = {path!r}
from kjbod_agent.guard import rights
rights.give_up({user})
print(open("/proc/self/status").read())
print(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize("user", ["None", "rights.User(65534, 65534, (65534, 100))"])
def test_it_gives_all_rights_up_and_programs_that_it_starts_get_none(user: str) -> None:
    program = GIVE_UP.format(path=sys.path, user=user)
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    for text in said.strip().split("\n\n"):
        found = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
        assert [int(found[name], 16) for name in SETS] == [0] * 5
        assert found["NoNewPrivs"] == "1"
        if user != "None":
            assert found["Uid"].split() == found["Gid"].split() == ["65534"] * 4
            assert found["Groups"].split() == ["100", "65534"]


@pytest.fixture
def passable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that all may pass to, which no ``tmp_path`` is, with programs that all may read."""
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    monkeypatch.setattr(rights, "__file__", "/bin/sh")
    with tempfile.TemporaryDirectory(prefix="kjbod-passable-") as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def why(directory: Path, state: Path) -> str | None:
    config = directory / "server.properties"
    config.write_text(
        "process.roles=broker\nnode.id=1\ncontroller.quorum.bootstrap.servers=127.0.0.1:1\n"
        f"controller.listener.names=CONTROLLER\nlog.dirs=/mnt/d1\nkjbod.state.dir={state}\n"
    )
    return rights.why_unusable(read_config(config, None), NOBODY)


def test_directories_that_the_owner_cannot_use_are_named_with_what_to_do(passable: Path) -> None:
    state = passable / "state"
    assert why(passable, state) == (
        f"kjbod.state.dir={state}: it is not there, and nobody cannot make it in {passable}: "
        f"install -d -o nobody {state}"
    )
    state.mkdir()
    assert why(passable, state) == (
        f"kjbod.state.dir={state}: permission denied: {state} belongs to root (mode 0755), and this is nobody: "
        f"chown -R nobody: {state}"
    )
    os.chown(state, 65534, 65534)
    assert why(passable, state) is None
    (state / "guard-audit.jsonl").touch(mode=0o640)
    said = why(passable, state)
    assert said is not None and f"{state}/guard-audit.jsonl belongs to root" in said
    assert said.endswith(f"chown -R nobody: {state}")


def test_a_program_that_the_owner_cannot_read_is_named(passable: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = passable / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(sys, "executable", f"{private}/python")
    said = why(passable, passable)
    assert said is not None and f"{private} belongs to root (mode 0700), and this is nobody, who may not pass" in said


def test_a_guard_of_root_s_directories_stays_root_without_rights_and_its_hand_keeps_its_own(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside]
) -> None:
    cluster = Cluster(tmp_path, processes)
    watch = beside(cluster.configure(1, directories=2, kjbod_host="h"), guard_mode="act")
    guard = watch.start()
    guard.wait_for_event("guard.started", mode="act")
    found = status(guard.pid)
    assert [int(found[name], 16) for name in SETS] == [0] * 5
    assert found["Uid"].split() == ["0"] * 4 and found["NoNewPrivs"] == "1"
    (hand,) = (one.pid for one in psutil.Process(guard.pid).children() if "hand.py" in " ".join(one.cmdline()))
    kept = f"{sum(1 << number for number in KEPT_CAPABILITIES):016x}"
    wait_until(lambda: [status(hand)[name] for name in ("CapPrm", "CapEff")] == [kept, kept], 20, "what it keeps")
    assert guard.stop() == 0


def test_a_guard_is_not_started_for_directories_of_different_users(
    tmp_path: Path, processes: Processes, beside: Callable[..., Beside]
) -> None:
    cluster = Cluster(tmp_path, processes)
    watch = beside(cluster.configure(1, directories=2, kjbod_host="h"), guard_mode="act")
    os.chown(cluster.directory(1, 2), 65534, 65534)
    guard = watch.start()
    assert guard.wait() == 78
    assert "log directories of different users" in guard.stderr()
