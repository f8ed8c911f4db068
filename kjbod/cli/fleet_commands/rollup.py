"""``kjbod fleet rollup``: update the gold tables of the hours whose silver has changed."""

import click

from kjbod.cli.fleet_commands.options import lake_option, spark_options


@click.command("rollup")
@lake_option
@click.option(
    "--all", "everything", is_flag=True, help="Of all hours that have silver, not only of those that changed."
)
@spark_options
def command(lake: str, everything: bool, master: str | None, remote: str | None, verbose: bool) -> int:
    """Make hourly and daily tables of what was ingested (needs PySpark: scripts/setup --fleet of a clone)."""
    from kjbod.fleet.command import Place
    from kjbod.fleet.rollup.command import rollup

    return rollup(lake, Place(master, remote, verbose), everything=everything)
