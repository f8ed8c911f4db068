"""The observer's fetch machine against scripted answers: no socket, no clock."""

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, Uuid
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.control_records import LeaderChange
from kjbod.metadata.fetching import (
    ADDRESSES_MAX,
    ASKED_BYTES_MAX,
    READ_AGAIN_MAX_MS,
    READ_AGAIN_MS,
    SET_BACK_AFTER_MS,
    SNAPSHOT_BACKOFF_MAX_MS,
    Committed,
    Downloaded,
    FetchMachine,
    InconsistentClusterError,
    Leader,
    LeaderChanged,
    Quorum,
    Snapshot,
)
from kjbod.metadata.records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
    UnknownRecord,
    encode_record,
)
from kjbod.metadata.snapshot import SnapshotId, encode_checkpoint
from kjbod.wire import messages as wire
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import EpochEndOffset, FetchResponse, FetchSnapshotResponse, LeaderIdAndEpoch
from tests.growth import entries

A, B, C, D = ("a", 1), ("b", 2), ("c", 3), ("d", 4)
LEADER = LeaderIdAndEpoch(leader_id=3000, leader_epoch=1)


def machine(*servers: tuple[str, int], seed: int = 1, **options: Any) -> FetchMachine:
    return FetchMachine(servers or (A,), random.Random(seed), **options)


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"t{number}", topic_id=Uuid.of(1, number))


def data(base: int, *records: Record, epoch: int = 1) -> bytes:
    return encode_batch([encode_record(record) for record in records], base, epoch, 1000)


def answer(
    records: bytes = b"",
    *,
    hw: int = -1,
    error: int = 0,
    leader: LeaderIdAndEpoch = LEADER,
    nodes: Sequence[tuple[int, str, int]] = ((3000, "a", 1),),
    **fields: Any,
) -> FetchResponse:
    partition = wire.FetchResponsePartition(
        partition_index=0, error_code=error, high_watermark=hw, current_leader=leader, records=records, **fields
    )
    return FetchResponse(
        responses=(wire.FetchResponseTopic(topic_id=METADATA_TOPIC_ID, partitions=(partition,)),),
        node_endpoints=tuple(wire.FetchResponseNodeEndpoint(node_id=n, host=h, port=p) for n, h, p in nodes),
    )


def piece(
    snapshot_id: SnapshotId, whole: bytes, position: int, length: int, *, error: int = 0, size: int | None = None
) -> FetchSnapshotResponse:
    partition = wire.FetchSnapshotResponsePartition(
        error_code=error,
        snapshot_id=wire.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch),
        size=len(whole) if size is None else size,
        position=position,
        unaligned_records=whole[position : position + length],
    )
    return FetchSnapshotResponse(topics=(wire.FetchSnapshotResponseTopic(partitions=(partition,)),))


def asked(m: FetchMachine, version: int = 18) -> wire.FetchRequestPartition:
    request = m.request(version)
    assert isinstance(request, wire.FetchRequest)
    return request.topics[0].partitions[0]


def committed(effects: Sequence[object]) -> list[int]:
    return [offset for effect in effects if isinstance(effect, Committed) for offset, _ in effect.records]


def at_offset(end: int, *, hw: int | None = None, epoch: int = 1) -> FetchMachine:
    """A machine that has read ``end`` records, those below ``hw`` committed."""
    m = machine()
    leader = LeaderIdAndEpoch(leader_id=3000, leader_epoch=epoch)
    records = b"".join(data(o, topic(o), epoch=epoch) for o in range(end))
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH, leader=leader), 0)
    m.on_fetch(answer(records, hw=end if hw is None else hw, leader=leader), 0)
    return m


# ---------------------------------------------------------------- timeouts of the quorum


def ask_in_vain(m: FetchMachine, now_ms: int) -> int:
    """One request that times out; when the next one may go out."""
    m.on_failure("no answer", now_ms + m.timeout_ms)
    return m.not_before_ms


@pytest.mark.parametrize("seed", range(20))
def test_each_controller_is_asked_once_before_one_is_asked_again(seed: int) -> None:
    m = machine(A, B, C, seed=seed)
    asked_now = [m.address]
    for _ in range(11):
        m.on_failure("no answer", 0)
        asked_now.append(m.address)
    rounds = [asked_now[n : n + 3] for n in range(0, 12, 3)]
    assert all(set(each) == {A, B, C} for each in rounds)
    assert all(before != after for before, after in itertools.pairwise(asked_now))


def test_one_that_is_silent_holds_up_the_search_for_half_a_second_at_first() -> None:
    m = machine(A, B, C, max_wait_ms=500)
    assert (m.patience_ms, m.timeout_ms) == (2_000, 2_500), "a leader has all the time of a request"
    found = []
    for _ in range(15):
        m.on_failure("no answer", 0)
        found.append((m.patience_ms, m.timeout_ms))
    assert found == [(500, 1_000)] * 9 + [(1_000, 1_500)] * 3 + [(2_000, 2_500)] * 3
    m.on_fetch(answer(hw=0, leader=LeaderIdAndEpoch()), 0)
    assert m.patience_ms == 2_000


@pytest.mark.parametrize("election_ms", [50, 300, 1_000, 3_000, 8_000])
def test_a_leader_is_found_in_a_part_of_the_time_that_its_election_took(election_ms: int) -> None:
    """Three of four know the new leader as soon as there is one; the one before it answers nothing."""
    for seed in range(20):
        m, now = machine(A, B, C, D, seed=seed, max_wait_ms=500), 0
        m.on_failure("the leader is lost", now)
        while m.address == A or now < election_ms:
            now += m.patience_ms if m.address == A else 0
            m.on_failure("no leader is known", now)
            now = m.not_before_ms
        assert now - election_ms <= 500 + election_ms


