"""PartitionChangeBuilder: rows CT-15 and CT-18 to CT-21."""

from typing import Any

import pytest
from msgspec.structs import replace

from kjbod.ids import LOST, UNASSIGNED, Uuid
from kjbod.metadata.image import RECOVERING, PartitionRegistration
from kjbod.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord
from kjbod_controller_stub.partitions.elections import Election, PartitionChangeBuilder

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


# ---- eligible leader replicas (KIP-966)


def eligible(what: PartitionRegistration, **fields: Any) -> PartitionChangeRecord:
    record = build(what, eligible_leader_replicas=True, **({"min_isr": 2} | fields))
    assert record is not None
    return record


def test_ct15_who_leaves_an_isr_that_is_too_small_stays_eligible() -> None:
    record = eligible(partition(isr=(2, 1), leader=1), target_isr=(1,))
    assert (record.isr, record.eligible_leader_replicas) == ((1,), (2,))
    assert build(partition(), target_isr=(1, 3), eligible_leader_replicas=True, min_isr=2) == PartitionChangeRecord(
        topic_id=TOPIC, partition_id=0, isr=(1, 3)
    )


def test_ct15_an_isr_becomes_empty_and_the_last_leader_is_remembered() -> None:
    record = eligible(partition(isr=(1,), eligible_leader_replicas=(2,)), online={3}, target_isr=())
    assert (record.leader, record.isr) == (-1, ())
    assert record.eligible_leader_replicas == (1, 2)
    assert record.last_known_elr == (1,)


def test_ct15_eligible_replicas_are_those_of_kafka_in_its_order() -> None:
    replicas = (40, 17, 2, 16, 1)
    many = partition(replicas=replicas, directories=(UNASSIGNED,) * 5, isr=(40, 17), leader=40)
    record = eligible(replace(many, eligible_leader_replicas=(2, 16)), min_isr=3, target_isr=(), online=set())
    assert record.eligible_leader_replicas == (16, 17, 2, 40)  # by the hash of the id in a table of 16


def test_ct15_an_eligible_replica_leads_when_the_isr_is_empty_and_loses_nothing() -> None:
    what = partition(isr=(), leader=-1, eligible_leader_replicas=(1, 2), last_known_elr=(2,))
    record = eligible(what, online={1, 3})
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (1, (1,), (2,))
    assert record.last_known_elr == ()
    assert record.leader_recovery_state == -1
    assert build(what, online={3}, eligible_leader_replicas=True, min_isr=2) is None


def test_ct15_an_eligible_replica_does_not_lead_beside_an_isr() -> None:
    what = partition(isr=(1,), leader=-1, eligible_leader_replicas=(2,))
    assert build(what, online={2, 3}, eligible_leader_replicas=True, min_isr=2) is None
    unclean = eligible(what, online={2, 3}, election=Election.UNCLEAN)
    assert (unclean.leader, unclean.isr, unclean.leader_recovery_state) == (2, (2,), RECOVERING)
    assert unclean.eligible_leader_replicas == ()


def test_ct15_an_isr_that_is_large_enough_clears_the_eligible_replicas() -> None:
    record = eligible(partition(isr=(1,), leader=1, eligible_leader_replicas=(3,)), target_isr=(1, 2))
    assert (record.isr, record.eligible_leader_replicas) == ((1, 2), ())


def test_ct15_after_an_unclean_shutdown_a_replica_is_not_eligible() -> None:
    leaving = eligible(partition(isr=(1,), leader=1), target_isr=(), unclean_shutdown=(1,), online={2})
    assert (leaving.isr, leaving.eligible_leader_replicas, leaving.last_known_elr) == ((), None, (1,))
    what = partition(isr=(), leader=-1, eligible_leader_replicas=(1, 2), last_known_elr=(1,))
    assert eligible(what, unclean_shutdown=(2,), online=set()).eligible_leader_replicas == (1,)


@pytest.mark.parametrize("election", list(Election))
def test_ct15_the_last_known_leader_leads_when_nobody_is_eligible_and_may_have_lost_data(election: Election) -> None:
    what = partition(isr=(), leader=-1, last_known_elr=(3,))
    record = eligible(what, online={1, 2, 3}, election=election)
    assert (record.leader, record.isr, record.leader_recovery_state) == (3, (3,), RECOVERING)
    assert record.last_known_elr == ()


def test_ct15_the_last_known_leader_must_be_there_and_alone() -> None:
    for last in ((3,), (1, 2)):
        what = partition(isr=(), leader=-1, last_known_elr=last)
        assert build(what, online={1, 2}, eligible_leader_replicas=True, min_isr=2) is None


def test_ct15_without_the_feature_what_was_eligible_leads_once_more_and_is_cleared() -> None:
    what = partition(isr=(1,), leader=1, eligible_leader_replicas=(2,), last_known_elr=(1,))
    record = build(what, online={2}, target_isr=())
    assert record is not None
    assert (record.leader, record.isr, record.eligible_leader_replicas) == (2, (2,), ())
    older = build(what, online={2}, target_isr=(), metadata_version=22)
    assert older is not None
    assert older.eligible_leader_replicas is None  # a record of that version cannot say it


def test_an_isr_that_had_no_leader_leaves_its_only_member_as_the_last_known_one() -> None:
    what = partition(isr=(2,), leader=-1)
    shipped = eligible(what, online={1}, target_isr=(), unclean_shutdown=(2,))
    assert shipped.last_known_elr is None
    ours = eligible(what, online={1}, target_isr=(), unclean_shutdown=(2,), remembers_last_member=True)
    assert ours.last_known_elr == (2,)
