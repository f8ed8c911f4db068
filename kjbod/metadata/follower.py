"""A KRaft observer on asyncio: fetches ``__cluster_metadata`` and hands over what is committed.

The decisions are :class:`kjbod.metadata.fetching.FetchMachine`'s. This is its connection: one at a time, one request
in flight.
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
"""Servers of which it is kept that they refused us."""
_log = structlog.get_logger("kjbod.metadata.follower")


class _Open(Protocol):
    """The signature of :meth:`kjbod.wire.client.Connection.open`, so that a simulation can give its own."""

    async def __call__(
        self, host: str, port: int, *, client_id: str, clock: Clock, connect_timeout_ms: int
    ) -> Connection: ...


class MetadataFollower:
    """Follows the metadata log of a cluster, from its start or from where an earlier process had come, in memory.

    The callbacks are plain functions and are called in the order of the log, never at the same time; an exception of
    theirs ends :meth:`run`.

    Args:
        bootstrap_servers: ``controller.quorum.bootstrap.servers``, or the addresses of ``controller.quorum.voters``.
        client_id: the node id as Kafka's brokers give it.
        clock: for deadlines.
        rng: chooses servers, and jitter.
        on_committed: records below the high watermark, and how far they reach.
        on_snapshot: a snapshot, which replaces everything that was handed over before.
        wanted: records of a snapshot that are handed over, where it is not all of them: the others cost no memory.
        on_leader: the leader, None while there is none; also tells the heartbeat channel where to go.
        on_set_back: the controllers know only leader epochs before that which was followed, and why that is thought;
            None: that has ended.
        cluster_id: a controller of another cluster is refused; None: not checked.
        replica_id: the broker's id, -1 for a plain reader.
        directory_id: ``directory.id`` of the metadata directory of that broker.
        voters: addresses by node id, from ``controller.quorum.voters``.
        max_wait_ms: how long the leader may park a fetch.
        quorum: time limits and sizes.
        setup: how long a connection may take to open.
        connect: opens a connection.
        kept: what an earlier process had applied; None: nothing is known.
        on_confirmed: the leader has it too, and what comes next follows it; not called where it has not.
        on_downloaded: the bytes of a snapshot that was handed over, of a history that is not known to have parted.
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
        """Monotonic milliseconds at which the last fetch was sent whose answer left nothing to be applied: everything
        that was committed then has been handed over. None: there was none."""
        self.refusals: dict[Address, str] = {}
        """Servers that speak another protocol, lack an API or a version, or do not believe us, with the last reason."""

    @property
    def leader(self) -> Leader | None:
        """The active controller as far as known; it may have died since."""
        return self._machine.leader

    @property
    def problem(self) -> str | None:
        """Reason for which the last exchange brought nothing; None when it did, and before the first one has ended."""
        return self._machine.problem

    @property
    def failing_since_ms(self) -> int | None:
        """Monotonic milliseconds at which it began that no exchange brought anything; None: the last one did."""
        return self._machine.failing_since_ms

    @property
    def answered_ms(self) -> int | None:
        """Monotonic milliseconds at which the leader last answered well; None: it never has."""
        return self._machine.answered_ms

    @property
    def denied(self) -> bool:
        """Whether the last answer was that who asks may not read."""
        return self._machine.denied

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is committed, -1 while unknown."""
        return self._machine.high_watermark

    @property
    def applied_offset(self) -> int:
        """The first offset that was not handed over; equal to :attr:`high_watermark` when caught up."""
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
                del effects  # or a snapshot, of hundreds of thousands of records, stays until the next answer
        finally:
            await self._disconnect()

    def _note_refusal(self, error: ProtocolError) -> None:
        if isinstance(error, (AuthenticationFailed, ForeignPeer, UnsupportedVersionError)):
            self.refusals[self._machine.address] = str(error)
            if len(self.refusals) > REFUSALS_MAX:
                del self.refusals[next(iter(self.refusals))]

    async def _deliver_all(self, effects: list[Effect]) -> None:
        """Hand over what came of an answer; of a function of its own, so that nothing of it is kept."""
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
        """A request and its answer."""
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
        """Decode a snapshot a few milliseconds at a time, so that heartbeats go on meanwhile."""
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
                    # Sooner than a request that waits for a leader gives up: it is to say why there is none.
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
        """A line when fetching stops to work, one when it works again: not one per attempt."""
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
