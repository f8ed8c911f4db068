"""Jobs on one log directory: one after the other, in order, and none waits for another directory."""

import asyncio
import errno
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kjbod_host.storage.api import DirectoryAgent, DirectoryError, WorkerUnavailable

Job = Callable[[], Awaitable[None]]
T = TypeVar("T")


class DirectoryWork:
    """The queue of one directory.

    Args:
        agent: its storage agent.
    """

    def __init__(self, agent: DirectoryAgent) -> None:
        self.agent = agent
        self._jobs: deque[Job] = deque()
        self._asked: set[asyncio.Future[None]] = set()
        self._wake = asyncio.Event()

    def add(self, job: Job) -> None:
        """Queue a job. It must not raise."""
        self._jobs.append(job)
        self._wake.set()

    async def ask(self, job: Callable[[], Awaitable[T]]) -> T:
        """Queue a job and wait for what it gives or raises.

        Raises:
            WorkerUnavailable: the directory failed before the job had its turn.
        """
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over = asyncio.Event()

        async def hold() -> None:
            if not turn.done():
                turn.set_result(None)
                await over.wait()

        self._asked.add(turn)
        self.add(hold)
        try:
            await turn
            return await job()
        finally:
            self._asked.discard(turn)
            over.set()

    def clear(self) -> None:
        """Forget what has not begun: the directory failed."""
        self._jobs.clear()
        for turn in self._asked:
            if not turn.done():
                turn.set_exception(WorkerUnavailable(self.agent.path, "the directory has failed"))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            while self._jobs:
                await self._jobs.popleft()()
            self._wake.clear()
            await self._wake.wait()


async def rename_once(agent: DirectoryAgent, name: str, new_name: str, *, timeout_ms: int) -> None:
    """Rename a replica directory, which an earlier attempt without an answer may have done.

    Raises:
        StorageError: it has not the new name, or nobody knows.
    """
    try:
        await agent.rename_replica(name, new_name, timeout_ms=timeout_ms)
    except DirectoryError as error:
        if error.errno not in (errno.ENOENT, errno.EEXIST, errno.EPERM, errno.EACCES):
            raise
        there = await agent.replica_sizes([name, new_name], timeout_ms=timeout_ms)
        if name in there or new_name not in there:
            raise error from None
