"""The kind of medium under a log directory, from the mount down to the disks, on trees as sysfs has them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.config.keys import settings
from kjbod.config.load import CUT_AFTER_MS_MIN
from kjbod_host.health.medium import CUT_AFTER_MS, PLAIN_ADAPTERS, Medium, cut_after, medium_of
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sysfs import block_device_of

FLASH, ROTATIONAL, OTHER = Medium
SSD, HDD, NVME = "SAMSUNG MZ7LH3T8", "ST16000NM001G-2KK103", "INTEL SSDPE2KX040T8"


class Sysfs:
    """A ``/sys`` that is made disk by disk; each method returns the directory of a device."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._count = 0
        for folder in ("block", "dev/block", "class/scsi_host"):
            (root / folder).mkdir(parents=True)

    def medium(self, device: Path) -> Medium:
        """Medium under a file system that is mounted from a device."""
        number = (device / "dev").read_text().strip()
        mount = Mount(40, 27, number, "/", "/mnt/d1", "ext4", "/dev/x", frozenset({"rw"}))
        return medium_of(block_device_of(mount, self.root), self.root)

    def _device(self, path: Path) -> Path:
        self._count += 1
        path.mkdir(parents=True)
        (path / "dev").write_text(f"250:{self._count}\n")
        (self.root / "dev" / "block" / f"250:{self._count}").symlink_to(path)
        return path

    def disk(self, path: str, rotational: int | None = 0, on: str | None = None, **facts: str) -> Path:
        """A whole disk at a path below ``devices``; ``on``: the directory to which its ``device`` leads, with
        ``facts``; ``rotational`` None: the kernel does not say it."""
        found = self._device(self.root / "devices" / path)
        (self.root / "block" / found.name).symlink_to(found)
        (found / "queue").mkdir()
        if rotational is not None:
            (found / "queue" / "rotational").write_text(f"{rotational}\n")
        if on is not None:
            parent = self.root / "devices" / on
            parent.mkdir(parents=True, exist_ok=True)
            (found / "device").symlink_to(parent)
            for name, text in facts.items():
                (parent / name).write_text(f"{text}\n")
        return found

    def sd(self, name: str, driver: str, rotational: int | None, model: str = SSD, host: int = 0) -> Path:
        """A SCSI disk of a host adapter with a driver."""
        adapter = self.root / "class" / "scsi_host" / f"host{host}"
        adapter.mkdir(exist_ok=True)
        (adapter / "proc_name").write_text(f"{driver}\n")
        unit = f"pci0000:00/0000:00:17.0/host{host}/target{host}:0:0/{host}:0:0:{self._count}"
        return self.disk(f"{unit}/block/{name}", rotational, unit, model=model)

    def nvme(self, name: str, transport: str = "pcie", model: str = NVME, rotational: int | None = 0) -> Path:
        """A namespace of a controller, without native multipath; or the hidden disk of a path."""
        controller = f"pci0000:00/nvme/nvme{self._count}"
        return self.disk(f"{controller}/{name}", rotational, controller, model=f"{model}   ", transport=transport)

    def head(self, *transports: str, model: str = NVME) -> Path:
        """A namespace with native multipath: the disk of the subsystem, and a hidden one for each path."""
        for number, transport in enumerate(transports):
            self.nvme(f"nvme0c{number}n1", transport)
        subsystem = "virtual/nvme-subsystem/nvme-subsys0"
        return self.disk(f"{subsystem}/nvme0n1", 0, subsystem, model=model)

    def partition(self, disk: Path) -> Path:
        found = self._device(disk / f"{disk.name}1")
        (found / "partition").write_text("1\n")
        return found

    def stack(self, name: str, *slaves: Path, uuid: str = "") -> Path:
        """A device over others: dm with a ``uuid``, md."""
        found = self.disk(f"virtual/block/{name}", 0)
        (found / "slaves").mkdir()
        if uuid:
            (found / "dm").mkdir()
            (found / "dm" / "uuid").write_text(f"{uuid}\n")
        for slave in slaves:
            (found / "slaves" / slave.name).symlink_to(slave)
            (slave / "holders").mkdir(exist_ok=True)
            (slave / "holders" / name).symlink_to(found)
        return found


