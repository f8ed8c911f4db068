"""``scripts/bench/detection``: every fault on every file system, under kjbod and under Kafka. Needs root."""

import argparse
import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults.catalog import FAULTS
from kjbod.faults.disks import require_real_disks
from scripts.bench import detection_report as report
from scripts.bench.command_line import (
    INTERRUPTED,
    Say,
    catch_signals,
    listed,
    make_directory,
    make_logs,
    positive,
    seconds,
    stopwatch,
    work_directory,
)
from scripts.bench.detection_agents import PROBE_INTERVAL_MS, AgentRig
from scripts.bench.detection_plan import (
    FILE_SYSTEMS,
    LOADS,
    Cell,
    Outcome,
    Planned,
    cells,
    lives,
    plan,
    quick_cells,
)
from scripts.bench.detection_runs import conduct_all
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit
from scripts.rig.preloaded import Preloaded
from scripts.rig.rig_error import RigError

KAFKA_WAIT_S = 70.0
"""One of Kafka's longest checkpoint intervals, 60 s, and more."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/detection",
        description="Break real disks in every way under a real agent and under real Kafka brokers, and measure how "
        "long each takes to notice. Exit code 1 when a verdict is wrong. How to read the table: "
        "scripts/bench/README.md.",
    )
    parser.add_argument("--repeat", type=positive, default=5, metavar="N", help="repetitions of each cell (5)")
    parser.add_argument(
        "--faults", type=listed(list(FAULTS)), default=list(FAULTS), metavar="A,B", help="only these (all)"
    )
    parser.add_argument(
        "--fs", type=listed(FILE_SYSTEMS), default=list(FILE_SYSTEMS), metavar="A,B", help=f"{','.join(FILE_SYSTEMS)}"
    )
    parser.add_argument(
        "--load", type=listed(LOADS), default=list(LOADS), metavar="A,B",
        help="idle; busy: appends and syncs each 5 ms; work: the agent's own work meets the fault (idle,busy,work)",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="each fault once on ext4, a few on the others, no Kafka")
    parser.add_argument("--no-kafka", action="store_true", help="kjbod alone")
    parser.add_argument("--no-agent", action="store_true", help="Kafka alone")
    parser.add_argument("--kafka-repeat", type=positive, default=1, metavar="N", help="repetitions under Kafka (1)")
    parser.add_argument(
        "--kafka-wait",
        type=seconds,
        default=KAFKA_WAIT_S,
        metavar="S",
        help=f"until Kafka counts as blind ({KAFKA_WAIT_S:g})",
    )
    parser.add_argument(
        "--seed", type=int, default=858, metavar="N", help="of the order and of the moments of the faults (858)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("kjbod-bench/detection"), metavar="DIR",
        help="runs.csv, cells.csv, summary.md, detection.png and .svg, logs (kjbod-bench/detection)",
    )  # fmt: skip
    return parser.parse_args(argv)


def main() -> int:
    """The exit code: 1 when a verdict was wrong, or nothing could be measured."""
    options = arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    started, say = stopwatch()
    outcomes: list[Outcome] = []
    code = 0
    try:
        namespaces.reexec()
        for fstype in options.fs:
            require_real_disks(fstype)
        kit = None if options.no_kafka or options.quick else KafkaKit.find()
        catch_signals()
        make_directory(options.out)
        with contextlib.closing(measure(options, kit, say)) as measured:
            for outcome in measured:
                outcomes.append(outcome)
                say(_progress(outcome))
    except KeyboardInterrupt:
        code = INTERRUPTED
        say("interrupted; everything was taken away")
    except KjbodError as error:
        print(f"scripts/bench/detection: {error}", file=sys.stderr)
        code = EXIT_FAILURE
    if outcomes:
        _tell(outcomes, options, time.monotonic() - started)
    return code or (EXIT_FAILURE if any(not outcome.ok for outcome in outcomes) else 0)


def measure(options: argparse.Namespace, kit: KafkaKit | None, say: Say) -> Generator[Outcome, None, None]:
    """Every run, first kjbod's, then Kafka's: neither disturbs the other."""
    chosen = (
        quick_cells(FAULTS, options.faults)
        if options.quick
        else cells(FAULTS, options.faults, options.fs, options.load)
    )
    if not chosen or (options.no_agent and kit is None):
        raise RigError("nothing to measure: no such fault on these file systems under this load, or all was left out")
    rng = random.Random(options.seed)
    logs = make_logs(options.out.absolute() / "logs")
    if not options.no_agent:
        repeat = 1 if options.quick else options.repeat
        runs = plan(chosen, FAULTS, repeat, rng, PROBE_INTERVAL_MS, thorough=not options.quick)
        say(f"{len(chosen)} cells, {len(runs)} runs under kjbod, seed {options.seed}")
        with work_directory() as work:
            yield from run_agents(runs, work, logs, say)
    if kit is not None:
        theirs = [cell for cell in chosen if cell.load != "work"]
        say(f"{len(theirs)} cells under Kafka, {options.kafka_repeat} times, {options.kafka_wait:g} s at most for each")
        with work_directory() as work:
            yield from run_kafka(kit, theirs, options.kafka_repeat, options.kafka_wait, rng, work, logs, say)


def run_agents(
    runs: Sequence[Planned], work: Path, logs: Path, say: Say, preloaded: Preloaded | None = None
) -> Iterator[Outcome]:
    """All runs under kjbod, an agent's life at a time; ``preloaded``: see :class:`AgentRig`."""
    groups = lives(runs)
    with AgentRig(work, logs, preloaded) as rig:
        last: Outcome | None = None
        for number, group in enumerate(groups, 1):
            say(f"agent {number} of {len(groups)}: {len(group)} runs{_kind(group[0])}")
            life = rig.begin(group)
            for outcome in conduct_all(rig, life, group):
                last = outcome
                yield outcome
            trouble = rig.end(life)
            if trouble is not None and last is not None:
                last.blame(f"at the end of this agent: {trouble}")