def test_a_single_controller_is_asked_again_and_again() -> None:
    m = machine(A)
    now_ms = 0
    for _ in range(5):
        now_ms = ask_in_vain(m, now_ms)
        assert m.address == A


def test_after_a_success_the_leader_is_waited_for_no_longer_than_it_may_be_silent() -> None:
    m = machine(A, B, quorum=Quorum(request_timeout_ms=5_000, fetch_timeout_ms=1_000), max_wait_ms=500)
    m.on_fetch(answer(data(0, topic(0)), hw=1), 0)
    assert m.timeout_ms == 1_500
    ask_in_vain(m, 0)
    assert m.timeout_ms == 1_000
    m.on_fetch(answer(data(1, topic(1)), hw=2), 10_000)
    assert m.timeout_ms == 1_500


def test_the_back_off_grows_from_where_it_is_configured() -> None:
    for first_ms, most_ms in ((20, 1_000), (300, 1_000), (4_000, 4_000), (0, 1_000)):
        m = machine(quorum=Quorum(retry_backoff_ms=first_ms))
        waits = []
        for _ in range(16):
            m.on_failure("refused", 0)
            waits.append(m.not_before_ms)
        assert waits[0] in range(int(first_ms * 0.8), int(first_ms * 1.2) + 2)
        assert waits[-1] in range(int(most_ms * 0.8), int(most_ms * 1.2) + 1)


def test_it_is_known_since_when_nothing_was_fetched_until_something_is() -> None:
    m = machine()
    assert m.failing_since_ms is None
    for now_ms in (7_000, 8_000):
        m.on_failure("refused", now_ms)
        assert m.failing_since_ms == 7_000
    m.on_fetch(answer(), 9_000)
    assert m.failing_since_ms is None


def test_as_much_is_asked_for_as_configured_and_never_more_than_fits_into_memory() -> None:
    for given, asked_for in ((5_000, 5_000), (2**31 - 1, ASKED_BYTES_MAX)):
        m = machine(quorum=Quorum(fetch_max_bytes=given, fetch_snapshot_max_bytes=given))
        fetch = m.request(18)
        m.on_fetch(answer(snapshot_id=wire.SnapshotId(end_offset=5, epoch=1)), 0)
        assert (fetch.max_bytes, m.request(18).max_bytes) == (asked_for, asked_for)


# ---------------------------------------------------------------- requests


def test_the_first_request_is_that_of_a_real_broker() -> None:
    directory = Uuid.of(4, 4)
    m = machine(replica_id=1, cluster_id="c", directory_id=directory)
    request = m.request(18)
    assert request == wire.FetchRequest(
        cluster_id="c",
        replica_state=wire.FetchRequestReplicaState(replica_id=1, replica_epoch=-1),
        max_wait_ms=500,
        max_bytes=1024 * 1024,
        topics=(
            wire.FetchRequestTopic(
                topic=METADATA_TOPIC_NAME,
                topic_id=METADATA_TOPIC_ID,
                partitions=(
                    wire.FetchRequestPartition(
                        partition=0,
                        current_leader_epoch=0,
                        fetch_offset=0,
                        last_fetched_epoch=0,
                        replica_directory_id=directory,
                        high_watermark=-1,
                    ),
                ),
            ),
        ),
    )
    assert m.timeout_ms == 2500


@pytest.mark.parametrize("version", range(12, 19))
def test_requests_can_be_written_in_every_version_of_fetch(version: int) -> None:
    from kjbod.wire.frames import decode_request, encode_request

    request = machine(replica_id=5, cluster_id="c", directory_id=Uuid.of(1, 1)).request(version)
    frame = encode_request(request, version, 7, "client")
    read = decode_request(frame[4:]).message
    assert isinstance(read, wire.FetchRequest)
    assert max(read.replica_id, read.replica_state.replica_id) == 5


# ---------------------------------------------------------------- records


def test_only_records_below_the_high_watermark_are_handed_over() -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    assert committed(m.on_fetch(answer(data(0, topic(0), topic(1)) + data(2, topic(2))), 0)) == []
    assert (m.high_watermark, m.applied_offset) == (-1, 0)
    assert committed(m.on_fetch(answer(hw=1), 0)) == [], "half a batch is not committed"
    assert committed(m.on_fetch(answer(hw=2), 0)) == [0, 1]
    assert committed(m.on_fetch(answer(data(3, topic(3)), hw=4), 0)) == [2, 3]
    assert committed(m.on_fetch(answer(hw=3), 0)) == [], "a high watermark never goes back"
    assert (m.high_watermark, m.applied_offset) == (4, 4)
    partition = asked(m)
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.high_watermark) == (4, 1, 4)


def test_control_records_count_and_are_not_handed_over() -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    control = encode_batch([LeaderChange(leader_id=3000, voters=())], 0, 1, 0, control=True)
    (effect,) = m.on_fetch(answer(control, hw=1), 0)
    assert effect == Committed((), 0, 1, 1)


def test_records_of_two_epochs_are_handed_over_apart() -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH, leader=LeaderIdAndEpoch(leader_id=3000, leader_epoch=3)), 0)
    records = data(0, topic(0)) + data(1, topic(1)) + data(2, topic(2), epoch=3)
    effects = m.on_fetch(answer(records, hw=3, leader=LeaderIdAndEpoch(leader_id=3000, leader_epoch=3)), 0)
    groups = [(e.epoch, e.last_offset, len(e.records)) for e in effects if isinstance(e, Committed)]
    assert groups == [(1, 1, 2), (3, 2, 1)]
    assert asked(m).last_fetched_epoch == 3


