"""Files of a metadata log: segments, their indexes, and recovery after a crash. Blocking code.

In ``__cluster_metadata-0``, as Kafka has it (``UnifiedLog``, ``LogSegment``, ``OffsetIndex``, ``TimeIndex``):

- ``<base offset, 20 digits>.log``: batches, back to back;
- ``.index``: relative last offset i32 and position i32 of about one batch in 4 KiB;
- ``.timeindex``: timestamp i64 and relative offset i32 of the newest record so far, written beside ``.index``;
- ``leader-epoch-checkpoint``: ``0``, count, and a line ``epoch start-offset`` per leader epoch;
- ``partition.metadata``: the topic id.

A batch is written only when the previous batch is on the disk. After a power loss, any of the unsynced pages may
survive: with several batches in flight, a later one could survive an earlier one. This way only the last batch can be
torn, and recovery can tell a crash from corruption without a marker.

Recovery reads and checks every batch before it changes anything. A batch at the very end that is cut off or has a wrong
checksum, with no valid or damaged batch after it, was being written at the crash. It was never acknowledged, and is
cut. Any other failed check is a :class:`~kjbod.errors.LogCorruptError`. Indexes and the epoch checkpoint are rebuilt
from the segments; they only help to detect a segment that ends too early.

The batches are read from the medium (:mod:`kjbod.medium`): the pages of a failed write are in the page cache, where
they pass the checks, but not on the disk. So all batches that recovery finds are durable, and nothing is acknowledged
after a batch that is not.

A log is refused if it ends before a known offset, because it has lost acknowledged records. Known offsets are its end
at a clean stop (:mod:`kjbod.metadata.clean_stop`), the start of its newest epoch
(:mod:`kjbod.metadata.epoch_checkpoint`), and a segment of which only an index is left.

Changes go through a descriptor of the opened directory (``/proc/self/fd``, proc_pid_fd(5)). The path may lead to
another directory by then, for example a backup that was mounted over it, whose log would be damaged.

A log that was shortened after a snapshot starts above 0. Segments are removed oldest first, each ``.log`` before its
indexes. So a crash leaves a log without a gap, and indexes without a segment, which recovery removes.
"""

import bisect
import contextlib
import errno
import mmap
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, structs

from kjbod.documents import INT64_MAX
from kjbod.errors import LogCorruptError, StorageError
from kjbod.files import fsync_directory, read_file, reason_of, write_all, write_atomically
from kjbod.ids import METADATA_TOPIC_ID
from kjbod.medium import read_anew
from kjbod.metadata import clean_stop, epoch_checkpoint
from kjbod.metadata.batches import HEADER_BYTES, CorruptBatchError, RecordBatch, batch_size, iter_batches, read_header
from kjbod.metadata.quorum_state import read_quorum_state

DIRECTORY_NAME = "__cluster_metadata-0"
INDEX_INTERVAL_BYTES = 4096
"""``index.interval.bytes``."""
SEGMENT_BYTES = 1024 * 1024 * 1024
"""``metadata.log.segment.bytes``."""
SEGMENT_MS = 7 * 24 * 3600 * 1000
"""``metadata.log.segment.ms``."""
PARTITION_METADATA = "partition.metadata"
SEGMENT_MODE = 0o600
"""Mode of a segment: only its user may read SCRAM keys and passwords. (Kafka's are 0644.)"""
_SEGMENT_NAME = re.compile(r"([0-9]{20})\.log")
_INDEX_NAME = re.compile(r"([0-9]{20})\.(index|timeindex)")
_LEFT_OVER_NAME = re.compile(r"[0-9]{20}\.(log|index|timeindex|snapshot|txnindex)\.deleted")
"""Files that Kafka's controller renamed and did not delete. Its ``.snapshot`` files (of producers, always empty here)
are not removed."""
_INDEX_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_BATCH_FROM_MAGIC = 16
_MAGIC = b"\x02"
_READ_AHEAD_BYTES = 64 * 1024


