"""Which partitions a broker or a directory concerns, without a walk over all of them (``BrokersToIsrs``,
``BrokersToDirs``).

Derived from the image's changes alone, so that replay rebuilds it. Sets are insertion-ordered dicts: the order of the
records that are made from them is the same in every run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import Change, PartitionChange, PartitionRegistration, TopicDeleted
from kjbod.metadata.records import NO_LEADER
from kjbod_controller_stub.results import PartitionKey

_NOTHING: Mapping[PartitionKey, None] = MappingProxyType({})


class PartitionIndex:
    """Partitions by ISR member, by leader, by (broker, directory), and those without a leader."""

    def __init__(self) -> None:
        self._in_isr: dict[int, dict[PartitionKey, None]] = {}
        self._in_directory: dict[int, dict[Uuid, dict[PartitionKey, None]]] = {}
        self._leads: Counter[int] = Counter()
        self._leaderless: dict[PartitionKey, None] = {}

    def in_isr(self, broker_id: int) -> tuple[PartitionKey, ...]:
        """The partitions that have the broker in their ISR."""
        return tuple(self._in_isr.get(broker_id, _NOTHING))

    def in_directory(self, broker_id: int, directory: Uuid) -> tuple[PartitionKey, ...]:
        """The partitions whose replica on the broker is assigned to the directory."""
        return tuple(self._in_directory.get(broker_id, {}).get(directory, _NOTHING))

    def unassigned(self, broker_id: int) -> int:
        """How many replicas on the broker have no directory yet."""
        return len(self._in_directory.get(broker_id, {}).get(UNASSIGNED, _NOTHING))

    def leads(self, broker_id: int) -> int:
        """How many partitions the broker leads."""
        return self._leads[broker_id]

    def leaderless(self) -> tuple[PartitionKey, ...]:
        """The partitions that nobody leads."""
        return tuple(self._leaderless)

    def apply(self, change: Change) -> None:
        """Follow one change of the image."""
        if isinstance(change, PartitionChange):
            self._replace((change.topic_id, change.partition), change.old, change.new)
        elif isinstance(change, TopicDeleted):
            for number, partition in change.topic.partitions.items():
                self._replace((change.topic.id, number), partition, None)

    def _replace(self, key: PartitionKey, old: PartitionRegistration | None, new: PartitionRegistration | None) -> None:
        if old is None or new is None or old.isr != new.isr:
            self._replace_isr(key, () if old is None else old.isr, () if new is None else new.isr)
        if old is None or new is None or old.leader != new.leader:
            self._replace_leader(key, old, new)
        if old is None or new is None or old.directories != new.directories or old.replicas != new.replicas:
            for broker, directory in _placements(old):
                self._in_directory[broker][directory].pop(key, None)
            for broker, directory in _placements(new):
                self._in_directory.setdefault(broker, {}).setdefault(directory, {})[key] = None

    def _replace_isr(self, key: PartitionKey, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        for broker in old:
            if broker not in new:
                self._in_isr[broker].pop(key, None)
        for broker in new:
            self._in_isr.setdefault(broker, {})[key] = None

    def _replace_leader(
        self, key: PartitionKey, old: PartitionRegistration | None, new: PartitionRegistration | None
    ) -> None:
        if old is not None and old.leader != NO_LEADER:
            self._leads[old.leader] -= 1
        if new is not None and new.leader != NO_LEADER:
            self._leads[new.leader] += 1
        if new is not None and new.leader == NO_LEADER:
            self._leaderless[key] = None
        else:
            self._leaderless.pop(key, None)


def _placements(partition: PartitionRegistration | None) -> Iterable[tuple[int, Uuid]]:
    return () if partition is None else zip(partition.replicas, partition.directories, strict=True)
