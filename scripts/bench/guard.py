"""``scripts/bench/guard``: what each means against a bad disk costs the clients of an unmodified Kafka. Needs root."""

import argparse
import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kjbod.errors import KjbodError
from scripts.bench import guard_correlated, guard_reach
from scripts.bench import guard_report as report
from scripts.bench.command_line import broker_property, listed, positive, seconds
from scripts.bench.guard_plan import (
    FAULTS,
    FILE_SYSTEMS,
    MEANS,
    PHASES_MS,
    QUICK_PHASE_MS,
    USUAL_MEANS,
    Outcome,
    Trial,
    plan,
)
from scripts.bench.guard_rig import GuardRig, Timing
from scripts.bench.guard_trials import Benchmark
from scripts.rig.kafka import KafkaKit
from scripts.rig.pauses import CLASSES

FORMS: Final = {"reach": guard_reach.main, "correlated": guard_correlated.main}
"""Benchmarks of their own, by the first argument."""
_RUNS: Final = "runs.jsonl"
_QUICK_WATCH_MS: Final = 3000


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench/guard",
        description="Break a real disk under one of three real Kafka brokers at each phase of its checkpoint, do "
        "something about it, and measure how long clients stand still. Results are added to those that --out has "
        "already; what is there is not measured again. Exit code 1 when an acknowledged record was lost. How to read "
        "the tables: scripts/bench/README.md.",
    )
    parser.add_argument(
        "--means", type=listed(MEANS), default=list(USUAL_MEANS), metavar="A,B",
        help=f"{','.join(MEANS)} (all but the last two)",
    )  # fmt: skip
    parser.add_argument("--faults", type=listed(FAULTS), default=["hang"], metavar="A,B", help=f"{','.join(FAULTS)}")
    parser.add_argument("--fs", type=listed(FILE_SYSTEMS), default=["ext4"], metavar="A,B", help="ext4,xfs (ext4)")
    parser.add_argument(
        "--phases", type=_phases, default=list(PHASES_MS), metavar="MS,MS",
        help="from the fault to the broker's next checkpoint (500,1000,...,5000)",
    )  # fmt: skip
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="repetitions of each phase (1)")
    parser.add_argument(
        "--act-ms", type=positive, default=2700, metavar="MS", help="from the fault to the means (2700)"
    )
    parser.add_argument(
        "--back", type=_moments, default=[0], metavar="MS,MS",
        help="from the last step to the moment when the disk answers again; 0: it does not (0)",
    )  # fmt: skip
    parser.add_argument("--watch", type=seconds, default=8.0, metavar="S", help="from then on (8)")
    parser.add_argument("--for", type=seconds, dest="limit_s", metavar="S", help="begin no trial after so many seconds")
    parser.add_argument(
        "--broker", type=broker_property, action="append", default=[], metavar="KEY=VALUE",
        help="a further line of the brokers' server.properties",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one trial, cut and evict: does it work here? A minute")
    parser.add_argument("--table", action="store_true", help="measure nothing: tables and plot of what --out has")
    parser.add_argument("--seed", type=int, default=858, metavar="N", help="of the order (858)")
    parser.add_argument(
        "--out", type=Path, default=Path("kjbod-bench/guard"), metavar="DIR",
        help=f"{_RUNS}, summary.md, guard.png and .svg, logs (kjbod-bench/guard)",
    )  # fmt: skip
    return parser.parse_args(argv)


def _phases(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def _moments(text: str) -> list[int]:
    return [0 if part == "0" else positive(part) for part in text.split(",")]


def main() -> int:
    """The exit code: 1 when something acknowledged was lost, or nothing could be measured."""
    if sys.argv[1:] and (own := FORMS.get(sys.argv[1])) is not None:
        return own(sys.argv[2:])
    return _BENCHMARK.run(arguments())


def _plan(options: argparse.Namespace, done: Sequence[Outcome], rng: random.Random) -> list[Trial]:
    if options.quick:
        return [Trial("cut-evict", "hang", "ext4", QUICK_PHASE_MS)]
    measured = [outcome.trial for outcome in done]
    cells = (options.means, options.faults, options.fs, options.phases, options.repeat)
    return plan(*cells, rng, measured, options.back)


@contextlib.contextmanager
def _cluster(
    options: argparse.Namespace, kit: KafkaKit, work: Path, logs: Path
) -> Iterator[Callable[[Trial], Outcome]]:
    timing = Timing(options.act_ms, _QUICK_WATCH_MS if options.quick else round(options.watch * 1000))
    with GuardRig(kit, work, logs, timing, dict(options.broker)) as rig:
        yield rig.run


def progress(outcome: Outcome) -> str:
    """A line for a person."""
    trial = outcome.trial
    pauses = "  ".join(f"{outcome.pauses.get(name, '-')!s:>7}" for name in CLASSES)
    acts = " ".join(f"{name} {moment:.0f}" for name, moment in outcome.acts.items() if moment is not None)
    disconnected = f"disconnected {outcome.disconnected} " if outcome.disconnected else ""
    return (
        f"{trial.means:<24}{trial.fault:<12}{trial.fstype:<5}{trial.phase_ms:>5} {pauses}  {outcome.broker:<9}"
        f"{disconnected}lost {outcome.lost}/{outcome.acknowledged}  {acts}"
    )


def _tell(outcomes: Sequence[Outcome], options: argparse.Namespace) -> None:
    from scripts.bench.guard_plot import draw

    host = os.uname()
    further = "".join(f", {key}={value}" for key, value in options.broker)
    how = (
        f"{len(outcomes)} trials on {os.cpu_count()} cores, Linux {host.release}, seed {options.seed}; what is done is "
        f"done {options.act_ms / 1000:g} s after the fault{further}."
    )
    print(report.pause_table(outcomes))
    out: Path = options.out
    (out / "summary.md").write_text(report.summary(outcomes, how), encoding="utf-8")
    draw(outcomes, out / "guard")
    print(f"\n{out}: {_RUNS}, summary.md, guard.svg, guard.png, logs")


_BENCHMARK: Final = Benchmark(
    name="scripts/bench/guard",
    runs=_RUNS,
    logs="logs",
    outcome=Outcome,
    plan=_plan,
    cluster=_cluster,
    progress=progress,
    tell=_tell,
    failed=lambda outcomes: any(outcome.lost for outcome in outcomes),
)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KjbodError as trouble:
        sys.exit(str(trouble))
