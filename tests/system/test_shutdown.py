"""The end after a disk failure, with everything in its way: nothing that is stuck, silent or full keeps the agent.

The bound is :data:`kjbod_host.ending.HALT_TIMEOUT_MS` from the decision on; the tests wait far longer, because a test
machine may be busy.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod_host.storage import leftovers
from scripts.rig.preloaded import Started
from scripts.rig.processes import ManagedProcess, Processes, kjbod_command, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.preloading import begin_kjbod

pytestmark = pytest.mark.usefixtures("as_root")

END_S = 15
"""For an end that takes less than one second."""
HEARTBEAT_S = 2
"""``broker.heartbeat.interval.ms``, which is also how long an answer is waited for."""
TIMEOUT_MS = 1500
"""``log.dir.failure.timeout.ms``"""
PARTITIONS = 6
MakeDisk = Callable[..., RealDisk]


def move_away(directory: Path) -> None:
    """What happens to a path when its disk is unmounted."""
    directory.rename(directory.with_name(directory.name + ".away"))


def last_words(agent: ManagedProcess) -> str:
    """The reason in the last line of the log, which has to be ``agent.stopped``."""
    last = agent.events()[-1]
    assert last["event"] == "agent.stopped", agent.tail()
    assert len(agent.events("agent.stopped")) == 1
    assert last["exit_code"] == agent.exit_code
    return str(last["reason"])


def moment(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def leading_agent(
    cluster: Cluster, config: Path, reach: Callable[[Callable[[], None]], None] = lambda work: work()
) -> ManagedProcess:
    """An unfenced agent that leads partitions in each of its directories; ``reach`` runs what asks the controller."""
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    reach(lambda: cluster.create_topic("events", partitions=PARTITIONS, replication_factor=1))
    wait_assigned(agent, PARTITIONS)
    cluster.wait_leading(1, PARTITIONS // 3)
    return agent


# ---------------------------------------------------------------------------------------------------- its own deadline


def test_a_second_failure_does_not_put_off_the_end_for_the_first(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    controller = cluster.start_controller()
    agent = leading_agent(cluster, cluster.configure(1, log_dir_failure_timeout_ms=6000))
    controller.signal(signal.SIGSTOP)
    move_away(cluster.directory(1, 2))
    first = agent.wait_for_event("directory.failed", path=str(cluster.directory(1, 2)))
    wait_until(lambda: time.time() > moment(first) + 3, 10, "half of the time")
    move_away(cluster.directory(1, 3))
    second = agent.wait_for_event("directory.failed", path=str(cluster.directory(1, 3)))
    assert agent.wait(END_S) == 74
    reason = last_words(agent)
    assert str(cluster.directory(1, 2)) in reason and str(cluster.directory(1, 3)) not in reason
    decided = moment(agent.events("agent.stopping")[0])
    assert moment(first) + 5.5 < decided < moment(second) + 6


def test_two_failures_in_one_heartbeat_are_both_cleared_by_its_answer(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    controller = cluster.start_controller()
    timeout_s = 6
    agent = leading_agent(cluster, cluster.configure(1, log_dir_failure_timeout_ms=1000 * timeout_s))
    controller.signal(signal.SIGSTOP)
    for number in (2, 3):
        move_away(cluster.directory(1, number))
    wait_until(lambda: len(agent.events("directory.failed")) == 2, 30, "both verdicts")
    failed = agent.events("directory.failed")
    # By then the heartbeat that carried the first alone is given up, and the one that is out carries both.
    wait_until(lambda: time.time() > moment(failed[-1]) + HEARTBEAT_S + 0.5, 10, "a heartbeat with both")
    controller.signal(signal.SIGCONT)
    acknowledged = agent.wait_for_event("directory.offline.acknowledged")
    assert set(acknowledged["directory_ids"]) == {event["directory_id"] for event in failed}
    wait_until(lambda: time.time() > moment(failed[-1]) + timeout_s + 0.5, 30, "both deadlines to pass")
    assert agent.running


# ------------------------------------------------------------------------------------------- a controller out of reach


class InNetwork(Processes):
    """Starts processes in a network namespace with nothing but a loopback interface of its own."""

    def __init__(self, log_directory: Path) -> None:
        super().__init__(log_directory)
        ready = "ip link set lo up && echo up && exec sleep infinity"
        holder = super().start(["unshare", "-n", "sh", "-c", ready], name="network")
        holder.wait_for_text("up")
        self._enter = ["nsenter", "-t", str(holder.pid), "-n"]
        self._namespace = Path(f"/proc/{holder.pid}/ns/net")

    def start(self, command: Sequence[str], *, name: str) -> ManagedProcess:
        return super().start([*getattr(self, "_enter", []), *command], name=name)

    def drop(self, port: int) -> None:
        """From now on no packet to or from this TCP port arrives, and nobody is told."""
        rules = (
            "add table inet test; add chain inet test in { type filter hook input priority 0; };"
            f"add rule inet test in tcp dport {port} drop; add rule inet test in tcp sport {port} drop"
        )
        subprocess.run([*self._enter, "nft", rules], check=True, capture_output=True, timeout=30)

    def inside(self, work: Callable[[], None]) -> None:
        """Run ``work`` on a thread that is in the namespace; threads that it starts are as well. It must start no
        processes: they end with the thread."""
        errors: list[BaseException] = []

        def enter() -> None:
            fd = os.open(self._namespace, os.O_RDONLY)
            try:
                assert ctypes.CDLL(None, use_errno=True).setns(fd, 0) == 0
                work()
            except BaseException as error:  # noqa: BLE001  it belongs to the caller's thread
                errors.append(error)
            finally:
                os.close(fd)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]


@pytest.fixture
def network(tmp_path: Path) -> Iterator[InNetwork]:
    with InNetwork(tmp_path / "logs") as started:
        yield started


@pytest.mark.parametrize("when", ["established", "while connecting"])
def test_half_open_connections_do_not_keep_the_agent(tmp_path: Path, network: InNetwork, when: str) -> None:
    cluster = Cluster(tmp_path, network)
    controller = cluster.start_controller()
    config = cluster.configure(1, log_dir_failure_timeout_ms=TIMEOUT_MS)
    agent = leading_agent(cluster, config, network.inside)
    network.drop(cluster.port)
    if when == "while connecting":
        # It cannot hear of this end either, gives the connection up, and then tries to open another one.
        controller.signal(signal.SIGKILL)
        agent.wait_for_event("controller.request.failed")
    move_away(cluster.directory(1, 3))
    assert agent.wait(END_S) == 74
    reason = last_words(agent)
    for part in (str(cluster.directory(1, 3)), "failed since", "log.dir.failure.timeout.ms"):
        assert part in reason


# ------------------------------------------------------------------------------------------------ a log out of service


def _full_pipe(stack: ExitStack, _: Path) -> int:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _fill(writer)
    os.set_blocking(writer, True)
    stack.callback(os.close, reader)
    return writer


def _full_socket(stack: ExitStack, _: Path) -> int:
    """What the journal's stream is when journald stands still."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    _fill(ours.fileno())
    ours.setblocking(True)
    stack.callback(theirs.close)
    return ours.detach()


