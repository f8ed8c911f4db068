"""The questions of the fleet benchmark, in each engine. Run as a process of its own: ``ENGINE LAKE DAYS``; prints JSON.

With more days than one, which gold and DuckDB answer: those of a lake of which one was sampled, and the ones before it
are the same at another time (:func:`scripts.bench.fleet_data.repeat_gold`); their samples are those of that day, read
once more for each.

Answers are rows of keys and numbers, in an order that all engines share. All sums are of integers; the slope of a
directory, the one number that is none, is compared with a tolerance.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kjbod.fleet.lake.lake import open_lake
from kjbod.fleet.report_files import LAKE_BYTES
from kjbod.fleet.session import LARGE_INPUT_BYTES, spark_session
from scripts.bench.fleet_data import DATE, DAY_MS, T0_MS, days_before

ENGINES = ("spark", "gold", "duckdb", "polars")
TOP = 20
Row = tuple[Any, ...]
Question = Callable[[], list[Row]]

SQL = {
    "states": "SELECT state, count(*) FROM samples GROUP BY state ORDER BY state",
    "capacity": "SELECT rack, sum(u), sum(t) FROM (SELECT rack, host, path, max_by(bytes_used, ts) u,"
    " max_by(bytes_total, ts) t FROM samples GROUP BY rack, host, path) GROUP BY rack ORDER BY rack",
    "latency": "SELECT model, e.key, sum(e.value) FROM (SELECT model, unnest(map_entries(probe_histogram)) e"
    " FROM samples) GROUP BY model, e.key ORDER BY model, e.key",
    "rack model hour": "SELECT rack, model, (ts % 86400000) // 3600000 h, count(*), sum((state <> 'online')::INT),"
    " sum(probe_failures) FROM samples GROUP BY rack, model, h ORDER BY rack, model, h",
    "growth": "SELECT host, path, (n * xy - x * y)::DOUBLE / (n * xx - x * x)::DOUBLE slope FROM (SELECT host, path,"
    " count(*)::HUGEINT n, sum(s)::HUGEINT x, sum(bytes_used)::HUGEINT y, sum(s::HUGEINT * bytes_used) xy,"
    " sum(s * s)::HUGEINT xx FROM (SELECT host, path, bytes_used, (ts - $t0) // 1000 s FROM samples)"
    f" GROUP BY host, path) ORDER BY slope DESC, host, path LIMIT {TOP}",
}
"""In DuckDB's words; ``$t0`` is the first moment of all days, in ms."""


def files_of(lake: Path) -> str:
    """All samples of a lake that nothing was compacted in, as a pattern."""
    return f"{lake}/silver/samples/**/*.parquet"


def ask_duckdb(lake: Path, days: int = 1) -> Iterator[tuple[str, Question]]:
    """By DuckDB, over silver."""
    import duckdb

    connection = duckdb.connect()
    connection.execute("SET threads TO 2")
    connection.from_parquet(files_of(lake), hive_partitioning=False).create_view("one_day")
    parts = (f"SELECT * REPLACE (ts - {day * DAY_MS} AS ts) FROM one_day" for day in range(days))
    connection.execute(f"CREATE VIEW samples AS {' UNION ALL '.join(parts)}")
    first_ms = T0_MS - (days - 1) * DAY_MS
    for name, form in SQL.items():
        text = form.replace("$t0", str(first_ms))
        yield name, lambda text=text: connection.execute(text).fetchall()  # type: ignore[misc]


