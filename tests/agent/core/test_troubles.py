"""The status is never OK while a replica that the metadata place here is unmade, vanished, displaced or unreadable."""

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import kjbod_agent
import kjbod_host
from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.fetching import Committed
from kjbod.metadata.records import FeatureLevelRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from kjbod.metadata.versions import DIRECTORY_ASSIGNMENT, METADATA_VERSION
from kjbod_agent.replicas.placement import LOOK_MS
from kjbod_host.condition import Level
from kjbod_host.storage.api import Replica, StorageOptions
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk
from kjbod_host.storage.worker import LINK
from tests.agent.core.test_broker import D1, D2, TOPIC, World

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
Story = Callable[[World], Awaitable[None]]
D3 = Uuid.of(2, 3)
METADATA = f"version: 0\ntopic_id: {TOPIC}".encode()
LOG = "00000000000000000000.log"


def partition(number: int, directory: Uuid, topic_id: Uuid = TOPIC) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(directory,),
    )


def unmade(number: int) -> Story:
    async def story(world: World) -> None:
        for disk in world.disks.values():
            disk.fail(number, ["create_replica"])
        world.topic()
        await asyncio.sleep(15)

    return story


def taken(what: str | None) -> Story:
    async def story(world: World) -> None:
        if what is None:
            world.disks[D1].directories["t-0"] = b""
        else:
            world.disks[D1].obstacles["t-0"] = what
        world.topic((D1,) * 4)
        await asyncio.sleep(15)

    return story


async def vanished(world: World) -> None:
    world.topic((D1,) * 4)
    await world.until(lambda: "t-3" in world.disks[D1].directories)
    del world.disks[D1].directories["t-3"]
    await asyncio.sleep(2 * LOOK_MS / 1000)


async def displaced(world: World) -> None:
    """A path that had left ``log.dirs`` is back, with more than what was made in its place."""
    world.topic((D1,) * 4)
    await world.until(lambda: "t-3" in world.disks[D1].directories)
    disk = MemoryDisk(directories={"t-3": METADATA})
    agent = MemoryDirectoryAgent("/d3", disk, StorageOptions(clock=world.clock))

    async def end(name: str, *, timeout_ms: int) -> int:
        return 17

    agent.log_end_offset = end  # type: ignore[method-assign]
    loaded = await agent.load(timeout_ms=1_000)
    world.broker.placement.add_directory(D3, agent, "/d3", loaded.replicas)
    await asyncio.sleep(15)


async def too_old(world: World) -> None:
    world.topic((D1,) * 4)
    world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=DIRECTORY_ASSIGNMENT - 1))
    await asyncio.sleep(1)


TROUBLES: dict[str, tuple[str, Story]] = {
    "no room on any disk": ("replica.no.room", unmade(errno.ENOSPC)),
    "no quota": ("replica.no.room", unmade(errno.EDQUOT)),
    "too many links": ("replica.create.failed", unmade(errno.EMLINK)),
    "something in the way of its making": ("replica.create.failed", unmade(errno.ENOTEMPTY)),
    "an error of the disks": ("replica.create.failed", unmade(errno.EIO)),
    "a file system that is read-only": ("replica.create.failed", unmade(errno.EROFS)),
    "a long time": ("replicas.unmade", unmade(errno.EIO)),
    "a link": ("replica.name.taken", taken(LINK)),
    "a file": ("replica.name.taken", taken("it is a file")),
    "an unreadable copy": ("replica.name.taken", taken(None)),
    "rm -rf": ("replica.vanished", vanished),
    "a longer copy that was set aside": ("replica.longer.set.aside", displaced),
    "an old metadata.version": ("metadata.version.too.old", too_old),
}
HARMLESS: dict[str, str] = {
    "replica.create.failed": "above",
    "replica.created": "it was made",
    "replica.delete.offline": "it is no longer this broker's",
    "replica.deleted": "it is no longer this broker's",
    "replica.kept": "no current replica",
    "replica.left": "the state of its directory says that it is offline",
    "replica.linked": "replica.name.taken follows where a replica of this broker has the name",
    "replica.not.compared": "the copy in place is what the metadata name; the other is kept as a stray",
    "replica.only.copy.gone": "the metadata have no directory of ours for it: an empty one is made and is well",
    "replica.remove.failed": "it is no longer this broker's",
    "replica.remove.put.off": "it is no longer this broker's",
    "replica.removed": "it is no longer this broker's",
    "replica.rename.failed": "it is no longer this broker's; replica.name.taken follows where its name is needed",
    "replica.stray": "what does not count; replica.longer.set.aside follows where it has more",
    "replica.stray.removed": "a person did it",
    "replica.stray.restored": "a person did it",
    "replica.undeleted": "it is there again",
    "replicas.without.directory": "replicas.unmade came before",
    "replica.move.failed": "it lies in its source",
    "replica.move.interrupted": "it lies in its source",
    "replica.move.repeated": "it lies in its source",
}
"""Events about replicas, and why no replica is missing for them alone."""


