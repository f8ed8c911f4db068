"""What came and went leaves nothing: a controller that has lived long holds what there is, and not what there was."""

from collections import Counter

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.messages import DeleteTopicsRequest, UnregisterBrokerRequest
from kjbod_controller_stub.brokers import cluster, heartbeats
from kjbod_controller_stub.partitions import index
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import World, directories, directory
from tests.growth import entries

ROUNDS = 30


def directory_names(number: int) -> tuple[Uuid, Uuid]:
    return Uuid.of(10_000 + number, 1), Uuid.of(10_000 + number, 2)


def churn(world: World, number: int) -> None:
    """Brokers, directories and topics that were never there before come, fail, and go."""
    brokers = (100 + 2 * number, 101 + 2 * number)
    for broker in brokers:
        assert world.register(broker, directory_names(broker)).error_code == 0
        world.beat(broker)
    names = [f"topic.{number}.{each}" for each in range(3)]
    for name in names:
        world.create(name, brokers, brokers[::-1])
    for broker in brokers:
        world.assign_all(broker)
        world.beat(broker)
    world.beat(brokers[0], offline=directory_names(brokers[0])[:1])
    world.alter_isr(names[0], (world.partition(names[0]).leader,))
    # The same broker with new disks.
    world.tick(60_000)
    assert world.register(brokers[0], directory_names(50_000 + number), number=1).error_code == 0
    world.beat(brokers[0])
    world.beat(brokers[0], shut=True)
    world.ask(DeleteTopicsRequest(topic_names=tuple(names)), 5)
    for broker in brokers:
        assert world.ask(UnregisterBrokerRequest(broker_id=broker)).error_code == 0
    world.tick(60_000)


@pytest.mark.parametrize("rules", [KIP_858, KAFKA])
def test_topics_brokers_and_directories_that_are_gone_leave_nothing_in_memory(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "STEPS_MAX", 1)  # else it takes thousands of rounds until they are full
    world = World(rules=rules)
    world.join(1)
    world.create("stays", (1,), (1,))
    world.assign_all(1)
    held: list[Counter[str]] = []
    for number in range(ROUNDS):
        churn(world, number)
        held.append(entries(world.controller))
    grown = {path: (held[1][path], size) for path, size in held[-1].items() if size > held[1][path] + 8}
    assert not grown
    now, anew = world.controller.index, world.replayed().index
    key = (world.topic_id("stays"), 0)
    assert key in now.in_directory(1, directory(1, 0))
    for asked in (
        lambda one: one.in_directory(1, directory(1, 0)),
        PartitionIndex.leaderless,
        lambda one: one.in_elr(1),
    ):
        assert asked(now) == asked(anew)


def test_a_broker_that_reports_other_directories_each_time_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "ACCEPTED_MAX", 20)
    world = World()
    world.join(1)
    restarted = world.new_controller()  # from a snapshot, which does not tell which directories the broker once had
    restarted.recover_snapshot(SnapshotId(world.controller.next_offset, 1), list(world.controller.image.to_records()))
    restarted.activate(world.now_ms)
    world.controller = restarted
    for number in range(ROUNDS):
        answer = world.beat(1, offline=tuple(Uuid.of(70_000 + number, each) for each in range(10)))
        assert (answer.error_code, answer.is_fenced) == (0, False)
    contact = restarted.heartbeats.contact(1, world.broker(1).epoch)
    assert contact is not None and len(contact.accepted) == 20
    failed = world.beat(1, offline=(directory(1, 0), Uuid.of(80_000, 1)))
    assert (failed.error_code, world.broker(1).log_dirs) == (0, directories(1)[1:])


def test_a_broker_that_registers_other_directories_each_time_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "PAST_DIRECTORIES_MAX", 20)
    world = World()
    world.join(1)
    for number in range(ROUNDS):
        dirs = tuple(Uuid.of(70_000 + number, each) for each in range(3))
        assert world.register(1, dirs).error_code == 0
        assert len(world.controller.cluster.offline_directories(1)) < 20 + 6
