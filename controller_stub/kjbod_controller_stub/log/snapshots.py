"""Snapshots of the controller's metadata: when to write, how to write, which to keep, and reads by observers.

When (``SnapshotGenerator``): so many bytes of log, or so much time with a write, since the last one. How: the state is
copied between two requests (the values in it do not change, so only its dictionaries are), and a thread encodes and
writes the copy in short steps with pauses, so that the event loop never waits long for the interpreter. A snapshot gets
its name when it is whole and on the disk, and only reaches as far as the log is durable.

What is kept (``KafkaMetadataLog.maybeClean``): the newest always. An older one goes, with the segments below the next,
when log and snapshots together are too large or it is too old.
"""

import asyncio
import contextlib
import errno
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, structs

from kjbod.clock import Clock
from kjbod.documents import INT32_MAX
from kjbod.errors import KjbodError, LogCorruptError, StorageError
from kjbod.files import open_to_read, reason_of
from kjbod.ids import Uuid
from kjbod.medium import read_anew
from kjbod.metadata.batches import iter_batches
from kjbod.metadata.checkpoint_files import checkpoints_in, left_overs_in, read_checkpoint, stream_checkpoint
from kjbod.metadata.control_records import KRaftVoters, SnapshotHeader
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.log import MetadataLog
from kjbod.metadata.quorum_state import FILE_NAME as QUORUM_STATE
from kjbod.metadata.quorum_state import QuorumState
from kjbod.metadata.records import BrokerRegistrationChangeRecord, Record, RegisterBrokerRecord
from kjbod.metadata.snapshot import Checkpoint, SnapshotId
from kjbod.runtime.logging import get_logger
from kjbod.wire.codec import MalformedMessageError

BOOTSTRAP = SnapshotId(0, 0)
"""What formatting left: the first voters. Never served (``KafkaRaftClient``)."""
CLEAN_INTERVAL_MS = 60_000
"""How often retention is looked at besides after each snapshot (``RaftMetadataLogCleanerManager``)."""
RECORDS_PER_STEP = 64
"""Encoded between two pauses: a millisecond or so."""
PAUSE_S = 0.001
PIECES_BYTES_MAX = 64 * 1024 * 1024
"""What the observers that load a snapshot at the same time get in one answer each, together."""
PIECE_BYTES_MIN = 64 * 1024
READER_TIMEOUT_MS = 5_000
"""An observer that asked for no piece this long does not count among them."""
_READERS_MAX = 10_000
_HEADER_BYTES = 4 * 1024
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

T = TypeVar("T")

_log = get_logger()


class Limits(Struct, frozen=True, kw_only=True):
    """``metadata.log.max.record.bytes.between.snapshots``, ``metadata.log.max.snapshot.interval.ms``,
    ``metadata.max.retention.bytes``, ``metadata.max.retention.ms``."""

    record_bytes: int
    interval_ms: int
    """0: not by time."""
    retention_bytes: int
    """Negative: not by size."""
    retention_ms: int
    """Negative: not by age."""


class Kept(Struct, frozen=True):
    """A snapshot in the directory."""

    id: SnapshotId
    size: int
    timestamp_ms: int
    """Of the last record that it contains."""


class State(Struct, frozen=True, kw_only=True):
    """Source of a snapshot: a copy of the state after all records below ``id.end_offset``."""

    image: MetadataImage
    id: SnapshotId
    timestamp_ms: int
    kraft_version: int
    voters: KRaftVoters
    failed: Mapping[int, Collection[Uuid]]
    """Directories of each broker that have failed since it registered."""


# ---------------------------------------------------------------- decisions


class Trigger:
    """Decides when the next snapshot is due (``SnapshotGenerator``). Pure."""

    def __init__(self, limits: Limits, *, now_ms: int, replayed_bytes: int = 0) -> None:
        self._limits = limits
        self._since_ms = now_ms
        self._since_bytes = -replayed_bytes

    def due(self, log_bytes: int, now_ms: int) -> str | None:
        """Return the reason why a snapshot is due, None if it is not. ``log_bytes`` are all bytes written since the
        start. Call it after writes."""
        if log_bytes - self._since_bytes >= self._limits.record_bytes:
            return f"{self._limits.record_bytes} bytes of log since the last one"
        if self._limits.interval_ms and now_ms - self._since_ms >= self._limits.interval_ms:
            return f"{self._limits.interval_ms} ms since the last one"
        return None

    def reset(self, log_bytes: int, now_ms: int) -> None:
        """Start counting from here."""
        self._since_bytes, self._since_ms = log_bytes, now_ms


