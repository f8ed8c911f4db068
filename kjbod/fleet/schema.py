"""The two kinds of line in an agent's report: a :class:`Sample` and an :class:`Event`.

This is the one place that knows the columns. The agent makes the dataclasses and writes their JSON; the Spark job reads
that JSON with the schema of :func:`ddl`, which is computed from the same fields. Nothing here imports pyspark, since a
broker host has none.

A line is self-describing, without reference to the one before it: that costs 2 % after compression, and any line can
be lost, repeated or reordered without harm. Identity makes repetition harmless: a sample is
``(fleet, host, broker_id, dir_id, path, boot_id, seq)``, an event is its ``event_id``.

``boot_id`` names one run of one agent: its incarnation id, not the kernel's boot id, because ``seq`` and the
"a failed directory stays failed until restart" rule both start anew with the process. ``mono_ns`` of two lines may be
subtracted only when their ``boot_id`` is the same; all latencies are computed that way, so that a clock which is set in
the middle of an incident does not falsify them.
"""

import dataclasses
import json
import math
import types
import typing
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SCHEMA_VERSION = 1
"""Column ``v``. Readers ignore columns that they do not know and read columns that are absent as null, so a column can
be added without a new version; a new version is for a column whose meaning changed."""

SAMPLES = "samples"
EVENTS = "events"
STREAMS = (SAMPLES, EVENTS)
"""The folders below a reports directory."""

TRAILER_KIND = "eof"
"""Value of ``k`` in the last line of a file. Samples and events have no ``k``."""
TRAILER_DDL = "k STRING, rows BIGINT, crc32 BIGINT, first BIGINT, last BIGINT, partial BOOLEAN"
"""Columns of the trailer: lines in the file, the sum of their CRC-32 modulo 2^32 (a sum, because Spark sees the lines
of a file in any order), ``ts`` of the first and last line, whether the file was recovered after a crash."""

_NAMESPACE = uuid.UUID("6f0b1a4c-8f0e-5b3e-9a5d-3f6a7c858858")


class DirectoryState(StrEnum):
    """Health of a log directory, as the agent has it. Worst first: the order of reports."""

    FAILED = "failed"
    UNREADABLE = "unreadable"
    """It could not be read when the agent started: whether it has failed is not known."""
    HELD = "held"
    SUSPECT = "suspect"
    SLOW = "slow"
    FULL = "full"
    ONLINE = "online"


class EventKind(StrEnum):
    """Kind of an :class:`Event`. "Per directory" means: one event for each directory, with ``dir_id`` and ``path``."""

    AGENT_STARTED = "agent_started"
    """Of a guard too: ``attrs`` then has ``role`` and ``mode``."""
    REGISTERED = "registered"
    UNFENCED = "unfenced"
    FENCED = "fenced"
    STATE_CHANGED = "state_changed"
    """Per directory: ``attrs`` has ``previous`` and ``state``."""
    DIR_FAILED = "dir_failed"
    """Per directory: the verdict, with ``cause``, ``evidence``, ``errno``, ``call`` and, when known, ``latency_ms``
    since the first sign; ``partitions`` and ``leaders`` are what it held at that moment."""
    OFFLINE_SENT = "offline_sent"
    """Per directory: first heartbeat that carries it in OfflineLogDirs."""
    ACKNOWLEDGED = "acknowledged"
    """Per directory: the controller answered that heartbeat without error."""
    LEADERSHIP_MOVED = "leadership_moved"
    """Per directory: the committed metadata shows no leader on it any more; ``leaders`` is how many moved."""
    TIMEOUT_SHUTDOWN = "timeout_shutdown"
    """``log.dir.failure.timeout.ms`` passed without acknowledgement. Per directory; without one it stands for every
    unacknowledged directory of this run."""
    AGENT_STOPPED = "agent_stopped"
    """``attrs`` has ``reason`` and ``exit_code``."""
    ASSIGNMENTS_ACKNOWLEDGED = "assignments_acknowledged"
    """``attrs`` has ``count``."""
    REPLICA_CREATED = "replica_created"
    """Per directory: ``attrs`` has ``topic`` and ``partition``."""
    KAFKA_NOTICED = "kafka_noticed"
    """Of a guard, per directory: the metadata show that the broker beside it has taken the directory offline by itself;
    ``attrs`` has ``after_ms`` since the guard's verdict, when that was before."""
    GUARD_WOULD = "guard_would"
    """Of a guard, per directory: what it would do about a failure (``would``, a step of the ladder; ``reason``, in
    words; ``mode``). In mode observe it does nothing."""
    GUARD_DOES = "guard_does"
    """Of a guard in mode act: it is about to use a means (``means``, such as ``cut``, ``evict``, ``fence``; ``count``,
    of partitions, where it is about some) on the directory that ``path`` names, or, without one, on the broker. This
    kind and the next two have no ``dir_id``: a disk that replaces another meanwhile gets nothing of it."""
    GUARD_DONE = "guard_done"
    """Likewise: what came of it (``means``, ``outcome``: ``done``, ``pending``, ``failed`` or ``refused``; ``took_ms``;
    ``reason`` where it is not done; ``count``)."""
    GUARD_STANDS = "guard_stands"
    """Likewise: where the directory, or the broker, stands on the ladder from now on (``state``), and why (``reason``).
    ``left`` and ``crippled``: what should be done is not, but where the reason is ``released``."""
    GUARD_LACKS = "guard_lacks"
    """Of a guard, for the broker: partitions that lack replicas. ``attrs`` has the counts ``below_replication_factor``
    (the guard evicted the broker from them), ``below_min_isr`` and ``without_leader``, and ``reason``, in words. All
    counts ``0`` and no reason: no partition lacks a replica any more. A guard reports changed counts, at most once in
    10 s. A run of a guard without this event has seen no such partition."""


