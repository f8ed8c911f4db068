"""A log directory that hangs when a guard is started: watched from memory until it answers, and the memory's file."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard import recall, recalling
from kjbod_guard.looking import Looking
from kjbod_guard.observing import Observed
from kjbod_guard.recall import NAME, NEVER_READ, Remembered
from kjbod_guard.recalling import AGAIN_MS, Recalling
from kjbod_guard.watching import PATIENCE_MS, Watching
from kjbod_host.files import file_worker
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.mountinfo import MOUNTINFO
from kjbod_host.health.state import Cause, Health, HealthSettings
from kjbod_host.storage.api import LoadedDirectory, StorageOptions, Survey
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk, MemoryStorageAgent
from tests.agent.conftest import VirtualLoop
from tests.agent.core.recording import Log
from tests.agent.health.test_monitor import Sources
from tests.guard.test_action_runner import SetClock
from tests.guard.test_recall import LOADED, PLACE

GOOD, HUNG = "/mnt/d1", "/mnt/d2"
CLUSTER, OTHER = "MkU3OEVBNTcwNTJENDM2Qg", "XkU3OEVBNTcwNTJENDM2Qg"
VERDICT_S = HealthSettings().probe_timeout_ms / 1000 + 0.5


def meta(number: int, node: int = 1, cluster: str = CLUSTER) -> bytes:
    return f"version=1\ncluster.id={cluster}\nnode.id={node}\ndirectory.id={Uuid.of(5, number)}\n".encode()


class Recollected:
    """A memory. Implements ``Recollection``."""

    def __init__(self, **known: bytes) -> None:
        self.known = {
            path: Remembered(replace(LOADED, path=path, real_path=path, meta_properties=content), None, PLACE, 5_000)
            for path, content in known.items()
        }

    async def recall(self, path: str) -> Remembered | str:
        return self.known.get(path, NEVER_READ)

    def read(self, path: str, loaded: LoadedDirectory) -> None:
        self.known[path] = Remembered(loaded, None, PLACE, 6_000)

    def surveyed(self, path: str, survey: Survey) -> None: ...

    def forget(self, path: str) -> None:
        self.known.pop(path, None)


class World:
    """Two disks, of which the second one hangs, and what watches them."""

    def __init__(self, clock: VirtualLoop, memory: Recollected, *, all_hang: bool = False) -> None:
        self.disks = {
            path: MemoryDisk(meta_properties=meta(number), number=number)
            for number, path in enumerate((GOOD, HUNG), start=1)
        }
        self.hung = self.disks[HUNG]
        for disk in self.disks.values() if all_hang else (self.hung,):
            disk.hang()
        self.log, self.memory = Log(), memory
        self.anew: list[str] = []
        self.verdicts: list[Verdict] = []
        self.tasks: list[asyncio.Task[None]] = []
        storage = MemoryStorageAgent(StorageOptions(clock=clock), self.disks)
        self.watching = Watching(
            1, tuple(self.disks), storage, clock, cast(Any, self.log), self.spawn, self.anew.append, memory
        )

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(coroutine))

    async def __aenter__(self) -> "World":
        read = await self.watching.begin()
        self.monitor = HealthMonitor(
            read,
            settings=HealthSettings(),
            clock=self.watching.clock,
            on_verdict=self.verdicts.append,
            sources=Sources(self.disks),
        )
        self.spawn(self.monitor.run())
        self.watching.tend(self.monitor)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def health(self) -> Health:
        return self.monitor.health(HUNG).health


Run = Callable[[Callable[[VirtualLoop], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a coroutine function in virtual time. No directory is written to before it was read."""
    probe = MemoryDirectoryAgent._op_probe

    def checked(self: MemoryDirectoryAgent, request: dict[str, Any], directory_id: str | None) -> dict[str, Any]:
        assert directory_id is not None and request["expect"][0] is not None
        return probe(self, request, directory_id)

    monkeypatch.setattr(MemoryDirectoryAgent, "_op_probe", checked)

    def make(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
        loop = VirtualLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main(loop))

    return make