class Indexer:
    """Decides which batches of a segment get an entry in its two indexes (``LogSegment.append``)."""

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets: list[int] = []
        """Last offset of each batch in the index."""
        self.positions: list[int] = []
        """Start of each of these batches."""
        self.first_timestamp_ms: int | None = None
        """Timestamp of the segment's first batch: a segment with an old one is full."""
        self._since_entry = 0
        self._newest: tuple[int, int] | None = None
        self._last_time: int | None = None

    def add(self, batch: RecordBatch, position: int) -> tuple[bytes, bytes]:
        """Note a batch at ``position``, and return the bytes to append to ``.index`` and ``.timeindex``."""
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = batch.timestamp_ms
        if self._newest is None or batch.timestamp_ms > self._newest[0]:
            self._newest = (batch.timestamp_ms, batch.last_offset)
        index = time_index = b""
        if self._since_entry > INDEX_INTERVAL_BYTES:
            self.offsets.append(batch.last_offset)
            self.positions.append(position)
            index = _INDEX_ENTRY.pack(batch.last_offset - self.base_offset, position)
            time_index = self.last_time_entry()
            self._since_entry = 0
        self._since_entry += batch.size_in_bytes
        return index, time_index

    def last_time_entry(self) -> bytes:
        """Return the entry that brings ``.timeindex`` up to date, also written when a segment is closed; empty if it is
        up to date."""
        if self._newest is None or (self._last_time is not None and self._newest[0] <= self._last_time):
            return b""
        self._last_time = self._newest[0]
        return _TIME_ENTRY.pack(self._newest[0], self._newest[1] - self.base_offset)

    def position_for(self, offset: int) -> int:
        """Return a position at or before the batch with ``offset``, from which to search for it."""
        at = bisect.bisect_right(self.offsets, offset)
        return self.positions[at - 1] if at else 0


class Segment(Struct, eq=False):
    """An open segment."""

    path: Path
    base_offset: int
    fd: int
    size: int
    """Valid bytes; after a failed write the file may have more."""
    next_offset: int
    indexer: Indexer

    def read(self, offset: int, max_bytes: int, limit: int) -> bytes:
        """Return whole batches from the batch with ``offset`` on, below ``limit``: at most ``max_bytes``, but at least
        one batch.

        Raises:
            OSError: the file cannot be read.
        """
        start, first = self._find(offset)
        chunk = os.pread(self.fd, max(first, min(max_bytes, self.size - start)), start)
        end = 0
        while len(chunk) - end >= HEADER_BYTES and _last_offset(chunk, end) < limit:
            size = batch_size(chunk, end) or 0
            if end + size > len(chunk):
                break
            end += size
        return chunk[:end]

    def _find(self, offset: int) -> tuple[int, int]:
        """Return position and size of the batch with ``offset``."""
        position = self.indexer.position_for(offset)
        while position < self.size:
            window = os.pread(self.fd, min(_READ_AHEAD_BYTES, self.size - position), position)
            at = 0
            while at == 0 or len(window) - at >= HEADER_BYTES:
                size = batch_size(window, at) or 0
                if size < HEADER_BYTES or len(window) < HEADER_BYTES:
                    raise OSError(errno.EIO, f"{self.path} changed at position {position + at} since it was checked")
                if _last_offset(window, at) >= offset:
                    return position + at, size
                at += size
            position += at
        return self.size, 0


def _last_offset(buf: bytes, at: int) -> int:
    base = int.from_bytes(buf[at : at + 8], "big", signed=True)
    return base + int.from_bytes(buf[at + 23 : at + 27], "big", signed=True)


class TornTail(Struct, frozen=True):
    """Tail of the log that recovery cut off."""

    path: Path
    position: int
    bytes_cut: int


