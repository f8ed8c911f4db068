"""The real controller in a universe: turns, metadata log, snapshots and start, on files that lose what was not synced.

What is left out are its sockets: a request comes as an object. Its threads are none: what it gives to one is done at
once on the loop, and comes back a moment later. Killed, it starts again from its files as the real one does, and then
everything that it ever told somebody must be there.
"""

import asyncio
import contextlib
import os
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar, cast

import structlog.testing

from kjbod.config import load_config
from kjbod.errors import StorageError
from kjbod.meta_properties import META_PROPERTIES_NAME, MetaProperties, render_meta_properties
from kjbod.metadata import versions
from kjbod.metadata.batches import RecordBatch, iter_batches
from kjbod.metadata.checkpoint_files import write_checkpoint
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.records import FeatureLevelRecord, Record
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.frames import Request
from kjbod.wire.messages import API, RequestBody, ResponseT
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.log.controller_directory import open_directory
from kjbod_controller_stub.server import ControllerServer
from tests.agent.conftest import VirtualLoop
from tests.controller.conftest import DIRECTORY_ID
from tests.controller.world import CLUSTER_ID, NODE_ID
from tests.guard.lossy_disk import LossyDisk, PowerLossError

SYNC_MS: Final = (0.2, 4.0)
"""How long work in a thread of the controller takes, a write of its log with its fsync for example."""
IDLE_MS: Final = 1_000
"""How often a NoOp is written where nothing else is."""
SEGMENT_MS: Final = 20_000
SNAPSHOT_BYTES: Final = 30_000
"""Little, so that segments roll, and snapshots are made, in a story."""
READ_BYTES: Final = 1 << 20
T = TypeVar("T")


class InlineLoop(VirtualLoop):
    """A loop on which work for threads is done at once; its result comes ``latency_ms()`` later."""

    def __init__(self, latency_ms: Callable[[], float] = lambda: 1.0) -> None:
        super().__init__()
        self.latency_ms = latency_ms
        self.life = 0
        """Of whoever gives work to threads: what was given in an earlier one never comes back."""

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        done: asyncio.Future[T] = self.create_future()
        give: Callable[[], None]
        try:
            give = partial(done.set_result, func(*args))
        except PowerLossError:
            return done  # nobody hears of it
        except Exception as error:  # noqa: BLE001  as a thread hands it over
            give = partial(done.set_exception, error)
        life = self.life
        self.call_later(self.latency_ms() / 1000, lambda: None if done.done() or life != self.life else give())
        return done


