"""The rules of health, each number as it was weighed, and in words."""

from kjbod.fleet.insight.rules import SIGNS, Judged, best, is_baseline, reasons, score, weight


def test_a_disk_that_says_nothing_is_no_risk() -> None:
    assert score({}) == 0
    assert reasons({}) == []


def test_a_disk_that_is_well_is_no_risk() -> None:
    well = {
        "smart_passed": 1,
        "smart_realloc": 0,
        "smart_realloc_grown": 0,
        "smart_spare_pct": 100,
        "smart_wear_pct": 12,
    }
    assert score({**well, "smart_temp_c": 41, "io_errors": 0, "slow_ratio": 1.1}) == 0


def test_growth_weighs_more_than_what_has_been_there_for_long() -> None:
    old = {"smart_realloc": 40, "smart_realloc_grown": 0}
    assert score(old) == 0.1
    assert score({"smart_realloc": 40, "smart_realloc_grown": 2}) == 0.5
    assert reasons({"smart_realloc": 40, "smart_realloc_grown": 2}) == [
        "SMART 5 reallocated sectors: 40, +2 in 14 days"
    ]
    assert reasons(old) == ["SMART 5 reallocated sectors: 40"]


def test_signs_add_up_and_the_weightiest_is_told_first() -> None:
    facts = {"smart_realloc": 3, "smart_passed": 0, "smart_wear_pct": 97, "slow_ratio": 3.25}
    assert score(facts) == round(1 - 0.9 * 0.05 * 0.3 * 0.3, 4)
    assert reasons(facts) == [
        "the disk says of itself that it fails: passed: 0",
        "worn: 97 %",
        "times slower than its peers under its load: 3.2",
        "SMART 5 reallocated sectors: 3",
    ]


def test_every_sign_can_be_reached_and_none_alone_is_certain() -> None:
    for sign in SIGNS:
        for step in sign.steps:
            assert 0 < weight(sign, {step.fact: step.mark}) <= step.weight or step.weight == 0
            beyond = step.mark + (1 if step.below else -1)
            assert weight(sign, {step.fact: beyond}) < step.weight
            assert step.weight < 1


def test_the_baseline_is_any_of_three_above_zero() -> None:
    assert not is_baseline({"smart_realloc": 0, "smart_pending": None, "smart_uncorrect": 9})
    assert is_baseline({"smart_pending": 1})


def test_the_threshold_that_is_chosen_has_few_false_alarms() -> None:
    def judged(threshold: float, told: int, false: int) -> Judged:
        return Judged(
            threshold=threshold, failed_alarmed=told, failed=10, well_alarmed=false, well=1000, lead_days=None
        )

    assert best([judged(0.1, 9, 200), judged(0.5, 6, 4), judged(0.9, 0, 0)]).threshold == 0.5
    assert judged(0.5, 6, 4).precision == 0.6
    assert judged(0.9, 0, 0).precision is None
