"""The metadata of one broker: as the whole image has them, whatever the log says."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.ids import MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.batches import RecordBatch
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.image import MetadataImage, Replayer
from kjbod.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
)
from kjbod.metadata.snapshot import SnapshotId
from kjbod.metadata.versions import METADATA_VERSION
from kjbod_guard.ladder import KafkaView
from kjbod_guard.observing import ALWAYS, Held, Observed, Placed
from kjbod_guard.suspects import CONFIG, Neighbour, Suspects, encode

OURS = 1
D1, D2, D3 = (Uuid.of(5, number) for number in (1, 2, 3))
ELSEWHERE = Uuid.of(6, 1)
T, U = Uuid.of(7, 1), Uuid.of(7, 2)


def registered(*log_dirs: Uuid, broker: int = OURS, epoch: int = 10) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker,
        incarnation_id=Uuid.of(1, epoch),
        broker_epoch=epoch,
        end_points=(),
        features=(),
        fenced=False,
        log_dirs=log_dirs,
    )


def changed(
    *log_dirs: Uuid, broker: int = OURS, epoch: int = 10, fenced: int = 0, **more: Any
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker, broker_epoch=epoch, log_dirs=log_dirs, fenced=fenced, **more
    )


def partition(number: int, leader: int, **directories: Uuid) -> PartitionRecord:
    """On brokers ``b1``, ``b2`` and so on, in this order."""
    brokers = tuple(int(name[1:]) for name in directories)
    return PartitionRecord(
        partition_id=number,
        topic_id=T,
        replicas=brokers,
        isr=brokers,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=tuple(directories.values()),
    )


def of(records: Iterable[Record], *, high_watermark: int | None = None) -> Observed:
    observed = Observed(OURS)
    log = tuple(enumerate(records))
    end = len(log)
    observed.committed(Committed(log, end - 1, 1, end if high_watermark is None else high_watermark, ()))
    return observed


TOPIC = TopicRecord(name="t", topic_id=T)


def test_only_replicas_of_the_broker_are_kept_with_directory_and_leadership() -> None:
    observed = of(
        [
            registered(D1, D2),
            TOPIC,
            partition(0, 1, b1=D1, b2=ELSEWHERE),
            partition(1, 2, b2=ELSEWHERE, b1=D1),
            partition(2, 2, b2=ELSEWHERE, b3=ELSEWHERE),
            partition(3, 1, b1=D2),
        ]
    )
    assert len(observed.partitions) == 3
    assert observed.held() == {D1: Held(1, 1), D2: Held(1, 0)}


def test_a_directory_that_leaves_the_registration_was_noticed_and_one_that_comes_back_is_online() -> None:
    observed = of([registered(D1, D2)])
    assert [observed.view(one) for one in (D1, D2, D3)] == [KafkaView.ONLINE, KafkaView.ONLINE, KafkaView.OFFLINE]
    observed.committed(Committed(((1, changed(D1)),), 1, 1, 2, ()))
    assert observed.view(D2) is KafkaView.OFFLINE
    observed.committed(Committed(((2, registered(D1, D2, epoch=20)),), 2, 1, 3, ()))
    assert observed.view(D2) is KafkaView.ONLINE


def test_nothing_is_concluded_before_all_that_was_committed_is_read_or_from_a_registration_without_directories() -> (
    None
):
    assert of([registered(D1)], high_watermark=5).view(D2) is KafkaView.UNKNOWN
    assert of([registered()]).view(D1) is KafkaView.UNKNOWN
    assert of([TOPIC]).view(D1) is KafkaView.UNKNOWN
    assert of([registered(D1), UnregisterBrokerRecord(broker_id=1, broker_epoch=10)]).view(D1) is KafkaView.UNKNOWN
    assert of([registered(D1)]).view(None) is KafkaView.UNKNOWN


def test_a_change_of_somebody_elses_partition_can_make_it_ours() -> None:
    observed = of([registered(D1), TOPIC, partition(0, 2, b2=ELSEWHERE)])
    change = PartitionChangeRecord(partition_id=0, topic_id=T, replicas=(2, 1), directories=(ELSEWHERE, UNASSIGNED))
    lead = PartitionChangeRecord(partition_id=0, topic_id=T, leader=1, directories=(ELSEWHERE, D1))
    observed.committed(Committed(((3, change),), 3, 1, 4, ()))
    assert observed.held() == {UNASSIGNED: Held(0, 1)}
    observed.committed(Committed(((4, lead),), 4, 1, 5, ()))
    assert observed.held() == {D1: Held(1, 0)}


def test_a_transaction_counts_at_its_end_and_one_that_is_aborted_never() -> None:
    begun = [registered(D1), TOPIC, BeginTransactionRecord(name="x"), partition(0, 1, b1=D1)]
    assert of(begun).held() == {}
    assert of([*begun, EndTransactionRecord()]).held() == {D1: Held(1, 0)}
    assert of([*begun, AbortTransactionRecord(reason="y"), partition(1, 2, b2=ELSEWHERE)]).held() == {}


def test_a_controller_that_only_says_that_it_is_there_changes_nothing() -> None:
    observed = of([registered(D1), NoOpRecord()])
    before = observed.revision
    observed.committed(Committed(((2, NoOpRecord()),), 2, 1, 3, ()))
    assert (observed.revision, observed.offset) == (before, 2)
    observed.committed(Committed(((3, TOPIC),), 3, 1, 4, ()))
    assert observed.revision > before


def test_a_snapshot_replaces_everything() -> None:
    observed = of([registered(D1), TOPIC, partition(0, 1, b1=D1)])
    records = (
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=20),
        registered(D2),
        TopicRecord(name="u", topic_id=U),
        PartitionRecord(partition_id=4, topic_id=U, replicas=(1,), isr=(1,), leader=2, directories=(D2,)),
    )
    fresh = observed.snapshot(Snapshot(SnapshotId(100, 3), records, None))
    assert (fresh.offset, fresh.metadata_version, fresh.topics) == (99, 20, {U: "u"})
    assert fresh.held() == {D2: Held(0, 1)}
    fresh.committed(Committed((), 99, 3, 100, ()))
    assert [fresh.view(one) for one in (D1, D2)] == [KafkaView.OFFLINE, KafkaView.ONLINE]


def test_a_partition_that_the_broker_was_taken_out_of_is_followed_until_it_is_back() -> None:
    observed = of([registered(D1), TOPIC, partition(0, 2, b2=ELSEWHERE, b1=D1), partition(1, 2, b2=ELSEWHERE, b1=D1)])
    observed.follow_evicted([(T, 0)])
    left = [PartitionChangeRecord(partition_id=n, topic_id=T, replicas=(2,), isr=(2,)) for n in (0, 1)]
    observed.committed(Committed(tuple(enumerate(left, 4)), 5, 1, 6, ()))
    assert set(observed.others) == {(T, 0)} and not observed.partitions
    back = PartitionChangeRecord(
        partition_id=0, topic_id=T, replicas=(2, 1), adding_replicas=(1,), directories=(ELSEWHERE, D1)
    )
    observed.committed(Committed(((6, back),), 6, 1, 7, ()))
    assert observed.partitions[T, 0].adding == (1,) and not observed.others


# --------------------------------------------------------------------------------- other brokers, and when it happened


def apply(observed: Observed, *records: Record, at_ms: int = 0) -> None:
    """Records that are committed at a moment, after those that are known."""
    first = observed.offset + 1
    log = tuple(enumerate(records, first))
    end = first + len(log)
    observed.committed(Committed(log, end - 1, 1, end, ()), at_ms)


def beside(observed: Observed, broker: int = 2) -> Neighbour:
    return observed.neighbours[broker]


TWO = registered(D2, D3, broker=2)


@pytest.mark.parametrize(
    ("records", "active", "log_dirs"),
    [
        ([], True, {D2, D3}),
        ([changed(broker=2, fenced=1)], False, {D2, D3}),
        ([changed(broker=2, fenced=1), changed(broker=2, fenced=-1)], True, {D2, D3}),
        ([changed(broker=2, fenced=1), changed(D2, broker=2)], False, {D2}),
        ([FenceBrokerRecord(id=2, epoch=10)], False, {D2, D3}),
        ([FenceBrokerRecord(id=2, epoch=10), UnfenceBrokerRecord(id=2, epoch=10)], True, {D2, D3}),
        ([changed(broker=2, in_controlled_shutdown=1)], False, {D2, D3}),
        ([changed(D2, broker=2)], True, {D2}),
        ([changed(D2, broker=2), registered(D2, D3, broker=2, epoch=20)], True, {D2, D3}),
        ([changed(D2, fenced=1)], True, {D2, D3}),  # of this broker
    ],
)
def test_of_another_broker_it_is_known_whether_it_may_lead_and_which_directories_it_has_online(
    records: list[Record], active: bool, log_dirs: set[Uuid]
) -> None:
    now = beside(of([registered(D1), TWO, *records]))
    assert (now.active, set(now.log_dirs)) == (active, log_dirs)


def test_a_broker_that_is_fenced_or_loses_a_directory_is_known_with_the_time() -> None:
    observed = of([registered(D1), TWO, changed(broker=2, fenced=1), changed(broker=2, fenced=-1)])
    apply(observed, changed(broker=2, fenced=1), at_ms=1_000)
    apply(observed, changed(D2, broker=2), at_ms=2_000)
    assert (beside(observed).fenced_ms, beside(observed).lost_ms) == (1_000, 2_000)
    apply(observed, changed(D2, broker=2), changed(broker=2, fenced=1), at_ms=3_000)
    assert (beside(observed).fenced_ms, beside(observed).lost_ms) == (1_000, 2_000), "nothing new"
    apply(observed, changed(broker=2, fenced=-1), changed(broker=2, fenced=1), at_ms=4_000)
    assert beside(observed).fenced_ms == 4_000, "each fence counts anew"
    apply(observed, changed(ELSEWHERE, D3, broker=2), at_ms=5_000)
    assert beside(observed).lost_ms == 5_000, "another directory is no replacement"


def test_a_start_of_a_broker_is_no_trouble_and_ends_none_and_one_without_a_directory_has_lost_it() -> None:
    observed = of([registered(D1), registered(D2, D3, broker=3)])
    apply(observed, TWO, registered(D2, D3, ELSEWHERE, broker=3, epoch=20), at_ms=500)
    assert [(one.fenced_ms, one.lost_ms) for one in observed.neighbours.values()] == [(None, None)] * 2
    apply(observed, registered(D2, D3, broker=3, epoch=21), at_ms=1_000)  # its gate may have cut the third disk
    assert (observed.neighbours[3].fenced_ms, observed.neighbours[3].lost_ms) == (None, 1_000)
    apply(observed, changed(D2, broker=2), changed(broker=2, fenced=1), at_ms=2_000)
    apply(observed, registered(D2, D3, broker=2, epoch=20), at_ms=3_000)
    assert (beside(observed).fenced_ms, beside(observed).lost_ms) == (2_000, 2_000)
    apply(observed, UnregisterBrokerRecord(broker_id=2, broker_epoch=20), at_ms=4_000)
    assert 2 not in observed.neighbours


def test_a_broker_that_a_guard_takes_out_of_a_replica_list_has_lost_a_directory() -> None:
    records = [registered(D1), *(registered(D2, broker=one) for one in (2, 3, 4)), TOPIC]
    observed = of([*records, partition(0, 1, b1=D1, b2=D2, b3=D2), partition(1, 1, b1=D1, b3=D2)])
    evicted = PartitionChangeRecord(partition_id=0, topic_id=T, replicas=(1, 3), isr=(1, 3))
    replaced = PartitionChangeRecord(partition_id=1, topic_id=T, replicas=(1, 4), isr=(1, 4))
    apply(observed, evicted, replaced, at_ms=1_000)
    assert {broker: its.lost_ms for broker, its in observed.neighbours.items()} == {2: 1_000, 3: None, 4: None}


def test_a_reassignment_is_no_loss_of_the_broker_that_it_takes_out() -> None:
    brokers = [registered(D1), *(registered(D2, broker=one) for one in (2, 3, 4))]
    observed = of([*brokers, TOPIC, partition(0, 1, b1=D1, b2=D2, b3=D2)])
    apply(observed, change(replicas=(1, 3, 4, 2), adding_replicas=(4,), removing_replicas=(2,)), at_ms=1_000)
    apply(observed, change(replicas=(1, 3, 4), isr=(1, 3, 4), adding_replicas=(), removing_replicas=()), at_ms=2_000)
    assert beside(observed).lost_ms is None


def test_a_broker_whose_guard_removes_its_record_is_known_with_the_time() -> None:
    told = encode(10, [str(D2)], "h-1")
    observed = of([registered(D1), TWO, config("2", told), config("2", None)])
    assert observed.trusted is None, "nobody knows when that was"
    apply(observed, config("2", told), at_ms=1_000)
    apply(observed, config("2", None), config("1", None), at_ms=2_000)
    apply(observed, config("2", None), at_ms=3_000)
    assert observed.trusted == (2, 2_000)
    fresh = observed.snapshot(Snapshot(SnapshotId(100, 1), (registered(D1), TWO), None), 4_000)
    assert fresh.trusted == (2, 2_000)


# ---------------------------------------------------------------------------------- what happened before the guard came

WALL_MS = 1_700_000_000_000
"""Of the controller."""


def in_batches(
    batches: Iterable[tuple[int, Sequence[Record]]], *, first: int = 0, high_watermark: int | None = None
) -> Committed:
    """Batches with the controller's time of each, in s, and their records; a batch without any has one for KRaft."""
    records: list[tuple[int, Record]] = []
    made = []
    offset = first
    for at_s, some in batches:
        records += enumerate(some, offset)
        count = max(1, len(some))
        at_ms = WALL_MS + 1_000 * at_s
        made.append(
            RecordBatch(
                base_offset=offset,
                last_offset=offset + count - 1,
                leader_epoch=1,
                timestamp_ms=at_ms,
                base_timestamp_ms=at_ms,
                control=not some,
                count=count,
                crc=0,
                position=0,
                raw=b"",
            )
        )
        offset += count
    return Committed(tuple(records), offset - 1, 1, high_watermark or offset, tuple(made))


