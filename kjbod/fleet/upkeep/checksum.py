"""Rows in figures that do not depend on their order: how many, and the sum of their hashes.

Equal sums of 64-bit hashes of all columns, with equal counts, mean the same rows: that two different sets of rows agree
by chance is as likely as guessing 64 bits. The hash tells a null from a value and one column from the next one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.tables import SILVER, Table


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows in figures."""

    rows: int
    checksum: int


def stored_columns(table: Table) -> list[str]:
    """Columns that its files have; date and hour of silver are computed from ``ts``."""
    return [name for name in table.columns if table.layer != SILVER or name not in ("date", "hour")]


def summary(rows: DataFrame, table: Table) -> Summary:
    """Of all rows of a table."""
    (found,) = rows.agg(F.count(F.lit(1)).alias("rows"), _sum(row_hash(table)).alias("checksum")).collect()
    return Summary(found["rows"], int(found["checksum"] or 0))


def distinct_summary(rows: DataFrame, table: Table) -> tuple[Summary, int]:
    """Of rows of silver, each once, and how many they are with the repetitions.

    By a query of its own, so that it does not repeat a mistake of :mod:`kjbod.fleet.silver`."""
    named = rows.select(*table.key, "date", "hour", "_line", "_file", row_hash(table).alias("_hash"))
    chosen = F.min_by("_hash", F.struct("_line", "_file")).alias("_hash")
    each = named.groupBy(*table.key, "date", "hour").agg(chosen, F.count(F.lit(1)).alias("_n"))
    total = (F.count(F.lit(1)).alias("rows"), _sum(F.col("_hash")).alias("checksum"), F.sum("_n").alias("all"))
    (found,) = each.agg(*total).collect()
    return Summary(found["rows"], int(found["checksum"] or 0)), int(found["all"] or 0)


def _sum(hashes: Column) -> Column:
    return F.sum(hashes.cast("decimal(38,0)"))


def row_hash(table: Table) -> Column:
    """Of all columns of a row."""
    names = stored_columns(table)
    nulls = [F.col(f"`{name}`").isNull() for name in names]  # the hash itself passes over nulls
    return F.xxhash64(*nulls, *_hashable(table, names))


def _hashable(table: Table, names: Iterable[str]) -> Iterable[Column]:
    for name in names:
        column = F.col(f"`{name}`")
        is_map = table.columns[name].startswith("MAP")
        yield F.array_sort(F.map_entries(column)) if is_map else column  # maps have no order, and no hash
