"""Failure rates, survival, bursts and drives that came back, from drive-days and drive lives.

Exposure is what was seen: a drive-day is a day on which a drive was seen, a failure ends its exposure, and a drive that
was replaced or taken away without one is *censored*: its exposure ends and nothing more. The rate is failures over
drive-days / 365, as Backblaze publishes it.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.insight.model import TOP, Bursts, RateOf, Reliability, ReturnedDrive, Survival, SurvivalStep
from kjbod.fleet.insight.statistics import AT_RISK_MIN, HOURS_PER_YEAR, rate, survival_limits

DRIVE_DAYS_MIN = 10_000
"""Models, firmwares, ages and sites with less exposure have counts and no rate, and are not ranked: one failure more or
less would be all the difference."""
WHOLE_DRIVE_DAYS_MIN = 1_000
"""The same for all drives of a source together."""
BURST_MINUTES = 30
SURVIVAL_MODELS_MAX = 12
SURVIVAL_FAILURES_MIN = 5
SURVIVAL_STEP_YEARS = 1 / 24
"""A curve has one step at most for each of these: a page draws no finer one."""
NAMES_MAX = 1_000
"""Models, firmwares and sites that are told of one by one, those with most exposure."""
UNKNOWN = "unknown"
_LIFE = ("source", "fleet", "drive")


def exposure(drive_days: DataFrame) -> DataFrame:
    """``exposure_day`` of ``drive_day`` rows, such as imported ones: those that were seen or failed on the day."""
    age = F.floor(F.col("smart_poh") / HOURS_PER_YEAR).cast("bigint").alias("age_years")
    return drive_days.groupBy("source", "fleet", "site", "model", "firmware", age, "date").agg(
        F.count(F.lit(1)).alias("drive_days"), F.sum(F.coalesce("failed", F.lit(0))).alias("failures")
    )


def lives(drive_days: DataFrame) -> DataFrame:
    """``drive_life`` of imported ``drive_day`` rows. Who took a drive's place is not known there."""
    failed_date = F.min(F.when(F.col("failed") > 0, F.col("date")))
    seen = F.struct("date", "model", "host", "path")
    found = drive_days.groupBy(*_LIFE).agg(
        F.max(seen).alias("last"),
        F.min("date").alias("first_date"),
        F.max("date").alias("last_date"),
        F.count_distinct("date").alias("days"),
        F.min("smart_poh").alias("first_poh"),
        F.max("smart_poh").alias("last_poh"),
        failed_date.alias("failed_date"),
        F.sum(F.coalesce("failed", F.lit(0))).alias("failures"),
        F.sort_array(F.collect_set(F.when(F.col("failed") > 0, F.col("date")))).alias("failed_dates"),
    )
    after = F.when(F.col("failed_date").isNull(), 0).otherwise(F.datediff("last_date", "failed_date"))
    return found.select(
        *_LIFE,
        *(F.col(f"last.{name}").alias(name) for name in ("model", "host", "path")),
        *("first_date", "last_date", "days", "first_poh", "last_poh", "failed_date", "failures"),
        after.cast("bigint").alias("days_after_failure"),
        F.lit(None).cast("string").alias("replaced_by"),
    )


def reliability(
    source: str,
    exposed: DataFrame,
    drive_lives: DataFrame,
    failures: DataFrame | None = None,
    wrong: DataFrame | None = None,
    *,
    last_date: str | None = None,
    drive_days_min: int = DRIVE_DAYS_MIN,
    at_risk_min: int = AT_RISK_MIN,
    top: int = TOP,
) -> Reliability:
    """Rates, survival and bursts of the drives of ``source``: of its rows of ``exposure_day`` in
    the days that are asked for, its rows of
    ``drive_life``, its ``failures`` as :func:`bursts` takes them, and its ``wrong`` ones as :func:`not_borne_out` has
    them.

    ``last_date``: the newest date that the source has; a drive that was not seen on it is not in use any more. None:
    the newest of ``drive_lives``."""
    rates = rates_of(exposed.where(F.col("source") == source), drive_days_min, wrong)
    ours = drive_lives.where(F.col("source") == source).persist()
    try:
        drives, censored, returned = _ends(ours, last_date)
        return Reliability(
            source=source,
            whole=rates["whole"][0].rate if rates["whole"] else rate(0, 0),
            verdicts=rates["whole"][0].verdicts if rates["whole"] else rate(0, 0),
            models=ranked(rates["model"], drive_days_min),
            hidden_models=tuple(each for each in rates["model"] if each.rate.drive_days < drive_days_min),
            drive_days_min=drive_days_min,
            firmwares=ranked(rates["firmware"], drive_days_min),
            ages=tuple(sorted(rates["age"], key=lambda of: _age_order(of.name))),
            sites=ranked(rates["site"], 0),
            drives=drives,
            censored=censored,
            returned=_returned(ours, top),
            returned_drives=returned,
            survival=survival(ours, at_risk_min),
            bursts=None if failures is None else bursts(failures),
        )
    finally:
        ours.unpersist()


