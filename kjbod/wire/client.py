"""A Kafka client connection on asyncio.

No tasks: the event loop calls the protocol, the protocol resolves futures. So there is nothing that could leak when a
caller is cancelled or a connection is closed. A request that was cancelled keeps its place in the queue, and its answer
is thrown away when it comes.

A request that times out ends the connection, as in Kafka's ``NetworkClient``: answers come in order, so that nothing
behind it would come either.
"""

import asyncio
import contextlib
import errno
import os
import re
import ssl
from collections import deque
from typing import Any, Self, cast

import kjbod
from kjbod.clock import Clock
from kjbod.errors import ProtocolError, RemoteProtocolError
from kjbod.runtime.names import NAMES, Names, Resolved, UnresolvedError
from kjbod.wire import connection_setup
from kjbod.wire.connection import ClientConnection, Features
from kjbod.wire.frames import MAX_FRAME_BYTES, TLS_RECORDS
from kjbod.wire.messages import ApiKey, ApiVersionsResponse, RequestBody, ResponseBody, ResponseT

MAX_IN_FLIGHT = 64
"""Requests of one connection that may wait for answers at a time; further ones wait for their turn."""
_CLOSE_TIMEOUT_S = 1.0
TLS_QUESTION_TIMEOUT_MS = 700
"""How long a peer may take to show that it speaks TLS, connecting included."""


class Disconnected(ProtocolError):  # noqa: N818 - what happened, in Kafka's word
    """There is no connection (any more): refused, reset, closed by either side, or the peer sent garbage. Whether the
    peer acted on a request in flight is not known."""


class ForeignPeer(Disconnected):
    """The peer speaks another protocol than Kafka's in plain text: to try again is of no use."""


class RequestTimedOut(Disconnected):
    """No answer in time. The connection is closed."""


class Connection:
    """A connection that has agreed on versions. Made by :meth:`open`; may be used as an async context manager."""

    def __init__(self, transport: asyncio.Transport, protocol: "_ClientProtocol", clock: Clock, in_flight: int) -> None:
        self._transport = transport
        self._protocol = protocol
        self._clock = clock
        self._turn = asyncio.Semaphore(in_flight)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        clock: Clock,
        connect_timeout_ms: int = connection_setup.TIMEOUT_MS,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        ssl_context: ssl.SSLContext | None = None,
        names: Names = NAMES,
    ) -> Self:
        """Resolve, connect and agree on versions, all within ``connect_timeout_ms``.

        Raises:
            ForeignPeer: it speaks TLS, HTTP, or anything else that is not Kafka's protocol.
            Disconnected: no address (yet), refused, unreachable, closed, or no sensible answer.
            UnsupportedVersionError: the peer has no version of ApiVersions that kjbod has.
        """
        deadline_ms = clock.monotonic_ms() + connect_timeout_ms
        try:
            found = await names.resolve(host, timeout_ms=connect_timeout_ms)
        except UnresolvedError as error:
            raise Disconnected(str(error)) from None
        peer = f"{host}:{port}"
        machine = ClientConnection(client_id=client_id, software=_software(), max_frame_bytes=max_frame_bytes)
        protocol = _ClientProtocol(machine, peer)
        try:
            async with asyncio.timeout(max(1, deadline_ms - clock.monotonic_ms()) / 1000):
                transport = await _connect(found, port, protocol, ssl_context, host)
                try:
                    await _negotiate(machine, protocol)
                except BaseException as error:
                    transport.abort()
                    if ssl_context is None and isinstance(error, Disconnected):
                        await _require_no_tls(peer, protocol.address)
                    raise
        except TimeoutError:
            raise Disconnected(f"{peer} did not answer within {connect_timeout_ms} ms{_doubt(host, found)}") from None
        except OSError as error:
            raise Disconnected(f"cannot connect to {peer}: {_reason(error)}{_doubt(host, found)}") from None
        except RemoteProtocolError as error:
            raise Disconnected(f"{peer}: {error}") from error
        return cls(transport, protocol, clock, max_in_flight)

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version of each API that the peer offers, by API key."""
        return dict(self._protocol.machine.versions)

    @property
    def features(self) -> Features:
        """The features that the peer told of when the connection was opened."""
        return self._protocol.machine.features

    @property
    def peer(self) -> str:
        """``host:port`` as it was asked for."""
        return self._protocol.peer

    @property
    def closed(self) -> bool:
        """Whether no further request can be sent."""
        return self._protocol.lost.done() or self._transport.is_closing()

    def version_of(self, api_key: ApiKey) -> int:
        """The highest version that both sides know.

        Raises:
            UnsupportedVersionError: there is none.
        """
        return self._protocol.machine.version_of(api_key)

    async def request(
        self, message: RequestBody[ResponseT], *, timeout_ms: int, version: int | None = None
    ) -> ResponseT:
        """Send ``message`` in ``version``, the highest common one by default, and wait for its answer.

        Raises:
            UnsupportedVersionError: no common version, or the version lacks a field that is set. Nothing was sent.
            RequestTimedOut: no answer within ``timeout_ms``; the connection is closed.
            Disconnected: the connection is, or was, closed.
        """
        started_ms = self._clock.monotonic_ms()
        try:
            async with asyncio.timeout(timeout_ms / 1000), self._turn:
                await self._protocol.writable.wait()
                return cast("ResponseT", await self._protocol.exchange(message, version))
        except TimeoutError:
            waited_ms = self._clock.monotonic_ms() - started_ms
            error = RequestTimedOut(f"{self.peer} did not answer {message.API_KEY.name} within {waited_ms} ms")
            self._protocol.fail(error)
            raise error from None

    async def close(self) -> None:
        """Close the connection. Requests in flight fail with :class:`Disconnected`."""
        self._protocol.fail(Disconnected(f"the connection to {self.peer} was closed"))
        # a TLS peer that does not say goodbye, or does not read, is not waited for
        await asyncio.wait({self._protocol.lost}, timeout=_CLOSE_TIMEOUT_S)
        self._transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _reason(error: OSError) -> str:
    """The kernel's words for it: asyncio puts its own, without the reason, into ``strerror``."""
    if error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return error.strerror or str(error)


