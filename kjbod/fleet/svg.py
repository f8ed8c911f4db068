"""A small SVG writer: text, shapes, scales and ticks. No script, no font, no dependency; equal input, equal bytes.

Colours are CSS classes, so that the page decides them and a dark page needs no second drawing. There is no layout
engine to ask how wide a text will be: :func:`text_width` estimates it on the wide side (DejaVu Sans, what a bare Linux
has), so a label that fits the estimate fits everywhere.
"""

import math
import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape

FONT_PX = 12
BOLD_PX = 13.8
"""What bold text of :data:`FONT_PX` measures like."""


_TURNS_TEXT = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that nobody sees, and that turn the direction of what follows: a name with one reads as another."""


def clean(text: object) -> str:
    """Text for HTML and SVG: escaped, without control characters, which XML cannot even escape. Those that turn text
    are seen, as ``\\u202e``."""
    given = str(text)  # printable is what has none of these: nearly all
    return escape(given if given.isprintable() else "".join(_shown(char) for char in given))


def _shown(char: str) -> str:
    if char in _TURNS_TEXT:
        return char.encode("unicode_escape").decode()
    return " " if unicodedata.category(char) in ("Cc", "Cs") else char


def text_width(text: str, font_px: float = FONT_PX) -> float:
    """Estimated width in px, rather too wide than too narrow."""
    narrow, wide = "iljtfrI.,:;|!'()[]/ ", "mwMW@%"
    em = sum(0.38 if c in narrow else 0.95 if c in wide else 0.72 if c.isupper() else 0.63 for c in text)
    return em * font_px


def fit(text: str, width_px: float, font_px: float = FONT_PX) -> str:
    """``text``, or its head and tail with an ellipsis between where it would be wider than ``width_px``: in a path or a
    host name the end tells most, and the beginning more than the middle."""
    if text_width(text, font_px) <= width_px:
        return text
    for keep in range(len(text) - 1, 1, -1):
        head = keep // 3
        short = f"{text[:head]}…{text[len(text) - (keep - head) :]}"
        if text_width(short, font_px) <= width_px:
            return short
    return text[-1:]


def number(value: float) -> str:
    """A coordinate: at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


class Drawing:
    """An SVG image under construction."""

    def __init__(self, width: float, label: str, style: str = "") -> None:
        self.width = width
        self.height = 0.0
        self._label = label
        self._style = style
        self._back: list[str] = []
        self._parts: list[str] = []

    def _add(
        self, tag: str, title: str, attributes: dict[str, object], content: str = "", *, back: bool = False
    ) -> None:
        written = "".join(
            f' {name.rstrip("_").replace("_", "-")}="{number(v) if isinstance(v, int | float) else clean(v)}"'
            for name, v in attributes.items()
            if v != ""
        )
        inner = (f"<title>{clean(title)}</title>" if title else "") + content
        parts = self._back if back else self._parts
        parts.append(f"<{tag}{written}>{inner}</{tag}>" if inner else f"<{tag}{written}/>")

    def rect(self, x: float, y: float, w: float, h: float, class_: str, *, radius: float = 0, title: str = "") -> None:
        """A rectangle from its upper left corner."""
        shape: dict[str, object] = {"x": x, "y": y, "width": max(w, 0), "height": h, "class": class_}
        self._add("rect", title, shape | ({"rx": radius} if radius else {}))

    def line(self, x1: float, y1: float, x2: float, y2: float, class_: str) -> None:
        """A straight line, behind everything else."""
        self._add("line", "", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": class_}, back=True)

    def path(self, d: str, class_: str, *, at: tuple[float, float] = (0, 0), title: str = "") -> None:
        """A path in SVG's own notation, with its origin at a point."""
        where = f"translate({number(at[0])} {number(at[1])})" if at != (0, 0) else ""
        self._add("path", title, {"d": d, "class": class_, "transform": where})

    def text(self, x: float, y: float, text: str, class_: str = "", anchor: str = "", title: str = "") -> None:
        """Text on a base line; nothing where there is none."""
        if not text:
            return
        where: dict[str, object] = {"x": x, "y": y, "class": class_, "text_anchor": anchor}
        self._add("text", title, where, clean(text))

    def __str__(self) -> str:
        size = f'viewBox="0 0 {number(self.width)} {number(self.height)}" width="{number(self.width)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{clean(self._label)}"'
        style = f' class="{clean(self._style)}"' if self._style else ""
        content = "".join(self._back + self._parts)
        return f'{head}{style} {size} height="{number(self.height)}">{content}</svg>'


# --- scales and ticks

Scale = Callable[[float], float]


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """Maps ``low..high`` to ``start..end``, and stays inside."""
    span = (high - low) or 1

    def scale(value: float) -> float:
        return start + min(max((value - low) / span, 0), 1) * (end - start)

    return scale


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """As :func:`linear`, by the logarithm; values up to ``low`` are at the start."""
    inner = linear(math.log10(low), math.log10(high), start, end)
    return lambda value: inner(math.log10(max(value, low)))


def nice_ticks(high: float, count: int) -> list[float]:
    """About ``count`` round numbers from 0 to at least ``high``."""
    if high <= 0:
        return [0, 1]
    raw = high / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


_TIME_STEPS_MS = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(1_000, 2_000, 5_000, 10_000, 15_000, 30_000),
    *(60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000),
    *(3_600_000, 7_200_000, 10_800_000, 21_600_000, 43_200_000),
    *(86_400_000 * days for days in (1, 2, 7, 14, 28, 91, 364, 3_640, 36_400)),
)


