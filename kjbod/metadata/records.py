"""KRaft metadata records: their classes, versions and framing.

Field names, types, versions and defaults are Kafka's (``metadata/src/main/resources/common/metadata/*.json``, up to
4.3). A record's value is an unsigned varint frame version (1), api key and record version, then the flexible body
(``AbstractApiMessageSerde``). A field that a version lacks keeps its default; writing a value that the version cannot
hold raises, unless the field is marked ignorable: the caller picks the version from the metadata.version.

Nearly all of a metadata log is about partitions, and nearly all partitions are alike: few sets of brokers and
directories serve very many. In both partition records the ids come first in the body. So the bytes after the ids, the
*tail*, are equal for all partitions that are alike. :func:`encode_record` and :func:`decode_record` cache tails;
:class:`PartitionRecordRef` is a record made from a shared tail.
"""

import contextlib
import struct
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar, get_args, get_type_hints

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.wire.codec import (
    REQUIRED,
    Buffer,
    Codec,
    Field,
    MalformedMessageError,
    Schema,
    compile_codec,
    defaults_of,
    put_uvarint,
    read_uvarint,
)

FRAME_VERSION = 1

NO_LEADER = -1
NO_LEADER_CHANGE = -2
"""``PartitionChangeRecord.leader``: unchanged."""


class Wire(Struct, frozen=True):
    """A field of a record on the wire: its type, the first version that has it, and its tag."""

    kind: str
    since: int = 0
    tag: int | None = None
    array: bool = False
    nullable: bool = False
    of: type[Any] | None = None


@cache
def wire_fields(cls: type[Any]) -> Mapping[str, tuple[Wire, Any]]:
    """Return the fields of a record, or of a struct in one, by name: each with its wire form and its default;
    :data:`.REQUIRED`: no default."""
    hints, defaults = get_type_hints(cls, include_extras=True), defaults_of(cls)
    return {name: (get_args(hints[name])[1], defaults.get(name, REQUIRED)) for name in cls.__struct_fields__}


def schema_of(cls: type[Struct], version: int, name: str | None = None) -> Schema:
    """Return the schema of ``version`` of a class whose fields each have a :class:`Wire`."""
    fields = []
    for field, (wire, default) in wire_fields(cls).items():
        if version >= wire.since:
            struct = schema_of(wire.of, version) if wire.of is not None else None
            fields.append(Field(field, wire.kind, wire.array, wire.nullable, wire.tag, default, struct))
    return Schema(name or cls.__name__, version, True, tuple(fields))


class Record(Struct, frozen=True):
    """Base of all metadata records."""

    API_KEY: ClassVar[int]
    VERSION_MAX: ClassVar[int] = 0


class Endpoint(Struct, frozen=True, kw_only=True):
    """A listener of a broker or controller."""

    name: Annotated[str, Wire("string")]
    host: Annotated[str, Wire("string")]
    port: Annotated[int, Wire("uint16")]
    security_protocol: Annotated[int, Wire("int16")] = 0


class FeatureRange(Struct, frozen=True, kw_only=True):
    """The levels of one feature that a node understands."""

    name: Annotated[str, Wire("string")]
    min_supported_version: Annotated[int, Wire("int16")]
    max_supported_version: Annotated[int, Wire("int16")]


class RegisterBrokerRecord(Record, frozen=True, kw_only=True):
    """A broker registered, or registered again."""

    API_KEY: ClassVar[int] = 0
    VERSION_MAX: ClassVar[int] = 4
    broker_id: Annotated[int, Wire("int32")]
    is_migrating_zk_broker: Annotated[bool, Wire("bool", since=2)] = False
    incarnation_id: Annotated[Uuid, Wire("uuid")]
    broker_epoch: Annotated[int, Wire("int64")]
    end_points: Annotated[tuple[Endpoint, ...], Wire("struct", array=True, of=Endpoint)]
    features: Annotated[tuple[FeatureRange, ...], Wire("struct", array=True, of=FeatureRange)]
    rack: Annotated[str | None, Wire("string", nullable=True)] = None
    fenced: Annotated[bool, Wire("bool")] = True
    in_controlled_shutdown: Annotated[bool, Wire("bool", since=1)] = False
    log_dirs: Annotated[tuple[Uuid, ...], Wire("uuid", since=3, tag=0, array=True)] = ()
    cordoned_log_dirs: Annotated[tuple[Uuid, ...] | None, Wire("uuid", since=4, tag=1, array=True, nullable=True)] = (
        None
    )


