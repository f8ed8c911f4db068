"""Each key of the configuration that is an agent's changes what an agent does: seen from outside of it.

A row has what is observed of an agent without the key, and with it. A key without a row fails.
"""

import asyncio
import errno
import inspect
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kjbod.clock import SystemClock
from kjbod.config.endpoints import Listener
from kjbod.config.keys import AGENT, Config, settings
from kjbod.errors import ConfigError, KjbodError
from kjbod.ids import Uuid
from kjbod.metadata.records import DelegationTokenRecord, RegisterBrokerRecord, RemoveTopicRecord
from kjbod.security.credentials import MetadataCredentials
from kjbod.wire import messages as wire
from kjbod.wire.admin_messages import CreatePartitionsRequest
from kjbod.wire.client import Disconnected
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import EncodedResponse, Request, decode_response
from kjbod.wire.server import Peer
from kjbod_agent import daemon
from kjbod_agent.admin.forwarding import Sender
from kjbod_host import ending
from kjbod_host.directories.start_up_rules import StartUpError
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.verdict import DirectoryHealth, Health, ProbeFailed, ProbeSucceeded, judge
from kjbod_host.health.witness import is_host_fault
from kjbod_host.report_writer import must_rotate
from kjbod_host.smart.processes import Answer
from tests.agent.core.configured import D1, D2, TOPIC, Agent, read

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
Observe: TypeAlias = Callable[[Agent], Awaitable[Any]]
"""Runs an agent and looks."""
ObserveFile: TypeAlias = Callable[[str], Any]
"""Looks at what becomes of a file."""


@dataclass(frozen=True)
class Row:
    """``observe`` gives ``before`` of an agent with the lines ``base``, and ``after`` with the lines ``given`` too."""

    given: str
    observe: Observe | ObserveFile
    before: Any
    after: Any
    base: str = ""


# ------------------------------------------------------------------------------------------------- what can be observed


def is_taken(text: str) -> bool:
    """Whether an agent starts with such a file."""
    try:
        read(text)
    except ConfigError:
        return False
    return True


def in_registration(field: Callable[[wire.BrokerRegistrationRequest], Any]) -> Observe:
    async def observe(agent: Agent) -> Any:
        async with agent:
            await agent.unfenced()
            return field(agent.quorum.first(wire.BrokerRegistrationRequest))

    return observe


def in_limits(name: str) -> Observe:
    """What every client of a listener is held to."""

    async def observe(agent: Agent) -> Any:
        async with agent:
            return getattr(agent.served[0][2], name)

    return observe


