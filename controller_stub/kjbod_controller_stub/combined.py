"""The controller as half of a combined node (``process.roles=broker,controller``, Kafka's ``KafkaRaftServer``): on the
event loop, and in the process, of somebody else, who has signals, service manager, metrics listener and exit code.

Its whole life is a task of its own, by which its log lines have ``component`` ``controller`` in a process whose other
lines have another one.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import structlog

from kjbod.clock import SystemClock, system_random
from kjbod.config.keys import Config
from kjbod.errors import EXIT_DISK_FAILURE, KjbodError, StorageError
from kjbod.runtime.logging import get_logger
from kjbod.runtime.loop import share_interpreter
from kjbod.security.certificates import Certificates
from kjbod_controller_stub import process
from kjbod_controller_stub.log.directory_watch import DirectoryWatch
from kjbod_controller_stub.server import ControllerServer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_log = get_logger()


class MetadataLogError(KjbodError):
    """The metadata log, or its directory, failed: the node halts, with both of its roles."""

    exit_code = EXIT_DISK_FAILURE


class CombinedController:
    """A controller in the process of a broker."""

    start_tasks = process.START_TASKS
    start_files = process.START_FILES

    def __init__(self, config: Config) -> None:
        self._config = config
        self._server: ControllerServer | None = None
        self._watch: DirectoryWatch | None = None
        self._life: asyncio.Task[None] | None = None
        self._opened = asyncio.Event()
        self._may_serve = asyncio.Event()
        self._serves = asyncio.Event()
        self._failed = asyncio.Event()
        self._failure: Exception | None = None
        process.raise_files_limit()
        share_interpreter()

    async def open(self) -> None:
        """Check everything, lock the directory and read the log; nothing is written, no port is open.

        Raises:
            KjbodError: the directory, the port or the log does not allow it; one line.
        """
        self._life = asyncio.ensure_future(self._live())
        await self._reach(self._opened)

    async def start(self) -> None:
        """Start, after :meth:`open`; it serves when this returns.

        Raises:
            KjbodError: as :meth:`open`.
        """
        self._may_serve.set()
        await self._reach(self._serves)

    async def _reach(self, state: asyncio.Event) -> None:
        assert self._life is not None
        reached = asyncio.ensure_future(state.wait())
        try:
            await asyncio.wait({self._life, reached}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reached.cancel()
        if self._life.done():
            self._life.result()

    async def run(self) -> None:
        """Wait for its failure.

        Raises:
            MetadataLogError: its log, or the directory of that.
            Exception: a bug.
        """
        await self._failed.wait()
        assert self._failure is not None
        if isinstance(self._failure, StorageError):
            raise MetadataLogError(str(self._failure)) from self._failure
        raise self._failure

    async def close(self) -> None:
        """End connections, write what was handed to the log, release the directory; or give the start up. A second call
        does nothing."""
        if self._life is None:
            return
        if self._server is None:
            self._life.cancel()
        else:
            self._server.stop()
        await asyncio.wait({self._life})

    async def _live(self) -> None:
        structlog.contextvars.bind_contextvars(component="controller")
        server = await self._started()
        self._server, self._watch = server, server.watch()
        process.settle_memory()
        giving_back = asyncio.ensure_future(process.give_back(server))
        self._serves.set()
        try:
            await server.run(self._watch)
        except Exception as error:  # noqa: BLE001  the other half ends the process, and says so
            self._failure = error
            if isinstance(error, KjbodError):
                _log.error("controller.failed", reason=str(error))
            self._failed.set()
        finally:
            giving_back.cancel()
            await server.close()
            _log.info("controller.stopped", end_offset=server.log.end_offset)

    async def _started(self) -> ControllerServer:
        opening = asyncio.ensure_future(ControllerServer.open(self._config, clock=SystemClock(), rng=system_random()))
        try:
            server = await process.started(opening, self._config)
        except asyncio.CancelledError:
            opening.cancel()
            await asyncio.wait({opening})
            raise
        self._opened.set()
        try:
            await self._may_serve.wait()
        except asyncio.CancelledError:
            await server.close()
            raise
        await server.serve()
        return server

    # ---- how it is

    def words(self) -> list[str]:
        """Words for the status line of the service manager."""
        if self._server is None:
            return []
        return [f"controller {self._config.node_id} active in epoch {self._server.quorum.epoch}"]

    def as_json(self) -> dict[str, Any] | None:
        """Figures for ``kjbod status``; None before it serves."""
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
        """Certificates of its listener."""
        assert self._server is not None, "it serves"
        return self._server.certificates

    def process_ids(self) -> tuple[int, ...]:
        """The child that probes its directory, while there is one."""
        return () if self._watch is None else self._watch.process_ids()

    def pictures(self) -> "Callable[[], Callable[[], Iterable[Metric]]]":
        """Takes a picture of it, on the event loop; calling the picture, in a thread, makes metrics of it. Turns are
        measured from here on."""
        # some MiB, which only those pay who have the listener
        from kjbod_controller_stub.metrics import metrics

        assert self._server is not None, "it serves"
        take = process.pictures(self._server)

        def picture() -> "Callable[[], Iterable[Metric]]":
            now = take()
            return lambda: metrics(now, certificates=False)  # the agent shows them with its own

        return picture
