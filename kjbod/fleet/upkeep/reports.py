"""Deleting the agents' old reports that a lake holds, which nobody but ``--delete-ingested`` asks for.

A file of a folder of an old date goes when the lake holds it, by the same proof as for ingest
(:mod:`kjbod.fleet.ingest.deletion`), and when silver of all dates between its first and its last line was compacted and
verified, or was, and retention took it out. Whatever else is in an inbox stays: open files, those that were altered
since or not kept, foreign ones, links.
"""

import datetime
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kjbod.fleet.ingest.deletion import files_before, held
from kjbod.fleet.ingest.inbox import Inbox
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State
from kjbod.fleet.schema import EVENTS, SAMPLES
from kjbod.fleet.session import needs_java
from kjbod.fleet.tables import SILVER_EVENTS, SILVER_SAMPLES
from kjbod.fleet.upkeep.account import is_verified, silver_from
from kjbod.output import plural

if TYPE_CHECKING:
    from pyspark.sql import Row

SPAN_DAYS_MAX = 40
"""A file whose first and last lines are further apart was written by clocks that cannot be trusted: it stays."""

_TABLE = {SAMPLES: SILVER_SAMPLES.full_name, EVENTS: SILVER_EVENTS.full_name}

Progress = Callable[[str], None]


def delete_ingested(
    lake: Lake, inbox: str, before: str, progress: Progress, *, dry_run: bool = False
) -> tuple[int, int]:
    """Delete the report files of an inbox, of dates before ``before``, that the lake holds. How many, and how many old
    ones stay.

    Raises:
        FleetError: the lake or the inbox cannot be read, or not through Spark Connect."""
    needs_java(lake.spark, "--delete-ingested")
    old = files_before(lake, inbox, before)
    if not old:
        return 0, 0
    state, inbox_files = lake.state(), Inbox(lake.spark, inbox)
    progress(f"{inbox}: reading what the lake holds of {plural(old, 'report')} of before {before}")
    deleted = 0
    for uri in held(lake, inbox, before, lambda file: is_whole(state, file["stream"], file)):
        deleted += dry_run or inbox_files.delete_uri(uri)
    return deleted, old - deleted


def is_whole(state: State, stream: str, file: "Row | dict[str, int | None]") -> bool:
    """Whether silver of all dates between the first and the last good line of a file is verified, or was and is gone:
    what came late for a date that retention took out is there until it is compacted as well."""
    table = _TABLE[stream]
    dates = list(_dates(file["first_ts"], file["last_ts"]))
    return bool(dates) and all(
        is_verified(state, table, date) or (date < silver_from(state) and not state.pieces(table, [date]))
        for date in dates
    )


def _dates(first_ts: int | None, last_ts: int | None) -> Iterator[str]:
    """None where it cannot be said."""
    if first_ts is None or last_ts is None or not 0 <= last_ts - first_ts <= SPAN_DAYS_MAX * 86_400_000:
        return
    first, last = (datetime.datetime.fromtimestamp(ts / 1000, datetime.UTC).date() for ts in (first_ts, last_ts))
    for days in range((last - first).days + 1):
        yield str(first + datetime.timedelta(days=days))
