"""The operator's page, typed from its top to its end: an agent on real disks, one of which dies and is replaced."""

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from kjbod.config import load_config
from kjbod.faults.disks import FaultMode, RealDisk
from scripts.rig.cluster import Cluster
from scripts.rig.kafka import LOG_DIRS, REASSIGN_PARTITIONS, TOPICS, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.pages.markdown import shown
from tests.pages.typed import run

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
TOPIC_OF_THE_STRAYS = "AAAAAAAAAAAAAAAAAAAAZQ"
STRAYS = ("old-3.af3eecbf9a7485cf782e8e1e4b0aad83-stray", "old-4.af3eecbf9a7485cf782e8e1e4b0aad84-stray")
TOOLS = {
    "kafka-log-dirs.sh": LOG_DIRS,
    "kafka-reassign-partitions.sh": REASSIGN_PARTITIONS,
    "kafka-topics.sh": TOPICS,
}
PARTITIONS = 3
REFUSED = "strays restore"
"""The one line that comes to nothing: the metadata do not know the topic of this stray."""


class Host:
    """A broker's host with three disks, its agent, and Kafka's tools."""

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit, make: Callable[..., RealDisk]) -> None:
        self.base = base
        self._make = make
        self.paths = [base / "mnt" / f"d{number}" for number in (1, 2, 3)]
        self.disks = {path: make(path) for path in self.paths}
        cluster = Cluster(base, processes, cluster_id=CLUSTER_ID)
        cluster.format_controller()
        cluster.start_controller()
        own = {"kjbod.state.dir": base / "state", "kjbod.placement.full.percent": 100}
        self.config = cluster.configure_broker(1, self.paths, own)
        cluster.format_broker(self.config)
        for stray in STRAYS:
            left = self.paths[1] / stray
            left.mkdir()
            (left / "partition.metadata").write_text(f"version: 0\ntopic_id: {TOPIC_OF_THE_STRAYS}")
        self.agent = self._start(cluster)
        cluster.create_topic("orders", PARTITIONS)
        wait_until(lambda: self._assigned() >= PARTITIONS, 30, "assignments")
        self.programs = base / "bin"
        self.programs.mkdir()
        for name, tool in TOOLS.items():
            (self.programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(kit.command(tool))} "$@"\n')
            (self.programs / name).chmod(0o755)
        self._write_plan()

    def _start(self, cluster: Cluster) -> ManagedProcess:
        agent = cluster.start_agent(self.config)
        agent.wait_for_event("agent.unfenced", 60)
        return agent

    def _assigned(self) -> int:
        return sum(event["count"] for event in self.agent.events("assignments.acknowledged"))

    def where(self, replica: str) -> Path:
        """The directory with a replica."""
        return next(path for path in self.paths if (path / replica).is_dir())

    def _write_plan(self) -> None:
        """A plan that moves a replica to another directory."""
        there = next(path for path in self.paths if path != self.where("orders-1"))
        entry = {"topic": "orders", "partition": 1, "replicas": [1], "log_dirs": [str(there)]}
        (self.base / "plan.json").write_text(json.dumps({"version": 1, "partitions": [entry]}))

    def names(self) -> Mapping[str, str]:
        """What is another one here than on the page, where ``orders-0`` does not lie in /mnt/d2 when it is moved."""
        first = self.where("orders-0")
        others = [path for path in self.paths if path != first]
        return {
            "server.properties": str(self.config),
            "/mnt/d1": str(first),
            "/mnt/d2": str(others[0]),
            "/mnt/d3": str(others[1]),
            "host1:9092": f"127.0.0.1:{load_config(self.config).listeners[0].port}",
            "journalctl -u kjbod-agent -o cat": f"cat {self.agent.stderr_path}",
            "NAME": STRAYS[1],
        }

    def kill(self, path: Path) -> None:
        """The disk answers only errors, and the controller has recorded that."""
        seen = len(self.agent.events())
        self.disks[path].set(FaultMode.EIO)
        self.agent.wait_for_event("directory.offline.acknowledged", after=seen)

    def replace(self, path: Path) -> None:
        """Mount an empty disk where the dead one was."""
        self.disks[path] = self._make(path)


@pytest.mark.usefixtures("as_root", "kafka_kit")
def test_an_operators_page_can_be_typed_from_its_top_to_its_end(
    tmp_path: Path, processes: Processes, kafka_kit: KafkaKit, real_disk: Callable[..., RealDisk]
) -> None:
    host = Host(tmp_path, processes, kafka_kit, real_disk)
    names = host.names()
    dead = Path(names["/mnt/d3"])
    said = {}
    for command in shown("agent/README.md"):
        if "umount" in command.text:
            host.kill(dead)
        done = run(command, names, cwd=tmp_path, programs=host.programs, said="y\n")
        refused = REFUSED in command.text
        assert done.returncode == int(refused), f"{command}: {done.stdout}{done.stderr}"
        assert not refused or len(done.stderr.splitlines()) == 1, done.stderr
        said[command.text.partition("  #")[0].strip()] = done.stdout
        if "umount" in command.text:
            host.replace(dead)
    text = "\n".join(said.values())
    assert "OK: running, unfenced" in text
    assert "orders-0: moved, it is in" in text and host.where("orders-0") == Path(names["/mnt/d2"])
    assert all(stray in text for stray in STRAYS) and not (host.paths[1] / STRAYS[0]).exists()
    assert f"{dead} is online with the directory.id" in text and "it takes the place of" in text
    assert "Successfully started moving log directory" in text and "Topic: orders" in text
    assert host.agent.running
