"""The plot of the replicas benchmark: time until all is done over the number of replicas, both logarithmic."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("agg")
from matplotlib import pyplot

from scripts.bench.replicas_rig import Start

_COLOURS = {"agent": "#1f5fa8", "agent in memory": "#58a6e0", "Kafka": "#c8501e"}
_MARKERS = {"agent": "o", "agent in memory": "s", "Kafka": "D"}
_TITLES = {
    "new": "start; replicas were given to it while it was down",
    "moved": "start; each replica lies in another directory than recorded",
    "running": "replicas are given to it while it runs",
}


def draw(starts: Sequence[Start], stem: Path) -> None:
    """Write ``STEM.svg`` and ``STEM.png``: a panel for each case."""
    cases = [case for case in _TITLES if any(start.case == case for start in starts)]
    size = (4.2 * len(cases), 3.8)
    figure, panels = pyplot.subplots(1, len(cases), figsize=size, layout="constrained", squeeze=False)
    for axes, case in zip(panels[0], cases, strict=True):
        for system, colour in _COLOURS.items():
            mine = sorted(
                (start.replicas, start.ready_s) for start in starts if (start.system, start.case) == (system, case)
            )
            if mine:
                label = "Kafka 4.3.1" if system == "Kafka" else f"kjbod {system}"
                axes.plot(*zip(*mine, strict=True), marker=_MARKERS[system], color=colour, label=label, linewidth=1.2)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(_TITLES[case], fontsize=8)
        axes.set_xlabel("replicas", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(which="both", color="#e0e0e0", linewidth=0.5)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0][0].set_ylabel("seconds until all are recorded and it is unfenced", fontsize=8)
    panels[0][0].legend(fontsize=8, frameon=False)
    for suffix in (".svg", ".png"):
        figure.savefig(stem.with_suffix(suffix), dpi=150)
    pyplot.close(figure)
