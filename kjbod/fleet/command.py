"""Common to all ``kjbod fleet`` commands: a session, progress, errors in one line, exit codes, interrupts.

Exit codes: 0, done; 1, done, and some data had to be set aside or is not as it should be; 2, it cannot be done, and
what was there before is as it was; 130, interrupted, and the next run goes on from there.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from kjbod.clock import SystemClock
from kjbod.error_lines import report_bug, say
from kjbod.fleet.fleet_error import FleetError
from kjbod.output import OutputError, Printer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_OK, EXIT_DATA, EXIT_CANNOT_RUN = 0, 1, FleetError.exit_code
EXIT_INTERRUPTED = 130
_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """Place of Spark, as the user said it."""

    master: str | None = None
    remote: str | None = None
    verbose: bool = False


class Running:
    """A command that runs."""

    def __init__(self, name: str, place: Place, printer: Printer) -> None:
        self.name = name
        self.place = place
        self.printer = printer
        self.clock = SystemClock()
        self._started_ms = self.clock.monotonic_ms()

    def progress(self, text: str) -> None:
        """Say what is being done now, with the time since the start."""
        self.printer(f"[{(self.clock.monotonic_ms() - self._started_ms) / 1000:5.1f} s] {text}")

    def print(self, *lines: str) -> None:
        """The result, for people or for pipes."""
        self.printer(*lines)

    @contextlib.contextmanager
    def session(self, input_bytes: int = 0) -> Iterator["SparkSession"]:
        """A Spark session for so much compressed input; what Spark refuses meanwhile is a FleetError.

        Raises:
            FleetError: Spark does not start, or a job failed.
        """
        from kjbod.fleet.session import spark_session, ui_address

        place = self.place
        with (
            warnings.catch_warnings(),
            spark_session(place.master, input_bytes, remote=place.remote, verbose=place.verbose) as spark,
            spark_errors(),
        ):
            if place.verbose:
                self.progress(f"Spark {spark.version}, UI: {ui_address(spark) or 'none that is known here'}")
            else:  # what PySpark warns of is about our code, and nothing that a user can change
                warnings.filterwarnings("ignore", module=r"pyspark\.")
            yield spark

    @contextlib.contextmanager
    def watched_session(self, input_bytes: int = 0) -> Iterator["SparkSession"]:
        """Likewise, for what takes a while: with how far Spark is, by its own account, until it is done."""
        from kjbod.fleet.progress import watched

        self.progress("starting Spark")
        with self.session(input_bytes) as spark, watched(spark, self.progress, self.name):
            yield spark


def java_errors() -> tuple[type[Exception], ...]:
    """Errors of py4j; nothing where the client of Spark Connect is alone, which has no Java to talk to."""
    try:
        from py4j.protocol import Py4JError
    except ImportError:
        return ()
    return (Py4JError,)


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Make of a refusal of Spark a FleetError with the innermost reason."""
    from pyspark.errors import PySparkException

    refusals: tuple[type[Exception], ...] = (PySparkException, *java_errors())
    try:
        yield
    except refusals as error:
        raise FleetError(f"Spark failed: {spark_reason(error)}") from error


INTERRUPTED = "interrupted; what was there before is whole, and the next run goes on"


def run_command(
    name: str, body: Callable[[Running], int], place: Place | None = None, *, interrupted: str = INTERRUPTED
) -> int:
    """Run ``kjbod fleet NAME``. Gives its exit code; a user's mistake is one line on stderr. ``interrupted``: what to
    say of an interrupt."""
    printer = Printer(patient=True)  # where nobody can read how far it is, the work is done all the same
    running = Running(name, place or Place(), printer)
    try:
        with interruptible():
            code = body(running)
    except FleetError as error:
        say(f"kjbod fleet {name}: {error}")
        return EXIT_CANNOT_RUN
    except KeyboardInterrupt:
        say(f"kjbod fleet {name}: {interrupted}")
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  exit code 1 would say that the work is done
        report_bug(error)
        return EXIT_CANNOT_RUN
    try:
        printer.close()
    except OutputError as error:
        say(f"kjbod fleet {name}: {error.format_message()}")
    return code


def spark_reason(error: BaseException) -> str:
    """The innermost Java message in one line: the outer ones only say that a job was aborted."""
    cause, reason = getattr(error, "java_exception", None) or getattr(error, "_origin", None), str(error)
    while cause is not None and hasattr(cause, "getCause"):
        reason, cause = str(cause.toString()), cause.getCause()
    return (reason.strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the job as Ctrl-C does: with Spark's process and all temporary files gone.

    Python reports and forgets an exception in a weakref callback or a destructor, and py4j has one for each Java
    object: an interrupt that falls there comes again a moment later. What py4j logs after an interrupt is that Spark's
    process, which the signal ended too, does not answer: nobody asked.
    """
    interrupted = False
    again: list[threading.Timer] = []

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def unraisable(caught: "sys.UnraisableHookArgs") -> None:
        nonlocal interrupted
        if not issubclass(caught.exc_type, KeyboardInterrupt):
            hook_before(caught)
            return
        interrupted = True
        again.append(threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT)))
        again[-1].start()

    try:
        handlers_before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            handlers_before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not the main thread: signals are the caller's business
        yield
        return

    def is_news(_record: logging.LogRecord) -> bool:
        return not interrupted

    hook_before, sys.unraisablehook = sys.unraisablehook, unraisable
    logging.getLogger().addFilter(is_news)  # py4j logs with the root logger itself
    try:
        yield
    except Exception:
        # The signal may have gone to Spark's process too: then whatever was on its way fails, and that is not news.
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        for timer in again:
            timer.cancel()
        logging.getLogger().removeFilter(is_news)
        sys.unraisablehook = hook_before
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
