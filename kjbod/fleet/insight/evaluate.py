"""Precision, recall and lead time of scores that tell failing drives from others, on one half of the drives to choose
a threshold, on the other half to show what it is worth.

A failure is *told* by an alarm on a day before it, at most :data:`WINDOW_DAYS` before. An alarm of a drive that did not
fail while it was seen is a false one, which is hard on rules: that drive may fail a week later. Drives that failed on
the first day on which they were seen could be told by nobody and are left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.insight.health import facts_of_drives, is_baseline, scored
from kjbod.fleet.insight.rules import FACTS, Judged, best

WINDOW_DAYS = 30
THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(1, 20))
BASELINE_THRESHOLD = -1.0
"""Stands for the baseline."""
CHOOSE, SHOW = 0, 1
"""Halves of the drives, by a hash of the serial number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Rules and baseline, on the half that chose the threshold and on the other."""

    chosen: Judged
    """On the half that it was chosen on."""
    shown: Judged
    """The same threshold on the other half."""
    fixed: Judged
    """On that half, of the threshold from which on a page says *at risk*."""
    baseline: Judged
    """On that half: any of SMART 5, 187 and 197 above zero."""
    curve: tuple[Judged, ...]
    """All thresholds on that half."""
    without_past: int
    """Failures on the first day of a drive: left out."""


def evaluate(drive_days: DataFrame, fixed_threshold: float) -> Evaluation:
    """Of ``drive_day`` rows, gold or imported, in which some drives failed."""
    scores = scored(facts_of_drives(drive_days)).withColumn("baseline", is_baseline())
    days = scores.select("source", "fleet", "drive", "date", "failed", "score", "baseline")
    drives = _alarms(days).persist()
    try:
        judged = judge(drives, (*THRESHOLDS, fixed_threshold, BASELINE_THRESHOLD))
        lost = drives.where("failed_date IS NOT NULL AND first_date >= failed_date").count()
    finally:
        drives.unpersist()
    chosen = best([judged[CHOOSE, threshold] for threshold in THRESHOLDS])
    return Evaluation(
        chosen=chosen,
        shown=judged[SHOW, chosen.threshold],
        fixed=judged[SHOW, fixed_threshold],
        baseline=judged[SHOW, BASELINE_THRESHOLD],
        curve=tuple(judged[SHOW, threshold] for threshold in THRESHOLDS),
        without_past=lost,
    )


def _alarms(days: DataFrame) -> DataFrame:
    """Of each drive: its half, when it failed, and its days with a score or a raised baseline."""
    drive = ("source", "fleet", "drive")
    raised = F.when((F.col("score") > 0) | F.col("baseline"), F.struct("date", "score", "baseline"))
    return (
        days.groupBy(*drive)
        .agg(
            F.min("date").alias("first_date"),
            F.min(F.when(F.col("failed") > 0, F.col("date"))).alias("failed_date"),
            F.collect_list(raised).alias("days"),
        )
        .withColumn("half", F.crc32(F.col("drive").cast("binary")) % 2)
    )


def judge(drives: DataFrame, thresholds: Iterable[float]) -> dict[tuple[int, float], Judged]:
    """By half and threshold."""
    wanted = sorted(set(thresholds))
    is_usable = F.col("failed_date").isNull() | (F.col("first_date") < F.col("failed_date"))
    each = drives.where(is_usable).withColumn("threshold", F.explode(F.lit(wanted)))
    raised = F.when(F.col("threshold") == BASELINE_THRESHOLD, F.filter("days", lambda day: day.baseline)).otherwise(
        F.filter("days", lambda day: day.score >= F.col("threshold"))
    )
    begin = F.coalesce(F.date_format(F.date_sub(F.to_date("failed_date"), WINDOW_DAYS), "yyyy-MM-dd"), F.lit(""))
    in_time = F.filter(
        "raised", lambda day: (day.date >= begin) & (day.date < F.coalesce("failed_date", F.lit("9999")))
    )
    alarm = F.array_min(F.transform(in_time, lambda day: day.date))
    failed = F.col("failed_date").isNotNull()
    rows = (
        each.withColumn("raised", raised)
        .withColumn("alarm", alarm)
        .groupBy("half", "threshold")
        .agg(
            F.count_if(failed).alias("failed"),
            F.count_if(failed & F.col("alarm").isNotNull()).alias("failed_alarmed"),
            F.count_if(~failed).alias("well"),
            F.count_if(~failed & F.col("alarm").isNotNull()).alias("well_alarmed"),
            F.percentile(F.datediff("failed_date", "alarm"), F.lit(0.5)).alias("lead_days"),
        )
        .collect()
    )
    found = {
        (row.half, row.threshold): Judged(**{k: v for k, v in row.asDict().items() if k != "half"}) for row in rows
    }
    empty = {"failed": 0, "failed_alarmed": 0, "well": 0, "well_alarmed": 0, "lead_days": None}
    for half in (CHOOSE, SHOW):
        for threshold in wanted:
            found.setdefault((half, threshold), Judged(threshold=threshold, **empty))  # type: ignore[arg-type]
    return found


TICKET_FACTS = {"smart_realloc": "r_5", "smart_reported_uncorrect": "r_187", "smart_pending": "r_197"}
"""What failure tickets have of what the rules look at; wear is in the normalised ``n_wearout``, 100 when new."""


def tickets_told(tickets: DataFrame, threshold: float) -> tuple[int, int, int, int]:
    """Failure tickets, those with SMART values, and of these how many reach the threshold and how many the baseline
    would have told: at the failure, not before, and from values, not their growth. Without drives that did not fail
    there is no precision."""
    facts = {name: F.try_element_at("smart", F.lit(column)) for name, column in TICKET_FACTS.items()}
    facts["smart_wear_pct"] = 100 - F.try_element_at("smart", F.lit("n_wearout"))
    known = tickets.withColumns(facts)
    others = {name: F.lit(None).cast("double") for name in FACTS if name not in facts}
    row = (
        scored(known.withColumns(others))
        .withColumn("with_smart", F.coalesce(*facts).isNotNull())
        .agg(
            F.count(F.lit(1)).alias("tickets"),
            F.count_if("with_smart").alias("with_smart"),
            F.count_if(F.col("score") >= threshold).alias("told"),
            F.count_if(is_baseline()).alias("baseline"),
        )
        .collect()[0]
    )
    return row.tickets, row.with_smart, row.told, row.baseline


def as_markdown(evaluation: Evaluation) -> list[str]:
    """A table for people."""
    rows: Sequence[tuple[str, Judged]] = (
        ("rules, threshold chosen here", evaluation.chosen),
        ("the same, other half", evaluation.shown),
        ("rules at the page's *at risk*, other half", evaluation.fixed),
        ("baseline, other half", evaluation.baseline),
    )
    head = [
        "| | threshold | failures told | false alarms | precision | recall | lead time, median days |",
        "|---|---|---|---|---|---|---|",
    ]
    return head + [_row(name, judged) for name, judged in rows]


def _row(name: str, judged: Judged) -> str:
    threshold = "-" if judged.threshold == BASELINE_THRESHOLD else f"{judged.threshold:.2f}"
    told = f"{judged.failed_alarmed:,} of {judged.failed:,}"
    false = f"{judged.well_alarmed:,} of {judged.well:,}"
    shares = " | ".join("-" if v is None else f"{100 * v:.1f} %" for v in (judged.precision, judged.recall))
    lead = "-" if judged.lead_days is None else f"{judged.lead_days:.0f}"
    return f"| {name} | {threshold} | {told} | {false} | {shares} | {lead} |"
