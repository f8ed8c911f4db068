"""Security of a listener: its TLS, the logins that it takes, and who a client is to an authorizer
(``DefaultKafkaPrincipalBuilder`` of 4.3.1)."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

from kjbod.clock import system_random
from kjbod.errors import ConfigError
from kjbod.scram import MECHANISMS
from kjbod.security.channel import Security
from kjbod.security.keys import REQUIRED, ChannelSettings, ListenerSettings, Tls
from kjbod.security.principals import principal_name, rfc2253
from kjbod.security.sasl_server import ScramCredential, ServerMechanism, plain, scram
from kjbod.wire.server_login import ServerLogin

if TYPE_CHECKING:
    import random
    import ssl

ANONYMOUS: Final = "User:ANONYMOUS"
_NONCE_BYTES: Final = 24
FRESH_MS: Final = 1_000
"""Between two looks at the files of certificates: each takes a thread, and connections may come by the thousand."""

Credentials = Callable[[str, str], ScramCredential | None]
"""The credential of a user for a mechanism; None: there is none."""


def no_credentials(_mechanism: str, _user: str) -> ScramCredential | None:
    """Nobody's."""
    return None


async def nothing() -> None:
    """Nothing is to be waited for."""


class ListenerSecurity:
    """Security of the connections that a listener takes.

    Args:
        settings: of it.
        credentials: of SCRAM, as the metadata have them.
        ready: returns when they are there; logins wait for it.
        rng: for nonces.
    """

    def __init__(
        self,
        settings: ListenerSettings,
        credentials: Credentials = no_credentials,
        ready: Callable[[], Awaitable[object]] = nothing,
        rng: "random.Random | None" = None,
    ) -> None:
        if settings.protocol.startswith("SASL") and not settings.mechanisms:
            raise ConfigError("a listener with SASL has no mechanism: everybody would be let in")
        self.settings = settings
        self._credentials = credentials
        self.ready = ready
        self._rng = rng or system_random()
        self._tls = Security(ChannelSettings(settings.protocol, settings.tls), make=_server_context, fresh_ms=FRESH_MS)
        self._mechanisms: Mapping[str, Callable[[], ServerMechanism]] = {
            name: functools.partial(self._machine, name) for name in settings.mechanisms
        }

    def load(self) -> None:
        """Read the files, for a start. Blocks.

        Raises:
            KjbodError: one cannot be used; one line.
        """
        self._tls.load()

    async def context(self, *, timeout_ms: int) -> "ssl.SSLContext | None":
        """TLS as the files have it now; None where the listener has none.

        Raises:
            KjbodError: a file cannot be used, and none could before.
        """
        return await self._tls.context(timeout_ms=timeout_ms)

    def login(self) -> ServerLogin:
        """The machine for a connection's login."""
        return ServerLogin(self._mechanisms, self.settings.reauthentication_ms)

    def principal_of(self, certificate: bytes | None) -> str:
        """The principal of a client that has shown this certificate (DER), before any login.

        Raises:
            ValueError: it has shown none where one is required, or no rule of
                ``ssl.principal.mapping.rules`` is for it.
        """
        tls = self.settings.tls
        if certificate is None and tls is not None and tls.client_auth == REQUIRED:
            raise ValueError("it has shown none")
        if certificate is None or self.settings.mechanisms:
            return ANONYMOUS
        return f"User:{principal_name(rfc2253(certificate), self.settings.principal_rules)}"

    def _machine(self, name: str) -> ServerMechanism:
        if name not in MECHANISMS:
            return plain(self.settings.mechanisms[name])
        return scram(name, lambda user: self._credentials(name, user), self._rng.randbytes(_NONCE_BYTES).hex())


def _server_context(tls: Tls) -> "ssl.SSLContext":
    from kjbod.security.contexts import server_context

    return server_context(tls)
