"""The commands ``kjbod fleet``: Spark jobs over the agents' reports. Each command is a module of
:mod:`kjbod.cli.fleet_commands` that is imported on demand."""

import importlib

import click

COMMANDS = {
    "compact": "compact",
    "doctor": "doctor",
    "gen": "gen",
    "import": "imports",
    "ingest": "ingest",
    "publish": "publish",
    "query": "query",
    "report": "report",
    "retain": "retain",
    "rollup": "rollup",
    "verify": "verify",
}
"""Module of each command, which has it as ``command``."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"kjbod.cli.fleet_commands.{COMMANDS[cmd_name]}")
        command = module.command
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_LazyGroup)
def fleet() -> None:
    """Look at the whole fleet (needs PySpark: scripts/setup --fleet of a clone)."""
