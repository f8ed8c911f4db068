"""Moves of a real agent from a real disk that now and then reads another block: what is promoted is what was there."""

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.runtime.control_socket import ControlClient
from kjbod_host.storage.conformance import sealed
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.agent.daemon_cluster import Cluster, wait_assigned
from tests.agent.health.test_real_faults import make_immutable

pytestmark = [pytest.mark.usefixtures("as_root"), pytest.mark.timeout(180)]

BLOCK = 4096
LOG, INDEX = f"{0:020d}.log", f"{0:020d}.index"
PAYLOAD = 60_000
BATCHES = 40
MakeDisk = Callable[..., RealDisk]


def batch(offset: int, payload: bytes) -> bytes:
    """A record batch of magic 2 with one record's worth of bytes that are nobody else's."""
    header = (2).to_bytes(1, "big") + bytes(4) + bytes(2) + bytes(4)
    body = bytes(4) + header + bytes(49 - 4 - len(header)) + payload
    return sealed(offset.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body)


class Host:
    """Broker 1 with two real disks, and a replica with a log, an index and offsets on the first one."""

    def __init__(self, base: Path, disks: list[RealDisk], processes: Processes, **settings: Any) -> None:
        self.processes = processes
        self.cluster = Cluster(base, processes)
        self.disks = disks
        self.cluster.start_controller()
        log_dirs = ",".join(str(disk.log_dir) for disk in disks)
        config = self.cluster.configure(
            1, log_dirs=log_dirs, metadata_log_dir=base / "metadata", kjbod_agent_take_over="true", **settings
        )
        self.config = config
        self.agent: ManagedProcess = self.cluster.start_agent(config)
        self.agent.wait_for_event("agent.unfenced", 60)
        self.control = ControlClient(base / "b1" / "state", node_id=1, source=str(config))
        self.cluster.create_topic("moved", partitions=1, replication_factor=1)
        wait_assigned(self.agent, 1)
        self.source = next(disk for disk in disks if (disk.log_dir / "moved-0").is_dir())
        (self.destination,) = [disk for disk in disks if disk is not self.source]
        bits = random.Random(858)
        log = b"".join(batch(number, bits.randbytes(PAYLOAD)) for number in range(BATCHES))
        self.content = {LOG: log, INDEX: bits.randbytes(5 * BLOCK)}
        for name, content in self.content.items():
            self._put(self.source.log_dir / "moved-0" / name, content)
        checkpoint = f"0\n1\nmoved 0 {BATCHES}\n".encode()
        for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            self._put(self.source.log_dir / name, checkpoint)

    def _put(self, path: Path, content: bytes) -> None:
        """On the medium, and in no cache."""
        with open(path, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def blocks(self, name: str) -> list[int]:
        """Where the blocks of a file lie on the source."""
        content = self.content[name]
        starts = range(0, len(content) - BLOCK, BLOCK)
        found = [self.source.find(content[start : start + 24], BLOCK) for start in starts]
        assert all(len(offsets) == 1 for offsets in found)
        return [offsets[0] for offsets in found]

    def move(self) -> None:
        ((outcome,),) = self.control.stream("move", to=str(self.destination.log_dir), partitions=[["moved", 0]])
        assert outcome["error"] is None

    def move_and_watch(self) -> ManagedProcess:
        arguments = ["-c", str(self.config), "moved-0", "--to", str(self.destination.log_dir), "--watch"]
        return self.processes.kjbod("move", *arguments, name="move")

    def fill(self, left_bytes: int) -> None:
        """Leave so much of the destination free; with 0 also of what is reserved for root."""
        path = self.destination.log_dir / "filling"
        status = os.statvfs(path.parent)
        with open(path, "wb", buffering=0) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, (status.f_bavail - 256) * status.f_frsize - left_bytes))
            file.seek(0, os.SEEK_END)
            with contextlib.suppress(OSError):
                while not left_bytes:
                    file.write(bytes(BLOCK))

    def ended(self) -> bool:
        return not [move for part in self.control.stream("moves") for move in part["moves"]]

    def files(self, disk: RealDisk) -> dict[str, bytes]:
        """Of the current replica on a disk."""
        replica = disk.log_dir / "moved-0"
        return {name: (replica / name).read_bytes() for name in self.content if (replica / name).is_file()}


@pytest.fixture
def host(tmp_path: Path, real_disk: MakeDisk, processes: Processes) -> Host:
    return Host(tmp_path, [real_disk(tmp_path / "mnt" / f"d{number}") for number in (1, 2)], processes)


