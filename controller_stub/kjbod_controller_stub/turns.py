"""Who may touch the controller's state: one at a time, in the order in which they came.

Small work is done on the event loop at once. Large work is done in one thread beside it, so that the loop goes on to
read requests and to answer those that need no turn; whoever needs one waits until the large work is settled. There is
never more than one piece of work under way, so the state needs no lock.

A turn belongs to nobody's task: a client that goes away while its change is being made does not stop it half way.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

TURNS_AT_ONCE = 32
"""So many small turns are taken before the loop looks at its sockets again."""


@dataclass(frozen=True, slots=True)
class _Turn:
    work: Callable[[], Any]
    settle: Callable[[Any], None]
    fail: Callable[[BaseException], None]
    is_large: Callable[[], bool]


class Turns:
    """Turns on one event loop. Made where the loop runs; :meth:`close` it."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="controller")
        """The one thread for large work. Others may have it read large requests."""
        self._waiting: deque[_Turn] = deque()
        self._taken = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return len(self._waiting)

    def take(
        self,
        work: Callable[[], Any],
        *,
        settle: Callable[[Any], None],
        fail: Callable[[BaseException], None],
        is_large: Callable[[], bool],
    ) -> None:
        """Do ``work`` when it is its turn.

        Args:
            work: reads and changes the state; in the thread where it is large.
            settle: gets what ``work`` returned, on the loop, before the next turn begins.
            fail: gets what ``work`` or ``settle`` raised, on the loop.
            is_large: asked on the loop when the turn begins, so that it may read the state.
        """
        self._waiting.append(_Turn(work, settle, fail, is_large))
        if not self._taken:
            self._go_on()

    def _go_on(self) -> None:
        self._taken = True
        self._idle.clear()
        for _ in range(TURNS_AT_ONCE):
            if not self._waiting:
                self._taken = False
                self._idle.set()
                return
            if not self._begin(self._waiting.popleft()):
                return
        asyncio.get_running_loop().call_soon(self._go_on)

    def _begin(self, turn: _Turn) -> bool:
        """Whether the turn is over already."""
        try:
            if not self._closed and turn.is_large():
                working = asyncio.get_running_loop().run_in_executor(self.thread, turn.work)
                working.add_done_callback(lambda future: self._worked(turn, future))
                return False
            turn.settle(turn.work())
        except Exception as error:  # noqa: BLE001  whoever waits for the turn is told
            turn.fail(error)
        return True

    def _worked(self, turn: _Turn, future: "asyncio.Future[Any]") -> None:
        try:
            turn.settle(future.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            turn.fail(error)
        self._go_on()

    async def close(self) -> None:
        """Wait for the turns that were taken. What is large is done on the loop from here on: nobody is served."""
        self._closed = True
        await self._idle.wait()
        self.thread.shutdown(wait=True)
