"""Frames: a length, a header, a message.

A frame on the wire is an int32 length and that many bytes; below, "frame" is the bytes without the length. A request
starts with a header of api key, version, correlation id and client id (the latter with an int16 length even where the
rest is flexible), a response with the correlation id of its request. Source: Kafka's protocol guide,
``RequestHeader.json``, ``ResponseHeader.json``.
"""

import dataclasses
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from msgspec import Struct

from kjbod.errors import UnsupportedVersionError
from kjbod.wire import schemas
from kjbod.wire.codec import Codec, Field, MalformedMessageError, Schema, compile_codec
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import API, ApiKey, RequestBody, ResponseBody

MAX_FRAME_BYTES = 104_857_600
"""Kafka's default of ``socket.request.max.bytes``."""

TLS_RECORDS = (b"\x16\x03", b"\x15\x03")
"""First bytes of a handshake and of an alert: content type, and the major version of SSL 3 and TLS (RFC 8446, 5.1)."""

VersionRanges = Mapping[ApiKey, tuple[int, int]]
"""Lowest and highest version of each API."""

_MAY_GO_ON = frozenset({ApiKey.METADATA})
"""Requests after which extra bytes are ignored: Kafka does not check them, and librdkafka (2.16) sends three extra
bytes after a flexible request for all topics."""
_LENGTH = struct.Struct(">i")
_CORRELATION_ID = struct.Struct(">i")
_PREAMBLE = struct.Struct(">hhi")
_ERROR_CODE = struct.Struct(">h")


class UnsupportedRequestError(UnsupportedVersionError):
    """A request for an API or version that is not served; its body cannot be decoded."""

    def __init__(self, api_key: int, version: int, correlation_id: int) -> None:
        super().__init__(f"API {api_key} version {version} is not served")
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id


class RequestHeader(Struct, frozen=True, kw_only=True):
    """Header before the body of a request."""

    request_api_key: int
    request_api_version: int
    correlation_id: int
    client_id: str | None


class ResponseHeader(Struct, frozen=True, kw_only=True):
    """Header before the body of a response."""

    correlation_id: int


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    """A received request."""

    api_key: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    message: RequestBody[Any]
    size_in_bytes: int = dataclasses.field(default=0, compare=False)
    """Size of its frame; 0 without a frame."""


class Response(Struct, frozen=True):
    """A received response."""

    correlation_id: int
    message: ResponseBody


# ---------------------------------------------------------------- codecs


@cache
def request_header_codec(version: int) -> Codec[RequestHeader]:
    """Return the codec of header version 1, or 2 with tagged fields."""
    fields = (
        Field("request_api_key", "int16"),
        Field("request_api_version", "int16"),
        Field("correlation_id", "int32"),
        Field("client_id", "string", nullable=True, legacy_length=True),
    )
    return compile_codec(Schema("RequestHeader", version, version >= 2, fields), RequestHeader)


@cache
def response_header_codec(version: int) -> Codec[ResponseHeader]:
    """Return the codec of header version 0, or 1 with tagged fields."""
    schema = Schema("ResponseHeader", version, version >= 1, (Field("correlation_id", "int32"),))
    return compile_codec(schema, ResponseHeader)


@cache
def request_codec(api_key: ApiKey, version: int) -> Codec[RequestBody[Any]]:
    """Return the codec of a request's body.

    Raises:
        UnsupportedVersionError: kjbod has no such version.
    """
    _check_version(api_key, version)
    return compile_codec(schemas.request_schema(api_key, version), API[api_key].request)


@cache
def response_codec(api_key: ApiKey, version: int) -> Codec[ResponseBody]:
    """Return the codec of a response's body; errors as for :func:`request_codec`."""
    _check_version(api_key, version)
    return compile_codec(schemas.response_schema(api_key, version), API[api_key].response)


def preload(apis: VersionRanges) -> None:
    """Compile the codecs of these versions now, not at the first message."""
    for api_key, (low, high) in apis.items():
        for version in range(low, high + 1):
            request_codec(api_key, version)
            response_codec(api_key, version)


def _check_version(api_key: ApiKey, version: int) -> None:
    spec = API[api_key]
    if not spec.min_version <= version <= spec.max_version:
        raise UnsupportedVersionError(
            f"{api_key.name} version {version} is not one of {spec.min_version} to {spec.max_version}"
        )


# ---------------------------------------------------------------- messages


