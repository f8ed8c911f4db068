"""A small lake with all layers, made of rows that are known: what ingest and rollup would have committed."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kjbod.fleet.lake.lake import Lake, open_lake
from kjbod.fleet.lake.state import BATCH, Piece, State
from kjbod.fleet.tables import AUDIT_FILES, AUDIT_QUARANTINE, DIR_DAY, DIR_HOUR, SILVER_EVENTS, SILVER_SAMPLES, Table

DAY = "2026-11-01"
DAY_MS = 1_793_491_200_000
HOUR_MS = 3_600_000
Rows = list[dict[str, Any]]


class FixedClock:
    """A wall clock that stands; it can be set."""

    def __init__(self, wall_ms: int) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic_ms(self) -> int:
        return 0

    def monotonic_ns(self) -> int:
        return 0


def sample(hour: int, seq: int, host: str = "h1", path: str = "/d1", day: int = 0, **more: Any) -> dict[str, Any]:
    at = DAY_MS + day * 24 * HOUR_MS + hour * HOUR_MS + seq * 60_000
    known = {
        "ts": at,
        "mono_ns": seq,
        "boot_id": "boot",
        "seq": 100 * hour + seq,
        "fleet": "f",
        "host": host,
        "broker_id": 1,
        "dir_id": f"{host}{path}",
        "path": path,
        "state": "online",
        "bytes_total": 1000,
        "bytes_used": 100 + seq,
        "probe_histogram": {"40": 1, "41": seq},
        "v": 1,
        "_file": f"{host}.boot.{at // HOUR_MS}.0.jsonl.gz",
        "_line": 1000 * hour + 10 * seq + len(path),
        "_skewed": False,
    }
    return known | more


def event(hour: int, number: int, host: str = "h1", **more: Any) -> dict[str, Any]:
    at = DAY_MS + hour * HOUR_MS + number
    known = {
        "event_id": f"{host}-{hour}-{number}",
        "ts": at,
        "mono_ns": number,
        "boot_id": "boot",
        "kind": "registered",
        "host": host,
        "broker_id": 1,
        "attrs": {"n": str(number)},
        "v": 1,
        "_file": f"{host}.boot.{at // HOUR_MS}.0.jsonl.gz",
        "_line": 7 * number,
        "_skewed": False,
    }
    return known | more


def date_of(ts: int) -> str:
    return f"2026-11-{1 + (ts - DAY_MS) // (24 * HOUR_MS):02}"


def hour_of(ts: int) -> str:
    return f"{(ts // HOUR_MS) % 24:02}"


def put(lake: Lake, state: State, table: Table, rows: Rows, date: str, hours: Iterable[str] = ()) -> State:
    """Rows of one date as one more piece; of silver in the form of a batch."""
    path = lake.new_directory(table.full_name, f"date={date}")
    names = [n for n in table.columns if table.layer != "silver" or n not in ("date", "hour")]
    ddl = ", ".join(f"`{name}` {table.columns[name]}" for name in names)
    if table.layer == "silver":
        by_hour: dict[str, Rows] = {}
        for row in rows:
            by_hour.setdefault(hour_of(row["ts"]), []).append(row)
        for hour, some in by_hour.items():
            write(lake, ddl, names, some, f"{path}/hour={hour}")
        piece = Piece(path, date, tuple(sorted(by_hour)), len(rows), BATCH)
    else:
        write(lake, ddl, names, rows, path)
        piece = Piece(path, date, tuple(hours), len(rows))
    return state.with_pieces(table.full_name, [piece])


def write(lake: Lake, ddl: str, names: list[str], rows: Rows, path: str) -> None:
    data = [tuple(row.get(name) for name in names) for row in rows]
    lake.spark.createDataFrame(data, ddl).coalesce(1).write.parquet(lake.full(path))


def ingest(lake: Lake, samples: Rows, events: Rows = [], *, crc: bool = True) -> None:  # noqa: B006  never changed
    """A batch, with its audit, in one commit."""

    state = lake.state()
    audit: dict[tuple[str, str], dict[str, Any]] = {}
    made: list[tuple[Table, str, Rows]] = []
    for table, rows in ((SILVER_SAMPLES, samples), (SILVER_EVENTS, events)):
        dates = sorted({date_of(row["ts"]) for row in rows})
        made += [(table, date, [row for row in rows if date_of(row["ts"]) == date]) for date in dates]
        for row in rows:
            known = audit.setdefault((table.name, row["_file"]), audit_row(table.name, row))
            for name in ("lines", "good_lines", *(("trailer_rows",) if crc else ())):
                known[name] = (known[name] or 0) + 1
            known["trailer_crc"] = (known["trailer_crc"] or 0) + row["_line"] if crc else None
            known["first_ts"], known["last_ts"] = min(known["first_ts"], row["ts"]), max(known["last_ts"], row["ts"])
    dates = sorted({str(row["date"]) for row in audit.values()})
    made += [(AUDIT_FILES, date, [row for row in audit.values() if row["date"] == date]) for date in dates]
    for table, date, rows in made:
        state = put(lake, state, table, rows, date)
    hours = {f"{date_of(row['ts'])}T{hour_of(row['ts'])}" for row in (*samples, *events)}
    lake.commit(lambda _: state.with_touched(hours), "ingest")


def audit_row(stream: str, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "stream": stream,
        "file": row["_file"],
        "uri": f"file:/inbox/{stream}/{row['_file']}",
        "host": row["host"],
        "bytes": 10,
        "lines": 0,
        "good_lines": 0,
        "bad_lines": 0,
        "status": "ok",
        "kept": True,
        "trailer_rows": None,
        "trailer_crc": None,
        "first_ts": row["ts"],
        "last_ts": row["ts"],
        "run": "r",
        "batch": 0,
        "date": date_of(row["ts"]),
    }


def rollup(lake: Lake) -> None:
    """Gold of all touched hours, a piece for each, of what this module's samples have."""
    from pyspark.sql import functions as F  # noqa: N812

    from kjbod.fleet.rollup.days import dir_day
    from kjbod.fleet.silver import each_once

    state = seen = lake.state()
    for hour in sorted(state.touched):
        once = each_once(lake.read(SILVER_SAMPLES.full_name, seen, hours=[hour]), SILVER_SAMPLES)
        x = F.floor(F.col("ts") % HOUR_MS / 1000)
        found = once.groupBy(*DIR_HOUR.key).agg(
            F.count("ts").alias("samples"),
            F.min("bytes_used").alias("used_min"),
            F.max("bytes_used").alias("used_max"),
            F.count("bytes_used").alias("line_n"),
            F.sum(x).alias("line_x"),
            F.sum("bytes_used").alias("line_y"),
            F.sum(x * F.col("bytes_used")).alias("line_xy"),
            F.sum(x * x).alias("line_xx"),
            F.map_from_arrays(F.array(F.lit("online")), F.array(F.count("ts"))).alias("states"),
        )
        rows = [{**r.asDict(), "date": hour[:10], "hour": hour[11:]} for r in found.collect()]
        for row in rows:
            row |= {name: None if row[name] is None else row[name] for name in row}
        old = state.pieces(DIR_HOUR.full_name, hours=[hour])
        state = put(
            lake,
            state.with_pieces(DIR_HOUR.full_name, [], replaced=old),
            DIR_HOUR,
            decimals(rows),
            hour[:10],
            [hour[11:]],
        )
    dates = sorted({hour[:10] for hour in seen.touched})
    days = [row.asDict() for row in dir_day(lake.read(DIR_HOUR.full_name, state, dates=dates)).collect()]
    for date in dates:
        old = state.pieces(DIR_DAY.full_name, [date])
        state = state.with_pieces(DIR_DAY.full_name, [], replaced=old)
        state = put(lake, state, DIR_DAY, [row for row in days if row["date"] == date], date)
    lake.commit(lambda now: state.without_touched(seen.touched, seen), "rollup")