@pytest.mark.parametrize(
    "bad",
    [
        data(1, topic(0)),
        data(0, topic(0), epoch=9),
        data(0, topic(0))[:-1] + b"\xff",
        b"\0" * 100,
    ],
    ids=["gap", "epoch of nobody", "checksum", "zeros"],
)
def test_a_bad_batch_is_dropped_and_asked_for_again(bad: bytes) -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    assert m.on_fetch(answer(bad, hw=1), 100) == []
    assert m.problem is not None
    assert "sent a bad batch" in m.problem
    assert m.not_before_ms > 100
    assert asked(m).fetch_offset == 0
    assert committed(m.on_fetch(answer(data(0, topic(0)), hw=1), 200)) == [0]
    assert m.problem is None


def test_a_record_of_a_newer_kafka_is_handed_over_as_unknown_and_what_follows_it_too() -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    newer = encode_batch([b"\x01\x63\x00\x00", encode_record(topic(1))], 0, 1, 0)
    (effect,) = m.on_fetch(answer(newer + data(2, topic(2)), hw=3), 0)
    assert isinstance(effect, Committed)
    assert effect.records == ((0, UnknownRecord(api_key=99, version=0)), (1, topic(1)), (2, topic(2)))
    assert (m.applied_offset, m.problem) == (3, None)


# ---------------------------------------------------------------- snapshots that cannot be used

SNAPSHOT = SnapshotId(5, 1)
OFFERED: dict[str, Any] = {"snapshot_id": wire.SnapshotId(end_offset=5, epoch=1)}


def download(m: FetchMachine, now_ms: int, whole: bytes = b"anything") -> bool:
    """Fetch, and take the snapshot that is offered; whether it was asked for."""
    m.on_fetch(answer(**OFFERED), now_ms)
    if not isinstance(m.request(18), wire.FetchSnapshotRequest):
        return False
    assert any(isinstance(one, Downloaded) for one in m.on_fetch_snapshot(piece(SNAPSHOT, whole, 0, 99), now_ms))
    return True


def test_a_snapshot_that_cannot_be_used_is_asked_for_later_and_later_and_is_a_problem_all_the_while() -> None:
    m, now_ms, asked_ms = machine(), 0, []
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    while now_ms < 3_600_000:
        if download(m, now_ms):
            asked_ms.append(now_ms)
            m.on_unusable("a record contradicts another one", now_ms)
        assert m.problem == "a record contradicts another one"
        assert m.failing_since_ms == 0, "it is one trouble, however often it was tried"
        assert m.not_before_ms > now_ms or isinstance(m.request(18), wire.FetchSnapshotRequest)
        now_ms = max(now_ms + 1, m.not_before_ms)
    waits = [after - before for before, after in itertools.pairwise(asked_ms)]
    assert all(1_000 <= one <= SNAPSHOT_BACKOFF_MAX_MS for one in waits)
    assert waits[:9] == sorted(waits[:9])
    assert 10 < len(asked_ms) < 30


def test_one_that_can_be_used_ends_the_trouble_and_the_next_bad_one_is_tried_again_after_a_second() -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    for now_ms in (0, 2_000, 6_000):
        assert download(m, now_ms)
        m.on_unusable("bad", now_ms)
    assert not download(m, 6_500)
    assert download(m, 60_000)
    m.on_snapshot(Snapshot(SNAPSHOT, (topic(1),)), 60_000)
    assert (m.problem, m.applied_offset) == (None, 5)
    m.on_fetch(answer(data(5, topic(2)), hw=6), 60_100)
    assert download(m, 61_000)
    m.on_unusable("bad", 61_000)
    assert not download(m, 61_900)
    assert download(m, 62_000)


def test_records_end_the_trouble_too() -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    assert download(m, 0)
    m.on_unusable("bad", 0)
    assert committed(m.on_fetch(answer(data(0, topic(0)), hw=1), 100)) == [0]
    assert m.problem is None


@pytest.mark.parametrize("end", [5, 9])
def test_where_a_consumer_refuses_a_snapshot_all_is_as_before_it(end: int) -> None:
    m = at_offset(3)
    before = asked(m)
    m.on_fetch(answer(snapshot_id=wire.SnapshotId(end_offset=end, epoch=1)), 100)
    m.on_fetch_snapshot(piece(SnapshotId(end, 1), b"anything", 0, 99), 100)
    m.on_snapshot(Snapshot(SnapshotId(end, 1), (topic(1),)), 100)
    assert m.applied_offset == end
    m.on_unusable("a record contradicts another one", 100)
    assert m.applied_offset == 3
    assert asked(m) == before


def test_one_that_cannot_be_read_takes_nothing_back_of_one_that_was_used_before() -> None:
    m = at_offset(3)
    assert download(m, 100)
    m.on_snapshot(Snapshot(SNAPSHOT, (topic(1),)), 100)
    m.on_fetch(answer(snapshot_id=wire.SnapshotId(end_offset=9, epoch=1)), 2_000)
    m.on_fetch_snapshot(piece(SnapshotId(9, 1), b"anything", 0, 99), 2_000)
    m.on_unusable("damaged", 2_000)
    assert m.applied_offset == SNAPSHOT.end_offset


def refused(m: FetchMachine, now_ms: int) -> None:
    """The leader closes the connection instead of an answer, and another server is no leader."""
    m.on_failure("the connection was closed", now_ms)
    m.on_fetch_snapshot(piece(SNAPSHOT, b"", 0, 0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER), now_ms)


def answered(response: FetchSnapshotResponse) -> Callable[[FetchMachine, int], None]:
    """What comes of an answer to FetchSnapshot."""

    def arrive(m: FetchMachine, now_ms: int) -> None:
        for effect in m.on_fetch_snapshot(response, now_ms):
            if isinstance(effect, Downloaded):
                m.on_snapshot(Snapshot(effect.id, (topic(1),)), now_ms)

    return arrive


