"""The observer over real loopback connections: a small controller on our own log and server serves it."""

import asyncio
import contextlib
import gc
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from msgspec import structs

from kjbod.clock import SystemClock
from kjbod.ids import METADATA_TOPIC_ID, Uuid
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.fetching import Committed, InconsistentClusterError, Leader, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.metadata.image import MetadataImage, Replayer, image_of
from kjbod.metadata.log import MetadataLog
from kjbod.metadata.records import Record, TopicRecord, encode_record
from kjbod.metadata.snapshot import SnapshotId, encode_checkpoint
from kjbod.wire import messages as wire
from kjbod.wire.connection import api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request
from kjbod.wire.messages import ApiKey, LeaderIdAndEpoch
from kjbod.wire.server import Peer, Server, serve
from tests.metadata.newer_logs import NewerLog, value_of

CLUSTER = "cluster-of-the-test"
APIS = {ApiKey.API_VERSIONS: (0, 4), ApiKey.FETCH: (12, 18), ApiKey.FETCH_SNAPSHOT: (0, 1)}
CLOCK = SystemClock()


class Controller:
    """Answers Fetch and FetchSnapshot as the leader of a quorum of one."""

    def __init__(self, log: MetadataLog) -> None:
        self.log = log
        self.epoch = 1
        self.port = 0
        self.snapshot: tuple[SnapshotId, bytes] | None = None
        self.bad_snapshots = 0
        self.appended = asyncio.Event()

    async def append(self, *records: Record) -> None:
        values = [encode_record(record) for record in records]
        await self.log.append([encode_batch(values, self.log.next_offset, self.epoch, 1000)])
        self.appended.set()
        self.appended = asyncio.Event()

    async def handle(self, request: Request, peer: Peer) -> wire.ResponseBody | None:
        message = request.message
        if isinstance(message, wire.ApiVersionsRequest):
            return api_versions_response(request, APIS)
        if isinstance(message, wire.FetchRequest):
            if message.cluster_id != CLUSTER:
                return wire.FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
            partition = await self._fetch(message)
            topic = wire.FetchResponseTopic(topic_id=METADATA_TOPIC_ID, partitions=(partition,))
            node = wire.FetchResponseNodeEndpoint(node_id=3000, host="127.0.0.1", port=self.port)
            return wire.FetchResponse(responses=(topic,), node_endpoints=(node,))
        assert isinstance(message, wire.FetchSnapshotRequest)
        assert self.snapshot is not None
        position = message.topics[0].partitions[0].position
        whole = self.snapshot[1]
        if self.bad_snapshots:
            whole = whole[:-3] + b"bad"
            self.bad_snapshots -= position + 1000 >= len(whole)
        piece = wire.FetchSnapshotResponsePartition(
            snapshot_id=wire.SnapshotId(end_offset=self.snapshot[0].end_offset, epoch=self.snapshot[0].epoch),
            size=len(whole),
            position=position,
            unaligned_records=whole[position : position + 1000],
        )
        return wire.FetchSnapshotResponse(topics=(wire.FetchSnapshotResponseTopic(partitions=(piece,)),))

    async def _fetch(self, message: wire.FetchRequest) -> wire.FetchResponsePartition:
        asked = message.topics[0].partitions[0]
        leader = LeaderIdAndEpoch(leader_id=3000, leader_epoch=self.epoch)
        answer = wire.FetchResponsePartition(partition_index=0, current_leader=leader)
        if asked.current_leader_epoch < self.epoch:
            return structs.replace(answer, error_code=int(ErrorCode.FENCED_LEADER_EPOCH))
        if asked.fetch_offset == 0 and self.snapshot is not None:
            wanted = wire.SnapshotId(end_offset=self.snapshot[0].end_offset, epoch=self.snapshot[0].epoch)
            return structs.replace(answer, snapshot_id=wanted)
        if asked.fetch_offset == self.log.end_offset:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.appended.wait(), message.max_wait_ms / 1000)
        records = await self.log.read(asked.fetch_offset, 1500)
        return structs.replace(answer, records=records, high_watermark=self.log.end_offset)


