"""A Kafka client connection on asyncio.

There are no tasks: the event loop calls the protocol, and the protocol resolves futures. So a cancelled caller or a
closed connection leaks nothing. A cancelled request keeps its place in the queue, and its answer is dropped when it
arrives.

A request that times out ends the connection, as in Kafka's ``NetworkClient``: answers arrive in order, so later answers
would not arrive either.

A login with a limited time (KIP-368) is renewed before the first request after 85 % of that time. No other request is
sent during the renewal: between SaslHandshake and the last SaslAuthenticate a server accepts nothing else.
"""

import asyncio
import contextlib
import errno
import fcntl
import functools
import os
import re
import socket
import ssl
import struct
import sys
import termios
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, Self, cast

import kjbod
from kjbod.clock import Clock
from kjbod.errors import RemoteProtocolError, UnsupportedVersionError
from kjbod.runtime.names import NAMES, Names, Resolved, UnresolvedError
from kjbod.wire import connection_setup
from kjbod.wire.connection import ClientConnection, Features
from kjbod.wire.disconnections import (
    WHERE,
    AuthenticationFailed,
    ConnectTimedOut,
    Disconnected,
    ForeignPeer,
    RequestTimedOut,
    not_believed,
    speaks_tls,
)
from kjbod.wire.foreign_peers import TLS_QUESTION_TIMEOUT_MS, require_no_tls
from kjbod.wire.frames import MAX_FRAME_BYTES, TLS_RECORDS
from kjbod.wire.login import context_of, log_in, mechanisms
from kjbod.wire.messages import ApiKey, ApiVersionsResponse, RequestBody, ResponseBody, ResponseT
from kjbod.wire.tls_reading import IntoBuffer

if TYPE_CHECKING:
    from kjbod.security.channel import Security

__all__ = [
    "TLS_QUESTION_TIMEOUT_MS",
    "AuthenticationFailed",
    "ConnectTimedOut",
    "Connection",
    "Disconnected",
    "ForeignPeer",
    "RequestTimedOut",
    "opened_with",
]

