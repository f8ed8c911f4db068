"""``kjbod strays``: list, remove and restore replicas in a log directory that the metadata does not assign to it.

A running agent or guard answers. Without one, separate processes that can be abandoned read the disks
(:mod:`kjbod_agent.admin.unattended`). Then only a confirmation and the directories' locks protect the files: the
command removes exactly what it has shown. On the host of a Kafka broker strays are only listed.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from kjbod.cli import ask
from kjbod.config import Config
from kjbod.config.needs import LISTING
from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.output import Printer, complain, moment, plural, safe, size
from kjbod.runtime.control_socket import ControlClient, NoAgentError

STRAYS_PER_REQUEST: Final = 10
"""Maximum strays in a request, whose size is limited: names and paths have at most 255 and 4096 bytes."""
FROM_DISKS: Final = "no {name} answers: the list shows the directories that end in -stray on the disks now"


class StrayError(KjbodError):
    """No such stray, several with that name, or only listing is allowed on this host."""


@click.group(invoke_without_command=True)
@click.option(
    "-c",
    "--config",
    "config_path",
    type=click.Path(path_type=Path, readable=False),
    help="The broker's server.properties.",
)
@click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")
@ask.guarded
@click.pass_context
def strays(context: click.Context, config_path: Path | None, own_path: Path | None, as_json: bool) -> int | None:
    """List, remove or restore stray replicas.

    Strays are kept until a person decides. On the host of a Kafka broker, which a guard watches, strays are only
    listed.

    \b
    kjbod strays -c FILE [--guard-config FILE]
    kjbod strays remove -c FILE NAME...
    kjbod strays restore -c FILE NAME
    """
    if context.invoked_subcommand is not None:
        if config_path is not None or own_path is not None or as_json:
            raise click.UsageError(f"options come after the command: kjbod strays {context.invoked_subcommand} -c FILE")
        return None
    if config_path is None:
        raise click.UsageError("Missing option '-c' / '--config'.")
    found, unreadable, role = _find(ask.load(config_path, own_path, LISTING), own_path)
    out = Printer()
    if as_json:
        out.json({"agent": role is not None, "strays": found, "unreadable": unreadable})
    elif found:
        out(*lines(found))
    else:
        out(_none(unreadable))
    for reason in unreadable.values():
        complain(safe(reason))
    return EXIT_FAILURE if unreadable else 0


@strays.command()
@ask.options
@ask.guarded
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that the list shows.")
@click.option("--yes", is_flag=True, help="Ask nothing.")
def remove(
    config_path: Path, own_path: Path | None, as_json: bool, names: tuple[str, ...], everything: bool, yes: bool
) -> int:
    """Remove strays and all their data, after a question.

    NAME is as in the list, or the path of the directory and the name. On the host of a Kafka broker, which a guard
    watches, the command refuses and names the tool to use instead.
    """
    if bool(names) == everything:
        raise click.UsageError("NAME... is missing: the strays to remove, or --all")
    if as_json and not yes:
        raise click.UsageError("--json asks no questions: it needs --yes")
    return _change(ask.load(config_path, own_path, LISTING), own_path, "remove", names, as_json, yes)


@strays.command()
@ask.options
@ask.guarded
@click.argument("name")
def restore(config_path: Path, own_path: Path | None, as_json: bool, name: str) -> int:
    """Give a stray its replica's name back.

    The agent uses the replica where the metadata assign a replica of the topic to this broker. On the host of a Kafka
    broker, which a guard watches, the command refuses and names the tool to use instead.
    """
    return _change(ask.load(config_path, own_path, LISTING), own_path, "restore", (name,), as_json, True)


def lines(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return strays as text: the long name on its own line, and details below it."""
    shown = []
    for stray in found:
        since = "" if stray["since_ms"] is None else f", since {moment(stray['since_ms'])}"
        shown.append(safe(stray["name"]))
        shown.append(
            f"  {size(stray['size'])}, {safe(stray['topic'])}-{stray['partition']}, in {safe(stray['directory'])}"
        )
        shown.append(f"  topic id {safe(stray['topic_id'] or 'unknown')}{since}")
        if stray["reason"]:
            shown.append(f"  {safe(stray['reason'])}")
    return shown


