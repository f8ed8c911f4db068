"""Record batches, format 2 (KIP-98, ``DefaultRecordBatch``), as in the metadata log.

Uncompressed, no producer, one timestamp per batch, partition leader epoch = raft epoch. Attributes are 0x0020 for
control batches and 0 for all others; metadata transactions do not use the transaction bit.

::

    base offset i64 | length i32 | leader epoch i32 | magic i8 | crc u32 |     the crc-32c covers all that follows
    attributes i16 | last offset delta i32 | base timestamp i64 | max timestamp i64 |
    producer id i64 | producer epoch i16 | base sequence i32 | count i32 | records

Incomplete data is not an error: the caller must read more bytes (a torn tail, an unaligned piece of a snapshot). A
complete batch that fails a check is a :class:`CorruptBatchError` with its position.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from kjbod.metadata.control_records import ControlRecord, decode_control, encode_control
from kjbod.metadata.records import (
    AnyRecord,
    PartitionRecordRef,
    Record,
    UnknownRecord,
    decode_any,
    decode_newer,
)
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.crc32c import crc32c

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = _HEADER.size
"""61, the size of a batch without its records."""
_LENGTH_FROM = 12
"""Bytes before the end of the length field; the length counts the bytes after it."""
_CRC_FROM = 21
_CRC = struct.Struct(">I")
_MAGIC = 2
_CONTROL = 0x20
_COMPRESSION = 0x07
BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""``KafkaRaftClient.MAX_BATCH_SIZE_BYTES``: the largest batch that Kafka writes to a metadata log."""
_VARLONG_BYTES_MAX = 10
_Parts: TypeAlias = tuple[int, int, bytes | None, bytes | None]
"""Offset delta, timestamp delta, key and value of a record."""


