"""Read OAUTHBEARER settings from configuration files (``OAuthBearerLoginCallbackHandler``,
``OAuthBearerValidatorCallbackHandler``, ``ConfigurationUtils``, ``ConfigOrJaas``, ``AssertionSupplierFactory``).

A node's keys are looked up as ``listener.name.<name>.oauthbearer.<key>``, ``listener.name.<name>.<key>`` and ``<key>``;
callback handlers only as the first of these, as in Kafka 4.3.1. A client has no prefix. The keys of ``clientId``,
``clientSecret`` and ``scope`` override the older options of a JAAS entry.

Kafka accepts unsigned tokens if no class that checks tokens is set. That is unsafe in production: a listener does not
start until the file sets a class.
"""

from collections.abc import Mapping
from typing import Final, Protocol, Self
from urllib.parse import urlsplit

from msgspec import structs

from kjbod.security.jaas import LoginModule
from kjbod.security.keys import Login
from kjbod.security.oauthbearer.exchange import AUTH, EXTENSION_NAME, EXTENSION_VALUE, MECHANISM
from kjbod.security.oauthbearer.keys import (
    CLIENT_ASSERTION,
    CLIENT_SECRET,
    CONNECT_TIMEOUT_MS,
    FILE,
    JWT_BEARER,
    READ_TIMEOUT_MS,
    UNSECURED,
    Assertion,
    Endpoint,
    Refresh,
    TokenSettings,
    ValidatorSettings,
)
from kjbod.security.oauthbearer.tokens import UNSECURED as UNSECURED_LOGIN
from kjbod.security.oauthbearer.tokens import token_of, unsecured_token
from kjbod.security.tls_keys import Tls

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
LOGIN_HANDLER: Final = f"{_PACKAGE}.OAuthBearerLoginCallbackHandler"
VALIDATOR_HANDLER: Final = f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler"
UNSECURED_LOGIN_HANDLER: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
UNSECURED_VALIDATOR_HANDLER: Final = f"{_PACKAGE}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
LOGIN_CLASS: Final = "sasl.login.callback.handler.class"
SERVER_CLASS: Final = "sasl.server.callback.handler.class"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_JWKS_URL: Final = "sasl.oauthbearer.jwks.endpoint.url"
_RETRIEVER: Final = "sasl.oauthbearer.jwt.retriever.class"
_VALIDATOR: Final = "sasl.oauthbearer.jwt.validator.class"
_ASSERTION: Final = "sasl.oauthbearer.assertion"
_RETRIEVERS: Final = tuple(
    f"{_PACKAGE}.{name}JwtRetriever" for name in ("Default", "ClientCredentials", "File", "JwtBearer")
)
_CLIENT_VALIDATORS: Final = tuple(f"{_PACKAGE}.{name}JwtValidator" for name in ("Default", "Client"))
_BROKER_VALIDATORS: Final = tuple(f"{_PACKAGE}.{name}JwtValidator" for name in ("Default", "Broker"))
_SCHEMES: Final = ("https", "http", "file")
_INT_MAX: Final = 2**31 - 1
_DAY_S: Final = 86_400


class Reader(Protocol):
    """The methods of a reader of keys that this module needs."""

    prefix: str

    def key(self, name: str) -> str: ...

    def text(self, name: str) -> str | None: ...

    def wrong(self, name: str, expected: str) -> None: ...

    def tls(self) -> Tls: ...

    def note(self, words: str) -> None: ...

    def named(self, name: str) -> str: ...

    def of_options(self, where: str, options: Mapping[str, str]) -> Self: ...


