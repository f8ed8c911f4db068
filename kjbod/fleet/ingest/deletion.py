"""Deletes files of an inbox that the lake proves to hold, and nothing else.

A file is held when a committed account of it says so (ok, partial or damaged: its good lines are rows, its bad ones are
in the quarantine), it still has the size that it had, and its lines, read once more, have the sum that they had.
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from kjbod.fleet.ingest.inbox import Inbox
from kjbod.fleet.ingest.lines import file_columns, folders_of, plain, reading_options
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.read import FILE_PATTERN
from kjbod.fleet.schema import TRAILER_DDL
from kjbod.fleet.svg import plural
from kjbod.fleet.tables import AUDIT_FILES

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

_CHUNK = 2_000
"""Files of which the driver has the names at a time."""


def delete_held(lake: Lake, inbox: str, progress: "Callable[[str], None]") -> int:
    """Delete those of an inbox. Returns how many; says of which it was refused.

    Raises:
        FleetError: the lake cannot be read.
    """
    inbox_files = Inbox(lake.spark, inbox)
    deleted = refused = 0
    found = iter(_candidates(lake, inbox).toLocalIterator())
    while chunk := [row["_uri"] for row in islice(found, _CHUNK)]:
        for uri in _unchanged(lake, inbox, chunk):
            if inbox_files.delete_uri(uri):
                deleted += 1
            else:
                refused += 1
    if deleted or refused:
        more = f"; {plural(refused, 'file')} could not be deleted" if refused else ""
        progress(f"{inbox}: deleted {plural(deleted, 'file')} that the lake holds{more}")
    return deleted


def _candidates(lake: Lake, inbox: str) -> "DataFrame":
    """``_uri``: files that are there and are kept, by their size."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    state = lake.state()
    kept = lake.read(AUDIT_FILES.full_name, state).where(F.col("kept") & (F.col("inbox") == inbox))
    reader = lake.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        there = reader.option("pathGlobFilter", FILE_PATTERN).load(folders_of(inbox))
    except AnalysisException:  # no folder any more
        return kept.select(F.col("uri").alias("_uri")).limit(0)
    there = there.select(plain(F.col("_metadata.file_path")).alias("uri"), F.col("length").alias("bytes"))
    return there.join(kept.select("uri", "bytes"), ["uri", "bytes"], "left_semi").select(F.col("uri").alias("_uri"))


def _unchanged(lake: Lake, inbox: str, uris: list[str]) -> Iterator[str]:
    """Files whose lines are still those that were taken."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = lake.spark
    wanted = spark.createDataFrame([(uri,) for uri in uris], "_uri STRING")
    paths = Inbox(spark, inbox).paths_of(uris)
    text = spark.read.options(**reading_options()).text(list(paths)).select("value", *file_columns())
    trailer: Any = F.from_json("value", TRAILER_DDL)
    is_trailer = F.coalesce((trailer.k == "eof") & trailer.rows.isNotNull() & trailer.crc32.isNotNull(), F.lit(False))
    now = (
        text.groupBy("_uri", "_bytes")
        .agg(F.count_if(~is_trailer).alias("lines"), F.sum(F.when(~is_trailer, F.crc32("value"))).alias("crc"))
        .select(
            F.col("_uri").alias("uri"), F.col("_bytes").alias("bytes"), "lines", (F.col("crc") % 2**32).alias("crc")
        )
    )
    kept = lake.read(AUDIT_FILES.full_name, lake.state()).where(F.col("kept") & (F.col("inbox") == inbox))
    kept = kept.join(F.broadcast(wanted.withColumnRenamed("_uri", "uri")), "uri", "left_semi")
    same = now.join(kept.select("uri", "bytes", "lines", "crc"), ["uri", "bytes", "lines", "crc"], "left_semi")
    yield from sorted(row["uri"] for row in same.select("uri").collect())
