"""Read metadata from files of any owner, even of a running controller: nothing is locked, written or repaired. Blocking
code.

A source is a checkpoint, a log segment, a ``__cluster_metadata-0`` or its log directory. Of a directory, the newest
snapshot is read, then the log after it up to the first incomplete batch: a running controller is writing that batch, or
a killed one left it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from kjbod.config.properties import parse_properties
from kjbod.errors import KjbodError, LogCorruptError, StorageError
from kjbod.file_kinds import DUMP_LOG, kind_by_content, kind_by_name, replica_of
from kjbod.files import read_file
from kjbod.metadata.batches import CorruptBatchError, Header, RecordBatch, read_batch, read_header
from kjbod.metadata.checkpoint_files import checkpoints_in, read_checkpoint
from kjbod.metadata.dump import payload_json
from kjbod.metadata.image import MetadataImage, Replayer, ReplayError, image_of
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.snapshot import SnapshotId
from kjbod.metadata.tree import Provenance

KIND_BYTES_MAX = 64 << 10
"""Bytes of a file that are read to find its kind."""
FRAME_VERSION = b"\1"
_FIRST = SnapshotId(0, 0)
_SEGMENT = ".log"
_DIGITS = 20
"""Digits of an offset in a file's name."""
_CHECKPOINT = ".checkpoint"


class Loaded(Struct, frozen=True):
    """An image, and its end in the log."""

    image: MetadataImage
    provenance: Provenance


class Source(Struct, frozen=True):
    """Files of a source, in the order in which to read them."""

    snapshot: Path | None
    segments: tuple[Path, ...]


def open_source(path: Path) -> Source:
    """Return the files to read at ``path``.

    Raises:
        StorageError: no such files, or the directory cannot be listed.
    """
    try:
        if path.is_dir():
            return _directory(path)
        if not path.exists():
            raise StorageError(f"there is no {path}")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    if path.suffix == _CHECKPOINT:
        return Source(path, ())
    if path.suffix == _SEGMENT:
        return Source(None, (path,))
    if kind := kind_by_name(str(path)) or _kind_of(path):
        raise StorageError(f"{path} is {kind}")
    raise StorageError(f"{path} is neither a {_SEGMENT} nor a {_CHECKPOINT} file, nor a directory")


def _directory(path: Path) -> Source:
    inner = path / DIRECTORY_NAME
    directory = inner if inner.is_dir() else path
    names = (one for one in directory.iterdir() if one.suffix == _SEGMENT)
    segments = sorted(one for one in names if one.stem.isascii() and one.stem.isdecimal() and len(one.stem) == _DIGITS)
    checkpoints = {key: file for key, file in checkpoints_in(directory).items() if key != _FIRST}
    if not segments and not checkpoints:
        raise StorageError(f"there is no metadata log in {path}: neither segments nor snapshots")
    if not checkpoints:
        return Source(None, tuple(segments))
    newest = max(checkpoints)
    # The segment with the end of the snapshot, and all later segments.
    first = max((at for at, one in enumerate(segments) if int(one.stem) <= newest.end_offset), default=0)
    return Source(checkpoints[newest], tuple(segments[first:]))


def _kind_of(path: Path) -> str | None:
    """Return the kind of a file without metadata, by its content."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            data = file.read(KIND_BYTES_MAX)
    except OSError:
        return None
    if kind := kind_by_content(data):
        return kind
    with contextlib.suppress(ValueError):
        if "process.roles" in parse_properties(data):
            return "a server.properties: kjbod metadata dump --config asks the controllers that it names"
    return None


def _why_no_metadata(path: Path, header: Header | None, first: RecordBatch | None = None) -> str | None:
    """Return why a log that begins with this header, and this batch if readable, is no metadata log; None: it may be
    one.

    A metadata log has no compression, no producers and no keys, and a frame version of 1 before each record (KIP-631).
    """
    is_metadata = header is None or header.whole
    if first is not None and not first.control:
        record = next(iter(first.records), None)
        framed = record is None or (record.key is None and (record.value or b"")[:1] == FRAME_VERSION)
        is_metadata = is_metadata and framed
    if is_metadata:
        return None
    replica = replica_of(str(path.absolute()))
    of_what = "a topic" if replica is None else f"the topic partition {replica}"
    return f"a log segment of {of_what}, and no metadata log: {DUMP_LOG}"


def batches_of(path: Path) -> Iterator[RecordBatch]:
    """Yield the batches of one file, up to the first incomplete one.

    Raises:
        StorageError: the file cannot be read.
        LogCorruptError: a complete batch is invalid.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    at = 0
    try:
        while (batch := read_batch(data, at)) is not None:
            if at == 0 and (why := _why_no_metadata(path, read_header(data, 0), batch)):
                raise StorageError(f"{path} is {why}")
            yield batch
            at += batch.size_in_bytes
    except CorruptBatchError as error:
        if at == 0 and (why := _why_no_metadata(path, read_header(data, 0))):
            raise StorageError(f"{path} is {why}") from None
        raise LogCorruptError(f"{path} is corrupt at position {error.position}: {error.why}") from None


