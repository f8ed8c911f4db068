"""Ingest without a stream: through Spark Connect, where the server takes the batches of a stream and not this process.

New is a file that the account of the lake (``audit.files``) does not name. The names come from Spark, some at a time in
their order; a batch of them is taken and committed as one of a stream is, so that a file that a stream takes as well
counts once. Spark names no file of no bytes: such a one, which a stream calls unreadable, is passed over.
"""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from kjbod.fleet.command import spark_reason
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.ingest.batch import TakeBatch
from kjbod.fleet.ingest.checkpoint import Run
from kjbod.fleet.ingest.inbox import open_inbox
from kjbod.fleet.ingest.lines import folders_of, line_columns, plain, reading_options
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.read import FILE_PATTERN
from kjbod.fleet.svg import plural
from kjbod.fleet.tables import AUDIT_FILES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run_of(inbox: str) -> Run:
    """The run under which files of an inbox are taken without a stream. There is one, and it has no checkpoint."""
    return Run(inbox, f"listed-{hashlib.sha256(inbox.encode()).hexdigest()[:16]}", 0)


def take_listed(
    spark: "SparkSession",
    lake: Lake,
    inbox_uri: str,
    progress: Callable[[str], None],
    files_max: int,
    *,
    rescan: bool = False,
) -> None:
    """Take what is new in an inbox; ``rescan``: all that is there.

    Raises:
        FleetError: a batch failed, and does not count.
    """
    inbox, run = open_inbox(spark, inbox_uri), run_of(inbox_uri)
    taken, last = 0, ""
    while uris := _next(spark, lake, inbox_uri, last, files_max, rescan=rescan):
        named = spark.createDataFrame([(uri,) for uri in uris], "_uri STRING")
        text = spark.read.options(**reading_options()).text(list(inbox.paths_of(uris)))
        number = lake.state().batches.get(run.id, -1) + 1
        taking = TakeBatch(lake, run, inbox.uri(), progress, lambda _number, names=named: names)  # type: ignore[misc]
        try:
            taking(text.select(*line_columns()), number)
        except FleetError:
            raise
        except Exception as error:
            raise FleetError(
                f"{inbox_uri}: a batch failed and does not count: {spark_reason(error)}: run it again when it is mended"
            ) from error
        taken, last = taken + len(uris), uris[-1]
        progress(f"batch {number}: {plural(taken, 'file')}")


def _next(spark: "SparkSession", lake: Lake, inbox: str, last: str, files_max: int, *, rescan: bool) -> list[str]:
    """Names of files that are new, those after ``last``."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    there: DataFrame = reader.option("pathGlobFilter", FILE_PATTERN).load(folders_of(inbox))
    found = there.select(plain(F.col("_metadata.file_path")).alias("uri")).where(F.col("uri") > last)
    if not rescan:
        known = lake.read(AUDIT_FILES.full_name, lake.state()).select("uri")
        found = found.join(known, "uri", "left_anti")
    try:
        return [row["uri"] for row in found.sort("uri").limit(files_max).collect()]
    except AnalysisException as error:
        if "PATH_NOT_FOUND" in str(error):  # no folder yet
            return []
        raise
