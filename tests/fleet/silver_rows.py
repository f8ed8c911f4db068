"""Silver made by hand: lines of agents, as ingest would leave them in a lake."""

import datetime
import json
import zlib
from collections.abc import Iterable
from typing import Any

from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import BATCH, Piece
from kjbod.fleet.schema import EVENTS, SAMPLES
from kjbod.fleet.tables import SILVER_EVENTS, SILVER_SAMPLES, Table
from tests.fleet.conftest import Agent

SILVER = {SAMPLES: SILVER_SAMPLES, EVENTS: SILVER_EVENTS}
Line = tuple[str, str, str]
"""Hour (``2026-11-01T12``), file, JSON."""


def lines_of(stream: str, *agents: Agent) -> list[Line]:
    """Lines of a stream of agents."""
    return [(_hour(json.loads(line)["ts"]), agent.host, line) for agent in agents for line in agent.lines[stream]]


def _hour(ts: int) -> str:
    return datetime.datetime.fromtimestamp(ts / 1000, datetime.UTC).strftime("%Y-%m-%dT%H")


def frame(spark: Any, table: Table, lines: Iterable[Line]) -> Any:
    """Lines as rows of silver, without date and hour."""
    columns = {name: kind for name, kind in table.columns.items() if name not in ("date", "hour")}
    rows = []
    for _, file, line in lines:
        known = {"_file": file, "_line": zlib.crc32(line.encode()), "_skewed": False} | json.loads(line)
        rows.append(tuple(known.get(name) for name in columns))
    return spark.createDataFrame(rows, ", ".join(f"`{name}` {kind}" for name, kind in columns.items()))


def take_in(lake: Lake, *agents: Agent, files: int = 1, by: str = "ingest") -> None:
    """A batch with all lines of some agents; its hours are touched."""
    pieces: dict[str, list[Piece]] = {}
    touched = set()
    for stream, table in SILVER.items():
        by_date: dict[str, list[Line]] = {}
        for line in lines_of(stream, *agents):
            by_date.setdefault(line[0][:10], []).append(line)
        for date, lines in by_date.items():
            path = lake.new_directory(table.full_name, f"date={date}")
            hours = sorted({line[0] for line in lines})
            for hour in hours:
                rows = frame(lake.spark, table, [line for line in lines if line[0] == hour])
                rows.coalesce(files).write.parquet(lake.full(f"{path}/hour={hour[11:]}"))
            piece = Piece(path, date, tuple(hour[11:] for hour in hours), len(lines), BATCH)
            pieces.setdefault(table.full_name, []).append(piece)
            touched |= set(hours)

    def change(now: Any) -> Any:
        for name, added in pieces.items():
            now = now.with_pieces(name, added)
        return now.with_touched(touched)

    lake.commit(change, by)
