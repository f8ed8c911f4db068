"""The metrics listener (``kjbod.metrics.listener``): answers ``GET`` of ``/metrics``, ``/healthz`` and ``/readyz``.

A scrape takes a picture of the process on the event loop, which has to be quick and without I/O on a watched disk; the
text is made of it in a thread, since that takes some ms where there are many brokers.
"""

import asyncio
import contextlib
import platform
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kjbod import __version__
from kjbod.clock import SystemClock
from kjbod.errors import KjbodError, StorageError
from kjbod.metrics.old_names import NEW_NAMES, with_old_names
from kjbod.metrics.process_series import families
from kjbod.metrics.vitals import ENDING, Vitals, answer
from kjbod.runtime.logging import get_logger
from kjbod.runtime.names import UnresolvedError, listening_addresses
from kjbod.usage import Usage
from kjbod.wire.limits import Limits

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 16
HANDSHAKES: Final = Limits(
    max_connections=2 * CONNECTIONS_MAX,
    max_logging_in=CONNECTIONS_MAX,
    max_connection_creation_rate=50,
    login_timeout_ms=5_000,
)
"""Of connections with TLS until their handshake is done: each takes the event loop a millisecond."""
METRICS: Final = b"/metrics"
PATHS: Final = (METRICS, b"/healthz", b"/readyz")

if TYPE_CHECKING:
    from kjbod.metrics.web import Web
    from kjbod.wire.handshakes import Arrival, Handshakes

_log = get_logger()
T = TypeVar("T")


class MetricsListenerError(StorageError):
    """The metrics listener cannot be opened."""