FENCED, UNFENCED = changed(broker=2, fenced=1), changed(broker=2, fenced=-1)


@pytest.mark.parametrize("pieces", [1, 2])
def test_what_happened_before_the_guard_came_is_as_old_as_the_newest_batch_says(pieces: int) -> None:
    log: list[tuple[int, Sequence[Record]]] = [
        (0, [registered(D1), TWO, registered(D2, D3, broker=3)]),
        (70, [changed(D2, broker=2), FENCED, UNFENCED]),
        (80, []),
        (90, [changed(D2, broker=3)]),
        (100, [UNFENCED]),
    ]
    observed, end = Observed(OURS), in_batches(log).last_offset + 1
    if pieces == 2:
        observed.committed(in_batches(log[:2], high_watermark=end), 4_000)
        assert not observed.complete and observed.known_ms is None
    rest = log[2:] if pieces == 2 else log
    observed.committed(in_batches(rest, first=6 if pieces == 2 else 0), 5_000)
    ages = {broker: (its.fenced_ms, its.lost_ms) for broker, its in observed.neighbours.items()}
    assert ages == {2: (5_000 - 30_000, 5_000 - 30_000), 3: (None, 5_000 - 10_000)}
    assert (observed.complete_ms, observed.known_ms) == (5_000, ALWAYS)
    apply(observed, FENCED, at_ms=6_000)
    assert beside(observed).fenced_ms == 6_000


