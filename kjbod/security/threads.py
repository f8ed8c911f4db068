"""Work that blocks, in a thread of its own which nobody waits for at the end of the process: a file may lie on a disk
that hangs, and a host may not answer."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from kjbod.errors import KjbodError

ResultT = TypeVar("ResultT")


def in_thread(work: Callable[[], ResultT], words: str) -> Future[ResultT]:
    """The result of ``work``, or the reason why there is none as a :class:`KjbodError`: one of ``work``'s own, else
    ``words`` with what it was."""
    answer: Future[ResultT] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            found = work()
        except KjbodError as error:
            answer.set_exception(error)
        except BaseException as error:  # noqa: BLE001  no file, no memory, a library in trouble: all may pass
            answer.set_exception(KjbodError(f"{words}: {type(error).__name__}: {error}"))
        else:
            answer.set_result(found)

    try:
        threading.Thread(target=run, name="kjbod-security", daemon=True).start()
    except RuntimeError as error:
        answer.set_exception(KjbodError(f"there is no room for a thread ({error})"))
    return answer


def on_this_loop(answer: Future[ResultT]) -> asyncio.Future[ResultT]:
    """``answer`` for whoever awaits it here, and may give up waiting: a failure that nobody hears is no bug, and a loop
    that has ended before is none either."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[ResultT] = loop.create_future()

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
