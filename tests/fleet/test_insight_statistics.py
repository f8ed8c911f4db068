"""Rates, limits and survival against published figures and against the plain definition."""

import json
import math
import random

import pytest

pytest.importorskip("scipy", reason="needs the fleet extra")

from kjbod.fleet.insight.model import plain, rate_text
from kjbod.fleet.insight.statistics import gini, kaplan_meier, poisson_limits, rate, student_t, survival_limits
from tests.depth import examples

PUBLISHED = [
    ("MD04ABA400V Q2'20", 9_009, 0, 0.00),
    ("HMS5C4040BLE640 Q2'20", 1_159_472, 9, 0.28),
    ("HMS5C4040ALE640 Q2'20", 266_200, 1, 0.14),
    ("ST4000DM000 Q2'20", 1_739_577, 49, 1.03),
    ("ST6000DX000 Q2'20", 80_626, 0, 0.00),
    ("ST8000DM002 Q2'20", 890_937, 17, 0.70),
    ("ST8000NM0055 Q2'20", 1_316_313, 33, 0.92),
    ("HMS5C4040BLE640 Q1'20", 1_159_692, 9, 0.28),
    ("HMS5C4040ALE640 Q1'20", 260_807, 4, 0.56),
    ("WUH722222ALE6L4 Q3'25", 3_555_491, 50, 0.51),
    ("MG10ACA20TE Q3'25", 1_416_127, 21, 0.54),
    ("ST16000NM001G Q3'25", 3_125_133, 57, 0.67),
]
"""Backblaze: model and quarter, drive-days, failures, annualised failure rate in percent."""


