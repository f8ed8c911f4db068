"""A log directory that hangs when a guard is started: watched from memory until it answers, and the memory's file."""

import asyncio
import errno
import json
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod.meta_properties import KNOWN_DIRECTORIES_NAME as NAME
from kjbod_guard import recall, recalling
from kjbod_guard.boots import boot_id
from kjbod_guard.looking import Looking
from kjbod_guard.observing import Observed
from kjbod_guard.recall import NEVER_READ, OLD_NAME, Memory, Remembered
from kjbod_guard.recalling import AGAIN_MS, LOAD_MS, Recalling
from kjbod_guard.watching import PATIENCE_MS, Watching
from kjbod_host.directories.known_directories import KnownDirectories
from kjbod_host.directories.start_up import Remembering
from kjbod_host.directories.start_up_rules import KnownDirectory
from kjbod_host.directories.start_up_rules import Memory as AgentMemory
from kjbod_host.files import file_worker
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.monitor import HealthMonitor
from kjbod_host.health.mountinfo import MOUNTINFO
from kjbod_host.health.state import Cause, Health, HealthSettings
from kjbod_host.storage.api import LoadedDirectory, StorageOptions, Survey
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk, MemoryStorageAgent
from tests.agent.conftest import VirtualLoop
from tests.agent.core.recording import Log
from tests.agent.core.test_keeping import Died, at_step, die, refuse
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

    async def take(self, *_: object) -> None:
        """Lock the folder: nobody else has it."""


async def remembering(state: Path, files: Files, log: Log) -> Remembering:
    config = SimpleNamespace(kjbod_state_dir=str(state), node_id=1)
    found = Remembering(cast(Any, config), cast(Any, log), "guard")
    found.files = cast(Any, files)
    await found.load()
    return found


async def made(state: Path, paths: list[str], files: Files, log: Log, links: Files | None = None) -> Recalling:
    """The memory of a guard that has just started."""
    config = SimpleNamespace(kjbod_state_dir=str(state), node_id=1)
    memory = Recalling(
        cast(Any, config),
        paths,
        await remembering(state, files, log),
        cast(Any, links or files),
        SetClock(),
        cast(Any, log),
    )
    await memory.load()
    return memory


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
    await asyncio.sleep(0)
    task.cancel()


async def test_what_one_guard_has_read_the_next_one_knows_while_the_same_is_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, gone, files, log = tmp_path / "d1", tmp_path / "gone", Files(), Log()
    before = await made(tmp_path / "state", [str(path), str(gone)], files, log)
    assert await before.recall(str(path)) == NEVER_READ and not log.events
    survey = Survey((8, 17, 14), ())
    for one in (path, gone):
        before.read(str(one), loaded_at(one))
        before.surveyed(str(one), survey)
    await kept(before, files)

    after = await made(tmp_path / "state", [str(path)], files, log)
    found = await after.recall(str(path))
    assert isinstance(found, Remembered)
    assert (found.loaded.meta_properties, found.survey) == (meta(2), survey)
    assert await after.recall(str(gone)) == NEVER_READ, "it is configured no more"
    after.forget(str(path))
    assert await after.recall(str(path)) == NEVER_READ
    await kept(after, files)
    assert b"d1" not in (tmp_path / "state" / NAME).read_bytes()

    monkeypatch.setattr(recalling, "disk_sequence", lambda device: 4711)
    swapped = await made(tmp_path / "state", [str(path)], files, log)
    swapped.read(str(path), loaded_at(path))
    monkeypatch.setattr(recalling, "disk_sequence", lambda device: 4712)
    assert await swapped.recall(str(path)) == recall.OTHER_MOUNT
    swapped.read(str(path), LOADED)
    assert await swapped.recall(str(path)) == NEVER_READ, "another disk was mounted while it was read"


async def test_a_memory_that_cannot_be_written_keeps_nobody_and_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, log, path = Files(), Log(), tmp_path / "d1"
    memory = await made(tmp_path, [str(path)], files, log)
    memory.read(str(path), loaded_at(path))
    monkeypatch.setattr(recalling, "PATIENCE_MS", 10)
    files.hangs = True
    assert await memory.recall(str(path)) == "where its path leads cannot be told: no answer within 10 ms"

    files.hangs, files.error = False, OSError(errno.ENOSPC, "No space left on device")
    await kept(memory, files)
    (said,) = log.of("guard.memory.not.written")
    assert said["reason"] == f"{tmp_path / NAME}: No space left on device"
    assert memory._changed.is_set() and AGAIN_MS > 0


