"""The one proof that a lake holds a report file, and deleting those of an inbox of which it does, and nothing else.

A file is held when a committed account of it says so (ok, partial or damaged: its good lines are rows, its bad ones are
in the quarantine), it still has the size that it had, and its lines, read once more, have the sum that they had. A file
is known by the URI that Spark has for it, and none is deleted by way of a symbolic link.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from kjbod.fleet.ingest.inbox import Inbox
from kjbod.fleet.ingest.lines import file_columns, folders_of, plain, reading_options
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.read import FILE_PATTERN
from kjbod.fleet.schema import STREAMS, TRAILER_DDL
from kjbod.fleet.svg import plural
from kjbod.fleet.tables import AUDIT_FILES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

_CHUNK = 2_000
"""Files of which the driver has the names at a time."""
_LINE_BYTES_MAX = 1 << 27
"""Far more than ingest reads: a line that was too long for it is nowhere in the lake, and has to be seen here."""


def delete_held(lake: Lake, inbox: str, progress: Callable[[str], None]) -> int:
    """Delete those of an inbox. Returns how many; says of which it was refused.

    Raises:
        FleetError: the lake cannot be read.
    """
    inbox_files = Inbox(lake.spark, inbox)
    deleted = refused = 0
    for uri in held(lake, inbox):
        if inbox_files.delete_uri(uri):
            deleted += 1
        else:
            refused += 1
    if deleted or refused:
        more = f"; {plural(refused, 'file')} could not be deleted" if refused else ""
        progress(f"{inbox}: deleted {plural(deleted, 'file')} that the lake holds{more}")
    return deleted


def held(
    lake: Lake, inbox: str, before: str | None = None, may_go: Callable[["Row"], bool] = lambda _file: True
) -> Iterator[str]:
    """URIs of the files of an inbox that the lake holds: of all folders, or of those of dates before ``before``; and
    only files of which ``may_go`` says so (``stream``, ``first_ts`` and ``last_ts`` of its good lines).

    Raises:
        FleetError: the lake or the inbox cannot be read.
    """
    inbox_files = Inbox(lake.spark, inbox)
    found = filter(may_go, _candidates(lake, inbox, before).toLocalIterator())
    while chunk := [row["uri"] for row in islice(found, _CHUNK)]:
        yield from (uri for uri in _unchanged(lake, inbox, chunk) if not inbox_files.is_by_link(uri))


def files_before(lake: Lake, inbox: str, before: str) -> int:
    """Number of finished files an inbox has in folders of dates before ``before``."""
    there = _there(lake, inbox, before)
    return there.count() if there is not None else 0


def _there(lake: Lake, inbox: str, before: str | None) -> "DataFrame | None":
    """``uri, bytes`` of finished files."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    reader = lake.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        files = reader.option("pathGlobFilter", FILE_PATTERN).load(folders_of(inbox))
    except AnalysisException:  # no folder any more
        return None
    there = files.select(plain(F.col("_metadata.file_path")).alias("uri"), F.col("length").alias("bytes"))
    if before is None:
        return there
    below = F.substr("uri", F.lit(len(Inbox(lake.spark, inbox).uri()) + 1))
    date = F.regexp_extract(below, rf"^/(?:{'|'.join(STREAMS)})/date=(\d{{4}}-\d\d-\d\d)/", 1)
    return there.where((date != "") & (date < before))


def _candidates(lake: Lake, inbox: str, before: str | None) -> "DataFrame":
    """``uri, stream, first_ts, last_ts``: files that are there and are kept, by their size."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = lake.read(AUDIT_FILES.full_name, lake.state()).where(F.col("kept") & (F.col("inbox") == inbox))
    there = _there(lake, inbox, before)
    if there is None:
        return kept.limit(0)
    return (
        kept.join(there, ["uri", "bytes"], "left_semi")
        .groupBy("uri", "stream")  # of one that was written anew, the dates of all that was kept of it
        .agg(F.min("first_ts").alias("first_ts"), F.max("last_ts").alias("last_ts"))
    )


def _unchanged(lake: Lake, inbox: str, uris: list[str]) -> Iterator[str]:
    """Files whose lines are still those that were taken."""
    from pyspark.sql import functions as F  # noqa: N812

    spark = lake.spark
    wanted = spark.createDataFrame([(uri,) for uri in uris], "_uri STRING")
    paths = Inbox(spark, inbox).paths_of(uris)
    # What cannot be read any more, or is gone meanwhile, has fewer lines than were taken.
    reader = spark.read.options(
        **reading_options(_LINE_BYTES_MAX), ignoreCorruptFiles="true", ignoreMissingFiles="true"
    )
    text = reader.text(list(paths)).select("value", *file_columns())
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
