"""Requests to token and key endpoints over HTTP/1.1 (``HttpJwtRetriever``, jose4j's ``HttpsJwks``). Blocking code, to
run in a thread of its own: Python's HTTP client with limits of time and size.

Proxies and redirections are not used: they would carry a secret to a host that no file lists.
"""

import http.client
import io
import socket
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import urlsplit

from kjbod.clock import Clock, SystemClock
from kjbod.errors import KjbodError, LoginUnavailable
from kjbod.printable import printable
from kjbod.security.oauthbearer.keys import Endpoint
from kjbod.wire.disconnections import not_believed

if TYPE_CHECKING:
    from collections.abc import Buffer  # type: ignore[attr-defined]

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of an endpoint's answer."""
FILE_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a file with a token or with keys."""
_PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


def ask(
    endpoint: Endpoint,
    what: str,
    method: str,
    headers: Mapping[str, str],
    body: str | None,
    clock: Clock | None = None,
) -> tuple[int, bytes]:
    """Send a request, and return status and body of the answer.

    Args:
        endpoint: endpoint of the request.
        what: description of the endpoint, for messages.
        method: HTTP method.
        headers: headers of the request.
        body: body of the request; None: no body.
        clock: clock for the time limits.

    Raises:
        LoginUnavailable: no answer, or none in time.
        KjbodError: the endpoint's certificate is not trusted, a store cannot be used, or the answer is too large.
    """
    named, parts = f"{what} {endpoint.shown}", urlsplit(endpoint.url)
    try:
        status, found = _exchange(endpoint, method, headers, body, clock or SystemClock())
    except ssl.SSLCertVerificationError as error:
        raise KjbodError(str(not_believed(f"{parts.hostname} ({named})", error))) from None
    except TimeoutError:
        took = f"{endpoint.connect_timeout_ms} ms to connect, and {endpoint.read_timeout_ms} ms to read"
        raise LoginUnavailable(f"{named} did not answer in time: {took}") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise LoginUnavailable(f"{named} cannot be asked: {printable(reason, 200)}") from None
    if len(found) > ANSWER_BYTES_MAX:
        raise KjbodError(f"{named} answers more than {ANSWER_BYTES_MAX} bytes")
    return status, found


def _exchange(
    endpoint: Endpoint, method: str, headers: Mapping[str, str], body: str | None, clock: Clock
) -> tuple[int, bytes]:
    """Return status and body of the answer. A body that is too large is cut to one byte more than the limit."""
    parts = urlsplit(endpoint.url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme.lower()]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with _connected(endpoint, host, port) as sock:
        connection = http.client.HTTPConnection(host, port)
        connection.sock = cast("socket.socket", _Bounded(sock, clock, endpoint.read_timeout_ms))
        connection.request(method, path, None if body is None else body.encode(), dict(headers))
        response = connection.getresponse()
        found = response.read(ANSWER_BYTES_MAX + 1)
        if response.length and len(found) <= ANSWER_BYTES_MAX:
            raise http.client.IncompleteRead(b"", response.length)
        return response.status, found


def read(key: str, path: str) -> bytes:
    """Read a file that a key names.

    Raises:
        KjbodError: the file cannot be read, or is too large.
    """
    try:
        with open(path, "rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no path"
        raise KjbodError(f"{key}: {path}: {reason}: expected a file that can be read") from None
    if len(found) > FILE_BYTES_MAX:
        raise KjbodError(f"{key}: {path}: expected at most {FILE_BYTES_MAX} bytes")
    return found


def _connected(endpoint: Endpoint, host: str, port: int) -> socket.socket:
    sock = socket.create_connection((host, port), timeout=endpoint.connect_timeout_ms / 1000)
    if endpoint.tls is None:
        return sock
    from kjbod.security.contexts import client_context

    try:
        return client_context(endpoint.tls).wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


class _Bounded(io.RawIOBase):
    """Connection whose reads and writes share one time limit, however slowly the answer arrives. :mod:`http.client`
    uses it as a socket; the caller closes the real socket."""

    def __init__(self, sock: socket.socket, clock: Clock, timeout_ms: int) -> None:
        self._sock = sock
        self._clock = clock
        self._ends_ms = clock.monotonic_ms() + timeout_ms

    def sendall(self, data: bytes) -> None:
        self._limit()
        self._sock.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "Buffer") -> int:
        self._limit()
        return self._sock.recv_into(buffer)

    def close(self) -> None:
        """Do nothing: the HTTP client calls this before it has read the answer."""

    def _limit(self) -> None:
        left_ms = self._ends_ms - self._clock.monotonic_ms()
        if left_ms <= 0:
            raise TimeoutError
        self._sock.settimeout(left_ms / 1000)