class _Server(ControllerServer):
    """A controller whose process may stand still."""

    stands_still_ms: Callable[[], int]
    """How long it stands still from now on."""

    async def _sleep(self, ms: int) -> None:
        await super()._sleep(ms)
        while (still_ms := self.stands_still_ms()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(still_ms / 1000)


class ModelController:
    """A controller, and the machine that it runs on.

    Args:
        loop: its time.
        rng: of delays and losses.
        with_elr: whether eligible leader replicas are finalized.
        advanced: called when more of the log is durable.
        broken: called with what must not be.

    Attributes:
        batches: of the log, as far as it was ever durable.
        starts: how often it has started.
    """

    def __init__(
        self,
        loop: InlineLoop,
        rng: random.Random,
        *,
        with_elr: bool,
        advanced: Callable[[list[RecordBatch]], None],
        broken: Callable[[str], None],
    ) -> None:
        self._loop, self._rng = loop, rng
        self._advanced, self._broken = advanced, broken
        self.disk = LossyDisk()
        loop.latency_ms = self._latency_ms
        self._config_file = self.disk.root.parent / "controller.properties"
        self._format(with_elr=with_elr)
        self._config = load_config(self._config_file)
        self.batches: list[RecordBatch] = []
        self.starts = 0
        self.slow_until_ms = 0
        """Until when its disk does not answer."""
        self.stalled_until_ms = 0
        """Until when its process stands still."""
        self._server: _Server | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._answering: dict[asyncio.Task[Any], None] = {}
        self._sync = contextlib.ExitStack()
        self._sync.enter_context(self.disk.watched())
        self._sync.enter_context(structlog.testing.capture_logs())

    def _latency_ms(self) -> float:
        return max(self.slow_until_ms - self._loop.monotonic_ms(), 0) + self._rng.uniform(*SYNC_MS)

    def _format(self, *, with_elr: bool) -> None:
        """What ``kjbod format`` leaves."""
        log = self.disk.root / DIRECTORY_NAME
        log.mkdir()
        features: list[Record] = [
            FeatureLevelRecord(name=name, feature_level=level)
            for name, level in versions.default_features(versions.LATEST).items()
            if with_elr or name != versions.ELIGIBLE_LEADER_REPLICAS_VERSION
        ]
        write_checkpoint(log / SnapshotId(0, 0).file_name, header_timestamp_ms=0, kraft=None, records=features)
        meta = MetaProperties(cluster_id=CLUSTER_ID, node_id=NODE_ID, directory_id=DIRECTORY_ID)
        rendered = render_meta_properties(meta, datetime.fromtimestamp(0, UTC))
        (self.disk.root / META_PROPERTIES_NAME).write_bytes(rendered)
        values = {
            "process.roles": "controller",
            "node.id": str(NODE_ID),
            "listeners": "CONTROLLER://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
            "log.dirs": str(self.disk.root),
            "metadata.max.idle.interval.ms": str(IDLE_MS),
            "metadata.log.segment.ms": str(SEGMENT_MS),
            "metadata.log.max.record.bytes.between.snapshots": str(SNAPSHOT_BYTES),
            "metadata.max.retention.bytes": str(2 * SNAPSHOT_BYTES),
            "kjbod.controller.rules": "kafka",
        }
        self._config_file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self.disk.all_durable()

    # ---- life

    async def start(self) -> None:
        """Start from what the files have; killed meanwhile, it does not."""
        self.starts += 1
        task = self._spawn(self._start())
        await asyncio.wait({task})

    async def _start(self) -> None:
        directory = open_directory(self._config)
        server = _Server(self._config, directory, clock=self._loop, rng=self._rng, authorizer=None)
        server.stands_still_ms = lambda: self.stalled_until_ms - self._loop.monotonic_ms()
        server._recovered = await server._recover()
        await self._require_kept(server)
        await server._begin(server._recovered)
        server._ready.set()
        self._server = server
        self._spawn(server.run())
        self._spawn(self._follow(server))

    async def _require_kept(self, server: ControllerServer) -> None:
        """What was ever durable is in the log, or in the snapshot that it starts with."""
        if not self.batches:
            return
        end = self.batches[-1].next_offset
        latest = server._recovered.latest.end_offset
        if max(server.log.end_offset, latest) < end:
            self._broken(f"controller: its log had {end} records, and has {max(server.log.end_offset, latest)}")
        known = {one.base_offset: one.crc for one in self.batches}
        if server.log.start_offset < server.log.end_offset:
            async for batch in server.log.batches(server.log.start_offset):
                if known.get(batch.base_offset, batch.crc) != batch.crc:
                    self._broken(f"controller: its log has another batch at {batch.base_offset}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(f"controller: {error!r}")

    async def _follow(self, server: ControllerServer) -> None:
        """Read what is durable, as an observer does that is at the end."""
        while True:
            offset = self.batches[-1].next_offset if self.batches else 0
            while server.log.end_offset > offset:
                new = list(iter_batches(await server.log.read(offset, READ_BYTES)))
                self.batches += new
                offset = new[-1].next_offset
                self._advanced(new)
            await server._advanced.wait()

    def at_next_sync(self, work: Callable[[], None]) -> None:
        """Have power go in the middle of the next fsync. ``work`` is called then, and is to kill it."""

        def fails() -> None:
            self._loop.call_soon(work)
            raise PowerLossError

        self.disk.at_next_sync(fails)

    def kill(self, *, power: bool) -> None:
        """SIGKILL; or power, which takes what was not synced. Requests that wait get no answer."""
        server, self._server = self._server, None
        self._loop.life += 1
        if server is not None:  # its descriptors will be those of others
            server.log._failure = server._failure = StorageError("it was killed")
        self.disk.at_next_sync(None)
        for task in list(self._tasks):
            task.cancel()
        for one in list(self._answering):
            one.cancel()
        self._close_files()
        if power:
            self.disk.lose(self._rng)

    def _close_files(self) -> None:
        root = str(self.disk.root)
        for one in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{one}").startswith(root):
                    os.close(int(one))

    def close(self) -> None:
        """End it, and remove its files."""
        self.kill(power=False)
        self._sync.close()
        self.disk.close()

    # ---- for others

    @property
    def is_there(self) -> bool:
        """Whether it runs."""
        return self._server is not None

    @property
    def answers(self) -> bool:
        """Whether it runs, and makes what it is asked for durable."""
        return self.is_there and self._loop.monotonic_ms() >= max(self.stalled_until_ms, self.slow_until_ms)

    async def going(self) -> None:
        """Wait for as long as its process stands still."""
        while (still_ms := self.stalled_until_ms - self._loop.monotonic_ms()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(still_ms / 1000)

    async def ask(self, request: RequestBody[ResponseT]) -> ResponseT:
        """Ask it.

        Raises:
            ConnectionError: it is not there, or is killed before it answers.
        """
        server = self._server
        if server is None:
            raise ConnectionRefusedError
        api = API[request.API_KEY]
        asked = Request(request.API_KEY, api.max_version, 0, None, request)
        answering = self._loop.create_task(server._answer(asked, Context(api.max_version), encode=False))
        self._answering[answering] = None
        answering.add_done_callback(self._answering.pop)
        try:
            answer = await asyncio.shield(answering)
        except asyncio.CancelledError:
            if answering.cancelled():
                raise ConnectionResetError from None
            raise
        if answer is None:
            raise ConnectionAbortedError
        return cast(ResponseT, answer)
