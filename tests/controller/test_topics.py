"""CreateTopics, DeleteTopics, placement, and what clients are told about topics."""

import random
from collections import Counter
from typing import Any

import pytest

from kjbod.ids import UNASSIGNED, ZERO, Uuid
from kjbod.metadata.image import BROKER
from kjbod.metadata.records import ClearElrRecord, ConfigRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from kjbod.wire.admin_messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import encode_response
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeClusterRequest,
    MetadataRequest,
    MetadataRequestTopic,
)
from kjbod_controller_stub.partitions.replica_placer import ReplicaPlacer, UsableBroker
from kjbod_controller_stub.results import ApiError, Result
from kjbod_controller_stub.rules import KAFKA, KIP_858
from tests.controller.world import CLUSTER_ID, NODE_ID, World, directories, directory


def create(world: World, *topics: dict[str, Any], **fields: Any) -> CreateTopicsResponse:
    return world.ask(CreateTopicsRequest(topics=tuple(CreateTopicsRequestTopic(**topic) for topic in topics), **fields))


def joined(*brokers: int) -> World:
    world = World()
    for broker in brokers:
        world.join(broker)
    return world


def by_hand(*replicas: tuple[int, ...]) -> tuple[CreateTopicsRequestAssignment, ...]:
    return tuple(
        CreateTopicsRequestAssignment(partition_index=number, broker_ids=brokers)
        for number, brokers in enumerate(replicas)
    )


def test_records_of_a_topic_come_in_kafkas_order_and_versions() -> None:
    world = World()
    world.join(1, 1)
    world.join(2, 3)
    world.register(3)
    answer = create(
        world,
        {
            "name": "t",
            "assignments": by_hand((3, 2, 1)),
            "configs": (CreateTopicsRequestConfig(name="retention.ms", value="5"),),
        },
    )
    assert [type(record) for record in world.last] == [TopicRecord, ConfigRecord, PartitionRecord]
    assert world.last_versions == [0, 0, 2]
    partition = world.last[2]
    assert isinstance(partition, PartitionRecord)
    assert (partition.isr, partition.leader) == ((2, 1), 2)  # 3 is fenced
    assert partition.directories == (UNASSIGNED, UNASSIGNED, directory(1, 0))
    topic = answer.topics[0]
    assert (topic.error_code, topic.num_partitions, topic.replication_factor) == (0, 1, 3)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "ä"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "x" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "x" * 249}, 0),
        ({"name": "__cluster_metadata"}, ErrorCode.INVALID_REQUEST),
        ({"name": "old"}, ErrorCode.TOPIC_ALREADY_EXISTS),
        ({"name": "a_b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "t", "num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "t", "num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"name": "t", "replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"name": "t", "replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"name": "t", "num_partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
        ({"name": "t", "num_partitions": 1, "assignments": by_hand((1,))}, ErrorCode.INVALID_REQUEST),
        ({"name": "t", "assignments": by_hand((1, 1))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "t", "assignments": by_hand((9,))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "t", "assignments": by_hand(())}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "t", "assignments": by_hand((1, 2), (1,))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (
            {"name": "t", "assignments": by_hand((1,), (2,))[1:]},
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ),
        ({"name": "t", "assignments": by_hand((3,))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "t", "configs": (CreateTopicsRequestConfig(name="no.such", value="1"),)}, ErrorCode.INVALID_CONFIG),
        ({"name": "t", "configs": (CreateTopicsRequestConfig(name="segment.ms"),)}, ErrorCode.INVALID_CONFIG),
        (
            {"name": "t", "configs": (CreateTopicsRequestConfig(name="segment.ms", value="0"),)},
            ErrorCode.INVALID_CONFIG,
        ),
        ({"name": "t", "assignments": (*by_hand((1,)), *by_hand((2,)))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"name": "t"}, 0),
    ],
    ids=lambda value: str(value).replace("CreateTopicsRequestAssignment(partition_index=", "")[-60:],
)
def test_a_topic_that_cannot_be_gets_its_error_and_leaves_no_record(topic: dict[str, Any], code: int) -> None:
    world = joined(1, 2)
    world.create("old", (1,))
    world.create("a.b", (1,))
    if topic.get("assignments") == by_hand((3,)):
        world.register(3)
    answer = create(world, topic)
    assert answer.topics[0].error_code == code, answer
    assert bool(world.last) == (not code)


def test_one_bad_topic_does_not_stop_the_others() -> None:
    world = joined(1)
    answer = create(world, {"name": "a"}, {"name": ""}, {"name": "b"}, {"name": "c.d"}, {"name": "c_d"})
    assert [topic.error_code for topic in answer.topics] == [0, 17, 0, 0, 17]
    assert set(world.controller.image.topic_ids) == {"a", "b", "c.d"}


def test_thousands_of_equal_names_are_one_answer() -> None:
    world = joined(1)
    answer = create(world, *({"name": "same"} for _ in range(4_000)))
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]
    assert not world.last


