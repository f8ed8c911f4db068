"""Kafka's files of the metadata that an agent keeps in ``metadata.log.dir``, as a broker's observer has them
(``KafkaRaftLog``): read at the start, appended to while it runs. Blocking code, for a file process
(:mod:`.file_worker`).

In ``__cluster_metadata-0``: segments, snapshots, ``leader-epoch-checkpoint``, ``partition.metadata``, ``quorum-state``.
Indexes are not written: Kafka makes them when it opens a segment without. Appended batches are not synced, as those of
an observer are not (``KafkaRaftClient.appendAsFollower``): the quorum has them. What relies on them is synced first: a
new epoch's line, a new segment, a snapshot. A torn tail is cut when the log is first written to, as at Kafka's start.

Cut, overwritten and removed is only what kjbod made. Which files those are is remembered in ``kjbod.state.dir``, by
name and inode; none is reached through a symbolic link, and where something is no regular file nothing is kept. A
segment that has an index beside it was opened by a real broker, which may have written to it: it is nobody's to remove
but that broker's. A memory that was lost means that the files stay. A log that was voted on, or that another has led,
that is damaged or has a gap, is left alone.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kjbod.errors import KjbodError, LogCorruptError
from kjbod.files import fsync_directory, read_file, write_all, write_atomically
from kjbod.ids import METADATA_TOPIC_ID
from kjbod.metadata import clean_stop, epoch_checkpoint
from kjbod.metadata.batches import iter_batches
from kjbod.metadata.checkpoint_files import PARTIAL_SUFFIX, checkpoints_in
from kjbod.metadata.kept import Tail
from kjbod.metadata.log_files import (
    DIRECTORY_NAME,
    PARTITION_METADATA,
    SEGMENT_BYTES,
    SEGMENT_MODE,
    Segment,
    SegmentedLog,
    TornTail,
    open_log,
)
from kjbod.metadata.quorum_state import QuorumState, read_quorum_state, write_quorum_state
from kjbod.metadata.snapshot import SnapshotId

MEMORY_BYTES_MAX = 1024 * 1024
NOTE_APPENDS = 12
"""Appends between two notes of the last written batch. The note counts if a broker has later used the same segment."""
ASIDE_SUFFIX = ".aside"
"""Suffix of files from another history than the quorum's. Neither kjbod nor Kafka reads them."""
ASIDE_MAX = 100
OFFSET_BYTES = 8
"""A batch begins with its offset."""
FIRST = SnapshotId(0, 0)
_USED_NAME = re.compile(
    r"[0-9]{20}\.(log|index|timeindex)|[0-9]{20}-[0-9]{10}\.checkpoint(\.part)?"
    r"|leader-epoch-checkpoint(\.tmp)?|partition\.metadata(\.tmp)?|quorum-state(\.tmp)?"
)
"""Files that are read or written here."""


def newest_checkpoint(directory: Path) -> SnapshotId | None:
    """Return the newest finished snapshot in a ``__cluster_metadata-0``, except the one from formatting; None: there is
    none.

    Raises:
        OSError: it cannot be listed.
    """
    return max((found for found in checkpoints_in(directory) if found != FIRST), default=None)


def has_segments(directory: Path) -> bool:
    """Whether a ``__cluster_metadata-0`` has a log.

    Raises:
        OSError: it cannot be listed.
    """
    return any(path.suffix == ".log" for path in directory.iterdir())


def why_not_ours(directory: Path) -> str | None:
    """Return why a ``__cluster_metadata-0`` is not of an observer; None: it may be.

    Raises:
        OSError: it cannot be read.
        StorageError: its ``quorum-state`` makes no sense.
    """
    if problem := why_not_regular(directory):
        return problem
    state = read_quorum_state(directory)
    if state is not None and state.voted_id >= 0:
        return f"{directory}/quorum-state has a vote: it is a controller's"
    if (directory / clean_stop.FILE_NAME).exists():
        return f"{directory} is that of a kjbod controller"
    return None