def login_of(reader: Reader, module: LoginModule, where: str) -> Login | None:
    """Return a client's login; None if something is wrong, which the reader has noted.

    Args:
        reader: reader of the keys.
        module: the JAAS entry.
        where: place of the JAAS entry, for messages.
    """
    keys = _Keys(reader)
    handler = keys.handler(LOGIN_CLASS)
    if handler in ("", UNSECURED_LOGIN_HANDLER):
        return _unsecured_login(reader, module, where)
    if handler not in (LOGIN_HANDLER, LOGIN_HANDLER.replace(_PACKAGE, f"{_PACKAGE}.secured")):
        keys.wrong_handler(LOGIN_CLASS, f"expected {LOGIN_HANDLER}")
        return None
    retriever = _retriever(keys)
    endpoint = keys.endpoint(_TOKEN_URL, "sasl.login", reader.of_options(where, module.options))
    if endpoint is None:
        return None
    grant = _grant(keys, retriever, endpoint)
    needs_client = grant == CLIENT_SECRET
    client_id = keys.or_option("sasl.oauthbearer.client.credentials.client.id", module, "clientId", needs_client)
    name = "sasl.oauthbearer.client.credentials.client.secret"
    settings = TokenSettings(
        grant,
        endpoint,
        client_id,
        keys.or_option(name, module, "clientSecret", needs_client),
        keys.or_option("sasl.oauthbearer.scope", module, "scope", False),
        keys.boolean("sasl.oauthbearer.header.urlencode"),
        keys.assertion() if grant in (CLIENT_ASSERTION, JWT_BEARER) else None,
        extensions=_extensions(reader, module, where, "extension_"),
        sub_claim=keys.text("sasl.oauthbearer.sub.claim.name") or "sub",
        scope_claim=keys.text("sasl.oauthbearer.scope.claim.name") or "scope",
        refresh=keys.refresh(),
    )
    return Login(MECHANISM, client_id or f"the token of {endpoint.shown}", token=settings)


def _retriever(keys: "_Keys") -> str:
    """Return the class that gets tokens. A class that is not Kafka's own is noted as a problem, also the class that
    checks tokens."""
    retriever, validator = keys.text(_RETRIEVER) or _RETRIEVERS[0], keys.text(_VALIDATOR) or _CLIENT_VALIDATORS[0]
    if retriever not in _RETRIEVERS:
        keys.wrong(_RETRIEVER, f"expected one of {', '.join(_RETRIEVERS)}: kjbod runs no Java classes")
    if validator not in (*_CLIENT_VALIDATORS, *_BROKER_VALIDATORS):
        keys.wrong(_VALIDATOR, f"expected one of {', '.join(_CLIENT_VALIDATORS)}: kjbod runs no Java classes")
    return retriever


def _grant(keys: "_Keys", retriever: str, endpoint: Endpoint) -> str:
    default, credentials, file, _ = _RETRIEVERS
    if retriever == file or (retriever == default and endpoint.path is not None):
        if endpoint.path is None:
            keys.wrong(_TOKEN_URL, f"expected a file URL, as {_RETRIEVER} is {retriever}")
        return FILE
    if endpoint.path is not None:
        keys.wrong(_TOKEN_URL, f"expected a URL of https or http, as {_RETRIEVER} is {retriever}")
    if retriever not in (default, credentials):
        return JWT_BEARER
    has_assertion = keys.text(f"{_ASSERTION}.file") or keys.text(f"{_ASSERTION}.claim.iss")
    return CLIENT_ASSERTION if has_assertion else CLIENT_SECRET


def _unsecured_login(reader: Reader, module: LoginModule, where: str) -> Login | None:
    """Return a login with an unsigned token that is made here: Kafka's login without a callback handler."""
    try:
        text, principal, scope = unsecured_token(module.options, 0)
        subject = token_of(text, TokenSettings(UNSECURED, sub_claim=principal, scope_claim=scope)).subject
    except ValueError as error:
        handler = f"{reader.prefix}{MECHANISM.lower()}.{LOGIN_CLASS}" if reader.prefix else LOGIN_CLASS
        expected = f"expected {UNSECURED_LOGIN}StringClaim_sub, or {handler} for a token of an identity provider"
        reader.note(f"{where}: {error}: {expected}")
        return None
    extensions = _extensions(reader, module, where, f"{UNSECURED_LOGIN}Extension_")
    settings = TokenSettings(
        UNSECURED, options=module.options, extensions=extensions, sub_claim=principal, scope_claim=scope
    )
    return Login(MECHANISM, subject, token=settings)


def _extensions(reader: Reader, module: LoginModule, where: str, prefix: str) -> Mapping[str, str]:
    found = {name.removeprefix(prefix): one for name, one in module.options.items() if name.startswith(prefix)}
    for name, value in found.items():
        if name == AUTH or not EXTENSION_NAME.fullmatch(name) or not EXTENSION_VALUE.fullmatch(value):
            expected = "expected a name of letters, not auth, and a value of printable ASCII"
            reader.note(f"{where}: {prefix}{name}: {expected}")
    return found


