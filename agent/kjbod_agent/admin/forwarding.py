"""Requests that only the controller can carry out: what of them a client may ask, and how they get there.

As a broker of Kafka 4 does, the agent wraps such a request into an Envelope with the principal and the address of its
client (KIP-590), and the controller decides. The listener decides first, by the same rules as ``ControllerApis``: what
a client may not is answered here, item by item, and costs the controller nothing.

What is sent is repeated until there is an answer or the client's time is over, for an election takes some seconds:
after NOT_CONTROLLER, and after a connection that broke, as ``ForwardingManager`` does. So a change may be made twice,
as with Kafka's brokers: a second CreateTopics then says TOPIC_ALREADY_EXISTS.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from kjbod.clock import Clock
from kjbod.errors import UnsupportedVersionError
from kjbod.metadata.acls import Acls, Operation, ResourceType
from kjbod.metadata.image import TOPIC, MetadataImage
from kjbod.metadata.refusals import refusal
from kjbod.metadata.topic_screening import TEXTS, Screened, screen_create_topics, screen_delete_topics
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.error_codes import ErrorCode, name_of
from kjbod.wire.frames import decode_response, encode_request
from kjbod.wire.messages import (
    ApiKey,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    EnvelopeRequest,
    EnvelopeResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    RequestBody,
    ResponseBody,
)
from kjbod.wire.principals import ForwardedPrincipal, encode_host, encode_principal
from kjbod_host.channel import ControllerChannel

TIMEOUT_MAX_MS: Final = 30_000
"""Kafka's default of ``request.timeout.ms``."""
_TIMEOUT_MIN_MS: Final = 1_000
"""A client that says that it will not wait at all waits so long, where it may."""
RETRY_MS: Final = 100
_CORRELATION_ID: Final = 0
"""Of the inner request: the envelope has the one that counts."""
_LENGTH_BYTES: Final = 4
CONCURRENT_MAX: Final = 16
"""Requests of all clients that are on their way to the controller."""
DELETE_BY_TOPIC_SINCE: Final = 6
"""DeleteTopics version from which on ``topics`` is used, and ids; before, ``topic_names``."""

