"""Commands without ``-c``: which file they use, and the line where no file is known."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli import broker_files, broker_scan
from kjbod.cli import main as cli
from kjbod.cli.broker_files import decide, find
from kjbod.errors import ConfigError
from tests.cli.fake_agent import configure, fake_agent

DIRECTORY: dict[str, Any] = {
    "path": "/d1",
    "directory_id": None,
    "device": None,
    "model": None,
    "serial": None,
    "verdict": "online",
    "remembered": False,
    "replicas": 0,
    "leaders": 0,
    "future": 0,
    "since_ms": None,
    "total_bytes": None,
    "usable_bytes": None,
    "file_system": None,
    "error": None,
    "role": "log",
    "online": True,
    "cordoned": False,
}
RELEASED = {"path": "/d1", "means": "mask", "state": "masked", "cluster_id": "c"}
ASKING: list[tuple[list[str], dict[str, Any]]] = [
    (["log-dirs", "--json"], {"log_dirs": [{"directory": DIRECTORY}]}),
    (["guard", "release", "/d1", "--json"], {"guard_release": RELEASED}),
    (["guard", "restore", "--json"], {"guard_restore": {"partitions": 0, "restored": 0, "evicted": 0, "reason": ""}}),
    (["status", "--json"], {"status": {"role": "guard"}}),
    (["guard", "history", "--json"], {}),
]


class Proc:
    """A proc file system with as many processes as a test needs; process 1 is there."""

    def __init__(self, root: Path) -> None:
        self.path = root / "proc"
        self.process(1, ["/sbin/init"])

    def process(self, pid: int, arguments: Sequence[str], *, cwd: Path | str = "/", root: Path | str = "/") -> None:
        of = self.path / str(pid)
        of.mkdir(parents=True)
        (of / "cmdline").write_bytes(b"".join(os.fsencode(one) + b"\0" for one in arguments))
        (of / "cwd").symlink_to(cwd)
        (of / "root").symlink_to(root)

    def broker(self, pid: int, *rest: str, cwd: Path | str = "/", root: Path | str = "/") -> None:
        arguments = ["/usr/bin/java", "-Xmx1G", "-cp", "/opt/kafka/libs/*", "kafka.Kafka", *rest]
        self.process(pid, arguments, cwd=cwd, root=root)

    def found(self) -> tuple[int, str]:
        return decide(broker_scan.scan(self.path))

    def refusal(self) -> str:
        with pytest.raises(ConfigError) as caught:
            self.found()
        (line,) = caught.value.problems
        assert caught.value.exit_code == 78
        assert "give -c FILE, or set KJBOD_CONFIG" in line
        return line


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Proc:
    """A host without brokers, and without ``/etc/kjbod/guard.properties``."""
    made = Proc(tmp_path)
    monkeypatch.setattr(broker_files, "PROC", made.path)
    monkeypatch.setattr(broker_files, "OWN_FILE", tmp_path / "etc" / "guard.properties")
    monkeypatch.delenv("KJBOD_CONFIG", raising=False)
    return made


def file_at(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("node.id=1\n")
    return path


# ------------------------------------------------------------------------------------------------ the broker that runs


def test_the_file_of_the_broker_that_runs_here_is_found(proc: Proc, tmp_path: Path) -> None:
    config = file_at(tmp_path / "server.properties")
    proc.process(5, ["grep", "kafka.Kafka", "/elsewhere"])
    proc.process(6, ["sudo", "-u", "kafka", "java", "kafka.Kafka", "/elsewhere"])
    proc.process(8, [])
    proc.broker(7, str(config), "--override", "node.id=1")
    assert proc.found() == (7, str(config))


@pytest.mark.parametrize("written", ["config/server.properties", "./config/server.properties"])
def test_a_relative_path_is_below_the_working_directory_of_the_broker(proc: Proc, tmp_path: Path, written: str) -> None:
    config = file_at(tmp_path / "kafka" / "config" / "server.properties")
    proc.broker(7, written, cwd=tmp_path / "kafka")
    assert proc.found() == (7, str(config))


def test_a_path_with_dots_and_links_leads_to_the_same_file_as_for_the_broker(proc: Proc, tmp_path: Path) -> None:
    config = file_at(tmp_path / "releases" / "4.3" / "config" / "server.properties")
    (tmp_path / "releases" / "4.3" / "bin").mkdir()
    (tmp_path / "kafka").symlink_to(tmp_path / "releases" / "4.3" / "bin")
    proc.broker(7, f"{tmp_path}/kafka/../config/server.properties")
    assert proc.found() == (7, str(config)), "not below the directory that has the link"


def test_a_file_below_the_root_directory_of_the_broker_is_found_from_outside(proc: Proc, tmp_path: Path) -> None:
    jail = tmp_path / "jail"
    real = file_at(jail / "srv" / "server.properties")
    (jail / "etc").mkdir()
    (jail / "etc" / "server.properties").symlink_to("/srv/server.properties")
    proc.broker(7, "etc/server.properties", cwd=jail, root=jail)
    assert proc.found() == (7, str(real))


def test_a_broker_that_cannot_end_and_its_successor_have_one_file(proc: Proc, tmp_path: Path) -> None:
    config = file_at(tmp_path / "server.properties")
    proc.broker(7, str(config))
    proc.broker(9, "server.properties", cwd=tmp_path)
    assert proc.found() == (7, str(config))


@pytest.mark.parametrize(
    ("start", "options"),
    [
        (["/opt/kjbod/bin/python3", "/opt/kjbod/bin/kjbod"], ["-c", "{broker}", "--guard-config", "{own}", "--act"]),
        (["/usr/bin/kjbod"], ["--observe", "--guard-config={own}", "--config={broker}"]),
        (["kjbod"], ["--config", "{broker}"]),
    ],
)
def test_the_files_of_a_stopped_broker_are_those_of_its_guard(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: list[str], options: list[str]
) -> None:
    broker, own = file_at(tmp_path / "server.properties"), file_at(tmp_path / "own.properties")
    written = [one.format(broker=broker, own=own) for one in options]
    proc.process(5, [*start, "guard", "run", *written])
    proc.process(6, [*start, "guard", "check", "-c", "/elsewhere"])
    proc.process(7, ["vi", "kjbod", "guard", "run", "-c", "/elsewhere"])
    monkeypatch.setattr(broker_files, "_scan", lambda: broker_scan.scan(proc.path))
    found = find(None, None, {})
    assert found.broker == broker
    assert found.own == (own if any("own" in one for one in options) else None)
    assert found.note.startswith(f"using {broker} (of the guard, process 5; no broker runs)")


def test_guards_of_two_brokers_and_a_guard_whose_file_is_gone_are_no_guess(proc: Proc, tmp_path: Path) -> None:
    proc.process(5, ["kjbod", "guard", "run", "-c", str(tmp_path / "gone")])
    proc.process(6, ["kjbod", "guard", "run", "-c"])
    assert proc.refusal().startswith("no Kafka broker runs on this host")
    for number in (7, 8):
        file = file_at(tmp_path / f"{number}.properties")
        proc.process(number, ["kjbod", "guard", "run", "-c", str(file)])
    assert broker_files.guard_in(broker_scan.scan(proc.path)) is None


# ----------------------------------------------------------------------------------------------- one line, and no guess


def test_no_broker_runs_here(proc: Proc) -> None:
    assert proc.refusal() == "no Kafka broker runs on this host: give -c FILE, or set KJBOD_CONFIG"


def test_several_brokers_are_listed_with_their_files(proc: Proc, tmp_path: Path) -> None:
    one, other = file_at(tmp_path / "a.properties"), file_at(tmp_path / "b.properties")
    proc.broker(7, str(one))
    proc.broker(9, str(other))
    line = proc.refusal()
    assert line.startswith("2 Kafka brokers run on this host")
    assert f"process 7: {one}" in line and f"process 9: {other}" in line


def test_a_broker_without_a_file_on_its_command_line(proc: Proc) -> None:
    proc.broker(7, "--override", "a=b")
    assert "process 7) has no file on its command line" in proc.refusal()


def test_a_proc_that_is_not_there(proc: Proc, tmp_path: Path) -> None:
    (tmp_path / "proc").rename(tmp_path / "gone")
    assert f"{proc.path}: No such file or directory" in proc.refusal()


@pytest.mark.parametrize("hidepid", [1, 2])
def test_a_proc_that_hides_other_processes(proc: Proc, hidepid: int) -> None:
    """hidepid=1 closes the files of other users' processes, hidepid=2 hides their directories."""
    (proc.path / "1").rename(proc.path.parent / "1")
    if hidepid == 1:
        (proc.path / "1" / "cmdline").mkdir(parents=True)  # root may read what is only closed
    assert "shows only processes of this user (hidepid)" in proc.refusal()
    assert "as root" in proc.refusal()


