"""Both ends of a Kafka connection as state machines without I/O.

Bytes go in and requests or responses come out, and the reverse. :mod:`kjbod.wire.client` and :mod:`kjbod.wire.server`
handle sockets, timeouts and tasks. Both ends rely on two rules:

* A server answers in the order of the requests, whatever order its handlers finish in. So a client needs only a queue
of requests; an answer with another correlation id is an error of the peer.
* The first request is ApiVersions. A server without its version answers error 35 in version 0, with one entry that has
the supported versions (KIP-511, ``ApiVersionsRequest.getErrorResponse``). Other unknown requests get no answer, because
the client could not decode it. Kafka closes the connection; so does kjbod.
"""

import re
import struct
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from kjbod.errors import LocalProtocolError, RemoteProtocolError, UnsupportedVersionError
from kjbod.wire import error_codes
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import (
    MAX_FRAME_BYTES,
    EncodedResponse,
    FrameSplitter,
    Request,
    Response,
    UnsupportedRequestError,
    VersionRanges,
    addressed,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from kjbod.wire.messages import (
    API,
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    ApiVersionsResponseFinalizedFeatureKey,
    ApiVersionsResponseSupportedFeatureKey,
    RequestBody,
    ResponseBody,
)

_SOFTWARE_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_CORRELATION_IDS = 2**31
_ASKED_FROM: Mapping[ApiKey, int] = {ApiKey.FETCH: 12, ApiKey.SASL_HANDSHAKE: 1}
"""Lowest version that is requested, where our own servers accept lower ones. Fetch 12 is the first for a
metadata log."""
_TOKEN_LENGTH = struct.Struct(">i")
_VERSION_WITH_SOFTWARE_NAME = 3
_VERSION_WITH_ZERO_MINIMA = 4
_HELLO_VERSION = 4
"""Version 5 has cluster and node ids, which kjbod's client does not send. A server before 4.4 refuses it and would be
asked twice."""
_NO_NODE = -1


class Features(Struct, frozen=True):
    """Features of a cluster, as reported by a node with its versions."""

    supported: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Lowest and highest level that the node supports."""
    finalized: Mapping[str, int] = field(default_factory=dict)
    """Finalized level of each feature."""
    finalized_epoch: int = -1
    """Offset of the last finalized change; -1: unknown."""


# ---------------------------------------------------------------- client


class ClientConnection:
    """The client's end of one connection. ``peer``: the server's name in errors."""

    def __init__(
        self,
        *,
        client_id: str,
        software: tuple[str, str] = ("kjbod", "0"),
        max_frame_bytes: int = MAX_FRAME_BYTES,
        peer: str = "the server",
    ) -> None:
        self._peer = peer
        self._client_id = client_id
        self._software = software
        self._splitter = FrameSplitter(max_frame_bytes)
        self._waiting: deque[tuple[int, ApiKey, int]] = deque()
        self._next_id = 0
        self.versions: Mapping[int, tuple[int, int]] = {}
        """Lowest and highest version of each API of the server, including APIs that kjbod does not know."""
        self.features = Features()

    def allow(self, max_frame_bytes: int) -> None:
        """Accept answers up to another size from now on."""
        self._splitter.allow(max_frame_bytes)

    @property
    def in_flight(self) -> int:
        """Number of requests without an answer."""
        return len(self._waiting)

    def version_of(self, api_key: ApiKey) -> int:
        """Return the highest common version.

        Raises:
            UnsupportedVersionError: no common version.
        """
        spec = API[api_key]
        if api_key not in self.versions:
            raise UnsupportedVersionError(
                f"{self._peer} does not offer {api_key.name}: upgrade Kafka there, or ask another server"
            )
        low, high = self.versions[api_key]
        own_low = _ASKED_FROM.get(api_key, spec.min_version)
        if high < max(own_low, low) or low > spec.max_version:
            remedy = f"upgrade {'Kafka there' if high < own_low else 'kjbod'}"
            if low > high:
                remedy = "is this Kafka?"
            raise UnsupportedVersionError(
                f"{self._peer} offers {api_key.name} versions {low} to {high}, "
                f"kjbod knows {own_low} to {spec.max_version}: {remedy}"
            )
        return min(high, spec.max_version)

    def send(self, message: RequestBody[Any], version: int | None = None) -> tuple[int, bytes]:
        """Return the correlation id of a new request, and the bytes to write.

        Raises:
            UnsupportedVersionError: no common version, or the version lacks a field that is set.
        """
        chosen = self.version_of(message.API_KEY) if version is None else version
        correlation_id = self._next_id
        data = encode_request(message, chosen, correlation_id, self._client_id)
        self._next_id = (correlation_id + 1) % _CORRELATION_IDS
        self._waiting.append((correlation_id, message.API_KEY, chosen))
        return correlation_id, data

    def receive(self, data: bytes) -> Iterator[Response]:
        """Yield the responses that ``data`` completes, in the order of their requests.

        Raises:
            RemoteProtocolError: a frame or message is malformed, or answers another request than the next one.
        """
        for frame in self._splitter.feed(data):
            if not self._waiting:
                raise RemoteProtocolError("an answer to nothing")
            correlation_id, api_key, version = self._waiting.popleft()
            response = decode_response(frame, api_key, version)
            if response.correlation_id != correlation_id:
                raise RemoteProtocolError(f"an answer to {response.correlation_id} when {correlation_id} is due")
            yield response

    # -- negotiation

    def hello(self, version: int | None = None) -> tuple[int, bytes]:
        """Return the request that opens the connection, in the newest version that is useful for kjbod's client."""
        name, software_version = self._software
        message = ApiVersionsRequest(client_software_name=name, client_software_version=software_version)
        return self.send(message, _HELLO_VERSION if version is None else version)

    def negotiated(self, answer: ApiVersionsResponse) -> int | None:
        """Process the server's versions. Return None if they are settled, else the version for another request.

        Raises:
            UnsupportedVersionError: no common version of ApiVersions.
            RemoteProtocolError: the server refused.
        """
        offered = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self.versions = {ApiKey.API_VERSIONS: offered.get(ApiKey.API_VERSIONS, (0, 0))}
            return self.version_of(ApiKey.API_VERSIONS)
        if answer.error_code:
            raise RemoteProtocolError(f"the server refused ApiVersions: {error_codes.name_of(answer.error_code)}")
        self.versions = offered
        self.features = Features(
            supported={f.name: (f.min_version, f.max_version) for f in answer.supported_features},
            finalized={f.name: f.max_version_level for f in answer.finalized_features},
            finalized_epoch=answer.finalized_features_epoch,
        )
        return None


# ---------------------------------------------------------------- server


class Slot(Struct):
    """Place of one answer in the order of answers."""

    request: Request | None
    """The request; None if the answer needs no handler, was given, or :attr:`frame` is still to be decoded."""
    encoded: bytes | None = None
    frame: bytes | None = None
    """A large request that :meth:`ServerConnection.decode` must decode."""


class ServerConnection:
    """The server's end of one connection.

    Every request opens a :class:`Slot`, which :meth:`answer` fills at any time. :meth:`data_to_send` returns the
    answers that may be sent: the filled slots before the first unfilled one.
    """

    def __init__(
        self,
        apis: VersionRanges,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_frame_bytes_of: Mapping[ApiKey, int] | None = None,
        decoded_at_once_bytes: int | None = None,
    ) -> None:
        self._apis = apis
        self._decoded_at_once_bytes = max_frame_bytes if decoded_at_once_bytes is None else decoded_at_once_bytes
        self._max_frame_bytes_of = max_frame_bytes_of or {}
        self._splitter = FrameSplitter(max_frame_bytes)
        self._slots: deque[Slot] = deque()

    def allow(self, max_frame_bytes: int) -> None:
        """Accept requests up to another size from now on."""
        self._splitter.allow(max_frame_bytes)

    @property
    def outstanding(self) -> int:
        """Number of answers that were not sent yet."""
        return len(self._slots)

    @property
    def pending_bytes(self) -> int:
        """Received bytes of an incomplete request."""
        return self._splitter.pending_bytes

    def receive(self, data: bytes) -> Iterator[Slot]:
        """Yield the requests that ``data`` completes.

        Raises:
            MalformedMessageError: the bytes are no request, or larger than allowed. Earlier requests are yielded first.
            UnsupportedRequestError: an API or version that is not served, ApiVersions excepted.
        """
        for frame in self._splitter.feed(data):
            slot = Slot(None, frame=frame)
            if len(frame) <= self._decoded_at_once_bytes:
                self.decode(slot)
            self._slots.append(slot)
            yield slot

    def decode(self, slot: Slot) -> None:
        """Decode the request of ``slot``; allowed in any thread, because nothing else changes. Errors as for
        :meth:`receive`."""
        frame, slot.frame = slot.frame, None
        assert frame is not None
        try:
            slot.request = decode_request(frame, self._apis, self._max_frame_bytes_of)
        except UnsupportedRequestError as error:
            if error.api_key != ApiKey.API_VERSIONS:
                raise
            slot.encoded = encode_response(self._version_mismatch(), 0, error.correlation_id)

    def answer(self, slot: Slot, message: ResponseBody | EncodedResponse) -> None:
        """Fill ``slot``.

        Raises:
            LocalProtocolError: the slot has its answer, or ``message`` does not answer its request.
            UnsupportedVersionError: the version of the request lacks a field that is set.
        """
        if slot.request is None or slot.encoded is not None:
            raise LocalProtocolError("a request has one answer")
        api_key = message.api_key if isinstance(message, EncodedResponse) else message.API_KEY
        if api_key is not slot.request.api_key:
            raise LocalProtocolError(f"{api_key.name} does not answer {slot.request.api_key.name}")
        if isinstance(message, EncodedResponse):
            slot.encoded = addressed(message.frame, slot.request.correlation_id) if message.shared else message.frame
        else:
            slot.encoded = encode_response(message, slot.request.version, slot.request.correlation_id)
        slot.request = None  # a decoded request may take fifty times the memory of its frame

    def answer_token(self, slot: Slot, token: bytes) -> None:
        """Fill ``slot`` with a raw SASL message, without a Kafka response around it."""
        slot.encoded = _TOKEN_LENGTH.pack(len(token)) + token

    def data_to_send(self) -> tuple[bytes, int]:
        """Return the bytes that may be sent now, and the number of answers in them."""
        ready = []
        while self._slots and (encoded := self._slots[0].encoded) is not None:
            ready.append(encoded)
            self._slots.popleft().encoded = b""  # a remaining reference to the slot must not keep the answer
        return b"".join(ready), len(ready)

    def abandon(self) -> None:
        """Drop all answers, even for slots that are still referenced, and a partial request. Nothing more is sent."""
        for slot in self._slots:
            slot.request = slot.encoded = slot.frame = None
        self._slots.clear()
        self._splitter.clear()

    def _version_mismatch(self) -> ApiVersionsResponse:
        low, high = self._apis.get(ApiKey.API_VERSIONS, (0, 0))
        entry = ApiVersionsResponseApiVersion(api_key=ApiKey.API_VERSIONS, min_version=low, max_version=high)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=(entry,))


