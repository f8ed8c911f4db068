"""Undo a fault after its time, even if the terminal is closed: ``python -m kjbod.faults.watchdog DIR ID``.

The watchdog is a process in its own session. It ends early if someone else undoes the fault, and undoes the fault at
once if it is told to end.
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
    """Start the watchdog of an injection; returns when it is active. Raises :class:`FaultsError`."""
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
    """Return whether its watchdog lives. The watchdog holds a lock, which any end of the process releases."""
    try:
        fd = os.open(injection.log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # the file is not readable for this user: assume the watchdog lives
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextlib.contextmanager
def _locked(injection: Injection) -> Iterator[None]:
    """Hold the lock for :func:`is_watched`. Not on standard error, which the watchdog's children inherit."""
    fd = os.open(injection.log, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


_started: list[subprocess.Popen[bytes]] = []
"""Watchdogs that must continue: kept referenced, because a Popen that is collected complains about its child."""


class _Told(Exception):  # noqa: N818  not an error
    """A signal told the watchdog to end."""


def _tell(_number: int, _frame: FrameType | None) -> None:
    raise _Told


def _wait(injection: Injection) -> None:
    """Wait until the time of the injection is over, or its record is gone."""
    remaining_s = (injection.until_ms or 0) / 1000 - time.time()
    deadline = time.monotonic() + remaining_s
    while injection.record.exists() and time.monotonic() < deadline:
        time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))


def main(state_dir: Path, injection_id: str) -> int:
    """Run the watchdog. Exit code 0 when the fault is gone."""
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
