"""Copy of a replica from one log directory to another, through the workers of both, with a proof that both are equal.

The future replica is brought up to the source in *passes* (:meth:`ReplicaCopy.catch_up`), however the source changes
between and during them. One pass, file by file in the order of base offsets:

    1. A file that was found equal in an earlier pass, and that has not changed on either side since, is left out. What
       Kafka changes in place without a trace in size or time (mapped indexes of the last segment) never is.
    2. The source is read in pieces of a slot. A piece that the destination is known to have already, by its checksum,
       is not written: that is how a copy is resumed, and how an appended tail is all that a later pass writes. What
       the destination has is known from this copy's own earlier passes, else it is read from its medium.
    3. What was written is made durable (:meth:`DirectoryAgent.finish_file`), then read back from the medium and
       compared by checksum.
    4. The source is read a second time, from its medium, and must give the same; of segments the CRC of each record
       batch is compared, as Kafka's follower does with what it fetches. A path that now and then gives another block
       is found by the one, a block that is wrong each time by the other.
    5. What the source has no more is removed from the future replica; what it has shorter is cut.

Batches that are not right are copied as they are where Kafka expects them: behind the recovery point of the partition,
where a broker that died leaves a torn tail and the next one recovers. Below it they are damage, which a move does not
take over (:class:`DamagedLog`). Files without CRCs (indexes, producer snapshots, leader epochs, aborted transactions)
have the second read alone. Mapped indexes of the last segment may change without a trace: where those differ they are
copied again, and nobody is blamed.

Reading, writing, reading back and the second reading overlap: as many pieces are on their way as the buffer has slots,
and a file is compared while the rest of it and the next ones are copied. The data go through memory that the two
workers share, not through the daemon.

Not copied: ``partition.metadata``. The future replica has its own, which must name the same topic.
"""

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from errno import EEXIST, EILSEQ, ENOENT
from typing import Final, Literal, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from kjbod.errors import StorageError
from kjbod_host.storage.api import (
    Batches,
    CopyBuffer,
    DirectoryAgent,
    DirectoryError,
    FileStatus,
    Piece,
    StorageAgent,
    WorkerUnavailable,
)
from kjbod_host.storage.checkpoints import CHECKPOINT_FILES, RECOVERY_POINT
from kjbod_host.storage.segments import segment_base
from kjbod_host.storage.worker import parse_replica

Side = Literal["source", "destination"]
Result = TypeVar("Result")

TIMEOUT_MS: Final = 60_000
"""For one request, its time in the queue included: longer than a disk that works needs for the pieces on their way."""
SLOTS: Final = 8
SLOT_BYTES: Final = 4 << 20
"""A probe waits for two pieces at most, the one in progress and the next: 80 ms at 100 MB/s."""
STRETCH_SLOTS: Final = 32
"""Pieces of a large file after which those are made durable and read back, while the next ones are copied: 128 MiB, for
an fsync costs a disk that seeks as much as some MiB."""
FILES_AT_A_TIME: Final = 3
"""Files between the first piece read and the last one compared."""
BURST_S: Final = 0.1
"""A throttle that was idle allows this much of a second at once."""
PARTITION_METADATA: Final = "partition.metadata"
_OWN: Final = frozenset({PARTITION_METADATA, PARTITION_METADATA + ".tmp"})
_METADATA_BYTES: Final = len("version: 0\ntopic_id: ") + 22
"""Up to the end of the id: what follows is a newline or nothing."""
_SEGMENT: Final = re.compile(r"([0-9]{20})\.(.+)")
_MAPPED: Final = (".index", ".timeindex")


class CopyFailed(Exception):  # noqa: N818  the name says it
    """A directory did not do its part.

    Attributes:
        side: whose fault it is.
        error: what the directory said. ``EILSEQ``: the medium does not give back what was written; ``EEXIST``: the
            future replica is one of another topic.
    """

    def __init__(self, side: Side, error: StorageError) -> None:
        super().__init__(side, error)
        self.side: Side = side
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class DamagedLog(StorageError):  # noqa: N818  the name says it
    """A segment of the source is damaged at rest: its medium gives the same wrong thing each time."""


