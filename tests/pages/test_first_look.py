"""What the first page lets the owner of a Kafka cluster type: it works beside real brokers, and can change nothing."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.rig.kafka import TOPICS, KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import Processes, free_port
from tests.pages.markdown import Command, shown
from tests.pages.typed import run

CLUSTER_ID = "kjbodFirstLookCluster0"
STRAY = "gone-3.0123456789abcdef0123456789abcdef-stray"
READ_ONLY = """
for place in "$@"; do mount --bind "$place" "$place"; mount -o remount,bind,ro "$place"; done
mount -o remount,bind,ro /
"""
"""What may be written in the namespace of a command: nothing below the root, nor below the places that are named."""


class Site:
    """A controller and a broker of Apache Kafka, with a topic and a stray, as somebody has them."""

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit, release: str) -> None:
        self.base = base
        self.ports = free_port(), free_port()
        self.controller = base / "controller.properties"
        self.controller.write_text(controller_properties(3000, self.ports[0], base / "metadata"))
        self.broker = base / "server.properties"
        self.broker.write_text(broker_properties(1, self.ports[1], self.ports[0], [base / "d1", base / "d2"]))
        kit.format(self.controller, CLUSTER_ID, "--standalone", "--release-version", release)
        kit.format(self.broker, CLUSTER_ID, "--no-initial-controllers", "--release-version", release)
        self.running = [kit.start_server(processes, self.controller, name="controller")]
        self.running.append(kit.start_server(processes, self.broker, name="broker"))
        stray = base / "d2" / STRAY
        stray.mkdir()
        (stray / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAZQ")
        topic = ("--create", "--topic", "orders", "--partitions", "2")
        kit.run(TOPICS, "--bootstrap-server", f"127.0.0.1:{self.ports[1]}", *topic)

    @property
    def names(self) -> Mapping[str, str]:
        """What is another one here than on a page."""
        return {
            "/etc/kafka/server.properties": str(self.broker),
            "server.properties": str(self.broker),
            "/var/lib/kafka/metadata": str(self.base / "metadata"),
            "localhost:9092": f"127.0.0.1:{self.ports[1]}",
            "localhost:9093": f"127.0.0.1:{self.ports[0]}",
            ".venv/bin/kjbod": f"{sys.prefix}/bin/kjbod",
        }

    def type(self, command: Command) -> subprocess.CompletedProcess[str]:
        """Run a line of a page where nothing can be written."""
        return run(command, self.names, before=READ_ONLY, prefix=["unshare", "--mount"], arguments=[str(self.base)])

    def changes(self, processes: Processes, name: str) -> int:
        """Records of the metadata log so far, but for those that say that time goes by."""
        dump = processes.kjbod("metadata", "dump", "-s", str(self.base / "metadata"), name=name)
        assert dump.wait() == 0
        return sum('"NO_OP_RECORD"' not in line for line in dump.stdout().splitlines())


@pytest.mark.usefixtures("as_root", "kafka_kit")
def test_a_kafka_cluster_is_looked_at_and_nothing_is_written(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    site = Site(tmp_path, processes, kafka_kit, "4.3")
    tried = site.type(Command("here", 1, f"touch {tmp_path}/d1/mark /var/tmp/mark"))
    assert tried.stderr.count("Read-only file system") == 2
    before = site.changes(processes, "before")
    said = {}
    for command in shown("README.md", "i-have-a-kafka-cluster"):
        if "scripts/setup" in command.text:
            continue  # which makes .venv
        done = site.type(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert "Read-only file system" not in done.stderr, command
        said[command.text.split("#")[0].strip()] = done.stdout
    text = "\n".join(said.values())
    assert f"Found log directories:\n  {tmp_path}/d1\n  {tmp_path}/d2\n" in text
    assert STRAY in text
    assert "orders" in text
    assert "Feature: metadata.version" in text
    assert f"127.0.0.1:{site.ports[1]}" in text or f"port={site.ports[1]}" in text
    assert site.changes(processes, "after") == before
    assert all(server.running for server in site.running)


@pytest.mark.usefixtures("as_root", "kafka_kit")
def test_the_metadata_and_features_of_a_kafka_cluster_are_shown(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    site = Site(tmp_path, processes, kafka_kit, "4.0")
    before = site.changes(processes, "before")
    for command in shown("kjbod/cli/README.md"):
        done = site.type(command)
        refused = "features downgrade" in command.text  # it names what would be lost, and so Kafka refuses
        assert done.returncode == int(refused), f"{command}: {done.stderr}"
        assert ("would be lost: " in done.stdout) is refused, command
    assert site.changes(processes, "after") == before
