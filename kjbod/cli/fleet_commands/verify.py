"""``kjbod fleet verify``: count a lake again, and compare."""

import click

from kjbod.cli.fleet_commands.options import lake_option, place_of, spark_options


@click.command("verify")
@lake_option
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    metavar="N",
    help="Hours of gold, and compacted dates, that are computed again.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="Which ones: the same draws the same."
)
@spark_options
def command(lake: str, sample: int, seed: int, master: str | None, remote: str | None, verbose: bool) -> int:
    """Count pieces against the state, silver against the audit and the files' trailers, and gold against silver. Exit
    code 1 with a line for each difference."""
    from kjbod.fleet.upkeep import commands

    return commands.verify(lake, sample, seed, place_of(master, remote, verbose))
