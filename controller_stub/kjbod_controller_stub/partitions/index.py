"""Which partitions a broker or a directory concerns, without a walk over all of them (``BrokersToIsrs``,
``BrokersToDirs``).

Derived from the image's changes alone, so that replay rebuilds it. Sets are insertion-ordered dicts: the order of the
records that are made from them is the same in every run.

Inside, a partition is a *handle*: one number, of its topic's number and its own. With five entries per partition, a
tuple for each would be most of the memory, and most of what a garbage collection looks at; it does not look at numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import Change, ElrCleared, PartitionChange, PartitionRegistration, TopicDeleted
from kjbod.metadata.records import NO_LEADER
from kjbod_controller_stub.results import PartitionKey

_Handle: TypeAlias = int
_Set: TypeAlias = dict[_Handle, None]
_NOTHING: Mapping[_Handle, None] = MappingProxyType({})
_PARTITION_BITS = 32
_PARTITION_MASK = (1 << _PARTITION_BITS) - 1


class PartitionIndex:
    """Partitions by ISR member, by eligible leader replica, by leader, by (broker, directory), and those without a
    leader or not led by their preferred one."""

    def __init__(self) -> None:
        self._topic_numbers: dict[Uuid, int] = {}
        self._topic_ids: dict[int, Uuid] = {}
        self._next_topic = 0
        self._in_isr: dict[int, _Set] = {}
        self._in_directory: dict[int, dict[Uuid, _Set]] = {}
        self._leads: Counter[int] = Counter()
        self._leaderless: _Set = {}
        self._in_elr: dict[int, _Set] = {}
        self._imbalanced: _Set = {}

    def in_isr(self, broker_id: int) -> tuple[PartitionKey, ...]:
        """The partitions that have the broker in their ISR."""
        return self._keys(self._in_isr.get(broker_id, _NOTHING))

    def in_directory(self, broker_id: int, directory: Uuid) -> tuple[PartitionKey, ...]:
        """The partitions whose replica on the broker is assigned to the directory."""
        return self._keys(self._in_directory.get(broker_id, {}).get(directory, _NOTHING))

    def unassigned(self, broker_id: int) -> int:
        """How many replicas on the broker have no directory yet."""
        return len(self._in_directory.get(broker_id, {}).get(UNASSIGNED, _NOTHING))

    def leads(self, broker_id: int) -> int:
        """How many partitions the broker leads."""
        return self._leads[broker_id]

    def leaderless(self) -> tuple[PartitionKey, ...]:
        """The partitions that nobody leads."""
        return self._keys(self._leaderless)

    def is_leaderless(self, key: PartitionKey) -> bool:
        """Whether nobody leads the partition."""
        topic = self._topic_numbers.get(key[0])
        return topic is not None and topic << _PARTITION_BITS | key[1] in self._leaderless

    def in_elr(self, broker_id: int) -> tuple[PartitionKey, ...]:
        """The partitions that have the broker among their eligible leader replicas (``BrokersToElrs``)."""
        return self._keys(self._in_elr.get(broker_id, _NOTHING))

    def imbalanced(self) -> tuple[PartitionKey, ...]:
        """The partitions that their preferred replica, the first one, does not lead."""
        return self._keys(self._imbalanced)

    def concerns(self, broker_id: int) -> int:
        """About how many partitions change when the broker comes or goes."""
        directories = self._in_directory.get(broker_id, {})
        return (
            len(self._in_isr.get(broker_id, _NOTHING))
            + len(self._in_elr.get(broker_id, _NOTHING))
            + len(self._leaderless)
            + len(directories.get(UNASSIGNED, _NOTHING))
        )

    def in_directories(self, broker_id: int, directories: Iterable[Uuid]) -> int:
        """How many partitions have their replica on the broker in one of the directories."""
        mine = self._in_directory.get(broker_id, {})
        return sum(len(mine.get(directory, _NOTHING)) for directory in directories)

    def unsettled(self) -> int:
        """How many partitions have no leader, or not the preferred one."""
        return len(self._leaderless) + len(self._imbalanced)

    def _keys(self, handles: Iterable[_Handle]) -> tuple[PartitionKey, ...]:
        ids = self._topic_ids
        return tuple([(ids[handle >> _PARTITION_BITS], handle & _PARTITION_MASK) for handle in handles])

    def _handle(self, topic_id: Uuid, partition: int) -> _Handle:
        topic = self._topic_numbers.get(topic_id)
        if topic is None:
            topic = self._topic_numbers[topic_id] = self._next_topic
            self._topic_ids[topic] = topic_id
            self._next_topic += 1
        return topic << _PARTITION_BITS | partition

    def apply(self, change: Change) -> None:
        """Follow one change of the image."""
        if isinstance(change, PartitionChange):
            self._replace(self._handle(change.topic_id, change.partition), change.old, change.new)
        elif isinstance(change, ElrCleared):
            for partition_change in change.partitions:
                self.apply(partition_change)
        elif isinstance(change, TopicDeleted):
            for number, partition in change.topic.partitions.items():
                self._replace(self._handle(change.topic.id, number), partition, None)
            self._topic_ids.pop(self._topic_numbers.pop(change.topic.id, -1), None)

    def _replace(self, handle: _Handle, old: PartitionRegistration | None, new: PartitionRegistration | None) -> None:
        if old is None or new is None:
            self._replace_isr(handle, () if old is None else old.isr, () if new is None else new.isr)
            self._replace_leader(handle, old, new)
            self._replace_preference(handle, new)
            self._replace_elr(
                handle,
                () if old is None else old.eligible_leader_replicas,
                () if new is None else new.eligible_leader_replicas,
            )
            self._replace_placements(handle, old, new)
            return
        if old.isr is not new.isr:
            self._replace_isr(handle, old.isr, new.isr)
        if old.leader != new.leader:
            self._replace_leader(handle, old, new)
        if old.leader != new.leader or old.replicas is not new.replicas:
            self._replace_preference(handle, new)
        if old.eligible_leader_replicas or new.eligible_leader_replicas:
            self._replace_elr(handle, old.eligible_leader_replicas, new.eligible_leader_replicas)
        if old.directories is not new.directories or old.replicas is not new.replicas:
            self._replace_placements(handle, old, new)

    def _replace_placements(
        self, handle: _Handle, old: PartitionRegistration | None, new: PartitionRegistration | None
    ) -> None:
        before, after = _placements(old), _placements(new)
        for place in before:
            if place not in after:
                broker, directory = place
                self._in_directory[broker][directory].pop(handle, None)
        for place in after:
            if place not in before:
                broker, directory = place
                self._in_directory.setdefault(broker, {}).setdefault(directory, {})[handle] = None

    def _replace_isr(self, handle: _Handle, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        for broker in old:
            if broker not in new:
                self._in_isr[broker].pop(handle, None)
        for broker in new:
            if broker not in old:
                self._in_isr.setdefault(broker, {})[handle] = None

    def _replace_elr(self, handle: _Handle, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        for broker in old:
            if broker not in new:
                self._in_elr[broker].pop(handle, None)
        for broker in new:
            self._in_elr.setdefault(broker, {})[handle] = None

    def _replace_preference(self, handle: _Handle, new: PartitionRegistration | None) -> None:
        if new is not None and new.replicas[:1] != (new.leader,):
            self._imbalanced[handle] = None
        else:
            self._imbalanced.pop(handle, None)

    def _replace_leader(
        self, handle: _Handle, old: PartitionRegistration | None, new: PartitionRegistration | None
    ) -> None:
        if old is not None and old.leader != NO_LEADER:
            self._leads[old.leader] -= 1
        if new is not None and new.leader != NO_LEADER:
            self._leads[new.leader] += 1
        if new is not None and new.leader == NO_LEADER:
            self._leaderless[handle] = None
        else:
            self._leaderless.pop(handle, None)


def _placements(partition: PartitionRegistration | None) -> frozenset[tuple[int, Uuid]]:
    return _NOWHERE if partition is None else _places(partition.replicas, partition.directories)


_NOWHERE: frozenset[tuple[int, Uuid]] = frozenset()


@lru_cache(maxsize=4_096)
def _places(replicas: tuple[int, ...], directories: tuple[Uuid, ...]) -> frozenset[tuple[int, Uuid]]:
    return frozenset(zip(replicas, directories, strict=True))