class SegmentedLog:
    """Open files of one log, for one writer, and readers that may be in another thread.

    All offsets here are of written records, synced or not.
    """

    def __init__(self, directory: Path, segment_bytes: int, segment_ms: int = SEGMENT_MS) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.segment_ms = segment_ms
        self.segments: list[Segment] = []
        self.epochs: list[tuple[int, int]] = []
        """Leader epochs and their first offsets, ascending."""
        self.torn: TornTail | None = None
        self.was_stopped = False
        """Whether the log is unchanged since a clean stop, or the newest snapshot has the records lost since."""
        self._unrepaired: list[_Checked] | None = None
        self._stop_is_noted = True
        self._descriptor: int | None = None
        """Descriptor of the directory, after its check."""

    def hold(self) -> None:
        """Open the directory: all later changes go to the directory that is there now."""
        self._descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def _own(self) -> Path:
        """Return the path of the opened directory, even if another directory is mounted over it."""
        return self.directory if self._descriptor is None else Path(f"/proc/self/fd/{self._descriptor}")

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Show the usual path of the directory in errors."""
        own = str(self._own)
        try:
            yield
        except OSError as error:
            if error.filename is not None:
                error.filename = str(error.filename).replace(own, str(self.directory), 1)
            raise

    def _beside(self, segment: Segment, suffix: str) -> Path:
        return _beside(self._own / segment.path.name, suffix)

    @property
    def start_offset(self) -> int:
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.segments[-1].next_offset

    def sizes(self) -> list[tuple[int, int]]:
        """Return the end offset and the size in bytes of each segment."""
        return [(segment.next_offset, segment.size) for segment in list(self.segments)]

    def repair(self) -> None:
        """Repair the directory, if :func:`open_log` was called without ``repair``: cut the torn tail, rebuild derived
        files, remove left-overs. A second call does nothing.

        Raises:
            OSError: a file cannot be written.
        """
        if self._unrepaired is not None:
            _repair(self.directory, self, self._unrepaired)
            self._unrepaired = None

    def close(self, *, clean: bool = False) -> None:
        """Write the last time index entry and close the files; nothing is synced.

        Args:
            clean: all appended batches are durable: record the end, unless this log was only read.

        Raises:
            OSError: the end cannot be recorded; the files are closed.
        """
        last = self.segments[-1]
        for segment in self.segments:
            if self._unrepaired is None:
                with contextlib.suppress(OSError):
                    _append(self._beside(segment, ".timeindex"), segment.indexer.last_time_entry())
            os.close(segment.fd)
        self.segments.clear()
        try:
            if clean and self._unrepaired is None:
                epoch = _newest_epoch(self._own, self.epochs)
                stop = clean_stop.CleanStop(
                    epoch=epoch, end_offset=last.next_offset, file_name=last.path.name, size_bytes=last.size
                )
                with self._told():
                    clean_stop.write_clean_stop(self._own, stop)
        finally:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    # ---- writing

    def append(self, batches: list[RecordBatch]) -> None:
        """Write batches that follow each other and the log; start a new segment when one is full. All but the last
        batch are durable then; call :meth:`sync` for the last one.

        Raises:
            OSError: not all batches were written; the log must not be written again before recovery.
        """
        self._forget_clean_stop()
        for number, batch in enumerate(batches):
            if number:
                self.sync()
            if self._is_full(self.segments[-1], batch):
                self._roll(batch.base_offset)
            self._write(batch)

    def _forget_clean_stop(self) -> None:
        """Remove the record of the clean stop at the first change of the log. A start that fails before keeps the
        record."""
        if self._stop_is_noted:
            clean_stop.remove_clean_stop(self._own)
            self._stop_is_noted = False

    def _is_full(self, segment: Segment, batch: RecordBatch) -> bool:
        """Return whether ``batch`` starts a new segment (``LogSegment.shouldRoll``)."""
        if not segment.size:
            return False
        first_ms = segment.indexer.first_timestamp_ms
        old = first_ms is not None and batch.timestamp_ms - first_ms > self.segment_ms
        return old or segment.size + batch.size_in_bytes > self.segment_bytes

    def _write(self, batch: RecordBatch) -> None:
        segment = self.segments[-1]
        if _add_epoch(self.epochs, batch):
            epoch_checkpoint.write_epochs(self._own, self.epochs)
        write_all(segment.fd, batch.raw)
        index, time_index = segment.indexer.add(batch, segment.size)
        segment.size += batch.size_in_bytes
        _append(self._beside(segment, ".index"), index)
        _append(self._beside(segment, ".timeindex"), time_index)
        segment.next_offset = batch.next_offset

    def _roll(self, base_offset: int) -> None:
        full = self.segments[-1]
        _append(self._beside(full, ".timeindex"), full.indexer.last_time_entry())
        self.segments.append(self._created(base_offset))

    def _created(self, base_offset: int) -> Segment:
        segment = _create_segment(self._own, base_offset)
        return structs.replace(segment, path=self.directory / segment.path.name)

    def sync(self) -> None:
        """Make all appended batches durable.

        Raises:
            OSError: the batches may not be durable, now or ever: do not try again.
        """
        # Indexes and the modification time can be rebuilt; fdatasync covers size and data.
        os.fdatasync(self.segments[-1].fd)
        self._require_linked(self.segments[-1])

    def _require_linked(self, segment: Segment) -> None:
        """Require that the segment's file was not removed: such a file accepts writes, and vanishes when its descriptor
        is closed."""
        status = os.fstat(segment.fd)
        if status.st_nlink:
            return
        with contextlib.suppress(OSError):  # some file systems count no links
            if os.path.samestat((self._own / segment.path.name).stat(), status):
                return
        raise OSError(
            errno.ENOENT, f"{segment.path} was removed while it was written to: restore {self.directory} from a backup"
        )

    # ---- reading

    def read(self, offset: int, max_bytes: int, limit: int) -> bytes:
        """Read like :meth:`Segment.read`, within one segment."""
        return self._segment_of(offset).read(offset, max_bytes, limit)

    def file_of(self, offset: int) -> Path:
        """Return the segment that has ``offset``."""
        return self._segment_of(offset).path

    def _segment_of(self, offset: int) -> Segment:
        at = bisect.bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        return self.segments[max(at, 0)]

    # ---- shortening

    def delete_before(self, offset: int) -> list[Path]:
        """Remove the segments that have nothing at or above ``offset``, a snapshot's end; never the last segment.
        Leader epochs that end there are removed too (``LeaderEpochFileCache.truncateFromStart``).

        Raises:
            OSError: a segment cannot be removed.
        """
        removed = []
        while len(self.segments) > 1 and self.segments[0].next_offset <= offset:
            segment = self.segments.pop(0)
            os.close(segment.fd)
            _remove(self._own / segment.path.name)
            removed.append(segment.path)
        kept = epochs_from(self.epochs, offset)
        if kept != self.epochs:
            self.epochs[:] = kept
            epoch_checkpoint.write_epochs(self._own, kept)
        if removed:
            fsync_directory(self._own)
        return removed

    def restart_at(self, offset: int) -> None:
        """Drop everything and start at ``offset``, the end of a snapshot that is newer than the log
        (``UnifiedLog.truncateFullyAndStartAt``).

        Raises:
            OSError: a file cannot be removed or made.
        """
        self._unrepaired = None
        self._forget_clean_stop()
        while self.segments:
            segment = self.segments.pop(0)
            os.close(segment.fd)
            _remove(self._own / segment.path.name)
        self.epochs.clear()
        with self._told():
            epoch_checkpoint.write_epochs(self._own, [])
            self.segments.append(self._created(offset))


def _remove(segment: Path) -> None:
    for path in (segment, _beside(segment, ".index"), _beside(segment, ".timeindex")):
        path.unlink(missing_ok=True)


def epochs_from(epochs: list[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """Return the leader epochs and their first offsets, without those that end at or below ``offset``, the log's new
    start."""
    first = bisect.bisect_right(epochs, offset, key=lambda entry: entry[1])
    return [(epoch, max(start, offset)) for epoch, start in epochs[max(first - 1, 0) :]]


def _beside(segment: Path, suffix: str) -> Path:
    return segment.with_suffix(suffix)


def _append(path: Path, data: bytes) -> None:
    if data:
        with path.open("ab", buffering=0) as file:
            file.write(data)


def _add_epoch(epochs: list[tuple[int, int]], batch: RecordBatch) -> bool:
    """Note a batch's leader epoch, and return whether it is new."""
    if epochs and batch.leader_epoch <= epochs[-1][0]:
        return False
    epochs.append((batch.leader_epoch, batch.base_offset))
    return True


