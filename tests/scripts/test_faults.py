"""``kjbod faults``: what an operator sees, what is refused, and that nothing stays broken."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults import cli, foreign, syscalls
from kjbod.faults.catalog import FAULTS, inject, undo
from kjbod.faults.disks import FILE_SYSTEMS, DiskControl, RealDisk
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Target
from kjbod.faults.mount_table import mount_above, mount_on, mounts_on
from kjbod.faults.program import typed
from scripts.rig.processes import Processes, kjbod_command, wait_until
from tests.preloading import run_kjbod

ROOT = Path(__file__).parents[2]
root = pytest.mark.usefixtures("as_root")
Make = Callable[..., RealDisk]
Result = subprocess.CompletedProcess[str]


def command(state_dir: Path, *arguments: object) -> list[str]:
    return [kjbod_command(), "faults", *map(str, arguments), "--state-dir", str(state_dir)]


class Faults:
    """The command with a state directory of its own."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir

    def __call__(self, *arguments: object, code: int = 0, environment: Mapping[str, str] | None = None) -> Result:
        result = run_kjbod(*command(self.state_dir, *arguments)[1:], environment=environment)
        assert result.returncode == code, (result.stdout, result.stderr)
        return result

    def error(self, *arguments: object, code: int = 1, environment: Mapping[str, str] | None = None) -> str:
        """Its only line on standard error."""
        result = self(*arguments, code=code, environment=environment)
        assert result.stderr.count("\n") == 1, result.stderr
        assert "Traceback" not in result.stderr
        return result.stderr.rstrip("\n")

    def status(self, code: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self("status", "--json", code=code).stdout)
        return found

    def left(self) -> list[str]:
        """Files of injections."""
        return [name for name in os.listdir(self.state_dir) if ".disk" not in name]


@pytest.fixture
def faults(tmp_path: Path) -> Iterator[Faults]:
    made = Faults(tmp_path / "state")
    yield made
    if os.geteuid() == 0:
        made("undo", "--all")
        made("disk", "remove", "--all")
        assert not made.state_dir.exists() or os.listdir(made.state_dir) == []


@pytest.fixture
def scratch(faults: Faults, tmp_path: Path) -> Path:
    """A scratch disk, mounted."""
    faults("disk", "create", tmp_path / "disk")
    return tmp_path / "disk"


def writes(directory: Path) -> bool:
    try:
        fd = os.open(directory / "probe", os.O_WRONLY | os.O_CREAT)
        try:
            os.write(fd, b"x" * 4096)
            os.fsync(fd)
        finally:
            os.close(fd)
        (directory / "probe").unlink()
    except OSError:
        return False
    return True


# without root ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("world")
def test_list_names_every_fault_with_what_it_does_and_what_the_agent_should_say(tmp_path: Path) -> None:
    head, *lines = Faults(tmp_path)("list").stdout.splitlines()
    assert re.split(r"  +", head) == ["FAULT", "FILE SYSTEMS", "DOES", "NEEDS", "THE AGENT SHOULD SAY"]
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(FAULTS)
    by_name = {fault["name"]: fault for fault in json.loads(Faults(tmp_path)("list", "--json").stdout)}
    assert list(by_name) == list(FAULTS)
    assert by_name["slow"]["options"] == {"ms": 200}
    assert by_name["eio"]["expected"]["ext4"]["states"] == ["failed"]
    assert set(by_name["fs-shutdown"]["expected"]) | set(by_name["fs-shutdown"]["not_on"]) == set(FILE_SYSTEMS)


@pytest.mark.usefixtures("world")
def test_a_clone_has_the_same_command_without_an_installation(tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        line = ["scripts/faults", *arguments, "--state-dir", str(tmp_path)]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)

    # As wide as it is told: what a terminal has told the libraries of this process is not in os.environ.
    environment = {**os.environ, "COLUMNS": "120"}
    faults = Faults(tmp_path)
    assert run("list").stdout == faults("list", environment=environment).stdout
    assert run("--help").stdout == faults("--help", environment=environment).stdout
    mistake = run("undo")
    assert (mistake.returncode, mistake.stderr.rstrip("\n")) == (
        2,
        faults.error("undo", code=2, environment=environment),
    )


