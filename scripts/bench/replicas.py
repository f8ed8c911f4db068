"""``scripts/bench/replicas``: how long a broker takes to start with very many replicas, beside real Kafka."""

import argparse
import csv
import dataclasses
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults.disks import require_real_disks
from scripts.bench.command_line import positive
from scripts.bench.move_throughput import Throughput, measure
from scripts.bench.replicas_rig import SESSION_MS, ReplicaRig, Start, System, per_replica_ms
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit
from scripts.terminal import INTERRUPTED, interrupt, say

REACH_RATIO: Final = 1.0
"""Of Kafka's time."""
REACH_GROWTH: Final = 2.0
"""How much longer one of ten times as many replicas may take: 1 is linear."""
REACH_MOVE_PERCENT: Final = 80.0
CASES: Final = ("new", "moved", "running")
QUICK_SESSION_MS: Final = 1_500
MOVE_ROUNDS: Final = 3
_MIB: Final = 1 << 20


def _numbers(text: str) -> list[int]:
    numbers = text.split(",") if text else []
    if not all(number.isdigit() and int(number) > 0 for number in numbers):
        raise argparse.ArgumentTypeError(f"{text}: numbers from 1 on, with commas between them")
    return [int(number) for number in numbers]


def _cases(text: str) -> list[str]:
    cases = text.split(",")
    if unknown := [case for case in cases if case not in CASES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: choose from {', '.join(CASES)}")
    return cases


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/replicas",
        description="Time from the start of a broker until the controller has recorded the directory of each replica "
        "and has unfenced it, of an agent and of a real Kafka broker at a real Kafka controller; and how fast a "
        "replica moves between two directories. Exit code 1 when the agent is slower than Kafka, takes "
        f"{REACH_GROWTH:g} times as long or longer for each of ten times as many replicas, or moves at less than "
        f"{REACH_MOVE_PERCENT:g} % of cp and fsync.",
    )
    parser.add_argument(
        "--replicas", type=_numbers, default=[1_000, 10_000], metavar="N,...", help="on real disks (1000,10000)"
    )
    parser.add_argument(
        "--memory-replicas", type=_numbers, default=[1_000, 10_000, 100_000], metavar="N,...",
        help="with disks in memory (1000,10000,100000)",
    )  # fmt: skip
    parser.add_argument("--cases", type=_cases, default=list(CASES), metavar="NAME,...", help=f"({','.join(CASES)})")
    parser.add_argument("--directories", type=positive, default=12, metavar="N", help="log directories (12)")
    parser.add_argument("--plain", action="store_true", help="directories on one disk, not each on an ext4 of its own")
    parser.add_argument("--no-kafka", action="store_true", help="no Kafka: kjbod's own controller, nothing beside it")
    parser.add_argument("--move-mib", type=positive, default=1024, metavar="N", help="size of what is moved (1024)")
    parser.add_argument("--no-moves", action="store_true", help="without the throughput of moves")
    parser.add_argument("--quick", action="store_true", help="60 replicas on plain directories, no Kafka, no reach")
    parser.add_argument("--out", type=Path, default=Path("kjbod-bench/replicas"), help="CSV, plot and logs")
    options = parser.parse_args(argv)
    if options.quick:
        options.replicas, options.memory_replicas, options.directories = [60], [60], 3
        options.plain = options.no_kafka = options.no_moves = True
    return options


