"""``kjbod move``: move replicas between directories of this broker, and show the progress."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from kjbod.cli import ask
from kjbod.errors import EXIT_FAILURE
from kjbod.output import (
    Printer,
    cells,
    complain,
    cut,
    duration,
    percent,
    plural,
    safe,
    size,
    table,
    width,
)
from kjbod.runtime.control_socket import ControlClient

TOPIC_BYTES_MAX: Final = 249
PARTITIONS_PER_REQUEST: Final = 500
BAR_CELLS: Final = range(5, 31)
"""Range of the bar's width: the columns that the other words leave."""


@click.command()
@ask.options
@ask.guarded
@click.argument("partitions", metavar="TOPIC-PARTITION...", nargs=-1)
@click.option("--to", "to", metavar="PATH", help="The log directory to move to.")
@click.option("--from", "source", metavar="PATH", help="All replicas in this log directory, instead of naming them.")
@click.option("--cancel", is_flag=True, help="End moves that are under way; the replicas stay where they are.")
@click.option("--list", "listing", is_flag=True, help="The moves that are under way.")
@click.option("--watch", is_flag=True, help="Show how far they are until they have ended.")
def move(
    config_path: Path,
    own_path: Path | None,
    as_json: bool,
    partitions: tuple[str, ...],
    to: str | None,
    source: str | None,
    cancel: bool,
    listing: bool,
    watch: bool,
) -> int:
    """Move replicas to another log directory.

    \b
    kjbod move -c FILE orders-0 orders-1 --to /mnt/d2 --watch
    kjbod move -c FILE --from /mnt/d1 --to /mnt/d2
    kjbod move -c FILE orders-0 --cancel
    kjbod move -c FILE --list

    A move copies, verifies, asks the controller and only then replaces the old copy. It survives the end of the agent.
    """
    named = [parse(text) for text in partitions]
    _check(named, to=to, source=source, cancel=cancel, listing=listing, watch=watch)
    config = ask.load(config_path, own_path)
    client = ask.client(config, own_path)
    to, source = (None if path is None else ask.configured(config, path) for path in (to, source))
    out = Printer()
    if to is None and not cancel:
        if watch:
            return _watch(client, named or None, out, as_json)
        return _list(client, out, as_json)
    outcomes = list(_ask(client, named, to, source, cancel))
    failed = _tell(outcomes, to, cancel, out, as_json, line=watch)
    begun = [(o["topic"], o["partition"]) for o in outcomes if o["error"] is None and o["note"] is None]
    if watch and begun and not cancel:
        # Very many moves are watched as "all": their names do not fit into a request.
        failed |= _watch(client, begun if len(begun) <= PARTITIONS_PER_REQUEST else None, out, as_json) != 0
    return EXIT_FAILURE if failed else 0


def parse(text: str) -> tuple[str, int]:
    """Parse topic and partition of ``orders-0``: the number is after the last dash.

    Raises:
        click.BadParameter: the text does not have that form.
    """
    topic, dash, number = text.rpartition("-")
    good_number = number.isascii() and number.isdigit() and int(number[:11]) < 1 << 31 and len(number) <= 10
    allowed = all(char.isascii() and (char.isalnum() or char in "._-") for char in topic)
    if not dash or not good_number or not topic or not allowed or len(topic) > TOPIC_BYTES_MAX:
        raise click.BadParameter(f"{safe(text)}: expected a topic and a partition, as in orders-0")
    return topic, int(number)


def _check(
    named: Sequence[tuple[str, int]],
    *,
    to: str | None,
    source: str | None,
    cancel: bool,
    listing: bool,
    watch: bool,
) -> None:
    """Refuse contradictory options before any request is sent."""
    given = bool(named) or source is not None
    if listing:
        if given or to is not None or cancel:
            raise click.UsageError("--list stands alone, or with --watch")
        return
    if cancel:
        if to is not None or not given:
            raise click.UsageError("--cancel needs partitions or --from, and no --to")
    elif to is None and not (watch and source is None):
        missing = "--to PATH is missing: the log directory to move to"
        raise click.UsageError(missing if given else "expected TOPIC-PARTITION... --to PATH")
    elif to is not None and not given:
        raise click.UsageError(
            "TOPIC-PARTITION... is missing: the replicas to move, or --from PATH for all of a directory"
        )
    if named and source is not None:
        raise click.UsageError("partitions and --from exclude each other")


# ----------------------------------------------------------------------------------------------------- begin and cancel


def _ask(
    client: ControlClient,
    named: Sequence[tuple[str, int]],
    to: str | None,
    source: str | None,
    cancel: bool,
) -> Iterator[dict[str, Any]]:
    target = {} if to is None else {"to": to}
    if source is not None:
        requests: list[dict[str, Any]] = [{"from": source}]
    else:
        unique = list(dict.fromkeys(named))
        starts = range(0, len(unique), PARTITIONS_PER_REQUEST)
        requests = [{"partitions": unique[start : start + PARTITIONS_PER_REQUEST]} for start in starts]
    for request in requests:
        if cancel:
            yield from client.call("move-cancel", **request)
        else:
            for piece in client.stream("move", **request, **target):
                yield from piece


def _tell(
    outcomes: Sequence[dict[str, Any]], to: str | None, cancel: bool, out: Printer, as_json: bool, *, line: bool
) -> bool:
    """Print the outcome of each move, and return whether any move failed."""
    done = "cancelled" if cancel else f"on its way to {safe(to)}"
    if as_json:
        out.json(outcomes, line=line)
    elif not outcomes:
        out("nothing to do: no replica there" if not cancel else "nothing to do: no move from there")
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome["error"] is not None:
            reasons.setdefault(outcome["error"], []).append(name_of(outcome))
        elif not as_json:
            out(f"{name_of(outcome)}: {safe(outcome['note'] or done)}")
    for reason, names in reasons.items():
        complain(safe(reason) if names[0] in reason else f"{_several(names)}: {safe(reason)}")
    return bool(reasons)