GREETING_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of an answer of an unknown peer: versions take some kilobytes."""
MAX_IN_FLIGHT = 64
"""Maximum requests of one connection that wait for answers; further ones wait to be sent."""
_CLOSE_TIMEOUT_S = 1.0
_RENEWED_AFTER_MS: Final = 1_100
"""A server accepts no second login within a second (``KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``)."""
_RENEWED_AT: Final = 0.85
"""Fraction of a session's time after which it is renewed
(``ReauthenticationInfo.calcCompletionTimesAndReturnSessionLifetimeMs``, at the earliest)."""


class Connection:
    """A connection that has agreed on versions. Made by :meth:`open`; may be used as an async context manager."""

    def __init__(
        self,
        transport: asyncio.Transport,
        protocol: "_ClientProtocol",
        clock: Clock,
        in_flight: int,
        security: "Security | None" = None,
        session_ms: int = 0,
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._clock = clock
        self._turn = asyncio.Semaphore(in_flight)
        self._security = security
        self._renewing = asyncio.Lock()
        self._closed_here = False
        self.logins = 0
        """Number of login renewals."""
        self._renew_at_ms = self._renewed_at_ms(session_ms)

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
        security: "Security | None" = None,
        address: str | None = None,
        names: Names = NAMES,
    ) -> Self:
        """Resolve, connect, shake hands, agree on versions and log in, all within ``connect_timeout_ms``.

        If ``address`` is given, connect to it; ``host`` is then only the name that the certificate must have.

        Raises:
            AuthenticationFailed: one side does not trust the other.
            ForeignPeer: the peer speaks another protocol: TLS against plain text, HTTP, or anything else.
            Disconnected: no address (yet), refused, unreachable, closed, or no valid answer.
            UnsupportedVersionError: the peer has no version of ApiVersions that kjbod has.
        """
        deadline_ms = clock.monotonic_ms() + connect_timeout_ms
        try:
            found = await names.resolve(address or host, timeout_ms=connect_timeout_ms)
        except UnresolvedError as error:
            raise Disconnected(str(error)) from None
        peer = f"{host}:{port}"
        greeting_bytes = min(max_frame_bytes, GREETING_BYTES_MAX)
        machine = ClientConnection(client_id=client_id, software=_software(), max_frame_bytes=greeting_bytes, peer=peer)
        context: ssl.SSLContext | None = None
        protocol = _ClientProtocol(machine, peer)
        try:
            async with asyncio.timeout(max(1, deadline_ms - clock.monotonic_ms()) / 1000):
                context = await context_of(security, connect_timeout_ms)
                transport = await _connect(found, port, protocol, context, host)
                try:
                    await _negotiate(machine, protocol)
                    session_ms = 0 if security is None else await log_in(protocol, security)
                    machine.allow(max_frame_bytes)
                except BaseException as error:
                    transport.abort()
                    if context is None and isinstance(error, Disconnected) and not protocol.answered:
                        await require_no_tls(peer, protocol.address)
                    if type(error) is Disconnected and not protocol.answered and context is not None:
                        raise Disconnected(f"{error}{_of_our_certificate(security)}") from None
                    raise
        except TimeoutError:
            words = f"{peer} did not answer within {connect_timeout_ms} ms{_doubt(host, found)}"
            raise ConnectTimedOut(words) from None
        except ssl.SSLError as error:
            raise not_believed(peer, error) from None
        except OSError as error:
            if context is not None and isinstance(error, ConnectionError):
                left_ms = min(TLS_QUESTION_TIMEOUT_MS, deadline_ms - clock.monotonic_ms())
                await cls._require_no_plain_text(peer, (found.addresses[-1], port), clock, max(1, left_ms))
            raise Disconnected(f"cannot connect to {peer}: {_reason(error)}{_doubt(host, found)}") from None
        except RemoteProtocolError as error:
            raise Disconnected(f"{peer}: {error}") from error
        return cls(transport, protocol, clock, max_in_flight, security, session_ms)

    @classmethod
    async def _require_no_plain_text(cls, peer: str, address: tuple[str, int], clock: Clock, timeout_ms: int) -> None:
        """Check whether a peer that broke off the TLS handshake answers in plain text.

        Raises:
            ForeignPeer: it does.
        """
        plain = ""
        with contextlib.suppress(Disconnected, UnsupportedVersionError):
            async with await cls.open(*address, client_id="kjbod", clock=clock, connect_timeout_ms=timeout_ms):
                plain = f"{peer} speaks plain text, and it was asked in TLS: {WHERE}"
        if plain:
            raise ForeignPeer(plain)

    @property
    def versions(self) -> dict[int, tuple[int, int]]:
        """Lowest and highest version of each API that the peer offers, by API key."""
        return dict(self._protocol.machine.versions)

    @property
    def features(self) -> Features:
        """The features that the peer reported when the connection was opened."""
        return self._protocol.machine.features

    @property
    def peer(self) -> str:
        """``host:port`` as requested."""
        return self._protocol.peer

    @property
    def closed(self) -> bool:
        """Whether the connection is closed for further requests."""
        return self._protocol.lost.done() or self._transport.is_closing()

    @property
    def unheard_bytes(self) -> int:
        """Bytes of requests that the peer's kernel has not acknowledged (``SIOCOUTQ``, tcp(7)). If any remain after
        seconds, they were lost on the way, or the host is gone. A busy or frozen process does not matter: its kernel
        acknowledges them."""
        return self._protocol.unheard_bytes

    def version_of(self, api_key: ApiKey) -> int:
        """Return the highest common version.

        Raises:
            UnsupportedVersionError: no common version.
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
                if self._renew_at_ms is not None:
                    await self._renew_login()
                return cast("ResponseT", await self._protocol.exchange(message, version))
        except TimeoutError:
            waited_ms = self._clock.monotonic_ms() - started_ms
            error = RequestTimedOut(f"{self.peer} did not answer {message.API_KEY.name} within {waited_ms} ms")
            self._protocol.fail(error)
            raise error from None
        except Disconnected:
            unanswered = self._protocol.answered <= self._protocol.greetings
            if unanswered and self._security_has_no_login and not self._closed_here:
                await self._require_no_sasl()
            raise

    @property
    def _security_has_no_login(self) -> bool:
        return self._security is None or self._security.settings.login is None

    async def _require_no_sasl(self) -> None:
        """Check whether a peer that closed the connection at the first request requires a login. Servers with SASL
        close such connections (``SaslServerAuthenticator``).

        Raises:
            ForeignPeer: the peer requires SASL.
        """
        offered: tuple[str, ...] = ()
        at, host = self._protocol.address, self.peer.rpartition(":")[0]
        if at is not None:
            with contextlib.suppress(Disconnected, UnsupportedVersionError):
                async with await Connection.open(
                    host,
                    at[1],
                    address=at[0],
                    client_id="kjbod",
                    clock=self._clock,
                    connect_timeout_ms=TLS_QUESTION_TIMEOUT_MS,
                    security=self._security,
                ) as connection:
                    offered = await mechanisms(connection._protocol)
        if offered:
            raise ForeignPeer(f"{self.peer} asks for SASL ({', '.join(offered)}), and it was asked without: {WHERE}")

    def _renewed_at_ms(self, session_ms: int) -> int | None:
        """Return the monotonic time at which the login must be renewed; None: it is valid as long as the connection."""
        if session_ms <= 0:
            return None
        return self._clock.monotonic_ms() + max(_RENEWED_AFTER_MS, int(session_ms * _RENEWED_AT))

    async def _renew_login(self) -> None:
        """Log in again if it is time; other requests wait."""
        async with self._renewing:
            if self._renew_at_ms is None or self._clock.monotonic_ms() < self._renew_at_ms:
                return
            assert self._security is not None
            try:
                self._renew_at_ms = self._renewed_at_ms(await log_in(self._protocol, self._security))
                self.logins += 1
            except BaseException as error:  # a partial login is no login
                broken = Disconnected(f"the login at {self.peer} was not renewed")
                self._protocol.fail(error if isinstance(error, Disconnected) else broken)
                raise

    async def close(self) -> None:
        """Close the connection. Requests in flight fail with :class:`Disconnected`."""
        self._closed_here = True
        self._protocol.fail(Disconnected(f"the connection to {self.peer} was closed"))
        # do not wait for a TLS peer that does not close its side, or does not read
        await asyncio.wait({self._protocol.lost}, timeout=_CLOSE_TIMEOUT_S)
        self._transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _reason(error: OSError) -> str:
    """Return the kernel's text for an error: asyncio puts its own text, without the reason, into ``strerror``."""
    if error.errno and not isinstance(error, ssl.SSLError):
        return os.strerror(error.errno)
    return error.strerror or str(error)