def encode_request(message: RequestBody[Any], version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Encode a request with its length in front.

    Raises:
        UnsupportedVersionError: kjbod lacks the version, or the version lacks a field that is set.
        LocalProtocolError: a number does not fit its field.
    """
    body = request_codec(message.API_KEY, version)
    header = request_header_codec(schemas.request_header_version(message.API_KEY, version))
    out = bytearray(_LENGTH.size)
    header.encode_into(
        out,
        RequestHeader(
            request_api_key=message.API_KEY,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        ),
    )
    body.encode_into(out, message)
    return _with_length(out)


def decode_request(
    frame: bytes, apis: VersionRanges | None = None, max_bytes: Mapping[ApiKey, int] | None = None
) -> Request:
    """Decode the request in ``frame``. ``apis`` are the served APIs, by default all that kjbod knows; ``max_bytes`` is
    the size limit.

    Raises:
        MalformedMessageError: the frame is no valid request of its API and version, or is too large.
        UnsupportedRequestError: an API or version that is not served.
    """
    if len(frame) < _PREAMBLE.size:
        raise MalformedMessageError(f"a request of {len(frame)} bytes has no header")
    key, version, correlation_id = _PREAMBLE.unpack_from(frame)
    if not _served(key, version, apis):
        raise UnsupportedRequestError(key, version, correlation_id)
    api_key = ApiKey(key)
    if max_bytes is not None and len(frame) > (most := max_bytes.get(api_key, len(frame))):
        raise MalformedMessageError(f"{api_key.name} of {len(frame)} bytes, at most {most} are taken")
    header, at = request_header_codec(schemas.request_header_version(api_key, version)).decode(frame)
    codec = request_codec(api_key, version)
    message = codec.decode(frame, at)[0] if api_key in _MAY_GO_ON else codec.decode_exact(frame, at)
    return Request(api_key, version, correlation_id, header.client_id, message, len(frame))


def _served(key: int, version: int, apis: VersionRanges | None) -> bool:
    try:
        api_key = ApiKey(key)
        spec = API[api_key]
    except (ValueError, KeyError):  # Kafka has no such API, or this process has not loaded its messages
        return False
    low, high = apis.get(api_key, (0, -1)) if apis is not None else (spec.min_version, spec.max_version)
    return max(low, spec.min_version) <= version <= min(high, spec.max_version)


def encode_response(message: ResponseBody, version: int, correlation_id: int) -> bytes:
    """Encode a response with its length in front; errors as for :func:`encode_request`."""
    body = response_codec(message.API_KEY, version)
    header = response_header_codec(schemas.response_header_version(message.API_KEY, version))
    out = bytearray(_LENGTH.size)
    header.encode_into(out, ResponseHeader(correlation_id=correlation_id))
    body.encode_into(out, message)
    return _with_length(out)


class EncodedResponse(Struct, frozen=True):
    """A response in its wire form, made in advance because encoding takes long."""

    api_key: ApiKey
    frame: bytes
    mute_ms: int = 0
    """Time after it in which the connection is not read (KIP-219)."""
    shared: bool = False
    """Whether it was made once for all callers, and has no correlation id yet."""


def addressed(frame: bytes, correlation_id: int) -> bytes:
    """Return a response's frame with another correlation id, which is first in every version of the header."""
    rest = memoryview(frame)[_LENGTH.size + _CORRELATION_ID.size :]
    return b"".join((frame[: _LENGTH.size], _CORRELATION_ID.pack(correlation_id), rest))


def decode_response(frame: bytes, api_key: ApiKey, version: int) -> Response:
    """Decode the response in ``frame`` to a request of this API and version.

    Accepts version 0 too, in which a server without the requested version of ApiVersions answers (KIP-511).

    Raises:
        MalformedMessageError: the frame is no such response.
    """
    header, at = response_header_codec(schemas.response_header_version(api_key, version)).decode(frame)
    if api_key is ApiKey.API_VERSIONS and len(frame) >= at + _ERROR_CODE.size:
        (error_code,) = _ERROR_CODE.unpack_from(frame, at)
        if error_code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
    return Response(header.correlation_id, response_codec(api_key, version).decode_exact(frame, at))


def _with_length(out: bytearray) -> bytes:
    _LENGTH.pack_into(out, 0, len(out) - _LENGTH.size)
    return bytes(out)


# ---------------------------------------------------------------- splitting


class FrameSplitter:
    """Splits a stream of bytes into frames. Holds at most the received part of one incomplete frame."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Received bytes of an incomplete frame."""
        return len(self._buffer)

    def allow(self, max_frame_bytes: int) -> None:
        """Accept frames up to another size from now on."""
        self._max_frame_bytes = max_frame_bytes

    def clear(self) -> None:
        """Drop the bytes of an incomplete frame."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the frames that ``data`` completes, in order.

        Raises:
            MalformedMessageError: a length is negative or above the limit. Earlier frames are yielded first.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not 0 <= length <= self._max_frame_bytes:
                raise MalformedMessageError(self._complaint(length))
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            frame = bytes(memoryview(self._buffer)[_LENGTH.size : end])
            del self._buffer[:end]
            yield frame

    def _complaint(self, length: int) -> str:
        start = bytes(self._buffer[: _LENGTH.size])
        told = f"a frame of {length} bytes, at most {self._max_frame_bytes} are taken"
        if start[:2] in TLS_RECORDS:
            return f"{told}: this looks like TLS"
        if start in (b"GET ", b"POST", b"HEAD", b"PUT ", b"HTTP"):
            return f"{told}: this looks like HTTP"
        return told
