"""The health report writer: samples and events of this agent, as files for ``kjbod fleet report``.

Layout below the reports directory, which must not be on a watched disk::

    samples/date=2026-11-01/hour=03/<host>.<boot8>.<yyyymmddhh>.<n>.jsonl.gz     finished
    events/date=2026-11-01/.<host>.<boot8>.<yyyymmddhh>.<n>.jsonl                 open: hidden, plain, appended

Life of a file: *open* (every line reaches the kernel before the next is taken; events are fsynced as well), then
*finished*: the plain file is compressed with a trailer line (:data:`kjbod.fleet.schema.TRAILER_DDL`) into a hidden
temporary, fsynced, renamed, its directory fsynced, and the plain file removed. Spark passes over names with a leading
dot, so a reader never sees half a file. A crash at any point leaves the plain file, the finished file, or both with the
same rows; the next start finishes it again (``partial``) with the torn last line dropped. An open file is held by
``flock``, so several agents may share a directory and a host name without taking each other's files for leftovers.

The writer is not allowed to harm the agent. :meth:`ReportWriter.event` and :meth:`ReportWriter.sample` only append to a
bounded queue. The files are those of a process (:mod:`kjbod_host.files`), which is abandoned when their disk
hangs: that blocks neither the event loop, nor the end of the agent, nor the ports of the next one. Errors are counted,
logged once for each cause, and retried with backoff; when the queue is full its oldest lines go.
"""

import asyncio
import contextlib
import errno
from collections import deque
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from kjbod.clock import Clock
from kjbod.fleet.report_names import base_name, partition_path, safe_name
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS, URGENT_KINDS, Event, Sample
from kjbod_host.files.file_process import FileProcess
from kjbod_host.files.file_worker import Handle

ROTATE_INTERVAL_MS = 3_600_000
ROTATE_BYTES = 1 << 20
QUEUE_LINES_MAX = 10_000
FLUSH_TIMEOUT_MS = 2_000
RETRY_BACKOFF_MS = (1_000, 30_000)
"""First and largest pause after an error."""
OPEN_ATTEMPTS_MAX = 1_000


# --- names and decisions: pure --------------------------------------------------------------------------------------


def must_rotate(*, size: int, opened_ms: int, opened_hour: int, now_ms: int, hour: int, limits: "Limits") -> bool:
    """Whether an open file has to be finished: it is old enough, large enough, or its hour has passed (``opened_ms``
    and ``now_ms`` monotonic, the hours wall time since 1970)."""
    return size >= limits.rotate_bytes or now_ms - opened_ms >= limits.rotate_interval_ms or hour != opened_hour


class Limits(Struct, frozen=True):
    """Bounds of a :class:`ReportWriter`."""

    rotate_interval_ms: int = ROTATE_INTERVAL_MS
    rotate_bytes: int = ROTATE_BYTES
    queue_lines_max: int = QUEUE_LINES_MAX
    """For each of the two streams."""


class ReportStats(Struct):
    """Counters of a :class:`ReportWriter`, for metrics."""

    written: int = 0
    """Lines that reached a file."""
    dropped: int = 0
    """Lines that were dropped because the queue was full, or at the end."""
    errors: int = 0
    files: int = 0
    """Files finished."""
    recovered: int = 0
    """Of these, files of a run that crashed."""


# --- the writer -----------------------------------------------------------------------------------------------------


class _OpenFile(Struct):
    """A file that is being appended to."""

    path: str
    file: Handle
    opened_ms: int
    opened_hour: int
    size: int = 0


class _Stream:
    """Queue and open file of one stream."""

    def __init__(self, name: str, queue_lines_max: int) -> None:
        self.name = name
        self.queue: deque[bytes] = deque(maxlen=queue_lines_max)
        self.batch: list[bytes] = []  # out of the queue and on the way to the file; kept for the next try
        self.urgent = False
        self.open: _OpenFile | None = None
        self.number = 0

    @property
    def waiting(self) -> int:
        return len(self.queue) + len(self.batch)

    @property
    def dirty(self) -> bool:
        return bool(self.waiting) or (self.urgent and self.open is not None)


