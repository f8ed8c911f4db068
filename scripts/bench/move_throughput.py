"""Speed of the copy of a replica between two directories, beside ``cp`` and fsync on the same disks.

Both copy the same segment-like files (logs of 256 MiB, and the preallocated, sparse indexes that Kafka keeps beside
them) from one file system to another: kjbod with one pass of :class:`ReplicaCopy`, which ends when
everything is durable *and was read back from the medium and compared*; ``cp --sparse=auto -a`` followed by fsync of all
files and directories, which compares nothing. Before each run the page cache is emptied as far as we may, and what the
run before has copied is removed. They take turns, and who begins takes turns too; the share is the median of the ratios
of the pairs.

As root each directory is an ext4 of its own, on a loop device on a file; else both are plain directories.
"""

import argparse
import asyncio
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kjbod.clock import SystemClock
from kjbod.errors import KjbodError
from kjbod.faults import syscalls
from kjbod.faults.disks import make_file_system, require_real_disks
from kjbod.ids import Uuid
from kjbod_agent.moves.copying import ReplicaCopy, new_buffer
from kjbod_host.storage.api import StorageOptions
from kjbod_host.storage.posix import PosixStorageAgent
from scripts.rig import namespaces
from scripts.rig.rig_error import RigError

REACH_SHARE: Final = 0.8
SEGMENT_BYTES: Final = 256 << 20
INDEX_BYTES: Final = 10 << 20
"""What Kafka preallocates for each index (``segment.index.bytes``)."""
_INDEX_SHARE: Final = 512
"""One entry of 8 bytes for each 4 KiB of log."""
_TOPIC_ID: Final = Uuid.of(858, 4)
_REPLICA: Final = "orders-0"
_FUTURE: Final = f"{_REPLICA}.{'0' * 31}1-future"
_TIMEOUT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class Pair:
    """A run of each, in seconds."""

    kjbod_s: float
    cp_s: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """A measured throughput.

    Attributes:
        place: on which disks.
        size_bytes: what was copied each time, by length; holes do not count.
        kjbod_bytes_per_second: median.
        cp_bytes_per_second: median, of ``cp`` and fsync.
        share: median of the ratios of the pairs; 1 is as fast as ``cp``.
        pairs: each run.
    """

    place: str
    size_bytes: int
    kjbod_bytes_per_second: float
    cp_bytes_per_second: float
    share: float
    pairs: tuple[Pair, ...]

    @property
    def reached(self) -> bool:
        """Whether it is as fast as was asked for."""
        return self.share >= REACH_SHARE