def test_validate_only_changes_nothing() -> None:
    world = joined(1)
    assert create(world, {"name": "t"}, validate_only=True).topics[0].error_code == 0
    assert not world.last


def test_topics_are_deleted_by_name_and_by_id_and_may_come_back() -> None:
    world = joined(1)
    first, second = world.create("a", (1,)), world.create("b", (1,))
    request = DeleteTopicsRequest(
        topics=(
            DeleteTopicsRequestTopic(name="a"),
            DeleteTopicsRequestTopic(name=None, topic_id=second),
            DeleteTopicsRequestTopic(name="c"),
            DeleteTopicsRequestTopic(name=None, topic_id=Uuid.of(4, 4)),
            DeleteTopicsRequestTopic(name="a", topic_id=first),
            DeleteTopicsRequestTopic(name=None),
        )
    )
    answer = world.ask(request)
    assert [topic.error_code for topic in answer.responses] == [0, 0, 3, 100, 42, 42]
    assert world.last == [RemoveTopicRecord(topic_id=first), RemoveTopicRecord(topic_id=second)]
    assert world.controller.index.leads(1) == 0
    assert world.ask(DeleteTopicsRequest(topic_names=("a",)), 5).responses[0].error_code == 3
    assert world.create("a", (1,)) != first


def test_a_topic_that_is_named_twice_stays_also_when_once_by_its_id() -> None:
    world = joined(1)
    first, second = world.create("a", (1,)), world.create("b", (1,))
    by_id = DeleteTopicsRequestTopic(name=None, topic_id=second)
    answer = world.ask(
        DeleteTopicsRequest(
            topics=(*(DeleteTopicsRequestTopic(name="a"),) * 2, by_id, DeleteTopicsRequestTopic(name="b"))
        )
    )
    assert [(topic.name, topic.error_code, topic.error_message) for topic in answer.responses] == [
        ("a", ErrorCode.INVALID_REQUEST, "Duplicate topic name."),
        ("b", ErrorCode.INVALID_REQUEST, "The provided topic name maps to an ID that was already supplied."),
    ]
    answer = world.ask(DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name=None, topic_id=first),) * 2))
    assert [topic.error_message for topic in answer.responses] == ["Duplicate topic id."]
    assert not world.last


@pytest.mark.parametrize(("version", "code"), [(2, 42), (3, 73), (6, 73)])
def test_nothing_is_deleted_where_that_is_switched_off(version: int, code: int) -> None:
    world = World(delete_topic_enable=False)
    world.join(1)
    world.create("a", (1,))
    request = DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name="a"),))
    if version < 6:
        request = DeleteTopicsRequest(topic_names=("a",))
    assert [topic.error_code for topic in world.ask(request, version).responses] == [code]
    assert not world.last


# ---- what is said about a new topic


def test_a_new_topics_answer_has_every_configuration_and_where_it_comes_from() -> None:
    world = World(static_configs={"log.retention.hours": "24", "log.roll.ms": "7"})
    world.join(1)
    for broker, name, value in (
        ("", "log.segment.bytes", "2000000"),
        ("", "log.index.interval.bytes", "77"),
        (str(NODE_ID), "log.index.interval.bytes", "78"),
    ):
        world.write(Result(records=(ConfigRecord(resource_type=BROKER, resource_name=broker, name=name, value=value),)))
    configs = (CreateTopicsRequestConfig(name="cleanup.policy", value="compact, delete"),)
    topic = create(world, {"name": "t", "configs": configs}).topics[0]
    told = {config.name: (config.value, config.config_source) for config in topic.configs or ()}
    assert len(told) == 37
    assert list(told) == sorted(told)
    assert told["cleanup.policy"] == ("compact, delete", 1)
    assert told["index.interval.bytes"] == ("78", 2)
    assert told["segment.bytes"] == ("2000000", 3)
    assert told["retention.ms"] == ("86400000", 4)
    assert told["segment.ms"] == ("7", 4)
    assert told["max.message.bytes"] == ("1048588", 5)
    world.write(
        Result(records=(ConfigRecord(resource_type=BROKER, resource_name="", name="log.segment.bytes", value=None),))
    )
    topic = create(world, {"name": "u"}, validate_only=True).topics[0]
    assert {config.name: config.value for config in topic.configs or ()}["segment.bytes"] == "1073741824"


