"""Writers of tables: into pieces of the lake, or into tables of an Iceberg catalog.

A :class:`Writer` keeps one promise: readers see the rows of a date that were there before, or the new ones, never a
part. How they keep it is what differs. The lake writes files that nobody reads until a state names them
(:mod:`kjbod.fleet.lake.state`), which needs nothing but a file system that can create a file only if it is not there. A
catalog brings the same itself: a snapshot for each commit, its own retention of old ones, its own compaction.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import BATCH, Piece
from kjbod.fleet.tables import AUDIT_FILES, AUDIT_QUARANTINE, SILVER, SILVER_EVENTS, SILVER_SAMPLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILE_BYTES = 128 << 20
"""Compressed size of a file that compacting aims at: large enough that opening it costs nothing beside reading it,
small enough that a query on a few hosts leaves most of them out."""

_PLACE = ("host", "broker_id", "path", "ts")
SORTED_BY: dict[str, tuple[str, ...]] = {
    SILVER_SAMPLES.full_name: _PLACE,
    SILVER_EVENTS.full_name: _PLACE,
    AUDIT_FILES.full_name: ("host", *AUDIT_FILES.key),
    AUDIT_QUARANTINE.full_name: AUDIT_QUARANTINE.key,
}
"""Order of rows in compacted files, where it is not that of the key: what is asked for together lies together."""


class Writer(Protocol):
    """Takes rows of a table."""

    def write(self, table: Table, rows: "DataFrame", dates: Iterable[str]) -> None:
        """Put ``rows``, which are all of a table's rows of these dates, in the place of those that are there.

        Raises:
            FleetError: it was refused, and readers see what they saw before."""


class LakePieces:
    """Writes a piece into a new directory of the lake. It counts when a state names it: :attr:`path`."""

    def __init__(self, lake: Lake, input_bytes: int = 0, *, is_spread: bool = False) -> None:
        """For rows whose files have so many bytes now; ``is_spread``: they are shared out over :attr:`files` partitions
        already, by the beginning of their order."""
        self.lake = lake
        self.is_spread = is_spread
        self.files = max(1, math.ceil(input_bytes / FILE_BYTES))
        self.path = ""

    def write(self, table: Table, rows: "DataFrame", dates: Iterable[str]) -> None:
        """Write rows of one date: see :class:`Writer`."""
        (date,) = dates
        self.path = self.lake.new_directory(table.full_name, f"date={date}")
        order = SORTED_BY.get(table.full_name, table.key)
        columns = [name for name in table.columns if table.layer != SILVER or name not in ("date", "hour")]
        spread = rows if self.is_spread else rows.repartitionByRange(self.files, *order)
        spread.sortWithinPartitions(*order).select(*columns).write.option("compression", "zstd").parquet(
            self.lake.full(self.path)
        )


def piece_bytes(lake: Lake, pieces: Iterable[Piece]) -> int:
    """Size of the files of some pieces."""
    folders = (
        f"{piece.path}/hour={hour}" if hour else piece.path
        for piece in pieces
        for hour in (piece.hours if piece.form == BATCH else ("",))
    )
    return sum(entry.size for folder in folders for entry in lake.files.list(folder) if not entry.is_directory)
