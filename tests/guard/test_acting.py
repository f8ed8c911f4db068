"""What a guard does, written down before it is done; and one that is killed at any moment, and goes on."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod_agent.guard import book, broker_steps, directory_steps
from kjbod_agent.guard.acting import Acting
from kjbod_agent.guard.budget import evictions
from kjbod_agent.guard.journal import Evicted, Journal, JournalError, decode, encode
from kjbod_agent.guard.ladder import KafkaView, Step, Would
from kjbod_agent.guard.means import REQUEST_PARTITIONS_MAX, Done, Outcome, Thread
from kjbod_agent.guard.observing import Observed, Placed

PATH, D1, T = "/mnt/d1", Uuid.of(5, 1), Uuid.of(7, 1)
NODE, EPOCH = 1, 5
DONE = Done(outcome=Outcome.DONE)


class SetClock:
    """A clock that stands until it is set, and the wall clock, which somebody may set."""

    def __init__(self) -> None:
        self.ms = 1_000_000
        self.wall_was_set_by_ms = 0

    def monotonic_ms(self) -> int:
        return self.ms

    def monotonic_ns(self) -> int:
        return self.ms * 1_000_000

    def wall_ms(self) -> int:
        return self.ms + 1_700_000_000_000 + self.wall_was_set_by_ms


class Killed(BaseException):
    """The guard is killed."""


@dataclass
class World:
    """A broker and its cluster: what guards do to them stays when a guard is gone."""

    clock: SetClock = field(default_factory=SetClock)
    deeds: list[str] = field(default_factory=list)
    saved: bytes = b""
    audit: list[str] = field(default_factory=list)
    kill_at: int | None = None
    moments: int = 0
    crippled: bool = False
    offline: bool = False
    pid: int | None = 7
    fenced: bool = False
    restarted: bool = False
    no_disk: bool = False
    comes_back: bool = False
    """Whether the disk answers, and the broker's threads with it, while what is to be done is written down."""
    answers: bool = False
    directory_id: Uuid = D1
    cannot: Mapping[str, Done] = field(default_factory=dict)
    observed: Observed = field(default_factory=lambda: Observed(NODE, complete=True, topics={T: "t"}))

    def __post_init__(self) -> None:
        for number in range(3):
            self.observed.partitions[T, number] = Placed(1, D1, False, (2, 1, 3), (2, 1, 3))

    def moment(self) -> None:
        """A point at which a guard may be killed."""
        self.moments += 1
        if self.kill_at is not None and self.moments == self.kill_at:
            raise Killed

    def do(self, name: str, effect: Callable[[], None] = lambda: None) -> Done:
        self.moment()
        answer = self.cannot.get(name, DONE)
        self.deeds.append(name)
        if answer.outcome in (Outcome.DONE, Outcome.PENDING):
            effect()
        self.moment()
        return answer

    # ---- the hand

    async def cut(self, directory: str) -> Done:
        return self.do("cut", lambda: setattr(self, "offline", not self.crippled))

    async def mask(self, directory: str) -> Done:
        return self.do("mask", lambda: setattr(self, "offline", not self.crippled))

    async def unmask(self, directory: str) -> Done:
        return self.do("unmask")

    async def kill(self) -> Done:
        return self.do("kill", lambda: setattr(self, "pid", None))

    async def reset(self) -> Done:
        return self.do("reset")

    async def unreset(self) -> Done:
        return self.do("unreset")

    async def destroy(self) -> Done:
        return self.do("destroy")

    async def threads(self) -> Sequence[Thread] | Done:
        return ()

    # ---- the voice

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        return self.do("report", lambda: setattr(self, "offline", not self.crippled))

    async def fence(self, broker_epoch: int) -> Done:
        return self.do("fence", lambda: setattr(self, "fenced", True))

    async def reassign(
        self, replicas: Mapping[tuple[str, int], Sequence[int] | None]
    ) -> Mapping[tuple[str, int], Done]:
        def change() -> None:
            for (_, number), brokers in replicas.items():
                key = (T, number)
                now = self.observed.partitions.pop(key, None) or self.observed.others.pop(key)
                assert brokers is not None
                lists = tuple(brokers)
                moved = replace(now, replicas=lists, position=lists.index(NODE) if NODE in lists else -1)
                (self.observed.partitions if NODE in lists else self.observed.others)[key] = moved

        leaves = any(NODE not in (brokers or ()) for brokers in replicas.values())
        return dict.fromkeys(replicas, self.do("evict" if leaves else "restore", change))

    async def elect(self, partitions: Sequence[tuple[str, int]]) -> Mapping[tuple[str, int], Done]:
        def change() -> None:
            for _, number in partitions:
                now = self.observed.partitions[T, number]
                self.observed.partitions[T, number] = replace(now, leads=now.replicas[0] == NODE)

        return dict.fromkeys(partitions, self.do("elect", change))

    # ---- the scribe

    async def save(self, journal: Journal) -> None:
        self.moment()
        if self.no_disk:
            raise OSError(28, "No space left on device")
        ahead_ms = self.clock.wall_ms() - self.clock.monotonic_ms()
        self.saved = encode(journal, NODE, ahead_ms=ahead_ms)
        self.moment()

    async def does(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        self.audit.append(name)
        self.answers = self.comes_back

    def done(self, name: str, path: str | None, done: Done) -> None:
        if done.reason.startswith("not any more"):
            self.audit.append(f"{name} {done.reason}")

    def stands(self, path: str | None, state: str, reason: str) -> None:
        """Nothing more."""

    def forgotten(self, names: list[str]) -> None:
        self.audit.append(f"forgotten {names}")

    def unwritten(self, reason: str) -> None:
        """Nothing more."""

    # ---- what a guard sees

    def facts(self, acting: Acting) -> dict[str, directory_steps.Facts]:
        view = KafkaView.OFFLINE if self.offline and not self.restarted else KafkaView.ONLINE
        evict = evictions(self.observed, D1, 2).before if view is KafkaView.OFFLINE else {}
        step = Step.NOTHING if view is KafkaView.OFFLINE or self.restarted else Step.CUT
        facts = directory_steps.Facts(
            path=PATH,
            directory_id=str(self.directory_id),
            decided=Would(Step.NOTHING, "its disk answers again") if self.answers else Would(step),
            view=view,
            epoch=EPOCH + self.restarted,
            well=self.restarted,
            present=self.pid is not None,
            evict=evict,
            restore=acting.evicting.restorable(str(self.directory_id)),
        )
        return {PATH: facts}

    def broker_facts(self) -> broker_steps.Facts:
        wanted = "its fetchers are stuck" if self.crippled and self.deeds else None
        return broker_steps.Facts(
            pid=8 if self.restarted else self.pid,
            ended=None if self.pid == 7 else 7,
            epoch=EPOCH + self.restarted,
            fenced=self.fenced and not self.restarted,
            wanted=wanted if self.pid == 7 and not self.answers else None,
            cuts=(PATH,),
        )


class Guard:
    """One guard process: its memory is gone when it is."""

    def __init__(self, world: World) -> None:
        self.world = world
        clock = world.clock
        before = Journal()
        if world.saved:
            before = decode(world.saved, NODE, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())
        self.work: list[Coroutine[Any, Any, None]] = []
        self.acting = Acting(
            node=NODE,
            hand=world,
            voice=world,
            journal=before,
            scribe=world,
            observed=lambda: world.observed,
            clock=clock,
            spawn=self.work.append,
            review=lambda: None,
            known=lambda: (world.facts(self.acting), world.broker_facts()),
        )
        self.acting.evicting.follow()

    async def rounds(self, count: int) -> None:
        """Look, and do what is begun, so many times, 100 ms apart."""
        for _ in range(count):
            self.acting.settle()
            self.acting.look(self.world.facts(self.acting), self.world.broker_facts())
            while self.work:
                await self.work.pop(0)
            self.world.clock.ms += 100

    def close(self) -> None:
        for one in self.work:
            one.close()


async def survive(world: World, rounds: int) -> tuple[Guard, int]:
    """Go on with a new guard where one is killed."""
    killed = 0
    while True:
        guard = Guard(world)
        try:
            await guard.rounds(rounds)
            return guard, killed
        except Killed:
            killed += 1
            guard.close()


async def test_a_disk_is_cut_and_left_and_put_back_when_the_broker_is_back_with_it() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == ["cut", "evict"] and world.audit == ["cut", "evict"]
    assert [one.replicas for one in world.observed.others.values()] == [(2, 3)] * 3
    assert len(guard.acting.journal.evicted) == 3
    world.restarted = True
    await guard.rounds(20)
    assert world.deeds == ["cut", "evict", "restore"]
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}
    assert not guard.acting.journal.evicted and guard.acting.standing(PATH).state.value == "well"


