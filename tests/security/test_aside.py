"""Calls that may block: none of them takes the room of the others for good."""

import threading

import pytest

from kjbod.errors import KjbodError
from kjbod.security import aside
from kjbod.security.aside import Aside
from tests.wire.conftest import until

TIMEOUT_MS = 20_000


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "CALLS_MAX", 1)
    monkeypatch.setattr(aside, "LOST_AFTER_S", 0.0)


@pytest.mark.usefixtures("one_at_a_time")
async def test_a_call_that_hangs_for_good_gives_its_turn_to_the_next_one() -> None:
    calls, hangs = Aside(), threading.Event()
    with pytest.raises(KjbodError, match="Kerberos: no answer within 1 ms"):
        await calls.run(hangs.wait, "Kerberos", timeout_ms=1)
    assert await calls.run(lambda: 858, "Kerberos", timeout_ms=TIMEOUT_MS) == 858
    hangs.set()
    await until(lambda: calls._lost == 0)
    assert calls._turns._value == 1, "a lost call gives no turn back twice"


@pytest.mark.usefixtures("one_at_a_time")
async def test_threads_that_hang_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "LOST_MAX", 2)
    calls, hangs = Aside(), threading.Event()
    begun: list[int] = []

    def hang() -> None:
        begun.append(1)
        hangs.wait()

    for _ in range(4):
        with pytest.raises(KjbodError, match="no answer"):
            await calls.run(hang, "Kerberos", timeout_ms=50)
    assert len(begun) == 3
    hangs.set()
    await until(lambda: calls._lost == 0)
