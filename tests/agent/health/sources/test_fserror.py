import asyncio
import errno
import os
import struct
from pathlib import Path

import pytest

from kjbod_host.health.block import BlockDevice
from kjbod_host.health.mounts import Mount
from kjbod_host.health.sources import fanotify_mark, fserror
from kjbod_host.health.sources.api import KernelEvent, Subject
from kjbod_host.health.sources.fserror import FsError, FsErrors, has_capability, parse_events


def record(*infos: bytes, mask: int = 0x8000) -> bytes:
    body = b"".join(infos)
    return struct.pack("=IBBHQii", 24 + len(body), 3, 0, 24, mask, -1, 0) + body


def error_info(error: int, count: int) -> bytes:
    return struct.pack("=BBHiI", 5, 0, 12, error, count)


def fid_info(low: int, high: int, handle: bytes, kind: int) -> bytes:
    return struct.pack("=BBHIIIi", 1, 0, 20 + len(handle), low, high, len(handle), kind) + handle


def test_a_record_tells_file_system_inode_and_error() -> None:
    fid = fid_info(0x11223344, 0x55667788, struct.pack("=II", 12, 99), 1)
    data = record(error_info(errno.EBADMSG, 3), fid) + record(error_info(errno.EUCLEAN, 1), fid_info(1, 0, bytes(8), 0))
    assert list(parse_events(data)) == [
        FsError(0x5566778811223344, errno.EBADMSG, 3, inode=12),
        FsError(1, errno.EUCLEAN, 1),
    ]


def test_an_overflow_of_the_queue_concerns_every_file_system() -> None:
    assert list(parse_events(record(mask=0x4000))) == [FsError(None, 0, 0)]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        bytes(24),
        struct.pack("=IBBHQii", 4711, 3, 0, 24, 0x8000, -1, 0),
        struct.pack("=IBBHQii", 24, 3, 0, 8, 0x8000, -1, 0),
        record(error_info(5, 1))[:-1],
        record(mask=0x1),
    ],
)
def test_what_is_no_record_ends_the_reading(data: bytes) -> None:
    assert list(parse_events(data)) == []


@pytest.mark.parametrize("info", [b"\x05\0\0\0", b"\x05\0\xff\xff", b"\x01\0\x04\0", b"\x05"])
def test_a_record_with_broken_parts_is_an_error_all_the_same(info: bytes) -> None:
    assert list(parse_events(record(info))) == [FsError(None, 0, 0)]


def test_capabilities_are_read_from_the_process_status(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t0000000000200000\n")
    assert has_capability(21, status)
    assert not has_capability(1, status)
    assert has_capability(1, tmp_path / "none")


def subject(fstype: str, path: str = "/mnt/d1") -> Subject:
    mount = Mount(40, 27, "8:1", "/", path, fstype, "/dev/sda1", frozenset({"rw"}))
    return Subject(path=path, mount=mount, device=BlockDevice(("sda",), "8:0"))


async def test_it_says_for_each_directory_why_it_is_not_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fserror, "has_capability", lambda number: False)
    source = FsErrors()
    nowhere = Subject(path="/mnt/d3", mount=None, device=BlockDevice((), ""))
    states = source.start([subject("ext4"), subject("xfs", "/mnt/d2"), nowhere], lambda event: None)
    assert states == {
        "/mnt/d1": "needs CAP_SYS_ADMIN",
        "/mnt/d2": "xfs does not raise FAN_FS_ERROR",
        "/mnt/d3": "its mount is not in the mount table",
    }
    source.close()
    source.close()


@pytest.mark.usefixtures("as_root")
async def test_a_mount_point_that_does_not_answer_holds_up_the_start_for_a_moment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, script = tmp_path / "go", tmp_path / "marker.py"
    script.write_text(
        f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.01)\nos.write(4, b'0 0 4711\\n')\n"
    )
    monkeypatch.setattr(fanotify_mark, "__file__", str(script))
    monkeypatch.setattr(fserror, "MARK_TIMEOUT_MS", 50)
    source = FsErrors()
    events: list[KernelEvent] = []
    reason = source.start([subject("ext4")], events.append)["/mnt/d1"]
    assert reason == "no answer from /mnt/d1 in 50 ms; active as soon as there is one"
    go.touch()
    for _ in range(2000):
        if source._file_systems[0].fsid == 4711:
            break
        await asyncio.sleep(0.01)
    assert source._file_systems[0].fsid == 4711
    source.close()


def test_an_error_of_one_file_system_condemns_no_other_whose_mark_is_known() -> None:
    source = FsErrors()
    events: list[KernelEvent] = []
    marked, refused, waiting = subject("ext4"), subject("ext4", "/mnt/d2"), subject("ext4", "/mnt/d3")
    source._on_event = events.append
    source._file_systems = [
        fserror._FileSystem(one.mount, (one.path,), answer, fsid)
        for one, answer, fsid in [(marked, 0, 1), (refused, errno.EPERM, 0), (waiting, None, None)]
        if one.mount is not None
    ]
    source._group, written = os.pipe()
    told = []
    for data in (
        record(error_info(errno.EBADMSG, 1), fid_info(1, 0, bytes(8), 0)),
        record(error_info(errno.EBADMSG, 1), fid_info(9, 0, bytes(8), 0)),
        record(mask=0x4000),
    ):
        os.write(written, data)
        source._readable()
        told.append((events[-1].paths, events[-1].damage))
    os.close(written)
    source.close()
    assert told == [(("/mnt/d1",), True), (("/mnt/d3",), True), (("/mnt/d1", "/mnt/d2", "/mnt/d3"), False)]


@pytest.mark.usefixtures("as_root")
async def test_a_marker_that_is_stuck_is_gone_when_the_source_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "marker.py"
    script.write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setattr(fanotify_mark, "__file__", str(script))
    monkeypatch.setattr(fserror, "MARK_TIMEOUT_MS", 50)
    source = FsErrors()
    source.start([subject("ext4")], lambda event: None)
    assert source._marker is not None
    pid = source._marker._pid
    source.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.usefixtures("as_root")
async def test_another_file_system_on_the_mount_point_is_not_marked(tmp_path: Path) -> None:
    source = FsErrors()
    reason = source.start([subject("ext4", str(tmp_path))], lambda event: None)[str(tmp_path)]
    source.close()
    assert reason == f"fanotify_mark on {tmp_path}: Stale file handle"
