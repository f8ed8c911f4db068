"""A real broker with real disks, two others and a controller, and clients that know what was acknowledged."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from kjbod.faults.disks import RealDisk
from kjbod.runtime.control_socket import ControlClient
from kjbod.wire.messages import UnregisterBrokerRequest
from scripts.rig.cluster import Cluster, ask, wait_until_guarding
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, WaitTimeoutError, wait_until
from tests.guard.brokers import start_brokers
from tests.guard.conftest import Beside

PARTITIONS: Final = 9


class Load:
    """Records for all partitions, acknowledged by all in-sync replicas.

    Attributes:
        acked: moment of the last acknowledgement, by partition.
        longest: the longest time between two of them, by partition.
        failed: errors of records that were given up.
    """

    def __init__(self, topic: str, ports: Sequence[int], partitions: int = PARTITIONS) -> None:
        self._topic = topic
        self._servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "acks": "all",
                "linger.ms": 0,
                "socket.timeout.ms": 5_000,
                "request.timeout.ms": 5_000,
                "topic.metadata.refresh.interval.ms": 1_000,
                "message.timeout.ms": 60_000,
                "max.in.flight": 1,
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._kept: dict[int, set[bytes]] = {partition: set() for partition in range(partitions)}
        self.acked = dict.fromkeys(range(partitions), 0.0)
        self.longest = dict.fromkeys(range(partitions), 0.0)
        self.failed: list[str] = []

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.1):
            number += 1
            value = str(number).encode().ljust(200, b"x")
            for partition in self.acked:
                with contextlib.suppress(BufferError):
                    self._producer.produce(self._topic, value, partition=partition, on_delivery=self._told)
            self._producer.poll(0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, value, now = message.partition(), message.value(), time.monotonic()
        assert partition is not None and isinstance(value, bytes)
        if self.acked[partition]:
            self.longest[partition] = max(self.longest[partition], now - self.acked[partition])
        self.acked[partition] = now
        self._kept[partition].add(value)

    def wait_all(self, timeout_s: float = 60) -> None:
        """Until each partition has taken a record that is sent from now on."""
        since = time.monotonic()
        wait_until(lambda: all(at > since + 0.5 for at in self.acked.values()), timeout_s, "acks of all partitions")

    def lost(self) -> int:
        """Return how many acknowledged records cannot be read back; after the end of the load."""
        left = {partition: set(values) for partition, values in self._kept.items()}
        assert all(left.values()), "acknowledged records of each partition"
        reader = Consumer({"bootstrap.servers": self._servers, "group.id": "reader", "enable.auto.commit": False})
        reader.assign([TopicPartition(self._topic, partition, 0) for partition in left])

        def all_read() -> bool:
            for message in reader.consume(1_000, 0.5):
                partition, value = message.partition(), message.value()
                if message.error() is None and partition is not None and isinstance(value, bytes):
                    left[partition].discard(value)
            return not any(left.values())

        with contextlib.closing(reader), contextlib.suppress(WaitTimeoutError):
            wait_until(all_read, 15, "acknowledged records")
        return sum(map(len, left.values()))

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(10)


@dataclass
class Others:
    """A controller and two brokers, beside which each test has its own broker, and a topic.

    Attributes:
        ids: of these brokers.
        configs: their files.
        used: node ids that tests have had, so that no test has to wait for the end of another one's session.
    """

    cluster: Cluster
    ids: tuple[int, int]
    configs: list[Path]
    brokers: list[ManagedProcess]
    used: int = 0

    def one_more(self) -> int:
        """Return the node id of a broker that there was not yet."""
        self.used += 1
        return 10 + self.used


@dataclass
class Trio:
    """Three brokers, one of which has real disks and, from :meth:`start_guard` on, a guard.

    Attributes:
        node: id of the broker with the disks.
        config: its ``server.properties``.
        topic: led by the three in turns.
        broker: the process of the one with the disks.
    """

    cluster: Cluster
    kit: KafkaKit
    node: int
    config: Path
    topic: str
    disks: list[RealDisk]
    paths: list[str]
    broker: ManagedProcess
    ports: list[int]
    watch: Beside = field(init=False)
    guard: ManagedProcess = field(init=False)

    def launch(self, name: str) -> ManagedProcess:
        self.broker = self.cluster.launch_broker(self.kit, self.config, name=name)
        return self.broker

    def start_guard(self, beside: Callable[..., Beside], **settings: object) -> ManagedProcess:
        """Start a guard that acts; returns when it knows all that it needs."""
        self.watch = beside(self.config, guard_mode="act", **settings)
        self.guard = self.watch.start()
        wait_until_guarding(self.guard)
        return self.guard

    def status(self) -> dict[str, Any]:
        """Return the answer of the guard to ``kjbod status``."""
        client = ControlClient(self.watch.state, node_id=self.node, source=str(self.config))
        answer: dict[str, Any] = client.call("status")
        return answer

    def wait_until_ok(self) -> None:
        """Wait until ``kjbod status --check`` would exit with 0."""

        wait_until(lambda: self.status()["condition"]["code"] == 0, 60, "a guard that says OK")

    def load(self, topic: str | None = None, partitions: int = PARTITIONS) -> Load:
        return Load(topic or self.topic, self.ports, partitions)


def port_of(config: Path) -> int:
    return int(
        next(line for line in config.read_text().splitlines() if line.startswith("listeners=")).rpartition(":")[2]
    )


@contextlib.contextmanager
def other_brokers(kit: KafkaKit, base: Path) -> Iterator[Others]:
    """Run a controller and two brokers."""
    more, ids = {"min.insync.replicas": 2}, (2, 3)
    with Processes(base / "logs") as processes:
        cluster = Cluster(base, processes, kafka=kit)
        cluster.format_controller()
        cluster.start_controller()
        configs = [cluster.configure_broker(number, [base / f"b{number}-d1"], more) for number in ids]
        yield Others(cluster, ids, configs, start_brokers(cluster, kit, configs))


@contextlib.contextmanager
def third_broker(
    base: Path,
    others: Others,
    kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    besides: str | None = None,
    min_isr: int = 2,
) -> Iterator[Trio]:
    """Run a broker with three real disks beside two others.

    Args:
        base: for its files.
        others: beside which it runs.
        kit: Apache Kafka.
        real_disk: makes its disks.
        besides: name of a file of somebody's on its second disk; None: there is none.
        min_isr: ``min.insync.replicas`` of its file.
    """
    assert all(broker.running for broker in others.brokers)
    disks = [real_disk(log_dir="kafka") for _ in range(3)]
    if besides is not None:
        (disks[1].mount_point / besides).write_text("somebody's")
    paths, number, cluster = [str(disk.log_dir) for disk in disks], others.one_more(), others.cluster
    more = {"min.insync.replicas": min_isr, "metadata.log.dir": base / "metadata"}
    file = base / f"b{number}" / "server.properties"
    config = cluster.configure_broker(number, [Path(path) for path in paths], more, config=file)
    (broker,) = start_brokers(cluster, kit, [config])
    topic = f"load-{number}"
    cluster.create_topic(topic, PARTITIONS, brokers=(number, *others.ids), in_turns=True)
    ports = [port_of(one) for one in (config, *others.configs)]
    trio = Trio(cluster, kit, number, config, topic, disks, paths, broker, ports)
    try:
        yield trio
    finally:
        trio.broker.signal(signal.SIGKILL)  # it ends when its disks do, if they hold it
        cluster.delete_topics(topic)
        # A guard that saw it being fenced later would count it among the brokers that are fenced at a time.
        ask(cluster.port, UnregisterBrokerRequest(broker_id=number))


@contextlib.contextmanager
def three_brokers(
    tmp_path: Path,
    others: Others,
    kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
    besides: str | None = None,
    **settings: object,
) -> Iterator[Trio]:
    """Run such a broker with a guard that acts."""
    with third_broker(tmp_path, others, kit, real_disk, besides) as trio:
        trio.start_guard(beside, **settings)
        yield trio
        assert trio.guard.running, trio.guard.stderr()
