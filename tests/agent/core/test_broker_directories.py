"""Directories that are loaded or added while the broker runs, in virtual time, with a controller in memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.records import PartitionChangeRecord, RegisterBrokerRecord
from kjbod.wire.messages import AssignReplicasToDirsRequest, BrokerHeartbeatRequest, BrokerRegistrationRequest
from kjbod_agent.directories.additions import Added
from kjbod_host.directories.start_up_rules import Directory
from kjbod_host.storage.api import Replica, StorageOptions
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk
from tests.agent.core.test_broker import D1, D2, TOPIC, World
from tests.agent.core.test_directories import loaded

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
D3 = Uuid.of(2, 3)


class Host(World):
    """Whose second directory can be replaced; the controller's records come when the test says so."""

    async def __aenter__(self) -> "Host":
        await super().__aenter__()
        return self

    async def lose_d2(self) -> None:
        self.broker.directory_failed(D2, "error", "EIO at probe", self.clock.monotonic_ms())
        await self.until(lambda: D2 in self.broker.life.recorded)

    def adds(self, directory_id: Uuid) -> tuple[Added, "asyncio.Future[bool]"]:
        """In the place of ``/d2``."""
        self.disk = MemoryDisk(number=9)
        agent = MemoryDirectoryAgent("/d2", self.disk, StorageOptions(clock=self.clock))
        added = Added(
            directory=Directory("/d2", directory_id, loaded("/d2")),
            agent=agent,
            retired=() if directory_id == D2 else (D2,),
            unknown=False,
            log_dirs=(D1, directory_id),
        )
        return added, self.broker.directory_added(added)

    def record_registration(self, *log_dirs: Uuid) -> None:
        life = self.broker.life
        record = RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=life.identity.incarnation_id,
            broker_epoch=life.broker_epoch,
            end_points=(),
            features=(),
            log_dirs=log_dirs,
        )
        self.commit(record)

    def assigned_to(self, directory_id: Uuid) -> int:
        return sum(
            len(topic.partitions)
            for request in self.controller.of(AssignReplicasToDirsRequest)
            for directory in request.directories
            if directory.id_ == directory_id
            for topic in directory.topics
        )


def test_nothing_is_assigned_to_a_new_directory_before_the_metadata_show_that_the_controller_has_it(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as world:
            world.topic((D1, D1, D2, D2))
            await world.until(lambda: not world.broker.placement.busy)
            await world.lose_d2()
            added, taken = world.adds(D3)
            await world.until(lambda: world.broker.life.registered)
            await asyncio.sleep(5)
            (request,) = world.controller.of(BrokerRegistrationRequest)[1:]
            assert set(request.log_dirs) == {D1, D3}
            assert not taken.done() or taken.result() is True
            world.record_registration(D1, D3)
            assert await taken
            assert not world.disk.directories and world.assigned_to(D3) == 0
            world.broker.directory_taken(added, [])
            await world.until(lambda: world.broker.assignments.queued == 0 and world.assigned_to(D3) > 0)
            assert set(world.disk.directories) <= {"t-2", "t-3"}
            assert world.controller.of(BrokerHeartbeatRequest)[-1].offline_log_dirs == ()
            assert world.broker.failures.failed == () and world.broker.failures.usable == {D1, D3}

    virtual(main)


def test_a_controller_that_keeps_a_directory_offline_is_seen_in_the_metadata(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as world:
            world.topic((D1, D1, D2, D2))
            await world.lose_d2()
            added, taken = world.adds(D2)
            world.record_registration(D1)
            assert await asyncio.wait_for(taken, 60) is False
            world.broker.directory_refused(added, "kept offline")
            await world.until(lambda: world.controller.of(BrokerHeartbeatRequest)[-1].offline_log_dirs == (D2,))
            assert not world.disk.directories
            assert world.broker.failures.usable == {D1}

    virtual(main)


def test_a_new_directory_that_fails_before_the_controller_has_it_is_reported_and_gets_nothing(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as world:
            world.topic((D1, D1, D2, D2))
            await world.lose_d2()
            world.controller.silent = True
            added, taken = world.adds(D3)
            await asyncio.sleep(1)
            world.broker.directory_failed(D3, "error", "EIO at probe", clock.monotonic_ms())
            world.controller.silent = False
            await world.until(lambda: world.broker.life.registered)
            world.record_registration(D1, D3)
            await taken
            world.broker.directory_taken(added, [])
            await world.until(lambda: D3 in world.broker.life.recorded)
            await asyncio.sleep(5)
            assert not world.disk.directories
            assert world.controller.of(BrokerHeartbeatRequest)[-1].offline_log_dirs == (D3,)

    virtual(main)


def test_partitions_that_lost_their_last_leader_with_a_disk_are_assigned_again_when_it_is_back(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as world:
            world.topic((D1, D1, D2, D2))
            await world.lose_d2()
            for number in (2, 3):
                world.commit(PartitionChangeRecord(partition_id=number, topic_id=TOPIC, leader=-1))
            added, taken = world.adds(D2)
            world.record_registration(D1, D2)
            assert await taken
            before = world.assigned_to(D2)
            world.broker.directory_taken(added, [Replica(f"t-{n}", "t", n, TOPIC) for n in (2, 3)])
            await world.until(lambda: world.assigned_to(D2) == before + 2)
            assert not world.log.of("replica.created")[2:]

    virtual(main)


def test_a_failure_that_the_controller_has_not_recorded_keeps_its_disk_from_being_replaced(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with Host(clock) as world:
            assert world.broker.why_not_now(2, None) is None
            world.controller.silent = True
            world.broker.directory_failed(D2, "error", "EIO at probe", clock.monotonic_ms())
            said = world.broker.why_not_now(2, D2)
            assert said is not None and said.startswith("waits for the controller to record that its directory")
            world.controller.silent = False
            await world.until(lambda: D2 in world.broker.life.recorded)
            assert world.broker.why_not_now(2, D2) is None
            world.broker.stop()
            assert world.broker.why_not_now(2, D2) == "cannot be added: the agent stops"

    virtual(main)


@pytest.mark.parametrize("ending", ["loaded", "failed", "missing"])
def test_a_broker_is_fenced_until_its_last_directory_is_loaded_or_has_failed(virtual: Run, ending: str) -> None:
    async def main(clock: Any) -> None:
        world = Host(clock, unfenced=False)
        world.broker.placement.inventory.begin_directory(D2, "/d2")
        async with world:
            await asyncio.sleep(20)
            assert world.broker.life.registered and world.broker.life.fenced
            assert "/d2 is being loaded" in world.broker._status_text()
            if ending == "loaded":
                agent = world.broker.placement.agents[D2]
                world.broker.directory_loaded(Directory("/d2", D2, loaded("/d2")), agent, [])
            elif ending == "failed":
                world.broker.directory_failed(D2, "hung", "no answer", clock.monotonic_ms())
            else:
                world.broker.directory_missing("/d2", D2)
            await world.until(lambda: not world.broker.life.fenced)

    virtual(main)
