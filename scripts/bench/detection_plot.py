"""The plot of the detection benchmark: when each fault was known, on a logarithmic axis."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import matplotlib.ticker

matplotlib.use("agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

from scripts.bench.detection_plan import NOT_POSSIBLE, Outcome

_OURS = {"idle": "#1f5fa8", "busy": "#58a6e0", "work": "#7b4fb5"}
_KAFKA = {"idle": "#c8501e", "busy": "#eba04b"}
_NEVER_FACTOR = 2.0
"""The place of what was never detected, beyond the longest wait."""
_SHIFT = {"kjbod": -0.2, "kafka": 0.2}
_JITTER = 0.12


def _known_ms(outcome: Outcome) -> float | None:
    """Recorded by the controller; for a verdict that is not reported to it, the verdict."""
    if outcome.system == "kjbod" and outcome.final == "online":
        return None
    if outcome.escalated_ms is not None:
        return outcome.verdict_ms
    return outcome.recorded_ms if outcome.recorded_ms is not None else outcome.verdict_ms


def draw(outcomes: Sequence[Outcome], wait_ms: float, stem: Path) -> None:
    """Write ``STEM.svg`` and ``STEM.png``: a strip for each fault, a point for each run.

    ``wait_ms``: how long Kafka was waited for; undetected faults stand to the right of it.
    """
    faults = list(dict.fromkeys(outcome.fault for outcome in outcomes))
    worst = max([wait_ms, *(ms for o in outcomes if (ms := _known_ms(o)) is not None)])
    never = worst * _NEVER_FACTOR
    figure, axes = pyplot.subplots(figsize=(10, 1.4 + 0.24 * len(faults)), layout="constrained")
    for system, colours in (("kjbod", _OURS), ("kafka", _KAFKA)):
        for load, colour in colours.items():
            mine = [
                o for o in outcomes if o.system == system and o.load == load and not o.final.startswith(NOT_POSSIBLE)
            ]
            if not mine:
                continue
            x, y = [], []
            for position, outcome in enumerate(mine):
                known = _known_ms(outcome)
                x.append(never if known is None else max(known, 1.0))
                y.append(faults.index(outcome.fault) + _SHIFT[system] + _JITTER * ((position % 5) - 2) / 2)
            marker = "o" if system == "kjbod" else "D"
            name = "kjbod" if system == "kjbod" else "Kafka 4.3.1"
            how = {"work": "met by the agent's own work"}.get(load, load)
            axes.scatter(
                x, y, s=16, color=colour, marker=marker, alpha=0.75, linewidths=0, label=f"{name}, {how}", zorder=3
            )
    decorate(axes, faults, worst, never)
    for row, fault in enumerate(faults):
        if all(o.final.startswith(NOT_POSSIBLE) for o in outcomes if o.fault == fault):
            axes.text(1.0, row, NOT_POSSIBLE, fontsize=8, color="#777777", va="center")
    figure.suptitle(
        "From the fault to the controller's record (to the verdict, where nothing goes offline)", fontsize=11
    )
    for suffix in (".svg", ".png"):
        figure.savefig(stem.with_suffix(suffix), dpi=150)
    pyplot.close(figure)


def decorate(
    axes: Axes, rows: Sequence[str], worst: float, never: float, *, beyond: str = "not seen", least_ms: float = 0.8
) -> None:
    """A strip for each row, milliseconds on a logarithmic axis, and a place ``never`` for what lies ``beyond``."""
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    for row in range(0, len(rows), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="#f3f3f3", zorder=0)
    ticks = [tick for tick in (1, 10, 100, 1000, 10_000, 100_000) if least_ms < tick <= worst]
    names = [f"{tick} ms" if tick < 1000 else f"{tick // 1000} s" for tick in ticks]
    axes.set_xticks([*ticks, never], [*names, beyond])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.set_xlim(least_ms, never * 1.5)
    axes.axvline((worst * never) ** 0.5, color="#999999", linewidth=0.8, linestyle=":")
    axes.grid(axis="x", color="#d0d0d0", linewidth=0.6, zorder=1)
    axes.figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
