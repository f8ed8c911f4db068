"""Which replicas the metadata give to this broker: a small index over the metadata image.

The image of a cluster has every partition of it; a broker acts on its own. :class:`Hosting` follows the changes that
the image reports and keeps, for each partition with a replica here, what the agent needs: the directory that it is
assigned to and whether this broker leads it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kjbod.ids import Uuid
from kjbod.metadata.image import Change, MetadataImage, PartitionChange, PartitionRegistration, TopicDeleted
from kjbod_agent.partitions import TopicIdPartition


class Hosted(NamedTuple):
    """A replica of this broker, as the metadata have it."""

    topic: str
    directory: Uuid
    leads: bool


@functools.lru_cache(maxsize=4096)
def _hosted(topic: str, directory: Uuid, leads: bool) -> Hosted:
    """One object for all that are equal: few topics and directories have very many replicas."""
    return Hosted(topic, directory, leads)


@dataclass(frozen=True, slots=True)
class Update:
    """What a change of the metadata means for one replica here; ``old`` None: new here, ``new`` None: no longer."""

    partition: TopicIdPartition
    old: Hosted | None
    new: Hosted | None


@dataclass(slots=True)
class Hosting:
    """The replicas of one broker. Mutable, as the image is; no I/O."""

    broker_id: int
    partitions: dict[TopicIdPartition, Hosted] = field(default_factory=dict)

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self.partitions

    def load(self, image: MetadataImage) -> None:
        """Forget all and take the replicas of ``image``."""
        self.partitions = {
            TopicIdPartition(topic.id, number): self._of(topic.name, registration)
            for topic, number, registration in image.replicas_of(self.broker_id)
        }

    def apply(self, changes: Iterable[Change]) -> list[Update]:
        """Follow the image; what that means here, one entry for each replica, in the order of the last change."""
        updates: dict[TopicIdPartition, Update] = {}
        for change in changes:
            for partition, new in self._touched(change):
                old = self.partitions.get(partition)
                if old == new:
                    continue
                if new is None:
                    del self.partitions[partition]
                else:
                    self.partitions[partition] = new
                first = updates.pop(partition, None)
                updates[partition] = Update(partition, old if first is None else first.old, new)
        return [u for u in updates.values() if u.old != u.new]

    def leaders_by(self, locate: Callable[[TopicIdPartition, Hosted], Uuid]) -> Mapping[Uuid, int]:
        """How many partitions this broker leads, by the directory that ``locate`` says; walks over all."""
        counts: dict[Uuid, int] = {}
        for partition, hosted in self.partitions.items():
            if hosted.leads:
                directory = locate(partition, hosted)
                counts[directory] = counts.get(directory, 0) + 1
        return counts

    def _of(self, topic: str, registration: PartitionRegistration) -> Hosted:
        return _hosted(topic, registration.directory(self.broker_id), registration.leader == self.broker_id)

    def _touched(self, change: Change) -> Iterator[tuple[TopicIdPartition, Hosted | None]]:
        if isinstance(change, PartitionChange):
            ours = self.broker_id in change.new.replicas
            if ours or (change.old is not None and self.broker_id in change.old.replicas):
                new = self._of(change.topic, change.new) if ours else None
                yield TopicIdPartition(change.topic_id, change.partition), new
        elif isinstance(change, TopicDeleted):
            for number in change.topic.partitions:
                yield TopicIdPartition(change.topic.id, number), None