def why_not_regular(directory: Path) -> str | None:
    """Name of what stands in the place of a file of a ``__cluster_metadata-0``, or of itself, and is something else;
    None: there is no such thing.

    Raises:
        OSError: it cannot be read.
    """
    if not stat.S_ISDIR(directory.lstat().st_mode):
        return f"{directory} is {_kind(directory)}, and no directory: move it away"
    for path in sorted(directory.iterdir()):
        if _USED_NAME.fullmatch(path.name) and not stat.S_ISREG(path.lstat().st_mode):
            return f"{path} is {_kind(path)}, and no regular file: it was neither read nor written; move it away"
    return None


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a device, pipe or socket")


def checked_log(directory: Path) -> tuple[SegmentedLog, SnapshotId | None]:
    """Open and check the log in a ``__cluster_metadata-0`` without changes; return the log and its newest snapshot.

    Raises:
        KjbodError: it is damaged or has a gap, or cannot be opened.
        OSError: it cannot be read.
    """
    newest = newest_checkpoint(directory)
    end = 0 if newest is None else newest.end_offset
    log = open_log(directory, start_offset=end, repair=False, read_only=True)
    if log.start_offset > end:
        problem = f"{directory} begins at offset {log.start_offset}, and its newest snapshot ends at {end}: a gap"
        log.close()
        raise KjbodError(problem)
    return log, newest


def known_epochs(log: SegmentedLog, newest: SnapshotId | None) -> list[tuple[int, int]]:
    """Leader epochs of a log and, where it does not begin at 0, of the record before it: who goes back to its first
    batch has to name one."""
    epochs, start = list(log.epochs), log.start_offset
    if start == 0 or newest is None:
        return epochs
    before = epochs[0][0] if epochs and newest.end_offset > start else newest.epoch
    return [(before, start - 1), *(each for each in epochs if each[0] > before)]


def tail_of(log: SegmentedLog, at: int | None = None) -> Tail | None:
    """Return the last batch, or the batch that begins at offset ``at``; None: there is none.

    Raises:
        OSError: the log cannot be read.
    """
    if at is not None:
        if not log.start_offset <= at < log.end_offset:
            return None
        return next((Tail.of(batch) for batch in iter_batches(log.read(at, 1, log.end_offset))), None)
    last = next((segment for segment in reversed(log.segments) if segment.size), None)
    return None if last is None else _last_batch(last)


def _last_batch(segment: Segment) -> Tail | None:
    position, found = segment.indexer.position_for(segment.next_offset), None
    for batch in iter_batches(os.pread(segment.fd, segment.size - position, position)):
        found = Tail.of(batch)
    return found


def committed_in(log: SegmentedLog, own: "OwnFiles") -> Tail | None:
    """The last batch of a log that is known as committed: the last one in a segment of kjbod's, which writes nothing
    else, and behind nothing else; or one that was noted before a broker opened that segment. None: there is none.

    Raises:
        OSError: the log cannot be read.
    """
    noted = own.committed
    if noted is not None and tail_of(log, noted.base_offset) != noted:
        noted = None
    last = next((segment for segment in reversed(log.segments) if segment.size and segment.path in own), None)
    written = None if last is None else _last_batch(last)
    return max((tail for tail in (noted, written) if tail is not None), key=lambda t: t.last_offset, default=None)


def _free_name(path: Path) -> str:
    numbers = ("", *(f"-{number}" for number in range(2, ASIDE_MAX)))
    names = (f"{path.name}{ASIDE_SUFFIX}{number}" for number in numbers)
    free = next((name for name in names if not os.path.lexists(path.with_name(name))), None)
    if free is None:
        raise OSError(
            errno.EEXIST, f"{ASIDE_MAX} copies of it were set aside: remove those that are not needed", str(path)
        )
    return free


def _fields(tail: Tail | None) -> tuple[int, int, int, int] | None:
    return None if tail is None else (tail.base_offset, tail.last_offset, tail.leader_epoch, tail.crc)


def _tail(fields: Any) -> Tail | None:
    """A tail that was remembered; None: none, or nothing that could be one.

    Raises:
        ValueError, TypeError: it makes no sense.
    """
    if fields is None:
        return None
    base, last, epoch, crc = (int(field) for field in fields)
    return Tail(base, last, epoch, crc)


