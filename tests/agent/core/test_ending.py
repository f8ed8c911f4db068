"""What was decided of the end of an agent or a guard stands, whatever signal comes then."""

import asyncio
import os
import random
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod_agent import daemon
from kjbod_guard import daemon as guard_daemon
from kjbod_host import ending
from kjbod_host.ending import Ended, Ending
from tests.agent.core.configured import read

REFUSED = Ended(78, "refused", clean=False)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread that ends it, and no signal of its own taken for good."""
    monkeypatch.setattr(ending, "outlive_signals", lambda _: None)
    monkeypatch.setattr(ending.Deadline, "start", lambda _: None)


async def terminate() -> None:
    """SIGTERM to this process, and time for the event loop to hear of it."""
    heard = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, heard.set)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    await heard.wait()


class RefusingStorage:
    """Refuses the start, and gets a signal while it cleans up."""

    async def start(self) -> None:
        raise KjbodError(REFUSED.reason)

    async def close(self) -> None:
        await terminate()


def agent() -> Coroutine[Any, Any, int]:
    return daemon.Agent(read(""), (), SystemClock(), random.Random(1)).run()


def guard() -> Coroutine[Any, Any, int]:
    return guard_daemon.Guard(read(""), "server.properties", SystemClock(), random.Random(1)).run()


@pytest.mark.parametrize("run", [agent, guard])
def test_a_signal_during_the_clean_up_of_a_refused_start_leaves_the_refusal(
    run: Callable[[], Coroutine[Any, Any, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (daemon, guard_daemon):
        monkeypatch.setattr(module, "create", lambda *_: RefusingStorage())
    with pytest.raises(KjbodError, match=REFUSED.reason):
        asyncio.run(run())


def test_no_signal_is_heard_after_the_last_line() -> None:
    async def leave() -> list[int]:
        heard: list[int] = []
        one = Ending("agent", SystemClock())
        one.start(heard.append)
        await terminate()
        before = list(heard)
        one.leave(REFUSED)
        await terminate()
        assert one.signals == len(before)
        assert heard == before
        return before

    assert asyncio.run(leave()) == [signal.SIGTERM, signal.SIGINT]


def test_an_agent_that_ends_before_it_has_a_broker_is_not_interrupted_by_a_first_signal() -> None:
    async def finish() -> str:
        one = daemon.Agent(read(""), (), SystemClock(), random.Random(1))
        one._daemon._main = asyncio.current_task()
        one._ending.start(one._daemon._signalled)
        one._ending.limit(REFUSED)
        await terminate()
        return "whole"

    assert asyncio.run(finish()) == "whole"


def test_the_exit_code_of_a_late_end_is_that_of_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    exited: list[int] = []
    monkeypatch.setattr(os, "_exit", exited.append)
    one = Ending("guard", SystemClock())
    one.limit(REFUSED)
    one.say_stopped(Ended(0, "SIGTERM", clean=True))
    one._exit_now()
    assert exited == [0]
