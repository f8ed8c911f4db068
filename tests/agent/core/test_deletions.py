"""What becomes of directories that are no replica any more, on disks in memory: deleted, kept as strays, restored.

Ids are those of kafka-jbod 9.5 and 9.7.
"""

import asyncio
import contextlib
import errno
import itertools
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kjbod.clock import Clock, SystemClock
from kjbod.ids import LOST, UNASSIGNED, Uuid
from kjbod.metadata.image import BROKER, TOPIC, MetadataImage, changes_between, image_of
from kjbod.metadata.records import (
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    TopicRecord,
)
from kjbod_agent.replicas.choice import Site
from kjbod_agent.replicas.hosting import Hosting
from kjbod_agent.replicas.inventory import Inventory
from kjbod_agent.replicas.placement import Placement, StrayError
from kjbod_agent.replicas.stray_memory import Note, StrayMemory
from kjbod_agent.replicas.strays import (
    COPY_EMPTY,
    COPY_OFFLINE,
    FOUND_AT_START,
    MAY_BE_NEEDED,
    NO_LONGER_THERE,
    NO_PARTITION,
    NO_TOPIC_ID,
    NOT_PROVEN_DELETED,
    SUPERSEDED,
    WRONG_NAME,
    Stray,
)
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import DirectoryError, DirectoryTimeout, Replica, StorageOptions, WorkerUnavailable
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk
from kjbod_host.storage.worker import parse_replica, topic_id_of
from kjbod_host.strays import NO_TOPIC, NOT_HERE
from tests.agent.core.recording import Log
from tests.agent.core.test_placement import Owner

D1, D2, D3 = (Uuid.of(2, n) for n in (1, 2, 3))
PATHS = {D1: "/d1", D2: "/d2", D3: "/d3"}
FOO, GONE, NEW_FOO = (Uuid.of(3, n) for n in (1, 2, 3))
HEX = "0123456789abcdef0123456789abcdef"
Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Contents = dict[Uuid, dict[str, Uuid | None]]
"""Topic id by name of a replica directory, by log directory."""


def content(topic_id: Uuid | None) -> bytes | None:
    return None if topic_id is None else f"version: 0\ntopic_id: {topic_id}".encode()


def replicas_of(disk: MemoryDisk) -> list[Replica]:
    found = []
    for name, metadata in disk.directories.items():
        topic, number, suffix = parse_replica(name) or ("", 0, "")
        text = None if metadata is None else topic_id_of(metadata)
        found.append(Replica(name, topic, number, None if text is None else Uuid.parse(text), suffix))  # type: ignore[arg-type]
    return found


def partition(topic_id: Uuid, number: int, replicas: tuple[int, ...], *directories: Uuid) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=directories or (UNASSIGNED,) * len(replicas),
    )


async def write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)  # noqa: ASYNC240  in virtual time there is no thread to wait for


class World:
    """Broker 1, with what lies on its disks and what the metadata say; nothing is published yet."""

    def __init__(
        self,
        clock: Clock,
        contents: Contents,
        *records: Record,
        loading: Iterable[Uuid] = (),
        unread: Iterable[Uuid] = (),
        memory: StrayMemory | None = None,
        **settings: Any,
    ) -> None:
        loading = set(loading)
        self.disks = {d: MemoryDisk() for d in PATHS}
        for directory, found in contents.items():
            self.disks[directory].directories = {name: content(topic_id) for name, topic_id in found.items()}
        here = [d for d in PATHS if d not in set(unread)]
        self.inventory = Inventory([(d, PATHS[d]) for d in here], unread, here)
        for directory in set(here) - loading:
            self.inventory.add_directory(directory, PATHS[directory], replicas_of(self.disks[directory]))
        options = StorageOptions(clock=clock)
        self.agents = {d: MemoryDirectoryAgent(PATHS[d], self.disks[d], options) for d in PATHS}
        self.owner, self.log, self.image = Owner(), Log(), MetadataImage()
        numbers = itertools.count()
        self.placement = Placement(
            hosting=Hosting(1),
            inventory=self.inventory,
            agents={d: self.agents[d] for d in here},
            owner=self.owner,
            unique=lambda: f"{next(numbers):032x}",
            log=self.log,
            clock=clock,
            memory=memory,
            write_file=write_file,
            notes={} if memory is None else memory.load(),
            **settings,
        )
        for record in records:
            self.image.replay(record)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["World"]:
        running = asyncio.create_task(self.placement.run())
        self.placement.publish(self.image)
        await self.quiet()
        yield self
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    async def quiet(self) -> None:
        """Until there is nothing left to do now."""
        for _ in range(300):
            await asyncio.sleep(0)

    def commit(self, *records: Record) -> None:
        self.placement.follow([change for r in records if (change := self.image.replay(r)) is not None])

    def replace(self, *records: Record) -> None:
        """Another history takes the place of the one that was applied."""
        old, self.image = self.image, image_of(records)
        self.placement.follow(list(changes_between(old, self.image)), self.image, proven=False)

    def names(self, directory: Uuid) -> list[str]:
        return sorted(self.disks[directory].directories)

    @property
    def strays(self) -> dict[str, Stray]:
        """By the name that was theirs before."""
        return {re.sub(r"\.[0-9a-f]{32}-stray$", "", stray.name): stray for stray in self.placement.strays}


FOO_TOPIC = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,), D1), partition(FOO, 1, (2,)))


# --------------------------------------------------------------------------------------------------------------- strays


