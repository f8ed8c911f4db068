"""``HOST:PORT[,HOST:PORT...]`` as an option of the commands that talk to a cluster."""

import click

from kjbod.config.endpoints import parse_host_port
from kjbod.metadata.fetching import Address


def addresses(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[Address, ...] | None:
    """The callback of such an option.

    Raises:
        click.BadParameter: not an address.
    """
    if text is None:
        return None
    try:
        found = [parse_host_port(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return tuple((one.host, one.port) for one in found)
