"""A Kafka server on asyncio: any number of connections, one handler.

Each connection is a task with its own ``TaskGroup``: it reads requests and starts a handler for each, up to
``Limits.max_in_flight``; answers leave in the order of the requests. What a peer can cost is bounded:

* a frame is never larger than ``max_frame_bytes``, and only what came of it is held;
* a client that does not read its answers stops being read from, and is cut off after ``stall_timeout_ms``;
* so is one that sends half a request and falls silent; one that sends nothing goes after ``idle_timeout_ms``;
* incomplete requests of all connections together take at most ``max_pending_bytes``;
* large requests that are being read or handled take at most ``max_queued_bytes`` together, the next ones wait, and
  ``urgent`` ones have as much of their own;
* an answer that was made once for many (:class:`.frames.EncodedResponse`) leaves to one of them in a turn of the event
  loop, and as readers take theirs;
* unread answers of all connections take at most ``max_unread_bytes``, from when they are made and with what the kernel
  holds for their readers, else the slowest reader is cut off;
* a secured listener takes small frames, and ``max_logging_in`` connections, for ``login_timeout_ms`` at most, until
  their clients have shown who they are (:mod:`kjbod.wire.server_login`);
* connections above ``max_connections``, or ``max_connections_per_ip`` from one address, are closed as they come, and
  those that come faster than ``max_connection_creation_rate`` wait;
* a connection whose client has used up a quota is muted for as long as the handler says, at most ``idle_timeout_ms``;
* a connection's requests beyond ``max_requests_per_second`` wait; and in each turn of the event loop only
  ``requests_at_once`` are begun over all connections, in turns, so that any number of connections which flood delay the
  ``urgent`` requests of others by some milliseconds.

A :data:`Shortcut` may answer what comes on a connection that is at rest: no request of it is incomplete, waits or is
being handled, nothing that was written waits to leave, and neither of its rates makes it wait. So it finds what the way
of all requests would find, and takes nothing from the bounds above.

A peer's fault ends at most its own connection, with one log line; above :data:`LOG_LINES_PER_SECOND` such lines are
only counted. Requests before the fault are still answered.
"""

import asyncio
import contextlib
import functools
import os
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol, Self

from msgspec import Struct, structs

from kjbod.clock import Clock
from kjbod.errors import KjbodError, ProtocolError
from kjbod.runtime.names import listening_addresses
from kjbod.wire.admission import Admission, Admissions
from kjbod.wire.connection import ServerConnection, Slot
from kjbod.wire.frames import EncodedResponse, Request, VersionRanges, preload
from kjbod.wire.handshakes import Arrival, Handshakes
from kjbod.wire.limits import DECODED_AT_ONCE_BYTES, URGENT_PER_SECOND, Limits
from kjbod.wire.messages import ResponseBody, SaslAuthenticateRequest
from kjbod.wire.pressure import Outlet, Pace, Rate, Room, Unread
from kjbod.wire.server_login import LOGIN_BYTES_MAX, SASL_APIS, Reply, ServerLogin, State, require_before_login
from kjbod.wire.tls_reading import IntoBuffer

if TYPE_CHECKING:
    from kjbod.security.listener import ListenerSecurity

LOG_LINES_PER_SECOND = 20
_READ_BYTES = 65_536
_API_KEY_BYTES = 2
_NOTHING_AT_ONCE = -1
_Queued = tuple[Room | None, int]
"""Limit to which a large request counts, and its bytes."""
_NOT_QUEUED: _Queued = (None, 0)


class Logger(Protocol):
    """The part of a structlog logger that the server uses."""

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...

    def exception(self, event: str, **fields: Any) -> Any: ...


class Peer(Struct, frozen=True):
    """The other end of a connection."""

    host: str
    port: int
    principal: str = "User:ANONYMOUS"
    """Principal for an authorizer (``KafkaPrincipal``)."""
    token_authenticated: bool = False
    """Whether the client logged in by a delegation token."""

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Handler = Callable[[Request, Peer], Awaitable[ResponseBody | EncodedResponse | None]]
"""Answers a request; None closes the connection. Cancelled when the client goes or the server closes, so a change must
not depend on the handler's completion."""

