"""Deleting the agents' reports that a lake holds, which nobody but ``--delete-ingested`` asks for.

A file goes when a committed row of the audit says that this file, at this URI and of this size, was kept, and when
silver of all dates between its first and its last line, and of the hour in its name, was compacted and verified (or
was, and retention took it out). Whatever else is in an inbox stays: open files, files of another size than the audit
says, damaged ones that were not kept, foreign ones, links.
"""

import datetime
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kjbod.fleet.lake.files import Files
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS
from kjbod.fleet.tables import AUDIT_FILES, SILVER_EVENTS, SILVER_SAMPLES
from kjbod.fleet.upkeep.account import is_verified, silver_from

if TYPE_CHECKING:
    from pyspark.sql import Row

SPAN_DAYS_MAX = 40
"""A file whose first and last lines are further apart was written by clocks that cannot be trusted: it stays."""

_TABLE = {SAMPLES: SILVER_SAMPLES.full_name, EVENTS: SILVER_EVENTS.full_name}
_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)")
_HOUR = re.compile(r"hour=\d\d")

Progress = Callable[[str], None]
Place = tuple[str, str, str]


def delete_ingested(
    lake: Lake, state: State, files: Files, before: str, progress: Progress, *, dry_run: bool = False
) -> tuple[int, int]:
    """Delete the report files below ``files`` of dates before ``before`` that ``state`` holds. How many, and how many
    old ones stay.

    Raises:
        FleetError: the lake or the inbox cannot be read, or a file not be deleted."""
    deleted = kept = 0
    for stream in STREAMS:
        for date, folder in _old_folders(files, stream, before):
            there = dict(_files_below(files, folder))
            if not there:
                continue
            proven = _proven(lake, state, stream, date)
            held = [path for path, size in there.items() if proven.get(_place(f"{files.root}/{path}")) == size]
            progress(f"{'would delete' if dry_run else 'deleting'} {len(held):,} of {len(there):,} reports in {folder}")
            if not dry_run:
                for path in held:
                    files.delete(path)
            deleted, kept = deleted + len(held), kept + len(there) - len(held)
    return deleted, kept


def _old_folders(files: Files, stream: str, before: str) -> Iterator[tuple[str, str]]:
    if files.is_link(stream):
        return
    for entry in files.list(stream):
        found = _FOLDER.fullmatch(entry.name)
        if entry.is_directory and found and found[1] < before and not files.is_link(f"{stream}/{entry.name}"):
            yield found[1], f"{stream}/{entry.name}"


def _files_below(files: Files, folder: str) -> Iterator[tuple[str, int]]:
    for entry in files.list(folder):
        path = f"{folder}/{entry.name}"
        if files.is_link(path):
            continue
        if not entry.is_directory and not entry.name.startswith(".") and ".jsonl" in entry.name:
            yield path, entry.size
        elif entry.is_directory and _HOUR.fullmatch(entry.name):
            yield from _files_below(files, path)


def _proven(lake: Lake, state: State, stream: str, date: str) -> dict[Place, int]:
    """Files of a stream with lines of this date (by their name) that the lake holds: place to size in bytes."""
    rows = lake.read(AUDIT_FILES.full_name, state, dates=[date])
    kept = rows.where(rows.kept & (rows.stream == stream)).select("uri", "bytes", "date", "first_ts", "last_ts")
    return {
        _place(row["uri"]): row["bytes"]
        for row in kept.toLocalIterator()
        if row["uri"] and _is_held(state, stream, row)
    }


def _is_held(state: State, stream: str, row: "Row") -> bool:
    table = _TABLE[stream]
    return all(date < silver_from(state) or _is_whole(state, table, date) for date in _dates(row))


def _is_whole(state: State, table: str, date: str) -> bool:
    return is_verified(state, table, date) or not state.pieces(table, [date])


def _dates(row: "Row") -> Iterator[str]:
    """Dates of which the file may have rows; one that is never verified where that cannot be said."""
    ends = [ts for ts in (row["first_ts"], row["last_ts"]) if ts is not None]
    if len(ends) < 2 or not 0 <= max(ends) - min(ends) <= SPAN_DAYS_MAX * 86_400_000:
        yield "~"
        return
    yield row["date"]
    first, last = (datetime.datetime.fromtimestamp(ts / 1000, datetime.UTC).date() for ts in (min(ends), max(ends)))
    for days in range((last - first).days + 1):
        yield str(first + datetime.timedelta(days=days))


def _place(uri: str) -> Place:
    """A URI so that two that name the same file are equal: ``file:/x`` and ``file:///x``, quoted or not."""
    parts = urlsplit(uri)
    return parts.scheme, parts.netloc, unquote(parts.path)
