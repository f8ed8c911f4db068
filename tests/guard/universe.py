"""Guards, brokers and a controller in one process, on a seeded loop with virtual time.

Real: the guards' cores with their shells (:class:`~kjbod_guard.action_runner.ActionRunner`), what they know of the
metadata (:class:`~kjbod_guard.observing.Observed`), their journals, and the controller, which answers as shipped Kafka
does. Modelled: disks, and of a broker its storage (:mod:`.model_broker`).
"""

import asyncio
import bisect
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kjbod.ids import Uuid
from kjbod.metadata.batches import RecordBatch
from kjbod.metadata.fetching import Committed
from kjbod.metadata.image import MetadataImage, PartitionRegistration, Replayer
from kjbod.metadata.records import NoOpRecord
from kjbod.wire.admin_messages import CreatePartitionsRequest, CreatePartitionsRequestTopic
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartition,
    AlterPartitionRequestTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectory,
    AssignReplicasToDirsRequestPartition,
    AssignReplicasToDirsRequestTopic,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationRequestListener,
    CreateTopicsRequest,
    CreateTopicsRequestAssignment,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseReplicaState,
    DescribeQuorumResponseTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
    RequestBody,
    ResponseT,
)
from kjbod_guard import journal as journals
from kjbod_guard import majority
from kjbod_guard.act_mode import THREADS_EVERY_MS
from kjbod_guard.action_runner import ActionRunner
from kjbod_guard.actions import Done, Name, Outcome
from kjbod_guard.core import GuardCore
from kjbod_guard.directory_steps import ANSWERED
from kjbod_guard.invariants import BROKEN
from kjbod_guard.journal import Journal
from kjbod_guard.observing import Observed
from kjbod_guard.situation import Disk, Site, Situation
from kjbod_guard.suspects import CONFIG, current
from kjbod_guard.voters_asking import EVERY_MS as VOTERS_MS
from kjbod_host.health.state import Cause, Health
from tests.controller.world import CLUSTER_ID, FEATURES, directory, incarnation
from tests.guard.model_broker import (
    FLUSH_MS,
    HANDLER,
    LAG_MS,
    METADATA,
    RESTART_MS,
    Key,
    Log,
    ModelBroker,
    ModelDisk,
)
from tests.guard.model_controller import InlineLoop, ModelController

