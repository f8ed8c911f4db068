"""What an earlier process kept, held against the quorum: the fetch machine alone, without a socket."""

import pytest

from kjbod.metadata.batches import read_batch
from kjbod.metadata.fetching import SET_BACK_AFTER_MS, Confirmed, FetchMachine, Snapshot
from kjbod.metadata.kept import Kept, Tail
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire import messages as wire
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import EpochEndOffset, LeaderIdAndEpoch
from tests.metadata.test_fetching import answer, asked, committed, data, machine, piece, topic

AT_5 = LeaderIdAndEpoch(leader_id=3000, leader_epoch=5)


def tail(offset: int, epoch: int = 5) -> Tail:
    batch = read_batch(data(offset, topic(offset), epoch=epoch))
    assert batch is not None
    return Tail.of(batch)


def kept(committed: Tail | None = None) -> Kept:
    """Ten batches of a record each, the last two of epoch 5; all are known as committed, or those up to a batch."""
    return Kept(tail(9), ((1, 0), (5, 8)), committed or tail(9))


def with_kept(known: Kept | None = None) -> FetchMachine:
    m = machine(kept=known or kept())
    m.on_connected()
    return m


def last_of_kept() -> bytes:
    return data(9, topic(9), epoch=5)


def test_a_restart_asks_for_the_last_batch_that_it_knows_and_not_for_the_ones_before() -> None:
    m = with_kept()
    partition = asked(m)
    assert (partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch) == (9, 5, 5)


def test_what_was_kept_counts_when_the_leader_has_its_last_batch_and_what_follows_comes_behind_it() -> None:
    m = with_kept()
    effects = m.on_fetch(answer(last_of_kept() + data(10, topic(10), epoch=5), hw=11, leader=AT_5), 0)
    assert [type(e).__name__ for e in effects if not type(e).__name__.startswith("Leader")] == [
        "Confirmed",
        "Committed",
    ]
    assert committed(effects) == [10]
    assert (m.applied_offset, asked(m).fetch_offset) == (11, 11)


def test_an_answer_without_records_confirms_nothing() -> None:
    m = with_kept()
    assert not any(isinstance(e, Confirmed) for e in m.on_fetch(answer(leader=AT_5, hw=3), 0))
    assert asked(m).fetch_offset == 9


def test_it_is_confirmed_once_whatever_connections_follow() -> None:
    m = with_kept()
    m.on_fetch(answer(last_of_kept(), hw=10, leader=AT_5), 0)
    m.on_connected()
    assert m.on_fetch(answer(last_of_kept(), hw=10, leader=AT_5), 0) == []


def read_again(m: FetchMachine) -> Snapshot:
    """All of another history, which is shorter."""
    assert asked(m).fetch_offset == 0
    other = b"".join(data(o, topic(100 + o), epoch=5) for o in range(4))
    (snapshot,) = (e for e in m.on_fetch(answer(other, hw=4, leader=AT_5), 0) if not hasattr(e, "leader"))
    assert isinstance(snapshot, Snapshot)
    return snapshot


def test_a_history_that_grew_beyond_what_was_kept_is_read_from_its_start_and_has_parted() -> None:
    m = with_kept()
    effects = m.on_fetch(answer(data(9, topic(77), epoch=5), hw=20, leader=AT_5), 0)
    assert not any(isinstance(e, Confirmed) for e in effects)
    snapshot = read_again(m)
    assert snapshot.parted is not None and "other records at offset 9" in snapshot.parted
    assert len(snapshot.records) == 4


@pytest.mark.parametrize(("epoch", "end"), [(5, 4), (3, 20), (1, 0)])
def test_a_history_that_ends_before_what_was_kept_or_lacks_its_epoch_is_read_from_its_start(
    epoch: int, end: int
) -> None:
    m = with_kept()
    m.on_fetch(answer(leader=AT_5, diverging_epoch=EpochEndOffset(epoch=epoch, end_offset=end)), 0)
    assert read_again(m).parted is not None


