"""Where Apache Kafka's own controller places new partitions: not where an agent cordons (KIP-1066)."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import RealDisk
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster, SharedController, wait_assigned
from tests.agent.real_broker import RealBroker
from tests.preloading import run_kjbod

pytestmark = pytest.mark.usefixtures("kafka_kit")


def status(config: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads(run_kjbod("status", "-c", str(config), "--json", check=True).stdout)
    return told


def cordoned(config: Path) -> list[bool]:
    """Of each directory, as the metadata have it."""
    directories = status(config)["directories"]
    assert isinstance(directories, list)
    return [directory["cordoned"] for directory in directories]


def start_broker(cluster: Cluster, kit: KafkaKit, node: int) -> RealBroker:
    """A broker of Kafka in the cluster, running."""
    config = cluster.configure_broker(node, [cluster.directory(node, 1)])
    cluster.format_broker(config)
    broker = RealBroker(kit, cluster.processes, config)
    broker.start()
    return broker


@pytest.mark.parametrize(
    "controller", [pytest.param("kafka", marks=pytest.mark.xdist_group("kafka-controller")), "kjbod"]
)
def test_beside_a_real_broker_no_partition_is_placed_on_an_agent_until_it_is_wanted(
    request: pytest.FixtureRequest, tmp_path: Path, processes: Processes, kafka_kit: KafkaKit, controller: str
) -> None:
    cluster = Cluster(
        tmp_path, processes, request.getfixturevalue("kafka_controller") if controller == "kafka" else None
    )
    if controller == "kjbod":
        cluster.start_controller()
    config = cluster.configure(1, directories=2)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced", 60)
    other = cluster.start_agent(cluster.configure(3, directories=2))
    other.wait_for_event("agent.unfenced", 60)
    assert not agent.events("placement.closed"), "agents among themselves"
    start_broker(cluster, kafka_kit, 2)
    closed = agent.wait_for_event("placement.closed", 30)
    assert closed["level"] == "warning"
    assert "broker 2 is no kjbod agent" in closed["reason"]
    wait_until(lambda: cordoned(config) == [True, True], 30, "cordons in the metadata")
    other.wait_for_event("placement.closed", 30)
    wait_until(
        lambda: cordoned(cluster.base / "b3" / "server.properties") == [True, True], 30, "cordons in the metadata"
    )
    assert "broker 2 is no kjbod agent" in str(status(config)["admission"])
    cluster.create_topic("events", partitions=12, replication_factor=1)
    wait_until(lambda: len(list((tmp_path / "b2" / "d1").glob("events-*"))) == 12, 60, "replicas of the broker")
    assert cluster.replicas(1, "events-*") == [[], [], []]

    assert agent.stop() == 0
    with config.open("a") as file:
        file.write("kjbod.placement.accept=always\n")
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced", 60)
    assert "kjbod.placement.accept=always" in agent.wait_for_event("placement.open")["reason"]
    wait_until(lambda: cordoned(config) == [False, False], 30, "no cordons in the metadata")
    cluster.create_topic("wanted", partitions=12, replication_factor=1)
    wait_assigned(agent, 6)


def test_a_real_controller_places_nothing_on_an_agent_whose_disk_is_nearly_full_until_there_is_room(
    tmp_path: Path, real_disk: Callable[..., RealDisk], processes: Processes, kafka_controller: SharedController
) -> None:
    disk = real_disk(log_dir="kafka")
    cluster = Cluster(tmp_path, processes, kafka_controller)
    agents: dict[int, ManagedProcess] = {}
    for node in (1, 2):
        config = cluster.configure(
            node, directories=1, kjbod_probe_interval_ms=200, kjbod_placement_full_percent=90 if node == 1 else 100
        )
        if node == 1:
            with config.open("a") as file:
                file.write(f"log.dirs={disk.log_dir}\n")
            cluster.format_broker(config, again=True)
        agents[node] = cluster.start_agent(config)
        agents[node].wait_for_event("agent.unfenced", 60)
    config = cluster.base / "b1" / "server.properties"
    ballast = disk.mount_point / "ballast"
    with ballast.open("wb") as file:
        room = os.statvfs(disk.mount_point)
        os.posix_fallocate(file.fileno(), 0, int(room.f_bavail * room.f_frsize - 0.08 * room.f_blocks * room.f_frsize))
    assert agents[1].wait_for_event("directory.cordoned", 30)["reason"] == "nearly full"
    wait_until(lambda: cordoned(config) == [True], 30, "the cordon in the metadata")
    cluster.create_topic("events", partitions=12, replication_factor=1)
    wait_until(lambda: len(cluster.replicas(2, "events-*")[0]) == 12, 30, "replicas of the other agent")
    assert not list(disk.log_dir.glob("events-*"))

    ballast.unlink()
    agents[1].wait_for_event("directory.uncordoned", 30)
    wait_until(lambda: cordoned(config) == [False], 30, "the end of the cordon in the metadata")
    cluster.create_topic("more", partitions=12, replication_factor=1)
    wait_until(lambda: len(list(disk.log_dir.glob("more-*"))) == 6, 30, "replicas on the disk with room")
