"""How long connections may take to open."""

import random

import pytest

from kjbod.errors import ProtocolError
from kjbod.wire.connection_setup import ADDRESSES_MAX, ConnectionSetup
from tests.growth import entries

A, B = ("a", 1), ("b", 2)


def fail(setup: ConnectionSetup, address: tuple[str, int]) -> int:
    with pytest.raises(ProtocolError), setup.attempt(address) as limit_ms:
        raise ProtocolError("refused")
    return limit_ms


def open_(setup: ConnectionSetup, address: tuple[str, int]) -> int:
    with setup.attempt(address) as limit_ms:
        return limit_ms


def test_each_failure_in_a_row_doubles_the_time_up_to_the_maximum() -> None:
    setup = ConnectionSetup()
    assert [fail(setup, A) for _ in range(4)] == [10_000, 20_000, 30_000, 30_000]
    assert fail(setup, B) == 10_000, "another one"


def test_a_connection_that_opens_ends_the_growth() -> None:
    setup = ConnectionSetup(100, 10_000)
    assert [fail(setup, A), fail(setup, A), open_(setup, A), open_(setup, A)] == [100, 200, 400, 100]


def test_who_is_cancelled_has_learnt_nothing_of_the_peer() -> None:
    setup = ConnectionSetup(100, 10_000)
    fail(setup, A)
    with pytest.raises(KeyboardInterrupt), setup.attempt(A):
        raise KeyboardInterrupt
    assert open_(setup, A) == 200


def test_a_maximum_below_the_first_time_lets_nothing_grow_as_in_kafka() -> None:
    setup = ConnectionSetup(5_000, 100)
    assert [fail(setup, A) for _ in range(3)] == [5_000] * 3


def test_times_differ_by_a_fifth() -> None:
    setup = ConnectionSetup(1_000, 8_000, random.Random(5))
    first = [open_(setup, A) for _ in range(200)]
    assert 800 <= min(first) < 850
    assert 1_150 < max(first) <= 1_200


def test_controllers_that_fail_under_ever_new_names_fill_no_memory() -> None:
    setup = ConnectionSetup()
    for number in range(ADDRESSES_MAX * 3):
        fail(setup, (f"h{number}", 1))
    assert max(entries(setup).values()) <= 2 * ADDRESSES_MAX
    assert fail(setup, (f"h{ADDRESSES_MAX * 3 - 1}", 1)) == 20_000
