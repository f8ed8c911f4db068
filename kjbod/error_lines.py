"""Errors of the command line: one line per problem on stderr, never a traceback unless asked for."""

import contextlib
import os
import sys
import traceback

import click

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.runtime.room import no_room

DEBUG_VARIABLE = "KJBOD_DEBUG"


def report(error: KjbodError) -> int:
    """Print the error's lines; gives its exit code."""
    _flush_logging()
    _show_traceback()
    for line in str(error).splitlines() or [type(error).__name__]:
        say(f"kjbod: {line}")
    return error.exit_code


def report_usage(error: click.UsageError) -> int:
    """Print how the command is used, and what is wrong; gives the exit code."""
    with contextlib.suppress(OSError):
        error.show()
    return error.exit_code


def in_one_line(error: Exception) -> str:
    """Text of ``error`` for a reader of one line."""
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
    """Print one line about an error that nobody foresaw, or about a host that has no room; gives the exit code."""
    scarce = no_room(error)
    if scarce is not None:
        return report(scarce)
    _flush_logging()
    say(f"kjbod: {_bug(error, shown=_show_traceback())}")
    return EXIT_FAILURE


def say(line: str) -> None:
    """Print ``line`` on stderr. A daemon's goes the way of its log: a stderr that nobody reads must not keep the
    process, and one that is gone must not change its exit code."""
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
    """Let the log lines that led to the error come first. Most commands do not log and do not import it."""
    logging = sys.modules.get("kjbod.runtime.logging")
    if logging is not None:
        logging.flush_logging()
