"""A broker with several directories while some of its replicas have none that is known (KIP-858).

UNASSIGNED is a replica that no broker has placed yet; MIGRATING one from before 3.7-IV2, when directories were not
recorded. Both keep a starting broker fenced; neither for ever.
"""

from typing import Any

import pytest

from kjbod.ids import MIGRATING, UNASSIGNED
from kjbod.metadata import versions
from kjbod.metadata.records import NO_LEADER, FeatureLevelRecord
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import AlterPartitionResponse
from kjbod_controller_stub.context import Settings
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.results import Result
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import World, directory

TIMEOUT_MS = Settings(node_id=0, cluster_id="").assignment_timeout_ms
HEARTBEAT_MS = 2_000


def upgraded(rules: Rules = KIP_858) -> World:
    """Broker 1 had one directory at 3.7-IV1, and the only replica of two partitions; now it has two, at the latest."""
    world = World(rules, metadata_version=versions.DIRECTORY_ASSIGNMENT - 1)
    world.join(1, 1)
    world.create("t", (1,), (1,))
    level = FeatureLevelRecord(name=versions.METADATA_VERSION, feature_level=versions.LATEST)
    world.write(Result(records=(level,)))
    world.now_ms += 9_001
    assert world.expire()
    assert world.register(1, 2, number=1).error_code == 0
    assert world.partition("t").directories == (MIGRATING,)
    return world


def unplaced() -> World:
    """Broker 1 of three directories starts again; it is the last one in sync of two partitions, UNASSIGNED both."""
    world = World(with_elr=False)
    world.join(1)
    world.join(2)
    world.create("t", (1, 2), (1, 2))
    for number in (0, 1):
        world.alter_isr("t", (1,), number=number)
    go(world, 1)
    world.register(1, number=1)
    assert [world.partition("t", number).leader for number in (0, 1)] == [NO_LEADER] * 2
    return world


def go(world: World, broker: int) -> None:
    """The session of a broker ends; the other one is heard."""
    world.now_ms += 9_001
    world.beat(3 - broker)
    assert world.expire()


def wait(world: World, ms: int, *, fence: bool = False) -> bool:
    """Heartbeats for so long; whether the broker is fenced at the end."""
    fenced = world.beat(1, fence=fence).is_fenced
    for _ in range(0, ms, HEARTBEAT_MS):
        world.now_ms += HEARTBEAT_MS
        world.beat(2) if 2 in world.controller.image.brokers else None
        fenced = world.beat(1, fence=fence).is_fenced
    return fenced


def test_a_broker_that_got_a_second_directory_stays_fenced_until_its_old_replicas_are_placed() -> None:
    world = upgraded()
    assert world.beat(1).is_fenced
    assert not world.last
    world.assign(1, (directory(1, 0), world.topic_id("t"), (0,)))
    assert world.beat(1).is_fenced
    world.assign(1, (directory(1, 1), world.topic_id("t"), (1,)))
    assert not world.beat(1).is_fenced
    assert [world.partition("t", number).leader for number in (0, 1)] == [1, 1]


def test_shipped_rules_unfence_a_broker_whose_old_replicas_are_migrating() -> None:
    world = upgraded(KAFKA)
    assert not world.beat(1).is_fenced
    assert [world.partition("t", number).leader for number in (0, 1)] == [1, 1]


def test_a_broker_that_serves_while_the_cluster_is_upgraded_is_not_fenced_nor_held_when_it_was_away() -> None:
    world = World(metadata_version=versions.DIRECTORY_ASSIGNMENT - 1)
    world.join(1)
    world.create("t", (1,))
    level = FeatureLevelRecord(name=versions.METADATA_VERSION, feature_level=versions.LATEST)
    world.write(Result(records=(level,)))
    world.register(1)  # the same incarnation, now with its directories
    assert (world.broker(1).fenced, world.partition("t").directories) == (False, (MIGRATING,))
    world.now_ms += 9_001
    assert world.expire()
    assert not world.beat(1).is_fenced
    assert world.partition("t").leader == 1


