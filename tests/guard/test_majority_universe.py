"""Nodes that are controllers and brokers, in the universe: the disks of their metadata logs hang, and whatever the
moments, the quorum keeps its majority."""

import random

import pytest

from tests.depth import seeds
from tests.guard.stories import METADATA, Event, Plan, run
from tests.guard.universe import Universe

LAST_S = 60


def story(seed: int) -> Plan:
    rng = random.Random(seed)
    size = rng.choice((3, 5))
    settings = {"brokers": size, "rf": 3, "min_isr": 1, "partitions": 3, "combined": True, "late_ms": 700}
    events = [Event(rng.uniform(0, 10), "hang", (number, METADATA, None)) for number in range(1, size + 1)]
    events += [
        Event(rng.uniform(0, 30), "guard stands still", (rng.randint(1, size), rng.randint(0, 12_000)))
        for _ in range(rng.choice((0, 1, 2, 4)))
    ]
    if rng.random() < 0.3:
        events.append(Event(rng.uniform(0, 20), rng.choice(("fail_over", "slow", "stall")), (rng.randint(500, 4_000),)))
    if rng.random() < 0.5:
        events.append(Event(rng.uniform(0, 20), "crash", (rng.randint(1, size),)))
    return Plan(seed, settings, tuple(events))


def killed(universe: Universe) -> list[int]:
    return [one.broker for one in universe.acts if one.means == "kill"]


@pytest.mark.parametrize("seed", seeds(quick=3, ci=8, deep=1_000))
def test_whatever_the_moments_the_quorum_keeps_its_majority(seed: int) -> None:
    plan = story(seed)
    universe = run(seed, plan.play, **plan.settings)
    told = "\n".join([*universe.violations, *plan.lines(), *universe.notes])
    assert not universe.violations, told
    assert killed(universe) or "crash" in {one.kind for one in plan.events}, "it comes to an end"
    within = [
        one.broker for one in universe.acts if one.means == "kill" and one.at_ms - universe.begun_ms < LAST_S * 1000
    ]
    assert len(set(within)) <= 1, told
