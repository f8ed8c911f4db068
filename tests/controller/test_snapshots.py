"""Snapshots of the controller: when, how, what is kept, starting from one, and serving them."""

import asyncio
import contextlib
import dataclasses
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import structs

from kjbod.clock import SystemClock
from kjbod.errors import StorageError
from kjbod.metadata import live
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.checkpoint_files import checkpoints_in, read_checkpoint
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.follower import MetadataFollower
from kjbod.metadata.image import MetadataImage, Replayer, image_of, shallow_copy
from kjbod.metadata.live import LiveImage, dump_live
from kjbod.metadata.records import NoOpRecord, encode_record
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import FetchSnapshotRequest, FetchSnapshotRequestPartition, FetchSnapshotRequestTopic
from kjbod.wire.messages import SnapshotId as WireSnapshotId
from kjbod_controller_stub.log import snapshots
from kjbod_controller_stub.log.snapshots import Kept, Limits, Trigger, first_kept, piece_bytes
from kjbod_controller_stub.server import ControllerServer
from tests.controller.conftest import Serving, Site, until
from tests.controller.test_server import connect, create, fetch, join, refusal
from tests.controller.world import CLUSTER_ID

LIMITS = Limits(record_bytes=1_000, interval_ms=60_000, retention_bytes=10_000, retention_ms=500_000)

# ---- when, and what is kept


def test_a_snapshot_is_due_after_so_many_bytes_or_so_much_time_since_the_last_one() -> None:
    trigger = Trigger(LIMITS, now_ms=5, replayed_bytes=400)
    assert trigger.due(599, 60_004) is None
    assert trigger.due(600, 5) is not None  # what was replayed at the start counts
    trigger.reset(600, 1_000)
    assert trigger.due(1_599, 60_999) is None
    assert trigger.due(600, 61_000) is not None
    never = Trigger(structs.replace(LIMITS, interval_ms=0), now_ms=0)
    assert never.due(0, 10**12) is None


def kept(*each: tuple[int, int, int]) -> list[Kept]:
    return [Kept(SnapshotId(end, 1), size, timestamp) for end, size, timestamp in each]


@pytest.mark.parametrize(
    ("found", "segments", "expected"),
    [
        ([], [(50, 99_999)], None),
        ([(100, 20_000, 0)], [(100, 20_000), (200, 20_000)], None),  # the newest stays, whatever it takes
        ([(100, 100, 999_000), (200, 100, 999_000)], [(100, 4_000), (200, 5_000)], None),
        ([(100, 100, 999_000), (200, 100, 999_000)], [(150, 4_000), (200, 5_000), (300, 4_000)], 200),
        ([(100, 100, 999_000), (200, 100, 999_000), (250, 100, 999_000)], [(150, 4_000), (200, 5_000), (300, 9)], None),
        ([(100, 100, 499_999), (200, 100, 500_000), (300, 100, 0)], [(400, 10)], 200),
        ([(0, 100, 0), (200, 100, 999_000)], [(400, 10)], 200),  # 0-0 is as old as can be
        ([(100, 100, 0), (200, 100, 0), (300, 100, 0)], [(400, 10)], 300),
    ],
)
def test_old_snapshots_and_what_they_cover_go_by_size_and_by_age(
    found: list[tuple[int, int, int]], segments: list[tuple[int, int]], expected: int | None
) -> None:
    first = first_kept(kept(*found), segments, LIMITS, 1_000_000)
    assert (None if first is None else first.end_offset) == expected
    off = structs.replace(LIMITS, retention_bytes=-1, retention_ms=-1)
    assert first_kept(kept(*found), segments, off, 10**15) is None


def test_many_observers_share_what_is_read_at_a_time() -> None:
    assert piece_bytes(1) * 1 == snapshots.PIECES_BYTES_MAX
    assert piece_bytes(1_000) * 1_000 <= snapshots.PIECES_BYTES_MAX
    assert piece_bytes(10**6) == snapshots.PIECE_BYTES_MIN


# ---- written and started from


def log_path(site: Site) -> Path:
    return site.log_dir / "__cluster_metadata-0"


def names(site: Site) -> set[str]:
    return {path.name for path in log_path(site).iterdir()}


def eager(site: Site, **more: str) -> None:
    """A snapshot after each write, and nothing written by itself."""
    changes = {
        "metadata_log_max_record_bytes_between_snapshots": "1",
        "metadata_max_idle_interval_ms": "600000",
        "broker_session_timeout_ms": "600000",
        "metadata_max_retention_bytes": "-1",
    }
    site.configure(**(changes | more))


