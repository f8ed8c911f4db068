"""Where a new replica goes: classes, policies, and what is still to come. Ids are those of kafka-jbod 9.5."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import Uuid
from kjbod_agent.replicas.choice import (
    GROWTH_MS,
    SEGMENT_BYTES,
    Capacity,
    Chooser,
    Policy,
    Site,
    Standing,
    is_nearly_full,
    standing,
)
from tests.depth import examples

DIRECTORIES = tuple(Uuid.of(2, n) for n in range(1, 7))
D1, D2, D3 = DIRECTORIES[:3]
GIB = 1 << 30
POLICIES: tuple[Policy, ...] = ("replicas", "free-bytes", "weighted")


def disk(free: int, total: int = 1000, **known: bool | int) -> Site:
    """A directory with so many GiB free of so many."""
    return Site(Capacity(total * GIB, free * GIB), **known)  # type: ignore[arg-type]  # flags and moving_bytes


def chooser(policy: Policy, sites: Mapping[Uuid, Site], counts: Mapping[Uuid, int] | None = None) -> Chooser:
    made = Chooser(policy, 90, random.Random(7).random)
    made.observe(sites, {} if counts is None else counts, 0)
    return made


def place(by: Chooser, counts: dict[Uuid, int], number: int) -> dict[Uuid, int]:
    """How many of ``number`` new replicas went where."""
    before = dict(counts)
    for _ in range(number):
        chosen = by.choose(counts)
        assert chosen is not None
        by.placed(chosen)
        counts[chosen] += 1
    return {d: counts[d] - before[d] for d in counts}


# -------------------------------------------------------------------------------------------------------------- classes


@pytest.mark.parametrize(
    ("site", "expected"),
    [
        (Site(), Standing.NORMAL),
        (disk(101), Standing.NORMAL),
        (disk(100), Standing.NEARLY_FULL),
        (disk(500, doubtful=True), Standing.DOUBTFUL),
        (disk(50, doubtful=True), Standing.NEARLY_FULL),
        (Site(no_room=True), Standing.NEARLY_FULL),
        (disk(500, cordoned=True), Standing.CORDONED),
    ],
)
def test_a_directory_is_normal_doubtful_nearly_full_or_cordoned(site: Site, expected: Standing) -> None:
    assert standing(site, nearly_full=is_nearly_full(site, 90, before=False)) is expected


@pytest.mark.parametrize(
    ("percent", "used", "after"),
    [
        (90, [89, 90, 89, 86, 85, 84, 89, 90], [False, True, True, True, True, False, False, True]),
        (100, [99, 100, 96, 94], [False, True, True, False]),
        (4, [3, 4, 3, 2, 1], [False, True, True, True, False]),
    ],
)
def test_a_nearly_full_directory_is_so_until_it_is_used_to_some_points_less(
    percent: int, used: list[int], after: list[bool]
) -> None:
    chooser, directory, found = Chooser(full_percent=percent), Uuid.of(2, 1), []
    for now_ms, each in enumerate(used):
        chooser.observe({directory: Site(capacity=Capacity(1000, 1000 - 10 * each))}, {directory: 0}, now_ms)
        found.append(chooser.is_nearly_full(directory))
    assert found == after


def test_a_directory_of_unknown_size_is_as_full_as_it_was() -> None:
    assert [is_nearly_full(Site(), 90, before=before) for before in (False, True)] == [False, True]
    assert is_nearly_full(Site(no_room=True), 90, before=False)


@pytest.mark.parametrize("policy", POLICIES)
def test_slow_nearly_full_and_cordoned_directories_come_last_in_this_order(policy: Policy) -> None:
    sites = {
        D1: disk(900, cordoned=True),
        D2: disk(5),
        D3: disk(900, doubtful=True),
        DIRECTORIES[3]: disk(110),
    }
    by = chooser(policy, sites)
    counts = {D1: 0, D2: 1, D3: 2, DIRECTORIES[3]: 3}
    order = []
    while counts:
        chosen = by.choose(counts)
        assert chosen is not None
        order.append(chosen)
        del counts[chosen]
    assert order == [DIRECTORIES[3], D3, D2, D1]
    assert by.choose({}) is None


def test_a_cordon_is_known_to_others() -> None:
    by = chooser("replicas", {D1: disk(1, cordoned=True), D2: disk(1)})
    assert (by.is_cordoned(D1), by.is_cordoned(D2), by.is_cordoned(D3)) == (True, False, False)


sites_of = st.lists(
    st.builds(
        Site,
        st.none()
        | st.builds(
            lambda total, free: Capacity(total, free * total // 100), st.integers(1, 1 << 44), st.integers(0, 100)
        ),
        st.booleans(),
        st.booleans(),
        st.booleans(),
        st.integers(0, 1 << 40),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(300))
@given(st.sampled_from(POLICIES), sites_of, st.lists(st.integers(0, 50), min_size=6, max_size=6), st.integers(0, 99))
def test_never_a_worse_class_while_a_better_one_can_take_it(
    policy: Policy, sites: list[Site], replicas: list[int], chance: int
) -> None:
    known = dict(zip(DIRECTORIES, sites, strict=False))
    counts = dict(zip(known, replicas, strict=False))
    by = Chooser(policy, 90, lambda: chance / 100)
    by.observe(known, counts, 0)
    for _ in range(5):
        chosen = by.choose(counts)
        assert chosen is not None
        assert by.standing(chosen) == min(by.standing(d) for d in counts)
        by.placed(chosen)
        counts[chosen] += 1


# ------------------------------------------------------------------------------------------------------------- policies


@settings(max_examples=examples(100))
@given(st.integers(1, 6), st.integers(0, 60))
def test_rp_5_by_number_of_replicas_counts_differ_by_at_most_one(directories: int, number: int) -> None:
    counts = dict.fromkeys(DIRECTORIES[:directories], 0)
    place(Chooser(), counts, number)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_among_equals_the_first_of_log_dirs() -> None:
    for policy in POLICIES[:2]:
        by = chooser(policy, {D1: disk(500), D2: disk(500)})
        assert by.choose({D2: 3, D1: 3}) == D2
        assert by.choose({D1: 3, D2: 3}) == D1


def test_by_free_bytes_the_emptiest_disk_whatever_lies_on_it() -> None:
    sites = {D1: disk(300), D2: disk(700), D3: disk(500)}
    assert chooser("free-bytes", sites).choose({D1: 0, D2: 900, D3: 10}) == D2


def test_by_free_bytes_a_burst_does_not_all_go_to_the_disk_that_is_the_emptiest_at_its_start() -> None:
    sites = {D1: disk(500), D2: disk(510), D3: disk(500)}
    counts = {D1: 100, D2: 100, D3: 100}
    went = place(chooser("free-bytes", sites, counts), counts, 60)
    assert max(went.values()) <= 22, went  # a mean replica has 5 GiB: two are enough to make up the difference


def test_on_new_disks_by_free_bytes_spreads_as_evenly_as_by_number() -> None:
    sites = {D1: Site(Capacity(1000 * GIB, 999 * GIB + 4096)), D2: disk(999), D3: disk(999)}
    counts = {D1: 0, D2: 0, D3: 0}
    went = place(chooser("free-bytes", sites, counts), counts, 31)
    assert sorted(went.values()) == [10, 10, 11]


def test_a_new_disk_beside_full_ones_gets_what_makes_them_even() -> None:
    sites = {D1: disk(200), D2: disk(200), D3: disk(1000)}
    counts = {D1: 80, D2: 80, D3: 0}
    went = place(chooser("free-bytes", sites, counts), counts, 80)
    assert went == {D1: 0, D2: 0, D3: 80}  # 10 GiB each: 800 GiB more


def test_what_moves_into_a_directory_is_as_good_as_there() -> None:
    sites = {D1: disk(500, moving_bytes=200 * GIB), D2: disk(400)}
    assert chooser("free-bytes", sites).choose({D1: 0, D2: 0}) == D2


def test_what_has_come_is_not_counted_twice() -> None:
    counts = {D1: 10, D2: 10}
    by = chooser("free-bytes", {D1: disk(900), D2: disk(900)}, counts)
    place(by, counts, 10)
    expected = by.free_bytes(D1)
    assert expected == 850 * GIB
    by.observe({D1: disk(870), D2: disk(900)}, counts, 1000)
    assert by.free_bytes(D1) == 850 * GIB
    by.observe({D1: disk(820), D2: disk(900)}, counts, 2000)
    assert by.free_bytes(D1) == 820 * GIB


def test_what_does_not_come_for_an_hour_is_no_longer_expected() -> None:
    counts = {D1: 10}
    by = chooser("free-bytes", {D1: disk(900)}, counts)
    place(by, counts, 1)
    by.observe({D1: disk(900)}, counts, GROWTH_MS - 1)
    assert by.free_bytes(D1) == 890 * GIB
    by.observe({D1: disk(900)}, counts, GROWTH_MS)
    assert by.free_bytes(D1) == 900 * GIB


def test_a_directory_whose_capacity_nobody_knows_comes_last_by_free_bytes_and_is_not_shut_out() -> None:
    by = chooser("free-bytes", {D1: Site(), D2: disk(101)})
    assert by.choose({D1: 0, D2: 900}) == D2
    assert by.choose({D1: 0}) == D1
    unknown = Chooser("weighted", 90, lambda: 0.99)
    assert unknown.choose({D1: 2, D2: 1}) == D2
    assert unknown.free_bytes(D1) is None


def test_weighted_goes_by_chance_in_proportion_to_free_bytes() -> None:
    by = chooser("weighted", {D1: disk(600), D2: disk(200), D3: disk(200)})
    chosen = [by.choose({D1: 0, D2: 0, D3: 0}) for _ in range(2000)]
    assert 0.55 < chosen.count(D1) / 2000 < 0.65
    assert 0.16 < chosen.count(D2) / 2000 < 0.24


def test_weighted_on_disks_where_nothing_more_fits_goes_by_number() -> None:
    small = Site(Capacity(SEGMENT_BYTES // 2, SEGMENT_BYTES // 3))
    counts = {D1: 0, D2: 0, D3: 0}
    went = place(chooser("weighted", {D1: small, D2: small, D3: small}, counts), counts, 30)
    assert max(went.values()) - min(went.values()) <= 1


def test_a_hundred_thousand_placements_are_remembered_in_a_few_steps() -> None:
    by = chooser("free-bytes", {D1: disk(900), D2: disk(900)})
    place(by, {D1: 0, D2: 0}, 100_000)
    assert by.free_bytes(D1) == 900 * GIB - 50_000 * SEGMENT_BYTES
    assert sum(len(expected.steps) for expected in by._expected.values()) == 2
