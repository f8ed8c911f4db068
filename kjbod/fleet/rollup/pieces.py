"""Rows of gold as Parquet files whose bytes depend on nothing but the rows.

The rows go to as many files as their number asks for, each to the one that its host's hash names, in the order of the
table's key: so neither the order in which Spark meets them nor how many tasks it has is to be seen.

Each write of Spark's is planned, started and committed on its own, which for some thousand rows costs many times what
the rows do. So the hours of a backlog, and its dates, are written together, each to a directory of its own.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import Piece
from kjbod.fleet.tables import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_OF_A_FILE = 250_000


def write(lake: Lake, table: str, rows: "DataFrame", date: str, hour: str | None, directories: int) -> Piece | None:
    """Write rows of one date, or of one hour (``HH``) of it, of a table; None if there are none. ``directories``: how
    many the date or the hour has, by which the number of files goes.

    Nothing counts until a commit names the piece."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F  # noqa: N812

    known = TABLES[table]
    files = files_of(directories)
    apart = rows.repartition(files, "host") if files > 1 and "host" in known.columns else rows.repartition(1)
    written = Observation()
    in_order = apart.sortWithinPartitions(*known.key).observe(written, F.count(F.lit(1)).alias("rows"))
    parts = (f"date={date}",) if hour is None else (f"date={date}", f"hour={hour}")
    path = lake.new_directory(table, *parts)
    in_order.write.parquet(lake.full(path))
    count = int(written.get["rows"])
    if not count:
        lake.files.delete(path)
        return None
    return Piece(path, date, () if hour is None else (hour,), count)


At = tuple[str, str | None]
"""A date and an hour (``HH``) of it, or a date."""


def files_of(directories: int) -> int:
    """Files of a date or an hour that has so many directories."""
    return 1 + directories // ROWS_OF_A_FILE


def write_each(lake: Lake, table: str, rows: "DataFrame", counts: Mapping[At, int]) -> list[Piece]:
    """Write rows of several dates, or of several hours, of a table, in one job: for each the file that :func:`write`
    makes, so it is for those that have one file each.

    Args:
        counts: rows of each date, or of each hour. Rows of others are left out.

    Nothing counts until a commit names the pieces."""
    from pyspark.sql import functions as F  # noqa: N812

    known, there = TABLES[table], {at: count for at, count in counts.items() if count}
    if not there:
        return []
    names = ("date", "hour") if known.hourly else ("date",)
    wanted = F.concat_ws("T", *names).isin(["T".join(part for part in at if part) for at in sorted(there)])
    # Files keep these columns, so the names of folders are others.
    folders = {folder: F.col(name) for folder, name in zip(("on", "at"), names, strict=False)}
    apart = rows.where(wanted).withColumns(folders).repartition(*folders)
    path = lake.new_directory(table)
    apart.sortWithinPartitions(*folders, *known.key).write.partitionBy(*folders).parquet(lake.full(path))
    return [
        Piece(f"{path}/on={date}" + (f"/at={hour}" if hour else ""), date, (hour,) if hour else (), count)
        for (date, hour), count in sorted(there.items())
    ]


def counted(rows: "DataFrame", table: str) -> dict[At, int]:
    """Rows of each date of a table, or of each hour where it has hours."""
    hourly = TABLES[table].hourly
    found = rows.groupBy("date", "hour").count() if hourly else rows.groupBy("date").count()
    return {(row["date"], row["hour"] if hourly else None): row["count"] for row in found.collect()}
