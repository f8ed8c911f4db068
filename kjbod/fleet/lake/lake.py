"""Open a lake, read its tables, commit to it."""

import datetime
import json
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from kjbod.clock import Clock, SystemClock
from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.durable import sync_file_system
from kjbod.fleet.lake.files import Files, HadoopFiles, refuse_glob, uuid_text
from kjbod.fleet.lake.state import BATCH, Change, Piece, State, from_json, to_json
from kjbod.fleet.publishing import no_scheme
from kjbod.fleet.session import is_connect
from kjbod.fleet.tables import LAKE_VERSION, SILVER, TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDENTITY = "kjbod-lake.json"
"""Says that a directory is a lake."""
LIVE = "_live"
STATES_KEPT = 20
"""Older states are deleted: nobody begins to read them."""
COMMIT_ATTEMPTS_MAX = 50
HOUR_MS = 3_600_000


class Lake:
    """An open lake."""

    def __init__(self, spark: "SparkSession", files: Files, lake_id: str, clock: Clock | None = None) -> None:
        """Of files that are known to be those of a lake: see :func:`open_lake`."""
        self.spark = spark
        self.files = files
        self.lake_id = lake_id
        self.clock: Clock = clock or SystemClock()

    def in_session(self, spark: "SparkSession") -> "Lake":
        """A view of the lake by another session."""
        return Lake(spark, self.files, self.lake_id, self.clock)

    @property
    def uri(self) -> str:
        """Qualified, without a slash at its end."""
        return self.files.root

    def state(self) -> State:
        """The newest.

        Raises:
            FleetError: it cannot be read.
        """
        found = [entry.name for entry in self.files.list(LIVE) if is_state(entry.name)]
        if not found:
            return State(self.lake_id)
        path = f"{LIVE}/{max(found)}"
        text = self.files.read(path)
        if text is None:  # twenty commits since it was listed
            return self.state()
        state = from_json(text, f"{self.uri}/{path}")
        if state.lake_id != self.lake_id:
            raise FleetError(f"{self.uri}/{path} is of another lake: restore the {LIVE} of this one")
        if state.version != int(max(found)[:20]):
            raise FleetError(f"{self.uri}/{path} is the state of version {state.version}: restore the one of its name")
        return state

    def commit(self, change: Change, by: str) -> State:
        """Go to the state that ``change`` makes of the newest, as ``by`` (a command). Returns it; it is durable.

        Raises:
            FleetError: the state cannot be written.
            LostPiecesError: ``change`` raised it.
        """
        for _ in range(COMMIT_ATTEMPTS_MAX):
            before = self.state()
            after = change(before)
            if after == before:
                return before
            after = after.next(by, self.clock.wall_ms())
            if self.files.create(f"{LIVE}/{after.version:020d}.json", to_json(after)):
                self._forget_states(after.version)
                return after
        raise FleetError(f"{self.uri}: others commit all the time: {by} gave up")

    def _forget_states(self, version: int) -> None:
        for entry in self.files.list(LIVE):
            if is_state(entry.name) and int(entry.name[:20]) <= version - STATES_KEPT:
                self.files.delete(f"{LIVE}/{entry.name}")

    def make_durable(self) -> None:
        """Make sure that what was written until now survives a loss of power. To be called between writing and the
        commit that names it: Spark syncs no file of a local disk. Others keep what they acknowledged.

        Raises:
            FleetError: the disk did not take it.
        """
        if not self.uri.startswith("file:"):
            return
        try:
            sync_file_system(Path(self.uri.removeprefix("file:")))
        except FileNotFoundError:  # of other machines of a cluster it is their own business
            return
        except OSError as error:
            raise FleetError(f"{self.uri}: cannot be made durable: {error.strerror}") from None

    def new_directory(self, table: str, *parts: str) -> str:
        """A path below the lake, for rows of a table, that no state has named and nobody else will write to:
        ``gold/dir_hour/date=2026-11-01/hour=03/<unique>`` of the parts ``date=...`` and ``hour=...``."""
        return "/".join((*table.split("."), *parts, uuid_text()[:13]))

    def full(self, path: str) -> str:
        """URI of a path below the lake, for Spark."""
        return f"{self.uri}/{path}"

    def read(
        self, table: str, state: State, *, dates: Iterable[str] | None = None, hours: Iterable[str] | None = None
    ) -> "DataFrame":
        """Rows of a table in a state, with all of its columns: of all dates, or of ``dates``, or of ``hours``
        (``2026-11-01T03``). Rows of silver may be there more than once: :func:`kjbod.fleet.silver.each_once`."""
        wanted = None if hours is None else sorted(set(hours))
        return self.read_pieces(table, state.pieces(table, dates, wanted), wanted)

    def read_pieces(self, table: str, pieces: Iterable[Piece], hours: Iterable[str] | None = None) -> "DataFrame":
        """Rows of some pieces, of all of their hours or of some."""
        from pyspark.sql import functions as F  # noqa: N812

        known = TABLES[table]
        wanted = None if hours is None else sorted(set(hours))
        paths = [path for piece in pieces for path in self._paths(piece, wanted)]
        is_silver = known.layer == SILVER
        columns = [f"`{n}` {t}" for n, t in known.columns.items() if not (is_silver and n in ("date", "hour"))]
        ddl = ", ".join(columns)
        reader = self.spark.read.schema(ddl)
        # A file that is damaged here is no torn report: it must not be passed over.
        reader = reader.option("ignoreCorruptFiles", "false").option("ignoreMissingFiles", "false")
        reader = reader.option("parquet.page.verify-checksum.enabled", "true")
        rows = reader.parquet(*paths) if paths else self.spark.createDataFrame([], ddl)
        if is_silver:
            at = F.timestamp_millis("ts")
            if wanted is not None:
                within = [F.col("ts").between(first, last) for first, last in _spans(wanted)]
                rows = rows.where(reduce(lambda one, other: one | other, within, F.lit(False)))
            rows = rows.withColumns({"date": F.date_format(at, "yyyy-MM-dd"), "hour": F.date_format(at, "HH")})
        elif wanted is not None and known.hourly:
            rows = rows.where(F.concat_ws("T", "date", "hour").isin(wanted))
        return rows.select(*known.columns)

    def _paths(self, piece: Piece, hours: list[str] | None) -> list[str]:
        if piece.form != BATCH:
            return [self.full(piece.path)]
        wanted = piece.hours if hours is None else [h for h in piece.hours if f"{piece.date}T{h}" in hours]
        return [self.full(f"{piece.path}/hour={hour}") for hour in wanted]


