"""Replicas are copied between real directories by real workers, while another process writes to the source."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.faults.disks import FILE_SYSTEMS, FaultMode, RealDisk
from kjbod.ids import Uuid
from kjbod.runtime.waiting import process_sleep
from kjbod_agent.moves.copying import CopyFailed, ReplicaCopy, carry_checkpoints, new_buffer
from kjbod_host.storage.api import BlockedCall, DirectoryError, DirectoryTimeout, StorageOptions, WorkerUnavailable
from kjbod_host.storage.conformance import TIMEOUT_MS, errno_of
from kjbod_host.storage.posix import PosixDirectoryAgent, PosixStorageAgent
from scripts.rig.processes import wait_until
from tests.agent.storage.worker_pids import pid_of

TOPIC = Uuid.of(3, 1)
SOURCE, FUTURE = "t-0", f"t-0.{'a' * 32}-future"

BROKER = """
import os, random, sys, time
place, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
chunk = rng.randbytes(1 << 20)
base, steps = 0, 0
def path(base, suffix):
    return f"{place}/{base:020d}.{suffix}"
def roll():
    open(path(base, "log"), "wb").close()
    with open(path(base, "index"), "wb") as index:
        index.truncate(1 << 20)
roll()
print("ready", flush=True)
while not os.path.exists(sys.argv[3]) and steps < 100_000:
    steps += 1
    what = rng.random()
    size = os.path.getsize(path(base, "log"))
    bases = sorted(int(name[:20]) for name in os.listdir(place) if name.endswith(".log"))
    if what < 0.80:
        with open(path(base, "log"), "ab") as log:
            log.write(chunk[rng.randrange(1 << 19):][: rng.randrange(1, 1 << 19)])
        with open(path(base, "index"), "r+b") as index:
            index.seek(8 * (size >> 16))
            index.write(b"%08d" % (steps % 10**8))
    elif what < 0.90:
        with open(path(base, "index"), "r+b") as index:
            index.truncate(8 * (1 + (size >> 16)))
        base += 1 + steps
        roll()
    elif what < 0.95 and len(bases) > 2:
        for suffix in ("log", "index"):
            os.unlink(path(bases[0], suffix))
    elif size:
        os.truncate(path(base, "log"), rng.randrange(size))
    with open(f"{place}/leader-epoch-checkpoint.tmp", "w") as file:
        file.write(f"0\\n1\\n{steps} {base}\\n")
    os.replace(f"{place}/leader-epoch-checkpoint.tmp", f"{place}/leader-epoch-checkpoint")
    time.sleep(0.002)
