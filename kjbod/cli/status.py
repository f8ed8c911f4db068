"""``kjbod status``: how the agent on this host is, on one screen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from kjbod.cli import ask
from kjbod.cli.output import Printer, cells, cut, moment, percent, safe, table, width

ROOM_MIN: Final = 16
"""Columns for a reason; with fewer it says nothing, and kjbod log-dirs has it."""


@click.command()
@ask.options
def status(config_path: Path, as_json: bool) -> int:
    """Tell how the running agent is.

    Its registration, what it is busy with, and each of its directories in a line. Exit code 69 when no agent answers.
    """
    answer = ask.client(ask.load(config_path)).call("status")
    out = Printer()
    if as_json:
        out.json(answer)
    else:
        out(*lines(answer, width()))
    return 0


def lines(answer: dict[str, Any], columns: int | None) -> list[str]:
    """The answer of the operation ``status`` for people, in at most so many columns where it can be cut."""
    facts = [
        ("node", f"{answer['node']} of cluster {safe(answer['cluster_id'])}, kjbod {answer['version']}"),
        ("state", f"{answer['state']}, {'fenced' if answer['fenced'] else 'unfenced'}"),
        ("broker epoch", _epoch(answer["broker_epoch"])),
        ("metadata offset", f"{answer['metadata_offset']}{'' if answer['published'] else ', not yet complete'}"),
        *_history(answer.get("metadata_history")),
        ("assignments", f"{answer['queued_assignments']} queued{_stuck(answer['stuck_assignments'])}"),
        ("replicas", f"{sum(row['replicas'] for row in answer['directories'])}{_creating(answer['creating'])}"),
        ("moves", f"{answer['moves']}{', see kjbod move --list' if answer['moves'] else ''}"),
        ("strays", f"{answer['strays']}{', see kjbod strays' if answer['strays'] else ''}"),
    ]
    wide = max(len(name) for name, _ in facts)
    # An agent that was started before this command was installed does not tell.
    facts[5:5] = [("not made", cut(safe(text), columns and columns - wide - 2)) for text in answer.get("unmade", ())]
    head = [f"{name:<{wide}}  {text}" for name, text in facts]
    body = table(("STATE", "SINCE", ">REPLICAS", ">LEADERS", ">USED", "DIRECTORY"), map(_row, answer["directories"]))
    return [*head, "", body[0], *_with_reasons(body[1:], answer["directories"], columns)]


def _with_reasons(body: list[str], directories: list[dict[str, Any]], columns: int | None) -> Iterator[str]:
    """Behind each path why it is offline, as far as the line has room."""
    for line, row in zip(body, directories, strict=True):
        room = None if columns is None else columns - cells(line) - 2
        why = safe(row["error"] or "").removeprefix(safe(row["path"])).removeprefix(" failed").removeprefix(": ")
        yield line if not why or (room is not None and room < ROOM_MIN) else f"{line}  {cut(why, room)}"


def _epoch(epoch: int) -> str:
    return "none: not registered yet" if epoch < 0 else str(epoch)


def _history(told: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """What happened to the metadata's history while the agent ran."""
    if told is None:
        return
    if (lost := told["lost"]) is not None:
        yield (
            "metadata",
            f"LOST OR SET BACK at {moment(lost['since_ms'])}, {lost['kept']} replicas kept as strays: "
            f"offset {lost['applied_offset']} was applied, {safe(lost['reason'])}",
        )
    if told["behind"] is not None:
        yield "metadata", f"NOT FOLLOWED: {safe(told['behind'])}; if it was set back for good, restart the agent"


def _stuck(count: int) -> str:
    return f", {count} of them stuck: the agent's log names them" if count else ""


def _creating(count: int) -> str:
    return f", and {count} to create" if count else ""


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    total, usable = row["total_bytes"], row["usable_bytes"]
    used = "?" if total is None or usable is None else percent(total - usable, total)
    return (
        f"{row['verdict']}{' cordoned' if row['cordoned'] else ''}",
        moment(row["since_ms"]),
        str(row["replicas"]),
        str(row["leaders"]),
        used,
        safe(row["path"]),
    )