IN_VAIN: dict[str, Callable[[FetchMachine, int], None]] = {
    "gone": answered(piece(SNAPSHOT, b"", 0, 0, error=ErrorCode.SNAPSHOT_NOT_FOUND)),
    "out of range": answered(piece(SNAPSHOT, b"", 0, 0, error=ErrorCode.POSITION_OUT_OF_RANGE)),
    "an error that nobody knows": answered(piece(SNAPSHOT, b"", 0, 0, error=31_000)),
    "denied": answered(FetchSnapshotResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)),
    "too large": answered(piece(SNAPSHOT, b"anything", 0, 8, size=1 << 40)),
    "a piece of nothing": answered(piece(SNAPSHOT, b"anything", 0, 0)),
    "another one": answered(piece(SnapshotId(6, 1), b"anything", 0, 8)),
    "no partition": answered(FetchSnapshotResponse()),
    "closed": refused,
    "loaded, and named again": answered(piece(SNAPSHOT, b"anything", 0, 8)),
}
"""What a snapshot may end in that the leader names for ever."""


@pytest.mark.parametrize("arrive", IN_VAIN.values(), ids=IN_VAIN)
def test_one_that_never_arrives_is_asked_for_later_and_later_and_is_one_trouble(
    arrive: Callable[[FetchMachine, int], None],
) -> None:
    m, now_ms, asked_ms, told = machine(), 0, list[int](), list[bool]()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    while now_ms < 3_600_000:
        if isinstance(m.request(18), wire.FetchSnapshotRequest):
            asked_ms.append(now_ms)
            arrive(m, now_ms)
        else:
            m.on_fetch(answer(**OFFERED), now_ms)
            told.append(m.problem is not None)
        now_ms = max(now_ms + 1, m.not_before_ms)
    assert len(asked_ms) < 40
    assert max(after - before for before, after in itertools.pairwise(asked_ms)) > SNAPSHOT_BACKOFF_MAX_MS / 2
    assert told.count(False) < 10, "it flickers"


def test_one_that_arrives_at_the_second_try_is_not_waited_for() -> None:
    m = machine()
    m.on_fetch(answer(**OFFERED), 0)
    m.on_fetch_snapshot(piece(SNAPSHOT, b"", 0, 0, error=ErrorCode.SNAPSHOT_NOT_FOUND), 0)
    assert download(m, m.not_before_ms)
    m.on_snapshot(Snapshot(SNAPSHOT, (topic(1),)), 100)
    assert m.problem is None
    assert m.failing_since_ms is None


def test_a_newer_one_that_was_made_while_one_was_loaded_is_no_trouble() -> None:
    m = machine()
    assert download(m, 0)
    m.on_snapshot(Snapshot(SNAPSHOT, (topic(1),)), 5_000)
    newer: dict[str, Any] = {"snapshot_id": wire.SnapshotId(end_offset=9, epoch=1)}
    m.on_fetch(answer(**newer), 5_001)
    assert (m.problem, m.not_before_ms) == (None, 6_000)
    m.on_fetch(answer(**newer), 6_000)
    assert isinstance(m.request(18), wire.FetchSnapshotRequest)


def test_another_history_is_handed_over_with_the_records_that_were_not_understood() -> None:
    m = at_offset(2)
    m.on_connected()
    m.on_fetch(answer(data(1, topic(7)), hw=1), 100)
    unknown = encode_batch([b"\x01\x63\x00\x00"] * 3, 0, 1, 0)
    (effect,) = m.on_fetch(answer(unknown, hw=3), 200)
    assert isinstance(effect, Snapshot)
    assert effect.records == (UnknownRecord(api_key=99, version=0, count=3),)


# ---------------------------------------------------------------- leaders


def test_the_leader_is_learned_from_the_first_refusal_and_asked_at_once() -> None:
    m = machine(A)
    effects = m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH, nodes=[(3000, "b", 2)]), 50)
    assert effects == [LeaderChanged(Leader(3000, 1, "b", 2))]
    assert (m.address, m.not_before_ms) == (B, 50)
    assert asked(m).current_leader_epoch == 1
    assert m.on_fetch(answer(hw=0, nodes=[(3000, "b", 2)]), 60) == [], "the same leader is no news"


def test_without_endpoints_the_configured_voters_say_where_the_leader_is() -> None:
    m = machine(A, voters={3000: B})
    effects = m.on_fetch(answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, nodes=()), 0)
    assert effects == [LeaderChanged(Leader(3000, 1, "b", 2))]
    assert m.address == B


def test_a_leader_of_unknown_address_is_whoever_answers_without_an_error() -> None:
    m = machine(A)
    assert m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH, nodes=()), 0) == []
    assert m.epoch == 1
    assert m.not_before_ms > 0
    unnamed = LeaderIdAndEpoch()
    assert m.on_fetch(answer(hw=0, nodes=(), leader=unnamed), 100) == [LeaderChanged(Leader(3000, 1, "a", 1))]


def test_an_election_leaves_no_leader_until_one_is_named() -> None:
    m = at_offset(2)
    nobody = LeaderIdAndEpoch(leader_id=-1, leader_epoch=2)
    assert m.on_fetch(answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=nobody), 0) == [LeaderChanged(None)]
    assert m.not_before_ms > 0
    later = LeaderIdAndEpoch(leader_id=3001, leader_epoch=2)
    effects = m.on_fetch(answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, leader=later, nodes=[(3001, "b", 2)]), 100)
    assert effects == [LeaderChanged(Leader(3001, 2, "b", 2))]
    assert (m.address, m.not_before_ms) == (B, 100)


