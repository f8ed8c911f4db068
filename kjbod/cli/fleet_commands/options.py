"""Options that the commands of ``kjbod fleet`` share."""

from collections.abc import Callable
from typing import TypeVar

import click

F = TypeVar("F", bound=Callable[..., object])


def lake_option(command: F) -> F:
    """``--lake URI``."""
    return click.option(
        "--lake", required=True, metavar="URI", help="The lake: a path, or a URI that Hadoop's file systems take."
    )(command)


def spark_options(command: F) -> F:
    """``--master``, ``--remote``, ``-v``: where Spark runs."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Also say where Spark's UI is, and what Spark does."),
        click.option("--remote", metavar="sc://HOST:PORT", help="A Spark Connect server. Or set SPARK_REMOTE."),
        click.option("--master", help="Spark's master; all cores of this machine where not given."),
    ):
        command = option(command)
    return command
