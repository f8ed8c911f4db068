"""The audit, as people read it."""

import json
from pathlib import Path

import pytest

from kjbod.cli import main as cli

BROKER = """process.roles=broker
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://localhost:9092
controller.listener.names=CONTROLLER
log.dirs=/mnt/d1,/mnt/d2
"""


def test_the_newest_lines_are_shown_the_oldest_first_whatever_stands_between_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, own = tmp_path / "server.properties", tmp_path / "own"
    config.write_text(BROKER)
    own.write_text(f"kjbod.state.dir={tmp_path / 'state'}\n")
    (tmp_path / "state").mkdir()
    does = {"at_ms": 1_763_900_001_000, "event": "does", "mode": "act", "means": "evict", "before": {"t-0": [1, 2]}}
    told = {"at_ms": 1_763_900_000_000, "event": "would", "text": "disk /mnt/d1 hung", "would": "cut"}
    (tmp_path / "state" / "guard-audit.jsonl.1").write_text(json.dumps({"at_ms": 5, "event": "bound"}) + "\n")
    (tmp_path / "state" / "guard-audit.jsonl").write_text(f"{json.dumps(told)}\n{json.dumps(does)}\n{{torn")
    files = ["-c", str(config), "--guard-config", str(own)]
    assert cli.run(["guard", "history", *files, "-n", "2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "2025-11-23 12:13:20.000Z  would  disk /mnt/d1 hung",
        "2025-11-23 12:13:21.000Z  does   means=evict (1 partitions)",
    ]
    assert cli.run(["guard", "history", *files, "--json"]) == 0
    assert len([json.loads(line) for line in capsys.readouterr().out.splitlines()]) == 3


def test_without_a_guard_there_is_nobody_to_release_or_restore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, own = tmp_path / "server.properties", tmp_path / "own"
    config.write_text(BROKER)
    own.write_text(f"kjbod.state.dir={tmp_path / 'state'}\n")
    files = ["-c", str(config), "--guard-config", str(own)]
    for command in (["restore"], ["release", "/mnt/d1"]):
        assert cli.run(["guard", *command, *files]) != 0
        assert capsys.readouterr().err.count("\n") == 1
    assert cli.run(["guard", "history", *files]) == 0
