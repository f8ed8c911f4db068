"""The metrics listener (``kjbod.metrics.listener``): answers ``GET`` of ``/metrics``, ``/healthz`` and ``/readyz``.

A scrape takes a picture of the process on the event loop, which has to be quick and without I/O on a watched disk; the
text is made of it in a thread, since that takes some ms where there are many brokers.
"""

import asyncio
import contextlib
import platform
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kjbod import __version__
from kjbod.errors import StorageError
from kjbod.metrics.old_names import NEW_NAMES, with_old_names
from kjbod.metrics.process_series import families
from kjbod.metrics.vitals import ENDING, Vitals, answer
from kjbod.runtime.logging import get_logger
from kjbod.runtime.names import UnresolvedError, listening_addresses
from kjbod.usage import Usage

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_TIMEOUT_S: Final = 5.0
CONNECTIONS_MAX: Final = 16
METRICS: Final = b"/metrics"
PATHS: Final = (METRICS, b"/healthz", b"/readyz")

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
    """

    def __init__(
        self,
        take: Callable[[], T],
        metrics: Callable[[T], Iterable[Metric]],
        usage: Callable[[], Awaitable[Usage | None]] | None = None,
        vitals: Callable[[], Vitals] = Vitals,
    ) -> None:
        self._take = take
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
        """
        try:
            addresses = await listening_addresses(host, _log)
            self._server = await asyncio.start_server(self._serve, addresses, port, limit=REQUEST_BYTES_MAX)
        except UnresolvedError as error:
            raise MetricsListenerError(f"kjbod.metrics.listener={host}:{port}: {error}") from None
        except OSError as error:
            raise MetricsListenerError(
                f"kjbod.metrics.listener={host}:{port}: {error.strerror or error}: choose another port"
            ) from None

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(request.split(b"\r\n", 1)[0]))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that is slow, gone, or none
        except RuntimeError as error:  # uvloop, of a connection that has ended meanwhile; the listener's end
            _log.debug("metrics.connection", reason=str(error))
        finally:
            self._connections -= 1
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()

    async def _answer(self, request_line: bytes) -> bytes:
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


def _response(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
