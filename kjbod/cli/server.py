"""``kjbod server``: run the roles of ``process.roles``, like ``kafka-server-start.sh``. This module joins agent and
controller of a combined node; neither imports the other."""

from collections.abc import Iterable
from pathlib import Path

import click

from kjbod.cli.agent import take_over_option
from kjbod.config import Config, load_config
from kjbod.config.load import BOTH_ROLES, server_problems
from kjbod.config.needs import SERVER_NEEDS


@click.command()
@click.option(
    "-c",
    "--config",
    required=True,
    type=click.Path(path_type=Path, readable=False),
    help="The node's server.properties.",
)
@take_over_option
def server(config: Path, take_over: bool) -> int:
    """Run the roles that process.roles has: broker, controller or both.

    broker is kjbod agent, controller is kjbod controller. With broker,controller, as in Apache Kafka's own
    server.properties, both run in this process: the controller serves before the agent registers, and until after its
    controlled shutdown. Logs go to stderr: for people on a terminal, else as JSON lines; component tells agent and
    controller apart. A node with the role broker refuses log directories that an Apache Kafka broker has used, unless
    --take-over is given or kjbod.agent.take.over=true is set.
    """
    roles = load_config(config, _problems, needs=SERVER_NEEDS).process_roles
    if roles == BOTH_ROLES:
        from kjbod_agent import daemon
        from kjbod_controller_stub.combined import CombinedController

        return daemon.main(config, server_problems, CombinedController, take_over=take_over)
    if "controller" in roles:
        if take_over:
            raise click.UsageError("--take-over is for a node with the role broker")
        from kjbod_controller_stub import process

        return process.main(config)
    from kjbod_agent import daemon

    return daemon.main(config, take_over=take_over)


def _problems(config: Config) -> Iterable[str]:
    """Return all configuration mistakes at once, for any roles."""
    if config.process_roles == {"controller"}:
        return server_problems(config)
    from kjbod_agent.daemon import CHECKS

    return [*server_problems(config), *(problem for check in CHECKS for problem in check(config))]