def load(path: Path) -> Loaded:
    """Return the state of a source.

    Raises:
        StorageError: the source cannot be read.
        LogCorruptError: a file fails a check; the text has file and position.
        KjbodError: records contradict each other.
    """
    source = open_source(path)
    image, epoch, wall_ms = MetadataImage(), 0, -1
    if source.snapshot is not None:
        checkpoint = read_checkpoint(source.snapshot, observed=True)
        named = SnapshotId.parse(source.snapshot.name)
        last_offset, epoch = (-1, 0) if named is None else (named.end_offset - 1, named.epoch)
        wall_ms = checkpoint.last_contained_log_timestamp_ms
        image = _image(checkpoint.records, last_offset, epoch, source.snapshot)
    replayer = Replayer(image)
    for segment in source.segments:
        wall_ms = _replay(segment, replayer, wall_ms)
    return Loaded(replayer.image, Provenance(replayer.image.offset, replayer.image.epoch, wall_ms))


def _image(records: Any, last_offset: int, epoch: int, path: Path) -> MetadataImage:
    try:
        return image_of(records, offset=last_offset, epoch=epoch)
    except ReplayError as error:
        raise KjbodError(f"cannot replay {path}: {error}") from None


def _replay(segment: Path, replayer: Replayer, wall_ms: int) -> int:
    """Replay the new records of a segment, and return the time of its last record."""
    try:
        for batch in batches_of(segment):
            if batch.last_offset <= replayer.image.offset:
                continue
            if batch.base_offset > replayer.image.offset + 1 and not replayer.in_transaction:
                raise KjbodError(
                    f"{segment} goes on at offset {batch.base_offset}, and what is known ends at "
                    f"{replayer.image.offset}: give the directory that has the snapshot before it"
                )
            for offset, record in batch.observed_records():
                if offset > replayer.image.offset:
                    replayer.replay(offset, batch.leader_epoch, record)
            if batch.control:
                replayer.skip(batch.last_offset, batch.leader_epoch)
            wall_ms = batch.timestamp_ms
    except ReplayError as error:
        raise KjbodError(f"cannot replay {segment}: {error}") from None
    return wall_ms


def dump_source(path: Path, *, layout: bool = False) -> Iterator[dict[str, Any]]:
    """Yield an object per record of a source: ``file``, ``offset``, ``timestamp``, ``epoch`` and the payload of
    :func:`kjbod.metadata.dump.payload_json`. Offsets of a snapshot are relative to the file. With ``layout`` also yield
    ``{"path": Path}`` at the start of a file, and ``{"batch": RecordBatch}`` at that of a batch.

    Raises:
        StorageError, LogCorruptError: as :func:`batches_of`.
    """
    source = open_source(path)
    end = 0
    if source.snapshot is not None:
        yield from _dump_file(source.snapshot, 0, layout)
        named = SnapshotId.parse(source.snapshot.name)
        end = 0 if named is None else named.end_offset
    for segment in source.segments:
        yield from _dump_file(segment, end, layout)


def _dump_file(path: Path, start_offset: int, layout: bool) -> Iterator[dict[str, Any]]:
    if layout:
        yield {"path": path}
    for batch in batches_of(path):
        if batch.last_offset < start_offset:
            continue
        if layout:
            yield {"batch": batch}
        for record in batch.records:
            where = {"file": path.name, "offset": record.offset, "timestamp": record.timestamp_ms}
            yield where | {"epoch": batch.leader_epoch} | payload_json(batch, record)
