"""Tokens that a listener takes, and does not. Kafka's own verdict on each case is asked for in
test_kafka_validator.py."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc import jwk, jws

from kjbod.security.oauthbearer.exchange import Invalid, Verified
from kjbod.security.oauthbearer.keys import TOKEN_BYTES_MAX, Endpoint, ValidatorSettings
from kjbod.security.oauthbearer.validation import KEYS_MAX, UnknownKey, parse_keys, validate, validate_unsecured
from scripts.rig.identity_provider import AUDIENCE, ISSUER, LIFETIME_S, claims, key_set, signed, signing_key
from tests.depth import examples
from tests.security.oauthbearer.cases import CASES, EC, NOW_S, OTHER, RSA, SKEW_S, Case

JWKS = Endpoint("k", "file:///keys")
SETTINGS = ValidatorSettings(JWKS, audiences=(AUDIENCE, "another"), issuer=ISSUER, skew_ms=SKEW_S * 1000)
KEYS = parse_keys(key_set(EC, RSA))


def verdict(token: str, settings: ValidatorSettings = SETTINGS) -> Verified | str:
    try:
        return validate(token, KEYS, settings, NOW_S * 1000)
    except Invalid as error:
        return str(error)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_token_is_taken_or_refused_as_kafka_does(case: Case) -> None:
    found = verdict(case.token(NOW_S), SETTINGS if case.expects else ValidatorSettings(SETTINGS.jwks))
    if case.reason is None:
        assert isinstance(found, Verified) and found.user == case.user
    else:
        assert isinstance(found, str) and case.reason in found


def test_a_token_is_good_for_as_long_as_it_says() -> None:
    assert verdict(signed(claims(now_s=NOW_S), EC)) == Verified("kafka", LIFETIME_S * 1000)
    assert verdict(signed(claims(now_s=NOW_S, iat=NOW_S - 99, exp=NOW_S - 29), EC)) == Verified("kafka", 0)
    assert verdict(signed(claims(now_s=NOW_S, exp=1e300), EC)).lifetime_ms < 2**63  # type: ignore[union-attr]


def test_the_claims_of_principal_and_scope_may_have_other_names() -> None:
    settings = ValidatorSettings(SETTINGS.jwks, sub_claim="azp", scope_claim="scp", audiences=(AUDIENCE,))
    assert verdict(signed(claims(now_s=NOW_S, azp=" me ", scp=["a", "b"]), EC), settings) == Verified("me", 3_600_000)
    assert "azp" in str(verdict(signed(claims(now_s=NOW_S), EC), settings))


def test_a_key_that_is_not_there_is_named_so_that_it_can_be_looked_for() -> None:
    with pytest.raises(UnknownKey, match='no key for ES256 with kid "new"') as caught:
        validate(signed(claims(now_s=NOW_S), signing_key("new")), KEYS, SETTINGS, NOW_S * 1000)
    assert caught.value.key_id == "new"


def test_no_reason_has_the_token_or_what_a_terminal_obeys() -> None:
    token = signed(claims(now_s=NOW_S, aud="\x1b[31m" + "a" * 1000), EC)
    reason = str(verdict(token))
    assert reason.isprintable() and len(reason) < 300 and token.split(".")[1] not in reason


def test_a_public_key_is_no_secret_of_an_hmac() -> None:
    """The attack on validators that let the token choose: its key is the text of the RSA key that everybody has."""
    public = RSA.as_pem(private=False)
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": RSA.kid}).encode()).rstrip(b"=")
    body = base64.urlsafe_b64encode(json.dumps(claims(now_s=NOW_S)).encode()).rstrip(b"=")
    mac = jws.JWSRegistry.algorithms["HS256"].sign(
        head + b"." + body, jwk.OctKey.import_key(public.replace(b"-----", b""))
    )
    token = b".".join([head, body, base64.urlsafe_b64encode(mac).rstrip(b"=")]).decode()
    assert "signed with" in str(verdict(token)) and "HS256" in str(verdict(token))


def test_a_key_set_is_read_for_its_public_keys_alone() -> None:
    secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "mac"}
    weak = {"kty": "RSA", "n": base64.urlsafe_b64encode(bytes([255] * 64)).decode(), "e": "AQAB"}
    whole = EC.as_dict(private=True)
    text = json.dumps({"keys": [secret, weak, {"kty": "EC"}, 7, {**whole, "use": "enc"}, whole]})
    (key,) = parse_keys(text)
    assert key.id == EC.kid and not key.value.is_private
    for wrong in ("", "[]", "{}", '{"keys": {}}', '{"keys": []}', json.dumps({"keys": [secret]}), "[" * 5000):
        with pytest.raises(ValueError, match="expected a JSON Web Key Set"):
            parse_keys(wrong)
    with pytest.raises(ValueError, match=f"at most {KEYS_MAX}"):
        parse_keys(json.dumps({"keys": [{}] * (KEYS_MAX + 1)}))


def test_a_token_that_is_too_long_is_not_even_read() -> None:
    token = signed(claims(now_s=NOW_S, more="a" * TOKEN_BYTES_MAX), EC)
    assert f"{TOKEN_BYTES_MAX} bytes at most" in str(verdict(token))


@settings(max_examples=examples(200))
@given(st.text() | st.from_regex(r"\A[-_A-Za-z0-9]*\.[-_A-Za-z0-9]*\.[-_A-Za-z0-9]*\Z"))
def test_whatever_a_stranger_calls_a_token_is_refused_in_words(token: str) -> None:
    assert isinstance(verdict(token), str)
    with pytest.raises(Invalid):
        validate_unsecured(token, ValidatorSettings(), 0)


_JSON: Any = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists)


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(["sub", "exp", "iat", "nbf", "aud", "iss", "scope"]), _JSON))
def test_whatever_a_signed_token_claims_is_taken_or_refused_in_words(changes: dict[str, object]) -> None:
    verdict(signed({**claims(now_s=NOW_S), **changes}, EC))


# ---------------------------------------------------------------- unsigned ones


def unsigned(what: dict[str, object], header: object = None, tail: str = "") -> str:
    parts = [header or {"alg": "none"}, what]
    return (
        ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in parts) + f".{tail}"
    )


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (unsigned(claims(now_s=NOW_S)), None),
        (unsigned(claims(now_s=NOW_S, exp=NOW_S)), "expired 0 ms ago"),
        (unsigned(claims(now_s=NOW_S, exp=None)), "exp"),
        (unsigned(claims(now_s=NOW_S, iat=NOW_S + 1)), "in the future"),
        (unsigned(claims(now_s=NOW_S, sub=None)), "claim sub"),
        (unsigned(claims(now_s=NOW_S), {"alg": "ES256"}), "is signed"),
        (signed(claims(now_s=NOW_S), OTHER), "is signed"),
        (unsigned(claims(now_s=NOW_S), tail="AAAA"), "is signed"),
    ],
)
def test_an_unsigned_token_is_taken_where_the_file_says_so(token: str, reason: str | None) -> None:
    if reason is None:
        assert validate_unsecured(token, ValidatorSettings(skew_ms=0), NOW_S * 1000).user == "kafka"
    else:
        with pytest.raises(Invalid, match=reason):
            validate_unsecured(token, ValidatorSettings(skew_ms=0), NOW_S * 1000)


def test_the_scope_that_an_unsigned_token_lacks_is_said_to_the_client() -> None:
    settings = ValidatorSettings(required_scope=("read", "write"))
    assert (
        validate_unsecured(unsigned(claims(now_s=NOW_S, scope="write x read")), settings, NOW_S * 1000).user == "kafka"
    )
    with pytest.raises(Invalid, match="lacks the scope write") as caught:
        validate_unsecured(unsigned(claims(now_s=NOW_S, scope=["read"])), settings, NOW_S * 1000)
    assert (caught.value.status, caught.value.scope) == ("insufficient_scope", "read write")