async def wait_snapshot(server: ControllerServer) -> SnapshotId:
    """The snapshot of all that was written."""
    wanted = SnapshotId(server.log.end_offset, server.quorum.epoch)
    await until(lambda: server.snapshots.latest == wanted)
    return wanted


def unwritten(image: MetadataImage) -> MetadataImage:
    """Without what a start writes anew."""
    return dataclasses.replace(image, controllers={})


async def test_a_snapshot_has_the_state_and_the_next_start_needs_nothing_else(site: Site, serving: Serving) -> None:
    eager(site)
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await connection.request(create("t", 5), timeout_ms=60_000)
        snapshot = await wait_snapshot(server)
        first = shallow_copy(server.controller.image)
        features_offset = server.controller.features_offset
        voters = server.quorum.voters()
    checkpoint = read_checkpoint(checkpoints_in(log_path(site))[snapshot])
    assert image_of(checkpoint.records) == first
    assert (checkpoint.kraft_version, checkpoint.voters) == (1, voters)
    assert checkpoint.last_contained_log_timestamp_ms > 0
    for path in log_path(site).iterdir():
        if not path.name.endswith(".checkpoint"):
            path.unlink()  # the log too
    eager(site, metadata_log_max_record_bytes_between_snapshots="1000000")
    async with serving(site) as server:
        assert unwritten(server.controller.image) == unwritten(first)
        assert server.log.start_offset == snapshot.end_offset
        assert server.quorum.epoch == snapshot.epoch + 1  # although quorum-state is gone
        assert server.controller.features_offset >= features_offset
    async with serving(site) as server:  # snapshot and log
        assert unwritten(server.controller.image) == unwritten(first)
        assert server.quorum.epoch == snapshot.epoch + 2


async def test_what_a_snapshot_covers_is_removed_and_observers_are_sent_to_the_newest(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(site, metadata_max_retention_bytes="1")
    config = dataclasses.replace(site.config, metadata_log_segment_bytes=500)
    monkeypatch.setattr(Site, "config", config)
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        for number in range(5):
            await connection.request(create(f"t{number}", 5), timeout_ms=60_000)
            snapshot = await wait_snapshot(server)
            await until(lambda: server.log.start_offset == server.log.end_offset)
        await until(lambda: len(checkpoints_in(log_path(site))) == 1)
        logs = sorted(name for name in names(site) if name.endswith(".log"))
        assert len(logs) == 1
        assert int(logs[0].removesuffix(".log")) <= snapshot.end_offset
        for offset in (0, 3):
            told = await fetch(connection, offset, epoch=server.quorum.epoch)
            assert told.snapshot_id == WireSnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch)
            assert told.log_start_offset == snapshot.end_offset
        after = await fetch(connection, snapshot.end_offset, epoch=server.quorum.epoch)
        assert (after.error_code, after.snapshot_id.end_offset, after.records) == (0, -1, b"")
    async with serving(site) as server:
        assert len(server.controller.image.topics) == 5