@pytest.mark.parametrize(
    ("first", "batches", "known_ms"),
    [
        (0, [(0, [TOPIC]), (40, [])], ALWAYS),
        (100, [(0, [TOPIC]), (40, [])], 5_000 - 40_000),
        (100, [(40, [])], 5_000),
        (100, [], 5_000),
    ],
)
def test_a_guard_knows_of_losses_since_the_first_batch_that_it_has_read(
    first: int, batches: list[tuple[int, Sequence[Record]]], known_ms: int
) -> None:
    observed = Observed(OURS)
    if first:
        observed = observed.snapshot(Snapshot(SnapshotId(first, 1), (registered(D1),), None), 4_000)
    observed.committed(in_batches(batches, first=first), 5_000)
    assert observed.complete and observed.known_ms == known_ms


def test_a_snapshot_in_the_middle_of_the_past_puts_no_time_into_the_future() -> None:
    observed = Observed(OURS)
    observed.committed(in_batches([(0, [registered(D1), TWO, FENCED])], high_watermark=100), 4_000)
    records = (registered(D1), replace(TWO, fenced=True))
    observed = observed.snapshot(Snapshot(SnapshotId(100, 1), records, None), 4_500)
    observed.committed(Committed((), 99, 1, 100, ()), 5_000)
    assert (beside(observed).fenced_ms, observed.known_ms) == (5_000, 5_000)


