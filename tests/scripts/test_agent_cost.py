"""The cost benchmark adds up what it has measured."""

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts.bench import agent_cost
from scripts.bench.agent_cost_rig import Snapshot
from scripts.bench.agent_cost_usage import Requests, Usage, descendants, usage_of
from tests.depth import only_deep


def test_rates_are_of_processes_that_lived_all_the_time_and_memory_is_of_all() -> None:
    before = Snapshot(
        100.0,
        {1: Usage("daemon", 40_960, 5.0, 1000, 30), 2: Usage("worker", 2048, 1.0, 100, 6)},
        (Requests(10, 20, 5),),
    )
    after = Snapshot(
        110.0,
        {
            1: Usage("daemon", 51_200, 5.1, 1500, 31),
            2: Usage("worker", 1024, 1.05, 150, 6),
            3: Usage("worker", 1024, 9.0, 900, 6),
        },
        (Requests(60, 60, 25),),
    )
    daemon, worker, together = agent_cost.costs(before, after)
    assert (daemon.name, daemon.count, daemon.pss_mib, daemon.switches) == ("daemon", 1, 50.0, 50.0)
    assert daemon.cpu_percent == pytest.approx(1.0)
    assert (worker.count, worker.pss_mib, worker.open_files) == (2, 2.0, 12)
    assert worker.cpu_percent == pytest.approx(0.5)
    assert (together.count, together.pss_mib) == (3, 52.0)
    assert together.cpu_percent == pytest.approx(1.5)
    assert agent_cost.request_rates(before, after) == [(5.0, 4.0, 2.0)]


def test_a_process_is_measured_as_the_kernel_counts_it() -> None:
    assert descendants(os.getpid())[0] == os.getpid()
    before = usage_of(os.getpid(), "me")
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    after = usage_of(os.getpid(), "me")
    assert after.cpu_s - before.cpu_s >= 0.02
    assert after.pss_kib > 1024
    assert after.open_files >= 3


@pytest.mark.parametrize("arguments", [["--replicas", "x"], ["--directories", "0"], ["--seconds", "-1"], ["--wrong"]])
def test_bad_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        agent_cost.arguments(arguments)
    assert ended.value.code == 2
    assert "agent-cost: error: " in capsys.readouterr().err


def test_help_says_what_is_measured_and_where_results_go(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        agent_cost.arguments(["--help"])
    assert "60 MiB or 2 % of one core" in " ".join(capsys.readouterr().out.split())
    assert agent_cost.arguments([]).out == Path("kjbod-bench/agent-cost")


def run(out: Path, *options: str) -> set[tuple[str, str]]:
    """Kinds of processes that a run has measured. What they cost beside other tests says nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench.agent_cost", *options, "--seconds", "2", "--out", str(out)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert "Traceback" not in done.stderr, done.stderr
    with open(out / "agent-cost.csv") as file:
        return {(row["of"], row["process"]) for row in csv.DictReader(file)}


@pytest.mark.usefixtures("as_root", "kafka_kit")
def test_a_short_run_measures_a_real_agent_and_a_real_broker(tmp_path: Path) -> None:
    found = run(tmp_path, "--directories", "2", "--replicas", "20", "--kafka", "--kafka-replicas", "4")
    assert {of for of, _ in found} == {"agent", "kafka"}


@only_deep("a real broker, measured")
@pytest.mark.usefixtures("as_root", "kafka_kit")
def test_a_short_run_measures_a_guard_beside_a_real_broker(tmp_path: Path) -> None:
    found = run(tmp_path, "--guard", "--directories", "2", "--replicas", "20", "--cluster-replicas", "600")
    assert {("guard", "daemon"), ("guard", "hand"), ("guard", "together")} <= found
