"""The option ``--command-config FILE`` of the commands that ask a cluster, as in Kafka's tools."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click


def command_config(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option; the command gets ``client_path``."""
    option = click.option(
        "--command-config",
        "client_path",
        metavar="FILE",
        type=click.Path(path_type=Path, readable=False),
        help="Kafka's client properties: security.protocol, ssl.*, sasl.*.",
    )
    return option(command)
