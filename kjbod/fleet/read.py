"""From report files to clean rows, with an account of every line that is not among them.

A report file proves its completeness by its trailer (:data:`kjbod.fleet.schema.TRAILER_DDL`). Spark alone would read
half of a torn gzip file without a word. So every file gets a status:

============ ======= ==================================================================================================
status       kept    meaning
============ ======= ==================================================================================================
ok           yes     the trailer matches: all lines are there and unchanged
partial      yes     a crashed agent's, finished at its next start; or a plain file without trailer
damaged      yes     lines were added or spoiled; the good ones are kept, the others set aside
torn         no      no trailer in a compressed file, or fewer lines than it says
altered      no      as many lines as the trailer says, each readable, but not those that were written
unreadable   no      nothing could be read
scattered    no      its lines are of more hours than any agent's file: :data:`HOURS_MAX`
repeated     no      these very lines were kept before, from a file of this name (:mod:`kjbod.fleet.ingest` only)
============ ======= ==================================================================================================

A line of a kept file is *bad* when it is not UTF-8, not JSON, has a column of the wrong type, lacks a required column,
or says what cannot be. Bad lines and all lines of files that are not kept go to the quarantine.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.schema import (
    EVENT_KEY,
    EVENTS,
    SAMPLE_KEY,
    SAMPLES,
    TRAILER_DDL,
    TRAILER_KIND,
    Event,
    Sample,
    columns,
    ddl,
    required_columns,
)
from kjbod.quick_dataclass import dataclass

FILE_PATTERN = "*.jsonl{,.gz,.zst}"
"""Finished files. Spark itself passes over names that begin with a dot: files that an agent still writes."""
COMPRESSED = (".gz", ".zst")
TS_MAX = 4_102_444_800_000
"""2100-01-01 UTC: no line is of a later time."""
HOURS_MAX = 100
"""Different hours of a file's lines. An agent begins a new file each hour; a clock that is set adds some."""

ROW_TYPES: dict[str, type[Sample] | type[Event]] = {SAMPLES: Sample, EVENTS: Event}
KEYS = {SAMPLES: SAMPLE_KEY, EVENTS: EVENT_KEY}
KEPT = frozenset({"ok", "partial", "damaged"})
_CRC_MODULUS = 2**32
_BAD = "_bad"


@dataclass(frozen=True, slots=True)
class FileAudit:
    """Result of reading one file. Lines do not count the trailer."""

    stream: str
    file: str
    """URI, as Spark has it; the path of a file that Spark could not read."""
    bytes: int
    lines: int
    good_lines: int
    bad_lines: int
    status: str
    kept: bool


AUDIT_DDL = (
    "stream STRING, file STRING, bytes BIGINT, lines BIGINT, good_lines BIGINT, bad_lines BIGINT, status STRING, "
    "kept BOOLEAN"
)


def read_text(spark: SparkSession, folder: str | None) -> DataFrame:
    """``value, file``: all lines of all finished files below ``folder`` (a path or URI); none without a folder."""
    if folder is None:
        return spark.createDataFrame([], "value STRING, file STRING")
    return (
        spark.read.option("recursiveFileLookup", "true")
        .option("pathGlobFilter", FILE_PATTERN)
        .option("lineSep", "\n")
        .text(folder)
        .select("value", F.col("_metadata.file_path").alias("file"))
    )


def parse_lines(text: DataFrame, stream: str) -> DataFrame:
    """``value, file`` → ``value, file, row, trailer, problem``: ``row`` is the parsed line, ``problem`` why it is none
    (null for a good one)."""
    row_type = ROW_TYPES[stream]
    parsed = text.withColumn("row", F.from_json("value", row_schema(row_type), PARSE_OPTIONS))
    return parsed.withColumn("trailer", is_trailer("row")).withColumn("problem", problem_of(row_type))


def is_trailer(row: str) -> Column:
    """Whether a parsed line is a trailer; never null."""
    is_one = (F.col(f"{row}.k") == TRAILER_KIND) & F.col(f"{row}.rows").isNotNull() & F.col(f"{row}.crc32").isNotNull()
    return F.coalesce(is_one, F.lit(False))


def row_schema(row_type: type[Sample] | type[Event]) -> str:
    """Schema that a line is parsed with: the columns, those of a trailer, and one for a line that fits none."""
    return f"{ddl(row_type)}, {TRAILER_DDL}, {_BAD} STRING"


PARSE_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}


def problem_of(row_type: type[Sample] | type[Event], row: str = "row") -> Column:
    """Reason why the line ``value``, parsed as ``row``, is no good one; null where it is one, and for a ``trailer``."""
    bad = F.col(f"{row}.{_BAD}").isNotNull()
    nothing = reduce(Column.__and__, (F.col(f"{row}.{name}").isNull() for name in columns(row_type)))
    missing = reduce(Column.__or__, (F.col(f"{row}.{name}").isNull() for name in required_columns(row_type)))
    return (
        F.when(F.col("trailer"), None)
        .when(~F.is_valid_utf8("value"), "not UTF-8")
        .when(F.col(row).isNull() | (bad & nothing), "not JSON")
        .when(bad, "wrong type")
        .when(missing, "missing column")
        .when(F.coalesce(_impossible(row_type, row), F.lit(False)), "impossible value")
    )


def _impossible(row_type: type[Sample] | type[Event], row: str) -> Column:
    impossible = (F.col(f"{row}.ts") < 0) | (F.col(f"{row}.ts") >= TS_MAX)
    if row_type is Sample:
        used, total = F.col(f"{row}.bytes_used"), F.col(f"{row}.bytes_total")
        impossible = impossible | (used < 0) | (total < 0) | (used > total)
    return impossible