def choose(found: Sequence[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the strays with these names; all if no name is given.

    Raises:
        StrayError: one line for each name that does not exist, or is in two directories.
    """
    if not names:
        return list(found)
    chosen, problems = [], []
    for name in dict.fromkeys(names):
        matching = [s for s in found if name in _names(s)] or [s for s in found if name in map(safe, _names(s))]
        if not matching:
            problems.append(f"there is no stray {safe(name)}: see kjbod strays")
        elif len(matching) > 1:
            where = " and ".join(safe(s["directory"]) for s in matching)
            problems.append(f"{safe(name)} is in {where}: write the directory and the name")
        chosen.extend(matching)
    if problems:
        raise StrayError("\n".join(problems))
    return chosen


def _names(stray: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of a stray that a user may type, including the printed form of a name that is not text."""
    return stray["name"], f"{stray['directory'].rstrip('/')}/{stray['name']}"


def _find(config: Config, own_path: Path | None) -> tuple[list[dict[str, Any]], dict[str, str], str | None]:
    """Return the strays, the reasons for unreadable directories, and the answering process: ``agent``, ``guard``, or
    None."""
    found: list[dict[str, Any]] = []
    unread: dict[str, str] = {}
    role = "agent"
    try:
        for part in ask.client(config, own_path).stream("strays"):
            if isinstance(part, dict):
                unread |= part["unread"]
                role = part.get("role", role)
            else:
                found.extend(part)
        return found, unread, role
    except NoAgentError:
        from kjbod_agent.admin.unattended import survey

        complain(FROM_DISKS.format(name="agent or guard" if own_path is None else "guard"))
        seen = survey(config)
    return [stray.row() for stray in seen.strays], dict(seen.unreadable), None


def _refuse_beside_kafka(what: str) -> NoReturn:
    from kjbod_guard.instead import refusal

    raise StrayError(refusal(f"strays-{what}"))


def _change(config: Config, own_path: Path | None, what: str, names: Sequence[str], as_json: bool, yes: bool) -> int:
    if own_path is not None:
        _refuse_beside_kafka(what)
    found, unreadable, role = _find(config, own_path)
    if role == "guard":
        _refuse_beside_kafka(what)
    for reason in unreadable.values():
        complain(safe(reason))
    chosen = choose(found, names)
    out = Printer()
    if not chosen:
        out(_none(unreadable))
        return EXIT_FAILURE if unreadable else 0
    if not yes and not _agreed(chosen, out):
        return EXIT_FAILURE
    by_hand = role is None
    outcomes = _by_hand(config, what, chosen) if by_hand else _by_agent(ask.client(config), what, chosen)
    failed = _tell(outcomes, f"{what}d", out, as_json)
    # Named strays are complete; "all" is not, if a directory could not be read.
    return EXIT_FAILURE if failed or (unreadable and not names) else 0


def _none(unreadable: Mapping[str, str]) -> str:
    return "no strays in the other directories" if unreadable else "no strays"


def _agreed(chosen: Sequence[Mapping[str, Any]], out: Printer) -> bool:
    out(*lines(chosen))
    total = sum(stray["size"] or 0 for stray in chosen)
    try:
        agreed = click.confirm(f"Remove {plural(len(chosen), 'stray')}, {size(total)}, for ever?")
    except click.Abort:  # end of a standard input that is not a terminal
        out("")
        agreed = False
    if not agreed:
        complain("nothing was removed")
    return agreed


def _by_agent(client: ControlClient, what: str, chosen: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    for start in range(0, len(chosen), STRAYS_PER_REQUEST):
        piece = [[stray["directory"], stray["name"]] for stray in chosen[start : start + STRAYS_PER_REQUEST]]
        yield from client.stream(f"strays-{what}", strays=piece)


def _by_hand(config: Config, what: str, chosen: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    from kjbod_agent.admin import unattended

    shown = [unattended.FoundStray.of(row) for row in chosen]
    results = (unattended.remove if what == "remove" else unattended.restore)(config, shown)
    for stray, error in results.items():
        yield {"name": stray.name, "directory": stray.directory, "note": None, "error": error}


def _tell(outcomes: Iterable[dict[str, Any]], done: str, out: Printer, as_json: bool) -> bool:
    """Print the outcome of each stray as it is known, and return whether any failed."""
    told = []
    for outcome in outcomes:
        told.append(outcome)
        name = safe(f"{outcome['directory'].rstrip('/')}/{outcome['name']}")
        if outcome["error"] is not None:
            error = safe(outcome["error"])
            complain(error if name in error else f"{name} was not {done}: {error}")
        elif not as_json:
            out(safe(outcome["note"] or f"{done} {name}"))
    if as_json:
        out.json(told)
    return any(outcome["error"] is not None for outcome in told)