def first_kept(
    snapshots: Sequence[Kept], segments: Sequence[tuple[int, int]], limits: Limits, wall_ms: int
) -> SnapshotId | None:
    """Return the first snapshot to keep; earlier snapshots and segments are removed. None: nothing is removed.

    Args:
        snapshots: oldest first.
        segments: the offset after each, and its size; oldest first. The last one stays.
        limits: of size and age.
        wall_ms: now.
    """
    first = 0
    while first + 1 < len(snapshots) and 0 <= limits.retention_bytes < _total(snapshots[first:], segments):
        first += 1
    while first + 1 < len(snapshots) and 0 <= limits.retention_ms < wall_ms - snapshots[first].timestamp_ms:
        first += 1
    return snapshots[first].id if first else None


def _total(snapshots: Sequence[Kept], segments: Sequence[tuple[int, int]]) -> int:
    start = snapshots[0].id.end_offset
    kept = [size for end, size in segments[:-1] if end > start] + [size for _, size in segments[-1:]]
    return sum(kept) + sum(snapshot.size for snapshot in snapshots)


def piece_bytes(readers: int) -> int:
    """Return the size of pieces for each of ``observers`` that load a snapshot."""
    return max(PIECE_BYTES_MIN, PIECES_BYTES_MAX // max(1, readers))


# ---------------------------------------------------------------- at start


class Found(Struct, frozen=True, kw_only=True):
    """Snapshots of a directory, and the newest one's content. Nothing was changed yet."""

    kept: tuple[Kept, ...] = ()
    """Oldest first; with 0-0."""
    latest: SnapshotId | None = None
    """None: there is none but 0-0."""
    content: Checkpoint | None = None


def find(directory: Path) -> Found:
    """Find the snapshots in a ``__cluster_metadata-0``, which need not exist; the newest is read from its device.
    Blocks.

    Raises:
        LogCorruptError: the newest is not whole; names file and position.
        StorageError: the directory or a file cannot be read.
    """
    try:
        paths = checkpoints_in(directory) if directory.is_dir() else {}
        kept = tuple(Kept(each, path.stat().st_size, _timestamp_ms(path)) for each, path in paths.items())
    except OSError as error:
        raise StorageError(f"cannot read the snapshots in {directory}: {reason_of(error)}") from error
    latest = kept[-1].id if kept and kept[-1].id != BOOTSTRAP else None
    if latest is not None:
        read_anew(paths[latest])
    return Found(kept=kept, latest=latest, content=None if latest is None else _read(directory, paths, latest))


def _read(directory: Path, paths: Mapping[SnapshotId, Path], latest: SnapshotId) -> Checkpoint:
    try:
        return read_checkpoint(paths[latest])
    except LogCorruptError as error:
        # With the log from the end of an older one on nothing is missing; the start checks that (require_no_gap).
        before = max((each for each in paths if each < latest and each != BOOTSTRAP), default=None)
        older = "the log from its begin" if before is None else f"{before.file_name} and the log"
        raise LogCorruptError(
            f"{error}. Nothing was changed: restore {paths[latest]} from a backup, or move it out of {directory}: "
            f"the controller then starts from {older}, or says which records are missing",
            str(error),
        ) from None


def _timestamp_ms(path: Path) -> int:
    """Return the timestamp of the header; 0 if unreadable, so that the snapshot counts as very old."""
    with open(open_to_read(path), "rb") as file:
        head = file.read(_HEADER_BYTES)
    with contextlib.suppress(MalformedMessageError):
        for batch in iter_batches(head):
            for _, control in batch.control_records():
                if isinstance(control, SnapshotHeader):
                    return control.last_contained_log_timestamp
            break
    return 0


def require_no_gap(found: Found, log: MetadataLog, directory: Path) -> None:
    """Require that the log starts at or below the end of the newest snapshot.

    Raises:
        LogCorruptError: records are missing; names the first one and where the log goes on.
    """
    covered = 0 if found.latest is None else found.latest.end_offset
    if log.start_offset <= covered:
        return
    what = (
        "there is no snapshot" if found.latest is None else f"the newest snapshot {found.latest.file_name} ends there"
    )
    raise LogCorruptError(
        f"{directory} lacks the records from offset {covered} to {log.start_offset - 1}: the log starts with "
        f"{log.start_offset:020d}.log and {what}. Restore the missing files from a backup"
    )


def require_one_history(found: Found, log: MetadataLog, directory: Path) -> None:
    """Snapshots and log must tell of one history: a snapshot has the epoch that the log has where it ends, or is of a
    later epoch, or a longer log, than all of it; and later ones have later epochs. A quorum of one has no other voter
    whose history could have replaced its own: what contradicts it came from elsewhere.

    Raises:
        StorageError: names the file that does not belong there.
    """
    before: SnapshotId | None = None
    for each in (kept.id for kept in found.kept if kept.id != BOOTSTRAP):
        if before is not None and (each.end_offset == before.end_offset or each.epoch < before.epoch):
            raise _foreign(directory, before, f"{each.file_name} is there too")
        before = each
        epoch = log.epoch_of(each.end_offset - 1)
        if epoch is not None and epoch != each.epoch:
            raise _foreign(directory, each, f"the log has epoch {epoch} there")
        if each.end_offset > log.end_offset and each.epoch < log.last_epoch:
            raise _foreign(directory, each, f"the log ends at {log.end_offset} in epoch {log.last_epoch}")


def require_own(found: Found, log: MetadataLog, state: QuorumState | None, node_id: int, directory: Path) -> None:
    """Require that the epochs of a snapshot are in ``quorum-state``: a snapshot is used only after its epoch is there.
    If this node was leader, its log had all records of its snapshots.

    Raises:
        StorageError: names the file that does not belong there.
        LogCorruptError: the log lost its end, and only a snapshot has a part of it.
    """
    if state is None:
        return
    for each in (kept.id for kept in found.kept):
        if each.epoch > state.leader_epoch:
            raise _foreign(directory, each, f"{QUORUM_STATE} knows no epoch after {state.leader_epoch}")
    latest = found.latest
    if latest is None or log.was_stopped or state.leader_id != node_id or log.end_offset >= latest.end_offset:
        return
    raise LogCorruptError(
        f"{directory} has lost the records from offset {log.end_offset} on: {latest.file_name} has those below "
        f"{latest.end_offset}, and was made from this log. Nothing was changed: restore the log from a backup; to go "
        "on with the snapshot alone for good, remove all segments (*.log)"
    )


def _foreign(directory: Path, snapshot_id: SnapshotId, why: str) -> StorageError:
    return StorageError(
        f"{directory / snapshot_id.file_name} is of another history: it ends at offset {snapshot_id.end_offset} in "
        f"epoch {snapshot_id.epoch}, and {why}; move it out of the directory, or restore all of it from one backup"
    )


def require_next_epoch(said: Mapping[str, int], directory: Path) -> None:
    """Require that a further leader epoch is possible. ``said``: leader epochs by the name of their source.

    Raises:
        StorageError: the text has the source of the last epoch.
    """
    for name, epoch in said.items():
        if epoch >= INT32_MAX:
            raise StorageError(
                f"{directory}: {name} has leader epoch {epoch}, the last one that there can be: no controller came "
                "there by itself; restore it from a backup, or move it out of the directory"
            )


def with_failed(records: Iterable[Record], failed: Mapping[int, Collection[Uuid]]) -> Iterator[Record]:
    """Yield the records of a snapshot, including the directories that a broker has lost. Such a broker is registered
    with all of its directories, then changed to the remaining ones. A registration alone does not show the loss, and a
    controller that starts from the snapshot would treat a failed directory as new.

    Args:
        records: of an image.
        failed: directories by broker.
    """
    for record in records:
        gone = tuple(failed.get(record.broker_id, ())) if isinstance(record, RegisterBrokerRecord) else ()
        if not gone or not isinstance(record, RegisterBrokerRecord) or not record.log_dirs:
            yield record
            continue
        yield structs.replace(record, log_dirs=(*record.log_dirs, *gone))
        yield BrokerRegistrationChangeRecord(
            broker_id=record.broker_id, broker_epoch=record.broker_epoch, log_dirs=record.log_dirs
        )


def covers(latest: SnapshotId, log: MetadataLog) -> bool:
    """Return whether a snapshot is newer than all of the log, so that the log is not needed
    (``KafkaMetadataLog.truncateToLatestSnapshot``)."""
    newer = latest.epoch == log.last_epoch and latest.end_offset > log.end_offset
    return latest.epoch > log.last_epoch or newer


# ---------------------------------------------------------------- at work


class Snapshots:
    """Snapshots of one controller. Call :meth:`adopt` with the found ones, then :meth:`run`."""

    def __init__(self, directory: Path, limits: Limits, clock: Clock) -> None:
        self._directory = directory
        self._limits = limits
        self._clock = clock
        self._kept: dict[SnapshotId, Kept] = {}
        self._trigger = Trigger(limits, now_ms=clock.monotonic_ms())
        self._readers: OrderedDict[tuple[int, Uuid], int] = OrderedDict()
        self._wake = asyncio.Event()
        self._stopping = False
        self._identity: tuple[int, int] | None = None
        """Device and inode of the directory, since :meth:`adopt`."""

    # ---- what there is (``quorum.SnapshotView``)

    @property
    def latest(self) -> SnapshotId | None:
        """The newest snapshot."""
        newest = next(reversed(self._kept), None)
        return None if newest == BOOTSTRAP else newest

    @property
    def earliest(self) -> SnapshotId | None:
        """The oldest snapshot."""
        return next((each for each in self._kept if each != BOOTSTRAP), None)

    def newest(self) -> tuple[int, int | None]:
        """Size in bytes of the newest snapshot, and the wall time, in ms, of its last record; 0 and None: no
        snapshot."""
        kept = None if self.latest is None else self._kept.get(self.latest)
        return (0, None) if kept is None else (kept.size, kept.timestamp_ms)

    def size(self, snapshot_id: SnapshotId) -> int | None:
        """Return the size of the file; None: no such snapshot, or it must not be served."""
        kept = self._kept.get(snapshot_id)
        return None if kept is None or snapshot_id == BOOTSTRAP else kept.size

    # ---- start

    async def adopt(self, found: Found, log: MetadataLog, replayed_bytes: int) -> None:
        """Continue with the found snapshots, and remove useless files: parts, deleted snapshots, and those that end
        below the log's start. ``replayed_bytes``: bytes of the log after the newest.

        Raises:
            StorageError: a file cannot be removed.
        """
        self._kept = {each.id: each for each in found.kept if each.id.end_offset >= log.start_offset}
        gone = [each.id for each in found.kept if each.id not in self._kept]
        await self._in_thread(lambda: self._remove(gone, left_overs=True))
        self._trigger = Trigger(self._limits, now_ms=self._clock.monotonic_ms(), replayed_bytes=replayed_bytes)

    # ---- writing

    def written(self, log: MetadataLog) -> None:
        """Note that data was written to the log."""
        if self._trigger.due(log.bytes_taken, self._clock.monotonic_ms()) is not None:
            self._wake.set()

    async def run(self, log: MetadataLog, take: Callable[[], Awaitable[State]]) -> None:
        """Write snapshots when they are due and remove old ones, until cancelled. ``take`` returns the state up to the
        durable end of the log.

        Raises:
            StorageError: a file cannot be written or removed, for another reason than a full disk.
        """
        clean_at_ms = self._clock.monotonic_ms() + CLEAN_INTERVAL_MS
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(0, clean_at_ms - self._clock.monotonic_ms()) / 1000):
                        await self._wake.wait()
                self._wake.clear()
                reason = self._trigger.due(log.bytes_taken, self._clock.monotonic_ms())
                if reason is not None:
                    self._trigger.reset(log.bytes_taken, self._clock.monotonic_ms())
                    await self._write(await take(), reason)
                await self._clean(log)
                clean_at_ms = self._clock.monotonic_ms() + CLEAN_INTERVAL_MS
        finally:
            self._stopping = True

    async def _write(self, state: State, reason: str) -> None:
        if state.id in self._kept:
            return
        try:
            size = await self._in_thread(lambda: self._store(state))
        except KjbodError as error:
            # Nothing is lost: the log goes on. The next one is tried when it is due.
            if isinstance(error, StorageError) and not _is_full(error):
                raise
            _log.error("snapshot.failed", snapshot=state.id.file_name, reason=str(error))
            return
        self._kept[state.id] = Kept(state.id, size, state.timestamp_ms)
        _log.info("snapshot.written", snapshot=state.id.file_name, bytes=size, reason=reason)

    def _require_own(self) -> None:
        """Require our own directory before a write or removal: another one, for example a backup, may be mounted over
        it."""
        status = self._directory.stat()
        found = (status.st_dev, status.st_ino)
        self._identity = self._identity or found
        if found != self._identity:
            raise OSError(errno.ESTALE, "another directory is there now")

    def _store(self, state: State) -> int:
        self._require_own()
        return stream_checkpoint(
            self._directory / state.id.file_name,
            header_timestamp_ms=state.timestamp_ms,
            kraft=(state.kraft_version, state.voters) if state.kraft_version else None,
            records=self._gently(with_failed(state.image.to_records(), state.failed)),
            leader_epoch=state.id.epoch,
            timestamp_ms=self._clock.wall_ms(),
            metadata_version=state.image.metadata_version,
        )

    def _gently(self, records: Iterator[Record]) -> Iterator[Record]:
        """Iterate in a thread, but yield the interpreter to the event loop at short intervals, and stop when the
        controller stops."""
        for number, record in enumerate(records):
            if number % RECORDS_PER_STEP == 0:
                if self._stopping:
                    raise KjbodError("the controller is stopping")
                time.sleep(PAUSE_S)
            yield record

    # ---- removing

    async def _clean(self, log: MetadataLog) -> None:
        kept = list(self._kept.values())
        first = first_kept(kept, log.sizes(), self._limits, self._clock.wall_ms())
        if first is None:
            return
        gone = [each.id for each in kept if each.id < first]
        for snapshot_id in gone:  # observers are not sent to these snapshots any more
            del self._kept[snapshot_id]
        await log.delete_before(first.end_offset)
        await self._in_thread(lambda: self._remove(gone))
        _log.info("snapshots.removed", snapshots=[each.file_name for each in gone], log_start_offset=log.start_offset)

    def _remove(self, snapshot_ids: Sequence[SnapshotId], *, left_overs: bool = False) -> None:
        self._require_own()
        paths = [self._directory / each.file_name for each in snapshot_ids]
        for path in [*paths, *(left_overs_in(self._directory) if left_overs else ())]:
            path.unlink(missing_ok=True)

    # ---- reading

    async def read(self, snapshot_id: SnapshotId, position: int, max_bytes: int, reader: tuple[int, Uuid]) -> bytes:
        """Read a piece of a snapshot for the observer ``reader`` (replica id and directory id); empty if the snapshot
        was removed.

        Raises:
            StorageError: the file cannot be read.
        """
        now_ms = self._clock.monotonic_ms()
        self._readers[reader] = now_ms
        self._readers.move_to_end(reader)
        while len(self._readers) > _READERS_MAX or now_ms - next(iter(self._readers.values())) > READER_TIMEOUT_MS:
            self._readers.popitem(last=False)
        size = min(max_bytes, piece_bytes(len(self._readers)))
        path = self._directory / snapshot_id.file_name
        try:
            return await self._in_thread(lambda: _pread(path, size, position))
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                self._kept.pop(snapshot_id, None)
                return b""
            raise

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise StorageError(f"cannot use the snapshots in {self._directory}: {error.strerror}") from error


def _is_full(error: StorageError) -> bool:
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _NO_SPACE


def _pread(path: Path, size: int, position: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, position)
    finally:
        os.close(descriptor)