def validator_of(reader: Reader, module: LoginModule | None, where: str) -> ValidatorSettings | None:
    """Return the rules for tokens of a listener; None if something is wrong, which the reader has noted. Arguments as
    for :func:`login_of`. A listener needs a JAAS entry, as in Kafka."""
    keys = _Keys(reader)
    handler = keys.handler(SERVER_CLASS)
    if module is None:
        return None
    if not handler:
        keys.wrong_handler(
            SERVER_CLASS,
            f"expected {VALIDATOR_HANDLER}: without it Kafka takes unsigned tokens, of anybody; if that is meant, name "
            f"{UNSECURED_VALIDATOR_HANDLER}",
        )
        return None
    if handler == UNSECURED_VALIDATOR_HANDLER:
        return _unsecured_validator(reader.of_options(where, module.options), module)
    if handler not in (VALIDATOR_HANDLER, VALIDATOR_HANDLER.replace(_PACKAGE, f"{_PACKAGE}.secured")):
        keys.wrong_handler(SERVER_CLASS, f"expected {VALIDATOR_HANDLER}")
        return None
    if (keys.text(_VALIDATOR) or _BROKER_VALIDATORS[0]) not in _BROKER_VALIDATORS:
        keys.wrong(_VALIDATOR, f"expected one of {', '.join(_BROKER_VALIDATORS)}: kjbod runs no Java classes")
    endpoint = keys.endpoint(_JWKS_URL, "sasl.oauthbearer.jwks.endpoint", reader.of_options(where, module.options))
    if endpoint is None:
        return None
    audience = keys.text("sasl.oauthbearer.expected.audience") or ""
    return ValidatorSettings(
        endpoint,
        keys.number("sasl.oauthbearer.jwks.endpoint.refresh.ms", 3_600_000, 1, 2**62, "ms"),
        tuple(one.strip() for one in audience.split(",") if one.strip()),
        keys.text("sasl.oauthbearer.expected.issuer") or None,
        1000 * keys.number("sasl.oauthbearer.clock.skew.seconds", 30, 0, _INT_MAX, "s"),
        keys.text("sasl.oauthbearer.sub.claim.name") or "sub",
        keys.text("sasl.oauthbearer.scope.claim.name") or "scope",
    )


def _unsecured_validator(options: Reader, module: LoginModule) -> ValidatorSettings:
    prefix, keys = "unsecuredValidator", _Keys(options)
    return ValidatorSettings(
        skew_ms=keys.number(f"{prefix}AllowableClockSkewMs", 0, 0, _INT_MAX, "ms"),
        sub_claim=module.options.get(f"{prefix}PrincipalClaimName", "").strip() or "sub",
        scope_claim=module.options.get(f"{prefix}ScopeClaimName", "").strip() or "scope",
        required_scope=tuple(module.options.get(f"{prefix}RequiredScope", "").split()),
    )


