"""Take a batch of an inbox into the lake: staged, judged, written, and named by one commit."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import StorageLevel
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.ingest import account
from kjbod.fleet.ingest.checkpoint import Run, noted, with_note
from kjbod.fleet.ingest.inbox import open_inbox
from kjbod.fleet.ingest.lines import parsed
from kjbod.fleet.ingest.staging import WRITING, staged_lines, staged_samples, staged_text, write_staged
from kjbod.fleet.lake.lake import HOUR_MS, Lake
from kjbod.fleet.lake.state import BATCH, STAGED, Piece, State
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS, TRAILER_DDL
from kjbod.fleet.session import tuned_to_parse
from kjbod.fleet.tables import AUDIT_FILES, AUDIT_QUARANTINE, SILVER_EVENTS, SILVER_SAMPLES, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_A_FILE = 400_000
"""Rows of an hour from which on it is more than one file."""
TASKS_MAX = 8
"""Of a batch of many small hours."""
UNREADABLE_SAID = 10
_SILVER = {SAMPLES: SILVER_SAMPLES, EVENTS: SILVER_EVENTS}
one_at_a_time = threading.Lock()
"""Whoever holds it has the session and the processors to itself: of two batches the second must see which files the
first one kept, and a rollup sets the session up for itself."""


@dataclass(frozen=True, slots=True)
class _Written:
    """Pieces of one table that a batch has written."""

    table: str
    pieces: tuple[Piece, ...]


class TakeBatch:
    """Function that a streaming query calls for each of its batches."""

    def __init__(
        self,
        lake: Lake,
        run: Run,
        prefix: str,
        progress: Callable[[str], None],
        files_of: Callable[[int], "DataFrame"],
        input_bytes: int = 0,
    ) -> None:
        """``prefix``: the inbox's URI as files have it; ``files_of``: the names (``_uri``) of the files of a batch,
        those included of which nothing can be read; ``input_bytes``: what Spark was started for."""
        self.lake = lake
        self.run = run
        self.prefix = prefix
        self.progress = progress
        self.files_of = files_of
        self.input_bytes = input_bytes
        self.failure: Exception | None = None
        """Why the last batch was not taken."""

    def __call__(self, text: "DataFrame", number: int) -> None:
        """Take a batch, unless the lake has it already."""
        try:
            with one_at_a_time:
                if number > self.lake.state().batches.get(self.run.id, -1):
                    _Batch(self, text, number).take()
        except Exception as error:
            self.failure = error
            raise


class _Batch:
    def __init__(self, taking: TakeBatch, text: "DataFrame", number: int) -> None:
        self.lake, self.run, self.number = taking.lake, taking.run, number
        self.prefix, self.progress, self.text = taking.prefix, taking.progress, text
        self._files_of, self._input_bytes = taking.files_of, taking.input_bytes
        self._made: list[str] = []
        self._left_over: list[str] = []
        """What was staged and is no silver, to be deleted once the batch is committed."""

    def take(self) -> None:
        """Everything, or nothing that counts."""
        with contextlib.ExitStack() as kept:
            try:
                staged = self._stage()
                lines = _kept(parsed(staged_text(self.lake.spark, self.lake.full(staged)), self.prefix), kept)
                every = account.all_lines(staged_lines(self.lake.spark, self.lake.full(staged)), lines)
                hours = _kept(account.by_hour(every), kept)
                files = _kept(self._judged(hours), kept)
                counted = [row.asDict() for row in _counted(files).collect()]
                written = [
                    *self._write_rows(staged, lines, hours, files),
                    self._write_audit(files, counted),
                    *self._write_quarantine(lines, files, counted),
                ]
                for path in self._made:
                    self.lake.files.sync(path)
            except BaseException:
                self._delete(self._made)
                raise
        taken = sum(row["count"] for row in counted)
        self.lake.commit(lambda state: self._change(state, written, taken), "ingest")
        self._delete(self._left_over)

    def _delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            with contextlib.suppress(Exception):  # no state names it; retention finds it
                self.lake.files.delete(path)

    def _change(self, state: State, written: list[_Written], taken: int) -> State:
        if state.batches.get(self.run.id, -1) >= self.number:
            return state
        for one in written:
            state = state.with_pieces(one.table, one.pieces)
        silver = {table.full_name for table in _SILVER.values()}
        pieces = [piece for one in written if one.table in silver for piece in one.pieces]
        state = state.with_touched(f"{piece.date}T{hour}" for piece in pieces for hour in piece.hours)
        run = noted(state, self.run.inbox)
        if run is not None and run.id == self.run.id:
            state = with_note(state, Run(run.inbox, run.id, run.files + taken))
        return _with_batch(state, self.run.id, self.number)

    def _judged(self, hours: "DataFrame") -> "DataFrame":
        """The account of the batch's files, those included of which nothing was read."""
        files = account.by_file(hours)
        unread = self._unread(hours)
        if unread is not None:
            files = files.unionByName(unread, allowMissingColumns=True)
        today = F.date_format(F.timestamp_millis(F.lit(self.lake.clock.wall_ms())), "yyyy-MM-dd")
        files = account.named(files, self.run.inbox, today)
        return account.repetitions_marked(files, self._kept_before(files))

    def _unread(self, hours: "DataFrame") -> "DataFrame | None":
        listed = self._files_of(self.number)
        silent = [row["_uri"] for row in listed.join(hours, "_uri", "left_anti").sort("_uri").collect()]
        if not silent:
            return None
        inbox = open_inbox(self.lake.spark, self.run.inbox)
        rows: list[tuple[str, int | None]] = []
        for uri in silent:
            size, refused = inbox.probe(uri)
            rows.append((uri, size))
            if refused and len(rows) <= UNREADABLE_SAID:
                self.progress(f"cannot read {uri}: {refused}: give its reader the right to, and run it with --rescan")
        found = self.lake.spark.createDataFrame(rows, "_uri STRING, _bytes BIGINT")
        stream = F.when(F.col("_uri").startswith(f"{self.prefix}/{SAMPLES}/"), SAMPLES).otherwise(EVENTS)
        zero = F.lit(0).cast("bigint")
        return found.select(
            *("_uri", "_bytes", stream.alias("_stream"), F.lit("unreadable").alias("status")),
            *(zero.alias(name) for name in ("lines", "good_lines")),
        )

    def _kept_before(self, files: "DataFrame") -> "DataFrame | None":
        state = self.lake.state()
        known = set(state.dates(AUDIT_FILES.full_name))
        if not known:
            return None
        dates = known & {row["date"] for row in files.select("date").distinct().collect()}
        return self.lake.read(AUDIT_FILES.full_name, state, dates=dates) if dates else None

    # --- writing

    def _new(self, table: Table) -> str:
        path = self.lake.new_directory(table.full_name, f"run={self.run.id}", f"batch={self.number}")
        self._made.append(path)
        return path

    def _stage(self) -> str:
        path = self._new(SILVER_SAMPLES)
        with tuned_to_parse(self.text.sparkSession, self._input_bytes):  # a stream has a session of its own
            write_staged(self.text, self._files_of(self.number), self.prefix, self.lake.full(path))
        return path

    def _write_rows(
        self, staged: str, lines: "DataFrame", hours: "DataFrame", files: "DataFrame"
    ) -> Iterator[_Written]:
        """Rows of kept files. Those that are staged are there already; only the hours that have rows of files that are
        not kept, too, are written anew."""
        names = files.select("_uri", "file", "_hour_ms", "kept")
        counted = _hours_of(hours, names).collect()
        of_kept = [row for row in counted if row["kept"]]
        near = [row for row in of_kept if row["_staged"]]
        spoiled = {_hour(row) for row in counted if row["_staged"] and not row["kept"]}
        whole = [row for row in near if _hour(row) not in spoiled]
        if whole:
            yield _Written(SILVER_SAMPLES.full_name, tuple(_silver_pieces(staged, whole)))
        if again := [row for row in near if _hour(row) in spoiled]:
            rows = staged_samples(self.lake.spark, self.lake.full(staged))
            rows = rows.where(F.concat_ws("T", "date", "hour").isin(sorted(spoiled)))
            rows = rows.join(F.broadcast(names.where("kept").select("_uri")), "_uri").select(*SILVER_SAMPLES.columns)
            yield self._write_by_hour(SILVER_SAMPLES, rows, again)
        self._left_over = _not_silver(staged, spoiled, {row["date"] for row in whole})
        for stream in STREAMS:
            if of_stream := [row for row in of_kept if row["_stream"] == stream and not row["_staged"]]:
                rows = lines.where((F.col("_stream") == stream) & account.is_good())
                rows = _silver(rows.join(F.broadcast(names.where("kept")), "_uri"), _SILVER[stream])
                yield self._write_by_hour(_SILVER[stream], rows, of_stream)

    def _write_by_hour(self, table: Table, rows: "DataFrame", counted: list[Any]) -> _Written:
        path = self._new(table)
        ordered = _by_hour(rows, table, [row["rows"] for row in counted])
        ordered.write.options(**WRITING).partitionBy("date", "hour").parquet(self.lake.full(path))
        return _Written(table.full_name, tuple(_silver_pieces(path, counted)))

    def _write_audit(self, files: "DataFrame", counted: list[dict[str, Any]]) -> _Written:
        rows = account.audit_rows(files, self.run.id, self.number, self.lake.clock.wall_ms())
        dates: dict[str, int] = {}
        for row in counted:
            dates[row["date"]] = dates.get(row["date"], 0) + row["count"]
        return self._write_by_date(rows, AUDIT_FILES, dates)

    def _write_quarantine(
        self, lines: "DataFrame", files: "DataFrame", counted: list[dict[str, Any]]
    ) -> Iterator[_Written]:
        """Bad lines of kept files, and all lines of those that were set aside, for which these are read once more."""
        bad = sum(row["bad"] for row in counted if row["kept"])
        aside = [row for row in counted if row["status"] in account.SET_ASIDE and row["lines"]]
        if not bad and not aside:
            return
        names = files.select("_uri", F.col("_stream").alias("stream"), "file", "status", "kept", "date")
        found = lines.where(F.col("_problem").isNotNull()).join(F.broadcast(names.where("kept")), "_uri")
        parts = [found.select(*_NAMED, F.col("_problem").alias("reason"), F.col("_text").alias("line"))]
        if aside:
            lost = F.broadcast(names.where(F.col("status").isin(*account.SET_ASIDE)))
            again = self.text.join(lost, "_uri").where(~_says_trailer())
            reason = F.concat(F.lit("file is "), "status")
            parts.append(again.select(*_NAMED, reason.alias("reason"), F.make_valid_utf8("value").alias("line")))
        rows = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
        of = {"uri": F.col("_uri"), "run": F.lit(self.run.id), "batch": F.lit(self.number)}
        whole = rows.withColumns(of).select(
            *(F.col(name).cast(kind).alias(name) for name, kind in AUDIT_QUARANTINE.columns.items())
        )
        dates: dict[str, int] = {}
        for row in counted:
            count = row["bad"] if row["kept"] else row["lines"] if row in aside else 0
            if count:
                dates[row["date"]] = dates.get(row["date"], 0) + count
        yield self._write_by_date(whole, AUDIT_QUARANTINE, dates)

    def _write_by_date(self, rows: "DataFrame", table: Table, dates: Mapping[str, int]) -> _Written:
        """Write a file for each date, the column ``date`` in it."""
        path = self._new(table)
        ordered = rows.withColumn("on", F.col("date")).coalesce(1).sortWithinPartitions("on", *table.key)
        ordered.write.partitionBy("on").parquet(self.lake.full(path))
        pieces = (Piece(f"{path}/on={date}", date, (), count) for date, count in sorted(dates.items()))
        return _Written(table.full_name, tuple(pieces))


