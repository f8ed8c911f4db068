"""Worth of a report file, and of each of its lines.

A report file proves its completeness by its trailer (:data:`kjbod.fleet.schema.TRAILER_DDL`). Spark alone would read
half of a torn gzip file without a word. So every file gets a status:

============ ======= ===========================================================================================

status       kept    meaning
============ ======= ===========================================================================================

ok           yes     the trailer matches: all lines are there and unchanged
partial      yes     a crashed agent's, finished at its next start; or a plain file without trailer
damaged      yes     lines were added or spoiled; the good ones are kept, the others set aside
torn         no      no trailer in a compressed file, or fewer lines than it says
altered      no      as many lines as the trailer says, each readable, but not those that were written
unreadable   no      nothing could be read
scattered    no      its lines are of more hours than any agent's file: :data:`HOURS_MAX`
repeated     no      these very lines were kept before, from a file of this name (:mod:`kjbod.fleet.ingest`)
============ ======= ===========================================================================================


A line of a kept file is *bad* when it is not UTF-8, not JSON, more than one object, has a column of the wrong type,
lacks a required column, says what cannot be, or is longer than :data:`LINE_BYTES_MAX`. Bad lines and all lines of files
that are not kept go to the quarantine.
"""

from collections.abc import Callable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.schema import (
    TRAILER_DDL,
    TRAILER_KIND,
    Event,
    Sample,
    columns,
    ddl,
    required_columns,
)
from kjbod.fleet.tables import COUNTERS

FILE_PATTERN = "*.jsonl{,.gz,.zst}"
"""Finished files. Spark itself passes over names that begin with a dot: files that an agent still writes."""
TS_MAX = 4_102_444_800_000
"""2100-01-01 UTC: no line is of a later time."""
LINE_BYTES_MAX = 1 << 20
"""Longer lines are no good ones. Of such a line its first bytes, so many, are looked at and kept in the quarantine."""
NUMBER_MAX = 1 << 60
"""No number of a line is so large, nor so far below zero: sums of some of them stay in 64 bits."""
HOURS_MAX = 100
"""Different hours of a file's lines. An agent begins a new file each hour; a clock that is set adds some."""

KEPT = frozenset({"ok", "partial", "damaged"})
_CRC_MODULUS = 2**32
_BAD = "_bad"


def joined(operator: Callable[[Column, Column], Column], columns: Sequence[Column]) -> Column:
    """Columns joined by an operator, as a tree of the least depth: a message of Spark Connect may be 100 deep."""
    if len(columns) == 1:
        return columns[0]
    half = len(columns) // 2
    return operator(joined(operator, columns[:half]), joined(operator, columns[half:]))


def is_trailer(row: str) -> Column:
    """Whether a parsed line is a trailer; never null."""
    is_one = (F.col(f"{row}.k") == TRAILER_KIND) & F.col(f"{row}.rows").isNotNull() & F.col(f"{row}.crc32").isNotNull()
    return F.coalesce(is_one, F.lit(False))


def row_schema(row_type: type[Sample] | type[Event]) -> str:
    """Schema that a line is parsed with: the columns, those of a trailer, and one for a line that fits none."""
    return f"{ddl(row_type)}, {TRAILER_DDL}, {_BAD} STRING"


PARSE_OPTIONS = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BAD}


def problem_of(row_type: type[Sample] | type[Event], row: str = "row") -> Column:
    """Reason why the line ``value``, of ``_length`` bytes, parsed as ``row``, is no good one; null where it is one, and
    for a ``trailer``."""
    bad = F.col(f"{row}.{_BAD}").isNotNull()
    nothing = joined(Column.__and__, [F.col(f"{row}.{name}").isNull() for name in columns(row_type)])
    missing = joined(Column.__or__, [F.col(f"{row}.{name}").isNull() for name in required_columns(row_type)])
    return (
        F.when(F.col("trailer"), None)
        .when(F.col("_length") > LINE_BYTES_MAX, f"longer than {LINE_BYTES_MAX:,} bytes")
        .when(~F.is_valid_utf8("value"), "not UTF-8")
        .when(F.col(row).isNull() | (bad & nothing), "not JSON")
        .when(_has_more(), "more than one object")
        .when(bad, "wrong type")
        .when(missing, "missing column")
        .when(F.coalesce(_impossible(row_type, row), F.lit(False)), "impossible value")
    )


def _has_more() -> Column:
    """Whether a line goes on after its object: Spark reads the first of two, and passes over the rest without a word.
    In a whole object no name begins right after ``}{``: a text that has it goes on with an escape, or ends."""
    value = F.col("value")
    joined_objects = value.contains('}{"') & value.rlike(r'\}\{"\w')
    return joined_objects | (~value.endswith("}") & ~value.rlike(r"\}\s*$"))


_COUNTED = frozenset({"partitions", "leaders", "bytes_total", "bytes_used", "capacity_bytes", *COUNTERS})
"""Columns that are never below zero; those of probes neither."""


def _impossible(row_type: type[Sample] | type[Event], row: str) -> Column:
    numbers = [name for name, kind in columns(row_type).items() if kind == "BIGINT"]
    counted = [name for name in numbers if name in _COUNTED or name.startswith("probe")]
    of_row = {name: F.col(f"{row}.{name}") for name in numbers}
    impossible = (of_row["ts"] < 0) | (of_row["ts"] >= TS_MAX)
    impossible = impossible | (F.greatest(*of_row.values()) >= NUMBER_MAX) | (F.least(*of_row.values()) <= -NUMBER_MAX)
    impossible = impossible | (F.least(*(of_row[name] for name in counted)) < 0)
    if row_type is Sample:
        probed = F.map_values(F.col(f"{row}.probe_histogram"))
        absurd = F.exists(probed, lambda n: (n < 0) | (n >= NUMBER_MAX))
        impossible = impossible | (of_row["bytes_used"] > of_row["bytes_total"]) | absurd
    return impossible


def status_column() -> Column:
    """The table on top of this module, over the columns ``compressed``, ``lines``, ``good_lines``, ``crc`` and
    ``good_crc`` (sums over all lines and over the good ones), ``trailer_rows``, ``trailer_crc`` and ``recovered``.
    Several trailers are added up, so two files that were joined are still whole."""
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
