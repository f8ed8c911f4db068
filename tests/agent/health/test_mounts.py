import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults import syscalls
from kjbod.faults.disks import RealDisk
from kjbod_host.health.mountinfo import MountWatcher, read_mounts
from kjbod_host.health.mounts import MountChange, compare, mount_of, parse_mountinfo

TABLE = rb"""27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
40 27 8:17 / /mnt/d1 rw,relatime shared:7 master:1 propagate_from:2 - ext4 /dev/sdb1 rw,errors=remount-ro
41 27 8:33 /kafka /mnt/with\040blank rw - xfs /dev/sdc1 rw,attr2
42 27 0:44 / /mnt/d3 ro,nosuid - btrfs /dev/sdd rw,subvol=/
this is no line
43 27 8:49 / /mnt/d1x rw - ext4 /dev/sde1 rw
"""


def test_a_mount_is_read_with_any_number_of_optional_fields_and_escapes() -> None:
    mounts = parse_mountinfo(TABLE)
    assert [m.mount_point for m in mounts] == ["/", "/mnt/d1", "/mnt/with blank", "/mnt/d3", "/mnt/d1x"]
    assert (mounts[1].mount_id, mounts[1].device, mounts[1].fstype, mounts[1].source) == (
        40,
        "8:17",
        "ext4",
        "/dev/sdb1",
    )
    assert mounts[1].options >= {"rw", "relatime", "errors=remount-ro"}
    assert mounts[2].root == "/kafka"


@pytest.mark.parametrize(
    ("path", "mount_id"),
    [
        ("/mnt/d1", 40),
        ("/mnt/d1/kafka/logs", 40),
        ("/mnt/d1x", 43),
        ("/mnt/d12", 27),
        ("/mnt/with blank/a", 41),
        ("/var/lib/kafka", 27),
    ],
)
def test_a_path_belongs_to_the_mount_it_leads_through(path: str, mount_id: int) -> None:
    found = mount_of(path, parse_mountinfo(TABLE))
    assert found is not None
    assert found.mount_id == mount_id


def test_a_mount_over_another_one_hides_it_and_all_below() -> None:
    over = TABLE + b"50 40 0:50 / /mnt/d1 rw - tmpfs tmpfs rw\n"
    found = mount_of("/mnt/d1/kafka", parse_mountinfo(over))
    assert found is not None
    assert found.mount_id == 50
    higher_up = TABLE + b"51 27 0:51 / /mnt rw - tmpfs tmpfs rw\n"
    found = mount_of("/mnt/d1/kafka", parse_mountinfo(higher_up))
    assert found is not None
    assert found.mount_id == 51


def _without(number: int) -> bytes:
    return b"\n".join(line for line in TABLE.splitlines() if not line.startswith(b"%d " % number))


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (TABLE, MountChange.OK),
        (_without(40), MountChange.MISSING),
        (_without(40) + b"\n60 27 8:17 / /mnt/d1 rw - ext4 /dev/sdb1 rw\n", MountChange.OTHER),
        (TABLE + b"50 40 0:50 / /mnt/d1 rw - tmpfs tmpfs rw\n", MountChange.OTHER),
        (TABLE.replace(b"rw,errors=remount-ro", b"ro,errors=remount-ro"), MountChange.READ_ONLY),
        (TABLE.replace(b"rw,relatime shared", b"ro,relatime shared"), MountChange.READ_ONLY),
        (TABLE.replace(b"errors=remount-ro", b"errors=remount-ro,emergency_ro"), MountChange.EMERGENCY_RO),
        (TABLE.replace(b"errors=remount-ro", b"errors=remount-ro,shutdown"), MountChange.SHUTDOWN),
        (TABLE.replace(b"42 27 0:44", b"42 27 0:45"), MountChange.OK),
    ],
)
def test_what_the_table_says_about_a_directory(table: bytes, change: MountChange) -> None:
    loaded = next(m for m in parse_mountinfo(TABLE) if m.mount_id == 40)
    assert compare("/mnt/d1/kafka", loaded, parse_mountinfo(table)) is change


def test_a_directory_on_a_read_only_mount_from_the_start_has_not_changed() -> None:
    loaded = next(m for m in parse_mountinfo(TABLE) if m.mount_id == 42)
    assert compare("/mnt/d3", loaded, parse_mountinfo(TABLE)) is MountChange.OK


@pytest.mark.usefixtures("as_root")
async def test_each_change_of_the_mount_table_is_told_and_silence_costs_nothing(
    tmp_path: Path, real_disk: Callable[..., RealDisk]
) -> None:
    changed = asyncio.Event()
    calls: list[None] = []

    def told() -> None:
        calls.append(None)
        changed.set()

    watcher = MountWatcher(told)
    assert watcher.start() is None
    place = tmp_path / "place"
    place.mkdir()
    for _ in range(3):
        syscalls.mount("none", place, "tmpfs")
        await asyncio.wait_for(changed.wait(), 60)
        changed.clear()
        assert mount_of(str(place), read_mounts()) is not None
        syscalls.umount(place)
        await asyncio.wait_for(changed.wait(), 60)
        changed.clear()
    before = len(calls)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(calls) == before
    watcher.close()


def test_a_host_without_a_mount_table_says_why() -> None:
    watcher = MountWatcher(lambda: None, "/nonexistent/mountinfo")
    assert watcher.start() == "/nonexistent/mountinfo: No such file or directory"


def test_a_carriage_return_in_a_name_neither_hides_a_mount_nor_makes_one() -> None:
    line = b"36 25 7:3 / /mnt/d\r1 rw,relatime - ext4 /dev/loop3 rw\n"
    (mount,) = parse_mountinfo(line)
    assert mount.mount_point == "/mnt/d\r1"
