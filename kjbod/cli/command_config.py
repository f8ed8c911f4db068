"""``--command-config FILE`` of the commands that ask a cluster, as Kafka's tools have it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def command_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """The option; ``client_path`` of the command."""
    option = click.option(
        "--command-config",
        "client_path",
        metavar="FILE",
        type=click.Path(path_type=Path, readable=False),
        help="Kafka's client properties: security.protocol, ssl.*, sasl.*.",
    )
    return option(command)
