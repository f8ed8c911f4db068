"""Unmodified Apache Kafka 4.3.1 brokers and tools live on the controller."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.testing.kafka import KafkaKit, broker_properties, controller_properties
from kjbod.testing.processes import ManagedProcess, Processes, free_port, wait_until
from kjbod.wire.client import Connection
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    MetadataRequest,
    MetadataResponse,
    MetadataResponsePartition,
)

CLUSTER_ID = "kjbodOnRealBrokersAAAA"


def on_controller(port: int, story: Callable[[Connection], Coroutine[Any, Any, Any]]) -> Any:
    """Run ``story`` with a connection to the controller."""

    async def run() -> Any:
        async with await Connection.open("127.0.0.1", port, client_id="test", clock=SystemClock()) as connection:
            return await story(connection)

    return asyncio.run(run())


def partitions(port: int) -> list[MetadataResponsePartition]:
    async def ask(connection: Connection) -> MetadataResponse:
        return await connection.request(MetadataRequest(topics=None), timeout_ms=10_000)

    return [partition for topic in on_controller(port, ask).topics for partition in topic.partitions]


def produce(kit: KafkaKit, port: int, records: int) -> str:
    return kit.run(
        "org.apache.kafka.tools.VerifiableProducer",
        *("--bootstrap-server", f"127.0.0.1:{port}", "--topic", "t", "--max-messages", str(records), "--acks", "-1"),
    ).stdout


@pytest.mark.kafka
def test_real_brokers_start_produce_survive_our_sigkill_and_restart_at_once(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    port = free_port()
    config = tmp_path / "controller.properties"
    config.write_text(controller_properties(3000, port, tmp_path / "metadata"))
    assert processes.kjbod("format", "-t", CLUSTER_ID, "-c", str(config), "--standalone", name="format").wait() == 0

    def controller() -> ManagedProcess:
        started = processes.kjbod("controller", "-c", str(config), name="controller")
        started.wait_for_event("controller.started")
        return started

    running = controller()
    ports, brokers = [free_port(), free_port()], []
    for number, broker_port in enumerate(ports, start=1):
        dirs = [tmp_path / f"b{number}-d{disk}" for disk in (1, 2, 3)]
        path = tmp_path / f"broker-{number}.properties"
        path.write_text(broker_properties(number, broker_port, port, dirs))
        kafka_kit.format(path, CLUSTER_ID)
        brokers.append(kafka_kit.start_server(processes, path, name=f"broker-{number}"))

    async def create(connection: Connection) -> None:
        topic = CreateTopicsRequestTopic(name="t", num_partitions=6, replication_factor=2)
        answer = await connection.request(CreateTopicsRequest(topics=(topic,)), timeout_ms=10_000)
        assert answer.topics[0].error_code == 0

    on_controller(port, create)
    assert '"acked":200' in produce(kafka_kit, ports[0], 200)

    running.signal(signal.SIGKILL)
    running.wait()
    running = controller()
    assert '"acked":100' in produce(kafka_kit, ports[0], 100)

    brokers[0].signal(signal.SIGTERM)
    assert brokers[0].wait() == 143
    assert {partition.leader_id for partition in partitions(port)} == {2}
    kafka_kit.start_server(processes, tmp_path / "broker-1.properties", name="broker-1")
    assert not running.events("broker.refused")  # a shipped controller answers 101 for nine seconds
    wait_until(
        lambda: all(len(partition.isr_nodes) == 2 for partition in partitions(port)), 60, "both brokers to be in sync"
    )

    running.signal(signal.SIGTERM)
    assert running.wait() == 0
    log = tmp_path / "metadata/__cluster_metadata-0" / f"{0:020d}.log"
    read = {record["type"] for _, record in kafka_kit.metadata_records(log)}
    assert {"REGISTER_BROKER_RECORD", "PARTITION_RECORD", "PARTITION_CHANGE_RECORD", "NO_OP_RECORD"} <= read