class ReportWriter:
    """Writes one agent's report. ``event`` and ``sample`` never block and never raise; so does nothing else here.

    Args:
        directory: the reports directory; created when missing.
        host: name of this host in the report.
        boot_id: id of this run of the agent: its incarnation id.
        clock: wall time for names, monotonic time for rotation.
        limits: bounds, see :class:`Limits`.
    """

    def __init__(
        self, directory: Path, *, host: str, boot_id: str, clock: Clock, limits: Limits | None = None, log: Any = None
    ) -> None:
        self.stats = ReportStats()
        self._root = directory
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._limits = limits or Limits()
        self._log = log if log is not None else structlog.get_logger("kjbod.reports")
        self._streams = {name: _Stream(name, self._limits.queue_lines_max) for name in STREAMS}
        self._leftovers: list[str] = []
        self._causes: set[tuple[str, int | None]] = set()
        self._backoff_ms = 0
        self._files = FileProcess("kjbod-reports")
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the writer. It first finishes the files of a crashed run, in the background."""
        if self._task is None:
            # Not in the daemon's TaskGroup: the writer outlives it, to write down that and why the agent stopped.
            self._task = asyncio.get_running_loop().create_task(self._run(), name="reports")

    def event(self, event: Event) -> None:
        """Queue an event. It is durable within milliseconds, and one of ``URGENT_KINDS`` also hands all that was
        written so far to the readers."""
        self._enqueue(EVENTS, event.to_json_line())
        if event.kind in URGENT_KINDS:
            for stream in self._streams.values():
                stream.urgent = True

    def sample(self, sample: Sample) -> None:
        """Queue a sample."""
        self._enqueue(SAMPLES, sample.to_json_line())

    def process_ids(self) -> tuple[int, ...]:
        """Return the pids of the processes that do the file calls."""
        return self._files.process_ids()

    async def flush(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> bool:
        """Wait until all queued lines are in files; return False after the timeout."""
        if self._task is None or self._task.done():
            return False
        self._settled.clear()
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._settled.wait()
        except TimeoutError:
            return False
        return True

    async def rotate(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> bool:
        """Finish the files with all queued lines for the readers; return False after the timeout."""
        for stream in self._streams.values():
            stream.urgent = True
        return await self.flush(timeout_ms)

    async def close(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> bool:
        """Finish all files and stop, in bounded time; what cannot be written by then is dropped. True when all was
        written. A file that could not be finished is recovered at the next start."""
        if self._task is None:
            return True
        self._closing = True
        done = await self.rotate(timeout_ms)
        self._task.cancel()
        await asyncio.wait([self._task], timeout=timeout_ms / 1000)
        if self._task.done() and not self._task.cancelled() and (bug := self._task.exception()):
            self._log.error("reports.crashed", error=repr(bug))
        self._task = None
        self.stats.dropped += sum(stream.waiting for stream in self._streams.values())
        self._files.close()
        return done

    # --- inside

    def _enqueue(self, stream: str, line: str) -> None:
        lines = self._streams[stream].queue
        if len(lines) == lines.maxlen:
            self.stats.dropped += 1
        lines.append(line.encode())
        self._wake.set()

    async def _run(self) -> None:
        await self._recover()
        while True:
            self._wake.clear()
            failed = await self._settle()
            if failed:
                first, largest = RETRY_BACKOFF_MS
                self._backoff_ms = min(max(self._backoff_ms * 2, first), largest)
                # New lines must not shorten the pause: a full disk would be hammered by each of them.
                await asyncio.sleep((first if self._closing else self._backoff_ms) / 1000)
                continue
            if self._backoff_ms:
                self._backoff_ms = 0
                self._causes.clear()  # the next time is another trouble
                self._log.info("reports.recovered", waiting=sum(s.waiting for s in self._streams.values()))
            if not any(stream.dirty for stream in self._streams.values()):
                self._settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._next_rotation_ms() / 1000):
                    await self._wake.wait()

    def _next_rotation_ms(self) -> int:
        hour_ends_ms = 3_600_000 - self._clock.wall_ms() % 3_600_000
        now_ms = self._clock.monotonic_ms()
        due = [
            stream.open.opened_ms + self._limits.rotate_interval_ms - now_ms
            for stream in self._streams.values()
            if stream.open
        ]
        return max(1, min([hour_ends_ms, *due]))

    async def _recover(self) -> None:
        try:
            count, errors = await self._files.call("recover", str(self._root), safe_name(self._host), list(STREAMS))
        except OSError as unreadable:
            self._failed("recover", unreadable)
            return
        self.stats.files += count
        self.stats.recovered += count
        for error in errors:
            self._failed("recover", OSError(*error))

    async def _settle(self) -> bool:
        """Write queued lines, and finish files that are due; return whether something failed."""
        failed = False
        for stream in self._streams.values():
            try:
                if self._due(stream):
                    await self._rotate(stream)  # before the new lines: they belong to the next hour
                await self._write(stream)
                urgent, stream.urgent = stream.urgent, False  # anew for what is queued while the file is finished
                if urgent or self._due(stream):
                    await self._rotate(stream)
            except OSError as error:
                self._failed(stream.name, error)
                failed = True
        for plain in list(self._leftovers):
            try:
                self.stats.files += await self._files.call("finish_report", plain)
                self._leftovers.remove(plain)
            except FileNotFoundError:
                self._leftovers.remove(plain)  # another agent has taken it for one of a crash, and finished it
            except OSError as error:
                self._failed("finish", error)
                failed = True
        return failed

    async def _write(self, stream: _Stream) -> None:
        while stream.waiting:
            if not stream.batch:
                stream.batch = list(stream.queue)
                stream.queue.clear()
            if stream.open is None:
                stream.open = await self._open(stream)
            data = b"".join(line + b"\n" for line in stream.batch)
            try:
                await self._files.call("append", stream.open.file, data, stream.name == EVENTS)
            except OSError:
                await self._cut_back(stream)
                raise
            stream.open.size += len(data)
            self.stats.written += len(stream.batch)
            stream.batch = []

    async def _cut_back(self, stream: _Stream) -> None:
        """Cut a file back to the last whole line after a failed write; if that fails, abandon the file. The lines are
        written again."""
        open_file = stream.open
        assert open_file is not None
        try:
            await self._files.call("truncate", open_file.file, open_file.size)
        except OSError:
            stream.open = None
            await self._abandon(open_file)

    async def _abandon(self, open_file: _OpenFile) -> None:
        self._leftovers.append(open_file.path)
        with contextlib.suppress(OSError):
            await self._files.call("close", open_file.file)

    async def _open(self, stream: _Stream) -> _OpenFile:
        wall_ms = self._clock.wall_ms()
        relative = str(partition_path(stream.name, wall_ms))
        folder = await self._files.call("make_partition", str(self._root), relative)
        for _ in range(OPEN_ATTEMPTS_MAX):
            name = base_name(self._host, self._boot_id, wall_ms, stream.number)
            stream.number += 1
            file = await self._files.call("open_report", folder, name)
            if file is not None:
                path = f"{folder}/.{name}.jsonl"
                return _OpenFile(path, file, self._clock.monotonic_ms(), wall_ms // 3_600_000)
        raise FileExistsError(errno.EEXIST, "the names for this run and hour are taken", folder)

    def _due(self, stream: _Stream) -> bool:
        return stream.open is not None and must_rotate(
            size=stream.open.size,
            opened_ms=stream.open.opened_ms,
            opened_hour=stream.open.opened_hour,
            now_ms=self._clock.monotonic_ms(),
            hour=self._clock.wall_ms() // 3_600_000,
            limits=self._limits,
        )

    async def _rotate(self, stream: _Stream) -> None:
        open_file, stream.open = stream.open, None
        if open_file is None:
            return
        try:
            self.stats.files += await self._files.call("finish_open", open_file.file, open_file.path)
        except OSError:
            await self._abandon(open_file)
            raise

    def _failed(self, doing: str, error: OSError) -> None:
        self.stats.errors += 1
        if (doing, error.errno) not in self._causes:
            self._causes.add((doing, error.errno))
            path = str(error.filename or self._root)
            self._log.warning("reports.failed", doing=doing, path=path, error=error.strerror or str(error))
