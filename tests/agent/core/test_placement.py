"""What is carried out of the table's decisions, on disks in memory that fill up, fail and hang."""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from kjbod.clock import SystemClock
from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from kjbod.runtime.logging import get_logger
from kjbod_agent.replicas.hosting import Hosting
from kjbod_agent.replicas.inventory import Inventory, Wanted
from kjbod_agent.replicas.placement import Placement
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import DirectoryError, StorageOptions
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk

D1, D2 = Uuid.of(2, 1), Uuid.of(2, 2)
TOPIC = Uuid.of(3, 1)


@dataclass
class Owner:
    """Remembers what the placement says."""

    assigned: dict[TopicIdPartition, Uuid] = field(default_factory=dict)
    forgotten: list[TopicIdPartition] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    resumed: list[tuple[TopicIdPartition, Uuid, str]] = field(default_factory=list)
    doubtful: dict[Uuid, str] = field(default_factory=dict)

    def assign(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        self.assigned[partition] = directory_id

    def forget(self, partition: TopicIdPartition) -> None:
        self.forgotten.append(partition)

    def created(self, topic: str, partition: TopicIdPartition, directory_id: Uuid) -> None:
        pass

    def resume_move(self, wanted: Wanted, directory_id: Uuid, future_name: str) -> None:
        self.resumed.append((wanted.partition, directory_id, future_name))

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        self.errors.append(error.errno)

    def doubt(self, directory_id: Uuid, since_ms: int) -> str | None:
        return self.doubtful.get(directory_id)

    def refuse(self, reason: str, *, config: bool = False) -> None:
        self.refused.append(reason)

    def settled(self) -> None:
        pass


def partition_record(number: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=TOPIC,
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(UNASSIGNED,),
    )


class World:
    """Broker 1 with two directories, and a topic in the metadata whose replicas have no directory yet."""

    def __init__(self, partitions: int) -> None:
        self.disks = {D1: MemoryDisk(), D2: MemoryDisk()}
        options = StorageOptions(clock=SystemClock())
        self.owner = Owner()
        self.image = MetadataImage()
        self.inventory = Inventory([(D1, "/d1"), (D2, "/d2")])
        self.placement = Placement(
            hosting=Hosting(1),
            inventory=self.inventory,
            agents={d: MemoryDirectoryAgent(f"/d{n}", disk, options) for n, (d, disk) in enumerate(self.disks.items())},
            owner=self.owner,
            unique=lambda: "0" * 32,
            log=get_logger(),
        )
        self.image.replay(TopicRecord(name="t", topic_id=TOPIC))
        for number in range(partitions):
            self.image.replay(partition_record(number))

    def names(self, directory: Uuid) -> list[str]:
        return sorted(self.disks[directory].directories)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  the machine under test has no event for tests
                await asyncio.sleep(0.005)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(partitions=4)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(made.placement.run())
        yield made
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def test_rp_7_replicas_are_created_and_assigned(world: World) -> None:
    world.placement.publish(world.image)
    await world.until(lambda: len(world.owner.assigned) == 4)
    assert (world.names(D1), world.names(D2)) == (["t-0", "t-2"], ["t-1", "t-3"])
    assert not world.placement.busy


async def test_a_full_directory_sends_its_replicas_elsewhere(world: World) -> None:
    world.disks[D1].fill()
    world.placement.publish(world.image)
    await world.until(lambda: len(world.owner.assigned) == 4)
    assert world.names(D2) == ["t-0", "t-1", "t-2", "t-3"]
    assert world.owner.errors == []


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV, errno.ENOKEY, errno.EMLINK, errno.EOPNOTSUPP])
async def test_a_directory_that_cannot_make_a_replica_sends_it_elsewhere_and_is_no_dead_disk(
    world: World, number: int
) -> None:
    world.disks[D1].fail(number, ["create_replica"])
    world.placement.publish(world.image)
    await world.until(lambda: len(world.owner.assigned) == 4)
    assert world.names(D2) == ["t-0", "t-1", "t-2", "t-3"]
    assert world.owner.refused == []


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
async def test_an_agent_that_can_make_no_replica_anywhere_ends_with_one_line_unless_it_has_some(
    world: World, number: int
) -> None:
    for disk in world.disks.values():
        disk.fail(number, ["create_replica"])
    world.placement.publish(world.image)
    await world.until(lambda: bool(world.owner.refused))
    assert "\n" not in world.owner.refused[0]
    assert f"{errno.errorcode[number]} at create" in world.owner.refused[0]


async def test_an_agent_with_replicas_goes_on_where_no_more_can_be_made(world: World) -> None:
    world.placement.publish(world.image)
    await world.until(lambda: len(world.owner.assigned) == 4)
    for disk in world.disks.values():
        disk.fail(errno.EOPNOTSUPP, ["create_replica"])
    change = world.image.replay(partition_record(4))
    assert change is not None
    world.placement.follow([change])
    await world.until(lambda: bool(world.placement.unmade))
    await asyncio.sleep(0.1)
    assert world.owner.refused == []


async def test_an_error_is_told_to_the_health_monitor_and_only_its_verdict_moves_the_replicas(world: World) -> None:
    world.disks[D1].fail(errno.EIO, ["create_replica"])
    world.placement.publish(world.image)
    await world.until(lambda: len(world.owner.assigned) == 2 and len(world.owner.errors) == 2)
    assert set(world.owner.errors) == {errno.EIO}
    assert world.placement.busy
    world.placement.fail(D1)
    await world.until(lambda: len(world.owner.assigned) == 4)
    assert world.names(D2) == ["t-0", "t-1", "t-2", "t-3"]


async def test_a_hung_directory_delays_nobody_else(world: World) -> None:
    world.disks[D1].hang()
    world.placement.publish(world.image)
    await world.until(lambda: len(world.owner.assigned) == 2)
    assert world.names(D2) == ["t-1", "t-3"]
    world.disks[D1].heal()
    await world.until(lambda: not world.placement.busy)


async def test_replicas_that_lie_in_a_failed_directory_unassigned_are_named_to_be_assigned_to_it(world: World) -> None:
    world.placement.publish(world.image)
    await world.until(lambda: not world.placement.busy)
    assert sorted(world.placement.fail(D1)) == [TopicIdPartition(TOPIC, 0), TopicIdPartition(TOPIC, 2)]


async def test_a_topic_that_is_deleted_and_created_again_at_once_gets_fresh_directories(world: World) -> None:
    world.placement.publish(world.image)
    await world.until(lambda: not world.placement.busy)
    again = Uuid.of(3, 2)
    record = PartitionRecord(
        partition_id=0,
        topic_id=again,
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(D1,),
    )
    records = (RemoveTopicRecord(topic_id=TOPIC), TopicRecord(name="t", topic_id=again), record)
    world.placement.follow([change for r in records if (change := world.image.replay(r)) is not None])
    await world.until(
        lambda: (
            TopicIdPartition(again, 0) not in world.inventory.creating
            and world.inventory.locate(TopicIdPartition(again, 0)) is not None
        )
    )
    assert "t-0" in world.names(D1) and f"t-0.{'0' * 32}-delete" in world.names(D1)
    assert str(again).encode() in (world.disks[D1].directories["t-0"] or b"")
    assert len(world.owner.forgotten) == 4
