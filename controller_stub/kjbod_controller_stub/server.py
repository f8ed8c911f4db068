"""The controller's server: TCP listeners, one metadata log, one event loop.

All of the controller's state has one writer at a time: a request takes a turn (:mod:`.turns`) from reading the state to
handing its batches to the log. Small ones take it on the loop, large ones (:mod:`.costs`) in a thread, so that the loop
goes on meanwhile. Answers wait for the log's fsync. What needs no turn: fetches, which read the log alone, and the
heartbeats of brokers with which nothing is new (:meth:`.controller.Controller.steady_heartbeat`).

A start changes nothing before all that may refuse it was looked at: configuration, ports, the directory's identity and
lock, and the whole log, which is read (:meth:`ControllerServer.open`). Only then the listeners are opened and this node
opens a new leader epoch (:meth:`ControllerServer.serve`); requests that come in between wait. A disk that hangs while
it is read finds nobody who waits at the port.

The log's first failure ends the process: what was not durable is never answered.
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kjbod.clock import Clock
from kjbod.config.keys import Config
from kjbod.config.load import require_controller
from kjbod.errors import KjbodError, StorageError
from kjbod.ids import random_uuid
from kjbod.metadata import versions
from kjbod.metadata.batches import encode_batch
from kjbod.metadata.control_records import KRaftVersion, KRaftVoters
from kjbod.metadata.image import BROKER, ReplayError, shallow_copy
from kjbod.metadata.log import MetadataLog, OffsetOutOfRangeError
from kjbod.metadata.quorum_state import FILE_NAME as QUORUM_STATE
from kjbod.metadata.quorum_state import QuorumState, write_quorum_state
from kjbod.metadata.records import (
    FeatureRange,
    RegisterControllerRecord,
)
from kjbod.metadata.refusals import refusal
from kjbod.metadata.snapshot import SnapshotId
from kjbod.runtime.listening import refusal_of
from kjbod.runtime.logging import get_logger
from kjbod.runtime.names import UnresolvedError
from kjbod.runtime.shared_work import SharedWork
from kjbod.runtime.waiting import is_done_in_time
from kjbod.security.certificates import Certificates
from kjbod.security.channel import look_again
from kjbod.security.credentials import MetadataCredentials
from kjbod.security.dynamic import DynamicStores
from kjbod.security.opening import listener_security, of_own_listener
from kjbod.wire.admin_messages import CreatePartitionsResponse, DescribeAclsRequest, ListConfigResourcesRequest
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.connection import Features, api_versions_response
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.frames import EncodedResponse, Request, encode_response
from kjbod.wire.limits import DECODED_AT_ONCE_BYTES
from kjbod.wire.messages import (
    ApiKey,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    CreateTopicsResponse,
    DeleteTopicsResponse,
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeQuorumRequest,
    EnvelopeRequest,
    EnvelopeResponse,
    FetchRequest,
    FetchSnapshotRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    RequestBody,
    ResponseBody,
)
from kjbod.wire.pressure import Room
from kjbod.wire.principals import host_of_acls
from kjbod.wire.server import Peer, Server, serve
from kjbod_controller_stub.access.authorizer import Authorizer, Permissions, is_authorized
from kjbod_controller_stub.access.envelope import unwrap, wrap
from kjbod_controller_stub.access.request_screening import screen
from kjbod_controller_stub.brokers.cluster import SUPPORTED_FEATURES
from kjbod_controller_stub.brokers.steady import SteadyHeartbeats
from kjbod_controller_stub.context import Context
from kjbod_controller_stub.controller import Controller
from kjbod_controller_stub.costs import are_timers_large, is_large
from kjbod_controller_stub.deferred import DeferredAnswers
from kjbod_controller_stub.limits import FRAME_BYTES_MAX_OF, SERVED, URGENT
from kjbod_controller_stub.log import voters
from kjbod_controller_stub.log.controller_directory import (
    ControllerDirectory,
    Remains,
    identified,
    open_directory,
    read_remains,
    require_alone,
    require_formatted,
)
from kjbod_controller_stub.log.directory_watch import DirectoryHungError, DirectoryWatch
from kjbod_controller_stub.log.quorum import Quorum, ReadFrom, ReadSnapshot
from kjbod_controller_stub.log.snapshots import (
    Found,
    Snapshots,
    State,
    covers,
    find,
    require_next_epoch,
    require_no_gap,
    require_one_history,
    require_own,
)
from kjbod_controller_stub.results import ApiError, Note, Result
from kjbod_controller_stub.starting import (
    advertised_endpoint,
    bootstrap_records,
    controller_of,
    limits_of,
    require_supported,
    snapshot_limits_of,
)
from kjbod_controller_stub.turns import Rank, Turns, TurnTimes
from kjbod_controller_stub.writing import Write

WAITING_ANSWERS_MAX = 10_000
"""While an fsync hangs, clients time out and ask again: beyond this many answers that wait for it, connections are
closed before anything is done; of what brokers tell beyond twice as many, so that others never take their places."""
READING_BYTES_MAX = 16 * 1024 * 1024
"""Pieces of the log and of snapshots that are being read and are no answer yet, which would count as unread; what is
larger is read alone."""
REFUSALS_LOGGED_PER_SECOND = 20
"""Log lines about refused registrations; above it they are counted instead."""
_REFUSED = "broker.refused"
_TIMER_MS_MAX = 1_000
_READS = frozenset(
    {
        DescribeAclsRequest,
        DescribeClusterRequest,
        DescribeConfigsRequest,
        ListConfigResourcesRequest,
        ListPartitionReassignmentsRequest,
        MetadataRequest,
    }
)
"""Requests that change nothing. Of a large cluster, each may take a second: those are answered from a copy of the
state, beside it (:meth:`ControllerServer._read`)."""
_WAITING_READS_MAX = WAITING_ANSWERS_MAX
"""Large ones that wait; beyond it their connections are closed."""
_STANDSTILL_MS = 2 * _TIMER_MS_MAX
"""When the timers were not looked at for longer, this process or the machine stood still, and every session is old:
what the brokers have sent meanwhile is read first."""
_READ_FIRST_MS = 200
_HAVE_QUOTA = (CreateTopicsResponse, DeleteTopicsResponse, CreatePartitionsResponse)
"""Answers after which a connection is muted for as long as they tell their client to wait."""

_log = get_logger()
T = TypeVar("T")


class _HalfAppliedError(Exception):
    """Records could not be applied or encoded; the cause has the reason."""


class _TurnOutcome(Struct, frozen=True):
    """Outcome of a turn."""

    result: Result
    answer: ResponseBody | EncodedResponse | None = None
    too_large: bool = False
    """Whether it is a read that is to be answered beside the state."""


class _Recovered(Struct, frozen=True, kw_only=True):
    """Contents of the directory at the start."""

    remains: Remains
    found: Found
    latest: SnapshotId
    """The newest snapshot; 0-0 where there is none."""
    kraft_version: int
    voters: KRaftVoters | None
    replayed_bytes: int


class _Notes:
    """Writes the log lines of results. Refusals, which a client can cause in any number, are limited to a rate."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._second = -1
        self._refusals = 0
        self._suppressed = 0

    def add(self, note: Note) -> None:
        """Write one, or count it."""
        if note.event != _REFUSED:
            (_log.warning if note.warning else _log.info)(note.event, **note.fields)
            return
        second = self._clock.monotonic_ms() // 1_000
        if second != self._second:
            self._second, self._refusals = second, 0
        if self._refusals >= REFUSALS_LOGGED_PER_SECOND:
            self._suppressed += 1
            return
        self._refusals += 1
        more = {"suppressed": self._suppressed} if self._suppressed else {}
        self._suppressed = 0
        _log.info(note.event, **note.fields, **more)


