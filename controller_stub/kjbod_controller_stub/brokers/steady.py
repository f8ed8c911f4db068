"""Fast path for heartbeats that change nothing, from request frame to answer frame.

A broker repeats itself every two seconds. Of its request only the correlation id and the metadata offset change: two
numbers of a fixed size, at places that the rest of the frame decides. So a frame that the decoder has read tells how to
read all that are like it. What differs anywhere else is read anew, and what cannot be read here, or is not steady, is
handled like any other request.

Nothing is decided here: whether a heartbeat is steady, and its answer, is the business of
:meth:`~kjbod_controller_stub.brokers.sessions.BrokerSessions.steady_heartbeat` on this way as on the other.
"""

import struct
from collections.abc import Callable
from typing import Final

from kjbod.errors import ProtocolError
from kjbod.wire import schemas
from kjbod.wire.frames import decode_request, encode_response, request_header_codec
from kjbod.wire.messages import ApiKey, BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kjbod_controller_stub.limits import FRAME_BYTES_MAX_OF, SERVED

FRAME_BYTES_MAX: Final = 1024
"""Of a heartbeat that is looked at here, its length included: with some fifty directories. To read a larger one twice
would cost more than is saved."""
_API_KEY: Final = ApiKey.BROKER_HEARTBEAT.to_bytes(2)
_LENGTH_BYTES: Final = 4
_CORRELATION_ID_AT: Final = 8
"""In a request; behind its length, API key and version."""
_CORRELATION_ID_END: Final = 12
_OFFSET_IN_BODY: Final = 12
"""Behind the broker's id and epoch, in every version."""
_OFFSET_END_IN_BODY: Final = 20

Decide = Callable[[BrokerHeartbeatRequest, int], BrokerHeartbeatResponse | None]
"""The answer to a heartbeat that is steady and may be answered now, else None; it is like the one given, with that
metadata offset."""


class SteadyHeartbeats:
    """Heartbeats of one connection (:data:`kjbod.wire.server.Shortcut`)."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._form: _Form | None = None

    def __call__(self, data: bytes) -> bytes | None:
        """Return the answer's frame; None if ``data`` is not exactly one steady heartbeat."""
        form = self._form
        read = None if form is None else form.read(data)
        if form is None or read is None:
            form = _form_of(data)
            read = None if form is None else form.read(data)
            if form is None or read is None:
                return None
            self._form = form
        correlation_id, offset = read
        answer = self._decide(form.request, offset)
        return None if answer is None else form.write(correlation_id, answer)


class _Form:
    """Frames that differ only in correlation id and offset, and the answers to them."""

    def __init__(self, data: bytes, offset_at: int, version: int, request: BrokerHeartbeatRequest) -> None:
        offset_end = offset_at + _OFFSET_END_IN_BODY - _OFFSET_IN_BODY
        self.request = request
        """One of these frames."""
        self._head = data[:_CORRELATION_ID_AT]
        self._middle = data[_CORRELATION_ID_END:offset_at]
        self._tail = data[offset_end:]
        self._layout = struct.Struct(f">{len(self._head)}s4s{len(self._middle)}sq{len(self._tail)}s")
        self._version = version
        self._answer: BrokerHeartbeatResponse | None = None
        self._answer_length = self._answer_body = b""

    def read(self, data: bytes) -> tuple[bytes, int] | None:
        """Return the correlation id as received, and the metadata offset; None if the frame has another form."""
        layout = self._layout
        if len(data) != layout.size:
            return None
        head, correlation_id, middle, offset, tail = layout.unpack(data)
        if head != self._head or middle != self._middle or tail != self._tail:
            return None
        return correlation_id, offset

    def write(self, correlation_id: bytes, answer: BrokerHeartbeatResponse) -> bytes:
        """Return the answer's frame; usually the previous one with another correlation id."""
        if answer is not self._answer:
            frame = encode_response(answer, self._version, 0)
            self._answer_length, self._answer_body = frame[:_LENGTH_BYTES], frame[_LENGTH_BYTES + len(correlation_id) :]
            self._answer = answer
        return self._answer_length + correlation_id + self._answer_body


def _form_of(data: bytes) -> _Form | None:
    """Return the form of a frame that is a complete, valid heartbeat."""
    if len(data) > FRAME_BYTES_MAX or data[_LENGTH_BYTES : _LENGTH_BYTES + len(_API_KEY)] != _API_KEY:
        return None
    frame = data[_LENGTH_BYTES:]
    if int.from_bytes(data[:_LENGTH_BYTES]) != len(frame):
        return None
    try:
        request = decode_request(frame, SERVED, FRAME_BYTES_MAX_OF)
    except ProtocolError:
        return None  # the next reader of the frame reports the reason
    assert isinstance(request.message, BrokerHeartbeatRequest)
    header = request_header_codec(schemas.request_header_version(request.api_key, request.version))
    _, body_at = header.decode(frame)
    return _Form(data, _LENGTH_BYTES + body_at + _OFFSET_IN_BODY, request.version, request.message)