class Throttle:
    """Bytes per second for all who share it; first come, first served.

    Each may overdraw by what it takes at once, and the next one waits for it: so a piece passes at any rate above zero.

    Args:
        rate: bytes per second; None for no limit. 0 lets nothing pass.
    """

    def __init__(self, rate: int | None = None) -> None:
        self._rate = rate
        self._allowance = 0.0
        self._counted_s: float | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def rate(self) -> int | None:
        """Bytes per second, None for no limit. Who waits learns of a change at once."""
        return self._rate

    @rate.setter
    def rate(self, rate: int | None) -> None:
        if rate != self._rate:
            self._rate, self._counted_s = rate, None
            self._changed.set()
            self._changed = asyncio.Event()

    async def take(self, nbytes: int) -> None:
        """Wait until this many bytes may pass. A cancelled wait uses nothing of the limit."""
        if self._rate is None:
            return
        async with self._turn:
            while (delay_s := self._delay_s()) is None or delay_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay_s):
                        await self._changed.wait()
            self._allowance -= nbytes

    def _delay_s(self) -> float | None:
        """Seconds until something may pass; None: for ever."""
        if self._rate is None:
            self._allowance = 0.0
            return 0.0
        now_s = asyncio.get_running_loop().time()
        passed_s = 0.0 if self._counted_s is None else now_s - self._counted_s
        self._counted_s = now_s
        self._allowance = min(self._rate * BURST_S, self._allowance + passed_s * self._rate)
        if self._allowance >= 0 and self._rate > 0:
            return 0.0
        # A little more than needed, so that a rounded wait is not followed by a shorter and shorter one.
        return -self._allowance / self._rate + 1e-6 if self._rate > 0 else None


@dataclasses.dataclass(slots=True)
class CopyProgress:
    """Progress of the pass that is under way, or of the last one.

    Attributes:
        total_bytes: size of the source when the pass began.
        copied_bytes: of them the destination has.
        verified_bytes: of those were read back from its medium and compared.
        changed: the destination was asked to change something and the pass did not find both equal afterwards: it may
            have a part of what the source has.
    """

    total_bytes: int = 0
    copied_bytes: int = 0
    verified_bytes: int = 0
    changed: bool = dataclasses.field(default=False, compare=False)


class _Known(Struct):
    """A file that was found equal.

    Attributes:
        source: the source's file, as :func:`_version` has it, before it was read.
        there: the destination's afterwards; None until it was listed.
        pieces: what the destination has, by offset; not kept for files that are not expected to change.
    """

    source: tuple[int, int, int]
    pieces: dict[int, Piece]
    there: tuple[int, int, int] | None = None


class _Job(Struct):
    """A file in this pass.

    Attributes:
        status: of the source's file when the pass began.
        there_bytes: of the destination's file nothing is known but this length, of which pieces can be compared; 0
            when all is known that there is.
        known: pieces that the destination is known to have.
        pieces: what the source has, by offset.
        written: of those the ones that were written in this pass and are still to be read back.
        changed: something was written in this pass.
        end: of what the destination was asked to write so far.
        mapped: it may change without a trace.
        compared: up to where the source was read a second time.
        batches: how far its record batches are right, of a segment.
        cut: the source's file changed, got shorter, or went, while it was read.
    """

    status: FileStatus
    there_bytes: int = 0
    known: dict[int, Piece] = field(default_factory=dict)
    pieces: dict[int, Piece] = field(default_factory=dict)
    written: dict[int, Piece] = field(default_factory=dict)
    changed: bool = False
    end: int = 0
    mapped: bool = False
    compared: int = 0
    batches: Batches | None = None
    cut: bool = False


def _version(status: FileStatus) -> tuple[int, int, int]:
    """Another one, another content. Not what it takes on the medium, which settles by itself later."""
    return status.size, status.mtime_ns, status.inode


def _base(file: str) -> int | None:
    found = _SEGMENT.fullmatch(file)
    return int(found.group(1)) if found is not None else None


def _order(status: FileStatus) -> tuple[bool, int, bool, str]:
    """By base offset, the small files of a segment before its log, what belongs to none at last."""
    base = _base(status.name)
    return base is None, base or 0, status.name.endswith(".log"), status.name