Shortcut = Callable[[bytes], bytes | None]
"""Answers a whole urgent request, with its length in front, with the handler's frame; None: the request takes the usual
way. Never raises."""


async def serve(
    host: str,
    port: int,
    handler: Handler,
    *,
    apis: VersionRanges,
    clock: Clock,
    log: Logger,
    limits: Limits | None = None,
    security: "ListenerSecurity | None" = None,
    preloaded: VersionRanges | None = None,
    reader: Executor | None = None,
    urgent_reader: Executor | None = None,
    shortcut: Callable[[Peer], Shortcut] | None = None,
) -> "Server":
    """Listen on ``host`` and ``port`` (0: any free one) and answer the ``apis`` with ``handler``.

    With a ``reader``, requests larger than :data:`DECODED_AT_ONCE_BYTES` are decoded there, not on the event loop; with
    an ``urgent_reader`` those of ``Limits.urgent`` are decoded in that one.
    ``shortcut`` makes one for each connection.

    ``preloaded`` are the versions whose codecs are made now, all of ``apis`` by default; others when they are first
    asked for, which takes some milliseconds of the event loop.

    Raises:
        KjbodError: the address cannot be listened on.
        UnresolvedError: the name has no address.
    """
    preload(apis if preloaded is None else preloaded)
    server = Server(handler, apis, limits or Limits(), clock, log, reader, shortcut, security, urgent_reader)
    try:
        await server.listen(host, port)
    except OSError as error:
        raise KjbodError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return server


