"""Several guards at once, in correlated trouble: real cores on one controller's log (:mod:`tests.guard.universe`).

Each story runs twice by one seed, with guards and without. The invariants of :mod:`kjbod_guard.core` are checked
at each act; at the end everything answers again, and every partition that Kafka alone serves then is served with
guards.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.agent.conftest import VirtualLoop
from tests.depth import seeds
from tests.guard.universe import Universe

LOST = (("journal", "memory"), ("journal",), ("memory",))
"""What is lost of the state directory of a guard that was killed."""
STALLS_MS = (1_000, 3_000, 7_000, 15_000, 60_000)
Story = Callable[[Universe], Awaitable[None]]


def run(seed: int, story: Story, **settings: Any) -> Universe:
    """Play a story, let everything answer again, and check what must hold."""
    loop = VirtualLoop()
    universe = Universe(loop, seed, **settings)

    async def main() -> None:
        try:
            await universe.begin()
            assert len(universe.available()) == settings.get("partitions", 6), universe.notes
            await story(universe)
            await universe.heal()
        finally:
            await universe.close()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())
    universe.check_data()
    universe.check_budget()
    return universe


def compare(seed: int, story: Story, **settings: Any) -> tuple[Universe, Universe]:
    """A story with guards and without: nothing is lost or unavailable that Kafka alone would have kept."""
    alone = run(seed, story, guarded=False, **settings)
    assert not alone.violations or settings.get("unclean"), alone.violations
    guarded = run(seed, story, guarded=True, **settings)
    told = "\n".join(guarded.notes)
    assert not guarded.violations, f"seed {seed} {settings}: {guarded.violations}\n{told}"
    worse = {key for key in alone.available() - guarded.available() if key in guarded.partitions()}
    assert not worse, f"seed {seed} {settings}: not served any more: {sorted(worse)}\n{told}"
    return alone, guarded


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
    assert not acts(guarded, "kill")
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
    assert acts(guarded, "report", "cut", "reassign", "kill") == [(1, "report"), (1, "cut"), (1, "reassign")]
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
        happen(universe, "guard killed at", (1, at, 0, lost, 3, None))
        await asyncio.sleep(30)

    return story


@pytest.mark.parametrize("lost", [*LOST, ()])
def test_a_guard_that_is_killed_between_cut_and_eviction_is_followed_by_one_that_evicts(lost: tuple[str, ...]) -> None:
    # Else the leader takes the cut copy in again where nobody writes, and it may lead after a restart.
    _, guarded = compare(7, loses(lost, "cut"))
    assert [means for _, means in acts(guarded, "cut", "reassign", "kill")] == ["cut", "reassign"]
    assert 1 not in guarded.guards[2].observed.suspects


def test_a_guard_that_is_killed_between_report_and_cut_and_loses_its_state_is_followed_by_one_that_fences() -> None:
    # The broker has files open on a disk that hangs: evicted, it would wait for it in an unlink, with the thread that
    # applies metadata.
    _, guarded = compare(7, loses(LOST[0], "report"))
    assert [means for _, means in acts(guarded, "cut", "reassign", "kill", "fence")] == ["kill", "fence"]


# --------------------------------------------------------------------------------------------------------- any story


def plan(seed: int) -> tuple[dict[str, Any], Story]:
    """Settings and a story, by a seed."""
    rng = random.Random(seed)
    brokers = rng.choice((2, 3, 3, 4, 5))
    rf = min(brokers, rng.choice((2, 3, 3)))
    settings: dict[str, Any] = {
        "brokers": brokers,
        "rf": rf,
        "min_isr": rng.choice((1, 2)) if rf > 1 else 1,
        "partitions": rng.choice((3, 6, 8)),
        "cut_after_ms": rng.choice((1_000, 3_000, 3_000, 10_000)),
        "elr": rng.random() < 0.5,
        "brokers_max": rng.choice((1, 1, 1, 2)),
        "dirs": rng.choice((2, 2, 3)),
    }
    events: list[tuple[float, str, tuple[Any, ...]]] = []
    for wave in range(rng.choice((1, 1, 2, 3))):
        begun = wave * rng.uniform(5, 70)
        for number in rng.sample(range(1, brokers + 1), rng.randint(1, brokers)):
            at = begun + rng.choice((0.0, rng.uniform(0, 2)))
            events.append((at, "hang", (number, rng.randrange(settings["dirs"]), rng.choice((*STALLS_MS, None)))))
        if rng.random() < 0.5:
            kind = rng.choice(("stall", "fail_over"))
            events.append((begun + rng.uniform(-1, 12), kind, (rng.choice((500, 2_000, 6_000, 20_000)),)))
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        to_guard = ("guard killed", "state lost", "guard cut off", "state full")
        kind = rng.choice((*to_guard, "crash", "reassign", "delete", "widen"))
        events.append((rng.uniform(0, 60), kind, (rng.randint(1, brokers), rng.uniform(0.5, 20), rng.random())))
    hung = [arguments[0] for _, kind, arguments in events if kind == "hang"]
    if rng.random() < 0.3:
        events.append((rng.uniform(0, 8), "rest", (60_000,)))
    for _ in range(rng.choice((0, 1, 1, 2))):
        means = rng.choice(
            ("suspect", "report", "report", "cut", "cut", "mask", "reassign", "reassign", "trust", "kill")
        )
        lost = rng.choice((*LOST, *LOST, ()))
        later_ms, after_s = rng.choice((0, 0, rng.randint(0, 100))), rng.choice((0.5, rng.uniform(0.5, 40)))
        also = rng.choice((None, None, "answer", "crash", "stall", "fail_over"))
        events.append((0, "guard killed at", (rng.choice(hung), means, later_ms, lost, after_s, also)))

    async def story(universe: Universe) -> None:
        for at, kind, arguments in sorted(events, key=lambda one: one[0]):
            universe.loop.call_later(max(0.0, at), happen, universe, kind, arguments)
        await asyncio.sleep(max(100, 20 + max(at for at, _, _ in events)))

    return settings, story


def happen(universe: Universe, kind: str, arguments: tuple[Any, ...]) -> None:
    """An event of a story."""
    match kind, arguments:
        case "hang", (number, disk, ms):
            universe.hang(number, disk, ms)
        case "stall", (ms,):
            universe.stall(ms)
        case "fail_over", (ms,):
            universe.fail_over(ms)
        case "rest", (ms,):
            universe.rests_until_ms = universe.now_ms + ms
        case "crash", (number, _, _):
            universe.crash(number)
        case "reassign", (number, _, chance):
            keys = sorted(universe.partitions())
            key = keys[int(chance * len(keys))]
            others = [one for one in universe.brokers if one != number][: universe.rf]
            universe.spawn(_quietly(universe.reassign({key: others})))
        case "delete", _:
            universe.spawn(_again(universe))
        case "widen", _:
            universe.spawn(_quietly(universe.widen("t", universe.count + 2)))
        case _ if not universe.guarded:
            return
        case "guard killed", (number, after_s, _):
            kill(universe, number, (), after_s)
        case "state lost", (number, after_s, _):
            kill(universe, number, LOST[0], after_s)
        case "guard killed at", (number, means, later_ms, lost, after_s, also):

            def die() -> None:
                universe.at(universe.now_ms + later_ms, lambda: kill(universe, number, lost, after_s, also))

            universe.guards[number].at = (means, die)
        case "guard cut off", (number, for_s, _):
            universe.guards[number].broken_until_ms = universe.now_ms + round(for_s * 1000)
        case "state full", (number, for_s, _):
            universe.guards[number].state_broken_until_ms = universe.now_ms + round(for_s * 1000)


def kill(universe: Universe, number: int, lost: tuple[str, ...], after_s: float, also: str | None = None) -> None:
    """A guard is killed, and another one starts with what is left of its state; and something else happens then."""
    guard = universe.guards[number]
    if not guard.is_dead:
        guard.kill()
        universe.loop.call_later(after_s, guard.restart)
    if "journal" in lost:
        guard.saved = b""
    if "memory" in lost:
        guard.memory = set()
    match also:
        case "answer":
            for disk in universe.brokers[number].disks:
                universe.answer(disk)
        case "crash":
            universe.crash(number)
        case "stall":
            universe.stall(3_000)
        case "fail_over":
            universe.fail_over(1_500)


async def _quietly(work: Awaitable[Any]) -> None:
    try:
        await work
    except (TimeoutError, ConnectionError):
        return


async def _again(universe: Universe) -> None:
    """A topic is deleted and made again."""
    try:
        await universe.make_topic("u", 2)
        await asyncio.sleep(3)
        await universe.delete_topic("u")
        for key in [key for key in universe.acked if key[0] == "u"]:
            del universe.acked[key]
    except (TimeoutError, ConnectionError):
        return


@pytest.mark.parametrize("seed", seeds(quick=4, ci=20, deep=2_000))
def test_no_story_makes_a_cluster_worse_than_kafka_alone(seed: int) -> None:
    settings, story = plan(seed)
    compare(seed, story, **settings)
