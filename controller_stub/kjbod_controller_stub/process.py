"""``kjbod controller`` as a process: limits of the system, signals, memory, and the exit code."""

import asyncio
import contextlib
import faulthandler
import functools
import gc
import os
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from kjbod.clock import SystemClock, system_random
from kjbod.config import load_config
from kjbod.config.keys import Config
from kjbod.config.load import controller_problems
from kjbod.config.needs import CONTROLLER_NEEDS
from kjbod.config.unused import name_keys_without_effect
from kjbod.error_lines import report
from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.runtime import memory
from kjbod.runtime.logging import configure_logging, flush_logging, get_logger
from kjbod.runtime.loop import run_daemon, share_interpreter
from kjbod.runtime.room import require_room
from kjbod.runtime.signals import ENDING, outlive_signals
from kjbod.runtime.systemd import notify_ready, notify_stopping
from kjbod_controller_stub.server import ControllerServer

if TYPE_CHECKING:
    from kjbod.metrics.listener import MetricsListener
    from kjbod_controller_stub.metrics import Snapshot

START_TASKS = 16
"""Threads and processes of a start: log, the loop's own, reader, writer, large work, uvloop's four, the probe; and some
to spare."""
START_FILES = 48
GIVE_BACK_S = 10.0
GONE_CONNECTIONS = 100
"""So many fewer than there were make a look at the heap worth its some ten milliseconds."""
SLOW_START_S = 10.0
"""A start that takes longer says so."""
_GC_THRESHOLDS = (10_000, 10, 10)
"""A large change makes objects by the hundred thousand: young ones are looked at less often than by default."""

_log = get_logger()


def raise_files_limit() -> None:
    """As many open files as the system allows: the default of 1,024 is meant for select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(config_path: Path) -> int:
    """Run a controller with the ``server.properties`` at ``config_path`` until SIGTERM or SIGINT; the exit code.

    Raises:
        KjbodError: it cannot start, or its log failed; one line.
    """
    config = load_config(config_path, controller_problems, needs=CONTROLLER_NEEDS)
    raise_files_limit()
    require_room(tasks=START_TASKS, files=START_FILES)
    configure_logging("controller")
    name_keys_without_effect(config, "controller", _log.info)
    faulthandler.enable(file=2)
    memory.economize()
    share_interpreter()
    return run_daemon(functools.partial(_serve, config))


def settle_memory() -> None:
    """Have the garbage collector look at what comes from here on only: not at the code, nor at the metadata that was
    recovered. A full collection then takes as long as the connections are many, not the partitions."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _on_signal(stop: Callable[[], object]) -> None:
    for number in ENDING:
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def started(starting: "asyncio.Future[ControllerServer]", config: Config) -> ControllerServer:
    """The server, when it has started; a start that is slow is told meanwhile."""
    if not (await asyncio.wait({starting}, timeout=SLOW_START_S))[0]:
        # Whoever looks at a start that takes for ever has no other line to go by.
        _log.warning(
            "controller.start.slow",
            directory=config.metadata_log_dir,
            reason=f"after {SLOW_START_S:g} s still reading it: its log is large, or its disk does not answer",
        )
    return await starting


async def _start(config: Config) -> ControllerServer:
    """A server that serves; one that was asked to stop while it started ends the process: it has answered nobody, and
    a thread of it may wait for a disk."""
    stopped = asyncio.Event()
    starting = asyncio.ensure_future(ControllerServer.start(config, clock=SystemClock(), rng=system_random()))

    def stop() -> None:
        stopped.set()
        starting.cancel()

    _on_signal(stop)
    try:
        server = await started(starting, config)
    except asyncio.CancelledError:
        _log.info("controller.stopped", reason="asked to while it started")
        flush_logging()
        os._exit(0)
    _on_signal(server.stop)
    if stopped.is_set():
        server.stop()
    return server


async def _open_metrics(
    config: Config, server: ControllerServer, workers: Callable[[], Iterable[int]] = tuple
) -> "MetricsListener[Snapshot] | None":
    where = config.kjbod_metrics_listener
    if where is None:
        return None
    listener = metrics_listener(server, workers)
    await listener.open(where.host, where.port)
    return listener


def metrics_listener(
    server: ControllerServer, workers: Callable[[], Iterable[int]] = tuple
) -> "MetricsListener[Snapshot]":
    """The metrics listener of a controller that serves, not open yet. Turns are measured from here on; ``workers`` are
    the process ids of those that touch its disk."""
    # some MiB, which only those pay who have the listener
    from kjbod.metrics.listener import MetricsListener
    from kjbod.runtime.usage_meter import UsageMeter
    from kjbod_controller_stub.metrics import metrics

    return MetricsListener(pictures(server), metrics, UsageMeter(server.clock, workers=workers).read)


def pictures(server: ControllerServer) -> "Callable[[], Snapshot]":
    """Takes pictures of a controller that serves, for metrics. Turns are measured from here on."""
    from kjbod_controller_stub.metrics import snapshot

    clock, times = server.clock, server.measure()
    started_ms = clock.monotonic_ms()

    def take() -> "Snapshot":
        return snapshot(server, times, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms(), started_ms=started_ms)

    return take


async def give_back(server: ControllerServer) -> None:
    """Give memory back to the system when many connections have gone: what they had lies between what stays, and the C
    library gives back by itself only what lies at the end."""
    most = 0
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        now = sum(each.connections for each in server.servers)
        if most - now >= GONE_CONNECTIONS:
            memory.trim()
            most = now
        most = max(most, now)


async def _serve(config: Config) -> int:
    outlive_signals(_log)
    server = await _start(config)
    metrics = None
    exit_code = 0
    try:
        watch = server.watch()
        metrics = await _open_metrics(config, server, watch.process_ids)
        settle_memory()
        notify_ready(f"controller {config.node_id}, epoch {server.quorum.epoch}")
        giving_back = asyncio.ensure_future(give_back(server))
        try:
            await server.run(watch)
        finally:
            giving_back.cancel()
    except KjbodError as error:
        _log.error("controller.failed", reason=str(error))
        exit_code = report(error)
    finally:
        notify_stopping("closing")
        if metrics is not None:
            metrics.close()
        await server.close()
        _log.info("controller.stopped", end_offset=server.log.end_offset)
        flush_logging()
        if server.abandoned:
            os._exit(exit_code or EXIT_FAILURE)
    return exit_code