def measure(size_bytes: int, rounds: int, directory: Path | None = None) -> Throughput:
    """Copy so much, so many times each.

    Args:
        size_bytes: of data in segments; whole segments, one at least.
        rounds: pairs of runs.
        directory: where the file systems or directories are made; by default the system's temporary directory.

    Raises:
        KjbodError: the disks could not be made.
    """
    segments = max(1, size_bytes // SEGMENT_BYTES)
    with (
        tempfile.TemporaryDirectory(prefix="kjbod-move-", dir=directory) as work,
        _disks(Path(work), segments) as disks,
    ):
        place, source, destination = disks
        written = _write_replica(source / _REPLICA, segments)
        pairs = tuple(_run_pair(source, destination, kjbod_first=number % 2 == 0) for number in range(rounds))
    return Throughput(
        place=place,
        size_bytes=written,
        kjbod_bytes_per_second=written / statistics.median(pair.kjbod_s for pair in pairs),
        cp_bytes_per_second=written / statistics.median(pair.cp_s for pair in pairs),
        share=statistics.median(pair.cp_s / pair.kjbod_s for pair in pairs),
        pairs=pairs,
    )


@contextlib.contextmanager
def _disks(work: Path, segments: int) -> Iterator[tuple[str, Path, Path]]:
    """Two places: what they are, the source and the destination."""
    places = [work / "source", work / "destination"]
    for path in places:
        path.mkdir()
    try:
        require_real_disks("ext4")
        if not namespaces.inside():
            raise RigError("mounts of ours belong into a namespace of their own")
    except KjbodError:
        yield "plain directories of one file system", places[0], places[1]
        return
    with contextlib.ExitStack() as mounted:
        for path in places:
            image = path.with_suffix(".ext4")
            _write_image(image, segments * SEGMENT_BYTES * 5 // 4 + (256 << 20))
            make_file_system("ext4", image)
            device, fd = syscalls.attach_loop(image)
            try:
                syscalls.mount(str(device), path, "ext4")
            finally:
                os.close(fd)
            mounted.callback(syscalls.umount, path)
            (path / "lost+found").rmdir()
        yield "two ext4 on loop devices", places[0], places[1]


def _write_image(image: Path, size_bytes: int) -> None:
    """With all its blocks written: those of a sparse file cost the run that is the first to use them."""
    zeros = bytes(4 << 20)
    with image.open("wb") as file:
        for _ in range(0, size_bytes, len(zeros)):
            file.write(zeros)
        os.fsync(file.fileno())


def _write_replica(replica: Path, segments: int) -> int:
    """Files as a broker has them, durable; how many bytes of data they have."""
    replica.mkdir()
    (replica / "partition.metadata").write_text(f"version: 0\ntopic_id: {_TOPIC_ID}")
    chunk = random.Random(858).randbytes(1 << 20)
    written = 0
    for number in range(segments):
        base = replica / f"{number * 100_000:020d}"
        with base.with_suffix(".log").open("wb") as log:
            for part in range(SEGMENT_BYTES >> 20):
                log.write(chunk[part:] + chunk[:part])
        for suffix in (".index", ".timeindex"):
            with base.with_suffix(suffix).open("wb") as index:
                index.write(chunk[: SEGMENT_BYTES // _INDEX_SHARE])
                index.truncate(INDEX_BYTES)
        written += SEGMENT_BYTES + 2 * (SEGMENT_BYTES // _INDEX_SHARE)
    os.sync()
    return written


def _run_pair(source: Path, destination: Path, *, kjbod_first: bool) -> Pair:
    runs = [_run_kjbod, _run_cp] if kjbod_first else [_run_cp, _run_kjbod]
    times = {run: _timed(run, source, destination) for run in runs}
    return Pair(times[_run_kjbod], times[_run_cp])


def _timed(run: Callable[[Path, Path], float], source: Path, destination: Path) -> float:
    for left in destination.iterdir():
        for file in left.iterdir():
            file.unlink()
        left.rmdir()
    _empty_page_cache(source / _REPLICA)
    return run(source, destination)


def _empty_page_cache(replica: Path) -> None:
    """Of the replica; as root of everything, the files below the loop devices included."""
    os.sync()
    for path in replica.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with contextlib.suppress(OSError):
        Path("/proc/sys/vm/drop_caches").write_text("1\n")


def _run_cp(source: Path, destination: Path) -> float:
    began_s = time.monotonic()
    subprocess.run(["cp", "--sparse=auto", "-a", str(source / _REPLICA), str(destination)], check=True)
    copied = destination / _REPLICA
    for path in (*copied.iterdir(), copied, destination):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    return time.monotonic() - began_s


def _run_kjbod(source: Path, destination: Path) -> float:
    return asyncio.run(_copy(source, destination))


async def _copy(source: Path, destination: Path) -> float:
    storage = PosixStorageAgent(StorageOptions(clock=SystemClock()))
    await storage.start()
    buffer = new_buffer(storage)
    try:
        reader, writer = storage.directory(str(source)), storage.directory(str(destination))
        await reader.load(timeout_ms=_TIMEOUT_MS)
        await writer.load(timeout_ms=_TIMEOUT_MS)
        began_s = time.monotonic()
        await writer.create_future(_FUTURE, _TOPIC_ID, timeout_ms=_TIMEOUT_MS)
        if not await ReplicaCopy(reader, _REPLICA, writer, _FUTURE, buffer=buffer).catch_up():
            raise RigError("a source that nobody writes to was found changed")
        return time.monotonic() - began_s
    finally:
        buffer.close()
        await storage.close()


def main() -> int:
    """For a person who tunes it; ``scripts/bench/replicas`` tells it as part of a whole."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bench.move_throughput", description=__doc__)
    parser.add_argument("--gib", type=float, default=2.0, help="how much to copy (2)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (5)")
    parser.add_argument("--directory", type=Path, default=None, help="where the disks are made")
    options = parser.parse_args()
    with contextlib.suppress(RigError):
        namespaces.reexec()
    found = measure(int(options.gib * (1 << 30)), options.rounds, options.directory)
    print(f"{found.place}: {found.size_bytes / 1e9:.2f} GB, {len(found.pairs)} pairs")
    for pair in found.pairs:
        print(f"  kjbod {pair.kjbod_s:6.2f} s   cp + fsync {pair.cp_s:6.2f} s   share {pair.cp_s / pair.kjbod_s:.2f}")
    print(
        f"kjbod {found.kjbod_bytes_per_second / 1e6:.0f} MB/s, cp + fsync {found.cp_bytes_per_second / 1e6:.0f} MB/s, "
        f"share {found.share:.2f} (reach {REACH_SHARE})"
    )
    return 0 if found.reached else 1


if __name__ == "__main__":
    sys.exit(main())
