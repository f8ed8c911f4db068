"""``kjbod strays`` with an agent that answers, and without one on real directories."""

import fcntl
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli import main as cli
from kjbod.config import load_config
from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from kjbod.ids import Uuid
from kjbod_agent.admin import unattended
from kjbod_agent.replicas.stray_memory import Note, StrayMemory
from scripts.rig.cluster import format_node
from tests.cli.fake_agent import SERVER_PROPERTIES, configure, fake_agent

TOPIC_ID = "tvZBbOOtuXsXF9uKAMlVNQ"
HEX = "0123456789abcdef0123456789abcdef"
STRAY: dict[str, Any] = {
    "name": f"orders-0.{HEX}-stray",
    "topic": "orders",
    "partition": 0,
    "topic_id": TOPIC_ID,
    "directory": "/mnt/d1",
    "online": True,
    "reason": "its topic is not in the metadata",
    "since_ms": 1763744232000,
    "size": 1234567890,
}
ODD = STRAY | {"name": f"pay\x1b-1.{HEX}-stray", "topic": "pay\x1b", "topic_id": None, "directory": "/mnt/d 2"}
ODD |= {"partition": 1, "size": None, "since_ms": None}


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(configure(tmp_path))


# ------------------------------------------------------------------------------------------------------- with an agent


