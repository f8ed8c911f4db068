"""The record of the directories that a guard suspects: its value, its order, and when it is written and removed."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard import suspecting
from kjbod_guard.actions import Done, Outcome
from kjbod_guard.effects import Effect, Suspect, Trust
from kjbod_guard.suspecting import FIRST_MS, LAST_MS, NOTHING_WANTED, SHOWN_MS, Standing, Wanted
from kjbod_guard.suspects import AHEAD_MS, DIRECTORIES_MAX, VALID_MS, Suspects, ahead, current, decode, encode
from tests.guard.test_copies import D1, D2, EPOCH, neighbour, suspected

# ----------------------------------------------------------------------------------------------------------- the value

DIRECTORIES = st.frozensets(st.binary(min_size=16, max_size=16).map(Uuid), max_size=4)


@given(st.integers(-1, 1 << 62), DIRECTORIES, st.text(max_size=20))
def test_a_guard_reads_in_the_log_what_another_guard_has_written(
    epoch: int, directories: frozenset[Uuid], mark: str
) -> None:
    value = encode(epoch, list(map(str, directories)), mark)
    assert decode(value, 7, 1_000) == Suspects(epoch, directories, mark, 7, 1_000, value)


def test_a_record_without_directories_suspects_the_whole_broker() -> None:
    assert suspected().has(D1)
    assert suspected(D1).has(D1) and not suspected(D1).has(D2)


def told(**changes: Any) -> str:
    return json.dumps(json.loads(encode(EPOCH, [str(D1)], "g-1")) | changes)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "true",
        "[]",
        "{}",
        "[" * 100_000,
        "9" * 5_000,
        told(epoch=None),
        told(epoch=True),
        told(epoch="5"),
        told(epoch=5.0),
        told(**{"log.dirs": ["no id"]}),
        told(**{"log.dirs": "no list"}),
        told(**{"log.dirs": None}),
        told(**{"log.dirs": {}}),
        told(**{"log.dirs": [7]}),
    ],
)
def test_a_record_that_cannot_be_read_suspects_all_directories_of_any_registration(value: str) -> None:
    found = decode(value, 7, 1_000)
    assert (found.epoch, found.mark, found.offset, found.value) == (None, "", 7, value)
    assert found.has(D1) and current({2: found}, {2: neighbour(2)}) == {2: found}


def test_no_record_takes_more_memory_than_a_thousand_directories() -> None:
    value = encode(EPOCH, [str(Uuid.of(8, number)) for number in range(DIRECTORIES_MAX + 1)], "g-1")
    assert len(decode(value, 7, 0).directories) == DIRECTORIES_MAX


# ----------------------------------------------------------------------------------------------------------- the order


def test_brokers_that_lost_a_directory_count_but_for_acts_that_only_need_an_order() -> None:
    neighbours = {2: neighbour(2, lost_ms=50_000), 3: neighbour(3)}
    records = {3: suspected(offset=10, seen_ms=50_000)}
    assert ahead(records, neighbours, 20, 60_000) == [2, 3]
    assert ahead(records, neighbours, 20, 60_000, losses=False) == [3]
    assert ahead(records, neighbours, 5, 60_000, losses=False) == []


@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 4]), st.booleans()), max_size=12),
    st.integers(1, 3),
    st.data(),
)
def test_of_any_number_of_guards_no_more_go_on_than_the_budget_has(
    log: list[tuple[int, bool]], most: int, data: st.DataObject
) -> None:
    """Guards write and remove their records, and each has read the log up to some point behind its last one."""
    go_on = []
    neighbours = {broker: neighbour(broker) for broker in (1, 2, 3, 4)}
    for broker in neighbours:
        own = [offset for offset, (writer, _) in enumerate(log) if writer == broker]
        if not own or not log[own[-1]][1]:
            continue
        shown: dict[int, Suspects] = {}
        for offset, (writer, is_written) in enumerate(log[: data.draw(st.integers(own[-1] + 1, len(log)))]):
            shown.pop(writer, None)
            if is_written:
                shown[writer] = suspected(offset=offset)
        others = {one: its for one, its in neighbours.items() if one != broker}
        if len(ahead(shown, others, shown.pop(broker).offset, 0)) < most:
            go_on.append(broker)
    assert len(go_on) <= most
    if any(is_written for _, is_written in log) and len(log) == len({writer for writer, _ in log}):
        assert go_on, "the first one waits for nobody"


def test_others_wait_longer_than_a_guard_may_act_on_its_record() -> None:
    """A guard asks, and another one sees the record at once: it goes on only when the first one must not act."""
    asked_ms, seen_ms = 1_000, 1_000
    own = suspecting.came_of(asked(Standing(run="g"), WANTED, asked_ms), DONE, seen_ms)
    record = shown(own, offset=10, seen_ms=seen_ms)
    for now_ms in range(seen_ms, seen_ms + 2 * AHEAD_MS, 1_000):
        acts = suspecting.offset_of(own, record, EPOCH, [D1], now_ms) is not None
        waits = ahead({2: record}, {2: neighbour(2)}, 20, now_ms) == [2]
        assert waits or not acts
    assert not waits, "a guard that is gone holds up nobody for ever"


# ------------------------------------------------------------------------------------ when it is written and removed

DONE = Done(outcome=Outcome.DONE)
FAILED = Done(outcome=Outcome.FAILED, reason="no connection")
WANTED = Wanted(epoch=EPOCH, directories=frozenset([D1]))
WHOLE = Wanted(epoch=EPOCH, whole=True)
NEW = Standing(run="g")


def asked(now: Standing, wanted: Wanted, now_ms: int, record: Suspects | None = None) -> Standing:
    move = suspecting.advance(now, wanted, record, now_ms)
    assert move.effect is not None
    return move.standing


def shown(now: Standing, *, offset: int = 10, seen_ms: int = 0) -> Suspects:
    """The record as the metadata show it when the controllers have taken the request."""
    effect = now.under_way or Suspect(EPOCH, (str(D1),), now.mark)
    assert isinstance(effect, Suspect)
    return decode(encode(effect.epoch, effect.directory_ids, effect.mark), offset, seen_ms)


ASKED = asked(NEW, WANTED, 1_000)
WRITTEN = suspecting.came_of(ASKED, DONE, 1_010)
RECORD = shown(ASKED)
TRUSTED = suspecting.came_of(asked(WRITTEN, NOTHING_WANTED, 1_000, RECORD), DONE, 1_010)
"""The record is removed, or is about to be."""
OTHER_RUN = replace(RECORD, mark="before-3")


@pytest.mark.parametrize(
    ("now", "wanted", "record", "now_ms", "effect"),
    [
        (NEW, NOTHING_WANTED, None, 1_000, None),
        (NEW, WANTED, None, 1_000, Suspect(EPOCH, (str(D1),), "g-1")),
        (NEW, WHOLE, None, 1_000, Suspect(EPOCH, (), "g-1")),
        (NEW, replace(WHOLE, directories=frozenset([D1])), None, 1_000, Suspect(EPOCH, (), "g-1")),
        (NEW, replace(WANTED, epoch=None), None, 1_000, None),
        # One that an earlier run of this guard left behind.
        (NEW, NOTHING_WANTED, OTHER_RUN, 1_000, Trust()),
        (NEW, WANTED, OTHER_RUN, 1_000, Suspect(EPOCH, (str(D1),), "g-1")),
        # It is there, and as it should be.
        (WRITTEN, WANTED, RECORD, 2_000, None),
        (WRITTEN, WANTED, RECORD, 1_000 + 10 * VALID_MS, None),
        (WRITTEN, replace(WANTED, renew=True), RECORD, 1_000 + VALID_MS, None),
        # It is too old for the act that is due, or came with a snapshot, and has no place in the order.
        (WRITTEN, replace(WANTED, renew=True), RECORD, 1_001 + VALID_MS, Suspect(EPOCH, (str(D1),), "g-2")),
        (WRITTEN, replace(WANTED, renew=True), replace(RECORD, offset=-1), 5_000, Suspect(EPOCH, (str(D1),), "g-2")),
        (WRITTEN, WANTED, replace(RECORD, offset=-1), 5_000, None),
        # Other directories, all of them, another registration.
        (
            WRITTEN,
            replace(WANTED, directories=frozenset([D1, D2])),
            RECORD,
            2_000,
            Suspect(EPOCH, (str(D1), str(D2)), "g-2"),
        ),
        (WRITTEN, WHOLE, RECORD, 2_000, Suspect(EPOCH, (), "g-2")),
        (WRITTEN, replace(WANTED, epoch=EPOCH + 1), RECORD, 2_000, Suspect(EPOCH + 1, (str(D1),), "g-2")),
        # Somebody has changed it, or removed it.
        (WRITTEN, WANTED, decode("no record", 30, 0), 1_000 + SHOWN_MS, Suspect(EPOCH, (str(D1),), "g-2")),
        (WRITTEN, WANTED, None, 1_000 + SHOWN_MS, Suspect(EPOCH, (str(D1),), "g-2")),
        # Nothing is suspected any more.
        (WRITTEN, NOTHING_WANTED, RECORD, 2_000, Trust()),
        (WRITTEN, NOTHING_WANTED, None, 2_000, None),
        # One that was removed is written again at once.
        (TRUSTED, WANTED, None, 1_020, Suspect(EPOCH, (str(D1),), "g-2")),
    ],
)
def test_a_record_is_written_removed_or_left_as_it_is(
    now: Standing, wanted: Wanted, record: Suspects | None, now_ms: int, effect: Effect | None
) -> None:
    assert suspecting.advance(now, wanted, record, now_ms).effect == effect


@pytest.mark.parametrize(
    ("now", "wanted", "record"),
    [
        (WRITTEN, WANTED, None),
        (WRITTEN, WANTED, OTHER_RUN),
        (TRUSTED, NOTHING_WANTED, RECORD),
        (TRUSTED, WANTED, RECORD),
    ],
)
def test_the_metadata_have_a_while_to_show_what_a_controller_has_answered(
    now: Standing, wanted: Wanted, record: Suspects | None
) -> None:
    waits = suspecting.advance(now, wanted, record, 1_500)
    assert (waits.effect, waits.again_ms) == (None, SHOWN_MS - 500)
    assert suspecting.advance(now, wanted, record, 1_000 + SHOWN_MS).effect is not None


def test_one_request_at_a_time_is_under_way() -> None:
    for wanted in (WANTED, WHOLE, NOTHING_WANTED):
        assert suspecting.advance(ASKED, wanted, RECORD, 50_000).effect is None


def test_a_request_that_fails_is_sent_again_after_a_wait_that_doubles_up_to_a_minute() -> None:
    now, now_ms, waits = NEW, 1_000, []
    for _ in range(9):
        now = suspecting.came_of(asked(now, WANTED, now_ms), FAILED, now_ms)
        assert now.reason == "no connection"
        wait_ms = suspecting.advance(now, WANTED, None, now_ms).again_ms
        assert wait_ms is not None
        assert suspecting.advance(now, WANTED, None, now_ms + wait_ms - 1).effect is None
        waits.append(wait_ms)
        now_ms += wait_ms
    assert waits == [FIRST_MS << number for number in range(6)] + [LAST_MS] * 3
    now = suspecting.came_of(asked(now, WANTED, now_ms), DONE, now_ms)
    assert now.reason == "" and suspecting.advance(now, WANTED, shown(now), now_ms).effect is None
    now = suspecting.came_of(asked(now, WHOLE, now_ms, shown(now)), FAILED, now_ms)
    assert suspecting.advance(now, WHOLE, None, now_ms).again_ms == FIRST_MS, "from the start, after one that worked"


@pytest.mark.parametrize("done", [DONE, FAILED, Done(outcome=Outcome.PENDING, reason="no answer")])
def test_a_record_counts_when_the_metadata_show_it_whatever_the_answer_was(done: Done) -> None:
    now = suspecting.came_of(ASKED, done, 1_010)
    assert suspecting.offset_of(now, None, EPOCH, [D1], 2_000) is None
    assert suspecting.offset_of(now, RECORD, EPOCH, [D1], 2_000) == 10
    assert suspecting.advance(now, WANTED, RECORD, 2_000).effect is None


@pytest.mark.parametrize(
    ("now", "record", "epoch", "directories", "now_ms", "offset"),
    [
        (WRITTEN, RECORD, EPOCH, [D1], 1_000 + VALID_MS, 10),
        (WRITTEN, RECORD, EPOCH, [D1], 1_001 + VALID_MS, None),
        (WRITTEN, RECORD, EPOCH, [], 2_000, 10),
        (WRITTEN, RECORD, EPOCH, [D1, D2], 2_000, None),
        (WRITTEN, RECORD, EPOCH, None, 2_000, None),
        (WRITTEN, replace(RECORD, directories=frozenset()), EPOCH, None, 2_000, 10),
        (WRITTEN, replace(RECORD, directories=frozenset()), EPOCH, [D1, D2], 2_000, 10),
        (WRITTEN, RECORD, EPOCH + 1, [D1], 2_000, None),
        (WRITTEN, RECORD, None, [D1], 2_000, None),
        (WRITTEN, replace(RECORD, offset=-1), EPOCH, [D1], 2_000, None),
        (WRITTEN, OTHER_RUN, EPOCH, [D1], 2_000, None),
        (NEW, replace(RECORD, mark=""), EPOCH, [D1], 2_000, None),
        (NEW, RECORD, EPOCH, [D1], 2_000, None),
        (asked(WRITTEN, NOTHING_WANTED, 1_500, RECORD), RECORD, EPOCH, [D1], 2_000, None),
        (asked(WRITTEN, WHOLE, 1_500, RECORD), RECORD, EPOCH, [D1], 2_000, None),
    ],
)
def test_a_guard_acts_only_on_its_own_last_record_for_what_that_names_and_for_a_while(
    now: Standing,
    record: Suspects,
    epoch: int | None,
    directories: list[Uuid] | None,
    now_ms: int,
    offset: int | None,
) -> None:
    assert suspecting.offset_of(now, record, epoch, directories, now_ms) == offset


ANSWERS = st.sampled_from([(True, DONE), (True, FAILED), (False, FAILED), (False, DONE)])


@given(
    st.lists(st.tuples(st.sampled_from([WANTED, WHOLE, NOTHING_WANTED]), st.integers(0, 5_000), ANSWERS), max_size=12)
)
def test_after_any_story_the_record_comes_to_be_as_it_should_when_the_controllers_answer(
    story: list[tuple[Wanted, int, tuple[bool, Done]]],
) -> None:
    """Requests are taken or not, whatever is answered; at last all of them are."""
    now, record, now_ms = NEW, None, 0
    last = story[-1][0] if story else WANTED
    for number, (wanted, wait_ms, (is_taken, done)) in enumerate([*story, *[(last, 70_000, (True, DONE))] * 3]):
        now_ms += wait_ms
        move = suspecting.advance(now, wanted, record, now_ms)
        now = move.standing
        if move.effect is None:
            continue
        if is_taken:
            record = shown(now, offset=number) if isinstance(move.effect, Suspect) else None
        now = suspecting.came_of(now, done, now_ms)
    directories = frozenset() if last.whole else last.directories
    assert (record is None) == (last == NOTHING_WANTED)
    assert record is None or (record.epoch, record.directories, record.mark) == (EPOCH, directories, now.mark)
