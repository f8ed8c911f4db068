"""Replicas that the metadata give to this broker: a small index over the metadata image.

The image of a cluster has every partition of it; a broker acts on its own. :class:`Hosting` follows the changes that
the image reports and keeps, for each partition with a replica here, what the agent needs: the directory that it is
assigned to and whether this broker leads it.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from msgspec import Struct, field

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.image import BROKER, Change, MetadataImage, PartitionChange, PartitionRegistration, TopicDeleted
from kjbod_host.partitions import TopicIdPartition

CORDONED_LOG_DIRS: Final = "cordoned.log.dirs"
MOVE_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_MOVE_RATE_MAX: Final = 2**63 - 1
_UNDECIDED: Final = frozenset({UNASSIGNED, MIGRATING})


class Hosted(NamedTuple):
    """A replica of this broker, as the metadata have it."""

    topic: str
    directory: Uuid
    leads: bool


@functools.lru_cache(maxsize=4096)
def _hosted(topic: str, directory: Uuid, leads: bool) -> Hosted:
    """An object for all that are equal: few topics and directories have very many replicas."""
    return Hosted(topic, directory, leads)


class Update(Struct, frozen=True):
    """Meaning of a change of the metadata for one replica here; ``old`` None: new here, ``new`` None: no longer."""

    partition: TopicIdPartition
    old: Hosted | None
    new: Hosted | None


class Hosting(Struct):
    """The replicas of one broker. Mutable, as the image is; no I/O."""

    broker_id: int
    partitions: dict[TopicIdPartition, Hosted] = field(default_factory=dict)
    undecided: dict[TopicIdPartition, None] = field(default_factory=dict)
    """Those of which the metadata do not know the directory: UNASSIGNED, or MIGRATING."""
    _loading: bool = False

    def __contains__(self, partition: TopicIdPartition) -> bool:
        return partition in self.partitions

    def load(self, image: MetadataImage) -> None:
        """Forget all and take the replicas of ``image``."""
        for _ in self.load_in_steps(lambda: image, 1 << 62):
            pass

    def load_in_steps(self, image: Callable[[], MetadataImage], step: int) -> Iterator[None]:
        """:meth:`load` with a pause after each ``step`` partitions of the cluster. From the call on, and in each pause,
        the image may change, if :meth:`apply` follows: what was not taken yet is taken as it is then."""
        self.partitions, self.undecided = {}, {}
        self._loading = True
        return self._take(image, step)

    def _take(self, image: Callable[[], MetadataImage], step: int) -> Iterator[None]:
        looked_at = 0
        for topic_id in list(image().topics):
            topic = image().topics.get(topic_id)
            if topic is None:  # deleted in a pause
                continue
            for number, registration in topic.partitions.items():
                if self.broker_id in registration.replicas:
                    self._put(TopicIdPartition(topic_id, number), self._of(topic.name, registration))
            looked_at += len(topic.partitions)
            if looked_at >= step:
                looked_at = 0
                yield
        self._loading = False

    def apply(self, changes: Iterable[Change]) -> list[Update]:
        """Follow the image; what that means here, one entry for each replica, in the order of the last change."""
        updates: dict[TopicIdPartition, Update] = {}
        for change in changes:
            for partition, before, new in self._touched(change):
                old = self.partitions.get(partition)
                if old is None and self._loading:
                    old = before
                if old == new:
                    continue
                if new is None:
                    self.partitions.pop(partition, None)
                    self.undecided.pop(partition, None)
                else:
                    self._put(partition, new)
                first = updates.pop(partition, None)
                updates[partition] = Update(partition, old if first is None else first.old, new)
        return [u for u in updates.values() if u.old != u.new]

    def _put(self, partition: TopicIdPartition, hosted: Hosted) -> None:
        self.partitions[partition] = hosted
        if hosted.directory in _UNDECIDED:
            self.undecided[partition] = None
        else:
            self.undecided.pop(partition, None)

    def leaders_by(self, locate: Callable[[TopicIdPartition, Hosted], Uuid]) -> Mapping[Uuid, int]:
        """Number of partitions that this broker leads, by the directory that ``locate`` says; walks over all."""
        counts: dict[Uuid, int] = {}
        for partition, hosted in self.partitions.items():
            if hosted.leads:
                directory = locate(partition, hosted)
                counts[directory] = counts.get(directory, 0) + 1
        return counts

    def _of(self, topic: str, registration: PartitionRegistration) -> Hosted:
        return _hosted(topic, registration.directory(self.broker_id), registration.leader == self.broker_id)

    def _touched(self, change: Change) -> Iterator[tuple[TopicIdPartition, Hosted | None, Hosted | None]]:
        """Partitions of ours that a change touches, before and after it."""
        if isinstance(change, PartitionChange):
            old = None if change.old is None else self._ours(change.topic, change.old)
            new = self._ours(change.topic, change.new)
            if old is not None or new is not None:
                yield TopicIdPartition(change.topic_id, change.partition), old, new
        elif isinstance(change, TopicDeleted):
            for number, registration in change.topic.partitions.items():
                old = self._ours(change.topic.name, registration)
                if old is not None:
                    yield TopicIdPartition(change.topic.id, number), old, None

    def _ours(self, topic: str, registration: PartitionRegistration) -> Hosted | None:
        return self._of(topic, registration) if self.broker_id in registration.replicas else None


def move_rate(text: str) -> int | None:
    """Bytes per second in a value of :data:`MOVE_RATE`, from 0 on; None: it is no such number (``ConfigDef.LONG``)."""
    digits = text.strip().removeprefix("+")
    if not (digits.isdecimal() and digits.isascii()) or int(digits) > _MOVE_RATE_MAX:
        return None
    return int(digits)


def cordoned_log_dirs(
    image: MetadataImage, broker_id: int, configured: Collection[str], log_dirs: Iterable[str]
) -> frozenset[str]:
    """Paths of the directories that a person has cordoned (``cordoned.log.dirs``, KIP-1066): the dynamic setting of
    this broker, that of all brokers, the configured one, in this order; ``*`` is all of them."""
    for broker in (str(broker_id), ""):
        value = image.configs.get((BROKER, broker), {}).get(CORDONED_LOG_DIRS)
        if value is not None:
            named = {path.strip() for path in value.split(",")} - {""}
            return frozenset(log_dirs) if "*" in named else frozenset(named)
    return frozenset(configured)
