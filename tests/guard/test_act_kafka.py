"""A guard that acts for a real broker, which leads and follows with two others: a disk that hangs costs that disk, and
one that is frozen the broker; records are taken all the while."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults import syscalls
from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from scripts.rig.cluster import wait_until_serving
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, kjbod_command
from tests.guard.conftest import Beside
from tests.guard.trio import Others, Trio, other_brokers, three_brokers
from tests.pages.markdown import shown
from tests.pages.typed import run

pytestmark = pytest.mark.xdist_group("act-kafka")  # one controller, and two brokers, for all of them


@pytest.fixture(scope="module")
def others(world: None, kafka_kit: KafkaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Others]:
    with other_brokers(kafka_kit, tmp_path_factory.mktemp("others")) as found:
        yield found


def replace(trio: Trio, disk: RealDisk) -> str:
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
                wait_until_serving(trio.launch("broker-1-again"))
            if "guard restore" in command.text:
                path = str(disk.log_dir)
                assert trio.guard.wait_for_event("guard.done", 40, means="restore", path=path)["outcome"] == "done"
                trio.guard.wait_for_event("guard.directory", 60, path=path, state="well")
            done = run(command, names)
            assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
            said.append(done.stdout)
    return "".join(said)


def replace_by_command(trio: Trio, disk: RealDisk, tmp_path: Path) -> None:
    """Go through ``kjbod guard replace``, as the person with the new disk, until all replicas are in sync."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "systemctl").write_text("#!/bin/sh\n")  # the broker is a process of this test
    (tmp_path / "bin" / "systemctl").chmod(0o755)
    command = [kjbod_command(), "guard", "replace", *trio.watch.arguments, str(disk.log_dir)]
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as asking:
        assert asking.stdin is not None and asking.stdout is not None
        text = ""
        while piece := os.read(asking.stdout.fileno(), 4096).decode():
            text += piece
            answer = None
            if "[2/9]" in piece:
                disk.device, fd = syscalls.attach_loop(disk.image)  # before the old one goes: another device
                trio.broker.stop(120)
            if "[6/9]" in piece:
                subprocess.run(["mount", str(disk.device), str(disk.mount_point)], check=True)
            if "[8/9]" in piece:
                wait_until_serving(trio.launch("broker-1-again"))
            if text.endswith(("[y/N]: ", "[Y/n]: ")):
                answer = "y"
            elif text.endswith(": ") and "Repeat " in (last := text.rpartition("\n")[2]):
                answer = last.removeprefix("Repeat ").partition(";")[0]
            elif text.endswith(": ") and "Press Enter" in text.rpartition("\n")[2]:
                subprocess.run(["mkfs.ext4", "-q", "-F", str(disk.device)], check=True)
                answer = ""
            if answer is not None:
                asking.stdin.write(f"{answer}\n".encode())
                asking.stdin.flush()
    os.close(fd)
    assert asking.returncode == 0, text
    assert text.endswith(f"{disk.log_dir}: replaced. All replicas of the broker are in sync.\n"), text


@pytest.mark.every_run
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
        guard.wait_for_event("guard.done", means="trust")
        assert trio.watch.deeds() == ["report", "cut", "evict"]

        # Another disk takes its place while the guard runs.
        guard.wait_for_event("guard.directory.held", path=bad, held=False)
        said = replace(trio, trio.disks[1])
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
        wait_until_serving(trio.launch("broker-1-again"))
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

        replace_by_command(trio, trio.disks[1], tmp_path)
        load.wait_all()
        assert not load.failed, load.failed[:3]
