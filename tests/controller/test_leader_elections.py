"""Elections on request (ElectLeaders), the return to preferred leaders, and unclean elections from time to time."""

import random

import pytest

from kjbod.ids import Uuid
from kjbod.metadata.image import BROKER, RECOVERING, TOPIC
from kjbod.metadata.records import PartitionChangeRecord
from kjbod.wire.admin_messages import ElectLeadersRequest, ElectLeadersRequestTopicPartition
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import DeleteTopicsRequest
from kjbod_controller_stub.context import Settings
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.partitions import leader_elections
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.test_eligible_leaders import BOTH, back, configure, create, gone
from tests.controller.world import World

PREFERRED, UNCLEAN = 0, 1
UNCLEAN_ENABLE = "unclean.leader.election.enable"
FIVE_MINUTES_MS = 300_000


def elect(world: World, kind: int, *partitions: tuple[str, tuple[int, ...]]) -> dict[tuple[str, int], tuple[int, str]]:
    """Elect for these, or for all; error and message of each partition that is in the answer."""
    wanted = tuple(ElectLeadersRequestTopicPartition(topic=topic, partitions=which) for topic, which in partitions)
    answer = world.ask(ElectLeadersRequest(election_type=kind, topic_partitions=wanted or None))
    assert answer.error_code == 0
    return {
        (topic.topic, each.partition_id): (each.error_code, each.error_message or "")
        for topic in answer.replica_election_results
        for each in topic.partition_result
    }


def after_a_restart(rules: Rules = KIP_858, partitions: int = 1) -> World:
    """Brokers 1 and 2; broker 1 was away, so that broker 2 leads what broker 1 should."""
    world = World(rules)
    for broker_id in (1, 2):
        world.join(broker_id, 1)
    create(world, *[(1, 2)] * partitions)
    gone(world, 1)
    world.beat(1)
    for number in range(partitions):
        assert world.partition("t", number).leader == 2
        world.alter_isr("t", (2, 1), number=number)
    return world


@BOTH
def test_the_preferred_replica_leads_again_when_it_is_asked_for(rules: Rules) -> None:
    world = after_a_restart(rules, partitions=2)
    assert elect(world, PREFERRED, ("t", (0,))) == {("t", 0): (0, "")}
    assert (world.partition("t", 0).leader, world.partition("t", 1).leader) == (1, 2)
    assert elect(world, PREFERRED, ("t", (0, 1))) == {
        ("t", 0): (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."),
        ("t", 1): (0, ""),
    }


@BOTH
def test_an_election_that_cannot_be_held_says_why(rules: Rules) -> None:
    world = after_a_restart(rules)
    world.alter_isr("t", (2,))
    assert elect(world, PREFERRED, ("t", (0, 7)), ("nowhere", (0,))) == {
        ("t", 0): (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
        ("t", 7): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such partition as t-7"),
        ("nowhere", 0): (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such topic as nowhere"),
    }
    assert not world.last
    for broker_id in (1, 2):
        gone(world, broker_id)
    assert elect(world, UNCLEAN, ("t", (0,))) == {
        ("t", 0): (ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
    }


@BOTH
def test_asking_for_all_partitions_answers_for_those_that_needed_it(rules: Rules) -> None:
    world = after_a_restart(rules)
    create(world, (2, 1), name="fine")
    answer = world.ask(ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None))
    assert {topic.topic: len(topic.partition_result) for topic in answer.replica_election_results} == {
        "t": 1,
        "fine": 0,
    }
    assert elect(world, PREFERRED) == {}


@BOTH
def test_an_unclean_election_is_held_for_a_partition_without_leader_only(rules: Rules) -> None:
    world = after_a_restart(rules, partitions=2)
    world.alter_isr("t", (2,))
    gone(world, 2)
    assert [world.partition("t", number).leader for number in (0, 1)] == [-1, 1]
    outcome = elect(world, UNCLEAN, ("t", (0, 1)))
    assert {key: error for key, (error, _) in outcome.items()} == {
        ("t", 0): 0,
        ("t", 1): ErrorCode.ELECTION_NOT_NEEDED,
    }
    now = world.partition("t")
    assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), RECOVERING)


def test_another_kind_of_election_is_refused() -> None:
    world = after_a_restart()
    assert world.ask(ElectLeadersRequest(election_type=2)).error_code == ErrorCode.INVALID_REQUEST


def test_an_election_of_more_partitions_than_one_request_may_change_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = after_a_restart(partitions=3)
    monkeypatch.setattr(leader_elections, "ELECTIONS_PER_REQUEST_MAX", 2)
    answer = world.ask(ElectLeadersRequest(election_type=PREFERRED))
    assert (answer.error_code, world.last) == (ErrorCode.POLICY_VIOLATION, [])


# ---- from time to time


@BOTH
def test_leadership_returns_to_preferred_replicas_every_five_minutes(rules: Rules) -> None:
    world = after_a_restart(rules, partitions=3)
    world.controller.periodic.activate(world.now_ms)
    still = (1, 2)

    def live(ms: int) -> None:
        for _ in range(ms // 4_000):
            world.tick(4_000)
            for broker_id in still:
                world.beat(broker_id)

    live(FIVE_MINUTES_MS - 4_000)
    assert {world.partition("t", number).leader for number in range(3)} == {2}
    live(8_000)
    assert {world.partition("t", number).leader for number in range(3)} == {1}


def test_leadership_stays_where_it_is_when_the_configuration_says_so() -> None:
    world = after_a_restart()
    settings = Settings(node_id=3000, cluster_id=world.cluster_id, leader_imbalance_check_ms=None)
    world.controller = Controller(
        settings, draw_id=lambda: Uuid.of(8, 8), shuffle=random.Random(1).shuffle, wall_ms=lambda: 0
    )
    for written in world.log:
        world.controller.recover(written.offset, 1, written.record)
    world.write(world.controller.activate(world.now_ms))
    world.controller.heartbeats.session_timeout_ms = 10 * FIVE_MINUTES_MS
    world.tick(2 * FIVE_MINUTES_MS)
    assert world.partition("t").leader == 2


def test_a_large_number_of_elections_is_held_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_elections, "ELECTIONS_PER_PASS_MAX", 2)
    monkeypatch.setattr(leader_elections, "EXAMINED_PER_PASS_MAX", 3)
    world = after_a_restart(partitions=7)
    world.alter_isr("t", (2,), number=0)  # cannot go back
    world.controller.heartbeats.session_timeout_ms = 10 * FIVE_MINUTES_MS
    world.controller.periodic.activate(world.now_ms)
    world.now_ms += FIVE_MINUTES_MS
    elected = []
    while (result := world.controller.run_timers(world.now_ms)) is not None:
        world.write(result)
        elected.append(len(world.changes()))
    assert elected == [2, 2, 2]
    assert [world.partition("t", number).leader for number in range(7)] == [2, 1, 1, 1, 1, 1, 1]


def test_a_topic_that_is_deleted_between_two_pieces_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_elections, "ELECTIONS_PER_PASS_MAX", 1)
    world = after_a_restart(partitions=2)
    world.controller.heartbeats.session_timeout_ms = 10 * FIVE_MINUTES_MS
    world.controller.periodic.activate(world.now_ms)
    world.now_ms += FIVE_MINUTES_MS
    first = world.controller.run_timers(world.now_ms)
    assert first is not None
    world.write(first)
    world.ask(DeleteTopicsRequest(topic_names=("t",)), 5)
    assert world.controller.run_timers(world.now_ms) is None


