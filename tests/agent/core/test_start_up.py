"""What the start does that is not a rule for directories."""

import asyncio
import contextlib
import errno
import os
import resource
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from kjbod.clock import SystemClock
from kjbod.errors import ConfigError, StorageError
from kjbod.ids import Uuid
from kjbod.runtime.logging import get_logger
from kjbod_agent.replicas.stray_memory import StrayMemory
from kjbod_host.directories import start_up
from kjbod_host.directories.start_up import (
    BLOCKED_MS,
    LOAD_TIMEOUT_MS,
    PATIENCE_MS,
    Opened,
    Remembering,
    _without_missing,
    _without_unmounted,
    mark_clean,
    require_metadata_disk,
)
from kjbod_host.directories.start_up_rules import Directory, Load, Memory, StartUpError
from kjbod_host.health.mounts import Mount
from kjbod_host.storage.api import BlockedCall, DirectoryError, LoadedDirectory, Replica
from tests.agent.core.opened import Disks, config_of
from tests.agent.core.test_directories import loaded
from tests.agent.core.test_reporter import status


async def closed(remembering: Remembering) -> None:
    """Its socket is closed a moment later."""
    remembering.close()
    await asyncio.sleep(0)


@pytest.mark.usefixtures("world")
async def test_a_full_state_directory_is_said_and_keeps_no_broker_from_starting(tmp_path: Path) -> None:
    with capture_logs() as logs:
        remembering = Remembering(config_of(["/d1"], state_dir=tmp_path), get_logger())
        await remembering.load()
        *_lock, process = remembering.files.process_ids()
        resource.prlimit(process, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        await remembering.change(Memory().seen("/d1", Uuid.of(1, 1), 0))
    await closed(remembering)
    (line,) = logs
    assert line["event"] == "state.not.saved"
    assert f"kjbod.state.dir={tmp_path}" in line["reason"] and "File too large" in line["reason"]


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (os.mkfifo, "Not a regular file: remove it"),
        (lambda path: path.symlink_to("/dev/zero"), "Not a regular file: remove it"),
        (_huge, "1099511627776 bytes are too many: remove it"),
    ],
)
async def test_what_is_no_file_in_the_place_of_the_memory_is_named_at_once(
    tmp_path: Path, make: Callable[[Path], object], words: str
) -> None:
    """And is not waited for as for a disk that hangs."""
    path = tmp_path / "known_directories.json"
    make(path)
    remembering = Remembering(config_of(["/d1"], state_dir=tmp_path), get_logger())
    with pytest.raises(StartUpError) as refused:
        await remembering.load()
    assert str(refused.value) == f"kjbod.state.dir={tmp_path}: {path}: {words}"
    await closed(remembering)
    path.rename(tmp_path / "strays.json")
    assert StrayMemory(tmp_path, 1).load() == {}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.usefixtures("world")
async def test_a_second_agent_is_refused_the_state_directory_of_the_first_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_up, "LOCK_PATIENCE_MS", 40)
    first = Remembering(config_of(["/d1"], state_dir=tmp_path), get_logger())
    await first.change((await first.load()).seen("/d1", Uuid.of(1, 1), 7))
    before = contents(tmp_path)
    for node, expected, words in (
        (2, ConfigError, "give each agent and guard on a host a kjbod.state.dir of its own"),
        (1, StartUpError, "stop it first"),
    ):
        second = Remembering(config_of(["/d1"], node_id=node, state_dir=tmp_path), get_logger())
        with pytest.raises(expected) as refused:
            await second.load()
        assert f"in use by another agent (node 1, pid {os.getpid()}): {words}" in str(refused.value)
        await closed(second)
    assert contents(tmp_path) == before
    os.kill(first.files.process_ids()[-1], signal.SIGSTOP)  # as one that is stuck in the disk
    os.kill(first.files.process_ids()[-1], signal.SIGKILL)
    await closed(first)
    third = Remembering(config_of(["/d1"], state_dir=tmp_path), get_logger())
    assert (await third.load()).ids == {"/d1": Uuid.of(1, 1)}
    await closed(third)