async def knows_the_login_by_a_token(agent: Agent) -> bool:
    """Whether a listener with SASL would know it."""
    given: list[MetadataCredentials] = []

    async def secured(config: Config, listener: Listener, credentials: MetadataCredentials, ready: object) -> None:
        given.append(credentials)

    token = DelegationTokenRecord(
        owner="User:alice",
        requester="User:alice",
        renewers=(),
        issue_timestamp=0,
        max_timestamp=1,
        expiration_timestamp=1,
        token_id="an id",
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("kjbod_agent.admin.listener.listener_security", secured)
        async with agent:
            await agent.unfenced()
            agent.quorum.commit(token)
            await agent.until(lambda: bool(agent.broker.image.delegation_tokens))
            return given[0].of_token("an id") is not None


def started(look: Callable[[Agent], Any]) -> Observe:
    async def observe(agent: Agent) -> Any:
        async with agent:
            return look(agent)

    return observe


async def first_controller(agent: Agent) -> str:
    async with agent:
        await agent.unfenced()
        return agent.quorum.opened[0].address


async def pace_of_heartbeats_ms(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        await asyncio.sleep(20)
        times = agent.quorum.times(wire.BrokerHeartbeatRequest)[-3:]
        return round((times[2] - times[1]) / 100) * 100


async def stops_when_metadata_are_lost(agent: Agent) -> bool:
    async with agent:
        await agent.unfenced()
        agent.disks["/d1"].fail(errno.EIO)
        await agent.until(lambda: D1 not in agent.broker.failures.usable)
        return agent.broker.halted is not None


async def seconds_to_give_up_a_failed_directory(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        agent.topic(D2)
        await agent.until(lambda: "t-0" in agent.disks["/d2"].directories)
        agent.quorum.deaf = True
        agent.disks["/d2"].fail(errno.EIO)
        await agent.until(lambda: D2 not in agent.broker.failures.usable)
        return round(await agent.until(agent.broker.ended.done) / 1000)


async def seconds_until_deleted(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        agent.topic(D1)
        await agent.until(lambda: "t-0" in agent.disks["/d1"].directories)
        agent.quorum.commit(RemoveTopicRecord(topic_id=TOPIC))
        return round(await agent.until(lambda: not agent.disks["/d1"].directories) / 1000)


async def directory_of_a_new_replica(agent: Agent) -> str:
    agent.disks["/d2"].usable_bytes += 1 << 20
    async with agent:
        await agent.unfenced()
        agent.topic()
        await agent.until(lambda: any(disk.directories for disk in agent.disks.values()))
        return next(path for path, disk in agent.disks.items() if disk.directories)


async def directory_beside_one_that_is_70_percent_full(agent: Agent) -> str:
    agent.disks["/d1"].usable_bytes = agent.disks["/d1"].total_bytes * 3 // 10
    return await directory_of_a_new_replica(agent)


async def cordons_beside_a_broker_of_kafka(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        agent.quorum.commit(
            RegisterBrokerRecord(
                broker_id=5,
                incarnation_id=Uuid.of(9, 9),
                broker_epoch=5,
                end_points=(),
                features=(),
                log_dirs=(Uuid.of(9, 5),),
            )
        )
        await asyncio.sleep(10)
        (*_, last) = (one.message for one in agent.quorum.asked if isinstance(one.message, wire.BrokerHeartbeatRequest))
        return len(last.cordoned_log_dirs or ())


async def seconds_of_a_stop_without_controller(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        await asyncio.sleep(10)
        agent.quorum.deaf = True
        agent.broker.stop()
        silent_since_ms = agent.broker.life.answered_ms
        assert silent_since_ms is not None
        await agent.until(agent.broker.ended.done)
        return agent.seconds_since(silent_since_ms)


async def seconds_to_give_up_the_registration(agent: Agent) -> int:
    agent.quorum.gone = True
    async with agent:
        return round(await agent.until(agent.broker.ended.done) / 1000)


async def asks_to_be_shut_down(agent: Agent) -> bool:
    async with agent:
        await agent.unfenced()
        agent.broker.stop()
        await asyncio.sleep(1)
        return any(getattr(asked.message, "want_shut_down", False) for asked in agent.quorum.asked)


async def seconds_of_a_forwarded_request(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        agent.quorum.deaf = True
        begun_ms = agent.clock.monotonic_ms()
        await agent.parts.forwarder.send(
            CreatePartitionsRequest(timeout_ms=600_000), Sender("User:a", "127.0.0.1", "c", 3)
        )
        return agent.seconds_since(begun_ms)


async def _ask_in_vain(agent: Agent) -> None:
    with pytest.raises(Disconnected):
        await agent.daemon._forward_channel.request(lambda _: wire.MetadataRequest(), timeout_ms=3_600_000)


async def seconds_of_a_request_to_the_controller(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        agent.quorum.deaf = True
        begun_ms = agent.clock.monotonic_ms()
        await _ask_in_vain(agent)
        return agent.seconds_since(begun_ms)


async def time_of_three_connects_ms(agent: Agent) -> list[int]:
    async with agent:
        await agent.unfenced()
        agent.quorum.silent = True
        for _ in range(3):
            await _ask_in_vain(agent)
        tried = [opened for opened in agent.quorum.opened if opened.address == "leader:9093"]
        return [opened.timeout_ms for opened in tried if opened.timeout_ms > 2_000][-3:]


async def patience_with_two_fetches_ms(agent: Agent) -> list[int]:
    agent.quorum.deaf = True
    async with agent:
        await asyncio.sleep(30)
        return [one.timeout_ms for one in agent.quorum.asked if isinstance(one.message, wire.FetchRequest)][:2]


async def rest_between_two_fetches_ms(agent: Agent) -> int:
    agent.quorum.gone = True
    async with agent:
        await asyncio.sleep(5)
        first, second, *_ = [one.at_ms for one in agent.quorum.opened if one.client_id == "raft-client-1"]
        return second - first


async def bytes_of_metadata_asked_for(agent: Agent) -> int:
    async with agent:
        return int(agent.quorum.first(wire.FetchRequest).max_bytes) if await _fetches(agent) else 0


async def bytes_of_a_snapshot_asked_for(agent: Agent) -> int:
    agent.quorum.snapshot = wire.SnapshotId(end_offset=1, epoch=1)
    async with agent:
        return int(agent.quorum.first(wire.FetchSnapshotRequest).max_bytes) if await _fetches(agent) else 0


async def _fetches(agent: Agent) -> bool:
    await asyncio.sleep(1)
    return bool(agent.quorum.times(wire.FetchRequest))


async def begin_moves(agent: Agent, count: int) -> None:
    """Of replicas with 30 kB, from /d1 to /d2."""
    await agent.unfenced()
    agent.topic(*[D1] * count)
    names = {f"t-{number}" for number in range(count)}
    await agent.until(lambda: names <= set(agent.disks["/d1"].directories))
    for number in range(count):
        for base in range(3):  # what comes first has never to wait
            agent.disks["/d1"].put(f"t-{number}", f"{base:020}.log", b"x" * 10_000)
        assert agent.broker.mover.alter("t", number, "/d2") is ErrorCode.NONE


async def a_move_takes_its_time(agent: Agent) -> bool:
    async with agent:
        await begin_moves(agent, 1)
        return await agent.until(lambda: "t-0" in agent.disks["/d2"].directories) > 5_000


async def moves_at_a_time(agent: Agent) -> int:
    async with agent:
        await begin_moves(agent, 3)
        await asyncio.sleep(2)
        return sum(not move.waiting for move in agent.broker.mover.moves)


async def answer_to_a_stranger(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        request = Request(wire.ApiKey.DESCRIBE_LOG_DIRS, 4, 1, "c", wire.DescribeLogDirsRequest())
        answer: Any = await agent.handler(request, Peer("127.0.0.1", 1))
        if isinstance(answer, EncodedResponse):
            answer = decode_response(answer.frame[4:], request.api_key, request.version).message
        return int(answer.error_code)


async def probes_a_minute(agent: Agent) -> int:
    async with agent:
        await agent.unfenced()
        before = agent.monitor.status()[0].probes
        await asyncio.sleep(60)
        return int(round(agent.monitor.status()[0].probes - before, -1))


def seen(harm: Callable[[Agent], None], state: Health, within_s: float) -> Observe:
    """Whether /d1 is in a state so long after some harm."""

    async def observe(agent: Agent) -> bool:
        async with agent:
            await agent.unfenced()
            await asyncio.sleep(3)
            harm(agent)
            return await agent.comes(lambda: agent.monitor.health("/d1").health is state, within_s)

    return observe


def hang(agent: Agent) -> None:
    agent.disks["/d1"].hang()


def freeze(agent: Agent) -> None:
    agent.sources.frozen = True
    hang(agent)


def hang_uncounted(agent: Agent) -> None:
    agent.sources.counters = False
    hang(agent)


def delay(ms: int) -> Callable[[Agent], None]:
    def harm(agent: Agent) -> None:
        agent.disks["/d1"].delay_ms = ms

    return harm


async def slowness_ends_soon(agent: Agent) -> bool:
    async with agent:
        await agent.unfenced()
        delay(1500)(agent)
        await agent.until(lambda: agent.monitor.health("/d1").health is Health.SLOW, 20)
        delay(3)(agent)
        return await agent.comes(lambda: agent.monitor.health("/d1").health is Health.ONLINE, 8)


async def two_errors_in_a_minute_are_a_failure(agent: Agent) -> bool:
    async with agent:
        state = DirectoryHealth()
        for now_ms, event in (
            (100, ProbeFailed(90, errno.EIO, "fsync", False)),
            (110, ProbeSucceeded(105, 4, False, None)),
            (50_000, ProbeFailed(49_990, errno.EIO, "fsync", False)),
        ):
            state = judge(state, event, now_ms, agent.monitor._core.settings).state
        return state.health is Health.FAILED


async def failed_seconds_after_all_died(agent: Agent) -> bool:
    async with agent:
        await agent.unfenced()
        for disk in agent.disks.values():
            disk.fail(errno.EIO)
        await asyncio.sleep(3)
        return {agent.monitor.health(path).health for path in agent.disks} == {Health.FAILED}


async def trouble_half_a_second_apart_is_the_hosts(agent: Agent) -> bool:
    async with agent:
        suspects = [DirectoryHealth(health=Health.SUSPECT, trouble_ms=at_ms) for at_ms in (1_000, 1_500)]
        return is_host_fault(suspects, 1_600, agent.monitor._core.settings)


def made_storage_agent(text: str) -> str:
    """The plug-in that a daemon asks for before all else."""
    asked: list[str] = []

    def create(name: str, _: object) -> None:
        asked.append(name)
        raise KjbodError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(daemon, "create", create)
        patched.setattr(ending.Ending, "start", lambda *_: None)
        config = read(text)
        with pytest.raises(KjbodError):
            asyncio.run(daemon.Agent(config, (), SystemClock(), random.Random(1)).run())
    return asked[0]


async def seconds_fenced_for_a_replica_that_is_refused(agent: Agent) -> int:
    agent.quorum.assign_error = ErrorCode.UNKNOWN_SERVER_ERROR
    async with agent:
        agent.topic()
        return round(await agent.until(lambda: not agent.broker.life.fenced) / 1000)


async def starts_on_the_disks_of_kafka(agent: Agent) -> bool:
    agent.disks["/d1"].checkpoints["recovery-point-offset-checkpoint"] = b"0\n0\n"
    try:
        async with agent:
            await agent.unfenced()
            return True
    except StartUpError:
        return False


async def state_file(agent: Agent) -> str:
    async with agent:
        return str(agent.daemon._stray_memory.path.parent)


async def where_reports_go(agent: Agent) -> str:
    async with agent:
        return str(agent.daemon._reports(Uuid.of(1, 1)).directory)  # type: ignore[attr-defined]


async def samples_in_five_minutes(agent: Agent) -> int:
    async with agent:
        await asyncio.sleep(299)
        return len(agent.reports.samples)


async def questions_of_two_minutes(agent: Agent) -> tuple[str, int]:
    """Where a disk is asked for its own health, and how often."""
    asked: list[str] = []

    class Processes:
        process_ids = staticmethod(tuple)

        def __init__(self, helper: str) -> None:
            self.helper = helper

        async def ask(self, name: str) -> Answer:
            asked.append(self.helper)
            return Answer(b"{}", "sysfs")

        def reap(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(daemon, "SmartProcesses", Processes)
        patched.setattr(agent.sources, "block_device_of", lambda mount: BlockDevice((), mount.device, disks=("sda",)))
        async with agent:
            await asyncio.sleep(119)
    return asked[0], len(asked)


async def a_report_of_half_an_hour_is_finished(agent: Agent) -> bool:
    async with agent:
        limits = agent.daemon._reports(Uuid.of(1, 1)).limits  # type: ignore[attr-defined]
        return must_rotate(size=0, opened_ms=0, opened_hour=0, now_ms=1_800_000, hour=0, limits=limits)


# ------------------------------------------------------------------------------------------------------------- the keys

RATE = "1000"
SECURE = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL"
LOGIN = (
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT\n"
    "sasl.mechanism.controller.protocol=PLAIN"
)
JAAS = Path(__file__).parents[2] / "data/kafka_server_jaas.conf"
ACLS = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
LONG = "controller.socket.timeout.ms=1000000"

ROWS = {
    "node.id": Row("node.id=7", in_registration(lambda r: r.broker_id), 1, 7),
    "process.roles": Row("process.roles=controller", is_taken, True, False),
    "broker.rack": Row("broker.rack=r1", in_registration(lambda r: r.rack), None, "r1"),
    "log.dirs": Row("log.dirs=/d1,/d2,/d3", in_registration(lambda r: len(r.log_dirs or ())), 2, 3),
    "metadata.log.dir": Row("metadata.log.dir=/d2", stops_when_metadata_are_lost, True, False),
    "cordoned.log.dirs": Row("cordoned.log.dirs=/d1", directory_of_a_new_replica, "/d1", "/d2"),
    "log.dir.failure.timeout.ms": Row("log.dir.failure.timeout.ms=5000", seconds_to_give_up_a_failed_directory, 30, 5),
    "log.segment.delete.delay.ms": Row("log.segment.delete.delay.ms=3000", seconds_until_deleted, 60, 3),
    "listeners": Row("listeners=PLAINTEXT://localhost:9555", started(lambda a: a.served[0][1]), 9092, 9555),
    "advertised.listeners": Row(
        "advertised.listeners=PLAINTEXT://b1.example:9092",
        in_registration(lambda r: r.listeners[0].host),
        "localhost",
        "b1.example",
    ),
    "controller.listener.names": Row("controller.listener.names=SECURE", is_taken, True, False, base=SECURE),
    "listener.security.protocol.map": Row(
        "listener.security.protocol.map=PLAINTEXT:SSL,CONTROLLER:PLAINTEXT", is_taken, True, False
    ),
    "controller.quorum.bootstrap.servers": Row(
        "controller.quorum.bootstrap.servers=c2:9093",
        first_controller,
        "c1:9093",
        "c2:9093",
    ),
    "controller.quorum.voters": Row(
        "controller.quorum.bootstrap.servers=\ncontroller.quorum.voters=9@v9:9093",
        first_controller,
        "c1:9093",
        "v9:9093",
    ),
    "broker.heartbeat.interval.ms": Row("broker.heartbeat.interval.ms=500", pace_of_heartbeats_ms, 2000, 500),
    "broker.session.timeout.ms": Row("broker.session.timeout.ms=4000", seconds_of_a_stop_without_controller, 9, 4),
    "initial.broker.registration.timeout.ms": Row(
        "initial.broker.registration.timeout.ms=5000", seconds_to_give_up_the_registration, 60, 5
    ),
    "controlled.shutdown.enable": Row("controlled.shutdown.enable=false", asks_to_be_shut_down, True, False),
    "request.timeout.ms": Row("request.timeout.ms=3000", seconds_of_a_forwarded_request, 30, 3),
    "controller.socket.timeout.ms": Row(
        "controller.socket.timeout.ms=4000", seconds_of_a_request_to_the_controller, 30, 4
    ),
    "socket.connection.setup.timeout.ms": Row(
        "socket.connection.setup.timeout.ms=3000",
        time_of_three_connects_ms,
        [10_000, 20_000, 30_000],
        [3_000, 6_000, 12_000],
        base=LONG,
    ),
    "socket.connection.setup.timeout.max.ms": Row(
        "socket.connection.setup.timeout.max.ms=15000",
        time_of_three_connects_ms,
        [10_000, 20_000, 30_000],
        [10_000, 15_000, 15_000],
        base=LONG,
    ),
    "socket.request.max.bytes": Row("socket.request.max.bytes=5000", in_limits("max_frame_bytes"), 1_048_576, 5_000),
    "socket.send.buffer.bytes": Row("socket.send.buffer.bytes=5000", in_limits("send_buffer_bytes"), 102_400, 5_000),
    "socket.receive.buffer.bytes": Row(
        "socket.receive.buffer.bytes=5000", in_limits("receive_buffer_bytes"), 102_400, 5_000
    ),
    "socket.listen.backlog.size": Row("socket.listen.backlog.size=7", in_limits("listen_backlog"), 50, 7),
    "max.connections": Row("max.connections=7", in_limits("max_connections"), 100, 7),
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
        100 * 1_048_576,
        70_000,
    ),
    "connections.max.idle.ms": Row("connections.max.idle.ms=7000", in_limits("idle_timeout_ms"), 600_000, 7_000),
    "controller.quorum.request.timeout.ms": Row(
        "controller.quorum.request.timeout.ms=300", patience_with_two_fetches_ms, [2_500, 2_500], [800, 800]
    ),
    "controller.quorum.fetch.timeout.ms": Row(
        "controller.quorum.fetch.timeout.ms=700", patience_with_two_fetches_ms, [2_500, 2_500], [1_200, 2_500]
    ),
    "controller.quorum.retry.backoff.ms": Row(
        "controller.quorum.retry.backoff.ms=300", rest_between_two_fetches_ms, 20, 300
    ),
    "controller.quorum.fetch.max.bytes": Row(
        "controller.quorum.fetch.max.bytes=5000", bytes_of_metadata_asked_for, 1_048_576, 5_000
    ),
    "controller.quorum.fetch.snapshot.max.bytes": Row(
        "controller.quorum.fetch.snapshot.max.bytes=5000", bytes_of_a_snapshot_asked_for, 1_048_576, 5_000
    ),
    "replica.alter.log.dirs.io.max.bytes.per.second": Row(
        f"replica.alter.log.dirs.io.max.bytes.per.second={RATE}", a_move_takes_its_time, False, True
    ),
    "authorizer.class.name": Row(ACLS, answer_to_a_stranger, 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    "super.users": Row(
        "super.users=User:ANONYMOUS",
        answer_to_a_stranger,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        0,
        base=ACLS,
    ),
    "delegation.token.secret.key": Row("delegation.token.secret.key=s3cret", knows_the_login_by_a_token, False, True),
    "allow.everyone.if.no.acl.found": Row(
        "allow.everyone.if.no.acl.found=true",
        answer_to_a_stranger,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        0,
        base=ACLS,
    ),
    "kjbod.role": Row("kjbod.role=guard", is_taken, True, False),
    "kjbod.host": Row(
        "kjbod.host=h1.example",
        in_registration(lambda r: r.listeners[0].host),
        "h",
        "h1.example",
        base="listeners=PLAINTEXT://:9092",
    ),
    "kjbod.probe.interval.ms": Row("kjbod.probe.interval.ms=3000", probes_a_minute, 60, 20),
    "kjbod.probe.full.every": Row(
        "kjbod.probe.full.every=1", seen(lambda a: a.disks["/d1"].fill(), Health.FULL, 1.1), False, True
    ),
    "kjbod.probe.timeout.ms": Row("kjbod.probe.timeout.ms=500", seen(hang, Health.FAILED, 1.8), False, True),
    "kjbod.blind.timeout.ms": Row("kjbod.blind.timeout.ms=3000", seen(hang_uncounted, Health.FAILED, 6), False, True),
    "kjbod.held.timeout.ms": Row("kjbod.held.timeout.ms=5000", seen(freeze, Health.FAILED, 8), False, True),
    "kjbod.slow.ms": Row("kjbod.slow.ms=200", seen(delay(300), Health.SLOW, 20), False, True),
    "kjbod.slow.probes": Row("kjbod.slow.probes=20", seen(delay(1500), Health.SLOW, 20), True, False),
    "kjbod.slow.recovery.probes": Row("kjbod.slow.recovery.probes=30", slowness_ends_soon, True, False),
    "kjbod.strike.window.ms": Row("kjbod.strike.window.ms=1000", two_errors_in_a_minute_are_a_failure, True, False),
    "kjbod.host.fault.window.ms": Row(
        "kjbod.host.fault.window.ms=100", trouble_half_a_second_apart_is_the_hosts, True, False
    ),
    "kjbod.host.fault.settle.ms": Row("kjbod.host.fault.settle.ms=5000", failed_seconds_after_all_died, True, False),
    "kjbod.placement": Row("kjbod.placement=free-bytes", directory_of_a_new_replica, "/d1", "/d2"),
    "kjbod.placement.full.percent": Row(
        "kjbod.placement.full.percent=60", directory_beside_one_that_is_70_percent_full, "/d1", "/d2"
    ),
    "kjbod.placement.accept": Row("kjbod.placement.accept=always", cordons_beside_a_broker_of_kafka, 2, 0),
    "kjbod.assignment.timeout.ms": Row(
        "kjbod.assignment.timeout.ms=5000", seconds_fenced_for_a_replica_that_is_refused, 120, 5
    ),
    "kjbod.move.bytes.per.second": Row(f"kjbod.move.bytes.per.second={RATE}", a_move_takes_its_time, False, True),
    "kjbod.move.concurrency": Row(
        "kjbod.move.concurrency=2", moves_at_a_time, 1, 2, base=f"kjbod.move.bytes.per.second={RATE}"
    ),
    "kjbod.storage.agent": Row("kjbod.storage.agent=memory", made_storage_agent, "posix", "memory"),
    "kjbod.jaas.file": Row(f"kjbod.jaas.file={JAAS}", is_taken, False, True, base=LOGIN),
    "kjbod.state.dir": Row("kjbod.state.dir=/other", state_file, "/state", "/other"),
    "kjbod.reports.dir": Row("kjbod.reports.dir=/other", where_reports_go, "/state/reports", "/other"),
    "kjbod.reports.interval.ms": Row("kjbod.reports.interval.ms=10000", samples_in_five_minutes, 10, 60),
    "kjbod.smart.interval.ms": Row(
        "kjbod.smart.interval.ms=60000",
        questions_of_two_minutes,
        ("/run/kjbod-smart.sock", 1),
        ("/run/kjbod-smart.sock", 2),
    ),
    "kjbod.agent.take.over": Row("kjbod.agent.take.over=true", starts_on_the_disks_of_kafka, False, True),
    "kjbod.smart.socket": Row(
        "kjbod.smart.socket=/other", questions_of_two_minutes, ("/run/kjbod-smart.sock", 1), ("/other", 1)
    ),
    "kjbod.reports.rotate.interval.ms": Row(
        "kjbod.reports.rotate.interval.ms=600000", a_report_of_half_an_hour_is_finished, False, True
    ),
    "kjbod.metrics.listener": Row(
        "kjbod.metrics.listener=localhost:9404", started(lambda a: a.metrics.where), None, ("localhost", 9404)
    ),
    "kjbod.metrics.web.config.file": Row(
        "kjbod.metrics.web.config.file=/web.yml",
        started(lambda a: a.metrics.web and a.metrics.web.path),
        None,
        "/web.yml",
        base="kjbod.metrics.listener=localhost:9404",
    ),
}


@pytest.mark.parametrize("key", [name for name, setting in settings().items() if setting.key.roles & AGENT])
def test_each_key_of_an_agent_changes_what_it_does(virtual: Run, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    assert key in ROWS, "say in a row what can be seen of this key"
    row = ROWS[key]
    assert f"{key}=" in row.given
    found = [_observed(virtual, monkeypatch, row.observe, text) for text in (row.base, f"{row.base}\n{row.given}")]
    assert found == [row.before, row.after]


def _observed(virtual: Run, monkeypatch: pytest.MonkeyPatch, observe: Callable[[Any], Any], text: str) -> Any:
    if not inspect.iscoroutinefunction(observe):
        return observe(text)
    found: list[Any] = []

    async def main(clock: Any) -> None:
        with monkeypatch.context() as patched:
            found.append(await observe(Agent(clock, patched, text)))

    virtual(main)
    return found[0]


def test_each_row_is_a_key_of_an_agent() -> None:
    assert all(settings()[key].key.roles & AGENT for key in ROWS)
