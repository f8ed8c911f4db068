"""The broker with its machines, on directories in memory and a controller in memory, in virtual time."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from kjbod.clock import SystemClock
from kjbod.errors import EXIT_DISK_FAILURE
from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.fetching import Committed, Leader, Snapshot
from kjbod.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    TopicRecord,
    UnknownRecord,
)
from kjbod.metadata.snapshot import SnapshotId
from kjbod.metadata.versions import METADATA_VERSION, SUPPORTED_FEATURES
from kjbod.runtime import systemd
from kjbod.wire.client import Disconnected, RequestTimedOut
from kjbod.wire.connection import Features
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    AssignReplicasToDirsResponseDirectory,
    AssignReplicasToDirsResponsePartition,
    AssignReplicasToDirsResponseTopic,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from kjbod_agent import lifecycle as life
from kjbod_agent.broker import Broker
from kjbod_agent.failures import Failures
from kjbod_agent.moves.mover import Mover
from kjbod_agent.replicas.hosting import Hosting
from kjbod_agent.replicas.inventory import Inventory
from kjbod_agent.replicas.placement import Placement
from kjbod_host.channel import ControllerChannel
from kjbod_host.directories.start_up_rules import Directory
from kjbod_host.reporter import Reporter, Sender
from kjbod_host.storage.api import Replica, StorageOptions
from kjbod_host.storage.memory import MemoryDirectoryAgent, MemoryDisk, MemoryStorageAgent
from tests.agent.core.recording import Log

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
D1, D2 = Uuid.of(2, 1), Uuid.of(2, 2)
TOPIC = Uuid.of(3, 1)
LEADER = Leader(3000, 1, "controller", 9093)


class Reports:
    """Takes everything."""

    def event(self, event: object) -> None:
        pass

    sample = event


class Controller:
    """Answers as a controller that is well, and not at all when it is ``silent`` or ``gone``."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.silent = False
        self.gone = False
        self.answer_s = 0.001
        self.late_s: float | None = None
        """How late the answers to failed directories are; a request that has its time over before is lost."""
        self.deaf = False
        """What is sent to it does not arrive, over connections that are there already."""
        self.assign_error = ErrorCode.NONE
        self.registration_error = ErrorCode.NONE
        self.heartbeat_errors: list[ErrorCode] = []
        self.requests: list[Any] = []
        self.epochs = itertools.count(100)

    async def open(self, host: str, port: int, *, client_id: str, clock: Any, connect_timeout_ms: int) -> Any:
        if self.gone:
            raise Disconnected(f"cannot connect to {host}:{port}: Connection refused")
        if self.silent:
            await asyncio.sleep(connect_timeout_ms / 1000)
            raise Disconnected(f"{host}:{port} did not answer within {connect_timeout_ms} ms")
        return FakeConnection(self)

    def answer(self, request: Any) -> Any:
        match request:
            case BrokerRegistrationRequest():
                return BrokerRegistrationResponse(error_code=self.registration_error, broker_epoch=next(self.epochs))
            case BrokerHeartbeatRequest():
                code = self.heartbeat_errors.pop(0) if self.heartbeat_errors else ErrorCode.NONE
                return BrokerHeartbeatResponse(error_code=code, is_caught_up=True, is_fenced=request.want_fence)
            case AssignReplicasToDirsRequest():
                return self._assigned(request)
        raise AssertionError(request)

    def _assigned(self, request: AssignReplicasToDirsRequest) -> AssignReplicasToDirsResponse:
        return AssignReplicasToDirsResponse(
            error_code=self.assign_error,
            directories=tuple(
                AssignReplicasToDirsResponseDirectory(
                    id_=directory.id_,
                    topics=tuple(
                        AssignReplicasToDirsResponseTopic(
                            topic_id=topic.topic_id,
                            partitions=tuple(
                                AssignReplicasToDirsResponsePartition(partition_index=p.partition_index, error_code=0)
                                for p in topic.partitions
                            ),
                        )
                        for topic in directory.topics
                    ),
                )
                for directory in request.directories
            ),
        )

    def of(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]