class UnregisterBrokerRecord(Record, frozen=True, kw_only=True):
    """A broker was removed."""

    API_KEY: ClassVar[int] = 1
    broker_id: Annotated[int, Wire("int32")]
    broker_epoch: Annotated[int, Wire("int64")]


class TopicRecord(Record, frozen=True, kw_only=True):
    """A topic was created; its partitions follow."""

    API_KEY: ClassVar[int] = 2
    name: Annotated[str, Wire("string")]
    topic_id: Annotated[Uuid, Wire("uuid")]


class PartitionRecord(Record, frozen=True, kw_only=True):
    """A partition with all of its fields."""

    API_KEY: ClassVar[int] = 3
    VERSION_MAX: ClassVar[int] = 2
    partition_id: Annotated[int, Wire("int32")] = -1
    topic_id: Annotated[Uuid, Wire("uuid")]
    replicas: Annotated[tuple[int, ...], Wire("int32", array=True)]
    isr: Annotated[tuple[int, ...], Wire("int32", array=True)]
    removing_replicas: Annotated[tuple[int, ...], Wire("int32", array=True)] = ()
    adding_replicas: Annotated[tuple[int, ...], Wire("int32", array=True)] = ()
    leader: Annotated[int, Wire("int32")] = -1
    leader_recovery_state: Annotated[int, Wire("int8", tag=0)] = 0
    leader_epoch: Annotated[int, Wire("int32")] = -1
    partition_epoch: Annotated[int, Wire("int32")] = -1
    directories: Annotated[tuple[Uuid, ...], Wire("uuid", since=1, array=True)] = ()
    eligible_leader_replicas: Annotated[
        tuple[int, ...] | None, Wire("int32", since=2, tag=1, array=True, nullable=True)
    ] = None
    last_known_elr: Annotated[tuple[int, ...] | None, Wire("int32", since=2, tag=2, array=True, nullable=True)] = None


class ConfigRecord(Record, frozen=True, kw_only=True):
    """A configuration value; null deletes it. Resource types: 2 topic, 4 broker, 16 client metrics, 32 group."""

    API_KEY: ClassVar[int] = 4
    resource_type: Annotated[int, Wire("int8")]
    resource_name: Annotated[str, Wire("string")]
    name: Annotated[str, Wire("string")]
    value: Annotated[str | None, Wire("string", nullable=True)]


class PartitionChangeRecord(Record, frozen=True, kw_only=True):
    """Change of a partition; null: unchanged. Each change raises the partition epoch, a change of leader the leader
    epoch."""

    API_KEY: ClassVar[int] = 5
    VERSION_MAX: ClassVar[int] = 2
    partition_id: Annotated[int, Wire("int32")] = -1
    topic_id: Annotated[Uuid, Wire("uuid")]
    isr: Annotated[tuple[int, ...] | None, Wire("int32", tag=0, array=True, nullable=True)] = None
    leader: Annotated[int, Wire("int32", tag=1)] = NO_LEADER_CHANGE
    replicas: Annotated[tuple[int, ...] | None, Wire("int32", tag=2, array=True, nullable=True)] = None
    removing_replicas: Annotated[tuple[int, ...] | None, Wire("int32", tag=3, array=True, nullable=True)] = None
    adding_replicas: Annotated[tuple[int, ...] | None, Wire("int32", tag=4, array=True, nullable=True)] = None
    leader_recovery_state: Annotated[int, Wire("int8", tag=5)] = -1
    directories: Annotated[tuple[Uuid, ...] | None, Wire("uuid", since=1, tag=8, array=True, nullable=True)] = None
    eligible_leader_replicas: Annotated[
        tuple[int, ...] | None, Wire("int32", since=2, tag=6, array=True, nullable=True)
    ] = None
    last_known_elr: Annotated[tuple[int, ...] | None, Wire("int32", since=2, tag=7, array=True, nullable=True)] = None