def not_borne_out(drive_days: DataFrame, verdicts: DataFrame) -> DataFrame:
    """Failures among ``drive_day`` rows that are ``verdicts`` which the disk did not bear out, as
    :func:`kjbod.fleet.insight.own_work.false_verdicts` has them: ``site, model, firmware, age_years``, and ``wrong``,
    their number. A drive of which another directory failed on that day has failed."""
    place, day = ("fleet", "host", "path"), ("fleet", "drive", "date")
    failed = drive_days.where((F.col("source") == "kjbod") & (F.col("failed") > 0)).select(*day)
    rows = drive_days.join(failed.distinct(), list(day), "left_semi")
    named = verdicts.select(
        *(F.col(name).alias(f"_{name}") for name in place),
        F.coalesce("serial", "dir_id").alias("_drive"),
        F.col("dir_id").alias("_dir_id"),
    )
    there = [rows[name].eqNullSafe(named[f"_{name}"]) for name in place]
    same = (F.col("drive") == F.col("_drive")) | F.coalesce(F.col("dir_id") == F.col("_dir_id"), F.lit(False))
    left = rows.join(named, [*there, same], "left_semi").withColumn("failed", F.lit(0).cast("bigint"))
    names = ("site", "model", "firmware")
    whole = (
        rows.join(named, [*there, same], "left_anti")
        .unionByName(left)
        .groupBy(*day)
        .agg(*(F.max(name).alias(name) for name in (*names, "smart_poh", "failed")))
        .where(F.coalesce("failed", F.lit(0)) == 0)
    )
    age = F.floor(F.col("smart_poh") / HOURS_PER_YEAR).cast("bigint").alias("age_years")
    return whole.groupBy(*names, age).agg(F.count(F.lit(1)).alias("wrong"))


def rates_of(
    exposed: DataFrame, drive_days_min: int = DRIVE_DAYS_MIN, wrong: DataFrame | None = None
) -> dict[str, list[RateOf]]:
    """Rates of ``exposure_day`` rows: ``whole``, and by ``model``, ``firmware``, ``age`` and ``site``; of each kind the
    :data:`NAMES_MAX` with most exposure, most first. ``wrong``: failures among them that are not, as
    :func:`not_borne_out` has them."""
    least = min(drive_days_min, WHOLE_DRIVE_DAYS_MIN)
    unknown = F.lit(UNKNOWN)
    known_model = F.coalesce("model", unknown)
    age = F.coalesce(F.col("age_years").cast("string"), unknown)
    kinds = {
        "whole": F.lit(""),
        "model": known_model,
        "firmware": F.concat_ws(" · ", known_model, F.coalesce("firmware", unknown)),
        "age": age,
        "site": F.coalesce("site", unknown),
    }
    names = F.array(*(F.struct(F.lit(kind).alias("kind"), name.alias("name")) for kind, name in kinds.items()))
    counts = ("drive_days", "failures", "wrong")
    rows = exposed.withColumn("wrong", F.lit(0))
    if wrong is not None:
        rows = rows.unionByName(wrong, allowMissingColumns=True)
    summed = (
        rows.select(F.explode(names).alias("of"), *counts)
        .groupBy("of")
        .agg(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in counts))
        .where("drive_days > 0")
    )
    most = Window.partitionBy("of.kind").orderBy(F.desc("drive_days"), "of.name")
    found: dict[str, list[RateOf]] = {kind: [] for kind in kinds}
    first = summed.withColumn("_rank", F.row_number().over(most)).where(F.col("_rank") <= NAMES_MAX).orderBy("_rank")
    for row in first.collect():
        name = _age_name(row.of.name) if row.of.kind == "age" else row.of.name
        enough = least if row.of.kind == "whole" else drive_days_min
        counts_of = (max(row.failures - row.wrong, 0), row.failures)
        borne_out, verdicts = (rate(row.drive_days, count, enough) for count in counts_of)
        found[row.of.kind].append(RateOf(name=name, rate=borne_out, verdicts=verdicts))
    return found


def ranked(rates: Iterable[RateOf], drive_days_min: int) -> tuple[RateOf, ...]:
    """Rates with enough exposure, by upper limit: many failures in a long time before few in a short one."""
    enough = [each for each in rates if each.rate.drive_days >= drive_days_min]
    return tuple(sorted(enough, key=lambda of: (-(of.rate.high_pct or 0), of.name)))


