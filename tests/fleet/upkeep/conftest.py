"""A lake that was made once, and a copy of it for each test."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.lake.lake import Lake, open_lake
from tests.fleet.upkeep.lakes import DAY, filled


@pytest.fixture(scope="session")
def filled_lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "lake"
    filled(spark, root)
    return root


@pytest.fixture(scope="session")
def compacted_lake(spark: Any, filled_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same; its first date is compacted."""
    from kjbod.fleet.upkeep.compact import compact

    root = tmp_path_factory.mktemp("compacted") / "lake"
    shutil.copytree(filled_lake, root)
    compact(open_lake(spark, str(root)), [DAY], lambda _: None)
    return root


@pytest.fixture
def lake(spark: Any, filled_lake: Path, tmp_path: Path) -> Lake:
    return open_lake(spark, str(shutil.copytree(filled_lake, tmp_path / "lake")))


@pytest.fixture
def compact_lake(spark: Any, compacted_lake: Path, tmp_path: Path) -> Lake:
    return open_lake(spark, str(shutil.copytree(compacted_lake, tmp_path / "compacted")))