class FenceBrokerRecord(Record, frozen=True, kw_only=True):
    """A broker was fenced (before metadata.version 3.3-IV2)."""

    API_KEY: ClassVar[int] = 7
    id: Annotated[int, Wire("int32")]
    epoch: Annotated[int, Wire("int64")]


class UnfenceBrokerRecord(Record, frozen=True, kw_only=True):
    """A broker was unfenced (before metadata.version 3.3-IV2)."""

    API_KEY: ClassVar[int] = 8
    id: Annotated[int, Wire("int32")]
    epoch: Annotated[int, Wire("int64")]


class RemoveTopicRecord(Record, frozen=True, kw_only=True):
    """A topic was deleted with its partitions and configuration."""

    API_KEY: ClassVar[int] = 9
    topic_id: Annotated[Uuid, Wire("uuid")]


class DelegationTokenRecord(Record, frozen=True, kw_only=True):
    """A delegation token."""

    API_KEY: ClassVar[int] = 10
    owner: Annotated[str, Wire("string")]
    requester: Annotated[str, Wire("string")]
    renewers: Annotated[tuple[str, ...], Wire("string", array=True)]
    issue_timestamp: Annotated[int, Wire("int64")]
    max_timestamp: Annotated[int, Wire("int64")]
    expiration_timestamp: Annotated[int, Wire("int64")]
    token_id: Annotated[str, Wire("string")]


class UserScramCredentialRecord(Record, frozen=True, kw_only=True):
    """A SCRAM credential. Mechanisms: 1 SHA-256, 2 SHA-512."""

    API_KEY: ClassVar[int] = 11
    name: Annotated[str, Wire("string")]
    mechanism: Annotated[int, Wire("int8")]
    salt: Annotated[bytes, Wire("bytes")]
    stored_key: Annotated[bytes, Wire("bytes")]
    server_key: Annotated[bytes, Wire("bytes")]
    iterations: Annotated[int, Wire("int32")]


class FeatureLevelRecord(Record, frozen=True, kw_only=True):
    """The finalized level of a feature; 0 removes it."""

    API_KEY: ClassVar[int] = 12
    name: Annotated[str, Wire("string")]
    feature_level: Annotated[int, Wire("int16")]


class QuotaEntity(Struct, frozen=True, kw_only=True):
    """A dimension of a client quota's entity."""

    entity_type: Annotated[str, Wire("string")]
    entity_name: Annotated[str | None, Wire("string", nullable=True)]


class ClientQuotaRecord(Record, frozen=True, kw_only=True):
    """A client quota."""

    API_KEY: ClassVar[int] = 14
    entity: Annotated[tuple[QuotaEntity, ...], Wire("struct", array=True, of=QuotaEntity)]
    key: Annotated[str, Wire("string")]
    value: Annotated[float, Wire("float64")]
    remove: Annotated[bool, Wire("bool")]


class ProducerIdsRecord(Record, frozen=True, kw_only=True):
    """A block of producer ids was handed out."""

    API_KEY: ClassVar[int] = 15
    broker_id: Annotated[int, Wire("int32")]
    broker_epoch: Annotated[int, Wire("int64")] = -1
    next_producer_id: Annotated[int, Wire("int64")]


