"""Verification: a lake is counted again, and every difference is a line.

1. The files that the state names are there, can be read (each column of each row once), and have as many rows as it
   says; no key of gold is there twice.
2. Silver against audit: no file has more rows than its audit row says it had good lines; all rows are of files that
   were kept; and the sums are equal to the last row, repetitions and what retention took out included
   (:mod:`kjbod.fleet.upkeep.account`).
3. Silver against the agents' own word: of a file whose rows are all there, the CRC-32 of the lines add up to the one in
   the file's trailer.
4. Silver that was compacted is what it was then: its checksum, of a sample of the dates.
5. Gold against silver: no hour of silver waits for a rollup; of a sample of the hours each directory is computed
   again, by a query of its own that shares nothing with the rollup; and of a sample of the dates gold of days by the
   rollup's own functions, from the gold that it is made of (:mod:`kjbod.fleet.upkeep.gold_again`).

What cannot be read is a difference as well, and what depends on it is passed over.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.command import spark_reason
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import BATCH, Piece, State
from kjbod.fleet.rollup.run import hours_with_silver
from kjbod.fleet.schema import EVENTS, SAMPLES
from kjbod.fleet.silver import each_once
from kjbod.fleet.svg import plural
from kjbod.fleet.tables import AUDIT_FILES, DIR_HOUR, DRIVE_LIFE, SILVER_EVENTS, SILVER_SAMPLES, TABLES
from kjbod.fleet.upkeep.account import compacted, gone, is_verified, silver_from
from kjbod.fleet.upkeep.checksum import Summary, row_hash, summary
from kjbod.fleet.upkeep.gold_again import (
    SHOWN_MAX,
    dates_of_days,
    days_again,
    drive_life_again,
    guarded,
    repeated_keys,
)

SAMPLE = 3
"""Hours and dates that are computed again where no number is given."""
_CRC_MODULUS = 2**32

Progress = Callable[[str], None]
T = TypeVar("T", str, tuple[str, str])


@dataclass(frozen=True, slots=True)
class Verified:
    """Extent of a verification, and its differences."""

    differences: tuple[str, ...]
    pieces: int
    rows: int
    hours: tuple[str, ...]
    """Of gold, that were computed again."""
    dates: tuple[str, ...] = ()
    """The same."""


def verify(lake: Lake, progress: Progress, sample: int = SAMPLE, seed: int = 0) -> Verified:
    """Count a lake again.

    Raises:
        FleetError: its state cannot be read."""
    state = lake.state()
    rng = random.Random(f"{seed}/{lake.lake_id}")
    broken: set[str] = set()
    found: list[str] = []
    progress(f"version {state.version}: reading its pieces")
    for name, table in TABLES.items():
        found += _pieces(lake, state, name, broken)
        found += guarded(name, repeated_keys(lake, state, table, broken))
    if not broken.intersection(_paths(state, AUDIT_FILES.full_name)):
        for stream, known in ((SAMPLES, SILVER_SAMPLES), (EVENTS, SILVER_EVENTS)):
            if not broken.intersection(_paths(state, known.full_name)):
                progress(f"counting {known.full_name} against the audit and the trailers")
                found += guarded(known.full_name, _silver(lake, state, stream, known.full_name))
    for table_name, date in _drawn(rng, _compacted_dates(state, broken), sample):
        progress(f"reading {table_name} of {date} as it was compacted")
        found += guarded(f"{table_name} of {date}", _unchanged(lake, state, table_name, date))
    found += _waiting(state)
    found += _without_gold(state)
    hours = _drawn(rng, _whole_hours(state, broken), sample)
    for hour in hours:
        progress(f"computing {DIR_HOUR.full_name} of {hour} again")
        found += guarded(f"{DIR_HOUR.full_name} of {hour}", _gold(lake, state, hour))
    dates = _drawn(rng, dates_of_days(state, broken), sample)
    for date in dates:
        progress(f"computing gold of the day {date} again")
        found += guarded(f"gold of {date}", days_again(lake, state, date))
    if dates:
        found += guarded(DRIVE_LIFE.full_name, drive_life_again(lake, state, broken))
    pieces = [piece for table in TABLES for piece in state.pieces(table)]
    return Verified(tuple(found), len(pieces), sum(piece.rows for piece in pieces), tuple(hours), tuple(dates))


def _paths(state: State, table: str) -> set[str]:
    return {piece.path for piece in state.pieces(table)}


def _drawn(rng: random.Random, of: Sequence[T], count: int) -> list[T]:
    return sorted(rng.sample(of, min(count, len(of))))


# pieces ---------------------------------------------------------------------------------------------------------------


def _pieces(lake: Lake, state: State, table: str, broken: set[str]) -> Iterator[str]:
    """Differences of the pieces of a table; their paths go to ``broken``."""
    pieces = []
    for piece in state.pieces(table):
        problem = _missing(lake, piece)
        if problem:
            broken.add(piece.path)
            yield f"{table} of {piece.date}: {problem}"
        else:
            pieces.append(piece)
    for piece, count in _counted(lake, table, pieces):
        if isinstance(count, str):
            broken.add(piece.path)
            yield f"{table} of {piece.date}: cannot be read: {count}"
        elif count != piece.rows:
            broken.add(piece.path)
            yield f"{table} of {piece.date}: {piece.path} has {count:,} rows, the state says {piece.rows:,}"


def _missing(lake: Lake, piece: Piece) -> str:
    folders = [f"{piece.path}/hour={hour}" for hour in piece.hours] if piece.form == BATCH else [piece.path]
    for folder in folders:
        if piece.rows and not any(entry.name.endswith(".parquet") for entry in lake.files.list(folder)):
            return f"{folder} has no file, and the state says that {piece.path} has {piece.rows:,} rows"
    return ""


def _counted(lake: Lake, table: str, pieces: list[Piece]) -> Iterator[tuple[Piece, int | str]]:
    """Rows of each piece, or why they cannot be read; one job where all can."""
    try:
        counts = _counts(lake, table, pieces)
    except (PySparkException, Py4JError) as error:
        if len(pieces) == 1:
            yield pieces[0], spark_reason(error)
            return
        half = len(pieces) // 2
        yield from _counted(lake, table, pieces[:half])
        yield from _counted(lake, table, pieces[half:])
        return
    for piece in pieces:
        yield piece, counts.get(piece.path, 0)


def _counts(lake: Lake, table: str, pieces: list[Piece]) -> dict[str, int]:
    """Rows by the path of a piece; all columns are read for it, of which the file's end alone would say nothing."""
    filled = [piece for piece in pieces if piece.rows]
    if not filled:
        return {}
    rows = lake.read_pieces(table, filled)
    named = rows.select(F.input_file_name().alias("_path"), row_hash(TABLES[table]).alias("_hash"))
    read = named.groupBy("_path").agg(F.count(F.lit(1)).alias("count"), F.bit_xor("_hash"))
    # All files of a piece are below its path, whatever is between.
    counts: dict[str, int] = {}
    paths = {piece.path for piece in filled}
    depth = len(_parts(lake.uri))
    for row in read.collect():
        inner = "/".join(_parts(row["_path"])[depth:])
        while inner and inner not in paths:
            inner = inner.rpartition("/")[0]
        counts[inner] = counts.get(inner, 0) + row["count"]
    return counts


