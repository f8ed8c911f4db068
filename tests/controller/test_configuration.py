"""Each key of the configuration that is a controller's changes what a controller does.

A row has what is observed of a controller without the key, and with it. A key without a row fails.
"""

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest

from kjbod.clock import SystemClock
from kjbod.config.keys import CONTROLLER, Config, settings
from kjbod.config.load import controller_problems, parse_config
from kjbod.errors import ConfigError, StorageError
from kjbod.ids import Uuid
from kjbod.metadata.records import ClientQuotaRecord, NoOpRecord, QuotaEntity
from kjbod.security.certificates import Certificates
from kjbod.wire.admin_messages import CreateDelegationTokenRequest
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    ApiKey,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
)
from kjbod_controller_stub import process
from kjbod_controller_stub.access.authorizer import is_authorized
from kjbod_controller_stub.access.mutation_quotas import MUTATION_RATE
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.log.controller_directory import ControllerDirectory, open_directory
from kjbod_controller_stub.results import Result
from kjbod_controller_stub.server import ControllerServer
from kjbod_controller_stub.starting import controller_of, limits_of, snapshot_limits_of
from kjbod_host.daemon import Daemon
from tests.controller.conftest import Site
from tests.controller.world import CLUSTER_ID, NODE_ID, World, directory

Observe: TypeAlias = Callable[["Given"], Any | Awaitable[Any]]
BASE = f"""\
process.roles=controller
node.id={NODE_ID}
listeners=CONTROLLER://127.0.0.1:0
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers=127.0.0.1:9093
"""
SECOND_MS = 1_000


@dataclass(frozen=True)
class Given:
    """A ``server.properties`` with :data:`BASE` and these lines, and a place for its directory."""

    text: str
    place: Path

    @property
    def config(self) -> Config:
        lines = f"{BASE}log.dirs={self.place / 'log'}\n{self.text.format(place=self.place)}\n"
        return parse_config(
            lines.encode(), controller_problems, source="server.properties", working_directory="/", host="h"
        )

    @property
    def world(self) -> "ConfiguredWorld":
        """A controller without a disk, in virtual time."""
        return ConfiguredWorld(config=self.config, with_elr=False)

    @contextlib.asynccontextmanager
    async def server(self) -> AsyncIterator[ControllerServer]:
        """A controller on a real directory, behind a real port."""
        Site(self.place / "unused", self.place / "log").format()
        server = await ControllerServer.start(self.config, clock=SystemClock(), rng=random.Random(5))
        try:
            yield server
        finally:
            await server.close()


@dataclass(slots=True)
class ConfiguredWorld(World):
    """A world whose controller is made from a configuration."""

    config: Config = field(kw_only=True)

    def new_controller(self) -> Controller:
        where = ControllerDirectory(
            path=Path("/d"),
            cluster_id=CLUSTER_ID,
            directory_id=Uuid.of(1, 1),
            lock_fd=-1,
            descriptor=-1,
            identity=(0, 0),
        )
        return controller_of(self.config, where, self.rng, SystemClock())


@dataclass(frozen=True)
class Row:
    """``observe`` gives ``before`` of a controller with the lines ``base``, and ``after`` with those ``given`` too."""

    given: str
    observe: Observe
    before: Any
    after: Any
    base: str = ""


# ------------------------------------------------------------------------------------------------- what can be observed


def is_taken(given: Given) -> bool:
    """Whether a controller starts with such a file."""
    try:
        return bool(given.config)
    except ConfigError:
        return False


def directory_used(given: Given) -> str:
    """The one, of those that are formatted, that is locked."""
    for name in ("log", "other"):
        Site(given.place / "unused", given.place / name).format()
    used = open_directory(given.config)
    used.release()
    return used.path.name


def belongs_to_it(given: Given) -> bool:
    """Whether it takes the directory of the node :data:`NODE_ID`."""
    Site(given.place / "unused", given.place / "log").format()
    try:
        open_directory(given.config).release()
    except StorageError as error:
        assert "belongs to node 3000" in str(error)
        return False
    return True


def of_server(look: Callable[[ControllerServer], Any]) -> Observe:
    async def observe(given: Given) -> Any:
        async with given.server() as server:
            return look(server)

    return observe


