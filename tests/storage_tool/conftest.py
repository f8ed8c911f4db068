from pathlib import Path

import pytest

from tests.storage_tool.rig import MakeNode, Node


@pytest.fixture
def broker(tmp_path: Path) -> MakeNode:
    """Makes a broker with three directories, or those that are named."""

    def make(*changes: str, directories: tuple[str, ...] = ("d1", "d2", "d3")) -> Node:
        return Node(tmp_path / "broker", "broker", directories, *changes)

    return make


@pytest.fixture
def controller(tmp_path: Path) -> MakeNode:
    """Makes a controller with one directory, or those that are named."""

    def make(*changes: str, directories: tuple[str, ...] = ("meta",)) -> Node:
        return Node(tmp_path / "controller", "controller", directories, *changes)

    return make