INCIDENT_KINDS = frozenset(
    {
        EventKind.DIR_FAILED,
        EventKind.OFFLINE_SENT,
        EventKind.ACKNOWLEDGED,
        EventKind.LEADERSHIP_MOVED,
        EventKind.TIMEOUT_SHUTDOWN,
        EventKind.KAFKA_NOTICED,
    }
)
"""Kinds that belong to the failure of one directory and get its ``incident``."""

URGENT_KINDS = INCIDENT_KINDS - {EventKind.OFFLINE_SENT} | {EventKind.AGENT_STOPPED, EventKind.GUARD_STANDS}
"""Kinds after which the open files are handed to the readers at once. Not ``guard_lacks``: in a cluster in trouble all
guards would finish two files each 10 s."""


def incident_id(host: str, boot_id: str, dir_id: str | None, path: str | None) -> str:
    """Id of the failures of one directory in one run of the agent.

    Nobody has to remember it. A directory that an agent has failed stays failed until the agent restarts, or until its
    disk is added again; under a guard it is watched again as soon as the broker uses it again. A second verdict on the
    same disk has the same id: its time tells it from the first.
    """
    return str(uuid.uuid5(_NAMESPACE, json.dumps(["incident", host, boot_id, dir_id or path])))


def latency_bucket(latency_us: int) -> str:
    """Bucket ``floor(4 * log2(us))`` of a latency histogram, as a JSON key: buckets are 19 % wide, they add up across
    directories, hosts and hours, and quantiles read from them repeat exactly (a sketch's do neither)."""
    return str(math.floor(4 * math.log2(max(latency_us, 1))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A log directory at one moment. Times are wall ms since 1970 UTC, sizes bytes; None is "not known"."""

    ts: int
    mono_ns: int
    boot_id: str
    seq: int
    """Number of the sampling round in this run of the agent: 0, 1, 2, ..."""
    fleet: str
    """Cluster id."""
    rack: str | None = None
    """``broker.rack``."""
    host: str
    broker_id: int
    dir_id: str | None = None
    """``directory.id``; None as long as ``meta.properties`` could not be read."""
    path: str
    device: str | None = None
    model: str | None = None
    serial: str | None = None
    state: str
    """A :class:`DirectoryState`."""
    state_since: int | None = None
    bytes_total: int | None = None
    """Size of the file system for unprivileged users: used + available."""
    bytes_used: int | None = None
    partitions: int | None = None
    leaders: int | None = None
    io_errors: int | None = None
    """Failed requests since ``counters_since``, as this and the next counters."""
    reads: int | None = None
    read_bytes: int | None = None
    writes: int | None = None
    write_bytes: int | None = None
    busy_ms: int | None = None
    """Time in which the device had requests in flight (``io_ticks``)."""
    counters_since: int | None = None
    """When the counters began at zero (boot or attach). A later value than before marks a reset."""
    probe_write_us: int | None = None
    probe_sync_us: int | None = None
    probe_read_us: int | None = None
    probe_us: int | None = None
    """The last probe as a whole."""
    probes: int | None = None
    """Probes since the sample before this one."""
    probe_failures: int | None = None
    probe_histogram: Mapping[str, int] | None = None
    """Whole-probe durations since the sample before: :func:`latency_bucket` to count."""
    firmware: str | None = None
    """Of the disk, as the next ones; of a directory on several disks the worst value of each column, the sum of their
    capacities, texts one after the other."""
    capacity_bytes: int | None = None
    smart_ts: int | None = None
    """When the disk told what follows."""
    smart_passed: int | None = None
    """Its own overall assessment: 1 passed, 0 it says that it is failing."""
    smart_poh: int | None = None
    """Power-on hours."""
    smart_temp_c: int | None = None
    smart_wear_pct: int | None = None
    """Of its rated writes that is used up (NVMe percentage_used, and what SATA and SAS have for it)."""
    smart_spare_pct: int | None = None
    """Spare blocks that are left."""
    smart_media_errors: int | None = None
    """NVMe media errors, SCSI uncorrected errors."""
    smart_critical_warning: int | None = None
    """Bits of NVMe's critical warning."""
    smart_realloc: int | None = None
    """Attribute 5, SCSI: grown defects."""
    smart_pending: int | None = None
    """Attribute 197, SCSI: pending defects."""
    smart_uncorrect: int | None = None
    """Attribute 198."""
    smart_reported_uncorrect: int | None = None
    """Attribute 187."""
    smart_command_timeout: int | None = None
    """Attribute 188."""
    smart_raw: str | None = None
    """Once an hour: JSON, by disk. Of ATA by attribute id ``[value, worst, threshold, raw]``, else counters by name."""
    v: int = SCHEMA_VERSION

    def to_json_line(self) -> str:
        """A line of JSON without the newline, keys in column order, unknown values left out."""
        return _json_line(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened. ``event_id`` and, for :data:`INCIDENT_KINDS` with a directory, ``incident`` are computed
    when not given."""

    event_id: str = ""
    incident: str | None = None
    ts: int
    mono_ns: int
    boot_id: str
    kind: str
    """An :class:`EventKind`."""
    fleet: str | None = None
    host: str
    broker_id: int
    dir_id: str | None = None
    path: str | None = None
    device: str | None = None
    serial: str | None = None
    partitions: int | None = None
    leaders: int | None = None
    attrs: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What only some kinds have: see :class:`EventKind`."""
    v: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        if self.incident is None and self.kind in INCIDENT_KINDS and (self.dir_id or self.path):
            object.__setattr__(self, "incident", incident_id(self.host, self.boot_id, self.dir_id, self.path))
        if not self.event_id:
            # All that tells two events of one run apart; created replicas can share even the nanosecond.
            identity = [self.host, self.boot_id, self.broker_id, self.kind, self.dir_id, self.path, self.mono_ns]
            text = json.dumps([*identity, sorted(self.attrs.items())])
            object.__setattr__(self, "event_id", str(uuid.uuid5(_NAMESPACE, text)))

    def to_json_line(self) -> str:
        """A line of JSON without the newline, keys in column order, unknown values left out."""
        return _json_line(self)


def _json_line(row: Sample | Event) -> str:
    columns = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    present = {name: dict(value) if isinstance(value, Mapping) else value for name, value in columns.items()}
    # ASCII only: a path that is not UTF-8 arrives as lone surrogates, which have no UTF-8 bytes but do have an escape.
    return json.dumps({name: value for name, value in present.items() if value is not None}, separators=(",", ":"))


_SPARK_TYPES: Mapping[object, str] = {
    int: "BIGINT",
    str: "STRING",
    Mapping[str, int]: "MAP<STRING,BIGINT>",
    Mapping[str, str]: "MAP<STRING,STRING>",
}


def columns(row: type[Sample] | type[Event]) -> dict[str, str]:
    """Column name to Spark SQL type, in order."""
    hints = typing.get_type_hints(row)
    return {field.name: _SPARK_TYPES[_without_none(hints[field.name])] for field in dataclasses.fields(row)}


def required_columns(row: type[Sample] | type[Event]) -> tuple[str, ...]:
    """Columns without which a line is no ``row``."""
    hints = typing.get_type_hints(row)
    return tuple(
        field.name
        for field in dataclasses.fields(row)
        if _without_none(hints[field.name]) is hints[field.name] and field.name not in ("attrs", "v")
    )


def _without_none(hint: object) -> object:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return next(part for part in typing.get_args(hint) if part is not type(None))
    return hint


def ddl(row: type[Sample] | type[Event]) -> str:
    """The columns as a Spark DDL string, for ``from_json`` and table schemas."""
    return ", ".join(f"{name} {spark_type}" for name, spark_type in columns(row).items())


SAMPLE_KEY = ("fleet", "host", "broker_id", "dir_id", "path", "boot_id", "seq")
EVENT_KEY = ("event_id",)
