"""The guard's reach: what is planned, what counts as reached, and a few trials on a real cluster."""

import functools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from kjbod.faults.catalog import FAULTS as KNOWN
from kjbod.faults.disks import require_real_disks
from scripts.bench.guard_plan import FILE_SYSTEMS
from scripts.bench.guard_reach import RUNS, arguments, main
from scripts.bench.guard_reach_plan import (
    FAULTS,
    FORMS,
    Act,
    Cost,
    Outcome,
    Trial,
    false_acts,
    leaders_moved,
    plan,
    quantile,
)
from scripts.bench.guard_reach_report import REACHES, reach_table, spread, summary
from scripts.bench.guard_trials import keep, kept
from scripts.rig.pauses import CLASSES, FOLLOWED_HEALTHY, LED_BAD, LED_HEALTHY, Pause
from tests.depth import only_deep


def test_every_fault_is_one_that_can_be_injected_and_every_line_is_about_some() -> None:
    assert {name for name in FAULTS.values() if name} <= set(KNOWN)
    named = {fault for reach in REACHES for fault in reach.faults}
    assert named == set(FAULTS) - {"none"}


def test_a_run_that_goes_on_does_what_is_left_and_each_round_covers_the_table() -> None:
    counts = {"hung": 3, "slow": 1, "restart": 1}
    trials = plan(FORMS, counts, random.Random(1))
    assert len(set(trials)) == len(trials) == 3 * 5 + 5 + 4, "a broker that was given up is not restarted"
    assert {trial.fault for trial in trials[:14]} == set(counts)
    assert plan(FORMS, counts, random.Random(1), done=trials[:5]) == trials[5:]


def test_the_moment_of_a_fault_is_random_and_the_same_for_the_same_seed() -> None:
    moments = {Trial("guard", "hung", number).phase_ms(858) for number in range(50)}
    assert len(moments) > 40 and max(moments) < 5000
    assert Trial("guard", "hung", 3).phase_ms(858) == Trial("guard", "hung", 3).phase_ms(858)
    assert [Trial("guard", "hung", number).fstype for number in (0, 1)] == ["ext4", "xfs"]


@pytest.mark.parametrize(
    ("fault", "act", "false"),
    [
        ("hung", Act(2700, "cut", True), False),
        ("hung", Act(2700, "kill", None), False),
        ("hung", Act(-100, "cut", True), True),
        ("hung", Act(-100, "trust", None), False),
        ("hung", Act(2700, "cut", False), True),
        ("slow", Act(2700, "cut", True), True),
        ("full", Act(2700, "evict", True), False),
        ("full", Act(2700, "mask", True), True),
        ("none", Act(2700, "evict", True), True),
    ],
)
def test_what_is_done_to_a_disk_that_works_or_to_another_one_is_false(fault: str, act: Act, false: bool) -> None:
    assert false_acts(Trial("guard", fault, 0), [act]) == ([act] if false else [])


def test_leaders_have_moved_when_the_last_one_has() -> None:
    assert leaders_moved([1, 2], {1: 100.0, 2: 300.0, 3: 900.0}) == 300
    assert leaders_moved([1, 2], {1: 100.0}) is None


def test_a_quantile_is_a_value_that_was_measured() -> None:
    assert quantile([float(n) for n in range(1, 101)], 0.99) == 99
    assert quantile([], 0.5) == 0


def outcome(form: str, fault: str, number: int, ms: float, *, ended: bool = True, **fields: object) -> Outcome:
    made = Outcome(Trial(form, fault, number), watch_ms=12_000, broker="kept", acknowledged=100)
    made.pauses = {name: Pause(100, 0, True) for name in CLASSES} | {LED_BAD: Pause(ms, 2700, ended)}
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def line(outcomes: list[Outcome], name: str) -> list[str]:
    (found,) = [row for row in reach_table(outcomes).splitlines() if row.startswith(f"| {name} |")]
    return [cell.strip() for cell in found.split("|")[2:-1]]


def test_the_table_has_a_target_and_says_where_it_is_missed() -> None:
    outcomes = [outcome("guard", "hung", number, ms) for number, ms in enumerate((300, 400, 1900))]
    outcomes.append(outcome("alone", "hung", 0, 9300, ended=False))
    outcomes.append(outcome("hdd", "hung", 0, 9000))
    target, guard, hdd, alone = line(outcomes, "hung: led on the bad disk")
    assert (target, guard, alone) == ("median ≤ 0.5 s, worst ≤ 2 s", "0.40 / 1.90 (n 3) ✓", ">9.30 (n 1)")
    assert hdd.startswith("9.00 (n 1)"), "forms that were not measured have no column"
    outcomes.append(outcome("guard", "hung", 3, 2100))
    assert line(outcomes, "hung: led on the bad disk")[1] == "1.15 / 2.10 (n 4) **missed**"
    outcomes[3:] = [outcome("guard", "hung", 3, 100, ended=False)]
    assert line(outcomes, "hung: led on the bad disk")[1] == "1.15 / >0.10 (n 4) **missed**"


def test_nine_of_ten_are_enough_where_the_target_says_so() -> None:
    outcomes = [outcome("guard", "hung", number, 300) for number in range(10)]
    outcomes[0].pauses[LED_HEALTHY] = Pause(450, 0, True)
    assert line(outcomes, "hung: healthy disks")[1] == "0.10 / 0.45 (n 10) ✓"
    outcomes[1].pauses[LED_HEALTHY] = Pause(250, 0, True)
    assert line(outcomes, "hung: healthy disks")[1] == "0.10 / 0.45 (n 10) **missed**"


