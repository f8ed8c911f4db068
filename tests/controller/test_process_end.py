"""The end of a controller's process: what the log and stderr say, and the exit code."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from kjbod.errors import EXIT_FAILURE, StorageError
from kjbod_controller_stub import process
from kjbod_controller_stub.server import ControllerServer
from tests.agent.core.test_ending import in_this_process, terminate
from tests.controller.conftest import Site

__all__ = ["in_this_process"]


class Server:
    """A server that ends as a test says."""

    clock = log = quorum = SimpleNamespace(epoch=3, end_offset=858)
    abandoned = False

    def __init__(self, run: Callable[["Server"], Awaitable[None]]) -> None:
        self._run = run
        self.stopped = asyncio.Event()
        self.closed = 0

    def watch(self) -> SimpleNamespace:
        return SimpleNamespace(process_ids=tuple)

    async def run(self, _: object) -> None:
        await self._run(self)

    def stop(self) -> None:
        self.stopped.set()

    async def close(self) -> None:
        self.closed += 1


class ExitedError(BaseException):
    """The process ended here."""


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this process is changed for good."""

    def end(code: int) -> None:
        raise ExitedError(code)

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(process, "settle_memory", lambda: None)


def run(
    site: Site, monkeypatch: pytest.MonkeyPatch, work: Callable[[Server], Awaitable[None]], *, abandoned: bool = False
) -> tuple[int, list[Any]]:
    """Exit code of a controller whose server does this, and its log."""
    monkeypatch.setattr(Server, "abandoned", abandoned)

    async def start(*_: object, **__: object) -> Server:
        return Server(work)

    monkeypatch.setattr(ControllerServer, "start", start)
    with structlog.testing.capture_logs() as logged:
        return asyncio.run(process.Controller(site.config).run()), logged


async def fail(_: Server) -> None:
    raise StorageError("the log\ncannot be written")


async def crash(_: Server) -> None:
    raise ZeroDivisionError("a bug")


async def no_thread(_: Server) -> None:
    raise RuntimeError("can't start new thread")


async def until_stopped(server: Server) -> None:
    await terminate()
    await server.stopped.wait()


LAST = {"event": "controller.stopped", "end_offset": 858, "log_level": "info"}


def test_a_signal_ends_it_in_good_order_and_the_last_line_has_its_offset(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(site, monkeypatch, until_stopped) == (0, [LAST])


@pytest.mark.parametrize(
    ("work", "events", "reason"),
    [
        (fail, ["controller.failed"], "the log\ncannot be written"),
        (crash, ["controller.crashed", "controller.failed"], "internal error: ZeroDivisionError: a bug"),
        (no_thread, ["controller.failed"], "there is no room for another thread: "),
    ],
)
def test_a_failure_is_in_the_log_and_on_stderr(
    site: Site,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    work: Callable[[Server], Awaitable[None]],
    events: list[str],
    reason: str,
) -> None:
    code, logged = run(site, monkeypatch, work)
    assert code == EXIT_FAILURE
    assert [line["event"] for line in logged[:-1]] == events
    assert logged[-1] == LAST
    assert logged[-2]["reason"].startswith(reason)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"kjbod: {line}" for line in logged[-2]["reason"].splitlines()]


@pytest.mark.parametrize("work", [until_stopped, fail])
def test_a_thread_that_was_left_behind_ends_the_process_at_once_and_never_well(
    site: Site, monkeypatch: pytest.MonkeyPatch, work: Callable[[Server], Awaitable[None]]
) -> None:
    with pytest.raises(ExitedError, match=str(EXIT_FAILURE)):
        run(site, monkeypatch, work, abandoned=True)


def test_a_start_that_a_signal_interrupts_is_given_up_and_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[str] = []

    async def start(*_: object, **__: object) -> Server:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            given_up.append("start")
        raise AssertionError

    monkeypatch.setattr(ControllerServer, "start", start)
    with structlog.testing.capture_logs() as logged, pytest.raises(ExitedError, match="0"):
        asyncio.run(process.Controller(site.config).run())
    assert given_up == ["start"]
    assert logged == [{"event": "controller.stopped", "reason": process.INTERRUPTED, "log_level": "info"}]


async def test_a_server_that_has_started_just_when_its_start_is_cancelled_is_closed(site: Site) -> None:
    server = Server(fail)
    starting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(process.started(starting, site.config))
    await asyncio.sleep(0)
    starting.set_result(server)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert server.closed == 1
