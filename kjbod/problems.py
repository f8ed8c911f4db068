"""Problems that ``kjbod status`` reports for a guard, with a stable code each. Pure.

Scripts may compare codes: a code keeps its meaning, and a new condition gets a new code.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct


class Code(StrEnum):
    """Stable name of a problem."""

    DISK_HUNG = "DISK_HUNG"
    DISK_FAILED = "DISK_FAILED"
    DISK_UNREADABLE = "DISK_UNREADABLE"
    DISK_UNWATCHED = "DISK_UNWATCHED"
    DISK_OFFLINE = "DISK_OFFLINE"
    DISK_RECOVERING = "DISK_RECOVERING"
    DISK_SUSPECT = "DISK_SUSPECT"
    DISK_SLOW = "DISK_SLOW"
    DISK_HELD = "DISK_HELD"
    DISK_FULL = "DISK_FULL"
    NO_DISK_WATCHED = "NO_DISK_WATCHED"
    BROKER_STUCK = "BROKER_STUCK"
    BROKER_LOST = "BROKER_LOST"
    BROKER_NOT_FOUND = "BROKER_NOT_FOUND"
    NO_LEADER = "NO_LEADER"
    BELOW_MIN_ISR = "BELOW_MIN_ISR"
    IN_SYNC_OFFLINE = "IN_SYNC_OFFLINE"
    REPLICAS_EVICTED = "REPLICAS_EVICTED"
    METADATA_NOT_FOLLOWED = "METADATA_NOT_FOLLOWED"
    KAFKA_NEWER = "KAFKA_NEWER"
    RIGHTS_MISSING = "RIGHTS_MISSING"
    NOT_UNDONE = "NOT_UNDONE"
    JOURNAL_NOT_WRITTEN = "JOURNAL_NOT_WRITTEN"
    CERTIFICATE = "CERTIFICATE"


class Problem(Struct, frozen=True):
    """Problem of a guard.

    Attributes:
        code: see :class:`Code`.
        text: one line of text.
        path: path of the log directory; None: the problem is not about one directory.
    """

    code: Code
    text: str
    path: str | None = None


TEXTS: Final[Mapping[Code, str]] = {
    Code.DISK_HUNG: "{path} does not answer, {kafka}",
    Code.DISK_FAILED: "{path} has failed, {kafka}",
    Code.DISK_UNREADABLE: "{path} does not answer, and the guard cannot identify or act on it",
    Code.DISK_UNWATCHED: "{path} is not watched: the guard could not read it",
    Code.DISK_OFFLINE: "{path} is healthy and offline for Kafka: the broker uses it again when it starts",
    Code.DISK_RECOVERING: "{path} answers again, and has not passed three probes yet",
    Code.DISK_SUSPECT: "{path} is in trouble, and the guard is checking it",
    Code.DISK_SLOW: "{path} is slow",
    Code.DISK_HELD: "{path} stands still above its device: frozen or throttled",
    Code.DISK_FULL: "{path} is full",
    Code.NO_DISK_WATCHED: "no log directory can be watched",
}
"""Texts of problems of log directories. ``{kafka}`` is replaced by Kafka's view. The other texts, with counts and
reasons, are in the guard's condition."""
