"""Days of drives, summed up over many dates in few rows: ``gold.drive_past``.

The life of a drive, and what a new day makes of it, depend on all days before. So that an hour of a fleet that is
watched for years costs no more than its first, those days are kept summed up: a row for each drive at a place, under a
directory id, and in a *block* of :data:`BLOCK_DAYS` days, of which it has a bit for each. Bits of two rows are joined
by *or*: a day counts once, whether the drive has one directory or two, and whether its serial number was known on it.

The sum is of the dates before :func:`past_until`, so that hours that come late do not touch it, and it goes forward
with the newest date that most drives have. It *counts* as long as exactly those pieces of ``gold.drive_day`` count of
which it was made (:class:`PastNote`): whatever made others of them, a late hour, retention, or a kjbod that knows of no
such sum, the next rollup makes it anew.
"""

import datetime
import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.lake.state import ALL_DATES, Piece, State
from kjbod.fleet.rollup.merge import shaped
from kjbod.fleet.tables import DRIVE_PAST

BLOCK_DAYS = 60
"""Days of a block, from 1970-01-01 on: as many bits as a BIGINT has without its sign, in whole months."""
LATE_DAYS = 2
"""Dates before the newest one that are not summed up yet: hours that come late are of these."""
AHEAD_SHARE = 10
"""Less than one of so many drives of the largest date are those of clocks that are ahead."""
_NOTE = "drive-past"


@dataclass(frozen=True, slots=True)
class PastNote:
    """Note of what ``gold.drive_past`` was made of."""

    until: str
    """All dates before this one are in it."""
    digest: str
    """Of their pieces of ``gold.drive_day``."""

    @classmethod
    def of(cls, until: str, pieces: Iterable[Piece]) -> "PastNote":
        """The note of a sum of those of ``pieces`` that are of dates before ``until``."""
        paths = sorted(piece.path for piece in pieces if piece.date < until)
        return cls(until, hashlib.sha256("\n".join(paths).encode()).hexdigest()[:32])

    @classmethod
    def in_state(cls, state: State) -> "PastNote | None":
        """The note of a state; None: it has none."""
        until, _, digest = state.notes.get(_NOTE, "").partition(" ")
        return cls(until, digest) if digest else None

    def counts(self, pieces: Iterable[Piece]) -> bool:
        """Whether it is of these pieces of ``gold.drive_day``, as far as they are of dates before :attr:`until`."""
        return self == self.of(self.until, pieces)

    def to_notes(self) -> dict[str, str]:
        """As notes of a state."""
        return {_NOTE: f"{self.until} {self.digest}"}


def past_until(pieces: Collection[Piece]) -> str:
    """The date before which days are summed up, of all pieces of ``gold.drive_day``, of which there are some. Dates of
    few drives, which are those of clocks that are ahead, are not the newest one: the sum would be of use no more."""
    rows: dict[str, int] = {}
    for piece in pieces:
        rows[piece.date] = rows.get(piece.date, 0) + piece.rows
    newest = max(date for date, count in rows.items() if AHEAD_SHARE * count >= max(rows.values()))
    return (datetime.date.fromisoformat(newest) - datetime.timedelta(LATE_DAYS)).isoformat()


def past_of_days(drives: DataFrame) -> DataFrame:
    """Rows like those of ``gold.drive_past``, one for each of ``gold.drive_day``."""
    day = F.unix_date(F.to_date("date"))
    bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), F.pmod(day, F.lit(BLOCK_DAYS)).cast("int"))
    has_failed = F.col("failed") > 0
    of_day = drives.withColumns(
        {
            "block": block_of(day),
            "seen": bit,
            "failed": F.when(has_failed, bit).otherwise(F.lit(0)),
            "first_date": F.col("date"),
            "last_date": F.col("date"),
            "failed_date": F.when(has_failed, F.col("date")),
            "last_ts": F.coalesce("last_ts", F.lit(0)),
            "model_date": F.when(F.col("model").isNotNull(), F.col("date")),
            "first_poh": F.col("smart_poh"),
            "last_poh": F.col("smart_poh"),
            "date": F.lit(ALL_DATES),
        }
    )
    return shaped(of_day, DRIVE_PAST.columns)


def merged_past(rows: DataFrame) -> DataFrame:
    """Rows of ``gold.drive_past`` of such rows of different dates: one for each key."""
    whole = (
        rows.groupBy(*DRIVE_PAST.key)
        .agg(
            *(F.bit_or(name).alias(name) for name in ("seen", "failed")),
            *(F.min(name).alias(name) for name in ("first_date", "failed_date", "first_poh")),
            F.max("last_poh").alias("last_poh"),
            F.max(F.struct("last_date", "last_ts", "well")).alias("_last"),
            F.max(F.when(F.col("model").isNotNull(), F.struct("model_date", "model"))).alias("_model"),
        )
        .select("*", "_last.*", "_model.*", F.lit(ALL_DATES).alias("date"))
    )
    return shaped(whole, DRIVE_PAST.columns)


def block_of(day: Column) -> Column:
    """The block of a day since 1970-01-01."""
    return F.floor(day / BLOCK_DAYS).cast("bigint")


def days_after(seen: Column, block: Column, day: Column) -> Column:
    """Count the days of ``seen``, of a block, that are after a day; 0 where it is null."""
    later = F.call_function("shiftrightunsigned", seen, (F.pmod(day, F.lit(BLOCK_DAYS)) + 1).cast("int"))
    left = F.when(block > block_of(day), seen).when(block == block_of(day), later).otherwise(F.lit(0))
    return F.bit_count(left)
