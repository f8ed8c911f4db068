"""``kjbod fleet publish``: publish the lake's tables to an Iceberg catalog."""

import click

from kjbod.cli.fleet_commands.options import lake_option, place_of, spark_options


@click.command("publish")
@lake_option
@click.option(
    "--to", required=True, metavar="CATALOG.NAMESPACE", help="Where the tables are kept, as Spark's catalog has it."
)
@click.option("--warehouse", metavar="URI", help="Make CATALOG a Hadoop catalog there; else Spark's settings name it.")
@spark_options
def command(lake: str, to: str, warehouse: str | None, master: str | None, remote: str | None, verbose: bool) -> int:
    """Keep gold, and silver that was compacted, in tables of an Iceberg catalog, for other engines to read: a snapshot
    for each table, of the dates that changed since the last time. Spark needs Iceberg's runtime: scripts/iceberg."""
    from kjbod.fleet.upkeep import commands

    return commands.publish(lake, to, warehouse, place_of(master, remote, verbose))
