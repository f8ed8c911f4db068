"""Nothing wrong, nothing said: disk-hours of healthy disks in virtual time, and no directory is ever failed.

The core of a host on modelled disks (``model_host``): twelve directories; each condition again and again, a minute or
more of it and then an hour and a half of quiet; 600 disk-hours in all in CI, 8,000 in the deep form. Of the quiet not
each probe is made: a quick one leaves a directory as it is.
"""

import random
from collections.abc import Callable

import pytest

from kjbod_host.health.verdict import Health, HealthSettings
from tests.agent.health.model_host import Directory, Mode, ModelDisk, ModelHost, log_normal_ms
from tests.depth import at, seeds

DIRECTORIES = 12
ROUNDS = at(quick=1, ci=3, deep=40)
"""Of a trouble."""
DISK_HOURS_PER_ROUND = 18
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


def _blind(host: ModelHost, rng: random.Random) -> None:
    """Devices without counters that complete nothing, not quite for as long as they may."""
    for disk in _disks(host):
        disk.counters = False
    for _ in range(10):
        for disk in _disks(host):
            host.set(disk, Mode.HUNG)
        host.run(rng.randrange(1000, SETTINGS.blind_timeout_ms - 500))
        for disk in _disks(host):
            host.set(disk, Mode.WELL)
        host.run(rng.randrange(500, 3000))


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
    "hung for a moment without counters": _blind,
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
            disk.latency_ms, disk.neighbours, disk.counters = (lambda: 1), False, True
            host.set(disk, Mode.WELL)
        host.run(30_000 + SETTINGS.late_window_ms)
        failed = [
            (directory.name, directory.states[-4:]) for directory in host.watched.values() if _is_failed(directory)
        ]
        assert not failed
        host.rest(QUIET_MS)
    assert host.now_ms * DIRECTORIES >= ROUNDS * DISK_HOURS_PER_ROUND * HOUR_MS


def _is_failed(directory: Directory) -> bool:
    return any(health is Health.FAILED for _, health, _ in directory.states)
