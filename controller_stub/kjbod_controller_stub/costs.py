"""Estimate the work of a request from available counts, so that large requests do not run on the event loop.

An estimate may be wrong by a factor; it must not be wrong by a thousand. A type that has no entry here is judged by the
size of its frame alone, which is right for all whose records are one per element of the request.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from kjbod.ids import MIGRATING, UNASSIGNED
from kjbod.metadata.image import BROKER
from kjbod.wire.admin_messages import (
    AlterConfigsRequest,
    CreateAclsRequest,
    CreatePartitionsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    ElectLeadersRequest,
    ListConfigResourcesRequest,
    UpdateFeaturesRequest,
)
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    UnregisterBrokerRequest,
)

if TYPE_CHECKING:
    from kjbod_controller_stub.controller import Controller

LARGE_PARTITIONS: Final = 500
"""From so many partitions on a change is large: it takes two milliseconds or more."""
LARGE_FRAME_BYTES: Final = 8 * 1024
"""Frame size from which a request is large, whatever its API."""
CONFIGS_OF_RESOURCE: Final = 20
"""Partitions that take as long as the configuration of one topic or node."""

_Estimate: TypeAlias = "Callable[[Controller, Any], int]"


def is_large(controller: "Controller", request: object, frame_bytes: int) -> bool:
    """Return whether a request may take more than some milliseconds. Reads counts only; changes nothing."""
    if type(request) in _ON_THE_LOOP:
        return False
    estimate = _PARTITIONS.get(type(request))
    return frame_bytes >= LARGE_FRAME_BYTES or (
        estimate is not None and estimate(controller, request) >= LARGE_PARTITIONS
    )


def are_timers_large(controller: "Controller", now_ms: int) -> bool:
    """Return whether due timers may take more than some milliseconds."""
    stale = controller.heartbeats.find_one_stale(now_ms)
    moved = 0 if stale is None else controller.index.concerns(stale)
    removed = len(controller.image.delegation_tokens)  # each takes as long as a partition
    return moved + controller.index.unsettled() + removed >= LARGE_PARTITIONS


def _heartbeat(controller: "Controller", request: BrokerHeartbeatRequest) -> int:
    broker = controller.image.brokers.get(request.broker_id)
    if broker is None:
        return 0
    index = controller.index
    changes_state = broker.fenced or request.want_fence or request.want_shut_down
    lost = (*request.offline_log_dirs, UNASSIGNED, MIGRATING) if request.offline_log_dirs else ()
    return (index.concerns(broker.id) if changes_state else 0) + index.in_directories(broker.id, lost)


def _assign(controller: "Controller", request: AssignReplicasToDirsRequest) -> int:
    return sum(len(topic.partitions) for directory in request.directories for topic in directory.topics)


def _create_topics(controller: "Controller", request: CreateTopicsRequest) -> int:
    return sum(len(topic.assignments) or max(topic.num_partitions, 1) for topic in request.topics)


def _create_partitions(controller: "Controller", request: CreatePartitionsRequest) -> int:
    return sum(max(topic.count, 1) for topic in request.topics)


def _delete_topics(controller: "Controller", request: DeleteTopicsRequest) -> int:
    image = controller.image
    named = [*request.topic_names, *(topic.name for topic in request.topics if topic.name is not None)]
    ids = [image.topic_ids.get(name) for name in named]
    ids += [topic.topic_id for topic in request.topics if topic.name is None]
    topics = (image.topics.get(topic_id) for topic_id in ids if topic_id is not None)
    return sum(len(topic.partitions) for topic in topics if topic is not None)


def _elect_leaders(controller: "Controller", request: ElectLeadersRequest) -> int:
    if request.topic_partitions is None:
        return controller.image.partition_count()
    return sum(len(topic.partitions) for topic in request.topic_partitions)


def _metadata(controller: "Controller", request: MetadataRequest) -> int:
    image = controller.image
    if not request.topics:
        return _whole_cluster(controller, request)
    ids = (image.topic_ids.get(topic.name) if topic.name else topic.topic_id for topic in request.topics)
    topics = (image.topics.get(topic_id) for topic_id in ids if topic_id is not None)
    return sum(len(topic.partitions) for topic in topics if topic is not None)


def _alter_configs(controller: "Controller", request: AlterConfigsRequest | IncrementalAlterConfigsRequest) -> int:
    """Estimate the work of changed configurations. Those of all brokers may affect every partition, because
    ``min.insync.replicas`` clears eligible replicas."""
    concerns_all = any(resource.resource_type == BROKER for resource in request.resources)
    return controller.image.partition_count() if concerns_all else 0


def _list_resources(controller: "Controller", request: ListConfigResourcesRequest) -> int:
    return len(controller.image.topics) + len(controller.image.configs)


def _whole_cluster(controller: "Controller", request: object) -> int:
    """Count the cluster's partitions, up to the limit of a large request."""
    count = 0
    for topic in controller.image.topics.values():
        count += len(topic.partitions)
        if count >= LARGE_PARTITIONS:
            break
    return count


_PARTITIONS: Final[Mapping[type[Any], _Estimate]] = {
    BrokerHeartbeatRequest: _heartbeat,
    BrokerRegistrationRequest: lambda controller, request: controller.index.concerns(request.broker_id),
    UnregisterBrokerRequest: lambda controller, request: controller.index.concerns(request.broker_id),
    AssignReplicasToDirsRequest: _assign,
    CreateTopicsRequest: _create_topics,
    CreatePartitionsRequest: _create_partitions,
    DeleteTopicsRequest: _delete_topics,
    ElectLeadersRequest: _elect_leaders,
    MetadataRequest: _metadata,
    ListPartitionReassignmentsRequest: _whole_cluster,
    DescribeAclsRequest: lambda controller, request: len(controller.image.acls),
    DescribeConfigsRequest: lambda controller, request: CONFIGS_OF_RESOURCE * len(request.resources),
    AlterConfigsRequest: _alter_configs,
    IncrementalAlterConfigsRequest: _alter_configs,
    ListConfigResourcesRequest: _list_resources,
    DescribeClusterRequest: lambda controller, request: len(controller.image.brokers),
    UpdateFeaturesRequest: _whole_cluster,
}

_ON_THE_LOOP: Final = frozenset({CreateAclsRequest, DeleteAclsRequest})
"""What the authorizer reads while other requests are made elsewhere changes on the event loop only."""
