"""Ctrl-C ends a report wherever it falls."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest

from kjbod.fleet.command import EXIT_CANNOT_RUN, EXIT_INTERRUPTED, interruptible, run_command
from scripts.rig.processes import kjbod_command


class Held:
    """Something that a weak reference can point to."""


def _interrupt(_reference: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_that_falls_into_a_weakref_callback_is_not_lost() -> None:
    held = Held()
    reference = weakref.ref(held, _interrupt)
    with pytest.raises(KeyboardInterrupt), interruptible():
        del held  # Python reports what the callback raises, and goes on
        assert reference() is None
        while True:
            time.sleep(0.001)


def test_what_fails_after_a_lost_interrupt_is_the_interrupt() -> None:
    held = Held()
    reference = weakref.ref(held, _interrupt)
    with pytest.raises(KeyboardInterrupt), interruptible():
        del held
        assert reference() is None
        raise ConnectionRefusedError("Spark's process was interrupted as well")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_py4j_logs_of_the_process_that_the_signal_ended_is_not_shown(
    number: signal.Signals, caplog: pytest.LogCaptureFixture
) -> None:
    handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    inherited = signal.signal(number, handler)  # whatever the tests before this one left there
    with pytest.raises(KeyboardInterrupt), interruptible():
        logging.error("before")
        try:
            os.kill(os.getpid(), number)
            while True:
                time.sleep(0.01)
        finally:
            logging.error("Exception while sending command.")
    assert caplog.messages == ["before"]
    logging.error("after")
    assert caplog.messages == ["before", "after"]
    assert signal.signal(number, inherited) is handler


KILLED = """
import os, signal, sys
from kjbod.fleet.command import run_command

def body(running, kill):
    with running.session() as spark:
        from pyspark import SparkContext
        if kill:
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        return spark.range(7).count()

def killed_at_the_end(running):
    with running.session() as spark:
        from pyspark import SparkContext
        found = spark.range(5).count()
        os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        return found

bodies = (lambda running: body(running, True), lambda running: body(running, False), killed_at_the_end)
print(*(run_command("try", each) for each in bodies))
"""


@pytest.mark.usefixtures("with_spark")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_while_spark_starts_leaves_no_java_and_no_file(number: signal.Signals, tmp_path: Path) -> None:
    """PySpark has nothing to hold its Java by until that answers; it would wait for ever, with this test's pipe."""
    scratch = tmp_path / "with space"
    scratch.mkdir()
    command = [kjbod_command(), "fleet", "query", "select 1", "--lake", str(tmp_path / "none")]
    environment = os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as ran:
        while "java" not in programs(scratch):
            assert ran.poll() is None, "it has not even begun"
            time.sleep(0.001)
        ran.send_signal(number)
        _, told = ran.communicate(timeout=60)
    assert ran.returncode == EXIT_INTERRUPTED
    assert [line for line in told.splitlines() if "interrupted" not in line] == []
    assert (programs(scratch), list(scratch.iterdir())) == ([], [])


def programs(scratch: Path) -> list[str]:
    """Names of the processes with a folder below ``scratch`` for what Spark writes."""
    wanted, found = os.fsencode(f"SPARK_LOCAL_DIRS={scratch}/"), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environment.read_bytes():
                found.append((environment.parent / "comm").read_text().strip())
    return found


@pytest.mark.usefixtures("with_spark")
def test_a_java_that_is_killed_is_named_and_leaves_no_success_behind() -> None:
    """As the kernel does where memory is short. The next session of the process has a Java of its own."""
    ran = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "2 7 5", "what was done before the end is done"
    [line] = ran.stderr.splitlines()
    assert "was killed by signal 9 while Spark was at work" in line


def test_an_error_that_nobody_foresaw_is_not_told_as_work_that_is_done(capfd: pytest.CaptureFixture[str]) -> None:
    def body(_running: object) -> int:
        raise ZeroDivisionError("7")

    assert run_command("try", body) == EXIT_CANNOT_RUN
    assert "internal error: ZeroDivisionError: 7" in capfd.readouterr().err