class BrokerRegistrationChangeRecord(Record, frozen=True, kw_only=True):
    """Change of a registration. Fenced: 1 fence, -1 unfence, 0 unchanged. An empty ``log_dirs`` is unchanged."""

    API_KEY: ClassVar[int] = 17
    VERSION_MAX: ClassVar[int] = 3
    broker_id: Annotated[int, Wire("int32")]
    broker_epoch: Annotated[int, Wire("int64")]
    fenced: Annotated[int, Wire("int8", tag=0)] = 0
    in_controlled_shutdown: Annotated[int, Wire("int8", since=1, tag=1)] = 0
    log_dirs: Annotated[tuple[Uuid, ...], Wire("uuid", since=2, tag=2, array=True)] = ()
    cordoned_log_dirs: Annotated[tuple[Uuid, ...] | None, Wire("uuid", since=3, tag=3, array=True, nullable=True)] = (
        None
    )


class AccessControlEntryRecord(Record, frozen=True, kw_only=True):
    """An ACL."""

    API_KEY: ClassVar[int] = 18
    id: Annotated[Uuid, Wire("uuid")]
    resource_type: Annotated[int, Wire("int8")]
    resource_name: Annotated[str, Wire("string")]
    pattern_type: Annotated[int, Wire("int8")]
    principal: Annotated[str, Wire("string")]
    host: Annotated[str, Wire("string")]
    operation: Annotated[int, Wire("int8")]
    permission_type: Annotated[int, Wire("int8")]


class RemoveAccessControlEntryRecord(Record, frozen=True, kw_only=True):
    """An ACL was removed."""

    API_KEY: ClassVar[int] = 19
    id: Annotated[Uuid, Wire("uuid")]


class NoOpRecord(Record, frozen=True, kw_only=True):
    """A record without content that advances the offsets of an idle cluster."""

    API_KEY: ClassVar[int] = 20


class ZkMigrationStateRecord(Record, frozen=True, kw_only=True):
    """State of a migration from ZooKeeper."""

    API_KEY: ClassVar[int] = 21
    zk_migration_state: Annotated[int, Wire("int8")]


class RemoveUserScramCredentialRecord(Record, frozen=True, kw_only=True):
    """A SCRAM credential was removed."""

    API_KEY: ClassVar[int] = 22
    name: Annotated[str, Wire("string")]
    mechanism: Annotated[int, Wire("int8")]


class BeginTransactionRecord(Record, frozen=True, kw_only=True):
    """Start of a transaction: the following records are buffered until its end."""

    API_KEY: ClassVar[int] = 23
    name: Annotated[str | None, Wire("string", tag=0, nullable=True)] = None


class EndTransactionRecord(Record, frozen=True, kw_only=True):
    """End of a transaction: the buffered records are applied."""

    API_KEY: ClassVar[int] = 24


class AbortTransactionRecord(Record, frozen=True, kw_only=True):
    """Abort of a transaction: the buffered records are dropped."""

    API_KEY: ClassVar[int] = 25
    reason: Annotated[str | None, Wire("string", tag=0, nullable=True)] = None


class RemoveDelegationTokenRecord(Record, frozen=True, kw_only=True):
    """A delegation token was removed."""

    API_KEY: ClassVar[int] = 26
    token_id: Annotated[str, Wire("string")]


class RegisterControllerRecord(Record, frozen=True, kw_only=True):
    """A controller registered."""

    API_KEY: ClassVar[int] = 27
    controller_id: Annotated[int, Wire("int32")]
    incarnation_id: Annotated[Uuid, Wire("uuid")]
    zk_migration_ready: Annotated[bool, Wire("bool")]
    end_points: Annotated[tuple[Endpoint, ...], Wire("struct", array=True, of=Endpoint)]
    features: Annotated[tuple[FeatureRange, ...], Wire("struct", array=True, of=FeatureRange)]


class ClearElrRecord(Record, frozen=True, kw_only=True):
    """The eligible leader replicas of a topic (all topics: empty name) were cleared."""

    API_KEY: ClassVar[int] = 28
    topic_name: Annotated[str, Wire("string")]


