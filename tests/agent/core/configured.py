"""A whole agent as the daemon composes it from a ``server.properties``, on disks in memory, in virtual time.

Only what leaves the process is not real: the sockets of the controllers and of clients, the files of the state and the
reports, the kernel.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from msgspec import structs

from kjbod.config import Config
from kjbod.config.load import agent_problems, parse_config
from kjbod.ids import METADATA_TOPIC_ID, UNASSIGNED, Uuid
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.records import FeatureLevelRecord, PartitionRecord, Record, TopicRecord, encode_record
from kjbod.metadata.versions import METADATA_VERSION, SUPPORTED_FEATURES
from kjbod.security.certificates import Certificates
from kjbod.wire import messages as wire
from kjbod.wire.client import Disconnected, RequestTimedOut
from kjbod.wire.limits import Limits
from kjbod.wire.server import Handler
from kjbod_agent import daemon
from kjbod_agent.admin import listener
from kjbod_agent.admin.listener import Listeners, Parts, listener_problems
from kjbod_host.directories.start_up import open_directories
from kjbod_host.directories.start_up_rules import Memory
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.reporter import Reporter, Sender
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from tests.agent.core.opened import Unsaved
from tests.agent.core.recording import Log
from tests.agent.core.test_broker import Controller, FakeConnection
from tests.agent.health.test_monitor import Sources

BASE = """\
process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=c1:9093
listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
log.dirs=/d1,/d2
kjbod.state.dir=/state
"""
LEADER_ID = 3000
TOPIC = Uuid.of(3, 1)
D1, D2 = Uuid.of(5, 1), Uuid.of(5, 2)


def read(text: str) -> Config:
    """``text`` below :data:`BASE`, as the agent reads its file; later lines win."""
    checks = (agent_problems, listener_problems, daemon._registration_problems)
    return parse_config(
        f"{BASE}{text}\n".encode(), *checks, source="server.properties", working_directory="/", host="h"
    )


@dataclass(frozen=True)
class Opened:
    """An attempt to connect."""

    at_ms: int
    client_id: str
    address: str
    timeout_ms: int


@dataclass(frozen=True)
class Asked:
    """A request."""

    at_ms: int
    client_id: str
    message: Any
    timeout_ms: int


class Quorum(Controller):
    """Controllers that answer heartbeats and serve a metadata log. ``silent``: they take all and answer nothing;
    ``deaf``: nothing but connections; ``gone``: they refuse connections."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.deaf = False
        self.opened: list[Opened] = []
        self.asked: list[Asked] = []
        self.log: dict[int, bytes] = {}
        """Batches by their first offset."""
        self.end_offset = 0
        self.snapshot: wire.SnapshotId | None = None
        self.appended = asyncio.Event()

    async def open(self, host: str, port: int, *, client_id: str, clock: Any, connect_timeout_ms: int) -> Any:
        self.opened.append(Opened(clock.monotonic_ms(), client_id, f"{host}:{port}", connect_timeout_ms))
        await super().open(host, port, client_id=client_id, clock=clock, connect_timeout_ms=connect_timeout_ms)
        return QuorumConnection(self, client_id)

    def commit(self, *records: Record) -> None:
        values = [encode_record(record) for record in records]
        self.log[self.end_offset] = encode_batch(values, self.end_offset, 1, 1000)
        self.end_offset += len(records)
        self.appended.set()

    async def fetched(self, request: wire.FetchRequest) -> wire.FetchResponse:
        asked = request.topics[0].partitions[0]
        if asked.fetch_offset == self.end_offset:
            self.appended.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.appended.wait(), request.max_wait_ms / 1000)
        partition = wire.FetchResponsePartition(
            partition_index=0,
            high_watermark=self.end_offset,
            current_leader=wire.LeaderIdAndEpoch(leader_id=LEADER_ID, leader_epoch=1),
            records=b"".join(batch for offset, batch in self.log.items() if offset >= asked.fetch_offset),
        )
        if self.snapshot is not None:
            partition = structs.replace(partition, snapshot_id=self.snapshot)
        return wire.FetchResponse(
            responses=(wire.FetchResponseTopic(topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
            node_endpoints=(wire.FetchResponseNodeEndpoint(node_id=LEADER_ID, host="leader", port=9093),),
        )

    def times(self, kind: type) -> list[int]:
        return [asked.at_ms for asked in self.asked if isinstance(asked.message, kind)]

    def first(self, kind: type) -> Any:
        return next(asked.message for asked in self.asked if isinstance(asked.message, kind))


class QuorumConnection(FakeConnection):
    """To a :class:`Quorum`."""

    versions: ClassVar[Mapping[int, tuple[int, int]]] = {}

    def __init__(self, quorum: Quorum, client_id: str) -> None:
        super().__init__(quorum)
        self._quorum = quorum
        self._client_id = client_id

    def version_of(self, api_key: int) -> int:
        if api_key == wire.FetchRequest.API_KEY:
            return 17
        return min(super().version_of(api_key), wire.API[wire.ApiKey(api_key)].max_version)

    async def request(self, message: Any, *, timeout_ms: int) -> Any:
        quorum = self._quorum
        quorum.asked.append(Asked(quorum.clock.monotonic_ms(), self._client_id, message, timeout_ms))
        if quorum.deaf or isinstance(message, wire.FetchSnapshotRequest):
            self.closed = True
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut("no answer")
        if quorum.gone:
            raise Disconnected("gone")
        if isinstance(message, wire.FetchRequest):
            return await quorum.fetched(message)
        return await super().request(message, timeout_ms=timeout_ms)


class _Memory(Unsaved):
    """Of directories, in no file."""

    files = SimpleNamespace(process_ids=tuple)  # type: ignore[assignment]

    async def keep_current(self, *_: object) -> None:
        return

    async def write_file(self, *_: object) -> None:
        return


class _Reports:
    """Health reports that are kept."""

    def __init__(self, directory: Path = Path(), *, host: str = "", limits: Any = None, **_: object) -> None:
        self.directory, self.host, self.limits = directory, host, limits
        self.samples: list[Any] = []

    def event(self, event: object) -> None:
        pass

    def sample(self, sample: object) -> None:
        self.samples.append(sample)


class _Metrics:
    """A listener for metrics that listens nowhere."""

    def __init__(self) -> None:
        self.where: tuple[str, int] | None = None
        self.web: Any = None

    async def open(self, host: str, port: int) -> None:
        self.where = host, port


class _Steady(random.Random):
    """Chance without jitter."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class Agent:
    """Agent with the file ``text``: runs within ``async with``.

    Attributes:
        served: host, port and limits of each listener.
        handler: what answers the requests that come to one.
    """

    def __init__(self, clock: Any, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        self.clock = clock
        self.text = text
        self.config = read(text)
        self.log = Log()
        self.quorum = Quorum(clock)
        self.reports = _Reports()
        self.metrics = _Metrics()
        self.served: list[tuple[str, int, Limits]] = []
        self.handler: Handler
        self.parts: Parts
        self.disks = {
            path: MemoryDisk(
                number=number,
                meta_properties=f"version=1\nnode.id={self.config.node_id}\ncluster.id=c\n"
                f"directory.id={Uuid.of(5, number)}\n".encode(),
            )
            for number, path in enumerate(self.config.directories, start=1)
        }
        self.sources = Sources(self.disks)
        self._tasks: set[asyncio.Task[None]] = set()
        for name, replacement in {
            "opened_with": lambda _security: self.quorum.open,
            "HealthMonitor": partial(HealthMonitor, sources=self.sources),
            "linux_sources": lambda: (),
            "Listeners": self._listeners,
            "ReportWriter": _Reports,
        }.items():
            monkeypatch.setattr(daemon, name, replacement)
        monkeypatch.setattr(listener, "serve", self._serve)
        monkeypatch.setattr("kjbod.metrics.listener.MetricsListener", self._made_metrics)
        monkeypatch.setattr(daemon.Agent, "_open_control", self._nothing)
        monkeypatch.setattr(daemon.Agent, "_keeper", lambda *_: None)  # it would start processes

    def _listeners(self, config: Config, parts: Parts, certificates: Certificates, **options: Any) -> Listeners:
        self.parts = parts
        return Listeners(config, parts, certificates, **options)

    async def _serve(self, host: str, port: int, handler: Handler, *, limits: Limits, **_: object) -> Any:
        self.served.append((host, port, limits))
        self.handler = handler

    def _made_metrics(self, *given: Any) -> _Metrics:
        self.metrics.web = given[-1]
        return self.metrics

    @staticmethod
    async def _nothing(*_: object) -> None:
        return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def __aenter__(self) -> "Agent":
        clock, config = self.clock, self.config
        self.quorum.commit(
            FeatureLevelRecord(name=METADATA_VERSION, feature_level=SUPPORTED_FEATURES[METADATA_VERSION][1])
        )
        self.daemon = daemon.Agent(config, daemon.registered_listeners(config), clock, _Steady(858))
        self.daemon._log = self.log  # type: ignore[assignment]
        self.daemon._daemon.spawn = self._spawn  # type: ignore[method-assign, assignment]
        self.daemon.remembering = _Memory(Memory())
        self.daemon._storage = storage = MemoryStorageAgent(StorageOptions(clock=clock), self.disks)
        self.opened = await open_directories(
            config, storage, clock, random.Random(858), self.log, self.daemon.remembering
        )
        sender = Sender(host="h", broker_id=config.node_id, boot_id="b", fleet="c")
        reporter = Reporter(sender, clock, self.log, self.reports)
        self.broker = self.daemon._make_broker(self.opened, Uuid.of(1, 1), reporter)
        await self.daemon._run_parts(self.broker, self.opened, reporter)
        assert self.broker.monitor is not None
        self.monitor: Any = self.broker.monitor
        self.broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[], bool], timeout_s: float = 1000) -> int:
        """How long it took, ms."""
        begun_ms = self.clock.monotonic_ms()
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  the machines under test have no event for tests
                await asyncio.sleep(0.01)
        return int(self.clock.monotonic_ms() - begun_ms)

    def seconds_since(self, begun_ms: int) -> int:
        passed_ms: int = self.clock.monotonic_ms() - begun_ms
        return round(passed_ms / 1000)

    async def comes(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Whether it does."""
        try:
            await self.until(condition, within_s)
        except TimeoutError:
            return False
        return True

    async def unfenced(self) -> None:
        """Until it serves."""
        await self.until(lambda: not self.broker.life.fenced)

    def topic(self, *directories: Uuid) -> None:
        """A topic with a replica here for each; UNASSIGNED: to be chosen."""
        partitions = [
            PartitionRecord(
                partition_id=number,
                topic_id=TOPIC,
                replicas=(self.config.node_id,),
                isr=(self.config.node_id,),
                leader=self.config.node_id,
                leader_epoch=0,
                partition_epoch=0,
                directories=(directory,),
            )
            for number, directory in enumerate(directories or (UNASSIGNED,))
        ]
        self.quorum.commit(TopicRecord(name="t", topic_id=TOPIC), *partitions)