def test_sy_1_to_5_strays_are_renamed_and_kept_with_their_reason(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        found: Contents = {
            D1: {"foo-0": FOO, "gone-0": GONE, "foo-1": FOO},
            D2: {"bad-0": None, "foo-7": FOO, f"foo-1.{HEX}-future": FOO},
        }
        async with World(clock, found, *FOO_TOPIC).running() as world:
            assert {name: stray.reason for name, stray in world.strays.items() if "future" not in name} == {
                "gone-0": NO_TOPIC,
                "foo-1": NOT_HERE,
                "bad-0": NO_TOPIC_ID,
                "foo-7": NO_PARTITION,
            }
            assert len(world.placement.strays) == 5
            assert [n for n in world.names(D1) if not n.endswith("-stray")] == ["foo-0"]
            assert all(name.endswith("-stray") for name in world.names(D2))
            gone = world.strays["gone-0"]
            assert (gone.path, gone.topic, gone.partition, gone.topic_id) == (f"/d1/{gone.name}", "gone", 0, GONE)
            await asyncio.sleep(3600)
            assert len(world.names(D1)) == 3, "they are kept"
            assert not world.owner.errors

    virtual(story)


def test_rp_10_a_topic_deleted_and_created_again_while_the_broker_was_down_is_made_anew_and_the_old_one_kept(
    virtual: Run,
) -> None:
    async def story(clock: Any) -> None:
        again = (TopicRecord(name="foo", topic_id=NEW_FOO), partition(NEW_FOO, 0, (1,), D1))
        async with World(clock, {D1: {"foo-0": FOO}}, *again).running() as world:
            assert world.names(D1) == ["foo-0", f"foo-0.{0:032x}-stray"]
            assert world.disks[D1].directories["foo-0"] == content(NEW_FOO)
            assert world.strays["foo-0"].topic_id == FOO

    virtual(story)


def test_su_14_a_replica_without_partition_metadata_is_no_error_and_is_made_anew(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": None}}, *FOO_TOPIC).running() as world:
            assert world.disks[D1].directories["foo-0"] == content(FOO)
            assert (world.owner.refused, world.strays["foo-0"].reason) == ([], NO_TOPIC_ID)

    virtual(story)


def test_a_directory_whose_topic_id_is_that_of_another_topic_is_a_stray_and_hides_nothing(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        found: Contents = {D1: {"foo-0": FOO, "other-0": FOO}, D2: {"foo-00": FOO, "copy-0": FOO}}
        async with World(clock, found, *FOO_TOPIC).running() as world:
            assert {name: stray.reason for name, stray in world.strays.items()} == {
                "other-0": WRONG_NAME,
                "copy-0": WRONG_NAME,
                "foo-0": WRONG_NAME,  # of foo-00
            }
            assert "foo-0" in world.names(D1)
            assert world.disks[D1].directories["foo-0"] == content(FOO)
            assert (world.owner.refused, world.owner.assigned) == ([], {})

    virtual(story)


def test_a_stray_that_cannot_be_renamed_keeps_its_name_until_its_directory_fails(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": GONE}}, *FOO_TOPIC)
        world.disks[D1].fail(errno.EIO, ["rename_replica"])
        async with world.running():
            await asyncio.sleep(2)
            await world.quiet()
            assert (world.names(D1), world.names(D2)) == (["foo-0"], [])
            assert world.owner.assigned == {TopicIdPartition(FOO, 0): LOST}
            assert [stray.name for stray in world.placement.strays] == ["foo-0"]
            assert world.owner.errors == [errno.EIO]
            world.placement.fail(D1)
            world.commit(PartitionChangeRecord(topic_id=FOO, partition_id=0, directories=(LOST,)))
            await asyncio.sleep(1)
            assert world.owner.assigned == {TopicIdPartition(FOO, 0): D2}

    virtual(story)


def test_of_two_copies_that_which_the_metadata_do_not_name_becomes_a_stray(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}, D2: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            assert world.names(D1) == ["foo-0"]
            assert [stray.reason for stray in world.placement.strays] == [SUPERSEDED]
            assert (world.owner.refused, world.owner.assigned) == ([], {})

    virtual(story)


def test_two_copies_of_which_the_metadata_name_neither_are_an_error_that_names_both(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D2: {"foo-0": FOO}, D3: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            assert "/d2/foo-0 and /d3/foo-0" in world.owner.refused[0]
            assert (world.names(D2), world.names(D3)) == (["foo-0"], ["foo-0"])

    virtual(story)


def test_why_and_since_when_is_remembered_over_a_restart_and_its_loss_survived(tmp_path: Path) -> None:
    async def start(contents: Contents) -> World:
        world = World(SystemClock(), contents, *FOO_TOPIC, memory=StrayMemory(tmp_path / "state", 1))
        async with world.running(), asyncio.timeout(60):
            memory = world.placement.memory
            assert memory is not None
            while memory.load() != world.placement.deletions.notes():  # noqa: ASYNC110  it is written on a thread
                await asyncio.sleep(0.005)
        return world

    first = asyncio.run(start({D1: {"foo-0": FOO, "gone-0": GONE}}))
    stray = first.placement.strays[0]
    left: Contents = {D1: {"foo-0": FOO, stray.name: GONE}}
    assert asyncio.run(start(left)).placement.strays == (stray,)
    (tmp_path / "state" / "strays.json").write_bytes(b"\x00")
    assert [s.reason for s in asyncio.run(start(left)).placement.strays] == [FOUND_AT_START]
    asyncio.run(start({D1: {"foo-0": FOO}}))
    assert StrayMemory(tmp_path / "state", 1).load() == {}
    assert StrayMemory(tmp_path / "state", 2).load() == {}


def test_what_is_remembered_of_an_offline_directory_stays(tmp_path: Path, virtual: Run) -> None:
    memory = StrayMemory(tmp_path, 1)
    memory.save({(D3, f"x-0.{HEX}-stray"): Note("a reason", 5)})

    async def story(clock: Any) -> None:
        world = World(clock, {}, *FOO_TOPIC, unread=[D3])
        world.placement.deletions.remembered.update(memory.load())
        async with world.running():
            assert world.placement.deletions.notes() == memory.load()
            world.disks[D3].directories = {f"x-0.{HEX}-stray": content(GONE)}
            world.placement.add_directory(D3, world.agents[D3], "/d3", replicas_of(world.disks[D3]))
            await world.quiet()
            assert [(s.reason, s.since_ms) for s in world.placement.strays] == [("a reason", 5)]

    virtual(story)


# -------------------------------------------------------------------------------------------------------------- deleted


@pytest.mark.parametrize(
    ("records", "delay_ms"),
    [
        ((), 60_000),
        ((ConfigRecord(resource_type=TOPIC, resource_name="foo", name="file.delete.delay.ms", value="1500"),), 1_500),
        (
            (
                ConfigRecord(resource_type=BROKER, resource_name="", name="log.segment.delete.delay.ms", value="7000"),
                ConfigRecord(resource_type=BROKER, resource_name="1", name="log.segment.delete.delay.ms", value="3000"),
            ),
            3_000,
        ),
    ],
    ids=["configured", "topic", "dynamic"],
)
def test_a_deleted_topic_gives_up_its_name_at_once_and_is_removed_after_the_delay(
    virtual: Run, records: tuple[Record, ...], delay_ms: int
) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC, *records).running() as world:
            world.disks[D1].put("foo-0", "00000000000000000000.log", b"data")
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await world.quiet()
            assert world.names(D1) == [f"foo-0.{0:032x}-delete"]
            await asyncio.sleep((delay_ms - 1) / 1000)
            await world.quiet()
            assert len(world.names(D1)) == 1
            await asyncio.sleep(0.002)
            await world.quiet()
            assert world.names(D1) == []
            assert world.placement.strays == ()

    virtual(story)


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_many_replicas_are_removed_on_the_loop_that_the_agent_runs_on(loop_factory: LoopFactory) -> None:
    """uvloop gives a plain handle, which knows no time, for what is due within half a millisecond."""

    async def story() -> None:
        parts = tuple(partition(GONE, number, (1,), (D1, D2, D3)[number % 3]) for number in range(60))
        found: Contents = {d: {f"bar-{number}": GONE for number in range(n, 60, 3)} for n, d in enumerate((D1, D2, D3))}
        world = World(SystemClock(), found, TopicRecord(name="bar", topic_id=GONE), *parts, delete_delay_ms=0)
        crashed: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: crashed.append(context))
        async with world.running(), asyncio.timeout(60):
            world.commit(RemoveTopicRecord(topic_id=GONE))
            while any(map(world.names, PATHS)) and not crashed:  # noqa: ASYNC110  no event to wait for
                await asyncio.sleep(0.001)
        assert not crashed

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(story())


def test_a_replica_that_is_reassigned_away_is_removed_and_comes_back_fresh(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            away = PartitionChangeRecord(
                partition_id=0, topic_id=FOO, replicas=(2,), isr=(2,), leader=2, directories=(D3,)
            )
            back = PartitionChangeRecord(
                partition_id=0, topic_id=FOO, replicas=(1,), isr=(1,), leader=1, directories=(D1,)
            )
            world.disks[D1].put("foo-0", "00000000000000000000.log", b"data")
            world.commit(away)
            world.commit(back)
            await world.quiet()
            assert world.names(D1) == ["foo-0", f"foo-0.{0:032x}-delete"]
            assert world.disks[D1].files.get("foo-0", {}) == {}
            await asyncio.sleep(61)
            await world.quiet()
            assert world.names(D1) == ["foo-0"]

    virtual(story)


def test_lines_of_the_checkpoints_go_with_the_name_and_those_of_others_stay(virtual: Run) -> None:
    lines = b"0\n2\nfoo 0 17\nbar 0 4\n"

    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC)
        world.disks[D1].checkpoints = {"recovery-point-offset-checkpoint": lines, "log-start-offset-checkpoint": lines}
        async with world.running():
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await world.quiet()
            assert world.disks[D1].checkpoints == {
                "recovery-point-offset-checkpoint": b"0\n1\nbar 0 4\n",
                "log-start-offset-checkpoint": b"0\n1\nbar 0 4\n",
            }

    virtual(story)


def test_what_lies_under_the_name_by_then_is_compared_before_it_is_removed(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await world.quiet()
            name = world.names(D1)[0]
            world.disks[D1].directories[name] = content(GONE)
            await asyncio.sleep(61)
            await world.quiet()
            assert world.names(D1) == [name]
            assert world.owner.errors == [], "it says nothing of the disk"
            assert len(world.log.of("replica.remove.failed")) == 1

    virtual(story)


def test_a_removal_without_an_answer_is_tried_again(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await world.quiet()
            world.disks[D1].hang()
            await asyncio.sleep(100)
            world.disks[D1].heal()
            await asyncio.sleep(100)
            assert world.names(D1) == []

    virtual(story)


def test_a_delete_in_an_offline_directory_is_said_and_a_stray_when_it_is_back(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            world.placement.fail(D1)
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await world.quiet()
            assert world.log.of("replica.delete.offline") == [{"path": "/d1/foo-0"}]
            assert world.names(D1) == ["foo-0"]
            world.placement.forget_directory(D1)
            world.placement.add_directory(D1, world.agents[D1], "/d1", replicas_of(world.disks[D1]))
            await world.quiet()
            assert world.strays["foo-0"].reason == NO_TOPIC

    virtual(story)


def test_what_an_earlier_process_marked_as_deleted_is_removed_only_where_the_metadata_prove_it(virtual: Run) -> None:
    def marked(name: str) -> str:
        return f"{name}.{HEX}-delete"

    async def story(clock: Any) -> None:
        found: Contents = {
            D1: {"foo-0": FOO, marked("gone-0"): GONE, marked("foo-1"): FOO, marked("bad-0"): None},
            D2: {marked("foo-0"): FOO, marked("foo-2"): FOO},
        }
        records = (*FOO_TOPIC, partition(FOO, 2, (1,), D3))
        async with World(clock, found, *records).running() as world:
            assert {name: stray.reason for name, stray in world.strays.items()} == {"bad-0": NOT_PROVEN_DELETED}
            assert {marked("gone-0"), marked("foo-1")} <= set(world.names(D1)), "the delay counts from the start"
            await asyncio.sleep(61)
            await world.quiet()
            assert world.names(D1) == [world.strays["bad-0"].name, "foo-0"]
            assert world.names(D2) == ["foo-2"], "the metadata have it, and nothing else is left of it"
            assert world.owner.assigned == {TopicIdPartition(FOO, 2): D2}

    virtual(story)


def test_what_was_marked_as_deleted_is_kept_where_the_history_may_be_another_one(virtual: Run) -> None:
    """The topic was made after the copy of the controller's log to which that was set back."""

    async def story(clock: Any) -> None:
        found: Contents = {
            D1: {"foo-0": FOO, f"gone-0.{HEX}-delete": GONE, f"foo-1.{HEX}-delete": FOO},
            D2: {f"foo-0.{HEX}-delete": FOO},
        }
        world = World(clock, found, *FOO_TOPIC)
        world.placement.doubt()
        async with world.running():
            await asyncio.sleep(3600)
            await world.quiet()
            assert {s.topic: s.reason for s in world.placement.strays if s.topic == "gone"} == {
                "gone": NOT_PROVEN_DELETED
            }
            assert len(world.placement.strays) == 2, "it was taken from this broker in a history that is not there"
            assert world.names(D2) == [], "its other copy is the one that counts in this one as well"

    virtual(story)


@pytest.mark.parametrize("assigned", [D1, UNASSIGNED])
def test_what_was_marked_as_deleted_gets_its_name_back_when_the_metadata_have_it_again(
    virtual: Run, assigned: Uuid
) -> None:
    """A controller that was set back to before the deletion while the agent was down."""

    async def story(clock: Any) -> None:
        left = f"foo-0.{HEX}-delete"
        topic = (FOO_TOPIC[0], partition(FOO, 0, (1,), assigned))
        async with World(clock, {D1: {left: FOO}}, *topic).running() as world:
            await asyncio.sleep(3600)
            assert (world.names(D1), world.placement.strays) == (["foo-0"], ())
            assert world.inventory.names(D1) == {"foo-0": FOO}
            assert world.owner.assigned == ({} if assigned == D1 else {TopicIdPartition(FOO, 0): D1})
            assert [line["was"] for line in world.log.of("replica.undeleted")] == [left]
            assert not world.placement.busy

    virtual(story)


@pytest.mark.parametrize("other", [D1, D2])
def test_of_several_that_were_marked_as_deleted_nobody_knows_which_was_the_last(virtual: Run, other: Uuid) -> None:
    """One may be what a move that was given up had copied by then."""

    async def story(clock: Any) -> None:
        found: Contents = {D1: {f"foo-0.{HEX}-delete": FOO}}
        found[other] = found.get(other, {}) | {f"foo-0.{HEX[::-1]}-delete": FOO}
        async with World(clock, found, *FOO_TOPIC).running() as world:
            assert [stray.reason for stray in world.placement.strays] == [NOT_PROVEN_DELETED] * 2
            assert "foo-0" in world.names(D1)

    virtual(story)


def test_what_cannot_get_its_name_back_is_a_stray(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {f"foo-0.{HEX}-delete": FOO}}, *FOO_TOPIC)
        world.disks[D1].fail(errno.EIO, ["rename_replica"])
        async with world.running():
            assert world.owner.errors[0] == errno.EIO
            assert world.log.of("replica.rename.failed")
            world.disks[D1].heal()
            await asyncio.sleep(61)
            await world.quiet()
            assert "foo-0" in world.names(D1), "made anew"
            assert f"foo-0.{HEX}-delete" in world.names(D1), "and what was there stays"

    virtual(story)


@pytest.mark.parametrize("topic_id", [FOO, GONE, None])
def test_what_a_creation_that_was_killed_left_is_no_stray_and_is_removed(virtual: Run, topic_id: Uuid | None) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D2: {"foo-0.kjbod-new-delete": topic_id}}, *FOO_TOPIC).running() as world:
            assert world.placement.strays == ()
            await asyncio.sleep(3600)
            assert (world.names(D1), world.names(D2)) == (["foo-0"], [])

    virtual(story)


def test_what_a_promotion_that_was_interrupted_still_needs_keeps_its_name(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        found: Contents = {D2: {f"foo-0.{HEX}-delete": FOO}, D1: {f"foo-0.{HEX}-future": FOO}}
        async with World(clock, found, *FOO_TOPIC).running() as world:
            assert world.owner.resumed == [(TopicIdPartition(FOO, 0), D1, f"foo-0.{HEX}-future")]
            await asyncio.sleep(3600)
            assert (world.names(D1), world.names(D2)) == ([f"foo-0.{HEX}-future"], [f"foo-0.{HEX}-delete"])
            assert world.placement.strays == ()

    virtual(story)


# --------------------------------------------------------- what a move left, and the disk with the other copy fails


def test_what_a_move_left_is_kept_when_the_disk_with_the_only_other_copy_fails(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        left = f"foo-0.{HEX}-delete"
        async with World(clock, {D1: {"foo-0": FOO}, D2: {left: FOO}}, *FOO_TOPIC).running() as world:
            assert world.placement.strays == ()
            world.placement.fail(D1)
            await world.quiet()
            assert world.strays["foo-0"].reason == f"{COPY_OFFLINE}/d1"
            world.placement.forget_directory(D1)  # its disk is replaced before the removal would have been due
            await asyncio.sleep(3600)
            await world.quiet()
            assert world.strays["foo-0"].name in world.names(D2)

    virtual(story)


def test_what_a_move_left_is_not_removed_when_its_other_copy_failed_before_it_was_left(virtual: Run) -> None:
    """Promoted, and the disk fails before the source is marked."""

    async def story(clock: Any) -> None:
        left = f"foo-0.{HEX}-delete"
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            world.placement.fail(D1)
            world.disks[D2].directories[left] = content(FOO)
            world.placement.delete_later(D2, left, "foo", FOO)
            await asyncio.sleep(61)
            await world.quiet()
            assert world.names(D2) == [world.strays["foo-0"].name]

    virtual(story)


def test_what_a_move_left_waits_while_the_disk_with_the_other_copy_is_suspect(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        left = f"foo-0.{HEX}-delete"
        async with World(clock, {D1: {"foo-0": FOO}, D2: {left: FOO}}, *FOO_TOPIC).running() as world:
            world.owner.doubtful[D1] = "is suspect (error)"
            await asyncio.sleep(61)
            await world.quiet()
            assert world.names(D2) == [left]
            del world.owner.doubtful[D1]
            await asyncio.sleep(61)
            await world.quiet()
            assert world.names(D2) == []

    virtual(story)


def test_what_the_metadata_have_deleted_is_removed_whatever_fails(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        records = (*FOO_TOPIC, TopicRecord(name="bar", topic_id=GONE), partition(GONE, 0, (1,), D2))
        async with World(clock, {D1: {"foo-0": FOO}, D2: {"bar-0": GONE}}, *records).running() as world:
            world.commit(RemoveTopicRecord(topic_id=GONE))
            await world.quiet()
            world.placement.fail(D1)
            await asyncio.sleep(61)
            await world.quiet()
            assert (world.names(D2), world.placement.strays) == ([], ())


# ------------------------------------------------------------------------- what a finished move left, and its successor

LOG = f"{0:020d}.log"
LEFT = f"foo-0.{HEX}-delete"
IN_D3 = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,), D3))


def moved(clock: Any, *, new: bytes = b"data", old: bytes = b"data", **settings: Any) -> World:
    """A replica that was moved from the second directory to the third one."""
    world = World(clock, {D2: {LEFT: FOO}, D3: {"foo-0": FOO}}, *IN_D3, **settings)
    for directory, name, data in ((D2, LEFT, old), (D3, "foo-0", new)):
        if data:
            world.disks[directory].put(name, LOG, data)
    return world


@pytest.mark.parametrize(("new", "old"), [(b"data", b"data"), (b"", b""), (b"dat", b"data")])
def test_what_a_move_left_is_removed_while_the_copy_in_its_place_is_well(virtual: Run, new: bytes, old: bytes) -> None:
    """Retention may have made the new one smaller."""

    async def story(clock: Any) -> None:
        async with moved(clock, new=new, old=old).running() as world:
            await asyncio.sleep(61)
            await world.quiet()
            assert (world.names(D2), world.names(D3), world.placement.strays) == ([], ["foo-0"], ())

    virtual(story)


def test_what_a_move_left_is_kept_and_listed_from_the_moment_that_the_disk_with_the_other_copy_fails(
    virtual: Run,
) -> None:
    async def story(clock: Any) -> None:
        async with moved(clock).running() as world:
            await asyncio.sleep(30)
            world.placement.fail(D3)
            await world.quiet()
            (stray,) = world.placement.strays
            assert (stray.topic, stray.directory_id, stray.reason) == ("foo", D2, f"{COPY_OFFLINE}/d3")
            await asyncio.sleep(3600)
            assert world.names(D2) == [stray.name]
            text = await world.placement.restore_stray(D2, stray.name)
            assert text.endswith(f"what lies in the offline directory {D3} is a stray when it is back")
            await world.quiet()
            assert world.disks[D2].content("foo-0", LOG) == b"data"
            assert world.owner.assigned == {TopicIdPartition(FOO, 0): D2}
            world.commit(partition(FOO, 0, (1,), D2))
            world.placement.add_directory(D3, world.agents[D3], "/d3", replicas_of(world.disks[D3]))
            await world.quiet()
            assert (world.names(D2), world.strays["foo-0"].reason) == (["foo-0"], SUPERSEDED)

    virtual(story)


def test_what_a_move_left_is_kept_when_the_disk_fails_while_the_copy_on_it_is_looked_at(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with moved(clock).running() as world:
            world.disks[D3].hang()
            await asyncio.sleep(75)
            assert world.names(D2) == [LEFT], "nothing is known of the copy"
            world.placement.fail(D3)
            await asyncio.sleep(600)
            assert [stray.reason for stray in world.placement.strays] == [f"{COPY_OFFLINE}/d3"]
            assert world.names(D2) == [world.placement.strays[0].name]

    virtual(story)


@pytest.mark.parametrize("trouble", ["hangs", "error", "suspect"])
def test_what_a_move_left_waits_until_the_copy_in_its_place_is_well(virtual: Run, trouble: str) -> None:
    async def story(clock: Any) -> None:
        doubtful = trouble == "suspect"
        world = moved(clock, sites=lambda: {d: Site(doubtful=doubtful and d == D3) for d in PATHS})
        async with world.running():
            if trouble == "hangs":
                world.disks[D3].hang()
            elif trouble == "error":
                world.disks[D3].fail(errno.EIO)
            await asyncio.sleep(600)
            assert (world.names(D2), world.placement.strays) == ([LEFT], ())
            world.disks[D3].heal()
            doubtful = False
            await asyncio.sleep(130)
            assert world.names(D2) == []

    virtual(story)


@pytest.mark.parametrize("gone", [False, True])
def test_what_a_move_left_is_kept_when_the_copy_in_its_place_is_empty_or_gone(virtual: Run, gone: bool) -> None:
    """As one that was made anew on a disk that was replaced while this one was away."""

    async def story(clock: Any) -> None:
        async with moved(clock, new=b"").running() as world:
            if gone:
                del world.disks[D3].directories["foo-0"]
            await asyncio.sleep(3600)
            (stray,) = world.placement.strays
            assert stray.reason == f"{COPY_EMPTY}/d3"
            assert world.disks[D2].content(stray.name, LOG) == b"data"

    virtual(story)


@pytest.mark.parametrize("is_back", [True, False])
def test_what_a_move_left_is_listed_while_the_other_copy_cannot_be_looked_for(virtual: Run, is_back: bool) -> None:
    """The agent starts while the disk with the other copy is dead, and then that is back, or another one is there."""

    async def story(clock: Any) -> None:
        world = World(clock, {D2: {LEFT: FOO}, D3: {"foo-0": FOO}}, *IN_D3, unread=[D3])
        world.disks[D2].put(LEFT, LOG, b"data")
        world.disks[D3].put("foo-0", LOG, b"data")
        async with world.running():
            await asyncio.sleep(600)
            assert [(stray.name, stray.reason) for stray in world.placement.strays] == [(LEFT, MAY_BE_NEEDED)]
            if is_back:
                world.placement.add_directory(D3, world.agents[D3], "/d3", replicas_of(world.disks[D3]))
            else:
                world.placement.forget_directory(D3)
            await asyncio.sleep(600)
            if is_back:
                assert (world.names(D2), world.names(D3), world.placement.strays) == ([], ["foo-0"], ())
            else:  # nothing else is left of it
                assert (world.names(D2), world.names(D3), world.placement.strays) == (["foo-0"], ["foo-0"], ())
                assert world.disks[D2].content("foo-0", LOG) == b"data"
                assert world.owner.assigned == {TopicIdPartition(FOO, 0): D2}

    virtual(story)


# --------------------------------------------------------------------------------- what the file system does not let go


REFUSALS = [
    errno.EPERM,
    errno.EACCES,
    errno.EBUSY,
    errno.EXDEV,
    errno.ETXTBSY,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EROFS,
    errno.EOPNOTSUPP,
    errno.ELOOP,
    errno.EIO,
]


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("call", ["rename_replica", "delete_replica"])
def test_a_deleted_replica_that_is_refused_is_listed_and_removed_when_it_is_no_more(
    virtual: Run, number: int, call: str
) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            world.disks[D1].fail(number, [call])
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await asyncio.sleep(1000)
            (stray,) = world.placement.strays
            assert [stray.name] == world.names(D1)
            assert errno.errorcode[number] in stray.reason
            assert len(world.owner.errors) < 5, "tried seldom"
            world.disks[D1].heal()
            await asyncio.sleep(400)
            assert (world.names(D1), world.placement.strays) == ([], ())

    virtual(story)


def test_a_stray_that_is_immutable_is_listed_under_its_name_and_set_aside_when_it_is_no_more(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"gone-0": GONE}}, *FOO_TOPIC)
        world.disks[D1].fail(errno.EPERM, ["rename_replica"])
        async with world.running():
            await asyncio.sleep(500)
            (stray,) = world.placement.strays
            assert stray.name == "gone-0"
            assert stray.reason.startswith(f"{NO_TOPIC}, and cannot be renamed: ")
            for by_hand in (world.placement.remove_stray, world.placement.restore_stray):
                with pytest.raises(StrayError, match=f"/gone-0: nothing was done.* {NO_TOPIC}, and cannot be renamed"):
                    await by_hand(D1, "gone-0")
            assert "gone-0" in world.names(D1)
            world.disks[D1].heal()
            await asyncio.sleep(400)
            (stray,) = world.placement.strays
            assert (world.names(D1), stray.reason) == (["foo-0", stray.name], NO_TOPIC)

    virtual(story)


def test_an_immutable_replica_that_is_this_brokers_again_is_not_deleted_later(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
            world.disks[D1].fail(errno.EPERM, ["rename_replica"])
            away = PartitionChangeRecord(
                partition_id=0, topic_id=FOO, replicas=(2,), isr=(2,), leader=2, directories=(D3,)
            )
            back = PartitionChangeRecord(
                partition_id=0, topic_id=FOO, replicas=(1,), isr=(1,), leader=1, directories=(D1,)
            )
            world.commit(away)
            await world.quiet()
            world.commit(back)
            await world.quiet()
            world.disks[D1].heal()
            await asyncio.sleep(1000)
            assert (world.names(D1), world.placement.strays) == (["foo-0"], ())

    virtual(story)


def test_a_rename_without_an_answer_is_listed_and_removed_whether_or_not_it_happened(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        for happened in (False, True):
            async with World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC).running() as world:
                world.disks[D1].hang()
                world.commit(RemoveTopicRecord(topic_id=FOO))
                await asyncio.sleep(31)
                assert [stray.name for stray in world.placement.strays] == ["foo-0"]
                await asyncio.sleep(200)
                assert len(world.log.of("replica.kept")) == 1, "said once"
                world.disks[D1].heal()
                if not happened:
                    world.disks[D1].fail(errno.EBUSY, ["rename_replica"])
                    await asyncio.sleep(1)
                    assert world.names(D1) == ["foo-0"]
                    world.disks[D1].heal()
                await asyncio.sleep(400)
                assert (world.names(D1), world.placement.strays) == ([], ())

    virtual(story)


def test_lines_of_the_checkpoints_that_could_not_be_dropped_are_dropped_later_but_not_those_of_a_new_replica(
    virtual: Run,
) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO, "a.b-0": GONE}}, *FOO_TOPIC)
        file = "log-start-offset-checkpoint"
        world.disks[D1].checkpoints = {file: b"0\n3\nfoo 0 7\na.b 0 9\nbar 0 4\n"}
        world.disks[D1].fail(errno.EBUSY, ["change_checkpoint"])
        async with world.running():
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await world.quiet()
            assert world.log.of("checkpoints.drop.failed")
            world.commit(TopicRecord(name="foo", topic_id=NEW_FOO), partition(NEW_FOO, 0, (1,), D1))
            await world.quiet()
            world.disks[D1].heal()
            await asyncio.sleep(121)
            assert world.disks[D1].checkpoints == {file: b"0\n2\nfoo 0 7\nbar 0 4\n"}

    virtual(story)


# ------------------------------------------------------------------------------------ a history that proves no deletion


def test_what_is_missing_in_another_history_is_kept(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        found: Contents = {D1: {"foo-0": FOO}, D2: {f"foo-0.{HEX}-future": FOO}}
        async with World(clock, found, *FOO_TOPIC).running() as world:
            world.replace()
            await asyncio.sleep(3600)
            assert {stray.reason for stray in world.placement.strays} == {NO_LONGER_THERE}
            assert [len(world.names(d)) for d in (D1, D2)] == [1, 1]
            assert all(name.endswith("-stray") for d in (D1, D2) for name in world.names(d))
            world.replace(*FOO_TOPIC)  # the right copy is put back
            await world.quiet()
            assert "foo-0" in world.names(D1)

    virtual(story)


def test_what_waits_for_its_removal_is_judged_again_when_the_history_is_another(virtual: Run) -> None:
    """A copy of the metadata that was put back may have what was deleted since."""

    async def story(clock: Any) -> None:
        bar = (TopicRecord(name="bar", topic_id=GONE), partition(GONE, 0, (1,), D2))
        async with World(clock, {D1: {"foo-0": FOO}, D2: {"bar-0": GONE}}, *FOO_TOPIC, *bar).running() as world:
            world.commit(RemoveTopicRecord(topic_id=FOO), RemoveTopicRecord(topic_id=GONE))
            await asyncio.sleep(30)
            world.replace(*FOO_TOPIC)
            await asyncio.sleep(3600)
            assert (world.names(D1), world.placement.strays) == (["foo-0"], ())
            assert world.log.of("replica.undeleted")
            assert world.names(D2) == [], "neither history has it"

    virtual(story)


# ---------------------------------------------------------------------------------------------------------- by a person


def test_a_stray_is_removed_when_a_person_says_so(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"gone-0": GONE, "bad-0": None}}, *FOO_TOPIC).running() as world:
            for stray in world.placement.strays:
                assert await world.placement.remove_stray(stray.directory_id, stray.name) == f"removed {stray.path}"
            assert world.names(D1) == ["foo-0"]
            assert world.placement.strays == ()
            with pytest.raises(StrayError, match="no such stray"):
                await world.placement.remove_stray(D1, "foo-0")

    virtual(story)