APPLIED_S = (0.01, 0.2)
"""From a record to a broker that has applied it."""
ELECTION_MS = 2_200
VOTER_MS = 500
"""How often a voter fetches at least (``KafkaRaftClient.MAX_FETCH_WAIT_MS``)."""
SIGHT_MS = 4_500
"""How old the answer of a controller may be for an act."""
VERDICT_MS = (1_900, 2_900)
TICK_MS = 200
EVICTED_MS = 6_000
"""How long a guard may take to evict what was cut."""
REPLACE_MS = 5_000
"""How long an operator takes to put a new disk in the place of one."""
ACTS: Final = ("suspect", "trust", "report", "cut", "mask", "unmask", "reassign", "kill", "fence")
STAGES: Final = (" written", " asked", "", " answered")
"""Of an act: journal and audit have it; it leaves the guard; it takes effect; the guard knows."""
RECORDS: Final = ("RegisterBrokerRecord", "BrokerRegistrationChangeRecord", "PartitionChangeRecord", "ConfigRecord")
CHANGES: Final = ("offline", "stuck", "ends", "registered")
"""Of a broker."""
_ACT_OF: Final = {"evict": "reassign", "restore": "reassign"}
T = TypeVar("T")


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
        dirs: log directories of each broker.
        combined: whether each node is a controller too, one of which leads.
        late_ms: how long journals and requests of guards take at most, each guard's its own time.
    """

    def __init__(
        self,
        loop: InlineLoop,
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
        combined: bool = False,
        late_ms: int = 0,
    ) -> None:
        self.loop = loop
        self.rng = random.Random(f"{seed}/{guarded}")
        self.controller = ModelController(
            loop, random.Random(seed), with_elr=elr, advanced=self._advance, broken=self._broken
        )
        self._replayer = Replayer()
        self._partitions: dict[Key, PartitionRegistration] | None = None
        self.rf, self.min_isr, self.count = rf, min_isr, partitions
        self.guarded, self.cut_after_ms, self.brokers_max = guarded, cut_after_ms, brokers_max
        self.unclean = unclean
        self.brokers = {number: ModelBroker(self, number, dirs) for number in range(1, brokers + 1)}
        self.combined, self.late_ms = combined, late_ms
        self.leading_voter, self.election = 1, 1
        for number, broker in self.brokers.items():
            broker.metadata = ModelDisk(number, directory(number, 99), f"/b{number}/meta") if combined else None
        self.guards: dict[int, ModelGuard] = {}
        self.acked: dict[Key, list[int]] = {}
        self.pending: dict[Key, dict[int, int]] = {}
        self.last_ack_ms: dict[Key, int] = {}
        self.acts: list[Acted] = []
        self.notes: list[str] = []
        self.violations: list[str] = []
        self.rests_until_ms = 0
        """Until when the producers send nothing."""
        self.lacking_ms: dict[tuple[Key, int], int] = {}
        """When a cut copy was first seen in the ISR while its guard may evict it, by partition and broker."""
        self.steps = 0
        """Events that the cores of guards and controller have handled."""
        self.gap_ms: dict[Key, int] = {}
        """Longest time between two acknowledged records."""
        self._calm: list[tuple[Key, ModelBroker, list[Log]]] | None = None
        """Where nothing is wrong: each partition, its leader and its replicas."""
        self._flushed: dict[int, int] = {}
        self.proposed: set[tuple[int, Key]] = set()
        """Leaders that have proposed an ISR and have no answer yet."""
        self._controller_starts = False
        self._next_record = 0
        self._ids = 0
        self.happened: list[tuple[int, str, tuple[Any, ...]]] = []
        """What happened of a story (:mod:`tests.guard.stories`), and when."""
        self.begun_ms = 0
        """When the story began."""
        self._moments: dict[tuple[int, str], list[Callable[[], None]]] = {}
        self.news = asyncio.Event()
        self.committed: list[Committed] = []
        """The log, as observers get it."""
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in their order, whatever hashes are

    # ---- time and tasks

    @property
    def now_ms(self) -> int:
        return self.loop.monotonic_ms()

    def note(self, text: str) -> None:
        self.notes.append(f"{self.now_ms / 1000:8.2f} {text}")

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = self.loop.create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._tasks[task]
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

    def at_moment(self, who: int, name: str, work: Callable[[], None]) -> None:
        """Call back at the next such moment of a broker and its guard; 0: of the controller."""
        self._moments.setdefault((who, name), []).append(work)

    def reached(self, who: int, name: str) -> None:
        """That moment has come."""
        for work in self._moments.pop((who, name), ()):
            work()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self.controller.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _broken(self, text: str) -> None:
        self.violations.append(f"{self.now_ms / 1000:.2f} {text}")

    # ---- the controller

    @property
    def image(self) -> MetadataImage:
        """The metadata that are committed."""
        return self._replayer.image

    def _advance(self, batches: Sequence[RecordBatch]) -> None:
        """More is committed: whoever waits for records looks again."""
        for batch in batches:
            records = tuple(batch.observed_records())
            for offset, record in records:
                if not isinstance(record, NoOpRecord):
                    self._replayer.replay(offset, batch.leader_epoch, record)
                    self._partitions = None
                    self.disturb()
            end = batch.next_offset
            self.committed.append(Committed(records, batch.last_offset, batch.leader_epoch, end, (batch,)))
            if self._moments:
                for _, record in records:
                    self.reached(0, type(record).__name__)
        self.steps += 1
        self.spread()
        self.news.set()
        self.news = asyncio.Event()

    def stall(self, ms: int) -> None:
        """The controller stands still; requests wait."""
        self.note(f"the controller stalls for {ms} ms")
        self.controller.stalled_until_ms = max(self.controller.stalled_until_ms, self.now_ms + ms)

    def slow(self, ms: int) -> None:
        """The disk of the controller hangs: nothing is durable before it answers."""
        self.note(f"the controller's disk hangs for {ms} ms")
        self.controller.slow_until_ms = max(self.controller.slow_until_ms, self.now_ms + ms)

    def fail_over(self, ms: int) -> None:
        """The controller is killed, and starts again from its log; requests that wait are lost."""
        self.note(f"the controller is killed, for {ms} ms")
        self.controller.kill(power=False)
        self._restart_controller(ms)

    def power_off(self, ms: int, *, in_sync: bool) -> None:
        """The controller's machine loses power, now or in the middle of its next fsync: what was not synced is lost."""

        def off() -> None:
            self.note(f"the controller's machine loses power, for {ms} ms")
            self.controller.kill(power=True)
            self._restart_controller(ms)

        if in_sync:
            self.controller.at_next_sync(off)
        else:
            off()

    # ---- voters

    @property
    def voters(self) -> list[int]:
        """Nodes that are controllers too and run."""
        return [number for number, one in self.brokers.items() if one.is_voter_there]

    def voters_changed(self) -> None:
        """Where nodes are controllers too: the leader's end is followed by an election, and without a majority there is
        none."""
        if not self.combined:
            return
        leads = self.leading_voter in self.voters
        if not leads or not self.has_majority():
            self.controller.kill(power=False)
        if not self.controller.is_there and self.has_majority():
            if not leads:
                self.leading_voter, self.election = self.voters[0], self.election + 1
            self._restart_controller(ELECTION_MS)

    def has_majority(self) -> bool:
        """Whether the voters that run are a majority."""
        return len(self.voters) > len(self.brokers) // 2

    def described(self) -> DescribeQuorumResponse:
        """What the leader says of the voters: the time of the last fetch of each, which is also where its log ends. One
        that waits at the leader is answered after the voter's death."""
        now_ms = self.now_ms
        states = []
        for number, one in self.brokers.items():
            last_ms = now_ms // VOTER_MS * VOTER_MS if one.is_voter_there else (one.ended_ms // VOTER_MS + 1) * VOTER_MS
            mark = now_ms if number == self.leading_voter else last_ms
            states.append(
                DescribeQuorumResponseReplicaState(replica_id=number, last_fetch_timestamp=mark, log_end_offset=mark)
            )
        partition = DescribeQuorumResponsePartition(
            leader_id=self.leading_voter, leader_epoch=self.election, current_voters=tuple(states)
        )
        return DescribeQuorumResponse(topics=(DescribeQuorumResponseTopic(partitions=(partition,)),))

    def _restart_controller(self, ms: int) -> None:
        if not self._controller_starts:
            self._controller_starts = True
            self.later(ms, self._start_controller)

    async def _start_controller(self) -> None:
        self._controller_starts = False
        if not self.combined or self.has_majority():
            await self.controller.start()

    async def ask(
        self, request: RequestBody[ResponseT], timeout_ms: int = 1_000, taken: Callable[[], None] | None = None
    ) -> ResponseT:
        """Send a request; it may be carried out although nobody waits for the answer any more.

        Args:
            request: to the controller.
            timeout_ms: of the one who asks.
            taken: called when it reaches the controller.

        Raises:
            ConnectionError: there is no controller, or it died before it answered.
            TimeoutError: it did not answer in time.
        """
        await asyncio.sleep(self.rng.uniform(0.001, 0.02))
        answered: asyncio.Future[ResponseT | None] = self.loop.create_future()
        self.spawn(self._serve(request, answered, taken))
        async with asyncio.timeout(timeout_ms / 1000):
            found = await answered
        if found is None:
            raise ConnectionResetError
        await asyncio.sleep(self.rng.uniform(0.001, 0.01))
        return found

    async def _serve(
        self,
        request: RequestBody[ResponseT],
        answered: "asyncio.Future[ResponseT | None]",
        taken: Callable[[], None] | None,
    ) -> None:
        found: ResponseT | None = None
        with contextlib.suppress(ConnectionError):
            await self.controller.going()
            if taken is not None and self.controller.is_there:
                taken()
            self.steps += 1
            found = await self.controller.ask(request)
            await self.controller.going()
        if not answered.done():
            answered.set_result(found)

    def registered(self, broker: int) -> tuple[Uuid, ...]:
        found = self.image.brokers.get(broker)
        return () if found is None else found.log_dirs

    async def quietly(
        self, broker: "ModelBroker", request: RequestBody[ResponseT], timeout_ms: int
    ) -> ResponseT | None:
        """A request of a broker; None: no answer came."""
        if broker.is_cut_off:
            return None
        try:
            return await self.ask(request, timeout_ms)
        except (TimeoutError, ConnectionError):
            return None

    async def register(self, broker: "ModelBroker", dirs: tuple[Uuid, ...]) -> int:
        listener = BrokerRegistrationRequestListener(name="PLAINTEXT", host="localhost", port=9092)
        request = BrokerRegistrationRequest(
            broker_id=broker.id,
            cluster_id=CLUSTER_ID,
            incarnation_id=incarnation(broker.id, broker.started),
            listeners=(listener,),
            features=FEATURES,
            log_dirs=dirs,
        )
        answer = await self.quietly(broker, request, 2_000)
        return -1 if answer is None or answer.error_code else answer.broker_epoch

    async def assign(self, broker: "ModelBroker", key: Key, directory_id: Uuid) -> None:
        """A broker tells where it has put a replica, until the controller has it."""
        epoch = broker.epoch
        while broker.running and broker.epoch == epoch and key in self.partitions():
            partition = AssignReplicasToDirsRequestPartition(partition_index=key[1])
            topic = AssignReplicasToDirsRequestTopic(topic_id=self.image.topic_ids[key[0]], partitions=(partition,))
            where = AssignReplicasToDirsRequestDirectory(id_=directory_id, topics=(topic,))
            request = AssignReplicasToDirsRequest(broker_id=broker.id, broker_epoch=epoch, directories=(where,))
            answer = await self.quietly(broker, request, 2_000)
            if answer is not None and not answer.error_code:
                return
            await asyncio.sleep(1)

    # ---- partitions

    def partitions(self) -> dict[Key, PartitionRegistration]:
        """All of them, as they are committed. Not to be changed."""
        if self._partitions is None:
            self._partitions = {
                (topic.name, number): one
                for topic in self.image.topics.values()
                for number, one in topic.partitions.items()
            }
        return self._partitions

    async def begin(self) -> None:
        """Brokers, topics and guards, all of them well."""
        self.loop.set_exception_handler(lambda _, found: self._broken(f"error: {found.get('exception')!r}"))
        await self.controller.start()
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

        topic = CreateTopicsRequestTopic(
            name=name,
            assignments=tuple(
                CreateTopicsRequestAssignment(partition_index=at, broker_ids=one) for at, one in enumerate(lists)
            ),
            configs=tuple(CreateTopicsRequestConfig(name=key, value=value) for key, value in configs.items()),
        )
        answer = await self.ask(CreateTopicsRequest(topics=(topic,)), 5_000)
        if answer.topics[0].error_code:  # no broker of a list is there
            raise ConnectionError("refused")

    def spread(self) -> None:
        """Have brokers apply what the metadata say by now, each a little later."""
        found = self.partitions()
        for broker in self.brokers.values():
            keys = {*found, *broker.known}
            changed = {key: found.get(key) for key in sorted(keys) if broker.known.get(key) != found.get(key)}
            if changed and broker.running and METADATA not in broker.stuck:
                self.loop.call_later(self.rng.uniform(*APPLIED_S), self._apply, broker, changed)

    def _apply(self, broker: ModelBroker, changed: Mapping[Key, PartitionRegistration | None]) -> None:
        self.disturb()
        if broker.is_cut_off:
            return  # it is told afterwards
        now = self.partitions()
        for key in changed:
            broker.apply(key, now.get(key))

    async def _data_plane(self) -> None:
        while True:
            now_ms = self.now_ms
            if self._calm is not None:
                self._go_on_calmly(self._calm, now_ms)
            else:
                self._round(now_ms)
            await asyncio.sleep(TICK_MS / 1000)

    def disturb(self) -> None:
        """Something is not as it was: look at everything again."""
        if self._calm is None:
            return
        now_ms = self.now_ms
        for broker in self.brokers.values():
            broker.go_on(now_ms)
        for key, leader, logs in self._calm:
            for log in logs:
                leader.caught_up_ms[key, log.disk.broker] = now_ms
        self._calm = None

    def _go_on_calmly(self, calm: "list[tuple[Key, ModelBroker, list[Log]]]", now_ms: int) -> None:
        """A round in which nothing is wrong anywhere: each partition gets a record, and all replicas have it."""
        if now_ms < self.rests_until_ms:
            return
        for key, _, logs in calm:
            self._next_record += 1
            for log in logs:
                log.records.append(self._next_record)
            self.acked[key].append(self._next_record)
            self._acked_now(key, now_ms)
        self._write_back(now_ms)

    def _round(self, now_ms: int) -> None:
        partitions = self.partitions()
        for broker in self.brokers.values():
            broker.step(now_ms)
        self._write_back(now_ms)
        whole = [self._replicate(key, now, now_ms) for key, now in partitions.items()]
        for key, now in partitions.items():
            self.check_evicted(key, now)
        if all(whole) and all(one.is_fine for one in self.brokers.values()) and not self.lacking_ms:
            self._calm = [
                (key, self.brokers[now.leader], [self.brokers[number].logs[key] for number in now.replicas])
                for key, now in partitions.items()
            ]
            for key in partitions:
                self.acked.setdefault(key, [])

    def _write_back(self, now_ms: int) -> None:
        """The kernel writes what is dirty, a broker after the other."""
        for broker in self.brokers.values():
            due = (now_ms + broker.id * 3_100) // FLUSH_MS
            if due != self._flushed.get(broker.id):
                self._flushed[broker.id] = due
                for log in broker.logs.values():
                    if log.disk.writes:
                        log.flushed = len(log.records)

    def _replicate(self, key: Key, now: PartitionRegistration, now_ms: int) -> bool:
        """One round of a partition: a record, the fetches of its followers, the high watermark, the ISR. Whether all
        replicas are in sync and have all."""
        leader = self.brokers.get(now.leader)
        if leader is None or not leader.running:
            return False
        view, log = leader.known.get(key), leader.logs.get(key)
        if view is None or log is None or view.leader != leader.id or view.leader_epoch != now.leader_epoch:
            return False
        if log.disk.id in leader.offline:
            return False
        if leader.led.get(key) != view.leader_epoch:
            leader.led[key] = view.leader_epoch
            for number in view.replicas:
                leader.caught_up_ms[key, number] = now_ms if number in view.isr else now_ms - LAG_MS - 1
        if now_ms >= self.rests_until_ms and len(view.isr) >= self.min_isr and not self._append(key, leader, log):
            return False
        whole = len(view.isr) == len(view.replicas)
        for number in view.replicas:
            if number != leader.id:
                whole = self._fetch(key, self.brokers[number], leader, log, view, now_ms) and whole
        self._acknowledge(key, leader, log, view, now_ms)
        self._alter_isr(key, leader, log, view, now_ms)
        return whole and view.partition_epoch == now.partition_epoch and not self.pending.get(key)

    def _append(self, key: Key, leader: ModelBroker, log: Log) -> bool:
        """A producer's record; whether the leader goes on."""
        if log.disk.errors:
            leader.failed(log.disk)
            return False
        if not leader.serves:
            return True
        if not log.disk.appends(self.now_ms):
            leader.hold(HANDLER, log.disk, in_append=True)
            return True
        self._next_record += 1
        log.records.append(self._next_record)
        self.pending.setdefault(key, {})[self._next_record] = self.now_ms
        return True

    def _fetch(
        self, key: Key, follower: ModelBroker, leader: ModelBroker, log: Log, view: PartitionRegistration, now_ms: int
    ) -> bool:
        """A follower fetches; whether it is at the end then."""
        mine, known = follower.logs.get(key), follower.known.get(key)
        if mine is None or known is None or not follower.running or known.leader != leader.id:
            return False
        if known.leader_epoch != view.leader_epoch or follower.is_stuck(leader.id):
            return False
        if follower.is_cut_off or leader.is_cut_off or not leader.serves or mine.disk.id in follower.offline:
            return False
        records, all_records = mine.records, log.records
        if len(records) != len(all_records) or records[-1:] != all_records[-1:]:
            if mine.disk.errors:
                follower.failed(mine.disk)
                return False
            if not mine.disk.appends(now_ms):
                follower.hold(leader.id, mine.disk, in_append=True)
                return False
            count = len(records)
            if count <= len(all_records) and records[-1:] == all_records[count - 1 : count]:
                records += all_records[count:]
            else:
                mine.records = list(all_records)
            mine.flushed = min(mine.flushed, len(mine.records))
        leader.caught_up_ms[key, follower.id] = now_ms
        return True

    def _acknowledge(self, key: Key, leader: ModelBroker, log: Log, view: PartitionRegistration, now_ms: int) -> None:
        pending = self.pending.get(key)
        if not pending or len(view.isr) < self.min_isr:
            return
        least = len(log.records)
        for number in view.replicas:
            if number == leader.id:
                continue
            lately = now_ms - leader.caught_up_ms.get((key, number), -LAG_MS) <= LAG_MS
            if number in view.isr or (lately and self._is_eligible(number)):
                its = self.brokers[number].logs.get(key)
                least = min(least, 0 if its is None else len(its.records))
        for one in [one for one in pending if _is_among(one, log.records, least)]:
            del pending[one]
            self.acked.setdefault(key, []).append(one)
            self._acked_now(key, now_ms)

    def _acked_now(self, key: Key, now_ms: int) -> None:
        gap_ms = now_ms - self.last_ack_ms.get(key, now_ms)
        if gap_ms > self.gap_ms.get(key, 0):
            self.gap_ms[key] = gap_ms
        self.last_ack_ms[key] = now_ms

    def _is_eligible(self, number: int) -> bool:
        """Whether a broker may be in an ISR."""
        registration = self.image.brokers.get(number)
        return registration is not None and not registration.fenced and not registration.in_controlled_shutdown

    def _alter_isr(self, key: Key, leader: ModelBroker, log: Log, view: PartitionRegistration, now_ms: int) -> None:
        """The leader takes out who lags, and takes in who has caught up; it does not look at directories."""
        isr = [one for one in view.isr if one == leader.id or now_ms - leader.caught_up_ms.get((key, one), 0) <= LAG_MS]
        isr += [
            one
            for one in view.replicas
            if one not in view.isr and leader.caught_up_ms.get((key, one)) == now_ms and self._is_eligible(one)
        ]
        if len(isr) == len(view.isr) and tuple(isr) == view.isr:
            return
        if METADATA not in leader.stuck and not leader.is_cut_off and (leader.id, key) not in self.proposed:
            self.proposed.add((leader.id, key))
            self.spawn(self._propose(key, leader, view, tuple(isr)))

    async def _propose(self, key: Key, leader: ModelBroker, view: PartitionRegistration, isr: tuple[int, ...]) -> None:
        partition = AlterPartitionRequestPartition(
            partition_index=key[1],
            leader_epoch=view.leader_epoch,
            partition_epoch=view.partition_epoch,
            new_isr_with_epochs=tuple(AlterPartitionRequestBrokerState(broker_id=one) for one in isr),
        )
        topic = AlterPartitionRequestTopic(topic_id=self.image.topic_ids[key[0]], partitions=(partition,))
        request = AlterPartitionRequest(broker_id=leader.id, broker_epoch=leader.epoch, topics=(topic,))
        await self.quietly(leader, request, 1_000)
        self.proposed.discard((leader.id, key))

    # ---- faults and users

    def hang(self, broker: int, number: int, ms: int | None, *, frozen: bool = False) -> None:
        """A disk stands still for so long; None: for good. Or its file system is frozen."""
        disk = self.brokers[broker].all_disks[number]
        if not disk.writes:
            return
        self.note(f"{disk.path} {'is frozen' if frozen else 'hangs'} for {ms} ms")
        self._goes_bad(disk, ms)
        disk.hung_ms, disk.frozen = self.now_ms, frozen

    def fail(self, broker: int, number: int, ms: int | None) -> None:
        """A disk answers nothing but errors for so long."""
        disk = self.brokers[broker].all_disks[number]
        if not disk.writes:
            return
        self.note(f"{disk.path} answers errors for {ms} ms")
        self._goes_bad(disk, ms)
        disk.failing = True

    def _goes_bad(self, disk: ModelDisk, ms: int | None) -> None:
        self.disturb()
        disk.bad_ms, disk.passed_ms = self.now_ms, None
        disk.failed_ms = self.now_ms + self.rng.randint(*VERDICT_MS)
        if ms is not None:
            self.at(self.now_ms + ms, lambda: self.answer(disk))

    def answer(self, disk: ModelDisk) -> None:
        """A disk answers again. A file system that was shut down does not."""
        if disk.hung_ms is None and not disk.failing:
            return
        self.note(f"{disk.path} answers")
        self.disturb()
        disk.passed_ms = self.now_ms if disk.failed_ms is not None and disk.failed_ms <= self.now_ms else None
        disk.failed_ms = disk.failed_ms if disk.passed_ms is not None else None
        disk.hung_ms, disk.failing = None, False

    def crash(self, broker: int) -> None:
        """The broker's process ends by itself."""
        self.brokers[broker].end("it crashed")

    def cut_off(self, broker: int, ms: int) -> None:
        """A host reaches no other for so long: neither its broker nor its guard."""
        self.note(f"host {broker} is cut off for {ms} ms")
        self.disturb()
        self.brokers[broker].cut_off_until_ms = self.now_ms + ms
        if broker in self.guards:
            self.guards[broker].broken_until_ms = self.now_ms + ms

    def replace(self, broker: int, number: int) -> None:
        """An operator puts a new disk in the place of one that does not work, where others have all that it has, and
        restarts the broker."""
        its, disk = self.brokers[broker], self.brokers[broker].disks[number]
        if disk.writes or its.is_replacing:
            return
        for key in [key for key, log in its.logs.items() if log.disk is disk and key in self.partitions()]:
            now = self.partitions()[key]
            others = {*self.holders(key)}.intersection(now.isr) - {broker, *now.removing_replicas}
            if not any(self.brokers[one].running and self.brokers[one].logs[key].disk.writes for one in others):
                return
        its.is_replacing = True
        its.end(f"an operator replaces {disk.path}")
        self.later(REPLACE_MS, lambda: self._replaced(its, disk))

    async def _replaced(self, broker: "ModelBroker", disk: "ModelDisk") -> None:
        self._ids += 1
        self.note(f"{disk.path} is a new disk")
        broker.logs = {key: log for key, log in broker.logs.items() if log.disk is not disk}
        disk.id = directory(broker.id, 100 + self._ids)
        self.disturb()
        disk.cut = disk.masked = disk.failing = False
        disk.hung_ms = disk.failed_ms = disk.passed_ms = None
        broker.is_replacing = False
        await broker.start()

    async def delete_topic(self, name: str) -> None:
        await self.ask(DeleteTopicsRequest(topics=(DeleteTopicsRequestTopic(name=name),)), 5_000)

    async def widen(self, name: str, count: int) -> None:
        topic = CreatePartitionsRequestTopic(name=name, count=count)
        await self.ask(CreatePartitionsRequest(topics=(topic,), timeout_ms=5_000), 5_000)

    async def reassign(
        self, lists: Mapping[Name, Sequence[int] | None], taken: Callable[[], None] | None = None
    ) -> dict[Name, Done]:
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
        answer = await self.ask(request, 5_000, taken)
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
        self.disturb()
        for key, log in self.brokers[disk.broker].logs.items():
            if log.disk is disk:
                there = [one for one in self.holders(key) if not self.brokers[one].logs[key].disk.cut]
                if self.acked.get(key) and len(there) < self.min_isr:
                    self.violations.append(
                        f"{self.now_ms / 1000:.2f} data: {disk.path} was shut down, and of {key} only {there} have all"
                    )
        self.brokers[disk.broker].was_cut(disk)

    def check_evicted(self, key: Key, now: PartitionRegistration) -> None:
        """A copy without what was in its page cache does not stay in sync while its guard may evict it: it would lead
        one day."""
        for number, guard in self.guards.items():
            log = self.brokers[number].logs.get(key)
            lacks = log is not None and log.disk.cut and number in now.isr
            if not lacks or not self._may_evict(key, now, guard):
                self.lacking_ms.pop((key, number), None)
            elif self.now_ms - self.lacking_ms.setdefault((key, number), self.now_ms) >= EVICTED_MS:
                self.lacking_ms[key, number] = self.now_ms + LAG_MS  # once
                self.violations.append(
                    f"{self.now_ms / 1000:.2f} data: {key} of broker {number} was cut and is in sync"
                )

    def _may_evict(self, key: Key, now: PartitionRegistration, guard: "ModelGuard") -> bool:
        """Whether a guard can evict a replica now: it reaches the controllers, and enough other copies are there."""
        if guard.is_dead or guard.answered_ms is None or not guard.broker.running or self.unclean:
            return False
        if guard.core.released:
            return False
        if self.now_ms < max(guard.broken_until_ms, guard.state_broken_until_ms) or not self.controller.answers:
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
        self.reached(broker, means)

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
        self._moments.clear()
        self.rests_until_ms = self.controller.stalled_until_ms = self.controller.slow_until_ms = 0
        for broker in self.brokers.values():
            for disk in broker.all_disks:
                self.answer(disk)
        await asyncio.sleep(RESTART_MS / 1000)
        for number, broker in self.brokers.items():
            guard = self.guards.get(number)
            asked = guard is not None and any(one.reason == ANSWERED for one in guard.core.directories.values())
            back = any(one.id in broker.offline and one.writes for one in broker.disks)
            if asked or back or any(one.masked for one in broker.disks):
                for one in broker.disks:
                    one.masked = False
                broker.end("an operator restarts it, and releases what is masked")
        await asyncio.sleep((settle_ms - RESTART_MS) / 1000)


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
        self.quorum = majority.Quorum()
        self.late_ms = universe.rng.randint(0, universe.late_ms)
        self.stands_still_until_ms = 0
        self.guesses = False
        """Whether the journal of the guard before it was lost: of ids that nobody can read it knows not the paths."""
        self.observed = Observed(number)
        self._read = 0
        self._ended: int | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in their order, whatever hashes are
        self._stopped = False
        site = Site(
            node_id=number,
            log_dirs=tuple(one.path for one in self.broker.disks),
            metadata_log_dir="/metadata" if self.broker.metadata is None else self.broker.metadata.path,
            cut_brokers_max=universe.brokers_max,
            fence_brokers_max=2 if universe.combined else 1,
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
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(self._looked_at)

    def _looked_at(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.universe.violations.append(f"guard {self.number}: {error!r}")
            raise error

    def start(self) -> None:
        self.observed.follow_evicted(self.core.journal.evicted)
        self.spawn(self._follow())
        self.spawn(self._rounds())
        if self.universe.combined:
            self.spawn(self._ask_voters())

    @property
    def is_up_to_date(self) -> bool:
        """Whether it has read all that is committed."""
        return self._read == len(self.universe.committed)

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
            if len(universe.committed) == self._read:
                await universe.news.wait()
            await asyncio.sleep(universe.rng.uniform(0.005, 0.05))
            await universe.controller.going()
            await self.stands_still()
            if self.broken_until_ms > universe.now_ms:
                await asyncio.sleep((self.broken_until_ms - universe.now_ms) / 1000)
                continue
            sent_ms, end = universe.now_ms, len(universe.committed)
            await asyncio.sleep(universe.rng.uniform(0.001, 0.02))
            if not universe.controller.is_there:
                continue
            new = universe.committed[self._read : end]
            for one in new:
                self.observed.committed(one, universe.now_ms)
            self._read = end
            self.answered_ms = sent_ms
            # A round comes each second by itself.
            if any(not isinstance(record, NoOpRecord) for one in new for _, record in one.records):
                self.review()

    async def _ask_voters(self) -> None:
        """As :class:`~kjbod_guard.voters_asking.VotersAsking`, whose channel there is none for here."""
        while True:
            now_ms = self.universe.now_ms
            failed = any(one.health is Health.FAILED for one in map(self._disk, self.broker.all_disks))
            if not failed and not self.core.in_doubt(now_ms):
                self.quorum = majority.Quorum()
            elif self.universe.controller.answers and self.broken_until_ms <= now_ms:
                answer = self.universe.described()
                await asyncio.sleep(self.universe.rng.uniform(0.001, 0.02))
                self.quorum = majority.heard(self.quorum, answer, now_ms)
            else:
                self.quorum = majority.unanswered(self.quorum, "no controller is known")
            await asyncio.sleep(VOTERS_MS / 1000)

    async def late(self) -> None:
        """Its state directory or its connection takes its time; or it stands still."""
        if self.late_ms:
            await asyncio.sleep(self.late_ms / 1000)
        await self.stands_still()

    async def stands_still(self) -> None:
        """Wait for as long as its process stands still."""
        while (still_ms := self.stands_still_until_ms - self.universe.now_ms) > 0:  # noqa: ASYNC110
            await asyncio.sleep(still_ms / 1000)

    async def _rounds(self) -> None:
        while True:
            self.review()
            await asyncio.sleep(1)

    def review(self) -> None:
        if self._stopped or self.stands_still_until_ms > self.universe.now_ms:
            return
        self.universe.steps += 1
        look = self.core.look(self.situation())
        self.acting.take(look)
        if self._again is not None:
            self._again.cancel()
        again = None if look.again_ms is None else max(1, look.again_ms) / 1000
        self._again = None if again is None else self.universe.loop.call_later(again, self.review)

    def release(self, path: str) -> None:
        """``kjbod guard release``"""
        if not self._stopped:
            self.acting.release(path)

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
            one.disk
            for one in broker.stuck.values()
            if one.disk.path in acted and now_ms - max(one.since_ms, acted[one.disk.path]) >= 1_000
        ]
        return Situation(
            now_ms=now_ms,
            wall_ms=now_ms,
            disks={one.path: self._disk(one) for one in broker.all_disks},
            observed=self.observed,
            blind="no answer" if stale or not self.observed.complete else None,
            answered_ms=self.answered_ms,
            unbound=None if broker.running else "no broker runs",
            pid=broker.started if broker.running else None,
            ended_pid=self._ended if self._ended == broker.started and not broker.running else None,
            stuck=f"a thread is stuck on {waiting[0].path}" if waiting else None,
            waits=bool(waiting),
            quorum=self.quorum if self.universe.combined else None,
        )

    def _disk(self, disk: ModelDisk) -> Disk:
        now_ms = self.universe.now_ms
        if disk.writes:
            self.memory.add(disk.id)
        if disk.writes or (disk.id in self.memory and not disk.cut and not disk.masked):
            self.watched.add(disk.id)
        if disk.id not in self.watched:
            return Disk(path=disk.path, errors=disk.errors, masked=disk.masked)
        failed = disk.failed_ms is not None and now_ms >= disk.failed_ms
        if failed and disk.passed_ms is not None and now_ms - disk.passed_ms > 3_000 and not disk.cut:
            disk.failed_ms, failed = None, False
        over = "its disk answers again" if failed and disk.passed_ms is not None and not disk.cut else None
        return Disk(
            path=disk.path,
            directory_id=disk.id,
            health=Health.FAILED if failed else Health.ONLINE,
            cause=Cause.NONE if not failed else Cause.ERROR if disk.errors else Cause.HUNG,
            errors=failed and disk.errors,
            failed_ms=disk.failed_ms if failed else None,
            bad_ms=now_ms if disk.writes else disk.bad_ms,
            over=over,
            file_system="ext4",
            cut_after_ms=self.universe.cut_after_ms,
        )

    # ---- scribe

    async def save(self, journal: Journal) -> None:
        now_ms = self.universe.now_ms
        content = journals.encode(journal, self.number, ahead_ms=0, boot_id="b")
        await asyncio.sleep(self.universe.rng.uniform(0.001, 0.01))
        await self.late()
        if now_ms < self.state_broken_until_ms:
            raise OSError(28, "No space left on device")
        self.saved = content

    async def does(self, name: str, path: str | None, facts: Mapping[str, Any]) -> None:
        await asyncio.sleep(self.universe.rng.uniform(0.001, 0.005))
        self.universe.reached(self.number, _ACT_OF.get(name, name) + " written")

    def done(self, name: str, path: str | None, done: Done) -> None:
        self.universe.steps += 2  # saved, and what came of it
        if not done.happened:
            self.universe.note(f"guard {self.number}: {name} {path} {done.outcome} {done.reason}")
        if done.reason.startswith(BROKEN):  # the tables should not have come to it
            self.universe.violations.append(f"{self.universe.now_ms / 1000:.2f} {name} {path}: {done.reason}")

    def stands(self, path: str | None, state: str, reason: str) -> None:
        self.universe.note(f"guard {self.number}: {path or 'broker'} {state} {reason}")

    def forgotten(self, names: list[str]) -> None: ...

    def unwritten(self, reason: str) -> None: ...


def check_patience(universe: Universe, disk: ModelDisk, means: str) -> None:
    """Nothing that cannot be undone begins before the disk has stood still for long enough. It may answer while that
    is on its way."""
    stood_ms = 0 if disk.hung_ms is None and not disk.failing else universe.now_ms - disk.bad_ms
    if stood_ms < universe.cut_after_ms:
        universe.violations.append(
            f"{universe.now_ms / 1000:.2f} reversible first: {means} of {disk.path} after {stood_ms} ms"
        )


def check_copies(guard: "ModelGuard", disk: ModelDisk, means: str) -> None:
    """By what is committed and the guard has read, other copies of each partition are in sync where no guard suspects
    them; and where the page cache is to be dropped, this one is not. Only where the guard has read everything."""
    universe, number = guard.universe, guard.number
    check_sight(guard, means)
    if not guard.is_up_to_date:
        return
    mine = universe.registered(number)
    if guard.broker.running and means != "cut" and mine == (disk.id,):
        universe.violations.append(f"{universe.now_ms / 1000:.2f} availability: {means} of the last directory")
    suspected = current(guard.observed.suspects, guard.observed.neighbours)
    for key, now in universe.partitions().items():
        if number not in now.replicas or now.directory(number) != disk.id:
            continue
        if means == "cut" and number in now.isr:
            universe.violations.append(f"{universe.now_ms / 1000:.2f} data: {disk.path} is cut in the ISR of {key}")
        there = []
        for other in now.isr:
            its, where = universe.image.brokers.get(other), now.directory(other)
            if other == number or its is None or its.fenced or its.in_controlled_shutdown:
                continue
            if where in its.log_dirs and not (other in suspected and suspected[other].has(where)):
                there.append(other)
        if len(there) < universe.min_isr and number not in now.adding_replicas:
            universe.violations.append(
                f"{universe.now_ms / 1000:.2f} availability: {means} of {disk.path}, and of {key} only {there} count"
            )


def check_sight(guard: "ModelGuard", means: str) -> None:
    """Nothing is done about disk, broker or lists without an answer of the active controller that is new."""
    age_ms = guard.universe.now_ms - (guard.answered_ms or -99_999)
    if age_ms > SIGHT_MS:
        guard.universe.violations.append(
            f"{guard.universe.now_ms / 1000:.2f} blindness: {means}, and the metadata are {age_ms} ms old"
        )


def check_left(guard: "ModelGuard", lists: Mapping[Name, Sequence[int] | None]) -> None:
    """A broker leaves a replica list that is as the guard knows it, where enough others are in sync."""
    universe, number = guard.universe, guard.number
    if not guard.is_up_to_date:
        return
    for key, replicas in lists.items():
        now = universe.partitions().get(key)
        if replicas is None or number in replicas or now is None:
            continue
        others = [one for one in now.isr if one != number]
        if now.adding_replicas or now.removing_replicas:
            universe.violations.append(f"{universe.now_ms / 1000:.2f} evicted: {key} is being reassigned")
        if list(replicas) != [one for one in now.replicas if one != number]:
            universe.violations.append(f"{universe.now_ms / 1000:.2f} evicted: {key} has other replicas by now")
        if len(others) < universe.min_isr:
            universe.violations.append(f"{universe.now_ms / 1000:.2f} evicted: of {key} only {others} are in sync")


def check_given_up(universe: Universe, number: int, lists: Mapping[Name, Sequence[int] | None]) -> None:
    """A broker leaves no replica list of a directory in which it has files open: it would delete the replica, and where
    the disk hangs no thread of it would apply metadata any more. A mask answers that with an error."""
    broker = universe.brokers[number]
    for key, replicas in lists.items():
        log = broker.logs.get(key)
        if replicas is None or number in replicas or log is None or not broker.running:
            continue
        if not log.disk.errors and not log.disk.masked and log.disk.id not in broker.offline:
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
        return next(one for one in self.broker.all_disks if one.path == path)

    async def _asked(self, means: str) -> None:
        self.universe.reached(self.number, f"{means} asked")
        await asyncio.sleep(self.universe.rng.uniform(0.002, 0.015))  # in the helper, which goes on by itself

    async def _answered(self, means: str) -> Done:
        await asyncio.sleep(self.universe.rng.uniform(0.001, 0.02))
        await self.guard.late()
        self.universe.reached(self.number, f"{means} answered")
        return Done(outcome=Outcome.DONE)

    async def cut(self, directory: str, until_ms: int) -> Done:
        disk = self._of(directory)
        check_patience(self.universe, disk, "cut")
        check_copies(self.guard, disk, "cut")
        await self._asked("cut")
        if self.universe.now_ms > until_ms:
            return Done(outcome=Outcome.REFUSED, reason="it is too late")
        self.universe.act(self.number, "cut")
        self.universe.was_cut(disk)
        return await self._answered("cut")

    async def mask(self, directory: str) -> Done:
        check_patience(self.universe, self._of(directory), "mask")
        check_copies(self.guard, self._of(directory), "mask")
        await self._asked("mask")
        self.universe.act(self.number, "mask")
        self._of(directory).masked = True
        self.universe.disturb()
        return await self._answered("mask")

    async def unmask(self, directory: str) -> Done:
        await self._asked("unmask")
        disk = self._of(directory)
        disk.masked = False
        if disk.id not in self.broker.offline:
            self.universe.act(self.number, "unmask")
        return await self._answered("unmask")

    async def kill(self) -> Done:
        await self._asked("kill")
        self.universe.act(self.number, "kill")
        self._check_kill()
        self.broker.end("its guard kills it")
        return await self._answered("kill")

    async def reset(self) -> Done:
        return Done(outcome=Outcome.DONE)

    unreset = destroy = reset

    async def threads(self) -> Sequence[Any]:
        return ()

    def _check_kill(self) -> None:
        universe, broker = self.universe, self.broker
        used = [one for one in broker.disks if one.id not in broker.offline]
        proved_ms = universe.now_ms if broker.stuck else broker.stuck_ms
        gone_ms = universe.now_ms - majority.THERE_MS - 2 * VOTER_MS  # one that is gone is taken for there for a while
        there = [one for one in universe.brokers.values() if one.is_voter_there or one.ended_ms > gone_ms]
        if universe.combined and len([one for one in there if one is not broker]) <= len(universe.brokers) // 2:
            universe.violations.append(f"{universe.now_ms / 1000:.2f} majority: the kill leaves {universe.voters}")
        if broker.metadata is not None and not broker.metadata.writes:
            proved_ms = universe.now_ms  # nothing of it outlives that
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

    async def _told(self, means: str, work: Callable[[], Awaitable[int]]) -> Done:
        self.universe.reached(self.number, f"{means} asked")
        if self.universe.now_ms < self.guard.broken_until_ms:
            return Done(outcome=Outcome.FAILED, reason="no connection")
        try:
            code = await work()
            await self.guard.late()
            self.universe.reached(self.number, f"{means} answered")
        except TimeoutError:
            return Done(outcome=Outcome.PENDING, reason="timed out")
        except ConnectionError:
            return Done(outcome=Outcome.FAILED, reason="reset")
        return Done(outcome=Outcome.DONE if code == 0 else Outcome.FAILED, reason=f"error {code}")

    async def suspect(self, value: str | None) -> Done:
        means = "trust" if value is None else "suspect"
        config = IncrementalAlterConfigsRequestConfig(
            name=CONFIG, config_operation=1 if value is None else 0, value=value
        )
        resource = IncrementalAlterConfigsRequestResource(
            resource_type=4, resource_name=str(self.number), configs=(config,)
        )

        async def write() -> int:
            request = IncrementalAlterConfigsRequest(resources=(resource,))
            answer = await self.universe.ask(request, taken=lambda: self.universe.act(self.number, means))
            return answer.responses[0].error_code

        return await self._told(means, write)

    async def report(self, broker_epoch: int, directory_ids: Sequence[str]) -> Done:
        ids = tuple(map(Uuid.parse, directory_ids))
        for disk in self.guard.broker.disks:
            if disk.id in ids:
                check_patience(self.universe, disk, "report")
                if not disk.masked:  # else it was asked before the mask
                    check_copies(self.guard, disk, "report")
        return await self._beat("report", broker_epoch, offline_log_dirs=ids)

    async def fence(self, broker_epoch: int) -> Done:
        return await self._beat("fence", broker_epoch, want_fence=True)

    async def _beat(self, means: str, broker_epoch: int, **fields: Any) -> Done:
        async def beat() -> int:
            request = BrokerHeartbeatRequest(
                broker_id=self.number, broker_epoch=broker_epoch, current_metadata_offset=0, **fields
            )
            answer = await self.universe.ask(request, taken=lambda: self.universe.act(self.number, means))
            return answer.error_code

        return await self._told(means, beat)

    async def reassign(self, replicas: Mapping[Name, Sequence[int] | None]) -> Mapping[Name, Done]:
        check_sight(self.guard, "reassign")
        check_left(self.guard, replicas)
        self.universe.reached(self.number, "reassign asked")
        if self.universe.now_ms < self.guard.broken_until_ms:
            return dict.fromkeys(replicas, Done(outcome=Outcome.FAILED, reason="no connection"))

        def taken() -> None:
            self.universe.act(self.number, "reassign")
            check_given_up(self.universe, self.number, replicas)

        try:
            found = await self.universe.reassign(replicas, taken)
            await self.guard.late()
            self.universe.reached(self.number, "reassign answered")
            return found
        except (TimeoutError, ConnectionError) as error:
            return dict.fromkeys(replicas, Done(outcome=Outcome.FAILED, reason=repr(error)))

    async def elect(self, partitions: Sequence[Name]) -> Mapping[Name, Done]:
        return dict.fromkeys(partitions, Done(outcome=Outcome.DONE))