@given(
    st.lists(
        st.tuples(
            st.integers(-50, 50),
            st.lists(st.sampled_from([FENCED, UNFENCED, changed(D2, broker=2)]), max_size=3),
        ),
        max_size=6,
    ),
    st.booleans(),
)
def test_nothing_of_the_past_is_in_the_future_or_forgotten_whatever_the_clocks_of_controllers_say(
    batches: list[tuple[int, Sequence[Record]]], has_snapshot: bool
) -> None:
    """Each controller has its own wall clock, and the log has all of them."""
    observed, now_ms = Observed(OURS), 1_000_000
    begun: list[Record] = [registered(D1), TWO]
    if has_snapshot:
        observed = observed.snapshot(Snapshot(SnapshotId(100, 1), tuple(begun), None), now_ms - 5)
        observed.committed(in_batches(batches, first=100), now_ms)
    else:
        observed.committed(in_batches([(0, begun), *batches]), now_ms)
    records = [record for _, some in batches for record in some]
    its = beside(observed)
    assert (its.fenced_ms is not None) == (FENCED in records)
    assert (its.lost_ms is not None) == any(one not in (FENCED, UNFENCED) for one in records)
    for at_ms in (its.fenced_ms, its.lost_ms, observed.known_ms):
        assert at_ms is None or at_ms == ALWAYS or now_ms - 100_000 <= at_ms <= now_ms


