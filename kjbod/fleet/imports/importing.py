"""``kjbod fleet import``: published CSV files to tables of a lake, in one commit.

Importing a day again replaces it; tickets that are there already are there once. Nothing counts before the commit, and
a file of which more than :data:`BAD_SHARE_MAX` cannot be used is not of its kind, so that nothing of it is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.command import EXIT_DATA, EXIT_OK, Running
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.imports import alibaba, backblaze
from kjbod.fleet.imports.formats import BACKBLAZE, POH_MAX
from kjbod.fleet.imports.sources import described, files_of, lines_of
from kjbod.fleet.insight.model import RateOf
from kjbod.fleet.insight.reliability import DRIVE_DAYS_MIN, bursts, exposure, failures_of_tickets, ranked, rates_of
from kjbod.fleet.lake.claim import claimed
from kjbod.fleet.lake.lake import Lake, open_lake
from kjbod.fleet.lake.state import ALL_DATES, LostPiecesError, Piece, State
from kjbod.fleet.tables import IMPORTED_DRIVE_DAY, IMPORTED_TICKET
from kjbod.output import plural, safe, table

BAD_SHARE_MAX = 0.01
BY = "import"
ATTEMPTS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Rows of the files that are imported."""

    rows: int
    set_aside: int
    wrong: str | None
    """Column for which the first of them was."""
    said: str | None
    file: str | None
    no_capacity: int
    no_poh: int


def import_files(running: Running, source: str, uris: Sequence[str], lake_uri: str) -> int:
    """Import and say what came of it. Gives the exit code.

    Raises:
        FleetError: a file is not of ``source``, or the lake cannot be written.
    """
    with running.watched_session() as spark:
        lake = open_lake(spark, lake_uri, create=True)
        with claimed(lake, BY):
            return import_into(lake, source, uris, running.progress, running.print)


def import_into(
    lake: Lake, source: str, uris: Sequence[str], progress: Callable[[str], None], say: Callable[..., None]
) -> int:
    """Import into an open lake, say it, give the exit code.

    Raises:
        FleetError: a file is not of ``source``, or the lake cannot be written.
    """
    spark = lake.spark
    maker: ModuleType = backblaze if source == BACKBLAZE else alibaba
    files = files_of(spark, uris)
    progress(f"reading {described(files)}")
    rows = maker.parsed(lines_of(spark, source, files)).persist(StorageLevel.MEMORY_AND_DISK)
    try:
        quality = quality_of(rows)
        refuse(source, quality)
        good = maker.each_once(rows.where(F.col("wrong").isNull()))
        progress(f"writing {quality.rows - quality.set_aside:,} rows")
        pieces = _imported(lake, source, good)
    finally:
        rows.unpersist()
    kept = sum(piece.rows for piece in pieces)
    say(*_told(quality, kept))
    say(*(_drive_days_told if source == BACKBLAZE else _tickets_told)(lake, pieces))
    return EXIT_DATA if quality.set_aside else EXIT_OK


def quality_of(rows: DataFrame) -> Quality:
    """Counts of the parsed rows that can be used, and of those that cannot."""
    bad = F.col("wrong").isNotNull()
    first = F.min(F.when(bad, F.struct("file", "wrong", "said"))).alias("first")
    counts = (F.count_if(name).alias(name) for name in ("no_capacity", "no_poh"))
    found = rows.agg(F.count(F.lit(1)).alias("rows"), F.count_if(bad).alias("bad"), first, *counts).collect()[0]
    file, wrong, said = found.first or (None, None, None)
    return Quality(
        rows=found.rows,
        set_aside=found.bad,
        wrong=wrong,
        said=said,
        file=file,
        no_capacity=found.no_capacity,
        no_poh=found.no_poh,
    )


def refuse(source: str, quality: Quality) -> None:
    """Raises:
    FleetError: too little of the files can be used."""
    if not quality.rows:
        raise FleetError(f"the files have the columns of {source} and no rows: fetch them again")
    if quality.set_aside > BAD_SHARE_MAX * quality.rows:
        raise FleetError(
            f"{quality.set_aside:,} of {quality.rows:,} rows cannot be used, such as one of {safe(quality.file)} with"
            f" the {quality.wrong} {safe(quality.said)!r}: nothing was imported; give the files as published"
        )


def with_imported(state: State, source: str, pieces: Sequence[Piece], seen: State) -> State:
    """``pieces`` in the place of what was imported of the same dates before, which ``seen`` has.

    Raises:
        LostPiecesError: another import has replaced it, or was first.
    """
    name = (IMPORTED_DRIVE_DAY if source == BACKBLAZE else IMPORTED_TICKET).full_name
    dates = {piece.date for piece in pieces}
    state.check_same(seen, name, dates=dates)
    return state.with_pieces(name, pieces, replaced=seen.pieces(name, dates))


