"""``--depth`` and ``--seed``: what is drawn is drawn again by its seed, and in some days everything is."""

import itertools

import pytest

from tests import depth
from tests.depth import Points
from tests.stamp import seedless

POINTS = range(1, 61)
ALWAYS = (17, 42)


def sample(seed: int, *, count: int = 12, part: int = 0, parts: int = 1) -> list[int]:
    return Points(part, parts, count, seed).of(POINTS, ALWAYS)


def test_without_a_seed_the_parts_have_every_point_once() -> None:
    parts = [Points(part, 4, 3, None).of(POINTS, ALWAYS) for part in range(4)]
    assert sorted(itertools.chain(*parts)) == list(POINTS)
    assert {len(part) for part in parts} == {15}


@pytest.mark.parametrize("seed", range(50))
def test_a_sample_is_that_of_its_seed_and_as_large_as_any_with_first_last_and_what_is_always_in_it(seed: int) -> None:
    drawn = sample(seed)
    assert drawn == sample(seed) == sorted(drawn)
    assert len(drawn) == 12
    assert {1, 17, 42, 60} <= set(drawn)


def test_parts_of_a_sample_have_no_point_in_common_and_each_draws_its_own() -> None:
    parts = [sample(1, count=3, part=part, parts=4) for part in range(4)]
    assert len(set(itertools.chain(*parts))) == sum(map(len, parts)) == 12
    assert {1, 17, 42, 60} <= set(itertools.chain(*parts))


def test_samples_of_some_days_have_met_every_point() -> None:
    met = {point for seed in range(40) for point in sample(seed)}
    assert met == set(POINTS)


@pytest.mark.parametrize("number", range(5))
def test_where_there_are_fewer_points_than_asked_for_all_of_them_are_taken(number: int) -> None:
    assert Points(0, 1, 12, 7).of(range(number)) == list(range(number))


def test_the_id_of_a_part_names_its_seed_or_says_that_it_is_all() -> None:
    assert [str(Points(0, 1, 9, seed)) for seed in (4711, None)] == ["seed=4711", "all"]
    assert str(Points(1, 4, 9, 4711)) == "2-of-4-seed=4711"


CELLS = [f"cell {number}" for number in range(30)]


@pytest.mark.parametrize(("deep", "count"), [("quick", 2), ("ci", 10), ("deep", 30)])
def test_a_sample_of_cells_is_as_large_as_the_depth_says_and_in_their_order(
    monkeypatch: pytest.MonkeyPatch, deep: str, count: int
) -> None:
    monkeypatch.setattr(depth._session, "depth", deep)
    for seed in range(20):
        monkeypatch.setattr(depth._session, "seed", seed)
        drawn = depth.sample(CELLS, ci=10)
        assert drawn == depth.sample(CELLS, ci=10) == sorted(drawn, key=CELLS.index)
        assert len(drawn) == count
    salted = {tuple(depth.sample(CELLS, ci=1, quick=1, salt=salt)) for salt in "abcdefgh"}
    assert len(salted) > 1 or deep == "deep"


def test_of_the_examples_a_quick_run_has_a_fifth_ci_three_fifths_and_a_deep_one_25_times_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for each in ("quick", "ci", "deep"):
        monkeypatch.setattr(depth._session, "depth", each)
        found.append((depth.examples(100), depth.examples(3), depth.steps(40), len(depth.seeds())))
    assert found == [(20, 1, 20, 1), (60, 1, 40, 1), (2_500, 75, 60, 25)]


def test_of_dear_tests_some_are_drawn_and_of_cheap_ones_all(monkeypatch: pytest.MonkeyPatch) -> None:
    dear = 10 * depth.DEAR_DRAWN
    noted = {f"test_it.py::test_{number}[seed]": depth.DEAR_S - number % 2 for number in range(2 * dear)}
    ids = [f"test_it.py::test_{number}[seed=7]" for number in range(2 * dear)]
    met: set[str] = set()
    for seed in range(60):
        monkeypatch.setattr(depth._session, "seed", seed)
        left_out = depth.undrawn(ids, noted)
        assert len(left_out) == dear - 10 and all(noted[seedless(one)] == depth.DEAR_S for one in left_out)
        met |= set(ids) - left_out
    assert met == set(ids)
