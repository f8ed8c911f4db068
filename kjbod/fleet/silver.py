"""Rows of silver, each once.

The same line can be in two files (a copy under another name, a file that was recovered after a crash), and then it is
in silver twice. Two lines with the same key that say different things are a defect of their writer, or two hosts with
one name: one of them counts, always the same one, whatever came first. Lines of different hours are never the same
line: what an hour says does not depend on which others are read with it.
"""

from typing import TYPE_CHECKING

from kjbod.fleet.lake.lake import HOUR_MS
from kjbod.fleet.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_HOUR = ("date", "hour")


def hour_number(ts: "Column") -> "Column":
    """The hour that a time is in, since 1970."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.floor(ts / HOUR_MS)


def each_once(rows: "DataFrame", table: Table) -> "DataFrame":
    """``rows`` of a silver table without repetitions: of those with the same key in the same hour the one of the
    smallest ``_line``, and of equal lines that of the smallest ``_file``. Costs a sort of all rows: where there are
    many, see :func:`repeated`."""
    from pyspark.sql import functions as F  # noqa: N812

    keys = (*table.key, *(name for name in _HOUR if name in rows.columns))
    others = [name for name in rows.columns if name not in keys]
    chosen = F.min_by(F.struct(*others), F.struct("_line", "_file")).alias("_chosen")
    return rows.groupBy(*keys).agg(chosen).select(*keys, "_chosen.*").select(*rows.columns)


def repeated(rows: "DataFrame", table: Table) -> "DataFrame":
    """Hashes (``_hash``) of the keys that more than one of ``rows`` has; and now and then of two different keys. It
    takes a tenth of the time of :func:`each_once`."""
    from pyspark.sql import functions as F  # noqa: N812

    return rows.select(key_hash(table)).groupBy("_hash").agg(F.count(F.lit(1)).alias("n")).where("n > 1").drop("n")


def key_hash(table: Table) -> "Column":
    """64 bits of a row's key and hour, as ``_hash``."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.xxhash64(*table.key, hour_number(F.col("ts"))).alias("_hash")


def once(rows: "DataFrame", table: Table) -> "DataFrame":
    """Rows as of :func:`each_once`. Looks first (a job) whether any are repeated, and sorts no others."""
    return without_repetitions(rows, table) if is_repeated(rows, table) else rows


def is_repeated(rows: "DataFrame", table: Table) -> bool:
    """Whether any of ``rows`` is there more than once, or seems to be."""
    return bool(repeated(rows, table).take(1))


def without_repetitions(rows: "DataFrame", table: Table) -> "DataFrame":
    """Rows as of :func:`each_once`, sorting those that are repeated alone."""
    twice = repeated(rows, table)
    hashed = rows.withColumn("_hash", key_hash(table))
    alone = hashed.join(twice, "_hash", "left_anti").drop("_hash")
    return alone.unionByName(each_once(hashed.join(twice, "_hash", "left_semi").drop("_hash"), table))
