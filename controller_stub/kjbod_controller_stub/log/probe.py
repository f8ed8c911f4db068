"""Child process that accesses the controller's directory: ``python -I -S probe.py DIRECTORY DEVICE INODE``. Standard
library only.

It says ``ready``: its start is no part of a probe. Then a line on standard input asks for one: whether the directory is
still that of the device and inode, then write, fsync, read back. The answer is a line on standard output: ``ok``, or
the errno, the step and what it said. What hangs here hangs no one else. It ends when standard input does.
"""

import contextlib
import errno
import os
import sys
from pathlib import Path

NAME = ".kjbod_controller_probe"
_BYTES = 512
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Probe:
    """Probes of one directory. ``step`` is the last operation."""

    def __init__(self, directory: Path, identity: tuple[int, int]) -> None:
        self.directory = directory
        self.identity = identity
        self.step = ""

    def answer(self, number: int) -> str:
        """Probe the directory; a full disk counts as healthy."""
        try:
            self._probe(number.to_bytes(8, "big") * (_BYTES // 8))
        except OSError as error:
            if error.errno not in _FULL:
                return f"{error.errno} {self.step}: {error.strerror}"
        return "ok"

    def _probe(self, content: bytes) -> None:
        self.step = "stat"
        found = self.directory.stat()
        if (found.st_dev, found.st_ino) != self.identity:
            raise OSError(errno.ESTALE, "another directory is there now")
        self.step = "open"
        descriptor = os.open(self.directory / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.step = "write"
            os.pwrite(descriptor, content, 0)
            self.step = "fsync"
            os.fsync(descriptor)
            self.step = "read"
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # the page cache has it in any case
            if os.pread(descriptor, _BYTES, 0) != content:
                raise OSError(errno.EIO, "what was written does not come back")
        finally:
            os.close(descriptor)


def main(directory: str, device: str, inode: str) -> None:
    """Answer requests until standard input ends."""
    probe = Probe(Path(directory), (int(device), int(inode)))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for number, _ in enumerate(sys.stdin):
        sys.stdout.write(f"{probe.answer(number)}\n")
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        found = probe.directory.stat()
        if (found.st_dev, found.st_ino) == probe.identity:
            (probe.directory / NAME).unlink()


if __name__ == "__main__":
    main(*sys.argv[1:])
