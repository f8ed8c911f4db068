"""Security of connections to one kind of server: TLS from files that may change, and logins that may have to be
repeated.

Files are read in a thread, never on the event loop: they may be on a disk that hangs. While files cannot be read, or
are half written, the last good certificates stay in use.
"""

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog

from kjbod.clock import Clock, SystemClock, system_random
from kjbod.errors import KjbodError
from kjbod.security.aside import Aside, T, in_thread, on_this_loop
from kjbod.security.certificates import Certificate, Certificates
from kjbod.security.keys import PLAIN_TEXT, ChannelSettings
from kjbod.security.tls_keys import Tls

if TYPE_CHECKING:
    import random

    from kjbod.security.kerberos_login import Tickets
    from kjbod.security.oauthbearer.keys import TokenSettings
    from kjbod.security.oauthbearer.login import Tokens
    from kjbod.security.sasl import ClientMechanism

PATIENCE_MS: Final = 100
"""Time in which files that were read before are checked again. The limit is short because a fence waits for it."""
FAILED_FOR_MS: Final = 60_000
"""After this time, files that could not be used are read again even if they look unchanged."""
EXPIRES_SOON: Final = timedelta(days=30)
"""A certificate of ours whose end is nearer than this is logged."""
NAMED_EVERY_MS: Final = 24 * 3_600_000
"""Interval between two log lines about such a certificate."""
LOOK_INTERVAL_S: Final = 3600.0
LOOK_TIMEOUT_MS: Final = 60_000
_NONCE_BYTES: Final = 24
_log = structlog.get_logger("kjbod.security")

Stamp = tuple[tuple[int, int, int, int, int] | None, ...]
"""Device, inode, size and both times of change of each file; None: the file does not exist."""


