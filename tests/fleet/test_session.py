"""Settings of Spark follow from how much there is to read."""

import os
from pathlib import Path

import pytest

from kjbod.fleet.session import LARGE_INPUT_BYTES, SHUFFLE_INPUT_BYTES, local_settings


@pytest.mark.parametrize(
    ("input_bytes", "partitions"),
    [(0, 1), (SHUFFLE_INPUT_BYTES - 1, 1), (SHUFFLE_INPUT_BYTES, 2), (LARGE_INPUT_BYTES, 8), (1 << 40, 8)],
)
def test_a_shuffle_has_a_partition_for_each_4_mib_and_at_most_two_for_each_processor(
    input_bytes: int, partitions: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert local_settings(tmp_path, input_bytes)["spark.sql.shuffle.partitions"] == str(partitions)


def test_only_a_large_input_is_compiled_and_planned_again(tmp_path: Path) -> None:
    small, large = local_settings(tmp_path, LARGE_INPUT_BYTES), local_settings(tmp_path, LARGE_INPUT_BYTES + 1)
    assert small["spark.sql.adaptive.enabled"] == small["spark.sql.codegen.wholeStage"] == "false"
    assert not {"spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"} & set(large)
    assert "TieredStopAtLevel" in small["spark.driver.extraJavaOptions"]
    assert "TieredStopAtLevel" not in large["spark.driver.extraJavaOptions"]