def test_a_command_to_type_has_its_path_where_a_shell_would_not_find_it(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Path(kjbod_command())
    for path, wanted in ((program.parent, "kjbod faults"), (Path("/nonexistent"), f"{program} faults")):
        monkeypatch.setenv("PATH", str(path))
        assert typed() == wanted


@pytest.mark.usefixtures("world")
def test_list_fits_into_a_narrow_terminal() -> None:
    environment = {**os.environ, "COLUMNS": "110"}
    line = command(Path("/nonexistent"), "list")
    result = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert max(map(len, result.stdout.splitlines())) <= 110


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("arguments", [["--help"], ["inject", "--help"], ["disk", "create", "--help"]])
def test_help_says_how(tmp_path: Path, arguments: list[str]) -> None:
    assert "--host" in Faults(tmp_path)(*arguments).stdout


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], r"kjbod faults: the following arguments are required: COMMAND \(see kjbod faults --help\)"),
        (["inject", "eio"], r"kjbod faults inject: the following arguments are required: PATH .*"),
        (["inject", "slow", "/x", "--ms", "0"], r".*'0' is not a number of milliseconds from 1 to 600000 .*"),
        (["inject", "eio", "/x", "--for", "soon"], r".*'soon' is not a time: say 30s, 500ms, 5m or 1h, .*"),
        (["inject", "eio", "/x", "--for", "0s"], r".*'0s' is not a time: .*"),
        (["disk", "create", "/x", "--size", "1K"], r".*'1K' is not a size from 8M to 64G .*"),
        (["disk", "create", "/x", "--fstype", "zfs"], r".*invalid choice: 'zfs' .*"),
        (["undo"], r"kjbod faults: undo: say what: an id, a path, or --all"),
        (["undo", "--all", "x"], r"kjbod faults: undo: say what: an id, a path, or --all"),
        (["disk", "remove"], r"kjbod faults: disk remove: say which: a path, or --all"),
        (["--host=-oProxyCommand=x", "list"], r"kjbod faults: --host '-oProxyCommand=x' is not a host"),
    ],
)
def test_a_command_line_that_makes_no_sense_is_one_clear_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    assert re.fullmatch(line, Faults(tmp_path).error(*arguments, code=2))


@pytest.mark.usefixtures("world")
def test_an_unknown_fault_is_one_clear_line(tmp_path: Path) -> None:
    line = "kjbod faults: no fault 'explode': see kjbod faults list"
    assert Faults(tmp_path).error("inject", "explode", tmp_path, code=2) == line


@pytest.mark.usefixtures("world")
def test_a_reader_that_has_seen_enough_of_the_list_is_no_error(tmp_path: Path) -> None:
    line = " ".join(command(tmp_path, "list"))
    result = subprocess.run(["bash", "-c", f"{line} | head -n 1"], capture_output=True, text=True, check=True)
    assert result.stderr == ""


# another host ---------------------------------------------------------------------------------------------------------


def stand_in_for_ssh(directory: Path, body: str) -> dict[str, str]:
    directory.mkdir()
    ssh = directory / "ssh"
    ssh.write_text(f"#!/bin/sh\n{body}\n")
    ssh.chmod(0o755)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"}


@pytest.mark.usefixtures("world")
def test_another_host_gets_the_same_command_by_ssh_each_argument_as_it_was_given(tmp_path: Path) -> None:
    environment = stand_in_for_ssh(tmp_path / "bin", 'printf "%s\\n" "$@"; exit 7')
    path = "/mnt/it's $HOME; rm -rf *"
    faults = Faults(tmp_path / "state")
    result = faults("--host", "root@broker7", "inject", "eio", path, "--for=30s", code=7, environment=environment)
    options, remote = result.stdout.splitlines()[:-1], result.stdout.splitlines()[-1]
    assert options == ["--", "root@broker7"]
    program = "/opt/kjbod/bin/kjbod faults "
    assert remote.startswith(program)
    shell = subprocess.run(
        ["sh", "-c", remote.replace(program, 'printf "%s\\n" ', 1)], capture_output=True, text=True, check=True
    )
    wanted = ["inject", "eio", path, "--for=30s", "--state-dir", str(tmp_path / "state")]
    assert shell.stdout.splitlines() == wanted


