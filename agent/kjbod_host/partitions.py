"""Name of a partition that is unique over time: topic id and partition index."""

from typing import NamedTuple

from kjbod.ids import Uuid


class TopicIdPartition(NamedTuple):
    """A partition of one incarnation of a topic (``common.TopicIdPartition`` without the topic's name)."""

    topic_id: Uuid
    partition: int

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.partition}"
