"""A cluster of real agents on plain directories, for tests: the stub or Apache Kafka as the controller."""

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kjbod.metadata.batches import read_batch
from kjbod.metadata.image import MetadataImage, image_of
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.records import Record, decode_record
from kjbod.runtime.control_socket import ControlClient
from kjbod.wire.messages import UnregisterBrokerRequest
from scripts.rig import cluster
from scripts.rig.cluster import ask, format_node
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
LEADING_SESSION_MS: Final = 30_000
"""``broker.session.timeout.ms`` where a test relies on who leads: an agent whose processor was others' for longer is
fenced, and never leads again what it did, since without a data plane it does not get back into the ISR."""


def read_image(controller_dir: Path) -> MetadataImage:
    """What a controller has recorded, from its log."""

    def records() -> Iterator[Record]:
        for segment in sorted((controller_dir / "__cluster_metadata-0").glob("*.log")):
            content, at = segment.read_bytes(), 0
            while (batch := read_batch(content, at)) is not None:
                if not batch.control:
                    yield from (decode_record(record.value or b"")[0] for record in batch.records)
                at += batch.size_in_bytes

    return image_of(records())


class SharedController:
    """A controller of Apache Kafka that tests use one after the other, each without topics and brokers of another.

    For those that leave it running, its features and its configurations as they are. Between them it stands still.
    """

    def __init__(
        self, base: Path, processes: Processes, kit: KafkaKit, properties: cluster.Properties = cluster.NOTHING
    ) -> None:
        self._cluster = cluster.Cluster(base, processes, kafka=kit, cluster_id=CLUSTER_ID, properties=properties)
        self._cluster.format_controller()

    @property
    def port(self) -> int:
        return self._cluster.port

    @property
    def directory(self) -> Path:
        """The metadata log directory."""
        return self._cluster.controller_dir

    @contextlib.contextmanager
    def borrowed(self) -> Iterator["SharedController"]:
        """A test has it meanwhile."""
        process = self._cluster.controller
        if process is None:
            process = self._cluster.start_controller()
        process.signal(signal.SIGCONT)
        try:
            wait_until(self._empty, 60, "the controller to be without topics and brokers")
            yield self
        finally:
            process.signal(signal.SIGSTOP)

    def _empty(self) -> bool:
        """Remove whatever there is; whether there was nothing."""
        image = read_image(self.directory)
        if image.topic_ids:
            self._cluster.delete_topics(*image.topic_ids)
        for node in image.brokers:
            ask(self.port, UnregisterBrokerRequest(broker_id=node))
        return not image.topic_ids and not image.brokers


class Cluster(cluster.Cluster):
    """A controller, formatted, and agents with a few directories each below ``base``.

    Args:
        kafka: Apache Kafka, whose controller it is then, or a controller of it that runs already.
    """

    def __init__(
        self,
        base: Path,
        processes: Processes,
        kafka: KafkaKit | SharedController | None = None,
        *,
        release: str | None = None,
    ) -> None:
        self._shared = kafka if isinstance(kafka, SharedController) else None
        kit = None if isinstance(kafka, SharedController) else kafka
        super().__init__(base, processes, kafka=kit, cluster_id=CLUSTER_ID)
        if self._shared is None:
            self.format_controller(release=release)
        else:
            self.port, self.controller_dir = self._shared.port, self._shared.directory

    def launch_controller(self) -> ManagedProcess:
        """Start it, without waiting."""
        assert self._shared is None, "a shared controller runs already"
        return super().launch_controller()

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

    def wait_leading(self, node: int, partitions: int, directories: int = 3) -> None:
        """Wait until an agent knows that it leads so many partitions in each of so many directories.

        For a controller with :data:`LEADING_SESSION_MS`, and a topic of which this agent is the first replica.
        """
        home = self.base / f"b{node}"
        control = ControlClient(home / "state", node_id=node, source=str(home / "server.properties"))

        def leads() -> list[int]:
            rows = [part["directory"] for part in control.stream("log-dirs") if "directory" in part]
            return [row["leaders"] for row in rows if row["leaders"]]

        wait_until(lambda: leads() == [partitions] * directories, 30, f"leaders of broker {node} in each directory")

    def replicas(self, node: int, pattern: str = "*-*") -> list[list[str]]:
        """Names of replica directories in each directory of an agent, but that of the metadata."""
        found = [self.directory(node, number).glob(pattern) for number in range(1, 4)]
        return [sorted(p.name for p in each if p.is_dir() and p.name != DIRECTORY_NAME) for each in found]

    def report_kinds(self, node: int) -> list[str]:
        """Kinds of the events in an agent's health report that are still in its open files."""
        files = (self.base / f"b{node}" / "state" / "reports" / "events").rglob(".*.jsonl")
        return [json.loads(line)["kind"] for file in files for line in file.read_text().splitlines()]


def acknowledged(agent: ManagedProcess) -> int:
    """How many assignments the controller has acknowledged to an agent."""
    return sum(event["count"] for event in agent.events("assignments.acknowledged"))


def wait_assigned(agent: ManagedProcess, count: int) -> None:
    wait_until(lambda: acknowledged(agent) >= count, 30, f"{count} assignments")
