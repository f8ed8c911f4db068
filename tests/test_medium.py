"""A file is believed only as its medium has it: what a refused write left in the page cache is not read."""

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kjbod import medium
from kjbod.errors import StorageError
from kjbod.faults.disks import FaultMode, RealDisk
from kjbod.medium import read_anew

GOOD = b"acknowledged" + bytes(mmap.PAGESIZE)
LOST = b"refused by the device" + bytes(mmap.PAGESIZE)


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def disk(request: pytest.FixtureRequest) -> Iterator[RealDisk]:
    with RealDisk(fstype=request.param) as made:
        yield made


def lose_the_end(disk: RealDisk) -> Path:
    """A file whose end is in the page cache alone."""
    path = disk.mount_point / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        os.write(fd, GOOD)
        os.fsync(fd)
        os.lseek(fd, 2 * mmap.PAGESIZE, os.SEEK_SET)
        disk.refuse_one_write(LOST[:20], errno.EIO)
        os.write(fd, LOST)
        with pytest.raises(OSError, match="Input/output error"):
            os.fsync(fd)
        os.fsync(fd)  # the second one says that all is well
    finally:
        os.close(fd)
    return path


@pytest.mark.usefixtures("as_root")
def test_what_a_refused_write_left_in_the_page_cache_is_not_read(disk: RealDisk) -> None:
    path = lose_the_end(disk)
    read_anew(path)
    assert path.read_bytes()[: len(GOOD)] == GOOD
    assert LOST[:20] not in path.read_bytes()


@pytest.mark.usefixtures("as_root")
def test_what_another_process_keeps_in_the_page_cache_is_refused_unless_the_medium_has_it(disk: RealDisk) -> None:
    path = lose_the_end(disk)
    if LOST[:20] not in path.read_bytes():
        pytest.skip("this file system dropped the pages itself")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert LOST[:20] in mapped[:]
        with pytest.raises(StorageError, match=f"{path} has other data on its disk than in the page cache.*end that"):
            read_anew(path)
    read_anew(path)
    assert LOST[:20] not in path.read_bytes()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[: len(GOOD)] == GOOD
        read_anew(path)


@pytest.mark.usefixtures("as_root")
def test_where_nobody_may_ask_for_the_cached_pages_all_are_compared(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Filtered:
        def __getattr__(self, name: str) -> object:
            return getattr(libc, name)

        def mincore(self, *arguments: object) -> int:
            asked.append(arguments)
            ctypes.set_errno(errno.EPERM)
            return -1

    libc = medium._libc
    monkeypatch.setattr(medium, "_libc", Filtered())
    path = disk.mount_point / "file"
    path.write_bytes(GOOD)
    read_anew(path)
    assert asked and path.read_bytes() == GOOD


@pytest.mark.usefixtures("world")
def test_a_sector_that_cannot_be_read_is_one_line(disk: RealDisk) -> None:
    path = disk.mount_point / "file"
    path.write_bytes(GOOD * 10)
    read_anew(path)
    disk.set(FaultMode.EIO_READS)
    with pytest.raises(StorageError, match=f"cannot read {path} from its disk: Input/output error"):
        read_anew(path)


def test_a_file_system_in_memory_is_its_own_medium() -> None:
    path = Path(f"/dev/shm/kjbod-test-medium-{os.getpid()}")
    try:
        path.write_bytes(GOOD)
        read_anew(path)
        assert path.read_bytes() == GOOD
        path.write_bytes(b"")
        read_anew(path)
    finally:
        path.unlink()
