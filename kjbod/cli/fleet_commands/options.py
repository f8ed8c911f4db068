"""Shared options of the commands ``kjbod fleet``."""

import datetime
import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kjbod.fleet.command import Place

F = TypeVar("F", bound=Callable[..., object])


_FLOAT_MAX = 1e9


def lake_option(command: F) -> F:
    """Add the option ``--lake URI``."""
    return click.option(
        "--lake", required=True, metavar="URI", help="The lake: a path, or a URI that Hadoop's file systems take."
    )(command)


def spark_options(command: F) -> F:
    """Add the options ``--master``, ``--remote`` and ``-v``, which select Spark."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Also say where Spark's UI is, and what Spark does."),
        click.option("--remote", metavar="sc://HOST:PORT", help="A Spark Connect server. Or set SPARK_REMOTE."),
        click.option("--master", help="Spark's master; all cores of this machine where not given."),
    ):
        command = option(command)
    return command


def _dates(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    for text in given:
        try:
            if not re.fullmatch(r"\d{4}-\d\d-\d\d", text):
                raise ValueError
            datetime.date.fromisoformat(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} is no date: yyyy-mm-dd, such as 2026-11-01") from None
    return given


class PositiveFloat(click.FloatRange):
    """Number above 0. Click's own range accepts ``nan``; this one does not."""

    def __init__(self) -> None:
        """Accept any number above 0."""
        super().__init__(min=0, min_open=True, max=_FLOAT_MAX)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Implement :class:`click.ParamType`."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def days_option(command: F) -> F:
    """Add the repeatable option ``--day D``."""
    return click.option("--day", multiple=True, metavar="D", callback=_dates, help="A date, such as 2026-11-01 (UTC).")(
        command
    )


def place_of(master: str | None, remote: str | None, verbose: bool) -> "Place":
    """Return the place of Spark from the values of :func:`spark_options`."""
    from kjbod.fleet.command import Place

    return Place(master, remote, verbose)
