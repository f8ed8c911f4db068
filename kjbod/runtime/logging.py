"""Log lines on stderr, written by a separate thread so that a dead journald cannot stop the process.

On a terminal, lines are for people. Elsewhere, in the journal or a pipe, each line is one JSON object.

Every object has ``timestamp`` (ISO-8601, UTC, microseconds), ``level``, ``component`` and ``event``, a stable dotted
name (``directory.failed``) that dashboards and tests rely on. All other values are fields. Loggers of the standard
library (asyncio, dependencies) use the same lines.

Writing to a blocked stderr would hang the daemon, and an error of a closed stderr would end it. So the event loop only
puts bytes into a bounded buffer, and a daemon thread writes them. Lines that do not fit are dropped and counted. The
count is logged (``logging.dropped``) when the buffer has space again.
"""

import atexit
import contextlib
import errno
import json
import logging
import os
import select
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, ExcInfo, FilteringBoundLogger, Processor, WrappedLogger

from kjbod.ids import Uuid
from kjbod.runtime.descriptors import keep_standard_descriptors
from kjbod.runtime.room import NoRoomError

PENDING_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of lines that wait for stderr; about ten thousand events."""
EXIT_FLUSH_TIMEOUT_MS = 1000
"""Time that the end of the process waits for its last lines."""
_WRITE_BYTES_MAX = 64 * 1024

_JOURNAL_PRIORITY = {"critical": 2, "error": 3, "warning": 4, "info": 6, "debug": 7}


class LineWriter:
    """A bounded buffer of lines and the daemon thread that writes them to a file descriptor.

    :meth:`write` never blocks and never raises. ``describe_dropped(count)`` returns the line with the number of dropped
    lines. Thread-safe and re-entrant: a finalizer may log while its own thread holds the lock.
    """

    def __init__(
        self,
        fd: int,
        *,
        describe_dropped: Callable[[int], bytes] | None = None,
        pending_bytes_max: int = PENDING_BYTES_MAX,
    ) -> None:
        self._fd = fd
        self._describe_dropped = describe_dropped
        self._pending_bytes_max = pending_bytes_max
        self._lines: deque[bytes] = deque()
        self._pending_bytes = 0  # queued and being written
        self._unreported = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._sealed = False
        self._torn = False  # the rest of a partly written line is lost
        self.dropped = 0
        """Lines that were not written: the buffer was full, or stderr is closed."""

    def write(self, line: bytes, *, despite_seal: bool = False) -> None:
        """Queue one line, which ends in a newline, or drop it if the buffer is full."""
        with self._changed:
            if self._closed or (self._sealed and not despite_seal):
                self.dropped += 1
                return
            if self._pending_bytes + len(line) > self._pending_bytes_max:
                self._count_dropped(1)
                return
            if not self._started():
                self._count_dropped(1)
                return
            self._lines.append(line)
            self._pending_bytes += len(line)
            self._changed.notify_all()

    def start(self) -> None:
        """Start the thread; otherwise the first line starts it.

        Raises:
            NoRoomError: the host cannot start another thread.
        """
        with self._changed:
            if not self._started():
                raise NoRoomError("there is no room for the thread that writes the log: raise TasksMax= or ulimit -u")

    def _started(self) -> bool:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="kjbod-log", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def flush(self, timeout_ms: int = EXIT_FLUSH_TIMEOUT_MS) -> bool:
        """Wait until all lines are written, at most ``timeout_ms``, and return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending_bytes == 0, timeout_ms / 1000)

    def seal(self) -> None:
        """Accept no more lines after the last queued one."""
        with self._changed:
            self._sealed = True

    def close(self, timeout_ms: int = EXIT_FLUSH_TIMEOUT_MS) -> None:
        """Flush and end the thread. A thread that is stuck in ``write`` is left running: it is a daemon thread."""
        self.flush(timeout_ms)
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _count_dropped(self, lines: int) -> None:
        self.dropped += lines
        self._unreported += lines

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            lines, data, reported = batch
            written = self._write_all(data)
            with self._changed:
                self._pending_bytes -= sum(map(len, lines))
                if not written:
                    self._count_dropped(len(lines))
                    self._unreported += reported
                self._changed.notify_all()

    def _take(self) -> tuple[list[bytes], bytes, int] | None:
        """Return the next lines, their bytes, and the number of dropped lines that they report; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closed)
            if not self._lines:
                return None
            lines: list[bytes] = []
            size = 0
            while self._lines and (not lines or size + len(self._lines[0]) <= _WRITE_BYTES_MAX):
                lines.append(self._lines.popleft())
                size += len(lines[-1])
            unreported, self._unreported = self._unreported, 0
        data = b"".join(lines)
        if unreported and self._describe_dropped is not None:
            data = self._describe_dropped(unreported) + data
        return lines, data, unreported

    def _write_all(self, data: bytes) -> bool:
        # After a full disk, the rest of a torn line must not swallow the next line.
        view = memoryview(b"\n" + data if self._torn else data)
        while view:
            try:
                size = os.write(self._fd, view)
                self._torn = view[size - 1] != ord("\n") if size else self._torn
                view = view[size:]
            except BlockingIOError:
                # Another process that shares the terminal or pipe made it non-blocking.
                try:
                    select.select((), (self._fd,), ())
                except (OSError, ValueError):
                    return False
            except OSError as error:
                if error.errno != errno.EINTR:
                    return False  # the reader is gone; a daemon must not stop because of its log
        return True


class _BytesLogger:
    """structlog's innermost logger: gets the rendered line."""

    __slots__ = ("_write",)

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write

    def msg(self, line: bytes) -> None:
        self._write(line)

    log = debug = info = warn = warning = error = critical = fatal = failure = exception = msg


