"""``scripts/bench/guard reach``: what clients of an unmodified Kafka see with a guard, and without one. Needs root."""

import argparse
import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from scripts.bench import guard_reach_report as report
from scripts.bench.command_line import broker_property, listed, positive, seconds
from scripts.bench.guard_reach_plan import FAULTS, FORMS, HELD_TIMEOUT_MS, Outcome, Trial, plan
from scripts.bench.guard_reach_rig import ReachRig
from scripts.bench.guard_trials import Benchmark
from scripts.rig.kafka import KafkaKit
from scripts.rig.pauses import CLASSES

RUNS: Final = "reach.jsonl"
HUNG: Final = 20
OTHERS: Final = 5


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/guard reach",
        description="Break a real disk of one of three real Kafka brokers at a random moment, with a guard that acts, "
        "with one that fences the broker first, and with Kafka alone, and put side by side how long clients stand "
        "still. Results are added to those that --out has already; what is there is not measured again. Exit code 1 "
        "when an acknowledged record was lost or the guard did what it should not. How to read the table: "
        "scripts/bench/README.md.",
    )
    parser.add_argument(
        "--forms",
        type=listed(FORMS),
        default=list(FORMS),
        metavar="A,B",
        help=f"{','.join(FORMS)} (all): guards that wait 3 s, 1.9 s or 10 s for a disk, or fence first, and none",
    )
    parser.add_argument(
        "--faults", type=listed(tuple(FAULTS)), default=list(FAULTS), metavar="A,B", help=f"{','.join(FAULTS)} (all)"
    )
    parser.add_argument("--hung", type=positive, default=HUNG, metavar="N", help=f"repetitions of hung ({HUNG})")
    parser.add_argument("--n", type=positive, default=OTHERS, metavar="N", help=f"of each other fault ({OTHERS})")
    parser.add_argument(
        "--watch", type=seconds, default=12.0, metavar="S", help="how long each trial is looked on, from the fault (12)"
    )
    parser.add_argument("--for", type=seconds, dest="limit_s", metavar="S", help="begin no trial after so many seconds")
    parser.add_argument(
        "--broker", type=broker_property, action="append", default=[("replica.fetch.backoff.ms", "100")],
        metavar="KEY=VALUE", help="a further line of the brokers' server.properties",
    )  # fmt: skip
    parser.add_argument("--table", action="store_true", help="measure nothing: table and plot of what --out has")
    parser.add_argument("--seed", type=int, default=858, metavar="N", help="of the order and the moments (858)")
    parser.add_argument(
        "--out", type=Path, default=Path("kjbod-bench/guard"), metavar="DIR",
        help=f"{RUNS}, reach.md, reach.png and .svg, reach-logs (kjbod-bench/guard)",
    )  # fmt: skip
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 1 when something was lost, done by mistake, or nothing could be measured."""
    return _BENCHMARK.run(arguments(argv))


def _plan(options: argparse.Namespace, done: Sequence[Outcome], rng: random.Random) -> list[Trial]:
    counts = {fault: options.hung if fault == "hung" else options.n for fault in options.faults}
    return plan(options.forms, counts, rng, [outcome.trial for outcome in done])


@contextlib.contextmanager
def _cluster(
    options: argparse.Namespace, kit: KafkaKit, work: Path, logs: Path
) -> Iterator[Callable[[Trial], Outcome]]:
    with ReachRig(kit, work, logs, round(options.watch * 1000), dict(options.broker)) as rig:
        yield lambda trial: rig.measure(trial, trial.phase_ms(options.seed))


def progress(outcome: Outcome) -> str:
    """A line for a person."""
    trial: Trial = outcome.trial
    pauses = " ".join(f"{outcome.pauses.get(name, '-')!s:>7}" for name in CLASSES)
    steps = " ".join(f"{act.means} {act.at_ms:.0f}" for act in outcome.acts)
    wrong = f" FALSE {len(outcome.false_acts)}" if outcome.false_acts else ""
    moments = {"verdict": outcome.verdict_ms, "recorded": outcome.recorded_ms, "moved": outcome.moved_ms,
               "ended": outcome.ended_ms, "served": outcome.served_ms}  # fmt: skip
    known = " ".join(f"{name} {moment:.0f}" for name, moment in moments.items() if moment is not None)
    return (
        f"{trial.form:<6}{trial.fault:<12}{trial.fstype:<5}{pauses}  {outcome.broker:<9}"
        f"lost {outcome.lost}/{outcome.acknowledged}{wrong}  {known}  {steps}"
    )


def _tell(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    from scripts.bench.guard_reach_plot import draw

    further = ", ".join(f"{key}={value}" for key, value in options.broker)
    how = (
        f"{len(outcomes)} trials on {os.cpu_count()} cores, Linux {os.uname().release}, seed {options.seed}, "
        f"{further}, kjbod.held.timeout.ms={HELD_TIMEOUT_MS}."
    )
    print(report.reach_table(outcomes))
    out: Path = options.out
    (out / "reach.md").write_text(report.summary(outcomes, how), encoding="utf-8")
    draw(outcomes, out / "reach")
    print(f"\n{out}: {RUNS}, reach.md, reach.svg, reach.png, reach-logs")


_BENCHMARK: Final = Benchmark(
    name="scripts/bench/guard reach",
    runs=RUNS,
    logs="reach-logs",
    outcome=Outcome,
    plan=_plan,
    cluster=_cluster,
    progress=progress,
    tell=_tell,
    failed=lambda outcomes: any(outcome.lost or outcome.false_acts for outcome in outcomes),
)


if __name__ == "__main__":
    sys.exit(main())