# ------------------------------------------------------------------------- files of earlier releases, and of later ones


def content_before(path: Path, at_ms: int = 5) -> bytes:
    """The file of a guard before this release, which has read one directory."""
    loaded = loaded_at(path)
    place = recalling._place(str(path), recalling._mounts(MOUNTINFO))
    assert place is not None
    memory = Memory(1, boot_id(), {str(path): Remembered(loaded, None, place, at_ms)})
    part = recall.encode(memory)
    del part["written_ms"]
    return json.dumps(part, indent=1).encode()


KNOWN = AgentMemory({"/d9": KnownDirectory(Uuid.of(7, 9), "sdb1 8:17", "9XG1A2BC", 5, "/mnt")})


def ids_before() -> bytes:
    """The other file of a guard, or the one of an agent, before this release."""
    return KnownDirectories(Path(), 1).content(KNOWN)


def lay(state: Path, **contents: bytes | None) -> None:
    state.mkdir(exist_ok=True)
    for name, content in contents.items():
        if content is not None:
            (state / {"known": NAME, "old": OLD_NAME}[name]).write_bytes(content)


async def knows(state: Path, path: Path, log: Log) -> bool:
    """Whether a guard that starts knows a directory. It writes its file, and removes the one of an earlier release."""
    files = Files()
    memory = await made(state, [str(path)], files, log)
    known = isinstance(await memory.recall(str(path)), Remembered)
    memory._changed.set()
    await kept(memory, files)
    assert os.listdir(state) == [NAME]
    return known


WHOLE, DAMAGED = "whole", "damaged"


@pytest.mark.parametrize("known", [None, WHOLE, DAMAGED])
@pytest.mark.parametrize("old", [None, WHOLE, DAMAGED])
async def test_the_files_of_an_earlier_release_are_read_once_and_replaced_by_one(
    tmp_path: Path, known: str | None, old: str | None
) -> None:
    state, path, log = tmp_path / "state", tmp_path / "d1", Log()
    ids = {None: None, WHOLE: ids_before(), DAMAGED: ids_before()[:-9]}
    read = {None: None, WHOLE: content_before(path), DAMAGED: content_before(path)[:-9]}
    lay(state, known=ids[known], old=read[old])
    assert await knows(state, path, log) is (old == WHOLE)
    damaged = [OLD_NAME] if old == DAMAGED else []
    damaged += [NAME] if known == DAMAGED and old != WHOLE else []
    assert [line["reason"].partition(": ")[0] for line in log.of("guard.memory.not.read")] == [
        str(state / name) for name in damaged
    ]
    assert KnownDirectories(state, 1).load() == (KNOWN if known == WHOLE else AgentMemory())
    said = len(log.events)
    assert await knows(state, path, log) is (old == WHOLE), "and so does the next one"
    assert len(log.events) == said


@pytest.mark.parametrize("what", [die, refuse])
async def test_an_end_or_a_full_disk_at_any_step_leaves_what_the_next_guard_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]
) -> None:
    path, at, calls = tmp_path / "d1", 0, list[str]()
    while len(calls) >= at:
        at += 1
        state = tmp_path / f"state{at}"
        lay(state, known=ids_before(), old=content_before(path))
        files = Files()
        memory = await made(state, [str(path)], files, Log())
        writing = asyncio.create_task(memory.run())
        with at_step(monkeypatch, at, what) as calls:
            for _ in range(20):
                await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        assert writing.cancelled() or isinstance(writing.exception(), Died)
        assert KnownDirectories(state, 1).load() == KNOWN, f"at step {at}"
        assert await knows(state, path, Log()), f"at step {at}"
        assert KnownDirectories(state, 1).load() == KNOWN, f"at step {at}"
    assert {"write", "fsync", "replace"} < set(calls) and calls[-1] == "unlink", "the old file last"


async def test_what_a_killed_process_has_left_half_written_is_passed_over(tmp_path: Path) -> None:
    state, path = tmp_path / "state", tmp_path / "d1"
    lay(state, known=ids_before(), old=content_before(path))
    (state / f"{NAME}.tmp").write_bytes(b'{"version": 2, "node_')
    assert await knows(state, path, Log())


