"""The account of a batch: one row for each of its files, judged by what was read of it.

All of it is small (a row for each file and hour), and stays where Spark has it: the driver sees sums by status and
hour, and the files of which nothing could be read.
"""

from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet import read
from kjbod.fleet.lake.lake import HOUR_MS
from kjbod.fleet.schema import SAMPLES
from kjbod.fleet.silver import hour_number
from kjbod.fleet.tables import AUDIT_FILES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SKEW_MS = 2 * HOUR_MS
"""How far out of the hour in the file's name a line's clock may be."""
_NAME = r"^(.*)\.[^.]*\.(\d{10})\.\d+\.jsonl(\.gz|\.zst)?$"
SET_ASIDE = ("torn", "altered", "unreadable", "scattered")
REPEATED = "repeated"


def is_good() -> Column:
    """Whether a parsed line is a good one."""
    return F.col("_problem").isNull() & ~F.col("_trailer")


def all_lines(staged: "DataFrame", parsed: "DataFrame") -> "DataFrame":
    """Lines as :func:`by_hour` counts them: samples that are rows already (:mod:`kjbod.fleet.ingest.staging`), and
    parsed lines. ``_staged`` tells which is which."""
    alike = {
        "_stream": F.lit(SAMPLES),
        "_trailer": F.lit(False),
        "_problem": F.lit(None).cast("string"),
        "_t_rows": F.lit(None).cast("bigint"),
        "_t_crc": F.lit(None).cast("bigint"),
        "_t_partial": F.lit(None).cast("boolean"),
    }
    rows = staged.withColumns(alike)
    return rows.withColumn("_staged", F.lit(True)).unionByName(
        parsed.select(*rows.columns).withColumn("_staged", F.lit(False))
    )


def by_hour(lines: "DataFrame") -> "DataFrame":
    """Counts of each file and hour of its good lines, staged or not; those of other lines under the hour null."""
    body, good = ~F.col("_trailer"), is_good()
    hour = F.when(good, hour_number(F.col("ts")))
    return lines.groupBy("_uri", "_bytes", "_stream", "_staged", hour.alias("_hour")).agg(
        F.count_if(body).alias("lines"),
        F.count_if(good).alias("good_lines"),
        F.sum(F.when(body, F.col("_line"))).alias("crc"),
        F.sum(F.when(good, F.col("_line"))).alias("good_crc"),
        F.sum("_t_rows").alias("trailer_rows"),
        F.sum("_t_crc").alias("trailer_crc"),
        F.bool_or("_t_partial").alias("recovered"),
        F.sum(F.col("_length") + 1).alias("text_bytes"),
        F.min(F.when(good, F.col("ts"))).alias("first_ts"),
        F.max(F.when(good, F.col("ts"))).alias("last_ts"),
        F.min(F.when(good, F.col("host"))).alias("host"),
    )


def by_file(hours: "DataFrame") -> "DataFrame":
    """Counts of each file, with ``status``."""
    sums = ("lines", "good_lines", "crc", "good_crc", "trailer_rows", "trailer_crc", "text_bytes")
    files = hours.groupBy("_uri", "_bytes", "_stream").agg(
        *(F.sum(name).alias(name) for name in sums),
        F.bool_or("recovered").alias("recovered"),
        *(F.min(name).alias(name) for name in ("first_ts", "host")),
        F.max("last_ts").alias("last_ts"),
        F.count("_hour").alias("hours"),
    )
    files = files.withColumn("compressed", F.col("_uri").rlike(r"\.(gz|zst)$"))
    # A plain file without a trailer says by its size alone that a line was too long to be read.
    too_long = F.col("trailer_rows").isNull() & ~F.col("compressed") & (F.col("text_bytes") < F.col("_bytes"))
    status = (
        F.when(F.col("hours") > read.HOURS_MAX, "scattered")
        .when(too_long & (F.col("lines") > 0), "damaged")
        .otherwise(read.status_column())
    )
    return files.withColumn("status", status)


def with_names(files: "DataFrame") -> "DataFrame":
    """Adds what the name of a file says: ``file, file_hour, _hour_ms``, the last two null where it says no hour."""
    base = F.url_decode(F.regexp_replace(F.regexp_extract("_uri", "([^/]*)$", 1), r"\+", "%2B"))
    files = files.withColumn("file", base)
    hour = F.regexp_extract("file", _NAME, 2)
    at = F.try_to_timestamp(hour, F.lit("yyyyMMddHH"))
    return files.withColumn("file_hour", F.when(at.isNotNull(), hour)).withColumn("_hour_ms", F.unix_millis(at))


def is_skewed(ts: Column, hour_ms: Column) -> Column:
    """Whether a moment is far out of the hour in its file's name; no when there is none."""
    low = hour_ms - SKEW_MS
    return F.coalesce((ts < low) | (ts >= low + HOUR_MS + 2 * SKEW_MS), F.lit(False))


def named(files: "DataFrame", inbox: str, today: Column) -> "DataFrame":
    """Adds what a file's name says, and its date: ``file, inbox, file_hour, date, _hour_ms``. ``today``: the date of a
    file that tells none."""
    files = with_names(files).withColumn("inbox", F.lit(inbox))
    at = F.timestamp_millis("_hour_ms")
    of_name = F.when(F.col("_hour_ms").between(0, read.TS_MAX - 1), F.date_format(at, "yyyy-MM-dd"))
    of_lines = F.date_format(F.timestamp_millis("first_ts"), "yyyy-MM-dd")
    host = F.coalesce(F.col("host"), F.nullif(F.regexp_extract("file", _NAME, 1), F.lit("")))
    return files.withColumn("date", F.coalesce(of_name, of_lines, today)).withColumn("host", host)


def repetitions_marked(files: "DataFrame", kept_before: "DataFrame | None") -> "DataFrame":
    """Files of lines that were kept before, or in this batch, from a file of the same name, become ``repeated``.
    Adds ``kept``. ``kept_before``: rows of ``audit.files``."""
    same = ("_stream", "file", "lines", "_crc")
    would = F.col("status").isin(*read.KEPT)
    files = files.withColumn("_crc", F.col("crc") % 2**32)
    first = F.row_number().over(Window.partitionBy(*same, would).orderBy("_uri")) == 1
    files = files.withColumn("_again", would & ~first)
    if kept_before is not None:
        keys = kept_before.where("kept").select(
            F.col("stream").alias("_stream"), "file", "lines", F.col("crc").alias("_crc")
        )
        files = files.join(keys.distinct().withColumn("_before", F.lit(True)), list(same), "left")
        files = files.withColumn("_again", F.col("_again") | (would & F.col("_before").isNotNull()))
    files = files.withColumn("status", F.when(F.col("_again"), REPEATED).otherwise(F.col("status")))
    return files.withColumn("kept", F.col("status").isin(*read.KEPT))


def audit_rows(files: "DataFrame", run: str, batch: int, now_ms: int) -> "DataFrame":
    """Rows of ``audit.files``."""
    whole = files.withColumns(
        {
            "stream": F.col("_stream"),
            "uri": F.col("_uri"),
            "bytes": F.col("_bytes"),
            "bad_lines": F.col("lines") - F.col("good_lines"),
            "crc": F.col("_crc"),
            "ingested_ts": F.lit(now_ms),
            "run": F.lit(run),
            "batch": F.lit(batch),
        }
    )
    return whole.select(*(F.col(name).cast(kind).alias(name) for name, kind in AUDIT_FILES.columns.items()))