def test_min_insync_replicas_of_a_new_topic_clears_what_was_eligible_before_its_partitions() -> None:
    world = joined(1)
    create(world, {"name": "t", "configs": (CreateTopicsRequestConfig(name="min.insync.replicas", value="2"),)})
    assert [type(record) for record in world.last] == [TopicRecord, ConfigRecord, ClearElrRecord, PartitionRecord]
    assert world.replayed().image == world.controller.image


def test_the_names_of_one_request_collide_as_those_of_two_do_and_in_kafka_they_do_not() -> None:
    for rules, code in ((KIP_858, ErrorCode.INVALID_TOPIC_EXCEPTION), (KAFKA, 0)):
        world = World(rules=rules)
        world.join(1)
        answer = create(world, {"name": "a.b"}, {"name": "a_b"})
        assert [topic.error_code for topic in answer.topics] == [0, code]
        assert create(world, {"name": "a.b"}).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_request_of_more_records_than_can_be_one_write_is_refused_whole() -> None:
    world = joined(1)
    answer = create(world, {"name": "a"}, {"name": "b", "num_partitions": 9_999})
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", 44), ("b", 44)]
    assert not world.last


# ---- CreatePartitions


def more(
    world: World, name: str, count: int, assignments: tuple[tuple[int, ...], ...] | None = None, *, dry: bool = False
) -> tuple[int, str | None]:
    brokers = (
        None
        if assignments is None
        else tuple(CreatePartitionsRequestAssignment(broker_ids=each) for each in assignments)
    )
    topic = CreatePartitionsRequestTopic(name=name, count=count, assignments=brokers)
    answer = world.ask(CreatePartitionsRequest(topics=(topic,), timeout_ms=1000, validate_only=dry))
    return answer.results[0].error_code, answer.results[0].error_message


def test_partitions_are_added_after_those_that_are_there() -> None:
    world = joined(1, 2)
    world.join(3, 1)
    world.register(4)
    topic = world.create("t", (1, 2))
    assert more(world, "t", 3, ((4, 3), (2, 1)), dry=True) == (0, None)
    assert not world.last
    assert more(world, "t", 3, ((4, 3), (2, 1))) == (0, None)
    assert [type(record) for record in world.last] == [PartitionRecord, PartitionRecord]
    added = world.partition("t", 1)
    assert (added.replicas, added.isr, added.leader) == ((4, 3), (3,), 3)
    assert added.directories == (UNASSIGNED, directory(3, 0))
    assert more(world, "t", 9) == (0, None)
    assert list(world.controller.image.topics[topic].partitions) == list(range(9))
    assert {len(world.partition("t", number).replicas) for number in range(9)} == {2}


@pytest.mark.parametrize(
    ("name", "count", "assignments", "outcome"),
    [
        ("t", 1, None, (37, "Topic already has 1 partition(s).")),
        ("t", 0, None, (37, "The topic t currently has 1 partition(s); 0 would not be an increase.")),
        ("none", 3, None, (3, None)),
        ("__cluster_metadata", 3, None, (3, None)),
        (
            "t",
            3,
            ((1, 2),),
            (39, "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified."),
        ),
        (
            "t",
            2,
            ((1,),),
            (
                39,
                "The manual partition assignment includes a partition with 1 replica(s), but this is not consistent "
                "with previous partitions, which have 2 replica(s).",
            ),
        ),
        (
            "t",
            2,
            ((1, 9),),
            (39, "The manual partition assignment includes broker 9, but no such broker is registered."),
        ),
        ("t", 2, ((2, 2),), (39, "The manual partition assignment includes the broker 2 more than once.")),
        ("t", 2, ((),), (39, "The manual partition assignment includes an empty replica list.")),
        (
            "t",
            2,
            ((3, 4),),
            (
                39,
                "All brokers specified in the manual partition assignment for partition 1 are fenced or in controlled "
                "shutdown.",
            ),
        ),
        ("t", 10_002, None, (44, "Excessively large number of additional partitions per request.")),
    ],
    ids=str,
)
def test_partitions_that_cannot_be_are_refused_in_kafkas_words(
    name: str, count: int, assignments: tuple[tuple[int, ...], ...] | None, outcome: tuple[int, str | None]
) -> None:
    world = joined(1, 2)
    world.register(3)
    world.register(4)
    world.create("t", (1, 2))
    assert more(world, name, count, assignments) == outcome
    assert not world.last


