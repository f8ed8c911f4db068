"""Parts that all pages have in common: the frame with its policy, the script that sorts tables, tables, sections."""

import base64
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kjbod.fleet.page.style import CSS
from kjbod.fleet.svg import Drawing, clean

T = TypeVar("T")

WIDE_PX, NARROW_PX = 1080, 330

SCRIPT = """
for (const table of document.querySelectorAll("table.sort")) {
  const body = table.tBodies[0];
  const key = (row, at) => { const c = row.cells[at]; return c.dataset.v ?? c.textContent; };
  table.querySelectorAll("thead th").forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const numbers = head.classList.contains("n");
      const compare = (a, b) => {
        const [x, y] = [key(a, at), key(b, at)];
        if (x === "" || y === "") return x === y ? 0 : x === "" ? 1 : -1;
        const by = numbers ? x - y : x.localeCompare(y, "en", { numeric: true });
        return up ? by : -by;
      };
      body.append(...[...body.rows].sort(compare));
    });
  });
}
""".strip()
"""Sorts a table by a column: at most forty lines, so that anybody can read what a page runs."""


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


POLICY = (
    f"default-src 'none'; style-src '{_hash(CSS)}'; script-src '{_hash(SCRIPT)}'; base-uri 'none'; form-action 'none'"
)
"""Nothing is loaded, and nothing runs but this style sheet and this script."""


def document(title: str, header: str, body: Iterable[str], *, up: str = "") -> str:
    """A whole page; ``up`` is the address of the first page, on others than that."""
    back = f'<nav><a href="{clean(up)}">← Fleet report</a></nav>' if up else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{clean(POLICY)}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{clean(title)}</title><style>{CSS}</style></head>\n<body>\n"
        f"<header>{back}{header}</header>\n<main>\n"
        + "\n".join(part for part in body if part)
        + f"\n</main>\n<script>{SCRIPT}</script>\n</body></html>\n"
    )


@dataclass(frozen=True, slots=True)
class Link:
    """A cell that leads to another page."""

    text: str
    to: str


@dataclass(frozen=True, slots=True)
class Code:
    """A cell with commands."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sorted:
    """A cell that sorts by something else than what it shows; None comes last."""

    text: str
    by: float | str | None


Value = Link | Code | Sorted | str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table of some kind of row. ``get`` takes whatever row the table is of."""

    head: str
    get: Callable[[Any], Value]
    number: bool = False
    wide: bool = False
    """Text that may take several lines."""


def cell(value: Value) -> tuple[str, str]:
    """Attributes and content of a table cell."""
    if isinstance(value, Link):
        return "", f'<a href="{clean(value.to)}">{clean(value.text)}</a>'
    if isinstance(value, Code):
        return "", code(value.lines)
    if isinstance(value, Sorted):
        return f' data-v="{"" if value.by is None else clean(value.by)}"', clean(value.text)
    if value is None or value == "":
        return ' data-v=""', "–"
    if isinstance(value, int | float):
        return f' data-v="{value}"', f"{value:,}"
    return "", clean(value)


def code(lines: Sequence[str]) -> str:
    """Commands to paste, one a line."""
    return "<pre>" + "\n".join(clean(line) for line in lines) + "</pre>" if lines else ""


def table(
    rows: Sequence[T], columns: Sequence[Column], *, total: int | None = None, most: int = 200, label: str = "Table"
) -> str:
    """A table that can be sorted; ``most`` rows, and in words how many more there are. Empty without rows."""
    if not rows:
        return ""
    heads = "".join(f'<th scope="col"{_class(column)}>{clean(column.head)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(_td(column, row) for column in columns)}</tr>" for row in rows[:most])
    more = more_than(min(len(rows), most), len(rows) if total is None else total)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{clean(label)}"><table class="sort">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def more_than(
    shown: int, total: int, where: str = "report.json has up to 200, and each host's page has its own"
) -> str:
    """A paragraph that says how many are not shown."""
    return "" if total <= shown else f'<p class="more">and {total - shown:,} more: {clean(where)}</p>'


def _class(column: Column) -> str:
    name = " ".join(name for name, on in (("n", column.number), ("w", column.wide)) if on)
    return f' class="{name}"' if name else ""


def _td(column: Column, row: object) -> str:
    attributes, content = cell(column.get(row))
    return f"<td{_class(column)}{attributes}>{content}</td>"


def folded(title: str, content: str, *, open_: bool = False) -> str:
    """Content below a line that opens it."""
    return f"<details{' open' if open_ else ''}><summary>{clean(title)}</summary>{content}</details>" if content else ""


def section(title: str, note: str, *content: str, key: str = "") -> str:
    """A section; ``key`` is its name in links."""
    id_ = f' id="{clean(key)}"' if key else ""
    said = f'<p class="note">{clean(note)}</p>' if note else ""
    return f"<section{id_}><h2>{clean(title)}</h2>{said}{''.join(content)}</section>"


def chart(render: Callable[[float], Drawing], legend: Sequence[tuple[str, str]] = ()) -> str:
    """A drawing, for wide and for narrow windows: one that is scaled to a telephone would have letters of 4 px."""
    keys = "".join(f'<li><i class="{clean(class_)}"></i>{clean(name)}</li>' for class_, name in legend)
    list_ = f'<ul class="legend">{keys}</ul>' if keys else ""
    wide, narrow = render(WIDE_PX), render(NARROW_PX)
    return f'<figure>{list_}<div class="wide">{wide}</div><div class="narrow">{narrow}</div></figure>'


def tiles(values: Iterable[tuple[str, str, str]]) -> str:
    """Figures: name, value, tone (``bad | warn | good``)."""
    cells = "".join(
        f'<div class="tile {clean(tone)}"><b>{clean(value)}</b><span>{clean(name)}</span></div>'
        for name, value, tone in values
    )
    return f'<div class="tiles">{cells}</div>'