def test_a_leader_of_an_older_epoch_is_not_believed() -> None:
    m = at_offset(2, epoch=5)
    effects = m.on_fetch(answer(error=ErrorCode.UNKNOWN_LEADER_EPOCH, nodes=[(3000, "b", 2)]), 0)
    assert effects == []
    assert m.epoch == 5
    assert m.leader == Leader(3000, 5, "a", 1)
    assert m.not_before_ms > 0


def test_a_dead_leader_that_is_named_again_is_not_asked_in_a_busy_loop() -> None:
    m = machine(A)
    named = [(3000, "b", 2)]
    m.on_fetch(answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, nodes=named), 0)
    now = 0
    for _ in range(5):
        assert m.address == B
        m.on_failure("b:2 refused", now)
        assert m.address == A, "any server"
        now = m.not_before_ms
        m.on_fetch(answer(error=ErrorCode.NOT_LEADER_OR_FOLLOWER, nodes=named), now)
        assert m.not_before_ms > now
        now = m.not_before_ms
    assert now > 1000


@pytest.mark.parametrize(
    "code",
    [ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.INVALID_REQUEST, 3, 100, -1, 9999],
)
def test_other_errors_back_off_and_go_on(code: int) -> None:
    m = at_offset(2)
    assert m.on_fetch(answer(error=code), 1000) == []
    assert m.not_before_ms > 1000
    assert m.problem is not None
    assert f"({int(code)})" in m.problem or f"error {int(code)}" in m.problem
    assert asked(m).fetch_offset == 2
    assert committed(m.on_fetch(answer(data(2, topic(2)), hw=3), 2000)) == [2]


def test_back_off_grows_to_a_second_and_any_server_is_chosen() -> None:
    m = machine(A, B)
    waits, chosen, now = [], set(), 0
    for _ in range(40):
        m.on_failure("no answer", now)
        waits.append(m.not_before_ms - now)
        chosen.add(m.address)
        now = m.not_before_ms
    assert all(16 <= wait <= 24 for wait in waits[:2])
    assert all(32 <= wait <= 48 for wait in waits[2:4])
    assert all(800 <= wait <= 1200 for wait in waits[12:])
    assert chosen == {A, B}
    m.on_fetch(answer(hw=0, leader=LeaderIdAndEpoch()), now)
    assert m.not_before_ms == now


def test_a_controller_of_another_cluster_ends_it_unless_fetching_has_worked() -> None:
    refused = FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    with pytest.raises(InconsistentClusterError, match="a:1 belongs to another cluster than mine"):
        machine(cluster_id="mine").on_fetch(refused, 0)
    m = at_offset(1)
    assert m.on_fetch(refused, 0) == []
    assert m.not_before_ms > 0


def test_an_answer_without_a_partition_backs_off() -> None:
    m = machine()
    assert m.on_fetch(FetchResponse(), 0) == []
    assert m.on_fetch_snapshot(FetchSnapshotResponse(), 0) == []
    assert m.not_before_ms > 0


# ---------------------------------------------------------------- divergence


def test_a_diverging_tail_that_was_not_applied_is_replaced() -> None:
    m = at_offset(6, hw=3)
    leader = LeaderIdAndEpoch(leader_id=3000, leader_epoch=2)
    diverging = answer(hw=3, leader=leader, diverging_epoch=EpochEndOffset(epoch=1, end_offset=4))
    assert [type(e) for e in m.on_fetch(diverging, 10)] == [LeaderChanged]
    partition = asked(m)
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch) == (4, 1, 2)
    assert m.not_before_ms == 10
    effects = m.on_fetch(answer(data(4, topic(40), epoch=2), hw=5, leader=leader), 20)
    assert committed(effects) == [3, 4]
    assert asked(m).last_fetched_epoch == 2


def test_a_tail_of_a_newer_epoch_is_cut_where_our_older_one_ends() -> None:
    m = at_offset(3, hw=3)
    two = LeaderIdAndEpoch(leader_id=3000, leader_epoch=2)
    m.on_fetch(answer(data(3, topic(3), epoch=2) + data(4, topic(4), epoch=2), hw=3, leader=two), 0)
    four = LeaderIdAndEpoch(leader_id=3001, leader_epoch=4)
    m.on_fetch(answer(hw=3, leader=four, diverging_epoch=EpochEndOffset(epoch=1, end_offset=9)), 0)
    partition = asked(m)
    assert (partition.fetch_offset, partition.last_fetched_epoch) == (3, 1)


def test_a_leader_with_another_history_is_read_from_the_start_and_shown_as_one_snapshot() -> None:
    m = at_offset(5)
    two = LeaderIdAndEpoch(leader_id=3000, leader_epoch=2)
    effects = m.on_fetch(answer(hw=1, leader=two, diverging_epoch=EpochEndOffset(epoch=1, end_offset=2)), 0)
    assert not any(isinstance(e, (Committed, Snapshot)) for e in effects)
    assert asked(m).fetch_offset == 0
    half = m.on_fetch(answer(data(0, topic(7), BeginTransactionRecord()), hw=4, leader=two), 0)
    assert half == [], "a half-read history would look like deleted topics"
    (effect,) = m.on_fetch(answer(data(2, topic(8), EndTransactionRecord()), hw=4, leader=two), 0)
    assert isinstance(effect, Snapshot)
    assert effect.id == SnapshotId(4, 1)
    assert [r for r in effect.records if isinstance(r, TopicRecord)] == [topic(7), topic(8)]
    assert committed(m.on_fetch(answer(data(4, topic(9), epoch=2), hw=5, leader=two), 0)) == [4]


