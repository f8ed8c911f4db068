"""Exclusive turns at the controller's state: brokers' requests first, then all others, each in order.

A broker that reports a dead disk has no time to wait behind others' questions (:class:`Rank`). What a client asks
after it was answered comes later whatever its rank, so that nobody misses a change of its own.

Small work is done on the event loop at once. Large work is done in one thread beside it, so that the loop goes on to
read requests and to answer those that need no turn; whoever needs one waits until the large work is settled. There is
never more than one piece of work under way, so the state needs no lock.

A turn belongs to nobody's task: a client that goes away while its change is being made does not stop it half way.
"""

import asyncio
import enum
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.metrics.distribution import Distribution

TURNS_AT_ONCE = 32
"""So many small turns are taken before the loop looks at its sockets again."""
TURNS_MS_MAX = 5
"""So long turns are taken before it does; the one under way is ended."""


class Rank(enum.IntEnum):
    """Order of the waiting turns: lower numbers go first."""

    BROKERS = 0
    """What brokers tell the controller, and its own timers."""
    OTHERS = 1
    """Administrators and readers."""


class _Turn(Struct, frozen=True):
    work: Callable[[], Any]
    settle: Callable[[Any], None]
    fail: Callable[[BaseException], None]
    is_large: Callable[[], bool]
    asked_ns: int = 0


class TurnTimes:
    """Wait times and durations of turns, for metrics."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.queued = Distribution()
        self.worked = Distribution()


class Turns:
    """Turns on one event loop. Made where the loop runs; :meth:`close` it.

    Args:
        now_s: a clock in seconds, for :data:`TURNS_MS_MAX`; the event loop's by default.
    """

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self.times: TurnTimes | None = None
        """Where turns are measured; None: they are not."""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="controller")
        """The one thread for large work. Others may have it read large requests."""
        self._waiting: tuple[deque[_Turn], ...] = tuple(deque() for _ in Rank)
        self._now_s = now_s
        self._taken = False
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    def __len__(self) -> int:
        return sum(map(len, self._waiting))

    def take(
        self,
        work: Callable[[], Any],
        *,
        settle: Callable[[Any], None],
        fail: Callable[[BaseException], None],
        is_large: Callable[[], bool],
        rank: Rank = Rank.BROKERS,
    ) -> None:
        """Run ``work`` in its turn.

        Args:
            work: reads and changes the state; in the thread where it is large.
            settle: called with the result of ``work``, on the event loop, before the next turn begins.
            fail: called with the error of ``work`` or ``settle``, on the event loop.
            is_large: asked on the loop when the turn begins, so that it may read the state.
            rank: turns of a lower number go first.
        """
        asked_ns = 0 if self.times is None else self.times.clock.monotonic_ns()
        self._waiting[rank].append(_Turn(work, settle, fail, is_large, asked_ns))
        if not self._taken:
            self._go_on()

    def _go_on(self) -> None:
        self._taken = True
        self._idle.clear()
        loop = asyncio.get_running_loop()
        now_s = self._now_s or loop.time
        begun_s = now_s()
        for _ in range(TURNS_AT_ONCE):
            waiting = next(filter(None, self._waiting), None)
            if waiting is None:
                self._taken = False
                self._idle.set()
                return
            if not self._begin(waiting.popleft()):
                return
            if (now_s() - begun_s) * 1000 >= TURNS_MS_MAX:
                break
        loop.call_soon(self._go_on)

    def _begin(self, turn: _Turn) -> bool:
        """Begin the turn, and return whether it is already over."""
        begun_ns = self._measure_wait(turn)
        try:
            if not self._closed and turn.is_large():
                working = asyncio.get_running_loop().run_in_executor(self.thread, turn.work)
                working.add_done_callback(lambda future: self._worked(turn, future, begun_ns))
                return False
            turn.settle(turn.work())
        except Exception as error:  # noqa: BLE001  whoever waits for the turn is told
            turn.fail(error)
        self._measure_work(begun_ns)
        return True

    def _measure_wait(self, turn: _Turn) -> int:
        """Return the monotonic nanoseconds at which the turn begins; 0: not measured."""
        if self.times is None:
            return 0
        begun_ns = self.times.clock.monotonic_ns()
        self.times.queued.add(begun_ns - (turn.asked_ns or begun_ns))
        return begun_ns

    def _measure_work(self, begun_ns: int) -> None:
        if self.times is not None and begun_ns:
            self.times.worked.add(self.times.clock.monotonic_ns() - begun_ns)

    def _worked(self, turn: _Turn, future: "asyncio.Future[Any]", begun_ns: int) -> None:
        self._measure_work(begun_ns)
        try:
            turn.settle(future.result())
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
            turn.fail(error)
        self._go_on()

    async def close(self) -> None:
        """Wait for the turns in progress. From here on large work runs on the event loop, because no client is
        served."""
        self._closed = True
        await self._idle.wait()
        self.thread.shutdown(wait=True)