class Server:
    """A listening server. Made by :func:`serve`; may be used as an async context manager."""

    def __init__(
        self,
        handler: Handler,
        apis: VersionRanges,
        limits: Limits,
        clock: Clock,
        log: Logger,
        reader: Executor | None = None,
        shortcut: Callable[[Peer], Shortcut] | None = None,
        security: "ListenerSecurity | None" = None,
        urgent_reader: Executor | None = None,
    ) -> None:
        self.handler = handler
        self.security = security
        self.reader = reader
        self.urgent_reader = urgent_reader or reader
        self.shortcut = shortcut
        self.apis = apis
        self.limits = limits
        self.log = log
        self.complaints = _Complaints(clock, log)
        self.pending_bytes = 0
        """Bytes of requests over all connections that are incomplete or wait to be decoded."""
        self.pace = Pace(limits.requests_at_once)
        self.queued = Room(limits.max_queued_bytes)
        self.queued_urgent = Room(limits.max_queued_bytes)
        self.unread: Unread[_Session] = Unread(per_reader_bytes=max(0, limits.send_buffer_bytes))
        self.outlet = Outlet(self.unread, limits.max_unread_bytes)
        self.clock = clock
        self.admissions = Admissions(limits, clock, secured=security is not None)
        self._listening: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._handshakes: Handshakes | None = None
        self._shaking_hands: set[asyncio.Task[None]] = set()
        self.closing = False

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        assert self._listening is not None
        return int(self._listening.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    async def listen(self, host: str, port: int) -> None:
        """Start to accept connections.

        Raises:
            OSError: the address is taken, or not this host's.
            UnresolvedError: the host has no address.
        """
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            self._protocol,
            await listening_addresses(host, self.log) if host else None,
            port,
            backlog=self.limits.listen_backlog,
            start_serving=not self._has_tls,
        )
        for listening in self._listening.sockets:
            self._set_buffers(listening.fileno())
        if self._has_tls:
            self._handshakes = Handshakes(
                self._listening.sockets,
                self.limits.listen_backlog,
                admit=lambda address: self._admit(Peer(*address)),
                begin=self._begin_handshake,
                refuse=lambda address, why: self.complaints.add("connection.refused", Peer(*address), why),
                clock=self.clock,
            )

    def _protocol(self, admission: Admission | None = None) -> "_Protocol":
        loop = asyncio.get_running_loop()
        accepted = functools.partial(self._accepted, shaken=admission)
        return _Protocol(asyncio.StreamReader(_READ_BYTES, loop), accepted, loop)

    @property
    def _has_tls(self) -> bool:
        return self.security is not None and self.security.settings.tls is not None

    def _begin_handshake(self, arrival: Arrival) -> None:
        task = asyncio.get_running_loop().create_task(
            self._shake_hands(arrival.socket, Peer(*arrival.address), arrival.admission)
        )
        self._shaking_hands.add(task)
        task.add_done_callback(self._shaking_hands.discard)

    def _admit(self, peer: Peer) -> Admission | None:
        """Return a slot for a connection; None: there is none, and the reason was logged."""
        found = self.admissions.enter(peer.host)
        if isinstance(found, Admission):
            return found
        self.complaints.add("connection.refused", peer, found)
        return None

    async def _shake_hands(self, accepted: socket.socket, peer: Peer, admission: Admission) -> None:
        """Do the TLS handshake of an accepted connection; :meth:`_accepted` continues it."""
        assert self.security is not None
        handed_over = False
        try:
            now_ms = self.clock.monotonic_ms()
            admission.begins(functools.partial(_shut, accepted), now_ms)
            left_s = admission.left_s(now_ms)
            context = await self.security.context(timeout_ms=int(left_s * 1000))
            handed_over = True  # from here on the event loop closes the socket
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: IntoBuffer(self._protocol(admission)),
                accepted,
                ssl=context,
                ssl_handshake_timeout=admission.left_s(self.clock.monotonic_ms()),
            )
        except (KjbodError, ssl.SSLError) as error:
            admission.leave()
            self.complaints.add("connection.refused", peer, f"TLS: {_words(error)}")
        except OSError as error:
            admission.leave()
            self.complaints.add("connection.refused", peer, f"no TLS handshake: {_reason(error)}")
        except BaseException:
            admission.leave()
            raise
        finally:
            if not handed_over:
                accepted.close()

    def _set_buffers(self, listening: int) -> None:
        """Set the buffers of a listening socket, which accepted connections inherit (``socket(7)``, ``tcp(7)``)."""
        wanted = {socket.SO_SNDBUF: self.limits.send_buffer_bytes, socket.SO_RCVBUF: self.limits.receive_buffer_bytes}
        with socket.socket(fileno=os.dup(listening)) as same:  # uvloop's has no setsockopt
            for option, size_bytes in wanted.items():
                if size_bytes >= 0:
                    same.setsockopt(socket.SOL_SOCKET, option, size_bytes)

    async def close(self) -> None:
        """Stop listening, end every connection and cancel handlers. Returns when all is done."""
        self.closing = True
        if self._listening is not None:
            self._listening.close()
        if self._handshakes is not None:
            self._handshakes.close()
        tasks = {*self._connections, *self._shaking_hands}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._listening is not None:
            await self._listening.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _accepted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shaken: Admission | None
    ) -> None:
        """Serve one connection; asyncio makes a task of this call. ``shaken``: slot that the connection got before its
        TLS handshake."""
        peer = _peer_of(writer)
        if self.closing:
            writer.transport.abort()
            return
        admission = shaken or self._admit(peer)
        if admission is None:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if shaken is None and admission.wait_ms:
                await asyncio.sleep(admission.wait_ms / 1000)
            if self.security is None:
                await _Session(self, reader, writer, peer, ServerLogin({}), admission).run()
            else:
                await self._secured(self.security, reader, writer, peer, admission)
            await self._flush_and_close(writer)
        except asyncio.CancelledError:
            pass  # by close(). The task ends here either way; asyncio 3.11 logs a cancelled one as an error
        finally:
            self._connections.discard(task)
            admission.leave()
            writer.transport.abort()  # no effect where it is closed already

    async def _secured(
        self,
        security: "ListenerSecurity",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
        admission: Admission,
    ) -> None:
        """Serve a connection whose client must authenticate."""
        tls = writer.get_extra_info("ssl_object")
        if tls is None and self._has_tls:
            raise AssertionError("a listener with TLS has a connection without")
        try:
            certificate = None if tls is None else tls.getpeercert(binary_form=True)
            shown = structs.replace(peer, principal=security.principal_of(certificate))
        except ValueError as error:
            self.complaints.add("connection.refused", peer, f"its certificate: {error}")
            return
        await _Session(self, reader, writer, shown, security.login(), admission, security).run()

    def make_room_for_answers(self) -> None:
        """Disconnect the slowest readers until unread answers are within their limit."""
        while self.unread.bytes > self.limits.max_unread_bytes and (slowest := self.unread.slowest()) is not None:
            self.unread.forget(slowest)
            slowest.cut_off(f"unread answers take more than {self.limits.max_unread_bytes} bytes together")

    async def _flush_and_close(self, writer: asyncio.StreamWriter) -> None:
        """Send the last answers; those that the client does not read in time are dropped."""
        writer.close()
        try:
            async with asyncio.timeout(self.limits.linger_timeout_ms / 1000):
                await writer.wait_closed()
        except OSError as error:  # the client has gone, or time is up
            _let_go(error)


