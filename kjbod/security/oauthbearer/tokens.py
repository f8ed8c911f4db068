"""A client's token: its request, its content and its renewal time (``ClientSecretRequestFormatter``,
``ClientAssertionRequestFormatter``, ``JwtBearerRequestFormatter``, ``JwtResponseParser``, ``ClientJwtValidator``,
``OAuthBearerUnsecuredLoginCallbackHandler``, ``ExpiringCredentialRefreshingLogin`` of 4.3.1).

A client does not check the signature of its token: the server does. Messages show only the error field of an endpoint's
answer (RFC 6749, section 5.2), which has no secret.
"""

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_plus

from kjbod.config.keys import LONG_MAX
from kjbod.errors import KjbodError, LoginUnavailable
from kjbod.printable import printable
from kjbod.security.oauthbearer.keys import (
    CLIENT_ASSERTION,
    CLIENT_SECRET,
    TOKEN_BYTES_MAX,
    Assertion,
    Refresh,
    TokenSettings,
)

FINAL_STATUSES: Final = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505})
"""HTTP statuses after which a retry is useless (``HttpJwtRetriever``)."""
SAID_MAX: Final = 200
"""Maximum characters of an endpoint's message in a line."""
UNSECURED_LIFETIME_S: Final = 3_600
_PARTS: Final = 3
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_JWT_BEARER: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_OK: Final = (200, 201)


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its content.

    Attributes:
        value: token as it is sent.
        subject: subject of the token.
        starts_ms: time of issue; None: not given.
        expires_ms: end of the token.
    """

    value: str = field(repr=False)
    subject: str
    starts_ms: int | None
    expires_ms: int


# ---- what it says


def part_of(token: str, number: int) -> Mapping[str, Any]:
    """Return the header (0) or claims (1) of a token (RFC 7519).

    Raises:
        ValueError: the text is no token; the message shows no part of it.
    """
    parts = token.split(".")
    if len(parts) != _PARTS or len(token) > TOKEN_BYTES_MAX:
        raise ValueError(
            f"text is no JWT: expected {_PARTS} parts with dots between them, {TOKEN_BYTES_MAX} bytes at most"
        )
    try:
        text = base64.b64decode(parts[number] + "=" * (-len(parts[number]) % 4), altchars="-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"part {number + 1} is not in base64") from None
    return object_of(text)


def object_of(text: bytes) -> Mapping[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: the text is no object; the message shows no part of it.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("text is no JSON") from None
    if not isinstance(found, dict):
        raise ValueError("text is no object in JSON")
    return found


def time_of(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a time claim in milliseconds, from whole seconds; None: not set.

    Raises:
        ValueError: the claim is not a number from 0.
    """
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} is no number of seconds since 1970")
    return min(int(value), LONG_MAX // 1000) * 1000


def subject_of(claims: Mapping[str, Any], name: str) -> str:
    """Return the name of the principal.

    Raises:
        ValueError: the claim is missing, or no text.
    """
    value = claims.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"claim {printable(name, SAID_MAX)}, whose it is, is missing or no text")
    return value.strip()