def test_a_stray_in_an_offline_directory_cannot_be_removed(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"gone-0": GONE}}, *FOO_TOPIC).running() as world:
            world.placement.fail(D1)
            (stray,) = world.placement.strays
            with pytest.raises(StrayError, match="offline"):
                await world.placement.remove_stray(D1, stray.name)
            assert stray.name in world.names(D1)

    virtual(story)


def test_a_person_who_waits_is_told_when_the_directory_fails_first(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        async with World(clock, {D1: {"gone-0": GONE}}, *FOO_TOPIC).running() as world:
            world.disks[D1].hang()
            (stray,) = world.placement.strays
            world.placement.work(D1, lambda: asyncio.sleep(5))
            removal = asyncio.create_task(world.placement.remove_stray(D1, stray.name))
            await asyncio.sleep(1)
            world.placement.fail(D1)
            with pytest.raises(Exception, match="the directory has failed"):
                await removal

    virtual(story)


def test_a_stray_is_restored_where_the_metadata_give_it_to_this_broker_and_its_name_is_free(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        records = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,), D3))
        found: Contents = {D1: {f"fo-0.{HEX}-stray": FOO}}
        async with World(clock, found, *records, unread=[D3]).running() as world:
            assert world.log.of("replica.left"), "its directory is offline"
            text = await world.placement.restore_stray(D1, f"fo-0.{HEX}-stray")
            assert text.startswith(
                f"restored /d1/fo-0.{HEX}-stray as foo-0; what lies in the offline directory {D3} is"
            )
            await world.quiet()
            assert world.names(D1) == ["foo-0"], "the whole name, also where that of the stray was cut"
            assert world.owner.assigned == {TopicIdPartition(FOO, 0): D1}
            assert (world.placement.strays, world.inventory.replica_count(D1)) == ((), 1)

    virtual(story)