class CorruptBatchError(MalformedMessageError):
    """A complete batch is invalid; ``position`` is its start in the buffer."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(f"batch at position {position}: {why}")
        self.position = position
        self.why = why


class LogRecord(Struct, frozen=True):
    """A record of a batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class RecordBatch(Struct, frozen=True, kw_only=True):
    """A batch with a correct checksum. Records are decoded on demand."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    timestamp_ms: int
    """Largest timestamp of its records, ms since 1970."""
    base_timestamp_ms: int
    control: bool
    count: int
    crc: int
    position: int
    """Start of the batch in its buffer."""
    raw: bytes
    """All bytes of the batch, including the header."""

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def size_in_bytes(self) -> int:
        return len(self.raw)

    @property
    def records(self) -> Iterator[LogRecord]:
        """The records in order.

        Raises:
            CorruptBatchError: the records do not fill the batch as its header says.
        """
        for offset_delta, timestamp_delta, key, value in self._parts():
            yield LogRecord(self.base_offset + offset_delta, self.base_timestamp_ms + timestamp_delta, key, value)

    def _parts(self) -> Iterator[_Parts]:
        at = HEADER_BYTES
        try:
            for _ in range(self.count):
                parts, at = _read_record(self.raw, at)
                yield parts
        except (IndexError, MalformedMessageError):
            raise CorruptBatchError(self.position, f"its records are malformed at byte {at}") from None
        if at != len(self.raw):
            raise CorruptBatchError(self.position, f"{len(self.raw) - at} bytes after its {self.count} records")

    def metadata_records(self) -> Iterator[tuple[int, Record]]:
        """Yield offset and record of each metadata record; a control batch yields nothing.

        Raises:
            MalformedMessageError: a record cannot be decoded; the text has its offset.
        """
        for offset, record in self.alike_records():
            yield offset, record.whole() if isinstance(record, PartitionRecordRef) else record

    def alike_records(self) -> Iterator[tuple[int, AnyRecord]]:
        """Yield records like :meth:`metadata_records`, but records of partitions in their shared form
        (:class:`PartitionRecordRef`)."""
        if self.control:
            return
        for offset_delta, _, _, value in self._parts():
            offset = self.base_offset + offset_delta
            try:
                record = decode_any(value or b"")[0]
            except MalformedMessageError as error:
                raise MalformedMessageError(f"offset {offset}: {error}") from None
            yield offset, record

    def observed_records(self) -> Iterator[tuple[int, Record]]:
        """Yield records like :meth:`metadata_records`, for an observer: never raises. A record that cannot be decoded,
        and the rest of a damaged batch, is an :class:`UnknownRecord`."""
        if self.control:
            return
        try:
            for offset_delta, _, _, value in self._parts():
                record = decode_newer(value or b"")
                whole = record.whole() if isinstance(record, PartitionRecordRef) else record
                yield self.base_offset + offset_delta, whole
        except CorruptBatchError:
            yield self.last_offset, UnknownRecord()

    def control_records(self) -> Iterator[tuple[int, ControlRecord]]:
        """Yield offset and record of each control record; a batch of data yields nothing.

        Raises:
            MalformedMessageError: a record cannot be decoded; the text has its offset.
        """
        if not self.control:
            return
        for record in self.records:
            try:
                yield record.offset, decode_control(record.key, record.value)[0]
            except MalformedMessageError as error:
                raise MalformedMessageError(f"offset {record.offset}: {error}") from None


# ---------------------------------------------------------------- writing


def _put_varint(out: bytearray, value: int) -> None:
    """Append a zigzag varint."""
    value = value << 1 ^ value >> 63
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


_NO_KEY = b"\1"
"""Length -1 as a varint."""


def _put_record(out: bytearray, offset_delta: int, key: bytes, value: bytes) -> None:
    body = bytearray(b"\0\0")  # attributes, timestamp delta
    _put_varint(body, offset_delta)
    _put_varint(body, len(key))
    body += key
    _put_varint(body, len(value))
    body += value
    body.append(0)  # headers
    _put_varint(out, len(body))
    out += body


_DELTAS_MAX = 131_072
"""Maximum number of encoded offset deltas that are cached after a batch with that many records."""
_deltas: tuple[bytes, ...] = ()
_THREE_BYTES_FROM = 1 << 13
"""First offset delta that takes three bytes."""


def _varint(value: int) -> bytes:
    out = bytearray()
    _put_varint(out, value)
    return bytes(out)


def _known_deltas(count: int) -> tuple[bytes, ...]:
    """Return at least ``count`` encoded offset deltas, up to the maximum."""
    global _deltas  # replaced as a whole, because several threads encode at once
    known = _deltas
    if len(known) < min(count, _DELTAS_MAX):
        count = 1 << (count - 1).bit_length()  # grow by powers of two, not by one for each batch
        few = [_varint(delta) for delta in range(len(known), min(count, _THREE_BYTES_FROM))]
        doubled = range(2 * max(len(known), _THREE_BYTES_FROM), 2 * min(count, _DELTAS_MAX), 2)
        many = [bytes((each & 127 | 128, each >> 7 & 127 | 128, each >> 14)) for each in doubled]
        _deltas = known = (*known, *few, *many)
    return known


def _data(values: Sequence[bytes]) -> bytes:
    """Encode records without keys like :func:`_put_record`, but compute each length-dependent part only once."""
    deltas = _known_deltas(len(values))
    sizes = (-1, -1)
    parts: list[bytes] = []
    for number, value in enumerate(values):
        delta = deltas[number] if number < _DELTAS_MAX else _varint(number)
        if sizes != (len(value), len(delta)):
            sizes = (len(value), len(delta))
            middle = _NO_KEY + _varint(len(value))
            head = _varint(2 + len(delta) + len(middle) + len(value) + 1) + b"\0\0"  # attributes, timestamp delta
        parts += (head, delta, middle, value, b"\0")  # headers
    return b"".join(parts)


def encode_batch(
    values: Sequence[bytes | ControlRecord],
    base_offset: int,
    leader_epoch: int,
    timestamp_ms: int,
    control: bool = False,
) -> bytes:
    """Return a batch of metadata record values (:func:`kjbod.metadata.records.encode_record`) or of control records, as
    Kafka's ``BatchBuilder`` writes it.

    Args:
        values: values of the records, at least one; control records if ``control``.
        base_offset: offset of the first record.
        leader_epoch: raft epoch.
        timestamp_ms: timestamp of all records, ms since 1970.
        control: whether the values are control records.
    """
    if not values:
        raise ValueError("a batch has at least one record")
    data = [value for value in values if not isinstance(value, ControlRecord)]
    if len(data) != (0 if control else len(values)):
        raise ValueError("control records and data do not share a batch")
    out = bytearray(HEADER_BYTES)
    out += _data(data)
    for delta, value in enumerate(values if control else ()):
        assert isinstance(value, ControlRecord)
        _put_record(out, delta, *encode_control(value))
    _HEADER.pack_into(
        out,
        0,
        base_offset,
        len(out) - _LENGTH_FROM,
        leader_epoch,
        _MAGIC,
        0,
        _CONTROL if control else 0,
        len(values) - 1,
        timestamp_ms,
        timestamp_ms,
        -1,
        -1,
        -1,
        len(values),
    )
    _CRC.pack_into(out, _CRC_FROM - _CRC.size, crc32c(memoryview(out)[_CRC_FROM:]))
    return bytes(out)


def join_batches(batches: Sequence[RecordBatch], max_bytes: int) -> list[RecordBatch]:
    """Join small neighbouring batches, as Kafka's ``BatchAccumulator`` joins the records of several requests. Control
    batches stay separate. The records of a joined batch get the timestamp of its last batch.

    Args:
        batches: consecutive data batches as from :func:`encode_batch` (no keys, one timestamp per batch).
        max_bytes: maximum size of a joined batch.
    """
    joined: list[RecordBatch] = []
    run: list[RecordBatch] = []
    size = 0
    for batch in batches:
        fits = run and not (run[0].control or batch.control) and run[0].leader_epoch == batch.leader_epoch
        if run and not (fits and size + batch.size_in_bytes <= max_bytes):
            joined.append(_joined(run))
            run, size = [], 0
        run.append(batch)
        size += batch.size_in_bytes
    return [*joined, _joined(run)] if run else joined


def _joined(run: list[RecordBatch]) -> RecordBatch:
    if len(run) == 1:
        return run[0]
    values = [record.value or b"" for batch in run for record in batch.records]
    raw = encode_batch(values, run[0].base_offset, run[0].leader_epoch, max(batch.timestamp_ms for batch in run))
    batch = read_batch(raw)
    assert batch is not None
    return batch


# ---------------------------------------------------------------- reading


def _read_varint(buf: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint of at most 64 bits, and its end."""
    byte = buf[at]
    if byte < 128:
        return byte >> 1 ^ -(byte & 1), at + 1
    value = byte & 127
    for i in range(1, _VARLONG_BYTES_MAX):
        byte = buf[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value >> 1 ^ -(value & 1), at + i + 1
    raise MalformedMessageError("varint longer than ten bytes")


def _read_sized(buf: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    length, at = _read_varint(buf, at)
    if length < 0:
        return None, at
    if at + length > end:
        raise MalformedMessageError("runs past its record")
    return buf[at : at + length], at + length


def _read_record(buf: bytes, at: int) -> tuple[_Parts, int]:
    length, at = _read_varint(buf, at)
    end = at + length
    if length < 0 or end > len(buf):
        raise MalformedMessageError("runs past its batch")
    # No function calls for the usual record of a metadata log: zero timestamp delta, and no key.
    timestamp_delta, at = _read_varint(buf, at + 1) if buf[at + 1] else (0, at + 2)
    offset_delta, at = _read_varint(buf, at)
    key, at = _read_sized(buf, at, end) if buf[at] != _NO_KEY[0] else (None, at + 1)
    value, at = _read_sized(buf, at, end)
    # This log has no headers; the record's length skips any headers.
    if at > end:
        raise MalformedMessageError("runs past its record")
    return (offset_delta, timestamp_delta, key, value), end


def batch_size(buf: bytes | memoryview, at: int) -> int | None:
    """Return the size of the batch at ``at`` from its header, without any check; None if the header is incomplete."""
    if len(buf) - at < _LENGTH_FROM:
        return None
    return int.from_bytes(buf[at + 8 : at + 12], "big", signed=True) + _LENGTH_FROM


class Header(NamedTuple):
    """Header of a batch, without a check of its checksum."""

    base_offset: int
    leader_epoch: int
    size_in_bytes: int
    whole: bool
    """Whether the whole header is as in a metadata log, and not only the part up to the magic."""


def read_header(buf: bytes | memoryview, at: int) -> Header | None:
    """Return the header at ``at``, of a batch that may be cut off or damaged; None if no batch begins there."""
    if len(buf) - at < HEADER_BYTES:
        return None
    base_offset, length, epoch, magic, _, attributes, last_delta, *_, producer, producer_epoch, sequence, count = (
        _HEADER.unpack_from(buf, at)
    )
    size = length + _LENGTH_FROM
    if magic != _MAGIC or base_offset < 0 or epoch < 0 or size <= HEADER_BYTES:
        return None
    nobody = producer == producer_epoch == sequence == -1
    return Header(base_offset, epoch, size, nobody and not attributes & ~_CONTROL and 0 < count == last_delta + 1)


def read_batch(buf: bytes | memoryview, at: int = 0) -> RecordBatch | None:
    """Return the batch at ``at``; None if it is incomplete.

    Raises:
        CorruptBatchError: an impossible length, another magic, a wrong checksum, compression, impossible counts.
    """
    size = batch_size(buf, at)
    if size is None:
        return None
    if size < HEADER_BYTES:
        raise CorruptBatchError(at, f"length {size - _LENGTH_FROM} is less than a header")
    if len(buf) - at < size:
        return None
    raw = bytes(buf[at : at + size])
    fields = _HEADER.unpack_from(raw)
    base_offset, _, epoch, magic, crc, attributes, last_delta, base_timestamp, timestamp, _, _, _, count = fields
    if magic != _MAGIC:
        raise CorruptBatchError(at, f"magic {magic}, not {_MAGIC}")
    if crc32c(memoryview(raw)[_CRC_FROM:]) != crc:
        raise CorruptBatchError(at, "the checksum is wrong")
    if attributes & _COMPRESSION:
        raise CorruptBatchError(at, "it is compressed, which a metadata log is not")
    if base_offset < 0 or count < 1 or last_delta != count - 1:
        raise CorruptBatchError(at, f"base offset {base_offset}, {count} records, last offset delta {last_delta}")
    return RecordBatch(
        base_offset=base_offset,
        last_offset=base_offset + last_delta,
        leader_epoch=epoch,
        timestamp_ms=timestamp,
        base_timestamp_ms=base_timestamp,
        control=bool(attributes & _CONTROL),
        count=count,
        crc=crc,
        position=at,
        raw=raw,
    )


def iter_batches(buf: bytes | memoryview, at: int = 0) -> Iterator[RecordBatch]:
    """Yield the batches from ``at`` on, up to the end or to the first incomplete batch. The rest of the buffer starts
    at the last batch's ``position + size_in_bytes``.

    Raises:
        CorruptBatchError: as :func:`read_batch`.
    """
    while (batch := read_batch(buf, at)) is not None:
        yield batch
        at += batch.size_in_bytes
