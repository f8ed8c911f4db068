"""Beginnings of the leader epochs: ``leader-epoch-checkpoint``, as Kafka has it (``LeaderEpochCheckpointFile``): ``0``,
count, and a line ``epoch start-offset`` per epoch. Blocking code.

The segments say the same, and the file is rebuilt from them. But it is a witness as well: an epoch gets its line when
all before its first batch is on the disk, and before that batch is written. A log that ends before it has lost what was
acknowledged, and an emptied one would be taken for that of a new cluster.
"""

import itertools
from pathlib import Path

from kjbod.errors import LogCorruptError
from kjbod.files import read_file, write_atomically

FILE_NAME = "leader-epoch-checkpoint"
_VERSION = "0"
_BYTES_MAX = 64 * 1024 * 1024


def encode_epochs(epochs: list[tuple[int, int]]) -> bytes:
    """The file's content, of leader epochs and their first offsets, ascending."""
    lines = [_VERSION, str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    return ("\n".join(lines) + "\n").encode()


def write_epochs(directory: Path, epochs: list[tuple[int, int]]) -> None:
    """Write the file into a ``__cluster_metadata-0``, durably.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    write_atomically(directory / FILE_NAME, encode_epochs(epochs))


def read_epochs(directory: Path) -> list[tuple[int, int]]:
    """Epochs and their start offsets in the file; none where there is no file, or no good one: then nothing is known.

    Raises:
        OSError: it cannot be read.
    """
    try:
        version, count, *lines = read_file(directory / FILE_NAME, bytes_max=_BYTES_MAX).decode("ascii").splitlines()
        epochs = [(int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines)]
    except (FileNotFoundError, ValueError):
        return []
    ascending = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(epochs))
    return epochs if (version, count) == (_VERSION, str(len(epochs))) and ascending else []


def require_begun(directory: Path, end_offset: int) -> None:
    """The log, or its newest snapshot, must reach to where the newest epoch began.

    Args:
        directory: a ``__cluster_metadata-0``.
        end_offset: how far log and snapshots reach.

    Raises:
        LogCorruptError: it does not; names what is missing and what to do.
        OSError: the file cannot be read.
    """
    epochs = read_epochs(directory)
    if not epochs or end_offset >= epochs[-1][1]:
        return
    epoch, start = epochs[-1]
    found = f"{directory} has lost the records from offset {end_offset} to {start - 1}"
    raise LogCorruptError(
        f"{found}: they were on the disk when leader "
        f"epoch {epoch} began at offset {start}. Nothing was changed: restore it from a backup; to go on without these "
        f"records for good, remove {directory / FILE_NAME}",
        found,
    )
