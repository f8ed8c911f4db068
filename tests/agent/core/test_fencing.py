"""A broker with several directories stays fenced until its replicas are assigned, says how far that is, and does not
wait for ever: the broker with its machines, a controller in memory, virtual time."""

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from kjbod.runtime import systemd
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
)
from kjbod_host.partitions import TopicIdPartition
from tests.agent.core.recording import answer
from tests.agent.core.test_broker import D1, LEADER, TOPIC, World

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each text that the service manager was given, in order."""
    texts: list[str] = []

    def take(text: str) -> bool:
        texts.append(text)
        return True

    monkeypatch.setattr(systemd, "notify_status", take)
    monkeypatch.setattr(systemd, "notify_ready", take)
    return texts


def refuse(world: World, refused: set[int]) -> None:
    """Let the controller refuse these partitions for as long as they are in the set."""

    def mirrored(request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        asked = [(t.topic_id, p.partition_index) for d in request.directories for t in d.topics for p in t.partitions]
        codes = {TopicIdPartition(*one): ErrorCode.UNKNOWN_SERVER_ERROR for one in asked if one[1] in refused}
        return answer(request, codes)

    world.controller._assigned = mirrored  # type: ignore[method-assign]


def asked_to_be_unfenced(world: World) -> bool:
    return any(not beat.want_fence for beat in world.controller.of(BrokerHeartbeatRequest))


def test_a_broker_with_several_directories_is_fenced_until_all_is_assigned(virtual: Run, status: list[str]) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        world.topic((UNASSIGNED,) * 5_000)
        async with world:
            await world.until(lambda: asked_to_be_unfenced(world))
            requests = world.controller.of(AssignReplicasToDirsRequest)
            sizes = [sum(len(t.partitions) for d in r.directories for t in d.topics) for r in requests]
            assert sum(sizes) == 5_000 and max(sizes) <= 2_250
            first = next(n for n, r in enumerate(world.controller.requests) if getattr(r, "want_fence", None) is False)
            assert all(world.controller.requests.index(request) < first for request in requests)
            await world.until(lambda: not world.broker.life.fenced)
        assert any("assigning " in text and " of 5,000" in text for text in status)
        assert any("replicas to create" in text for text in status)
        assert not any("assigning" in text for text in status[-1:])

    virtual(main)


def test_an_assignment_that_is_refused_is_named_and_the_timeout_decides(virtual: Run, status: list[str]) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        refused = {3}
        refuse(world, refused)
        world.topic()
        async with world:
            await world.until(lambda: world.broker.assignments.queued == 1)
            await asyncio.sleep(100)
            assert not asked_to_be_unfenced(world)
            assert 1 <= len(world.log.of("assignments.refused")) <= 2, "not a line for each attempt"
            stuck = world.log.of("assignments.stuck")
            assert 1 <= len(stuck) <= 2, "a line a minute"
            assert (stuck[0]["replica"], stuck[0]["error"]) == ("t-3", "UNKNOWN_SERVER_ERROR")
            assert stuck[0]["path"] in ("/d1", "/d2") and stuck[0]["since"].startswith("1970-01-01T00:00:00")
            assert any("t-3 in /d" in text and "UNKNOWN_SERVER_ERROR" in text for text in status)
            assert any("assigning 3 of 4" in text for text in status)
            assert not world.log.of("assignments.overdue")

            await world.until(lambda: not world.broker.life.fenced)
            assert 120 <= clock.time() <= 125
            (overdue,) = world.log.of("assignments.overdue")
            assert (overdue["count"], overdue["replica"], overdue["timeout_ms"]) == (1, "t-3", 120_000)
            assert "t-3 in /d" in status[-1], "unfenced, and still not as it should be"

            refused.clear()
            await world.until(lambda: world.broker.assignments.queued == 0)
            await asyncio.sleep(2)
            assert "t-3" not in status[-1]

    virtual(main)


def test_progress_is_in_the_log_while_a_slow_controller_takes_its_time(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        refuse(world, set(range(2_000, 3_000)))
        world.topic((UNASSIGNED,) * 3_000)
        async with world:
            await world.until(lambda: world.broker.assignments.queued == 1_000)
            for number in range(2_000):
                directory = world.broker.placement.inventory.locate(TopicIdPartition(TOPIC, number))
                assert directory is not None
                world.commit(PartitionChangeRecord(partition_id=number, topic_id=TOPIC, directories=(directory,)))
            await asyncio.sleep(60)
            lines = world.log.of("agent.fenced.waiting")
            assert 8 <= len(lines) <= 12, "each five seconds"
            assert (lines[-1]["assigned"], lines[-1]["to_assign"]) == (2_000, 3_000)
            assert lines[-1]["text"] == "assigning 2,000 of 3,000"

    virtual(main)


def test_what_else_a_broker_waits_for_is_said_too(virtual: Run, status: list[str]) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        for disk in world.disks.values():
            disk.hang()
        world.topic((UNASSIGNED,) * 1_200)
        async with world:
            await asyncio.sleep(12)
            assert world.log.of("agent.fenced.waiting")[0]["text"] == "1,200 replicas to create"
            assert any("1,200 replicas to create" in text for text in status)
            assert not asked_to_be_unfenced(world)
            for disk in world.disks.values():
                disk.heal()
            await world.until(lambda: not world.broker.life.fenced)

    virtual(main)


def test_a_controller_that_was_away_longer_than_the_timeout_still_gets_the_assignments_first(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        refuse(world, {0, 1, 2, 3})
        world.topic()
        async with world:
            await world.until(lambda: world.broker.assignments.queued == 4)
            world.controller.gone = True
            world.broker.on_leader(None)
            await asyncio.sleep(600)
            refuse(world, set())
            world.controller.gone = False
            world.broker.on_leader(LEADER)
            await world.until(lambda: not world.broker.life.fenced)
            assert world.broker.assignments.queued == 0
            assert not world.log.of("assignments.overdue")

    virtual(main)


def test_a_broker_with_one_directory_does_not_wait_for_assignments(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        world.broker.fencing.multiple = False
        refuse(world, {0, 1, 2, 3})
        world.topic()
        async with world:
            await world.until(lambda: not world.broker.life.fenced)
            assert world.broker.assignments.queued == 4
            assert clock.time() < 10

    virtual(main)


def test_a_newcomer_after_a_reassignment_is_assigned_at_once(virtual: Run) -> None:
    """Shipped Kafka leaves it unassigned until the broker restarts (kafka-jbod 11, 22)."""

    async def main(clock: Any) -> None:
        async with World(clock) as world:
            partition = PartitionRecord(
                partition_id=0,
                topic_id=TOPIC,
                replicas=(2,),
                isr=(2,),
                leader=2,
                leader_epoch=0,
                partition_epoch=0,
                directories=(Uuid.of(9, 9),),
            )
            world.commit(TopicRecord(name="t", topic_id=TOPIC), partition)
            await asyncio.sleep(1)
            assert not world.controller.of(AssignReplicasToDirsRequest)
            world.commit(
                PartitionChangeRecord(
                    partition_id=0,
                    topic_id=TOPIC,
                    replicas=(2, 1),
                    adding_replicas=(1,),
                    directories=(Uuid.of(9, 9), UNASSIGNED),
                )
            )
            await asyncio.sleep(0.3)
            (request,) = world.controller.of(AssignReplicasToDirsRequest)
            assert request.directories[0].id_ == world.broker.placement.inventory.locate(TopicIdPartition(TOPIC, 0))

    virtual(main)


def test_what_cannot_be_made_is_waited_for_named_and_then_not_waited_for_any_longer(
    virtual: Run, status: list[str]
) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        for disk in world.disks.values():
            disk.fill()
        world.topic()
        async with world:
            fencing = world.broker.fencing
            await world.until(lambda: bool(fencing.unmade_words()))
            await asyncio.sleep(100)
            assert not asked_to_be_unfenced(world), "KIP-858: until all partitions are assigned"
            assert (world.broker.assignments.queued, fencing.unrecorded) == (0, 4)
            assert any("t-0 and 3 more cannot be made since 1970-01-01T00:00:0" in text for text in status)
            assert "ENOSPC" in status[-1]
            (unmade, *again) = world.log.of("replicas.unmade")
            assert (unmade["count"], unmade["replica"], len(again)) == (4, "t-0", 1)
            failed = Counter(line["path"] for line in world.log.of("replica.create.failed"))
            assert failed == {"/d0": 2, "/d1": 2}, "a line a minute for each directory, not one for each attempt"

            await world.until(lambda: not world.broker.life.fenced)
            assert 120 <= clock.time() <= 125
            (said,) = world.log.of("replicas.without.directory")
            assert (said["count"], said["replica"], said["timeout_ms"]) == (4, "t-0", 120_000)
            assert fencing.unrecorded == 4

            for disk in world.disks.values():
                disk.usable_bytes = 1 << 20
            await world.until(lambda: fencing.unrecorded == 0)
            await asyncio.sleep(2)
            assert "cannot be made" not in status[-1]

    virtual(main)


def test_a_creation_that_fails_on_and_on_keeps_nobody_fenced_for_ever_either(virtual: Run) -> None:
    """Another error than that of a full disk, while the health monitor takes the directory for well."""

    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        for disk in world.disks.values():
            disk.fail(errno.EACCES, ["create_replica"])
        world.topic()
        async with world:
            await world.until(lambda: not world.broker.life.fenced)
            assert 120 <= clock.time() <= 200
            assert world.log.of("replicas.without.directory")[0]["count"] == 4

    virtual(main)


def test_the_gauge_counts_what_the_metadata_do_not_place_and_nothing_twice(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        world = World(clock, unfenced=False)
        refused = {3}
        refuse(world, refused)
        world.topic((UNASSIGNED, MIGRATING, D1, UNASSIGNED))
        async with world:
            await world.until(lambda: world.broker.assignments.queued == 1)
            assert world.broker.fencing.unrecorded == 1
            refused.clear()
            await world.until(lambda: world.broker.fencing.unrecorded == 0)
            world.record_assignments()
            assert world.broker.fencing.unrecorded == 0

    virtual(main)
