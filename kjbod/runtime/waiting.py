"""Waiting with a limit that counts only the time in which this process ran."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kjbod.clock import Clock
from kjbod.observed import ObservedTimeout


async def is_done_in_time(
    work: "asyncio.Future[Any]", timeout_ms: int, clock: Clock, *, counts: Callable[[], bool] = lambda: True
) -> bool:
    """Wait until ``work`` is done, for at most ``timeout_ms`` of observed time, and return whether it is. Unfinished
    work continues.

    Args:
        work: a future or task.
        timeout_ms: time limit.
        clock: clock of the observed time.
        counts: whether the awaited process could have made progress since the last check.
    """
    patience = ObservedTimeout(timeout_ms, clock.monotonic_ms())
    while not work.done():
        await asyncio.wait({work}, timeout=patience.step_ms / 1000)
        if patience.is_over(clock.monotonic_ms(), counts=counts()):
            break
    return work.done()


def process_sleep(pid: int) -> tuple[str, str]:
    """Return the state letter and kernel function of a sleeping process from ``/proc``
    (:func:`kjbod.observed.could_go_on`); empty text for values that cannot be read."""
    state = wchan = ""
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    with contextlib.suppress(OSError):
        wchan = Path(f"/proc/{pid}/wchan").read_text()
    return state, "" if wchan == "0" else wchan
