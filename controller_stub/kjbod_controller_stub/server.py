"""The controller as a process: one TCP listener, one metadata log, one event loop.

All of the controller's state lives on the loop, so that the loop is its single writer: a handler runs from reading the
state to handing its batches to the log without an ``await`` in between. Answers wait for the log's fsync.

Start-up touches the disk as late as it can: the configuration, the directory's identity and lock, and the port are
checked first; the log is recovered next; then this node opens a new leader epoch. Requests that come before that wait.

The log's first failure ends the process: what was not durable is never answered.
"""

import asyncio
import contextlib
import functools
import random
import resource
import signal
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kjbod.clock import Clock, SystemClock, system_random
from kjbod.config import load_config
from kjbod.config.endpoints import SECURITY_PROTOCOLS, Listener
from kjbod.config.keys import Config
from kjbod.config.load import require_controller
from kjbod.errors import KjbodError, StorageError
from kjbod.ids import Uuid, random_uuid
from kjbod.metadata import versions
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.control import KRaftVersion, KRaftVoters
from kjbod.metadata.image import ReplayError
from kjbod.metadata.log import MetadataLog
from kjbod.metadata.quorum_state import QuorumState, write_quorum_state
from kjbod.metadata.records import (
    BeginTransactionRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    FeatureRange,
    Record,
    RegisterControllerRecord,
)
from kjbod.runtime.logging import configure_logging, flush_logging, get_logger
from kjbod.runtime.loop import run
from kjbod.runtime.systemd import notify_ready, notify_stopping
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.connection import Features, api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import Request, VersionRanges
from kjbod.wire.messages import (
    API,
    ApiKey,
    CreateTopicsRequest,
    CreateTopicsResponse,
    CreateTopicsResponseTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DeleteTopicsResponse,
    DeleteTopicsResponseTopic,
    DescribeQuorumRequest,
    FetchRequest,
    FetchSnapshotRequest,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseResource,
    ResponseBody,
)
from kjbod.wire.server import Limits, Peer, Server, serve
from kjbod_controller_stub.authorizer import AllowAll, Authorizer, is_authorized
from kjbod_controller_stub.cluster import SUPPORTED_FEATURES
from kjbod_controller_stub.controller import HANDLERS, Context, Controller, DeferredAnswers, Settings, Write
from kjbod_controller_stub.directory import (
    ControllerDirectory,
    Remains,
    open_directory,
    read_remains,
    require_alone,
)
from kjbod_controller_stub.quorum import Quorum, ReadFrom
from kjbod_controller_stub.results import Result
from kjbod_controller_stub.rules import RULES
from kjbod_controller_stub.topics import TopicDefaults

_BY_THE_SERVER = frozenset({ApiKey.API_VERSIONS, ApiKey.FETCH, ApiKey.FETCH_SNAPSHOT, ApiKey.DESCRIBE_QUORUM})
SERVED: VersionRanges = {
    key: (12, spec.max_version) if key is ApiKey.FETCH else (spec.min_version, spec.max_version)
    for key, spec in API.items()
    if key in _BY_THE_SERVER or spec.request in HANDLERS
}
"""What the controller offers; of Fetch those versions that carry a leader epoch."""

