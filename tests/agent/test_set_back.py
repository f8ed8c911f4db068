"""A controller whose metadata were lost or set back under agents that run: real processes, real disks' directories.

What the agent applied is no longer there, and that proves no deletion: replicas are kept as strays, as at a start.
"""

import json
import shutil
import signal
from pathlib import Path

import pytest

from kjbod.errors import StorageError
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.reading import load
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.preloading import run_kjbod


@pytest.fixture
def cluster(tmp_path: Path, processes: Processes) -> Cluster:
    return Cluster(tmp_path, processes)


def status(config: Path, *options: str) -> str:
    return run_kjbod("status", "-c", str(config), *options, check=True).stdout


def wipe(cluster: Cluster) -> None:
    """What a new host, or a disk that was replaced, looks like: formatted anew for the same cluster."""
    shutil.rmtree(cluster.base / "controller")
    cluster.format_controller()


def names(cluster: Cluster, pattern: str) -> list[str]:
    return [name for directory in cluster.replicas(1, pattern) for name in directory]


def check_kept(cluster: Cluster, agent: ManagedProcess, config: Path, topic: str, replicas: int) -> None:
    """All that is left of a topic are strays, and the agent has said why."""
    lost = agent.wait_for_event("metadata.history.lost", 60)
    assert (lost["level"], lost["kept"]) == ("error", replicas)
    wait_until(lambda: len(names(cluster, f"{topic}-*-stray")) == replicas, 20, "strays")
    assert not names(cluster, f"{topic}-*-delete")
    assert not agent.events("replica.deleted")
    assert f"{replicas} replicas kept as strays" in status(config)
    assert "the history of the metadata was lost or set back" in status(config).splitlines()[0]
    history = json.loads(status(config, "--json"))["metadata_history"]
    assert (history["lost"]["kept"], history["behind"]) == (replicas, None)


def test_replicas_are_kept_when_the_controller_is_formatted_anew(cluster: Cluster) -> None:
    controller = cluster.start_controller()
    config = cluster.configure(1, log_segment_delete_delay_ms=0)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    cluster.create_topic("events", partitions=9, replication_factor=1)
    wait_assigned(agent, 9)
    controller.stop()
    wipe(cluster)
    controller = cluster.start_controller()
    check_kept(cluster, agent, config, "events", 9)
    controller.wait_for_event("broker.unfenced", 30)
    cluster.create_topic("events", partitions=3, replication_factor=1)
    wait_assigned(agent, 12)


def test_replicas_are_kept_when_an_older_copy_has_grown_beyond_what_was_applied(cluster: Cluster) -> None:
    """The epochs are the same again, and the offsets are there: only the records differ."""
    copy = cluster.base / "copy"
    controller = cluster.start_controller()
    config = cluster.configure(1, log_segment_delete_delay_ms=0)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    cluster.create_topic("old", partitions=3, replication_factor=1)
    wait_assigned(agent, 3)
    controller.stop()
    shutil.copytree(cluster.base / "controller", copy)

    controller = cluster.start_controller()
    cluster.create_topic("late", partitions=6, replication_factor=1)
    wait_assigned(agent, 9)
    applied = applied_offset(config)
    agent.signal(signal.SIGSTOP)
    controller.stop()
    shutil.rmtree(cluster.base / "controller")
    shutil.copytree(copy, cluster.base / "controller")
    cluster.start_controller()
    other = cluster.configure(2)
    cluster.start_agent(other).wait_for_event("agent.unfenced")
    cluster.create_topic("grown", partitions=60, replication_factor=1)
    wait_until(lambda: applied_offset(other) > applied + 10, 60, "the set back history to grow")
    agent.signal(signal.SIGCONT)

    check_kept(cluster, agent, config, "late", 6)
    assert len(names(cluster, "old-?")) == 3


