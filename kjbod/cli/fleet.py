"""``kjbod fleet``: what Spark makes of the agents' reports."""

from pathlib import Path

import click


@click.group()
def fleet() -> None:
    """Look at the whole fleet."""


@fleet.command()
@click.option(
    "--reports", required=True, type=click.Path(path_type=Path, readable=False), help="Where the agents' reports are."
)
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, readable=False), help="Where the tables and the page go."
)
@click.option("--master", help="Spark's master; all cores of this machine where not given.")
def report(reports: Path, out: Path, master: str | None) -> int:
    """Make tables and one HTML page of the agents' reports (needs PySpark: scripts/setup --fleet of a clone)."""
    from kjbod.fleet import cli

    return cli.report(reports, out, master)