@pytest.mark.usefixtures("world")
def test_the_command_on_the_other_host_may_be_another_one_and_its_answer_and_exit_code_come_back(
    tmp_path: Path,
) -> None:
    environment = stand_in_for_ssh(tmp_path / "bin", 'shift 2; exec sh -c "$*"')
    faults = Faults(tmp_path / "state")
    remote = f"cd / && {kjbod_command()} faults"
    result = faults("list", "eio", "--json", "--host=h", "--remote-command", remote, environment=environment)
    assert json.loads(result.stdout)[0]["name"] == "eio"
    line = faults.error("list", "explode", "--host", "h", f"--remote-command={remote}", code=2, environment=environment)
    assert "no fault 'explode'" in line


@pytest.mark.usefixtures("world")
def test_without_ssh_there_is_one_clear_line(tmp_path: Path) -> None:
    line = Faults(tmp_path).error("list", "--host", "h", environment={"PATH": "/nonexistent"})
    assert line == "kjbod faults: ssh: No such file or directory (apt-get install openssh-client)"


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["--host", "h", "status"], ["status"]),
        (["status", "--host=h"], ["status"]),
        (["inject", "eio", "/x", "--remote-command", "sudo f", "--for", "3s"], ["inject", "eio", "/x", "--for", "3s"]),
    ],
)
def test_the_other_host_is_not_told_to_go_to_another_host(given: list[str], left: list[str]) -> None:
    assert cli.without_options(given, "--host", "--remote-command") == left


# refusals -------------------------------------------------------------------------------------------------------------


@root
@pytest.mark.parametrize("what", [["inject", "eio", "/x"], ["undo", "--all"], ["disk", "create", "/x"]])
def test_who_is_not_root_is_told_so(what: list[str]) -> None:
    program = "import os, sys; from kjbod.faults import cli; os.setuid(65534); sys.exit(cli.main(sys.argv[1:]))"
    line = [sys.executable, "-P", "-c", program, *what]
    result = subprocess.run(line, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert re.fullmatch(r"kjbod faults: .* needs root and this is uid 65534: run it with sudo\n", result.stderr)


@root
@pytest.mark.parametrize("path", ["/", "/boot", "/usr", "/tmp", "/proc", "/dev"])
def test_the_machines_own_file_systems_are_refused_even_with_the_flag(faults: Faults, path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"no {path} here")
    assert "which is never touched" in faults.error("inject", "freeze", path, "--yes-this-disk", path)


@root
def test_a_disk_with_swap_is_refused_even_with_the_flag(
    real_disk: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = real_disk()
    (disk.mount_point / "swap file").write_bytes(b"")
    swaps = tmp_path / "swaps"
    monkeypatch.setattr(foreign, "_SWAPS", swaps)
    for swap in (f"{disk.mount_point}/swap\\040file", disk.device):
        swaps.write_text(f"Filename Type Size Used Priority\n{swap} file 1 0 -2\n")
        with pytest.raises(FaultsError, match=r"swap .* lies there, which is never touched"):
            foreign.find_target(
                FAULTS["freeze"], str(disk.mount_point), confirmed=str(disk.mount_point), state_dir=tmp_path / "state"
            )


@root
def test_a_disk_that_is_not_a_scratch_disk_must_be_named_twice(real_disk: Make, faults: Faults) -> None:
    disk = real_disk(log_dir="kafka")
    path = disk.log_dir
    assert f"not a scratch disk: to break {disk.device}" in faults.error("inject", "freeze", path)
    assert "is another path" in faults.error("inject", "freeze", path, "--yes-this-disk", disk.mount_point)
    assert writes(path)
    assert faults.status() == []


@root
@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.scratch_only])
def test_what_could_not_be_undone_for_certain_is_refused_on_such_a_disk(
    real_disk: Make, tmp_path: Path, name: str
) -> None:
    path = str(real_disk().mount_point)
    with pytest.raises(FaultsError, match=f"{name} is for scratch disks only"):
        foreign.find_target(FAULTS[name], path, confirmed=path, state_dir=tmp_path / "state")


@root
def test_a_disk_named_twice_is_broken_and_mended(real_disk: Make, tmp_path: Path) -> None:
    disk = real_disk(log_dir="kafka", size_bytes=16 << 20)
    path, state_dir = disk.log_dir, tmp_path / "state"
    mount = mount_above(path)
    (path / "meta.properties").write_text("version=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAEg\n")
    for name in [name for name, fault in FAULTS.items() if not fault.scratch_only]:
        target = foreign.find_target(FAULTS[name], str(path), confirmed=str(path), state_dir=state_dir)
        assert target == Target(path, disk.mount_point, "ext4", None, disk.device)
        undo(inject(name, target, state_dir=state_dir))
        assert writes(path), name
        assert "AAAAAAAAAAAAAAAAAAAAEg" in (path / "meta.properties").read_text()
        assert os.listdir(disk.mount_point) == ["kafka"]
        now = mount_above(path)
        assert (now.device, now.options, now.super_options) == (mount.device, mount.options, mount.super_options), name


