"""The whole path on real disks: the kernel refuses, the agent says so, the controller moves leadership."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from scripts.rig.processes import ManagedProcess, Processes
from tests.agent.daemon_cluster import LEADING_SESSION_MS, Cluster, wait_assigned

pytestmark = pytest.mark.usefixtures("as_root")

PARTITIONS = 24
MakeDisk = Callable[..., RealDisk]


class Rig(NamedTuple):
    cluster: Cluster
    controller: ManagedProcess
    agent: ManagedProcess
    """Of broker 1, on three real disks."""
    disks: list[RealDisk]


def _start(
    tmp_path: Path,
    real_disk: MakeDisk,
    processes: Processes,
    *,
    session_ms: int = LEADING_SESSION_MS,
    **settings: Any,
) -> Rig:
    """Broker 1 on real disks, broker 2 on plain directories, a topic with a replica of every partition on both, of
    which broker 1 leads all."""
    cluster = Cluster(tmp_path, processes)
    cluster.configure_controller({"broker.session.timeout.ms": session_ms})
    disks = [real_disk(tmp_path / "mnt" / f"disk{number}") for number in (1, 2, 3)]
    # The metadata directory is apart: with it on a disk, that disk's death would be the broker's.
    metadata = tmp_path / "metadata"
    log_dirs = ",".join(str(disk.log_dir) for disk in disks)
    config = cluster.configure(1, 3, log_dirs=log_dirs, metadata_log_dir=metadata, **settings)
    controller = cluster.start_controller()
    agents = [cluster.start_agent(config), cluster.start_agent(cluster.configure(2))]
    for agent in agents:
        agent.wait_for_event("agent.unfenced")
    cluster.create_topic("events", partitions=PARTITIONS, brokers=(1, 2))
    for agent in agents:
        wait_assigned(agent, PARTITIONS)
    if session_ms == LEADING_SESSION_MS:
        cluster.wait_leading(1, PARTITIONS // len(disks), len(disks))
    return Rig(cluster, controller, agents[0], disks)


FAULTS: dict[str, tuple[Callable[[RealDisk], None], str]] = {
    "device answers EIO": (lambda disk: disk.set(FaultMode.EIO), "EIO"),
    "device fails reads": (lambda disk: disk.set(FaultMode.EIO_READS), "EIO"),
    "ext4 makes itself read-only (emergency_ro)": (lambda disk: disk.trigger_fs_error(), "EROFS"),
    "unmounted": (lambda disk: disk.unmount(), ""),
    "something is mounted over it": (lambda disk: disk.over_mount(), ""),
    "device hangs": (lambda disk: disk.set(FaultMode.HANG), ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_leadership_leaves_a_disk_that_fails_and_only_that_disk(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes, fault: str
) -> None:
    rig = _start(tmp_path, real_disk, processes)
    break_it, errno = FAULTS[fault]
    broken = rig.disks[1]
    break_it(broken)
    failed = rig.agent.wait_for_event("directory.failed")
    assert failed["path"] == str(broken.log_dir)
    assert str(broken.log_dir) in failed["evidence"]
    assert errno in failed["evidence"]
    acknowledged = rig.agent.wait_for_event("directory.offline.acknowledged")
    assert acknowledged["directory_ids"] == [failed["directory_id"]]
    moved = rig.agent.wait_for_event("directory.leadership.moved")
    assert moved["directory_id"] == failed["directory_id"]
    record = rig.controller.wait_for_event("directories.offline", broker_id=1)
    assert record["directory_ids"] == [failed["directory_id"]]
    assert record["remaining"] == 2
    # A worker may be stuck in the kernel now; neither that nor the dead disk keeps the agent.
    assert rig.agent.stop() == 0
    assert len(rig.agent.events("directory.failed")) == 1


def test_a_failure_while_the_controller_is_down_is_reported_when_it_is_back(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    rig = _start(tmp_path, real_disk, processes)
    rig.controller.kill()
    rig.disks[2].set(FaultMode.EIO)
    failed = rig.agent.wait_for_event("directory.failed")
    controller = rig.cluster.start_controller()
    controller.wait_for_event("directories.offline", broker_id=1, directory_ids=[failed["directory_id"]])
    rig.agent.wait_for_event("directory.offline.acknowledged")
    assert rig.agent.running


def test_agent_with_a_hung_disk_and_a_frozen_controller_is_gone_in_time_and_its_port_and_locks_are_free(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    rig = _start(tmp_path, real_disk, processes, log_dir_failure_timeout_ms=1500)
    rig.controller.signal(signal.SIGSTOP)
    rig.disks[0].set(FaultMode.HANG)
    rig.agent.wait_for_event("directory.failed")
    assert rig.agent.wait(10) == 74
    assert str(rig.disks[0].log_dir) in rig.agent.events("agent.stopped")[0]["reason"]
    rig.controller.signal(signal.SIGCONT)
    # The disk still hangs, and a worker with it: a new agent must get the locks of the healthy ones all the same.
    again = rig.cluster.start_agent(rig.cluster.base / "b1" / "server.properties")
    again.wait_for_event("agent.unfenced", 60)


def test_kill_9_of_the_agent_loses_no_replica_and_no_assignment(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    rig = _start(tmp_path, real_disk, processes, session_ms=9_000)  # for which the next one has to wait
    before = [sorted(path.name for path in disk.log_dir.glob("events-*")) for disk in rig.disks]
    assert sum(map(len, before)) == PARTITIONS
    rig.agent.kill()
    again = rig.cluster.start_agent(rig.cluster.base / "b1" / "server.properties")
    again.wait_for_event("agent.unfenced", 60)
    assert [sorted(path.name for path in disk.log_dir.glob("events-*")) for disk in rig.disks] == before
    assert not again.events("assignments.sent")


def test_losing_the_last_disk_ends_the_agent_at_once(tmp_path: Path, real_disk: MakeDisk, processes: Processes) -> None:
    rig = _start(tmp_path, real_disk, processes)
    for number, disk in enumerate(rig.disks, 1):
        disk.set(FaultMode.EIO)
        if number < len(rig.disks):
            rig.agent.wait_for_event("directory.offline.acknowledged", after=_last_failure(rig.agent, number))
    assert rig.agent.wait() == 74
    assert "no log directory is left" in rig.agent.events("agent.stopped")[0]["reason"]


def _last_failure(agent: ManagedProcess, count: int) -> int:
    """How many log lines there are up to the ``count``-th failed directory."""
    agent.wait_for_event("directory.failed", where=lambda _: len(agent.events("directory.failed")) >= count)
    lines = agent.events()
    return lines.index(agent.events("directory.failed")[count - 1])


def test_a_pause_of_the_agent_that_is_longer_than_the_failure_timeout_does_not_end_it_once_the_failure_is_recorded(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    """The controller's answer lies in the socket when the agent goes on: it is heard before the deadline is decided."""
    rig = _start(tmp_path, real_disk, processes, log_dir_failure_timeout_ms=3000, broker_heartbeat_interval_ms=20_000)
    rig.controller.signal(signal.SIGSTOP)
    rig.disks[1].unmount()  # found long before the next heartbeat is due, so that no other is on its way
    rig.agent.wait_for_event("directory.offline.sent")
    sent_s = time.monotonic()
    rig.agent.signal(signal.SIGSTOP)
    rig.controller.signal(signal.SIGCONT)
    rig.controller.wait_for_event("directories.offline", broker_id=1)
    time.sleep(max(0.0, sent_s + 6 - time.monotonic()))  # the pause is what is tested
    rig.agent.signal(signal.SIGCONT)
    rig.agent.wait_for_event("agent.paused")
    rig.agent.wait_for_event("directory.offline.acknowledged")
    assert rig.agent.running
    assert len(rig.agent.events("directory.failed")) == 1
    assert rig.agent.stop() == 0
