"""``kjbod status``: show the state of the agent or guard on this host on one screen; with ``--check`` in one line.

The agent or guard decides on the first line and the level (:mod:`kjbod_agent.condition`). Exit codes of ``--check`` are
those of Nagios plug-ins:

====  ========  ======================================================================================================
0     OK        the broker serves, its controller answers, all directories are online
1     DEGRADED  it serves, and somebody should look
2     CRITICAL  it serves nothing: fenced, no directory, or no agent or guard answers (69 without ``--check``)
3     UNKNOWN   it cannot be asked: the configuration cannot be used (78 without ``--check``), no permission, another
                node's agent, wrong arguments (2 without ``--check``)
====  ========  ======================================================================================================
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from kjbod.cli import ask, broker_files, status_lead
from kjbod.error_lines import in_one_line
from kjbod.errors import KjbodError
from kjbod.ids import NO_CLUSTER_ID
from kjbod.output import (
    UNKNOWN,
    OutputError,
    Printer,
    cells,
    colours,
    complain,
    cut,
    duration,
    moment,
    percent,
    plural,
    safe,
    size,
    table,
    width,
)
from kjbod.runtime.control_socket import EXIT_NO_AGENT

ROOM_MIN: Final = 16
"""Minimum columns for a reason. With fewer the line has no reason; kjbod log-dirs shows it."""
REFUSED_MAX: Final = 5
"""Maximum refused partitions with a line of their own."""
_NAME_COLUMNS: Final = len("metadata offset")

EXIT_CRITICAL: Final = 2
EXIT_UNKNOWN: Final = 3


@click.command()
@broker_files.options
@ask.as_json
@click.option("--check", is_flag=True, help="One line, and the exit code: 0 OK, 1 DEGRADED, 2 CRITICAL, 3 UNKNOWN.")
def status(config_path: Path, own_path: Path | None, as_json: bool, check: bool) -> int:
    """Show the state of the running agent or guard.

    One line with the condition, the registration, the work in progress, and a line for each directory. Exit code 69
    when no agent or guard answers; with --check, for monitoring, 2.
    """
    if check:
        return _check(config_path, own_path, as_json)
    answer = ask.client(ask.load(config_path, own_path), own_path).call("status")
    out = Printer()
    if as_json:
        out.json(answer)
    elif answer.get("role") == "guard":
        out(*guard_lines(answer, width(), options=broker_files.typed(), colour=colours()))
    else:
        out(*lines(answer, width()))
    return 0


def _check(config_path: Path, own_path: Path | None, as_json: bool) -> int:
    """Print one line, and return the exit code.

    Raises:
        KjbodError: the process cannot be asked. That is UNKNOWN, like every early end of a check (:func:`unknown`).
    """
    try:
        answer = ask.client(ask.load(config_path, own_path), own_path).call("status")
    except KjbodError as error:
        if error.exit_code != EXIT_NO_AGENT:
            raise
        return _tell(EXIT_CRITICAL, f"CRITICAL: {safe(in_one_line(error))}", None, as_json)
    return _tell(int(answer["condition"]["code"]), safe(answer["condition"]["text"]), answer, as_json)


def unknown(error: Exception, as_json: bool) -> int:
    """Print the line of a check that cannot be made, and return the exit code."""
    return _tell(EXIT_UNKNOWN, f"UNKNOWN: {safe(in_one_line(error))}", None, as_json)


def _tell(code: int, text: str, answer: dict[str, Any] | None, as_json: bool) -> int:
    """Print one line to standard output. The exit code stays correct even if writing fails."""
    out = Printer(patient=True)
    if as_json:
        out.json({"code": code, "text": text, "status": answer})
    else:
        out(text)
    try:
        out.close()
    except OutputError as error:
        complain(error.format_message())
    return code


def lines(answer: dict[str, Any], columns: int | None) -> list[str]:
    """Return the answer of the operation ``status`` as text, at most ``columns`` wide where lines can be cut."""
    facts = [
        (
            "node",
            f"{answer['node']} of cluster {safe(answer['cluster_id']) or NO_CLUSTER_ID}, kjbod {answer['version']}",
        ),
        ("state", f"{answer['state']}, {_fenced(answer['fenced'])}"),
        ("controller", _controller(answer["controller"])),
        *_own_controller(answer.get("own_controller")),
        ("broker epoch", _epoch(answer["broker_epoch"])),
        ("metadata offset", f"{answer['metadata_offset']}{'' if answer['published'] else ', not yet complete'}"),
        *_history(answer.get("metadata_history")),
        *((name, cut(text, columns and columns - _NAME_COLUMNS - 2)) for name, text in _certificates(answer)),
        *([("placement", safe(answer["admission"]))] if answer.get("admission") else []),
        ("assignments", f"{answer['queued_assignments']} queued{_stuck(answer['stuck_assignments'])}"),
        # An agent older than this command does not report it.
        *(("not made", cut(safe(text), columns and columns - _NAME_COLUMNS - 2)) for text in answer.get("unmade", ())),
        *(_held(answer) if answer["published"] else [("replicas", "not known yet: the metadata are being read")]),
        *_processes(answer),
    ]
    head = [f"{name:<{_NAME_COLUMNS}}  {text}" for name, text in facts]
    rows = [_row(row, answer["published"]) for row in answer["directories"]]
    body = table(("STATE", "SINCE", ">REPLICAS", ">LEADERS", ">USED", "DIRECTORY"), rows)
    return [
        safe(answer["condition"]["text"]),
        *head,
        "",
        body[0],
        *_with_reasons(body[1:], answer["directories"], columns),
    ]


def guard_lines(answer: dict[str, Any], columns: int | None, *, options: str = "", colour: bool = False) -> list[str]:
    """Return a guard's answer as text, at most ``columns`` wide where lines can be cut. ``options`` and ``colour`` as
    in :func:`.status_lead.lead`."""
    broker, epoch = answer["broker"], answer["broker_epoch"]
    registered = "not known" if epoch is None else f"epoch {epoch}, {_fenced(answer['fenced'])}"
    followed = f"followed to offset {answer['metadata_offset']}"
    missing = answer["metadata_missing"]
    facts = [
        ("guard", f"of node {answer['node']}, mode {answer['mode']}, kjbod {answer['version']}"),
        ("cluster", safe(answer["cluster_id"] or "not known")),
        ("broker", f"process {broker['pid']}" if broker["unbound"] is None else safe(broker["unbound"])),
        *_acts(answer),
        ("registration", registered),
        ("controller", safe(answer["controller"] or "none is known")),
        ("metadata", followed if missing is None else f"NOT FOLLOWED: {safe(missing)}"),
        *_certificates(answer),
        *((("guard's own" if name == "agent" else name), told) for name, told in _processes(answer)),
    ]
    head = [f"{name:<{_NAME_COLUMNS}}  {cut(text, columns and columns - _NAME_COLUMNS - 2)}" for name, text in facts]
    rows = [_guard_row(row) for row in answer["directories"]]
    body = table(("STATE", "SINCE", ">LED", ">FOLLOWED", "KAFKA", "WOULD", "DIRECTORY"), rows)
    before = status_lead.lead(answer, options, columns, colour=colour)
    verdict = safe(answer["condition"]["text"])
    if before and columns is not None:  # each reason follows on its own line
        verdict = cut(verdict, min(columns, status_lead.COLUMNS_MAX))
    found = [status_lead.coloured(verdict) if colour else verdict, *before, *([""] if before else [])]
    found += [*head, "", body[0]]
    for line, row in zip(body[1:], answer["directories"], strict=True):
        found.append(line)
        found.extend(cut(f"  {text}", columns) for text in _guard_details(row))
    return found


def _acts(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of an acting guard: the broker's state, pending restores, refusals of the controllers, and other
    brokers that may lose a directory."""
    broker = answer["broker"]
    if broker.get("state") is not None:
        yield "stage", safe(broker["state"] + (f": {broker['reason']}" if broker["reason"] else ""))
    for name, when in (("evicted", "restored when the disk is back"), ("demoted", "led again when the disk is quick")):
        if count := answer.get(name):
            yield name, f"{plural(count, 'partition')}, {when}"
    refused = answer.get("refused") or []
    for row in refused[:REFUSED_MAX]:
        next_step = "left to you" if row["left"] else "the guard tries again"
        since = moment(row["since_ms"])
        yield (
            "refused",
            safe(f"{row['means']} of {row['topic']}-{row['partition']} since {since}: {row['reason']}; {next_step}"),
        )
    if (more := len(refused) - REFUSED_MAX) > 0:
        yield "refused", f"{plural(more, 'more partition')}: kjbod status --json lists all"
    if suspects := answer.get("suspects"):
        brokers = ", ".join(map(str, suspects))
        yield "suspects", f"the guards of brokers {brokers} suspect a directory: their replicas do not count as copies"


