"""Health before failure, from the days and hours of directories: the rules of :mod:`kjbod.fleet.insight.rules` and the
comparison with peers.

*Fail-slow*: disks of one model in one host have the same work to do; of each hour the latency that a disk should have
under its load is read from a straight line through its peers' hours, without its own (after Perseus, FAST'23). Hours
with a latency far above the group's median do not shape the line. Slow is an hour above the line's upper prediction
limit and at least :data:`SLOW_RATIO_MIN` times the line; what counts is the ratio of a day with at least
:data:`kjbod.fleet.insight.rules.SLOW_HOURS_MIN` such hours.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.insight.model import TOP, Health, Place, Risk, ScoreOn
from kjbod.fleet.insight.rules import (
    AT_RISK_FROM,
    BASELINE,
    FACTS,
    GROWN,
    GROWTH_DAYS,
    SIGNS,
    SLOW_HOURS_MIN,
    Sign,
    Step,
    reasons,
)
from kjbod.fleet.schema import DirectoryState
from kjbod.fleet.tables import SMART_GROWING, SMART_LEVELS

PLACE = ("fleet", "rack", "host", "broker_id", "path", "dir_id", "device", "model", "serial")
_DISK = ("fleet", "host", "broker_id", "path", "dir_id", "serial")
_DISK_AND_MODEL = (*_DISK, "model")
PEER_HOURS_MIN = 24
"""Hours of peers, taken together, without which there is no line."""
SLOW_RATIO_MIN = 1.5
OUTLIER_RATIO = 3.0
"""Hours this much above the median of their group do not shape the line."""
PREDICTION_Z = 3.0
"""Standard deviations of the peers' hours around the line that are the upper prediction limit."""
_LEVELS = {"smart_temp_c": "smart_temp_c_max"}
HISTORY_DAYS_MAX = 90
SEEN_DAYS = 3
"""Newest dates on which a directory must have been seen; one that was seen before them is silent, and not scored."""


# ---------------------------------------------------------------------------------------------------------------- facts


def facts_of_directories(dir_days: DataFrame, slow: DataFrame | None = None, newest: str | None = None) -> DataFrame:
    """Facts of each directory and day, of ``dir_day`` rows and of :func:`slow_days`. With ``newest``, a date: of each
    path's disk on its own last day, of those that were seen in the :data:`SEEN_DAYS` up to it."""
    of_day: list[Column | str] = [
        *PLACE,
        *("date", "state", "leaders", "partitions", "last_ts"),
        *(F.col(f"{name}_last").alias(name) for name in SMART_GROWING),
        *(F.col(f"{name}_first").alias(f"{name}_first") for name in SMART_GROWING),
        *(F.col(_LEVELS.get(name, name)).alias(name) for name in SMART_LEVELS),
        F.col("io_errors_added").alias("io_errors"),
        "probe_failures",
    ]
    if newest is None:
        grown = _with_growth(dir_days.select(*of_day), _DISK, "_first")
    else:
        grown = _with_growth_of_last(dir_days.select(*of_day), newest)
    if slow is None:
        return grown.withColumns({"slow_ratio": F.lit(None).cast("double"), "compared": F.lit(False)})
    found = slow.select(*_DISK, "date", F.round("slow_ratio", 3).alias("slow_ratio"), F.lit(True).alias("compared"))
    if newest is not None:
        # A last day that has only just begun says nothing yet: then it is the day before that counts.
        told = F.when(slow["hours"] >= SLOW_HOURS_MIN, F.struct("date", F.round("slow_ratio", 3).alias("slow_ratio")))
        latest = slow.groupBy(*_DISK).agg(F.max(told).alias("told"), F.lit(True).alias("compared"))
        found = latest.select(*_DISK, F.col("told.slow_ratio").alias("slow_ratio"), "compared")
    key = _DISK if newest is not None else (*_DISK, "date")
    return _joined(grown, found, key).withColumn("compared", F.coalesce("compared", F.lit(False)))


