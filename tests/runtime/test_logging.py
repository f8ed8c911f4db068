"""Logs: the lines that dashboards and tests rely on, and a stderr that does not work."""

import json
import logging
import os
import re
import select
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from kjbod.ids import Uuid
from kjbod.runtime import logging as kjbod_logging
from kjbod.runtime.logging import LineWriter, configure_logging, flush_logging, get_logger, seal_logging, write_plain


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Undo what :func:`configure_logging` did to the process."""
    root = logging.getLogger()
    handlers, level, hook = root.handlers[:], root.level, threading.excepthook
    yield
    logging.captureWarnings(False)
    root.handlers[:], threading.excepthook = handlers, hook
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    if kjbod_logging._writer is not None:
        kjbod_logging._writer.close()
        kjbod_logging._writer = None


class Log:
    """The read end of a pipe that is the log."""

    def __init__(self) -> None:
        self._reader, self.fd = os.pipe()

    def text(self) -> str:
        assert flush_logging(10_000)
        data = b""
        while select.select([self._reader], [], [], 0)[0] and (chunk := os.read(self._reader, 1 << 20)):
            data += chunk
        return data.decode()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.fd)


@pytest.fixture
def log() -> Iterator[Log]:
    pipe = Log()
    yield pipe
    if kjbod_logging._writer is not None:
        kjbod_logging._writer.close()
    pipe.close()


def test_an_event_is_one_line_with_time_level_component_and_fields(log: Log) -> None:
    configure_logging("agent", fd=log.fd)
    get_logger().warning("directory.failed", path=Path("/mnt/d1"), directory_id=Uuid.of(1, 2), text="a\nb")
    (event,) = log.events()
    assert list(event)[:4] == ["timestamp", "level", "component", "event"]
    assert len(event.pop("timestamp")) == len("2026-11-20T18:25:21.000000Z")
    assert event == {
        "level": "warning",
        "component": "agent",
        "event": "directory.failed",
        "path": "/mnt/d1",
        "directory_id": "AAAAAAAAAAEAAAAAAAAAAg",
        "text": "a\nb",
    }


def test_context_is_in_every_line_and_a_logger_may_have_a_component_of_its_own(log: Log) -> None:
    configure_logging("agent", fd=log.fd)
    with structlog.contextvars.bound_contextvars(broker_id=1):
        get_logger(component="agent.health").info("probe.late")
    (event,) = log.events()
    assert (event["broker_id"], event["component"]) == (1, "agent.health")


def test_levels_below_the_threshold_are_skipped(log: Log) -> None:
    configure_logging("agent", level="warning", fd=log.fd)
    get_logger().info("quiet")
    logging.getLogger("asyncio").info("quiet too")
    assert log.events() == []


def test_the_standard_librarys_loggers_end_in_the_same_lines(log: Log) -> None:
    configure_logging("agent", fd=log.fd)
    logging.getLogger("asyncio").error("Task %s failed", 7)
    logging.getLogger("asyncio").error("wrong %d", "arguments")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("careful", stacklevel=1)
    first, second, third = log.events()
    assert (first["event"], first["message"], first["component"]) == ("log.asyncio", "Task 7 failed", "agent")
    assert second["event"] == "log.asyncio"
    assert third["event"] == "log.py.warnings"


def test_a_traceback_has_no_values_of_local_variables(log: Log) -> None:
    configure_logging("agent", fd=log.fd)
    password = "hunter" + "2"
    try:
        raise RuntimeError(f"{len(password)} characters")
    except RuntimeError:
        get_logger().exception("login.failed")
        logging.getLogger("x").exception("failed")
    for event in log.events():
        assert event["exception"][0]["exc_type"] == "RuntimeError"
        assert event["exception"][0]["frames"]
        assert "hunter2" not in json.dumps(event)


def test_values_that_json_does_not_know_do_not_stop_a_line(log: Log) -> None:
    class Broken:
        def __repr__(self) -> str:
            raise ValueError

    cycle: list[object] = []
    cycle.append(cycle)
    configure_logging("agent", fd=log.fd)
    get_logger().info("odd", nan=float("nan"), keys={(1, 2): 3}, cycle=cycle, broken=Broken(), path=Path("/x"))
    get_logger().info("fine", some={1, 2}, raw=b"\xff", error=ValueError("no"), name="\udcff")
    odd, fine = log.events()
    assert (odd["nan"], odd["broken"], odd["path"]) == ("nan", "<Broken>", "/x")
    assert (fine["some"], fine["raw"], fine["error"]) == ([1, 2], "ff", "ValueError: no")


def test_a_thread_that_crashes_is_an_event(log: Log) -> None:
    configure_logging("agent", fd=log.fd)
    thread = threading.Thread(target=lambda: 1 // 0, name="worker")
    thread.start()
    thread.join()
    (event,) = log.events()
    assert (event["event"], event["thread"]) == ("thread.crashed", "worker")


def test_the_journal_gets_a_priority_and_no_other_reader_does(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.fstat(log.fd)
    monkeypatch.setenv("JOURNAL_STREAM", f"{stat.st_dev}:{stat.st_ino}")
    lines: list[bytes] = []
    configure_logging("agent", fd=log.fd)
    assert kjbod_logging._writer is not None
    monkeypatch.setattr(kjbod_logging._writer, "write", lines.append)
    configure_logging("agent", fd=log.fd)
    get_logger().error("x")
    assert flush_logging(10_000)
    assert os.read(log._reader, 100).startswith(b'<3>{"timestamp"')


def fill(descriptor: int) -> None:
    """Write until a pipe takes no more."""
    os.set_blocking(descriptor, False)
    try:
        while True:
            os.write(descriptor, b"x" * 4096)
    except BlockingIOError:
        pass


@pytest.mark.parametrize("blocking", [True, False])
def test_a_reader_that_reads_nothing_costs_lines_not_time(blocking: bool) -> None:
    reader, descriptor = os.pipe()
    fill(descriptor)
    os.set_blocking(descriptor, blocking)
    writer = LineWriter(descriptor, describe_dropped=lambda count: b"dropped %d\n" % count, pending_bytes_max=1000)
    for _ in range(1000):
        writer.write(b"." * 99 + b"\n")
    assert writer.dropped == 990
    assert not writer.flush(timeout_ms=1)
    # When it reads again, it gets what was kept and is told, then or with the next line, what it missed.
    seen = b""
    while seen.count(b".\n") < 10:
        seen += os.read(reader, 1 << 16)
    assert writer.flush(10_000)
    writer.write(b"more\n")
    while not seen.endswith(b"more\n"):
        seen += os.read(reader, 1 << 16)
    assert sum(map(int, re.findall(rb"dropped (\d+)\n", seen))) == 990
    writer.close(timeout_ms=10_000)
    os.close(reader)
    os.close(descriptor)


def test_a_reader_that_is_gone_does_not_stop_the_writer() -> None:
    reader, descriptor = os.pipe()
    os.close(reader)
    writer = LineWriter(descriptor)
    for _ in range(10):
        writer.write(b"x\n")
    assert writer.flush(10_000)
    assert writer.dropped == 10
    writer.close()
    os.close(descriptor)


@pytest.mark.usefixtures("world")
def test_after_a_write_that_broke_off_the_next_line_is_whole(tmp_path: Path) -> None:
    limit = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from kjbod.runtime.logging import LineWriter\n"
        "writer = LineWriter(2, describe_dropped=lambda count: b'dropped %d\\n' % count)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (6, resource.RLIM_INFINITY))\n"
        "writer.write(b'first line\\n'); assert writer.flush(10_000)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)\n"
        "writer.write(b'second line\\n'); writer.close(10_000)\n"
    )
    with (tmp_path / "log").open("wb") as log:
        subprocess.run([sys.executable, "-c", limit], stderr=log, check=True, timeout=60)
    assert (tmp_path / "log").read_bytes().splitlines() == [b"first ", b"dropped 1", b"second line"]


def test_nothing_comes_after_the_last_line(log: Log) -> None:
    configure_logging("agent", fd=log.fd)
    get_logger().info("agent.stopped")
    seal_logging()
    get_logger().info("too.late")
    assert [event["event"] for event in log.events()] == ["agent.stopped"]
    # But for what the process itself dies of after that.
    assert write_plain("kjbod: internal error") and flush_logging()
    assert log.text() == "kjbod: internal error\n"


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("closed", [[2], [0, 1, 2]])
def test_a_closed_stderr_is_not_mistaken_for_a_file_that_is_opened_later(closed: list[int], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    code = (
        "from kjbod.runtime.logging import configure_logging, get_logger\n"
        f"configure_logging('agent'); file = open({str(victim)!r}, 'w')\n"
        "get_logger().info('tick')\n"
    )
    closing = " ".join(f"{fd}>&-" for fd in closed)
    subprocess.run(["sh", "-c", f'exec "$0" -c "$1" {closing}', sys.executable, code], check=True, timeout=60)
    assert victim.read_bytes() == b""


@pytest.mark.usefixtures("world")
def test_the_last_lines_are_written_before_the_process_ends() -> None:
    code = (
        "from kjbod.runtime.logging import configure_logging, get_logger\n"
        "configure_logging('agent')\n"
        "for number in range(2000): get_logger().info('tick', number=number)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [json.loads(line)["number"] for line in done.stderr.splitlines()] == list(range(2000))
    assert done.stdout == ""


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("closed", [True, False])
def test_a_process_whose_stderr_does_not_work_ends_with_its_own_exit_code(closed: bool) -> None:
    code = (
        "import sys\n"
        "from kjbod.runtime.logging import configure_logging, get_logger\n"
        "configure_logging('agent')\n"
        "for number in range(5000): get_logger().info('tick', number=number, text='x' * 200)\n"
        "sys.exit(7)\n"
    )
    reader, descriptor = os.pipe()
    if closed:
        os.close(reader)
    else:
        fill(descriptor)
        os.set_blocking(descriptor, True)
    done = subprocess.run([sys.executable, "-c", code], stderr=descriptor, timeout=60, check=False)
    assert done.returncode == 7
    os.close(descriptor)
    if not closed:
        os.close(reader)


class Terminal(Log):
    """A terminal that is the log."""

    def __init__(self) -> None:
        self._reader, self.fd = os.openpty()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("NO_COLOR", "1")
    pseudo = Terminal()
    yield pseudo
    if kjbod_logging._writer is not None:
        kjbod_logging._writer.close()
    pseudo.close()


def test_on_a_terminal_a_line_is_for_people(terminal: Terminal) -> None:
    configure_logging("guard", fd=terminal.fd)
    get_logger().error("directory.failed", path=Path("/mnt/d1"), errors=["EIO", 3], waited_ms=4000, id=Uuid.of(1, 2))
    logging.getLogger("asyncio").warning("slow %d", 3)
    first, second = terminal.text().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z \[error +\] directory\.failed .*", first)
    for field in ("component=guard", "path=/mnt/d1", "errors=\"['EIO', 3]\"", "waited_ms=4000", f"id={Uuid.of(1, 2)}"):
        assert f" {field}" in first
    assert "log.asyncio" in second
    assert "message='slow 3'" in second


def test_a_terminal_obeys_nothing_that_a_name_or_an_error_says(terminal: Terminal) -> None:
    configure_logging("guard", fd=terminal.fd)
    try:
        raise OSError("\x1b[2Jgone\r\nall is well")
    except OSError as error:
        get_logger().error("a.b", topic="\x1b]0;x\x07\x9b", names={"\x1b[1m": "\u202e"}, exc_info=error)
    text = terminal.text().replace("\r\n", "\n")
    assert all(char.isprintable() or char == "\n" for char in text)
    assert "OSError: \\x1b[2Jgone" in text
    assert "Traceback (most recent call last)" in text


def test_a_terminal_shows_colours_unless_somebody_refuses_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for refused in ("", "1"):
        monkeypatch.setenv("NO_COLOR", refused)
        configure_logging("guard", fd=terminal.fd)
        get_logger().info("a.b")
        assert ("\x1b[" in terminal.text()) is not bool(refused)
