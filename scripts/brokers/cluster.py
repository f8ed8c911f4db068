"""A cluster of unmodified Apache Kafka brokers, several log directories each, on one controller of either kind."""

import contextlib
import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from confluent_kafka.admin import AdminClient, PartitionMetadata

from kjbod.faults.disks import FaultMode, RealDisk
from scripts.rig import cluster
from scripts.rig.cluster import NOTHING, STOP_TIMEOUT_S, Properties, wait_until_serving
from scripts.rig.kafka import SIGTERMED, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until

Kind: TypeAlias = Literal["kjbod", "kafka"]
Place: TypeAlias = tuple[int, int]
"""Broker id and number of a log directory, both from 1."""

_ASK_TIMEOUT_S: Final = 10.0
_DISK_BYTES: Final = 512 << 20
_BROKER_HEAP_MIB: Final = 256
_CONTROLLER_HEAP_MIB: Final = 192
_SMALL_BROKER: Final = {
    # A failed directory is noticed when its checkpoint is written, by default each 5 s.
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "transaction.state.log.num.partitions": 5,
    "share.coordinator.state.topic.num.partitions": 3,
    "log.cleaner.dedupe.buffer.size": 2097152,
    "num.io.threads": 4,
    "num.network.threads": 2,
}


class RealCluster(cluster.Cluster):
    """Started by ``start_controller`` and ``start_broker``; everything is gone at the end of the ``with`` block.

    Args:
        base: for configurations and for log directories that are on no disk of their own.
        kit: Apache Kafka.
        kind: whose controller.
        brokers: how many; their ids count from 1.
        dirs: log directories of each.
        disks: which directories are each on a real disk that can be broken; root only.
        properties: further lines of every ``server.properties``.
        release: whose feature levels the controller begins with; its own where not given.
    """

    def __init__(
        self,
        base: Path,
        kit: KafkaKit,
        kind: Kind,
        *,
        brokers: int,
        dirs: int = 3,
        disks: Iterable[Place] = (),
        properties: Properties = NOTHING,
        release: str | None = None,
    ) -> None:
        self.kit = kit
        self.kind: Kind = kind
        self.ids = tuple(range(1, brokers + 1))
        self.ports = {broker: free_port() for broker in self.ids}
        self.brokers: dict[int, ManagedProcess] = {}
        self.disks: dict[Place, RealDisk] = {}
        self._stack = ExitStack()
        try:
            base.mkdir(parents=True, exist_ok=True)
            for broker, number in disks:
                disk = RealDisk(base / f"disk-{broker}-{number}", log_dir="kafka", size_bytes=_DISK_BYTES)
                self.disks[broker, number] = self._stack.enter_context(disk)
            processes = self._stack.enter_context(Processes(base / "logs"))
            kafka = kit if kind == "kafka" else None
            super().__init__(
                base,
                processes,
                kafka=kafka,
                properties=properties,
                heap_mib=_CONTROLLER_HEAP_MIB,
                static_quorum=kit.static_quorum,
            )
            self.log_dirs = {
                (broker, number): self._log_dir(broker, number) for broker in self.ids for number in range(1, dirs + 1)
            }
            self._configure(properties, release)
        except BaseException:
            self._stack.close()
            raise

    def _log_dir(self, broker: int, number: int) -> Path:
        disk = self.disks.get((broker, number))
        return disk.log_dir if disk else self.base / f"broker-{broker}-d{number}"

    def _configure(self, properties: Properties, release: str | None) -> None:
        """Write and format. Kafka's own tool formats brokers and Kafka's controller; ours formats ours."""
        self.format_controller(by_kafka=self.kind == "kafka", release=release)
        copies = min(3, len(self.ids))
        small = _SMALL_BROKER | {
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
        }
        for broker in self.ids:
            dirs = [path for (owner, _), path in self.log_dirs.items() if owner == broker]
            own = {**small, **properties}
            self.configure_broker(broker, dirs, own, config=self._config(broker), port=self.ports[broker])
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda broker: self.kit.format(self._config(broker), self.cluster_id), self.ids))

    def _config(self, broker: int) -> Path:
        return self.base / f"broker-{broker}.properties"

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers."""
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    # ---- brokers

    def _launch(self, broker: int) -> None:
        self.brokers[broker] = self.launch_broker(
            self.kit, self._config(broker), name=f"broker-{broker}", heap_mib=_BROKER_HEAP_MIB
        )

    def start_broker(self, broker: int) -> None:
        """And wait until it is up."""
        self._launch(broker)
        wait_until_serving(self.brokers[broker])

    def start(self) -> None:
        """Controller and all brokers."""
        self.start_controller()
        for broker in self.ids:
            self._launch(broker)
        for process in self.brokers.values():
            wait_until_serving(process)

    def kill_broker(self, broker: int) -> None:
        """SIGKILL."""
        self.brokers[broker].kill()

    def stop_broker(self, broker: int) -> None:
        """SIGTERM, and its clean end."""
        code = self.brokers[broker].stop(STOP_TIMEOUT_S)
        assert code == SIGTERMED, f"broker {broker}: exit code {code}"

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def _in_use(disk: RealDisk) -> bool:
    """Whether its loop device is still attached: after ``umount -l`` it clears itself when the last file is closed."""
    return Path(f"/sys/block/{disk.device.name}/loop/backing_file").exists()
