"""One writer at a time, and nobody else waits: turns, alone and in a server whose large work is held."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from kjbod.metadata.log_files import SegmentedLog
from kjbod.metadata.records import PartitionRecordRef
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DescribeClusterRequest,
    MetadataRequest,
)
from kjbod_controller_stub.costs import LARGE_FRAME_BYTES, LARGE_PARTITIONS, is_large
from kjbod_controller_stub.server import ControllerServer
from kjbod_controller_stub.turns import TURNS_AT_ONCE, TURNS_MS_MAX, Rank, Turns
from tests.controller.conftest import Serving, Site, until
from tests.controller.test_server import connect, create, join
from tests.controller.world import World

LARGE = LARGE_PARTITIONS + 100


class Gate:
    """Holds whoever passes it, in any thread."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def pass_through(self) -> None:
        self.reached.set()
        assert self._open.wait(60), "nobody opened the gate"

    def open(self) -> None:
        self._open.set()


@pytest.fixture(autouse=True)
def quiet(site: Site) -> None:
    """No NoOpRecord between what a test writes."""
    site.configure(metadata_max_idle_interval_ms="600000")


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Open at the end of the test, however it ends."""
    made = Gate()
    yield made
    made.open()


# ---- turns alone


@pytest_asyncio.fixture
async def turns() -> AsyncIterator[Turns]:
    made = Turns()
    yield made
    await made.close()


class Diary:
    """What happened, in order, and in which thread the work was done."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.events: list[str] = []
        self.threads: dict[str, threading.Thread] = {}

    def take(
        self, name: str, *, large: bool = False, work: Callable[[], None] = lambda: None, rank: Rank = Rank.BROKERS
    ) -> None:
        def do() -> str:
            self.threads[name] = threading.current_thread()
            work()
            self.events.append(f"did {name}")
            return name

        self._turns.take(
            do,
            settle=lambda result: self.events.append(f"settled {result}"),
            fail=lambda error: self.events.append(f"{name}: {error}"),
            is_large=lambda: large,
            rank=rank,
        )


async def test_small_turns_are_done_at_once_on_the_loop(turns: Turns) -> None:
    diary = Diary(turns)
    diary.take("a")
    diary.take("b")
    assert diary.events == ["did a", "settled a", "did b", "settled b"]
    assert set(diary.threads.values()) == {threading.main_thread()}


async def test_the_loop_goes_on_while_a_large_turn_is_done_and_the_next_ones_wait_for_it(
    turns: Turns, gate: Gate
) -> None:
    diary = Diary(turns)
    diary.take("large", large=True, work=gate.pass_through)
    diary.take("small")
    diary.take("large too", large=True)
    await until(gate.reached.is_set)
    assert diary.events == []
    assert len(turns) == 2
    gate.open()
    await until(lambda: len(diary.events) == 6)
    assert diary.events == [f"{what} {name}" for name in ("large", "small", "large too") for what in ("did", "settled")]
    assert diary.threads["large"] is diary.threads["large too"] is not threading.main_thread()
    assert diary.threads["small"] is threading.main_thread()


async def test_work_that_fails_is_told_to_who_asked_for_it_and_stops_nobody(turns: Turns) -> None:
    diary = Diary(turns)

    def fail() -> None:
        raise ValueError("no")

    diary.take("small", work=fail)
    diary.take("large", large=True, work=fail)
    diary.take("last")
    await until(lambda: len(diary.events) == 4)
    assert diary.events == ["small: no", "large: no", "did last", "settled last"]


async def test_a_long_queue_of_small_turns_lets_the_loop_in_between(turns: Turns, gate: Gate) -> None:
    diary = Diary(turns)
    diary.take("large", large=True, work=gate.pass_through)

    def wait_for_the_loop() -> None:
        asyncio.get_running_loop().call_soon(diary.events.append, "the loop")

    diary.take("first", work=wait_for_the_loop)
    for number in range(TURNS_AT_ONCE):
        diary.take(str(number))
    diary.take("last")
    gate.open()
    await until(lambda: "settled last" in diary.events)
    assert diary.events.index("settled first") < diary.events.index("the loop") < diary.events.index("did last")


