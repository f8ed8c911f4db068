"""Checkpoint files: snapshots of the metadata log, and the bootstrap records of a formatted directory.

A checkpoint is a sequence of batches with offsets from 0 that have nothing to do with the log's: a control batch with
the header and, in a dynamic quorum, KRaftVersion and KRaftVoters; batches of metadata records; a control batch with
the footer (``RecordsSnapshotWriter``). ``<end offset, 20 digits>-<epoch, 10 digits>.checkpoint`` has the state of all
records below the end offset; ``0-0`` carries the first voters; ``bootstrap.checkpoint`` carries what the first
controller is to write.
"""

import contextlib
import dataclasses
import os
import re
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from kjbod.documents import INT32_MAX, INT64_MAX
from kjbod.errors import LogCorruptError, StorageError
from kjbod.files import fsync_directory, read_file, write_all, write_atomically
from kjbod.metadata import versions
from kjbod.metadata.batches import BATCH_BYTES_MAX, HEADER_BYTES, CorruptBatchError, encode_batch, iter_batches
from kjbod.metadata.control_records import ControlRecord, KRaftVersion, KRaftVoters, SnapshotFooter, SnapshotHeader
from kjbod.metadata.records import FeatureLevelRecord, Record, encode_record
from kjbod.metadata.secrets import has_secrets
from kjbod.wire.codec import MalformedMessageError

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
_NAME = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_LEFT_OVER_NAME = re.compile(
    r"[0-9]{20}-[0-9]{10}.*\.checkpoint\.(part|deleted)|[0-9]{20}-[0-9]{10}\.checkpoint.*\.part"
)
_RECORD_OVERHEAD_BYTES = 24
"""At most, per record: length, attributes, deltas, lengths of key and value, headers."""
_RECORDS_PER_STEP = 500
_BATCH_BYTES_OF_STREAM = 64 * 1024
"""A snapshot that is written beside other work is encoded in short steps."""
PARTIAL_SUFFIX = ".part"
"""A real controller removes left-over parts of snapshots by it, and so do we."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class SnapshotId:
    """The log up to where a snapshot reaches: ``end_offset`` is the first that it lacks."""

    end_offset: int
    epoch: int

    @property
    def file_name(self) -> str:
        return f"{self.end_offset:020d}-{self.epoch:010d}.checkpoint"

    @classmethod
    def parse(cls, file_name: str) -> "SnapshotId | None":
        """The id that a file name says, None where it is not a finished snapshot's: an offset has eight bytes, an epoch
        four."""
        match = _NAME.fullmatch(file_name)
        if match is None or int(match[1]) > INT64_MAX or int(match[2]) > INT32_MAX:
            return None
        return cls(int(match[1]), int(match[2]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says."""

    last_contained_log_timestamp_ms: int
    kraft_version: int
    voters: KRaftVoters | None
    records: tuple[Record, ...]


def checkpoints_in(directory: Path) -> dict[SnapshotId, Path]:
    """The finished snapshots of a ``__cluster_metadata-0``, oldest first, 0-0 included.

    Raises:
        OSError: the directory cannot be listed.
    """
    found = ((SnapshotId.parse(path.name), path) for path in directory.iterdir())
    return dict(sorted((snapshot_id, path) for snapshot_id, path in found if snapshot_id is not None))


def left_overs_in(directory: Path) -> list[Path]:
    """Parts of snapshots that were not finished, and snapshots that a real controller marked for deletion
    (``Snapshots.parse``).

    Raises:
        OSError: the directory cannot be listed.
    """
    return [path for path in directory.iterdir() if _LEFT_OVER_NAME.fullmatch(path.name)]


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
    """A checkpoint as bytes.

    Args:
        header_timestamp_ms: time of the last record of the log that the snapshot contains; 0 for bootstrap records.
        kraft: kraft.version and voters; None where the checkpoint says nothing of them.
        records: in the order in which they are to be replayed.
        leader_epoch: the snapshot's epoch.
        timestamp_ms: of the records; ``header_timestamp_ms`` where not given.
        metadata_version: decides the versions of the records; by default what a record among them says, else the
            latest.

    Raises:
        UnsupportedVersionError: a record has something that this metadata.version cannot hold.
    """
    records = tuple(records)
    return b"".join(
        _encoded(
            header_timestamp_ms=header_timestamp_ms,
            kraft=kraft,
            records=records,
            leader_epoch=leader_epoch,
            timestamp_ms=header_timestamp_ms if timestamp_ms is None else timestamp_ms,
            level=_level_of(records) if metadata_version is None else metadata_version,
            batch_bytes=BATCH_BYTES_MAX,
        )
    )


