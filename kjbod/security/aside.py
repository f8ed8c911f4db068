"""Run calls that may block in threads of their own: files on a disk that hangs, name servers and KDCs that do not
answer. The threads are daemon threads, so the process does not wait for them at its end."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from msgspec import Struct

from kjbod.errors import KjbodError

T = TypeVar("T")
CALLS_MAX: Final = 16
"""Maximum number of calls at a time, including calls whose caller has given up. Further calls wait."""
LOST_AFTER_S: Final = 30.0
"""A call that is this long past its time limit counts as lost. Another call gets its slot; its thread stays until the
call ends."""
LOST_MAX: Final = 48
"""Maximum number of lost calls at a time. With more, new calls wait until a lost call ends."""


def in_thread(work: Callable[[], T], trouble: str = "TLS cannot be set up") -> Future[T]:
    """Run ``work`` in a daemon thread and return a future of its result, or of a :class:`KjbodError` with the reason.
    ``trouble`` begins the message of an error that is no :class:`KjbodError`, for example no memory."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # a caller that gives up does not cancel the call

    def run() -> None:
        try:
            found = work()
        except KjbodError as error:
            answer.set_exception(error)
        except BaseException as error:  # noqa: BLE001  no file, no memory, a library in trouble: all may pass
            answer.set_exception(KjbodError(f"{trouble}: {type(error).__name__}: {error}"))
        else:
            answer.set_result(found)

    try:
        threading.Thread(target=run, name="kjbod-security", daemon=True).start()
    except RuntimeError as error:
        answer.set_exception(KjbodError(f"there is no room for a thread ({error})"))
    return answer


def on_this_loop(answer: Future[T]) -> asyncio.Future[T]:
    """Return a future of this event loop with the result of ``answer``. A caller may give up waiting: an unread failure
    is not logged, and an event loop that has ended is no error."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def copy() -> None:
        if found.done():
            return
        error = answer.exception()
        if error is None:
            found.set_result(answer.result())
        else:
            found.set_exception(error)
            found.exception()  # otherwise asyncio logs a failure without a waiter as a bug

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(copy)

    answer.add_done_callback(tell)
    return found


class Aside:
    """Calls of one event loop that may block, at most :data:`CALLS_MAX` at a time.

    A call on a mount that hangs keeps its thread for good, even after a new disk is mounted there. Without a limit for
    lost calls, a few such calls would block all others.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._lost = 0

    async def run(self, work: Callable[[], T], trouble: str, *, timeout_ms: int) -> T:
        """Return the result of ``work``. After ``timeout_ms``, including the wait for a slot, the call continues
        without its caller.

        Raises:
            KjbodError: ``work`` raised it, or there was no result in time.
        """
        loop, turn = asyncio.get_running_loop(), None
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._turns.acquire()
                turn = _Turn()
                answer = in_thread(work, trouble)
                answer.add_done_callback(lambda _: self._tell_end(loop, turn))
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            if turn is not None:
                loop.call_later(LOST_AFTER_S, self._lose, turn)
            raise KjbodError(f"{trouble}: no answer within {timeout_ms} ms") from None

    def _tell_end(self, loop: asyncio.AbstractEventLoop, turn: "_Turn") -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended before the call
            loop.call_soon_threadsafe(self._end, turn)

    def _end(self, turn: "_Turn") -> None:
        turn.ended = True
        if turn.lost:
            self._lost -= 1
        else:
            self._turns.release()

    def _lose(self, turn: "_Turn") -> None:
        if not turn.ended and self._lost < LOST_MAX:
            turn.lost = True
            self._lost += 1
            self._turns.release()


class _Turn(Struct):
    """Slot of a call."""

    ended: bool = False
    lost: bool = False
    """Whether the slot was given to another call."""
