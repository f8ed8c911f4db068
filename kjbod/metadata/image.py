"""The cluster metadata according to the log: registrations, topics, partitions, features, configurations.

The agent, the controller stub and the tools share one container. :meth:`MetadataImage.replay` applies one record and
returns the change with the registration before and after, so that callers with an index need not compare images. The
values inside (:class:`BrokerRegistration`, :class:`PartitionRegistration`) are immutable. The container is not, because
copying 100,000 partitions per record is too slow. Take values out of the container; do not keep it across an await and
expect it unchanged.

Rules: ``ClusterControlManager``, ``ReplicationControlManager`` and ``PartitionRegistration`` of Kafka 4.3. An invalid
record (an unknown broker, another epoch, an unknown topic, directories that do not match the replicas) raises
:class:`ReplayError` and changes nothing. Kafka halts at such a record, because log and code disagree.

Three rules that are easy to miss:

- An empty ``log_dirs`` in a BrokerRegistrationChangeRecord is *unchanged*. "All directories are offline" has no record.
- A partition without directories (record version 0) has MIGRATING for every replica, not UNASSIGNED.
- A leader in a PartitionChangeRecord raises the leader epoch even when it is the leader that is there already.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct, field, structs

from kjbod.errors import KjbodError
from kjbod.ids import MIGRATING, UNASSIGNED, Uuid, is_online
from kjbod.metadata import versions
from kjbod.metadata.newer import Newer
from kjbod.metadata.records import (
    NO_LEADER_CHANGE,
    TAIL_OF,
    TRANSACTION_MARKERS,
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    Endpoint,
    EndTransactionRecord,
    FeatureLevelRecord,
    FeatureRange,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnknownRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)

TOPIC = 2
"""``ConfigRecord.resource_type`` of a topic (``ConfigResource.Type``)."""
BROKER = 4
"""``ConfigRecord.resource_type`` of a broker; the empty name is the default of all brokers."""

T = TypeVar("T")

RECOVERED = 0
RECOVERING = 1
"""``leader_recovery_state`` after an unclean election."""


class ReplayError(KjbodError):
    """A metadata record contradicts the records before it; the text has the record and the reason."""


class UnwritableMetadataError(KjbodError):
    """A snapshot at this metadata.version would lose metadata (``UnwritableMetadataException``)."""


# ---------------------------------------------------------------- values


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker's registration (``BrokerRegistration``)."""

    id: int
    epoch: int
    incarnation_id: Uuid
    end_points: tuple[Endpoint, ...] = ()
    features: tuple[FeatureRange, ...] = ()
    """Features sorted by name: Kafka keeps them in a hash map, so their order in a record has no meaning."""
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[Uuid, ...] = ()
    """Online directories in the order of :class:`~kjbod.ids.Uuid`; empty: registered before directories were
    recorded."""
    cordoned_log_dirs: tuple[Uuid, ...] | None = None
    """None until the broker reports them (KIP-1066)."""
    is_migrating_zk_broker: bool = False
    record_offset: int = dataclasses.field(default=-1, compare=False)
    """Offset of the record that last registered the broker; -1 from a snapshot. A broker that has applied this offset
    is caught up, and so may be unfenced (``ClusterControlManager.registerBrokerRecordOffset``)."""

    @classmethod
    def of(cls, record: RegisterBrokerRecord, record_offset: int = -1) -> "BrokerRegistration":
        """Return the registration in ``record``."""
        return cls(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            end_points=record.end_points,
            features=tuple(sorted(record.features, key=lambda feature: feature.name)),
            rack=record.rack,
            fenced=record.fenced,
            in_controlled_shutdown=record.in_controlled_shutdown,
            log_dirs=tuple(sorted(record.log_dirs)),
            cordoned_log_dirs=record.cordoned_log_dirs,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            record_offset=record_offset,
        )

    @property
    def active(self) -> bool:
        """Return whether the broker may lead: unfenced and not in controlled shutdown."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online_dir(self, directory: Uuid) -> bool:
        """Return whether a replica of this broker in ``directory`` is online (``DirectoryId.isOnline``)."""
        return is_online(directory, self.log_dirs)

    def default_dir(self) -> Uuid:
        """Return the directory that the controller assigns to a new replica (``ClusterControlManager.defaultDir``).
        MIGRATING if the broker has no directories, its directory if it has only one, else UNASSIGNED: the broker
        chooses."""
        if not self.log_dirs:
            return MIGRATING
        return self.log_dirs[0] if len(self.log_dirs) == 1 else UNASSIGNED

    def merge(self, change: BrokerRegistrationChangeRecord) -> "BrokerRegistration":
        """Return the registration after ``change``.

        Raises:
            ReplayError: another epoch, or an invalid value.
        """
        _require_epoch(self, change.broker_epoch, "BrokerRegistrationChangeRecord")
        if change.fenced not in (-1, 0, 1):
            raise ReplayError(f"BrokerRegistrationChangeRecord of broker {self.id} has fenced={change.fenced}")
        if change.in_controlled_shutdown not in (0, 1):
            raise ReplayError(
                f"BrokerRegistrationChangeRecord of broker {self.id} has "
                f"inControlledShutdown={change.in_controlled_shutdown}"
            )
        return dataclasses.replace(
            self,
            fenced=self.fenced if change.fenced == 0 else change.fenced == 1,
            in_controlled_shutdown=self.in_controlled_shutdown or change.in_controlled_shutdown == 1,
            log_dirs=tuple(sorted(change.log_dirs)) or self.log_dirs,
            cordoned_log_dirs=self.cordoned_log_dirs if change.cordoned_log_dirs is None else change.cordoned_log_dirs,
        )

    def to_record(self, metadata_version: int = versions.LATEST) -> RegisterBrokerRecord:
        """Return the record of a snapshot at ``metadata_version``.

        Raises:
            UnwritableMetadataError: that level cannot hold the directories.
        """
        if self.log_dirs and metadata_version < versions.DIRECTORY_ASSIGNMENT:
            raise UnwritableMetadataError(
                f"metadata.version {metadata_version} cannot hold the online log directories of broker {self.id}"
            )
        cordoned = self.cordoned_log_dirs if metadata_version >= versions.CORDONED_LOG_DIRS else None
        return RegisterBrokerRecord(
            broker_id=self.id,
            is_migrating_zk_broker=self.is_migrating_zk_broker,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=self.end_points,
            features=self.features,
            rack=self.rack,
            fenced=self.fenced,
            in_controlled_shutdown=self.in_controlled_shutdown,
            log_dirs=self.log_dirs,
            cordoned_log_dirs=cordoned,
        )


@functools.lru_cache(maxsize=4096)
def _shared(values: tuple[T, ...]) -> tuple[T, ...]:
    """Return a shared tuple for equal tuples: few sets of brokers and directories serve very many partitions."""
    return values


class PartitionRegistration(Struct, frozen=True, kw_only=True):
    """A partition (``PartitionRegistration``). ``directories`` runs parallel to ``replicas``.

    The value does not contain the partition's id, so that one value serves all equal partitions: :meth:`of` and
    :meth:`merge` return the same object where they can.
    """

    replicas: tuple[int, ...]
    directories: tuple[Uuid, ...]
    isr: tuple[int, ...]
    removing_replicas: tuple[int, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    leader: int
    """-1: no leader."""
    leader_recovery_state: int = RECOVERED
    leader_epoch: int
    partition_epoch: int
    eligible_leader_replicas: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()

    @classmethod
    def of(cls, record: PartitionRecord) -> "PartitionRegistration":
        """Return the partition in ``record``.

        Raises:
            ReplayError: the directories do not match the replicas, or the recovery state is unknown.
        """
        tail = _TAIL_OF_PARTITION(record)
        if (known := _created.get(tail)) is None:
            if len(_created) >= ALIKE_MAX:
                _created.clear()
            known = _created[tail] = cls._of(record)
        return known

    @classmethod
    def _of(cls, record: PartitionRecord) -> "PartitionRegistration":
        return cls(
            replicas=_shared(record.replicas),
            directories=_shared(_directories(record.directories, len(record.replicas), record)),
            isr=_shared(record.isr),
            removing_replicas=record.removing_replicas,
            adding_replicas=record.adding_replicas,
            leader=record.leader,
            leader_recovery_state=_recovery_state(record.leader_recovery_state, record),
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            eligible_leader_replicas=record.eligible_leader_replicas or (),
            last_known_elr=record.last_known_elr or (),
        )

    def directory(self, broker_id: int) -> Uuid:
        """Return the directory to which the replica on ``broker_id`` is assigned.

        Raises:
            KeyError: the broker is not a replica.
        """
        try:
            return self.directories[self.replicas.index(broker_id)]
        except ValueError:
            raise KeyError(broker_id) from None

    def at(self, leader_epoch: int, partition_epoch: int) -> "PartitionRegistration":
        """Return a registration like this one with other epochs."""
        return PartitionRegistration(
            replicas=self.replicas,
            directories=self.directories,
            isr=self.isr,
            removing_replicas=self.removing_replicas,
            adding_replicas=self.adding_replicas,
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=leader_epoch,
            partition_epoch=partition_epoch,
            eligible_leader_replicas=self.eligible_leader_replicas,
            last_known_elr=self.last_known_elr,
        )

    def merge(self, change: PartitionChangeRecord) -> "PartitionRegistration":
        """Return the partition after ``change``: partition epoch + 1, and leader epoch + 1 if a leader is given.

        Raises:
            ReplayError: the directories do not match the replicas, or the recovery state is unknown.
        """
        key = (id(self), _TAIL_OF_CHANGE(change))
        known = _merged.get(key)
        if known is None or known[0] is not self:
            if len(_merged) >= ALIKE_MAX:
                _merged.clear()
            # Keep `self` alive: otherwise another object could get its id.
            known = _merged[key] = (self, self._merge(change))
        return known[1]

    def _merge(self, change: PartitionChangeRecord) -> "PartitionRegistration":
        replicas = self.replicas if change.replicas is None else change.replicas
        if change.directories is not None:
            directories = _directories(change.directories, len(replicas), change)
        elif len(replicas) == len(self.directories):
            directories = self.directories
        elif all(directory == MIGRATING for directory in self.directories):
            # Below metadata.version 17 no record has directories, not even a record that changes the replicas.
            directories = _directories((), len(replicas), change)
        else:
            raise ReplayError(f"{_partition(change)} gets {len(replicas)} replicas and no directories for them")
        given = change.leader != NO_LEADER_CHANGE
        state = change.leader_recovery_state
        return PartitionRegistration(
            replicas=_shared(replicas),
            directories=_shared(directories),
            isr=_shared(_changed(change.isr, self.isr)),
            removing_replicas=_changed(change.removing_replicas, self.removing_replicas),
            adding_replicas=_changed(change.adding_replicas, self.adding_replicas),
            leader=change.leader if given else self.leader,
            leader_recovery_state=self.leader_recovery_state if state == -1 else _recovery_state(state, change),
            leader_epoch=self.leader_epoch + given,
            partition_epoch=self.partition_epoch + 1,
            eligible_leader_replicas=_changed(change.eligible_leader_replicas, self.eligible_leader_replicas),
            last_known_elr=_changed(change.last_known_elr, self.last_known_elr),
        )

    def to_record(self, topic_id: Uuid, partition_id: int, metadata_version: int = versions.LATEST) -> PartitionRecord:
        """Return the record of a snapshot at ``metadata_version``.

        Raises:
            UnwritableMetadataError: that level cannot hold the directories.
        """
        directories = self.directories
        if metadata_version < versions.DIRECTORY_ASSIGNMENT:
            if any(directory != MIGRATING for directory in directories):
                raise UnwritableMetadataError(
                    f"metadata.version {metadata_version} cannot hold the directories of partition {partition_id} of "
                    f"topic {topic_id}"
                )
            directories = ()
        elr = metadata_version >= versions.ELIGIBLE_LEADER_REPLICAS
        return PartitionRecord(
            partition_id=partition_id,
            topic_id=topic_id,
            replicas=self.replicas,
            isr=self.isr,
            removing_replicas=self.removing_replicas,
            adding_replicas=self.adding_replicas,
            leader=self.leader,
            leader_recovery_state=self.leader_recovery_state,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=directories,
            eligible_leader_replicas=(self.eligible_leader_replicas or None) if elr else None,
            last_known_elr=(self.last_known_elr or None) if elr else None,
        )


ALIKE_MAX = 16_384
"""Maximum cached registrations made from a record, and from a change."""

_TAIL_OF_PARTITION = TAIL_OF[PartitionRecord]
_TAIL_OF_CHANGE = TAIL_OF[PartitionChangeRecord]
# Caches of pure functions: an entry that one thread drops is only made anew.
_created: dict[tuple[Any, ...], PartitionRegistration] = {}
_merged: dict[tuple[int, tuple[Any, ...]], tuple[PartitionRegistration, PartitionRegistration]] = {}

shape_of: Callable[[PartitionRegistration], tuple[Any, ...]] = attrgetter(
    *(name for name in PartitionRegistration.__struct_fields__ if name not in ("leader_epoch", "partition_epoch"))
)
"""All of a partition except its epochs: the input of elections."""


def _require_epoch(broker: BrokerRegistration, epoch: int, record: str) -> None:
    if broker.epoch != epoch:
        raise ReplayError(f"{record} for broker {broker.id} has epoch {epoch}, the registration has {broker.epoch}")


def _partition(record: PartitionRecord | PartitionChangeRecord) -> str:
    return f"{type(record).__name__}: partition {record.partition_id} of topic {record.topic_id}"


def _changed(given: tuple[int, ...] | None, before: tuple[int, ...]) -> tuple[int, ...]:
    return before if given is None else given


def _recovery_state(state: int, record: PartitionRecord | PartitionChangeRecord) -> int:
    if state not in (RECOVERED, RECOVERING):
        raise ReplayError(f"{_partition(record)} has leader recovery state {state}")
    return state


def _directories(
    given: tuple[Uuid, ...], replicas: int, record: PartitionRecord | PartitionChangeRecord
) -> tuple[Uuid, ...]:
    """Return a directory per replica; without directories, MIGRATING for each
    (``PartitionRegistration.defaultToMigrating``)."""
    if not given:
        return (MIGRATING,) * replicas
    if len(given) != replicas:
        raise ReplayError(f"{_partition(record)} has {replicas} replicas and {len(given)} directories")
    return given


class Topic(Struct):
    """A topic and its partitions by number."""

    id: Uuid
    name: str
    partitions: dict[int, PartitionRegistration] = field(default_factory=dict)


# ---------------------------------------------------------------- changes


class BrokerChange(Struct, frozen=True):
    """A broker registered (``old`` None the first time), changed, or was unregistered (``new`` None)."""

    broker_id: int
    old: BrokerRegistration | None
    new: BrokerRegistration | None


class TopicCreated(Struct, frozen=True):
    """A topic without partitions yet; they follow as :class:`PartitionChange`."""

    topic: Topic


class TopicDeleted(Struct, frozen=True):
    """A topic was deleted; ``topic`` still has its partitions."""

    topic: Topic


class PartitionChange(NamedTuple):
    """A partition was created (``old`` None) or changed."""

    topic_id: Uuid
    topic: str
    partition: int
    old: PartitionRegistration | None
    new: PartitionRegistration


class ElrCleared(Struct, frozen=True):
    """The eligible leader replicas of one topic or of all topics were cleared; lists only partitions that had some."""

    partitions: tuple[PartitionChange, ...]


class FeatureChange(Struct, frozen=True):
    """A finalized feature level; 0: removed."""

    name: str
    old: int
    new: int


class ConfigChange(Struct, frozen=True):
    """A configuration value; None: unset."""

    resource_type: int
    resource_name: str
    name: str
    old: str | None
    new: str | None


class OtherChange(Struct, frozen=True):
    """A change that kjbod stores but does not act on: quotas, ACLs, credentials, tokens, controllers, producer ids."""

    record: Record


Change: TypeAlias = (
    BrokerChange
    | TopicCreated
    | TopicDeleted
    | PartitionChange
    | ElrCleared
    | FeatureChange
    | ConfigChange
    | OtherChange
)
"""Change of an image by one record."""

ConfigResource: TypeAlias = tuple[int, str]
"""Resource type and name."""


# ---------------------------------------------------------------- the image


@dataclasses.dataclass(slots=True)
class MetadataImage:
    """The state after all records up to :attr:`offset`.

    Two images are equal when they describe the same cluster, wherever they come from.
    """

    features: dict[str, int] = dataclasses.field(default_factory=dict)
    """Finalized levels, including metadata.version but not kraft.version."""
    brokers: dict[int, BrokerRegistration] = dataclasses.field(default_factory=dict)
    controllers: dict[int, RegisterControllerRecord] = dataclasses.field(default_factory=dict)
    topics: dict[Uuid, Topic] = dataclasses.field(default_factory=dict)
    topic_ids: dict[str, Uuid] = dataclasses.field(default_factory=dict)
    configs: dict[ConfigResource, dict[str, str]] = dataclasses.field(default_factory=dict)
    quotas: dict[tuple[QuotaEntity, ...], dict[str, float]] = dataclasses.field(default_factory=dict)
    """Limits by entity; the parts of an entity are sorted by type."""
    next_producer_id: int = 0
    """0: no block was assigned yet."""
    acls: dict[Uuid, AccessControlEntryRecord] = dataclasses.field(default_factory=dict)
    scram: dict[tuple[int, str], UserScramCredentialRecord] = dataclasses.field(default_factory=dict)
    """Credentials by mechanism and user."""
    delegation_tokens: dict[str, DelegationTokenRecord] = dataclasses.field(default_factory=dict)
    directory_owners: dict[Uuid, int] = dataclasses.field(default_factory=dict)
    """The broker of each registered online directory."""
    offset: int = dataclasses.field(default=-1, compare=False)
    """Offset of the last applied record, -1: none. Heartbeats report it."""
    epoch: int = dataclasses.field(default=0, compare=False)
    """Leader epoch of the last applied record."""
    newer: Newer = dataclasses.field(default_factory=Newer, compare=False)
    """Records that were not understood in full. Once they make the image incomplete, a record that contradicts earlier
    ones is skipped: it may follow from a missing record."""

    @property
    def metadata_version(self) -> int:
        """The finalized metadata.version; while no record has set it, the oldest that Kafka 4.x supports."""
        return self.features.get(versions.METADATA_VERSION, versions.MINIMUM)

    def partition(self, topic_id: Uuid, partition: int) -> PartitionRegistration | None:
        """Return a partition; None if the topic or partition does not exist."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.partitions.get(partition)

    def partition_count(self) -> int:
        """Number of partitions in the cluster; walks over the topics."""
        return sum(len(topic.partitions) for topic in self.topics.values())

    def default_dir(self, broker_id: int) -> Uuid:
        """The directory of a new replica on ``broker_id``; UNASSIGNED when the broker is not registered."""
        broker = self.brokers.get(broker_id)
        return UNASSIGNED if broker is None else broker.default_dir()

    def has_online_dir(self, broker_id: int, directory: Uuid) -> bool:
        """Return whether a replica on ``broker_id`` in ``directory`` is online; False for an unknown broker."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.has_online_dir(directory)

    def replay(self, record: Record, offset: int = -1) -> Change | None:
        """Apply one record; ``offset`` is its place in the log, -1 in a snapshot.

        Moves :attr:`offset` if one is given. Ignores transactions: :class:`Replayer` handles them.

        Returns:
            What changed, None for a record that changes nothing (NoOp, transaction marks).

        Raises:
            ReplayError: the record contradicts the records before it; nothing changed. Not raised for an incomplete
                image.
        """
        if type(record) is UnknownRecord:
            self.newer.note(record)
        known = record.known if type(record) is UnknownRecord else record
        change = None if known is None else self._apply(known, offset)
        if offset >= 0:
            self.offset = offset
        return change

    def _apply(self, record: Record, offset: int) -> Change | None:
        apply = _APPLY.get(type(record))
        if apply is None:
            raise ReplayError(f"{type(record).__name__} has no place in a metadata image")
        try:
            return apply(self, record, offset)
        except ReplayError:
            if not self.newer.incomplete:
                raise
            self.newer.contradictions += 1
            return None

    def to_records(self, metadata_version: int | None = None) -> Iterator[Record]:
        """Yield the records of a snapshot, in the order of Kafka's image writer; ``metadata_version`` defaults to the
        finalized one. Encode them in the versions of :func:`kjbod.metadata.versions.record_version`.

        Raises:
            UnwritableMetadataError: that level cannot hold what the image has.
        """
        level = self.metadata_version if metadata_version is None else metadata_version
        yield FeatureLevelRecord(name=versions.METADATA_VERSION, feature_level=level)
        for name in sorted(self.features):
            if name != versions.METADATA_VERSION:
                yield FeatureLevelRecord(name=name, feature_level=self.features[name])
        for broker in self.brokers.values():
            yield broker.to_record(level)
        if level >= versions.CONTROLLER_REGISTRATION:
            yield from self.controllers.values()
        for topic in self.topics.values():
            yield TopicRecord(name=topic.name, topic_id=topic.id)
            for number, partition in topic.partitions.items():
                yield partition.to_record(topic.id, number, level)
        yield from self._unversioned_records()

    def _unversioned_records(self) -> Iterator[Record]:
        for (kind, resource), values in self.configs.items():
            for name, value in values.items():
                yield ConfigRecord(resource_type=kind, resource_name=resource, name=name, value=value)
        for entity, limits in self.quotas.items():
            for key, limit in limits.items():
                yield ClientQuotaRecord(entity=entity, key=key, value=limit, remove=False)
        if self.next_producer_id:
            yield ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=self.next_producer_id)
        yield from self.acls.values()
        yield from self.scram.values()
        yield from self.delegation_tokens.values()

    # ---- one method per record type; `_APPLY` says which

    def _feature(self, record: FeatureLevelRecord, offset: int) -> Change:
        old = self.features.get(record.name, 0)
        if record.feature_level:
            self.features[record.name] = record.feature_level
        else:
            self.features.pop(record.name, None)
        return FeatureChange(record.name, old, record.feature_level)

    def _register_broker(self, record: RegisterBrokerRecord, offset: int) -> Change:
        return self._set_broker(BrokerRegistration.of(record, offset))

    def _broker(self, broker_id: int, record: Record) -> BrokerRegistration:
        if (broker := self.brokers.get(broker_id)) is None:
            raise ReplayError(f"{type(record).__name__} for broker {broker_id}, which is not registered")
        return broker

    def _set_broker(self, new: BrokerRegistration) -> Change:
        for directory in new.log_dirs:
            owner = self.directory_owners.get(directory, new.id)
            if owner != new.id:
                raise ReplayError(f"broker {new.id} registers directory {directory}, which belongs to broker {owner}")
        old = self.brokers.get(new.id)
        if old is None or old.log_dirs is not new.log_dirs:
            self._disown(old)
            self.directory_owners.update(dict.fromkeys(new.log_dirs, new.id))
        self.brokers[new.id] = new
        return BrokerChange(new.id, old, new)

    def _disown(self, broker: BrokerRegistration | None) -> None:
        for directory in () if broker is None else broker.log_dirs:
            self.directory_owners.pop(directory, None)

    def _unregister_broker(self, record: UnregisterBrokerRecord, offset: int) -> Change:
        old = self._broker(record.broker_id, record)
        _require_epoch(old, record.broker_epoch, "UnregisterBrokerRecord")
        self._disown(old)
        del self.brokers[old.id]
        return BrokerChange(old.id, old, None)

    def _fence_broker(self, record: FenceBrokerRecord | UnfenceBrokerRecord, offset: int) -> Change:
        old = self._broker(record.id, record)
        _require_epoch(old, record.epoch, type(record).__name__)
        return self._set_broker(dataclasses.replace(old, fenced=isinstance(record, FenceBrokerRecord)))

    def _change_broker(self, record: BrokerRegistrationChangeRecord, offset: int) -> Change:
        return self._set_broker(self._broker(record.broker_id, record).merge(record))

    def _register_controller(self, record: RegisterControllerRecord, offset: int) -> Change:
        self.controllers[record.controller_id] = record
        return OtherChange(record)

    def _unregister_controller(self, record: UnregisterControllerRecord, offset: int) -> Change:
        self.controllers.pop(record.controller_id, None)  # an unknown controller is ignored, as in ``ClusterDelta``
        return OtherChange(record)

    def _create_topic(self, record: TopicRecord, offset: int) -> Change:
        if record.topic_id in self.topics:
            raise ReplayError(f"TopicRecord {record.name}: topic id {record.topic_id} exists already")
        if record.name in self.topic_ids:
            raise ReplayError(f"TopicRecord {record.name}: the topic exists already as {self.topic_ids[record.name]}")
        topic = self.topics[record.topic_id] = Topic(record.topic_id, record.name)
        self.topic_ids[record.name] = record.topic_id
        return TopicCreated(topic)

    def _remove_topic(self, record: RemoveTopicRecord, offset: int) -> Change:
        topic = self._topic(record.topic_id, record)
        del self.topics[topic.id]
        del self.topic_ids[topic.name]
        self.configs.pop((TOPIC, topic.name), None)
        return TopicDeleted(topic)

    def _topic(self, topic_id: Uuid, record: Record) -> Topic:
        if (topic := self.topics.get(topic_id)) is None:
            raise ReplayError(f"{type(record).__name__} for topic {topic_id}, which does not exist")
        return topic

    def _set_partition(self, record: PartitionRecord, offset: int) -> Change:
        topic = self._topic(record.topic_id, record)
        new = PartitionRegistration.of(record)
        old = topic.partitions.get(record.partition_id)
        topic.partitions[record.partition_id] = new
        return PartitionChange(topic.id, topic.name, record.partition_id, old, new)

    def _change_partition(self, record: PartitionChangeRecord, offset: int) -> Change:
        topic = self._topic(record.topic_id, record)
        if (old := topic.partitions.get(record.partition_id)) is None:
            raise ReplayError(f"{_partition(record)} does not exist")
        new = topic.partitions[record.partition_id] = old.merge(record)
        return PartitionChange(topic.id, topic.name, record.partition_id, old, new)

    def _clear_elr(self, record: ClearElrRecord, offset: int) -> Change:
        if record.topic_name:
            topic_id = self.topic_ids.get(record.topic_name)
            if topic_id is None:
                raise ReplayError(f"ClearElrRecord for topic {record.topic_name}, which does not exist")
            topics: Iterable[Topic] = (self.topics[topic_id],)
        else:
            topics = self.topics.values()
        return ElrCleared(tuple(change for topic in topics for change in _clear_topic_elr(topic)))

    def _config(self, record: ConfigRecord, offset: int) -> Change:
        resource = (record.resource_type, record.resource_name)
        values = self.configs.setdefault(resource, {})
        old = values.pop(record.name, None)
        if record.value is not None:
            values[record.name] = record.value
        if not values:
            del self.configs[resource]
        return ConfigChange(*resource, record.name, old, record.value)

    def _quota(self, record: ClientQuotaRecord, offset: int) -> Change:
        entity = tuple(sorted(record.entity, key=lambda part: part.entity_type))
        limits = self.quotas.setdefault(entity, {})
        if record.remove:
            limits.pop(record.key, None)
        else:
            limits[record.key] = record.value
        if not limits:
            del self.quotas[entity]
        return OtherChange(record)

    def _producer_ids(self, record: ProducerIdsRecord, offset: int) -> Change:
        self.next_producer_id = record.next_producer_id
        return OtherChange(record)

    def _acl(self, record: AccessControlEntryRecord, offset: int) -> Change:
        self.acls[record.id] = record
        return OtherChange(record)

    def _remove_acl(self, record: RemoveAccessControlEntryRecord, offset: int) -> Change:
        if self.acls.pop(record.id, None) is None:
            raise ReplayError(f"RemoveAccessControlEntryRecord for ACL {record.id}, which does not exist")
        return OtherChange(record)

    def _scram(self, record: UserScramCredentialRecord, offset: int) -> Change:
        self.scram[record.mechanism, record.name] = record
        return OtherChange(record)

    def _remove_scram(self, record: RemoveUserScramCredentialRecord, offset: int) -> Change:
        if self.scram.pop((record.mechanism, record.name), None) is None:
            raise ReplayError(f"RemoveUserScramCredentialRecord for user {record.name}, who has no such credential")
        return OtherChange(record)

    def _token(self, record: DelegationTokenRecord, offset: int) -> Change:
        self.delegation_tokens[record.token_id] = record
        return OtherChange(record)

    def _remove_token(self, record: RemoveDelegationTokenRecord, offset: int) -> Change:
        self.delegation_tokens.pop(record.token_id, None)
        return OtherChange(record)

    def _nothing(self, record: Record, offset: int) -> None:
        return None


def _clear_topic_elr(topic: Topic) -> Iterator[PartitionChange]:
    for number, old in topic.partitions.items():
        if old.eligible_leader_replicas or old.last_known_elr:
            new = structs.replace(
                old, eligible_leader_replicas=(), last_known_elr=(), partition_epoch=old.partition_epoch + 1
            )
            topic.partitions[number] = new
            yield PartitionChange(topic.id, topic.name, number, old, new)


_APPLY: Mapping[type[Record], Callable[[MetadataImage, Any, int], Change | None]] = {
    FeatureLevelRecord: MetadataImage._feature,
    RegisterBrokerRecord: MetadataImage._register_broker,
    UnregisterBrokerRecord: MetadataImage._unregister_broker,
    FenceBrokerRecord: MetadataImage._fence_broker,
    UnfenceBrokerRecord: MetadataImage._fence_broker,
    BrokerRegistrationChangeRecord: MetadataImage._change_broker,
    RegisterControllerRecord: MetadataImage._register_controller,
    UnregisterControllerRecord: MetadataImage._unregister_controller,
    TopicRecord: MetadataImage._create_topic,
    RemoveTopicRecord: MetadataImage._remove_topic,
    PartitionRecord: MetadataImage._set_partition,
    PartitionChangeRecord: MetadataImage._change_partition,
    ClearElrRecord: MetadataImage._clear_elr,
    ConfigRecord: MetadataImage._config,
    ClientQuotaRecord: MetadataImage._quota,
    ProducerIdsRecord: MetadataImage._producer_ids,
    AccessControlEntryRecord: MetadataImage._acl,
    RemoveAccessControlEntryRecord: MetadataImage._remove_acl,
    UserScramCredentialRecord: MetadataImage._scram,
    RemoveUserScramCredentialRecord: MetadataImage._remove_scram,
    DelegationTokenRecord: MetadataImage._token,
    RemoveDelegationTokenRecord: MetadataImage._remove_token,
    NoOpRecord: MetadataImage._nothing,
    BeginTransactionRecord: MetadataImage._nothing,
    EndTransactionRecord: MetadataImage._nothing,
    AbortTransactionRecord: MetadataImage._nothing,
    ZkMigrationStateRecord: MetadataImage._nothing,  # Kafka 4 has no ZooKeeper; old logs still have the record
}


def shallow_copy(image: MetadataImage) -> MetadataImage:
    """Return an image that does not change; its values are shared."""
    copies = {field.name: getattr(image, field.name) for field in dataclasses.fields(image)}
    copies = {name: dict(value) if isinstance(value, dict) else value for name, value in copies.items()}
    copies["topics"] = {
        topic_id: Topic(topic.id, topic.name, topic.partitions.copy()) for topic_id, topic in image.topics.items()
    }
    copies["configs"] = {resource: values.copy() for resource, values in image.configs.items()}
    copies["quotas"] = {entity: limits.copy() for entity, limits in image.quotas.items()}
    return MetadataImage(**copies)


def image_of(records: Iterable[Record], *, offset: int = -1, epoch: int = 0) -> MetadataImage:
    """Return the image from a snapshot's records; ``offset`` is that of the last record in the snapshot.

    Raises:
        ReplayError: a record contradicts the records before it.
    """
    image = MetadataImage()
    for record in records:
        image.replay(record)
    image.offset, image.epoch = offset, epoch
    return image


def changes_between(old: MetadataImage, new: MetadataImage) -> Iterator[Change]:
    """Yield the changes of a snapshot against the image that it replaces: brokers, topics, partitions and features, in
    an order that a replay could have had. A partition that only the old image has is deleted with its topic."""
    for name in sorted(old.features.keys() | new.features.keys()):
        before, after = old.features.get(name, 0), new.features.get(name, 0)
        if before != after:
            yield FeatureChange(name, before, after)
    for broker_id in sorted(old.brokers.keys() | new.brokers.keys()):
        if (was := old.brokers.get(broker_id)) != (now := new.brokers.get(broker_id)):
            yield BrokerChange(broker_id, was, now)
    for topic in old.topics.values():
        if topic.id not in new.topics:
            yield TopicDeleted(topic)
    for topic in new.topics.values():
        known = old.topics.get(topic.id)
        if known is None:
            yield TopicCreated(topic)
        for number, partition in topic.partitions.items():
            before_it = None if known is None else known.partitions.get(number)
            if before_it != partition:
                yield PartitionChange(topic.id, topic.name, number, before_it, partition)


def same_controller(old: MetadataImage, new: MetadataImage) -> bool:
    """Return whether a controller process in ``old`` is still registered under the same id in ``new``. If so, no log
    was lost or set back since, and the history of ``new`` contains that of ``old``. False proves nothing: each process
    registers anew with its own incarnation id (KIP-919)."""
    return any(
        (now := new.controllers.get(number)) is not None and now.incarnation_id == was.incarnation_id
        for number, was in old.controllers.items()
    )


# ---------------------------------------------------------------- transactions


_TRANSACTION_RECORDS = tuple(TRANSACTION_MARKERS.values())


class Replayer(Struct):
    """Applies log records to an image, and holds back the records of a transaction until its end (KIP-868).

    ``image.offset`` stays at the last record before a transaction while that is open.
    """

    image: MetadataImage = field(default_factory=MetadataImage)
    _pending: list[tuple[int, int, Record]] | None = None

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction has begun and not ended. At the log's end, such a transaction must be
        aborted."""
        return self._pending is not None

    def replay(self, offset: int, epoch: int, record: Record) -> Sequence[Change]:
        """Apply one record of the log, or hold it back.

        Returns:
            What changed, in order: nothing inside a transaction, all of it at its end.

        Raises:
            ReplayError: the record contradicts the records before it.
        """
        if isinstance(record, UnknownRecord) and isinstance(record.known, _TRANSACTION_RECORDS):
            self.image.newer.note(record)
            record = record.known
        if self._pending is None:
            if type(record) not in _TRANSACTION_RECORDS:
                return self._apply(((offset, epoch, record),))
            if isinstance(record, BeginTransactionRecord):
                self._pending = []
            elif not self.image.newer.incomplete:
                raise ReplayError(f"{type(record).__name__} at offset {offset} without a transaction")
            return ()
        if isinstance(record, BeginTransactionRecord):
            if self.image.newer.incomplete:  # the end of the transaction was not understood
                self._pending = []
                return ()
            raise ReplayError(f"BeginTransactionRecord at offset {offset} inside a transaction")
        if not isinstance(record, (EndTransactionRecord, AbortTransactionRecord)):
            self._pending.append((offset, epoch, record))
            return ()
        held, self._pending = self._pending, None
        ended = (offset, epoch, record)
        return self._apply([*held, ended] if isinstance(record, EndTransactionRecord) else [ended])

    def skip(self, offset: int, epoch: int) -> None:
        """Move past a control record, which does not change the image."""
        if self._pending is None:
            self.image.offset, self.image.epoch = offset, epoch

    def _apply(self, records: Iterable[tuple[int, int, Record]]) -> list[Change]:
        changes = []
        for offset, epoch, record in records:
            try:
                change = self.image.replay(record, offset)
            except ReplayError as error:
                raise ReplayError(f"metadata record at offset {offset}: {error}") from None
            self.image.epoch = epoch
            if change is not None:
                changes.append(change)
        return changes
