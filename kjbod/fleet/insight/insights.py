"""All insights of a lake for some days: reads gold, calls each topic, gives plain data."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from kjbod.fleet.insight.capacity import capacity
from kjbod.fleet.insight.health import health
from kjbod.fleet.insight.model import TOP, Insights, Reliability, Window
from kjbod.fleet.insight.own_work import false_verdicts, newest_moment, own_work
from kjbod.fleet.insight.reliability import (
    DRIVE_DAYS_MIN,
    bursts,
    exposure,
    failures_of_incidents,
    failures_of_tickets,
    lives,
    not_borne_out,
    reliability,
)
from kjbod.fleet.lake.lake import Lake
from kjbod.fleet.lake.state import State
from kjbod.fleet.session import COMPILED, LARGE_ROWS, PLAIN, apart, at_once

SLOW_DATES = 2
"""Newest dates of which the hours are read, for the comparison with peers."""
TOPICS_AT_ONCE = 3
"""One alone leaves a machine half idle: while its plan is made, and while Java compiles it."""
OURS = "kjbod"


@dataclass(frozen=True, slots=True)
class Seen:
    """Days that are asked for and that there are."""

    window: Window
    dates: list[str]
    with_ahead: list[str]
    """Also those after "now", of clocks that are ahead."""


def seen(lake: Lake, state: State, from_date: str | None = None, to_date: str | None = None) -> Seen:
    """The days from ``from_date`` to ``to_date``, both included; None: the first there is, and the one of "now"
    (:func:`kjbod.fleet.insight.own_work.newest_moment`)."""
    found = [
        date
        for date in state.dates("gold.dir_day")
        if (from_date is None or date >= from_date) and (to_date is None or date <= to_date)
    ]
    now_ms = newest_moment(lake.read("gold.agent_day", state, dates=found), lake.read("audit.files", state))
    dates = until(found, now_ms) if to_date is None else found
    first, last = (dates[0], dates[-1]) if dates else (from_date or "", to_date or "")
    return Seen(Window(from_date=first, to_date=last, now_ms=now_ms), dates, found)


def settings_of(state: State, dates: Sequence[str]) -> Mapping[str, str]:
    """Settings of Spark for a walk through these days of directories, or through imported ones of drives."""
    pieces = (state.pieces("gold.dir_day", dates), state.pieces("imported.drive_day"))
    return COMPILED if max(sum(piece.rows for piece in of) for of in pieces) >= LARGE_ROWS else PLAIN


def insights(lake: Lake, state: State, of: Seen, *, drive_days_min: int = DRIVE_DAYS_MIN, top: int = TOP) -> Insights:
    """Insights of some days. Drives' lives, imported histories and the audit are those of all days."""
    large = lake.in_session(apart(lake.spark, settings_of(state, of.dates)))
    small = lake.in_session(apart(lake.spark, PLAIN))

    def gold(table: str, dates: Sequence[str] = of.dates, lake: Lake = large) -> DataFrame:
        return lake.read(f"gold.{table}", state, dates=dates)

    drives = gold("drive_day", lake=small)
    days, tickets = gold("dir_day"), state.pieces("imported.ticket")
    with at_once(TOPICS_AT_ONCE) as pool:
        # The longest ones first.
        risks = pool.submit(lambda: health(days, gold("dir_hour", of.dates[-SLOW_DATES:]), top=top))
        room = pool.submit(lambda: capacity(days, top=top))
        ours = pool.submit(
            lambda: reliability(
                OURS,
                gold("exposure_day", lake=small),
                small.read("gold.drive_life", state),
                failures_of_incidents(gold("incident", lake=small)),
                not_borne_out(drives, false_verdicts(gold("incident", lake=small), drives)),
                last_date=of.dates[-1] if of.dates else None,
                drive_days_min=drive_days_min,
                top=top,
            )
        )
        work = pool.submit(
            lambda: own_work(
                gold("incident"),
                gold("agent_day", of.with_ahead),
                gold("drive_day"),
                large.read("audit.files", state),
                of.window.now_ms,
                top=top,
            )
        )
        return Insights(
            window=of.window,
            imported=imported(large, state, drive_days_min=drive_days_min, top=top),
            tickets=bursts(failures_of_tickets(large.read_pieces("imported.ticket", tickets))) if tickets else None,
            reliability=ours.result(),
            health=risks.result(),
            capacity=room.result(),
            own_work=work.result(),
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
