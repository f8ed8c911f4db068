"""Option type ``HOST:PORT[,HOST:PORT...]`` of the commands that talk to a cluster."""

from collections.abc import Callable

import click

from kjbod.config.endpoints import parse_server, parse_voter
from kjbod.metadata.fetching import Address


def addresses(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[Address, ...] | None:
    """Parse the addresses of such an option (click callback).

    Raises:
        click.BadParameter: the text has an invalid address.
    """
    return _each(text, _address)


def controllers(ctx: click.Context, param: click.Parameter, text: str | None) -> tuple[Address, ...] | None:
    """Parse addresses like :func:`addresses`, or a list of voters, ``ID@HOST:PORT,...`` (KIP-631)."""
    return _each(text, lambda part: _voter(part) if "@" in part else _address(part))


def _each(text: str | None, parse: Callable[[str], Address]) -> tuple[Address, ...] | None:
    if text is None:
        return None
    try:
        return tuple(parse(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _address(part: str) -> Address:
    found = parse_server(part, port_min=1)
    return found.host, found.port


def _voter(part: str) -> Address:
    found = parse_voter(part)
    return found.host, found.port
