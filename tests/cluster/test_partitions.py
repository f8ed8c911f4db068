"""What a failure of a directory would move, and which replicas have none, as tables."""

import pytest

from kjbod.cluster.partitions import (
    Loss,
    Partition,
    Share,
    Trouble,
    Unplaced,
    loss_of,
    partitions_of,
    shares_of,
    trouble_of,
    unplaced_in,
)
from kjbod.ids import LOST, UNASSIGNED, Uuid
from kjbod.metadata.image import image_of
from kjbod.metadata.records import PartitionRecord, RegisterBrokerRecord, TopicRecord

D1, D2, GONE, TOPIC = Uuid.of(9, 1), Uuid.of(9, 2), Uuid.of(9, 3), Uuid.of(7, 7)
NOTHING = Loss()
MOVES = Loss(moves=True)
LEADERLESS = Loss(leaderless=True)
UNDER = Loss(under_min_isr=True)
MOVES_UNDER = Loss(moves=True, under_min_isr=True)


def of(leader: int, isr: str, replicas: str = "123", eligible: str = "", offline: str = "") -> Partition:
    """A partition; brokers have one digit."""
    told = (tuple(map(int, each)) for each in (replicas, isr, eligible, offline))
    return Partition(leader, *told)


@pytest.mark.parametrize(
    ("partition", "min_isr", "expected"),
    [
        pytest.param(of(1, "123"), 1, MOVES, id="a leader with others in sync goes to one of them"),
        pytest.param(of(1, "123"), 2, MOVES, id="two are left and two are needed"),
        pytest.param(of(1, "12"), 2, MOVES_UNDER, id="one is left and two are needed"),
        pytest.param(of(1, "1"), 1, LEADERLESS, id="the only copy in sync"),
        pytest.param(of(1, "1", replicas="1"), 1, LEADERLESS, id="the only copy"),
        pytest.param(of(1, "1"), 2, LEADERLESS, id="which is under min.insync.replicas already"),
        pytest.param(of(1, "1", eligible="2"), 2, MOVES, id="an eligible replica leads where nobody is in sync"),
        pytest.param(of(1, "1", eligible="2", offline="2"), 2, LEADERLESS, id="but not one that is offline"),
        pytest.param(of(1, "12", eligible="3", offline="2"), 1, LEADERLESS, id="nor where somebody is in sync"),
        pytest.param(of(1, "12", offline="2"), 1, LEADERLESS, id="the other one in sync is offline"),
        pytest.param(of(2, "123"), 2, NOTHING, id="a follower that is not missed"),
        pytest.param(of(2, "12"), 2, UNDER, id="a follower that is missed"),
        pytest.param(of(2, "12"), 3, NOTHING, id="under min.insync.replicas before and after"),
        pytest.param(of(2, "23"), 2, NOTHING, id="a follower that is not in sync"),
        pytest.param(of(2, "12", replicas="12"), 5, UNDER, id="no more are needed than there are replicas"),
        pytest.param(of(1, "1", replicas="1"), 5, LEADERLESS, id="nor of a single one"),
        pytest.param(of(-1, "1"), 1, NOTHING, id="nobody leads already"),
        pytest.param(of(-1, "2"), 1, NOTHING, id="nobody leads, and another one was last in sync"),
    ],
)
def test_what_the_failure_of_the_directory_of_broker_1_would_do(
    partition: Partition, min_isr: int, expected: Loss
) -> None:
    assert loss_of(partition, 1, min_isr) == expected


def test_what_is_in_trouble_already_is_counted_with_what_is_known_of_min_isr() -> None:
    partitions = {"a": {0: of(1, "12"), 1: of(-1, "3"), 2: of(2, "2")}, "b": {0: of(3, "3", replicas="3")}}
    assert trouble_of(partitions, {"a": 2, "b": 2}) == Trouble(4, leaderless=1, under_min_isr=1)
    assert trouble_of(partitions, {"b": 2}) == Trouble(4, leaderless=1, under_min_isr=None)
    assert trouble_of({}, {}) == Trouble(0, 0, 0)


def test_a_share_is_what_a_broker_has_and_what_nobody_else_has_in_sync() -> None:
    partitions = {"a": {0: of(1, "12"), 1: of(-1, "3", offline="3"), 2: of(2, "2", replicas="12")}}
    partitions["b"] = {0: of(1, "1", eligible="2", replicas="12")}
    assert shares_of(partitions) == {
        1: Share(4, leaders=2, offline=0, sole=1),
        2: Share(4, leaders=1, offline=0, sole=1),
        3: Share(2, leaders=0, offline=1, sole=1),
    }


def registered(broker: int, *directories: Uuid, fenced: bool = False) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=Uuid.of(1, broker),
        broker_epoch=1,
        log_dirs=directories,
        fenced=fenced,
        end_points=(),
        features=(),
    )


def placed(partition: int, *directories: Uuid, replicas: tuple[int, ...] = (1, 2)) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition, topic_id=TOPIC, replicas=replicas, isr=replicas, leader=1, directories=directories,
        leader_epoch=0, partition_epoch=0,
    )  # fmt: skip


def test_replicas_without_a_directory_are_told_by_broker() -> None:
    image = image_of(
        [
            *(registered(1, D1), registered(2, D2), TopicRecord(name="t", topic_id=TOPIC)),
            *(placed(0, D1, D2), placed(1, UNASSIGNED, D2), placed(2, LOST, D2), placed(3, GONE, D2)),
            placed(4, D1, GONE, replicas=(1, 9)),
        ]
    )
    assert unplaced_in(image) == {1: Unplaced(unassigned=1, lost=1, gone=(GONE,), in_gone=1)}
    assert unplaced_in(image, {"another"}) == {}


def test_partitions_of_the_metadata_know_which_replicas_are_offline() -> None:
    image = image_of(
        [
            *(registered(1, D1), registered(2, D2, fenced=True), TopicRecord(name="t", topic_id=TOPIC)),
            *(placed(0, D1, D2), placed(1, GONE, D2), placed(2, UNASSIGNED, D2), placed(3, D1, D2, replicas=(1, 9))),
        ]
    )
    found = partitions_of(image)
    assert {number: each.offline for number, each in found["t"].items()} == {0: (2,), 1: (1, 2), 2: (2,), 3: (9,)}
    assert partitions_of(image, {"another"}) == {}
