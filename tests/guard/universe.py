"""Guards, brokers and a controller in one process, on a seeded loop with virtual time.

Real: the guards' cores with their shells (:class:`~kjbod_guard.action_runner.ActionRunner`), what they know of the
metadata (:class:`~kjbod_guard.observing.Observed`), their journals, and the controller, which answers as shipped Kafka
does. Modelled: disks with a page cache, and of a broker its logs, its fetchers, and the handler of a failed directory.

The model of a broker, as measured on Kafka 4.3.1: appends to a hung disk go into the page cache for
:data:`APPEND_MS`, then block. A broker that becomes a follower in a directory writes its leader epoch with ``fsync``:
on a hung disk that fetcher is stuck, and with it everything that it fetches from that leader. A file-system shutdown
drops what is not flushed and answers EIO at once; the broker then takes the directory offline and says so. A broker
that is not in a replica list any more deletes its replica.
"""

import asyncio
import bisect
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kjbod.ids import Uuid
from kjbod.metadata.batches import RecordBatch
from kjbod.metadata.fetching import Committed
from kjbod.metadata.image import PartitionRegistration
from kjbod.wire.admin_messages import CreatePartitionsRequest, CreatePartitionsRequestTopic
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    RequestBody,
    ResponseT,
)
from kjbod_controller_stub.rules import KAFKA
from kjbod_guard import journal as journals
from kjbod_guard.act_mode import THREADS_EVERY_MS
from kjbod_guard.action_runner import ActionRunner
from kjbod_guard.actions import Done, Name, Outcome
from kjbod_guard.core import GuardCore
from kjbod_guard.directory_steps import ANSWERED
from kjbod_guard.invariants import BROKEN
from kjbod_guard.journal import Journal
from kjbod_guard.observing import Observed
from kjbod_guard.situation import Disk, Site, Situation
from kjbod_guard.suspects import CONFIG
from kjbod_host.health.state import Cause, Health
from tests.agent.conftest import VirtualLoop
from tests.controller.world import World, directory

APPEND_MS = 4_000
VERDICT_MS = (1_900, 2_900)
HEARTBEAT_MS = 2_000
LAG_MS = 30_000
TICK_MS = 200
EVICTED_MS = 6_000
"""How long a guard may take to evict what was cut."""
RESTART_MS = 20_000
"""From the end of a broker's process to its next start."""
T = TypeVar("T")
Key = tuple[str, int]


@dataclass(slots=True)
class ModelDisk:
    """A disk with one log directory."""

    broker: int
    id: Uuid
    path: str
    hung_ms: int | None = None
    """Since when it hangs; None: it does not."""
    cut: bool = False
    masked: bool = False
    failed_ms: int | None = None
    """When a guard would call it failed, once it hangs for so long."""
    passed_ms: int | None = None
    """Since when it has answered again after that."""

    def appends(self, now_ms: int) -> bool:
        return not self.cut and (self.hung_ms is None or now_ms - self.hung_ms < APPEND_MS)

    @property
    def writes(self) -> bool:
        return not self.cut and self.hung_ms is None


@dataclass(slots=True)
class Log:
    """A replica's records, of which those behind ``flushed`` are in the page cache alone."""

    disk: ModelDisk
    records: list[int] = field(default_factory=list)
    flushed: int = 0
    epoch: int = -1
    """Leader epoch of the last record."""

    @property
    def kept(self) -> list[int]:
        """Records that are there after the next start of the broker."""
        return self.records[: self.flushed] if self.disk.cut else self.records


