"""A guard that acts under three real controllers, the active one of which is lost while a disk hangs: the next one
records the directory, and the broker is kept."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import Cluster, wait_until_guarding
from scripts.rig.kafka import SERVER, KafkaKit
from scripts.rig.processes import ManagedProcess, Processes, free_port, wait_until
from tests.depth import only_deep
from tests.guard.brokers import active_controller, start_brokers
from tests.guard.conftest import Beside

CONTROLLERS = (3001, 3002, 3003)


class Quorum:
    """Three real controllers with configured voters."""

    def __init__(self, base: Path, processes: Processes, kit: KafkaKit) -> None:
        self.ports = {node: free_port() for node in CONTROLLERS}
        self.voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in self.ports.items())
        self.cluster = Cluster(base, processes, kafka=kit)
        self.running: dict[int, ManagedProcess] = {}
        for node, port in self.ports.items():
            config = base / f"c{node}" / "server.properties"
            config.parent.mkdir()
            config.write_text(
                f"process.roles=controller\nnode.id={node}\ncontroller.quorum.voters={self.voters}\n"
                f"listeners=CONTROLLER://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n"
                f"log.dirs={base / f'c{node}' / 'log'}\n"
            )
            self.cluster.format_broker(config)
            self.running[node] = processes.start(kit.command(SERVER, str(config)), name=f"controller-{node}")
        wait_until(lambda: self.active() != -1, 120, "an active controller")
        self.cluster.port = self.ports[self.active()]

    def active(self) -> int:
        """The active controller; -1: there is none."""
        return active_controller(self.ports.values())

    def lose_the_active_one(self, number: signal.Signals) -> int:
        lost = self.active()
        self.running[lost].signal(number)
        return lost


@only_deep("three real controllers and two brokers")
@pytest.mark.parametrize("lost", [signal.SIGKILL, signal.SIGSTOP])
def test_a_disk_that_hangs_while_the_active_controller_is_lost_is_recorded_by_the_next_one(
    lost: signal.Signals,
    tmp_path: Path,
    processes: Processes,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    quorum = Quorum(tmp_path, processes, kafka_kit)
    disks = [real_disk(log_dir="kafka") for _ in range(2)]
    addresses = ",".join(f"127.0.0.1:{port}" for port in quorum.ports.values())
    servers = {"controller.quorum.voters": quorum.voters, "controller.quorum.bootstrap.servers": addresses}
    configs = [
        quorum.cluster.configure_broker(
            1, [disk.log_dir for disk in disks], {**servers, "metadata.log.dir": tmp_path / "m1"}
        ),
        quorum.cluster.configure_broker(2, [tmp_path / "b2-d1"], servers),
    ]
    brokers = start_brokers(quorum.cluster, kafka_kit, configs)
    quorum.cluster.create_topic("load", 6, brokers=(1, 2))
    guard = beside(configs[0], guard_mode="act").start()
    wait_until_guarding(guard)

    gone = quorum.lose_the_active_one(lost)
    disks[1].set(FaultMode.HANG)
    bad = str(disks[1].log_dir)
    assert guard.wait_for_event("guard.done", means="cut", path=bad)["outcome"] in ("done", "pending")
    guard.wait_for_event("guard.kafka.view", 60, path=bad, view="offline")
    assert guard.wait_for_event("guard.done", 60, means="evict", path=bad)["outcome"] == "done"
    wait_until(lambda: quorum.active() not in (gone, -1), 60, "another active controller")
    assert brokers[0].running and not guard.events("guard.done", means="kill")
    assert guard.stop() == 0
