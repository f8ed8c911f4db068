"""The metadata log that the agent keeps is a real broker's as well: each goes on from where the other one stopped."""

from pathlib import Path

import pytest

from kjbod.errors import StorageError
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.reading import load
from kjbod_agent.keeping import IMAGE_NAME
from kjbod_host.files import metadata_image
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import CLUSTER_ID, SharedController, wait_assigned
from tests.agent.handed_host import Host
from tests.agent.real_broker import stop_clean
from tests.depth import only_deep

pytestmark = [pytest.mark.usefixtures("kafka_kit"), pytest.mark.timeout(400)]


@pytest.fixture
def host(tmp_path: Path, processes: Processes, kafka_kit: KafkaKit, kafka_controller: SharedController) -> Host:
    return Host(tmp_path, processes, kafka_kit, kafka_controller)


def segments(host: Host) -> dict[str, bytes]:
    inner = host.directory(1) / DIRECTORY_NAME
    return {path.name: path.read_bytes() for path in sorted(inner.glob("*.log"))}


def kept(host: Host) -> MetadataImage:
    return load(host.directory(1)).image


def wait_kept(host: Host, topic: str, partitions: int) -> None:
    """Until the agent has written a topic down, with the directories of its replicas."""

    def is_kept() -> bool:
        try:
            image = kept(host)
        except StorageError:  # nothing is there yet
            return False
        found = image.topics.get(image.topic_ids.get(topic))  # type: ignore[arg-type]
        homes = [] if found is None else [p.directories for p in found.partitions.values()]
        return len(homes) == partitions and all(home[0] in image.brokers[1].log_dirs for home in homes)

    wait_until(is_kept, 30, f"{topic} in the metadata that are kept")


def check_went_on(agent: ManagedProcess, end_offset: int) -> None:
    """The agent began where this log ended, and the leader had the same."""
    assert agent.wait_for_event("metadata.kept.loaded", 30)["end_offset"] == end_offset
    agent.wait_for_event("metadata.kept.confirmed", 30)
    assert not agent.events("metadata.snapshot.loaded")
    assert not agent.events("metadata.history.lost")
    assert not agent.events("metadata.kept.stopped")


def test_agent_and_real_broker_go_on_with_each_others_metadata_log(host: Host) -> None:
    agent = host.run_agent()
    host.cluster.create_topic("events", 3, 1)
    wait_assigned(agent, 3)
    wait_kept(host, "events", 3)
    host.stop_agent(agent)
    ((name, ours),) = segments(host).items()
    read = list(host.kit.metadata_records(host.directory(1) / DIRECTORY_NAME / name))
    assert "events" in [record["data"]["name"] for _, record in read if record["type"] == "TOPIC_RECORD"]

    broker = host.broker.start()
    host.broker.wait_led("events", 3)
    host.broker.produce("events", 0, [b"served"])
    stop_clean(broker)
    theirs = segments(host)
    assert list(theirs) == [name] and theirs[name].startswith(ours) and len(theirs[name]) > len(ours)

    end_offset = kept(host).offset + 1
    agent = host.run_agent()
    check_went_on(agent, end_offset)
    host.cluster.create_topic("later", 3, 1)
    wait_assigned(agent, 3)
    wait_kept(host, "later", 3)
    host.stop_agent(agent)
    both = segments(host)
    assert both.pop(name) == theirs[name], "what the broker wrote is as it was"
    assert list(both) == [f"{end_offset:020d}.log"]


@only_deep("another real broker; the format of snapshots is held by test_real_kafka_reads_ours")
def test_a_real_broker_starts_from_a_snapshot_that_the_agent_made(host: Host) -> None:
    agent = host.run_agent()
    host.cluster.create_topic("events", 3, 1)
    wait_assigned(agent, 3)
    wait_kept(host, "events", 3)
    host.stop_agent(agent)
    image_path = host.cluster.base / "b1" / "state" / IMAGE_NAME
    made = metadata_image.compact(str(host.directory(1)), str(image_path), CLUSTER_ID, 1, 1)
    assert made is not None and (host.directory(1) / DIRECTORY_NAME / made["checkpoint"]).exists()
    before = kept(host)

    broker = host.broker.start()
    host.broker.wait_led("events", 3)
    host.broker.produce("events", 0, [b"served"])
    assert host.broker.consume("events", 0) == (0, [b"served"])
    stop_clean(broker)
    assert kept(host).topic_ids.keys() >= before.topic_ids.keys() == {"events"}
    assert kept(host).offset > before.offset

    end_offset = kept(host).offset + 1
    agent = host.run_agent()
    check_went_on(agent, end_offset)
    host.stop_agent(agent)
