"""Plain data that the page is drawn from. No Spark here: :mod:`kjbod.fleet.report` collects it from gold.

Nothing of a :class:`FleetReport` grows without limit with the fleet: lists hold the worst or the newest, and their
whole number is beside them. What a host has to tell is in :class:`HostDetail`, of which one at a time is in memory.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kjbod.fleet.insight.model import Insights, Place, Window
from kjbod.fleet.schema import DirectoryState

SILENT, STOPPED = "silent", "stopped"
"""States of an agent of which nothing was heard any more, and of one that said that it stops; and of its directories,
but of those that had failed."""
FAILED, ONLINE = str(DirectoryState.FAILED), str(DirectoryState.ONLINE)
STATES_WORST_FIRST = (
    *(FAILED, SILENT, STOPPED),
    *(str(state) for state in DirectoryState if state not in (DirectoryState.FAILED, DirectoryState.ONLINE)),
    *("unknown", ONLINE),
)

HOSTS_MAX = 1_500
"""Hosts in the map; beyond that the worst ones, and the others are counted."""
CELLS_MAX = 96
"""Directories of a host in the map."""
LIST_MAX = 200
"""Rows of any other list."""


def severity(state: str) -> int:
    """Place of a state among all, the worst is 0."""
    return STATES_WORST_FIRST.index(state if state in STATES_WORST_FIRST else "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """A log directory as it was seen last."""

    place: Place
    state: str
    """Of the directory, or ``silent`` or ``stopped`` where that is what is known of its agent."""
    last_state: str | None = None
    """What it was when its agent spoke last."""
    since_ms: int | None = None
    """Wall ms since which it is in ``last_state``."""
    last_ms: int | None = None
    used: int | None = None
    total: int | None = None
    partitions: int | None = None
    leaders: int | None = None
    failures: int = 0
    """In the days of the report."""
    transitions: int = 0
    """From online to anything else, in the newest two days."""
    role: str | None = None
    """Of what watches it: ``agent`` (or None) or ``guard``."""
    evidence: str = ""
    """Of its newest failure, with what a guard did about it."""

    @property
    def used_ratio(self) -> float | None:
        """0 to 1; None where it is not known."""
        return self.used / self.total if self.used is not None and self.total else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """An agent or a guard, and so a broker with its directories."""

    fleet: str | None = None
    rack: str | None = None
    host: str
    broker_id: int
    status: str = "unknown"
    """``unfenced | fenced | started | stopped | silent | unknown``."""
    reason: str | None = None
    exit_code: str | None = None
    role: str | None = None
    mode: str | None = None
    version: str | None = None
    last_ms: int | None = None
    silent_ms: int | None = None
    """How long before "now" it was heard last."""
    directories: int = 0
    failed: int = 0
    impaired: int = 0
    """Directories that are neither online nor failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A directory in the map."""

    path: str
    state: str
    used_pct: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapHost:
    """A broker in the map."""

    agent: Agent
    cells: tuple[Cell, ...]
    hidden: int = 0
    """Directories beyond :data:`CELLS_MAX`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """Act of a guard about a failure, or that it does no more."""

    after_ms: float
    means: str
    outcome: str | None = None
    reason: str | None = None
    took_ms: int | None = None
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """The failure of one directory in one run of an agent; latencies in ms (:mod:`kjbod.fleet.rollup.happenings`)."""

    ts: int
    place: Place
    cause: str | None = None
    evidence: str | None = None
    errno: str | None = None
    outcome: str = "open"
    version: str | None = None
    partitions: int | None = None
    leaders: int | None = None
    detect_ms: float | None = None
    send_ms: float | None = None
    acknowledge_ms: float | None = None
    move_ms: float | None = None
    give_up_ms: float | None = None
    total_ms: float | None = None
    deeds: tuple[Deed, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Something that a guard should do, and does not: ``left`` or ``crippled``."""

    ts: int
    fleet: str | None = None
    rack: str | None = None
    host: str
    broker_id: int
    path: str | None = None
    """None: the broker as a whole."""
    state: str
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Partitions of a broker that lack replicas, as its guard reported them last."""

    since_ms: int
    """Wall ms since which this run of the guard has reported such partitions without a break."""
    fleet: str | None = None
    rack: str | None = None
    host: str
    broker_id: int
    below_replication_factor: int
    """Partitions that the guard evicted the broker from."""
    below_min_isr: int
    """Partitions below ``min.insync.replicas``."""
    without_leader: int
    reason: str | None = None

    @property
    def is_critical(self) -> bool:
        """Whether a partition has no leader, or refuses records of producers with ``acks=all``."""
        return self.without_leader > 0 or self.below_min_isr > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """The guards of a cluster, and what they did."""

    fleet: str
    guards: int
    acting: int
    acts: int
    failed_acts: int
    refusals: int
    would: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDisks:
    """The disks of one model."""

    model: str
    directories: int
    hosts: int
    failed: int
    bytes_total: int
    bytes_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadFile:
    """A report file of which something had to be set aside."""

    file: str
    host: str | None
    status: str
    kept: bool
    lines: int
    bad_lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSerial:
    """A serial number that several hosts of a cluster report on one day: of virtual disks or RAID volumes."""

    fleet: str | None
    serial: str
    hosts: int
    """On the day with most of them, as the directories."""
    directories: int
    days: int
    examples: tuple[str, ...]
    """Two of the hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The account of the report files of these days."""

    files: int = 0
    by_status: Mapping[str, int]
    lines: int = 0
    lines_set_aside: int = 0
    """Those of whole files included."""
    bad_files: int = 0
    bad_file_list: tuple[BadFile, ...] = ()
    shared_serials: int = 0
    shared_serial_list: tuple[SharedSerial, ...] = ()
    """Most directories first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that is not as it was in the report before."""

    kind: str
    """A key of :data:`kjbod.fleet.page.changes.KINDS`."""
    host: str
    broker_id: int
    path: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Differences from the report before."""

    since_ms: int | None = None
    """"Now" of that report; None: there is none."""
    counts: Mapping[str, int]
    listed: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """All that the first page says."""

    window: Window
    insights: Insights
    is_stale: bool = False
    """Whether its "now" is long ago by the clock of the machine that made it, and no earlier end was asked for."""
    states: Mapping[str, int]
    """Directories by state, worst first; only states that occur."""
    statuses: Mapping[str, int]
    """Agents by status."""
    models: tuple[ModelDisks, ...]
    hosts: tuple[MapHost, ...]
    """By cluster, rack, host."""
    hidden_hosts: int
    samples: int
    leaders: int
    bytes_used: int
    """As :class:`kjbod.fleet.insight.model.Capacity` has it: of a disk that cannot be read any more what was seen last;
    file systems that directories of a host share count once."""
    bytes_total: int
    failed: tuple[Directory, ...]
    """Those with leaders left first, then the newest."""
    other: tuple[Directory, ...]
    """Neither online nor failed, of agents that are heard."""
    flapping: tuple[Directory, ...] = ()
    """Not failed, that left online at least :data:`kjbod.fleet.report.FLAPS_MIN` times in the newest two days."""
    agents: tuple[Agent, ...]
    """Silent, stopped and fenced ones."""
    stands: tuple[Stand, ...]
    lacks: tuple[Lack, ...] = ()
    """Critical ones first."""
    guards: tuple[Guards, ...]
    incidents: tuple[Incident, ...]
    """Newest first."""
    incident_outcomes: Mapping[str, int]
    slowest_ms: float | None
    """The longest from first sign to record."""
    data: Data
    changes: Changes

    @property
    def directories(self) -> int:
        """In all."""
        return sum(self.states.values())

    @property
    def brokers(self) -> int:
        """Agents in all."""
        return sum(self.statuses.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A directory day by day: ``days`` counts from the first day of the report; the others go with it."""

    days: Sequence[int]
    states: Sequence[str | None]
    used: Sequence[int | None]
    probe_us: Sequence[int | None]
    temp_c: Sequence[int | None]
    errors: Sequence[int | None]
    """I/O errors that were added that day."""
    defects: Sequence[int | None]
    """What the disk counts of defects of its own, at the end of the day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryDetail:
    """A directory on the page of its host."""

    directory: Directory
    series: Series


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """A row of the timeline."""

    ts: int
    kind: str
    path: str | None = None
    count: int = 1
    partitions: int | None = None
    leaders: int | None = None
    attrs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDetail:
    """All that the page of a host says."""

    agent: Agent
    directories: tuple[DirectoryDetail, ...]
    happenings: tuple[Happening, ...]
    """Oldest first, the newest so many."""
    hidden_happenings: int
    incidents: tuple[Incident, ...]


def safe_name(*parts: object) -> str:
    """A file name for what these name: readable, of plain characters alone, and no two have the same (but for a chance
    of one in 2^48 for each pair)."""
    text = "-".join(str(part) for part in parts if part is not None)
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in text.lower())[:60].strip("-")
    digest = hashlib.sha256("\0".join("-" if part is None else f"+{part}" for part in parts).encode("utf-8", "replace"))
    return f"{plain or 'x'}-{digest.hexdigest()[:12]}"


def host_file(fleet: str | None, host: str, broker_id: int) -> str:
    """Name of the page of a broker, below ``hosts/``."""
    return f"{safe_name(host, broker_id, fleet)}.html"


def model_file(model: str) -> str:
    """Name of the page of a model, below ``models/``."""
    return f"{safe_name(model)}.html"
