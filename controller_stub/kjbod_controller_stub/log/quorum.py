"""The raft half of a quorum of one: the leader, and answers to an observer's Fetch (``KafkaRaftClient``). Pure.

The rules that a real broker depends on (``handleFetchRequest``, in its order):

- the request names the metadata partition and nothing else (42), and our cluster or none (104);
- numbers that cannot be are refused for the partition (42), before epochs are looked at;
- an older epoch is told the current one (74), a newer one is unknown (75);
- an empty log, or one that ends before ours starts, is told the newest snapshot (``SnapshotId``);
- an offset whose epoch we have otherwise is told where the histories part (``DivergingEpoch``);
- **every** answer names leader and endpoint: a broker's other channels learn of the controller from good answers.

What is on the disk is committed: the high watermark is the durable end, and nothing above it is read.
"""

from collections import OrderedDict
from typing import Protocol

from msgspec import Struct

from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    VoterEndpoint,
)
from kjbod.metadata.control_records import Voter as KRaftVoter
from kjbod.metadata.records import Endpoint
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponseListener,
    DescribeQuorumResponseNode,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplicaState,
    DescribeQuorumResponseTopic,
    EpochEndOffset,
    FetchRequest,
    FetchRequestPartition,
    FetchResponse,
    FetchResponseNodeEndpoint,
    FetchResponsePartition,
    FetchResponseTopic,
    FetchSnapshotRequest,
    FetchSnapshotRequestPartition,
    FetchSnapshotResponse,
    FetchSnapshotResponseNodeEndpoint,
    FetchSnapshotResponsePartition,
    FetchSnapshotResponseTopic,
    LeaderIdAndEpoch,
)
from kjbod.wire.messages import SnapshotId as WireSnapshotId

FETCH_BYTES_MAX = 1024 * 1024
"""What one answer carries at most, whatever is asked for (brokers of Kafka 4.3 ask for this); a larger batch travels
alone."""
FETCH_WAIT_MS_MAX = 30_000
OBSERVERS_MAX = 1_000
"""Observers remembered for DescribeQuorum; the one heard longest ago is forgotten."""
OBSERVER_TIMEOUT_MS = 300_000
"""An observer that is silent this long is not listed (``LeaderState.OBSERVER_SESSION_TIMEOUT_MS``)."""
_TOPIC_BY_ID_SINCE = 13
_REPLICA_STATE_SINCE = 15
_NODE_ENDPOINTS_SINCE = 16


