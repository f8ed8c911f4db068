"""Partitions that the controllers refused: when each is asked for again, and when it is left to a person."""

from collections.abc import Iterable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod_guard.observing import Key
from kjbod_guard.retries import (
    FIRST_MS,
    FORGET_MS,
    GIVE_UP_MS,
    LAST_MS,
    Refused,
    Retries,
    after,
    due,
    kept,
    next_ms,
)
from tests.depth import examples

A, B, C = ((Uuid.of(7, 1), number) for number in range(3))
CORDONED = "broker 2 is cordoned"
MEANS = ("evict", "restore", "demote", "promote")
NONE: Retries = {}
BROKERS = (1, 2, 3)
LATE_MS = 7_000


def refused(*keys: Key, means: str = "evict", now_ms: int = 0) -> Retries:
    return asked(NONE, means, keys, dict.fromkeys(keys, CORDONED), now_ms)


def asked(before: Retries, means: str, keys: Iterable[Key], answers: dict[Key, str], now_ms: int) -> Retries:
    """The retries after a request, of which no broker is barred."""
    return after(before, means, dict.fromkeys(keys, BROKERS), answers, now_ms, nobody)


def nobody(brokers: tuple[int, ...]) -> frozenset[int]:
    return frozenset()


@pytest.mark.parametrize("means", ["evict", "demote"])
def test_a_change_is_asked_for_again_later_and_later_and_is_left_after_ten_minutes(means: str) -> None:
    now_ms, retries, waits_s = 5_000_000, refused(A, means=means, now_ms=5_000_000), []
    while (wait_ms := next_ms(retries, now_ms)) is not None:
        assert due(retries, means, [A], now_ms + wait_ms - 1) == []
        now_ms += wait_ms
        assert due(retries, means, [A], now_ms) == [A]
        waits_s.append(wait_ms // 1_000)
        retries = asked(retries, means, [A], {A: CORDONED}, now_ms)
    assert waits_s == [1, 2, 4, 8, 16, 32, *[60] * 8]
    assert retries[A].is_left and retries[A].reason == CORDONED
    assert due(retries, means, [A], now_ms + FORGET_MS) == []


@pytest.mark.parametrize("means", ["restore", "promote"])
def test_a_list_is_put_back_however_often_the_controllers_refuse_it(means: str) -> None:
    now_ms, retries, waits_s = 0, refused(A, means=means), []
    for _ in range(2_000):  # more than a day
        wait_ms = next_ms(retries, now_ms)
        assert wait_ms is not None
        now_ms += wait_ms
        assert due(retries, means, [A], now_ms - 1) == [] and due(retries, means, [A], now_ms) == [A]
        waits_s.append(wait_ms // 1_000)
        retries = asked(retries, means, [A], {A: CORDONED}, now_ms)
        assert not retries[A].is_left and retries[A].since_ms == 0
    assert waits_s[:8] == [1, 2, 4, 8, 16, 32, 60, 60] and set(waits_s[8:]) == {60}


@pytest.mark.parametrize("means", MEANS)
@pytest.mark.parametrize(("before", "now"), [((2,), ()), ((), (2,)), ((2,), (3,)), ((2, 3), (3,)), ((1,), ())])
def test_a_partition_is_due_at_once_when_other_brokers_of_its_list_are_barred(
    means: str, before: tuple[int, ...], now: tuple[int, ...]
) -> None:
    retries = after(NONE, means, {A: BROKERS}, {A: CORDONED}, 0, lambda _: frozenset(before))
    wanted = {means: [A]}
    same = kept(retries, wanted, 1, lambda _: frozenset(before))
    assert due(same, means, [A], 1) == [] and next_ms(same, 1) == FIRST_MS - 1
    assert due(kept(retries, wanted, 1, lambda _: frozenset(now)), means, [A], 1) == [A]


@pytest.mark.parametrize(
    ("means", "is_anew"), [("evict", True), ("demote", True), ("restore", False), ("promote", False)]
)
def test_an_eviction_that_is_refused_long_after_the_last_one_is_another_incident(means: str, is_anew: bool) -> None:
    """A list that is to be put back is asked for all the time."""
    left = {A: Refused(means, CORDONED, 0, GIVE_UP_MS, LAST_MS)}
    later_ms = GIVE_UP_MS + FORGET_MS + 1
    assert due(left, means, [A], later_ms - 1) == ([] if is_anew else [A])
    assert due(left, means, [A], later_ms) == [A]
    found = asked(left, means, [A], {A: CORDONED}, later_ms)
    assert not found[A].is_left and found[A].wait_ms == (FIRST_MS if is_anew else LAST_MS)


def test_the_last_reason_of_a_controller_is_told() -> None:
    found = asked(refused(A), "evict", [A], {A: "it is being reassigned"}, FIRST_MS)
    assert found == {A: Refused("evict", "it is being reassigned", 0, FIRST_MS + 2_000, 2_000, BROKERS)}


def test_a_partition_that_was_refused_holds_up_no_other() -> None:
    found = refused(B)
    assert due(found, "evict", [A, B, C], 0) == [A, C]
    assert due(found, "evict", [A, B, C], FIRST_MS) == [A, B, C]


def test_a_partition_that_the_controllers_took_is_forgotten_and_one_that_was_not_asked_for_is_not() -> None:
    found = asked(refused(A, B, C), "evict", [A, B], {B: CORDONED}, FIRST_MS)
    assert set(found) == {B, C}
    assert (found[B].wait_ms, found[C].wait_ms) == (2_000, FIRST_MS)


@pytest.mark.parametrize("means", MEANS)
def test_what_was_refused_for_one_request_is_due_at_once_for_another(means: str) -> None:
    found = refused(A)
    assert due(found, means, [A], 0) == ([] if means == "evict" else [A])
    anew = asked(asked(found, "evict", [A], {A: CORDONED}, FIRST_MS), means, [A], {A: "no leader"}, 5_000)
    assert anew[A].wait_ms == (4_000 if means == "evict" else FIRST_MS)
    assert anew[A].since_ms == (0 if means == "evict" else 5_000)


@pytest.mark.parametrize(
    ("retries", "now_ms", "wait_ms"),
    [
        (NONE, 0, None),
        (refused(A, B), 0, FIRST_MS),
        (refused(A, B), 999, 1),
        (refused(A, B), FIRST_MS, None),  # both are due
        ({**refused(A), **refused(B, now_ms=400)}, FIRST_MS, 400),
        ({A: Refused("evict", CORDONED, 0, GIVE_UP_MS, LAST_MS)}, 0, None),
        ({A: Refused("evict", CORDONED, 0, GIVE_UP_MS - 1, LAST_MS)}, 0, GIVE_UP_MS - 1),
    ],
)
def test_the_guard_looks_again_when_the_next_partition_is_due(
    retries: Retries, now_ms: int, wait_ms: int | None
) -> None:
    assert next_ms(retries, now_ms) == wait_ms


def test_partitions_that_are_not_there_any_more_are_forgotten() -> None:
    assert set(kept(refused(A, B), {"evict": [B, C], "restore": [A]}, 0, nobody)) == {B}


def test_what_was_refused_in_an_incident_that_is_over_is_forgotten() -> None:
    wanted = {"evict": [A], "restore": [A]}
    assert kept(refused(A), wanted, FIRST_MS + FORGET_MS, nobody) and not kept(
        refused(A), wanted, FIRST_MS + FORGET_MS + 1, nobody
    )
    restore = {A: Refused("restore", CORDONED, 0, FIRST_MS, FIRST_MS)}
    assert kept(restore, wanted, 100 * FORGET_MS, nobody), "a list is to be put back however long that takes"


@given(st.randoms(use_true_random=True))
@settings(max_examples=examples(100))
def test_no_partition_is_asked_for_before_it_is_due_and_each_is_until_it_is_left(chance: Random) -> None:
    """A guard that asks for whatever is due as soon as it is; controllers that take some."""
    now_ms, retries, wanted = 0, NONE, {A, B, C}
    times: dict[Key, list[int]] = {A: [], B: [], C: []}
    wait_ms: int | None = 0
    while wait_ms is not None:
        found = due(retries, "evict", sorted(wanted), now_ms)
        answers = {key: CORDONED for key in found if chance.random() < 0.9}
        retries = asked(retries, "evict", found, answers, now_ms)
        for key in found:
            times[key].append(now_ms)
        wanted -= set(found) - set(answers)
        assert due(retries, "evict", sorted(wanted), now_ms) == []
        wait_ms = next_ms(retries, now_ms)
        now_ms += chance.choice([wait_ms or 0, wait_ms or 0, 1, LATE_MS])
    assert all(retries[key].is_left for key in wanted), "nobody is forgotten"
    for each in times.values():
        waits = [later - before for before, later in pairwise(each)]
        assert all(wait >= min(FIRST_MS * 2**number, LAST_MS) for number, wait in enumerate(waits))
        assert each[-1] < GIVE_UP_MS + LATE_MS