def _several(names: Sequence[str]) -> str:
    """Return ``orders-0``, or ``orders-0 and 9 more``."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"


# ----------------------------------------------------------------------------------------------------------------- list


def _list(client: ControlClient, out: Printer, as_json: bool) -> int:
    moves = [move for part in client.stream("moves") for move in part["moves"]]
    if as_json:
        out.json(moves)
    elif not moves:
        out("no moves")
    else:
        out(*move_lines(moves))
    return 0


def move_lines(moves: Iterable[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of moves."""
    rows = [
        (
            name_of(move),
            move["state"],
            percent(move["copied_bytes"], move["total_bytes"]),
            size(move["total_bytes"]),
            f"{size(move['bytes_per_second'])}/s",
            f"{safe(move['from'] or '?')} -> {safe(move['to'])}",
        )
        for move in moves
    ]
    return table(("REPLICA", "STATE", ">DONE", ">SIZE", ">RATE", "FROM -> TO"), rows)


def name_of(move: dict[str, Any]) -> str:
    """Return ``orders-0``."""
    return safe(f"{move['topic']}-{move['partition']}")


# ---------------------------------------------------------------------------------------------------------------- watch


def _watch(client: ControlClient, named: Sequence[tuple[str, int]] | None, out: Printer, as_json: bool) -> int:
    """Show progress until the moves have ended, and return the exit code."""
    wanted = {} if named is None else {"partitions": list(named)}
    display = _Lines(out) if not sys.stdout.isatty() else _Bar(out)
    failed, seen = 0, False
    try:
        for progress in client.stream("moves", watch=True, **wanted):
            seen |= bool(progress["moves"] or progress["ended"])
            failed += sum(ended["moved"] is False for ended in progress["ended"])
            if as_json:
                out.json(progress, line=True)
            else:
                display.show(progress)
    except KeyboardInterrupt:
        display.close()
        complain("the moves go on: kjbod move --list shows them, --cancel ends them")
        raise
    display.close()
    if not seen and not as_json:
        out("no moves")
    return EXIT_FAILURE if failed else 0


def end_line(ended: dict[str, Any]) -> str:
    """Return the line about the end of a move."""
    name, at = name_of(ended), safe(ended["at"] or "no directory of this broker")
    if ended["moved"] is False:
        return f"{name}: not moved, it is in {at}: {safe(ended.get('reason') or 'the log of the agent says why')}"
    return f"{name}: moved, it is in {at}" if ended["moved"] else f"{name}: not being moved, it is in {at}"


class _Lines:
    """Progress without a terminal: a line for each tenth and for each state of a move."""

    def __init__(self, out: Printer) -> None:
        self._out = out
        self._told: dict[str, tuple[str, int]] = {}

    def show(self, progress: dict[str, Any]) -> None:
        for move in progress["moves"]:
            mark = (move["state"], 10 * move["copied_bytes"] // max(1, move["total_bytes"]))
            if self._told.get(name_of(move)) != mark:
                self._told[name_of(move)] = mark
                how = f"{figures(move)}, " if move["total_bytes"] else ""
                self._out(f"{name_of(move)}: {how}{move['state']}")
        self._out(*map(end_line, progress["ended"]))

    def close(self) -> None:
        pass


class _Bar:
    """Progress bar for all moves together, redrawn on the last line of a terminal."""

    def __init__(self, out: Printer) -> None:
        self._out = out
        self._drawn = 0

    def show(self, progress: dict[str, Any]) -> None:
        moves = progress["moves"]
        for ended in progress["ended"]:
            self._draw("")
            self._out(end_line(ended))
        if moves:
            self._draw(bar_line(moves, progress["all"], (width() or 80) - 1))

    def close(self) -> None:
        self._draw("")

    def _draw(self, line: str) -> None:
        """Replace the last drawn line with ``line``. An empty one leaves the cursor at the start of a clean line."""
        if not line and not self._drawn:
            return
        blank = " " * max(0, self._drawn - cells(line))
        self._drawn = cells(line)
        self._out(f"\r{line}{blank}" + ("" if line else "\r"), end="")


def bar_line(moves: Sequence[dict[str, Any]], everything: dict[str, Any], columns: int) -> str:
    """Return all moves in one line: ``orders-0  [##------]  25 %, 1.0 GiB of 4.0 GiB, ...``."""
    total, copied, count = everything["total_bytes"], everything["copied_bytes"], everything["moves"]
    what = name_of(moves[0]) if count == 1 else plural(count, "move")
    how = figures(everything) + (f", {moves[0]['state']}" if count == 1 else "")
    length = max(BAR_CELLS.start, min(columns - cells(what) - cells(how) - 6, BAR_CELLS.stop - 1))
    filled = length * min(copied, total) // total if total else 0
    return cut(f"{what}  [{'#' * filled}{'-' * (length - filled)}]  {how}", columns)


def figures(of: dict[str, Any]) -> str:
    """Return the progress of a move, or of the sum of several: ``25 %, 1.0 GiB of 4.0 GiB, 120 MiB/s, 25 s left``."""
    total, copied, rate = of["total_bytes"], of["copied_bytes"], of["bytes_per_second"]
    left = f", {duration((total - copied) / rate)} left" if rate and copied < total else ""
    return f"{percent(copied, total) if total else '0 %'}, {size(copied)} of {size(total)}, {size(rate)}/s{left}"
