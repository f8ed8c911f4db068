"""What a guard that is started beside a disk that hangs may take from what the one before it has read."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kjbod_guard import recall
from kjbod_guard.recall import (
    DamagedError,
    Memory,
    Place,
    Remembered,
    decode,
    decode_old,
    encode,
    newest,
    place_of,
    taken,
    why_not,
)
from kjbod_host.files.file_worker import leads_to
from kjbod_host.health.mounts import Mount
from kjbod_host.storage.api import DirectoryTimeout, LoadedDirectory, MountIdentity, Survey

PATH, BOOT = "/mnt/d1/kafka", "8564f892-470f-46d5-9c3a-e7ab12150369"
META = b"version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\ndirectory.id=9bFlIkpYt5HfavHYMD5hzQ\n"
ROOT = Mount(20, 1, "8:1", "/", "/", "ext4", "/dev/sda1", frozenset({"rw"}))
DISK = Mount(30, 20, "8:17", "/", "/mnt/d1", "ext4", "/dev/sdb1", frozenset({"rw"}))
PLACE = Place("8:17", "/", "/mnt/d1", "ext4", "/dev/sdb1", mount_id=30, host_id=40, disk_sequence=7, mount_number=5)
LOADED = LoadedDirectory(
    path=PATH,
    real_path=PATH,
    meta_properties=META,
    directory_id="9bFlIkpYt5HfavHYMD5hzQ",
    replicas=(),
    unknown_names=(),
    has_cluster_metadata=True,
    identity=MountIdentity(30, None, "8:17", 11, "d6f2", None),
    total_bytes=100,
    usable_bytes=60,
    clean_shutdown=False,
    clean_shutdown_epoch=None,
)
BEFORE = Remembered(LOADED, Survey((8, 17, 14), ("/mnt/d1/lost+found",)), PLACE, 1_795_437_725_097)


@pytest.mark.parametrize(
    ("leads", "now", "shut_down", "reason"),
    [
        (PATH, PLACE, False, None),
        # A service has a mount namespace of its own with each start.
        (PATH, replace(PLACE, mount_id=99), False, None),
        (PATH, replace(PLACE, host_id=41), False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, host_id=None), False, None),
        (PATH, replace(PLACE, host_id=None, mount_id=99), False, recall.OTHER_MOUNT),
        (PATH, None, False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, device="8:33"), False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, root="/sub"), False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, mount_point="/mnt"), False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, fstype="xfs"), False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, source="/dev/sdc1"), False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, disk_sequence=8), False, recall.OTHER_MOUNT),
        (PATH, replace(PLACE, mount_number=6), False, recall.OTHER_MOUNT),
        ("/mnt/d2/kafka", PLACE, False, recall.ELSEWHERE),
        (PATH, PLACE, True, recall.SHUT_DOWN),
    ],
)
def test_a_directory_is_taken_from_memory_only_where_nothing_else_can_be_in_its_place(
    leads: str, now: Place | None, shut_down: bool, reason: str | None
) -> None:
    assert why_not(BEFORE, leads, now, shut_down=shut_down) == reason


def test_what_is_taken_is_as_if_it_had_been_read_in_the_mount_namespace_of_this_process() -> None:
    found = taken(BEFORE, replace(PLACE, mount_id=99))
    assert found.loaded == replace(LOADED, identity=replace(LOADED.identity, mount_id=99))
    assert (found.survey, found.at_ms) == (BEFORE.survey, BEFORE.at_ms)


def test_where_a_directory_lies_is_told_by_two_mount_tables_and_the_number_of_its_disk() -> None:
    table, of_host = (ROOT, DISK), (ROOT, replace(DISK, mount_id=40))
    numbers = ({"8:17": 7}.get, {DISK: 5}.get)
    assert place_of(PATH, table, of_host, *numbers) == PLACE
    assert place_of(PATH, table, (), *numbers) == replace(PLACE, host_id=None)
    assert place_of(PATH, table, (ROOT,), *numbers) == replace(PLACE, host_id=None), "the host does not have it there"
    assert place_of(PATH, (), of_host, *numbers) is None


def test_what_is_written_is_read_again() -> None:
    bare = Remembered(
        replace(LOADED, path="/d2\udcff", meta_properties=None, directory_id=None, has_cluster_metadata=False),
        None,
        replace(PLACE, host_id=None, disk_sequence=None, mount_number=None),
        5,
    )
    nothing_beside = replace(BEFORE, loaded=replace(LOADED, path="/d3"), survey=Survey(None, None))
    memory = Memory(1, BOOT, {PATH: BEFORE, "/d2\udcff": bare, "/d3": nothing_beside}, 6_000)
    assert decode(json.loads(json.dumps(encode(memory))), 1, BOOT) == memory


def test_nothing_is_taken_from_another_boot_of_the_host() -> None:
    assert decode(encode(Memory(1, BOOT, {PATH: BEFORE})), 1, "another") == Memory(1, "another", {})


def _changed(**changes: Any) -> bytes:
    return json.dumps(encode(Memory(1, BOOT, {PATH: BEFORE})) | changes).encode()


def _row(**changes: Any) -> bytes:
    row = encode(Memory(1, BOOT, {PATH: BEFORE}))["directories"][PATH] | changes
    return _changed(directories={PATH: row})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        json.dumps(encode(Memory(1, BOOT, {PATH: BEFORE}))).encode()[:-40],
        _changed(version=2),
        _changed(node=2),
        _changed(boot_id=7),
        _changed(written_ms="6"),
        _changed(directories=[]),
        _changed(directories={PATH: {}}),
        _row(real_path=None),
        _row(inode=-1),
        _row(at_ms=2**62),  # no date: a guard would end with it, at each start
        _row(meta=7),
        _row(meta="\u20ac"),
        _row(place={}),
        _row(survey={"lock": [1, 2], "beside": None}),
        _row(survey={"lock": None, "beside": [5]}),
    ],
)
def test_a_memory_that_is_damaged_or_another_nodes_is_refused_with_one_kind_of_error(content: bytes) -> None:
    with pytest.raises(DamagedError, match=r"it cannot be read|it is of version"):
        decode_old(content, 1, BOOT)


def memory_of(read_ms: Iterable[int], written_ms: int = 0) -> Memory:
    directories = {f"/d{number}": replace(BEFORE, at_ms=at_ms) for number, at_ms in enumerate(read_ms)}
    return Memory(1, BOOT, directories, written_ms)


@pytest.mark.parametrize(
    ("kept", "old", "counts"),
    [
        (None, None, None),
        (memory_of([5], 6), None, "kept"),
        (None, memory_of([5]), "old"),
        (None, memory_of([]), "old"),
        (memory_of([5], 6), memory_of([5]), "kept"),  # not removed yet
        (memory_of([], 6), memory_of([5]), "kept"),  # forgotten since
        (memory_of([5], 6), memory_of([]), "kept"),  # of another boot
        (memory_of([5], 6), memory_of([4, 7]), "old"),  # an earlier release ran since
        (memory_of([], 6), memory_of([7]), "old"),
    ],
)
def test_the_memory_of_the_release_that_ran_last_counts(
    kept: Memory | None, old: Memory | None, counts: str | None
) -> None:
    assert newest(kept, old) is {None: None, "kept": kept, "old": old}[counts]


def test_a_path_is_followed_through_its_links_down_to_the_disk_that_hangs_and_no_further(tmp_path: Path) -> None:
    disk = tmp_path / "mnt" / "d1"
    (disk / "kafka").mkdir(parents=True)
    (disk / "link").symlink_to("kafka")
    (tmp_path / "data").symlink_to("mnt/../mnt")
    (tmp_path / "log").symlink_to(tmp_path / "data" / "d1" / "link")
    point = [str(disk)]
    assert leads_to(str(disk / "kafka"), point) == str(disk / "kafka")
    assert leads_to(f"{tmp_path}/data/d1//kafka/.", point) == str(disk / "kafka")
    assert leads_to(str(tmp_path / "log"), point) == str(disk / "link"), "what is on the disk is not looked at"
    assert leads_to(str(tmp_path / "log"), []) == str(disk / "kafka")
    assert leads_to(str(disk / "link"), ["/"]) == str(disk / "link")
    assert leads_to(str(tmp_path / "gone" / "d1"), point) == str(tmp_path / "gone" / "d1")
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="Too many levels"):
        leads_to(str(tmp_path / "round"), point)


def test_what_is_said_of_a_directory_that_nobody_has_read_has_since_when_and_that_nothing_can_be_done() -> None:
    silence = DirectoryTimeout(3501, "folio_wait_bit_common", "read of meta.properties", PATH)
    assert recall.helpless(silence, 1_795_437_725_097, recall.NEVER_READ) == (
        "/mnt/d1/kafka: no answer since 2026-11-23T12:42:05Z at read of meta.properties in folio_wait_bit_common, and "
        "no guard with this kjbod.state.dir has read it since the host was started: nothing can be done about it until "
        "it answers; if the broker hangs there, kill it"
    )
