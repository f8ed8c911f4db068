from pathlib import Path

import pytest

from kjbod_agent.health.block import BlockCounters, BlockDevice, block_device_of, read_counters
from kjbod_agent.health.mounts import Mount

STAT = "     100    1     2     3      40    5    6    7     {in_flight}    55    66    7   0   0   0   3   0\n"


class Sysfs:
    """A small /sys: disks, a partition, a dm device over it, a btrfs file system."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("dev/block", "block", "fs/btrfs/uuid-1/devices"):
            (root / folder).mkdir(parents=True)

    def disk(self, name: str, device: str, in_flight: int = 0) -> Path:
        path = self.root / "devices" / name
        (path / "slaves").mkdir(parents=True)
        (path / "device").mkdir()
        (path / "dev").write_text(device + "\n")
        (path / "stat").write_text(STAT.format(in_flight=in_flight))
        (self.root / "block" / name).symlink_to(path)
        (self.root / "dev" / "block" / device).symlink_to(path)
        return path

    def partition(self, disk: Path, name: str, device: str) -> Path:
        path = disk / name
        path.mkdir()
        (path / "partition").write_text("1\n")
        (self.root / "dev" / "block" / device).symlink_to(path)
        return path


def mount(device: str, fstype: str = "ext4", source: str = "/dev/x") -> Mount:
    return Mount(40, 27, device, "/", "/mnt/d1", fstype, source, frozenset({"rw"}))


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_a_partition_stands_for_its_whole_disk(sysfs: Sysfs) -> None:
    disk = sysfs.disk("sdb", "8:16", in_flight=2)
    (disk / "device" / "model").write_text("ACME 4000  \n")
    (disk / "device" / "serial").write_text("S1\n")
    sysfs.partition(disk, "sdb1", "8:17")
    device = block_device_of(mount("8:17"), sysfs.root)
    assert device == BlockDevice(("sdb",), "8:16", model="ACME 4000", serial="S1")
    assert read_counters(device, sysfs.root) == BlockCounters(
        in_flight=2, completed=150, busy_ms=55, reads=100, read_bytes=1024, writes=40, write_bytes=3072
    )
    (disk / "device" / "ioerr_cnt").write_text("0x1f\n")
    counters = read_counters(device, sysfs.root)
    assert counters is not None and counters.errors == 31


def test_a_logical_volume_counts_itself_and_names_the_disk_below(sysfs: Sysfs) -> None:
    disk = sysfs.disk("sdb", "8:16")
    (disk / "device" / "serial").write_text("S1\n")
    partition = sysfs.partition(disk, "sdb1", "8:17")
    volume = sysfs.disk("dm-3", "253:3", in_flight=1)
    (volume / "slaves" / "sdb1").symlink_to(partition)
    device = block_device_of(mount("253:3"), sysfs.root)
    assert (device.names, device.serial) == (("dm-3",), "S1")


def test_btrfs_is_the_sum_of_its_devices(sysfs: Sysfs) -> None:
    for number, name in enumerate(("sdc", "sdd")):
        disk = sysfs.disk(name, f"8:{32 + 16 * number}", in_flight=1)
        (sysfs.root / "fs/btrfs/uuid-1/devices" / name).symlink_to(disk)
    device = block_device_of(mount("0:44", "btrfs", "/dev/sdd"), sysfs.root)
    assert device.names == ("sdc", "sdd")
    assert read_counters(device, sysfs.root) == BlockCounters(
        in_flight=2, completed=300, busy_ms=110, reads=200, read_bytes=2048, writes=80, write_bytes=6144
    )


@pytest.mark.parametrize("fstype", ["fuse.glusterfs", "overlay", "nfs4", "tmpfs"])
def test_a_file_system_without_a_device_says_so(sysfs: Sysfs, fstype: str) -> None:
    device = block_device_of(mount("0:50", fstype), sysfs.root)
    assert (device.names, device.reason) == ((), f"{fstype} has no block device")
    assert read_counters(device, sysfs.root) is None


def test_a_disk_that_was_pulled_has_no_counters(sysfs: Sysfs) -> None:
    sysfs.disk("sdb", "8:16")
    device = block_device_of(mount("8:16"), sysfs.root)
    (sysfs.root / "devices" / "sdb" / "stat").unlink()
    assert read_counters(device, sysfs.root) is None