# ----------------------------------------------------------------------------------------------------------- a snapshot


def test_a_snapshot_forgets_no_broker_in_trouble_and_says_nothing_before_all_is_read() -> None:
    observed = of([registered(D1), *(registered(D2, D3, broker=one) for one in (2, 3, 4))])
    apply(observed, changed(broker=2, fenced=1), at_ms=1_000)
    fenced = RegisterBrokerRecord(
        broker_id=2, incarnation_id=Uuid.of(1, 10), broker_epoch=10, end_points=(), features=(), fenced=True
    )
    records = (registered(D1), fenced, registered(D2, broker=3), registered(D2, D3, broker=4))
    fresh = observed.snapshot(Snapshot(SnapshotId(100, 3), records, None), 5_000)
    assert beside(fresh).fenced_ms == 1_000
    assert (beside(fresh, 3).lost_ms, beside(fresh, 4).lost_ms) == (5_000, None)
    assert fresh.view(D1) is KafkaView.UNKNOWN
    # What comes until all is read has happened while we watched, too.
    lost = changed(D2, broker=4)
    fresh.committed(Committed(((100, lost),), 100, 1, 105, ()), 6_000)
    assert beside(fresh, 4).lost_ms == 6_000 and not fresh.complete
    fresh.committed(Committed((), 104, 1, 105, ()), 6_001)
    assert fresh.view(D1) is KafkaView.ONLINE
    assert fresh.known_ms == observed.known_ms is not None