def two(sysfs: Sysfs, *rotational: int) -> list[Path]:
    return [sysfs.sd(f"sd{'ab'[at]}", "mpt3sas", one) for at, one in enumerate(rotational)]


CASES: dict[str, tuple[Callable[[Sysfs], Path], Medium]] = {
    "a SATA SSD at a plain adapter": (lambda s: s.sd("sda", "ahci", 0), FLASH),
    "a SATA HDD at a plain adapter": (lambda s: s.sd("sda", "ahci", 1, HDD), ROTATIONAL),
    "a SAS HDD at a plain adapter": (lambda s: s.sd("sdaa", "mpt3sas", 1, HDD, host=11), ROTATIONAL),
    "a partition of an HDD": (lambda s: s.partition(s.sd("sda", "ahci", 1, HDD)), ROTATIONAL),
    "an NVMe namespace at PCIe": (lambda s: s.nvme("nvme0n1"), FLASH),
    "a partition of an NVMe namespace": (lambda s: s.partition(s.nvme("nvme0n1")), FLASH),
    "an NVMe HDD": (lambda s: s.nvme("nvme0n1", rotational=1), ROTATIONAL),
    "an NVMe head with one path": (lambda s: s.head("pcie"), FLASH),
    "an NVMe head with two paths at PCIe": (lambda s: s.head("pcie", "pcie"), FLASH),
    "an NVMe head with a path over the network": (lambda s: s.head("pcie", "tcp"), OTHER),
    "an NVMe head of a cloud's disk": (lambda s: s.head("pcie", model="Amazon Elastic Block Store"), OTHER),
    "NVMe over TCP": (lambda s: s.nvme("nvme0n1", "tcp"), OTHER),
    "NVMe over RDMA": (lambda s: s.nvme("nvme0n1", "rdma"), OTHER),
    "NVMe of which the kernel does not say how": (lambda s: s.nvme("nvme0n1", ""), OTHER),
    "dm over two SSDs": (lambda s: s.stack("dm-0", *two(s, 0, 0)), FLASH),
    "dm over an SSD and an HDD": (lambda s: s.stack("dm-0", *two(s, 0, 1)), ROTATIONAL),
    "dm over a partition of an HDD": (lambda s: s.stack("dm-0", s.partition(two(s, 1)[0])), ROTATIONAL),
    "dm over an HDD and a virtual disk": (
        lambda s: s.stack("dm-0", *two(s, 1), s.disk("virtio1/block/vda", 1)),
        OTHER,
    ),
    "dm-multipath over two paths": (lambda s: s.stack("dm-0", *two(s, 0, 0), uuid="mpath-3500a0751"), OTHER),
    "LVM over an SSD": (lambda s: s.stack("dm-0", *two(s, 0), uuid="LVM-abc"), FLASH),
    "LVM over dm-multipath": (
        lambda s: s.stack("dm-1", s.stack("dm-0", *two(s, 1, 1), uuid="mpath-3500a0751"), uuid="LVM-abc"),
        OTHER,
    ),
    "md over two HDDs": (lambda s: s.stack("md0", *two(s, 1, 1)), ROTATIONAL),
    "dm over md over two SSDs": (lambda s: s.stack("dm-0", s.stack("md0", *two(s, 0, 0))), FLASH),
    "dm over nothing": (lambda s: s.stack("dm-0"), OTHER),
    "a loop device": (lambda s: s.disk("virtual/block/loop3", 0), OTHER),
    "a virtio disk": (lambda s: s.disk("virtio1/block/vda", 1, "virtio1"), OTHER),
    "a Xen disk": (lambda s: s.disk("vbd-51712/block/xvda", 0, "vbd-51712"), OTHER),
    "a disk of virtio-scsi": (lambda s: s.sd("sda", "virtio_scsi", 0), OTHER),
    "iSCSI": (lambda s: s.sd("sda", "iscsi_tcp", 1), OTHER),
    "Fibre Channel": (lambda s: s.sd("sda", "qla2xxx", 0), OTHER),
    "a volume of a RAID controller": (lambda s: s.sd("sda", "megaraid_sas", 1, "PERC H730 Mini"), OTHER),
    "a CD drive at a plain adapter": (lambda s: s.sd("sr0", "ahci", 1, "DVD-ROM"), OTHER),
    "a USB disk": (lambda s: s.sd("sda", "usb-storage", 0), OTHER),
    "an SSD of which the kernel does not say that it is one": (lambda s: s.sd("sda", "ahci", None), OTHER),
    "an NVMe namespace without queue/rotational": (lambda s: s.nvme("nvme0n1", rotational=None), OTHER),
    "a disk of a kind that nobody knows": (lambda s: s.disk("platform/pmem0", 0, "platform"), OTHER),
}


