"""Replicas move between brokers: begun, changed, cancelled, listed, completed by the leader (KIP-455)."""

import pytest

from kjbod.ids import UNASSIGNED
from kjbod.metadata.records import PartitionChangeRecord
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
)
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import World, directories, directory

Outcome = tuple[int, str]
Progress = dict[tuple[str, int], tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]]


def cluster(world: World) -> World:
    """Brokers 1 and 2 with three directories each, 3 with one, 4 fenced; a topic with two partitions."""
    for broker in (1, 2, 3):
        world.join(broker, 1 if broker == 3 else 3)
    world.register(4)
    world.create("t", (1, 2), (2, 1))
    return world


@pytest.fixture
def world() -> World:
    return cluster(World())


def reassign(
    world: World, replicas: tuple[int, ...] | None, *, topic: str = "t", partition: int = 0, allow: bool = True
) -> Outcome:
    wanted = AlterPartitionReassignmentsRequestPartition(partition_index=partition, replicas=replicas)
    topics = (AlterPartitionReassignmentsRequestTopic(name=topic, partitions=(wanted,)),)
    request = AlterPartitionReassignmentsRequest(topics=topics, allow_replication_factor_change=allow)
    answer = world.ask(request)
    assert answer.error_code == 0
    assert answer.allow_replication_factor_change is allow
    assert [each.name for each in answer.responses] == [topic]
    outcome = answer.responses[0].partitions[0]
    return outcome.error_code, outcome.error_message or ""


def in_progress(world: World, *named: tuple[str, tuple[int, ...]]) -> Progress:
    """Replicas, those that are to come and those that are to go, by partition."""
    topics = tuple(
        ListPartitionReassignmentsRequestTopic(name=name, partition_indexes=numbers) for name, numbers in named
    )
    answer = world.ask(ListPartitionReassignmentsRequest(topics=topics or None))
    return {
        (topic.name, each.partition_index): (each.replicas, each.adding_replicas, each.removing_replicas)
        for topic in answer.topics
        for each in topic.partitions
    }


def test_newcomers_are_added_first_and_take_over_when_they_are_in_sync(world: World) -> None:
    assert reassign(world, (3, 4)) == (0, "")
    (change,) = world.changes()
    assert change.directories == (directory(3, 0), UNASSIGNED, UNASSIGNED, UNASSIGNED)
    assert in_progress(world) == {("t", 0): ((3, 4, 1, 2), (3, 4), (1, 2))}
    assert world.partition("t").leader == 1

    world.assign_all(4)
    assert not world.beat(4).is_fenced
    assert world.alter_isr("t", (1, 2, 3)).topics[0].partitions[0].error_code == 0
    assert ("t", 0) in in_progress(world)
    answer = world.alter_isr("t", (1, 2, 3, 4)).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED, "the caller is no replica any more"
    assert (answer.leader_id, answer.leader_epoch, answer.isr) == (0, 0, ())
    partition = world.partition("t")
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4), (3, 4), 3)
    assert partition.directories == (directory(3, 0), directory(4, 0))
    assert in_progress(world) == {}


def test_the_target_comes_first_while_a_reassignment_is_under_way(world: World) -> None:
    """KIP-631's example, 1, 2, 3 to 3, 4, 5, is 1, 2, 3, 4, 5 there; Kafka has what is wanted in front."""
    world.join(5)
    world.create("u", (1, 2, 3))
    assert reassign(world, (3, 4, 5), topic="u") == (0, "")
    assert in_progress(world) == {("u", 0): ((3, 4, 5, 1, 2), (4, 5), (1, 2))}


def test_a_newcomer_beside_the_old_ones_leaves_leader_and_directories_as_they_are(world: World) -> None:
    assert reassign(world, (1, 2, 3)) == (0, "")
    before = world.partition("t")
    assert world.alter_isr("t", (1, 2, 3)).topics[0].partitions[0].error_code == 0
    (change,) = world.changes()
    assert (change.isr, change.adding_replicas, change.directories) == ((1, 2, 3), (), None)
    assert world.partition("t").leader_epoch == before.leader_epoch
    assert in_progress(world) == {}


def test_as_many_newcomers_as_leavers_do_not_wait_for_a_replica_that_stays(world: World) -> None:
    world.create("u", (1, 2))
    world.alter_isr("u", (1,))
    assert reassign(world, (1, 2, 3), topic="u") == (0, "")
    world.alter_isr("u", (1, 3))
    assert in_progress(world) == {}
    assert world.partition("u").isr == (1, 3)


