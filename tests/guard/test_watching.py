"""What is known of a log directory between its failure and the moment when it is called well again."""

import asyncio
import errno
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kjbod.errors import StorageError
from kjbod_guard import watching as watching_module
from kjbod_guard.helper_directory import MASK_SOURCE
from kjbod_guard.watching import RETURN_PROBES, Monitor, Watching
from kjbod_host.health.mounts import Mount
from kjbod_host.health.state import DirectoryHealth, Health
from kjbod_host.reporter import Log
from kjbod_host.storage.api import DirectoryError, DirectoryTimeout, LoadedDirectory, StorageAgent

PATH = "/mnt/d1"
META = b"version=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qg\nnode.id=1\ndirectory.id=9bFlIkpYt5HfavHYMD5hzQ\n"


@dataclass
class Disk:
    """A disk, its storage agent, its monitor and the clock."""

    ms: int = 0
    broken: bool = True
    stuck: bool = False
    answer: StorageError | None = None
    added: int = 0
    said: list[str] = field(default_factory=list)

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000

    def wall_ms(self) -> int:
        return self.ms

    def directory(self, path: str) -> "Disk":
        return self

    def blocked(self) -> object | None:
        return self if self.stuck else None

    async def load_head(self, *, timeout_ms: int) -> LoadedDirectory:
        if self.answer is not None:
            raise self.answer
        if self.broken:
            raise StorageError("EIO at read of meta.properties")
        return cast("LoadedDirectory", Loaded())

    async def probe(self, *, full: bool, timeout_ms: int) -> None:
        if self.broken:
            raise StorageError("EIO at fsync")

    def add(self, agent: object, loaded: object, directory_id: str) -> None:
        self.added += 1

    def health(self, path: str) -> DirectoryHealth:
        return DirectoryHealth(health=Health.FAILED)

    def info(self, event: str, **_: object) -> None:
        self.said.append(event)

    def warning(self, event: str, **_: object) -> None:
        self.said.append(event)


@dataclass
class Loaded:
    meta_properties: bytes = META
    real_path: str = PATH
    replicas: tuple[str, ...] = ()


async def looks(watching: Watching, disk: Disk, count: int, every_ms: int = 5_000) -> list[str | None]:
    """Look whether the disk is well, so many times; why its failure at 1,000 ms may be over, after each."""
    entry, found = watching.entries[PATH], []
    for _ in range(count):
        disk.ms += every_ms
        await watching._look_whether_well(entry)
        found.append(watching.why_over(PATH, 1_000, 60_000))
    return found


async def watched(disk: Disk) -> Watching:
    """The disk was read well once, and has failed at 1,000 ms."""
    left: list[Coroutine[Any, Any, None]] = []
    watching = Watching(1, (PATH,), cast("StorageAgent", disk), disk, cast("Log", disk), left.append)
    watching._sort({PATH: cast("LoadedDirectory", Loaded())})
    watching._monitor = cast("Monitor", disk)
    disk.ms = 1_000
    return watching


def test_a_failure_counts_from_the_start() -> None:
    watching = asyncio.run(watched(Disk()))
    assert watching.why_over(PATH, 1_000, 0) is None
    assert watching.why_over(PATH, 1_000, 1_000) is None


@pytest.mark.parametrize(
    ("said", "errs"),
    [
        (DirectoryError(errno.EIO, "read of meta.properties", PATH), True),
        (DirectoryError(errno.ENOENT, "read of meta.properties", PATH), False),
        (DirectoryTimeout(3_500, "", "open", PATH), False),
        (None, False),
    ],
)
async def test_a_directory_that_cannot_be_read_is_told_from_one_that_answers_errors_of_its_disk(
    said: StorageError | None, errs: bool
) -> None:
    disk = Disk(broken=False)
    watching = await watched(disk)
    watching.entries[PATH].errs = not errs
    disk.answer = said
    await watching._load(PATH, 3_500)
    assert watching.entries[PATH].errs is errs


async def test_the_mask_of_a_guard_before_is_named_with_what_takes_it_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = Disk(answer=DirectoryError(errno.EISDIR, "read of meta.properties", PATH))
    watching = Watching(1, (PATH,), cast("StorageAgent", disk), disk, cast("Log", disk), cast("Any", None))
    root = Mount(30, 1, "8:1", "/", "/", "ext4", "/dev/sda1", frozenset({"rw"}))
    mask = Mount(31, 30, "0:45", "/", PATH, "tmpfs", MASK_SOURCE, frozenset({"ro"}))
    monkeypatch.setattr(watching_module, "mounts_now", lambda pid=None: (root, mask))
    assert await watching._load(PATH, 3_500) is None
    assert f"umount {PATH}" in (watching.entries[PATH].reason or "")
    monkeypatch.setattr(watching_module, "mounts_now", lambda pid=None: (root, replace(mask, source="tmpfs")))
    assert await watching._load(PATH, 3_500) is None
    assert "EISDIR at read of meta.properties" in (watching.entries[PATH].reason or "")


async def test_a_failure_from_before_the_broker_started_counts_again_when_it_is_seen_since() -> None:
    disk = Disk()
    watching = await watched(disk)
    disk.ms = 50_000
    before = "it failed before the broker started, and was not looked at since"
    assert await looks(watching, disk, 3) == [before, None, None]  # at 55, 60 and 65 s; it started at 60 s
    disk = Disk(stuck=True)
    watching = await watched(disk)
    disk.ms = 50_000
    assert await looks(watching, disk, 2) == [before, None]


async def test_a_disk_whose_probes_pass_again_is_no_failed_one_until_one_fails() -> None:
    disk = Disk(broken=False)
    watching = await watched(disk)
    again = "its probes pass again, and it is not called well yet"
    disk.ms = 100_000
    assert await looks(watching, disk, RETURN_PROBES - 1) == [again] * (RETURN_PROBES - 1)
    disk.broken = True
    assert await looks(watching, disk, 1) == [None]
    disk.broken = False
    await looks(watching, disk, RETURN_PROBES)
    assert disk.added == 1 and "directory.watched" in disk.said


async def test_a_disk_that_answers_what_it_had_swallowed_is_no_failed_one_until_a_look_fails() -> None:
    disk = Disk()
    watching = await watched(disk)
    again = "its disk answers again, and it is not called well yet"
    assert watching.why_over(PATH, 1_000, 0, freed_ms=1_500) == again
    assert watching.why_over(PATH, 1_000, 0, freed_ms=900) is None  # before it failed
    await looks(watching, disk, 1)
    assert watching.why_over(PATH, 1_000, 0, freed_ms=1_500) is None


def test_what_lies_around_a_directory_is_looked_at_anew_when_nobody_holds_its_lock_any_more() -> None:
    disk = Disk(ms=10_000)
    nobody = cast(Any, None)
    watching = Watching(1, [PATH], cast(Any, disk), disk, nobody, nobody)
    entry = watching.entries[PATH]
    entry.survey, entry.surveyed_ms = cast(Any, SimpleNamespace(lock=(8, 1, 7))), 10_000
    assert not watching._is_survey_due(entry)
    watching.nobody_holds()
    assert watching._is_survey_due(entry), "a broker that starts makes another one"
