"""The benchmark of a start with the metadata kept, on few records: what is fetched is counted, nothing is timed."""

from pathlib import Path

import pytest

from scripts.bench.metadata_start import PARTITIONS, measure

RECORDS = 3_000


@pytest.mark.parametrize("alike", [True, False])
def test_a_start_fetches_only_what_it_lacks_and_knows_the_same(world: None, tmp_path: Path, alike: bool) -> None:
    pairs = measure(tmp_path, RECORDS, 2, alike=alike)
    for fresh, kept in pairs:
        assert fresh.fetched > RECORDS
        assert kept.fetched == kept.lacked < RECORDS / 10
        assert kept.image == fresh.image
        assert kept.image.partition_count() >= (RECORDS // (PARTITIONS + 1) - 2) * PARTITIONS