class _Metrics(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


def render(metrics: Iterable[Metric]) -> bytes:
    """Metrics as Prometheus text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Metrics(metrics))
    return generate_latest(registry)


def build_info() -> Metric:
    """Return ``kjbod_build_info``; its value is always 1."""
    family = GaugeMetricFamily(
        "kjbod_build_info", "1; versions of kjbod and Python.", labels=["version", "python_version"]
    )
    family.add_metric([__version__, platform.python_version()], 1)
    return family


def complete(metrics: Iterable[Metric], usage: Usage | None, *, old_names: bool = True) -> Iterator[Metric]:
    """Return all families of a scrape: ``metrics``, and the families that every daemon has."""
    yield build_info()
    yield from with_old_names(metrics) if old_names else metrics
    if usage is not None:
        yield from families(usage)


class MetricsListener(Generic[T]):
    """Serves metrics, and whether the daemon works.

    Args:
        take: the picture of a scrape; on the event loop.
        metrics: what is made of it; in a thread.
        usage: reads what the processes use, for :mod:`kjbod.metrics.process_series`; None: they are not told.
        vitals: of this moment; on the event loop.
        web: TLS and logins; None: plain text for everybody.
    """

    def __init__(
        self,
        take: Callable[[], T],
        metrics: Callable[[T], Iterable[Metric]],
        usage: Callable[[], Awaitable[Usage | None]] | None = None,
        vitals: Callable[[], Vitals] = Vitals,
        web: "Web | None" = None,
    ) -> None:
        self._take = take
        self._web = web
        self._handshakes: Handshakes | None = None
        self._shaking_hands: set[asyncio.Task[None]] = set()
        self._vitals = vitals
        self._usage = usage
        self._metrics = metrics
        self._connections = 0
        self._closed = False
        self._server: asyncio.Server | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")

    @property
    def port(self) -> int:
        """The port of an open listener."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def open(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            MetricsListenerError: the address is taken or not ours, or has no address.
            KjbodError: a file of TLS or logins cannot be used; one line each.
        """
        if self._web is not None:
            await self._web.load()
        has_tls = self._web is not None and self._web.has_tls
        try:
            addresses = await listening_addresses(host, _log)
            self._server = await asyncio.start_server(
                self._serve, addresses, port, limit=REQUEST_BYTES_MAX, start_serving=not has_tls
            )
        except UnresolvedError as error:
            raise MetricsListenerError(f"kjbod.metrics.listener={host}:{port}: {error}") from None
        except OSError as error:
            raise MetricsListenerError(
                f"kjbod.metrics.listener={host}:{port}: {error.strerror or error}: choose another port"
            ) from None

        if has_tls:
            self._handshakes = self._accept(self._server.sockets)

    def _accept(self, listening: Iterable[socket.socket]) -> "Handshakes":
        """Take connections of which each has TLS as the files have it at that moment."""
        from kjbod.wire.admission import Admission, Admissions
        from kjbod.wire.handshakes import Handshakes

        clock = SystemClock()
        places = Admissions(HANDSHAKES, clock, secured=True)

        def admit(address: tuple[str, int]) -> Admission | None:
            found = places.enter(address[0])
            return found if isinstance(found, Admission) else None

        def begin(arrival: "Arrival") -> None:
            task = asyncio.get_running_loop().create_task(self._shake_hands(arrival))
            self._shaking_hands.add(task)
            task.add_done_callback(self._shaking_hands.discard)

        return Handshakes(listening, HANDSHAKES.listen_backlog, admit=admit, begin=begin, refuse=_refused, clock=clock)

    async def _shake_hands(self, arrival: "Arrival") -> None:
        """TLS on a connection that was accepted; its life goes on in :meth:`_serve`."""
        assert self._web is not None
        loop = asyncio.get_running_loop()
        is_ours = True
        try:
            context = await self._web.context(timeout_ms=HANDSHAKES.login_timeout_ms)
            reader = asyncio.StreamReader(REQUEST_BYTES_MAX, loop)
            is_ours = False  # from here on the socket is the event loop's to close
            await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, self._serve, loop),
                arrival.socket,
                ssl=context,
                ssl_handshake_timeout=REQUEST_TIMEOUT_S,
            )
        except (KjbodError, OSError) as error:  # those of TLS are among the latter
            _refused(arrival.address, str(error))
        finally:
            arrival.admission.leave()
            if is_ours:
                arrival.socket.close()

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._handshakes is not None:
            self._handshakes.close()
            self._handshakes = None
        for task in self._shaking_hands:
            task.cancel()
        if self._server is not None:
            self._server.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(*request.split(b"\r\n")))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that is slow, gone, or none
        except RuntimeError as error:  # uvloop, of a connection that has ended meanwhile; the listener's end
            _log.debug("metrics.connection", reason=str(error))
        finally:
            self._connections -= 1
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _answer(self, request_line: bytes, *headers: bytes) -> bytes:
        if self._web is not None and not await self._web.lets_in(headers, self._thread):
            return _response("401 Unauthorized", b"Unauthorized\n", "WWW-Authenticate: Basic\r\n")
        method, _, rest = request_line.partition(b" ")
        path, _, query = rest.partition(b" ")[0].partition(b"?")
        if method != b"GET":
            return _response("405 Method Not Allowed", b"")
        if path not in PATHS:
            return _response("404 Not Found", b"")
        try:
            if self._closed or path != METRICS:
                status, line = answer(path, ENDING if self._closed else self._vitals())
                return _response(status, line.encode())
            usage = None if self._usage is None else await self._usage()
            picture = self._take()
            text = await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: render(complete(self._metrics(picture), usage, old_names=query != NEW_NAMES))
            )
        except Exception as error:  # noqa: BLE001  a metric that cannot be made must not end what it tells of
            _log.error("metrics.failed", exc_info=error)
            return _response("500 Internal Server Error", b"")
        return _response("200 OK", text)


def _refused(address: tuple[str, int], reason: str) -> None:
    _log.debug("metrics.connection", host=address[0], reason=reason)


def _response(status: str, body: bytes, headers: str = "") -> bytes:
    fixed = f"Content-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return f"HTTP/1.1 {status}\r\n{fixed}{headers}\r\n".encode() + body
