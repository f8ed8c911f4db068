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
        where: key or section of the login, and its file, for messages.
        principal: our principal; None: the principal of the ticket cache.
        keytab: file with the keys of that principal; None: no keytab.
        uses_cache: whether tickets are read from a ticket cache before the keytab is used.
        cache: the ticket cache; None: the default of the environment.
        service: ``serviceName`` or ``sasl.kerberos.service.name``: the first part of a server's principal; None: of a
            listener, which needs none.
        kinit: ``sasl.kerberos.kinit.cmd``, the command that renews the ticket of a ticket cache.
        renew_factor: ``sasl.kerberos.ticket.renew.window.factor``: fraction of a ticket's lifetime after which it is
            renewed.
        renew_jitter: ``sasl.kerberos.ticket.renew.jitter``: maximum random addition to that fraction.
        renew_pause_ms: ``sasl.kerberos.min.time.before.relogin``: pause between two attempts.
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
    """User name and password, or a token, for a SASL login at a server.

    Attributes:
        mechanism: ``PLAIN``, ``SCRAM-SHA-256``, ``SCRAM-SHA-512``, ``GSSAPI`` or ``OAUTHBEARER``.
        username: user name of the JAAS entry, or the principal; for OAUTHBEARER the subject of the token, for messages.
        password: password of that user; empty with Kerberos and OAUTHBEARER.
        is_token: whether username and password are the id and HMAC of a delegation token (``tokenauth``); SCRAM only.
        kerberos: settings for ``GSSAPI``.
        token: settings to get a token, for ``OAUTHBEARER``.
    """

    mechanism: str
    username: str
    password: str = dataclasses.field(default="", repr=False)
    is_token: bool = False
    kerberos: Kerberos | None = None
    token: "TokenSettings | None" = None

    @property
    def whose(self) -> str:
        """Return our identity for messages. A delegation token is marked as such: its id alone means little to a
        reader."""
        return f"the delegation token {self.username}" if self.is_token else self.username

    @property
    def is_shown(self) -> bool:
        """Return whether the server receives a secret that it could log in with itself; without TLS the network sees it
        too."""
        return self.mechanism in ("PLAIN", "OAUTHBEARER")


class ChannelSettings(Struct, frozen=True):
    """Security of connections to one kind of server.

    Attributes:
        protocol: one of :data:`SECURITY_PROTOCOLS`.
        tls: settings of TLS, if the protocol has TLS.
        login: the login, if the protocol has SASL.
    """

    protocol: str = PLAINTEXT
    tls: Tls | None = None
    login: Login | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Security of the connections that a listener accepts.

    Attributes:
        protocol: one of :data:`SECURITY_PROTOCOLS`.
        tls: settings of TLS, if the protocol has TLS.
        mechanisms: SASL mechanisms, if the protocol has SASL; for PLAIN with the passwords of its users by name.
        reauthentication_ms: ``connections.max.reauth.ms`` by mechanism, where set.
        refusal_delay_ms: ``connection.failed.authentication.delay.ms``.
        principal_rules: ``ssl.principal.mapping.rules``.
        kerberos: the login of this listener's principal, with GSSAPI.
        kerberos_rules: ``sasl.kerberos.principal.to.local.rules``.
        tokens: rules for OAUTHBEARER tokens.
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
"""Settings without any security."""