@pytest.mark.parametrize("file", [LOG, INDEX])
def test_a_block_that_was_read_wrong_once_is_not_promoted(host: Host, file: str) -> None:
    blocks = host.blocks(file)
    host.source.misread([blocks[len(blocks) // 2]], times=1)
    host.move()
    wait_until(host.ended, 60, "the end of the move")
    assert host.files(host.destination) == host.content
    assert host.agent.running
    assert not host.agent.events("directory.failed")


def test_a_path_that_gives_another_block_now_and_then_never_has_a_wrong_copy_promoted(host: Host) -> None:
    """Two errors in a minute fail the disk, as for any other work: then the source is what counts."""
    host.source.misread(host.blocks(LOG), every=3)
    host.move()
    wait_until(lambda: host.ended() or bool(host.agent.events("directory.failed")), 60, "an end")
    host.source.misread([])
    promoted: list[dict[str, Any]] = host.agent.events("replica.move.promoted")
    assert host.files(host.destination if promoted else host.source) == host.content


def test_a_log_that_is_damaged_at_rest_stays_where_it_is_and_the_move_says_where(host: Host) -> None:
    block = host.blocks(LOG)[100]
    host.source.misread([block])
    host.move()
    wait_until(host.ended, 60, "the end of the move")
    reason = host.agent.wait_for_event("replica.move.failed")["reason"]
    assert f"moved-0/{LOG} is damaged at byte {100 * BLOCK // (PAYLOAD + 61) * (PAYLOAD + 61)}, offset 6" in reason
    host.source.misread([])
    assert host.files(host.source) == host.content
    assert not host.files(host.destination)
    assert not host.agent.events("directory.failed")


def test_a_torn_tail_behind_the_recovery_point_is_moved_as_it_is(host: Host) -> None:
    """The agent recovers no log: the broker does, at its next start, and cuts it off there."""
    host.content[LOG] += host.content[LOG][-1000:] + bytes(3 * BLOCK)
    host._put(host.source.log_dir / "moved-0" / LOG, host.content[LOG])
    host.move()
    wait_until(host.ended, 60, "the end of the move")
    assert host.files(host.destination) == host.content


def test_a_replica_that_does_not_fit_is_refused_before_anything_is_copied(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    """However long ago the agent has looked at the disk."""
    disks = [real_disk(tmp_path / "mnt" / f"d{number}") for number in (1, 2)]
    host = Host(tmp_path, disks, processes, kjbod_probe_interval_ms=3_600_000)
    host.fill(2 << 20)
    watching = host.move_and_watch()
    assert watching.wait() == 1
    error = watching.stderr()
    assert error.startswith("kjbod: moved-0 has 2.3 MiB and ")
    assert error.endswith(": make room there, or move it elsewhere\n")
    assert len(error.splitlines()) == 1


def test_a_disk_that_fills_up_under_a_move_keeps_nothing_of_it_and_the_command_says_why(
    tmp_path: Path, real_disk: MakeDisk, processes: Processes
) -> None:
    disks = [real_disk(tmp_path / "mnt" / f"d{number}") for number in (1, 2)]
    host = Host(tmp_path, disks, processes, kjbod_move_bytes_per_second=2_000)
    watching = host.move_and_watch()
    host.agent.wait_for_event("replica.move.started")
    wait_until(lambda: list(host.destination.log_dir.glob("moved-0.*-future/*.index")), 30, "the copy")
    host.fill(0)
    assert watching.wait() == 1
    last = watching.stdout().splitlines()[-1]
    source, destination = host.source.log_dir, host.destination.log_dir
    assert last.startswith(f"moved-0: not moved, it is in {source}: {destination} is full: ")
    wait_until(lambda: not list(destination.glob("moved-0*")), 30, "nothing to be left")
    assert host.files(host.source) == host.content


def test_the_copy_that_a_move_left_is_kept_and_listed_when_the_disk_that_it_went_to_dies(host: Host) -> None:
    host.move()
    host.agent.wait_for_event("replica.move.promoted", timeout_s=60)
    wait_until(lambda: list(host.source.log_dir.glob("moved-0.*-delete")), 30, "the old name to be given up")
    host.destination.set(FaultMode.EIO)
    kept = host.agent.wait_for_event("replica.stray", timeout_s=60)
    (stray,), _ = host.control.stream("strays")
    assert stray["reason"].endswith(str(host.destination.log_dir))
    replica = host.source.log_dir / kept["renamed"]
    wait_until(replica.is_dir, 30, "its new name")
    assert {name: (replica / name).read_bytes() for name in host.content} == host.content


def test_an_immutable_replica_stays_where_it_is_and_its_disk_online(host: Host) -> None:
    replica = host.source.log_dir / "moved-0"
    make_immutable(replica)
    host.move()
    assert "EPERM" in host.agent.wait_for_event("replica.move.failed", timeout_s=60)["reason"]
    make_immutable(replica, immutable=False)
    assert host.files(host.source) == host.content
    host.move()
    wait_until(lambda: host.files(host.destination) == host.content, 60, "the replica at its destination")
    assert not host.agent.events("directory.failed")
