"""A combined node, ``process.roles=broker,controller``: agent and controller in one process."""

import contextlib
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.wire.messages import DescribeQuorumRequest, MetadataRequest
from scripts.rig.cluster import ask, format_node, wait_until_serving
from scripts.rig.kafka import QUORUM, TOPICS, KafkaKit, broker_properties, render_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port, kjbod_command, wait_until
from tests.agent.daemon_cluster import CLUSTER_ID, Cluster
from tests.depth import only_deep

KAFKAS_OWN = Path(__file__).parents[1] / "data" / "kafka_server.properties"
END_S = 15
"""For an end that takes less than a second."""


def lines_of(process: ManagedProcess, component: str) -> set[str]:
    """Events of a component."""
    return {str(line["event"]) for line in process.events() if line["component"] == component}


def last_words(process: ManagedProcess) -> dict[str, Any]:
    last = process.events()[-1]
    assert last["event"] == "agent.stopped", process.tail()
    return last


# ------------------------------------------------------------------------------------------------- Kafka's own file


ROOT = Path(__file__).parents[2]
_CHECKOUT = (
    f"mkdir -p {ROOT} && mount --bind /media/{ROOT.relative_to('/tmp')} {ROOT} && "
    if ROOT.is_relative_to("/tmp")
    else ""
)
"""Shows the checkout in a ``/tmp`` of its own, where it lies below the real one."""


