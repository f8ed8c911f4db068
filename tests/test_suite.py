"""The suite itself: what is run says truly what it was, and a test cannot pass for what it is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.changed import FAR, choose, distances
from tests.stamp import durations, fewer, newest_section, plain, seedless, tree_of, verdict
from tests.world import LOCK_VARIABLE

ROOT = Path(__file__).parents[1]
STAMP = {"tree": "a" * 40, "seconds": 512, "tests": {"all": 6000}, "skipped": {}, "ended": "2026-11-22T18:00:00+00:00"}


def pytest_run(tmp_path: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of its own: were it one with that which runs us, its tests would wait for one that waits for us."""
    file = tmp_path / "test_it.py"
    file.write_text(source)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", f"--rootdir={ROOT}", "-q", *options, str(file)]
    environment = {name: value for name, value in os.environ.items() if name != LOCK_VARIABLE}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=170)


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run(['true'])",
        "os.waitpid(os.fork() or os._exit(0), 0)",
        "uvloop.run(spawn())",
    ],
)
def test_a_test_that_starts_a_process_and_does_not_say_so_fails(tmp_path: Path, start: str) -> None:
    source = f"""
import asyncio, os, subprocess, uvloop
async def spawn():
    await (await asyncio.create_subprocess_exec("true")).wait()
def test_machine():
    {start}
def test_world(world):
    {start}
"""
    done = pytest_run(tmp_path, source)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "let it use the fixture `world`" in done.stdout


@pytest.mark.usefixtures("world")
def test_tests_of_one_group_run_in_one_worker(tmp_path: Path) -> None:
    source = """
import os, pathlib, pytest
@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(6))
def test_grouped(number, worker_id):
    with open(pathlib.Path(__file__).with_name("said"), "a") as file: print(worker_id, file=file)
@pytest.mark.parametrize("number", range(6))
def test_alone(number): pass
"""
    done = pytest_run(tmp_path, source, "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    assert "12 passed" in done.stdout, done.stdout + done.stderr
    said = (tmp_path / "said").read_text().split()
    assert len(said) == 6 and len(set(said)) == 1


@pytest.mark.usefixtures("world")
def test_markers_follow_from_the_fixtures_that_a_test_uses(tmp_path: Path) -> None:
    source = """
def test_pure(): pass
def test_process(processes): pass
def test_disk(real_disk): pass
def test_kafka(kafka_kit): pass
"""
    for marker, found in {"not world": 1, "world": 3, "root": 1, "kafka": 1}.items():
        done = pytest_run(tmp_path, source, "--collect-only", "-m", marker)
        assert done.stdout.count("::test_") == found, done.stdout


def test_no_test_carries_a_marker_that_should_follow_from_a_fixture() -> None:
    # One of several parameters cannot have a fixture of its own.
    by_hand = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__)
        for line in path.read_text().splitlines()
        if any(f"pytest.mark.{kind}" in line for kind in ("world", "root", "kafka", "spark")) and "param(" not in line
    ]
    assert by_hand == []


def test_a_group_is_begun_by_the_time_of_all_its_tests_whatever_the_seed_has_drawn() -> None:
    groups = {"t.py::test_cell[a-ext4-seed=2]": "matrix", "t.py::test_evidence": "matrix"}
    noted = {"t.py::test_cell[b-xfs-seed]": 88, "t.py::test_evidence": 2, "t.py::test_long": 60}
    found = durations([*groups, "t.py::test_long", "t.py::test_quick"], groups, noted)
    assert sorted(found, key=lambda one: -found[one]) == [*groups, "t.py::test_long", "t.py::test_quick"]
    assert found["t.py::test_evidence"] == 90


def test_fewer_tests_of_a_marker_need_a_line_in_the_change_log() -> None:
    before = {"world": 900, "kafka": 100}
    changes = (
        "# Changes\n\n## 0.3\n\n- Tests: 100 → 98 kafka: two were the same\n\n## 0.2\n\n- Tests: 900 → 1 world: x\n"
    )
    newest = newest_section(changes)
    assert fewer({"world": 901, "kafka": 98}, before, newest) == []
    (line,) = fewer({"world": 1, "kafka": 98}, before, newest)
    assert line.startswith("1 tests are world and 900 were: say why in CHANGELOG.md")
    assert len(fewer({"world": 900, "kafka": 97}, before, newest)) == 1


def test_the_stamp_is_of_one_tree_and_says_how_far_this_one_is_from_it() -> None:
    assert "green for this tree (6000 tests in 512 s" in verdict(STAMP, "a" * 40, 0)
    assert "last green 14 files ago, for tree aaaaaaaaaaaa" in verdict(STAMP, "b" * 40, 14)
    assert "last green of an unknown tree" in verdict(STAMP, "b" * 40, None)
    assert "none was green here yet" in verdict(None, "b" * 40, None)


@pytest.mark.usefixtures("world")
def test_the_tree_of_a_stamp_counts_new_files_and_no_ignored_ones(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert tree_of(tmp_path) is None
    git("init")
    (tmp_path / ".gitignore").write_text("ignored\n")
    first = tree_of(tmp_path)
    (tmp_path / "ignored").write_text("x")
    assert tree_of(tmp_path) == first
    (tmp_path / "new").write_text("x")
    assert tree_of(tmp_path) not in (first, None)
    assert git("diff", "--cached") == ""  # the user's own index is left alone


def test_a_change_concerns_those_that_import_it_nearest_first_and_then_its_folder() -> None:
    sources = {
        "kjbod/ids.py": "",
        "kjbod/config/__init__.py": "from kjbod.ids import Uuid",
        "agent/kjbod_agent/broker.py": "import kjbod.config",
        "tests/test_ids.py": "from kjbod import ids",
        "tests/agent/test_broker.py": "from kjbod_agent import broker",
        "tests/agent/test_process.py": "",
        "tests/wire/test_frames.py": "",
    }
    near = distances(sources, ["kjbod/ids.py"])
    assert near == {"tests/test_ids.py": 1, "tests/agent/test_broker.py": 3}
    near = distances(sources, ["agent/kjbod_agent/broker.py", "tests/wire/test_frames.py"])
    assert near == {"tests/wire/test_frames.py": 0, "tests/agent/test_broker.py": 1, "tests/agent/test_process.py": FAR}


def test_of_the_tests_that_are_concerned_the_nearest_and_shortest_fit_into_the_time() -> None:
    tests = {"far": 3, "near and long": 1, "near": 1, "nearest": 0}
    assert choose(tests, {"near and long": 50.0}, 1.0) == {"nearest", "near"}
    assert choose(tests, {"near and long": 50.0}, 100.0) == set(tests)


def test_a_group_of_workers_is_no_part_of_a_tests_name() -> None:
    assert plain("tests/a.py::test_b[x@y]@spark") == "tests/a.py::test_b[x@y]"
    assert plain("tests/a.py::test_b[x@y]") == "tests/a.py::test_b[x@y]"


def test_how_long_a_test_takes_is_remembered_whatever_it_draws() -> None:
    assert seedless("tests/a.py::test_b[1-of-4-seed=4711]@spark") == seedless("tests/a.py::test_b[1-of-4-seed=3]")
    assert seedless("tests/a.py::test_b[x]") == "tests/a.py::test_b[x]"
