"""The benchmark of handshakes: a short flood of a real controller, and what it tells of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench.handshakes_flood import Kind

ROOT = Path(__file__).parents[2]
SHORT = """
from scripts.bench import handshakes as bench
bench.IDLE_S, bench.BROKERS, bench.P99_MS_MAX = 0.3, 2, 60_000.0
raise SystemExit(bench.main())
"""
"""What a busy machine does to heartbeats is not judged here."""


@pytest.mark.usefixtures("world")
def test_a_flood_is_survived_and_its_figures_are_told(tmp_path: Path) -> None:
    options = ["--no-kafka", "--count", "300", "--rate", "300", "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", SHORT, *options], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads((tmp_path / "handshakes.json").read_text())
    assert "kjbod: 300 handshakes" in done.stdout and "0 did not get in" in done.stdout
    assert sum(result["ends"].values()) == 300
    assert {end.partition(":")[0] for end in result["ends"]} == {str(kind) for kind in Kind}
