"""The acts of a guard, from the verdict to the effect: written down before they are done, and gone on with by the next
guard when one is killed at any moment. Helpers of other tests, too: a broker, its disk and its cluster."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from kjbod.ids import Uuid
from kjbod.metadata.batches import RecordBatch
from kjbod.metadata.fetching import Committed
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    TopicRecord,
)
from kjbod_guard import actions, broker_steps, directory_steps, effects, journal_writer
from kjbod_guard.action_runner import CUT_WITHIN_MS, ActionRunner
from kjbod_guard.actions import Done, Name, Outcome, Thread
from kjbod_guard.core import GuardCore
from kjbod_guard.journal import Demoted, Evicted, Journal, JournalError, decode, encode
from kjbod_guard.ladder import Step
from kjbod_guard.observing import Observed, Placed
from kjbod_guard.settling import UNSEEN_MS
from kjbod_guard.situation import Disk, Site, Situation
from kjbod_guard.suspects import CONFIG
from kjbod_host.health.state import Cause, Health
from tests.guard.test_copies import D1, D2, EPOCH, NODE, T, home

PATH, WELL = "/mnt/d1", "/mnt/d2"
U = Uuid.of(7, 2)
DONE = Done(outcome=Outcome.DONE)
CUT_AFTER_MS = 3_000
ALL_ACTS = ["suspect", "report", "cut", "evict", "trust"]
"""The acts about a disk that is dead, in their order."""


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


def follow(observed: Observed, log: Sequence[Record], clock: SetClock) -> None:
    """Apply the records of a log that are new."""
    first, last = observed.offset + 1, len(log) - 1
    if first > last:
        return
    batch = RecordBatch(
        base_offset=first,
        last_offset=last,
        leader_epoch=1,
        timestamp_ms=clock.wall_ms(),
        base_timestamp_ms=clock.wall_ms(),
        control=False,
        count=last + 1 - first,
        crc=0,
        position=0,
        raw=b"",
    )
    records = tuple(zip(range(first, last + 1), log[first:], strict=True))
    observed.committed(Committed(records, last, 1, last + 1, (batch,)), clock.ms)


@dataclass
class World:
    """A broker with two disks, of which the first one fails, and its cluster with three other brokers. What guards do
    to them stays when a guard is gone. The records are real; what the controllers answer is modelled.

    Attributes:
        health: of the first disk.
        answers: whether it has failed, and answers again.
        file_system: of the first disk.
        crippled: whether a fetcher of the broker hangs there, whatever is done to the disk.
        pid: of the broker.
        kill_at: the moment at which the guard is killed.
        no_disk: whether ``kjbod.state.dir`` is full.
        cannot: outcomes of acts that do not work, by their names.
        refused: partitions for which the controllers refuse another replica list, with the reasons.
        meanwhile: what happens while an act is written down, by its name; once.
    """

    clock: SetClock = field(default_factory=SetClock)
    health: Health = Health.FAILED
    answers: bool = False
    file_system: str = "ext4"
    crippled: bool = False
    pid: int | None = 7
    kill_at: int | None = None
    no_disk: bool = False
    cannot: Mapping[str, Done] = field(default_factory=dict)
    refused: Mapping[Name, str] = field(default_factory=dict)
    meanwhile: dict[str, Callable[[], None]] = field(default_factory=dict)
    directory_id: Uuid = D1
    site: Site = field(
        default_factory=lambda: Site(node_id=NODE, log_dirs=(PATH, WELL), metadata_log_dir="/metadata", min_isr=2)
    )

    masked: bool = False
    ends: bool = False
    """Whether the guard is about to end, so that nobody says any more what is known."""
    deeds: list[str] = field(default_factory=list)
    saved: bytes = b""
    audit: list[str] = field(default_factory=list)
    """Actions that were told before they were done, and what was left out."""
    told: list[tuple[str | None, str, str]] = field(default_factory=list)
    """States that were told."""
    trouble: list[str] = field(default_factory=list)
    moments: int = 0
    runs: int = 0
    log: list[Record] = field(default_factory=list)
    image: Observed = field(default_factory=lambda: Observed(NODE))

    def __post_init__(self) -> None:
        self.failed_ms = self.clock.ms
        self.image.follow_evicted([(T, number) for number in range(10)])
        self.register(NODE, EPOCH, D1, D2)
        for broker in (2, 3, 4):
            self.register(broker, EPOCH, home(broker))
        self.write(TopicRecord(name="t", topic_id=T), TopicRecord(name="u", topic_id=U))
        for topic in "tu":
            self.write(ConfigRecord(resource_type=2, resource_name=topic, name="min.insync.replicas", value="2"))
        for number in range(3):
            self.place(number, 2, 1, 3)
        self.place(0, 1, 2, 3, topic=U, at=D2)

    # ---- the controllers

    def write(self, *records: Record) -> None:
        self.log.extend(records)
        follow(self.image, self.log, self.clock)

    def register(self, broker: int, epoch: int, *log_dirs: Uuid) -> None:
        incarnation = Uuid.of(9, epoch)
        record = RegisterBrokerRecord(
            broker_id=broker,
            incarnation_id=incarnation,
            broker_epoch=epoch,
            end_points=(),
            features=(),
            log_dirs=log_dirs,
        )
        self.write(replace(record, fenced=False))

    def place(self, number: int, *replicas: int, topic: Uuid = T, at: Uuid = D1) -> None:
        """Make a partition, or make it anew."""
        self.write(
            PartitionRecord(
                partition_id=number,
                topic_id=topic,
                replicas=replicas,
                isr=replicas,
                leader=replicas[0],
                directories=tuple(at if one == NODE else home(one) for one in replicas),
            )
        )

    def change(self, number: int, *replicas: int, topic: Uuid = T, **changes: Any) -> None:
        """Give a partition another replica list. Who is new has caught up."""
        before = self.partitions(topic)[number]
        isr = tuple(one for one in replicas if one in before.isr or one not in before.replicas)
        leader = before.leader if before.leader in isr else next(iter(isr), -1)
        self.write(
            PartitionChangeRecord(
                partition_id=number,
                topic_id=topic,
                replicas=replicas,
                isr=isr,
                leader=leader,
                directories=tuple(self.directory_id if one == NODE else home(one) for one in replicas),
                **changes,
            )
        )

    def partitions(self, topic: Uuid = T) -> dict[int, Placed]:
        return {key[1]: one for key, one in {**self.image.partitions, **self.image.others}.items() if key[0] == topic}

    @property
    def lists(self) -> list[tuple[int, ...]]:
        """Replica lists of the partitions of the topic, without doubles."""
        return sorted({one.replicas for one in self.partitions().values()})

    @property
    def epoch(self) -> int:
        assert self.image.registration is not None
        return self.image.registration.epoch

    @property
    def is_fenced(self) -> bool:
        return self.image.registration is None or self.image.registration.fenced

    def _leave_isr(self, *directories: Uuid) -> None:
        for (topic_id, number), one in list(self.image.partitions.items()):
            if one.directory in directories and NODE in one.isr:
                isr = tuple(broker for broker in one.isr if broker != NODE)
                leader = isr[0] if one.leads else one.leader
                self.write(PartitionChangeRecord(partition_id=number, topic_id=topic_id, isr=isr, leader=leader))

    def be_fenced(self) -> None:
        """The controllers fence the broker."""
        self.write(BrokerRegistrationChangeRecord(broker_id=NODE, broker_epoch=self.epoch, fenced=1))
        self._leave_isr(D1, D2)

    def restart(self) -> None:
        """The broker starts again, with a disk that is healthy."""
        self.pid, self.health, self.crippled = 8, Health.ONLINE, False
        self.register(NODE, self.epoch + 1, self.directory_id, D2)

    # ---- moments at which a guard may be killed

    def moment(self) -> None:
        self.moments += 1
        if self.kill_at is not None and self.moments == self.kill_at:
            raise Killed

    def do(self, name: str, effect: Callable[[], None] = lambda: None) -> Done:
        self.moment()
        answer = self.cannot.get(name, DONE)
        self.deeds.append(name)
        if answer.happened:
            effect()
        self.moment()
        return answer

    @property
    def acts(self) -> list[str]:
        """The acts, without those on the record of suspects."""
        return [one for one in self.deeds if one not in ("suspect", "trust")]

    # ---- the helper

    async def cut(self, directory: str, until_ms: int) -> Done:
        assert self.clock.ms <= until_ms <= self.clock.ms + CUT_WITHIN_MS
        return self.do("cut")

    async def mask(self, directory: str) -> Done:
        return self.do("mask", lambda: setattr(self, "masked", True))

    async def unmask(self, directory: str) -> Done:
        return self.do("unmask", lambda: setattr(self, "masked", False))

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

    # ---- the controllers

    async def suspect(self, value: str | None) -> Done:
        record = ConfigRecord(resource_type=4, resource_name=str(NODE), name=CONFIG, value=value)
        return self.do("trust" if value is None else "suspect", lambda: self.write(record))

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        def record() -> None:
            ids = tuple(map(Uuid.parse, directory_ids))
            assert self.image.registration is not None
            left = tuple(one for one in self.image.registration.log_dirs if one not in ids)
            self.write(BrokerRegistrationChangeRecord(broker_id=NODE, broker_epoch=broker_epoch, log_dirs=left))
            self._leave_isr(*ids)

        return self.do("report", record)

    async def fence(self, broker_epoch: int) -> Done:
        return self.do("fence", self.be_fenced)

    async def reassign(self, replicas: Mapping[Name, Sequence[int] | None]) -> Mapping[Name, Done]:
        taken = {name: brokers for name, brokers in replicas.items() if name not in self.refused}

        def change() -> None:
            for (_, number), brokers in taken.items():
                self.change(number, *(brokers or ()))

        leaves = any(NODE not in (brokers or ()) for brokers in replicas.values())
        answer = self.do("evict" if leaves else "restore", change)
        refused = {name: Done(outcome=Outcome.FAILED, reason=reason) for name, reason in self.refused.items()}
        return {name: refused.get(name, answer) for name in replicas}

    async def elect(self, partitions: Sequence[Name]) -> Mapping[Name, Done]:
        raise AssertionError("nobody moves leadership here")

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
        self.meanwhile.pop(name, lambda: None)()
        self.moment()

    def done(self, name: str, path: str | None, done: Done) -> None:
        if not done.happened:
            self.trouble.append(f"{name}: {done.reason}")

    def stands(self, path: str | None, state: str, reason: str) -> None:
        self.told.append((path, state, reason))

    def forgotten(self, names: list[str]) -> None:
        self.audit.append(f"forgotten {names}")

    def unwritten(self, reason: str) -> None:
        """Nothing more."""

    # ---- what a guard sees

    def situation(self, guard: "Guard") -> Situation:
        now_ms, failed = self.clock.ms, self.health is Health.FAILED
        acted_ms = guard.core.acted(now_ms).get(PATH) if self.pid else None
        waits = self.crippled and acted_ms is not None and now_ms - acted_ms >= 1_000
        first = Disk(
            path=PATH,
            directory_id=self.directory_id,
            health=self.health,
            cause=Cause.HUNG if failed else Cause.NONE,
            failed_ms=self.failed_ms if failed else None,
            bad_ms=self.failed_ms if failed else now_ms,
            over="its disk answers again" if failed and self.answers else None,
            file_system=self.file_system,
            cut_after_ms=CUT_AFTER_MS,
        )
        second = Disk(path=WELL, directory_id=D2, health=Health.ONLINE, file_system="ext4")
        return Situation(
            now_ms=now_ms,
            wall_ms=self.clock.wall_ms(),
            disks={PATH: first, WELL: second},
            observed=guard.observed,
            answered_ms=now_ms,
            unbound=None if self.pid else "no broker runs",
            pid=self.pid,
            ended_pid=None if self.pid == 7 else 7,
            stuck="a fetcher is stuck" if waits else None,
            waits=waits,
            may_evict=not guard.acting.unwritten,
        )


class Guard:
    """A guard process: its memory is gone when it is."""

    def __init__(self, world: World) -> None:
        self.world = world
        clock, before = world.clock, Journal()
        if world.saved:
            before = decode(world.saved, NODE, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())
        world.runs += 1
        self.work: list[Coroutine[Any, Any, None]] = []
        self.reviews = 0
        self.core = GuardCore(world.site, before, f"g{world.runs}")
        self.core.acts = True
        self.observed = Observed(NODE)
        self.observed.follow_evicted(before.evicted)
        self.acting = ActionRunner(
            core=self.core,
            helper=world,
            controllers=world,
            scribe=world,
            clock=clock,
            spawn=self.work.append,
            review=self._review,
            situation=lambda: None if world.ends else self.situation(),
        )

    def _review(self) -> None:
        self.reviews += 1

    @property
    def standing(self) -> directory_steps.Standing:
        return self.core.standing(PATH)

    @property
    def evicted(self) -> list[tuple[int, ...]]:
        """Replica lists in the journal, without doubles."""
        return sorted({one.before for one in self.core.journal.evicted.values()})

    def situation(self) -> Situation:
        """What this guard knows now."""
        follow(self.observed, self.world.log, self.world.clock)
        return self.world.situation(self)

    def look(self) -> int:
        """Look once, and begin what is due; when to look again at the latest."""
        look = self.core.look(self.situation())
        self.acting.take(look)
        return min(1_000, 1_000 if look.again_ms is None else max(1, look.again_ms))

    async def finish(self) -> None:
        """Do what was begun."""
        while self.work:
            await self.work.pop(0)

    async def step(self, end_ms: int) -> None:
        """Look, do what is due, and let time pass as the daemon does: until something is due, or for a second."""
        reviews, again_ms = self.reviews, self.look()
        await self.finish()
        wait_ms = 10 if self.reviews > reviews else again_ms
        self.world.clock.ms = min(self.world.clock.ms + wait_ms, end_ms)

    async def run(self, ms: int) -> None:
        """Run for so long."""
        end_ms = self.world.clock.ms + ms
        while self.world.clock.ms < end_ms:
            await self.step(end_ms)

    async def until(self, deed: str) -> None:
        """Run until something is done."""
        count, end_ms = self.world.deeds.count(deed), self.world.clock.ms + 60_000
        while self.world.deeds.count(deed) == count:
            assert self.world.clock.ms < end_ms, f"{deed} was not done: {self.world.deeds}"
            await self.step(end_ms)

    def close(self) -> None:
        for one in self.work:
            one.close()


async def survive(world: World, ms: int) -> tuple[Guard, int]:
    """Go on with a new guard where one is killed."""
    killed = 0
    while True:
        guard = Guard(world)
        try:
            await guard.run(ms)
            return guard, killed
        except Killed:
            killed += 1
            guard.close()


async def dead(**settings: Any) -> tuple[World, Guard]:
    """A disk that is dead, and a guard that has done everything about it."""
    world = World(**settings)
    guard = Guard(world)
    await guard.run(10_000)
    return world, guard


# ----------------------------------------------------------------------------------------------- from verdict to effect


async def test_a_disk_that_is_dead_is_suspected_reported_cut_and_evicted_and_restored_with_its_broker() -> None:
    world, guard = await dead()
    assert world.deeds == world.audit == ALL_ACTS
    assert world.lists == [(2, 3)] and guard.evicted == [(2, 1, 3)]
    assert world.image.registration is not None and world.image.registration.log_dirs == (D2,)
    world.restart()
    await guard.run(10_000)
    assert world.deeds == [*ALL_ACTS, "restore"] and world.lists == [(2, 1, 3)] and guard.evicted == []
    assert guard.standing.state is directory_steps.State.WELL and NODE not in world.image.suspects
    told = [state for path, state, _ in world.told if path == PATH]
    assert told == ["reporting", "cut", "evicted", "restoring", "well"]
    assert not world.trouble


async def test_nothing_but_the_record_of_suspicion_is_written_before_the_disk_has_stood_still_for_long_enough() -> None:
    world = World()
    guard = Guard(world)
    await guard.run(CUT_AFTER_MS - 1)
    assert world.deeds == ["suspect"] and world.image.suspects[NODE].directories == {D1}
    world.answers = True
    await guard.run(10_000)
    assert world.deeds == ["suspect", "trust"] and NODE not in world.image.suspects
    assert world.lists == [(2, 1, 3)]


async def test_a_guard_that_may_not_write_the_record_does_nothing_else_and_asks_less_and_less_often() -> None:
    world, guard = await dead(cannot={"suspect": Done(outcome=Outcome.REFUSED, reason="no right to alter configs")})
    await guard.run(50_000)
    assert set(world.deeds) == {"suspect"} and 5 <= len(world.deeds) <= 7
    world.cannot = {}
    await guard.run(60_000)
    assert world.acts == ["report", "cut", "evict"]


async def test_a_cut_that_follows_a_report_waits_for_no_state_directory() -> None:
    world = World()
    guard = Guard(world)
    await guard.until("report")

    async def silent(journal: Journal) -> None:
        await asyncio.Event().wait()

    world.save = silent  # type: ignore[method-assign]
    guard.look()
    (cut,) = guard.work
    guard.work.clear()
    await asyncio.wait_for(cut, 60)
    assert world.acts == ["report", "cut"]
    guard.close()


async def test_a_disk_that_answers_while_its_report_is_written_down_is_left_unchanged() -> None:
    world = World()
    world.meanwhile["report"] = lambda: setattr(world, "answers", True)
    guard = Guard(world)
    await guard.run(10_000)
    assert world.acts == [] and world.trouble == ["report: recovered: its disk answers again"]
    assert guard.standing.state is directory_steps.State.WELL and guard.core.acted(world.clock.ms) == {}
    world.answers, world.failed_ms = False, world.clock.ms  # and hangs once more
    await guard.run(10_000)
    assert world.acts == ["report", "cut", "evict"]


async def test_a_disk_that_answers_after_its_report_keeps_its_page_cache_and_its_partitions() -> None:
    world = World()
    guard = Guard(world)
    await guard.until("report")
    world.answers = True
    await guard.run(10_000)
    assert world.acts == ["report"] and world.lists == [(2, 1, 3)]
    assert (guard.standing.state, guard.standing.reason) == (directory_steps.State.OFFLINE, directory_steps.ANSWERED)


async def test_a_cut_that_does_not_work_leaves_the_broker_its_files_so_that_nothing_is_evicted() -> None:
    dead_helper = Done(outcome=Outcome.FAILED, reason="the privileged helper has died: start the guard again")
    world, guard = await dead(cannot={"cut": dead_helper})
    assert world.acts == ["report", "cut"] and world.lists == [(2, 1, 3)]
    assert world.told[-1] == (PATH, "offline", dead_helper.reason)
    await guard.run(30_000)
    assert world.acts == ["report", "cut"]


async def test_a_guard_that_was_started_again_since_its_helper_had_died_does_what_that_one_could_not() -> None:
    dead_helper = Done(outcome=Outcome.FAILED, reason="the privileged helper has died: start the guard again")
    cut, _ = await dead(cannot={"cut": dead_helper})
    masked, _ = await dead(cannot={"mask": dead_helper}, file_system="btrfs")
    assert (cut.acts, masked.acts) == (["report", "cut"], ["mask"])
    assert masked.told[-1] == (PATH, "left", dead_helper.reason)
    for world, acts in ((cut, ["cut", "evict"]), (masked, ["mask"])):
        world.cannot, count = {}, len(world.acts)
        await Guard(world).run(2_000)
        assert world.acts[count:] == acts


async def test_lists_that_cannot_be_written_down_are_tried_again_with_longer_and_longer_waits() -> None:
    world = World()
    guard = Guard(world)
    await guard.until("cut")
    world.no_disk = True
    await guard.run(5_000)
    assert 2 <= sum(one.startswith("evict") for one in world.trouble) <= 6
    assert "cannot be written down" in next(iter(guard.core.refused.values())).reason
    world.no_disk = False
    await guard.run(10_000)
    assert world.acts == ["report", "cut", "evict"]


async def test_a_guard_without_a_helper_reports_nothing_since_nobody_could_shut_the_file_system_down() -> None:
    world = World()
    guard, see = Guard(world), world.situation
    world.situation = lambda guard: replace(see(guard), no_helper="no rights")  # type: ignore[method-assign]
    await guard.run(10_000)
    assert world.acts == []


async def test_the_record_of_a_broker_that_is_killed_stays_until_the_metadata_show_its_fence() -> None:
    world, _ = await dead(crippled=True)
    assert world.deeds[-3:] == ["kill", "fence", "trust"]


async def test_a_guard_that_was_killed_behind_an_eviction_is_followed_by_one_that_removes_the_record() -> None:
    world = World()
    guard = Guard(world)
    while "evict" not in world.deeds:
        await guard.run(10)
    await Guard(world).run(60_000)
    assert NODE not in world.image.suspects


async def test_a_directory_that_was_released_is_left_alone_by_the_next_guard_too() -> None:
    world = World()
    guard = Guard(world)
    assert guard.acting.release(PATH) is None
    await guard.run(10_000)
    await Guard(world).run(10_000)
    assert world.acts == []


async def test_a_guard_that_ends_begins_nothing_any_more() -> None:
    world = World()
    guard = Guard(world)
    await guard.run(CUT_AFTER_MS - 1)
    world.clock.ms += 1
    guard.look()
    world.ends = True
    await guard.finish()
    assert world.acts == []
    assert guard.acting.before_start(masks=True) == {} and await guard.acting.restore_now() == (0, None)


async def test_one_thing_is_done_at_a_time_for_a_directory() -> None:
    world = World()
    guard, release, report = Guard(world), asyncio.Event(), world.report

    async def slow(broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        await release.wait()
        return await report(broker_epoch, directory_ids)

    world.report = slow  # type: ignore[method-assign]
    await guard.run(CUT_AFTER_MS - 1)
    world.clock.ms += 1
    guard.look()
    (work,) = guard.work
    guard.work.clear()
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert guard.acting.release(PATH) == "report is under way there"
    world.write(BrokerRegistrationChangeRecord(broker_id=NODE, broker_epoch=EPOCH, log_dirs=(D2,)))
    for _ in range(5):
        world.clock.ms += 1_000
        guard.look()
        assert not guard.work
    release.set()
    await task
    await guard.run(10_000)
    assert world.acts == ["report", "cut", "evict"]


async def test_a_mask_comes_off_by_itself_when_the_disk_answers_and_kafka_has_not_noticed() -> None:
    world = World(file_system="btrfs")
    guard = Guard(world)
    await guard.until("mask")
    world.answers = True
    await guard.run(10_000)
    assert world.acts == ["mask", "unmask"] and not world.masked and world.lists == [(2, 1, 3)]
    assert guard.standing.state is directory_steps.State.WELL and NODE not in world.image.suspects


async def test_a_mask_that_kafka_does_not_meet_within_its_checkpoints_is_followed_by_a_report() -> None:
    world, guard = await dead(file_system="btrfs")
    assert world.acts == ["mask", "report", "evict"] and world.masked and guard.evicted == [(2, 1, 3)]


# ----------------------------------------------------------------------------------------------------------- the broker


async def test_a_broker_that_is_stuck_is_killed_and_fenced_and_loses_no_other_broker_its_leaders() -> None:
    world, guard = await dead(crippled=True)
    assert world.acts == ["report", "cut", "evict", "kill", "fence"]
    assert world.is_fenced and guard.core.journal.fenced is not None
    assert world.partitions(U)[0].leader == 2, "what it led on the healthy disk"
    assert (None, "fencing", "a fetcher is stuck") in world.told


async def test_a_broker_that_comes_back_while_its_kill_is_written_down_is_not_killed() -> None:
    world = World(crippled=True)
    world.meanwhile["kill"] = lambda: setattr(world, "crippled", False)
    guard = Guard(world)
    await guard.run(10_000)
    assert world.acts == ["report", "cut", "evict"]
    assert world.trouble == ["kill: not due any more: the reason for it has passed"]
    assert guard.core.broker.state is broker_steps.State.SERVING and guard.core.journal.fenced is None


@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
async def test_the_limit_of_fences_holds_when_somebody_sets_the_wall_clock(set_by_ms: int) -> None:
    world, guard = await dead(crippled=True)
    assert "kill" in world.deeds and guard.core.journal.fenced is not None
    at_ms = guard.core.journal.fenced[1]
    assert 0 < world.clock.ms - at_ms <= 10_000
    world.clock.wall_was_set_by_ms = set_by_ms
    await guard.run(500)
    assert guard.core.journal.fenced[1] == at_ms
    # A guard that starts after it was set back counts from its own start, and not for an hour more.
    began_ms = world.clock.ms
    again = Guard(world).core.journal.fenced
    assert again is not None and (set_by_ms > 0 or again[1] == began_ms)


# -------------------------------------------------------------------------------------------------------- replica lists


async def test_partitions_that_are_too_many_for_one_request_are_evicted_and_restored_by_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actions, "REQUEST_PARTITIONS_MAX", 2)
    world, guard = await dead()
    assert world.acts == ["report", "cut", "evict", "evict"] and world.audit.count("evict") == 1
    assert world.lists == [(2, 3)]
    world.restart()
    await guard.run(10_000)
    assert world.acts[4:] == ["restore", "restore"] and world.audit.count("restore") == 1
    assert world.lists == [(2, 1, 3)]


async def test_evicted_partitions_are_restored_when_a_new_disk_is_in_the_place_of_the_old_one() -> None:
    world, _ = await dead()
    world.directory_id = Uuid.of(5, 9)
    world.restart()
    guard = Guard(world)
    await guard.run(10_000)
    assert world.acts == ["report", "cut", "evict", "restore"]
    assert world.lists == [(2, 1, 3)] and guard.evicted == []


async def test_of_two_brokers_that_were_evicted_both_come_back() -> None:
    world, guard = await dead()
    world.change(1, 3)  # by the guard of broker 2
    world.restart()
    await guard.run(10_000)
    assert world.partitions()[1].replicas == (3,) and (T, 1) in guard.core.journal.evicted
    world.change(1, 2, 3)
    await guard.run(10_000)
    assert world.lists == [(2, 1, 3)] and guard.evicted == []


async def test_a_list_that_another_guard_changes_while_ours_is_written_down_is_not_set_back() -> None:
    world = World()
    world.place(1, 2, 1, 3, 4)
    world.meanwhile["evict"] = lambda: world.change(1, 1, 3, 4)  # broker 2 has left
    guard = Guard(world)
    await guard.until("evict")
    assert world.partitions()[1].replicas == (1, 3, 4) and (T, 1) not in guard.core.journal.evicted
    await guard.run(10_000)
    assert world.partitions()[1].replicas == (3, 4), "and then from what is there now"
    assert guard.core.journal.evicted[T, 1].before == (1, 3, 4)


async def test_a_list_that_somebody_else_has_changed_is_left_alone_and_told() -> None:
    world, guard = await dead()
    world.change(1, 2, 4)
    world.restart()
    await guard.run(10_000)
    assert {number: one.replicas for number, one in world.partitions().items()} == {
        0: (2, 1, 3),
        1: (2, 4),
        2: (2, 1, 3),
    }
    assert "forgotten ['t-1']" in world.audit and guard.evicted == []


async def test_nothing_is_evicted_that_cannot_be_written_down() -> None:
    world = World()
    guard = Guard(world)
    await guard.until("cut")
    world.no_disk = True
    await guard.run(200)
    assert world.acts == ["report", "cut"] and guard.evicted == []
    assert "evict: the replica lists cannot be written down: No space left on device" in world.trouble
    assert guard.acting.unwritten == "No space left on device"
    world.no_disk = False
    await guard.run(10_000)
    assert world.acts == ["report", "cut", "evict"] and guard.acting.unwritten == ""


@pytest.mark.parametrize(
    ("crippled", "until", "acts"),
    [
        (False, "suspect", ["mask"]),
        (True, "suspect", ["mask", "kill", "fence"]),
        (False, "report", ["cut"]),
        (True, "report", ["cut", "kill", "fence"]),
        (True, "cut", ["kill", "fence"]),
    ],
)
async def test_an_act_is_told_before_it_is_done_also_while_nothing_can_be_written_down(
    crippled: bool, until: str, acts: list[str]
) -> None:
    world = World(crippled=crippled)
    guard = Guard(world)
    await guard.until(until)
    world.no_disk = True
    before, told = len(world.acts), len(world.audit)
    await guard.run(CUT_AFTER_MS + 2_000)
    assert world.acts[before:] == acts
    assert [one for one in world.audit[told:] if one in acts] == acts


async def test_lists_that_an_unanswered_eviction_may_have_changed_stay_when_the_next_cannot_be_written_down() -> None:
    world = World(cannot={"evict": Done(outcome=Outcome.FAILED, reason="no answer")})
    guard = Guard(world)
    await guard.until("evict")
    assert len(guard.core.journal.evicted) == 3
    world.no_disk = True
    await guard.run(2_500)
    assert any("cannot be written down" in one for one in world.trouble)
    # The controllers have taken the first one, and answer late.
    for number in range(3):
        world.change(number, 2, 3)
    world.cannot, world.no_disk = {}, False
    await guard.run(UNSEEN_MS)
    assert guard.evicted == [(2, 1, 3)]
    world.restart()
    await guard.run(10_000)
    assert world.lists == [(2, 1, 3)]


async def test_a_reassignment_that_somebody_begins_while_a_restoration_is_written_down_goes_on() -> None:
    world, guard = await dead()
    world.meanwhile["restore"] = lambda: world.change(1, 4, 2, 3, adding_replicas=(4,), removing_replicas=(3,))
    world.restart()
    await guard.run(10_000)
    found = {number: one.replicas for number, one in world.partitions().items()}
    assert found == {0: (2, 1, 3), 1: (4, 2, 3), 2: (2, 1, 3)}
    assert "forgotten ['t-1']" in world.audit and guard.evicted == []


async def test_partitions_that_a_topic_gets_between_eviction_and_restoration_are_left_as_they_are() -> None:
    world, _ = await dead()
    world.place(3, 1, 2, at=D2)
    world.restart()
    world.place(4, 1, 2)
    await Guard(world).run(10_000)
    found = {number: one.replicas for number, one in world.partitions().items()}
    assert found == dict.fromkeys(range(3), (2, 1, 3)) | {3: (1, 2), 4: (1, 2)}


async def test_a_partition_that_the_controllers_refuse_holds_up_no_other_and_is_asked_for_less_and_less_often() -> None:
    world, guard = await dead()
    world.restart()
    world.refused = {("t", 1): "INVALID_REPLICA_ASSIGNMENT: broker 3 is not registered"}
    await guard.run(60_000)
    assert {number: NODE in one.replicas for number, one in world.partitions().items()} == {0: True, 1: False, 2: True}
    assert list(guard.core.journal.evicted) == [(T, 1)] and 4 <= world.deeds.count("restore") <= 7
    assert guard.core.refused[T, 1].reason == world.refused["t", 1]
    world.refused = {}
    await guard.run(60_000)
    assert world.lists == [(2, 1, 3)] and guard.evicted == [] and not guard.core.refused


async def test_who_asks_for_a_restoration_does_not_wait_for_a_state_directory_that_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_writer, "PATIENCE_MS", 1)
    world, guard = await dead()

    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    world.does = silent  # type: ignore[method-assign,assignment]
    assert await asyncio.wait_for(guard.acting.restore_now(), 60) == (3, DONE)
    assert world.lists == [(2, 1, 3)]
    guard.close()


@pytest.mark.parametrize("set_by_ms", [3_600_000, -3_600_000])
async def test_an_eviction_that_the_metadata_do_not_show_yet_is_not_forgotten_when_the_wall_clock_is_set(
    set_by_ms: int,
) -> None:
    world = World(cannot={"evict": Done(outcome=Outcome.FAILED, reason="no answer")})
    guard = Guard(world)
    await guard.until("evict")
    assert len(guard.core.journal.evicted) == 3
    world.clock.wall_was_set_by_ms = set_by_ms
    await guard.run(100)
    assert len(guard.core.journal.evicted) == 3


async def test_an_eviction_is_forgotten_only_after_metadata_that_are_followed_have_not_shown_it() -> None:
    world = World(cannot={"evict": Done(outcome=Outcome.FAILED, reason="no answer")})
    first = Guard(world)
    await first.until("evict")
    world.clock.ms += 60_000  # no guard runs, or the controllers are silent: the request may still be taken
    guard = Guard(world)
    for _ in range(2):
        guard.look()
        assert len(guard.core.journal.evicted) == 3
        world.clock.ms += 60_000
    for _ in range(UNSEEN_MS // 1_000 + 1):
        guard.look()
        assert len(guard.core.journal.evicted) == 3
        world.clock.ms += 1_000
    guard.look()
    assert not guard.core.journal.evicted
    for one in (first, guard):
        one.close()


# --------------------------------------------------------------------------------- a guard that is killed, and the next


@dataclass
class Story:
    """What happens to a world, and how it is at the end.

    Attributes:
        make: the world.
        first_ms: how long its disk is in trouble.
        then: what happens after that.
        last_ms: how long a guard runs on then.
        is_over: whether the world is as it should be.
    """

    make: Callable[[], World]
    first_ms: int
    then: Callable[[World], None]
    last_ms: int
    is_over: Callable[[World], bool]

    def tell(self, kill_at: int | None = None) -> tuple[World, int]:
        """Tell it to its end, with a new guard where one is killed; how often that was."""
        world = self.make()
        world.kill_at = kill_at

        async def tell() -> int:
            _, killed = await survive(world, self.first_ms)
            self.then(world)
            _, again = await survive(world, self.last_ms)
            return killed + again

        return world, asyncio.run(tell())


def is_restored(world: World) -> bool:
    return world.lists == [(2, 1, 3)] and "evict" in world.deeds and "fence" not in world.deeds


def was_fenced(world: World) -> bool:
    counts = [world.deeds.count(deed) for deed in ("kill", "fence")]
    return world.lists == [(2, 1, 3)] and min(counts) >= 1 and max(counts) <= 2


def is_unmasked(world: World) -> bool:
    return "mask" in world.deeds and not world.masked and "report" not in world.deeds


STORIES = {
    "a dead disk": Story(World, 5_000, World.restart, UNSEEN_MS + 5_000, is_restored),
    "a stuck broker": Story(lambda: World(crippled=True), 6_000, World.restart, UNSEEN_MS + 5_000, was_fenced),
    "a disk that is masked and answers": Story(
        lambda: World(file_system="btrfs"), 4_000, lambda world: setattr(world, "answers", True), 5_000, is_unmasked
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_guard_that_is_killed_at_any_moment_is_followed_by_one_that_goes_on(story: str) -> None:
    tell, is_over = STORIES[story].tell, STORIES[story].is_over
    whole, _ = tell()
    assert whole.moments > 10
    for moment in (None, *range(1, whole.moments + 1)):
        world, killed = tell(moment)
        told = decode(world.saved, NODE, now_ms=world.clock.ms, wall_ms=world.clock.wall_ms())
        assert killed == (moment is not None) and is_over(world), (moment, world.deeds)
        assert NODE not in world.image.suspects, (moment, world.deeds)
        assert not told.evicted, (moment, world.deeds)


# ---------------------------------------------------------------------------------------------------------- the journal

State = directory_steps.State


def test_a_journal_is_read_as_it_was_written() -> None:
    standing = directory_steps.Standing(
        state=State.EVICTED, since_ms=50, means=Step.CUT, plan=Step.CUT, epoch=5, reports=1, offline_ms=40
    )
    broker = broker_steps.Standing(state=broker_steps.State.FENCED, pid=7, epoch=5, fences=1, killed_ms=30, reset=True)
    evicted = {(T, 2): Evicted(str(D1), "t", (2, 1, 3), 99)}
    demoted = {(T, 3): Demoted(str(D1), "t", (1, 2), (2, 1))}
    told = Journal(
        directories={PATH: (standing, str(D1), 1_000)}, broker=broker, fenced=(5, 7), evicted=evicted, demoted=demoted
    )
    found = decode(encode(told, NODE, ahead_ms=70), NODE, now_ms=60, wall_ms=1_010)
    assert (found.evicted, found.demoted, found.fenced) == (evicted, demoted, (5, 60 - (1_010 - 77)))
    assert found.of(str(D1)) == {(T, 2): (2, 1, 3)} and found.demoted_of(str(D1)) == {(T, 3): ((1, 2), (2, 1))}
    again = found.directories[PATH][0]
    assert (again.state, again.means, again.plan, again.epoch, again.reports) == ("evicted", "cut", "cut", 5, 1)
    assert (found.broker.state, found.broker.fences, found.broker.reset) == ("fenced", 1, True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"state": State.REPORTING, "plan": Step.CUT}, State.REPORTING),
        ({"state": State.CUTTING, "plan": Step.CUT, "reports": 1}, State.REPORTING),
        ({"state": State.CUTTING}, State.WELL),  # for a broker that was about to start
        ({"state": State.MASKING, "plan": Step.MASK}, State.MASKING),
        ({"state": State.UNMASKING, "means": Step.MASK, "plan": Step.MASK}, State.MASKED),
        ({"state": State.RELEASING, "means": Step.MASK}, State.LEFT),
        ({"state": State.LEFT, "reason": directory_steps.RELEASED}, State.LEFT),
        ({"state": State.LEFT, "reason": "no right"}, State.WELL),  # this guard may have what that one lacked
        ({"state": State.LEFT, "reason": "not shown", "reports": 3}, State.LEFT),
    ],
    ids=str,
)
def test_the_next_guard_goes_on_where_the_one_before_was_killed(before: dict[str, Any], after: State) -> None:
    standing = directory_steps.Standing(epoch=5, **before)
    content = encode(Journal(directories={PATH: (standing, str(D1), 90)}), NODE, ahead_ms=0)
    found = decode(content, NODE, now_ms=100, wall_ms=100).directories[PATH][0]
    assert (found.state, found.means, found.plan) == (after, standing.means, standing.plan)
    assert directory_steps.is_released(found) is (before["state"] is State.RELEASING or "released" in before.values())
    assert (found.acted_ms is None) is (standing.means is standing.plan is None)


KILL = effects.Kill(5)
REST: tuple[effects.Effect, ...] = (effects.Fence(5), effects.Cut(PATH), effects.Reset(), effects.Destroy())


@pytest.mark.parametrize(
    ("before", "state", "left"),
    [
        # Nothing was done, and nobody knows whether it was to be: it begins anew.
        ({"left": (KILL, *REST)}, "absent", []),
        ({"left": (KILL, *REST), "under_way": KILL}, "fencing", ["kill", "fence", "reset", "destroy"]),
        ({"left": REST, "killed_ms": 7}, "fencing", ["fence", "reset", "destroy"]),
        ({"left": REST[1:], "killed_ms": 7, "fences": 1}, "fencing", ["reset", "destroy"]),
        ({"left": (effects.Fence(5),)}, "fencing", ["fence"]),  # its process has ended by itself
        ({"state": broker_steps.State.FENCED, "fences": 1, "killed_ms": 7, "reset": True}, "fenced", []),
        ({"state": broker_steps.State.SERVING}, "absent", []),
    ],
)
def test_a_fence_goes_on_where_it_came_to_the_kill_and_begins_anew_where_it_did_not(
    before: dict[str, Any], state: str, left: list[str]
) -> None:
    broker = broker_steps.Standing(**{"state": broker_steps.State.FENCING, "pid": 7, "epoch": 5, **before})
    found = decode(encode(Journal(broker=broker), NODE, ahead_ms=0), NODE, now_ms=100, wall_ms=100).broker
    assert (found.state, [one.name for one in found.left], found.under_way) == (state, left, None)
    assert (found.epoch, found.fences, found.reset) == (5, broker.fences, broker.reset)


@pytest.mark.parametrize("set_by_ms", [0, 3_600_000, -3_600_000])
@pytest.mark.parametrize("when", ["before the writing", "after the writing"])
def test_the_next_guard_of_the_same_boot_knows_how_long_ago_a_fence_and_a_failure_were_whatever_the_wall_clock_says(
    set_by_ms: int, when: str
) -> None:
    gone = directory_steps.Standing(state=State.OFFLINE, epoch=5, offline_ms=95_000)
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
    gone = directory_steps.Standing(state=State.OFFLINE, epoch=5, offline_ms=40)
    told = encode(Journal(directories={PATH: (gone, str(D1), at_ms)}), NODE, ahead_ms=50_000)
    found = decode(told, NODE, now_ms=50_000, wall_ms=100_000).directories[PATH][0]
    assert (found.state, found.offline_ms, found.seen_online) == ("offline", None, False)
    near = decode(told, NODE, now_ms=50_000, wall_ms=at_ms - 1_000).directories[PATH][0]
    assert (near.offline_ms, near.seen_online) == (50_000, True)


async def test_a_directory_that_went_offline_long_ago_is_not_taken_for_new_by_a_guard_that_starts() -> None:
    world, guard = await dead()
    world.clock.ms += 1_800_000
    await guard.run(300)
    for _ in range(2):
        guard.acting.release(WELL)  # writes the journal again, about another directory
        await guard.run(300)
        guard = Guard(world)
        assert guard.standing.offline_ms is None and not guard.standing.seen_online
    await guard.run(300)
    assert guard.standing.offline_ms is None and world.acts == ["report", "cut", "evict"]


EMPTY = encode(Journal(), NODE, ahead_ms=0)
LEFT = encode(
    Journal(directories={PATH: (directory_steps.Standing(state=State.LEFT, epoch=5), str(D1), 1)}), NODE, ahead_ms=0
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
        LEFT.replace(b'"plan": null', b'"plan": "melt"'),
        LEFT.replace(b'"epoch": 5', b'"epoch": true'),
        LEFT.replace(str(D1).encode(), b"no id"),
        EMPTY.replace(b'"directories": {}', b'"directories": {"/d": {"at_ms": Infinity}}'),
    ],
)
def test_content_that_is_no_journal_of_this_broker_is_refused(content: bytes) -> None:
    with pytest.raises(JournalError):
        decode(content, NODE, now_ms=0, wall_ms=0, boot_id="this")


def test_a_journal_of_a_guard_that_knew_nothing_of_reports_is_read() -> None:
    without = LEFT.replace(b'   "plan": null,\n', b"")
    assert b"plan" not in without and decode(without, NODE, now_ms=0, wall_ms=0).directories[PATH][0].plan is None
