"""``kjbod fleet gen``: generate reports of a simulated fleet."""

import re

import click


@click.command("gen")
@click.option("--hosts", required=True, type=click.IntRange(1, 10_000), metavar="N")
@click.option("--days", required=True, type=click.IntRange(1, 400), metavar="D")
@click.option("--seed", required=True, type=int, metavar="S", help="The same seed makes the same bytes.")
@click.option("--out", required=True, metavar="DIR", help="An empty directory for reports and ledger.json, the truth.")
@click.option(
    "--disks", default=12, show_default=True, type=click.IntRange(1, 60), help="Log directories of each host."
)
@click.option("--every", default=60, show_default=True, type=click.IntRange(1, 3600), metavar="SECONDS")
@click.option("--start", default="2026-10-01", show_default=True, metavar="DATE", help="First day, UTC.")
@click.option("--hours", metavar="A..B", help="Write only those hours, counted from the start: 0..24 is the first day.")
def command(hosts: int, days: int, seed: int, out: str, disks: int, every: int, start: str, hours: str | None) -> int:
    """Write the health reports of a fleet that does not exist, and the truth about it."""
    from kjbod.fleet.command import run_command
    from kjbod.fleet.gen import command as making

    wanted = None
    if hours is not None:
        found = re.fullmatch(r"(\d{1,6})\.\.(\d{1,6})", hours)
        if found is None or not int(found[1]) < int(found[2]) <= days * 24:
            raise click.BadParameter(f"{hours}: write it as 0..24, not beyond {days * 24}", param_hint="--hours")
        wanted = (int(found[1]), int(found[2]))
    return run_command(
        "gen",
        lambda running: making.gen(running, out, making.order_of(hosts, days, seed, disks, every, start), wanted),
    )