class _Keys:
    """Keys of OAUTHBEARER, with or without the mechanism as a prefix."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def _name(self, name: str) -> str:
        """Return the key with the mechanism as a prefix if the file has that key, else the plain key."""
        own = f"{MECHANISM.lower()}.{name}"
        is_there = self._reader.prefix and self._reader.key(own) != own
        return own if is_there else name

    def text(self, name: str) -> str | None:
        """Return the value of a key; None: not set."""
        return self._reader.text(self._name(name))

    def wrong(self, name: str, expected: str) -> None:
        """Note that a value is not as expected."""
        self._reader.wrong(self._name(name), expected)

    def handler(self, name: str) -> str:
        """Return a callback handler's class, looked up as Kafka does; empty: none."""
        if not self._reader.prefix:
            return self._reader.text(name) or ""
        own = f"{MECHANISM.lower()}.{name}"
        return (self._reader.text(own) or "") if self._reader.key(own) != own else ""

    def wrong_handler(self, name: str, expected: str) -> None:
        """Note that a callback handler's class is missing, or is not one of Kafka's own."""
        own = f"{self._reader.prefix}{MECHANISM.lower()}.{name}" if self._reader.prefix else name
        self._reader.wrong(own, f"{expected}; kjbod runs no Java classes")

    def or_option(self, name: str, module: LoginModule, option: str, required: bool) -> str | None:
        """Return the value of a key, or of the JAAS option that the key has replaced."""
        value = self.text(name)
        if value is None:
            value = module.options.get(option)
        if value is not None and value.strip():
            return value.strip()
        if required:
            self.wrong(name, f"expected it here, or as {option} in sasl.jaas.config")
        return None

    def boolean(self, name: str) -> bool:
        """Return a boolean; False if it is not set."""
        value = (self.text(name) or "false").lower()
        if value not in ("true", "false"):
            self.wrong(name, "expected true or false")
        return value == "true"

    def number(self, name: str, default: int, low: int, high: int, unit: str) -> int:
        """Return a whole number."""
        text = self.text(name) or str(default)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            self.wrong(name, f"expected a whole number from {low} to {high} ({unit})")
            return default
        return int(text)

    def share(self, name: str, default: float, low: float, high: float) -> float:
        """Return a fraction."""
        try:
            value = float(self.text(name) or default)
        except ValueError:
            value = -1
        if not low <= value <= high:
            self.wrong(name, f"expected a number from {low} to {high}")
            return default
        return value

    def refresh(self) -> Refresh:
        """Return the settings of token renewal."""
        name = "sasl.login.refresh"
        return Refresh(
            self.share(f"{name}.window.factor", 0.8, 0.5, 1.0),
            self.share(f"{name}.window.jitter", 0.05, 0.0, 0.25),
            self.number(f"{name}.min.period.seconds", 60, 0, 900, "s"),
            self.number(f"{name}.buffer.seconds", 300, 0, 3600, "s"),
        )

    def endpoint(self, name: str, timing: str, options: Reader) -> Endpoint | None:
        """Return the endpoint of a URL. ``timing`` is the prefix of its retry keys; ``options`` reads the options of
        the JAAS entry, which contain the TLS settings."""
        url = self.text(name) or ""
        scheme = _scheme(url)
        if scheme not in _SCHEMES:
            self.wrong(name, f"expected a URL of {', '.join(_SCHEMES[:-1])} or {_SCHEMES[-1]}")
            return None
        backoff_ms = self.number(f"{timing}.retry.backoff.ms", 100, 0, 2**62, "ms")
        backoff_max_ms = self.number(f"{timing}.retry.backoff.max.ms", 10_000, 0, 2**62, "ms")
        if backoff_max_ms < backoff_ms:
            self.wrong(f"{timing}.retry.backoff.max.ms", f"expected at least {backoff_ms}, the first pause (ms)")
        return Endpoint(
            self._reader.named(self._name(name)),
            url,
            _with_names(options.tls()) if scheme == "https" else None,
            self.number("sasl.login.connect.timeout.ms", CONNECT_TIMEOUT_MS, 1, _INT_MAX, "ms"),
            self.number("sasl.login.read.timeout.ms", READ_TIMEOUT_MS, 1, _INT_MAX, "ms"),
            backoff_ms,
            backoff_max_ms,
        )

    def assertion(self) -> Assertion:
        """Return the settings of the assertion that proves the client's identity."""
        if file := self.text(f"{_ASSERTION}.file"):
            return Assertion(file)
        algorithm = (self.text(f"{_ASSERTION}.algorithm") or "RS256").upper()
        if algorithm not in ("RS256", "ES256"):
            self.wrong(f"{_ASSERTION}.algorithm", "expected RS256 or ES256")
        private_key, template = self.text(f"{_ASSERTION}.private.key.file"), self.text(f"{_ASSERTION}.template.file")
        if not private_key:
            self.wrong(f"{_ASSERTION}.private.key.file", f"expected it, or {_ASSERTION}.file")
        claims = {one: self.text(f"{_ASSERTION}.claim.{one}") for one in ("aud", "iss", "sub")}
        return Assertion(
            None,
            private_key,
            self.text(f"{_ASSERTION}.private.key.passphrase"),
            algorithm,
            {name: value for name, value in claims.items() if value},
            template or None,
            self.number(f"{_ASSERTION}.claim.exp.seconds", 300, 0, _DAY_S, "s"),
            self.number(f"{_ASSERTION}.claim.nbf.seconds", 60, 0, 3600, "s"),
            self.boolean(f"{_ASSERTION}.claim.jti.include"),
        )


def _scheme(url: str) -> str:
    """Return the scheme of a complete URL; empty if the URL is incomplete."""
    try:
        parts = urlsplit(url)
        complete = bool(parts.path if parts.scheme.lower() == "file" else parts.hostname) and parts.port != 0
    except ValueError:
        return ""
    return parts.scheme.lower() if complete and url.isascii() and url.isprintable() and " " not in url else ""


def _with_names(tls: Tls) -> Tls:
    """Return TLS settings that check the endpoint's host name, whatever is set for Kafka servers
    (``HttpsURLConnection``)."""
    return structs.replace(tls, checks_name=True)