@pytest.mark.parametrize(
    ("name", "topic_id", "why"),
    [
        ("gone-0", GONE, "possible only while a topic with this id exists"),
        ("foo-0", NEW_FOO, "possible only while a topic with this id exists"),
        ("foo-7", FOO, "possible once its topic has that many partitions"),
        ("foo-1", FOO, "reassign the partition to this broker"),
        ("bad-0", None, "restore that file first"),
        ("foo-0", FOO, "the replica lies in /d1 already"),
    ],
)
def test_a_stray_that_cannot_be_restored_says_why_and_what_would_make_it_possible(
    virtual: Run, name: str, topic_id: Uuid | None, why: str
) -> None:
    async def story(clock: Any) -> None:
        stray = f"{name}.{HEX}-stray"
        async with World(clock, {D1: {"foo-0": FOO}, D2: {stray: topic_id}}, *FOO_TOPIC).running() as world:
            with pytest.raises(StrayError, match=why) as error:
                await world.placement.restore_stray(D2, stray)
            assert "\n" not in str(error.value) and f"/d2/{stray}" in str(error.value)
            assert stray in world.names(D2)

    virtual(story)


def test_a_restore_that_fails_changes_nothing(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        records = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,), D3))
        stray = f"foo-0.{HEX}-stray"
        async with World(clock, {D1: {stray: FOO}}, *records, unread=[D3]).running() as world:
            world.disks[D1].fail(errno.EROFS, ["rename_replica"])
            with pytest.raises(Exception, match="EROFS"):
                await world.placement.restore_stray(D1, stray)
            assert world.names(D1) == [stray]
            assert (len(world.placement.strays), world.inventory.replica_count(D1)) == (1, 0)
            assert not world.inventory.creating

    virtual(story)


