"""Sight of the broker during a trial of the guard benchmark."""

import asyncio
import concurrent.futures
import contextlib
import time
from pathlib import Path
from typing import Final

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.wire.client import Connection
from kjbod.wire.messages import ApiVersionsRequest
from scripts.rig.java_clients import now_ms
from scripts.rig.stuck_threads import Stuck, stuck_threads

_POLL_S: Final = 0.02
_ASK_VERSIONS: Final = ApiVersionsRequest(client_software_name="kjbod-rig", client_software_version="1")
"""Without a name a broker answers INVALID_REQUEST, and -1 as the offset."""


def sleep_until(moment_ms: float) -> None:
    """Until a moment of the wall clock; at once where that is over."""
    time.sleep(max(0.0, (moment_ms - now_ms()) / 1000))


def look(pid: int, fault_ms: float, moments: dict[str, int], end_ms: float) -> dict[str, list[Stuck]]:
    """The stuck threads of a process at some moments after the fault, by their names."""
    found = {}
    for name, after_ms in moments.items():
        if fault_ms + after_ms <= end_ms:
            sleep_until(fault_ms + after_ms)
            found[name] = stuck_threads(pid)
    return found


def next_checkpoint(file: Path, fault_ms: float, end_ms: float) -> float | None:
    """Moment at which a checkpoint was written anew, in milliseconds after the fault; None: not before the end."""
    while now_ms() < end_ms:
        with contextlib.suppress(OSError):
            moment_ms = file.stat().st_mtime * 1000
            if moment_ms > fault_ms:
                return moment_ms - fault_ms
        time.sleep(_POLL_S)
    return None


def applied_offset(port: int, timeout_s: float = 1.0) -> int | None:
    """The metadata offset that a broker has applied, by its ApiVersions answer; None when it does not answer."""

    async def exchange() -> int:
        async with (
            asyncio.timeout(timeout_s),
            await Connection.open("127.0.0.1", port, client_id="kjbod-rig", clock=SystemClock()) as connection,
        ):
            answer = await connection.request(_ASK_VERSIONS, timeout_ms=round(timeout_s * 1000))
            return answer.finalized_features_epoch

    try:
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, exchange()).result()
    except (KjbodError, OSError, TimeoutError):
        return None
