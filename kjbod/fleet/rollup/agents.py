"""Agents in a day, and what happened in it: ``gold.agent_day`` and ``gold.timeline``."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.rollup.happenings import agent_counts, agent_status
from kjbod.fleet.rollup.merge import joined, shaped
from kjbod.fleet.schema import EventKind
from kjbod.fleet.tables import AGENT_DAY, TIMELINE

KEY = (*AGENT_DAY.key, "date")
AGENT = "agent"
"""Role of what says none: a guard does."""


def agent_day(events: DataFrame, days: DataFrame) -> DataFrame:
    """Rows of ``gold.agent_day`` of all events of some dates and of the rows of ``gold.dir_day`` of the same dates."""
    said, seen = _said(_in_fleets(events, days)), _seen(days)
    agents = said.select(*KEY).unionByName(seen.select(*KEY)).distinct()
    both = joined(joined(agents, said, KEY), seen, KEY)
    counts = ("skewed", *agent_counts())
    return shaped(
        both.withColumns(
            {
                "boots": F.greatest("said_boots", "seen_boots"),
                "first_ts": F.least("said_first_ts", "seen_first_ts"),
                "last_ts": F.greatest("said_last_ts", "seen_last_ts"),
                "skewed": F.coalesce("said_skewed", F.lit(0)) + F.coalesce("seen_skewed", F.lit(0)),
            }
        ).na.fill(0, list(counts)),
        AGENT_DAY.columns,
    )


def _in_fleets(events: DataFrame, days: DataFrame) -> DataFrame:
    """A guard that could read no directory does not know its cluster yet: its events are of the cluster that its
    samples or other events of the day say."""
    agent = ("host", "broker_id", "date")
    names = events.select("fleet", *agent).unionByName(days.select("fleet", *agent))
    known = names.groupBy(*agent).agg(F.max("fleet").alias("_fleet"))
    named = F.coalesce(F.nullif("fleet", F.lit("")), F.col("_fleet"), F.lit(""))
    return joined(events, known, agent).withColumn("fleet", named).drop("_fleet")


def _said(events: DataFrame) -> DataFrame:
    moment = (F.col("ts"), F.col("mono_ns"))
    why = (F.col(f"attrs.{name}").alias(name) for name in ("reason", "exit_code"))
    status = F.when(F.col("status").isNotNull(), F.struct(*moment, "status", *why))
    role = F.coalesce("attrs.role", F.lit(AGENT)).alias("role")
    began = (F.col(f"attrs.{name}").alias(name) for name in ("mode", "version"))
    started = F.when(F.col("kind") == str(EventKind.AGENT_STARTED), F.struct(*moment, role, *began))
    rows = events.withColumn("status", agent_status())
    whole = rows.groupBy(*KEY).agg(
        F.max(status).alias("_status"),
        F.max(started).alias("_started"),
        F.count_distinct("boot_id").alias("said_boots"),
        F.min("ts").alias("said_first_ts"),
        F.max("ts").alias("said_last_ts"),
        F.count_if("_skewed").alias("said_skewed"),
        *(F.count_if(is_it).alias(name) for name, is_it in agent_counts().items()),
    )
    told = (
        *(f"_status.{n}" for n in ("status", "reason", "exit_code")),
        *(f"_started.{n}" for n in ("role", "mode", "version")),
    )
    return whole.select("*", *told).drop("_status", "_started")


def _seen(days: DataFrame) -> DataFrame:
    return days.groupBy(*KEY).agg(
        F.max("rack").alias("rack"),
        F.max("boots").alias("seen_boots"),
        F.min("first_ts").alias("seen_first_ts"),
        F.max("last_ts").alias("seen_last_ts"),
        F.min("interval_ms").alias("interval_ms"),
        F.sum("skewed").alias("seen_skewed"),
    )


def timeline(events: DataFrame) -> DataFrame:
    """Rows of ``gold.timeline``. What comes in hundreds is counted: created replicas and recorded assignments of a
    directory in a second, and events that are the same in all that tells them apart, of which the greatest attributes
    stay."""
    bulk = F.col("kind").isin(str(EventKind.REPLICA_CREATED), str(EventKind.ASSIGNMENTS_ACKNOWLEDGED))
    assigned = F.expr("try_cast(attrs.count AS BIGINT)")
    count = F.when(bulk, F.coalesce(assigned, F.lit(1))).otherwise(1)
    group = {
        "_second": F.floor(F.col("ts") / 1000),
        "_ts": F.when(~bulk, F.col("ts")),
        "_mono_ns": F.when(~bulk, F.col("mono_ns")),
    }
    kept = ("fleet", "host", "broker_id", "boot_id", "path", "dir_id", "kind", "date")
    rows = (
        events.withColumns(group)
        .groupBy(*(name for name in kept if name != "fleet"), *group)
        .agg(
            F.max("fleet").alias("fleet"),
            F.min("ts").alias("ts"),
            F.min("mono_ns").alias("mono_ns"),
            F.try_sum(count).alias("count"),
            F.max("partitions").alias("partitions"),
            F.max("leaders").alias("leaders"),
            F.max(F.when(~bulk, _entries(F.col("attrs")))).alias("_attrs"),
        )
        .withColumn("attrs", F.map_from_entries(F.coalesce("_attrs", F.array())))
    )
    return shaped(rows, TIMELINE.columns)


def _entries(attributes: Column) -> Column:
    """A map in an order of its own, which can be compared."""
    return F.array_sort(F.map_entries(attributes))
