"""PartitionChangeBuilder: rows CT-18 to CT-21."""

from typing import Any

import pytest

from kjbod.ids import LOST, UNASSIGNED, Uuid
from kjbod.metadata.image import RECOVERING, PartitionRegistration
from kjbod.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord
from kjbod_controller_stub.elections import Election, PartitionChangeBuilder

TOPIC = Uuid.of(9, 9)
D = {number: Uuid.of(70, number) for number in range(1, 7)}


def partition(**fields: Any) -> PartitionRegistration:
    base: dict[str, Any] = {
        "replicas": (2, 1, 3),
        "directories": (D[2], D[1], D[3]),
        "isr": (2, 1, 3),
        "leader": 1,
        "leader_epoch": 50,
        "partition_epoch": 1,
    }
    return PartitionRegistration(**(base | fields))


def build(
    what: PartitionRegistration, *, online: set[int] | None = None, **fields: Any
) -> PartitionChangeRecord | None:
    alive = {1, 2, 3, 4, 5} if online is None else online
    return PartitionChangeBuilder(
        key=(TOPIC, 0),
        partition=what,
        acceptable=lambda broker: broker in alive,
        default_dir=lambda broker: UNASSIGNED,
        **fields,
    ).build()


def test_ct18_reassigned_replicas_keep_their_directories() -> None:
    record = build(partition(leader=1), target_replicas=(3, 1, 5, 4), directories={5: D[5]}, target_isr=(1, 3))
    assert record is not None
    assert record.replicas == (3, 1, 5, 4)
    assert record.directories == (D[3], D[1], D[5], UNASSIGNED)
    assert record.leader == 1  # a replica was removed: the leader epoch goes up


def test_ct19_updating_directories_changes_nothing_else() -> None:
    record = build(partition(), directories={3: D[4], 1: LOST})
    assert record == PartitionChangeRecord(topic_id=TOPIC, partition_id=0, directories=(D[2], LOST, D[4]))
    assert build(partition(), directories={3: D[3]}) is None


@pytest.mark.parametrize(
    ("fields", "online", "election", "leader"),
    [
        ({"leader": 1}, {1, 2, 3}, Election.ONLINE, NO_LEADER_CHANGE),
        ({"leader": 1}, {1, 2, 3}, Election.PREFERRED, 2),
        ({"leader": 1}, {1, 3}, Election.PREFERRED, NO_LEADER_CHANGE),
        ({"leader": 1}, {2, 3}, Election.ONLINE, 2),
        ({"leader": 1}, {3}, Election.ONLINE, 3),
        ({"leader": -1}, {1, 3}, Election.ONLINE, 1),
        ({"leader": 1, "isr": (1, 2)}, {3}, Election.ONLINE, -1),
        ({"leader": 1, "isr": (1, 2)}, {3}, Election.UNCLEAN, 3),
    ],
    ids=str,
)
def test_ct20_elections(fields: dict[str, Any], online: set[int], election: Election, leader: int) -> None:
    record = build(partition(**fields), online=online, election=election)
    assert (NO_LEADER_CHANGE if record is None else record.leader) == leader


def test_ct20_unclean_election_makes_the_winner_the_whole_isr_and_recovering() -> None:
    record = build(partition(isr=(1,)), online={3}, election=Election.UNCLEAN)
    assert record is not None
    assert (record.leader, record.isr, record.leader_recovery_state) == (3, (3,), RECOVERING)


def test_ct20_the_last_member_stays_in_the_isr_without_leading() -> None:
    record = build(partition(isr=(1,)), online={2, 3}, target_isr=())
    assert record is not None
    assert (record.leader, record.isr) == (-1, None)


@pytest.mark.parametrize(("level", "leader"), [(11, 1), (12, NO_LEADER_CHANGE)])
def test_ct20_a_shrinking_isr_raises_the_leader_epoch_below_3_6(level: int, leader: int) -> None:
    record = build(partition(), target_isr=(1, 2), metadata_version=level)
    assert record is not None
    assert record.leader == leader


def test_ct20_a_reassignment_is_complete_when_all_targets_are_in_sync() -> None:
    moving = partition(
        replicas=(3, 4, 1), directories=(D[3], D[4], D[1]), isr=(1, 3), adding_replicas=(3, 4), removing_replicas=(1,)
    )
    assert build(moving) is None
    record = build(moving, target_isr=(1, 3, 4))
    assert record is not None
    assert (record.replicas, record.isr, record.leader) == ((3, 4), (3, 4), 3)
    assert (record.adding_replicas, record.removing_replicas) == ((), ())
    assert record.directories == (D[3], D[4])


def test_ct21_a_partition_knows_the_directory_of_each_replica() -> None:
    assert partition().directory(1) == D[1]
    with pytest.raises(KeyError):
        partition().directory(9)