def _age_name(years: str) -> str:
    return years if years == UNKNOWN else f"{years}-{int(years) + 1} years"


def _age_order(name: str) -> tuple[bool, int]:
    return (name == UNKNOWN, 0 if name == UNKNOWN else int(name.rpartition("-")[0].rstrip("-")))


def _ends(drive_lives: DataFrame, last_date: str | None) -> tuple[int, int, int]:
    """Drives, those that are gone without a failure, and those that came back after one."""
    newest = F.lit(last_date) if last_date else F.max("last_date").over(Window.partitionBy())
    row = (
        drive_lives.select("failures", "last_date", "replaced_by", "days_after_failure", newest.alias("newest"))
        .agg(
            F.count(F.lit(1)).alias("drives"),
            F.count_if((F.col("failures") == 0) & _is_gone()).alias("censored"),
            F.count_if(F.col("days_after_failure") > 0).alias("returned"),
        )
        .first()
    )
    return (row.drives, row.censored, row.returned) if row is not None else (0, 0, 0)


def _is_gone() -> Column:
    return (F.col("last_date") < F.col("newest")) | F.col("replaced_by").isNotNull()


def _returned(drive_lives: DataFrame, top: int) -> tuple[ReturnedDrive, ...]:
    rows = (
        drive_lives.where(F.col("days_after_failure") > 0)
        .orderBy(F.desc("failed_date"), "fleet", "drive")
        .select("drive", "model", "host", "path", "failed_date", "last_date", "days_after_failure")
        .limit(top)
        .collect()
    )
    return tuple(ReturnedDrive(**row.asDict()) for row in rows)


# ------------------------------------------------------------------------------------------------------------- survival


def survival_steps(drive_lives: DataFrame, at_risk_min: int = AT_RISK_MIN) -> DataFrame:
    """Kaplan-Meier of each model over power-on hours, as :func:`kjbod.fleet.insight.statistics.kaplan_meier` has it: a
    row for each age of a failure, ``counted`` where enough drives were at risk, with the sums of log(1 - d/n) and of
    Greenwood's d / (n (n - d)) so far. A drive that came back is at risk until its failure."""
    # It ran on after its failure: power-on hours then are those of the end less the days since.
    since_h = 24 * F.coalesce("days_after_failure", F.lit(0))
    failed = (F.col("failures") > 0) & F.col("failed_date").isNotNull()
    left = F.greatest(
        "first_poh", F.when(failed, F.try_subtract(F.col("last_poh"), since_h)).otherwise(F.col("last_poh"))
    )
    moves = (
        drive_lives.where(F.col("first_poh").isNotNull() & F.col("last_poh").isNotNull())
        .select(
            F.coalesce("model", F.lit(UNKNOWN)).alias("model"),
            F.inline(
                F.array(
                    F.struct(F.col("first_poh").alias("age"), *_counts(1, 0, F.lit(0))),
                    F.struct(left.alias("age"), *_counts(0, 1, failed.cast("int"))),
                )
            ),
        )
        .groupBy("model", "age")
        .agg(*(F.sum(name).alias(name) for name in ("entered", "left", "failed")))
    )
    until = Window.partitionBy("model").orderBy("age").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    risk = F.sum("entered").over(until) - F.sum("left").over(until) + F.col("left")
    at_risk = moves.withColumn("at_risk", risk).where("failed > 0")
    counted = (F.col("at_risk") >= at_risk_min) & (F.col("at_risk") > F.col("failed"))
    dead, n = F.col("failed").cast("double"), F.col("at_risk").cast("double")
    return (
        at_risk.withColumn("counted", counted)
        .withColumn("log_s", F.sum(F.when(F.col("counted"), F.log1p(-dead / n)).otherwise(0.0)).over(until))
        .withColumn("greenwood", F.sum(F.when(F.col("counted"), dead / (n * (n - dead))).otherwise(0.0)).over(until))
        .withColumn("failures_so_far", F.sum(F.when(F.col("counted"), F.col("failed")).otherwise(0)).over(until))
    )


def _counts(entered: int, left: int, failed: Column) -> tuple[Column, ...]:
    return F.lit(entered).alias("entered"), F.lit(left).alias("left"), failed.alias("failed")


