"""A guard beside a Kafka that is newer than kjbod: never blind to what it does not know, and no act by it."""

import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.clock import SystemClock
from kjbod.metadata.batches import iter_batches
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.image import ReplayError
from kjbod.metadata.records import (
    TRANSACTION_MARKERS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    Record,
    UnknownRecord,
    encode_record,
)
from kjbod.metadata.snapshot import SnapshotId, decode_checkpoint
from kjbod.metadata.versions import UNDERSTOOD
from kjbod.runtime.control_socket import ControlError
from kjbod_guard.answers import Answers
from kjbod_guard.change_reporter import ChangeReporter
from kjbod_guard.finding import NOT_LOOKED
from kjbod_guard.following import Following
from kjbod_guard.journal import Demoted, Evicted
from kjbod_guard.observing import MIN_ISR, Observed
from kjbod_guard.suspects import CONFIG
from kjbod_host.health.state import Cause, Health
from tests.guard.test_action_runner import PATH
from tests.guard.test_answers import NOW
from tests.guard.test_copies import D1, T, placed
from tests.guard.test_core import ACTS, ONLINE, WELL_STANDING, Moment
from tests.metadata.newer_logs import LEVEL, STATE, NewerLog, changes, value_of
from tests.metadata.test_newer import expects_whole

SEEDS = st.integers(0, 2**32)
OTHERS = [value_of(key, 0) for key in (30, 31, 99)] + [value_of(0, 5, b"\1"), value_of(3, 3), value_of(5, 4, b"\1")]
"""Records that make any picture incomplete."""
TRANSACTIONS = [bytes([key]) for key in TRANSACTION_MARKERS]
SPARED = [value_of(29, 0), value_of(18, 1), value_of(15, 2), value_of(27, 1), value_of(21, 1)]


def committed(log: NewerLog, seed: int, base: int = 0) -> Committed:
    """A whole log as an observer hands it over."""
    batches = [batch for raw in log.batches(seed) for batch in iter_batches(raw)]
    records = tuple(record for batch in batches for record in batch.observed_records())
    end = batches[-1].last_offset
    return Committed(tuple((base + at, one) for at, one in records), base + end, 1, base + end + 1, ())


def one(value: bytes) -> NewerLog:
    return NewerLog((), (value,))


# ---------------------------------------------------------------- what is known


@given(SEEDS)
def test_whatever_a_log_has_it_is_followed_and_what_is_not_known_is(seed: int) -> None:
    made = NewerLog.of(seed)
    # Without transactions: what is in one that is not over does not count yet.
    log = NewerLog(made.snapshot, tuple(value for value in made.log if value[1:2] not in TRANSACTIONS))
    observed = Observed(1)
    try:
        observed.committed(committed(log, seed))
    except ReplayError:
        assert observed.incomplete is None, "a known record that contradicts known ones"
        return
    assert observed.complete
    assert observed.incomplete is not None or expects_whole(log)


@given(SEEDS)
def test_whatever_a_snapshot_has_it_takes_the_place_of_what_was_known(seed: int) -> None:
    log = NewerLog((*NewerLog.of(seed).snapshot,), ())
    before = Observed(1, complete=True)
    before.newer.note(UnknownRecord(api_key=30, version=0))
    checkpoint = decode_checkpoint(log.checkpoint(), "s", observed=True)
    wanted = tuple(record for record in checkpoint.records if before.wants(record))
    try:
        found = before.snapshot(Snapshot(SnapshotId(50, 1), wanted))
    except ReplayError:
        return
    assert (found.incomplete is None) is expects_whole(log)


def test_a_snapshot_without_such_a_record_makes_the_picture_whole() -> None:
    observed = Observed(1)
    observed.committed(committed(NewerLog(tuple(map(encode_record, STATE)), (OTHERS[0],)), 1))
    assert observed.incomplete is not None
    assert observed.snapshot(Snapshot(SnapshotId(50, 1), STATE)).incomplete is None


