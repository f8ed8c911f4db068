"""Charts of the page: the map of the fleet, intervals, and lines; pure functions to SVG."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kjbod.fleet.page.model import ONLINE, Cell, MapHost, host_file, severity
from kjbod.fleet.svg import BOLD_PX, Drawing, axis, clean, fit, linear, logarithmic, nice_ticks, number, text_width

NAMED_HOSTS_MAX = 120
"""Up to so many hosts the map has their names."""
RACK_PX_MAX = 336
"""Width of a rack in the map: what a telephone shows."""
LABEL_PX_MAX = 150
SHADES = (20, 40, 60, 80)
"""Used percent from which on an online directory is drawn in the next darker shade."""
STATES = frozenset(
    ("failed", "silent", "stopped", "unreadable", "held", "suspect", "slow", "full", "unknown", "online")
)


def state_class(state: str) -> str:
    """CSS class of a state; states of a later version are as one that is not known."""
    return f"s-{state}" if state in STATES else "s-unknown"


@dataclass(frozen=True, slots=True)
class _Grid:
    cell: float
    gap: float
    per_line: int
    label: float
    row_gap: float

    @property
    def pitch(self) -> float:
        return self.cell + self.gap

    def lines(self, host: MapHost) -> int:
        return max(1, -(-len(host.cells) // self.per_line))


def fleet_map(hosts: Sequence[MapHost]) -> str:
    """All hosts by rack: a row for each host, a square for each directory. Racks flow, so it fits any window."""
    named = len(hosts) <= NAMED_HOSTS_MAX
    most = max((len(host.cells) for host in hosts), default=1) or 1
    label = 0.0
    if named:
        label = min(max((text_width(_name(h, hosts), 12) for h in hosts), default=0) + 10, LABEL_PX_MAX)
    cell, gap = (14.0, 2.0) if named else (7.0, 1.0)
    per_line = max(1, min(most, int((RACK_PX_MAX - label) // (cell + gap))))
    grid = _Grid(cell, gap, per_line, label, 4.0 if named else 1.0)
    racks: dict[tuple[str, str], list[MapHost]] = {}
    for host in hosts:
        racks.setdefault((host.agent.fleet or "", host.agent.rack or ""), []).append(host)
    several = len({fleet for fleet, _ in racks}) > 1
    drawn = "".join(_rack(fleet if several else "", rack, members, grid) for (fleet, rack), members in racks.items())
    return f'<div class="racks">{drawn}</div>'


def _name(host: MapHost, hosts: Sequence[MapHost]) -> str:
    return host.agent.host.split(".")[0] if not host.agent.host[:1].isdigit() else host.agent.host


def _rack(fleet: str, rack: str, hosts: Sequence[MapHost], grid: _Grid) -> str:
    caption = " · ".join(part for part in (fleet, rack or "no rack") if part)
    width = grid.label + min(grid.per_line, max(len(h.cells) for h in hosts) or 1) * grid.pitch
    drawing = Drawing(max(width, grid.label + 1), f"Directories of {caption} by host and state")
    shades: dict[str, list[str]] = {}
    rows: list[str] = []
    y = 0.0
    for host in hosts:
        height = grid.lines(host) * grid.pitch
        for index, cell in enumerate(host.cells):
            x = grid.label + index % grid.per_line * grid.pitch
            top = y + index // grid.per_line * grid.pitch
            # What is not well fills the gap as well: it is what one looks for.
            side = grid.cell if cell.state == ONLINE else grid.pitch
            at = f"M{number(x)} {number(top)}h{number(side)}v{number(side)}h-{number(side)}z"
            shades.setdefault(_class_of(cell), []).append(at)
        if grid.label:
            text = fit(_name(host, hosts), grid.label - 8)
            rows.append(f'<text x="0" y="{number(y + 12)}" aria-hidden="true">{clean(text)}</text>')
        to = f"hosts/{host_file(host.agent.fleet, host.agent.host, host.agent.broker_id)}"
        box = f'<rect y="{number(y)}" width="{number(width)}" height="{number(height)}"/>'
        rows.append(f'<a href="{to}" tabindex="-1"><title>{clean(_tells(host))}</title>{box}</a>')
        y += height + grid.row_gap
    drawing.height = max(y - grid.row_gap, 1)
    order = sorted(shades, key=lambda name: name.startswith("s-"))
    paths = "".join(f'<path class="{name}" d="{"".join(shades[name])}"/>' for name in order)
    size = f'viewBox="0 0 {number(drawing.width)} {number(drawing.height)}" width="{number(drawing.width)}"'
    return (
        f"<figure><figcaption>{clean(caption)}</figcaption>"
        f'<svg xmlns="http://www.w3.org/2000/svg" role="group" {size} height="{number(drawing.height)}" '
        f'aria-label="{clean(f"Directories of {caption} by host and state")}">{paths}{"".join(rows)}</svg></figure>'
    )


def _class_of(cell: Cell) -> str:
    if cell.state != ONLINE:
        return state_class(cell.state)
    return f"u{sum((cell.used_pct or 0) >= mark for mark in SHADES)}"


def _tells(host: MapHost) -> str:
    counts: dict[str, int] = {}
    for cell in host.cells:
        counts[cell.state] = counts.get(cell.state, 0) + 1
    states = ", ".join(f"{counts[state]} {state}" for state in sorted(counts, key=lambda s: (severity(s), s)))
    sick = ", ".join(cell.path for cell in host.cells if cell.state not in (ONLINE, host.agent.status))
    return f"{host.agent.host}, broker {host.agent.broker_id}: {states or 'no directory'}" + (
        f": {sick}" if sick else ""
    )


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A rate with its limits, in percent; None: there were no failures, and only the upper limit says something."""

    label: str
    value: float | None
    low: float
    high: float
    text: str
    title: str = ""


