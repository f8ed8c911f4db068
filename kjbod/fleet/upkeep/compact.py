"""Compacting: a date's many small pieces become one, of few large files, with each row once.

The new piece replaces exactly the pieces that it was made of, in one commit; a batch that came meanwhile stays a piece
beside it until the next time. Before that commit the files are read again, and their rows compared with those of the
old pieces: as many, and the same (:mod:`kjbod.fleet.upkeep.checksum`). What was replaced is retired, not deleted: those
who read an older state finish. A kill at any moment leaves the old pieces or the new one; files that nothing names are
deleted by retention.
"""

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import ALL_DATES, LostPiecesError, Piece, State
from kjbod.fleet.lake.writer import LakePieces, piece_bytes
from kjbod.fleet.tables import AUDIT, SILVER, TABLES, Table
from kjbod.fleet.upkeep.account import Compacted, compacted, is_verified, with_compacted
from kjbod.fleet.upkeep.checksum import Summary, distinct_summary, summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ATTEMPTS = 3
"""How often a date is tried whose pieces somebody else replaces meanwhile."""
_PLACE = ("host", "broker_id", "path")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Done:
    """A date of a table that was compacted."""

    table: str
    date: str
    pieces: int
    """That were replaced."""
    rows: int
    """That are there now."""
    repeated: int
    """Rows that are not there any more, since others have the same key."""


def today_of(now_ms: int) -> datetime.date:
    """The date of a wall time, UTC."""
    return datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).date()


def dates_of(state: State) -> list[str]:
    """All dates that have data, in order."""
    return sorted({date for table in TABLES for date in state.dates(table) if date != ALL_DATES})


def dates_to_compact(state: State, days: Sequence[str], older_than: int, today: datetime.date) -> list[str]:
    """``days``, or where there are none, all that ended ``older_than`` days before the end of ``today`` or earlier."""
    there = dates_of(state)
    if days:
        return [date for date in there if date in days]
    last = str(today - datetime.timedelta(days=older_than))
    return [date for date in there if date <= last]


def dates_ahead(state: State, today: datetime.date) -> list[str]:
    """Dates that are yet to come, by more than the time zones and clocks of honest hosts explain: they never grow old,
    and are compacted when they are named."""
    tomorrow = str(today + datetime.timedelta(days=1))
    return [date for date in dates_of(state) if date > tomorrow]


def to_compact(state: State, table: Table, date: str) -> list[Piece]:
    """Pieces of a date that are to become one; none where there is nothing to do."""
    pieces = state.pieces(table.full_name, [date])
    if table.layer == SILVER:
        return [] if is_verified(state, table.full_name, date) else pieces
    if len(pieces) < 2 or not (table.hourly or table.layer == AUDIT):
        return []
    # Gold of this date is made again soon: what is compacted now would be for nothing.
    return [] if any(hour.startswith(date) for hour in state.touched) and table.layer != AUDIT else pieces


def compact(lake: Lake, dates: Iterable[str], progress: Progress) -> list[Done]:
    """Compact all tables of some dates.

    Raises:
        FleetError: a piece cannot be read, or has not the rows that it should have. What was compacted before it is."""
    tried = (_compact_date(lake, table, date, progress) for date in dates for table in TABLES.values())
    return [done for done in tried if done]


def _compact_date(lake: Lake, table: Table, date: str, progress: Progress) -> Done | None:
    for _ in range(ATTEMPTS):
        state = lake.state()
        pieces = to_compact(state, table, date)
        if not pieces:
            return None
        progress(f"compacting {table.full_name} of {date}: {sum(p.rows for p in pieces):,} rows, {len(pieces)} pieces")
        try:
            return _compact_pieces(lake, table, date, pieces)
        except LostPiecesError:
            progress(f"{table.full_name} of {date}: somebody else replaced a piece of it meanwhile; again")
    raise FleetError(f"{lake.uri}: {table.full_name} of {date} is replaced all the time: compact it later")


def _compact_pieces(lake: Lake, table: Table, date: str, pieces: list[Piece]) -> Done:
    place = [name for name in _PLACE if table.layer == SILVER and name in table.key]
    writer = LakePieces(lake, piece_bytes(lake, pieces), is_spread=len(place) == len(_PLACE))
    before = lake.read_pieces(table.full_name, pieces)
    try:
        writer.write(table, _once(before, table, writer), [date])
        hours = tuple(sorted({hour for piece in pieces for hour in piece.hours}))
        count = sum(piece.rows for piece in pieces)
        made = Piece(writer.path, date, hours, count)
        after = _verified(lake, table, pieces, made, before)
        made = Piece(writer.path, date, hours, after.rows)
        _commit(lake, table, pieces, made, after, count - after.rows)
    except (LostPiecesError, _DiffersError):
        lake.files.delete(writer.path)  # no state names it, and none will
        raise
    return Done(table.full_name, date, len(pieces), after.rows, count - after.rows)


class _DiffersError(FleetError):
    """Files that were written are not what they were made of."""


def _once(rows: "DataFrame", table: Table, writer: LakePieces) -> "DataFrame":
    from kjbod.fleet.silver import each_once

    if table.layer != SILVER:
        return rows
    # Rows with the same key go into the same file, so each once and in order costs one exchange, not two.
    return each_once(rows.repartitionByRange(writer.files, *_PLACE) if writer.is_spread else rows, table)


def _verified(lake: Lake, table: Table, pieces: list[Piece], made: Piece, before: "DataFrame") -> Summary:
    wanted, count = distinct_summary(before, table) if table.layer == SILVER else (summary(before, table), -1)
    count = wanted.rows if count < 0 else count
    if count != made.rows:
        raise _DiffersError(
            f"{lake.uri}: {table.full_name} of {made.date} has {count:,} rows and its state says {made.rows:,}:"
            " kjbod fleet verify names the pieces; nothing was changed"
        )
    written = summary(lake.read_pieces(table.full_name, [made]), table)
    if written != wanted:
        raise _DiffersError(
            f"{lake.uri}: {table.full_name} of {made.date} was not written as it was read ({written.rows:,} rows of"
            f" {wanted.rows:,}): nothing was changed; look at the disks and memory of this machine, and try again"
        )
    return written


def _commit(lake: Lake, table: Table, pieces: list[Piece], made: Piece, written: Summary, repeated: int) -> None:
    name = table.full_name

    def change(state: State) -> State:
        after = state.with_pieces(name, [made] if made.rows else [], replaced=pieces)
        note = compacted(state, name, made.date)
        total = repeated + (note.repeated if note else 0)
        done = Compacted(made.path, written.rows, written.checksum, total)
        return with_compacted(after, name, made.date, done)

    lake.commit(change, "compact")
