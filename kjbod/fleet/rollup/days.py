"""Directories and hosts in a day: ``gold.dir_hour`` to ``gold.dir_day`` and ``gold.host_day``.

What was counted between the last sample of an hour and the first one of the next belongs to the day, if the counters
were not reset meanwhile; where nobody says when they began, only within a run of the agent. That needs each hour and
the last one before it that has samples, so the rows of a directory are put in order once;
everything else is merged in the same order.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.rollup.hours import LEVELS, TEXTS, grouped
from kjbod.fleet.rollup.merge import EXACT, at, joined, merged, part, shaped, summed_maps, value
from kjbod.fleet.schema import DirectoryState
from kjbod.fleet.tables import COUNTERS, DIR_DAY, HOST_DAY, SMART_GROWING

KEY = (*DIR_DAY.key, "date")
HOUR_S = 3_600
_SUMS = (
    *("samples", "skewed", "transitions", "failures", "line_n", "line_y"),
    *("probes", "probe_failures", "probe_write_us_sum", "probe_sync_us_sum", "probe_read_us_sum", "probe_n"),
)
_LEAST = ("first_ts", "interval_ms", "failed_first_ts", "used_min", "smart_passed")
_GREATEST = ("boots", "last_ts", "failed_last_ts", "used_max", "leaders_max", "probe_us_max", "smart_temp_c_max")
_FIRST = ("failure_cause", "used_first", "counters_since_first", *(f"{n}_first" for n in (*COUNTERS, *SMART_GROWING)))
_LAST = (*TEXTS, *LEVELS, "used_last", "counters_since", *(f"{name}_last" for name in (*COUNTERS, *SMART_GROWING)))


def dir_day(hours: DataFrame) -> DataFrame:
    """Rows of ``gold.dir_day`` of all rows of ``gold.dir_hour`` of their dates."""
    whole = _finished(merged(_parts(hours), KEY))
    maps = summed_maps(hours.select(*KEY, "states", "probe_histogram"), KEY, ["states", "probe_histogram"])
    return shaped(joined(whole, maps, KEY), DIR_DAY.columns)


def _parts(hours: DataFrame) -> DataFrame:
    """Hours as partial columns of days."""
    before = Window.partitionBy(*KEY).orderBy("hour").rowsBetween(Window.unboundedPreceding, -1)
    names = ("counters_since", "boot_last", *(f"{name}_last" for name in COUNTERS))
    sampled = F.when(F.col("samples") > 0, F.struct(*names))  # an hour may have an event alone
    rows = hours.withColumn("_before", F.last(sampled, ignorenulls=True).over(before))
    hour = F.col("hour").cast("int")
    x0 = (hour * HOUR_S).cast("decimal(10,0)")
    n, x, y = (F.col(f"line_{name}") for name in ("n", "x", "y"))
    lines = {"x": x + x0 * n, "xy": F.col("line_xy") + x0 * y, "xx": F.col("line_xx") + 2 * x0 * x + x0 * x0 * n}
    online = (F.col("samples") > 0) & (F.col("states").getItem(str(DirectoryState.ONLINE)) == F.col("samples"))
    well = F.coalesce(online & (F.col("failures") == 0), F.lit(False))
    return rows.select(
        *KEY,
        F.lit(1).cast("bigint").alias("sum.hours"),
        F.when(well, 1).otherwise(0).cast("bigint").alias("sum.hours_online"),
        F.when(well, F.col("first_ts")).alias("min.online_first_ts"),
        F.when(well, F.col("last_ts")).alias("max.online_last_ts"),
        *(F.col(name).alias(f"sum.{name}") for name in _SUMS),
        _resets().alias("sum.resets"),
        *(_exact(line).alias(f"sum.line_{name}") for name, line in lines.items()),
        *(F.col(name).alias(f"min.{name}") for name in _LEAST),
        *(F.col(name).alias(f"max.{name}") for name in _GREATEST),
        *(at(hour, F.col(name)).alias(f"old.{name}") for name in _FIRST),
        *(at(hour, F.col(name)).alias(f"new.{name}") for name in _LAST),
        at(hour, F.struct("state", "state_since")).alias("new.state"),
        *(_added(name).alias(f"sum.{name}_added") for name in COUNTERS),
        F.col("smart_critical_warning").alias("or.smart_critical_warning"),
    )


def _exact(number: Column) -> Column:
    return number.cast(EXACT)


def _resets() -> Column:
    """In an hour, and since the one before it."""
    other = F.col("counters_since_first") != F.col("_before.counters_since")
    return F.col("resets") + F.when(other, 1).otherwise(0)


def _added(name: str) -> Column:
    """Of an hour, and since the one before it."""
    since = F.try_subtract(F.col(f"{name}_first"), F.col(f"_before.{name}_last"))
    began, began_before = F.col("counters_since_first"), F.col("_before.counters_since")
    same_run = began.isNull() & began_before.isNull() & (F.col("boot_first") == F.col("_before.boot_last"))
    same_life = (began == began_before) | same_run
    gap = F.when(same_life & (since > 0), since).otherwise(0)
    return F.try_add(F.col(f"{name}_added"), F.coalesce(gap, F.lit(0)))


def _finished(whole: DataFrame) -> DataFrame:
    state = value("new.state")
    return whole.select(
        *KEY,
        *(part(f"sum.{name}").alias(name) for name in ("hours", "hours_online", *_SUMS)),
        *(part(f"sum.line_{name}").alias(f"line_{name}") for name in ("x", "xy", "xx")),
        *(part(f"min.{name}").alias(name) for name in (*_LEAST, "online_first_ts")),
        part("sum.resets").alias("resets"),
        *(part(f"max.{name}").alias(name) for name in (*_GREATEST, "online_last_ts")),
        *(value(f"old.{name}").alias(name) for name in _FIRST),
        *(value(f"new.{name}").alias(name) for name in _LAST),
        state.getField("state").alias("state"),
        state.getField("state_since").alias("state_since"),
        *(part(f"sum.{name}_added").alias(f"{name}_added") for name in COUNTERS),
        part("or.smart_critical_warning").alias("smart_critical_warning"),
    )


def host_day(days: DataFrame) -> DataFrame:
    """Rows of ``gold.host_day`` of rows of ``gold.dir_day``."""
    used = F.try_divide("used_last", "bytes_total")
    more = (
        F.max("rack").alias("rack"),
        F.min(used).alias("used_ratio_min"),
        F.max(used).alias("used_ratio_max"),
        F.max("busy_ms_added").alias("busy_ms_max"),
    )
    return shaped(grouped(days, (*HOST_DAY.key, "date"), *more), HOST_DAY.columns)