@contextlib.asynccontextmanager
async def following(port: int, **options: object) -> AsyncIterator[Replayer]:
    """An agent's view of the metadata."""
    replayer = Replayer()

    def committed(batch: Committed) -> None:
        for offset, record in batch.records:
            replayer.replay(offset, batch.epoch, record)
        replayer.skip(batch.last_offset, batch.epoch)

    def snapshot(loaded: Snapshot) -> None:
        replayer.image = image_of(loaded.records, offset=loaded.id.end_offset - 1, epoch=loaded.id.epoch)

    follower = MetadataFollower(
        [("127.0.0.1", port)],
        client_id="7",
        clock=SystemClock(),
        rng=random.Random(1),
        on_committed=committed,
        on_snapshot=snapshot,
        cluster_id=CLUSTER_ID,
        replica_id=7,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(follower.run())
        yield replayer
        running.cancel()


async def test_an_agent_that_starts_late_loads_the_snapshot_piece_by_piece_and_goes_on_with_the_log(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PIECE_BYTES_MIN", 700)
    monkeypatch.setattr(snapshots, "PIECES_BYTES_MAX", 700)
    eager(site, metadata_max_retention_bytes="1")
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await connection.request(create("early", 50), timeout_ms=60_000)
        snapshot = await wait_snapshot(server)
        assert (server.snapshots.size(snapshot) or 0) > 4 * 700
        async with following(server.port) as replayer:
            await until(lambda: "early" in replayer.image.topic_ids)
            await connection.request(create("late"), timeout_ms=60_000)
            await until(lambda: "late" in replayer.image.topic_ids)
            assert replayer.image == server.controller.image


def piece(snapshot_id: SnapshotId, epoch: int, position: int = 0) -> FetchSnapshotRequest:
    partition = FetchSnapshotRequestPartition(
        current_leader_epoch=epoch,
        snapshot_id=WireSnapshotId(end_offset=snapshot_id.end_offset, epoch=snapshot_id.epoch),
        position=position,
    )
    return FetchSnapshotRequest(topics=(FetchSnapshotRequestTopic(partitions=(partition,)),))


async def test_pieces_make_the_file_and_a_snapshot_that_is_gone_is_said_to_be(site: Site, serving: Serving) -> None:
    eager(site)
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        snapshot = await wait_snapshot(server)
        path = log_path(site) / snapshot.file_name
        whole = path.read_bytes()
        request = structs.replace(piece(snapshot, 1), max_bytes=1_000)
        got = b""
        while len(got) < len(whole):
            topic = structs.replace(piece(snapshot, 1, len(got)).topics[0])
            answer = await connection.request(structs.replace(request, topics=(topic,)), timeout_ms=60_000)
            partition = answer.topics[0].partitions[0]
            assert (partition.error_code, partition.size, partition.position) == (0, len(whole), len(got))
            got += partition.unaligned_records
        assert got == whole
        for unknown in (SnapshotId(0, 0), SnapshotId(snapshot.end_offset, 9), SnapshotId(-1, -1)):
            answer = await connection.request(piece(unknown, 1), timeout_ms=60_000)
            assert answer.topics[0].partitions[0].error_code == ErrorCode.SNAPSHOT_NOT_FOUND
        path.unlink()  # by somebody else
        answer = await connection.request(piece(snapshot, 1), timeout_ms=60_000)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.SNAPSHOT_NOT_FOUND


async def test_a_snapshot_ends_where_a_batch_ends_and_only_where_the_log_is_durable(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    eager(site)
    back = threading.Event()
    async with serving(site) as server, await connect(server.port) as one, await connect(server.port) as two:
        await join(one, 1)
        before = await wait_snapshot(server)
        sync = server.log._files.sync
        monkeypatch.setattr(server.log._files, "sync", lambda: (back.wait(), sync()))
        try:
            asking = [asyncio.ensure_future(one.request(create("a"), timeout_ms=30_000))]
            await until(lambda: len(server._deferred) == 1)
            taking = asyncio.ensure_future(server._state())
            await asyncio.sleep(0)
            # Would be written as one batch with the next, were there no snapshot to end between them.
            asking.append(asyncio.ensure_future(two.request(create("b"), timeout_ms=30_000)))
            await until(lambda: len(server._deferred) == 2)
            assert not taking.done()
        finally:
            back.set()
        state = await taking
        await asyncio.gather(*asking)
        assert state.id > before
        assert set(state.image.topic_ids) == {"a"}
        ends = {batch.next_offset async for batch in server.log.batches(0)}
        assert state.id.end_offset in ends


async def test_a_full_disk_costs_the_snapshot_and_nothing_else(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshots, "stream_checkpoint", full)
    eager(site)
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await connection.request(create("t"), timeout_ms=60_000)
        assert server.snapshots.latest is None
        monkeypatch.undo()
        await connection.request(create("u"), timeout_ms=60_000)
        await wait_snapshot(server)


async def test_a_disk_that_fails_under_a_snapshot_ends_the_controller(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    eager(site)
    monkeypatch.setattr(snapshots, "stream_checkpoint", broken)
    server = await ControllerServer.start(site.config, clock=SystemClock(), rng=random.Random(1))
    try:
        with pytest.raises(StorageError, match="Input/output error"):
            await server.run()
    finally:
        await server.close()


# ---- what is in the way at start


async def snapshot_and_log(site: Site, serving: Serving) -> SnapshotId:
    """A directory with one snapshot and a log from 0 that goes beyond it."""
    eager(site)
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await connection.request(create("t"), timeout_ms=60_000)
        snapshot = await wait_snapshot(server)
    for path in list(checkpoints_in(log_path(site)).values())[:-1]:
        path.unlink()
    eager(site, metadata_log_max_record_bytes_between_snapshots="1000000")
    async with serving(site):
        pass
    return snapshot


async def test_left_overs_are_removed_and_nothing_else(site: Site, serving: Serving) -> None:
    snapshot = await snapshot_and_log(site, serving)
    left = [
        f"{9:020d}-{1:010d}.checkpoint.part",
        f"{9:020d}-{1:010d}-1234567.checkpoint.part",
        f"{9:020d}-{1:010d}.checkpoint.deleted",
        f"{0:020d}.log.deleted",
        f"{0:020d}.index.deleted",
        f"{7:020d}.index",
        f"{7:020d}.timeindex",
    ]
    others = [f"{7:020d}.snapshot", "notes.txt"]
    for name in left + others:
        (log_path(site) / name).write_bytes(b"x")
    async with serving(site) as server:
        assert server.snapshots.latest == snapshot
        assert not names(site) & set(left)
        assert names(site) >= set(others)


async def test_a_snapshot_that_is_not_whole_is_refused_with_its_name_and_position(site: Site, serving: Serving) -> None:
    snapshot = await snapshot_and_log(site, serving)
    path = log_path(site) / snapshot.file_name
    whole = path.read_bytes()
    path.chmod(0o600)
    for broken in (whole[:-3], whole[:90], b"", whole[:100] + b"\xff" + whole[101:], whole + whole):
        path.write_bytes(broken)
        before = {name: (log_path(site) / name).read_bytes() for name in names(site)}
        line = await refusal(site)
        assert snapshot.file_name in line
        assert "position" in line
        assert "Nothing was changed: restore" in line
        assert "from the log from its begin" in line
        assert {name: (log_path(site) / name).read_bytes() for name in names(site)} == before


async def test_records_that_are_missing_between_snapshot_and_log_are_named(site: Site, serving: Serving) -> None:
    snapshot = await snapshot_and_log(site, serving)
    for suffix in (".log", ".index", ".timeindex"):
        (log_path(site) / f"{0:020d}{suffix}").rename(log_path(site) / f"{0:020d}{suffix}.away")
    # A log that starts behind the snapshot's end.
    start = snapshot.end_offset + 10
    batch = encode_batch([encode_record(NoOpRecord(), 0)], start, 2, 1_000)
    (log_path(site) / f"{start:020d}.log").write_bytes(batch)
    before = names(site)
    line = await refusal(site)
    assert f"from offset {snapshot.end_offset} to {snapshot.end_offset + 9}" in line
    assert f"{snapshot.end_offset + 10:020d}.log" in line
    assert names(site) == before
    (log_path(site) / snapshot.file_name).unlink()
    assert "there is no snapshot" in await refusal(site)


async def test_who_looks_at_a_running_cluster_sees_what_follows_the_newest_snapshot(
    site: Site, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_POLL_S", 0.0)  # sees each state that there is, however short
    eager(site)
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await wait_snapshot(server)
    eager(site, metadata_log_max_record_bytes_between_snapshots="1000000")
    async with serving(site) as server, await connect(server.port) as connection:
        await connection.request(create("t"), timeout_ms=60_000)
        where = (("127.0.0.1", server.port),)

        def topics_seen() -> set[str]:
            with LiveImage(where, print) as image:
                return set(image.read(lambda loaded: loaded.image.topic_ids))

        def topics_dumped() -> set[str]:
            return {line["data"]["name"] for line in dump_live(where, print) if line.get("type") == "TOPIC_RECORD"}

        for _ in range(2):
            assert await asyncio.to_thread(topics_seen) == {"t"}
            assert await asyncio.to_thread(topics_dumped) == {"t"}


async def test_a_log_that_ends_below_the_snapshot_is_replaced_by_it(site: Site, serving: Serving) -> None:
    eager(site)
    async with serving(site) as server, await connect(server.port) as connection:
        await join(connection, 1)
        await wait_snapshot(server)
        shorter = site.log_file.read_bytes()
        await connection.request(create("t"), timeout_ms=60_000)
        snapshot = await wait_snapshot(server)
    site.log_file.write_bytes(shorter)
    eager(site, metadata_log_max_record_bytes_between_snapshots="1000000")
    async with serving(site) as server:
        assert set(server.controller.image.topic_ids) == {"t"}
        assert server.log.start_offset == snapshot.end_offset
        assert not site.log_file.exists()
    async with serving(site) as server:
        assert set(server.controller.image.topic_ids) == {"t"}
