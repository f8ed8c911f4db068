"""Published drive histories, beside the checkout: they are not part of the project."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shared(name: str) -> Path:
    """A file of ``../shared/data``; without that folder the test is skipped and says so."""
    found = [parent / "shared" / "data" / name for parent in ROOT.parents[:2]]
    path = next((each for each in found if each.is_file()), None)
    if path is None:
        pytest.skip(f"{name} is not in ../shared/data: the published figures that are in the tests were checked")
    return path