async def _connect(
    found: Resolved, port: int, protocol: "_ClientProtocol", ssl_context: ssl.SSLContext | None, host: str
) -> asyncio.Transport:
    """To the first address that takes the connection.

    Raises:
        OSError: of the last one; none does.
    """
    loop = asyncio.get_running_loop()
    server_hostname = None if ssl_context is None else host
    for number, address in enumerate(found.addresses, start=1):
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol, address, port, ssl=ssl_context, server_hostname=server_hostname
            )
        except OSError:
            if number == len(found.addresses):
                raise
        else:
            return transport
    raise OSError(errno.EADDRNOTAVAIL, "it has no address")


def _doubt(host: str, found: Resolved) -> str:
    """Words of doubt about addresses that are not new."""
    where = ", ".join(found.addresses)
    return f" (at {where}, its last known address: cannot resolve {host}: {found.doubt})" if found.doubt else ""


def _software() -> tuple[str, str]:
    """Name and version in the alphabet that KIP-511 allows."""
    return "kjbod", re.sub(r"[^a-zA-Z0-9.]", "-", kjbod.__version__).strip("-.") or "0"


async def _require_no_tls(peer: str, address: tuple[str, int] | None) -> None:
    """Ask a peer that closed the connection instead of an answer whether it waits for TLS: most servers say nothing to
    what is no TLS (asyncio and Kafka among them), and everything to a ClientHello.

    Raises:
        ForeignPeer: it speaks TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is trusted to what comes
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    if address is not None and await _first_bytes(address, hello.read(), len(TLS_RECORDS[0])) in TLS_RECORDS:
        raise _speaks_tls(peer)


def _speaks_tls(peer: str) -> ForeignPeer:
    return ForeignPeer(f"{peer} speaks TLS, and kjbod speaks PLAINTEXT alone: name a PLAINTEXT listener")


async def _first_bytes(address: tuple[str, int], question: bytes, count: int) -> bytes | None:
    """The first bytes that a server answers to ``question``; None: fewer, or not in time."""
    writer = None
    try:
        async with asyncio.timeout(TLS_QUESTION_TIMEOUT_MS / 1000):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(question)
            return await reader.readexactly(count)
    except (OSError, asyncio.IncompleteReadError):  # a TimeoutError is an OSError
        return None
    finally:
        if writer is not None:
            writer.transport.abort()


async def _negotiate(machine: ClientConnection, protocol: "_ClientProtocol") -> None:
    version: int | None = None
    while True:
        answer = await protocol.ask(*machine.hello(version))
        assert isinstance(answer, ApiVersionsResponse)
        again = machine.negotiated(answer)
        if again is None:
            return
        if again == version:
            raise RemoteProtocolError(f"the server offers ApiVersions {again} and refuses it")
        version = again


class _ClientProtocol(asyncio.Protocol):
    """Feeds the machine and resolves the futures of those who wait, in the order of their requests."""

    def __init__(self, machine: ClientConnection, peer: str) -> None:
        self.machine = machine
        self.peer = peer
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the transport is gone."""
        self.writable = asyncio.Event()
        self.writable.set()
        self._waiting: deque[asyncio.Future[ResponseBody]] = deque()
        self._transport: asyncio.Transport | None = None
        self._error: Disconnected | None = None
        self.address: tuple[str, int] | None = None
        """Of the peer, as numbers."""

    async def exchange(self, message: RequestBody[Any], version: int | None) -> ResponseBody:
        """The answer to ``message``."""
        if self._error is not None:
            raise Disconnected(str(self._error))
        return await self.ask(*self.machine.send(message, version))

    def ask(self, correlation_id: int, data: bytes) -> asyncio.Future[ResponseBody]:
        """Write ``data``, a request; the future is its answer."""
        del correlation_id  # answers come in order; the machine checks
        answer: asyncio.Future[ResponseBody] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._error is not None:
            answer.set_exception(self._error or Disconnected(f"{self.peer} is not connected"))
            return answer
        self._waiting.append(answer)
        self._transport.write(data)
        return answer

    def fail(self, error: Disconnected) -> None:
        """Close the transport; whoever waits gets ``error``. Only the first error counts."""
        if self._error is None:
            self._error = error
        if self._transport is not None:
            if self._transport.get_write_buffer_size():
                self._transport.abort()  # close() would wait until the peer has read everything
            else:
                self._transport.close()
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(type(error)(str(error)))
        self.writable.set()  # who waits to write learns of it

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.address = None if peer is None else (peer[0], peer[1])

    def data_received(self, data: bytes) -> None:
        if self._error is not None:
            return
        try:
            for response in self.machine.receive(data):
                answer = self._waiting.popleft()
                if not answer.done():  # else its caller has gone
                    answer.set_result(response.message)
        except RemoteProtocolError as error:
            if not self.machine.versions and data[: len(TLS_RECORDS[0])] in TLS_RECORDS:
                self.fail(_speaks_tls(self.peer))  # an alert, which a busy Kafka has the time to send before it closes
                return
            kind = Disconnected if self.machine.versions else ForeignPeer
            self.fail(kind(f"{self.peer} sent what it may not: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        why = "closed the connection" if exc is None else f"is gone: {exc}"
        self.fail(Disconnected(f"{self.peer} {why}"))
        self._transport = None
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()
