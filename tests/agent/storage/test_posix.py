"""Worker processes: on a plain directory, and on real disks that really hang."""

import asyncio
import contextlib
import errno
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from msgspec import structs

from kjbod.clock import SystemClock
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.runtime.waiting import process_sleep
from kjbod_host.storage.api import DirectoryTimeout, StorageAgent, StorageOptions, WorkerUnavailable
from kjbod_host.storage.conformance import TIMEOUT_MS, StorageConformance, errno_of
from kjbod_host.storage.posix import PosixDirectoryAgent, PosixStorageAgent

pytestmark = pytest.mark.usefixtures("world")

PATIENCE_S = 60


def made() -> PosixStorageAgent:
    return PosixStorageAgent(StorageOptions(clock=SystemClock()))


async def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE_S} s"
        await asyncio.sleep(0.005)


class InFiles(StorageConformance):
    """What a broker has in a log directory."""

    def write_file(self, path: str, replica: str, file: str, content: bytes) -> None:
        (Path(path) / replica / file).write_bytes(content)

    def read_file(self, path: str, replica: str, file: str) -> bytes | None:
        place = Path(path) / replica / file
        return place.read_bytes() if place.exists() else None


class TestPosix(InFiles):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.place = tmp_path
        self.numbers = itertools.count(1)

    async def storage(self) -> StorageAgent:
        return made()

    def new_directory(self) -> str:
        path = self.place / f"log dir {next(self.numbers)}"
        path.mkdir()
        return str(path)


@pytest.mark.usefixtures("as_root")
class TestPosixOnRealDisks(InFiles):
    @pytest.fixture(autouse=True)
    def _place(self, real_disk: Callable[..., RealDisk]) -> None:
        self.real_disk = real_disk
        self.disks: dict[str, RealDisk] = {}

    async def storage(self) -> StorageAgent:
        return made()

    def new_directory(self) -> str:
        disk = self.real_disk()
        self.disks[str(disk.log_dir)] = disk
        return str(disk.log_dir)

    def hang(self, path: str) -> Callable[[], None] | None:
        self.disks[path].set(FaultMode.HANG)
        return lambda: self.disks[path].set(FaultMode.OK)


@contextlib.asynccontextmanager
async def watched(path: Path) -> AsyncIterator[tuple[PosixStorageAgent, PosixDirectoryAgent]]:
    """A started storage agent with a loaded, locked directory."""
    storage = made()
    await storage.start()
    try:
        agent = storage.directory(str(path))
        await agent.load(timeout_ms=TIMEOUT_MS)
        await agent.lock(timeout_ms=TIMEOUT_MS)
        yield storage, agent
    finally:
        await storage.close()


async def test_a_killed_worker_is_replaced_and_the_lock_was_never_free(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, agent), watched_other(tmp_path) as other:
        await until(lambda: agent.worker_pid != 0, "pid of the worker")
        killed = agent.worker_pid
        os.kill(killed, signal.SIGKILL)
        await until(lambda: agent.worker_pid == 0, "death of the worker")
        assert await errno_of(other.lock(timeout_ms=TIMEOUT_MS)) == errno.EAGAIN
        await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
        assert agent.worker_pid not in (0, killed)


@contextlib.asynccontextmanager
async def watched_other(path: Path) -> AsyncIterator[PosixDirectoryAgent]:
    """The same directory in the eyes of a second storage agent."""
    storage = made()
    await storage.start()
    try:
        yield storage.directory(str(path))
    finally:
        await storage.close()


async def test_a_worker_that_dies_in_the_middle_is_no_error_of_the_disk(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, agent):
        await until(lambda: agent.worker_pid != 0, "pid of the worker")
        os.kill(agent.worker_pid, signal.SIGSTOP)
        probe = asyncio.ensure_future(agent.probe(full=False, timeout_ms=TIMEOUT_MS))
        await until(lambda: agent.blocked() is not None, "request")
        os.kill(agent.worker_pid, signal.SIGKILL)
        with pytest.raises(WorkerUnavailable, match="its worker died"):
            await probe


