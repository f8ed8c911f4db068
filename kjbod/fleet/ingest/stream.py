"""Ingest of any number of inboxes into a lake, on a session that is there."""

import contextlib
import dataclasses
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kjbod.fleet.ahead import Ahead
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.ingest.checkpoint import LOG_COMPACT_INTERVAL, Run, files_of_batch, noted, open_run
from kjbod.fleet.ingest.inbox import open_inbox
from kjbod.fleet.ingest.listing import run_of, take_listed
from kjbod.fleet.lake.files import refuse_glob
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import Piece, State
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS
from kjbod.fleet.session import is_connect, needs_java
from kjbod.fleet.svg import plural
from kjbod.fleet.tables import AUDIT_FILES, SILVER_EVENTS, SILVER_SAMPLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FILES_MAX = 2_000
"""Files of a batch: what it keeps on the driver (their names, where nothing of them could be read) is bounded by it."""
BAD_FILES_MAX = 20
"""Files that were set aside, or have bad lines, which a result names."""
_POLL_S = 1
_COMPACT = "spark.sql.streaming.fileSource.log.compactInterval"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class IngestResult:
    """Result of an ingest."""

    files: Mapping[str, int]
    """By status."""
    rows: Mapping[str, int]
    """Of samples and of events that the lake has now, repetitions among them included."""
    bad_lines: int
    """Of files that were kept; of the others all lines are set aside."""
    hours: tuple[str, ...]
    """``2026-11-01T03``, those that have new rows."""
    batches: int
    bad_files: tuple[Mapping[str, Any], ...]
    """Some of those that were set aside or have bad lines, rows of ``audit.files``."""
    deleted: int = 0
    """Files of inboxes."""

    @property
    def is_clean(self) -> bool:
        """Whether nothing was set aside."""
        return not self.bad_files


def inbox_uri(spark: "SparkSession", given: str) -> str:
    """The URI of an inbox, as the lake remembers it.

    Raises:
        FleetError: there is none, or its name would be a pattern.
    """
    files = open_inbox(spark, given)
    refuse_glob("--reports", given, files.root)
    if ":" in re.sub("^[^/]+:(//[^/]*)?", "", files.root):  # its folders are found by a pattern
        raise FleetError(f"--reports {given}: not with a colon in its name, which Hadoop's patterns do not take")
    if not files.is_directory():
        raise FleetError(
            f"no reports directory {files.root}: give the one of kjbod.reports.dir, or where it is copied to"
        )
    return files.root


def ingest_into(
    spark: "SparkSession",
    lake: Lake,
    inbox_uris: Iterable[str],
    progress: Progress,
    *,
    files_max: int = FILES_MAX,
    rescan: bool = False,
    every_s: float | None = None,
    delete_ingested: bool = False,
    then: Callable[[], bool] | None = None,
    ahead: Ahead | None = None,
) -> IngestResult:
    """Take what is new in some inboxes, each file once. The caller holds the claim ``ingest``.

    Args:
        files_max: files of a batch.
        rescan: read the inboxes anew, and take what the lake does not have.
        every_s: do not end, and look again each so many seconds. It ends by an exception.
        delete_ingested: delete files that the lake proves to hold.
        then: with ``every_s``: to be called at the beginning, and whenever something was taken, on this thread, while
            no batch is being taken. It says whether it could do what it is to do; else it is called again.
        ahead: what waits, where somebody has looked before Spark was started.

    Raises:
        FleetError: no such inbox; a checkpoint that is not the lake's; or a batch failed, and does not count.
    """
    inboxes = list(dict.fromkeys(inbox_uri(spark, given) for given in inbox_uris))
    before = lake.state()
    if is_connect(spark):
        if delete_ingested:
            needs_java(spark, "--delete-ingested")
        _take_listed(spark, lake, inboxes, progress, files_max, every_s, rescan=rescan, then=then)
        return result_since(lake, before, [run_of(inbox) for inbox in inboxes])
    runs = [open_run(lake, inbox, rescan=rescan) for inbox in inboxes]
    if every_s is None:
        for run in runs:
            _take_what_is_there(spark, lake, run, progress, files_max, ahead, is_alone=len(runs) == 1)
    else:
        _follow(spark, lake, runs, progress, files_max, every_s, delete_ingested=delete_ingested, then=then)
    result = result_since(lake, before, runs)
    if not delete_ingested:
        return result
    from kjbod.fleet.ingest.deletion import delete_held

    deleted = sum(delete_held(lake, inbox, progress) for inbox in inboxes)
    return dataclasses.replace(result, deleted=deleted)


