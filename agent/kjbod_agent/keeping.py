"""The agent keeps the metadata that it fetched, so that its next start fetches only what it lacks.

Two things are kept. In ``metadata.log.dir`` the log and snapshots in Kafka's format, as a broker's observer has them: a
real broker can go on from there, and the agent from where a real broker stopped. In ``kjbod.state.dir`` an image of
them that is read in a tenth of the time (:mod:`kjbod.metadata.kept_image`). At a start the image and the log behind it
are read, and count for nothing until the leader was found to have the last batch (:class:`FetchMachine`).

It is a cache on a disk that may hang. All file calls are made by processes of its own, nothing waits for them but
this, and the first that fails or takes too long ends the keeping until the next start, with one line; so does a log
there that is not an observer's, that is damaged, or that is of another history than the quorum's. Nothing is removed
for any of that.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from kjbod.errors import KjbodError
from kjbod.metadata.batches import RecordBatch, iter_batches
from kjbod.metadata.fetching import Committed, Snapshot
from kjbod.metadata.image import MetadataImage, Replayer
from kjbod.metadata.kept import Kept, Tail
from kjbod.metadata.kept_image import KeptHeader, KeptImageError, decode_in_steps, read_header
from kjbod.metadata.log_files import DIRECTORY_NAME
from kjbod.metadata.records import UnknownRecord
from kjbod.metadata.snapshot import SnapshotId
from kjbod.wire.codec import MalformedMessageError
from kjbod.wire.crc32c import package_directory
from kjbod_host.files.file_process import FileProcess
from kjbod_host.reporter import Log

T = TypeVar("T")

IMAGE_NAME: Final = "metadata_kept.json"
MEMORY_NAME: Final = "metadata_files.json"
ANSWER_TIMEOUT_MS: Final = 5_000
"""For each call at the start. Nobody asks for a controller meanwhile."""
LOAD_TIMEOUT_MS: Final = 15_000
"""For all that is read at the start, which takes a second for 200,000 records."""
WRITE_TIMEOUT_MS: Final = 30_000
"""For one call; a disk that takes longer is no place to keep anything."""
COMPACT_TIMEOUT_MS: Final = 600_000
QUEUE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Records and snapshots that wait to be written; a snapshot waits as a whole."""
PIECE_BYTES: Final = 512 * 1024
IMAGE_BYTES_MAX: Final = 512 * 1024 * 1024
FLUSH_MS: Final = 5_000
"""For so long records wait for others to be written with them: an idle cluster has two a second. What an end loses is
fetched again."""
COMPACT_RECORDS: Final = 20_000
"""After so many records the image is made anew: to read them at a start costs a few tenths of a second."""
CHECKPOINT_BYTES: Final = 20 * 1024 * 1024
"""``metadata.log.max.record.bytes.between.snapshots`` of a broker, by default."""
NEWER: Final = (
    "the metadata have records that kjbod does not know: an image or a snapshot that is made here would lack them; "
    "upgrade kjbod"
)
_RECORDS_PER_STEP = 200


class Start(Struct, frozen=True):
    """State that an earlier process knew."""

    kept: Kept
    image: MetadataImage
    kraft_version: int


class _Records(Struct, frozen=True):
    """Batches on their way to the disk."""

    data: bytes
    count: int
    kraft_version: int


class _Checkpoint(Struct, frozen=True):
    """A snapshot on its way there."""

    id: SnapshotId
    data: bytes
    aside: bool
    """The log before it is not known to be of the same history: it is set aside, not removed."""


class _Parted(Struct, frozen=True):
    """The log is of another history than the quorum's."""

    why: str
    data: bytes = b""


