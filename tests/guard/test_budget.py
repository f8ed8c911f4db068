"""What a guard may do, and why not, in one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard.budget import (
    ANSWERED_MS,
    FENCE_AGAIN_MS,
    FenceCase,
    demotions,
    evictions,
    is_back,
    promotions,
    restorations,
    why_behind,
    why_not_evict,
    why_not_fence,
)
from kjbod_guard.observing import Placed
from kjbod_guard.suspects import AHEAD_MS, LOST_MS, Neighbour, Suspects, current
from tests.guard.test_copies import (
    ALL,
    D1,
    D2,
    EPOCH,
    NODE,
    OTHERS,
    SHORT,
    SOLE,
    T,
    home,
    neighbour,
    observed,
    placed,
    suspected,
)

NOW_MS = 10_000_000
KEY = "kjbod.guard.cut.max.brokers"
LATELY = NOW_MS - 1

# --------------------------------------------------------------------------------------------------- the other brokers

ENDED = neighbour(2, active=False, fenced_ms=LATELY)
LOST = neighbour(2, lost_ms=LATELY)
FIRST, LATER = suspected(home(2), offset=50, seen_ms=LATELY), suspected(home(2), offset=90, seen_ms=LATELY)
BEHIND = f"broker 2 lost a directory or is about to, within 60 s ({KEY}=1)"


@pytest.mark.parametrize(
    ("trusted", "its", "fences", "reason"),
    [
        (
            (2, NOW_MS - 4_999),
            neighbour(2),
            False,
            "a disk of broker 2 answered again a moment ago: this one may as well",
        ),
        ((2, NOW_MS - 5_000), neighbour(2), False, ""),
        (None, neighbour(2), False, ""),
        # A record that was removed because the directory is lost says nothing; nor does a disk that answers of a fence.
        ((2, NOW_MS - 1), neighbour(2, lost_ms=NOW_MS - LOST_MS + 1), False, None),
        ((2, NOW_MS - 1), neighbour(2), True, ""),
    ],
)
def test_a_guard_waits_where_a_disk_of_another_broker_has_just_answered_again(
    trusted: tuple[int, int] | None, its: Neighbour, fences: bool, reason: str | None
) -> None:
    now = observed(ALL)
    now.trusted, now.neighbours[2] = trusted, its
    found = why_behind(now, 70, 1, KEY, NOW_MS, fences=fences)
    assert found == (BEHIND if reason is None else reason)


@pytest.mark.parametrize(
    ("its", "record", "offset", "fences", "reason"),
    [
        (neighbour(2), None, 70, False, ""),
        # The record that is first in the log goes first. Who has none has all others before it.
        (neighbour(2), FIRST, 70, False, BEHIND),
        (neighbour(2), LATER, 70, False, ""),
        (neighbour(2), LATER, None, False, BEHIND),
        (neighbour(2), replace(FIRST, offset=-1), 70, False, BEHIND),
        # A record counts for its time, and for the registration of its broker that it names.
        (neighbour(2), replace(FIRST, seen_ms=NOW_MS - AHEAD_MS + 1), 70, False, BEHIND),
        (neighbour(2), replace(FIRST, seen_ms=NOW_MS - AHEAD_MS), 70, False, ""),
        (neighbour(2, epoch=EPOCH + 1), FIRST, 70, False, ""),
        (None, FIRST, 70, False, ""),
        (neighbour(2), suspected(epoch=None, offset=50, seen_ms=LATELY), 70, False, BEHIND),
        # A directory that was lost counts whoever was first, and when its broker has started again.
        (LOST, None, 70, False, BEHIND),
        (LOST, LATER, 70, False, BEHIND),
        (replace(LOST, epoch=EPOCH + 1), None, 70, False, BEHIND),
        (replace(LOST, lost_ms=NOW_MS - LOST_MS), None, 70, False, ""),
        # A broker that was fenced counts against a fence alone, and only while it is not back.
        (ENDED, None, 70, False, ""),
        (ENDED, None, 70, True, BEHIND),
        (replace(ENDED, active=True), None, 70, True, ""),
        (replace(ENDED, fenced_ms=NOW_MS - LOST_MS), None, 70, True, ""),
        (replace(ENDED, fenced_ms=None), None, 70, True, ""),
    ],
)
def test_one_broker_at_a_time_goes_on_in_the_order_of_the_log(
    its: Neighbour | None, record: Suspects | None, offset: int | None, fences: bool, reason: str
) -> None:
    now = observed()
    del now.neighbours[2]
    if its is not None:
        now.neighbours[2] = its
    if record is not None:
        now.suspects[2] = record
    assert why_behind(now, offset, 1, KEY, NOW_MS, fences=fences) == reason


@pytest.mark.parametrize(("most", "reason"), [(3, ""), (2, "broker 2, 3 lost"), (1, "broker 2, 3 lost")])
def test_as_many_brokers_as_the_site_allows_go_on_this_one_included(most: int, reason: str) -> None:
    now = observed()
    now.neighbours[2] = LOST
    now.suspects[3] = suspected(offset=50, seen_ms=LATELY)
    found = why_behind(now, 70, most, KEY, NOW_MS, fences=False)
    assert found.startswith(reason) and bool(found) == bool(reason)


def test_a_site_that_allows_no_broker_is_told_its_own_setting() -> None:
    assert why_behind(observed(), 70, 0, KEY, NOW_MS, fences=False) == f"{KEY}=0"


@pytest.mark.parametrize(("known_ms", "waits"), [(None, True), (NOW_MS - LOST_MS + 1, True), (NOW_MS - LOST_MS, False)])
def test_a_guard_that_has_just_started_waits_until_it_knows_who_lost_a_directory(
    known_ms: int | None, waits: bool
) -> None:
    now = observed()
    now.known_ms = known_ms
    found = why_behind(now, 70, 1, KEY, NOW_MS, fences=False)
    assert found == ("the metadata of the last 60 s are not known: the guard has just started" if waits else "")


# ----------------------------------------------------------------------------------------------------------- evictions


@pytest.mark.parametrize(
    ("partition", "reason"),
    [
        (ALL, None),
        (replace(ALL, isr=(2, 3)), None),
        (SHORT, "fewer other copies in sync than min.insync.replicas"),
        (SOLE, "no other copy in sync"),
        (replace(ALL, isr=()), "no other copy in sync"),
        (placed(1), "no other replica"),
        (replace(ALL, adding=(4,)), "being reassigned by somebody"),
        (replace(ALL, removing=(3,)), "being reassigned by somebody"),
        (
            replace(ALL, isr=(2, 3), unclean=True),
            "an election was unclean: this copy may have records that the leader lost",
        ),
    ],
)
def test_a_partition_is_left_only_where_it_keeps_what_it_needs(partition: Placed, reason: str | None) -> None:
    assert why_not_evict(observed(partition), (T, 0), 2, {}) == reason


def test_a_partition_is_not_left_to_copies_that_another_guard_suspects() -> None:
    now = observed(ALL)
    now.suspects[2] = suspected(home(2))
    known = current(now.suspects, now.neighbours)
    assert why_not_evict(now, (T, 0), 2, known) == "fewer other copies in sync than min.insync.replicas"
    assert evictions(now, D1, 2).before == {}


def test_what_is_left_is_told_with_its_list_and_the_rest_with_why() -> None:
    found = evictions(observed(ALL, placed(1, 2, 3, at=D2), SOLE, SOLE, SHORT), D1, 1)
    assert found.before == {(T, 0): (1, 2, 3)}
    assert found.refusal == (
        "not evicted: 1 fewer other copies in sync than min.insync.replicas, 2 no other copy in sync"
    )
    assert evictions(observed(ALL), D1, 1).refusal is None


def test_only_what_is_still_as_it_was_left_is_put_back_in_its_order() -> None:
    now = observed()
    before = {(T, 0): (2, 1, 3), (T, 1): (1, 2, 3), (T, 2): (1, 2), (T, 3): (1, 2), (T, 4): (1, 2)}
    now.others = {
        (T, 0): placed(2, 3),
        (T, 1): placed(2, 4),
        (T, 2): placed(2, adding=(5,)),
        (T, 4): placed(2, removing=(2,)),
    }
    assert restorations(now, before) == {(T, 0): (2, 1, 3)}


# ---------------------------------------------------------------------------------------------------------- leadership


@pytest.mark.parametrize(
    ("partition", "after"),
    [
        (ALL, (2, 3, 1)),
        (placed(2, 1, 3), None),
        (placed(2, 1, 3, leads=True), (2, 3, 1)),
        (placed(1, 2, 3, leads=False), (2, 3, 1)),
        (placed(1, 2, 3, isr=(1, 3)), (3, 2, 1)),
        (placed(1, 4, 2, 3, isr=(1, 3, 2)), (2, 4, 3, 1)),
        (SOLE, None),
        (placed(1), None),
        (replace(ALL, adding=(4,)), None),
        (replace(ALL, removing=(3,)), None),
    ],
)
def test_the_first_other_replica_whose_copy_counts_leads_and_this_broker_comes_last(
    partition: Placed, after: tuple[int, ...] | None
) -> None:
    expected = {} if after is None else {(T, 0): (partition.replicas, after)}
    assert demotions(observed(partition), D1) == expected
    assert demotions(observed(partition), D2) == {}


def test_leadership_moves_to_no_broker_that_is_about_to_stop_or_whose_disk_is_suspected() -> None:
    now = observed(ALL)
    now.neighbours[2] = neighbour(2, active=False)
    assert demotions(now, D1) == {(T, 0): ((1, 2, 3), (3, 2, 1))}
    now.suspects[3] = suspected(home(3))
    assert demotions(now, D1) == {}


@pytest.mark.parametrize(
    ("now", "is_put_back"),
    [
        (placed(2, 3, 1), True),
        (placed(1, 2, 3, leads=False), True),  # its list is back, and nobody has elected this broker
        (placed(1, 2, 3), False),
        (placed(3, 2, 1), False),
        (placed(2, 3, 1, isr=(2, 3)), False),
        (placed(2, 3, 1, adding=(4,)), False),
        (placed(2, 3, 1, removing=(3,)), False),
        (None, False),
    ],
)
def test_only_lists_that_are_as_they_were_left_and_whose_leader_is_in_sync_are_put_back(
    now: Placed | None, is_put_back: bool
) -> None:
    found = observed() if now is None else observed(now)
    expected = {(T, 0): (1, 2, 3)} if is_put_back else {}
    assert promotions(found, {(T, 0): ((1, 2, 3), (2, 3, 1))}) == expected


def test_a_list_is_back_when_its_first_broker_leads_again() -> None:
    assert is_back(ALL, (1, 2, 3), NODE) and not is_back(replace(ALL, leads=False), (1, 2, 3), NODE)
    assert is_back(placed(2, 1, 3), (2, 1, 3), NODE), "another broker is to lead"
    assert not is_back(placed(3, 2, 1), (1, 2, 3), NODE)


# --------------------------------------------------------------------------------------------------------------- fence

ANY = FenceCase(offset=70, answered_ms=NOW_MS, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("partition", "case", "its", "reason"),
    [
        (ALL, ANY, neighbour(2), None),
        # What the broker has in sync needs other copies, on whichever of its disks it lies.
        (SHORT, ANY, neighbour(2), "t-0 has fewer other copies in sync than min.insync.replicas"),
        (SOLE, ANY, neighbour(2), "t-0 has no other copy in sync"),
        (placed(1, 2, 3, at=D2, isr=(1,)), ANY, neighbour(2), "t-0 has no other copy in sync"),
        (placed(1, 2, 3, isr=(2,)), ANY, neighbour(2), None),
        (ALL, ANY, neighbour(2, active=False), "t-0 has fewer other copies"),
        # A controller has to move the leaders.
        (ALL, replace(ANY, answered_ms=None), neighbour(2), "no controller answers"),
        (ALL, replace(ANY, answered_ms=NOW_MS - ANSWERED_MS), neighbour(2), None),
        (ALL, replace(ANY, answered_ms=NOW_MS - ANSWERED_MS - 1), neighbour(2), "no controller answers"),
        # Other brokers.
        (ALL, ANY, ENDED, "broker 2 lost a directory or is about to"),
        (ALL, ANY, LOST, "broker 2 lost a directory or is about to"),
        (ALL, replace(ANY, brokers_max=2), LOST, None),
        (ALL, replace(ANY, brokers_max=0), neighbour(2), "kjbod.guard.fence.max.brokers=0"),
        # The quorum, and this broker.
        (ALL, replace(ANY, needed="its quorum needs it"), neighbour(2), "its quorum needs it"),
        (ALL, replace(ANY, last_fence_ms=NOW_MS - 1_000), neighbour(2), "it was fenced 1 s ago, and once in 10 min"),
        (ALL, replace(ANY, last_fence_ms=NOW_MS - FENCE_AGAIN_MS), neighbour(2), None),
    ],
)
def test_a_broker_is_fenced_only_where_nobody_needs_it_more(
    partition: Placed, case: FenceCase, its: Neighbour, reason: str | None
) -> None:
    now = observed(partition)
    now.neighbours[2] = its
    told = why_not_fence(now, case)
    assert (told is None) == (reason is None) and (told or "").startswith(reason or "")


ISRS = st.lists(st.integers(1, 4), unique=True).map(tuple)


@given(
    st.lists(st.tuples(ISRS, st.sampled_from([D1, D2]), st.booleans())),
    st.integers(1, 3),
    st.sets(st.sampled_from(OTHERS)),
)
def test_neither_a_fence_nor_an_eviction_takes_a_partition_below_what_it_needs(
    parts: list[tuple[tuple[int, ...], Uuid, bool]], min_isr: int, inactive: set[int]
) -> None:
    partitions = [placed(1, 2, 3, 4, isr=isr, at=at, unclean=unclean) for isr, at, unclean in parts]
    now = observed(*partitions, min_isr=min_isr)
    now.neighbours |= {broker: neighbour(broker, active=False) for broker in inactive}
    fenced, left = why_not_fence(now, ANY) is None, evictions(now, D1, 1).before
    for key, one in now.partitions.items():
        enough = len({*one.isr} - {NODE, *inactive}) >= max(1, min_isr)
        assert enough or not (fenced and NODE in one.isr)
        assert (key in left) == (enough and one.directory == D1 and not one.unclean)
