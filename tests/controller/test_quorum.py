"""What an observer's Fetch, FetchSnapshot and DescribeQuorum get (section 6.6 of the reference)."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, Uuid
from kjbod.metadata.control_records import KRaftVersion, KRaftVoters, LeaderChange
from kjbod.metadata.records import Endpoint
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import decode_request, decode_response
from kjbod.wire.messages import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    EpochEndOffset,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestReplicaState,
    FetchRequestTopic,
    FetchResponse,
    FetchSnapshotRequest,
    FetchSnapshotRequestPartition,
    FetchSnapshotRequestTopic,
    FetchSnapshotResponse,
    LeaderIdAndEpoch,
)
from kjbod.wire.messages import SnapshotId as WireSnapshotId
from kjbod_controller_stub.log.quorum import OBSERVERS_MAX, Quorum, ReadFrom, ReadSnapshot, SnapshotView

CLUSTER = "kjbodRealKafka43AAAAAA"
ENDPOINT = Endpoint(name="CONTROLLER", host="127.0.0.1", port=21094)


@dataclasses.dataclass
class Log:
    """Epoch 1 from 0, epoch 3 from 100, end at 150."""

    start_offset: int = 0
    end_offset: int = 150

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        if epoch < 1:
            return epoch, 0
        return (1, 100) if epoch < 3 else (3, 150)


def quorum(start_offset: int = 0, snapshots: SnapshotView | None = None, *, epoch: int = 3) -> Quorum:
    return Quorum(
        cluster_id=CLUSTER,
        node_id=3000,
        directory_id=Uuid.of(3, 3),
        endpoint=ENDPOINT,
        epoch=epoch,
        log=Log(start_offset),
        snapshots=snapshots,
    )


def fetch(*, topic: dict[str, Any] | None = None, **fields: Any) -> FetchRequest:
    partition = {"partition": 0, "current_leader_epoch": 3, "fetch_offset": 150, "last_fetched_epoch": 3}
    names = {f.name for f in structs.fields(FetchRequestPartition)}
    inner = partition | {name: value for name, value in fields.items() if name in names}
    outer = {"max_wait_ms": 500} | {name: value for name, value in fields.items() if name not in names}
    where = {"topic_id": METADATA_TOPIC_ID, "partitions": (FetchRequestPartition(**inner),)} | (topic or {})
    return FetchRequest(topics=(FetchRequestTopic(**where),), **outer)


@pytest.mark.parametrize(
    ("request_", "top", "code"),
    [
        (fetch(cluster_id="other"), ErrorCode.INCONSISTENT_CLUSTER_ID, None),
        (fetch(topic={"topic_id": Uuid.of(1, 1)}), ErrorCode.INVALID_REQUEST, None),
        (fetch(topic={"partitions": ()}), ErrorCode.INVALID_REQUEST, None),
        (fetch(partition=1), ErrorCode.INVALID_REQUEST, None),
        (FetchRequest(), ErrorCode.INVALID_REQUEST, None),
        (fetch(fetch_offset=-1), 0, ErrorCode.INVALID_REQUEST),
        (fetch(last_fetched_epoch=-1), 0, ErrorCode.INVALID_REQUEST),
        (fetch(max_wait_ms=-1), 0, ErrorCode.INVALID_REQUEST),
        (fetch(last_fetched_epoch=9), 0, ErrorCode.INVALID_REQUEST),
        (fetch(last_fetched_epoch=2, current_leader_epoch=1), 0, ErrorCode.INVALID_REQUEST),
        (fetch(current_leader_epoch=0, last_fetched_epoch=0), 0, ErrorCode.FENCED_LEADER_EPOCH),
        (fetch(current_leader_epoch=4), 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
    ids=[
        "cluster",
        "topic",
        "no partition",
        "partition",
        "nothing",
        "offset",
        "last epoch",
        "wait",
        "epochs",
        "epochs before 74",
        "older epoch",
        "newer epoch",
    ],
)
def test_a_fetch_that_cannot_be_served_is_told_why_and_who_leads(
    request_: FetchRequest, top: int, code: int | None
) -> None:
    answer = quorum().plan_fetch(request_, 18)
    assert isinstance(answer, FetchResponse)
    assert answer.error_code == top
    assert [endpoint.port for endpoint in answer.node_endpoints] == [21094]
    if code is None:
        assert not answer.responses
    else:
        partition = answer.responses[0].partitions[0]
        assert (partition.error_code, partition.high_watermark) == (code, -1)
        assert partition.current_leader == LeaderIdAndEpoch(leader_id=3000, leader_epoch=3)


@pytest.mark.parametrize(
    ("offset", "epoch", "diverging"),
    [
        (0, 0, None),
        (50, 1, None),
        (100, 1, None),
        (150, 3, None),
        (101, 1, EpochEndOffset(epoch=1, end_offset=100)),
        (100, 2, EpochEndOffset(epoch=1, end_offset=100)),
        (151, 3, EpochEndOffset(epoch=3, end_offset=150)),
        (5, 0, EpochEndOffset(epoch=0, end_offset=0)),
    ],
)
def test_another_history_is_told_where_it_parts(offset: int, epoch: int, diverging: EpochEndOffset | None) -> None:
    answer = quorum().plan_fetch(fetch(fetch_offset=offset, last_fetched_epoch=epoch), 18)
    if diverging is None:
        assert answer == ReadFrom(offset, 1024 * 1024, 500)
    else:
        assert isinstance(answer, FetchResponse)
        assert answer.responses[0].partitions[0].diverging_epoch == diverging


@pytest.mark.parametrize("version", range(12, 19))
def test_good_answers_name_leader_and_endpoint_as_the_version_can(version: int) -> None:
    by_name = {"topic": METADATA_TOPIC_NAME, "topic_id": Uuid.of(0, 0)}
    assert isinstance(quorum().plan_fetch(fetch(topic=by_name if version == 12 else None), version), ReadFrom)
    answer = quorum().fetch_response(version, records=b"x")
    assert bool(answer.node_endpoints) == (version >= 16)
    assert answer.responses[0].topic == (METADATA_TOPIC_NAME if version == 12 else "")
    partition = answer.responses[0].partitions[0]
    assert (partition.current_leader.leader_id, partition.high_watermark, partition.records) == (3000, 150, b"x")


def test_a_new_epoch_opens_with_the_voters_a_broker_looks_for() -> None:
    one = quorum()
    first = one.leader_records(None, kraft_version=1)
    assert [type(record) for record in first] == [LeaderChange, KRaftVersion, KRaftVoters]
    assert one.leader_records(one.voters(), kraft_version=1) == first[:1]
    moved = Quorum(
        cluster_id=CLUSTER,
        node_id=3000,
        directory_id=Uuid.of(3, 3),
        endpoint=structs.replace(ENDPOINT, port=1),
        epoch=4,
        log=Log(),
    )
    assert [type(record) for record in moved.leader_records(one.voters(), kraft_version=1)] == [
        LeaderChange,
        KRaftVoters,
    ]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"current_leader_epoch": 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"current_leader_epoch": 9}, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ({"partition": 1}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=str,
)
def test_a_piece_of_a_snapshot_that_cannot_be_had_is_told_why(fields: dict[str, Any], code: int) -> None:
    partition = FetchSnapshotRequestPartition(**({"current_leader_epoch": 3} | fields))
    request = FetchSnapshotRequest(topics=(FetchSnapshotRequestTopic(partitions=(partition,)),))
    answer = quorum().plan_fetch_snapshot(request, 1)
    assert isinstance(answer, FetchSnapshotResponse)
    assert answer.topics[0].partitions[0].error_code == code


def test_the_empty_fetch_snapshot_that_ends_a_shipped_controller_is_an_error() -> None:
    for request in (FetchSnapshotRequest(), FetchSnapshotRequest(topics=(FetchSnapshotRequestTopic(partitions=()),))):
        answer = quorum().plan_fetch_snapshot(request, 1)
        assert isinstance(answer, FetchSnapshotResponse)
        assert answer.error_code == ErrorCode.INVALID_REQUEST


@dataclasses.dataclass
class Snapshots:
    """Two: up to 60 of epoch 1, where the log starts, and up to 120 of epoch 3."""

    earliest: SnapshotId | None = SnapshotId(60, 1)  # noqa: RUF009  a value
    latest: SnapshotId | None = SnapshotId(120, 3)  # noqa: RUF009  a value

    def size(self, snapshot_id: SnapshotId) -> int | None:
        return 5_000 if snapshot_id in (self.earliest, self.latest) else None


@pytest.mark.parametrize(
    ("start", "offset", "epoch", "told"),
    [
        (60, 0, 0, "snapshot"),
        (0, 0, 0, "snapshot"),  # even where the log starts at 0: a snapshot is the shorter way
        (60, 59, 1, "snapshot"),
        (60, 60, 0, "snapshot"),
        (60, 60, 2, "snapshot"),
        (60, 60, 1, "records"),
        (60, 100, 1, "records"),
        (60, 130, 0, "snapshot"),
        (60, 101, 1, EpochEndOffset(epoch=1, end_offset=100)),
        (60, 151, 3, EpochEndOffset(epoch=3, end_offset=150)),
        (0, 50, 1, "records"),
    ],
)
def test_an_observer_that_the_log_does_not_reach_is_told_the_newest_snapshot(
    start: int, offset: int, epoch: int, told: object
) -> None:
    plan = quorum(start, Snapshots()).plan_fetch(fetch(fetch_offset=offset, last_fetched_epoch=epoch), 18)
    if told == "records":
        assert isinstance(plan, ReadFrom)
        return
    assert isinstance(plan, FetchResponse)
    partition = plan.responses[0].partitions[0]
    assert partition.error_code == 0
    if told == "snapshot":
        assert (partition.snapshot_id.end_offset, partition.snapshot_id.epoch) == (120, 3)
        assert partition.diverging_epoch == EpochEndOffset()
    else:
        assert partition.diverging_epoch == told
        assert partition.snapshot_id.end_offset == -1


@pytest.mark.parametrize(
    ("position", "max_bytes", "expected"),
    [
        (0, 100, (0, 100)),
        (4_999, 2**31 - 1, (4_999, 1024 * 1024)),
        (7, 0, (7, 1)),
        (7, -5, (7, 1)),
        (5_000, 100, ErrorCode.POSITION_OUT_OF_RANGE),
        (-1, 100, ErrorCode.POSITION_OUT_OF_RANGE),
        (2**62, 100, ErrorCode.POSITION_OUT_OF_RANGE),
    ],
)
def test_a_snapshot_is_read_from_any_position_in_it(position: int, max_bytes: int, expected: object) -> None:
    wanted = FetchSnapshotRequestPartition(
        current_leader_epoch=3, position=position, snapshot_id=WireSnapshotId(end_offset=120, epoch=3)
    )
    request = FetchSnapshotRequest(max_bytes=max_bytes, topics=(FetchSnapshotRequestTopic(partitions=(wanted,)),))
    plan = quorum(60, Snapshots()).plan_fetch_snapshot(request, 1)
    if isinstance(plan, ReadSnapshot):
        assert ((plan.position, plan.max_bytes), plan.size) == (expected, 5_000)
    else:
        assert plan.topics[0].partitions[0].error_code == expected
        assert plan.node_endpoints[0].port == 21094


def test_observers_are_listed_while_they_fetch_and_never_without_bound() -> None:
    one = quorum()
    for replica in range(OBSERVERS_MAX + 5):
        state = FetchRequestReplicaState(replica_id=replica)
        one.saw_fetch(fetch(replica_state=state, fetch_offset=150 if replica % 2 else 7), 18, replica)
    partition = one.describe(DescribeQuorumRequest(), 1_000).topics[0].partitions[0]
    assert (partition.leader_id, partition.high_watermark) == (3000, 150)
    assert [voter.replica_id for voter in partition.current_voters] == [3000]
    assert len(partition.observers) == OBSERVERS_MAX
    newest = partition.observers[-2:]
    assert [(o.log_end_offset, o.last_caught_up_timestamp) for o in newest] == [(150, 1003), (7, -1)]
    assert not one.describe(DescribeQuorumRequest(), 1_000_000).topics[0].partitions[0].observers
    other = DescribeQuorumRequestTopic(topic_name="x", partitions=(DescribeQuorumRequestPartition(),))
    unknown = one.describe(DescribeQuorumRequest(topics=(other,)), 0).topics[0].partitions[0]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


ANSWERED_WITH_A_SNAPSHOT = 10
"""The pair in which the real controller sent the broker to a snapshot; this controller keeps its whole log."""


def golden_fetches() -> Iterator[tuple[int, bytes, bytes]]:
    frames: dict[int, dict[str, bytes]] = {}
    for line in (Path(__file__).parents[1] / "data/frames.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry["key"] == 1 and entry["peer"] == "to controller":
            frames.setdefault(entry["id"], {})[entry["direction"]] = bytes.fromhex(entry["hex"])
    for pair, both in frames.items():
        if pair != ANSWERED_WITH_A_SNAPSHOT:
            yield pair, both["request"], both["response"]


@pytest.mark.parametrize(
    ("pair", "sent", "answered"), [pytest.param(*it, id=f"pair {it[0]}") for it in golden_fetches()]
)
def test_fetches_of_a_real_broker_get_the_answers_of_a_real_controller(pair: int, sent: bytes, answered: bytes) -> None:
    request = decode_request(sent)
    assert isinstance(request.message, FetchRequest)
    real = decode_response(answered, request.api_key, request.version).message
    assert isinstance(real, FetchResponse)
    theirs = real.responses[0].partitions[0]
    one = quorum(epoch=theirs.current_leader.leader_epoch)
    log = Log(end_offset=max(theirs.high_watermark, 0))
    log.epoch_end_offset = lambda epoch: (epoch, log.end_offset)  # type: ignore[method-assign]
    one._log = log
    ours = one.plan_fetch(request.message, request.version)
    if isinstance(ours, ReadFrom):
        ours = one.fetch_response(request.version, records=theirs.records or b"")
    assert ours == real


def test_the_broker_of_a_combined_node_is_no_observer_beside_its_own_controller() -> None:
    one = quorum()
    own = FetchRequestReplicaState(replica_id=3000, replica_epoch=-1)
    one.saw_fetch(fetch(replica_state=own, replica_directory_id=Uuid.of(3, 3)), 18, 0)
    assert one.observer_count(0) == 0
    one.saw_fetch(fetch(replica_state=own, replica_directory_id=Uuid.of(4, 4)), 18, 0)
    assert one.observer_count(0) == 1, "somebody with its id, on another disk"
