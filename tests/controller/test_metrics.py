"""What a scrape of the controller shows: Kafka's set, counted when something changes and not when somebody looks."""

import asyncio
import contextlib
import signal
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from kjbod.metadata.image import RECOVERING
from kjbod.metadata.records import NO_LEADER
from kjbod.metrics.distribution import BOUNDS_S, RECENT_MAX, Distribution
from kjbod.metrics.listener import MetricsListener, render
from kjbod.metrics.mbeans import names_of, readings_of
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    UnregisterBrokerRequest,
)
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.metrics import MBEANS, QUEUE_TIME, metrics, snapshot
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.process import pictures
from kjbod_controller_stub.turns import Turns
from scripts.rig.processes import free_port
from tests.controller.conftest import Serving, Site, until
from tests.controller.test_server import Process, connect, create, join, launch
from tests.controller.test_turns import Gate, gate
from tests.controller.world import World
from tests.metrics.exposition import checked, not_on_the_page, values
from tests.metrics.jmx import object_name

__all__ = ["gate", "launch"]  # fixtures of theirs
CONTROLLER = "kafka_controller_kafkacontroller"


def go_away(port: int) -> None:
    """Scrapers that reset their connection: before they asked, and before they are answered."""
    for request in (b"", b"GET /metrics HTTP/1.1\r\n\r\n") * 10:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(request)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def scrape(port: int, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return str(answer.read().decode())


# ---- the process as a user runs it, on uvloop


@pytest.mark.usefixtures("world")
async def test_the_controller_serves_its_metrics_under_kafka_s_names(site: Site, launch: Callable[[], Process]) -> None:
    port = free_port()
    site.configure(kjbod_metrics_listener=f"127.0.0.1:{port}", metadata_max_idle_interval_ms="600000")
    process = launch()
    started = process.started()
    async with await connect(started["port"]) as connection:
        await join(connection, 1)
        await join(connection, 2)
        assert (await connection.request(create("orders", 4), timeout_ms=60_000)).topics[0].error_code == 0
        await asyncio.to_thread(go_away, port)
        text = await asyncio.to_thread(scrape, port)
        assert (await connection.request(UnregisterBrokerRequest(broker_id=2), timeout_ms=60_000)).error_code == 0
        after = values(await asyncio.to_thread(scrape, port))
    found = values(text)
    families = checked(text)
    assert not_on_the_page(text) == []
    assert [await asyncio.to_thread(scrape, port, path) for path in ("/healthz", "/readyz")] == ["ok\n", "ok\n"]
    assert {name: found[f"{CONTROLLER}_{name}"] for name in ("activebrokercount", "fencedbrokercount")} == {
        "activebrokercount": 2,
        "fencedbrokercount": 0,
    }
    assert found[f"{CONTROLLER}_activecontrollercount"] == 1
    assert found[f"{CONTROLLER}_globaltopiccount"] == 1
    assert found[f"{CONTROLLER}_globalpartitioncount"] == 4
    assert found[f"{CONTROLLER}_offlinepartitionscount"] == 0
    assert found[f'{CONTROLLER}_brokerregistrationstate{{broker="2"}}'] == 30
    assert found[f"{CONTROLLER}_lastappliedrecordoffset"] == found["kafka_server_raft_metrics_high_watermark"] - 1
    assert found['kafka_controller_KafkaController_Value{name="GlobalPartitionCount"}'] == 4
    assert found['kafka_server_metadataloader_finalizedlevel{featureName="metadataVersion"}'] == 33
    assert found['kafka_server_metadataloader_finalizedlevel{featureName="kraftVersion"}'] == 1
    assert found["kjbod_controller_turn_seconds_count"] >= 5, "registrations, heartbeats, a topic"
    assert families["kafka_controller_controllerstats_uncleanleaderelections"].type == "counter"
    assert found["process_open_fds"] > 5
    assert found["process_resident_memory_bytes"] >= found["kjbod_process_pss_bytes"] > 1 << 20
    assert after["kjbod_workers"] in (0, 1), "the child that probes its directory, once it has started"
    assert not [series for series in after if 'broker="2"' in series], "nobody is registered as 2 any more"
    assert after[f"{CONTROLLER}_offlinepartitionscount"] > 0, "what broker 2 led alone"
    with pytest.raises(urllib.error.URLError):
        scrape(port, "/elsewhere")
    code, rest = process.signal(signal.SIGTERM)
    assert code == 0
    assert not [word for word in ("crashed", "Traceback", '"error"', "metrics.") if word in rest]


@pytest.mark.usefixtures("world")
def test_a_taken_metrics_port_ends_the_controller_with_one_line(site: Site, launch: Callable[[], Process]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site.configure(kjbod_metrics_listener=f"127.0.0.1:{taken.getsockname()[1]}")
        process = launch()
        assert process._process.stderr is not None
        rest = process._process.stderr.read()
        assert process._process.wait(30) == 1
    last = rest.splitlines()[-1]  # raised to the command line, which tells it as it is
    assert "kjbod.metrics.listener=127.0.0.1:" in last and last.endswith("choose another port")
    assert "controller.started" not in rest
    assert not site.log_file.exists(), "nothing was written"


def test_without_a_metrics_listener_nothing_is_measured() -> None:
    async def run() -> Turns:
        turns = Turns()
        turns.take(lambda: None, settle=lambda _: None, fail=lambda error: None, is_large=lambda: False)
        await turns.close()
        return turns

    assert asyncio.run(run()).times is None


# ---- in this process


async def test_every_mbean_that_is_promised_is_there(site: Site, serving: Serving) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        times = server.measure()
        await join(connection, 1)
        picture = snapshot(server, times, now_ms=server.clock.monotonic_ms(), wall_ms=2, started_ms=1)
        text = render(metrics(picture)).decode()
    checked(text)
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    for bean in MBEANS:
        for series in names_of(bean, "1" if bean.key else ""):
            assert series.name + ("_total" if series.kind == "counter" else "") in names, object_name(bean)


async def test_a_scrape_is_answered_while_a_large_change_is_made(site: Site, serving: Serving, gate: Gate) -> None:
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        metrics_listener = MetricsListener(pictures(server), metrics)
        await metrics_listener.open("127.0.0.1", 0)
        with contextlib.closing(metrics_listener):
            done: list[object] = []
            server._turns.take(gate.pass_through, settle=done.append, fail=done.append, is_large=lambda: True)
            await until(gate.reached.is_set)
            waiting = asyncio.ensure_future(connection.request(create("late"), timeout_ms=30_000))
            await until(lambda: server.waiting)
            found = values(await asyncio.to_thread(scrape, metrics_listener.port))
            assert found["kjbod_controller_requests_waiting"] == 1
            assert found[f"{CONTROLLER}_globaltopiccount"] == 0
            gate.open()
            assert (await waiting).topics[0].error_code == 0
            assert done == [None]


async def test_a_scraper_that_goes_away_or_asks_nonsense_harms_nobody(site: Site, serving: Serving) -> None:
    async with serving(site) as server:
        metrics_listener = MetricsListener(pictures(server), metrics)
        await metrics_listener.open("127.0.0.1", 0)
        with contextlib.closing(metrics_listener):
            for request in (b"", b"GET /metrics HTTP/1.1\r\n\r\n", b"x" * 20_000, b"POST / HTTP/1.1\r\n\r\n"):
                _, writer = await asyncio.open_connection("127.0.0.1", metrics_listener.port)
                writer.write(request)
                writer.transport.abort()
            found = values(await asyncio.to_thread(scrape, metrics_listener.port))
            assert found[f"{CONTROLLER}_activecontrollercount"] == 1


# ---- counted when they change


def walked(controller: Controller) -> dict[str, int]:
    """What the index has counted, by a walk over everything."""
    all_ = [p for topic in controller.image.topics.values() for p in topic.partitions.values()]
    return {
        "partitions": len(all_),
        "leaderless": sum(partition.leader == NO_LEADER for partition in all_),
        "imbalanced": sum(partition.leader != partition.replicas[0] for partition in all_),
    }


def counted(index: PartitionIndex) -> dict[str, int]:
    return {
        "partitions": index.partitions,
        "leaderless": index.leaderless_count,
        "imbalanced": index.imbalanced_count,
    }


def test_partitions_are_counted_as_they_change_and_again_when_the_log_is_replayed() -> None:
    world = World()
    for broker in (1, 2, 3):
        world.join(broker)
    steps: list[Callable[[], Any]] = [
        lambda: world.create("a", (1, 2), (2, 1), (1, 3)),
        lambda: world.create("b", (3,), (3,)),
        lambda: world.beat(1, fence=True),
        lambda: world.beat(3, shut=True),
        lambda: world.ask(DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name="b"),))),
        lambda: world.beat(1),
        lambda: world.create("b", *[(2,)] * 50),
        lambda: world.ask(UnregisterBrokerRequest(broker_id=2)),
        lambda: world.ask(AlterPartitionReassignmentsRequest()),
    ]
    seen = set()
    for step in steps:
        step()
        there = walked(world.controller)
        assert counted(world.controller.index) == there
        assert counted(world.replayed().index) == there
        seen.add(tuple(there.values()))
    assert len(seen) >= 6, "the story is no story"
    assert max(there[1] for there in seen) > 0


