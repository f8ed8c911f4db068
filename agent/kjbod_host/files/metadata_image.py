"""The kept image, made from Kafka's files that the agent keeps, and now and then a snapshot in Kafka's format as well
(``SnapshotGenerator``, which runs in brokers too). In a process of its own, which ends with it; blocking code.

It starts from the kept image before, where the log goes on from that, else from the newest snapshot, and stops at the
last batch that is no part of an open transaction. What is appended meanwhile is not waited for.
"""

import os
from pathlib import Path
from typing import Any

from kjbod.errors import KjbodError
from kjbod.files import make_directories, read_file, write_atomically
from kjbod.metadata.batches import RecordBatch, iter_batches
from kjbod.metadata.checkpoint_files import read_checkpoint, stream_checkpoint
from kjbod.metadata.control_records import KRaftVersion, KRaftVoters
from kjbod.metadata.image import MetadataImage, Replayer, image_of
from kjbod.metadata.kept import Kept, Tail
from kjbod.metadata.kept_image import KeptHeader, KeptImageError, decode_in_steps, encode_kept_image, read_header
from kjbod.metadata.log_files import DIRECTORY_NAME, SegmentedLog
from kjbod.metadata.snapshot import SnapshotId
from kjbod_host.files.metadata_files import checked_log, has_segments, known_epochs, tail_of, why_not_ours

IMAGE_BYTES_MAX = 512 * 1024 * 1024
"""Of a kept image: some ten millions of partitions."""
NICE = 10
_READ_BYTES = 1024 * 1024


def compact(
    directory: str, image_path: str, cluster_id: str, node_id: int, checkpoint_bytes: int
) -> dict[str, Any] | None:
    """Write the image of the log below a metadata log directory, where there is one and it has grown.

    Args:
        directory: ``metadata.log.dir``.
        image_path: the kept image's file, which is replaced.
        cluster_id: whose it is.
        node_id: likewise.
        checkpoint_bytes: after so many bytes of log since the newest snapshot another one is written; 0: none is.

    Returns:
        The last batch of the image, and name and inode of the snapshot that was written; None: there is nothing to
        keep.

    Raises:
        KjbodError: the log is damaged, or not an observer's.
        OSError: a file cannot be read or written.
    """
    os.nice(NICE)
    inner, path = Path(directory) / DIRECTORY_NAME, Path(image_path)
    if not os.path.lexists(inner):
        return None
    if problem := why_not_ours(inner):
        raise KjbodError(problem)
    if not has_segments(inner):
        return None
    log, newest = checked_log(inner)
    try:
        due = 0 < checkpoint_bytes <= _bytes_since(log, newest)
        state = None if due else _known(path, log, cluster_id, node_id)
        state = state or _State.of_checkpoint(inner, newest)
        state.follow(log)
        epochs = known_epochs(log, newest)
    finally:
        log.close()
    if state.tail is None:
        return None
    kept = Kept(state.tail, tuple(each for each in epochs if each[1] <= state.tail.last_offset))
    header = KeptHeader(cluster_id=cluster_id, node_id=node_id, kept=kept, kraft_version=state.kraft_version)
    make_directories(path.parent)
    write_atomically(path, encode_kept_image(state.image, header), mode=0o600)
    checkpoint = state.write_checkpoint(inner) if due else None
    inode = 0 if checkpoint is None else (inner / checkpoint).lstat().st_ino
    return {"tail": _fields(state.tail), "checkpoint": checkpoint, "inode": inode}


def _fields(tail: Tail) -> tuple[int, int, int, int]:
    return tail.base_offset, tail.last_offset, tail.leader_epoch, tail.crc


def _bytes_since(log: SegmentedLog, newest: SnapshotId | None) -> int:
    """Bytes of the log behind a snapshot; whole segments count."""
    return sum(size for end, size in log.sizes() if newest is None or end > newest.end_offset)


def _known(path: Path, log: SegmentedLog, cluster_id: str, node_id: int) -> "_State | None":
    """The kept image before, where the log goes on from it."""
    try:
        data = read_file(path, bytes_max=IMAGE_BYTES_MAX)
        header = read_header(data.partition(b"\n")[0], cluster_id=cluster_id, node_id=node_id)
        tail = header.kept.tail
        if tail_of(log, tail.base_offset) != tail:
            return None
        steps = decode_in_steps(data, cluster_id=cluster_id, node_id=node_id)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return _State(end.value, tail, header.kraft_version)
    except (OSError, KeptImageError):
        return None


class _State:
    """State of the log up to some batch."""

    def __init__(self, image: MetadataImage, tail: Tail | None, kraft_version: int, voters: Any = None) -> None:
        self.image = image
        self.tail = tail
        """The last batch that is in the image, and outside of a transaction."""
        self.kraft_version = kraft_version
        self._voters: KRaftVoters | None = voters
        self._timestamp_ms = 0

    @classmethod
    def of_checkpoint(cls, directory: Path, newest: SnapshotId | None) -> "_State":
        if newest is None:
            return cls(MetadataImage(), None, 0)
        checkpoint = read_checkpoint(directory / newest.file_name)
        image = image_of(checkpoint.records, offset=newest.end_offset - 1, epoch=newest.epoch)
        return cls(image, None, checkpoint.kraft_version, checkpoint.voters)

    def follow(self, log: SegmentedLog) -> None:
        """Apply the log behind the image. Of a transaction that is open at the end nothing is in it."""
        replayer, offset = Replayer(self.image), self.image.offset + 1
        while offset < log.end_offset:
            for batch in iter_batches(log.read(offset, _READ_BYTES, log.end_offset)):
                for at, record in batch.metadata_records():
                    if at >= offset:
                        replayer.replay(at, batch.leader_epoch, record)
                self._take_controls(batch)
                offset = batch.next_offset
                if not replayer.in_transaction:
                    replayer.skip(batch.last_offset, batch.leader_epoch)
                    self.tail, self._timestamp_ms = Tail.of(batch), batch.timestamp_ms

    def _take_controls(self, batch: RecordBatch) -> None:
        for _, control in batch.control_records():
            if isinstance(control, KRaftVersion):
                self.kraft_version = control.k_raft_version
            elif isinstance(control, KRaftVoters):
                self._voters = control

    def write_checkpoint(self, directory: Path) -> str | None:
        """Write the state as a snapshot in Kafka's format; gives its name. None: another has written that one."""
        assert self.tail is not None
        name = SnapshotId(self.tail.last_offset + 1, self.tail.leader_epoch).file_name
        if os.path.lexists(directory / name):
            return None
        stream_checkpoint(
            directory / name,
            header_timestamp_ms=self._timestamp_ms,
            kraft=(self.kraft_version, self._voters) if self.kraft_version or self._voters else None,
            records=self.image.to_records(),
            leader_epoch=self.tail.leader_epoch,
            timestamp_ms=self._timestamp_ms,
            metadata_version=self.image.metadata_version,
        )
        return name
