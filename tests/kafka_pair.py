"""A controller and a broker of Apache Kafka that tests only look at: fixture ``kafka_pair``, one pair for all."""

from pathlib import Path
from typing import Final

from kjbod.ids import UNASSIGNED
from kjbod.metadata.reading import load
from scripts.rig.kafka import TOPICS, KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import Processes, free_port, wait_until

RELEASE: Final = "4.0"
"""Older than Kafka is: its features can be raised, which somebody may ask about."""
_CLUSTER_ID: Final = "kjbodKafkaPairCluster0"
_JMX: Final = "-Dcom.sun.management.jmxremote"


class KafkaPair:
    """Both, running and at rest, with a topic of two partitions and a stray on the broker's second directory.

    No test stops one of them, or changes anything in them.

    Attributes:
        base: where their files are: ``metadata``, ``d1`` and ``d2``, each server's configuration.
        metadata_dir: the controller's directory.
        broker_config: the broker's ``server.properties``.
        broker_port: of its listener.
        controller_port: of the controller's.
        broker_jmx: port of JMX of the broker.
        controller_jmx: of the controller.
        topic: name of the topic.
        stray: name of the stray's directory.
    """

    topic: Final = "orders"
    stray: Final = "gone-3.0123456789abcdef0123456789abcdef-stray"

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit) -> None:
        self.base = base
        self.metadata_dir = base / "metadata"
        self.broker_config = base / "server.properties"
        self.controller_port, self.broker_port, self.controller_jmx, self.broker_jmx = (free_port() for _ in range(4))
        controller = base / "controller.properties"
        controller.write_text(controller_properties(3000, self.controller_port, self.metadata_dir))
        directories = [base / "d1", base / "d2"]
        self.broker_config.write_text(broker_properties(1, self.broker_port, self.controller_port, directories))
        kit.format(controller, _CLUSTER_ID, "--standalone", "--release-version", RELEASE)
        kit.format(self.broker_config, _CLUSTER_ID, "--no-initial-controllers", "--release-version", RELEASE)
        self._servers = [
            kit.start_server(processes, controller, name="controller", options=_jmx(self.controller_jmx)),
            kit.start_server(processes, self.broker_config, name="broker", options=_jmx(self.broker_jmx)),
        ]
        stray = base / "d2" / self.stray
        stray.mkdir()
        (stray / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAZQ")
        topic = ("--create", "--topic", self.topic, "--partitions", "2")
        kit.run(TOPICS, "--bootstrap-server", f"127.0.0.1:{self.broker_port}", *topic)
        wait_until(self._is_assigned, 60, "the broker to tell the directories of its replicas")

    @property
    def running(self) -> bool:
        """Whether both run."""
        return all(server.running for server in self._servers)

    def _is_assigned(self) -> bool:
        """Whether the metadata have the directory of each replica: after that nobody changes anything by itself."""
        image = load(self.metadata_dir).image
        (topic,) = image.topics.values()
        return len(topic.partitions) == 2 and all(
            UNASSIGNED not in partition.directories for partition in topic.partitions.values()
        )


def _jmx(port: int) -> list[str]:
    """Options of a Java that answers JMX on a port of 127.0.0.1."""
    addresses = [f"{_JMX}.host=127.0.0.1", "-Djava.rmi.server.hostname=127.0.0.1"]
    ports = [f"{_JMX}.port={port}", f"{_JMX}.rmi.port={port}"]
    return [*ports, f"{_JMX}.authenticate=false", f"{_JMX}.ssl=false", *addresses]