async def test_a_stopped_worker_is_not_taken_for_a_stuck_disk(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, agent):
        await until(lambda: agent.worker_pid != 0, "pid of the worker")
        os.kill(agent.worker_pid, signal.SIGSTOP)
        await until(lambda: process_sleep(agent.worker_pid)[0] == "T", "stop")
        with pytest.raises(WorkerUnavailable, match=r"took no request for .*process state T"):
            await agent.probe(full=False, timeout_ms=100)
        os.kill(agent.worker_pid, signal.SIGCONT)
        await agent.probe(full=False, timeout_ms=TIMEOUT_MS)


@pytest.mark.parametrize("which", [0, 1], ids=["zygote", "keeper"])
async def test_a_killed_zygote_or_keeper_is_replaced_and_the_lock_taken_again(tmp_path: Path, which: int) -> None:
    said: list[str] = []
    async with watched(tmp_path) as (storage, agent), watched_other(tmp_path) as other:
        storage.options = structs.replace(storage.options, log=lambda event, _fields: said.append(event))
        await until(lambda: len(storage.process_ids()) == 3, "all processes")
        killed = storage.process_ids()[which]
        os.kill(killed, signal.SIGKILL)
        await until(lambda: killed not in storage.process_ids(), "notice of the death")
        assert ("zygote.died" in said) == (which == 0)
        with contextlib.suppress(WorkerUnavailable):  # the zygote's workers die with it, a moment later
            await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
        await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
        assert await errno_of(other.lock(timeout_ms=TIMEOUT_MS)) == errno.EAGAIN


async def test_no_process_holds_a_descriptor_of_the_daemon(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        os.set_inheritable(listener.fileno(), True)
        ours = {os.readlink(f"/proc/self/fd/{fd.fileno()}") for fd in (listener, other)}
        async with watched(tmp_path) as (storage, agent):
            await agent.probe(full=True, timeout_ms=TIMEOUT_MS)
            await until(lambda: len(storage.process_ids()) == 3, "all processes")
            for pid in storage.process_ids():
                theirs = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
                assert not ours & theirs
                assert os.readlink(f"/proc/{pid}/cwd") == "/"
                assert os.getsid(pid) == pid
                assert os.readlink(f"/proc/{pid}/fd/2") == "/dev/null"


async def test_ten_thousand_replicas_are_loaded_and_a_probe_need_not_wait_for_the_end(tmp_path: Path) -> None:
    names = [f"topic-{number}" for number in range(10_000)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "partition.metadata").write_text("version: 0\ntopic_id: c6m-9Jm7RNy70qTyyK9b2Q")
    async with watched(tmp_path) as (_, agent):
        order: list[str] = []

        async def load() -> None:
            loaded = await agent.load(timeout_ms=TIMEOUT_MS)
            assert len(loaded.replicas) == len(names)
            assert all(str(replica.topic_id) == "c6m-9Jm7RNy70qTyyK9b2Q" for replica in loaded.replicas)
            order.append("load")

        async def probe() -> None:
            await until(lambda: (agent.blocked() or None) is not None, "load")
            await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
            order.append("probe")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load())
            tasks.create_task(probe())
        assert order == ["probe", "load"]


async def test_a_relative_position_is_meant_where_the_path_leads_without_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    async with watched_other(tmp_path / "link") as agent:
        loaded = await agent.load(timeout_ms=TIMEOUT_MS)
        assert loaded.real_path == str(tmp_path / "real")


async def test_a_path_that_is_missing_or_no_directory_is_an_error_with_errno(tmp_path: Path) -> None:
    async with watched_other(tmp_path / "missing") as missing:
        assert await errno_of(missing.load(timeout_ms=TIMEOUT_MS)) == errno.ENOENT
        assert not (tmp_path / "missing").exists()
    (tmp_path / "file").write_text("")
    async with watched_other(tmp_path / "file") as file:
        assert await errno_of(file.load(timeout_ms=TIMEOUT_MS)) == errno.ENOTDIR


