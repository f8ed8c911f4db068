"""Lakes for the fleet benchmark: silver as ingest would have left it, made by numpy in seconds; and months of gold,
made of one day's. As a process, ``LAKE DAYS``, it makes the latter."""

import datetime
import math
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from kjbod.fleet.lake.arrow_files import ArrowFiles
from kjbod.fleet.lake.lake import IDENTITY, Lake, open_lake
from kjbod.fleet.lake.state import ALL_DATES, BATCH, Piece, State
from kjbod.fleet.rollup.drive_past import PastNote, merged_past, past_of_days, past_until
from kjbod.fleet.rollup.drives import drive_life
from kjbod.fleet.rollup.pieces import write
from kjbod.fleet.session import LARGE_INPUT_BYTES, spark_session
from kjbod.fleet.tables import (
    AUDIT,
    AUDIT_FILES,
    DRIVE_DAY,
    DRIVE_LIFE,
    DRIVE_PAST,
    GOLD,
    LAKE_VERSION,
    SILVER_SAMPLES,
    TABLES,
)

HOSTS_OF_ONE: Final = 125
"""Hosts of size 1: with :data:`DIRECTORIES` and a sample each minute of a day, 2.16 million rows."""
DIRECTORIES: Final = 12
MINUTES: Final = 60
DAY_MS: Final = 86_400_000
T0_MS: Final = 1_793_491_200_000
"""2026-11-01."""
DATE: Final = "2026-11-01"
MODELS: Final = 6
RACKS: Final = 20
_TYPES: Final = {"BIGINT": pa.int64(), "STRING": pa.string(), "BOOLEAN": pa.bool_()}


def rows_of(size: int) -> int:
    """Rows of a day of silver of this size."""
    return size * HOSTS_OF_ONE * DIRECTORIES * 24 * MINUTES


def make_lake(folder: Path, size: int, hours: range = range(24)) -> Lake:
    """A lake with the samples of some hours of a day of ``size * HOSTS_OF_ONE`` hosts."""
    files = ArrowFiles(str(folder))
    files.create(IDENTITY, f'{{"lake": {LAKE_VERSION}, "id": "bench-{size}"}}\n')
    lake = Lake(None, files, f"bench-{size}")  # type: ignore[arg-type]
    add_hours(lake, folder, size, hours)
    return lake


def add_hours(lake: Lake, folder: Path, size: int, hours: range) -> None:
    """Commit more hours to it, as a batch of ingest does."""
    path = f"silver/samples/run=bench/date={DATE}/batch={hours.start}"
    rows = 0
    for hour in hours:
        table = hour_table(size, hour)
        rows += table.num_rows
        target = folder / path / f"hour={hour:02}"
        target.mkdir(parents=True)
        parquet.write_table(table, target / "part-0.parquet", compression="zstd", row_group_size=1 << 20)
    names = tuple(f"{hour:02}" for hour in hours)
    piece = Piece(path, DATE, names, rows, BATCH)
    touched = [f"{DATE}T{name}" for name in names]
    lake.commit(lambda state: state.with_pieces("silver.samples", [piece]).with_touched(touched), "ingest")


def hour_table(size: int, hour: int) -> Any:
    """Samples of an hour, sorted by host, directory and time. The same arguments give the same rows."""
    rng = np.random.default_rng([size, hour])
    directories = size * HOSTS_OF_ONE * DIRECTORIES
    n = directories * MINUTES
    directory = np.repeat(np.arange(directories), MINUTES)
    minute = np.tile(np.arange(MINUTES), directories) + hour * MINUTES
    host = directory // DIRECTORIES
    slow = directory % 250 == 7  # 0.4 % of the disks answer 25 times as slowly
    probe_us = (np.exp(rng.normal(7.0, 0.4, n)) * np.where(slow, 25, 1)).astype(np.int64) + 1
    state = np.where((directory % 331 == 5) & (minute > 600), 0, np.where(slow & (minute % 7 == 0), 1, 2))
    used = 10**11 + (directory % 97) * 10**9 + minute * (1_000_003 + directory * 211) + rng.integers(0, 10**6, n)
    known = {
        "ts": T0_MS + minute * 60_000 + host % 60_000 // 60,
        "mono_ns": minute * 60_000_000_000,
        "boot_id": _named("boot-{:05}", host),
        "seq": minute,
        "fleet": pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), ["bench"]),
        "rack": _named("rack-{:02}", host % RACKS),
        "host": _named("host-{:05}", host),
        "broker_id": host,
        "dir_id": _named("directory-{:06}-AAAAAA", directory),
        "path": _named("/var/lib/kafka/d{}", directory % DIRECTORIES),
        "device": _named("sd{}", directory % DIRECTORIES),
        "model": _named("MODEL {}", directory % DIRECTORIES % MODELS),
        "serial": _named("S{:08}", directory),
        "state": pa.DictionaryArray.from_arrays(pa.array(state.astype(np.int32)), ["failed", "slow", "online"]),
        "bytes_total": np.full(n, 4 * 10**12),
        "bytes_used": used,
        "partitions": directory % 50,
        "leaders": directory % 17,
        "io_errors": np.where(slow, minute, 0),
        "reads": minute * 900 + directory,
        "read_bytes": minute * 900 * 65_536,
        "writes": minute * 700 + directory,
        "write_bytes": minute * 700 * 65_536,
        "busy_ms": minute * 13_000,
        "counters_since": np.full(n, T0_MS - DAY_MS),
        "probe_write_us": probe_us // 3,
        "probe_sync_us": probe_us // 3,
        "probe_read_us": probe_us // 3,
        "probe_us": probe_us,
        "probes": np.full(n, 1),
        "probe_failures": (slow & (minute % 11 == 0)).astype(np.int64),
        "probe_histogram": _histogram(probe_us),
        "firmware": pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), ["F1"]),
        "capacity_bytes": np.full(n, 4 * 10**12),
        "smart_poh": 20_000 + minute // 60 + directory % 9_000,
        "smart_temp_c": 30 + directory % 9,
        "smart_realloc": np.where(slow, minute // 60, 0),
        "v": np.full(n, 1),
        "_file": _named("host-{:05}.jsonl.gz", host),
        "_line": rng.integers(0, 1 << 32, n),
        "_skewed": np.zeros(n, bool),
    }
    columns = {name: kind for name, kind in SILVER_SAMPLES.columns.items() if name not in ("date", "hour")}
    arrays = {name: _column(known.get(name), kind, n) for name, kind in columns.items()}
    return pa.table(arrays)


