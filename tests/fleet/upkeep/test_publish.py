"""Publishing to Iceberg: which dates, and, with its real runtime, what other engines see."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kjbod.fleet.lake.state import Piece, State
from kjbod.fleet.tables import AUDIT_FILES, DIR_DAY, SILVER_SAMPLES
from kjbod.fleet.upkeep.account import Compacted, with_compacted
from kjbod.fleet.upkeep.publish import dates_to_publish
from tests.depth import only_deep

ROOT = Path(__file__).parents[3]
DAY = "2026-11-01"


def piece(table: str, date: str = DAY) -> Piece:
    return Piece(f"{table.replace('.', '/')}/date={date}/x", date, (), 3)


def test_gold_is_published_when_it_is_newer_and_silver_when_it_is_verified_too() -> None:
    state = State("id", version=6)
    for table in ("gold.dir_day", "silver.samples", "audit.files"):
        state = state.with_pieces(table, [piece(table)])
    assert dates_to_publish(state, DIR_DAY, 6) == [DAY] and dates_to_publish(state, DIR_DAY, 7) == []
    assert dates_to_publish(state, SILVER_SAMPLES, 0) == [] == dates_to_publish(state, AUDIT_FILES, 0)
    verified = with_compacted(state, "silver.samples", DAY, Compacted(piece("silver.samples").path, 3, 0))
    assert dates_to_publish(verified, SILVER_SAMPLES, 0) == [DAY]


@only_deep("gets Iceberg's runtime and the Spark that it is for, 500 MB")
@pytest.mark.usefixtures("with_spark")
def test_a_catalog_has_what_the_lake_has_with_a_snapshot_for_each_publication(tmp_path: Path) -> None:
    got = subprocess.run([str(ROOT / "scripts/iceberg")], capture_output=True, text=True, check=True)
    jar, python = got.stdout.split()
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'agent'}",
        "PYSPARK_SUBMIT_ARGS": f"--jars {jar} pyspark-shell",
    }
    done = subprocess.run(
        [python, str(Path(__file__).with_name("published.py")), str(tmp_path)],
        capture_output=True, text=True, env=environment, cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["first"] == {"gold.dir_hour": [DAY, "2026-11-02"], "gold.dir_day": [DAY, "2026-11-02"]}
    assert seen["again"] == {} and seen["snapshots"] == [2, 0]
    assert set(seen["compacted"]) >= {"silver.samples", "gold.dir_hour"} and seen["compacted"]["silver.samples"] == [
        DAY
    ]
    assert seen["samples"] == 26
    assert seen["later"]["gold.dir_day"] == ["2026-11-02"]
    assert seen["equal"] == [True, True]
    assert seen["days"] == [DAY, "2026-11-02"] and seen["snapshots later"] == 3
    assert "is of another lake" in seen["other"]
