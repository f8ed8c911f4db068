"""The measurement of one cell, in a process and namespaces of its own: whatever it leaves there goes with it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import kjbod
from scripts.matrix.plan import Cell
from scripts.matrix.record import FAILED, Outcome
from scripts.rig.rig_error import RigError

_ROOT: Final = Path(__file__).parents[2]
_TIMEOUT_S: Final = 1800.0
"""Of a cell; most take a minute, a rolling upgrade ten."""
_RESULT: Final = "outcome.json"


def get_kafka(cell: Cell) -> None:
    """Get the versions of Kafka that a cell needs. Raises :class:`RigError`, one line."""
    for version in cell.versions:
        done = subprocess.run(
            [_ROOT / "scripts" / "kafka", version],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise RigError(f"Apache Kafka {version}: {lines[-1]}")


def measure(cell: Cell, logs: Path) -> Outcome:
    """Measure a cell. Its logs are left in a directory below ``logs``.

    Raises:
        RigError: its Kafka cannot be got.
    """
    get_kafka(cell)
    directory = logs / f"{cell.row}-{'-'.join(cell.versions)}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    began_s = time.monotonic()
    inner = [sys.executable, "-P", "-m", "scripts.matrix.cell", cell.row, cell.version, str(directory)]
    command = [sys.executable, "-P", "-m", "scripts.rig.namespaces", *inner]
    with open(directory / "cell.log", "wb") as log:
        code = _run(command, log.fileno())
    outcome = _outcome(cell, directory, code)
    outcome.seconds = round(time.monotonic() - began_s, 1)
    outcome.at = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    outcome.kjbod = kjbod.__version__
    return outcome


def _run(command: list[str], log: int) -> int | None:
    """Return the exit code; None: it did not end in time, and was killed with all that it had started."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        return process.wait(_TIMEOUT_S)
    except BaseException as error:
        # The namespaces end with it: their first process is killed when its parent is.
        process.send_signal(signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            return None
        raise


def _outcome(cell: Cell, directory: Path, code: int | None) -> Outcome:
    """Return the outcome in the file of the process; where it wrote none, a failure with the reason."""
    try:
        outcome = Outcome.from_json(json.loads((directory / _RESULT).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        outcome = Outcome(cell.row, cell.version, FAILED, f"the cell's process ended with {code}")
    if code is None:
        outcome.state, outcome.reason = FAILED, f"did not end in {_TIMEOUT_S:.0f} s"
    elif code and outcome.state != FAILED:
        lines = (directory / "cell.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        outcome.state, outcome.reason = FAILED, lines[-1] if lines else f"exit code {code}"
    return outcome


def write_outcome(outcome: Outcome, directory: Path) -> None:
    """Write the outcome, for :func:`measure`."""
    (directory / _RESULT).write_text(json.dumps(outcome.to_json(), ensure_ascii=False), encoding="utf-8")