def offline(rules: Rules) -> World:
    """A partition that broker 2 alone had in full; broker 2 is away, broker 1 is not."""
    world = after_a_restart(rules)
    world.alter_isr("t", (2,))
    gone(world, 2)
    assert world.partition("t").leader == -1
    world.controller.heartbeats.session_timeout_ms = 10 * FIVE_MINUTES_MS
    world.controller.periodic.activate(world.now_ms)
    return world


def test_unclean_elections_are_held_as_soon_as_they_are_allowed() -> None:
    for rules, wait_ms in ((KIP_858, 0), (KAFKA, FIVE_MINUTES_MS)):
        for kind, resource in ((TOPIC, "t"), (BROKER, ""), (BROKER, "3000")):
            if resource == "3000" and rules is KIP_858:
                continue  # a configuration of the controller itself; the same way to resolve it
            world = offline(rules)
            if resource == "3000":
                world.controller.image.configs[BROKER, "3000"] = {UNCLEAN_ENABLE: "true"}
            else:
                assert configure(world, kind, resource, UNCLEAN_ENABLE, "true")[0] == 0
            world.tick(max(wait_ms - 1, 0))
            assert world.partition("t").leader == (-1 if wait_ms else 1)
            world.tick(1)
            now = world.partition("t")
            assert (now.leader, now.isr, now.leader_recovery_state) == (1, (1,), RECOVERING)


@BOTH
def test_a_partition_whose_topic_forbids_it_waits_for_a_replica_that_has_all(rules: Rules) -> None:
    world = offline(rules)
    assert configure(world, BROKER, "", UNCLEAN_ENABLE, "true")[0] == 0
    assert configure(world, TOPIC, "t", UNCLEAN_ENABLE, "false")[0] == 0
    world.tick(2 * FIVE_MINUTES_MS)
    assert world.partition("t").leader == -1
    back(world, 2, number=1, clean=True)
    world.beat(2)
    assert (world.partition("t").leader, world.partition("t").leader_recovery_state) == (2, 0)


# ---- controlled shutdown


@BOTH
def test_a_shutdown_hands_leadership_over_and_keeps_replicas_eligible(rules: Rules) -> None:
    world = World(rules)
    for broker_id in (1, 2, 3):
        world.join(broker_id, 1)
    create(world, (1, 2), (3, 1), min_insync_replicas="2")
    create(world, (1,), name="single")
    assert not world.beat(1, shut=True).should_shut_down
    assert all(isinstance(record, PartitionChangeRecord) for record in world.last[1:])
    led = [
        (now.leader, now.isr, now.eligible_leader_replicas)
        for now in (world.partition("t", 0), world.partition("t", 1), world.partition("single"))
    ]
    assert led == [(2, (2,), (1,)), (3, (3,), (1,)), (-1, (), (1,))]
    for broker_id in (2, 3):
        world.beat(broker_id)
    assert world.beat(1, shut=True).should_shut_down
    assert not world.changes()
    world.join(4, 1)
    assert world.partition("single").leader == -1
