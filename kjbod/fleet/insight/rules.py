"""The rules that tell of a disk before it fails, and how they make one score. Data and plain Python.

Each :class:`Sign` is about one thing that a disk says or that is seen of it; it weighs what its heaviest step that is
reached weighs, and signs add up as independent doubts do: the score is 1 - (1 - w1)(1 - w2)... What *grows* says more
than what is there: a disk with forty old reallocated sectors may live long.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GROWTH_DAYS = 14
"""Growth of a counter is that since the beginning of so many days, or since the disk was first seen."""
AT_RISK_FROM = 0.7
SLOW_HOURS_MIN = 6
"""So many hours of the last day a disk has to be slower than its peers before that counts."""
GROWN = "_grown"
"""Suffix of the fact that is the growth of another."""


@dataclass(frozen=True, slots=True)
class Step:
    """Reached when a fact is at least (with ``below``: at most) a mark."""

    fact: str
    mark: float
    weight: float
    below: bool = False


@dataclass(frozen=True, slots=True)
class Sign:
    """A thing that is looked at."""

    name: str
    """For machines."""
    label: str
    """What a person reads before the number."""
    fact: str
    """Whose number is told."""
    steps: tuple[Step, ...]
    unit: str = ""


def _growing(name: str, label: str, there: float, grows: float, much: float, many: int = 10) -> Sign:
    """Weights of a counter that is not zero, that grew, that grew by ``many``."""
    grown = f"{name}{GROWN}"
    steps = (Step(name, 1, there), Step(grown, 1, grows), Step(grown, many, much))
    return Sign(name, label, name, tuple(step for step in steps if step.weight > 0))


SIGNS: tuple[Sign, ...] = (
    Sign(
        "smart_passed",
        "the disk says of itself that it fails: passed",
        "smart_passed",
        (Step("smart_passed", 0, 0.95, True),),
    ),
    Sign(
        "smart_critical_warning",
        "NVMe critical warning: bits",
        "smart_critical_warning",
        (Step("smart_critical_warning", 1, 0.9),),
    ),
    _growing("smart_reported_uncorrect", "SMART 187 reported uncorrectable errors", 0.4, 0.75, 0.9),
    _growing("smart_pending", "SMART 197 pending sectors", 0.3, 0.6, 0.8),
    _growing("smart_uncorrect", "SMART 198 uncorrectable sectors", 0.3, 0.6, 0.8),
    _growing("smart_realloc", "SMART 5 reallocated sectors", 0.1, 0.5, 0.75),
    _growing("smart_media_errors", "media errors", 0.2, 0.7, 0.85),
    _growing("smart_command_timeout", "SMART 188 command timeouts", 0, 0.2, 0.35, 100),
    Sign("smart_spare_pct", "spare blocks left", "smart_spare_pct", (Step("smart_spare_pct", 10, 0.75, True),), " %"),
    Sign(
        "smart_wear_pct",
        "worn",
        "smart_wear_pct",
        (Step("smart_wear_pct", 95, 0.7), Step("smart_wear_pct", 100, 0.8)),
        " %",
    ),
    Sign(
        "smart_temp_c",
        "temperature",
        "smart_temp_c",
        (Step("smart_temp_c", 65, 0.2), Step("smart_temp_c", 75, 0.4)),
        " °C",
    ),
    Sign("io_errors", "failed requests that day", "io_errors", (Step("io_errors", 1, 0.6), Step("io_errors", 10, 0.8))),
    Sign(
        "probe_failures",
        "failed probes that day",
        "probe_failures",
        (Step("probe_failures", 1, 0.6), Step("probe_failures", 3, 0.8)),
    ),
    Sign(
        "slow_ratio",
        "times slower than its peers under its load",
        "slow_ratio",
        (Step("slow_ratio", 2, 0.4), Step("slow_ratio", 3, 0.7)),
    ),
)
BASELINE = ("smart_realloc", "smart_reported_uncorrect", "smart_pending")
"""What the rules are compared with: any of SMART 5, 187 and 197 above zero."""
FACTS = tuple(dict.fromkeys(name for sign in SIGNS for name in (sign.fact, *(step.fact for step in sign.steps))))

Facts = Mapping[str, float | None]


def weight(sign: Sign, facts: Facts) -> float:
    """Of the heaviest step that is reached; what is not known reaches none."""
    reached = [step.weight for step in sign.steps if _is_reached(step, facts.get(step.fact))]
    return max(reached, default=0.0)


def _is_reached(step: Step, value: float | None) -> bool:
    if value is None:
        return False
    return value <= step.mark if step.below else value >= step.mark


def score(facts: Facts) -> float:
    """0 to 1, with four digits."""
    well = 1.0
    for sign in SIGNS:
        well *= 1 - weight(sign, facts)
    return round(1 - well, 4)


def reasons(facts: Facts) -> list[str]:
    """In words, the weightiest first."""
    found = [(-weight(sign, facts), number, sign) for number, sign in enumerate(SIGNS)]
    return [_told(sign, facts) for minus, _, sign in sorted(found, key=lambda f: f[:2]) if minus < 0]


def _told(sign: Sign, facts: Facts) -> str:
    grown = facts.get(f"{sign.fact}{GROWN}")
    more = f", +{grown:.0f} in {GROWTH_DAYS} days" if grown else ""
    return f"{sign.label}: {number(facts.get(sign.fact))}{sign.unit}{more}"


def number(value: float | None) -> str:
    """Whole numbers as such, others with one digit."""
    if value is None:
        return "?"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def is_baseline(facts: Facts) -> bool:
    """Whether the baseline would raise its hand."""
    return any((facts.get(name) or 0) > 0 for name in BASELINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Alarms at some threshold, and what became of the drives."""

    threshold: float
    failed_alarmed: int
    failed: int
    well_alarmed: int
    well: int
    lead_days: float | None
    """Median of the days from the first alarm to the failure, of those alarmed."""

    @property
    def precision(self) -> float | None:
        """Of the alarms those that came true."""
        alarms = self.failed_alarmed + self.well_alarmed
        return self.failed_alarmed / alarms if alarms else None

    @property
    def recall(self) -> float | None:
        """Of the failures those that were told before."""
        return self.failed_alarmed / self.failed if self.failed else None

    @property
    def f_half(self) -> float:
        """A figure to choose a threshold by: precision counts twice as much as recall, since each alarm is work."""
        p, r = self.precision or 0.0, self.recall or 0.0
        return 1.25 * p * r / (0.25 * p + r) if p and r else 0.0


def best(judged: Sequence[Judged]) -> Judged:
    """The one with the greatest F0.5, of equals the highest threshold."""
    return max(judged, key=lambda each: (each.f_half, each.threshold))
