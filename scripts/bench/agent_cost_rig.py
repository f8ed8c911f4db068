"""The processes that are measured: an agent on real disks, a guard beside a real Kafka broker, and such a broker."""

import asyncio
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, Self

from kjbod.faults.disks import RealDisk
from kjbod_guard import helper
from scripts.bench.agent_cost_usage import Requests, Usage, descendants, requests_of, usage_of
from scripts.bench.controller_client import SimulatedBroker, Wire, directories_of
from scripts.rig.cluster import NOTHING, Cluster, Properties, wait_until_guarding, wait_until_serving
from scripts.rig.kafka import HEAP_MIB, KafkaKit, render_properties
from scripts.rig.processes import ManagedProcess, Processes
from scripts.rig.rig_error import RigError

BROKER_ID: Final = 1
ELSEWHERE_ID: Final = 2
"""A broker without disks, for what the rest of the cluster has."""
PARTITIONS_PER_TOPIC: Final = 500
_START_TIMEOUT_S = 60.0
_CREATE_TIMEOUT_S = 600.0
_MIB = 1 << 20
_ROOT = Path(__file__).parents[2]
_SOURCES = (_ROOT, _ROOT / "agent", _ROOT / "controller_stub")
_REQUIREMENTS = _ROOT / "scripts" / "requirements" / "base.txt"
_BYTES_PER_REPLICA = 16 << 10
"""A directory, a file, two inodes, and room to spare."""
_BYTES_PER_KAFKA_REPLICA = 96 << 10
"""Five files of which two are sparse, and an inode each 16 KiB."""
_GUARDED_HEAP_MIB = 2048
"""Of a broker that knows of every partition of a large cluster."""


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