class _Protocol(asyncio.StreamReaderProtocol):
    """Feeds a session's stream with data that has no immediate answer."""

    session: "_Session | None" = None
    """None before the session begins and after its end."""

    def data_received(self, data: bytes) -> None:
        if self.session is None or not self.session.answer_at_once(data):
            super().data_received(data)


class _Ended(Exception):  # noqa: N818 - not an error, the way out of a TaskGroup
    """The connection is over; nothing to log."""


class _Session:
    """A connection: a reader, a handler per request, and the limit that holds the reader back."""

    def __init__(
        self,
        server: Server,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: Peer,
        login: ServerLogin,
        admission: Admission,
        security: "ListenerSecurity | None" = None,
    ) -> None:
        self._server = server
        self._login = login
        self._admission = admission
        self._security = security
        self._patience: asyncio.Timeout | None = None
        if login.is_in:
            admission.logged_in()
        else:
            admission.begins(self._give_way, server.clock.monotonic_ms())
        self._limits = server.limits
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._machine = ServerConnection(
            server.apis,
            max_frame_bytes=server.limits.max_frame_bytes if login.is_in else LOGIN_BYTES_MAX,
            max_frame_bytes_of=server.limits.max_frame_bytes_of,
            decoded_at_once_bytes=_NOTHING_AT_ONCE,
        )
        self._rate = Rate(server.limits.max_requests_per_second)
        self._urgent_rate = Rate(URGENT_PER_SECOND)
        self._in_queue: Counter[Room] = Counter()
        """Bytes of large requests without an answer, per limit."""
        self._held_bytes = 0
        self._gate = asyncio.Semaphore(server.limits.max_in_flight)
        self._muted_until_ms = 0
        self._complained = False
        self._shortcut = None if server.shortcut is None or not login.is_in else server.shortcut(peer)
        self._loop = asyncio.get_running_loop()
        self._at_rest = False
        """Whether the session waits for the start of a request, and its stream is empty."""
        self._heard_s = 0.0
        """Time of the last received data, on the clock of the event loop."""

    async def run(self) -> None:
        """Serve until either side ends the connection. Raises nothing but cancellation."""
        protocol: object = self._writer.transport.get_protocol()
        protocol = protocol.protocol if isinstance(protocol, IntoBuffer) else protocol
        assert isinstance(protocol, _Protocol)
        protocol.session = self
        ended: BaseException | None = None
        try:
            try:
                await self._answer_requests()
            except BaseException as error:
                ended = error
                raise
        except* TimeoutError:
            if not self._login.is_in:
                self._complain(f"no login within {self._limits.login_timeout_ms} ms")
            _let_go(ended)
        except* (_Ended, ConnectionError):
            _let_go(ended)
        except* OSError as errors:
            self._complain(str(errors.exceptions[0]))
            _let_go(ended)
        finally:
            protocol.session = None
            self._machine.abandon()
            self._server.pending_bytes -= self._held_bytes
            for room, size_bytes in self._in_queue.items():  # of handlers that never began
                room.leave(size_bytes)
            self._in_queue.clear()
            self._server.unread.forget(self)

    async def _answer_requests(self) -> None:
        async with asyncio.timeout(self._login_timeout_s()) as patience, asyncio.TaskGroup() as handlers:
            self._patience = patience
            try:
                await self._read_requests(handlers)
            except ProtocolError as error:
                self._complain(str(error))
                linger_s = self._limits.linger_timeout_ms / 1000
                patience.reschedule(asyncio.get_running_loop().time() + linger_s)

    def _login_timeout_s(self) -> float | None:
        return None if self._login.is_in else self._admission.left_s(self._server.clock.monotonic_ms())

    def answer_at_once(self, data: bytes) -> bool:
        """Return whether ``data`` was a whole request and has its answer; otherwise nothing has happened yet."""
        self._at_rest = self._at_rest and self._answered_at_once(data)
        return self._at_rest

    def _answered_at_once(self, data: bytes) -> bool:
        server, transport = self._server, self._writer.transport
        if self._shortcut is None or len(data) > self._limits.max_frame_bytes or self._machine.outstanding:
            return False
        if server.closing or transport.is_closing() or transport.get_write_buffer_size():
            return False
        now_ms = server.clock.monotonic_ms()
        if not self._login.serves(now_ms):
            return False
        if now_ms < self._muted_until_ms or not (self._rate.has_place(now_ms) and self._urgent_rate.has_place(now_ms)):
            return False
        answer = self._shortcut(data)
        if answer is None:
            return False
        self._rate.take(now_ms)
        self._urgent_rate.take(now_ms)
        self._heard_s = self._loop.time()
        transport.write(answer)
        return True

    async def _read_requests(self, handlers: asyncio.TaskGroup) -> None:
        while data := await self._read():
            for slot in self._machine.receive(data):
                await self._gate.acquire()
                if self._login.takes_tokens:
                    assert slot.frame is not None
                    token, slot.frame = slot.frame, None
                    await self._work(token)
                    clock = self._server.clock
                    await self._reply(slot, self._login.take_token(token, clock.monotonic_ms(), clock.wall_ms()))
                    continue
                queued = self._admit_stranger(slot) if self._login.is_stranger else await self._admit(slot)
                if slot.request is None:
                    self._leave_queue(queued)
                    self._made(slot)
                    await self._flush()
                elif (reply := await self._greeted(slot.request)) is not None:
                    self._leave_queue(queued)
                    await self._reply(slot, reply)
                else:
                    handlers.create_task(self._handle(slot, queued))
            self._hold(self._machine.pending_bytes)
        if self._machine.pending_bytes:
            self._complain(f"closed in the middle of a request, {self._machine.pending_bytes} bytes of it had come")
        raise _Ended

    def _admit_stranger(self, slot: Slot) -> _Queued:
        """Decode a request of an unauthenticated client. Only requests that are allowed before a login are decoded, and
        they delay no other client."""
        assert slot.frame is not None
        require_before_login(slot.frame)
        self._machine.decode(slot)
        return _NOT_QUEUED

    async def _greeted(self, request: Request) -> Reply | None:
        """Handle a step of the login; None: the request is the handler's."""
        if self._security is not None and request.api_key in SASL_APIS:
            await self._security.ready(self._login.mechanism_of(request))
            if isinstance(request.message, SaslAuthenticateRequest):
                await self._work(request.message.auth_bytes)
        clock = self._server.clock
        return self._login.take(request, clock.monotonic_ms(), clock.wall_ms())

    async def _work(self, token: bytes) -> None:
        """Run the slow work of a SASL message."""
        if self._security is not None and (work := self._login.work(token)):
            await self._security.work(work)

    async def _reply(self, slot: Slot, reply: Reply) -> None:
        """Answer a step of the login. The connection of a refused client ends after it."""
        if reply.refused:
            self._complain(reply.refused)
            assert self._security is not None
            await asyncio.sleep(self._security.settings.refusal_delay_ms / 1000)  # slows down password guessing
        if isinstance(reply.message, bytes):
            if reply.refused:
                raise _Ended
            self._machine.answer_token(slot, reply.message)
        else:
            self._machine.answer(slot, reply.message)
        self._made(slot)
        await self._flush()
        if reply.refused:
            raise _Ended
        assert self._patience is not None
        if not self._login.is_in:
            # What is before it may take its time, and so its answer.
            if self._login.state is State.RENEWING and not self._machine.outstanding:
                self._patience.reschedule(self._loop.time() + self._limits.login_timeout_ms / 1000)
        elif self._login.user is not None:
            self._enter(self._login.user, self._patience)

    def _enter(self, user: str, patience: asyncio.Timeout) -> None:
        """Note that the client has logged in, perhaps again."""
        patience.reschedule(None)
        self._machine.allow(self._limits.max_frame_bytes)
        by_token = self._login.token_authenticated
        self._peer = structs.replace(self._peer, principal=f"User:{user}", token_authenticated=by_token)
        self._shortcut = None if self._server.shortcut is None else self._server.shortcut(self._peer)
        self._admission.logged_in()

    async def _admit(self, slot: Slot) -> _Queued:
        """Wait for the turn of a request, and decode it. Return the limit and bytes that it holds."""
        frame = slot.frame
        assert frame is not None
        server = self._server
        await self._wait_while_muted()
        now_ms = server.clock.monotonic_ms()
        if wait_ms := self._rate.take(now_ms):
            await asyncio.sleep(wait_ms / 1000)
        urgent = int.from_bytes(frame[:_API_KEY_BYTES]) in self._limits.urgent
        if not (urgent and self._urgent_rate.try_take(now_ms)):
            await server.pace.begin()
        if len(frame) <= DECODED_AT_ONCE_BYTES:
            self._machine.decode(slot)
            return _NOT_QUEUED
        self._hold(len(frame) + self._machine.pending_bytes)
        room, reader = (server.queued_urgent, server.urgent_reader) if urgent else (server.queued, server.reader)
        await room.enter(len(frame))
        queued = (room, len(frame))
        self._in_queue[room] += len(frame)
        try:
            if reader is None:
                self._machine.decode(slot)
            else:
                await asyncio.get_running_loop().run_in_executor(reader, self._machine.decode, slot)
        except ProtocolError:
            self._leave_queue(queued)
            raise
        return queued

    async def _wait_while_muted(self) -> None:
        """Delay the next request. A connection that would be muted for longer than the idle limit is closed."""
        wait_ms = self._muted_until_ms - self._server.clock.monotonic_ms()
        if wait_ms > 0:
            await asyncio.sleep(min(wait_ms, self._limits.idle_timeout_ms) / 1000)
            if wait_ms > self._limits.idle_timeout_ms:
                raise _Ended

    def _leave_queue(self, queued: _Queued) -> None:
        """Release the bytes of a large request that was answered, or never will be."""
        room, size_bytes = queued
        if room is not None and self._in_queue[room]:
            self._in_queue[room] -= size_bytes
            room.leave(size_bytes)

    def _give_way(self) -> None:
        self.cut_off("it has not logged in, and its place was needed")

    def cut_off(self, reason: str) -> None:
        """End the connection at once."""
        self._complain(reason)
        self._writer.transport.abort()

    def _hold(self, pending_bytes: int) -> None:
        """Count bytes that wait for the rest of their request, or for their turn. Those of an unauthenticated client
        are few, and take nothing from other clients."""
        if self._login.is_stranger:
            return
        self._server.pending_bytes += pending_bytes - self._held_bytes
        self._held_bytes = pending_bytes
        if self._server.pending_bytes > self._limits.max_pending_bytes:
            self._complain(f"unread requests take more than {self._limits.max_pending_bytes} bytes together")
            raise _Ended

    async def _read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        self._heard_s = self._loop.time()
        while True:
            heard_s, pending = self._heard_s, self._machine.pending_bytes
            timeout_ms = self._limits.stall_timeout_ms if pending else self._limits.idle_timeout_ms
            try:
                async with asyncio.timeout_at(heard_s + timeout_ms / 1000):
                    self._at_rest = not pending
                    return await self._reader.read(_READ_BYTES)
            except TimeoutError:
                if self._heard_s > heard_s:
                    continue  # something came, and was answered at once
                if pending:
                    self._complain(f"no more of a request for {timeout_ms} ms, {pending} bytes of it had come")
                    raise _Ended from None
                if not self._machine.outstanding:
                    raise _Ended from None
                self._heard_s = self._loop.time()
            finally:
                self._at_rest = False

    async def _handle(self, slot: Slot, queued: _Queued) -> None:
        try:
            await self._answer(slot)
        finally:
            self._leave_queue(queued)
        del slot  # neither it nor what it was made from waits for the client
        await self._flush()

    async def _answer(self, slot: Slot) -> None:
        request = slot.request
        assert request is not None
        try:
            message = await self._server.handler(request, self._peer)
            if message is None:
                raise _Ended
            if isinstance(message, EncodedResponse) and message.shared:
                await self._server.outlet.turn(len(message.frame))
            self._machine.answer(slot, message)
            if isinstance(message, EncodedResponse) and message.mute_ms:
                self._muted_until_ms = self._server.clock.monotonic_ms() + message.mute_ms
        except _Ended:
            raise
        except Exception as error:
            self._server.complaints.add_bug(self._peer, request)
            raise _Ended from error
        self._made(slot)

    def _made(self, slot: Slot) -> None:
        """Count an answer from now until the client has read it, including the wait for earlier answers."""
        assert slot.encoded is not None
        if self._writer.transport.is_closing():  # uvloop raises RuntimeError when it is written to
            raise _Ended
        self._server.unread.add(self, len(slot.encoded))
        self._server.make_room_for_answers()

    async def _flush(self) -> None:
        """Write the answers that may leave, wait until the client reads them, and allow as many new requests."""
        data, answers = self._machine.data_to_send()
        if not answers:
            return
        if self._writer.transport.is_closing():  # it was cut off just now
            raise _Ended
        self._writer.write(data)
        size_bytes = len(data)
        del data  # the transport has what has not left
        # Most answers are gone at once: a timer for each would cost more than the write.
        if self._writer.transport.get_write_buffer_size():
            await self._drain()
        self._server.unread.taken(self, size_bytes)
        for _ in range(answers):
            self._gate.release()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._limits.stall_timeout_ms / 1000):
                await self._writer.drain()
        except TimeoutError:
            self._complain(f"did not read its answers for {self._limits.stall_timeout_ms} ms")
            raise _Ended from None

    def _complain(self, reason: str) -> None:
        """Log a single line, however many handlers report the fault."""
        if not self._complained:
            self._complained = True
            self._server.complaints.add("connection.closed", self._peer, reason)


