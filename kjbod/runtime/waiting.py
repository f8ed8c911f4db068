"""Waiting with a limit that counts only the time in which this process ran."""

import asyncio
from collections.abc import Callable
from typing import Any

from kjbod.clock import Clock
from kjbod.observed import Patience


async def is_done_in_time(
    work: "asyncio.Future[Any]", timeout_ms: int, clock: Clock, *, counts: Callable[[], bool] = lambda: True
) -> bool:
    """Wait until ``work`` is done, for ``timeout_ms`` of observed time; whether it is. It goes on if not.

    Args:
        work: a future or task.
        timeout_ms: how long.
        clock: tells when this process looked.
        counts: whether what was waited for could have gone on since the last look.
    """
    patience = Patience(timeout_ms, clock.monotonic_ms())
    while not work.done():
        await asyncio.wait({work}, timeout=patience.step_ms / 1000)
        if patience.is_over(clock.monotonic_ms(), counts=counts()):
            break
    return work.done()