async def test_what_is_too_much_for_one_request_is_evicted_and_put_back_by_two() -> None:
    world = World()
    for number in range(REQUEST_PARTITIONS_MAX + 1):
        world.observed.partitions[T, number] = Placed(1, D1, False, (2, 1, 3), (2, 1, 3))
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == ["cut", "evict", "evict"] and world.audit == ["cut", "evict"]
    assert {one.replicas for one in world.observed.others.values()} == {(2, 3)} and not world.observed.partitions
    world.restarted = True
    await guard.rounds(20)
    assert world.deeds[3:] == ["restore", "restore"]
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}


async def test_what_was_evicted_is_put_back_when_a_new_disk_is_in_the_place_of_the_old_one() -> None:
    world = World()
    await Guard(world).rounds(20)
    world.restarted, world.directory_id = True, Uuid.of(5, 9)
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == ["cut", "evict", "restore"]
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}
    assert not guard.acting.journal.evicted


async def test_of_two_brokers_that_were_evicted_both_come_back() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    ours = world.observed.others[T, 1]
    world.observed.others[T, 1] = replace(ours, replicas=(3,))  # the guard of broker 2
    world.restarted = True
    await guard.rounds(20)
    assert (T, 1) not in world.observed.partitions and (T, 1) in guard.acting.journal.evicted
    world.observed.others[T, 1] = ours
    await guard.rounds(20)
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}
    assert not guard.acting.journal.evicted