def test_a_file_that_was_removed_since(proc: Proc, tmp_path: Path) -> None:
    proc.broker(7, f"{tmp_path}/server.properties")
    assert f"was started with {tmp_path}/server.properties, and no such file is there now" in proc.refusal()


@pytest.mark.parametrize("hidden", ["cwd", "root"])
def test_a_broker_of_another_user(proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    file_at(tmp_path / "server.properties")
    proc.broker(7, "server.properties", cwd=tmp_path)
    read = os.readlink

    def readlink(path: Any) -> str:
        if str(path).endswith(f"/7/{hidden}"):
            raise PermissionError(13, "Permission denied")
        return str(read(path))

    monkeypatch.setattr(os, "readlink", readlink)
    assert "run the command as the user of the broker or as root" in proc.refusal()


@pytest.mark.parametrize("here", [True, False])
def test_a_file_in_a_container_is_not_that_of_the_same_path_here(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """The kernel shows ``/`` as the root of a process that has a mount namespace of its own."""
    container = tmp_path / "container"
    path = tmp_path / "etc" / "server.properties"
    file_at(Path(f"{container}{path}"))
    if here:
        file_at(path)
    proc.broker(7, str(path), root=container)
    read = os.readlink
    monkeypatch.setattr(os, "readlink", lambda one: "/" if str(one).endswith("/7/root") else read(one))
    assert f"runs with {path} in a container" in proc.refusal()


def test_a_file_that_is_mounted_into_a_container_at_the_same_path_is_the_file(
    proc: Proc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container = tmp_path / "container"
    path = file_at(tmp_path / "etc" / "server.properties")
    inside = Path(f"{container}{path}")
    inside.parent.mkdir(parents=True)
    inside.hardlink_to(path)
    proc.broker(7, str(path), root=container)
    read = os.readlink
    monkeypatch.setattr(os, "readlink", lambda one: "/" if str(one).endswith("/7/root") else read(one))
    assert proc.found() == (7, str(path))


def test_links_without_end_are_no_file(proc: Proc, tmp_path: Path) -> None:
    (tmp_path / "server.properties").symlink_to("server.properties")
    proc.broker(7, f"{tmp_path}/server.properties")
    proc.refusal()


# ------------------------------------------------------------------------------------------------------------ the order


def test_the_option_counts_first_and_nothing_else_is_read(proc: Proc, tmp_path: Path) -> None:
    file_at(broker_files.OWN_FILE)
    files = find(Path("given"), None, {"KJBOD_CONFIG": "variable"})
    assert (files.broker, files.own, files.note) == (Path("given"), None, "")


def test_the_variable_counts_before_the_broker_that_runs(proc: Proc) -> None:
    files = find(None, None, {"KJBOD_CONFIG": "/etc/a"})
    assert (files.broker, files.own, files.note) == (Path("/etc/a"), None, "using /etc/a (KJBOD_CONFIG)")


def test_own_keys_come_from_the_option_or_from_the_usual_file(proc: Proc) -> None:
    own = file_at(broker_files.OWN_FILE)
    files = find(None, None, {"KJBOD_CONFIG": "/etc/a"})
    assert (files.own, files.note) == (own, f"using /etc/a (KJBOD_CONFIG) and {own}")
    assert find(None, Path("/b"), {"KJBOD_CONFIG": "/etc/a"}).own == Path("/b")


@pytest.mark.usefixtures("world")
def test_an_empty_variable_is_none_and_the_processes_are_asked(proc: Proc, tmp_path: Path) -> None:
    config = file_at(tmp_path / "new\nline.properties")
    proc.broker(7, str(config))
    files = find(None, None, {"KJBOD_CONFIG": ""})
    assert files.broker == config
    assert files.note == f"using {tmp_path}/new\\nline.properties (of the Kafka broker, process 7)"


@pytest.mark.usefixtures("world")
def test_a_kernel_that_does_not_answer_is_one_line(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    (proc.path / "2").mkdir()
    os.mkfifo(proc.path / "2" / "cmdline")
    monkeypatch.setattr(broker_files, "SCAN_TIMEOUT_S", 0.5)
    with pytest.raises(ConfigError, match=r"cannot be read within .* give -c FILE"):
        find(None, None, {})


@pytest.mark.parametrize(("arguments", "answers"), ASKING, ids=lambda one: " ".join(one))
def test_each_command_says_on_stderr_which_file_it_uses(
    proc: Proc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    answers: dict[str, Any],
) -> None:
    config = configure(tmp_path)
    monkeypatch.setenv("KJBOD_CONFIG", str(config))
    with fake_agent(tmp_path, **answers):
        assert cli.run(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == f"kjbod: using {config} (KJBOD_CONFIG)\n"
    assert captured.out == "" or captured.out.startswith("{"), "JSON stays clean"
    with fake_agent(tmp_path, **answers):
        assert cli.run([*arguments, "-c", str(config)]) == 0
    assert capsys.readouterr() == (captured.out, ""), "the option says the same, and no line"


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("arguments", [*(one for one, _ in ASKING), ["guard", "check"], ["guard", "check", "--gate"]])
def test_each_command_without_a_broker_is_one_line(
    proc: Proc, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.run(arguments) == 78
    assert capsys.readouterr() == ("", f"kjbod: {proc.refusal()}\n")


@pytest.mark.usefixtures("world")
def test_a_check_without_a_broker_is_unknown(proc: Proc, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["status", "--check"]) == 3
    assert capsys.readouterr().out == f"UNKNOWN: {proc.refusal()}\n"
