"""Output for a person at the terminal: steps, timed lines, small tables, and a bar of partitions per directory."""

import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence

from kjbod.errors import KjbodError

_BOLD, _DIM, _GREEN, _RED, _YELLOW, _RESET = "\033[1m", "\033[2m", "\033[32m", "\033[31m", "\033[33m", "\033[0m"


_COLUMNS = 120
"""The widest lines, also where there is no terminal."""
_COLUMNS_MIN = 60
_ALARM = re.compile(r"\b[A-Z]{2,}( \d+ s)?")
_EVENT_INDENT = " " * 29


class Narrator:
    """Prints the story; colours only on a terminal that wants them (https://no-color.org)."""

    def __init__(self) -> None:
        self._colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._columns = min(_COLUMNS, max(_COLUMNS_MIN, shutil.get_terminal_size((_COLUMNS, 24)).columns))
        self._started = time.monotonic()
        self._step = 0
        self._hidden = ""
        self.claims = 0

    def hide(self, prefix: str) -> None:
        """Leave ``prefix`` out of what is told from now on: the folder that all paths of the story begin with."""
        self._hidden = prefix

    def _lines(self, text: str, first: str, rest: str) -> str:
        """``text`` without the hidden prefix, in lines that fit."""
        short = text.replace(self._hidden, "") if self._hidden else text
        width = self._columns - len(first)
        lines = textwrap.wrap(short, width, break_long_words=False, break_on_hyphens=False) or [""]
        return f"\n{rest}".join(lines)

    def _paint(self, text: str, code: str) -> str:
        return f"{code}{text}{_RESET}" if self._colour else text

    def title(self, text: str) -> None:
        """The first line."""
        print(self._paint(self._lines(text, "", ""), _BOLD), flush=True)

    def step(self, text: str) -> None:
        """The next numbered step."""
        self._step += 1
        at = f"[{time.monotonic() - self._started:5.1f} s]"
        margin = " " * (len(at) + len(f" {self._step}. "))
        told = f"{self._step}. {self._lines(text, margin, margin)}"
        print(f"\n{self._paint(at, _DIM)} {self._paint(told, _BOLD)}", flush=True)

    def say(self, text: str) -> None:
        """A plain sentence of a step."""
        margin = " " * (4 + len(text) - len(text.lstrip()))
        print(f"{margin}{self._lines(text.lstrip(), margin, margin)}", flush=True)

    def show(self, text: str) -> None:
        """A line to copy from: as it is, however long."""
        print(f"    {text}", flush=True)

    def live(self, text: str) -> None:
        """A line of a table that grows; words in capital letters, and the number after them, are an alarm."""
        painted = _ALARM.sub(lambda found: self._paint(found[0], _RED), text)
        print(f"    {painted}", flush=True)

    def warn(self, text: str) -> None:
        """Something the reader should know before relying on what follows."""
        print(f"    {self._paint(text, _YELLOW)}", flush=True)

    def event(self, after_ms: float | None, who: str, text: str) -> None:
        """Something that happened ``after_ms`` milliseconds after the fault."""
        at = "fault      " if after_ms is None else f"+{after_ms:7.0f} ms"
        told = self._lines(text, _EVENT_INDENT, _EVENT_INDENT)
        print(f"    {self._paint(at, _BOLD)}  {who:<10}  {told}", flush=True)

    def claim(self, text: str) -> None:
        """A statement that was just checked."""
        self.claims += 1
        print(f"    {self._paint('ok', _GREEN)}  {self._lines(text, ' ' * 8, ' ' * 8)}", flush=True)

    def failure(self, text: str) -> None:
        """Reason for which the story ends here."""
        print(f"\n{self._paint('FAILED', _RED)}  {text}", file=sys.stderr, flush=True)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Columns as wide as their longest cell; numbers to the right."""
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(len(row[i]) for row in [list(head), *cells]) for i in range(len(head))]
        for i, row in enumerate([list(head), *cells]):
            line = "  ".join(
                cell.rjust(width) if cell.lstrip("+-").isdigit() else cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            )
            print(f"    {self._paint(line.rstrip(), _DIM) if i == 0 else line.rstrip()}", flush=True)

    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._started


class StoryError(KjbodError):
    """A claim of the story did not hold."""