@pytest.mark.parametrize("case", CASES)
def test_a_device_counts_as_flash_or_rotational_only_where_the_kernel_shows_that_it_is(
    case: str, tmp_path: Path
) -> None:
    sysfs = Sysfs(tmp_path)
    build, medium = CASES[case]
    assert sysfs.medium(build(sysfs)) is medium


@pytest.mark.parametrize("driver", sorted(PLAIN_ADAPTERS))
def test_every_plain_adapter_shows_physical_disks(driver: str, tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    assert sysfs.medium(sysfs.sd("sda", driver, 0)) is FLASH


@pytest.mark.parametrize(
    "model",
    [
        *("Amazon Elastic Block Store", "nvme_card-pd", "MSFT NVMe Accelerator v1.0", "ORCL-VBOX-NVME-VER12"),
        *("QEMU NVMe Ctrl", "VMware Virtual NVMe Disk", "Alibaba Cloud Elastic Block Storage"),
        *("QEMU HARDDISK", "VBOX HARDDISK", "PersistentDisk VirtIO", "Virtual Disk", "BlockVolume", "LOGICAL VOLUME"),
    ],
)
def test_a_disk_of_a_hypervisor_or_a_cloud_counts_as_neither_although_its_adapter_looks_physical(
    model: str, tmp_path: Path
) -> None:
    sysfs = Sysfs(tmp_path)
    assert sysfs.medium(sysfs.nvme("nvme0n1", model=model)) is OTHER
    assert sysfs.medium(sysfs.sd("sda", "ahci", 0, model)) is OTHER


def test_a_file_system_without_a_block_device_lies_on_nothing_that_is_known(tmp_path: Path) -> None:
    mount = Mount(40, 27, "0:50", "/", "/mnt/d1", "nfs4", "filer:/kafka", frozenset({"rw"}))
    assert medium_of(block_device_of(mount, Sysfs(tmp_path).root), tmp_path) is OTHER


def test_a_disk_that_is_pulled_meanwhile_is_of_no_known_kind(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    disk = sysfs.sd("sda", "ahci", 0)
    mount = Mount(40, 27, "250:1", "/", "/mnt/d1", "ext4", "/dev/sda", frozenset({"rw"}))
    device = block_device_of(mount, tmp_path)
    assert medium_of(device, tmp_path) is FLASH
    disk.rename(tmp_path / "gone")
    assert medium_of(device, tmp_path) is OTHER


@pytest.mark.parametrize(
    ("configured_ms", "failure_timeout_ms", "medium", "wait_ms"),
    [
        (-1, 30_000, FLASH, CUT_AFTER_MS[FLASH]),
        (-1, 30_000, OTHER, CUT_AFTER_MS[OTHER]),
        (-1, 8_000, ROTATIONAL, 8_000),
        (1_900, 30_000, ROTATIONAL, 1_900),
    ],
)
def test_a_guard_waits_as_configured_else_by_the_medium_and_never_longer_than_kafka(
    configured_ms: int, failure_timeout_ms: int, medium: Medium, wait_ms: int
) -> None:
    assert cut_after(configured_ms, failure_timeout_ms, medium) == wait_ms


def test_every_medium_has_a_wait_of_its_own_and_the_page_of_keys_says_which() -> None:
    assert set(CUT_AFTER_MS) == set(Medium)
    assert CUT_AFTER_MS_MIN < CUT_AFTER_MS[FLASH] < CUT_AFTER_MS[ROTATIONAL] == CUT_AFTER_MS[OTHER]
    told = settings()["kjbod.guard.cut.after.ms"].key.doc
    assert f"-1: {CUT_AFTER_MS[FLASH]} for flash, {CUT_AFTER_MS[OTHER]} for rotational, network, virtual" in told
