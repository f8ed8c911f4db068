"""Partitions, and the effect of the loss of a replica on each. Pure.

Rules: ``PartitionChangeBuilder`` and ``ReplicationControlManager.generateLeaderAndIsrUpdates`` of Kafka 4.3. A broker
whose directory fails leaves the ISR. The next leader is a member of the ISR with an online replica or, if the ISR is
empty, an eligible leader replica (KIP-966). Otherwise the partition has no leader, unless
``unclean.leader.election.enable`` allows a replica that lacks records.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.wire.admin_messages import DescribeTopicPartitionsResponsePartition
from kjbod.wire.messages import MetadataResponsePartition

NO_LEADER = -1


class Partition(NamedTuple):
    """The fields of a partition that matter for failures of directories."""

    leader: int
    """-1: no leader."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible: tuple[int, ...] = ()
    """Eligible leader replicas."""
    offline: tuple[int, ...] = ()
    """Replicas whose broker is fenced or unknown, or whose directory is not online."""


Partitions: TypeAlias = Mapping[str, Mapping[int, Partition]]
"""Partitions by topic and number."""
MinIsrs: TypeAlias = Mapping[str, int]
"""``min.insync.replicas`` by topic; without topics for which it is unknown."""


class Loss(NamedTuple):
    """Changes to a partition when a broker loses its replica of it."""

    moves: bool = False
    """Another broker becomes leader."""
    leaderless: bool = False
    """The partition has no leader: the only in-sync replica was there."""
    under_min_isr: bool = False
    """The partition has a leader, but falls under ``min.insync.replicas``."""


def loss_of(partition: Partition, broker: int, min_isr: int) -> Loss:
    """Return the effect on ``partition`` when the directory with the replica of ``broker`` fails.

    Returns:
        Only new effects: a partition that already has no leader, or is under ``min_isr``, is not counted again.
    """
    left = [member for member in partition.isr if member != broker]
    led = partition.leader == broker
    candidates = left or [member for member in partition.eligible if member != broker]
    moves = led and any(member not in partition.offline for member in candidates)
    leaderless = led and not moves
    needed = _effective(partition, min_isr)
    has_leader = partition.leader != NO_LEADER and not leaderless
    return Loss(moves, leaderless, has_leader and len(partition.isr) >= needed > len(left))


def is_under_min_isr(partition: Partition, min_isr: int) -> bool:
    """Return whether ``acks=all`` is refused now, though the partition has a leader."""
    return partition.leader != NO_LEADER and len(partition.isr) < _effective(partition, min_isr)


def _effective(partition: Partition, min_isr: int) -> int:
    """Return ``Partition.effectiveMinIsr``: at most the number of replicas."""
    return min(min_isr, len(partition.replicas))


class Trouble(Struct, frozen=True):
    """Number of partitions, and of those with a problem now."""

    count: int
    leaderless: int
    under_min_isr: int | None
    """None: ``min.insync.replicas`` of a topic is unknown."""


def trouble_of(partitions: Partitions, min_isrs: MinIsrs) -> Trouble:
    """Count the partitions that have no leader, or are under ``min.insync.replicas``."""
    leaderless = sum(each.leader == NO_LEADER for _, _, each in walk(partitions))
    under = sum(is_under_min_isr(each, min_isrs[topic]) for topic, _, each in walk(partitions) if topic in min_isrs)
    known = partitions.keys() <= min_isrs.keys()
    return Trouble(sum(map(len, partitions.values())), leaderless, under if known else None)


def walk(partitions: Partitions) -> Iterator[tuple[str, int, Partition]]:
    """Yield topic, number and partition of each."""
    for topic, numbered in partitions.items():
        for number, partition in numbered.items():
            yield topic, number, partition


# ---------------------------------------------------------------- where they come from


def partitions_of(image: MetadataImage, wanted: Collection[str] | None = None) -> Partitions:
    """Return the partitions of an image; with ``wanted``, only those of these topics."""
    alike: dict[Partition, Partition] = {}
    found: dict[str, dict[int, Partition]] = {}
    for topic in image.topics.values():
        if wanted is None or topic.name in wanted:
            numbered = found[topic.name] = {}
            for number, known in topic.partitions.items():
                offline = tuple(
                    replica
                    for replica, directory in zip(known.replicas, known.directories, strict=True)
                    if not _is_online(image, replica, directory)
                )
                each = Partition(known.leader, known.replicas, known.isr, known.eligible_leader_replicas, offline)
                numbered[number] = alike.setdefault(each, each)
    return found


def _is_online(image: MetadataImage, replica: int, directory: Uuid) -> bool:
    broker = image.brokers.get(replica)
    return broker is not None and not broker.fenced and broker.has_online_dir(directory)


def partition_of(told: DescribeTopicPartitionsResponsePartition | MetadataResponsePartition) -> Partition:
    """Return the partition from a broker's answer."""
    eligible = told.eligible_leader_replicas if isinstance(told, DescribeTopicPartitionsResponsePartition) else None
    return Partition(told.leader_id, told.replica_nodes, told.isr_nodes, eligible or (), told.offline_replicas)


# ---------------------------------------------------------------- what a broker has of them


class Share(Struct, frozen=True):
    """Replicas of one broker."""

    replicas: int = 0
    leaders: int = 0
    offline: int = 0
    sole: int = 0
    """Partitions without another replica that is in sync or eligible to lead."""


def shares_of(partitions: Partitions) -> dict[int, Share]:
    """The share of each broker that has replicas."""
    replicas: dict[int, int] = {}
    leaders: dict[int, int] = {}
    offline: dict[int, int] = {}
    sole: dict[int, int] = {}
    for _, _, partition in walk(partitions):
        _count(replicas, partition.replicas)
        _count(leaders, [partition.leader])
        _count(offline, partition.offline)
        may_lead = partition.isr or partition.eligible
        if len(may_lead) == 1:
            _count(sole, may_lead)
    return {
        broker: Share(count, leaders.get(broker, 0), offline.get(broker, 0), sole.get(broker, 0))
        for broker, count in replicas.items()
    }


def _count(counts: dict[int, int], brokers: Iterable[int]) -> None:
    for broker in brokers:
        counts[broker] = counts.get(broker, 0) + 1


class Unplaced(Struct, frozen=True):
    """Replicas of one broker that the metadata assigns to no directory of the broker."""

    unassigned: int = 0
    lost: int = 0
    migrating: int = 0
    gone: tuple[Uuid, ...] = ()
    """Directories with replicas that are not registered, for example offline ones."""
    in_gone: int = 0


def unplaced_in(image: MetadataImage, wanted: Collection[str] | None = None) -> dict[int, Unplaced]:
    """Return the replicas without a directory, by broker; brokers without any are left out. With ``wanted``, only of
    these topics."""
    counts: dict[int, dict[Uuid, int]] = {}
    for topic in image.topics.values():
        if wanted is None or topic.name in wanted:
            for partition in topic.partitions.values():
                for replica, directory in zip(partition.replicas, partition.directories, strict=True):
                    broker = image.brokers.get(replica)
                    if broker is not None and directory not in broker.log_dirs:
                        own = counts.setdefault(replica, {})
                        own[directory] = own.get(directory, 0) + 1
    return {broker: _unplaced(own) for broker, own in counts.items()}


def _unplaced(counts: dict[Uuid, int]) -> Unplaced:
    unassigned, lost, migrating = (counts.pop(directory, 0) for directory in (UNASSIGNED, LOST, MIGRATING))
    return Unplaced(unassigned, lost, migrating, tuple(sorted(counts)), sum(counts.values()))
