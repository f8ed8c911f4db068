"""Gold against the gold that it is made of: its keys are unique, and the rollup's own functions give it once more.

A difference says that what is there is not what the rollup makes of it (a commit that went wrong, a file that was
exchanged), not whether the rollup counts right: for that see :mod:`kjbod.fleet.upkeep.verify`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.command import spark_reason
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import ALL_DATES, State
from kjbod.fleet.rollup import days, drives
from kjbod.fleet.rollup.drive_past import past_of_days
from kjbod.fleet.tables import (
    DIR_DAY,
    DIR_HOUR,
    DRIVE_DAY,
    DRIVE_LIFE,
    EXPOSURE_DAY,
    GOLD,
    HOST_DAY,
    TABLES,
    Table,
)
from kjbod.fleet.upkeep.checksum import summary

SHOWN_MAX = 20
"""Differences of one kind that are shown; the rest is counted."""
_MADE_OF: Mapping[str, tuple[Table, Callable[[DataFrame], DataFrame]]] = {
    DIR_DAY.full_name: (DIR_HOUR, days.dir_day),
    HOST_DAY.full_name: (DIR_DAY, days.host_day),
    EXPOSURE_DAY.full_name: (DRIVE_DAY, drives.exposure_day),
}


def guarded(of: str, differences: Iterator[str]) -> Iterator[str]:
    """Differences; one more, and no others, where something cannot be read."""
    try:
        yield from differences
    except (PySparkException, Py4JError) as error:
        yield f"{of}: cannot be read: {spark_reason(error)}"


def repeated_keys(lake: Lake, state: State, table: Table, broken: Collection[str]) -> Iterator[str]:
    """Dates of a table of gold with more than one row of a key; pieces that are ``broken`` are left out."""
    pieces = [piece for piece in state.pieces(table.full_name) if piece.path not in broken]
    if table.layer != GOLD or not pieces:
        return
    key = dict.fromkeys((*table.key, "date", *(("hour",) if table.hourly else ())))
    twice = lake.read_pieces(table.full_name, pieces).groupBy(*key).count().where("count > 1")
    for row in twice.groupBy("date").agg(F.count(F.lit(1)).alias("n")).orderBy("date").limit(SHOWN_MAX).collect():
        yield f"{table.full_name} of {row['date']}: {row['n']:,} keys are there more than once"


def dates_of_days(state: State, broken: Collection[str]) -> list[str]:
    """Dates whose gold of days can be computed again."""
    tables = {*_MADE_OF, *(source.full_name for source, _ in _MADE_OF.values())}
    skipped = {piece.date for table in tables for piece in state.pieces(table) if piece.path in broken}
    return sorted({date for table in _MADE_OF for date in state.dates(table)} - skipped)


def days_again(lake: Lake, state: State, date: str) -> Iterator[str]:
    """Differences of the gold of a date from what is made of the gold below it."""
    for name, (source, made) in _MADE_OF.items():
        if not state.pieces(name):  # a table of a later version than this lake's gold
            continue
        again, live = made(lake.read(source.full_name, state, dates=[date])), lake.read(name, state, dates=[date])
        if name == DIR_DAY.full_name and live.where("samples > 0 AND counters_end IS NULL").take(1):
            # Of a kjbod that did not keep the ends of days; the next rollup of the date writes them.
            unknown = F.lit(None).cast(DIR_DAY.columns["counters_end"])
            again, live = again.withColumn("counters_end", unknown), live.withColumn("counters_end", unknown)
        if summary(again, TABLES[name]) != summary(live, TABLES[name]):
            yield f"{name} of {date}: its rows are not those that {source.full_name} gives"


def drive_life_again(lake: Lake, state: State, broken: Collection[str]) -> Iterator[str]:
    """Differences of the lives of drives; not while a rollup has more to do, nor when days that they were made of are
    gone."""
    whole = (*state.pieces(DRIVE_DAY.full_name), *state.pieces(DRIVE_LIFE.full_name))
    if not whole or state.touched or any(piece.path in broken for piece in whole):
        return
    live = lake.read(DRIVE_LIFE.full_name, state, dates=[ALL_DATES])
    seen_from = live.agg(F.min("first_date")).collect()[0][0]
    if seen_from is not None and seen_from < min(state.dates(DRIVE_DAY.full_name), default="~"):
        return
    again = drives.drive_life(past_of_days(lake.read(DRIVE_DAY.full_name, state)))
    if summary(again, DRIVE_LIFE) != summary(live, DRIVE_LIFE):
        yield f"{DRIVE_LIFE.full_name}: its rows are not those that {DRIVE_DAY.full_name} gives"
