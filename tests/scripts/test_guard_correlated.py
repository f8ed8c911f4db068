"""The correlated stalls: which are measured, which promise counts as kept, and three of them on a real cluster."""

import functools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.disks import require_real_disks
from scripts.bench.guard_correlated import RUNS
from scripts.bench.guard_correlated_plan import (
    ALONE,
    FORMS,
    GUARD,
    QUICK,
    STOPPED,
    THERE,
    Act,
    Outcome,
    Trial,
    has_failed,
    plan,
    table,
)
from scripts.bench.guard_plan import FILE_SYSTEMS
from scripts.bench.guard_trials import kept
from scripts.rig.pauses import Pause

IRREVERSIBLE = {"report", "cut", "mask", "evict", "kill", "fence"}


def outcome(form: str, lost: int = 0, not_served: tuple[int, ...] = ()) -> Outcome:
    acts = [Act(1, 2_100.0, "suspect"), Act(1, 3_200.0, "cut")] if form == GUARD else []
    trial = Trial(form, 3, 7, 300, THERE)
    return Outcome(trial, Pause(1_500, 0, True), list(not_served), acts=acts, acknowledged=100, lost=lost)


def test_the_forms_of_a_stall_follow_each_other_and_what_was_measured_is_not_measured_again() -> None:
    asked = (FORMS, [2, 3], [1, 7], [0, 300], [THERE, STOPPED], 2)
    trials = plan(*asked, random.Random(1))
    assert len(set(trials)) == len(trials) == 64
    assert all(first.cell == second.cell for first, second in zip(trials[::2], trials[1::2], strict=True))
    assert plan(*asked, random.Random(1), trials[:5]) == trials[5:]


def test_a_lost_record_and_a_partition_that_kafka_alone_serves_are_failures() -> None:
    alone = outcome(ALONE, not_served=(2,))
    assert not has_failed([outcome(GUARD, not_served=(2,)), alone])
    assert has_failed([outcome(GUARD, not_served=(2, 4)), alone])
    assert has_failed([outcome(GUARD, lost=1), alone])
    assert not has_failed([outcome(GUARD), outcome(ALONE, lost=1)])
    assert table([outcome(GUARD), alone]).splitlines()[-1] == (
        "| 3 of 3 | 7 s | 0.3 s | there | 1.5 | 1.5 | 1 | 0 of 100 | 0 |"
    )


ONCE_LOST_ALL = Trial(GUARD, 3, 7, 300, THERE)
"""Guards that did not wait for each other destroyed every copy of 1,800 acknowledged records in this one."""


@pytest.mark.usefixtures("as_root", "kafka_kit")
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "trial",
    [
        pytest.param(
            trial,
            id=f"{trial.brokers}-{trial.stall_s}s-{trial.skew_ms}ms-{trial.controller}",
            marks=[pytest.mark.every_run] if trial == ONCE_LOST_ALL else [],
        )
        for trial in QUICK
    ],
)
def test_guards_whose_disks_stand_still_at_once_lose_no_record_and_cut_one_disk_at_most(
    tmp_path: Path, machine_can: Callable[[Callable[[], None]], None], trial: Trial
) -> None:
    for fstype in FILE_SYSTEMS:
        machine_can(functools.partial(require_real_disks, fstype))
    which = [
        *("--forms", trial.form, "--brokers", str(trial.brokers), "--stalls", str(trial.stall_s)),
        *("--skews", str(trial.skew_ms), "--controllers", trial.controller),
    ]
    command = [sys.executable, "-m", "scripts.bench.guard", "correlated", *which, "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    (one,) = kept(tmp_path / "out" / RUNS, Outcome)
    assert one.trial == trial
    assert (one.lost, one.not_served, one.ended) == (0, [], []) and one.acknowledged, one
    # On a busy machine one guard may see its disk answer, or hang, seconds before another: it alone may act then.
    assert len({act.broker for act in one.acts if act.means in IRREVERSIBLE}) <= 1, one


def test_the_stall_that_once_lost_all_is_in_the_quick_form() -> None:
    assert ONCE_LOST_ALL in QUICK
