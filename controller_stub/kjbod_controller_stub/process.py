"""``kjbod controller`` as a process: limits of the system, signals, memory, and the exit code."""

import asyncio
import contextlib
import functools
import gc
import os
import resource
import signal
import sys
from pathlib import Path

from kjbod.cli.errors import report
from kjbod.clock import SystemClock, system_random
from kjbod.config import load_config
from kjbod.config.keys import Config
from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.runtime.logging import configure_logging, flush_logging, get_logger
from kjbod.runtime.loop import run
from kjbod.runtime.systemd import notify_ready, notify_stopping
from kjbod_controller_stub.server import ControllerServer

_SWITCH_S = 0.001
"""How long the thread with large work keeps the interpreter while the event loop waits for it."""
_GC_THRESHOLDS = (10_000, 10, 10)
"""A large change makes objects by the hundred thousand: young ones are looked at less often than by default."""

_log = get_logger()


def _raise_files_limit() -> None:
    """As many open files as the system allows: the default of 1,024 is meant for select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(config_path: Path) -> int:
    """Run a controller with the ``server.properties`` at ``config_path`` until SIGTERM or SIGINT; the exit code.

    Raises:
        KjbodError: it cannot start, or its log failed; one line.
    """
    config = load_config(config_path)
    configure_logging("controller")
    _raise_files_limit()
    sys.setswitchinterval(_SWITCH_S)
    return run(functools.partial(_serve, config))


def _settle_memory() -> None:
    """Have the garbage collector look at what comes from here on only: not at the code, nor at the metadata that was
    recovered. A full collection then takes as long as the connections are many, not the partitions."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def _serve(config: Config) -> int:
    clock = SystemClock()
    server = await ControllerServer.start(config, clock=clock, rng=system_random())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    _settle_memory()
    notify_ready(f"controller {config.node_id}, epoch {server.quorum.epoch}")
    exit_code = 0
    try:
        await server.run(server.watch())
    except KjbodError as error:
        _log.error("controller.failed", reason=str(error))
        exit_code = report(error)
    finally:
        notify_stopping("closing")
        await server.close()
        _log.info("controller.stopped", end_offset=server.log.end_offset)
        flush_logging()
        if server.abandoned:
            os._exit(exit_code or EXIT_FAILURE)
    return exit_code
