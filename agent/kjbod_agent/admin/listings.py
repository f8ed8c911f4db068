"""Answers from the metadata about quotas, credentials, tokens, and topics by the page; pure. Texts and error codes are
Kafka's (``ClientQuotasImage``, ``ScramImage``, ``DescribeTopicPartitionsRequestHandler``).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from kjbod.ids import ZERO
from kjbod.metadata.acls import Acls, Operation, ResourceType
from kjbod.metadata.image import MetadataImage, Topic
from kjbod.metadata.records import QuotaEntity
from kjbod.topic_names import INTERNAL_TOPICS, topic_name_problem
from kjbod.wire.admin_messages import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponent,
    DescribeClientQuotasResponse,
    DescribeClientQuotasResponseEntity,
    DescribeClientQuotasResponseEntry,
    DescribeClientQuotasResponseValue,
    DescribeTopicPartitionsCursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponseCredential,
    DescribeUserScramCredentialsResponseResult,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_agent.admin.answers import METADATA_VERSION_MAX, partition_answer

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""``DescribeClientQuotasRequest.MATCH_TYPE_*``."""
USER, CLIENT_ID, IP = "user", "client-id", "ip"
PARTITIONS_MAX: Final = 2_000
"""``max.request.partition.size.limit``: partitions in one answer to DescribeTopicPartitions."""


# ---------------------------------------------------------------- DescribeClientQuotas


class QuotaFilterError(Exception):
    """A filter that means nothing: an error code and Kafka's words."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _QuotaFilter(Struct):
    exact: dict[str, str | None] = field(default_factory=dict)
    """Name by type; None: the default."""
    any_name: set[str] = field(default_factory=set)

    def add(self, component: DescribeClientQuotasRequestComponent) -> None:
        kind, match = component.entity_type, component.match
        if not kind:
            raise QuotaFilterError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in self.exact or kind in self.any_name:
            raise QuotaFilterError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in (USER, CLIENT_ID, IP):
            raise QuotaFilterError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        name = {EXACT: "EXACT", DEFAULT: "DEFAULT", SPECIFIED: "SPECIFIED"}.get(component.match_type)
        if name is None:
            raise QuotaFilterError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
        if component.match_type == EXACT and match is None:
            raise QuotaFilterError(
                ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null."
            )
        if component.match_type != EXACT and match is not None:
            raise QuotaFilterError(
                ErrorCode.INVALID_REQUEST, f"Request specified MATCH_TYPE_{name}, but also specified a match string."
            )
        if component.match_type == SPECIFIED:
            self.any_name.add(kind)
        else:
            self.exact[kind] = match

    def check(self) -> None:
        kinds = {*self.exact, *self.any_name}
        if IP in kinds and len(kinds) > 1:
            raise QuotaFilterError(
                ErrorCode.INVALID_REQUEST,
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component.",
            )

    def matches(self, entity: tuple[QuotaEntity, ...], *, strict: bool) -> bool:
        parts = {part.entity_type: part.entity_name for part in entity}
        if strict and len(parts) != len(self.exact) + len(self.any_name):
            return False
        named = all(kind in parts and parts[kind] == name for kind, name in self.exact.items())
        return named and self.any_name <= parts.keys()


def describe_client_quotas(image: MetadataImage, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """The limits of entities that match."""
    wanted = _QuotaFilter()
    try:
        for component in request.components:
            wanted.add(component)
        wanted.check()
    except QuotaFilterError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=str(error))
    return DescribeClientQuotasResponse(
        entries=tuple(
            DescribeClientQuotasResponseEntry(
                entity=tuple(
                    DescribeClientQuotasResponseEntity(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entity
                ),
                values=tuple(DescribeClientQuotasResponseValue(key=key, value=value) for key, value in limits.items()),
            )
            for entity, limits in image.quotas.items()
            if wanted.matches(entity, strict=request.strict)
        )
    )


# ---------------------------------------------------------------- DescribeUserScramCredentials


def describe_scram(
    image: MetadataImage, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations of users; keys and salts are nobody's business."""
    known: dict[str, list[DescribeUserScramCredentialsResponseCredential]] = {}
    for (mechanism, user), credential in image.scram.items():
        known.setdefault(user, []).append(
            DescribeUserScramCredentialsResponseCredential(mechanism=mechanism, iterations=credential.iterations)
        )
    named = [user.name for user in request.users or ()]
    twice = {name for name in named if named.count(name) > 1} if len(named) > len(set(named)) else set()
    return DescribeUserScramCredentialsResponse(
        results=tuple(_credentials(user, known, user in twice) for user in dict.fromkeys(named or known))
    )


