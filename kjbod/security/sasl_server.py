"""The server's half of SASL mechanisms as state machines without I/O: PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677),
compatible with Kafka (``PlainSaslServer``, ``PlainServerCallbackHandler``, ``ScramSaslServer``,
``ScramServerCallbackHandler`` of 4.3.1, KIP-43, KIP-48, KIP-84).

A state machine answers each message of the client until it reports the user or refuses the client. After that it
accepts no message. The caller limits the length of messages (``sasl.server.max.receive.size``); the work per message
grows linearly with its length.

Names and passwords are UTF-8 bytes, as in :mod:`kjbod.security.sasl`. Stricter than Kafka, SCRAM accepts only the
agreed channel binding. It also does not report that the requested identity differs from the user; Kafka does for known
names. Kafka's SCRAM accepts ASCII names only; here any name is accepted.
"""

import base64
import dataclasses
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Final, Protocol, runtime_checkable

from msgspec import Struct

from kjbod.errors import KjbodError
from kjbod.scram import MECHANISMS
from kjbod.security.jaas import LoginModule

_USER_OPTION: Final = "user_"
_PLAIN_FIELDS: Final = 3
_TOKEN_EXTENSION: Final = "tokenauth"
_NAME: Final = "(?:[^=,\\0]|=2C|=3D)+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*)"
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization>{_NAME}))?,)(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>{_NONCE}){_EXTENSIONS})"
)
_CLIENT_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<header>[^,]+),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>[^,]+)"
)


class Refused(KjbodError):  # noqa: N818 - an answer of the protocol
    """Refusal of a client. The text for the client is Kafka's: it has no secret, and does not show whether a name is
    known.

    Attributes:
        reason: reason for our log; the text for the client if not given.
    """

    def __init__(self, words: str, reason: str = "") -> None:
        super().__init__(words)
        self.reason = reason or words


class Answer(Struct, frozen=True):
    """The server's answer to one message.

    Attributes:
        reply: the message to send back; it may be empty.
        user: user that the client has proved to be; None: the exchange is not finished.
        token_expires_ms: end of the delegation token of this login, milliseconds since 1970; None: no delegation token.
        lifetime_ms: time for which the login is valid; None: no limit.
    """

    reply: bytes
    user: str | None = None
    token_expires_ms: int | None = None
    lifetime_ms: int | None = None


class ServerMechanism(Protocol):
    """The server's half of one exchange."""

    def answer(self, message: bytes) -> Answer:
        """Return the answer to a message of the client.

        Raises:
            Refused: the client is refused.
        """


@runtime_checkable
class SlowMechanism(ServerMechanism, Protocol):
    """A mechanism whose answers may take long to compute."""

    def work(self, message: bytes) -> None:
        """Compute the answer to a message, for :meth:`answer`. Blocks: run it in a thread."""


@dataclasses.dataclass(frozen=True, slots=True)
class ScramCredential:
    """Data that a server stores instead of a password (``ScramCredential``)."""

    salt: bytes
    stored_key: bytes = dataclasses.field(repr=False)
    server_key: bytes = dataclasses.field(repr=False)
    iterations: int


class TokenCredential(Struct, frozen=True):
    """A delegation token as a login.

    Attributes:
        credential: credential whose password is the HMAC of the token.
        owner: name of the user whom the token represents.
        expires_ms: end of the token, milliseconds since 1970.
    """

    credential: ScramCredential
    owner: str
    expires_ms: int


def no_token(_token_id: str) -> TokenCredential | None:
    """Return None: no tokens."""
    return None


def plain_users(module: LoginModule) -> Mapping[str, str]:
    """Return passwords by user name, from the options ``user_NAME=password`` of a ``PlainLoginModule``."""
    options = module.options.items()
    return {name.removeprefix(_USER_OPTION): password for name, password in options if name.startswith(_USER_OPTION)}


def plain(users: Mapping[str, str]) -> ServerMechanism:
    """Return the state machine for one exchange by PLAIN; ``users``: passwords by name."""
    return _Plain(users)


def scram(
    mechanism: str,
    credential: Callable[[str], ScramCredential | None],
    nonce: str,
    token: Callable[[str], TokenCredential | None] = no_token,
) -> ServerMechanism:
    """Return the state machine for one exchange by SCRAM.

    Args:
        mechanism: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        credential: returns the credential of a user; None: no such user.
        nonce: printable, without commas, never used before.
        token: returns a delegation token by its id; None: no such token.
    """
    return _Scram(mechanism, credential, nonce, token)


class _Begun(Struct, frozen=True):
    """An exchange after its first two messages. ``signed`` is the part of these messages that both ends sign."""

    user: str
    credential: ScramCredential
    nonce: str
    header: str
    signed: str
    token_expires_ms: int | None


