"""Protocol logic of a KRaft observer that reads the metadata log, without a socket (``KafkaRaftClient``, KIP-595,
KIP-630).

:class:`FetchMachine` decides where and when to send which request, and turns answers into :data:`Effect` s. It keeps
only data that is not applied yet: batches above the high watermark, and the pieces of a snapshot.

=========================================  ==========================================================================
answer                                     what follows
=========================================  ==========================================================================
no error, records                          kept; applied when below the high watermark
no error, DivergingEpoch                   the tail that the leader does not have is dropped; fetch again at once
no error, SnapshotId                       FetchSnapshot from position 0 until the size is reached; then it replaces all
74 FENCED_LEADER_EPOCH                     our epoch is old: take epoch and leader from the answer, ask the leader
6 NOT_LEADER_OR_FOLLOWER                   take the leader from the answer; none named: back off, ask any server
75 UNKNOWN_LEADER_EPOCH                    that server is behind: back off, ask any server
8 BROKER_NOT_AVAILABLE                     that leader is going: back off, ask any server
98, 99 (snapshot gone, position wrong)     forget the snapshot, back off, fetch again
a snapshot that cannot be used             said until another can be; fetched again after a second, then after twice as
                                           long each time, up to five minutes
one that does not arrive whole             likewise, but the first time it is fetched again at once
one that is offered again after it was     likewise, and never at once
loaded, with no records behind it
104 INCONSISTENT_CLUSTER_ID                :class:`InconsistentClusterError`, unless fetching has worked before
anything else, time-out, disconnect        back off, ask any server
=========================================  ==========================================================================

A search for the leader asks each server once, in any order, before it asks a server again. So a dead or stopped server
delays the search once per round. Back-off starts at 20 ms and doubles from round to round up to a second, with a fifth
of jitter. A server has :attr:`Quorum.search_ms` to answer, and twice as long in each round after the third, up to
:attr:`Quorum.request_timeout_ms`. Any progress resets both. So finding the leader after an election takes a fraction of
the election's time. A leader that is named again while it does not answer is asked again after the back-off, not at
once. A leader epoch never goes back.

Records below the high watermark never diverge. A leader that reports a divergence there has another history: its log
was lost, or an older copy was restored. Then everything is read again from the start. Consumers never see a half-read
state: they get the new history as one snapshot, after all of it up to the high watermark was read.

Offsets and epochs alone do not show another history: a log that was set back grows again, with the same epoch numbers.
So the last delivered batch is fetched once more on each new connection, and must be equal, checksum and epoch included.
A :class:`Snapshot` reports evidence that it does not contain all records that were delivered before.

Data that an earlier process stored (:class:`Kept`) is checked in the same way. Its last batch is fetched first, and
:class:`Confirmed` reports that the leader has that batch as committed; a broker's log may also have uncommitted
records. Until then the stored data is not used. If the leader does not have the batch, or no server knows its epoch for
:data:`SET_BACK_AFTER_MS`, all is read from the start and delivered as one snapshot. That snapshot has parted unless it
has the last batch known as committed: any election may lose later batches. A snapshot that replaces all comparable
batches sets :attr:`Snapshot.uncompared`.

Records of a newer Kafka are not fatal: their known part is delivered (:mod:`.newer`). An observer that keeps up is
never sent a snapshot. So while such records make the metadata incomplete, all is read again after an hour; Kafka makes
a snapshot in that time, which may have the resulting state. The interval then doubles, up to a day. The metadata that
was read again is delivered as one :class:`Snapshot`.
"""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct, field, structs

from kjbod.errors import EXIT_CONFIG, KjbodError, RemoteProtocolError
from kjbod.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME, ZERO, Uuid
from kjbod.metadata import versions
from kjbod.metadata.batches import RecordBatch, iter_batches
from kjbod.metadata.control_records import KRaftVersion
from kjbod.metadata.image import Replayer, image_of
from kjbod.metadata.kept import Kept, Tail
from kjbod.metadata.newer import is_harmless
from kjbod.metadata.records import FeatureLevelRecord, Record, UnknownRecord
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire import messages as wire
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.error_codes import ErrorCode

if TYPE_CHECKING:
    import random


Address: TypeAlias = tuple[str, int]
"""Host and port."""