def survival(drive_lives: DataFrame, at_risk_min: int = AT_RISK_MIN) -> tuple[Survival, ...]:
    """Survival curves of the models with most failures, thinned to what can be drawn."""
    steps = survival_steps(drive_lives, at_risk_min).persist()
    try:
        totals = (
            steps.groupBy("model")
            .agg(
                F.sum(F.when(F.col("counted"), F.col("failed")).otherwise(0)).alias("failures"),
                F.sum(F.when(~F.col("counted"), F.col("failed")).otherwise(0)).alias("left_out"),
            )
            .where(F.col("failures") >= SURVIVAL_FAILURES_MIN)
            .orderBy(F.desc("failures"), "model")
            .limit(SURVIVAL_MODELS_MAX)
            .collect()
        )
        wanted = [row.model for row in totals]
        slot = F.floor(F.col("age") / (HOURS_PER_YEAR * SURVIVAL_STEP_YEARS))
        newest = F.max_by(F.struct("age", "at_risk", "log_s", "greenwood", "failures_so_far"), "age").alias("step")
        drawn = (
            steps.where(F.col("counted") & F.col("model").isin(wanted))
            .groupBy("model", slot.alias("slot"))
            .agg(newest)
            .select("model", "step.*")
            .orderBy("model", "age")
            .collect()
        )
        known = F.coalesce("model", F.lit(UNKNOWN)).alias("model")
        seen = (
            drive_lives.where(F.col("first_poh").isNotNull()).groupBy(known).count().where(F.col("model").isin(wanted))
        )
        drives = {row["model"]: row["count"] for row in seen.collect()}
    finally:
        steps.unpersist()
    by_model = {name: [row for row in drawn if row.model == name] for name in wanted}
    return tuple(_curve(row, by_model[row.model], drives.get(row.model, 0)) for row in totals)


def _curve(total: Any, rows: Sequence[Any], drives: int) -> Survival:
    steps, failures_before = [], 0
    for row in rows:
        share = math.exp(row.log_s)
        low, high = survival_limits(share, row.greenwood)
        failures = row.failures_so_far - failures_before
        failures_before = row.failures_so_far
        age = row.age / HOURS_PER_YEAR
        steps.append(
            SurvivalStep(age_years=age, at_risk=row.at_risk, failures=failures, survival=share, low=low, high=high)
        )
    return Survival(
        model=total.model,
        drives=drives,
        failures=total.failures,
        left_out=total.left_out,
        from_years=steps[0].age_years if steps else None,
        to_years=steps[-1].age_years if steps else None,
        steps=tuple(steps),
    )


# --------------------------------------------------------------------------------------------------------------- bursts


def failures_of_incidents(incidents: DataFrame) -> DataFrame:
    """``ts``, ``host``, ``rack`` of each drive's first verdict: a disk that stays dead gets one more at each restart,
    and one from its guard."""
    drive = F.coalesce("serial", "dir_id", "path").alias("drive")  # which may have several directories
    first = incidents.where(F.col("cause").isNotNull() | F.col("outcome").isNotNull()).groupBy("fleet", "host", drive)
    return first.agg(F.min("ts").alias("ts"), F.max("rack").alias("in_rack")).select(
        "ts",
        F.concat_ws("/", "fleet", "host").alias("host"),
        F.when(F.col("in_rack").isNotNull(), F.concat_ws("/", "fleet", "in_rack")).alias("rack"),
    )


def failures_of_tickets(tickets: DataFrame) -> DataFrame:
    """Likewise of imported tickets."""
    return tickets.select("ts", F.concat_ws("/", "source", "host").alias("host"), "rack")


def bursts(failures: DataFrame, minutes: int = BURST_MINUTES) -> Bursts:
    """Count the ``failures`` (``ts`` in ms, ``host``, ``rack``) have another within so many minutes, before or after,
    in the same host or rack. Failures whose host or rack is not known are alone."""
    marked = failures.select("ts", "host", "rack")
    for place in ("host", "rack"):
        order = Window.partitionBy(place).orderBy("ts")
        before, after = F.col("ts") - F.lag("ts").over(order), F.lead("ts").over(order) - F.col("ts")
        near = F.coalesce(F.least(before, after) <= minutes * 60_000, F.lit(False))
        marked = marked.withColumn(f"near_{place}", F.col(place).isNotNull() & near)
    row = marked.agg(
        F.count(F.lit(1)).alias("failures"),
        F.count_if("near_host").alias("same_host"),
        F.count_if("near_rack").alias("same_rack"),
    ).first()
    count, host, rack = (row.failures, row.same_host, row.same_rack) if row is not None else (0, 0, 0)
    return Bursts(
        within_minutes=minutes,
        failures=count,
        same_host=host,
        same_rack=rack,
        same_host_pct=100 * host / count if count else None,
        same_rack_pct=100 * rack / count if count else None,
    )
