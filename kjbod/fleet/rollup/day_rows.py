"""Rows of ``gold.dir_day`` of some dates: of what they were before and what is new, where that is enough.

A day that is made of all of its hours costs more with each of them, and mostly only the last one is new. So the rows of
``gold.dir_hour`` that a step has made are told apart:

===========================================  ===========================================================================
a directory's row of an hour                 what becomes of its day
===========================================  ===========================================================================
was not there before, and is later than all  is what it was, and this row (:func:`kjbod.fleet.rollup.days.dir_day` with
                                             ``before``)
is what it was: others of its hour are new   is what it was
is another, is gone, or is not later         is made of all hours, as are those of the whole host
===========================================  ===========================================================================

The last is what late reports and clocks that were set back do to a few hosts; so are days of which
:data:`kjbod.fleet.rollup.days.UNSURE` says that adding may not give the same. Where those hosts are many, all days are
made of all hours.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import Piece, State
from kjbod.fleet.rollup import days
from kjbod.fleet.tables import DIR_DAY, DIR_HOUR, Table

HOSTS_MAX = 200
"""Hosts whose days are made of all hours beside those of others: their names are in a query."""
ANEW_MAX = 3
"""Hours of a date that were there before: to compare more costs as much as making the day of all hours."""
ALONE = 10
"""An hour with so many times as many directories as all others of its date in a step is alone: of those that have
another one there, the days are made of all hours."""
_KEY = (*DIR_HOUR.key, "date", "hour")


class Read(Protocol):
    """Reads a table as it is after the commit, of dates, or of hours."""

    def __call__(
        self, table: Table, dates: Sequence[str] | None = None, hours: Sequence[str] | None = None
    ) -> DataFrame:
        """The rows."""


def day_rows(
    lake: Lake,
    seen: State,
    made: Sequence[Piece],
    hours: Iterable[str],
    read: Read,
    persisted: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Rows of ``gold.dir_day`` of the dates of ``hours``, which were made anew since ``seen``.

    Args:
        made: their pieces of ``gold.dir_hour``.
        persisted: keeps rows until the step is over.
    """
    by_date: dict[str, set[str]] = {}
    for hour in hours:
        by_date.setdefault(hour[:10], set()).add(hour)
    goes_on = {date: of_date for date, of_date in by_date.items() if _goes_on(seen, date, of_date)}
    whole = sorted(by_date.keys() - goes_on.keys())
    parts = [persisted(_of_all(seen, by_date, read, whole))] if whole else []
    if goes_on:
        parts += _followed(lake, seen, made, goes_on, read, persisted)
    return reduce(DataFrame.unionByName, parts)


def _goes_on(seen: State, date: str, hours: set[str]) -> bool:
    before = seen.hours(DIR_HOUR.full_name, date)
    return bool(before and seen.pieces(DIR_DAY.full_name, [date])) and len(hours.intersection(before)) <= ANEW_MAX


def _of_all(seen: State, by_date: dict[str, set[str]], read: Read, dates: Sequence[str]) -> DataFrame:
    count = sum(len(by_date[date].union(seen.hours(DIR_HOUR.full_name, date))) for date in dates)
    return days.dir_day(read(DIR_HOUR, dates), is_one_hour=count == len(dates))


def _followed(
    lake: Lake,
    seen: State,
    made: Sequence[Piece],
    by_date: dict[str, set[str]],
    read: Read,
    persisted: Callable[[DataFrame], DataFrame],
) -> list[DataFrame]:
    """Rows of the days of which some go on; of all directories of those dates."""
    dates = sorted(by_date)
    there = {hour for date in dates for hour in seen.hours(DIR_HOUR.full_name, date)}
    anew = sorted(hour for hours in by_date.values() for hour in hours & there)
    rows = read(DIR_HOUR, hours=sorted(hour for hours in by_date.values() for hour in hours))
    hosts: list[str] = []
    if anew:
        old = lake.read(DIR_HOUR.full_name, seen, hours=anew)
        hosts = _hosts(_others(old, read(DIR_HOUR, hours=anew)))
        rows = rows.join(_named(old), _same(), "left_anti")
    before = lake.read(DIR_DAY.full_name, seen, dates=dates)
    alone = all(_is_alone([p for p in made if p.date == date]) for date in dates)
    added = persisted(days.dir_day(rows, before, is_one_hour=alone))
    hosts += _hosts(added.where(days.UNSURE))
    of_host, sure = F.col("host").isin(hosts), added.drop(days.UNSURE)
    if not hosts:
        return [sure]
    if len(hosts) > HOSTS_MAX:
        return [persisted(_of_all(seen, by_date, read, dates))]
    return [sure.where(~of_host), persisted(days.dir_day(read(DIR_HOUR, dates).where(of_host)))]


def _is_alone(pieces: Sequence[Piece]) -> bool:
    """Whether one hour has nearly all rows of a date."""
    sizes = sorted(piece.rows for piece in pieces)
    return not sizes or sizes[-1] >= ALONE * sum(sizes[:-1])


def _others(before: DataFrame, now: DataFrame) -> DataFrame:
    """Rows of ``gold.dir_hour`` that are not what they were, or not there any more."""
    values = (F.map_entries(n) if kind.startswith("MAP") else F.col(n) for n, kind in DIR_HOUR.columns.items())
    row = F.struct(*values)
    both = _named(before, row.alias("_was")).join(now.select(*_KEY, row.alias("_is")), _same(), "left")
    return both.where(~F.col("_was").eqNullSafe(F.col("_is"))).select(F.col("host_was").alias("host"))


def _named(before: DataFrame, *more: Column) -> DataFrame:
    return before.select(*(F.col(name).alias(f"{name}_was") for name in _KEY), *more)


def _same() -> list[Column]:
    return [F.col(f"{name}_was").eqNullSafe(F.col(name)) for name in _KEY]


def _hosts(rows: DataFrame) -> list[str]:
    found = rows.select("host").distinct().limit(HOSTS_MAX + 1).collect()
    return [row["host"] for row in found]