def _of_our_certificate(security: "Security | None") -> str:
    """Return a hint about our certificate if a server closed the connection right after the TLS handshake: many do that
    to a client whose certificate they refuse."""
    tls = None if security is None else security.settings.tls
    if security is None or tls is None:
        return ""
    if tls.keystore is None:
        return ": does it want a certificate of ours (ssl.keystore.location)?"
    until = f", valid until {security.expires_at:%Y-%m-%d}" if security.expires_at else ""
    return f" right behind the TLS handshake: does it believe our certificate ({tls.keystore.key}{until})?"


def opened_with(security: "Security") -> "functools.partial[Coroutine[Any, Any, Connection]]":
    """Return :meth:`Connection.open` with this security, for repeated use."""
    return functools.partial(Connection.open, security=security)


async def _connect(
    found: Resolved, port: int, protocol: "_ClientProtocol", ssl_context: ssl.SSLContext | None, host: str
) -> asyncio.Transport:
    """Connect to the first address that accepts.

    Raises:
        OSError: no address accepts; the error is that of the last one.
    """
    loop = asyncio.get_running_loop()
    server_hostname = None if ssl_context is None else host
    goodbye_s = None if ssl_context is None else _CLOSE_TIMEOUT_S  # a hung peer does not close its side
    for number, address in enumerate(found.addresses, start=1):
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol if ssl_context is None else IntoBuffer(protocol),
                address,
                port,
                ssl=ssl_context,
                server_hostname=server_hostname,
                ssl_shutdown_timeout=goodbye_s,
            )
        except OSError:
            if number == len(found.addresses):
                raise
        else:
            return transport
    raise OSError(errno.EADDRNOTAVAIL, "it has no address")


def _doubt(host: str, found: Resolved) -> str:
    """Return a hint that the addresses are not new."""
    where = ", ".join(found.addresses)
    return f" (at {where}, its last known address: cannot resolve {host}: {found.doubt})" if found.doubt else ""


