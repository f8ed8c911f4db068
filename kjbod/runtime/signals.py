"""Signals that end a process which does not know them, and should not end a daemon.

SIGHUP, SIGUSR1 and SIGUSR2 are named in a line and passed over: a terminal that closes, or a script that would have
something read anew, is no reason to stop, and nothing can be read anew (configurations of a cluster are changed with
``kafka-configs``, others with a restart). SIGQUIT writes the stacks of all threads, as a Java virtual machine does.

Stacks go through a pipe that never blocks and a thread of their own to the log: an event loop that hangs can be looked
at, and a standard error that nobody reads hangs nobody.

SIGTERM and SIGINT, which a daemon does know, change nothing any more when its end is decided: see
:func:`ignore_signals`.
"""

import asyncio
import faulthandler
import os
import select
import signal
import threading

from structlog.typing import FilteringBoundLogger

PASSED_OVER = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGTERM, signal.SIGINT)
_WHY = "nothing is read anew while it runs; SIGTERM stops it, SIGQUIT shows its stacks"
_PIPE_BYTES = 64 * 1024
"""What a pipe holds (pipe(7)); more of one dump is dropped."""
_QUIET_MS = 100
"""A dump has ended when so long nothing more came of it."""


def outlive_signals(log: FilteringBoundLogger) -> None:
    """Take care of these signals from now on, on the running event loop. Once in a process."""

    def say(number: int) -> None:
        log.warning("signal.passed.over", signal=signal.Signals(number).name, reason=_WHY)

    for number in PASSED_OVER:
        asyncio.get_running_loop().add_signal_handler(number, say, number)
    dump_stacks_on(signal.SIGQUIT, log)


def ignore_signals() -> None:
    """Have no signal that a daemon takes care of change how this process ends. In the main thread; for good.

    An event loop that closes gives signals back to the system, and so does Python before it takes its modules down,
    which takes long enough to be hit: a SIGTERM would then kill a process that has said with which code it ends. Both
    leave alone what is ignored.
    """
    for number in (*ENDING, *PASSED_OVER):
        signal.signal(number, signal.SIG_IGN)


def dump_stacks_on(number: int, log: FilteringBoundLogger) -> None:
    """Have a signal write the stacks of all threads to the log, whatever they are doing."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    faulthandler.register(number, file=writer, all_threads=True, chain=False)
    threading.Thread(target=_forward, args=(reader, log), name="stacks", daemon=True).start()


def _forward(reader: int, log: FilteringBoundLogger) -> None:
    readable = select.poll()
    readable.register(reader, select.POLLIN)
    while True:
        readable.poll()
        dump = b""
        while readable.poll(_QUIET_MS):
            dump += os.read(reader, _PIPE_BYTES)
        log.warning("signal.stacks", stacks=dump.decode(errors="replace").splitlines())