def _create_segment(directory: Path, base_offset: int) -> Segment:
    path = directory / f"{base_offset:020d}.log"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, SEGMENT_MODE)
    for suffix in (".index", ".timeindex"):
        _beside(path, suffix).write_bytes(b"")
    fsync_directory(directory)
    return Segment(path, base_offset, fd, 0, base_offset, Indexer(base_offset))


# ---------------------------------------------------------------- opening and recovery


def open_log(
    directory: Path,
    *,
    segment_bytes: int = SEGMENT_BYTES,
    segment_ms: int = SEGMENT_MS,
    start_offset: int = 0,
    repair: bool = True,
    read_only: bool = False,
) -> SegmentedLog:
    """Open the log in ``directory``, which is created inside its (existing) parent if it is missing.

    Args:
        directory: a ``__cluster_metadata-0``.
        segment_bytes: size at which a segment is full.
        segment_ms: age at which a segment is full.
        start_offset: start of a new log: the end of a snapshot without a log.
        repair: whether to call :meth:`SegmentedLog.repair` now. Otherwise an existing log is only read, and must not be
            written before that call.
        read_only: open the segments read-only, and none of them through a symbolic link.

    Raises:
        LogCorruptError: a batch other than the tail fails a check; nothing on disk was changed.
        StorageError: the directory or a file cannot be used.
    """
    try:
        log = SegmentedLog(directory, segment_bytes, segment_ms)
        if not directory.exists():
            directory.mkdir()
            fsync_directory(directory.parent)
        fsync_directory(directory)  # names that a crash may have left in memory only
        found = _check_all(directory, log.epochs)
        _require_whole(directory, log, found, start_offset)
        if not found:
            _remove_left_overs(directory)
            _write_partition_metadata(directory)
            log.segments.append(_create_segment(directory, start_offset))
            log.hold()
            return log
        log.torn = found[-1].torn_tail()
        log._unrepaired = found
        for checked in found:
            access = os.O_RDONLY | os.O_NOFOLLOW if read_only else os.O_RDWR | os.O_APPEND
            fd = os.open(checked.path, access | os.O_CLOEXEC)
            log.segments.append(
                Segment(checked.path, checked.base_offset, fd, checked.valid, checked.next_offset, checked.indexer)
            )
        log.hold()
        if repair:
            log.repair()
        return log
    except OSError as error:
        raise StorageError(f"cannot open the metadata log in {directory}: {reason_of(error)}") from error