def is_opened_by_kafka(segment: Path) -> bool:
    """Whether a Kafka broker has opened a segment: then the segment has an index."""
    return os.path.lexists(segment.with_suffix(".index"))


class OwnFiles:
    """Memory of the files that kjbod made in a ``__cluster_metadata-0``: names and inodes, in ``kjbod.state.dir``."""

    def __init__(self, path: Path, directory: Path) -> None:
        self._path = path
        self._directory = directory
        self._inodes: dict[str, int] = {}
        self.parted: Tail | None = None
        """Last batch of a log from another history than the quorum's, which was already reported."""
        self.committed: Tail | None = None
        """Last written batch that was noted."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            known = json.loads(read_file(path, bytes_max=MEMORY_BYTES_MAX))
            if known["directory"] == str(directory):
                self._inodes = {str(name): int(inode) for name, inode in known["files"].items()}
                self.committed, self.parted = _tail(known.get("committed")), _tail(known.get("parted"))

    def __contains__(self, path: Path) -> bool:
        try:
            return self.is_same(path, path.lstat())
        except OSError:
            return False

    def is_same(self, path: Path, status: os.stat_result) -> bool:
        """Whether the file with this status is the one that kjbod made, and no broker has opened it since."""
        same = stat.S_ISREG(status.st_mode) and status.st_ino == self._inodes.get(path.name)
        return same and not (path.suffix == ".log" and is_opened_by_kafka(path))

    def add(self, path: Path, *, name: str | None = None) -> None:
        """Remember a file that was made, and is to have another name if that is given. That it could not be written
        down only means that it stays for ever."""
        self._inodes[name or path.name] = path.lstat().st_ino
        self._save()

    def note(self, committed: Tail) -> None:
        """Remember the last written batch."""
        self.committed = committed
        self._save()

    def part(self, last: Tail | None) -> None:
        """Remember that the log that ends with ``last`` is of another history; None: that it is gone."""
        self.parted, self.committed = last, None if last is None else self.committed
        self._save()

    def set_aside(self, paths: list[Path]) -> list[str]:
        """Rename kjbod's files to names that no program reads; return the new names.

        Raises:
            OSError: one cannot be renamed.
        """
        names = []
        for path in paths:
            names.append(_free_name(path))
            self.add(path, name=names[-1])
            path.rename(path.with_name(names[-1]))
            self._inodes.pop(path.name, None)
        fsync_directory(self._directory)
        self._save()
        return names

    def forget(self, path: Path) -> None:
        """Forget a file that is gone."""
        self._inodes.pop(path.name, None)
        self._save()

    def remove(self, paths: list[Path]) -> None:
        """Remove files that kjbod made.

        Raises:
            OSError: one cannot be removed.
        """
        for path in paths:
            if path in self:
                path.unlink()
            self._inodes.pop(path.name, None)
        if paths:
            fsync_directory(self._directory)
            self._save()

    def _save(self) -> None:
        known = {"directory": str(self._directory), "files": self._inodes, "committed": _fields(self.committed)}
        known["parted"] = _fields(self.parted)
        with contextlib.suppress(OSError):
            write_atomically(self._path, json.dumps(known).encode())


class KeptLog:
    """A ``__cluster_metadata-0`` that is kept.

    Args:
        directory: it; its parent exists.
        memory: where it is remembered which files are ours.
        segment_bytes: at which size a segment is full.
    """

    def __init__(self, directory: Path, memory: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._own = OwnFiles(memory, directory)
        self._segment_bytes = segment_bytes
        self._log: SegmentedLog | None = None
        self._fd: int | None = None
        self._path = directory
        self._size = 0
        self._epochs: list[tuple[int, int]] = []
        self._end = 0
        self._appends = 0

    def open(self, known: tuple[int, int, int, int] | None) -> dict[str, Any]:
        """Look at the log without changes. ``known``: the last batch of the log according to another file.

        Returns:
            Where it ends, with its epochs and its last batch; whether it has ``known``; or what the matter with it is.
        """
        found: dict[str, Any] = {"start": 0, "end": 0, "epochs": [], "tail": None, "has": False, "problem": None}
        found |= {"torn": None, "committed": None, "parted": False}
        try:
            if not os.path.lexists(self._directory):
                return found
            found["problem"] = why_not_ours(self._directory)
            if found["problem"] or not has_segments(self._directory):
                return found
            log, newest = checked_log(self._directory)
        except LogCorruptError as error:
            remedy = (
                f"it is only a copy of what the controllers have: move {self._directory} away, and restart the agent"
            )
            return found | {"problem": f"{error.found}; {remedy}"}
        except KjbodError as error:
            return found | {"problem": str(error)}
        self._log, self._end, self._epochs = log, log.end_offset, list(log.epochs)
        # A log that ends before its newest snapshot was about to be replaced by that.
        tail = tail_of(log) if newest is None or newest.end_offset <= log.end_offset else None
        has = known is not None and tail_of(log, known[0]) == Tail(*known)
        torn = log.torn
        return found | {
            "torn": None if torn is None else (str(torn.path), torn.position, torn.bytes_cut),
            "start": log.start_offset,
            "end": log.end_offset,
            "epochs": known_epochs(log, newest),
            "tail": _fields(tail),
            "parted": tail is not None and tail == self._own.parted,
            "committed": _fields(committed_in(log, self._own)),
            "has": has,
        }

    def close(self) -> None:
        """Close the files; nothing is synced."""
        self._forget_log()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches of the log that was there, from the one that has ``offset`` on; nothing at its end.

        Raises:
            OSError: it cannot be read.
        """
        if self._log is None or offset >= self._log.end_offset:
            return b""
        return self._log.read(offset, max_bytes, self._log.end_offset)

    def append(self, data: bytes, kraft_version: int) -> int:
        """Append whole batches; gives the end of the log.

        Raises:
            OSError: not all was written, and what was is cut off again.
        """
        batches = list(iter_batches(data))
        if batches[0].base_offset != self._end:
            raise OSError(errno.EINVAL, f"offset {batches[0].base_offset} does not follow {self._end}")
        for batch in batches:
            if not self._epochs or batch.leader_epoch > self._epochs[-1][0]:
                self._begin_epoch(batch.leader_epoch, batch.base_offset, kraft_version)
            if self._fd is None or (self._size and self._size + batch.size_in_bytes > self._segment_bytes):
                self._roll()
            self._write(batch.raw)
            self._end = batch.next_offset
        if self._appends % NOTE_APPENDS == 0:
            self._own.note(Tail.of(batches[-1]))
        self._appends += 1
        return self._end

    def _write(self, raw: bytes) -> None:
        assert self._fd is not None
        try:
            write_all(self._fd, raw)
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(raw)

    def _begin_epoch(self, epoch: int, start: int, kraft_version: int) -> None:
        """Begin an epoch. Its line in the checkpoint requires that all earlier batches are on the disk."""
        self._prepare()
        if self._fd is not None:
            os.fdatasync(self._fd)
        self._epochs.append((epoch, start))
        epoch_checkpoint.write_epochs(self._directory, self._epochs)
        write_quorum_state(self._directory, QuorumState(leader_epoch=epoch), kraft_version=kraft_version)

    def _prepare(self) -> None:
        """Make or repair the directory before the first write."""
        if not self._directory.exists():
            self._directory.mkdir()
            fsync_directory(self._directory.parent)
        partition_metadata = self._directory / PARTITION_METADATA
        if not partition_metadata.exists():
            write_atomically(partition_metadata, f"version: 0\ntopic_id: {METADATA_TOPIC_ID}".encode())
        if self._log is not None and self._log.torn is not None:
            self._cut_torn(self._log.torn, self._log.end_offset)
            self._log.torn = None

    def _cut_torn(self, torn: TornTail, end_offset: int) -> None:
        """Cut the torn tail of kjbod's own write. The tail of any other writer stays."""
        fd = os.open(torn.path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            begins = os.pread(fd, OFFSET_BYTES, torn.position)
            written = begins == end_offset.to_bytes(OFFSET_BYTES, "big")[: len(begins)] or not any(begins)
            grown = status.st_size != torn.position + torn.bytes_cut
            if not self._own.is_same(torn.path, status) or not written or grown:
                raise OSError(
                    errno.EEXIST,
                    f"ends with {torn.bytes_cut} bytes that are no batch, and that kjbod did not write: they stay as "
                    "they are; a broker cuts what it has left there itself at its start; else move the directory away",
                    str(torn.path),
                )
            os.ftruncate(fd, torn.position)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _roll(self) -> None:
        """Continue in the last segment if it is kjbod's own or empty; else begin a new segment."""
        self._prepare()
        if self._log is None or self._fd is not None or not self._go_on_in(self._log.segments[-1]):
            self._begin_segment(self._end)

    def _go_on_in(self, last: Segment) -> bool:
        """Open the last segment to append to it, if that is ours. One that is empty has nothing to lose: an end between
        its making and the note of that leaves one, and a broker that has taken a snapshot."""
        fd = os.open(last.path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(fd)
        empty = stat.S_ISREG(status.st_mode) and status.st_size == last.size == 0 and status.st_nlink == 1
        if not empty and not (self._own.is_same(last.path, status) and status.st_size == last.size):
            os.close(fd)
            return False
        self._fd, self._path, self._size = fd, last.path, last.size
        if not is_opened_by_kafka(last.path):
            self._own.add(last.path)
        return True

    def _begin_segment(self, base_offset: int) -> None:
        if self._fd is not None:
            os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = None
        path = self._directory / f"{base_offset:020d}.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd, self._path, self._size = os.open(path, flags, SEGMENT_MODE), path, 0
        fsync_directory(self._directory)
        self._own.add(path)

    def part(self) -> list[str]:
        """The log is of another history than the quorum's: set aside what is there if all of it is ours, else remember
        that it is; the names of what was set aside.

        Raises:
            OSError: a file cannot be renamed.
        """
        self.close()
        if not self._directory.exists():
            return []
        segments = sorted(self._directory.glob("*.log"))
        checkpoints = [path for found, path in checkpoints_in(self._directory).items() if found != FIRST]
        if not all(path in self._own for path in (*segments, *checkpoints)):
            self._own.part(self._last())
            return []
        epoch_checkpoint.write_epochs(self._directory, [])
        # The newest first: what is left at any end is a log without a gap.
        names = self._own.set_aside([*reversed(segments), *checkpoints])
        self._own.part(None)
        return names

    def _last(self) -> Tail | None:
        """Return the last batch of the present log."""
        try:
            log, _ = checked_log(self._directory)
        except KjbodError:
            return None  # it is found to be damaged then, and said
        last = tail_of(log)
        for segment in log.segments:
            os.close(segment.fd)
        return last

    def take_checkpoint(self, name: str, position: int, data: bytes, last: bool, aside: bool = False) -> None:
        """Write a piece of a snapshot that the log does not reach; with the ``last`` one it takes the log's place.
        ``aside``: the log is not removed then, but set aside.

        Raises:
            OSError: it cannot be written; or there is a log that is not ours to remove.
        """
        segments = sorted(self._directory.glob("*.log")) if self._directory.exists() else []
        snapshot_id = SnapshotId.parse(name)
        if snapshot_id is None or (segments and self._end >= snapshot_id.end_offset):
            raise OSError(errno.EEXIST, f"the log ends at {self._end}, behind the snapshot {name}")
        if not all(path in self._own for path in segments):
            raise OSError(errno.EEXIST, f"the log before the snapshot {name} was not written by kjbod")
        self._prepare()
        part = self._directory / (name + PARTIAL_SUFFIX)
        descriptor = self._open_part(part, new=position == 0)
        try:
            write_all(descriptor, data)
            if last:
                os.fchmod(descriptor, 0o400)
                os.fsync(descriptor)
        except OSError:
            self._own.remove([part])
            raise
        finally:
            os.close(descriptor)
        if last:
            self._restart_at(snapshot_id, part, segments, aside)

    def _open_part(self, part: Path, *, new: bool) -> int:
        """Open a partial snapshot to append to it; a new one replaces kjbod's earlier partial file."""
        checkpoint = part.with_suffix("")
        for path in (part, checkpoint):
            left = path.lstat() if os.path.lexists(path) else None
            if left is not None and not self._own.is_same(path, left) and (path == checkpoint or left.st_size):
                raise OSError(errno.EEXIST, "was not written by kjbod, and stays: move it away", str(path))
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        if not new:
            return os.open(part, flags)
        part.unlink(missing_ok=True)
        descriptor = os.open(part, flags | os.O_CREAT | os.O_EXCL, SEGMENT_MODE)
        self._own.add(part)
        return descriptor

    def _restart_at(self, snapshot_id: SnapshotId, part: Path, segments: list[Path], aside: bool) -> None:
        """Replace the log by a snapshot: the snapshot is durable before the log is removed
        (``truncateFullyAndStartAt``)."""
        checkpoint = part.with_name(snapshot_id.file_name)
        self._own.add(part, name=checkpoint.name)  # before it has it: an end in between leaves nothing foreign
        part.replace(checkpoint)
        fsync_directory(self._directory)
        self._own.forget(part)
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self._forget_log()
        older = [path for found, path in checkpoints_in(self._directory).items() if FIRST != found < snapshot_id]
        if aside:
            self._own.set_aside([*segments, *(path for path in older if path in self._own)])
        self._own.remove([] if aside else segments)
        self._end, self._epochs = snapshot_id.end_offset, []
        epoch_checkpoint.write_epochs(self._directory, [])
        self._begin_segment(self._end)
        self._remove_older(snapshot_id)

    def cut(self, name: str, inode: int, keep_from: int) -> None:
        """A snapshot was made of the log, of this inode: remove what is ours below ``keep_from``, which is before its
        end.

        Raises:
            OSError: a file cannot be made or removed.
        """
        snapshot_id = SnapshotId.parse(name)
        if snapshot_id is None or self._fd is None:
            return
        if (self._directory / name).lstat().st_ino != inode:
            return
        self._own.add(self._directory / name)
        if self._size:
            self._begin_segment(self._end)
        self._forget_log()
        paths = sorted(self._directory.glob("*.log"))
        ends = [int(path.stem) for path in paths[1:]]
        gone: list[Path] = []
        for path, end in zip(paths, ends, strict=False):
            if end > keep_from or path not in self._own:
                break  # no gap: oldest first, and nothing behind one that stays
            gone.append(path)
        self._own.remove(gone)
        self._remove_older(snapshot_id)

    def _remove_older(self, newest: SnapshotId) -> None:
        older = [path for found, path in checkpoints_in(self._directory).items() if FIRST != found < newest]
        self._own.remove([path for path in older if path in self._own])

    def _forget_log(self) -> None:
        """Close the log files from the start."""
        if self._log is not None:
            for segment in self._log.segments:
                os.close(segment.fd)
            self._log = None


_logs: dict[str, KeptLog] = {}
"""What this process keeps, by directory. The successor of one that has died knows of none, and appends to none."""


def _log_of(directory: str) -> KeptLog:
    if directory not in _logs:
        raise OSError(
            errno.EBADF, "the process that had it open has died: restart the agent, which keeps the metadata again then"
        )
    return _logs[directory]


def open_kept(directory: str, memory: str, known: tuple[int, int, int, int] | None) -> dict[str, Any]:
    """Look at the log below a metadata log directory, see :meth:`KeptLog.open`."""
    if directory in _logs:
        _logs.pop(directory).close()
    _logs[directory] = KeptLog(Path(directory) / DIRECTORY_NAME, Path(memory))
    return _logs[directory].open(known)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "metadata_open": open_kept,
    "metadata_read": lambda directory, *arguments: _log_of(directory).read(*arguments),
    "metadata_append": lambda directory, *arguments: _log_of(directory).append(*arguments),
    "metadata_checkpoint": lambda directory, *arguments: _log_of(directory).take_checkpoint(*arguments),
    "metadata_part": lambda directory: _log_of(directory).part(),
    "metadata_cut": lambda directory, *arguments: _log_of(directory).cut(*arguments),
}
