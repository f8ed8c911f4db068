"""What the service manager is told: readiness, status, and the watchdog that is fed by the work alone."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kjbod.errors import EXIT_DISK_FAILURE
from kjbod.metrics.vitals import Vitals
from kjbod.runtime import systemd
from kjbod_host.storage.api import LoadedDirectory, ProbeResult
from tests.agent.core.test_broker import D1, D2, World

Run = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]


class Manager:
    """Hears what is said; ``deaf``: takes nothing."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.deaf = False

    def __call__(self, state: str) -> bool:
        if not self.deaf:
            self.heard.append(state)
        return not self.deaf

    def count(self, text: str) -> int:
        return sum(text in state for state in self.heard)


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> Manager:
    heard = Manager()
    monkeypatch.setattr(systemd, "sd_notify", heard)
    return heard


class Monitor:
    """A health monitor that stands still when it is told to."""

    still: str | None = None

    def last_seen(self, path: str) -> LoadedDirectory | ProbeResult | None:
        return None

    def doubt(self, path: str, since_ms: int) -> str | None:
        return None

    def report_error(self, path: str, errno: int, call: str) -> None:
        pass

    def standing_still(self, now_ms: int) -> str | None:
        return self.still


def test_a_monitor_that_stands_still_leaves_the_watchdog_hungry_though_the_loop_goes_round(
    virtual: Run, manager: Manager
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.broker.monitor = monitor = Monitor()
            monitor.still = "/d1 has not been probed for 9000 ms"
            await asyncio.sleep(2)
            before = manager.count("WATCHDOG=1")
            await asyncio.sleep(60)
            assert manager.count("WATCHDOG=1") == before
            (said,) = world.log.of("agent.standing.still")
            assert said["reason"] == monitor.still
            assert world.broker.vitals() == Vitals(stuck=monitor.still)
            monitor.still = None
            await asyncio.sleep(5)
            assert world.broker.vitals() == Vitals()
            assert manager.count("WATCHDOG=1") > before

    virtual(main)


def test_a_pause_of_the_whole_process_is_not_taken_for_a_part_that_stands_still(virtual: Run, manager: Manager) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.broker.monitor = monitor = Monitor()
            monitor.still = "/d1 has not been probed for 30000 ms"
            await asyncio.sleep(1)
            assert world.broker.vitals() == Vitals()
            monitor.still = None
            before = manager.count("WATCHDOG=1")
            await asyncio.sleep(60)
            assert manager.count("WATCHDOG=1") >= before + 55
            assert not world.log.of("agent.standing.still")

    virtual(main)


def test_a_start_that_gets_on_asks_for_more_time_and_does_not_set_off_the_watchdog(
    virtual: Run, manager: Manager
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock, unfenced=False) as world:
            world.controller.silent = True
            await asyncio.sleep(30)
            assert manager.count("EXTEND_TIMEOUT_USEC=60000000") >= 25
            assert not manager.count("WATCHDOG=1")
            assert world.broker.vitals() == Vitals(waits="it starts, and is not registered and unfenced yet")
            world.controller.silent = False
            await asyncio.sleep(30)
            assert world.broker.vitals() == Vitals()
            ready = next(place for place, text in enumerate(manager.heard) if "READY=1" in text)
            assert not any("WATCHDOG" in text for text in manager.heard[:ready])
            assert not any("EXTEND" in text for text in manager.heard[ready:])
            assert manager.count("WATCHDOG=1")

    virtual(main)


def test_heartbeats_that_never_end_leave_it_hungry_and_a_controller_that_never_answers_does_not(
    virtual: Run, manager: Manager
) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.controller.silent = True
            await asyncio.sleep(60)
            assert manager.count("WATCHDOG=1") >= 55
            assert not world.log.of("agent.standing.still")
            assert world.broker.vitals().stuck is None
            assert str(world.broker.vitals().waits).startswith("no controller for ")

            async def hang(*_: object, **__: object) -> Any:
                await asyncio.Event().wait()

            world.broker._channel.request = hang  # type: ignore[method-assign]
            await asyncio.sleep(20)
            before = manager.count("WATCHDOG=1")
            await asyncio.sleep(20)
            assert manager.count("WATCHDOG=1") == before
            assert "no request to the controller has ended" in world.log.of("agent.standing.still")[0]["reason"]

    virtual(main)


def test_readiness_that_the_manager_did_not_take_is_told_again(virtual: Run, manager: Manager) -> None:
    async def main(clock: Any) -> None:
        manager.deaf = True
        async with World(clock):
            await asyncio.sleep(5)
            manager.deaf = False
            await asyncio.sleep(5)
            assert manager.count("READY=1") == 1

    virtual(main)


def test_the_status_names_what_is_offline_and_the_last_one_why_the_agent_ends(virtual: Run, manager: Manager) -> None:
    async def main(clock: Any) -> None:
        async with World(clock) as world:
            world.broker._unreadable = ("/d9",)
            world.broker.directory_failed(D2, "error", "EIO at fsync", clock.monotonic_ms())
            await asyncio.sleep(5)
            assert manager.count("/d9 could not be read at the start")
            assert manager.count("/d2 failed since 1970-01-01T00:00:0") and not manager.count("/d1 failed")
            world.broker.directory_failed(D1, "error", "EIO at fsync", clock.monotonic_ms())
            ended = await world.broker.ended
            await asyncio.sleep(5)
            assert ended.exit_code == EXIT_DISK_FAILURE
            statuses = [state for state in manager.heard if "STATUS=" in state]
            assert statuses[-1] == f"STOPPING=1\nSTATUS={ended.reason}"
            assert "/d1" in ended.reason and "failed since" in ended.reason

    virtual(main)
