"""Every fault on real disks under a real agent: the right verdict, on that disk only. The benchmark's own rig.

On which file system and under which load is drawn for each fault, and some cells more; the deep form has the whole
matrix. With repetitions and figures that is ``scripts/bench/detection``.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kjbod.faults.catalog import FAULTS
from kjbod.faults.disks import require_real_disks
from kjbod.faults.faults_error import FaultsError
from scripts.bench import detection_report as report
from scripts.bench.command_line import make_logs
from scripts.bench.detection import arguments, run_agents
from scripts.bench.detection_agents import PROBE_INTERVAL_MS
from scripts.bench.detection_kafka import KafkaRig, brokers_of
from scripts.bench.detection_plan import (
    FILE_SYSTEMS,
    LOADS,
    NOT_POSSIBLE,
    RUNS_PER_LIFE,
    Cell,
    Outcome,
    cells,
    lives,
    plan,
    quick_cells,
)
from scripts.rig.kafka import KafkaKit
from scripts.rig.rig_error import RigError
from tests.depth import at, sample, seeded
from tests.preloading import preloaded

QUICK = quick_cells(FAULTS, list(FAULTS))
ONE_OF_EACH_FAULT = [
    cell
    for fault in sample(list(FAULTS), ci=len(FAULTS))
    for cell in sample(cells(FAULTS, [fault], FILE_SYSTEMS, LOADS), ci=1, salt=fault)
]
OTHERS = [cell for cell in cells(FAULTS, list(FAULTS), FILE_SYSTEMS, LOADS) if cell not in ONE_OF_EACH_FAULT]
CHOSEN = ONE_OF_EACH_FAULT + sample(OTHERS, ci=len(QUICK) - len(FAULTS))
KAFKA_WAIT_S = 60.0
Outcomes = dict[Cell, Outcome]


def _silent(_text: str) -> None:
    return


def _can_make(fstype: str) -> bool:
    try:
        require_real_disks(fstype)
    except FaultsError:
        return False
    return True


# the matrix ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """All runs, under one controller and a handful of agents."""
    work = tmp_path_factory.mktemp("matrix")
    usable = [cell for cell in CHOSEN if _can_make(cell.fstype)]
    thorough = at(quick=False, ci=False, deep=True)
    runs = plan(usable, FAULTS, 1, random.Random(858), PROBE_INTERVAL_MS, thorough=thorough)
    return {outcome.cell: outcome for outcome in run_agents(runs, work, work / "logs", _silent, preloaded())}


@pytest.mark.every_run
@pytest.mark.usefixtures("as_root")
@pytest.mark.xdist_group("matrix")  # which is made once
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", CHOSEN, ids=lambda cell: seeded(f"{cell.fault}-{cell.fstype}-{cell.load}"))
def test_every_fault_gets_the_right_verdict_and_no_other_disk_gets_any(
    cell: Cell, machine_can: Callable[[Callable[[], None]], None], matrix: Outcomes
) -> None:
    machine_can(lambda: require_real_disks(cell.fstype))
    outcome = matrix[cell]
    assert outcome.ok, f"{outcome.wrong} [{outcome.final}, {outcome.cause}: {outcome.evidence}]"
    if outcome.final == NOT_POSSIBLE:
        assert not FAULTS[cell.fault].while_busy
        return
    assert outcome.final in FAULTS[cell.fault].expect(cell.fstype).states
    assert (outcome.final == "failed") == (outcome.recorded_ms is not None)


@pytest.mark.usefixtures("as_root")
@pytest.mark.xdist_group("matrix")  # which is made once
@pytest.mark.timeout(600)
def test_agents_evidence_names_the_disk(matrix: Outcomes) -> None:
    for outcome in matrix.values():
        if outcome.final == "failed":
            assert "/disk" in outcome.evidence
            assert "device" in outcome.evidence


@pytest.mark.usefixtures("as_root")
@pytest.mark.usefixtures("kafka_kit")
@pytest.mark.timeout(300)
def test_a_real_broker_notices_the_same_dead_disks_and_its_controller_records_them(
    tmp_path: Path, kafka_kit: KafkaKit
) -> None:
    chosen = [Cell("eio", "ext4", "idle"), Cell("fs-shutdown", "ext4", "idle")]
    with KafkaRig(kafka_kit, tmp_path, tmp_path / "logs", _silent) as rig:
        outcomes = list(rig.run(chosen, 0, KAFKA_WAIT_S, random.Random(1)))
    assert [outcome.cell for outcome in outcomes] == chosen
    for outcome in outcomes:
        assert outcome.final == "offline"
        assert outcome.recorded_ms is not None
        assert outcome.verdict_ms is not None


# what the benchmark makes of it -------------------------------------------------------------------------------------


def test_the_quick_form_has_every_fault_and_every_file_system_and_load() -> None:
    assert {cell.fault for cell in QUICK} == set(FAULTS)
    assert {cell.fstype for cell in QUICK} == set(FILE_SYSTEMS)
    assert {cell.load for cell in QUICK} == set(LOADS)


def test_the_matrix_leaves_out_only_what_cannot_be() -> None:
    chosen = cells(FAULTS, list(FAULTS), FILE_SYSTEMS, ("idle", "busy"))
    missing = {
        Cell(name, fstype, load)
        for name, fault in FAULTS.items()
        for fstype in FILE_SYSTEMS
        for load in ("idle", "busy")
        if fstype not in fault.file_systems or (load == "busy" and not fault.while_busy)
    }
    assert len(chosen) == len(set(chosen)) == 2 * len(FILE_SYSTEMS) * len(FAULTS) - len(missing)
    assert not missing & set(chosen)


def test_no_agent_is_given_so_many_faults_that_only_broken_disks_are_left() -> None:
    runs = plan(QUICK, FAULTS, 3, random.Random(1), 1000)
    groups = lives(runs)
    assert sorted(map(id, runs)) == sorted(id(run) for group in groups for run in group)
    assert all(len(group) <= RUNS_PER_LIFE for group in groups)
    assert all(run.patient == group[0].patient for group in groups for run in group)
    assert {run.cell.fault for group in groups if group[0].unprivileged for run in group} == {"permissions"}


def test_a_fault_that_blocks_has_a_broker_to_itself() -> None:
    for group in brokers_of(cells(FAULTS, list(FAULTS), FILE_SYSTEMS, ("idle", "busy"))):
        assert len({cell.load for cell in group}) == 1
        assert len(group) == 1 or not {"hang", "freeze", "slow", "hang-writes"} & {cell.fault for cell in group}


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, None), ([7.0], 0.99, 7.0), ([3.0, 1.0, 2.0], 0.5, 2.0), (list(map(float, range(1, 101))), 0.99, 99.0)],
)
def test_a_quantile_is_a_value_that_was_measured(values: list[float], share: float, expected: float | None) -> None:
    assert report.quantile(values, share) == expected


def _outcome(system: str, recorded_ms: float | None, *, final: str = "failed") -> Outcome:
    return Outcome(system, "eio", "ext4", "idle", 0, "failed", final=final, recorded_ms=recorded_ms)


def test_the_table_sets_kjbod_beside_kafka() -> None:
    (row,) = report.rows([_outcome("kjbod", 500.0), _outcome("kjbod", 700.0), _outcome("kafka", 3500.0)])
    assert row.ratio == "7.0x"
    assert row.got == "failed"
    line = report.table([row]).splitlines()[-1]
    assert line.split() == ["eio", "ext4", "idle", "2", "failed", "ok", "-", "500/700/700", "3500", "7.0x"]
    assert len(line) <= 120


def test_what_kafka_never_notices_has_no_ratio() -> None:
    (row,) = report.rows([_outcome("kjbod", 500.0), _outcome("kafka", None, final="not in 70 s")])
    assert (row.kafka_text, row.ratio) == ("not in 70 s", "-")


def test_one_wrong_run_makes_a_cell_wrong_and_is_named() -> None:
    wrong = _outcome("kjbod", None, final="online")
    wrong.blame("verdict online in 6 s, expected failed")
    (row,) = report.rows([_outcome("kjbod", 500.0), wrong])
    assert not row.ok
    assert "WRONG" in report.table([row])
    assert report.complaints(row.runs) == ["eio ext4 idle #1: verdict online in 6 s, expected failed"]


def test_a_run_later_than_promised_is_said_not_to_be_in_reach() -> None:
    dead = report.reached([_outcome("kjbod", 1051.0)])[0]
    assert dead.met is False
    assert report.reached([_outcome("kjbod", 1049.0)])[0].met is True


def _hung(load: str, verdict_ms: float, silent_ms: float) -> Outcome:
    return Outcome(
        "kjbod", "hang", "ext4", load, 0, "failed", final="failed", verdict_ms=verdict_ms, silent_ms=silent_ms
    )


def test_a_hung_disk_is_measured_from_the_fault_and_from_the_first_request_that_it_swallowed() -> None:
    runs = [_hung("idle", 2700, 1900), _hung("busy", 1950, 1910), _hung("busy", 2900, 2850)]
    hung = {line.what: line for line in report.reached(runs) if line.what.startswith("hung")}
    met = [(line.times.count, line.times.worst, line.met) for line in hung.values()]
    assert met == [(3, 2900, False), (1, 2700, True), (1, 1900, True), (1, 1950, True), (1, 2900, True)]
    assert "hung busy disk, silent since a flush (1 of 2)" in hung


def test_what_the_kernel_refuses_is_said_with_its_reason() -> None:
    refused = Outcome("kjbod", "remount-ro", "ext4", "idle", 0, "failed", final=NOT_POSSIBLE)
    found = report.rows([refused])
    [note] = report.notes(found)
    assert note.startswith("remount-ro: not possible: EBUSY while a file is open for writing")
    assert note in report.summary(found, [], "Measured.")


def test_the_table_says_by_what_a_fault_was_seen() -> None:
    seen = _outcome("kjbod", 500.0)
    seen.cause, seen.evidence = "error", "/d failed: EACCES at open of /d after 0.1 ms; device loop1 7:1"
    assert "failed EACCES" in report.table(report.rows([seen]))


def test_only_logs_of_an_earlier_run_are_removed(tmp_path: Path) -> None:
    logs = make_logs(tmp_path / "logs")
    (logs / "agent-1.log").touch()
    assert os.listdir(make_logs(logs)) == [".kjbod-bench"]
    (tmp_path / "var" / "logs").mkdir(parents=True)
    (tmp_path / "var" / "logs" / "precious").touch()
    with pytest.raises(RigError, match="File exists: choose another directory"):
        make_logs(tmp_path / "var" / "logs")
    assert os.listdir(tmp_path / "var" / "logs") == ["precious"]


@pytest.mark.parametrize(
    "bad", [["--faults", "flood"], ["--fs", "zfs"], ["--load", ""], ["--repeat", "0"], ["--kafka-wait", "-1"]]
)
def test_an_unknown_name_is_refused_with_the_known_ones(bad: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        arguments(bad)
    assert refused.value.code == 2
    assert bad[0] in capsys.readouterr().err


@pytest.mark.usefixtures("world")  # matplotlib asks fc-list for fonts, once on a machine
def test_the_plot_is_drawn_also_for_what_nobody_noticed(tmp_path: Path) -> None:
    from scripts.bench.detection_plot import draw  # with matplotlib, which each worker would import

    draw([_outcome("kjbod", 500.0), _outcome("kafka", None, final="not in 70 s")], 70_000, tmp_path / "plot")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert "eio" in (tmp_path / "plot.svg").read_text()


def test_csv_and_summary_hold_every_cell(tmp_path: Path) -> None:
    outcomes = [_outcome("kjbod", 500.0), _outcome("kafka", 3500.0)]
    found = report.rows(outcomes)
    report.write_runs(tmp_path / "runs.csv", outcomes)
    report.write_cells(tmp_path / "cells.csv", found)
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 3
    assert (tmp_path / "cells.csv").read_text().splitlines()[1].startswith("eio,ext4,idle,1,failed,yes")
    summary = report.summary(found, report.reached(outcomes), "Measured.")
    assert "| eio | failed | 1 | 1/1 | 500 / 500 | - | 3500 |" in summary
