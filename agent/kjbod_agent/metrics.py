"""Metrics as Prometheus text, on a listener of its own (``kjbod.metrics.listener``).

Names are Kafka's where it has them, written as the JMX exporter writes them by default. Nothing is kept: a scrape reads
the state of the agent, on the event loop, without I/O.

``QueuedReplicaToDirAssignments`` is there three times, because dashboards look for it in three places: as KIP-858 has
it (``kafka.server:type=KafkaServer``), as Kafka 3.7 to 4.x has it (``org.apache.kafka.server:type=AssignmentsManager``,
gone in 5.0), and as Kafka has it since 4.2 (``kafka.server:type=AssignmentsManager``, KIP-1100).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kjbod.errors import StorageError
from kjbod.runtime.logging import get_logger
from kjbod.runtime.names import UnresolvedError, listening_addresses

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 16


class MetricsListenerError(StorageError):
    """The metrics listener cannot be opened."""


QUEUED_ASSIGNMENTS: Final = (
    "kafka_server_KafkaServer_QueuedReplicaToDirAssignments",
    "org_apache_kafka_server_AssignmentsManager_QueuedReplicaToDirAssignments",
    "kafka_server_AssignmentsManager_QueuedReplicaToDirAssignments",
)


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
class Snapshot:
    """The agent at one moment."""

    broker_state: int
    broker_epoch: int
    fenced: bool
    metadata_offset: int
    queued_assignments: int
    offline: Mapping[str, bool]
    """By path of each configured directory."""
    health: Mapping[str, str]
    replicas: Mapping[str, int]
    leaders: Mapping[str, int]
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


def _per_directory(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["logDirectory"])
    for path, value in values:
        family.add_metric([path], value)
    return family


def _replica_work(now: Snapshot) -> Iterator[Metric]:
    """What is being done with replicas: loaded, created, moved, left as strays."""
    loading = GaugeMetricFamily(
        "kafka_log_LogManager_remainingLogsToRecover", "Replicas that are still to be read.", labels=["dir"]
    )
    for path, count in now.loading.items():
        loading.add_metric([path], count)
    yield loading
    yield GaugeMetricFamily("kjbod_replicas_creating", "Replicas that are being created.", now.creating)
    yield GaugeMetricFamily("kjbod_strays", "Replicas that the metadata do not know, kept aside.", now.strays)
    states = Counter(move.state for move in now.moves)
    moves = GaugeMetricFamily("kjbod_moves", "Moves of replicas between directories.", labels=["state"])
    for state, count in sorted(states.items()):
        moves.add_metric([state], count)
    yield moves
    yield from _per_move(now.moves)


def _per_move(moves: Sequence[Move]) -> Iterator[Metric]:
    labels = ["topic", "partition", "source", "destination"]
    total = GaugeMetricFamily("kjbod_move_bytes", "Size of a replica that is being moved.", labels=labels)
    copied = GaugeMetricFamily("kjbod_move_copied_bytes", "How much of it is copied.", labels=labels)
    rate = GaugeMetricFamily("kjbod_move_bytes_per_second", "How fast it is copied.", labels=labels)
    for move in moves:
        values = [move.topic, str(move.partition), move.source, move.destination]
        total.add_metric(values, move.total_bytes)
        copied.add_metric(values, move.copied_bytes)
        rate.add_metric(values, move.bytes_per_second)
    yield from (total, copied, rate)


class AgentCollector(Collector):
    """Turns a :class:`Snapshot` into metrics."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        now = self._read()
        queued = "Replicas whose directory the controller has not acknowledged, or nobody knows yet (KIP-858)."
        for name in QUEUED_ASSIGNMENTS:
            yield GaugeMetricFamily(name, queued, now.queued_assignments)
        stuck = "Queued assignments that the controller refuses or does not answer."
        yield GaugeMetricFamily("kjbod_assignments_stuck", stuck, now.stuck_assignments)
        offline = sum(now.offline.values())
        yield GaugeMetricFamily("kafka_log_LogManager_OfflineLogDirectoryCount", "Log directories offline.", offline)
        yield _per_directory(
            "kafka_log_LogManager_LogDirectoryOffline",
            "Whether a log directory is offline.",
            ((path, float(is_offline)) for path, is_offline in now.offline.items()),
        )
        yield GaugeMetricFamily("kafka_server_KafkaServer_BrokerState", "BrokerState of Kafka.", now.broker_state)
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
        yield _per_directory("kjbod_log_directory_replicas", "Replicas.", now.replicas.items())
        yield _per_directory("kjbod_log_directory_leaders", "Replicas that lead.", now.leaders.items())
        yield from _replica_work(now)
        states = GaugeMetricFamily(
            "kjbod_log_directory_health", "1 for the state of a directory.", labels=["logDirectory", "state"]
        )
        for path, state in now.health.items():
            states.add_metric([path, state], 1)
        yield states


class MetricsListener:
    """Serves ``GET /metrics``."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(AgentCollector(read))
        self._connections = 0
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            MetricsListenerError: the address is taken or not ours, or has no address.
        """
        try:
            addresses = await listening_addresses(host, get_logger())
            self._server = await asyncio.start_server(self._serve, addresses, port, limit=REQUEST_BYTES_MAX)
        except UnresolvedError as error:
            raise MetricsListenerError(f"kjbod.metrics.listener={host}:{port}: {error}") from None
        except OSError as error:
            raise MetricsListenerError(
                f"kjbod.metrics.listener={host}:{port}: {error.strerror or error}: choose another port"
            ) from None

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(request.split(b"\r\n", 1)[0]))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._connections -= 1
            with contextlib.suppress(OSError):
                writer.close()

    def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return _response("405 Method Not Allowed", b"")
        if path != b"/metrics":
            return _response("404 Not Found", b"")
        return _response("200 OK", generate_latest(self._registry))


def _response(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
