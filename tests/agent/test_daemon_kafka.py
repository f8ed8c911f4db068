"""The agent against a real Apache Kafka controller."""

import signal
from pathlib import Path

import pytest

from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from tests.agent.daemon_cluster import LEADING_SESSION_MS, Cluster, wait_assigned

pytestmark = pytest.mark.usefixtures("kafka_kit")


def test_lc_14_agents_live_through_disk_failures_under_a_real_kafka_controller(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    cluster = Cluster(tmp_path, processes, kafka_kit)
    cluster.configure_controller({"broker.session.timeout.ms": LEADING_SESSION_MS})
    controller = cluster.start_controller()
    agents = {n: cluster.start_agent(cluster.configure(n, log_dir_failure_timeout_ms=2000)) for n in (1, 2, 3)}
    for agent in agents.values():
        agent.wait_for_event("agent.unfenced", 60)
    cluster.create_topic("events", partitions=90, brokers=(1, 2, 3))
    for agent in agents.values():
        wait_assigned(agent, 90)
    cluster.wait_leading(1, 30)
    assert [len(names) for names in cluster.replicas(1, "events-*")] == [30, 30, 30]

    cluster.directory(1, 2).rename(tmp_path / "away-2")
    agents[1].wait_for_event("directory.offline.acknowledged")
    moved = agents[1].wait_for_event("directory.leadership.moved")
    assert moved["leaders"] == 30

    controller.signal(signal.SIGSTOP)
    cluster.directory(1, 3).rename(tmp_path / "away-3")
    assert agents[1].wait() == 74
    assert str(cluster.directory(1, 3)) in agents[1].events("agent.stopped")[0]["reason"]
    controller.signal(signal.SIGCONT)
    assert agents[2].stop(60) == 0