@contextlib.contextmanager
def _settings(spark: "SparkSession") -> Iterator[None]:
    """For a query that is started meanwhile: it keeps the session's settings of that moment."""
    wanted = {_COMPACT: str(LOG_COMPACT_INTERVAL), "spark.sql.files.ignoreCorruptFiles": "true"}
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, wish in wanted.items():
        spark.conf.set(name, wish)
    try:
        yield
    finally:
        with contextlib.suppress(Exception):  # the session may be gone
            for name, value in before.items():
                spark.conf.unset(name) if value is None else spark.conf.set(name, value)


def _take_listed(
    spark: "SparkSession",
    lake: Lake,
    inboxes: Sequence[str],
    progress: Progress,
    files_max: int,
    every_s: float | None,
    *,
    rescan: bool,
    then: Callable[[], bool] | None,
) -> None:
    for inbox in inboxes:
        take_listed(spark, lake, inbox, progress, files_max, rescan=rescan)
    if every_s is None:
        return
    progress(f"{plural(len(inboxes), 'inbox', 'inboxes')} followed, each {every_s:g} s")
    while True:
        if then is not None:
            then()
        threading.Event().wait(every_s)
        for inbox in inboxes:
            take_listed(spark, lake, inbox, progress, files_max)


def _query(
    spark: "SparkSession",
    lake: Lake,
    run: Run,
    progress: Progress,
    files_max: int,
    trigger: Mapping[str, Any],
    input_bytes: int = 0,
) -> tuple["StreamingQuery", Any]:
    from kjbod.fleet.ingest.batch import TakeBatch
    from kjbod.fleet.ingest.lines import arriving

    def files_of(number: int) -> "DataFrame":
        return files_of_batch(lake, run.checkpoint, number)

    taking = TakeBatch(lake, run, open_inbox(spark, run.inbox).uri(), progress, files_of, input_bytes)
    writer = arriving(spark, run.inbox, files_max).writeStream.foreachBatch(taking)
    writer = writer.option("checkpointLocation", lake.full(run.checkpoint)).trigger(**trigger)
    with _settings(spark):
        return writer.start(), taking


def _take_what_is_there(
    spark: "SparkSession",
    lake: Lake,
    run: Run,
    progress: Progress,
    files_max: int,
    ahead: Ahead | None,
    *,
    is_alone: bool,
) -> None:
    size = ahead.new_bytes if ahead else 0
    query, taking = _query(spark, lake, run, progress, files_max, {"availableNow": True}, size)
    with _stopped(query):
        # Spark counts them while the query lists them too.
        waiting = ahead.files if ahead and is_alone else max(_files_there(spark, run.inbox) - run.files, 0)
        progress(f"{run.inbox}: {plural(waiting, 'new file')}, so many at a time: {files_max:,}")
        telling = _Telling(lake, run, waiting, progress)
        while not _ended(query, taking):
            telling.tell(query)
    telling.tell(query)


def _follow(
    spark: "SparkSession",
    lake: Lake,
    runs: Sequence[Run],
    progress: Progress,
    files_max: int,
    every_s: float,
    *,
    delete_ingested: bool,
    then: Callable[[], bool] | None,
) -> None:
    from kjbod.fleet.ingest.batch import one_at_a_time
    from kjbod.fleet.ingest.deletion import delete_held

    trigger = {"processingTime": f"{every_s} seconds"}
    with contextlib.ExitStack() as stack:
        followed = []
        for run in runs:
            query, taking = _query(spark, lake, run, progress, files_max, trigger)
            stack.enter_context(_stopped(query))
            followed.append((query, taking, _Telling(lake, run, 0, progress)))
            progress(f"{run.inbox}: followed, each {every_s:g} s")
        is_due = True  # what an earlier process took may not have been followed by it
        while True:
            for query, taking, telling in followed:
                _ended(query, taking)
                if telling.tell(query):
                    is_due = True
                    if delete_ingested:
                        delete_held(lake, telling.run.inbox, progress)
            if then is not None and is_due and one_at_a_time.acquire(blocking=False):  # else a batch is being taken
                try:
                    is_due = not then()
                finally:
                    one_at_a_time.release()


@contextlib.contextmanager
def _stopped(query: "StreamingQuery") -> Iterator[None]:
    try:
        yield
    finally:
        with contextlib.suppress(Exception):
            query.stop()


