"""Several guards at once, in correlated trouble: real cores on one controller's log (:mod:`tests.guard.universe`).

Each story runs twice by one seed, with guards and without (:mod:`tests.guard.stories`). The invariants of
:mod:`kjbod_guard.core` are checked
at each act; at the end everything answers again, and every partition that Kafka alone serves then is served with
guards.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kjbod.metadata.log_files import SegmentedLog
from tests.depth import Points, seeds, sweep
from tests.guard.lossy_disk import LossyDisk
from tests.guard.stories import (
    LOST,
    STALLS_MS,
    Event,
    Moment,
    Plan,
    Story,
    compare,
    happen,
    plan,
    play,
    run,
    shorten,
)
from tests.guard.universe import STAGES, Universe


def acts(universe: Universe, *means: str) -> list[tuple[int, str]]:
    return [(one.broker, one.means) for one in universe.acts if one.means in means]


# ---------------------------------------------------------------------------------------------- stories of the issue


@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("skew_s", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("ms", STALLS_MS)
def test_three_disks_that_stand_still_at_once_cost_nothing(ms: int, skew_s: float, stalled: bool) -> None:
    async def story(universe: Universe) -> None:
        if stalled:
            universe.stall(ms)
        for number in universe.brokers:
            universe.loop.call_later(number * skew_s, universe.hang, number, 0, ms)
        await asyncio.sleep(ms / 1000 + 20)

    _, guarded = compare(7, story)
    assert all(guarded.brokers[number].stuck_ms for number, _ in acts(guarded, "kill"))
    if not skew_s:  # all verdicts are there before the first guard may act; and the last disk is waited for as well
        assert not acts(guarded, "report", "cut", "mask")


@pytest.mark.parametrize("ms", STALLS_MS)
def test_two_disks_of_two_copies_that_stand_still_at_once_leave_a_leader(ms: int) -> None:
    async def story(universe: Universe) -> None:
        universe.hang(1, 0, ms)
        universe.hang(2, 0, ms)
        await asyncio.sleep(ms / 1000 + 20)

    compare(7, story, brokers=2, rf=2, min_isr=1)


def test_a_disk_that_is_dead_is_cut_and_evicted_and_everything_is_served_at_once() -> None:
    async def story(universe: Universe) -> None:
        universe.hang(1, 0, None)
        await asyncio.sleep(8)
        assert len(universe.available()) == 6 or not universe.guarded, universe.notes

    alone, guarded = compare(7, story)
    # It may have become a follower there before the cut: then its fetcher is stuck, and it is fenced as well.
    assert acts(guarded, "report", "cut", "reassign")[:3] == [(1, "report"), (1, "cut"), (1, "reassign")]
    assert len(alone.acked["t", 0]) < len(guarded.acked["t", 0])


@pytest.mark.parametrize("ms", [2_500, 7_000])
def test_a_disk_that_answers_in_time_is_left_alone(ms: int) -> None:
    async def story(universe: Universe) -> None:
        universe.hang(1, 0, ms)
        await asyncio.sleep(20)

    _, guarded = compare(7, story, cut_after_ms=10_000)
    assert acts(guarded, "report", "cut", "mask", "kill", "reassign") == []


def test_the_only_copy_is_never_touched() -> None:
    async def story(universe: Universe) -> None:
        universe.hang(1, 0, 60_000)
        await asyncio.sleep(70)

    _, guarded = compare(7, story, brokers=2, rf=1, min_isr=1)
    assert acts(guarded, "report", "cut", "mask", "kill", "reassign") == []


def test_a_second_dead_disk_waits_for_a_minute_and_is_cut_then() -> None:
    async def story(universe: Universe) -> None:
        universe.hang(1, 0, None)
        universe.hang(4, 0, None)
        await asyncio.sleep(100)

    _, guarded = compare(7, story, brokers=6)
    first, second = [one.at_ms for one in guarded.acts if one.means == "cut"]
    assert second - first >= 60_000


def test_a_guard_that_is_killed_between_report_and_cut_is_followed_by_one_that_goes_on() -> None:
    async def story(universe: Universe) -> None:
        universe.hang(1, 0, None)
        if universe.guarded:
            while not acts(universe, "report"):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            universe.guards[1].kill()
            await asyncio.sleep(3)
            universe.guards[1].restart()
        await asyncio.sleep(20)

    _, guarded = compare(7, story)
    assert [means for _, means in acts(guarded, "cut", "reassign")] == ["cut", "reassign"] or acts(guarded, "kill")


def loses(lost: tuple[str, ...], at: str) -> Story:
    """The guard of a disk that hangs for good is killed at an act, and the next one finds only a part of its state."""

    async def story(universe: Universe) -> None:
        universe.hang(1, 0, None)
        universe.at_moment(1, at, lambda: happen(universe, "guard killed", (1, lost, 3)))
        await asyncio.sleep(30)

    return story


@pytest.mark.parametrize("lost", [*LOST, ()])
def test_a_guard_that_is_killed_between_cut_and_eviction_is_followed_by_one_that_evicts(lost: tuple[str, ...]) -> None:
    # Else the leader takes the cut copy in again where nobody writes, and it may lead after a restart.
    _, guarded = compare(7, loses(lost, "cut"))
    assert [means for _, means in acts(guarded, "cut", "reassign", "kill")][:2] == ["cut", "reassign"]
    assert 1 not in guarded.guards[2].observed.suspects


def test_a_guard_that_is_killed_between_report_and_cut_and_loses_its_state_is_followed_by_one_that_fences() -> None:
    # The broker has files open on a disk that hangs: evicted, it would wait for it in an unlink, with the thread that
    # applies metadata.
    _, guarded = compare(7, loses(LOST[0], "report"))
    assert [means for _, means in acts(guarded, "cut", "reassign", "kill", "fence")] == ["kill", "fence"]


# ------------------------------------------------------------------------------- two troubles within milliseconds


HUNG = {"brokers": 3, "rf": 3, "min_isr": 2, "partitions": 3, "cut_after_ms": 3_000}
MEETING: dict[str, tuple[object, ...]] = {
    "hang": (2, 0, None),
    "freeze": (2, 1, None),
    "fail": (2, 1, None),
    "crash": (2,),
    "restart": (2,),
    "stall": (6_000,),
    "slow": (6_000,),
    "fail_over": (1_500,),
    "power off": (1_500, True),
    "host cut off": (2, 12_000),
    "guard killed": (1, LOST[0], 3),
    "guard cut off": (1, 12_000),
    "state full": (1, 12_000),
    "guard stands still": (1, 3_000),
    "release": (1, 0),
    "replace": (1, 0),
    "cordon": (1, 1),
    "reassign": (2, 0.0),
    "delete": (),
    "widen": (),
    "answer": (1,),
}
ON_THE_WAY = [f"{act}{stage}" for act in ("suspect", "report", "cut", "reassign") for stage in STAGES]
MEETINGS = [(name, kind) for name in ON_THE_WAY for kind in MEETING]


@pytest.mark.parametrize("points", sweep(16))
def test_whatever_happens_right_at_an_act_makes_nothing_worse(points: Points) -> None:
    for name, kind in points.of(MEETINGS):
        meeting = (Event(0.0, "hang", (1, 0, None)), Event(Moment(1, name), kind, MEETING[kind]))
        played = play(Plan(7, HUNG, meeting))
        assert not played.problems, "\n".join([f"{kind} at {name}", *played.problems, *played.guarded.notes])


def test_what_meets_a_moment_of_a_guard_happens_at_the_same_time_without_guards() -> None:
    meeting = (Event(0.0, "hang", (1, 0, None)), Event(Moment(1, "cut"), "crash", (2,)))
    played = play(Plan(7, HUNG, meeting))
    assert acts(played.guarded, "cut")
    for (with_ms, kind, _), (without_ms, same, _) in zip(played.guarded.happened, played.alone.happened, strict=True):
        assert kind == same
        assert abs(with_ms - played.guarded.begun_ms - without_ms + played.alone.begun_ms) <= 1
    assert any("broker 2 ends: it crashed" in one for one in played.alone.notes)


def test_a_broken_story_is_shortened_to_what_breaks_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(universe: Universe) -> None:
        crashed = any("broker 2 ends" in one for one in universe.notes)
        if crashed and acts(universe, "cut"):
            universe.violations.append("planted: a cut, and broker 2 ended")

    monkeypatch.setattr(Universe, "check_budget", check)
    long = (
        Event(0.0, "hang", (1, 0, None)),
        Event(Moment(1, "cut", 40), "crash", (2,)),
        Event(20.0, "widen", ()),
        Event(30.0, "stall", (2_000,)),
        Event(Moment(1, "suspect"), "guard cut off", (3, 500)),
    )
    shorter = shorten(Plan(7, HUNG, long), "planted")
    assert shorter.events == (long[0], Event(Moment(1, "cut"), "crash", (2,)))


# --------------------------------------------------------------------------------------------------------- any story


@pytest.mark.parametrize("seed", seeds(quick=4, ci=20, deep=2_000))
def test_no_story_makes_a_cluster_worse_than_kafka_alone(seed: int) -> None:
    played = play(plan(seed))
    assert not played.problems, "\n".join([*played.problems, *plan(seed).lines(), *played.guarded.notes])


# --------------------------------------------------------------------------------------------- the controller's log


POWER = [("power off", (500, True)), ("power off", (2_000, False)), ("fail_over", (500,))]


def losing(times: int) -> Plan:
    """A controller that dies again and again, each time right at another record."""
    dying = [Event(5.0 * number + 1, "widen" if number % 2 else "delete", ()) for number in range(times)] + [
        Event(5.0 * number + 1 + 0.02 * number, *POWER[number % len(POWER)]) for number in range(times)
    ]
    return Plan(7, HUNG, (Event(0.0, "hang", (1, 0, None)), *dying))


def test_what_a_controller_acknowledged_is_there_after_each_of_its_deaths() -> None:
    played = play(losing(12))
    assert not played.problems, played.problems
    assert played.guarded.controller.starts > 10


def sync_nothing(fd: int) -> None: ...


def acknowledge_first(files: SegmentedLog) -> None:
    """Instead of a sync."""


@pytest.mark.parametrize(
    ("module", "name", "instead"),
    [(os, "fdatasync", sync_nothing), (SegmentedLog, "sync", acknowledge_first)],
    ids=["no fdatasync", "no sync"],
)
def test_a_controller_that_acknowledges_what_is_not_on_its_disk_is_found(
    module: object, name: str, instead: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = LossyDisk.watched

    @contextmanager
    def watched(disk: LossyDisk) -> Iterator[None]:
        with entered(disk):
            monkeypatch.setattr(module, name, instead)
            yield
            monkeypatch.undo()

    with monkeypatch.context() as outer:
        outer.setattr(LossyDisk, "watched", watched)
        universe = run(7, losing(6).play, guarded=False, **HUNG)
    assert any("controller: " in one for one in universe.violations)
