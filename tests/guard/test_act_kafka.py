"""A guard that acts for a real broker, which leads and follows with two others: a disk that hangs costs that disk, and
one that is frozen the broker; records are taken all the while."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from kjbod.faults import syscalls
from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from kjbod.wire.messages import UnregisterBrokerRequest
from scripts.rig.cluster import Cluster, ask, wait_until_guarding, wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.guard.brokers import start_brokers
from tests.guard.conftest import Beside
from tests.pages.markdown import shown
from tests.pages.typed import run

pytestmark = pytest.mark.xdist_group("act-kafka")  # one controller, and two brokers, for all of them
PARTITIONS = 9


class Load:
    """Records for all partitions, acknowledged by all in-sync replicas."""

    def __init__(self, topic: str, ports: list[int]) -> None:
        self._topic = topic
        servers = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
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
        self.acked = dict.fromkeys(range(PARTITIONS), 0.0)
        self.longest = dict.fromkeys(range(PARTITIONS), 0.0)
        self.failed: list[str] = []

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            for partition in self.acked:
                with contextlib.suppress(BufferError):
                    self._producer.produce(self._topic, b"x" * 200, partition=partition, on_delivery=self._told)
            self._producer.poll(0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        partition, now = message.partition(), time.monotonic()
        assert partition is not None
        if self.acked[partition]:
            self.longest[partition] = max(self.longest[partition], now - self.acked[partition])
        self.acked[partition] = now

    def wait_all(self, timeout_s: float = 60) -> None:
        """Until each partition has taken a record that is sent from now on."""
        since = time.monotonic()
        wait_until(lambda: all(at > since + 0.5 for at in self.acked.values()), timeout_s, "acks of all partitions")

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.flush(10)


@dataclass
class Others:
    """A controller and two brokers, which nothing happens to: each test has its own broker beside them, and a topic.

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
        """The node id of a broker that there was not yet."""
        self.used += 1
        return 10 + self.used


@dataclass
class Trio:
    """Three brokers, one of which has real disks and a guard.

    Attributes:
        topic: led by them in turns.
        broker: the one with the disks.
    """

    cluster: Cluster
    topic: str
    disks: list[RealDisk]
    paths: list[str]
    broker: ManagedProcess
    guard: ManagedProcess
    watch: Beside
    ports: list[int]

    def launch(self, kit: KafkaKit, name: str) -> ManagedProcess:
        self.broker = self.cluster.launch_broker(kit, self.watch.config, name=name)
        return self.broker

    def load(self) -> Load:
        return Load(self.topic, self.ports)


def port_of(config: Path) -> int:
    return int(
        next(line for line in config.read_text().splitlines() if line.startswith("listeners=")).rpartition(":")[2]
    )


@pytest.fixture(scope="module")
def others(world: None, kafka_kit: KafkaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Others]:
    base, more, ids = tmp_path_factory.mktemp("others"), {"min.insync.replicas": 2}, (2, 3)
    with Processes(base / "logs") as processes:
        cluster = Cluster(base, processes, kafka=kafka_kit)
        cluster.format_controller()
        cluster.start_controller()
        configs = [cluster.configure_broker(number, [base / f"b{number}-d1"], more) for number in ids]
        yield Others(cluster, ids, configs, start_brokers(cluster, kafka_kit, configs))


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
    assert all(broker.running for broker in others.brokers)
    disks = [real_disk(log_dir="kafka") for _ in range(3)]
    if besides is not None:
        (disks[1].mount_point / besides).write_text("somebody's")
    paths, number, cluster = [str(disk.log_dir) for disk in disks], others.one_more(), others.cluster
    more = {"min.insync.replicas": 2, "metadata.log.dir": tmp_path / "metadata"}
    file = tmp_path / f"b{number}" / "server.properties"
    config = cluster.configure_broker(number, [Path(path) for path in paths], more, config=file)
    (broker,) = start_brokers(cluster, kit, [config])
    topic = f"load-{number}"
    cluster.create_topic(topic, PARTITIONS, brokers=(number, *others.ids), in_turns=True)
    watch = beside(config, guard_mode="act", **settings)
    guard = watch.start()
    wait_until_guarding(guard)
    trio = Trio(cluster, topic, disks, paths, broker, guard, watch, [port_of(one) for one in (config, *others.configs)])
    try:
        yield trio
        assert trio.guard.running, trio.guard.stderr()
    finally:
        trio.broker.signal(signal.SIGKILL)  # it ends when its disks do, if they hold it
        cluster.delete_topics(topic)
        # A guard that saw it being fenced later would count it among the brokers that are fenced at a time.
        ask(cluster.port, UnregisterBrokerRequest(broker_id=number))


def replace(trio: Trio, disk: RealDisk, kit: KafkaKit) -> str:
    """Type the runbook, from the status to the restored replicas; what it said. The new disk is the old one, mended."""
    names = {
        "/etc/kafka/server.properties": str(trio.watch.config),
        "/etc/kafka/kjbod-guard.properties": str(trio.watch.own),
        "/mnt/d3/kafka": str(disk.log_dir),
        "/mnt/d3": str(disk.mount_point),
        "CLUSTER_ID": trio.cluster.cluster_id,
        "kafka:": "root:",
        "systemctl": ":",  # the broker is a process of this test
    }
    said = []
    with contextlib.ExitStack() as loop:
        for command in shown("systemd/README.md", "from-the-alert-to-the-replaced-disk"):
            if "systemctl stop" in command.text:
                disk.set(FaultMode.OK)
                trio.broker.stop(120)
            if "umount" in command.text:
                # While the old one is there, so that the new one's device is another, as a disk's is: what is mounted
                # in the place of a disk that was released is looked at only a minute later if it may be that disk.
                disk.device, fd = syscalls.attach_loop(disk.image)
                loop.callback(os.close, fd)
                names |= {"/dev/sdd1": str(disk.device), "mount /mnt/d3": f"mount {disk.device} {disk.mount_point}"}
            if "systemctl start" in command.text:
                wait_until_serving(trio.launch(kit, "broker-1-again"))
            if "guard restore" in command.text:
                path = str(disk.log_dir)
                assert trio.guard.wait_for_event("guard.done", 40, means="restore", path=path)["outcome"] == "done"
                trio.guard.wait_for_event("guard.directory", 60, path=path, state="well")
            done = run(command, names)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            said.append(done.stdout)
    return "".join(said)


