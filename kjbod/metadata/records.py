"""KRaft metadata records: the dataclasses, their versions and their framing.

Field names, types, versions and defaults are Kafka's (``metadata/src/main/resources/common/metadata/*.json``, up to
4.3). A record's value is an unsigned varint frame version (1), api key and record version, then the flexible body
(``AbstractApiMessageSerde``). A field that a version lacks keeps its default; writing a value that the version cannot
hold raises, unless the field is marked ignorable: the caller picks the version from the metadata.version.

Nearly all of a metadata log is about partitions, and nearly all partitions are alike: few sets of brokers and
directories serve very many. In both of their records the ids come first in the body, so that all that follows them, the
*tail*, is the same bytes for all that are alike. :func:`encode_record` and :func:`decode_record` keep the tails that
they have met; :class:`PartitionRecordRef` is what is made of them by the hundred thousand.
"""

import contextlib
import dataclasses
import struct
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from kjbod.ids import Uuid
from kjbod.quick_dataclass import dataclass
from kjbod.values import value_type
from kjbod.wire.codec import (
    REQUIRED,
    Buffer,
    Codec,
    Field,
    MalformedMessageError,
    Schema,
    compile_codec,
    put_uvarint,
    read_uvarint,
)

FRAME_VERSION = 1

NO_LEADER = -1
NO_LEADER_CHANGE = -2
"""``PartitionChangeRecord.leader``: unchanged."""


def wire(
    kind: str,
    *,
    since: int = 0,
    tag: int | None = None,
    default: Any = REQUIRED,
    array: bool = False,
    nullable: bool = False,
    of: type[Any] | None = None,
) -> Any:
    """A record field: its type on the wire, the first version that has it, and its tag."""
    metadata = {"wire": (kind, since, tag, default, array, nullable, of)}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def schema_of(cls: type[Any], version: int, name: str | None = None) -> Schema:
    """The schema of ``version`` of a dataclass whose fields are made with :func:`wire`."""
    fields = []
    for f in dataclasses.fields(cls):
        kind, since, tag, default, array, nullable, of = f.metadata["wire"]
        if version >= since:
            struct = schema_of(of, version) if of is not None else None
            fields.append(Field(f.name, kind, array, nullable, tag, default, struct))
    return Schema(name or cls.__name__, version, True, tuple(fields))


