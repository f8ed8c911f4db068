"""A directory on a disk that may lose power: what was not synced is then lost, in whole or in part.

Real code on real files in memory. The seam is where that code meets the kernel, ``os.fsync`` and ``os.fdatasync``: what
they are called for is durable. Of a file, as long as it was at that moment: what is on the disk is only appended to. Of
a directory, its names.
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SECTOR_BYTES: Final = 512
_MEMORY: Final = Path("/dev/shm")


class PowerLossError(BaseException):
    """Power went in the middle of a sync. No code may catch it as an error of the disk."""


class LossyDisk:
    """Directories below ``root``, and what of them is durable. Use on one thread; :meth:`close` it.

    Attributes:
        root: a new directory.
        syncs: how many there were.
    """

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="kjbod-", dir=_MEMORY if _MEMORY.is_dir() else None))
        self.root = self._base / "disk"
        self._inodes = self._base / "inodes"
        """A link of each file that is or was durable, by inode."""
        self.root.mkdir()
        self._inodes.mkdir()
        self._sizes: dict[int, int] = {}
        """Bytes of a file that are durable, by inode."""
        self._names: dict[Path, dict[str, int]] = {self.root: {}}
        """Names of a directory that are durable, and the inodes that they name."""
        self._at_next: Callable[[], None] | None = None
        self.syncs = 0

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._base)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have it see what is synced."""
        fsync, fdatasync = os.fsync, os.fdatasync
        root = str(self.root)

        def sync(real: Callable[[int], None]) -> Callable[[int], None]:
            def synced(fd: int) -> None:
                path = os.readlink(f"/proc/self/fd/{fd}")
                if path.startswith(root):
                    self._synced(Path(path), fd)
                else:
                    real(fd)

            return synced

        os.fsync, os.fdatasync = sync(fsync), sync(fdatasync)  # type: ignore[assignment]
        try:
            yield
        finally:
            os.fsync, os.fdatasync = fsync, fdatasync

    def at_next_sync(self, work: Callable[[], None] | None) -> None:
        """Do something when the next sync begins, once; it may raise."""
        self._at_next = work

    def _synced(self, path: Path, fd: int) -> None:
        work, self._at_next = self._at_next, None
        if work is not None:
            work()
        self.syncs += 1
        if path.is_dir():
            self._names[path] = self._now(path)
        else:
            status = os.fstat(fd)
            if status.st_ino not in self._sizes and path.exists():
                self._keep(path, status.st_ino)
            self._sizes[status.st_ino] = status.st_size

    def _keep(self, path: Path, inode: int) -> None:
        link = self._inodes / str(inode)
        if not link.exists():
            os.link(path, link)

    def _now(self, path: Path) -> dict[str, int]:
        """Names of a directory as they are now."""
        found = {}
        for one in os.scandir(path):
            if one.is_file(follow_symlinks=False):
                found[one.name] = one.inode()
                self._keep(Path(one.path), one.inode())
            elif one.is_dir():
                self._names.setdefault(Path(one.path), {})
        return found

    def all_durable(self) -> None:
        """Everything is on the disk, as after a start of the machine."""
        shutil.rmtree(self._inodes)
        self._inodes.mkdir()
        self._sizes.clear()
        self._names = {path: self._now(path) for path in (self.root, *self.root.rglob("*")) if path.is_dir()}
        for inode in {inode for names in self._names.values() for inode in names.values()}:
            self._sizes[inode] = (self._inodes / str(inode)).stat().st_size

    def lose(self, rng: random.Random) -> None:
        """Power goes, and the machine starts again. Who had files open there has closed them."""
        kept: dict[Path, dict[str, bytes]] = {}
        for path in (one for one in (self.root, *self.root.rglob("*")) if one.is_dir()):
            durable, now = self._names.get(path, {}), self._now(path)
            names = durable if rng.random() < 0.5 else now
            kept[path] = {name: self._left(inode, rng) for name, inode in names.items()}
        for path, files in kept.items():
            for name in self._now(path):
                (path / name).unlink()
            for name, data in files.items():
                (path / name).write_bytes(data)
        self.all_durable()

    def _left(self, inode: int, rng: random.Random) -> bytes:
        """What is left of a file: what was synced, and nothing, all or any sectors of the rest."""
        data = (self._inodes / str(inode)).read_bytes()
        durable = self._sizes.get(inode, 0)
        kind = rng.choice(("nothing", "all", "some", "shorter"))
        if kind == "all" or durable >= len(data):
            return data
        if kind == "nothing":
            return data[:durable]
        end = len(data) if kind == "some" else rng.randint(durable, len(data))
        left = bytearray(data[:end])
        # A file is as long as its data that are on the disk (``data=ordered``): the sector with durable bytes is whole.
        for at in range(-(-durable // SECTOR_BYTES) * SECTOR_BYTES, end, SECTOR_BYTES):
            if rng.random() < 0.5:
                until = min(at + SECTOR_BYTES, end)
                left[at:until] = bytes(until - at)
        return bytes(left)
