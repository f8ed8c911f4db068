"""A cluster whose real disks are broken, from its start to the moment when nothing of it is left."""

import abc
import contextlib
from pathlib import Path
from typing import Final, Self

from kjbod.faults.disks import RealDisk
from scripts.bench.detection_agents import close_disks
from scripts.rig.cluster import Cluster
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.java_clients import Clients
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, free_port

BROKERS: Final = (1, 2, 3)
HEAP_MIB: Final = 256
RECORD_PAUSE_MS: Final = 30
REQUEST_TIMEOUT_MS: Final = 5000


class BrokenCluster(Cluster, abc.ABC):
    """A controller, three brokers on real disks, and their clients. Use it in a ``with`` block.

    Args:
        kit: Apache Kafka.
        base: for all files.
        logs: of all processes.
    """

    def __init__(self, kit: KafkaKit, base: Path, logs: Path) -> None:
        super().__init__(base, Processes(logs), kafka=kit, heap_mib=HEAP_MIB)
        self._kit = kit
        self._logs = logs
        self._ports = {broker: free_port() for broker in BROKERS}
        self._configs: dict[int, Path] = {}
        self._brokers: dict[int, ManagedProcess] = {}
        self._all_disks: list[RealDisk] = []
        self._number = 0
        self._stack = contextlib.ExitStack()
        self._watch: ClusterWatch | None = None
        self._clients: Clients | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abc.abstractmethod
    def _start(self) -> None:
        """Start controller, disks and brokers."""

    @abc.abstractmethod
    def _end_faults(self) -> None:
        """Have all disks answer."""

    def close(self) -> None:
        """Take everything away; also after half a start, and twice. First the disks answer: nobody ends before."""
        with contextlib.ExitStack() as stack:
            stack.callback(lambda: close_disks(self._all_disks))
            stack.callback(self.processes.close)
            stack.callback(self._stack.close)
            stack.callback(self._end_faults)

    @property
    def watch(self) -> ClusterWatch:
        assert self._watch is not None
        return self._watch

    @property
    def clients(self) -> Clients:
        assert self._clients is not None
        return self._clients

    def _start_watch(self) -> None:
        self._watch = self._stack.enter_context(contextlib.closing(ClusterWatch(self.port, self.cluster_id)))

    def _start_clients(self) -> None:
        log = self._logs / "clients.log"
        self._clients = self._stack.enter_context(
            Clients(self._kit, list(self._ports.values()), REQUEST_TIMEOUT_MS, log)
        )
