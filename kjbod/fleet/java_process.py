"""The Java process in which Spark runs: named when it ends by itself, and never left behind.

PySpark starts it as a child, and has nothing to hold it by until it answers. An interrupt in between would leave a
process that waits for ever, with the terminal's pipes: so whatever has the session's own scratch folder in its
environment ends with the session.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kjbod.clock import SystemClock
from kjbod.fleet.fleet_error import FleetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRATCH_VARIABLE = "SPARK_LOCAL_DIRS"
"""Names the scratch folder in the environment of Java and of what that starts."""
_GONE_TIMEOUT_S = 2
_KILLED_TIMEOUT_MS = 5_000
_POLL_S = 0.01


@contextlib.contextmanager
def java_named() -> Iterator[None]:
    """Name the end of the Java process as the reason of what fails because of it."""
    try:
        yield
    except Exception as error:
        if (told := _end_of_java(error)) is None:
            raise
        raise FleetError(told) from error


def _end_of_java(error: Exception) -> str | None:
    """Tell the end of the Java process, for which an error came up; None: it is there, or none was started here."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return None
    reason = error.__cause__ or error
    if isinstance(reason, (OSError, EOFError, Py4JError)) and not isinstance(reason, Py4JJavaError):
        with contextlib.suppress(subprocess.TimeoutExpired):  # its sockets are closed before it is seen to have ended
            process.wait(timeout=_GONE_TIMEOUT_S)
    code = process.poll()
    if code is None:
        return None
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return (
        f"Java, process {process.pid}, {ended} while Spark was at work: if memory was short, journalctl -k tells; what"
        " was there before is whole: run it again"
    )


def stop(spark: "SparkSession", timeout_s: float) -> None:
    """End the session and the Java process: the scratch folder goes next, and a second session in this process must not
    find a half-dead gateway."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        spark.stop()
        return
    with contextlib.suppress(Exception):  # one that was interrupted as it began, and would tell of its end
        for query in spark.streams.active:
            query.stop()
    try:
        spark.stop()
        gateway.shutdown()
    except Exception as error:
        if _end_of_java(error) is None:
            raise
        # Where Java was killed nothing answers: who needed it has been told, and what was done is done.
    with contextlib.suppress(OSError):
        process.stdin.close()  # what the Java process takes as the sign to end
    with contextlib.suppress(Exception):
        process.wait(timeout=timeout_s)
    if process.poll() is None:
        process.kill()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None


def kill_left(scratch: Path) -> None:
    """Kill the processes of this machine that have such a scratch folder, and wait until they are gone."""
    clock = SystemClock()
    deadline_ms = clock.monotonic_ms() + _KILLED_TIMEOUT_MS
    while (left := _processes_of(scratch)) and clock.monotonic_ms() < deadline_ms:
        for number in left:
            with contextlib.suppress(OSError):
                os.kill(number, signal.SIGKILL)
        time.sleep(_POLL_S)


def _processes_of(scratch: Path) -> list[int]:
    """By their environment, which one that has ended has no more. Without procfs there are none."""
    wanted = os.fsencode(f"{SCRATCH_VARIABLE}={scratch}")
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return [number for number in found if number != os.getpid()]
