"""Tokens, and what becomes of each: for our validator, and for Kafka's own."""

import base64
import json
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from scripts.rig.identity_provider import AUDIENCE, claims, signed, signing_key

NOW_S = 1_800_000_000
SKEW_S = 300
"""Much more than it takes to ask Kafka."""
EC = signing_key("ec")
RSA = signing_key("rsa", "RSA")
OTHER = signing_key("ec")
"""Has the name of a key that is known, and is another one."""


class Case(Struct, frozen=True):
    """A token.

    Attributes:
        name: what it is about.
        token: made for a moment.
        reason: words of the refusal; None: it is taken.
        user: whose it is.
        expects: whether the listener expects an audience and an issuer.
    """

    name: str
    token: Callable[[int], str]
    reason: str | None = None
    user: str = "kafka"
    expects: bool = True


def _with(**changes: Any) -> Callable[[int], str]:
    return lambda now_s: signed(claims(now_s=now_s, **changes), EC)


def _after(**offsets: Any) -> Callable[[int], str]:
    """Moments so many seconds from now."""

    def make(now_s: int) -> str:
        moments: Any = {name: now_s + by for name, by in offsets.items()}
        return signed(claims(now_s=now_s, **moments), EC)

    return make


def _header(**changes: object) -> Callable[[int], str]:
    return lambda now_s: signed(claims(now_s=now_s), EC, changes)


def _unsigned(now_s: int) -> str:
    parts = ({"alg": "none", "kid": "ec"}, claims(now_s=now_s))
    return ".".join(base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in parts) + "."


def _tampered(now_s: int) -> str:
    head, _, tail = signed(claims(now_s=now_s), EC).split(".")
    return f"{head}.{signed(claims('admin', now_s), EC).split('.')[1]}.{tail}"


CASES: tuple[Case, ...] = (
    Case("ES256", _with()),
    Case("RS256", lambda now_s: signed(claims(now_s=now_s), RSA)),
    Case("RS512", lambda now_s: signed(claims(now_s=now_s), RSA, {"alg": "RS512"})),
    Case("PS256", lambda now_s: signed(claims(now_s=now_s), RSA, {"alg": "PS256"})),
    Case("without kid", _header(kid=None)),
    Case("unknown header", _header(x5c=["a" * 2000], foo=1)),
    Case("none", _unsigned, "signed with"),
    Case("empty signature", lambda now_s: _with()(now_s).rpartition(".")[0] + ".", "signature"),
    Case("another key", lambda now_s: signed(claims(now_s=now_s), OTHER), "signature is not valid"),
    Case("another body", _tampered, "signature is not valid"),
    Case("unknown kid", _header(kid="nobody"), "no key for ES256"),
    Case("kid of another type", _header(kid="rsa"), "no key for ES256"),
    Case("crit", _header(crit=["foo"], foo=1), "signature"),
    Case("expired", _after(exp=-SKEW_S - 1), "expired 301000 ms ago"),
    Case("expired at the edge", _after(exp=-SKEW_S), "expired 300000 ms ago"),
    Case("expired within the skew", _after(exp=-100, iat=-200)),
    Case("ends before it is issued", _after(exp=10, iat=20), "ends before it begins"),
    Case("ends before it begins", _after(exp=10, nbf=20), "ends before it begins"),
    Case("not yet", _after(nbf=400), "valid in 400000 ms"),
    Case("not yet, within the skew", _after(nbf=200)),
    Case("without exp", _with(exp=None), "(exp)"),
    Case("exp as text", _with(exp="2000000000"), "exp is no number"),
    Case("exp negative", _with(exp=-1), "exp is no number"),
    Case("without iat", _with(iat=None), "(iat)"),
    Case("iat in the future", _after(iat=600)),
    Case("without sub", _with(sub=None), "claim sub"),
    Case("empty sub", _with(sub=" "), "claim sub"),
    Case("sub as number", _with(sub=7), "claim sub"),
    Case("sub with blanks", _with(sub=" alice "), user="alice"),
    Case("wrong aud", _with(aud="elsewhere"), "elsewhere"),
    Case("aud among others", _with(aud=["elsewhere", AUDIENCE])),
    Case("wrong auds", _with(aud=["elsewhere"]), "elsewhere"),
    Case("without aud", _with(aud=None), "no audience"),
    Case("aud as number", _with(aud=7), "audience"),
    Case("wrong iss", _with(iss="https://evil.example"), "evil"),
    Case("without iss", _with(iss=None), "(iss)"),
    Case("aud where none is expected", _with(), f'for ["{AUDIENCE}"]', expects=False),
    Case("nothing expected", _with(aud=None, iss="x"), expects=False),
    Case("scope as text", _with(scope="a b")),
    Case("scopes", _with(scope=["a", "b"])),
    Case("scope twice", _with(scope=["a", "a"]), "there twice"),
    Case("empty scope", _with(scope=""), "empty"),
    Case("empty scope among others", _with(scope=["a", " "]), "empty"),
    Case("scope as number", _with(scope=7)),
    Case("no token", lambda _: "a.b", "JWT"),
    Case("five parts", lambda _: "a.b.c.d.e", "JWT"),
)
