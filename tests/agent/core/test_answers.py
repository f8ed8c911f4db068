"""What the listener says of the cluster, by Kafka's rules, version by version."""

from typing import Any

import pytest

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, ZERO, Uuid
from kjbod.metadata.acls import STANDARD_AUTHORIZER, Acls, Operation, ResourceType, Rules
from kjbod.metadata.image import BROKER, TOPIC, MetadataImage, image_of
from kjbod.metadata.records import (
    AccessControlEntryRecord,
    ConfigRecord,
    Endpoint,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import encode_response
from kjbod.wire.messages import (
    API,
    AUTHORIZED_OPERATIONS_OMITTED,
    ApiKey,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponseResult,
    DescribeLogDirsRequest,
    DescribeLogDirsRequestTopic,
    DescribeLogDirsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kjbod_agent.admin import answers
from kjbod_agent.admin.answers import Self
from kjbod_agent.admin.view import DirectoryView, ReplicaView

ME = Self(node_id=1, cluster_id="4L6g3nShT-eMCtK--X86sw", listener="PLAINTEXT")
EVENTS, EMPTY = Uuid.of(7, 1), Uuid.of(7, 2)
ALLOW_ALL = Acls(Rules(), (), principal="User:ANONYMOUS", host="127.0.0.1")
LATEST = API[ApiKey.METADATA].max_version


def directory(broker: int, number: int) -> Uuid:
    return Uuid.of(broker, number)


def broker(number: int, *, fenced: bool = False, name: str = "PLAINTEXT", dirs: int = 2) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=number,
        incarnation_id=Uuid.of(5, number),
        broker_epoch=number,
        end_points=(
            Endpoint(name="OTHER", host="other", port=1),
            Endpoint(name=name, host=f"host{number}", port=9092 + number),
        ),
        features=(),
        rack=f"r{number}",
        fenced=fenced,
        log_dirs=tuple(directory(number, n) for n in range(dirs)),
    )


def partition(number: int, topic: Uuid = EVENTS, **fields: Any) -> PartitionRecord:
    replicas = fields.get("replicas", (1, 2))
    values = {
        "replicas": replicas,
        "isr": replicas,
        "leader": replicas[0],
        "leader_epoch": 3,
        "partition_epoch": 5,
        "directories": tuple(directory(r, 0) for r in replicas),
    }
    return PartitionRecord(partition_id=number, topic_id=topic, **(values | fields))


def image(
    *more: Record, partitions: tuple[PartitionRecord, ...] = (), brokers: tuple[Record, ...] = ()
) -> MetadataImage:
    records: list[Record] = list(brokers or (broker(1), broker(2), broker(3, fenced=True), broker(4, name="SSL")))
    records += [TopicRecord(name="events", topic_id=EVENTS), TopicRecord(name="__consumer_offsets", topic_id=EMPTY)]
    return image_of([*records, *partitions, *more], offset=100)


def ask(world: MetadataImage, version: int = LATEST, acls: Acls = ALLOW_ALL, **request: Any) -> MetadataResponse:
    answer = answers.metadata(world, MetadataRequest(**request), version=version, me=ME, acls=acls)
    encode_response(answer, version, 1)
    return answer


def topic(world: MetadataImage, version: int = LATEST, acls: Acls = ALLOW_ALL, **wanted: Any) -> MetadataResponseTopic:
    (found,) = ask(world, version, acls, topics=(MetadataRequestTopic(**wanted),)).topics
    return found


def one_partition(record: PartitionRecord, version: int = LATEST) -> MetadataResponsePartition:
    (found,) = topic(image(partitions=(record,)), version, name="events").partitions
    return found


# ---------------------------------------------------------------- Metadata


def test_brokers_that_are_alive_are_told_with_their_endpoint_of_this_listener() -> None:
    answer = ask(image())
    assert [(b.node_id, b.host, b.port, b.rack) for b in answer.brokers] == [
        (1, "host1", 9093, "r1"),
        (2, "host2", 9094, "r2"),
    ]
    assert answer.cluster_id == ME.cluster_id
    assert answer.controller_id == 1


@pytest.mark.parametrize(
    ("brokers", "controller"), [((broker(1, fenced=True), broker(2)), 2), ((broker(1, fenced=True),), -1)]
)
def test_a_fenced_broker_answers_and_names_another_one_to_ask(brokers: tuple[Record, ...], controller: int) -> None:
    assert ask(image(brokers=brokers)).controller_id == controller


@pytest.mark.parametrize("version", range(LATEST + 1))
def test_every_version_can_carry_the_answer(version: int) -> None:
    world = image(partitions=(partition(0), partition(1, leader=-1), partition(2, replicas=(1, 9))))
    assert len(ask(world, version, topics=() if version == 0 else None).topics) == 2
    assert topic(world, version, name="nowhere").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("fields", "offline"),
    [
        ({}, ()),
        ({"replicas": (1, 3)}, (3,)),  # fenced
        ({"replicas": (1, 4)}, (4,)),  # no such listener
        ({"replicas": (1, 9)}, (9,)),  # unknown
        ({"directories": (directory(1, 0), directory(2, 7))}, (2,)),  # not one of its online directories
        ({"directories": (directory(1, 0), LOST)}, (2,)),
        ({"directories": (directory(1, 0), UNASSIGNED)}, ()),
        ({"directories": (directory(1, 0), MIGRATING)}, ()),
    ],
)
def test_offline_replicas_by_kafkas_rule(fields: dict[str, Any], offline: tuple[int, ...]) -> None:
    found = one_partition(partition(0, **fields))
    assert found.offline_replicas == offline
    assert (found.error_code, found.leader_id, found.leader_epoch) == (0, 1, 3)