# ---------------------------------------------------------------------------------------- directories that come later


def test_what_waits_for_a_directory_is_reviewed_when_it_is_loaded(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        records = (TopicRecord(name="foo", topic_id=FOO), *(partition(FOO, n, (1,)) for n in range(4)))
        world = World(clock, {D1: {"foo-0": FOO}, D3: {"foo-1": FOO, "gone-0": GONE}}, *records, loading=[D3])
        async with world.running():
            assert world.placement.busy and world.placement.progress.waiting == 4
            assert world.owner.assigned == {}
            world.commit(partition(FOO, 4, (1,)))
            await world.quiet()
            assert world.names(D2) == ["foo-4"], "what is new waits for nobody"
            world.placement.add_directory(D3, world.agents[D3], "/d3", replicas_of(world.disks[D3]))
            await world.quiet()
            assert not world.placement.busy
            assigned = {p.partition: d for p, d in world.owner.assigned.items()}
            assert assigned == {0: D1, 1: D3, 2: D1, 3: D2, 4: D2}
            assert world.strays["gone-0"].directory_id == D3
            progress = world.placement.progress
            assert (progress.replicas, progress.created, progress.loading, progress.waiting) == (5, 3, 0, 0)

    virtual(story)


def test_what_waits_for_a_directory_that_fails_before_it_is_loaded_is_lost_and_made_nowhere(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        records = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,)))
        async with World(clock, {}, *records, loading=[D3]).running() as world:
            world.placement.fail(D3)
            await world.quiet()
            assert not world.placement.busy
            assert world.names(D1) == world.names(D2) == []
            assert list(world.owner.assigned) == [TopicIdPartition(FOO, 0)]

    virtual(story)