_DENIED = frozenset({ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED})
MAX_WAIT_MS = 500
"""``KafkaRaftClient.MAX_FETCH_WAIT_MS``: time that a leader holds a fetch without new records."""
RETRY_BACKOFF_MAX_MS = 1000
SNAPSHOT_BACKOFF_MS = 1_000
"""First pause after an unusable snapshot; the next snapshot is as large."""
SNAPSHOT_BACKOFF_MAX_MS = 300_000
READ_AGAIN_MS = 3_600_000
"""First wait before all is read again after unknown records: ``metadata.log.max.snapshot.interval.ms``. A random part,
up to half of it, is added so that the observers of a cluster do not read at the same time."""
READ_AGAIN_MAX_MS = 86_400_000
SEARCH_MS = 500
SECURED_SEARCH_MS = 1000
"""Search time per server with TLS or SASL. It is longer because aborted TLS handshakes of many nodes only cause more
handshakes."""
SEARCH_ROUNDS = 3
"""Number of search rounds with the same time limit."""
ASKED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes that one answer may be asked for, whatever is configured: the answer is in memory and must fit into a
frame."""
ADDRESSES_MAX = 1_000
"""Maximum controllers whose addresses are kept: more than any quorum has had."""
SNAPSHOT_BYTES_MAX = 1024 * 1024 * 1024
SET_BACK_AFTER_MS = 10_000
"""Time after which the logs of the controllers count as set back. Servers that know only older leader epochs for this
long have not just missed an election."""
_JITTER = 0.2
_DOUBLED_MAX = 16
_REPLICA_STATE_SINCE = 15
"""Fetch version from which the replica id is a tagged struct."""


class Quorum(Struct, frozen=True, kw_only=True):
    """Settings of an observer of the quorum; names and defaults are those of ``controller.quorum.*``.

    Attributes:
        request_timeout_ms: time limit of an answer, in addition to the time that the leader may hold the request.
        fetch_timeout_ms: silence of a leader, beyond the time that it may hold a request, after which another leader is
            searched.
        retry_backoff_ms: first pause between a failure and the next request.
        search_ms: time limit to connect to a server that may know the leader, and again for its answer, in the first
            rounds of a search.
        fetch_max_bytes: maximum bytes of records in one answer; a single larger batch is sent whole.
        fetch_snapshot_max_bytes: maximum bytes of a snapshot in one answer.
    """

    request_timeout_ms: int = 2000
    fetch_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    search_ms: int = SEARCH_MS
    fetch_max_bytes: int = 1024 * 1024
    fetch_snapshot_max_bytes: int = 1024 * 1024


QUORUM = Quorum()
"""Kafka's defaults."""


class InconsistentClusterError(KjbodError):
    """The controllers belong to another cluster than this node: a configuration error."""

    exit_code = EXIT_CONFIG


class Leader(Struct, frozen=True):
    """The active controller."""

    node_id: int
    epoch: int
    host: str
    port: int


@dataclasses.dataclass(frozen=True, slots=True)
class Committed:
    """Committed records of one leader epoch, in order, with whole batches."""

    records: tuple[tuple[int, Record], ...]
    """Offset and record; without control records, so the tuple may be empty."""
    last_offset: int
    """Offset of the last record, control records included: the applied offset after these records."""
    epoch: int
    high_watermark: int
    batches: tuple[RecordBatch, ...] = dataclasses.field(default=(), compare=False, repr=False)
    """The batches as they were sent, control batches included."""

    @property
    def kraft_version(self) -> int | None:
        """Return the kraft.version of the last control record in these batches that sets it; None: no record
        sets it."""
        level = None
        for batch in self.batches:
            with contextlib.suppress(MalformedMessageError):  # a control record of a newer Kafka
                for _, control in batch.control_records() if batch.control else ():
                    level = control.k_raft_version if isinstance(control, KRaftVersion) else level
        return level


class Snapshot(Struct, frozen=True):
    """State of all records below ``id.end_offset``; replaces everything."""

    id: SnapshotId
    records: tuple[Record, ...]
    parted: str | None = None
    """Reason why its history does not contain all records that were delivered before; None: no evidence against it."""
    kraft_version: int | None = None
    """The kraft.version, which is not a metadata record; None: this snapshot has none."""
    uncompared: str | None = None
    """Reason why it is unknown whether its history contains the data of an earlier process; None: it does, or there was
    no such data."""
    dropped: str | None = None
    """Evidence that the snapshot lacks the last stored records, none of which is known as committed; None: no
    evidence."""


class LeaderChanged(Struct, frozen=True):
    """The new leader; None while no leader is known."""

    leader: Leader | None


class Downloaded(Struct, frozen=True):
    """All bytes of a snapshot. The caller decodes them, which takes a while, and calls :meth:`FetchMachine.on_snapshot`
    before the next request."""

    id: SnapshotId
    data: bytes


class Confirmed(Struct, frozen=True):
    """The leader has the last batch of the :class:`Kept` data in its log, below its high watermark. The stored data is
    valid from here on."""


Effect: TypeAlias = Committed | Snapshot | LeaderChanged | Downloaded | Confirmed


class _Download(Struct):
    """A snapshot that is being downloaded."""

    id: SnapshotId
    data: bytearray = field(default_factory=bytearray)


class _OtherHistoryError(Exception):
    """The log of this leader does not have the records that were delivered."""


