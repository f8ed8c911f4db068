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
bounded queue. I/O runs on one daemon thread of its own: a report disk that hangs blocks neither the event loop, nor the
default executor, nor the exit of the process. Errors are counted, logged once for each cause, and retried with backoff;
when the queue is full its oldest lines go.
"""

import asyncio
import contextlib
import dataclasses
import errno
import fcntl
import functools
import gzip
import json
import os
import queue
import re
import threading
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import aiofiles
import structlog

from kjbod.clock import Clock
from kjbod.files import fsync_directory
from kjbod.fleet.schema import EVENTS, SAMPLES, STREAMS, TRAILER_KIND, URGENT_KINDS, Event, Sample

P = ParamSpec("P")
T = TypeVar("T")

ROTATE_INTERVAL_MS = 3_600_000
ROTATE_BYTES = 1 << 20
QUEUE_LINES_MAX = 10_000
FLUSH_TIMEOUT_MS = 2_000
RETRY_BACKOFF_MS = (1_000, 30_000)
"""First and largest pause after an error."""
OPEN_ATTEMPTS_MAX = 1_000


# --- names and decisions: pure --------------------------------------------------------------------------------------


def safe_name(text: str) -> str:
    """``text`` as a part of a file name: no separators, and no leading character that hides a file from Spark."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text).lstrip("._") or "unnamed"


def partition_path(stream: str, wall_ms: int) -> Path:
    """Folder of a file that is opened at ``wall_ms``, relative to the reports directory. UTC."""
    at = datetime.fromtimestamp(wall_ms / 1000, UTC)
    day = Path(stream) / f"date={at:%Y-%m-%d}"
    return day / f"hour={at:%H}" if stream == SAMPLES else day


def base_name(host: str, boot_id: str, wall_ms: int, number: int) -> str:
    """Name of a file without its ending: unique in the fleet, so that a file that is copied twice is known again."""
    at = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return f"{safe_name(host)}.{safe_name(boot_id)[:8]}.{at:%Y%m%d%H}.{number}"


def must_rotate(*, size: int, opened_ms: int, opened_hour: int, now_ms: int, hour: int, limits: "Limits") -> bool:
    """Whether an open file has to be finished: it is old enough, large enough, or its hour has passed (``opened_ms``
    and ``now_ms`` monotonic, the hours wall time since 1970)."""
    return size >= limits.rotate_bytes or now_ms - opened_ms >= limits.rotate_interval_ms or hour != opened_hour


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a :class:`ReportWriter`."""

    rotate_interval_ms: int = ROTATE_INTERVAL_MS
    rotate_bytes: int = ROTATE_BYTES
    queue_lines_max: int = QUEUE_LINES_MAX
    """For each of the two streams."""


@dataclasses.dataclass(slots=True)
class ReportStats:
    """Counters of a :class:`ReportWriter`, for metrics."""

    written: int = 0
    """Lines that reached a file."""
    dropped: int = 0
    """Lines that were given up because the queue was full, or at the end."""
    errors: int = 0
    files: int = 0
    """Files finished."""
    recovered: int = 0
    """Of these, files of a run that crashed."""


def finished_content(plain: bytes, *, recovered: bool) -> bytes:
    """The lines of an open file, its torn last line dropped, and the trailer. Empty when no line is whole."""
    whole = plain[: plain.rfind(b"\n") + 1]
    lines = whole.split(b"\n")[:-1]
    if not lines:
        return b""
    trailer = {
        "k": TRAILER_KIND,
        "rows": len(lines),
        "crc32": sum(map(zlib.crc32, lines)) % 2**32,
        "first": _ts(lines[0]),
        "last": _ts(lines[-1]),
        "partial": recovered or len(whole) != len(plain),
    }
    return whole + json.dumps(trailer, separators=(",", ":")).encode() + b"\n"


def _ts(line: bytes) -> int | None:
    try:
        return int(json.loads(line)["ts"])
    except (ValueError, KeyError, TypeError):
        return None  # a power loss can leave a block of zeros; the reader sets such lines aside


# --- blocking file work: runs on the writer's thread ----------------------------------------------------------------


def finish_file(plain: Path, *, recovered: bool) -> Path | None:
    """Turn an open file into a finished one; None when it held no line. May be repeated after a crash at any point.

    Raises:
        OSError: the plain file is still there, untouched.
    """
    content = finished_content(plain.read_bytes(), recovered=recovered)
    if not content:
        plain.unlink(missing_ok=True)
        return None
    temporary = plain.with_name(plain.name + ".gz")
    finished = plain.with_name(temporary.name.removeprefix("."))
    try:
        with temporary.open("wb") as file:
            file.write(gzip.compress(content, mtime=0))
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(finished)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    fsync_directory(plain.parent)
    plain.unlink(missing_ok=True)
    return finished


def make_partition(root: Path, relative: Path) -> Path:
    """Create ``root/relative`` durably."""
    target = root
    for part in ("", *relative.parts):
        parent, target = target.parent if not part else target, target / part
        if not target.is_dir():
            target.mkdir(parents=not part, exist_ok=True)
            fsync_directory(parent)
    return target


def lock(fd: int) -> None:
    """Mark an open file as in use; the kernel lets go when the process ends, however it ends.

    Raises:
        BlockingIOError: another process has it, or had it and finished it.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise  # a file system without locks: names are unique, so the worst case is a line that is repeated
    if os.fstat(fd).st_nlink == 0:
        raise BlockingIOError(errno.EWOULDBLOCK, "finished by another process")


