"""Checkpoint files: snapshots of the metadata log, and the bootstrap records of a formatted directory.

A checkpoint is a sequence of batches with offsets from 0, independent of the log's offsets: a control batch with the
header and, in a dynamic quorum, KRaftVersion and KRaftVoters; batches of metadata records; a control batch with the
footer (``RecordsSnapshotWriter``). ``<end offset, 20 digits>-<epoch, 10 digits>.checkpoint`` has the state of all
records below the end offset. ``0-0`` has the first voters. ``bootstrap.checkpoint`` has the records that the first
controller must write.
"""

import contextlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator

from msgspec import Struct

from kjbod.documents import INT32_MAX, INT64_MAX
from kjbod.errors import LogCorruptError
from kjbod.metadata import versions
from kjbod.metadata.batches import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    CorruptBatchError,
    RecordBatch,
    encode_batch,
    iter_batches,
)
from kjbod.metadata.control_records import (
    CONTROL_TYPES,
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    SnapshotFooter,
    SnapshotHeader,
    control_type,
    decode_control,
)
from kjbod.metadata.newer import Newer
from kjbod.metadata.records import FeatureLevelRecord, Record, UnknownRecord, encode_record
from kjbod.wire.codec import MalformedMessageError

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_RECORD_OVERHEAD_BYTES = 24
"""Maximum overhead per record: length, attributes, deltas, lengths of key and value, headers."""
_RECORDS_PER_STEP = 500


class SnapshotId(Struct, frozen=True, order=True):
    """Position of a snapshot in the log: ``end_offset`` is the first offset that the snapshot does not contain."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"

    @classmethod
    def parse(cls, file_name: str) -> "SnapshotId | None":
        """Return the id in a file name; None if it is not that of a finished snapshot. An offset has eight bytes, an
        epoch four."""
        match = _NAME.fullmatch(file_name)
        if match is None or int(match[1]) > INT64_MAX or int(match[2]) > INT32_MAX:
            return None
        return cls(int(match[1]), int(match[2]))


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Contents of a checkpoint."""

    last_contained_log_timestamp_ms: int
    kraft_version: int
    voters: KRaftVoters | None
    records: tuple[Record, ...]


# ---------------------------------------------------------------- writing


def encode_checkpoint(
    *,
    header_timestamp_ms: int,
    kraft: tuple[int, KRaftVoters | None] | None,
    records: Iterable[Record],
    leader_epoch: int = 0,
    timestamp_ms: int | None = None,
    metadata_version: int | None = None,
) -> bytes:
    """Encode a checkpoint.

    Args:
        header_timestamp_ms: time of the last record of the log that the snapshot contains; 0 for bootstrap records.
        kraft: kraft.version and voters; None if the checkpoint has neither.
        records: records in the order in which to replay them.
        leader_epoch: the snapshot's epoch.
        timestamp_ms: timestamp of the records; default ``header_timestamp_ms``.
        metadata_version: decides the versions of the records; default: the level of a record among them, else the
            latest.

    Raises:
        UnsupportedVersionError: a record has a value that this metadata.version cannot hold.
    """
    records = tuple(records)
    return b"".join(
        encode_batches(
            header_timestamp_ms=header_timestamp_ms,
            kraft=kraft,
            records=records,
            leader_epoch=leader_epoch,
            timestamp_ms=header_timestamp_ms if timestamp_ms is None else timestamp_ms,
            level=_level_of(records) if metadata_version is None else metadata_version,
            batch_bytes=BATCH_BYTES_MAX,
        )
    )


def encode_batches(
    *,
    header_timestamp_ms: int,
    kraft: tuple[int, KRaftVoters | None] | None,
    records: Iterable[Record],
    leader_epoch: int,
    timestamp_ms: int,
    level: int,
    batch_bytes: int,
) -> Iterator[bytes]:
    """Yield the batches of a checkpoint."""
    head: list[ControlRecord] = [SnapshotHeader(last_contained_log_timestamp=header_timestamp_ms)]
    if kraft is not None:
        head.append(KRaftVersion(k_raft_version=kraft[0]))
        if kraft[1] is not None:
            head.append(kraft[1])
    yield encode_batch(head, 0, leader_epoch, timestamp_ms, control=True)
    offset = len(head)
    values = (encode_record(record, versions.record_version(record, level)) for record in records)
    for batch in _full_batches(values, batch_bytes):
        yield encode_batch(batch, offset, leader_epoch, timestamp_ms)
        offset += len(batch)
    yield encode_batch([SnapshotFooter()], offset, leader_epoch, timestamp_ms, control=True)


