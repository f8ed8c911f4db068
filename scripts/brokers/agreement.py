"""Whether the metadata log says of every replica what is on the disks. Read with Kafka's own dump-log.

The log is replayed here by itself, by a few lines that know partitions and brokers only: neither kjbod's nor Kafka's
image is asked whether it is right about itself.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from scripts.brokers.cluster import RealCluster
from scripts.rig.kafka import KafkaKit

_PASSING_SUFFIXES: Final = ("-delete", "-future", "-stray")
"""Of directories that are no replica (any more), and may be there."""


@dataclass(slots=True)
class Metadata:
    """Contents of a metadata log: topic ids by name, and for each partition its replicas' directories."""

    topics: dict[str, str] = field(default_factory=dict)
    partitions: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def replay(self, kind: str, data: dict[str, Any]) -> None:
        """Apply a record, as kafka-dump-log shows it."""
        if kind == "TOPIC_RECORD":
            self.topics[data["topicId"]] = data["name"]
        elif kind == "REMOVE_TOPIC_RECORD":
            del self.topics[data["topicId"]]
            self.partitions = {key: part for key, part in self.partitions.items() if key[0] != data["topicId"]}
        elif kind == "PARTITION_RECORD":
            self.partitions[data["topicId"], data["partitionId"]] = dict(data)
        elif kind == "PARTITION_CHANGE_RECORD":
            self._change(self.partitions[data["topicId"], data["partitionId"]], data)

    @staticmethod
    def _change(part: dict[str, Any], change: dict[str, Any]) -> None:
        if change.get("replicas") is not None:
            known = dict(zip(part["replicas"], part.get("directories") or [], strict=False))
            part["replicas"] = change["replicas"]
            part["directories"] = [known.get(broker, "") for broker in change["replicas"]]
        if change.get("directories") is not None:
            part["directories"] = change["directories"]

    def replicas(self) -> dict[tuple[int, str, int], tuple[str, str]]:
        """(broker, topic, partition): (topic id, directory id)."""
        return {
            (broker, self.topics[topic_id], number): (topic_id, directory)
            for (topic_id, number), part in self.partitions.items()
            for broker, directory in zip(part["replicas"], part["directories"], strict=True)
        }


def read_metadata(kit: KafkaKit, directory: Path) -> Metadata:
    """Metadata of the newest snapshot and of the log after it; the controller should have stopped."""
    metadata = Metadata()
    start = -1
    snapshots = [path for path in sorted(directory.glob("*.checkpoint")) if not path.name.startswith("0" * 20)]
    if snapshots:
        start = int(snapshots[-1].name.partition("-")[0])
        for _, record in kit.metadata_records(snapshots[-1]):
            metadata.replay(record["type"], record["data"])
    for offset, record in kit.metadata_records(*sorted(directory.glob("*.log"))):
        if offset >= start:
            metadata.replay(record["type"], record["data"])
    return metadata


def replicas_on_disk(cluster: RealCluster) -> dict[tuple[int, str, int], tuple[str, str]]:
    """(broker, topic, partition): (topic id, directory id), as files say; one that is there twice is told as such."""
    found: dict[tuple[int, str, int], tuple[str, str]] = {}
    for (broker, _), log_dir in cluster.log_dirs.items():
        directory_id = _properties(log_dir / "meta.properties", "=")["directory.id"]
        for path in log_dir.iterdir():
            topic, dash, number = path.name.rpartition("-")
            if not path.is_dir() or not dash or not number.isdigit() or topic == "__cluster_metadata":
                continue
            if path.name.endswith(_PASSING_SUFFIXES):
                continue
            key = broker, topic, int(number)
            topic_id = _properties(path / "partition.metadata", ":")["topic_id"].strip()
            found[key] = (topic_id, f"{found[key][1]} and {directory_id}" if key in found else directory_id)
    return found


def _properties(path: Path, separator: str) -> dict[str, str]:
    lines = path.read_text().splitlines()
    return {key: value for key, _, value in (line.partition(separator) for line in lines)}


def disagreements(cluster: RealCluster) -> list[str]:
    """A line for each replica of which the controller's log and the disks say something else."""
    said = read_metadata(cluster.kit, cluster.controller_dir / "__cluster_metadata-0").replicas()
    there = replicas_on_disk(cluster)
    return [
        f"broker {broker}, {topic}-{number}: metadata {said.get((broker, topic, number))},"
        f" disk {there.get((broker, topic, number))}"
        for broker, topic, number in sorted({*said, *there})
        if said.get((broker, topic, number)) != there.get((broker, topic, number))
    ]
