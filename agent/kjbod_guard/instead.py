"""Kafka's tools that replace the commands of an agent on a host with a guard. Pure."""

from collections.abc import Mapping
from typing import Final

INSTEAD: Final[Mapping[str, str]] = {
    "dirs-add": "add the directory to log.dirs, and restart the broker",
    "move": "kafka-reassign-partitions.sh with log_dirs moves replicas of this broker between its directories",
    "move-cancel": "kafka-reassign-partitions.sh --cancel",
    "moves": "kafka-reassign-partitions.sh --verify, or kafka-log-dirs.sh --describe",
    "strays-remove": (
        "restart the broker, which removes directories that end in -delete; stop the broker to remove a directory that "
        "ends in -stray by hand; kafka-log-dirs.sh --describe lists the replicas in use"
    ),
    "strays-restore": (
        "kafka-reassign-partitions.sh assigns the replica to this broker again, which copies it from the leader; to "
        "use the records on this disk, stop the broker and rename the directory to TOPIC-PARTITION"
    ),
}
"""Advice by the operation of the control socket."""


def refusal(operation: str) -> str:
    """Return the line that refuses an operation of an agent."""
    return f"this host runs a guard beside a Kafka broker. Use instead: {INSTEAD[operation]}"