def test_the_table_counts_brokers_records_and_false_actions() -> None:
    outcomes = [outcome("guard", "hung", 0, 300), outcome("guard", "hung", 1, 300, broker="ended", lost=2)]
    outcomes.append(outcome("guard", "slow", 0, 300, acts=[Act(900, "cut", True)]))
    assert line(outcomes, "hung, ext4 and XFS: broker kept")[1] == "1 of 2, ended 1 **missed**"
    assert line(outcomes, "acknowledged records lost, all trials")[1] == "2 of 300 **missed**"
    assert line(outcomes, "false actions, all trials")[1:] == ["1 (n 3) **missed**"]


def test_times_count_from_the_verdict_and_from_the_end_of_the_old_process_where_the_target_does() -> None:
    recorded = outcome("guard", "hung", 0, 300, verdict_ms=2700.0, recorded_ms=2850.0)
    assert line([recorded], "hung: directory recorded offline, after the verdict")[1] == "0.15 (n 1) ✓"
    fenced = outcome("fence", "hung", 0, 400, verdict_ms=2700.0)
    assert line([fenced], "hung: all written again, after the verdict")[1] == "0.40 (n 1) ✓"
    fenced.pauses[FOLLOWED_HEALTHY] = Pause(60, 9_000, True)  # as there are without any fault
    assert line([fenced], "hung: all written again, after the verdict")[1] == "0.40 (n 1) ✓"
    restarted = outcome("guard", "restart", 0, 400, ended_ms=6100.0, served_ms=17_100.0)
    name = "restart beside the hung disk: serves, after the old process ended"
    assert line([restarted], name)[1] == "11.00 (n 1) ✓"


def test_a_cost_on_few_disks_proves_no_target_and_a_producers_wait_is_that_beside_kafka_alone() -> None:
    outcomes = [
        outcome("guard", "none", 0, 50, cost=Cost(50.2, 2.5, 3.0, 10.0)),
        outcome("alone", "none", 0, 50, cost=Cost(0, 0, 3.0, 9.0)),
    ]
    assert line(outcomes, "memory of the guard, 3 directories")[1] == "50.2 MiB (n 1)"
    assert line(outcomes, "processor, 3 directories")[1] == "2.5 % (n 1) **missed**"
    cells = line(outcomes, "a producer's p99, nothing broken")[1:]
    assert cells == ["10.0 ms (n 1), 1.11 of without **missed**", "9.0 ms (n 1)"]


def test_what_had_not_ended_is_worse_than_what_had() -> None:
    assert spread([]) == "-"
    assert spread([(9000, True), (500, False), (300, True)]) == "9.00 / >0.50 (n 3)"


@pytest.mark.usefixtures("world")  # matplotlib asks fc-list for fonts, once on a machine
def test_outcomes_are_the_same_when_they_are_read_back_and_are_drawn(tmp_path: Path) -> None:
    from scripts.bench.guard_reach_plot import draw  # with matplotlib, which each worker would import

    made = [
        outcome("guard", "hung", 0, 300, acts=[Act(2700, "cut", True)], verdict_ms=2690.0),
        outcome("alone", "none", 0, 60, cost=Cost(0, 0, 2.0, 9.0)),
    ]
    for one in made:
        keep(tmp_path / RUNS, one)
    assert kept(tmp_path / RUNS, Outcome) == made
    assert "| guard | hung | ext4 | 300 | 100 | 100 | 100 | 2690 | - | cut 2700 | kept |" in summary(made, "How.")
    draw(made, tmp_path / "reach")
    assert (tmp_path / "reach.svg").stat().st_size > 1000


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """The command sets logging for its whole process."""
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("logging_as_before", "world")  # matplotlib, as above
def test_a_table_of_what_was_measured_fails_where_something_was_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = ["--table", "--out", str(tmp_path)]
    keep(tmp_path / RUNS, outcome("guard", "hung", 0, 300))
    assert main(again) == 0
    keep(tmp_path / RUNS, outcome("guard", "hung", 1, 300, lost=1))
    assert main(again) == 1
    assert reach_table(kept(tmp_path / RUNS, Outcome)) in capsys.readouterr().out


def test_a_mistake_in_the_command_line_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["--faults=hang"])
    assert "hang: choose from none, hung" in capsys.readouterr().err


@only_deep("a minute and more of three brokers")
@pytest.mark.usefixtures("as_root", "kafka_kit")
@pytest.mark.timeout(300)
def test_a_guard_keeps_the_broker_beside_a_hung_disk_and_leaves_one_alone_that_is_slow(
    tmp_path: Path, machine_can: Callable[[Callable[[], None]], None]
) -> None:
    for fstype in FILE_SYSTEMS:
        machine_can(functools.partial(require_real_disks, fstype))
    command = [sys.executable, "-m", "scripts.bench.guard", "reach", "--forms", "guard", "--faults", "hung,slow"]
    command += ["--hung", "1", "--n", "1", "--watch", "8", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {one.trial.fault: one for one in kept(tmp_path / "out" / RUNS, Outcome)}
    assert {one.broker for one in found.values()} == {"kept"}, found
    assert [act.means for act in found["hung"].acts] == ["report", "cut", "evict"] and not found["slow"].acts
    assert all(pause.ended for one in found.values() for pause in one.pauses.values()), found
    names = {RUNS, "reach.md", "reach.svg", "reach.png", "reach-logs"}
    assert {file.name for file in (tmp_path / "out").iterdir()} == names
