"""Dynamic configurations: what may be set, in Kafka's words, what is written, and what is told about it."""

import json
from pathlib import Path

import pytest

from kjbod.metadata import versions
from kjbod.metadata.image import BROKER, TOPIC
from kjbod.metadata.records import ClearElrRecord, ConfigRecord
from kjbod.wire.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestResource,
    ListConfigResourcesRequest,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_response
from kjbod.wire.messages import (
    ApiKey,
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.rules import KAFKA
from tests.controller.world import NODE_ID, World

TOPICS_NEW_IN_4_4 = {
    *("errors.deadletterqueue.group.enable", "max.decompressed.message.bytes"),
    *("remote.copy.lag.bytes", "remote.copy.lag.ms"),
}
NEW_IN_4_4 = {
    *("errors.deadletterqueue.auto.create.topics.enable", "errors.deadletterqueue.topic.name.prefix"),
    *(f"group.{kind}.assignor.offload.enable" for kind in ("consumer", "share", "streams")),
    *("group.share.dlq.manager.class.name", "group.streams.acceptable.recovery.lag", "group.streams.assignors"),
    *("group.streams.max.warmup.replicas", "group.streams.min.task.offset.interval.ms"),
    *("group.streams.num.warmup.replicas", "group.streams.rack.aware.assignment.tags"),
    *("group.streams.task.offset.interval.ms", "group.streams.topology.description.plugin.class"),
    *("log.remote.copy.lag.bytes", "log.remote.copy.lag.ms", "max.decompressed.message.bytes"),
    *("sasl.oauthbearer.allow.unverified.audience", "sasl.oauthbearer.allow.unverified.issuer"),
}
"""The golden frames are those of 4.3.1; all keys of 4.4.0 are compared in test_configs_kafka.py."""

SET, DELETE, APPEND, SUBTRACT = range(4)
LOGGER, METRICS, GROUP = 8, 16, 32
THROTTLE = "replica.alter.log.dirs.io.max.bytes.per.second"
REPLICAS = "leader.replication.throttled.replicas"
MIN_ISR = "min.insync.replicas"
INVALID, BAD = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST

Change = tuple[str, int, str | None]
Outcome = tuple[int, str | None]


def cluster(world: World) -> World:
    for broker in (1, 2):
        world.join(broker)
    world.create("t", (1, 2))
    return world


@pytest.fixture
def world() -> World:
    return cluster(World())


@pytest.fixture
def kafka() -> World:
    return cluster(World(rules=KAFKA))


def asks(kind: int, name: str, *changes: Change, dry: bool = False) -> IncrementalAlterConfigsRequest:
    configs = tuple(
        IncrementalAlterConfigsRequestConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry)


def alter(world: World, kind: int, name: str, *changes: Change, dry: bool = False) -> Outcome:
    answer = world.ask(asks(kind, name, *changes, dry=dry)).responses[0]
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return answer.error_code, answer.error_message


def replace(world: World, kind: int, name: str, configs: dict[str, str | None], *, dry: bool = False) -> Outcome:
    resource = AlterConfigsRequestResource(
        resource_type=kind,
        resource_name=name,
        configs=tuple(AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in configs.items()),
    )
    answer = world.ask(AlterConfigsRequest(resources=(resource,), validate_only=dry)).responses[0]
    return answer.error_code, answer.error_message


def configured(world: World, kind: int, name: str) -> dict[str, str]:
    return dict(world.controller.image.configs.get((kind, name), {}))


# ---- what is written


def test_throttles_are_set_and_cleared(world: World) -> None:
    assert alter(world, BROKER, "1", (THROTTLE, SET, "1000")) == (0, None)
    assert world.last == [ConfigRecord(resource_type=BROKER, resource_name="1", name=THROTTLE, value="1000")]
    assert configured(world, BROKER, "1") == {THROTTLE: "1000"}
    assert alter(world, BROKER, "1", (THROTTLE, DELETE, None)) == (0, None)
    assert configured(world, BROKER, "1") == {}
    assert world.replayed().image == world.controller.image


def test_what_is_unset_already_is_written_again_for_brokers_and_not_for_topics(world: World) -> None:
    """KAFKA-14136."""
    assert alter(world, BROKER, "", (THROTTLE, DELETE, None)) == (0, None)
    assert len(world.last) == 1
    assert alter(world, TOPIC, "t", (REPLICAS, DELETE, None), ("no.such", DELETE, None)) == (0, None)
    assert world.last == []


def test_lists_grow_and_shrink(world: World) -> None:
    for operation, value, after in (
        (SET, "0:1", "0:1"),
        (APPEND, "0:2,0:1,0:2,", "0:1,0:2"),
        (SUBTRACT, "0:1,9:9", "0:2"),
        (SUBTRACT, "0:2", ""),
    ):
        assert alter(world, TOPIC, "t", (REPLICAS, operation, value)) == (0, None)
        assert configured(world, TOPIC, "t") == {REPLICAS: after}


def test_a_list_that_is_not_set_grows_from_its_default(world: World) -> None:
    assert alter(world, TOPIC, "t", ("cleanup.policy", APPEND, "compact")) == (0, None)
    assert configured(world, TOPIC, "t") == {"cleanup.policy": "delete,compact"}
    assert alter(world, BROKER, "1", ("log.cleanup.policy", APPEND, "compact")) == (0, None)
    assert configured(world, BROKER, "1") == {"log.cleanup.policy": "delete,compact"}


def test_a_resource_is_changed_whole_or_not_at_all_and_a_dry_run_changes_nothing(world: World) -> None:
    assert alter(world, TOPIC, "t", (REPLICAS, SET, "*"), ("colour", SET, "red"))[0] == INVALID
    assert world.last == []
    assert alter(world, TOPIC, "t", (REPLICAS, SET, "*"), dry=True) == (0, None)
    assert alter(world, TOPIC, "t", (REPLICAS, SET, "x"), dry=True)[0] == INVALID
    assert world.last == []


def test_each_resource_is_on_its_own_and_one_that_comes_twice_is_refused(world: World) -> None:
    world.create("u", (1,))
    one, other, bad = (
        asks(TOPIC, name, ("retention.ms", SET, value)).resources[0]
        for name, value in (("t", "5"), ("u", "6"), ("none", "7"))
    )
    answer = world.ask(IncrementalAlterConfigsRequest(resources=(one, bad, other, one)))
    outcomes = {each.resource_name: (each.error_code, each.error_message) for each in answer.responses}
    assert outcomes == {
        "t": (BAD, "Duplicate resource."),
        "none": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The topic 'none' does not exist."),
        "u": (0, None),
    }
    assert configured(world, TOPIC, "u") == {"retention.ms": "6"}
    assert configured(world, TOPIC, "t") == {}


def test_more_changes_than_can_be_one_write_are_refused_whole(world: World) -> None:
    changes = tuple((f"key{number}", DELETE, None) for number in range(10_001))
    assert alter(world, BROKER, "1", *changes)[0] == ErrorCode.POLICY_VIOLATION
    assert world.last == []


def test_the_older_request_replaces_all_that_a_resource_has(world: World) -> None:
    assert replace(world, TOPIC, "t", {"retention.ms": "5", "segment.ms": "6"}) == (0, None)
    assert replace(world, TOPIC, "t", {"segment.ms": "6"}, dry=True) == (0, None)
    assert world.last == []
    assert replace(world, TOPIC, "t", {"segment.ms": "6"}) == (0, None)
    assert world.last == [ConfigRecord(resource_type=TOPIC, resource_name="t", name="retention.ms", value=None)]
    assert replace(world, TOPIC, "t", {"segment.ms": "0"}) == (
        INVALID,
        "Invalid value 0 for configuration segment.ms: Value must be at least 1",
    )
    assert replace(world, TOPIC, "t", {"segment.ms": None}) == (0, None)
    assert configured(world, TOPIC, "t") == {}
    assert replace(world, LOGGER, str(NODE_ID), {}) == (BAD, "Unexpected resource type BROKER_LOGGER.")
    assert replace(world, 99, "x", {}) == (ErrorCode.UNSUPPORTED_VERSION, "Unknown resource type 99.")


# ---- min.insync.replicas, with eligible leader replicas


def test_another_min_insync_replicas_clears_what_was_eligible(world: World) -> None:
    assert alter(world, TOPIC, "t", (MIN_ISR, SET, "2")) == (0, None)
    assert world.last[1:] == [ClearElrRecord(topic_name="t")]
    assert alter(world, BROKER, "", (MIN_ISR, SET, "2")) == (0, None)
    assert world.last[1:] == [ClearElrRecord(topic_name="")]
    assert alter(world, TOPIC, "t", (MIN_ISR, SET, "2")) == (0, None)
    assert world.last == []


def test_all_brokers_have_one_min_insync_replicas(world: World) -> None:
    assert alter(world, BROKER, "1", (MIN_ISR, SET, "2")) == (
        INVALID,
        "Broker-level min.insync.replicas cannot be altered while ELR is enabled.",
    )
    assert alter(world, BROKER, "", (MIN_ISR, DELETE, None)) == (
        INVALID,
        "Cluster-level min.insync.replicas cannot be removed while ELR is enabled.",
    )
    assert replace(world, BROKER, "", {})[0] == INVALID
    without = cluster(World(with_elr=False))
    assert alter(without, BROKER, "1", (MIN_ISR, SET, "2")) == (0, None)
    assert len(without.last) == 1


# ---- what is refused


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("retention.ms", "-2", "Value must be at least -1"),
        ("retention.ms", "abc", "Not a number of type LONG"),
        ("retention.ms", "", "Not a number of type LONG"),
        ("retention.ms", "9223372036854775808", "Not a number of type LONG"),
        ("retention.ms", "1.5", "Not a number of type LONG"),
        ("segment.bytes", "1048575", "Value must be at least 1048576"),
        ("segment.bytes", "2147483648", "Not a number of type INT"),
        ("compression.lz4.level", "18", "Value must be no more than 17"),
        ("compression.zstd.level", "-131073", "Value must be at least -131072"),
        ("compression.gzip.level", "0", "Value must be between 1 and 9 or equal to -1"),
        ("min.cleanable.dirty.ratio", "1.1", "Value must be no more than 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "Value must be at least 0"),
        ("min.cleanable.dirty.ratio", "x", "Not a number of type DOUBLE"),
        ("preallocate", "yes", "Expected value to be either true or false"),
        ("message.timestamp.type", "now", "String must be one of: CreateTime, LogAppendTime"),
        (
            "compression.type",
            "zip",
            "String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        ("cleanup.policy", "DELETE", "String must be one of: compact, delete"),
    ],
)
def test_a_value_that_is_none_of_its_type_or_out_of_range_is_named(
    world: World, key: str, value: str, why: str
) -> None:
    assert alter(world, TOPIC, "t", (key, SET, value)) == (
        INVALID,
        f"Invalid value {value} for configuration {key}: {why}",
    )
    assert world.last == []


@pytest.mark.parametrize(
    ("kind", "name", "change", "code", "message"),
    [
        (TOPIC, "u", (REPLICAS, SET, "*"), 3, "The topic 'u' does not exist."),
        (TOPIC, "", (REPLICAS, SET, "*"), BAD, "Default topic resources are not allowed."),
        (TOPIC, "t", ("colour", SET, "red"), INVALID, "Unknown topic config name: colour"),
        (
            TOPIC,
            "t",
            ("cleanup.policy", SET, "a,,b"),
            INVALID,
            "Configuration 'cleanup.policy' values must not be empty.",
        ),
        (
            TOPIC,
            "t",
            ("retention.ms", APPEND, "5"),
            INVALID,
            "Can't APPEND to key retention.ms because its type is not LIST.",
        ),
        (TOPIC, "t", (REPLICAS, SUBTRACT, None), BAD, f"Null value not supported for : {REPLICAS}"),
        (TOPIC, "t", (REPLICAS, 7, "*"), BAD, "Unknown operations type 7"),
        (
            TOPIC,
            "t",
            ("max.compaction.lag.ms", SET, "5"),
            INVALID,
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        ),
        (
            TOPIC,
            "t",
            ("remote.storage.enable", SET, "true"),
            INVALID,
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log "
            "storage.",
        ),
        (BROKER, "9", (THROTTLE, SET, "5"), ErrorCode.BROKER_ID_NOT_REGISTERED, "No node with id 9 found."),
        (BROKER, "one", (THROTTLE, SET, "5"), BAD, "Unable to parse broker name as a base 10 number."),
        (BROKER, "2147483648", (THROTTLE, SET, "5"), BAD, "Unable to parse broker name as a base 10 number."),
        (BROKER, "-1", (THROTTLE, SET, "5"), BAD, "Invalid negative broker ID."),
        (
            BROKER,
            "1",
            ("cordoned.log.dirs", SET, "*"),
            INVALID,
            "When updating cordoned.log.dirs via controllers,  the new value must be a subset of the current "
            "configuration value.",
        ),
        (LOGGER, "1", ("root", SET, "DEBUG"), BAD, f"Unexpected node id. Expected {NODE_ID}, but received 1"),
        (99, "1", ("root", SET, "DEBUG"), ErrorCode.UNSUPPORTED_VERSION, "Unknown resource type 99."),
        (METRICS, "", ("interval.ms", SET, "100"), BAD, "Subscription name can't be empty"),
        (METRICS, "m", ("colour", SET, "red"), BAD, "Unknown client metrics configuration: colour"),
        (
            METRICS,
            "m",
            ("interval.ms", SET, "99"),
            BAD,
            "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 hour)",
        ),
        (METRICS, "m", ("match", SET, "client_id=[a"), INVALID, "Illegal client matching pattern: client_id=[a"),
        (METRICS, "m", ("match", SET, "shoe=a"), INVALID, "Illegal client matching pattern: shoe=a"),
        (GROUP, "", ("share.isolation.level", SET, "x"), BAD, "Default group resources are not allowed."),
        (GROUP, "g", ("colour", SET, "red"), INVALID, "Unknown group config name: colour"),
        (
            GROUP,
            "g",
            ("consumer.session.timeout.ms", SET, "44999"),
            INVALID,
            "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
        (
            GROUP,
            "g",
            ("streams.num.standby.replicas", SET, "3"),
            INVALID,
            "streams.num.standby.replicas must be less than or equal to 2",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_kafkas_words_and_changes_nothing(
    world: World, kind: int, name: str, change: Change, code: int, message: str
) -> None:
    alter(world, TOPIC, "t", ("min.compaction.lag.ms", SET, "10"))
    assert alter(world, kind, name, change) == (code, message)
    assert world.last == []


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        (TOPIC, "t", ("retention.ms", SET, " +7 ")),
        (TOPIC, "t", ("min.cleanable.dirty.ratio", SET, "5e-1")),
        (TOPIC, "t", ("cleanup.policy", SET, "")),
        (TOPIC, "t", ("cleanup.policy", SET, "compact , delete")),
        (TOPIC, "t", (REPLICAS, SET, "0:1,1:2")),
        (TOPIC, "t", ("preallocate", SET, "TRUE")),
        (BROKER, str(NODE_ID), ("log.retention.ms", SET, "5")),
        (BROKER, "", ("my.plugins.own", SET, "x")),
        (METRICS, "m", ("match", SET, "client_id=a.*,client_source_port=12")),
        (METRICS, "m", ("match", SET, r"client_id=\p{Alpha}+(?<rest>[[a])")),
        (GROUP, "g", ("share.auto.offset.reset", SET, "by_duration:PT1H")),
        (GROUP, "g", ("consumer.session.timeout.ms", SET, "60000")),
    ],
)
def test_what_kafka_takes_is_written_as_it_was_sent(world: World, kind: int, name: str, change: Change) -> None:
    assert alter(world, kind, name, change) == (0, None)
    assert world.last == [ConfigRecord(resource_type=kind, resource_name=name, name=change[0], value=change[2])]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("log.dirs", "/d", "Broker config log.dirs cannot be changed while a broker runs."),
        (THROTTLE, "fast", f"Invalid value fast for configuration {THROTTLE}: Not a number of type LONG"),
        ("num.io.threads", "0", "Invalid value 0 for configuration num.io.threads: Value must be at least 1"),
    ],
)
def test_brokers_get_only_what_they_would_act_on_and_kafka_takes_anything(
    world: World, kafka: World, key: str, value: str, message: str
) -> None:
    assert alter(world, BROKER, "1", (key, SET, value)) == (INVALID, message)
    assert world.last == []
    assert alter(kafka, BROKER, "1", (key, SET, value)) == (0, None)
    assert configured(kafka, BROKER, "1") == {key: value}


def test_what_is_of_single_brokers_is_not_set_for_all(world: World) -> None:
    assert alter(world, BROKER, "", ("ssl.keystore.type", SET, "PEM")) == (
        INVALID,
        "Broker config ssl.keystore.type can be set for single brokers only.",
    )
    assert alter(world, BROKER, "1", ("ssl.keystore.type", SET, "PEM")) == (0, None)


def test_a_broker_may_cordon_for_itself_and_anybody_may_end_it(world: World) -> None:
    request = asks(BROKER, "1", ("cordoned.log.dirs", SET, "/a,/b"))
    result = world.controller.handle(request, Context(1, forwarded=True), world.now_ms)
    world.write(result)
    assert configured(world, BROKER, "1") == {"cordoned.log.dirs": "/a,/b"}
    assert alter(world, BROKER, "1", ("cordoned.log.dirs", SET, "/b")) == (0, None)
    assert alter(world, BROKER, "1", ("cordoned.log.dirs", SET, "")) == (0, None)
    old = cluster(World(metadata_version=versions.CORDONED_LOG_DIRS - 1))
    assert alter(old, BROKER, "1", ("cordoned.log.dirs", SET, "")) == (
        INVALID,
        "The cordoned.log.dirs configuration value cannot be set because it requires metadata.version >= 4.3-IV0",
    )


def test_remote_storage_is_checked_as_a_whole_where_the_cluster_has_it() -> None:
    world = cluster(World(static_configs={"remote.log.storage.system.enable": "true"}))
    on = ("remote.storage.enable", SET, "true")
    for changes, message in (
        (
            (("cleanup.policy", SET, "compact"),),
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list.",
        ),
        (
            (("local.retention.ms", SET, "10"), ("retention.ms", SET, "5")),
            "Invalid value 10 for configuration local.retention.ms: Value must not be more than retention.ms property "
            "value: 5",
        ),
        (
            (("local.retention.bytes", SET, "-1"), ("retention.bytes", SET, "5")),
            "Invalid value -1 for configuration local.retention.bytes: Value must not be -1 as retention.bytes value "
            "is set as 5.",
        ),
    ):
        assert alter(world, TOPIC, "t", on, *changes) == (INVALID, message)
    assert alter(world, TOPIC, "t", on) == (0, None)
    code, why = alter(world, TOPIC, "t", ("remote.storage.enable", SET, "false"))
    assert code == INVALID
    assert (why or "").startswith("It is invalid to disable remote storage without deleting remote data.")
    assert alter(
        world, TOPIC, "t", ("remote.storage.enable", SET, "false"), ("remote.log.delete.on.disable", SET, "true")
    ) == (
        0,
        None,
    )


# ---- what is told


def describe(
    world: World, kind: int, name: str, keys: tuple[str, ...] | None = None, *, synonyms: bool = True
) -> tuple[int, str | None, dict[str, DescribeConfigsResponseConfig]]:
    resource = DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    answer = world.ask(DescribeConfigsRequest(resources=(resource,), include_synonyms=synonyms)).results[0]
    return answer.error_code, answer.error_message, {config.name: config for config in answer.configs}


def places(config: DescribeConfigsResponseConfig) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in config.synonyms]


