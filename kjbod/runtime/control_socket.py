"""The control socket: how commands on the same host talk to a running agent or guard.

The socket is a unix stream socket ``<kjbod.state.dir>/control.sock``, mode 0600: only root, and the user of the agent
or guard, may open it. Messages are JSON objects in UTF-8, one per line; one request at a time::

    → {"op": "move", "node": 1, ...}          node: the node that is meant; the process of another node refuses
    ← {"next": ...}                           any number of them: parts of a long answer, or progress
    ← {"wait": true}                          each WAIT_MS while there is nothing else to say: it is being worked on
    ← {"ok": ...}                             the end of the answer
    ← {"error": "one line", "code": 1}        the end of it instead; code: the exit code for the command

The cost of a client is bounded: length of a line, number of connections, time to send and to read. A bad client loses
at most its own connection. A request that changes something may continue after its client has left: see the handlers.

A bound socket outlives its process. A socket that refuses connections belongs to a dead process and is replaced by
rename, so a socket always exists with the right permissions. A socket that accepts connections is not replaced. Names
of sockets have at most 107 bytes (``sun_path``); a longer name is reached through its directory in ``/proc/self/fd``.
"""

import asyncio
import contextlib
import json
import os
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from kjbod.errors import EXIT_FAILURE, KjbodError
from kjbod.permissions import DENIED, advice
from kjbod.runtime.locks import holder_of

STATE_LOCK_NAME: Final = ".lock"
"""File in ``kjbod.state.dir`` that an agent keeps locked while it runs."""
SOCKET_NAME: Final = "control.sock"
EXIT_NO_AGENT: Final = 69
"""``EX_UNAVAILABLE`` of sysexits.h: no agent or guard answers."""
NAME_BYTES_MAX: Final = 107
SOCKET_MODE: Final = 0o600
WAIT_MS: Final = 2_000
CONNECT_TIMEOUT_MS: Final = 5_000
SILENCE_TIMEOUT_MS: Final = 10_000
"""An agent that works on a request reports every :data:`WAIT_MS`. An agent that is silent for this long hangs."""
ANSWER_BYTES_MAX: Final = 64 << 20
_READ_BYTES: Final = 64 << 10

Handler = Callable[[dict[str, Any]], Awaitable[Any] | AsyncIterator[Any]]
"""Takes the request and returns the answer, or yields its parts. A :class:`KjbodError` is an answer too. The server
cancels it when the server closes or the client stops reading."""


class ControlError(KjbodError):
    """The agent or guard does not answer, or refuses; one line with the reason."""

    def __init__(self, text: str, exit_code: int = EXIT_FAILURE) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class NoAgentError(ControlError):
    """No agent or guard answers."""

    def __init__(self, text: str) -> None:
        super().__init__(text, EXIT_NO_AGENT)


class Log(Protocol):
    """The part of a structlog logger that the server uses."""

    def warning(self, event: str, **fields: Any) -> Any: ...

    def exception(self, event: str, **fields: Any) -> Any: ...


# ----------------------------------------------------------------------------------------------------- names of sockets


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a name for ``path`` that fits into ``sun_path``. The name is valid until the context ends.

    Raises:
        ControlError: no such name is possible.
        OSError: the directory cannot be opened.
    """
    if len(os.fsencode(path)) <= NAME_BYTES_MAX:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = f"/proc/self/fd/{directory}/{path.name}"
        if not os.path.isdir(f"/proc/self/fd/{directory}"):  # noqa: PTH112  a link of /proc, not a path
            raise ControlError(f"{path}: longer than {NAME_BYTES_MAX} bytes, and no /proc: shorten kjbod.state.dir")
        yield name
    finally:
        os.close(directory)


def bind(path: Path) -> socket.socket:
    """Return a bound and listening socket at ``path``. A socket of a dead process is replaced.

    Raises:
        ControlError: a running process has the socket, another file is there, or the directory is not writable.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    fresh = path.with_name(f".{path.name}.new")
    try:
        _require_dead(path)
        # The mode before bind is the mode of the socket file (unix_bind); the umask only removes bits.
        os.fchmod(bound.fileno(), SOCKET_MODE)
        fresh.unlink(missing_ok=True)
        with short_name(fresh) as name:
            bound.bind(name)
        bound.listen(16)  # before the rename, so that no client is refused
        fresh.rename(path)
    except ControlError:
        bound.close()
        raise
    except OSError as error:
        bound.close()
        reason = advice(path, path.parent) if error.errno in DENIED else error.strerror or error
        raise ControlError(f"{path}: {reason}") from None
    return bound