def test_marks_of_deletion_are_judged_when_all_directories_are_loaded(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        records = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,), D3))
        marked = f"foo-0.{HEX}-delete"
        async with World(clock, {D1: {marked: FOO}, D3: {"foo-0": FOO}}, *records, loading=[D3]).running() as world:
            assert world.names(D1) == [marked]
            world.placement.add_directory(D3, world.agents[D3], "/d3", replicas_of(world.disks[D3]))
            await world.quiet()
            assert world.placement.strays == ()
            await asyncio.sleep(61)
            await world.quiet()
            assert world.names(D1) == []

    virtual(story)


def test_what_was_on_a_replaced_disk_is_made_anew_on_the_new_one_or_elsewhere(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        records = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,), D3))
        async with World(clock, {D3: {"foo-0": FOO}}, *records).running() as world:
            world.placement.fail(D3)
            world.placement.forget_directory(D3)
            new, disk = Uuid.of(2, 9), MemoryDisk()
            agent = MemoryDirectoryAgent("/d3", disk, StorageOptions(clock=clock))
            world.placement.add_directory(new, agent, "/d3", [])
            await world.quiet()
            assert world.names(D1) == ["foo-0"]
            assert world.owner.assigned == {TopicIdPartition(FOO, 0): D1}
            world.commit(partition(FOO, 2, (1,), new))
            await world.quiet()
            assert sorted(disk.directories) == ["foo-2"]

    virtual(story)