@pytest.mark.parametrize(("name", "drive_days", "failures", "afr"), PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_a_published_failure_rate_comes_out_to_its_last_digit(
    name: str, drive_days: int, failures: int, afr: float
) -> None:
    found = rate(drive_days, failures)
    assert found.afr_pct is not None and found.low_pct is not None and found.high_pct is not None
    assert round(found.afr_pct, 2) == afr
    assert found.low_pct <= found.afr_pct < found.high_pct


def test_the_upper_limit_is_that_of_an_independent_analysis() -> None:
    """One-sided 95 % bounds that others printed for Q3 2025."""
    for drive_days, failures, bound in [(3_555_491, 50, 0.65), (1_416_127, 21, 0.78)]:
        assert round(36_500 * poisson_limits(failures, 0.90)[1] / drive_days, 2) == bound


@pytest.mark.parametrize(
    ("failures", "low", "high"), [(0, 0.0, 3.6889), (1, 0.0253, 5.5716), (2, 0.2422, 7.2247), (10, 4.7954, 18.3904)]
)
def test_limits_are_the_exact_ones_of_the_tables(failures: int, low: float, high: float) -> None:
    assert poisson_limits(failures) == pytest.approx((low, high), abs=1e-4)


def test_without_failures_only_the_upper_limit_says_something() -> None:
    found = rate(10_000, 0)
    assert (found.afr_pct, found.low_pct, found.mtbf_hours, found.mtbf_high_hours) == (0.0, 0.0, None, None)
    assert found.high_pct == pytest.approx(13.46, abs=0.01)
    assert found.mtbf_low_hours == pytest.approx(240_000 / 3.6889, rel=1e-4)


def test_without_exposure_there_is_no_rate() -> None:
    found = rate(0, 0)
    assert (found.afr_pct, found.high_pct, found.mtbf_low_hours) == (None, None, None)


@pytest.mark.parametrize(
    ("drive_days", "failures", "least", "said"),
    [
        (12, 3, 1_000, "too few drive-days (12)"),
        (28, 7, 1_000, "too few drive-days (28)"),
        (999, 0, 1_000, "too few drive-days (999)"),
        (9_999, 2, 10_000, "too few drive-days (9,999)"),
        (0, 0, 1_000, "too few drive-days (0)"),
        (1, 1, 1_000, "too few drive-days (1)"),
        (1_000, 1, 1_000, "36.50 % (0.92 to 203.36)"),
        (10_000, 10, 10_000, "36.50 % (17.50 to 67.12)"),
        (10_000, 0, 10_000, "< 13.46 %"),
    ],
)
def test_a_rate_has_its_limits_and_enough_drive_days_or_there_are_counts_alone(
    drive_days: int, failures: int, least: int, said: str
) -> None:
    found = rate(drive_days, failures, least)
    assert (found.drive_days, found.failures, rate_text(found)) == (drive_days, failures, said)
    rest = [value for name, value in plain(found).items() if name not in ("drive_days", "failures")]
    assert all(value is None for value in rest) == (drive_days < least)


def test_ages_are_in_order_absurd_ones_too() -> None:
    from kjbod.fleet.insight.reliability import UNKNOWN, _age_name, _age_order

    ages = ["3", UNKNOWN, "-131521960370391", "10", "0", "-1"]
    names = sorted(map(_age_name, ages), key=_age_order)
    assert names == [_age_name(age) for age in ("-131521960370391", "-1", "0", "3", "10", UNKNOWN)]


def naive_survival(lives: list[tuple[int, int, bool]], least: int) -> list[tuple[int, int, float]]:
    share, steps = 1.0, []
    for age in sorted({last for _, last, failed in lives if failed}):
        at_risk = sum(first <= age <= last for first, last, _ in lives)
        dead = sum(failed and last == age for _, last, failed in lives)
        if at_risk >= least and at_risk > dead:
            share *= 1 - dead / at_risk
            steps.append((age, at_risk, share))
    return steps


def test_survival_is_that_of_the_plain_definition() -> None:
    rng = random.Random(5)
    for _ in range(examples(20)):
        lives = []
        for _ in range(rng.randrange(1, 60)):
            first = rng.randrange(50)
            lives.append((first, first + rng.randrange(30), rng.random() < 0.3))
        least = rng.choice([1, 2, 5])
        steps, left_out = kaplan_meier(lives, least)
        naive = naive_survival(lives, least)
        assert [(s.age_years, s.at_risk) for s in steps] == [step[:2] for step in naive]
        assert [s.survival for s in steps] == pytest.approx([share for *_, share in naive])
        assert sum(s.failures for s in steps) + left_out == sum(failed for *_, failed in lives)
        assert all(0 <= s.low <= s.survival <= s.high <= 1 for s in steps)


def test_a_late_comer_is_not_at_risk_before_it_came() -> None:
    steps, _ = kaplan_meier([(0, 10, True), (0, 20, False), (15, 30, False)], 1)
    assert [(s.at_risk, s.survival) for s in steps] == [(2, 0.5)]


def test_few_drives_at_risk_make_no_step() -> None:
    steps, left_out = kaplan_meier([(0, age, True) for age in range(1, 61)], 50)
    assert (len(steps), left_out) == (11, 49)


def test_limits_of_survival_stay_between_none_and_all() -> None:
    assert survival_limits(1.0, 0.0) == (1.0, 1.0)
    low, high = survival_limits(0.9, 0.01)
    assert 0 < low < 0.9 < high < 1


def test_evenness() -> None:
    assert gini([]) is None
    assert gini([0, 0]) is None
    assert gini([3, 3, 3]) == pytest.approx(0)
    assert gini([0, 0, 0, 8]) == pytest.approx(0.75)
    assert gini([1, 2, 3, 4]) == pytest.approx(0.25)


def test_the_t_quantile_is_that_of_the_tables() -> None:
    assert student_t(1) == pytest.approx(12.706, abs=1e-3)
    assert student_t(28) == pytest.approx(2.048, abs=1e-3)


def test_what_json_has_no_word_for_is_null() -> None:
    assert json.loads(json.dumps(plain({"a": math.nan, "b": (math.inf, 1.5), "c": rate(0, 0)}))) == {
        "a": None,
        "b": [None, 1.5],
        "c": plain(rate(0, 0)),
    }