@pytest.mark.parametrize(
    ("leader", "version", "code"),
    [
        (-1, LATEST, ErrorCode.LEADER_NOT_AVAILABLE),
        (9, LATEST, ErrorCode.LEADER_NOT_AVAILABLE),
        (4, LATEST, ErrorCode.LISTENER_NOT_FOUND),
        (4, 5, ErrorCode.LEADER_NOT_AVAILABLE),
    ],
)
def test_a_leader_that_cannot_be_reached_here_is_none(leader: int, version: int, code: ErrorCode) -> None:
    found = one_partition(partition(0, replicas=(1, 4, 9), leader=leader), version)
    assert (found.error_code, found.leader_id) == (code, -1)


def test_version_0_leaves_out_replicas_that_cannot_be_reached() -> None:
    found = one_partition(partition(0, replicas=(1, 4)), 0)
    assert (found.error_code, found.replica_nodes, found.isr_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, (1,), (1,))
    assert one_partition(partition(0, replicas=(1, 4)), 1).replica_nodes == (1, 4)


def test_topics_by_name_and_by_id() -> None:
    world = image(partitions=(partition(0),))
    assert topic(world, name="events").topic_id == EVENTS
    assert topic(world, name=None, topic_id=EVENTS).name == "events"
    assert topic(world, name="__consumer_offsets").is_internal
    gone = topic(world, name=None, topic_id=Uuid.of(9, 9))
    assert (gone.error_code, gone.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)
    assert topic(world, name="a b").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    early = ask(world, 11, topics=(MetadataRequestTopic(name="events", topic_id=EVENTS),))
    assert early.topics[0].error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_that_is_missing_is_never_made_and_one_that_is_asked_for_twice_is_told_once() -> None:
    wanted = (MetadataRequestTopic(name="new"),) * 3
    answer = ask(image(), topics=wanted, allow_auto_topic_creation=True)
    assert [(t.name, t.error_code) for t in answer.topics] == [("new", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]


def acl(operation: Operation, kind: ResourceType, name: str) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=Uuid.of(1, operation), resource_type=kind, resource_name=name, pattern_type=3,
        principal="User:alice", host="*", operation=operation, permission_type=3,
    )  # fmt: skip


def alice(*entries: AccessControlEntryRecord) -> Acls:
    return Acls(Rules(class_name=STANDARD_AUTHORIZER), entries, principal="User:alice", host="127.0.0.1")


def test_a_principal_sees_the_topics_that_it_may_describe() -> None:
    world, seen = image(), alice(acl(Operation.READ, ResourceType.TOPIC, "events"))
    assert [t.name for t in ask(world, acls=seen, topics=None).topics] == ["events"]
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert topic(world, acls=seen, name="__consumer_offsets").error_code == refused
    assert topic(world, acls=seen, name="nowhere").error_code == refused  # does not tell whether it exists
    by_id = topic(world, acls=seen, name=None, topic_id=EMPTY)
    assert (by_id.error_code, by_id.name) == (refused, None)


def test_authorized_operations_are_told_to_those_who_ask() -> None:
    world, seen = image(), alice(acl(Operation.ALTER, ResourceType.TOPIC, "events"))
    plain = ask(world, acls=seen, topics=None)
    assert plain.topics[0].topic_authorized_operations == AUTHORIZED_OPERATIONS_OMITTED
    asked = ask(world, 10, seen, topics=None, include_cluster_authorized_operations=True,
                include_topic_authorized_operations=True)  # fmt: skip
    assert asked.topics[0].topic_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    assert asked.cluster_authorized_operations == 0


# ---------------------------------------------------------------- DescribeCluster


def test_fenced_brokers_are_described_to_those_who_ask() -> None:
    def describe(**request: Any) -> Any:
        return answers.describe_cluster(image(), DescribeClusterRequest(**request), me=ME, acls=ALLOW_ALL)

    assert [b.broker_id for b in describe().brokers] == [1, 2]
    everyone = describe(include_fenced_brokers=True)
    assert [(b.broker_id, b.is_fenced) for b in everyone.brokers] == [(1, False), (2, False), (3, True)]
    assert everyone.controller_id == 1
    assert describe(endpoint_type=2).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    assert describe(endpoint_type=3).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
    operations = describe(include_cluster_authorized_operations=True).cluster_authorized_operations
    assert operations == ALLOW_ALL.operations(ResourceType.CLUSTER)


# ---------------------------------------------------------------- DescribeConfigs


