"""Dates as a user gives them. Pure, and without Spark: a typing mistake is said before that starts."""

from datetime import date

from kjbod.fleet.fleet_error import FleetError


def check_dates(from_date: str | None, to_date: str | None) -> None:
    """Check the first and the last date of a report, as far as one can without a lake.

    Raises:
        FleetError: one that is no date, or in the wrong order.
    """
    for option, text in (("--from", from_date), ("--to", to_date)):
        if text is not None and not _is_date(text):
            raise FleetError(f"{option} {text}: not a date: give one as 2026-11-01")
    if from_date and to_date and from_date > to_date:
        raise FleetError(f"--from {from_date} is after --to {to_date}: give them the other way round")


def _is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False
