"""Periodic tasks: when they run, and in which order."""

import pytest

from kjbod_controller_stub.periodic import PeriodicTasks
from kjbod_controller_stub.results import Result


def test_a_task_runs_once_per_period_from_activation_on() -> None:
    ran: list[int] = []
    tasks = PeriodicTasks()
    tasks.add("balance", 300, lambda now_ms: ran.append(now_ms))
    tasks.activate(1_000)
    assert tasks.next_due_ms() == 1_300
    for now_ms in (1_299, 1_300, 1_301, 1_600):
        assert tasks.run(now_ms) is None
    assert ran == [1_300, 1_600]


def test_a_result_ends_the_pass_and_the_other_task_has_the_next_one() -> None:
    first, second = Result(), Result()
    tasks = PeriodicTasks()
    tasks.add("later", 20, lambda now_ms: second)
    tasks.add("sooner", 10, lambda now_ms: first)
    tasks.activate(0)
    assert tasks.run(20) is first
    assert tasks.run(20) is second
    assert tasks.run(20) is None


def test_a_task_can_be_hastened() -> None:
    tasks = PeriodicTasks()
    tasks.add("balance", 300, lambda now_ms: Result())
    tasks.activate(0)
    tasks.hasten("balance", 5)
    assert tasks.next_due_ms() == 5
    with pytest.raises(KeyError):
        tasks.hasten("unknown", 5)
