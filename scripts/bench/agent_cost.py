"""``scripts/bench/agent-cost``: what an idle agent or guard costs, against what it may cost. Needs root."""

import argparse
import csv
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults.disks import require_real_disks
from scripts.bench.agent_cost_rig import Rig, Snapshot, names
from scripts.bench.command_line import positive
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit
from scripts.terminal import INTERRUPTED, interrupt, say

REACH_PSS_MIB: Final = 60.0
GUARD_REACH_PSS_MIB: Final = 80.0
REACH_CPU_PERCENT: Final = 2.0
"""Of one core."""
GUARD_REPLICAS: Final = 4_000
GUARD_CLUSTER_REPLICAS: Final = 200_000
SETTLE_S: Final = 10.0
"""Between the last assignment and the measurement; no longer than that takes."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A kind of process, or all of them.

    Attributes:
        name: which.
        count: how many processes.
        pss_mib: the higher of two measurements, before and after.
        cpu_percent: of one core.
        switches: context switches per second.
        open_files: descriptors.
    """

    name: str
    count: int
    pss_mib: float
    cpu_percent: float
    switches: float
    open_files: int


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/agent-cost",
        description="Memory, processor time and disk requests of an idle agent with real disks and many replicas. "
        f"Exit code 1 when it takes more than {REACH_PSS_MIB:g} MiB or {REACH_CPU_PERCENT:g} % of one core. "
        f"With --guard of a guard that acts beside a real Kafka broker, which may have {GUARD_REACH_PSS_MIB:g} MiB.",
    )
    parser.add_argument("--directories", type=positive, default=12, metavar="N", help="log directories (12)")
    parser.add_argument("--guard", action="store_true", help="a guard beside a real broker, and not an agent")
    parser.add_argument(
        "--replicas", type=positive, metavar="N", help=f"replicas together (10000; beside a guard {GUARD_REPLICAS})"
    )
    parser.add_argument(
        "--cluster-replicas",
        type=positive,
        default=GUARD_CLUSTER_REPLICAS,
        metavar="N",
        help=f"with --guard: replicas of the whole cluster ({GUARD_CLUSTER_REPLICAS})",
    )
    parser.add_argument(
        "--probe-interval-ms", type=positive, default=1000, metavar="N", help="kjbod.probe.interval.ms (1000)"
    )
    parser.add_argument("--seconds", type=positive, default=60, metavar="N", help="how long to measure (60)")
    parser.add_argument("--kafka", action="store_true", help="a real Kafka broker too, on plain directories")
    parser.add_argument("--kafka-replicas", type=positive, default=1000, metavar="N", help="its replicas (1000)")
    parser.add_argument("--out", type=Path, default=Path("kjbod-bench/agent-cost"), help="CSV and logs")
    options = parser.parse_args(argv)
    options.replicas = options.replicas or (GUARD_REPLICAS if options.guard else 10_000)
    if options.guard and options.kafka:
        parser.error("--guard measures beside a Kafka broker, and --kafka such a broker: one of them")
    if options.guard and options.cluster_replicas < options.replicas:
        parser.error("--cluster-replicas are those of all brokers: at least as many as --replicas")
    return options


def main() -> int:
    """The exit code: 1 when the agent, or the guard, costs too much or could not be measured."""
    options = arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        namespaces.reexec()
        require_real_disks("ext4")
        kit = KafkaKit.find() if options.kafka or options.guard else None
        signal.signal(signal.SIGTERM, interrupt)
        options.out.mkdir(parents=True, exist_ok=True)
        before, after = _measure_guard(options, kit) if kit and options.guard else _measure_agent(options)
        rows = [("guard" if options.guard else "agent", cost) for cost in costs(before, after)]
        _tell(options, [cost for _, cost in rows], before, after)
        if kit is not None and options.kafka:
            peer = costs(*_measure_kafka(options, kit))[-1]
            rows.append(("kafka", peer))
            _tell_kafka(options, rows[-2][1], peer)
        _write_csv(options.out / "agent-cost.csv", rows, before, after)
    except KeyboardInterrupt:
        say("interrupted; everything was taken away")
        return INTERRUPTED
    except KjbodError as error:
        print(f"scripts/bench/agent-cost: {error}", file=sys.stderr)
        return EXIT_FAILURE
    together = costs(before, after)[-1]
    over = together.pss_mib > _reach_mib(options) or together.cpu_percent > REACH_CPU_PERCENT
    return EXIT_FAILURE if over else 0


def _measure_agent(options: argparse.Namespace) -> tuple[Snapshot, Snapshot]:
    with tempfile.TemporaryDirectory(prefix="kjbod-cost-") as work, Rig(Path(work), options.out / "logs") as rig:
        say(f"starting an agent with {options.directories} disks")
        rig.begin()
        rig.run_agent(options.directories, options.replicas, options.probe_interval_ms)
        say(f"creating {options.replicas} replicas")
        began = time.monotonic()
        rig.create_replicas(options.replicas)
        rig.wait_until_assigned(options.replicas)
        say(f"all assigned after {time.monotonic() - began:.1f} s; measuring for {options.seconds} s")
        return _two_snapshots(rig, options.seconds)


def _measure_guard(options: argparse.Namespace, kit: KafkaKit) -> tuple[Snapshot, Snapshot]:
    with tempfile.TemporaryDirectory(prefix="kjbod-cost-") as work, Rig(Path(work), options.out / "logs") as rig:
        say(f"starting a Kafka broker with {options.directories} disks, and a guard beside it")
        rig.begin()
        rig.run_guarded(kit, options.directories, options.replicas, options.cluster_replicas)
        say(f"it guards {options.replicas} replicas; measuring for {options.seconds} s")
        return _two_snapshots(rig, options.seconds)


