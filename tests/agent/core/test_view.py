"""The picture of the directories: from memory what can be, measured in bounded time what has to be."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import Any, cast

from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage, image_of
from kjbod.metadata.records import PartitionRecord, Record, RegisterBrokerRecord, TopicRecord
from kjbod_agent import failures
from kjbod_agent.admin.view import (
    MEASURE_TIMEOUT_MS,
    UNKNOWN,
    DirectoryView,
    DirectoryViews,
    Disk,
    LogDirectory,
    log_directories,
)
from kjbod_agent.failures import Failures
from kjbod_agent.replicas.hosting import Hosting
from kjbod_agent.replicas.inventory import Inventory
from kjbod_host.directories.start_up import Opened
from kjbod_host.directories.start_up_rules import Directory, KnownDirectory, Memory, StartUp, Unreadable
from kjbod_host.health.block import BlockDevice
from kjbod_host.health.state import DirectoryHealth
from kjbod_host.health.verdict import Health
from kjbod_host.health.watched import DirectoryStatus
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import DirectoryError, DirectoryTimeout, LoadedDirectory, MountIdentity, ProbeResult

TOPIC = Uuid.of(7, 7)
D1, D2, D3 = (Uuid.of(1, n) for n in (1, 2, 3))
DIRS = {D1: "/d1", D2: "/d2", D3: "/d3"}
FUTURE = "t-0.0123456789abcdef0123456789abcdef-future"
IDENTITY = MountIdentity(1, None, "8:16", 2, "0", None)
Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]


class FakeDirectory:
    """A directory that answers what it holds, after ``delay_ms``, or not at all."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.sizes: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.delay_ms: float = 0
        self.hangs: asyncio.Event | None = None
        self.error: Exception | None = None
        self.asked: list[Sequence[str]] = []

    async def replica_sizes(self, names: Sequence[str], *, suffix: str, timeout_ms: int) -> dict[str, int]:
        assert suffix == ".log"
        self.asked.append(tuple(names))
        await asyncio.sleep(self.delay_ms / 1000)
        if self.hangs is not None:
            await self.hangs.wait()
        if self.error is not None:
            raise self.error
        return {name: self.sizes[name] for name in names if name in self.sizes}

    async def log_end_offset(self, name: str, *, timeout_ms: int) -> int | None:
        return self.ends.get(name)


class Host:
    """A broker with three directories and four partitions: t-0 in d1, t-1 and t-2 in d2, t-3 in d3."""

    def __init__(self, loop: Any, tasks: asyncio.TaskGroup, **changes: Any) -> None:
        self.clock = loop
        self.image = cluster(**changes)
        self.failures = Failures(timeout_ms=30_000, usable=frozenset(DIRS), metadata_directory=D1)
        hosting = Hosting(1)
        hosting.load(self.image)
        self.inventory = Inventory(list(DIRS.items()))
        for number, directory in enumerate((D1, D2, D2, D3)):
            self.inventory.add(directory, f"t-{number}", number, TOPIC, "")
        self.disks = {directory: FakeDirectory(path) for directory, path in DIRS.items()}
        self.placement = SimpleNamespace(hosting=hosting, inventory=self.inventory, agents=self.disks)
        self.told: list[tuple[Uuid, int]] = []
        self.statuses = tuple(status(path, directory) for directory, path in DIRS.items())
        self.entries = tuple(LogDirectory(path=path, directory_id=directory) for directory, path in DIRS.items())
        self.view = DirectoryViews(
            lambda: self.entries,
            broker=cast(Any, self),
            monitor=cast(Any, SimpleNamespace(status=lambda: self.statuses)),
            clock=loop,
            spawn=tasks.create_task,
        )

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        self.told.append((directory_id, error.errno))

    def fail(self, directory: Uuid) -> None:
        self.inventory.fail(directory)
        self.failures, _ = failures.directory_failed(
            self.failures, directory, path=DIRS[directory], cause="EIO at fsync", now_ms=1, wall_ms=77
        )

    async def see(self, *args: Any, **kwargs: Any) -> dict[str, DirectoryView]:
        return {each.path: each for each in await self.view.directories(*args, **kwargs)}


def cluster(cordoned: tuple[Uuid, ...] = (), leader: int = 1) -> MetadataImage:
    records: list[Record] = [
        RegisterBrokerRecord(
            broker_id=1, incarnation_id=TOPIC, broker_epoch=1, end_points=(), features=(), log_dirs=tuple(DIRS),
            cordoned_log_dirs=cordoned,
        ),
        TopicRecord(name="t", topic_id=TOPIC),
    ]  # fmt: skip
    for number, directory in enumerate((D1, D2, D2, D3)):
        records.append(
            PartitionRecord(
                partition_id=number, topic_id=TOPIC, replicas=(1,), isr=(1,), leader=leader if number != 2 else -1,
                leader_epoch=0, partition_epoch=0, directories=(directory,),
            )
        )  # fmt: skip
    return image_of(records)