class Keeping:
    """Keeps the metadata of one agent.

    Args:
        directory: ``metadata.log.dir``, which this agent has locked.
        state_dir: ``kjbod.state.dir``.
        cluster_id: whose metadata these are.
        node_id: who keeps them.
        spawn: runs a coroutine for as long as the agent.
        log: for the line that says why nothing is kept any more.
    """

    def __init__(
        self,
        directory: str,
        state_dir: Path,
        *,
        cluster_id: str,
        node_id: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        log: Log,
    ) -> None:
        self._directory = directory
        self._image_path = str(state_dir / IMAGE_NAME)
        self._memory_path = str(state_dir / MEMORY_NAME)
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._spawn = spawn
        self._log = log
        # Of CRC-32C and of the classes of records: the other file processes import no packages.
        libraries = sorted({str(Path(one).parent) for one in (package_directory(), Path(msgspec.__file__).parent)})
        self._files = FileProcess("kjbod-metadata", libraries)
        self._compactor = FileProcess("kjbod-compact", libraries)
        self._queue: deque[_Records | _Checkpoint | _Parted] = deque()
        self._queued_bytes = 0
        self._wake = asyncio.Event()
        self._compacting: asyncio.Future[Any] | None = None
        self._cut: tuple[str, int, int] | None = None
        self._since_image = 0
        self._end = 0
        self._tail: Tail | None = None
        self._committed: Tail | None = None
        self._torn: tuple[str, int, int] | None = None
        self._kraft_version = 0
        self._caught_up = False
        self._contained = True
        self._parting = False
        self.stopped: str | None = "it was not looked at yet"
        """Why nothing is kept; None: it is."""
        self.offset = -1
        """The last one that was written."""

    def process_ids(self) -> tuple[int, ...]:
        """Return the pids of the processes that do the file calls."""
        return (*self._files.process_ids(), *self._compactor.process_ids())

    def close(self) -> None:
        """Stop keeping metadata, without waiting."""
        self.stopped = self.stopped or "the agent ends"
        self._queue.clear()
        self._queued_bytes = 0
        self._files.close()
        self._compactor.close()

    def stop(self, reason: str) -> None:
        """Keep nothing more until the next start, and say why."""
        if self.stopped is None:
            self._log.warning("metadata.kept.stopped", path=self._directory, reason=reason)
            self.stopped = reason
            self.close()

    def _silence(self, timeout_ms: int) -> str:
        return (
            f"nothing was read or written in {timeout_ms} ms: the disk of {self._directory} or of the state directory "
            f"hangs or is very slow, or a file in {DIRECTORY_NAME} is too large; look at them, and restart the agent"
        )

    # ------------------------------------------------------------------------------------------------------- the start

    async def load(self) -> Start | None:
        """Read what an earlier process knew; None where there is nothing of use, which is said unless it is natural."""
        self.stopped = None
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_MS / 1000):
                start = await self._load()
        except TimeoutError:
            if self._end == 0:
                self.stop(self._silence(ANSWER_TIMEOUT_MS))
            else:
                self._log.info("metadata.kept.unused", path=self._directory, reason="reading it takes too long")
            return None
        except OSError as error:
            self.stop(_advice(error, self._directory))
            return None
        except (KjbodError, MalformedMessageError) as error:
            self.stop(str(error))
            return None
        if start is not None:
            self._log.info("metadata.kept.loaded", end_offset=start.kept.end_offset, epoch=start.kept.tail.leader_epoch)
        return start

    async def _load(self) -> Start | None:
        header = await self._header()
        found = await self._open(header)
        if found["problem"]:
            self.stop(found["problem"])
            return None
        if found["parted"]:
            self._end_quietly(
                f"it is of another history than the quorum's, as was said when that was found: move {self._inner} away "
                "when it is no longer needed, and restart the agent"
            )
            return None
        self._end = found["end"]
        self._since_image = self._end
        self._tail = None if found["tail"] is None else Tail(*found["tail"])
        self._torn = found["torn"]
        self._committed = None if found["committed"] is None else Tail(*found["committed"])
        self.offset = self._end - 1
        if self._tail is None:
            return None
        epochs = tuple((epoch, start) for epoch, start in found["epochs"])
        image = await self._image() if header is not None and found["has"] else None
        if image is None and found["start"] == 0 and self._end <= COMPACT_RECORDS:
            return await self._follow_log(Start(Kept(self._tail, ()), MetadataImage(), 0), 0, epochs)
        if image is None:
            await _soon(self._compact())
            header = await self._header()
            image = await self._image() if header is not None and (await self._open(header))["has"] else None
        if image is None or header is None:
            return None
        known = Start(header.kept, image, header.kraft_version)
        return await self._follow_log(known, header.kept.end_offset, epochs)

    async def _header(self) -> KeptHeader | None:
        """Head of the kept image; None where there is none, or not one of ours, which is said."""
        try:
            first = await _soon(self._files.call("read_piece", self._image_path, 0, PIECE_BYTES))
            return read_header(first.partition(b"\n")[0], cluster_id=self._cluster_id, node_id=self._node_id)
        except TimeoutError:
            raise
        except FileNotFoundError:
            return None
        except (OSError, KeptImageError) as error:
            self._log.info("metadata.kept.unused", path=self._image_path, reason=str(error))
            return None

    async def _open(self, header: KeptHeader | None) -> dict[str, Any]:
        tail = None if header is None else header.kept.tail
        known = None if tail is None else (tail.base_offset, tail.last_offset, tail.leader_epoch, tail.crc)
        found: dict[str, Any] = await _soon(self._call("metadata_open", self._memory_path, known))
        return found

    async def _call(self, operation: str, *arguments: Any) -> Any:
        return await self._files.call("of_metadata", operation, self._directory, *arguments)

    async def _image(self) -> MetadataImage | None:
        """The kept image; None where it is damaged, which is said."""
        data = bytearray()
        while piece := await _soon(self._files.call("read_piece", self._image_path, len(data), PIECE_BYTES)):
            data += piece
            if len(data) > IMAGE_BYTES_MAX:
                raise KjbodError(f"{self._image_path} has more than {IMAGE_BYTES_MAX} bytes")
        try:
            image: MetadataImage = await _in_steps(
                decode_in_steps(bytes(data), cluster_id=self._cluster_id, node_id=self._node_id)
            )
        except KeptImageError as error:
            self._log.info("metadata.kept.unused", path=self._image_path, reason=str(error))
            return None
        return image

    async def _follow_log(self, known: Start, offset: int, epochs: tuple[tuple[int, int], ...]) -> Start | None:
        """Apply the log from ``offset`` on, up to a transaction that is open at its end."""
        replayer, level = Replayer(known.image), known.kraft_version
        tail = known.kept.tail if offset else None
        self._since_image = self._end - offset
        while data := await _soon(self._call("metadata_read", offset, PIECE_BYTES)):
            for batch in iter_batches(data):
                await _in_steps(_replay(replayer, batch))
                offset = batch.next_offset
                told = Committed((), batch.last_offset, batch.leader_epoch, -1, (batch,)).kraft_version
                level = level if told is None else told
                if not replayer.in_transaction:
                    tail = Tail.of(batch)
                    replayer.skip(batch.last_offset, batch.leader_epoch)
        if tail is None:
            return None
        begun = tuple(each for each in epochs if each[1] <= tail.last_offset)
        self._kraft_version = level
        committed = self._committed
        if committed is not None and committed.last_offset > tail.last_offset:
            committed = tail  # a transaction that is open lies between them
        return Start(Kept(tail, begun, committed), known.image, level)

    # ---------------------------------------------------------------------------------------------------- what follows

    def committed(self, committed: Committed) -> None:
        """Keep records that were applied."""
        if self.stopped is not None or self._parting:
            return
        if any(isinstance(record, UnknownRecord) for _, record in committed.records):
            self.stop(NEWER)
            return
        if committed.kraft_version is not None:
            self._kraft_version = committed.kraft_version
        self._caught_up = committed.last_offset + 1 >= committed.high_watermark
        fresh = [batch for batch in committed.batches if batch.next_offset > self._end]
        for batch in committed.batches:
            if batch.next_offset == self._end and self._tail is not None and Tail.of(batch) != self._tail:
                self._part(f"other records at offset {batch.base_offset}")
                return
        if fresh and fresh[0].base_offset != self._end:
            self._part(f"no batch that begins at offset {self._end}")
        elif fresh:
            self._end, self._tail = fresh[-1].next_offset, Tail.of(fresh[-1])
            data = b"".join(batch.raw for batch in fresh)
            self._add(_Records(data, sum(batch.count for batch in fresh), self._kraft_version))

    def replaced(self, snapshot: Snapshot, *, contained: bool) -> None:
        """A snapshot was handed over. What it is not known to contain is never removed."""
        if snapshot.kraft_version is not None:
            self._kraft_version = snapshot.kraft_version
        self._contained = contained
        if snapshot.parted is not None:
            self._part(snapshot.parted)
        elif any(isinstance(record, UnknownRecord) for record in snapshot.records):
            self.stop(NEWER)
        elif snapshot.dropped is not None:
            self._end_quietly(
                f"the quorum does not have its last records ({snapshot.dropped}), and it is not known that they "
                f"were committed: the broker that fetched them cuts them when it starts; or move {self._inner} away, "
                "and restart the agent"
            )

    def downloaded(self, snapshot_id: SnapshotId, data: bytes) -> None:
        """The bytes of a snapshot that was handed over."""
        if self.stopped is None and snapshot_id.end_offset > self._end:
            self._end, self._tail = snapshot_id.end_offset, None
            self._add(_Checkpoint(snapshot_id, data, aside=not self._contained))

    @property
    def _inner(self) -> str:
        return f"{self._directory}/{DIRECTORY_NAME}"

    def _part(self, why: str) -> None:
        """Have the log that is of another history set aside, and note that this was said."""
        if self.stopped is None and not self._parting:
            self._parting = True
            self._queue.clear()
            self._queued_bytes = 0
            self._queue.append(_Parted(why))
            self._wake.set()

    def _end_quietly(self, reason: str) -> None:
        """Keep nothing until the next start, for a reason that is no trouble."""
        if self.stopped is None:
            self._log.info("metadata.kept.unused", path=self._directory, reason=reason)
            self.stopped = reason
            self.close()

    async def _set_aside(self, why: str) -> None:
        aside = await self._call("metadata_part")
        words = (
            f"its files are beside it now, as {', '.join(aside)}: remove them when they are no longer needed; a "
            "restart of the agent begins anew"
            if aside
            else f"move {self._inner} away when it is no longer needed, and restart the agent"
        )
        self.stop(f"the quorum has another history than the log that is kept ({why}): nothing was removed; {words}")

    def _add(self, what: _Records | _Checkpoint) -> None:
        if self._parting:
            return
        self._queued_bytes += len(what.data)
        if self._queued_bytes > QUEUE_BYTES_MAX:
            self.stop(f"more than {QUEUE_BYTES_MAX} bytes wait to be written")
            return
        self._queue.append(what)
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled, or until something goes wrong."""
        try:
            while self.stopped is None:
                await self._wake.wait()
                self._wake.clear()
                if self._queued_bytes < PIECE_BYTES and not self._parting:
                    await asyncio.sleep(FLUSH_MS / 1000)
                async with asyncio.timeout(WRITE_TIMEOUT_MS / 1000) as limit:
                    while self._queue:
                        limit.reschedule(asyncio.get_running_loop().time() + WRITE_TIMEOUT_MS / 1000)
                        await self._write(self._queue.popleft())
                    if self._cut is not None:
                        cut, self._cut = self._cut, None
                        await self._call("metadata_cut", *cut)
                self._compact_when_due()
        except TimeoutError:
            self.stop(self._silence(WRITE_TIMEOUT_MS))
        except OSError as error:
            self.stop(_advice(error, self._directory))

    async def _write(self, what: _Records | _Checkpoint | _Parted) -> None:
        if isinstance(what, _Parted):
            await self._set_aside(what.why)
        elif isinstance(what, _Checkpoint):
            for at in range(0, len(what.data), PIECE_BYTES):
                last = at + PIECE_BYTES >= len(what.data)
                piece = what.data[at : at + PIECE_BYTES]
                await self._call("metadata_checkpoint", what.id.file_name, at, piece, last, what.aside)
            self.offset = what.id.end_offset - 1
            self._since_image += COMPACT_RECORDS
        else:
            records = [what]
            while self._queue and isinstance(self._queue[0], _Records) and _size(records) < PIECE_BYTES:
                following = self._queue.popleft()
                assert isinstance(following, _Records)
                records.append(following)
            data = b"".join(each.data for each in records)
            self.offset = await self._call("metadata_append", data, records[-1].kraft_version) - 1
            self._since_image += sum(each.count for each in records)
            self._tell_of_torn()
            self._queued_bytes -= _size(records[1:])
        self._queued_bytes -= len(what.data)

    def _tell_of_torn(self) -> None:
        """Tell that what an end in the middle of a write had left was cut before anything was written behind it."""
        if self._torn is not None:
            path, position, size = self._torn
            self._log.info("metadata.kept.cut", path=path, position=position, bytes_cut=size)
            self._torn = None

    # ------------------------------------------------------------------------------------------------------- the image

    def _compact_when_due(self) -> None:
        if self._since_image >= COMPACT_RECORDS and self._caught_up and self._compacting is None:
            self._spawn(self._compact_beside())

    async def _compact_beside(self) -> None:
        try:
            async with asyncio.timeout(COMPACT_TIMEOUT_MS / 1000):
                await self._compact()
        except TimeoutError:
            self.stop(f"no image of it was made in {COMPACT_TIMEOUT_MS} ms")
        except OSError as error:
            self.stop(_advice(error, self._directory))

    async def _compact(self) -> None:
        """Have the image made anew; who stops to wait for it leaves it to its end."""
        if self._compacting is None:
            self._since_image = 0
            what = (self._directory, self._image_path, self._cluster_id, self._node_id, CHECKPOINT_BYTES)
            self._compacting = asyncio.ensure_future(self._compactor.call("compact_metadata", *what))
            self._compacting.add_done_callback(self._compacted)
        await asyncio.shield(self._compacting)

    def _compacted(self, done: asyncio.Future[Any]) -> None:
        self._compacting = None
        self._compactor.rest()  # and give back its memory
        if done.cancelled() or done.exception() is not None or done.result() is None:
            return
        made = done.result()
        if made["checkpoint"] is not None:
            self._cut = (made["checkpoint"], made["inode"], made["tail"][0])
            self._wake.set()


def _size(records: list[_Records]) -> int:
    return sum(len(each.data) for each in records)


def _replay(replayer: Replayer, batch: RecordBatch) -> Generator[None, None, None]:
    for number, (offset, record) in enumerate(batch.metadata_records()):
        replayer.replay(offset, batch.leader_epoch, record)
        if number % _RECORDS_PER_STEP == _RECORDS_PER_STEP - 1:
            yield


def _advice(error: OSError, directory: str) -> str:
    """Words for a call that failed, and for what to do."""
    path = error.filename or directory
    text = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{path}: {text}: make room there, and restart the agent, which fetches what was not kept again"
    if error.errno == errno.EPIPE:
        return f"{text}: restart the agent, which keeps the metadata again then"
    known = error.filename is None or error.errno in (errno.EEXIST, errno.EACCES, errno.EPERM)
    return f"{path}: {text}" if known else f"{path}: {text}: look at that disk, and restart the agent"


async def _soon(answer: Awaitable[T]) -> T:
    """An answer of the start, which is not waited for for long."""
    async with asyncio.timeout(ANSWER_TIMEOUT_MS / 1000):
        return await answer


async def _in_steps(steps: Generator[None, None, Any]) -> Any:
    """Go through something with a pause after each step, in which the loop does what else there is."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)
