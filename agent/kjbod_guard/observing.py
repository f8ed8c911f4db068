"""Part of the cluster's metadata that concerns one broker. Pure.

A guard follows the metadata log as an observer (id -1, no directory id). It keeps the registration of its broker, which
says what Kafka has noticed, and each replica of that broker: its directory, its leader, and the other replicas with
their directories and the in-sync replicas. Of a cluster of 200,000 partitions that are the 4,000 of this broker. It
keeps the names of all topics, since a topic may get a partition here later. Of other brokers it keeps the online
directories, the directories that their guards suspect (:mod:`.suspects`), and when they were fenced or lost a
directory. Of configurations it keeps ``min.insync.replicas``.

The guard remembers a partition from which it evicted this broker (``evicted``), so that it can put the broker back.

The rules are those of :mod:`kjbod.metadata.image`. A change of another broker's partition matters only if it makes this
broker a replica. Its leader is not known then, but it is one of the earlier replicas.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from kjbod.ids import MIGRATING, Uuid
from kjbod.metadata import versions
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.image import BrokerRegistration, ReplayError
from kjbod.metadata.newer import Newer, is_named, lines_of
from kjbod.metadata.records import (
    NO_LEADER_CHANGE,
    TRANSACTION_MARKERS,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
)
from kjbod_guard import suspects
from kjbod_guard.ladder import KafkaView
from kjbod_guard.suspects import Neighbour, Suspects

NO_OFFSET: Final = -1
ALWAYS: Final = -(1 << 62)
"""A monotonic time before any other."""
MIN_ISR: Final = "min.insync.replicas"
_TOPIC: Final = 2
_BROKER: Final = 4
_NO_LEADER: Final = -1
_INT32_DIGITS_MAX: Final = 10

_TRANSACTION: Final = tuple(TRANSACTION_MARKERS.values())

Key = tuple[Uuid, int]
"""Topic id and number of a partition."""


class Placed(Struct, frozen=True):
    """A present or former replica of the broker.

    Attributes:
        position: index in ``replicas`` and ``directories``; -1: the broker is no replica.
        directory: id of the directory with the replica.
        leads: whether the broker leads the partition.
        replicas: brokers that have the partition, in their order; empty: not known.
        isr: brokers whose replicas are in sync; empty: not known.
        adding: brokers that are being added by a reassignment.
        removing: brokers that are being removed by a reassignment.
        directories: of the replicas, in the same order; empty: not known.
        leader: the broker that leads; -1: none, or not known.
        eligible: brokers whose replicas are out of sync, but have all committed records (ELR).
        unclean: whether a replica was elected that was not in sync while this broker was out of sync: the replica here
            may have records that the new leader does not have.
    """

    position: int
    directory: Uuid
    leads: bool
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    directories: tuple[Uuid, ...] = ()
    leader: int = _NO_LEADER
    eligible: tuple[int, ...] = ()
    unclean: bool = False

    def directory_of(self, broker_id: int) -> Uuid | None:
        """Return the directory of another broker's replica; None: not known."""
        found = dict(zip(self.replicas, self.directories, strict=False))
        return found.get(broker_id)


class Held(Struct, frozen=True):
    """Replicas in a directory."""

    led: int = 0
    followed: int = 0


