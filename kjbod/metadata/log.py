"""Metadata log of a controller that is alone in its quorum: append, sync, read.

The event loop passes batches to one thread that writes and syncs. Small batches that arrive while the thread is busy
are written as one batch with one fsync (reason: :mod:`kjbod.metadata.log_files`). An append is done when it is durable,
and readers get durable batches only: the high watermark of a quorum of one is the end of its data on the disk.

The first failed write or fsync ends the log. The state of the file is unknown, and a second fsync may report success,
because the kernel drops the dirty pages of a failed one. So nothing more is acknowledged, and recovery decides at the
next start.
"""

import asyncio
import bisect
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog
from msgspec import Struct

from kjbod.errors import KjbodError, StorageError
from kjbod.files import reason_of
from kjbod.metadata.batches import RecordBatch, iter_batches, join_batches, read_batch
from kjbod.metadata.log_files import SEGMENT_BYTES, SEGMENT_MS, SegmentedLog, epochs_from, open_log

TAIL_BYTES = 8 * 1024 * 1024
"""Bytes at the log's end that are kept in memory for readers close to the end."""
_READ_BYTES = 1024 * 1024
_JOIN_BYTES_MAX = 64 * 1024
"""Maximum size of appends that are joined: below it an fsync costs more than packing the records again."""

_log = structlog.get_logger("kjbod.metadata.log")


class OffsetOutOfRangeError(KjbodError):
    """A requested offset is below the log's start or above its end."""


class _Waiting(Struct):
    """Batches that wait to be written, and the future of their caller."""

    batches: list[RecordBatch]
    done: "asyncio.Future[int]"
    run: int
    """Number of the run. Batches of different runs are not joined (:meth:`MetadataLog.mark`)."""


