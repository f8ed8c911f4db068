"""kjbod's own work: how fast it was, where it was wrong, and which of its agents deserve a look."""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.insight.model import TOP, AgentState, FalseVerdict, Latency, OwnWork, Place
from kjbod.fleet.rollup.happenings import STOPPED

SILENT_AFTER_MS = 3 * 3_600_000
"""How much older than the newest line of all reports an agent's newest one may be: three times what
``kjbod.reports.rotate.interval.ms`` is by default, since only finished files are read."""
SILENT_INTERVALS = 3
"""And so many of its own intervals between samples, where that is longer."""
STAGES = ("detect", "send", "acknowledge", "move", "total")
LATE_MS = 2 * 3_600_000
"""How much later than the first file of the same hour, of whichever host, a host's file may be taken in."""
LATE_DAYS = 2
"""Of the newest days."""
CLOCK_TOLERANCE_MS = 300_000
"""How far a line may be ahead of the moment at which its file was taken in before its clock is not believed."""
AHEAD_SHARE = 20
"""One agent in so many may have a clock that is ahead, and "now" does not follow it. Nor, of fewer, one that is ahead
of all others, of which two agree."""
AHEAD_MS = 3_600_000
"""How far a line may be ahead of "now": agents send a file an hour, and not all at the same minute."""
NAMES_MAX = 50
"""Causes and versions that are told of one by one, those with most incidents."""
UNKNOWN = "unknown"
_AGENT = ("fleet", "host", "broker_id")
_SPOT = ("fleet", "host", "path")


def newest_moment(agent_days: DataFrame, files: DataFrame) -> int:
    """The "now" of a report, in wall ms: the newest line of all agents but one in :data:`AHEAD_SHARE`, or but one that
    is ahead of all others, those whose newest lines are newest, and not after the newest moment at which anything was
    taken in; 0 where there is nothing. Hosts whose clocks run ahead would make all others silent. A line that was ahead
    of its file's arrival does not count where there is any other.

    An agent whose clock is behind is silent by its lines: reports that are taken in together, a day's or more, do not
    tell it from an agent that has ended."""
    ingested = files.agg(F.max("ingested_ts")).collect()[0][0]
    allowed = F.lit(None).cast("bigint") if ingested is None else F.lit(ingested + CLOCK_TOLERANCE_MS)
    believed = agent_days.where(F.coalesce(F.col("last_ts") <= allowed, F.lit(True)))
    steady = F.max(F.when(F.coalesce("skewed", F.lit(0)) == 0, F.col("last_ts")))
    newest = believed.groupBy(*_AGENT).agg(steady.alias("steady"), F.max("last_ts").alias("any"))

    def but_some(name: str) -> Column:
        ordered = F.sort_array(F.collect_list(name), asc=False)
        first, second, third = (F.get(ordered, F.lit(n)) for n in range(3))
        alone = F.coalesce((first - second > AHEAD_MS) & (second - third <= AHEAD_MS), F.lit(False))
        share = F.floor(F.count(name) / AHEAD_SHARE).cast("int")
        return F.get(ordered, F.greatest(share, alone.cast("int")))

    row = newest.agg(F.coalesce(but_some("steady"), but_some("any"))).collect()[0]
    if row[0] is None or ingested is None:
        return int(row[0] or ingested or 0)
    return min(int(row[0]), int(ingested))


# -------------------------------------------------------------------------------------------------------------- latency


def latencies(incidents: DataFrame) -> tuple[Latency, ...]:
    """Median, 95th percentile and maximum of each stage, of all incidents, by cause and by version."""
    kinds = {
        "all": F.lit(""),
        "cause": F.coalesce("cause", F.lit(UNKNOWN)),
        "version": F.coalesce("version", F.lit(UNKNOWN)),
    }
    by = F.array(*(F.struct(F.lit(kind).alias("by"), name.alias("name")) for kind, name in kinds.items()))
    stage = F.array(*(F.struct(F.lit(name).alias("stage"), F.col(f"{name}_ms").alias("ms")) for name in STAGES))
    counted = (
        incidents.select(F.explode(by).alias("of"), stage.alias("stages"))
        .select("of.*", F.inline("stages"))
        .where(F.col("ms").isNotNull() & ~F.isnan("ms") & (F.col("ms") >= 0))
        .groupBy("by", "name", "stage")
        .agg(
            F.count(F.lit(1)).alias("incidents"),
            F.percentile("ms", F.lit([0.5, 0.95, 1.0])).alias("at"),
        )
    )
    most = Window.partitionBy("by", "stage").orderBy(F.desc("incidents"), "name")
    rows = counted.withColumn("_n", F.row_number().over(most)).where(F.col("_n") <= NAMES_MAX).collect()
    found = [
        Latency(
            stage=row.stage,
            by=row.by,
            name=row["name"],
            incidents=row.incidents,
            median_ms=row["at"][0],
            p95_ms=row["at"][1],
            max_ms=row["at"][2],
        )
        for row in rows
    ]
    order = {name: number for number, name in enumerate((*kinds, *STAGES))}
    return tuple(sorted(found, key=lambda each: (order[each.by], each.name, order[each.stage])))