class _StandardHandler(logging.Handler):
    """Handler for loggers of the standard library. Their records go through the processors of our events."""

    def __init__(self, line: Callable[[str, EventDict], bytes], write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._line = line
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        # A foreign message is free text: it becomes a field, so that the event name stays stable.
        event: EventDict = {"event": f"log.{record.name}"}
        try:
            event["message"] = record.getMessage()
        except Exception as error:  # noqa: BLE001  a message that does not fit its arguments must not stop the work
            event["message"] = f"{record.msg!r} ({error})"
        if record.exc_info:
            event["exc_info"] = record.exc_info
        self._write(self._line(record.levelname.lower(), event))


def _plain(value: object) -> object:
    """Return a JSON-compatible form of a value."""
    match value:
        case Uuid() | PurePath():
            return str(value)
        case str():
            return value
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case frozenset() | set():
            return sorted(value, key=str)
        case Mapping():
            return dict(value)
        case BaseException():
            return f"{type(value).__name__}: {value}"
        case _:
            return repr(value)


def render(event: Mapping[str, Any]) -> bytes:
    """Return an event as a line of JSON; ``timestamp``, ``level``, ``component`` and ``event`` first. Never raises for
    odd values."""
    ordered = {key: event[key] for key in ("timestamp", "level", "component", "event") if key in event}
    ordered.update(event)
    try:
        text = json.dumps(ordered, default=_plain, allow_nan=False, separators=(",", ":"))
    except Exception:  # noqa: BLE001  keys that are no strings, NaN, a cycle, a broken __repr__: the line gets out
        text = json.dumps({str(key): _printed(value) for key, value in ordered.items()}, separators=(",", ":"))
    return text.encode() + b"\n"


def _printed(value: object) -> str | int | None:
    if value is None or isinstance(value, str | int):
        return value
    try:
        plain = _plain(value)
        return plain if isinstance(plain, str) else repr(plain)
    except Exception:  # noqa: BLE001  a broken __repr__ is the caller's, the log line is ours
        return f"<{type(value).__name__}>"


def _add_timestamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["timestamp"] = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return event


def _add_component(component: str) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("component", component)
        return event

    return add


def _goes_to_journal(fd: int) -> bool:
    """Return whether ``fd`` is the journal's socket (systemd.exec(5), ``JOURNAL_STREAM``)."""
    try:
        stat = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


def _renderer(journal: bool) -> Callable[[WrappedLogger, str, EventDict], bytes]:
    def render_line(_logger: WrappedLogger, _method: str, event: EventDict) -> bytes:
        line = render(event)
        if journal:
            # sd-daemon(3): the journal removes the priority prefix from the line and stores it as a field.
            return b"<%d>" % _JOURNAL_PRIORITY.get(str(event.get("level")), 6) + line
        return line

    return render_line


def _people_renderer() -> Callable[[WrappedLogger, str, EventDict], bytes]:
    """Return a renderer of lines for a terminal. Control characters in names are escaped: names come from disks and
    from other people."""
    import structlog.dev

    from kjbod.output import safe

    def write_exception(out: TextIO, info: ExcInfo) -> None:
        lines = "".join(traceback.format_exception(*info)).split("\n")
        out.write("\n".join(["", *map(safe, lines)]).rstrip("\n"))

    console = structlog.dev.ConsoleRenderer(
        colors=not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb",
        sort_keys=False,
        exception_formatter=write_exception,
    )

    def render_line(logger: WrappedLogger, method: str, event: EventDict) -> bytes:
        shown = {key: value if key == "exc_info" else safe(_text(value)) for key, value in event.items()}
        return console(logger, method, shown).encode("utf-8", "replace") + b"\n"

    return render_line


def _text(value: object) -> str:
    """Return a field for people: text unchanged, other values as JSON."""
    try:
        return plain if isinstance(plain := _plain(value), str) else json.dumps(value, default=_plain)
    except Exception:  # noqa: BLE001  as in render
        return str(_printed(value))


_writer: LineWriter | None = None


def configure_logging(component: str, *, level: str = "info", fd: int = 2) -> None:
    """Send every log line of this process to ``fd`` (stderr). ``component`` is the default of that field.

    May be called again: waiting lines are written first. Levels below ``level`` are skipped at little cost.

    Raises:
        NoRoomError: the host cannot start the thread that writes.
    """
    global _writer
    if _writer is not None:
        _writer.close()
        _writer = None
    keep_standard_descriptors()
    processors: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_component(component),
        _add_timestamp,
    ]
    if os.isatty(fd):
        renderer = _people_renderer()
    else:
        renderer = _renderer(_goes_to_journal(fd))
        # Tracebacks do not show local variables: they contain passwords.
        no_locals = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        processors.append(structlog.processors.ExceptionRenderer(no_locals))

    def line(level: str, event: EventDict) -> bytes:
        for processor in processors:
            event = cast(EventDict, processor(None, level, event))
        return renderer(None, level, event)

    writer = LineWriter(
        fd, describe_dropped=lambda count: line("warning", {"event": "logging.dropped", "count": count})
    )
    writer.start()
    _writer = writer
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_args: _BytesLogger(writer.write),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_StandardHandler(line, writer.write)]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_crash


