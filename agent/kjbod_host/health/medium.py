"""Kind of medium under a log directory, by sysfs, and how long a healthy disk of that kind may stand still.

A guard waits for a disk before it does anything that cannot be undone. How long depends on the kind:

========================================  =========  ==================================================================
kind                                      wait       why
========================================  =========  ==================================================================
flash: NVMe over PCIe, or a SATA or SAS   3 s        a request takes milliseconds; a reset of the controller takes 1 to
disk at a plain adapter, not rotational              2 s
rotational: the same, rotational          10 s       an enterprise HDD retries a bad sector for 7 s (SCT ERC)
anything else: network, virtual, RAID     10 s       a path fails over, a hypervisor migrates, an array resets in that
volume, dm-multipath, unknown                        time
========================================  =========  ==================================================================

Nothing is guessed: a device counts as flash or rotational only where its driver is known to show physical disks and its
model is none of a hypervisor or cloud. Reading sysfs never touches a device.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from kjbod_host.health.block import BlockDevice
from kjbod_host.health.sysfs import NVME_HEAD, SYS

PLAIN_ADAPTERS: Final = frozenset({"ahci", "isci", "mpt2sas", "mpt3sas", "pm80xx", "sata_mv", "sata_nv", "sata_sil24"})
"""SCSI host drivers (``proc_name``) that show physical disks, and no volumes of an array."""
VIRTUAL_MODELS: Final = (
    *("amazon elastic block store", "google persistentdisk", "msft", "nvme_card", "orcl", "qemu", "vbox", "virtual"),
    *("virtio", "vmware", "xen", "alibaba cloud", "blockvolume", "volume"),
)
"""Parts of model names of disks that a hypervisor or a cloud makes, in lower case."""


class Medium(StrEnum):
    """Kind of a medium."""

    FLASH = "flash"
    ROTATIONAL = "rotational"
    OTHER = "network, virtual or unknown"


CUT_AFTER_MS: Final[Mapping[Medium, int]] = {Medium.FLASH: 3_000, Medium.ROTATIONAL: 10_000, Medium.OTHER: 10_000}
"""Default of ``kjbod.guard.cut.after.ms``."""


def cut_after(configured_ms: int, failure_timeout_ms: int, medium: Medium) -> int:
    """Return how long a disk must stand still before a guard does anything that cannot be undone, in milliseconds.

    Args:
        configured_ms: ``kjbod.guard.cut.after.ms``; -1: by the medium, at most ``failure_timeout_ms``.
        failure_timeout_ms: ``log.dir.failure.timeout.ms``.
        medium: under the log directory.
    """
    return configured_ms if configured_ms >= 0 else min(CUT_AFTER_MS[medium], failure_timeout_ms)


def medium_of(device: BlockDevice, sys: Path = SYS) -> Medium:
    """Return the kind of medium under a device; of several disks the slowest kind."""
    kinds = {_kind(name, sys) for name in device.disks}
    if not kinds or Medium.OTHER in kinds:
        return Medium.OTHER
    return Medium.ROTATIONAL if Medium.ROTATIONAL in kinds else Medium.FLASH


def _kind(name: str, sys: Path) -> Medium:
    disk = sys / "block" / name
    model = (_text(disk / "device" / "model") or _text(disk / "device" / "device" / "model")).lower()
    rotational = _text(disk / "queue" / "rotational")
    is_physical = _is_nvme(name, disk, sys) or (_is_scsi(name, disk, sys) and not _is_path(disk))
    if not is_physical or rotational not in ("0", "1") or any(part in model for part in VIRTUAL_MODELS):
        return Medium.OTHER
    return Medium.ROTATIONAL if rotational == "1" else Medium.FLASH


def _is_nvme(name: str, disk: Path, sys: Path) -> bool:
    """Whether a disk is an NVMe namespace over PCIe. A namespace with several paths has a hidden disk for each."""
    if (head := NVME_HEAD.fullmatch(name)) is None:
        return False
    paths = sorted(sys.glob(f"block/nvme{head[1]}c*n{head[2]}")) or [disk]
    return all(_text(path / "device" / "transport") == "pcie" for path in paths)


def _is_scsi(name: str, disk: Path, sys: Path) -> bool:
    if not name.startswith("sd"):
        return False
    host = next((part for part in (disk / "device").resolve().parts if part.startswith("host")), "")
    return _text(sys / "class" / "scsi_host" / host / "proc_name") in PLAIN_ADAPTERS


def _is_path(disk: Path) -> bool:
    """Whether a disk is a path of dm-multipath, where requests wait during a failover."""
    return any(_text(uuid).startswith("mpath-") for uuid in disk.glob("holders/*/dm/uuid"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