def scopes_of(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the scopes; a text is a single scope.

    Raises:
        ValueError: a scope is empty, no text, or repeated.
    """
    value = claims.get(name)
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    scopes = tuple(one.strip() for one in found if isinstance(one, str) and one.strip())
    if len(scopes) != len(found) or len(set(scopes)) != len(scopes):
        raise ValueError(f"claim {printable(name, SAID_MAX)} has an entry that is empty, no text, or there twice")
    return scopes


def token_of(text: str, settings: TokenSettings) -> Token:
    """Parse a token of ours.

    Raises:
        ValueError: the token lacks a claim that servers require.
    """
    value = text.strip()
    claims = part_of(value, 1)
    expires_ms = time_of(claims, "exp")
    if expires_ms is None:
        raise ValueError("claim exp, until when it is valid, is missing")
    scopes_of(claims, settings.scope_claim)
    return Token(value, subject_of(claims, settings.sub_claim), time_of(claims, "iat"), expires_ms)


# ---- how it is asked for


def request_of(settings: TokenSettings, assertion: str) -> tuple[Mapping[str, str], str]:
    """Return headers and body of the request for a token. ``assertion`` is used by grants that need one."""
    headers = {
        "Accept": "application/json",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    if settings.grant == CLIENT_SECRET:
        named, secret, scope = settings.client_id or "", settings.client_secret or "", settings.scope
        if settings.encodes_header:
            named, secret = quote_plus(named), quote_plus(secret)
        credentials = base64.b64encode(f"{named}:{secret}".encode()).decode()
        return {**headers, "Authorization": f"Basic {credentials}"}, _form(grant_type="client_credentials", scope=scope)
    if settings.grant == CLIENT_ASSERTION:
        body = _form(
            client_assertion_type=_ASSERTION_TYPE,
            client_assertion=assertion,
            grant_type="client_credentials",
            client_id=settings.client_id,
            scope=settings.scope,
        )
        return headers, body
    return headers, _form(grant_type=_JWT_BEARER, assertion=assertion, scope=settings.scope)


def _form(**fields: str | None) -> str:
    return "&".join(f"{name}={quote_plus(value)}" for name, value in fields.items() if value)


def parse_answer(where: str, status: int, body: bytes) -> str:
    """Return the token in an endpoint's answer.

    Raises:
        LoginUnavailable: no token is available now.
        KjbodError: the endpoint refuses; a retry is useless.
    """
    try:
        answer = object_of(body)
    except ValueError:
        answer = {}
    if status not in _OK:
        words = [answer.get(name) for name in ("error", "error_description", "errorCode", "errorSummary")]
        said = ": ".join(printable(one, SAID_MAX) for one in words if isinstance(one, str) and one)
        kind = KjbodError if status in FINAL_STATUSES else LoginUnavailable
        raise kind(f"the token endpoint {where} answers HTTP {status}{': ' if said else ''}{said}")
    for name in ("access_token", "id_token"):
        token = answer.get(name)
        if isinstance(token, str) and token.strip():
            return token.strip()
    raise KjbodError(f"the token endpoint {where} answers HTTP {status} without an access_token")


def pauses_ms(backoff_ms: int, backoff_max_ms: int) -> Iterator[int]:
    """Yield the pauses between retries until they add up to ``backoff_max_ms`` (``Retry``)."""
    left_ms, pause_ms = backoff_max_ms, backoff_ms
    while left_ms > 0 and pause_ms > 0:
        yield min(pause_ms, left_ms)
        left_ms -= pause_ms
        pause_ms *= 2


# ---- one that is made here


def assertion_parts(
    assertion: Assertion, template: Mapping[str, Any], now_s: int, token_id: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return header and claims of an assertion. Claims made now override those of the template file, which override
    those of the configuration (``LayeredAssertionJwtTemplate``).

    Raises:
        ValueError: the template's header or payload is no object.
    """
    given_header, given_claims = template.get("header", {}), template.get("payload", {})
    if not isinstance(given_header, dict) or not isinstance(given_claims, dict):
        raise ValueError('expected {"header": {...}, "payload": {...}}')
    header = {**given_header, "alg": assertion.algorithm, "typ": "JWT"}
    times = {"iat": now_s, "exp": now_s + assertion.lifetime_s, "nbf": now_s - assertion.early_s}
    return header, {**assertion.claims, **given_claims, **times, **({"jti": token_id} if assertion.has_id else {})}


UNSECURED: Final = "unsecuredLogin"
_TEXT, _NUMBER, _LIST = (f"{UNSECURED}{kind}Claim_" for kind in ("String", "Number", "List"))


def unsecured_token(options: Mapping[str, str], now_ms: int) -> tuple[str, str, str]:
    """Return an unsigned token, and the names of its claims for principal and scope.

    Raises:
        ValueError: an option is wrong.
    """
    lifetime = options.get(f"{UNSECURED}LifetimeSeconds", str(UNSECURED_LIFETIME_S))
    if not lifetime.isascii() or not lifetime.isdigit():
        raise ValueError(f"{UNSECURED}LifetimeSeconds: expected a whole number of seconds")
    claims: dict[str, Any] = {"exp": now_ms / 1000 + min(int(lifetime), LONG_MAX // 1000), "iat": now_ms / 1000}
    for option, value in options.items():
        prefix = next((one for one in (_TEXT, _NUMBER, _LIST) if option.startswith(one) and option != one), None)
        if prefix is not None:
            name = option.removeprefix(prefix)
            if name in ("iat", "exp"):
                raise ValueError(f"{option}: the claim {name} is made from the clock")
            claims[name] = _claim(prefix, option, value)
    header, body = ({"alg": "none"}, claims)
    text = ".".join(_encoded(json.dumps(one, separators=(",", ":")).encode()) for one in (header, body))
    names = ((f"{UNSECURED}PrincipalClaimName", "sub"), (f"{UNSECURED}ScopeClaimName", "scope"))
    principal, scope = (options.get(option, "").strip() or default for option, default in names)
    return f"{text}.", principal, scope


def _claim(prefix: str, option: str, value: str) -> str | float | list[str]:
    if prefix == _TEXT:
        return value
    if prefix == _LIST:
        return value[1:].split(value[0]) if len(value) > 1 else []
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{option}: expected a number")
    return number


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# ---- when it is renewed


def renew_at_ms(token: Token, refresh: Refresh, now_ms: int, chance: float) -> int:
    """Return the renewal time of a token that was just obtained. ``chance``, from 0 to 1, spreads the renewals of many
    clients."""
    left_ms = token.expires_ms - now_ms
    share = refresh.window_factor + refresh.window_jitter * chance
    if 1000 * (refresh.min_period_s + refresh.buffer_s) > left_ms:
        return now_ms + int(max(0, left_ms) * share)
    starts_ms = now_ms if token.starts_ms is None else token.starts_ms
    proposed_ms = starts_ms + int((token.expires_ms - starts_ms) * share)
    latest_ms = token.expires_ms - 1000 * refresh.buffer_s
    return min(latest_ms, max(proposed_ms, now_ms + 1000 * refresh.min_period_s))