@pytest.mark.parametrize("fence", [False, True], ids=["asks at once", "waits itself first"])
def test_one_replica_that_cannot_be_made_does_not_keep_a_broker_fenced_for_ever(fence: bool) -> None:
    world = unplaced()
    world.assign(1, (directory(1, 0), world.topic_id("t"), (0,)))
    assert wait(world, TIMEOUT_MS - HEARTBEAT_MS, fence=fence)
    world.now_ms += HEARTBEAT_MS
    assert not world.beat(1).is_fenced
    assert [world.partition("t", number).leader for number in (0, 1)] == [1, NO_LEADER]


def test_a_broker_that_gets_on_is_waited_for() -> None:
    world = unplaced()
    assert wait(world, TIMEOUT_MS - HEARTBEAT_MS)
    world.assign(1, (directory(1, 0), world.topic_id("t"), (0,)))
    assert wait(world, TIMEOUT_MS - HEARTBEAT_MS)
    world.assign(1, (directory(1, 0), world.topic_id("t"), (1,)))
    assert not world.beat(1).is_fenced


def test_it_is_said_once_what_a_broker_is_held_for_and_what_it_was_unfenced_without() -> None:
    world = unplaced()
    said: list[tuple[str, bool, Any]] = []
    handle = world.controller.handle

    def overheard(*args: object) -> Result:
        result = handle(*args)  # type: ignore[arg-type]
        said.extend((note.event, note.warning, note.fields) for note in result.notes if note.warning)
        return result

    world.controller.handle = overheard  # type: ignore[method-assign, assignment]
    wait(world, TIMEOUT_MS)
    assert [event for event, _, _ in said] == ["broker.held", "broker.unfenced.incomplete"]
    assert all((fields["replicas_without_directory"], fields["first"]) == (2, "t-0") for _, _, fields in said)


def incomplete() -> World:
    """Broker 1 was unfenced without waiting for its replica of ``t-0`` and ``t-1``, which nobody leads."""
    world = unplaced()
    assert not wait(world, TIMEOUT_MS)
    return world


@pytest.mark.parametrize("again", ["same controller", "after a replay", "after a snapshot"])
def test_a_replica_without_a_known_directory_is_not_elected_when_another_broker_comes(again: str) -> None:
    world = incomplete()
    if again == "after a replay":
        world.controller = world.replayed()
        world.controller.activate(world.now_ms)
    elif again == "after a snapshot":
        world.controller = from_snapshot(world)
    world.controller.heartbeats.drop(2)
    world.register(2, number=1)
    world.assign_all(2)
    assert not world.beat(2).is_fenced
    assert world.partition("t").leader == NO_LEADER
    world.assign(1, (directory(1, 2), world.topic_id("t"), (0,)))
    assert world.partition("t").leader == 1, "as soon as it is known where it is"


def from_snapshot(world: World) -> Controller:
    """A controller that begins with a snapshot of what the other one knows."""
    fresh = world.new_controller()
    fresh.recover_snapshot(SnapshotId(world.controller.next_offset, 1), world.controller.image.to_records())
    fresh.activate(world.now_ms)
    return fresh


def test_a_replica_without_a_known_directory_does_not_join_an_isr() -> None:
    world = incomplete()
    world.create("u", (2, 1))
    world.alter_isr("u", (2,))
    answer: AlterPartitionResponse = world.alter_isr("u", (2, 1))
    assert answer.topics[0].partitions[0].error_code == ErrorCode.INELIGIBLE_REPLICA
    world.assign(1, (directory(1, 0), world.topic_id("u"), (0,)))
    assert world.alter_isr("u", (2, 1)).topics[0].partitions[0].error_code == 0


def test_a_broker_that_registers_anew_is_waited_for_once_more() -> None:
    world = incomplete()
    go(world, 1)
    world.register(1, number=2)
    assert world.beat(1).is_fenced
    assert world.partition("t").directories == (UNASSIGNED, UNASSIGNED)
