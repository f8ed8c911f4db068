"""Check a client's token (``BrokerJwtValidator`` and ``OAuthBearerUnsecuredValidatorCallbackHandler`` of 4.3.1, with
the rules of jose4j that they use).

The library checks signatures, only with the algorithms of :data:`ALGORITHMS` and a key of the right type: never
``none``, and no HMAC, whose secret would be a public key. Claims are compared here, as jose4j does: a token with an
audience is refused if no audience is expected.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey
from msgspec import Struct

from kjbod.printable import printable
from kjbod.security.oauthbearer.exchange import Invalid, Verified
from kjbod.security.oauthbearer.keys import TOKEN_BYTES_MAX, ValidatorSettings
from kjbod.security.oauthbearer.tokens import object_of, part_of, scopes_of, subject_of, time_of

ALGORITHMS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
}
"""Algorithms that sign tokens, and the type of key of each (RFC 7518)."""
CURVES: Final[Mapping[str, str]] = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
KEYS_MAX: Final = 1_000
"""Maximum keys of a key set."""
KEY_ID_CHARS_MAX: Final = 1_000
"""``RefreshingHttpsJwks.MISSING_KEY_ID_MAX_KEY_LENGTH``."""
RSA_BITS_MIN: Final = 2_048
"""RFC 7518, section 3.3."""
RSA_BITS_MAX: Final = 16_384
"""Checking a signature takes time that grows with the square of the key size."""
_SHOWN_MAX: Final = 100
_RSA: Final = ("kty", "n", "e")
_EC: Final = ("kty", "crv", "x", "y")
"""Members of a public key (RFC 7518, section 6); other members of a key are ignored."""


class Key(Struct, frozen=True):
    """A public key of a key set (RFC 7517)."""

    id: str | None
    type: str
    algorithm: str | None
    curve: str | None
    value: RSAKey | ECKey


class UnknownKey(Invalid):
    """No key of the set fits the token.

    Attributes:
        key_id: key id of the token; None: not given.
    """

    def __init__(self, reason: str, key_id: str | None) -> None:
        super().__init__(reason)
        self.key_id = key_id


def parse_keys(text: bytes | str) -> tuple[Key, ...]:
    """Parse the signature keys of a JSON key set. Keys for other uses, and unreadable keys, are skipped: a set may
    contain them (RFC 7517, section 5).

    Raises:
        ValueError: the text is no key set, or has no key for signatures.
    """
    try:
        found = json.loads(text)
        entries = found["keys"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError('expected a JSON Web Key Set: {"keys": [...]}') from None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError(f"expected a JSON Web Key Set of at most {KEYS_MAX} keys")
    keys = tuple(key for key in map(_key, entries) if key is not None)
    if not keys:
        raise ValueError("expected a JSON Web Key Set with a public RSA or EC key for signatures")
    return keys


def _key(entry: object) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
        return None
    values = {name: entry.get(name) for name in (*_RSA, *_EC, "kid", "alg")}
    public = {name: value for name, value in values.items() if isinstance(value, str)}
    kind = public.get("kty", "")
    value: RSAKey | ECKey | None = None
    try:
        if kind == "RSA":
            value = RSAKey.import_key({name: public[name] for name in _RSA})
        elif kind == "EC":
            value = ECKey.import_key({name: public[name] for name in _EC})
        bits = 0 if value is None else value.public_key.key_size
    except (JoseError, ValueError, KeyError, TypeError):
        return None
    if value is None or (kind == "RSA" and not RSA_BITS_MIN <= bits <= RSA_BITS_MAX):
        return None
    return Key(public.get("kid"), kind, public.get("alg"), public.get("crv"), value)


def validate(token: str, keys: Sequence[Key], settings: ValidatorSettings, now_ms: int) -> Verified:
    """Check a signed token and return its principal.

    Raises:
        UnknownKey: no key fits.
        Invalid: the token is refused for another reason.
    """
    header = _part(lambda: part_of(token, 0))
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise Invalid(f"the token is signed with {_shown(algorithm)}: expected one of {', '.join(ALGORITHMS)}")
    if header.get("b64", True) is not True:
        raise Invalid("the token's payload is not encoded in base64")
    key = _chosen(header, algorithm, keys)
    registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    registry.max_header_length = TOKEN_BYTES_MAX
    try:
        signed = jws.deserialize_compact(token, key.value, registry=registry)
    except (JoseError, ValueError, TypeError) as error:
        raise Invalid(f"the token's signature is not valid ({type(error).__name__})") from None
    claims = _part(lambda: object_of(signed.payload))
    _check_claims(claims, settings, now_ms)
    return _verified(claims, settings, now_ms)


def validate_unsecured(token: str, settings: ValidatorSettings, now_ms: int) -> Verified:
    """Return the principal of an unsigned token, which anybody can make.

    Raises:
        Invalid: the token is refused.
    """
    if _part(lambda: part_of(token, 0)).get("alg") != "none" or not token.endswith("."):
        raise Invalid("the token is signed, and this listener takes unsigned ones alone")
    claims = _part(lambda: part_of(token, 1))
    issued_ms, expires_ms = _time(claims, "iat"), _expiry(claims)
    if now_ms >= expires_ms + settings.skew_ms:
        raise Invalid(f"the token expired {now_ms - expires_ms} ms ago")
    if issued_ms is not None and (issued_ms > now_ms + settings.skew_ms or issued_ms >= expires_ms):
        raise Invalid("the token was issued in the future, or behind its end")
    verified = _verified(claims, settings, now_ms)
    lacking = set(settings.required_scope) - set(_words(claims, settings.scope_claim))
    if lacking:
        scope = " ".join(settings.required_scope)
        raise Invalid(f"the token lacks the scope {' '.join(sorted(lacking))}", "insufficient_scope", scope)
    return verified


def _chosen(header: Mapping[str, Any], algorithm: str, keys: Sequence[Key]) -> Key:
    """Return the key that signed a token, by header and key set (jose4j's ``VerificationJwkSelector``)."""
    key_id = header.get("kid")
    if key_id is not None and (not isinstance(key_id, str) or len(key_id) > KEY_ID_CHARS_MAX):
        raise Invalid("the token's kid is no text, or too long")
    for key in keys:
        fits = key.type == ALGORITHMS[algorithm] and key.algorithm in (None, algorithm)
        if fits and key_id in (None, key.id) and CURVES.get(algorithm) in (None, key.curve):
            return key
    named = "" if key_id is None else f" with kid {_shown(key_id)}"
    raise UnknownKey(f"there is no key for {algorithm}{named}", key_id)


def _check_claims(claims: Mapping[str, Any], settings: ValidatorSettings, now_ms: int) -> None:
    expires_ms, starts_ms = _expiry(claims), _time(claims, "nbf")
    if now_ms - settings.skew_ms >= expires_ms:
        raise Invalid(f"the token expired {now_ms - expires_ms} ms ago")
    if starts_ms is not None and now_ms + settings.skew_ms < starts_ms:
        raise Invalid(f"the token is valid in {starts_ms - now_ms} ms only (nbf)")
    issued_ms = _time(claims, "iat")
    if issued_ms is None:
        raise Invalid("the token does not say when it was issued (iat)")
    if expires_ms < max(issued_ms, starts_ms or 0):
        raise Invalid("the token ends before it begins")
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if audiences is not None and not (isinstance(audiences, list) and all(isinstance(one, str) for one in audiences)):
        raise Invalid("the token's audience (aud) is neither a text nor a list of them")
    if audiences is None:
        if settings.audiences:
            raise Invalid("the token has no audience (aud), and sasl.oauthbearer.expected.audience has")
    elif not set(audiences) & set(settings.audiences):
        raise Invalid(f"the token is for {_shown(audiences)} (aud), not for sasl.oauthbearer.expected.audience")
    if settings.issuer is not None and claims.get("iss") != settings.issuer:
        raise Invalid(f"the token is from {_shown(claims.get('iss'))} (iss), not sasl.oauthbearer.expected.issuer")


def _verified(claims: Mapping[str, Any], settings: ValidatorSettings, now_ms: int) -> Verified:
    try:
        scopes_of(claims, settings.scope_claim)
        user = subject_of(claims, settings.sub_claim)
    except ValueError as error:
        raise Invalid(f"the token's {error}") from None
    return Verified(user, max(0, _expiry(claims) - now_ms))


def _words(claims: Mapping[str, Any], name: str) -> Sequence[str]:
    scope = claims.get(name)
    return scope.split() if isinstance(scope, str) else cast("Sequence[str]", scope or ())


def _expiry(claims: Mapping[str, Any]) -> int:
    expires_ms = _time(claims, "exp")
    if expires_ms is None:
        raise Invalid("the token does not say when it expires (exp)")
    return expires_ms


def _time(claims: Mapping[str, Any], name: str) -> int | None:
    try:
        return time_of(claims, name)
    except ValueError as error:
        raise Invalid(f"the token's {error}") from None


def _part(read: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    try:
        return read()
    except ValueError as error:
        raise Invalid(f"the token's {error}") from None


def _shown(value: object) -> str:
    return printable(json.dumps(value)[:_SHOWN_MAX], _SHOWN_MAX)
