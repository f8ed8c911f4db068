from pathlib import Path

from kjbod_host.health.block import BlockDevice
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sources.api import Subject
from kjbod_host.health.sources.device_stack import DeviceMap


class Sysfs:
    """A small /sys: disks, partitions, stacks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("dev/block", "block"):
            (root / folder).mkdir(parents=True)

    def disk(self, name: str, number: str, *slaves: Path) -> Path:
        path = self.root / "devices" / name
        (path / "slaves").mkdir(parents=True)
        (path / "dev").write_text(f"{number}\n")
        (self.root / "block" / name).symlink_to(path)
        (self.root / "dev" / "block" / number).symlink_to(path)
        for slave in slaves:
            (path / "slaves" / slave.name).symlink_to(slave)
        return path

    def partition(self, disk: Path, name: str, number: str) -> Path:
        path = disk / name
        path.mkdir()
        (path / "partition").write_text("1\n")
        (path / "dev").write_text(f"{number}\n")
        (self.root / "dev" / "block" / number).symlink_to(path)
        return path


def subject(path: str, number: str, *names: str, fstype: str = "ext4") -> Subject:
    mount = Mount(40, 27, number, "/", path, fstype, "/dev/x", frozenset({"rw"}))
    return Subject(path=path, mount=mount, device=BlockDevice(names, number))


def paths_of(devices: DeviceMap, number: str) -> tuple[str, ...]:
    return devices.names.get(devices.numbers.get(number, ""), ())


def test_a_partition_is_concerned_by_its_disk_and_not_by_its_neighbour(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    disk = sysfs.disk("sda", "8:0")
    sysfs.partition(disk, "sda1", "8:1")
    sysfs.partition(disk, "sda2", "8:2")
    devices = DeviceMap([subject("/d1", "8:1", "sda"), subject("/d2", "8:2", "sda")], tmp_path)
    assert paths_of(devices, "8:0") == ("/d1", "/d2")
    assert paths_of(devices, "8:1") == devices.names["sda1"] == ("/d1",)
    assert paths_of(devices, "8:2") == ("/d2",)
    assert paths_of(devices, "8:3") == ()


def test_a_volume_is_concerned_by_every_layer_down_to_the_disks(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    first, second = sysfs.disk("sda", "8:0"), sysfs.disk("sdb", "8:16")
    raid = sysfs.disk("md0", "9:0", sysfs.partition(first, "sda3", "8:3"), second)
    crypt = sysfs.disk("dm-0", "253:0", raid)
    sysfs.disk("dm-1", "253:1", crypt)
    devices = DeviceMap([subject("/d1", "253:1", "dm-1")], tmp_path)
    assert set(devices.names) == {"dm-1", "dm-0", "md0", "sda3", "sda", "sdb"}
    assert paths_of(devices, "8:16") == ("/d1",)


def test_every_device_of_a_btrfs_file_system_concerns_it(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.disk("sda", "8:0")
    sysfs.disk("sdb", "8:16")
    devices = DeviceMap([subject("/d1", "0:44", "sda", "sdb", fstype="btrfs")], tmp_path)
    assert paths_of(devices, "8:0") == paths_of(devices, "8:16") == ("/d1",)


def test_what_lies_on_no_device_is_named_and_a_ring_of_devices_ends(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    disk = sysfs.disk("dm-0", "253:0")
    (disk / "slaves" / "dm-0").symlink_to(disk)
    nowhere = Subject(path="/d3", mount=None, device=BlockDevice((), "", reason="its mount is not known"))
    devices = DeviceMap([subject("/d1", "253:0", "dm-0"), subject("/d2", "0:50", fstype="fuse"), nowhere], tmp_path)
    assert devices.missing == {"/d2", "/d3"}
    assert devices.names == {"dm-0": ("/d1",)}