# -------------------------------------------------------------------------------------------------- choice and trouble


def test_new_replicas_keep_out_of_a_cordoned_directory_from_the_moment_that_the_metadata_say_so(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        cordoned: set[Uuid] = set()
        records = (TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,)))

        def sites() -> dict[Uuid, Site]:
            return {d: Site(cordoned=d in cordoned) for d in PATHS}

        async with World(clock, {}, *records, sites=sites).running() as world:
            assert world.names(D1) == ["foo-0"]
            cordoned |= {D1, D2}
            change = ConfigRecord(resource_type=BROKER, resource_name="1", name="cordoned.log.dirs", value="/d1,/d2")
            world.commit(change, *(partition(FOO, n, (1,)) for n in range(1, 6)))
            await world.quiet()
            assert len(world.names(D3)) == 5

    virtual(story)


def test_rp_9_a_replica_that_cannot_be_made_anywhere_keeps_nobody_fenced_and_is_made_when_there_is_room(
    virtual: Run,
) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {}, TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,)))
        for disk in world.disks.values():
            disk.fail(errno.ENOSPC, ["create_replica"])
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.placement.run())
            world.placement.publish(world.image)
            await asyncio.sleep(10)
            assert not world.placement.busy
            assert (world.owner.assigned, len(world.log.of("replica.no.room"))) == ({}, 1)
            world.disks[D2].heal()
            await asyncio.sleep(10)
            assert world.names(D2) == ["foo-0"]
            running.cancel()

    virtual(story)