async def test_a_list_that_another_guard_changes_while_ours_is_written_down_is_not_set_back() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(1)
    save = world.save

    async def meanwhile(journal: Journal) -> None:
        await save(journal)
        ours = world.observed.partitions[T, 1]
        world.observed.partitions[T, 1] = replace(ours, replicas=(1, 3))  # broker 2 has left

    world.save = meanwhile  # type: ignore[method-assign]
    await guard.rounds(3)
    assert world.deeds == ["cut", "evict"]
    assert world.observed.partitions[T, 1].replicas == (1, 3) and (T, 1) not in guard.acting.journal.evicted
    world.save = save  # type: ignore[method-assign]
    await guard.rounds(20)
    assert world.observed.others[T, 1].replicas == (3,), "and then from what is there now"
    assert guard.acting.journal.evicted[T, 1].before == (1, 3)


async def test_what_somebody_else_has_changed_is_left_alone() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    world.observed.others[T, 1] = replace(world.observed.others[T, 1], replicas=(2, 4))
    world.restarted = True
    await guard.rounds(20)
    assert (T, 1) not in world.observed.partitions
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}
    assert "forgotten ['t-1']" in world.audit and not guard.acting.journal.evicted


async def test_nothing_is_evicted_that_cannot_be_written_down() -> None:
    world = World(no_disk=True)
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == ["cut"] and not guard.acting.journal.evicted
    assert "cannot be written down" in guard.acting.standing(PATH).reason
    world.no_disk = False
    await guard.rounds(20)
    assert world.deeds == ["cut", "evict"]


async def test_lists_that_an_unanswered_eviction_may_have_changed_stay_when_the_next_cannot_be_written_down() -> None:
    world = World(cannot={"evict": Done(outcome=Outcome.FAILED, reason="no answer")})
    guard = Guard(world)
    await guard.rounds(8)
    assert "evict" in world.deeds and len(guard.acting.journal.evicted) == 3
    world.no_disk = True
    await guard.rounds(12)
    assert "cannot be written down" in guard.acting.standing(PATH).reason
    # The controllers have taken the first one, and answer late.
    world.cannot = {}
    await world.reassign({("t", number): (2, 3) for number in range(3)})
    world.no_disk = False
    await guard.rounds(20)
    assert len(guard.acting.journal.evicted) == 3
    world.restarted = True
    await guard.rounds(20)
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}


async def test_a_reassignment_that_somebody_begins_while_a_restore_is_written_down_goes_on() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    world.restarted = True
    save = world.save

    async def meanwhile(journal: Journal) -> None:
        await save(journal)
        ours = world.observed.others.get((T, 1))
        if ours is not None:
            world.observed.others[T, 1] = replace(ours, replicas=(4, 2, 3), adding=(4,), removing=(3,))

    world.save = meanwhile  # type: ignore[method-assign]
    await guard.rounds(20)
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}
    assert world.observed.partitions.keys() == {(T, 0), (T, 2)}
    assert "forgotten ['t-1']" in world.audit and not guard.acting.journal.evicted


