"""Combine the brokers' answers about log directories with the cluster's metadata. Pure.

A broker's answer lists each replica, and is dropped after counting: of 200,000 replicas only the counts per directory
are kept.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field, structs

from kjbod.cluster.directory_ids import MOVED, UNCHECKED, Inferred, infer, moved_between
from kjbod.cluster.partitions import MinIsrs, Partitions, Share, Trouble, Unplaced, loss_of
from kjbod.ids import ZERO, Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.wire.error_codes import ErrorCode, name_of
from kjbod.wire.messages import DescribeLogDirsResponse, DescribeLogDirsResponsePartition, DescribeLogDirsResponseResult

CORDONED_SINCE: Final = 5
"""First version of DescribeLogDirs with KIP-1066; unknown bytes of a directory are -1 (KIP-827)."""


class Node(Struct, frozen=True, kw_only=True):
    """A broker, and its address."""

    id: int
    host: str
    port: int
    rack: str | None = None
    fenced: bool | None = None
    """None: the brokers are too old to show fenced brokers."""


class Failure(Struct):
    """Partitions that a failure of a directory would affect."""

    moves: int = 0
    leaderless: int = 0
    under_min_isr: int | None = 0
    """None: ``min.insync.replicas`` of a topic is not known."""


class LogDir(Struct, kw_only=True):
    """A log directory of a broker. None is unknown; usually all numbers of an offline directory are."""

    path: str
    error_code: int = 0
    cordoned: bool | None = None
    total_bytes: int | None = None
    usable_bytes: int | None = None
    replica_bytes: int | None = None
    """Includes future replicas."""
    replicas: int | None = None
    leaders: int | None = None
    future: int | None = None
    """Future replicas: replicas that are being moved here."""
    untold: int = 0
    """Replicas of partitions that the cluster does not show, so their leaders and failures are unknown. Either the user
    may not see them, or they were created or deleted since."""
    failure: Failure | None = None
    directory: Inferred | None = None
    """None: the metadata was not read."""
    has_metadata_log: bool | None = None
    """Whether its failure ends the broker; then ``failure`` is that of the broker. None: unknown."""

    @property
    def offline(self) -> bool:
        """Whether the broker cannot use the directory."""
        return self.error_code != 0

    @property
    def error(self) -> str | None:
        """Name of the error."""
        return name_of(self.error_code) if self.error_code else None

    @property
    def used_percent(self) -> int | None:
        """Used part of the file system, by any data, rounded down."""
        if self.offline or not self.total_bytes or self.usable_bytes is None:
            return None
        return 100 * (self.total_bytes - self.usable_bytes) // self.total_bytes


class BrokerDirs(Struct, kw_only=True):
    """The log directories of a broker, or the reason why the broker did not report them."""

    node: Node
    log_dirs: Sequence[LogDir] = ()
    error: str | None = None
    share: Share | None = None
    """Replicas of the broker according to the cluster; None: unknown."""
    unplaced: Unplaced | None = None
    """None: the metadata was not read."""


class Known(Struct, frozen=True, kw_only=True):
    """Facts about the cluster, known before the brokers are asked for their directories.

    Attributes:
        partitions: partitions of the examined topics.
        min_isrs: ``min.insync.replicas`` of these topics.
        shares: replicas of each broker among them.
        trouble: partitions that already have a problem; None: unknown, because some topics are hidden.
        strangers: shares of brokers that are not registered; None: unknown.
        whole: whether these are certainly all topics. Brokers leave out topics that the user may not see.
        image: the metadata, if it was read.
        unplaced: replicas without a directory in the metadata, by broker.
        partial: whether these are not all topics.
    """

    partitions: Partitions
    min_isrs: MinIsrs
    shares: Mapping[int, Share]
    trouble: Trouble | None
    strangers: Mapping[int, Share] | None = field(default_factory=dict)
    whole: bool = False
    image: MetadataImage | None = None
    unplaced: Mapping[int, Unplaced] = field(default_factory=dict)
    partial: bool = False


def unanswered(node: Node, reason: str, known: Known) -> BrokerDirs:
    """Return a broker without an answer."""
    return _broker(node, known, (), reason)


def answered(node: Node, response: DescribeLogDirsResponse, version: int, known: Known) -> BrokerDirs:
    """Return a broker with its answer to DescribeLogDirs in ``version``."""
    if response.error_code:
        hint = (
            ": it takes DESCRIBE on the cluster"
            if response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            else ""
        )
        return unanswered(node, f"{node.host}:{node.port}: {name_of(response.error_code)}{hint}", known)
    found = [_log_dir(node.id, result, version, known) for result in response.results]
    offline = [each for each in found if each.offline]
    registration = None if known.image is None else known.image.brokers.get(node.id)
    if known.image is not None and registration is not None:
        gone = known.unplaced.get(node.id, Unplaced()).gone
        online = _assigned(node.id, response.results, known.image)
        ids = infer(online, [each.path for each in offline], registration.log_dirs, gone)
        for each in found:
            each.directory = ids[each.path]
            if each.offline and each.directory.directory_id is not None:
                each.replicas = _count_assigned(node.id, each.directory.directory_id, known)
    return _broker(node, known, found, None)


def _broker(node: Node, known: Known, log_dirs: Sequence[LogDir], error: str | None) -> BrokerDirs:
    registered = known.image is not None and node.id in known.image.brokers
    return BrokerDirs(
        node=node,
        log_dirs=log_dirs,
        error=error,
        share=known.shares.get(node.id, Share()),
        unplaced=known.unplaced.get(node.id, Unplaced()) if registered else None,
    )


def _count_assigned(broker: int, directory: Uuid, known: Known) -> int:
    """Count the replicas of examined topics that the metadata assigns to a directory."""
    assert known.image is not None
    return sum(
        (broker, directory) in zip(partition.replicas, partition.directories, strict=True)
        for topic in known.image.topics.values()
        if topic.name in known.partitions
        for partition in topic.partitions.values()
    )


def _log_dir(broker: int, result: DescribeLogDirsResponseResult, version: int, known: Known) -> LogDir:
    found = LogDir(
        path=result.log_dir,
        error_code=result.error_code,
        cordoned=result.is_cordoned if version >= CORDONED_SINCE else None,
        total_bytes=None if result.total_bytes < 0 else result.total_bytes,
        usable_bytes=None if result.usable_bytes < 0 else result.usable_bytes,
    )
    if found.usable_bytes is not None and found.total_bytes is not None and found.usable_bytes > found.total_bytes:
        found.usable_bytes = found.total_bytes = None  # values that make no sense
    if not found.offline:
        _count(found, broker, result, known)
    return found


def _count(found: LogDir, broker: int, result: DescribeLogDirsResponseResult, known: Known) -> None:
    """Count the content of an online directory."""
    count = size = leaders = future = 0
    failure = Failure()
    for topic in result.topics:
        partitions = known.partitions.get(topic.name)
        if partitions is None and known.partial:
            continue
        min_isr = known.min_isrs.get(topic.name)
        for replica in topic.partitions:
            size += replica.partition_size
            if replica.is_future_key:
                future += 1
                continue
            count += 1
            partition = None if partitions is None else partitions.get(replica.partition_index)
            if partition is None:
                found.untold += 1
                continue
            if broker not in partition.replicas:  # reassigned, but not deleted yet
                continue
            leaders += partition.leader == broker
            loss = loss_of(partition, broker, min_isr or 1)
            failure.moves += loss.moves
            failure.leaderless += loss.leaderless
            if min_isr is None:
                failure.under_min_isr = None
            elif failure.under_min_isr is not None:
                failure.under_min_isr += loss.under_min_isr
    found.replicas, found.replica_bytes, found.future = count, size, future
    if not found.untold:
        found.leaders, found.failure = leaders, failure


def _assigned(
    broker: int, results: Sequence[DescribeLogDirsResponseResult], image: MetadataImage
) -> dict[str, set[Uuid]]:
    """Return the ids to which the metadata assigns the settled replicas of each online directory."""
    moving = {(topic, replica.partition_index) for _, topic, replica in _replicas(results) if replica.is_future_key}
    ids: dict[str, set[Uuid]] = {result.log_dir: set() for result in results if not result.error_code}
    for path, topic, replica in _replicas(results):
        at = topic, replica.partition_index
        partition = image.partition(image.topic_ids.get(topic, ZERO), replica.partition_index)
        if path in ids and at not in moving and partition is not None and broker in partition.replicas:
            ids[path].add(partition.directory(broker))
    return ids


def _replicas(
    results: Sequence[DescribeLogDirsResponseResult],
) -> Iterator[tuple[str, str, DescribeLogDirsResponsePartition]]:
    """Yield path, topic and replica of each."""
    for result in results:
        for topic in result.topics:
            for replica in topic.partitions:
                yield result.log_dir, topic.name, replica


def as_far_as_seen(brokers: Collection[BrokerDirs], known: Known) -> Known:
    """Remove the numbers of partitions that may lack hidden topics.

    All topics are visible if that is certain, or if each replica in the answers belongs to a visible topic. Then 0
    replicas of a broker mean nothing, because it may have hidden ones.
    """
    if known.whole:
        return known
    found = [each for broker in brokers for each in broker.log_dirs]
    seen = any(each.replicas for each in found) and not any(each.untold for each in found)
    for broker in brokers:
        if not seen or broker.share is None or not broker.share.replicas:
            broker.share = None
    return known if seen else structs.replace(known, trouble=None, strangers=known.strangers or None)


def withdraw_ids(brokers: Iterable[BrokerDirs], before: MetadataImage, after: MetadataImage | None) -> None:
    """Remove the ids of brokers whose replicas were moved between both images; with None, of all brokers."""
    moved = None if after is None else moved_between(before, after)
    for broker in brokers:
        if moved is None or broker.node.id in moved:
            for each in broker.log_dirs:
                each.directory = each.directory and Inferred(None, reason=MOVED if moved else UNCHECKED)
                each.replicas = None if each.offline else each.replicas


def is_another_cluster(image: MetadataImage, nodes: Iterable[Node]) -> bool:
    """Return whether the metadata is from another cluster: then it lists none of these brokers."""
    told = {(node.id, node.host, node.port) for node in nodes}
    registered = {(each.id, at.host, at.port) for each in image.brokers.values() for at in each.end_points}
    return bool(told) and not told & registered


def by_urgency(brokers: Iterable[BrokerDirs]) -> list[tuple[BrokerDirs, LogDir | None]]:
    """Return the rows of a table: brokers without an answer, offline directories, then the others from full to
    empty."""
    rows: list[tuple[BrokerDirs, LogDir | None]] = []
    for broker in brokers:
        rows.extend((broker, each) for each in broker.log_dirs)
        if not broker.log_dirs:
            rows.append((broker, None))
    return sorted(rows, key=_urgency)


def _urgency(row: tuple[BrokerDirs, LogDir | None]) -> tuple[int, int, int, str]:
    broker, found = row
    if found is None:
        return 0, 0, broker.node.id, ""
    used = found.used_percent
    return 1 if found.offline else 2, 1 if used is None else -used, broker.node.id, found.path


class Totals(Struct, frozen=True, kw_only=True):
    """Sums over a cluster."""

    brokers: int
    unanswered: int
    log_dirs: int
    offline: int
    cordoned: int
    replicas: int
    replica_bytes: int
    untold: int
    unassigned: int
    lost: int
    ids_unknown: int
    ids_by: Mapping[str, int]
    """Number of inferred ids by method."""


def totals(brokers: Collection[BrokerDirs]) -> Totals:
    """Return the sums."""
    found = [each for broker in brokers for each in broker.log_dirs]
    ids = [each.directory for each in found if each.directory is not None]
    unplaced = [broker.unplaced for broker in brokers if broker.unplaced is not None]
    by: dict[str, int] = {}
    for each in ids:
        if each.by is not None:
            by[each.by] = by.get(each.by, 0) + 1
    return Totals(
        brokers=len(brokers),
        unanswered=sum(broker.error is not None for broker in brokers),
        log_dirs=len(found),
        offline=sum(each.offline for each in found),
        cordoned=sum(bool(each.cordoned) for each in found),
        replicas=sum(each.replicas or 0 for each in found if not each.offline),
        replica_bytes=sum(each.replica_bytes or 0 for each in found),
        untold=sum(each.untold for each in found),
        unassigned=sum(each.unassigned for each in unplaced),
        lost=sum(each.lost for each in unplaced),
        ids_unknown=sum(each.directory_id is None for each in ids),
        ids_by=by,
    )
