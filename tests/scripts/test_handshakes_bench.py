"""The benchmark of handshakes: a short flood of a real controller, and what it tells of it."""

import json
from pathlib import Path

import pytest

from scripts.bench import handshakes
from scripts.bench.handshakes_flood import Kind

pytestmark = pytest.mark.usefixtures("world")


def test_a_flood_is_survived_and_its_figures_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(handshakes, "IDLE_S", 0.3)
    monkeypatch.setattr(handshakes, "BROKERS", 2)
    monkeypatch.setattr(handshakes, "P99_MS_MAX", 60_000.0)  # what a busy machine does is not judged here
    monkeypatch.setattr("sys.argv", ["x", "--no-kafka", "--count", "300", "--rate", "300", "--out", str(tmp_path)])
    assert handshakes.main() == 0
    said = capsys.readouterr().out
    (result,) = json.loads((tmp_path / "handshakes.json").read_text())
    assert "kjbod: 300 handshakes" in said and "0 did not get in" in said
    assert sum(result["ends"].values()) == 300
    assert {end.partition(":")[0] for end in result["ends"]} == {str(kind) for kind in Kind}