def test_too_many_partitions_of_all_topics_together_are_refused_for_each() -> None:
    world = joined(1, 2)
    for name in ("a", "b"):
        world.create(name, (1, 2))
    ask = [("a", 5_001), ("b", 5_002), ("gone", 9)]
    topics = tuple(CreatePartitionsRequestTopic(name=name, count=count, assignments=None) for name, count in ask)
    answer = world.ask(CreatePartitionsRequest(topics=topics, timeout_ms=1, validate_only=False))
    told = "Excessively large number of additional partitions per request."
    assert [(one.name, one.error_code, one.error_message) for one in answer.results] == [
        (name, ErrorCode.POLICY_VIOLATION, told) for name in ("a", "b", "gone")
    ]
    assert not world.last


def test_partitions_without_a_broker_for_them_are_refused() -> None:
    world = joined(1, 2)
    world.create("t", (1, 2))
    world.beat(1, cordoned=directories(1))
    code, message = more(world, "t", 2)
    assert code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert message == (
        "The target replication factor of 2 cannot be reached because only 1 broker(s) are registered or some brokers "
        "have all their log directories cordoned."
    )


def test_a_topic_that_is_named_twice_gets_no_partitions_and_the_others_do() -> None:
    world = joined(1)
    world.create("t", (1,))
    world.create("u", (1,))
    topics = tuple(CreatePartitionsRequestTopic(name=name, count=2) for name in ("t", "u", "t"))
    answer = world.ask(CreatePartitionsRequest(topics=topics, timeout_ms=1000))
    assert {each.name: each.error_code for each in answer.results} == {"t": ErrorCode.INVALID_REQUEST, "u": 0}
    assert len(world.last) == 1


# ---- placement


def placer(brokers: dict[int, str | None], factor: int, fenced: tuple[int, ...] = ()) -> ReplicaPlacer:
    return ReplicaPlacer(
        [UsableBroker(broker, rack, broker in fenced) for broker, rack in brokers.items()],
        factor,
        random.Random(3).shuffle,
    )


def test_replicas_are_distinct_and_spread_evenly() -> None:
    place = placer(dict.fromkeys(range(6)), 3)
    sets = [place.place() for _ in range(600)]
    assert all(len(set(replicas)) == 3 for replicas in sets)
    leaders = Counter(replicas[0] for replicas in sets)
    assert max(leaders.values()) - min(leaders.values()) <= 6
    hosted = Counter(broker for replicas in sets for broker in replicas)
    assert max(hosted.values()) - min(hosted.values()) <= 30


def test_replicas_of_a_partition_are_in_different_racks() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c", 6: "c"}
    place = placer(racks, 3)
    for _ in range(100):
        assert len({racks[broker] for broker in place.place()}) == 3


def test_leaders_are_placed_on_unfenced_brokers() -> None:
    place = placer(dict.fromkeys(range(4)), 3, fenced=(0, 1))
    for _ in range(50):
        assert place.place()[0] in (2, 3)


@pytest.mark.parametrize(
    ("brokers", "fenced", "message"),
    [
        ({}, (), "All brokers are currently fenced, or have all their log directories cordoned."),
        ({1: None}, (1,), "All brokers are currently fenced, or have all their log directories cordoned."),
        (
            {1: None, 2: None},
            (2,),
            "The target replication factor of 3 cannot be reached because only 2 broker(s) are registered or some "
            "brokers have all their log directories cordoned.",
        ),
    ],
    ids=str,
)
def test_placement_without_enough_brokers_is_refused_in_kafkas_words(
    brokers: dict[int, str | None], fenced: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ApiError) as error:
        placer(brokers, 3, fenced)
    assert (error.value.code, error.value.message) == (ErrorCode.INVALID_REPLICATION_FACTOR, message)


def test_fenced_brokers_get_replicas_only_where_the_others_do_not_suffice() -> None:
    place = placer(dict.fromkeys(range(5)), 3, fenced=(0, 1))
    assert {broker for _ in range(50) for broker in place.place()} == {2, 3, 4}
    place = placer(dict.fromkeys(range(5)), 4, fenced=(0, 1))
    assert all(len({0, 1} & set(place.place())) == 1 for _ in range(50))


