"""``kjbod top``: the directories of this host, live, full screen. This module handles keys, clock and terminal."""

import contextlib
import curses
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kjbod.cli import ask, broker_files
from kjbod.cli.top_screen import Line, Style, View, press, screen
from kjbod.clock import Clock, SystemClock
from kjbod.error_lines import in_one_line
from kjbod.errors import KjbodError

WINDOW: Final = 60
"""Number of answers over which quantiles and the busy time are computed."""
HISTORY_LINES: Final = 100
_KEYS: Final = {curses.KEY_UP: "up", curses.KEY_DOWN: "down", 10: "enter", 13: "enter", curses.KEY_ENTER: "enter"}


@click.command()
@broker_files.options
@click.option(
    "--interval", "interval_s", default=1.0, show_default=True, type=click.FloatRange(0.2, 60), help="Seconds."
)
def top(config_path: Path, own_path: Path | None, interval_s: float) -> int:
    """Show the directories of this host, live, on the whole screen.

    State, time of probes (p50 and p99 of the last minute), busy time, used space, leaders, and the last decisions of
    the guard. Keys: arrows choose a directory, Enter shows its details, h the history, q ends.
    """
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise KjbodError("kjbod top needs a terminal: kjbod status prints the same once")
    of = ask.load(config_path, own_path)
    client = ask.client(of, own_path)
    client.call("status")  # report an error as a line, before the screen starts

    def past() -> list[str]:
        from kjbod_guard import past

        with contextlib.suppress(KjbodError):
            return [past.line(entry) for entry in past.read(config_path, own_path, HISTORY_LINES)]
        return []

    curses.wrapper(lambda window: _Top(window, lambda: client.call("status"), past, SystemClock()).run(interval_s))
    return 0


class _Top:
    """Main loop of the screen.

    Args:
        window: the terminal.
        status: asks the agent or guard for its status.
        past: returns the newest lines of the guard's history.
        clock: clock for the refresh.
    """

    def __init__(
        self, window: "curses.window", status: Callable[[], Any], past: Callable[[], list[str]], clock: Clock
    ) -> None:
        self._window = window
        self._status = status
        self._past = past
        self._clock = clock
        self._answers: deque[tuple[int, Any]] = deque(maxlen=WINDOW)
        self._trouble = ""
        self._history: list[str] = []
        self._looks = _looks()

    def run(self, interval_s: float) -> None:
        """Show the screen until q or Ctrl-C."""
        with contextlib.suppress(curses.error):
            curses.curs_set(0)
        view: View | None = View()
        next_ms = 0
        with contextlib.suppress(KeyboardInterrupt):
            while view is not None:
                if (now_ms := self._clock.monotonic_ms()) >= next_ms:
                    self._ask(now_ms)
                    next_ms = now_ms + round(interval_s * 1000)
                self._draw(view)
                self._window.timeout(max(next_ms - self._clock.monotonic_ms(), 1))
                key = self._window.getch()
                name = _KEYS.get(key) or (chr(key) if 0 < key < 128 else "")
                view = press(view, name, len(self._answers[-1][1]["directories"]) if self._answers else 0)

    def _ask(self, now_ms: int) -> None:
        try:
            self._answers.append((now_ms, self._status()))
            self._trouble = ""
        except KjbodError as error:
            self._trouble = in_one_line(error)
        self._history = self._past()

    def _draw(self, view: View) -> None:
        rows, columns = self._window.getmaxyx()
        lines = []
        if self._answers:
            (first_ms, first), (last_ms, last) = self._answers[0], self._answers[-1]
            before = first if len(self._answers) > 1 else None
            lines = screen(last, before, last_ms - first_ms, view, self._history, columns - 1, rows)
        if self._trouble:
            lines = [Line(self._trouble[: columns - 1], Style.BAD), *lines[1:]]
        self._window.erase()
        for number, line in enumerate(lines[:rows]):
            with contextlib.suppress(curses.error):  # the terminal is smaller now
                self._window.addstr(number, 0, line.text, self._looks[line.style])
        self._window.refresh()


def _looks() -> dict[Style, int]:
    """Return the attributes of the styles on this terminal."""
    looks = dict.fromkeys(Style, curses.A_NORMAL)
    looks |= {Style.HEAD: curses.A_BOLD, Style.SELECTED: curses.A_REVERSE, Style.DIM: curses.A_DIM}
    if curses.has_colors():
        curses.use_default_colors()
        for number, (style, colour) in enumerate(
            ((Style.GOOD, curses.COLOR_GREEN), (Style.WARNING, curses.COLOR_YELLOW), (Style.BAD, curses.COLOR_RED)), 1
        ):
            curses.init_pair(number, colour, -1)
            looks[style] = curses.color_pair(number) | curses.A_BOLD
    return looks
