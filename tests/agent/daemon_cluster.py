"""A cluster of real agents on plain directories, for tests: the stub or Apache Kafka as the controller."""

import json
from pathlib import Path

from scripts.rig import cluster
from scripts.rig.cluster import format_node
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


class Cluster(cluster.Cluster):
    """A controller, formatted, and agents with a few directories each below ``base``."""

    def __init__(
        self, base: Path, processes: Processes, kafka: KafkaKit | None = None, *, release: str | None = None
    ) -> None:
        super().__init__(base, processes, kafka=kafka, cluster_id=CLUSTER_ID)
        self.format_controller(release=release)

    def directory(self, node: int, number: int) -> Path:
        return self.base / f"b{node}" / f"d{number}"

    def configure(self, node: int, directories: int = 3, cluster_id: str = CLUSTER_ID, **settings: object) -> Path:
        """Write and format one agent's configuration; ``settings`` with underscores for dots."""
        home = self.base / f"b{node}"
        paths = [self.directory(node, number) for number in range(1, directories + 1)]
        # Whatever else lies on this machine's disk.
        own = {"kjbod_state_dir": home / "state", "kjbod_host": f"host{node}", "kjbod_placement_full_percent": 100}
        properties = {key.replace("_", "."): value for key, value in {**own, **settings}.items()}
        config = self.configure_broker(node, paths, properties)
        format_node(config, cluster_id)
        return config

    def replicas(self, node: int, pattern: str = "*-*") -> list[list[str]]:
        """Names of replica directories in each directory of an agent."""
        numbers = range(1, 4)
        return [sorted(p.name for p in self.directory(node, n).glob(pattern) if p.is_dir()) for n in numbers]

    def report_kinds(self, node: int) -> list[str]:
        """Kinds of the events in an agent's health report that are still in its open files."""
        files = (self.base / f"b{node}" / "state" / "reports" / "events").rglob(".*.jsonl")
        return [json.loads(line)["kind"] for file in files for line in file.read_text().splitlines()]


def acknowledged(agent: ManagedProcess) -> int:
    """How many assignments the controller has acknowledged to an agent."""
    return sum(event["count"] for event in agent.events("assignments.acknowledged"))


def wait_assigned(agent: ManagedProcess, count: int) -> None:
    wait_until(lambda: acknowledged(agent) >= count, 30, f"{count} assignments")