def test_elections_from_eligible_replicas_and_unclean_ones_are_counted_once_since_the_start() -> None:
    world = World()
    world.join(1)
    world.join(2)
    world.create("a", (1, 2))
    index = world.controller.index
    world.beat(2, fence=True)
    world.beat(1, fence=True)
    assert world.partition("a").eligible_leader_replicas
    world.beat(1)
    assert world.partition("a").leader == 1
    assert (index.eligible_elections, index.unclean_elections) == (1, 0)

    before = world.partition("a")
    lost = structs.replace(before, leader=NO_LEADER, isr=(1,), eligible_leader_replicas=())
    taken = structs.replace(lost, leader=2, isr=(2,), leader_recovery_state=RECOVERING)
    moved = structs.replace(taken, directories=tuple(reversed(taken.directories)))
    for old, new, unclean in ((before, lost, 0), (lost, taken, 1), (taken, moved, 1), (moved, lost, 1)):
        index.count(index.step(old, new))
        assert index.unclean_elections == unclean
    world.controller.activate(world.now_ms)
    assert (index.eligible_elections, index.unclean_elections) == (0, 0), "another process counts anew"


# ---- durations


def test_durations_are_counted_in_buckets_and_the_latest_make_kafka_s_quantiles() -> None:
    distribution = Distribution()
    for ms in range(1, RECENT_MAX + 1_001):
        distribution.add(ms * 1_000_000)
    now = distribution.now()
    assert now.count == RECENT_MAX + 1_000
    assert now.cumulative()[BOUNDS_S.index(0.001)] == ("0.001", 1.0)
    assert now.cumulative()[BOUNDS_S.index(1.0)] == ("1.0", 1000.0)
    assert now.cumulative()[-1] == ("+Inf", RECENT_MAX + 1_000)
    made = {reading.bean.attribute: reading.value for reading in readings_of(QUEUE_TIME, now)}
    assert made["Count"] == RECENT_MAX + 1_000
    assert 1_500 < made["50thPercentile"] < 1_530
    assert made["999thPercentile"] == RECENT_MAX + 1_000 - 1


def test_nothing_measured_yet_is_zero_and_not_an_error() -> None:
    assert {reading.value for reading in readings_of(QUEUE_TIME, Distribution().now())} == {0.0}