@root
def test_a_path_that_is_not_there_is_one_clear_line(faults: Faults, tmp_path: Path) -> None:
    assert faults.error("inject", "eio", tmp_path / "x") == f"kjbod faults: {tmp_path}/x: no such directory"
    assert "nothing is injected there" in faults.error("undo", tmp_path / "x")


@root
def test_a_state_directory_that_cannot_be_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = Faults(tmp_path / "file" / "state").error("disk", "create", tmp_path / "disk")
    assert re.fullmatch(r"kjbod faults: .*/file/state: .*: choose another place with --state-dir", line)


# scratch disks --------------------------------------------------------------------------------------------------------


@root
def test_a_scratch_disk_outlives_the_command_and_goes_without_a_trace(faults: Faults, tmp_path: Path) -> None:
    path = tmp_path / "disk"
    said = faults("disk", "create", path, "--log-dir", "kafka", "--size", "32M").stdout
    assert f"made ext4 of 32 MiB in memory on {path}; log directory {path}/kafka" in said
    remove = said.rpartition("\nremove: ")[2]
    assert remove.endswith(f"faults --state-dir {faults.state_dir} disk remove {path}\n")
    assert writes(path / "kafka")
    [disk] = json.loads(faults("disk", "list", "--json").stdout)
    assert (disk["path"], disk["log_dir"], disk["fstype"], disk["alive"]) == (str(path), f"{path}/kafka", "ext4", True)
    with open(path / "kafka" / "file", "w"):
        assert f"in use by {os.getpid()} (" in faults.error("disk", "remove", path)
    server = DiskControl(Path(disk["directory"])).server_pid()
    assert "well" in faults("disk", "list").stdout
    syscalls.umount(path, syscalls.MNT_DETACH)
    assert "not mounted" in faults("disk", "list").stdout
    subprocess.run(["sh", "-c", remove], capture_output=True, check=True)
    assert not path.exists()
    wait_until(lambda: not Path(f"/proc/{server}").exists(), 10, "the server to end")
    assert os.listdir(faults.state_dir) == []


@root
@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
def test_a_scratch_disk_is_broken_and_mended_by_path_or_id(faults: Faults, tmp_path: Path, fstype: str) -> None:
    path = tmp_path / "disk"
    faults("disk", "create", path, "--fstype", fstype)
    said = faults("inject", "eio", path).stdout
    assert "the agent should say: failed, EIO" in said
    assert not writes(path)
    assert path.name in faults("disk", "list").stdout
    [injection] = faults.status()
    assert injection["undo"] in faults("status").stdout
    assert injection["undo"] in said
    faults("undo", path)
    assert writes(path)
    faults("inject", "full", path)
    faults("undo", faults.status()[0]["id"])
    assert writes(path)
    assert faults("status").stdout == "nothing is injected\n"
    assert faults("undo", "--all").stdout == "nothing is injected\n"


