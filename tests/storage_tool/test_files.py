"""Files that are the old one or the new one, whole."""

import errno
import os
from pathlib import Path

import pytest

from kjbod.files import make_directories, write_atomically


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    write_atomically(path, b"old")
    write_atomically(path, b"new", mode=0o400)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o400
    assert os.listdir(tmp_path) == ["meta.properties"]


def test_what_a_crash_left_behind_is_in_nobodys_way(tmp_path: Path) -> None:
    left = tmp_path / "x.tmp"
    left.write_bytes(b"half")
    left.chmod(0o400)
    write_atomically(tmp_path / "x", b"whole")
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_leaves_the_old_file_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "x"
    write_atomically(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        with pytest.raises(OSError, match="Input/output error") as caught:
            write_atomically(path, b"new")
    assert caught.value.filename == f"{path}.tmp"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_directories_are_made_with_their_parents_and_may_exist(tmp_path: Path) -> None:
    for _ in range(2):
        make_directories(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_the_way_of_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists") as caught:
        make_directories(tmp_path / "a" / "b")
    assert str(tmp_path / "a") in str(caught.value.filename)
