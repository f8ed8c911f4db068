"""Limits of the cost of one client of a server."""

from collections.abc import Mapping

from msgspec import Struct, field

from kjbod.wire.frames import MAX_FRAME_BYTES
from kjbod.wire.messages import ApiKey
from kjbod.wire.pressure import NO_LIMIT

DECODED_AT_ONCE_BYTES = 16 * 1024
"""Requests up to this size take at most some milliseconds to decode."""
IDLE_MS_MAX = 365 * 24 * 3_600 * 1_000
"""Idle limit if ``connections.max.idle.ms`` is negative or larger."""
URGENT_PER_SECOND = 100
"""Urgent requests per second: a broker sends a heartbeat every two seconds. A client with many more must wait for its
turn."""


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of the cost of one client. Names and defaults are Kafka's where Kafka has them."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    """``socket.request.max.bytes``. A decoded message takes some fifty times its frame: a controller sets it lower."""
    max_frame_bytes_of: Mapping[ApiKey, int] = field(default_factory=dict)
    """Lower limits for some APIs: a frame with millions of elements would take seconds to decode."""
    max_pending_bytes: int = 4 * MAX_FRAME_BYTES
    """Maximum bytes of incomplete requests over all connections (compare ``queued.max.request.bytes``). The connection
    that exceeds it is closed."""
    max_queued_bytes: int = 2**63 - 1
    """``queued.max.request.bytes``: maximum bytes of requests above :data:`DECODED_AT_ONCE_BYTES`, over all
    connections, from their decoding to their answer. Further requests wait; a larger request waits for all others."""
    max_unread_bytes: int = 256 * 1024 * 1024
    """Maximum bytes of unread answers over all connections, plus ``send_buffer_bytes`` for each of these. Above it the
    reader without progress for the longest time is disconnected."""
    send_buffer_bytes: int = 102_400
    """``socket.send.buffer.bytes``: the kernel's buffer for a connection's answers, up to twice as much by its
    own count. -1: the system's default, which may be megabytes for a client that does not read; they are not
    counted then."""
    receive_buffer_bytes: int = 102_400
    """``socket.receive.buffer.bytes``: the same for requests that are not read yet."""
    max_connections: int = 1_000
    max_connections_per_ip: int = NO_LIMIT
    """``max.connections.per.ip``."""
    max_connections_per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    """``max.connections.per.ip.overrides``, by address."""
    max_connection_creation_rate: int = NO_LIMIT
    """``max.connection.creation.rate``: connections per second. Faster connections wait before they are read from.
    Those that would wait longer than ``stall_timeout_ms`` are closed."""
    max_requests_per_second: int = NO_LIMIT
    """Requests per second of one connection, with a burst of one second; further requests wait."""
    requests_at_once: int = 16
    """Requests begun in one turn of the event loop, over all connections."""
    urgent: frozenset[ApiKey] = frozenset()
    """APIs whose requests begin in the turn in which they arrive, up to :data:`URGENT_PER_SECOND` per
    connection. Large ones are decoded in a thread, with their own limit of ``max_queued_bytes``, so that other
    requests never delay them."""
    max_logging_in: int = 500
    """Maximum unauthenticated connections, if the listener uses TLS or SASL."""
    login_timeout_ms: int = 30_000
    """Time limit of TLS handshake and login together."""
    listen_backlog: int = 50
    """``socket.listen.backlog.size``."""
    max_in_flight: int = 16
    """Maximum requests of one connection in progress."""
    idle_timeout_ms: int = 600_000
    """``connections.max.idle.ms``."""
    stall_timeout_ms: int = 30_000
    """Time in which a client may neither read its answers nor finish its request."""
    linger_timeout_ms: int = 5_000
    """Time limit for pending answers after an error on a connection."""


def idle_limit_ms(connections_max_idle_ms: int) -> int:
    """Return ``connections.max.idle.ms`` for a timer: negative means never."""
    return min(IDLE_MS_MAX, connections_max_idle_ms) if connections_max_idle_ms >= 0 else IDLE_MS_MAX


def queued_limit_bytes(queued_max_request_bytes: int, own: int) -> int:
    """Return ``queued.max.request.bytes``; if it is not positive, the server's ``own`` limit."""
    return queued_max_request_bytes if queued_max_request_bytes > 0 else own
