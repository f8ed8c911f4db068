"""Other releases of Apache Kafka than the one that most tests run with: cells of ``scripts/compatibility``."""

from pathlib import Path
from typing import Any

import pytest

from scripts.matrix.measure import measure
from scripts.matrix.plan import AGENT, ROLLING, ROWS, SECURED, UPGRADES, Cell, cells
from scripts.matrix.record import OK
from scripts.rig.kafka import KafkaKit, known_versions
from tests import depth
from tests.world import skip_unless

VERSIONS = ("3.9.2", "4.4.0")
"""Those of CI, which ``scripts/test`` gets: the last one with its older tools, and the newest."""
SHORT = (AGENT, SECURED)
"""Rows of CI: registration, failure of a directory, and a guard that takes a hung disk from its broker."""


def drawn() -> list[Any]:
    """All cells in the deep form; else one of each of the two versions."""
    few = [Cell(row, version) for version in VERSIONS for row in SHORT]
    everything = list(cells(list(ROWS), known_versions()))
    chosen = depth.sample(depth.at(quick=few, ci=few, deep=everything), len(VERSIONS), quick=1)
    return [pytest.param(cell, id=depth.seeded(f"{cell.row}-{'-'.join(cell.versions)}")) for cell in chosen]


def test_a_rolling_upgrade_is_among_the_cells() -> None:
    assert [cell.versions for cell in cells(list(ROWS), known_versions()) if cell.row == ROLLING] == [list(UPGRADES)]


@pytest.mark.usefixtures("as_root", "kafka_kit")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cell", drawn())
def test_another_release_of_kafka_works_with_kjbod(cell: Cell, tmp_path: Path) -> None:
    for version in cell.versions:
        skip_unless(lambda version=version: _require(version))  # type: ignore[misc]
    outcome = measure(cell, tmp_path)
    assert outcome.state == OK, outcome.reason


def _require(version: str) -> None:
    KafkaKit.find(version)