def _require_whole(directory: Path, log: SegmentedLog, found: list["_Checked"], snapshot_end_offset: int) -> None:
    """Require that the log or its newest snapshot has all records that are known to have existed."""
    log_end_offset = found[-1].next_offset if found else 0
    end_offset = max(log_end_offset, snapshot_end_offset)
    stop = clean_stop.read_clean_stop(directory)
    if stop is not None and stop.epoch >= _newest_epoch(directory, log.epochs):
        torn = found[-1].torn_tail() if found else None
        now = "" if torn is None else f", and now the batch at position {torn.position} of {torn.path.name} is damaged"
        clean_stop.require_whole(
            directory, stop, end_offset=log_end_offset, snapshot_end_offset=snapshot_end_offset, found=now
        )
        log.was_stopped = True
    epoch_checkpoint.require_begun(directory, end_offset)
    for path in _indexes_alone(directory):
        base_offset = int(path.stem)
        if base_offset >= end_offset:  # a segment is created before its indexes, and removed before them when it is old
            found_lost = f"{directory} has lost the records from offset {base_offset} on"
            raise LogCorruptError(
                f"{found_lost}: {path.name} is there, and its segment "
                f"is not. Nothing was changed: restore {base_offset:020d}.log from a backup; to go on without these "
                f"records for good, remove {base_offset:020d}.index and .timeindex",
                found_lost,
            )


def _indexes_alone(directory: Path) -> list[Path]:
    """Return the indexes without a segment."""
    indexes = [path for path in directory.iterdir() if _INDEX_NAME.fullmatch(path.name)]
    return sorted(path for path in indexes if not path.with_suffix(".log").exists())


def _newest_epoch(directory: Path, epochs: list[tuple[int, int]]) -> int:
    state = read_quorum_state(directory)
    return max(0 if state is None else state.leader_epoch, epochs[-1][0] if epochs else 0)


class _Checked(Struct):
    """A segment that was read and is valid up to ``valid``."""

    path: Path
    base_offset: int
    next_offset: int
    valid: int
    size: int
    indexer: Indexer
    index: bytearray
    time_index: bytearray

    def torn_tail(self) -> TornTail | None:
        return TornTail(self.path, self.valid, self.size - self.valid) if self.valid < self.size else None


def _check_all(directory: Path, epochs: list[tuple[int, int]]) -> list[_Checked]:
    """Read all segments, oldest first, and fill ``epochs``. Changes nothing on disk."""
    names = ((match, path) for path in directory.iterdir() if (match := _SEGMENT_NAME.fullmatch(path.name)))
    paths = sorted((int(match[1]), path) for match, path in names)
    checked: list[_Checked] = []
    for number, (base_offset, path) in enumerate(paths):
        if base_offset > INT64_MAX:
            raise LogCorruptError(f"{path} is no segment: no log has that offset; move it out of the directory")
        if checked and checked[-1].next_offset != base_offset:
            raise LogCorruptError(
                f"{path} starts at offset {base_offset}, but the segment before it ends at {checked[-1].next_offset}: "
                "a segment is missing or was cut"
            )
        checked.append(_check(path, base_offset, epochs, last=number == len(paths) - 1))
    return checked


