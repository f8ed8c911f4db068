"""The ``kjbod`` command: one line for each mistake, exit codes, nothing imported that is not needed."""

import subprocess
import sys
import types
from pathlib import Path

import click
import pytest

from kjbod import __version__
from kjbod.cli import main as cli
from kjbod.errors import ConfigError, StorageError
from kjbod.ids import Uuid, is_reserved

COMMANDS = [
    *("agent", "cluster", "config", "controller", "dirs", "faults", "feature-dependencies", "features", "fleet"),
    *("format", "guard", "info", "log-dirs", "metadata", "move", "random-uuid", "server", "status", "strays"),
    *("top", "version-mapping"),
]
OURS = ("kjbod_agent", "kjbod_controller_stub", "kjbod_guard", "kjbod_host")
HEAVY = (*OURS, "pyspark", "kio", "structlog", "asyncio", "uvloop")
BROKER = """\
process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:9093
controller.listener.names=CONTROLLER
log.dirs={root}/d1
"""


@pytest.fixture
def broker_file(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(BROKER.format(root=tmp_path))
    return path


def stand_in(monkeypatch: pytest.MonkeyPatch, package: str, name: str, **functions: object) -> None:
    """Put a module in the place of an application's."""
    module = types.ModuleType(f"{package}.{name}")
    for function_name, function in functions.items():
        setattr(module, function_name, function)
    monkeypatch.setitem(sys.modules, f"{package}.{name}", module)
    monkeypatch.setattr(f"{package}.{name}", module, raising=False)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"kjbod {__version__}\n"


def test_help_lists_all_commands_and_each_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    listed = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command}" in listed
        assert cli.run([command, "-h"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["nope"], 2),
        (["agent"], 2),
        (["controller", "--bogus"], 2),
        (["fleet", "report"], 2),
        (["info"], 1),
        (["format", "-c", "x"], 1),
        (["random-uuid", "x"], 1),
        (["version-mapping", "--bogus"], 1),
        (["feature-dependencies"], 1),
        (["format", "-c", "x", "-t", "y", "-s", "-I", "z"], 1),
    ],
)
def test_wrong_arguments_are_told_on_stderr_and_storage_commands_end_with_one_as_kafkas(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    assert cli.run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error: " in captured.err


def test_flags_of_format_that_exclude_each_other_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["format", "-c", "x", "-t", "y", "-s", "-N"]) == 1
    assert "argument --no-initial-controllers/-N: not allowed with argument --standalone/-s" in capsys.readouterr().err


def test_random_uuid_prints_one_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["random-uuid"]) == 0
    text = capsys.readouterr().out
    assert len(text) == 23
    assert not is_reserved(Uuid.parse(text.strip()))


def test_format_and_info_through_the_command(
    broker_file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.run(["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(broker_file)]) == 0
    assert f"Formatting metadata directory {tmp_path}/d1" in capsys.readouterr().out
    assert cli.run(["info", "-c", str(broker_file)]) == 0
    assert cli.run(["format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", str(broker_file)]) == 1
    captured = capsys.readouterr()
    assert captured.err == (
        f"kjbod: Log directory {tmp_path}/d1 is already formatted. "
        "Use --ignore-formatted to ignore this directory and format the others.\n"
    )


def test_arguments_may_come_from_a_file(broker_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "arguments").write_text(f"-c\n{broker_file}\n")
    assert cli.run(["info", f"@{tmp_path}/arguments"]) == 1
    assert f"{tmp_path}/d1 does not exist" in capsys.readouterr().out
    assert cli.run(["info", f"@{tmp_path}/none"]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_every_mistake_in_a_configuration_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.properties"
    path.write_text("num.partitions=x\nkjbod.rol=y\n")
    assert cli.run(["info", "-c", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith(f"kjbod: {path}: ") for line in lines)


@pytest.mark.parametrize("kind", ["missing", "directory", "unreadable text"])
def test_a_configuration_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    path = tmp_path / "x"
    if kind == "directory":
        path.mkdir()
    if kind == "unreadable text":
        path.write_text("a=\\u1")
    assert cli.run(["format", "-t", "c", "-c", str(path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"kjbod: {path}: ")


@pytest.mark.parametrize(
    ("arguments", "package", "name", "function"),
    [
        (["agent", "-c", "f"], "kjbod_agent", "daemon", "main"),
        (["controller", "-c", "f"], "kjbod_controller_stub", "process", "main"),
        (["fleet", "report", "--reports", "r", "--out", "o"], "kjbod.fleet", "report_command", "report_inboxes"),
    ],
)
def test_an_applications_exit_code_is_the_commands(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], package: str, name: str, function: str
) -> None:
    given: list[str] = []

    def run(*values: object, **_options: object) -> int:
        each = [one for value in values for one in (value if isinstance(value, tuple) else (value,))]
        given.extend(str(one) for one in each if isinstance(one, str | Path))
        return 74

    __import__(package)
    stand_in(monkeypatch, package, name, **{function: run})
    assert cli.run(arguments) == 74
    assert given == [argument for argument in arguments if len(argument) == 1]


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (ConfigError("f: one", "f: two"), 78, ["kjbod: f: one", "kjbod: f: two"]),
        (StorageError("all disks gone"), 1, ["kjbod: all disks gone"]),
        (
            ZeroDivisionError("a\nb"),
            1,
            ["kjbod: internal error: ZeroDivisionError: a b; KJBOD_DEBUG=1 shows the traceback"],
        ),
        (KeyboardInterrupt(), 130, []),
    ],
)
def test_an_error_is_told_in_lines_and_by_exit_code_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    lines: list[str],
) -> None:
    def main(_path: Path, **_options: object) -> int:
        raise error

    stand_in(monkeypatch, "kjbod_agent", "daemon", main=main)
    assert cli.run(["agent", "-c", "f"]) == code
    assert [line for line in capsys.readouterr().err.splitlines() if line] == lines


def test_the_traceback_is_there_for_who_asks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(_path: Path, **_options: object) -> int:
        raise ZeroDivisionError

    stand_in(monkeypatch, "kjbod_agent", "daemon", main=main)
    monkeypatch.setenv("KJBOD_DEBUG", "1")
    assert cli.run(["agent", "-c", "f"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.usefixtures("world")
def test_the_command_line_imports_no_application_no_spark_and_no_log_library() -> None:
    code = "import sys; import kjbod.cli.main; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    for heavy in (*HEAVY, "kjbod.faults"):
        assert heavy not in loaded


@pytest.mark.usefixtures("world")
def test_a_disk_is_broken_without_an_application_or_a_protocol() -> None:
    code = "import sys; from kjbod.cli import main; main.run(['faults', 'list', 'eio']); print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "kjbod.faults" in loaded
    for heavy in (*HEAVY, "kjbod.wire"):
        assert heavy not in loaded


@pytest.mark.usefixtures("world")
def test_a_closed_stdout_is_not_a_crash(broker_file: Path) -> None:
    code = "from kjbod.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "version-mapping"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_commands_are_found_by_name() -> None:
    context = click.Context(cli.kjbod)
    assert cli.kjbod.list_commands(context) == COMMANDS