def _level_of(records: Iterable[Record]) -> int:
    for record in records:
        if isinstance(record, FeatureLevelRecord) and record.name == versions.METADATA_VERSION:
            return record.feature_level
    return versions.LATEST


def _full_batches(values: Iterable[bytes], batch_bytes: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = HEADER_BYTES
    for value in values:
        need = len(value) + _RECORD_OVERHEAD_BYTES
        if batch and size + need > batch_bytes:
            yield batch
            batch, size = [], HEADER_BYTES
        batch.append(value)
        size += need
    if batch:
        yield batch


# ---------------------------------------------------------------- reading


def decode_checkpoint(data: bytes, name: str, *, observed: bool = False) -> Checkpoint:
    """Decode all bytes of a checkpoint; ``name`` is for errors, ``observed`` as for :func:`decode_in_steps`.

    Raises:
        LogCorruptError: a batch or record fails a check, header or footer is missing, or bytes follow the footer.
    """
    steps = decode_in_steps(data, name, observed=observed)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            checkpoint: Checkpoint = end.value
            return checkpoint


def decode_in_steps(
    data: bytes, name: str, wanted: Callable[[Record], bool] | None = None, *, observed: bool = False
) -> Generator[None, None, Checkpoint]:
    """Decode a checkpoint like :func:`decode_checkpoint`, with a pause every few milliseconds for the event loop:
    100,000 partitions take a second or two.

    Args:
        data: all bytes of the checkpoint.
        name: name for errors.
        wanted: records to return; None: all.
        observed: for an observer, which continues after undecodable records: the result begins with an
            :class:`UnknownRecord` for each kind of these, and has their known fields in their place. Without it they
            are an error.
    """
    controls: list[ControlRecord] = []
    records: list[Record] = []
    newer = Newer()
    position = count = 0
    try:
        for batch in iter_batches(data):
            position = batch.position
            if controls and isinstance(controls[-1], SnapshotFooter):
                raise CorruptBatchError(position, "data after the footer")
            controls += _observed_controls(batch) if observed else [one for _, one in batch.control_records()]
            for _, each in batch.observed_records() if observed else batch.metadata_records():
                record: Record | None = each
                if isinstance(each, UnknownRecord):
                    newer.note(each)
                    record = each.known
                if record is not None and (wanted is None or wanted(record)):
                    records.append(record)
                count += 1
                if count % _RECORDS_PER_STEP == 0:
                    yield
            position += batch.size_in_bytes
    except CorruptBatchError as error:
        raise LogCorruptError(f"checkpoint {name} is corrupt at position {error.position}: {error.why}") from None
    except MalformedMessageError as error:
        raise LogCorruptError(f"checkpoint {name} cannot be read at position {position}: {error}") from None
    if position != len(data):
        raise LogCorruptError(f"checkpoint {name} is corrupt at position {position}: the batch there is cut off")
    if not controls or not isinstance(controls[0], SnapshotHeader):
        raise LogCorruptError(f"checkpoint {name} is corrupt at position 0: it has no header")
    if not isinstance(controls[-1], SnapshotFooter):
        raise LogCorruptError(f"checkpoint {name} is corrupt at position {position}: its end is missing")
    return Checkpoint(
        last_contained_log_timestamp_ms=controls[0].last_contained_log_timestamp,
        kraft_version=next((c.k_raft_version for c in controls if isinstance(c, KRaftVersion)), 0),
        voters=next((c for c in controls if isinstance(c, KRaftVoters)), None),
        records=(*newer.records(), *records),
    )


def _observed_controls(batch: RecordBatch) -> Iterator[ControlRecord]:
    """Return the control records of a batch that an observer knows. Header and footer are recognized by type, whatever
    their version."""
    for record in batch.records if batch.control else ():
        with contextlib.suppress(MalformedMessageError):
            yield decode_control(record.key, record.value)[0]
            continue
        kind = CONTROL_TYPES.get(control_type(record.key))
        if kind is SnapshotHeader:
            yield SnapshotHeader(last_contained_log_timestamp=record.timestamp_ms)
        elif kind is SnapshotFooter:
            yield SnapshotFooter()
