"""Slow read-only work, done once for all callers with the same question, in one thread beside the event loop.

A caller joins work that has not begun, never work that runs: its data may be older than a change that the caller knows.
So for any number of callers, one piece of work runs and one per question waits.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

Begin = Callable[[], Awaitable[Callable[[], T]]]
"""Reads the needed state on the event loop when the work is due, and returns the work, which must not read the
state."""


class _Piece(Generic[T]):
    """Piece of work that waits to run."""

    def __init__(self, begin: Begin[T]) -> None:
        self.begin = begin
        self.made: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.askers = 0


class SharedWork(Generic[T]):
    """A thread for shared work, and the callers that wait for it. Call :meth:`close` at the end.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        """The thread. Other code may also use it for work that can wait."""
        self.asked = 0
        """Callers that wait."""
        self._waiting: dict[Hashable, _Piece[T]] = {}
        self._order: deque[Hashable] = deque()
        self._running: asyncio.Task[None] | None = None

    async def get(self, key: Hashable, begin: Begin[T]) -> T:
        """Return the result of the work from ``begin``, or of the work that another caller began with an equal ``key``.

        Raises:
            Exception: error of ``begin`` or of the work, for all callers.
        """
        piece = self._waiting.get(key)
        if piece is None:
            self._order.append(key)
        if piece is None or piece.made.done():  # all callers of the old piece have gone
            piece = self._waiting[key] = _Piece(begin)
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._run())
        self.asked += 1
        piece.askers += 1
        try:
            return await asyncio.shield(piece.made)
        finally:
            self.asked -= 1
            piece.askers -= 1
            if not piece.askers:
                piece.made.cancel()  # no effect if it is done

    async def _run(self) -> None:
        try:
            while self._order:
                piece = self._waiting.pop(self._order.popleft())
                if not piece.made.done():
                    await self._make(piece)
        finally:
            self._running = None

    async def _make(self, piece: _Piece[T]) -> None:
        try:
            work = await piece.begin()
            if piece.made.done():  # no caller waits for it any more
                return
            made = await asyncio.get_running_loop().run_in_executor(self.thread, work)
        except Exception as error:  # noqa: BLE001  whoever waits is told
            if not piece.made.done():
                piece.made.set_exception(error)
        else:
            if not piece.made.done():
                piece.made.set_result(made)

    def close(self) -> None:
        """Begin no more work. The caller must cancel the waiting callers."""
        if self._running is not None:
            self._running.cancel()
        self.thread.shutdown(wait=False, cancel_futures=True)
