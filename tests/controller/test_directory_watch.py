"""The watch of the controller's directory on the loop that it runs on: its child may be killed, stopped, or not start,
and this process may stand still, and none of it is the disk's fault."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from kjbod.clock import SystemClock
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.observed import ObservedTimeout, could_go_on
from kjbod.runtime.waiting import is_done_in_time, process_sleep
from kjbod.wire.messages import BrokerHeartbeatRequest
from kjbod_controller_stub.log import directory_watch, probe
from kjbod_controller_stub.log.directory_watch import DirectoryHungError, DirectoryWatch
from scripts.rig.processes import ManagedProcess, Processes, wait_until
from tests.controller.conftest import until
from tests.controller.test_log_dir import Rig, Writer, rig_on, topics, watching
from tests.controller.test_server import create, join

ANSWERS = "import sys\nprint('ready', flush=True)\nfor _ in sys.stdin:\n    print('ok', flush=True)\n"
SILENT = "import sys\nprint('ready', flush=True)\nsys.stdin.read()\n"
DEAF = "import signal\nprint('ready', flush=True)\nsignal.pause()\n"
NEVER_READY = "import sys\nsys.stdin.read()\n"


def on_uvloop(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(work, 60))


@contextlib.asynccontextmanager
async def running(one: DirectoryWatch) -> Any:
    """Watch during the block, in which it must not end."""
    task = asyncio.ensure_future(one.run(Writer()))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def next_child(one: DirectoryWatch, *not_this: object) -> asyncio.subprocess.Process:
    await until(lambda: one._child is not None and one._child not in not_this)
    assert one._child is not None
    return one._child


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the child does."""
    told = tmp_path / "child.py"
    monkeypatch.setattr(probe, "__file__", str(told))
    monkeypatch.setattr(directory_watch, "_RESTART_PAUSE_S", 0.0)
    told.write_text(ANSWERS)
    return told


@pytest.mark.usefixtures("world")
def test_a_child_killed_while_it_waits_or_works_is_made_again(tmp_path: Path, child: Path) -> None:
    async def kill_some() -> None:
        one = watching(tmp_path)
        async with running(one):
            killed: list[asyncio.subprocess.Process] = []
            for _ in range(5):
                killed.append(await next_child(one, *killed))
                await until(lambda: process_sleep(killed[-1].pid)[0] == "S")
                killed[-1].kill()
            await next_child(one, *killed)

    on_uvloop(kill_some())


@pytest.mark.usefixtures("world")
def test_a_child_that_is_stopped_before_it_is_ready_is_replaced(
    tmp_path: Path, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_watch, "_START_TIMEOUT_MS", 200)
    child.write_text(NEVER_READY)

    async def stop_it() -> None:
        one = watching(tmp_path)
        async with running(one):
            stopped = await next_child(one)
            os.kill(stopped.pid, signal.SIGSTOP)
            await next_child(one, stopped)
            assert await stopped.wait() == -signal.SIGKILL

    on_uvloop(stop_it())


