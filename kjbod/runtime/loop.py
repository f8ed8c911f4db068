"""The event loop that kjbod's processes run on."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from kjbod.runtime.signals import ignore_signals

TRANSPORT_GONE = (ConnectionError, RuntimeError)
"""Errors of a write to a transport whose peer is gone. uvloop closes the handle at once and raises ``RuntimeError:
unable to perform operation on <...>; the handler is closed``; asyncio drops the data."""
EXIT_INTERRUPTED = 130
"""128 + SIGINT, the exit code that shells use."""


_SWITCH_S = 0.001
"""Time for which a computing thread may keep the interpreter while the event loop waits for it."""


def share_interpreter() -> None:
    """Make computing threads release the interpreter to the event loop soon."""
    sys.setswitchinterval(_SWITCH_S)


class _Loop(asyncio.SelectorEventLoop):
    """Event loop of asyncio that, like uvloop, leaves ignored signals ignored when it closes."""

    def remove_signal_handler(self, sig: int) -> bool:
        return signal.getsignal(sig) != signal.SIG_IGN and super().remove_signal_handler(sig)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return the factory of uvloop, or of asyncio on platforms without uvloop."""
    try:
        import uvloop
    except ImportError:
        return _Loop
    return uvloop.new_event_loop


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``main()`` to its end and return its exit code; 130 if it was interrupted and did not handle that.

    ``asyncio.Runner`` is used rather than ``uvloop.run`` so that both loops start, cancel and close alike.
    """
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(main())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def run_daemon(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``main()`` as :func:`run` does, and then ignore signals, so that they cannot change its exit code or error.
    The process must end next."""

    async def whole() -> int:
        try:
            return await main()
        finally:
            ignore_signals()

    return run(whole)
