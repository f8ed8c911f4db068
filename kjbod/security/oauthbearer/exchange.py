"""The OAUTHBEARER exchange (RFC 7628) as in Kafka (``OAuthBearerSaslClient``, ``OAuthBearerSaslServer``,
``OAuthBearerClientInitialResponse`` of 4.3.1): client and server as state machines without I/O.

The client's only message carries the token. A server that refuses the token answers with the reason in JSON, the client
sends the byte 1, and the login has failed. Unlike Kafka, the server does not let a client try again in between.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from kjbod.errors import RemoteProtocolError
from kjbod.security.oauthbearer.keys import TOKEN_BYTES_MAX
from kjbod.security.sasl_server import Answer, Refused

MECHANISM: Final = "OAUTHBEARER"
EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
AUTH: Final = "auth"
"""Name of the pair with the token; extensions cannot use this name."""
_DONE: Final = b"\x01"
_FIRST: Final = re.compile(
    rf"n,(?:a=(?P<identity>(?:[\x01-\x7f](?<![=,])|=2C|=3D)+))?,\x01"
    rf"(?P<pairs>(?:{EXTENSION_NAME.pattern}={EXTENSION_VALUE.pattern}\x01)*)\x01"
)
_BEARER: Final = re.compile(r"(?i:bearer) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")
_INVALID: Final = (
    f"Authentication failed during authentication due to invalid credentials with SASL mechanism {MECHANISM}"
)


class Invalid(Exception):  # noqa: N818 - a verdict
    """Refusal of a token. The text is for our log only: it has no secret, but a client need not know it.

    Attributes:
        status: status for the client.
        scope: scope that the token would need, for the client.
    """

    def __init__(self, reason: str, status: str = "invalid_token", scope: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.scope = scope


class Verified(Struct, frozen=True):
    """Principal and remaining lifetime of an accepted token.

    Attributes:
        user: principal of the token.
        lifetime_ms: remaining lifetime, ms; 0 if the token is valid only through the allowed clock skew.
    """

    user: str
    lifetime_ms: int


@dataclasses.dataclass(frozen=True, slots=True)
class First:
    """A client's only message."""

    token: str = dataclasses.field(repr=False)
    identity: str = ""
    extensions: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Client:
    """The client's half of the exchange.

    Args:
        token: token to send.
        extensions: SASL extensions to send (KIP-342).
    """

    blocks = False

    def __init__(self, token: str, extensions: Mapping[str, str]) -> None:
        self._token = token
        self._extensions = extensions
        self._refused = False

    def first(self) -> bytes:
        pairs = "".join(f"\x01{name}={value}" for name, value in self._extensions.items())
        return f"n,,\x01{AUTH}=Bearer {self._token}{pairs}\x01\x01".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge and not self._refused:
            return None
        if self._refused:
            raise RemoteProtocolError(f"the server asks on after it has refused {MECHANISM}")
        self._refused = True
        return _DONE


class Server:
    """The server's half of the exchange.

    Args:
        verify: checks a token; raises :class:`Invalid`.
    """

    def __init__(self, verify: Callable[[str], Verified]) -> None:
        self._verify = verify
        self._refusal: Refused | None = None

    def answer(self, message: bytes) -> Answer:
        if self._refusal is not None:
            raise self._refusal
        try:
            first = parse_first(message)
        except ValueError as error:
            self._refusal = Refused(_INVALID, str(error))
            raise self._refusal from None
        try:
            verified = self._verify(first.token)
        except Invalid as error:
            words = _said(error)
            self._refusal = Refused(words, str(error))
            return Answer(words.encode())
        if first.identity not in ("", verified.user):
            # Kafka tells the client both names. The client knows them: the token is its own.
            words = "Authentication failed: Client requested an authorization id that is different from the token's"
            self._refusal = Refused(f"{words} principal name")
            raise self._refusal
        self._refusal = Refused(_INVALID, "a message after the exchange")
        return Answer(b"", verified.user, lifetime_ms=verified.lifetime_ms)


def parse_first(message: bytes) -> First:
    """Parse a client's first message.

    Raises:
        ValueError: the message is malformed, or its token has more than :data:`.keys.TOKEN_BYTES_MAX` bytes.
    """
    if len(message) > 2 * TOKEN_BYTES_MAX:
        raise ValueError(f"a first message of more than {2 * TOKEN_BYTES_MAX} bytes")
    try:
        found = _FIRST.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise ValueError("no first message of OAUTHBEARER")
    pairs = dict(each.split("=", 1) for each in found["pairs"].split("\x01") if each)
    bearer = _BEARER.fullmatch(pairs.pop(AUTH, ""))
    if bearer is None:
        raise ValueError("a first message without a bearer token")
    if len(bearer["token"]) > TOKEN_BYTES_MAX:
        raise ValueError(f"a token of more than {TOKEN_BYTES_MAX} bytes")
    return First(bearer["token"], found["identity"] or "", pairs)


def _said(error: Invalid) -> str:
    """Return a refusal in JSON, with Kafka's spacing."""
    scope = "" if error.scope is None else f', "scope":{json.dumps(error.scope)}'
    return f'{{"status":{json.dumps(error.status)}{scope}}}'
