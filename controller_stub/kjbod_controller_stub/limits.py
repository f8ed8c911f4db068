"""Requests that the controller serves, and limits of the cost of one client, with Kafka's keys where they exist."""

from collections.abc import Mapping

from kjbod.wire.messages import (
    API,
    ApiKey,
)
from kjbod_controller_stub.controller import HANDLERS
from kjbod_controller_stub.log import voters

_BY_THE_SERVER = frozenset(
    {
        ApiKey.API_VERSIONS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.FETCH,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ENVELOPE,
        *(request.API_KEY for request in voters.ANSWERS),
    }
)
SERVED: Mapping[ApiKey, tuple[int, int]] = {
    key: (12, spec.max_version) if key is ApiKey.FETCH else (spec.min_version, spec.max_version)
    for key, spec in API.items()
    if key in _BY_THE_SERVER or spec.request in HANDLERS
}
"""What the controller offers; of Fetch those versions that carry a leader epoch."""

FRAME_BYTES_MAX = 2 * 1024 * 1024
"""A request's size: 100,000 assignments in one take 2 MB. ``socket.request.max.bytes`` may lower it."""
_LONG_REQUESTS = frozenset(
    {
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.ALTER_PARTITION,
        ApiKey.ELECT_LEADERS,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.ENVELOPE,
    }
)
FRAME_BYTES_MAX_OF: Mapping[ApiKey, int] = {key: 256 * 1024 for key in SERVED if key not in _LONG_REQUESTS}
"""All others are short. Metadata version 0 has room for an element in two bytes: 8 MiB of it take 8 s to decode."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
IN_FLIGHT_MAX = 4
"""Kafka's brokers have one request at a time on a connection; each may be owed a large answer."""
CONNECTIONS_MAX = 10_000
"""Six per broker; ``max.connections`` and the process's limit of open files may lower it."""
QUEUED_BYTES_MAX = 4 * 1024 * 1024
"""Large requests that are read or handled at a time: each may take fifty times its size when it is decoded.
``queued.max.request.bytes`` may set another limit."""
UNREAD_BYTES_MAX = 256 * 1024 * 1024
"""Answers that are not taken: 1 MiB each for 230 observers that read the log, with ``socket.send.buffer.bytes``."""
REQUESTS_PER_SECOND_MAX = 2_000
"""Of one connection. A broker asks for some tens."""
URGENT = frozenset(
    {
        ApiKey.BROKER_HEARTBEAT,
        ApiKey.BROKER_REGISTRATION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.ALTER_PARTITION,
    }
)
"""What a broker is fenced without, and what keeps partitions led where they can be written. It goes before all others,
at the door and to the state (:class:`.turns.Rank`)."""