class LogView(Protocol):
    """Methods of the log that answers need."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]: ...


class SnapshotView(Protocol):
    """Methods of the snapshots that answers need; the snapshot from formatting (0-0) is excluded."""

    @property
    def latest(self) -> SnapshotId | None: ...

    @property
    def earliest(self) -> SnapshotId | None: ...

    def size(self, snapshot_id: SnapshotId) -> int | None:
        """Return the size of the file; None: no such snapshot."""


class _NoSnapshots:
    latest: SnapshotId | None = None
    earliest: SnapshotId | None = None

    def size(self, snapshot_id: SnapshotId) -> int | None:
        return None


class ReadFrom(Struct, frozen=True):
    """Plan of a valid Fetch: wait for data at ``offset``, then read."""

    offset: int
    max_bytes: int
    max_wait_ms: int


class ReadSnapshot(Struct, frozen=True):
    """Plan of a valid FetchSnapshot: read a piece of the file."""

    id: SnapshotId
    size: int
    """Of the whole file."""
    position: int
    max_bytes: int


class _Observer(Struct):
    replica_id: int
    directory_id: Uuid
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int = -1


class Quorum:
    """The quorum of this node alone, with this node as leader."""

    def __init__(
        self,
        *,
        cluster_id: str,
        node_id: int,
        directory_id: Uuid,
        endpoint: Endpoint,
        epoch: int,
        log: LogView,
        snapshots: SnapshotView | None = None,
    ) -> None:
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._directory_id = directory_id
        self._endpoint = endpoint
        self._log = log
        self._snapshots: SnapshotView = _NoSnapshots() if snapshots is None else snapshots
        self._leader = LeaderIdAndEpoch(leader_id=node_id, leader_epoch=epoch)
        self._observers: OrderedDict[tuple[int, Uuid], _Observer] = OrderedDict()
        self.epoch = epoch

    # ---- records

    def voters(self) -> KRaftVoters:
        """The only voter, this node. Brokers get the controller's address from here, except for Fetch."""
        endpoint = VoterEndpoint(name=self._endpoint.name, host=self._endpoint.host, port=self._endpoint.port)
        return KRaftVoters(
            voters=(KRaftVoter(voter_id=self._node_id, voter_directory_id=self._directory_id, endpoints=(endpoint,)),)
        )

    def leader_records(self, known: KRaftVoters | None, *, kraft_version: int) -> list[ControlRecord]:
        """Return the control batch that opens the epoch. It has LeaderChange and, with kraft.version 1, the voters if
        the log has none or others (``known``), for example after a change of the advertised listener."""
        me = (LeaderChangeVoter(voter_id=self._node_id),)
        records: list[ControlRecord] = [LeaderChange(leader_id=self._node_id, voters=me, granting_voters=me)]
        if not kraft_version:
            return records  # brokers have the voters in their configuration
        voters = self.voters()
        if known is None:
            records.append(KRaftVersion(k_raft_version=1))
        if known != voters:
            records.append(voters)
        return records

    # ---- Fetch

    def plan_fetch(self, request: FetchRequest, version: int) -> FetchResponse | ReadFrom:
        """Return the plan for a Fetch: an answer at once, or a read from some offset on."""
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            return self._refused(version, ErrorCode.INCONSISTENT_CLUSTER_ID)
        partition = _metadata_partition(request, version)
        if partition is None:
            return self._refused(version, ErrorCode.INVALID_REQUEST)
        if (
            partition.fetch_offset < 0
            or partition.last_fetched_epoch < 0
            or partition.current_leader_epoch < 0
            or partition.last_fetched_epoch > partition.current_leader_epoch
            or request.max_wait_ms < 0
        ):
            return self.fetch_response(version, error=ErrorCode.INVALID_REQUEST)
        if partition.current_leader_epoch != self.epoch:
            older = partition.current_leader_epoch < self.epoch
            return self.fetch_response(
                version, error=ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        wanted = self._snapshot_for(partition)
        if wanted is not None:
            return self.fetch_response(version, snapshot=wanted)
        diverging = self._divergence(partition)
        if diverging is not None:
            return self.fetch_response(version, diverging=diverging)
        return ReadFrom(
            offset=partition.fetch_offset,
            max_bytes=max(1, min(request.max_bytes, FETCH_BYTES_MAX)),
            max_wait_ms=min(request.max_wait_ms, FETCH_WAIT_MS_MAX),
        )

    def _snapshot_for(self, partition: FetchRequestPartition) -> SnapshotId | None:
        """Return the snapshot that an observer must load first: always the newest (``tryCompleteFetchRequest``,
        ``ReplicatedLog.validateOffsetAndEpoch``)."""
        latest, earliest, start = self._snapshots.latest, self._snapshots.earliest, self._log.start_offset
        offset, epoch = partition.fetch_offset, partition.last_fetched_epoch
        if latest is None or earliest is None:
            return None
        behind = offset < start or (offset == start and epoch != earliest.epoch) or epoch < earliest.epoch
        return latest if offset == 0 or behind else None

    def _divergence(self, partition: FetchRequestPartition) -> EpochEndOffset | None:
        """Return the end of the common history of an observer and this log
        (``KafkaRaftLog.validateOffsetAndEpoch``)."""
        offset, epoch = partition.fetch_offset, partition.last_fetched_epoch
        if offset == 0 and epoch == 0 and self._log.start_offset == 0:
            return None
        known_epoch, end = self._log.epoch_end_offset(epoch)
        earliest = self._snapshots.earliest
        if earliest is not None and (known_epoch, end) == (epoch, earliest.end_offset):
            known_epoch = earliest.epoch  # below all that the log has: it goes on where that snapshot ends
        if known_epoch == epoch and offset <= end:
            return None
        return EpochEndOffset(epoch=known_epoch, end_offset=end)

    def fetch_response(
        self,
        version: int,
        *,
        error: int = 0,
        records: bytes = b"",
        diverging: EpochEndOffset | None = None,
        snapshot: SnapshotId | None = None,
    ) -> FetchResponse:
        """Return an answer for the metadata partition. With an error the offsets stay -1, as in Kafka."""
        good = not error
        partition = FetchResponsePartition(
            partition_index=0,
            error_code=error,
            high_watermark=self._log.end_offset if good else -1,
            last_stable_offset=-1,
            log_start_offset=self._log.start_offset if good else 0,
            diverging_epoch=diverging or EpochEndOffset(),
            current_leader=self._leader,
            snapshot_id=WireSnapshotId() if snapshot is None else _wire(snapshot),
            records=records,
        )
        by_id = version >= _TOPIC_BY_ID_SINCE
        topic = FetchResponseTopic(
            topic="" if by_id else METADATA_TOPIC_NAME,
            topic_id=METADATA_TOPIC_ID if by_id else ZERO,
            partitions=(partition,),
        )
        return FetchResponse(responses=(topic,), node_endpoints=self._node_endpoints(version))

    def _refused(self, version: int, error: int) -> FetchResponse:
        return FetchResponse(error_code=error, node_endpoints=self._node_endpoints(version))

    def _node_endpoints(self, version: int) -> tuple[FetchResponseNodeEndpoint, ...]:
        if version < _NODE_ENDPOINTS_SINCE:
            return ()
        return (FetchResponseNodeEndpoint(node_id=self._node_id, host=self._endpoint.host, port=self._endpoint.port),)

    def saw_fetch(self, request: FetchRequest, version: int, wall_ms: int) -> None:
        """Remember how far an observer is; its fetch offset is its log's end. The broker of a combined node is none, as
        in Kafka, where it reads the controller's own log."""
        replica_id = request.replica_state.replica_id if version >= _REPLICA_STATE_SINCE else request.replica_id
        if replica_id < 0:
            return
        partition = request.topics[0].partitions[0]
        key = (replica_id, partition.replica_directory_id)
        if key == (self._node_id, self._directory_id):
            return
        observer = self._observers.pop(key, None) or _Observer(*key, partition.fetch_offset, wall_ms)
        observer.log_end_offset = partition.fetch_offset
        observer.last_fetch_ms = wall_ms
        if partition.fetch_offset >= self._log.end_offset:
            observer.last_caught_up_ms = wall_ms
        self._observers[key] = observer
        if len(self._observers) > OBSERVERS_MAX:
            self._observers.popitem(last=False)

    # ---- FetchSnapshot, DescribeQuorum

    def plan_fetch_snapshot(self, request: FetchSnapshotRequest, version: int) -> FetchSnapshotResponse | ReadSnapshot:
        """Return the plan for a FetchSnapshot: an answer at once, or a piece of a file."""
        if request.cluster_id is not None and request.cluster_id != self._cluster_id:
            return FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
        if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
            return FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST)
        topic, partition = request.topics[0], request.topics[0].partitions[0]
        wanted = SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        size = self._snapshots.size(wanted)
        error = self._snapshot_error(topic.name, partition, size)
        if error or size is None:
            return self.snapshot_response(version, wanted, error=error, topic=topic.name, partition=partition.partition)
        return ReadSnapshot(wanted, size, partition.position, max(1, min(request.max_bytes, FETCH_BYTES_MAX)))

    def snapshot_response(
        self,
        version: int,
        snapshot_id: SnapshotId,
        *,
        error: int = 0,
        size: int = 0,
        position: int = 0,
        data: bytes = b"",
        topic: str = METADATA_TOPIC_NAME,
        partition: int = 0,
    ) -> FetchSnapshotResponse:
        """Return an answer about a snapshot: a piece of it, or the error."""
        answer = FetchSnapshotResponsePartition(
            index=partition,
            error_code=error,
            snapshot_id=_wire(snapshot_id),
            current_leader=self._leader,
            size=size,
            position=position,
            unaligned_records=data,
        )
        endpoint = FetchSnapshotResponseNodeEndpoint(
            node_id=self._node_id, host=self._endpoint.host, port=self._endpoint.port
        )
        return FetchSnapshotResponse(
            topics=(FetchSnapshotResponseTopic(name=topic, partitions=(answer,)),),
            node_endpoints=(endpoint,) if version >= 1 else (),
        )

    def _snapshot_error(self, name: str, partition: FetchSnapshotRequestPartition, size: int | None) -> int:
        if name != METADATA_TOPIC_NAME or partition.partition != 0:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if partition.current_leader_epoch < self.epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if partition.current_leader_epoch > self.epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        if size is None:
            return ErrorCode.SNAPSHOT_NOT_FOUND
        return 0 if 0 <= partition.position < size else ErrorCode.POSITION_OUT_OF_RANGE

    def observer_count(self, wall_ms: int) -> int:
        """Number of observers that fetched recently."""
        return sum(one.last_fetch_ms + OBSERVER_TIMEOUT_MS >= wall_ms for one in self._observers.values())

    def describe(self, request: DescribeQuorumRequest, wall_ms: int) -> DescribeQuorumResponse:
        """Describe leader, high watermark, the only voter, and the observers that fetched recently."""
        topics = request.topics
        ours = len(topics) == 1 and topics[0].topic_name == METADATA_TOPIC_NAME
        if not ours or [partition.partition_index for partition in topics[0].partitions] != [0]:
            unknown = DescribeQuorumResponsePartition(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return DescribeQuorumResponse(
                topics=tuple(
                    DescribeQuorumResponseTopic(topic_name=topic.topic_name, partitions=(unknown,)) for topic in topics
                )
            )
        partition = DescribeQuorumResponsePartition(
            leader_id=self._node_id,
            leader_epoch=self.epoch,
            high_watermark=self._log.end_offset,
            current_voters=(
                DescribeQuorumResponseReplicaState(
                    replica_id=self._node_id,
                    replica_directory_id=self._directory_id,
                    log_end_offset=self._log.end_offset,
                    last_fetch_timestamp=wall_ms,
                    last_caught_up_timestamp=wall_ms,
                ),
            ),
            observers=tuple(
                DescribeQuorumResponseReplicaState(
                    replica_id=observer.replica_id,
                    replica_directory_id=observer.directory_id,
                    log_end_offset=observer.log_end_offset,
                    last_fetch_timestamp=observer.last_fetch_ms,
                    last_caught_up_timestamp=observer.last_caught_up_ms,
                )
                for observer in self._observers.values()
                if observer.last_fetch_ms + OBSERVER_TIMEOUT_MS >= wall_ms
            ),
        )
        listener = DescribeQuorumResponseListener(
            name=self._endpoint.name, host=self._endpoint.host, port=self._endpoint.port
        )
        return DescribeQuorumResponse(
            topics=(DescribeQuorumResponseTopic(partitions=(partition,)),),
            nodes=(DescribeQuorumResponseNode(node_id=self._node_id, listeners=(listener,)),),
        )


def _wire(snapshot_id: SnapshotId) -> WireSnapshotId:
    return WireSnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)


def _metadata_partition(request: FetchRequest, version: int) -> FetchRequestPartition | None:
    """Return the metadata partition if the request asks for it alone; None otherwise."""
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        return None
    topic, partition = request.topics[0], request.topics[0].partitions[0]
    by_id = version >= _TOPIC_BY_ID_SINCE
    ours = topic.topic_id == METADATA_TOPIC_ID if by_id else topic.topic == METADATA_TOPIC_NAME
    return partition if ours and partition.partition == 0 else None