def ask_polars(lake: Path) -> Iterator[tuple[str, Question]]:
    """By Polars, over silver."""
    import polars as pl

    rows = pl.scan_parquet(files_of(lake), hive_partitioning=False)
    place = ["host", "path"]
    x, y = ((pl.col("ts") - T0_MS) // 1000).cast(pl.Int128), pl.col("bytes_used").cast(pl.Int128)
    last = [pl.col(name).sort_by("ts").last() for name in ("bytes_used", "bytes_total")]
    sums = [pl.len().cast(pl.Int128).alias("n"), x.sum().alias("x"), y.sum().alias("y")]
    sums += [(x * y).sum().alias("xy"), (x * x).sum().alias("xx")]
    n, sx, sy, sxy, sxx = (pl.col(name) for name in ("n", "x", "y", "xy", "xx"))
    slope = (n * sxy - sx * sy).cast(pl.Float64) / (n * sxx - sx * sx).cast(pl.Float64)
    hour = (pl.col("ts") % 86_400_000 // 3_600_000).alias("h")
    plans = {
        "states": rows.group_by("state").agg(pl.len()).sort("state"),
        "capacity": rows.group_by("rack", *place).agg(last).group_by("rack").agg(
            pl.col("bytes_used").sum(), pl.col("bytes_total").sum()
        ).sort("rack"),
        "latency": rows.select("model", pl.col("probe_histogram").map.entries())
        .explode("probe_histogram")
        .select("model", pl.col("probe_histogram").struct.field("key"), pl.col("probe_histogram").struct.field("value"))
        .group_by("model", "key")
        .agg(pl.col("value").sum())
        .sort("model", "key"),
        "rack model hour": rows.group_by("rack", "model", hour)
        .agg(pl.len(), (pl.col("state") != "online").sum(), pl.col("probe_failures").sum())
        .sort("rack", "model", "h"),
        "growth": rows.group_by(place).agg(sums).select(*place, slope.alias("slope"))
        .sort(["slope", *place], descending=[True, False, False]).head(TOP),
    }  # fmt: skip
    for name, plan in plans.items():
        yield name, lambda plan=plan: plan.collect(engine="streaming").rows()  # type: ignore[misc]


def ask_spark(spark: Any, lake: Path) -> Iterator[tuple[str, Question]]:
    """By Spark, over silver."""
    from pyspark.sql import functions as F  # noqa: N812

    opened = open_lake(spark, str(lake))
    rows = opened.read("silver.samples", opened.state())
    whole = "decimal(38,0)"
    x, y = F.floor((F.col("ts") - T0_MS) / 1000).cast("bigint"), F.col("bytes_used")
    last = rows.groupBy("rack", "host", "path").agg(
        F.max_by("bytes_used", "ts").alias("u"), F.max_by("bytes_total", "ts").alias("t")
    )
    sums = rows.groupBy("host", "path").agg(
        F.count("*").alias("line_n"),
        F.sum(x).alias("line_x"),
        F.sum(y.cast(whole)).alias("line_y"),
        F.sum(x.cast("decimal(10,0)") * y.cast("decimal(20,0)")).alias("line_xy"),
        F.sum(x * x).alias("line_xx"),
    )
    bad, failures = (F.col("state") != "online").cast("bigint"), F.col("probe_failures")
    hour = F.floor(F.col("ts") % 86_400_000 / 3_600_000).alias("h")
    yield from _plans(
        {
            "states": rows.groupBy("state").count().sort("state"),
            "capacity": last.groupBy("rack").agg(F.sum("u"), F.sum("t")).sort("rack"),
            "latency": _histogram(rows),
            "rack model hour": rows.groupBy("rack", "model", hour)
            .agg(F.count("*"), F.sum(bad), F.sum(failures))
            .sort("rack", "model", "h"),
            "growth": _growth(sums),
        }
    )


def ask_gold(spark: Any, lake: Path, days: int = 1) -> Iterator[tuple[str, Question]]:
    """By Spark, over gold."""
    from pyspark.sql import functions as F  # noqa: N812

    opened = open_lake(spark, str(lake))
    state = opened.state()
    dates = [days_before(DATE, day) for day in range(days)]
    groups, of_days = (opened.read(f"gold.{name}", state, dates=dates) for name in ("rack_model_hour", "dir_day"))
    states = of_days.select(F.explode("states").alias("state", "n")).groupBy("state").agg(F.sum("n"))
    last = of_days.groupBy("rack", "host", "path").agg(
        F.max_by(F.struct("used_last", "bytes_total"), "date").alias("last")
    )
    hour, summed = F.col("hour").cast("bigint").alias("h"), ("samples", "not_online", "probe_failures")
    yield from _plans(
        {
            "states": states.sort("state"),
            "capacity": last.groupBy("rack").agg(F.sum("last.used_last"), F.sum("last.bytes_total")).sort("rack"),
            "latency": _histogram(groups),
            "rack model hour": groups.groupBy("rack", "model", hour)
            .agg(*(F.sum(name) for name in summed))
            .sort("rack", "model", "h"),
            "growth": _growth(_line_of_all(of_days, min(dates))),
        }
    )


def _line_of_all(of_days: Any, first: str) -> Any:
    """Sums of all days of a directory, of those of each day, whose seconds are from its midnight on."""
    from pyspark.sql import functions as F  # noqa: N812

    n, x, y, xy, xx = (F.col(f"line_{name}").cast("decimal(38,0)") for name in ("n", "x", "y", "xy", "xx"))
    later = F.datediff(F.to_date("date"), F.lit(first)).cast("decimal(10,0)") * F.lit(DAY_MS // 1000)
    moved = {"n": n, "x": x + later * n, "y": y, "xy": xy + later * y, "xx": xx + 2 * later * x + later * later * n}
    return of_days.groupBy("host", "path").agg(*(F.sum(line).alias(f"line_{name}") for name, line in moved.items()))


def _histogram(rows: Any) -> Any:
    from pyspark.sql import functions as F  # noqa: N812

    entries = rows.select("model", F.explode("probe_histogram").alias("key", "value"))
    return entries.groupBy("model", "key").agg(F.sum("value")).sort("model", "key")


def _growth(sums: Any) -> Any:
    """Sums to slopes: x and y as they are, or centered by whoever summed them up."""
    from pyspark.sql import functions as F  # noqa: N812

    n, x, y, xy, xx = (F.col(f"line_{name}").cast("decimal(38,0)") for name in ("n", "x", "y", "xy", "xx"))
    # The means first, in doubles of exact sums: products of the sums do not fit 38 digits.
    above = xy.cast("double") - (x.cast("double") / n.cast("double")) * y.cast("double")
    below = xx.cast("double") - (x.cast("double") / n.cast("double")) * x.cast("double")
    slopes = sums.select("host", "path", (above / below).alias("slope"))
    return slopes.sort(F.desc("slope"), "host", "path").limit(TOP)


def _plans(plans: dict[str, Any]) -> Iterator[tuple[str, Question]]:
    for name, plan in plans.items():
        yield name, lambda plan=plan: [tuple(row) for row in plan.collect()]  # type: ignore[misc]


def main(engine: str, lake: Path, days: int) -> None:
    """Ask all questions of one engine, and print what it answered and how long it took."""
    began = time.perf_counter()
    if engine in ("duckdb", "polars"):
        asked = ask_duckdb(lake, days) if engine == "duckdb" else ask_polars(lake)
        _tell(asked, began)
        return
    is_gold = engine == "gold"
    with spark_session("local[2]", LAKE_BYTES if is_gold else LARGE_INPUT_BYTES + 1) as spark:
        _tell(ask_gold(spark, lake, days) if is_gold else ask_spark(spark, lake), began)


def _tell(asked: Iterator[tuple[str, Question]], began: float) -> None:
    told: dict[str, Any] = {}
    for name, question in asked:
        if not told:
            start_s = time.perf_counter() - began
        before = time.perf_counter()
        answer = question()
        told[name] = {"s": time.perf_counter() - before, "answer": [[_plain(value) for value in row] for row in answer]}
    print(json.dumps({"start_s": start_s, "questions": told}))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | float) else int(value)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