_NAMED = ("stream", "file", "_uri", "date")


def _kept(rows: "DataFrame", stack: contextlib.ExitStack) -> "DataFrame":
    """Computed once, and dropped with ``stack``."""
    kept = rows.persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(kept.unpersist)
    return kept


def _counted(files: "DataFrame") -> "DataFrame":
    bad = F.col("lines") - F.col("good_lines")
    return files.groupBy("date", "status", "kept").agg(
        F.count("*").alias("count"), F.sum("lines").alias("lines"), F.sum(bad).alias("bad")
    )


def _hours_of(hours: "DataFrame", names: "DataFrame") -> "DataFrame":
    """``rows`` of good lines by ``_stream, _staged, kept, date, hour``."""
    at = F.timestamp_millis(F.col("_hour") * HOUR_MS)
    return (
        hours.where(F.col("_hour").isNotNull())
        .join(F.broadcast(names.select("_uri", "kept")), "_uri")
        .withColumns({"date": F.date_format(at, "yyyy-MM-dd"), "hour": F.date_format(at, "HH")})
        .groupBy("_stream", "_staged", "kept", "date", "hour")
        .agg(F.sum("good_lines").alias("rows"))
    )


def _silver(rows: "DataFrame", table: Table) -> "DataFrame":
    at = F.timestamp_millis("ts")
    return rows.withColumns(
        {
            "_file": F.col("file"),
            "_skewed": account.is_skewed(F.col("ts"), F.col("_hour_ms")),
            "date": F.date_format(at, "yyyy-MM-dd"),
            "hour": F.date_format(at, "HH"),
        }
    ).select(*table.columns)


