"""A token of ours as text and in time: what is asked of an endpoint, what its answers mean, when a token is renewed.
The moments are those of ExpiringCredentialRefreshingLogin of 4.3.1, the requests those of its request formatters."""

import base64
import json
from collections.abc import Mapping
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kjbod.errors import KjbodError, LoginUnavailable
from kjbod.security.oauthbearer.keys import (
    CLIENT_ASSERTION,
    CLIENT_SECRET,
    JWT_BEARER,
    UNSECURED,
    Assertion,
    Endpoint,
    Refresh,
    TokenSettings,
)
from kjbod.security.oauthbearer.tokens import (
    Token,
    assertion_parts,
    parse_answer,
    part_of,
    pauses_ms,
    renew_at_ms,
    request_of,
    token_of,
    unsecured_token,
)
from scripts.rig.identity_provider import claims, signed
from tests.security.oauthbearer.cases import EC, NOW_S

NOW_MS = NOW_S * 1000
HOUR_MS = 3_600_000


def form(body: str) -> Mapping[str, str]:
    return {name: values[0] for name, values in parse_qs(body, strict_parsing=True).items()}


def test_a_secret_goes_into_the_header_and_a_scope_into_the_form() -> None:
    settings = TokenSettings(CLIENT_SECRET, client_id="me", client_secret="a+b%:c", scope="one two&x=y")
    headers, body = request_of(settings, "")
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:a+b%:c"
    assert headers["Content-Type"] == "application/x-www-form-urlencoded" and headers["Accept"] == "application/json"
    assert form(body) == {"grant_type": "client_credentials", "scope": "one two&x=y"}


def test_name_and_secret_are_encoded_where_the_file_says_so() -> None:
    settings = TokenSettings(CLIENT_SECRET, client_id="m e", client_secret="a+b%:c", encodes_header=True)
    headers, body = request_of(settings, "")
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"m+e:a%2Bb%25%3Ac"
    assert form(body) == {"grant_type": "client_credentials"}


def test_an_assertion_takes_the_place_of_a_secret_or_of_the_whole_grant() -> None:
    headers, body = request_of(TokenSettings(CLIENT_ASSERTION, client_id="me", scope="s"), "a.b.c")
    assert "Authorization" not in headers
    assert form(body) == {
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": "a.b.c",
        "grant_type": "client_credentials",
        "client_id": "me",
        "scope": "s",
    }
    _, body = request_of(TokenSettings(JWT_BEARER), "a.b.c")
    assert form(body) == {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "a.b.c"}


@pytest.mark.parametrize(
    ("status", "body", "said", "kind"),
    [
        (401, b'{"error": "invalid_client", "error_description": "no"}', "HTTP 401: invalid_client: no", KjbodError),
        (400, b'{"errorCode": "E1", "errorSummary": "bad"}', "HTTP 400: E1: bad", KjbodError),
        (404, b"<html>secret page</html>", "HTTP 404", KjbodError),
        (302, b"", "HTTP 302", LoginUnavailable),
        (503, b'{"error": 7}', "HTTP 503", LoginUnavailable),
        (429, b"[" * 10_000, "HTTP 429", LoginUnavailable),
        (200, b'{"refresh_token": "secret"}', "HTTP 200 without an access_token", KjbodError),
        (200, b'{"access_token": " "}', "HTTP 200 without an access_token", KjbodError),
        (500, b'{"error": "\\u001b[31m' + b"x" * 5_000 + b'"}', "HTTP 500: \\x1b[31mxxx", LoginUnavailable),
    ],
)  # fmt: skip
def test_an_endpoint_that_gives_none_is_named_with_its_status_and_its_words(
    status: int, body: bytes, said: str, kind: type[KjbodError]
) -> None:
    with pytest.raises(KjbodError) as caught:
        parse_answer("https://idp/token", status, body)
    assert type(caught.value) is kind
    line = str(caught.value)
    assert line.startswith(f"the token endpoint https://idp/token answers {said}") and "secret" not in line
    assert line.isprintable() and len(line) < 500


def test_a_token_may_be_an_id_token() -> None:
    assert parse_answer("x", 200, b'{"access_token": " a.b.c ", "id_token": "d"}') == "a.b.c"
    assert parse_answer("x", 201, b'{"id_token": "d"}') == "d"


def test_tries_are_again_after_pauses_that_double_until_the_last_one() -> None:
    assert list(pauses_ms(100, 1_000)) == [100, 200, 400, 300]
    assert list(pauses_ms(100, 100)) == [100]
    assert list(pauses_ms(0, 0)) == []


