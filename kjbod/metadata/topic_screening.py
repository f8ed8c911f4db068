"""Remove unauthorized topics from a request about several topics, and add their errors to the answer
(``ControllerApis``). For the controller, and for the agent's listener, which decides before it forwards. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct, structs

from kjbod.ids import ZERO
from kjbod.metadata.acls import CLUSTER_NAME, Operation, ResourceType
from kjbod.metadata.image import MetadataImage
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
    RequestBody,
    ResponseBody,
)

TEXTS: Final[Mapping[int, str]] = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
}
"""Kafka's texts of refusals."""


class Allows(Protocol):
    """Permissions of one principal on one host (:class:`kjbod.metadata.acls.Acls`)."""

    def allow(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool: ...


class Screened(Struct, frozen=True):
    """A request after authorization.

    Attributes:
        allowed: the allowed part of the request; None: nothing is allowed.
        merge: makes the answer for the sender from the answer to ``allowed``, or from None if nothing was done.
    """

    allowed: RequestBody[Any] | None
    merge: Callable[[Any], ResponseBody]


def screen_create_topics(request: CreateTopicsRequest, permissions: Allows, text: str) -> Screened:
    """Remove the topics that the sender may not create; ``text`` is their error message."""
    anything = permissions.allow(Operation.CREATE, ResourceType.CLUSTER)
    names = dict.fromkeys(topic.name for topic in request.topics)
    refused = {
        name for name in names if not (anything or permissions.allow(Operation.CREATE, ResourceType.TOPIC, name))
    }
    allowed = tuple(topic for topic in request.topics if topic.name not in refused)

    def merge(answer: CreateTopicsResponse | None) -> ResponseBody:
        done = CreateTopicsResponse() if answer is None else answer
        made = (_without_secrets(topic, permissions) for topic in done.topics)
        mine = tuple(
            CreateTopicsResponseTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, error_message=text)
            for name in names
            if name in refused
        )
        return structs.replace(done, topics=(*made, *mine))

    return Screened(structs.replace(request, topics=allowed) if allowed else None, merge)


def screen_delete_topics(request: DeleteTopicsRequest, image: MetadataImage, permissions: Allows) -> Screened:
    """Remove the topics that the sender may not delete. A sender without DESCRIBE does not learn a topic's name."""
    anything = permissions.allow(Operation.DELETE, ResourceType.CLUSTER)
    refused: list[DeleteTopicsResponseTopic] = []

    def may(topic: DeleteTopicsRequestTopic) -> bool:
        known = image.topics.get(topic.topic_id)
        name = topic.name if topic.name is not None or known is None else known.name
        if anything or name is None or permissions.allow(Operation.DELETE, ResourceType.TOPIC, name):
            return True
        seen = topic.name is not None or permissions.allow(Operation.DESCRIBE, ResourceType.TOPIC, name)
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        refused.append(
            DeleteTopicsResponseTopic(
                name=name if seen else None, topic_id=topic.topic_id, error_code=code, error_message=TEXTS[code]
            )
        )
        return False

    topics = tuple(topic for topic in request.topics if may(topic))
    names = tuple(name for name in request.topic_names if may(DeleteTopicsRequestTopic(name=name, topic_id=ZERO)))

    def merge(answer: DeleteTopicsResponse | None) -> ResponseBody:
        done = DeleteTopicsResponse() if answer is None else answer
        return structs.replace(done, responses=(*done.responses, *refused))

    rest = structs.replace(request, topics=topics, topic_names=names)
    return Screened(rest if topics or names else None, merge)


def _without_secrets(topic: CreateTopicsResponseTopic, permissions: Allows) -> CreateTopicsResponseTopic:
    """Remove the configuration of a new topic unless the sender may describe it."""
    if topic.error_code or permissions.allow(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        return topic
    return structs.replace(
        topic,
        topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        num_partitions=-1,
        replication_factor=-1,
        configs=(),
    )