"""


@contextlib.asynccontextmanager
async def started(*paths: Path) -> AsyncIterator[tuple[PosixStorageAgent, list[PosixDirectoryAgent]]]:
    storage = PosixStorageAgent(StorageOptions(clock=SystemClock()))
    await storage.start()
    try:
        agents = [storage.directory(str(path)) for path in paths]
        for agent in agents:
            await agent.load(timeout_ms=TIMEOUT_MS)
        yield storage, agents
    finally:
        await storage.close()


@contextlib.asynccontextmanager
async def moving(tmp_path: Path) -> AsyncIterator[tuple[PosixStorageAgent, list[PosixDirectoryAgent], Path, Path]]:
    """Two directories, a replica in one and its future one in the other."""
    for name in ("d1", "d2"):
        (tmp_path / name).mkdir()
    async with started(tmp_path / "d1", tmp_path / "d2") as (storage, agents):
        await agents[0].create_replica("t", 0, TOPIC, timeout_ms=TIMEOUT_MS)
        await agents[1].create_future(FUTURE, TOPIC, timeout_ms=TIMEOUT_MS)
        yield storage, agents, tmp_path / "d1" / SOURCE, tmp_path / "d2" / FUTURE


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


async def stop_within_a_request(agent: PosixDirectoryAgent, pid: int) -> None:
    """SIGSTOP to a worker that has taken a request, of which no answer is on its way: between two it would just be
    replaced."""
    seen: list[BlockedCall | None] = [None]

    def stopped() -> bool:
        """The same request at two looks in a row: what was answered is read in between."""
        seen.append(agent.blocked())
        before, now = seen[-2:]
        return before is not None and now is not None and before.number == now.number and before.process_state == "T"

    while True:
        os.kill(pid, signal.SIGSTOP)
        await until(stopped)
        if (now := seen[-1]) is not None and now.call:
            return
        os.kill(pid, signal.SIGCONT)


def contents(place: Path) -> dict[str, tuple[bytes, int]]:
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in place.iterdir()
        if "metadata" not in path.name
    }


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_copy_keeps_up_with_a_process_that_appends_rolls_deletes_and_truncates(
    tmp_path: Path, seed: int
) -> None:
    async with moving(tmp_path) as (storage, (source, destination), there, here):
        end = tmp_path / "end"
        command = [sys.executable, "-c", BROKER, str(there), str(seed), str(end)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as broker:  # noqa: ASYNC220
            assert broker.stdout is not None and broker.stdout.readline() == b"ready\n"
            copy = ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage))
            for number in range(12):
                await copy.catch_up()
                if number % 4 == 3:  # another process goes on
                    copy = ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage))
            assert broker.poll() is None
            end.touch()
            broker.wait(60)
        passes = 0
        while not await copy.catch_up():
            passes += 1
            assert passes < 3
        assert contents(here) == contents(there)
        assert any(content for content, _ in contents(here).values())
        size = sum(len(content) for content, _ in contents(there).values())
        assert copy.progress.verified_bytes == copy.progress.total_bytes == size


@pytest.mark.usefixtures("world")
async def test_holes_stay_holes_and_nothing_else_takes_room(tmp_path: Path) -> None:
    async with moving(tmp_path) as (storage, (source, destination), there, here):
        data = random.Random(1).randbytes(3 << 20)
        with (there / f"{0:020d}.index").open("wb") as index:
            index.write(data[:5000])
            index.truncate(50 << 20)
        with (there / f"{0:020d}.log").open("wb") as log:
            log.seek(20 << 20)
            log.write(data)
            log.seek(7 << 20, os.SEEK_CUR)
            log.write(data[:1])
        assert await ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage)).catch_up()
        assert contents(here) == contents(there)
        copied = await destination.list_files(FUTURE, timeout_ms=TIMEOUT_MS)
        assert sum(status.allocated for status in copied) < 4 << 20
        # What is no hole any more, and what became one.
        with (there / f"{0:020d}.log").open("r+b") as log:
            log.write(data)
        with (there / f"{0:020d}.index").open("r+b") as index:
            index.truncate(0)
            index.truncate(50 << 20)
        assert await ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage)).catch_up()
        assert contents(here) == contents(there)
        copied = await destination.list_files(FUTURE, timeout_ms=TIMEOUT_MS)
        assert sum(status.allocated for status in copied) < 7 << 20


@pytest.mark.usefixtures("world")
async def test_a_killed_worker_ends_a_pass_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with moving(tmp_path) as (storage, (source, destination), there, here):
        data = random.Random(1).randbytes(40 << 20)
        for base in range(4):
            (there / f"{base:020d}.log").write_bytes(data)
        for victim in (source, destination):
            copy = ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage))
            passing = asyncio.ensure_future(copy.catch_up())
            await until(lambda copy=copy: copy.progress.copied_bytes >= 8 << 20)  # type: ignore[misc]
            pid = await pid_of(victim)
            await stop_within_a_request(victim, pid)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(CopyFailed) as caught:
                await passing
            assert caught.value.side == ("source" if victim is source else "destination")
            assert isinstance(caught.value.error, WorkerUnavailable)
        copy = ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage))
        assert await copy.catch_up()
        assert contents(here) == contents(there)


def mapped(pid: int) -> str:
    return "".join(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines(True) if "kjbod-copy" in line)


@pytest.mark.usefixtures("world")
async def test_workers_give_the_memory_of_a_copy_back_with_the_next_probe(tmp_path: Path) -> None:
    async with moving(tmp_path) as (storage, agents, there, _):
        (there / f"{0:020d}.log").write_bytes(bytes(1 << 20) + b"x" * (9 << 20))
        before = [sorted(os.listdir(f"/proc/{agent.worker_pid}/fd")) for agent in agents]
        buffer = new_buffer(storage)
        assert await ReplicaCopy(agents[0], SOURCE, agents[1], FUTURE, buffer=buffer).catch_up()
        assert all(mapped(agent.worker_pid) for agent in agents)
        buffer.close()
        for agent in agents:
            await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
        assert [mapped(agent.worker_pid) for agent in agents] == ["", ""]
        assert [sorted(os.listdir(f"/proc/{agent.worker_pid}/fd")) for agent in agents] == before


@pytest.mark.usefixtures("world")
async def test_a_buffer_that_was_closed_too_early_is_no_trouble_of_the_disk_nor_of_its_worker(tmp_path: Path) -> None:
    async with moving(tmp_path) as (storage, (source, _), there, _here):
        (there / f"{0:020d}.log").write_bytes(b"data")
        pid = source.worker_pid
        buffer = new_buffer(storage)
        buffer.close()
        with pytest.raises(WorkerUnavailable, match="the copy buffer was closed"):
            await source.read_piece(buffer, 0, SOURCE, f"{0:020d}.log", 0, 4, timeout_ms=TIMEOUT_MS)
        await source.probe(full=False, timeout_ms=TIMEOUT_MS)
        assert source.worker_pid == pid
        with pytest.raises(ValueError, match="whole pages"):
            storage.copy_buffer(1, 1000)


@contextlib.asynccontextmanager
async def stopped(agent: PosixDirectoryAgent) -> AsyncIterator[None]:
    """Meanwhile its worker takes up nothing."""
    pid = await pid_of(agent)
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: process_sleep(pid)[0] == "T")
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.usefixtures("world")
async def test_a_worker_has_two_pieces_of_a_copy_at_most_and_a_probe_goes_before_the_rest(tmp_path: Path) -> None:
    async with moving(tmp_path) as (storage, (source, _), there, _here):
        (there / f"{0:020d}.log").write_bytes(bytes(range(200)))
        buffer = new_buffer(storage)
        answered: list[str] = []

        async def told(name: str, work: Coroutine[Any, Any, object]) -> None:
            await work
            answered.append(name)

        def piece(slot: int) -> Coroutine[Any, Any, object]:
            return source.read_piece(buffer, slot, SOURCE, f"{0:020d}.log", slot, 9, timeout_ms=TIMEOUT_MS)

        async with asyncio.TaskGroup() as asked, stopped(source):
            for slot in range(4):
                asked.create_task(told(f"piece {slot}", piece(slot)))
            await asyncio.sleep(0)
            asked.create_task(told("probe", source.probe(full=False, timeout_ms=TIMEOUT_MS)))
            await asyncio.sleep(0)
            first = source.blocked()
            assert first is not None and first.operation == "read_piece"
        assert answered == ["piece 0", "piece 1", "probe", "piece 2", "piece 3"]


@pytest.mark.usefixtures("world")
async def test_pieces_that_reach_a_worker_together_each_get_their_own_buffer(tmp_path: Path) -> None:
    async with moving(tmp_path) as (storage, (source, destination), there, here):
        (there / f"{0:020d}.log").write_bytes(b"abcdef")
        buffers = [new_buffer(storage) for _ in range(2)]
        closed = new_buffer(storage)
        file = f"{0:020d}.log"
        async with asyncio.TaskGroup() as asked, stopped(source):
            checksum = source.checksum(SOURCE, file, 0, 6, cold=False, timeout_ms=TIMEOUT_MS)
            before = asked.create_task(checksum)
            reads = [
                asked.create_task(source.read_piece(buffer, 0, SOURCE, file, 3 * number, 3, timeout_ms=TIMEOUT_MS))
                for number, buffer in enumerate(buffers)
            ]
            late = asyncio.ensure_future(source.read_piece(closed, 0, SOURCE, file, 0, 3, timeout_ms=TIMEOUT_MS))
            await asyncio.sleep(0)
            closed.close()
        assert before.result().length == 6
        with pytest.raises(WorkerUnavailable, match="the copy buffer was closed"):
            await late
        async with asyncio.TaskGroup() as asked, stopped(destination):
            for number, (buffer, read) in enumerate(zip(buffers, reads, strict=True)):
                writing = destination.write_piece(
                    buffer, 0, FUTURE, file, 3 * number, read.result(), timeout_ms=TIMEOUT_MS
                )
                asked.create_task(writing)
            await asyncio.sleep(0)
        assert (here / file).read_bytes() == b"abcdef"


@pytest.mark.usefixtures("world")
async def test_two_pieces_on_their_way_are_lost_with_their_worker_and_late_after_their_time(tmp_path: Path) -> None:
    async with moving(tmp_path) as (storage, (source, _), there, _here):
        (there / f"{0:020d}.log").write_bytes(b"abcdef")
        buffer = new_buffer(storage)
        late: list[int] = []
        source.on_late_answer = lambda answer: late.append(answer.number)

        def pieces(timeout_ms: int) -> list[asyncio.Future[object]]:
            file = f"{0:020d}.log"
            return [
                asyncio.ensure_future(source.read_piece(buffer, slot, SOURCE, file, 0, 6, timeout_ms=timeout_ms))
                for slot in range(2)
            ]

        async with stopped(source):
            asked = pieces(50)
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(error) for error in found] == [WorkerUnavailable] * 2
            assert late == []
        await until(lambda: len(late) == 2)
        assert late == sorted(late)
        assert source.blocked() is None
        async with stopped(source):
            asked = pieces(TIMEOUT_MS)
            await asyncio.sleep(0)
            os.kill(await pid_of(source), signal.SIGKILL)
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(error) for error in found] == [WorkerUnavailable] * 2
        assert len(late) == 2
        assert len(await asyncio.gather(*pieces(TIMEOUT_MS))) == 2


@pytest.mark.usefixtures("world")
async def test_checkpoints_are_carried_between_real_directories(tmp_path: Path) -> None:
    async with moving(tmp_path) as (_, (source, destination), there, here):
        (there.parent / "replication-offset-checkpoint").write_bytes(b"0\n1\nt 0 5\n")
        await carry_checkpoints(source, destination, "t", 0)
        assert (here.parent / "replication-offset-checkpoint").read_bytes() == b"0\n1\nt 0 5\n"
        assert not (here.parent / "log-start-offset-checkpoint").exists()


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("fstype", FILE_SYSTEMS)
async def test_a_copy_is_equal_on_every_file_system_and_a_damaged_one_is_repaired(
    real_disk: Callable[..., RealDisk], fstype: str
) -> None:
    disks = [real_disk(fstype=fstype) for _ in range(2)]
    async with started(*(disk.log_dir for disk in disks)) as (storage, (source, destination)):
        there, here = disks[0].log_dir / SOURCE, disks[1].log_dir / FUTURE
        await source.create_replica("t", 0, TOPIC, timeout_ms=TIMEOUT_MS)
        await destination.create_future(FUTURE, TOPIC, timeout_ms=TIMEOUT_MS)
        data = random.Random(1).randbytes((5 << 20) + 77)
        (there / f"{0:020d}.log").write_bytes(data)
        with (there / f"{0:020d}.index").open("wb") as index:
            index.write(data[:5000])
            index.truncate(10 << 20)
        assert await ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage)).catch_up()
        assert contents(here) == contents(there)
        copied = await destination.list_files(FUTURE, timeout_ms=TIMEOUT_MS)
        assert sum(status.allocated for status in copied) < 6 << 20
        log = here / f"{0:020d}.log"
        status = log.stat()
        with log.open("r+b") as file:
            file.seek(3 << 20)
            file.write(b"damaged")
        os.utime(log, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert await ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage)).catch_up()
        assert contents(here) == contents(there)


@pytest.mark.usefixtures("as_root")
async def test_a_disk_that_loses_writes_is_found_out_before_anything_relies_on_the_copy(
    tmp_path: Path, real_disk: Callable[..., RealDisk]
) -> None:
    disk = real_disk()
    async with started(tmp_path, disk.log_dir) as (storage, (source, destination)):
        await source.create_replica("t", 0, TOPIC, timeout_ms=TIMEOUT_MS)
        (tmp_path / SOURCE / f"{0:020d}.log").write_bytes(random.Random(1).randbytes(6 << 20))
        await destination.create_future(FUTURE, TOPIC, timeout_ms=TIMEOUT_MS)
        disk.set(FaultMode.LOSE_WRITES)
        with pytest.raises(CopyFailed) as caught:
            await ReplicaCopy(source, SOURCE, destination, FUTURE, buffer=new_buffer(storage)).catch_up()
        assert caught.value.side == "destination"
        assert isinstance(caught.value.error, DirectoryError)


@pytest.mark.usefixtures("as_root")
async def test_a_replaced_disk_is_worked_on_while_the_worker_of_the_old_one_is_stuck(
    real_disk: Callable[..., RealDisk],
) -> None:
    disk = real_disk()
    path = str(disk.log_dir)
    async with started(disk.log_dir) as (storage, (old,)):
        await old.lock(timeout_ms=TIMEOUT_MS)
        await old.probe(full=True, timeout_ms=TIMEOUT_MS)
        stuck = old.worker_pid
        disk.set(FaultMode.HANG_WRITES)
        try:
            with pytest.raises(DirectoryTimeout):
                await old.probe(full=False, timeout_ms=1_000)
            waiting = asyncio.ensure_future(old.probe(full=False, timeout_ms=TIMEOUT_MS))
            await asyncio.sleep(0)
            again = storage.renew(path)
            with pytest.raises(WorkerUnavailable, match="the disk was replaced"):
                await waiting
            assert process_sleep(stuck)[0] == "D"
            with pytest.raises(DirectoryTimeout, match=f"pid {stuck}"):  # nobody has replaced it yet
                await again.load(timeout_ms=500)
            disk.unmount()
            other = real_disk(disk.mount_point)
            new = storage.renew(path)
            await new.load(timeout_ms=TIMEOUT_MS)
            await new.lock(timeout_ms=TIMEOUT_MS)
            await new.probe(full=True, timeout_ms=TIMEOUT_MS)
            assert process_sleep(stuck)[0] == "D"
            second = PosixStorageAgent(StorageOptions(clock=SystemClock()))
            await second.start()
            assert await errno_of(second.directory(path).lock(timeout_ms=TIMEOUT_MS)) is not None
            await second.close()
            assert other.log_dir == disk.log_dir
        finally:
            disk.set(FaultMode.OK)
    wait_until(lambda: process_sleep(stuck)[0] in ("", "Z"), 10, "end of the stuck worker")
