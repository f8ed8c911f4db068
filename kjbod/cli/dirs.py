"""``kjbod dirs add``: bring a directory in while the agent runs."""

from pathlib import Path

import click

from kjbod.cli import ask
from kjbod.output import Printer, safe


@click.group()
def dirs() -> None:
    """Change the directories of a running agent."""


@dirs.command()
@ask.options
@ask.guarded
@click.argument("path")
def add(config_path: Path, own_path: Path | None, as_json: bool, path: str) -> int:
    """Bring in a replaced, mended or new directory.

    PATH is an entry of log.dirs. It formats nothing: see kjbod format. It prints what was done, or what it waits for.
    """
    config = ask.load(config_path, own_path)
    said = ask.client(config, own_path).call("dirs-add", path=ask.configured(config, path))
    out = Printer()
    if as_json:
        out.json({"path": ask.configured(config, path), "said": said})
    else:
        out(safe(said))
    return 0