def _parts(uri: str) -> list[str]:
    """Parts of a URI's path, whether it is percent-encoded (as Spark has it) or not (as Hadoop does): they are as many,
    and what kjbod names below a lake is the same in both."""
    path = uri.partition(":")[2]
    below = path[2:].partition("/")[2] if path.startswith("//") else path
    return [part for part in below.split("/") if part]


# silver against audit -------------------------------------------------------------------------------------------------


def _silver(lake: Lake, state: State, stream: str, table: str) -> Iterator[str]:
    files = _by_file(lake, state, stream, table).persist()
    try:
        yield from _totals(files, state, stream, table)
        more = F.col("rows") > F.col("good_lines")
        unknown = F.col("good_lines").isNull()
        if silver_from(state):  # audit of what retention took out may be gone, and a row of it have come late
            unknown = unknown & F.lit(gone(state, f"{AUDIT_FILES.full_name}/{stream}") == 0)
        whole = (F.col("rows") == F.col("good_lines")) & (F.col("rows") == F.col("trailer_rows"))
        altered = whole & (F.col("crc") % _CRC_MODULUS != F.col("trailer_crc") % _CRC_MODULUS)
        yield from _files(
            files.where(unknown), table, "{rows:,} rows of {file}, of which no audit row says that it was kept"
        )
        yield from _files(files.where(more), table, "{rows:,} rows of {file}, which had {good_lines:,} good lines")
        yield from _files(files.where(altered), table, "rows of {file} are not the lines whose sum is in its trailer")
    finally:
        files.unpersist()