def test_a_token_of_ours_needs_an_end_and_an_owner() -> None:
    settings = TokenSettings(CLIENT_SECRET)
    found = token_of(f" {signed(claims(now_s=NOW_S), EC)}\n", settings)
    assert (found.subject, found.starts_ms, found.expires_ms) == ("kafka", NOW_MS, NOW_MS + HOUR_MS)
    assert found.value not in repr(found)
    whole = claims(now_s=NOW_S)
    for lacking in ("exp", "sub"):
        with pytest.raises(ValueError, match=f"claim {lacking}"):
            token_of(signed({name: whole[name] for name in whole if name != lacking}, EC), settings)
    for wrong in ("opaque", "a.b", "a.!.c", "a.YQ.c"):
        with pytest.raises(ValueError, match=r"text is no J|not in base64"):
            token_of(wrong, settings)


# ---------------------------------------------------------------- when it is renewed


def token(lifetime_s: int, starts_ms: int | None = NOW_MS) -> Token:
    return Token("t", "kafka", starts_ms, NOW_MS + lifetime_s * 1000)


@pytest.mark.parametrize(
    ("lifetime_s", "refresh", "chance", "after_s"),
    [
        (3600, Refresh(), 0.0, 2880),
        (3600, Refresh(), 1.0, 3060),
        (3600, Refresh(window_factor=1.0, window_jitter=0.0), 0.0, 3300),
        (3600, Refresh(window_factor=0.5, window_jitter=0.0, min_period_s=900, buffer_s=0), 0.0, 1800),
        (1000, Refresh(window_factor=0.5, window_jitter=0.0, min_period_s=900, buffer_s=0), 0.0, 900),
        (100, Refresh(), 0.0, 80),
        (0, Refresh(), 1.0, 0),
    ],
)
def test_a_token_is_renewed_in_its_window(lifetime_s: int, refresh: Refresh, chance: float, after_s: int) -> None:
    assert renew_at_ms(token(lifetime_s), refresh, NOW_MS, chance) == NOW_MS + after_s * 1000


@given(
    st.integers(0, 10**6), st.integers(-(10**6), 10**6), st.floats(0.5, 1), st.floats(0, 0.25), st.integers(0, 900),
    st.integers(0, 3600), st.floats(0, 1),
)  # fmt: skip
def test_a_token_is_never_renewed_behind_its_end_where_its_window_lies_before_it(
    lifetime_s: int, start_s: int, factor: float, jitter: float, least_s: int, buffer_s: int, chance: float
) -> None:
    refresh = Refresh(factor, min(jitter, 1 - factor), least_s, buffer_s)
    found = renew_at_ms(token(lifetime_s, NOW_MS + start_s * 1000), refresh, NOW_MS, chance)
    assert found <= NOW_MS + lifetime_s * 1000
    assert found >= NOW_MS


# ---------------------------------------------------------------- ones that are made here


def test_an_unsigned_token_has_the_claims_of_the_jaas_entry() -> None:
    options = {
        "unsecuredLoginStringClaim_sub": 'ali"ce',
        "unsecuredLoginNumberClaim_n": "1.5",
        "unsecuredLoginListClaim_scope": "|a|b c",
        "unsecuredLoginLifetimeSeconds": "60",
    }
    text, principal, scope = unsecured_token(options, NOW_MS)
    assert text.endswith(".") and part_of(text, 0) == {"alg": "none"}
    expected = {"sub": 'ali"ce', "n": 1.5, "scope": ["a", "b c"], "iat": NOW_S, "exp": NOW_S + 60}
    assert part_of(text, 1) == expected and (principal, scope) == ("sub", "scope")
    found = token_of(text, TokenSettings(UNSECURED))
    assert (found.subject, found.expires_ms) == ('ali"ce', NOW_MS + 60_000)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("LifetimeSeconds", "soon", "whole number"),
        ("NumberClaim_a", "x", "a number"),
        ("StringClaim_exp", "1", "clock"),
    ],
)
def test_a_wrong_option_of_an_unsigned_token_is_named(name: str, value: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"unsecuredLogin{name}: .*{reason}"):
        unsecured_token({f"unsecuredLogin{name}": value}, NOW_MS)


def test_an_assertion_has_what_the_file_says_and_the_moment() -> None:
    assertion = Assertion(
        private_key="k", algorithm="ES256", claims={"iss": "me", "sub": "me"}, lifetime_s=10, early_s=5, has_id=True
    )
    template = {"header": {"kid": "7", "alg": "none"}, "payload": {"sub": "other", "exp": 0}}
    header, body = assertion_parts(assertion, template, NOW_S, "id")
    assert header == {"alg": "ES256", "typ": "JWT", "kid": "7"}
    assert body == {"iss": "me", "sub": "other", "iat": NOW_S, "exp": NOW_S + 10, "nbf": NOW_S - 5, "jti": "id"}
    with pytest.raises(ValueError, match=r'expected \{"header"'):
        assertion_parts(assertion, {"payload": [1]}, NOW_S, "id")


def test_a_url_is_shown_without_what_is_secret_in_it() -> None:
    endpoint = Endpoint("k", "https://me:pass@idp:8443/token?key=secret#f")
    assert endpoint.shown == "https://idp:8443/token" and "pass" not in repr(endpoint) + json.dumps(endpoint.shown)
