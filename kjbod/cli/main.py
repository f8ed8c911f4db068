"""The command ``kjbod``.

Sub-commands import their code when they run. So the command line starts in a tenth of a second, and a broker host needs
neither the controller nor Spark.
"""

import importlib
import sys
from collections.abc import Sequence

import click

from kjbod import __version__
from kjbod.error_lines import report, report_bug, report_usage, say
from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.runtime.descriptors import keep_standard_descriptors

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
_HELP = frozenset(("-h", "--help", "--version"))

_COMMANDS = {
    "agent": "kjbod.cli.agent",
    "cluster": "kjbod.cli.cluster",
    "config": "kjbod.cli.config",
    "controller": "kjbod.cli.controller",
    "dirs": "kjbod.cli.dirs",
    "faults": "kjbod.cli.faults",
    "feature-dependencies": "kjbod.cli.storage",
    "features": "kjbod.cli.features",
    "fleet": "kjbod.cli.fleet",
    "format": "kjbod.cli.storage",
    "guard": "kjbod.cli.guard",
    "info": "kjbod.cli.storage",
    "log-dirs": "kjbod.cli.log_dirs",
    "metadata": "kjbod.cli.metadata",
    "move": "kjbod.cli.move",
    "random-uuid": "kjbod.cli.storage",
    "server": "kjbod.cli.server",
    "status": "kjbod.cli.status",
    "strays": "kjbod.cli.strays",
    "top": "kjbod.cli.top",
    "version-mapping": "kjbod.cli.storage",
}


class _LazyGroup(click.Group):
    """Command group that imports a command on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="kjbod", message="%(prog)s %(version)s")
def kjbod() -> None:
    """KIP-858 for real hosts: disk failure of JBOD brokers in KRaft clusters."""


def run(arguments: Sequence[str]) -> int:
    """Run the command line ``arguments``, and return the exit code."""
    try:
        result = kjbod.main(args=list(arguments), prog_name="kjbod", standalone_mode=False)
    except click.Abort:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001  the last line of defence: a person reads one line, not a traceback
        return _refused_check(error, arguments) if _is_check(arguments) else _report(error, arguments)
    return result if isinstance(result, int) else 0


def _report(error: Exception, arguments: Sequence[str]) -> int:
    match error:
        case click.UsageError():
            return report_usage(error)
        case click.ClickException():
            say(f"kjbod: {error.format_message()}")
            return error.exit_code
        case KjbodError():
            return report(error)
        case OSError() if not _HELP.isdisjoint(arguments):  # click prints nothing but the help in this case
            say(f"kjbod: the output is not complete: standard output: {error.strerror}")
            return EXIT_FAILURE
    return report_bug(error)


def _is_check(arguments: Sequence[str]) -> bool:
    """Return whether the command line is ``status --check`` or ``guard status --check``, perhaps with a typing error in
    other arguments. Monitoring reads the exit codes 1 and 2 of these commands as levels."""
    if "--check" not in arguments:
        return False
    return tuple(arguments[:2]) == ("guard", "status") or arguments[0] == "status" or arguments[0] not in _COMMANDS


def _refused_check(error: Exception, arguments: Sequence[str]) -> int:
    from kjbod.cli.status import unknown

    return unknown(error, as_json="--json" in arguments)


def main() -> None:
    """Run the ``kjbod`` script. Cron and daemons may start it with closed descriptors."""
    keep_standard_descriptors()
    sys.stdin, sys.stdout, sys.stderr = (
        stream or open(fd, mode, closefd=False)  # noqa: SIM115  they stay open
        for fd, (stream, mode) in enumerate(((sys.stdin, "r"), (sys.stdout, "w"), (sys.stderr, "w")))
    )
    sys.exit(run(sys.argv[1:]))