@pytest.mark.usefixtures("world")
async def test_a_state_directory_stays_locked_when_its_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Remembering(config_of(["/d1"], state_dir=tmp_path), get_logger())
    memory = await first.load()
    *_lock, killed = first.files.process_ids()
    os.kill(killed, signal.SIGKILL)
    with contextlib.suppress(OSError):
        await first.read_file(str(tmp_path / "none"))
    await first.change(memory.seen("/d1", Uuid.of(1, 1), 7))
    assert first.files.process_ids()[-1] != killed
    second = Remembering(config_of(["/d1"], node_id=2, state_dir=tmp_path), get_logger())
    monkeypatch.setattr(start_up, "LOCK_PATIENCE_MS", 40)
    with pytest.raises(ConfigError, match="in use by another agent"):
        await second.load()
    await closed(first)
    await closed(second)


@pytest.mark.usefixtures("world")
async def test_the_memory_is_saved_when_it_changed_and_read_at_the_next_start(tmp_path: Path) -> None:
    config = config_of(["/d1"], state_dir=tmp_path)
    remembering = Remembering(config, get_logger())
    await remembering.change((await remembering.load()).seen("/d1", Uuid.of(1, 1), 7))
    await closed(remembering)
    again = Remembering(config, get_logger())
    assert (await again.load()).ids == {"/d1": Uuid.of(1, 1)}
    await closed(again)


@pytest.mark.usefixtures("world")
async def test_a_disk_that_was_replaced_is_remembered_at_once(tmp_path: Path) -> None:
    def now(number: int) -> Any:
        return status(path="/d1", directory_id=str(Uuid.of(1, number)))

    there, saved = [now(1)], asyncio.Event()
    remembering = Remembering(config_of(["/d1"], state_dir=tmp_path), get_logger())
    await remembering.load()
    change = remembering.change

    async def noted(memory: Memory) -> None:
        await change(memory)
        saved.set()

    remembering.change = noted  # type: ignore[method-assign]
    keeping = asyncio.create_task(remembering.keep_current(lambda: there, SystemClock()))
    for number in (1, 2):
        there[0] = now(number)
        remembering.is_new()
        await saved.wait()
        assert remembering.memory.ids == {"/d1": Uuid.of(1, number)}
        saved.clear()
    keeping.cancel()
    await closed(remembering)


IDS = {"/d1": Uuid.of(1, 1), "/d2": Uuid.of(1, 2)}


def test_a_disk_that_was_there_at_the_last_start_and_is_not_mounted_now_is_offline_and_named() -> None:
    bare = replace(loaded("/d1"), meta_properties=None)
    absent = DirectoryError(errno.ENOENT, "open of /d2", "/d2")
    judged = _without_missing({"/d1": bare, "/d2": absent}, IDS)
    for path, load in judged.items():
        assert type(load) is StorageError
        for part in (path, str(IDS[path]), "mount its disk, or format the new one"):
            assert part in str(load)


def test_a_directory_with_replicas_that_lost_its_file_is_not_called_unmounted() -> None:
    without = replace(loaded("/d1"), meta_properties=None, replicas=(Replica("t-0", "t", 0, None, ""),))
    said = str(_without_missing({"/d1": without}, IDS)["/d1"])
    assert "it has 1 replicas, so restore the file" in said and "mount" not in said and "format" not in said


def test_a_directory_that_never_was_one_of_ours_is_not_called_missing() -> None:
    bare = replace(loaded("/d3"), meta_properties=None)
    assert _without_missing({"/d3": bare}, IDS) == {"/d3": bare}


@pytest.mark.parametrize(
    "load", [loaded("/d1"), DirectoryError(errno.EIO, "open of /d1", "/d1"), StorageError("/d1: stuck")]
)
def test_what_a_directory_says_is_left_as_it_is(load: Any) -> None:
    assert _without_missing({"/d1": load}, IDS) == {"/d1": load}