class MetadataLog:
    """An open log. Use on one event loop; :meth:`open` and :meth:`close` it.

    All methods except :meth:`append`, :meth:`read` and :meth:`close` return at once.
    """

    def __init__(self, files: SegmentedLog, writer: ThreadPoolExecutor, tail_bytes: int, start_epoch: int = 0) -> None:
        self._files = files
        self._writer = writer
        # Reads have their own thread: otherwise readers of old batches would wait behind fsyncs of a slow disk.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="metadata-log-read")
        self._waiting: list[_Waiting] = []
        self._writing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: StorageError | None = None
        self._next_offset = files.end_offset
        self._end_offset = files.end_offset
        self._epochs = list(files.epochs)
        self._start_offset = files.start_offset
        self._start_epoch = start_epoch
        self._run = 0
        self._bytes_taken = 0
        self._writes = 0
        self._last_timestamp_ms = -1
        self._tail: list[RecordBatch] = []
        self._tail_size = 0
        self._tail_bytes = tail_bytes

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        segment_ms: int = SEGMENT_MS,
        start_offset: int = 0,
        start_epoch: int = 0,
        tail_bytes: int = TAIL_BYTES,
        repair: bool = True,
    ) -> "MetadataLog":
        """Open and recover the log in ``directory``, a ``__cluster_metadata-0`` that is created if it is missing.

        Args:
            directory: directory of the log; its parent must exist.
            segment_bytes: ``metadata.log.segment.bytes``.
            segment_ms: ``metadata.log.segment.ms``.
            start_offset: start of a log without a segment: the end of the newest snapshot, else 0.
            start_epoch: the epoch of that snapshot.
            tail_bytes: bytes at the end that are kept in memory.
            repair: False: only read until :meth:`repair` is called.

        Raises:
            LogCorruptError: a batch other than the tail fails a check; the text has file and position. Nothing was
                changed.
            StorageError: the directory or a file cannot be used.
        """
        writer = ThreadPoolExecutor(1, thread_name_prefix="metadata-log-write")
        loop = asyncio.get_running_loop()
        try:
            files = await loop.run_in_executor(
                writer,
                lambda: open_log(
                    directory,
                    segment_bytes=segment_bytes,
                    segment_ms=segment_ms,
                    start_offset=start_offset,
                    repair=repair,
                ),
            )
        except BaseException:
            writer.shutdown(wait=False)
            raise
        if files.torn is not None:
            _log.warning(
                "metadata.log.tail.cut",
                path=str(files.torn.path),
                position=files.torn.position,
                bytes=files.torn.bytes_cut,
                end_offset=files.end_offset,
            )
        return cls(files, writer, tail_bytes, start_epoch)

    async def repair(self) -> None:
        """Cut the torn tail and rebuild derived files, if :meth:`open` was called without ``repair``.

        Raises:
            StorageError: a file cannot be written.
        """
        await self._in_writer(self._files.repair)

    async def restart_at(self, offset: int, epoch: int) -> None:
        """Drop the log and start it at the end of a newer snapshot. Only before anything is appended.

        Raises:
            StorageError: a file cannot be removed or made.
        """
        await self._in_writer(lambda: self._files.restart_at(offset))
        self._start_offset = self._next_offset = self._end_offset = offset
        self._start_epoch = epoch
        self._epochs.clear()

    async def _in_writer(self, change: Callable[[], None]) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, change)
        except OSError as error:
            raise StorageError(
                f"cannot write to the metadata log in {self._files.directory}: {reason_of(error)}"
            ) from error

    # ---- what is there

    @property
    def start_offset(self) -> int:
        """The first offset in the log."""
        return self._start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last durable record: the high watermark of a quorum of one."""
        return self._end_offset

    @property
    def next_offset(self) -> int:
        """The offset with which the next batch must start; above :attr:`end_offset` while batches are being written."""
        return self._next_offset

    @property
    def was_stopped(self) -> bool:
        """Whether the log was closed with all of it on the disk, and no leader was elected since."""
        return self._files.was_stopped

    @property
    def last_epoch(self) -> int:
        """Leader epoch of the last submitted batch; for an empty log that of its start snapshot, else 0."""
        return self._epochs[-1][0] if self._epochs else self._start_epoch

    @property
    def writes(self) -> int:
        """Number of groups of batches that were written."""
        return self._writes

    @property
    def writing(self) -> bool:
        """Whether a group is being written."""
        return self._writing

    @property
    def bytes_taken(self) -> int:
        """Bytes submitted since :meth:`open`."""
        return self._bytes_taken

    @property
    def last_timestamp_ms(self) -> int:
        """Timestamp of the last batch submitted since :meth:`open`; -1: none."""
        return self._last_timestamp_ms

    def file_of(self, offset: int) -> Path:
        """Return the segment that has ``offset``."""
        return self._files.file_of(offset)

    def sizes(self) -> list[tuple[int, int]]:
        """Return the end offset and the size in bytes of each segment."""
        return self._files.sizes()

    @property
    def failure(self) -> StorageError | None:
        """The failure that ended the log; None: the log accepts batches."""
        return self._failure

    def epoch_of(self, offset: int) -> int | None:
        """Return the leader epoch of the record at ``offset``; None if the log does not have it."""
        if not self._start_offset <= offset < self._next_offset:
            return None
        at = bisect.bisect_right(self._epochs, offset, key=lambda entry: entry[1]) - 1
        return self._epochs[at][0] if at >= 0 else None

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Return the largest leader epoch that is not above ``epoch``, and its end offset. A follower with another
        history learns from it how far both agree (``KafkaRaftLog.endOffsetForEpoch``, for durable records).

        Returns:
            Epoch and end offset. Below the oldest epoch: ``epoch`` itself, and the start of the oldest epoch.
        """
        at = bisect.bisect_right(self._epochs, epoch, key=lambda entry: entry[0])
        if at == len(self._epochs):
            return self.last_epoch, self._end_offset
        end = min(self._epochs[at][1], self._end_offset)
        return (self._epochs[at - 1][0] if at else epoch), end

    # ---- writing

    def mark(self) -> int:
        """Start a new run of batches and return its first offset. Small batches before and after this offset are not
        joined, so that a snapshot may end there."""
        self._run += 1
        return self._next_offset

    def submit(self, batches: Sequence[bytes]) -> "asyncio.Future[int]":
        """Submit whole batches that follow each other and the log; they are written in the order of the calls.

        Returns:
            A future with the end offset when they are durable, or with a :class:`~kjbod.errors.StorageError`.

        Raises:
            StorageError: an earlier write failed; nothing was accepted.
            ValueError: not whole batches, or not the next ones (a bug of the caller).
        """
        if self._failure is not None:
            raise StorageError(*self._failure.args)
        taken: list[RecordBatch] = []
        expected, epoch = self._next_offset, self.last_epoch
        for raw in batches:
            batch = read_batch(raw)
            if batch is None or batch.size_in_bytes != len(raw):
                raise ValueError("an append takes whole batches, one per element")
            if batch.base_offset != expected or batch.leader_epoch < epoch:
                raise ValueError(
                    f"batch of offset {batch.base_offset} and epoch {batch.leader_epoch} appended at offset {expected} "
                    f"and epoch {epoch}"
                )
            taken.append(batch)
            expected, epoch = batch.next_offset, batch.leader_epoch
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not taken:
            done.set_result(self._end_offset)
            return done
        self._next_offset = expected
        self._bytes_taken += sum(batch.size_in_bytes for batch in taken)
        self._last_timestamp_ms = taken[-1].timestamp_ms
        for batch in taken:
            if batch.leader_epoch > self.last_epoch or not self._epochs:
                self._epochs.append((batch.leader_epoch, batch.base_offset))
        self._waiting.append(_Waiting(taken, done, self._run))
        self._start_writing()
        return done

    async def append(self, batches: Sequence[bytes]) -> int:
        """Submit batches like :meth:`submit`, and wait until they are durable. Appends that wait together share an
        fsync. Cancelling the call does not remove the batches.

        Returns:
            The offset after the last record.

        Raises:
            StorageError: the batches may or may not be in the log, and the log accepts no more.
            ValueError: as :meth:`submit`.
        """
        return await self.submit(batches)

    def _start_writing(self) -> None:
        if self._writing or not self._waiting:
            return
        group, self._waiting = self._waiting, []
        self._writing = True
        self._idle.clear()
        written = asyncio.get_running_loop().run_in_executor(self._writer, self._write, group)
        written.add_done_callback(lambda future: self._written(group, future))

    def _write(self, group: list[_Waiting]) -> list[RecordBatch]:
        """Make a group durable, in the writer's thread, and return the batches as they are on the disk."""
        batches: list[RecordBatch] = []
        # Several batches of one call are not joined.
        for (alone, _), run in itertools.groupby(group, key=lambda one: (len(one.batches) == 1, one.run)):
            found = [batch for waiting in run for batch in waiting.batches]
            batches += join_batches(found, _JOIN_BYTES_MAX) if alone else found
        self._files.append(batches)
        self._files.sync()
        return batches

    def _written(self, group: list[_Waiting], written: "asyncio.Future[list[RecordBatch]]") -> None:
        self._writing = False
        self._writes += 1
        error = None if written.cancelled() else written.exception()
        if written.cancelled() or error is not None:
            self._fail(group, error)
            return
        self._remember(written.result())
        self._end_offset = group[-1].batches[-1].next_offset
        for waiting in group:
            if not waiting.done.done():
                waiting.done.set_result(waiting.batches[-1].next_offset)
        self._start_writing()
        if not self._writing:
            self._idle.set()

    def _fail(self, group: list[_Waiting], error: BaseException | None) -> None:
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        self._failure = StorageError(f"cannot write to the metadata log in {self._files.directory}: {reason}")
        self._failure.__cause__ = error
        _log.error("metadata.log.failed", path=str(self._files.directory), reason=reason, end_offset=self._end_offset)
        for waiting in (*group, *self._waiting):
            if not waiting.done.done():
                waiting.done.set_exception(self._failure)
        self._waiting.clear()
        self._idle.set()

    def _remember(self, batches: list[RecordBatch]) -> None:
        self._tail += batches
        self._tail_size += sum(batch.size_in_bytes for batch in batches)
        # Cut in large steps: dropping entries one by one would cost the list's length each time.
        if self._tail_size > 2 * self._tail_bytes:
            cut = 0
            while self._tail_size > self._tail_bytes:
                self._tail_size -= self._tail[cut].size_in_bytes
                cut += 1
            del self._tail[:cut]

    # ---- reading

    async def read(self, offset: int, max_bytes: int, limit: int | None = None) -> bytes:
        """Return whole batches from the batch with ``offset`` on: at most ``max_bytes``, but at least one batch; empty
        at the end. May stop early at a segment's end.

        Args:
            offset: first offset to read.
            max_bytes: maximum bytes to return.
            limit: return only batches that end at or below this offset; default and maximum: the durable end.

        Raises:
            OffsetOutOfRangeError: below :attr:`start_offset` or above :attr:`end_offset`.
            StorageError: a file cannot be read.
        """
        if not self._start_offset <= offset <= self._end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not in the metadata log, which has {self._start_offset} to {self._end_offset}"
            )
        end = self._end_offset if limit is None else min(limit, self._end_offset)
        if offset >= end:
            return b""
        if self._tail and self._tail[0].base_offset <= offset:
            return self._read_tail(offset, max_bytes, end)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._reader, self._files.read, offset, max_bytes, end)
        except OSError as error:
            raise StorageError(f"cannot read the metadata log in {self._files.directory}: {error.strerror}") from error

    def _read_tail(self, offset: int, max_bytes: int, limit: int) -> bytes:
        at = bisect.bisect_right(self._tail, offset, key=lambda batch: batch.base_offset) - 1
        chosen: list[bytes] = []
        size = 0
        for i in range(at, len(self._tail)):
            batch = self._tail[i]
            if batch.next_offset > limit or (chosen and size + batch.size_in_bytes > max_bytes):
                break
            chosen.append(batch.raw)
            size += batch.size_in_bytes
        return b"".join(chosen)

    async def batches(self, offset: int) -> AsyncIterator[RecordBatch]:
        """Yield every durable batch from the batch with ``offset`` on, as a restart replays them.

        Raises:
            OffsetOutOfRangeError: as :meth:`read`.
            StorageError: as :meth:`read`.
            CorruptBatchError: a batch changed since recovery checked it.
        """
        while data := await self.read(offset, _READ_BYTES):
            for batch in iter_batches(data):
                yield batch
                offset = batch.next_offset

    # ---- shortening and closing

    async def delete_before(self, offset: int) -> None:
        """Start the log at ``offset``, the end of a durable snapshot, and remove segments that are entirely below it.

        Raises:
            StorageError: a file cannot be removed.
        """
        loop = asyncio.get_running_loop()
        self._start_offset = max(self._start_offset, min(offset, self._end_offset))
        self._epochs = epochs_from(self._epochs, self._start_offset)
        try:
            await loop.run_in_executor(self._reader, self._files.delete_before, offset)
        except OSError as error:
            raise StorageError(
                f"cannot shorten the metadata log in {self._files.directory}: {error.strerror}"
            ) from error

    async def close(self) -> None:
        """Wait for submitted batches, then close the files. Later appends fail.

        If everything is durable, record the end of the log, which the next start checks
        (:mod:`kjbod.metadata.clean_stop`).
        """
        await self._idle.wait()
        clean = self._failure is None
        if clean:
            self._failure = StorageError(f"the metadata log in {self._files.directory} is closed")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._reader, lambda: None)  # waits for a running read or deletion
        try:
            await loop.run_in_executor(self._writer, lambda: self._files.close(clean=clean))
        except (OSError, StorageError) as error:
            _log.warning("metadata.log.end.not.noted", path=str(self._files.directory), reason=str(error))
        self._writer.shutdown(wait=True)
        self._reader.shutdown(wait=True)