class Host(Processes):
    """Starts processes on a host of their own, with ports, ``/tmp`` and ``/var/lib`` that nobody else has; what lies in
    ``directory`` is in ``/mnt``."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "logs")
        ready = (
            f"mount --bind {directory} /mnt && mount --bind /tmp /media && mount -t tmpfs tmpfs /tmp && {_CHECKOUT}"
            "mount -t tmpfs tmpfs /var/lib && ip link set lo up && echo up && exec sleep infinity"
        )
        holder = super().start(["unshare", "--net", "--mount", "sh", "-c", ready], name="host")
        holder.wait_for_text("up")
        self._enter = ["nsenter", "-t", str(holder.pid), "--net", "--mount"]
        self.root = Path(f"/proc/{holder.pid}/root")

    def start(self, command: Sequence[str], *, name: str) -> ManagedProcess:
        return super().start([*getattr(self, "_enter", []), *command], name=name)

    def run(self, *command: str) -> str:
        """Standard output of a command there, which has to succeed."""
        done = subprocess.run([*self._enter, *command], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def host(tmp_path: Path, as_root: None) -> Iterator[Host]:
    with Host(tmp_path) as started:
        yield started


def test_kafkas_own_server_properties_starts_both_and_outlives_sigkill(
    tmp_path: Path, host: Host, kafka_kit: KafkaKit
) -> None:
    (tmp_path / "server.properties").write_bytes(KAFKAS_OWN.read_bytes())
    config = "/mnt/server.properties"
    host.run(kjbod_command(), "format", "-t", CLUSTER_ID, "--standalone", "-c", config)
    server = host.kjbod("server", "-c", config, name="server")
    server.wait_for_event("agent.unfenced")
    host.run(
        *kafka_kit.command(TOPICS, "--bootstrap-server", "localhost:9092", "--create", "--topic", "t"),
        *("--partitions", "2"),
    )
    log_dir = host.root / "tmp" / "kraft-combined-logs"
    wait_until(lambda: (log_dir / "t-1").is_dir(), 30, "the replicas")
    quorum = host.run(
        *kafka_kit.command(QUORUM, "--bootstrap-controller", "localhost:9093", "describe", "--replication")
    )
    rows = [line.split() for line in quorum.splitlines()[1:] if line.strip()]
    assert [(row[0], row[-1]) for row in rows] == [("1", "Leader")], "a voter, and no observer of its own"
    status = host.run(kjbod_command(), "status", "-c", config)
    assert status.startswith("OK: running, unfenced, 1 directory online\n")
    assert "own controller   active in epoch 1, " in status
    assert ", 1 broker, 1 topic, 2 partitions\n" in status
    assert {"controller.started", "broker.unfenced"} <= lines_of(server, "controller")
    assert {"agent.registered", "agent.unfenced"} <= lines_of(server, "agent")

    server.kill()
    server = host.kjbod("server", "-c", config, name="server-again")
    server.wait_for_event("agent.unfenced")
    assert not server.events("controller.request.failed"), "its session ended with it"
    assert not server.events("replica.created") and (log_dir / "t-0").is_dir()
    assert server.stop() == 0
    order = [line["event"] for line in server.events()]
    assert order.index("agent.stopping") < order.index("controller.stopped") < order.index("agent.stopped")
    assert last_words(server)["exit_code"] == 0
    assert not (log_dir / ".lock").exists()


# --------------------------------------------------------------------------------------------------- on a port of ours


@dataclass(slots=True)
class Node:
    """A combined node, formatted."""

    processes: Processes
    config: Path
    log_dir: Path
    port: int
    controller_port: int

    def start(self, name: str = "server") -> ManagedProcess:
        return self.processes.kjbod("server", "-c", str(self.config), name=name)

    def serving(self, name: str = "server") -> ManagedProcess:
        started = self.start(name)
        started.wait_for_event("agent.unfenced")
        return started

    def add(self, **properties: object) -> None:
        with self.config.open("a") as config:
            config.write(render_properties({key.replace("_", "."): value for key, value in properties.items()}))


def node_in(base: Path, processes: Processes, log_dir: Path) -> Node:
    port, controller_port = free_port(), free_port()
    config = base / "combined.properties"
    config.write_text(
        broker_properties(1, port, controller_port, [log_dir])
        + "process.roles=broker,controller\n"
        + f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}\n"
        + f"kjbod.state.dir={base}/combined-state\nkjbod.placement.full.percent=100\n"
    )
    format_node(config, CLUSTER_ID)
    return Node(processes, config, log_dir, port, controller_port)


@pytest.fixture
def node(tmp_path: Path, processes: Processes) -> Node:
    return node_in(tmp_path, processes, tmp_path / "combined")


def brokers_of(port: int) -> list[int]:
    return sorted(broker.node_id for broker in ask(port, MetadataRequest(topics=None)).brokers)


def test_another_agent_joins_its_controller_and_stays_behind_when_it_stops(
    node: Node, tmp_path: Path, processes: Processes
) -> None:
    server = node.serving()
    cluster = Cluster(tmp_path, processes)
    cluster.port = node.controller_port
    other = cluster.start_agent(cluster.configure(2))
    other.wait_for_event("agent.unfenced")
    assert brokers_of(node.controller_port) == [1, 2], "each once, the controller's own id too"
    cluster.create_topic("t", partitions=2, replication_factor=2)
    wait_until(lambda: (node.log_dir / "t-1").is_dir(), 30, "its replicas")
    wait_until(lambda: sum(map(len, cluster.replicas(2))) == 2, 30, "the other one's")
    assert server.stop() == 0
    again = node.serving("again")
    other.wait_for_event("metadata.leader.changed", leader=1, epoch=2)
    assert other.stop() == 0
    assert again.stop() == 0


def test_a_directory_from_before_kafka_3_7_has_one_id_for_both(node: Node) -> None:
    file = node.log_dir / "meta.properties"
    formatted = file.read_text()
    file.write_text(re.sub(r"directory\.id=.*\n", "", formatted))
    server = node.serving()
    (line,) = [line for line in file.read_text().splitlines() if line.startswith("directory.id=")]
    assert line not in formatted
    quorum = ask(node.controller_port, DescribeQuorumRequest()).topics[0].partitions[0]
    assert {f"directory.id={voter.replica_directory_id}" for voter in quorum.current_voters} == {line}
    assert server.stop() == 0


def test_one_metrics_listener_has_the_series_of_both(node: Node) -> None:
    port = free_port()
    node.add(kjbod_metrics_listener=f"127.0.0.1:{port}")
    server = node.serving()

    def scrape() -> list[str]:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            return str(answer.read().decode()).splitlines()
        return []

    lines = wait_until(scrape, 30, "metrics")
    assert any(line.startswith("kjbod_broker_fenced 0") for line in lines)
    assert any(line.startswith("kafka_controller_kafkacontroller_activecontrollercount 1") for line in lines)
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families)), "no name stands for two things"
    assert server.stop() == 0


@pytest.mark.parametrize("which", ["broker", "controller", "metrics"])
def test_a_port_that_is_taken_is_one_line_and_leaves_all_as_it_was(node: Node, which: str) -> None:
    port = {"broker": node.port, "controller": node.controller_port, "metrics": free_port()}[which]
    if which == "metrics":
        node.add(kjbod_metrics_listener=f"127.0.0.1:{port}")
    before = tree(node.log_dir)
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        server = node.start()
        assert server.wait() == 1
    assert f"127.0.0.1:{port}" in one_line(server) and "Traceback" not in server.stderr()
    assert tree(node.log_dir) == before
    server = node.serving("again")
    assert server.stop() == 0


def test_a_second_server_on_its_directory_is_refused_and_the_first_goes_on(node: Node, tmp_path: Path) -> None:
    server = node.serving()
    second = tmp_path / "second.properties"
    listeners = f"PLAINTEXT://127.0.0.1:{free_port()},CONTROLLER://127.0.0.1:{free_port()}"
    second.write_text(f"{node.config.read_text()}listeners={listeners}\nkjbod.state.dir={tmp_path}/second\n")
    refused = node.processes.kjbod("server", "-c", str(second), name="second")
    assert refused.wait() == 1
    assert f"{node.log_dir} is in use: process {server.pid} holds {node.log_dir}/.lock" in one_line(refused)
    assert brokers_of(node.controller_port) == [1]
    assert server.stop() == 0


def test_a_directory_that_a_kafka_broker_has_used_is_refused_until_a_person_permits_it(node: Node) -> None:
    server = node.serving()
    assert server.stop() == 0
    (node.log_dir / "replication-offset-checkpoint").touch()
    before = tree(node.log_dir)
    refused = node.start("refused")
    assert refused.wait() == 78
    assert f"{node.log_dir}: an Apache Kafka broker has used this log directory" in one_line(refused)
    assert tree(node.log_dir) == before
    permitted = node.processes.kjbod("server", "-c", str(node.config), "--take-over", name="permitted")
    permitted.wait_for_event("agent.unfenced")
    assert permitted.stop() == 0


def test_a_directory_that_is_not_formatted_is_one_line(node: Node) -> None:
    (node.log_dir / "meta.properties").unlink()
    server = node.start()
    assert server.wait() == 1
    (line,) = [line for line in server.stderr().splitlines() if not line.startswith("{")]
    assert line.startswith(f"kjbod: {node.log_dir} is not formatted: ") and "--standalone" in line


# ------------------------------------------------------------------------------------------------------ its disk fails


QUICK = {"kjbod_probe_interval_ms": 100, "kjbod_probe_timeout_ms": 500, "kjbod_blind_timeout_ms": 1500}
PATIENT = {"kjbod_probe_timeout_ms": 60_000, "kjbod_blind_timeout_ms": 60_000, "kjbod_held_timeout_ms": 0}


@dataclass(slots=True)
class OnDisk:
    """A combined node with a disk of its own."""

    node: Node
    disk: RealDisk


@pytest.fixture
def on_disk(tmp_path: Path, processes: Processes, real_disk: Callable[..., RealDisk]) -> OnDisk:
    disk = real_disk(log_dir="combined")
    return OnDisk(node_in(tmp_path, processes, disk.log_dir), disk)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def one_line(server: ManagedProcess) -> str:
    """The line for a person with which it ended."""
    (line,) = [line for line in server.stderr().splitlines() if not line.startswith("{")]
    return line


def test_a_metadata_disk_that_is_not_mounted_is_found_before_another_log_is_served_or_written(on_disk: OnDisk) -> None:
    server = on_disk.node.serving()
    known = on_disk.node.config.parent / "combined-state" / "known_directories.json"
    wait_until(lambda: f'"mount_point": "{on_disk.disk.mount_point}"' in known.read_text(), END_S, "its mount point")
    assert server.stop() == 0
    on_disk.disk.unmount()
    away = f"mount its disk on {on_disk.disk.mount_point} first"
    server = on_disk.node.start("bare")
    assert server.wait() == 1
    assert f"{on_disk.node.log_dir} does not exist" in one_line(server) and away in one_line(server)
    remembered = known.read_bytes()
    known.unlink()  # or it would not be formatted
    format_node(on_disk.node.config, CLUSTER_ID)
    known.write_bytes(remembered)
    before = tree(on_disk.node.log_dir)
    server = on_disk.node.start("below")
    assert server.wait() == 1
    assert away in one_line(server)
    assert not lines_of(server, "controller"), "it answered nobody"
    assert tree(on_disk.node.log_dir) == before


def test_a_metadata_directory_that_is_a_link_to_another_one_is_refused_before_anything_is_written(node: Node) -> None:
    link = node.log_dir.with_name("link")
    link.symlink_to(node.log_dir)
    node.add(metadata_log_dir=link)
    before = tree(node.log_dir)
    server = node.start()
    assert server.wait() == 78
    assert f"{node.log_dir} and {link} are the same directory {node.log_dir}" in one_line(server)
    assert tree(node.log_dir) == before


def is_closed(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return True
    return False


def test_a_dead_disk_of_the_metadata_ends_both_roles_with_the_exit_code_of_disks(on_disk: OnDisk) -> None:
    on_disk.node.add(**QUICK)
    server = on_disk.node.serving()
    on_disk.disk.set(FaultMode.EIO)
    assert server.wait(END_S) == 74
    assert str(on_disk.disk.log_dir) in last_words(server)["reason"]


def test_a_hung_disk_of_the_metadata_ends_both_roles_and_frees_ports_and_state_while_it_hangs(
    on_disk: OnDisk, tmp_path: Path, processes: Processes
) -> None:
    on_disk.node.add(**QUICK)
    server = on_disk.node.serving()
    on_disk.disk.set(FaultMode.HANG)
    said = server.wait_for_event("agent.stopped", END_S)
    assert said["exit_code"] == 74
    assert str(on_disk.disk.log_dir) in said["reason"]
    wait_until(lambda: is_closed(on_disk.node.port) and is_closed(on_disk.node.controller_port), END_S, "free ports")
    # On another disk, with all else as before: nothing is kept by a thread that the kernel holds.
    other = tmp_path / "other.properties"
    other.write_text(f"{on_disk.node.config.read_text()}log.dirs={tmp_path}/other\n")
    format_node(other, CLUSTER_ID)
    successor = processes.kjbod("server", "-c", str(other), name="successor")
    successor.wait_for_event("agent.unfenced")
    assert successor.stop() == 0
    on_disk.disk.set(FaultMode.OK)
    assert server.wait(END_S) == 74


def test_a_start_on_a_hung_disk_can_be_stopped_and_keeps_nobody_waiting_at_its_port(on_disk: OnDisk) -> None:
    on_disk.disk.set(FaultMode.HANG)
    server = on_disk.node.start()

    def is_stuck() -> bool:
        states = {}
        for process in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent, *_ = process.read_text().rpartition(") ")[2].split()
                states[int(process.parent.name)] = (state, int(parent))
        own = {server.pid}
        for _ in states:  # worker of zygote of server
            own |= {pid for pid, (_, parent) in states.items() if parent in own}
            if any(states[pid][0] == "D" for pid in own - {server.pid}):
                return True
        return False

    wait_until(is_stuck, END_S, "a worker that waits for the disk")
    assert is_closed(on_disk.node.controller_port)
    server.signal(signal.SIGTERM)
    assert server.wait_for_event("agent.stopped", END_S)["exit_code"] == 0
    assert server.wait(END_S) == 0, "no thread of it waits for the disk"


def test_a_backup_that_lies_in_the_place_of_its_metadata_is_left_as_it_is(on_disk: OnDisk, tmp_path: Path) -> None:
    on_disk.node.add(**QUICK)
    server = on_disk.node.serving()
    backup = tmp_path / "backup"
    shutil.copytree(on_disk.disk.mount_point, backup)
    before = tree(backup)
    subprocess.run(["mount", "--bind", str(backup), str(on_disk.disk.mount_point)], check=True)
    try:
        assert server.wait(END_S) == 74
        server.wait_for_event("controller.stopped")
        # Probes may have come between the mount and the verdict: they are of files with names of their own.
        after = {path: data for path, data in tree(backup).items() if "probe" not in path}
        assert after == {path: data for path, data in before.items() if "probe" not in path}
    finally:
        subprocess.run(["umount", str(on_disk.disk.mount_point)], check=True)
    assert (on_disk.node.log_dir / "__cluster_metadata-0" / ".kjbod_clean_stop").exists(), "it was still ours"


def test_another_disk_than_that_of_the_metadata_is_reported_and_the_node_goes_on(node: Node, tmp_path: Path) -> None:
    second = tmp_path / "second"
    node.add(log_dirs=f"{node.log_dir},{second}", **QUICK)
    format_node(node.config, CLUSTER_ID, again=True)
    server = node.serving()
    second.rename(tmp_path / "away")
    failed = server.wait_for_event("directory.failed", path=str(second))
    server.wait_for_event("directory.offline.acknowledged", directory_ids=[failed["directory_id"]])
    assert server.stop() == 0


def test_a_second_sigterm_ends_it_at_once_while_its_metadata_log_hangs(on_disk: OnDisk) -> None:
    on_disk.node.add(**PATIENT)
    server = on_disk.node.serving()
    on_disk.disk.set(FaultMode.HANG)
    server.signal(signal.SIGTERM)  # a controlled shutdown is granted when that is durable
    server.wait_for_event("agent.signal", count=1)
    server.signal(signal.SIGTERM)
    assert server.wait_for_event("agent.stopped", END_S)["exit_code"] == 143
    wait_until(lambda: is_closed(on_disk.node.port) and is_closed(on_disk.node.controller_port), END_S, "free ports")
    on_disk.disk.set(FaultMode.OK)
    assert server.wait(END_S) == 143


# ----------------------------------------------------------------------------------------------------- with real Kafka


@only_deep("a real broker beside it")
def test_a_real_broker_joins_its_controller(
    node: Node, tmp_path: Path, processes: Processes, kafka_kit: KafkaKit
) -> None:
    node.add(kjbod_placement_accept="always")  # beside a real broker it takes nothing else
    server = node.serving()
    cluster = Cluster(tmp_path, processes)
    cluster.port = node.controller_port
    config = cluster.configure_broker(2, [tmp_path / "b2-d1", tmp_path / "b2-d2"])
    format_node(config, CLUSTER_ID)
    broker = cluster.launch_broker(kafka_kit, config, name="kafka")
    wait_until_serving(broker)
    kafka_kit.run(
        TOPICS,
        *("--bootstrap-server", f"127.0.0.1:{node.port}", "--create", "--topic", "t"),
        *("--partitions", "4", "--replication-factor", "2"),
    )
    wait_until(lambda: len(list(tmp_path.glob("b2-d*/t-*"))) == 4, 30, "the broker's replicas")
    wait_until(lambda: len(list(node.log_dir.glob("t-*"))) == 4, 30, "the node's replicas")
    broker.signal(signal.SIGTERM)
    broker.wait(60)
    assert server.stop() == 0
