"""What is stray by KRaft's rule and by that of a broker in migration. Ids are those of kafka-jbod 9.7."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import ZERO, Uuid
from kjbod_agent.replicas.strays import (
    LEADER_DURING_DELETE,
    NO_PARTITION,
    NO_TOPIC_ID,
    LeaderAndIsr,
    Log,
    TopicState,
    apply_update_metadata,
    find_strays_full_lair,
    is_deletion_proven,
    is_stray_kraft,
    with_deletions,
)
from kjbod_host.strays import NO_TOPIC, NOT_HERE
from tests.depth import examples

FOO, BAR, NEW_FOO = (Uuid.of(3, n) for n in (1, 2, 3))
D1, D2 = Uuid.of(2, 1), Uuid.of(2, 2)
IMAGE = {(FOO, 0): (0, 1, 2), (FOO, 1): (1, 2), (BAR, 0): (0,)}
FOO_0, FOO_1, BAR_0 = Log("foo", 0, FOO), Log("foo", 1, FOO), Log("bar", 0, BAR)


def replicas(topic_id: Uuid, partition: int) -> tuple[int, ...] | None:
    return IMAGE.get((topic_id, partition))


def lair(*logs: Log, full: bool = True, from_kraft: bool = True) -> LeaderAndIsr:
    return LeaderAndIsr({(log.topic, log.partition): log.topic_id or ZERO for log in logs}, full, from_kraft)


# ---------------------------------------------------------------------------------------------------------------- KRaft


def test_sy_1_with_an_empty_image_all_are_stray() -> None:
    for log in (FOO_0, FOO_1, BAR_0):
        assert is_stray_kraft(0, log.topic_id, log.partition, lambda topic, number: None) == NO_TOPIC


def test_sy_2_only_those_that_the_image_does_not_have_are_stray() -> None:
    assert is_stray_kraft(0, FOO, 0, replicas) is None
    assert is_stray_kraft(0, BAR, 0, replicas) is None
    assert is_stray_kraft(0, BAR, 1, replicas) == NO_PARTITION
    assert is_stray_kraft(0, NEW_FOO, 0, replicas) == NO_TOPIC


def test_sy_3_what_the_image_places_on_other_brokers_only_is_stray() -> None:
    assert is_stray_kraft(0, FOO, 1, replicas) == NOT_HERE
    assert is_stray_kraft(1, FOO, 1, replicas) is None


@pytest.mark.parametrize("topic_id", [None, ZERO])
def test_sy_4_without_a_topic_id_it_is_stray(topic_id: Uuid | None) -> None:
    assert is_stray_kraft(0, topic_id, 0, replicas) == NO_TOPIC_ID


# --------------------------------------------------------------------------------------------------- hybrid: full LAIR


def test_sy_6_in_an_empty_full_lair_all_are_stray() -> None:
    assert find_strays_full_lair([FOO_0, BAR_0], lair()) == (FOO_0, BAR_0)


def test_sy_6_in_a_full_lair_that_has_all_none_is_stray() -> None:
    assert find_strays_full_lair([FOO_0, FOO_1, BAR_0], lair(FOO_0, FOO_1, BAR_0)) == ()


def test_sy_6_in_a_full_lair_that_has_some_the_others_are_stray() -> None:
    assert find_strays_full_lair([FOO_0, FOO_1, BAR_0], lair(FOO_0, Log("baz", 0, D1))) == (FOO_1, BAR_0)


def test_sy_7_a_topic_that_was_created_again_under_its_name_makes_the_old_one_stray() -> None:
    again = lair(Log("foo", 0, NEW_FOO), Log("foo", 1, NEW_FOO), BAR_0)
    assert find_strays_full_lair([FOO_0, FOO_1, BAR_0], again) == (FOO_0, FOO_1)


def test_sy_8_once_strays_are_set_aside_the_same_request_finds_none() -> None:
    logs, request = [FOO_0, FOO_1, BAR_0], lair(FOO_0)
    strays = find_strays_full_lair(logs, request)
    left = [log for log in logs if log not in strays]
    assert left == [FOO_0]
    assert find_strays_full_lair(left, request) == ()


@pytest.mark.parametrize(
    ("migrating", "from_kraft", "gone"), [(True, True, (BAR_0,)), (False, True, ()), (True, False, ())]
)
def test_sy_9_only_in_migration_and_from_a_kraft_controller_what_is_not_in_a_full_lair_is_stray(
    migrating: bool, from_kraft: bool, gone: tuple[Log, ...]
) -> None:
    assert find_strays_full_lair([FOO_0, BAR_0], lair(FOO_0, from_kraft=from_kraft), migrating=migrating) == gone


def test_sy_10_a_full_lair_removes_the_old_and_creates_the_new_in_one_request() -> None:
    new_foo = Log("foo", 0, NEW_FOO)
    logs = [FOO_0, FOO_1, BAR_0]
    request = lair(new_foo, BAR_0)
    strays = find_strays_full_lair(logs, request)
    names = {log.topic for log in logs if log not in strays and log.partition == 0}
    assert strays == (FOO_0, FOO_1)
    assert names == {"bar"}, "the name is free before the request itself is applied"
    assert find_strays_full_lair([new_foo, BAR_0], request) == ()


def test_an_incremental_lair_says_nothing_of_what_it_does_not_have() -> None:
    with pytest.raises(ValueError, match="full"):
        find_strays_full_lair([FOO_0], lair(full=False))


def test_a_log_without_topic_id_is_stray_and_stops_no_migration() -> None:
    bad = Log("foo", 1, None)
    assert find_strays_full_lair([bad, FOO_0], lair(FOO_0, FOO_1)) == (bad,)


# --------------------------------------------------------------------------------------------------- hybrid: full UMR


def state(name: str, topic_id: Uuid, *partitions: int, leader: int = 1) -> TopicState:
    return TopicState(name, topic_id, dict.fromkeys(partitions, leader))


def complaint(name: str, reason: str) -> None:
    raise AssertionError(f"{name}: {reason}")


def test_sy_11_the_deletions_that_a_full_umr_implies_come_first() -> None:
    cached = [state("foo", FOO, 0, 1), state("bar", BAR, 0)]
    request = [state("foo", NEW_FOO, 0), state("bar", BAR, 0)]
    before = copy.deepcopy(request)
    assert with_deletions(cached, request, complaint) == (
        TopicState("foo", FOO, {0: LEADER_DURING_DELETE, 1: LEADER_DURING_DELETE}),
        *request,
    )
    assert request == before, "the request itself is not changed"


def test_sy_11_a_topic_that_is_created_again_is_there_and_is_not_reported_as_deleted() -> None:
    cached = {"foo": state("foo", FOO, 0, 1), "bar": state("bar", BAR, 0)}
    request = with_deletions(cached.values(), [state("foo", NEW_FOO, 0), state("baz", D1, 0)], complaint)
    after, deleted = apply_update_metadata(cached, request)
    assert after == {"foo": state("foo", NEW_FOO, 0), "baz": state("baz", D1, 0)}
    assert deleted == {("foo", 1), ("bar", 0)}


def test_sy_11_a_topic_with_fewer_partitions_lost_them_and_one_with_more_lost_none() -> None:
    cached = [state("foo", FOO, 0, 1), state("bar", BAR, 0)]
    request = [state("foo", FOO, 0), state("bar", BAR, 0, 1)]
    assert with_deletions(cached, request, complaint)[:-2] == (state("foo", FOO, 1, leader=LEADER_DURING_DELETE),)


def test_a_topic_in_the_cache_that_cannot_be_judged_is_named_and_stops_no_other() -> None:
    told: list[str] = []
    cached = [state("old", ZERO, 0), state("foo", FOO, 0)]
    request = with_deletions(cached, [], lambda name, reason: told.append(name))
    assert [topic.name for topic in request] == ["foo"]
    assert told == ["old"]


topics = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.tuples(st.integers(1, 3), st.sets(st.integers(0, 3), min_size=1)), max_size=3
)


@settings(max_examples=examples(200))
@given(topics, topics)
def test_sy_11_after_a_full_umr_the_cache_is_what_the_request_says_and_nothing_else(
    before: dict[str, tuple[int, set[int]]], after: dict[str, tuple[int, set[int]]]
) -> None:
    ids = {(name, number): Uuid.of(ord(name), number) for name in "abc" for number in range(1, 4)}
    cached = {name: state(name, ids[name, number], *partitions) for name, (number, partitions) in before.items()}
    full = [state(name, ids[name, number], *partitions) for name, (number, partitions) in after.items()]
    result, deleted = apply_update_metadata(cached, with_deletions(cached.values(), full, complaint))
    assert result == {topic.name: topic for topic in full}
    had = {(topic.name, number) for topic in cached.values() for number in topic.leaders}
    has = {(topic.name, number) for topic in full for number in topic.leaders}
    assert deleted == had - has


# ---------------------------------------------------------------------------------------------------- marked as deleted


@pytest.mark.parametrize(
    ("topic_id", "partition", "assigned", "copies", "proven"),
    [
        (None, 0, None, (), False),
        (ZERO, 0, None, (), False),
        (NEW_FOO, 0, None, (), True),
        (FOO, 7, None, (), True),
        (FOO, 1, None, (), True),
        (FOO, 0, D1, (D1,), True),
        (FOO, 0, D1, (D2,), False),
        (FOO, 0, D1, (), False),
        (FOO, 0, ZERO, (D1,), False),
    ],
    ids=[
        "no topic id",
        "zero topic id",
        "topic gone",
        "partition gone",
        "not ours",
        "a copy is where the metadata say",
        "a copy is elsewhere",
        "no copy",
        "unassigned",
    ],
)
def test_what_was_marked_as_deleted_is_removed_only_where_the_metadata_prove_it(
    topic_id: Uuid | None, partition: int, assigned: Uuid | None, copies: tuple[Uuid, ...], proven: bool
) -> None:
    assert is_deletion_proven(0, topic_id, partition, replicas, assigned=assigned, copies=copies) is proven