def facts_of_drives(drive_days: DataFrame) -> DataFrame:
    """Facts of each drive and day, of ``drive_day`` rows: those that SMART tells."""
    kept = ("source", "fleet", "drive", "model", "date", "failed")
    levels = [name for name in SMART_LEVELS if name != "smart_poh"]
    rows = drive_days.select(*kept, *SMART_GROWING, *levels)
    return _with_growth(rows, ("source", "fleet", "drive"), "").withColumns(
        {name: F.lit(None).cast("double") for name in ("io_errors", "probe_failures", "slow_ratio")}
    )


def _with_growth(rows: DataFrame, key: tuple[str, ...], suffix: str) -> DataFrame:
    """With what each growing counter grew by in :data:`GROWTH_DAYS`; 0 where it fell."""
    days = (
        Window.partitionBy(*key)
        .orderBy(F.unix_date(F.to_date("date")))
        .rangeBetween(1 - GROWTH_DAYS, Window.currentRow)
    )
    return _grown(rows.withColumns({name: least.over(days) for name, least in _least(suffix).items()}), suffix)


def _with_growth_of_last(rows: DataFrame, newest: str) -> DataFrame:
    """Growth on the last day of each disk alone (:func:`_last_days`): a plain aggregate, where all days need a
    window."""
    recent = rows.where(_is_within(newest, SEEN_DAYS)).withColumn("last_date", F.col("date"))
    last = _last_days(recent)
    day, until = F.unix_date(F.to_date("date")), F.unix_date(F.to_date("last_date"))
    counters = rows.where(_is_within(newest, SEEN_DAYS + GROWTH_DAYS)).select(
        *_DISK, "date", *(f"{name}_first" for name in SMART_GROWING)
    )
    within = _joined(counters, last, _DISK).where((day <= until) & (day > until - GROWTH_DAYS))
    least = within.groupBy(*_DISK, "last_date").agg(
        F.lit(True).alias("_begun"), *(column.alias(name) for name, column in _least("_first").items())
    )
    found = _joined(recent, least, (*_DISK, "last_date")).where("_begun")
    return _grown(found.drop("last_date", "_begun"), "_first")


def _least(suffix: str) -> dict[str, Column]:
    return {f"_least_{name}": F.min(f"{name}{suffix}") for name in SMART_GROWING}


def _grown(rows: DataFrame, suffix: str) -> DataFrame:
    grown = {
        f"{name}{GROWN}": F.greatest(F.try_subtract(F.col(name), F.col(f"_least_{name}")), F.lit(0))
        for name in SMART_GROWING
    }
    return rows.withColumns(grown).drop(*_least(suffix), *(f"{name}{suffix}" for name in SMART_GROWING if suffix))


def _is_within(newest: str, days: int) -> Column:
    back = F.datediff(F.to_date(F.lit(newest)), F.to_date("date"))
    return (back >= 0) & (back < days)


def _last_days(recent: DataFrame) -> DataFrame:
    """``last_date`` of the newest disk of each path. Clocks differ, and so do the last days of hosts."""
    spot = ("fleet", "host", "broker_id", "path")
    own = F.max_by(F.struct("dir_id", "serial", "last_date"), F.struct("date", "last_ts"))
    return recent.groupBy(*spot).agg(own.alias("own")).select(*spot, "own.*")


# ----------------------------------------------------------------------------------------------------------------- slow


