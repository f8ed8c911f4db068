"""Remove unauthorized resources from requests and answer for them here; the rest is executed (``ControllerApis``).
Pure.

One item that is refused does not stop the others. A topic that its sender may not describe is not told from one that
does not exist, other than by the error code: whether it exists is not looked at.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import structs

from kjbod.metadata.acls import Operation, ResourceType
from kjbod.metadata.image import TOPIC, MetadataImage
from kjbod.metadata.topic_screening import TEXTS, Screened, screen_create_topics, screen_delete_topics
from kjbod.wire.admin_messages import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseResourceResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsResponseTopic,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeConfigsResponseResult,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    RequestBody,
    ResponseBody,
)
from kjbod_controller_stub.access.authorizer import Permissions

BROKER_LOGGER: Final = 8
GROUP: Final = 32
"""``ConfigResource.Type``."""

_CLUSTER, _TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC


def screen(request: RequestBody[Any], image: MetadataImage, permissions: Permissions) -> Screened:
    """Remove the parts of a request that the sender may not use."""
    one = _SCREENS.get(type(request))
    if one is None or (permissions.unrestricted and one is not _describe_cluster):
        return Screened(request, lambda answer: answer)
    return one(request, image, permissions)


# ---------------------------------------------------------------- topics


def _create_topics(request: CreateTopicsRequest, image: MetadataImage, permissions: Permissions) -> Screened:
    return screen_create_topics(request, permissions, "Authorization failed.")


def _create_partitions(request: CreatePartitionsRequest, image: MetadataImage, permissions: Permissions) -> Screened:
    names = dict.fromkeys(topic.name for topic in request.topics)
    refused = {name for name in names if not permissions.allow(Operation.ALTER, _TOPIC, name)}
    allowed = tuple(topic for topic in request.topics if topic.name not in refused)

    def merge(answer: CreatePartitionsResponse | None) -> ResponseBody:
        mine = tuple(
            CreatePartitionsResponseTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for name in names
            if name in refused
        )
        done = CreatePartitionsResponse() if answer is None else answer
        return structs.replace(done, results=(*done.results, *mine))

    return Screened(structs.replace(request, topics=allowed) if allowed else None, merge)


# ---------------------------------------------------------------- configuration


def _config_refusal(kind: int, name: str, permissions: Permissions, operation: Operation) -> ErrorCode | None:
    """Return the error for a resource whose configuration the sender may not access. The handler answers for unknown
    types."""
    if kind == TOPIC:
        allowed, code = permissions.allow(operation, _TOPIC, name), ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif kind == GROUP:
        allowed, code = permissions.allow(operation, ResourceType.GROUP, name), ErrorCode.GROUP_AUTHORIZATION_FAILED
    else:
        if kind == BROKER_LOGGER and operation is Operation.ALTER_CONFIGS:
            operation = Operation.CLUSTER_ACTION
        allowed, code = permissions.allow(operation, _CLUSTER), ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return None if allowed else code


def _configs(
    answer_type: Callable[..., Any], item_type: Callable[..., Any], items: str, operation: Operation
) -> Callable[[Any, MetadataImage, Permissions], Screened]:
    """The screen of the three APIs whose request and answer are lists of resources."""

    def screen_configs(request: Any, image: MetadataImage, permissions: Permissions) -> Screened:
        allowed, refused = [], []
        for resource in request.resources:
            kind, name = resource.resource_type, resource.resource_name
            code = _config_refusal(kind, name, permissions, operation)
            if code is None:
                allowed.append(resource)
            else:
                message = TEXTS[code]
                refused.append(
                    item_type(error_code=code, error_message=message, resource_type=kind, resource_name=name)
                )

        def merge(answer: Any) -> ResponseBody:
            done = () if answer is None else getattr(answer, items)
            made: ResponseBody = answer_type(**{items: (*done, *refused)})
            return made

        return Screened(structs.replace(request, resources=tuple(allowed)) if allowed else None, merge)

    return screen_configs


# ---------------------------------------------------------------- the cluster


def _describe_cluster(request: DescribeClusterRequest, image: MetadataImage, permissions: Permissions) -> Screened:
    """Let the request pass; the answer contains the sender's authorized operations if requested."""

    def merge(answer: DescribeClusterResponse) -> ResponseBody:
        if answer.error_code or not request.include_cluster_authorized_operations:
            return answer
        operations = 0
        if permissions.allow(Operation.DESCRIBE, _CLUSTER):
            operations = permissions.operations(_CLUSTER)
        return structs.replace(answer, cluster_authorized_operations=operations)

    return Screened(request, merge)


_SCREENS: Final[Mapping[type[Any], Callable[[Any, MetadataImage, Permissions], Screened]]] = {
    CreateTopicsRequest: _create_topics,
    DeleteTopicsRequest: screen_delete_topics,
    CreatePartitionsRequest: _create_partitions,
    IncrementalAlterConfigsRequest: _configs(
        IncrementalAlterConfigsResponse, IncrementalAlterConfigsResponseResource, "responses", Operation.ALTER_CONFIGS
    ),
    AlterConfigsRequest: _configs(
        AlterConfigsResponse, AlterConfigsResponseResourceResponse, "responses", Operation.ALTER_CONFIGS
    ),
    DescribeConfigsRequest: _configs(
        DescribeConfigsResponse, DescribeConfigsResponseResult, "results", Operation.DESCRIBE_CONFIGS
    ),
    DescribeClusterRequest: _describe_cluster,
}
