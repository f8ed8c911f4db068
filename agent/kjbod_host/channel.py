"""Connection to the active controller, opened when needed (``NodeToControllerChannelManager``).

Who leads is not decided here: the metadata follower knows, and says so by :meth:`ControllerChannel.set_leader`. A
channel opens its connection with the first request, keeps it, and drops it when the leader changes, when it breaks, or
when its user has no use for it (NOT_CONTROLLER). Lifecycle and assignments have one each, as in a broker, so that a big
request never delays a heartbeat.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from msgspec import Struct

from kjbod.clock import Clock
from kjbod.errors import KjbodError
from kjbod.metadata.fetching import Leader
from kjbod.wire.client import Connection, Disconnected, RequestTimedOut
from kjbod.wire.connection_setup import ConnectionSetup
from kjbod.wire.messages import RequestBody, ResponseT

TIMEOUT_MAX_MS: Final = 30_000
"""Kafka's default of ``controller.socket.timeout.ms``."""
PAUSE_MS: Final = 500
"""A wait that ends this much too late shows that this process did not run for a time."""
Prepare = Callable[[Connection], RequestBody[ResponseT]]
"""Makes the request for the connection that it will go over: versions and features differ between controllers."""


class NoControllerError(Disconnected):
    """The active controller is not known."""


class Superseded(Disconnected):
    """The request is not needed any more, and was not sent."""


class Open(Protocol):
    """The signature of :meth:`Connection.open`, so that a simulation can give its own."""

    async def __call__(
        self, host: str, port: int, *, client_id: str, clock: Clock, connect_timeout_ms: int
    ) -> Connection: ...


class Patience(Struct, frozen=True):
    """Conditions under which a request waits longer than its timeout, because a new request would not be answered
    sooner.

    Attributes:
        longest_ms: from when it is sent; not longer, whatever is known.
        is_worth_it: asked each time that the timeout has passed: whether the controller still answers others.
    """

    longest_ms: int
    is_worth_it: Callable[[], bool]


class ControllerChannel:
    """Connection to the active controller.

    Args:
        client_id: the broker's id as text, as Kafka's brokers give it.
        clock: for the time that is left of a timeout.
        spawn: runs a coroutine in the daemon's TaskGroup; for connections to be closed.
        trouble: why no controller is known, as far as anybody knows; may be empty.
        setup: how long a connection may take to open.
        timeout_max_ms: ``controller.socket.timeout.ms``: how long one request may take at most.
        connect: opens a connection.
    """

    def __init__(
        self,
        *,
        client_id: str,
        clock: Clock,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        trouble: Callable[[], str] = lambda: "",
        setup: ConnectionSetup | None = None,
        timeout_max_ms: int = TIMEOUT_MAX_MS,
        connect: Open = Connection.open,
    ) -> None:
        self._client_id = client_id
        self._clock = clock
        self._spawn = spawn
        self._setup = setup or ConnectionSetup()
        self._timeout_max_ms = timeout_max_ms
        self._connect = connect
        self._leader: Leader | None = None
        self._trouble = trouble
        self._found = asyncio.Event()
        self._connection: Connection | None = None

    @property
    def leader(self) -> Leader | None:
        """Active controller, which gets the requests; None: not known."""
        return self._leader

    def set_leader(self, leader: Leader | None) -> None:
        """Set the active controller. A connection to another controller is closed; requests on that connection fail
        with :class:`Disconnected`."""
        if leader != self._leader:
            self._leader = leader
            self.forget()
        if leader is None:
            self._found.clear()
        else:
            self._found.set()

    def forget(self) -> None:
        """Close the connection; the next request opens a new connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._spawn(_close(connection))

    async def open_ahead(self, *, timeout_ms: int) -> None:
        """Open the connection to the known controller, so that no request waits for TLS and a login. The next request
        reports errors."""
        if self._leader is not None:
            with contextlib.suppress(KjbodError):
                await self._connected(self._leader, min(timeout_ms, self._timeout_max_ms))

    async def request(
        self,
        prepare: "Prepare[ResponseT]",
        *,
        timeout_ms: int,
        wanted: Callable[[], bool] = lambda: True,
        patience: Patience | None = None,
    ) -> ResponseT:
        """Send what ``prepare`` makes and wait for the answer, the time to connect included.

        Until it is sent, ``wanted`` is asked after each wait: a request whose place another one has taken, because
        another controller was found meanwhile, must not go out beside that one. With ``patience`` it may wait longer
        than ``timeout_ms`` once it is sent.

        Raises:
            Superseded: it is not wanted any more.
            NoControllerError: no controller was known in that time.
            Disconnected: no connection, or it broke, or no answer in time.
            UnsupportedVersionError: the controller has no version that can say this.
        """
        timeout_ms = min(timeout_ms, self._timeout_max_ms)
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        _require(wanted)
        leader = await self._known_leader(timeout_ms)
        _require(wanted)
        connection = await self._connected(leader, self._left_ms(deadline_ms))
        _require(wanted)
        message, left_ms = prepare(connection), self._left_ms(deadline_ms)
        if patience is None:
            return await connection.request(message, timeout_ms=left_ms)
        return await self._answered(connection, message, left_ms, patience)

    async def _answered(
        self, connection: Connection, message: RequestBody[ResponseT], timeout_ms: int, patience: Patience
    ) -> ResponseT:
        """Wait for the answer with ``patience``, unless the request was lost on its way. A new request over a new
        connection would go to the end of the controller's queue."""
        longest_ms = max(timeout_ms, min(patience.longest_ms, self._timeout_max_ms))
        asking = asyncio.ensure_future(connection.request(message, timeout_ms=longest_ms))
        begun_ms = due_ms = self._clock.monotonic_ms()
        try:
            while True:
                due_ms += timeout_ms
                if (await asyncio.wait({asking}, timeout=timeout_ms / 1000))[0]:
                    return asking.result()
                now_ms = self._clock.monotonic_ms()
                if now_ms - due_ms >= PAUSE_MS:  # this process stood still: the answer may lie in the socket
                    due_ms = now_ms
                elif now_ms - begun_ms >= longest_ms or connection.unheard_bytes or not patience.is_worth_it():
                    raise RequestTimedOut(f"no answer to {message.API_KEY.name} within {now_ms - begun_ms} ms")
        finally:
            asking.cancel()  # no effect where it is done

    def _left_ms(self, deadline_ms: int) -> int:
        return max(1, deadline_ms - self._clock.monotonic_ms())

    async def _known_leader(self, timeout_ms: int) -> Leader:
        if self._leader is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._found.wait()
        if self._leader is None:
            trouble = self._trouble()
            raise NoControllerError(f"no controller is known: {trouble}" if trouble else "no controller is known")
        return self._leader

    async def _connected(self, leader: Leader, timeout_ms: int) -> Connection:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        # No lock: a request to a new leader must not wait until the attempt to reach the old one has timed out.
        with self._setup.attempt((leader.host, leader.port)) as setup_ms:
            connection = await self._connect(
                leader.host,
                leader.port,
                client_id=self._client_id,
                clock=self._clock,
                connect_timeout_ms=min(timeout_ms, setup_ms),
            )
        if leader != self._leader:
            self._spawn(_close(connection))
            raise Disconnected("the controller changed while the connection was being opened")
        if self._connection is not None and not self._connection.closed:
            self._spawn(_close(connection))
            return self._connection
        self._connection = connection
        return connection


def _require(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise Superseded("another request took its place before it was sent")


async def _close(connection: Connection) -> None:
    with contextlib.suppress(Disconnected):
        await connection.close()