def slow_days(dir_hours: DataFrame) -> DataFrame:
    """Of each disk and day that had peers: ``hours``, ``slow_hours``, and ``slow_ratio``, its latency in them over
    what its peers have under its load; null where they are fewer than :data:`SLOW_HOURS_MIN`."""
    group = ("fleet", "host", "broker_id", "model")
    # In doubles: no sum of them is too large.
    took = (F.col(f"probe_{step}_us_sum").cast("double") for step in ("write", "sync", "read"))
    latency = sum(took, F.lit(0.0)) / F.col("probe_n")
    moved = (F.coalesce(F.col(f"{way}_bytes_added"), F.lit(0)).cast("double") for way in ("read", "write"))
    load = sum(moved, F.lit(0.0)) / (1 << 20)
    hours = dir_hours.where((F.col("probe_n") > 0) & F.col("model").isNotNull()).select(
        *_DISK, "model", "date", "hour", load.alias("x"), latency.alias("y")
    )
    usual = hours.where(F.col("y").isNotNull()).withColumns({"_group": _hash(group), "_disk": _hash(_DISK_AND_MODEL)})
    middle = usual.groupBy("_group").agg((OUTLIER_RATIO * F.percentile("y", F.lit(0.5))).alias("y_max"))
    x, y = F.col("x"), F.col("y")
    terms = {"n": F.lit(1.0), "sx": x, "sy": y, "sxy": x * y, "sxx": x * x, "syy": y * y}
    shapes = F.col("y") <= F.col("y_max")
    own = usual.join(middle, "_group").groupBy("_disk", "_group")
    sums = own.agg(*(F.sum(F.when(shapes, term).otherwise(0.0)).alias(name) for name, term in terms.items()))
    everyone = Window.partitionBy("_group")
    # A disk that shapes nothing, because it is that slow, has all of its group for peers.
    peers = sums.select("_disk", *((F.sum(name).over(everyone) - F.col(name)).alias(name) for name in terms))
    fitted = usual.join(peers.where(F.col("n") >= PEER_HOURS_MIN), "_disk")
    return (
        _slow_hours(fitted)
        .groupBy(*_DISK, "date")
        .agg(
            F.count(F.lit(1)).alias("hours"),
            F.count_if("slow").alias("slow_hours"),
            F.when(
                F.count_if("slow") >= SLOW_HOURS_MIN,
                F.sum(F.when(F.col("slow"), F.col("y"))) / F.sum(F.when(F.col("slow"), F.col("expected"))),
            ).alias("slow_ratio"),
        )
    )


def _hash(names: Iterable[str]) -> Column:
    """A number for several columns, of which any may be null: rows are found by it twice as fast. That two of 100,000
    disks have the same one: once in some thousand million reports."""
    return F.xxhash64(*names, *(F.col(name).isNull() for name in names))