@pytest.mark.parametrize("level", [UNDERSTOOD + 1, UNDERSTOOD + 2, 77, 99, 32767])
def test_a_level_that_is_not_known_is_said_and_the_picture_is_whole(level: int) -> None:
    observed = Observed(1)
    values = [*STATE, FeatureLevelRecord(name=LEVEL, feature_level=level), *changes()]
    observed.committed(committed(NewerLog(tuple(map(encode_record, values)), ()), 1))
    assert observed.unknown == (f"metadata.version {level} is newer than kjbod knows: upgrade kjbod",)
    assert observed.incomplete is None


@pytest.mark.parametrize("text", ["9" * 5_000, "9" * 11, "", " ", "-1", "two", "1e3"])
def test_a_number_that_is_none_breaks_nothing(text: str) -> None:
    observed = Observed(1)
    records: list[Record] = [
        ConfigRecord(resource_type=kind, resource_name=name, name=key, value=text)
        for kind, name, key in ((2, "t", MIN_ISR), (4, text, MIN_ISR), (4, text, CONFIG), (4, "1", MIN_ISR))
    ]
    observed.committed(committed(NewerLog(tuple(map(encode_record, (*STATE, *records))), ()), 1))
    assert (observed.min_isr, observed.min_isr_of_brokers, observed.suspects) == ({}, {}, {})


# ---------------------------------------------------------------- what is done


@pytest.mark.parametrize("value", OTHERS, ids=bytes.hex)
@pytest.mark.parametrize("act", ACTS)
def test_no_act_begins_on_a_picture_that_is_incomplete(act: str, value: bytes) -> None:
    make, effect = ACTS[act]
    moment = make()
    assert effect in moment.effects()
    moment = make()
    moment.observed.committed(committed(one(value), 1, base=100))
    assert moment.effects() == []


@pytest.mark.parametrize("value", SPARED, ids=bytes.hex)
@pytest.mark.parametrize("act", ACTS)
def test_every_act_begins_where_only_records_that_concern_no_partition_are_not_known(act: str, value: bytes) -> None:
    make, effect = ACTS[act]
    moment = make()
    moment.observed.committed(committed(one(value), 1, base=100))
    assert effect in moment.effects()


@given(st.sampled_from(list(ACTS)), SEEDS)
def test_whatever_a_log_brings_an_incomplete_picture_is_no_ground(act: str, seed: int) -> None:
    make, _ = ACTS[act]
    moment = make()
    rng = random.Random(seed)
    log = NewerLog.of(seed)
    kept = tuple(value for value in (*log.snapshot, *log.log) if rng.random() < 0.4) or (OTHERS[0],)
    try:
        moment.observed.committed(committed(NewerLog((), kept), seed, base=100))
    except ReplayError:
        return
    found = moment.effects()
    assert moment.observed.incomplete is None or found == []


@pytest.mark.parametrize("end", [EndTransactionRecord(), AbortTransactionRecord()])
@pytest.mark.parametrize("value", [value_of(30, 0), value_of(99, 3), value_of(2**31, 0), b"", b"\xff"], ids=bytes.hex)
def test_a_record_that_may_have_ended_a_transaction_makes_the_picture_incomplete_until_it_ends(
    value: bytes, end: Record
) -> None:
    observed = Observed(1)
    begun = (*map(encode_record, STATE), encode_record(BeginTransactionRecord()), value)
    observed.committed(committed(NewerLog((), begun), 1))
    assert observed.incomplete is not None
    observed.committed(committed(one(encode_record(end)), 1, base=len(begun)))
    assert (observed.incomplete is None) is isinstance(end, AbortTransactionRecord)


@pytest.mark.parametrize("value", OTHERS, ids=bytes.hex)
def test_a_process_that_has_ended_is_not_fenced_by_a_picture_that_is_incomplete(value: bytes) -> None:
    def crashed() -> Moment:
        return Moment(WELL_STANDING, placed(1, 2, 3), disk=ONLINE, pid=None, ended_pid=7, unbound="no broker runs")

    assert [effect.name for effect in crashed().effects()] == ["fence"]
    moment = crashed()
    moment.observed.committed(committed(one(value), 1, base=100))
    assert moment.effects() == []
    moment.observed.newer.counts.clear()
    assert moment.effects() == [], "its session has timed out by then"


RESTORABLE: Mapping[str, dict[str, Any]] = {
    "restore": {"evicted": {(T, 0): Evicted(str(D1), "t", (1, 2, 3), 0)}},
    "promote": {"demoted": {(T, 0): Demoted(str(D1), "t", (1, 2, 3), (2, 3, 1))}},
}