# --------------------------------------------------------------------------------------------- what guards suspect


def config(name: str, value: str | None, *, kind: int = 4, key: str = CONFIG) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


VALUE, OTHER_VALUE = (encode(10, [str(one)], "g-1") for one in (D2, D3))


def record_of(directory: Uuid, value: str, offset: int, seen_ms: int) -> Suspects:
    return Suspects(10, frozenset([directory]), "g-1", offset, seen_ms, value)


def test_the_records_of_guards_are_known_with_their_place_in_the_log_until_they_are_removed() -> None:
    observed = of([registered(D1)])
    apply(observed, config("2", VALUE), config("1", OTHER_VALUE), at_ms=1_000)
    assert observed.suspects == {2: record_of(D2, VALUE, 1, 1_000), 1: record_of(D3, OTHER_VALUE, 2, 1_000)}
    apply(observed, config("2", VALUE), config("1", None), at_ms=2_000)
    assert observed.suspects == {2: record_of(D2, VALUE, 3, 2_000)}, "one that is written again is last"
    apply(observed, config("3", None), at_ms=3_000)
    assert list(observed.suspects) == [2]


@pytest.mark.parametrize(
    "record",
    [config("", VALUE), config("2", VALUE, kind=2), config("2", VALUE, key="other"), config("two", VALUE)],
)
def test_only_the_record_of_one_broker_is_one_of_its_guard(record: ConfigRecord) -> None:
    assert of([registered(D1), record]).suspects == {}


def test_a_record_in_a_transaction_has_its_own_place_in_the_log() -> None:
    observed = of([registered(D1), BeginTransactionRecord(name="x"), config("2", VALUE)])
    assert observed.suspects == {}
    observed.committed(Committed(((3, EndTransactionRecord()),), 3, 1, 4, ()), 1_000)
    assert observed.suspects[2].offset == 2


def test_a_snapshot_keeps_the_place_of_a_record_that_is_known_and_gives_none_to_another() -> None:
    observed = of([registered(D1), config("2", VALUE), config("3", VALUE), config("4", VALUE)])
    records = (registered(D1), config("2", VALUE), config("3", OTHER_VALUE), config("5", VALUE))
    fresh = observed.snapshot(Snapshot(SnapshotId(100, 3), records, None), 5_000)
    assert fresh.suspects == {
        2: record_of(D2, VALUE, 1, 0),
        3: record_of(D3, OTHER_VALUE, -1, 5_000),
        5: record_of(D2, VALUE, -1, 5_000),
    }


# --------------------------------------------------------------------------------------------- replicas of a partition


def test_of_a_partition_the_directory_of_each_replica_is_known() -> None:
    placed = of([registered(D1), TOPIC, partition(0, 2, b2=ELSEWHERE, b1=D1)]).partitions[T, 0]
    assert [placed.directory_of(broker) for broker in (1, 2, 3)] == [D1, ELSEWHERE, None]
    assert Placed(0, D1, True, (1, 2)).directory_of(2) is None, "of a log from before directories were recorded"


def change(number: int = 0, **changes: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=number, topic_id=T, **changes)


OUT = change(isr=(2, 3), leader=2)
"""Broker 1 leaves the in-sync replicas."""