def _software() -> tuple[str, str]:
    """Return name and version in the alphabet that KIP-511 allows."""
    return "kjbod", re.sub(r"[^a-zA-Z0-9.]", "-", kjbod.__version__).strip("-.") or "0"


async def _negotiate(machine: ClientConnection, protocol: "_ClientProtocol") -> None:
    version: int | None = None
    while True:
        answer = await protocol.ask(*machine.hello(version))
        assert isinstance(answer, ApiVersionsResponse)
        protocol.greetings += 1
        again = machine.negotiated(answer)
        if again is None:
            return
        if version is not None:  # whatever it offers now, or it would be asked without end
            raise RemoteProtocolError(f"it offers ApiVersions {version} and refuses it")
        version = again


class _ClientProtocol(asyncio.Protocol):
    """Feeds the state machine and resolves the waiting futures in the order of their requests."""

    def __init__(self, machine: ClientConnection, peer: str) -> None:
        self.machine = machine
        self.peer = peer
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the transport is closed."""
        self.writable = asyncio.Event()
        self.writable.set()
        self._waiting: deque[asyncio.Future[ResponseBody]] = deque()
        self._transport: asyncio.Transport | None = None
        self._error: Disconnected | None = None
        self.address: tuple[str, int] | None = None
        """Address and port of the peer."""
        self.answered = 0
        """Number of answers."""
        self.greetings = 0
        """Number of answers to the requests that open a connection."""

    async def exchange(self, message: RequestBody[Any], version: int | None) -> ResponseBody:
        """Return the answer to ``message``."""
        if self._error is not None:
            raise type(self._error)(str(self._error))
        return await self.ask(*self.machine.send(message, version))

    def ask(self, correlation_id: int, data: bytes) -> asyncio.Future[ResponseBody]:
        """Write the request ``data``, and return a future of its answer."""
        del correlation_id  # answers come in order; the machine checks
        answer: asyncio.Future[ResponseBody] = asyncio.get_running_loop().create_future()
        if self._transport is None or self._error is not None:
            answer.set_exception(self._error or Disconnected(f"{self.peer} is not connected"))
            return answer
        self._waiting.append(answer)
        self._transport.write(data)
        return answer

    def fail(self, error: Disconnected) -> None:
        """Close the transport; waiting callers get ``error``. Only the first error counts."""
        if self._error is None:
            self._error = error
        if self._transport is not None:
            if isinstance(error, RequestTimedOut):
                self._forget_unsent()
            if isinstance(error, RequestTimedOut) or self._transport.get_write_buffer_size():
                self._transport.abort()  # close() would wait until the peer has read everything
            else:
                self._transport.close()
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(type(error)(str(error)))
        self.writable.set()  # wakes callers that wait to write

    @property
    def unheard_bytes(self) -> int:
        assert self._transport is not None
        found = self._transport.get_extra_info("socket")
        waits = self._transport.get_write_buffer_size()
        if found is None or self._transport.is_closing():
            return waits
        count = bytearray(4)
        with contextlib.suppress(OSError):
            fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, count)
        return waits + int.from_bytes(count, sys.byteorder)

    def _forget_unsent(self) -> None:
        """Make the kernel drop the rest of an abandoned request: it might arrive a minute later, when its action is no
        longer wanted."""
        assert self._transport is not None
        found = self._transport.get_extra_info("socket")
        if found is not None:
            with contextlib.suppress(OSError):
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

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
                self.answered += 1
                if not answer.done():  # otherwise its caller has gone
                    answer.set_result(response.message)
        except RemoteProtocolError as error:
            if not self.machine.versions and data[: len(TLS_RECORDS[0])] in TLS_RECORDS:
                self.fail(speaks_tls(self.peer))  # a TLS alert, which a busy Kafka has time to send before it closes
                return
            kind = Disconnected if self.machine.versions else ForeignPeer
            self.fail(kind(f"{self.peer} sent what it may not: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None  # asyncio's TLS transport cannot be used any more
        if isinstance(exc, ssl.SSLError):
            self.fail(not_believed(self.peer, exc))
        else:
            why = "closed the connection" if exc is None else f"is gone: {exc}"
            self.fail(Disconnected(f"{self.peer} {why}"))
        if not self.lost.done():
            self.lost.set_result(None)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()
