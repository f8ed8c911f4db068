"""The event loop of kjbod's processes."""

import asyncio
import os
import signal
import sys

import pytest
import uvloop

from kjbod.runtime.loop import EXIT_INTERRUPTED, run


def test_the_exit_code_is_mains_and_the_loop_is_uvloop() -> None:
    async def main() -> int:
        assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
        return 74

    assert run(main) == 74


def test_without_uvloop_it_runs_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        return 0 if "uvloop" not in type(asyncio.get_running_loop()).__module__ else 1

    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(main) == 0


def test_an_error_of_main_comes_out() -> None:
    async def main() -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)


def test_an_interrupt_that_nobody_handles_is_130() -> None:
    async def main() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return 0

    assert run(main) == EXIT_INTERRUPTED
