"""The timeline of a host: what happened to its agent and to each of its directories. Pure, from rows to SVG.

It is drawn for a given width, and the page holds it twice, wide and narrow: one drawing scaled to a telephone would
have letters of 4 px.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kjbod.fleet.svg import BOLD_PX, FONT_PX, Drawing, Scale, axis, fit, linear, text_width, time_ticks

NARROW_PX = 640
LABEL_PX_MAX = 250
TICK_BAND = 24


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
    "guard_lacks": ("e-warn", "partitions that lack replicas", "M-5 -5H5V5H-5Z"),
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