async def test_a_guard_of_an_earlier_release_that_ran_since_counts(tmp_path: Path) -> None:
    state, path, log = tmp_path / "state", tmp_path / "d1", Log()
    assert not await knows(state, path, log)
    lay(state, old=content_before(path, at_ms=2 * SetClock().wall_ms()))
    assert await knows(state, path, log), "it has read a directory after this release wrote its file"
    memory = await made(state, [str(path)], files := Files(), log)
    memory.forget(str(path))
    await kept(memory, files)
    lay(state, old=content_before(path))
    assert not await knows(state, path, log), "an older file that could not be removed"
    lay(state, known=ids_before(), old=content_before(path))
    assert await knows(state, path, log), "a guard of an earlier release has written both files"
    assert not log.events


def changed(state: Path, **changes: Any) -> None:
    document = json.loads((state / NAME).read_bytes())
    document["last_read"] |= changes.pop("last_read", {})
    (state / NAME).write_text(json.dumps(document | changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 3}, "it is of version 3"),
        ({"last_read": {"version": 2}}, "it is of version 2, node 1"),
        ({"last_read": {"node": 2}}, "it is of version 1, node 2"),
        ({"last_read": {"directories": 7}}, "it cannot be read"),
        ({"last_read": {"written_ms": "soon"}}, "it cannot be read"),
    ],
)
async def test_a_file_of_a_newer_release_or_a_damaged_one_is_left_out_with_a_line(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    state, path, log = tmp_path / "state", tmp_path / "d1", Log()
    lay(state, known=ids_before(), old=content_before(path))
    assert await knows(state, path, log) and not log.events
    changed(state, **changes)
    assert not await knows(state, path, log)
    (said,) = log.of("guard.memory.not.read")
    assert said["reason"].startswith(f"{state / NAME}: {reason}") and said["consequence"] == "it is made anew"
    assert KnownDirectories(state, 1).load() == (AgentMemory() if "version" in changes else KNOWN)


async def test_an_agent_between_two_guards_keeps_what_they_know_and_they_what_it_knows(tmp_path: Path) -> None:
    state, path, log = tmp_path / "state", tmp_path / "d1", Log()
    lay(state, known=ids_before(), old=content_before(path))
    agent = await remembering(state, Files(), log)
    await agent.change(agent.memory.seen("/d10", Uuid.of(7, 10), 6))
    assert (state / OLD_NAME).exists(), "it is the guard's, who has not read it yet"
    for number in (11, 12):
        assert await knows(state, path, log)
        agent = await remembering(state, Files(), log)
        await agent.change(agent.memory.seen(f"/d{number}", Uuid.of(7, number), 6))
    assert await knows(state, path, log)
    assert set(KnownDirectories(state, 1).load().directories) == {"/d9", "/d10", "/d11", "/d12"}
    assert not log.events


async def test_two_writes_at_a_time_lose_nothing(tmp_path: Path) -> None:
    state, path, log = tmp_path / "state", tmp_path / "d1", Log()
    found = await remembering(state, files := Files(), log)
    files.late_s = 0.001
    part = json.loads(content_before(path))
    await asyncio.gather(
        found.change(KNOWN), found.save_last_read(part), found.change(KNOWN.seen("/d10", Uuid.of(7, 10), 6))
    )
    content = (state / NAME).read_bytes()
    assert set(KnownDirectories(state, 1).parse(content).directories) == {"/d9", "/d10"}
    assert KnownDirectories(state, 1).last_read(content) == part


def test_a_memory_of_an_earlier_release_that_comes_late_is_waited_for(tmp_path: Path, run: Run) -> None:
    """The next file knows nothing of the directories that hang now."""

    async def main(_: VirtualLoop) -> None:
        state, path, files, log = tmp_path / "state", tmp_path / "d1", Files(), Log()
        lay(state, old=content_before(path))
        links, files.late_s = Files(), 6
        after = await made(state, [str(path)], files, log, links)
        assert isinstance(await after.recall(str(path)), Remembered) and not log.events

    run(main)


def test_a_file_of_an_earlier_release_that_does_not_come_is_named(tmp_path: Path, run: Run) -> None:
    async def main(_: VirtualLoop) -> None:
        state, path, files, log = tmp_path / "state", tmp_path / "d1", Files(), Log()
        lay(state, old=content_before(path))
        loaded = await remembering(state, Files(), log)
        files.hangs, loaded.files = True, cast(Any, files)
        config = SimpleNamespace(kjbod_state_dir=str(state), node_id=1)
        memory = Recalling(cast(Any, config), [str(path)], loaded, cast(Any, files), SetClock(), cast(Any, log))
        await memory.load()
        assert await memory.recall(str(path)) == NEVER_READ
        (said,) = log.of("guard.memory.not.read")
        assert said["reason"] == f"{state / OLD_NAME}: no answer within {LOAD_MS} ms"

    run(main)
