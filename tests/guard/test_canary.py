"""Whether a broker still answers and still applies metadata."""

import pytest

from kjbod_guard.canary import (
    SILENT_MS,
    STANDING_MS,
    Canary,
    answered,
    asked,
    lag,
    quorum,
    verdict,
)


def test_a_broker_is_silent_three_seconds_after_the_first_question_that_it_owes() -> None:
    canary = answered(asked(Canary(), 0), 10, 5)
    canary = asked(asked(canary, 1_000), 2_000)
    assert canary.asked_ms == 1_000
    assert verdict(canary, 1_000 + SILENT_MS - 1) is None
    assert verdict(canary, 1_000 + SILENT_MS) == "the broker has not answered ApiVersions for 3.0 s"
    assert verdict(answered(canary, 10, 4_100), 4_100) is None, "it answers again"


def test_a_broker_that_never_answered_is_not_judged() -> None:
    assert verdict(asked(Canary(), 0), 60_000) is None


def test_a_broker_stands_when_the_quorum_has_been_further_for_five_seconds() -> None:
    canary = answered(asked(Canary(), 0), 125, 5)
    canary = quorum(canary, 130, 1_000)
    for at_ms in range(2_000, 7_000, 1_000):
        assert verdict(canary, at_ms - 1) is None
        canary = answered(asked(canary, at_ms - 1), 125, at_ms)
        canary = quorum(canary, 130 + at_ms // 1_000, at_ms)
    assert verdict(canary, 1_000 + STANDING_MS) == (
        "the broker has applied no metadata for 5.0 s: it stands at offset 125, "
        "and the quorum has been at 130 or later since"
    )
    assert lag(canary, 136) == 11
    assert verdict(answered(asked(canary, 7_000), 126, 7_001), 7_001) is None, "it moves again"


@pytest.mark.parametrize("committed", [100, 125])
def test_a_broker_that_has_applied_all_does_not_stand(committed: int) -> None:
    canary = quorum(answered(asked(Canary(), 0), 125, 5), committed, 10)
    canary = quorum(answered(asked(canary, 59_999), 125, 60_000), committed, 60_000)
    assert verdict(canary, 60_000) is None


def test_a_broker_that_is_behind_and_moves_does_not_stand() -> None:
    canary = Canary()
    for number in range(60):
        canary = answered(asked(canary, number * 1_000), 100 + number, number * 1_000 + 5)
        canary = quorum(canary, 10_000 + number, number * 1_000 + 6)
        assert verdict(canary, number * 1_000 + 7) is None


def test_an_offset_that_nobody_has_asked_for_since_says_nothing() -> None:
    canary = quorum(answered(asked(Canary(), 0), 125, 5), 130, 10)
    assert verdict(canary, 60_000) is None


def test_a_broker_that_tells_no_offset_is_judged_by_its_silence_alone() -> None:
    canary = quorum(answered(asked(Canary(), 0), None, 5), 130, 10)
    assert lag(canary, 130) is None
    assert verdict(answered(asked(canary, 60_000), None, 60_000), 60_000) is None
    assert verdict(asked(canary, 60_000), 60_000 + SILENT_MS) is not None
