"""The disk under the controller's directory fails, hangs or fills: it ends with one line, and loses nothing it said."""

import asyncio
import contextlib
import dataclasses
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import StorageError
from kjbod.faults import syscalls
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.wire.client import Connection, Disconnected
from kjbod.wire.messages import MetadataRequest
from kjbod_controller_stub.log import directory_watch, probe
from kjbod_controller_stub.log.directory_watch import DirectoryHungError, DirectoryWatch
from scripts.rig.cluster import format_node
from scripts.rig.kafka import controller_properties
from scripts.rig.processes import ManagedProcess, Processes, free_port
from tests.controller.conftest import until
from tests.controller.test_server import connect, create, join
from tests.controller.world import CLUSTER_ID

# ---- the watch alone


@dataclasses.dataclass
class Writer:
    writes: int = 0
    writing: bool = False


def watching(directory: Path, timeout_ms: int = 60_000) -> DirectoryWatch:
    found = directory.stat()
    identity = (found.st_dev, found.st_ino)
    return DirectoryWatch(directory, identity, interval_ms=10, timeout_ms=timeout_ms, clock=SystemClock())


@pytest.mark.usefixtures("world")
async def test_a_directory_that_is_well_is_only_probed(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await watching(tmp_path).run(Writer())
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("world")
async def test_a_directory_that_is_gone_or_another_one_has_failed(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    one = watching(directory)
    (tmp_path / "other").mkdir()
    directory.rmdir()
    (tmp_path / "other").rename(directory)
    with pytest.raises(StorageError, match=f"{directory} has failed since .*another directory"):
        await one.run(Writer())
    directory.rmdir()
    with pytest.raises(StorageError, match=f"{directory} has failed since .*No such file"):
        await one.run(Writer())


@pytest.mark.usefixtures("world")
async def test_a_probe_or_a_write_that_does_not_come_back_is_told_with_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "child.py"
    monkeypatch.setattr(probe, "__file__", str(told))
    told.write_text("import sys\nprint('ready', flush=True)\nfor _ in sys.stdin:\n    print('ok', flush=True)\n")
    with pytest.raises(DirectoryHungError, match=f"a write to the metadata log in {tmp_path} has not come back since"):
        await watching(tmp_path, timeout_ms=500).run(Writer(writing=True))
    told.write_text("import sys\nprint('ready', flush=True)\nsys.stdin.read()\n")
    with pytest.raises(DirectoryHungError, match=f"{tmp_path} has not answered a probe since 20"):
        await watching(tmp_path, timeout_ms=200).run(Writer())


@pytest.mark.usefixtures("world")
async def test_a_child_that_is_killed_says_nothing_about_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_watch, "_RESTART_PAUSE_S", 0.0)
    one = watching(tmp_path)

    async def kill_some() -> None:
        for _ in range(3):
            await until(lambda: one._child is not None)
            killed = one._child
            assert killed is not None
            killed.kill()
            await until(lambda: one._child is not killed)  # noqa: B023

    running = asyncio.ensure_future(one.run(Writer()))
    await kill_some()
    assert not running.done()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


# ---- the process on a real disk


@dataclasses.dataclass(slots=True)
class Rig:
    """A formatted directory on a disk of its own."""

    processes: Processes
    disk: RealDisk
    config: Path
    port: int

    def start(self) -> ManagedProcess:
        started = self.processes.kjbod("controller", "-c", str(self.config), name="controller")
        started.wait_for_event("controller.started")
        return started

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Connection]:
        connection = await connect(self.port)
        try:
            yield connection
        finally:
            with contextlib.suppress(Disconnected):
                await connection.close()


def rig_on(disk: RealDisk, tmp_path: Path, processes: Processes) -> Rig:
    """A formatted controller's directory on that disk."""
    config, port = tmp_path / "controller.properties", free_port()
    config.write_text(
        controller_properties(3000, port, disk.log_dir)
        + "kjbod.probe.interval.ms=100\nkjbod.probe.timeout.ms=500\nkjbod.blind.timeout.ms=1500\n"
        + "broker.session.timeout.ms=600000\n"
    )
    format_node(config, CLUSTER_ID)
    return Rig(processes, disk, config, port)


@pytest.fixture
def rig(tmp_path: Path, processes: Processes) -> Iterator[Rig]:
    with RealDisk(log_dir="metadata") as disk:
        yield rig_on(disk, tmp_path, processes)


def last_line(process: ManagedProcess) -> str:
    """The one line for a person; there is no traceback."""
    told = [line for line in process.stderr().splitlines() if not line.startswith("{")]
    assert len(told) == 1, told
    return told[0]