FRAME_BYTES_MAX = 2 * 1024 * 1024
"""A request's size: 100,000 assignments in one take 2 MB. ``socket.request.max.bytes`` may lower it."""
_LONG_REQUESTS = frozenset(
    {
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
        ApiKey.ALTER_PARTITION,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)
FRAME_BYTES_MAX_OF: Mapping[ApiKey, int] = {key: 256 * 1024 for key in SERVED if key not in _LONG_REQUESTS}
"""All others are short. Metadata version 0 has room for an element in two bytes: 8 MiB of it take 8 s to decode."""
PENDING_BYTES_MAX = 64 * 1024 * 1024
IN_FLIGHT_MAX = 4
"""Kafka's brokers have one request at a time on a connection; each may be owed a large answer."""
CONNECTIONS_MAX = 10_000
"""Six per broker; ``max.connections`` and the process's limit of open files may lower it."""
_FILES_RESERVED = 256
"""Open files that connections leave to the log, and to connections that are being refused."""
WAITING_ANSWERS_MAX = 10_000
"""While an fsync hangs, clients time out and ask again: beyond this many answers that wait for it, connections are
closed before anything is done."""
_TIMER_MS_MAX = 1_000
_BOOTSTRAP_TRANSACTION = "Bootstrap records"

_log = get_logger()


class ControllerServer:
    """A controller that serves. Made by :meth:`start`; :meth:`run` keeps its timers until :meth:`stop` or a failure;
    :meth:`close` ends it."""

    def __init__(
        self,
        config: Config,
        directory: ControllerDirectory,
        *,
        clock: Clock,
        rng: random.Random,
        authorizer: Authorizer,
    ) -> None:
        self._config = config
        self._directory = directory
        self._clock = clock
        self._rng = rng
        self._authorizer = authorizer
        self.controller = _controller(config, directory, rng)
        self.quorum: Quorum
        self.log: MetadataLog
        self.servers: list[Server] = []
        self._ready = asyncio.Event()
        self._advanced = asyncio.Event()
        self._ended = asyncio.Event()
        self._closed = False
        self._failure: BaseException | None = None
        self._deferred: DeferredAnswers[tuple[asyncio.Future[None], Result]] = DeferredAnswers()
        self._last_write_ms = clock.monotonic_ms()

    # ---- life

    @classmethod
    async def start(
        cls,
        config: Config,
        *,
        clock: Clock,
        rng: random.Random,
        authorizer: Authorizer | None = None,
    ) -> "ControllerServer":
        """Check, recover, open an epoch, serve.

        Raises:
            KjbodError: the configuration, the directory, the port or the log does not allow it; one line.
        """
        require_controller(config)
        directory = await asyncio.to_thread(open_directory, config)
        server = cls(config, directory, clock=clock, rng=rng, authorizer=authorizer or AllowAll())
        try:
            await server._listen()
            await server._recover()
        except BaseException as error:
            await server.close()
            if isinstance(error, ConnectionAbortedError) and server._failure is not None:
                raise server._failure from error  # the log's first batches
            raise
        server._ready.set()
        endpoint = server.controller.endpoint
        _log.info(
            "controller.started",
            host=endpoint.host,
            port=endpoint.port,
            node_id=config.node_id,
            epoch=server.quorum.epoch,
            rules=config.kjbod_controller_rules,
            metadata_version=server.controller.image.metadata_version,
            partitions=server.controller.image.partition_count(),
        )
        return server

    @property
    def port(self) -> int:
        """The port of the first controller listener."""
        return self.servers[0].port

    async def run(self) -> None:
        """Fence brokers whose session expired, and write a NoOp where nothing else is written, until :meth:`stop`.

        Raises:
            StorageError: the log failed.
            Exception: a bug: a record that was just made cannot be replayed.
        """
        idle_ms = self._config.metadata_max_idle_interval_ms
        with contextlib.suppress(ConnectionAbortedError):
            while not self._ended.is_set():
                now_ms = self._clock.monotonic_ms()
                timed = self.controller.run_timers(now_ms)
                if timed is not None:
                    await self._commit(timed)
                elif idle_ms and now_ms - self._last_write_ms >= idle_ms:
                    await self._commit(self.controller.no_op())
                else:
                    await self._sleep(self._next_timer_ms(idle_ms) - now_ms)
        if self._failure is not None:
            raise self._failure

    def _next_timer_ms(self, idle_ms: int) -> int:
        due = [self._clock.monotonic_ms() + _TIMER_MS_MAX]
        if idle_ms:
            due.append(self._last_write_ms + idle_ms)
        if (timer := self.controller.next_timer_ms()) is not None:
            due.append(timer)
        return min(due)

    async def _sleep(self, ms: int) -> None:
        """Until :meth:`stop`, at most so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(1, ms) / 1000):
                await self._ended.wait()

    def stop(self) -> None:
        """Ask :meth:`run` to return."""
        self._ended.set()

    async def close(self) -> None:
        """End connections, write what was handed to the log, release the directory. A second call does nothing."""
        self._ended.set()
        if self._closed:
            return
        self._closed = True
        for server in self.servers:
            await server.close()
        if hasattr(self, "log"):
            await self.log.close()
        await asyncio.to_thread(self._directory.release)

    def _fail(self, error: BaseException) -> None:
        """Nothing more is answered, nor what waits now: it may or may not be in the log."""
        if self._failure is None:
            self._failure = error
        self._ended.set()
        for done, _ in self._deferred.complete(self.controller.next_offset):
            if not done.done():
                done.set_exception(ConnectionAbortedError("the controller is stopping"))

    # ---- start-up

    async def _listen(self) -> None:
        names = self._config.controller_listener_names
        limits = Limits(
            max_frame_bytes=min(FRAME_BYTES_MAX, self._config.socket_request_max_bytes),
            max_frame_bytes_of=FRAME_BYTES_MAX_OF,
            max_pending_bytes=PENDING_BYTES_MAX,
            max_in_flight=IN_FLIGHT_MAX,
            max_connections=min(self._config.max_connections, CONNECTIONS_MAX, _connections_by_files()),
        )
        for listener in sorted(
            (one for one in self._config.listeners if one.name in names), key=lambda one: names.index(one.name)
        ):
            self.servers.append(
                await serve(
                    listener.host,
                    listener.port,
                    self._handle,
                    apis=SERVED,
                    limits=limits,
                    clock=self._clock,
                    log=_log,
                )
            )
        advertised = self._config.advertised_controller_listeners[0]
        self.controller.endpoint = _endpoint(advertised, self.port)

    async def _recover(self) -> None:
        remains = await asyncio.to_thread(read_remains, self._directory)
        require_alone(remains.voters, self._config.node_id, self._directory.path)
        self.log = await MetadataLog.open(
            self._directory.log_path, segment_bytes=self._config.metadata_log_segment_bytes
        )
        if self.log.start_offset:
            raise StorageError(
                f"{self._directory.log_path} starts at offset {self.log.start_offset}, after a snapshot: kjbod "
                "controller reads a log from its beginning and cannot take this one over"
            )
        kraft_version, voters = await self._replay()
        require_alone(voters, self._config.node_id, self._directory.log_path)
        if kraft_version is None:
            kraft_version = 0 if self._config.controller_quorum_voters else 1
        self.controller.cluster.kraft_version = kraft_version
        await self._open_epoch(remains, kraft_version, voters)

    async def _replay(self) -> tuple[int | None, KRaftVoters | None]:
        """Replay the log; the kraft.version and the voters that it has."""
        kraft_version: int | None = None
        voters: KRaftVoters | None = None
        async for batch in self.log.batches(0):
            try:
                for offset, control in batch.control_records():
                    self.controller.skip(offset)
                    if isinstance(control, KRaftVersion):
                        kraft_version = control.k_raft_version
                    elif isinstance(control, KRaftVoters):
                        voters = control
                for offset, record in batch.metadata_records():
                    self.controller.recover(offset, batch.leader_epoch, record)
            except (MalformedMessageError, ReplayError) as error:
                raise StorageError(f"cannot replay {self._directory.log_path}: {error}") from None
        if self.log.end_offset and (unsupported := self.controller.unsupported_features()):
            raise StorageError(
                f"{self._directory.log_path} has finalized {', '.join(unsupported)}, which kjbod controller does not "
                "support: lower it with kafka-features on the controllers that wrote it"
            )
        return kraft_version, voters

    async def _open_epoch(self, remains: Remains, kraft_version: int, voters: KRaftVoters | None) -> None:
        known = remains.quorum_state.leader_epoch if remains.quorum_state is not None else 0
        epoch = max(known, self.log.last_epoch) + 1
        # The epoch must be on the disk before anybody hears of it: after a crash it may not be used a second time.
        await asyncio.to_thread(
            write_quorum_state,
            self._directory.log_path,
            QuorumState(leader_id=self._config.node_id, leader_epoch=epoch),
        )
        controller = self.controller
        self.quorum = Quorum(
            cluster_id=self._directory.cluster_id,
            node_id=self._config.node_id,
            directory_id=self._directory.directory_id,
            endpoint=controller.endpoint,
            epoch=epoch,
            log=self.log,
        )
        empty = not controller.image.features
        control = self.quorum.leader_records(voters, kraft_version=kraft_version)
        batch = encode_batch(control, controller.next_offset, epoch, self._clock.wall_ms(), control=True)
        controller.skip(controller.next_offset + len(control) - 1)
        self._submit([batch])
        results = [controller.activate(self._clock.monotonic_ms())]
        if empty:
            results.append(Result(records=_bootstrap_records(remains.bootstrap)))
        for result in results:
            await self._commit(result)
        if controller.image.metadata_version >= versions.CONTROLLER_REGISTRATION:
            await self._commit(Result(records=(self._own_registration(),)))
        if unsupported := controller.unsupported_features():
            raise StorageError(
                f"{self._directory.path} is formatted with {', '.join(unsupported)}, which kjbod controller does not "
                "support"
            )

    def _own_registration(self) -> RegisterControllerRecord:
        return RegisterControllerRecord(
            controller_id=self._config.node_id,
            incarnation_id=random_uuid(self._rng),
            zk_migration_ready=False,
            end_points=(self.controller.endpoint,),
            features=tuple(
                FeatureRange(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ),
        )

    # ---- writing

    async def _commit(self, result: Result) -> None:
        """Apply a result and wait until it, and all that it may have been made from, is durable."""
        await self._begin(result)

    def _begin(self, result: Result) -> "asyncio.Future[None]":
        """Apply a result, hand its batches to the log, and give what its answer has to wait for."""
        if self._failure is not None:
            raise ConnectionAbortedError("the controller is stopping")
        try:
            write = self.controller.apply(result)
        except Exception as error:
            # The record is not in the log, but the image may have half of it: only a replay from the log helps.
            self._fail(error)
            raise
        if write is not None:
            self._submit(self._encode(write))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.controller.next_offset <= self.log.end_offset:
            self._finish(done, result)
        else:
            self._deferred.add(self.controller.next_offset, (done, result))
        return done

    def _encode(self, write: Write) -> Iterable[bytes]:
        offset = write.base_offset
        for values in write.batches:
            yield encode_batch(values, offset, self.quorum.epoch, self._clock.wall_ms())
            offset += len(values)

    def _submit(self, batches: Iterable[bytes]) -> None:
        self._last_write_ms = self._clock.monotonic_ms()
        try:
            future = self.log.submit(list(batches))
        except StorageError as error:
            self._fail(error)
            raise ConnectionAbortedError("the controller is stopping") from error
        future.add_done_callback(self._durable)

    def _durable(self, written: "asyncio.Future[int]") -> None:
        if written.cancelled():
            return
        error = written.exception()
        if error is not None:
            self._fail(error)
            return
        for done, result in self._deferred.complete(self.log.end_offset):
            self._finish(done, result)
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    def _finish(self, done: "asyncio.Future[None]", result: Result) -> None:
        for note in result.notes:
            _log.info(note.event, **note.fields)
        if not done.done():
            done.set_result(None)

    # ---- requests

    async def _handle(self, request: Request, peer: Peer) -> ResponseBody | None:
        """One request; None ends the connection."""
        await self._ready.wait()
        if self._failure is not None:
            return None
        if not is_authorized(self._authorizer, peer.principal, request.api_key):
            return _refusal(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        message = request.message
        if isinstance(message, FetchRequest):
            return await self._fetch(message, request.version)
        if isinstance(message, FetchSnapshotRequest):
            return self.quorum.fetch_snapshot(message, request.version)
        if isinstance(message, DescribeQuorumRequest):
            return self.quorum.describe(message, self._clock.wall_ms())
        if request.api_key is ApiKey.API_VERSIONS:
            return api_versions_response(request, SERVED, self._features())
        if len(self._deferred) >= WAITING_ANSWERS_MAX:
            return None
        context = Context(request.version, peer.principal, peer.host)
        result = self.controller.handle(message, context, self._clock.monotonic_ms())
        await self._commit(result)
        return result.answer

    def _features(self) -> Features:
        return Features(
            supported=SUPPORTED_FEATURES,
            finalized=self.controller.cluster.finalized_features(),
            finalized_epoch=self.controller.features_offset,
        )

    async def _fetch(self, message: FetchRequest, version: int) -> ResponseBody:
        plan = self.quorum.plan_fetch(message, version)
        if not isinstance(plan, ReadFrom):
            return plan
        self.quorum.saw_fetch(message, version, self._clock.wall_ms())
        if plan.offset >= self.log.end_offset and plan.max_wait_ms:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(plan.max_wait_ms / 1000):
                    await self._advanced.wait()
        records = await self.log.read(plan.offset, plan.max_bytes)
        return self.quorum.fetch_response(version, records=records)


def _connections_by_files() -> int:
    """How many connections leave the log the files that it needs: one that it cannot open is its end."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return soft - min(_FILES_RESERVED, soft // 2)


def _raise_files_limit() -> None:
    """As many open files as the system allows: the default of 1,024 is meant for select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _controller(config: Config, directory: ControllerDirectory, rng: random.Random) -> Controller:
    settings = Settings(
        node_id=config.node_id,
        cluster_id=directory.cluster_id,
        rules=RULES[config.kjbod_controller_rules],
        session_timeout_ms=config.broker_session_timeout_ms,
        topic_defaults=TopicDefaults(
            num_partitions=config.num_partitions, replication_factor=config.default_replication_factor
        ),
        unclean_election=config.unclean_leader_election_enable,
    )
    draw_id: Callable[[], Uuid] = functools.partial(random_uuid, rng)
    return Controller(settings, draw_id=draw_id, shuffle=rng.shuffle)


def _endpoint(advertised: Listener, port: int) -> Endpoint:
    """The advertised listener; port 0 in the configuration is the port that the system gave."""
    return Endpoint(
        name=advertised.name,
        host=advertised.host,
        port=advertised.port or port,
        security_protocol=SECURITY_PROTOCOLS.index(advertised.protocol),
    )


def _bootstrap_records(records: Iterable[Record]) -> tuple[Record, ...]:
    """What an empty log gets: the records that formatting left, without the features that this controller lacks."""
    kept: list[Record] = []
    level = versions.MINIMUM
    for record in records:
        if isinstance(record, FeatureLevelRecord):
            if record.name not in SUPPORTED_FEATURES:
                _log.warning("bootstrap.feature.skipped", feature=record.name, level=record.feature_level)
                continue
            if record.name == versions.METADATA_VERSION:
                level = record.feature_level
        kept.append(record)
    if level < versions.TRANSACTIONS:
        return tuple(kept)
    return (BeginTransactionRecord(name=_BOOTSTRAP_TRANSACTION), *kept, EndTransactionRecord())


def _refusal(request: Request, code: int) -> ResponseBody:
    """The answer that says only ``code``."""
    message = request.message
    if isinstance(message, CreateTopicsRequest):
        return CreateTopicsResponse(
            topics=tuple(CreateTopicsResponseTopic(name=topic.name, error_code=code) for topic in message.topics)
        )
    if isinstance(message, DeleteTopicsRequest):
        wanted = [*message.topics, *(DeleteTopicsRequestTopic(name=name) for name in message.topic_names)]
        return DeleteTopicsResponse(
            responses=tuple(
                DeleteTopicsResponseTopic(name=topic.name, topic_id=topic.topic_id, error_code=code) for topic in wanted
            )
        )
    if isinstance(message, IncrementalAlterConfigsRequest):
        return IncrementalAlterConfigsResponse(
            responses=tuple(
                IncrementalAlterConfigsResponseResource(
                    error_code=code, resource_type=each.resource_type, resource_name=each.resource_name
                )
                for each in message.resources
            )
        )
    fields: dict[str, Any] = {"error_code": code}  # every other response has it at the top
    return API[request.api_key].response(**fields)


# ---------------------------------------------------------------- the process


def main(config_path: Path) -> int:
    """Run a controller with the ``server.properties`` at ``config_path`` until SIGTERM or SIGINT; the exit code.

    Raises:
        KjbodError: it cannot start, or its log failed; one line.
    """
    config = load_config(config_path)
    configure_logging("controller")
    _raise_files_limit()
    return run(functools.partial(_serve, config))


async def _serve(config: Config) -> int:
    clock = SystemClock()
    server = await ControllerServer.start(config, clock=clock, rng=system_random())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    notify_ready(f"controller {config.node_id}, epoch {server.quorum.epoch}")
    try:
        await server.run()
    except KjbodError as error:
        _log.error("controller.failed", reason=str(error))
        raise
    finally:
        notify_stopping("closing")
        await server.close()
        _log.info("controller.stopped", end_offset=server.log.end_offset)
        flush_logging()
    return 0