def test_a_new_history_that_starts_with_a_snapshot_is_shown_with_it() -> None:
    m = at_offset(5)
    m.on_fetch(answer(hw=1, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0)), 0)
    m.on_fetch(OFFER, 0)
    m.on_fetch_snapshot(piece(WANTED, WHOLE, 0, 10_000), 0)
    assert m.on_snapshot(Snapshot(WANTED, RECORDS), 0) == [], "nobody has told how much follows it"
    (effect,) = m.on_fetch(answer(hw=300), 0)
    assert isinstance(effect, Snapshot)
    assert set(effect.records) == set(RECORDS)


def test_a_new_history_that_goes_on_behind_its_snapshot_is_shown_with_what_follows() -> None:
    m = at_offset(5)
    m.on_fetch(answer(hw=1, diverging_epoch=EpochEndOffset(epoch=0, end_offset=0)), 0)
    m.on_fetch(OFFER, 0)
    m.on_fetch_snapshot(piece(WANTED, WHOLE, 0, 10_000), 0)
    assert m.on_snapshot(Snapshot(WANTED, RECORDS), 0) == []
    assert m.on_fetch(answer(data(300, topic(99)), hw=302), 0) == []
    (effect,) = m.on_fetch(answer(data(301, topic(98)), hw=302), 0)
    assert isinstance(effect, Snapshot)
    assert effect.id.end_offset == 302
    assert {topic(98), topic(99)} <= set(effect.records)


@pytest.mark.parametrize("pending", [0, 2])
def test_on_a_new_connection_the_last_batch_that_was_applied_is_read_again_and_not_applied_twice(pending: int) -> None:
    m = at_offset(5 + pending, hw=5)
    m.on_connected()
    m.on_connected()
    partition = asked(m)
    assert (partition.fetch_offset, partition.last_fetched_epoch) == (4, 1)
    assert committed(m.on_fetch(answer(data(4, topic(4)) + data(5, topic(5)), hw=6), 0)) == [5]
    assert asked(m).fetch_offset == 6
    assert m.applied_offset == 6


@pytest.mark.parametrize(
    "other",
    [data(4, topic(99)), data(4, topic(4), epoch=0), data(4, topic(4), topic(5)), data(3, topic(4))],
    ids=["other records", "older epoch", "longer batch", "other offset"],
)
def test_a_history_that_grew_beyond_what_was_applied_is_known_by_its_records(other: bytes) -> None:
    m = at_offset(5)
    m.on_connected()
    assert m.on_fetch(answer(other, hw=9), 0) == []
    assert asked(m).fetch_offset == 0
    (effect,) = m.on_fetch(answer(b"".join(data(o, topic(50 + o)) for o in range(9)), hw=9), 0)
    assert isinstance(effect, Snapshot)
    assert effect.parted is not None and "offset 4" in effect.parted
    assert [r for r in effect.records if isinstance(r, TopicRecord)] == [topic(50 + o) for o in range(9)]


def test_a_history_whose_last_batch_lies_in_another_epoch_diverges_before_it() -> None:
    m = at_offset(3)
    two = LeaderIdAndEpoch(leader_id=3000, leader_epoch=2)
    m.on_fetch(answer(data(3, topic(3), epoch=2) + data(4, topic(4), epoch=2), hw=5, leader=two), 0)
    m.on_connected()
    assert (asked(m).fetch_offset, asked(m).last_fetched_epoch) == (4, 2)
    m.on_fetch(answer(hw=9, leader=two, diverging_epoch=EpochEndOffset(epoch=1, end_offset=3)), 0)
    assert asked(m).fetch_offset == 0


@pytest.mark.parametrize(
    ("snapshot_id", "contains"),
    [(SnapshotId(300, 1), True), (SnapshotId(4, 1), False), (SnapshotId(300, 0), False)],
    ids=["behind what was applied", "of a lower offset", "of a lower epoch"],
)
def test_a_snapshot_that_ends_before_what_was_applied_is_of_another_history(
    snapshot_id: SnapshotId, contains: bool
) -> None:
    m = at_offset(5)
    m.on_fetch(
        answer(hw=400, snapshot_id=wire.SnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch)), 0
    )
    m.on_fetch_snapshot(piece(snapshot_id, WHOLE, 0, 10_000), 0)
    (effect,) = m.on_snapshot(Snapshot(snapshot_id, RECORDS), 0)
    assert isinstance(effect, Snapshot)
    assert (effect.parted is None) is contains


def test_an_older_leader_epoch_is_told_of_when_it_stays_the_only_one() -> None:
    m = at_offset(5, epoch=3)
    behind = answer(error=ErrorCode.UNKNOWN_LEADER_EPOCH, leader=LeaderIdAndEpoch(leader_id=3000, leader_epoch=1))
    m.on_fetch(behind, 0)
    m.on_fetch(behind, SET_BACK_AFTER_MS - 1)
    assert m.set_back is None, "a server that has missed an election"
    m.on_fetch(behind, SET_BACK_AFTER_MS)
    assert m.set_back is not None and "leader epoch 1, and epoch 3 was followed" in m.set_back
    m.on_fetch(answer(hw=5, leader=LeaderIdAndEpoch(leader_id=3000, leader_epoch=3)), SET_BACK_AFTER_MS)
    assert m.set_back is None


def test_a_divergence_that_would_cut_nothing_backs_off() -> None:
    m = at_offset(2)
    m.on_fetch(answer(diverging_epoch=EpochEndOffset(epoch=9, end_offset=99)), 100)
    assert m.not_before_ms > 100
    assert asked(m).fetch_offset == 2


# ---------------------------------------------------------------- snapshots

WANTED = SnapshotId(300, 1)
RECORDS = (FeatureLevelRecord(name="metadata.version", feature_level=30), *(topic(n) for n in range(40)))
WHOLE = encode_checkpoint(header_timestamp_ms=0, kraft=None, records=RECORDS, leader_epoch=1)
OFFER = answer(hw=400, snapshot_id=wire.SnapshotId(end_offset=300, epoch=1))


