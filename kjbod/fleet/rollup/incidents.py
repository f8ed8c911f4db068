"""Failures of directories: ``gold.incident``, of the events of three days each.

An incident belongs to the date of its verdict; what is told of one that is not among the events is of another date's,
such as leaders that moved days later. Its first sign may lie on the day before, and its end on the day after;
what happens later is not seen, so that an incident does not depend on which other days are there.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  the name that every Spark user knows

from kjbod.fleet.rollup.agents import AGENT
from kjbod.fleet.rollup.happenings import RUN, incidents
from kjbod.fleet.rollup.merge import joined, shaped
from kjbod.fleet.schema import EventKind
from kjbod.fleet.tables import INCIDENT

_RUN = (*RUN, "_of")
_PLACE = ("host", "broker_id", "path", "_of")


def incident(events: DataFrame, days: DataFrame, dates: Sequence[str]) -> DataFrame:
    """Rows of ``gold.incident`` of ``dates``, of the events (each once) and of the rows of ``gold.dir_day`` of these
    dates, of the day before each and of the day after it."""
    seen = _around(events, dates)
    found = incidents(seen, _RUN).where(F.date_format(F.timestamp_millis("ts"), "yyyy-MM-dd") == F.col("_of"))
    found = joined(joined(found.where("is_verdict"), _runs(seen), _RUN), _verdicts(seen), (*_RUN, "path"))
    known = _known(_around(days, dates))
    rows = joined(found.drop("device", "serial"), _labels(found, known), (*_RUN, "path", "number"))
    role = F.coalesce("_verdict_role", F.col("_run_role"))
    version = F.coalesce("_verdict_version", F.col("_run_version"))
    return shaped(rows.withColumns({"role": role, "version": version, "date": F.col("_of")}), INCIDENT.columns)


def _around(rows: DataFrame, dates: Sequence[str]) -> DataFrame:
    """Rows, each for its date, the one before and the one after, as ``_of``, where that is one of ``dates``."""
    days = F.sequence(F.date_add(F.to_date("date"), -1), F.date_add(F.to_date("date"), 1))
    of = F.transform(days, lambda day: F.date_format(day, "yyyy-MM-dd"))
    return rows.withColumn("_of", F.explode(of)).where(F.col("_of").isin(list(dates)))


def _runs(events: DataFrame) -> DataFrame:
    """Roles and versions, as runs told them when they began."""
    started = events.where(F.col("kind") == str(EventKind.AGENT_STARTED))
    return started.groupBy(*_RUN).agg(
        F.max(F.coalesce("attrs.role", F.lit(AGENT))).alias("_run_role"), F.max("attrs.version").alias("_run_version")
    )


def _verdicts(events: DataFrame) -> DataFrame:
    """The role and the version where verdicts say them: most runs began days before."""
    failed = events.where(F.col("kind").isin(str(EventKind.DIR_FAILED), str(EventKind.KAFKA_NOTICED)))
    return failed.groupBy(*_RUN, F.coalesce("path", "dir_id").alias("path")).agg(
        F.max("attrs.role").alias("_verdict_role"), F.max("attrs.version").alias("_verdict_version")
    )


def _known(days: DataFrame) -> DataFrame:
    """Labels of a directory around a date: on the date, else before it, else after it."""
    near = F.when(F.col("date") == F.col("_of"), 2).when(F.col("date") < F.col("_of"), 1).otherwise(0)
    names = ("rack", "device", "model", "serial")
    return days.groupBy(*_PLACE, "dir_id").agg(
        *(F.max(F.when(F.col(n).isNotNull(), F.struct(near.alias("near"), n))).getField(n).alias(n) for n in names)
    )


def _labels(found: DataFrame, known: DataFrame) -> DataFrame:
    """Rack and disk of each failure. Without ``dir_id`` it is the only directory that was at its place, or unknown."""
    only = known.groupBy(*_PLACE).agg(
        F.count(F.lit(1)).alias("_n"), F.max("rack").alias("_rack"), F.max("model").alias("_model")
    )
    labelled = joined(
        joined(
            found.select(*_RUN, "path", "number", "dir_id", "device", "serial"), _prefixed(known), (*_PLACE, "dir_id")
        ),
        only,
        _PLACE,
    )
    alone = F.col("_n") == 1
    return labelled.select(
        *_RUN,
        "path",
        "number",
        F.coalesce("known_rack", "_rack").alias("rack"),
        F.coalesce("known_model", F.when(alone, F.col("_model"))).alias("model"),
        F.coalesce("device", "known_device").alias("device"),
        F.coalesce("serial", "known_serial").alias("serial"),
    )


def _prefixed(known: DataFrame) -> DataFrame:
    names = ("rack", "device", "model", "serial")
    return known.select(*_PLACE, "dir_id", *(F.col(name).alias(f"known_{name}") for name in names))
