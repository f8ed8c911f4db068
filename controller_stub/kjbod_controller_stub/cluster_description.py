"""Read-only answers: Metadata and DescribeCluster (``ControllerApis``; Metadata as a broker answers it).

Shipped controllers serve no Metadata. The stub does, so that any client that bootstraps on it can list topics,
partitions and leaders where no broker has a data plane.
"""

from collections.abc import Iterable

from kjbod.ids import ZERO
from kjbod.metadata import versions
from kjbod.metadata.image import BrokerRegistration, MetadataImage, PartitionRegistration, Topic
from kjbod.metadata.records import NO_LEADER, Endpoint
from kjbod.topic_names import INTERNAL_TOPICS
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseBroker,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kjbod_controller_stub.rules import Rules

BROKERS = 1
CONTROLLERS = 2
"""``DescribeClusterRequest.endpoint_type`` (``EndpointType``)."""
_TOPIC_IDS_SINCE = 12
"""Versions 10 and 11 have the field, but their answer has no place for a topic without a name (KAFKA-10774)."""


def _endpoint(broker: BrokerRegistration) -> Endpoint | None:
    return broker.end_points[0] if broker.end_points else None


def describe_cluster(
    image: MetadataImage,
    request: DescribeClusterRequest,
    *,
    version: int,
    rules: Rules,
    cluster_id: str,
    node_id: int,
    controller: Endpoint,
) -> DescribeClusterResponse:
    """Return the brokers (endpoint type 1, if the rules allow it) or the controllers (2, KIP-919)."""
    if not rules.describes_brokers and image.metadata_version < versions.CONTROLLER_REGISTRATION:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            error_message="Direct-to-controller communication is not supported with the current MetadataVersion.",
        )
    if request.endpoint_type not in (BROKERS, CONTROLLERS):
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"Unsupported endpoint type {request.endpoint_type}",
        )
    if request.endpoint_type == BROKERS and not rules.describes_brokers:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if version else ErrorCode.INVALID_REQUEST,
            error_message="The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type "
            "BROKER",
        )
    brokers = [DescribeClusterResponseBroker(broker_id=node_id, host=controller.host, port=controller.port)]
    if request.endpoint_type == BROKERS:
        brokers = [
            DescribeClusterResponseBroker(
                broker_id=broker.id,
                host=endpoint.host,
                port=endpoint.port,
                rack=broker.rack,
                is_fenced=broker.fenced,
            )
            for broker in image.brokers.values()
            if (endpoint := _endpoint(broker)) is not None and (request.include_fenced_brokers or not broker.fenced)
        ]
    return DescribeClusterResponse(
        endpoint_type=request.endpoint_type, cluster_id=cluster_id, controller_id=node_id, brokers=tuple(brokers)
    )


def metadata(
    image: MetadataImage,
    request: MetadataRequest,
    *,
    version: int,
    cluster_id: str,
    node_id: int,
    controller: Endpoint,
) -> MetadataResponse:
    """Return topics with their leaders, ISR and offline replicas.

    Every node of the list, the unfenced brokers as well as the controller itself, has the controller's address. A
    client sends its next question to some node of the list, and brokers without a data plane answer none; this way it
    comes back here. Where the brokers themselves listen, DescribeCluster tells.
    """
    brokers = [
        MetadataResponseBroker(node_id=broker.id, rack=broker.rack, host=controller.host, port=controller.port)
        for broker in image.brokers.values()
        if not broker.fenced and broker.id != node_id
    ]
    brokers.append(MetadataResponseBroker(node_id=node_id, host=controller.host, port=controller.port))
    # A set, as in Kafka: repeating one large topic's name would make an answer of gigabytes.
    wanted = dict.fromkeys(request.topics or ())
    if request.topics is None or (version == 0 and not wanted):
        topics = [_topic(image, topic) for topic in image.topics.values()]
    elif version < _TOPIC_IDS_SINCE and any(topic.name is None or topic.topic_id != ZERO for topic in wanted):
        topics = [
            MetadataResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id)
            for topic in wanted
        ]
    else:
        topics = [_wanted(image, topic) for topic in wanted]
    return MetadataResponse(brokers=tuple(brokers), cluster_id=cluster_id, controller_id=node_id, topics=tuple(topics))


def _wanted(image: MetadataImage, wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    if wanted.topic_id != ZERO:
        topic = image.topics.get(wanted.topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=wanted.topic_id)
        return _topic(image, topic)
    topic_id = image.topic_ids.get(wanted.name or "")
    if topic_id is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=wanted.name)
    return _topic(image, image.topics[topic_id])


def _topic(image: MetadataImage, topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(
            MetadataResponsePartition(
                error_code=ErrorCode.LEADER_NOT_AVAILABLE if partition.leader == NO_LEADER else 0,
                partition_index=number,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                offline_replicas=tuple(offline_replicas(image, partition)),
            )
            for number, partition in topic.partitions.items()
        ),
    )


def offline_replicas(image: MetadataImage, partition: PartitionRegistration) -> Iterable[int]:
    """Return the replicas whose broker is unknown or fenced, or whose directory is not online
    (``KRaftMetadataCache``)."""
    for replica, directory in zip(partition.replicas, partition.directories, strict=True):
        broker = image.brokers.get(replica)
        if broker is None or broker.fenced or not broker.has_online_dir(directory):
            yield replica