class ModelBroker:
    """The storage of a Kafka broker."""

    def __init__(self, universe: "Universe", number: int, dirs: int) -> None:
        self.universe = universe
        self.id = number
        self.disks = [ModelDisk(number, directory(number, at), f"/b{number}/d{at}") for at in range(dirs)]
        self.logs: dict[Key, Log] = {}
        self.known: dict[Key, PartitionRegistration] = {}
        self.epoch = -1
        self.running = False
        self.started = 0
        self.offline: set[Uuid] = set()
        """Directories that it has taken offline itself."""
        self.stuck: dict[int, tuple[ModelDisk, int]] = {}
        """The fetchers that are stuck, by leader: on which disk, and since when."""
        self.stuck_ms = 0
        """When a thread was last seen to be stuck."""
        self.behind_ms: dict[tuple[Key, int], int] = {}

    async def start(self) -> None:
        """Start, as soon as no directory hangs; without those that answer errors."""
        while any(one.hung_ms is not None and not one.cut and not one.masked for one in self.disks):  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        dirs = tuple(one.id for one in self.disks if one.writes and not one.masked)
        if not dirs:
            return
        self.started += 1
        self.offline = {one.id for one in self.disks if one.id not in dirs}
        self.stuck.clear()
        while (epoch := await self.universe.register(self.id, dirs, self.started)) < 0:  # noqa: ASYNC110
            await asyncio.sleep(1)
        self.epoch, self.running = epoch, True
        self.universe.note(f"broker {self.id} registered, epoch {epoch}")
        while self.running:
            await self.beat()
            await asyncio.sleep(HEARTBEAT_MS / 1000)

    async def beat(self) -> None:
        # A broker that cannot apply metadata is not caught up; one that was unfenced goes on.
        offline = tuple(one for one in self.offline if one in self.universe.registered(self.id))
        if len(offline) == len(self.universe.registered(self.id)) and offline:
            self.end("all directories are offline")
            return
        await self.universe.heartbeat(self.id, self.epoch, offline=offline)

    def end(self, why: str) -> None:
        """The process ends. What is in the page cache stays."""
        if self.running:
            self.universe.note(f"broker {self.id} ends: {why}")
            self.running, self.stuck = False, {}
            self.universe.later(RESTART_MS, self.start)

    # ---- metadata

    def apply(self, key: Key, now: PartitionRegistration | None) -> None:
        """A partition as the metadata have it by now."""
        before = self.known.get(key)
        if not self.running:
            return
        if now is None or self.id not in now.replicas:
            self.known.pop(key, None)
            log = self.logs.get(key)
            if log is not None and log.disk.id not in self.offline:
                if log.disk.hung_ms is not None and not log.disk.cut:
                    self.stuck[-1] = (log.disk, self.universe.now_ms)  # it waits in the unlink
                del self.logs[key]
            return
        self.known[key] = now
        if key not in self.logs:
            free = [one for one in self.disks if one.id not in self.offline]
            placed = now.directory(self.id)
            disk = next((one for one in free if one.id == placed), None)
            if disk is not None:
                self.logs[key] = Log(disk)
        follows = now.leader not in (-1, self.id)
        if follows and key in self.logs and (before is None or before.leader_epoch != now.leader_epoch):
            disk = self.logs[key].disk
            if disk.id not in self.offline and disk.hung_ms is not None and not disk.cut:
                self.stuck.setdefault(now.leader, (disk, self.universe.now_ms))

    # ---- the data plane

    def failed(self, disk: ModelDisk) -> None:
        """The handler of a failed directory."""
        if disk.id not in self.offline:
            self.offline.add(disk.id)
            self.universe.note(f"broker {self.id} takes {disk.path} offline")
            self.universe.spawn(self.beat())

    def is_stuck(self, leader: int) -> bool:
        found = self.stuck.get(leader)
        return found is not None or -1 in self.stuck

    def step(self) -> None:
        """Threads come back with their disks; what touches a shut down or covered disk gets an error."""
        if self.stuck:
            self.stuck_ms = self.universe.now_ms
        self.stuck = {leader: one for leader, one in self.stuck.items() if one[0].hung_ms is not None}
        for disk in self.disks:  # also where nobody writes: at the next checkpoint
            if self.running and (disk.cut or disk.masked) and self.universe.now_ms % 5_000 < TICK_MS:
                self.failed(disk)


@dataclass(slots=True)
class Acted:
    """An act of a guard."""

    at_ms: int
    broker: int
    means: str


