"""Virtual time: a simulated hour of probes costs no time of the test."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


class VirtualSelector(selectors.SelectSelector):
    """Instead of waiting, time passes."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
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


@pytest.fixture
def virtual() -> Callable[[Callable[[VirtualLoop], Coroutine[Any, Any, None]]], None]:
    """Runs a coroutine function, which gets the loop as its clock, in virtual time."""

    def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, None]]) -> None:
        loop = VirtualLoop()
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main(loop))

    return run
