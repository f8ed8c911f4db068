"""Directories in an hour: silver to ``gold.dir_hour`` and ``gold.rack_model_hour``.

All samples go through one aggregation whose values are numbers alone: Spark keeps those in a hash table, and would sort
all rows for a single text among them. So texts, which hardly ever change in an hour, are in its key, and what remains,
some rows for each directory, is merged with anything.

The moment of a sample in an hour is one number, milliseconds and ``seq``: in a run of an agent no two samples of a
directory have the same, and a clock that is set within a millisecond does not matter. (Contract: ``(ts, mono_ns,
seq)``; ``mono_ns`` and ``seq`` of a run grow together.)

Counters of a disk grow as long as ``counters_since`` is the same: its *life*. Where the agent does not know it, a run
is a life. What is added in a life is its last value less its first, and in an hour the sum over lives: what was counted
between the last sample before a reset and the first one after it is left out. A counter that falls within a life began
anew, once: it grew from its first value to its greatest, and from its smallest to its last.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.lake.lake import HOUR_MS
from kjbod.fleet.rollup.merge import EXACT, at, joined, merged, part, shaped, summed_maps, value
from kjbod.fleet.schema import DirectoryState, EventKind
from kjbod.fleet.silver import hour_number
from kjbod.fleet.tables import COUNTERS, DIR_HOUR, RACK_MODEL_HOUR, SMART_GROWING

KEY = (*DIR_HOUR.key, "date", "hour")
_NUMBERED = (*DIR_HOUR.key, "_hour")
"""The same of samples, with the hour as a number: to put a date into words for each costs as much as adding it up."""
TEXTS = ("rack", "device", "model", "serial", "firmware")
LEVELS = ("capacity_bytes", "bytes_total", "partitions", "leaders", "smart_poh", "smart_wear_pct", "smart_spare_pct")
"""Columns of which the last value counts."""
_STEADY = (*_NUMBERED, *TEXTS, "boot_id", "counters_since", "state")
_SEQ_BITS = 41  # 22 for the milliseconds of an hour, and no sign
_HALF = 31
"""Bits of the lower part of a size: sums of products with seconds stay below 2^63 for a million samples."""


def dir_hour(summed: DataFrame, maps: DataFrame, events: DataFrame) -> DataFrame:
    """Rows of ``gold.dir_hour`` of :func:`summed` and :func:`histograms` of samples, and of events, each of which is
    there once. The first two go through all samples; this one has some rows for each directory."""
    lives = merged(_partial(summed), (*KEY, "_life"))
    parts = _of_life(lives).unionByName(_happened(events), allowMissingColumns=True)
    return shaped(joined(_finished(merged(parts, KEY)), maps, KEY), DIR_HOUR.columns)


def histograms(samples: DataFrame) -> DataFrame:
    """Histograms of directories, of samples of which each is there once."""
    rows = samples.select(*DIR_HOUR.key, hour_number(F.col("ts")).alias("_hour"), "probe_histogram")
    return summed_maps(rows, _NUMBERED, ["probe_histogram"]).select(*DIR_HOUR.key, *_named_hour(), "probe_histogram")


def _named_hour() -> tuple[Column, Column]:
    moment = F.timestamp_millis(F.col("_hour") * HOUR_MS)
    return F.date_format(moment, "yyyy-MM-dd").alias("date"), F.date_format(moment, "HH").alias("hour")


def summed(samples: DataFrame) -> DataFrame:
    """Of samples of which each is there once: partial columns of directories, by all that hardly ever changes."""
    moment = F.pmod("ts", F.lit(HOUR_MS)) * (1 << _SEQ_BITS) + F.pmod("seq", F.lit(1 << _SEQ_BITS))
    second = F.floor(F.pmod("ts", F.lit(HOUR_MS)) / 1000).cast("bigint")
    used = F.col("bytes_used")
    low, high = used.bitwiseAND((1 << _HALF) - 1), F.shiftright("bytes_used", _HALF)
    x = F.when(used.isNotNull(), F.col("_x"))
    rows = samples.withColumns({"_at": moment, "_x": second, "_hour": hour_number(F.col("ts"))})
    return rows.groupBy(*_STEADY).agg(
        F.count(F.lit(1)).alias("sum.samples"),
        F.count_if("_skewed").alias("sum.skewed"),
        F.min("ts").alias("min.sample_ts"),
        F.max("ts").alias("max.sample_ts"),
        F.max("mono_ns").alias("_mono_ns"),
        F.max("_at").alias("_at"),
        F.min("_at").alias("_first_at"),
        *(column for name in ("state_since", *LEVELS) for column in _newest(name)),
        *(column for name in ("bytes_used", *SMART_GROWING) for column in (*_newest(name), *_oldest(name))),
        F.min(used).alias("min.used"),
        F.max(used).alias("max.used"),
        F.max("leaders").alias("max.leaders"),
        F.count(used).alias("sum.line_n"),
        F.try_sum(x).alias("_line_x"),
        F.try_sum(x * x).alias("_line_xx"),
        *(F.try_sum(half).alias(f"_line_y{name}") for name, half in (("l", low), ("h", high))),
        *(F.try_sum(half * x).alias(f"_line_xy{name}") for name, half in (("l", low), ("h", high))),
        *(function(name).alias(f"_{name}_{end}") for name in COUNTERS for end, function in _ENDS),
        *(function(name, "_at").alias(f"_{name}_{end}") for name in COUNTERS for end, function in _ENDS_IN_TIME),
        *(F.try_sum(name).alias(f"sum.{name}") for name in ("probes", "probe_failures")),
        F.max("probe_us").alias("max.probe_us"),
        *(F.try_sum(f"probe_{name}_us").alias(f"sum.probe_{name}_us") for name in ("write", "sync", "read")),
        F.count("probe_write_us").alias("sum.probe_n"),
        F.min("smart_passed").alias("min.smart_passed"),
        F.max("smart_temp_c").alias("max.smart_temp_c"),
        F.bit_or("smart_critical_warning").alias("or.smart_critical_warning"),
    )


_ENDS = (("min", F.min), ("max", F.max))
_ENDS_IN_TIME = (("old", F.min_by), ("new", F.max_by))


def _newest(name: str) -> tuple[Column, Column]:
    known = F.when(F.col(name).isNotNull(), F.col("_at"))
    return F.max_by(name, known).alias(f"_{name}_new"), F.max(known).alias(f"_{name}_new_at")


def _oldest(name: str) -> tuple[Column, Column]:
    known = F.when(F.col(name).isNotNull(), F.col("_at"))
    return F.min_by(name, known).alias(f"_{name}_old"), F.min(known).alias(f"_{name}_old_at")


def _partial(summed: DataFrame) -> DataFrame:
    """The numbers as partial columns, and the texts of their key too."""
    exact = {name: f"CAST(_line_{name}h AS {EXACT}) * {1 << _HALF} + _line_{name}l" for name in ("y", "xy")}
    in_state = F.struct(F.col("state").alias("bucket"), part("sum.samples").alias("n"))
    found = ("bytes_used", *SMART_GROWING)
    return summed.select(
        *DIR_HOUR.key,
        *_named_hour(),
        F.coalesce(F.col("counters_since").cast("string"), F.col("boot_id")).alias("_life"),
        *(part(name) for name in summed.columns if "." in name),
        part("min.sample_ts").alias("min.ts"),
        part("max.sample_ts").alias("max.ts"),
        F.col("_first_at").alias("min.at"),
        F.col("_at").alias("max.at"),
        F.array("boot_id").alias("set.boots"),
        F.array(in_state).alias("list.states"),
        _state(part("max.sample_ts"), F.col("_mono_ns"), F.col("state"), F.col("_state_since_new")),
        *(at(F.col("_at"), F.col(name)).alias(f"new.{name}") for name in TEXTS),
        *(at(F.col(f"_{n}_new_at"), F.col(f"_{n}_new")).alias(f"new.{n}") for n in (*LEVELS, *found)),
        *(at(F.col(f"_{n}_old_at"), F.col(f"_{n}_old")).alias(f"old.{n}") for n in found),
        *(F.col(f"_line_{name}").cast(EXACT).alias(f"sum.line_{name}") for name in ("x", "xx")),
        *(F.expr(f"CAST({text} AS {EXACT})").alias(f"sum.line_{name}") for name, text in exact.items()),
        F.col("counters_since").alias("max.counters_since"),
        *(F.col(f"_{name}_{end}").alias(f"{end}.{name}") for name in COUNTERS for end, _ in _ENDS),
        *(at(_moment(end), _at_end(name, end)).alias(f"{end}.{name}") for name in COUNTERS for end, _ in _ENDS_IN_TIME),
        *(at(_moment(end), F.col("boot_id")).alias(f"{end}.boot") for end, _ in _ENDS_IN_TIME),
    )


def _moment(end: str) -> Column:
    return F.col("_first_at" if end == "old" else "_at")


def _at_end(name: str, end: str) -> Column:
    """A counter in the first or the last sample; where that has none, its smallest or greatest value."""
    return F.coalesce(f"_{name}_{end}", f"_{name}_min" if end == "old" else f"_{name}_max")


def _state(ts: Column, mono_ns: Column, state: Column, since: Column) -> Column:
    said = F.struct(state.alias("state"), since.alias("since"))
    return at(F.struct(ts.alias("ts"), mono_ns.alias("mono_ns")), said).alias("new.state")


def _of_life(lives: DataFrame) -> DataFrame:
    """Partial columns of directories, in which each life of the counters is added up."""
    ends = {"min": "old", "max": "new"}
    since = part("max.counters_since")
    counters = [f"{end}.{name}" for name in COUNTERS for end, _ in _ENDS]
    fell = reduce(Column.__or__, (F.coalesce(_fell(name), F.lit(False)) for name in COUNTERS))
    others = [name for name in lives.columns if "." in name and name not in (*counters, "max.counters_since")]
    return lives.select(
        *KEY,
        *(part(name) for name in others),
        F.when(since.isNotNull(), 1).otherwise(0).cast("bigint").alias("sum.lives"),
        *(at(part(f"{end}.at"), since).alias(f"{kind}.counters_since") for end, kind in ends.items()),
        fell.cast("bigint").alias("sum.falls"),
        *(_grown(name).alias(f"sum.{name}_added") for name in COUNTERS),
    )


def _fell(name: str) -> Column:
    return (value(f"new.{name}") < part(f"max.{name}")) | (value(f"old.{name}") > part(f"min.{name}"))


def _grown(name: str) -> Column:
    """Count of a counter in a life."""
    first, last, least, most = value(f"old.{name}"), value(f"new.{name}"), part(f"min.{name}"), part(f"max.{name}")
    return F.try_add(F.try_subtract(last, least), F.when(last < most, F.try_subtract(most, first)).otherwise(0))


def _happened(events: DataFrame) -> DataFrame:
    """Events of directories, as partial columns."""
    failed = F.col("kind") == str(EventKind.DIR_FAILED)
    changed = F.col("kind") == str(EventKind.STATE_CHANGED)
    online = str(DirectoryState.ONLINE)
    state = F.when(failed, str(DirectoryState.FAILED)).otherwise(F.col("attrs.state"))
    left = changed & (F.col("attrs.previous") == online) & (F.col("attrs.state") != online)
    moment = F.pmod("ts", F.lit(HOUR_MS)) * (1 << _SEQ_BITS)
    # Events have the names of a device and its number, samples the names alone.
    device = F.regexp_replace("device", r" \d+:\d+$", "")
    one = events.where((failed | changed) & F.col("path").isNotNull()).select(
        F.coalesce("fleet", F.lit("")).alias("fleet"),
        *(name for name in KEY if name != "fleet"),
        F.when(failed, 1).otherwise(0).cast("bigint").alias("sum.failures"),
        F.when(left, 1).otherwise(0).cast("bigint").alias("sum.transitions"),
        F.col("ts").alias("min.ts"),
        F.col("ts").alias("max.ts"),
        F.array("boot_id").alias("set.boots"),
        _state(F.col("ts"), F.col("mono_ns"), state, F.col("ts")),
        at(moment, device).alias("new.device"),
        at(moment, F.col("serial")).alias("new.serial"),
        F.when(failed, F.col("ts")).alias("min.failed_ts"),
        F.when(failed, F.col("ts")).alias("max.failed_ts"),
        at(F.when(failed, F.col("ts")), F.col("attrs.cause")).alias("old.cause"),
    )
    return merged(one, KEY)


def _finished(whole: DataFrame) -> DataFrame:
    """Columns of the table, but for the histogram, of one row of partial columns for each directory."""
    samples = F.coalesce(part("sum.samples"), F.lit(0))
    boots = F.size("`set.boots`").cast("bigint")
    span = part("max.sample_ts") - part("min.sample_ts")
    return whole.select(
        *KEY,
        *(value(f"new.{name}").alias(name) for name in (*TEXTS, *LEVELS)),
        boots.alias("boots"),
        *(F.coalesce(part(f"sum.{n}"), F.lit(0)).alias(n) for n in _COUNTS),
        F.when((boots == 1) & (samples > 1), _quotient(span, samples - 1)).alias("interval_ms"),
        part("min.ts").alias("first_ts"),
        part("max.ts").alias("last_ts"),
        value("new.state").getField("state").alias("state"),
        value("new.state").getField("since").alias("state_since"),
        _counted("list.states").alias("states"),
        part("min.failed_ts").alias("failed_first_ts"),
        part("max.failed_ts").alias("failed_last_ts"),
        value("old.cause").alias("failure_cause"),
        value("old.bytes_used").alias("used_first"),
        value("new.bytes_used").alias("used_last"),
        part("min.used").alias("used_min"),
        part("max.used").alias("used_max"),
        *(part(f"sum.line_{name}").alias(f"line_{name}") for name in ("x", "y", "xy", "xx")),
        part("max.leaders").alias("leaders_max"),
        value("old.counters_since").alias("counters_since_first"),
        value("new.counters_since").alias("counters_since"),
        (
            F.greatest(F.coalesce(part("sum.lives"), F.lit(0)) - 1, F.lit(0)) + F.coalesce(part("sum.falls"), F.lit(0))
        ).alias("resets"),
        value("old.boot").alias("boot_first"),
        value("new.boot").alias("boot_last"),
        *(
            column
            for name in COUNTERS
            for column in (
                value(f"old.{name}").alias(f"{name}_first"),
                value(f"new.{name}").alias(f"{name}_last"),
                part(f"sum.{name}_added").alias(f"{name}_added"),
            )
        ),
        part("max.probe_us").alias("probe_us_max"),
        *(part(f"sum.probe_{name}_us").alias(f"probe_{name}_us_sum") for name in ("write", "sync", "read")),
        *(value(f"old.{name}").alias(f"{name}_first") for name in SMART_GROWING),
        *(value(f"new.{name}").alias(f"{name}_last") for name in SMART_GROWING),
        part("min.smart_passed").alias("smart_passed"),
        part("max.smart_temp_c").alias("smart_temp_c_max"),
        part("or.smart_critical_warning").alias("smart_critical_warning"),
    )


_COUNTS = ("samples", "skewed", "transitions", "failures", "line_n", "probes", "probe_failures", "probe_n")


def _quotient(dividend: Column, divisor: Column) -> Column:
    return F.floor(dividend / divisor).cast("bigint")


def _counted(name: str) -> Column:
    """A histogram of ``[(bucket, n), ...]`` in which a bucket may be more than once."""
    entries = F.coalesce(part(name), F.array())
    buckets = F.array_sort(F.array_distinct(F.transform(entries, lambda entry: entry.bucket)))

    def total(bucket: Column) -> Column:
        of_bucket = F.filter(entries, lambda entry: entry.bucket == bucket)
        n = F.aggregate(of_bucket, F.lit(0).cast("bigint"), lambda sum_, entry: sum_ + entry.n)
        return F.struct(bucket.alias("key"), n.alias("value"))

    return F.when(F.size(buckets) > 0, F.map_from_entries(F.transform(buckets, total)))


def rack_model_hour(hours: DataFrame) -> DataFrame:
    """Rows of ``gold.rack_model_hour`` of rows of ``gold.dir_hour``."""
    return shaped(grouped(hours, (*RACK_MODEL_HOUR.key, "date", "hour")), RACK_MODEL_HOUR.columns)


def grouped(directories: DataFrame, keys: tuple[str, ...], *more: Column) -> DataFrame:
    """The columns that groups of directories have, and ``more`` aggregates, of rows of an hour or a day."""
    not_online = F.col("samples") - F.coalesce(F.col("states").getItem(str(DirectoryState.ONLINE)), F.lit(0))
    sums = ("samples", "failures", "probes", "probe_failures", *(f"{name}_added" for name in COUNTERS))
    # Of a disk that was replaced and its successor one has room there.
    place = Window.partitionBy(*keys, *(name for name in ("host", "broker_id", "path") if name not in keys))
    turn = F.row_number().over(place.orderBy(F.isnull("bytes_total"), F.desc("last_ts"), "dir_id"))
    rows = (
        directories.withColumn("_turn", turn)
        .groupBy(*keys)
        .agg(
            F.count_distinct("host", "broker_id", "path").alias("directories"),
            F.try_sum(not_online).alias("not_online"),
            *(F.try_sum(name).alias(name) for name in sums),
            *(
                F.try_sum(F.when(F.col("_turn") == 1, F.col(n))).alias(n)
                for n in ("bytes_total", "used_last", "leaders")
            ),
            *more,
        )
    )
    return joined(rows, summed_maps(directories, keys, ["probe_histogram"]), keys)
