"""The plot of the controller benchmark: for each row both medians, and every value as a point."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.patches import Rectangle

from scripts.bench.controller_cases import Sample

_COLOURS = {"kjbod": "#1f5fa8", "Kafka": "#c8501e"}
_PLACES = {"kjbod": -0.18, "Kafka": 0.18}
_LEAST = 1e-3


def draw(samples: Sequence[Sample], stem: Path) -> None:
    """Write ``STEM.svg`` and ``STEM.png``."""
    rows = sorted(dict.fromkeys(sample.row for sample in samples), key=lambda row: row.part)
    figure, axes = pyplot.subplots(figsize=(9.5, 1.2 + 0.3 * len(rows)), layout="constrained")
    for number, row in enumerate(rows):
        for system, colour in _COLOURS.items():
            values = [sample.value for sample in samples if (sample.row, sample.system) == (row, system)]
            if values:
                at = number + _PLACES[system]
                axes.barh(at, max(_LEAST, statistics.median(values)), height=0.32, color=colour, alpha=0.75)
                axes.plot(values, [at] * len(values), ".", color="#202020", markersize=3)
    axes.set_yticks(range(len(rows)), [f"{row.name} [{row.unit}] {row.phase}" for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(which="both", axis="x", color="#e0e0e0", linewidth=0.5)
    axes.set_axisbelow(True)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in _COLOURS.values()]
    labels = ["kjbod", "Apache Kafka 4.3.1"]
    axes.legend(handles, labels, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.02), ncols=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for suffix in (".svg", ".png"):
        figure.savefig(stem.with_suffix(suffix), dpi=150)
    pyplot.close(figure)
