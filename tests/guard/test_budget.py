"""What a guard may do, and why not, in one line."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod_agent.guard.budget import (
    FENCE_AGAIN_MS,
    NEIGHBOUR_MS,
    TURN_MS,
    FenceCase,
    evictions,
    restorations,
    sole_copies,
    turn_ms,
    why_not_evict,
    why_not_fence,
)
from kjbod_agent.guard.observing import Neighbour, Observed, Placed

D1, D2 = Uuid.of(5, 1), Uuid.of(5, 2)
T = Uuid.of(7, 1)
WELL = Placed(0, D1, True, (1, 2, 3), (1, 2, 3))


def observed(*placed: Placed, min_isr: int = 2) -> Observed:
    found = Observed(1, complete=True, topics={T: "t"}, min_isr={"t": min_isr})
    found.partitions = dict(zip(((T, number) for number in range(len(placed))), placed, strict=False))
    return found


@pytest.mark.parametrize(
    ("placed", "reason"),
    [
        (WELL, None),
        (replace(WELL, isr=(2, 3)), None),
        (replace(WELL, isr=(1, 2)), "fewer than min.insync.replicas in sync without it"),
        (replace(WELL, isr=(1,)), "no other replica in sync"),
        (replace(WELL, replicas=(1,), isr=(1,)), "no other replica"),
        (replace(WELL, adding=(4,)), "being reassigned by somebody"),
        (replace(WELL, removing=(3,)), "being reassigned by somebody"),
        (replace(WELL, replicas=(2, 3), isr=(2, 3)), "evicted already"),
        (replace(WELL, isr=()), "no other replica in sync"),
    ],
)
def test_a_partition_is_left_only_where_it_keeps_what_it_needs(placed: Placed, reason: str | None) -> None:
    assert why_not_evict(placed, 1, 2) == reason


def test_what_is_left_is_told_with_its_list_and_the_rest_with_why() -> None:
    found = evictions(
        observed(WELL, replace(WELL, directory=D2), replace(WELL, isr=(1,)), replace(WELL, isr=(1,))), D1, 1
    )
    assert found.before == {(T, 0): (1, 2, 3)}
    assert found.refusal == "not evicted: 2 no other replica in sync"


def test_only_what_is_still_as_it_was_left_is_put_back_in_its_order() -> None:
    now = observed()
    before = {(T, 0): (2, 1, 3), (T, 1): (1, 2, 3), (T, 2): (1, 2), (T, 3): (1, 2)}
    now.others = {
        (T, 0): replace(WELL, position=-1, replicas=(2, 3)),
        (T, 1): replace(WELL, position=-1, replicas=(2, 4)),
        (T, 2): replace(WELL, position=-1, replicas=(2,), adding=(5,)),
    }
    assert restorations(now, before) == {(T, 0): (2, 1, 3)}


def test_a_sole_copy_is_one_that_nobody_else_has_in_sync() -> None:
    assert sole_copies(observed(WELL, replace(WELL, isr=(1,)), replace(WELL, isr=(1,), directory=D2)), D1) == 1


ANY = FenceCase(healthy=(D1,), now_ms=10_000_000)
TROUBLED = Neighbour(5, True, 3, fenced_ms=ANY.now_ms - 1)


@pytest.mark.parametrize(
    ("placed", "case", "neighbours", "reason"),
    [
        (WELL, ANY, {}, None),
        (replace(WELL, isr=(1, 2)), ANY, {}, "t-0 would have fewer than its min.insync.replicas in sync"),
        (replace(WELL, isr=(1,)), ANY, {}, "t-0 would lose its last replica in sync"),
        (replace(WELL, isr=(1,)), replace(ANY, proven=True), {}, None),
        (replace(WELL, isr=(1,), directory=D2), ANY, {}, None),
        (replace(WELL, isr=(2,)), ANY, {}, None),
        (WELL, ANY, {2: TROUBLED}, "broker 2 was fenced or lost a directory within 60 s"),
        (WELL, replace(ANY, proven=True), {2: TROUBLED}, "broker 2 was fenced"),
        (WELL, replace(ANY, brokers_max=2), {2: TROUBLED}, None),
        (WELL, ANY, {2: replace(TROUBLED, fenced=False)}, None),
        (WELL, ANY, {2: replace(TROUBLED, fenced_ms=ANY.now_ms - NEIGHBOUR_MS)}, None),
        (WELL, ANY, {2: Neighbour(5, False, 2, lost_ms=ANY.now_ms - 5)}, "broker 2 was fenced or lost a directory"),
        (WELL, replace(ANY, brokers_max=0), {}, "kjbod.guard.fence.max.brokers=0"),
        (WELL, replace(ANY, needed="its quorum needs it", proven=True), {}, "its quorum needs it"),
        (WELL, replace(ANY, last_fence_ms=ANY.now_ms - 1000), {}, "it was fenced 1 s ago, and once in 10 minutes"),
        (WELL, replace(ANY, last_fence_ms=ANY.now_ms - FENCE_AGAIN_MS), {}, None),
    ],
)
def test_a_broker_is_given_up_only_where_nobody_needs_it_more(
    placed: Placed, case: FenceCase, neighbours: dict[int, Neighbour], reason: str | None
) -> None:
    found = observed(placed)
    found.neighbours = neighbours
    told = why_not_fence(found, case)
    assert (told is None) == (reason is None) and (told or "").startswith(reason or "")


ISRS = st.lists(st.integers(1, 4), unique=True).map(tuple)


@given(st.lists(st.tuples(ISRS, st.sampled_from([D1, D2]))), st.integers(1, 3))
def test_no_fence_takes_a_partition_of_a_healthy_disk_below_what_it_needs(
    parts: list[tuple[tuple[int, ...], Uuid]], min_isr: int
) -> None:
    placed = [replace(WELL, isr=isr, directory=directory) for isr, directory in parts]
    if why_not_fence(observed(*placed, min_isr=min_isr), ANY) is None:
        for one in placed:
            if one.directory == D1 and 1 in one.isr:
                assert len(one.isr) - 1 >= max(1, min_isr)


def test_an_eviction_waits_for_others_only_where_another_broker_is_in_trouble() -> None:
    observed = Observed(3, neighbours={one: Neighbour(7, False, 2) for one in (1, 2, 4)})
    assert turn_ms(observed, 100_000) == 0
    observed.neighbours[4] = Neighbour(7, False, 1, lost_ms=90_000)
    assert turn_ms(observed, 100_000) == 3 * TURN_MS
    observed.broker_id = 1
    assert turn_ms(observed, 100_000) == TURN_MS, "the first one waits too: for what is on its way"
