"""The quorum benchmark: which trials are done, which promise counts as kept, and its table."""

import functools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import require_real_disks
from scripts.bench.guard_trials import kept
from scripts.bench.quorum import RUNS
from scripts.bench.quorum_plan import (
    AGENT,
    ALONE,
    CASES,
    END_MS,
    FAILURE_TIMEOUT_MS,
    GUARDED,
    LASTING,
    Actor,
    Outcome,
    Trial,
    plan,
)
from scripts.bench.quorum_report import progress, table
from tests.depth import only_deep

LIMIT_MS = FAILURE_TIMEOUT_MS + END_MS


def outcome(case: str = "killed", repetition: int = 0, **actors: Actor) -> Outcome:
    well = {name: Actor(100.0, 1_500.0 + repetition * 100, 1_500.0) for name in (AGENT, GUARDED, ALONE)}
    return Outcome(Trial(case, repetition), active_ms=1_000.0, actors=well | actors)


def test_each_round_has_every_case_and_what_was_measured_is_not_measured_again() -> None:
    trials = plan(list(CASES), 2, random.Random(1), [Trial("killed", 0)])
    assert len(trials) == 2 * len(CASES) - 1
    assert {trial.case for trial in trials[len(CASES) - 1 :]} == set(CASES)
    assert all(trial.repetition == 0 for trial in trials[: len(CASES) - 1])


def test_the_moment_of_a_trial_is_the_same_in_each_run() -> None:
    assert Trial("killed", 3).offset_ms(858) == Trial("killed", 3).offset_ms(858)
    assert len({Trial("killed", number).offset_ms(858) for number in range(20)}) > 10


@pytest.mark.parametrize(
    ("actor", "is_kept"),
    [
        (Actor(1_000.0, recorded_ms=1_010.0), True),
        (Actor(1_000.0, ended_ms=1_000.0 + LIMIT_MS), True),
        (Actor(1_000.0, ended_ms=1_001.0 + LIMIT_MS), False),
        (Actor(1_000.0, recorded_ms=1_001.0 + LIMIT_MS), False),
        (Actor(1_000.0), False),
        (Actor(1_000.0, recorded_ms=1_010.0, wrong=1), False),
    ],
)
def test_a_failure_is_recorded_or_ends_its_broker_in_time_and_costs_no_healthy_directory(
    actor: Actor, is_kept: bool
) -> None:
    assert actor.is_kept is is_kept
    assert outcome(agent=actor).broken == ([] if is_kept else [AGENT])


def test_kafka_alone_has_promised_nothing() -> None:
    assert outcome(alone=Actor()).broken == []


def test_the_table_has_a_line_for_each_case_and_says_what_was_not_kept() -> None:
    lasting = next(iter(LASTING))
    told = table(
        [outcome(), outcome(repetition=1), outcome(lasting, agent=Actor(5.0, ended_ms=30_100.0, exit_code=74))]
    )
    lines = told.splitlines()
    assert (
        lines[2] == f"| {CASES['killed']} | 1.00, 1.00 (n 2) | 1.50, 1.60 (n 2) | 1.50, 1.60 (n 2) | 1.50, 1.60 (n 2) |"
    )
    assert "ended 30.10 (n 1), exit code 74" in lines[3]
    assert lines[-1] == (
        "Recorded, or ended in time: agent 3 of 3 and guard beside Kafka 3 of 3. Healthy directories taken offline: 0."
    )


def test_an_outcome_is_read_back_as_it_was_written() -> None:
    assert Outcome.from_json(outcome().to_json()) == outcome()
    assert "BROKEN agent" in progress(outcome(agent=Actor()))


@only_deep("a minute and more of four controllers and three brokers")
@pytest.mark.usefixtures("as_root", "kafka_kit")
@pytest.mark.timeout(600)
def test_a_failed_disk_is_recorded_by_the_next_controller(
    tmp_path: Path, machine_can: Callable[[Callable[[], None]], None]
) -> None:
    machine_can(functools.partial(require_real_disks, "ext4"))
    command = [sys.executable, "-m", "scripts.bench.quorum", "--cases", "killed,replaced", "--n", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "out")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = kept(tmp_path / "out" / RUNS, Outcome)
    assert {one.trial.case for one in found} == {"killed", "replaced"}
    assert all(one.actors[name].recorded_ms is not None for one in found for name in (AGENT, GUARDED))
