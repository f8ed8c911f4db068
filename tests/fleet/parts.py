"""Parts of the fleet's tests that take Spark half a minute or so each: CI draws some for each run, by the session's
seed, and ``--depth deep`` runs all. In every run is the whole pipeline, against a ledger (``test_pipeline.py``)."""

import pytest

from tests.depth import sample

PARTS = (
    *("rollup late", "rollup order", "rollup story", "rollup days", "rollup past", "rollup steps", "rollup anew"),
    *("rollup drives", "lake report", "report numbers", "follow"),
    *("upkeep compact", "upkeep retain", "upkeep verify", "upkeep query"),
    *("ingest", "imports", "insight", "connect"),
)
DRAWN_CI = 1


def drawn(part: str) -> pytest.MarkDecorator:
    """Marks tests of a part."""
    chosen = sample(PARTS, DRAWN_CI, salt="parts of the fleet's tests")
    return pytest.mark.skipif(part not in chosen, reason=f"{part}: not drawn in this run; --depth deep runs all parts")
