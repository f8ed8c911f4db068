"""The client's half of SASL mechanisms as state machines without I/O: PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677),
compatible with Kafka (``PlainSaslServer``, ``ScramSaslServer``, ``ScramFormatter`` of 4.3.1, KIP-43, KIP-48, KIP-84).

A state machine gives the first message, then the answer to each message of the server, until it is done. SCRAM
authenticates both ends: the last message of a server without the password fails the check.

Kafka uses names and passwords as UTF-8 bytes, without the preparation (SASLprep) of SCRAM libraries, which could change
a password. So the few lines of SCRAM are here, with the hashes of Python.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final, Protocol

from kjbod.errors import RemoteProtocolError
from kjbod.scram import ITERATIONS_MAX, MECHANISMS, keys_of
from kjbod.security.keys import Login

_PLAIN: Final = "PLAIN"
_GS2_HEADER: Final = "n,,"
"""No channel binding and no other identity."""
_TOKEN_EXTENSION: Final = ",tokenauth=true"
"""Marks name and password as those of a delegation token (``ScramLoginModule``, KIP-48)."""


class ClientMechanism(Protocol):
    """The client's half of one exchange.

    Attributes:
        blocks: whether its steps may take long; each step must then run in a thread.
    """

    blocks: bool

    def first(self) -> bytes:
        """Return the first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the answer to a message of the server; None: that was the last message.

        Raises:
            RemoteProtocolError: the message does not fit the mechanism, or the server does not know the password.
        """


def client_mechanism(login: Login, nonce: str) -> ClientMechanism:
    """Return the state machine for one exchange. ``nonce`` is printable, without commas, and never used before."""
    return _Plain(login) if login.mechanism == _PLAIN else _Scram(login, nonce)


class _Plain:
    """PLAIN: user name and password in one message."""

    blocks = False

    def __init__(self, login: Login) -> None:
        self._login = login

    def first(self) -> bytes:
        return f"\0{self._login.username}\0{self._login.password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if challenge:
            raise RemoteProtocolError("the server asks on after PLAIN")
        return None


class _Scram:
    """SCRAM: two messages from each end; none contains the password."""

    blocks = False

    def __init__(self, login: Login, nonce: str) -> None:
        self._login = login
        self._mechanism = MECHANISMS[login.mechanism]
        self._nonce = nonce
        self._bare = f"n={sasl_name(login.username)},r={nonce}{_TOKEN_EXTENSION if login.is_token else ''}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        return f"{_GS2_HEADER}{self._bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        try:
            text = challenge.decode()
            fields = dict(part.split("=", 1) for part in text.split(","))
            if self._server_signature is None:
                return self._prove(text, fields)
            self._check(fields, self._server_signature)
        except (ValueError, KeyError, binascii.Error):
            raise RemoteProtocolError(f"the server sent what is no {self._login.mechanism}") from None
        return None

    def _prove(self, server_first: str, fields: dict[str, str]) -> bytes:
        """Return the client's final message."""
        nonce, salt, iterations = fields["r"], base64.b64decode(fields["s"], validate=True), int(fields["i"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise RemoteProtocolError(f"the server sent an old message of {self._login.mechanism}")
        if not self._mechanism.iterations_min <= iterations <= ITERATIONS_MAX:
            # Fewer iterations would help an impostor guess the password, more would keep us busy.
            raise RemoteProtocolError(
                f"the server wants {iterations} iterations of {self._login.mechanism}: expected "
                f"{self._mechanism.iterations_min} to {ITERATIONS_MAX}"
            )
        name = self._mechanism.hash
        salted = hashlib.pbkdf2_hmac(name, self._login.password.encode(), salt, iterations)
        bare_final = f"c={base64.b64encode(_GS2_HEADER.encode()).decode()},r={nonce}"
        message = f"{self._bare},{server_first},{bare_final}".encode()
        keys = keys_of(salted, self._mechanism)
        signature = hmac.digest(keys.stored, message, name)
        self._server_signature = hmac.digest(keys.server, message, name)
        proof = bytes(a ^ b for a, b in zip(keys.client, signature, strict=True))
        return f"{bare_final},p={base64.b64encode(proof).decode()}".encode()

    def _check(self, fields: dict[str, str], signature: bytes) -> None:
        if "e" in fields:
            raise RemoteProtocolError(f"the server refused {self._login.mechanism}")
        if not hmac.compare_digest(base64.b64decode(fields["v"], validate=True), signature):
            raise RemoteProtocolError("the server does not know the password: it is not who it should be")


def sasl_name(name: str) -> str:
    """Return a user's name as SCRAM writes it (RFC 5802, ``saslname``)."""
    return name.replace("=", "=3D").replace(",", "=2C")