def false_verdicts(incidents: DataFrame, drive_days: DataFrame) -> DataFrame:
    """Verdicts that the disk did not bear out, the newest one of each drive at its place, with ``well_days``: days,
    that of the verdict among them, at whose end it was well in the same place. None where the drive had failed again
    when it was last seen there, or another one has its place. A drive of the same serial number elsewhere tells
    nothing."""
    named = F.coalesce("serial", "dir_id")
    newest = (
        incidents.where(named.isNotNull())
        .withColumn("_drive", named)
        .groupBy(*_SPOT, "_drive")
        .agg(F.max(F.struct("ts", *(n for n in incidents.columns if n not in ("ts", "deeds", *_SPOT)))).alias("i"))
    )
    days = drive_days.where(F.col("source") == "kjbod").select(
        *(F.col(name).alias(f"_{name}") for name in _SPOT),
        F.col("drive").alias("seen_drive"),
        F.col("dir_id").alias("seen_dir_id"),
        F.col("date").alias("seen_date"),
        F.coalesce(F.col("hours_online") > 0, F.lit(False)).alias("online"),
        "well",
    )
    there = reduce(Column.__and__, (newest[name].eqNullSafe(days[f"_{name}"]) for name in _SPOT))
    same = (F.col("seen_drive") == F.col("_drive")) | F.coalesce(
        F.col("seen_dir_id") == F.col("i.dir_id"), F.lit(False)
    )
    well = same & F.col("online") & (F.col("well") == 1) & (F.col("seen_date") >= F.col("i.date"))
    judged = (
        newest.join(days, there)
        .groupBy(*_SPOT, "_drive", "i")
        .agg(
            F.count_distinct(F.when(well, F.col("seen_date"))).alias("well_days"),
            F.max(F.when(same, F.struct("seen_date", "well"))).alias("end"),
            F.max(F.when(~same, F.col("seen_date"))).alias("other"),
        )
        .where((F.col("well_days") > 0) & (F.col("end.well") == 1))
        .where(F.coalesce(F.col("other") < F.col("end.seen_date"), F.lit(True)))
    )
    return judged.select(*_SPOT, "i.*", "well_days")


# --------------------------------------------------------------------------------------------------------------- agents


def agents(agent_days: DataFrame, files: DataFrame, now_ms: int, silent_after_ms: int = SILENT_AFTER_MS) -> DataFrame:
    """Agents on their newest day, with ``silent_ms``, ``lag_ms``, and whether it is ``silent``, ``late``, ``skewed``
    or of an ``other`` version than most of its kind."""
    known = ("rack", "role", "mode", "version")
    columns = ("rack", "status", "role", "mode", "version", "last_ts", "interval_ms", "skewed")
    newest = agent_days.groupBy(*_AGENT).agg(
        F.max_by(F.struct(*(name for name in columns if name not in known)), "date").alias("last"),
        F.max("last_ts").alias("newest_ts"),
        # Said at its start, and not again each day.
        *(F.max_by(name, F.when(F.col(name).isNotNull(), F.col("date"))).alias(name) for name in known),
        F.max_by("status", F.when(F.col("status").isNotNull(), F.col("date"))).alias("said"),
    )
    lagged = _lags(files)
    found = newest.join(lagged, newest["host"].eqNullSafe(lagged["_host"]), "left").select(
        *_AGENT,
        *known,
        F.col("said").alias("status"),
        F.col("last.interval_ms").alias("interval_ms"),
        F.coalesce("last.skewed", F.lit(0)).alias("skewed_lines"),
        F.col("newest_ts").alias("last_ts"),
        "lag_ms",
        "behind_ms",
    )
    ahead = F.col("last_ts") > now_ms + AHEAD_MS
    allowed = F.greatest(F.lit(silent_after_ms), SILENT_INTERVALS * F.coalesce("interval_ms", F.lit(0)))
    stopped = F.coalesce(F.col("status") == STOPPED, F.lit(False))
    kind = F.coalesce("role", F.lit("agent"))
    of_version = Window.partitionBy("kind", "version")
    same = found.withColumn("kind", kind).withColumn("_same", F.count(F.lit(1)).over(of_version))
    usual = F.max(F.when(F.col("version").isNotNull(), F.struct("_same", "version"))).over(Window.partitionBy("kind"))
    return same.withColumn("usual", usual.version).withColumns(
        {
            "silent_ms": F.greatest(F.lit(now_ms) - F.col("last_ts"), F.lit(0)),
            "silent": ~stopped & F.coalesce(F.lit(now_ms) - F.col("last_ts") > allowed, F.lit(True)),
            "late": F.coalesce(F.col("behind_ms") > LATE_MS, F.lit(False)),
            "skewed": (F.col("skewed_lines") > 0) | F.coalesce(ahead, F.lit(False)),
            "other": F.coalesce(F.col("version") != F.col("usual"), F.lit(False)),
        }
    )


