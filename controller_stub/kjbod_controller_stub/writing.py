"""Encode records for the log: their values, in batches that Kafka can read."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.batches import BATCH_BYTES_MAX
from kjbod.metadata.records import (
    AnyRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    EndTransactionRecord,
    PartitionRecordRef,
    Record,
    encode_alike,
    encode_record,
)

RECORD_OVERHEAD_BYTES = 16
"""Upper bound of the bytes that a batch adds to a record's value."""


class Write(Struct, frozen=True):
    """Encoded records that follow the log's end: one tuple of values per batch."""

    base_offset: int
    batches: tuple[tuple[bytes, ...], ...]

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + sum(len(batch) for batch in self.batches)


def prepare(
    records: Sequence[AnyRecord], base_offset: int, metadata_version: int, *, atomic: bool
) -> tuple[Sequence[AnyRecord], Write]:
    """Return records in the form for the replay, and in the form written from ``base_offset`` on.

    Those that are ``atomic`` and do not fit into one batch become a metadata transaction (KIP-868), where the
    metadata.version knows those.
    """
    values = _values(records, metadata_version)
    split = sum(map(len, values)) + len(values) * RECORD_OVERHEAD_BYTES > BATCH_BYTES_MAX
    if split and atomic and metadata_version >= versions.TRANSACTIONS:
        begin, end = BeginTransactionRecord(name="kjbod"), EndTransactionRecord()
        records = [begin, *records, end]
        values = [_encode(begin, metadata_version), *values, _encode(end, metadata_version)]
    return records, Write(base_offset, tuple(_batches(values)))


def _values(records: Iterable[AnyRecord], metadata_version: int) -> list[bytes]:
    encoders: dict[int, Callable[[Uuid, int], bytes]] = {}
    values = []
    for record in records:
        if isinstance(record, PartitionRecordRef):
            like, topic_id, partition_id = record
            encode = encoders.get(id(like))
            if encode is None:
                version = versions.record_version(like, metadata_version)
                encode = encoders[id(like)] = encode_alike(like, version)
            values.append(encode(topic_id, partition_id))
        else:
            values.append(_encode(record, metadata_version))
    return values


def _encode(record: Record, metadata_version: int) -> bytes:
    version = versions.record_version(record, metadata_version)
    if isinstance(record, BrokerRegistrationChangeRecord) and _says_nothing(record):
        # Report of the last directory under Kafka's rules, which Kafka's controller writes in this version.
        version = versions.record_version_max(BrokerRegistrationChangeRecord, versions.DIRECTORY_ASSIGNMENT)
    return encode_record(record, version)


def _says_nothing(record: BrokerRegistrationChangeRecord) -> bool:
    return not (record.fenced or record.in_controlled_shutdown or record.log_dirs) and record.cordoned_log_dirs is None


def _batches(values: list[bytes]) -> Iterator[tuple[bytes, ...]]:
    """Return values in batches that Kafka can read."""
    batch: list[bytes] = []
    size = 0
    for value in values:
        size += len(value) + RECORD_OVERHEAD_BYTES
        if batch and size > BATCH_BYTES_MAX:
            yield tuple(batch)
            batch, size = [], len(value) + RECORD_OVERHEAD_BYTES
        batch.append(value)
    yield tuple(batch)
