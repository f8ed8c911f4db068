"""What admin tools ask before they move replicas between directories: reassignments and throttles."""

import pytest

from kjbod.metadata.image import BROKER, TOPIC
from kjbod.metadata.records import ConfigRecord
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    ListPartitionReassignmentsRequest,
)
from tests.controller.world import World

SET, DELETE, APPEND, SUBTRACT = range(4)
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
REPLICAS = "leader.replication.throttled.replicas"


@pytest.fixture
def world() -> World:
    world = World()
    for broker in (1, 2):
        world.join(broker)
    world.create("t", (1, 2))
    return world


def reassign(
    world: World, replicas: tuple[int, ...] | None, *, topic: str = "t", partition: int = 0
) -> tuple[int, str]:
    wanted = AlterPartitionReassignmentsRequestPartition(partition_index=partition, replicas=replicas)
    topics = (AlterPartitionReassignmentsRequestTopic(name=topic, partitions=(wanted,)),)
    answer = world.ask(AlterPartitionReassignmentsRequest(topics=topics))
    assert answer.error_code == 0
    assert [each.name for each in answer.responses] == [topic]
    outcome = answer.responses[0].partitions[0]
    return outcome.error_code, outcome.error_message or ""


def alter(world: World, kind: int, name: str, *changes: tuple[str, int, str | None], dry: bool = False) -> int:
    configs = tuple(
        IncrementalAlterConfigsRequestConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=configs)
    answer = world.ask(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry))
    return answer.responses[0].error_code


def test_a_partition_that_stays_on_its_brokers_is_granted_and_changes_nothing(world: World) -> None:
    before = world.partition("t")
    assert reassign(world, (1, 2)) == (0, "")
    assert world.last == []
    assert world.partition("t") == before


@pytest.mark.parametrize("replicas", [(2, 1), (1,), (1, 2, 3), (), (1, 1), (7,)])
def test_any_other_target_is_refused_in_words_and_changes_nothing(world: World, replicas: tuple[int, ...]) -> None:
    code, message = reassign(world, replicas)
    assert code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "not offered by this controller yet" in message
    assert world.last == []


def test_there_is_nothing_to_cancel_and_nothing_to_list(world: World) -> None:
    assert reassign(world, None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert world.ask(ListPartitionReassignmentsRequest()).topics == ()


def test_an_unknown_topic_or_partition_is_named(world: World) -> None:
    assert reassign(world, (1,), topic="u") == (3, "Unable to find a topic named u.")
    assert reassign(world, (1,), partition=9) == (3, "Unable to find partition t:9.")


def test_throttles_are_set_and_cleared(world: World) -> None:
    assert alter(world, BROKER, "1", (THROTTLE, SET, "1000")) == 0
    assert world.last == [ConfigRecord(resource_type=BROKER, resource_name="1", name=THROTTLE, value="1000")]
    assert world.controller.image.configs[BROKER, "1"] == {THROTTLE: "1000"}
    assert alter(world, BROKER, "1", (THROTTLE, DELETE, None)) == 0
    assert (BROKER, "1") not in world.controller.image.configs
    assert world.replayed().image == world.controller.image


def test_what_is_unset_already_is_written_again_for_brokers_and_not_for_topics(world: World) -> None:
    """KAFKA-14136."""
    assert alter(world, BROKER, "", (THROTTLE, DELETE, None)) == 0
    assert len(world.last) == 1
    assert alter(world, TOPIC, "t", (REPLICAS, DELETE, None)) == 0
    assert world.last == []


def test_lists_grow_and_shrink(world: World) -> None:
    for operation, value, after in (
        (SET, "0:1", "0:1"),
        (APPEND, "0:2,0:1", "0:1,0:2"),
        (SUBTRACT, "0:1", "0:2"),
    ):
        assert alter(world, TOPIC, "t", (REPLICAS, operation, value)) == 0
        assert world.controller.image.configs[TOPIC, "t"] == {REPLICAS: after}


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC, "u", (REPLICAS, SET, "*"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", ("colour", SET, "red"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", ("retention.ms", APPEND, "5"), ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", (REPLICAS, SET, None), ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", (REPLICAS, 4, "*"), ErrorCode.INVALID_REQUEST),
        (BROKER, "9", (THROTTLE, SET, "5"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "one", (THROTTLE, SET, "5"), ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "1", ("log.dirs", SET, "/d"), ErrorCode.INVALID_CONFIG),
        (BROKER, "1", (THROTTLE, SET, "fast"), ErrorCode.INVALID_CONFIG),
        (8, "1", ("root", SET, "DEBUG"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    world: World, kind: int, name: str, change: tuple[str, int, str | None], code: ErrorCode
) -> None:
    assert alter(world, kind, name, change) == code
    assert world.last == []


def test_a_resource_is_changed_whole_or_not_at_all_and_a_dry_run_changes_nothing(world: World) -> None:
    assert alter(world, TOPIC, "t", (REPLICAS, SET, "*"), ("colour", SET, "red")) == ErrorCode.INVALID_CONFIG
    assert world.last == []
    assert alter(world, TOPIC, "t", (REPLICAS, SET, "*"), (REPLICAS, SET, "0:1")) == ErrorCode.INVALID_REQUEST
    assert alter(world, TOPIC, "t", (REPLICAS, SET, "*"), dry=True) == 0
    assert world.last == []
