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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kjbod.metrics.certificates import ends_of_certificates
from kjbod.metrics.mbeans import MBean, Reading, families
from kjbod_agent.moves.machine import ENDS, State
from kjbod_host.health.state import Health
from kjbod_host.metrics import Disk, directory_gauge, disk_series, health_series

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


class Move(Struct, frozen=True, kw_only=True):
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


class Snapshot(Struct, frozen=True, kw_only=True):
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


class AgentCollector(Collector):
    """Collector that turns a :class:`Snapshot` into metrics."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of this moment."""
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