@dataclasses.dataclass(slots=True)
class Observed:
    """State of one broker in the metadata log.

    Attributes:
        broker_id: the broker.
        offset: of the last record that was applied.
        complete: whether all records are applied that were committed when this guard came, or when a snapshot replaced
            its state. Before that the guard concludes nothing.
        complete_ms: monotonic time from which ``complete`` holds; None: it does not hold, or not known.
        came: whether ``complete`` ever held: records applied since then were committed while this guard watched.
        registration: of the broker; None: the broker is not registered.
        metadata_version: level of the cluster's features.
        topics: names of all topics, by id.
        partitions: the broker's replicas, by topic id and number.
        evicted: partitions that are followed although the broker is no replica of them any more.
        others: the present replicas of partitions in ``evicted`` that this broker has no replica of.
        neighbours: the other brokers, by id.
        controllers: the highest metadata.version that each registered controller can serve, by its id.
        suspects: the directories that guards suspect, by broker id, this broker's included.
        trusted: the other broker whose guard was the last to remove its record, and the monotonic time; None: none.
        min_isr: ``min.insync.replicas`` of topics with a value of their own, by name.
        min_isr_of_brokers: the same of brokers, by id as text; ``""`` is the default of the cluster.
        known_ms: monotonic time from which losses of other brokers are known; None: not known yet.
        now_ms: monotonic time of the records being applied. For records from before this guard came: the controller's
            wall clock, or 0 if a batch has none; :meth:`note_complete` converts these times.
        revision: number of applied records that may have changed something.
        newer: records that were not understood in full. A picture that they make incomplete is no ground for an act;
            a record that contradicts it is skipped.
    """

    broker_id: int
    offset: int = NO_OFFSET
    complete: bool = False
    complete_ms: int | None = None
    came: bool = False
    registration: BrokerRegistration | None = None
    metadata_version: int = versions.MINIMUM
    topics: dict[Uuid, str] = dataclasses.field(default_factory=dict)
    partitions: dict[Key, Placed] = dataclasses.field(default_factory=dict)
    evicted: frozenset[Key] = frozenset()
    others: dict[Key, Placed] = dataclasses.field(default_factory=dict)
    neighbours: dict[int, Neighbour] = dataclasses.field(default_factory=dict)
    controllers: dict[int, int] = dataclasses.field(default_factory=dict)
    suspects: dict[int, Suspects] = dataclasses.field(default_factory=dict)
    trusted: tuple[int, int] | None = None
    min_isr: dict[str, int] = dataclasses.field(default_factory=dict)
    min_isr_of_brokers: dict[str, int] = dataclasses.field(default_factory=dict)
    known_ms: int | None = None
    now_ms: int = 0
    revision: int = dataclasses.field(default=0, compare=False)
    newer: Newer = dataclasses.field(default_factory=Newer)
    _pending: list[tuple[int, Record]] | None = None
    _in_transaction: Newer = dataclasses.field(default_factory=Newer)
    """Records of unknown types in the transaction that is held back."""
    _from_start: bool = False
    _began_ms: int = 0
    """The controller's wall clock at the first batch that was applied."""

    # ---- records

    def committed(self, batch: Committed, now_ms: int = 0) -> None:
        """Apply committed records, in the order of the log, at a monotonic time.

        Raises:
            ReplayError: a record of this broker contradicts the ones before it.
        """
        self.came = self.came or self.complete
        if self.came:
            self.now_ms = now_ms
        elif not self._began_ms and batch.batches:
            self._from_start = batch.batches[0].base_offset == 0
            self._began_ms = batch.batches[0].timestamp_ms
        times = [] if self.came else [(one.last_offset, one.timestamp_ms) for one in reversed(batch.batches)]
        for offset, record in batch.records:
            while times and times[-1][0] < offset:
                times.pop()
            if not self.came:
                self.now_ms = max(self.now_ms, times[-1][1] if times else 0)
            self._replay(offset, record, now_ms)
        if not self.came:  # also batches without a known record
            self.now_ms = max([self.now_ms, *(one.timestamp_ms for one in batch.batches)])
        if self._pending is None:
            self.offset = batch.last_offset
        if batch.last_offset + 1 >= batch.high_watermark:
            self.note_complete(now_ms)

    def note_complete(self, now_ms: int) -> None:
        """Note that all records are applied that were committed when this guard came. Convert times of the controller's
        clock to monotonic time. Ages count from the newest batch, so that no two clocks are compared."""
        if self.complete:
            return
        self.complete, self.complete_ms = True, now_ms
        if self.came:
            return
        ahead_ms = now_ms - self.now_ms

        def converted(at_ms: int | None) -> int | None:
            return None if at_ms is None else at_ms + ahead_ms

        for broker_id, its in self.neighbours.items():
            now = replace(its, fenced_ms=converted(its.fenced_ms), lost_ms=converted(its.lost_ms))
            self.neighbours[broker_id] = now
        self.known_ms = ALWAYS if self._from_start else self._began_ms + ahead_ms if self._began_ms else now_ms
        self.now_ms = now_ms

    def wants(self, record: Record) -> bool:
        """Whether a record of a snapshot matters here. Most do not: they are partitions of other brokers only."""
        if not isinstance(record, PartitionRecord):
            return True
        return self.broker_id in record.replicas or (record.topic_id, record.partition_id) in self.evicted

    def snapshot(self, snapshot: Snapshot, now_ms: int = 0) -> "Observed":
        """Return the state from a snapshot, at a monotonic time. A snapshot has no times of fences, lost directories
        and suspicions. So the known times are kept, and new ones count from now.

        Raises:
            ReplayError: a record of this broker contradicts the ones before it.
        """
        fresh = Observed(self.broker_id, evicted=self.evicted)
        for record in snapshot.records:
            fresh._take(record, NO_OFFSET, now_ms)
        fresh.offset = snapshot.id.end_offset - 1
        fresh.came, fresh.known_ms, fresh.trusted = self.came or self.complete, self.known_ms, self.trusted
        fresh.now_ms = self.now_ms
        at_ms = now_ms if fresh.came else None
        for broker_id, before in self.neighbours.items():
            if (now := fresh.neighbours.get(broker_id)) is not None:
                fresh.neighbours[broker_id] = _since(before, now, at_ms)
        for broker_id, known in self.suspects.items():
            if (found := fresh.suspects.get(broker_id)) is not None and found.value == known.value:
                fresh.suspects[broker_id] = known
        for key, placed in self.partitions.items():
            if placed.unclean and (partition := fresh.partitions.get(key)) is not None:
                fresh.partitions[key] = replace(partition, unclean=self.broker_id not in partition.isr)
        return fresh

    def _replay(self, offset: int, record: Record, now_ms: int) -> None:
        """Apply a record, or hold it back until its transaction ends (KIP-868)."""
        if isinstance(record, UnknownRecord) and isinstance(record.known, _TRANSACTION):
            self.newer.note(record)
            record = record.known
        if isinstance(record, BeginTransactionRecord):
            if self._pending is not None:  # the end of the earlier transaction was not understood
                self.newer.note(UnknownRecord(count=max(1, len(self._pending))))
            self._pending, self._in_transaction = [], Newer()
        elif isinstance(record, EndTransactionRecord):
            held, self._pending, self._in_transaction = self._pending or [], None, Newer()
            for at, one in held:
                self._take(one, at, now_ms)
        elif isinstance(record, AbortTransactionRecord):
            self._pending, self._in_transaction = None, Newer()
        elif self._pending is not None:
            self._pending.append((offset, record))
            if isinstance(record, UnknownRecord) and not is_named(record.api_key):
                self._in_transaction.note(record)
        else:
            self._take(record, offset, now_ms)

    def _take(self, record: Record, offset: int, now_ms: int) -> None:
        """Apply a record as far as it is understood."""
        if isinstance(record, UnknownRecord):
            self.newer.note(record)
        known = record.known if isinstance(record, UnknownRecord) else record
        try:
            if known is not None:
                self._apply(known, offset, now_ms)
        except ReplayError:
            if not self.newer.incomplete:
                raise
            self.newer.contradictions += 1

    def _apply(self, record: Record, offset: int, now_ms: int) -> None:
        self.revision += not isinstance(record, NoOpRecord)
        match record:
            case PartitionRecord():
                self._put(record)
            case PartitionChangeRecord():
                self._change(record)
            case TopicRecord():
                self.topics[record.topic_id] = record.name
            case RemoveTopicRecord():
                self._remove(record.topic_id)
            case FeatureLevelRecord() if record.name == versions.METADATA_VERSION:
                self.metadata_version = record.feature_level or versions.MINIMUM
            case ConfigRecord() if record.name == suspects.CONFIG and record.resource_type == _BROKER:
                self._suspect(record, offset, now_ms)
            case ConfigRecord():
                self._configure(record)
            case RegisterControllerRecord():
                self.controllers[record.controller_id] = next(
                    (one.max_supported_version for one in record.features if one.name == versions.METADATA_VERSION), 0
                )
            case UnregisterControllerRecord():
                self.controllers.pop(record.controller_id, None)
            case _:
                self._register(record, offset)
                self._neighbour(record)

    def _remove(self, topic_id: Uuid) -> None:
        self.min_isr.pop(self.topics.pop(topic_id, ""), None)
        for kept in (self.partitions, self.others):
            for key in [key for key in kept if key[0] == topic_id]:
                del kept[key]

    def _configure(self, record: ConfigRecord) -> None:
        values = {_TOPIC: self.min_isr, _BROKER: self.min_isr_of_brokers}.get(record.resource_type)
        if values is None or record.name != MIN_ISR:
            return
        value = _number(record.value or "")
        if value is not None:
            values[record.resource_name] = value
        else:
            values.pop(record.resource_name, None)

    def _suspect(self, record: ConfigRecord, offset: int, now_ms: int) -> None:
        """Apply the directories that the guard of a broker suspects."""
        broker_id = _number(record.resource_name)
        if broker_id is None:
            return
        if record.value is not None:
            self.suspects[broker_id] = suspects.decode(record.value, offset, now_ms)
        elif self.suspects.pop(broker_id, None) is not None and self.came and broker_id != self.broker_id:
            self.trusted = broker_id, now_ms

    def _neighbour(self, record: Record) -> None:
        """Apply a record of another broker."""
        match record:
            case RegisterBrokerRecord() if record.broker_id != self.broker_id:
                before = self.neighbours.get(record.broker_id)
                active = not record.fenced and not record.in_controlled_shutdown
                anew = Neighbour(
                    record.broker_epoch,
                    active,
                    frozenset(record.log_dirs),
                    cordoned_dirs=frozenset(record.cordoned_log_dirs or ()),
                )
                if before is not None:  # a start neither causes nor ends a loss; a start without a directory is a loss
                    fewer = bool(anew.log_dirs) and not before.log_dirs <= anew.log_dirs
                    lost_ms = (self.now_ms or None) if fewer else before.lost_ms
                    anew = replace(anew, fenced_ms=before.fenced_ms, lost_ms=lost_ms)
                self.neighbours[record.broker_id] = anew
            case UnregisterBrokerRecord():
                self.neighbours.pop(record.broker_id, None)
            case BrokerRegistrationChangeRecord() if (now := self.neighbours.get(record.broker_id)) is not None:
                active = now.active if record.fenced == 0 else record.fenced < 0
                active = active and not record.in_controlled_shutdown
                log_dirs = frozenset(record.log_dirs) or now.log_dirs
                cordoned = now.cordoned_dirs
                if record.cordoned_log_dirs is not None:
                    cordoned = frozenset(record.cordoned_log_dirs)
                changed = replace(now, active=active, log_dirs=log_dirs, cordoned_dirs=cordoned)
                self._change_neighbour(record.broker_id, changed)
            case FenceBrokerRecord() if (now := self.neighbours.get(record.id)) is not None:
                self._change_neighbour(record.id, replace(now, active=False))
            case UnfenceBrokerRecord() if (now := self.neighbours.get(record.id)) is not None:
                self._change_neighbour(record.id, replace(now, active=True))

    def _change_neighbour(self, broker_id: int, changed: Neighbour) -> None:
        self.neighbours[broker_id] = _since(self.neighbours[broker_id], changed, self.now_ms or None)

    def _register(self, record: Record, offset: int) -> None:
        now = self.registration
        match record:
            case RegisterBrokerRecord() if record.broker_id == self.broker_id:
                now = BrokerRegistration.of(record, offset)
            case UnregisterBrokerRecord() if record.broker_id == self.broker_id:
                now = None
            case BrokerRegistrationChangeRecord() if now is not None and record.broker_id == self.broker_id:
                now = now.merge(record)
            case FenceBrokerRecord() if now is not None and record.id == self.broker_id:
                now = now.merge(_fencing(record, 1))
            case UnfenceBrokerRecord() if now is not None and record.id == self.broker_id:
                now = now.merge(_fencing(record, -1))
        self.registration = now

    def _put(self, record: PartitionRecord) -> None:
        key = (record.topic_id, record.partition_id)
        ours = self.broker_id in record.replicas
        position = record.replicas.index(self.broker_id) if ours else -1
        directory = record.directories[position] if 0 <= position < len(record.directories) else MIGRATING
        self._keep(
            key,
            Placed(
                position,
                directory,
                record.leader == self.broker_id,
                record.replicas,
                record.isr,
                record.adding_replicas,
                record.removing_replicas,
                record.directories,
                record.leader,
                record.eligible_leader_replicas or (),
            ),
        )

    def _keep(self, key: Key, placed: Placed) -> None:
        """Store a partition, if this broker is a replica of it or was evicted from it."""
        self.partitions.pop(key, None)
        self.others.pop(key, None)
        if placed.position >= 0:
            self.partitions[key] = placed
        elif key in self.evicted:
            self.others[key] = placed

    def follow_evicted(self, keys: Iterable[Key]) -> None:
        """Set the partitions that are followed although this broker is no replica of them."""
        self.evicted = frozenset(keys)
        self.others = {key: placed for key, placed in self.others.items() if key in self.evicted}

    def _change(self, record: PartitionChangeRecord) -> None:
        key = (record.topic_id, record.partition_id)
        now = self.partitions.get(key) or self.others.get(key)
        if now is None:
            if record.replicas is None or self.broker_id not in record.replicas:
                return
            now = Placed(-1, MIGRATING, False)
        replicas = now.replicas if record.replicas is None else record.replicas
        position = now.position
        if record.replicas is not None:
            position = replicas.index(self.broker_id) if self.broker_id in replicas else -1
            self._note_shrunk(now, replicas)
        directories = now.directories if record.directories is None else record.directories
        directory = now.directory if now.position >= 0 else MIGRATING
        if record.directories is not None and 0 <= position < len(record.directories):
            directory = record.directories[position]
        leader = now.leader if record.leader == NO_LEADER_CHANGE else record.leader
        isr = now.isr if record.isr is None else record.isr
        self._keep(
            key,
            Placed(
                position,
                directory,
                leader == self.broker_id,
                replicas,
                isr,
                now.adding if record.adding_replicas is None else record.adding_replicas,
                now.removing if record.removing_replicas is None else record.removing_replicas,
                directories,
                leader,
                now.eligible if record.eligible_leader_replicas is None else record.eligible_leader_replicas,
                self.broker_id not in isr and (now.unclean or _is_unclean(now, leader)),
            ),
        )

    def _note_shrunk(self, before: Placed, after: tuple[int, ...]) -> None:
        """Note the brokers that guards have evicted: each has lost a directory. A reassignment, unlike an eviction,
        lists the brokers in ``removing`` before."""
        if not self.now_ms or not set(after) < set(before.replicas):
            return
        for broker_id in set(before.replicas).difference(after, before.removing):
            if (its := self.neighbours.get(broker_id)) is not None:
                self.neighbours[broker_id] = replace(its, lost_ms=self.now_ms)

    # ---- conclusions

    @property
    def incomplete(self) -> str | None:
        """Reason why the picture of the metadata is incomplete, with the remedy; None: it is complete. A record of an
        unknown type may have ended the transaction in which it seems to be."""
        return self.newer.problem or self._in_transaction.problem

    @property
    def unknown(self) -> tuple[str, ...]:
        """Lines about metadata that kjbod does not know, with the remedy."""
        return lines_of(self.metadata_version, self.incomplete, "the guard only watches")

    @property
    def refuses_cordoned(self) -> bool:
        """Whether a controller may refuse a replica list with a broker whose directories are all cordoned. Kafka 4.4.0
        and later do, at each metadata.version. The log does not show which controller is active."""
        newest = max(self.controllers.values(), default=versions.MINIMUM)
        return max(newest, self.metadata_version) > versions.CORDONED_LOG_DIRS

    def cordoned(self, brokers: Iterable[int]) -> tuple[int, ...]:
        """Return the brokers whose directories are all cordoned."""
        return tuple(one for one in brokers if self._is_cordoned(one))

    def unregistered(self, brokers: Iterable[int]) -> tuple[int, ...]:
        """Return the brokers that have no registration."""
        return tuple(
            one
            for one in brokers
            if (self.registration is None if one == self.broker_id else one not in self.neighbours)
        )

    def _is_cordoned(self, broker_id: int) -> bool:
        if broker_id != self.broker_id:
            return (its := self.neighbours.get(broker_id)) is not None and its.cordoned
        own = self.registration
        return own is not None and bool(own.log_dirs) and set(own.log_dirs) <= set(own.cordoned_log_dirs or ())

    def view(self, directory_id: Uuid | None) -> KafkaView:
        """Return the state of a directory in Kafka's metadata."""
        # A registration without directories is from before directories were recorded.
        if not self.complete or directory_id is None or self.registration is None or not self.registration.log_dirs:
            return KafkaView.UNKNOWN
        return KafkaView.ONLINE if directory_id in self.registration.log_dirs else KafkaView.OFFLINE

    def min_insync_replicas(self, topic_id: Uuid, static: int) -> int:
        """Return ``min.insync.replicas`` of a topic; ``static``: value in the broker's file."""
        own = self.min_isr.get(self.topics.get(topic_id, ""))
        brokers = self.min_isr_of_brokers
        return own if own is not None else brokers.get(str(self.broker_id), brokers.get("", static))

    def held(self) -> Mapping[Uuid, Held]:
        """Return the number of the broker's replicas by directory. Replicas without a known directory have a reserved
        id."""
        led: dict[Uuid, int] = {}
        followed: dict[Uuid, int] = {}
        for placed in self.partitions.values():
            counts = led if placed.leads else followed
            counts[placed.directory] = counts.get(placed.directory, 0) + 1
        return {one: Held(led.get(one, 0), followed.get(one, 0)) for one in (*led, *followed)}


def _number(text: str) -> int | None:
    """Return a number of Kafka's type int; None: the text is no number."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= _INT32_DIGITS_MAX else None


def _since(before: Neighbour, now: Neighbour, at_ms: int | None) -> Neighbour:
    """Return another broker with the times of its last fence and its last loss of a directory."""
    fenced = before.active and not now.active
    return replace(
        now,
        fenced_ms=at_ms if fenced else before.fenced_ms,
        lost_ms=at_ms if before.log_dirs - now.log_dirs else before.lost_ms,
    )


def _is_unclean(before: Placed, leader: int) -> bool:
    """Whether a new leader was neither in sync nor an eligible leader replica. With eligible leader replicas the ISR
    may be empty."""
    is_new = leader not in (_NO_LEADER, before.leader) and bool(before.isr or before.eligible)
    return is_new and leader not in before.isr and leader not in before.eligible


def _fencing(record: FenceBrokerRecord | UnfenceBrokerRecord, fenced: int) -> BrokerRegistrationChangeRecord:
    """Return a record from before metadata.version 3.3-IV2 in its present form."""
    return BrokerRegistrationChangeRecord(broker_id=record.id, broker_epoch=record.epoch, fenced=fenced)
