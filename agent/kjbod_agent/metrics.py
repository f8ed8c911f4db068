"""Metrics as Prometheus text, on a listener of its own (``kjbod.metrics.listener``).

Names are Kafka's where it has them, written as the JMX exporter writes them by default. Nothing is kept: a scrape reads
the state of the agent, on the event loop, without I/O.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kjbod.errors import StorageError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 16


class MetricsListenerError(StorageError):
    """The metrics listener cannot be opened."""


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


def _per_directory(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["logDirectory"])
    for path, value in values:
        family.add_metric([path], value)
    return family


class AgentCollector(Collector):
    """Turns a :class:`Snapshot` into metrics."""

    def __init__(self, read: Callable[[], Snapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """All metrics of this moment."""
        now = self._read()
        queued = "Replica-to-directory assignments that the controller has not acknowledged (KIP-858)."
        for owner in ("kafka_server_AssignmentsManager", "kafka_server_KafkaServer"):
            yield GaugeMetricFamily(f"{owner}_QueuedReplicaToDirAssignments", queued, now.queued_assignments)
        offline = sum(now.offline.values())
        yield GaugeMetricFamily("kafka_log_LogManager_OfflineLogDirectoryCount", "Log directories offline.", offline)
        yield _per_directory(
            "kafka_log_LogManager_LogDirectoryOffline",
            "Whether a log directory is offline.",
            ((path, float(is_offline)) for path, is_offline in now.offline.items()),
        )
        yield GaugeMetricFamily("kafka_server_KafkaServer_BrokerState", "BrokerState of Kafka.", now.broker_state)
        yield GaugeMetricFamily("kjbod_broker_epoch", "Epoch of the registration, -1 before it.", now.broker_epoch)
        yield GaugeMetricFamily("kjbod_broker_fenced", "Whether the controller fences this broker.", now.fenced)
        yield GaugeMetricFamily("kjbod_metadata_offset", "Last metadata offset applied.", now.metadata_offset)
        yield _per_directory("kjbod_log_directory_replicas", "Replicas.", now.replicas.items())
        yield _per_directory("kjbod_log_directory_leaders", "Replicas that lead.", now.leaders.items())
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
            MetricsListenerError: the address is taken or not ours.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=REQUEST_BYTES_MAX)
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