def api_versions_response(
    request: Request,
    apis: VersionRanges,
    features: Features | None = None,
    *,
    broker: tuple[str, int] | None = None,
) -> ApiVersionsResponse:
    """Return Kafka's answer to ``request`` of a server with ``apis``. An invalid client software name gets
    INVALID_REQUEST (KIP-511). A client below version 4 does not see features with minimum 0 (KAFKA-17011).

    Args:
        broker: cluster id and node id of an answering broker. A client that expects other ids gets REBOOTSTRAP_REQUIRED
            (KIP-1242). A controller does not check, and passes None.
    """
    message = request.message
    assert isinstance(message, ApiVersionsRequest)
    texts = (message.client_software_name, message.client_software_version)
    if request.version >= _VERSION_WITH_SOFTWARE_NAME and not all(map(_SOFTWARE_NAME.fullmatch, texts)):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if (message.cluster_id is None) != (message.node_id == _NO_NODE):
        return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    if broker is not None and message.cluster_id is not None and (message.cluster_id, message.node_id) != broker:
        return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
    features = features or Features()
    return ApiVersionsResponse(
        api_keys=tuple(
            ApiVersionsResponseApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in sorted(apis.items())
        ),
        supported_features=_supported(features, request.version),
        finalized_features_epoch=features.finalized_epoch,
        finalized_features=tuple(
            ApiVersionsResponseFinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in features.finalized.items()
        ),
    )


def _supported(features: Features, version: int) -> tuple[ApiVersionsResponseSupportedFeatureKey, ...]:
    return tuple(
        ApiVersionsResponseSupportedFeatureKey(name=name, min_version=low, max_version=high)
        for name, (low, high) in features.supported.items()
        if low > 0 or version >= _VERSION_WITH_ZERO_MINIMA
    )
