"""Metrics of the agent: what is at one moment (:class:`Snapshot`), and the series that are made of it.

What Kafka has too is there under Kafka's names (:mod:`kjbod.metrics.mbeans` says which), the rest is ``kjbod_*``.
Nothing is kept for a scrape and none touches a watched disk: it reads the state of the agent and, as the monitor does,
``/sys`` and ``/proc``. Series are by directory at most, never by partition, and those of a directory go with it.

``QueuedReplicaToDirAssignments`` is there for three MBeans, because dashboards look for it in three places: as KIP-858
has it (``kafka.server:type=KafkaServer``), as Kafka 3.7 to 4.x has it
(``org.apache.kafka.server:type=AssignmentsManager``, gone in 5.0), and as Kafka has it since 4.2
(``kafka.server:type=AssignmentsManager``, KIP-1100).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kjbod.metrics.certificates import ends_of_certificates
from kjbod.metrics.mbeans import MBean, Reading, families
from kjbod.quick_dataclass import dataclass
from kjbod_agent.health.state import Health
from kjbod_agent.moves.machine import ENDS, State
from kjbod_agent.smart.readings import Smart

if TYPE_CHECKING:
    from kjbod_agent.health.watched import DirectoryStatus

UNREADABLE: Final = "unreadable"
"""State of a directory that could not be read at the start: whether it has failed is not known."""
WAITING: Final = "waiting"
"""State of a move that waits for another one; beside those of :class:`kjbod_agent.moves.machine.State`."""

_QUEUED = "Replicas whose directory the controller has not acknowledged, or nobody knows yet (KIP-858)."
QUEUED_ASSIGNMENTS: Final = tuple(
    MBean(domain, type_, "QueuedReplicaToDirAssignments", _QUEUED)
    for domain, type_ in (
        ("kafka.server", "KafkaServer"),
        ("org.apache.kafka.server", "AssignmentsManager"),
        ("kafka.server", "AssignmentsManager"),
    )
)
_LOG_MANAGER = ("kafka.log", "LogManager")
OFFLINE_COUNT: Final = MBean(*_LOG_MANAGER, "OfflineLogDirectoryCount", "Log directories that are offline.")
OFFLINE: Final = MBean(*_LOG_MANAGER, "LogDirectoryOffline", "Whether a log directory is offline.", "logDirectory")
CORDONED_COUNT: Final = MBean(*_LOG_MANAGER, "CordonedLogDirectoryCount", "Cordoned log directories (KIP-1066).")
CORDONED: Final = MBean(
    *_LOG_MANAGER, "LogDirectoryCordoned", "Whether a log directory is cordoned (KIP-1066).", "logDirectory"
)
LOADING: Final = MBean(*_LOG_MANAGER, "remainingLogsToRecover", "Replicas that are still to be read.", "dir")
BROKER_STATE: Final = MBean("kafka.server", "KafkaServer", "BrokerState", "BrokerState of Kafka: 3 is running.")
PARTITIONS: Final = MBean("kafka.server", "ReplicaManager", "PartitionCount", "Replicas on this broker.")
LEADERS: Final = MBean("kafka.server", "ReplicaManager", "LeaderCount", "Partitions that this broker leads.")
APPLIED: Final = MBean(
    "kafka.server",
    "broker-metadata-metrics",
    "",
    "Offset of the last metadata record that was applied.",
    attribute="last-applied-record-offset",
)
MBEANS: Final = (
    *(*QUEUED_ASSIGNMENTS, OFFLINE_COUNT, OFFLINE, CORDONED_COUNT, CORDONED, LOADING),
    *(BROKER_STATE, PARTITIONS, LEADERS, APPLIED),
)
"""All MBeans of Kafka's whose series the agent has."""

