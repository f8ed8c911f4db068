"""Values of Kafka's ``sasl.*`` keys and of those of a listener, read and checked (``SaslConfigs`` of 4.3.1)."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from kjbod.config.endpoints import PLAINTEXT as PLAINTEXT
from kjbod.config.endpoints import SASL_PLAINTEXT as SASL_PLAINTEXT
from kjbod.config.endpoints import SASL_SSL as SASL_SSL
from kjbod.config.endpoints import SECURITY_PROTOCOLS as SECURITY_PROTOCOLS
from kjbod.config.endpoints import SSL as SSL
from kjbod.security.tls_keys import Tls

if TYPE_CHECKING:
    from kjbod.security.kerberos_names import KerberosRule
    from kjbod.security.oauthbearer.keys import TokenSettings, ValidatorSettings
    from kjbod.security.principals import Rule


class Kerberos(Struct, frozen=True):
    """A login by Kerberos: options of a ``Krb5LoginModule``, and the keys ``sasl.kerberos.*``.

    Attributes:
        where: key or section with the login, and its file, for messages.
        principal: who we are; None: whose the ticket cache is.
        keytab: file with the keys of that principal; None: there is none.
        uses_cache: whether tickets are taken from a ticket cache, before the keytab.
        cache: that ticket cache; None: that of the environment.
        service: ``serviceName`` or ``sasl.kerberos.service.name``: the first part of a server's principal; None: of a
            listener, which needs none.
        kinit: ``sasl.kerberos.kinit.cmd``, which renews a ticket of a ticket cache.
        renew_factor: ``sasl.kerberos.ticket.renew.window.factor``: part of a ticket's time after which it is renewed.
        renew_jitter: ``sasl.kerberos.ticket.renew.jitter``: most of what is added to that by chance.
        renew_pause_ms: ``sasl.kerberos.min.time.before.relogin``: between two attempts.
    """

    where: str
    principal: str | None = None
    keytab: str | None = None
    uses_cache: bool = False
    cache: str | None = None
    service: str | None = None
    kinit: str = "/usr/bin/kinit"
    renew_factor: float = 0.8
    renew_jitter: float = 0.05
    renew_pause_ms: int = 60_000


@dataclasses.dataclass(frozen=True, slots=True)
class Login:
    """Name and password, or a token, for a server that asks by SASL.

    Attributes:
        mechanism: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``, ``GSSAPI`` or ``OAUTHBEARER``.
        username: of the JAAS entry, or the principal; of OAUTHBEARER whose token it is, for messages.
        password: of it; none with Kerberos or a token of OAUTHBEARER.
        is_token: whether they are the id and the HMAC of a delegation token (``tokenauth``), by SCRAM alone.
        kerberos: with ``GSSAPI``.
        token: how one is got, with ``OAUTHBEARER``.
    """

    mechanism: str
    username: str
    password: str = dataclasses.field(default="", repr=False)
    is_token: bool = False
    kerberos: Kerberos | None = None
    token: "TokenSettings | None" = None

    @property
    def whose(self) -> str:
        """Words for who we are: a delegation token's name says nothing by itself."""
        return f"the delegation token {self.username}" if self.is_token else self.username

    @property
    def is_shown(self) -> bool:
        """Whether the server, and without TLS everybody on the way, gets what it could log in with itself."""
        return self.mechanism in ("PLAIN", "OAUTHBEARER")


class ChannelSettings(Struct, frozen=True):
    """Security of connections to one kind of server.

    Attributes:
        protocol: of :data:`SECURITY_PROTOCOLS`.
        tls: where the protocol has it.
        login: where it has SASL.
    """

    protocol: str = PLAINTEXT
    tls: Tls | None = None
    login: Login | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Security of the connections that a listener takes.

    Attributes:
        protocol: of :data:`SECURITY_PROTOCOLS`.
        tls: where the protocol has it.
        mechanisms: of SASL, where the protocol has it; of PLAIN with the passwords of its users by name.
        reauthentication_ms: ``connections.max.reauth.ms`` by mechanism, where there is one.
        refusal_delay_ms: ``connection.failed.authentication.delay.ms``.
        principal_rules: ``ssl.principal.mapping.rules``.
        kerberos: the login of this listener's principal, with GSSAPI.
        kerberos_rules: ``sasl.kerberos.principal.to.local.rules``.
        tokens: of OAUTHBEARER: which are taken.
    """

    protocol: str = PLAINTEXT
    tls: Tls | None = None
    mechanisms: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict, repr=False)
    reauthentication_ms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    refusal_delay_ms: int = 100
    principal_rules: "tuple[Rule, ...]" = ()
    kerberos: Kerberos | None = None
    kerberos_rules: "tuple[KerberosRule, ...]" = ()
    tokens: "ValidatorSettings | None" = None


PLAIN_TEXT: Final = ChannelSettings()
"""Nothing is secured."""
