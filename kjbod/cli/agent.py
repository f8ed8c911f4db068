"""``kjbod agent``. With ``kjbod.cli.controller`` the only place where the library reaches for an application."""

from pathlib import Path

import click


@click.command()
@click.option(
    "-c",
    "--config",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The broker's server.properties.",
)
def agent(config: Path) -> int:
    """Run the storage half of a JBOD broker.

    It registers the log directories with the controllers, probes them, and reports a failed one (KIP-858). Logs go to
    stderr as JSON lines. SIGTERM stops it with a controlled shutdown.
    """
    from kjbod_agent import daemon

    return daemon.main(config)