def _by_file(lake: Lake, state: State, stream: str, table: str) -> DataFrame:
    """``file, rows, crc`` of silver and ``good_lines, trailer_rows, trailer_crc`` of kept files, null where there is
    none of the one or of the other. Files of one name are one."""
    rows = lake.read(table, state).groupBy(F.col("_file").alias("file"))
    counted = rows.agg(F.count(F.lit(1)).alias("rows"), F.sum("_line").alias("crc"))
    kept = lake.read(AUDIT_FILES.full_name, state).where(F.col("kept") & (F.col("stream") == stream))
    # A file without a trailer has no sum to compare with, nor has one that was read together with it.
    every = F.count("trailer_rows") == F.count(F.lit(1))
    audit = kept.groupBy("file").agg(
        F.sum("good_lines").alias("good_lines"),
        F.when(every, F.sum("trailer_rows")).alias("trailer_rows"),
        F.when(every, F.sum("trailer_crc")).alias("trailer_crc"),
    )
    return counted.join(audit, "file", "full").na.fill(0, ["rows"])


def _totals(files: DataFrame, state: State, stream: str, table: str) -> Iterator[str]:
    (sums,) = files.agg(F.sum("good_lines").alias("good"), F.sum("rows").alias("rows")).collect()
    good = int(sums["good"] or 0) + gone(state, f"{AUDIT_FILES.full_name}/{stream}")
    rows, retained = int(sums["rows"] or 0), gone(state, table)
    notes = (compacted(state, table, date) for date in state.dates(table))
    repeated = sum(note.repeated for note in notes if note)
    if good == rows + repeated + retained:
        return
    yield (
        f"{table}: kept files had {good:,} good lines, and there are {rows:,} rows; {repeated:,} repetitions and"
        f" {retained:,} rows that retention took out leave a difference of {good - rows - repeated - retained:+,}"
    )
    if not repeated and not retained:
        lost = files.where(F.col("rows") < F.col("good_lines"))
        yield from _files(lost, table, "{rows:,} rows of {file}, which had {good_lines:,} good lines")


def _files(files: DataFrame, table: str, text: str) -> Iterator[str]:
    found = files.orderBy("file").limit(SHOWN_MAX + 1).collect()
    for row in found[:SHOWN_MAX]:
        yield f"{table}: {text.format(**row.asDict())}"
    if len(found) > SHOWN_MAX:
        yield f"{table}: and {files.count() - SHOWN_MAX:,} more files like these"


# what was compacted ---------------------------------------------------------------------------------------------------


def _compacted_dates(state: State, broken: set[str]) -> list[tuple[str, str]]:
    return [
        (table, date)
        for table in TABLES
        for date in state.dates(table)
        if is_verified(state, table, date) and state.pieces(table, [date])[0].path not in broken
    ]


def _unchanged(lake: Lake, state: State, table: str, date: str) -> Iterator[str]:
    note = compacted(state, table, date)
    assert note is not None
    now = summary(lake.read(table, state, dates=[date]), TABLES[table])
    if now != Summary(note.rows, note.checksum):
        yield f"{table} of {date}: {note.path} has not the rows any more that compacting verified"


# gold against silver --------------------------------------------------------------------------------------------------


def _whole_hours(state: State, broken: set[str]) -> list[str]:
    """Hours whose gold has to be that of their silver."""
    tables = (SILVER_SAMPLES.full_name, DIR_HOUR.full_name)
    skipped = {piece.date for table in tables for piece in state.pieces(table) if piece.path in broken}
    return [
        hour
        for date in state.dates(SILVER_SAMPLES.full_name)
        if date >= silver_from(state) and date not in skipped
        for hour in state.hours(SILVER_SAMPLES.full_name, date)
        if hour not in state.touched and hour in state.hours(DIR_HOUR.full_name, date)
    ]