class _Search(Struct):
    """Search of a history, read from its start, for the last batch that is known as committed: by an earlier process,
    or by this process when it reads its own history again."""

    committed: Tail | None
    why: str
    """Reason why the history is read from its start."""
    own: bool = False
    """Whether it is our own history."""
    found: bool = False
    passed_over: bool = False
    """Whether the batches of the history begin after the searched batch."""

    def verdict(self) -> tuple[str | None, str | None, str | None]:
        """Return :attr:`Snapshot.parted`, ``uncompared`` and ``dropped`` of the history."""
        dropped = None if self.own else self.why
        if self.found:
            return None, None, dropped
        if self.committed is None or self.passed_over:
            return None, self.why, dropped
        return self.why, None, None


class _Log(Struct):
    """The fetched log: its end, and the records that are not applied."""

    end_offset: int = 0
    applied_offset: int = 0
    """The first offset that was not delivered."""
    high_watermark: int = -1
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """Leader epochs and their first offsets, ascending; after a snapshot, starting with the snapshot's last record."""
    pending: deque[RecordBatch] = field(default_factory=deque)
    tail: Tail | None = None
    """Last delivered batch; None: no batch was delivered yet, or none after a snapshot."""
    rewound: bool = False
    """Whether the next batch must be :attr:`tail`."""

    @property
    def last_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else 0

    def end_of(self, epoch: int) -> int:
        """Return the end of our largest epoch that is not above ``epoch``; 0 if we have none."""
        end = 0
        for number, (ours, _) in enumerate(self.epochs):
            if ours <= epoch:
                end = self.epochs[number + 1][1] if number + 1 < len(self.epochs) else self.end_offset
        return end

    @classmethod
    def of(cls, kept: Kept) -> "_Log":
        """Return the log after delivery of ``kept``, ready to be compared with the leader's."""
        end = kept.end_offset
        log = cls(end_offset=end, applied_offset=end, epochs=list(kept.epochs), tail=kept.tail)
        log.rewind()
        return log

    def take(self, data: bytes, leader_epoch: int) -> None:
        """Keep the batches in an answer of the leader of ``leader_epoch``.

        Raises:
            RemoteProtocolError: a batch does not check or does not continue the log.
            _OtherHistoryError: the log was rewound, and the leader has another batch at that offset.
        """
        for batch in iter_batches(data):
            if self.rewound and Tail.of(batch) != self.tail:
                raise _OtherHistoryError
            if batch.base_offset != self.end_offset or not self.last_epoch <= batch.leader_epoch <= leader_epoch:
                raise RemoteProtocolError(
                    f"a batch of offset {batch.base_offset} and epoch {batch.leader_epoch} cannot follow offset "
                    f"{self.end_offset} and epoch {self.last_epoch} under a leader of epoch {leader_epoch}"
                )
            if not self.epochs or batch.leader_epoch > self.last_epoch:
                self.epochs.append((batch.leader_epoch, batch.base_offset))
            if self.rewound:
                self.rewound = False  # delivered before
            else:
                self.pending.append(batch)
            self.end_offset = batch.next_offset

    def rewind(self) -> None:
        """Go back to before the last delivered batch, to check that the leader has the same batch."""
        if self.tail is None or self.rewound:
            return
        self.pending.clear()
        self.end_offset = self.tail.base_offset
        self._drop_epochs()
        self.rewound = True

    def truncate(self, offset: int) -> None:
        """Drop the batches at and above ``offset``; none of them is applied."""
        while self.pending and self.pending[-1].next_offset > offset:
            self.end_offset = self.pending.pop().base_offset
        self._drop_epochs()

    def _drop_epochs(self) -> None:
        while self.epochs and self.epochs[-1][1] >= self.end_offset:
            self.epochs.pop()

    def committed(self) -> Iterator[RecordBatch]:
        """Remove and yield the batches below the high watermark."""
        while self.pending and self.pending[0].next_offset <= self.high_watermark:
            batch = self.pending.popleft()
            self.applied_offset = batch.next_offset
            self.tail = Tail.of(batch)
            yield batch


class _BeforeSnapshot(Struct, frozen=True):
    """Parts of the machine before a snapshot replaced them."""

    log: _Log
    unconfirmed: bool
    search: _Search | None
    reload: Replayer | None
    incomplete: bool
    parted: str | None
    handed_over: SnapshotId


