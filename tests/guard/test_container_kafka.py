"""A guard on the host beside a real broker in mount, pid and network namespaces of its own, as a container runtime
makes them, with the same directories at the same paths."""

import contextlib
import os
import secrets
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import Cluster, wait_until_guarding, wait_until_serving
from scripts.rig.cluster_watch import ClusterWatch
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, wait_until
from tests.depth import only_deep
from tests.guard.conftest import Beside

PORT = 9092
IN_TIME_S = 60
CONTAINER = (
    "unshare",
    "--mount",
    "--pid",
    "--net",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation",
    "private",
)
WAIT_FOR_LINK = 'ip link set lo up; until ip route get "$0" >/dev/null 2>&1; do sleep 0.05; done; exec "$@"'


@dataclass(frozen=True)
class Link:
    """A link between the host and one container."""

    name: str
    host: str
    container: str

    @property
    def command(self) -> tuple[str, ...]:
        """What starts a program in the container; it waits for the link."""
        return (*CONTAINER, "sh", "-c", WAIT_FOR_LINK, self.host)

    def join(self, pid: int) -> None:
        """Give it to the network namespace of a process, both ends up."""
        outer, inner, enter = f"{self.name}a", f"{self.name}b", ("nsenter", "--net", "-t", str(pid))
        for command in (
            ("ip", "link", "add", outer, "type", "veth", "peer", "name", inner),
            ("ip", "addr", "add", f"{self.host}/30", "dev", outer),
            ("ip", "link", "set", outer, "up"),
            ("ip", "link", "set", inner, "netns", str(pid)),
            (*enter, "ip", "addr", "add", f"{self.container}/30", "dev", inner),
            (*enter, "ip", "link", "set", inner, "up"),
        ):
            subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def link(world: None) -> Iterator[Link]:
    net = f"10.{secrets.randbelow(256)}.{secrets.randbelow(256)}"
    made = Link(f"kj{secrets.token_hex(4)}", f"{net}.1", f"{net}.2")
    yield made
    with contextlib.suppress(subprocess.CalledProcessError):  # it went with the namespace
        subprocess.run(("ip", "link", "del", f"{made.name}a"), check=True, capture_output=True)


@only_deep("a real broker in namespaces of its own")
def test_a_guard_on_the_host_cuts_masks_and_fences_beside_a_broker_in_a_container(
    link: Link,
    tmp_path: Path,
    processes: Processes,
    kafka_kit: KafkaKit,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    neighbour = socket.create_server(("127.0.0.1", PORT))  # another broker of the host
    neighbour.setblocking(False)
    cluster = Cluster(tmp_path, processes)
    address = f"{link.host}:{cluster.port}"
    cluster.configure_controller(
        {"listeners": f"CONTROLLER://0.0.0.0:{cluster.port}", "advertised.listeners": f"CONTROLLER://{address}"}
    )
    cluster.format_controller()
    cluster.start_controller()
    disks = [real_disk(log_dir="kafka") for _ in range(3)]
    config = cluster.configure_broker(
        1,
        [disk.log_dir for disk in disks],
        {
            "metadata.log.dir": tmp_path / "metadata",
            "controller.quorum.bootstrap.servers": address,
            "listeners": f"PLAINTEXT://:{PORT}",
            "advertised.listeners": f"PLAINTEXT://{link.container}:{PORT}",
        },
    )
    cluster.format_broker(config)
    (disks[2].mount_point / "backup.tar").write_text("somebody's: it cannot be cut")
    broker = cluster.launch_broker(kafka_kit, config, name="broker", prefix=link.command)
    (inside,) = wait_until(lambda: children_of(broker.pid), IN_TIME_S, "the container")
    wait_until(lambda: is_apart(inside), IN_TIME_S, "a network of its own")
    link.join(inside)
    wait_until_serving(broker)

    watch = beside(config, guard_mode="act")
    guard = watch.start()
    wait_until_guarding(guard)
    for disk, means in zip(disks[1:], ("cut", "mask"), strict=True):
        disk.set(FaultMode.HANG)
        done = guard.wait_for_event("guard.done", IN_TIME_S, path=str(disk.log_dir))
        assert (done["means"], done["outcome"]) == (means, "done")
        guard.wait_for_event("guard.directory", IN_TIME_S, path=str(disk.log_dir), state="offline")

    # What is mounted on the host alone is nothing to the broker, whose last disk is well.
    covered = disks[0].mount_point
    subprocess.run(("mount", "-t", "tmpfs", "tmpfs", str(covered)), check=True)
    try:
        guard.wait_for_event("directory.verdict", IN_TIME_S, path=str(disks[0].log_dir), state="failed")
        guard.wait_for_event("guard.would", where=lambda line: "not for the broker, which has mounts" in line["reason"])
    finally:
        subprocess.run(("umount", str(covered)), check=True)
    guard.wait_for_event("directory.watched", IN_TIME_S, path=str(disks[0].log_dir))
    assert broker.running and not {"fence", "kill"} & set(watch.deeds())
    assert not [line for line in watch.audit() if line["event"] == "does" and line.get("path") == str(disks[0].log_dir)]
    with pytest.raises(BlockingIOError):  # nobody has asked there
        neighbour.accept()

    os.kill(inside, 9)
    guard.wait_for_event("guard.done", IN_TIME_S, means="fence")
    with contextlib.closing(ClusterWatch(cluster.port, cluster.cluster_id)) as metadata:
        wait_until(lambda: not metadata.unfenced(), IN_TIME_S, "the broker is fenced")
    assert guard.stop() == 0
    neighbour.close()


def children_of(pid: int) -> list[int]:
    return [one.pid for one in psutil.Process(pid).children()]


def is_apart(pid: int) -> bool:
    return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
