"""The counters of ext4 and btrfs, in a small /sys made of files."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kjbod_host.health.block import BlockDevice
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.sources.btrfs import BtrfsStats, parse_error_stats
from kjbod_host.health.sources.ext4 import Ext4Errors, describe_error

STATS = "write_errs {w}\nread_errs {r}\nflush_errs 0\ncorruption_errs {c}\ngeneration_errs 0\n"


def subject(fstype: str, path: str = "/mnt/d1", source: str = "/dev/sda1") -> Subject:
    mount = Mount(40, 27, "8:1" if fstype == "ext4" else "0:44", "/", path, fstype, source, frozenset({"rw"}))
    return Subject(path=path, mount=mount, device=BlockDevice(("sda",), "8:0"))


def btrfs(sys: Path, *devices: str) -> Path:
    directory = sys / "fs" / "btrfs" / "uuid-1"
    (directory / "devices").mkdir(parents=True)
    for number, name in enumerate(devices, 1):
        (directory / "devices" / name).write_text("")
        (directory / "devinfo" / str(number)).mkdir(parents=True)
        (directory / "devinfo" / str(number) / "error_stats").write_text(STATS.format(w=0, r=0, c=0))
    return directory


def test_counts_of_btrfs_are_read_and_anything_else_is_none() -> None:
    assert parse_error_stats("write_errs 3\nread_errs 0\n") == {"write_errs": 3, "read_errs": 0}
    for text in ("", "invalid", "write_errs\n", "write_errs -1", "write_errs ²"):
        assert parse_error_stats(text) == {}


def test_an_increase_on_any_device_of_a_btrfs_is_told_once_and_wrong_content_is_damage(tmp_path: Path) -> None:
    directory = btrfs(tmp_path, "sda1", "sdb1")
    source, events = BtrfsStats(tmp_path), list[KernelEvent]()
    assert source.start([subject("btrfs"), subject("ext4", "/mnt/d2")], events.append) == {
        "/mnt/d1": None,
        "/mnt/d2": "ext4 has no such counters",
    }
    source.poll()
    assert events == []
    (directory / "devinfo" / "2" / "error_stats").write_text(STATS.format(w=2, r=0, c=0))
    source.poll()
    source.poll()
    assert [(e.paths, e.damage, e.text) for e in events] == [
        (("/mnt/d1",), False, "btrfs on its device 2: writes failed (write_errs 2, was 0)")
    ]
    (directory / "devinfo" / "1" / "error_stats").write_text(STATS.format(w=0, r=0, c=1))
    source.poll()
    assert events[-1].damage
    source.close()
    source.poll()
    assert len(events) == 2


def test_old_counts_of_btrfs_are_logged_and_a_reset_is_no_event(tmp_path: Path) -> None:
    directory = btrfs(tmp_path, "sda1")
    stats = directory / "devinfo" / "1" / "error_stats"
    stats.write_text(STATS.format(w=0, r=7, c=0))
    source, events = BtrfsStats(tmp_path), list[KernelEvent]()
    with capture_logs() as logs:
        source.start([subject("btrfs")], events.append)
    assert [(log["event"], log["devices"]) for log in logs] == [("health.btrfs.errors", {"1": {"read_errs": 7}})]
    stats.write_text(STATS.format(w=0, r=0, c=0))
    source.poll()
    stats.write_text(STATS.format(w=0, r=1, c=0))
    source.poll()
    stats.unlink()
    source.poll()
    assert [event.text for event in events] == ["btrfs on its device 1: reads failed (read_errs 1, was 0)"]


def test_a_btrfs_that_cannot_be_found_says_so(tmp_path: Path) -> None:
    btrfs(tmp_path, "sdz")
    source = BtrfsStats(tmp_path)
    nowhere = Subject(path="/mnt/d3", mount=None, device=BlockDevice((), ""))
    assert source.start([subject("btrfs"), nowhere], lambda event: None) == {
        "/mnt/d1": f"no file system in {tmp_path}/fs/btrfs has the device /dev/sda1",
        "/mnt/d3": "its mount is not in the mount table",
    }


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"func": "ext4_lookup", "line": "1855", "errcode": "5", "ino": "12", "block": "77"},
            "ext4_lookup:1855: EFSCORRUPTED, inode 12, block 77",
        ),
        ({"func": "f", "line": "1", "errcode": "99"}, "f:1: error code 99"),
        ({"func": "f", "line": "1", "errcode": "0"}, "f:1"),
        ({"func": "f", "line": "x"}, "f:0"),
        ({"func": ""}, ""),
        ({}, ""),
    ],
)
def test_the_last_error_of_ext4_is_told_as_far_as_the_kernel_tells(
    tmp_path: Path, fields: dict[str, str], text: str
) -> None:
    for name, value in fields.items():
        (tmp_path / f"last_error_{name}").write_text(f"{value}\n")
    assert describe_error(tmp_path, "last") == text


async def test_ext4_says_why_it_is_not_active_and_can_be_closed_twice(tmp_path: Path) -> None:
    (tmp_path / "dev" / "block").mkdir(parents=True)
    source = Ext4Errors(tmp_path)
    nowhere = Subject(path="/mnt/d3", mount=None, device=BlockDevice((), ""))
    states = source.start([subject("ext4"), subject("xfs", "/mnt/d2"), nowhere], lambda event: None)
    assert states == {
        "/mnt/d1": f"{tmp_path}/dev/block/8:1: No such file or directory",
        "/mnt/d2": "xfs has no such counter",
        "/mnt/d3": "its mount is not in the mount table",
    }
    (tmp_path / "dev" / "block" / "8:1").mkdir()
    other = Ext4Errors(tmp_path)
    states = other.start([subject("ext4")], lambda event: None)
    assert states == {"/mnt/d1": f"{tmp_path}/fs/ext4/8:1/errors_count: No such file or directory"}
    await asyncio.sleep(0)
    for each in (source, other):
        each.poll()
        each.close()
        each.close()
