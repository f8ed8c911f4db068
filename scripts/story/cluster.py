"""The processes of the story: format, controller, agents, topic. Everything through the commands that a user has."""

import asyncio
import signal
import subprocess
from collections.abc import Sequence

from kjbod.clock import SystemClock, system_random
from kjbod.ids import Uuid, random_uuid
from kjbod.meta_properties import parse_meta_properties
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.messages import CreateTopicsRequest, CreateTopicsRequestTopic
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command
from scripts.story.disks import Disk
from scripts.story.layout import (
    BROKERS,
    PARTITIONS,
    REPLICATION_FACTOR,
    TOPIC,
    Layout,
    broker_properties,
    controller_properties,
)
from scripts.story.narrate import StoryError

_FORMAT_TIMEOUT_S = 60
_START_TIMEOUT_S = 60


class Cluster:
    """One controller, three agents, nine disks."""

    def __init__(self, layout: Layout, disks: dict[tuple[int, int], Disk], processes: Processes) -> None:
        self.layout = layout
        self.disks = disks
        self.processes = processes
        self.cluster_id = str(random_uuid(system_random()))
        self.agents: dict[int, ManagedProcess] = {}
        self.controller: ManagedProcess | None = None
        self.directories: dict[tuple[int, int], Uuid] = {}
        """``directory.id`` of each disk, once it is formatted."""

    def log_dirs(self, broker: int) -> list[str]:
        """The paths of a broker's log directories, in the order of ``log.dirs``."""
        return [str(disk.log_dir) for (of, _), disk in self.disks.items() if of == broker]

    def write_configuration(self) -> None:
        """``server.properties`` of every node."""
        self.layout.logs.mkdir(parents=True, exist_ok=True)
        self.layout.config("controller").write_text(controller_properties(self.layout))
        for broker in BROKERS:
            dirs = [disk.log_dir for (of, _), disk in self.disks.items() if of == broker]
            self.layout.config(f"broker{broker}").write_text(broker_properties(self.layout, broker, dirs))

    def format(self) -> dict[str, int]:
        """``kjbod format`` for the controller and every broker, side by side; how many directories each formatted."""
        nodes = ["controller", *(f"broker{broker}" for broker in BROKERS)]
        commands = [self._format_command(node, *(["--standalone"] if node == "controller" else [])) for node in nodes]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
        ]
        formatted: dict[str, int] = {}
        for node, command, process in zip(nodes, commands, running, strict=True):
            out, err = process.communicate(timeout=_FORMAT_TIMEOUT_S)
            if process.returncode:
                raise StoryError(f"{' '.join(command)}: exit code {process.returncode}: {err.strip()}")
            formatted[node] = sum(line.startswith("Formatting") for line in out.splitlines())
        for key, disk in self.disks.items():
            path = disk.log_dir / "meta.properties"
            directory = parse_meta_properties(path.read_bytes(), str(path)).directory_id
            if directory is None:
                raise StoryError(f"{path}: kjbod format wrote no directory.id")
            self.directories[key] = directory
        return formatted

    def _format_command(self, node: str, *options: str) -> list[str]:
        return [kjbod_command(), "format", "-t", self.cluster_id, "-c", str(self.layout.config(node)), *options]

    def start_controller(self, kafka: KafkaKit | None) -> None:
        """kjbod's controller, or with ``kafka`` a real one, on the same file; returns when it accepts connections."""
        config = self.layout.config("controller")
        if kafka is not None:
            self.controller = kafka.start_server(self.processes, config, name="controller")
            return
        self.controller = self.processes.kjbod("controller", "-c", str(config), name="controller")
        self.controller.wait_for_event("controller.started", _START_TIMEOUT_S)

    def start_agents(self) -> None:
        """An agent for every broker; returns at once."""
        for broker in BROKERS:
            config = str(self.layout.config(f"broker{broker}"))
            self.agents[broker] = self.processes.kjbod("agent", "-c", config, name=f"broker{broker}")

    def create_topic(self) -> None:
        """The topic, by CreateTopics to the controller, as an admin client with ``--bootstrap-controller`` would."""

        async def create() -> Sequence[int]:
            address = ("127.0.0.1", self.layout.controller_port)
            connection = await Connection.open(*address, client_id="kjbod-demo", clock=SystemClock())
            try:
                topic = CreateTopicsRequestTopic(
                    name=TOPIC, num_partitions=PARTITIONS, replication_factor=REPLICATION_FACTOR
                )
                answer = await connection.request(
                    CreateTopicsRequest(topics=(topic,), timeout_ms=10_000), timeout_ms=15_000
                )
                return [created.error_code for created in answer.topics]
            finally:
                await connection.close()

        try:
            codes = asyncio.run(create())
        except Disconnected as error:
            raise StoryError(f"topic {TOPIC} was not created: {error}") from error
        if list(codes) != [0]:
            raise StoryError(f"topic {TOPIC} was not created: error codes {codes}")

    def pause_controller(self) -> None:
        """SIGSTOP: its kernel still accepts connections and acknowledges what is sent; it never answers."""
        assert self.controller is not None
        self.controller.signal(signal.SIGSTOP)

    def resume_controller(self) -> None:
        """SIGCONT."""
        assert self.controller is not None
        self.controller.signal(signal.SIGCONT)

    def stop(self) -> None:
        """Controlled shutdown of the agents that run, then of the controller."""
        agents = [agent for agent in self.agents.values() if agent.running]
        for agent in agents:
            agent.signal(signal.SIGTERM)
        for agent in agents:
            agent.wait(20)
        if self.controller is not None and self.controller.running:
            self.controller.stop(20)