def _guard_row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["verdict"],
        moment(row["since_ms"]) if row["since_ms"] is not None else "?",
        "?" if row["leaders"] is None else str(row["leaders"]),
        "?" if row["followed"] is None else str(row["followed"]),
        row["kafka"],
        "-" if row["would"] in (None, "nothing") else row["would"],
        safe(row["path"]),
    )


def _guard_details(row: dict[str, Any]) -> Iterator[str]:
    """Yield the lines below a directory: id, disk, and the reason why it is not online."""
    serial = f", serial {safe(row['serial'])}" if row["serial"] else ""
    yield f"{safe(row['directory_id'] or 'directory.id unknown')}, {safe(row['device'] or 'device unknown')}{serial}"
    if row["error"]:
        yield safe(row["error"])
    if row.get("step") not in (None, "well") or row.get("step_reason"):
        yield safe(f"stage: {row['step']}{f': {reason}' if (reason := row['step_reason']) else ''}")
    elif row["would"] == "wait":
        yield safe(f"waits: {row['would_reason']}")


def _held(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("replicas", f"{sum(row['replicas'] for row in answer['directories'])}{_creating(answer['creating'])}"),
        ("moves", f"{answer['moves']}{', see kjbod move --list' if answer['moves'] else ''}"),
        ("strays", f"{answer['strays']}{', see kjbod strays' if answer['strays'] else ''}"),
    ]