def _imported(lake: Lake, source: str, rows: DataFrame) -> list[Piece]:
    for _ in range(ATTEMPTS_MAX):
        seen = lake.state()
        pieces = _write_days(lake, rows) if source == BACKBLAZE else _write_tickets(lake, rows, seen)
        try:
            lake.commit(lambda now, seen=seen, pieces=pieces: with_imported(now, source, pieces, seen), BY)  # type: ignore[misc]
        except LostPiecesError:
            continue  # tickets are made of those that were there
        return pieces
    raise FleetError(f"{lake.uri}: others import the same all the time: try again")


def _write_days(lake: Lake, rows: DataFrame) -> list[Piece]:
    """A directory for each date, with one file or a few."""
    name = IMPORTED_DRIVE_DAY.full_name
    root = lake.new_directory(name, "imports")
    inside = rows.repartition("date").sortWithinPartitions("date", *IMPORTED_DRIVE_DAY.key)
    # The rows keep their date: whoever reads one directory gets no column out of its name.
    inside.withColumn("day", F.col("date")).write.partitionBy("day").parquet(lake.full(root))
    written = lake.spark.read.schema(f"{IMPORTED_DRIVE_DAY.ddl}, day STRING").parquet(lake.full(root))
    counts = written.groupBy("date").count().orderBy("date").collect()
    return [Piece(f"{root}/day={row['date']}", row["date"], (), row["count"]) for row in counts]


def _write_tickets(lake: Lake, rows: DataFrame, seen: State) -> list[Piece]:
    """A piece of all tickets: a few thousand a year are no directory a day."""
    name = IMPORTED_TICKET.full_name
    together = alibaba.each_once(lake.read(name, seen).unionByName(rows))
    root = lake.new_directory(name, f"date={ALL_DATES}")
    together.coalesce(1).sortWithinPartitions(*IMPORTED_TICKET.key).write.parquet(lake.full(root))
    return [Piece(root, ALL_DATES, (), lake.spark.read.schema(IMPORTED_TICKET.ddl).parquet(lake.full(root)).count())]


def _told(quality: Quality, kept: int) -> list[str]:
    lines = [f"{quality.rows:,} rows read, {kept:,} in the lake of these dates"]
    if quality.set_aside:
        lines.append(
            f"{plural(quality.set_aside, 'row')} set aside, such as one of {safe(quality.file)} with the"
            f" {quality.wrong} {safe(quality.said)!r}"
        )
    if quality.no_capacity:
        lines.append(f"{quality.no_capacity:,} with a capacity below zero: taken as not known")
    if quality.no_poh:
        lines.append(f"{quality.no_poh:,} with power-on hours beyond {POH_MAX:,} (12 years): taken as not known")
    return lines


def _drive_days_told(lake: Lake, pieces: Sequence[Piece]) -> list[str]:
    rates = rates_of(exposure(lake.read_pieces(IMPORTED_DRIVE_DAY.full_name, pieces)))
    shown = ranked(rates["model"], DRIVE_DAYS_MIN)
    hidden = len(rates["model"]) - len(shown)
    head = ["model", ">drive-days", ">failures", ">AFR %", ">95 % limits"]
    lines = table(head, [rate_cells(each) for each in (*rates["whole"], *shown)])
    rest = [f"{plural(hidden, 'model')} with fewer than {DRIVE_DAYS_MIN:,} drive-days not shown"] if hidden else []
    return [f"{pieces[0].date} to {pieces[-1].date}", *lines, *rest]


def rate_cells(of: RateOf) -> list[str]:
    """A line of a table of rates."""
    rate = of.rate
    known = rate.low_pct is not None and rate.high_pct is not None
    limits = f"{rate.low_pct:.2f} to {rate.high_pct:.2f}" if known else "too few drive-days"
    middle = f"{rate.afr_pct:.2f}" if rate.failures and rate.afr_pct is not None else "-"
    return [safe(of.name) or "all", f"{rate.drive_days:,}", f"{rate.failures:,}", middle, limits]


def _tickets_told(lake: Lake, pieces: Sequence[Piece]) -> list[str]:
    found = bursts(failures_of_tickets(lake.read_pieces(IMPORTED_TICKET.full_name, pieces)))
    return [
        f"{found.failures:,} tickets; with another within {found.within_minutes} minutes in the same host"
        f" {found.same_host_pct or 0:.2f} %, in the same rack {found.same_rack_pct or 0:.2f} %"
    ]