class Record:
    """Base of all metadata records."""

    __slots__ = ()
    API_KEY: ClassVar[int]
    VERSION_MAX: ClassVar[int] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A listener of a broker or controller."""

    name: str = wire("string")
    host: str = wire("string")
    port: int = wire("uint16")
    security_protocol: int = wire("int16", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureRange:
    """The levels of one feature that a node understands."""

    name: str = wire("string")
    min_supported_version: int = wire("int16")
    max_supported_version: int = wire("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord(Record):
    """A broker registered, or registered again."""

    API_KEY: ClassVar[int] = 0
    VERSION_MAX: ClassVar[int] = 4
    broker_id: int = wire("int32")
    is_migrating_zk_broker: bool = wire("bool", since=2, default=False)
    incarnation_id: Uuid = wire("uuid")
    broker_epoch: int = wire("int64")
    end_points: tuple[Endpoint, ...] = wire("struct", array=True, of=Endpoint)
    features: tuple[FeatureRange, ...] = wire("struct", array=True, of=FeatureRange)
    rack: str | None = wire("string", nullable=True, default=None)
    fenced: bool = wire("bool", default=True)
    in_controlled_shutdown: bool = wire("bool", since=1, default=False)
    log_dirs: tuple[Uuid, ...] = wire("uuid", since=3, tag=0, array=True, default=())
    cordoned_log_dirs: tuple[Uuid, ...] | None = wire("uuid", since=4, tag=1, array=True, nullable=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord(Record):
    """A broker was removed."""

    API_KEY: ClassVar[int] = 1
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord(Record):
    """A topic was created; its partitions follow."""

    API_KEY: ClassVar[int] = 2
    name: str = wire("string")
    topic_id: Uuid = wire("uuid")


@value_type
class PartitionRecord(Record):
    """A partition, whole."""

    API_KEY: ClassVar[int] = 3
    VERSION_MAX: ClassVar[int] = 2
    partition_id: int = wire("int32", default=-1)
    topic_id: Uuid = wire("uuid")
    replicas: tuple[int, ...] = wire("int32", array=True)
    isr: tuple[int, ...] = wire("int32", array=True)
    removing_replicas: tuple[int, ...] = wire("int32", array=True, default=())
    adding_replicas: tuple[int, ...] = wire("int32", array=True, default=())
    leader: int = wire("int32", default=-1)
    leader_recovery_state: int = wire("int8", tag=0, default=0)
    leader_epoch: int = wire("int32", default=-1)
    partition_epoch: int = wire("int32", default=-1)
    directories: tuple[Uuid, ...] = wire("uuid", since=1, array=True, default=())
    eligible_leader_replicas: tuple[int, ...] | None = wire(
        "int32", since=2, tag=1, array=True, nullable=True, default=None
    )
    last_known_elr: tuple[int, ...] | None = wire("int32", since=2, tag=2, array=True, nullable=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord(Record):
    """A configuration value; null deletes it. Resource types: 2 topic, 4 broker, 16 client metrics, 32 group."""

    API_KEY: ClassVar[int] = 4
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    name: str = wire("string")
    value: str | None = wire("string", nullable=True)


@value_type
class PartitionChangeRecord(Record):
    """Change of a partition; null is unchanged. Each raises the partition epoch, a leader the leader epoch."""

    API_KEY: ClassVar[int] = 5
    VERSION_MAX: ClassVar[int] = 2
    partition_id: int = wire("int32", default=-1)
    topic_id: Uuid = wire("uuid")
    isr: tuple[int, ...] | None = wire("int32", tag=0, array=True, nullable=True, default=None)
    leader: int = wire("int32", tag=1, default=NO_LEADER_CHANGE)
    replicas: tuple[int, ...] | None = wire("int32", tag=2, array=True, nullable=True, default=None)
    removing_replicas: tuple[int, ...] | None = wire("int32", tag=3, array=True, nullable=True, default=None)
    adding_replicas: tuple[int, ...] | None = wire("int32", tag=4, array=True, nullable=True, default=None)
    leader_recovery_state: int = wire("int8", tag=5, default=-1)
    directories: tuple[Uuid, ...] | None = wire("uuid", since=1, tag=8, array=True, nullable=True, default=None)
    eligible_leader_replicas: tuple[int, ...] | None = wire(
        "int32", since=2, tag=6, array=True, nullable=True, default=None
    )
    last_known_elr: tuple[int, ...] | None = wire("int32", since=2, tag=7, array=True, nullable=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBrokerRecord(Record):
    """A broker was fenced (before metadata.version 3.3-IV2)."""

    API_KEY: ClassVar[int] = 7
    id: int = wire("int32")
    epoch: int = wire("int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBrokerRecord(Record):
    """A broker was unfenced (before metadata.version 3.3-IV2)."""

    API_KEY: ClassVar[int] = 8
    id: int = wire("int32")
    epoch: int = wire("int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord(Record):
    """A topic was deleted with its partitions and configuration."""

    API_KEY: ClassVar[int] = 9
    topic_id: Uuid = wire("uuid")


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationTokenRecord(Record):
    """A delegation token."""

    API_KEY: ClassVar[int] = 10
    owner: str = wire("string")
    requester: str = wire("string")
    renewers: tuple[str, ...] = wire("string", array=True)
    issue_timestamp: int = wire("int64")
    max_timestamp: int = wire("int64")
    expiration_timestamp: int = wire("int64")
    token_id: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramCredentialRecord(Record):
    """A SCRAM credential. Mechanisms: 1 SHA-256, 2 SHA-512."""

    API_KEY: ClassVar[int] = 11
    name: str = wire("string")
    mechanism: int = wire("int8")
    salt: bytes = wire("bytes")
    stored_key: bytes = wire("bytes")
    server_key: bytes = wire("bytes")
    iterations: int = wire("int32")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord(Record):
    """The finalized level of a feature; 0 removes it."""

    API_KEY: ClassVar[int] = 12
    name: str = wire("string")
    feature_level: int = wire("int16")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """A dimension of a client quota's entity."""

    entity_type: str = wire("string")
    entity_name: str | None = wire("string", nullable=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord(Record):
    """A client quota."""

    API_KEY: ClassVar[int] = 14
    entity: tuple[QuotaEntity, ...] = wire("struct", array=True, of=QuotaEntity)
    key: str = wire("string")
    value: float = wire("float64")
    remove: bool = wire("bool")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord(Record):
    """A block of producer ids was handed out."""

    API_KEY: ClassVar[int] = 15
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64", default=-1)
    next_producer_id: int = wire("int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord(Record):
    """Change of a registration. Fenced: 1 fence, -1 unfence, 0 unchanged. An empty ``log_dirs`` is unchanged."""

    API_KEY: ClassVar[int] = 17
    VERSION_MAX: ClassVar[int] = 3
    broker_id: int = wire("int32")
    broker_epoch: int = wire("int64")
    fenced: int = wire("int8", tag=0, default=0)
    in_controlled_shutdown: int = wire("int8", since=1, tag=1, default=0)
    log_dirs: tuple[Uuid, ...] = wire("uuid", since=2, tag=2, array=True, default=())
    cordoned_log_dirs: tuple[Uuid, ...] | None = wire("uuid", since=3, tag=3, array=True, nullable=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntryRecord(Record):
    """An ACL."""

    API_KEY: ClassVar[int] = 18
    id: Uuid = wire("uuid")
    resource_type: int = wire("int8")
    resource_name: str = wire("string")
    pattern_type: int = wire("int8")
    principal: str = wire("string")
    host: str = wire("string")
    operation: int = wire("int8")
    permission_type: int = wire("int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAccessControlEntryRecord(Record):
    """An ACL was removed."""

    API_KEY: ClassVar[int] = 19
    id: Uuid = wire("uuid")


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOpRecord(Record):
    """Keeps offsets moving in an idle cluster."""

    API_KEY: ClassVar[int] = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ZkMigrationStateRecord(Record):
    """State of a migration from ZooKeeper."""

    API_KEY: ClassVar[int] = 21
    zk_migration_state: int = wire("int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramCredentialRecord(Record):
    """A SCRAM credential was removed."""

    API_KEY: ClassVar[int] = 22
    name: str = wire("string")
    mechanism: int = wire("int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginTransactionRecord(Record):
    """From here on records are buffered until the transaction ends."""

    API_KEY: ClassVar[int] = 23
    name: str | None = wire("string", tag=0, nullable=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransactionRecord(Record):
    """The buffered records count."""

    API_KEY: ClassVar[int] = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortTransactionRecord(Record):
    """The buffered records do not count."""

    API_KEY: ClassVar[int] = 25
    reason: str | None = wire("string", tag=0, nullable=True, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveDelegationTokenRecord(Record):
    """A delegation token was removed."""

    API_KEY: ClassVar[int] = 26
    token_id: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterControllerRecord(Record):
    """A controller registered."""

    API_KEY: ClassVar[int] = 27
    controller_id: int = wire("int32")
    incarnation_id: Uuid = wire("uuid")
    zk_migration_ready: bool = wire("bool")
    end_points: tuple[Endpoint, ...] = wire("struct", array=True, of=Endpoint)
    features: tuple[FeatureRange, ...] = wire("struct", array=True, of=FeatureRange)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearElrRecord(Record):
    """The eligible leader replicas of a topic (all topics: empty name) were cleared."""

    API_KEY: ClassVar[int] = 28
    topic_name: str = wire("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterControllerRecord(Record):
    """A controller was unregistered (KIP-1312)."""

    API_KEY: ClassVar[int] = 29
    controller_id: int = wire("int32")


RECORD_TYPES: Mapping[int, type[Record]] = {cls.API_KEY: cls for cls in Record.__subclasses__()}
"""Every record type by api key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord(Record):
    """A record that is not understood in full: of a newer Kafka, or damaged (:mod:`.newer`).

    Attributes:
        api_key: its type; -1 where its head cannot be read.
        version: of the record; -1 likewise.
        known: the record with the fields that the newest known version has; None: it cannot be decoded like that.
        count: how many records this one stands for.
    """

    api_key: int = -1
    version: int = -1
    known: Record | None = None
    count: int = 1


TRANSACTION_MARKERS: Mapping[int, type[Record]] = {
    cls.API_KEY: cls for cls in (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
}
"""They have no field that anything depends on: the type of a newer version says all."""

_codecs: dict[tuple[int, int], Codec[Any]] = {}
R = TypeVar("R", bound=Record)
P = TypeVar("P", bound=PartitionRecord | PartitionChangeRecord)


def record_codec(api_key: int, version: int) -> Codec[Any]:
    """The codec of one version of a record.

    Raises:
        MalformedMessageError: no such record or version (from a newer Kafka).
    """
    key = (api_key, version)
    if (codec := _codecs.get(key)) is None:
        cls = RECORD_TYPES.get(api_key)
        if cls is None or not 0 <= version <= cls.VERSION_MAX:
            raise MalformedMessageError(f"metadata record {api_key} version {version} is not known")
        codec = _codecs[key] = compile_codec(schema_of(cls, version), cls)
    return codec


# ---------------------------------------------------------------- records of partitions

TAILS_MAX = 8_192
"""How many tails are kept, for writing and for reading each; then all are forgotten."""

_IDS = struct.Struct(">i16s")
_HEAD_BYTES = 3
"""Frame version, api key and record version: one byte each in the records of partitions."""
_TAIL_FROM = _HEAD_BYTES + _IDS.size
_IDS_FIELDS = ("partition_id", "topic_id")


def _tail_fields(cls: type[Record]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.name not in _IDS_FIELDS)  # type: ignore[arg-type]


TAIL_OF: Mapping[type[Record], Callable[[Any], tuple[Any, ...]]] = {
    cls: attrgetter(*_tail_fields(cls)) for cls in (PartitionRecord, PartitionChangeRecord)
}
"""All that a partition's record says beside whose it is."""
_PARTITION_HEADS = frozenset(
    bytes((FRAME_VERSION, cls.API_KEY, version))
    for cls in (PartitionRecord, PartitionChangeRecord)
    for version in range(cls.VERSION_MAX + 1)
)
_written: dict[tuple[Any, ...], tuple[bytes, bytes]] = {}
_read: dict[bytes, Any] = {}
_topic_ids: dict[bytes, Uuid] = {}


def _change_of(like: PartitionChangeRecord, topic_id: Uuid, partition_id: int) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        partition_id=partition_id,
        topic_id=topic_id,
        isr=like.isr,
        leader=like.leader,
        replicas=like.replicas,
        removing_replicas=like.removing_replicas,
        adding_replicas=like.adding_replicas,
        leader_recovery_state=like.leader_recovery_state,
        directories=like.directories,
        eligible_leader_replicas=like.eligible_leader_replicas,
        last_known_elr=like.last_known_elr,
    )


def _partition_of(like: PartitionRecord, topic_id: Uuid, partition_id: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=partition_id,
        topic_id=topic_id,
        replicas=like.replicas,
        isr=like.isr,
        removing_replicas=like.removing_replicas,
        adding_replicas=like.adding_replicas,
        leader=like.leader,
        leader_recovery_state=like.leader_recovery_state,
        leader_epoch=like.leader_epoch,
        partition_epoch=like.partition_epoch,
        directories=like.directories,
        eligible_leader_replicas=like.eligible_leader_replicas,
        last_known_elr=like.last_known_elr,
    )


_COPY: Mapping[type[Record], Callable[[Any, Uuid, int], Any]] = {
    PartitionChangeRecord: _change_of,
    PartitionRecord: _partition_of,
}


def for_partition(record: P, topic_id: Uuid, partition_id: int) -> P:
    """A copy of a record that is about another partition."""
    made: P = _COPY[type(record)](record, topic_id, partition_id)
    return made


class PartitionRecordRef(NamedTuple):
    """The record of one of many partitions: it says of its partition what ``like`` says of another. What is made,
    encoded and replayed by the hundred thousand is worked out once per ``like``, and costs this tuple for each."""

    like: PartitionRecord | PartitionChangeRecord
    topic_id: Uuid
    partition_id: int

    def whole(self) -> PartitionRecord | PartitionChangeRecord:
        """The record itself."""
        return for_partition(self.like, self.topic_id, self.partition_id)


AnyRecord: TypeAlias = Record | PartitionRecordRef
"""A record in either form."""


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Remember, in bounded memory."""
    if len(kept) >= TAILS_MAX:
        kept.clear()
    kept[key] = value


# ---------------------------------------------------------------- a record's bytes


def encode_record(record: Record, version: int | None = None) -> bytes:
    """A record's value in a batch, in ``version`` or else the newest one."""
    version = record.VERSION_MAX if version is None else version
    tail_of = TAIL_OF.get(type(record))
    if tail_of is None:
        return _encode(record, version)
    key = (record.API_KEY, version, tail_of(record))
    known = _written.get(key)
    if known is None:
        value = _encode(record, version)
        _keep(_written, key, (value[:_HEAD_BYTES], value[_TAIL_FROM:]))
        return value
    try:
        return known[0] + _IDS.pack(record.partition_id, record.topic_id) + known[1]  # type: ignore[attr-defined]
    except struct.error:
        return _encode(record, version)  # which says what is wrong


def encode_alike(like: PartitionRecord | PartitionChangeRecord, version: int) -> Callable[[Uuid, int], bytes]:
    """:func:`encode_record` of what is like this record, by topic id and partition number.

    Raises:
        struct.error: by the function: a partition number that is none.
    """
    value = _encode(like, version)
    head, tail, pack = value[:_HEAD_BYTES], value[_TAIL_FROM:], _IDS.pack
    return lambda topic_id, partition_id: head + pack(partition_id, topic_id) + tail


def _encode(record: Record, version: int) -> bytes:
    out = bytearray()
    put_uvarint(out, FRAME_VERSION)
    put_uvarint(out, record.API_KEY)
    put_uvarint(out, version)
    record_codec(record.API_KEY, version).encode_into(out, record)
    return bytes(out)


def decode_record(value: Buffer) -> tuple[Record, int]:
    """A record and its version.

    Raises:
        MalformedMessageError: another frame version, an unknown record or version, bytes missing or left over.
    """
    record, version = decode_any(value)
    return (record.whole() if isinstance(record, PartitionRecordRef) else record), version


def decode_any(value: Buffer) -> tuple[AnyRecord, int]:
    """Like :func:`decode_record`, but a partition record stays in its shared form (:class:`PartitionRecordRef`).

    Raises:
        MalformedMessageError: as :func:`decode_record`.
    """
    head = bytes(value[:_HEAD_BYTES])
    if head not in _PARTITION_HEADS or len(value) < _TAIL_FROM:
        return _decode(value)
    key = head + value[_TAIL_FROM:]
    like: Any = _read.get(key)
    if like is None:
        like, _ = _decode(value)
        _keep(_read, key, like)
    partition_id, raw = _IDS.unpack_from(value, _HEAD_BYTES)
    topic_id = _topic_ids.get(raw)
    if topic_id is None:
        topic_id = Uuid(raw)
        _keep(_topic_ids, raw, topic_id)
    return PartitionRecordRef(like, topic_id, partition_id), head[2]


def _decode(value: Buffer) -> tuple[Record, int]:
    api_key, version, at = _head(value)
    return record_codec(api_key, version).decode_exact(value, at), version


def _head(value: Buffer) -> tuple[int, int, int]:
    """Api key, record version, and where the body begins."""
    try:
        frame, at = read_uvarint(value, 0)
        api_key, at = read_uvarint(value, at)
        version, at = read_uvarint(value, at)
    except IndexError:
        raise MalformedMessageError("metadata record is cut off") from None
    if frame != FRAME_VERSION:
        raise MalformedMessageError(f"metadata record frame version {frame} is not known")
    return api_key, version, at


def decode_newer(value: Buffer) -> AnyRecord:
    """Like :func:`decode_any`, for an observer: a record that cannot be decoded is an :class:`UnknownRecord`. Its known
    fields are taken only where nothing is left over: Kafka has put new fields between old ones before."""
    with contextlib.suppress(MalformedMessageError):
        return decode_any(value)[0]
    try:
        api_key, version, at = _head(value)
    except MalformedMessageError:
        return UnknownRecord()
    cls, known = RECORD_TYPES.get(api_key), None
    if cls is not None and version > cls.VERSION_MAX:
        with contextlib.suppress(MalformedMessageError):
            known = record_codec(api_key, cls.VERSION_MAX).decode_exact(value, at)
        if known is None and api_key in TRANSACTION_MARKERS:
            known = cls()
    return UnknownRecord(api_key=api_key, version=version, known=known)
