"""Common parts of the command lines of benchmarks: values, directories, and an end that leaves nothing."""

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from scripts.rig.rig_error import RigError

INTERRUPTED = 130
_LOGS_MARK = ".kjbod-bench"
"""File by which logs are known as ours."""
Say = Callable[[str], None]


def listed(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A value of names with commas between them."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        unknown = [name for name in names if name not in allowed]
        if unknown or not names:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'}: choose from {', '.join(allowed)}")
        return names

    return parse


def positive(text: str) -> int:
    """A value that counts something."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a number from 1 on")
    return int(text)


def seconds(text: str) -> float:
    """A value that is a time."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: seconds, more than 0")
    return value


def make_directory(out: Path) -> None:
    """The directory of ``--out``. Raises :class:`RigError`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RigError(f"--out {out}: {error.strerror}: choose another directory") from None


def make_logs(logs: Path) -> Path:
    """Empty, with the logs of an earlier run removed and nothing else. Raises :class:`RigError`."""
    mark = logs / _LOGS_MARK
    if mark.exists():
        shutil.rmtree(logs, ignore_errors=True)
    try:
        logs.mkdir()
        mark.touch()
    except OSError as error:
        raise RigError(f"--out: {logs}: {error.strerror}: choose another directory") from None
    return logs


def add_line(path: Path, values: Mapping[str, Any]) -> None:
    """Add a JSON line to a file."""
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; none where there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def broker_property(text: str) -> tuple[str, str]:
    """A line of a ``server.properties``."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text}: KEY=VALUE")
    return key, value


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """A directory for the ``with`` block."""
    work = Path(tempfile.mkdtemp(prefix="kjbod-bench-"))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def catch_signals() -> None:
    """From now on a SIGTERM is a Ctrl-C: what was built is taken away."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # A second one must not leave half of it behind.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def stopwatch() -> tuple[float, Say]:
    """The moment now, and what says lines on standard error with the time since then."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:7.1f} s  {text}", file=sys.stderr, flush=True)

    return started, say
