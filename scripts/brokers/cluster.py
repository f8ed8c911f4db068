"""A cluster of unmodified Apache Kafka brokers, several log directories each, on one controller of either kind."""

import contextlib
import functools
import random
import signal
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from confluent_kafka.admin import AdminClient, PartitionMetadata

from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.ids import random_uuid
from scripts.rig.kafka import SERVER, KafkaKit, broker_properties, controller_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until

Kind: TypeAlias = Literal["kjbod", "kafka"]
Place: TypeAlias = tuple[int, int]
"""Broker id and number of a log directory, both from 1."""

CONTROLLER_ID: Final = 3000
STOPPED: Final = 143
"""How a JVM ends that was asked to by SIGTERM."""
_START_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 120.0
_ASK_TIMEOUT_S: Final = 10.0
_DISK_BYTES: Final = 512 << 20
_BROKER_HEAP_MIB: Final = 256
_CONTROLLER_HEAP_MIB: Final = 192
_SMALL_BROKER: Final = {
    # A failed directory is noticed when its checkpoint is written, by default each 5 s.
    "replica.high.watermark.checkpoint.interval.ms": "500",
    "transaction.state.log.num.partitions": "5",
    "share.coordinator.state.topic.num.partitions": "3",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "num.io.threads": "4",
    "num.network.threads": "2",
}


