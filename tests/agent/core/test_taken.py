"""Names that are taken by something that cannot be used as a replica: nothing is made in its place, anywhere."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import pytest
from msgspec import structs

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from kjbod_agent.replicas.inventory import Inventory, Wanted
from kjbod_agent.replicas.placement import LOOK_MS, StrayError
from kjbod_agent.replicas.strays import LONGER, NO_TOPIC_ID, SUPERSEDED, WRONG_NAME
from kjbod_agent.replicas.table import Action
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import Replica
from kjbod_host.storage.memory import MemoryDisk
from kjbod_host.storage.worker import LINK
from tests.agent.core.test_deletions import D1, D2, D3, HEX, PATHS, World, content, partition

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
FOO, OTHER, NEW = (Uuid.of(3, n) for n in (1, 2, 3))
P0 = TopicIdPartition(FOO, 0)
FOREIGN = Uuid.of(2, 9)
LOG = "00000000000000000000.log"
FUTURE = f"foo-0.{HEX}-future"
Spoil = Callable[[MemoryDisk], None]


def directory(metadata: bytes | None, *, name: str = "foo-0", files: dict[str, bytes] | None = None) -> Spoil:
    def spoil(disk: MemoryDisk) -> None:
        disk.directories[name] = metadata
        disk.files[name] = {LOG: b"acknowledged"} if files is None else files

    return spoil


def obstacle(what: str, name: str = "foo-0") -> Spoil:
    return lambda disk: disk.obstacles.update({name: what})


UNREADABLE: dict[str, Spoil] = {
    "an empty partition.metadata": directory(b""),
    "one that is all NUL": directory(bytes(43)),
    "one of another version": directory(f"version: 1\ntopic_id: {FOO}".encode()),
    "a torn one": directory(f"version: 0\ntopic_id: {str(FOO)[:9]}".encode()),
    "one with the zero id": directory(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA"),
    "one with the id of the metadata log": directory(b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"),
    "garbage": directory(bytes(range(256))),
    "one with a byte order mark": directory(b"\xef\xbb\xbf" + (content(FOO) or b"")),
    "none, and data": directory(None),
    "none, and data in a later segment": directory(None, files={LOG: b"", "00000000000000000007.log": b"x"}),
    "none, and nothing at all": directory(None, files={}),
    "an empty one and no data": directory(b"", files={LOG: b""}),
}
NO_DIRECTORY: dict[str, Spoil] = {
    "a link": obstacle(LINK),
    "a file": obstacle("it is a file"),
    "a FIFO": obstacle("it is a FIFO"),
    "a socket": obstacle("it is a socket"),
    "a device": obstacle("it is a device"),
}
MISNAMED: dict[str, Spoil] = {
    "a number with a zero": directory(content(FOO), name="foo-00"),
    "a number with zeros": directory(content(FOO), name="foo-0000"),
    "a number with a zero, unreadable": directory(b"", name="foo-00"),
    "a link with a zero": obstacle(LINK, "foo-00"),
    "another topic's name": directory(content(FOO), name="bar-0"),
    "only an unreadable future one": directory(b"", name=FUTURE),
    "only a link to a future one": obstacle(LINK, FUTURE),
}
ALL = UNREADABLE | NO_DIRECTORY | MISNAMED


def topic(assigned: Uuid) -> tuple[Any, ...]:
    return TopicRecord(name="foo", topic_id=FOO), partition(FOO, 0, (1,), assigned)


async def load(world: World, directories: Iterable[Uuid]) -> None:
    """Read these directories, in this order."""
    for each in directories:
        loaded = await world.agents[each].load(timeout_ms=1_000)
        world.placement.add_directory(each, world.agents[each], PATHS[each], loaded.replicas)
        await world.quiet()
    await asyncio.sleep(1)


def state(world: World) -> list[Any]:
    return [(disk.directories.copy(), disk.obstacles.copy(), disk.files.copy()) for disk in world.disks.values()]


def spoiled(clock: Any, kind: str, assigned: Uuid, **arguments: Any) -> World:
    world = World(clock, {}, *topic(assigned), loading=[D1, D2, D3], **arguments)
    ALL[kind](world.disks[D1])
    return world


@pytest.mark.parametrize("kind", ALL)
def test_a_copy_that_cannot_be_used_stays_as_it_is_and_no_empty_one_is_made_in_its_place(
    virtual: Run, kind: str
) -> None:
    async def story(clock: Any) -> None:
        for assigned in (D1, D2, UNASSIGNED, MIGRATING, LOST, FOREIGN):
            for order in ((D1, D2, D3), (D3, D2, D1)):
                world = spoiled(clock, kind, assigned)
                before = state(world)
                async with world.running():
                    await load(world, order)
                    for _ in range(2):
                        assert state(world) == before, (assigned, order)
                        assert world.placement.strays == ()
                        away = {} if assigned in (LOST, FOREIGN) else {P0: LOST}
                        assert world.owner.assigned == away, "the controller counts it as offline"
                        (missing,) = world.placement.missing()
                        assert missing.startswith("foo-0 cannot be used: /d1/")
                        assert not world.placement.busy, "the others are served"
                        await asyncio.sleep(3 * LOOK_MS / 1000)
                    assert len(world.log.of("replica.name.taken")) == 1
                    assert world.owner.errors == []

    virtual(story)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("elsewhere", ["foo-0", FUTURE])
def test_an_older_copy_elsewhere_does_not_take_its_place(virtual: Run, kind: str, elsewhere: str) -> None:
    async def story(clock: Any) -> None:
        for assigned in (D1, UNASSIGNED, D3):
            world = spoiled(clock, kind, assigned)
            if elsewhere in world.disks[D1].directories or elsewhere in world.disks[D1].obstacles:
                continue
            world.disks[D2].directories[elsewhere] = content(FOO)
            before = state(world)
            async with world.running():
                await load(world, (D2, D1, D3))
                assert (state(world), world.owner.assigned, world.owner.resumed) == (before, {P0: LOST}, [])

    virtual(story)


@pytest.mark.parametrize("kind", ALL)
def test_a_copy_where_the_metadata_say_counts_and_directories_beside_it_are_strays(virtual: Run, kind: str) -> None:
    async def story(clock: Any) -> None:
        world = spoiled(clock, kind, D2)
        world.disks[D2].directories["foo-0"] = content(FOO)
        data = dict(world.disks[D1].files)
        async with world.running():
            await load(world, (D1, D2, D3))
            assert (world.placement.missing(), world.owner.assigned) == ([], {})
            assert world.names(D2) == ["foo-0"]
            assert sorted(map(str, world.disks[D1].files.values())) == sorted(map(str, data.values()))
            reasons = {stray.reason for stray in world.placement.strays}
            assert reasons <= {NO_TOPIC_ID, WRONG_NAME} and bool(reasons) == bool(data)

    virtual(story)


@pytest.mark.parametrize("kind", ALL)
def test_a_copy_on_a_disk_that_is_added_later_is_kept_too(virtual: Run, kind: str) -> None:
    async def story(clock: Any) -> None:
        for assigned in (D1, UNASSIGNED, LOST):
            world = spoiled(clock, kind, assigned, unread=[D1])
            before = state(world)
            async with world.running():
                await load(world, (D2, D3))
                world.owner.assigned.clear()
                await load(world, (D1,))
                assert state(world) == before
                assert len(world.placement.missing()) == 1
                assert world.owner.assigned == ({} if assigned == LOST else {P0: LOST})
                world.placement.fail(D1)
                world.commit(PartitionChangeRecord(topic_id=FOO, partition_id=0, directories=(LOST,)))
                await asyncio.sleep(3 * LOOK_MS / 1000)
                assert state(world) == before, "a disk that fails holds what it held"
                world.placement.forget_directory(D1)
                await asyncio.sleep(3 * LOOK_MS / 1000)
                assert "foo-0" in [*world.names(D2), *world.names(D3)], "its disk was replaced"
                assert world.placement.missing() == []

    virtual(story)


def test_a_replica_without_data_and_partition_metadata_is_made_anew_as_in_kafka(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {}, *topic(D1), loading=[D1, D2, D3])
        directory(None, files={LOG: b"", "00000000000000000000.index": bytes(8)})(world.disks[D1])
        async with world.running():
            await load(world, (D1, D2, D3))
            assert "foo-0" in world.names(D1) and world.disks[D1].directories["foo-0"] == content(FOO)
            assert [stray.reason for stray in world.placement.strays] == [NO_TOPIC_ID]

    virtual(story)


@pytest.mark.parametrize("kind", UNREADABLE | NO_DIRECTORY)
def test_what_is_repaired_in_its_place_is_found_and_assigned_without_a_restart(virtual: Run, kind: str) -> None:
    async def story(clock: Any) -> None:
        world = spoiled(clock, kind, D1)
        async with world.running():
            await load(world, (D1, D2, D3))
            world.commit(PartitionChangeRecord(topic_id=FOO, partition_id=0, directories=(LOST,)))
            world.disks[D1].obstacles.clear()
            directory(content(FOO))(world.disks[D1])
            await asyncio.sleep(2 * LOOK_MS / 1000)
            assert (world.owner.assigned, world.placement.missing()) == ({P0: D1}, [])
            assert world.disks[D1].files["foo-0"] == {LOG: b"acknowledged"}
            assert (world.names(D1), world.names(D2), world.names(D3)) == (["foo-0"], [], [])

    virtual(story)


@pytest.mark.parametrize("kind", ALL)
def test_what_is_moved_out_of_the_way_is_given_up_and_a_new_one_is_made(virtual: Run, kind: str) -> None:
    async def story(clock: Any) -> None:
        world = spoiled(clock, kind, D1)
        async with world.running():
            await load(world, (D1, D2, D3))
            world.commit(PartitionChangeRecord(topic_id=FOO, partition_id=0, directories=(LOST,)))
            world.disks[D1].obstacles.clear()
            world.disks[D1].directories.clear()
            await asyncio.sleep(2 * LOOK_MS / 1000)
            made = world.owner.assigned[P0]
            assert world.names(made) == ["foo-0"] and world.placement.missing() == []

    virtual(story)


@pytest.mark.parametrize("kind", ALL)
def test_when_the_topic_is_deleted_its_copy_is_a_stray_and_what_is_no_directory_stays(virtual: Run, kind: str) -> None:
    async def story(clock: Any) -> None:
        world = spoiled(clock, kind, D1)
        obstacles, data = dict(world.disks[D1].obstacles), list(world.disks[D1].files.values())
        async with world.running():
            await load(world, (D1, D2, D3))
            world.commit(RemoveTopicRecord(topic_id=FOO))
            await asyncio.sleep(1)
            assert world.disks[D1].obstacles == obstacles
            assert all(name.endswith("-stray") for name in world.names(D1))
            assert list(world.disks[D1].files.values()) == data
            assert len(world.placement.strays) == len(data) and world.placement.missing() == []
            world.commit(TopicRecord(name="foo", topic_id=NEW), partition(NEW, 0, (1,), D2))
            await asyncio.sleep(1)
            assert (world.names(D2) == ["foo-0"]) != bool(obstacles)

    virtual(story)


def test_a_name_that_somebody_took_since_the_start_sends_the_replica_nowhere_else(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {}, TopicRecord(name="foo", topic_id=FOO))
        for spoil in (obstacle("it is a file"), directory(b"", name="foo-1")):
            spoil(world.disks[D1])
        async with world.running():
            world.commit(partition(FOO, 0, (1,), D1), partition(FOO, 1, (1,), D1), partition(FOO, 2, (1,), D1))
            await asyncio.sleep(2 * LOOK_MS / 1000)
            lost = {TopicIdPartition(FOO, number): LOST for number in (0, 1)}
            assert world.owner.assigned == lost
            assert world.names(D1) == ["foo-1", "foo-2"] and world.names(D2) == world.names(D3) == []
            assert "its partition.metadata is empty" in world.placement.missing()[1], "the look says what it is"

    virtual(story)


@pytest.mark.parametrize("kind", UNREADABLE | NO_DIRECTORY)
def test_no_stray_is_restored_beside_it(virtual: Run, kind: str) -> None:
    async def story(clock: Any) -> None:
        world = spoiled(clock, kind, D1)
        stray = f"foo-0.{HEX}-stray"
        world.disks[D2].directories[stray] = content(FOO)
        async with world.running():
            await load(world, (D1, D2, D3))
            with pytest.raises(StrayError, match="cannot be restored: its name is taken: /d1/foo-0: "):
                await world.placement.restore_stray(D2, stray)
            assert world.names(D2) == [stray]

    virtual(story)


def old_copy(clock: Any) -> World:
    """Deleted and made anew while no agent ran; the old copy cannot be renamed."""
    world = World(clock, {D1: {"foo-0": OTHER}}, *topic(UNASSIGNED), loading=[D1])
    world.disks[D1].fail(errno.EXDEV, ["rename_replica"])
    return world


def test_nothing_is_made_elsewhere_while_what_has_the_name_may_not_be_renamed(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = old_copy(clock)
        async with world.running():
            await load(world, (D1,))
            await asyncio.sleep(3 * LOOK_MS / 1000)
            assert (world.names(D1), world.names(D2), world.names(D3)) == (["foo-0"], [], [])
            (missing,) = world.placement.missing()
            assert missing.startswith("foo-0 cannot be used: /d1/foo-0: it belongs to another topic")
            world.disks[D1].heal()
            await asyncio.sleep(400)
            assert len([*world.names(D1), *world.names(D2), *world.names(D3)]) == 2 and world.placement.missing() == []

    virtual(story)


def test_nothing_is_made_elsewhere_either_when_the_topic_is_made_anew_at_once(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO}}, *topic(D1))
        world.disks[D1].fail(errno.EXDEV, ["rename_replica"])
        async with world.running():
            made = TopicRecord(name="foo", topic_id=NEW), partition(NEW, 0, (1,), D2)
            world.commit(RemoveTopicRecord(topic_id=FOO), *made)
            await asyncio.sleep(5)
            assert (world.names(D1), world.names(D2), world.names(D3)) == (["foo-0"], [], [])
            assert len(world.placement.missing()) == 1

    virtual(story)


def test_what_could_not_be_renamed_and_is_moved_away_is_not_waited_for(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = old_copy(clock)
        async with world.running():
            await load(world, (D1,))
            world.disks[D1].directories.clear()
            await asyncio.sleep(2 * LOOK_MS / 1000)
            assert len([*world.names(D1), *world.names(D2), *world.names(D3)]) == 1
            assert (world.placement.missing(), world.placement.strays) == ([], ())

    virtual(story)


# ------------------------------------------------------------------------------------------------------------- vanished


def test_a_replica_that_somebody_removes_is_named_until_it_is_back(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO}, D2: {"foo-1": FOO}}, *topic(D1), partition(FOO, 1, (1,), D2))
        async with world.running():
            kept = world.disks[D1].directories.pop("foo-0")
            await asyncio.sleep(2 * LOOK_MS / 1000)
            assert [told.partition(" ")[0] for told in world.placement.missing()] == ["/d1/foo-0"]
            assert len(world.log.of("replica.vanished")) == 1
            world.disks[D1].directories["foo-0"] = kept
            await asyncio.sleep(2 * LOOK_MS / 1000)
            assert world.placement.missing() == []
            del world.disks[D1].directories["foo-0"]
            await asyncio.sleep(2 * LOOK_MS / 1000)
            world.commit(RemoveTopicRecord(topic_id=FOO))
            assert world.placement.missing() == [], "it is no longer this broker's"

    virtual(story)


@pytest.mark.parametrize("kind", UNREADABLE | NO_DIRECTORY | {"another topic's": directory(content(OTHER))})
def test_a_replica_that_somebody_displaces_is_named_until_it_is_back(virtual: Run, kind: str) -> None:
    spoil = (UNREADABLE | NO_DIRECTORY).get(kind, directory(content(OTHER)))

    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO, "foo-1": FOO}}, *topic(D1), partition(FOO, 1, (1,), D1))
        async with world.running():
            del world.disks[D1].directories["foo-0"]
            spoil(world.disks[D1])
            for _ in range(2):
                await asyncio.sleep(2 * LOOK_MS / 1000)
                (told,) = world.placement.missing()
                assert told.startswith("/d1/foo-0 was changed while the agent ran: it")
                assert len(world.log.of("replica.vanished")) == 1
            world.disks[D1].obstacles.clear()
            world.disks[D1].directories["foo-0"] = content(FOO)
            await asyncio.sleep(2 * LOOK_MS / 1000)
            assert world.placement.missing() == []

    virtual(story)


def test_each_replica_is_read_in_turn_and_a_displaced_one_in_each_look(
    virtual: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kjbod_agent.replicas.placement.READ_PER_LOOK", 2)

    async def story(clock: Any) -> None:
        placed = [partition(FOO, number, (1,), D1) for number in range(7)]
        world = World(clock, {D1: {f"foo-{n}": FOO for n in range(7)}}, *topic(D1), *placed)
        async with world.running():
            world.disks[D1].directories["foo-5"] = b""
            await asyncio.sleep(5 * LOOK_MS / 1000)
            for _ in range(6):
                assert [told.partition(" ")[0] for told in world.placement.missing()] == ["/d1/foo-5"]
                await asyncio.sleep(LOOK_MS / 1000)

    virtual(story)


def test_a_look_that_the_disk_does_not_answer_says_nothing(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO}}, *topic(D1))
        async with world.running():
            world.disks[D1].fail(errno.EIO, ["list_replicas"])
            del world.disks[D1].directories["foo-0"]
            await asyncio.sleep(3 * LOOK_MS / 1000)
            assert (world.placement.missing(), world.owner.errors) == ([], [])

    virtual(story)


# ------------------------------------------------------------------------------------------ a path that left log.dirs


def isr(directory: Uuid, *brokers: int) -> PartitionRecord:
    return structs.replace(partition(FOO, 0, (1, 2), directory, D1), isr=brokers)


@pytest.mark.parametrize(
    ("assigned", "brokers", "warned"),
    [(FOREIGN, (1,), True), (FOREIGN, (1, 2), False), (FOREIGN, (2,), False), (LOST, (1,), False), (D1, (1,), False)],
)
def test_an_empty_replica_in_place_of_the_only_copy_of_a_directory_that_left_is_warned_of(
    virtual: Run, assigned: Uuid, brokers: tuple[int, ...], warned: bool
) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {}, TopicRecord(name="foo", topic_id=FOO), isr(assigned, *brokers))
        async with world.running():
            await asyncio.sleep(1)
            assert sum(world.names(directory) == ["foo-0"] for directory in PATHS) == 1
            assert [line["directory_id"] for line in world.log.of("replica.only.copy.gone")] == [str(FOREIGN)] * warned

    virtual(story)


@pytest.mark.parametrize(("back", "here", "told"), [(17, 0, True), (17, 16, True), (17, 17, False), (0, 9, False)])
def test_a_copy_that_is_back_with_more_than_the_one_in_its_place_is_never_set_aside_silently(
    virtual: Run, back: int, here: int, told: bool
) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO}, D2: {"foo-0": FOO}}, *topic(D2), loading=[D1])
        ends = {D1: back, D2: here}
        for directory in ends:

            async def end(name: str, *, timeout_ms: int, directory: Uuid = directory) -> int:
                assert name in world.names(directory)
                return ends[directory]

            world.agents[directory].log_end_offset = end  # type: ignore[method-assign]
        async with world.running():
            await load(world, (D1,))
            (stray,) = world.placement.strays
            assert stray.reason.startswith(LONGER if told else SUPERSEDED)
            assert bool(world.log.of("replica.longer.set.aside")) == told
            assert [stray.path in line for line in world.placement.missing()] == [True] * told
            assert world.names(D1) == [stray.name], "it is kept"

    virtual(story)


def replica(trouble: str, *, is_directory: bool = True) -> Replica:
    return Replica("foo-0", "foo", 0, None, trouble=trouble, is_directory=is_directory)


def test_a_look_again_and_again_counts_what_has_a_name_once() -> None:
    inventory = Inventory([(D1, "/d1"), (D2, "/d2")])
    inventory.put(D1, replica("its partition.metadata is empty"))
    before = inventory.replica_count(D1)
    for _ in range(10):
        inventory.release(D1, "foo-0")
        inventory.put(D1, replica("its partition.metadata is empty"))
    assert inventory.replica_count(D1) == before
    inventory.release(D1, "foo-0")
    assert inventory.replica_count(D1) == before - 1


def test_what_lies_in_a_failed_directory_is_in_nobodys_way_who_is_newer() -> None:
    inventory = Inventory([(D1, "/d1"), (D2, "/d2")])
    inventory.put(D1, replica("its partition.metadata is empty"))
    inventory.fail(D1)
    decision = inventory.decide(Wanted(TopicIdPartition(NEW, 0), "foo", D2, new=True))
    assert not decision.taken and decision.action is Action.CREATE


def test_a_directory_waits_for_no_other_with_which_its_copy_is_compared(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, {D1: {"foo-0": FOO}, D2: {"foo-0": FOO}}, *topic(D2), loading=[D1])

        async def end(name: str, *, timeout_ms: int) -> int:
            return 17

        async def hang(name: str, *, timeout_ms: int) -> int:
            await asyncio.Event().wait()
            return 0

        world.agents[D1].log_end_offset = end  # type: ignore[method-assign]
        world.agents[D2].log_end_offset = hang  # type: ignore[method-assign]
        async with world.running():
            await load(world, (D1,))
            (stray,) = world.placement.strays
            await asyncio.wait_for(world.placement.remove_stray(D1, stray.name), 5)
            assert world.names(D1) == []

    virtual(story)