@root
def test_a_scratch_disk_hides_nothing(faults: Faults, tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "not an empty directory" in faults.error("disk", "create", tmp_path / "full")
    assert "something is mounted there already" in faults.error("disk", "create", scratch)
    assert "no such directory: make it first" in faults.error("disk", "create", tmp_path / "a" / "b")
    assert "exit code" in faults.error("disk", "create", tmp_path / "a", "--fstype", "btrfs", "--size", "8M")
    assert "not a scratch disk" in faults.error("disk", "remove", tmp_path / "full")
    assert not (tmp_path / "a").exists()


@root
def test_removing_a_scratch_disk_takes_its_fault_and_a_dead_server_with_it(faults: Faults, scratch: Path) -> None:
    faults("inject", "swapped-disk", scratch)
    [disk] = json.loads(faults("disk", "list", "--json").stdout)
    os.kill(DiskControl(Path(disk["directory"])).server_pid(), signal.SIGKILL)
    wait_until(lambda: "gone" in faults("disk", "list").stdout, 10, "the disk to be gone")
    assert "this scratch disk is gone" in faults.error("inject", "eio", scratch)
    faults("disk", "remove", "--all")
    assert os.listdir(faults.state_dir) == []
    assert mount_on(scratch) is None
    assert not scratch.exists()


# what is not ours stays as it is --------------------------------------------------------------------------------------


@root
def test_what_is_mounted_over_a_scratch_disk_by_now_is_neither_broken_nor_unmounted(
    faults: Faults, scratch: Path
) -> None:
    faults("inject", "eio", scratch)
    syscalls.mount("somebody", scratch, "tmpfs")
    (scratch / "data").touch()
    try:
        assert "somebody, which is not this disk, is mounted there: unmount it first" in faults.error("undo", scratch)
        faults("undo", "--all", "--forget")
        for name in ("freeze", "full", "wiped", "permissions", "umount"):
            line = faults.error("inject", name, scratch)
            assert "somebody, which is mounted there, is not the disk that is to break" in line
        faults("disk", "remove", scratch)
        assert [mount.source for mount in mounts_on(scratch)][-1] == "somebody"
        assert os.listdir(scratch) == ["data"]
    finally:
        syscalls.umount_all(scratch)
        scratch.rmdir()


@root
def test_what_is_mounted_in_place_of_a_dead_scratch_disk_stays_there(faults: Faults, scratch: Path) -> None:
    [disk] = json.loads(faults("disk", "list", "--json").stdout)
    server = DiskControl(Path(disk["directory"])).server_pid()
    os.kill(server, signal.SIGKILL)
    wait_until(lambda: "gone" in faults("disk", "list").stdout, 10, "the disk to be gone")
    syscalls.umount_all(scratch)
    syscalls.mount("somebody", scratch, "tmpfs")
    try:
        faults("disk", "remove", "--all")
        assert [mount.source for mount in mounts_on(scratch)] == ["somebody"]
    finally:
        syscalls.umount_all(scratch)
        scratch.rmdir()


@root
def test_what_is_mounted_below_a_scratch_disk_keeps_it(faults: Faults, scratch: Path) -> None:
    (scratch / "below").mkdir()
    syscalls.mount("somebody", scratch / "below", "tmpfs")
    try:
        faults("inject", "fs-shutdown", scratch)
        assert "below is mounted below it: unmount that first" in faults.error("undo", scratch)
        assert "below is mounted below it: unmount that first" in faults.error("disk", "remove", scratch)
        assert mount_on(scratch / "below") is not None
    finally:
        syscalls.umount_all(scratch / "below")
    faults("undo", scratch)
    assert writes(scratch)


@root
def test_a_disk_is_found_by_what_the_kernel_resolves_and_not_by_a_hidden_name(
    faults: Faults, tmp_path: Path, real_disk: Make
) -> None:
    (tmp_path / "a").mkdir()
    disk = real_disk(tmp_path / "a" / "b")
    syscalls.mount("somebody", tmp_path / "a", "tmpfs")
    try:
        (tmp_path / "a" / "b").mkdir()
        path = tmp_path / "a" / "b"
        assert mount_above(path).source == "somebody"
        assert "freeze does not exist on tmpfs" in faults.error("inject", "freeze", path, "--yes-this-disk", path)
    finally:
        syscalls.umount_all(tmp_path / "a")
    assert mount_above(disk.mount_point).source == str(disk.device)


@root
def test_a_scratch_disk_may_have_any_name(faults: Faults, tmp_path: Path) -> None:
    path = tmp_path / "-a b\n\r\t#\\040'$HOME\udcff "
    faults("disk", "create", path)
    faults("inject", "umount", path)
    faults("status")
    faults("disk", "list")
    faults("undo", path)
    assert writes(path)
    faults("disk", "remove", path)
    assert not path.exists()


@root
def test_a_scratch_disk_behind_a_symbolic_link_or_dots_is_the_same_disk(
    faults: Faults, tmp_path: Path, scratch: Path
) -> None:
    (tmp_path / "link").symlink_to(scratch)
    faults("inject", "eio", tmp_path / "link")
    faults("undo", tmp_path / "link")
    faults("inject", "eio", tmp_path / "x" / ".." / "disk")
    faults("undo", tmp_path / "link" / ".")
    assert writes(scratch)
    (tmp_path / "place").mkdir()
    (tmp_path / "other").symlink_to(tmp_path / "place")
    faults("disk", "create", tmp_path / "other")
    assert mount_on(tmp_path / "place") is not None
    faults("disk", "remove", tmp_path / "other")
    assert mount_on(tmp_path / "place") is None


@root
def test_a_state_directory_where_others_may_write_is_refused(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    state_dir.chmod(0o1777)
    (state_dir / "aaaaaa.fault").write_text("{}")
    for arguments in (["disk", "create", tmp_path / "disk"], ["undo", "--all"], ["disk", "remove", "--all"]):
        assert "others may write there" in Faults(state_dir).error(*arguments)
    assert not (tmp_path / "disk").exists()


@root
def test_a_torn_record_is_named_and_keeps_no_other_disk_broken(faults: Faults, scratch: Path) -> None:
    faults("inject", "eio", scratch, "--for", "1h")
    torn = faults.state_dir / "aaaaaa.fault"
    torn.write_bytes(b'{"id": "aaaa')
    try:
        assert "aaaaaa.fault: not a record" in faults.error("inject", "slow", scratch)
        assert "aaaaaa.fault: not a record" in faults.error("status")
        assert "aaaaaa.fault: not a record" in faults.error("undo", "--all")
        assert writes(scratch)
    finally:
        torn.unlink()
    wait_until(lambda: faults.left() == [], 10, "the watchdog to tidy up")


@root
def test_a_record_under_the_name_of_another_one_is_not_obeyed(faults: Faults, scratch: Path) -> None:
    faults("inject", "slow", scratch)
    [record] = faults.state_dir.glob("*.fault")
    copy = record.with_name("bbbbbb.fault")
    copy.write_bytes(record.read_bytes())
    assert "it has another id than its name" in faults.error("undo", "--all")
    copy.unlink()


@root
def test_a_full_state_directory_lets_nothing_be_injected_and_everything_be_undone(
    faults: Faults, tmp_path: Path, real_disk: Make
) -> None:
    state_disk, broken = real_disk(size_bytes=16 << 20), real_disk()
    there = Faults(state_disk.mount_point / "state")
    path = broken.mount_point
    there("inject", "over-mount", path, "--yes-this-disk", path)
    with pytest.raises(OSError, match="No space left"), open(state_disk.mount_point / "ballast", "wb", 0) as ballast:
        while ballast.write(bytes(4096)):
            pass
    other = real_disk().mount_point
    assert "No space left on device" in there.error("inject", "over-mount", other, "--yes-this-disk", other)
    assert writes(other)
    there("undo", "--all")
    assert writes(path)
    assert there.left() == []


@root
def test_undo_with_a_read_only_state_directory_mends_the_disk_and_says_what_is_left(
    faults: Faults, real_disk: Make
) -> None:
    state_disk, broken = real_disk(), real_disk()
    there = Faults(state_disk.mount_point / "state")
    path = broken.mount_point
    there("inject", "over-mount", path, "--yes-this-disk", path)
    syscalls.mount("none", state_disk.mount_point, "", syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
    assert "over-mount is undone, but its record cannot be removed" in there.error("undo", "--all")
    assert writes(path)
    syscalls.mount("none", state_disk.mount_point, "", syscalls.MS_REMOUNT)
    there("undo", "--all")
    assert there.left() == []


@root
def test_of_two_injectors_at_once_one_breaks_the_disk(faults: Faults, scratch: Path, processes: Processes) -> None:
    line = command(faults.state_dir, "inject", "slow", scratch)
    started = [processes.start(line, name="injector") for _ in range(4)]
    assert sorted(process.wait(60) for process in started) == [0, 1, 1, 1]
    assert all("slow is injected already" in process.stderr() for process in started if process.exit_code)
    assert len(faults.status()) == 1


# nothing stays broken -------------------------------------------------------------------------------------------------


@root
def test_undo_all_mends_everything_and_touches_nothing_else(faults: Faults, tmp_path: Path, real_disk: Make) -> None:
    foreign_disk = real_disk()
    for name in ("a", "b"):
        faults("disk", "create", tmp_path / name)
    faults("inject", "freeze", tmp_path / "a")
    faults("inject", "swapped-disk", tmp_path / "b")
    faults("inject", "over-mount", foreign_disk.mount_point, "--yes-this-disk", foreign_disk.mount_point)
    (foreign_disk.mount_point / "on the over-mount").touch()
    faults("undo", "--all")
    assert all(writes(path) for path in (tmp_path / "a", tmp_path / "b", foreign_disk.mount_point))
    assert faults.left() == []


@root
def test_a_fault_for_some_time_ends_by_itself_although_the_terminal_died(faults: Faults, scratch: Path) -> None:
    line = shlex.join(command(faults.state_dir, "inject", "eio", scratch, "--for", "2s"))
    shell = ["sh", "-c", f"{line}; echo typed; read x"]
    with subprocess.Popen(shell, stdin=-1, stdout=-1, start_new_session=True, text=True) as terminal:
        assert terminal.stdout is not None
        said = list(iter(terminal.stdout.readline, "typed\n"))
        os.killpg(terminal.pid, signal.SIGKILL)
    assert said[-1].startswith("undone by itself at ")
    wait_until(lambda: not faults.status(), 30, "the fault to end by itself")
    assert writes(scratch)
    wait_until(lambda: faults.left() == [], 10, "the watchdog to tidy up")


@root
def test_a_fault_for_some_time_may_be_undone_before(faults: Faults, scratch: Path) -> None:
    faults("inject", "eio", scratch, "--for", "1h")
    watchdogs = watchdogs_of(faults.state_dir)
    assert len(watchdogs) == 1
    faults("undo", "--all")
    wait_until(lambda: watchdogs_of(faults.state_dir) == [], 10, "the watchdog to end")


@root
def test_a_watchdog_that_is_told_to_end_undoes_at_once(faults: Faults, scratch: Path) -> None:
    faults("inject", "eio", scratch, "--for", "1h")
    os.kill(watchdogs_of(faults.state_dir)[0], signal.SIGTERM)
    wait_until(lambda: not faults.status(), 10, "the fault to be undone")
    assert writes(scratch)


def watchdogs_of(state_dir: Path) -> list[int]:
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = cmdline.read_bytes()
            if b"faults.watchdog" in text and str(state_dir).encode() in text:
                found.append(int(cmdline.parts[2]))
    return found


STOPS_HALF_WAY = """
import signal, sys
from msgspec import structs
from kjbod.faults import catalog, cli
fault = catalog.FAULTS["full"]
def deed(injection):
    fault.deed(injection)
    print("half way", flush=True)
    signal.pause()
catalog.FAULTS["full"] = structs.replace(fault, deed=deed)
sys.exit(cli.main(sys.argv[1:]))
"""


@contextlib.contextmanager
def in_the_middle(faults: Faults, scratch: Path) -> Iterator[subprocess.Popen[str]]:
    """An injector that does not come to the end of its deed."""
    line = command(faults.state_dir, "inject", "full", scratch)[2:]
    started = [sys.executable, "-P", "-c", STOPS_HALF_WAY, *line]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half way\n"
        yield process


@root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_in_the_middle_undoes(faults: Faults, scratch: Path, number: signal.Signals) -> None:
    with in_the_middle(faults, scratch) as process:
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
    assert (process.returncode, out, error) == (130, "", "kjbod faults: interrupted; nothing is injected\n")
    assert os.listdir(scratch) == []
    assert faults.left() == []


@root
def test_what_was_killed_in_the_middle_is_half_done_and_undone(faults: Faults, scratch: Path) -> None:
    with in_the_middle(faults, scratch) as process:
        process.kill()
    [injection] = faults.status()
    assert injection["state"] == "half done"
    assert os.listdir(scratch) != []
    faults("undo", injection["id"])
    assert os.listdir(scratch) == []


@root
def test_what_is_overdue_says_so(faults: Faults, scratch: Path) -> None:
    faults("inject", "slow", scratch, "--for", "1h")
    os.kill(watchdogs_of(faults.state_dir)[0], signal.SIGKILL)
    wait_until(lambda: not watchdogs_of(faults.state_dir), 10, "the end of the timer")
    [record] = faults.state_dir.glob("*.fault")
    values = json.loads(record.read_text())
    record.write_text(json.dumps({**values, "until_ms": time.time() * 1000 - 60_000}))
    [told] = faults.status(code=3)
    assert (told["state"], told["trouble"]) == ("overdue", "its timer is gone: run undo")


@root
def test_a_record_of_a_disk_that_is_no_more_can_be_dropped(faults: Faults, real_disk: Make) -> None:
    disk = real_disk()
    faults("inject", "permissions", disk.mount_point, "--yes-this-disk", disk.mount_point)
    disk.unmount()
    assert "(with --forget when it is no more)" in faults.error("undo", "--all")
    assert "forgotten, not undone" in faults("undo", "--all", "--forget").stdout
    assert faults.status() == []
