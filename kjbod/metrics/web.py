"""The web configuration file of the metrics listener, as it is now (``kjbod.metrics.web.config.file``).

The file and the certificates may be replaced at any time. Each connection looks, once a second at most and in a thread
of its own; what cannot be used is logged once, and the settings from before stay.
"""

import asyncio
import base64
import binascii
import contextlib
import os
import ssl
from collections.abc import Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from kjbod.clock import Clock, SystemClock
from kjbod.config.paths import is_below
from kjbod.errors import ConfigError, KjbodError
from kjbod.metrics.web_settings import FILE_BYTES_MAX, WebSettings, read_web_settings
from kjbod.runtime.logging import get_logger
from kjbod.security.aside import in_thread, on_this_loop
from kjbod.security.certificates import Certificate
from kjbod.security.channel import PATIENCE_MS, Security
from kjbod.security.contexts import files_of, server_context
from kjbod.security.keys import ChannelSettings
from kjbod.security.listener import FRESH_MS

KEY: Final = "kjbod.metrics.web.config.file"
START_TIMEOUT_S: Final = 10.0
LOGINS_KEPT_MAX: Final = 16
"""Logins that were good: a scraper's is not computed again each time."""
_log = get_logger()


class Web:
    """TLS and logins of a listener, from a file that may change.

    Args:
        path: of the file.
        watched: directories below which none of the files may be: a thread that waits for a disk that hangs would keep
            the process.
        clock: the time.

    Attributes:
        path: of the file.
        settings: of the file as it was last read.
    """

    def __init__(self, path: str, watched: Sequence[str] = (), clock: Clock | None = None) -> None:
        self.path = path
        self._watched = watched
        self._clock = clock or SystemClock()
        self.settings = WebSettings()
        self._security = Security()
        self._content = b""
        self._failure = ""
        self._looked_ms = 0
        self._under_way: Future[None] | None = None
        self._good: dict[bytes, None] = {}

    async def load(self) -> None:
        """Read the file and the certificates, for a start.

        Raises:
            KjbodError: one cannot be used, or not read in time; one line each.
        """
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await on_this_loop(in_thread(self._read))
        except TimeoutError:
            raise KjbodError(f"{KEY}={self.path}: not read within {START_TIMEOUT_S:.0f} s") from None
        self._looked_ms = self._clock.monotonic_ms()

    @property
    def has_tls(self) -> bool:
        """Whether the listener speaks TLS; decided by the first :meth:`load`."""
        return self.settings.tls is not None

    @property
    def certificate(self) -> Certificate | None:
        """Certificate of the listener, with the reason why changed files are not in use; None: it has no TLS."""
        found = self._security.certificate
        return replace(found, not_renewed=self._failure) if found is not None and self._failure else found

    async def look(self, *, timeout_ms: int) -> None:
        """Find out whether a file has changed.

        Raises:
            KjbodError: none of what the certificate's files were can be used.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= FRESH_MS and (self._under_way is None or self._under_way.done()):
            self._looked_ms = now_ms
            self._under_way = in_thread(self._read_again)
        if self._under_way is not None and not self._under_way.done():
            await asyncio.wait([on_this_loop(self._under_way)], timeout=min(timeout_ms, PATIENCE_MS) / 1000)
        await self._security.look(timeout_ms=timeout_ms)

    async def context(self, *, timeout_ms: int) -> ssl.SSLContext:
        """TLS as the files have it now.

        Raises:
            KjbodError: as :meth:`look`.
        """
        await self.look(timeout_ms=timeout_ms)
        context = await self._security.context(timeout_ms=timeout_ms)
        assert context is not None, "a listener with TLS keeps it"
        return context

    async def lets_in(self, headers: Sequence[bytes], executor: Executor) -> bool:
        """Whether a request is that of a user, or nobody has to log in.

        Args:
            headers: lines of the request.
            executor: computes the hash of a login that was not good before.
        """
        with contextlib.suppress(KjbodError):  # of the certificate, which this connection has
            await self.look(timeout_ms=PATIENCE_MS)
        settings = self.settings
        if not settings.users:
            return True
        login = _login(headers)
        if login is None:
            return False
        digest = settings.digest(*login)
        if digest not in self._good:
            if not await asyncio.get_running_loop().run_in_executor(executor, settings.knows, *login):
                return False
            self._good[digest] = None
            if len(self._good) > LOGINS_KEPT_MAX:
                del self._good[next(iter(self._good))]
        return True

    def _read_again(self) -> None:
        failure = ""
        try:
            self._read()
        except KjbodError as error:
            failure = str(error)
        if failure and failure != self._failure:
            _log.warning("security.not.renewed", reason=failure)
        self._failure = failure

    def _read(self) -> None:
        """Take other settings, when all of them can be used.

        Raises:
            KjbodError: they cannot.
        """
        try:
            with Path(self.path).open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(f"{KEY}={self.path}: {error.strerror}: expected a readable file") from None
        if len(content) > FILE_BYTES_MAX:
            raise ConfigError(f"{KEY}={self.path}: expected at most {FILE_BYTES_MAX} bytes")
        if content == self._content and self._security.settings.tls == self.settings.tls:
            return
        settings, security = read_web_settings(content, os.path.abspath(self.path)), self._security  # noqa: PTH100
        if self._content and (settings.tls is None) != (self.settings.tls is None):
            raise ConfigError(f"{KEY}={self.path}: TLS is switched on or off by a restart alone")
        if self.settings.users and not settings.users:
            raise ConfigError(f"{KEY}={self.path}: logins are switched off by a restart alone")
        self._require_elsewhere(settings)
        if settings.tls != self.settings.tls:
            security = Security(ChannelSettings("SSL", settings.tls), make=server_context, fresh_ms=FRESH_MS)
            security.load()
        self.settings, self._security, self._content = settings, security, content

    def _require_elsewhere(self, settings: WebSettings) -> None:
        for path in (self.path, *(() if settings.tls is None else files_of(settings.tls))):
            for inside in self._watched:
                if is_below(os.path.abspath(path), inside):  # noqa: PTH100  the text alone
                    raise ConfigError(f"{KEY}: {path}: expected a file outside the disks that are watched")


def _login(headers: Sequence[bytes]) -> tuple[str, bytes] | None:
    """Name and password of basic authentication (RFC 7617); None: there are none, or there is more than one header."""
    named = [value for name, _, value in (line.partition(b":") for line in headers) if name.lower() == b"authorization"]
    scheme, _, given = (named[0].strip() if len(named) == 1 else b"").partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        name, colon, password = base64.b64decode(given.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None