async def test_partitions_that_a_topic_gets_between_eviction_and_restore_are_left_as_they_are() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    for number, directory in ((3, Uuid.of(5, 2)), (4, D1)):
        world.observed.partitions[T, number] = Placed(0, directory, True, (1, 2), (1, 2))
    world.restarted = True
    await Guard(world).rounds(20)
    lists = {key[1]: one.replicas for key, one in world.observed.partitions.items()}
    assert lists == dict.fromkeys(range(3), (2, 1, 3)) | {3: (1, 2), 4: (1, 2)}


async def test_who_asks_for_a_restore_does_not_wait_for_a_state_directory_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(book, "PATIENCE_MS", 1)
    world = World()
    guard = Guard(world)
    await guard.rounds(20)

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    world.does = silent  # type: ignore[method-assign,assignment]
    count, done = await asyncio.wait_for(guard.acting.evicting.restore_now(), 60)
    assert (count, done) == (3, DONE)
    assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}


async def test_a_broker_that_is_stuck_is_given_up() -> None:
    world = World(crippled=True)
    guard = Guard(world)
    await guard.rounds(30)
    assert world.deeds[:2] == ["cut", "cut"] and world.deeds[2:4] == ["kill", "fence"], world.deeds
    assert world.deeds.count("kill") == 1 and guard.acting.journal.fenced is not None


async def test_a_disk_that_answers_while_its_cut_is_written_down_is_not_cut() -> None:
    world = World(comes_back=True)
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == [] and world.audit == ["cut", "cut not any more: its disk answers again"]
    assert guard.acting.standing(PATH).state is directory_steps.State.WELL
    world.comes_back = world.answers = False  # and hangs once more
    await guard.rounds(20)
    assert world.deeds == ["cut", "evict"]


async def test_a_broker_that_comes_back_while_its_kill_is_written_down_is_not_killed() -> None:
    world = World(crippled=True)
    world.deeds.append("cut")  # of another directory
    world.comes_back = True
    guard = Guard(world)
    world.facts = lambda acting: {}  # type: ignore[method-assign]
    world.broker_facts = lambda: replace(World.broker_facts(world), cuts=())  # type: ignore[method-assign]
    await guard.rounds(20)
    assert world.deeds == ["cut"] and world.audit == ["kill", "kill not any more: what spoke for it has passed"]
    assert guard.acting.broker.state is broker_steps.State.SERVING and guard.acting.journal.fenced is None


async def test_a_guard_without_a_hand_says_so_and_reports_nothing_that_kafka_does_not_see() -> None:
    world = World()
    guard = Guard(world)
    guard.acting._hand, guard.acting._no_hand = None, "it has no rights"
    await guard.rounds(20)
    assert world.deeds == []
    standing = guard.acting.standing(PATH)
    assert (standing.state.value, standing.reason) == ("left", "it has no rights")


async def test_only_one_thing_is_done_at_a_time_for_a_directory() -> None:
    world = World()
    release = asyncio.Event()

    async def slow(directory: str) -> Done:
        world.deeds.append("cut")
        await release.wait()
        return DONE

    guard = Guard(world)
    world.cut = slow  # type: ignore[method-assign]
    guard.acting.look(world.facts(guard.acting), world.broker_facts())
    (work,) = guard.work
    guard.work.clear()
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert guard.acting.release(PATH) == "cut is under way there"
    world.offline = True
    for _ in range(5):
        world.clock.ms += 1000
        guard.acting.look(world.facts(guard.acting), world.broker_facts())
        assert not guard.work
    release.set()
    await task
    await guard.rounds(3)
    assert world.deeds == ["cut", "evict"]


def moments_of(story: str) -> int:
    """How many moments a story has in which a guard may be killed."""
    world = World(crippled=story == "crippled")
    asyncio.run(tell(world))
    return world.moments


async def tell(world: World) -> tuple[Guard, int]:
    await survive(world, 20)
    if not world.crippled:
        world.restarted = True
    return await survive(world, 150)


@pytest.mark.parametrize("story", ["evicted", "crippled"])
def test_a_guard_that_is_killed_at_any_moment_is_followed_by_one_that_goes_on(story: str) -> None:
    for moment in range(1, moments_of(story) + 1):
        world = World(crippled=story == "crippled", kill_at=moment)
        guard, killed = asyncio.run(tell(world))
        assert world.moments >= moment and killed <= 1
        if story == "evicted":
            assert world.deeds.count("evict") >= 1, (moment, world.deeds)
            assert {one.replicas for one in world.observed.partitions.values()} == {(2, 1, 3)}, (moment, world.deeds)
            assert not guard.acting.journal.evicted and "fence" not in world.deeds, moment
        else:
            assert world.pid is None and world.fenced, (moment, world.deeds)
            assert world.deeds.count("fence") <= 2 and world.deeds.count("kill") <= 2, (moment, world.deeds)