def status(path: str, directory: Uuid, health: Health = Health.ONLINE) -> DirectoryStatus:
    probe = ProbeResult(1, (), False, None, IDENTITY, total_bytes=1000, usable_bytes=300)
    device = BlockDevice(("sdb",), "8:16", model="DISK", serial=f"S{path}")
    return DirectoryStatus(
        path, str(directory), DirectoryHealth(health=health, since_ms=0), probe, 1, 0, {}, None, device, None, "ext4"
    )


def hosted(run: Run, story: Callable[[Host], Coroutine[Any, Any, None]], **changes: Any) -> None:
    async def main(loop: Any) -> None:
        async with asyncio.TaskGroup() as tasks:
            await story(Host(loop, tasks, **changes))

    run(main)


def names(view: DirectoryView) -> list[tuple[str, int]]:
    return [(replica.name, replica.size) for replica in view.replicas]


def test_sizes_are_measured_and_everything_else_is_known(virtual: Run) -> None:
    async def story(host: Host) -> None:
        host.disks[D1].sizes = {"t-0": 10}
        host.disks[D2].sizes = {"t-1": 20, "t-2": 0}
        seen = await host.see()
        assert names(seen["/d1"]) == [("t-0", 10)]
        assert names(seen["/d2"]) == [("t-1", 20), ("t-2", 0)]
        assert names(seen["/d3"]) == [("t-3", UNKNOWN)]  # it is not there, and was never seen
        first = seen["/d1"]
        assert (first.directory_id, first.online, first.error, first.verdict) == (D1, True, None, "online")
        assert (first.device, first.model, first.serial, first.file_system) == ("sdb 8:16", "DISK", "S/d1", "ext4")
        assert (first.total_bytes, first.usable_bytes, first.remembered) == (1000, 300, False)
        assert [each.leaders for each in seen.values()] == [1, 1, 1]
        assert [(r.leader, r.lag) for r in seen["/d2"].replicas] == [(True, 0), (False, 0)]
        assert [each.cordoned for each in seen.values()] == [False, True, False]

    hosted(virtual, story, cordoned=(D2,))


def test_a_hung_disk_delays_no_answer_beyond_the_bound_and_is_told_of_as_last_known(virtual: Run) -> None:
    async def story(host: Host) -> None:
        for disk in host.disks.values():
            disk.sizes = {f"t-{n}": n + 1 for n in range(4)}
        await host.see()
        host.disks[D2].hangs = hang = asyncio.Event()
        host.disks[D1].sizes["t-0"] = 99
        before_ms = host.clock.monotonic_ms()
        seen = await host.see()
        assert host.clock.monotonic_ms() - before_ms == MEASURE_TIMEOUT_MS
        assert names(seen["/d1"]) == [("t-0", 99)]
        assert names(seen["/d2"]) == [("t-1", 2), ("t-2", 3)]
        assert seen["/d2"].online
        hang.set()

    hosted(virtual, story)


def test_however_many_clients_ask_a_disk_has_one_question_at_a_time(virtual: Run) -> None:
    async def story(host: Host) -> None:
        host.disks[D2].hangs = hang = asyncio.Event()
        async with asyncio.TaskGroup() as clients:
            for _ in range(20):
                clients.create_task(host.see())
        assert len(host.disks[D2].asked) == 1
        hang.set()
        host.disks[D2].hangs, host.disks[D2].delay_ms = None, 10
        host.disks[D2].asked.clear()
        async with asyncio.TaskGroup() as clients:
            for _ in range(20):
                clients.create_task(host.see())
        assert len(host.disks[D2].asked) <= 2

    hosted(virtual, story)


def test_an_answer_that_comes_too_late_is_there_for_the_next_question(virtual: Run) -> None:
    async def story(host: Host) -> None:
        host.disks[D2].sizes, host.disks[D2].delay_ms = {"t-1": 5, "t-2": 6}, MEASURE_TIMEOUT_MS + 1000
        assert names((await host.see())["/d2"]) == [("t-1", UNKNOWN), ("t-2", UNKNOWN)]
        await asyncio.sleep(2)
        assert names((await host.see(measure=False))["/d2"]) == [("t-1", 5), ("t-2", 6)]

    hosted(virtual, story)


