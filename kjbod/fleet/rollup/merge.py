"""Partial results that add up: how columns of two groups become those of both together.

The name of a partial column begins with how it merges, ``sum.samples`` or ``new.state``. Merging is commutative and
associative, so that groups may be made in steps, of any size, in any order. ``new`` and ``old`` are structs that begin
with their moment: of two the greater and the smaller one counts, so that ties go by the value. A sum that does not fit
is null: one disk with an absurd counter is no reason to know nothing of all others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

EXACT = "DECIMAL(38,0)"

_MERGES: Mapping[str, Callable[[Column], Column]] = {
    "sum": F.try_sum,
    "min": F.min,
    "max": F.max,
    "or": F.bit_or,
    "new": F.max,
    "old": F.min,
    "set": lambda column: F.array_distinct(F.flatten(F.collect_list(column))),
    "list": lambda column: F.flatten(F.collect_list(column)),
}


def part(name: str) -> Column:
    """A partial column: its name has a dot."""
    return F.col(f"`{name}`")


def merged(parts: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Rows by ``keys`` (null is a value) of all the partial columns; other columns are dropped."""
    names = [name for name in parts.columns if "." in name]
    return parts.groupBy(*keys).agg(*(_MERGES[name.partition(".")[0]](part(name)).alias(name) for name in names))


def value(name: str) -> Column:
    """Value of a column ``new`` or ``old``."""
    return part(name).getField("value")


def at(moment: Column, said: Column) -> Column:
    """A value of ``new`` or ``old``; null where nothing is said."""
    return F.when(said.isNotNull() & moment.isNotNull(), F.struct(moment.alias("at"), said.alias("value")))


def joined(left: DataFrame, right: DataFrame, keys: Sequence[str]) -> DataFrame:
    """``left`` with the columns of the row of ``right`` that has the same ``keys``, of which null is a value."""
    other = right.select(*(F.col(name).alias(f"{name}.right") for name in keys), *_others(right, keys))
    same = [F.col(name).eqNullSafe(part(f"{name}.right")) for name in keys]
    return left.join(other, same, "left").drop(*(f"{name}.right" for name in keys))


def _others(rows: DataFrame, keys: Iterable[str]) -> list[Column]:
    return [part(name) for name in rows.columns if name not in keys]


def summed_maps(rows: DataFrame, keys: Sequence[str], names: Sequence[str]) -> DataFrame:
    """``keys`` and each histogram of ``names`` as the sum of those of the group, its buckets in order; a histogram
    without any bucket is null."""
    entries = [F.transform(F.map_entries(name), _named(name)) for name in names]
    exploded = rows.select(*keys, F.explode(F.concat(*(F.coalesce(e, F.array()) for e in entries))).alias("_entry"))
    counted = exploded.groupBy(*keys, "_entry.name", "_entry.bucket").agg(F.try_sum("_entry.n").alias("n"))
    entry = F.struct("bucket", "n")
    return counted.groupBy(*keys).agg(
        *(_map(F.collect_list(F.when(F.col("name") == name, entry))).alias(name) for name in names)
    )


def _named(name: str) -> Callable[[Column], Column]:
    def entry(pair: Column) -> Column:
        return F.struct(F.lit(name).alias("name"), pair.key.alias("bucket"), pair.value.alias("n"))

    return entry


def _map(entries: Column) -> Column:
    return F.when(F.size(entries) > 0, F.map_from_entries(F.array_sort(entries)))


def shaped(rows: DataFrame, columns: Mapping[str, str]) -> DataFrame:
    """``rows`` in the columns of a table; those that are not there are null."""
    there = set(rows.columns)
    return rows.select(
        *((F.col(name) if name in there else F.lit(None)).cast(kind).alias(name) for name, kind in columns.items())
    )
