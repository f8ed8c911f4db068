"""What users and their tools see of kjbod, as text: ``python -m tests.surface > tests/surface.txt``.

Commands with their options, log events with their fields, metrics, exit codes, and the names in JSON answers. They are
read in the source, so that also what no test brings about is listed. Configuration keys are held to their page by
:mod:`tests.config.test_page`.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import click

from kjbod import errors
from kjbod.cli.main import kjbod

ROOT: Final = Path(__file__).parents[1]
HOMES: Final = ("kjbod", "agent", "controller_stub")
FILE: Final = ROOT / "tests" / "surface.txt"
_EVENT: Final = re.compile(r"[a-z]+(\.[a-z]+)+")
_METRIC: Final = re.compile(r"kjbod_[a-z0-9_]+")
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical"})
JSON_MODULES: Final = (
    "agent/kjbod_agent/admin/commands.py",
    "agent/kjbod_agent/admin/unattended.py",
    "agent/kjbod_agent/history.py",
    "agent/kjbod_guard/account.py",
    "agent/kjbod_guard/answers.py",
    "agent/kjbod_guard/picture.py",
    "agent/kjbod_guard/stray_listing.py",
    "kjbod/cli/log_dirs.py",
    "kjbod/security/certificates.py",
)
"""Modules that make answers of the control socket, and of commands with ``--json``."""


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Each module of the product, by its path."""
    for home in HOMES:
        for path in sorted((ROOT / home).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def commands(command: click.Command = kjbod, name: str = "kjbod") -> Iterator[str]:
    """A line for each command, with its arguments and options."""
    names = [
        "|".join((*one.opts, *one.secondary_opts)) if isinstance(one, click.Option) else str(one.name).upper()
        for one in command.params
    ]
    if not isinstance(command, click.Group) or names:
        yield " ".join((name, *names))
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            for inner in sorted(command.list_commands(context)):
                found = command.get_command(context, inner)
                assert found is not None
                yield from commands(found, f"{name} {inner}")


def events(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Fields of the log events, by name; ``...`` for fields that are named elsewhere."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in modules.values():
        for call in (node for node in ast.walk(module) if isinstance(node, ast.Call)):
            if isinstance(call.func, ast.Attribute) and call.func.attr in _LEVELS and call.args:
                for name in _texts(call.args[0]):
                    if _EVENT.fullmatch(name):
                        found[name] |= {keyword.arg or "..." for keyword in call.keywords}
        for name in _chosen(module):
            found[name].add("...")
    return found


def _chosen(module: ast.Module) -> Iterator[str]:
    """Events that are chosen before they are logged: a name that is called ``event`` is given one."""
    for node in ast.walk(module):
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "event" for to in node.targets):
            yield from (name for name in _texts(node.value) if _EVENT.fullmatch(name))


def _texts(node: ast.AST) -> Iterator[str]:
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def metrics(modules: Mapping[str, ast.Module]) -> set[str]:
    """Names of metrics in the modules of that name, and in the package of that name."""
    return {
        text
        for path, module in modules.items()
        if "metrics" in path and "fleet" not in path
        for text in _texts(module)
        if _METRIC.fullmatch(text)
    }


def names(modules: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Names in JSON answers, by the module that makes them."""
    return {
        path: {
            key.value
            for node in ast.walk(modules[path])
            if isinstance(node, ast.Dict)
            for key in node.keys
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
        for path in JSON_MODULES
    }


def surface() -> str:
    """All of it."""
    modules = dict(sources())
    codes = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    parts: dict[str, Iterable[str]] = {
        "Commands": commands(),
        "Exit codes": (f"{value} {name}" for name, value in sorted(codes.items())),
        "Log events": (" ".join((name, *sorted(fields))) for name, fields in sorted(events(modules).items())),
        "Metrics": sorted(metrics(modules)),
        "JSON": (f"{path}: {' '.join(sorted(found))}" for path, found in names(modules).items()),
    }
    return "\n".join("\n  ".join((title, *lines)) + "\n" for title, lines in parts.items())


if __name__ == "__main__":
    print(surface(), end="")
