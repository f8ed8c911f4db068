"""Findings as plain data: a page draws it and ``report --json`` prints it. No Spark here.

Lists of single directories, drives and incidents hold the first :data:`TOP` at most and their number is beside them, so
that nothing here grows with a fleet. None is "not known" or "cannot be said from so little".
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TOP = 200
"""Rows of a list of single things, where the caller asks for no other number."""


def plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences as what JSON has; numbers that JSON has no word for as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The days that a report is about, both ends included, and its "now"."""

    from_date: str
    """``yyyy-MM-dd``, UTC."""
    to_date: str
    now_ms: int
    """Wall ms: the newest moment that the lake knows of and that no clock of a host can push into the future."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Position of a directory, and its disk."""

    fleet: str | None = None
    rack: str | None = None
    host: str
    broker_id: int | None = None
    path: str
    dir_id: str | None = None
    device: str | None = None
    model: str | None = None
    serial: str | None = None


# ---------------------------------------------------------------------------------------------------------- reliability


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Failure rate of drives: failures over drive-years of 365 days, with exact 95 % Poisson limits.

    With too few drive-days for a rate there are the two counts, and all else is None
    (:data:`kjbod.fleet.insight.reliability.DRIVE_DAYS_MIN`, ``WHOLE_DRIVE_DAYS_MIN``)."""

    drive_days: int
    failures: int
    afr_pct: float | None
    """Annualised failure rate."""
    low_pct: float | None
    """0 without failures: then only the upper limit says something."""
    high_pct: float | None
    mtbf_hours: float | None
    """None without failures."""
    mtbf_low_hours: float | None
    mtbf_high_hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOf:
    """The rate of some drives."""

    name: str
    """Model, ``model · firmware``, age band such as ``2-3 years``, or site; ``unknown`` where the reports say none."""
    rate: Rate
    verdicts: Rate | None = None
    """With the verdicts that the disk did not bear out (:class:`FalseVerdict`), which ``rate`` leaves out."""


def rate_text(rate: Rate) -> str:
    """A rate with its limits, for people; the upper limit alone without a failure; no rate of too few drive-days."""
    if rate.afr_pct is None or rate.low_pct is None or rate.high_pct is None:
        return f"too few drive-days ({rate.drive_days:,})"
    if not rate.failures:
        return f"< {rate.high_pct:.2f} %"
    return f"{rate.afr_pct:.2f} % ({rate.low_pct:.2f} to {rate.high_pct:.2f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivalStep:
    """Share of drives that live to an age, from the moment of a failure on."""

    age_years: float
    at_risk: int
    failures: int
    survival: float
    low: float
    """95 %, by Greenwood's formula on the log-log scale."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Survival:
    """Kaplan-Meier over power-on age with left truncation: a drive is at risk from the age at which it was first seen.

    The curve begins where enough drives are at risk; it is the chance to live on from that age, not from birth."""

    model: str
    drives: int
    failures: int
    """Those in the curve."""
    left_out: int
    """Failures at ages at which fewer than the required number of drives were at risk."""
    from_years: float | None
    to_years: float | None
    steps: tuple[SurvivalStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """Failures that have another one near: within so many minutes, in the same host, in the same rack."""

    within_minutes: int
    failures: int
    same_host: int
    same_rack: int
    same_host_pct: float | None
    same_rack_pct: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedDrive:
    """A drive that worked again after it had failed."""

    drive: str
    model: str | None
    host: str | None
    path: str | None
    failed_date: str
    last_date: str
    days_after_failure: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Drives of one source in the days of the report."""

    source: str
    """``kjbod``, or where the imported history is from."""
    whole: Rate
    """Of failures that the disks bore out, as the rates of models and the others."""
    models: tuple[RateOf, ...]
    """Highest upper limit first, those with enough exposure."""
    hidden_models: tuple[RateOf, ...]
    """Under the required drive-days: named, not ranked."""
    drive_days_min: int
    firmwares: tuple[RateOf, ...]
    ages: tuple[RateOf, ...]
    """In order of age."""
    sites: tuple[RateOf, ...]
    drives: int
    censored: int
    """Drives that are seen no more and did not fail: replaced or taken away; their exposure ends, nothing more."""
    returned: tuple[ReturnedDrive, ...]
    returned_drives: int
    verdicts: Rate | None = None
    """Of the whole, as :attr:`RateOf.verdicts`."""
    survival: tuple[Survival, ...]
    """Of models with enough failures, most failures first."""
    bursts: Bursts | None

    def to_json(self) -> Any:
        """As JSON has it."""
        return plain(self)


# --------------------------------------------------------------------------------------------------------------- health


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOn:
    """The score of a directory on a day."""

    date: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """A directory whose disk may fail."""

    place: Place
    score: float
    """0 to 1; from :attr:`Health.at_risk_from` on it is *at risk*."""
    reasons: tuple[str, ...]
    """Short texts with the numbers, the weightiest first."""
    history: tuple[ScoreOn, ...]
    """By date, days without samples left out."""
    slow_ratio: float | None
    """Latency over that which its peers have under its load; None where it has no peers or no load."""
    leaders: int | None
    partitions: int | None
    state: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Disks before they fail, worst first."""

    date: str | None
    """The day that the scores are of."""
    at_risk_from: float
    directories: int
    """With a score of any value on that day."""
    with_smart: int
    """Whose disk tells of itself; the others are judged by latency alone."""
    compared: int
    """That had peers to be compared with."""
    scored: int
    """Above 0."""
    at_risk: int
    risks: tuple[Risk, ...]
    by_reason: Mapping[str, int]
    """Name of a rule to the number of directories it speaks of on that day."""

    def to_json(self) -> Any:
        """As JSON has it."""
        return plain(self)


# ------------------------------------------------------------------------------------------------------------- capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Days:
    """Days from now until a mark is passed, with 95 % limits of the straight line. 0: it is passed."""

    mark_pct: int
    days: float | None
    """None: not within twice the time that was seen, or not at all."""
    soonest: float | None
    latest: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Growth of a directory, and when it will be full."""

    place: Place
    bytes_total: int
    bytes_used: int
    used_ratio: float
    growth_bytes_per_day: float | None
    growth_low: float | None
    growth_high: float | None
    since: str
    """The first day of the line: the window's, or that of the last reset."""
    days_seen: int
    resets: int
    """Drops by more than a tenth, each of which begins a new line."""
    until: tuple[Days, ...]
    """80, 90 and 100 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imbalance:
    """A broker whose directories are filled or used unevenly, and what one move would gain."""

    fleet: str | None
    rack: str | None
    host: str
    broker_id: int
    directories: int
    used_max: float
    """Used ratio of its fullest directory."""
    used_mean: float
    used_max_over_mean: float | None
    used_gini: float | None
    busy_gini: float | None
    fullest: str
    """Path."""
    emptiest: str
    move_bytes: int
    """Moving so much from the fullest to the emptiest makes them equally full."""
    used_max_after: float
    """Used ratio of the then fullest of all."""
    about_partitions: int | None
    """How many average replicas of the fullest directory are that much; None where their number is not known."""
    commands: tuple[str, ...]
    """To paste on that host, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Room: what fills up, and where it is uneven."""

    directories: int
    bytes_total: int
    bytes_used: int
    full_within: Mapping[str, int]
    """``7``, ``30``, ``90`` days to the number of directories that reach 100 % by then."""
    resets: int
    forecasts: tuple[Forecast, ...]
    """Soonest to be full first, then the fullest."""
    uneven_hosts: int
    imbalances: tuple[Imbalance, ...]
    """Most to gain first."""

    def to_json(self) -> Any:
        """As JSON has it."""
        return plain(self)


# ----------------------------------------------------------------------------------------------------- kjbod's own work


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Duration of one stage, in ms, over some incidents."""

    stage: str
    """``detect`` first sign to verdict, ``send`` to the report, ``acknowledge`` to the controller's record, ``move``
    verdict to leaders moved, ``total`` first sign to record."""
    by: str
    """``all``, ``cause`` or ``version``."""
    name: str
    """The cause or version."""
    incidents: int
    median_ms: float
    p95_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseVerdict:
    """A verdict that the disk did not bear out: not replaced, and well in a later run."""

    incident: str
    ts: int
    place: Place
    cause: str | None
    evidence: str | None
    version: str | None
    well_days: int
    """Days on which it was online after the verdict's day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentState:
    """An agent or guard that deserves a look."""

    fleet: str | None
    rack: str | None
    host: str
    broker_id: int
    role: str | None
    mode: str | None
    version: str | None
    status: str | None
    last_ts: int | None
    silent_ms: int | None
    """How long before "now" its newest line is."""
    lag_ms: int | None
    """Of its latest files, the longest that one was taken in after the first file of the same hour, of any host."""
    why: str
    """``silent``, ``late``, ``clock``, or ``version``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnWork:
    """Speed, errors and agents of kjbod itself."""

    incidents: int
    outcomes: Mapping[str, int]
    latencies: tuple[Latency, ...]
    false_verdicts: int
    false_verdict_list: tuple[FalseVerdict, ...]
    agents: int
    silent: int
    late: int
    skewed: int
    """With clocks hours wrong."""
    versions: Mapping[str, int]
    """Version, of guards with ``guard `` before it, to agents; ``unknown`` where none was told."""
    other_versions: int
    """Agents that do not run what most of their kind run."""
    agents_to_look_at: tuple[AgentState, ...]

    def to_json(self) -> Any:
        """As JSON has it."""
        return plain(self)


# ----------------------------------------------------------------------------------------------------------- all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Insights:
    """All of it, for one report (:func:`kjbod.fleet.insight.insights.insights`)."""

    window: Window
    reliability: Reliability
    imported: tuple[Reliability, ...]
    """By source."""
    tickets: Bursts | None
    """Of imported failure tickets, which have no exposure and so no rate."""
    health: Health
    capacity: Capacity
    own_work: OwnWork

    def to_json(self) -> Any:
        """As JSON has it."""
        return plain(self)
