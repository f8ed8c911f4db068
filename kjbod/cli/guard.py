"""The commands ``kjbod guard``: watch the disks of an unmodified Kafka broker on the same host."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kjbod.cli import broker_files
from kjbod.cli.status import status
from kjbod.output import Printer, complain, safe

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def guard() -> None:
    """Watch the disks of a Kafka broker that runs on this host, from beside it."""


guard.add_command(status)


def _files(command: F) -> F:
    broker = click.option(
        "-c",
        "--config",
        required=True,
        type=click.Path(path_type=Path, readable=False),
        help="The broker's server.properties, unchanged.",
    )
    own = click.option(
        "--guard-config",
        type=click.Path(path_type=Path, readable=False),
        help="A file with kjbod's own keys (kjbod.*), laid over it.",
    )
    return broker(own(command))


@guard.command()
@_files
@click.option("--observe", is_flag=True, help="Report the next action, and do nothing (the default).")
@click.option(
    "--act", is_flag=True, help="Act on failed disks: shut down, evict, fence. Needs root; see kjbod guard check."
)
def run(config: Path, guard_config: Path | None, observe: bool, act: bool) -> int:
    """Watch beside the running broker until SIGTERM.

    The guard takes no lock and registers nothing. In mode observe the guard only reports. Logs go to stderr: for
    people on a terminal, else as JSON lines.
    """
    from kjbod_guard import start_up

    if observe and act:
        raise click.UsageError("--observe and --act: give one of them")
    return start_up.main(config, guard_config, "observe" if observe else "act" if act else None)


@guard.command()
@broker_files.options
@click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")
@click.option("--gate", is_flag=True, help="Before the broker starts: wait until no disk can hold that up.")
@click.option("--timeout-ms", type=click.IntRange(0), help="With --gate: how long at most.  [default: 30000]")
def check(config: Path, guard_config: Path | None, as_json: bool, gate: bool, timeout_ms: int | None) -> int:
    """Print what a guard could watch on this host, and what is missing, a line each.

    The command changes nothing. Exit code 1 when something is missing.

    With --gate, for ExecStartPre= of the broker's unit: ask the running guard whether each log directory is healthy,
    cut or masked. A guard that acts cuts or masks a directory that hangs now, and the command waits for that. The
    command lists the other directories on stderr. Exit code 0, also where no guard answers: the broker may start.
    """
    if gate and as_json:
        raise click.UsageError("--gate and --json: give one of them")
    if timeout_ms is not None and not gate:
        raise click.UsageError("--timeout-ms goes with --gate")
    if gate:
        return _gate(config, guard_config, timeout_ms)
    from kjbod.cli.metadata import no_log_lines
    from kjbod_guard import checking

    with no_log_lines():
        items = checking.main(config, guard_config)
    missing = [item for item in items if item.mark == "missing"]
    out = Printer()
    if as_json:
        out.json({"items": [{"mark": item.mark, "text": item.text, "remedy": item.remedy} for item in items]})
    else:
        for item in items:
            out(safe(f"{item.mark:<8} {item.text}{f': {item.remedy}' if item.remedy else ''}"))
    return 1 if missing else 0


@guard.command()
@broker_files.options
@click.argument("directory", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")
def release(config: Path, guard_config: Path | None, directory: str, as_json: bool) -> int:
    """Take the mask off a log directory, close the directory so that you can unmount it, and print the next steps.

    The guard leaves the directory unchanged until it is healthy. Stop only the broker; the guard runs on.
    """
    from kjbod.cli import ask

    loaded = ask.load(config, guard_config)
    answer = _ask(config, guard_config, "guard-release", path=ask.configured(loaded, directory))
    dynamic = "controller" in loaded.process_roles and not loaded.controller_quorum_voters
    out = Printer()
    if as_json:
        out.json(answer)
        return 0
    out(safe(f"{answer['path']}: released"))
    for number, line in enumerate(what_else(answer, config, dynamic=dynamic), 1):
        out(safe(f"{number}. {line}"))
    return 0


_CHECKS = {"ext4": "fsck.ext4 -f", "xfs": "xfs_repair"}


def what_else(answer: dict[str, Any], config: Path, *, dynamic: bool = False) -> list[str]:
    """Return the remaining steps after the release of a directory, a line each. ``dynamic``: the node is also a
    controller of a quorum with its voters in the metadata, and ``format`` must be told that it is not one of the first
    voters."""
    if answer["means"] == "mask":
        return [
            "See that the disk is healthy: kjbod status shows the results of its probes.",
            "Restart the broker, which takes up a directory when it starts; the guard restores what it has evicted.",
        ]
    place, device, path = answer["mount_point"], answer["source"], answer["path"]
    if place in (None, "/"):
        return ["Nothing was done to its disk: see kjbod status, and restart the broker where Kafka has it offline."]
    if answer["held"] is not None:
        return [f"The guard goes on holding it: {answer['held']}. To unmount it, stop the broker and release it again."]
    cluster = answer.get("cluster_id") or "CLUSTER_ID"
    check, make = _CHECKS.get(answer["fstype"], "fsck"), f"mkfs.{answer['fstype']}"
    more = " --no-initial-controllers" if dynamic else ""
    make_it_ours = f"kjbod format -t {cluster} -c {config} --ignore-formatted{more}; chown -R USER: {path}"
    why = ", since a file system that was cut answers errors until then" if answer["means"] == "cut" else ""
    return [
        "Stop the broker. It starts without this disk if that stays mounted, and not at all where it is missing.",
        f"umount {place}{why}. Log directories beside it are released first. Busy: a thread waits for the disk.",
        f"The same disk: {check} {device}. A new one: {make} DEVICE, and its new UUID in /etc/fstab.",
        f"mount {place}. Stop if the mount fails: the next step would write to the disk below.",
        f"A new disk: mkdir -p {path}; {make_it_ours}",
        "Start the broker. The guard runs on: it takes hold of the disk, and restores what it has evicted.",
    ]


@guard.command()
@broker_files.options
@click.option("--json", "as_json", is_flag=True, help="JSON, for machines.")
def restore(config: Path, guard_config: Path | None, as_json: bool) -> int:
    """Put the broker back into the replica lists from which the guard evicted it, in their old order.

    The guard leaves lists unchanged that somebody has changed since. The guard restores by itself when the broker has
    registered with a healthy directory.
    """
    answer = _ask(config, guard_config, "guard-restore")
    out = Printer()
    if as_json:
        out.json(answer)
    elif not answer["partitions"]:
        out(f"nothing to restore ({answer['evicted']} partitions are evicted)")
    else:
        reason = f": {answer['reason']}" if answer["reason"] else ""
        out(safe(f"{answer['restored']} of {answer['partitions']} partitions restored{reason}"))
    return 0 if answer["restored"] == answer["partitions"] else 1


@guard.command()
@broker_files.options
@click.argument("directory", metavar="DIR")
@click.option("--dry-run", is_flag=True, help="Print the steps that are left, and do nothing.")
def replace(config: Path, guard_config: Path | None, directory: str, dry_run: bool) -> int:
    """Replace the disk of a log directory, step by step, until all replicas are in sync.

    The command shows each step, asks, and does it; it waits for the broker, the disk and Kafka. Steps that are done by
    hand in another terminal count. Stop at any time with Ctrl-C: the same command goes on from there. The command makes
    no file system and does not write /etc/fstab. Needs root.
    """
    import shlex

    from kjbod.cli import ask
    from kjbod.clock import SystemClock
    from kjbod_guard.replacing import Replacing

    of = ask.load(config, guard_config)
    files = shlex.split(broker_files.typed())
    replacing = Replacing(ask.guard_client(of, guard_config), of, files, SystemClock())
    path = ask.configured(of, directory)
    if dry_run:
        replacing.show(path)
        return 0
    try:
        replacing.run(path)
    except (click.Abort, KeyboardInterrupt):
        if replacing.has_begun:
            complain(f"stopped: type the same command to go on: kjbod guard replace {shlex.join([*files, path])}")
        raise
    return 0


@guard.command()
@broker_files.options
@click.option("-n", "--lines", default=50, show_default=True, type=click.IntRange(1), help="Of the newest.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as they are in the audit.")
def history(config: Path, guard_config: Path | None, lines: int, as_json: bool) -> int:
    """Show what the guard has decided and done, from its audit; a guard need not run."""
    from kjbod_guard import past

    out = Printer()
    for entry in past.read(config, guard_config, lines):
        out(past.raw(entry) if as_json else safe(past.line(entry)))
    return 0


def _gate(config: Path, guard_config: Path | None, timeout_ms: int | None) -> int:
    """Wait until the broker may start."""
    from kjbod.cli import ask
    from kjbod.clock import SystemClock
    from kjbod.runtime.control_socket import CONNECT_TIMEOUT_MS, SILENCE_TIMEOUT_MS, ControlClient
    from kjbod_guard import gate_asking

    of = ask.load(config, guard_config)

    def client(silence_ms: int) -> ControlClient:
        return ask.guard_client(
            of,
            guard_config,
            connect_timeout_ms=min(silence_ms, CONNECT_TIMEOUT_MS),
            silence_timeout_ms=min(silence_ms, SILENCE_TIMEOUT_MS),
        )

    for line in gate_asking.ask(client, timeout_ms, clock=SystemClock()):
        complain(safe(line))
    return 0


def _ask(config: Path, guard_config: Path | None, operation: str, **arguments: Any) -> dict[str, Any]:
    """Return the running guard's answer."""
    from kjbod.cli import ask

    answer: dict[str, Any] = ask.guard_client(ask.load(config, guard_config), guard_config).call(operation, **arguments)
    return answer