def test_strays_are_listed_with_all_that_is_known(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, strays=[[STRAY], [ODD]]):
        assert cli.run(["strays", "-c", config]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == [
        f"orders-0.{HEX}-stray",
        "  1.1 GiB, orders-0, in /mnt/d1",
        f"  topic id {TOPIC_ID}, since 2025-11-21 16:57:12Z",
        "  its topic is not in the metadata",
        f"pay\\x1b-1.{HEX}-stray",
        "  ?, pay\\x1b-1, in /mnt/d 2",
        "  topic id unknown",
        "  its topic is not in the metadata",
    ]
    assert max(map(len, shown)) <= 80


def test_strays_for_machines(tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_agent(tmp_path, strays=[[STRAY]]):
        assert cli.run(["strays", "--json", "-c", config]) == 0
    assert json.loads(capsys.readouterr().out) == {"agent": True, "strays": [STRAY], "unreadable": {}}


def test_no_strays_is_not_said_of_a_directory_that_cannot_be_looked_into(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unread = {"unread": {"/mnt/d2": "/mnt/d2 is unreadable: it may hold others"}}
    with fake_agent(tmp_path, strays=[unread]):
        assert cli.run(["strays", "-c", config]) == 1
        said = capsys.readouterr()
        assert cli.run(["strays", "remove", "--all", "--yes", "-c", config]) == 1
    assert said.out == "no strays in the other directories\n"
    assert said.err == "kjbod: /mnt/d2 is unreadable: it may hold others\n"
    assert "no strays in the other directories" in capsys.readouterr().out
    with fake_agent(tmp_path, strays=[[STRAY], unread]):
        assert cli.run(["strays", "--json", "-c", config]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["strays"], document["unreadable"]) == ([STRAY], unread["unread"])


def answering(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """What a person types."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_question_shows_what_goes_and_only_yes_removes(
    tmp_path: Path,
    config: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    code: int,
) -> None:
    answering(monkeypatch, typed)
    done = {"name": STRAY["name"], "directory": "/mnt/d1", "note": None, "error": None}
    with fake_agent(tmp_path, strays=[[STRAY, ODD]], strays_remove=[done]) as asked:
        assert cli.run(["strays", "remove", STRAY["name"], "-c", config]) == code
    captured = capsys.readouterr()
    assert "  its topic is not in the metadata\nRemove 1 stray, 1.1 GiB, for ever? [y/N]: " in captured.out
    if code == 0:
        assert captured.out.endswith(f"removed /mnt/d1/{STRAY['name']}\n")
        assert asked[-1] == {"op": "strays-remove", "node": 1, "strays": [["/mnt/d1", STRAY["name"]]]}
    else:
        assert captured.err == "kjbod: nothing was removed\n"
        assert [request["op"] for request in asked] == ["strays"]


def test_all_strays_are_removed_without_a_question_when_told_so(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = [
        {"name": STRAY["name"], "directory": "/mnt/d1", "note": f"removed /mnt/d1/{STRAY['name']}", "error": None},
        {"name": ODD["name"], "directory": "/mnt/d 2", "note": None, "error": "EIO at unlink"},
    ]
    with fake_agent(tmp_path, strays=[[STRAY, ODD]], strays_remove=done):
        assert cli.run(["strays", "remove", "--all", "--yes", "-c", config]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"removed /mnt/d1/{STRAY['name']}\n"
    assert captured.err == f"kjbod: /mnt/d 2/pay\\x1b-1.{HEX}-stray was not removed: EIO at unlink\n"


def test_a_name_in_two_directories_needs_its_directory(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = STRAY | {"directory": "/mnt/d2"}
    done = {"name": STRAY["name"], "directory": "/mnt/d2", "note": "restored it as orders-0", "error": None}
    with fake_agent(tmp_path, strays=[[STRAY, twin]], strays_restore=[done]) as asked:
        assert cli.run(["strays", "restore", STRAY["name"], "-c", config]) == 1
        assert capsys.readouterr().err == (
            f"kjbod: {STRAY['name']} is in /mnt/d1 and /mnt/d2: write the directory and the name\n"
        )
        assert cli.run(["strays", "restore", f"/mnt/d2/{STRAY['name']}", "-c", config]) == 0
    assert asked[-1]["strays"] == [["/mnt/d2", STRAY["name"]]]
    assert capsys.readouterr().out == "restored it as orders-0\n"


@pytest.mark.parametrize("name", ["none", "", "../../etc", "orders-0", "a\nb", "\udcff"])
def test_a_name_that_is_no_stray_removes_nothing(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    with fake_agent(tmp_path, strays=[[STRAY]]) as asked:
        assert cli.run(["strays", "remove", "--yes", "-c", config, "--", name, STRAY["name"]]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kjbod: there is no stray ")
    assert [request["op"] for request in asked] == ["strays"]


def test_very_many_strays_are_removed_in_several_requests(tmp_path: Path, config: str) -> None:
    many = [STRAY | {"name": f"orders-{n}.{HEX}-stray"} for n in range(60)]
    with fake_agent(tmp_path, strays=[many], strays_remove=[]) as asked:
        assert cli.run(["strays", "remove", "--all", "--yes", "-c", config]) == 0
    assert [len(request["strays"]) for request in asked[1:]] == [10] * 6


@pytest.mark.parametrize(
    "arguments",
    [
        ["strays"],
        ["strays", "remove", "-c", "F"],
        ["strays", "remove", "-c", "F", "x", "--all"],
        ["strays", "remove", "-c", "F", "x", "--json"],
        ["strays", "restore", "-c", "F"],
        ["strays", "-c", "F", "remove", "x"],
    ],
)
def test_arguments_of_strays_that_say_too_little_or_too_much(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert cli.run(arguments) == 2
    assert "Error: " in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------- without an agent


class Directories:
    """Two formatted log directories, and what is put into them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = str(root / "server.properties")
        (root / "state").mkdir()
        Path(self.config).write_text(SERVER_PROPERTIES.format(root=root))
        format_node(Path(self.config), "4L6g3nShT-eMCtK--X86sw")

    def put(self, directory: str, name: str, topic_id: str | None = TOPIC_ID) -> Path:
        """A replica directory with a segment of 1,000 bytes."""
        path = self.root / directory / name
        path.mkdir()
        (path / "00000000000000000000.log").write_bytes(bytes(1000))
        if topic_id is not None:
            (path / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}")
        return path

    def names(self, directory: str) -> set[str]:
        return {path.name for path in (self.root / directory).iterdir() if path.is_dir()}


@pytest.fixture
def disks(tmp_path: Path) -> Directories:
    return Directories(tmp_path)


@pytest.fixture
def holder(disks: Directories) -> Iterator[Callable[[str], None]]:
    """Lets another process hold a directory's lock, as a Kafka broker does."""
    holders: list[subprocess.Popen[bytes]] = []
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"

    def hold(directory: str) -> None:
        command = [sys.executable, "-c", code, f"{disks.root}/{directory}/.lock"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        holders.append(process)

    yield hold
    for process in holders:
        process.communicate(b"\n")


@pytest.mark.usefixtures("world")
def test_without_an_agent_the_disks_are_looked_at_and_the_memory_says_why(
    disks: Directories, capsys: pytest.CaptureFixture[str]
) -> None:
    disks.put("d1", f"orders-0.{HEX}-stray")
    disks.put("d1", "orders-1")
    disks.put("d2", f"with.dots-and-dashes-7.{HEX}-stray", topic_id=None)
    disks.put("d2", f"pay-0.{HEX}-delete")
    meta = (disks.root / "d1" / "meta.properties").read_text()
    (directory_id,) = [line.split("=")[1] for line in meta.splitlines() if line.startswith("directory.id=")]
    key = (Uuid.parse(directory_id), f"orders-0.{HEX}-stray")
    StrayMemory(disks.root / "state", 1).save({key: Note("its topic is not in the metadata", 1763744232000)})
    assert cli.run(["strays", "-c", disks.config]) == 0
    captured = capsys.readouterr()
    assert captured.err == (
        "kjbod: no agent or guard answers: the list shows the directories that end in -stray on the disks now\n"
    )
    assert captured.out.splitlines() == [
        f"orders-0.{HEX}-stray",
        f"  1.0 KiB, orders-0, in {disks.root}/d1",
        f"  topic id {TOPIC_ID}, since 2025-11-21 16:57:12Z",
        "  its topic is not in the metadata",
        f"with.dots-and-dashes-7.{HEX}-stray",
        f"  1000 B, with.dots-and-dashes-7, in {disks.root}/d2",
        "  topic id unknown",
    ]
    assert not list(disks.root.glob("d?/.lock"))  # looking takes no lock and makes no file


@pytest.mark.usefixtures("world")
def test_without_an_agent_a_stray_is_removed_and_nothing_else(
    disks: Directories, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"orders-0.{HEX}-stray"
    disks.put("d1", name)
    disks.put("d2", f"orders-1.{HEX}-stray")
    disks.put("d1", "orders-1")
    assert cli.run(["strays", "remove", name, "--yes", "-c", disks.config]) == 0
    assert capsys.readouterr().out == f"removed {disks.root}/d1/{name}\n"
    assert (disks.names("d1"), disks.names("d2")) == ({"orders-1"}, {f"orders-1.{HEX}-stray"})


@pytest.mark.usefixtures("world")
def test_without_an_agent_a_stray_gets_its_name_back(disks: Directories, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"orders-0.{HEX}-stray"
    disks.put("d2", name)
    assert cli.run(["strays", "restore", name, "-c", disks.config]) == 0
    assert disks.names("d2") == {"orders-0"}
    assert (disks.root / "d2" / "orders-0" / "00000000000000000000.log").stat().st_size == 1000


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("where", ["d1", "d2"])
def test_a_stray_is_not_restored_beside_a_replica_of_its_name(
    disks: Directories, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    name = f"orders-0.{HEX}-stray"
    disks.put("d1", name)
    disks.put(where, "orders-0")
    assert cli.run(["strays", "restore", name, "-c", disks.config]) == 1
    assert f"there is a orders-0 in {disks.root}/{where}" in capsys.readouterr().err
    assert name in disks.names("d1")


@pytest.mark.usefixtures("world")
def test_a_stray_whose_name_was_cut_is_left_to_the_agent(
    disks: Directories, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{'x' * (255 - len(f'-0.{HEX}-stray'))}-0.{HEX}-stray"
    disks.put("d1", name)
    assert cli.run(["strays", "restore", name, "-c", disks.config]) == 1
    assert "only an agent that runs knows the whole name" in capsys.readouterr().err
    assert disks.names("d1") == {name}


@pytest.mark.usefixtures("world")
def test_beside_a_broker_strays_are_listed_and_neither_removed_nor_restored(
    disks: Directories, holder: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"orders-0.{HEX}-stray"
    disks.put("d1", name)
    holder("d1")
    assert cli.run(["strays", "-c", disks.config]) == 0
    assert name in capsys.readouterr().out
    for arguments in (["remove", "--yes"], ["restore"]):
        assert cli.run(["strays", *arguments, name, "-c", disks.config]) == 1
        (*_, line) = capsys.readouterr().err.splitlines()
        assert line.endswith(
            f"{disks.root}/d1 is in use: another process (a Kafka broker or an agent) holds "
            f"{disks.root}/d1/.lock: stop it first"
        )
    assert disks.names("d1") == {name}


@pytest.mark.usefixtures("world")
def test_what_was_shown_and_is_another_one_by_now_is_left(disks: Directories) -> None:
    path = disks.put("d1", f"orders-0.{HEX}-stray")
    config = load_config(disks.config)
    (shown,) = unattended.survey(config).strays
    (path / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAZQ")
    ((_, error),) = unattended.remove(config, [shown]).items()
    assert error is not None
    assert "ESTALE" in error
    assert (path / "00000000000000000000.log").exists()


@pytest.mark.usefixtures("world")
def test_the_locks_are_free_again_after_the_command(disks: Directories) -> None:
    name = f"orders-0.{HEX}-stray"
    disks.put("d1", name)
    assert cli.run(["strays", "remove", name, "--yes", "-c", disks.config]) == 0
    with open(disks.root / "d1" / ".lock", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.usefixtures("world")
def test_a_directory_that_is_not_there_is_one_line_and_the_others_are_listed(
    disks: Directories, capsys: pytest.CaptureFixture[str]
) -> None:
    disks.put("d1", f"orders-0.{HEX}-stray")
    (disks.root / "d2").rename(disks.root / "elsewhere")
    assert cli.run(["strays", "-c", disks.config]) == 1
    captured = capsys.readouterr()
    assert f"orders-0.{HEX}-stray" in captured.out
    assert captured.err.splitlines()[-1].startswith(f"kjbod: {disks.root}/d2: ENOENT")
    assert not (disks.root / "d2").exists()
    assert cli.run(["strays", "remove", f"orders-0.{HEX}-stray", "--yes", "-c", disks.config]) == 0
    assert cli.run(["strays", "remove", "--all", "--yes", "-c", disks.config]) == 1


@pytest.mark.usefixtures("as_root")
def test_a_disk_that_hangs_costs_its_time_and_one_line(
    tmp_path: Path,
    real_disk: Callable[..., RealDisk],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    disk = real_disk(tmp_path / "d2")
    disks = Directories(tmp_path)
    disks.put("d1", f"orders-0.{HEX}-stray")
    disk.unmount()
    disk.mount()  # nothing of it is in memory now
    monkeypatch.setattr(unattended, "TIMEOUT_MS", 4000)
    disk.set(FaultMode.HANG)
    assert cli.run(["strays", "-c", disks.config]) == 1
    captured = capsys.readouterr()
    assert f"orders-0.{HEX}-stray" in captured.out
    assert captured.err.splitlines()[-1].startswith(f"kjbod: {tmp_path}/d2: no answer for ")
