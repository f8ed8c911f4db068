"""``kjbod fleet retain``: delete data that is older than its retention time."""

import click

from kjbod.cli.fleet_commands.options import lake_option, place_of, spark_options

_DAYS = click.IntRange(min=1, max=100_000)


@click.command("retain")
@lake_option
@click.option(
    "--silver-days", type=_DAYS, metavar="N", help="Keep each sample and event so long; for ever if not given."
)
@click.option("--gold-days", type=_DAYS, metavar="N", help="Keep hours and days so long; at least --silver-days.")
@click.option("--raw-days", type=_DAYS, metavar="N", help="With --delete-ingested: keep the agents' reports so long.")
@click.option("--delete-ingested", is_flag=True, help="Delete reports that the lake proves to hold, below --reports.")
@click.option("--reports", multiple=True, metavar="URI", help="An inbox for --delete-ingested.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@spark_options
def command(
    lake: str,
    silver_days: int | None,
    gold_days: int | None,
    raw_days: int | None,
    delete_ingested: bool,
    reports: tuple[str, ...],
    dry_run: bool,
    master: str | None,
    remote: str | None,
    verbose: bool,
) -> int:
    """Take out what is too old, and delete files that were replaced an hour ago or more, and those of killed commands.

    Silver goes only where it was compacted and verified, and its gold is made. Exit code 1: something old stays, and
    the line says why. The agents' reports are nobody's but yours: without --delete-ingested none is deleted."""
    if delete_ingested != bool(reports) or delete_ingested != (raw_days is not None):
        raise click.UsageError("--delete-ingested, --reports and --raw-days go together")
    from kjbod.fleet.upkeep import commands
    from kjbod.fleet.upkeep.retain import Limits

    limits = Limits(silver_days, gold_days, raw_days)
    place = place_of(master, remote, verbose)
    return commands.retain(lake, limits, reports, place, dry_run=dry_run, delete_ingested=delete_ingested)