@pytest.mark.parametrize(
    ("changes", "unclean"),
    [
        ([OUT], False),
        ([OUT, change(isr=(3,), leader=3)], False),
        ([OUT, change(leader=-1)], False),
        ([OUT, change(isr=(2,)), change(leader=-1), change(leader=2)], False),
        ([OUT, change(isr=(2,)), change(isr=(3,), leader=3)], True),
        ([OUT, change(isr=(2,)), change(leader=-1), change(isr=(3,), leader=3)], True),
        ([change(isr=(2,), leader=2), change(isr=(3,), leader=3), change(isr=(3, 2))], True),
        ([OUT, change(isr=(2,)), change(isr=(3,), leader=3), change(isr=(3, 1))], False),
        ([change(isr=(1,)), change(isr=(2,), leader=2)], True),
        # The in-sync replicas became empty: the controller keeps who may lead as eligible leader replicas.
        ([OUT, change(isr=(), leader=-1), change(isr=(3,), leader=3)], False),
        # An eligible leader replica has everything that was committed.
        (
            [
                OUT,
                change(isr=(2,), eligible_leader_replicas=(3,)),
                change(isr=(3,), leader=3, eligible_leader_replicas=()),
            ],
            False,
        ),
        ([OUT, change(isr=(2,), eligible_leader_replicas=()), change(isr=(3,), leader=3)], True),
        # Nobody is in sync, and one is eligible.
        (
            [
                change(isr=(), leader=-1, eligible_leader_replicas=(3,)),
                change(isr=(3,), leader=3, eligible_leader_replicas=()),
            ],
            False,
        ),
        (
            [
                change(isr=(), leader=-1, eligible_leader_replicas=(1,)),
                change(isr=(3,), leader=3, eligible_leader_replicas=()),
            ],
            True,
        ),
        # This broker was elected itself: nobody else has what it lacks.
        ([OUT, change(isr=(1,), leader=1)], False),
    ],
)
def test_an_election_of_a_replica_that_was_not_in_sync_is_known_until_this_broker_is_in_sync_again(
    changes: list[Record], unclean: bool
) -> None:
    records = [registered(D1), TOPIC, partition(0, 1, b1=D1, b2=ELSEWHERE, b3=ELSEWHERE)]
    observed = of([*records, *changes])
    now = observed.partitions[T, 0]
    assert now.unclean is unclean
    # It is in no snapshot, and is kept.
    shot = PartitionRecord(
        partition_id=0,
        topic_id=T,
        replicas=now.replicas,
        isr=now.isr,
        leader=now.leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=now.directories,
    )
    fresh = observed.snapshot(Snapshot(SnapshotId(100, 3), (*records[:2], shot), None))
    assert fresh.partitions[T, 0] == now


def test_min_insync_replicas_is_the_topics_the_brokers_the_clusters_or_the_files() -> None:
    def own(kind: int, name: str, value: str | None) -> ConfigRecord:
        return config(name, value, kind=kind, key="min.insync.replicas")

    observed = of([TOPIC])
    assert observed.min_insync_replicas(T, 1) == 1
    for record, expected in (
        (own(4, "", "2"), 2),
        (own(4, "1", "3"), 3),
        (own(2, "t", "4"), 4),
        (own(2, "t", None), 3),
        (own(4, "1", None), 2),
    ):
        observed.committed(Committed(((1, record),), 1, 1, 2, ()))
        assert observed.min_insync_replicas(T, 1) == expected
    observed.committed(Committed(((1, own(2, "t", "4")), (2, RemoveTopicRecord(topic_id=T))), 2, 1, 3, ()))
    assert not observed.min_isr


# -------------------------------------------------------------------------------------- the same as the whole image has

