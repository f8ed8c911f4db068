"""A picture of a terminal: text on standard input becomes SVG on standard output.

It made ``status.svg`` of a cluster that ``scripts/demo --keep`` had left::

    kjbod status -c CONFIG | python -m scripts.story.picture '$ kjbod status -c server.properties' > status.svg
"""

import re
import sys
from collections.abc import Sequence
from typing import Final
from xml.sax.saxutils import escape

_SIZE_PX: Final = 14
_COLUMN_PX: Final = 8.43
_LINE_PX: Final = 20
_MARGIN_PX: Final = 18
_FONT: Final = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
_COLOURS: Final = {
    **dict.fromkeys(("OK", "online"), "#56d364"),
    **dict.fromkeys(("DEGRADED", "slow", "held", "full", "suspect"), "#e3b341"),
    **dict.fromkeys(("CRITICAL", "failed"), "#ff7b72"),
}
_STATE: Final = re.compile(rf"({'|'.join(_COLOURS)})\b")
"""The word that a line begins with."""


def draw(lines: Sequence[str]) -> str:
    """The picture. Each line has as many columns as characters, whatever font the viewer has."""
    width = 2 * _MARGIN_PX + max(map(len, lines)) * _COLUMN_PX
    height = 2 * _MARGIN_PX + len(lines) * _LINE_PX
    text = "\n".join(_line(line, number) for number, line in enumerate(lines) if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
        f' font-family="{_FONT}" font-size="{_SIZE_PX}" fill="#e6edf3">\n'
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n{text}\n</svg>\n'
    )


def _line(line: str, number: int) -> str:
    baseline = _MARGIN_PX + number * _LINE_PX + _SIZE_PX
    length = len(line) * _COLUMN_PX
    painted = escape(line)
    if state := _STATE.match(line):
        painted = f'<tspan fill="{_COLOURS[state[1]]}">{state[1]}</tspan>{escape(line[state.end() :])}'
    return (
        f'<text x="{_MARGIN_PX}" y="{baseline}" textLength="{length:.0f}" lengthAdjust="spacingAndGlyphs"'
        f' xml:space="preserve">{painted}</text>'
    )


def main() -> None:
    """Draw what comes, below the lines that are given as arguments."""
    lines = [*sys.argv[1:], *sys.stdin.read().splitlines()]
    print(draw([line.rstrip() for line in lines]), end="")


if __name__ == "__main__":
    main()
