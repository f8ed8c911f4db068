"""The event loop that kjbod's processes run on."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

TRANSPORT_GONE = (ConnectionError, RuntimeError)
"""What a write to a transport raises whose other side is gone. uvloop closes the handle at once and says
``RuntimeError: unable to perform operation on <...>; the handler is closed``, where asyncio drops what is written."""
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells tell it."""


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, or None for asyncio's own where uvloop has no build."""
    try:
        import uvloop
    except ImportError:
        return None
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