def audit_files(lines: DataFrame, listed: Mapping[str, int], stream: str) -> list[FileAudit]:
    """Judge every file of ``listed``, URI to size in bytes: a file that Spark could not read at all has no lines to be
    counted by. In order of names."""
    body, good = ~F.col("trailer"), ~F.col("trailer") & F.col("problem").isNull()
    crc = F.crc32(F.col("value").cast("binary"))
    counted = lines.groupBy("file").agg(
        F.count_if(body).alias("lines"),
        F.count_if(good).alias("good_lines"),
        F.sum(F.when(body, crc)).alias("crc"),
        F.sum(F.when(good, crc)).alias("good_crc"),
        F.sum(F.when(F.col("trailer"), F.col("row.rows"))).alias("trailer_rows"),
        F.sum(F.when(F.col("trailer"), F.col("row.crc32"))).alias("trailer_crc"),
        F.bool_or(F.when(F.col("trailer"), F.col("row.partial"))).alias("recovered"),
    )
    found = {_plain_path(row["file"]): row.asDict() for row in counted.collect()}
    # An agent may have finished another file since they were listed; Spark has read it too.
    sizes = dict.fromkeys(found, 0) | {_plain_path(file): size for file, size in listed.items()}
    return [_audit(stream, path, size, found.get(path)) for path, size in sorted(sizes.items())]


def _plain_path(uri: str) -> str:
    """The path of a URI: ``file:/x`` and ``file:///x`` are the same file, and Spark and Python quote differently."""
    return unquote(urlsplit(uri).path)


def _audit(stream: str, file: str, size: int, counts: Mapping[str, Any] | None) -> FileAudit:
    if counts is None:
        return FileAudit(stream, file, size, 0, 0, 0, "unreadable", kept=False)
    status = file_status(compressed=file.endswith(COMPRESSED), **{k: v for k, v in counts.items() if k != "file"})
    lines, good = counts["lines"], counts["good_lines"]
    return FileAudit(stream, counts["file"], size, lines, good, lines - good, status, status in KEPT)


def file_status(
    *,
    compressed: bool,
    lines: int,
    good_lines: int,
    crc: int | None,
    good_crc: int | None,
    trailer_rows: int | None,
    trailer_crc: int | None,
    recovered: bool | None,
) -> str:
    """The table on top of this module. ``crc`` and ``good_crc`` are sums over all lines and over the good ones; several
    trailers are added up, so two files that were joined are still whole."""
    if trailer_rows is None:
        return ("torn" if compressed else "partial") if lines else "unreadable"
    expected = (trailer_rows, (trailer_crc or 0) % _CRC_MODULUS)
    if (lines, (crc or 0) % _CRC_MODULUS) == expected:
        return "partial" if recovered else "ok"
    if (good_lines, (good_crc or 0) % _CRC_MODULUS) == expected:
        return "damaged"
    if lines < trailer_rows:
        return "torn"
    return "damaged" if good_lines < lines else "altered"


def status_column() -> Column:
    """:func:`file_status` as an expression over columns of the names of its parameters."""
    lines, good, rows = F.col("lines"), F.col("good_lines"), F.col("trailer_rows")

    def is_sum(name: str) -> Column:
        wanted, found = (F.coalesce(F.col(n), F.lit(0)) % _CRC_MODULUS for n in ("trailer_crc", name))
        return wanted == found

    return (
        F.when(rows.isNull() & (lines == 0), "unreadable")
        .when(rows.isNull(), F.when(F.col("compressed"), "torn").otherwise("partial"))
        .when((lines == rows) & is_sum("crc"), F.when(F.col("recovered"), "partial").otherwise("ok"))
        .when((good == rows) & is_sum("good_crc"), "damaged")
        .when(lines < rows, "torn")
        .when(good < lines, "damaged")
        .otherwise("altered")
    )


def _is_kept(files: Iterable[FileAudit]) -> Column:
    aside = [file.file for file in files if not file.kept]
    return ~F.col("file").isin(aside) if aside else F.lit(True)


def good_rows(lines: DataFrame, files: Iterable[FileAudit], stream: str) -> DataFrame:
    """The rows of a stream: good lines of kept files, each once. Adds ``date`` (UTC, of ``ts``)."""
    names = columns(ROW_TYPES[stream])
    return (
        lines.where(~F.col("trailer") & F.col("problem").isNull() & _is_kept(files))
        .select(*(F.col(f"row.{name}").alias(name) for name in names))
        # Copies of a line are equal in every byte, so it does not matter which one stays.
        .dropDuplicates(list(KEYS[stream]))
        .withColumn("date", F.date_format(F.timestamp_millis("ts"), "yyyy-MM-dd"))
    )


def quarantined(lines: DataFrame, files: Iterable[FileAudit]) -> DataFrame:
    """``file, reason, line``: what was set aside."""
    aside = {file.file: f"file is {file.status}" for file in files if not file.kept}
    reason = F.col("problem")
    if aside:
        reasons = F.create_map(*(F.lit(text) for item in aside.items() for text in item))
        reason = F.coalesce(F.try_element_at(reasons, F.col("file")), reason)
    return (
        lines.where(~F.col("trailer"))
        .select("file", reason.alias("reason"), F.make_valid_utf8("value").alias("line"))
        .where(F.col("reason").isNotNull())
    )