class Marked:
    """A directory agent that can only be marked."""

    def __init__(self, blocked: BlockedCall | None) -> None:
        self._blocked = blocked
        self.epochs: list[int] = []

    def blocked(self) -> BlockedCall | None:
        return self._blocked

    async def write_clean_shutdown(self, broker_epoch: int, *, timeout_ms: int) -> None:
        self.epochs.append(broker_epoch)


async def test_a_stop_asks_nothing_of_a_directory_that_does_not_answer() -> None:
    agents = {
        Uuid.of(1, 1): Marked(None),
        Uuid.of(1, 2): Marked(BlockedCall(1, "probe", "fsync", BLOCKED_MS - 1)),
        Uuid.of(1, 3): Marked(BlockedCall(1, "probe", "fsync", BLOCKED_MS)),
    }
    await mark_clean(Opened(cast(Any, None), cast(Any, agents), {}), list(agents), 7)
    assert [agent.epochs for agent in agents.values()] == [[7], [7], []]


async def test_su_12_a_directory_that_was_not_loaded_completely_is_marked_clean_only_if_it_was_before() -> None:
    agents = {Uuid.of(1, n): Marked(None) for n in (1, 2, 3, 4)}
    start_up = cast(Any, None)
    opened = Opened(start_up, cast(Any, agents), {}, loading={Uuid.of(1, 1), Uuid.of(1, 2)}, unprepared={Uuid.of(1, 4)})
    directories = [
        Directory(f"/d{n}", Uuid.of(1, n), loaded(f"/d{n}", epoch=[5, None, None, 5][n - 1])) for n in (1, 2)
    ]
    opened.start_up = cast(Any, type("Some", (), {"log_dirs": directories}))
    await mark_clean(opened, list(agents), 7)
    assert [agent.epochs for agent in agents.values()] == [[7], [], [7], []]


# ------------------------------------------------------------------------------------------- nobody waits for one disk

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
PATHS = ("/d1", "/d2", "/d3")


async def opened_after(disks: Disks, clock: Any) -> tuple[Opened, int]:
    begun_ms = clock.monotonic_ms()
    opened = await disks.open()
    return opened, clock.monotonic_ms() - begun_ms