class ReplicaCopy:
    """A replica on its way from one directory to another.

    Args:
        source: where it is read.
        source_name: its directory's name there.
        destination: where it is written.
        destination_name: name of the future replica, which was made (:meth:`DirectoryAgent.create_future`).
        buffer: memory for the pieces, of the storage agent that both belong to, and nobody else's: to be closed when
            the copy is over. See :func:`new_buffer`.
        throttles: all of them have to let a piece pass.
        timeout_ms: for each request.

    Attributes:
        progress: of the pass.
        source_name: may be set between passes: the source was renamed.
    """

    def __init__(
        self,
        source: DirectoryAgent,
        source_name: str,
        destination: DirectoryAgent,
        destination_name: str,
        *,
        buffer: CopyBuffer,
        throttles: Sequence[Throttle] = (),
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.source_name = source_name
        self.progress = CopyProgress()
        self._source = source
        self._destination = destination
        self._destination_name = destination_name
        self._buffer = buffer
        self._throttles = tuple(throttles)
        self._timeout_ms = timeout_ms
        self._known: dict[str, _Known] = {}
        self._recovery_point: int | None = None
        self._lost_slots: set[int] = set()
        """A request that was abandoned may still use them."""
        self._slots: asyncio.Queue[int] = asyncio.Queue()
        self._reading = asyncio.Lock()
        self._files = asyncio.Semaphore(FILES_AT_A_TIME)

    async def catch_up(self) -> bool:
        """A pass; see the module. Can be cancelled at any moment, and called again.

        Returns:
            True: the source did not change during the pass, and both are equal, durable and verified.

        Raises:
            CopyFailed: a directory did not do its part.
        """
        self._find_slots()
        try:
            return await self._pass()
        except BaseExceptionGroup as group:
            raise _first(group) from None

    def _find_slots(self) -> None:
        """A pass begins with every slot that no abandoned request may still use."""
        free = [slot for slot in range(self._buffer.slots) if slot not in self._lost_slots]
        if not free:
            reason = "requests that were never answered may still use the copy buffer; begin anew with another one"
            raise CopyFailed("destination", WorkerUnavailable(self._destination.path, reason))
        self._slots = asyncio.Queue()
        for slot in free:
            self._slots.put_nowait(slot)

    async def _pass(self) -> bool:
        before = await self._list_source()
        there = await self._list_destination()
        await self._check_topic()
        if self._recovery_point is None:
            self._recovery_point = await self._read_recovery_point()
        self._known = {name: known for name, known in self._known.items() if name in before}
        self.progress = CopyProgress(sum(status.size for status in before.values()))
        for name in there.keys() - before.keys():
            self.progress.changed = True
            removing = self._destination.remove_file(self._destination_name, name, timeout_ms=self._timeout_ms)
            await self._at_destination(removing)
        last = max((base for name in before if (base := _base(name)) is not None), default=0)
        await self._copy_files(before, there, last)
        after, there = await self._list_source(), await self._list_destination()
        for name, known in self._known.items():
            known.there = _version(there[name]) if name in there else None
        equal = self._known.keys() == before.keys() and _same(before, after) and _equal(after, there)
        self.progress.changed = self.progress.changed and not equal
        return equal

    async def _copy_files(self, wanted: Mapping[str, FileStatus], there: Mapping[str, FileStatus], last: int) -> None:
        """Copy what changed. A file that got shorter, or went, meanwhile is not known to be equal afterwards."""
        async with asyncio.TaskGroup() as tasks:
            for status in sorted(wanted.values(), key=_order):
                if self._is_equal(status, there.get(status.name), last):
                    self._advance(status.size, status.size)
                    continue
                await self._files.acquire()
                job = self._job(status, there.get(status.name))
                job.mapped = status.name.endswith(_MAPPED) and _base(status.name) == last
                task = tasks.create_task(self._copy_file(job, there.get(status.name), last))
                task.add_done_callback(lambda _: self._files.release())

    def _is_equal(self, status: FileStatus, there: FileStatus | None, last: int) -> bool:
        """Whether a file was found equal and has not changed since, on either side."""
        known = self._known.get(status.name)
        if known is None or there is None or known.there != _version(there) or known.source != _version(status):
            return False
        base = _base(status.name)
        return base is not None and (base < last or status.name.endswith(".log"))

    def _job(self, status: FileStatus, there: FileStatus | None) -> _Job:
        """The job for a file. What is known of the file leaves the memory of this copy until it is whole again."""
        known = self._known.pop(status.name, None)
        if there is None:
            return _Job(status)
        if known is not None and known.there == _version(there) and known.pieces:
            return _Job(status, known=known.pieces)
        return _Job(status, there_bytes=there.size)

    async def _copy_file(self, job: _Job, there: FileStatus | None, last: int) -> None:
        status = job.status
        async with asyncio.TaskGroup() as comparing:  # at the source, while the destination makes durable
            await self._copy_pieces(job, there, comparing)
            if job.cut:
                return
            due = _take(job.written, status.size)
            if job.changed or there is None or (there.size, there.mtime_ns) != (status.size, status.mtime_ns):
                self.progress.changed = True
                await self._finish(status)
            await self._verify_all(job, due)
        if job.cut:
            return
        self._check_damage(job)
        base = _base(status.name)
        kept = job.pieces if base is None or base >= last else {}
        self._known[status.name] = _Known(_version(status), kept)

    async def _copy_pieces(self, job: _Job, there: FileStatus | None, comparing: asyncio.TaskGroup) -> None:
        """Copy a file; what was read of it is read again, stretch by stretch, by tasks of ``comparing``."""
        size = job.status.size
        async with asyncio.TaskGroup() as pieces, self._reading:  # one file after the other, for disks that seek
            if there is not None and job.there_bytes:
                await self._finish(there)  # so that what is compared comes from the medium
            stretch: list[asyncio.Task[None]] = []
            second: asyncio.Task[None] | None = None
            for offset in range(0, size, self._buffer.slot_bytes):
                slot = await self._slots.get()
                end = min(size, offset + self._buffer.slot_bytes)
                stretch.append(pieces.create_task(self._copy_piece(slot, job, offset, end)))
                if len(stretch) == STRETCH_SLOTS or end == size:
                    second = comparing.create_task(self._compare_stretch(job, stretch, end, second))
                    if end < size:
                        pieces.create_task(self._finish_stretch(job, stretch, end))
                    stretch = []

    async def _finish_stretch(self, job: _Job, pieces: Sequence[asyncio.Task[None]], end: int) -> None:
        """Once these pieces, up to ``end``, are copied: make durable and read back what was written of them. Pieces
        behind them that were written meanwhile are not cut off."""
        await asyncio.wait(pieces)
        due = _take(job.written, end)
        if due and not job.cut:
            await self._finish(replace(job.status, size=job.end))
            await self._verify_all(job, due)

    async def _compare_stretch(
        self, job: _Job, pieces: Sequence[asyncio.Task[None]], end: int, before: asyncio.Task[None] | None
    ) -> None:
        """Once these pieces, up to ``end``, are copied, and the stretch ``before`` was compared: read them again."""
        await asyncio.wait([*pieces, *([] if before is None else [before])])
        await self._read_again(job, end)

    async def _verify_all(self, job: _Job, due: Mapping[int, Piece]) -> None:
        """Read back pieces that were written and made durable."""
        for offset, piece in due.items():
            await self._verify(job.status.name, offset, piece)

    async def _read_again(self, job: _Job, end: int) -> None:
        """Read the source a second time up to ``end``, and compare."""
        due = [(offset, piece) for offset, piece in job.pieces.items() if job.compared <= offset < end]
        for offset, piece in sorted(due, key=lambda pair: pair[0]):
            if job.cut:
                return
            found = await self._read_once_more(job, offset, piece)
            if (found.length, found.crc) != (piece.length, piece.crc):
                await self._differs(job, offset)
        job.compared = end

    async def _read_once_more(self, job: _Job, offset: int, piece: Piece) -> Piece:
        name, file, source = self.source_name, job.status.name, self._source
        try:
            if segment_base(file) is not None:
                checking = source.check_batches(
                    name, file, offset, piece.length, job.batches, timeout_ms=self._timeout_ms
                )
                found, job.batches = await self._at_source(checking)
                return found
            if piece.hole:
                return piece  # nothing lies there
            reading = source.checksum(name, file, offset, piece.length, cold=True, timeout_ms=self._timeout_ms)
            return await self._at_source(reading)
        except CopyFailed as failure:
            if isinstance(failure.error, DirectoryError) and failure.error.errno == ENOENT:
                return Piece(0, 0)  # as in the first reading
            raise

    async def _differs(self, job: _Job, offset: int) -> None:
        """The source gave two things: the file was changed meanwhile, else its disk gave a wrong one."""
        file = job.status.name
        now = (await self._list_source()).get(file)
        if now is None or _version(now) != _version(job.status) or job.mapped:
            job.cut = True
            return
        call = f"second reading of {self.source_name}/{file} at {offset}"
        raise CopyFailed("source", DirectoryError(EILSEQ, call, self._source.path))

    def _check_damage(self, job: _Job) -> None:
        """Whether what is no right batch may be a torn tail."""
        batches, recovered = job.batches, self._recovery_point or 0
        if batches is not None and batches.position < job.status.size and batches.offset < recovered:
            where = f"{self._source.path}/{self.source_name}/{job.status.name}"
            reason = f"{where} is damaged at byte {batches.position}, offset {batches.offset}"
            advice = "the replica stays there; have it fetched anew from another broker, by a reassignment"
            damage = f"{reason}: no record batch with a right CRC, below the recovery point {recovered}; {advice}"
            raise CopyFailed("source", DamagedLog(damage))

    async def _read_recovery_point(self) -> int:
        """Offset up to which Kafka has flushed the log, and recovers nothing: 0 where that is not known."""
        found = await self._at_source(self._source.read_checkpoints(timeout_ms=self._timeout_ms))
        parsed = parse_replica(self._destination_name)
        return 0 if parsed is None else found.get(RECOVERY_POINT, {}).get(parsed[:2], 0)

    async def _copy_piece(self, slot: int, job: _Job, offset: int, end: int) -> None:
        """From ``offset`` to ``end``, in several parts where there are holes."""
        usable = False
        try:
            while offset < end and not job.cut:
                piece = await self._read(slot, job, offset, end - offset)
                usable = True
                if not piece.length:
                    job.cut = True
                    break
                if not piece.hole:
                    for throttle in self._throttles:
                        await throttle.take(piece.length)
                if await self._has(job, offset, piece):
                    self._advance(piece.length, piece.length)
                else:
                    usable = False
                    await self._write(slot, job, offset, piece)
                    self._advance(piece.length, 0)
                job.pieces[offset] = piece
                offset += piece.length
                usable = False
            usable = True
        except CopyFailed as failure:
            usable = usable or isinstance(failure.error, DirectoryError)  # it was answered
            raise
        finally:
            if usable:
                self._slots.put_nowait(slot)
            else:
                self._lost_slots.add(slot)

    async def _read(self, slot: int, job: _Job, offset: int, length: int) -> Piece:
        reading = self._source.read_piece(
            self._buffer, slot, self.source_name, job.status.name, offset, length, timeout_ms=self._timeout_ms
        )
        try:
            return await self._at_source(reading)
        except CopyFailed as failure:
            if isinstance(failure.error, DirectoryError) and failure.error.errno == ENOENT:
                return Piece(0, 0)  # deleted meanwhile; when it is the replica itself, its next listing says so
            raise

    async def _has(self, job: _Job, offset: int, piece: Piece) -> bool:
        """Whether the destination has a piece already, on its medium."""
        known = job.known.get(offset)
        if known is None and offset + piece.length <= job.there_bytes:
            known = await self._checksum(job.status.name, offset, piece.length)
        return known is not None and (known.length, known.crc) == (piece.length, piece.crc)

    async def _write(self, slot: int, job: _Job, offset: int, piece: Piece) -> None:
        writing = self._destination.write_piece(
            self._buffer, slot, self._destination_name, job.status.name, offset, piece, timeout_ms=self._timeout_ms
        )
        job.changed = self.progress.changed = True
        job.end = max(job.end, offset + piece.length)
        await self._at_destination(writing)
        job.written[offset] = piece

    async def _finish(self, status: FileStatus) -> None:
        """The destination's file gets this size and time, and is durable."""
        finishing = self._destination.finish_file(
            self._destination_name, status.name, status.size, status.mtime_ns, timeout_ms=self._timeout_ms
        )
        await self._at_destination(finishing)

    async def _verify(self, file: str, offset: int, piece: Piece) -> None:
        """Read a piece back from the medium and compare it."""
        found = await self._checksum(file, offset, piece.length)
        if (found.length, found.crc) != (piece.length, piece.crc):
            call = f"comparison of {self._destination_name}/{file} at {offset}"
            raise CopyFailed("destination", DirectoryError(EILSEQ, call, self._destination.path))
        self._advance(0, piece.length)

    async def _checksum(self, file: str, offset: int, length: int) -> Piece:
        return await self._at_destination(
            self._destination.checksum(
                self._destination_name, file, offset, length, cold=True, timeout_ms=self._timeout_ms
            )
        )

    async def _check_topic(self) -> None:
        """Both have a ``partition.metadata``, with the same topic id."""
        found = []
        for agent, name, at in (
            (self._source, self.source_name, self._at_source),
            (self._destination, self._destination_name, self._at_destination),
        ):
            reading = agent.checksum(
                name, PARTITION_METADATA, 0, _METADATA_BYTES, cold=False, timeout_ms=self._timeout_ms
            )
            found.append(await at(reading))
        if found[0] != found[1]:
            call = f"comparison of {self._destination_name}/{PARTITION_METADATA} with that of {self.source_name}"
            raise CopyFailed("destination", DirectoryError(EEXIST, call, self._destination.path))

    async def _list_source(self) -> dict[str, FileStatus]:
        return _by_name(await self._at_source(self._source.list_files(self.source_name, timeout_ms=self._timeout_ms)))

    async def _list_destination(self) -> dict[str, FileStatus]:
        listing = self._destination.list_files(self._destination_name, timeout_ms=self._timeout_ms)
        return _by_name(await self._at_destination(listing))

    async def _at_source(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except StorageError as error:
            raise CopyFailed("source", error) from None

    async def _at_destination(self, work: Awaitable[Result]) -> Result:
        try:
            return await work
        except StorageError as error:
            raise CopyFailed("destination", error) from None

    def _advance(self, copied: int, verified: int) -> None:
        self.progress.copied_bytes += copied
        self.progress.verified_bytes += verified


def _take(written: dict[int, Piece], end: int) -> dict[int, Piece]:
    """Remove what begins before ``end``, and give it in order."""
    return {offset: written.pop(offset) for offset in sorted(written) if offset < end}


def _by_name(files: Iterable[FileStatus]) -> dict[str, FileStatus]:
    return {status.name: status for status in files if status.name not in _OWN}


def _same(before: Mapping[str, FileStatus], after: Mapping[str, FileStatus]) -> bool:
    return {name: _version(status) for name, status in before.items()} == {
        name: _version(status) for name, status in after.items()
    }


def _equal(source: Mapping[str, FileStatus], there: Mapping[str, FileStatus]) -> bool:
    return {name: (status.size, status.mtime_ns) for name, status in source.items()} == {
        name: (status.size, status.mtime_ns) for name, status in there.items()
    }


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first of the exceptions in a group of groups; a failure of a directory only when there is nothing worse."""
    flat = [_first(error) if isinstance(error, BaseExceptionGroup) else error for error in group.exceptions]
    return next((error for error in flat if not isinstance(error, CopyFailed)), flat[0])


def new_buffer(storage: StorageAgent) -> CopyBuffer:
    """A buffer for one :class:`ReplicaCopy`: 32 MiB."""
    return storage.copy_buffer(SLOTS, SLOT_BYTES)


async def carry_checkpoints(
    source: DirectoryAgent, destination: DirectoryAgent, topic: str, partition: int, *, timeout_ms: int = TIMEOUT_MS
) -> None:
    """Give the destination the partition's offsets in all four checkpoint files, as the source has them, before the
    future replica is promoted: a line that the source does not have goes, so that no older one counts.

    Raises:
        DirectoryError, DirectoryTimeout, WorkerUnavailable: of either; ``path`` says which.
    """
    found = await source.read_checkpoints(timeout_ms=timeout_ms)
    key = (topic, partition)
    changes = {name: {key: found.get(name, {}).get(key)} for name in CHECKPOINT_FILES}
    await destination.change_checkpoints(changes, timeout_ms=timeout_ms)
