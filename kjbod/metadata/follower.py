"""A KRaft observer on asyncio: fetches ``__cluster_metadata`` and delivers the committed records.

:class:`kjbod.metadata.fetching.FetchMachine` makes the decisions. This module is its connection: one at a time, one
request in flight.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from kjbod.clock import Clock
from kjbod.errors import LogCorruptError, ProtocolError, UnsupportedVersionError
from kjbod.ids import ZERO, Uuid
from kjbod.metadata.fetching import (
    MAX_WAIT_MS,
    QUORUM,
    Address,
    Committed,
    Confirmed,
    Downloaded,
    Effect,
    FetchMachine,
    Leader,
    LeaderChanged,
    Quorum,
    Snapshot,
)
from kjbod.metadata.image import ReplayError
from kjbod.metadata.kept import Kept
from kjbod.metadata.records import Record
from kjbod.metadata.snapshot import SnapshotId, decode_in_steps
from kjbod.wire.client import AuthenticationFailed, Connection, Disconnected, ForeignPeer
from kjbod.wire.connection_setup import ConnectionSetup
from kjbod.wire.messages import ApiKey, FetchSnapshotRequest

__all__ = ["Committed", "Leader", "MetadataFollower", "Snapshot"]

REFUSALS_MAX: Final = 100
"""Maximum servers whose refusal is remembered."""
_log = structlog.get_logger("kjbod.metadata.follower")


class _Open(Protocol):
    """Signature of :meth:`kjbod.wire.client.Connection.open`, so that a simulation can replace it."""

    async def __call__(
        self, host: str, port: int, *, client_id: str, clock: Clock, connect_timeout_ms: int
    ) -> Connection: ...


class MetadataFollower:
    """Follower of a cluster's metadata log, in memory, from its start or from the position of an earlier process.

    The callbacks are plain functions, called in the order of the log and never at the same time. An exception of a
    callback ends :meth:`run`.

    Args:
        bootstrap_servers: ``controller.quorum.bootstrap.servers``, or the addresses of ``controller.quorum.voters``.
        client_id: client id: the node id, as Kafka's brokers send it.
        clock: clock for deadlines.
        rng: random choice of servers, and jitter.
        on_committed: gets records below the high watermark.
        on_snapshot: gets a snapshot, which replaces everything that was delivered before.
        wanted: records of a snapshot to deliver, if not all: other records use no memory.
        on_leader: gets the leader, None while unknown; the heartbeat channel uses it as its target.
        on_set_back: gets the evidence that the controllers know only leader epochs before the followed one; None: no
            longer.
        cluster_id: a controller of another cluster is refused; None: not checked.
        replica_id: the broker's id, -1 for a plain reader.
        directory_id: ``directory.id`` of the metadata directory of that broker.
        voters: addresses by node id, from ``controller.quorum.voters``.
        max_wait_ms: time that the leader may hold a fetch.
        quorum: time limits and sizes.
        setup: time limits to open a connection.
        connect: opens a connection.
        kept: log that an earlier process had applied; None: no such log.
        on_confirmed: called when the leader has the stored log too, so that the next records continue it.
        on_downloaded: gets the bytes of a delivered snapshot whose history is not known to have parted.
    """

    def __init__(
        self,
        bootstrap_servers: Sequence[Address],
        *,
        client_id: str,
        clock: Clock,
        rng: random.Random,
        on_committed: Callable[[Committed], None],
        on_snapshot: Callable[[Snapshot], None],
        wanted: Callable[[Record], bool] | None = None,
        on_leader: Callable[[Leader | None], None] = lambda leader: None,
        on_set_back: Callable[[str | None], None] = lambda reason: None,
        cluster_id: str | None = None,
        replica_id: int = -1,
        directory_id: Uuid = ZERO,
        voters: Mapping[int, Address] | None = None,
        max_wait_ms: int = MAX_WAIT_MS,
        quorum: Quorum = QUORUM,
        setup: ConnectionSetup | None = None,
        connect: _Open = Connection.open,
        kept: Kept | None = None,
        on_confirmed: Callable[[], None] = lambda: None,
        on_downloaded: Callable[[SnapshotId, bytes], None] = lambda snapshot_id, data: None,
    ) -> None:
        self._machine = FetchMachine(
            bootstrap_servers,
            rng,
            cluster_id=cluster_id,
            replica_id=replica_id,
            directory_id=directory_id,
            voters=voters,
            max_wait_ms=max_wait_ms,
            quorum=quorum,
            kept=kept,
        )
        self._setup = setup or ConnectionSetup()
        self._client_id = client_id
        self._clock = clock
        self._on_committed = on_committed
        self._on_snapshot = on_snapshot
        self._wanted = wanted
        self._on_leader = on_leader
        self._on_set_back = on_set_back
        self._on_confirmed = on_confirmed
        self._on_downloaded = on_downloaded
        self._set_back = False
        self._connect = connect
        self._connection: Connection | None = None
        self._connected_to: Address | None = None
        self._problem: str | None = None
        self.current_ms: int | None = None
        """Monotonic milliseconds at which the last fetch was sent whose answer left nothing to apply: everything
        committed by then was delivered. None: no such fetch yet."""
        self.refusals: dict[Address, str] = {}
        """Servers that speak another protocol, lack an API or a version, or do not trust us, with the last reason."""

    @property
    def leader(self) -> Leader | None:
        """The active controller as far as known; it may be dead by now."""
        return self._machine.leader

    @property
    def problem(self) -> str | None:
        """Reason why the last exchange brought nothing; None if it succeeded, and before the first exchange has
        ended."""
        return self._machine.problem

    @property
    def failing_since_ms(self) -> int | None:
        """Monotonic milliseconds of the first failed exchange in a row; None: the last exchange succeeded."""
        return self._machine.failing_since_ms

    @property
    def answered_ms(self) -> int | None:
        """Monotonic milliseconds of the leader's last successful answer; None: none yet."""
        return self._machine.answered_ms

    @property
    def denied(self) -> bool:
        """Whether the last answer refused permission to read."""
        return self._machine.denied

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is committed; -1 while unknown."""
        return self._machine.high_watermark

    @property
    def applied_offset(self) -> int:
        """The first offset that was not delivered; equal to :attr:`high_watermark` when caught up."""
        return self._machine.applied_offset

    async def run(self) -> None:
        """Fetch until cancelled.

        Raises:
            InconsistentClusterError: the controllers belong to another cluster.
        """
        try:
            while True:
                delay_ms = self._machine.not_before_ms - self._clock.monotonic_ms()
                if delay_ms > 0:
                    await asyncio.sleep(delay_ms / 1000)
                try:
                    effects = await self._exchange()
                    self.refusals.clear()
                except (Disconnected, UnsupportedVersionError) as error:
                    await self._disconnect()
                    self._note_refusal(error)
                    effects = self._machine.on_failure(str(error), self._clock.monotonic_ms())
                self._report()
                await self._deliver_all(effects)
                del effects  # otherwise a large snapshot stays in memory until the next answer
        finally:
            await self._disconnect()

    def _note_refusal(self, error: ProtocolError) -> None:
        if isinstance(error, (AuthenticationFailed, ForeignPeer, UnsupportedVersionError)):
            self.refusals[self._machine.address] = str(error)
            if len(self.refusals) > REFUSALS_MAX:
                del self.refusals[next(iter(self.refusals))]

    async def _deliver_all(self, effects: list[Effect]) -> None:
        """Deliver the effects of an answer, in a function of its own so that no reference to them remains."""
        for effect in effects:
            if isinstance(effect, Downloaded):
                for loaded in await self._load(effect):
                    try:
                        self._deliver(loaded)
                    except ReplayError as error:
                        self._unusable(str(error))
                        break
                    if isinstance(loaded, Snapshot) and loaded.parted is None:
                        self._on_downloaded(effect.id, effect.data)
            else:
                self._deliver(effect)

    async def _exchange(self) -> list[Effect]:
        """Send a request and return the effects of its answer."""
        machine = self._machine
        connection = await self._connection_to(machine.address)
        request = machine.request(connection.version_of(ApiKey.FETCH))
        timeout_ms = machine.timeout_ms
        if isinstance(request, FetchSnapshotRequest):
            piece = await connection.request(request, timeout_ms=timeout_ms)
            return machine.on_fetch_snapshot(piece, self._clock.monotonic_ms())
        sent_ms = self._clock.monotonic_ms()
        answer = await connection.request(request, timeout_ms=timeout_ms)
        effects = machine.on_fetch(answer, self._clock.monotonic_ms())
        if machine.problem is None and machine.current:
            self.current_ms = sent_ms
        return effects

    async def _load(self, downloaded: Downloaded) -> list[Effect]:
        """Decode a snapshot a few milliseconds at a time, so that heartbeats continue."""
        steps = decode_in_steps(downloaded.data, downloaded.id.file_name, self._wanted, observed=True)
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    snapshot = Snapshot(downloaded.id, end.value.records, end.value.kraft_version)
                    return self._machine.on_snapshot(snapshot, self._clock.monotonic_ms())
                await asyncio.sleep(0)
        except (LogCorruptError, ReplayError) as error:
            return self._unusable(str(error))

    def _unusable(self, why: str) -> list[Effect]:
        effects = self._machine.on_unusable(f"a bad snapshot was sent: {why}", self._clock.monotonic_ms())
        self._report()
        return effects

    async def _connection_to(self, address: Address) -> Connection:
        if self._connection is not None and (self._connection.closed or self._connected_to != address):
            await self._disconnect()
        if self._connection is None:
            host, port = address
            with self._setup.attempt(address) as setup_ms:
                self._connection = await self._connect(
                    host,
                    port,
                    client_id=self._client_id,
                    clock=self._clock,
                    # Earlier than the time limit of a request that waits for a leader, so that it can report the
                    # reason.
                    connect_timeout_ms=min(setup_ms, self._machine.patience_ms * 9 // 10),
                )
            self._connected_to = address
            self._machine.on_connected()
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Disconnected):
                await connection.close()

    def _report(self) -> None:
        """Log one line when fetching fails and one when it works again, not one per attempt."""
        problem = self._machine.problem
        if (problem is None) != (self._problem is None):
            if problem is not None:
                _log.warning("metadata.fetch.failing", reason=problem)
            else:
                _log.info("metadata.fetch.recovered", high_watermark=self.high_watermark)
        self._problem = problem
        set_back = self._machine.set_back
        if (set_back is not None) != self._set_back:
            self._set_back = set_back is not None
            self._on_set_back(set_back)

    def _deliver(self, effect: Effect) -> None:
        match effect:
            case Committed():
                self._on_committed(effect)
            case Snapshot():
                _log.info("metadata.snapshot.loaded", end_offset=effect.id.end_offset, epoch=effect.id.epoch)
                self._on_snapshot(effect)
            case Confirmed():
                self._on_confirmed()
            case Downloaded():
                raise AssertionError("a snapshot is loaded before it is delivered")
            case LeaderChanged(leader):
                _log.info(
                    "metadata.leader.changed",
                    leader=None if leader is None else leader.node_id,
                    epoch=self._machine.epoch,
                )
                self._on_leader(leader)
