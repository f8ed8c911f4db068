"""The controller as half of a combined node (``process.roles=broker,controller``, Kafka's ``KafkaRaftServer``). It runs
on the event loop of the agent's process, which owns signals, service manager, metrics listener and exit code.

Its log lines have ``component`` ``controller`` in a process whose other lines have another one.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import structlog

from kjbod.clock import SystemClock, system_random
from kjbod.config.keys import Config
from kjbod.errors import EXIT_DISK_FAILURE, KjbodError, StorageError
from kjbod.runtime.logging import get_logger
from kjbod.security.certificates import Certificates
from kjbod_controller_stub import process
from kjbod_controller_stub.log.directory_watch import DirectoryWatch
from kjbod_controller_stub.server import ControllerServer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_log = get_logger()


def _component() -> AbstractContextManager[None]:
    """Mark log lines of this task, and of tasks that it starts, as the controller's."""
    return structlog.contextvars.bound_contextvars(component="controller")


class MetadataLogError(KjbodError):
    """The metadata log or its directory failed: the node halts with both roles."""

    exit_code = EXIT_DISK_FAILURE


class CombinedController:
    """A controller in the process of a broker."""

    start_tasks = process.START_TASKS
    start_files = process.START_FILES

    def __init__(self, config: Config) -> None:
        self._config = config
        self._opened: ControllerServer | None = None
        self._server: ControllerServer | None = None
        """The same, once it serves."""
        self._watch: DirectoryWatch | None = None
        self._life: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[None]
        process.raise_files_limit()

    async def open(self) -> None:
        """Check everything, lock the directory and read the log; nothing is written, no port is open.

        Raises:
            KjbodError: the directory, the port or the log does not allow it; one line.
        """
        with _component():
            opening = ControllerServer.open(self._config, clock=SystemClock(), rng=system_random())
            self._opened = await process.started(asyncio.ensure_future(opening), self._config)

    async def start(self) -> None:
        """Start the controller after :meth:`open`; it serves when this returns.

        Raises:
            KjbodError: as :meth:`open`.
        """
        server = self._opened
        assert server is not None, "it is open"
        self._failure = asyncio.get_running_loop().create_future()
        with _component():
            await server.serve()
            self._server, self._watch = server, server.watch()
            self._life = asyncio.ensure_future(self._live(server, self._watch))

    async def run(self) -> None:
        """Wait for a failure of the controller.

        Raises:
            MetadataLogError: its log, or the directory of that.
            Exception: a bug.
        """
        try:
            await asyncio.shield(self._failure)
        except StorageError as error:
            raise MetadataLogError(str(error)) from error

    async def close(self) -> None:
        """End connections, write pending batches to the log, and release the directory; or abort the start. A second
        call does nothing."""
        if self._opened is None:
            return
        self._opened.stop()
        if self._life is None:
            await self._opened.close()
        else:
            await asyncio.wait({self._life})

    async def _live(self, server: ControllerServer, watch: DirectoryWatch) -> None:
        process.settle_memory()
        giving_back = asyncio.ensure_future(process.give_back(server))
        try:
            await server.run(watch)
        except Exception as error:  # noqa: BLE001  the other half ends the process, and says so
            if isinstance(error, KjbodError):
                _log.error("controller.failed", reason=str(error))
            self._failure.set_exception(error)
            self._failure.exception()  # no caller may wait for the failure any more
        finally:
            giving_back.cancel()
            await server.close()
            _log.info("controller.stopped", end_offset=server.log.end_offset)

    # ---- how it is

    def words(self) -> list[str]:
        """Return the text for the status line of the service manager."""
        if self._server is None:
            return []
        return [f"controller {self._config.node_id} active in epoch {self._server.quorum.epoch}"]

    def as_json(self) -> dict[str, Any] | None:
        """Return figures for ``kjbod status``; None before the controller serves."""
        if self._server is None:
            return None
        controller = self._server.controller
        brokers = controller.image.brokers.values()
        return {
            "node": self._config.node_id,
            "epoch": self._server.quorum.epoch,
            "end_offset": self._server.log.end_offset,
            "brokers": len(brokers),
            "fenced_brokers": sum(broker.fenced for broker in brokers),
            "topics": len(controller.image.topics),
            "partitions": controller.index.partitions,
            "offline_partitions": controller.index.leaderless_count,
        }

    @property
    def certificates(self) -> Certificates:
        """Certificates of the controller's listener."""
        assert self._server is not None, "it serves"
        return self._server.certificates

    def process_ids(self) -> tuple[int, ...]:
        """Process id of the child that probes its directory, if any."""
        return () if self._watch is None else self._watch.process_ids()

    def pictures(self) -> "Callable[[], Callable[[], Iterable[Metric]]]":
        """Return a function that takes a picture of the controller on the event loop. Calling the picture, in a thread,
        returns its metrics. Turns are measured from here on."""
        # imported here: it takes some MiB, which only processes with the metrics listener need
        from kjbod_controller_stub.metrics import metrics

        assert self._server is not None, "it serves"
        take = process.pictures(self._server)

        def picture() -> "Callable[[], Iterable[Metric]]":
            now = take()
            return lambda: metrics(now, certificates=False)  # the agent shows them with its own

        return picture