PROBE_BOUNDS_US: Final = tuple(2**power for power in range(7, 25))
"""Upper bounds of the buckets of probe durations, 128 us to 16.8 s: each a bound of
:func:`kjbod.fleet.schema.latency_bucket` as well, so that no count has to be guessed."""
_BUCKETS_PER_DOUBLING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move of a replica between two directories."""

    topic: str
    partition: int
    source: str
    """Path; the directory's id where it has none."""
    destination: str
    state: str
    total_bytes: int
    copied_bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A log directory and what it lies on, as far as it was looked at; None: it was not."""

    directory_id: str = ""
    device: str = ""
    """Kernel names."""
    model: str = ""
    serial: str = ""
    file_system: str = ""
    total_bytes: int | None = None
    usable_bytes: int | None = None
    """What an unprivileged writer can still allocate."""
    probes: int | None = None
    probe_failures: int = 0
    probe_us: int = 0
    """Duration of all probes."""
    probe_histogram: Mapping[str, int] = field(default_factory=dict)
    """By :func:`kjbod.fleet.schema.latency_bucket`."""
    reads: int | None = None
    """Of the device since it is there, as the next ones."""
    read_bytes: int | None = None
    writes: int | None = None
    write_bytes: int | None = None
    io_errors: int | None = None
    busy_ms: int | None = None
    smart: Smart | None = None
    """What its disks tell of their own health."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The agent at one moment."""

    broker_state: int
    broker_epoch: int
    fenced: bool
    metadata_offset: int
    kept_offset: int
    queued_assignments: int
    offline: Mapping[str, bool]
    """By path of each configured directory."""
    health: Mapping[str, str]
    replicas: Mapping[str, int]
    leaders: Mapping[str, int]
    unfollowed_ms: int = 0
    """How long no fetch of the metadata has brought anything; 0: the last one did."""
    stuck_assignments: int = 0
    """Of the queued ones: those that the controller refuses or does not answer."""
    loading: Mapping[str, int] = field(default_factory=dict)
    """Replicas that are still to be read, by path of each configured directory; 0 when it is loaded."""
    creating: int = 0
    """Replicas that are being created."""
    moves: Sequence[Move] = ()
    strays: int = 0
    last_heartbeat_ms: int = 0
    """When the controller last acknowledged one, wall clock; 0: never."""
    certificates: Sequence[tuple[str, str, int]] = ()
    """What each is for, its store, and its end in milliseconds since 1970."""
    cordoned: Mapping[str, bool] = field(default_factory=dict)
    """By path of each directory that is registered."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    """By path of each configured directory."""


def disk_of(status: "DirectoryStatus") -> Disk:
    """A directory and its device as the monitor knows them."""
    probe, device, counters = status.last_probe, status.device, status.counters
    return Disk(
        directory_id=status.directory_id,
        device=" ".join(device.names) or device.device,
        model=device.model or "",
        serial=device.serial or "",
        file_system=status.file_system or "",
        total_bytes=None if probe is None else probe.total_bytes,
        usable_bytes=None if probe is None else probe.usable_bytes,
        probes=status.probes,
        probe_failures=status.probe_failures,
        probe_us=status.probe_us,
        probe_histogram=dict(status.probe_histogram),
        reads=None if counters is None else counters.reads,
        read_bytes=None if counters is None else counters.read_bytes,
        writes=None if counters is None else counters.writes,
        write_bytes=None if counters is None else counters.write_bytes,
        io_errors=None if counters is None else counters.errors,
        busy_ms=None if counters is None else counters.busy_ms,
        smart=status.smart,
    )


def directory_gauge(name: str, text: str, values: Iterable[tuple[str, float | None]]) -> Metric:
    """A gauge for each directory of which the value is known."""
    family = GaugeMetricFamily(name, text, labels=["logDirectory"])
    for path, value in values:
        if value is not None:
            family.add_metric([path], value)
    return family


def _of_kafka(now: Snapshot) -> Iterator[Reading]:
    """Values of Kafka's MBeans."""
    for bean in QUEUED_ASSIGNMENTS:
        yield Reading(bean, now.queued_assignments)
    yield Reading(OFFLINE_COUNT, sum(now.offline.values()))
    yield from (Reading(OFFLINE, offline, path) for path, offline in now.offline.items())
    yield Reading(CORDONED_COUNT, sum(now.cordoned.values()))
    yield from (Reading(CORDONED, cordoned, path) for path, cordoned in now.cordoned.items())
    yield from (Reading(LOADING, count, path) for path, count in now.loading.items())
    yield Reading(BROKER_STATE, now.broker_state)
    yield Reading(PARTITIONS, sum(now.replicas.values()))
    yield Reading(LEADERS, sum(now.leaders.values()))
    yield Reading(APPLIED, now.metadata_offset)


