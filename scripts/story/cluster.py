"""The processes of the story: format, controller, agents. Everything through the commands that a user has."""

import signal
import subprocess

from kjbod.ids import Uuid
from scripts.rig import cluster
from scripts.rig.cluster import directory_id
from scripts.rig.kafka import RELEASE
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command
from scripts.story.disks import Disk
from scripts.story.layout import BROKERS, Layout, broker_properties
from scripts.story.narrate import StoryError

_FORMAT_TIMEOUT_S = 60


class Cluster(cluster.Cluster):
    """A controller, three agents, nine disks."""

    def __init__(self, layout: Layout, disks: dict[tuple[int, int], Disk], processes: Processes) -> None:
        super().__init__(layout.work, processes)
        self.layout = layout
        self.disks = disks
        self.agents: dict[int, ManagedProcess] = {}
        self.directories: dict[tuple[int, int], Uuid] = {}
        """``directory.id`` of each disk, once it is formatted."""
        for broker in BROKERS:
            log_dirs = [disk.log_dir for (of, _), disk in disks.items() if of == broker]
            own = broker_properties(layout, broker)
            self.configure_broker(broker, log_dirs, own, config=layout.config(f"broker{broker}"))

    def format(self) -> dict[str, int]:
        """``kjbod format`` for the controller and every broker, side by side; how many directories each formatted."""
        nodes = ["controller", *(f"broker{broker}" for broker in BROKERS)]
        own = ("--standalone", "--release-version", RELEASE)  # Kafka's controller may be started on it
        commands = [self._format_command(node, *(own if node == "controller" else ())) for node in nodes]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
        ]
        formatted: dict[str, int] = {}
        for node, command, process in zip(nodes, commands, running, strict=True):
            out, err = process.communicate(timeout=_FORMAT_TIMEOUT_S)
            if process.returncode:
                raise StoryError(f"{' '.join(command)}: exit code {process.returncode}: {err.strip()}")
            formatted[node] = sum(line.startswith("Formatting") for line in out.splitlines())
        self.directories = {key: directory_id(disk.log_dir) for key, disk in self.disks.items()}
        return formatted

    def _format_command(self, node: str, *options: str) -> list[str]:
        return [kjbod_command(), "format", "-t", self.cluster_id, "-c", str(self.layout.config(node)), *options]

    def start_agents(self) -> None:
        """An agent for every broker; returns at once."""
        for broker in BROKERS:
            name = f"broker{broker}"
            self.agents[broker] = self.start_agent(self.layout.config(name), name=name)

    def pause_controller(self) -> None:
        """SIGSTOP: its kernel still accepts connections and acknowledges what is sent; it never answers."""
        assert self.controller is not None
        self.controller.signal(signal.SIGSTOP)

    def resume_controller(self) -> None:
        """SIGCONT."""
        assert self.controller is not None
        self.controller.signal(signal.SIGCONT)
