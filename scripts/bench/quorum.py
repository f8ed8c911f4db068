"""``scripts/bench/quorum``: disks fail while the active one of three real controllers is lost. Needs root."""

import argparse
import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from scripts.bench import quorum_report as report
from scripts.bench.command_line import listed, positive, seconds
from scripts.bench.guard_trials import Benchmark
from scripts.bench.quorum_plan import CASES, Outcome, Trial, plan
from scripts.bench.quorum_rig import QuorumRig
from scripts.rig.kafka import KafkaKit

RUNS: Final = "quorum.jsonl"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/quorum",
        description="Let a disk fail under an agent, under a real broker with a guard and under one without, while "
        "the active one of three real Kafka controllers is killed, stopped, cut off or replaced (KIP-853), and tell "
        "when the failure was recorded. Results are added to those that --out has already; what is there is not "
        "measured again. Exit code 1 when a failure was neither recorded nor ended its broker in "
        "log.dir.failure.timeout.ms, or a healthy directory was taken offline.",
    )
    parser.add_argument(
        "--cases", type=listed(tuple(CASES)), default=list(CASES), metavar="A,B", help=f"{','.join(CASES)} (all)"
    )
    parser.add_argument("--n", type=positive, default=5, metavar="N", help="repetitions of each (5)")
    parser.add_argument("--for", type=seconds, dest="limit_s", metavar="S", help="begin no trial after so many seconds")
    parser.add_argument("--table", action="store_true", help="measure nothing: the table of what --out has")
    parser.add_argument("--seed", type=int, default=858, metavar="N", help="of the order and the moments (858)")
    parser.add_argument(
        "--out", type=Path, default=Path("kjbod-bench/quorum"), metavar="DIR",
        help=f"{RUNS}, quorum.md, logs (kjbod-bench/quorum)",
    )  # fmt: skip
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 1 when a promise was not kept, or nothing could be measured."""
    return _BENCHMARK.run(arguments(argv))


def _plan(options: argparse.Namespace, done: Sequence[Outcome], rng: random.Random) -> list[Trial]:
    return plan(options.cases, options.n, rng, [outcome.trial for outcome in done])


@contextlib.contextmanager
def _cluster(
    options: argparse.Namespace, kit: KafkaKit, work: Path, logs: Path
) -> Iterator[Callable[[Trial], Outcome]]:
    with QuorumRig(kit, work, logs) as rig:
        yield lambda trial: rig.measure(trial, trial.offset_ms(options.seed))


def _tell(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    table = report.table(outcomes)
    how = f"{len(outcomes)} trials on {os.cpu_count()} cores, Linux {os.uname().release}, seed {options.seed}."
    out: Path = options.out
    (out / "quorum.md").write_text(f"{table}\n\n{how}\n", encoding="utf-8")
    print(table)
    print(f"\n{out}: {RUNS}, quorum.md, logs")


_BENCHMARK: Final = Benchmark(
    name="scripts/bench/quorum",
    runs=RUNS,
    logs="logs",
    outcome=Outcome,
    plan=_plan,
    cluster=_cluster,
    progress=report.progress,
    tell=_tell,
    failed=lambda outcomes: any(outcome.broken for outcome in outcomes),
)


if __name__ == "__main__":
    sys.exit(main())