def _column(values: Any, kind: str, n: int) -> Any:
    if values is None:
        return pa.nulls(n, _TYPES.get(kind) or pa.map_(pa.string(), pa.int64()))
    if isinstance(values, pa.DictionaryArray):
        return values.cast(pa.string())
    return values if isinstance(values, pa.Array) else pa.array(values)


def _named(form: str, numbers: Any) -> Any:
    known, index = np.unique(numbers, return_inverse=True)
    return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32)), [form.format(n) for n in known])


def _histogram(probe_us: Any) -> Any:
    limit = int(probe_us.max()) + 1
    buckets = pa.array([str(math.floor(4 * math.log2(b))) if b else "0" for b in range(min(limit, 1 << 21))])
    n = len(probe_us)
    keys = buckets.take(pa.array(np.minimum(probe_us, (1 << 21) - 1)))
    return pa.MapArray.from_arrays(pa.array(np.arange(n + 1, dtype=np.int32)), keys, pa.array(np.ones(n, np.int64)))


def repeat_gold(folder: Path, count: int) -> None:
    """Give the newest date of a lake's gold, and of the account of its files, ``count - 1`` dates before it, which are
    the same in all but time. Dates that are there stay. Hours are kept as compaction leaves them, a date in a piece."""
    with spark_session("local[2]", LARGE_INPUT_BYTES + 1) as spark:
        lake = open_lake(spark, str(folder))
        state = lake.state()
        last = state.dates("gold.dir_day")[-1]
        before = [days_before(last, day) for day in range(count - 1, 0, -1)]
        missing = [date for date in before if date not in state.dates("gold.dir_day")]
        tables = [t for t in TABLES.values() if t.layer == GOLD and t not in (DRIVE_LIFE, DRIVE_PAST)]
        for table in (*tables, AUDIT_FILES):
            rows = lake.read(table.full_name, state, dates=[last]).persist()
            hours = tuple(hour[11:] for hour in state.hours(table.full_name, last))
            pieces = [_moved(lake, table, rows, last, date, hours) for date in missing] if rows.take(1) else []
            state = lake.commit(lambda now, name=table.full_name, new=pieces: now.with_pieces(name, new), "bench")  # type: ignore[misc]
            rows.unpersist()
        _sum_up_drives(lake)


def _sum_up_drives(lake: Lake) -> None:
    """Put what gold says of drives over all dates in the place of what it said of one, as a rollup would."""
    state = lake.state()
    until, dates = past_until(state.pieces(DRIVE_DAY.full_name)), state.dates(DRIVE_DAY.full_name)
    past = past_of_days(lake.read(DRIVE_DAY.full_name, state, dates=[date for date in dates if date < until]))
    lives = drive_life(past_of_days(lake.read(DRIVE_DAY.full_name, state)))
    made = {
        table.full_name: write(lake, table.full_name, rows, ALL_DATES, None, 0)
        for table, rows in ((DRIVE_PAST, merged_past(past)), (DRIVE_LIFE, lives))
    }
    note = PastNote.of(until, state.pieces(DRIVE_DAY.full_name))

    def change(now: State) -> State:
        for name, piece in made.items():
            now = now.with_pieces(name, [piece] if piece else [], replaced=state.pieces(name))
        return now.with_notes(note.to_notes())

    lake.commit(change, "bench")


def _moved(lake: Lake, table: Any, rows: Any, last: str, date: str, hours: tuple[str, ...]) -> Piece:
    """A date's rows as another's."""
    from pyspark.sql import functions as F  # noqa: N812

    moved = {name: F.lit(date) if name == "date" else F.col(name) for name in table.columns}
    for name in table.columns:
        if name == "ts" or name.endswith(("_ts", "_since")):
            moved[name] = F.col(name) - (_day_of(last) - _day_of(date)).days * DAY_MS
    if table.layer == AUDIT:
        moved["file_hour"] = F.concat(F.lit(date.replace("-", "")), F.substring("file_hour", 9, 2))
    path = lake.new_directory(table.full_name, f"date={date}")
    sorted_rows = rows.select(*(column.alias(name) for name, column in moved.items())).coalesce(1).sort(*table.key)
    sorted_rows.write.parquet(lake.full(path))
    return Piece(path, date, hours, rows.count())


def days_before(date: str, days: int) -> str:
    """A date some days before another."""
    return (_day_of(date) - datetime.timedelta(days)).isoformat()


def _day_of(date: str) -> datetime.date:
    return datetime.date.fromisoformat(date)


if __name__ == "__main__":
    repeat_gold(Path(sys.argv[1]), int(sys.argv[2]))
