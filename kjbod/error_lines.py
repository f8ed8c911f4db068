"""Print errors of the command line: one line per problem on stderr, and a traceback only on request."""

import contextlib
import os
import sys
import traceback

import click

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.runtime.room import no_room

DEBUG_VARIABLE = "KJBOD_DEBUG"


def report(error: KjbodError) -> int:
    """Print the error's lines, and return its exit code."""
    _flush_logging()
    _show_traceback()
    for line in str(error).splitlines() or [type(error).__name__]:
        say(f"kjbod: {line}")
    return error.exit_code


def report_usage(error: click.UsageError) -> int:
    """Print the usage of the command and the mistake, and return the exit code."""
    with contextlib.suppress(OSError):
        error.show()
    return error.exit_code


def in_one_line(error: Exception) -> str:
    """Return the text of ``error`` in one line."""
    if isinstance(error, click.ClickException):
        return error.format_message()
    known = error if isinstance(error, KjbodError) else no_room(error)
    if known is not None:
        return "; ".join(str(known).splitlines()) or type(known).__name__
    return _bug(error, shown=_show_traceback())


def _bug(error: Exception, *, shown: bool) -> str:
    hint = "" if shown else f"; {DEBUG_VARIABLE}=1 shows the traceback"
    return f"internal error: {type(error).__name__}: {' '.join(str(error).split())}{hint}"


def report_bug(error: Exception) -> int:
    """Print one line about an unexpected error, or about a host without free resources, and return the exit code."""
    scarce = no_room(error)
    if scarce is not None:
        return report(scarce)
    _flush_logging()
    say(f"kjbod: {_bug(error, shown=_show_traceback())}")
    return EXIT_FAILURE


def say(line: str) -> None:
    """Print ``line`` on stderr. A daemon's line goes through its log: a stderr without a reader must not block the
    process, and a closed one must not change its exit code."""
    logging = sys.modules.get("kjbod.runtime.logging")
    if logging is None or not logging.write_plain(line):
        with contextlib.suppress(OSError):
            click.echo(line, err=True)


def _show_traceback() -> bool:
    if os.environ.get(DEBUG_VARIABLE, "") in ("", "0"):
        return False
    traceback.print_exc(file=sys.stderr)
    return True


def _flush_logging() -> None:
    """Write pending log lines first, because they may explain the error. Most commands do not import logging."""
    logging = sys.modules.get("kjbod.runtime.logging")
    if logging is not None:
        logging.flush_logging()