def in_limits(name: str) -> Observe:
    """What every client is held to."""

    async def observe(given: Given) -> Any:
        return getattr(await limits_of(given.config), name)

    return observe


def in_snapshot_limits(name: str) -> Observe:
    """When snapshots are made, and what is kept."""
    return lambda given: getattr(snapshot_limits_of(given.config), name)


def config_of_a_topic(name: str) -> Observe:
    """What clients are told that a topic has."""

    def observe(given: Given) -> str | None:
        world = given.world
        world.join(1)
        world.create("t", (1,))
        resource = DescribeConfigsRequestResource(resource_type=2, resource_name="t", configuration_keys=(name,))
        (answer,) = world.ask(DescribeConfigsRequest(resources=(resource,))).results
        return answer.configs[0].value

    return observe


def seconds_in_silence(given: Given) -> int:
    """In which a broker is not fenced."""
    world = given.world
    world.join(1)
    seconds = -1
    while not world.broker(1).fenced:
        world.tick(SECOND_MS)
        seconds += 1
    return seconds


def new_topic(given: Given) -> tuple[int, int]:
    """Partitions and replicas of a topic that says neither."""
    world = given.world
    for broker in (1, 2, 3):
        world.join(broker)
    topic = CreateTopicsRequestTopic(name="t", num_partitions=-1, replication_factor=-1)
    world.ask(CreateTopicsRequest(topics=(topic,)))
    partitions = world.controller.image.topics[world.topic_id("t")].partitions
    return len(partitions), len(partitions[0].replicas)


def _end(world: World, broker: int) -> None:
    """The session of one of two brokers ends."""
    world.now_ms += 9_001
    world.beat(3 - broker)
    assert world.expire()


def leader_when_only_one_out_of_sync_is_left(given: Given) -> int:
    world = given.world
    world.join(1)
    world.join(2)
    world.create("t", (1, 2))
    world.alter_isr("t", (1,))
    _end(world, 1)
    return world.partition("t").leader


def seconds_between_looks_for(task: str) -> Observe:
    """How often a periodic task of the controller is due."""

    def observe(given: Given) -> float | None:
        world = given.world
        world.controller.periodic.activate(0)
        return next((t.period_ms / 1000 for t in world.controller.periodic._tasks if t.name == task), None)

    return observe


def goes_back_to_its_preferred_leader(given: Given) -> bool:
    world = given.world
    world.join(1, 1)
    world.join(2, 1)
    world.create("t", (1, 2))
    _end(world, 1)
    world.register(1, 1, number=1)
    world.beat(1)
    world.alter_isr("t", (1, 2))
    assert world.partition("t").leader == 2
    world.controller.heartbeats.session_timeout_ms = 10**9
    world.controller.periodic.activate(world.now_ms)
    world.tick(300_000)
    return world.partition("t").leader == 1


def deletion(given: Given) -> int:
    world = given.world
    world.join(1)
    world.create("t", (1,))
    topics = (DeleteTopicsRequestTopic(name="t"),)
    return world.ask(DeleteTopicsRequest(topics=topics)).responses[0].error_code


def partitions_at_once(given: Given) -> int:
    """That a user with a quota of one a second may create: a burst, and the one that overdraws it."""
    world = given.world
    world.join(1)
    entity = (QuotaEntity(entity_type="user", entity_name="alice"),)
    world.write(Result(records=(ClientQuotaRecord(entity=entity, key=MUTATION_RATE, value=1.0, remove=False),)))
    topics = tuple(
        CreateTopicsRequestTopic(name=f"t{number}", num_partitions=1, replication_factor=1) for number in range(100)
    )
    result = world.controller.handle(CreateTopicsRequest(topics=topics), Context(7, "User:alice"), world.now_ms)
    answer: Any = result.answer
    return sum(topic.error_code == 0 for topic in answer.topics)


ALICE = Context(3, "User:alice", forwarded=True)
SECRET = "delegation.token.secret.key=s3cret"


def answer_to_who_wants_a_token(given: Given) -> int:
    return given.world.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1), context=ALICE).error_code


