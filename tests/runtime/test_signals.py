"""SIGQUIT shows what a process does whose event loop hangs, and hangs nobody."""

import os
import signal
import threading
import time
from typing import Any, cast

from structlog.typing import FilteringBoundLogger

from kjbod.runtime.signals import dump_stacks_on


class Lines:
    def __init__(self) -> None:
        self.stacks: list[list[str]] = []
        self.told = threading.Event()

    def warning(self, event: str, **fields: Any) -> None:
        assert event == "signal.stacks"
        self.stacks.append(fields["stacks"])
        self.told.set()


def test_the_stacks_of_a_hung_main_thread_are_told() -> None:
    lines = Lines()
    dump_stacks_on(signal.SIGQUIT, cast(FilteringBoundLogger, lines))

    def quit_us() -> None:
        os.kill(os.getpid(), signal.SIGQUIT)
        lines.told.wait(20)  # without a step of Python while the stacks are walked

    asking = threading.Thread(target=quit_us)
    asking.start()
    while asking.is_alive():  # no event loop runs here
        time.sleep(0.01)
    asking.join()
    assert any("test_the_stacks_of_a_hung_main_thread_are_told" in line for line in lines.stacks[0])