def test_an_offline_directory_is_not_asked_and_is_told_of_from_memory(virtual: Run) -> None:
    async def story(host: Host) -> None:
        host.disks[D2].sizes = {"t-1": 5, "t-2": 6}
        await host.see()
        host.fail(D2)
        host.disks[D2].asked.clear()
        gone = (await host.see())["/d2"]
        assert host.disks[D2].asked == []
        assert (gone.online, gone.error, gone.verdict, gone.since_ms) == (False, "EIO at fsync", "failed", 77)
        assert names(gone) == [("t-1", 5), ("t-2", 6)]
        assert (gone.device, gone.serial, gone.leaders, gone.remembered) == ("sdb 8:16", "S/d2", 1, True)

    hosted(virtual, story)


def test_a_directory_that_was_never_read_has_the_replicas_that_the_metadata_place_in_it(virtual: Run) -> None:
    async def story(host: Host) -> None:
        host.placement.inventory = Inventory([(D1, "/d1"), (D2, "/d2")], [D3])
        host.entries = (
            *host.entries[:2],
            LogDirectory(
                path="/d3", directory_id=D3, unreadable="/d3: EIO at open", remembered=Disk(device="sdc", serial="X")
            ),
        )
        host.statuses = host.statuses[:2]
        away = (await host.see())["/d3"]
        assert (away.online, away.verdict, away.error) == (False, "unreadable", "/d3: EIO at open")
        assert (away.device, away.serial, away.total_bytes) == ("sdc", "X", UNKNOWN)
        assert names(away) == [("t-3", UNKNOWN)]
        assert away.replicas[0].lag == UNKNOWN, "it may lag by all that was written since"
        assert away.leaders == 1

    hosted(virtual, story)


def test_a_future_replica_has_the_lag_behind_the_current_one(virtual: Run) -> None:
    async def story(host: Host) -> None:
        partition = TopicIdPartition(TOPIC, 0)
        host.inventory.begin_move(partition, D3, FUTURE)
        host.disks[D1].sizes, host.disks[D1].ends = {"t-0": 100}, {"t-0": 50}
        host.disks[D3].sizes, host.disks[D3].ends = {FUTURE: 60, "t-3": 1}, {FUTURE: 30}
        seen = await host.see()
        (current,) = seen["/d1"].replicas
        future, _ = seen["/d3"].replicas
        assert (current.future, current.lag, current.leader) == (False, 0, True)
        assert (future.name, future.future, future.size, future.lag, future.leader) == (FUTURE, True, 60, 20, False)
        del host.disks[D3].ends[FUTURE]
        assert (await host.see())["/d3"].replicas[0].lag == UNKNOWN

    hosted(virtual, story)


def test_only_what_was_asked_about_is_measured_and_told(virtual: Run) -> None:
    async def story(host: Host) -> None:
        host.disks[D2].sizes = {"t-1": 5, "t-2": 6}
        seen = await host.see(lambda topic, partition: partition == 2)
        assert [names(each) for each in seen.values()] == [[], [("t-2", 6)], []]
        assert host.disks[D2].asked == [("t-2",)]
        assert host.disks[D1].asked == []

    hosted(virtual, story)


def test_an_error_of_the_disk_is_told_to_the_health_monitor(virtual: Run) -> None:
    async def story(host: Host) -> None:
        host.disks[D1].error = DirectoryError(5, "stat", "/d1")
        host.disks[D3].error = DirectoryTimeout(9000, "", "stat", "/d3")
        seen = await host.see()
        assert host.told == [(D1, 5)]
        assert names(seen["/d1"]) == [("t-0", UNKNOWN)]

    hosted(virtual, story)


def test_entries_of_log_dirs_are_those_that_were_read_and_those_that_were_not() -> None:
    def read(path: str, directory: Uuid) -> Directory:
        loaded = LoadedDirectory(path, path, None, None, (), (), False, IDENTITY, 100, 40, False, None)
        return Directory(path, directory, loaded)

    first = read("/d1", D1)
    start_up = StartUp(
        cluster_id="c", metadata=first, log_dirs=(first, read("/d2", D2)), to_write={}, previous_broker_epoch=-1,
        unreadable=(Unreadable("/d3", D3, "/d3: EIO at open"),),
    )  # fmt: skip
    opened = Opened(start_up, {}, {})
    memory = Memory({"/d3": KnownDirectory(D3, device="sdd 8:48", serial="Z")})
    entries = log_directories(opened, memory)
    assert [(e.path, e.directory_id, e.total_bytes, e.unreadable) for e in entries] == [
        ("/d1", D1, 100, None),
        ("/d2", D2, 100, None),
        ("/d3", D3, UNKNOWN, "/d3: EIO at open"),
    ]
    assert entries[2].remembered == Disk(device="sdd 8:48", serial="Z")