async def _require_free_ports(config: Config) -> None:
    """Require that no other process uses the ports of this node, before anything is written.

    Raises:
        KjbodError: another process listens on a port.
    """
    for one in config.listeners:
        if one.name in config.controller_listener_names and (reason := await refusal_of(one.host, one.port, _log)):
            raise KjbodError(f"cannot listen on {one.host}:{one.port}: {reason}")
    metrics = config.kjbod_metrics_listener
    if metrics is None:
        return
    where = f"kjbod.metrics.listener={metrics.host}:{metrics.port}"
    try:
        reason = await refusal_of(metrics.host, metrics.port, _log)
    except UnresolvedError as error:
        raise KjbodError(f"{where}: {error}") from None
    if reason:
        raise KjbodError(f"{where}: {reason}: choose another port")


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
        authorizer: Authorizer | None,
    ) -> None:
        self._config = config
        self._directory = directory
        self._clock = clock
        self._rng = rng
        self.controller = controller_of(config, directory, rng, clock)
        self._authorizer = authorizer or self.controller.permissions
        self._recovered: _Recovered
        self.quorum: Quorum
        self.log: MetadataLog
        self.snapshots = Snapshots(directory.log_path, snapshot_limits_of(config), clock)
        self.servers: list[Server] = []
        self.certificates = Certificates()
        node = (BROKER, str(config.node_id))
        self._stores = DynamicStores(config, lambda: self.controller.image.configs.get(node, {}), of_own_listener, _log)
        self._ready = asyncio.Event()
        self._advanced = asyncio.Event()
        self._ended = asyncio.Event()
        self._closed = False
        self.abandoned = False
        """Whether :meth:`close` left a thread behind that waits for the directory: the process must not wait for it."""
        self._failure: BaseException | None = None
        self._turns = Turns()
        self._readings: SharedWork[ResponseBody | EncodedResponse] = SharedWork("controller-reads")
        self._reading = Room(READING_BYTES_MAX)
        self._notes = _Notes(clock)
        self._features = Features()
        """What is durable; ApiVersions tells it at any time."""
        self._features_next: tuple[int, Features] | None = None
        """What is on its way to the disk, and where that ends."""
        self._deferred: DeferredAnswers[tuple[asyncio.Future[_TurnOutcome], _TurnOutcome]] = DeferredAnswers()
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
        """Run :meth:`open` and :meth:`serve`.

        Raises:
            KjbodError: the configuration, the directory, the port or the log does not allow it; one line.
        """
        server = await cls.open(config, clock=clock, rng=rng, authorizer=authorizer)
        await server.serve()
        return server

    @classmethod
    async def open(
        cls,
        config: Config,
        *,
        clock: Clock,
        rng: random.Random,
        authorizer: Authorizer | None = None,
    ) -> "ControllerServer":
        """Check everything, lock the directory and read the log. No port is open yet. Only the lock is written and, for
        an empty log, its empty first segment.

        Raises:
            KjbodError: as :meth:`start`.
        """
        require_controller(config)
        await _require_free_ports(config)
        directory = await asyncio.to_thread(open_directory, config)
        server = cls(config, directory, clock=clock, rng=rng, authorizer=authorizer)
        try:
            server._recovered = await server._recover()
        except BaseException:
            await server.close()
            raise
        return server

    async def serve(self) -> None:
        """Open the listeners and a leader epoch, and answer from then on. A failure closes the server.

        Raises:
            KjbodError: a port is taken, or the log does not allow it; one line.
        """
        config = self._config
        try:
            moment = datetime.fromtimestamp(self._clock.wall_ms() / 1000).astimezone()
            self._directory = await asyncio.to_thread(identified, self._directory, self._rng, moment)
            await self._listen()
            await self._begin(self._recovered)
        except BaseException as error:
            await self.close()
            if isinstance(error, ConnectionAbortedError) and self._failure is not None:
                raise self._failure from error  # the log's first batches
            raise
        del self._recovered  # or the snapshot's records stay in memory
        self._ready.set()
        endpoint = self.controller.endpoint
        _log.info(
            "controller.started",
            host=endpoint.host,
            port=endpoint.port,
            protocol=config.controller_protocol,
            node_id=config.node_id,
            epoch=self.quorum.epoch,
            rules=config.kjbod_controller_rules,
            metadata_version=self.controller.image.metadata_version,
            partitions=self.controller.image.partition_count(),
        )

    @property
    def port(self) -> int:
        """The port of the first controller listener."""
        return self.servers[0].port

    @property
    def clock(self) -> Clock:
        """The clock of the server."""
        return self._clock

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn, and answers that wait for the log."""
        return len(self._deferred) + len(self._turns)

    def measure(self) -> TurnTimes:
        """Measure turns from here on, and return the measurements, which grow with each turn."""
        self._turns.times = TurnTimes(self._clock)
        return self._turns.times

    async def run(self, watch: DirectoryWatch | None = None) -> None:
        """Until :meth:`stop`: fence brokers whose session expired, write a NoOp if nothing else is written, and write
        snapshots. ``watch`` checks the directory in parallel.

        Raises:
            StorageError: the log or its directory failed.
            Exception: a bug: a record that was just made cannot be replayed.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [tasks.create_task(self._beside(lambda: self.snapshots.run(self.log, self._state)))]
                beside.append(tasks.create_task(self._beside(lambda: look_again(self.certificates))))
                beside.append(tasks.create_task(self._beside(self._stores.run)))
                if watch is not None:
                    beside.append(tasks.create_task(self._beside(lambda: watch.run(self.log))))
                try:
                    await self._run_timers()
                finally:
                    for task in beside:
                        task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        if self._failure is not None:
            raise self._failure

    def watch(self) -> DirectoryWatch:
        """The watch over the directory, for :meth:`run`."""
        return DirectoryWatch(
            self._directory.path,
            self._directory.identity,
            interval_ms=self._config.kjbod_probe_interval_ms,
            timeout_ms=self._config.kjbod_blind_timeout_ms,
            clock=self._clock,
        )

    async def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except StorageError as error:
            self._fail(error)

    async def _state(self) -> State:
        """Return a copy of the state between two requests, once the log is durable up to it."""
        copied: asyncio.Future[State] = asyncio.get_running_loop().create_future()
        self._turns.take(
            self._copy_state,
            settle=lambda state: None if copied.done() else copied.set_result(state),
            fail=lambda error: None if copied.done() else copied.set_exception(error),
            is_large=lambda: False,
        )
        state = await copied
        while self.log.end_offset < state.id.end_offset:
            await self._advanced.wait()
        return state

    def _copy_state(self) -> State:
        assert self.log.next_offset == self.controller.next_offset, "the state is not that of a whole number of batches"
        return State(
            image=shallow_copy(self.controller.image),
            id=SnapshotId(self.log.mark(), self.quorum.epoch),
            timestamp_ms=self.log.last_timestamp_ms,
            kraft_version=self.controller.cluster.kraft_version,
            voters=self.quorum.voters(),
            failed=self.controller.cluster.failed_directories(),
        )

    async def _run_timers(self) -> None:
        idle_ms = self._config.metadata_max_idle_interval_ms
        looked_ms = self._clock.monotonic_ms()
        with contextlib.suppress(ConnectionAbortedError):
            while not self._ended.is_set():
                if self._clock.monotonic_ms() - looked_ms > _STANDSTILL_MS:
                    await self._sleep(_READ_FIRST_MS)
                looked_ms = now_ms = self._clock.monotonic_ms()
                timer_ms = self.controller.next_timer_ms()
                if timer_ms is not None and timer_ms <= now_ms:
                    await self._take(self._timed, lambda: are_timers_large(self.controller, self._clock.monotonic_ms()))
                elif idle_ms and now_ms - self._last_write_ms >= idle_ms:
                    await self._commit(self.controller.no_op())
                else:
                    await self._sleep(self._next_timer_ms(idle_ms) - now_ms)

    def _timed(self) -> "_TurnOutcome":
        return _TurnOutcome(self.controller.run_timers(self._clock.monotonic_ms()) or Result())

    def _next_timer_ms(self, idle_ms: int) -> int:
        due = [self._clock.monotonic_ms() + _TIMER_MS_MAX]
        if idle_ms:
            due.append(self._last_write_ms + idle_ms)
        if (timer := self.controller.next_timer_ms()) is not None:
            due.append(timer)
        return min(due)

    async def _sleep(self, ms: int) -> None:
        """Sleep until :meth:`stop`, for a limited time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(1, ms) / 1000):
                await self._ended.wait()

    @property
    def serves(self) -> bool:
        """Whether requests are answered: from the first epoch until a failure or :meth:`stop`."""
        return self._ready.is_set() and not self._ended.is_set()

    def stop(self) -> None:
        """Ask :meth:`run` to return."""
        self._ended.set()

    async def close(self) -> None:
        """End connections, write pending batches to the log, and release the directory. A second call does nothing."""
        self._ended.set()
        if self._closed:
            return
        self._closed = True
        for server in self.servers:
            await server.close()
        self._readings.close()
        await self._turns.close()
        patience_ms = self._config.kjbod_blind_timeout_ms
        if isinstance(self._failure, DirectoryHungError):
            # It was waited for long enough; a thread that the kernel holds would keep the process.
            self._abandon(0)
            return
        releasing = asyncio.ensure_future(self._release())
        if await is_done_in_time(releasing, patience_ms, self._clock):
            await releasing
        else:
            releasing.cancel()
            self._abandon(patience_ms)

    def _abandon(self, patience_ms: int) -> None:
        self.abandoned = True
        _log.error("controller.abandoned", path=str(self._directory.path), patience_ms=patience_ms)

    async def _release(self) -> None:
        if hasattr(self, "log"):
            await self.log.close()
        await asyncio.to_thread(self._directory.release)

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting and later answers, because their records may or may not be in the log."""
        if self._failure is None:
            self._failure = error
        self._ended.set()
        self._advanced.set()
        for done, _ in self._deferred.complete(self.controller.next_offset):
            if not done.done():
                done.set_exception(ConnectionAbortedError("the controller is stopping"))

    # ---- start-up

    async def _listen(self) -> None:
        names = self._config.controller_listener_names
        limits = await limits_of(self._config)
        credentials = MetadataCredentials(lambda: self.controller.image, self._config.delegation_token_secret_key)
        for listener in sorted(
            (one for one in self._config.listeners if one.name in names), key=lambda one: names.index(one.name)
        ):
            security = await listener_security(self._config, listener, credentials, self._ready.wait)
            if security is not None:
                self.certificates.add(f"listener {listener.name}", security)
                self._stores.add(listener, security)
            self.servers.append(
                await serve(
                    listener.host,
                    listener.port,
                    self._handle,
                    apis=SERVED,
                    limits=limits,
                    clock=self._clock,
                    log=_log,
                    reader=self._readings.thread,
                    urgent_reader=self._turns.thread,
                    shortcut=self._steady_heartbeats,
                    security=security,
                )
            )
        advertised = self._config.advertised_controller_listeners[0]
        self.controller.endpoint = advertised_endpoint(advertised, self.port)

    async def _recover(self) -> _Recovered:
        """Read, check and replay the snapshot and the log."""
        remains = await asyncio.to_thread(read_remains, self._directory)
        require_alone(remains.voters, self._config.node_id, self._directory.path)
        found = await asyncio.to_thread(find, self._directory.log_path)
        known = {kept.id.file_name: kept.id.epoch for kept in found.kept}
        if remains.quorum_state is not None:
            known[QUORUM_STATE] = remains.quorum_state.leader_epoch
        require_next_epoch(known, self._directory.log_path)
        if remains.empty:  # opening it makes a first segment
            content = found.content
            require_supported(remains.bootstrap if content is None else content.records, self._directory.path)
            require_alone(None if content is None else content.voters, self._config.node_id, self._directory.log_path)
        require_formatted(remains, self._config, self._directory)
        latest = SnapshotId(0, 0) if found.latest is None else found.latest
        self.log = await MetadataLog.open(
            self._directory.log_path,
            segment_bytes=self._config.metadata_log_segment_bytes,
            segment_ms=self._config.metadata_log_segment_ms,
            start_offset=latest.end_offset,
            start_epoch=latest.epoch,
            repair=False,
        )
        require_one_history(found, self.log, self._directory.log_path)
        require_own(found, self.log, remains.quorum_state, self._config.node_id, self._directory.log_path)
        require_next_epoch({"the log": self.log.last_epoch}, self._directory.log_path)
        require_no_gap(found, self.log, self._directory.log_path)
        kraft_version, voters, replayed_bytes = await self._replay(found)
        require_alone(voters, self._config.node_id, self._directory.log_path)
        if kraft_version is None:
            kraft_version = 0 if self._config.controller_quorum_voters else 1
        return _Recovered(
            remains=remains,
            found=found,
            latest=latest,
            kraft_version=kraft_version,
            voters=voters,
            replayed_bytes=replayed_bytes,
        )

    async def _begin(self, recovered: _Recovered) -> None:
        """Begin to change the directory, after everything was read and found valid."""
        latest = recovered.latest
        if covers(latest, self.log):
            _log.warning("log.replaced", snapshot=latest.file_name, end_offset=self.log.end_offset)
            await self.log.restart_at(latest.end_offset, latest.epoch)
        await self.log.repair()
        await self.snapshots.adopt(recovered.found, self.log, recovered.replayed_bytes)
        self.controller.cluster.kraft_version = recovered.kraft_version
        await self._open_epoch(recovered.remains, recovered.kraft_version, recovered.voters)
        self._features = self._features_now()

    async def _replay(self, found: Found) -> tuple[int | None, KRaftVoters | None, int]:
        """Replay the newest snapshot and the log after it. Return their kraft.version and voters, and the amount of log
        that was replayed."""
        kraft_version: int | None = None
        voters: KRaftVoters | None = None
        start = replayed_bytes = 0
        if found.latest is not None and found.content is not None:
            start, kraft_version, voters = found.latest.end_offset, found.content.kraft_version, found.content.voters
            try:
                self.controller.recover_snapshot(found.latest, found.content.records)
            except ReplayError as error:
                path = self._directory.log_path / found.latest.file_name
                raise StorageError(f"cannot replay {path}: {error}") from None
        replaced = found.latest is not None and covers(found.latest, self.log)
        async for batch in self.log.batches(self.log.end_offset if replaced else start):
            replayed_bytes += batch.size_in_bytes
            try:
                for offset, control in batch.control_records():
                    self.controller.skip(offset)
                    if isinstance(control, KRaftVersion):
                        kraft_version = control.k_raft_version
                    elif isinstance(control, KRaftVoters):
                        voters = control
                self.controller.recover_batch(batch.leader_epoch, batch.alike_records())
            except (MalformedMessageError, ReplayError) as error:
                raise StorageError(f"cannot replay {self.log.file_of(batch.base_offset)}: {error}") from None
        if max(start, self.log.end_offset) and (unsupported := self.controller.unsupported_features()):
            raise StorageError(
                f"{self._directory.log_path} has finalized {', '.join(unsupported)}, which kjbod controller does not "
                "support: lower it with kafka-features on the controllers that wrote it"
            )
        return kraft_version, voters, replayed_bytes

    async def _open_epoch(self, remains: Remains, kraft_version: int, voters: KRaftVoters | None) -> None:
        known = remains.quorum_state.leader_epoch if remains.quorum_state is not None else 0
        epoch = max(known, self.log.last_epoch) + 1
        # The epoch must be on the disk before any peer learns it: after a crash it must not be used a second time.
        await asyncio.to_thread(
            write_quorum_state,
            self._directory.log_path,
            QuorumState(leader_id=self._config.node_id, leader_epoch=epoch),
            kraft_version=kraft_version,
            voter=self._config.node_id,
        )
        controller = self.controller
        self.quorum = Quorum(
            cluster_id=self._directory.cluster_id,
            node_id=self._config.node_id,
            directory_id=self._directory.directory_id,
            endpoint=controller.endpoint,
            epoch=epoch,
            log=self.log,
            snapshots=self.snapshots,
        )
        empty = not controller.image.features
        control = self.quorum.leader_records(voters, kraft_version=kraft_version)
        batch = encode_batch(control, controller.next_offset, epoch, self._clock.wall_ms(), control=True)
        controller.skip(controller.next_offset + len(control) - 1)
        self._submit([batch])
        results = [controller.activate(self._clock.monotonic_ms())]
        if empty:
            results.append(Result(records=bootstrap_records(remains.bootstrap, self._config.min_insync_replicas)))
        for result in results:
            await self._commit(result)
        # Also in its first life: by its incarnation an observer knows that no log was set back under it.
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
        """Apply a small result and wait until its records, and those that it may depend on, are durable."""
        await self._take(lambda: _TurnOutcome(result), lambda: False)

    def _take(
        self,
        make: Callable[[], "_TurnOutcome"],
        is_large: Callable[[], bool],
        *,
        only_reads: bool = False,
        rank: Rank = Rank.BROKERS,
    ) -> "asyncio.Future[_TurnOutcome]":
        """Take a turn to make a result and apply it. Return a future that gets the result when it is durable, with
        everything it depends on. A call with ``only_reads`` is skipped when no caller waits for it any more."""
        done: asyncio.Future[_TurnOutcome] = asyncio.get_running_loop().create_future()
        self._turns.take(
            functools.partial(self._change, make, done.cancelled if only_reads else lambda: False),
            settle=functools.partial(self._settle, done),
            fail=functools.partial(self._refuse, done),
            is_large=is_large,
            rank=rank,
        )
        return done

    def _change(
        self, make: Callable[[], "_TurnOutcome"], is_idle: Callable[[], bool]
    ) -> tuple["_TurnOutcome", list[bytes]]:
        """Build, apply and encode the result of a turn, on the event loop or in the thread.

        Raises:
            _HalfAppliedError: the records are not in the log, but the image may have some of them: only a replay from
                the log helps.
            Exception: nothing has changed.
        """
        if self._failure is not None or self._closed:
            raise ConnectionAbortedError("the controller is stopping")
        if is_idle():
            raise ConnectionAbortedError("the client has gone")
        made = make()
        try:
            batches = []
            if made.result.kraft_version is not None:
                batches.append(self._upgrade_kraft_version(made.result.kraft_version))
            level = self.controller.image.metadata_version
            write = self.controller.apply(made.result)
            if write is not None:
                batches += self._encode(write)
            if level < versions.CONTROLLER_REGISTRATION <= self.controller.image.metadata_version:
                # Only now are there such registrations: a later update looks whether all controllers support it. An
                # empty log comes here with the records that formatting left.
                batches += self._encode_all(Result(records=(self._own_registration(),)))
        except Exception as error:
            raise _HalfAppliedError from error
        # Without the records: freeing them takes time too, and belongs to this turn.
        return replace(made, result=replace(made.result, records=())), batches

    def _settle(self, done: "asyncio.Future[_TurnOutcome]", changed: tuple["_TurnOutcome", list[bytes]]) -> None:
        """Pass the batches of a turn to the log, in the order of the turns, and make the answer wait for them."""
        made, batches = changed
        if self._failure is not None:
            raise ConnectionAbortedError("the controller is stopping")
        if batches:
            self._submit(batches)
            features = self._features_now()
            if features != (self._features if self._features_next is None else self._features_next[1]):
                self._features_next = (self.controller.next_offset, features)
        if self.controller.next_offset <= self.log.end_offset:
            self._finish(done, made)
        else:
            self._deferred.add(self.controller.next_offset, (done, made))

    def _refuse(self, done: "asyncio.Future[_TurnOutcome]", error: BaseException) -> None:
        if isinstance(error, _HalfAppliedError):
            self._fail(error.__cause__ or error)
            error = ConnectionAbortedError("the controller is stopping")
        if not done.done():
            done.set_exception(error)

    def _encode_all(self, result: Result) -> Iterable[bytes]:
        write = self.controller.apply(result)
        return () if write is None else self._encode(write)

    def _encode(self, write: Write) -> Iterable[bytes]:
        offset = write.base_offset
        for values in write.batches:
            yield encode_batch(values, offset, self.quorum.epoch, self._clock.wall_ms())
            offset += len(values)

    def _upgrade_kraft_version(self, level: int) -> bytes:
        """Return the batch that changes a quorum from configured voters to voters in the log (``LeaderState``)."""
        controller = self.controller
        records = [KRaftVersion(k_raft_version=level), self.quorum.voters()]
        batch = encode_batch(records, controller.next_offset, self.quorum.epoch, self._clock.wall_ms(), control=True)
        controller.skip(controller.next_offset + len(records) - 1)
        controller.cluster.kraft_version = level
        return batch

    def _submit(self, batches: list[bytes]) -> None:
        self._last_write_ms = self._clock.monotonic_ms()
        try:
            future = self.log.submit(batches)
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
        for done, made in self._deferred.complete(self.log.end_offset):
            self._finish(done, made)
        if self._features_next is not None and self._features_next[0] <= self.log.end_offset:
            self._features, self._features_next = self._features_next[1], None
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()
        self.snapshots.written(self.log)

    def _finish(self, done: "asyncio.Future[_TurnOutcome]", made: "_TurnOutcome") -> None:
        for note in made.result.notes:
            self._notes.add(note)
        if not done.done():
            done.set_result(made)

    async def _wait_durable(self, end_offset: int) -> bool:
        """Wait until the log is durable up to an offset, and return whether it was before a failure."""
        while self.log.end_offset < end_offset and self._failure is None:
            await self._advanced.wait()
        return self._failure is None

    # ---- requests

    def _steady_heartbeats(self, peer: Peer) -> SteadyHeartbeats:
        """Answer a steady heartbeat that need not wait, faster than through :meth:`_handle` and :meth:`_answer`."""
        host = host_of_acls(peer.host)

        def decide(request: BrokerHeartbeatRequest, metadata_offset: int) -> BrokerHeartbeatResponse | None:
            if not self._ready.is_set() or self._failure is not None:
                return None
            if not is_authorized(self._authorizer(peer.principal, host), request.API_KEY):
                return None
            steady = self.controller.sessions.steady_heartbeat(request, self._clock.monotonic_ms(), metadata_offset)
            return steady[0] if steady is not None and steady[1] <= self.log.end_offset else None

        return SteadyHeartbeats(decide)

    async def _handle(self, request: Request, peer: Peer) -> ResponseBody | EncodedResponse | None:
        """Handle a request; None ends the connection."""
        await self._ready.wait()
        if self._failure is not None:
            return None
        context = Context(
            request.version,
            peer.principal,
            host_of_acls(peer.host),
            token_authenticated=peer.token_authenticated,
            client_id=request.client_id or "",
        )
        try:
            if isinstance(request.message, EnvelopeRequest):
                return await self._forwarded(request, request.message, context)
            return await self._answer(request, context, encode=True)
        except ConnectionAbortedError:  # the result may not be durable, so no answer is sent
            return None

    async def _forwarded(self, outer: Request, envelope: EnvelopeRequest, sender: Context) -> ResponseBody | None:
        """Handle a request that a broker forwards, as if its client had sent it."""
        if not is_authorized(self._authorizer(sender.principal, sender.host), outer.api_key):
            return refusal(envelope, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, outer.version)
        try:
            inner = await self._in_thread_when_large(envelope, lambda: unwrap(envelope, SERVED, FRAME_BYTES_MAX_OF))
        except ApiError as error:
            return EnvelopeResponse(error_code=error.code)
        context = Context(
            inner.request.version,
            inner.principal,
            inner.host,
            forwarded=True,
            token_authenticated=inner.token_authenticated,
            client_id=inner.request.client_id or "",
        )
        answer = await self._answer(inner.request, context, encode=False)
        if not isinstance(answer, ResponseBody):
            return None
        return await self._in_thread_when_large(
            envelope, lambda: wrap(inner.request, answer), may_be_long=type(inner.request.message) in _READS
        )

    async def _in_thread_when_large(
        self, envelope: EnvelopeRequest, work: Callable[[], T], *, may_be_long: bool = False
    ) -> T:
        if len(envelope.request_data) <= DECODED_AT_ONCE_BYTES and not may_be_long:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._readings.thread, work)

    async def _answer(
        self, request: Request, context: Context, *, encode: bool
    ) -> ResponseBody | EncodedResponse | None:
        """Return the answer, as bytes if possible with ``encode``; None ends the connection."""
        message = request.message
        permissions = self._authorizer(context.principal, context.host)
        if not is_authorized(permissions, request.api_key):
            return refusal(message, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, request.version)
        if isinstance(message, FetchRequest):
            return await self._fetch(message, request.version)
        if isinstance(message, FetchSnapshotRequest):
            return await self._fetch_snapshot(message, request.version)
        if isinstance(message, DescribeQuorumRequest):
            return self.quorum.describe(message, self._clock.wall_ms())
        if request.api_key is ApiKey.API_VERSIONS:
            return api_versions_response(request, SERVED, self._features)
        if type(message) in voters.ANSWERS:
            return self._voter().answer(message, request.version)
        if isinstance(message, BrokerHeartbeatRequest):
            steady = self.controller.sessions.steady_heartbeat(message, self._clock.monotonic_ms())
            if steady is not None:
                answer, end_offset = steady
                return answer if await self._wait_durable(end_offset) else None
        rank = Rank.BROKERS if request.api_key in URGENT else Rank.OTHERS
        if self.waiting >= WAITING_ANSWERS_MAX * (2 if rank is Rank.BROKERS else 1):
            return None
        only_reads = type(message) in _READS

        def make() -> _TurnOutcome:
            if only_reads and is_large(self.controller, message, request.size_in_bytes):
                return _TurnOutcome(Result(), too_large=True)
            now_ms = self._clock.monotonic_ms()
            result, answer = _handled(self.controller, message, context, permissions, now_ms=now_ms)
            if not encode or answer is None:
                return _TurnOutcome(result, answer)
            frame = encode_response(answer, request.version, request.correlation_id)
            mute_ms = answer.throttle_time_ms if isinstance(answer, _HAVE_QUOTA) else 0
            return _TurnOutcome(result, EncodedResponse(request.api_key, frame, mute_ms))

        try:
            made = await self._take(
                make,
                lambda: not only_reads and is_large(self.controller, message, request.size_in_bytes),
                only_reads=only_reads,
                rank=rank,
            )
            return await self._read(request, context, permissions, encode) if made.too_large else made.answer
        except ConnectionAbortedError:
            return None

    async def _read(
        self, request: Request, context: Context, permissions: Permissions, encode: bool
    ) -> ResponseBody | EncodedResponse | None:
        """Return the answer to a large read-only request, made once for all equal requests. It uses a copy of the
        state, so it does not delay other turns."""
        if self._readings.asked >= _WAITING_READS_MAX:
            return None
        asker = None if permissions.unrestricted else (context.principal, context.host, context.token_authenticated)
        key = (request.message, request.version, encode, asker)
        return await self._readings.get(key, functools.partial(self._reading_of, request, context, encode))

    async def _reading_of(
        self, request: Request, context: Context, encode: bool
    ) -> Callable[[], ResponseBody | EncodedResponse]:
        """The work of :meth:`_read`.

        Raises:
            ConnectionAbortedError: the log failed before the state was durable, so no answer is sent.
        """
        copied: asyncio.Future[Controller] = asyncio.get_running_loop().create_future()
        self._turns.take(
            self.controller.at_rest,
            settle=lambda controller: None if copied.done() else copied.set_result(controller),
            fail=lambda error: None if copied.done() else copied.set_exception(error),
            is_large=lambda: True,  # where there are very many topics, the copy takes some time, too
            rank=Rank.OTHERS,
        )
        controller = await copied
        if not await self._wait_durable(controller.next_offset):
            raise ConnectionAbortedError("the controller is stopping")
        own = self._authorizer == self.controller.permissions
        foreign = None if own else self._authorizer(context.principal, context.host)

        def work() -> ResponseBody | EncodedResponse:
            # An index of all ACLs is made for the copy: not on the loop.
            permissions = controller.permissions(context.principal, context.host) if foreign is None else foreign
            _, answer = _handled(controller, request.message, context, permissions, now_ms=0)
            assert answer is not None
            if not encode:
                return answer
            return EncodedResponse(request.api_key, encode_response(answer, request.version, 0), shared=True)

        return work

    def _voter(self) -> voters.Voter:
        return voters.Voter(
            cluster_id=self._directory.cluster_id,
            node_id=self._config.node_id,
            directory_id=self._directory.directory_id,
            endpoint=self.controller.endpoint,
            epoch=self.quorum.epoch,
            kraft_version=self.controller.cluster.kraft_version,
        )

    def _features_now(self) -> Features:
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
        try:
            async with self._reading.held(plan.max_bytes):
                records = await self.log.read(plan.offset, plan.max_bytes)
        except OffsetOutOfRangeError:  # a snapshot came, and the log starts later now
            again = self.quorum.plan_fetch(message, version)
            return again if not isinstance(again, ReadFrom) else self.quorum.fetch_response(version)
        return self.quorum.fetch_response(version, records=records)

    async def _fetch_snapshot(self, message: FetchSnapshotRequest, version: int) -> ResponseBody:
        plan = self.quorum.plan_fetch_snapshot(message, version)
        if not isinstance(plan, ReadSnapshot):
            return plan
        reader = (message.replica_id, message.topics[0].partitions[0].replica_directory_id)
        async with self._reading.held(plan.max_bytes):
            data = await self.snapshots.read(plan.id, plan.position, plan.max_bytes, reader)
        if not data:
            return self.quorum.snapshot_response(version, plan.id, error=ErrorCode.SNAPSHOT_NOT_FOUND)
        return self.quorum.snapshot_response(version, plan.id, size=plan.size, position=plan.position, data=data)


def _handled(
    controller: Controller, message: RequestBody[Any], context: Context, permissions: Permissions, *, now_ms: int
) -> tuple[Result, ResponseBody | None]:
    """Return the result for the part of a request that the principal may use, and the answer to all of it. Runs in a
    turn, or on a copy of the state."""
    screened = screen(message, controller.image, permissions)
    if screened.allowed is None:
        return Result(), screened.merge(None)
    result = controller.handle(screened.allowed, context, now_ms)
    return result, screened.merge(result.answer)
