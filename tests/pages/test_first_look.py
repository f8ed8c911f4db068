"""What the first page lets the owner of a Kafka cluster type: it works beside real brokers, and can change nothing."""

import subprocess
import sys
from collections.abc import Mapping

import pytest

from scripts.rig.processes import Processes
from tests.kafka_pair import KafkaPair
from tests.pages.markdown import Command, shown
from tests.pages.typed import run

READ_ONLY = """
for place in "$@"; do mount --bind "$place" "$place"; mount -o remount,bind,ro "$place"; done
mount -o remount,bind,ro /
"""
"""What may be written in the namespace of a command: nothing below the root, nor below the places that are named."""


class Site:
    """A controller and a broker of Apache Kafka with a topic and a stray, as somebody has them, and what commands see.

    Two tests look at the same one, which neither can change.
    """

    def __init__(self, pair: KafkaPair) -> None:
        self.base = pair.base
        self.ports = pair.broker_port, pair.controller_port
        self.pair = pair

    @property
    def names(self) -> Mapping[str, str]:
        """What is another one here than on a page."""
        broker, controller = self.ports
        return {
            "/etc/kafka/server.properties": str(self.pair.broker_config),
            "server.properties": str(self.pair.broker_config),
            "/var/lib/kafka/metadata": str(self.pair.metadata_dir),
            "localhost:9092": f"127.0.0.1:{broker}",
            "localhost:9093": f"127.0.0.1:{controller}",
            ".venv/bin/kjbod": f"{sys.prefix}/bin/kjbod",
        }

    def type(self, command: Command) -> subprocess.CompletedProcess[str]:
        """Run a line of a page where nothing can be written."""
        return run(command, self.names, before=READ_ONLY, prefix=["unshare", "--mount"], arguments=[str(self.base)])

    def changes(self, processes: Processes, name: str) -> int:
        """Records of the metadata log so far, but for those that say that time goes by."""
        dump = processes.kjbod("metadata", "dump", "-s", str(self.pair.metadata_dir), name=name)
        assert dump.wait() == 0
        return sum('"NO_OP_RECORD"' not in line for line in dump.stdout().splitlines())


@pytest.fixture
def site(kafka_pair: KafkaPair) -> Site:
    return Site(kafka_pair)


@pytest.mark.usefixtures("as_root", "kafka_kit")
def test_a_kafka_cluster_is_looked_at_and_nothing_is_written(site: Site, processes: Processes) -> None:
    tried = site.type(Command("here", 1, f"touch {site.base}/d1/mark /var/tmp/mark"))
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
    assert f"Found log directories:\n  {site.base}/d1\n  {site.base}/d2\n" in text
    assert site.pair.stray in text
    assert site.pair.topic in text
    assert "Feature: metadata.version" in text
    assert f"127.0.0.1:{site.ports[0]}" in text or f"port={site.ports[0]}" in text
    assert site.changes(processes, "after") == before
    assert site.pair.running


@pytest.mark.usefixtures("as_root", "kafka_kit")
def test_the_metadata_and_features_of_a_kafka_cluster_are_shown(site: Site, processes: Processes) -> None:
    before = site.changes(processes, "before")
    for command in shown("kjbod/cli/README.md"):
        done = site.type(command)
        loses = "features downgrade" in command.text  # it names what would be lost, and so Kafka refuses
        alive = "cluster unregister" in command.text
        assert done.returncode == int(loses or alive), f"{command}: {done.stderr}"
        assert ("would be lost: " in done.stdout) is loses, command
        assert ("is alive: stop it first" in done.stderr) is alive, command
    assert site.changes(processes, "after") == before