async def test_brokers_go_before_all_others_and_each_of_them_in_order(turns: Turns, gate: Gate) -> None:
    diary = Diary(turns)
    diary.take("large", large=True, work=gate.pass_through, rank=Rank.OTHERS)
    for number in range(3):
        diary.take(f"read {number}", rank=Rank.OTHERS, large=number == 1)
        diary.take(f"broker {number}", large=number == 1)
    gate.open()
    await until(lambda: len(diary.events) == 14)
    order = [event.removeprefix("did ") for event in diary.events if event.startswith("did ")]
    assert order == ["large", *(f"{who} {number}" for who in ("broker", "read") for number in range(3))]


async def test_turns_that_take_long_let_the_loop_in_between_however_few_they_are(gate: Gate) -> None:
    now_ms = 0
    turns = Turns(lambda: now_ms / 1000)
    diary, waited = Diary(turns), [0]
    diary.take("large", large=True, work=gate.pass_through)

    def work() -> None:
        nonlocal now_ms
        now_ms += 2
        waited[-1] += 2

    def look_at_sockets() -> None:
        waited.append(0)
        if len(turns):
            asyncio.get_running_loop().call_soon(look_at_sockets)

    for number in range(TURNS_AT_ONCE // 2):
        diary.take(str(number), work=work)
    asyncio.get_running_loop().call_soon(look_at_sockets)
    gate.open()
    await until(lambda: not len(turns))
    await turns.close()
    assert max(waited) < TURNS_MS_MAX + 2


async def test_closing_waits_for_the_turn_that_is_taken(gate: Gate) -> None:
    turns = Turns()
    diary = Diary(turns)
    diary.take("large", large=True, work=gate.pass_through)
    diary.take("waiting", large=True)
    await until(gate.reached.is_set)
    closing = asyncio.ensure_future(turns.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.open()
    await closing
    assert diary.events == ["did large", "settled large", "did waiting", "settled waiting"]


# ---- a server whose large work is held


@pytest.fixture
def held(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Callable[[ControllerServer], None]:
    """Holds a server's large changes when half of their records are applied."""

    def hold(server: ControllerServer) -> None:
        controller = server.controller
        replay = controller._replay_alike

        def replay_in_halves(records: list[PartitionRecordRef]) -> None:
            if len(records) > LARGE_PARTITIONS:
                half = records[: len(records) // 2]
                del records[: len(half)]
                replay(half)
                gate.pass_through()
            replay(records)

        monkeypatch.setattr(controller, "_replay_alike", replay_in_halves)

    return hold


async def beat(connection: Connection, broker_id: int, epoch: int) -> BrokerHeartbeatResponse:
    return await connection.request(
        BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch, current_metadata_offset=2**60),
        timeout_ms=30_000,
    )


async def test_heartbeats_are_answered_while_a_large_change_is_made(
    site: Site, serving: Serving, gate: Gate, held: Callable[[ControllerServer], None]
) -> None:
    async with (
        serving(site) as server,
        await connect(server.port) as admin,
        await connect(server.port) as broker,
    ):
        epoch = await join(broker, 1)
        held(server)
        creating = asyncio.ensure_future(admin.request(create("large", LARGE), timeout_ms=30_000))
        await until(gate.reached.is_set)
        for _ in range(3):
            assert not (await beat(broker, 1, epoch)).is_fenced
        assert not creating.done()
        gate.open()
        assert (await creating).topics[0].error_code == 0


async def test_nobody_sees_half_of_a_change(
    site: Site, serving: Serving, gate: Gate, held: Callable[[ControllerServer], None]
) -> None:
    async with (
        serving(site) as server,
        await connect(server.port) as admin,
        await connect(server.port) as reader,
        await connect(server.port) as other,
    ):
        await join(reader, 1)
        held(server)
        creating = asyncio.ensure_future(admin.request(create("large", LARGE), timeout_ms=30_000))
        await until(gate.reached.is_set)
        assert 0 < server.controller.image.partition_count() < LARGE  # there is a half to be seen
        reading = asyncio.ensure_future(reader.request(MetadataRequest(topics=None), timeout_ms=30_000))
        describing = asyncio.ensure_future(other.request(DescribeClusterRequest(), timeout_ms=30_000))
        await until(lambda: len(server._turns) == 2)
        assert not reading.done()
        assert not describing.done()
        gate.open()
        assert [len(topic.partitions) for topic in (await reading).topics] == [LARGE]
        assert [broker.broker_id for broker in (await describing).brokers] == [1]
        await creating


async def test_changes_are_made_in_the_order_in_which_they_came(
    site: Site, serving: Serving, gate: Gate, held: Callable[[ControllerServer], None]
) -> None:
    async with (
        serving(site) as server,
        await connect(server.port) as first,
        await connect(server.port) as second,
    ):
        await join(first, 1)
        held(server)
        large = asyncio.ensure_future(first.request(create("t", LARGE), timeout_ms=30_000))
        await until(gate.reached.is_set)
        small = asyncio.ensure_future(second.request(create("t", 1), timeout_ms=30_000))
        await until(lambda: len(server._turns) == 1)
        gate.open()
        assert (await large).topics[0].error_code == 0
        assert (await small).topics[0].error_code != 0  # it exists: the other one was first


async def test_a_client_that_goes_away_does_not_stop_its_change_half_way(
    site: Site, serving: Serving, gate: Gate, held: Callable[[ControllerServer], None]
) -> None:
    async with serving(site) as server, await connect(server.port) as admin:
        await join(admin, 1)
        held(server)
        impatient = await connect(server.port)
        creating = asyncio.ensure_future(impatient.request(create("large", LARGE), timeout_ms=30_000))
        await until(gate.reached.is_set)
        await impatient.close()
        with pytest.raises(Disconnected):
            await creating
        gate.open()
        answer = await admin.request(MetadataRequest(topics=None), timeout_ms=30_000)
        assert [len(topic.partitions) for topic in answer.topics] == [LARGE]
        assert server.log.end_offset == server.controller.next_offset


async def test_a_request_too_large_for_the_loop_is_read_and_answered_in_the_thread(
    site: Site, serving: Serving
) -> None:
    async with serving(site) as server, await connect(server.port) as admin:
        await join(admin, 1)
        topics = tuple(
            CreateTopicsRequestTopic(name=f"topic-with-a-long-name-{number}", num_partitions=1, replication_factor=1)
            for number in range(LARGE)
        )
        answer = await admin.request(CreateTopicsRequest(topics=topics), timeout_ms=30_000)
        assert {topic.error_code for topic in answer.topics} == {0}
        assert [topic.name for topic in answer.topics] == [topic.name for topic in topics]


# ---- durability


@pytest.fixture
def hanging(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, no fsync of a metadata log returns before the gate opens."""
    sync = SegmentedLog.sync

    def hang() -> None:
        def slow(log: SegmentedLog) -> None:
            gate.pass_through()
            sync(log)

        monkeypatch.setattr(SegmentedLog, "sync", slow)

    return hang


async def test_an_answer_does_not_leave_before_its_records_are_durable(
    site: Site, serving: Serving, gate: Gate, hanging: Callable[[], None]
) -> None:
    async with (
        serving(site) as server,
        await connect(server.port) as admin,
        await connect(server.port) as broker,
    ):
        epoch = await join(broker, 1)
        hanging()
        creating = asyncio.ensure_future(admin.request(create("t", LARGE), timeout_ms=30_000))
        await until(gate.reached.is_set)
        assert not (await beat(broker, 1, epoch)).is_fenced  # nothing of its own is on the way to the disk
        assert not creating.done()
        gate.open()
        assert (await creating).topics[0].error_code == 0
        assert server.log.end_offset == server.controller.next_offset


async def test_a_broker_is_not_told_of_a_state_that_is_not_durable(
    site: Site, serving: Serving, gate: Gate, hanging: Callable[[], None]
) -> None:
    async with (
        serving(site) as server,
        await connect(server.port) as admin,
        await connect(server.port) as broker,
        await connect(server.port) as again,
    ):
        await join(admin, 1)
        epoch = await join(broker, 2)
        hanging()
        fencing = asyncio.ensure_future(
            broker.request(
                BrokerHeartbeatRequest(broker_id=2, broker_epoch=epoch, current_metadata_offset=2**60, want_fence=True),
                timeout_ms=30_000,
            )
        )
        await until(gate.reached.is_set)
        assert server.controller.image.brokers[2].fenced
        repeated = BrokerHeartbeatRequest(
            broker_id=2, broker_epoch=epoch, current_metadata_offset=2**60, want_fence=True
        )
        assert server.controller.sessions.steady_heartbeat(repeated, 0) is not None  # it would change nothing
        asking = asyncio.ensure_future(again.request(repeated, timeout_ms=30_000))
        assert not (await beat(admin, 1, server.controller.image.brokers[1].epoch)).is_fenced
        assert not asking.done()
        gate.open()
        assert (await asking).is_fenced
        assert (await fencing).is_fenced


async def test_nobody_is_answered_when_the_log_fails_under_a_large_change(
    site: Site, gate: Gate, monkeypatch: pytest.MonkeyPatch, serving: Serving
) -> None:
    def fail(log: SegmentedLog, batches: Any) -> None:
        gate.pass_through()
        raise OSError(5, "Input/output error")

    with pytest.raises(BaseExceptionGroup) as failed:
        async with (
            serving(site) as server,
            await connect(server.port) as admin,
            await connect(server.port) as reader,
        ):
            await join(admin, 1)
            monkeypatch.setattr(SegmentedLog, "append", fail)
            creating = asyncio.ensure_future(admin.request(create("t", LARGE), timeout_ms=30_000))
            await until(gate.reached.is_set)
            reading = asyncio.ensure_future(reader.request(MetadataRequest(topics=None), timeout_ms=30_000))
            await until(lambda: len(server._deferred) == 2)
            gate.open()
            await until(lambda: creating.done() and reading.done())
    await asyncio.wait([creating, reading])
    assert isinstance(creating.exception(), Disconnected)
    assert isinstance(reading.exception(), Disconnected)
    assert "cannot write to the metadata log" in str(failed.value.exceptions[0])


# ---- what is large


def test_what_is_large_is_told_from_counts() -> None:
    world = World()
    world.join(1)
    world.join(2)
    world.create("t", *[(1, 2)] * LARGE)
    world.assign_all(1)
    controller = world.controller
    epoch = world.broker(1).epoch
    lost = world.broker(1).log_dirs[:1]
    many = is_large(
        controller,
        BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=0, want_fence=True),
        80,
    )
    few = is_large(controller, BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=0), 80)
    third = controller.index.in_directories(1, lost)
    some = is_large(
        controller,
        BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=0, offline_log_dirs=lost),
        80,
    )
    assert (many, few, some) == (True, False, third >= LARGE_PARTITIONS)
    assert is_large(controller, MetadataRequest(topics=None), 20)
    assert not is_large(controller, DescribeClusterRequest(), 20)
    assert is_large(controller, DescribeClusterRequest(), LARGE_FRAME_BYTES)  # whatever it is


def test_where_a_change_of_a_broker_ends_is_known_before_the_change_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a heartbeat in between would be told of a state that is not durable."""
    world = World()
    world.join(1)
    controller = world.controller
    replay, seen = controller.replay, []

    def watched(record: Any) -> None:
        seen.append((controller.image.brokers[1].fenced, controller.sessions.registration_end_offsets[1]))
        replay(record)

    with monkeypatch.context() as patch:
        patch.setattr(controller, "replay", watched)
        world.beat(1, fence=True)
    assert seen == [(False, controller.next_offset)]
    assert world.broker(1).fenced