def _encoded(
    *,
    header_timestamp_ms: int,
    kraft: tuple[int, KRaftVoters | None] | None,
    records: Iterable[Record],
    leader_epoch: int,
    timestamp_ms: int,
    level: int,
    batch_bytes: int,
) -> Iterator[bytes]:
    """The batches of a checkpoint."""
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


def write_checkpoint(
    path: Path,
    *,
    header_timestamp_ms: int,
    kraft: tuple[int, KRaftVoters | None] | None,
    records: Iterable[Record],
    leader_epoch: int = 0,
    timestamp_ms: int | None = None,
    metadata_version: int | None = None,
) -> None:
    """Write a checkpoint file durably; arguments as :func:`encode_checkpoint`. Blocks: not for the event loop.

    Raises:
        StorageError: it cannot be written; ``path`` is as it was.
        UnsupportedVersionError: as :func:`encode_checkpoint`.
    """
    data = encode_checkpoint(
        header_timestamp_ms=header_timestamp_ms,
        kraft=kraft,
        records=(records := tuple(records)),
        leader_epoch=leader_epoch,
        timestamp_ms=timestamp_ms,
        metadata_version=metadata_version,
    )
    store_checkpoint(path, data, secret=any(map(has_secrets, records)))


def stream_checkpoint(
    path: Path,
    *,
    header_timestamp_ms: int,
    kraft: tuple[int, KRaftVoters | None] | None,
    records: Iterable[Record],
    leader_epoch: int,
    timestamp_ms: int,
    metadata_version: int,
) -> int:
    """:func:`write_checkpoint` for a snapshot of any size: a batch of it is in memory at a time, and ``records`` is
    drawn as it is written. Gives the file's size. Blocks: not for the event loop.

    Raises:
        OSError: it cannot be written; nothing is left of it.
        UnsupportedVersionError, UnwritableMetadataError: as :func:`encode_checkpoint` and ``records``; likewise.
    """
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    temporary.unlink(missing_ok=True)  # of a crash before
    size = 0
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        try:
            for batch in _encoded(
                header_timestamp_ms=header_timestamp_ms,
                kraft=kraft,
                records=records,
                leader_epoch=leader_epoch,
                timestamp_ms=timestamp_ms,
                level=metadata_version,
                batch_bytes=_BATCH_BYTES_OF_STREAM,
            ):
                write_all(descriptor, batch)
                size += len(batch)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)
    return size


def store_checkpoint(path: Path, data: bytes, *, secret: bool = True) -> None:
    """Write the bytes of a checkpoint durably; ``secret``: only its user may read it, as snapshots always. Blocks: not
    for the event loop.

    Raises:
        StorageError: it cannot be written; ``path`` is as it was.
    """
    # A real controller leaves snapshots read-only.
    snapshot = SnapshotId.parse(path.name) is not None
    mode = 0o400 if snapshot else 0o600 if secret else 0o644
    try:
        write_atomically(path, data, temporary_suffix=PARTIAL_SUFFIX if snapshot else ".tmp", mode=mode)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


# ---------------------------------------------------------------- reading


def decode_checkpoint(data: bytes, name: str) -> Checkpoint:
    """What the bytes of a whole checkpoint say; ``name`` is for the error.

    Raises:
        LogCorruptError: a batch or record does not check, the header or footer is missing, or something follows it.
    """
    steps = decode_in_steps(data, name)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            checkpoint: Checkpoint = end.value
            return checkpoint


def decode_in_steps(data: bytes, name: str) -> Generator[None, None, Checkpoint]:
    """:func:`decode_checkpoint` with a pause every few milliseconds, for an event loop: 100,000 partitions take a
    second or two."""
    controls: list[ControlRecord] = []
    records: list[Record] = []
    position = 0
    try:
        for batch in iter_batches(data):
            position = batch.position
            if controls and isinstance(controls[-1], SnapshotFooter):
                raise CorruptBatchError(position, "data after the footer")
            controls += [control for _, control in batch.control_records()]
            for _, record in batch.metadata_records():
                records.append(record)
                if len(records) % _RECORDS_PER_STEP == 0:
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
        records=tuple(records),
    )


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint file. Blocks: not for the event loop.

    Raises:
        StorageError: it cannot be read.
        LogCorruptError: as :func:`decode_checkpoint`.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    return decode_checkpoint(data, str(path))