def _remove(path: Path, inode: int) -> None:
    with contextlib.suppress(OSError):
        if path.lstat().st_ino == inode:  # otherwise the socket belongs to a successor
            path.unlink()


def _require_dead(path: Path) -> None:
    """Raise unless ``path`` is free, or a socket without a listener."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ControlError(f"{path}: not a socket: move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as probe:
        try:
            with short_name(path) as name:
                probe.connect(name)
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except BlockingIOError:
            pass  # the process listens, but its queue of connections is full
        raise ControlError(f"{path}: another agent or guard answers there: each needs a kjbod.state.dir of its own")


# --------------------------------------------------------------------------------------------------------------- server


class ControlLimits(Struct, frozen=True, kw_only=True):
    """Limits of the cost of one client."""

    line_bytes: int = 256 << 10
    connections: int = 16
    idle_timeout_ms: int = 5_000
    """Time limit to send a request."""
    read_timeout_ms: int = 10_000
    """Time limit to read an answer."""
    step_timeout_ms: int = 600_000
    """Time limit for each part of an answer."""


class ControlServer:
    """Answers requests on the control socket.

    Args:
        path: path of the socket.
        handlers: handlers by the name of the operation.
        identity: values that a request must match if it has these keys: ``{"node": 1}``.
        log: gets the errors of handlers.
        limits: limits of the cost of a client.
        remove: removes the socket file at the end, by path and inode; it must not wait for the disk.
    """

    def __init__(
        self,
        path: Path,
        handlers: Mapping[str, Handler],
        *,
        log: Log,
        identity: Mapping[str, Any] | None = None,
        limits: ControlLimits | None = None,
        remove: Callable[[Path, int], None] | None = None,
    ) -> None:
        self.path = path
        self._remove = remove or _remove
        self._handlers = handlers
        self._identity = identity or {}
        self._log = log
        self._limits = limits or ControlLimits()
        self._server: asyncio.Server | None = None
        self._inode: int | None = None
        self._connections: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Listen.

        Raises:
            ControlError: listening is impossible; one line with the reason.
        """
        bound = bind(self.path)
        self._inode = self.path.lstat().st_ino
        self._server = await asyncio.start_unix_server(self._serve, sock=bound, limit=self._limits.line_bytes)

    async def renew(self, inode: int | None) -> bool:
        """Listen again if the socket file was removed, perhaps with its directory. Open connections continue.

        Args:
            inode: inode of the file that has the socket's name now; None: no such file.

        Returns:
            Whether the socket file was missing.

        Raises:
            ControlError: listening is impossible; one line with the reason.
        """
        if self._server is None or inode is not None:
            return False
        before = self._server
        await self.open()
        before.close()
        return True

    def close(self) -> None:
        """Stop: close connections, cancel handlers, remove the socket file. Does not wait."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        for task in tuple(self._connections):
            task.cancel()
        if self._inode is not None:
            self._remove(self.path, self._inode)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; asyncio makes a task of this call."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > self._limits.connections:
                await self._write(writer, _refusal(f"{self._limits.connections} connections are open already"))
            else:
                while await self._answer_next(reader, writer):
                    pass
            writer.close()
        except (_PeerGone, OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client has left, or takes too long
        except asyncio.CancelledError:
            pass  # by close(); asyncio 3.11 logs a cancelled task of a connection as an error
        finally:
            self._connections.discard(task)
            if not writer.is_closing():
                writer.transport.abort()

    async def _answer_next(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer the next request. Return False when the connection is over."""
        try:
            async with asyncio.timeout(self._limits.idle_timeout_ms / 1000):
                line = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            await self._write(writer, _refusal(f"a request has at most {self._limits.line_bytes} bytes"))
            return False
        waiting = _Waiting(writer)
        try:
            last = await self._answer(line, writer)
        finally:
            waiting.stop()
        await self._write(writer, last)
        return True

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> dict[str, Any]:
        """Write all lines of the answer but the last one, and return the last one."""
        try:
            handler, request = self._parse(line)
            return {"ok": await self._carry_out(handler, request, writer)}
        except KjbodError as error:
            return _refusal(str(error), error.exit_code)
        except _PeerGone:
            raise
        except Exception as bug:  # noqa: BLE001  a handler's bug must not end the agent
            self._log.exception("control.handler.crashed", request=_shown(line))
            return _refusal(f"internal error: {type(bug).__name__}: {bug}")

    def _parse(self, line: bytes) -> tuple[Handler, dict[str, Any]]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            raise ControlError("a request is one JSON object in one line") from None
        if not isinstance(request, dict):
            raise ControlError("a request is one JSON object in one line")
        for key, value in self._identity.items():
            if request.get(key, value) != value:
                raise ControlError(f"the process that answers at {self.path} has {key} {value}, not {request[key]!r}")
        operation = request.get("op")
        handler = self._handlers.get(operation) if isinstance(operation, str) else None
        if handler is None:
            raise ControlError(f"unknown op {_shown(operation)}; there are {', '.join(sorted(self._handlers))}")
        return handler, request

    async def _carry_out(self, handler: Handler, request: dict[str, Any], writer: asyncio.StreamWriter) -> Any:
        answer = handler(request)
        if not isinstance(answer, AsyncIterator):
            return await self._step(answer)
        try:
            while (part := await self._step(anext(answer, _END))) is not _END:
                await self._write(writer, {"next": part})
        finally:
            if isinstance(answer, AsyncGenerator):
                await answer.aclose()
        return None

    async def _step(self, work: Awaitable[Any]) -> Any:
        timeout = asyncio.timeout(self._limits.step_timeout_ms / 1000)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if not timeout.expired():
                raise
            raise ControlError(f"not done after {self._limits.step_timeout_ms} ms; it may still be") from None

    async def _write(self, writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
        if writer.is_closing():  # uvloop raises RuntimeError from this write, which would be logged as a handler's bug
            raise _PeerGone
        writer.write(_encode(message))
        try:
            async with asyncio.timeout(self._limits.read_timeout_ms / 1000):
                await writer.drain()
        except OSError as error:  # TimeoutError is an OSError too
            raise _PeerGone from error


_END: Final = object()


class _PeerGone(Exception):  # noqa: N818  not an error, the end of a conversation
    """The client has left, or does not read."""


class _Waiting:
    """Reports periodically that the server still works on the answer."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._again()

    def stop(self) -> None:
        self._timer.cancel()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WAIT_MS / 1000, self._say)

    def _say(self) -> None:
        if not self._writer.is_closing():
            self._writer.write(_encode({"wait": True}))
            self._again()


def _encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _refusal(text: str, exit_code: int = EXIT_FAILURE) -> dict[str, Any]:
    return {"error": text, "code": exit_code}


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


# --------------------------------------------------------------------------------------------------------------- client


class Answerer(Struct, frozen=True, kw_only=True):
    """The process that a client asks, described for error lines.

    Attributes:
        name: ``guard``, or ``agent or guard`` if unknown.
        source: the configuration file that has ``kjbod.state.dir``.
        remedy: how to start the process.
    """

    name: str
    source: str
    remedy: str


def guard_of(source: str, own: str | None) -> Answerer:
    """The guard beside a Kafka broker.

    Args:
        source: the broker's configuration file.
        own: the file with kjbod's own keys (``--guard-config``); None: they are in the broker's file.
    """
    command = f"kjbod guard run -c {source}{'' if own is None else f' --guard-config {own}'}"
    remedy = f"start it with `{command}` or systemctl start kjbod-guard"
    return Answerer(name="guard", source=own or source, remedy=remedy)


def agent_or_guard_of(source: str, command: str) -> Answerer:
    """The agent or guard of a configuration file. The guard comes first in the remedy: an agent that is started on the
    host of a stopped Kafka broker takes the place of that broker.

    Args:
        source: the configuration file.
        command: command that runs the agent, ``kjbod agent`` or ``kjbod server``.
    """
    remedy = (
        f"on a host with Kafka start a guard with `kjbod guard run -c {source}` or systemctl start kjbod-guard, and "
        f"give its --guard-config here too; only on a host without Kafka start `{command} -c {source}` or systemctl "
        "start kjbod-agent"
    )
    return Answerer(name="agent or guard", source=source, remedy=remedy)


class ControlClient:
    """Client of the control socket; opens a connection for each request. Blocks.

    Args:
        state_dir: ``kjbod.state.dir`` of the agent or guard.
        node_id: id of the node that must answer.
        source: the configuration file, for error lines.
        answerer: the process that is asked; None: the agent or guard of ``source``.
        connect_timeout_ms: time limit for a connection, in milliseconds.
        silence_timeout_ms: how long a process that works on a request may send nothing, in milliseconds.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        node_id: int,
        source: str,
        answerer: Answerer | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        silence_timeout_ms: int = SILENCE_TIMEOUT_MS,
    ) -> None:
        self.path = state_dir / SOCKET_NAME
        self._node_id = node_id
        self._answerer = answerer or agent_or_guard_of(source, "kjbod agent")
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._silence_timeout_s = silence_timeout_ms / 1000

    def call(self, operation: str, **arguments: Any) -> Any:
        """Send a request whose answer has one part.

        Raises:
            NoAgentError: no agent or guard is there.
            ControlError: the agent or guard refused, does not answer, or may not be asked.
        """
        *_, last = self._converse(operation, arguments)
        return last["ok"]

    def stream(self, operation: str, **arguments: Any) -> Iterator[Any]:
        """Send a request whose answer has any number of parts. Errors as for :meth:`call`."""
        for message in self._converse(operation, arguments):
            if "next" in message:
                yield message["next"]

    def _converse(self, operation: str, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield every line of the answer, including the last, without ``wait`` lines."""
        closed: OSError | None = None
        with self._connect() as connection:
            try:
                connection.settimeout(self._silence_timeout_s)
                connection.sendall(_encode({"op": operation, "node": self._node_id, **arguments}))
            except (BrokenPipeError, ConnectionResetError) as error:
                closed = error  # the server may have sent the reason first: too many connections
            except OSError as error:
                raise self._trouble(error) from None
            for line in self._lines(connection):
                message = self._decode(line)
                if "error" in message:
                    raise ControlError(_printable(str(message["error"])), _exit_code(message.get("code")))
                if "wait" in message:
                    continue
                yield message
                if "ok" in message:
                    return
        raise (
            self._trouble(closed)
            if closed
            else ControlError(f"{self.path}: the {self._answerer.name} ended the conversation: see its log")
        )

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(self._connect_timeout_s)
            with short_name(self.path) as name:
                connection.connect(name)
        except OSError as error:
            connection.close()
            raise self._trouble(error) from None
        except BaseException:
            connection.close()
            raise
        return connection

    def _lines(self, connection: socket.socket) -> Iterator[bytes]:
        held = bytearray()
        while True:
            try:
                received = connection.recv(_READ_BYTES)
            except OSError as error:
                raise self._trouble(error) from None
            if not received:
                return
            start = len(held)
            held += received
            while (end := held.find(b"\n", start)) >= 0:
                yield bytes(held[:end])
                del held[: end + 1]
                start = 0
            if len(held) > ANSWER_BYTES_MAX:
                raise self._impostor(f"an answer has more than {ANSWER_BYTES_MAX} bytes")

    def _decode(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or not message.keys() & {"ok", "next", "wait", "error"}:
            raise self._impostor("an answer has another form")
        return message

    def _impostor(self, what: str) -> ControlError:
        return ControlError(f"{self.path}: {what}: the program that answers is no {self._answerer.name} of kjbod")

    def _trouble(self, error: OSError) -> ControlError:
        name, source = self._answerer.name, self._answerer.source
        if isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
            where = f"no {name} answers at {self.path} (kjbod.state.dir={self.path.parent} of {source}): "
            if holder_of(self.path.with_name(STATE_LOCK_NAME)) is not None:
                return NoAgentError(f"{where}the {name} is starting or ending: see its log")
            return NoAgentError(f"{where}{self._answerer.remedy}")
        if isinstance(error, PermissionError):
            return ControlError(f"{self.path}: no permission: ask as root or as the user of the {name}")
        if isinstance(error, TimeoutError | BlockingIOError):
            return ControlError(f"{self.path}: the {name} does not answer: see its log", EXIT_NO_AGENT)
        return ControlError(f"{self.path}: the {name} ended the conversation ({error.strerror or error}): see its log")


def _printable(text: str) -> str:
    """Return the text without characters that control a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def _exit_code(value: object) -> int:
    return value if isinstance(value, int) and 0 < value < 256 else EXIT_FAILURE