def _lags(files: DataFrame) -> DataFrame:
    """Of each host the longest time from the end of an hour until its file was taken in, and how far that was behind
    the first host's file of that hour: where nobody ran an ingest, all are late alike and none is to blame."""
    hour_end = F.unix_millis(F.try_to_timestamp(F.col("file_hour"), F.lit("yyyyMMddHH"))) + 3_600_000
    timed = files.where(F.col("kept") & (F.col("status") != "repeated") & F.col("file_hour").isNotNull()).select(
        "host", "file_hour", "date", "ingested_ts", (F.col("ingested_ts") - hour_end).alias("lag_ms")
    )
    newest = timed.agg(F.max(F.to_date("date"))).collect()[0][0]  # of years of files, which are not for a window
    first = F.min("ingested_ts").over(Window.partitionBy("file_hour"))
    recent = timed.where(F.to_date("date") > F.date_sub(F.lit(newest), LATE_DAYS))
    return (
        recent.withColumn("behind_ms", F.col("ingested_ts") - first)
        .groupBy(F.col("host").alias("_host"))
        .agg(F.max("lag_ms").alias("lag_ms"), F.max("behind_ms").alias("behind_ms"))
    )


# ------------------------------------------------------------------------------------------------------------- together


def own_work(
    incidents: DataFrame,
    agent_days: DataFrame,
    drive_days: DataFrame,
    files: DataFrame,
    now_ms: int,
    *,
    silent_after_ms: int = SILENT_AFTER_MS,
    top: int = TOP,
) -> OwnWork:
    """Speed, errors and agents of kjbod, of the ``incident``, ``agent_day`` and ``drive_day`` rows of the days that are
    asked for, and of the audit's ``files``."""
    wrong = false_verdicts(incidents, drive_days).persist()
    found = agents(agent_days, files, now_ms, silent_after_ms).persist()
    try:
        outcomes = {row.outcome: row["count"] for row in incidents.groupBy("outcome").count().collect()}
        totals = found.agg(
            F.count(F.lit(1)).alias("agents"),
            *(F.count_if(name).alias(name) for name in ("silent", "late", "skewed", "other")),
        ).collect()[0]
        label = F.concat(
            F.when(F.col("kind") == "guard", "guard ").otherwise(""), F.coalesce("version", F.lit(UNKNOWN))
        )
        versions = found.groupBy(label.alias("version")).count().orderBy(F.desc("count"), "version").limit(NAMES_MAX)
        looked = found.where("silent OR late OR skewed OR other").orderBy(
            F.desc("silent"), F.desc("skewed"), F.desc("late"), F.desc("silent_ms"), *_AGENT
        )
        return OwnWork(
            incidents=sum(outcomes.values()),
            outcomes={name or UNKNOWN: count for name, count in sorted(outcomes.items(), key=lambda o: o[0] or "")},
            latencies=latencies(incidents),
            false_verdicts=wrong.count(),
            false_verdict_list=_false_verdicts(wrong.orderBy(F.desc("ts"), "host", "path").limit(top).collect()),
            agents=totals.agents,
            silent=totals.silent,
            late=totals.late,
            skewed=totals.skewed,
            versions={row.version: row["count"] for row in versions.collect()},
            other_versions=totals.other,
            agents_to_look_at=tuple(_agent(row.asDict()) for row in looked.limit(top).collect()),
        )
    finally:
        found.unpersist()
        wrong.unpersist()


def _false_verdicts(rows: Iterable[Any]) -> tuple[FalseVerdict, ...]:
    places = ("fleet", "rack", "host", "broker_id", "path", "dir_id", "device", "model", "serial")
    names = ("incident", "ts", "cause", "evidence", "version", "well_days")
    return tuple(
        FalseVerdict(place=Place(**{name: row[name] for name in places}), **{name: row[name] for name in names})
        for row in rows
    )


def _agent(row: Mapping[str, Any]) -> AgentState:
    names = (
        "fleet",
        "rack",
        "host",
        "broker_id",
        "role",
        "mode",
        "version",
        "status",
        "last_ts",
        "silent_ms",
    )
    why = ", ".join(
        said
        for name, said in (("silent", "silent"), ("skewed", "clock"), ("late", "late"), ("other", "version"))
        if row[name]
    )
    return AgentState(**{name: row[name] for name in names}, lag_ms=row["behind_ms"], why=why)