CLUSTER_OPERATIONS: Final[Mapping[ApiKey, Operation]] = {
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Operation.ALTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
    ApiKey.ELECT_LEADERS: Operation.ALTER,
    ApiKey.UNREGISTER_BROKER: Operation.ALTER,
    ApiKey.UNREGISTER_CONTROLLER: Operation.ALTER,
    ApiKey.UPDATE_FEATURES: Operation.ALTER,
    ApiKey.DESCRIBE_QUORUM: Operation.DESCRIBE,
    ApiKey.ADD_RAFT_VOTER: Operation.ALTER,
    ApiKey.REMOVE_RAFT_VOTER: Operation.ALTER,
    ApiKey.CREATE_ACLS: Operation.ALTER,
    ApiKey.DELETE_ACLS: Operation.ALTER,
    ApiKey.ALTER_CLIENT_QUOTAS: Operation.ALTER_CONFIGS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Operation.ALTER,
}
"""What the APIs that are allowed or refused as a whole need on the cluster."""
BY_THE_CONTROLLER: Final = frozenset({ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_CONFIGS})
"""Sent on as they are: the controller looks at each item, as Kafka's brokers leave it to theirs."""
FORWARDED: Final = frozenset(
    {
        *CLUSTER_OPERATIONS,
        *BY_THE_CONTROLLER,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)

_CLUSTER, _TOPIC = ResourceType.CLUSTER, ResourceType.TOPIC


def screen(request: RequestBody[Any], image: MetadataImage, acls: Acls, version: int) -> Screened:
    """Take out what the client may not do; ``version`` is that of its request."""
    match request:
        case CreateTopicsRequest():
            return screen_create_topics(request, acls, TEXTS[ErrorCode.TOPIC_AUTHORIZATION_FAILED])
        case DeleteTopicsRequest():
            # The newest version, in which it is forwarded, has the names among the topics.
            named = tuple(DeleteTopicsRequestTopic(name=name) for name in request.topic_names)
            whole = structs.replace(request, topics=(*request.topics, *named), topic_names=())
            return screen_delete_topics(whole, image, acls)
        case IncrementalAlterConfigsRequest():
            return _screen_configs(request, acls)
    if request.API_KEY in BY_THE_CONTROLLER or acls.allow(CLUSTER_OPERATIONS[request.API_KEY], _CLUSTER):
        return Screened(request, lambda answer: answer)
    refused = refusal(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, version)
    return Screened(None, lambda _: refused)


def _screen_configs(request: IncrementalAlterConfigsRequest, acls: Acls) -> Screened:
    refused: list[IncrementalAlterConfigsResponseResource] = []
    allowed: list[IncrementalAlterConfigsRequestResource] = []
    for resource in request.resources:
        code = _config_refusal(resource, acls)
        if code is None:
            allowed.append(resource)
        else:
            refused.append(_refused_resource(resource, code))

    def merge(answer: IncrementalAlterConfigsResponse | None) -> ResponseBody:
        return IncrementalAlterConfigsResponse(responses=(*(() if answer is None else answer.responses), *refused))

    return Screened(structs.replace(request, resources=tuple(allowed)) if allowed else None, merge)


def _config_refusal(resource: IncrementalAlterConfigsRequestResource, acls: Acls) -> ErrorCode | None:
    if resource.resource_type == TOPIC:
        allowed = acls.allow(Operation.ALTER_CONFIGS, _TOPIC, resource.resource_name)
        return None if allowed else ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if resource.resource_type == _GROUP_RESOURCE:
        allowed = acls.allow(Operation.ALTER_CONFIGS, ResourceType.GROUP, resource.resource_name)
        return None if allowed else ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not acls.allow(Operation.ALTER_CONFIGS, _CLUSTER):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return ErrorCode.INVALID_REQUEST if resource.resource_type == _LOGGER_RESOURCE else None


_LOGGER_RESOURCE: Final = 8
"""``ConfigResource.Type.BROKER_LOGGER``: log4j of the broker itself, which an agent has not."""
_GROUP_RESOURCE: Final = 32


def _refused_resource(
    resource: IncrementalAlterConfigsRequestResource, code: ErrorCode, message: str | None = None
) -> IncrementalAlterConfigsResponseResource:
    return IncrementalAlterConfigsResponseResource(
        error_code=code,
        error_message=message or TEXTS.get(code, "A kjbod agent has no loggers to configure."),
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


class Sender(Struct, frozen=True):
    """The client whose request is forwarded.

    Attributes:
        principal: ``User:alice``.
        host: its address.
        client_id: as in its request.
        version: of its request, in which it is sent on where the controller knows it.
        token_authenticated: whether it has shown a delegation token.
    """

    principal: str
    host: str
    client_id: str | None
    version: int
    token_authenticated: bool = False


class Forwarder:
    """Forwarder of requests to the active controller.

    Args:
        channel: a channel of its own, so that no client delays a heartbeat or an assignment.
        clock: the time.
        timeout_max_ms: ``request.timeout.ms``: how long a client waits at most.
    """

    def __init__(self, channel: ControllerChannel, clock: Clock, timeout_max_ms: int = TIMEOUT_MAX_MS) -> None:
        self._channel = channel
        self._clock = clock
        self._timeout_max_ms = timeout_max_ms
        self._turn = asyncio.Semaphore(CONCURRENT_MAX)

    async def send(self, request: RequestBody[Any], sender: Sender) -> ResponseBody:
        """Return the controller's answer; without an answer in time, a refusal with REQUEST_TIMED_OUT."""
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms(request)
        reason = "no controller is known"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((deadline_ms - self._clock.monotonic_ms()) / 1000), self._turn:
                while True:
                    try:
                        answer = await self._attempt(request, sender, deadline_ms)
                    except UnsupportedVersionError as error:
                        return refusal(request, ErrorCode.UNSUPPORTED_VERSION, sender.version, str(error))
                    except Disconnected as error:
                        reason = str(error)
                    else:
                        if ErrorCode.NOT_CONTROLLER not in _codes(answer):
                            return answer
                        reason = "the controller that was asked is no longer active"
                    self._channel.forget()
                    await asyncio.sleep(RETRY_MS / 1000)
        return refusal(request, ErrorCode.REQUEST_TIMED_OUT, sender.version, f"The controller did not answer: {reason}")

    def _timeout_ms(self, request: RequestBody[Any]) -> int:
        asked_ms: int = getattr(request, "timeout_ms", self._timeout_max_ms)
        return min(max(_TIMEOUT_MIN_MS, asked_ms), self._timeout_max_ms)

    async def _attempt(self, request: RequestBody[Any], sender: Sender, deadline_ms: int) -> ResponseBody:
        left_ms = max(1, deadline_ms - self._clock.monotonic_ms())
        version = 0

        def prepare(connection: Connection) -> EnvelopeRequest:
            nonlocal version
            version = _version(connection, request, sender)
            return _wrapped(_fitting(request, connection), version, sender)

        return _unwrapped(request, await self._channel.request(prepare, timeout_ms=left_ms), version)


def _wrapped(request: RequestBody[Any], version: int, sender: Sender) -> EnvelopeRequest:
    frame = encode_request(request, version, _CORRELATION_ID, sender.client_id)
    return EnvelopeRequest(
        request_data=frame[_LENGTH_BYTES:],
        request_principal=encode_principal(
            ForwardedPrincipal.of(sender.principal, token_authenticated=sender.token_authenticated)
        ),
        client_host_address=encode_host(sender.host),
    )


def _version(connection: Connection, request: RequestBody[Any], sender: Sender) -> int:
    """The version to send it in: the client's own, so that its answer has the places that the client knows; another
    one where the controller does not know that, or where it is sent in another form."""
    lowest, highest = connection.versions.get(request.API_KEY, (0, -1))
    if lowest <= sender.version <= highest and not isinstance(request, DeleteTopicsRequest):
        return sender.version
    return connection.version_of(request.API_KEY)


def _unwrapped(request: RequestBody[Any], answer: EnvelopeResponse, version: int) -> ResponseBody:
    """The controller's answer; where it did not take the envelope, what Kafka's broker makes of that."""
    if answer.error_code == ErrorCode.NOT_CONTROLLER:
        return refusal(request, ErrorCode.NOT_CONTROLLER, version)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        return refusal(request, ErrorCode.UNSUPPORTED_VERSION, version, "The controller cannot read the request.")
    if answer.error_code:
        name = name_of(answer.error_code)
        return refusal(
            request, ErrorCode.UNKNOWN_SERVER_ERROR, version, f"The controller does not let the agent forward: {name}"
        )
    try:
        return decode_response(answer.response_data or b"", request.API_KEY, version).message
    except MalformedMessageError as error:
        said = f"The controller's answer cannot be read: {error}"
        return refusal(request, ErrorCode.UNKNOWN_SERVER_ERROR, version, said)


def _fitting(request: RequestBody[Any], connection: Connection) -> RequestBody[Any]:
    """Return the request in the form of this controller's version: DeleteTopics has another field before version 6."""
    if not isinstance(request, DeleteTopicsRequest):
        return request
    if connection.version_of(ApiKey.DELETE_TOPICS) >= DELETE_BY_TOPIC_SINCE:
        return request
    return structs.replace(request, topics=(), topic_names=tuple(_names(request)))


def _names(request: DeleteTopicsRequest) -> Iterator[str]:
    for topic in request.topics:
        if topic.name is None:
            raise UnsupportedVersionError("the controller cannot delete topics by id")
        yield topic.name


_ITEMS: Final = ("topics", "responses", "results", "entries", "filter_results", "replica_election_results")
"""Fields of answers that have an error code in each item."""


def _codes(answer: ResponseBody) -> set[int]:
    """Return the error codes of an answer, from its top level and one level below."""
    items = itertools.chain.from_iterable(getattr(answer, name, None) or () for name in _ITEMS)
    return {int(getattr(each, "error_code", 0)) for each in (answer, *items)}
