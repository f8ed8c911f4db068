"""The load of ``scripts/bench/false-positives``: keeps devices and processors busy until it is killed.

For each directory one process that writes, flushes and reads as fast as the device lets it, past the page cache; and as
many as are asked for that only compute. They die with the process that started them.
"""

import argparse
import ctypes
import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path

BLOCK_BYTES = 256 << 10
FILE_BLOCKS = 32
_FLUSH_EVERY = 16
_PR_SET_PDEATHSIG = 1


def _use_disk(directory: Path) -> None:
    """Sequential writes of 256 KiB, a read between two of them, fsync each 16."""
    buffer = mmap.mmap(-1, BLOCK_BYTES)  # aligned, as O_DIRECT wants it
    fd = os.open(directory / ".kjbod-load", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
    number = 0
    while True:
        os.pwrite(fd, buffer, number % FILE_BLOCKS * BLOCK_BYTES)
        number += 1
        os.preadv(fd, [buffer], (number * 7) % min(number, FILE_BLOCKS) * BLOCK_BYTES)
        if number % _FLUSH_EVERY == 0:
            os.fsync(fd)


def _use_processor(_directory: Path) -> None:
    while True:
        sum(range(100_000))


def main() -> None:
    """Start all of it and wait."""
    parser = argparse.ArgumentParser(prog="scripts.bench.false_positives_load")
    parser.add_argument("--burners", type=int, default=0, help="processes that only compute")
    parser.add_argument("directories", type=Path, nargs="*")
    arguments = parser.parse_args()
    ours = os.getpid()
    work: list[tuple[Callable[[Path], None], Path]] = [(_use_disk, directory) for directory in arguments.directories]
    work += [(_use_processor, Path())] * arguments.burners
    for use, directory in work:
        if os.fork() == 0:
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                if os.getppid() == ours:
                    use(directory)
            finally:
                os._exit(1)  # nothing may escape into the loop above
    os.wait()  # none ends by itself
    raise SystemExit("a process of the load ended")


if __name__ == "__main__":
    main()