def _log_thread_crash(crash: threading.ExceptHookArgs) -> None:
    if crash.exc_type is SystemExit or crash.exc_value is None:
        return
    name = crash.thread.name if crash.thread is not None else None
    get_logger().error("thread.crashed", thread=name, exc_info=crash.exc_value)


def get_logger(**fields: object) -> FilteringBoundLogger:
    """Return a logger that adds ``fields`` to each event. It can be made at import, before
    :func:`configure_logging`."""
    return cast(FilteringBoundLogger, structlog.get_logger(**fields))


def write_plain(text: str) -> bool:
    """Queue ``text`` unchanged, for a person. Return False if :func:`configure_logging` was not called.

    A daemon that refuses to start reports that on stderr, and must not hang there without a reader. An error after the
    last line (:func:`seal_logging`) is still written.
    """
    if _writer is None:
        return False
    _writer.write(text.encode("utf-8", "replace") + b"\n", despite_seal=True)
    return True


def seal_logging() -> None:
    """Drop all later log lines: the line before this call is the last one."""
    if _writer is not None:
        _writer.seal()


def flush_logging(timeout_ms: int = EXIT_FLUSH_TIMEOUT_MS) -> bool:
    """Wait for unwritten lines, at most ``timeout_ms``, and return whether all are written."""
    return _writer is None or _writer.flush(timeout_ms)


@atexit.register
def _flush_at_exit() -> None:
    flush_logging()
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
