"""Values of Kafka's ``sasl.oauthbearer.*`` and ``sasl.login.*`` keys, read and checked (``SaslConfigs`` of 4.3.1)."""

import dataclasses
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from kjbod.security.tls_keys import Tls

FILE, CLIENT_SECRET, CLIENT_ASSERTION, JWT_BEARER, UNSECURED = GRANTS = (
    "file",
    "client secret",
    "client assertion",
    "JWT bearer",
    "unsecured",
)
"""Ways to get a token: from a file; by ``client_credentials`` with a secret, or with an assertion (RFC 7523, section
2.2); by an assertion alone (RFC 7523, section 2.1); or made here, without a signature."""
CONNECT_TIMEOUT_MS: Final = 10_000
READ_TIMEOUT_MS: Final = 10_000
"""Time limit without ``sasl.login.connect.timeout.ms`` and ``sasl.login.read.timeout.ms``; Kafka has no limit then."""
TOKEN_BYTES_MAX: Final = 32 * 1024
"""Maximum size of a token, ours or a client's, so that its request is below 64 KiB (``LOGIN_BYTES_MAX``)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Source of tokens, or of the keys of token issuers.

    Attributes:
        key: key that has the URL, for messages.
        url: URL with http, https or file.
        tls: settings of TLS for https; None: no https.
        connect_timeout_ms: ``sasl.login.connect.timeout.ms``.
        read_timeout_ms: ``sasl.login.read.timeout.ms``: for the whole answer.
        backoff_ms: ``...retry.backoff.ms``, the first pause after a failure; it doubles.
        backoff_max_ms: ``...retry.backoff.max.ms``: the pauses of all retries together take at most this time.
    """

    key: str
    url: str = dataclasses.field(repr=False)
    tls: Tls | None = None
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    read_timeout_ms: int = READ_TIMEOUT_MS
    backoff_ms: int = 100
    backoff_max_ms: int = 10_000

    @property
    def path(self) -> str | None:
        """Return the path of a file URL; None for other URLs."""
        parts = urlsplit(self.url)
        return parts.path if parts.scheme.lower() == "file" else None

    @property
    def shown(self) -> str:
        """Return the URL for messages, without user, password and query."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclasses.dataclass(frozen=True, slots=True)
class Assertion:
    """Token that proves the identity of a client that requests a token (``sasl.oauthbearer.assertion.*``): from a file,
    or signed here.

    Attributes:
        file: file with an assertion; if set, the other attributes have no effect.
        private_key: file with a PEM private key.
        passphrase: passphrase of the private key.
        algorithm: ``RS256`` or ``ES256``.
        claims: ``aud``, ``iss`` and ``sub``.
        template: file with further claims, as JSON: ``{"header": {}, "payload": {}}``.
        lifetime_s: ``claim.exp.seconds``.
        early_s: ``claim.nbf.seconds``: time before its creation from which the assertion is valid.
        has_id: ``claim.jti.include``.
    """

    file: str | None = None
    private_key: str | None = None
    passphrase: str | None = dataclasses.field(default=None, repr=False)
    algorithm: str = "RS256"
    claims: Mapping[str, str] = dataclasses.field(default_factory=dict)
    template: str | None = None
    lifetime_s: int = 300
    early_s: int = 60
    has_id: bool = False


class Refresh(Struct, frozen=True):
    """Renewal time of a token before its end (``sasl.login.refresh.*``)."""

    window_factor: float = 0.8
    window_jitter: float = 0.05
    min_period_s: int = 60
    buffer_s: int = 300


@dataclasses.dataclass(frozen=True, slots=True)
class TokenSettings:
    """Settings with which a client gets its tokens.

    Attributes:
        grant: one of :data:`GRANTS`.
        endpoint: source of the tokens; None: they are made here.
        client_id: id of the client that requests tokens.
        client_secret: secret of that client.
        scope: scope of the request.
        encodes_header: ``sasl.oauthbearer.header.urlencode``.
        assertion: assertion, for grants that use one.
        options: options of a token that is made here (``unsecuredLogin...``).
        extensions: SASL extensions of the JAAS entry (KIP-342), sent to the server.
        sub_claim: ``sasl.oauthbearer.sub.claim.name``.
        scope_claim: ``sasl.oauthbearer.scope.claim.name``.
        refresh: renewal time of a token.
    """

    grant: str
    endpoint: Endpoint | None = None
    client_id: str | None = None
    client_secret: str | None = dataclasses.field(default=None, repr=False)
    scope: str | None = None
    encodes_header: bool = False
    assertion: Assertion | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    extensions: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    refresh: Refresh = dataclasses.field(default_factory=Refresh)


class ValidatorSettings(Struct, frozen=True):
    """Rules for the tokens that a listener accepts.

    Attributes:
        jwks: source of the keys that sign tokens; None: unsigned tokens are accepted.
        refresh_ms: ``sasl.oauthbearer.jwks.endpoint.refresh.ms``.
        audiences: ``sasl.oauthbearer.expected.audience``.
        issuer: ``sasl.oauthbearer.expected.issuer``; None: any issuer.
        skew_ms: ``sasl.oauthbearer.clock.skew.seconds``.
        sub_claim: ``sasl.oauthbearer.sub.claim.name``.
        scope_claim: ``sasl.oauthbearer.scope.claim.name``.
        required_scope: scope that unsigned tokens need (``unsecuredValidatorRequiredScope``).
    """

    jwks: Endpoint | None = None
    refresh_ms: int = 3_600_000
    audiences: tuple[str, ...] = ()
    issuer: str | None = None
    skew_ms: int = 30_000
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    required_scope: tuple[str, ...] = ()


def files_of(settings: "TokenSettings | ValidatorSettings") -> Mapping[str, str]:
    """Return the files that these settings read, including TLS stores, by the keys that name them."""
    endpoint = settings.endpoint if isinstance(settings, TokenSettings) else settings.jwks
    found: dict[str, str | None] = {}
    if endpoint is not None:
        found[endpoint.key] = endpoint.path
        stores = () if endpoint.tls is None else (endpoint.tls.keystore, endpoint.tls.truststore)
        found |= {f"{store.key} in JAAS": store.path for store in stores if store is not None}
    if isinstance(settings, TokenSettings) and settings.assertion is not None:
        found["sasl.oauthbearer.assertion.file"] = settings.assertion.file
        found["sasl.oauthbearer.assertion.private.key.file"] = settings.assertion.private_key
        found["sasl.oauthbearer.assertion.template.file"] = settings.assertion.template
    return {key: path for key, path in found.items() if path}
