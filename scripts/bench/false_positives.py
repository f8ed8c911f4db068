"""``scripts/bench/false-positives``: healthy disks under everything that makes them look ill. None may be failed."""

import argparse
import contextlib
import csv
import heapq
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults.disks import require_real_disks
from kjbod.faults.fusedisk import TAG_VARIABLE
from scripts.bench.command_line import INTERRUPTED, catch_signals
from scripts.bench.false_positives_conditions import CONDITIONS, Condition
from scripts.bench.false_positives_rig import Member, Rig
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit
from scripts.rig.processes import Processes, WaitTimeoutError, wait_until

_RECOVERY_TIMEOUT_S = 60.0
_HEAD = (
    *("condition", "disks", "minutes", "disk-h", "FAILED", "offline", "deeds", "suspect", "slow", "held", "probes"),
    *("slowest", "well in"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one condition; the columns of the CSV."""

    condition: str
    disks: int
    minutes: float
    disk_hours: float
    wrong_failed: int
    offline_sent: int
    deeds: int
    suspect: int
    slow: int
    held: int
    full: int
    causes: str
    fenced: int
    probes: int
    slowest_probe_ms: float | None
    recovery_s: float | None
    """Until all directories were online and the broker could lead again; None: not within a minute."""
    trouble: str
    notes: str

    @property
    def wrong(self) -> bool:
        """Whether this is not what is expected of healthy disks."""
        return bool(self.wrong_failed or self.offline_sent or self.deeds or self.trouble)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    listed = "\n".join(f"  {condition.name:16} {condition.does}" for condition in CONDITIONS.values())
    parser = argparse.ArgumentParser(
        prog="scripts/bench/false-positives",
        description="Healthy disks under everything that makes them look ill: none may be failed. Real processes,\n"
        "real disks, real time. Conditions that do not disturb each other run side by side. Exit code 1 if a\n"
        "directory was failed or reported offline, a guard did anything, an agent, a guard or a broker ended, or\n"
        "something did not recover.",
        epilog=f"conditions:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10.0, help="of each condition (default: 10)")
    length.add_argument(
        "--seconds", type=float, help="of each condition, instead of --minutes; for a look whether it runs"
    )
    parser.add_argument("--conditions", default=",".join(CONDITIONS), metavar="A,B", help="only these")
    parser.add_argument(
        "--guard", action="store_true", help="guards that act beside real Kafka brokers, instead of agents"
    )
    parser.add_argument("--seed", type=int, default=858, help="of what happens at random (default: 858)")
    parser.add_argument("--out", type=Path, help="directory for false-positives.csv and the logs")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.conditions.split(",") if name not in CONDITIONS]
    if unknown:
        parser.error(f"no such condition: {', '.join(unknown)} (see --help)")
    arguments.duration_s = arguments.seconds if arguments.seconds is not None else arguments.minutes * 60
    if arguments.duration_s <= 0:
        parser.error("the time must be more than 0")
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 only when no verdict was wrong."""
    arguments = _arguments(argv)
    try:
        require_real_disks()
        namespaces.reexec()
        return _run(arguments, os.environ[TAG_VARIABLE])
    except KjbodError as error:
        print(f"false-positives: {error}", file=sys.stderr)
        return EXIT_FAILURE
    except KeyboardInterrupt:
        print("false-positives: interrupted; everything was taken away", file=sys.stderr)
        return INTERRUPTED


def _run(arguments: argparse.Namespace, tag: str) -> int:
    chosen = [CONDITIONS[name] for name in dict.fromkeys(arguments.conditions.split(","))]
    together = [condition for condition in chosen if not condition.alone]
    groups = [group for group in (together, *([c] for c in chosen if c.alone)) if group]
    catch_signals()
    rows = []
    kafka = KafkaKit.find() if arguments.guard else None
    with _output(arguments.out) as out:
        for group_number, group in enumerate(groups, 1):
            names = ", ".join(condition.name for condition in group)
            _say(f"{arguments.duration_s:g} s of {names}")
            with _rig(out / f"logs-{group_number}", tag, arguments.seed, kafka) as rig:
                rows += _run_side_by_side(rig, group, arguments.duration_s)
        _print(rows)
        _write(rows, out / "false-positives.csv")
    return 1 if any(row.wrong for row in rows) else 0


def _say(text: str) -> None:
    print(f"false-positives: {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[Path]:
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        yield out.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="kjbod-false-positives-out-") as temporary:
        yield Path(temporary)


@contextlib.contextmanager
def _rig(logs: Path, tag: str, seed: int, kafka: KafkaKit | None) -> Iterator[Rig]:
    work = Path(tempfile.mkdtemp(prefix="kjbod-false-positives-"))
    rig = Rig(work, tag, Processes(logs), seed, kafka)
    try:
        yield rig
    finally:
        rig.close()
        shutil.rmtree(work, ignore_errors=True)


def _run_side_by_side(rig: Rig, conditions: Sequence[Condition], duration_s: float) -> list[Row]:
    members: dict[str, Member] = {}
    impossible: list[Row] = []
    for condition in conditions:
        try:
            members[condition.name] = condition.prepare(rig, condition, duration_s)
        except KjbodError as error:
            impossible.append(_not_run(condition, str(error)))
    for member in members.values():
        member.wait_registered()
    for member in members.values():
        member.lead([*members.values()])
    troubles = _disturb(rig, conditions, members)
    rows = [_row(members[name], duration_s, troubles[name]) for name in members]
    return rows + impossible


def _disturb(rig: Rig, conditions: Sequence[Condition], members: dict[str, Member]) -> dict[str, list[str]]:
    """All conditions of a group to their end; by name, what went wrong with the run itself."""
    running = {c.name: c.disturb(rig, members[c.name]) for c in conditions if c.name in members}
    troubles: dict[str, list[str]] = {name: [] for name in running}
    order = itertools.count()
    due = [(time.monotonic(), next(order), name) for name in running]
    try:
        while due:
            at_s, _, name = heapq.heappop(due)
            time.sleep(max(0.0, at_s - time.monotonic()))
            try:
                wait_s = next(running[name])
            except StopIteration:
                continue
            except (KjbodError, OSError) as error:
                troubles[name].append(str(error))
                continue
            heapq.heappush(due, (time.monotonic() + wait_s, next(order), name))
    finally:
        for disturbance in running.values():
            disturbance.close()
    return troubles


def _row(member: Member, duration_s: float, troubles: list[str]) -> Row:
    recovery_s = _recovery_s(member)
    if not member.agent.running:
        troubles.append(
            f"{member.agent.name} ended with {member.agent.exit_code}: {member.agent.tail().splitlines()[-1:]}"
        )
    elif member.broker is not None and not member.broker.running:
        troubles.append(f"the broker ended with {member.broker.exit_code}")
    elif recovery_s is None:
        troubles.append(f"not well again after {_RECOVERY_TIMEOUT_S:g} s: {member.not_online() or 'fenced'}")
    states = Counter(line["state"] for line in member.verdicts())
    causes = Counter(f"{line['state']}/{line['cause']}" for line in member.verdicts() if line["state"] != "online")
    failures = member.agent.events("directory.failed")
    troubles += [f"{line['path']}: {line['evidence']}" for line in failures]
    deeds = member.deeds()
    troubles += deeds
    failed = {line["path"] for line in [*failures, *member.verdicts()] if line.get("state", "failed") == "failed"}
    probes, slowest_ms = member.probes()
    return Row(
        condition=member.name,
        disks=len(member.disks),
        minutes=round(duration_s / 60, 2),
        disk_hours=round(len(member.disks) * duration_s / 3600, 2),
        wrong_failed=len(failed),
        offline_sent=member.offline_sent(),
        deeds=len(deeds),
        suspect=states["suspect"],
        slow=states["slow"],
        held=states["held"],
        full=states["full"],
        causes=" ".join(f"{cause}:{count}" for cause, count in sorted(causes.items())),
        fenced=len(member.agent.events("agent.fenced")),
        probes=probes,
        slowest_probe_ms=slowest_ms,
        recovery_s=recovery_s,
        trouble="; ".join(troubles),
        notes="; ".join(member.notes),
    )


def _recovery_s(member: Member) -> float | None:
    """Seconds from now until every directory is online and the broker may lead; None when it takes too long."""
    began_s = time.monotonic()

    def recovered() -> bool:
        if not member.agent.running or (member.broker is not None and not member.broker.running):
            return True
        return not member.not_online() and member.serves()

    try:
        wait_until(recovered, _RECOVERY_TIMEOUT_S, f"recovery of {member.name}")
    except WaitTimeoutError:
        return None
    return round(time.monotonic() - began_s, 1) if member.agent.running else None


def _not_run(condition: Condition, reason: str) -> Row:
    return Row(condition.name, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "", 0, 0, None, None, f"not possible here: {reason}", "")


def _print(rows: Sequence[Row]) -> None:
    table = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEAD))]
    for line in table:
        cells = [
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells))
    for row in rows:
        for text in (row.trouble and f"WRONG: {row.trouble}", row.causes, row.notes):
            if text:
                print(f"  {row.condition}: {text}")
    hours = sum(row.disk_hours for row in rows)
    wrong = sum(row.wrong_failed for row in rows)
    offline, deeds = sum(row.offline_sent for row in rows), sum(row.deeds for row in rows)
    print(f"{wrong} wrong failed, {offline} reported offline, {deeds} deeds of guards in {hours:.1f} disk-hours")


def _cells(row: Row) -> tuple[str, ...]:
    slowest = "-" if row.slowest_probe_ms is None else f"{row.slowest_probe_ms:.0f} ms"
    well = "-" if row.recovery_s is None else f"{row.recovery_s:.1f} s"
    numbers = (row.wrong_failed, row.offline_sent, row.deeds, row.suspect, row.slow, row.held, row.probes)
    return (
        row.condition,
        str(row.disks),
        f"{row.minutes:g}",
        f"{row.disk_hours:.2f}",
        *map(str, numbers),
        slowest,
        well,
    )


def _write(rows: Sequence[Row], path: Path) -> None:
    names = Row.__slots__
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([getattr(row, name) for name in names] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
