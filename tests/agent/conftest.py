"""Virtual time: a simulated hour of probes costs no time of the test. A real controller that many tests share."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes
from tests.agent.daemon_cluster import SharedController
from tests.preloading import preloaded

_LOOK_EVERY = 16
"""Turns of a busy loop."""


class VirtualSelector(selectors.SelectSelector):
    """Instead of waiting, time passes. Files are looked at before it does, and now and then while the loop is busy."""

    now = 0.0
    _turn = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turn += 1
        if timeout == 0 and self._turn % _LOOK_EVERY:
            return []
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise AssertionError("everything waits and no timer is set")
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is its own; also a Clock."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def monotonic_ms(self) -> int:
        return round(self._virtual.now * 1000)

    def monotonic_ns(self) -> int:
        return round(self._virtual.now * 1e9)

    def wall_ms(self) -> int:
        return self.monotonic_ms()

    def pause(self, seconds: float) -> None:
        """As a stop signal: the time passes, and nothing runs."""
        self._virtual.now += seconds


@pytest.fixture
def virtual() -> Callable[[Callable[[VirtualLoop], Coroutine[Any, Any, None]]], None]:
    """Runs a coroutine function, which gets the loop as its clock, in virtual time."""

    def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
        loop = VirtualLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main(loop))

    return run


@pytest.fixture(scope="session")
def _kafka_controller(kafka_kit: KafkaKit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedController]:
    base = tmp_path_factory.mktemp("kafka-controller")
    with Processes(base / "logs", preloaded=preloaded()) as processes:
        yield SharedController(base, processes, kafka_kit)


@pytest.fixture
def kafka_controller(_kafka_controller: SharedController) -> Iterator[SharedController]:
    """Apache Kafka's controller, running, with nothing in it; for tests that do not stop it."""
    with _kafka_controller.borrowed() as controller:
        yield controller
