"""A guard that moves leadership off a slow disk: its lists, its journal, and what others do meanwhile."""

import asyncio
from dataclasses import dataclass, replace

import pytest

from kjbod_agent.guard import directory_steps, slow_steps
from kjbod_agent.guard.acting import Acting
from kjbod_agent.guard.budget import demotions
from kjbod_agent.guard.journal import Journal, decode, encode
from kjbod_agent.guard.ladder import NOTHING
from kjbod_agent.guard.means import REQUEST_PARTITIONS_MAX, Done, Outcome
from kjbod_agent.guard.observing import Placed
from kjbod_agent.guard.settling import UNSEEN_MS
from tests.guard.test_acting import D1, NODE, PATH, Guard, T, World, survive

LED = Placed(0, D1, True, (1, 2, 3), (1, 2, 3))


@dataclass
class SlowWorld(World):
    """A broker that leads three partitions on a disk that is slow, and then is not."""

    slow: bool = True
    failed: bool = False

    def __post_init__(self) -> None:
        for number in range(3):
            self.observed.partitions[T, number] = LED

    def facts(self, acting: Acting) -> dict[str, directory_steps.Facts]:
        if self.failed:
            return World.facts(self, acting)
        slow = slow_steps.Facts(
            path=PATH,
            directory_id=str(D1),
            slow=self.slow,
            well=not self.slow,
            demote=demotions(self.observed, D1) if self.slow else {},
            promote=acting.leading.promotable(str(D1)),
        )
        facts = directory_steps.Facts(path=PATH, directory_id=str(D1), decided=NOTHING, epoch=5, slow=slow)
        return {PATH: facts}

    def rows(self) -> set[tuple[tuple[int, ...], bool]]:
        return {(one.replicas, one.leads) for one in self.observed.partitions.values()}

    def told(self) -> Journal:
        return decode(self.saved, NODE, now_ms=self.clock.ms, wall_ms=self.clock.wall_ms())


async def test_leadership_moves_off_a_slow_disk_and_comes_back_in_its_order() -> None:
    world = SlowWorld()
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == ["restore", "elect"] and world.audit == ["demote"]  # "restore": this broker is in the lists
    assert world.rows() == {((2, 3, 1), False)}
    assert [one.before for one in world.told().demoted.values()] == [(1, 2, 3)] * 3
    world.slow = False
    await guard.rounds(20)
    assert world.audit == ["demote", "promote"] and world.rows() == {((1, 2, 3), True)}
    assert world.told().demoted == {} and guard.acting.leading.standing(PATH).state is slow_steps.State.LEADING


async def test_what_is_too_much_for_one_request_is_moved_by_two() -> None:
    world = SlowWorld()
    for number in range(REQUEST_PARTITIONS_MAX + 1):
        world.observed.partitions[T, number] = LED
    await Guard(world).rounds(20)
    assert world.deeds == ["restore", "elect"] * 2 and world.audit == ["demote"]
    assert world.rows() == {((2, 3, 1), False)}


async def test_the_next_guard_puts_back_what_the_one_before_has_moved() -> None:
    world = SlowWorld()
    await Guard(world).rounds(20)
    world.slow = False
    await Guard(world).rounds(20)
    assert world.rows() == {((1, 2, 3), True)} and world.told().demoted == {}


async def test_a_list_that_somebody_has_changed_meanwhile_is_left_alone_and_told() -> None:
    world = SlowWorld()
    guard = Guard(world)
    await guard.rounds(20)
    theirs = replace(LED, position=1, leads=False, replicas=(3, 1, 2))
    world.observed.partitions[T, 0] = theirs
    world.slow = False
    await guard.rounds(20)
    assert world.observed.partitions[T, 0] == theirs and "forgotten ['t-0']" in world.audit
    assert world.observed.partitions[T, 1] == LED and world.told().demoted == {}


async def test_no_list_is_changed_that_cannot_be_written_down() -> None:
    world = SlowWorld(no_disk=True)
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == [] and guard.acting.journal.demoted == {} and world.rows() == {((1, 2, 3), True)}
    assert "cannot be written down" in guard.acting.leading.standing(PATH).reason


async def test_a_guard_without_the_right_to_do_it_tries_it_once() -> None:
    refused = Done(outcome=Outcome.REFUSED, reason="CLUSTER_AUTHORIZATION_FAILED (31)")
    world = SlowWorld(cannot={"restore": refused, "elect": refused})
    guard = Guard(world)
    await guard.rounds(20 + UNSEEN_MS // 100)
    assert world.audit == ["demote"] and guard.acting.journal.demoted == {}
    assert "(31)" in guard.acting.leading.standing(PATH).reason


async def test_a_disk_that_fails_while_its_leadership_moves_is_cut_at_once() -> None:
    world = SlowWorld()
    guard = Guard(world)
    guard.acting.look(world.facts(guard.acting), world.broker_facts())
    assert guard.acting.leading.is_busy(PATH)
    world.failed = True
    guard.acting.look(world.facts(guard.acting), world.broker_facts())
    assert guard.acting.standing(PATH).state is directory_steps.State.CUTTING
    while guard.work:
        await guard.work.pop(0)
    assert "cut" in world.deeds


def moments() -> int:
    world = SlowWorld()
    tell(world)
    return world.moments


def tell(world: SlowWorld) -> int:
    """The disk is slow, and then it is not; how often a guard was killed."""

    async def story() -> int:
        _, killed = await survive(world, 20)
        world.slow = False
        _, again = await survive(world, 20 + UNSEEN_MS // 100)
        return killed + again

    return asyncio.run(story())


@pytest.mark.parametrize("moment", range(1, moments() + 1))
def test_a_guard_that_is_killed_at_any_moment_is_followed_by_one_that_puts_the_order_back(moment: int) -> None:
    world = SlowWorld(kill_at=moment)
    assert tell(world) <= 1
    assert world.rows() == {((1, 2, 3), True)} and world.told().demoted == {}


def test_a_journal_of_a_guard_that_knew_nothing_of_leadership_is_read() -> None:
    content = encode(Journal(), NODE, ahead_ms=0).replace(b',\n "demoted": []', b"")
    assert b"demoted" not in content and decode(content, NODE, now_ms=0, wall_ms=0) == Journal()
