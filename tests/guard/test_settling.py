"""How long a list that the guard has changed stands in its journal."""

import pytest
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod_guard.journal import Demoted, Evicted
from kjbod_guard.observing import Observed, Placed
from kjbod_guard.settling import UNSEEN_MS, Settling, Shown, demotion_shown, eviction_shown

D1, KEY, GAP_MS = Uuid.of(5, 1), (Uuid.of(7, 1), 0), 3_000
EVICTED = Evicted(str(D1), "t", (2, 1, 3), 0)
DEMOTED = Demoted(str(D1), "t", (1, 2, 3), (2, 3, 1))


def placed(*replicas: int, leads: bool = False) -> Placed:
    return Placed(replicas.index(1) if 1 in replicas else -1, D1, leads, replicas, replicas)


def looks(settling: Settling, shown: Shown, *at_ms: int) -> list[tuple[int, int]]:
    """How many lists are over, and how many were changed, at each of these moments."""
    return [(len(over), len(changed)) for over, changed in (settling.settle({KEY: shown}, one) for one in at_ms)]


def test_a_list_that_was_seen_as_it_was_left_is_over_when_it_is_another_one() -> None:
    for shown, found in ((Shown.AS_BEFORE, (1, 0)), (Shown.OTHERWISE, (0, 1))):
        settling = Settling(GAP_MS)
        assert looks(settling, Shown.AS_LEFT, 1, 2) == [(0, 0)] * 2
        assert looks(settling, shown, 3) == [found]


def test_a_list_whose_leader_is_not_back_is_kept_for_a_while_more() -> None:
    settling = Settling(UNSEEN_MS)
    looks(settling, Shown.AS_LEFT, 1)
    assert looks(settling, Shown.RETURNING, 2, UNSEEN_MS + 2, UNSEEN_MS + 3) == [(0, 0), (0, 0), (1, 0)]


@pytest.mark.parametrize("gap_ms", [GAP_MS, GAP_MS + 1])
def test_a_change_that_was_never_seen_is_given_up_after_time_in_which_the_metadata_were_followed(gap_ms: int) -> None:
    settling = Settling(GAP_MS)
    moments = range(100_000, 100_000 + 5 * gap_ms, gap_ms)
    assert (looks(settling, Shown.AS_BEFORE, *moments)[-1] == (1, 0)) is (gap_ms == GAP_MS)


def test_a_change_that_is_made_again_is_to_be_seen_again() -> None:
    settling = Settling(GAP_MS)
    looks(settling, Shown.AS_LEFT, 1)
    settling.begun([KEY])
    assert looks(settling, Shown.AS_BEFORE, 2) == [(0, 0)]


def test_an_eviction_is_shown_also_where_others_were_evicted_after_it() -> None:
    observed = Observed(1, others={KEY: placed(2, 3)})
    assert eviction_shown(KEY, EVICTED, observed) is Shown.AS_LEFT
    observed.others[KEY] = placed(3)
    assert eviction_shown(KEY, EVICTED, observed) is Shown.AS_LEFT
    observed.others[KEY] = placed(3, 2)
    assert eviction_shown(KEY, EVICTED, observed) is Shown.OTHERWISE
    assert eviction_shown(KEY, EVICTED, Observed(1)) is Shown.OTHERWISE
    assert eviction_shown(KEY, EVICTED, Observed(1, partitions={KEY: placed(2, 1, 3)})) is Shown.AS_BEFORE


def test_an_eviction_that_kafka_completes_later_is_shown_until_somebody_cancels_it() -> None:
    pending = replace(placed(2, 3, 1), isr=(2,), removing=(1,))
    assert eviction_shown(KEY, EVICTED, Observed(1, partitions={KEY: pending})) is Shown.AS_LEFT
    assert eviction_shown(KEY, EVICTED, Observed(1, partitions={KEY: replace(pending, removing=(3,))})) is (
        Shown.AS_BEFORE
    )


def test_leadership_is_back_with_the_list_and_the_leader() -> None:
    def shown(*replicas: int, leads: bool = False) -> Shown:
        return demotion_shown(KEY, DEMOTED, Observed(1, partitions={KEY: placed(*replicas, leads=leads)}))

    assert shown(2, 3, 1) is Shown.AS_LEFT
    assert (shown(1, 2, 3), shown(1, 2, 3, leads=True)) == (Shown.RETURNING, Shown.AS_BEFORE)
    assert shown(3, 2, 1) is demotion_shown(KEY, DEMOTED, Observed(1)) is Shown.OTHERWISE