@pytest.mark.parametrize("means", RESTORABLE)
def test_what_was_moved_off_waits_until_the_picture_is_whole(means: str) -> None:
    def moment() -> Moment:
        found = Moment(WELL_STANDING, placed(2, 3, 1, isr=(1, 2, 3)), disk=ONLINE, **RESTORABLE[means])
        if means == "restore":
            found.observed.others[T, 0] = placed(2, 3)
            found.observed.partitions.clear()
        return found

    assert [one.name for one in moment().effects()] == [means]
    assert means == "promote" or moment().core.to_restore(moment().now)
    unsure = moment()
    task = unsure.tasks()[0]
    unsure.observed.newer.note(UnknownRecord(api_key=30, version=0))
    assert unsure.effects() == []
    assert unsure.core.to_restore(unsure.now) == {}
    assert not unsure.core.to_send(task, unsure.now)
    assert not unsure.core.to_order(task.effect, unsure.now)


async def no_usage() -> None:
    return None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"unbound": "no process holds the log directories", "pid": None}, "start the broker first"),
        ({"unbound": NOT_LOOKED, "pid": None}, "try again when it serves"),
        ({"unbound": "broker 1 is not registered in the cluster", "pid": 7}, "try again when it serves"),
        ({"unbound": None, "pid": 7, "fenced": True}, "it is fenced: try again when it serves"),
        ({"unbound": None, "pid": 7, "fenced": None}, "its registration is not known: try again when it serves"),
    ],
)
async def test_a_person_is_told_to_start_a_broker_only_where_none_runs(changes: dict[str, Any], told: str) -> None:
    answers = Answers(lambda: replace(NOW, **changes), no_usage, acting=SimpleNamespace)  # type: ignore[arg-type]
    with pytest.raises(ControlError, match=told):
        await answers.restore({})


async def test_a_person_is_told_why_nothing_is_restored() -> None:
    now = replace(NOW, fenced=False, unbound=None, incomplete="type 30 version 0: upgrade kjbod")
    answers = Answers(lambda: now, no_usage, acting=SimpleNamespace)  # type: ignore[arg-type]
    with pytest.raises(ControlError, match="not restored: type 30 version 0: upgrade kjbod"):
        await answers.restore({})


# ---------------------------------------------------------------- what is said


def test_a_disk_that_fails_meanwhile_is_told_with_the_reason_why_nothing_is_done() -> None:
    moment = Moment(WELL_STANDING, placed(1, 2, 3))
    moment.observed.newer.note(UnknownRecord(api_key=30, version=0))
    (case, would) = moment.core.look(moment.now).decided[PATH]
    assert would.reason == moment.observed.incomplete
    assert case.cause is Cause.HUNG and case.health is Health.FAILED


class Lines:
    """An account that keeps what it is told of the metadata."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def unknown(self, lines: tuple[str, ...]) -> None:
        self.told.append(lines)


def test_it_is_told_once_and_again_when_it_is_another_thing_or_over() -> None:
    account = Lines()
    telling = ChangeReporter(account, None, None, SystemClock())  # type: ignore[arg-type]
    moment = Moment(WELL_STANDING, placed(1, 2, 3))
    for _ in range(3):
        telling._tell_unknown(moment.now)
    assert account.told == []
    for _ in range(3):
        moment.observed.newer.note(UnknownRecord(api_key=30, version=0))
        telling._tell_unknown(moment.now)
    moment.observed.metadata_version = 99
    for _ in range(3):
        telling._tell_unknown(moment.now)
    moment.observed.metadata_version = UNDERSTOOD
    moment.observed.newer.counts.clear()
    telling._tell_unknown(moment.now)
    assert [len(lines) for lines in account.told] == [1, 2, 0]


def test_a_guard_whose_picture_is_incomplete_is_not_blind() -> None:
    following = Following.__new__(Following)
    following.observed = Observed(1, complete=True)
    following.observed.newer.note(UnknownRecord(api_key=30, version=0))
    following._follower = SimpleNamespace(problem=None, current_ms=7)  # type: ignore[assignment]
    assert following.blind is None
    assert following.is_followed
    assert following.answered_ms == 7