def lifetime_of_a_token_ms(given: Given) -> tuple[int, int]:
    """Until a token expires, and until it cannot be renewed any more."""
    token = given.world.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1), context=ALICE)
    return token.expiry_timestamp - token.issue_timestamp, token.max_timestamp - token.issue_timestamp


def stranger_may_send_heartbeats(given: Given) -> bool:
    return is_authorized(given.world.controller.permissions("User:ANONYMOUS", "h"), ApiKey.BROKER_HEARTBEAT)


async def watch_ms(given: Given) -> tuple[int, int]:
    """Between two probes of the directory, and until it has failed."""
    async with given.server() as server:
        watch = server.watch()
        return watch._interval_ms, watch._timeout_ms


def seconds_fenced_for_a_replica_without_directory(given: Given) -> int:
    world = given.world
    world.join(1)
    world.join(2)
    world.create("t", (1, 2))
    world.alter_isr("t", (1,))
    _end(world, 1)
    world.register(1, number=1)
    seconds = 0
    while world.beat(1).is_fenced:
        world.now_ms += SECOND_MS
        world.beat(2)
        seconds += 1
    return seconds


def answer_to_an_unknown_directory(given: Given) -> int:
    world = given.world
    world.join(1)
    return world.beat(1, offline=(directory(9, 9),)).error_code


async def writes_when_idle(given: Given) -> bool:
    """Whether NoOpRecords come one a second at most, by the times that are written with them."""
    async with given.server() as server:
        times: list[int] = []
        commit = server._commit

        async def observed(result: Result) -> None:
            await commit(result)
            if any(isinstance(record, NoOpRecord) for record in result.records):
                times.append(server.clock.monotonic_ms())
                if len(times) == 4:
                    server.stop()

        server._commit = observed  # type: ignore[method-assign]
        await server.run()
        return min(later - sooner for sooner, later in itertools.pairwise(times)) < 250