BROKERS = st.lists(st.integers(1, 3), min_size=1, max_size=3, unique=True).map(tuple)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records that fit together: topics, partitions, their changes."""
    records: list[Record] = [registered(D1, D2)]
    shapes: dict[tuple[Uuid, int], tuple[int, ...]] = {}
    alive: set[Uuid] = set()
    for _ in range(draw(st.integers(1, 25))):
        topic = draw(st.sampled_from([T, U]))
        if topic not in alive:
            alive.add(topic)
            records.append(TopicRecord(name=str(topic), topic_id=topic))
        deed = draw(st.sampled_from(["put", "change", "remove"]))
        key = (topic, draw(st.integers(0, 3)))
        replicas = draw(BROKERS)
        directories = tuple(draw(st.sampled_from([D1, D2, ELSEWHERE, MIGRATING])) for _ in replicas)
        if deed == "remove":
            alive.discard(topic)
            shapes = {one: shape for one, shape in shapes.items() if one[0] != topic}
            records.append(RemoveTopicRecord(topic_id=topic))
        elif deed == "put" or key not in shapes:
            if key in shapes:
                continue
            shapes[key] = replicas
            leader = draw(st.sampled_from([-1, *replicas]))
            records.append(
                PartitionRecord(
                    partition_id=key[1],
                    topic_id=topic,
                    replicas=replicas,
                    isr=replicas,
                    leader=leader,
                    leader_epoch=0,
                    partition_epoch=0,
                    directories=directories,
                )
            )
        else:
            records.append(_change(draw, key, replicas, directories, shapes))
    return records


def _change(
    draw: st.DrawFn,
    key: tuple[Uuid, int],
    replicas: Sequence[int],
    directories: Sequence[Uuid],
    shapes: dict[tuple[Uuid, int], tuple[int, ...]],
) -> PartitionChangeRecord:
    moved = draw(st.booleans())
    now = tuple(replicas) if moved else shapes[key]
    shapes[key] = now
    # As controllers have it: whoever leads is one of the replicas, so that who leaves the list leads no more.
    leader = draw(st.sampled_from([-1, *now]))
    return PartitionChangeRecord(
        partition_id=key[1],
        topic_id=key[0],
        replicas=now if moved else None,
        directories=tuple(directories[: len(now)]) + (D1,) * (len(now) - len(directories)) if moved else None,
        leader=leader,
    )


@given(logs())
def test_what_is_kept_is_what_the_whole_image_has_of_this_broker(records: list[Record]) -> None:
    replayer = Replayer(MetadataImage())
    for offset, record in enumerate(records):
        replayer.replay(offset, 1, record)
    expected = {
        (topic.id, number): (found.directory(OURS), found.leader, found.replicas, found.directories, found.isr)
        for topic in replayer.image.topics.values()
        for number, found in topic.partitions.items()
        if OURS in found.replicas
    }
    observed = of(records)
    last = {(one.topic_id, one.partition_id): one for one in records if isinstance(one, PartitionRecord)}
    whole = (*(one for one in records if isinstance(one, TopicRecord | RegisterBrokerRecord)), *last.values())
    reader = Observed(OURS)
    wanted = tuple(record for record in whole if reader.wants(record))
    one, other = (reader.snapshot(Snapshot(SnapshotId(100, 1), some, None)) for some in (whole, wanted))
    assert (one.partitions, one.topics, one.neighbours) == (other.partitions, other.topics, other.neighbours)
    kept = {
        # Who is in sync is not known of what was somebody else's, until that changes.
        key: (one.directory, one.leader, one.replicas, one.directories, one.isr or expected[key][-1])
        for key, one in observed.partitions.items()
    }
    assert kept == expected
    assert all(one.leads == (one.leader == OURS) for one in observed.partitions.values())
    assert observed.topics == {topic.id: topic.name for topic in replayer.image.topics.values()}
    assert observed.registration == replayer.image.brokers[OURS]


def test_what_a_transaction_held_whose_end_was_not_understood_makes_the_picture_incomplete() -> None:
    observed = Observed(1)
    records = (
        BeginTransactionRecord(name="a"),
        UnknownRecord(api_key=77, version=0),
        BeginTransactionRecord(name="b"),
        EndTransactionRecord(),
    )
    for offset, record in enumerate(records):
        observed._replay(offset, record, 0)
    assert observed.incomplete is not None
