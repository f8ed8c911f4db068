"""List, read and durably write checkpoint files. Blocking code.

The format of their bytes is in :mod:`.snapshot`.
"""

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from kjbod.errors import StorageError
from kjbod.files import fsync_directory, read_file, write_all, write_atomically
from kjbod.metadata.control_records import KRaftVoters
from kjbod.metadata.records import Record
from kjbod.metadata.secrets import has_secrets
from kjbod.metadata.snapshot import Checkpoint, SnapshotId, decode_checkpoint, encode_batches, encode_checkpoint

_LEFT_OVER_NAME = re.compile(
    r"[0-9]{20}-[0-9]{10}.*\.checkpoint\.(part|deleted)|[0-9]{20}-[0-9]{10}\.checkpoint.*\.part"
)
_BATCH_BYTES_OF_STREAM = 64 * 1024
"""Size of the short encoding steps of a snapshot that is written beside other work."""
PARTIAL_SUFFIX = ".part"
"""Suffix of unfinished snapshots; Kafka's controllers remove such files too."""


def checkpoints_in(directory: Path) -> dict[SnapshotId, Path]:
    """Return the finished snapshots of a ``__cluster_metadata-0``, oldest first, including 0-0.

    Raises:
        OSError: the directory cannot be listed.
    """
    found = ((SnapshotId.parse(path.name), path) for path in directory.iterdir())
    return dict(sorted((snapshot_id, path) for snapshot_id, path in found if snapshot_id is not None))


def left_overs_in(directory: Path) -> list[Path]:
    """Return unfinished parts of snapshots, and snapshots that Kafka's controller marked for deletion
    (``Snapshots.parse``).

    Raises:
        OSError: the directory cannot be listed.
    """
    return [path for path in directory.iterdir() if _LEFT_OVER_NAME.fullmatch(path.name)]


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
        StorageError: the file cannot be written; ``path`` is unchanged.
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
    """Write a checkpoint like :func:`write_checkpoint`, for snapshots of any size: only one batch is in memory at a
    time, and ``records`` is consumed while writing. Return the file's size. Blocks: not for the event loop.

    Raises:
        OSError: the file cannot be written; no part of it remains.
        UnsupportedVersionError, UnwritableMetadataError: as :func:`encode_checkpoint` and ``records``; likewise.
    """
    temporary = path.with_name(path.name + PARTIAL_SUFFIX)
    temporary.unlink(missing_ok=True)  # left by a crash
    size = 0
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        try:
            for batch in encode_batches(
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
    """Write the bytes of a checkpoint durably. With ``secret``, only the file's user may read it, as for every
    snapshot. Blocks: not for the event loop.

    Raises:
        StorageError: the file cannot be written; ``path`` is unchanged.
    """
    # Kafka's controller makes snapshots read-only.
    snapshot = SnapshotId.parse(path.name) is not None
    mode = 0o400 if snapshot else 0o600 if secret else 0o644
    try:
        write_atomically(path, data, temporary_suffix=PARTIAL_SUFFIX if snapshot else ".tmp", mode=mode)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def read_checkpoint(path: Path, *, observed: bool = False) -> Checkpoint:
    """Read a checkpoint file; ``observed`` as :func:`~kjbod.metadata.snapshot.decode_in_steps`. Blocks: not for the
    event loop.

    Raises:
        StorageError: the file cannot be read.
        LogCorruptError: as :func:`decode_checkpoint`.
    """
    try:
        data = read_file(path)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    return decode_checkpoint(data, str(path), observed=observed)
