"""Staging of a batch: its text is read once, and what most of it is, good samples near the hour of their file, is
written at once as rows of ``silver.samples``, sorted and by hour, before anybody knows which files are whole.

Parsing and sorting is nearly all the work of ingest, so it is done once. Whatever else a batch has (events, trailers,
bad lines, samples of a clock that is far off) is written beside them as it is, under ``date=all``, and read again by
what is made for every case. When the account of the files shows that all of them are kept, the staged rows are silver;
where one is not, the hours that have rows of it are written anew without these. The files of the staged rows have the
columns of the account too, which no reader of silver asks for and compaction drops.

============ ======================================================= ==================================================
lines        where they are staged                                   columns
============ ======================================================= ==================================================
near         ``date=2026-11-01/hour=03``                             those of ``silver.samples``, and ``_uri, _bytes,
                                                                     _length``
others       ``date=all/hour=00``                                    ``_uri, _bytes, _line, _length`` and
                                                                     ``_text``, the line
============ ======================================================= ==================================================
"""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet import read
from kjbod.fleet.ingest import account
from kjbod.fleet.ingest.lines import more, stream_of
from kjbod.fleet.lake.lake import HOUR_MS
from kjbod.fleet.lake.state import ALL_DATES
from kjbod.fleet.schema import SAMPLES, Sample, columns
from kjbod.fleet.tables import COUNTERS, SILVER_SAMPLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEAR_MS = 24 * HOUR_MS
"""How far from the hour in its file's name a sample may be to be near: so a batch has a bounded number of hours until
its files are judged, however wild the clocks are."""
_SORTED = ("date", "hour", "host", "broker_id", "path", "ts")
_KEPT = tuple(name for name in SILVER_SAMPLES.columns if name not in ("date", "hour"))
_ACCOUNT = {"_uri": "STRING", "_bytes": "BIGINT", "_length": "BIGINT", "_line": "BIGINT", "ts": "BIGINT"}

_ALL_DIFFERENT = ("_line", "bytes_used", *(name for name in COUNTERS if name != "io_errors"))
WRITING = {f"parquet.enable.dictionary#{name}": "false" for name in _ALL_DIFFERENT}
"""Options for rows of samples: without a dictionary of columns in which hardly a value is there twice. Parquet would
make it, look up each value in it, and drop it."""


def write_staged(text: "DataFrame", files: "DataFrame", prefix: str, target: str) -> None:
    """Write a batch's lines below ``target``.

    Args:
        text: the columns of :func:`kjbod.fleet.ingest.lines.line_columns`.
        files: ``_uri`` of its files. Of one that is missing here all lines are others.
        prefix: URI of the inbox, as files have it.
        target: URI that does not exist.
    """
    names = account.with_names(files).select("_uri", "file", "_hour_ms")
    rows = text.join(F.broadcast(names), "_uri", "left").withColumn("_stream", stream_of(F.col("_uri"), prefix))
    is_sample = (F.col("_stream") == SAMPLES) & F.col("_hour_ms").isNotNull()
    row = F.from_json("value", read.row_schema(Sample), read.PARSE_OPTIONS)
    rows = rows.withColumn(SAMPLES, F.when(is_sample, row))
    rows = rows.withColumn("trailer", read.is_trailer(SAMPLES))
    rows = rows.withColumn("_problem", read.problem_of(Sample, SAMPLES))
    hour, ts = F.col("_hour_ms"), F.col(f"{SAMPLES}.ts")
    near = is_sample & F.col("_problem").isNull() & ~F.col("trailer")
    near = near & (ts >= hour - NEAR_MS) & (ts < hour + HOUR_MS + NEAR_MS)
    rows = rows.withColumn("_near", F.coalesce(near, F.lit(False)))
    at, is_near = F.timestamp_millis(ts), F.col("_near")
    found = {name: F.col(f"{SAMPLES}.{name}") for name in columns(Sample)}
    found |= {
        "_file": F.col("file"),
        "_line": F.col("_line"),
        "_skewed": account.is_skewed(ts, hour),
        "_more": F.when(is_near, more({SAMPLES: frozenset(columns(Sample))}, F.col("_stream"))),
    }
    staged = rows.select(
        *(found[name].alias(name) for name in _KEPT),
        *("_uri", "_bytes", "_length"),
        F.when(~is_near, F.col("value").cast("binary")).alias("_text"),
        F.when(is_near, F.date_format(at, "yyyy-MM-dd")).otherwise(ALL_DATES).alias("date"),
        F.when(is_near, F.date_format(at, "HH")).otherwise("00").alias("hour"),
    )
    # Small hours go into one file, and where there are many samples of one into some: Spark knows after the shuffle.
    spread = staged.hint("rebalance", F.col("date"), F.col("hour"))
    ordered = spread.sortWithinPartitions(*dict.fromkeys((*_SORTED, *SILVER_SAMPLES.key)))
    ordered.write.options(**WRITING).partitionBy("date", "hour").parquet(target)


def staged_lines(spark: "SparkSession", target: str) -> "DataFrame":
    """Near samples as the account wants them: those of its columns that are not the same for all of them."""
    rows = _read(spark, target, _ACCOUNT | {"host": "STRING"})
    return rows.where(F.col("date") != ALL_DATES).drop("date", "hour")


def staged_text(spark: "SparkSession", target: str) -> "DataFrame":
    """The other lines, as they were given to :func:`write_staged`."""
    known = {name: _ACCOUNT[name] for name in ("_line", "_length", "_uri", "_bytes")}
    rows = _read(spark, target, known | {"_text": "BINARY"})
    text = F.col("_text").cast("string").alias("value")
    return rows.where(F.col("date") == ALL_DATES).select(text, *known)


def staged_samples(spark: "SparkSession", target: str) -> "DataFrame":
    """Near samples with the columns of silver, and ``_uri``."""
    kinds = {name: SILVER_SAMPLES.columns[name] for name in _KEPT}
    return _read(spark, target, {"_uri": "STRING"} | kinds).where(F.col("date") != ALL_DATES)


def _read(spark: "SparkSession", target: str, kinds: dict[str, str]) -> "DataFrame":
    ddl = ", ".join(f"`{name}` {kind}" for name, kind in {**kinds, "date": "STRING", "hour": "STRING"}.items())
    # What was written a moment ago is no torn report: it must not be passed over.
    reader = spark.read.schema(ddl).option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
    return reader.parquet(target)
