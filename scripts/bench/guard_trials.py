"""Run of a guard benchmark: trial after trial on one cluster, each kept as it is measured."""

import argparse
import contextlib
import logging
import random
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.faults.disks import require_real_disks
from scripts.bench.command_line import (
    INTERRUPTED,
    Say,
    add_line,
    catch_signals,
    make_directory,
    make_logs,
    read_lines,
    stopwatch,
    work_directory,
)
from scripts.bench.guard_plan import FILE_SYSTEMS
from scripts.bench.json_record import JsonRecord
from scripts.rig import namespaces
from scripts.rig.kafka import KafkaKit

TrialT = TypeVar("TrialT")
OutcomeT = TypeVar("OutcomeT", bound=JsonRecord)


@dataclass(frozen=True, slots=True)
class Benchmark(Generic[TrialT, OutcomeT]):
    """Parts in which the guard benchmarks differ. ``options`` are the command line's; ``out``, ``table``, ``seed`` and
    ``limit_s`` are among them.

    Attributes:
        name: of the command.
        runs: name of the file of outcomes in ``--out``, JSON lines.
        logs: name of the directory of logs there.
        outcome: class of the outcomes.
        plan: trials that are left, of ``options`` and what was measured so far, in an order by random numbers.
        cluster: a cluster while its block runs, of ``options``, Kafka, its directory and that of logs; it gives what
            measures a trial.
        progress: a line for a person about an outcome.
        tell: prints and writes what all outcomes say.
        failed: whether something is among all outcomes that must not be.
    """

    name: str
    runs: str
    logs: str
    outcome: type[OutcomeT]
    plan: Callable[[argparse.Namespace, Sequence[OutcomeT], random.Random], list[TrialT]]
    cluster: Callable[
        [argparse.Namespace, KafkaKit, Path, Path], contextlib.AbstractContextManager[Callable[[TrialT], OutcomeT]]
    ]
    progress: Callable[[OutcomeT], str]
    tell: Callable[[Sequence[OutcomeT], argparse.Namespace], None]
    failed: Callable[[Sequence[OutcomeT]], bool]

    def run(self, options: argparse.Namespace) -> int:
        """The exit code: 1 when an outcome has failed, or nothing could be measured."""
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        started, say = stopwatch()
        file: Path = options.out / self.runs
        code = 0
        try:
            make_directory(options.out)
            if not options.table:
                namespaces.reexec()
                for fstype in FILE_SYSTEMS:
                    require_real_disks(fstype)
                kit = KafkaKit.find()
                namespaces.enter_network()
                catch_signals()
                with contextlib.closing(self._measured(options, kit, say, started)) as measured:
                    for outcome in measured:
                        keep(file, outcome)
                        say(self.progress(outcome))
        except KeyboardInterrupt:
            code = INTERRUPTED
            say("interrupted; everything was taken away")
        except KjbodError as error:
            print(f"{self.name}: {error}", file=sys.stderr)
            code = EXIT_FAILURE
        outcomes = kept(file, self.outcome)
        if outcomes:
            self.tell(outcomes, options)
        return code or (EXIT_FAILURE if self.failed(outcomes) else 0)

    def _measured(
        self, options: argparse.Namespace, kit: KafkaKit, say: Say, started: float
    ) -> Generator[OutcomeT, None, None]:
        """Every trial that ``--out`` does not have yet."""
        done = kept(options.out / self.runs, self.outcome)
        trials = self.plan(options, done, random.Random(options.seed))
        say(f"{len(trials)} trials to do, {len(done)} done, seed {options.seed}")
        if not trials:
            return
        logs = make_logs(options.out.absolute() / self.logs)
        with work_directory() as work, self.cluster(options, kit, work, logs) as measure:
            say("the cluster is up")
            for trial in trials:
                if options.limit_s is not None and time.monotonic() - started > options.limit_s:
                    say(f"{options.limit_s:g} s are over: run it again for the rest")
                    return
                yield measure(trial)


def keep(file: Path, outcome: JsonRecord) -> None:
    """Add an outcome to a file of JSON lines."""
    add_line(file, outcome.to_json())


def kept(file: Path, kind: type[OutcomeT]) -> list[OutcomeT]:
    """The outcomes of such a file; none where there is no file."""
    return [kind.from_json(values) for values in read_lines(file)]
