"""The process of ``kjbod controller``: system limits, memory, and a daemon around the server."""

import asyncio
import contextlib
import gc
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from kjbod.clock import SystemClock, system_random
from kjbod.config import load_config
from kjbod.config.keys import Config
from kjbod.config.load import controller_problems
from kjbod.config.needs import CONTROLLER_NEEDS
from kjbod.config.unused import name_keys_without_effect
from kjbod.error_lines import say
from kjbod.errors import EXIT_FAILURE
from kjbod.metrics.vitals import ENDING, Vitals
from kjbod.runtime import memory
from kjbod.runtime.logging import get_logger
from kjbod.runtime.loop import run_daemon
from kjbod.runtime.systemd import notify_ready, notify_stopping
from kjbod_controller_stub.server import ControllerServer
from kjbod_host.daemon import Daemon, begin
from kjbod_host.ending import END_TIMEOUT_MS, Ended, Ending

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from kjbod_controller_stub.metrics import Snapshot

START_TASKS = 16
"""Threads and processes of a start: log, the loop's own, reader, writer, large work, uvloop's four, the probe; and some
to spare."""
START_FILES = 48
GIVE_BACK_S = 10.0
GONE_CONNECTIONS = 100
"""So many fewer than there were make a look at the heap worth its some ten milliseconds."""
INTERRUPTED = "asked to while it started"
SLOW_START_S = 10.0
"""A start that takes longer says so."""
_GC_THRESHOLDS = (10_000, 10, 10)
"""A large change makes objects by the hundred thousand: young ones are looked at less often than by default."""

_log = get_logger()


def raise_files_limit() -> None:
    """Raise the limit of open files to the system's maximum: the default of 1,024 is meant for select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main(config_path: Path) -> int:
    """Run a controller with the ``server.properties`` at ``config_path`` until SIGTERM or SIGINT, and return the exit
    code.

    Raises:
        KjbodError: it cannot start, or its log failed; one line.
    """
    config = load_config(config_path, controller_problems, needs=CONTROLLER_NEEDS)
    raise_files_limit()
    begin("controller", tasks=START_TASKS, files=START_FILES)
    name_keys_without_effect(config, "controller", _log.info)
    return run_daemon(lambda: Controller(config).run())


def settle_memory() -> None:
    """Exclude the recovered metadata and the code from garbage collection. The time of a full collection then depends
    on the number of connections, not of partitions."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


async def started(starting: "asyncio.Future[ControllerServer]", config: Config) -> ControllerServer:
    """Return the started server. A slow start is reported to the service manager, a cancelled start is aborted."""
    try:
        if not (await asyncio.wait({starting}, timeout=SLOW_START_S))[0]:
            # Whoever looks at a start that takes for ever has no other line to go by.
            _log.warning(
                "controller.start.slow",
                directory=config.metadata_log_dir,
                reason=f"after {SLOW_START_S:g} s still reading it: its log is large, or its disk does not answer",
            )
            await asyncio.wait({starting})
    except asyncio.CancelledError:
        starting.cancel()
        await asyncio.wait({starting})
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().close()
        raise
    return starting.result()


def pictures(server: ControllerServer) -> "Callable[[], Snapshot]":
    """Return a function that takes pictures of a serving controller, for metrics. Turns are measured from here on."""
    from kjbod_controller_stub.metrics import snapshot

    clock, times = server.clock, server.measure()
    started_ms = clock.monotonic_ms()

    def take() -> "Snapshot":
        return snapshot(server, times, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms(), started_ms=started_ms)

    return take


def vitals_of(server: ControllerServer) -> Vitals:
    """A controller serves from its start to its end: a log that fails ends it."""
    return Vitals() if server.serves else ENDING


async def give_back(server: ControllerServer) -> None:
    """Return memory to the system after many connections have ended. Their memory lies between blocks in use, and the C
    library by itself returns only the end of the heap."""
    most = 0
    while True:
        await asyncio.sleep(GIVE_BACK_S)
        now = sum(each.connections for each in server.servers)
        if most - now >= GONE_CONNECTIONS:
            memory.trim()
            most = now
        most = max(most, now)


class Controller:
    """A run of the controller. Implements :class:`~kjbod_host.daemon.Work`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._server: ControllerServer | None = None
        clock = SystemClock()
        # A write to the metadata log may take as long as a directory may be silent.
        timeout_ms = config.kjbod_blind_timeout_ms + END_TIMEOUT_MS
        self._ending = Ending("controller", clock, timeout_ms=timeout_ms, say=self._say_stopped)
        self._daemon = Daemon(self._ending, clock)

    async def run(self) -> int:
        """Start, serve, end.

        Raises:
            KjbodError: the start was refused.
        """
        return await self._daemon.run(self, INTERRUPTED)

    async def open(self) -> None:
        """Start the server, which answers from then on. An interrupted start ends the process: it has not answered any
        client, and one of its threads may wait for a disk.

        Raises:
            KjbodError: the configuration, the directory, the port or the log does not allow it.
        """
        starting = ControllerServer.start(self._config, clock=SystemClock(), rng=system_random())
        try:
            self._server = await started(asyncio.ensure_future(starting), self._config)
        except asyncio.CancelledError:
            if not self._ending.signals:
                raise
            self._ending.exit(Ended(0, INTERRUPTED, clean=True))

    async def serve(self) -> Ended:
        """Serve until a signal comes, or the log fails."""
        server = self._server
        assert server is not None
        self._daemon.on_signal = lambda _: server.stop()
        watch = server.watch()
        await self._open_metrics(server, watch.process_ids)
        settle_memory()
        notify_ready(f"controller {self._config.node_id}, epoch {server.quorum.epoch}")
        self._daemon.spawn(give_back(server))
        await server.run(watch)
        return Ended(0, "asked to stop", clean=True)

    async def _open_metrics(self, server: ControllerServer, workers: Callable[[], Iterable[int]]) -> None:
        if self._config.kjbod_metrics_listener is not None:
            self._daemon.meter(workers)
            await self._daemon.open_metrics(
                self._config, pictures(server), _load_metrics, lambda: vitals_of(server), server.certificates
            )

    async def leave(self, ended: Ended) -> Ended:
        """Log the reason of a failure, end connections, write pending batches to the log, and release the directory."""
        server = self._server
        assert server is not None
        if ended.exit_code:
            _log.error("controller.failed", reason=ended.reason)
            for line in ended.reason.splitlines():
                say(f"kjbod: {line}")
        notify_stopping("closing")
        await server.close()
        if server.abandoned:
            self._ending.exit(replace(ended, exit_code=ended.exit_code or EXIT_FAILURE))
        return ended

    async def close(self) -> None:
        """Close the server, however the controller ended; usually it is closed already."""
        if self._server is not None:
            await self._server.close()

    def _say_stopped(self, ended: Ended) -> None:
        if self._server is None:
            _log.info("controller.stopped", reason=ended.reason)
        else:
            _log.info("controller.stopped", end_offset=self._server.log.end_offset)


def _load_metrics() -> "Callable[[Snapshot], Iterable[Metric]]":
    from kjbod_controller_stub.metrics import metrics

    return metrics