class FakeConnection:
    """To a :class:`Controller`."""

    features = Features()

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.closed = False
        self._dead = False

    @property
    def unheard_bytes(self) -> int:
        return 80 if self._dead else 0

    def version_of(self, api_key: int) -> int:
        return 2 if api_key == BrokerHeartbeatRequest.API_KEY else 4

    async def request(self, message: Any, *, timeout_ms: int) -> Any:
        self._controller.requests.append(message)
        if self._controller.deaf:
            self._dead, self._controller.deaf = True, False
        if self._dead:
            await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut(f"controller did not answer within {timeout_ms} ms")
        if self._controller.silent or self._controller.gone:
            self.closed = True
            if self._controller.silent:
                await asyncio.sleep(timeout_ms / 1000)
            raise RequestTimedOut(f"controller did not answer within {timeout_ms} ms")
        late_s = self._controller.late_s
        if late_s is not None and isinstance(message, BrokerHeartbeatRequest) and message.offline_log_dirs:
            await asyncio.sleep(min(late_s, timeout_ms / 1000))
            if late_s >= timeout_ms / 1000:
                self.closed = True
                raise RequestTimedOut(f"controller did not answer within {timeout_ms} ms")
        await asyncio.sleep(self._controller.answer_s)
        return self._controller.answer(message)

    async def close(self) -> None:
        self.closed = True


def topic_records(directories: tuple[Uuid, ...]) -> list[Record]:
    """Of a topic with a partition for each of these, in which it lies."""
    partitions = [
        PartitionRecord(
            partition_id=number,
            topic_id=TOPIC,
            replicas=(1,),
            isr=(1,),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(directory,),
        )
        for number, directory in enumerate(directories)
    ]
    return [TopicRecord(name="t", topic_id=TOPIC), *partitions]