def intervals(rows: Sequence[IntervalRow], width: float, label: str) -> Drawing:
    """A dot with its whiskers for each row, on one linear scale from zero."""
    drawing = Drawing(width, label)
    narrow = width < 640
    left = 0 if narrow else min(max((text_width(r.label, BOLD_PX) for r in rows), default=0) + 14, 300)
    right = max((text_width(row.text, 11) for row in rows), default=0) + 12
    # One model of which little is known must not press the others to the left edge.
    highs = sorted(row.high for row in rows)
    high = min(highs[-1], max(highs[len(highs) // 2] * 4, max(r.value or 0 for r in rows) * 1.25)) if rows else 1
    ticks = nice_ticks(high or 1, 3 if narrow else 6)
    start = left + 6
    scale = linear(0, ticks[-1], start, max(width - right, start + 40))
    y = 0.0
    tops = y
    for row in rows:
        drawing.text(0, y + 14, fit(row.label, width if narrow else left - 10, BOLD_PX), "b", title=row.title)
        if narrow:
            y += 18
        middle = y + 10
        drawing.rect(scale(row.low), middle - 1, max(scale(row.high) - scale(row.low), 1), 2, "dot", title=row.title)
        for at in (row.low, row.high):
            if at <= ticks[-1]:
                drawing.rect(scale(at) - 0.75, middle - 5, 1.5, 10, "dot")
        if row.value is not None:
            drawing.rect(scale(row.value) - 4, middle - 4, 8, 8, "dot", radius=4, title=row.title)
        drawing.text(scale(row.high) + 8, y + 14, row.text, "t11", title=row.title)
        y += 24
    axis(drawing, y, [(scale(t), f"{t:g} %") for t in ticks], [(tops, y)])
    drawing.height = y + 24
    return drawing


def spark_line(values: Sequence[tuple[int, float]], days: int, label: str, high: float | None = None) -> Drawing:
    """A small line over the days of the report; gaps where a day has none."""
    drawing = Drawing(180, label)
    drawing.height = 30
    top = high or max((value for _, value in values), default=1) or 1
    across, up = linear(0, max(days - 1, 1), 3, 177), linear(0, top, 27, 3)
    pieces: list[list[tuple[int, float]]] = []
    for day, value in values:
        if pieces and pieces[-1][-1][0] == day - 1:
            pieces[-1].append((day, value))
        else:
            pieces.append([(day, value)])
    drawing.line(3, 27, 177, 27, "grid")
    for piece in pieces:
        if len(piece) == 1:
            drawing.rect(across(piece[0][0]) - 1, up(piece[0][1]) - 1, 2.5, 2.5, "dot")
        else:
            points = (f"{number(across(day))} {number(up(value))}" for day, value in _turns(piece))
            drawing.path("M" + "L".join(points), "line")
    return drawing


def _turns(line: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """A line without the points in the middle of what is level: nearly all of most lines, of a thousand pages."""
    inner = (at for a, at, b in zip(line, line[1:], line[2:], strict=False) if not a[1] == at[1] == b[1])
    return [line[0], *inner, line[-1]]


@dataclass(frozen=True, slots=True)
class Stage:
    """A quantile pair on a logarithmic scale: from the median to p95, and the maximum; in ms."""

    label: str
    note: str
    median: float
    p95: float
    most: float
    text: str


def quantiles(rows: Sequence[Stage], width: float, label: str, tick: Callable[[float], str]) -> Drawing:
    """A bar from median to p95 with a whisker to the maximum for each row, on a logarithmic scale."""
    drawing = Drawing(width, label)
    narrow = width < 640
    left = 0 if narrow else min(max((text_width(r.label, BOLD_PX) for r in rows), default=0) + 14, 260)
    right = max((text_width(row.text, 11) for row in rows), default=0) + 12
    high, low = 10.0, 1.0
    while high < max((row.most for row in rows), default=10):
        high *= 10
    scale = logarithmic(low, high, left + 4, max(width - right, left + 60))
    y = 0.0
    for row in rows:
        drawing.text(0, y + 14, fit(row.label, width if narrow else left - 10, BOLD_PX), "b", title=row.note)
        if narrow:
            y += 18
        drawing.rect(scale(row.median), y + 9, max(scale(row.most) - scale(row.median), 1), 2, "dot")
        drawing.rect(scale(row.median), y + 4, max(scale(row.p95) - scale(row.median), 3), 12, "bar", radius=2)
        drawing.text(scale(row.most) + 7, y + 14, row.text, "t11")
        y += 24
    ticks = [10.0**power for power in range(9) if 10.0**power <= high]
    axis(drawing, y, [(scale(t), tick(t)) for t in ticks], [(0, y)])
    drawing.height = y + 24
    return drawing


def steps(points: Sequence[tuple[float, float, float, float]], width: float, label: str) -> Drawing:
    """A survival curve with its band: points are (age in years, survival, low, high)."""
    drawing = Drawing(width, label)
    drawing.height = 200
    lowest = min((low for _, _, low, _ in points), default=0.0)
    floor = max(0.0, int(lowest * 20 - 0.5) / 20)
    first, last = points[0][0], max(points[-1][0], points[0][0] + 0.1)
    across, up = linear(first, last, 46, width - 10), linear(floor, 1.0, 168, 8)
    band_up, band_down, curve = [], [], [f"M{number(across(first))} {number(up(points[0][1]))}"]
    for (age, value, low, high), after in pairwise([*points, (last, *points[-1][1:])]):
        for at in (age, after[0]):
            band_up.append(f"{number(across(at))} {number(up(high))}")
            band_down.append(f"{number(across(at))} {number(up(low))}")
        curve.append(f"V{number(up(value))}H{number(across(after[0]))}")
    drawing.path("M" + "L".join([*band_up, *reversed(band_down)]) + "Z", "ci")
    drawing.path("".join(curve), "line")
    for index in range(5):
        value = floor + (1 - floor) * index / 4
        drawing.line(46, up(value), width - 10, up(value), "grid")
        drawing.text(40, up(value) + 4, f"{100 * value:.1f} %", "m t11", "end")
    marks = [first + (last - first) * part / 4 for part in range(5)]
    axis(drawing, 172, [(across(t), f"{t:.1f} years") for t in marks])
    return drawing