def snapshot_asked(m: FetchMachine) -> wire.FetchSnapshotRequestPartition:
    request = m.request(18)
    assert isinstance(request, wire.FetchSnapshotRequest)
    return request.topics[0].partitions[0]


def test_a_snapshot_is_fetched_in_pieces_cut_anywhere_and_then_the_log_behind_it() -> None:
    m = machine()
    m.on_fetch(OFFER, 0)
    assert m.timeout_ms == 2000
    for position in range(0, len(WHOLE), 100):
        request = snapshot_asked(m)
        assert (request.position, request.snapshot_id) == (position, wire.SnapshotId(end_offset=300, epoch=1))
        effects = m.on_fetch_snapshot(piece(WANTED, WHOLE, position, 100), 0)
        assert bool(effects) == (position + 100 >= len(WHOLE))
    assert effects == [Downloaded(WANTED, WHOLE)]
    assert m.on_snapshot(Snapshot(WANTED, RECORDS), 0) == [Snapshot(WANTED, RECORDS)]
    partition = asked(m)
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.high_watermark) == (300, 1, -1)
    assert committed(m.on_fetch(answer(data(300, topic(99)), hw=301), 0)) == [300]


@pytest.mark.parametrize("code", [ErrorCode.SNAPSHOT_NOT_FOUND, ErrorCode.POSITION_OUT_OF_RANGE])
def test_a_snapshot_that_is_gone_is_forgotten(code: int) -> None:
    m = machine()
    m.on_fetch(OFFER, 0)
    m.on_fetch_snapshot(piece(WANTED, WHOLE, 0, 100), 0)
    m.on_fetch_snapshot(piece(WANTED, WHOLE, 100, 0, error=code), 0)
    assert m.not_before_ms > 0
    assert asked(m).fetch_offset == 0


@pytest.mark.parametrize(
    "bad",
    [
        piece(SnapshotId(301, 1), WHOLE, 0, 100),
        piece(WANTED, WHOLE, 100, 100),
        piece(WANTED, WHOLE, 0, 0),
        piece(WANTED, WHOLE, 0, 100, size=50),
        piece(WANTED, WHOLE, 0, 100, size=1 << 40),
        FetchSnapshotResponse(error_code=ErrorCode.INVALID_REQUEST),
        FetchSnapshotResponse(),
    ],
    ids=["other", "elsewhere", "nothing", "too much", "too large", "refused", "empty"],
)
def test_a_piece_that_does_not_fit_starts_the_snapshot_over(bad: FetchSnapshotResponse) -> None:
    m = machine()
    m.on_fetch(OFFER, 0)
    effects = m.on_fetch_snapshot(bad, 10)
    assert effects == []
    assert m.not_before_ms > 10
    assert asked(m).fetch_offset == 0
    m.on_fetch(OFFER, 0)
    assert m.on_fetch_snapshot(piece(WANTED, WHOLE, 0, 10_000), 0) == [Downloaded(WANTED, WHOLE)]


def test_a_leader_that_changes_while_a_snapshot_is_fetched_is_followed() -> None:
    m = machine()
    m.on_fetch(OFFER, 0)
    moved = wire.FetchSnapshotResponsePartition(
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=LeaderIdAndEpoch(leader_id=3001, leader_epoch=2),
    )
    response = FetchSnapshotResponse(
        topics=(wire.FetchSnapshotResponseTopic(partitions=(moved,)),),
        node_endpoints=(wire.FetchSnapshotResponseNodeEndpoint(node_id=3001, host="b", port=2),),
    )
    assert m.on_fetch_snapshot(response, 7) == [LeaderChanged(Leader(3001, 2, "b", 2))]
    assert (m.address, m.not_before_ms) == (B, 7)
    assert asked(m).current_leader_epoch == 2


def test_a_controller_that_names_other_nodes_each_time_fills_no_memory() -> None:
    m = at_offset(3)
    for number in range(3_000):
        m.on_fetch(answer(nodes=((number, "host", 9093),)), 0)
    assert entries(m)["FetchMachine._addresses"] == ADDRESSES_MAX


def test_it_is_current_when_an_answer_leaves_nothing_unapplied_of_what_it_calls_committed() -> None:
    m = at_offset(5)
    assert m.current
    m.on_fetch(answer(hw=5), 1)
    assert m.current
    m.on_fetch(answer(data(5, topic(5)), hw=6), 1)
    assert m.current


@pytest.mark.parametrize(
    ("what", "given"),
    {
        "a new leader, which knows no high watermark": {
            "records": data(5, topic(5), epoch=2),
            "leader": LeaderIdAndEpoch(leader_id=3001, leader_epoch=2),
        },
        "a new leader with a lower one": {"hw": 4, "leader": LeaderIdAndEpoch(leader_id=3001, leader_epoch=2)},
        "a snapshot is needed": {"hw": 5, "snapshot_id": wire.SnapshotId(end_offset=1000, epoch=1)},
        "another history": {
            "hw": 5,
            "leader": LeaderIdAndEpoch(leader_id=3001, leader_epoch=3),
            "diverging_epoch": EpochEndOffset(epoch=1, end_offset=5),
        },
        "an error": {"error": ErrorCode.NOT_LEADER_OR_FOLLOWER},
        "records that are not committed yet, and one less than is applied": {"records": data(5, topic(5)), "hw": 4},
    }.items(),
    ids=str,
)
def test_an_answer_that_does_not_say_what_is_committed_by_now_makes_nobody_current(
    what: str, given: dict[str, Any]
) -> None:
    m = at_offset(5)
    m.on_fetch(answer(**given), 10_000_000)
    assert not m.current, what


