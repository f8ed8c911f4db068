"""Keep signals that would end a process by default from ending a daemon.

SIGHUP, SIGUSR1 and SIGUSR2 are logged and ignored: a closed terminal, or a script that asks for a reload, must not stop
the daemon. No configuration can be reloaded: use ``kafka-configs`` for configs of the cluster, a restart for others.
SIGQUIT writes the stacks of all threads, as a Java virtual machine does.

Stacks go to the log through a non-blocking pipe and a thread of their own. So the stacks of a hung event loop can be
read, and a blocked stderr hangs no thread. The dump walks the frames of threads that may run meanwhile, and a frame
that changes at that moment can crash the process. So the thread does not wake with the first line of a dump: it sleeps,
and looks once a second.

A daemon handles SIGTERM and SIGINT. They have no effect any more once its end is decided: see :func:`ignore_signals`.
"""

import asyncio
import faulthandler
import os
import select
import signal
import threading
import time

from structlog.typing import FilteringBoundLogger

PASSED_OVER = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = (signal.SIGTERM, signal.SIGINT)
_WHY = "nothing is read anew while it runs; SIGTERM stops it, SIGQUIT shows its stacks"
_PIPE_BYTES = 64 * 1024
"""Capacity of a pipe (pipe(7)); the rest of a dump is dropped."""
_LOOK_S = 1.0
"""Interval at which the thread looks for a dump."""
_QUIET_MS = 100
"""A dump is complete when nothing more arrived for this time."""


def outlive_signals(log: FilteringBoundLogger) -> None:
    """Handle these signals from now on, on the running event loop. Call once per process."""

    def say(number: int) -> None:
        log.warning("signal.passed.over", signal=signal.Signals(number).name, reason=_WHY)

    for number in PASSED_OVER:
        asyncio.get_running_loop().add_signal_handler(number, say, number)
    dump_stacks_on(signal.SIGQUIT, log)


def ignore_signals() -> None:
    """Ignore the signals that a daemon handles, so that they cannot change how this process ends. Call in the main
    thread; permanent.

    A closing event loop restores the default actions of signals, and so does Python before it unloads its modules. That
    takes long enough for a SIGTERM to kill a process whose exit code is already decided. Both leave ignored signals
    ignored.
    """
    for number in (*ENDING, *PASSED_OVER):
        signal.signal(number, signal.SIG_IGN)


def dump_stacks_on(number: int, log: FilteringBoundLogger) -> None:
    """Make a signal write the stacks of all threads to the log, whatever the threads are doing."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    faulthandler.register(number, file=writer, all_threads=True, chain=False)
    threading.Thread(target=_forward, args=(reader, log), name="stacks", daemon=True).start()


def _forward(reader: int, log: FilteringBoundLogger) -> None:
    readable = select.poll()
    readable.register(reader, select.POLLIN)
    while True:
        time.sleep(_LOOK_S)
        dump = b""
        while readable.poll(_QUIET_MS if dump else 0):
            dump += os.read(reader, _PIPE_BYTES)
        if dump:
            log.warning("signal.stacks", stacks=dump.decode(errors="replace").splitlines())
