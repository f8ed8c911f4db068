"""What a lake has written is waited for, and no other disk of the machine."""

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from kjbod.fleet.fleet_error import FleetError
from kjbod.fleet.lake import durable, lake
from kjbod.fleet.lake.durable import sync_file_system


def of(root: Path) -> Any:
    class Place:
        uri = f"file:{root}"

    return Place()


def test_a_commit_does_not_wait_for_the_disks_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def waits_for_all() -> None:
        raise AssertionError("a disk that hangs would hold it for ever")

    monkeypatch.setattr(os, "sync", waits_for_all)
    lake.Lake.make_durable(of(tmp_path))
    lake.Lake.make_durable(of(tmp_path / "of another machine"))
    with pytest.raises(FileNotFoundError):
        sync_file_system(tmp_path / "gone")


def test_what_the_disk_did_not_take_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        @staticmethod
        def syncfs(_descriptor: int) -> int:
            return -1

    monkeypatch.setattr(durable, "_libc", Broken)
    monkeypatch.setattr(ctypes, "get_errno", lambda: 5)
    with pytest.raises(FleetError, match="cannot be made durable: Input/output error"):
        lake.Lake.make_durable(of(tmp_path))
