"""The processes that are measured: a real agent on real disks, and a real Kafka broker beside it."""

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from kjbod.clock import system_random
from kjbod.faults.disks import RealDisk
from kjbod.ids import random_uuid
from scripts.bench.agent_cost_usage import Requests, Usage, descendants, requests_of, usage_of
from scripts.bench.detection_agents import admin, format_node, topic_on
from scripts.rig.kafka import KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port
from scripts.rig.rig_error import RigError

CONTROLLER_ID: Final = 3000
BROKER_ID: Final = 1
PARTITIONS_PER_TOPIC: Final = 500
_START_TIMEOUT_S = 60.0
_CREATE_TIMEOUT_S = 600.0
_MIB = 1 << 20
_ROOT = Path(__file__).parents[2]
_SOURCES = (_ROOT, _ROOT / "agent", _ROOT / "controller_stub")
_REQUIREMENTS = _ROOT / "scripts" / "requirements" / "base.txt"
_BYTES_PER_REPLICA = 16 << 10
"""A directory, a file, two inodes, and room to spare."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything at one moment.

    Attributes:
        at_s: monotonic.
        processes: by pid.
        disks: one for each log directory.
    """

    at_s: float
    processes: dict[int, Usage]
    disks: tuple[Requests, ...]


class Rig:
    """A controller and one broker. Use it in a ``with`` block; at its end everything is gone."""

    def __init__(self, work: Path, logs: Path) -> None:
        self.work = work
        self.port = free_port()
        self.cluster_id = str(random_uuid(system_random()))
        self._stack = ExitStack()
        self.processes = self._stack.enter_context(Processes(logs))
        self.disks: list[RealDisk] = []
        self.broker: ManagedProcess | None = None

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start_controller(self, kit: KafkaKit | None = None) -> None:
        """kjbod's, or with ``kit`` Kafka's."""
        config = self.work / "controller.properties"
        config.write_text(controller_properties(CONTROLLER_ID, self.port, self.work / "controller"))
        if kit is not None:
            kit.format(config, self.cluster_id, "--standalone")
            kit.start_server(self.processes, config, name="kafka-controller", timeout_s=_START_TIMEOUT_S)
            return
        format_node(config, self.cluster_id, "--standalone")
        controller = self.processes.kjbod("controller", "-c", str(config), name="controller")
        controller.wait_for_event("controller.started", _START_TIMEOUT_S)

    def start_agent(self, directories: int, replicas: int, probe_interval_ms: int) -> None:
        """On as many ext4 disks as directories; returns when it is unfenced."""
        size_bytes = 64 * _MIB + replicas // directories * _BYTES_PER_REPLICA
        for number in range(directories):
            mount_point = self.work / f"d{number + 1}"
            disk = RealDisk(mount_point, fstype="ext4", log_dir="kafka", size_bytes=size_bytes)
            self.disks.append(self._stack.enter_context(disk))
        config = self.work / "agent.properties"
        more = {"kjbod.state.dir": self.work / "state", "kjbod.probe.interval.ms": probe_interval_ms}
        config.write_text(
            broker_properties(BROKER_ID, free_port(), self.port, [disk.log_dir for disk in self.disks])
            + "".join(f"{key}={value}\n" for key, value in more.items())
        )
        format_node(config, self.cluster_id)
        self.broker = self.processes.start([*self._plain_kjbod(), "agent", "-c", str(config)], name="agent")
        self.broker.wait_for_event("agent.unfenced", _START_TIMEOUT_S)

    def _plain_kjbod(self) -> list[str]:
        """The ``kjbod`` command in an environment of what it requires and nothing else, as users have it.

        Some libraries import tools of developers (Hypothesis, Rich) when these are there: 12 MiB that no user has.
        """
        packages = self.work / "packages"
        packages.mkdir()
        for source in _runtime_files():
            (packages / source.name).symlink_to(source)
        paths = [*map(str, _SOURCES), str(packages)]
        program = f"import sys; sys.path[:0] = {paths!r}; from kjbod.cli.main import main; sys.exit(main())"
        return [sys.executable, "-I", "-S", "-c", program]

    def start_kafka(self, kit: KafkaKit, directories: int) -> None:
        """A real broker on plain directories; it is not asked for anything but to be there."""
        config = self.work / "kafka.properties"
        paths = [self.work / f"k{number + 1}" for number in range(directories)]
        config.write_text(broker_properties(BROKER_ID, free_port(), self.port, paths))
        kit.format(config, self.cluster_id)
        self.broker = kit.start_server(self.processes, config, name="kafka", timeout_s=_START_TIMEOUT_S)

    def create_replicas(self, replicas: int) -> None:
        """Topics with that many partitions together, each with its one replica on the broker."""
        for number, first in enumerate(range(0, replicas, PARTITIONS_PER_TOPIC)):
            admin(self.port, topic_on(f"topic{number}", min(PARTITIONS_PER_TOPIC, replicas - first), [BROKER_ID]))

    def wait_until_assigned(self, replicas: int) -> None:
        """Until the controller has acknowledged the directory of each replica."""
        assert self.broker is not None
        end = time.monotonic() + _CREATE_TIMEOUT_S
        while (done := sum(line["count"] for line in self.broker.events("assignments.acknowledged"))) < replicas:
            if not self.broker.running:
                raise RigError(f"the agent ended with {self.broker.exit_code}:\n{self.broker.tail()}")
            if time.monotonic() > end:
                raise RigError(f"{done} of {replicas} replicas were assigned in {_CREATE_TIMEOUT_S:g} s")
            time.sleep(0.2)

    def wait_until_kafka_has(self, replicas: int, directories: int) -> None:
        """Until a real broker has made the directory of each replica."""
        end = time.monotonic() + _CREATE_TIMEOUT_S
        paths = [self.work / f"k{number + 1}" for number in range(directories)]
        while (done := sum(1 for path in paths for _ in path.glob("topic*-*"))) < replicas:
            if time.monotonic() > end:
                raise RigError(f"{done} of {replicas} replicas were made in {_CREATE_TIMEOUT_S:g} s")
            time.sleep(0.2)

    def snapshot(self) -> Snapshot:
        """Of the broker's processes and of the disks."""
        assert self.broker is not None
        pids = descendants(self.broker.pid)
        used = {pid: usage_of(pid, _name(pid, pid == self.broker.pid)) for pid in pids}
        return Snapshot(time.monotonic(), used, tuple(requests_of(disk.device) for disk in self.disks))


def _runtime_files() -> Iterator[Path]:
    """Modules, packages and metadata of kjbod's own requirements, where they are installed."""
    names = re.findall(r"^([A-Za-z0-9][A-Za-z0-9_.-]*)==", _REQUIREMENTS.read_text(), re.MULTILINE)
    found: dict[str, Path] = {}
    for name in ("kjbod", *names):
        try:
            files = distribution(name).files or ()
        except PackageNotFoundError:
            raise RigError(f"{name} of {_REQUIREMENTS}: not installed: run scripts/setup") from None
        for file in files:
            top = file.parts[0]
            if top not in (os.pardir, "__pycache__") and not top.endswith(".pth"):
                found[top] = Path(str(file.locate())).parents[len(file.parts) - 1] / top
    return iter(found.values())


def _name(pid: int, main: bool) -> str:
    if main:
        return "daemon"
    title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    return title.split(" ")[0].removeprefix("kjbod-")


def names(snapshot: Snapshot) -> Sequence[str]:
    """The kinds of processes, in the order in which they were found."""
    return list(dict.fromkeys(usage.name for usage in snapshot.processes.values()))
