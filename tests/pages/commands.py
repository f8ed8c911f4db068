"""Command lines that pages show, taken apart and given to the real parsers: of ``kjbod``, of the scripts, of pytest.

Nothing is run: a parser that is content ends the command there. What remains of a line is its *form*: program,
sub-commands and options, without the values that a reader puts in.
"""

import argparse
import contextlib
import functools
import importlib
import io
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import pytest

from kjbod.cli import main as cli
from tests.pages.markdown import ROOT

_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_SEPARATORS = {"|", "&&", "||", ";", "&"}
_ASSIGNMENT = re.compile(r"[A-Z_][A-Z0-9_]*=")
_PREFIXES = (["sudo", "-u", "kjbod"], ["sudo"], ["runuser", "-u", "kjbod", "--"], ["exec"])
_SCRIPT = re.compile(r"(?:\./|/opt/kjbod/)?(scripts/[\w/-]+)")
_KJBOD = re.compile(r"(?:\S*/bin/)?kjbod")
_OURS = re.compile(r"(sudo )?(\S*/bin/)?(kjbod|(\./)?scripts/\S+) ")
_MODULE = re.compile(r'-m (\S+) "\$@"')
_PASSED_TO_KJBOD = re.compile(r'bin/kjbod" (.*) "\$@"')


class RefusedError(Exception):
    """A parser refuses a command line; the text says why."""


class _ParsedError(BaseException):
    """A parser is content; what would follow is not run."""


def simple_commands(line: str) -> Iterator[list[str]]:
    """Words of each command in a line of shell: pipes, lists and ``$(...)``; without comments and redirections."""
    for inner in _SUBSTITUTION.findall(line):
        yield from simple_commands(inner)
    lexer = shlex.shlex(_SUBSTITUTION.sub("4L6g3nShT-eMCtK--X86sw", line), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for word in lexer:
        if word in _SEPARATORS:
            yield words
            words = []
        elif word in (">", ">>", "<"):
            redirected = True
        elif redirected:
            redirected = False
        else:
            words.append(word)
    if words:
        yield words


def bare(words: Sequence[str]) -> list[str]:
    """Without ``sudo`` and the like, and without assignments in front."""
    left = list(words)
    while left:
        prefix = next((each for each in _PREFIXES if left[: len(each)] == each), None)
        if prefix is None and not _ASSIGNMENT.match(left[0]):
            break
        left = left[len(prefix or [""]) :]
    return left


def assignments(words: Sequence[str]) -> list[str]:
    """Names of environment variables that a command is given."""
    return [word.partition("=")[0] for word in words if _ASSIGNMENT.match(word)]


def form(words: Sequence[str], pytest_config: pytest.Config) -> str:
    """The form of a bare command; of kjbod and of the project's scripts once their parsers have taken it.

    Raises:
        RefusedError: a parser refuses it, or there is no such script.
    """
    program, *arguments = words
    if _KJBOD.fullmatch(program):
        return " ".join(["kjbod", *_kjbod(arguments), *_options(arguments)])
    if script := _SCRIPT.fullmatch(program):
        return " ".join([script[1], *_script(script[1], arguments, pytest_config), *_options(arguments)])
    return " ".join([Path(program).name, *_options(arguments)])


def is_ours(words: Sequence[str]) -> bool:
    """Whether a bare command is kjbod, or a script of the project."""
    return bool(words) and bool(_KJBOD.fullmatch(words[0]) or _SCRIPT.fullmatch(words[0]))


def _options(arguments: Sequence[str]) -> list[str]:
    return [word.partition("=")[0] for word in arguments if re.match(r"--?[A-Za-z]", word)]


def check_mentioned(text: str) -> None:
    """Check a command that a page names within a sentence: perhaps without its arguments, or several at once
    (``kjbod features describe | upgrade``).

    Raises:
        RefusedError: there is no such command, script or option.
    """
    if not _OURS.match(text):
        return
    first, *others = (bare(words) for words in simple_commands(text))
    if script := _SCRIPT.fullmatch(first[0]):
        _check_script(script[1], first[1:])
        return
    group: click.Command = cli.kjbod
    path = [word for word in first[1:] if re.fullmatch(r"[a-z][a-z-]*", word)]
    for number, word in enumerate(path):
        if not isinstance(group, click.Group):
            break
        for alternative in [word, *([each[0] for each in others] if number == len(path) - 1 else [])]:
            if group.get_command(click.Context(group), alternative) is None:
                raise RefusedError(f"there is no {alternative}")
        group = group.get_command(click.Context(group), word) or group
    known = {option for param in group.params for option in (*param.opts, *param.secondary_opts)} | {"-h", "--help"}
    if unknown := set(_options(first[1:])) - known:
        raise RefusedError(f"unknown: {', '.join(sorted(unknown))}")


def _check_script(name: str, arguments: Sequence[str]) -> None:
    path = ROOT / name
    if not path.exists():
        raise RefusedError(f"there is no {name}")
    text = path.read_text() if path.is_file() else ""
    for module in _MODULE.findall(text):
        source = ROOT / module.replace(".", "/")
        text += (source / "__main__.py" if source.is_dir() else source.with_suffix(".py")).read_text()
    if unknown := [option for option in _options(arguments) if not re.search(rf"{option}\b", text)]:
        raise RefusedError(f"unknown: {', '.join(unknown)}")


# ---------------------------------------------------------------- kjbod


def _kjbod(arguments: Sequence[str]) -> list[str]:
    """Names of the sub-commands."""
    path: list[str] = []
    original = click.Command.invoke

    def invoke(self: click.Command, ctx: click.Context) -> Any:
        if ctx.info_name != "kjbod":
            path.append(str(ctx.info_name))
        if isinstance(self, click.Group) and ctx.invoked_subcommand is not None:
            return original(self, ctx)  # it looks at what was given to it and to its sub-command
        if ctx.command.name == "faults":  # a parser of its own
            path.extend(_parsed_by(lambda: original(self, ctx)))
        return 0

    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setattr(click.Command, "invoke", invoke)
        with contextlib.redirect_stdout(io.StringIO()):
            code = cli.run(arguments)
    if code != 0 or errors.getvalue():
        raise RefusedError(errors.getvalue().strip() or f"exit code {code}")
    return path


# ---------------------------------------------------------------- scripts


def _script(name: str, arguments: Sequence[str], pytest_config: pytest.Config) -> list[str]:
    """Names of the sub-commands."""
    path = ROOT / name
    if not path.is_file():
        raise RefusedError(f"there is no {name}")
    text = path.read_text()
    if modules := _MODULE.findall(text):
        return _argparse(modules[-1], arguments)
    if passed := _PASSED_TO_KJBOD.findall(text):
        return _kjbod([*passed[-1].split(), *arguments])[len(passed[-1].split()) :]
    _OWN_PARSERS.get(name, _no_arguments)(text, arguments, pytest_config)
    return []


def _argparse(module: str, arguments: Sequence[str]) -> list[str]:
    """Have the ``ArgumentParser`` of a module take the arguments; gives the names of the sub-commands."""
    main = _main_of(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, *arguments])
        return _parsed_by(main)


