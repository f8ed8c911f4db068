"""Directories and hosts in a day: ``gold.dir_hour`` to ``gold.dir_day`` and ``gold.host_day``.

What was counted between the last sample of an hour and the first one of the next belongs to the day, if the counters
were not reset meanwhile; where nobody says when they began, only within a run of the agent. That needs each hour and
the last one before it that has samples, so the rows of a directory are put in order once;
everything else is merged in the same order.

Mostly hours come one after the other, and then a day is what it was before, and the new hours: :func:`dir_day` with
``before`` goes through these alone, or the 24th hour of a day would cost ten times what the first one does. The result
is the same, or says that it may not be: a sum that was too large is null, as one of nothing is, and nobody can tell the
one from the other when something is to be added.
"""

from collections.abc import Mapping, Sequence
from functools import reduce

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

_ALL_SUMS = (
    *("hours", "hours_online", *_SUMS, "line_x", "line_xy", "line_xx", "resets"),
    *(f"{name}_added" for name in COUNTERS),
)
UNSURE = "_unsure"


def dir_day(hours: DataFrame, before: DataFrame | None = None, *, is_one_hour: bool = False) -> DataFrame:
    """Rows of ``gold.dir_day`` of rows of ``gold.dir_hour``: of all of their dates, or, with ``before``, of those that
    the rows of ``gold.dir_day`` in it do not count yet.

    With ``before`` there is a column more, :data:`UNSURE`. Days of which it is true must be made of all hours.

    Args:
        is_one_hour: a directory has no more than one hour in a day, which makes it cheaper; with ``before`` most have,
            and the others are unsure.
    """
    if before is None:
        return shaped(_of_hours(hours, None, is_one_hour=is_one_hour), DIR_DAY.columns)
    twice = F.count(F.lit(1)).over(Window.partitionBy(*KEY)) > 1 if is_one_hour else F.lit(False)
    ends = before.select(*KEY, F.col("counters_end").alias("_end"))
    rows = joined(hours.withColumn(UNSURE, twice), ends, KEY)
    rest = _of_hours(rows, F.col("_end"), (UNSURE,) if is_one_hour else (), is_one_hour=is_one_hour)
    found = shaped(rest, {**DIR_DAY.columns, UNSURE: "BOOLEAN"})
    return _followed(before, found, is_one_hour=is_one_hour)


def _of_hours(hours: DataFrame, end: Column | None, others: Sequence[str] = (), *, is_one_hour: bool) -> DataFrame:
    """Days of some hours, and ``others`` of the hours, if it is one.

    Args:
        end: what ``counters_end`` was before them.
    """
    maps = ("states", "probe_histogram")
    if is_one_hour:
        known = F.lit(None).cast(DIR_DAY.columns["counters_end"]) if end is None else end
        kept = (*maps, *others)
        return _finished(_parts(hours.withColumn("_before", known), kept), kept)
    window = Window.partitionBy(*KEY).orderBy("hour").rowsBetween(Window.unboundedPreceding, -1)
    last = F.last(_counted(), ignorenulls=True).over(window)
    rows = hours.withColumn("_before", last if end is None else F.coalesce(last, end))
    return joined(_finished(merged(_parts(rows), KEY)), summed_maps(hours.select(*KEY, *maps), KEY, maps), KEY)


def _counted() -> Column:
    """``counters_end`` of an hour; null where it has an event alone."""
    names = ("counters_since", "boot_last", *(f"{name}_last" for name in COUNTERS))
    return F.when(F.col("samples") > 0, F.struct(*names))


def _parts(rows: DataFrame, others: Sequence[str] = ()) -> DataFrame:
    """Hours, each with the counters ``_before`` it, as partial columns of days; and ``others``."""
    hour = F.col("hour").cast("int")
    x0 = (hour * HOUR_S).cast("decimal(10,0)")
    n, x, y = (F.col(f"line_{name}") for name in ("n", "x", "y"))
    lines = {"x": x + x0 * n, "xy": F.col("line_xy") + x0 * y, "xx": F.col("line_xx") + 2 * x0 * x + x0 * x0 * n}
    online = (F.col("samples") > 0) & (F.col("states").getItem(str(DirectoryState.ONLINE)) == F.col("samples"))
    well = F.coalesce(online & (F.col("failures") == 0), F.lit(False))
    return rows.select(
        *KEY,
        *others,
        # As of a sum, nothing says that there is no null: a file has in its schema what can be none.
        F.when(F.col("hour").isNotNull(), 1).cast("bigint").alias("sum.hours"),
        F.when(well, 1).when(~well, 0).cast("bigint").alias("sum.hours_online"),
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
        at(hour, _counted()).alias("new.counters_end"),
        *(_added(name).alias(f"sum.{name}_added") for name in COUNTERS),
        F.col("smart_critical_warning").alias("or.smart_critical_warning"),
    )


