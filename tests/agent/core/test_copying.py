"""A replica is copied, caught up with and proven equal: on disks in memory, where faults and time are at will."""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kjbod.ids import Uuid
from kjbod_agent.moves.copying import (
    STRETCH_SLOTS,
    CopyFailed,
    ReplicaCopy,
    Throttle,
    carry_checkpoints,
)
from kjbod_host.storage.api import DirectoryError, DirectoryTimeout, StorageOptions, WorkerUnavailable
from kjbod_host.storage.checkpoints import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from kjbod_host.storage.memory import MemoryCopyBuffer, MemoryDirectoryAgent, MemoryDisk, MemoryStorageAgent
from tests.agent.conftest import VirtualLoop

Run = Callable[[Callable[[VirtualLoop], Coroutine[Any, Any, None]]], None]
TOPIC = Uuid.of(3, 1)
SOURCE, FUTURE = "t-0", f"t-0.{'a' * 32}-future"
TIMEOUT_MS = 10_000
SLOT = 1000


def segment(base: int, suffix: str = "log") -> str:
    return f"{base:020d}.{suffix}"


class World:
    """A replica of some segments on one disk, its future one on another."""

    def __init__(self, clock: VirtualLoop, *, slots: int = 3) -> None:
        self.disks = {"/d1": MemoryDisk(number=1), "/d2": MemoryDisk(number=2)}
        self.storage = MemoryStorageAgent(StorageOptions(clock=clock), self.disks)
        self.source, self.destination = self.storage.directory("/d1"), self.storage.directory("/d2")
        self.buffer = self.storage.copy_buffer(slots, SLOT)
        self.there = self.disks["/d1"]
        self.here = self.disks["/d2"]

    async def made(self, *throttles: Throttle) -> ReplicaCopy:
        for agent in (self.source, self.destination):
            await agent.load(timeout_ms=TIMEOUT_MS)
        await self.source.create_replica("t", 0, TOPIC, timeout_ms=TIMEOUT_MS)
        await self.destination.create_future(FUTURE, TOPIC, timeout_ms=TIMEOUT_MS)
        self.files.update({segment(base): bytes([base % 256]) * (2 * SLOT + base) for base in range(0, 300, 100)})
        self.files.update({segment(base, "index"): bytes([base % 256 + 1]) * 300 for base in range(0, 300, 100)})
        self.files["leader-epoch-checkpoint"] = b"0\n1\n0 0\n"
        return self.again(*throttles)

    def again(self, *throttles: Throttle) -> ReplicaCopy:
        """A copy that knows nothing of an earlier one."""
        return ReplicaCopy(
            self.source,
            SOURCE,
            self.destination,
            FUTURE,
            buffer=self.buffer,
            throttles=throttles,
            timeout_ms=TIMEOUT_MS,
        )

    @property
    def files(self) -> dict[str, bytes]:
        return self.there.files.setdefault(SOURCE, {})

    @property
    def copied(self) -> dict[str, bytes]:
        return self.here.files.get(FUTURE, {})

    def equal(self) -> bool:
        times = [
            {name: disk.status(replica, name)[2] for name in self.files}
            for disk, replica in ((self.there, SOURCE), (self.here, FUTURE))
        ]
        return self.copied == self.files and times[0] == times[1]

    def count(self, agent: MemoryDirectoryAgent, *operations: str) -> list[tuple[str, str, int]]:
        """What of these is asked from here on: operation, file and offset."""
        asked: list[tuple[str, str, int]] = []
        carry_out = agent._carry_out

        def counted(request: dict[str, Any]) -> Any:
            if request["op"] in operations:
                asked.append((request["op"], request.get("file", ""), request.get("offset", 0)))
            return carry_out(request)

        agent._carry_out = counted  # type: ignore[method-assign]
        return asked