async def where_metrics_are(given: Given) -> Any:
    opened: list[Any] = []

    class Metrics:
        def __init__(self, *given: Any) -> None:
            self.web = given[-1]

        async def open(self, host: str, port: int) -> None:
            opened.append((host, port) if self.web is None else (host, port, self.web.path))

    class Server:
        clock = SystemClock()
        certificates = Certificates()

        def measure(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kjbod.metrics.listener.MetricsListener", Metrics)
        patched.setattr(Daemon, "meter", lambda daemon, _: setattr(daemon, "usage", SimpleNamespace(read=None)))
        await process.Controller(given.config)._open_metrics(Server(), tuple)  # type: ignore[arg-type]
    return opened[0] if opened else None


# ------------------------------------------------------------------------------------------------------------- the keys

ACLS = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
MAP = "listener.security.protocol.map=CONTROLLER:PLAINTEXT,SECURE:SSL"

ROWS = {
    "node.id": Row("node.id=3001", belongs_to_it, True, False),
    "process.roles": Row("process.roles=broker", is_taken, True, False),
    "log.dirs": Row("log.dirs={place}/other", directory_used, "log", "other"),
    "metadata.log.dir": Row("metadata.log.dir={place}/other", directory_used, "log", "other"),
    "log.segment.delete.delay.ms": Row(
        "log.segment.delete.delay.ms=7000", config_of_a_topic("file.delete.delay.ms"), "60000", "7000"
    ),
    "listeners": Row(
        "listeners=CONTROLLER://127.0.0.2:0",
        of_server(lambda s: s.servers[0]._listening.sockets[0].getsockname()[0]),  # type: ignore[union-attr]
        "127.0.0.1",
        "127.0.0.2",
    ),
    "advertised.listeners": Row(
        "advertised.listeners=CONTROLLER://c1.example:9093",
        of_server(lambda s: s.controller.endpoint.host),
        "127.0.0.1",
        "c1.example",
    ),
    "controller.listener.names": Row("controller.listener.names=OTHER", is_taken, True, False),
    "listener.security.protocol.map": Row("listener.security.protocol.map=CONTROLLER:SSL", is_taken, True, False),
    "controller.quorum.bootstrap.servers": Row(
        "controller.quorum.bootstrap.servers=127.0.0.1:9093",
        is_taken,
        False,
        True,
        base="controller.quorum.bootstrap.servers=",
    ),
    "controller.quorum.voters": Row(
        f"controller.quorum.voters={NODE_ID}@127.0.0.1:9093",
        of_server(lambda s: s.controller.cluster.kraft_version),
        1,
        0,
    ),
    "broker.session.timeout.ms": Row("broker.session.timeout.ms=4000", seconds_in_silence, 9, 4),
    "socket.request.max.bytes": Row(
        "socket.request.max.bytes=5000", in_limits("max_frame_bytes"), 2 * 1_048_576, 5_000
    ),
    "socket.send.buffer.bytes": Row("socket.send.buffer.bytes=5000", in_limits("send_buffer_bytes"), 102_400, 5_000),
    "socket.receive.buffer.bytes": Row(
        "socket.receive.buffer.bytes=5000", in_limits("receive_buffer_bytes"), 102_400, 5_000
    ),
    "socket.listen.backlog.size": Row("socket.listen.backlog.size=7", in_limits("listen_backlog"), 50, 7),
    "max.connections": Row(
        "max.connections=7", of_server(lambda s: s.servers[0].limits.max_connections == 7), False, True
    ),
    "max.connections.per.ip": Row("max.connections.per.ip=7", in_limits("max_connections_per_ip"), 2**31 - 1, 7),
    "max.connections.per.ip.overrides": Row(
        "max.connections.per.ip.overrides=127.0.0.9:7",
        in_limits("max_connections_per_ip_overrides"),
        {},
        {"127.0.0.9": 7},
    ),
    "max.connection.creation.rate": Row(
        "max.connection.creation.rate=7", in_limits("max_connection_creation_rate"), 2**31 - 1, 7
    ),
    "queued.max.request.bytes": Row(
        "queued.max.request.bytes=70000\nsocket.request.max.bytes=70000",
        in_limits("max_queued_bytes"),
        4 * 1_048_576,
        70_000,
    ),
    "connections.max.idle.ms": Row("connections.max.idle.ms=7000", in_limits("idle_timeout_ms"), 600_000, 7_000),
    "metadata.max.idle.interval.ms": Row("metadata.max.idle.interval.ms=10", writes_when_idle, False, True),
    "metadata.log.segment.bytes": Row(
        "metadata.log.segment.bytes=8388608", of_server(lambda s: s.log._files.segment_bytes), 1 << 30, 8_388_608
    ),
    "metadata.log.segment.ms": Row(
        "metadata.log.segment.ms=5000", of_server(lambda s: s.log._files.segment_ms), 604_800_000, 5_000
    ),
    "metadata.max.retention.bytes": Row(
        "metadata.max.retention.bytes=5000", in_snapshot_limits("retention_bytes"), 104_857_600, 5_000
    ),
    "metadata.max.retention.ms": Row(
        "metadata.max.retention.ms=5000", in_snapshot_limits("retention_ms"), 604_800_000, 5_000
    ),
    "metadata.log.max.record.bytes.between.snapshots": Row(
        "metadata.log.max.record.bytes.between.snapshots=5000", in_snapshot_limits("record_bytes"), 20_971_520, 5_000
    ),
    "metadata.log.max.snapshot.interval.ms": Row(
        "metadata.log.max.snapshot.interval.ms=5000", in_snapshot_limits("interval_ms"), 3_600_000, 5_000
    ),
    "num.partitions": Row("num.partitions=5", new_topic, (1, 1), (5, 1)),
    "default.replication.factor": Row("default.replication.factor=2", new_topic, (1, 1), (1, 2)),
    "min.insync.replicas": Row("min.insync.replicas=2", config_of_a_topic("min.insync.replicas"), "1", "2"),
    "unclean.leader.election.enable": Row(
        "unclean.leader.election.enable=true", leader_when_only_one_out_of_sync_is_left, -1, 2
    ),
    "unclean.leader.election.interval.ms": Row(
        "unclean.leader.election.interval.ms=5000", seconds_between_looks_for("electUnclean"), 300, 5
    ),
    "auto.leader.rebalance.enable": Row(
        "auto.leader.rebalance.enable=false", goes_back_to_its_preferred_leader, True, False
    ),
    "leader.imbalance.check.interval.seconds": Row(
        "leader.imbalance.check.interval.seconds=400", goes_back_to_its_preferred_leader, True, False
    ),
    "delete.topic.enable": Row("delete.topic.enable=false", deletion, 0, ErrorCode.TOPIC_DELETION_DISABLED),
    "controller.quota.window.num": Row("controller.quota.window.num=21", partitions_at_once, 12, 22),
    "controller.quota.window.size.seconds": Row("controller.quota.window.size.seconds=2", partitions_at_once, 12, 23),
    "authorizer.class.name": Row(ACLS, stranger_may_send_heartbeats, True, False),
    "super.users": Row("super.users=User:ANONYMOUS", stranger_may_send_heartbeats, False, True, base=ACLS),
    "allow.everyone.if.no.acl.found": Row(
        "allow.everyone.if.no.acl.found=true", stranger_may_send_heartbeats, False, True, base=ACLS
    ),
    "delegation.token.secret.key": Row(
        SECRET, answer_to_who_wants_a_token, ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, ErrorCode.NONE
    ),
    "delegation.token.max.lifetime.ms": Row(
        "delegation.token.max.lifetime.ms=7000",
        lifetime_of_a_token_ms,
        (86_400_000, 604_800_000),
        (7_000, 7_000),
        base=SECRET,
    ),
    "delegation.token.expiry.time.ms": Row(
        "delegation.token.expiry.time.ms=7000",
        lifetime_of_a_token_ms,
        (86_400_000, 604_800_000),
        (7_000, 604_800_000),
        base=SECRET,
    ),
    "delegation.token.expiry.check.interval.ms": Row(
        "delegation.token.expiry.check.interval.ms=5000",
        seconds_between_looks_for("expireDelegationTokens"),
        3_600,
        5,
        base=SECRET,
    ),
    "kjbod.host": Row(
        "kjbod.host=c1.example",
        of_server(lambda s: s.controller.endpoint.host),
        "h",
        "c1.example",
        base="listeners=CONTROLLER://:0",
    ),
    "kjbod.probe.interval.ms": Row("kjbod.probe.interval.ms=3000", watch_ms, (1_000, 10_000), (3_000, 10_000)),
    "kjbod.blind.timeout.ms": Row("kjbod.blind.timeout.ms=5000", watch_ms, (1_000, 10_000), (1_000, 5_000)),
    "kjbod.assignment.timeout.ms": Row(
        "kjbod.assignment.timeout.ms=5000", seconds_fenced_for_a_replica_without_directory, 120, 5
    ),
    "kjbod.controller.rules": Row(
        "kjbod.controller.rules=kafka", answer_to_an_unknown_directory, ErrorCode.LOG_DIR_NOT_FOUND, 0
    ),
    "kjbod.metrics.listener": Row(
        "kjbod.metrics.listener=localhost:9404", where_metrics_are, None, ("localhost", 9404)
    ),
    "kjbod.metrics.web.config.file": Row(
        "kjbod.metrics.web.config.file=/web.yml",
        where_metrics_are,
        ("localhost", 9404),
        ("localhost", 9404, "/web.yml"),
        base="kjbod.metrics.listener=localhost:9404",
    ),
}


@pytest.mark.parametrize("key", [name for name, setting in settings().items() if setting.key.roles & CONTROLLER])
async def test_each_key_of_a_controller_changes_what_it_does(tmp_path: Path, key: str) -> None:
    assert key in ROWS, "say in a row what can be seen of this key"
    row = ROWS[key]
    assert f"{key}=" in row.given
    found = []
    for name, text in (("before", row.base), ("after", f"{row.base}\n{row.given}")):
        (tmp_path / name).mkdir()
        observed = row.observe(Given(text, tmp_path / name))
        found.append(await observed if isinstance(observed, Awaitable) else observed)
    assert found == [row.before, row.after]


def test_each_row_is_a_key_of_a_controller() -> None:
    assert all(settings()[key].key.roles & CONTROLLER for key in ROWS)
