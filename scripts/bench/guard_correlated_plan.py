"""Plan of the correlated stalls: disks of several brokers stand still at once, with guards and without. Pure."""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from scripts.bench.json_record import JsonRecord
from scripts.rig.pauses import Pause

GUARD, ALONE = FORMS = ("guard", "alone")
"""A guard in mode act beside each broker; Kafka alone."""
BROKERS: Final = (2, 3)
STALLS_S: Final = (1, 3, 7, 15, 60)
SKEWS_MS: Final = (0, 300, 2000)
THERE, STOPPED = CONTROLLERS = ("there", "stopped")
"""The controller answers, or stands still for as long as the disks (SIGSTOP)."""
SETTLE_S: Final = 15
"""From the end of the last stall to the look at what is served."""
QUICK_SETTLE_S: Final = 10


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """A stall under one of the forms.

    Attributes:
        form: of :data:`FORMS`.
        brokers: how many brokers have a disk that stands still; each partition has that many replicas, and
            ``min.insync.replicas`` is one less.
        stall_s: how long each disk stands still, in seconds.
        skew_ms: from the stall of one broker to the stall of the next one, in milliseconds.
        controller: of :data:`CONTROLLERS`.
        repetition: from 0 on; the disks are ext4 in even ones and XFS in odd ones.
    """

    form: str
    brokers: int
    stall_s: int
    skew_ms: int
    controller: str
    repetition: int = 0

    @property
    def cell(self) -> tuple[int, int, int, str]:
        """The stall, whatever the form."""
        return self.brokers, self.stall_s, self.skew_ms, self.controller

    @property
    def fstype(self) -> str:
        """File system of the disks that stand still."""
        return "xfs" if self.repetition % 2 else "ext4"

    @property
    def stalls_s(self) -> float:
        """From the begin of the first stall to the end of the last one, in seconds."""
        return self.stall_s + (self.brokers - 1) * self.skew_ms / 1000


QUICK: Final = (Trial(GUARD, 3, 6, 0, STOPPED), Trial(GUARD, 3, 7, 300, THERE), Trial(GUARD, 2, 6, 0, THERE))
"""Stalls that answer whether guards wait for each other: no copy is left to count on."""


def plan(
    forms: Sequence[str],
    brokers: Sequence[int],
    stalls_s: Sequence[int],
    skews_ms: Sequence[int],
    controllers: Sequence[str],
    repeat: int,
    rng: random.Random,
    done: Iterable[Trial] = (),
) -> list[Trial]:
    """Return the trials that are not done, each round of them in an order of its own; the forms of a stall follow each
    other."""
    left_out = set(done)
    trials: list[Trial] = []
    for repetition in range(repeat):
        cells = list(itertools.product(brokers, stalls_s, skews_ms, controllers))
        rng.shuffle(cells)
        trials += [Trial(form, *cell, repetition) for cell in cells for form in forms]
    return [trial for trial in trials if trial not in left_out]


@dataclass(frozen=True, slots=True)
class Act:
    """An action that a guard began.

    Attributes:
        broker: of the guard.
        at_ms: after the first stall.
        means: ``suspect``, ``report``, ``cut`` and so on.
    """

    broker: int
    at_ms: float
    means: str


@dataclass(slots=True)
class Outcome(JsonRecord):
    """Measurements of a trial.

    Attributes:
        trial: which.
        pause: the longest time without an acknowledgement of any partition.
        not_served: partitions that took no record in the last seconds of the trial.
        shrunk: partitions whose replica lists are shorter than before.
        ended: brokers whose processes have ended.
        acts: what the guards did.
        acknowledged: records.
        lost: of these, records that could not be read back.
    """

    trial: Trial
    pause: Pause | None = None
    not_served: list[int] = field(default_factory=list)
    shrunk: int = 0
    ended: list[int] = field(default_factory=list)
    acts: list[Act] = field(default_factory=list)
    acknowledged: int = 0
    lost: int = 0


def worse(outcomes: Sequence[Outcome]) -> dict[tuple[int, int, int, str], int]:
    """Return how many partitions are not served with guards and are served without, by stall."""
    alone = {(one.trial.cell, one.trial.repetition): set(one.not_served) for one in _of(outcomes, ALONE)}
    found: dict[tuple[int, int, int, str], int] = {}
    for one in _of(outcomes, GUARD):
        without = alone.get((one.trial.cell, one.trial.repetition), set())
        found[one.trial.cell] = found.get(one.trial.cell, 0) + len(set(one.not_served) - without)
    return found


def has_failed(outcomes: Sequence[Outcome]) -> bool:
    """Whether a record was lost with guards, or a partition is worse off than without them."""
    return any(one.lost for one in _of(outcomes, GUARD)) or any(worse(outcomes).values())


def _of(outcomes: Sequence[Outcome], form: str) -> list[Outcome]:
    return [one for one in outcomes if one.trial.form == form]


def table(outcomes: Sequence[Outcome]) -> str:
    """Return a row for each stall, as Markdown: pauses without and with guards, what the guards did, what was lost."""
    columns = ["brokers", "stall", "skew", "controller", "pause alone, s", "pause with guards, s", "brokers acted on"]
    columns += ["lost", "worse off"]
    rows = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    worse_off = worse(outcomes)
    for cell in sorted({one.trial.cell for one in outcomes}):
        brokers, stall_s, skew_ms, controller = cell
        here = [one for one in outcomes if one.trial.cell == cell]
        guarded, alone = _of(here, GUARD), _of(here, ALONE)
        acted = [len({act.broker for act in one.acts if act.means in ("cut", "mask", "kill")}) for one in guarded]
        lost = sum(one.lost for one in guarded)
        cells = [
            f"{brokers} of 3",
            f"{stall_s} s",
            f"{skew_ms / 1000:g} s",
            controller,
            _pauses(alone),
            _pauses(guarded),
            f"{max(acted, default=0)}",
            f"{lost} of {sum(one.acknowledged for one in guarded)}",
            f"{worse_off.get(cell, 0)}",
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _pauses(outcomes: Sequence[Outcome]) -> str:
    """Return the range of the longest pauses, in seconds."""
    found = sorted(one.pause.ms / 1000 for one in outcomes if one.pause is not None)
    if not found:
        return "-"
    return f"{found[0]:.1f}" if len(found) == 1 else f"{found[0]:.1f} to {found[-1]:.1f}"


def summary(outcomes: Sequence[Outcome], how: Mapping[str, str]) -> str:
    """Return the whole report."""
    lost, off = sum(one.lost for one in _of(outcomes, GUARD)), sum(worse(outcomes).values())
    facts = ", ".join(f"{name} {value}" for name, value in how.items())
    return (
        f"{table(outcomes)}\n\n{len(outcomes)} trials; with guards {lost} acknowledged records lost, {off} partitions "
        f"worse off than with Kafka alone. {facts}.\n"
    )
