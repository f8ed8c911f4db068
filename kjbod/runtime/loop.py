"""The event loop that kjbod's processes run on."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from kjbod.runtime.signals import ignore_signals

TRANSPORT_GONE = (ConnectionError, RuntimeError)
"""What a write to a transport raises whose other side is gone. uvloop closes the handle at once and says
``RuntimeError: unable to perform operation on <...>; the handler is closed``, where asyncio drops what is written."""
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells tell it."""


_SWITCH_S = 0.001
"""How long a thread that computes keeps the interpreter while the event loop waits for it."""


def share_interpreter() -> None:
    """Have threads that compute give the interpreter to the event loop soon."""
    sys.setswitchinterval(_SWITCH_S)


class _Loop(asyncio.SelectorEventLoop):
    """asyncio's own, which leaves alone at its end, as uvloop does, a signal that somebody has made ignored."""

    def remove_signal_handler(self, sig: int) -> bool:
        return signal.getsignal(sig) != signal.SIG_IGN and super().remove_signal_handler(sig)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's, or asyncio's where uvloop has no build."""
    try:
        import uvloop
    except ImportError:
        return _Loop
    return uvloop.new_event_loop


def run(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``main()`` to its end and give its exit code; 130 when it was interrupted and did not handle that itself.

    ``asyncio.Runner`` is used rather than ``uvloop.run`` so that both loops start, cancel and close alike.
    """
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(main())
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def run_daemon(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run ``main()`` as :func:`run` does, and then let no signal change the exit code, nor the error, that it ended
    with: the process is to end next."""

    async def whole() -> int:
        try:
            return await main()
        finally:
            ignore_signals()

    return run(whole)