class FetchMachine:
    """The state of one observer.

    Ask :attr:`address`, not before :attr:`not_before_ms`, for :meth:`request`, and report the outcome with
    :meth:`on_fetch`, :meth:`on_fetch_snapshot` or :meth:`on_failure`, and each new connection with
    :meth:`on_connected`.

    Args:
        bootstrap_servers: servers that may be asked for the leader; at least one.
        rng: random choice of servers, and jitter.
        cluster_id: cluster id in requests, so that a controller of another cluster refuses; None: not checked.
        replica_id: the node's id; -1 is a plain reader.
        directory_id: ``directory.id`` of the node's metadata directory.
        voters: addresses by node id if configured (``controller.quorum.voters``): needed below Fetch 16, whose answers
            have no endpoints.
        max_wait_ms: time that the leader may hold a fetch.
        quorum: time limits and sizes.
        kept: log that an earlier process had applied; None: no such log.
    """

    def __init__(
        self,
        bootstrap_servers: Sequence[Address],
        rng: "random.Random",
        *,
        cluster_id: str | None = None,
        replica_id: int = -1,
        directory_id: Uuid = ZERO,
        voters: Mapping[int, Address] | None = None,
        max_wait_ms: int = MAX_WAIT_MS,
        quorum: Quorum = QUORUM,
        kept: Kept | None = None,
    ) -> None:
        self._servers = tuple(bootstrap_servers)
        self._rng = rng
        self._cluster_id = cluster_id
        self._replica_id = replica_id
        self._directory_id = directory_id
        self._addresses: dict[int, Address] = dict(voters or {})
        self._max_wait_ms = max_wait_ms
        self._quorum = quorum
        self._failures = 0
        self._asked_in_vain: set[Address] = set()
        """Servers that failed in this round of the search."""
        self._ever_fetched = False
        self._log = _Log() if kept is None else _Log.of(kept)
        self._unconfirmed = kept is not None
        self._kept = kept
        self._search: _Search | None = None
        self._download: _Download | None = None
        self._begun = False
        """Whether a snapshot was requested that has not arrived completely."""
        self._unusable: str | None = None
        """Reason why the last snapshot was unusable; None: it was usable, or none was needed since."""
        self._unusable_count = 0
        """Number of unusable snapshots in a row."""
        self._before_snapshot: _BeforeSnapshot | None = None
        self._snapshot_not_before_ms = 0
        self._reload: Replayer | None = None
        self._incomplete = False
        """Whether the metadata is incomplete."""
        self._read_again_ms: int | None = None
        """Time at which to read everything again; None: the metadata is complete, or not checked yet."""
        self._read_again_count = 0
        self._parted: str | None = None
        self._handed_over = SnapshotId(0, 0) if kept is None else SnapshotId(kept.end_offset, kept.tail.leader_epoch)
        self._leader_id = -1
        self.epoch = 0 if kept is None else kept.tail.leader_epoch
        """The newest leader epoch that is known."""
        self.leader: Leader | None = None
        self.address: Address = rng.choice(self._servers)
        """Address for the next request."""
        self.not_before_ms = 0
        """Earliest time of the next request, on the clock of ``now_ms``."""
        self.current = False
        """Whether the last answer left no committed record unapplied. An answer without a high watermark (from a new
        leader), with a snapshot or of another history does not count."""
        self.problem: str | None = None
        """Reason why the last exchange brought nothing; None if it succeeded."""
        self.failing_since_ms: int | None = None
        """End of the first failed exchange in a row, on the clock of ``now_ms``."""
        self.answered_ms: int | None = None
        """Time of the leader's last successful answer, on the clock of ``now_ms``; None: none yet."""
        self.denied = False
        """Whether the last answer refused permission to read."""
        self.set_back: str | None = None
        """Evidence that servers know only older leader epochs for :data:`SET_BACK_AFTER_MS`: the controllers' history
        was lost or set back, or the controllers with the newer epoch are down. None: no evidence."""
        self._behind_since_ms: int | None = None

    # ---- what to do

    @property
    def high_watermark(self) -> int:
        """The offset below which everything is committed; -1 while unknown."""
        return self._log.high_watermark

    @property
    def applied_offset(self) -> int:
        """The first offset that was not delivered."""
        return self._log.applied_offset

    @property
    def timeout_ms(self) -> int:
        """Milliseconds to wait for the answer to :meth:`request`."""
        # A server that answered last time gets no longer than a leader may be silent.
        limit_ms = self.patience_ms if self._failures else min(self.patience_ms, self._quorum.fetch_timeout_ms)
        return limit_ms + (0 if self._download else self._max_wait_ms)

    @property
    def patience_ms(self) -> int:
        """Milliseconds for one server to take a connection."""
        limit_ms = self._quorum.request_timeout_ms
        searching = self._failures and len(self._servers) > 1
        doubled = min(max(0, self._rounds - SEARCH_ROUNDS + 1), _DOUBLED_MAX)
        return min(limit_ms, self._quorum.search_ms << doubled) if searching else limit_ms

    @property
    def _rounds(self) -> int:
        """Number of finished rounds of the search."""
        return max(0, self._failures - 1) // len(self._servers)

    def request(self, fetch_version: int) -> wire.FetchRequest | wire.FetchSnapshotRequest:
        """Return the next request; ``fetch_version`` is the version of Fetch on this connection."""
        if self._download is not None:
            return self._snapshot_request(self._download)
        partition = wire.FetchRequestPartition(
            partition=0,
            current_leader_epoch=self.epoch,
            fetch_offset=self._log.end_offset,
            last_fetched_epoch=self._log.last_epoch,
            replica_directory_id=self._directory_id,
            high_watermark=self._log.high_watermark,
        )
        old = fetch_version < _REPLICA_STATE_SINCE
        return wire.FetchRequest(
            cluster_id=self._cluster_id,
            replica_id=self._replica_id if old else -1,
            replica_state=wire.FetchRequestReplicaState(replica_id=-1 if old else self._replica_id),
            max_wait_ms=self._max_wait_ms,
            max_bytes=min(self._quorum.fetch_max_bytes, ASKED_BYTES_MAX),
            topics=(
                wire.FetchRequestTopic(topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=(partition,)),
            ),
        )

    def _snapshot_request(self, download: _Download) -> wire.FetchSnapshotRequest:
        partition = wire.FetchSnapshotRequestPartition(
            current_leader_epoch=self.epoch,
            snapshot_id=wire.SnapshotId(end_offset=download.id.end_offset, epoch=download.id.epoch),
            position=len(download.data),
            replica_directory_id=self._directory_id,
        )
        return wire.FetchSnapshotRequest(
            cluster_id=self._cluster_id,
            replica_id=self._replica_id,
            max_bytes=min(self._quorum.fetch_snapshot_max_bytes, ASKED_BYTES_MAX),
            topics=(wire.FetchSnapshotRequestTopic(partitions=(partition,)),),
        )

    # ---- what happened

    def on_connected(self) -> None:
        """Note a new connection: the next request may go to another process with another history."""
        self._log.rewind()

    def on_failure(self, why: str, now_ms: int, then: Address | None = None) -> list[Effect]:
        """Note a failed exchange (no connection, no answer in time, or a malformed answer): back off, then ask ``then``
        or the next server."""
        self.problem = why
        if self._begun:
            self._unusable = why
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        self._failures += 1
        first_ms = max(1, self._quorum.retry_backoff_ms)
        backoff = min(first_ms << min(self._rounds, _DOUBLED_MAX), max(first_ms, RETRY_BACKOFF_MAX_MS))
        self.not_before_ms = now_ms + int(backoff * self._rng.uniform(1 - _JITTER, 1 + _JITTER))
        self.address = then or self._next_server()
        return []

    def _next_server(self) -> Address:
        """Return a server that was not asked in this round. If all were asked, begin the next round with any server
        except the last one."""
        self._asked_in_vain.add(self.address)
        left = [server for server in self._servers if server not in self._asked_in_vain]
        if not left:
            self._asked_in_vain.clear()
            left = [server for server in self._servers if server != self.address]
        return self._rng.choice(left or self._servers)

    def on_fetch(self, response: wire.FetchResponse, now_ms: int) -> list[Effect]:
        """Process an answer to a Fetch.

        Raises:
            InconsistentClusterError: the controllers are of another cluster.
            ReplayError: while reading everything again, a record contradicts the ones before it.
        """
        self.current = False
        if response.error_code:
            return self._on_error(response.error_code, now_ms)
        partition = next((p for topic in response.responses for p in topic.partitions), None)
        if partition is None:
            return self.on_failure(f"{_at(self.address)} answered Fetch without a partition", now_ms)
        self._note_addresses(response.node_endpoints)
        if partition.error_code:
            return self._on_error(partition.error_code, now_ms, partition.current_leader)
        effects = self._learn(self._told(partition.current_leader), self.address)
        self._ever_fetched = True
        if partition.diverging_epoch.end_offset >= 0:
            self._diverged(partition.diverging_epoch, now_ms)
            return effects
        if partition.snapshot_id.end_offset >= 0:
            self._offered(SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch), now_ms)
            return effects
        try:
            self._log.take(partition.records or b"", self.epoch)
        except _OtherHistoryError:
            self._start_over(f"{_at(self.address)} has other records at offset {self._log.end_offset}", now_ms)
            return effects
        except RemoteProtocolError as error:
            return effects + self.on_failure(f"{_at(self.address)} sent a bad batch: {error}", now_ms)
        self._log.high_watermark = max(self._log.high_watermark, partition.high_watermark)
        self._begun, self._unusable, self._unusable_count, self._before_snapshot = False, None, 0, None
        self._progress(now_ms)
        effects = effects + self._confirm() + self._apply()
        self.current = 0 <= partition.high_watermark == self._log.applied_offset
        self._look_for_more(now_ms)
        return effects

    def _look_for_more(self, now_ms: int) -> None:
        """Read our own history again if the leader may now have a snapshot in place of the unknown records."""
        if self._reload is not None:
            return
        if not self._incomplete:
            self._read_again_ms, self._read_again_count = None, 0
        elif self._read_again_ms is None:
            wait_ms = min(READ_AGAIN_MS << min(self._read_again_count, _DOUBLED_MAX), READ_AGAIN_MAX_MS)
            self._read_again_ms = now_ms + int(wait_ms * self._rng.uniform(1, 1.5))
        elif now_ms >= self._read_again_ms:
            why = f"{_at(self.address)} has only a snapshot in the place of what was read"
            self._search = _Search(self._log.tail, why, own=True)
            self._log, self._reload, self.current = _Log(), Replayer(), False
            self._incomplete, self._read_again_ms = False, None
            self._read_again_count += 1

    def _offered(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        """Request the snapshot that the leader offers in place of the next records, unless the last snapshots
        failed."""
        end = self._log.end_offset
        if self._begun:  # begun, but not finished
            self._begun = False
            if self._unusable_count:
                self._put_off_snapshot(self._unusable_count - 1, now_ms)
            self._unusable_count += 1
        elif self._before_snapshot is not None and self._unusable is None and snapshot_id.end_offset <= end:
            # Not a snapshot that was made during the last load.
            self._unusable = f"{_at(self.address)} has no records behind its snapshot of offset {end}"
            self._put_off_snapshot(self._unusable_count, now_ms)
            self._unusable_count += 1
        self._progress(now_ms)
        if self._unusable is not None and self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        if now_ms < self._snapshot_not_before_ms:
            # Asked again until then: a new leader may have the records instead.
            self.not_before_ms = min(now_ms + RETRY_BACKOFF_MAX_MS, self._snapshot_not_before_ms)
            return
        self._before_snapshot = None
        self._begun, self._download = True, _Download(snapshot_id)

    def _put_off_snapshot(self, doublings: int, now_ms: int) -> None:
        backoff_ms = min(SNAPSHOT_BACKOFF_MS << min(doublings, _DOUBLED_MAX), SNAPSHOT_BACKOFF_MAX_MS)
        backoff_ms = max(SNAPSHOT_BACKOFF_MS, int(backoff_ms * self._rng.uniform(1 - _JITTER, 1)))
        self._snapshot_not_before_ms = now_ms + backoff_ms

    def _confirm(self) -> list[Effect]:
        """Confirm the stored log as soon as the leader has sent its last batch and that batch is below the high
        watermark. Batches above the high watermark may still be lost."""
        if not self._unconfirmed or self._log.rewound or self._log.high_watermark < self._log.applied_offset:
            return []
        self._unconfirmed = False
        return [Confirmed()]

    def _note_addresses(
        self, nodes: Sequence[wire.FetchResponseNodeEndpoint | wire.FetchSnapshotResponseNodeEndpoint]
    ) -> None:
        """Note the addresses of the nodes in an answer, usually leaders; keep the newest :data:`ADDRESSES_MAX`."""
        for node in nodes:
            self._addresses.pop(node.node_id, None)
            self._addresses[node.node_id] = (node.host, node.port)
        for node_id in list(self._addresses)[: max(0, len(self._addresses) - ADDRESSES_MAX)]:
            del self._addresses[node_id]

    def on_fetch_snapshot(self, response: wire.FetchSnapshotResponse, now_ms: int) -> list[Effect]:
        """Process an answer to a FetchSnapshot; errors as for :meth:`on_fetch`."""
        download, self._download = self._download, None
        if download is None or response.error_code:
            return self._on_error(response.error_code, now_ms)
        partition = next((p for topic in response.topics for p in topic.partitions), None)
        if partition is None:
            return self.on_failure(f"{_at(self.address)} answered FetchSnapshot without a partition", now_ms)
        self._note_addresses(response.node_endpoints)
        # The schema has no default that means "unset": leader 0 of epoch 0, which no elected leader has.
        told = partition.current_leader if partition.current_leader.leader_epoch > 0 else wire.LeaderIdAndEpoch()
        if partition.error_code:
            return self._on_error(partition.error_code, now_ms, told)
        effects = self._learn(self._told(told), self.address)
        got = SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
        piece = partition.unaligned_records
        fits = partition.position == len(download.data) and len(download.data) + len(piece) <= partition.size
        if got != download.id or not fits or not piece or partition.size > SNAPSHOT_BYTES_MAX:
            return effects + self.on_failure(
                f"{_at(self.address)} sent {len(piece)} bytes at position {partition.position} of snapshot "
                f"{got.file_name} of {partition.size} bytes, asked for position {len(download.data)} of "
                f"{download.id.file_name}",
                now_ms,
            )
        download.data += piece
        if len(download.data) < partition.size:
            self._download = download
            self._progress(now_ms)
            return effects
        self._begun = False
        self._progress(now_ms)
        return [*effects, Downloaded(download.id, bytes(download.data))]

    def on_snapshot(self, snapshot: Snapshot, now_ms: int) -> list[Effect]:
        """Process the decoded records of a :class:`Downloaded` snapshot. If they are unusable, call
        :meth:`on_unusable`.

        Raises:
            ReplayError: while reading everything again, a record contradicts the ones before it.
        """
        end = snapshot.id.end_offset
        self._before_snapshot = _BeforeSnapshot(
            self._log,
            self._unconfirmed,
            self._search,
            self._reload,
            self._incomplete,
            self._parted,
            self._handed_over,
        )
        self._incomplete = _is_incomplete(snapshot.records)
        # The next answer shows how far the log after the snapshot is committed; the snapshot's end does not.
        self._log = _Log(
            end_offset=end,
            applied_offset=end,
            epochs=[(snapshot.id.epoch, end - 1)],
        )
        if self._unconfirmed and self._kept is not None:
            self._search = _Search(None, f"{_at(self.address)} has only a snapshot, of offset {end}, instead of it")
        elif self._search is not None:
            tail = self._search.committed
            self._search.passed_over = not self._search.own or tail is None or end > tail.base_offset
        self._unconfirmed = False
        self._unusable = None
        self._snapshot_not_before_ms = now_ms + SNAPSHOT_BACKOFF_MS
        self._progress(now_ms)
        if self._reload is None:
            replaced = self._replaced_by(snapshot.id, snapshot.records)
            return [structs.replace(replaced, kraft_version=snapshot.kraft_version, dropped=None)]
        self._reload = Replayer(image_of(snapshot.records, offset=end - 1, epoch=snapshot.id.epoch))
        return self._reloaded()

    def on_unusable(self, why: str, now_ms: int) -> list[Effect]:
        """Note that a :class:`Downloaded` snapshot is unusable, and restore the state from before its download. This is
        a problem until another snapshot is usable."""
        if self._before_snapshot is not None:
            self._restore(self._before_snapshot)
        effects = self.on_failure(why, now_ms)
        self._put_off_snapshot(self._unusable_count, now_ms)
        self._unusable = why
        self._unusable_count += 1
        return effects

    def _restore(self, before: "_BeforeSnapshot") -> None:
        self._log, self._unconfirmed, self._search = before.log, before.unconfirmed, before.search
        self._reload, self._parted, self._handed_over = before.reload, before.parted, before.handed_over
        self._incomplete = before.incomplete

    def _replaced_by(self, snapshot_id: SnapshotId, records: tuple[Record, ...]) -> Snapshot:
        """Return a snapshot for delivery, with the evidence against its history."""
        before, why, self._parted = self._handed_over, self._parted, None
        uncompared = dropped = None
        if self._search is not None:
            parted, uncompared, dropped = self._search.verdict()
            why, self._search = why or parted, None
        if why is None and (snapshot_id.end_offset < before.end_offset or snapshot_id.epoch < before.epoch):
            why = f"{_at(self.address)} has a snapshot of offset {snapshot_id.end_offset} and epoch {snapshot_id.epoch}"
        self._handed_over = snapshot_id
        if why is not None:
            uncompared = dropped = None
        return Snapshot(snapshot_id, records, why, uncompared=uncompared, dropped=dropped)

    # ---- details

    def _progress(self, now_ms: int) -> None:
        self.problem = self._unusable
        self.set_back = self._behind_since_ms = None
        if self._unusable is None:
            self.failing_since_ms = None
        self.denied = False
        self._failures = 0
        self._asked_in_vain.clear()
        self.not_before_ms = self.answered_ms = now_ms

    def _on_error(self, code: int, now_ms: int, told: wire.LeaderIdAndEpoch | None = None) -> list[Effect]:
        """Act on an error as in the table of the module; ``told`` is the leader that the answer names."""
        self._download = None
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID and not self._ever_fetched:
            raise InconsistentClusterError(
                f"the controller at {_at(self.address)} belongs to another cluster than {self._cluster_id}: check "
                "controller.quorum.bootstrap.servers and the cluster.id in meta.properties"
            )
        self.denied = code in _DENIED
        why = f"{_at(self.address)} answered {_error_name(code)}"
        if code == ErrorCode.UNKNOWN_LEADER_EPOCH and told is not None and 0 <= told.leader_epoch < self.epoch:
            why += f": it knows leader epoch {told.leader_epoch}, and epoch {self.epoch} was followed"
            self._behind_since_ms = now_ms if self._behind_since_ms is None else self._behind_since_ms
            if now_ms - self._behind_since_ms >= SET_BACK_AFTER_MS:
                self._set_back_to_older_epochs(why, now_ms)
        before = self.leader
        effects = [] if told is None else self._learn(told, None)
        if self.leader is None or told is None or told.leader_id == -1 or code == ErrorCode.BROKER_NOT_AVAILABLE:
            return effects + self.on_failure(why, now_ms)
        named = (self.leader.host, self.leader.port)
        if self.leader == before:
            return effects + self.on_failure(why, now_ms, named if told.leader_epoch == self.epoch else None)
        self._progress(now_ms)
        self.address = named
        return effects

    def _set_back_to_older_epochs(self, why: str, now_ms: int) -> None:
        """Handle that no server knows our leader epoch. Fetched data stays; stored but unconfirmed data is dropped, as
        if there were none."""
        if not self._unconfirmed:
            self.set_back = why
            return
        self.epoch = 0
        self._start_over(why, now_ms)

    def _told(self, named: wire.LeaderIdAndEpoch) -> wire.LeaderIdAndEpoch:
        """Return the leader according to an answer without an error: older controllers name the leader only in
        errors."""
        return (
            wire.LeaderIdAndEpoch(leader_id=self._leader_id, leader_epoch=self.epoch)
            if named.leader_id == -1
            else named
        )

    def _learn(self, told: wire.LeaderIdAndEpoch, answered_as_leader: Address | None) -> list[Effect]:
        """Read epoch and leader from an answer. ``answered_as_leader`` is the sender's address if only a leader sends
        such an answer."""
        if told.leader_epoch < self.epoch or (told.leader_epoch == self.epoch and told.leader_id == -1):
            return []
        if told.leader_epoch > self.epoch:
            self._leader_id = -1
        self.epoch = told.leader_epoch
        if told.leader_id != -1:
            self._leader_id = told.leader_id
        address = self._addresses.get(self._leader_id, answered_as_leader)
        leader = None if address is None or self._leader_id == -1 else Leader(self._leader_id, self.epoch, *address)
        if leader == self.leader:
            return []
        self.leader = leader
        return [LeaderChanged(leader)]

    def _diverged(self, leader_end: wire.EpochEndOffset, now_ms: int) -> None:
        offset = min(leader_end.end_offset, self._log.end_of(leader_end.epoch))
        if offset >= self._log.end_offset:
            self.on_failure(f"{_at(self.address)} sees a divergence at our own end", now_ms, self.address)
            return
        if offset >= self._log.applied_offset:
            self._progress(now_ms)
            self._log.truncate(offset)
        else:
            self._start_over(f"{_at(self.address)} has other records from offset {offset} on", now_ms)

    def _start_over(self, parted: str, now_ms: int) -> None:
        """Read another history from its start."""
        self._progress(now_ms)
        self._log = _Log()
        self._reload = Replayer()
        self._incomplete = False
        kept = self._kept if self._unconfirmed else None
        self._unconfirmed = False
        if self._search is not None:  # a new leader, while the history of the previous leader was read
            self._search = _Search(self._search.committed, self._search.why)
        elif kept is not None and kept.committed != kept.tail:
            self._search = _Search(kept.committed, parted)
            known = kept.committed
            self._handed_over = (
                SnapshotId(0, 0) if known is None else SnapshotId(known.last_offset + 1, known.leader_epoch)
            )
        else:
            self._parted = self._parted or parted

    def _apply(self) -> list[Effect]:
        """Deliver committed records, a group per epoch; while everything is read again, only when all of it has
        arrived."""
        effects: list[Effect] = []
        group: list[RecordBatch] = []
        for batch in self._log.committed():
            if self._search is not None and Tail.of(batch) == self._search.committed:
                self._search.found = True
            if group and group[0].leader_epoch != batch.leader_epoch:
                effects.append(self._hand_over(group))
                group = []
            group.append(batch)
        if group:
            effects.append(self._hand_over(group))
        if self._reload is None:
            if effects:
                self._handed_over = SnapshotId(self._log.applied_offset, batch.leader_epoch)
            return effects
        for effect in effects:
            assert isinstance(effect, Committed)
            for offset, record in effect.records:
                self._reload.replay(offset, effect.epoch, record)
        return self._reloaded()

    def _hand_over(self, batches: list[RecordBatch]) -> Committed:
        records = tuple(record for batch in batches for record in batch.observed_records())
        self._incomplete = self._incomplete or _is_incomplete(record for _, record in records)
        return Committed(
            records, batches[-1].last_offset, batches[-1].leader_epoch, self._log.high_watermark, tuple(batches)
        )

    def _reloaded(self) -> list[Effect]:
        """Return the new history as one snapshot, when all of it has arrived."""
        if self._reload is None or self._reload.in_transaction or self._log.applied_offset < self._log.high_watermark:
            return []
        if self._log.high_watermark < 0:
            return []
        image, self._reload = self._reload.image, None
        snapshot_id = SnapshotId(self._log.applied_offset, self._log.last_epoch)
        # In the newest versions of the records: an older level might not hold all of an incomplete state.
        features = (FeatureLevelRecord(name=name, feature_level=level) for name, level in image.features.items())
        others = (one for one in image.to_records(versions.LATEST) if not isinstance(one, FeatureLevelRecord))
        return [self._replaced_by(snapshot_id, (*image.newer.records(), *features, *others))]


def _is_incomplete(records: Iterable[Record]) -> bool:
    """Return whether one of the records makes the metadata incomplete."""
    return any(type(one) is UnknownRecord and not is_harmless(one.api_key) for one in records)


def _at(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _error_name(code: int) -> str:
    try:
        return f"{ErrorCode(code).name} ({code})"
    except ValueError:
        return f"error {code}"