class World:
    """Broker 1 with two directories; a topic of four partitions comes with :meth:`topic`."""

    def __init__(self, clock: Any, *, unfenced: bool = True, **failures: Any) -> None:
        self.clock = clock
        self._unfenced = unfenced
        self.log = Log()
        self.controller = Controller(clock)
        self.tasks: set[asyncio.Task[None]] = set()
        self.offset = 0
        options = StorageOptions(clock=clock)
        self.disks = {D1: MemoryDisk(), D2: MemoryDisk()}
        sender = Sender(host="h", broker_id=1, boot_id="b", fleet="f")
        self.broker = Broker(
            identity=life.Identity(
                broker_id=1, cluster_id="c", incarnation_id=Uuid.of(1, 1), listeners=(), log_dirs=(D1, D2)
            ),
            timing=life.Timing(),
            failures=Failures(
                timeout_ms=failures.get("timeout_ms", 30_000), usable=frozenset({D1, D2}), metadata_directory=D1
            ),
            paths={D1: "/d1", D2: "/d2"},
            multiple=True,
            controlled_shutdown=True,
            lifecycle_channel=self.channel(),
            assignments_channel=self.channel(),
            reporter=Reporter(sender, clock, self.log, Reports()),
            clock=clock,
            spawn=self.spawn,
            log=self.log,
        )
        self.broker.placement = Placement(
            hosting=Hosting(1),
            inventory=Inventory([(D1, "/d1"), (D2, "/d2")]),
            agents={d: MemoryDirectoryAgent(f"/d{n}", disk, options) for n, (d, disk) in enumerate(self.disks.items())},
            owner=self.broker,
            unique=lambda: "0" * 32,
            log=self.log,
            clock=clock,
        )
        self.broker.mover = Mover(
            placement=self.broker.placement,
            storage=MemoryStorageAgent(options),
            owner=self.broker,
            directories=lambda: {"/d1": D1, "/d2": D2},
            unique=lambda: "1" * 32,
            clock=clock,
            log=self.log,
            concurrency=1,
            bytes_per_second=1 << 30,
            total_bytes_per_second=1 << 30,
        )

    def channel(self) -> ControllerChannel:
        return ControllerChannel(
            client_id="1", clock=self.clock, spawn=self.spawn, connect=lambda *a, **k: self.controller.open(*a, **k)
        )

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    async def __aenter__(self) -> "World":
        self.spawn(self.broker.placement.run())
        self.spawn(self.broker.run_timers(None))
        self.broker.on_leader(LEADER)
        level = SUPPORTED_FEATURES[METADATA_VERSION][1]
        self.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=level))
        self.broker.start()
        if self._unfenced:
            await self.until(lambda: not self.broker.life.fenced)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in list(self.tasks):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(300):
            while not condition():  # noqa: ASYNC110  the machine under test has no event for tests
                await asyncio.sleep(0.005)

    def commit(self, *records: Record) -> None:
        numbered = tuple((self.offset + n, record) for n, record in enumerate(records))
        self.offset += len(records)
        self.broker.on_committed(Committed(numbered, self.offset - 1, 1, self.offset))

    def topic(self, directories: tuple[Uuid, ...] = (UNASSIGNED,) * 4) -> None:
        self.commit(*topic_records(directories))

    def record_assignments(self) -> None:
        """The metadata say where each replica lies."""
        for request in self.controller.of(AssignReplicasToDirsRequest):
            for directory in request.directories:
                for topic in directory.topics:
                    for p in topic.partitions:
                        self.commit(
                            PartitionChangeRecord(
                                partition_id=p.partition_index, topic_id=TOPIC, directories=(directory.id_,)
                            )
                        )


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Counter[float]:
    """How often the timers went round, by the moment in virtual time."""
    counted: Counter[float] = Counter()

    def count(*_: object) -> bool:
        now = asyncio.get_running_loop().time()
        counted[now] += 1
        assert counted[now] < 100, "the timers go round and never yield to the event loop"
        return True

    for name in ("notify_watchdog", "notify_starting"):
        monkeypatch.setattr(systemd, name, count)
    return counted


def test_the_timers_of_an_idle_agent_yield_and_rest(virtual: Run, rounds: Counter[float]) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            rounds.clear()
            await asyncio.sleep(60)
            assert world.broker.life.state is life.BrokerState.RUNNING
        assert 30 <= rounds.total() <= 200, "at least one in two seconds for the watchdog, and few more"

    virtual(main)