def health_series(health: Mapping[str, str], states: Iterable[str]) -> Metric:
    """A series for each directory and state, so that none disappears when the state changes; ``health`` is by path."""
    family = GaugeMetricFamily(
        "kjbod_log_directory_health",
        "1 for the state that a directory is in, 0 for the others; unreadable: it could not be read at the start.",
        labels=["logDirectory", "state"],
    )
    known = tuple(states)
    for path, current in health.items():
        for state in known:
            family.add_metric([path, state], state == current)
    return family


def _replica_work(now: Snapshot) -> Iterator[Metric]:
    """Series of the work on replicas: created, moved, left as strays."""
    yield GaugeMetricFamily("kjbod_replicas_creating", "Replicas that are being created.", now.creating)
    yield GaugeMetricFamily("kjbod_strays", "Replicas that the metadata do not know, kept aside.", now.strays)
    states = Counter(move.state for move in now.moves)
    moves = GaugeMetricFamily("kjbod_moves", "Moves of replicas between directories.", labels=["state"])
    possible = [WAITING, *(str(state.value) for state in State if state not in ENDS)]
    for state in dict.fromkeys((*possible, *sorted(states))):
        moves.add_metric([state], states[state])
    yield moves
    total, copied = sum(m.total_bytes for m in now.moves), sum(m.copied_bytes for m in now.moves)
    rate = sum(move.bytes_per_second for move in now.moves)
    yield GaugeMetricFamily("kjbod_move_bytes", "Size of the replicas that are being moved.", total)
    yield GaugeMetricFamily("kjbod_move_copied_bytes", "How much of them is copied.", copied)
    yield GaugeMetricFamily("kjbod_move_bytes_per_second", "How fast they are copied.", rate)


def disk_series(disks: Mapping[str, Disk]) -> Iterator[Metric]:
    """Series of what directories lie on, by path."""
    names = ["directory_id", "device", "model", "serial", "file_system"]
    info = GaugeMetricFamily(
        "kjbod_log_directory_info", "1; what a directory lies on.", labels=["logDirectory", *names]
    )
    for path, disk in disks.items():
        info.add_metric([path, *(str(getattr(disk, name)) for name in names)], 1)
    yield info
    sizes = ((path, disk.total_bytes) for path, disk in disks.items())
    yield directory_gauge("kjbod_log_directory_size_bytes", "Size of the file system.", sizes)
    usable = ((path, disk.usable_bytes) for path, disk in disks.items())
    yield directory_gauge("kjbod_log_directory_available_bytes", "What may still be written.", usable)
    yield _probes(disks)
    counters: tuple[tuple[str, str, Callable[[Disk], float | None]], ...] = (
        ("probe_failures", "Probes that were answered with an error.", _probe_failures),
        ("device_reads", "Reads that the device completed.", lambda disk: disk.reads),
        ("device_read_bytes", "Bytes of these.", lambda disk: disk.read_bytes),
        ("device_writes", "Writes that the device completed.", lambda disk: disk.writes),
        ("device_written_bytes", "Bytes of these.", lambda disk: disk.write_bytes),
        ("device_errors", "Requests that failed; only SCSI drivers count them.", lambda disk: disk.io_errors),
        ("device_busy_seconds", "Time with a request in flight.", _busy_s),
    )
    for name, text, read in counters:
        family = CounterMetricFamily(f"kjbod_log_directory_{name}", text, labels=["logDirectory"])
        for path, disk in disks.items():
            value = read(disk)
            if value is not None:
                family.add_metric([path], value)
        yield family
    yield from smart_series(disks)