def idle(rig: Rig) -> None:
    with rig.config.open("a") as config:
        config.write("metadata.max.idle.interval.ms=0\n")


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda disk: disk.set(FaultMode.EIO), "Input/output error"),
        (lambda disk: disk.set(FaultMode.HANG), "has not answered a probe since"),
        (lambda disk: disk.set(FaultMode.LOSE_WRITES), "what was written does not come back"),
    ],
    ids=["eio", "hang", "lost writes"],
)
def test_an_idle_controller_ends_when_its_disk_dies(rig: Rig, break_it: Callable[[RealDisk], None], words: str) -> None:
    idle(rig)
    controller = rig.start()
    break_it(rig.disk)
    try:
        assert controller.wait(20) == 1
    finally:
        rig.disk.set(FaultMode.OK)
    line = last_line(controller)
    assert words in line
    assert str(rig.disk.log_dir) in line
    assert controller.events("controller.failed")


@pytest.mark.usefixtures("as_root")
async def test_a_controller_whose_fsync_hangs_stops_serving_on_sigterm_and_answers_nothing(rig: Rig) -> None:
    idle(rig)
    with rig.config.open("a") as config:  # it is the signal that ends it, also where that comes late
        config.write("kjbod.probe.timeout.ms=15000\nkjbod.blind.timeout.ms=15000\n")
    controller = await asyncio.to_thread(rig.start)
    async with rig.connected() as connection:
        await join(connection, 1)
        rig.disk.set(FaultMode.HANG)
        asking = asyncio.ensure_future(connection.request(create("t"), timeout_ms=60_000))
        try:
            async with rig.connected():  # answered after the request before was taken
                controller.signal(signal.SIGTERM)
            await asyncio.to_thread(controller.wait_for_event, "controller.abandoned")
            with pytest.raises(Disconnected):
                await asking
            with pytest.raises(Disconnected):
                await connect(rig.port)
        finally:
            rig.disk.set(FaultMode.OK)  # until then the kernel keeps the process, whose thread it holds
        assert await asyncio.to_thread(controller.wait) == 1


async def create_until_it_ends(rig: Rig, prefix: str) -> list[str]:
    """Topics that were acknowledged."""
    acknowledged: list[str] = []
    async with rig.connected() as connection:
        await join(connection, 1)
        with contextlib.suppress(Disconnected):
            for number in range(100_000):
                answer = await connection.request(create(f"{prefix}-{number}", 100), timeout_ms=30_000)
                assert answer.topics[0].error_code == 0
                acknowledged.append(f"{prefix}-{number}")
    return acknowledged


def leave_free(ballast: Path, size_bytes: int) -> None:
    with open(ballast, "wb", buffering=0) as file:
        with contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        file.truncate(file.tell() - size_bytes)
        os.fsync(file.fileno())


async def topics(rig: Rig) -> set[str]:
    async with rig.connected() as connection:
        answer = await connection.request(MetadataRequest(topics=None), timeout_ms=60_000)
        return {topic.name or "" for topic in answer.topics}


@pytest.mark.usefixtures("as_root")
async def test_a_full_disk_ends_it_and_with_space_it_goes_on_with_all_that_was_acknowledged(rig: Rig) -> None:
    controller = rig.start()
    ballast = rig.disk.mount_point / "ballast"
    leave_free(ballast, 100_000)
    acknowledged = await create_until_it_ends(rig, "t")
    assert acknowledged
    assert await asyncio.to_thread(controller.wait) == 1
    assert "No space left on device" in last_line(controller)
    ballast.unlink()
    syscalls.sync_filesystem(rig.disk.mount_point)
    controller = await asyncio.to_thread(rig.start)
    assert await topics(rig) >= set(acknowledged)
    assert await asyncio.to_thread(controller.stop) == 0


@pytest.mark.usefixtures("as_root")
async def test_a_disk_that_fails_while_topics_are_created_loses_none_that_was_acknowledged(rig: Rig) -> None:
    controller = await asyncio.to_thread(rig.start)
    creating = asyncio.ensure_future(create_until_it_ends(rig, "t"))
    while rig.disk.counters().writes < 200:  # noqa: ASYNC110  another process
        await asyncio.sleep(0.01)
    rig.disk.set(FaultMode.EIO_WRITES)
    acknowledged = await creating
    assert acknowledged
    assert await asyncio.to_thread(controller.wait) == 1
    assert "cannot write to the metadata log" in last_line(controller) or "has failed since" in last_line(controller)
    rig.disk.set(FaultMode.OK)
    rig.disk.unmount()
    rig.disk.mount()
    await asyncio.to_thread(rig.start)
    assert await topics(rig) >= set(acknowledged)