def _spans(hours: Iterable[str]) -> list[tuple[int, int]]:
    """First and last millisecond of hours, in their order; of those that follow one another, together."""
    spans: list[tuple[int, int]] = []
    for hour in hours:
        first = int(datetime.datetime.fromisoformat(f"{hour}:00:00+00:00").timestamp()) * 1_000
        begin = spans.pop()[0] if spans and spans[-1][1] + 1 == first else first
        spans.append((begin, first + HOUR_MS - 1))
    return spans


def is_state(name: str) -> bool:
    """Whether a file of :data:`LIVE` is a state, by its name."""
    return len(name) == 25 and name[:20].isdigit() and name.endswith(".json")


def files_of(spark: "SparkSession", uri: str) -> Files:
    """The small files below ``uri``: by Spark's own Java process, or, through Spark Connect, by this one.

    Raises:
        FleetError: not a URI of a file system that is known here.
    """
    where = no_scheme(uri)
    return ArrowFiles(where) if is_connect(spark) else HadoopFiles(spark, where)


def open_lake(spark: "SparkSession", uri: str, *, create: bool = False) -> Lake:
    """The lake at ``uri``; ``create``: make one in a directory that is empty or not there.

    Raises:
        FleetError: there is none, or one of a later version, or it cannot be read or made.
    """
    files = files_of(spark, uri)
    refuse_glob("--lake", uri, files.root)
    text = files.read(IDENTITY)
    if text is None:
        strange = [entry.name for entry in files.list("") if not entry.name.startswith(".")]
        if strange:
            raise FleetError(f"{files.root} is not a lake: it has {strange[0]} and no {IDENTITY}: give --lake another")
        if not create:
            raise FleetError(f"no lake at {files.root}: kjbod fleet ingest makes one")
        identity = {"lake": LAKE_VERSION, "id": uuid_text()}
        files.create(IDENTITY, json.dumps(identity) + "\n")
        text = files.read(IDENTITY) or ""  # that of another who made it at the same time, perhaps
    return Lake(spark, files, _identity(text, f"{files.root}/{IDENTITY}"))


def _identity(text: str, where: str) -> str:
    try:
        found = json.loads(text)
        version, lake_id = found["lake"], str(found["id"])
    except (ValueError, KeyError, TypeError):
        raise FleetError(f"{where} does not say which lake this is: it was changed by something else") from None
    if type(version) is not int or version > LAKE_VERSION:
        raise FleetError(f"{where}: a lake of version {version}, this kjbod knows {LAKE_VERSION}: install a newer one")
    return lake_id
