"""Alibaba's SSD failure tickets (``ssd_failure_tag.csv``) to rows of ``ticket``.

The published times have no zone and are taken as UTC: only differences between them say anything.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.imports.formats import ALIBABA, REQUIRED, TEXT_MAX
from kjbod.fleet.imports.packed import count_of
from kjbod.fleet.imports.sources import Lines, rows_of
from kjbod.fleet.tables import IMPORTED_TICKET

SMART = (
    *(f"r_{name}" for name in ("5", "183", "184", "187", "195", "197", "199", "program", "erase", "241", "242", "9")),
    *("r_12", "r_174", "n_blocks", "n_wearout", "n_175"),
)
"""Published columns that are kept: raw values, and the normalised ones that have no raw twin."""


def parsed(groups: list[Lines]) -> DataFrame:
    """Rows of ``imported.ticket`` of all files, with ``wrong``, ``said`` and ``file``."""
    wanted = (*REQUIRED[ALIBABA], "app", "machine_room_id", *SMART)
    rows = reduce(DataFrame.unionByName, (rows_of(lines, wanted) for lines in groups))
    at = F.try_to_timestamp(F.col("failure_time"), F.lit("yyyy-MM-dd HH:mm:ss"))
    counts = {name: count_of(name, _whole(name)) for name in SMART}
    values = F.array(*(F.struct(F.lit(name).alias("name"), count.alias("value")) for name, count in counts.items()))
    known = {
        "source": F.lit(ALIBABA),
        "ts": F.unix_millis(at),
        "model": _text("model"),
        "drive": _text("disk_id"),
        "host": _text("node_id"),
        "rack": _text("rack_id"),
        "site": _text("machine_room_id"),
        "app": _text("app"),
        "smart": F.map_from_entries(F.filter(values, lambda pair: pair.value.isNotNull())),
        "date": F.date_format(at, "yyyy-MM-dd"),
    }
    wrong = F.when(at.isNull(), F.lit("failure_time")).when(known["drive"].isNull(), F.lit("disk_id"))
    said = F.when(at.isNull(), F.col("failure_time")).otherwise(F.col("disk_id"))
    return rows.select(
        *(known[name].alias(name) for name in IMPORTED_TICKET.columns),
        *(wrong.alias("wrong"), F.coalesce(said, F.lit("")).alias("said"), F.col("file")),
        *(F.lit(False).alias(name) for name in ("no_capacity", "no_poh")),
    )


def each_once(rows: DataFrame) -> DataFrame:
    """A drive's ticket of a moment, once: of several that differ the greater one."""
    key = IMPORTED_TICKET.key
    rest = [name for name in IMPORTED_TICKET.columns if name not in (*key, "smart")]
    entries = F.sort_array(F.map_entries("smart")).alias("smart")
    chosen = F.max(F.struct(*rest, entries)).alias("_row")
    kept = rows.groupBy(*key).agg(chosen).select(*key, "_row.*")
    return kept.withColumn("smart", F.map_from_entries("smart")).select(*IMPORTED_TICKET.columns)


def _whole(name: str) -> Column:
    return F.coalesce(F.col(name).try_cast("bigint"), F.col(name).try_cast("double").try_cast("bigint"))


def _text(name: str) -> Column:
    return F.nullif(F.substring(F.trim(name), 1, TEXT_MAX), F.lit(""))
