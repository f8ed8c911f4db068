"""A disk that was mounted anew while no guard ran: nothing of what a guard had read there is taken."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import RealDisk
from kjbod.faults.orders import FaultMode
from kjbod_guard import recall
from kjbod_guard.recall import Remembered
from scripts.rig.cluster import Cluster
from scripts.rig.processes import Processes
from tests.agent.core.recording import Log
from tests.guard.conftest import Beside
from tests.guard.test_recalling import Files, kept, loaded_at, made


def format_anew(disk: RealDisk) -> None:
    """Unmount, format, mount. The device stays, as a real disk's does."""
    device, mount_point = str(disk.device), str(disk.mount_point)
    with open(device, "rb", buffering=0):  # else the loop device would go with the mount
        subprocess.run(["umount", mount_point], check=True)
        subprocess.run([f"mkfs.{disk.fstype}", "-q", "-F" if disk.fstype == "ext4" else "-f", device], check=True)
        subprocess.run(["mount", device, mount_point], check=True)
    disk.log_dir.mkdir()


@pytest.mark.parametrize("fstype", ["ext4", "xfs", "btrfs"])
async def test_a_file_system_that_was_formatted_anew_is_another_one_although_its_mount_has_the_same_id(
    tmp_path: Path, real_disk: Callable[..., RealDisk], fstype: str
) -> None:
    disk = real_disk(fstype=fstype, log_dir="kafka")
    files, path = Files(), disk.log_dir
    before = await made(tmp_path / "state", [str(path)], files, Log())
    before.read(str(path), loaded_at(path))
    await kept(before, files)

    again = await made(tmp_path / "state", [str(path)], files, Log())
    assert isinstance(await again.recall(str(path)), Remembered)

    format_anew(disk)
    after = await made(tmp_path / "state", [str(path)], files, Log())
    assert await after.recall(str(path)) == recall.OTHER_MOUNT


def test_a_link_that_leads_to_another_disk_which_hangs_by_now_keeps_no_guard_from_its_state(
    tmp_path: Path,
    processes: Processes,
    stub: Cluster,
    real_disk: Callable[..., RealDisk],
    beside: Callable[..., Beside],
) -> None:
    disks = [real_disk(log_dir="kafka") for _ in range(3)]
    link = tmp_path / "link"
    link.symlink_to(disks[1].log_dir)
    stub.start_controller()
    config = stub.configure_broker(1, [disks[0].log_dir, link])
    stub.format_broker(config)
    watch = beside(config, guard_mode="act")
    first = watch.start("before")
    first.wait_for_event("guard.started")
    assert first.stop() == 0
    link.unlink()
    link.symlink_to(disks[2].log_dir)
    disks[2].unmount()
    disks[2].mount()  # the kernel has no name on it in memory
    disks[2].set(FaultMode.HANG)

    again = watch.start("after")
    said = again.wait_for_event("directory.unwatched", path=str(link))
    assert "no answer since" in said["reason"] and "where its path leads cannot be told" in said["reason"]
    again.wait_for_event("health.sources")  # it has read its journal
    assert again.stop() == 0