def _by_hour(rows: "DataFrame", table: Table, hours: list[int]) -> "DataFrame":
    """Partitioned so that a small hour is one file, a large one some, sorted as readers want them."""
    parts = 1 + max(hours) // ROWS_A_FILE
    tasks = max(parts, min(len(hours), TASKS_MAX))
    part = F.pmod(F.hash("host", "broker_id"), F.lit(parts))
    task = F.pmod(F.hash("date", "hour") + part, F.lit(tasks))
    order = ("date", "hour", "host", "broker_id", "path", "ts", *table.key)
    return rows.repartitionById(tasks, task.cast("int")).sortWithinPartitions(*dict.fromkeys(order))


def _hour(row: Any) -> str:
    return f"{row['date']}T{row['hour']}"


def _not_silver(staged: str, spoiled: Iterable[str], dates: Collection[str]) -> list[str]:
    """Folders of what was staged in which nothing is silver: all of it if there are no ``dates`` of silver."""
    if not dates:
        return [staged]
    of_hours = (tuple(hour.split("T")) for hour in spoiled)
    folders = {f"date={date}/hour={hour}" if date in dates else f"date={date}" for date, hour in of_hours}
    return [f"{staged}/{folder}" for folder in (STAGED, *sorted(folders))]


def _silver_pieces(path: str, counted: list[Any]) -> Iterator[Piece]:
    by_date: dict[str, list[Any]] = {}
    for row in counted:
        by_date.setdefault(row["date"], []).append(row)
    for date, rows in sorted(by_date.items()):
        hours = tuple(sorted(row["hour"] for row in rows))
        yield Piece(f"{path}/date={date}", date, hours, sum(row["rows"] for row in rows), BATCH)


def _says_trailer() -> Any:
    trailer = F.from_json("value", TRAILER_DDL)
    is_one = (trailer.k == "eof") & trailer.rows.isNotNull() & trailer.crc32.isNotNull()
    return F.coalesce(is_one, F.lit(False))


def _with_batch(state: State, run: str, number: int) -> State:
    return dataclasses.replace(state, batches={**state.batches, run: number})
