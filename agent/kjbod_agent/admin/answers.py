"""Answers that the listener gives by itself, from the metadata and the view of the directories. Pure.

Metadata and DescribeCluster are as ``KRaftMetadataCache`` and ``KafkaApis`` of 4.3 make them, for one listener: a
broker is listed with its endpoint of the same name. Brokers are told as the metadata have them; that this one has no
data plane is found out by those who try to produce.

A principal sees the topics that it may describe. A topic by name that it may not is TOPIC_AUTHORIZATION_FAILED whether
it exists or not; one by id is told without its name.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from kjbod.ids import ZERO
from kjbod.metadata.acls import Acls, Operation, ResourceType
from kjbod.metadata.describing import CLIENT_METRICS, GROUP
from kjbod.metadata.image import BROKER, TOPIC, MetadataImage, PartitionRegistration, Topic
from kjbod.metadata.records import NO_LEADER, Endpoint
from kjbod.metadata.secrets import is_password
from kjbod.topic_names import INTERNAL_TOPICS, topic_name_problem
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    API,
    AUTHORIZED_OPERATIONS_OMITTED,
    ApiKey,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseConfig,
    DescribeConfigsResponseResult,
    DescribeLogDirsRequest,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseResult,
    DescribeLogDirsResponseTopic,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from kjbod_agent.admin.view import DirectoryView, Wants


BROKERS: Final = 1
CONTROLLERS: Final = 2
"""``DescribeClusterRequest.endpoint_type`` (``EndpointType``)."""
TOPIC_IDS_SINCE: Final = 12
"""Metadata versions 10 and 11 have the field; their answer has no place for a topic without a name (KAFKA-10774)."""
LISTENER_ERRORS_SINCE: Final = 6
"""Metadata versions from which on LISTENER_NOT_FOUND is told (KIP-302)."""
METADATA_VERSION_MAX: Final = API[ApiKey.METADATA].max_version
_TOPIC, _CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


class Self(Struct, frozen=True, kw_only=True):
    """The broker that answers, and its address.

    Attributes:
        node_id: this broker.
        cluster_id: of the cluster.
        listener: name of the listener that the client came to.
    """

    node_id: int
    cluster_id: str
    listener: str


def _endpoint(image: MetadataImage, broker_id: int, listener: str) -> Endpoint | None:
    broker = image.brokers.get(broker_id)
    return None if broker is None else next((e for e in broker.end_points if e.name == listener), None)


def _alive(image: MetadataImage, listener: str) -> Mapping[int, Endpoint]:
    """Return the unfenced brokers with an endpoint for this listener (``getAliveBrokerNodes``)."""
    found = {broker.id: _endpoint(image, broker.id, listener) for broker in image.brokers.values() if not broker.fenced}
    return {broker_id: endpoint for broker_id, endpoint in found.items() if endpoint is not None}


def _controller(alive: Mapping[int, Endpoint], me: Self) -> int:
    """The broker that clients take for the controller. Kafka's brokers name any live broker, since each of them
    forwards; here it is this one while it is unfenced, for the others may be asked anyway."""
    return me.node_id if me.node_id in alive else min(alive, default=-1)


# ---------------------------------------------------------------- Metadata


def metadata(image: MetadataImage, request: MetadataRequest, *, version: int, me: Self, acls: Acls) -> MetadataResponse:
    """Brokers and topics. A topic that is not there is an error, never made (``auto.create.topics.enable`` is a matter
    of the data plane)."""
    alive = _alive(image, me.listener)
    operations = AUTHORIZED_OPERATIONS_OMITTED
    if request.include_cluster_authorized_operations:
        operations = acls.operations(_CLUSTER) if acls.allow(Operation.DESCRIBE, _CLUSTER) else 0
    return MetadataResponse(
        brokers=tuple(
            MetadataResponseBroker(
                node_id=broker_id, host=endpoint.host, port=endpoint.port, rack=image.brokers[broker_id].rack
            )
            for broker_id, endpoint in alive.items()
        ),
        cluster_id=me.cluster_id,
        controller_id=_controller(alive, me),
        topics=tuple(_topics(image, request, version, me, acls)),
        cluster_authorized_operations=operations,
    )


def _topics(
    image: MetadataImage, request: MetadataRequest, version: int, me: Self, acls: Acls
) -> Iterable[MetadataResponseTopic]:
    # A set, as in Kafka: a long list of one large topic's name would make an answer of gigabytes.
    wanted = dict.fromkeys(request.topics or ())
    if request.topics is None or (version == 0 and not wanted):
        for topic in image.topics.values():
            if acls.allow(Operation.DESCRIBE, _TOPIC, topic.name):
                yield _topic(image, topic, request, version, me, acls)
        return
    if version < TOPIC_IDS_SINCE and any(each.name is None or each.topic_id != ZERO for each in wanted):
        for each in wanted:
            yield MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=each.name or "", topic_id=each.topic_id
            )
        return
    for each in wanted:
        yield _wanted(image, each, request, version, me, acls)


def _wanted(
    image: MetadataImage, wanted: MetadataRequestTopic, request: MetadataRequest, version: int, me: Self, acls: Acls
) -> MetadataResponseTopic:
    by_id = wanted.topic_id != ZERO
    topic_id = wanted.topic_id if by_id else image.topic_ids.get(wanted.name or "", ZERO)
    topic = image.topics.get(topic_id)
    if by_id and topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    name = wanted.name or "" if topic is None else topic.name
    if not acls.allow(Operation.DESCRIBE, _TOPIC, name):
        refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if by_id:
            return MetadataResponseTopic(error_code=refused, name=None, topic_id=topic_id)
        return MetadataResponseTopic(error_code=refused, name=name)
    if topic is None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION if topic_name_problem(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return MetadataResponseTopic(error_code=code, name=name)
    return _topic(image, topic, request, version, me, acls)


def _topic(
    image: MetadataImage, topic: Topic, request: MetadataRequest, version: int, me: Self, acls: Acls
) -> MetadataResponseTopic:
    operations = AUTHORIZED_OPERATIONS_OMITTED
    if request.include_topic_authorized_operations:
        operations = acls.operations(_TOPIC, topic.name)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            partition_answer(image, number, partition, version, me.listener)
            for number, partition in topic.partitions.items()
        ),
        topic_authorized_operations=operations,
    )


def partition_answer(
    image: MetadataImage, number: int, partition: PartitionRegistration, version: int, listener: str
) -> MetadataResponsePartition:
    """``KRaftMetadataCache.getPartitionMetadata``. Version 0 has no list of offline replicas: it leaves out those that
    cannot be reached, and says so."""
    replicas, isr = partition.replicas, partition.isr
    if version == 0:
        replicas = tuple(r for r in replicas if _endpoint(image, r, listener) is not None)
        isr = tuple(r for r in isr if _endpoint(image, r, listener) is not None)
    leader, code = partition.leader, ErrorCode.NONE
    if _endpoint(image, leader, listener) is None:
        code = ErrorCode.LEADER_NOT_AVAILABLE
        if leader in image.brokers and version >= LISTENER_ERRORS_SINCE:
            code = ErrorCode.LISTENER_NOT_FOUND
        leader = NO_LEADER
    elif len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
        code = ErrorCode.REPLICA_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=code,
        partition_index=number,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=replicas,
        isr_nodes=isr,
        offline_replicas=tuple(offline_replicas(image, partition, listener)),
    )


def offline_replicas(image: MetadataImage, partition: PartitionRegistration, listener: str) -> Iterable[int]:
    """Replicas whose broker is unknown, fenced or without this listener, or whose directory is not online."""
    for replica, directory in zip(partition.replicas, partition.directories, strict=True):
        broker = image.brokers.get(replica)
        reached = broker is not None and not broker.fenced and _endpoint(image, replica, listener) is not None
        if broker is None or not reached or not broker.has_online_dir(directory):
            yield replica


# ---------------------------------------------------------------- DescribeCluster


def describe_cluster(
    image: MetadataImage, request: DescribeClusterRequest, *, me: Self, acls: Acls
) -> DescribeClusterResponse:
    """The brokers; fenced ones too where the client asks for them (``AuthHelper.computeDescribeClusterResponse``)."""
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
            endpoint_type=request.endpoint_type,
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type "
            "CONTROLLER",
        )
    operations = AUTHORIZED_OPERATIONS_OMITTED
    if request.include_cluster_authorized_operations:
        operations = acls.operations(_CLUSTER) if acls.allow(Operation.DESCRIBE, _CLUSTER) else 0
    return DescribeClusterResponse(
        cluster_id=me.cluster_id,
        controller_id=_controller(_alive(image, me.listener), me),
        brokers=tuple(
            DescribeClusterResponseBroker(
                broker_id=broker.id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker in image.brokers.values()
            if (request.include_fenced_brokers or not broker.fenced)
            and (endpoint := _endpoint(image, broker.id, me.listener)) is not None
        ),
        cluster_authorized_operations=operations,
    )


# ---------------------------------------------------------------- DescribeConfigs

_SOURCE_OF: Final[Mapping[int, int]] = {TOPIC: 1, BROKER: 2, CLIENT_METRICS: 7, GROUP: 8}
"""``ConfigSource`` of what was set for a resource of each type."""
_DEFAULT_OF_ALL_BROKERS: Final = 3


def describe_configs(
    image: MetadataImage, request: DescribeConfigsRequest, *, me: Self, acls: Acls
) -> DescribeConfigsResponse:
    """The configurations that are in the metadata: dynamic ones of topics, of this broker and of all brokers, of groups
    and client metrics subscriptions. Values of Kafka's own and of ``server.properties`` are not told: this broker does
    not act on most of them."""
    return DescribeConfigsResponse(
        results=tuple(_configs(image, resource, me, acls) for resource in dict.fromkeys(request.resources))
    )


def _configs(
    image: MetadataImage, resource: DescribeConfigsRequestResource, me: Self, acls: Acls
) -> DescribeConfigsResponseResult:
    kind, name = resource.resource_type, resource.resource_name
    problem = _problem(image, kind, name, me, acls)
    if problem is not None:
        return DescribeConfigsResponseResult(
            error_code=problem[0], error_message=problem[1], resource_type=kind, resource_name=name
        )
    source = _DEFAULT_OF_ALL_BROKERS if kind == BROKER and not name else _SOURCE_OF[kind]
    values = {key: (value, source) for key, value in image.configs.get((kind, name), {}).items()}
    if kind == BROKER:
        defaults = image.configs.get((BROKER, ""), {})
        values = {key: (value, _DEFAULT_OF_ALL_BROKERS) for key, value in defaults.items()} | values
    wanted = resource.configuration_keys
    return DescribeConfigsResponseResult(
        resource_type=kind,
        resource_name=name,
        configs=tuple(
            _config(key, value, source, is_password(key, kind))
            for key, (value, source) in sorted(values.items())
            if wanted is None or key in wanted
        ),
    )


def _config(key: str, value: str, source: int, secret: bool) -> DescribeConfigsResponseConfig:
    return DescribeConfigsResponseConfig(
        name=key, value=None if secret else value, config_source=source, is_sensitive=secret
    )


def _problem(image: MetadataImage, kind: int, name: str, me: Self, acls: Acls) -> tuple[ErrorCode, str] | None:
    """Return why a resource cannot be described; None: it can."""
    if kind == TOPIC:
        if not acls.allow(Operation.DESCRIBE_CONFIGS, _TOPIC, name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."
        if problem := topic_name_problem(name):
            return ErrorCode.INVALID_TOPIC_EXCEPTION, problem
        if name not in image.topic_ids:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "This server does not host this topic-partition."
        return None
    if kind == GROUP:
        if not acls.allow(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, name):
            return ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."
        return None if name else (ErrorCode.INVALID_REQUEST, "Group name must not be empty")
    if not acls.allow(Operation.DESCRIBE_CONFIGS, _CLUSTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."
    if kind == CLIENT_METRICS:
        return None if name else (ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
    if kind != BROKER:
        return ErrorCode.INVALID_REQUEST, f"Unsupported resource type {kind}: a kjbod agent has no loggers"
    if name not in ("", str(me.node_id)):
        return (
            ErrorCode.INVALID_REQUEST,
            f"Unexpected broker id, expected {me.node_id} or empty string, but received {name}",
        )
    return None


# ---------------------------------------------------------------- DescribeLogDirs


def wanted_log_dirs(request: DescribeLogDirsRequest) -> "Wants | None":
    """Return a test for the replicas in the request; None: all replicas."""
    if request.topics is None:
        return None
    wanted: dict[str, set[int]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.topic, set()).update(topic.partitions)
    return lambda topic, partition: partition in wanted.get(topic, ())


def log_dir(directory: "DirectoryView") -> DescribeLogDirsResponseResult:
    """The result for a directory. One that is offline has KAFKA_STORAGE_ERROR, no topics and no sizes; of another one
    topics without a replica there are left out (``ReplicaManager.describeLogDirs``)."""
    if not directory.online:
        return DescribeLogDirsResponseResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=directory.path)
    topics: dict[str, list[DescribeLogDirsResponsePartition]] = {}
    for replica in directory.replicas:
        topics.setdefault(replica.topic, []).append(
            DescribeLogDirsResponsePartition(
                partition_index=replica.partition,
                partition_size=replica.size,
                offset_lag=replica.lag,
                is_future_key=replica.future,
            )
        )
    return DescribeLogDirsResponseResult(
        log_dir=directory.path,
        topics=tuple(
            DescribeLogDirsResponseTopic(name=name, partitions=tuple(partitions)) for name, partitions in topics.items()
        ),
        total_bytes=directory.total_bytes,
        usable_bytes=directory.usable_bytes,
        is_cordoned=directory.cordoned,
    )