@pytest.mark.parametrize("trouble", ["no leader", "not registered"])
def test_the_timers_rest_while_assignments_wait_for_a_controller(
    virtual: Run, rounds: Counter[float], trouble: str
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            if trouble == "no leader":
                world.broker.on_leader(None)
            else:
                world.controller.heartbeat_errors = [ErrorCode.STALE_BROKER_EPOCH]
                world.controller.registration_error = ErrorCode.DUPLICATE_BROKER_REGISTRATION
                await world.until(lambda: not world.broker.life.registered)
            world.topic()
            await world.until(lambda: world.broker.assignments.queued == 4)
            await asyncio.sleep(5)
            rounds.clear()
            await asyncio.sleep(60)
        assert rounds.total() <= 300

    virtual(main)


def test_a_controller_that_goes_again_is_told_of_again_and_its_return_as_well(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            for _ in range(2):
                world.controller.gone = True
                world.broker.on_leader(LEADER)
                await asyncio.sleep(30)
                world.controller.gone = False
                await asyncio.sleep(5)
            assert len(world.log.of("controller.request.recovered")) == 2
            assert world.log.of("controller.request.recovered")[0]["failures"] > 2

    virtual(main)


def test_a_controller_that_is_silent_for_an_hour_costs_a_few_lines_of_log(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.controller.silent = True
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await asyncio.sleep(3600)
            assert 1 <= len(world.log.of("controller.request.failed")) <= 70
            assert len(world.tasks) <= 6, "tasks of attempts that have ended are gone"

    virtual(main)


def test_a_controller_that_accepts_and_never_answers_gets_one_timeout_for_connection_and_answer(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.controller.silent = True
            channel = world.channel()
            started_ms = clock.monotonic_ms()
            clock.call_later(1.5, channel.set_leader, LEADER)
            with pytest.raises(Disconnected):
                await channel.request(lambda _: BrokerHeartbeatRequest(broker_id=1, broker_epoch=1), timeout_ms=2000)
            assert clock.monotonic_ms() - started_ms <= 2001

    virtual(main)


def test_a_failed_directory_is_in_the_heartbeat_after_a_stale_epoch_and_acknowledged_again(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await world.until(lambda: len(world.log.of("directory.offline.acknowledged")) == 1)
            world.controller.heartbeat_errors = [ErrorCode.STALE_BROKER_EPOCH]
            await world.until(lambda: len(world.log.of("directory.offline.acknowledged")) == 2)
            assert world.controller.of(BrokerHeartbeatRequest)[-1].offline_log_dirs == (D2,)
            assert world.controller.of(BrokerHeartbeatRequest)[-1].broker_epoch == 101

    virtual(main)


@pytest.mark.parametrize("there", ["in a round", "between two rounds"])
def test_a_pause_wherever_it_comes_leaves_time_to_hear_what_the_controller_has_answered(
    virtual: Run, monkeypatch: pytest.MonkeyPatch, there: str
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.topic()
            await world.until(lambda: len(world.controller.of(AssignReplicasToDirsRequest)) == 2)
            world.record_assignments()
            pauses = [] if there == "between two rounds" else [40]

            def pet(*_: object) -> None:
                if pauses and world.log.of("directory.offline.sent"):
                    clock.pause(pauses.pop())

            for name in ("notify_watchdog", "notify_starting"):
                monkeypatch.setattr(systemd, name, pet)
            world.controller.answer_s = 41  # it is heard after the pause, and within one round with the controller
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await world.until(lambda: bool(world.log.of("directory.offline.sent")))
            if there == "between two rounds":
                await asyncio.sleep(0.1)
                clock.pause(40)
            await world.until(lambda: bool(world.log.of("directory.offline.acknowledged")))
            assert not pauses, pauses
            assert world.log.of("agent.paused")[0]["lost_ms"] > 38_000
            assert world.broker.life.active

    virtual(main)


def test_full_disks_do_not_keep_a_broker_fenced_for_one_replica_that_has_no_room(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        world = World(clock)
        for disk in world.disks.values():
            disk.fill()
        world.topic()
        async with world:
            assert len(world.log.of("replica.no.room")) == 4
            assert 120 <= clock.time() <= 125, "kjbod.assignment.timeout.ms: one rule for all that is not assigned"
            world.disks[D2].usable_bytes = 1 << 20
            await world.until(lambda: len(world.log.of("assignments.acknowledged")) > 0)
            await asyncio.sleep(5)
            assert len(world.disks[D2].directories) == 4
            assert world.broker.assignments.queued == 0

    virtual(main)


def test_a_directory_that_fails_between_an_answer_and_its_record_is_settled_by_the_record(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.topic()
            await world.until(lambda: len(world.log.of("assignments.acknowledged")) > 0)
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await world.until(lambda: len(world.log.of("directory.offline.acknowledged")) == 1)
            world.record_assignments()
            assert all(failure.settled for failure in world.broker.failures.failed)

    virtual(main)


def test_a_replica_that_the_metadata_take_out_of_a_failed_directory_has_to_be_assigned_back_in_time(
    virtual: Run,
) -> None:
    """The directory itself has been recorded long ago; the leader that it gets now would never move."""

    async def main(clock: Any) -> None:
        async with World(clock, timeout_ms=3000) as world:
            world.topic()
            await world.until(lambda: len(world.log.of("assignments.acknowledged")) > 0)
            world.record_assignments()
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await world.until(lambda: len(world.log.of("directory.offline.acknowledged")) == 1)
            await asyncio.sleep(10)
            world.controller.assign_error = ErrorCode.UNKNOWN_SERVER_ERROR
            world.commit(PartitionChangeRecord(partition_id=1, topic_id=TOPIC, directories=(UNASSIGNED,)))
            await asyncio.sleep(1)
            assert not world.broker.ended.done(), "the time counts from now on"
            await world.until(world.broker.ended.done)
            assert world.broker.ended.result().exit_code == EXIT_DISK_FAILURE
            assert "could not be assigned" in world.broker.ended.result().reason

    virtual(main)


def answers_fetches(world: World, until_s: float) -> None:
    """The controller answers the Fetches of the metadata, each 500 ms, until it stands still."""
    begun_ms = world.clock.monotonic_ms()

    def answered_ms() -> int:
        now_ms = world.clock.monotonic_ms()
        return int(min(now_ms - now_ms % 500, begun_ms + until_s * 1000))

    world.broker.controller_answered_ms = answered_ms


def reports(world: World) -> list[BrokerHeartbeatRequest]:
    return [one for one in world.controller.of(BrokerHeartbeatRequest) if one.offline_log_dirs]


@pytest.mark.parametrize("late_s", [2.5, 5, 8, 12, 29])
def test_a_failed_directory_is_reported_once_and_its_answer_waited_for_while_the_controller_answers_others(
    virtual: Run, late_s: float
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.topic((D2,) * 2)
            answers_fetches(world, 1_000)
            world.controller.late_s = late_s
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await asyncio.sleep(late_s + 0.1)
            assert len(reports(world)) == 1, "each further one would stand at the end of the controller's queue"
            assert world.broker.failures.failed[0].reported
            world.controller.late_s = None
            await asyncio.sleep(60)
            assert not world.broker.ended.done()

    virtual(main)


@pytest.mark.parametrize("frozen_s", [0, 1, 3, 7, 20])
def test_a_controller_that_stands_still_keeps_nobody_waiting_for_longer_than_two_intervals_and_the_failure_timeout(
    virtual: Run, frozen_s: float
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.topic((D2,) * 2)
            await asyncio.sleep(0.1)
            answers_fetches(world, frozen_s)
            world.controller.late_s = 1_000
            begun_ms = clock.monotonic_ms()
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await world.until(lambda: len(reports(world)) == 2)
            interval_ms = world.broker.life.timing.heartbeat_interval_ms
            given_up_ms = clock.monotonic_ms() - begun_ms - frozen_s * 1000
            assert given_up_ms <= 2 * interval_ms + 200
            await world.until(world.broker.ended.done)
            assert 30_000 <= clock.monotonic_ms() - begun_ms <= 30_100
            assert world.broker.ended.result().exit_code == EXIT_DISK_FAILURE

    virtual(main)


def test_a_report_that_was_lost_on_its_way_is_sent_again_while_the_controller_answers_others(virtual: Run) -> None:
    """Before the session of the broker is over, and with it the leaders of its healthy disks."""

    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.topic((D2,) * 2)
            await asyncio.sleep(0.1)
            answers_fetches(world, 1_000)
            world.controller.deaf = True
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await asyncio.sleep(world.broker.life.timing.heartbeat_interval_ms / 1000 + 0.2)
            assert len(reports(world)) == 2
            assert world.broker.failures.failed[0].reported

    virtual(main)


def test_a_controller_that_answers_others_and_never_the_report_does_not_keep_the_agent_beyond_its_promise(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.topic((D2,) * 2)
            await asyncio.sleep(0.1)
            answers_fetches(world, 1_000)
            world.controller.late_s = 1_000
            begun_ms = clock.monotonic_ms()
            world.broker.directory_failed(D2, "error", "EIO", clock.monotonic_ms())
            await world.until(world.broker.ended.done)
            assert 30_000 <= clock.monotonic_ms() - begun_ms <= 30_100
            assert len(reports(world)) == 1

    virtual(main)


def test_a_move_is_promoted_after_the_controllers_answer_and_its_echo_is_not_taken_for_a_move_by_hand(
    virtual: Run,
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.spawn(world.broker.mover.run())
            world.topic((D1,) * 2)
            await world.until(lambda: "t-0" in world.disks[D1].directories)
            world.controller.assign_error = ErrorCode.NOT_CONTROLLER
            assert world.broker.mover.alter("t", 0, "/d2") == ErrorCode.NONE
            await asyncio.sleep(30)
            assert [str(move.state) for move in world.broker.mover.moves] == ["queued"]
            assert "t-0" in world.disks[D1].directories
            world.controller.requests.clear()
            world.controller.assign_error = ErrorCode.NONE
            await world.until(lambda: bool(world.controller.of(AssignReplicasToDirsRequest)))
            world.record_assignments()  # before the answer is there
            await world.until(lambda: world.broker.mover.moves == ())
            await asyncio.sleep(30)
            (request,) = world.controller.of(AssignReplicasToDirsRequest)
            assert [d.id_ for d in request.directories] == [D2]
            assert "t-0" in world.disks[D2].directories and "t-0" not in world.disks[D1].directories

    virtual(main)


def test_a_disk_that_fails_in_a_move_is_told_with_the_replicas_that_lie_on_it(virtual: Run) -> None:
    """The controller had agreed to the destination, which holds nothing but a future replica when the source fails
    before both were seen to be equal again: it is told the truth, so that it moves the leader."""

    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.spawn(world.broker.mover.run())
            world.topic((D2,))
            await world.until(lambda: "t-0" in world.disks[D2].directories)
            world.controller.assign_error = ErrorCode.NOT_CONTROLLER
            world.broker.mover.alter("t", 0, "/d1")
            await world.until(lambda: [str(move.state) for move in world.broker.mover.moves] == ["queued"])
            world.controller.assign_error = ErrorCode.NONE
            world.broker.directory_failed(D2, "error", "it died", clock.monotonic_ms())
            await world.until(lambda: bool(world.broker.failures.failed) and world.broker.failures.failed[0].settled)
            assert world.broker.mover.moves == ()
            told = [d.id_ for r in world.controller.of(AssignReplicasToDirsRequest) for d in r.directories]
            assert told[-1] == D2

    virtual(main)


def test_the_throttle_of_all_moves_follows_the_configuration_of_this_broker_before_that_of_all(
    virtual: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            rates: list[int | None] = []
            monkeypatch.setattr(world.broker.mover, "set_rate", rates.append)
            name = "replica.alter.log.dirs.io.max.bytes.per.second"
            for resource, value in (("", "300"), ("1", "200"), ("2", "100"), ("1", None), ("", None)):
                world.commit(ConfigRecord(resource_type=4, resource_name=resource, name=name, value=value))
            assert rates == [300, 200, 200, 300, None]

    virtual(main)


# ------------------------------------------------------------------------------- a controller is found as it registers


@pytest.mark.parametrize("found", ["before it begins", "at once", "as it waits", "as it connects"])
def test_a_controller_that_is_found_during_the_start_gets_one_registration(found: str) -> None:
    """On the loop that counts: the follower's answer and the start may come in one round of it, in either order."""

    async def main() -> None:
        world = World(SystemClock())
        connected = asyncio.Event()

        async def connect(*_: Any, **__: Any) -> Any:
            await connected.wait()
            return FakeConnection(world.controller)

        world.controller.open = connect  # type: ignore[method-assign]
        leader = LEADER
        try:
            if found in ("before it begins", "as it connects"):
                world.broker.on_leader(leader)
            world.broker.start()
            if found in ("as it waits", "as it connects"):
                for _ in range(5):
                    await asyncio.sleep(0)
            if found == "as it connects":
                leader = Leader(3000, 2, "controller", 9093)
            if found != "before it begins":
                world.broker.on_leader(leader)
            for _ in range(5):
                await asyncio.sleep(0)
            connected.set()
            await world.until(lambda: bool(world.controller.of(BrokerHeartbeatRequest)))
            assert len(world.controller.of(BrokerRegistrationRequest)) == 1
            assert world.broker.life.failures == 0
        finally:
            await world.__aexit__()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_why_no_controller_is_known_is_told_when_the_agent_gives_up(virtual: Run) -> None:
    async def main(clock: Any) -> None:
        world = World(clock)
        world.broker._channel._trouble = lambda: "cannot resolve kafka1: the name servers have not answered for 2000 ms"
        world.spawn(world.broker.run_timers(None))
        world.broker.start()
        ended = await world.broker.ended
        assert ended.reason.endswith("no controller is known: " + world.broker._channel._trouble())
        await world.__aexit__()

    virtual(main)


@pytest.mark.parametrize(
    ("told", "event"),
    [
        ({"parted": "it has other records"}, "metadata.history.lost"),
        ({"uncompared": "it has only a snapshot"}, "metadata.history.uncompared"),
        ({"dropped": "a real broker had fetched too much"}, None),
        ({}, None),
    ],
)
def test_metadata_that_lack_what_was_kept_or_cannot_be_compared_with_it_prove_no_deletion(
    virtual: Run, told: dict[str, Any], event: str | None
) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, unfenced=False)
        left = Replica(f"gone-0.{'0' * 32}-delete", "gone", 0, Uuid.of(3, 9), "delete")
        world.disks[D1].directories[left.name] = f"version: 0\ntopic_id: {left.topic_id}".encode()
        for number, (directory, found) in enumerate({D1: [left], D2: []}.items(), 1):
            at: Any = Directory(f"/d{number}", directory, None)  # type: ignore[arg-type]
            world.broker.directory_loaded(at, world.broker.placement.agents[directory], found)
        records = (FeatureLevelRecord(name=METADATA_VERSION, feature_level=SUPPORTED_FEATURES[METADATA_VERSION][1]),)
        contained = world.broker.on_snapshot(Snapshot(SnapshotId(0, 1), records, **told))
        async with world:
            await world.until(lambda: world.broker.caught_up.is_set())
            await asyncio.sleep(3600)
            lines = [name for name in ("metadata.history.lost", "metadata.history.uncompared") if world.log.of(name)]
            assert (contained, lines) == (event is None, [event] if event else [])
            assert any("-stray" in name for name in world.disks[D1].directories) == (event is not None)
            assert (world.disks[D1].directories == {}) == (event is None)

    virtual(story)


UNKNOWN = [(30, 0), (99, 3), (2, 1), (3, 3), (9, 1), (-1, -1)]
"""Types and versions of records that make any picture incomplete."""


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("how", ["log", "snapshot"])
def test_metadata_with_records_that_are_not_known_prove_no_deletion_at_a_start(
    virtual: Run, kind: tuple[int, int], how: str
) -> None:
    async def story(clock: Any) -> None:
        world = World(clock, unfenced=False)
        left = Replica(f"gone-0.{'0' * 32}-delete", "gone", 0, Uuid.of(3, 9), "delete")
        world.disks[D1].directories[left.name] = f"version: 0\ntopic_id: {left.topic_id}".encode()
        for number, (directory, found) in enumerate({D1: [left], D2: []}.items(), 1):
            at: Any = Directory(f"/d{number}", directory, None)  # type: ignore[arg-type]
            world.broker.directory_loaded(at, world.broker.placement.agents[directory], found)
        level = FeatureLevelRecord(name=METADATA_VERSION, feature_level=SUPPORTED_FEATURES[METADATA_VERSION][1])
        records = (UnknownRecord(api_key=kind[0], version=kind[1]), level)
        if how == "snapshot":
            world.broker.on_snapshot(Snapshot(SnapshotId(2, 1), records))
        else:
            world.commit(*records)
        async with world:
            await world.until(lambda: world.broker.caught_up.is_set())
            await asyncio.sleep(600)
            assert any("-stray" in name for name in world.disks[D1].directories)
            (line,) = world.log.of("metadata.unknown")
            assert line["reason"].endswith("upgrade kjbod; until then the agent deletes nothing")
            assert line["reason"] in world.broker.condition().line

    virtual(story)


@pytest.mark.parametrize("kind", [*UNKNOWN, (29, 0)])
def test_nor_while_it_runs_and_what_is_known_to_be_gone_is_deleted_as_ever(virtual: Run, kind: tuple[int, int]) -> None:
    async def story(clock: Any) -> None:
        async with World(clock) as world:
            world.topic((D1,) * 4)
            await world.until(lambda: len(world.disks[D1].directories) == 4)
            world.commit(UnknownRecord(api_key=kind[0], version=kind[1]), RemoveTopicRecord(topic_id=TOPIC))
            await asyncio.sleep(3600)
            assert sorted(world.disks[D1].directories) == ([] if kind == (29, 0) else names(4))

    virtual(story)


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("when", ["start", "running"])
def test_a_replica_that_incomplete_metadata_lack_stays_in_its_place_and_none_is_made_when_they_are_whole(
    virtual: Run, kind: tuple[int, int], when: str
) -> None:
    """An empty one would be led, and the records of the other be lost to the cluster."""

    async def story(clock: Any) -> None:
        world = World(clock, unfenced=False)
        level = FeatureLevelRecord(name=METADATA_VERSION, feature_level=SUPPORTED_FEATURES[METADATA_VERSION][1])
        incomplete = Snapshot(SnapshotId(50, 1), (level, UnknownRecord(api_key=kind[0], version=kind[1])))
        if when == "start":
            lies = [Replica(name, "t", number, TOPIC, "") for number, name in enumerate(names(4))]
            for name in names(4):
                world.disks[D1].directories[name] = f"version: 0\ntopic_id: {TOPIC}".encode()
            for number, (directory, found) in enumerate({D1: lies, D2: []}.items(), 1):
                at: Any = Directory(f"/d{number}", directory, None)  # type: ignore[arg-type]
                world.broker.directory_loaded(at, world.broker.placement.agents[directory], found)
            world.broker.on_snapshot(incomplete)
        async with world:
            if when == "running":
                world.topic((D1,) * 4)
                await world.until(lambda: len(world.disks[D1].directories) == 4)
                world.broker.on_snapshot(incomplete)
            made = len(world.log.of("replica.created"))
            await asyncio.sleep(120)
            assert sorted(world.disks[D1].directories) == names(4)
            world.broker.on_snapshot(Snapshot(SnapshotId(90, 1), (level, *topic_records((D1,) * 3))))
            await asyncio.sleep(120)
            assert (len(world.log.of("replica.created")), world.disks[D2].directories) == (made, {})
            *stay, stray = sorted(world.disks[D1].directories, key=lambda name: ("-stray" in name, name))
            assert (stay, stray.partition(".")[0], stray.endswith("-stray")) == (names(3), "t-3", True)

    virtual(story)


def names(count: int) -> list[str]:
    """Of the directories of the first replicas of the topic."""
    return [f"t-{number}" for number in range(count)]


def test_an_agent_that_is_refused_for_the_level_of_the_cluster_says_so_and_which_kjbod_it_takes(virtual: Run) -> None:
    async def story(clock: Any) -> None:
        world = World(clock)
        world.controller.registration_error = ErrorCode.UNSUPPORTED_VERSION
        world.commit(FeatureLevelRecord(name=METADATA_VERSION, feature_level=99))
        world.broker.on_leader(LEADER)
        world.broker.start()
        await world.until(lambda: world.broker.life.failures > 0)
        line = world.broker.condition().line
        assert "UNSUPPORTED_VERSION" in line
        assert "the cluster is at metadata.version 99, and this kjbod offers" in line
        assert "upgrade kjbod to a version that offers 99" in line
        await world.__aexit__()

    virtual(story)
