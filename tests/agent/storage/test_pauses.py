"""Requests to a directory, and a pause of the process in the middle: only time in which somebody looked counts."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
import uvloop

from kjbod.clock import SystemClock
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.posix import PosixStorageAgent
from tests.agent.storage.worker_pids import pid_of

TIMEOUT_MS = 400


@pytest.mark.usefixtures("world")
def test_an_answer_that_came_during_a_pause_is_heard_though_its_time_is_over(tmp_path: Path) -> None:
    """On uvloop, whose timers go before what lies in the sockets."""

    async def main() -> None:
        storage = PosixStorageAgent(StorageOptions(clock=SystemClock()))
        await storage.start()
        try:
            agent = storage.directory(str(tmp_path))
            await agent.load(timeout_ms=60_000)
            pid = await pid_of(agent)
            os.kill(pid, signal.SIGSTOP)

            def pause() -> None:
                os.kill(pid, signal.SIGCONT)
                time.sleep(3 * TIMEOUT_MS / 1000)  # the whole process stands still, and its worker does not

            asyncio.get_running_loop().call_later(TIMEOUT_MS / 4000, pause)
            await agent.probe(full=False, timeout_ms=TIMEOUT_MS)
        finally:
            await storage.close()

    with_uvloop = uvloop.new_event_loop()
    try:
        with_uvloop.run_until_complete(main())
    finally:
        with_uvloop.close()