def _joined(left: DataFrame, right: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """``left`` with the columns of ``right`` that are not in the key, which may be null."""
    others = [name for name in right.columns if name not in key]
    found = right.select(_hash(key).alias("_key"), *others)
    return left.withColumn("_key", _hash(key)).join(found, "_key", "left").drop("_key")


def _slow_hours(fitted: DataFrame) -> DataFrame:
    """Hours with what was ``expected`` of them, and whether they were ``slow``."""
    n, sx, sy, sxy, sxx, syy = (F.col(name) for name in ("n", "sx", "sy", "sxy", "sxx", "syy"))
    spread = sxx - sx * sx / n
    together = sxy - sx * sy / n
    # A load that hardly differs says nothing of its effect; and more load makes no disk faster.
    slope = F.when(spread > 1e-6 * sxx, F.greatest(together / spread, F.lit(0.0))).otherwise(0.0)
    left = (syy - sy * sy / n) - 2 * F.col("slope") * together + F.col("slope") ** 2 * spread
    line = sy / n + F.col("slope") * (F.col("x") - sx / n)
    deviation = F.sqrt(F.greatest(left, F.lit(0.0)) / F.greatest(n - 2, F.lit(1.0)))
    limit = F.col("expected") + PREDICTION_Z * deviation
    # Below the peers' mean load the line may reach zero; a latency does not.
    return (
        fitted.withColumn("slope", slope)
        .withColumn("expected", F.greatest(line, 0.1 * sy / n, F.lit(1.0)))
        .withColumn("slow", (F.col("y") > limit) & (F.col("y") >= SLOW_RATIO_MIN * F.col("expected")))
    )


# --------------------------------------------------------------------------------------------------------------- scores


def scored(facts: DataFrame) -> DataFrame:
    """Facts with ``score`` and ``weights`` (of :data:`kjbod.fleet.insight.rules.SIGNS`, by name, those above 0)."""
    weights = {sign.name: _weight(sign) for sign in SIGNS}
    named = facts.withColumns({f"_w_{name}": weight for name, weight in weights.items()})
    well = F.lit(1.0)
    for name in weights:
        well = well * (F.lit(1.0) - F.col(f"_w_{name}"))
    return named.withColumn("score", F.round(1 - well, 4))


def _weight(sign: Sign) -> Column:
    steps = [F.when(_is_reached(step), step.weight) for step in sign.steps]
    return F.coalesce(F.greatest(*steps) if len(steps) > 1 else steps[0], F.lit(0.0))


def _is_reached(step: Step) -> Column:
    return F.col(step.fact) <= step.mark if step.below else F.col(step.fact) >= step.mark


def is_baseline() -> Column:
    """As :func:`kjbod.fleet.insight.rules.is_baseline`."""
    return F.greatest(*(F.coalesce(name, F.lit(0)) for name in BASELINE)) > 0


def health(dir_days: DataFrame, dir_hours: DataFrame | None = None, *, top: int = TOP) -> Health:
    """Disks before they fail, each on its own last day of ``dir_days``, with the history of all of its days (the last
    :data:`HISTORY_DAYS_MAX`). ``dir_hours``: of the last days, for the comparison with peers. Directories that have
    failed are nobody's risk any more; of a path that has a new disk the new one counts."""
    newest = dir_days.agg(F.max("date")).collect()[0][0]
    slow = None if dir_hours is None else slow_days(dir_hours).persist()
    is_failed = F.coalesce(F.col("state") == str(DirectoryState.FAILED), F.lit(False))
    today = scored(facts_of_directories(dir_days, slow, newest)).where(~is_failed).persist()
    try:
        counts = _counts(today)
        worst = today.where("score > 0").orderBy(F.desc("score"), F.desc_nulls_last("leaders"), *_DISK).limit(top)
        rows = [row.asDict() for row in worst.collect()]
        history = _histories(dir_days, slow, rows)
    finally:
        today.unpersist()
        if slow is not None:
            slow.unpersist()
    return Health(
        date=newest,
        at_risk_from=AT_RISK_FROM,
        directories=counts["directories"],
        with_smart=counts["with_smart"],
        compared=counts["compared"],
        scored=counts["scored"],
        at_risk=counts["at_risk"],
        risks=tuple(_risk(row, history.get(_disk(row), ())) for row in rows),
        by_reason={sign.name: counts[f"_w_{sign.name}"] for sign in SIGNS if counts[f"_w_{sign.name}"]},
    )


def _counts(today: DataFrame) -> Mapping[str, int]:
    smart = F.coalesce(*(F.col(name) for name in (*SMART_GROWING, *SMART_LEVELS))).isNotNull()
    counted = {
        "with_smart": smart,
        "compared": F.col("compared"),
        "scored": F.col("score") > 0,
        "at_risk": F.col("score") >= AT_RISK_FROM,
        **{f"_w_{sign.name}": F.col(f"_w_{sign.name}") > 0 for sign in SIGNS},
    }
    columns = [F.count(F.lit(1)).alias("directories"), *(F.count_if(c).alias(name) for name, c in counted.items())]
    found: Mapping[str, int] = today.agg(*columns).collect()[0].asDict()
    return found


def _disk(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _DISK)


def _histories(
    dir_days: DataFrame, slow: DataFrame | None, rows: list[dict[str, Any]]
) -> dict[tuple[Any, ...], tuple[ScoreOn, ...]]:
    """Scores by day of the few disks that are told of."""
    if not rows:
        return {}
    ddl = "fleet STRING, host STRING, broker_id BIGINT, path STRING, dir_id STRING, serial STRING"
    wanted = dir_days.sparkSession.createDataFrame([_disk(row) for row in rows], ddl).withColumn("wanted", F.lit(True))
    ours = scored(facts_of_directories(_joined(dir_days, F.broadcast(wanted), _DISK).where("wanted"), slow))
    newest = F.row_number().over(Window.partitionBy(*_DISK).orderBy(F.desc("date")))
    days = ours.select(*_DISK, "date", "score", newest.alias("_n")).where(F.col("_n") <= HISTORY_DAYS_MAX)
    found: dict[tuple[Any, ...], list[ScoreOn]] = {}
    for row in days.orderBy("date").collect():
        found.setdefault(_disk(row.asDict()), []).append(ScoreOn(date=row.date, score=row.score))
    return {key: tuple(each) for key, each in found.items()}


def _risk(row: Mapping[str, Any], history: tuple[ScoreOn, ...]) -> Risk:
    return Risk(
        place=Place(**{name: row[name] for name in PLACE}),
        score=row["score"],
        reasons=tuple(reasons({name: row[name] for name in FACTS})),
        history=history,
        slow_ratio=row["slow_ratio"],
        leaders=row["leaders"],
        partitions=row["partitions"],
        state=row["state"],
    )