def _credentials(
    user: str, known: Mapping[str, list[DescribeUserScramCredentialsResponseCredential]], twice: bool
) -> DescribeUserScramCredentialsResponseResult:
    if twice:
        return DescribeUserScramCredentialsResponseResult(
            user=user,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    if user not in known:
        return DescribeUserScramCredentialsResponseResult(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
        )
    return DescribeUserScramCredentialsResponseResult(user=user, credential_infos=tuple(known[user]))


# ---------------------------------------------------------------- DescribeTopicPartitions


def describe_topic_partitions(
    image: MetadataImage, request: DescribeTopicPartitionsRequest, *, listener: str, acls: Acls
) -> DescribeTopicPartitionsResponse:
    """Topics in the order of their names, from a cursor on, up to a number of partitions (KIP-966)."""
    cursor = request.cursor
    if cursor is not None and cursor.partition_index < 0:  # the answer has no place for an error but in topics
        names = dict.fromkeys(topic.name for topic in request.topics)
        invalid = ErrorCode.INVALID_REQUEST
        return DescribeTopicPartitionsResponse(
            topics=tuple(DescribeTopicPartitionsResponseTopic(error_code=invalid, name=name) for name in names)
        )
    left = max(1, min(PARTITIONS_MAX, request.response_partition_limit))
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    hidden: list[DescribeTopicPartitionsResponseTopic] = []
    following: DescribeTopicPartitionsCursor | None = None
    for name in _names(image, request):
        if not acls.allow(Operation.DESCRIBE, ResourceType.TOPIC, name):
            if request.topics:
                hidden.append(DescribeTopicPartitionsResponseTopic(error_code=refused, name=name))
            continue
        if left <= 0:
            following = DescribeTopicPartitionsCursor(topic_name=name, partition_index=0)
            break
        topic = image.topics.get(image.topic_ids.get(name, ZERO))
        if topic is None:
            topics.append(_no_topic(name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        numbers = sorted(number for number in topic.partitions if number >= first)
        topics.append(_page(image, topic, numbers[:left], listener, acls))
        if len(numbers) > left:
            following = DescribeTopicPartitionsCursor(topic_name=name, partition_index=numbers[left])
            break
        left -= len(numbers)
    return DescribeTopicPartitionsResponse(topics=(*topics, *hidden), next_cursor=following)


def _names(image: MetadataImage, request: DescribeTopicPartitionsRequest) -> Iterator[str]:
    start = "" if request.cursor is None else request.cursor.topic_name
    wanted = {topic.name for topic in request.topics} or image.topic_ids.keys()
    return iter(sorted(name for name in wanted if name >= start))


def _no_topic(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.INVALID_TOPIC_EXCEPTION if topic_name_problem(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)


def _page(
    image: MetadataImage, topic: Topic, numbers: list[int], listener: str, acls: Acls
) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=tuple(_partition(image, topic, number, listener) for number in numbers),
        topic_authorized_operations=acls.operations(ResourceType.TOPIC, topic.name),
    )


def _partition(
    image: MetadataImage, topic: Topic, number: int, listener: str
) -> DescribeTopicPartitionsResponsePartition:
    registration = topic.partitions[number]
    told = partition_answer(image, number, registration, METADATA_VERSION_MAX, listener)
    return DescribeTopicPartitionsResponsePartition(
        error_code=told.error_code,
        partition_index=number,
        leader_id=told.leader_id,
        leader_epoch=told.leader_epoch,
        replica_nodes=told.replica_nodes,
        isr_nodes=told.isr_nodes,
        eligible_leader_replicas=registration.eligible_leader_replicas,
        last_known_elr=registration.last_known_elr,
        offline_replicas=told.offline_replicas,
    )
