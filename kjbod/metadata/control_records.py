"""Control records of a KRaft log: leader changes, voters, and the header and footer of a snapshot.

The key is an int16 version (0) and an int16 type (``ControlRecordType``); the value is an int16 version and the
flexible body (``clients/src/main/resources/common/message/{LeaderChange,Snapshot*,KRaftVersion,Voters}*.json``).
They take offsets in the log and do not touch the metadata image.
"""

import functools
import struct
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Struct

from kjbod.ids import ZERO, Uuid
from kjbod.metadata.records import Wire, schema_of
from kjbod.wire.codec import Codec, MalformedMessageError, compile_codec

_KEY = struct.Struct(">hh")
_VERSION = struct.Struct(">h")


class ControlRecord(Struct, frozen=True):
    """Base of all control records."""

    TYPE: ClassVar[int]
    NAME: ClassVar[str]
    """Name as ``kafka-dump-log`` prints it."""
    VERSION_MAX: ClassVar[int] = 0


class LeaderChangeVoter(Struct, frozen=True, kw_only=True):
    """A voter of the quorum at an election."""

    voter_id: Annotated[int, Wire("int32")]
    voter_directory_id: Annotated[Uuid, Wire("uuid", since=1)] = ZERO


class LeaderChange(ControlRecord, frozen=True, kw_only=True):
    """The first record of each leader epoch."""

    TYPE: ClassVar[int] = 2
    NAME: ClassVar[str] = "LeaderChange"
    VERSION_MAX: ClassVar[int] = 1
    leader_id: Annotated[int, Wire("int32")]
    voters: Annotated[tuple[LeaderChangeVoter, ...], Wire("struct", array=True, of=LeaderChangeVoter)]
    granting_voters: Annotated[tuple[LeaderChangeVoter, ...], Wire("struct", array=True, of=LeaderChangeVoter)] = ()


class SnapshotHeader(ControlRecord, frozen=True, kw_only=True):
    """The first record of a snapshot, with the time of the last record that the snapshot contains, in ms since 1970."""

    TYPE: ClassVar[int] = 3
    NAME: ClassVar[str] = "SnapshotHeader"
    last_contained_log_timestamp: Annotated[int, Wire("int64")]


class SnapshotFooter(ControlRecord, frozen=True, kw_only=True):
    """The last record of a snapshot: shows that the snapshot is complete."""

    TYPE: ClassVar[int] = 4
    NAME: ClassVar[str] = "SnapshotFooter"


class KRaftVersion(ControlRecord, frozen=True, kw_only=True):
    """The finalized kraft.version: 1 from KIP-853 on."""

    TYPE: ClassVar[int] = 5
    NAME: ClassVar[str] = "KRaftVersion"
    k_raft_version: Annotated[int, Wire("int16")]


class VoterEndpoint(Struct, frozen=True, kw_only=True):
    """Listener of a voter."""

    name: Annotated[str, Wire("string")]
    host: Annotated[str, Wire("string")]
    port: Annotated[int, Wire("uint16")]


class KRaftVersionFeature(Struct, frozen=True, kw_only=True):
    """The kraft.version range that a voter supports."""

    min_supported_version: Annotated[int, Wire("int16")] = 0
    max_supported_version: Annotated[int, Wire("int16")] = 1


class Voter(Struct, frozen=True, kw_only=True):
    """A voter of a dynamic quorum."""

    voter_id: Annotated[int, Wire("int32")]
    voter_directory_id: Annotated[Uuid, Wire("uuid")]
    endpoints: Annotated[tuple[VoterEndpoint, ...], Wire("struct", array=True, of=VoterEndpoint)]
    k_raft_version_feature: Annotated[KRaftVersionFeature, Wire("struct", of=KRaftVersionFeature)] = (
        KRaftVersionFeature()
    )


class KRaftVoters(ControlRecord, frozen=True, kw_only=True):
    """The voters of a dynamic quorum (KIP-853)."""

    TYPE: ClassVar[int] = 6
    NAME: ClassVar[str] = "KRaftVoters"
    voters: Annotated[tuple[Voter, ...], Wire("struct", array=True, of=Voter)]


CONTROL_TYPES: Mapping[int, type[ControlRecord]] = {cls.TYPE: cls for cls in ControlRecord.__subclasses__()}
"""Every control record by type."""


@functools.cache
def control_codec(control_type: int, version: int) -> Codec[Any]:
    """The codec of one version of a control record's body, without the leading version.

    Raises:
        MalformedMessageError: no such control record or version.
    """
    cls = CONTROL_TYPES.get(control_type)
    if cls is None or not 0 <= version <= cls.VERSION_MAX:
        raise MalformedMessageError(f"control record {control_type} version {version} is not known")
    return compile_codec(schema_of(cls, version), cls)


def encode_control(record: ControlRecord, version: int = 0) -> tuple[bytes, bytes]:
    """Key and value of a control record. Kafka 4.3 writes version 0 of all of them, LeaderChange included."""
    out = bytearray(_VERSION.pack(version))
    control_codec(record.TYPE, version).encode_into(out, record)
    return _KEY.pack(0, record.TYPE), bytes(out)


def control_type(key: bytes | None) -> int:
    """Return the type of a control record by its key; -1 if the key is cut off."""
    try:
        found: int = _KEY.unpack(key or b"")[1]
    except struct.error:
        return -1
    return found


def decode_control(key: bytes | None, value: bytes | None) -> tuple[ControlRecord, int]:
    """A control record and the version of its value.

    Raises:
        MalformedMessageError: cut off, unknown type or version, or bytes left over.
    """
    try:
        _, control_type = _KEY.unpack(key or b"")
        (version,) = _VERSION.unpack_from(value or b"")
    except struct.error:
        raise MalformedMessageError("control record is cut off") from None
    record = control_codec(control_type, version).decode_exact(value or b"", _VERSION.size)
    assert isinstance(record, ControlRecord)
    return record, version