def test_a_known_directory_that_hangs_at_the_start_is_late_and_the_others_go_on(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d2"].hang()
        opened, took_ms = await opened_after(disks, clock)
        assert took_ms == PATIENCE_MS
        assert opened.late == {"/d2"}
        assert [d.path for d in opened.start_up.log_dirs] == ["/d1", "/d3"]
        assert [(u.path, u.directory_id) for u in opened.start_up.unreadable] == [("/d2", disks.ids["/d2"])]
        assert opened.loading == {disks.ids["/d1"], disks.ids["/d3"]}
        assert not disks.log.of("directory.unreadable")

    virtual(main)


def test_a_slow_directory_is_waited_for_a_little(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d2"].delay_ms = 1500
        opened, _ = await opened_after(disks, clock)
        assert not opened.late and len(opened.start_up.log_dirs) == 3

    virtual(main)


def test_a_directory_that_nobody_remembers_is_waited_for_since_it_may_be_a_mistake(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS, remembered=())
        disks["/d2"].hang()
        opened, took_ms = await opened_after(disks, clock)
        assert took_ms == LOAD_TIMEOUT_MS
        assert [u.path for u in opened.start_up.unreadable] == ["/d2"]

    virtual(main)


def test_without_the_metadata_directory_there_is_no_start(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d1"].hang()
        with pytest.raises(StorageError, match="metadata log directory /d1"):
            await disks.open()
        assert clock.monotonic_ms() == LOAD_TIMEOUT_MS

    virtual(main)


def test_when_no_log_directory_answers_all_get_their_full_time(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS, metadata="/m")
        for path in PATHS:
            disks[path].hang()
        clock.call_later(6, disks["/d2"].heal)
        opened, _ = await opened_after(disks, clock)
        assert [d.path for d in opened.start_up.log_dirs] == ["/d2"]

    virtual(main)


def test_a_directory_that_hangs_when_it_is_to_be_locked_is_registered_and_prepared_later(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d2"].delay_ms = 3000
        clock.call_later(3.2, disks["/d2"].hang)
        opened, took_ms = await opened_after(disks, clock)
        assert took_ms == 3000 + PATIENCE_MS
        assert opened.unprepared == {disks.ids["/d2"]} and not opened.failed
        assert len(opened.start_up.log_dirs) == 3

    virtual(main)


def test_a_directory_that_another_process_holds_ends_the_start(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d2"].locked_by = object()
        with pytest.raises(StorageError, match=r"/d2 is in use: another process holds /d2/\.lock"):
            await disks.open()

    virtual(main)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOTTY])
def test_a_directory_that_cannot_be_locked_is_a_mistake_of_its_set_up_and_no_dead_disk(
    virtual: Run, number: int
) -> None:
    async def main(clock: Any) -> None:
        new, alone, metadata = (PATHS, ("/d1", "/d3"), "/d2"), (["/d2"], ["/d2"], "/d2"), (PATHS, PATHS, "/d1")
        for paths, remembered, bad in (new, alone, metadata):
            disks = Disks(clock, paths, remembered=remembered)
            disks[bad].fail(number, ["lock"])
            with pytest.raises(ConfigError) as refused:
                await disks.open()
            assert "\n" not in str(refused.value)
            assert f"{bad} cannot be used: {errno.errorcode[number]} at lock" in str(refused.value)

    virtual(main)


def test_a_directory_that_cannot_be_locked_any_more_is_offline_beside_others_that_are_well(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks["/d2"].fail(errno.ENOLCK, ["lock"])
        (reason,) = (await disks.open()).failed.values()
        assert "ENOLCK at lock" in reason
        assert "local file system" in reason

    virtual(main)


@pytest.mark.parametrize(
    ("number", "call", "is_named"),
    [
        (errno.EISDIR, "open of .lock", True),
        (errno.EBUSY, "unlink of .kafka_cleanshutdown", True),
        (errno.ETXTBSY, "open of .lock", True),
        (errno.EIO, "open of .lock", False),
        (errno.EROFS, "open of .lock", False),
        (errno.ENOSPC, "open of .lock", False),
    ],
)
def test_what_is_in_the_way_of_a_file_of_the_start_is_named_and_a_dead_disk_is_not(
    number: int, call: str, is_named: bool
) -> None:
    said = start_up.misconfigured("/d1", DirectoryError(number, call, "/d1"))
    assert (said is not None) == is_named


def test_a_replaced_disk_and_one_that_is_back_are_each_said_once(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        old = disks.ids["/d2"]
        new = disks.replace("/d2")
        await disks.open()
        (line,) = disks.log.of("directory.replaced")
        assert (line["path"], line["directory_id"], line["before"]) == ("/d2", str(new), str(old))
        assert disks.remembering.memory.ids["/d2"] == new
        retired = disks.remembering.memory.retired_as(old)
        assert retired is not None and (retired.path, retired.replaced_by) == ("/d2", new)
        disks.restart()
        disks.format("/d2", old)
        await disks.open()
        (line,) = disks.log.of("directory.returned")
        assert (line["path"], line["directory_id"], line["replaced_by"]) == ("/d2", str(old), str(new))
        assert "strays" in line["reason"]

    virtual(main)


def test_one_disk_under_two_paths_is_refused(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, PATHS)
        disks.format("/d3", disks.ids["/d2"])
        with pytest.raises(StorageError, match="Duplicate directory ID"):
            await disks.open()

    virtual(main)


ROOT = Mount(1, 0, "254:0", "/", "/", "ext4", "/dev/vda", frozenset())
OWN = Mount(2, 1, "7:1", "/", "/mnt/d2", "ext4", "/dev/loop1", frozenset())


@pytest.mark.parametrize(
    ("mount", "remembered", "another", "offline"),
    [
        (ROOT, "/mnt/d2", True, True),  # formatted below the mount point of a disk that is away
        (OWN, "/mnt/d2", True, False),  # a new disk
        (ROOT, "/mnt/d2", False, False),  # copied there, with its id
        (ROOT, "/", True, False),  # no disk of its own before either
        (ROOT, None, True, False),  # remembered by an agent that did not note it
    ],
)
def test_a_mount_point_that_was_formatted_without_its_disk_is_offline(
    mount: Mount, remembered: str | None, another: bool, offline: bool
) -> None:
    path = "/mnt/d2/logs"
    before = Memory().seen(path, Uuid.of(1, 2), 0).on_device(path, "sdb", None, remembered)
    load = loaded(path, b"version=1")
    load = replace(
        load,
        directory_id=str(Uuid.of(9, 9) if another else Uuid.of(1, 2)),
        identity=replace(load.identity, mount_id=mount.mount_id),
    )
    judged = _without_unmounted({path: load}, before, (ROOT, OWN))[path]
    assert (judged is load) is not offline
    if offline:
        assert type(judged) is StorageError
        for part in (path, "mount its disk on /mnt/d2 first", str(Uuid.of(1, 2)), f"kjbod dirs add {path}"):
            assert part in str(judged)


METADATA = "/mnt/d2/logs"
CONTROLLERS = config_of([METADATA])


def _of_the_metadata(load: Load, remembered: str | None = "/mnt/d2") -> str:
    """Words with which a combined node refuses it; empty where it does not."""
    before = Memory().seen(METADATA, Uuid.of(1, 2), 0).on_device(METADATA, "sdb", None, remembered)
    try:
        require_metadata_disk(load, CONTROLLERS, before, (ROOT, OWN))
    except StartUpError as error:
        return str(error)
    return ""


def _on(mount: Mount, directory_id: Uuid) -> LoadedDirectory:
    load = loaded(METADATA, b"version=1")
    identity = replace(load.identity, mount_id=mount.mount_id)
    return replace(load, directory_id=str(directory_id), identity=identity)


def test_a_metadata_disk_that_is_away_is_to_be_mounted_and_never_to_be_formatted() -> None:
    bare = replace(loaded(METADATA, b""), meta_properties=None)
    absent = DirectoryError(errno.ENOENT, f"open of {METADATA}", METADATA)
    for load in (bare, absent):
        said = _of_the_metadata(load)
        assert said.startswith(METADATA) and "mount its disk on /mnt/d2 first" in said and str(Uuid.of(1, 2)) in said
        assert "kjbod format" not in said and "--standalone" not in said
    assert "mount its disk, or restore it" in _of_the_metadata(absent, remembered=None)


def test_another_metadata_log_below_the_mount_point_of_a_disk_that_is_away_is_refused() -> None:
    said = _of_the_metadata(_on(ROOT, Uuid.of(9, 9)))
    for part in (METADATA, "mount its disk on /mnt/d2 first", str(Uuid.of(1, 2)), "known_directories.json"):
        assert part in said
    assert not _of_the_metadata(_on(OWN, Uuid.of(9, 9))), "a new disk"
    assert not _of_the_metadata(_on(ROOT, Uuid.of(1, 2))), "copied there, with its id"


def test_a_metadata_directory_that_never_was_one_is_to_be_formatted() -> None:
    with pytest.raises(StartUpError, match=f"{METADATA} is not formatted.* --standalone"):
        require_metadata_disk(replace(loaded(METADATA, b""), meta_properties=None), CONTROLLERS, Memory(), ())


def test_the_other_half_of_the_node_is_opened_when_nothing_is_wrong_and_before_anything_is_changed(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        disks = Disks(clock, ["/d1", "/d2"])
        disks.format("/d2", None)
        opened = []

        async def open_companion() -> None:
            opened.append({path: (disk.locked_by, disk.meta_properties) for path, disk in disks.disks.items()})
            raise StartUpError("its log is damaged")

        before = {path: (None, disk.meta_properties) for path, disk in disks.disks.items()}
        with pytest.raises(StartUpError, match="its log is damaged"):
            await disks.open(open_companion)
        assert opened == [before]
        disks.format("/d2", disks.ids["/d1"])
        with pytest.raises(StorageError, match="Duplicate directory ID"):
            await disks.open(open_companion)
        assert len(opened) == 1

    virtual(main)