def golden(pair: int) -> CreateTopicsResponse | DescribeConfigsResponse:
    """A real controller's answer."""
    for line in (Path(__file__).parents[1] / "data/frames.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["id"] == pair and entry["direction"] == "response":
            message = decode_response(bytes.fromhex(entry["hex"]), ApiKey(entry["key"]), entry["version"]).message
            assert isinstance(message, CreateTopicsResponse | DescribeConfigsResponse)
            return message
    raise AssertionError(f"no pair {pair}")


def test_a_controllers_own_configuration_is_told_as_a_real_controller_tells_it() -> None:
    """Golden frame 52: every key, value, source, synonym and type."""
    real = golden(52)
    assert isinstance(real, DescribeConfigsResponse)
    static = {config.name: config.value for config in real.results[0].configs if config.config_source == 4}
    world = World(static_configs={name: value for name, value in static.items() if name != "broker.id" and value})
    _, _, told = describe(world, BROKER, str(NODE_ID))
    expected = {config.name: config for config in real.results[0].configs}
    assert {name: config for name, config in told.items() if name not in NEW_IN_4_4} == expected
    assert told.keys() - expected.keys() == NEW_IN_4_4


def test_a_topics_answer_has_the_configuration_that_a_real_controller_tells() -> None:
    """Golden frame 35."""
    real = golden(35)
    assert isinstance(real, CreateTopicsResponse)
    world = World()
    world.join(1)
    configs = tuple(
        CreateTopicsRequestConfig(name=name, value=value)
        for name, value in (
            ("compression.type", "producer"),
            ("cleanup.policy", "compact"),
            ("segment.bytes", "104857600"),
        )
    )
    topic = CreateTopicsRequestTopic(name="__consumer_offsets", num_partitions=3, replication_factor=1, configs=configs)
    answer = world.ask(CreateTopicsRequest(topics=(topic,)))
    told = answer.topics[0].configs or ()
    assert tuple(config for config in told if config.name not in TOPICS_NEW_IN_4_4) == real.topics[0].configs
    assert {config.name for config in told} >= TOPICS_NEW_IN_4_4


def test_a_topics_values_come_with_the_places_that_they_could_come_from() -> None:
    world = cluster(World(static_configs={"log.retention.hours": "24"}))
    alter(world, TOPIC, "t", ("retention.ms", SET, " 9 "))
    alter(world, BROKER, str(NODE_ID), ("log.retention.ms", SET, "123"))
    alter(world, BROKER, "", ("log.retention.ms", SET, "456"), ("log.segment.bytes", SET, "2000000"))
    code, message, told = describe(world, TOPIC, "t")
    assert (code, message) == (0, "")
    retention = told["retention.ms"]
    assert (retention.value, retention.config_source, retention.config_type, retention.read_only) == ("9", 1, 5, False)
    assert places(retention) == [
        ("retention.ms", "9", 1),
        ("log.retention.ms", "123", 2),
        ("log.retention.ms", "456", 3),
        ("log.retention.hours", "24", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert (told["segment.bytes"].value, told["segment.bytes"].config_source) == ("2000000", 3)
    assert set(describe(world, TOPIC, "t", ("retention.ms", "no.such"))[2]) == {"retention.ms"}
    assert describe(world, TOPIC, "t", ("retention.ms",), synonyms=False)[2]["retention.ms"].synonyms == ()


def test_secrets_and_keys_that_nobody_knows_are_told_without_their_value() -> None:
    static = {"ssl.keystore.password": "hush", "my.plugin": "x"}
    _, _, told = describe(World(static_configs=static), BROKER, str(NODE_ID))
    for name in static:
        config = told[name]
        assert (config.value, config.is_sensitive, config.config_source) == (None, True, 4)
        assert places(config) == [(name, None, 4)]
    assert "hush" not in str(told)


def test_what_no_broker_acts_on_is_not_told(kafka: World) -> None:
    for key, value in (
        ("log.retention.ms", "x"),
        ("log.dirs", "/x"),
        ("no.such", "5"),
        ("log.segment.bytes", "2000000"),
    ):
        assert alter(kafka, BROKER, "", (key, SET, value)) == (0, None)
    told = describe(kafka, BROKER, "")[2]
    assert set(told) == {"log.segment.bytes", "no.such", MIN_ISR}
    assert (told["no.such"].value, told["no.such"].is_sensitive) == (None, True), "a plug-in's; it may be a secret"


def test_groups_and_client_metrics_are_told_with_their_defaults(world: World) -> None:
    alter(world, GROUP, "g", ("share.auto.offset.reset", SET, "earliest"))
    _, _, told = describe(world, GROUP, "g")
    assert len(told) == 21
    assert places(told["share.auto.offset.reset"]) == [
        ("share.auto.offset.reset", "earliest", 8),
        ("share.auto.offset.reset", "latest", 5),
    ]
    assert places(told["consumer.session.timeout.ms"]) == [("group.consumer.session.timeout.ms", "45000", 5)]
    alter(world, METRICS, "m", ("metrics", SET, "a,a"))
    _, _, told = describe(world, METRICS, "m")
    assert {name: (config.value, config.config_source) for name, config in told.items()} == {
        "metrics": ("a", 7),
        "interval.ms": ("300000", 5),
        "match": ("", 5),
    }


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "none", 3, ""),
        (TOPIC, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "1", BAD, f"Unexpected broker id, expected {NODE_ID} or empty string, but received 1"),
        (BROKER, "x", BAD, "Broker id must be an integer, but it is: x"),
        (LOGGER, "1", BAD, f"Unexpected broker id, expected {NODE_ID} but received 1"),
        (GROUP, "", BAD, "Group name must not be empty"),
        (METRICS, "", BAD, "Client metrics subscription name must not be empty"),
    ],
)
def test_what_a_controller_does_not_know_is_said(world: World, kind: int, name: str, code: int, message: str) -> None:
    assert describe(world, kind, name) == (code, message, {})


