"""``kjbod log-dirs``: path, directory id, disk and health of each log directory, which Kafka does not show together.

The facts about an offline directory are remembered: by the agent or guard, or, while neither runs, in the file
``known_directories.json`` in ``kjbod.state.dir``. In that case no log directory is read: its disk may hang.
"""

from pathlib import Path
from typing import Any

import click

from kjbod.cli import ask, broker_files
from kjbod.config import Config
from kjbod.config.needs import LISTING
from kjbod.output import Printer, complain, moment, percent, plural, safe, size, table
from kjbod.runtime.control_socket import NoAgentError


@click.command("log-dirs")
@broker_files.options
@ask.as_json
@click.option("--replicas", is_flag=True, help="Each replica too: size, lag, and whether it leads or is on its way.")
def log_dirs(config_path: Path, own_path: Path | None, as_json: bool, replicas: bool) -> int:
    """Show each log directory.

    Path, directory.id, disk, state, space and replicas, also of directories that are offline. Without a running agent
    or guard the command shows the facts in kjbod.state.dir, and touches no disk.
    """
    config = ask.load(config_path, own_path, LISTING)
    out = Printer()
    try:
        found, running = gather(ask.client(config, own_path).stream("log-dirs", replicas=replicas)), True
    except NoAgentError as error:
        complain(str(error))
        complain("what follows is from memory; no disk was asked")
        found, running = remembered(config), False
    if as_json:
        out.json({"agent": running, "directories": found})
        return 0
    for number, directory in enumerate(found):
        out(*([""] if number else []), *block(directory))
        if replicas and running:
            out(*replica_lines(directory["replica_list"]))
    return 0


def gather(parts: Any) -> list[dict[str, Any]]:
    """Return the directories from the parts of the answer, each with its ``replica_list``, which is empty unless
    requested."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        if "directory" in part:
            found[part["directory"]["path"]] = part["directory"] | {"replica_list": []}
        else:
            found[part["path"]]["replica_list"].extend(part["replicas"])
    return list(found.values())


def remembered(config: Config) -> list[dict[str, Any]]:
    """Return the configured directories, including a separate ``metadata.log.dir``, with the ids that an agent or guard
    last saw."""
    from kjbod_agent.admin.unattended import known_directories

    known = known_directories(config)
    found = []
    configured = dict.fromkeys((*config.log_dirs, config.metadata_log_dir))
    for path in dict.fromkeys((*configured, *known)):
        last = known.get(path)
        found.append(
            {
                "path": path,
                "directory_id": None if last is None else str(last.directory_id),
                "configured": path in configured,
                "role": "metadata" if path in configured and path not in config.log_dirs else "log",
                "device": None if last is None else last.device,
                "serial": None if last is None else last.serial,
                "seen_ms": None if last is None else last.seen_ms,
                "remembered": True,
            }
        )
    return found


def block(directory: dict[str, Any]) -> list[str]:
    """Return the lines of a directory, a fact per line."""
    facts = _facts(directory) if "verdict" in directory else _remembered_facts(directory)
    if directory["role"] == "metadata":
        facts = [fact for fact in facts if fact[0] != "holds"] + [
            ("holds", "the metadata log alone (metadata.log.dir)")
        ]
    return [safe(directory["path"]), *(f"  {name:<12}  {text}" for name, text in facts)]


def _remembered_facts(directory: dict[str, Any]) -> list[tuple[str, str]]:
    configured = "" if directory["configured"] else ", and it is not in log.dirs"
    seen = "" if directory["seen_ms"] is None else f", last seen {moment(directory['seen_ms'])}"
    facts = [
        ("state", f"unknown: no answer{configured}"),
        ("directory.id", f"{safe(directory['directory_id'] or 'never seen')}{seen}"),
    ]
    return [*facts, ("device", _device(directory))] if directory["device"] or directory["serial"] else facts


def _facts(directory: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("state", _state(directory)),
        *([("reason", safe(directory["error"]))] if directory["error"] else []),
        ("directory.id", safe(directory["directory_id"] or "unknown")),
        ("device", _device(directory)),
        ("file system", f"{safe(directory['file_system'] or 'unknown')}, {_space(directory)}"),
        ("holds", _holds(directory)),
        *_beside_kafka(directory),
    ]


def _beside_kafka(directory: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of a guard: the broker's own view, and the action that the guard would take."""
    if "kafka" not in directory:
        return []
    facts = [("for Kafka", directory["kafka"])]
    if directory["would"] not in (None, "nothing"):
        facts.append(("would", f"{directory['would']}: {safe(directory['would_reason'] or '')}"))
    return facts


def _holds(directory: dict[str, Any]) -> str:
    """Describe the content of an unreadable directory, from the metadata and from earlier reads."""
    if directory["directory_id"] is None or directory["replicas"] is None:
        return "unknown"
    replicas = plural(directory["replicas"], "replica")
    leaders = plural(directory["leaders"], "leader")
    future = f", {directory['future']} on the way here" if directory["future"] else ""
    return f"{replicas}, {leaders}{future}{'' if directory['online'] else ', as far as is known'}"


def _state(directory: dict[str, Any]) -> str:
    since = f" since {moment(directory['since_ms'])}" if directory["since_ms"] is not None else ""
    cordoned = ", cordoned" if directory["cordoned"] else ""
    told = directory["cause"] in (None, "none", directory["verdict"])
    cause = "" if told else f" ({safe(directory['cause'])})"
    return f"{directory['verdict']}{cause}{since}{cordoned}"


def _device(directory: dict[str, Any]) -> str:
    parts = [safe(directory["device"] or "unknown")]
    parts.extend(f"{name} {safe(directory[name])}" for name in ("model", "serial") if directory.get(name))
    return ", ".join(parts)


def _space(directory: dict[str, Any]) -> str:
    total, usable = directory["total_bytes"], directory["usable_bytes"]
    if total is None or usable is None:
        return "size unknown"
    last = "" if directory["online"] else " when last seen"
    return f"{size(total)}, {size(usable)} free ({percent(total - usable, total)} used){last}"


def replica_lines(replicas: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of a directory's replicas."""
    if not replicas:
        return []
    rows = [
        (
            size(replica["size"]),
            "?" if replica["lag"] is None else str(replica["lag"]),
            "future" if replica["future"] else "leader" if replica["leader"] else "follower",
            safe(f"{replica['topic']}-{replica['partition']}"),
        )
        for replica in replicas
    ]
    return table((">SIZE", ">LAG", "ROLE", "REPLICA"), rows, indent="  ")
