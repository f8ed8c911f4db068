"""``kjbod fleet query``: SQL over the tables of a lake."""

import click

from kjbod.cli.fleet_commands.options import place_of, spark_options


@click.command("query")
@click.argument("sql", required=False)
@click.option("--lake", metavar="URI", help="The lake: a path, or a URI that Hadoop's file systems take.")
@click.option("--tables", is_flag=True, help="List the tables, what a row of each is, and their columns.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=1_000_000),
    default=1000,
    show_default=True,
    metavar="N",
    help="Rows that are printed at most.",
)
@spark_options
def command(
    sql: str | None,
    lake: str | None,
    tables: bool,
    form: str,
    limit: int,
    master: str | None,
    remote: str | None,
    verbose: bool,
) -> int:
    """Run a query in Spark's SQL over the lake's tables, such as

    kjbod fleet query "select host, sum(failures) from dir_day group by host" --lake URI

    Tables of gold and silver have plain names (dir_hour, dir_day, samples, events, ...), the others that of their layer
    before it (audit_files, imported_drive_day). Silver has each row once. Control characters are printed as escapes."""
    from kjbod.fleet.upkeep import commands, query

    if tables:
        for line in query.listing():
            click.echo(line)
        return 0
    if sql is None or lake is None:
        raise click.UsageError("give a query and --lake, or --tables")
    return commands.query(lake, sql, form, limit, place_of(master, remote, verbose))