def test_where_nobody_knows_its_epoch_for_ten_seconds_the_older_ones_are_followed_and_have_parted() -> None:
    m = with_kept()
    older = LeaderIdAndEpoch(leader_id=3000, leader_epoch=2)
    m.on_fetch(answer(error=ErrorCode.UNKNOWN_LEADER_EPOCH, leader=older), 0)
    assert (m.set_back, m.leader, m.epoch) == (None, None, 5)
    m.on_fetch(answer(error=ErrorCode.UNKNOWN_LEADER_EPOCH, leader=older), SET_BACK_AFTER_MS)
    assert (m.set_back, m.epoch) == (None, 2)
    assert (asked(m).fetch_offset, asked(m).last_fetched_epoch) == (0, 0)
    other = data(0, topic(1), epoch=2)
    snapshot = m.on_fetch(answer(other, hw=1, leader=older), SET_BACK_AFTER_MS)[-1]
    assert isinstance(snapshot, Snapshot)
    assert snapshot.parted is not None and "it knows leader epoch 2, and epoch 5 was followed" in snapshot.parted


def test_a_leader_whose_log_begins_behind_what_was_kept_gives_its_snapshot_instead() -> None:
    m = with_kept()
    m.on_fetch(answer(leader=AT_5, snapshot_id=wire.SnapshotId(end_offset=50, epoch=5)), 0)
    m.on_fetch_snapshot(piece(SnapshotId(50, 5), b"all of it", 0, 9), 0)
    effects = m.on_snapshot(Snapshot(SnapshotId(50, 5), (topic(1),)), 0)
    (snapshot,) = effects
    assert isinstance(snapshot, Snapshot) and snapshot.parted is None
    assert snapshot.uncompared is not None and "a snapshot, of offset 50, instead of it" in snapshot.uncompared
    assert asked(m).fetch_offset == 50
    effects = m.on_fetch(answer(data(50, topic(50), epoch=5), hw=51, leader=AT_5), 0)
    assert committed(effects) == [50] and not any(isinstance(e, Confirmed) for e in effects)


def test_a_snapshot_that_ends_before_what_was_kept_is_of_another_history() -> None:
    m = with_kept()
    m.on_fetch(answer(leader=AT_5, snapshot_id=wire.SnapshotId(end_offset=7, epoch=5)), 0)
    (snapshot,) = m.on_snapshot(Snapshot(SnapshotId(7, 5), (topic(1),)), 0)
    assert isinstance(snapshot, Snapshot) and snapshot.parted is not None


# ------------------------------------------------------------------------------- what a real broker fetched too early


def test_what_is_above_the_high_watermark_is_confirmed_only_when_that_has_passed_it() -> None:
    m = with_kept()
    more = last_of_kept() + data(10, topic(10), epoch=5)
    assert not any(isinstance(e, Confirmed) for e in m.on_fetch(answer(more, hw=9, leader=AT_5), 0))
    m.on_connected()
    assert m.on_fetch(answer(last_of_kept(), hw=-1, leader=AT_5), 0) == []
    assert m.on_fetch(answer(hw=10, leader=AT_5), 0) == [Confirmed()]


AT_6 = LeaderIdAndEpoch(leader_id=3000, leader_epoch=6)


def after_an_election(m: FetchMachine, *, last_of_first: bytes) -> Snapshot:
    """The history of the next leader, which lacks the last batch."""
    m.on_fetch(answer(data(9, topic(99), epoch=6), hw=10, leader=AT_6), 0)
    assert asked(m).fetch_offset == 0
    first = b"".join(data(o, topic(o), epoch=1) for o in range(8))
    whole = first + last_of_first + data(9, topic(99), epoch=6)
    (snapshot,) = (e for e in m.on_fetch(answer(whole, hw=10, leader=AT_6), 0) if not hasattr(e, "leader"))
    assert isinstance(snapshot, Snapshot)
    return snapshot


def test_an_election_that_dropped_what_was_never_committed_is_no_other_history() -> None:
    m = with_kept(kept(committed=tail(8)))
    snapshot = after_an_election(m, last_of_first=data(8, topic(8), epoch=5))
    assert (snapshot.parted, snapshot.uncompared) == (None, None)
    assert snapshot.dropped is not None and "other records at offset 9" in snapshot.dropped


def test_a_history_without_what_was_committed_has_parted_whatever_else_was_kept() -> None:
    m = with_kept(kept(committed=tail(8)))
    snapshot = after_an_election(m, last_of_first=data(8, topic(88), epoch=5))
    assert snapshot.parted is not None and snapshot.dropped is None


def test_where_nothing_is_known_as_committed_a_divergence_is_no_loss_and_proves_nothing() -> None:
    m = with_kept(Kept(tail(9), ((1, 0), (5, 8))))
    snapshot = after_an_election(m, last_of_first=data(8, topic(8), epoch=5))
    assert snapshot.parted is None
    assert snapshot.uncompared is not None and snapshot.dropped is not None