def _ended(query: "StreamingQuery", taking: Any) -> bool:
    """Whether it has taken all; waits a moment.

    Raises:
        FleetError: it has failed.
    """
    from pyspark.errors import StreamingQueryException

    from kjbod.fleet.command import spark_reason

    try:
        return bool(query.awaitTermination(_POLL_S))
    except StreamingQueryException as error:
        failure: Exception = taking.failure or error
    if isinstance(failure, FleetError):
        raise failure
    reason = spark_reason(failure)
    hint = "make room, and run it again" if "No space left" in reason else "run it again when it is mended"
    raise FleetError(f"{taking.run.inbox}: a batch failed and does not count: {reason}: {hint}") from failure


class _Telling:
    """Says how far a query is, as Spark reports it after each batch."""

    def __init__(self, lake: Lake, run: Run, waiting: int, progress: Progress) -> None:
        self.run = run
        self._lake = lake
        self._waiting = waiting
        self._progress = progress
        self._told = -1
        self._rows = 0
        self._ms = 0

    def tell(self, query: "StreamingQuery") -> bool:
        """Whether there was a batch since."""
        new = [p for p in query.recentProgress if p["batchId"] > self._told and p["numInputRows"]]
        if not new:
            return False
        self._told = new[-1]["batchId"]
        self._rows += sum(p["numInputRows"] for p in new)
        self._ms += sum(p["durationMs"].get("triggerExecution", 0) for p in new)
        now = noted(self._lake.state(), self.run.inbox)
        files = now.files - self.run.files if now is not None and now.id == self.run.id else 0
        left = f" of {self._waiting:,}, {self._left(files)}" if files < self._waiting else ""
        self._progress(f"batch {self._told}: {self._rows:,} lines, {files:,} files{left}")
        return True

    def _left(self, files: int) -> str:
        if not files:
            return "time left not known"
        return f"about {self._ms * (self._waiting - files) / files / 1000:.0f} s left"


def _files_there(spark: "SparkSession", inbox: str) -> int:
    """Finished files of an inbox, counted where Spark lists them."""
    from pyspark.errors import AnalysisException

    from kjbod.fleet.ingest.lines import folders_of
    from kjbod.fleet.read import FILE_PATTERN

    reader = spark.read.format("binaryFile").option("recursiveFileLookup", "true")
    try:
        return reader.option("pathGlobFilter", FILE_PATTERN).load(folders_of(inbox)).select("path").count()
    except AnalysisException:  # no folder yet
        return 0


def result_since(lake: Lake, before: State, runs: Sequence[Run]) -> IngestResult:
    """Sum up what was taken in some runs since a state, as the lake has it."""
    from pyspark.sql import functions as F  # noqa: N812

    after = lake.state()
    ids = [run.id for run in runs]

    def new(table: str) -> list[Piece]:
        named = {f"run={run}" for run in ids}
        return [p for p in after.pieces(table) if p.made > before.version and not named.isdisjoint(p.path.split("/"))]

    pieces = {SAMPLES: new(SILVER_SAMPLES.full_name), EVENTS: new(SILVER_EVENTS.full_name)}
    audit = new(AUDIT_FILES.full_name)
    files: dict[str, int] = {}
    bad_lines = 0
    bad_files: list[Mapping[str, Any]] = []
    if audit:
        rows = lake.read_pieces(AUDIT_FILES.full_name, audit)
        counted = rows.groupBy("status", "kept").agg(F.count("*").alias("n"), F.sum("bad_lines").alias("bad")).collect()
        files = {row["status"]: row["n"] for row in sorted(counted, key=lambda row: str(row["status"]))}
        bad_lines = sum(row["bad"] for row in counted if row["kept"])
        if bad_lines or any(not row["kept"] and row["status"] != "repeated" for row in counted):
            is_bad = (~F.col("kept") & (F.col("status") != "repeated")) | (F.col("kept") & (F.col("bad_lines") > 0))
            found = rows.where(is_bad).sort("kept", "stream", "file", "uri").limit(BAD_FILES_MAX).collect()
            bad_files = [row.asDict() for row in found]
    hours = {f"{p.date}T{hour}" for of_stream in pieces.values() for p in of_stream for hour in p.hours}
    taken = sum(after.batches.get(run, -1) - before.batches.get(run, -1) for run in ids)
    return IngestResult(
        files=files,
        rows={stream: sum(p.rows for p in pieces[stream]) for stream in STREAMS},
        bad_lines=bad_lines,
        hours=tuple(sorted(hours)),
        batches=taken,
        bad_files=tuple(bad_files),
    )
