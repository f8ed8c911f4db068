"""Record the end of a metadata log that was closed with all of it on the disk: ``.kjbod_clean_stop``. Blocking code.

The log alone does not show its end: a log that lost its last segment, or whose last batch was damaged, looks like one
cut short by a crash. After a clean stop there is nothing to cut, so the end is written to this file. The file is
removed before the log changes again. Kafka ignores the file (``LogLoader`` reads only its own suffixes).

A controller that becomes leader on this directory first opens an epoch and writes it to ``quorum-state``. That is true
for Apache Kafka and for older versions of kjbod too. So a file from before the newest epoch is ignored.
"""

import json
import re
from pathlib import Path

from msgspec import Struct, structs

from kjbod.documents import INT32_MAX, INT64_MAX, int_of, parse_document, text_of
from kjbod.errors import LogCorruptError
from kjbod.files import fsync_directory, read_file, write_atomically

FILE_NAME = ".kjbod_clean_stop"
_VERSION = 1
_BYTES_MAX = 64 * 1024
_SEGMENT_NAME = re.compile(r"[0-9]{20}\.log")


class CleanStop(Struct, frozen=True, kw_only=True):
    """End of a log that is completely on the disk.

    Attributes:
        epoch: the newest leader epoch, of the log or of ``quorum-state``.
        end_offset: offset after the last record.
        file_name: name of the last segment.
        size_bytes: size of the last segment.
    """

    epoch: int
    end_offset: int
    file_name: str
    size_bytes: int


def write_clean_stop(directory: Path, stop: CleanStop) -> None:
    """Write the end of the log of a ``__cluster_metadata-0``, durably.

    Raises:
        OSError: the file cannot be written.
    """
    content = {"version": _VERSION, **structs.asdict(stop)}
    write_atomically(directory / FILE_NAME, json.dumps(content).encode() + b"\n")


def read_clean_stop(directory: Path) -> CleanStop | None:
    """Return the end at the last clean stop; None if there is no such file, or it is malformed.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        content = parse_document(read_file(directory / FILE_NAME, bytes_max=_BYTES_MAX))
        if content.pop("version") != _VERSION:
            return None
        name = text_of(content.pop("file_name"))
        numbers = {
            "epoch": int_of(content.pop("epoch"), 0, INT32_MAX),
            "end_offset": int_of(content.pop("end_offset"), 0, INT64_MAX),
            "size_bytes": int_of(content.pop("size_bytes"), 0, INT64_MAX),
        }
        return CleanStop(file_name=name, **numbers) if _SEGMENT_NAME.fullmatch(name) and not content else None
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def remove_clean_stop(directory: Path) -> None:
    """Remove the file durably, before the log changes.

    Raises:
        OSError: the file cannot be removed.
    """
    try:
        (directory / FILE_NAME).unlink()
    except FileNotFoundError:
        return
    fsync_directory(directory)


def require_whole(directory: Path, stop: CleanStop, *, end_offset: int, snapshot_end_offset: int, found: str) -> None:
    """Require that the log or its newest snapshot reaches its end at the last clean stop, and that no snapshot goes
    further. Only valid if no leader was elected since.

    Args:
        directory: directory for the message.
        stop: end at the last clean stop.
        end_offset: end of the log now.
        snapshot_end_offset: end of the snapshots now.
        found: defect of the last segment, as words that begin with ``,``; or empty.

    Raises:
        LogCorruptError: the requirement is not met; the text has the missing offsets and the remedy.
    """
    reached = max(end_offset, snapshot_end_offset)
    was = f"when kjbod controller stopped, {stop.file_name} with {stop.size_bytes} bytes was the end of the log{found}"
    if reached < stop.end_offset:
        raise LogCorruptError(
            f"{directory} has lost the records from offset {reached} to {stop.end_offset - 1}: {was}. Nothing was "
            f"changed: restore it from a backup; to go on without these records for good, remove "
            f"{directory / FILE_NAME}"
        )
    if snapshot_end_offset > stop.end_offset:
        raise LogCorruptError(
            f"{directory} has a snapshot of another history: it ends at offset {snapshot_end_offset}, and {was}, at "
            f"offset {stop.end_offset}; nobody has led since. Nothing was changed: move the snapshot out of the "
            "directory"
        )
