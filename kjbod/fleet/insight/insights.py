"""All insights of a lake for some days: reads gold, calls each topic, gives plain data."""

import datetime
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.insight.capacity import capacity
from kjbod.fleet.insight.health import health
from kjbod.fleet.insight.model import TOP, Insights, Reliability, Window
from kjbod.fleet.insight.own_work import newest_moment, own_work
from kjbod.fleet.insight.reliability import (
    DRIVE_DAYS_MIN,
    bursts,
    exposure,
    failures_of_incidents,
    failures_of_tickets,
    lives,
    reliability,
)
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State

SLOW_DATES = 2
"""Newest dates of which the hours are read, for the comparison with peers."""
OURS = "kjbod"


def insights(
    lake: Lake,
    state: State,
    from_date: str | None = None,
    to_date: str | None = None,
    *,
    drive_days_min: int = DRIVE_DAYS_MIN,
    top: int = TOP,
    progress: Callable[[str], None] = lambda text: None,
) -> Insights:
    """All that is known of the days from ``from_date`` to ``to_date``, both included; None: the first there is, and the
    one of "now" (:func:`kjbod.fleet.insight.own_work.newest_moment`): days after it are of clocks that are ahead.
    Drives' lives, imported histories and the audit are those of all days."""
    dates = [
        date
        for date in state.dates("gold.dir_day")
        if (from_date is None or date >= from_date) and (to_date is None or date <= to_date)
    ]

    def of(table: str, only: Sequence[str] | None = None) -> DataFrame:
        wanted = dates if only is None else only
        return lake.read(table, state, dates=wanted)

    lived, files = lake.read("gold.drive_life", state), lake.read("audit.files", state)
    agent_days = of("gold.agent_day")  # also those of clocks that are ahead
    now_ms = newest_moment(agent_days, files)
    if to_date is None:
        dates = until(dates, now_ms)
    incidents, days = of("gold.incident"), of("gold.dir_day")
    progress("health before failure")
    found_health = health(days, of("gold.dir_hour", dates[-SLOW_DATES:]), top=top)
    progress("capacity")
    found_capacity = capacity(days, top=top)
    progress("reliability")
    ours = reliability(
        OURS,
        of("gold.exposure_day"),
        lived,
        failures_of_incidents(incidents),
        last_date=dates[-1] if dates else None,
        drive_days_min=drive_days_min,
        top=top,
    )
    progress("kjbod's own work")
    work = own_work(incidents, agent_days, of("gold.drive_day"), files, now_ms, top=top)
    tickets = state.pieces("imported.ticket")
    return Insights(
        window=Window(
            from_date=dates[0] if dates else from_date or "",
            to_date=dates[-1] if dates else to_date or "",
            now_ms=now_ms,
        ),
        reliability=ours,
        imported=imported(lake, state, drive_days_min=drive_days_min, top=top),
        tickets=bursts(failures_of_tickets(lake.read_pieces("imported.ticket", tickets))) if tickets else None,
        health=found_health,
        capacity=found_capacity,
        own_work=work,
    )


def until(dates: Sequence[str], now_ms: int) -> list[str]:
    """The dates up to that of "now"; all where there would be none."""
    last = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).date().isoformat()
    return [date for date in dates if date <= last] or list(dates)


def imported(
    lake: Lake, state: State, *, drive_days_min: int = DRIVE_DAYS_MIN, top: int = TOP
) -> tuple[Reliability, ...]:
    """Reliability of each imported history, of all of its days."""
    pieces = state.pieces("imported.drive_day")
    if not pieces:
        return ()
    days = lake.read_pieces("imported.drive_day", pieces)
    sources = [row.source for row in days.select("source").distinct().orderBy("source").collect()]
    return tuple(
        reliability(
            source,
            exposure(days.where(F.col("source") == source)),
            lives(days.where(F.col("source") == source)),
            drive_days_min=drive_days_min,
            top=top,
        )
        for source in sources
    )
