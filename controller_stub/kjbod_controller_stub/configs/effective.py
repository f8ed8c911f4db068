"""Effective topic configurations that the controller itself uses (``KafkaConfigSchema``).

The topic's own value goes first, then the dynamic one of this node, then that of all nodes, then this node's file.
"""

from typing import Final

from msgspec import Struct

from kjbod.metadata.image import BROKER, TOPIC, MetadataImage, Topic
from kjbod_controller_stub.partitions.eligible import MIN_ISR

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"


class EffectiveConfigs(Struct, frozen=True, kw_only=True):
    """Resolves configurations of topics. ``unclean_election`` and ``min_isr`` come from this node's file."""

    image: MetadataImage
    node_id: int
    unclean_election: bool = False
    min_isr: int = 1

    def value(self, topic: str, name: str) -> str | None:
        """Return the value set by a record; None if the file's value applies."""
        configs = self.image.configs
        for resource in ((TOPIC, topic), (BROKER, str(self.node_id)), (BROKER, "")):
            values = configs.get(resource)
            if values is not None and (value := values.get(name)) is not None:
                return value
        return None

    def allows_unclean(self, topic: str) -> bool:
        """Return whether an out-of-sync replica may be elected."""
        value = self.value(topic, UNCLEAN_ELECTION)
        return self.unclean_election if value is None else value.strip().lower() == "true"

    def min_in_sync(self, topic: Topic) -> int:
        """Return ``min.insync.replicas``, at most the number of the topic's replicas (``getTopicEffectiveMinIsr``)."""
        value = self.value(topic.name, MIN_ISR)
        try:
            wanted = self.min_isr if value is None else int(value)
        except ValueError:
            wanted = self.min_isr  # a record written without a check of the value
        first = topic.partitions.get(0)
        return wanted if first is None else min(wanted, len(first.replicas))
