"""What the guard shows of partitions that lack replicas, and of those that the controllers refused."""

import pytest
from msgspec.structs import replace

from kjbod.ids import UNASSIGNED, Uuid
from kjbod_guard import redundancy
from kjbod_guard.journal import Demoted, Evicted, Journal
from kjbod_guard.observing import Key, Observed, Placed
from kjbod_guard.redundancy import Needs
from kjbod_guard.retries import GIVE_UP_MS, after
from tests.guard.test_copies import ALL, D1, SHORT, SOLE, T, observed, placed

AT_MS = 1_700_000_000_000
AT = "2023-11-14 22:13:20Z"
GONE = Uuid.of(7, 9)


def evicted(*numbers: int, before: tuple[int, ...] = (1, 2, 3), at_ms: int = AT_MS, topic: Uuid = T) -> Journal:
    return Journal(evicted={(topic, number): Evicted(str(D1), "t", before, at_ms) for number in numbers})


def lines(journal: Journal, now: Observed) -> list[tuple[bool, str]]:
    return redundancy.lines(journal, now, redundancy.needs(journal, now, 1))


def without(now: Observed, *left: Placed) -> Observed:
    """The metadata with partitions ``t-5``, ``t-6`` and so on of which this broker is no replica."""
    now.others = {(T, number): one for number, one in enumerate(left, 5)}
    return now


@pytest.mark.parametrize(
    ("now", "journal", "expected"),
    [
        (observed(), Journal(), Needs(0, 0, 0)),
        (observed(ALL), Journal(), Needs(0, 0, 0)),
        (observed(SHORT), Journal(), Needs(0, 0, 0)),
        (observed(SOLE, SOLE, ALL), Journal(), Needs(0, 2, 0)),
        (observed(replace(SOLE, leader=-1, leads=False)), Journal(), Needs(0, 1, 1)),
        # Not more than there are replicas; and what is not known is not counted.
        (observed(placed(1), min_isr=2), Journal(), Needs(0, 0, 0)),
        (observed(replace(ALL, isr=())), Journal(), Needs(0, 0, 0)),
        (observed(Placed(0, D1, False)), Journal(), Needs(0, 0, 0)),
        # What this broker was taken out of.
        (without(observed(), placed(2, 3)), evicted(5), Needs(1, 0, 0)),
        (without(observed(), placed(2, 3, isr=(2,), leader=-1)), evicted(5), Needs(1, 1, 1)),
        (observed(ALL), evicted(0), Needs(0, 0, 0)),
        (observed(), evicted(5, topic=GONE), Needs(0, 0, 0)),
    ],
)
def test_partitions_that_lack_replicas_an_isr_or_a_leader_are_counted(
    now: Observed, journal: Journal, expected: Needs
) -> None:
    assert redundancy.needs(journal, now, 1) == expected


def test_a_broker_that_is_back_in_a_list_is_missing_no_more() -> None:
    now = without(observed(ALL), placed(2, 3))
    assert redundancy.evicted(evicted(0, 5), now) == [(T, 5)]


def test_people_are_told_what_lacks_the_critical_first_and_since_when() -> None:
    assert lines(Journal(), observed(ALL)) == []
    now = without(observed(SOLE, replace(SOLE, leader=-1)), placed(2, 3), placed(2, 3), placed(2))
    journal = Journal(
        evicted={
            **evicted(5, at_ms=AT_MS + 5_000).evicted,
            **evicted(6).evicted,
            **evicted(7).evicted,
            **evicted(8, before=(1, 2)).evicted,  # of which the metadata show nothing
        }
    )
    assert lines(journal, now) == [
        (True, "1 partition has no leader"),
        (True, "2 partitions are below min.insync.replicas"),
        (False, f"1 partition has 1 of 2 replicas since {AT}: the guard evicted broker 1"),
        (False, f"1 partition has 1 of 3 replicas since {AT}: the guard evicted broker 1"),
        (False, f"2 partitions have 2 of 3 replicas since {AT}: the guard evicted broker 1"),
    ]
    assert lines(Journal(), observed(SOLE)) == [(True, "1 partition is below min.insync.replicas")]


@pytest.mark.parametrize(
    ("one", "is_told"),
    [
        (replace(ALL, directory=GONE, leader=2, leads=False), True),
        (replace(ALL, leader=2, leads=False), False),
        (replace(ALL, directory=GONE, leader=2, leads=False, isr=(2, 3)), False),
        (replace(ALL, directory=UNASSIGNED, leader=2, leads=False), False),
        # The controller keeps the last replica in the ISR, and there is no leader.
        (replace(SOLE, directory=GONE, leader=-1, leads=False), False),
    ],
)
def test_a_replica_that_is_back_in_the_isr_while_kafka_has_its_directory_offline_is_critical(
    one: Placed, is_told: bool
) -> None:
    found = [(critical, line) for critical, line in lines(Journal(), observed(one)) if "in the ISR while" in line]
    assert [critical for critical, _ in found] == [True] * is_told
    assert all("1 partition has broker 1 in the ISR while Kafka has the directory offline" in line for _, line in found)


def test_a_partition_that_the_controllers_refused_is_shown_with_their_reason() -> None:
    keys: list[Key] = [(T, 1), (T, 0), (GONE, 0), (GONE, 1)]
    lists, why = dict.fromkeys(keys, (1, 2, 3)), dict.fromkeys(keys, "INVALID_REPLICA_ASSIGNMENT (39)")
    retries = after({}, "evict", lists, why, 1_000, lambda _: frozenset())
    retries = {**retries, (T, 0): replace(retries[T, 0], due_ms=1_000 + GIVE_UP_MS)}
    journal = Journal(demoted={(GONE, 0): Demoted(str(D1), "deleted", (1, 2), (2, 1))})
    found = redundancy.refusals(retries, journal, observed(ALL, ALL), 3_000, AT_MS)
    refused = {"means": "evict", "reason": "INVALID_REPLICA_ASSIGNMENT (39)", "since_ms": AT_MS - 2_000}
    assert found == [
        {"topic": str(GONE), "partition": 1, **refused, "left": False},
        {"topic": "deleted", "partition": 0, **refused, "left": False},
        {"topic": "t", "partition": 0, **refused, "left": True},
        {"topic": "t", "partition": 1, **refused, "left": False},
    ]
