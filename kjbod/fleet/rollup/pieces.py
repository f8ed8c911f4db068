"""Rows of gold as Parquet files whose bytes depend on nothing but the rows.

The rows go to as many files as their number asks for, each to the one that its host's hash names, in the order of the
table's key: so neither the order in which Spark meets them nor how many tasks it has is to be seen.
"""

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
    files = 1 + directories // ROWS_OF_A_FILE
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
