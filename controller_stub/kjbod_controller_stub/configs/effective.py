"""The value of a topic's configuration that the controller itself acts on (``KafkaConfigSchema``).

The topic's own value goes first, then the dynamic one of this node, then that of all nodes, then this node's file.
"""

from typing import Final

from msgspec import Struct

from kjbod.metadata.image import BROKER, TOPIC, MetadataImage, Topic
from kjbod_controller_stub.partitions.eligible import MIN_ISR

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"


class EffectiveConfigs(Struct, frozen=True, kw_only=True):
    """Resolves configurations of topics. ``unclean_election`` and ``min_isr`` are what this node's file says."""

    image: MetadataImage
    node_id: int
    unclean_election: bool = False
    min_isr: int = 1

    def value(self, topic: str, name: str) -> str | None:
        """The value that is set by a record, None where the file counts."""
        configs = self.image.configs
        for resource in ((TOPIC, topic), (BROKER, str(self.node_id)), (BROKER, "")):
            values = configs.get(resource)
            if values is not None and (value := values.get(name)) is not None:
                return value
        return None

    def allows_unclean(self, topic: str) -> bool:
        """Whether a replica that is out of sync may be elected."""
        value = self.value(topic, UNCLEAN_ELECTION)
        return self.unclean_election if value is None else value.strip().lower() == "true"

    def min_in_sync(self, topic: Topic) -> int:
        """``min.insync.replicas``, but no more than the topic's replicas (``getTopicEffectiveMinIsr``)."""
        value = self.value(topic.name, MIN_ISR)
        try:
            wanted = self.min_isr if value is None else int(value)
        except ValueError:
            wanted = self.min_isr  # written by somebody who did not check it
        first = topic.partitions.get(0)
        return wanted if first is None else min(wanted, len(first.replicas))