# --------------------------------------------------------------------------------------------------------- the journal


def test_a_journal_is_read_as_it_was_written() -> None:
    standing = directory_steps.Standing(
        state=directory_steps.State.EVICTED, since_ms=50, means=Step.CUT, epoch=5, reports=1, offline_ms=40
    )
    broker = broker_steps.Standing(state=broker_steps.State.FENCED, pid=7, epoch=5, fences=1, killed_ms=30, reset=True)
    evicted = {(T, 2): Evicted(str(D1), "t", (2, 1, 3), 99)}
    told = Journal(directories={PATH: (standing, str(D1), 1_000)}, broker=broker, fenced=(5, 7), evicted=evicted)
    found = decode(encode(told, NODE, ahead_ms=70), NODE, now_ms=60, wall_ms=1_010)
    assert (
        found.evicted == evicted and found.fenced == (5, 60 - (1_010 - 77)) and found.of(str(D1)) == {(T, 2): (2, 1, 3)}
    )
    again = found.directories[PATH][0]
    assert (again.state, again.means, again.epoch, again.reports) == ("evicted", Step.CUT, 5, 1)
    assert (found.broker.state, found.broker.fences, found.broker.reset) == ("fenced", 1, True)


async def test_a_guard_that_was_started_again_since_its_hand_had_died_does_what_that_one_could_not() -> None:
    dead = Done(outcome=Outcome.FAILED, reason="the hand (process 7) has died: start the guard again")
    world = World(cannot={"cut": dead, "mask": dead})
    guard = Guard(world)
    await guard.rounds(20)
    assert world.deeds == ["cut", "mask"] and guard.acting.standing(PATH).reason == dead.reason
    guard.acting.release("/mnt/d2")  # writes the journal, in which it stands as left
    await guard.rounds(1)
    world.cannot = {}
    await Guard(world).rounds(20)
    assert world.deeds == ["cut", "mask", "cut", "evict"]


async def test_a_directory_that_was_released_is_left_alone_by_the_next_guard_too() -> None:
    world = World()
    guard = Guard(world)
    guard.acting.release(PATH)
    await guard.rounds(2)
    await Guard(world).rounds(20)
    assert not world.deeds


@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
async def test_the_limit_of_fences_holds_when_somebody_sets_the_wall_clock(set_by_ms: int) -> None:
    world = World(crippled=True)
    guard = Guard(world)
    await guard.rounds(20)
    assert "kill" in world.deeds and guard.acting.journal.fenced is not None
    at_ms = guard.acting.journal.fenced[1]
    assert 0 < world.clock.ms - at_ms <= 2_000
    world.clock.wall_was_set_by_ms = set_by_ms
    await guard.rounds(5)
    assert guard.acting.journal.fenced[1] == at_ms
    # A guard that starts after it was set back counts from its own start, and not for an hour more.
    began_ms = world.clock.ms
    again = Guard(world).acting.journal.fenced
    assert again is not None and (set_by_ms > 0 or again[1] == began_ms)


@pytest.mark.parametrize("set_by_ms", [0, 3_600_000, -3_600_000])
@pytest.mark.parametrize("when", ["before the writing", "after the writing"])
def test_the_next_guard_of_the_same_boot_knows_how_long_ago_a_fence_and_a_failure_were_whatever_the_wall_clock_says(
    set_by_ms: int, when: str
) -> None:
    gone = directory_steps.Standing(state=directory_steps.State.OFFLINE, epoch=5, offline_ms=95_000)
    ahead_ms = 1_700_000_000_000
    written_ahead_ms = ahead_ms + (set_by_ms if when == "before the writing" else 0)
    told = Journal(
        directories={PATH: (gone, str(D1), 95_000 + written_ahead_ms)},
        fenced=(5, 40_000),
    )
    content = encode(told, NODE, boot_id="this", ahead_ms=written_ahead_ms)
    wall_ms = 110_000 + ahead_ms + set_by_ms
    found = decode(content, NODE, now_ms=110_000, wall_ms=wall_ms, boot_id="this")
    assert found.fenced is not None and found.fenced[1] == 40_000
    assert found.directories[PATH][0].offline_ms == 95_000
    rebooted = decode(content, NODE, now_ms=5_000, wall_ms=110_000 + written_ahead_ms, boot_id="another")
    assert rebooted.fenced is not None and rebooted.fenced[1] == 5_000 - 70_000
    unknown = decode(content, NODE, now_ms=5_000, wall_ms=110_000 + written_ahead_ms)
    assert unknown.fenced == rebooted.fenced


