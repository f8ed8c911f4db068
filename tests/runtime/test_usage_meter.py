"""Memory, processor time and descriptors of real processes; what does not answer is left out in time."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import psutil
import pytest

from kjbod.clock import SystemClock
from kjbod.runtime import usage_meter
from kjbod.runtime.usage_meter import THREADS_MAX, UsageMeter
from kjbod.usage import Usage

CLOCK = SystemClock()
MIB = 1 << 20
BUSY = """
import os, time
x = b"x" * (30 << 20)
while time.process_time() < 0.2:
    pass
os.write(1, b".")
time.sleep(600)
"""


@pytest.fixture
def spinning(world: None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has used a fifth of a second and 30 MiB."""
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        yield process
        process.kill()


async def read(meter: UsageMeter) -> Usage:
    usage = await meter.read()
    assert usage is not None
    return usage


async def test_a_process_is_measured_by_its_own(spinning: subprocess.Popen[bytes]) -> None:
    usage = await read(UsageMeter(CLOCK, workers=lambda: (spinning.pid, 0)))
    worker = usage.workers
    assert (worker.processes, worker.unmeasured) == (1, 0)
    assert worker.pss_bytes is not None
    assert worker.uss_bytes is not None
    assert 30 * MIB < worker.uss_bytes <= worker.pss_bytes <= worker.rss_bytes < 200 * MIB
    assert worker.cpu_s > 0.1
    assert worker.descriptors == psutil.Process(spinning.pid).num_fds() >= 3
    assert usage.helpers.processes == 0
    assert usage.helpers.pss_bytes == 0


async def test_this_process_is_measured() -> None:
    usage = await read(UsageMeter(CLOCK))
    mine = psutil.Process()
    assert usage.own.processes == 1
    assert usage.own.pss_bytes is not None
    assert usage.own.pss_bytes > 10 * MIB
    assert usage.virtual_bytes > usage.own.rss_bytes
    assert usage.own.cpu_s > 0
    assert usage.started_ms == round(mine.create_time() * 1000)
    assert usage.descriptors_max == mine.rlimit(psutil.RLIMIT_NOFILE)[0]


async def test_a_descriptor_more_is_one_more() -> None:
    meter = UsageMeter(CLOCK)
    before = (await read(meter)).own.descriptors
    fd = os.open(os.devnull, os.O_RDONLY)
    after = (await read(meter)).own.descriptors
    os.close(fd)
    assert after == before + 1


async def test_processor_time_of_a_process_that_has_ended_still_counts(spinning: subprocess.Popen[bytes]) -> None:
    meter = UsageMeter(CLOCK, workers=lambda: (spinning.pid,))
    before = (await read(meter)).workers.cpu_s
    spinning.kill()
    spinning.wait()
    after = (await read(meter)).workers
    assert (after.processes, after.pss_bytes) == (0, 0)
    assert after.cpu_s >= before > 0.1


class Held:
    """A read of memory that waits, as one of a process that is stuck with the lock of its address space."""

    def __init__(self, *stuck: int) -> None:
        self.stuck = set(stuck)
        self.asked: list[int] = []
        self.end = threading.Event()

    def __call__(self, pid: int) -> tuple[int, int] | None:
        self.asked.append(pid)
        if pid in self.stuck:
            self.end.wait()
        return 2 * MIB, MIB


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Held]]:
    monkeypatch.setattr(usage_meter, "MEASURE_TIMEOUT_MS", 50)
    made: list[Held] = []

    def make(*stuck: int) -> Held:
        made.append(Held(*stuck))
        return made[-1]

    yield make
    for each in made:
        each.end.set()


async def test_a_process_that_does_not_tell_its_memory_holds_nothing_up(
    spinning: subprocess.Popen[bytes], held: Callable[..., Held]
) -> None:
    memory_of = held(spinning.pid)
    meter = UsageMeter(CLOCK, workers=lambda: (spinning.pid,), helpers=lambda: (os.getppid(),), memory_of=memory_of)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.001)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    usage = await read(meter)
    assert ticks > 3, "the event loop went on"
    ticking.cancel()
    assert usage.own.pss_bytes == 2 * MIB
    assert (usage.workers.processes, usage.workers.unmeasured, usage.workers.pss_bytes) == (1, 1, None)
    assert usage.workers.cpu_s > 0.1, "all else is known"
    assert usage.helpers.unmeasured == 1, "it came after"

    again = await read(meter)  # the one that is stuck is not asked again, and keeps nobody from telling
    assert (again.own.unmeasured, again.workers.unmeasured, again.helpers.unmeasured) == (0, 1, 0)
    assert memory_of.asked.count(spinning.pid) == 1
    memory_of.end.set()
    while meter._asked:  # noqa: ASYNC110  the thread has no event
        await asyncio.sleep(0.001)
    assert (await read(meter)).workers.unmeasured == 0


@pytest.fixture
def sleepers(world: None) -> Iterator[list[int]]:
    """More processes than there are threads for."""
    with contextlib.ExitStack() as all_of_them:
        started = [
            all_of_them.enter_context(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
            for _ in range(THREADS_MAX + 2)
        ]
        yield [process.pid for process in started]
        for process in started:
            process.kill()


async def test_threads_that_wait_are_no_more_than_a_few(sleepers: list[int], held: Callable[..., Held]) -> None:
    meter = UsageMeter(CLOCK, workers=lambda: sleepers, memory_of=held(*sleepers))
    for _ in sleepers:
        usage = await read(meter)
    assert len(meter._threads) == THREADS_MAX
    assert usage.workers.unmeasured == len(sleepers)


async def test_a_host_without_room_for_a_thread_leaves_the_memory_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    meter = UsageMeter(CLOCK)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        usage = await read(meter)
    assert (usage.own.unmeasured, usage.own.pss_bytes) == (1, None)
    assert usage.own.rss_bytes > 0


async def test_a_process_without_a_descriptor_left_tells_nothing_and_counts_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meter = UsageMeter(CLOCK)
    before = (await read(meter)).own.cpu_s

    def refuse(_: int) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(usage_meter, "_look_at", refuse)
        assert await meter.read() is None
    assert before <= (await read(meter)).own.cpu_s < 2 * before + 1


class Hours:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms


async def test_processor_use_is_that_of_the_last_one_or_two_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, used_s = Hours(), 0.0

    def look_at(pid: int) -> usage_meter._Seen:
        return usage_meter._Seen(pid, 1.0, 1, 1, used_s, 1)

    monkeypatch.setattr(usage_meter, "_look_at", look_at)
    monkeypatch.setattr(usage_meter, "is_done_in_time", lambda done, *_: done)
    meter = UsageMeter(clock)  # type: ignore[arg-type]
    assert (await read(meter)).own.cpu_percent is None, "not for long enough"
    for _ in range(120):  # an hour of nothing
        clock.now_ms += 30_000
        meter._keep()
    clock.now_ms += 30_000
    used_s += 15
    assert (await read(meter)).own.cpu_percent == 25, "15 s of the last minute"
    meter._keep()
    clock.now_ms += 30_000
    used_s += 15
    assert (await read(meter)).own.cpu_percent == 50