def decimals(rows: Rows) -> Rows:
    from decimal import Decimal

    return [
        {k: Decimal(v) if k.startswith("line_") and k != "line_n" and v is not None else v for k, v in row.items()}
        for row in rows
    ]


def make_lake(spark: Any, root: Path, now_ms: int = 0) -> Lake:
    """An empty one, whose clock stands."""
    lake = open_lake(spark, str(root), create=True)
    if now_ms:
        lake.clock = FixedClock(now_ms)
    return lake


def filled(spark: Any, root: Path) -> Lake:
    """Three batches: two hours of two hosts; the same hour late, with a repetition; a day later. With gold, and lines
    that were set aside."""
    lake = make_lake(spark, root)
    ingest(
        lake,
        [
            sample(h, n, host, path)
            for h in (3, 4)
            for n in range(3)
            for host in ("h1", "h2")
            for path in ("/d2", "/d1")
        ],
        [event(3, n) for n in range(3)],
    )
    late = [sample(3, n, "h3") for n in range(2)]
    again = [sample(3, n, "h1", _file="copy.boot.1.0.jsonl.gz") for n in range(2)]
    ingest(lake, late + again, [event(4, 1)])
    ingest(lake, [sample(0, n, day=1) for n in range(2)])
    aside = {
        "stream": "samples",
        "file": "x",
        "uri": "file:/x",
        "reason": "not JSON",
        "line": "}",
        "run": "r",
        "batch": 0,
    }
    lake.commit(lambda s: put(lake, s, AUDIT_QUARANTINE, [aside | {"date": DAY}], DAY), "ingest")
    rollup(lake)
    return lake


def rows_of(lake: Lake, table: Table, date: str = DAY) -> list[tuple[Any, ...]]:
    """Rows, in some order that is always the same."""
    found = lake.read(table.full_name, lake.state(), dates=[date]).collect()
    return sorted((tuple(map(str, row)) for row in found), key=str)


def said(lines: list[str]) -> str:
    return "\n".join(lines)
