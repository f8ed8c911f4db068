"""``kjbod fleet import``: import published drive data."""

from typing import TYPE_CHECKING

import click

from kjbod.cli.fleet_commands.options import lake_option, spark_options

if TYPE_CHECKING:
    from kjbod.fleet.command import Running


@click.command("import")
@click.argument("source", type=click.Choice(["backblaze", "alibaba"]))
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@lake_option
@spark_options
def command(
    source: str, files: tuple[str, ...], lake: str, master: str | None, remote: str | None, verbose: bool
) -> int:
    """Take published histories of drives into the lake, to compare with.

    \b
    kjbod fleet import backblaze 2013-04-*.csv --lake lake
    kjbod fleet import alibaba ssd_failure_tag.csv.zip --lake lake

    Backblaze's Drive Stats, one row a drive and day, as .csv, .csv.gz, or .zip of up to 64 MiB; Alibaba's SSD failure
    tickets likewise. A FILE is a path, a directory, or a URI that Hadoop's file systems take. Importing again replaces.
    """
    from kjbod.fleet.command import Place, run_command

    def body(running: "Running") -> int:
        from kjbod.fleet.imports.importing import import_files

        return import_files(running, source, files, lake)

    return run_command("import", body, Place(master, remote, verbose))
