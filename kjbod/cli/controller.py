"""The command ``kjbod controller``. Of the library, only this module, ``kjbod.cli.agent`` and ``kjbod.cli.server``
import an application."""

from pathlib import Path

import click


@click.command()
@click.option(
    "-c",
    "--config",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The controller's server.properties.",
)
def controller(config: Path) -> int:
    """Run a small KRaft controller: a quorum of one.

    For a laptop, a test rig, a small site; real Kafka brokers and tools can use it. Logs go to stderr: for
    people on a terminal, else as JSON lines.
    """
    from kjbod_controller_stub import process

    return process.main(config)
