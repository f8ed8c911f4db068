"""End of a daemon: the decision, the time limit, and the last line of the log.

After the decision nothing may keep the process: not a worker stuck in the kernel, a controller that does not answer, or
a log that nobody reads. So a thread that does nothing else, and is there from the start, ends it when its time is over,
whatever the event loop is doing then. Who ends the process says so first, once, in the last line of the log
(``agent.stopped``, ``guard.stopped``, ``controller.stopped``). What fails after the decision is logged and does not
change the exit code, and no signal does from the last line on (:func:`kjbod.runtime.loop.run_daemon`: until the process
has gone).

What that thread cannot end is a process of which another thread is stuck in the kernel: not even SIGKILL does. So
nothing in a daemon touches a disk that may hang; but the controller of a combined node does, with a thread for its log:
there ports and locks are let go of first (:attr:`Ending.lets_go`).
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.errors import EXIT_FAILURE
from kjbod.runtime.descriptors import close_channels
from kjbod.runtime.logging import EXIT_FLUSH_TIMEOUT_MS, flush_logging, get_logger, seal_logging
from kjbod.runtime.room import no_room
from kjbod.runtime.signals import ENDING, outlive_signals

HALT_TIMEOUT_MS: Final = 900
"""Maximum time from the decision to stop because of a disk to the end of the process."""
END_TIMEOUT_MS: Final = 5_000
"""Maximum time for every other end, counted from the end of the controlled shutdown."""
LEAVE_TIMEOUT_MS: Final = 1_000
"""Maximum time from the last line of the log to the end of the process, in which the event loop is closed."""
EXIT_NOW_FLUSH_TIMEOUT_MS: Final = 50
DEATHS: Final = frozenset({"worker.died", "zygote.died"})
"""Events about processes that ended unexpectedly. A person should find out why."""


class Ended(Struct, frozen=True):
    """The end of a daemon."""

    exit_code: int
    reason: str
    clean: bool
    """Whether the daemon ended in good order, so that an agent may mark its directories as cleanly shut down."""


class Deadline(threading.Thread):
    """Thread that calls ``end`` when the time is over. It is started early, because a host in trouble may have no
    resources for another thread."""

    def __init__(self, end: Callable[[], None], clock: Clock) -> None:
        super().__init__(name="kjbod-end", daemon=True)
        self._end = end
        self._clock = clock
        self._changed = threading.Condition()
        self._at_ms: int | None = None

    def within(self, timeout_ms: int) -> None:
        """Set the time that is left, unless less time is left already."""
        at_ms = self._clock.monotonic_ms() + timeout_ms
        with self._changed:
            self._at_ms = at_ms if self._at_ms is None else min(at_ms, self._at_ms)
            self._changed.notify()

    def run(self) -> None:
        with self._changed:
            while (left_ms := self._left_ms()) is None or left_ms > 0:
                self._changed.wait(None if left_ms is None else left_ms / 1000)
        self._end()

    def _left_ms(self) -> int | None:
        return None if self._at_ms is None else self._at_ms - self._clock.monotonic_ms()


class Ending:
    """The end of this process.

    Args:
        name: of the daemon, with which its log events begin: ``agent``.
        clock: for the deadline.
        timeout_ms: from the decision to the end of the process, for every end; None: :data:`END_TIMEOUT_MS` for a clean
            one, and else :data:`HALT_TIMEOUT_MS`.
        say: logs the last line, in words of the daemon's own; with it signals are not logged.
    """

    def __init__(
        self, name: str, clock: Clock, *, timeout_ms: int | None = None, say: Callable[[Ended], None] | None = None
    ) -> None:
        self._name = name
        self._timeout_ms = timeout_ms
        self._say = say
        self._log = get_logger()
        self._ended: Ended | None = None
        self._deadline = Deadline(self._exit_now, clock)
        self._last_words = threading.Lock()
        self._said: Ended | None = None
        self._deaf = False
        self.signals = 0
        """SIGTERM and SIGINT so far."""
        self.lets_go = False
        """Whether sockets and pipes are closed before the process is ended: it may be kept."""

    def start(self, on_signal: Callable[[int], None]) -> None:
        """Start the thread, and take care of signals: ``on_signal`` gets each SIGTERM and SIGINT, on the event loop."""
        self._deadline.start()
        outlive_signals(self._log)
        for number in ENDING:
            asyncio.get_running_loop().add_signal_handler(number, self._signalled, number, on_signal)

    def _signalled(self, number: int, on_signal: Callable[[int], None]) -> None:
        if self._deaf:
            return
        self.signals += 1
        if self._say is None:
            self._log.info(f"{self._name}.signal", signal=signal.Signals(number).name, count=self.signals)
        on_signal(number)

    @property
    def decided(self) -> bool:
        """Whether the process is ending: no clean-up is to be interrupted."""
        return self._ended is not None

    def pass_over_signals(self) -> None:
        """Ignore SIGTERM and SIGINT from now on."""
        self._deaf = True

    def limit(self, ended: Ended, timeout_ms: int | None = None) -> None:
        """Limit the time that the process has from now on."""
        if timeout_ms is None:
            timeout_ms = self._timeout_ms or (END_TIMEOUT_MS if ended.clean else HALT_TIMEOUT_MS)
        self._ended = ended
        self._deadline.within(timeout_ms)

    def leave(self, ended: Ended) -> int:
        """Log the last line, limit the time that is left, and return the exit code."""
        self.pass_over_signals()
        self.say_stopped(ended)
        self.limit(ended, LEAVE_TIMEOUT_MS)
        return ended.exit_code

    def after_bug(self, bug: BaseException) -> Ended:
        """Return the end after an unexpected error. A lack of memory, threads or files on the host is no bug."""
        scarce = no_room(bug)
        if scarce is not None:
            return Ended(scarce.exit_code, str(scarce), clean=False)
        self._log.error(f"{self._name}.crashed", exc_info=bug)
        return Ended(EXIT_FAILURE, f"internal error: {type(bug).__name__}: {bug}", clean=False)

    def say_stopped(self, ended: Ended) -> None:
        """Log the last line, once. A second thread that ends the process waits until the line is written."""
        if not self._last_words.acquire(timeout=EXIT_NOW_FLUSH_TIMEOUT_MS / 1000):
            return
        try:
            if self._said is None:
                self._said = ended
                (self._say or self._say_why)(ended)
                seal_logging()
        finally:
            self._last_words.release()

    def _say_why(self, ended: Ended) -> None:
        say = self._log.info if ended.exit_code == 0 else self._log.error
        say(f"{self._name}.stopped", exit_code=ended.exit_code, reason=ended.reason)

    def _exit_now(self) -> None:
        assert self._ended is not None
        self.exit(self._ended, EXIT_NOW_FLUSH_TIMEOUT_MS)

    def exit(self, ended: Ended, flush_ms: int = EXIT_FLUSH_TIMEOUT_MS) -> NoReturn:
        """End the process now: closing the event loop would wait for a thread that waits for a disk.

        Args:
            ended: the end, unless another thread has logged one as the last line.
            flush_ms: for the lines of the log that wait.
        """
        self.say_stopped(ended)
        flush_logging(flush_ms)
        if self.lets_go:
            close_channels()
        os._exit((self._said or ended).exit_code)


def second_signal(number: int) -> Ended:
    """Return the end after a second SIGTERM or SIGINT."""
    return Ended(128 + number, f"{signal.Signals(number).name} again", clean=False)


def first_of(group: BaseExceptionGroup[Any]) -> Any:
    """Return the first error of a group that is not a group itself."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