class Universe:
    """Everything.

    Args:
        loop: its time.
        seed: of all chance.
        brokers: how many.
        rf: replicas of each partition.
        min_isr: ``min.insync.replicas``.
        partitions: of the topic.
        guarded: whether there are guards.
        cut_after_ms: of the guards.
        elr: whether the cluster has eligible leader replicas.
        unclean: whether elections may be unclean.
        brokers_max: ``kjbod.guard.cut.max.brokers``.
    """

    def __init__(
        self,
        loop: VirtualLoop,
        seed: int,
        *,
        brokers: int = 3,
        rf: int = 3,
        min_isr: int = 2,
        partitions: int = 6,
        guarded: bool = True,
        cut_after_ms: int = 3_000,
        elr: bool = True,
        unclean: bool = False,
        brokers_max: int = 1,
        dirs: int = 2,
    ) -> None:
        self.loop = loop
        self.rng = random.Random(f"{seed}/{guarded}")
        self.world = World(rules=KAFKA, with_elr=elr, rng=random.Random(seed), static_configs={})
        self.base_ms = self.world.now_ms
        self.rf, self.min_isr, self.count = rf, min_isr, partitions
        self.guarded, self.cut_after_ms, self.brokers_max = guarded, cut_after_ms, brokers_max
        self.unclean = unclean
        self.brokers = {number: ModelBroker(self, number, dirs) for number in range(1, brokers + 1)}
        self.guards: dict[int, ModelGuard] = {}
        self.acked: dict[Key, list[int]] = {}
        self.pending: dict[Key, dict[int, int]] = {}
        self.last_ack_ms: dict[Key, int] = {}
        self.acts: list[Acted] = []
        self.notes: list[str] = []
        self.violations: list[str] = []
        self.stalled_until_ms = 0
        self.rests_until_ms = 0
        """Until when the producers send nothing."""
        self.lacking_ms: dict[tuple[Key, int], int] = {}
        """When a cut copy was first seen in the ISR while its guard may evict it, by partition and broker."""
        self._next_record = 0
        self.news = asyncio.Event()
        self.written_ms: list[int] = []
        """The controller's wall clock of each record."""
        self._queue: asyncio.Queue[tuple[Callable[[], Any], asyncio.Future[Any]]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._seen = 0

    # ---- time and tasks

    @property
    def now_ms(self) -> int:
        return self.loop.monotonic_ms()

    def note(self, text: str) -> None:
        self.notes.append(f"{self.now_ms / 1000:8.2f} {text}")

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.violations.append(f"a task failed: {error!r}")
            self.loop.stop()
            raise error

    def later(self, ms: float, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        async def wait() -> None:
            await asyncio.sleep(ms / 1000)
            await work()

        self.spawn(wait())

    def at(self, ms: float, work: Callable[[], None]) -> None:
        """Do something at a moment."""
        self.loop.call_later(max(0.0, ms - self.now_ms) / 1000, work)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- the controller

    async def _serve(self) -> None:
        while True:
            work, answered = await self._queue.get()
            while self.now_ms < self.stalled_until_ms:  # noqa: ASYNC110
                await asyncio.sleep((self.stalled_until_ms - self.now_ms) / 1000)
            self.world.now_ms = self.base_ms + self.now_ms
            found = work()
            self._tell()
            if not answered.done():
                answered.set_result(found)

    async def _timers(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            if self.now_ms >= self.stalled_until_ms:
                self.world.now_ms = self.base_ms + self.now_ms
                self.world.tick()
                self.world.write(self.world.controller.no_op())
                self._tell()

    def _tell(self) -> None:
        """Whoever waits for records looks again."""
        self.written_ms += [self.base_ms + self.now_ms] * (len(self.world.log) - len(self.written_ms))
        self.news.set()
        self.news = asyncio.Event()

    def stall(self, ms: int) -> None:
        """The controller stands still; requests wait."""
        self.note(f"the controller stalls for {ms} ms")
        self.stalled_until_ms = max(self.stalled_until_ms, self.now_ms + ms)

    def fail_over(self, ms: int) -> None:
        """The controller dies, and another one takes over its log; requests that wait are lost."""
        self.note(f"the controller fails over in {ms} ms")
        self.stalled_until_ms = max(self.stalled_until_ms, self.now_ms + ms)
        while not self._queue.empty():
            _, answered = self._queue.get_nowait()
            if not answered.done():
                answered.set_exception(ConnectionResetError())
        # Sessions begin anew with a new controller.
        self.at(self.stalled_until_ms, self._touch)

    def _touch(self) -> None:
        for broker in self.brokers.values():
            if broker.running:
                self.spawn(broker.beat())

    async def ask(self, request: RequestBody[ResponseT], timeout_ms: int = 1_000) -> ResponseT:
        """Send a request; it may be carried out although nobody waits for the answer any more."""
        return await self.do(lambda: self.world.ask(request), timeout_ms)

    async def do(self, work: Callable[[], T], timeout_ms: int = 1_000) -> T:
        await asyncio.sleep(self.rng.uniform(0.001, 0.02))
        answered: asyncio.Future[T] = self.loop.create_future()
        self._queue.put_nowait((work, answered))
        async with asyncio.timeout(timeout_ms / 1000):
            found = await answered
        await asyncio.sleep(self.rng.uniform(0.001, 0.01))
        return found

    def registered(self, broker: int) -> tuple[Uuid, ...]:
        found = self.world.controller.image.brokers.get(broker)
        return () if found is None else found.log_dirs

    async def register(self, broker: int, dirs: tuple[Uuid, ...], number: int) -> int:
        try:
            answer = await self.do(lambda: self.world.register(broker, dirs, number=number), 2_000)
        except (TimeoutError, ConnectionError):
            return -1
        return answer.broker_epoch if answer.error_code == 0 else -1

    async def heartbeat(self, broker: int, epoch: int, *, offline: tuple[Uuid, ...] = (), fence: bool = False) -> int:
        def beat() -> int:
            return self.world.beat(broker, epoch=epoch, offline=offline, fence=fence).error_code

        try:
            return await self.do(beat, 4_500)
        except (TimeoutError, ConnectionError):
            return -1

    # ---- partitions

    def partitions(self) -> dict[Key, PartitionRegistration]:
        image = self.world.controller.image
        return {
            (topic.name, number): one for topic in image.topics.values() for number, one in topic.partitions.items()
        }

    async def begin(self) -> None:
        """Brokers, topics and guards, all of them well."""
        for task in (self._serve(), self._timers()):
            self.spawn(task)
        for broker in self.brokers.values():
            self.spawn(broker.start())
        await asyncio.sleep(1)
        await self.make_topic("t", self.count)
        for number in self.brokers:
            if self.guarded:
                self.guards[number] = ModelGuard(self, number, Journal())
                self.guards[number].start()
        self.spawn(self._data_plane())
        await asyncio.sleep(6)

    async def make_topic(self, name: str, partitions: int) -> None:
        numbers = list(self.brokers)
        lists = [tuple((numbers * 2)[at % len(numbers) :][: self.rf]) for at in range(partitions)]
        configs = {"min.insync.replicas": str(self.min_isr)}
        if self.unclean:
            configs["unclean.leader.election.enable"] = "true"

        def create() -> bool:
            try:
                topic_id = self.world.create(name, *lists)
            except AssertionError:  # refused: no broker of a list is there
                return False
            for key, value in configs.items():
                self.configure(2, name, key, value)
            for number in self.brokers:
                registered = self.registered(number)
                for at, brokers in enumerate(lists):
                    if number in brokers and registered:
                        self.world.assign(number, (registered[at // len(numbers) % len(registered)], topic_id, (at,)))
            return True

        if not await self.do(create, 5_000):
            raise ConnectionError("refused")
        self.spread()

    def configure(self, kind: int, name: str, key: str, value: str | None) -> None:
        config = IncrementalAlterConfigsRequestConfig(name=key, config_operation=1 if value is None else 0, value=value)
        resource = IncrementalAlterConfigsRequestResource(resource_type=kind, resource_name=name, configs=(config,))
        answer = self.world.ask(IncrementalAlterConfigsRequest(resources=(resource,)))
        assert answer.responses[0].error_code == 0, answer

    def spread(self) -> None:
        """Have brokers apply what the metadata say by now, each a little later."""
        found = self.partitions()
        for broker in self.brokers.values():
            keys = {*found, *broker.known}
            changed = {key: found.get(key) for key in keys if broker.known.get(key) != found.get(key)}
            if changed and broker.running and -1 not in broker.stuck:
                self.loop.call_later(self.rng.uniform(0.005, 0.05), self._apply, broker, changed)

    def _apply(self, broker: ModelBroker, changed: Mapping[Key, PartitionRegistration | None]) -> None:
        now = self.partitions()
        for key in changed:
            broker.apply(key, now.get(key))

    async def _data_plane(self) -> None:
        while True:
            if len(self.world.log) != self._seen:
                self._seen = len(self.world.log)
                self.spread()
            for broker in self.brokers.values():
                broker.step()
            for key, now in self.partitions().items():
                self._replicate(key, now)
                self.check_evicted(key, now)
            await asyncio.sleep(TICK_MS / 1000)

    def _replicate(self, key: Key, now: PartitionRegistration) -> None:
        """One round of a partition: a record, the fetches of its followers, the high watermark, the ISR."""
        leader = self.brokers.get(now.leader)
        if leader is None or not leader.running:
            return
        view, log = leader.known.get(key), leader.logs.get(key)
        if view is None or log is None or view.leader != leader.id or view.leader_epoch != now.leader_epoch:
            return
        if log.disk.id in leader.offline:
            return
        rests = self.now_ms < self.rests_until_ms
        if log.disk.cut and not rests:
            leader.failed(log.disk)
            return
        if log.disk.appends(self.now_ms) and len(view.isr) >= self.min_isr and not rests:
            self._next_record += 1
            log.records.append(self._next_record)
            self.pending.setdefault(key, {})[self._next_record] = self.now_ms
        if log.disk.writes and self.rng.random() < 0.01:
            log.flushed = len(log.records)
        for number in view.replicas:
            if number != leader.id:
                self._fetch(key, self.brokers[number], leader, log, view)
        self._acknowledge(key, leader, log, view)
        self._alter_isr(key, leader, log, view)

    def _fetch(
        self, key: Key, follower: ModelBroker, leader: ModelBroker, log: Log, view: PartitionRegistration
    ) -> None:
        mine, known = follower.logs.get(key), follower.known.get(key)
        if mine is None or known is None or not follower.running or known.leader != leader.id:
            return
        if known.leader_epoch != view.leader_epoch or follower.is_stuck(leader.id):
            return
        if mine.disk.id in follower.offline:
            return
        if mine.disk.cut:
            if mine.records != log.records:
                follower.failed(mine.disk)
            return
        if not mine.disk.appends(self.now_ms):
            if mine.records != log.records:
                follower.stuck.setdefault(leader.id, (mine.disk, self.now_ms))
            return
        count = len(mine.records)
        if count <= len(log.records) and mine.records[-1:] == log.records[count - 1 : count]:
            mine.records += log.records[count:]
        else:
            mine.records = list(log.records)
        mine.flushed = min(mine.flushed, len(mine.records))
        if mine.disk.writes and self.rng.random() < 0.01:
            mine.flushed = len(mine.records)

    def _acknowledge(self, key: Key, leader: ModelBroker, log: Log, view: PartitionRegistration) -> None:
        if len(view.isr) < self.min_isr:
            return
        have = [self.brokers[number].logs.get(key) for number in view.isr if number != leader.id]
        least = min((0 if one is None else len(one.records) for one in have), default=len(log.records))
        pending = self.pending.get(key, {})
        for one in [one for one in pending if _is_among(one, log.records, least)]:
            del pending[one]
            self.acked.setdefault(key, []).append(one)
            self.last_ack_ms[key] = self.now_ms

    def _alter_isr(self, key: Key, leader: ModelBroker, log: Log, view: PartitionRegistration) -> None:
        """The leader takes out who lags, and takes in who has caught up; it does not look at directories."""
        isr = list(view.isr)
        for number in view.replicas:
            follower = self.brokers[number]
            mine = follower.logs.get(key)
            caught_up = number == leader.id or (mine is not None and len(mine.records) >= len(log.records) - 1)
            caught_up = caught_up and (number == leader.id or follower.running)
            caught_up = caught_up and (mine is None or mine.disk.id not in follower.offline)
            if caught_up:
                leader.behind_ms.pop((key, number), None)
            since_ms = self.now_ms if caught_up else leader.behind_ms.setdefault((key, number), self.now_ms)
            if number in isr and self.now_ms - since_ms > LAG_MS:
                isr.remove(number)
            registration = self.world.controller.image.brokers.get(number)
            fresh = mine is not None and mine.disk.id not in follower.offline and not follower.is_stuck(leader.id)
            if number not in isr and caught_up and fresh and registration is not None and not registration.fenced:
                isr.append(number)
        if tuple(isr) != view.isr and -1 not in leader.stuck:
            self.spawn(self._propose(key, leader, view, tuple(isr)))

    async def _propose(self, key: Key, leader: ModelBroker, view: PartitionRegistration, isr: tuple[int, ...]) -> None:
        def alter() -> None:
            now = self.partitions().get(key)
            if now is not None and now.partition_epoch == view.partition_epoch and now.leader == leader.id:
                self.world.alter_isr(key[0], isr, number=key[1], broker_id=leader.id)

        try:
            await self.do(alter)
        except (TimeoutError, ConnectionError):
            return

    # ---- faults and users

    def hang(self, broker: int, number: int, ms: int | None) -> None:
        """A disk stands still for so long; None: for good."""
        disk = self.brokers[broker].disks[number]
        if disk.hung_ms is not None or disk.cut:
            return
        self.note(f"{disk.path} hangs for {ms} ms")
        disk.hung_ms, disk.passed_ms = self.now_ms, None
        disk.failed_ms = self.now_ms + self.rng.randint(*VERDICT_MS)
        if ms is not None:
            self.at(self.now_ms + ms, lambda: self.answer(disk))

    def answer(self, disk: ModelDisk) -> None:
        """A disk answers again. A file system that was shut down does not."""
        if disk.hung_ms is None:
            return
        self.note(f"{disk.path} answers")
        disk.passed_ms = self.now_ms if disk.failed_ms is not None and disk.failed_ms <= self.now_ms else None
        disk.failed_ms = disk.failed_ms if disk.passed_ms is not None else None
        disk.hung_ms = None

    def crash(self, broker: int) -> None:
        """The broker's process ends by itself."""
        self.brokers[broker].end("it crashed")
        if broker in self.guards:
            self.guards[broker].ended()

    async def delete_topic(self, name: str) -> None:
        await self.ask(DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name=name),)), 5_000)

    async def widen(self, name: str, count: int) -> None:
        topic = CreatePartitionsRequestTopic(name=name, count=count)
        await self.ask(CreatePartitionsRequest(topics=(topic,), timeout_ms=5_000), 5_000)

    async def reassign(self, lists: Mapping[Name, Sequence[int] | None]) -> dict[Name, Done]:
        topics: dict[str, list[AlterPartitionReassignmentsRequestPartition]] = {}
        for (topic, number), brokers in lists.items():
            one = AlterPartitionReassignmentsRequestPartition(
                partition_index=number, replicas=None if brokers is None else tuple(brokers)
            )
            topics.setdefault(topic, []).append(one)
        request = AlterPartitionReassignmentsRequest(
            topics=tuple(
                AlterPartitionReassignmentsRequestTopic(name=name, partitions=tuple(parts))
                for name, parts in topics.items()
            )
        )
        answer = await self.ask(request, 5_000)
        parts = [(topic.name, one) for topic in answer.responses for one in topic.partitions]
        found = {(topic, one.partition_index): one.error_code for topic, one in parts}
        return {
            name: Done(outcome=Outcome.DONE if found.get(name) == 0 else Outcome.FAILED, reason=str(found.get(name)))
            for name in lists
        }

    # ---- what must hold

    def holders(self, key: Key) -> list[int]:
        """Brokers that have all acknowledged records of a partition, whatever their disks do now."""
        acked = set(self.acked.get(key, ()))
        return [
            number
            for number, broker in self.brokers.items()
            if key in broker.logs and acked.issubset(broker.logs[key].kept)
        ]

    def was_cut(self, disk: ModelDisk) -> None:
        """A file system is shut down: everything that was not flushed is gone."""
        disk.cut = True
        for key, log in self.brokers[disk.broker].logs.items():
            if log.disk is disk:
                there = [one for one in self.holders(key) if not self.brokers[one].logs[key].disk.cut]
                if self.acked.get(key) and len(there) < self.min_isr:
                    self.violations.append(
                        f"{self.now_ms / 1000:.2f} data: {disk.path} was shut down, and of {key} only {there} have all"
                    )

    def check_evicted(self, key: Key, now: PartitionRegistration) -> None:
        """A copy without what was in its page cache does not stay in sync while its guard may evict it: it would lead
        one day."""
        for number, guard in self.guards.items():
            log = self.brokers[number].logs.get(key)
            lacks = log is not None and log.disk.cut and number in now.isr
            if not lacks or not self._may_evict(key, now, guard):
                self.lacking_ms.pop((key, number), None)
            elif self.now_ms - self.lacking_ms.setdefault((key, number), self.now_ms) == EVICTED_MS:
                self.violations.append(
                    f"{self.now_ms / 1000:.2f} data: {key} of broker {number} was cut and is in sync"
                )

    def _may_evict(self, key: Key, now: PartitionRegistration, guard: "ModelGuard") -> bool:
        """Whether a guard can evict a replica now: it reaches the controllers, and enough other copies are there."""
        if guard.is_dead or guard.answered_ms is None or not guard.broker.running or self.unclean:
            return False
        if self.now_ms < max(guard.broken_until_ms, guard.state_broken_until_ms, self.stalled_until_ms):
            return False
        if guard.guesses and any(one.hung_ms is not None and not one.cut for one in guard.broker.disks):
            return False
        others = [self.brokers[one] for one in now.isr if one != guard.number]
        there = [one for one in others if one.running and key in one.logs and one.logs[key].disk.writes]
        first = set(guard.observed.suspects) - {guard.number}
        return len(there) >= self.min_isr and not first and not now.adding_replicas and not now.removing_replicas

    def act(self, broker: int, means: str) -> None:
        self.note(f"guard {broker}: {means}")
        self.acts.append(Acted(self.now_ms, broker, means))
        guard = self.guards[broker]
        at, guard.at = guard.at, None
        if at is not None and at[0] == means:
            at[1]()
        else:
            guard.at = at

    def check_budget(self) -> None:
        """At most so many brokers lose a directory to guards within a minute. A mask that came off before Kafka met it
        took nothing away."""
        lost: list[Acted] = []
        for one in self.acts:
            if one.means in ("report", "mask"):
                lost.append(one)
            elif one.means == "unmask":
                lost.remove(next(it for it in reversed(lost) if (it.broker, it.means) == (one.broker, "mask")))
        for one in lost:
            window = {other.broker for other in lost if one.at_ms <= other.at_ms < one.at_ms + 60_000}
            if len(window) > self.brokers_max:
                self.violations.append(f"{one.at_ms / 1000:.2f} budget: brokers {sorted(window)} within a minute")

    def check_data(self) -> None:
        for key in self.acked:
            if key in self.partitions() and not self.holders(key):
                self.violations.append(f"data: nobody has all acknowledged records of {key}")

    def available(self) -> set[Key]:
        """Partitions that take records now."""
        return {key for key, at_ms in self.last_ack_ms.items() if self.now_ms - at_ms < 2_000}

    async def heal(self, settle_ms: int = 90_000) -> None:
        """Every disk and the controller answer, nobody disturbs; wait until nothing is going on any more. An operator
        restarts the brokers of which ``kjbod status`` asks for it."""
        self.stalled_until_ms = self.rests_until_ms = 0
        for broker in self.brokers.values():
            for disk in broker.disks:
                self.answer(disk)
        await asyncio.sleep(RESTART_MS / 1000)
        for number, guard in self.guards.items():
            disks = self.brokers[number].disks
            masked = [one for one in disks if one.masked]
            if masked or any(one.reason == ANSWERED for one in guard.core.directories.values()):
                for one in masked:
                    one.masked = False
                self.brokers[number].end("an operator restarts it, and releases what is masked")
        await asyncio.sleep((settle_ms - RESTART_MS) / 1000)


def _batch(offset: int, at_ms: int) -> RecordBatch:
    return RecordBatch(
        base_offset=offset,
        last_offset=offset,
        leader_epoch=1,
        timestamp_ms=at_ms,
        base_timestamp_ms=at_ms,
        control=False,
        count=1,
        crc=0,
        position=0,
        raw=b"",
    )


def _is_among(record: int, records: list[int], count: int) -> bool:
    """Whether a record is one of the first so many; they ascend."""
    at = bisect.bisect_left(records, record)
    return at < min(count, len(records)) and records[at] == record


class ModelGuard:
    """A guard: real core, shell and metadata; a model of its helper, its connection and its state directory."""

    def __init__(self, universe: Universe, number: int, journal: Journal, run: int = 0) -> None:
        self.universe = universe
        self.number = number
        self.run = run
        self.saved = b""
        self.answered_ms: int | None = None
        self.broken_until_ms = 0
        """Until when it reaches no controller."""
        self.state_broken_until_ms = 0
        self.at: tuple[str, Callable[[], None]] | None = None
        """What happens at its next act of this name."""
        self.guesses = False
        """Whether the journal of the guard before it was lost: of ids that nobody can read it knows not the paths."""
        self.observed = Observed(number)
        self._offset = 0
        self._ended: int | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        site = Site(
            node_id=number,
            log_dirs=tuple(one.path for one in self.broker.disks),
            metadata_log_dir="/metadata",
            cut_brokers_max=universe.brokers_max,
            min_isr=universe.min_isr,
        )
        self.core = GuardCore(site, journal, f"g{number}.{run}")
        self.core.acts = True
        self.memory: set[Uuid] = set()
        """Directories that it, or a guard whose memory it has, has read."""
        self.watched: set[Uuid] = set()
        """Directories that it has read itself, or has taken up from that memory."""
        self.acting = ActionRunner(
            core=self.core,
            helper=ModelHelper(self),
            controllers=ModelControllers(self),
            scribe=self,
            clock=universe.loop,
            spawn=self.spawn,
            review=self.review,
            situation=lambda: None if self._stopped else self.situation(),
        )
        self._again: asyncio.TimerHandle | None = None

    @property
    def broker(self) -> ModelBroker:
        return self.universe.brokers[self.number]

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = self.universe.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._looked_at)

    def _looked_at(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.universe.violations.append(f"guard {self.number}: {error!r}")
            raise error

    def start(self) -> None:
        self.observed.follow_evicted(self.core.journal.evicted)
        self.spawn(self._follow())
        self.spawn(self._rounds())

    @property
    def is_dead(self) -> bool:
        return self._stopped

    def kill(self) -> None:
        """SIGKILL: nothing more happens, but what is on its way to the controller."""
        self.universe.note(f"guard {self.number} is killed")
        self._stopped = True
        for task in list(self._tasks):
            task.cancel()
        if self._again is not None:
            self._again.cancel()

    def restart(self) -> None:
        """Another run with journal and memory of this one, where they are still there."""
        now_ms = self.universe.now_ms
        told = (
            journals.decode(self.saved, self.number, now_ms=now_ms, wall_ms=now_ms, boot_id="b")
            if self.saved
            else Journal()
        )
        fresh = ModelGuard(self.universe, self.number, told, self.run + 1)
        fresh.saved = self.saved
        fresh.memory, fresh.guesses = set(self.memory), not self.saved
        fresh.broken_until_ms, fresh.state_broken_until_ms = self.broken_until_ms, self.state_broken_until_ms
        self.universe.guards[self.number] = fresh
        self.universe.note(f"guard {self.number} starts again")
        fresh.start()

    async def _follow(self) -> None:
        universe = self.universe
        while True:
            if len(universe.world.log) == self._offset:
                await universe.news.wait()
            await asyncio.sleep(universe.rng.uniform(0.005, 0.05))
            if (until_ms := max(universe.stalled_until_ms, self.broken_until_ms)) > universe.now_ms:
                await asyncio.sleep((until_ms - universe.now_ms) / 1000)
            sent_ms, end = universe.now_ms, len(universe.world.log)
            await asyncio.sleep(universe.rng.uniform(0.001, 0.02))
            if end > self._offset:
                new = universe.world.log[self._offset : end]
                records = tuple((one.offset, one.record) for one in new)
                batches = tuple(
                    _batch(one.offset, at_ms)
                    for one, at_ms in zip(new, universe.written_ms[self._offset : end], strict=True)
                )
                last = new[-1].offset
                self.observed.committed(Committed(records, last, 1, last + 1, batches), universe.now_ms)
                self._offset = end
                self.answered_ms = sent_ms
                self.review()
            else:
                self.answered_ms = sent_ms

    async def _rounds(self) -> None:
        while True:
            self.review()
            await asyncio.sleep(1)

    def review(self) -> None:
        if self._stopped:
            return
        look = self.core.look(self.situation())
        self.acting.take(look)
        if self._again is not None:
            self._again.cancel()
        again = None if look.again_ms is None else max(1, look.again_ms) / 1000
        self._again = None if again is None else self.universe.loop.call_later(again, self.review)

    def ended(self) -> None:
        """The kernel tells that the broker's process has ended."""
        self._ended = self.broker.started
        self.review()

    # ---- what it knows

    def situation(self) -> Situation:
        now_ms, broker = self.universe.now_ms, self.broker
        stale = self.answered_ms is None or now_ms - self.answered_ms > 10_000
        acted = self.core.acted(now_ms)
        waiting = [
            (disk, since_ms)
            for disk, since_ms in broker.stuck.values()
            if disk.path in acted and now_ms - max(since_ms, acted[disk.path]) >= 1_000
        ]
        return Situation(
            now_ms=now_ms,
            wall_ms=now_ms,
            disks={one.path: self._disk(one) for one in broker.disks},
            observed=self.observed,
            blind="no answer" if stale or not self.observed.complete else None,
            answered_ms=self.answered_ms,
            unbound=None if broker.running else "no broker runs",
            pid=broker.started if broker.running else None,
            ended_pid=self._ended if self._ended == broker.started and not broker.running else None,
            stuck=f"a fetcher is stuck on {waiting[0][0].path}" if waiting else None,
            waits=bool(waiting),
        )

    def _disk(self, disk: ModelDisk) -> Disk:
        now_ms = self.universe.now_ms
        if disk.writes:
            self.memory.add(disk.id)
        if disk.writes or (disk.id in self.memory and not disk.cut and not disk.masked):
            self.watched.add(disk.id)
        if disk.id not in self.watched:
            return Disk(path=disk.path, errors=disk.cut, masked=disk.masked)
        failed = disk.failed_ms is not None and now_ms >= disk.failed_ms
        if failed and disk.passed_ms is not None and now_ms - disk.passed_ms > 3_000 and not disk.cut:
            disk.failed_ms, failed = None, False
        over = "its disk answers again" if failed and disk.passed_ms is not None and not disk.cut else None
        return Disk(
            path=disk.path,
            directory_id=disk.id,
            health=Health.FAILED if failed else Health.ONLINE,
            cause=Cause.NONE if not failed else Cause.ERROR if disk.cut else Cause.HUNG,
            errors=failed and disk.cut,
            failed_ms=disk.failed_ms if failed else None,
            bad_ms=now_ms if disk.hung_ms is None else disk.hung_ms,
            over=over,
            file_system="ext4",
            cut_after_ms=self.universe.cut_after_ms,
        )

    # ---- scribe

    async def save(self, journal: Journal) -> None:
        now_ms = self.universe.now_ms
        content = journals.encode(journal, self.number, ahead_ms=0, boot_id="b")
        await asyncio.sleep(self.universe.rng.uniform(0.001, 0.01))
        if now_ms < self.state_broken_until_ms:
            raise OSError(28, "No space left on device")
        self.saved = content

    async def does(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        await asyncio.sleep(self.universe.rng.uniform(0.001, 0.005))

    def done(self, name: str, path: str | None, done: Done) -> None:
        if not done.happened:
            self.universe.note(f"guard {self.number}: {name} {path} {done.outcome} {done.reason}")
        if done.reason.startswith(BROKEN):  # the tables should not have come to it
            self.universe.violations.append(f"{self.universe.now_ms / 1000:.2f} {name} {path}: {done.reason}")

    def stands(self, path: str | None, state: str, reason: str) -> None:
        self.universe.note(f"guard {self.number}: {path or 'broker'} {state} {reason}")

    def forgotten(self, names: list[str]) -> None: ...

    def unwritten(self, reason: str) -> None: ...


def check_patience(universe: Universe, disk: ModelDisk, means: str) -> None:
    """Nothing that cannot be undone before the disk has stood still for long enough."""
    stood_ms = 0 if disk.hung_ms is None else universe.now_ms - disk.hung_ms
    if stood_ms < universe.cut_after_ms:
        universe.violations.append(
            f"{universe.now_ms / 1000:.2f} reversible first: {means} of {disk.path} after {stood_ms} ms"
        )


def check_given_up(universe: Universe, number: int, lists: Mapping[Name, Sequence[int] | None]) -> None:
    """A broker leaves no replica list of a directory in which it has files open: it would delete the replica, and where
    the disk hangs no thread of it would apply metadata any more."""
    broker = universe.brokers[number]
    for key, replicas in lists.items():
        log = broker.logs.get(key)
        if replicas is None or number in replicas or log is None or not broker.running:
            continue
        if not log.disk.cut and log.disk.id not in broker.offline:
            universe.violations.append(f"{universe.now_ms / 1000:.2f} evicted from {log.disk.path}, which it has open")


class ModelHelper:
    """The privileged helper of a guard, and what no act of it may be."""

    def __init__(self, guard: "ModelGuard") -> None:
        self.guard = guard
        self.universe, self.number = guard.universe, guard.number

    @property
    def broker(self) -> ModelBroker:
        return self.guard.broker

    def _of(self, path: str) -> ModelDisk:
        return next(one for one in self.broker.disks if one.path == path)

    async def _soon(self) -> None:
        await asyncio.sleep(self.universe.rng.uniform(0.002, 0.05))

    async def cut(self, directory: str, until_ms: int) -> Done:
        await self._soon()
        if self.universe.now_ms > until_ms:
            return Done(outcome=Outcome.REFUSED, reason="it is too late")
        disk = self._of(directory)
        check_patience(self.universe, disk, "cut")
        self.universe.act(self.number, "cut")
        self.universe.was_cut(disk)
        return Done(outcome=Outcome.DONE)

    async def mask(self, directory: str) -> Done:
        await self._soon()
        check_patience(self.universe, self._of(directory), "mask")
        self.universe.act(self.number, "mask")
        self._of(directory).masked = True
        return Done(outcome=Outcome.DONE)

    async def unmask(self, directory: str) -> Done:
        await self._soon()
        disk = self._of(directory)
        disk.masked = False
        if disk.id not in self.broker.offline:
            self.universe.act(self.number, "unmask")
        return Done(outcome=Outcome.DONE)

    async def kill(self) -> Done:
        await self._soon()
        self.universe.act(self.number, "kill")
        self._check_kill()
        self.broker.end("its guard kills it")
        self.universe.at(self.universe.now_ms + 5, self.guard.ended)
        return Done(outcome=Outcome.DONE)

    async def reset(self) -> Done:
        return Done(outcome=Outcome.DONE)

    unreset = destroy = reset

    async def threads(self) -> Sequence[Any]:
        return ()

    def _check_kill(self) -> None:
        universe, broker = self.universe, self.broker
        used = [one for one in broker.disks if one.id not in broker.offline]
        proved_ms = universe.now_ms if broker.stuck else broker.stuck_ms
        if universe.now_ms - proved_ms > THREADS_EVERY_MS + TICK_MS and any(one.writes for one in used):
            universe.violations.append(f"{universe.now_ms / 1000:.2f} proof: broker {self.number} is not stuck")
        age_ms = universe.now_ms - (self.guard.answered_ms or -99_999)
        if age_ms > 4_000:
            universe.violations.append(f"blindness: a kill with metadata that are {age_ms} ms old")
        seen = self.guard.observed
        known = {(seen.topics.get(topic_id), partition) for topic_id, partition in seen.partitions}
        for key, one in universe.partitions().items():
            if key not in known:
                continue  # made within the moment that metadata take to a guard
            others = [number for number in one.isr if number != self.number]
            if one.leader >= 0 and self.number in one.isr and len(others) < universe.min_isr:
                universe.violations.append(f"{universe.now_ms / 1000:.2f} availability: the kill leaves {key} {others}")


class ModelControllers:
    """What a guard says to the controllers."""

    def __init__(self, guard: "ModelGuard") -> None:
        self.guard = guard
        self.universe, self.number = guard.universe, guard.number

    async def _told(self, work: Callable[[], Awaitable[int]]) -> Done:
        if self.universe.now_ms < self.guard.broken_until_ms:
            return Done(outcome=Outcome.FAILED, reason="no connection")
        try:
            code = await work()
        except TimeoutError:
            return Done(outcome=Outcome.PENDING, reason="timed out")
        except ConnectionError:
            return Done(outcome=Outcome.FAILED, reason="reset")
        return Done(outcome=Outcome.DONE if code == 0 else Outcome.FAILED, reason=f"error {code}")

    async def suspect(self, value: str | None) -> Done:
        async def write() -> int:
            def configure() -> int:
                self.universe.act(self.number, "trust" if value is None else "suspect")
                self.universe.configure(4, str(self.number), CONFIG, value)
                return 0

            return await self.universe.do(configure)

        return await self._told(write)

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        ids = tuple(map(Uuid.parse, directory_ids))
        for disk in self.guard.broker.disks:
            if disk.id in ids:
                check_patience(self.universe, disk, "report")

        async def beat() -> int:
            def report() -> int:
                self.universe.act(self.number, "report")
                return self.universe.world.beat(self.number, epoch=broker_epoch, offset=0, offline=ids).error_code

            return await self.universe.do(report)

        return await self._told(beat)

    async def fence(self, broker_epoch: int) -> Done:
        async def beat() -> int:
            def fence() -> int:
                self.universe.act(self.number, "fence")
                return self.universe.world.beat(self.number, epoch=broker_epoch, offset=0, fence=True).error_code

            return await self.universe.do(fence)

        return await self._told(beat)

    async def reassign(self, replicas: Mapping[Name, Sequence[int] | None]) -> Mapping[Name, Done]:
        if self.universe.now_ms < self.guard.broken_until_ms:
            return dict.fromkeys(replicas, Done(outcome=Outcome.FAILED, reason="no connection"))
        self.universe.act(self.number, "reassign")
        check_given_up(self.universe, self.number, replicas)
        try:
            return await self.universe.reassign(replicas)
        except (TimeoutError, ConnectionError) as error:
            return dict.fromkeys(replicas, Done(outcome=Outcome.FAILED, reason=repr(error)))

    async def elect(self, partitions: Sequence[Name]) -> Mapping[Name, Done]:
        return dict.fromkeys(partitions, Done(outcome=Outcome.DONE))
