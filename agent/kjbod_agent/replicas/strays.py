"""Stray replicas: what lies in a log directory and is not this broker's, by Kafka's rules. Pure.

Two rules say what is stray, for two times:

*KRaft* (``LogManager.isStrayKraftReplica``, :func:`is_stray_kraft`): once, when the first metadata are published. The
directory that the metadata give to a replica plays no role in it.

*Hybrid* (``LogManager.findStrayReplicas``, :func:`find_strays_full_lair`): a broker in migration from ZooKeeper gets
its replicas by LeaderAndIsr requests. A KRaft controller has no state "deleting": what a *full* request does not have
is gone. Topic ids are never used twice, so a topic that was deleted and created again under its name is told from the
old one. The metadata cache does the same for a full UpdateMetadata request (``ZkMetadataCache.
transformKRaftControllerFullMetadataRequest``, :func:`with_deletions`): it is rewritten, as a copy, to one that has the
implied deletions, first, so that one request can delete a topic and add another one of its name.

A stray replica is renamed to ``<topic>-<partition>.<32 hex>-stray`` and kept for ever: a wrong answer of a controller,
a broker id that was given twice, a snapshot that was restored must not cost data. Only a person removes or restores it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from kjbod.ids import ZERO, Uuid
from kjbod_host.strays import NO_TOPIC, NOT_HERE

LEADER_DURING_DELETE: Final = -2
"""``LeaderAndIsr.LeaderDuringDelete``: in an UpdateMetadata request the partition is deleted."""

NO_TOPIC_ID: Final = "it has no topic id (partition.metadata is missing or unreadable)"
NO_PARTITION: Final = "its topic has no such partition"
WRONG_NAME: Final = "its topic id is that of a topic of another name"
FOUND_AT_START: Final = "found as a stray at the start"
SUPERSEDED: Final = "superseded copy"
LONGER: Final = "superseded copy with more records than the one in its place: "
"""Where both end follows."""
NO_LONGER_THERE: Final = "the metadata, whose history was lost or set back, do not have it"
NOT_PROVEN_DELETED: Final = "marked as deleted, but the metadata do not prove it"
COPY_OFFLINE: Final = "a copy that was to be removed; the directory of the one in its place is offline: "
"""The path follows."""
COPY_EMPTY: Final = "a copy that was to be removed; the one in its place is empty or missing: "
"""The path follows."""
LEFT_BY_MOVE: Final = "a copy that a move left was to be removed"
MAY_BE_NEEDED: Final = "marked as deleted, but the copy in its place may lie in a directory that is offline"


class Stray(Struct, frozen=True):
    """A stray replica that is kept.

    Attributes:
        directory_id: where it lies.
        path: of the replica directory, ``<log dir>/<name>``.
        name: ends in ``-stray``.
        topic: the name of its topic; cut where the whole would not have fitted.
        topic_id: None when it has none that can be read.
        reason: why it is one, in words.
        since_ms: when it was found to be one, wall clock, milliseconds since the epoch.
        size: bytes of its files; None: not measured.
    """

    directory_id: Uuid
    path: str
    name: str
    topic: str
    partition: int
    topic_id: Uuid | None
    reason: str
    since_ms: int
    size: int | None = None


Replicas = Callable[[Uuid, int], Collection[int] | None]
"""Brokers with a replica of a partition, by topic id and number; None: no such partition."""


def is_stray_kraft(broker_id: int, topic_id: Uuid | None, partition: int, replicas: Replicas) -> str | None:
    """Reason why a log is stray on this broker; None: it is not (``LogManager.isStrayKraftReplica``).

    In Kafka's order: without a topic id (since KAFKA-16814; an error before), not in the metadata, of other brokers. A
    topic with another id is not in the metadata, whatever its name is.
    """
    if topic_id is None or topic_id == ZERO:
        return NO_TOPIC_ID
    brokers = replicas(topic_id, partition)
    if brokers is None:
        return NO_PARTITION if replicas(topic_id, 0) is not None else NO_TOPIC
    return None if broker_id in brokers else NOT_HERE


# -------------------------------------------------------------------------------------------------- hybrid, migration


class Log(Struct, frozen=True):
    """A replica directory of a broker in migration."""

    topic: str
    partition: int
    topic_id: Uuid | None


class LeaderAndIsr(Struct, frozen=True):
    """The part of a LeaderAndIsr request that the rules use: the topic id by topic and partition.

    Attributes:
        full: whether it has *all* replicas of the broker (``type`` FULL), and not only what changed.
        from_kraft: whether its sender is a KRaft controller (``isKRaftController``).
    """

    partitions: Mapping[tuple[str, int], Uuid]
    full: bool
    from_kraft: bool


def find_strays_full_lair(logs: Iterable[Log], request: LeaderAndIsr, *, migrating: bool = True) -> tuple[Log, ...]:
    """Logs that are stray by a full LeaderAndIsr request, in their order (``LogManager.findStrayReplicas``).

    A log is stray when the request does not have its partition, or has it with another topic id. A log without a topic
    id is stray too (KAFKA-21022 proposes it; [T] fails the whole request, so that one bad file stops a migration).
    To be applied *before* the request itself, so that a topic that was deleted and created again works in one request.
    None are stray where migration is off (``zookeeper.metadata.migration.enable``) or the sender is no KRaft
    controller: one of ZooKeeper says itself what is to be deleted.

    Raises:
        ValueError: the request is incremental: what it does not have is not gone. Asking is a mistake of the caller.
    """
    if not (migrating and request.from_kraft):
        return ()
    if not request.full:
        raise ValueError("strays can be told from a full LeaderAndIsr request only")
    return tuple(log for log in logs if log.topic_id != request.partitions.get((log.topic, log.partition), _NOWHERE))


_NOWHERE: Final = object()


class TopicState(Struct, frozen=True):
    """A topic in an UpdateMetadata request, or in the metadata cache: the leader by partition."""

    name: str
    topic_id: Uuid
    leaders: Mapping[int, int]


def with_deletions(
    cached: Iterable[TopicState], request: Iterable[TopicState], complain: Callable[[str, str], None]
) -> tuple[TopicState, ...]:
    """A *full* UpdateMetadata request with the deletions that it implies, in front; neither argument is changed.

    A topic of the cache whose id the request does not have was deleted: each of its partitions gets the leader -2. One
    that it has with fewer partitions lost those. (As written Kafka collects the partitions that only the *request* has;
    that is harmless there, since the original entries follow, and finds nothing.) Deletions come first: a name that was
    created again is then there after the request.

    Args:
        complain: gets name and reason of a topic in the cache that cannot be judged; the others are, all the same.
    """
    topics = tuple(request)
    by_id = {topic.topic_id: topic for topic in topics}
    deletions = []
    for topic in cached:
        if topic.topic_id == ZERO:
            complain(topic.name, "the cache has no topic id for it")
            continue
        now = by_id.get(topic.topic_id)
        gone = [number for number in topic.leaders if now is None or number not in now.leaders]
        if gone:
            deletions.append(TopicState(topic.name, topic.topic_id, dict.fromkeys(gone, LEADER_DURING_DELETE)))
    return (*deletions, *topics)


def apply_update_metadata(
    cached: Mapping[str, TopicState], request: Iterable[TopicState]
) -> tuple[dict[str, TopicState], frozenset[tuple[str, int]]]:
    """The metadata cache after a request, by topic, and the partitions that were deleted in it
    (``ZkMetadataCache.updateMetadata``). A partition that the same request creates again is not among them: who was in
    a consumer group before still is."""
    after = dict(cached)
    deleted: set[tuple[str, int]] = set()
    for topic in request:
        known = after.get(topic.name)
        leaders = dict(known.leaders) if known is not None else {}
        for number, leader in topic.leaders.items():
            if leader == LEADER_DURING_DELETE:
                leaders.pop(number, None)
                deleted.add((topic.name, number))
            else:
                leaders[number] = leader
                deleted.discard((topic.name, number))
        if leaders:
            after[topic.name] = TopicState(topic.name, topic.topic_id, leaders)
        else:
            after.pop(topic.name, None)
    return after, frozenset(deleted)


# ---------------------------------------------------------------------------------------- marked as deleted, at a start


def is_deletion_proven(
    broker_id: int,
    topic_id: Uuid | None,
    partition: int,
    replicas: Replicas,
    *,
    assigned: Uuid | None,
    copies: Collection[Uuid],
) -> bool:
    """Whether the metadata prove that a directory which an earlier process marked ``-delete`` was deleted.

    Kafka removes all of them at a start. But a mark can be older than what the metadata say now, and a promotion that
    was interrupted leaves the only copy under that name. So: its topic id is known, and the metadata do not have the
    partition, or place no replica of it here, or name a directory in which a current copy of it lies.

    Args:
        assigned: the directory that the metadata give to this broker's replica; None: they give none.
        copies: the directories in which current copies lie.
    """
    if topic_id is None or topic_id == ZERO:
        return False
    brokers = replicas(topic_id, partition)
    if brokers is None or broker_id not in brokers:
        return True
    return assigned is not None and assigned in copies
