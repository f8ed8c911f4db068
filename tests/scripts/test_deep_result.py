"""What scripts/deep says of its last run is what was run, and what came of it."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from scripts.deep_result import describe

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 22, 6, 30, tzinfo=UTC)


def session(**changes: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {name: [] for name in ("passed", "failed", "errors", "skipped", "reasons")}
    return {"seed": 7, "tree": "4b825dc", "seconds": 3_600.0, **nothing, **changes}


def test_a_run_of_everything_says_counts_tree_seed_and_duration() -> None:
    text = describe([session(passed=["a", "b"]), session(passed=["c"])], 0, [], NOW)
    assert "| what | all tests |" in text
    assert "| result | green: 3 passed, 0 failed, 0 errors, 0 skipped |" in text
    assert "| took | 2 h 0 min |" in text
    assert "| ended | 2026-11-22 06:30 UTC |" in text
    assert "| tree | `4b825dc` |" in text
    assert "| seed | 7 |" in text
    assert "Failed" not in text


def test_a_part_is_called_a_part_and_what_failed_is_named() -> None:
    found = [session(failed=["t.py::x[seed=7]"], errors=["t.py::y"], skipped=["t.py::z"], reasons=["no swap here"])]
    text = describe(found, 1, ["tests/wire", "-k", "golden"], NOW)
    assert "| what | a part: `tests/wire -k golden` |" in text
    assert "NOT GREEN (exit code 1): 0 passed, 1 failed, 1 errors, 1 skipped" in text
    assert "- `t.py::x[seed=7]`\n- `t.py::y`" in text
    assert "- `no swap here`" in text


def test_a_run_that_never_began_is_not_green() -> None:
    text = describe([], 4, [], NOW)
    assert "NOT GREEN (exit code 4): 0 passed" in text
    assert "| seed | none |" in text and "| tree | `none` |" in text


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "all tests"),
        (["--seed", "7"], "all tests"),
        (["--seed", "7", "tests/a"], "a part"),
        (["tests/a"], "a part"),
    ],
)
def test_everything_drawn_by_a_given_seed_is_everything(arguments: list[str], what: str) -> None:
    assert f"| what | {what}" in describe([session()], 0, arguments, NOW)


@pytest.mark.usefixtures("world")
def test_a_session_tells_its_counts_and_its_seed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_good(): pass\ndef test_bad(): assert 0\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.depth",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    options = ["-c", "/dev/null", "--depth", "deep", "--seed", "3", "--depth-result", str(tmp_path / "result")]
    done = subprocess.run([*command, *options, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    (told,) = [json.loads(line) for line in (tmp_path / "result").read_text().splitlines()]
    assert (told["seed"], told["passed"], told["failed"]) == (3, ["test_it.py::test_good"], ["test_it.py::test_bad"])