def _kind(run: Planned) -> str:
    if run.unprivileged:
        return ", with an agent that permissions stop"
    return " side by side" if run.patient else ""


def run_kafka(
    kit: KafkaKit,
    chosen: Sequence[Cell],
    repeat: int,
    wait_s: float,
    rng: random.Random,
    work: Path,
    logs: Path,
    say: Say,
) -> Iterator[Outcome]:
    """All cells under Kafka."""
    from scripts.bench.detection_kafka import KafkaRig

    with KafkaRig(kit, work, logs, say) as rig:
        for repetition in range(repeat):
            yield from rig.run(chosen, repetition, wait_s, rng)


def _progress(outcome: Outcome) -> str:
    name = f"{outcome.system:<6}{outcome.fault:<26}{outcome.fstype:<6}{outcome.load:<5}"
    verdict, recorded = report.number(outcome.verdict_ms), report.number(outcome.recorded_ms)
    wrong = "" if outcome.ok else f"  WRONG: {outcome.wrong}"
    return f"{name} {outcome.final.partition(':')[0]:<14} verdict {verdict:>6}  recorded {recorded:>6}{wrong}"


def _how(options: argparse.Namespace, seconds: float) -> str:
    """A line: where and how it was measured."""
    host = os.uname()
    repeat = 1 if options.quick else options.repeat
    return (
        f"Measured in {max(1, round(seconds / 60))} min on {os.cpu_count()} cores, Linux {host.release}: "
        f"{repeat} runs of each cell, seed {options.seed}."
    )


def _tell(outcomes: Sequence[Outcome], options: argparse.Namespace, seconds: float) -> None:
    """The table on standard output, the rest into the directory."""
    from scripts.bench.detection_plot import draw

    order = {name: position for position, name in enumerate(FAULTS)}
    ordered = sorted(outcomes, key=lambda outcome: order[outcome.fault])
    found, reach = report.rows(ordered), report.reached(ordered)
    print(report.table(found))
    for note in report.notes(found):
        print(note)
    if any(outcome.system == "kjbod" for outcome in ordered):
        print()
        print(report.reach_text(reach))
    if bad := report.complaints(ordered):
        print("\nnot as it should be:")
        print("\n".join(bad))
    out: Path = options.out
    report.write_runs(out / "runs.csv", ordered)
    report.write_cells(out / "cells.csv", found)
    (out / "summary.md").write_text(report.summary(found, reach, _how(options, seconds)))
    draw(ordered, options.kafka_wait * 1000, out / "detection")
    print(f"\n{out}: runs.csv, cells.csv, summary.md, detection.svg, detection.png, logs")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KjbodError as trouble:
        sys.exit(str(trouble))