def _waiting(state: State) -> Iterator[str]:
    """A line where hours were ingested and not rolled up: nothing of their gold can be compared."""
    waiting = sorted(hours_with_silver(state) & state.touched.keys())
    if waiting:
        span = waiting[0] if len(waiting) == 1 else f"{waiting[0]} to {waiting[-1]}"
        yield f"{plural(len(waiting), 'hour')} of silver without its gold ({span}): run kjbod fleet rollup, then verify"


def _without_gold(state: State) -> Iterator[str]:
    for date in state.dates(SILVER_SAMPLES.full_name):
        gold = set(state.hours(DIR_HOUR.full_name, date))
        lost = [h for h in state.hours(SILVER_SAMPLES.full_name, date) if h not in gold and h not in state.touched]
        if lost and date >= silver_from(state):
            names = ", ".join(hour[11:] for hour in lost)
            yield f"{DIR_HOUR.full_name} of {date}: no rows of {names} h, and silver has"


def _recounted(samples: DataFrame) -> DataFrame:
    """Measures of a directory that only the samples of an hour have."""
    x = F.floor(F.col("ts") % 3_600_000 / 1000).cast("decimal(38,0)")
    y = F.col("bytes_used").cast("decimal(38,0)")
    known = F.col("bytes_used").isNotNull()
    return samples.groupBy(*DIR_HOUR.key).agg(
        F.count(F.lit(1)).alias("samples"),
        F.min("bytes_used").alias("used_min"),
        F.max("bytes_used").alias("used_max"),
        F.count("bytes_used").alias("line_n"),
        F.try_sum(F.when(known, x)).alias("line_x"),
        F.try_sum(y).alias("line_y"),
        F.try_sum(F.when(known, x * y)).cast("decimal(38,0)").alias("line_xy"),
        F.try_sum(F.when(known, x * x)).cast("decimal(38,0)").alias("line_xx"),
        F.try_sum("probes").alias("probes"),
        F.try_sum("probe_failures").alias("probe_failures"),
        F.max("probe_us").alias("probe_us_max"),
        F.try_sum("probe_write_us").alias("probe_write_us_sum"),
        F.try_sum("probe_read_us").alias("probe_read_us_sum"),
        F.count("probe_write_us").alias("probe_n"),
        F.min("smart_passed").alias("smart_passed"),
        F.max("smart_temp_c").alias("smart_temp_c_max"),
    )


def _gold(lake: Lake, state: State, hour: str) -> Iterator[str]:
    samples = each_once(lake.read(SILVER_SAMPLES.full_name, state, hours=[hour]), SILVER_SAMPLES)
    again = _recounted(samples)
    names = [name for name in again.columns if name not in DIR_HOUR.key]
    gold = lake.read(DIR_HOUR.full_name, state, hours=[hour]).where("samples > 0").select(*DIR_HOUR.key, *names)
    left, right = again.alias("silver"), gold.alias("gold")
    same_key = reduce(Column.__and__, (F.col(f"silver.{k}").eqNullSafe(F.col(f"gold.{k}")) for k in DIR_HOUR.key))
    joined = left.join(right, same_key, "full")
    wrong = F.array_compact(F.array(*(F.when(_differ(name), F.lit(name)) for name in names)))
    where = [F.coalesce(F.col(f"silver.{name}"), F.col(f"gold.{name}")).alias(name) for name in ("host", "path")]
    there = [F.col(f"{side}.samples").isNotNull().alias(f"in_{side}") for side in ("silver", "gold")]
    found = joined.select(*where, *there, wrong.alias("wrong")).where(F.size("wrong") > 0)
    for row in found.orderBy("host", "path").limit(SHOWN_MAX).collect():
        yield f"{DIR_HOUR.full_name} of {hour}: {row['host']} {row['path']}: {_told(row)}"


def _differ(name: str) -> Column:
    """A sum of nothing is null or zero: both say that there was nothing. One that does not fit is null in both."""
    silver, gold = (F.coalesce(F.col(f"{side}.{name}").cast("decimal(38,0)"), F.lit(0)) for side in ("silver", "gold"))
    return silver != gold


def _told(row: Row) -> str:
    if not row["in_gold"]:
        return "silver has samples of it, and gold has no row"
    if not row["in_silver"]:
        return "gold has a row, and silver has no sample of it"
    return f"{', '.join(row['wrong'])} differ from silver"