_SMART: Final[tuple[tuple[str, str, Callable[[Smart], float | None]], ...]] = (
    ("passed", "Whether the disk's own overall assessment is good.", lambda smart: smart.passed),
    ("critical_warning", "Bits of NVMe's critical warning.", lambda smart: smart.critical_warning),
    ("temperature_celsius", "Temperature.", lambda smart: smart.temp_c),
    ("power_on_hours", "Hours of its life.", lambda smart: smart.power_on_hours),
    ("wear_percent", "Of its rated writes, used up.", lambda smart: smart.wear_pct),
    ("spare_percent", "Of its spare blocks, left.", lambda smart: smart.spare_pct),
    ("media_errors", "NVMe media errors, SCSI uncorrected errors.", lambda smart: smart.media_errors),
    ("reallocated_sectors", "Attribute 5, SCSI grown defects.", lambda smart: smart.realloc),
    ("pending_sectors", "Attribute 197, SCSI pending defects.", lambda smart: smart.pending),
    ("offline_uncorrectable", "Attribute 198.", lambda smart: smart.uncorrect),
    ("reported_uncorrectable", "Attribute 187.", lambda smart: smart.reported_uncorrect),
    ("command_timeouts", "Attribute 188.", lambda smart: smart.command_timeout),
    ("read_timestamp_seconds", "When the disk told it.", lambda smart: smart.at_ms and smart.at_ms / 1000),
)


def smart_series(disks: Mapping[str, Disk]) -> Iterator[Metric]:
    """Series of what disks tell of their own health, by path; of a directory on several disks the worst."""
    told = {path: disk.smart for path, disk in disks.items() if disk.smart is not None}
    for name, text, read in _SMART:
        yield directory_gauge(f"kjbod_disk_smart_{name}", text, ((path, read(smart)) for path, smart in told.items()))


def _probe_failures(disk: Disk) -> float | None:
    return None if disk.probes is None else disk.probe_failures


def _busy_s(disk: Disk) -> float | None:
    return None if disk.busy_ms is None else disk.busy_ms / 1000


def _probes(disks: Mapping[str, Disk]) -> Metric:
    family = HistogramMetricFamily(
        "kjbod_log_directory_probe_seconds", "Duration of probes, answered well or not.", labels=["logDirectory"]
    )
    for path, disk in disks.items():
        if disk.probes is not None:
            family.add_metric([path], _cumulative(disk.probe_histogram), disk.probe_us / 1e6)
    return family


def _cumulative(histogram: Mapping[str, int]) -> list[tuple[str, float]]:
    """Buckets of Prometheus: bound in s, and how many took no longer."""
    counted = sorted((int(bucket), count) for bucket, count in histogram.items())
    made = []
    for bound in PROBE_BOUNDS_US:
        end = _BUCKETS_PER_DOUBLING * (bound.bit_length() - 1)
        made.append((str(bound / 1e6), float(sum(count for bucket, count in counted if bucket < end))))
    return [*made, ("+Inf", float(sum(histogram.values())))]


class AgentCollector(Collector):
    """Turns a :class:`Snapshot` into metrics."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        now = self._read()
        yield from families(_of_kafka(now))
        stuck = "Queued assignments that the controller refuses or does not answer."
        yield GaugeMetricFamily("kjbod_assignments_stuck", stuck, now.stuck_assignments)
        yield GaugeMetricFamily("kjbod_broker_epoch", "Epoch of the registration, -1 before it.", now.broker_epoch)
        yield GaugeMetricFamily(
            "kjbod_broker_fenced", "Whether the controller fenced it at its last answer.", now.fenced
        )
        yield GaugeMetricFamily(
            "kjbod_last_acknowledged_heartbeat_timestamp_seconds",
            "When the controller last acknowledged a heartbeat, since the epoch; 0: never.",
            now.last_heartbeat_ms / 1000,
        )
        yield GaugeMetricFamily("kjbod_metadata_offset", "Last metadata offset applied.", now.metadata_offset)
        yield GaugeMetricFamily(
            "kjbod_metadata_kept_offset", "Last metadata offset kept for the next start, -1: none.", now.kept_offset
        )
        failing = "Since when no fetch of the metadata brings anything; 0: the last one did."
        yield GaugeMetricFamily("kjbod_metadata_fetch_failing_seconds", failing, now.unfollowed_ms / 1000)
        yield ends_of_certificates(now.certificates)
        yield directory_gauge("kjbod_log_directory_replicas", "Replicas.", now.replicas.items())
        yield directory_gauge("kjbod_log_directory_leaders", "Replicas that lead.", now.leaders.items())
        yield from _replica_work(now)
        yield health_series(now.health, (*map(str, Health), UNREADABLE))
        yield from disk_series(now.disks)