SECRET = (
    "delegation.token.secret.key",
    "listener.name.x.sasl.oauthbearer.assertion.private.key.passphrase",
    "listener.name.x.ssl.key.password",
    "s3.access.key.of.a.plug.in",
    "ssl.truststore.certificates",
)


def configs(kind: int, name: str, *keys: str, acls: Acls = ALLOW_ALL) -> DescribeConfigsResponseResult:
    def config(kind: int, resource: str, name: str, value: str) -> ConfigRecord:
        return ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)

    world = image(
        config(TOPIC, "events", "retention.ms", "5"),
        config(TOPIC, "events", "cleanup.policy", "compact"),
        config(BROKER, "", "log.cleaner.threads", "10"),
        config(BROKER, "", "message.max.bytes", "x"),
        config(BROKER, "1", "log.cleaner.threads", "20"),
        *(config(BROKER, "1", name, "secret") for name in SECRET),
    )
    resource = DescribeConfigsRequestResource(resource_type=kind, resource_name=name, configuration_keys=keys or None)
    answer = answers.describe_configs(world, DescribeConfigsRequest(resources=(resource,)), me=ME, acls=acls)
    return answer.results[0]


def told(result: DescribeConfigsResponseResult) -> dict[str, tuple[str | None, int]]:
    assert result.error_code == 0, result
    return {each.name: (each.value, each.config_source) for each in result.configs}


def test_dynamic_configurations_are_told_with_where_they_come_from() -> None:
    assert told(configs(TOPIC, "events")) == {"retention.ms": ("5", 1), "cleanup.policy": ("compact", 1)}
    assert told(configs(TOPIC, "events", "retention.ms", "none")) == {"retention.ms": ("5", 1)}
    assert told(configs(BROKER, "")) == {"log.cleaner.threads": ("10", 3), "message.max.bytes": ("x", 3)}
    own = told(configs(BROKER, "1"))
    assert own == {
        "log.cleaner.threads": ("20", 2),
        "message.max.bytes": ("x", 3),
        **dict.fromkeys(SECRET, (None, 2)),
    }


@pytest.mark.parametrize(
    ("kind", "name", "acls", "code"),
    [
        (TOPIC, "nowhere", ALLOW_ALL, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ALLOW_ALL, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ALLOW_ALL, ErrorCode.INVALID_REQUEST),
        (8, "1", ALLOW_ALL, ErrorCode.INVALID_REQUEST),
        (TOPIC, "events", alice(), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (BROKER, "1", alice(), ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ],
)
def test_a_resource_that_cannot_be_described_says_why(kind: int, name: str, acls: Acls, code: ErrorCode) -> None:
    result = configs(kind, name, acls=acls)
    assert result.error_code == code
    assert result.error_message
    assert result.configs == ()


# ---------------------------------------------------------------- DescribeLogDirs


def view(path: str, *replicas: ReplicaView, online: bool = True, cordoned: bool = False) -> DirectoryView:
    return DirectoryView(
        path=path, directory_id=directory(1, 0), online=online, error=None if online else "gone", verdict="online",
        since_ms=None, cordoned=cordoned, device="sdb 8:16", model=None, serial=None, file_system="ext4",
        total_bytes=1000, usable_bytes=400, replicas=replicas, leaders=0, remembered=not online,
    )  # fmt: skip


def replica(topic: str, number: int, **fields: Any) -> ReplicaView:
    return ReplicaView(topic=topic, partition=number, topic_id=EVENTS, name=f"{topic}-{number}", **fields)


def test_mv_17_an_offline_directory_has_an_error_no_topics_and_no_sizes() -> None:
    views = (
        view("/d1", replica("a", 0, size=5, lag=0), replica("a", 0, size=3, lag=7, future=True)),
        view("/d2", replica("a", 1, size=9, lag=0), online=False),
        view("/d3", cordoned=True),
    )
    first, second, third = results = tuple(map(answers.log_dir, views))
    assert (first.log_dir, first.error_code, first.total_bytes, first.usable_bytes) == ("/d1", 0, 1000, 400)
    assert [(p.partition_size, p.offset_lag, p.is_future_key) for p in first.topics[0].partitions] == [
        (5, 0, False),
        (3, 7, True),
    ]
    assert (second.error_code, second.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, ())
    assert (second.total_bytes, second.usable_bytes) == (-1, -1)
    assert (third.error_code, third.topics, third.is_cordoned) == (0, (), True)
    for version in range(1, 6):
        encode_response(DescribeLogDirsResponse(results=results), version, 1)


def test_mv_17_only_the_replicas_that_were_asked_about_are_told() -> None:
    wants = answers.wanted_log_dirs(
        DescribeLogDirsRequest(topics=(DescribeLogDirsRequestTopic(topic="a", partitions=(0, 2)),))
    )
    assert wants is not None
    assert [wants("a", 0), wants("a", 1), wants("a", 2), wants("b", 0)] == [True, False, True, False]
    assert answers.wanted_log_dirs(DescribeLogDirsRequest(topics=None)) is None


def test_the_zero_id_is_no_topic() -> None:
    assert topic(image(), name="events", topic_id=ZERO).topic_id == EVENTS
