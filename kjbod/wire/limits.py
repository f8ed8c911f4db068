"""Limits of what a peer of a server may cost."""

from collections.abc import Mapping

from msgspec import Struct, field

from kjbod.wire.frames import MAX_FRAME_BYTES
from kjbod.wire.messages import ApiKey
from kjbod.wire.pressure import NO_LIMIT

DECODED_AT_ONCE_BYTES = 16 * 1024
"""A request up to this size takes at most some milliseconds to decode."""
IDLE_MS_MAX = 365 * 24 * 3_600 * 1_000
"""Where ``connections.max.idle.ms`` says never, or much later."""
URGENT_PER_SECOND = 100
"""A broker sends a heartbeat every two seconds; who sends very many waits for its turn with them, too."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of what a peer may cost. Names and defaults are Kafka's where Kafka has them."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    """``socket.request.max.bytes``. A decoded message takes some fifty times its frame: a controller sets it lower."""
    max_frame_bytes_of: Mapping[ApiKey, int] = field(default_factory=dict)
    """Less, for some APIs: decoding is a matter of seconds where a frame has room for millions of elements."""
    max_pending_bytes: int = 4 * MAX_FRAME_BYTES
    """What incomplete requests of all connections may take together (compare ``queued.max.request.bytes``); the
    connection whose piece goes beyond is closed."""
    max_queued_bytes: int = 2**63 - 1
    """``queued.max.request.bytes``: what requests above :data:`DECODED_AT_ONCE_BYTES` take at most, all connections
    together, from their decoding to their answer. Further ones wait; one that is larger waits for all others."""
    max_unread_bytes: int = 256 * 1024 * 1024
    """Answers that were made and not taken by their readers, over all connections, and ``send_buffer_bytes`` for each
    of these; beyond it the reader that has made no progress for longest is cut off."""
    send_buffer_bytes: int = 102_400
    """``socket.send.buffer.bytes``: what the kernel holds of a connection's answers, in its own counting up to twice as
    much; -1: as the system has it, megabytes for a reader that does not read, which are not counted then."""
    receive_buffer_bytes: int = 102_400
    """``socket.receive.buffer.bytes``: the same for requests that are not read yet."""
    max_connections: int = 1_000
    max_connections_per_ip: int = NO_LIMIT
    """``max.connections.per.ip``."""
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """``max.connections.per.ip.overrides``, by address."""
    max_connection_creation_rate: int = NO_LIMIT
    """``max.connection.creation.rate``: per second; connections that come faster wait before they are read from, up to
    ``stall_timeout_ms``: those that would wait longer are closed."""
    max_requests_per_second: int = NO_LIMIT
    """Of one connection, a second's worth at once; what is above waits."""
    requests_at_once: int = 16
    """Begun in one turn of the event loop, over all connections."""
    urgent: frozenset[ApiKey] = frozenset()
    """Begun in the turn in which they come, :data:`URGENT_PER_SECOND` of one connection. Large ones are read in a
    thread, and count in a room of ``max_queued_bytes``, of their own: none of the others ever goes before them."""
    max_logging_in: int = 500
    """Connections that have not logged in, where the listener asks for TLS or SASL."""
    login_timeout_ms: int = 30_000
    """How long the TLS handshake and the login may take together."""
    listen_backlog: int = 50
    """``socket.listen.backlog.size``."""
    max_in_flight: int = 16
    """Requests of one connection that are handled or answered at a time."""
    idle_timeout_ms: int = 600_000
    """``connections.max.idle.ms``."""
    stall_timeout_ms: int = 30_000
    """How long a client may neither read its answers nor finish its request."""
    linger_timeout_ms: int = 5_000
    """How long answers may take that were due when a connection went bad."""


def idle_limit_ms(connections_max_idle_ms: int) -> int:
    """``connections.max.idle.ms`` as a timer takes it: negative is never."""
    return min(IDLE_MS_MAX, connections_max_idle_ms) if connections_max_idle_ms >= 0 else IDLE_MS_MAX


def queued_limit_bytes(queued_max_request_bytes: int, own: int) -> int:
    """``queued.max.request.bytes``: what is not positive leaves it to the server, whose ``own`` limit is given."""
    return queued_max_request_bytes if queued_max_request_bytes > 0 else own
