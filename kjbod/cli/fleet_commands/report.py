"""``kjbod fleet report``: tables and a page."""

import click


@click.command("report")
@click.option("--reports", required=True, metavar="PATH", help="Where the agents' reports are.")
@click.option("--out", required=True, metavar="PATH", help="Where the tables and the page go.")
@click.option("--master", help="Spark's master; all cores of this machine where not given.")
@click.option(
    "--silent-after",
    type=click.FloatRange(min=0, min_open=True),
    metavar="HOURS",
    help="How far an agent may lag behind the newest report before it is silent; 3 where not given. More than "
    "kjbod.reports.rotate.interval.ms.",
)
def command(reports: str, out: str, master: str | None, silent_after: float | None) -> int:
    """Make tables and one HTML page of the agents' reports (needs PySpark: scripts/setup --fleet of a clone)."""
    from kjbod.fleet import report_command

    return report_command.report(
        reports, out, master, None if silent_after is None else round(silent_after * 3_600_000)
    )
