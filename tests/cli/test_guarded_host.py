"""Commands on the host of a Kafka broker, with ``--guard-config``: they speak of the guard, and of no agent."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kjbod.cli import main as cli
from kjbod.output import colours
from kjbod.problems import Code, Problem
from kjbod.runtime.control_socket import ControlError
from kjbod_guard.instead import INSTEAD, refusal
from tests.cli.fake_agent import fake_agent
from tests.guard.test_answers import answer
from tests.guard.test_problems import picture

SERVER_PROPERTIES = """\
process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs={root}/d1,{root}/d2
"""
STRAY: dict[str, Any] = {
    "name": "orders-0.0123456789abcdef0123456789abcdef-stray",
    "topic": "orders",
    "partition": 0,
    "topic_id": None,
    "directory": "/mnt/d1",
    "online": True,
    "reason": "the broker set it aside at a start",
    "since_ms": None,
    "size": 1234,
}
ASKING = [
    ["status"],
    ["log-dirs"],
    ["dirs", "add", "/d1"],
    ["move", "--list"],
    ["move", "orders-0", "--to", "/d2"],
    ["guard", "release", "/d1"],
    ["guard", "restore"],
]


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Arguments that name the broker's file and the guard's."""
    (tmp_path / "state").mkdir()
    config, own = tmp_path / "server.properties", tmp_path / "guard.properties"
    config.write_text(SERVER_PROPERTIES.format(root=tmp_path))
    own.write_text(f"kjbod.state.dir={tmp_path}/state\n")
    return ["-c", str(config), "--guard-config", str(own)]


def names_an_agent(text: str) -> bool:
    return "kjbod agent" in text or "kjbod-agent" in text


@pytest.mark.parametrize("arguments", ASKING)
def test_without_a_guard_a_line_says_how_to_start_the_guard(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code = cli.run([*arguments, *files])
    captured = capsys.readouterr()
    assert code == (0 if arguments == ["log-dirs"] else 69)
    assert captured.err.splitlines()[0] == (
        f"kjbod: no guard answers at {tmp_path}/state/control.sock (kjbod.state.dir={tmp_path}/state of "
        f"{tmp_path}/guard.properties): start it with `kjbod guard run {' '.join(files)}` or systemctl start "
        "kjbod-guard"
    )
    assert not names_an_agent(captured.out + captured.err)


def test_a_check_without_a_guard_is_critical_and_says_how_to_start_the_guard(
    files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["status", "--check", *files]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("CRITICAL: no guard answers at") and "`kjbod guard run" in line
    assert not names_an_agent(line)


@pytest.mark.parametrize(
    ("arguments", "operation"),
    [(["dirs", "add", "/d1"], "dirs-add"), (["move", "--list"], "moves"), (["move", "a-0", "--to", "/d2"], "move")],
)
def test_what_a_guard_does_not_do_is_refused_with_the_tool_of_kafka(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], operation: str
) -> None:
    with fake_agent(tmp_path, **{operation.replace("-", "_"): ControlError(refusal(operation))}):
        assert cli.run([*arguments, *files]) == 1
    assert capsys.readouterr().err == (
        f"kjbod: this host runs a guard beside a Kafka broker. Use instead: {INSTEAD[operation]}\n"
    )


def test_strays_of_a_guarded_broker_are_listed_with_the_disks_that_were_not(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    unread = {"role": "guard", "unread": {"/mnt/d2": "not listed: /mnt/d2 is failed"}}
    with fake_agent(tmp_path, strays=[[STRAY], unread]):
        assert cli.run(["strays", *files]) == 1
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        STRAY["name"],
        "  1.2 KiB, orders-0, in /mnt/d1",
        "  topic id unknown",
        "  the broker set it aside at a start",
    ]
    assert captured.err == "kjbod: not listed: /mnt/d2 is failed\n"


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("arguments", [["remove", "--all", "--yes"], ["restore", STRAY["name"]]])
def test_strays_of_a_guarded_broker_are_neither_removed_nor_restored(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], told: bool
) -> None:
    """Also where nobody gives ``--guard-config``, and the guard keeps its keys in the broker's file."""
    config = tmp_path / "server.properties"
    config.write_text(f"{config.read_text()}kjbod.state.dir={tmp_path}/state\n")
    with fake_agent(tmp_path, strays=[[STRAY], {"role": "guard", "unread": {}}]) as asked:
        assert cli.run(["strays", *arguments, *(files if told else files[:2])]) == 1
    assert {request["op"] for request in asked} <= {"strays"}, "nothing else was asked for"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"kjbod: {refusal(f'strays-{arguments[0]}')}"
    assert "restart the broker" in line or "kafka-reassign-partitions.sh" in line
    assert not names_an_agent(line)


@pytest.mark.usefixtures("world")
def test_without_a_guard_strays_come_from_the_disks_and_nothing_is_removed(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        (tmp_path / f"d{number}").mkdir()
    stray = tmp_path / "d1" / STRAY["name"]
    stray.mkdir()
    assert cli.run(["strays", *files]) == 0
    captured = capsys.readouterr()
    assert STRAY["name"] in captured.out
    assert (
        captured.err == "kjbod: no guard answers: the list shows the directories that end in -stray on the disks now\n"
    )
    assert cli.run(["strays", "remove", "--all", "--yes", *files]) == 1
    assert stray.is_dir()
    assert not names_an_agent(captured.out + captured.err + capsys.readouterr().err)


HUNG = Problem(Code.DISK_HUNG, "/mnt/d1 does not answer, and Kafka has not noticed", "/mnt/d1")


@pytest.mark.parametrize("command", [["status"], ["guard", "status"]])
def test_a_status_leads_with_codes_and_next_commands_that_have_the_same_files(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    told = asyncio.run(answer(picture(HUNG)))
    with fake_agent(tmp_path, status=told):
        assert cli.run([*command, *files]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert cli.run([*command, "--json", *files]) == 0
        document = json.loads(capsys.readouterr().out)
        assert cli.run([*command, "--check", *files]) == 2
    assert lines[0] == f"CRITICAL: {HUNG.text}" == capsys.readouterr().out.strip()
    assert lines[1].split()[0] == "DISK_HUNG" and lines[2] == "NEXT:"
    assert lines[3].startswith(f"   1. kjbod guard history {' '.join(files)}")
    assert "\x1b" not in "".join(lines), "plain in a pipe"
    assert document["problems"] == [{"code": "DISK_HUNG", "text": HUNG.text, "path": "/mnt/d1"}]


def test_next_commands_have_no_options_where_none_were_typed(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KJBOD_CONFIG", files[1])
    monkeypatch.setattr("kjbod.cli.broker_files.OWN_FILE", Path(files[3]))
    with fake_agent(tmp_path, status=asyncio.run(answer(picture(HUNG)))):
        assert cli.run(["status"]) == 0
    captured = capsys.readouterr()
    assert "1. kjbod guard history  #" in captured.out
    assert captured.err == f"kjbod: using {files[1]} (KJBOD_CONFIG) and {files[3]}\n"


def test_a_check_of_a_guard_that_cannot_be_made_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["guard", "status", "--check", "-c", "/nonexistent"]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN: /nonexistent: No such file")


@pytest.mark.parametrize(
    ("terminal", "environment", "shown"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {}, False),
        (False, {"TERM": "xterm"}, False),
    ],
)
def test_colours_are_for_a_terminal_that_nobody_wants_plain(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], shown: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert colours() is shown
