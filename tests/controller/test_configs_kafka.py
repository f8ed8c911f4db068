"""A real controller of Kafka 4.4.0 is the judge of topics and configurations: the same answers, texts and records."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kjbod.metadata.image import BROKER, TOPIC
from kjbod.wire.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsRequestAlterableConfig,
    AlterConfigsRequestResource,
    CreatePartitionsRequest,
    CreatePartitionsRequestAssignment,
    CreatePartitionsRequestTopic,
)
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from tests.controller.pair import Difference
from tests.controller.random_requests import Step
from tests.controller.test_configs import APPEND, DELETE, GROUP, METRICS, SET, SUBTRACT, Change
from tests.controller.test_differential import NODE_ID, both, joined, tell

STATIC = (
    "log.retention.hours=24\nlog.roll.ms=5000\nlog.cleanup.policy=compact, delete\nmy.plugin=x\n"
    "group.consumer.session.timeout.ms=46000\nmin.insync.replicas=1\n"
)

TOPIC_VALUES = [
    ("retention.ms", ("-1", "-2", "abc", "+5", " 7 ", "", "1.5", "9223372036854775808")),
    ("retention.bytes", ("-100",)),
    ("segment.bytes", ("1048575", "4294967296", "1048576")),
    ("cleanup.policy", ("compact", "foo", "", "compact,foo", "compact,,delete", ",", "delete,delete", "DELETE")),
    ("compression.type", ("zip", "zstd")),
    ("compression.gzip.level", ("0", "10", "9", "-1")),
    ("compression.lz4.level", ("18", "1")),
    ("compression.zstd.level", ("23", "-131073", "-131072")),
    ("min.cleanable.dirty.ratio", ("1.1", "-0.1", "x", "5e-1", "NaN", "1d", ".5")),
    ("min.insync.replicas", ("0", "3", "1")),
    ("preallocate", ("yes", " true ", "FALSE")),
    ("message.timestamp.type", ("now", "LogAppendTime")),
    ("unclean.leader.election.enable", ("1", "false")),
    ("leader.replication.throttled.replicas", ("*", "0:1,1:2", "0:1,x", "", "*,0:1", "0:1,0:1", "-1:1")),
    ("max.compaction.lag.ms", ("0", "5")),
    ("remote.storage.enable", ("true",)),
    ("local.retention.ms", ("-3", "999999999999")),
    ("remote.copy.lag.ms", ("-2", "5")),
    ("remote.copy.lag.bytes", ("-2", "5")),
    ("max.decompressed.message.bytes", ("0", "2147483640", "5")),
    ("errors.deadletterqueue.group.enable", ("yes", "true")),
    ("internal.segment.bytes", ("5",)),
    ("message.format.version", ("2.0",)),
    ("no such", ("",)),
]
GROUP_VALUES = [
    ("consumer.session.timeout.ms", ("44999", "50000", "60001")),
    ("consumer.heartbeat.interval.ms", ("4999", "15001", "x", "5000")),
    ("share.auto.offset.reset", ("foo", "by_duration:PT1H", "by_duration:x", "by_duration:-PT1H", "earliest")),
    ("share.isolation.level", ("x", "read_committed")),
    ("share.record.lock.duration.ms", ("14999", "999", "60001")),
    ("share.delivery.count.limit", ("1", "11")),
    ("streams.num.standby.replicas", ("3", "2")),
    ("streams.initial.rebalance.delay.ms", ("-1", "0")),
    ("streams.num.warmup.replicas", ("21", "-1", "2")),
    ("streams.task.offset.interval.ms", ("14999", "60000")),
    ("streams.assignor.name", ("x", "sticky")),
    ("streams.rack.aware.assignment.tags", ("a,b", "a , a")),
    ("streams.acceptable.recovery.lag", ("-1", "5")),
    ("share.assignor.offload.enable", ("x", "true")),
    ("errors.deadletterqueue.topic.name", ("__x", "dlq.x")),
    ("no.such", ("1",)),
]
METRICS_VALUES = [
    ("interval.ms", ("99", "100", "x", "3600001")),
    ("metrics", ("", "a,b", "*,a", "a,a")),
    ("match", ("client_id=x", "client_id=[a", "foo=bar", "client_id", "", "client_source_port=1,client_id=a.*")),
    ("no.such", ("1",)),
]


def sends(name: str, request: Any) -> Step:
    return name, lambda view: request


def change(kind: int, name: str, *changes: Change, dry: bool = False) -> Step:
    configs = tuple(
        IncrementalAlterConfigsRequestConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    )
    resource = IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry)
    return sends(f"change {kind} {name} {changes}", request)


def whole(kind: int, name: str, configs: dict[str, str | None]) -> Step:
    values = tuple(AlterConfigsRequestAlterableConfig(name=key, value=value) for key, value in configs.items())
    resource = AlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=values)
    return sends(f"replace {kind} {name} {configs}", AlterConfigsRequest(resources=(resource,)))


def tells(kind: int, name: str, keys: tuple[str, ...] | None = None) -> Step:
    resource = DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return sends(f"tell {kind} {name}", DescribeConfigsRequest(resources=(resource,), include_synonyms=True))


def placed(*replicas: tuple[int, ...], first: int = 0) -> tuple[CreateTopicsRequestAssignment, ...]:
    return tuple(
        CreateTopicsRequestAssignment(partition_index=number, broker_ids=brokers)
        for number, brokers in enumerate(replicas, start=first)
    )


def makes(*topics: dict[str, Any], dry: bool = False) -> Step:
    request = CreateTopicsRequest(
        topics=tuple(CreateTopicsRequestTopic(**topic) for topic in topics), validate_only=dry, timeout_ms=30_000
    )
    return sends(f"create {topics}"[:200], request)


def config(**values: str | None) -> tuple[CreateTopicsRequestConfig, ...]:
    return tuple(CreateTopicsRequestConfig(name=key.replace("_", "."), value=value) for key, value in values.items())


def adds(name: str, count: int, *replicas: tuple[int, ...], dry: bool = False) -> Step:
    assignments = tuple(CreatePartitionsRequestAssignment(broker_ids=brokers) for brokers in replicas) or None
    topic = CreatePartitionsRequestTopic(name=name, count=count, assignments=assignments)
    request = CreatePartitionsRequest(topics=(topic,), timeout_ms=30_000, validate_only=dry)
    return sends(f"add {name} {count} {replicas}", request)


def removes(*topics: DeleteTopicsRequestTopic) -> Step:
    return sends(f"delete {topics}", DeleteTopicsRequest(topics=topics, timeout_ms=30_000))


def values(kind: int, name: str, table: list[tuple[str, tuple[str, ...]]]) -> Iterator[Step]:
    for key, tried in table:
        for value in tried:
            yield change(kind, name, (key, SET, value))


def topics() -> Iterator[Step]:
    by_hand = placed((1, 2), (2, 3), (3, 1))
    yield makes({"name": "t", "assignments": by_hand, "configs": config(min_insync_replicas="2", retention_ms="5")})
    yield makes({"name": "a.b", "assignments": placed((1,))})
    for name in ("", ".", "..", "a b", "x" * 250, "__cluster_metadata", "t", "a_b"):
        yield makes({"name": name, "assignments": placed((1,))})
    for wrong in (
        {"num_partitions": 0},
        {"replication_factor": 0},
        {"num_partitions": 0, "replication_factor": -2},
        {"replication_factor": 9},
        {"num_partitions": 10_001},
        {"num_partitions": 1, "assignments": placed((1,))},
        {"replication_factor": 1, "assignments": placed((1,))},
        {"assignments": placed((1, 1))},
        {"assignments": placed((9,))},
        {"assignments": placed(())},
        {"assignments": placed((1, 2), (1,))},
        {"assignments": placed((1,), first=1)},
        {"assignments": placed((1,)) + placed((2,))},
        {"assignments": placed((4,))},
        {"configs": config(no_such="1")},
        {"configs": config(segment_ms=None, no_such=None)},
        {"configs": config(segment_ms="0")},
    ):
        yield makes({"name": "u", **wrong})
    yield makes({"name": "u", "num_partitions": 0}, {"name": "t"}, dry=True)
    yield makes({"name": "u"}, {"name": "u"}, {"name": "t"}, {"name": ""})
    yield makes({"name": "v", "assignments": placed((4, 1)), "configs": config(cleanup_policy="compact, delete")})
    for wrong_count in (3, 2, 0, -1):
        yield adds("t", wrong_count)
    yield adds("none", 3)
    for replicas in (((1, 2), (2, 3)), ((1,),), ((1, 9),), ((1, 1),), ((),), ((4, 4),)):
        yield adds("t", 4, *replicas)
    yield adds("t", 4, (2, 1), dry=True)
    yield adds("t", 4, (2, 1))
    yield adds("v", 2, (4, 3))


def settings() -> Iterator[Step]:
    yield from values(TOPIC, "v", TOPIC_VALUES)
    policy, replicas = "cleanup.policy", "follower.replication.throttled.replicas"
    yield change(TOPIC, "v", ("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5"))
    for one in (
        ("retention.ms", DELETE, None),
        ("no.such", DELETE, "5"),
        ("retention.ms", SET, None),
        ("retention.ms", APPEND, "5"),
        ("no.such", SUBTRACT, "5"),
        (policy, DELETE, None),
        (policy, APPEND, "compact"),
        (policy, SUBTRACT, "delete"),
        (policy, SUBTRACT, "compact"),
        (policy, APPEND, ""),
        (replicas, APPEND, "0:1,0:1"),
        (replicas, APPEND, "0:1,1:1,"),
        (replicas, SUBTRACT, "1:1,9:9"),
    ):
        yield change(TOPIC, "v", one)
    yield change(TOPIC, "v", ("retention.ms", SET, "5"), ("retention.ms", SET, "6"))
    yield change(TOPIC, "v", ("retention.ms", SET, "7"), ("no.such", SET, "6"))
    yield change(TOPIC, "v", ("retention.ms", SET, "77"), dry=True)
    yield change(TOPIC, "v", ("retention.ms", SET, "x"), dry=True)
    many = ("flush.ms", "segment.ms", "retention.bytes", "delete.retention.ms", "flush.messages")
    yield change(TOPIC, "t", *((key, SET, "5") for key in many))
    yield change(TOPIC, "t", ("x.unknown", SET, "1"), ("b.unknown", SET, "1"), ("retention.ms", SET, "5"))
    yield whole(TOPIC, "t", {**dict.fromkeys(reversed(many), "6"), "min.insync.replicas": "2", "retention.ms": "5"})
    for name in ("", "none", "no ne", "__cluster_metadata"):
        yield change(TOPIC, name, ("retention.ms", SET, "5"))
    for name in ("1", "", "9", str(NODE_ID), "-1", "x", "01", "+1", " 1", "2147483648"):
        yield change(BROKER, name, ("log.retention.ms", SET, "5"))
    for name in ("1", ""):
        for key, value in (
            ("no.such", "5"),
            ("log.dirs", "/x"),
            ("min.insync.replicas", "2"),
            ("cordoned.log.dirs", "*"),
        ):
            yield change(BROKER, name, (key, SET, value))
        yield change(BROKER, name, ("min.insync.replicas", DELETE, None))
        yield change(BROKER, name, ("log.cleanup.policy", APPEND, "compact"))
        yield change(BROKER, name, ("log.cleanup.policy", DELETE, None))
        yield change(BROKER, name, ("no.such", APPEND, "1"))
    yield from values(METRICS, "m", METRICS_VALUES)
    yield from values(GROUP, "g", GROUP_VALUES)
    for kind in (GROUP, METRICS, 0, 99):
        yield change(kind, "", ("interval.ms", SET, "100"))
    yield whole(TOPIC, "v", {"retention.ms": "9", "segment.ms": "100"})
    yield whole(TOPIC, "v", {"segment.ms": None})
    yield whole(TOPIC, "v", {"no.such": "5"})
    yield whole(TOPIC, "none", {})
    yield whole(BROKER, "2", {"log.retention.ms": "5"})
    yield whole(BROKER, "2", {})
    yield whole(BROKER, "", {})
    yield whole(8, "1", {})
    yield whole(99, "1", {})


def descriptions() -> Iterator[Step]:
    yield change(TOPIC, "v", ("retention.ms", SET, "9"), ("internal.segment.bytes", SET, "2000000"))
    yield change(BROKER, str(NODE_ID), ("log.segment.bytes", SET, "2000000"), ("log.retention.ms", SET, "123"))
    yield change(BROKER, "", ("log.retention.ms", SET, "456"), ("log.index.interval.bytes", SET, "77"))
    yield change(BROKER, "", ("leader.replication.throttled.rate", SET, "1000"))
    yield change(BROKER, "", ("ssl.keystore.password", SET, "hush"))
    yield makes({"name": "w", "assignments": placed((1,))})
    for kind, names in (
        (TOPIC, ("v", "w", "none", "no ne", "")),
        (BROKER, ("", "1", "x")),
        (GROUP, ("g", "other", "")),
        (METRICS, ("m", "other", "")),
        (8, ("1",)),
        (99, ("x",)),
    ):
        for name in names:
            yield tells(kind, name)
    yield tells(TOPIC, "v", ("retention.ms", "no.such"))
    yield removes(*(DeleteTopicsRequestTopic(name=name) for name in ("w", "none", "v", "v")))
    yield removes(DeleteTopicsRequestTopic(name=None))


async def differences(kit: KafkaKit, processes: Processes, directory: Path) -> list[Difference]:
    async with both(kit, processes, directory, extra=STATIC) as pair:
        found = []
        for story in (joined(1, 2, 3), topics(), settings(), descriptions()):
            found += await tell(pair, list(story))
        return found


@pytest.mark.usefixtures("newest_kit")
def test_topics_and_configurations_are_answered_and_written_as_by_a_real_controller(
    tmp_path: Path, processes: Processes, newest_kit: KafkaKit
) -> None:
    found = asyncio.run(differences(newest_kit, processes, tmp_path / "pair"))
    assert not found, "\n".join(difference.describe() for difference in found)