@pytest.mark.usefixtures("world")
def test_a_child_that_is_stopped_during_a_probe_is_replaced_and_says_nothing_of_the_disk(
    tmp_path: Path, child: Path
) -> None:
    child.write_text(SILENT.replace("sys.stdin.read()", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"))

    async def stop_it() -> None:
        one = watching(tmp_path, timeout_ms=300)
        async with running(one):
            stopped = await next_child(one)
            await until(lambda: process_sleep(stopped.pid)[0] == "T")
            await asyncio.to_thread(child.write_text, ANSWERS)
            await next_child(one, stopped)

    on_uvloop(stop_it())


@pytest.mark.usefixtures("world")
def test_a_watch_that_ends_while_it_replaces_a_stopped_child_leaves_none(
    tmp_path: Path, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child.write_text(SILENT.replace("sys.stdin.read()", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"))

    async def end() -> None:
        one = watching(tmp_path, timeout_ms=300)
        said: list[str] = []
        monkeypatch.setattr(one, "_tell", lambda what, **_: said.append(what))
        async with running(one):
            stopped = await next_child(one)
            await until(lambda: said)
        assert said == ["stopped"]
        assert stopped.returncode == -signal.SIGKILL

    on_uvloop(end())


@pytest.mark.usefixtures("world")
def test_a_watch_whose_child_does_not_end_in_time_leaves_nothing_to_the_event_loop(
    tmp_path: Path, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_watch, "_END_TIMEOUT_S", 0.0)
    child.write_text(DEAF)

    async def end() -> None:
        one = watching(tmp_path)
        async with running(one):
            killed = await next_child(one)
        assert killed.returncode == -signal.SIGKILL

    on_uvloop(end())


@pytest.mark.usefixtures("world")
def test_a_watch_that_ends_while_it_starts_its_child_leaves_none(
    tmp_path: Path, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = asyncio.create_subprocess_exec
    begun = asyncio.Event()
    started: list[asyncio.subprocess.Process] = []

    async def starting(*command: str, **how: Any) -> asyncio.subprocess.Process:
        begun.set()
        started.append(await start(*command, **how))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starting)

    async def end() -> None:
        async with running(watching(tmp_path)):
            await begun.wait()
            assert not started
        assert [one.returncode for one in started] == [0]

    on_uvloop(end())


@pytest.mark.usefixtures("world")
def test_a_child_that_cannot_be_started_is_tried_again(
    tmp_path: Path, child: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_descriptors() -> None:
        one = watching(tmp_path)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        said: list[str] = []
        monkeypatch.setattr(one, "_tell", lambda what, **more: said.append(f"{what} {more.get('reason')}"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # what is open stays so
        try:
            async with running(one):
                await until(lambda: len(said) > 2)
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                await next_child(one)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert said[0] == "not.started no descriptor, process or memory to be had"

    on_uvloop(no_descriptors())


@pytest.mark.usefixtures("world")
def test_a_probe_that_does_not_come_back_is_still_a_hung_directory(tmp_path: Path, child: Path) -> None:
    child.write_text(SILENT)

    async def hang() -> None:
        with pytest.raises(DirectoryHungError, match="has not answered a probe since 20"):
            await watching(tmp_path, timeout_ms=300).run(Writer())

    on_uvloop(hang())


# ---- what counts


def test_time_in_which_nobody_looked_does_not_count() -> None:
    patience = ObservedTimeout(10_000, 0, step_ms=500)
    assert [patience.is_over(now) for now in (500, 1_000, 3_601_000)] == [False] * 3
    assert patience.waited_ms == 1_500
    times = range(3_601_500, 3_609_500, 500)
    assert not any(patience.is_over(now) for now in times)
    assert patience.is_over(3_609_500)


def test_a_late_look_decides_nothing() -> None:
    patience = ObservedTimeout(1_000, 0, step_ms=500)
    assert not patience.is_over(500)
    assert not patience.is_over(9_000)
    assert patience.is_over(9_100)


@pytest.mark.parametrize(
    ("state", "wchan", "could"),
    [
        ("D", "io_schedule", True),
        ("S", "request_wait_answer", True),
        ("", "", True),
        ("T", "do_signal_stop", False),
        ("R", "", False),
        ("S", "get_signal", False),
        ("D", "__refrigerator", False),
    ],
)
def test_a_process_that_is_held_could_not_go_on(state: str, wchan: str, could: bool) -> None:
    assert could_go_on(state, wchan) is could


async def test_what_is_not_done_in_time_goes_on() -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert not await is_done_in_time(never, 20, SystemClock())
    assert not never.cancelled()
    never.set_result(None)
    assert await is_done_in_time(never, 20, SystemClock())


# ---- the process


@pytest.fixture
def rig(tmp_path: Path, processes: Processes) -> Iterator[Rig]:
    with RealDisk(log_dir="metadata") as disk:
        yield rig_on(disk, tmp_path, processes)


def probe_child(controller: ManagedProcess) -> int:
    def find() -> int | None:
        children = Path(f"/proc/{controller.pid}/task/{controller.pid}/children").read_text().split()
        return int(children[0]) if children else None

    return wait_until(find, 20, "a probe child") or 0


@pytest.mark.usefixtures("as_root")
async def test_a_controller_outlives_the_killing_of_its_child(rig: Rig) -> None:
    controller = await asyncio.to_thread(rig.start)
    first = probe_child(controller)
    os.kill(first, signal.SIGKILL)
    await asyncio.to_thread(controller.wait_for_event, "log.dir.probe.ended")
    wait_until(lambda: probe_child(controller) != first, 20, "another child")
    assert await topics(rig) == set()
    assert await asyncio.to_thread(controller.stop) == 0


def stand_still(controller: ManagedProcess, release: Callable[[], None]) -> None:
    """Stop it for longer than it is patient, and let what it waits for come meanwhile."""
    controller.signal(signal.SIGSTOP)
    release()
    time.sleep(2.0)  # kjbod.blind.timeout.ms is 1.5 s of the very clock that goes on here
    controller.signal(signal.SIGCONT)


@pytest.mark.usefixtures("as_root")
async def test_a_pause_during_a_probe_and_an_fsync_is_not_a_dead_disk(rig: Rig) -> None:
    with rig.config.open("a") as config:
        config.write("metadata.max.idle.interval.ms=0\n")
    controller = await asyncio.to_thread(rig.start)
    async with rig.connected() as connection:
        await join(connection, 1)
        rig.disk.set(FaultMode.HANG)
        creating = asyncio.ensure_future(connection.request(create("t"), timeout_ms=60_000))
        try:
            wait_until(lambda: rig.disk.counters().held, 20, "a request to the disk")
            await asyncio.to_thread(stand_still, controller, lambda: rig.disk.set(FaultMode.OK))
        finally:
            rig.disk.set(FaultMode.OK)
        assert (await creating).topics[0].error_code == 0
    assert await topics(rig) == {"t"}
    assert await asyncio.to_thread(controller.stop) == 0


@pytest.mark.usefixtures("as_root")
async def test_a_pause_fences_no_broker_whose_heartbeat_came_meanwhile(rig: Rig) -> None:
    text = rig.config.read_text().replace("broker.session.timeout.ms=600000", "broker.session.timeout.ms=5000")
    rig.config.write_text(text)
    controller = await asyncio.to_thread(rig.start)
    async with rig.connected() as connection:
        epoch = await join(connection, 1)
        controller.signal(signal.SIGSTOP)
        beat = BrokerHeartbeatRequest(broker_id=1, broker_epoch=epoch, current_metadata_offset=epoch)
        beating = asyncio.ensure_future(connection.request(beat, timeout_ms=60_000))
        await asyncio.sleep(5.5)  # longer than the session, by the clock that goes on
        controller.signal(signal.SIGCONT)
        answer = await beating
        assert (answer.error_code, answer.is_fenced) == (0, False)
    assert not controller.events("broker.fenced")
