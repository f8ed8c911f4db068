"""A cluster of real agents on plain directories, for tests: the stub or Apache Kafka as the controller."""

import asyncio
import json
import subprocess
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from kjbod.clock import SystemClock
from kjbod.wire.client import Connection
from kjbod.wire.messages import CreateTopicsRequest, CreateTopicsRequestTopic, DeleteTopicsRequest
from scripts.rig.kafka import KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port, kjbod_command, wait_until

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
CONTROLLER_ID = 3000
T = TypeVar("T")


def _await(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on a loop of its own; the test's loop, if any, is left alone."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(work)))
    thread.start()
    thread.join()
    return results[0]


class Cluster:
    """Starts a controller and agents with three directories each below ``base``."""

    def __init__(self, base: Path, processes: Processes, kafka: KafkaKit | None = None) -> None:
        self.base = base
        self.processes = processes
        self.port = free_port()
        self._kafka = kafka
        self.controller_config = base / "controller.properties"
        self.controller_config.write_text(controller_properties(CONTROLLER_ID, self.port, base / "controller"))
        self.format_controller()

    def format_controller(self) -> None:
        """Make the controller's directory; its path must not be formatted."""
        self._kjbod("format", "-t", CLUSTER_ID, "-c", str(self.controller_config), "--standalone")

    def _kjbod(self, *arguments: str) -> None:
        result = subprocess.run([kjbod_command(), *arguments], capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr

    def start_controller(self) -> ManagedProcess:
        if self._kafka is not None:
            return self._kafka.start_server(self.processes, self.controller_config, name="controller")
        controller = self.processes.kjbod("controller", "-c", str(self.controller_config), name="controller")
        controller.wait_for_event("controller.started")
        return controller

    def directory(self, node: int, number: int) -> Path:
        return self.base / f"b{node}" / f"d{number}"

    def configure(self, node: int, directories: int = 3, cluster_id: str = CLUSTER_ID, **settings: object) -> Path:
        """Write and format one agent's configuration; ``settings`` with underscores for dots."""
        home = self.base / f"b{node}"
        home.mkdir()
        paths = [self.directory(node, number) for number in range(1, directories + 1)]
        # Whatever else lies on this machine's disk.
        own = {"kjbod_state_dir": home / "state", "kjbod_host": f"host{node}", "kjbod_placement_full_percent": 100}
        settings = {**own, **settings}
        lines = [f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()]
        config = home / "server.properties"
        config.write_text(broker_properties(node, free_port(), self.port, paths) + "".join(lines))
        self._kjbod("format", "-t", cluster_id, "-c", str(config))
        return config

    def format_again(self, config: Path) -> None:
        """Format the directories of a configuration that was changed."""
        self._kjbod("format", "-t", CLUSTER_ID, "-c", str(config), "--ignore-formatted")

    def start_agent(self, config: Path) -> ManagedProcess:
        return self.processes.kjbod("agent", "-c", str(config), name=f"agent-{config.parent.name}")

    def create_topic(self, name: str, partitions: int, replication_factor: int) -> None:
        topic = CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=replication_factor)

        async def create() -> int:
            async with await Connection.open("127.0.0.1", self.port, client_id="t", clock=SystemClock()) as connection:
                answer = await connection.request(
                    CreateTopicsRequest(topics=(topic,), timeout_ms=10_000), timeout_ms=10_000
                )
                return answer.topics[0].error_code

        assert _await(create()) == 0

    def delete_topic(self, name: str) -> None:
        async def delete() -> int:
            async with await Connection.open("127.0.0.1", self.port, client_id="t", clock=SystemClock()) as connection:
                request = DeleteTopicsRequest(topic_names=(name,), timeout_ms=10_000)
                answer = await connection.request(request, timeout_ms=10_000, version=5)
                return answer.responses[0].error_code

        assert _await(delete()) == 0

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
