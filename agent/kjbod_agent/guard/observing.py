"""The cluster's metadata as far as they concern one broker. Pure.

A guard follows the metadata log as an observer does who is nobody's replica (id -1, no directory id), and keeps of it
the registration of its broker, which says what Kafka has noticed, and for each replica of that broker the directory,
whether it leads, and who else has the partition and is in sync. Of a cluster of 200,000 partitions that are the 4,000
of this broker; names of topics are kept of all, since a topic may get a partition here later. Of other brokers it keeps
when they were fenced or lost a directory, and of configurations ``min.insync.replicas``.

A partition that the guard took this broker out of is remembered (``evicted``), so that it can be put back.

The rules are those of :mod:`kjbod.metadata.image`. A change of a partition that is not ours matters only where it makes
this broker a replica: who leads it is not known then, but it is somebody else, who has been a replica before.
"""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Final

from kjbod.ids import MIGRATING, Uuid
from kjbod.metadata import versions
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.image import BrokerRegistration
from kjbod.metadata.records import (
    NO_LEADER_CHANGE,
    AbortTransactionRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from kjbod.quick_dataclass import dataclass
from kjbod_agent.guard.ladder import KafkaView

NO_OFFSET: Final = -1
RIVAL_MS: Final = 10_000
"""Time for another guard to kill its broker after its claim, cuts included, and for the quorum to show that."""
MIN_ISR: Final = "min.insync.replicas"
_TOPIC: Final = 2
_BROKER: Final = 4

Key = tuple[Uuid, int]
"""Topic id and number of a partition."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A replica of the broker, or one that was.

    Attributes:
        position: in the list of replicas; that of directories runs parallel. -1: it is not in it.
        directory: where it lies.
        leads: whether it leads.
        replicas: brokers that have the partition, in their order; empty where that is not known.
        isr: those that are in sync; empty where that is not known.
        adding: brokers that are being added by a reassignment.
        removing: brokers that are being removed by one.
    """

    position: int
    directory: Uuid
    leads: bool
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another broker.

    Attributes:
        epoch: of its registration.
        fenced: whether it is.
        log_dirs: how many directories it has online.
        fenced_ms: monotonic time when it was seen to be fenced; None: not while we watched.
        lost_ms: the same of a directory that it lost.
        fenced_at: offset of the record that fenced it, the first one of those that came within :data:`RIVAL_MS` of each
            other; -1: none was seen.
    """

    epoch: int
    fenced: bool
    log_dirs: int
    fenced_ms: int | None = None
    lost_ms: int | None = None
    fenced_at: int = NO_OFFSET


@dataclass(frozen=True, slots=True)
class Held:
    """Replicas in a directory."""

    led: int = 0
    followed: int = 0


@dataclass(slots=True)
class Observed:
    """Knowledge of one broker, from the log.

    Attributes:
        broker_id: the broker.
        offset: of the last record that was applied.
        complete: whether all that was committed when we came, or when a snapshot took the place of what we knew, is
            applied: before it nothing may be concluded.
        complete_ms: monotonic time when that came to hold; None: it does not, or that is not known.
        came: whether it ever was: what is applied from then on has happened while we watched.
        registration: the broker's; None while it has none.
        fenced_at: offset of the record that fenced it last; -1: none was seen.
        metadata_version: level of the cluster's features.
        topics: names, of all topics.
        partitions: the broker's replicas, by topic id and number.
        evicted: partitions that are followed although the broker is no replica of them (any more).
        others: the rest of those, as they are.
        neighbours: the other brokers, by id.
        min_isr: ``min.insync.replicas`` of topics that have their own, by name.
        min_isr_of_brokers: the same of brokers, by id as text; ``""`` is the default of the cluster.
        now_ms: monotonic time of what is being applied; 0 while that is the past.
    """

    broker_id: int
    offset: int = NO_OFFSET
    complete: bool = False
    complete_ms: int | None = None
    came: bool = False
    registration: BrokerRegistration | None = None
    fenced_at: int = NO_OFFSET
    metadata_version: int = versions.MINIMUM
    topics: dict[Uuid, str] = field(default_factory=dict)
    partitions: dict[Key, Placed] = field(default_factory=dict)
    evicted: frozenset[Key] = frozenset()
    others: dict[Key, Placed] = field(default_factory=dict)
    neighbours: dict[int, Neighbour] = field(default_factory=dict)
    min_isr: dict[str, int] = field(default_factory=dict)
    min_isr_of_brokers: dict[str, int] = field(default_factory=dict)
    now_ms: int = 0
    _pending: list[tuple[int, Record]] | None = None

    # ---- what the log says

    def committed(self, batch: Committed, now_ms: int = 0) -> None:
        """Records that are committed, in the order of the log, at a monotonic time.

        Raises:
            ReplayError: a record of this broker contradicts the ones before it.
        """
        self.came = self.came or self.complete
        self.now_ms = now_ms if self.came else 0
        for offset, record in batch.records:
            self._replay(offset, record)
        if self._pending is None:
            self.offset = batch.last_offset
        if batch.last_offset + 1 >= batch.high_watermark:
            self.note_complete(now_ms)

    def note_complete(self, now_ms: int) -> None:
        """Note that all is applied that was committed when we came."""
        if not self.complete:
            self.complete, self.complete_ms = True, now_ms

    def wants(self, record: Record) -> bool:
        """Whether a record of a snapshot says anything here: not a partition of other brokers alone, which most are."""
        if not isinstance(record, PartitionRecord):
            return True
        return self.broker_id in record.replicas or (record.topic_id, record.partition_id) in self.evicted

    def snapshot(self, snapshot: Snapshot, now_ms: int = 0) -> "Observed":
        """The knowledge that a snapshot gives instead, at a monotonic time. When other brokers were fenced or lost a
        directory is not in it: that is kept, and what is new counts from now.

        Raises:
            ReplayError: a record of this broker contradicts the ones before it.
        """
        fresh = Observed(self.broker_id, evicted=self.evicted)
        for record in snapshot.records:
            fresh._apply(record, NO_OFFSET)
        fresh.offset = snapshot.id.end_offset - 1
        fresh.came = self.came or self.complete
        at_ms = now_ms if fresh.came else None
        for broker_id, before in self.neighbours.items():
            if (now := fresh.neighbours.get(broker_id)) is not None:
                fresh.neighbours[broker_id] = _since(before, now, at_ms, NO_OFFSET)
        fresh.fenced_at = self.fenced_at
        return fresh

    def _replay(self, offset: int, record: Record) -> None:
        """Apply a record, or hold it back until its transaction ends (KIP-868)."""
        if isinstance(record, BeginTransactionRecord):
            self._pending = []
        elif isinstance(record, EndTransactionRecord):
            held, self._pending = self._pending or [], None
            for at, one in held:
                self._apply(one, at)
        elif isinstance(record, AbortTransactionRecord):
            self._pending = None
        elif self._pending is not None:
            self._pending.append((offset, record))
        else:
            self._apply(record, offset)

    def _apply(self, record: Record, offset: int) -> None:
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
            case ConfigRecord():
                self._configure(record)
            case _:
                self._register(record, offset)
                self._neighbour(record, offset)

    def _remove(self, topic_id: Uuid) -> None:
        self.min_isr.pop(self.topics.pop(topic_id, ""), None)
        for kept in (self.partitions, self.others):
            for key in [key for key in kept if key[0] == topic_id]:
                del kept[key]

    def _configure(self, record: ConfigRecord) -> None:
        values = {_TOPIC: self.min_isr, _BROKER: self.min_isr_of_brokers}.get(record.resource_type)
        if values is None or record.name != MIN_ISR:
            return
        if record.value is not None and record.value.strip().isdecimal():
            values[record.resource_name] = int(record.value)
        else:
            values.pop(record.resource_name, None)

    def _neighbour(self, record: Record, offset: int) -> None:
        """Take up a record of another broker."""
        match record:
            case RegisterBrokerRecord() if record.broker_id != self.broker_id:
                before = self.neighbours.get(record.broker_id)
                anew = Neighbour(record.broker_epoch, record.fenced, len(record.log_dirs))
                if before is not None:  # a start is no trouble, and ends none
                    anew = replace(anew, fenced_ms=before.fenced_ms, lost_ms=before.lost_ms, fenced_at=before.fenced_at)
                self.neighbours[record.broker_id] = anew
            case UnregisterBrokerRecord():
                self.neighbours.pop(record.broker_id, None)
            case BrokerRegistrationChangeRecord() if (now := self.neighbours.get(record.broker_id)) is not None:
                self._change_neighbour(record.broker_id, now, record.fenced, len(record.log_dirs), offset)
            case FenceBrokerRecord() if (now := self.neighbours.get(record.id)) is not None:
                self._change_neighbour(record.id, now, 1, 0, offset)
            case UnfenceBrokerRecord() if (now := self.neighbours.get(record.id)) is not None:
                self._change_neighbour(record.id, now, -1, 0, offset)

    def _change_neighbour(self, broker_id: int, now: Neighbour, fenced: int, log_dirs: int, offset: int) -> None:
        is_fenced = now.fenced if fenced == 0 else fenced == 1
        changed = Neighbour(now.epoch, is_fenced, log_dirs or now.log_dirs)
        self.neighbours[broker_id] = _since(now, changed, self.now_ms or None, offset)

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
        before, self.registration = self.registration, now
        if before is not None and now is not None and now.fenced and not before.fenced:
            self.fenced_at = offset

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
            ),
        )

    def _keep(self, key: Key, placed: Placed) -> None:
        """Remember a partition, if it is ours or was."""
        self.partitions.pop(key, None)
        self.others.pop(key, None)
        if placed.position >= 0:
            self.partitions[key] = placed
        elif key in self.evicted:
            self.others[key] = placed

    def follow_evicted(self, keys: Iterable[Key]) -> None:
        """Partitions that are followed from now on also where this broker is no replica of them."""
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
        directory = now.directory if now.position >= 0 else MIGRATING
        if record.directories is not None and 0 <= position < len(record.directories):
            directory = record.directories[position]
        self._keep(
            key,
            Placed(
                position,
                directory,
                now.leads if record.leader == NO_LEADER_CHANGE else record.leader == self.broker_id,
                replicas,
                now.isr if record.isr is None else record.isr,
                now.adding if record.adding_replicas is None else record.adding_replicas,
                now.removing if record.removing_replicas is None else record.removing_replicas,
            ),
        )

    # ---- what it means

    def view(self, directory_id: Uuid | None) -> KafkaView:
        """State of a directory as Kafka has it."""
        # A registration without any is from before directories were recorded: it says nothing of them.
        if not self.complete or directory_id is None or self.registration is None or not self.registration.log_dirs:
            return KafkaView.UNKNOWN
        return KafkaView.ONLINE if directory_id in self.registration.log_dirs else KafkaView.OFFLINE

    def min_insync_replicas(self, topic_id: Uuid, static: int) -> int:
        """``min.insync.replicas`` of a topic; ``static``: of the broker's file."""
        own = self.min_isr.get(self.topics.get(topic_id, ""))
        brokers = self.min_isr_of_brokers
        return own if own is not None else brokers.get(str(self.broker_id), brokers.get("", static))

    def held(self) -> Mapping[Uuid, Held]:
        """Replicas of the broker by directory; those that are in none that is known have a reserved id."""
        led: dict[Uuid, int] = {}
        followed: dict[Uuid, int] = {}
        for placed in self.partitions.values():
            counts = led if placed.leads else followed
            counts[placed.directory] = counts.get(placed.directory, 0) + 1
        return {one: Held(led.get(one, 0), followed.get(one, 0)) for one in (*led, *followed)}


def _since(before: Neighbour, now: Neighbour, at_ms: int | None, offset: int) -> Neighbour:
    """A neighbour with the times of its troubles."""
    fenced = now.fenced and not before.fenced
    again = before.fenced_ms is not None and at_ms is not None and at_ms - before.fenced_ms < RIVAL_MS
    return replace(
        now,
        fenced_at=before.fenced_at if again or not fenced else offset,
        fenced_ms=at_ms if fenced else before.fenced_ms,
        lost_ms=at_ms if now.log_dirs < before.log_dirs else before.lost_ms,
    )


def _fencing(record: FenceBrokerRecord | UnfenceBrokerRecord, fenced: int) -> BrokerRegistrationChangeRecord:
    """A record from before metadata.version 3.3-IV2 as one of today."""
    return BrokerRegistrationChangeRecord(broker_id=record.id, broker_epoch=record.epoch, fenced=fenced)