class Security:
    """Security of the connections to one kind of server.

    Args:
        settings: settings of the connections.
        rng: for nonces.
        make: makes the TLS context and the end of its certificate from the settings; blocks.
        clock: tells how long certificates are valid.
        fresh_ms: time after a check of the files in which they are not checked again.

    Attributes:
        expires_at: end of our own certificate's validity; None: no certificate, or not read yet.
    """

    def __init__(
        self,
        settings: ChannelSettings = PLAIN_TEXT,
        rng: "random.Random | None" = None,
        make: Callable[[Tls], ssl.SSLContext] | None = None,
        clock: Clock | None = None,
        fresh_ms: int = 0,
    ) -> None:
        self.settings = settings
        self.expires_at: datetime | None = None
        self._rng = rng or system_random()
        self._make = make or _client_context
        self._clock = clock or SystemClock()
        self._fresh_ms = fresh_ms
        self._looked_ms: int | None = None
        self._context: ssl.SSLContext | None = None
        self._stamp: Stamp | None = None
        self._under_way: Future[ssl.SSLContext] | None = None
        self._failed_stamp: Stamp | None = None
        self._failure = ""
        self._failed_ms = 0
        self._named_ms: int | None = None
        self._aside: Aside | None = None
        self._tickets: Tickets | None = None
        self._tokens: Tokens | None = None

    def load(self) -> None:
        """Read the files at the start of the process. Blocks.

        Raises:
            KjbodError: a file cannot be used; one line.
        """
        if self.settings.tls is not None:
            self._renew(self.settings.tls)

    async def context(self, *, timeout_ms: int) -> ssl.SSLContext | None:
        """Return TLS from the current files; None if the protocol has no TLS.

        Raises:
            KjbodError: a file cannot be used, or was not read in time, and no earlier version was usable.
        """
        tls = self.settings.tls
        if tls is None:
            return None
        now_ms = self._clock.monotonic_ms()
        if self._context is not None and self._looked_ms is not None and now_ms - self._looked_ms < self._fresh_ms:
            return self._context
        if self._under_way is None or self._under_way.done():
            self._looked_ms = now_ms
            self._under_way = in_thread(lambda: self._renew(tls))
        patience_ms = timeout_ms if self._context is None else min(PATIENCE_MS, timeout_ms)
        try:
            async with asyncio.timeout(patience_ms / 1000):
                context = await asyncio.shield(on_this_loop(self._under_way))
        except TimeoutError:
            if self._context is None:
                stores = [store.key for store in (tls.keystore, tls.truststore) if store is not None and store.path]
                raise KjbodError(f"{tls.source}: {' and '.join(stores)} not read within {timeout_ms} ms") from None
            return self._context  # the check continues in its thread
        except KjbodError:
            if self._context is None:
                raise
            return self._context  # the reason was logged when it was found
        return context

    @property
    def certificate(self) -> Certificate | None:
        """Return our certificate, or our truststore if we have no certificate; None: no TLS."""
        tls = self.settings.tls
        store = None if tls is None else tls.keystore or tls.truststore
        if store is None:
            return None
        ends = None if self.expires_at is None else round(self.expires_at.timestamp() * 1000)
        return Certificate(store.key, store.path or "", ends, self._failure)

    async def look(self, *, timeout_ms: int) -> None:
        """Check whether the files have changed, and log a certificate that ends soon.

        Raises:
            KjbodError: as :meth:`context`.
        """
        await self.context(timeout_ms=timeout_ms)
        if self.settings.tls is not None:
            self._warn_of_end(self.settings.tls)

    async def mechanism(self, host: str, *, timeout_ms: int) -> "ClientMechanism | None":
        """Return the state machine for one login at this host; None if the protocol has no SASL.

        Raises:
            LoginUnavailable: a token is needed, and none is available now or in time.
            KjbodError: no token is possible until the configuration is changed.
        """
        login = self.settings.login
        if login is None:
            return None
        if login.token is not None:
            from kjbod.security.oauthbearer.exchange import Client

            token = await self._tokens_of(login.token).current(timeout_ms=timeout_ms)
            return Client(token.value, login.token.extensions)
        if login.kerberos is not None:
            from kjbod.security.kerberos import GssapiClient
            from kjbod.security.kerberos_login import Tickets

            tickets = self._tickets = self._tickets or Tickets(login.kerberos, self._clock, self._rng)
            return GssapiClient(lambda: tickets.context(host))
        from kjbod.security.sasl import client_mechanism

        return client_mechanism(login, self._rng.randbytes(_NONCE_BYTES).hex())

    def not_believed(self) -> None:
        """Note that a server refused our login, so that the same token or ticket is not sent again and again."""
        if self._tickets is not None:
            self._tickets.doubt()
        if self._tokens is not None:
            self._tokens.not_believed()

    async def step(self, mechanism: "ClientMechanism", work: Callable[[], T]) -> T:
        """Return the result of a step of a mechanism. A step that may block runs in a thread.

        Raises:
            KjbodError: the step failed or took too long.
        """
        if not mechanism.blocks:
            return work()
        from kjbod.security.kerberos_login import KDC_TIMEOUT_MS, TROUBLE

        aside = self._aside = self._aside or Aside()
        return await aside.run(work, TROUBLE, timeout_ms=KDC_TIMEOUT_MS)

    def _tokens_of(self, settings: "TokenSettings") -> "Tokens":
        if self._tokens is None:
            from kjbod.security.oauthbearer.login import Tokens

            self._tokens = Tokens(settings, self._clock, self._rng)
        return self._tokens

    def _renew(self, tls: Tls) -> ssl.SSLContext:
        """Return TLS, and make it anew if a file has changed. Files that cannot be used are logged and read once."""
        from kjbod.security.contexts import files_of

        stamp = tuple(map(_stamp, files_of(tls)))
        if self._context is not None and stamp == self._stamp:
            self._failed_stamp, self._failure = None, ""  # the unusable file was replaced by the one in use
            return self._context
        if self._context is not None and self._has_just_failed(stamp):
            return self._context
        again = self._context is not None
        try:
            self._context, self.expires_at = self._made(tls)
        except Exception as error:
            if again:
                self._note_failure(stamp, str(error) or type(error).__name__)
            raise
        self._stamp, self._failed_stamp, self._failure, self._named_ms = stamp, None, "", None
        if again:
            _log.info("security.renewed", files=list(files_of(tls)), expires_at=_iso(self.expires_at))
        self._warn_of_end(tls)
        return self._context

    def _has_just_failed(self, stamp: Stamp) -> bool:
        age_ms = self._clock.monotonic_ms() - self._failed_ms
        return stamp == self._failed_stamp and age_ms < FAILED_FOR_MS

    def _note_failure(self, stamp: Stamp, reason: str) -> None:
        if (stamp, reason) != (self._failed_stamp, self._failure):
            _log.warning("security.not.renewed", reason=reason)
        self._failed_stamp, self._failure, self._failed_ms = stamp, reason, self._clock.monotonic_ms()

    def _made(self, tls: Tls) -> tuple[ssl.SSLContext, datetime | None]:
        """Return TLS and the end of our certificate. An expired certificate does not replace the one in use.

        Raises:
            KjbodError: a file cannot be used.
        """
        from kjbod.security.contexts import expiry_of

        context, expires_at = self._make(tls), expiry_of(tls)
        is_good = self.expires_at is not None and self._left(self.expires_at) > timedelta()
        if is_good and expires_at is not None and self._left(expires_at) <= timedelta():
            assert tls.keystore is not None
            raise KjbodError(f"{tls.source}: {tls.keystore.key}: its certificate has ended, {expires_at.isoformat()}")
        return context, expires_at

    def _warn_of_end(self, tls: Tls) -> None:
        if self.expires_at is None or tls.keystore is None or self._left(self.expires_at) > EXPIRES_SOON:
            return
        now_ms = self._clock.monotonic_ms()
        if self._named_ms is not None and now_ms - self._named_ms < NAMED_EVERY_MS:
            return
        self._named_ms = now_ms
        ended = self._left(self.expires_at) <= timedelta()
        event = "security.certificate.expired" if ended else "security.certificate.expires"
        _log.warning(event, key=tls.keystore.key, path=tls.keystore.path, expires_at=_iso(self.expires_at))

    def _left(self, moment: datetime) -> timedelta:
        return timedelta(milliseconds=moment.timestamp() * 1000 - self._clock.wall_ms())


async def look_again(certificates: Certificates) -> None:
    """Check all certificates periodically. Problems are logged by each check.

    A process without new connections reads no file. Without these checks it would not notice a renewed certificate or
    one that ends.
    """
    while True:
        await asyncio.sleep(LOOK_INTERVAL_S)
        for security in certificates:
            with contextlib.suppress(KjbodError):
                await security.look(timeout_ms=LOOK_TIMEOUT_MS)


def _client_context(tls: Tls) -> ssl.SSLContext:
    from kjbod.security.contexts import client_context

    return client_context(tls)


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _stamp(path: str) -> tuple[int, int, int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


NO_SECURITY: Final = Security()
"""Security of plain-text connections."""