def test_what_needs_nobody_new_is_complete_at_once(world: World) -> None:
    assert reassign(world, (1, 2)) == (0, "")
    assert world.last == []
    assert reassign(world, (2, 1)) == (0, "")
    assert world.last == [PartitionChangeRecord(topic_id=world.topic_id("t"), partition_id=0, replicas=(2, 1))]
    assert reassign(world, (2,)) == (0, "")
    partition = world.partition("t")
    assert (partition.replicas, partition.isr, partition.leader) == ((2,), (2,), 2)
    assert in_progress(world) == {}


def test_who_is_removed_is_not_eligible_to_lead_any_more_and_in_kafka_is() -> None:
    for rules, eligible in ((KIP_858, ()), (KAFKA, (1,))):
        world = cluster(World(rules=rules))
        configs = (IncrementalAlterConfigsRequestConfig(name="min.insync.replicas", config_operation=0, value="2"),)
        resource = IncrementalAlterConfigsRequestResource(resource_type=2, resource_name="t", configs=configs)
        world.ask(IncrementalAlterConfigsRequest(resources=(resource,)))
        assert reassign(world, (2,)) == (0, "")
        assert world.partition("t").eligible_leader_replicas == eligible


def test_one_in_progress_is_changed_by_another(world: World) -> None:
    assert reassign(world, (3, 1)) == (0, "")
    assert reassign(world, (4, 1)) == (0, "")
    assert in_progress(world) == {("t", 0): ((4, 1, 2, 3), (4,), (2, 3))}


def test_the_old_assignment_executed_again_ends_it(world: World) -> None:
    assert reassign(world, (3, 1)) == (0, "")
    assert reassign(world, (1, 2)) == (0, "")
    assert in_progress(world) == {}
    assert world.partition("t").replicas == (1, 2)


def test_kafka_waits_for_ever_for_a_newcomer_that_is_no_longer_wanted() -> None:
    world = cluster(World(rules=KAFKA))
    assert reassign(world, (3, 1)) == (0, "")
    assert reassign(world, (1, 2)) == (0, "")
    assert in_progress(world) == {("t", 0): ((1, 2, 3), (3,), (3,))}
    assert reassign(world, None) == (0, "")
    assert in_progress(world) == {}


def test_a_cancelled_one_gives_back_what_was_there(world: World) -> None:
    before = world.partition("t")
    assert reassign(world, (3, 4)) == (0, "")
    assert world.alter_isr("t", (1, 2, 3)).topics[0].partitions[0].error_code == 0
    assert reassign(world, None) == (0, "")
    after = world.partition("t")
    assert (after.replicas, after.isr, after.leader) == (before.replicas, before.isr, before.leader)
    assert after.leader_epoch == before.leader_epoch + 1, "what followed the newcomer must fetch anew"
    assert in_progress(world) == {}
    assert reassign(world, None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def only_newcomer_in_sync(world: World) -> None:
    assert reassign(world, (3, 4)) == (0, "")
    world.alter_isr("t", (1, 2, 3))
    for broker in (1, 2):
        world.beat(broker, fence=True)
    world.alter_isr("t", (3,))
    assert world.partition("t").isr == (3,)


def test_a_cancellation_that_would_lose_data_is_refused_unless_the_topic_allows_it(world: World) -> None:
    only_newcomer_in_sync(world)
    assert reassign(world, None) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Unable to revert partition assignment for t:0 because it would require an unclean leader election.",
    )
    config = IncrementalAlterConfigsRequestConfig(
        name="unclean.leader.election.enable", config_operation=0, value="true"
    )
    resource = IncrementalAlterConfigsRequestResource(resource_type=2, resource_name="t", configs=(config,))
    world.ask(IncrementalAlterConfigsRequest(resources=(resource,)))
    world.beat(2)
    assert reassign(world, None) == (0, "")
    partition = world.partition("t")
    assert (partition.replicas, partition.leader, partition.isr) == ((1, 2), 2, (2,))
    assert partition.leader_recovery_state == 1


@pytest.mark.parametrize(
    ("replicas", "message"),
    [
        ((), "The manual partition assignment includes an empty replica list."),
        ((1, 1), "The manual partition assignment includes the broker 1 more than once."),
        ((1, 9), "The manual partition assignment includes broker 9, but no such broker is registered."),
    ],
)
def test_targets_that_cannot_be_are_refused_in_kafkas_words(
    world: World, replicas: tuple[int, ...], message: str
) -> None:
    assert reassign(world, replicas) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    assert world.last == []