class _Complaints:
    """A log line for each faulty connection, up to a rate."""

    def __init__(self, clock: Clock, log: Logger) -> None:
        self._clock = clock
        self._log = log
        self._second = -1
        self._lines = 0
        self._suppressed = 0

    def add(self, event: str, peer: Peer, reason: str) -> None:
        """Log a peer's fault."""
        second = self._clock.monotonic_ms() // 1000
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= LOG_LINES_PER_SECOND:
            self._suppressed += 1
            return
        self._lines += 1
        more = {"suppressed": self._suppressed} if self._suppressed else {}
        self._suppressed = 0
        self._log.warning(event, peer=str(peer), reason=reason, **more)

    def add_bug(self, peer: Peer, request: Request) -> None:
        """Log a handler's fault, with its traceback."""
        self._log.exception("request.failed", peer=str(peer), api=request.api_key.name, version=request.version)


def _let_go(error: BaseException | None) -> None:
    """Drop the traceback of an exception: its frames refer to the session with its TLS state, and the session to the
    exception. Otherwise 100 KiB stay until a garbage collection."""
    if error is None:
        return
    for one in (*getattr(error, "exceptions", ()), error.__context__, error.__cause__):
        _let_go(one)
    error.__traceback__ = error.__context__ = error.__cause__ = None


def _shut(accepted: socket.socket) -> None:
    """End a connection whose socket belongs to the event loop."""
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_RDWR)


def _words(error: Exception) -> str:
    """Return the text of a TLS failure, without the place in OpenSSL's source."""
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return str(error) or "the client has gone"


def _peer_of(writer: asyncio.StreamWriter) -> Peer:
    with contextlib.suppress(TypeError, IndexError, ValueError):
        host, port = writer.get_extra_info("peername")[:2]
        return Peer(str(host), int(port))
    return Peer("unknown", 0)  # it was gone before we looked
