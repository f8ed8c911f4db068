"""A broker that moves replicas, on disks in memory, with a controller that answers after a while; in virtual time.

:class:`Disks` outlive the process; a :class:`World` is one process on them. Every request to a disk takes
:data:`REQUEST_MS`, so each state of a move lasts long enough to be seen.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import MetadataImage, changes_between
from kjbod.metadata.records import PartitionChangeRecord, PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from kjbod_agent.moves.machine import Room, State
from kjbod_agent.moves.mover import Mover, MoveView
from kjbod_agent.replicas.hosting import Hosting
from kjbod_agent.replicas.inventory import Inventory, Wanted
from kjbod_agent.replicas.placement import Placement
from kjbod_host.health.state import DirectoryHealth
from kjbod_host.partitions import TopicIdPartition
from kjbod_host.storage.api import DirectoryError, StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from kjbod_host.storage.worker import parse_replica, topic_id_of
from tests.agent.core.recording import Log

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
D1, D2, D3, D4 = (Uuid.of(2, number) for number in range(1, 5))
PATHS = {"/d1": D1, "/d2": D2, "/d3": D3, "/d4": D4}
TOPIC = Uuid.of(3, 1)
REQUEST_MS = 4.0
ANSWER_MS = 60
SEGMENT = "00000000000000000000.log"


def key(partition: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC, partition)


class Disks:
    """Disks, and what the controller has recorded: the directory of each replica of topic ``t``."""

    def __init__(self, assigned: dict[int, Uuid] | None = None) -> None:
        self.disks = {d: MemoryDisk(number=n) for n, d in enumerate(PATHS.values(), start=1)}
        self.assigned = {0: D1} if assigned is None else assigned
        self.deleted = False
        self.worlds = 0
        """How many there have been on these disks, each with unique names of its own."""
        for partition, directory in self.assigned.items():
            self.make(directory, f"t-{partition}", f"{partition}:".encode() * 40)

    def make(self, directory: Uuid, name: str, content: bytes) -> None:
        disk = self.disks[directory]
        disk.directories[name] = f"version: 0\ntopic_id: {TOPIC}".encode()
        disk.put(name, SEGMENT, content)
        disk.put(name, "leader-epoch-checkpoint", b"0\n0\n")

    def names(self, directory: Uuid) -> list[str]:
        return sorted(self.disks[directory].directories)

    def copies(self, partition: int, suffix: str = "") -> list[tuple[Uuid, str]]:
        """Directory and name of every copy of a replica with this suffix, on all disks."""
        found = []
        for directory, disk in self.disks.items():
            for name, content in disk.directories.items():
                ours = content is not None and topic_id_of(content) == str(TOPIC)
                if ours and (parse_replica(name) or ("", -1, ""))[1:] == (partition, suffix):
                    found.append((directory, name))
        return found

    def content(self, directory: Uuid, name: str) -> dict[str, bytes]:
        return dict(self.disks[directory].files.get(name, {}))

    def image(self) -> MetadataImage:
        image = MetadataImage()
        if not self.deleted:
            image.replay(TopicRecord(name="t", topic_id=TOPIC))
            for partition, directory in self.assigned.items():
                image.replay(
                    PartitionRecord(
                        partition_id=partition,
                        topic_id=TOPIC,
                        replicas=(1,),
                        isr=(1,),
                        leader=1,
                        leader_epoch=0,
                        partition_epoch=0,
                        directories=(directory,),
                    )
                )
        return image


class World:
    """Broker 1: its placement, its mover and its controller. ``answers`` False: the controller says nothing."""

    def __init__(self, disks: Disks, clock: Any, **options: int) -> None:
        self.store = disks
        self.log = Log()
        self.clock = clock
        self.answers = True
        self.records = True
        self.cordons: set[Uuid] = set()
        self.errors: list[tuple[Uuid, int]] = []
        self.doubts: dict[Uuid, DirectoryHealth] = {}
        self.refused: list[str] = []
        self.asked: list[tuple[TopicIdPartition, Uuid]] = []
        self._newest: dict[TopicIdPartition, Uuid] = {}
        disks.worlds += 1
        self._unique = (f"{number:032x}" for number in itertools.count(disks.worlds << 20))
        for disk in disks.disks.values():
            disk.heal()
            disk.delay_ms = REQUEST_MS
        storage = self.storage = MemoryStorageAgent(
            StorageOptions(clock=clock), {p: disks.disks[d] for p, d in PATHS.items()}
        )
        self.image = disks.image()
        self.inventory = Inventory((d, p) for p, d in PATHS.items())
        for directory, disk in disks.disks.items():
            for name, content in disk.directories.items():
                _, partition, suffix = parse_replica(name) or ("", -1, "")
                topic_id = None if content is None else topic_id_of(content)
                found = None if topic_id is None else Uuid.parse(topic_id)
                self.inventory.add(directory, name, partition, found, suffix)  # type: ignore[arg-type]
        self.placement = Placement(
            hosting=Hosting(1),
            inventory=self.inventory,
            agents={d: storage.directory(p) for p, d in PATHS.items()},
            owner=self,
            unique=lambda: next(self._unique),
            log=self.log,
            clock=clock,
        )
        self.mover = Mover(
            placement=self.placement,
            storage=storage,
            owner=self,
            directories=lambda: dict(PATHS),
            unique=lambda: next(self._unique),
            clock=clock,
            log=self.log,
            concurrency=options.get("concurrency", 1),
            bytes_per_second=options.get("bytes_per_second", (1 << 63) - 1),
            total_bytes_per_second=options.get("total_bytes_per_second", (1 << 63) - 1),
        )
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "World":
        loop = asyncio.get_running_loop()
        self._running = [loop.create_task(self.placement.run()), loop.create_task(self.mover.run())]
        self.placement.publish(self.image)
        await asyncio.sleep(0.001)
        return self

    async def __aexit__(self, *_: object) -> None:
        """What a SIGKILL leaves: nothing is undone, nothing is finished."""
        for task in self._running:
            task.cancel()
        for result in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def kill(self, *, late: bool) -> None:
        """SIGKILL: no answer is heard any more. ``late``: the requests on their way are carried out all the same, after
        the next process has looked."""
        if late:  # the controller records what it was told, and nobody hears its answer
            self.store.assigned |= {partition.partition: d for partition, d in self._newest.items()}
        self._newest.clear()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if not late:
            await self.storage.close()

    async def carries_out(self, number: int) -> bool:
        """Until the disks have carried out so many more requests; False: there are not so many to come."""

        def carried_out() -> int:
            return sum(disk.requests for disk in self.store.disks.values())

        until, idle_ms = carried_out() + number, self.clock.monotonic_ms() + 2_000
        await self.until(
            lambda: carried_out() >= until or (not self.mover.moves and self.clock.monotonic_ms() > idle_ms)
        )
        return carried_out() >= until

    # ---- what users and disks do

    def alter(self, partition: int, path: str) -> int:
        return int(self.mover.alter("t", partition, path))

    def fail(self, directory: Uuid, number: int = 5) -> None:
        """A disk dies, and the health monitor knows at once; as ``Broker`` tells it."""
        self.store.disks[directory].fail(number)
        self.mover.directory_failed(directory)
        for partition in self.placement.fail(directory):
            self.assign(partition, directory)

    def delete(self) -> None:
        self.store.deleted = True
        self.replay(RemoveTopicRecord(topic_id=TOPIC))

    def reassign(self) -> None:
        """The replica goes to broker 2."""
        self.store.deleted = True
        elsewhere = Uuid.of(9, 9)
        self.replay(
            PartitionChangeRecord(
                partition_id=0, topic_id=TOPIC, replicas=(2,), isr=(2,), leader=2, directories=(elsewhere,)
            )
        )

    def replay(self, record: Record) -> None:
        change = self.image.replay(record)
        if change is not None:
            self.mover.follow(self.placement.follow([change]))

    def lose(self) -> None:
        """The metadata's history is lost: the topic is missing in what there is instead."""
        self.store.deleted = True
        old, self.image = self.image, MetadataImage()
        updates = self.placement.follow(list(changes_between(old, self.image)), self.image, proven=False)
        self.mover.follow(updates, proven=False)

    @property
    def view(self) -> MoveView:
        (only,) = self.mover.moves
        return only

    async def reach(self, state: State, partition: int = 0) -> None:
        await self.until(lambda: any(m.state is state and m.partition.partition == partition for m in self.mover.moves))

    async def rest(self) -> None:
        """Until nothing moves and nobody waits for the controller."""
        await self.until(lambda: not self.mover.moves and not self._newest)
        await asyncio.sleep(1)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110  virtual time
                await asyncio.sleep(0.001)

    # ---- what the parts ask of the agent

    def assign(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        self.asked.append((partition, directory_id))
        self._newest[partition] = directory_id
        asyncio.get_running_loop().call_later(ANSWER_MS / 1000, self._answer, partition, directory_id)

    def assign_move(self, partition: TopicIdPartition, directory_id: Uuid) -> bool:
        if not self.records:
            return False
        self.assign(partition, directory_id)
        return True

    def _answer(self, partition: TopicIdPartition, directory_id: Uuid) -> None:
        """The controller records it, and the record comes back; an answer that is overtaken is not heard."""
        if not self.answers or self.store.deleted:
            self._newest.pop(partition, None)
            return
        if self._newest.get(partition) != directory_id:
            return
        del self._newest[partition]
        self.store.assigned[partition.partition] = directory_id
        change = PartitionChangeRecord(
            partition_id=partition.partition, topic_id=partition.topic_id, directories=(directory_id,)
        )
        self.replay(change)
        self.mover.acknowledged(partition, directory_id)

    def forget(self, partition: TopicIdPartition) -> None:
        self._newest.pop(partition, None)

    def created(self, topic: str, partition: TopicIdPartition, directory_id: Uuid) -> None:
        pass

    def resume_move(self, wanted: Wanted, directory_id: Uuid, future_name: str) -> None:
        self.mover.resume(wanted, directory_id, future_name)

    def work_failed(self, directory_id: Uuid, error: DirectoryError) -> None:
        self.errors.append((directory_id, error.errno))

    def doubt(self, directory_id: Uuid, since_ms: int) -> str | None:
        return self.doubts.get(directory_id, DirectoryHealth()).doubt(since_ms)

    def find_partition(self, topic: str, partition: int) -> TopicIdPartition | None:
        topic_id = self.image.topic_ids.get(topic)
        if topic_id is None or self.image.partition(topic_id, partition) is None:
            return None
        return TopicIdPartition(topic_id, partition)

    def cordoned(self) -> set[Uuid]:
        return self.cordons

    def room(self, directory_id: Uuid) -> Room | None:
        disk = self.store.disks[directory_id]
        return Room(file_system=str(directory_id), total_bytes=disk.total_bytes, usable_bytes=disk.usable_bytes)

    def refuse(self, reason: str, *, config: bool = False) -> None:
        self.refused.append(reason)

    def settled(self) -> None:
        pass


__all__ = ["ANSWER_MS", "D1", "D2", "D3", "D4", "TOPIC", "UNASSIGNED", "Disks", "Run", "World", "key"]
