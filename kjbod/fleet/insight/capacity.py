"""Room: when directories will be full, where a broker's are uneven, and what one move would gain.

A directory's line is that through all of its samples since the last *reset*, a drop by more than a tenth from one day
to the next (retention, a move): the sums of its days add up exactly. The limits are those of the slope when each day is
one observation: samples a minute apart say the same thing over and over, and limits from them would be far too narrow.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.insight.model import TOP, Capacity, Days, Forecast, Imbalance, Place
from kjbod.fleet.insight.statistics import student_t
from kjbod.fleet.schema import DirectoryState

MARKS_PCT = (80, 90, 100)
GROWTH_SAMPLES_MIN = 10
GROWTH_SPAN_MS_MIN = 3_600_000
"""No rate of growth from fewer samples or a shorter time."""
FORECAST_WINDOWS_MAX = 2
"""A forecast reaches no further than twice the time that was seen."""
RESET_RATIO = 0.9
"""A day that ends with less than this share of what the day before ended with begins a new line."""
FULL_WITHIN_DAYS = (7, 30, 90)
UNEVEN_GAIN_MIN = 0.05
"""A move has to lower the fullest directory of a broker by at least this share of its room to be worth its work."""
CONFIG = "/etc/kafka/server.properties"
"""Stands in the proposed commands for the file that the agent runs with."""
_DIRECTORY = ("fleet", "host", "broker_id", "path")
_PLACE = ("fleet", "rack", "host", "broker_id", "path", "dir_id", "device", "model", "serial")
_DAY_S = 86_400
_T_DAYS_MAX = 400
_FAILED = str(DirectoryState.FAILED)


def forecasts(dir_days: DataFrame) -> DataFrame:
    """A row for each directory: place, room, growth in bytes a day with limits, first date and days of its line,
    resets, and ``days_<mark>`` with ``_soonest`` and ``_latest`` for each of :data:`MARKS_PCT`."""
    fitted = _fitted(_last_line(dir_days))
    # Whole bytes: sums of doubles differ in their last digits with the order in which they are made.
    per_day = {name: F.round(F.col(name) * _DAY_S, 0) for name in ("slope", "slope_low", "slope_high")}
    names = {"slope": "growth", "slope_low": "growth_low", "slope_high": "growth_high"}
    found = fitted.withColumns({names[name]: column for name, column in per_day.items()})
    found = found.withColumn("used_ratio", F.try_divide(F.col("used_last").cast("double"), F.col("bytes_total")))
    for mark in MARKS_PCT:
        found = found.withColumns(
            {
                f"days_{mark}": _days_until(mark, "growth"),
                f"days_{mark}_soonest": _days_until(mark, "growth_high"),
                f"days_{mark}_latest": _days_until(mark, "growth_low"),
            }
        )
    return found


def _last_line(dir_days: DataFrame) -> DataFrame:
    """Days of each directory since its last reset, with what is newest of the directory on each. A new disk at a path
    begins a new line too. The day of a reset has samples from before it: it counts only when there is no later one."""
    sized = dir_days.where((F.col("line_n") > 0) & (F.col("bytes_total") > 0) & F.col("used_last").isNotNull())
    days = sized.select(
        *_PLACE,
        *("date", "state", "bytes_total", "used_last", "first_ts", "last_ts"),
        *(F.col(f"line_{name}").alias(name) for name in ("n", "x", "y", "xy", "xx")),
        F.unix_date(F.to_date("date")).alias("day"),
    )
    order = Window.partitionBy(*_DIRECTORY).orderBy("day", "last_ts", "dir_id")
    before = F.lag("used_last").over(order)
    other_disk = ~F.lag("dir_id").over(order).eqNullSafe(F.col("dir_id")) & before.isNotNull()
    drop = F.coalesce(F.col("used_last") < RESET_RATIO * before, F.lit(False)) | other_disk
    ends = F.coalesce(F.lead("day").over(order) > F.col("day"), F.lit(True))
    marked = days.withColumns({"reset": drop.cast("int"), "ends": ends}).withColumn("line", F.sum("reset").over(order))
    everything = Window.partitionBy(*_DIRECTORY)
    last = marked.withColumns(
        {
            "resets": F.max("line").over(everything),
            "last_day": F.max("day").over(everything),
            "zero": F.min("day").over(everything),
            "base": F.max("used_last").over(everything),
        }
    ).where(F.col("line") == F.col("resets"))
    return last.where((F.col("reset") == 0) | (F.col("day") == F.col("last_day")))


def _fitted(days: DataFrame) -> DataFrame:
    """The line of each directory: all sums from the first second of the first day, and bytes less a base near them, so
    that nothing is lost when they become doubles."""
    shift = ((F.col("day") - F.col("zero")) * _DAY_S).cast("double")
    base = F.col("base").cast("decimal(20,0)")
    n, x, xx = (F.col(name).cast("double") for name in ("n", "x", "xx"))
    y0 = (F.col("y") - F.col("n").cast("decimal(18,0)") * base).cast("double")
    xy0 = (F.col("xy") - F.col("x").cast("decimal(18,0)") * base).cast("double")
    sums = {
        "sn": n,
        "sx": x + n * shift,
        "sy": y0,
        "sxy": xy0 + shift * y0,
        "sxx": xx + 2 * shift * x + n * shift * shift,
    }
    points = days.withColumns(sums).withColumns({"px": F.col("sx") / F.col("sn"), "py": F.col("sy") / F.col("sn")})
    of_days = {"pxx": F.col("px") ** 2, "pxy": F.col("px") * F.col("py"), "pyy": F.col("py") ** 2}
    names = (*(n for n in _PLACE if n not in _DIRECTORY), "used_last", "bytes_total", "state")
    lines = points.groupBy(*_DIRECTORY).agg(
        F.max_by(F.struct(*names), F.struct("day", F.col("last_ts").alias("at"), "dir_id")).alias("newest"),
        F.max("resets").alias("resets"),
        F.min("date").alias("since"),
        F.count_if("ends").alias("days_seen"),
        F.min("first_ts").alias("first_ts"),
        F.max("last_ts").alias("last_ts"),
        *(F.sum(name).alias(name) for name in (*sums, "px", "py")),
        *(F.sum(term).alias(name) for name, term in of_days.items()),
        F.count(F.lit(1)).alias("points"),
    )
    return _with_limits(lines)


def _with_limits(lines: DataFrame) -> DataFrame:
    sn, sx, sy, sxy, sxx = (F.col(name) for name in ("sn", "sx", "sy", "sxy", "sxx"))
    spread = sn * sxx - sx * sx
    enough = (sn >= GROWTH_SAMPLES_MIN) & (F.col("last_ts") - F.col("first_ts") >= GROWTH_SPAN_MS_MIN) & (spread > 0)
    slope = F.when(enough, (sn * sxy - sx * sy) / F.when(spread > 0, spread))
    m = F.col("points")
    center = F.col("pxx") - F.col("px") ** 2 / m
    # Residuals of the days around a line of this slope through their mean.
    left = (F.col("pyy") - F.col("py") ** 2 / m) - 2 * F.col("slope") * (F.col("pxy") - F.col("px") * F.col("py") / m)
    left = F.greatest(left + F.col("slope") ** 2 * center, F.lit(0.0))
    t = F.get(
        F.lit([student_t(max(degrees, 1)) for degrees in range(_T_DAYS_MAX)]), F.least(m - 2, F.lit(_T_DAYS_MAX - 1))
    )
    error = F.when((m >= 3) & (center > 0), t * F.sqrt(left / (m - 2) / center))
    names = [n for n in _PLACE if n not in _DIRECTORY]
    return (
        lines.withColumn("slope", slope)
        .withColumn("error", error)
        .withColumns({"slope_low": F.col("slope") - F.col("error"), "slope_high": F.col("slope") + F.col("error")})
        .select(
            *_DIRECTORY,
            *(F.col(f"newest.{name}").alias(name) for name in (*names, "used_last", "bytes_total", "state")),
            *("slope", "slope_low", "slope_high", "since", "days_seen", "resets", "first_ts", "last_ts"),
        )
    )


def _days_until(mark: int, growth: str) -> Column:
    """0 where it is passed; null where it is not within twice the time that was seen."""
    room = F.col("bytes_total").cast("double") * (mark / 100) - F.col("used_last")
    days = room / F.when(F.col(growth) > 0, F.col(growth))
    within = FORECAST_WINDOWS_MAX * (F.col("last_ts") - F.col("first_ts")) / (1000 * _DAY_S)
    return F.when(room <= 0, 0.0).when(days <= within, F.round(days, 3))


# ------------------------------------------------------------------------------------------------------------ imbalance


def imbalances(dir_days: DataFrame) -> DataFrame:
    """A row for each broker with at least two disks on its newest day: how unevenly they are filled and used, and what
    moving ``move_bytes`` from the fullest to the emptiest would gain. Failed directories and disks that another has
    replaced are no place to move to; directories of one file system have one room between them, and count as one."""
    sized = _newest(dir_days).where((F.col("bytes_total") > 0) & (F.coalesce("state", F.lit("")) != _FAILED))
    ratio = F.least(F.col("used_last").cast("double") / F.col("bytes_total"), F.lit(1.0))
    used, total = F.col("used_last").alias("used"), F.col("bytes_total").alias("total")
    # "sda1 8:1" and "sda1" are the same: what reads the numbers may fail with the disk.
    disk = F.coalesce(F.nullif(F.substring_index("device", " ", 1), F.lit("")), F.col("path")).alias("disk")
    disks = (
        sized.where(F.col("used_last").isNotNull())
        .groupBy("fleet", "host", "broker_id", disk)
        .agg(
            F.max("rack").alias("rack"),
            F.max(F.struct(ratio.alias("ratio"), "path", used, total, "partitions")).alias("entry"),
            F.max(F.coalesce("busy_ms_added", F.lit(0)).cast("double")).alias("busy"),
        )
    )
    hosts = (
        disks.groupBy("fleet", "host", "broker_id")
        .agg(
            F.max("rack").alias("rack"),
            F.sort_array(F.collect_list("entry")).alias("dirs"),
            F.sort_array(F.collect_list("busy")).alias("busy"),
        )
        .withColumn("directories", F.size("dirs"))
        .where("directories >= 2")
        .withColumn("ratios", F.transform("dirs", lambda each: each.ratio))
    )
    return _with_move(hosts)


def _newest(dir_days: DataFrame) -> DataFrame:
    """Directories on the newest day of their broker, as they were last."""
    names = ("rack", "device", "state", "used_last", "bytes_total", "partitions", "busy_ms_added")
    order = F.struct("date", F.coalesce("last_ts", F.lit(0)), F.coalesce("dir_id", F.lit("")))
    last = dir_days.groupBy(*_DIRECTORY).agg(
        F.max("date").alias("date"), F.max_by(F.struct(*names), order).alias("last")
    )
    of_broker = F.max("date").over(Window.partitionBy("fleet", "host", "broker_id"))
    found = last.withColumn("newest", of_broker).where(F.col("date") == F.col("newest"))
    return found.select(*_DIRECTORY, "last.*")


def _with_move(hosts: DataFrame) -> DataFrame:
    full, empty = F.element_at("dirs", -1), F.element_at("dirs", 1)
    uf, tf, ue, te = (
        full.used.cast("double"),
        full.total.cast("double"),
        empty.used.cast("double"),
        empty.total.cast("double"),
    )
    moved = F.greatest((uf * te - ue * tf) / (tf + te), F.lit(0.0))
    level = (uf - F.col("moved")) / tf
    second = F.when(F.col("directories") > 2, F.element_at("ratios", -2)).otherwise(0.0)
    mean = F.aggregate("ratios", F.lit(0.0), lambda total, each: total + each) / F.col("directories")
    return (
        hosts.withColumn("moved", moved)
        .withColumns(
            {
                "used_max": F.element_at("ratios", -1),
                "used_mean": mean,
                "used_gini": _gini("ratios"),
                "busy_gini": _gini("busy"),
                "fullest": full.path,
                "emptiest": empty.path,
                "full_partitions": full.partitions,
                "full_used": full.used,
                "used_max_after": F.greatest(level, second),
            }
        )
        .withColumn("gain", F.col("used_max") - F.col("used_max_after"))
        .drop("dirs", "busy", "ratios")
    )


def _gini(name: str) -> Column:
    """Of a sorted array; null where all are zero."""
    count = F.size(name)
    ranked = F.zip_with(name, F.sequence(F.lit(1), count), lambda value, rank: (2 * rank - count - 1) * value)
    total = F.aggregate(name, F.lit(0.0), lambda sum_, each: sum_ + each)
    weighted = F.aggregate(ranked, F.lit(0.0), lambda sum_, each: sum_ + each)
    return F.when(total > 0, weighted / (count * total))


def move_commands(fullest: str, emptiest: str, move_bytes: int) -> tuple[str, ...]:
    """Lines to paste on the broker's host. Reports do not say which replicas a directory has, so the first line shows
    them with their sizes, and the second has the agent asked for the largest that is not too large (with ``jq``)."""
    config = shlex.quote(CONFIG)
    pick = (
        f".directories[] | select(.path == $from) | [.replica_list[] | select(.size != null and .size <= {move_bytes})]"
        ' | max_by(.size) | select(. != null) | "\\(.topic)-\\(.partition)"'
    )
    asked = (
        f"kjbod log-dirs -c {config} --replicas --json | jq -r --arg from {shlex.quote(fullest)} {shlex.quote(pick)}"
    )
    return (
        f"kjbod log-dirs -c {config} --replicas",
        f'kjbod move -c {config} "$({asked})" --to {shlex.quote(emptiest)} --watch',
    )


# ------------------------------------------------------------------------------------------------------------- together


def space(directories: DataFrame) -> tuple[int, int]:
    """Bytes that are used, and those there are, of rows of directories, one of each. Directories of one host that share
    a device have one file system, which counts once, as seen last."""
    # "sda1 8:1" and "sda1" are the same: what reads the numbers may fail with the disk.
    device = F.nullif(F.substring_index(F.coalesce("device", F.lit("")), " ", 1), F.lit(""))
    one = F.when(device.isNotNull(), F.concat(F.lit("d"), device)).otherwise(
        F.concat(F.lit("p"), F.col("broker_id").cast("string"), F.lit(" "), F.col("path"))
    )
    sized = directories.where("bytes_total is not null and used_last is not null")
    last = sized.groupBy("fleet", "host", one.alias("one")).agg(
        F.max_by(F.struct("used_last", "bytes_total"), F.struct("last_ts", "path")).alias("last")
    )
    row = last.agg(F.try_sum("last.used_last").alias("used"), F.try_sum("last.bytes_total").alias("total")).collect()[0]
    return row["used"] or 0, row["total"] or 0


def capacity(dir_days: DataFrame, *, top: int = TOP) -> Capacity:
    """Forecasts and uneven brokers, of the ``dir_day`` rows of the days that are asked for."""
    found = forecasts(dir_days).persist()
    try:
        totals = found.agg(
            F.count(F.lit(1)).alias("directories"),
            F.sum("resets").alias("resets"),
            *(F.count_if(F.col("days_100") <= days).alias(f"within_{days}") for days in FULL_WITHIN_DAYS),
        ).collect()[0]
        used, total = space(found)
        order = [F.asc_nulls_last(f"days_{mark}") for mark in reversed(MARKS_PCT)]
        soonest = found.orderBy(*order, F.desc("used_ratio"), *_DIRECTORY).limit(top).collect()
    finally:
        found.unpersist()
    uneven = imbalances(dir_days).where(F.col("gain") >= UNEVEN_GAIN_MIN).persist()
    try:
        uneven_hosts = uneven.count()
        most = uneven.orderBy(F.desc("gain"), "fleet", "host", "broker_id").limit(top).collect()
    finally:
        uneven.unpersist()
    return Capacity(
        directories=totals.directories,
        bytes_total=total,
        bytes_used=used,
        full_within={str(days): totals[f"within_{days}"] for days in FULL_WITHIN_DAYS},
        resets=totals.resets or 0,
        forecasts=tuple(_forecast(row.asDict()) for row in soonest),
        uneven_hosts=uneven_hosts,
        imbalances=tuple(_imbalance(row.asDict()) for row in most),
    )


def _forecast(row: Mapping[str, Any]) -> Forecast:
    until = (
        Days(
            mark_pct=mark,
            days=row[f"days_{mark}"],
            soonest=row[f"days_{mark}_soonest"],
            latest=row[f"days_{mark}_latest"],
        )
        for mark in MARKS_PCT
    )
    return Forecast(
        place=Place(**{name: row[name] for name in _PLACE}),
        bytes_total=row["bytes_total"],
        bytes_used=row["used_last"],
        used_ratio=row["used_ratio"],
        growth_bytes_per_day=row["growth"],
        growth_low=row["growth_low"],
        growth_high=row["growth_high"],
        since=row["since"],
        days_seen=row["days_seen"],
        resets=row["resets"],
        until=tuple(until),
    )


def _imbalance(row: Mapping[str, Any]) -> Imbalance:
    partitions, moved = row["full_partitions"], round(row["moved"])
    about = round(partitions * moved / row["full_used"]) if partitions and row["full_used"] else None
    names = ("fleet", "rack", "host", "broker_id", "directories", "used_max", "used_mean", "used_gini", "busy_gini")
    return Imbalance(
        **{name: row[name] for name in names},
        used_max_over_mean=row["used_max"] / row["used_mean"] if row["used_mean"] else None,
        fullest=row["fullest"],
        emptiest=row["emptiest"],
        move_bytes=moved,
        used_max_after=row["used_max_after"],
        about_partitions=about,
        commands=move_commands(row["fullest"], row["emptiest"], moved),
    )
