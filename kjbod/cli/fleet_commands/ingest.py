"""``kjbod fleet ingest``: load reports into the lake."""

import click

from kjbod.cli.fleet_commands.options import PositiveFloat, lake_option, spark_options


@click.command("ingest")
@lake_option
@click.option(
    "--reports",
    required=True,
    multiple=True,
    metavar="URI",
    help="Where the agents' reports are (samples/ and events/). May be given several times.",
)
@click.option("--follow", is_flag=True, help="Do not end: look again and again.")
@click.option(
    "--every",
    type=PositiveFloat(),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How often, with --follow.",
)
@click.option(
    "--max-files", type=click.IntRange(min=1), default=2_000, show_default=True, help="Files taken in one commit."
)
@click.option(
    "--rollup", is_flag=True, help="Then roll up what is new, as kjbod fleet rollup; with --follow each time."
)
@click.option("--rescan", is_flag=True, help="Read the inboxes anew, and take what the lake does not have.")
@click.option("--delete-ingested", is_flag=True, help="Delete report files that the lake proves to hold.")
@spark_options
def command(
    lake: str,
    reports: tuple[str, ...],
    follow: bool,
    every: float,
    max_files: int,
    rollup: bool,
    rescan: bool,
    delete_ingested: bool,
    master: str | None,
    remote: str | None,
    verbose: bool,
) -> int:
    """Take the agents' reports into a lake, each once (needs PySpark: scripts/setup --fleet of a clone)."""
    from kjbod.fleet.command import Place
    from kjbod.fleet.ingest.command import Asked, ingest

    asked = Asked(lake, reports, max_files, every if follow else None, rescan, delete_ingested, rollup)
    return ingest(asked, Place(master, remote, verbose))