def test_a_disk_that_hangs_when_a_guard_comes_is_judged_as_any_other_where_one_has_read_it_before(run: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        async with World(clock, Recollected(**{HUNG: meta(2)})) as world:
            assert clock.monotonic_ms() == PATIENCE_MS
            assert world.watching.unread == {HUNG} and set(world.watching.owned) == {GOOD, HUNG}
            assert (world.health(), world.monitor.health(HUNG).cause) == (Health.SUSPECT, Cause.SILENT)
            silent = f"{HUNG}: no answer since 1970-01-01T00:00:00Z: it is known from what a guard read there before"
            assert (world.watching.why_suspect(HUNG), world.watching.why_suspect(GOOD)) == (silent, None)
            (said,) = world.log.of("directory.recalled")
            assert said["read_at"] == "1970-01-01T00:00:05Z" and said["directory_id"] == str(Uuid.of(5, 2))
            await asyncio.sleep(VERDICT_S)
            assert (world.health(), world.monitor.health(HUNG).cause) == (Health.FAILED, Cause.HUNG)
            assert world.verdicts[-1].directory_id == str(Uuid.of(5, 2))
            await asyncio.sleep(60)
            assert world.hung.requests == 0 and world.watching.why_over(HUNG, 0, 1) is None

            world.hung.heal()
            await asyncio.sleep(30)
            assert world.health() is Health.ONLINE and not world.watching.unread
            assert world.anew == [HUNG]

    run(main)


def test_a_disk_that_answers_before_it_is_judged_is_watched_as_it_is(run: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        async with World(clock, Recollected(**{HUNG: meta(2)})) as world:
            world.hung.meta_properties = meta(3)  # another disk of this broker
            await asyncio.sleep(0.3)
            world.hung.heal()
            await asyncio.sleep(1.5)
            assert world.health() is Health.ONLINE and world.anew == [HUNG]
            assert world.watching.directory_id(HUNG) == Uuid.of(5, 3)
            assert world.memory.known[HUNG].loaded.meta_properties == meta(3)

    run(main)


@pytest.mark.parametrize("judged", [False, True])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (meta(2, node=2), "belongs to node 2, not 1"),
        (meta(2, cluster=OTHER), f"belongs to cluster {OTHER}"),
        (meta(1), "has the directory.id"),
        (None, "has no meta.properties"),
    ],
)
def test_what_a_disk_says_when_it_answers_counts_and_not_what_is_remembered_of_it(
    run: Run, content: bytes | None, why: str, judged: bool
) -> None:
    async def main(clock: VirtualLoop) -> None:
        async with World(clock, Recollected(**{HUNG: meta(2)})) as world:
            world.hung.meta_properties = content
            await asyncio.sleep(VERDICT_S if judged else 0.3)
            assert world.health() is (Health.FAILED if judged else Health.SUSPECT)
            world.hung.heal()
            await asyncio.sleep(12)
            assert why in world.watching.unwatched[HUNG]
            assert set(world.watching.owned) == {GOOD} and not world.watching.unread
            assert [one.path for one in world.monitor.status()] == [GOOD]
            assert HUNG not in world.memory.known and world.anew == []

    run(main)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        ({}, NEVER_READ),
        ({HUNG: meta(2, node=7)}, "belongs to node 7, not 1"),
        ({HUNG: meta(2, cluster=OTHER)}, f"belongs to cluster {OTHER}"),
        ({HUNG: meta(1)}, "has the directory.id"),
    ],
)
def test_a_disk_of_which_nothing_may_be_remembered_is_said_not_to_answer_once_and_watched_when_it_does(
    run: Run, known: dict[str, bytes], why: str
) -> None:
    async def main(clock: VirtualLoop) -> None:
        async with World(clock, Recollected(**known)) as world:
            await asyncio.sleep(120)
            (said,) = world.log.of("directory.unwatched")
            assert f"{HUNG}: no answer since 1970-01-01T00:00:00Z at load of memory" in said["reason"]
            assert why in said["reason"] and "nothing can be done about it until it answers" in said["reason"]
            assert world.watching.helpless == {HUNG: 0} and set(world.watching.owned) == {GOOD}
            world.hung.heal()
            await asyncio.sleep(30)
            assert world.watching.helpless == {} and world.health() is Health.ONLINE

    run(main)


