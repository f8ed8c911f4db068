"""The process of a daemon, whatever its work is: a signal, an error, and the order of the end, at each moment."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import structlog

from kjbod.clock import SystemClock
from kjbod.errors import EXIT_DISK_FAILURE, ConfigError, KjbodError
from kjbod_host import ending
from kjbod_host.daemon import Daemon
from kjbod_host.ending import Ended, Ending
from tests.agent.core.test_ending import in_this_process, terminate

__all__ = ["in_this_process"]

CLEAN = Ended(0, "SIGTERM", clean=True)
HALT = Ended(EXIT_DISK_FAILURE, "no log directory is left", clean=False)


class DiskError(KjbodError):
    exit_code = EXIT_DISK_FAILURE


class Work:
    """Work that does in each phase what a test gives it, and writes down what happened."""

    def __init__(self, **phases: Callable[["Work"], Awaitable[Any]]) -> None:
        self.daemon = Daemon(Ending("agent", SystemClock()), SystemClock())
        self.phases = phases
        self.happened: list[str] = []

    async def _do(self, name: str) -> Any:
        self.happened.append(name)
        return await self.phases[name](self) if name in self.phases else None

    async def open(self) -> None:
        await self._do("open")

    async def serve(self) -> Ended:
        self.daemon.spawn(self.part())
        await asyncio.sleep(0)
        ended: Ended | None = await self._do("serve")
        return ended or CLEAN

    async def part(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.happened.append("part ended")

    async def leave(self, ended: Ended) -> Ended:
        other: Ended | None = await self._do("leave")
        return other or ended

    async def close(self) -> None:
        await self._do("close")

    def run(self) -> tuple[int, list[str]]:
        """Exit code, and the log."""
        with structlog.testing.capture_logs() as logged:
            code = asyncio.run(self.daemon.run(self, "interrupted"))
        events = [line["event"] for line in logged]
        assert events[-1] == "agent.stopped"
        assert logged[-1]["exit_code"] == code
        return code, [*events[:-1], logged[-1]["reason"]]


WHOLE = ["open", "serve", "part ended", "leave", "close"]


async def bug(_: Work) -> None:
    raise ZeroDivisionError("a bug")


async def full_disk(_: Work) -> None:
    raise DiskError("the disk")


async def halt(_: Work) -> Ended:
    return HALT


async def fail_in_a_part(work: Work) -> None:
    work.daemon.spawn(full_disk(work))
    await asyncio.Event().wait()


async def crash_in_a_part(work: Work) -> None:
    work.daemon.spawn(bug(work))
    await asyncio.Event().wait()


async def no_thread(_: Work) -> None:
    raise RuntimeError("can't start new thread")


CRASHED = "internal error: ZeroDivisionError: a bug"


@pytest.mark.parametrize(
    ("phases", "code", "log"),
    [
        ({}, 0, ["SIGTERM"]),
        ({"serve": halt}, 74, [HALT.reason]),
        ({"serve": full_disk}, 74, ["the disk"]),
        ({"serve": fail_in_a_part}, 74, ["the disk"]),
        ({"serve": bug}, 1, ["agent.crashed", CRASHED]),
        ({"serve": crash_in_a_part}, 1, ["agent.crashed", CRASHED]),
        ({"serve": bug, "leave": bug}, 1, ["agent.crashed", "agent.crashed", CRASHED]),
        ({"leave": bug}, 1, ["agent.crashed", CRASHED]),
        ({"serve": halt, "leave": bug}, 74, ["agent.crashed", HALT.reason]),
        ({"leave": halt}, 74, [HALT.reason]),
        ({"serve": bug, "leave": halt}, 74, ["agent.crashed", HALT.reason]),
    ],
)
def test_whatever_ends_a_daemon_ends_all_of_it_in_order(
    phases: dict[str, Callable[[Work], Awaitable[Any]]], code: int, log: list[str]
) -> None:
    work = Work(**phases)
    assert work.run() == (code, log)
    assert work.happened == WHOLE


def test_a_host_without_room_for_a_thread_is_no_bug() -> None:
    code, log = Work(serve=no_thread).run()
    assert code == 1
    assert len(log) == 1
    assert log[0].startswith("there is no room for another thread")


@pytest.mark.parametrize("error", [ConfigError("refused"), DiskError("refused"), ZeroDivisionError("refused")])
def test_a_refused_start_is_raised_and_lets_go(error: Exception) -> None:
    async def refuse(_: Work) -> None:
        raise error

    work = Work(open=refuse)
    with pytest.raises(type(error), match="refused"):
        asyncio.run(work.daemon.run(work, "interrupted"))
    assert work.happened == ["open", "close"]


async def interrupted(_: Work) -> None:
    await terminate()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("phase", "happened"), [("open", ["open", "close"]), ("serve", ["open", "serve", "part ended", "close"])]
)
def test_a_signal_interrupts_a_start_and_a_second_one_not_the_clean_up(
    phase: str, happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(ending.Deadline, "within", lambda _, ms: limits.append(ms))
    work = Work(**{phase: interrupted, "close": lambda _: terminate()})
    code, log = work.run()
    assert (code, log) == (0, ["agent.signal", "agent.signal", "interrupted"])
    assert work.happened == happened
    assert limits == [ending.END_TIMEOUT_MS, ending.LEAVE_TIMEOUT_MS], "from the signal on, and from the last line on"


def test_a_daemon_that_serves_hears_each_signal() -> None:
    heard: list[int] = []

    async def serve(work: Work) -> None:
        work.daemon.on_signal = heard.append
        await terminate()

    assert Work(serve=serve).run() == (0, ["agent.signal", "agent.signal", "SIGTERM"])
    assert heard == [signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("phase", ["leave", "close"])
def test_a_first_signal_during_the_end_interrupts_nothing(phase: str) -> None:
    async def end(_: Work) -> None:
        await terminate()
        await asyncio.sleep(0)

    work = Work(**{phase: end})
    assert work.run()[0] == 0
    assert work.happened == WHOLE


@pytest.mark.parametrize(
    ("ended", "timeout_ms", "limit_ms"),
    [
        (CLEAN, None, ending.END_TIMEOUT_MS),
        (HALT, None, ending.HALT_TIMEOUT_MS),
        (CLEAN, 15_000, 15_000),
        (HALT, 15_000, 15_000),
    ],
)
def test_the_end_has_its_time_from_the_decision_on(
    ended: Ended, timeout_ms: int | None, limit_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []
    monkeypatch.setattr(ending.Deadline, "within", lambda _, ms: limits.append(ms))
    Ending("agent", SystemClock(), timeout_ms=timeout_ms).limit(ended)
    assert limits == [limit_ms]


def test_a_daemon_with_a_last_line_of_its_own_says_that_alone() -> None:
    said: list[Ended] = []
    with structlog.testing.capture_logs() as logged:
        Ending("controller", SystemClock(), say=said.append).leave(HALT)
    assert (said, logged) == ([HALT], [])
