"""Nothing wrong, nothing said: disk-hours of healthy disks in virtual time, and no directory is ever failed.

Two ways. The verdict on modelled disks (``model_host``): twelve directories; each condition again and again, a minute
or more of it and then an hour and a half of quiet; 600 disk-hours in all in CI, 8,000 in the deep form. Of the quiet
not each probe is made: a quick one leaves a directory as it is. The whole monitor on disks in memory, on an event loop
whose time is simulated: what happens to the process itself, a disk-hour of each in CI.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kjbod.ids import random_directory_id
from kjbod_host.health.evidence import Verdict
from kjbod_host.health.monitor import HealthMonitor, NoSources
from kjbod_host.health.verdict import Health, HealthSettings
from kjbod_host.storage.api import DirectoryAgent, LoadedDirectory, StorageOptions
from kjbod_host.storage.memory import MemoryDisk, MemoryStorageAgent
from tests.agent.health.model_host import Mode, ModelDisk, ModelHost, log_normal_ms
from tests.depth import at, seeds

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]
DIRECTORIES = 12
ROUNDS = at(quick=1, ci=3, deep=40)
"""Of a trouble."""
DISK_HOURS_PER_ROUND = 18
VIRTUAL_S = at(quick=120, ci=300, deep=6_000)
"""Of the whole monitor."""
HOUR_MS = 3_600_000
QUIET_MS = 5_400_000
SETTINGS = HealthSettings()
Trouble = Callable[[ModelHost, random.Random], None]


def _disks(host: ModelHost) -> list[ModelDisk]:
    return [directory.disk for directory in host.watched.values()]


def _busy(host: ModelHost, rng: random.Random) -> None:
    """Log-normal latencies around 8 ms, and others use the devices as well."""
    for disk in _disks(host):
        disk.latency_ms, disk.neighbours = log_normal_ms(rng, 8, 1.5, 900), True
    host.run(60_000)


def _bursts(host: ModelHost, rng: random.Random) -> None:
    """Every tenth request takes up to 900 ms."""
    for disk in _disks(host):
        disk.latency_ms = lambda: rng.randrange(900) if rng.random() < 0.1 else 3
    host.run(60_000)


def _requests_of(latency_ms: int) -> Trouble:
    def trouble(host: ModelHost, rng: random.Random) -> None:
        """Of half of the disks: the others testify that it is not the host."""
        for disk in _disks(host)[::2]:
            disk.latency_ms = lambda: latency_ms
        host.run(60_000)

    return trouble


def _throttled(host: ModelHost, rng: random.Random) -> None:
    """A request reaches the device each 0.2 to 10 s, and in between none is in flight."""
    for disk in _disks(host):
        disk.latency_ms = lambda: rng.randrange(200, 10_000)
        host.set(disk, Mode.THROTTLED)
    host.run(60_000)


def _frozen(host: ModelHost, rng: random.Random) -> None:
    """Almost as long as a directory may be held, again and again, as a snapshot of the whole host."""
    for _ in range(3):
        for disk in _disks(host):
            host.set(disk, Mode.FROZEN)
        host.run(rng.randrange(25_000, 29_500))
        for disk in _disks(host):
            host.set(disk, Mode.WELL)
        host.run(rng.randrange(20, 2000))  # long enough for a request: else it was frozen all the time


def _hung_for_a_moment(host: ModelHost, rng: random.Random) -> None:
    """A link that is reset: the device completes nothing, not quite as long as a probe may take."""
    for _ in range(10):
        chosen = rng.sample(_disks(host), 3)
        for disk in chosen:
            host.set(disk, Mode.HUNG)
        host.run(rng.randrange(100, SETTINGS.probe_timeout_ms - 100))
        for disk in chosen:
            host.set(disk, Mode.WELL)
        host.run(3000)


def _workers_stopped(host: ModelHost, rng: random.Random) -> None:
    """SIGSTOP of workers in the middle of whatever they do."""
    for _ in range(6):
        chosen = rng.sample(list(host.watched.values()), rng.randrange(1, DIRECTORIES + 1))
        for directory in chosen:
            host.stop_worker(directory)
        host.run(rng.randrange(100, 30_000))
        for directory in chosen:
            host.continue_worker(directory)
        host.run(rng.randrange(100, 3000))


def _agent_stopped(host: ModelHost, rng: random.Random) -> None:
    """SIGSTOP of the agent, or an event loop that stands still, while the disks are slow."""
    for disk in _disks(host):
        disk.latency_ms = lambda: rng.randrange(1, 300)
    for _ in range(10):
        host.stall(round(10 ** rng.uniform(2, 4.5)))
        host.run(rng.randrange(1, 5000))


def _suspended(host: ModelHost, rng: random.Random) -> None:
    """Everything stands still, and then the clock is seconds or hours further."""
    for disk in _disks(host):
        disk.latency_ms = lambda: rng.randrange(1, 300)
    for _ in range(10):
        host.suspend(round(10 ** rng.uniform(3, 7)))
        host.run(rng.randrange(3000, 6000))


def _everything(host: ModelHost, rng: random.Random) -> None:
    """Slow disks, one of them frozen, some workers stopped, the agent stopped and the machine suspended."""
    for disk in _disks(host):
        disk.latency_ms, disk.neighbours = log_normal_ms(rng, 20, 1.5, 900), rng.random() < 0.5
    frozen, stopped = rng.choice(_disks(host)), rng.choice(list(host.watched.values()))
    host.set(frozen, Mode.FROZEN)
    host.stop_worker(stopped)
    host.run(rng.randrange(5000))
    host.stall(rng.randrange(10_000))
    host.run(rng.randrange(5000))
    host.suspend(rng.randrange(1_000_000))
    host.run(rng.randrange(5000))
    host.set(frozen, Mode.WELL)
    host.continue_worker(stopped)
    host.run(30_000)


TROUBLES: dict[str, Trouble] = {
    "devices used by others": _busy,
    "bursts of 900 ms": _bursts,
    "200 ms per request": _requests_of(200),
    "1 s per request": _requests_of(1000),
    "throttled": _throttled,
    "frozen again and again": _frozen,
    "hung for a moment": _hung_for_a_moment,
    "workers stopped": _workers_stopped,
    "agent stopped": _agent_stopped,
    "suspended": _suspended,
    "everything": _everything,
}


@pytest.mark.parametrize("seed", seeds(deep=1))
@pytest.mark.parametrize("trouble", TROUBLES)
def test_disk_hours_of_it_fail_no_directory(trouble: str, seed: int) -> None:
    rng = random.Random(f"{trouble}/{seed}")
    host = ModelHost({f"/d{number}": ModelDisk() for number in range(DIRECTORIES)})
    for _ in range(ROUNDS):
        TROUBLES[trouble](host, rng)
        for disk in _disks(host):
            disk.latency_ms, disk.neighbours = (lambda: 1), False
            host.set(disk, Mode.WELL)
        host.run(30_000 + SETTINGS.late_window_ms)
        failed = [
            (directory.name, directory.states[-4:]) for directory in host.watched.values() if _is_failed(directory)
        ]
        assert not failed
        host.rest(QUIET_MS)
    assert host.now_ms * DIRECTORIES >= ROUNDS * DISK_HOURS_PER_ROUND * HOUR_MS


def _is_failed(directory: Any) -> bool:
    return any(health is Health.FAILED for _, health, _ in directory.states)


# the whole monitor ---------------------------------------------------------------------------------------------------


class JumpingClock:
    """The loop's monotonic time, and a wall clock that is set to anything at any moment."""

    def __init__(self, loop: Any, rng: random.Random) -> None:
        self._loop = loop
        self._rng = rng
        self.monotonic_ms = loop.monotonic_ms
        self.monotonic_ns = loop.monotonic_ns

    def wall_ms(self) -> int:
        return self._rng.randrange(0, 4_000_000_000_000)