def _followed(before: DataFrame, rest: DataFrame, *, is_one_hour: bool) -> DataFrame:
    """Days of the hours of both, all of those of ``rest`` later; with :data:`UNSURE`."""
    pairs = before.select(*(F.col(name).alias(f"{name}.left") for name in DIR_DAY.columns)).join(
        rest, [part(f"{name}.left").eqNullSafe(F.col(name)) for name in KEY], "full"
    )
    both = {name: (part(f"{name}.left"), F.col(name)) for name in DIR_DAY.columns}
    is_before, is_rest = (hours.isNotNull() for hours in both["hours"])
    found = {name: F.coalesce(*pair) for name, pair in both.items()}  # keys, and the first of anything
    found |= {name: F.coalesce(rest, first) for name, (first, rest) in both.items() if name in (*_LAST, "counters_end")}
    found |= {n: F.when(is_rest, both[n][1]).otherwise(both[n][0]) for n in ("state", "state_since")}
    found |= {name: F.least(*both[name]) for name in (*_LEAST, "online_first_ts")}
    found |= {name: F.greatest(*both[name]) for name in (*_GREATEST, "online_last_ts")}
    found |= {name: _sum_of(*both[name]) for name in _ALL_SUMS}
    found |= {name: _sum_of_maps(*both[name]) for name in ("states", "probe_histogram")}
    flags, more = both["smart_critical_warning"]
    found["smart_critical_warning"] = F.coalesce(flags.bitwiseOR(more), flags, more)
    kinds = DIR_DAY.columns
    return pairs.select(
        *(found[n].cast(kind).alias(n) for n, kind in kinds.items()),
        (
            (is_before & _has_no_end(both))
            | (is_rest & (F.coalesce(UNSURE, F.lit(False)) | (is_before & _is_unsure(both, is_one_hour=is_one_hour))))
        ).alias(UNSURE),
    )


def _has_no_end(both: Mapping[str, tuple[Column, Column]]) -> Column:
    """Whether a day was written by a kjbod that did not keep its end."""
    return F.coalesce((both["samples"][0] > 0) & both["counters_end"][0].isNull(), F.lit(False))


def _is_unsure(both: Mapping[str, tuple[Column, Column]], *, is_one_hour: bool) -> Column:
    """Whether it cannot be told what two parts of a day give together. What is null of one hour says nothing; what is
    null of several may be a sum that does not fit."""
    maps = [both[name] for name in ("states", "probe_histogram")]
    unsure = [both[name][0].isNull() & both[name][1].isNotNull() for name in _ALL_SUMS]
    unsure += [_has_null(first) for first, _ in maps]
    if not is_one_hour:
        unsure += [both[name][0].isNotNull() & both[name][1].isNull() for name in _ALL_SUMS]
        unsure += [_has_null(rest) for _, rest in maps]
    later = _hour_of(both["first_ts"][1]) > _hour_of(both["last_ts"][0])
    return reduce(Column.__or__, unsure) | ~F.coalesce(later, F.lit(False))


def _hour_of(ts: Column) -> Column:
    return F.floor(ts / (HOUR_S * 1_000))


def _sum_of(first: Column, rest: Column) -> Column:
    """Null if it does not fit."""
    return F.when(first.isNull(), rest).when(rest.isNull(), first).otherwise(F.try_add(first, rest))


def _sum_of_maps(first: Column, rest: Column) -> Column:
    both = F.map_zip_with(first, rest, lambda _, n, m: _sum_of(n, m))
    in_order = F.map_from_entries(F.array_sort(F.map_entries(both)))
    return F.when(first.isNull(), rest).when(rest.isNull(), first).otherwise(in_order)


def _has_null(counts: Column) -> Column:
    return F.coalesce(F.exists(F.map_values(counts), lambda n: n.isNull()), F.lit(False))


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


def _finished(whole: DataFrame, others: Sequence[str] = ()) -> DataFrame:
    state = value("new.state")
    return whole.select(
        *KEY,
        *others,
        *(part(f"sum.{name}").alias(name) for name in ("hours", "hours_online", *_SUMS)),
        *(part(f"sum.line_{name}").alias(f"line_{name}") for name in ("x", "xy", "xx")),
        *(part(f"min.{name}").alias(name) for name in (*_LEAST, "online_first_ts")),
        part("sum.resets").alias("resets"),
        *(part(f"max.{name}").alias(name) for name in (*_GREATEST, "online_last_ts")),
        *(value(f"old.{name}").alias(name) for name in _FIRST),
        *(value(f"new.{name}").alias(name) for name in _LAST),
        state.getField("state").alias("state"),
        state.getField("state_since").alias("state_since"),
        value("new.counters_end").alias("counters_end"),
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