@pytest.mark.parametrize("at_ms", [100_000 - 30_000, 100_000 + 30_000, 100_000 + 3_600_000])
def test_a_journal_of_long_ago_or_of_the_future_says_nothing_of_who_waits_now(at_ms: int) -> None:
    gone = directory_steps.Standing(state=directory_steps.State.OFFLINE, epoch=5, offline_ms=40)
    told = encode(Journal(directories={PATH: (gone, str(D1), at_ms)}), NODE, ahead_ms=50_000)
    found = decode(told, NODE, now_ms=50_000, wall_ms=100_000).directories[PATH][0]
    assert (found.state, found.offline_ms, found.seen_online) == ("offline", None, False)
    near = decode(told, NODE, now_ms=50_000, wall_ms=at_ms - 1_000).directories[PATH][0]
    assert (near.offline_ms, near.seen_online) == (50_000, True)


@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
async def test_an_eviction_that_the_metadata_do_not_show_yet_is_not_forgotten_when_the_wall_clock_is_set(
    set_by_ms: int,
) -> None:
    world = World(cannot={"evict": Done(outcome=Outcome.FAILED, reason="no answer")})
    guard = Guard(world)
    await guard.rounds(8)
    assert "evict" in world.deeds and len(guard.acting.journal.evicted) == 3
    world.clock.wall_was_set_by_ms = set_by_ms
    guard.acting.settle()
    assert len(guard.acting.journal.evicted) == 3


async def test_an_eviction_is_forgotten_only_after_metadata_that_are_followed_have_not_shown_it() -> None:
    world = World(cannot={"evict": Done(outcome=Outcome.FAILED, reason="no answer")})
    first = Guard(world)
    await first.rounds(8)
    first.close()
    world.clock.ms += 60_000  # no guard runs, or the controllers are silent: the request may still be taken
    guard = Guard(world)
    for _ in range(2):
        guard.acting.settle()
        assert len(guard.acting.journal.evicted) == 3
        world.clock.ms += 60_000
    for _ in range(12):
        assert len(guard.acting.journal.evicted) == 3
        guard.acting.settle()
        world.clock.ms += 1_000
    assert not guard.acting.journal.evicted
    guard.close()


async def test_what_went_offline_long_ago_is_not_taken_for_new_by_a_guard_that_starts() -> None:
    world = World()
    guard = Guard(world)
    await guard.rounds(20)
    world.clock.ms += 1_800_000
    await guard.rounds(3)
    guard.acting.release("/mnt/d2")  # writes the journal again, about another directory
    for _ in range(2):
        await guard.rounds(3)
        guard = Guard(world)
        assert guard.acting.standing(PATH).offline_ms is None and not guard.acting.standing(PATH).seen_online
        guard.acting.release("/mnt/d2")
        await guard.rounds(1)
    assert guard.acting.standing(PATH).offline_ms is None
    guard.close()


EMPTY = encode(Journal(), NODE, ahead_ms=0)
LEFT = encode(
    Journal(directories={PATH: (directory_steps.Standing(state=directory_steps.State.LEFT, epoch=5), str(D1), 1)}),
    NODE,
    ahead_ms=0,
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[1]",
        b"[" * 100_000,
        b'{"version": 9, "node": 1}',
        encode(Journal(), 2, ahead_ms=0),
        EMPTY.replace(b'"fenced": null', b'"fenced": []'),
        EMPTY.replace(b'"fences": 0', b'"fences": null'),
        EMPTY.replace(b'"clock": null', b'"clock": 7'),
        EMPTY.replace(b'"clock": null', b'"clock": {"boot_id": "this", "ahead_ms": null}'),
        EMPTY.replace(b'"pid": null', b'"pid": "7"'),
        LEFT.replace(b'"reports": 0', b'"reports": []'),
        LEFT.replace(b'"epoch": 5', b'"epoch": true'),
        LEFT.replace(str(D1).encode(), b"no id"),
        EMPTY.replace(b'"directories": {}', b'"directories": {"/d": {"at_ms": Infinity}}'),
    ],
)
def test_what_is_no_journal_of_this_broker_is_refused(content: bytes) -> None:
    with pytest.raises(JournalError):
        decode(content, NODE, now_ms=0, wall_ms=0, boot_id="this")
