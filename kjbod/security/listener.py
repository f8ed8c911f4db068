"""Security of a listener: its TLS, its SASL logins, and the principal of a client for an authorizer
(``DefaultKafkaPrincipalBuilder`` of 4.3.1)."""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from kjbod.clock import system_random
from kjbod.errors import ConfigError, KjbodError
from kjbod.scram import MECHANISMS, keys_of
from kjbod.security.aside import Aside, in_thread
from kjbod.security.certificates import Certificate
from kjbod.security.channel import Security
from kjbod.security.credentials import Credentials, NoCredentials
from kjbod.security.kerberos_names import short_name
from kjbod.security.kerberos_settings import GSSAPI
from kjbod.security.keys import ChannelSettings, ListenerSettings
from kjbod.security.principals import principal_name, rfc2253
from kjbod.security.sasl_server import ScramCredential, ServerMechanism, TokenCredential, plain, scram
from kjbod.security.tls_keys import REQUIRED, Tls
from kjbod.wire.server_login import ServerLogin

if TYPE_CHECKING:
    import random
    import ssl

    from kjbod.security.oauthbearer.jwks import Validator

ANONYMOUS: Final = "User:ANONYMOUS"
OAUTHBEARER: Final = "OAUTHBEARER"
_NONCE_BYTES: Final = 24
_SALT_BYTES: Final = 24
TOKENS_KEPT_MAX: Final = 1_000
"""Maximum cached credentials of delegation tokens: each takes two milliseconds to compute."""
FRESH_MS: Final = 1_000
"""Minimum time between two checks of the certificate files: each check takes a thread, and connections may come by the
thousand."""


async def nothing() -> None:
    """Return at once: the default of ``ready``."""