class Rig(Cluster):
    """A controller and one broker. Use it in a ``with`` block; at its end everything is gone.

    Args:
        base: for files.
        logs: for what processes say.
        kafka: whose controller it is; None: kjbod's.
        properties: further lines of the controller's ``server.properties``.
        heap_mib: of Kafka's controller.
    """

    def __init__(
        self,
        base: Path,
        logs: Path,
        kafka: KafkaKit | None = None,
        properties: Properties = NOTHING,
        heap_mib: int = HEAP_MIB,
    ) -> None:
        self._stack = ExitStack()
        processes = self._stack.enter_context(Processes(logs))
        super().__init__(base, processes, kafka=kafka, properties=properties, heap_mib=heap_mib)
        self.disks: list[RealDisk] = []
        self.broker: ManagedProcess | None = None
        self.measured: ManagedProcess | None = None
        """The one that is, with all its children."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self) -> None:
        """The controller."""
        self.format_controller(by_kafka=self.kafka is not None)
        self.start_controller(_START_TIMEOUT_S)

    def run_agent(self, directories: int, replicas: int, probe_interval_ms: int) -> None:
        """Start an agent on as many ext4 disks as directories; returns when it is unfenced."""
        log_dirs = self.make_disks(directories, 64 * _MIB + replicas // directories * _BYTES_PER_REPLICA)
        own = {"kjbod.state.dir": self.base / "state", "kjbod.probe.interval.ms": probe_interval_ms}
        config = self.configure_broker(BROKER_ID, log_dirs, own)
        self.format_broker(config)
        self.broker = self.measured = self.start_agent(config, name="agent", kjbod=self.plain_kjbod())
        self.broker.wait_for_event("agent.unfenced", _START_TIMEOUT_S)

    def run_guarded(self, kit: KafkaKit, directories: int, replicas: int, cluster_replicas: int) -> None:
        """Start a real broker with so many replicas on as many ext4 disks as directories, in a cluster with so many,
        and a guard beside it that acts; returns when it knows all that it needs."""
        asyncio.run(self._fill_elsewhere(cluster_replicas - replicas))
        log_dirs = self.make_disks(directories, 64 * _MIB + replicas // directories * _BYTES_PER_KAFKA_REPLICA)
        config = self.configure_broker(BROKER_ID, log_dirs)
        self.format_broker(config)
        self.broker = self.launch_broker(kit, config, name="kafka", heap_mib=_GUARDED_HEAP_MIB)
        wait_until_serving(self.broker, _CREATE_TIMEOUT_S)
        self.create_replicas(replicas)
        self._wait_until_made(log_dirs, replicas)
        own = self.base / "guard.properties"
        keys = {"state.dir": self.base / "state", "host": "bench", "guard.mode": "act"}
        own.write_text(render_properties({f"kjbod.{key}": value for key, value in keys.items()}))
        command = [*self.plain_kjbod(), "guard", "run", "-c", str(config), "--guard-config", str(own)]
        self.measured = self.processes.start(command, name="guard")
        wait_until_guarding(self.measured, _CREATE_TIMEOUT_S)

    async def _fill_elsewhere(self, replicas: int) -> None:
        """Partitions with their one replica on a broker that only the controller takes for one."""
        wire = await Wire.open(self.port)
        try:
            broker = SimulatedBroker(ELSEWHERE_ID, wire, directories_of(ELSEWHERE_ID, 12))
            await broker.join(self.cluster_id)
            for number, first in enumerate(range(0, replicas, PARTITIONS_PER_TOPIC)):
                count = min(PARTITIONS_PER_TOPIC, replicas - first)
                await asyncio.to_thread(self.create_topic, f"elsewhere{number}", count, brokers=[ELSEWHERE_ID])
                await broker.beat(broker.epoch)
        finally:
            wire.close()

    def make_disks(self, directories: int, size_bytes: int) -> list[Path]:
        """As many ext4 disks; the log directory of each."""
        for number in range(directories):
            mount_point = self.base / f"d{number + 1}"
            disk = RealDisk(mount_point, fstype="ext4", log_dir="kafka", size_bytes=size_bytes)
            self.disks.append(self._stack.enter_context(disk))
        return [disk.log_dir for disk in self.disks]

    def plain_kjbod(self) -> list[str]:
        """The ``kjbod`` command in an environment of what it requires and nothing else, as users have it.

        Some libraries import tools of developers (Hypothesis, Rich) when these are there: 12 MiB that no user has.
        """
        packages = self.base / "packages"
        packages.mkdir()
        for source in _runtime_files():
            (packages / source.name).symlink_to(source)
        paths = [*map(str, _SOURCES), str(packages)]
        program = f"import sys; sys.path[:0] = {paths!r}; from kjbod.cli.main import main; sys.exit(main())"
        return [sys.executable, "-I", "-S", "-c", program]

    def run_kafka(self, kit: KafkaKit, directories: int) -> None:
        """Start a real broker on plain directories; it is not asked for anything but to be there."""
        paths = [self.base / f"k{number + 1}" for number in range(directories)]
        config = self.configure_broker(BROKER_ID, paths)
        kit.format(config, self.cluster_id)
        self.broker = self.measured = kit.start_server(self.processes, config, name="kafka", timeout_s=_START_TIMEOUT_S)

    def create_replicas(self, replicas: int) -> None:
        """Topics with that many partitions together, each with its one replica on the broker."""
        for number, first in enumerate(range(0, replicas, PARTITIONS_PER_TOPIC)):
            self.create_topic(f"topic{number}", min(PARTITIONS_PER_TOPIC, replicas - first), brokers=[BROKER_ID])

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
        self._wait_until_made([self.base / f"k{number + 1}" for number in range(directories)], replicas)

    @staticmethod
    def _wait_until_made(paths: Sequence[Path], replicas: int) -> None:
        end = time.monotonic() + _CREATE_TIMEOUT_S
        while (done := sum(1 for path in paths for _ in path.glob("topic*-*"))) < replicas:
            if time.monotonic() > end:
                raise RigError(f"{done} of {replicas} replicas were made in {_CREATE_TIMEOUT_S:g} s")
            time.sleep(0.2)

    def snapshot(self) -> Snapshot:
        """Of the processes that are measured, and of the disks."""
        assert self.measured is not None
        pids = descendants(self.measured.pid)
        used = {}
        for pid in pids:
            with suppress(FileNotFoundError, ProcessLookupError):  # a child for one question: it has ended
                used[pid] = usage_of(pid, _name(pid, pid == self.measured.pid))
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
    if title.endswith(str(helper.__file__)):
        return "helper"
    return title.split(" ")[0].removeprefix("kjbod-")


def names(snapshot: Snapshot) -> Sequence[str]:
    """The kinds of processes, in the order in which they were found."""
    return list(dict.fromkeys(usage.name for usage in snapshot.processes.values()))