def test_a_killed_daemon_leaves_no_process(tmp_path: Path) -> None:
    program = """
import asyncio, sys, os
from kjbod.clock import SystemClock
from kjbod_host.storage.posix import PosixStorageAgent
from kjbod_host.storage.api import StorageOptions
async def main():
    storage = PosixStorageAgent(StorageOptions(clock=SystemClock()))
    await storage.start()
    await storage.directory(sys.argv[1]).lock(timeout_ms=60_000)
    while len(storage.process_ids()) < 3:
        await asyncio.sleep(0.01)
    print(*storage.process_ids(), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=environment(), text=True
    ) as daemon:
        assert daemon.stdout is not None
        pids = [int(pid) for pid in daemon.stdout.readline().split()]
        assert len(pids) == 3
        daemon.kill()
    end = time.monotonic() + PATIENCE_S
    while any(process_sleep(pid)[0] not in ("", "Z") for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.005)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


DAEMON = """
import asyncio, json, socket, sys
from kjbod.clock import SystemClock
from kjbod_host.storage.posix import PosixStorageAgent
from kjbod_host.storage.api import *
async def main(port, orderly, *paths):
    listener = socket.create_server(("127.0.0.1", int(port)))
    storage = PosixStorageAgent(StorageOptions(clock=SystemClock()))
    await storage.start()
    agents = [storage.directory(path) for path in paths]
    for agent in agents:
        await agent.lock(timeout_ms=60_000)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    sys.stdin.readline()
    try:
        await agents[0].probe(full=False, timeout_ms=1_000)
    except DirectoryTimeout as timeout:
        print(json.dumps({"stuck": timeout.wchan, "pid": agents[0].worker_pid}), flush=True)
    if orderly == "orderly":
        await storage.close()
    else:
        await asyncio.sleep(600)
asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("end", ["orderly", "killed"])
@pytest.mark.parametrize("fault", ["hang", "freeze"])
def test_an_agent_with_a_stuck_worker_ends_and_the_next_one_has_port_and_locks_at_once(
    real_disk: Callable[..., RealDisk], tmp_path: Path, fault: str, end: str
) -> None:
    stuck = real_disk()

    def start(port: int, *paths: Path) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-c", DAEMON, str(port), end, *map(str, paths)]
        return subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(), text=True, cwd="/"
        )

    def said(daemon: subprocess.Popen[str]) -> dict[str, object]:
        assert daemon.stdout is not None
        line: dict[str, object] = json.loads(daemon.stdout.readline())
        return line

    try:
        with start(0, stuck.log_dir, tmp_path) as first:
            port = said(first)["port"]
            assert isinstance(port, int)
            stuck.set(FaultMode.HANG) if fault == "hang" else stuck.freeze()
            assert first.stdin is not None
            first.stdin.write("go\n")
            first.stdin.flush()
            worker = said(first)["pid"]
            if end == "killed":
                first.kill()
            first.wait(PATIENCE_S)
        assert isinstance(worker, int)
        if fault == "freeze":
            assert process_sleep(worker)[0] == "D", "the stuck worker is still there"
        with start(port, tmp_path) as second:
            assert said(second)["port"] == port
            second.kill()
        with subprocess.Popen([sys.executable, "-c", LOCK, str(stuck.log_dir / ".lock")]) as lock:
            assert lock.wait(PATIENCE_S) == 0, "the lock on the stuck disk itself is free"
    finally:
        stuck.thaw()
        stuck.set(FaultMode.OK)
    finished = time.monotonic() + PATIENCE_S
    while process_sleep(worker)[0] not in ("", "Z"):
        assert time.monotonic() < finished, "the stuck worker ends when the kernel lets go"
        time.sleep(0.005)


LOCK = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
"""


@pytest.mark.usefixtures("as_root")
async def test_closing_does_not_wait_for_a_stuck_worker(real_disk: Callable[..., RealDisk]) -> None:
    disk = real_disk()
    async with watched(disk.log_dir) as (storage, agent):
        await agent.probe(full=True, timeout_ms=TIMEOUT_MS)
        disk.freeze()
        with pytest.raises(DirectoryTimeout) as caught:
            await agent.probe(full=False, timeout_ms=1_000)
        assert caught.value.call == "write of .kjbod_probe"
        await storage.close()
        assert process_sleep(agent.worker_pid or 0) == ("", "")
        disk.thaw()
