"""What a probe finds on real disks that were wiped, cut, set back, filled or that lie, within the stated bounds."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod_host.storage import worker
from tests.agent.storage.here import TOPIC_ID, Here

pytestmark = pytest.mark.usefixtures("as_root")

FILE_SYSTEMS = ["ext4", "xfs", "btrfs"]
DAMAGED = ("EILSEQ at ", "EIO at ")
"""btrfs keeps checksums and answers EIO itself."""


@contextlib.contextmanager
def probed(disk: RealDisk) -> Iterator[Here]:
    with Here(disk.log_dir) as here:
        here.format()
        for _ in range(3):
            assert here.probe(full=True) == "ok"
        syscalls.sync_filesystem(disk.mount_point)
        yield here


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
def test_a_disk_that_was_wiped_is_seen_by_the_next_probe(real_disk: Callable[..., RealDisk], fstype: str) -> None:
    disk = real_disk(fstype=fstype)
    with probed(disk) as here:
        disk.wipe()
        assert here.probe().startswith(DAMAGED)
        assert here.probe(full=True).startswith(DAMAGED), "it does not come back by writing"


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
def test_a_disk_that_was_cut_is_seen_by_the_next_probe(real_disk: Callable[..., RealDisk], fstype: str) -> None:
    disk = real_disk(fstype=fstype)
    with probed(disk) as here:
        disk.truncate(0)
        assert here.probe().startswith("EIO at read of ")


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
def test_a_disk_that_was_set_back_to_an_older_state_of_itself_is_seen_by_the_next_probe(
    real_disk: Callable[..., RealDisk], fstype: str
) -> None:
    disk = real_disk(fstype=fstype)
    with probed(disk) as here:
        disk.keep()
        assert here.probes(3) == ["ok"] * 3
        disk.restore()
        assert here.probe() == "EILSEQ at comparison of .kjbod_probe with the last probe"


def test_half_a_disk_that_was_wiped_is_seen_where_replicas_lie(real_disk: Callable[..., RealDisk]) -> None:
    disk = real_disk(fstype="xfs")  # puts directories into its groups in turn, also on a disk this small
    with Here(disk.log_dir) as here:
        here.format()
        replicas = 16
        for partition in range(replicas):
            here.ask("create_replica", name=f"t-{partition}", topic_id=TOPIC_ID)
        assert [here.probe(full=True) for _ in range(replicas + 1)] == ["ok"] * (replicas + 1)
        syscalls.sync_filesystem(disk.mount_point)
        offsets = disk.find(b"version: 0\ntopic_id: ", step=512)
        assert len(offsets) >= replicas
        disk.scribble([offset for offset in offsets if offset > disk.size_bytes // 2], 64)
        answers = here.probes(replicas + 1)
        assert answers[-1].startswith("EILSEQ at comparison of t-")
        assert answers[-1] == answers[-2], "the next probe, which is to confirm it, meets it again"
        assert not any(".kjbod" in answer for answer in answers), "the known file lies in the half that is well"


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
@pytest.mark.parametrize("mode", [FaultMode.LOSE_WRITES, FaultMode.FLIP_READS])
def test_a_disk_that_lies_is_seen_by_the_next_probe(
    real_disk: Callable[..., RealDisk], fstype: str, mode: FaultMode
) -> None:
    disk = real_disk(fstype=fstype)
    with probed(disk) as here:
        disk.set(mode)
        assert here.probe().startswith(DAMAGED)


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
def test_a_thin_pool_that_is_full_is_no_room_also_while_the_file_system_shows_some(
    real_disk: Callable[..., RealDisk], fstype: str
) -> None:
    disk = real_disk(fstype=fstype)
    with probed(disk) as here:
        disk.set(FaultMode.ENOSPC)
        assert here.probe() == "ok ENOSPC unwritten"
        disk.set(FaultMode.OK)
        assert here.probes(2) == ["ok", "ok"]


def fill(path: Path) -> None:
    """Leave no byte free."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for size in (1 << 20, 1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    os.write(fd, b"x" * size)
        with contextlib.suppress(OSError):
            os.fsync(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
@pytest.mark.parametrize("mode", [FaultMode.EIO, FaultMode.EIO_READS, FaultMode.EIO_WRITES])
def test_a_full_disk_is_still_overwritten_and_is_a_dead_one_when_it_dies(
    real_disk: Callable[..., RealDisk], fstype: str, mode: FaultMode
) -> None:
    disk = real_disk(fstype=fstype)
    with probed(disk) as here:
        fill(disk.log_dir / "filler")
        assert here.probe() == "ok", "btrfs too: the file of the probe is not copied on write"
        disk.set(mode)
        assert here.probe().startswith("EIO at ")


def test_a_file_system_without_inodes_is_full(real_disk: Callable[..., RealDisk]) -> None:
    disk = real_disk()
    with probed(disk) as here:
        (disk.log_dir / ".kjbod_created").unlink()
        place = disk.mount_point / "t-0"
        place.mkdir()
        with contextlib.suppress(OSError):
            for number in range(1 << 20):
                os.close(os.open(place / str(number), os.O_CREAT | os.O_WRONLY))
        assert [here.probe(), here.probe(full=True)] == ["ok", "ok ENOSPC"]


def test_an_immutable_directory_answers_eperm(real_disk: Callable[..., RealDisk]) -> None:
    disk = real_disk()
    with probed(disk) as here:
        probe = disk.log_dir / ".kjbod_probe"
        for path in (probe, disk.log_dir):
            syscalls.set_inode_flags(path, syscalls.inode_flags(path) | syscalls.FS_IMMUTABLE_FL)
        try:
            assert here.probe() == "EPERM at open of .kjbod_probe"
        finally:
            for path in (disk.log_dir, probe):
                syscalls.set_inode_flags(path, syscalls.inode_flags(path) & ~syscalls.FS_IMMUTABLE_FL)
        assert here.probe() == "ok"


def test_a_directory_that_is_deleted_or_is_another_one_is_never_made_or_written(
    real_disk: Callable[..., RealDisk],
) -> None:
    disk = real_disk(log_dir="kafka")
    with probed(disk) as here:
        moved = disk.mount_point / "moved"
        disk.log_dir.rename(moved)
        assert here.probe() == f"ENOENT at open of {disk.log_dir}"
        disk.log_dir.mkdir()
        assert here.probe(full=True) == f"ESTALE at identity of {disk.log_dir}"
        assert list(disk.log_dir.iterdir()) == []
        disk.log_dir.rmdir()
        moved.rename(disk.log_dir)
        meta = disk.log_dir / "meta.properties"
        meta.write_text("version=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n")
        assert here.probe() == "ESTALE at directory.id in meta.properties"


def test_a_probe_reads_and_writes_so_many_blocks(real_disk: Callable[..., RealDisk]) -> None:
    disk = real_disk(fstype="xfs")
    with probed(disk) as here:
        here.ask("create_replica", name="t-0", topic_id=TOPIC_ID)
        here.probe()
        before = disk.counters().reads
        assert here.probes(worker.KNOWN_BLOCKS) == ["ok"] * worker.KNOWN_BLOCKS
        assert disk.counters().reads - before == 5 * worker.KNOWN_BLOCKS, "known, replica, last, read back; meta"
