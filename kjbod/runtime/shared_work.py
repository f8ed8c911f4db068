"""Work that takes long and changes nothing: made once for all who ask the same, in one thread beside the event loop.

Who asks joins work that has not begun, never work under way: what that was made from may be older than a change of
which the asker knows already. So however many ask, and however often, there is one piece of work under way and one
that waits for each question.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")

Begin = Callable[[], Awaitable[Callable[[], T]]]
"""Takes from the state what the work needs, on the event loop, when the work's time has come; gives the work, which
must not look at the state."""


class _Piece(Generic[T]):
    """Work that waits for its time."""

    def __init__(self, begin: Begin[T]) -> None:
        self.begin = begin
        self.made: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.askers = 0


class SharedWork(Generic[T]):
    """A thread for shared work, and the askers who wait for it. Call :meth:`close` at the end.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        """The thread. Others may have it do work that may wait as well."""
        self.asked = 0
        """Askers that wait."""
        self._waiting: dict[Hashable, _Piece[T]] = {}
        self._order: deque[Hashable] = deque()
        self._running: asyncio.Task[None] | None = None

    async def get(self, key: Hashable, begin: Begin[T]) -> T:
        """The result of the work that ``begin`` gives, or of that for another who asked with an equal ``key``.

        Raises:
            Exception: what ``begin`` or the work raised, for all who asked.
        """
        piece = self._waiting.get(key)
        if piece is None:
            self._order.append(key)
        if piece is None or piece.made.done():  # all who asked for it have gone
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
                piece.made.cancel()  # no effect where it is done

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
            if piece.made.done():  # nobody waits for it any more
                return
            made = await asyncio.get_running_loop().run_in_executor(self.thread, work)
        except Exception as error:  # noqa: BLE001  whoever waits is told
            if not piece.made.done():
                piece.made.set_exception(error)
        else:
            if not piece.made.done():
                piece.made.set_result(made)

    def close(self) -> None:
        """Begin nothing more. Whoever waits is to be cancelled by others."""
        if self._running is not None:
            self._running.cancel()
        self.thread.shutdown(wait=False, cancel_futures=True)