class Watch:
    """Twelve disks in memory under the monitor; collects verdicts."""

    def __init__(self, clock: Any) -> None:
        rng = random.Random(858)
        self.verdicts: list[Verdict] = []
        self.disks = {
            f"/d{number}": MemoryDisk(
                meta_properties=f"directory.id={random_directory_id(rng)}\n".encode(), number=number
            )
            for number in range(1, DIRECTORIES + 1)
        }
        self._storage = MemoryStorageAgent(StorageOptions(clock=clock), self.disks)
        self._clock = clock

    async def __aenter__(self) -> "Watch":
        directories: list[tuple[DirectoryAgent, LoadedDirectory, str]] = []
        for path in self.disks:
            agent = self._storage.directory(path)
            loaded = await agent.load(timeout_ms=1000)
            directories.append((agent, loaded, str(loaded.directory_id)))
        monitor = HealthMonitor(
            directories, settings=SETTINGS, clock=self._clock, on_verdict=self.verdicts.append, sources=NoSources()
        )
        self._task = asyncio.ensure_future(monitor.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        assert not self._task.done() or self._task.cancelled()

    def states(self) -> set[Health]:
        return {verdict.state for verdict in self.verdicts}


def _seconds(total: float, rng: random.Random, longest: float) -> Iterator[float]:
    passed = 0.0
    while passed < total:
        step = rng.uniform(0, longest)
        passed += step
        yield step


@pytest.mark.parametrize("seed", seeds(deep=1))
def test_disk_hours_of_random_latencies_say_nothing_at_all(virtual: Run, seed: int) -> None:
    async def main(clock: Any) -> None:
        rng = random.Random(seed)
        async with Watch(clock) as watch:
            for step in _seconds(VIRTUAL_S, rng, 2):
                for disk in watch.disks.values():
                    disk.delay_ms = min(900.0, rng.lognormvariate(3, 1))
                await asyncio.sleep(step)
            assert watch.verdicts == []

    virtual(main)


@pytest.mark.parametrize("seed", seeds(deep=1))
def test_disk_hours_in_which_the_event_loop_stands_still_again_and_again_fail_nothing(virtual: Run, seed: int) -> None:
    async def main(clock: Any) -> None:
        rng = random.Random(seed)
        async with Watch(clock) as watch:
            for step in _seconds(VIRTUAL_S, rng, 4):
                for disk in watch.disks.values():
                    disk.delay_ms = rng.uniform(0, 300)
                await asyncio.sleep(step)
                clock._virtual.now += 10 ** rng.uniform(-2, 2)  # nothing ran meanwhile, and all timers are due
            await asyncio.sleep(20)
            assert Health.FAILED not in watch.states()

    virtual(main)


@pytest.mark.parametrize("seed", seeds(deep=1))
def test_disk_hours_of_a_wall_clock_that_jumps_say_nothing_at_all(virtual: Run, seed: int) -> None:
    async def main(loop: Any) -> None:
        async with Watch(JumpingClock(loop, random.Random(seed))) as watch:
            await asyncio.sleep(VIRTUAL_S)
            assert watch.verdicts == []

    virtual(main)


@pytest.mark.parametrize("seed", seeds(deep=1))
def test_disks_without_counters_that_stand_still_for_less_than_the_blind_timeout_are_not_failed(
    virtual: Run, seed: int
) -> None:
    async def main(clock: Any) -> None:
        rng = random.Random(seed)
        async with Watch(clock) as watch:
            for _ in range(VIRTUAL_S // 20):
                for disk in watch.disks.values():
                    disk.hang()
                await asyncio.sleep(rng.uniform(1, SETTINGS.blind_timeout_ms / 1000 - 0.5))
                for disk in watch.disks.values():
                    disk.heal()
                await asyncio.sleep(rng.uniform(0.5, 3))
            await asyncio.sleep(20 + SETTINGS.late_window_ms / 1000)
            assert Health.FAILED not in watch.states()
            assert {verdict.path: verdict.state for verdict in watch.verdicts}.keys() == watch.disks.keys()
            assert set({verdict.path: verdict.state for verdict in watch.verdicts}.values()) == {Health.ONLINE}

    virtual(main)