def recover_leftovers(root: Path, host: str) -> tuple[int, list[OSError]]:
    """Finish what a crashed run on this host left open: how many, and what went wrong on the way."""
    count, errors = 0, []
    for stream in STREAMS:
        for plain in sorted((root / stream).glob(f"**/.{safe_name(host)}.*.jsonl")):
            try:
                with plain.open("rb") as file:
                    lock(file.fileno())
                    count += finish_file(plain, recovered=True) is not None
            except (BlockingIOError, FileNotFoundError):
                continue  # a living agent's, or one that has just finished it
            except OSError as error:
                errors.append(error)
    return count, errors


class DaemonThreadExecutor(Executor):
    """One daemon thread that works off calls in order.

    ``ThreadPoolExecutor`` joins its threads when the interpreter exits; a thread that is stuck in a write to a dead
    report disk would keep a stopped agent alive.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((future, functools.partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the calls before this one; never waits."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  whatever it is belongs to the caller
                future.set_exception(error)
            else:
                future.set_result(result)


# --- the writer -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class _OpenFile:
    """A file that is being appended to."""

    path: Path
    file: Any  # aiofiles' raw binary file; its stubs name a private class
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
        self._leftovers: list[Path] = []
        self._causes: set[tuple[str, int | None]] = set()
        self._backoff_ms = 0
        self._executor = DaemonThreadExecutor("kjbod-reports")
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to write; what a crashed run left open is finished first, in the background."""
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

    async def flush(self, timeout_ms: int = FLUSH_TIMEOUT_MS) -> bool:
        """Wait until all that was queued is in files; False when that did not happen in time."""
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
        """Hand all that was queued to the readers; False when that did not happen in time."""
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
        self._executor.shutdown(wait=False)
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
            count, errors = await self._call(recover_leftovers, self._root, self._host)
        except OSError as unreadable:
            count, errors = 0, [unreadable]
        self.stats.files += count
        self.stats.recovered += count
        for error in errors:
            self._failed("recover", error)

    async def _settle(self) -> bool:
        """Write what is queued, finish what is due; whether something failed."""
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
                await self._finish(plain)
                self._leftovers.remove(plain)
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
                await self._append(stream.open, data)
                if stream.name == EVENTS:
                    await self._call(os.fsync, stream.open.file.fileno())
            except OSError:
                await self._cut_back(stream)
                raise
            stream.open.size += len(data)
            self.stats.written += len(stream.batch)
            stream.batch = []

    async def _append(self, open_file: _OpenFile, data: bytes) -> None:
        view = memoryview(data)
        while view:  # an unbuffered write may take a part
            written = await open_file.file.write(view)
            view = view[written:]

    async def _cut_back(self, stream: _Stream) -> None:
        """After a failed write: back to the last whole line, or on to another file. Lines are then written again."""
        open_file = stream.open
        assert open_file is not None
        try:
            await open_file.file.truncate(open_file.size)
        except OSError:
            stream.open = None
            await self._abandon(open_file)

    async def _abandon(self, open_file: _OpenFile) -> None:
        self._leftovers.append(open_file.path)
        with contextlib.suppress(OSError):
            await open_file.file.close()

    async def _open(self, stream: _Stream) -> _OpenFile:
        wall_ms = self._clock.wall_ms()
        folder = await self._call(make_partition, self._root, partition_path(stream.name, wall_ms))
        for _ in range(OPEN_ATTEMPTS_MAX):
            name = base_name(self._host, self._boot_id, wall_ms, stream.number)
            path = folder / f".{name}.jsonl"
            stream.number += 1
            if await self._call((folder / f"{name}.jsonl.gz").exists):
                continue
            try:
                file = await aiofiles.open(path, "xb", buffering=0, opener=_append_only, executor=self._executor)
            except FileExistsError:
                continue
            try:
                await self._call(lock, file.fileno())
            except BlockingIOError:  # an agent that is starting took it for a leftover in this very moment
                await file.close()
                continue
            return _OpenFile(path, file, self._clock.monotonic_ms(), wall_ms // 3_600_000)
        raise FileExistsError(errno.EEXIST, "the names for this run and hour are taken", str(folder))

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
            await self._call(os.fsync, open_file.file.fileno())
            # The lock goes with the descriptor, so the file is finished first.
            await self._finish(open_file.path)
        except OSError:
            await self._abandon(open_file)
            raise
        await open_file.file.close()

    async def _finish(self, plain: Path) -> None:
        finished = await self._call(finish_file, plain, recovered=False)
        self.stats.files += finished is not None

    async def _call(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run blocking file work on the writer's thread."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _failed(self, doing: str, error: OSError) -> None:
        self.stats.errors += 1
        if (doing, error.errno) not in self._causes:
            self._causes.add((doing, error.errno))
            path = str(error.filename or self._root)
            self._log.warning("reports.failed", doing=doing, path=path, error=error.strerror or str(error))


def _append_only(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_APPEND, 0o644)