def test_one_broker_that_is_not_fenced_leads_everything() -> None:
    place = placer(dict.fromkeys(range(3)), 2, fenced=(0, 1))
    sets = [place.place() for _ in range(20)]
    assert {replicas[0] for replicas in sets} == {2}
    assert {replicas[1] for replicas in sets} == {0, 1}


def test_co2_brokers_with_all_directories_cordoned_get_no_new_replicas() -> None:
    world = joined(1, 2)
    world.beat(1, cordoned=directories(1))
    assert create(world, {"name": "t", "num_partitions": 8}).topics[0].error_code == 0
    assert {world.partition("t", number).leader for number in range(8)} == {2}
    world.beat(2, cordoned=directories(2))
    assert create(world, {"name": "u"}).topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    by_hand_on_1 = create(world, {"name": "v", "assignments": by_hand((1,))}).topics[0]
    assert by_hand_on_1.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert by_hand_on_1.error_message == (
        "The manual partition assignment includes broker 1, but all its log directories are cordoned."
    )
    world.beat(2, cordoned=directories(2)[:2])
    assert create(world, {"name": "u"}).topics[0].error_code == 0


# ---- what clients are told


def test_metadata_tells_leaders_and_replicas_in_offline_directories() -> None:
    world = joined(1, 2)
    topic = world.create("t", (1, 2))
    world.assign(1, (directory(1, 0), topic, (0,)))
    world.beat(1, offline=(directory(1, 0),))
    answer = world.ask(MetadataRequest(topics=None))
    assert (answer.cluster_id, answer.controller_id) == (CLUSTER_ID, NODE_ID)
    assert {broker.node_id for broker in answer.brokers} == {1, 2, NODE_ID}
    partition = answer.topics[0].partitions[0]
    assert (partition.leader_id, partition.isr_nodes, partition.offline_replicas) == (2, (2,), (1,))


def test_metadata_of_unknown_topics_is_an_error_each() -> None:
    world = joined(1)
    topic = world.create("t", (1,))
    wanted = (
        MetadataRequestTopic(name="t"),
        MetadataRequestTopic(name="no"),
        MetadataRequestTopic(name=None, topic_id=topic),
        MetadataRequestTopic(name=None, topic_id=Uuid.of(1, 9)),
    )
    answer = world.ask(MetadataRequest(topics=wanted))
    assert [found.error_code for found in answer.topics] == [0, 3, 0, 100]
    assert answer.topics[1].topic_id == ZERO


def test_cluster_is_described_by_kind_of_endpoint() -> None:
    world = joined(1)
    world.register(2)
    brokers = world.ask(DescribeClusterRequest(endpoint_type=1))
    assert [broker.broker_id for broker in brokers.brokers] == [1]
    fenced = world.ask(DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True))
    assert [(broker.broker_id, broker.is_fenced) for broker in fenced.brokers] == [(1, False), (2, True)]
    controllers = world.ask(DescribeClusterRequest(endpoint_type=2))
    assert [broker.broker_id for broker in controllers.brokers] == [NODE_ID]
    assert world.ask(DescribeClusterRequest(endpoint_type=3)).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def test_a_topic_is_described_once_however_often_it_is_named() -> None:
    world = World()
    world.join(1)
    world.create("t", (1,))
    answer = world.ask(MetadataRequest(topics=(MetadataRequestTopic(name="t"), MetadataRequestTopic(name="no")) * 500))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("t", 0),
        ("no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("version", range(14))
def test_metadata_of_no_topics_is_all_of_them_in_version_0_and_none_later(version: int) -> None:
    world = World()
    world.join(1)
    world.create("t", (1,))
    answer = world.ask(MetadataRequest(topics=()), version)
    assert [topic.name for topic in answer.topics] == ([] if version else ["t"])


@pytest.mark.parametrize(("version", "code"), [(10, 42), (11, 42), (12, 100), (13, 100)])
def test_topic_ids_in_versions_whose_answer_has_no_place_for_them_are_refused(version: int, code: int) -> None:
    world = World()
    answer = world.ask(MetadataRequest(topics=(MetadataRequestTopic(topic_id=Uuid.of(9, 9), name=None),)), version)
    assert [topic.error_code for topic in answer.topics] == [code]
    assert encode_response(answer, version, 1)