def time_ticks(first_ms: int, last_ms: int, count: int) -> list[tuple[int, str]]:
    """At most ``count`` round moments between two wall times, with labels in UTC."""
    span = max(last_ms - first_ms, 1)
    step = next((step for step in _TIME_STEPS_MS if span / step <= max(count, 1)), _TIME_STEPS_MS[-1])
    start = -(-first_ms // step) * step
    return [(at, clock_time(at, step)) for at in range(start, last_ms + 1, step)]


def clock_time(at_ms: int, step_ms: int = 1) -> str:
    """A moment in UTC, as exact as a step of ``step_ms`` needs."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    if step_ms >= 86_400_000:
        return f"{at:%Y-%m-%d}"
    if step_ms >= 60_000:
        return f"{at:%H:%M}" if (at.hour, at.minute) != (0, 0) else f"{at:%m-%d}"
    return f"{at:%H:%M:%S}" if step_ms >= 1_000 else f"{at:%H:%M:%S}.{at_ms % 1000:03d}"


def date_time(at_ms: int | None) -> str:
    """A moment for tables, UTC with ms."""
    return "" if at_ms is None else f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S}.{at_ms % 1000:03d}"


# --- units


def duration(ms: float | None) -> str:
    """A duration with two or three digits that matter and its unit."""
    if ms is None:
        return "–"
    if ms < 10:
        return f"{ms:.1f} ms" if ms >= 0.05 else "0 ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 120_000:
        return f"{ms / 1000:.3g} s" if ms < 99_950 else f"{ms / 1000:.0f} s"
    if ms < 7_200_000:
        return f"{ms / 60_000:.0f} min"
    return f"{ms / 3_600_000:.1f} h" if ms < 172_800_000 else f"{ms / 86_400_000:.1f} d"


def size(count: float | None) -> str:
    """Bytes in binary units."""
    if count is None:
        return "–"
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while abs(count) >= 1023.5 and power < len(units) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.0f} {units[power]}" if power == 0 or abs(count) >= 100 else f"{count:.1f} {units[power]}"


def plural(count: int, noun: str, more: str = "") -> str:
    """``1 directory``, ``2 directories``."""
    return f"{count:,} {noun if count == 1 else more or noun + 's'}"


def distinct_tails(paths: Sequence[str]) -> dict[str, str]:
    """For each path as few of its last components as tell it from the others: ``/mnt/d1`` → ``d1``."""
    names = {path: path for path in paths}
    for depth in range(1, 1 + max((path.count("/") for path in paths), default=0)):
        tails = {path: "/".join(path.rstrip("/").split("/")[-depth:]) or path for path in names}
        if len(set(tails.values())) == len(tails):
            return tails
    return names


def axis(
    drawing: Drawing, y: float, ticks: Sequence[tuple[float, str]], marks: Sequence[tuple[float, float]] = ()
) -> None:
    """Tick labels below ``y`` and grid lines between the ``marks``; a label that would touch the one before is left
    out."""
    free = float("-inf")
    for x, text in ticks:
        for top, bottom in marks:
            drawing.line(x, top, x, bottom, "grid")
        half = text_width(text, 11) / 2
        at = min(max(x, half), drawing.width - half)
        if at - half >= free:
            drawing.text(at, y + 16, text, "m t11", "middle")
            free = at + half + 6
