"""The event loop of kjbod's processes."""

import asyncio
import os
import signal
import subprocess
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


_SIGNALLED_TO_THE_LAST = """
import asyncio, atexit, os, signal, sys
if sys.argv[1] == "asyncio":
    sys.modules["uvloop"] = None
from kjbod.errors import KjbodError
from kjbod.runtime.loop import run_daemon
from kjbod.runtime.signals import ENDING, PASSED_OVER

def all_signals():
    for number in (*ENDING, *PASSED_OVER):
        os.kill(os.getpid(), number)

class ModulesGo:
    # A cycle of what a module has is taken down when Python has given signals back to the system.
    def __init__(self):
        self.itself = self
    def __del__(self, kill=os.kill, pid=os.getpid(), numbers=(*ENDING, *PASSED_OVER), write=os.write):
        for number in numbers:
            kill(pid, number)
        write(1, b"to the last")

async def closing():
    try:
        yield 1
        yield 2
    finally:
        all_signals()

async def main():
    global generator
    for number in (*ENDING, *PASSED_OVER):
        asyncio.get_running_loop().add_signal_handler(number, lambda: None)
    generator = closing()
    await anext(generator)
    all_signals()
    if sys.argv[2] == "refused":
        raise KjbodError("refused")
    return 74

atexit.register(all_signals)
sys.modules["__main__"].last = ModulesGo()
try:
    exit_code = run_daemon(main)
except KjbodError:
    exit_code = 74
all_signals()
sys.exit(exit_code)
"""


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("ends", ["returns", "refused"])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_daemon_ends_as_was_decided_whatever_signal_comes_until_it_has_gone(loop: str, ends: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _SIGNALLED_TO_THE_LAST, loop, ends],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (74, "to the last", "")
