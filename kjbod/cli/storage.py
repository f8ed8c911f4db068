"""The commands of kafka-storage: ``kjbod format``, ``info``, ``random-uuid``, ``version-mapping``,
``feature-dependencies``.

Flags, standard output and exit codes are those of ``kafka-storage`` 4.3.1: every failure, including wrong arguments,
has exit code 1.
"""

from pathlib import Path

import click

from kjbod.error_lines import report, report_usage
from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.output import Printer, complain


class StorageCommand(click.Command):
    """A command with kafka-storage's conventions: exit code 1 for all failures, ``@FILE`` for arguments in a file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [each for arg in args for each in _expand(arg)])
        except click.UsageError as error:
            report_usage(error)
            ctx.exit(EXIT_FAILURE)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            report_usage(error)
            return EXIT_FAILURE
        except KjbodError as error:
            report(error)
            return EXIT_FAILURE


def _expand(argument: str) -> list[str]:
    """Replace ``@FILE`` by the lines of FILE."""
    if not argument.startswith("@"):
        return [argument]
    try:
        return Path(argument[1:]).read_text().splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"Could not open '{argument[1:]}': {reason}") from None


_config_option = click.option(
    "-c",
    "--config",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The Kafka configuration file to use.",
)


@click.command(cls=StorageCommand)
@_config_option
def info(config: Path) -> int:
    """Tell what is in the log directories of this node."""
    from kjbod.config import load_config
    from kjbod.config.needs import DIRECTORIES
    from kjbod.storage_tool import describe_directories

    out = Printer(patient=True)
    code = describe_directories(load_config(config, needs=DIRECTORIES), out, complain)
    out.close()
    return code


@click.command(cls=StorageCommand)
@_config_option
@click.option("-t", "--cluster-id", required=True, help="The cluster ID to use.")
@click.option(
    "-S", "--add-scram", multiple=True, metavar="CREDENTIAL", help="A SCRAM credential to add to the metadata."
)
@click.option(
    "-g",
    "--ignore-formatted",
    is_flag=True,
    help="Skip directories that are formatted; give those an id that have none.",
)
@click.option(
    "-r",
    "--release-version",
    help="The release whose feature levels to start with; minimum 3.3-IV3. A broker needs none.",
)
@click.option("-f", "--feature", multiple=True, metavar="NAME=LEVEL", help="The level of one feature to start with.")
@click.option("-s", "--standalone", is_flag=True, help="This controller is a dynamic quorum of one.")
@click.option("-N", "--no-initial-controllers", is_flag=True, help="Name no voters: join a dynamic quorum later.")
@click.option(
    "-I",
    "--initial-controllers",
    metavar="ID@HOST:PORT:DIRECTORY,...",
    help="The voters of a dynamic quorum; the same on all nodes.",
)
def format(
    config: Path,
    cluster_id: str,
    add_scram: tuple[str, ...],
    ignore_formatted: bool,
    release_version: str | None,
    feature: tuple[str, ...],
    standalone: bool,
    no_initial_controllers: bool,
    initial_controllers: str | None,
) -> None:
    """Format the log directories of this node; those that do not exist are made."""
    from kjbod.clock import SystemClock, system_random
    from kjbod.config import load_config
    from kjbod.config.needs import FORMAT, FORMAT_VOTERS
    from kjbod.storage_tool import FormatOptions, format_directories

    _check_exclusive(standalone, no_initial_controllers, initial_controllers is not None)
    options = FormatOptions(
        cluster_id=cluster_id,
        ignore_formatted=ignore_formatted,
        release_version=release_version,
        features=feature,
        scram=add_scram,
        standalone=standalone,
        no_initial_controllers=no_initial_controllers,
        initial_controllers=initial_controllers,
    )
    out = Printer(patient=True)
    format_directories(
        load_config(config, needs=FORMAT_VOTERS if standalone or initial_controllers else FORMAT),
        options,
        rng=system_random(),
        clock=SystemClock(),
        out=out,
        warn=complain,
    )
    out.close()


def _check_exclusive(standalone: bool, no_initial_controllers: bool, initial_controllers: bool) -> None:
    flags = ("--standalone/-s", standalone), ("--no-initial-controllers/-N", no_initial_controllers)
    given = [name for name, present in (*flags, ("--initial-controllers/-I", initial_controllers)) if present]
    if len(given) > 1:
        raise click.UsageError(f"argument {given[1]}: not allowed with argument {given[0]}")


@click.command(cls=StorageCommand)
def random_uuid() -> None:
    """Print a random UUID."""
    from kjbod.clock import system_random
    from kjbod.ids import random_uuid as draw

    out = Printer(patient=True)
    out(str(draw(system_random())))
    out.close()


@click.command(cls=StorageCommand)
@click.option("-r", "--release-version", help="The release to look up; minimum 3.3-IV3, the latest where not given.")
def version_mapping(release_version: str | None) -> None:
    """Look up the feature levels of a release."""
    from kjbod.storage_tool import print_version_mapping

    out = Printer(patient=True)
    print_version_mapping(release_version, out)
    out.close()


@click.command(cls=StorageCommand)
@click.option("-f", "--feature", multiple=True, required=True, metavar="NAME=LEVEL", help="The feature to look up.")
def feature_dependencies(feature: tuple[str, ...]) -> None:
    """Look up what a feature level needs of other features."""
    from kjbod.storage_tool import print_feature_dependencies

    out = Printer(patient=True)
    print_feature_dependencies(feature, out)
    out.close()