def _closed_pipe(_stack: ExitStack, _: Path) -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def _full_disk(_stack: ExitStack, full: Path) -> int:
    return os.open(full / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def _mount_full(stack: ExitStack, mount_point: Path) -> Path:
    mount_point.mkdir()
    syscalls.mount("kjbod-full", mount_point, "tmpfs", data="size=64k")
    stack.callback(syscalls.umount, mount_point, syscalls.MNT_DETACH)
    with open(mount_point / "ballast", "wb", buffering=0) as ballast:
        _fill(ballast.fileno())
    return mount_point


def _fill(fd: int) -> None:
    try:
        while True:
            os.write(fd, bytes(4096))
    except OSError:
        return


SINKS: dict[str, Callable[[ExitStack, Path], int]] = {
    "a pipe that nobody reads": _full_pipe,
    "a stopped journald": _full_socket,
    "a pipe without a reader": _closed_pipe,
    "a full disk": _full_disk,
}


def _begin(stack: ExitStack, config: Path, stderr: int) -> Started | subprocess.Popen[bytes]:
    agent = begin_kjbod("agent", "-c", str(config), out=1, err=stderr)
    stack.callback(agent.wait, END_S)
    stack.callback(agent.send_signal, signal.SIGKILL)
    return agent


def test_a_log_that_takes_nothing_keeps_no_agent_from_working_and_ending(tmp_path: Path, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    controller = cluster.start_controller()
    with ExitStack() as stack:
        full = _mount_full(stack, tmp_path / "full")
        agents = {}
        for node, (sink, open_sink) in enumerate(SINKS.items(), 1):
            config = cluster.configure(node, directories=1, kjbod_reports_dir=full / "reports")
            stderr = open_sink(stack, full)
            stack.callback(os.close, stderr)
            agents[sink] = _begin(stack, config, stderr)
        for node in range(1, len(agents) + 1):
            controller.wait_for_event("broker.unfenced", broker_id=node)
        controller.signal(signal.SIGSTOP)
        for node in range(1, len(agents) + 1):
            move_away(cluster.directory(node, 1))
        assert {sink: agent.wait(END_S) for sink, agent in agents.items()} == dict.fromkeys(SINKS, 74)
        controller.signal(signal.SIGCONT)


def test_a_refused_start_ends_with_its_own_exit_code_also_when_nobody_reads_why(
    tmp_path: Path, processes: Processes
) -> None:
    cluster = Cluster(tmp_path, processes)
    config = cluster.configure(1, directories=1)
    (cluster.directory(1, 1) / "lost+found").mkdir()
    with ExitStack() as stack:
        for sink in ("a pipe that nobody reads", "a pipe without a reader"):
            stderr = SINKS[sink](stack, tmp_path)
            stack.callback(os.close, stderr)
            assert _begin(stack, config, stderr).wait(END_S) == 1, sink


def test_an_agent_that_is_started_without_any_standard_descriptor_writes_its_log_into_no_connection(
    tmp_path: Path, processes: Processes
) -> None:
    cluster = Cluster(tmp_path, processes)
    controller = cluster.start_controller()
    config = cluster.configure(1, directories=1)
    closed = ["sh", "-c", 'exec "$0" "$@" 0<&- 1>&- 2>&-', kjbod_command()]
    agent = processes.start([*closed, "agent", "-c", str(config)], name="agent-closed")
    controller.wait_for_event("broker.unfenced", broker_id=1)
    assert os.readlink(f"/proc/{agent.pid}/fd/2") == os.devnull
    assert agent.stop() == 0


# --------------------------------------------------------------------------------------- workers stuck in their disks


def workers(places: Sequence[Path], states: str = "RSDI") -> list[int]:
    """The workers of these directories, of whatever agent, that are in one of these states."""
    names = {leftovers.worker_name("broker", str(place)) for place in places}
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() in names:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                found += [int(entry.name)] if state in states else []
    return found


def stuck_workers(places: Sequence[Path]) -> int:
    return len(workers(places, "D"))


def _places(base: Path, disks: Sequence[RealDisk]) -> list[Path]:
    """What the agent of :func:`_on_disks` has workers for."""
    return [*(disk.log_dir for disk in disks), base / "metadata"]


def _on_disks(cluster: Cluster, base: Path, real_disk: MakeDisk, **settings: object) -> tuple[Path, list[RealDisk]]:
    disks = [real_disk(base / "mnt" / f"disk{number}") for number in (1, 2, 3)]
    log_dirs = ",".join(str(disk.log_dir) for disk in disks)
    defaults = {"metadata_log_dir": base / "metadata", "kjbod_held_timeout_ms": 2000}
    return cluster.configure(1, log_dirs=log_dirs, **cast(Any, {**defaults, **settings})), disks


def test_several_stuck_disks_and_a_silent_controller_keep_neither_the_end_nor_a_restart_and_cost_one_process_each(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    cluster = Cluster(tmp_path, processes)
    controller = cluster.start_controller()
    config, disks = _on_disks(cluster, tmp_path, real_disk, log_dir_failure_timeout_ms=5000)
    agent = leading_agent(cluster, config)
    controller.signal(signal.SIGSTOP)
    for disk in disks[:2]:
        disk.set(FaultMode.HANG_WRITES)  # a worker that waits for a read could be killed
    wait_until(lambda: len(agent.events("directory.failed")) == 2, 30, "both verdicts")
    assert agent.wait(END_S) == 74
    assert any(str(disk.log_dir) in last_words(agent) for disk in disks[:2])
    controller.signal(signal.SIGCONT)
    places = _places(tmp_path, disks)
    again = cluster.start_agent(config)
    again.wait_for_event("agent.unfenced", 60)  # locks and port were free
    offline = {event["path"] for event in again.events("directory.unreadable")}
    assert offline == {str(disk.log_dir) for disk in disks[:2]}
    assert again.stop(END_S) == 0
    wait_until(
        lambda: len(workers(places)) == stuck_workers(places) == 2, 10, "one stuck worker for each disk and no more"
    )
    for disk in disks[:2]:
        disk.set(FaultMode.OK)
    wait_until(lambda: not workers(places), 30, "the workers to end with the trouble of their disks")
    well = cluster.start_agent(config)
    well.wait_for_event("agent.unfenced", 60)
    assert not well.events("directory.unreadable")


def test_a_stuck_metadata_disk_ends_the_agent_at_once_though_the_controller_is_silent(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    cluster = Cluster(tmp_path, processes)
    controller = cluster.start_controller()
    config, disks = _on_disks(cluster, tmp_path, real_disk, metadata_log_dir=tmp_path / "mnt" / "disk1")
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    controller.signal(signal.SIGSTOP)
    disks[0].set(FaultMode.HANG)
    assert agent.wait(END_S) == 74
    assert f"cluster metadata is lost: log directory {disks[0].log_dir}" in last_words(agent)
    controller.signal(signal.SIGCONT)


def test_a_stop_does_not_wait_for_a_frozen_disk(tmp_path: Path, real_disk: MakeDisk, processes: Processes) -> None:
    cluster = Cluster(tmp_path, processes)
    cluster.start_controller()
    config, disks = _on_disks(cluster, tmp_path, real_disk, kjbod_held_timeout_ms=0)
    agent = cluster.start_agent(config)
    agent.wait_for_event("agent.unfenced")
    disks[1].freeze()
    agent.wait_for_event("directory.verdict", state="held")
    assert agent.stop(END_S) == 0
    last_words(agent)
    assert stuck_workers(_places(tmp_path, disks)) == 1
    disks[1].thaw()
    assert (disks[0].log_dir / ".kafka_cleanshutdown").exists()
    assert not (disks[1].log_dir / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("times", [1, 2])
def test_sigterm_ends_a_start_that_waits_for_a_stuck_disk(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes, times: int
) -> None:
    cluster = Cluster(tmp_path, processes)
    config, disks = _on_disks(cluster, tmp_path, real_disk)
    disks[1].set(FaultMode.HANG)
    agent = cluster.start_agent(config)
    # The handler is there before the first worker is.
    places = _places(tmp_path, disks)
    wait_until(lambda: len(workers(places)) == len(places), 30, "the workers")
    for _ in range(times):
        agent.signal(signal.SIGTERM)
    assert agent.wait(END_S) == 0
    assert last_words(agent) == "asked to stop before the directories were loaded"


# -------------------------------------------------------------------------------------------- mistakes of our own

BUG = """
from kjbod_host.report_writer import ReportWriter
async def close(self, timeout_ms=0):
    raise RuntimeError("a bug at the end")
ReportWriter.close = close
"""


def test_a_bug_in_the_clean_up_is_logged_and_changes_neither_the_exit_code_nor_the_last_words(tmp_path: Path) -> None:
    (tmp_path / "for-test").mkdir()
    (tmp_path / "for-test" / "sitecustomize.py").write_text(BUG)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "for-test")}
    with Processes(tmp_path / "logs", environment) as processes:
        cluster = Cluster(tmp_path, processes)
        cluster.start_controller()
        agent = cluster.start_agent(cluster.configure(1, directories=1))
        agent.wait_for_event("agent.unfenced")
        move_away(cluster.directory(1, 1))
        assert agent.wait(END_S) == 74
        assert str(cluster.directory(1, 1)) in last_words(agent)
        assert "a bug at the end" in str(agent.events("agent.crashed"))


# ----------------------------------------------------------------------------------------------- what systemd is told


class Manager:
    """The service manager's end of sd_notify(3)."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        while True:
            try:
                self.heard.append(self._socket.recv(8192).decode())
            except BlockingIOError:
                return self.heard

    def close(self) -> None:
        self._socket.close()


def test_the_status_text_names_a_failed_directory_and_since_when_and_so_do_the_last_words(tmp_path: Path) -> None:
    manager = Manager(tmp_path / "notify")
    environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
    with Processes(tmp_path / "logs", environment) as processes:
        cluster = Cluster(tmp_path, processes)
        cluster.start_controller()
        agent = cluster.start_agent(cluster.configure(1))
        agent.wait_for_event("agent.unfenced")
        move_away(cluster.directory(1, 2))
        agent.wait_for_event("directory.offline.acknowledged")
        told = f"{cluster.directory(1, 2)} failed since 2"
        wait_until(lambda: [text for text in manager.listen() if text.endswith("Z") or told in text], 10, "the status")
        move_away(cluster.directory(1, 1))
        assert agent.wait(END_S) == 74
        reason = last_words(agent)
        assert f"log directory {cluster.directory(1, 1)}" in reason and "failed since" in reason
        statuses = [text for text in manager.listen() if "STATUS=" in text]
        assert statuses[-1] == f"STOPPING=1\nSTATUS={reason}"
    manager.close()
