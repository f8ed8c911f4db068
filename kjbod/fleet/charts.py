"""The charts of the fleet page: pure functions from rows to SVG.

Each is drawn for a given width, and the page holds it twice, wide and narrow: one drawing scaled to a telephone would
have letters of 4 px.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from kjbod.fleet.svg import (
    BOLD_PX,
    FONT_PX,
    Drawing,
    Scale,
    axis,
    duration,
    fit,
    linear,
    logarithmic,
    nice_ticks,
    text_width,
    time_ticks,
)
from kjbod.quick_dataclass import dataclass

NARROW_PX = 640
LABEL_PX_MAX = 250
CELL_PX_MIN, CELL_PX_MAX, CELL_GAP = 88, 310, 8
TICK_BAND = 24


@dataclass(frozen=True, slots=True)
class Cell:
    """A directory in the grid."""

    name: str
    state: str
    detail: str
    title: str


@dataclass(frozen=True, slots=True)
class GridRow:
    """An agent in the grid."""

    label: str
    note: str
    cells: tuple[Cell, ...]


def grid(rows: Sequence[GridRow], width: float) -> Drawing:
    """Directories by state: a row for each agent, a cell for each directory. The state is a word, not only a colour."""
    drawing = Drawing(width, "Directories of each agent by state")
    narrow = width < NARROW_PX
    left = 0 if narrow else _label_width([text for row in rows for text in (row.label, row.note)])
    cells = [cell for row in rows for cell in row.cells]
    longest = max((text_width(text, BOLD_PX) for cell in cells for text in (cell.name, cell.state)), default=60)
    room = width - left + CELL_GAP
    most = max((len(row.cells) for row in rows), default=1)
    # As wide as the row allows, so that details fit; as many lines as the narrowest useful box needs.
    per_line = max(2, min(most, int(room // (max(longest + 22, CELL_PX_MIN) + CELL_GAP))))
    cell_width = min(room / per_line - CELL_GAP, CELL_PX_MAX)
    y = 0.0
    for row in rows:
        if narrow:
            drawing.text(0, y + 14, fit(row.label, width, BOLD_PX), "b", title=row.label)
            drawing.text(0, y + 30, fit(row.note, width), "m")
            y += 38
        else:
            drawing.text(0, y + 17, fit(row.label, left - 12, BOLD_PX), "b", title=row.label)
            drawing.text(0, y + 33, fit(row.note, left - 12), "m", title=row.note)
        for index, cell in enumerate(row.cells):
            x = left + index % per_line * (cell_width + CELL_GAP)
            _cell(drawing, cell, x, y + index // per_line * 48, cell_width)
        y += max(1, -(-len(row.cells) // per_line)) * 48 + 10
    drawing.height = max(y - 16, 20)
    return drawing


def _cell(drawing: Drawing, cell: Cell, x: float, y: float, width: float) -> None:
    drawing.rect(x, y, width, 42, f"tint s-{cell.state}", radius=5, title=cell.title)
    drawing.rect(x, y, 5, 42, f"s-{cell.state}", radius=2)
    # The text lets the pointer through to the box: the title is long, and there once.
    drawing.text(x + 13, y + 18, fit(cell.name, width - 18, BOLD_PX), "b c")
    text = f"{cell.state} · {cell.detail}" if cell.detail else cell.state
    fits = text_width(text) <= width - 18
    drawing.text(x + 13, y + 34, text if fits else fit(cell.state, width - 18), "c")


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """A failure: its bars are (CSS class, name, ms or None)."""

    label: str
    note: str
    bars: tuple[tuple[str, str, float | None], ...]
    place: str = ""
    """A third line, as its cluster."""


def latencies(rows: Sequence[LatencyRow], width: float) -> Drawing:
    """Stages of each failure on a logarithmic time axis; every bar starts at the left edge and says its value."""
    drawing = Drawing(width, "Duration of each stage of each failure, logarithmic scale")
    narrow = width < NARROW_PX
    known = [max(ms, 1) for row in rows for _, _, ms in row.bars if ms is not None]
    high = 10.0
    while high < max(known, default=10) * 1.001:
        high *= 10
    names = [name for row in rows for _, name, _ in row.bars]
    left = 0 if narrow else _label_width([text for row in rows for text in (row.label, row.note, row.place)])
    bar_left = left + max((text_width(name, 11) for name in names), default=0) + 8
    scale = logarithmic(1, high, bar_left, width - 58)
    y = 0.0
    marks: list[tuple[float, float]] = []
    for row in rows:
        if narrow:
            drawing.text(0, y + 14, fit(row.label, width, BOLD_PX), "b", title=row.label)
            drawing.text(0, y + 29, fit(row.note, width), "m", title=row.note)
            drawing.text(0, y + 44, fit(row.place, width), "m", title=row.place)
            y += 51 if row.place else 36
        else:
            drawing.text(0, y + 14, fit(row.label, left - 12, BOLD_PX), "b", title=row.label)
            drawing.text(0, y + 30, fit(row.note, left - 12), "m", title=row.note)
            drawing.text(0, y + 46, fit(row.place, left - 12), "m", title=row.place)
        top = y
        for class_, name, ms in row.bars:
            _latency_bar(drawing, scale, y, bar_left, (class_, name, ms), row.label)
            y += 17
        marks.append((top, y))
        y = max(y, top + (0 if narrow else 52 if row.place else 36)) + 12
    ticks = [10.0**power for power in range(7) if 10.0**power <= high]
    axis(drawing, y - 4, [(scale(t), duration(t).replace(".0 ", " ")) for t in ticks], marks)
    drawing.height = y + TICK_BAND
    return drawing


def _latency_bar(
    drawing: Drawing, scale: Scale, y: float, left: float, bar: tuple[str, str, float | None], label: str
) -> None:
    class_, name, ms = bar
    drawing.text(left - 6, y + 12, name, "m t11", "end")
    if ms is None:
        drawing.text(left + 4, y + 12, "not recorded", "m t11")
        return
    end = max(scale(ms), left + 2)
    drawing.rect(left, y + 2, end - left, 12, class_, radius=2, title=f"{label}: {name} {duration(ms)}")
    drawing.text(end + 5, y + 12, duration(ms), "t11")


@dataclass(frozen=True, slots=True)
class BarRow:
    """A bar, with an optional outline that goes further."""

    group: str
    label: str
    value: float
    outline: float | None
    text: str
    class_: str
    title: str


def bars(rows: Sequence[BarRow], width: float, high: float, tick: Callable[[float], str], label: str) -> Drawing:
    """Horizontal bars from zero in groups, on a linear scale up to about ``high``."""
    drawing = Drawing(width, label)
    left = min(max((text_width(row.label) for row in rows), default=40) + 12, width * 0.4)
    right = max((text_width(row.text, 11) for row in rows), default=40) + 10
    ticks = nice_ticks(high, 4 if width < NARROW_PX else 5)
    scale = linear(0, ticks[-1], left, width - right)
    y, group = 0.0, None
    marks: list[tuple[float, float]] = []
    for row in rows:
        if row.group != group:
            y += 6 if group is not None else 0
            drawing.text(0, y + 13, fit(row.group, width, BOLD_PX), "m b", title=row.group)
            y, group = y + 21, row.group
            marks.append((y, y))
        drawing.text(left - 8, y + 14, fit(row.label, left - 8), "", "end", title=row.title)
        if row.outline is not None:
            drawing.rect(left, y + 3, scale(row.outline) - left, 14, "outline", radius=2, title=row.title)
        drawing.rect(left, y + 3, scale(row.value) - left, 14, row.class_, radius=2, title=row.title)
        end = max(scale(row.value), scale(row.outline or 0))
        drawing.text(end + 6, y + 14, row.text, "t11", title=row.title)
        y += 21
        marks[-1] = (marks[-1][0], y)
    axis(drawing, y + 2, [(scale(t), tick(t)) for t in ticks], marks)
    drawing.height = y + 2 + TICK_BAND
    return drawing


# --- timeline


@dataclass(frozen=True, slots=True)
class Mark:
    """An event in a lane."""

    ts: int
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """An agent (``bold``) or one of its directories: bands are (from ms, to ms, state)."""

    label: str
    bold: bool
    bands: tuple[tuple[int, int, str], ...]
    marks: tuple[Mark, ...]


SHAPES: Mapping[str, tuple[str, str, str]] = {
    "agent_started": ("e-start", "agent started", "M-4 -5L5 0L-4 5Z"),
    "registered": ("e-calm", "registered", "M0 -4A4 4 0 1 1 0 4A4 4 0 1 1 0 -4Z"),
    "unfenced": ("e-good", "unfenced", "M0 -5A5 5 0 1 1 0 5A5 5 0 1 1 0 -5Z"),
    "fenced": ("e-warn", "fenced", "M0 -5A5 5 0 1 1 0 5A5 5 0 1 1 0 -5Z"),
    "state_changed": ("e-calm", "state changed", "M-1.5 -6H1.5V6H-1.5Z"),
    "dir_failed": ("e-bad", "directory failed", "M-6 -4L-4 -6L0 -2L4 -6L6 -4L2 0L6 4L4 6L0 2L-4 6L-6 4L-2 0Z"),
    "offline_sent": ("e-warn", "offline sent", "M-4 -5L5 0L-4 5Z"),
    "acknowledged": ("e-good", "acknowledged", "M-6 0L-4 -2L-2 1L4 -6L6 -4L-2 6Z"),
    "leadership_moved": ("e-move", "leadership moved", "M0 -6L6 0L0 6L-6 0Z"),
    "timeout_shutdown": ("e-bad", "failure timeout", "M-5 -5H5V5H-5Z"),
    "kafka_noticed": ("e-good", "Kafka noticed", "M-6 0L-4 -2L-2 1L4 -6L6 -4L-2 6Z"),
    "guard_would": ("e-warn", "what a guard would do", "M0 -6L6 0L0 6L-6 0Z"),
    "guard_does": ("e-calm", "guard begins", "M-4 -5L5 0L-4 5Z"),
    "guard_done": ("e-move", "what came of it", "M0 -6L6 0L0 6L-6 0Z"),
    "guard_stands": ("e-calm", "where the guard is with it", "M-1.5 -6H1.5V6H-1.5Z"),
    "agent_stopped": ("e-stop", "agent stopped", "M-5 -5H5V5H-5Z"),
    "assignments_acknowledged": ("e-calm", "assignments recorded", "M-4 -4H4V-1H-4ZM-4 1H4V4H-4Z"),
    "replica_created": ("e-calm", "replicas created", "M-1.2 -5H1.2V-1.2H5V1.2H1.2V5H-1.2V1.2H-5V-1.2H-1.2Z"),
}
"""Kind to CSS class, name and outline around the origin, within 6 px."""
_OTHER = ("e-calm", "other", "M-3 -3H3V3H-3Z")
MARK_PX = 13


def shape(kind: str) -> tuple[str, str, str]:
    """CSS class, name and outline of a kind of event; kinds that are not known yet are "other"."""
    return SHAPES.get(kind, _OTHER)


def timeline(lanes: Sequence[Lane], first_ms: int, last_ms: int, width: float) -> Drawing:
    """Events of each agent and directory. Marks that would cover each other stand side by side, to the right of their
    moment."""
    drawing = Drawing(width, "Events of each agent and directory over time")
    narrow = width < NARROW_PX
    left = 4 if narrow else _label_width([lane.label for lane in lanes])
    pad = max((last_ms - first_ms) // 40, 1)
    # Room on the right for marks that were pushed aside.
    crowd = max((len(lane.marks) for lane in lanes), default=0)
    first_ms, last_ms = first_ms - pad, last_ms + pad
    scale = linear(first_ms, last_ms, left, width - min(8 + crowd * 6, width * 0.2))
    y = 0.0
    tops: list[tuple[float, float]] = []
    for index, lane in enumerate(lanes):
        y += 8 if lane.bold and index else 0
        if narrow:
            drawing.text(0, y + 13, fit(lane.label, width, BOLD_PX), "b" if lane.bold else "", title=lane.label)
            y += 18
        else:
            indent = 0 if lane.bold else 12
            text = fit(lane.label, left - 12 - indent, BOLD_PX if lane.bold else FONT_PX)
            drawing.text(indent, y + 15, text, "b" if lane.bold else "", title=lane.label)
        tops.append((y, y + 22))
        y += 24
    ticks = time_ticks(first_ms, last_ms, max(2, int((scale(last_ms) - left) // 90)))
    axis(drawing, y, [(scale(at), text) for at, text in ticks], [(a, b) for a, b in _merge(tops)])
    for (top, _), lane in zip(tops, lanes, strict=True):
        _lane(drawing, lane, top, scale)
    drawing.height = y + TICK_BAND
    return drawing


def _lane(drawing: Drawing, lane: Lane, top: float, scale: Scale) -> None:
    for start, end, state in lane.bands:
        title = f"{lane.label}: {state}"
        drawing.rect(scale(start), top + 6, scale(end) - scale(start), 11, f"band s-{state}", radius=2, title=title)
    for x, mark in spread([(scale(mark.ts), mark) for mark in lane.marks], drawing.width - 8):
        class_, _, outline = shape(mark.kind)
        drawing.path(outline, f"mark {class_}", title=mark.title, at=(x, top + 11.5))


def spread(marks: Sequence[tuple[float, Mark]], right: float) -> list[tuple[float, Mark]]:
    """Marks moved right until none covers another, and then left of ``right``."""
    placed: list[float] = []
    for x, _ in marks:
        placed.append(max(x, placed[-1] + MARK_PX if placed else 8))
    limit = right
    for index in range(len(placed) - 1, -1, -1):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - MARK_PX
    return [(x, mark) for x, (_, mark) in zip(placed, marks, strict=True)]


def _merge(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Grid lines run through lanes that touch."""
    merged = list(spans[:1])
    for before, span in pairwise(spans):
        if span[0] - before[1] <= 2:
            merged[-1] = (merged[-1][0], span[1])
        else:
            merged.append(span)
    return merged


def _label_width(labels: Sequence[str]) -> float:
    return min(max((text_width(label, BOLD_PX) for label in labels), default=0) + 20, LABEL_PX_MAX)
