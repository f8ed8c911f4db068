"""The plot of the guard benchmark: the pause of each class, a point for each trial, on a logarithmic axis."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot

from scripts.bench.detection_plot import decorate
from scripts.bench.guard_plan import Outcome
from scripts.bench.guard_report import cells
from scripts.rig.pauses import CLASSES

_COLOURS = ("#c8501e", "#eba04b", "#58a6e0", "#1f5fa8")
_SPREAD = 0.6
_LEAST_MS = 20.0


def draw(outcomes: Sequence[Outcome], stem: Path) -> None:
    """Write ``STEM.svg`` and ``STEM.png``; pauses that had not ended stand to the right of all others."""
    found = cells(outcomes)
    worst = max([1000.0, *(p.ms for one in outcomes for p in one.pauses.values())])
    never = worst * 2
    figure, axes = pyplot.subplots(figsize=(10, 1.4 + 0.42 * len(found)), layout="constrained")
    for place, (name, colour) in enumerate(zip(CLASSES, _COLOURS, strict=True)):
        x, y = [], []
        for row, mine in enumerate(found.values()):
            for one in mine:
                if name in one.pauses:
                    pause = one.pauses[name]
                    x.append(max(pause.ms, _LEAST_MS) if pause.ended else never)
                    y.append(row + _SPREAD * (place / (len(CLASSES) - 1) - 0.5))
        axes.scatter(x, y, s=16, color=colour, alpha=0.75, linewidths=0, label=name, zorder=3)
    decorate(axes, [" ".join(cell) for cell in found], worst, never, beyond="not ended", least_ms=_LEAST_MS / 2)
    figure.suptitle("Longest pause that a producer sees, from the fault on, by partition's role and disk", fontsize=11)
    for suffix in (".svg", ".png"):
        figure.savefig(stem.with_suffix(suffix), dpi=150)
    pyplot.close(figure)
