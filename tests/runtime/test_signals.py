"""SIGQUIT shows what a process does whose event loop hangs, and hangs nobody."""

import os
import signal
import threading
import time
from typing import Any, cast

from structlog.typing import FilteringBoundLogger

from kjbod.runtime.signals import dump_stacks_on
from scripts.rig.processes import wait_until


class Lines:
    def __init__(self) -> None:
        self.stacks: list[list[str]] = []

    def warning(self, event: str, **fields: Any) -> None:
        assert event == "signal.stacks"
        self.stacks.append(fields["stacks"])


def test_the_stacks_of_a_hung_main_thread_are_told() -> None:
    lines = Lines()
    dump_stacks_on(signal.SIGQUIT, cast(FilteringBoundLogger, lines))

    def quit_us() -> None:
        os.kill(os.getpid(), signal.SIGQUIT)
        wait_until(lambda: lines.stacks, 20, "the stacks")
        told.set()

    told = threading.Event()
    asking = threading.Thread(target=quit_us)
    asking.start()
    while not told.is_set():  # no event loop runs here
        time.sleep(0.01)
    asking.join()
    assert any("test_the_stacks_of_a_hung_main_thread_are_told" in line for line in lines.stacks[0])