def main() -> int:
    """The exit code: 1 when something is slower than it may be, or could not be measured."""
    options = arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        if not options.plain:
            namespaces.reexec()
            require_real_disks("ext4")
        kit = None if options.no_kafka else KafkaKit.find()
        signal.signal(signal.SIGTERM, interrupt)
        options.out.mkdir(parents=True, exist_ok=True)
        starts = _measure(options, kit)
        misses = []
        if starts:
            _write_csv(options.out / "replicas.csv", starts)
            _draw(starts, options.out / "replicas")
            misses += _tell(starts)
        if not options.no_moves:
            misses += _tell_moves(_move(options))
    except KeyboardInterrupt:
        say("interrupted; everything was taken away")
        return INTERRUPTED
    except KjbodError as error:
        print(f"scripts/bench/replicas: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return EXIT_FAILURE if misses and not options.quick else 0


# ------------------------------------------------------------------------------------------------------------ measuring


def _measure(options: argparse.Namespace, kit: KafkaKit | None) -> list[Start]:
    """Measure each number of replicas, each system one after the other, so that they have the same machine."""
    planned: list[tuple[System, int]] = []
    for replicas in sorted({*options.replicas, *options.memory_replicas}):
        if replicas in options.replicas:
            planned.append(("agent", replicas))
            if kit is not None:
                planned.append(("Kafka", replicas))
        if replicas in options.memory_replicas:
            planned.append(("agent in memory", replicas))
    starts: list[Start] = []
    for system, replicas in planned:
        for cases in (("new", "moved"), ("running",)):
            wanted = [case for case in cases if case in options.cases]
            if wanted:
                starts += _measure_one(options, kit, system, replicas, wanted)
    return starts


def _measure_one(
    options: argparse.Namespace, kit: KafkaKit | None, system: System, replicas: int, cases: Sequence[str]
) -> list[Start]:
    found = []
    logs = options.out / "logs" / f"{system.replace(' ', '-').lower()}-{replicas}-{cases[0]}"
    with (
        tempfile.TemporaryDirectory(prefix="kjbod-replicas-") as work,
        ReplicaRig(
            Path(work),
            logs,
            system,
            directories=options.directories,
            replicas=replicas,
            kit=kit,
            plain=options.plain,
            session_ms=QUICK_SESSION_MS if options.quick else SESSION_MS,
        ) as rig,
    ):
        rig.start()
        rig.wait_until_unfenced()
        if cases == ["running"]:
            rig.give_replicas(unnoticed=False)
            return [_told(rig.measure("running"))]
        rig.give_replicas(unnoticed=True)
        rig.kill_and_wait_until_fenced()
        rig.start()
        found.append(_told(rig.measure("new")))
        if "moved" in cases:
            rig.stop_broker()
            rig.swap_directories()
            rig.start()
            found.append(_told(rig.measure("moved")))
    return [start for start in found if start.case in cases]


def _told(start: Start) -> Start:
    say(f"{start.system}, {start.replicas} replicas, {start.case}: {start.ready_s:.2f} s")
    return start


def _move(options: argparse.Namespace) -> Throughput:
    moved = measure(options.move_mib << 20, MOVE_ROUNDS)
    with open(options.out / "moves.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["size_bytes", "kjbod_s", "cp_s"])
        writer.writerows([moved.size_bytes, f"{pair.kjbod_s:.3f}", f"{pair.cp_s:.3f}"] for pair in moved.pairs)
    return moved


# -------------------------------------------------------------------------------------------------------------- telling


def _tell(starts: Sequence[Start]) -> list[str]:
    """A table for people; what is out of reach."""
    print(
        f"{'case':<9}{'replicas':>9}  {'system':<16}{'registered':>11}{'created':>11}{'assigned':>11}{'unfenced':>11}"
        f"{'ms each':>9}{'PSS MiB':>9}{'CPU s':>7}{'to Kafka':>10}"
    )
    misses = []
    for start in sorted(starts, key=lambda s: (CASES.index(s.case), s.replicas, s.system)):
        ratio = ratio_to_kafka(start, starts)
        late = ratio is not None and ratio > REACH_RATIO
        times = (_s(start.registered_s), _s(start.created_s), _s(start.assigned_s), _s(start.unfenced_s))
        print(
            f"{start.case:<9}{start.replicas:>9}  {start.system:<16}"
            + "".join(f"{time:>11}" for time in times)
            + f"{1000 * start.ready_s / start.replicas:>9.2f}{start.memory_mib:>9.0f}{start.cpu_s:>7.1f}"
            + f"{'' if ratio is None else f'{ratio:.2f}':>10}{'  SLOWER' if late else ''}"
        )
        if late:
            misses.append(f"{start.case} {start.replicas}: {ratio:.2f} of Kafka's time")
    print("\ntimes in seconds since the start of the process; running: since the topics were asked for\n")
    for system, case, few, many, factor in growth(starts):
        verdict = "ok" if factor < REACH_GROWTH else "NOT LINEAR"
        print(f"{case}, {system}: {factor:.2f} times as long for each of {many} replicas as of {few}  {verdict}")
        if factor >= REACH_GROWTH and system != "Kafka":
            misses.append(f"{case} {system}: {factor:.2f}")
    return misses


def _tell_moves(moved: Throughput) -> list[str]:
    reached = 100 * moved.share >= REACH_MOVE_PERCENT
    print(
        f"\na move between two directories ({moved.place}): {moved.kjbod_bytes_per_second / _MIB:.0f} MiB/s, "
        f"{100 * moved.share:.0f} % of cp and fsync ({moved.cp_bytes_per_second / _MIB:.0f} MiB/s), compared after the "
        f"copy; reach {REACH_MOVE_PERCENT:g} %  {'ok' if reached else 'SLOWER'}"
    )
    return [] if reached else [f"moves: {moved.share:.2f} of cp and fsync"]


def ratio_to_kafka(start: Start, starts: Sequence[Start]) -> float | None:
    """The agent's time as a share of Kafka's, for the same on the same disks; None: there is nothing to compare."""
    if start.system != "agent":
        return None
    peers = [s for s in starts if (s.system, s.case, s.replicas) == ("Kafka", start.case, start.replicas)]
    return start.ready_s / peers[0].ready_s if peers else None


def growth(starts: Sequence[Start]) -> list[tuple[str, str, int, int, float]]:
    """System, case, two numbers of replicas, and how much longer each of the many takes than each of the few."""
    return [
        (system, case, few, many, slow / fast)
        for (system, case), costs in per_replica_ms(starts).items()
        for (few, fast), (many, slow) in zip(sorted(costs), sorted(costs)[1:], strict=False)
    ]


def _s(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f}"


def _write_csv(path: Path, starts: Sequence[Start]) -> None:
    names = [field.name for field in dataclasses.fields(Start)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for start in starts:
            values = [getattr(start, name) for name in names]
            writer.writerow([f"{value:.3f}" if isinstance(value, float) else value for value in values])


def _draw(starts: Sequence[Start], stem: Path) -> None:
    os.environ.setdefault("MPLCONFIGDIR", str(stem.parent / "logs"))
    from scripts.bench.replicas_plot import draw

    draw(starts, stem)


if __name__ == "__main__":
    sys.exit(main())
