"""Security of connections to one kind of server, as a connection asks for it: TLS made of files that may change, and a
login that may be needed again.

Files are read in a thread of their own, never on the event loop: they may lie on a disk that hangs. While they cannot
be read, or are half written, the certificates from before go on to be used.
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
"""How long files that were read before may take to be looked at again: a fence waits for it."""
FAILED_FOR_MS: Final = 60_000
"""After so long files that could not be used are read again, although they look as they did."""
EXPIRES_SOON: Final = timedelta(days=30)
"""Before the end of its time a certificate of ours is named."""
NAMED_EVERY_MS: Final = 24 * 3_600_000
"""And then again."""
LOOK_INTERVAL_S: Final = 3600.0
LOOK_TIMEOUT_MS: Final = 60_000
_NONCE_BYTES: Final = 24
_log = structlog.get_logger("kjbod.security")

Stamp = tuple[tuple[int, int, int, int, int] | None, ...]
"""Device, inode, size and both times of change of each file; None: it is not there."""


class Security:
    """Security of the connections to one kind of server.

    Args:
        settings: of them.
        rng: for nonces.
        make: TLS from its settings; blocks.
        clock: tells how long certificates are valid.
        fresh_ms: for so long after a look at the files nobody looks again.

    Attributes:
        expires_at: until when our own certificate is valid; None: there is none, or it was not read yet.
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
        """Read the files, for a start. Blocks.

        Raises:
            KjbodError: one cannot be used; one line.
        """
        if self.settings.tls is not None:
            self._renew(self.settings.tls)

    async def context(self, *, timeout_ms: int) -> ssl.SSLContext | None:
        """TLS as the files have it now; None where the protocol has none.

        Raises:
            KjbodError: a file cannot be used, or was not read in time, and none could before.
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
            return self._context  # the look goes on
        except KjbodError:
            if self._context is None:
                raise
            return self._context  # why was said when it was found out
        return context

    @property
    def certificate(self) -> Certificate | None:
        """Our certificate, or what we trust where there is none; None: there is no TLS."""
        tls = self.settings.tls
        store = None if tls is None else tls.keystore or tls.truststore
        if store is None:
            return None
        ends = None if self.expires_at is None else round(self.expires_at.timestamp() * 1000)
        return Certificate(store.key, store.path or "", ends, self._failure)

    async def look(self, *, timeout_ms: int) -> None:
        """Find out whether the files have changed, and name a certificate that is near its end.

        Raises:
            KjbodError: as :meth:`context`.
        """
        await self.context(timeout_ms=timeout_ms)
        if self.settings.tls is not None:
            self._warn_of_end(self.settings.tls)

    async def mechanism(self, host: str, *, timeout_ms: int) -> "ClientMechanism | None":
        """The machine for one login at this host; None where the protocol has no SASL.

        Raises:
            LoginUnavailable: a token is needed, and there is none now, or none in time.
            KjbodError: there will be none before somebody has changed something.
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
        """Note that a server has refused our login: neither a token nor a ticket is shown again and again."""
        if self._tickets is not None:
            self._tickets.doubt()
        if self._tokens is not None:
            self._tokens.not_believed()

    async def step(self, mechanism: "ClientMechanism", work: Callable[[], T]) -> T:
        """The result of a step of a mechanism; of one that blocks in a thread.

        Raises:
            KjbodError: of the step, or it took too long.
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
        """TLS, made anew where a file has changed; what cannot be used is told and read once."""
        from kjbod.security.contexts import files_of

        stamp = tuple(map(_stamp, files_of(tls)))
        if self._context is not None and stamp == self._stamp:
            self._failed_stamp, self._failure = None, ""  # what could not be used was put back
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
        """TLS, and until when our certificate is valid; one that has ended does not take the place of another one.

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
    """Look at all certificates, again and again; what is to be said is said where it is found.

    A process that nobody connects to anew reads no file: it would neither take a renewed certificate nor name one that
    ends.
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
"""Of plain text."""