class _Plain:
    """PLAIN: user name and password in one message."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._asked = False

    def answer(self, message: bytes) -> Answer:
        if self._asked:
            raise Refused("Authentication failed: unexpected message after the exchange")
        self._asked = True
        fields = message.split(b"\0", _PLAIN_FIELDS)
        if len(fields) != _PLAIN_FIELDS:
            raise Refused(f"Invalid SASL/PLAIN response: expected {_PLAIN_FIELDS} tokens, got {len(fields)}")
        authorization_id, username, password = fields
        if not username:
            raise Refused("Authentication failed: username not specified")
        if not password:
            raise Refused("Authentication failed: password not specified")
        user = self._authenticated(username, password)
        if user is None:
            raise Refused("Authentication failed: Invalid username or password")
        if authorization_id not in (b"", username):
            raise Refused("Authentication failed: Client requested an authorization id that is different from username")
        return Answer(b"", user)

    def _authenticated(self, username: bytes, password: bytes) -> str | None:
        try:
            user = username.decode()
            password.decode()
        except UnicodeDecodeError:
            return None
        known = self._users.get(user)
        # Takes equally long for an unknown name. A client cannot send a surrogate of a file as UTF-8.
        expected = (known or "").encode(errors="surrogatepass")
        matches = hmac.compare_digest(expected, password)
        return user if matches and known is not None else None


class _Scram:
    """SCRAM: two messages from each end. As in Kafka, an unknown name is refused after the client's first message."""

    def __init__(
        self,
        mechanism: str,
        credential: Callable[[str], ScramCredential | None],
        nonce: str,
        token: Callable[[str], TokenCredential | None],
    ) -> None:
        self._name = mechanism
        self._mechanism = MECHANISMS[mechanism]
        self._credential = credential
        self._nonce = nonce
        self._token = token
        self._begun: _Begun | None = None
        self._next: Callable[[str], Answer] | None = self._first

    def answer(self, message: bytes) -> Answer:
        step, self._next = self._next, None  # after a failed step there is no next step
        if step is None:
            raise self._refused()
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise self._refused() from None
        return step(text)

    def _first(self, message: str) -> Answer:
        parts = _CLIENT_FIRST.fullmatch(message)
        if parts is None:
            raise self._refused()
        name = _user(parts["name"])
        user, credential, expires_ms = self._known(name, by_token=_is_token(parts["extensions"]))
        if credential.iterations < self._mechanism.iterations_min:
            raise self._refused()
        if parts["authorization"] is not None and _user(parts["authorization"]) != name:
            raise self._refused()
        nonce = parts["nonce"] + self._nonce
        reply = f"r={nonce},s={base64.b64encode(credential.salt).decode()},i={credential.iterations}"
        self._begun = _Begun(user, credential, nonce, parts["header"], f"{parts['bare']},{reply}", expires_ms)
        self._next = self._final
        return Answer(reply.encode())

    def _known(self, name: str, *, by_token: bool) -> tuple[str, ScramCredential, int | None]:
        """Return the user of a name, the credential, and the time at which the credential expires."""
        if by_token:
            token = self._token(name)
            if token is not None:
                return token.owner, token.credential, token.expires_ms
        else:
            credential = self._credential(name)
            if credential is not None:
                return name, credential, None
        raise self._refused()

    def _final(self, message: str) -> Answer:
        begun, parts = self._begun, _CLIENT_FINAL.fullmatch(message)
        assert begun is not None
        if parts is None or parts["nonce"] != begun.nonce or _decoded(parts["header"]) != begun.header.encode():
            raise self._refused()
        known, proof = begun.credential, _decoded(parts["proof"])
        signed = f"{begun.signed},{parts['unproved']}".encode()
        signature = hmac.digest(known.stored_key, signed, self._mechanism.hash)
        if proof is None or len(proof) != len(signature):
            raise self._refused()
        client_key = bytes(a ^ b for a, b in zip(signature, proof, strict=True))
        if not hmac.compare_digest(hashlib.new(self._mechanism.hash, client_key).digest(), known.stored_key):
            raise self._refused()
        proved = hmac.digest(known.server_key, signed, self._mechanism.hash)
        return Answer(f"v={base64.b64encode(proved).decode()}".encode(), begun.user, begun.token_expires_ms)

    def _refused(self) -> Refused:
        # Text of ``SaslServerAuthenticator``: a client of SCRAM learns nothing else.
        return Refused(
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {self._name}"
        )


def _is_token(extensions: str) -> bool:
    """Return whether the client logs in by a delegation token. As in Kafka (``ScramExtensions``), the last of repeated
    extensions counts, and case is ignored."""
    found = dict(one.split("=", 1) for one in extensions.split(",")[1:])
    return found.get(_TOKEN_EXTENSION, "").lower() == "true"


def _user(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
