"""``kafka-reassign-partitions`` moves partitions of real brokers through the controller, throttled, and stops it."""

import asyncio
import json
from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.metadata.image import TOPIC
from kjbod.wire.client import Connection
from kjbod.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    MetadataRequest,
    MetadataResponsePartition,
)
from scripts.rig.cluster import Cluster
from scripts.rig.kafka import REASSIGN_PARTITIONS, TOPICS, KafkaKit
from scripts.rig.processes import Processes, free_port, wait_until

PRODUCER = "org.apache.kafka.tools.ProducerPerformance"


async def state(port: int) -> tuple[MetadataResponsePartition, set[str | None]]:
    """The partition, and the values of its topic's throttles."""
    keys = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    resource = DescribeConfigsRequestResource(resource_type=TOPIC, resource_name="t", configuration_keys=keys)
    async with await Connection.open("127.0.0.1", port, client_id="test", clock=SystemClock()) as controller:
        topics = await controller.request(MetadataRequest(topics=None), timeout_ms=60_000)
        configs = await controller.request(DescribeConfigsRequest(resources=(resource,)), timeout_ms=60_000)
    return topics.topics[0].partitions[0], {config.value for config in configs.results[0].configs}


@pytest.mark.usefixtures("kafka_kit")
def test_a_throttled_move_is_listed_cancelled_and_at_last_done(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.format_controller()
    cluster.start_controller()
    ports = [free_port(), free_port()]
    for number, broker_port in enumerate(ports, start=1):
        dirs = [tmp_path / f"b{number}-d{disk}" for disk in (1, 2)]
        path = cluster.configure_broker(number, dirs, port=broker_port)
        cluster.format_broker(path)
        kafka_kit.start_server(processes, path, name=f"broker-{number}")
    server = ("--bootstrap-server", f"127.0.0.1:{ports[0]}")
    kafka_kit.run(TOPICS, *server, "--create", "--topic", "t", "--replica-assignment", "1")
    load = ("--num-records", "3000", "--record-size", "1000", "--throughput", "-1")
    kafka_kit.run(PRODUCER, *server, "--topic", "t", *load)

    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2]}]}))

    def reassign(*arguments: str) -> str:
        return kafka_kit.run(REASSIGN_PARTITIONS, *server, *arguments).stdout

    planned = ("--reassignment-json-file", str(plan))
    assert "Successfully started" in reassign(*planned, "--execute", "--throttle", "1000")
    assert "t-0: replicas: 2,1. adding: 2. removing: 1." in reassign("--list")
    assert "Successfully cancelled" in reassign(*planned, "--cancel")
    assert "Successfully started" in reassign(*planned, "--execute", "--throttle", "1000000000")
    done = "Reassignment of partition t-0 is completed."
    said = ""

    def is_done() -> bool:
        nonlocal said
        said = reassign(*planned, "--verify")
        return done in said

    wait_until(is_done, 60, done)
    assert "Clearing topic-level throttles on topic t" in said
    partition, throttles = asyncio.run(state(cluster.port))
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (2, (2,), (2,))
    assert throttles == {""}
