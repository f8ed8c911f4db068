"""How long replicas without a known directory keep a broker fenced."""

import pytest

from kjbod.patience import LOOK_MS_MAX, Patience


def looks(patience: Patience, *waiting: int, step_ms: int = 1_000) -> list[bool]:
    return [patience.holds(count, number * step_ms) for number, count in enumerate(waiting)]


@pytest.mark.parametrize(
    ("waiting", "held"),
    [
        pytest.param((0,), [False], id="nothing to wait for"),
        pytest.param((2, 2, 2, 2, 2), [True, True, True, False, False], id="no progress"),
        pytest.param((2, 2, 1, 1, 1, 1), [True, True, True, True, True, False], id="progress begins anew"),
        pytest.param((1, 2, 3, 2, 1), [True, True, True, False, False], id="new topics do not prolong it"),
        pytest.param((1, 1, 0), [True, True, False], id="done in time"),
    ],
)
def test_patience_ends_when_nothing_gets_on(waiting: tuple[int, ...], held: list[bool]) -> None:
    assert looks(Patience(3_000), *waiting) == held


def test_time_in_which_nobody_looked_does_not_count() -> None:
    patience = Patience(3 * LOOK_MS_MAX)
    day_ms = 86_400_000
    assert [patience.holds(1, now_ms) for now_ms in (0, day_ms, 2 * day_ms, 3 * day_ms)] == [True, True, True, False]
