"""``kjbod fleet report``: a page, its drill-downs and JSON."""

import click

from kjbod.cli.fleet_commands.options import spark_options


@click.command("report")
@click.option("--lake", metavar="URI", help="The lake: a path, or a URI that Hadoop's file systems take.")
@click.option("--reports", metavar="PATH", help="Where the agents' reports are, instead of a lake.")
@click.option("--out", required=True, metavar="PATH", help="Where the page goes, a directory of this machine.")
@click.option(
    "--from", "from_date", metavar="DATE", help="First day, as 2026-11-01; the first of the lake if not given."
)
@click.option("--to", "to_date", metavar="DATE", help="Last day; the last of the lake where not given.")
@click.option("--json", "json_file", metavar="FILE", help="Also write report.json here.")
@click.option(
    "--silent-after",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="How far an agent may lag behind the newest report before it is silent; 3 where not given. More than "
    "kjbod.reports.rotate.interval.ms.",
)
@spark_options
def command(
    lake: str | None,
    reports: str | None,
    out: str,
    from_date: str | None,
    to_date: str | None,
    json_file: str | None,
    silent_after: float | None,
    master: str | None,
    remote: str | None,
    verbose: bool,
) -> int:
    """Make a page of a lake, or of the agents' reports (needs PySpark: scripts/setup --fleet of a clone)."""
    silent_after_ms = None if silent_after is None else round(silent_after * 3_600_000)
    if (lake is None) == (reports is None):
        raise click.UsageError("give --lake or --reports")
    if lake is not None:
        from kjbod.fleet.command import Place
        from kjbod.fleet.report_files import report_lake

        return report_lake(
            lake,
            out,
            from_date=from_date,
            to_date=to_date,
            json_file=json_file,
            silent_after_ms=silent_after_ms,
            where=Place(master, remote, verbose),
        )
    if from_date or to_date or json_file:
        raise click.UsageError("--from, --to and --json are for a --lake")
    from kjbod.fleet import report_command

    assert reports is not None
    return report_command.report(reports, out, master, silent_after_ms)