def test_a_change_while_a_big_image_is_counted_is_not_lost(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        topics = [Uuid.of(7, n) for n in range(1, 61)]
        records: list[Record] = []
        for number, topic_id in enumerate(topics):
            records.append(TopicRecord(name=f"t{number}", topic_id=topic_id))
            records.extend(partition(topic_id, p, (1,), D1) for p in range(200))
        found: dict[str, Uuid | None] = {f"t{n}-{p}": topic_id for n, topic_id in enumerate(topics) for p in range(200)}
        world = World(clock, {D1: found}, *records)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.placement.run())
            world.placement.publish(world.image)
            assert world.placement.busy and world.placement.leaders() is None
            away = PartitionChangeRecord(
                partition_id=7, topic_id=topics[-1], replicas=(2,), isr=(2,), leader=2, directories=(D3,)
            )
            world.commit(RemoveTopicRecord(topic_id=topics[-2]), away, TopicRecord(name="new", topic_id=NEW_FOO))
            world.commit(partition(NEW_FOO, 0, (1,), D2))
            while world.placement.busy:  # noqa: ASYNC110  virtual time
                await asyncio.sleep(0.01)
            fresh = Hosting(1)
            fresh.load(world.image)
            assert fresh.partitions == world.placement.hosting.partitions
            assert world.placement.leaders() == {D1: 59 * 200 - 1, D2: 1}
            assert (world.names(D2), world.placement.strays) == (["new-0"], ())
            assert sum(name.endswith("-delete") for name in world.names(D1)) == 201
            running.cancel()

    virtual(story)


@pytest.mark.parametrize(
    "trouble",
    [
        WorkerUnavailable("/d1", "the worker has ended"),
        DirectoryTimeout(10_000, "", "rename of foo-0", "/d1"),
        DirectoryError(errno.EIO, "fsync after rename of foo-0", "/d1"),
        DirectoryError(errno.EINVAL, "fsync after rename of foo-0", "/d1"),
    ],
    ids=lambda trouble: f"{type(trouble).__name__}-{getattr(trouble, 'errno', '')}",
)
@pytest.mark.parametrize("deleted", [False, True])
def test_a_rename_that_happened_without_an_answer_is_not_done_again_to_the_replica_that_has_the_name_by_now(
    virtual: Run, trouble: Exception, deleted: bool
) -> None:
    async def story(clock: Any) -> None:
        made = (TopicRecord(name="foo", topic_id=NEW_FOO), partition(NEW_FOO, 0, (1,), D1))
        world = World(clock, {D1: {"foo-0": FOO}}, *(FOO_TOPIC if deleted else made))
        real, first = world.agents[D1].rename_replica, [trouble]

        async def rename(name: str, new: str, *, timeout_ms: int) -> None:
            await real(name, new, timeout_ms=timeout_ms)
            if first:
                raise first.pop()

        world.agents[D1].rename_replica = rename  # type: ignore[method-assign,assignment]
        async with world.running():
            if deleted:
                world.commit(RemoveTopicRecord(topic_id=FOO))
                world.commit(*made)
            await asyncio.sleep(5)
            assert world.disks[D1].directories["foo-0"] == content(NEW_FOO)
            await asyncio.sleep(900)
            assert world.disks[D1].directories["foo-0"] == content(NEW_FOO)
            assert world.inventory.copies(TopicIdPartition(NEW_FOO, 0)) == (D1,)

    virtual(story)


def test_a_name_that_a_deletion_was_to_give_is_not_given_to_what_is_kept(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO}}, *FOO_TOPIC)
        world.disks[D1].fail(errno.EBUSY, ["rename_replica"])
        async with world.running():
            away = {"replicas": (2,), "isr": (2,), "directories": (UNASSIGNED,)}
            world.commit(PartitionChangeRecord(topic_id=FOO, partition_id=0, **away))  # type: ignore[arg-type]
            await asyncio.sleep(5)
            back = {"replicas": (1,), "isr": (1,), "directories": (D1,)}
            world.commit(PartitionChangeRecord(topic_id=FOO, partition_id=0, **back))  # type: ignore[arg-type]
            await asyncio.sleep(30)
            world.disks[D1].heal()
            world.replace(TopicRecord(name="bar", topic_id=NEW_FOO))  # another history: what it lacks is kept
            await asyncio.sleep(5)
            (name,) = world.names(D1)
            assert name.endswith("-stray")

    virtual(story)
