"""The command ``kjbod agent``. Of the library, only this module, ``kjbod.cli.controller`` and ``kjbod.cli.server``
import an application."""

from pathlib import Path

import click

take_over_option = click.option(
    "--take-over",
    is_flag=True,
    help="Replace Kafka: use log directories that an Apache Kafka broker has used (kjbod.agent.take.over).",
)


@click.command()
@click.option(
    "-c",
    "--config",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The broker's server.properties.",
)
@take_over_option
def agent(config: Path, take_over: bool) -> int:
    """Run the storage half of a JBOD broker.

    It registers the log directories with the controllers, probes them, and reports a failed one (KIP-858). Logs go to
    stderr: for people on a terminal, else as JSON lines. SIGTERM stops it with a controlled shutdown. It refuses log
    directories that an Apache Kafka broker has used, unless --take-over is given or kjbod.agent.take.over=true is set.
    """
    from kjbod_agent import daemon

    return daemon.main(config, take_over=take_over)
