"""Stories that the machine of ``test_replicas_machine.py`` has found, told with the real placement."""

import asyncio
from dataclasses import dataclass, field

from kjbod.clock import SystemClock
from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord
from kjbod.runtime.logging import get_logger
from kjbod_agent.replicas.hosting import Hosting
from kjbod_agent.replicas.inventory import Inventory, Wanted
from kjbod_agent.replicas.placement import Placement
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import DirectoryError, StorageOptions
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk

D1 = Uuid.of(2, 1)
BEFORE, AFTER = Uuid.of(3, 1), Uuid.of(3, 2)


@dataclass
class Owner:
    """Wants to know nothing but what was made."""

    made: list[TopicIdPartition] = field(default_factory=list)

    def assign(self, partition: TopicIdPartition, directory_id: Uuid) -> None: ...

    def forget(self, partition: TopicIdPartition) -> None: ...

    def created(self, topic: str, partition: TopicIdPartition, directory_id: Uuid) -> None:
        self.made.append(partition)

    def resume_move(self, wanted: Wanted, directory_id: Uuid, future_name: str) -> None: ...

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None: ...

    def doubt(self, directory_id: Uuid, since_ms: int) -> str | None: ...

    def refuse(self, reason: str, *, config: bool = False) -> None: ...

    def settled(self) -> None: ...


def _records(topic_id: Uuid) -> tuple[TopicRecord, PartitionRecord]:
    partition = PartitionRecord(
        partition_id=0,
        topic_id=topic_id,
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(D1,),
    )
    return TopicRecord(name="t", topic_id=topic_id), partition


async def test_a_topic_created_again_while_its_first_replica_is_being_made_gets_one_too() -> None:
    """In the only directory its name was taken by the creation under way, and nobody looked again."""
    disk, owner, image = MemoryDisk(), Owner(), MetadataImage()
    placement = Placement(
        hosting=Hosting(1),
        inventory=Inventory([(D1, "/d1")]),
        agents={D1: MemoryDirectoryAgent("/d1", disk, StorageOptions(clock=SystemClock()))},
        owner=owner,
        unique=iter(f"{number:032x}" for number in range(100)).__next__,
        log=get_logger(),
    )
    for record in _records(BEFORE):
        image.replay(record)
    disk.hang()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(placement.run())
        placement.publish(image)
        while not placement.inventory.creating:  # noqa: ASYNC110  the placement has no event for tests
            await asyncio.sleep(0.005)
        changes = [image.replay(record) for record in (RemoveTopicRecord(topic_id=BEFORE), *_records(AFTER))]
        placement.follow([change for change in changes if change is not None])
        await asyncio.sleep(0.05)
        disk.heal()
        while TopicIdPartition(AFTER, 0) not in owner.made:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.005)
        running.cancel()
    assert str(AFTER).encode() in (disk.directories["t-0"] or b"")