def test_a_replica_is_copied_whole_with_its_times_and_then_nothing_is_left_to_do(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        assert await copy.catch_up()
        assert world.equal()
        size = sum(map(len, world.files.values()))
        progress = copy.progress
        assert (progress.total_bytes, progress.copied_bytes, progress.verified_bytes) == (size, size, size)
        written = world.count(world.destination, "write_piece", "finish_file")
        assert await copy.catch_up()
        assert written == []
        assert copy.progress == progress

    virtual(main)


def test_the_log_of_the_future_replica_grows_from_its_begin(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock, slots=1)
        copy = await world.made()
        written = world.count(world.destination, "write_piece")
        await copy.catch_up()
        names = list(dict.fromkeys(file for _, file, _ in written))
        logs = [segment(base, suffix) for base in range(0, 300, 100) for suffix in ("index", "log")]
        assert names == [*logs, "leader-epoch-checkpoint"]

    virtual(main)


def test_of_an_appended_file_only_the_tail_is_written(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        await copy.catch_up()
        world.files[segment(200)] += b"more" * 500
        written = world.count(world.destination, "write_piece")
        assert await copy.catch_up()
        assert world.equal()
        assert sorted(written) == [("write_piece", segment(200), offset) for offset in (2 * SLOT, 3 * SLOT, 4 * SLOT)]

    virtual(main)


def test_what_was_cut_and_grew_again_is_not_taken_for_grown(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        await copy.catch_up()
        log = world.files[segment(200)]
        world.files[segment(200)] = log[:1500] + b"another epoch" * 100
        assert await copy.catch_up()
        assert world.equal()

    virtual(main)


@pytest.mark.parametrize("new_copy", [False, True], ids=["same copy", "after a restart"])
def test_deleted_truncated_replaced_and_new_files_are_so_in_the_future_replica_too(
    virtual: Run, new_copy: bool
) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        await copy.catch_up()
        del world.files[segment(0)], world.files[segment(0, "index")]
        world.files[segment(100)] = world.files[segment(100)][:-SLOT]
        world.files[segment(200, "index")] = b"other"
        world.there.inodes.pop((SOURCE, segment(200, "index")))
        world.files[segment(300)] = b"rolled"
        world.files[segment(300, "txnindex")] = b""
        copy = world.again() if new_copy else copy
        assert await copy.catch_up()
        assert world.equal()

    virtual(main)


def test_a_copy_that_was_begun_by_another_process_goes_on_where_it_differs(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        await copy.catch_up()
        content = bytearray(world.copied[segment(100)])
        content[1500] ^= 1
        world.here.files[FUTURE][segment(100)] = bytes(content)
        world.here.files[FUTURE][segment(200)] = world.copied[segment(200)][:1200]
        written = world.count(world.destination, "write_piece")
        assert await world.again().catch_up()
        assert world.equal()
        assert sorted(written) == [
            ("write_piece", segment(100), SLOT),
            ("write_piece", segment(200), SLOT),
            ("write_piece", segment(200), 2 * SLOT),
        ]

    virtual(main)


def test_a_source_that_changes_during_the_pass_is_not_called_equal(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        world.there.delay_ms = 10
        passing = asyncio.ensure_future(copy.catch_up())
        await asyncio.sleep(0.05)
        world.files[segment(200)] += b"late"
        assert not await passing
        assert await copy.catch_up()
        assert world.equal()

    virtual(main)


def test_files_that_get_shorter_or_go_during_the_pass_are_no_failure(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock, slots=1)
        copy = await world.made()
        world.there.delay_ms = 10
        passing = asyncio.ensure_future(copy.catch_up())
        await asyncio.sleep(0.05)
        world.files[segment(100)] = b"short"
        del world.files[segment(200)]
        assert not await passing
        assert await copy.catch_up()
        assert world.equal()

    virtual(main)


@pytest.mark.parametrize(
    ("side", "operation"),
    [
        ("source", "list_files"),
        ("source", "checksum"),
        ("source", "read_piece"),
        ("destination", "list_files"),
        ("destination", "checksum"),
        ("destination", "write_piece"),
        ("destination", "finish_file"),
    ],
)
def test_a_failure_says_whose_it_is_and_the_next_pass_goes_on(virtual: Run, side: str, operation: str) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        disk = world.there if side == "source" else world.here
        disk.fail(errno.EIO, [operation])
        with pytest.raises(CopyFailed) as caught:
            await copy.catch_up()
        assert caught.value.side == side
        assert isinstance(caught.value.error, DirectoryError)
        assert caught.value.error.errno == errno.EIO
        disk.heal()
        assert await copy.catch_up()
        assert world.equal()

    virtual(main)


def test_a_medium_that_does_not_give_back_what_was_written_is_found_out(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        put = world.here.put

        def damaging(name: str, file: str, content: bytes, mtime_ns: int | None = None) -> None:
            put(name, file, content.replace(b"\x64", b"\x65", 1) if mtime_ns else content, mtime_ns)

        world.here.put = damaging  # type: ignore[method-assign]
        with pytest.raises(CopyFailed) as caught:
            await copy.catch_up()
        assert caught.value.side == "destination"
        assert isinstance(caught.value.error, DirectoryError)
        assert caught.value.error.errno == errno.EILSEQ
        assert "comparison of" in str(caught.value)

    virtual(main)


def test_a_full_destination_is_a_failure_of_the_destination(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        world.here.usable_bytes = 3000
        with pytest.raises(CopyFailed) as caught:
            await copy.catch_up()
        assert caught.value.side == "destination"
        assert isinstance(caught.value.error, DirectoryError)
        assert caught.value.error.errno == errno.ENOSPC

    virtual(main)


def test_a_future_replica_of_another_topic_is_refused_before_anything_is_written(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        copy = await world.made()
        world.here.directories[FUTURE] = f"version: 0\ntopic_id: {Uuid.of(3, 2)}".encode()
        with pytest.raises(CopyFailed, match="EEXIST at comparison of") as caught:
            await copy.catch_up()
        assert caught.value.side == "destination"
        assert world.copied == {}

    virtual(main)


def test_a_directory_that_hangs_ends_the_pass_and_no_slot_that_it_may_still_use_is_used_again(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock, slots=2)
        copy = await world.made()
        world.there.delay_ms = 5
        passing = asyncio.ensure_future(copy.catch_up())
        await asyncio.sleep(0.03)
        world.there.hang()
        with pytest.raises(CopyFailed) as caught:
            await passing
        assert caught.value.side == "source"
        assert isinstance(caught.value.error, DirectoryTimeout)
        world.there.heal()
        with pytest.raises(CopyFailed, match="begin anew with another") as caught:
            await copy.catch_up()
        assert isinstance(caught.value.error, WorkerUnavailable)
        world.buffer = world.storage.copy_buffer(2, SLOT)
        assert await world.again().catch_up()
        assert world.equal()

    virtual(main)


def test_a_copy_may_be_cancelled_at_any_moment_and_goes_on(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        for moment in range(60):
            world = World(clock, slots=200)
            copy = await world.made()
            world.there.delay_ms, world.here.delay_ms = 3, 2
            passing = asyncio.ensure_future(copy.catch_up())
            await asyncio.sleep(moment / 1000)
            passing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await passing
            assert await copy.catch_up()
            assert world.equal()

    virtual(main)


def test_a_pass_that_was_broken_off_tells_whether_the_future_replica_may_have_a_part_of_what_is_new(
    virtual: Run,
) -> None:
    async def main(clock: VirtualLoop) -> None:
        told = set()
        for moment in range(60):
            world = World(clock)
            copy = await world.made()
            assert await copy.catch_up()
            assert not copy.progress.changed
            before = dict(world.copied)
            world.files[segment(200)] += bytes(9 * SLOT)
            world.files[segment(300)] = bytes(9 * SLOT)
            world.there.delay_ms, world.here.delay_ms = 3, 2
            passing = asyncio.ensure_future(copy.catch_up())
            await asyncio.sleep(moment / 1000)
            passing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await passing
            progress = copy.progress
            assert progress.changed or world.copied == before
            told.add(progress.changed)
        assert told == {False, True}

    virtual(main)


def test_reading_writing_and_comparing_overlap(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock, slots=4)
        copy = await world.made()
        world.files.clear()
        world.files.update({segment(base): bytes([base]) * (20 * SLOT) for base in range(5)})
        world.there.delay_ms = world.here.delay_ms = 10
        began = clock.time()
        assert await copy.catch_up()
        # The destination writes and reads back 100 pieces, and finishes 5 files: 2,050 ms when it never waits.
        assert clock.time() - began < 2.05 * 1.15

    virtual(main)


def test_a_large_file_is_made_durable_and_read_back_while_the_rest_of_it_is_copied(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        for slots in (1, 3, 8):
            world = World(clock, slots=slots)
            copy = await world.made()
            world.files.clear()
            pieces = 3 * STRETCH_SLOTS + 5
            world.files[segment(0)] = b"".join(bytes([number]) * SLOT for number in range(pieces))
            world.there.delay_ms, world.here.delay_ms = 2, 1
            asked = world.count(world.destination, "write_piece", "finish_file", "checksum")
            assert await copy.catch_up()
            assert world.equal()
            assert copy.progress.verified_bytes == pieces * SLOT
            steps = [(operation, offset) for operation, file, offset in asked if file == segment(0)]
            finished = [number for number, (operation, _) in enumerate(steps) if operation == "finish_file"]
            assert len(finished) == 4
            assert finished[0] < steps.index(("write_piece", (2 * STRETCH_SLOTS) * SLOT))
            for offset in range(0, pieces * SLOT, SLOT):
                written, compared = steps.index(("write_piece", offset)), steps.index(("checksum", offset))
                assert any(written < number < compared for number in finished)

    virtual(main)


def test_a_probe_waits_for_one_piece_at_most_while_a_replica_is_copied(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock, slots=8)
        copy = await world.made()
        world.files.update({segment(base): bytes(50 * SLOT) for base in range(400, 800, 100)})
        world.there.delay_ms = world.here.delay_ms = 100
        passing = asyncio.ensure_future(copy.catch_up())
        while not passing.done():
            for agent in (world.source, world.destination):
                began = clock.time()
                await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
                assert clock.time() - began < 0.21
            await asyncio.sleep(0.033)
        assert passing.result()

    virtual(main)


def test_a_throttle_holds_its_rate_may_be_changed_on_the_way_and_adds_up(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        slow, quick = Throttle(1000), Throttle(1_000_000)
        copy = await world.made(quick, slow)
        size = sum(map(len, world.files.values()))
        began = clock.time()
        assert await copy.catch_up()
        assert clock.time() - began == pytest.approx(size / 1000, abs=1.2)
        world.files[segment(300)] = bytes(20_000)
        passing = asyncio.ensure_future(copy.catch_up())
        await asyncio.sleep(5)
        assert not passing.done()
        slow.rate = None
        assert await passing
        assert clock.time() - began == pytest.approx(size / 1000 + 5, abs=1.3)

    virtual(main)


def test_a_throttle_of_zero_lets_nothing_pass_until_it_is_changed(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        throttle = Throttle(0)
        taking = [asyncio.ensure_future(throttle.take(10)) for _ in range(3)]
        await asyncio.sleep(3600)
        taking.pop(0).cancel()
        assert not any(task.done() for task in taking)
        throttle.rate = 10
        began = clock.time()
        await asyncio.gather(*taking)
        assert clock.time() - began == pytest.approx(1, abs=0.01)

    virtual(main)


def test_checkpoints_go_with_a_replica_and_stale_lines_of_an_older_one_go(virtual: Run) -> None:
    async def main(clock: VirtualLoop) -> None:
        world = World(clock)
        await world.made()
        world.there.checkpoints.update(
            {HIGH_WATERMARK: b"0\n2\nt 0 120\nu 0 1\n", RECOVERY_POINT: b"0\n1\nt 0 100\n", CLEANER: b""}
        )
        world.here.checkpoints.update({LOG_START: b"0\n1\nt 0 77\n", HIGH_WATERMARK: b"0\n1\nv 0 5\n"})
        await carry_checkpoints(world.source, world.destination, "t", 0)
        assert world.here.checkpoints == {
            HIGH_WATERMARK: b"0\n2\nv 0 5\nt 0 120\n",
            RECOVERY_POINT: b"0\n1\nt 0 100\n",
            LOG_START: b"0\n0\n",
        }

    virtual(main)


def test_the_memory_buffer_is_as_large_as_it_says() -> None:
    assert (MemoryCopyBuffer(2, 10).slots, MemoryCopyBuffer(2, 10).slot_bytes) == (2, 10)
