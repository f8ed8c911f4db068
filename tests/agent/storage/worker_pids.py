"""Process ids of storage workers, for signals: 0, which one has until its id is told, would be the whole session."""

import asyncio
from typing import Final

from kjbod_host.storage.posix import PosixDirectoryAgent

TOLD_S: Final = 60


async def pid_of(agent: PosixDirectoryAgent) -> int:
    """The worker's process id, once it is told: that may come after the answer to the first request."""
    async with asyncio.timeout(TOLD_S):
        while not agent.worker_pid:  # noqa: ASYNC110  it comes without any event
            await asyncio.sleep(0.001)
    return agent.worker_pid