def test_a_disk_that_hangs_costs_that_disk_alone_and_is_replaced_as_the_runbook_says_and_a_killed_broker_is_fenced(
    tmp_path: Path,
    others: Others,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    with three_brokers(tmp_path, others, kafka_kit, real_disk, beside) as trio, trio.load() as load:
        load.wait_all()
        guard, bad = trio.guard, trio.paths[1]
        load.longest = dict.fromkeys(load.longest, 0.0)
        trio.disks[1].set(FaultMode.HANG)
        assert guard.wait_for_event("guard.done", means="cut", path=bad)["outcome"] in ("done", "pending")
        guard.wait_for_event("guard.kafka.view", path=bad, view="offline")
        assert guard.wait_for_event("guard.done", means="evict", path=bad)["outcome"] == "done"
        guard.wait_for_event("guard.directory", path=bad, state="evicted")
        load.wait_all()
        print("longest pauses:", {number: round(pause, 2) for number, pause in load.longest.items()})
        assert trio.broker.running and not load.failed, load.failed[:3]
        assert trio.watch.deeds() == ["cut", "evict"]

        # Another disk takes its place while the guard runs.
        guard.wait_for_event("guard.directory.held", path=bad, held=False)
        said = replace(trio, trio.disks[1], kafka_kit)
        assert f"does   means=cut path={bad}" in said and f"{bad}: released" in said
        guard.wait_for_event("guard.directory.held", 30, path=bad, held=True)
        load.wait_all()
        assert not load.failed, load.failed[:3]

        # A broker that is killed is fenced at once, and not when its session times out.
        guard.wait_for_event("guard.broker", 60, state="serving")
        trio.broker.signal(signal.SIGKILL)
        assert guard.wait_for_event("guard.done", means="fence")["outcome"] in ("done", "pending")
        guard.wait_for_event("guard.broker", state="ended")
        load.wait_all()
        assert not load.failed, load.failed[:3]


def test_a_disk_that_is_frozen_costs_the_broker_and_nothing_else(
    tmp_path: Path,
    others: Others,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    settings: dict[str, Any] = {"held_timeout_ms": 3_000}
    with three_brokers(tmp_path, others, kafka_kit, real_disk, beside, **settings) as trio, trio.load() as load:
        load.wait_all()
        guard, bad = trio.guard, trio.paths[1]
        trio.disks[1].freeze()
        try:
            assert guard.wait_for_event("guard.done", 60, means="kill")["outcome"] in ("done", "pending")
            assert guard.wait_for_event("guard.done", means="fence")["outcome"] in ("done", "pending")
            guard.wait_for_event("guard.registration", fenced=True)
            load.wait_all()
            print("longest pauses:", {number: round(pause, 2) for number, pause in load.longest.items()})
        finally:
            trio.disks[1].thaw()
        assert "frozen" in guard.wait_for_event("guard.broker", state="fencing")["reason"], bad
        trio.broker.wait(60)
        guard.wait_for_event("guard.broker", 60, state="ended")
        wait_until_serving(trio.launch(kafka_kit, "broker-1-again"))
        load.wait_all()
        assert not load.failed, load.failed[:3]


def test_a_disk_that_carries_more_is_masked_and_released(
    tmp_path: Path,
    processes: Processes,
    others: Others,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    trios = three_brokers(tmp_path, others, kafka_kit, real_disk, beside, besides="backup.tar")
    with trios as trio, trio.load() as load:
        load.wait_all()
        guard, bad = trio.guard, trio.paths[1]
        trio.disks[1].set(FaultMode.EIO_READS)
        done = guard.wait_for_event("guard.done", 60, means="mask", path=bad)
        assert done["outcome"] == "done", done
        guard.wait_for_event("guard.kafka.view", 60, path=bad, view="offline")
        assert guard.wait_for_event("guard.done", means="evict", path=bad)["outcome"] == "done"
        load.wait_all()
        print("longest pauses:", {number: round(pause, 2) for number, pause in load.longest.items()})
        assert trio.broker.running and not load.failed, load.failed[:3]

        trio.disks[1].set(FaultMode.OK)
        released = processes.kjbod("guard", "release", bad, *trio.watch.arguments, name="release")
        assert released.wait() == 0, released.stderr()
        assert "Restart the broker" in released.stdout()
        assert guard.wait_for_event("guard.done", means="unmask", path=bad)["outcome"] == "done"
        assert (Path(bad) / "meta.properties").is_file()
        restored = processes.kjbod("guard", "restore", *trio.watch.arguments, name="restore")
        assert restored.wait() == 1 and f"Kafka has {bad} offline" in restored.stderr(), restored.stderr()
        load.wait_all()
        told = processes.kjbod("guard", "history", *trio.watch.arguments, name="history")
        assert told.wait() == 0 and "means=mask" in told.stdout(), told.stdout()