def _parsed_by(main: Callable[[], object]) -> list[str]:
    """Run ``main`` until an ``ArgumentParser`` has taken its arguments; gives the names of the sub-commands."""
    parse = argparse.ArgumentParser.parse_args
    found: list[argparse.Namespace] = []

    def parse_args(self: argparse.ArgumentParser, *given: Any) -> NoReturn:
        found.append(parse(self, *given))
        raise _ParsedError

    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(errors):
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                main()
            except _ParsedError:
                names = (getattr(found[0], name, None) for name in ("command", "disk_command"))
                return [name for name in names if name]
            except SystemExit as end:
                if end.code == 0:  # --help
                    return []
    raise RefusedError(errors.getvalue().strip() or "the parser was not asked")


@functools.cache
def _main_of(module: str) -> Callable[[], object]:
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__path__"):
        loaded = importlib.import_module(f"{module}.__main__")
    main: Callable[[], object] = loaded.main
    return main


def _no_arguments(_text: str, arguments: Sequence[str], _config: pytest.Config) -> None:
    if arguments and set(arguments) - {"-h", "--help"}:
        raise RefusedError(f"it takes no arguments, and is given {' '.join(arguments)}")


def _options_of_a_case(text: str, arguments: Sequence[str], _config: pytest.Config) -> None:
    """Options are the branches of a ``case``."""
    known = set(re.findall(r"^\s*(?:\S+ \| )*(--?[a-z-]+)\)", text, re.MULTILINE)) | {"-h", "--help"}
    if unknown := set(arguments) - known:
        raise RefusedError(f"unknown: {', '.join(sorted(unknown))}")


def _steps_of_check(text: str, arguments: Sequence[str], config: pytest.Config) -> None:
    steps, _, for_pytest = " ".join(arguments).partition("-- ")
    known = set(re.findall(r"^step_([a-z]+)\(\)", text, re.MULTILINE))
    if unknown := set(steps.split()) - known:
        raise RefusedError(f"no step {', '.join(sorted(unknown))}")
    _pytest_arguments("", for_pytest.split(), config)


def _pytest_arguments(text: str, arguments: Sequence[str], config: pytest.Config) -> None:
    """What is for the script itself stands in its text; the rest is for pytest, with this run's own options."""
    rest = [word for word in arguments if not re.search(rf"(^|[\s|'\"]){re.escape(word)}[)\s|'\"]", text)]
    options, unknown = config._parser.parse_known_and_unknown_args(rest)
    if unknown:
        raise RefusedError(f"pytest does not know {' '.join(unknown)}")
    for path in options.file_or_dir:
        if not (ROOT / path.partition("::")[0]).exists():
            raise RefusedError(f"there is no {path}")


_OWN_PARSERS: dict[str, Callable[[str, Sequence[str], pytest.Config], None]] = {
    "scripts/setup": _options_of_a_case,
    "scripts/check": _steps_of_check,
    "scripts/test": _pytest_arguments,
}
