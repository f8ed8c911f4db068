"""Output of the commands: aligned tables, readable sizes and times, and no control characters.

Names of directories and topics are untrusted. A newline, an escape sequence or half a character in a name is printed as
``\\n``, ``\\x1b``, ``\\udcff``, so that a line stays a line. Columns are counted in cells of a terminal: a Chinese
character takes two, a combining accent none.
"""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click

from kjbod import units
from kjbod.error_lines import say
from kjbod.units import duration, plural

__all__ = [
    "UNKNOWN",
    "OutputError",
    "Printer",
    "cells",
    "colours",
    "complain",
    "cut",
    "duration",
    "moment",
    "percent",
    "plural",
    "safe",
    "size",
    "table",
    "width",
]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_GAP: Final = "  "
UNKNOWN: Final = "?"


def safe(text: object) -> str:
    """Return ``text`` with non-printable characters as escapes. A backslash is escaped too if it would look like an
    escape."""
    return "".join(char if char.isprintable() and char != "\\" else _escaped(char) for char in str(text))


def _escaped(char: str) -> str:
    return "\\\\" if char == "\\" else char.encode("unicode_escape").decode()


def cells(text: str) -> int:
    """Return the number of columns of a printable text on a terminal."""
    return sum(_cells_of(char) for char in text)


def _cells_of(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def size(count: float | None) -> str:
    """Return bytes as readable text, in about three digits: ``1.2 GiB``."""
    if count is None or count < 0:
        return UNKNOWN
    unit = 0
    # A value that would be printed as 1024 uses the next unit.
    while unit + 1 < len(_UNITS) and round(count) >= 1024:
        count, unit = count / 1024, unit + 1
    whole = unit == 0 or count >= 9.95
    return f"{count:.0f} {_UNITS[unit]}" if whole else f"{count:.1f} {_UNITS[unit]}"


def percent(part: float, whole: float) -> str:
    """Return ``58 %``, rounded down, so that 100 means all."""
    return UNKNOWN if whole <= 0 else f"{int(100 * max(0.0, min(part / whole, 1.0)))} %"


def moment(wall_ms: int | None) -> str:
    """Return a moment in UTC, to the second; ``?`` if unknown."""
    return UNKNOWN if wall_ms is None else units.moment(wall_ms)


def width() -> int | None:
    """Return the number of columns; None for a file or a pipe."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def colours() -> bool:
    """Return whether standard output is a terminal with colours that the user has not disabled
    (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"


def cut(text: str, columns: int | None) -> str:
    """Return ``text`` shortened to ``columns`` with an ellipsis at its end."""
    if columns is None or cells(text) <= columns:
        return text
    shown, left = [], columns - 3
    for char in text:
        left -= _cells_of(char)
        if left < 0:
            break
        shown.append(char)
    return "".join(shown) + "..."


def table(head: Sequence[str], rows: Iterable[Sequence[str]], indent: str = "") -> list[str]:
    """Return lines with aligned columns. A title that begins with ``>`` means right-aligned. The last column, with
    possibly long texts, is not padded."""
    titles = [title.removeprefix(">") for title in head]
    body = [titles, *map(list, rows)]
    widths = [max(cells(row[column]) for row in body) for column in range(len(head))]
    right = [title.startswith(">") for title in head]
    return [_line(row, widths, right, indent) for row in body]


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool], indent: str) -> str:
    parts = []
    for number, (text, wide, to_right) in enumerate(zip(row, widths, right, strict=True)):
        padding = " " * (wide - cells(text))
        last = number == len(row) - 1
        parts.append(padding + text if to_right else text if last else text + padding)
    return (indent + _GAP.join(parts)).rstrip()


class OutputError(click.ClickException):
    """Writing to standard output failed."""


class Printer:
    """Prints lines. If the reader goes away (``| head -1``), the command continues silently.

    A ``patient`` printer also continues after a full disk, and reports that in :meth:`close`: for commands that must
    finish.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._gone = False
        self._lost: OutputError | None = None
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a locale without the characters of a path

    def __call__(self, *lines: str, end: str = "\n") -> None:
        """Print.

        Raises:
            OutputError: no space for the lines; not raised by a patient printer.
        """
        if self._gone:
            return
        try:
            for line in lines:
                click.echo(line + end, nl=False)
        except OSError as error:
            self._gone = True
            # Buffered text would fail once more when the interpreter ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                self._lost = OutputError(f"the output is not complete: standard output: {error.strerror}")
                if not self._patient:
                    raise self._lost from None

    def close(self) -> None:
        """Report a write failure that was held back.

        Raises:
            OutputError: the lines could not be written.
        """
        if self._lost is not None:
            raise self._lost

    def json(self, document: Any, *, line: bool = False) -> None:
        """Print a JSON document, with ``line`` on one line."""
        self(json.dumps(document, indent=None if line else 2))


def complain(text: str) -> None:
    """Print a line on standard error."""
    say(f"kjbod: {text}")


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that passes each line to ``say`` the first time only."""
    told: set[str] = set()

    def say_once(text: str) -> None:
        if text not in told:
            told.add(text)
            say(text)

    return say_once
