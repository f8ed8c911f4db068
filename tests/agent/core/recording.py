"""What several tests of the agent's parts stand on: a log that is kept, and the controller's mirror of assignments."""

from collections.abc import Mapping
from typing import Any

from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectory,
    AssignReplicasToDirsResponsePartition,
    AssignReplicasToDirsResponseTopic,
)
from kjbod_host.partitions import TopicIdPartition


class Log:
    """Events in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    warning = error = info

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.events if name == event]


def answer(
    request: AssignReplicasToDirsRequest,
    codes: Mapping[TopicIdPartition, int] | None = None,
    leave_out: tuple[TopicIdPartition, ...] = (),
) -> AssignReplicasToDirsResponse:
    """The controller's mirror of a request."""
    return AssignReplicasToDirsResponse(
        directories=tuple(
            AssignReplicasToDirsResponseDirectory(
                id_=directory.id_,
                topics=tuple(
                    AssignReplicasToDirsResponseTopic(
                        topic_id=topic.topic_id,
                        partitions=tuple(
                            AssignReplicasToDirsResponsePartition(
                                partition_index=p.partition_index,
                                error_code=(codes or {}).get(TopicIdPartition(topic.topic_id, p.partition_index), 0),
                            )
                            for p in topic.partitions
                            if TopicIdPartition(topic.topic_id, p.partition_index) not in leave_out
                        ),
                    )
                    for topic in directory.topics
                ),
            )
            for directory in request.directories
        )
    )