def _measure_kafka(options: argparse.Namespace, kit: KafkaKit) -> tuple[Snapshot, Snapshot]:
    with tempfile.TemporaryDirectory(prefix="kjbod-cost-") as work, Rig(Path(work), options.out / "logs", kit) as rig:
        say(f"starting a Kafka broker with {options.kafka_replicas} replicas")
        rig.begin()
        rig.run_kafka(kit, options.directories)
        rig.create_replicas(options.kafka_replicas)
        rig.wait_until_kafka_has(options.kafka_replicas, options.directories)
        return _two_snapshots(rig, options.seconds)


def _two_snapshots(rig: Rig, seconds: int) -> tuple[Snapshot, Snapshot]:
    time.sleep(min(SETTLE_S, seconds))
    before = rig.snapshot()
    time.sleep(seconds)
    return before, rig.snapshot()


def costs(before: Snapshot, after: Snapshot) -> list[Cost]:
    """Costs of each kind of process, and last of all together. One that ended or began in between is left out of the
    rates."""
    seconds = after.at_s - before.at_s
    found = []
    for name in [*names(after), "together"]:
        pids = [pid for pid, usage in after.processes.items() if name in ("together", usage.name)]
        both = [(before.processes[pid], after.processes[pid]) for pid in pids if pid in before.processes]
        found.append(
            Cost(
                name=name,
                count=len(pids),
                pss_mib=max(
                    sum(now.pss_kib for now in (after.processes[pid] for pid in pids)),
                    sum(was.pss_kib for was, _ in both),
                )
                / 1024,
                cpu_percent=100 * sum(now.cpu_s - was.cpu_s for was, now in both) / seconds,
                switches=sum(now.switches - was.switches for was, now in both) / seconds,
                open_files=sum(after.processes[pid].open_files for pid in pids),
            )
        )
    return found


def request_rates(before: Snapshot, after: Snapshot) -> list[tuple[float, float, float]]:
    """Reads, writes and flushes per second of each directory's device."""
    seconds = after.at_s - before.at_s
    return [
        ((now.reads - was.reads) / seconds, (now.writes - was.writes) / seconds, (now.flushes - was.flushes) / seconds)
        for was, now in zip(before.disks, after.disks, strict=True)
    ]


def _reach_mib(options: argparse.Namespace) -> float:
    return GUARD_REACH_PSS_MIB if options.guard else REACH_PSS_MIB


def _tell(options: argparse.Namespace, found: Sequence[Cost], before: Snapshot, after: Snapshot) -> None:
    seconds = after.at_s - before.at_s
    replicas = f"{options.directories} log directories on ext4, {options.replicas} replicas"
    if options.guard:
        print(f"idle guard that acts, {replicas}, {options.cluster_replicas} in the cluster, {seconds:.0f} s\n")
    else:
        print(f"idle agent, {replicas}, a probe each {options.probe_interval_ms} ms, {seconds:.0f} s\n")
    print(f"{'process':<16}{'count':>6}{'PSS MiB':>10}{'CPU %':>8}{'switches/s':>12}{'open files':>12}")
    for cost in found:
        print(
            f"{cost.name:<16}{cost.count:>6}{cost.pss_mib:>10.1f}{cost.cpu_percent:>8.2f}"
            f"{cost.switches:>12.1f}{cost.open_files:>12}"
        )
    rates = request_rates(before, after)
    print(f"\n{'device requests per second':<28}{'reads':>8}{'writes':>8}{'flushes':>9}")
    for label, pick in (("directory with fewest", min), ("directory with most", max)):
        reads, writes, flushes = pick(rates, key=sum)
        print(f"{label:<28}{reads:>8.2f}{writes:>8.2f}{flushes:>9.2f}")
    together = found[-1]
    print(f"\n{'measure':<16}{'measured':>12}{'reach':>12}")
    for label, measured, reach, unit in (
        ("memory (PSS)", together.pss_mib, _reach_mib(options), "MiB"),
        ("processor", together.cpu_percent, REACH_CPU_PERCENT, "%"),
    ):
        verdict = "ok" if measured <= reach else "OVER"
        print(f"{label:<16}{f'{measured:.2f} {unit}':>12}{f'{reach:g} {unit}':>12}  {verdict}")


def _tell_kafka(options: argparse.Namespace, agent: Cost, peer: Cost) -> None:
    print(f"\n{'beside it':<34}{'PSS MiB':>10}{'CPU %':>8}")
    print(f"{f'agent, {options.replicas} replicas':<34}{agent.pss_mib:>10.1f}{agent.cpu_percent:>8.2f}")
    label = f"Kafka broker, {options.kafka_replicas} replicas"
    print(f"{label:<34}{peer.pss_mib:>10.1f}{peer.cpu_percent:>8.2f}")


def _write_csv(path: Path, rows: Sequence[tuple[str, Cost]], before: Snapshot, after: Snapshot) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["of", "process", "count", "pss_mib", "cpu_percent", "switches_per_s", "open_files"])
        for of, cost in rows:
            numbers = (f"{cost.pss_mib:.2f}", f"{cost.cpu_percent:.3f}", f"{cost.switches:.1f}")
            writer.writerow([of, cost.name, cost.count, *numbers, cost.open_files])
    with open(path.with_name("agent-cost-disks.csv"), "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["directory", "reads_per_s", "writes_per_s", "flushes_per_s"])
        for number, rates in enumerate(request_rates(before, after), 1):
            writer.writerow([number, *(f"{rate:.3f}" for rate in rates)])


if __name__ == "__main__":
    sys.exit(main())