# ---------------------------------------------------------------- a picture that is incomplete, and whole again

PUZZLE = b"\x01\x63\x00\x00"
LATE_MS = 2 * READ_AGAIN_MS


def incomplete(*, seed: int = 1) -> FetchMachine:
    """A machine that has read three records of which it does not know the second."""
    m = machine(seed=seed)
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    m.on_fetch(answer(data(0, topic(0)) + encode_batch([PUZZLE], 1, 1, 0) + data(2, topic(2)), hw=3), 0)
    return m


def is_read_again(m: FetchMachine, now_ms: int = LATE_MS) -> bool:
    """Whether all is read from the start at a time at which nothing new has come."""
    m.on_fetch(answer(hw=3), now_ms)
    return asked(m).fetch_offset == 0


def read_again(
    m: FetchMachine, end: int, records: tuple[Record, ...], behind: bytes, hw: int, now_ms: int = LATE_MS
) -> Snapshot:
    """What comes of reading everything again: a snapshot, and a log behind it."""
    offer: dict[str, Any] = {"snapshot_id": wire.SnapshotId(end_offset=end, epoch=1)}
    m.on_fetch(answer(**offer), now_ms)
    m.on_fetch_snapshot(piece(SnapshotId(end, 1), b"anything", 0, 8), now_ms)
    assert m.on_snapshot(Snapshot(SnapshotId(end, 1), records), now_ms) == [], "nothing before all of it is there"
    (effect,) = m.on_fetch(answer(behind, hw=hw), now_ms)
    assert isinstance(effect, Snapshot)
    return effect


def test_a_snapshot_that_stands_for_the_record_makes_it_whole_and_is_of_the_same_history() -> None:
    m = incomplete()
    assert is_read_again(m)
    found = read_again(m, 2, (topic(0), topic(1)), data(2, topic(2)) + data(3, topic(3)), 4)
    assert found == Snapshot(SnapshotId(4, 1), tuple(map(topic, range(4))))
    assert committed(m.on_fetch(answer(data(4, topic(4)), hw=5), LATE_MS)) == [4]
    assert not is_read_again(m, 100 * LATE_MS), "it is whole"


def test_a_history_in_which_what_was_read_is_something_else_has_parted() -> None:
    m = incomplete()
    assert is_read_again(m)
    found = read_again(m, 2, (topic(0),), data(2, topic(7)) + data(3, topic(8)), 4)
    assert found.parted is not None


def test_one_that_has_a_snapshot_for_all_that_was_read_is_not_known_to_be_the_same() -> None:
    m = incomplete()
    assert is_read_again(m)
    found = read_again(m, 9, (topic(0),), b"", 9)
    assert (found.parted, found.dropped) == (None, None)
    assert found.uncompared is not None


def test_while_each_snapshot_has_such_a_record_all_is_read_later_and_later() -> None:
    m, now_ms, read_ms = incomplete(), 0, [0]
    while now_ms < 20 * READ_AGAIN_MAX_MS:
        now_ms += READ_AGAIN_MS // 10
        if is_read_again(m, now_ms):
            read_ms.append(now_ms)
            found = read_again(m, 2, (UnknownRecord(api_key=99, version=0), topic(0)), data(2, topic(2)), 3, now_ms)
            assert found.records[0] == UnknownRecord(api_key=99, version=0)
    waits = [after - before for before, after in itertools.pairwise(read_ms)]
    assert READ_AGAIN_MS <= waits[0] < READ_AGAIN_MAX_MS / 8
    assert waits[:4] == sorted(waits[:4])
    assert READ_AGAIN_MAX_MS <= waits[-1] <= 2 * READ_AGAIN_MAX_MS


def test_records_that_concern_no_partition_cost_no_reading() -> None:
    m = machine()
    m.on_fetch(answer(error=ErrorCode.FENCED_LEADER_EPOCH), 0)
    harmless = encode_batch([bytes((1, ProducerIdsRecord.API_KEY, 9, 0))], 0, 1, 0)
    m.on_fetch(answer(harmless + data(1, topic(1)) + data(2, topic(2)), hw=3), 0)
    assert not is_read_again(m)


def test_the_observers_of_a_cluster_do_not_all_read_at_once() -> None:
    def waited_ms(seed: int) -> int:
        m = incomplete(seed=seed)
        return next(now_ms for now_ms in range(0, LATE_MS, 60_000) if is_read_again(m, now_ms))

    assert len({waited_ms(seed) for seed in range(10)}) > 5


def test_a_snapshot_that_nobody_can_use_leaves_it_incomplete() -> None:
    m = incomplete()
    assert is_read_again(m)
    assert download(m, LATE_MS)
    m.on_unusable("damaged", LATE_MS)
    found = read_again(m, 2, (topic(0),), data(2, topic(2)), 3) if download(m, 2 * LATE_MS) else None
    assert found is not None


def test_another_history_that_a_low_level_could_not_hold_is_handed_over_all_the_same() -> None:
    m = at_offset(2)
    m.on_connected()
    m.on_fetch(answer(data(1, topic(7)), hw=1), 100)
    level = FeatureLevelRecord(name="metadata.version", feature_level=7)
    broker = RegisterBrokerRecord(
        broker_id=1, incarnation_id=Uuid.of(1, 1), broker_epoch=1, end_points=(), features=(), log_dirs=(Uuid.of(6, 1),)
    )
    (effect,) = m.on_fetch(answer(data(0, level, broker, topic(1)), hw=3), 200)
    assert isinstance(effect, Snapshot)
    assert set(map(type, effect.records)) == {FeatureLevelRecord, RegisterBrokerRecord, TopicRecord}
