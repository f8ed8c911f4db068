"""Index of partitions by broker and directory, so that no change walks over all partitions (``BrokersToIsrs``,
``BrokersToDirs``).

Derived from the image's changes alone, so that replay rebuilds it. Sets are insertion-ordered dicts: the order of the
records that are made from them is the same in every run.

Inside, a partition is a *handle*: one number, of its topic's number and its own. With five entries per partition, a
tuple for each would be most of the memory, and most of what a garbage collection looks at; it does not look at numbers.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from msgspec import Struct

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.image import (
    RECOVERING,
    Change,
    ElrCleared,
    PartitionChange,
    PartitionRegistration,
    TopicDeleted,
    shape_of,
)
from kjbod.metadata.records import NO_LEADER
from kjbod_controller_stub.results import PartitionKey

_Handle: TypeAlias = int
_Set: TypeAlias = dict[_Handle, None]
_NOTHING: Mapping[_Handle, None] = MappingProxyType({})
STEPS_MAX = 4_096
"""So many steps are kept to be taken again; then all are forgotten, and with them the sets in which nothing is."""
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
        self._steps: dict[tuple[Any, Any], Step] = {}
        """By the shapes that they are between. A set that one of them has is never replaced."""
        self.partitions = 0
        self.unclean_elections = 0
        """Elections of a replica that was not in sync, since :meth:`forget_elections`."""
        self.eligible_elections = 0
        """Elections of an eligible leader replica, since then."""

    def forget_elections(self) -> None:
        """Count elections from here on: those in the replayed log are not this process's (``ControllerStats``)."""
        self.unclean_elections = self.eligible_elections = 0

    @property
    def leaderless_count(self) -> int:
        """Number of partitions without a leader."""
        return len(self._leaderless)

    @property
    def imbalanced_count(self) -> int:
        """Number of partitions whose leader is not the preferred replica."""
        return len(self._imbalanced)

    def in_isr(self, broker_id: int) -> tuple[PartitionKey, ...]:
        """Return the partitions with the broker in their ISR."""
        return self._keys(self._in_isr.get(broker_id, _NOTHING))

    def in_directory(self, broker_id: int, directory: Uuid) -> tuple[PartitionKey, ...]:
        """Return the partitions whose replica on the broker is assigned to the directory."""
        return self._keys(self._in_directory.get(broker_id, {}).get(directory, _NOTHING))

    def undecided(self, broker_id: int) -> int:
        """Return the number of replicas on the broker without a known directory: UNASSIGNED, or MIGRATING, from before
        directories were recorded."""
        directories = self._in_directory.get(broker_id, {})
        return len(directories.get(UNASSIGNED, _NOTHING)) + len(directories.get(MIGRATING, _NOTHING))

    def leads(self, broker_id: int) -> int:
        """Return the number of partitions that the broker leads."""
        return self._leads[broker_id]

    def leaderless(self) -> tuple[PartitionKey, ...]:
        """Return the partitions without a leader."""
        return self._keys(self._leaderless)

    def in_elr(self, broker_id: int) -> tuple[PartitionKey, ...]:
        """Return the partitions with the broker among their eligible leader replicas (``BrokersToElrs``)."""
        return self._keys(self._in_elr.get(broker_id, _NOTHING))

    def imbalanced(self) -> tuple[PartitionKey, ...]:
        """Return the partitions whose leader is not the preferred replica, the first one."""
        return self._keys(self._imbalanced)

    def concerns(self, broker_id: int) -> int:
        """Return about how many partitions change when the broker is fenced or unfenced."""
        return (
            len(self._in_isr.get(broker_id, _NOTHING))
            + len(self._in_elr.get(broker_id, _NOTHING))
            + len(self._leaderless)
            + self.undecided(broker_id)
        )

    def in_directories(self, broker_id: int, directories: Iterable[Uuid]) -> int:
        """Return the number of partitions whose replica on the broker is in one of the directories."""
        mine = self._in_directory.get(broker_id, {})
        return sum(len(mine.get(directory, _NOTHING)) for directory in directories)

    def unsettled(self) -> int:
        """Return the number of partitions without a leader, or without the preferred one."""
        return len(self._leaderless) + len(self._imbalanced)

    def _keys(self, handles: Iterable[_Handle]) -> tuple[PartitionKey, ...]:
        ids = self._topic_ids
        return tuple([(ids[handle >> _PARTITION_BITS], handle & _PARTITION_MASK) for handle in handles])

    def handle(self, topic_id: Uuid, partition: int) -> _Handle:
        """Return the number of a partition in the sets. Numbers of a topic's partitions are consecutive."""
        topic = self._topic_numbers.get(topic_id)
        if topic is None:
            topic = self._topic_numbers[topic_id] = self._next_topic
            self._topic_ids[topic] = topic_id
            self._next_topic += 1
        return topic << _PARTITION_BITS | partition

    def apply(self, change: Change) -> None:
        """Follow one change of the image."""
        if isinstance(change, PartitionChange):
            self._replace(self.handle(change.topic_id, change.partition), change.old, change.new)
        elif isinstance(change, ElrCleared):
            for partition_change in change.partitions:
                self.apply(partition_change)
        elif isinstance(change, TopicDeleted):
            for number, partition in change.topic.partitions.items():
                self._replace(self.handle(change.topic.id, number), partition, None)
            self._topic_ids.pop(self._topic_numbers.pop(change.topic.id, -1), None)

    def tidy(self) -> None:
        """Forget the steps when they are too many, and brokers and directories without partitions, each of which needed
        a step to appear. Steps that were given out before must not be taken after it."""
        if len(self._steps) < STEPS_MAX:
            return
        self._steps.clear()
        for broker, directories in list(self._in_directory.items()):
            self._in_directory[broker] = {directory: members for directory, members in directories.items() if members}
        self._in_directory = {broker: members for broker, members in self._in_directory.items() if members}
        self._in_isr = {broker: members for broker, members in self._in_isr.items() if members}
        self._in_elr = {broker: members for broker, members in self._in_elr.items() if members}
        self._leads = Counter({broker: count for broker, count in self._leads.items() if count})

    def _replace(self, handle: _Handle, old: PartitionRegistration | None, new: PartitionRegistration | None) -> None:
        self.tidy()
        step = self.step(old, new)
        for members in step.leaves:
            members.pop(handle, None)
        for members in step.enters:
            members[handle] = None
        self.count(step)

    def step(self, old: PartitionRegistration | None, new: PartitionRegistration | None) -> "Step":
        """Step of the index when a partition becomes ``new``; it is equal for all of their shapes."""
        key = (None if old is None else shape_of(old), None if new is None else shape_of(new))
        known = self._steps.get(key)
        if known is None:
            known = self._steps[key] = self._step(old, new)
        return known

    def _step(self, old: PartitionRegistration | None, new: PartitionRegistration | None) -> "Step":
        before, after = self._memberships(old), self._memberships(new)
        return Step(
            leaves=tuple(before[place] for place in before if place not in after),
            enters=tuple(after[place] for place in after if place not in before),
            loses=NO_LEADER if old is None else old.leader,
            gains=NO_LEADER if new is None else new.leader,
            appears=(new is not None) - (old is not None),
            unclean=_elected_uncleanly(old, new),
            eligible=old is not None and new is not None and new.leader in old.eligible_leader_replicas,
        )

    def count(self, step: "Step", times: int = 1) -> None:
        """Note that ``times`` partitions have taken this step: update their number, leaders and elections."""
        self.partitions += step.appears * times
        self.unclean_elections += step.unclean * times
        self.eligible_elections += step.eligible * times
        if step.loses != step.gains:
            if step.loses != NO_LEADER:
                self._leads[step.loses] -= times
            if step.gains != NO_LEADER:
                self._leads[step.gains] += times

    def _memberships(self, partition: PartitionRegistration | None) -> dict[tuple[Any, ...], _Set]:
        """Return all sets that a partition belongs to, by kind of set."""
        if partition is None:
            return {}
        found: dict[tuple[Any, ...], _Set] = {}
        for broker in partition.isr:
            found["isr", broker] = self._in_isr.setdefault(broker, {})
        if partition.leader == NO_LEADER:
            found["leaderless",] = self._leaderless
        if partition.replicas[:1] != (partition.leader,):
            found["imbalanced",] = self._imbalanced
        for broker in partition.eligible_leader_replicas:
            found["elr", broker] = self._in_elr.setdefault(broker, {})
        for broker, directory in zip(partition.replicas, partition.directories, strict=True):
            members = self._in_directory.setdefault(broker, {}).setdefault(directory, {})
            found["directory", broker, directory] = members
        return found


class Step(Struct, frozen=True):
    """Index update for a partition that changes (:meth:`PartitionIndex.step`)."""

    leaves: tuple[_Set, ...]
    enters: tuple[_Set, ...]
    loses: int
    gains: int
    """Its leaders before and after."""
    appears: int
    """1: there is one more, -1: one less."""
    unclean: bool
    eligible: bool
    """How its leader was elected, if that is what happened."""


def _elected_uncleanly(old: PartitionRegistration | None, new: PartitionRegistration | None) -> bool:
    """Return whether the new leader was not in sync: the partition is recovering, and the previous registration had
    another leader or was not recovering (``PartitionRegistration.electionWasUnclean``)."""
    if old is None or new is None or new.leader_recovery_state != RECOVERING:
        return False
    return old.leader_recovery_state != RECOVERING or (new.leader not in (old.leader, NO_LEADER))
