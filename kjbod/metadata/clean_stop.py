"""Note of where a metadata log ended when it was closed with all of it on the disk: ``.kjbod_clean_stop``. Blocking
code.

The end of a log cannot be told from the log: one that lost its last segment, or whose last batch was damaged, looks
like one that a crash cut short. After a clean stop there is nothing to cut, so the end is written down, and the file is
removed before the log changes again. Kafka passes over the name (``LogLoader`` takes what has its suffixes).

Whoever leads on this directory opens an epoch first and writes it to ``quorum-state`` (Apache Kafka's controller too,
and ours before it knew this file): a note from before the newest epoch says nothing of the log as it is now.
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
    """End of the log that was on the disk.

    Attributes:
        epoch: the newest leader epoch, of the log or of ``quorum-state``.
        end_offset: after the last record.
        file_name: the last segment.
        size_bytes: of it.
    """

    epoch: int
    end_offset: int
    file_name: str
    size_bytes: int


def write_clean_stop(directory: Path, stop: CleanStop) -> None:
    """Say in a ``__cluster_metadata-0`` where its log ends, durably.

    Raises:
        OSError: it cannot be written.
    """
    content = {"version": _VERSION, **structs.asdict(stop)}
    write_atomically(directory / FILE_NAME, json.dumps(content).encode() + b"\n")


def read_clean_stop(directory: Path) -> CleanStop | None:
    """Note of the last stop; None where there is none, or it cannot be read as one: then nothing is known.

    Raises:
        OSError: it cannot be read.
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
    """The log is about to change: the note is gone for good before that.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        (directory / FILE_NAME).unlink()
    except FileNotFoundError:
        return
    fsync_directory(directory)


def require_whole(directory: Path, stop: CleanStop, *, end_offset: int, snapshot_end_offset: int, found: str) -> None:
    """The log, or its newest snapshot, must reach as far as it did, and no snapshot further. Only where nobody has led
    since.

    Args:
        directory: for the message.
        stop: what the last clean stop said.
        end_offset: how far the log reaches.
        snapshot_end_offset: how far snapshots do.
        found: what is wrong with the last segment, in words that begin with ``,``; or nothing.

    Raises:
        LogCorruptError: it does not; names what is missing and what to do.
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
