from pathlib import Path

import pytest

from kjbod_host.health.block import BlockCounters, BlockDevice
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sysfs import below, block_device_of, disk_sequence, mount_number, read_counters

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


def mount(device: str, fstype: str = "ext4", source: str = "/dev/x", *options: str) -> Mount:
    return Mount(40, 27, device, "/", "/mnt/d1", fstype, source, frozenset({"rw", *options}))


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    return Sysfs(tmp_path)


def test_a_partition_stands_for_its_whole_disk(sysfs: Sysfs) -> None:
    disk = sysfs.disk("sdb", "8:16", in_flight=2)
    (disk / "device" / "model").write_text("ACME 4000  \n")
    (disk / "device" / "serial").write_text("S1\n")
    sysfs.partition(disk, "sdb1", "8:17")
    device = block_device_of(mount("8:17"), sysfs.root)
    assert device == BlockDevice(("sdb",), "8:16", model="ACME 4000", serial="S1", disks=("sdb",))
    assert read_counters(device, sysfs.root) == BlockCounters(
        in_flight=2, completed=150, busy_ms=55, reads=100, read_bytes=1024, writes=40, write_bytes=3072, flushes=3
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
    assert (device.names, device.serial, device.disks) == (("dm-3",), "S1", ("sdb",))


def test_btrfs_is_the_sum_of_its_devices(sysfs: Sysfs) -> None:
    for number, name in enumerate(("sdc", "sdd")):
        disk = sysfs.disk(name, f"8:{32 + 16 * number}", in_flight=1)
        (sysfs.root / "fs/btrfs/uuid-1/devices" / name).symlink_to(disk)
    device = block_device_of(mount("0:44", "btrfs", "/dev/sdd"), sysfs.root)
    assert device.names == device.disks == ("sdc", "sdd")
    assert read_counters(device, sysfs.root) == BlockCounters(
        in_flight=2, completed=300, busy_ms=110, reads=200, read_bytes=2048, writes=80, write_bytes=6144, flushes=6
    )


class Layout:
    """Disks sdb to sde, of which sde has two partitions, and a volume vg-log on sdd."""

    def __init__(self, sysfs: Sysfs) -> None:
        self.sysfs, self.sys, self.proc = sysfs, sysfs.root, sysfs.root / "proc"
        for number, name in enumerate(("sdb", "sdc", "sdd", "sde"), start=1):
            disk = sysfs.disk(name, f"8:{16 * number}")
            if name == "sde":
                sysfs.partition(disk, "sde1", "8:65")
                sysfs.partition(disk, "sde2", "8:66")
        volume = sysfs.disk("dm-4", "253:4")
        (volume / "dm").mkdir()
        (volume / "dm" / "name").write_text("vg-log\n")
        (volume / "slaves" / "sdd").symlink_to(sysfs.root / "devices" / "sdd")

    def of(self, found: Mount) -> BlockDevice:
        return block_device_of(found, self.sys, self.proc)

    def member(self, fstype: str, name: str, device: str) -> None:
        link = self.sys / "fs" / fstype / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to((self.sys / "dev" / "block" / device).resolve())

    def ext4(self, name: str, thread: str) -> None:
        (self.sys / "fs" / "ext4" / name).mkdir(parents=True)
        (self.sys / "fs" / "ext4" / name / "journal_task").write_text("77\n")
        (self.proc / "77").mkdir(parents=True)
        (self.proc / "77" / "comm").write_text(f"{thread}\n")


@pytest.fixture
def layout(sysfs: Sysfs) -> Layout:
    return Layout(sysfs)


@pytest.mark.parametrize(
    ("options", "names", "disks", "journal"),
    [
        (("logdev=/dev/sdc",), ("sdb", "sdc"), ("sdb", "sdc"), ("sdc",)),
        (("logdev=/dev/sde2", "noquota"), ("sdb", "sde"), ("sdb", "sde"), ("sde",)),
        (("logdev=/dev/mapper/vg-log",), ("sdb", "dm-4"), ("sdb", "sdd"), ("sdd",)),
        (("logdev=/dev/dm-4",), ("sdb", "dm-4"), ("sdb", "sdd"), ("sdd",)),
        (("rtdev=/dev/sdc",), ("sdb", "sdc"), ("sdb", "sdc"), ()),
        (("logdev=/dev/sde1", "rtdev=/dev/sdc"), ("sdb", "sdc", "sde"), ("sdb", "sdc", "sde"), ("sde",)),
        (("logdev=/dev/sdb",), ("sdb",), ("sdb",), ()),
        (("logdev=/dev/gone", "rtdev=", "logbufs=8", "logdev"), ("sdb",), ("sdb",), ()),
        (("logdev=../../dev", "rtdev=/dev/..", "logdev=/dev/mapper/"), ("sdb",), ("sdb",), ()),
    ],
)
def test_a_log_and_a_realtime_device_of_xfs_count(
    layout: Layout, options: tuple[str, ...], names: tuple[str, ...], disks: tuple[str, ...], journal: tuple[str, ...]
) -> None:
    device = layout.of(mount("8:16", "xfs", "/dev/sdb", *options))
    assert (device.names, device.disks, device.journal) == (names, disks, journal)
    assert (device.device, device.reason) == ("8:16", None)


@pytest.mark.parametrize(
    ("thread", "names", "journal"),
    [
        ("jbd2/sdc", ("sdb", "sdc"), ("sdc",)),
        ("jbd2/sde1", ("sdb", "sde"), ("sde",)),
        ("jbd2/dm-4", ("sdb", "dm-4"), ("sdd",)),
        ("jbd2/sdb-8", ("sdb",), ()),
        ("jbd2/sde1-8", ("sdb",), ()),
        ("jbd2/dm-4-8", ("sdb",), ()),
        ("kworker/0:1", ("sdb",), ()),
        ("jbd2/", ("sdb",), ()),
        ("jbd2/..", ("sdb",), ()),
    ],
)
def test_an_external_journal_of_ext4_counts(
    layout: Layout, thread: str, names: tuple[str, ...], journal: tuple[str, ...]
) -> None:
    layout.ext4("sdb", thread)
    device = layout.of(mount("8:16"))
    assert (device.names, device.journal) == (names, journal)


def test_a_journal_task_that_is_gone_or_of_another_namespace_is_none(layout: Layout) -> None:
    layout.ext4("sdb", "jbd2/sdc")
    (layout.sys / "fs" / "ext4" / "sdb" / "journal_task").write_text("0\n")
    assert layout.of(mount("8:16")).names == ("sdb",)


@pytest.mark.parametrize(
    ("device", "source"),
    [
        ("8:16", "/dev/sdb"),
        ("8:16", "/dev/sdb:/dev/sdc:/dev/mapper/vg-log"),
        ("0:44", "/dev/mapper/vg-log"),
        ("0:44", "UUID=u-1"),
        ("0:44", "/dev/gone:/dev/sdc"),
    ],
)
def test_bcachefs_is_all_of_its_devices(layout: Layout, device: str, source: str) -> None:
    for number, member in enumerate(("8:16", "8:32", "253:4")):
        layout.member("bcachefs", f"u-1/dev-{number}/block", member)
    layout.member("bcachefs", "u-2/dev-0/block", "8:64")
    found = layout.of(mount(device, "bcachefs", source))
    assert (found.names, found.disks, found.journal) == (("dm-4", "sdb", "sdc"), ("sdb", "sdc", "sdd"), ())


def test_bcachefs_without_a_directory_in_sysfs_has_the_devices_that_its_source_names(layout: Layout) -> None:
    assert layout.of(mount("8:16", "bcachefs", "/dev/sdb:/dev/sdc")).names == ("sdb", "sdc")
    assert layout.of(mount("8:16", "bcachefs", "UUID=u-9")).names == ("sdb",)


def test_btrfs_on_a_volume_and_a_partition_is_both(layout: Layout) -> None:
    layout.member("btrfs", "u-1/devices/dm-4", "253:4")
    layout.member("btrfs", "u-1/devices/sde1", "8:65")
    for source in ("/dev/mapper/vg-log", "/dev/sde1"):
        found = layout.of(mount("0:44", "btrfs", source))
        assert (found.names, found.disks) == (("dm-4", "sde"), ("sdd", "sde"))
        lower = below(found, layout.sys)
        assert lower is not None and lower.names == ("sdd", "sde"), "a device with nothing below it stays"


def test_file_systems_that_share_a_disk_for_their_logs_alone_do_not_share_their_fate(layout: Layout) -> None:
    first = layout.of(mount("8:16", "xfs", "/dev/sdb", "logdev=/dev/sde1"))
    second = layout.of(mount("8:32", "xfs", "/dev/sdc", "logdev=/dev/sde2"))
    on_the_log = layout.of(mount("8:66"))
    assert first.disks == ("sdb", "sde") and second.disks == ("sdc", "sde")
    assert not first.shares(second) and not first.shares(on_the_log)
    assert first.shares(layout.of(mount("8:16", "xfs", "/dev/sdb")))


def test_volumes_on_an_array_share_its_disks_and_count_themselves(sysfs: Sysfs) -> None:
    disks = [sysfs.disk(name, number) for name, number in (("sdb", "8:16"), ("sdc", "8:32"))]
    (disks[0] / "device" / "serial").write_text("S1\n")
    array = sysfs.disk("md0", "9:0")
    for disk in disks:
        (array / "slaves" / disk.name).symlink_to(disk)
    volumes = [sysfs.disk("dm-0", "253:0"), sysfs.disk("dm-1", "253:1")]
    for volume in volumes:
        (volume / "slaves" / "md0").symlink_to(array)
    first, second = (block_device_of(mount(number), sysfs.root) for number in ("253:0", "253:1"))
    assert (first.names, first.disks, first.serial) == (("dm-0",), ("sdb", "sdc"), "S1")
    assert first.shares(second)
    other = block_device_of(mount(sysfs_number(sysfs.disk("sdd", "8:48"))), sysfs.root)
    assert not first.shares(other)
    array_below = below(first, sysfs.root)
    assert array_below is not None and array_below.names == ("md0",)
    disks_below = below(array_below, sysfs.root)
    assert disks_below is not None and disks_below.names == ("sdb", "sdc")
    assert below(disks_below, sysfs.root) is None


def sysfs_number(device: Path) -> str:
    return (device / "dev").read_text().strip()


def test_an_nvme_head_has_its_paths_below_and_not_those_of_another_namespace(sysfs: Sysfs) -> None:
    sysfs.disk("nvme0n1", "259:0")
    for minor, hidden in enumerate(("nvme0c0n1", "nvme0c1n1", "nvme0c1n2", "nvme1c0n1")):
        sysfs.disk(hidden, f"0:{minor}")
    device = block_device_of(mount("259:0"), sysfs.root)
    assert device.names == ("nvme0n1",)
    paths = below(device, sysfs.root)
    assert paths is not None
    assert paths.names == ("nvme0c0n1", "nvme0c1n1")
    assert paths.shares(device)
    counters = read_counters(paths, sysfs.root)
    assert counters is not None and counters.completed == 300


@pytest.mark.parametrize(("name", "number"), [("loop3", "7:3"), ("zram0", "252:0"), ("vda", "254:0")])
def test_a_loop_device_and_its_like_stand_for_themselves(sysfs: Sysfs, name: str, number: str) -> None:
    sysfs.disk(name, number)
    device = block_device_of(mount(number), sysfs.root)
    assert (device.names, device.reason, device.disks) == ((name,), None, (name,))
    assert read_counters(device, sysfs.root) is not None
    assert below(device, sysfs.root) is None


def test_a_bind_mount_lies_on_the_device_of_the_file_system_that_it_shows(sysfs: Sysfs) -> None:
    sysfs.disk("sdb", "8:16")
    whole = block_device_of(mount("8:16"), sysfs.root)
    bound = block_device_of(
        Mount(41, 27, "8:16", "/kafka", "/mnt/kafka", "ext4", "/dev/sdb", frozenset({"rw"})), sysfs.root
    )
    assert bound == whole


def test_directories_on_two_partitions_of_a_disk_share_it(sysfs: Sysfs) -> None:
    disk = sysfs.disk("sdb", "8:16")
    sysfs.partition(disk, "sdb1", "8:17")
    sysfs.partition(disk, "sdb2", "8:18")
    first, second = (block_device_of(mount(number), sysfs.root) for number in ("8:17", "8:18"))
    assert first.shares(second)


def test_a_stack_that_contains_itself_is_no_endless_walk(sysfs: Sysfs) -> None:
    odd = sysfs.disk("dm-0", "253:0")
    (odd / "slaves" / "dm-0").symlink_to(odd)
    assert block_device_of(mount("253:0"), sysfs.root).names == ("dm-0",)


@pytest.mark.parametrize("fstype", ["fuse.glusterfs", "nfs4", "tmpfs"])
def test_a_file_system_without_a_device_says_so(sysfs: Sysfs, fstype: str) -> None:
    device = block_device_of(mount("0:50", fstype), sysfs.root)
    assert (device.names, device.reason) == ((), f"{fstype} has no block device")
    assert read_counters(device, sysfs.root) is None
    assert device.shares(block_device_of(mount("0:50", fstype), sysfs.root))
    assert not device.shares(block_device_of(mount("0:51", fstype), sysfs.root))


def test_an_overlay_says_why_its_device_cannot_be_known(sysfs: Sysfs) -> None:
    device = block_device_of(mount("0:50", "overlay"), sysfs.root)
    assert device.names == ()
    assert device.reason == "overlay: the device of its upper directory cannot be known from here"


def test_a_disk_that_was_pulled_has_no_counters(sysfs: Sysfs) -> None:
    sysfs.disk("sdb", "8:16")
    device = block_device_of(mount("8:16"), sysfs.root)
    (sysfs.root / "devices" / "sdb" / "stat").unlink()
    assert read_counters(device, sysfs.root) is None


def test_a_disk_that_was_added_again_has_another_number_and_a_partition_that_of_its_disk(sysfs: Sysfs) -> None:
    disk = sysfs.disk("sdb", "8:16")
    sysfs.partition(disk, "sdb1", "8:17")
    assert disk_sequence("8:16", sysfs.root) is None, "an older kernel"
    (disk / "diskseq").write_text("12\n")
    assert [disk_sequence(device, sysfs.root) for device in ("8:16", "8:17")] == [12, 12]
    assert disk_sequence("0:43", sysfs.root) is None and disk_sequence("8:99", sysfs.root) is None


def test_a_file_system_that_was_mounted_anew_has_another_number_where_its_kind_has_one(sysfs: Sysfs) -> None:
    sysfs.disk("sdb", "8:16")
    assert mount_number(mount("8:16"), sysfs.root) is None, "it is not mounted any more"
    (sysfs.root / "fs" / "ext4" / "sdb").mkdir(parents=True)
    inode = (sysfs.root / "fs" / "ext4" / "sdb").stat().st_ino
    assert mount_number(mount("8:16"), sysfs.root) == inode
    assert mount_number(mount("8:32"), sysfs.root) is None
    assert mount_number(mount("0:43", "btrfs"), sysfs.root) is None
    (sysfs.root / "fs" / "btrfs" / "uuid-1" / "devices" / "x").mkdir()
    assert mount_number(mount("0:43", "btrfs"), sysfs.root) == (sysfs.root / "fs" / "btrfs" / "uuid-1").stat().st_ino
    assert mount_number(mount("0:43", "nfs4"), sysfs.root) is None
