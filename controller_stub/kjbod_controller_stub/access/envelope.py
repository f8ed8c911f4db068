"""Unwrap requests that brokers forward for their clients, and wrap the answers (``EnvelopeUtils``, KIP-590). Pure.

The request inside an Envelope is a frame of its own, header and body, and no more to be trusted than any: it is decoded
within the same limits of versions and size as one that comes alone. An envelope is not forwardable, so none is in
another.

Errors of the envelope are in the envelope's answer, errors of the request in the inner answer.
"""

import struct
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kjbod.errors import UnsupportedVersionError
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request, VersionRanges, decode_request, encode_response
from kjbod.wire.messages import ApiKey, EnvelopeRequest, EnvelopeResponse, ResponseBody
from kjbod.wire.principals import decode_host, decode_principal
from kjbod_controller_stub.results import ApiError

FORWARDABLE: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.ALLOCATE_PRODUCER_IDS,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UNREGISTER_CONTROLLER,
    }
)
"""``ApiKeys.forwardable`` of Kafka 4.4.0."""
_KEYS: Final = range(95)
"""The keys that Kafka 4.4.0 knows."""
_API_KEY: Final = struct.Struct(">h")
_LENGTH_BYTES: Final = 4


class Forwarded(Struct, frozen=True):
    """A forwarded request and its client."""

    request: Request
    principal: str
    token_authenticated: bool
    host: str


def unwrap(envelope: EnvelopeRequest, apis: VersionRanges, max_bytes: Mapping[ApiKey, int]) -> Forwarded:
    """Return the request in the envelope. ``apis`` are the served versions, ``max_bytes`` the size limit of each.

    Raises:
        ApiError: PRINCIPAL_DESERIALIZATION_FAILURE; INVALID_REQUEST for a bad address and for what cannot be
            forwarded; UNSUPPORTED_VERSION for what cannot be read.
    """
    try:
        principal = decode_principal(envelope.request_principal)
    except MalformedMessageError as error:
        raise ApiError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from None
    try:
        host = decode_host(envelope.client_host_address)
    except MalformedMessageError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None
    request = _request(envelope.request_data, apis, max_bytes)
    return Forwarded(request, str(principal), principal.token_authenticated, host)


def _request(frame: bytes, apis: VersionRanges, max_bytes: Mapping[ApiKey, int]) -> Request:
    if len(frame) >= _API_KEY.size:
        (key,) = _API_KEY.unpack_from(frame)
        if key in _KEYS and key not in FORWARDABLE:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"API {key} is not eligible for forwarding")
    try:
        return decode_request(frame, apis, max_bytes)
    except (MalformedMessageError, UnsupportedVersionError) as error:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from None


def wrap(request: Request, answer: ResponseBody) -> EnvelopeResponse:
    """Return the answer to ``request`` in the form for the broker."""
    frame = encode_response(answer, request.version, request.correlation_id)
    return EnvelopeResponse(response_data=frame[_LENGTH_BYTES:])
