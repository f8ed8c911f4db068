"""Undoes a fault after its time, whatever became of the terminal: ``python -m kjbod.faults.watchdog DIR ID``.

A process of its own in a session of its own. It ends early when the fault is undone by somebody else, and undoes at
once when it is told to end.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from kjbod.faults.catalog import undo
from kjbod.faults.faults_error import FaultsError
from kjbod.faults.model import Injection, read_record

_START_TIMEOUT_S = 20
_POLL_S = 0.1
_RETRY_S = 1.0
_RETRY_MAX_S = 30.0


def watch(injection: Injection) -> None:
    """Start the watchdog of an injection; returns when it watches. Raises :class:`FaultsError`."""
    with open(injection.log, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kjbod.faults.watchdog", str(injection.state_dir), injection.id],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    assert process.stdout is not None
    with process.stdout as answer:
        if answer.readline() != b"watching\n":
            process.wait(_START_TIMEOUT_S)
            raise FaultsError("the process that was to undo the fault in time did not start: nothing is injected")
    _started.append(process)


def is_watched(injection: Injection) -> bool:
    """Whether its watchdog lives. A lock tells, which ends with the process however that dies."""
    try:
        fd = os.open(injection.log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it is not ours to read: say nothing of it
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def _locked(injection: Injection) -> Iterator[None]:
    """For :func:`is_watched`. Not on standard error, which the watchdog's own children have too."""
    fd = os.open(injection.log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


_started: list[subprocess.Popen[bytes]] = []
"""Meant to go on: referenced for ever, since a Popen that is collected complains about its child."""


class _Told(Exception):  # noqa: N818  not an error
    """By a signal."""


def _tell(_number: int, _frame: FrameType | None) -> None:
    raise _Told


def _wait(injection: Injection) -> None:
    """Until its time has come, or it is no longer on record."""
    remaining_s = (injection.until_ms or 0) / 1000 - time.time()
    deadline = time.monotonic() + remaining_s
    while injection.record.exists() and time.monotonic() < deadline:
        time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def main(state_dir: Path, injection_id: str) -> int:
    """Exit code 0 when the fault is gone."""
    record = state_dir / f"{injection_id}.fault"
    injection = read_record(record)
    if injection is None:
        return 0
    with _locked(injection):
        return _watch(injection)


def _watch(injection: Injection) -> int:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _tell)
    try:
        sys.stdout.write("watching\n")
        sys.stdout.flush()
        sys.stdout.close()
        _wait(injection)
    except _Told:
        pass
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    retry_s, said = _RETRY_S, ""
    while True:
        try:
            if (now := read_record(injection.record)) is None:
                return 0
            undo(now)
        except (FaultsError, OSError) as error:
            if str(error) != said:  # once: the log must not fill the disk
                said = str(error)
                sys.stderr.write(f"{said}\n")
                sys.stderr.flush()
            time.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_MAX_S)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