def test_an_answer_is_bounded_however_often_a_resource_is_named(world: World) -> None:
    one = DescribeConfigsRequestResource(resource_type=BROKER, resource_name=str(NODE_ID))
    assert len(world.ask(DescribeConfigsRequest(resources=(one,) * 5_000)).results) == 1
    many = tuple(DescribeConfigsRequestResource(resource_type=GROUP, resource_name=str(n)) for n in range(201))
    results = world.ask(DescribeConfigsRequest(resources=many)).results
    assert {each.error_code for each in results} == {ErrorCode.POLICY_VIOLATION}
    assert not any(each.configs for each in results)


def test_resources_that_have_a_configuration_are_listed_by_kind(world: World) -> None:
    alter(world, METRICS, "m", ("interval.ms", SET, "100"))
    alter(world, GROUP, "g", ("share.auto.offset.reset", SET, "earliest"))
    everything = world.ask(ListConfigResourcesRequest())
    assert {(each.resource_type, each.resource_name) for each in everything.config_resources} == {
        (TOPIC, "t"),
        (BROKER, "1"),
        (BROKER, "2"),
        (LOGGER, "1"),
        (LOGGER, "2"),
        (METRICS, "m"),
        (GROUP, "g"),
    }
    groups = world.ask(ListConfigResourcesRequest(resource_types=(GROUP,)))
    assert [each.resource_name for each in groups.config_resources] == ["g"]
    oldest = world.ask(ListConfigResourcesRequest(), 0)
    assert [each.resource_name for each in oldest.config_resources] == ["m"]
    unknown = world.ask(ListConfigResourcesRequest(resource_types=(99,)))
    assert unknown.error_code == ErrorCode.UNSUPPORTED_VERSION
