"""Rows of gold tables for tests: what is not given is null."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from kjbod.fleet.tables import TABLES

DAY_S = 86_400
D0_MS = 1_793_491_200_000  # 2026-11-01 00:00 UTC


def frame(spark: Any, table: str, rows: Iterable[dict[str, Any]]) -> Any:
    known = TABLES[table]
    found = list(rows)
    assert all(set(row) <= set(known.columns) for row in found)
    return spark.createDataFrame(
        [tuple(_as(row, *column) for column in known.columns.items()) for row in found], known.ddl
    )


def _as(row: dict[str, Any], name: str, kind: str) -> Any:
    value = row.get(name)
    return Decimal(value) if value is not None and kind.startswith("DECIMAL") else value


def date(day: int) -> str:
    return f"2026-11-{day + 1:02d}"


def dir_day(
    day: int, used: list[int] | None = None, *, host: str = "h1", path: str = "/d1", **more: Any
) -> dict[str, Any]:
    """``used``: samples at equal distances over the day."""
    row: dict[str, Any] = {
        "fleet": "f",
        "rack": "r1",
        "host": host,
        "broker_id": 1,
        "path": path,
        "dir_id": f"id-{host}{path}",
        "serial": f"S-{host}{path}",
        "device": f"sd{path[-1]} 8:0",
        "model": "M1",
        "state": "online",
        "date": date(day),
        "first_ts": D0_MS + day * DAY_S * 1000,
        "last_ts": D0_MS + (day + 1) * DAY_S * 1000 - 60_000,
        "bytes_total": 1_000_000,
    }
    if used is not None:
        x = [number * DAY_S // len(used) for number in range(len(used))]
        row |= {
            "used_first": used[0],
            "used_last": used[-1],
            "line_n": len(used),
            "line_x": sum(x),
            "line_y": sum(used),
            "line_xy": sum(a * b for a, b in zip(x, used, strict=True)),
            "line_xx": sum(a * a for a in x),
        }
    return row | more