class ListenerSecurity:
    """Security of the connections that a listener accepts.

    Args:
        settings: settings of the listener.
        credentials: SCRAM credentials from the metadata; None: no users.
        ready: returns when the credentials have been read; logins wait for that.
        rng: random source for nonces and salts.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        credentials: Credentials | None = None,
        ready: Callable[[], Awaitable[object]] = nothing,
        rng: "random.Random | None" = None,
    ) -> None:
        if settings.protocol.startswith("SASL") and not settings.mechanisms:
            raise ConfigError("a listener with SASL has no mechanism: everybody would be let in")
        self.settings = settings
        self._credentials = credentials or NoCredentials()
        self._of_password = functools.lru_cache(TOKENS_KEPT_MAX)(self._make_credential)
        self._ready = ready
        self._validator: Validator | None = None
        self._rng = rng or system_random()
        self._tls = Security(ChannelSettings(settings.protocol, settings.tls), make=_server_context, fresh_ms=FRESH_MS)
        self._aside = Aside()
        self._realm = ""
        self._mechanisms: Mapping[str, Callable[[], ServerMechanism]] = {
            name: functools.partial(self._machine, name) for name in settings.mechanisms
        }

    def load(self) -> None:
        """Read the files, and start to read the keys of the token issuers. Blocks.

        Raises:
            KjbodError: a file cannot be used; one line.
        """
        self._tls.load()
        if self.settings.kerberos is not None:
            from kjbod.security.kerberos_login import Acceptor, default_realm

            self._realm = default_realm()
            Acceptor(self.settings.kerberos).context()
        if self.settings.tokens is not None:
            from kjbod.security.oauthbearer.jwks import Validator

            self._validator = Validator(self.settings.tokens)
            self._validator.load()

    async def ready(self, mechanism: str = "") -> None:
        """Wait until a login by this mechanism can be checked: the metadata are read, and for OAUTHBEARER the issuer's
        keys."""
        await self._ready()
        if self._validator is not None and mechanism == OAUTHBEARER:
            await self._validator.ready()

    async def context(self, *, timeout_ms: int) -> "ssl.SSLContext | None":
        """Return TLS from the current files; None if the listener has no TLS.

        Raises:
            KjbodError: a file cannot be used, and no earlier version was usable.
        """
        return await self._tls.context(timeout_ms=timeout_ms)

    @property
    def certificate(self) -> Certificate | None:
        """Certificate of the listener; None: it has no TLS."""
        return self._tls.certificate

    async def look(self, *, timeout_ms: int) -> None:
        """Check the certificate files: see :meth:`.channel.Security.look`."""
        await self._tls.look(timeout_ms=timeout_ms)

    def login(self) -> ServerLogin:
        """Return the state machine for a connection's login."""
        return ServerLogin(self._mechanisms, self.settings.reauthentication_ms)

    async def work(self, work: Callable[[], None]) -> None:
        """Run the blocking part of a login step in a thread."""
        from kjbod.security.kerberos_login import ACCEPT_TIMEOUT_MS, TROUBLE

        with contextlib.suppress(KjbodError):  # without an answer the login fails
            await self._aside.run(work, TROUBLE, timeout_ms=ACCEPT_TIMEOUT_MS)

    async def reconfigure(self, read: Callable[[], ListenerSettings]) -> None:
        """Use other stores for new connections. ``read`` may block.

        Raises:
            KjbodError: the new stores cannot be used; the previous stores stay in use.
        """

        def load() -> tuple[ListenerSettings, Security]:
            found = read()
            tls = Security(ChannelSettings(found.protocol, found.tls), make=_server_context, fresh_ms=FRESH_MS)
            tls.load()
            return found, tls

        found, self._tls = await asyncio.wrap_future(in_thread(load))
        self.settings = dataclasses.replace(self.settings, tls=found.tls)

    def principal_of(self, certificate: bytes | None) -> str:
        """Return the principal of a client with this certificate (DER), before any login.

        Raises:
            ValueError: the client has no certificate although one is required, or no rule of
                ``ssl.principal.mapping.rules`` applies.
        """
        tls = self.settings.tls
        if certificate is None and tls is not None and tls.client_auth == REQUIRED:
            raise ValueError("it has shown none")
        if certificate is None or self.settings.mechanisms:
            return ANONYMOUS
        return f"User:{principal_name(rfc2253(certificate), self.settings.principal_rules)}"

    def _machine(self, name: str) -> ServerMechanism:
        if name == GSSAPI:
            return self._gssapi()
        if name == OAUTHBEARER:
            from kjbod.security.oauthbearer.exchange import Server

            assert self._validator is not None, "load() comes before logins"
            return Server(self._validator.verify)
        if name not in MECHANISMS:
            return plain(self.settings.mechanisms[name])
        return scram(
            name,
            lambda user: self._credentials.of_user(name, user),
            self._rng.randbytes(_NONCE_BYTES).hex(),
            lambda token_id: self._token(name, token_id),
        )

    def _token(self, name: str, token_id: str) -> TokenCredential | None:
        token = self._credentials.of_token(token_id)
        if token is None:
            return None
        return TokenCredential(self._of_password(name, token.password), token.owner, token.expires_ms)

    def _make_credential(self, name: str, password: str) -> ScramCredential:
        """Make the credential of a delegation token, with Kafka's number of iterations for tokens."""
        mechanism, salt = MECHANISMS[name], self._rng.randbytes(_SALT_BYTES)
        iterations = mechanism.iterations_min
        keys = keys_of(hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations), mechanism)
        return ScramCredential(salt, keys.stored, keys.server, iterations)

    def _gssapi(self) -> ServerMechanism:
        from kjbod.security.kerberos import GssapiServer
        from kjbod.security.kerberos_login import Acceptor

        settings = self.settings
        assert settings.kerberos is not None
        acceptor = Acceptor(settings.kerberos)
        return GssapiServer(
            acceptor.context, lambda principal: short_name(principal, settings.kerberos_rules, self._realm)
        )


def _server_context(tls: Tls) -> "ssl.SSLContext":
    from kjbod.security.contexts import server_context

    return server_context(tls)