class UnregisterControllerRecord(Record, frozen=True, kw_only=True):
    """A controller was unregistered (KIP-1312)."""

    API_KEY: ClassVar[int] = 29
    controller_id: Annotated[int, Wire("int32")]


RECORD_TYPES: Mapping[int, type[Record]] = {cls.API_KEY: cls for cls in Record.__subclasses__()}
"""Every record type by api key."""


class UnknownRecord(Record, frozen=True, kw_only=True):
    """A record that is not understood in full: from a newer Kafka, or damaged (:mod:`.newer`).

    Attributes:
        api_key: type of the record; -1 if its head cannot be read.
        version: version of the record; -1 if its head cannot be read.
        known: the record with the fields of the newest known version; None: it cannot be decoded that way.
        count: number of records that this one represents.
    """

    api_key: int = -1
    version: int = -1
    known: Record | None = None
    count: int = 1


TRANSACTION_MARKERS: Mapping[int, type[Record]] = {
    cls.API_KEY: cls for cls in (BeginTransactionRecord, EndTransactionRecord, AbortTransactionRecord)
}
"""Records without a relevant field: in a newer version the type is enough."""

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
"""Maximum cached tails, for writing and for reading each; a full cache is emptied."""

_IDS = struct.Struct(">i16s")
_HEAD_BYTES = 3
"""Frame version, api key and record version: one byte each in the records of partitions."""
_TAIL_FROM = _HEAD_BYTES + _IDS.size
_IDS_FIELDS = ("partition_id", "topic_id")


def _tail_fields(cls: type[Record]) -> tuple[str, ...]:
    return tuple(name for name in cls.__struct_fields__ if name not in _IDS_FIELDS)


TAIL_OF: Mapping[type[Record], Callable[[Any], tuple[Any, ...]]] = {
    cls: attrgetter(*_tail_fields(cls)) for cls in (PartitionRecord, PartitionChangeRecord)
}
"""All values of a partition's record except the partition's id."""
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
    """Return a copy of a record for another partition."""
    made: P = _COPY[type(record)](record, topic_id, partition_id)
    return made


class PartitionRecordRef(NamedTuple):
    """Record of one of many equal partitions: equals ``like`` except for the partition id. The costly work is done once
    per ``like``, and each further record costs only this tuple."""

    like: PartitionRecord | PartitionChangeRecord
    topic_id: Uuid
    partition_id: int

    def whole(self) -> PartitionRecord | PartitionChangeRecord:
        """Return the record itself."""
        return for_partition(self.like, self.topic_id, self.partition_id)


AnyRecord: TypeAlias = Record | PartitionRecordRef
"""A record in either form."""


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Add an entry to a cache of bounded size."""
    if len(kept) >= TAILS_MAX:
        kept.clear()
    kept[key] = value


# ---------------------------------------------------------------- a record's bytes


def encode_record(record: Record, version: int | None = None) -> bytes:
    """Encode a record's value in a batch, in ``version`` or else the newest version."""
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
        return _encode(record, version)  # raises with the reason


def encode_alike(like: PartitionRecord | PartitionChangeRecord, version: int) -> Callable[[Uuid, int], bytes]:
    """Return a function that encodes records like this one, by topic id and partition number, as :func:`encode_record`
    does.

    Raises:
        struct.error: raised by the function for an invalid partition number.
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
    """Return a record and its version.

    Raises:
        MalformedMessageError: another frame version, an unknown record or version, bytes missing or left over.
    """
    record, version = decode_any(value)
    return (record.whole() if isinstance(record, PartitionRecordRef) else record), version


def decode_any(value: Buffer) -> tuple[AnyRecord, int]:
    """Decode like :func:`decode_record`, but keep a partition record in its shared form (:class:`PartitionRecordRef`).

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
    """Return api key, record version, and the start of the body."""
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
    """Decode like :func:`decode_any`, for an observer: a record that cannot be decoded is an :class:`UnknownRecord`.
    Its known fields are used only if no bytes are left over: Kafka has inserted new fields between old ones before."""
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
