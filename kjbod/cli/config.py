"""``kjbod config``: the configuration keys that kjbod knows."""

import click

from kjbod.output import Printer


@click.group()
def config() -> None:
    """Look up configuration keys."""


@config.command()
def keys() -> int:
    """Print every key of a server.properties that kjbod reads: type, default, values, meaning.

    As a page in Markdown: kjbod/config/README.md.
    """
    from kjbod.config.page import page

    out = Printer(patient=True)
    out(*page().splitlines())
    out.close()
    return 0