def test_each_event_about_a_replica_is_a_trouble_or_has_a_reason_why_it_is_none() -> None:
    packages = (kjbod_agent, kjbod_host)
    sources = [path for one in packages for path in Path(str(one.__file__)).parent.rglob("*.py")]
    found = {name for path in sources for name in re.findall(r'"(replicas?(?:\.[a-z]+)+)"', path.read_text())}
    found = {name for name in found if not name.endswith((".second", ".ms"))}  # keys of the configuration
    assert found - {event for event, _ in TROUBLES.values()} - HARMLESS.keys() == set()


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_status_is_not_ok_while_a_replica_cannot_be_used(virtual: Run, trouble: str) -> None:
    async def main(clock: Any) -> None:
        event, story = TROUBLES[trouble]
        async with World(clock) as world:
            assert world.broker.condition().level is Level.OK
            await story(world)
            if event == "replicas.unmade":
                await asyncio.sleep(60)
            assert world.log.of(event), "the log names it"
            assert world.broker.condition().level is Level.DEGRADED
            assert any(word in world.broker.condition().line for word in ("t-", "metadata.version"))
            if event != "metadata.version.too.old":
                world.commit(RemoveTopicRecord(topic_id=TOPIC))
                for directory, name in list(world.broker.placement.deletions.strays):
                    world.broker.placement.deletions.strays.pop((directory, name))
                await asyncio.sleep(2)
                assert world.broker.condition().level is Level.OK, "nothing is missing any more"

    virtual(main)


# ------------------------------------------------------------------------------------------------------------- behind


def test_an_agent_that_is_behind_makes_no_replica_of_a_topic_that_was_deleted_long_ago(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            broker, ids = world.broker, [Uuid.of(7, number) for number in range(6)]

            def behind(*records: Any, until: int) -> None:
                numbered = tuple((world.offset + n, record) for n, record in enumerate(records))
                world.offset += len(records)
                broker.on_committed(Committed(numbered, world.offset - 1, 1, world.offset + until))

            for topic_id, directory in zip(ids, (D1, D2, UNASSIGNED) * 2, strict=True):
                records = TopicRecord(name=f"x{topic_id}", topic_id=topic_id), partition(0, directory, topic_id)
                behind(*records, until=100)
                await asyncio.sleep(1)
            for topic_id in ids[:-1]:
                behind(RemoveTopicRecord(topic_id=topic_id), until=50)
                await asyncio.sleep(1)
            assert not [name for disk in world.disks.values() for name in disk.directories]
            behind(TopicRecord(name="last", topic_id=Uuid.of(7, 99)), until=0)
            await asyncio.sleep(1)
            made = [name for disk in world.disks.values() for name in disk.directories]
            assert made == [f"x{ids[-1]}-0"], "what is still there is made when all is known"

    virtual(main)


# -------------------------------------------------------------------------------------- where nobody can be told of one


def test_below_the_version_that_knows_directories_the_broker_stays_fenced_while_a_copy_cannot_be_used(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        world.broker.placement.inventory.put(D1, Replica("t-0", "t", 0, None, "", LINK, False))
        world.topic((D1,) * 4)
        world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=DIRECTORY_ASSIGNMENT - 1))
        async with world:
            old = FeatureLevelRecord(name=METADATA_VERSION, feature_level=DIRECTORY_ASSIGNMENT - 1)
            world.commit(old)
            await asyncio.sleep(5)
            assert world.broker.life.fenced and not world.broker.life.ready_to_unfence
            assert "t-0 cannot be used" in world.broker.condition().line
            world.disks[D1].directories["t-0"] = METADATA
            await asyncio.sleep(2 * LOOK_MS / 1000)
            assert not world.broker.life.fenced, "it was repaired"

    virtual(main)


def test_looks_go_on_after_the_disk_was_replaced(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.topic((D1,) * 4)
            await asyncio.sleep(1)
            world.disks[D2].hang()
            await asyncio.sleep(2 * LOOK_MS / 1000)
            world.broker.placement.fail(D2)
            disk = MemoryDisk(obstacles={"t-7": LINK}, directories={"u-0": b""})
            agent = MemoryDirectoryAgent("/d2", disk, StorageOptions(clock=clock))
            loaded = await agent.load(timeout_ms=1_000)
            world.broker.placement.forget_directory(D2)
            world.broker.placement.add_directory(D2, agent, "/d2", loaded.replicas)
            await asyncio.sleep(1)
            world.commit(partition(7, D2))
            await asyncio.sleep(1)
            assert "t-7 cannot be used: /d2/t-7: it is a symbolic link" in world.broker.condition().line
            disk.obstacles.clear()
            await asyncio.sleep(3 * LOOK_MS / 1000)
            assert world.broker.placement.missing() == []

    virtual(main)
