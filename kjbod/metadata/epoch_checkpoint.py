"""Start offsets of the leader epochs: Kafka's ``leader-epoch-checkpoint`` (``LeaderEpochCheckpointFile``): ``0``,
count, and a line ``epoch start-offset`` per epoch. Blocking code.

The file is rebuilt from the segments, but it is also evidence: the line of an epoch is written after all earlier
batches are on the disk, and before the first batch of the epoch. A log that ends before that offset has lost
acknowledged records. Without this check an emptied log would look like that of a new cluster.
"""

import itertools
from pathlib import Path

from kjbod.errors import LogCorruptError
from kjbod.files import read_file, write_atomically

FILE_NAME = "leader-epoch-checkpoint"
_VERSION = "0"
_BYTES_MAX = 64 * 1024 * 1024


def encode_epochs(epochs: list[tuple[int, int]]) -> bytes:
    """Return the file's content for leader epochs and their first offsets, ascending."""
    lines = [_VERSION, str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    return ("\n".join(lines) + "\n").encode()


def write_epochs(directory: Path, epochs: list[tuple[int, int]]) -> None:
    """Write the file into a ``__cluster_metadata-0``, durably.

    Raises:
        OSError: the file cannot be written; the old file is unchanged.
    """
    write_atomically(directory / FILE_NAME, encode_epochs(epochs))


def read_epochs(directory: Path) -> list[tuple[int, int]]:
    """Return the epochs and start offsets in the file; empty if the file is missing or malformed.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        version, count, *lines = read_file(directory / FILE_NAME, bytes_max=_BYTES_MAX).decode("ascii").splitlines()
        epochs = [(int(epoch), int(start)) for epoch, start in (line.split(" ") for line in lines)]
    except (FileNotFoundError, ValueError):
        return []
    ascending = all(a[0] < b[0] and a[1] <= b[1] for a, b in itertools.pairwise(epochs))
    return epochs if (version, count) == (_VERSION, str(len(epochs))) and ascending else []


def require_begun(directory: Path, end_offset: int) -> None:
    """Require that the log or its newest snapshot reaches the start of the newest epoch.

    Args:
        directory: a ``__cluster_metadata-0``.
        end_offset: end of the log and its snapshots.

    Raises:
        LogCorruptError: the requirement is not met; the text has the missing offsets and the remedy.
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
