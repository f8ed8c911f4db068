"""The plot of the guard's reach: the worst pause of each trial by fault and form, on a logarithmic axis."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import pyplot

from scripts.bench.detection_plot import decorate
from scripts.bench.guard_reach_plan import ALONE, EARLY, FAULTS, FENCE, FORMS, GUARD, HDD, NAMES, Outcome
from scripts.rig.pauses import FOLLOWED_BAD, FOLLOWED_HEALTHY, LED_BAD, LED_HEALTHY

_COLOURS = {GUARD: "#1f5fa8", EARLY: "#3fa7a3", HDD: "#8a8d91", FENCE: "#7b4fb5", ALONE: "#c8501e"}
_SHIFT = {form: 0.16 * (at - 2) for at, form in enumerate(FORMS)}
_DISKS = {"bad disk": ((LED_BAD, FOLLOWED_BAD), "o"), "healthy disks": ((LED_HEALTHY, FOLLOWED_HEALTHY), "D")}
_LEAST_MS = 20.0


def draw(outcomes: Sequence[Outcome], stem: Path) -> None:
    """Write ``STEM.svg`` and ``STEM.png``: a strip for each fault, two points for each trial; pauses that had not ended
    stand to the right of all others."""
    faults = [fault for fault in FAULTS if any(one.trial.fault == fault for one in outcomes)]
    worst = max([1000.0, *(pause.ms for one in outcomes for pause in one.pauses.values())])
    never = worst * 2
    figure, axes = pyplot.subplots(figsize=(10, 1.8 + 0.42 * len(faults)), layout="constrained")
    for form, colour in _COLOURS.items():
        mine = [one for one in outcomes if one.trial.form == form]
        for name, (classes, marker) in _DISKS.items():
            x, y = [], []
            for one in mine:
                if (pause := one.worst(classes)) is not None:
                    x.append(max(pause.ms, _LEAST_MS) if pause.ended else never)
                    y.append(faults.index(one.trial.fault) + _SHIFT[form] + (0.06 if marker == "D" else -0.06))
            if x:
                label = f"{NAMES[form]}, {name}"
                axes.scatter(x, y, s=16, color=colour, marker=marker, alpha=0.7, linewidths=0, label=label, zorder=3)
    decorate(axes, faults, worst, never, beyond="not ended", least_ms=_LEAST_MS / 2)
    figure.suptitle("Longest pause that a producer sees, from the fault on: one broker with a bad disk", fontsize=11)
    for suffix in (".svg", ".png"):
        figure.savefig(stem.with_suffix(suffix), dpi=150)
    pyplot.close(figure)