def _processes(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the resource usage of the agent, its workers and its other processes."""
    told = answer.get("processes")
    if told is None:  # the agent is older than this command, or has no free descriptor
        return
    own, most = told["own"], told["descriptors_max"]
    memory = own["rss_bytes"] if own["pss_bytes"] is None else own["pss_bytes"]
    cpu = "" if own["cpu_percent"] is None else f", {own['cpu_percent']:.1f} % CPU"
    yield "agent", f"{size(memory)}{cpu}, {own['descriptors']} descriptors{'' if most is None else f' of {most}'}"
    if beside := [text for text in (_together("worker", told), _together("helper", told)) if text]:
        yield "processes", ", ".join(beside)


def _together(name: str, told: dict[str, Any]) -> str:
    use = told[f"{name}s"]
    if not use["processes"]:
        return ""
    silent = f" ({use['unmeasured']} without an answer)" if use["unmeasured"] else ""
    return f"{plural(use['processes'], name)} {size(use['pss_bytes'])}{silent}"


def _with_reasons(body: list[str], directories: list[dict[str, Any]], columns: int | None) -> Iterator[str]:
    """Append the reason why it is offline to each path, as far as the line has free columns."""
    for line, row in zip(body, directories, strict=True):
        room = None if columns is None else columns - cells(line) - 2
        why = safe(row["error"] or "").removeprefix(safe(row["path"])).removeprefix(" failed").removeprefix(": ")
        yield line if not why or (room is not None and room < ROOM_MIN) else f"{line}  {cut(why, room)}"


def _fenced(fenced: bool | None) -> str:
    if fenced is None:
        return "whether it is fenced or unfenced is not known"
    return "fenced" if fenced else "unfenced"


def _controller(contact: dict[str, Any]) -> str:
    """Return the controller's address, and the time since its last successful answer."""
    where = safe(contact["address"] or "none is known")
    if contact["last_answer_ms"] is None:
        return f"{where}, has accepted nothing yet"
    return f"{where}, last answer {duration(contact['silent_ms'] / 1000)} ago"


def _own_controller(told: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield a line for the controller of a combined node, which runs in the agent's process."""
    if told is None:
        return
    fenced, offline = told["fenced_brokers"], told["offline_partitions"]
    yield (
        "own controller",
        f"active in epoch {told['epoch']}, metadata to offset {told['end_offset']}, "
        f"{plural(told['brokers'], 'broker')}{f' ({fenced} fenced)' if fenced else ''}, "
        f"{plural(told['topics'], 'topic')}, {plural(told['partitions'], 'partition')}"
        f"{f' ({offline} without a leader)' if offline else ''}",
    )


def _epoch(epoch: int) -> str:
    return "none: not registered yet" if epoch < 0 else str(epoch)


def _kept(replicas: int | None) -> str:
    return "replicas that are missing" if replicas is None else f"{replicas} replicas"


def _history(told: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Yield lines about changes of the metadata's history while the agent ran."""
    if told is None:
        return
    if (lost := told["lost"]) is not None:
        yield (
            "metadata",
            f"LOST OR SET BACK at {moment(lost['since_ms'])}, {_kept(lost['kept'])} kept as strays: "
            f"offset {lost['applied_offset']} was applied, {safe(lost['reason'])}",
        )
    if told["behind"] is not None:
        yield "metadata", f"NOT FOLLOWED: {safe(told['behind'])}; if it was set back for good, restart the agent"


def _certificates(answer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a line for each certificate; an older daemon reports none."""
    for row in answer.get("certificates", ()):
        end = "" if row["not_after_ms"] is None else f"valid until {moment(row['not_after_ms'])}, "
        yield "certificate", safe(f"{end}{row['path'] or row['key']} ({', '.join(row['uses'])})")


def _stuck(count: int) -> str:
    return f", {count} of them stuck: the agent's log names them" if count else ""


def _creating(count: int) -> str:
    return f", and {count} to create" if count else ""


def _row(row: dict[str, Any], published: bool) -> tuple[str, ...]:
    unknown = not published or row["directory_id"] is None
    total, usable, apart = row["total_bytes"], row["usable_bytes"], row["role"] == "metadata"
    used = "?" if total is None or usable is None else percent(total - usable, total)
    return (
        f"{row['verdict']}{' cordoned' if row['cordoned'] else ''}",
        moment(row["since_ms"]),
        "-" if apart else UNKNOWN if unknown else str(row["replicas"]),
        "-" if apart else UNKNOWN if unknown else str(row["leaders"]),
        used,
        f"{safe(row['path'])}{' (metadata.log.dir)' if apart else ''}",
    )
