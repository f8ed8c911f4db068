"""Calls that may block, in threads of their own: files that may lie on a disk that hangs, name servers and KDCs that
may not answer. A thread is a daemon's, and nobody waits for it at the end of the process."""

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
"""Calls at a time, those that nobody waits for any more included; others wait for their turn."""
LOST_AFTER_S: Final = 30.0
"""So long behind its time limit a call is lost: its turn is another one's, its thread stays for as long as it does."""
LOST_MAX: Final = 48
"""Calls that count as lost at a time; with more, others wait until one has ended."""


def in_thread(work: Callable[[], T], trouble: str = "TLS cannot be set up") -> Future[T]:
    """The result of ``work``, or the reason why there is none as a :class:`KjbodError`; ``trouble``: what goes wrong
    where the reason is another one, no memory for example."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()  # who gives up does not cancel it

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
    """``answer`` for whoever awaits it here, and may give up waiting: a failure that nobody hears is no bug, and a loop
    that has ended before is none either."""
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
            found.exception()  # else one that nobody awaits any more is logged as a bug

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(copy)

    answer.add_done_callback(tell)
    return found


class Aside:
    """Calls of one event loop that may block, at most :data:`CALLS_MAX` at a time.

    A file on a mount that hangs keeps its thread for good, also when another one has taken the mount's place: without
    an end to that, some such calls would be the last ones.
    """

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._lost = 0

    async def run(self, work: Callable[[], T], trouble: str, *, timeout_ms: int) -> T:
        """The result of ``work``. After ``timeout_ms``, the wait for its turn included, it goes on without us.

        Raises:
            KjbodError: of ``work``, or that there was no result in time.
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
    """A call's."""

    ended: bool = False
    lost: bool = False
    """Whether its turn is another one's."""
