"""Invariants that are asked at the last moment, whatever the tables of states have come to."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kjbod_guard.actions import Done, Outcome
from kjbod_guard.core import GuardCore
from kjbod_guard.effects import Cut, Effect, Kill, Mask, Report
from kjbod_guard.invariants import BROKEN
from tests.guard.test_copies import NODE
from tests.guard.test_core import ACTS, NOW_MS, Moment

KINDS: dict[str, type[Effect]] = {"report": Report, "mask": Mask, "cut": Cut, "kill": Kill}


def _in_sync(one: Moment) -> None:
    one.move(0, isr=(NODE, 2, 3))


def _alone(one: Moment) -> None:
    for number in range(len(one.observed.partitions)):
        one.move(number, isr=(NODE,))


def _short(one: Moment) -> None:
    for number in range(len(one.observed.partitions)):
        one.move(number, isr=(NODE, 2))


def _blind(one: Moment) -> None:
    one.changes["blind"] = "no controller is known"


def _unheard(one: Moment) -> None:
    one.changes["answered_ms"] = NOW_MS - 60_000


def _early(one: Moment) -> None:
    for path, disk in one.disks.items():
        one.disks[path] = replace(disk, bad_ms=NOW_MS - 1_000)


@pytest.mark.parametrize(
    ("name", "happens", "number"),
    [
        ("cut", _in_sync, 1),
        ("cut", _alone, 1),
        ("cut", _unheard, 1),
        ("cut", _blind, 5),
        ("report", _alone, 2),
        ("report", _short, 2),
        ("report", _early, 3),
        ("report", _blind, 5),
        ("mask", _alone, 2),
        ("mask", _short, 2),
        ("mask", _early, 3),
        ("mask", _blind, 5),
        ("kill", _alone, 2),
        ("kill", _short, 2),
        ("kill", _blind, 5),
        ("kill", _unheard, 6),
    ],
)
def test_an_act_that_the_tables_let_through_is_refused_at_the_last_moment(
    name: str, happens: Callable[[Moment], None], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: Any) -> None:
        """Tables with a mistake: they would go on."""

    one = ACTS[name][0]()
    task = one.begun(KINDS[name])
    happens(one)
    monkeypatch.setattr(GuardCore, "_why_passed", nothing)
    found = one.core.saved(task, None, one.now)
    assert isinstance(found, Done)
    assert found.outcome is Outcome.REFUSED
    assert found.reason.startswith(f"{BROKEN} {number}: ")
    assert one.core.standing(task.path or "") == task.before, "as if it had not begun"


@pytest.mark.parametrize("name", ACTS)
def test_none_stands_in_the_way_of_what_is_due(name: str) -> None:
    one = ACTS[name][0]()
    for task in one.tasks():
        assert one.core.saved(task, None, one.now) == task.effect
