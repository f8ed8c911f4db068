"""``scripts/bench/guard correlated``: disks of several brokers stand still at once. Needs root."""

import argparse
import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from scripts.bench.command_line import listed, positive, seconds
from scripts.bench.guard_correlated_plan import (
    BROKERS,
    CONTROLLERS,
    FORMS,
    QUICK,
    QUICK_SETTLE_S,
    SETTLE_S,
    SKEWS_MS,
    STALLS_S,
    Outcome,
    Trial,
    has_failed,
    plan,
    summary,
    table,
)
from scripts.bench.guard_correlated_rig import CorrelatedRig
from scripts.bench.guard_trials import Benchmark
from scripts.rig.kafka import KafkaKit

RUNS: Final = "correlated.jsonl"
CUT_AFTER_MS: Final = 3000
"""The default for flash: the loop devices of this rig would get 10 s."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/guard correlated",
        description="Have a real disk of two or three real Kafka brokers stand still at once, with a guard that acts "
        "beside each broker and with Kafka alone. Results are added to those that --out has already; what is there is "
        "not measured again. Exit code 1 when an acknowledged record was lost with guards, or a partition is not "
        "served with guards that is served without. How to read the table: scripts/bench/README.md.",
    )
    parser.add_argument(
        "--forms", type=listed(FORMS), default=list(FORMS), metavar="A,B", help=f"{','.join(FORMS)} (both)"
    )
    parser.add_argument("--brokers", type=_numbers, default=list(BROKERS), metavar="N,N", help="2,3 (both)")
    parser.add_argument("--stalls", type=_numbers, default=list(STALLS_S), metavar="S,S", help="1,3,7,15,60 (all)")
    parser.add_argument(
        "--skews", type=_numbers, default=list(SKEWS_MS), metavar="MS,MS",
        help="from the stall of one broker to the stall of the next one (0,300,2000)",
    )  # fmt: skip
    parser.add_argument(
        "--controllers", type=listed(CONTROLLERS), default=list(CONTROLLERS), metavar="A,B",
        help=f"{','.join(CONTROLLERS)} (both)",
    )  # fmt: skip
    parser.add_argument(
        "--cut-after", type=positive, default=CUT_AFTER_MS, metavar="MS",
        help=f"kjbod.guard.cut.after.ms ({CUT_AFTER_MS}: the default for flash)",
    )  # fmt: skip
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="repetitions of each stall (1)")
    parser.add_argument("--for", type=seconds, dest="limit_s", metavar="S", help="begin no trial after so many seconds")
    parser.add_argument(
        "--quick", action="store_true", help="three stalls, with guards alone: do they wait? A minute and a half"
    )
    parser.add_argument("--table", action="store_true", help="measure nothing: the table of what --out has")
    parser.add_argument("--seed", type=int, default=858, metavar="N", help="of the order (858)")
    parser.add_argument(
        "--out", type=Path, default=Path("kjbod-bench/guard"), metavar="DIR",
        help=f"{RUNS}, correlated.md, correlated-logs (kjbod-bench/guard)",
    )  # fmt: skip
    return parser.parse_args(argv)


def _numbers(text: str) -> list[int]:
    return [0 if part == "0" else positive(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 1 when a record was lost, a partition is worse off, or nothing could be measured."""
    return _BENCHMARK.run(arguments(argv))


def _plan(options: argparse.Namespace, done: Sequence[Outcome], rng: random.Random) -> list[Trial]:
    measured = [outcome.trial for outcome in done]
    if options.quick:
        return [trial for trial in QUICK if trial not in measured]
    cells = (options.brokers, options.stalls, options.skews, options.controllers)
    return plan(options.forms, *cells, options.repeat, rng, measured)


@contextlib.contextmanager
def _cluster(
    options: argparse.Namespace, kit: KafkaKit, work: Path, logs: Path
) -> Iterator[Callable[[Trial], Outcome]]:
    settle_s = QUICK_SETTLE_S if options.quick else SETTLE_S
    with CorrelatedRig(kit, work, logs, {"kjbod.guard.cut.after.ms": options.cut_after}, settle_s) as rig:
        yield rig.measure


def progress(outcome: Outcome) -> str:
    """A line for a person."""
    trial = outcome.trial
    acts = " ".join(f"{act.broker}:{act.means} {act.at_ms:.0f}" for act in outcome.acts)
    served = f" NOT SERVED {outcome.not_served}" if outcome.not_served else ""
    ended = f" ended {outcome.ended}" if outcome.ended else ""
    lost = f"lost {outcome.lost}/{outcome.acknowledged}{served}{ended}"
    return (
        f"{trial.form:<6}{trial.brokers} of 3  {trial.stall_s:>2} s  skew {trial.skew_ms:>4} ms  {trial.controller:<8}"
        f"{trial.fstype:<5}pause {outcome.pause!s:>6}  {lost}  {acts}"
    )


def _tell(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    how = {
        "Cores:": f"{os.cpu_count()}",
        "Linux": os.uname().release,
        "kjbod.guard.cut.after.ms": f"{options.cut_after}",
        "seed": f"{options.seed}",
    }
    print(table(outcomes))
    out: Path = options.out
    (out / "correlated.md").write_text(summary(outcomes, how), encoding="utf-8")
    print(f"\n{out}: {RUNS}, correlated.md, correlated-logs")


_BENCHMARK: Final = Benchmark(
    name="scripts/bench/guard correlated",
    runs=RUNS,
    logs="correlated-logs",
    outcome=Outcome,
    plan=_plan,
    cluster=_cluster,
    progress=progress,
    tell=_tell,
    failed=has_failed,
)


if __name__ == "__main__":
    sys.exit(main())