class Reader:
    """A follower and what it was told."""

    def __init__(self, *ports: int, cluster_id: str = CLUSTER) -> None:
        self.replayer = Replayer()
        self.leaders: list[Leader | None] = []
        self.snapshots: list[SnapshotId] = []
        self.changed = asyncio.Event()
        self.follower = MetadataFollower(
            [("127.0.0.1", port) for port in ports],
            client_id="7",
            clock=CLOCK,
            rng=random.Random(5),
            on_committed=self._committed,
            on_snapshot=self._snapshot,
            on_leader=self.leaders.append,
            cluster_id=cluster_id,
            replica_id=7,
            directory_id=Uuid.of(3, 3),
        )

    @property
    def image(self) -> MetadataImage:
        return self.replayer.image

    def _committed(self, committed: Committed) -> None:
        for offset, record in committed.records:
            self.replayer.replay(offset, committed.epoch, record)
        self.replayer.skip(committed.last_offset, committed.epoch)
        self.changed.set()

    def _snapshot(self, snapshot: Snapshot) -> None:
        self.snapshots.append(snapshot.id)
        self.changed.set()
        end = snapshot.id
        self.replayer = Replayer(image_of(snapshot.records, offset=end.end_offset - 1, epoch=end.epoch))
        self.changed.set()

    async def until(self, reached: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not reached():
                self.changed.clear()
                await self.changed.wait()


def topics(first: int, end: int) -> list[TopicRecord]:
    return [TopicRecord(name=f"t{n}", topic_id=Uuid.of(1, n)) for n in range(first, end)]


@contextlib.asynccontextmanager
async def listening(controller: Controller, port: int = 0) -> AsyncIterator[Server]:
    server = await serve("127.0.0.1", port, controller.handle, apis=APIS, clock=CLOCK, log=structlog.get_logger("test"))
    controller.port = server.port
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[Controller]:
    log = await MetadataLog.open(tmp_path / "__cluster_metadata-0")
    yield Controller(log)
    await log.close()


async def with_running(reader: Reader, body: Callable[[], Awaitable[Any]]) -> None:
    """Run ``body`` while the follower runs; an error of either ends both."""
    async with asyncio.TaskGroup() as group:
        run = group.create_task(reader.follower.run())
        await body()
        run.cancel()


async def test_a_follower_reads_the_whole_log_and_then_each_append(controller: Controller) -> None:
    for first in range(0, 200, 10):
        await controller.append(*topics(first, first + 10))
    async with listening(controller) as server:
        reader = Reader(server.port)

        async def body() -> None:
            await reader.until(lambda: len(reader.image.topics) == 200)
            await controller.append(*topics(200, 201))
            await reader.until(lambda: len(reader.image.topics) == 201)

        await with_running(reader, body)
    assert reader.leaders == [Leader(3000, 1, "127.0.0.1", controller.port)]
    assert reader.image.offset == 200
    assert reader.follower.applied_offset == reader.follower.high_watermark == 201


async def test_a_snapshot_that_was_handed_over_is_not_kept_and_nothing_is_handed_over_but_what_is_wanted(
    controller: Controller,
) -> None:
    await controller.append(*topics(0, 100))
    data = encode_checkpoint(header_timestamp_ms=0, kraft=None, records=topics(0, 100), leader_epoch=1)
    controller.snapshot = (SnapshotId(100, 1), data)
    told: list[int] = []
    came = asyncio.Event()

    def take(snapshot: Snapshot) -> None:
        told.append(len(snapshot.records))
        came.set()

    def is_wanted(record: Record) -> bool:
        return isinstance(record, TopicRecord) and record.name != "t5"

    async with listening(controller) as server:
        follower = MetadataFollower(
            [("127.0.0.1", server.port)],
            client_id="7",
            clock=CLOCK,
            rng=random.Random(5),
            on_committed=lambda committed: None,
            on_snapshot=take,
            wanted=is_wanted,
            cluster_id=CLUSTER,
        )
        running = asyncio.create_task(follower.run())
        await asyncio.wait_for(came.wait(), 60)
        await asyncio.sleep(0)
        kept = [one for one in gc.get_objects() if isinstance(one, TopicRecord) and re.fullmatch(r"t\d+", one.name)]
        running.cancel()
        await asyncio.wait([running])
    assert told == [99] and not kept


async def test_a_follower_starts_from_a_snapshot(controller: Controller) -> None:
    await controller.append(*topics(0, 100))
    data = encode_checkpoint(header_timestamp_ms=0, kraft=None, records=topics(0, 60), leader_epoch=1)
    controller.snapshot = (SnapshotId(100, 1), data)
    await controller.append(*topics(100, 103))
    async with listening(controller) as server:
        reader = Reader(server.port)
        await with_running(reader, lambda: reader.until(lambda: reader.image.offset == 102))
    assert reader.snapshots == [SnapshotId(100, 1)]
    assert len(reader.image.topics) == 63


async def test_a_bad_snapshot_is_fetched_again(controller: Controller) -> None:
    await controller.append(*topics(0, 100))
    data = encode_checkpoint(header_timestamp_ms=0, kraft=None, records=topics(0, 60), leader_epoch=1)
    controller.snapshot = (SnapshotId(100, 1), data)
    controller.bad_snapshots = 2
    async with listening(controller) as server:
        reader = Reader(server.port)
        await with_running(reader, lambda: reader.until(lambda: reader.image.offset == 99))
    assert controller.bad_snapshots == 0
    assert reader.snapshots == [SnapshotId(100, 1)]


async def test_a_snapshot_with_records_that_are_not_known_is_downloaded_once(controller: Controller) -> None:
    log = NewerLog((*map(encode_record, topics(0, 60)), value_of(30, 0), value_of(99, 4), value_of(3, 3)), ())
    await controller.append(*topics(0, 100))
    controller.snapshot = (SnapshotId(100, 1), log.checkpoint())
    async with listening(controller) as server:
        reader = Reader(server.port)
        await with_running(reader, lambda: reader.until(lambda: reader.image.offset == 99))
    assert reader.snapshots == [SnapshotId(100, 1)]
    assert reader.image.newer.counts == {(30, 0): 1, (99, 4): 1, (3, 3): 1}


async def test_a_snapshot_that_contradicts_itself_ends_nothing_and_another_one_is_used(controller: Controller) -> None:
    await controller.append(*topics(0, 100))
    twice = [*topics(0, 60), *topics(0, 1)]
    data = [
        encode_checkpoint(header_timestamp_ms=0, kraft=None, records=records, leader_epoch=1)
        for records in (twice, topics(0, 60))
    ]
    controller.snapshot = (SnapshotId(100, 1), data[0])
    async with listening(controller) as server:
        reader = Reader(server.port)

        async def body() -> None:
            await reader.until(lambda: bool(reader.snapshots))
            controller.snapshot = (SnapshotId(100, 1), data[1])
            await reader.until(lambda: reader.image.offset == 99)

        await with_running(reader, body)
    assert len(reader.image.topics) == 60
    assert reader.follower.problem is None


async def test_a_follower_survives_a_controller_that_comes_back_with_a_new_epoch(controller: Controller) -> None:
    await controller.append(*topics(0, 3))
    async with listening(controller) as server:
        port = server.port
        reader = Reader(port)

        async def body() -> None:
            await reader.until(lambda: reader.image.offset == 2)
            await server.close()
            controller.epoch = 2
            async with listening(controller, port):
                await controller.append(*topics(3, 4))
                await reader.until(lambda: reader.image.offset == 3)

        await with_running(reader, body)
    assert [leader.epoch for leader in reader.leaders if leader is not None] == [1, 2]
    assert reader.image.epoch == 2


async def test_a_follower_finds_the_leader_though_other_servers_are_down(controller: Controller) -> None:
    await controller.append(*topics(0, 1))
    async with listening(controller) as gone:
        dead = gone.port
    async with listening(controller) as server:
        reader = Reader(dead, dead, dead, server.port)
        await with_running(reader, lambda: reader.until(lambda: reader.image.offset == 0))
    assert reader.leaders == [Leader(3000, 1, "127.0.0.1", controller.port)]


async def test_a_controller_of_another_cluster_ends_the_follower_with_one_clear_line(controller: Controller) -> None:
    async with listening(controller) as server:
        reader = Reader(server.port, cluster_id="elsewhere")
        with pytest.raises(InconsistentClusterError, match="belongs to another cluster than elsewhere"):
            async with asyncio.timeout(60):
                await reader.follower.run()


async def test_an_error_of_a_callback_ends_the_follower(controller: Controller) -> None:
    await controller.append(*topics(0, 1))
    async with listening(controller) as server:
        reader = Reader(server.port)
        reader.replayer.image.replay(topics(0, 1)[0])  # so that the record from the log contradicts it
        with pytest.raises(Exception, match="exists already"):
            async with asyncio.timeout(60):
                await reader.follower.run()