def test_the_cluster_is_known_from_memory_where_no_disk_answers(run: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        known = Recollected(**{GOOD: meta(1), HUNG: meta(2)})
        async with World(clock, known, all_hang=True) as world:
            assert world.watching.cluster_id == CLUSTER and world.watching.unread == {GOOD, HUNG}

    run(main)


def test_a_disk_that_is_not_read_yet_is_not_well_so_that_what_was_released_or_evicted_stays_so(run: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        async with World(clock, Recollected(**{HUNG: meta(2)})) as world:
            finding = SimpleNamespace(holder=None, unbound="no broker runs", looked=True, ended_pid=None)
            following = SimpleNamespace(observed=Observed(1), blind=None, answered_ms=None, registered_ms=0)
            config = SimpleNamespace(kjbod_guard_cut_after_ms=3_000, log_dir_failure_timeout_ms=30_000)
            parts = cast(tuple[Any, Any, Any], (config, finding, following))
            looking = Looking(parts[0], world.watching, world.monitor, parts[1], parts[2], None, {}, clock)
            disks = looking.situation(None, {}).disks
            assert {path: disk.is_well for path, disk in disks.items()} == {GOOD: True, HUNG: False}
            assert disks[HUNG].directory_id == Uuid.of(5, 2) and not disks[HUNG].is_known_well
            world.watching.rest(HUNG)
            assert looking.situation(None, {}).disks[HUNG].health is None
            assert world.watching.unwatched == {HUNG: "it was released"} and HUNG not in world.memory.known

    run(main)


def test_a_disk_of_which_something_else_is_remembered_than_the_broker_has_there_is_known_no_more(run: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        async with World(clock, Recollected(**{HUNG: meta(2)})) as world:
            await asyncio.sleep(VERDICT_S)
            for path in (GOOD, HUNG, HUNG):
                world.watching.disown(path)
            assert [one.path for one in world.monitor.status()] == [GOOD] and set(world.watching.owned) == {GOOD}
            assert recall.REPLACED in world.watching.unwatched[HUNG] and world.watching.helpless == {HUNG: 0}
            await asyncio.sleep(60)
            assert HUNG not in world.memory.known and world.watching.helpless == {HUNG: 0}
            world.hung.heal()
            await asyncio.sleep(30)
            assert world.health() is Health.ONLINE

    run(main)


# ------------------------------------------------------------------------------------------------------------- the file


class Files:
    """A file process that does its work at once, or fails. ``hangs``: it does not answer."""

    def __init__(self) -> None:
        self.error: OSError | None = None
        self.hangs = False
        self.late_s = 0.0
        self.written = asyncio.Event()

    async def call(self, operation: str, *arguments: Any) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        await asyncio.sleep(self.late_s)
        if operation == "write":
            asyncio.get_running_loop().call_soon(self.written.set)
        if self.error is not None:
            raise self.error
        return file_worker.OPERATIONS[operation](*arguments)


def made(state: Path, paths: list[str], files: Files, log: Log, links: Files | None = None) -> Recalling:
    config = SimpleNamespace(kjbod_state_dir=str(state), node_id=1)
    return Recalling(cast(Any, config), paths, cast(Any, files), cast(Any, links or files), SetClock(), cast(Any, log))


def loaded_at(path: Path) -> LoadedDirectory:
    place = recalling._place(str(path), recalling._mounts(MOUNTINFO))
    assert place is not None
    identity = replace(LOADED.identity, mount_id=place.mount_id)
    return replace(LOADED, path=str(path), real_path=str(path), meta_properties=meta(2), identity=identity)


async def kept(memory: Recalling, files: Files) -> None:
    """Until what is new was written, or could not be."""
    files.written.clear()
    task = asyncio.ensure_future(memory.run())
    async with asyncio.timeout(10):
        await files.written.wait()
    task.cancel()


async def test_what_one_guard_has_read_the_next_one_knows_while_the_same_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, gone, files, log = tmp_path / "d1", tmp_path / "gone", Files(), Log()
    before = made(tmp_path / "state", [str(path), str(gone)], files, log)
    await before.load()
    assert await before.recall(str(path)) == NEVER_READ and not log.events
    survey = Survey((8, 17, 14), ())
    for one in (path, gone):
        before.read(str(one), loaded_at(one))
        before.surveyed(str(one), survey)
    await kept(before, files)

    after = made(tmp_path / "state", [str(path)], files, log)
    await after.load()
    found = await after.recall(str(path))
    assert isinstance(found, Remembered)
    assert (found.loaded.meta_properties, found.survey) == (meta(2), survey)
    assert await after.recall(str(gone)) == NEVER_READ, "it is configured no more"
    after.forget(str(path))
    assert await after.recall(str(path)) == NEVER_READ
    await kept(after, files)
    assert b"d1" not in (tmp_path / "state" / NAME).read_bytes()

    monkeypatch.setattr(recalling, "disk_sequence", lambda device: 4711)
    swapped = made(tmp_path / "state", [str(path)], files, log)
    swapped.read(str(path), loaded_at(path))
    monkeypatch.setattr(recalling, "disk_sequence", lambda device: 4712)
    assert await swapped.recall(str(path)) == recall.OTHER_MOUNT
    swapped.read(str(path), LOADED)
    assert await swapped.recall(str(path)) == NEVER_READ, "another disk was mounted while it was read"


async def test_a_memory_that_cannot_be_read_or_written_keeps_nobody_and_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, log, path = Files(), Log(), tmp_path / "d1"
    (tmp_path / NAME).write_text('{"version": 1, "node": 1}')
    memory = made(tmp_path, [str(path)], files, log)
    await memory.load()
    (said,) = log.of("guard.memory.not.read")
    assert said["reason"].startswith(f"{tmp_path / NAME}: it cannot be read") and "made anew" in said["consequence"]
    assert await memory.recall(str(path)) == NEVER_READ

    monkeypatch.setattr(recalling, "LOAD_MS", 10)
    monkeypatch.setattr(recalling, "PATIENCE_MS", 10)
    files.hangs = True
    await made(tmp_path, [str(path)], files, log).load()
    assert "no answer within 10 ms" in log.of("guard.memory.not.read")[1]["reason"]
    memory.read(str(path), loaded_at(path))
    assert await memory.recall(str(path)) == "where its path leads cannot be told: no answer within 10 ms"

    files.hangs, files.error = False, OSError(errno.ENOSPC, "No space left on device")
    await kept(memory, files)
    (said,) = log.of("guard.memory.not.written")
    assert said["reason"] == f"{tmp_path / NAME}: No space left on device"
    assert memory._changed.is_set() and AGAIN_MS > 0


def test_a_memory_that_comes_late_is_waited_for_since_the_next_one_does_not_know_what_hangs(
    tmp_path: Path, run: Run
) -> None:
    async def main(_: VirtualLoop) -> None:
        path, files, log = tmp_path / "d1", Files(), Log()
        before = made(tmp_path / "state", [str(path)], files, log)
        before.read(str(path), loaded_at(path))
        await kept(before, files)
        links, files.late_s = Files(), 6
        after = made(tmp_path / "state", [str(path)], files, log, links)
        await after.load()
        assert isinstance(await after.recall(str(path)), Remembered) and not log.events

    run(main)