def test_a_history_that_was_set_back_and_has_grown_while_the_agent_was_down_is_seen(cluster: Cluster) -> None:
    """What the agent kept is not the controller's, and nothing is deleted for that, neither replicas nor what was
    kept."""
    copy = cluster.base / "copy"
    controller = cluster.start_controller()
    config = cluster.configure(1, log_segment_delete_delay_ms=0)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    controller.stop()
    shutil.copytree(cluster.base / "controller", copy)
    controller = cluster.start_controller()
    cluster.create_topic("late", partitions=6, replication_factor=1)
    wait_assigned(agent, 6)
    log = cluster.directory(1, 1) / DIRECTORY_NAME

    def is_kept() -> bool:
        try:
            return load(log).image.topic_ids.keys() == {"late"}
        except StorageError:  # nothing is there yet
            return False

    wait_until(is_kept, 30, "the topic in what is kept")
    kept_offset = load(log).image.offset
    agent.kill()
    kept = {path: path.read_bytes() for path in log.glob("*.log")}
    controller.stop()
    shutil.rmtree(cluster.base / "controller")
    shutil.copytree(copy, cluster.base / "controller")
    cluster.start_controller()
    other = cluster.configure(2)
    cluster.start_agent(other).wait_for_event("agent.unfenced")
    cluster.create_topic("grown", partitions=60, replication_factor=1)
    wait_until(lambda: applied_offset(other) > kept_offset + 10, 60, "the set back history to grow")

    again = cluster.start_agent(config)
    assert again.wait_for_event("metadata.kept.loaded")["end_offset"] > kept_offset
    lost = again.wait_for_event("metadata.history.lost", 60)
    assert lost["applied_offset"] >= kept_offset
    assert "nothing was removed" in again.wait_for_event("metadata.kept.stopped")["reason"]
    again.wait_for_event("agent.unfenced", 60)
    wait_until(lambda: len(names(cluster, "late-*-stray")) == 6, 20, "strays")
    assert not names(cluster, "late-*-delete")
    assert not again.events("metadata.kept.confirmed")
    assert {path: path.with_name(path.name + ".aside").read_bytes() for path in kept} == kept


def test_a_topic_that_was_deleted_is_removed_by_an_agent_that_catches_up_from_a_snapshot(cluster: Cluster) -> None:
    """The controller's process is still the one that was known: nothing was set back."""
    with cluster.controller_config.open("a") as file:
        file.write(
            "metadata.log.segment.ms=100\nmetadata.max.retention.bytes=1\n"
            "metadata.log.max.record.bytes.between.snapshots=500\n"
        )
    cluster.start_controller()
    config, other = cluster.configure(1), cluster.configure(2)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    cluster.create_topic("events", partitions=9, replication_factor=1)
    wait_assigned(agent, 9)
    applied = applied_offset(config)
    agent.signal(signal.SIGSTOP)
    cluster.start_agent(other).wait_for_event("agent.unfenced")
    cluster.delete_topics("events")
    cluster.create_topic("kept", partitions=30, replication_factor=1)
    wait_until(lambda: first_offset(cluster) > applied, 60, "the log to begin behind what the agent has applied")
    agent.signal(signal.SIGCONT)
    agent.wait_for_event("metadata.snapshot.loaded", 60)
    wait_until(lambda: len(names(cluster, "events-*-delete")) == 9, 20, "renamed replicas")
    assert not agent.events("metadata.history.lost")
    assert json.loads(status(config, "--json"))["metadata_history"] is None


def test_a_history_of_older_epochs_is_not_followed_and_that_is_said(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.start_controller().stop()
    controller = cluster.start_controller()
    config = cluster.configure(1)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    cluster.create_topic("events", partitions=3, replication_factor=1)
    wait_assigned(agent, 3)
    controller.stop()
    wipe(cluster)
    cluster.start_controller()
    assert "leader epoch 1, and epoch 3 was followed" in agent.wait_for_event("metadata.history.behind", 60)["reason"]
    assert "NOT FOLLOWED" in status(config)
    assert len(names(cluster, "events-?")) == 3
    assert agent.stop() == 0
    again = cluster.start_agent(config)
    again.wait_for_event("agent.unfenced", 60)
    assert "leader epoch 1, and epoch 3 was followed" in again.wait_for_event("metadata.history.lost")["reason"]
    wait_until(lambda: len(names(cluster, "events-*-stray")) == 3, 20, "strays")


@pytest.mark.usefixtures("kafka_kit")
def test_replicas_are_kept_when_a_real_kafka_controller_is_formatted_anew(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    cluster = Cluster(tmp_path, processes, kafka_kit)
    controller = cluster.start_controller()
    config = cluster.configure(1, log_segment_delete_delay_ms=0)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced", 60)
    cluster.create_topic("events", partitions=9, replication_factor=1)
    wait_assigned(agent, 9)
    controller.stop()
    wipe(cluster)
    cluster.start_controller()
    check_kept(cluster, agent, config, "events", 9)


def applied_offset(config: Path) -> int:
    """How far an agent has applied the metadata."""
    return int(json.loads(status(config, "--json"))["metadata_offset"])


def first_offset(cluster: Cluster) -> int:
    """Where the controller's log begins."""
    log = cluster.base / "controller" / "__cluster_metadata-0"
    return min(int(segment.stem) for segment in log.glob("*.log"))