def test_an_unknown_topic_or_partition_is_named(world: World) -> None:
    assert reassign(world, (1,), topic="u") == (3, "Unable to find a topic named u.")
    assert reassign(world, (1,), partition=9) == (3, "Unable to find partition t:9.")
    assert reassign(world, None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_another_number_of_replicas_is_refused_to_who_does_not_want_it(world: World) -> None:
    """KIP-860; counted against what a reassignment in progress leads to."""
    factor = ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(world, (1, 2, 3), allow=False) == (factor, "The replication factor is changed from 2 to 3")
    assert reassign(world, (1,), allow=False) == (factor, "The replication factor is changed from 2 to 1")
    assert reassign(world, (3, 4), allow=False) == (0, "")
    assert reassign(world, (1, 2, 3), allow=False) == (factor, "The replication factor is changed from 2 to 3")
    assert reassign(world, (3, 1), allow=False) == (0, "")


def test_one_that_is_refused_does_not_stop_the_others(world: World) -> None:
    wanted = tuple(
        AlterPartitionReassignmentsRequestPartition(partition_index=number, replicas=replicas)
        for number, replicas in ((0, (3, 1)), (1, (9,)), (7, (1,)), (1, (3, 2)))
    )
    topics = (AlterPartitionReassignmentsRequestTopic(name="t", partitions=wanted),)
    answer = world.ask(AlterPartitionReassignmentsRequest(topics=topics))
    assert [each.error_code for each in answer.responses[0].partitions] == [0, 39, 3, 0]
    assert set(in_progress(world)) == {("t", 0), ("t", 1)}


def test_a_request_for_more_than_can_be_one_write_is_refused_whole(world: World) -> None:
    one = AlterPartitionReassignmentsRequestPartition(partition_index=0, replicas=(3, 1))
    topics = (AlterPartitionReassignmentsRequestTopic(name="t", partitions=(one,) * 10_001),)
    assert world.ask(AlterPartitionReassignmentsRequest(topics=topics)).error_code == ErrorCode.POLICY_VIOLATION
    assert world.last == []


def test_only_what_is_asked_for_is_listed_and_a_deleted_topic_is_not(world: World) -> None:
    world.create("u", (1,))
    reassign(world, (3, 1))
    reassign(world, (2,), topic="u")
    assert set(in_progress(world)) == {("t", 0), ("u", 0)}
    assert set(in_progress(world, ("t", (0, 0, 1, 7)), ("none", (0,)))) == {("t", 0)}
    assert in_progress(world, ("t", (1,))) == {}
    world.ask(DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name="u"),)))
    assert set(in_progress(world)) == {("t", 0)}


def test_what_is_in_progress_is_known_after_a_restart(world: World) -> None:
    reassign(world, (3, 1))
    reassign(world, (3, 2), partition=1)
    reassign(world, None, partition=1)
    fresh = world.replayed()
    listed = fresh.reassignments.list_in_progress(ListPartitionReassignmentsRequest())
    assert [each.partition_index for each in listed.topics[0].partitions] == [0]


@pytest.mark.parametrize(
    ("rules", "target", "refused"),
    [
        (KIP_858, (1, 3), False),  # 2 goes, and 1, where nothing new is wanted, stays
        (KIP_858, (1,), False),
        (KIP_858, (2, 1), False),
        (KIP_858, (2, 4), True),
        (KIP_858, (1, 4), True),
        (KAFKA, (1, 3), True),
        (KAFKA, (1,), True),
        (KAFKA, (2, 4), True),
        (KAFKA, (2, 3), False),
        (KAFKA, None, False),
    ],
)
def test_no_newcomer_goes_where_all_directories_are_cordoned(
    rules: Rules, target: tuple[int, ...] | None, refused: bool
) -> None:
    world = cluster(World(rules))
    assert world.partition("t").replicas == (1, 2)
    for broker in (1, 4):
        world.beat(broker, cordoned=directories(broker))
    if target is None:
        assert reassign(world, (2, 3)) == (0, "")
    code, message = reassign(world, target)
    assert code == (ErrorCode.INVALID_REPLICA_ASSIGNMENT if refused else 0)
    assert message.endswith("but all its log directories are cordoned.") is refused