class RealCluster:
    """Started by ``start_controller`` and ``start_broker``; everything is gone at the end of the ``with`` block.

    Args:
        work: for configurations and for log directories that are on no disk of their own.
        kit: Apache Kafka.
        kind: whose controller.
        brokers: how many; their ids count from 1.
        dirs: log directories of each.
        disks: which directories are each on a real disk that can be broken; root only.
        more: further lines of every ``server.properties``.
    """

    def __init__(
        self,
        work: Path,
        kit: KafkaKit,
        kind: Kind,
        *,
        brokers: int,
        dirs: int = 3,
        disks: Iterable[Place] = (),
        more: str = "",
    ) -> None:
        self.work = work
        self.kit = kit
        self.kind: Kind = kind
        self.ids = tuple(range(1, brokers + 1))
        self.cluster_id = str(random_uuid(random.SystemRandom()))
        self.controller_port = free_port()
        self.ports = {broker: free_port() for broker in self.ids}
        self.controller: ManagedProcess | None = None
        self.brokers: dict[int, ManagedProcess] = {}
        self.disks: dict[Place, RealDisk] = {}
        self._stack = ExitStack()
        self._more = more
        try:
            work.mkdir(parents=True, exist_ok=True)
            for broker, number in disks:
                disk = RealDisk(work / f"disk-{broker}-{number}", log_dir="kafka", size_bytes=_DISK_BYTES)
                self.disks[broker, number] = self._stack.enter_context(disk)
            self.processes = self._stack.enter_context(Processes(work / "logs"))
            self.log_dirs = {
                (broker, number): self._log_dir(broker, number) for broker in self.ids for number in range(1, dirs + 1)
            }
            self._configure()
        except BaseException:
            self._stack.close()
            raise

    def _log_dir(self, broker: int, number: int) -> Path:
        disk = self.disks.get((broker, number))
        return disk.log_dir if disk else self.work / f"broker-{broker}-d{number}"

    def _configure(self) -> None:
        """Write and format. Kafka's own tool formats brokers and Kafka's controller; ours formats ours."""
        config = self.config("controller")
        config.write_text(
            controller_properties(CONTROLLER_ID, self.controller_port, self.work / "metadata") + self._more
        )
        if self.kind == "kafka":
            self.kit.format(config, self.cluster_id, "--standalone")
        else:
            options = ("-t", self.cluster_id, "-c", str(config), "--standalone")
            assert self.processes.kjbod("format", *options, name="format").wait() == 0
        copies = min(3, len(self.ids))
        small = _SMALL_BROKER | {
            "offsets.topic.replication.factor": str(copies),
            "transaction.state.log.replication.factor": str(copies),
        }
        for broker in self.ids:
            dirs = [path for (owner, _), path in self.log_dirs.items() if owner == broker]
            text = broker_properties(broker, self.ports[broker], self.controller_port, dirs)
            path = self.config(f"broker-{broker}")
            path.write_text(text + "".join(f"{key}={value}\n" for key, value in small.items()) + self._more)
        paths = [str(self.config(f"broker-{broker}")) for broker in self.ids]
        formats = [
            self.processes.start(
                self.kit.command("kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", path), name="format"
            )
            for path in paths
        ]
        for process in formats:
            assert process.wait(_START_TIMEOUT_S) == 0, process.tail()

    def config(self, name: str) -> Path:
        """The ``server.properties`` of ``controller`` or ``broker-1``."""
        return self.work / f"{name}.properties"

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    # ---- the controller

    def start_controller(self) -> None:
        """And wait until it says that it is up."""
        config = str(self.config("controller"))
        if self.kind == "kafka":
            command = self.kit.command(SERVER, config, heap_mib=_CONTROLLER_HEAP_MIB)
            self.controller = self.processes.start(command, name="controller")
            self.controller.wait_for_text("Kafka Server started", _START_TIMEOUT_S)
        else:
            self.controller = self.processes.kjbod("controller", "-c", config, name="controller")
            self.controller.wait_for_event("controller.started", _START_TIMEOUT_S)

    def kill_controller(self) -> None:
        """SIGKILL."""
        assert self.controller is not None
        self.controller.kill()

    def stop_controller(self) -> None:
        """SIGTERM, and its clean end. Raises AssertionError when it ends otherwise."""
        assert self.controller is not None
        code = self.controller.stop(_STOP_TIMEOUT_S)
        assert code == (STOPPED if self.kind == "kafka" else 0), f"controller: exit code {code}"

    # ---- brokers

    def launch_broker(self, broker: int) -> None:
        """Start it; :meth:`wait_for_broker` waits until it is up."""
        command = self.kit.command(SERVER, str(self.config(f"broker-{broker}")), heap_mib=_BROKER_HEAP_MIB)
        self.brokers[broker] = self.processes.start(command, name=f"broker-{broker}")

    def wait_for_broker(self, broker: int) -> None:
        """Until it says that it is up: it is unfenced then."""
        self.brokers[broker].wait_for_text("Kafka Server started", _START_TIMEOUT_S)

    def start_broker(self, broker: int) -> None:
        """And wait until it is up."""
        self.launch_broker(broker)
        self.wait_for_broker(broker)

    def start(self) -> None:
        """Controller and all brokers."""
        self.start_controller()
        for broker in self.ids:
            self.launch_broker(broker)
        for broker in self.ids:
            self.wait_for_broker(broker)

    def kill_broker(self, broker: int) -> None:
        """SIGKILL."""
        self.brokers[broker].kill()

    def stop_broker(self, broker: int) -> None:
        """SIGTERM, and its clean end."""
        code = self.brokers[broker].stop(_STOP_TIMEOUT_S)
        assert code == STOPPED, f"broker {broker}: exit code {code}"

    # ---- disks

    def break_disk(self, place: Place) -> None:
        """Every request to the disk is answered EIO from now on."""
        self.disks[place].set(FaultMode.EIO)

    def mend_disk(self, place: Place) -> None:
        """The disk works again and is mounted anew, as after a change of the cable. Its broker must be down."""
        disk = self.disks[place]
        disk.set(FaultMode.OK)
        disk.unmount()
        wait_until(lambda: not _in_use(disk), 30, f"{disk.device} to be free")
        disk.mount()

    # ---- what clients see

    @functools.cached_property
    def admin(self) -> AdminClient:
        """librdkafka's, on all brokers."""
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})

    def partitions(self) -> dict[tuple[str, int], PartitionMetadata]:
        """As a broker tells them, by topic and partition; empty while none answers."""
        with contextlib.suppress(Exception):
            topics = self.admin.list_topics(timeout=_ASK_TIMEOUT_S).topics
            return {(name, number): part for name, topic in topics.items() for number, part in topic.partitions.items()}
        return {}

    def wait_until_in_sync(self, timeout_s: float = 180.0) -> None:
        """Until every partition has a leader, and all its replicas are in sync."""
        wait_until(lambda: not self.out_of_sync(), timeout_s, f"all to be in sync ({self.out_of_sync()})")

    def out_of_sync(self) -> list[str]:
        """Partitions that are not whole."""
        parts = self.partitions()
        if not parts:
            return ["no broker answers"]
        return [
            f"{topic}-{number}: leader {part.leader} replicas {part.replicas} isr {part.isrs}"
            for (topic, number), part in parts.items()
            if part.leader < 0 or sorted(part.isrs) != sorted(part.replicas)
        ]

    def wait_for(self, what: str, holds: Callable[[], object], timeout_s: float = 120.0) -> None:
        """Wait for a condition."""
        wait_until(holds, timeout_s, what)

    def stop(self) -> None:
        """Brokers, then the controller, each in good order."""
        for broker in self.ids:
            if broker in self.brokers and self.brokers[broker].running:
                self.brokers[broker].signal(signal.SIGTERM)
        for broker in self.ids:
            if broker in self.brokers:
                self.brokers[broker].wait(_STOP_TIMEOUT_S)
        if self.controller and self.controller.running:
            self.stop_controller()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _in_use(disk: RealDisk) -> bool:
    """Whether its loop device is still attached: after ``umount -l`` it clears itself when the last file is closed."""
    return Path(f"/sys/block/{disk.device.name}/loop/backing_file").exists()
