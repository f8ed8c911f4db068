"""The commands with standard streams that are full or closed, as under cron, and ``status --check`` mistyped."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kjbod.cli import main as cli
from tests.cli.fake_agent import configure, fake_agent
from tests.cli.test_control_commands import STATUS

FULL = "kjbod: the output is not complete: standard output: No space left on device\n"
OK = STATUS | {"condition": {"level": "ok", "code": 0, "text": "OK", "reasons": []}}
CRITICAL = STATUS | {"condition": {"level": "critical", "code": 2, "text": "CRITICAL: fenced", "reasons": ["fenced"]}}


def kjbod(redirections: str, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of the command, started by a shell with these redirections."""
    run = "from kjbod.cli.main import main; main()"
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", run, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )
    return done.returncode, done.stderr


@pytest.fixture
def config(tmp_path: Path) -> str:
    return str(configure(tmp_path))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(("redirections", "told"), [(">/dev/full", FULL), (">&-", ""), (">/dev/full 2>/dev/full", "")])
def test_a_check_has_its_true_exit_code_also_where_its_line_cannot_be_written(
    tmp_path: Path, config: str, redirections: str, told: str
) -> None:
    for answer, code in ((OK, 0), (CRITICAL, 2)):
        with fake_agent(tmp_path, status=answer):
            assert kjbod(redirections, "status", "--check", "-c", config) == (code, told)


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--check"],
        ["status", "--check", "--bogus", "-c", "{config}"],
        ["status", "--check", "-c", "{config}", "extra"],
        ["status", "-c", "--check"],
        ["statsu", "--check", "-c", "{config}"],
        ["--verbose", "status", "--check", "-c", "{config}"],
    ],
)
def test_a_check_with_wrong_arguments_is_unknown_and_pages_nobody(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    given = [argument.format(config=config) for argument in arguments]
    assert cli.run(given) == 3
    captured = capsys.readouterr()
    assert (captured.err, captured.out.count("\n")) == ("", 1)
    assert captured.out.startswith("UNKNOWN: ")
    assert cli.run([*given, "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["code"] == 3


def test_a_check_of_an_agent_that_answers_something_else_is_unknown(
    tmp_path: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_agent(tmp_path, status={"node": 1}):
        assert cli.run(["status", "--check", "-c", config]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN: internal error: KeyError: 'condition'")


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "arguments", [["features", "version-mapping"], ["version-mapping"], ["log-dirs", "-c", "{config}"], ["--help"]]
)
def test_a_full_output_is_one_line_and_no_bug(config: str, arguments: list[str]) -> None:
    code, told = kjbod(">/dev/full", *(argument.format(config=config) for argument in arguments))
    assert code == 1
    assert told.endswith(FULL)
    assert "internal error" not in told


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("command", [["status"], ["move", "--list"], ["move", "--watch"]])
def test_commands_run_without_standard_streams(tmp_path: Path, config: str, command: list[str]) -> None:
    with fake_agent(tmp_path, status=OK, moves=[{"moves": [], "ended": [], "all": {}}]):
        assert kjbod("<&- >&-", *command, "-c", config) == (0, "")
        assert kjbod("<&- >&- 2>&-", *command, "-c", config) == (0, "")


@pytest.mark.usefixtures("world")
def test_complaints_that_nobody_can_read_change_no_exit_code(config: str) -> None:
    assert kjbod("2>/dev/full", "log-dirs", "-c", config) == (0, "")
    assert kjbod("2>/dev/full", "log-dirs", "--nothing") == (2, "")
    assert kjbod("2>/dev/full", "random-uuid", "x") == (1, "")