def _check(path: Path, base_offset: int, epochs: list[tuple[int, int]], *, last: bool) -> _Checked:
    read_anew(path)
    size = path.stat().st_size
    done = _Checked(path, base_offset, base_offset, 0, size, Indexer(base_offset), bytearray(), bytearray())
    if size == 0:
        return done
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            why = _walk(view, done, epochs)
            epoch = epochs[-1][0] if epochs else 0
            if done.valid < size and (not last or _written_after(mapped, view, done, epoch)):
                found = f"{path} is corrupt at position {done.valid}: {why or 'the batch there is cut off'}"
                raise LogCorruptError(
                    f"{found}; what follows "
                    "was written when it was on the disk, so it is not a torn tail, and to cut it off would lose what "
                    f"was acknowledged. Records from offset {done.next_offset} on are missing: restore the log from a "
                    f"backup or a Kafka broker's copy of {DIRECTORY_NAME}",
                    found,
                )
        finally:
            view.release()
    done.time_index += done.indexer.last_time_entry()
    return done


def _walk(view: memoryview, done: _Checked, epochs: list[tuple[int, int]]) -> str:
    """Check the batches until one fails, and return its defect."""
    try:
        for batch in iter_batches(view):
            why = _misplaced(batch, done.next_offset, epochs)
            if why:
                raise LogCorruptError(f"{done.path} is corrupt at position {batch.position}: {why}")
            _add_epoch(epochs, batch)
            index, time_index = done.indexer.add(batch, batch.position)
            done.index += index
            done.time_index += time_index
            done.valid = batch.position + batch.size_in_bytes
            done.next_offset = batch.next_offset
    except CorruptBatchError as error:
        return error.why
    return ""


def _misplaced(batch: RecordBatch, expected: int, epochs: list[tuple[int, int]]) -> str:
    """Return the defect of a batch with a correct checksum: no crash writes such a batch."""
    if batch.base_offset != expected:
        return f"the batch there starts at offset {batch.base_offset}, not {expected}"
    if epochs and batch.leader_epoch < epochs[-1][0]:
        return f"its leader epoch {batch.leader_epoch} is below {epochs[-1][0]}, the one before"
    return ""


def _written_after(mapped: mmap.mmap, view: memoryview, done: _Checked, epoch: int) -> bool:
    """Return whether anything was written after the batch that fails the check: then that batch was on the disk before.

    If the batch ends before the file does, its own header shows this: a power loss may lose any sector, but a header
        with the magic has its length too. Otherwise the header of a later batch, damaged or not, shows it. The search
        checks every byte, because a damaged length cannot be trusted.
    """
    own = read_header(view, done.valid)
    rest = done.size - done.valid
    if (
        own is not None
        and own.base_offset == done.next_offset
        and own.leader_epoch >= epoch
        and own.size_in_bytes < rest
    ):
        return True
    at = done.valid
    while (at := mapped.find(_MAGIC, at + 1 + _BATCH_FROM_MAGIC) - _BATCH_FROM_MAGIC) > done.valid:
        later = read_header(view, at)
        if later is None or not later.whole or later.leader_epoch < epoch:
            continue
        if 0 <= later.base_offset - done.next_offset < at - done.valid:  # a batch has no more records than bytes
            return True
    return False


def _repair(directory: Path, log: SegmentedLog, found: list[_Checked]) -> None:
    """Cut the torn tail and bring the derived files up to date."""
    if log.torn is not None:
        with log.torn.path.open("r+b") as file:
            file.truncate(log.torn.position)
            os.fsync(file.fileno())
    for checked in found:
        _rewrite(_beside(checked.path, ".index"), bytes(checked.index))
        _rewrite(_beside(checked.path, ".timeindex"), bytes(checked.time_index))
    _rewrite(directory / epoch_checkpoint.FILE_NAME, epoch_checkpoint.encode_epochs(log.epochs))
    if not (directory / PARTITION_METADATA).exists():
        _write_partition_metadata(directory)
    _remove_left_overs(directory)


def _remove_left_overs(directory: Path) -> None:
    """Remove indexes without a segment, and files that Kafka's controller marked for deletion (``LogLoader``)."""
    left_over = [path for path in directory.iterdir() if _LEFT_OVER_NAME.fullmatch(path.name)]
    for path in (*left_over, *_indexes_alone(directory)):
        path.unlink(missing_ok=True)


def _rewrite(path: Path, data: bytes) -> None:
    if not path.exists() or read_file(path) != data:
        write_atomically(path, data)


def _write_partition_metadata(directory: Path) -> None:
    write_atomically(directory / PARTITION_METADATA, f"version: 0\ntopic_id: {METADATA_TOPIC_ID}".encode())
