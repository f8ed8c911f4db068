import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[1] / "data" / "metadata-log"
"""What a real Kafka 4.3.1 controller wrote, and what its kafka-dump-log says about it."""


class Golden:
    """The log of a real controller."""

    directory = DATA / "__cluster_metadata-0"
    segment = directory / "00000000000000000000.log"
    files = (
        DATA / "bootstrap.checkpoint",
        directory / "00000000000000000000-0000000000.checkpoint",
        directory / "00000000000000000275-0000000001.checkpoint",
        directory / "00000000000000000488-0000000001.checkpoint",
        segment,
    )
    checkpoints = files[:-1]
    newest_checkpoint = files[3]

    def dump_of(self, path: Path) -> list[dict[str, Any]]:
        """kafka-dump-log's batches of ``path``, each with its records."""
        with (DATA / f"dump-{path.name}.jsonl").open() as lines:
            return [json.loads(line) for line in lines]


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden()
