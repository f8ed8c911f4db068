"""``kjbod fleet report``: write an HTML page with drill-downs, and JSON."""

import click

from kjbod.cli.fleet_commands.options import PositiveFloat, spark_options


@click.command("report")
@click.option("--lake", metavar="URI", help="The lake: a path, or a URI that Hadoop's file systems take.")
@click.option(
    "--reports",
    multiple=True,
    metavar="URI",
    help="Where the agents' reports are, instead of a lake. May be given several times.",
)
@click.option("--out", required=True, metavar="PATH", help="Where the page goes, a directory of this machine.")
@click.option(
    "--from", "from_date", metavar="DATE", help="First day, as 2026-11-01; the first of the lake if not given."
)
@click.option("--to", "to_date", metavar="DATE", help="Last day; the last of the lake where not given.")
@click.option(
    "--days",
    type=click.IntRange(1, 36_500),
    metavar="N",
    help="Only so many days up to the last one, instead of --from.",
)
@click.option("--json", "json_file", metavar="FILE", help="Also write report.json here.")
@click.option(
    "--silent-after",
    type=PositiveFloat(),
    metavar="HOURS",
    help="How far an agent may lag behind the newest report before it is silent; 3 where not given. More than "
    "kjbod.reports.rotate.interval.ms.",
)
@spark_options
def command(
    lake: str | None,
    reports: tuple[str, ...],
    out: str,
    from_date: str | None,
    to_date: str | None,
    days: int | None,
    json_file: str | None,
    silent_after: float | None,
    master: str | None,
    remote: str | None,
    verbose: bool,
) -> int:
    """Make a page of a lake, or of the agents' reports (needs PySpark: scripts/setup --fleet of a clone)."""
    if (lake is None) == (not reports):
        raise click.UsageError("give --lake or --reports" + (", not both" if reports else ""))
    if from_date is not None and days is not None:
        raise click.UsageError("--from and --days: give one of them")
    from kjbod.fleet.command import Place
    from kjbod.fleet.report_files import Wanted, report_lake

    silent_after_ms = None if silent_after is None else round(silent_after * 3_600_000)
    wanted = Wanted(from_date, to_date, days, json_file, silent_after_ms)
    place = Place(master, remote, verbose)
    if lake is not None:
        return report_lake(lake, out, wanted, place)
    from kjbod.fleet.report_command import report_inboxes

    return report_inboxes(reports, out, wanted, place)
