"""``kjbod fleet compact``: merge the many small pieces of a day into few large files."""

import click

from kjbod.cli.fleet_commands.options import days_option, lake_option, place_of, spark_options


@click.command("compact")
@lake_option
@days_option
@click.option(
    "--older-than",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="DAYS",
    help="Without --day: dates that ended so many days ago or more; 1 is up to yesterday (UTC).",
)
@spark_options
def command(
    lake: str, day: tuple[str, ...], older_than: int, master: str | None, remote: str | None, verbose: bool
) -> int:
    """Make one piece of each date's many, each row once, files of 128 MB, sorted and compared with what they were made
    of. Readers see the old pieces or the new one; kjbod fleet retain deletes the old ones."""
    from kjbod.fleet.upkeep import commands

    return commands.compact(lake, day, older_than, place_of(master, remote, verbose))
