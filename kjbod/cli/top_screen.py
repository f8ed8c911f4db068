"""Screen of ``kjbod top``, from two answers of ``status``: the last one, and an earlier one for rates. Pure.

Lines are plain text without control characters, each with a style. The caller draws them on the terminal.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final

from msgspec import Struct

from kjbod.output import UNKNOWN, cells, cut, duration, percent, safe
from kjbod.units import moment

BUCKETS_PER_DOUBLING: Final = 4
"""Buckets per doubling of a latency histogram (:func:`kjbod.fleet.schema.latency_bucket`)."""
_HEAD: Final = ("STATE", "SINCE", "KAFKA", "P50", "P99", "BUSY", "USED", "LEADERS", "REPLICAS", "DEVICE", "DIRECTORY")
_RIGHT: Final = frozenset(("P50", "P99", "BUSY", "USED", "LEADERS", "REPLICAS"))
_HEALTHY: Final = frozenset(("online",))
_BAD: Final = frozenset(("failed", "unreadable"))
HELP: Final = "↑ ↓ directory   Enter details   h history   q quit"


class Style(Enum):
    """Look of a line."""

    PLAIN = auto()
    HEAD = auto()
    GOOD = auto()
    WARNING = auto()
    BAD = auto()
    SELECTED = auto()
    DIM = auto()


class Line(Struct, frozen=True):
    """Line of the screen."""

    text: str
    style: Style = Style.PLAIN


class View(Struct, frozen=True):
    """View that the user has chosen.

    Attributes:
        selected: number of the selected directory.
        details: show all facts about the selected directory.
        history: show the guard's history instead of the directories' table.
    """

    selected: int = 0
    details: bool = False
    history: bool = False


def press(view: View, key: str, directories: int) -> View | None:
    """Return the view after a key; None: the user quits. Unknown keys change nothing."""
    match key:
        case "q":
            return None
        case "up":
            return View(max(view.selected - 1, 0), view.details, view.history)
        case "down":
            return View(max(min(view.selected + 1, directories - 1), 0), view.details, view.history)
        case "enter":
            return View(view.selected, not view.details, history=False)
        case "h":
            return View(view.selected, details=False, history=not view.history)
        case _:
            return view


def quantile_ms(histogram: Mapping[str, int], before: Mapping[str, int], part: float) -> float | None:
    """Return a quantile of the probes between two histograms, in ms: the upper end of its bucket; None: no probe."""
    counts = sorted((int(bucket), count - before.get(bucket, 0)) for bucket, count in histogram.items())
    total = sum(count for _, count in counts if count > 0)
    passed = 0
    for bucket, count in counts:
        passed += max(count, 0)
        if total and passed >= part * total:
            return float(2 ** ((bucket + 1) / BUCKETS_PER_DOUBLING)) / 1000
    return None


def screen(
    answer: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    elapsed_ms: int,
    view: View,
    history: Sequence[str],
    columns: int,
    rows: int,
) -> list[Line]:
    """Return the lines of the screen, at most ``rows`` of at most ``columns``.

    Args:
        answer: current answer of ``status``.
        before: an earlier answer, for quantiles and the busy time; None: none yet.
        elapsed_ms: time between the two answers.
        view: view that the user has chosen.
        history: newest lines of the guard's history, the newest last.
        columns: width of the terminal.
        rows: height of the terminal.
    """
    directories = answer["directories"]
    selected = min(view.selected, max(len(directories) - 1, 0))
    level = str(answer["condition"]["level"])
    style = {"ok": Style.GOOD, "degraded": Style.WARNING}.get(level, Style.BAD)
    shown = [
        Line(safe(answer["condition"]["text"]), style),
        Line(_node(answer), Style.DIM),
        Line(""),
    ]
    if view.history:
        room = max(rows - len(shown) - 1, 0)
        shown += [Line(safe(line)) for line in history[-room:]] if room else []
    else:
        shown += _table(directories, before, elapsed_ms, selected, wide=columns)
        if view.details and directories:
            shown += [Line(""), *_details(directories[selected])]
        elif (room := rows - len(shown) - 2) > 0 and history:
            shown += [Line(""), *(Line(safe(line), Style.DIM) for line in history[-room:])]
    shown = shown[: max(rows - 1, 1)]
    return [Line(cut(line.text, columns), line.style) for line in [*shown, Line(HELP, Style.DIM)]][:rows]


def _node(answer: Mapping[str, Any]) -> str:
    """Return the line about the node: answering process, version, mode, broker and moves."""
    parts = [f"node {answer['node']}", f"{answer.get('role', 'agent')} {safe(answer['version'])}"]
    if answer.get("mode"):
        parts.append(f"mode {safe(answer['mode'])}")
    if (broker := answer.get("broker")) is not None:
        parts.append("no broker" if broker["pid"] is None else f"broker {broker['pid']}")
    if answer.get("evicted"):
        parts.append(f"evicted {answer['evicted']}")
    if moves := answer.get("moves"):
        parts.append(f"moves {moves if isinstance(moves, int) else len(moves)}")
    return ", ".join(parts)


def _table(
    directories: Sequence[Mapping[str, Any]],
    before: Mapping[str, Any] | None,
    elapsed_ms: int,
    selected: int,
    *,
    wide: int,
) -> list[Line]:
    earlier = {} if before is None else {row["path"]: row for row in before["directories"]}
    table = [_HEAD, *(_row(row, earlier.get(row["path"]), elapsed_ms) for row in directories)]
    widths = [max(cells(row[at]) for row in table) for at in range(len(_HEAD))]
    lines = []
    for row in table:
        padded = (
            " " * (size - cells(text)) + text if title in _RIGHT else text + " " * (size - cells(text))
            for title, text, size in zip(_HEAD, row, widths, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    styles = (_style(row, number == selected) for number, row in enumerate(directories))
    return [Line(lines[0], Style.HEAD), *map(Line, lines[1:], styles)]


def _style(row: Mapping[str, Any], selected: bool) -> Style:
    if selected:
        return Style.SELECTED
    state = row["verdict"]
    return Style.PLAIN if state in _HEALTHY else Style.BAD if state in _BAD else Style.WARNING


def _row(row: Mapping[str, Any], before: Mapping[str, Any] | None, elapsed_ms: int) -> tuple[str, ...]:
    total, usable = row["total_bytes"], row["usable_bytes"]
    histogram, old = row.get("probe_histogram"), {} if before is None else before.get("probe_histogram") or {}
    busy = None if before is None or row.get("busy_ms") is None or before.get("busy_ms") is None else row["busy_ms"]
    return (
        safe(row["verdict"]),
        UNKNOWN if row["since_ms"] is None else moment(row["since_ms"])[5:16],
        safe(row.get("kafka") or "-"),
        *("-" if not histogram else _ms(quantile_ms(histogram, old, part)) for part in (0.5, 0.99)),
        "-" if busy is None or not elapsed_ms else percent(busy - before["busy_ms"], elapsed_ms),  # type: ignore[index]
        UNKNOWN if total is None or usable is None else percent(total - usable, total),
        UNKNOWN if row["leaders"] is None else str(row["leaders"]),
        UNKNOWN if row.get("replicas") is None else str(row["replicas"]),
        safe(str(row["device"] or "-").split(" ", 1)[0]),
        safe(row["path"]),
    )


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f} ms" if value < 100 else f"{value / 1000:.2f} s" if value < 10_000 else duration(value / 1000)


def _details(row: Mapping[str, Any]) -> Iterator[Line]:
    """Yield lines with all facts about a directory."""
    for title, name in (
        ("directory", "path"),
        ("directory.id", "directory_id"),
        ("device", "device"),
        ("model", "model"),
        ("serial number", "serial"),
        ("file system", "file_system"),
        ("cause", "cause"),
        ("evidence", "error"),
        ("stage", "step"),
        ("reason", "step_reason"),
        ("next action", "would"),
        ("reason", "would_reason"),
        ("waits for", "waits_for"),
    ):
        if (value := row.get(name)) is not None:
            yield Line(f"{title:<14} {safe(value)}")
