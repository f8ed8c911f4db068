"""Replica lists that a guard puts in another order: off a slow disk and back, with its journal, and what others do
meanwhile."""

import asyncio
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod_guard import lists, slow_steps
from kjbod_guard.action_runner import ActionRunner
from kjbod_guard.actions import REQUEST_PARTITIONS_MAX, Controllers, Done, Name, Outcome
from kjbod_guard.core import GuardCore
from kjbod_guard.journal import Journal, decode, encode
from kjbod_guard.observing import Observed, Placed
from kjbod_guard.retries import GIVE_UP_MS
from kjbod_guard.settling import UNSEEN_MS
from kjbod_guard.situation import Site, Situation
from kjbod_guard.slow_steps import AGAIN_MS
from kjbod_guard.suspects import decode as decode_suspects
from kjbod_host.health.state import Health
from tests.guard.test_copies import ALL, D1, NODE, T, observed
from tests.guard.test_deciding import PATH, SITE, disk, well

DONE = Done(outcome=Outcome.DONE)
DEMOTING = replace(SITE, demote=True)
LOOK_MS = 100


class Killed(BaseException):
    """The guard is killed."""


@dataclass
class World:
    """A broker that leads three partitions on a disk that is slow, then is not. What a guard does outlives the guard.

    Attributes:
        kill_at: at which moment the guard is killed; None: at none.
        refused: partitions whose lists the controllers refuse to change.
    """

    ms: int = 1_000_000
    slow: bool = True
    failed: bool = False
    kill_at: int | None = None
    moments: int = 0
    deeds: list[str] = field(default_factory=list)
    asked: list[Name] = field(default_factory=list)
    audit: list[str] = field(default_factory=list)
    saved: bytes = b""
    no_disk: bool = False
    refused: Collection[Name] = ()
    observed: Observed = field(default_factory=lambda: observed(ALL, ALL, ALL))

    def monotonic_ms(self) -> int:
        return self.ms

    wall_ms = monotonic_ms

    def moment(self) -> None:
        """A point at which the guard may be killed."""
        self.moments += 1
        if self.moments == self.kill_at:
            raise Killed

    def situation(self) -> Situation:
        disks = (disk(bad_ms=self.ms - 60_000) if self.failed else well(PATH), well())
        first = replace(disks[0], health=Health.SLOW) if self.slow and not self.failed else disks[0]
        return Situation(
            now_ms=self.ms,
            wall_ms=self.ms,
            disks={one.path: one for one in (first, disks[1])},
            observed=self.observed,
            answered_ms=self.ms,
            pid=7,
        )

    # ---- the controllers

    async def suspect(self, value: str | None) -> Done:
        if value is not None:
            self.observed.suspects[NODE] = decode_suspects(value, self.ms, self.ms)
        return DONE

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        self.deeds.append("report")
        return DONE

    async def fence(self, broker_epoch: int) -> Done:
        raise AssertionError("nobody wants it fenced")

    async def reassign(self, replicas: Mapping[Name, Sequence[int] | None]) -> Mapping[Name, Done]:
        self.moment()
        self.deeds.append("reassign")
        self.asked += replicas
        answers = {}
        for name, brokers in replicas.items():
            assert brokers is not None
            if name in self.refused:
                answers[name] = Done(outcome=Outcome.REFUSED, reason="CLUSTER_AUTHORIZATION_FAILED (31)")
            else:
                answers[name] = DONE
                now = self.observed.partitions[T, name[1]]
                homes = dict(zip(now.replicas, now.directories, strict=True))
                directories = tuple(homes[broker] for broker in brokers)
                position = brokers.index(NODE)
                self._change(name, replicas=tuple(brokers), position=position, directories=directories)
        self.moment()
        return answers

    async def elect(self, partitions: Sequence[Name]) -> Mapping[Name, Done]:
        self.moment()
        self.deeds.append("elect")
        for name in partitions:
            self._change(name, leads=self.observed.partitions[T, name[1]].replicas[0] == NODE)
        self.moment()
        return dict.fromkeys(partitions, DONE)

    def _change(self, name: Name, **changes: Any) -> None:
        key = (T, name[1])
        self.observed.partitions[key] = replace(self.observed.partitions[key], **changes)

    # ---- the scribe

    async def save(self, journal: Journal) -> None:
        self.moment()
        if self.no_disk:
            raise OSError(28, "No space left on device")
        self.saved = encode(journal, NODE, ahead_ms=0)
        self.moment()

    async def does(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        if name not in ("suspect", "trust"):
            self.audit.append(name)

    def done(self, name: str, path: str | None, done: Done) -> None:
        """Nothing more."""

    def stands(self, path: str | None, state: str, reason: str) -> None:
        """Nothing more."""

    def forgotten(self, names: list[str]) -> None:
        self.audit.append(f"forgotten {names}")

    def unwritten(self, reason: str) -> None:
        """Nothing more."""

    # ---- what has come of it

    def rows(self) -> set[tuple[tuple[int, ...], bool]]:
        """The replica lists, and whether this broker leads."""
        return {(one.replicas, one.leads) for one in self.observed.partitions.values()}

    def journal(self) -> Journal:
        if not self.saved:
            return Journal()
        return decode(self.saved, NODE, now_ms=self.ms, wall_ms=self.ms)


BEFORE, AFTER = {((1, 2, 3), True)}, {((2, 3, 1), False)}


class Guard:
    """One guard process: the core and its shell. Its memory is gone when it is."""

    def __init__(self, world: World, site: Site = DEMOTING) -> None:
        self.world = world
        self.work: list[Coroutine[Any, Any, None]] = []
        self.core = GuardCore(site, world.journal(), f"g{world.moments}")
        self.core.acts = True
        self.acting = ActionRunner(
            core=self.core,
            helper=None,
            controllers=world,
            scribe=world,
            clock=cast(Clock, world),
            spawn=self.work.append,
            review=lambda: None,
            situation=world.situation,
        )

    def look(self) -> None:
        self.acting.take(self.core.look(self.world.situation()))

    async def rounds(self, count: int) -> None:
        """Look, and do what is begun, so many times."""
        for _ in range(count):
            self.look()
            while self.work:
                await self.work.pop(0)
            self.world.ms += LOOK_MS

    def close(self) -> None:
        for one in self.work:
            one.close()


async def test_leadership_moves_off_a_slow_disk_and_comes_back_in_its_order() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == ["reassign", "elect"] and world.audit == ["demote"] and world.rows() == AFTER
    assert [one.before for one in world.journal().demoted.values()] == [(1, 2, 3)] * 3
    world.slow = False
    await guard.rounds(20)
    assert world.audit == ["demote", "promote"] and world.rows() == BEFORE
    assert world.journal().demoted == {} and guard.core.leadership(PATH).state is slow_steps.State.LEADING


async def test_what_is_too_much_for_one_request_is_moved_by_two() -> None:
    world = World()
    for number in range(REQUEST_PARTITIONS_MAX + 1):
        world.observed.partitions[T, number] = ALL
    await Guard(world).rounds(20)
    assert world.deeds == ["reassign", "elect"] * 2 and world.audit == ["demote"] and world.rows() == AFTER


@pytest.mark.parametrize("site", [DEMOTING, SITE])
async def test_the_next_guard_puts_back_what_the_one_before_has_moved(site: Site) -> None:
    world = World()
    await Guard(world).rounds(20)
    world.slow = site is SITE  # somebody has switched it off meanwhile
    await Guard(world, site).rounds(20)
    assert world.rows() == BEFORE and world.journal().demoted == {}


async def test_a_list_that_somebody_has_changed_meanwhile_is_left_alone_and_told() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    theirs = replace(ALL, position=1, leads=False, replicas=(3, 1, 2))
    world.observed.partitions[T, 0] = theirs
    world.slow = False
    await guard.rounds(20)
    assert world.observed.partitions[T, 0] == theirs and "forgotten ['t-0']" in world.audit
    assert world.observed.partitions[T, 1] == ALL and world.journal().demoted == {}


async def test_a_list_that_somebody_changes_while_it_is_written_down_is_not_set_back() -> None:
    world = World()
    guard = Guard(world)
    guard.look()
    theirs = replace(ALL, replicas=(1, 3, 2))
    world.observed.partitions[T, 0] = theirs
    while guard.work:
        await guard.work.pop(0)
    assert world.observed.partitions[T, 0] == theirs and world.observed.partitions[T, 1].replicas == (2, 3, 1)


async def test_a_list_that_is_moved_once_more_comes_back_as_it_was_at_first() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    for key, one in world.observed.partitions.items():  # broker 2 is lost, and this one leads again
        world.observed.partitions[key] = replace(one, leads=True, isr=(1, 3))
    await guard.rounds(AGAIN_MS // LOOK_MS)
    assert world.rows() == {((3, 2, 1), False)} and world.audit == ["demote", "demote"]
    world.slow = False
    await guard.rounds(20)
    assert world.rows() == BEFORE and world.journal().demoted == {}


async def test_no_list_is_changed_that_cannot_be_written_down() -> None:
    world = World(no_disk=True)
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == [] and guard.core.journal.demoted == {} and world.rows() == BEFORE
    assert "No space left" in guard.acting.unwritten
    assert all("cannot be written down" in one.reason for one in guard.core.refused.values()) and guard.core.refused
    assert world.moments <= 10, "in two seconds the journal is not tried again and again"
    world.no_disk = False
    await guard.rounds(20)
    assert world.rows() == AFTER


async def test_a_partition_that_the_controllers_refuse_holds_up_no_other_and_is_asked_for_later_and_later() -> None:
    world = World(refused=[("t", 1)])
    guard = Guard(world)
    begun_ms = world.ms
    await guard.rounds(1)
    assert {key[1] for key, one in world.observed.partitions.items() if one == ALL} == {1}
    asked = []
    while world.ms - begun_ms < GIVE_UP_MS + 120_000:
        before = len(world.deeds)
        await guard.rounds(1)
        if "reassign" in world.deeds[before:]:
            asked.append((world.ms - begun_ms) // 1_000)
        world.ms += 900  # one look a second is enough
    assert 5 < len(asked) < 30 and asked[-1] <= GIVE_UP_MS // 1_000
    waits = [later - sooner for sooner, later in pairwise(asked)]
    assert waits == sorted(waits), "never sooner than before"
    assert "(31)" in guard.core.leadership(PATH).reason
    world.slow, world.refused = False, ()
    await guard.rounds(20)
    assert world.rows() == BEFORE and guard.core.journal.demoted == {}


async def test_a_list_that_the_controllers_refuse_to_change_is_forgotten_when_the_metadata_have_not_shown_it() -> None:
    world = World(refused=[("t", number) for number in range(3)])
    guard = Guard(world)
    await guard.rounds(1)
    assert len(guard.core.journal.demoted) == 3, "the controllers may have taken it"
    world.slow = False
    await guard.rounds(2 + UNSEEN_MS // LOOK_MS)
    assert guard.core.journal.demoted == {} and world.rows() == BEFORE


async def test_a_disk_that_fails_while_its_leadership_moves_waits_for_nothing() -> None:
    world = World()
    guard = Guard(world)
    guard.look()
    moving = guard.work.copy()
    guard.work.clear()
    world.failed = True
    await guard.rounds(3)
    assert guard.core.leadership(PATH).under_way is not None and world.deeds == ["report"]
    for one in moving:
        one.close()
    guard.close()


def tell(world: World) -> int:
    """The disk is slow, and then it is not; returns how often a guard was killed."""

    async def survive(rounds: int) -> int:
        killed = 0
        while True:
            guard = Guard(world)
            try:
                await guard.rounds(rounds)
                return killed
            except Killed:
                killed += 1
                guard.close()

    async def story() -> int:
        killed = await survive(20)
        world.slow = False
        return killed + await survive(20 + UNSEEN_MS // LOOK_MS)

    return asyncio.run(story())


def moments() -> int:
    world = World()
    tell(world)
    return world.moments


@pytest.mark.parametrize("moment", range(1, moments() + 1))
def test_a_guard_that_is_killed_at_any_moment_is_followed_by_one_that_puts_the_order_back(moment: int) -> None:
    world = World(kill_at=moment)
    assert tell(world) <= 1
    assert world.rows() == BEFORE and world.journal().demoted == {}


def test_a_journal_of_a_guard_that_knew_nothing_of_leadership_is_read() -> None:
    content = encode(Journal(), NODE, ahead_ms=0).replace(b',\n "demoted": []', b"")
    assert b"demoted" not in content and decode(content, NODE, now_ms=0, wall_ms=0) == Journal()


# ------------------------------------------------------------------------------------------------------------ requests


async def test_nothing_to_be_changed_is_no_request() -> None:
    world = World()
    controllers = cast(Controllers, world)
    assert await lists.reassign(controllers, {}) == await lists.order(controllers, {}) == lists.CHANGED
    assert world.deeds == []


async def test_only_lists_that_are_in_their_order_have_their_first_broker_elected() -> None:
    world = World(refused=[("t", 0)])
    back: Placed = replace(ALL, leads=False)
    world.observed.partitions = {(T, 0): ALL, (T, 1): ALL, (T, 2): back}
    wanted = {("t", 0): ((1, 2, 3), (2, 3, 1)), ("t", 1): ((1, 2, 3), (2, 3, 1)), ("t", 2): ((1, 2, 3), (1, 2, 3))}
    done = await lists.order(cast(Controllers, world), wanted)
    assert (done.outcome, list(done.refused)) == (Outcome.DONE, [("t", 0)])
    assert world.asked == [("t", 0), ("t", 1)], "the third one has its order, and only no leader"
    now = [(one.replicas, one.leads) for one in world.observed.partitions.values()]
    assert now == [((1, 2, 3), True), ((2, 3, 1), False), ((1, 2, 3), True)]


async def test_where_no_list_is_changed_nobody_is_elected() -> None:
    world = World(refused=[("t", 0)])
    done = await lists.order(cast(Controllers, world), {("t", 0): ((1, 2, 3), (2, 3, 1))})
    assert done.outcome is Outcome.REFUSED and world.deeds == ["reassign"]
    assert world.observed.partitions[T, 0].directory == D1
