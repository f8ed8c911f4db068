"""Folders of a process of its own, and what is left of those that were killed."""

import os
from pathlib import Path

import pytest

from kjbod.fleet import folders
from kjbod.fleet.folders import MARK, own_folder

LONG_AGO_S = 1_000_000


def left(folder: Path) -> Path:
    folder.mkdir()
    (folder / "half").write_text("page")
    (folder / MARK).touch()
    os.utime(folder, (LONG_AGO_S, LONG_AGO_S))
    return folder


def test_a_folder_is_there_alone_and_gone_afterwards(tmp_path: Path) -> None:
    with own_folder(tmp_path, ".kjbod-page-") as mine:
        (mine / "hosts").mkdir()
        assert list(tmp_path.iterdir()) == [mine]
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path: Path) -> None:
    left(tmp_path / ".kjbod-page-killed")
    with own_folder(tmp_path, ".kjbod-page-") as mine:
        assert list(tmp_path.iterdir()) == [mine]


def test_a_folder_that_somebody_holds_or_has_just_made_stays_and_so_does_what_is_not_ours(tmp_path: Path) -> None:
    other = left(tmp_path / "kjbod-spark.conf")
    new = tmp_path / "kjbod-spark-new"
    new.mkdir()
    (new / MARK).touch()
    notes = left(tmp_path / "kjbod-spark-notes")
    (notes / MARK).unlink()
    os.utime(notes, (LONG_AGO_S, LONG_AGO_S))
    linked = tmp_path / "kjbod-spark-link"
    linked.symlink_to(left(tmp_path / "elsewhere"))
    os.utime(linked, (LONG_AGO_S, LONG_AGO_S), follow_symlinks=False)
    with own_folder(tmp_path, "kjbod-spark-") as held:
        os.utime(held, (LONG_AGO_S, LONG_AGO_S))
        with own_folder(tmp_path, "kjbod-spark-"):
            assert held.exists()
    assert other.exists() and new.exists() and notes.exists() and (linked / "half").exists()


def test_where_there_are_no_locks_nothing_is_removed_and_all_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = left(tmp_path / ".kjbod-page-killed")

    def no_locks(_folder: Path) -> int:
        raise OSError("no locks available")

    monkeypatch.setattr(folders, "_locked", no_locks)
    with own_folder(tmp_path, ".kjbod-page-") as mine:
        assert mine.exists() and killed.exists()
