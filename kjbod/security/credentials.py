"""Logins by SCRAM from the cluster metadata: credentials of users (``ScramImage``, KIP-554) and delegation tokens
(``DelegationTokenCache``, KIP-48, KIP-900)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kjbod.metadata.image import MetadataImage
from kjbod.scram import MECHANISMS
from kjbod.security.sasl_server import ScramCredential
from kjbod.security.tokens import password_of


@dataclass(frozen=True, slots=True)
class Token:
    """Delegation token, as a login.

    Attributes:
        password: password that belongs to the token's id.
        owner: name of the user whom the token represents.
        expires_ms: end of the token, milliseconds since 1970.
    """

    password: str = field(repr=False)
    owner: str
    expires_ms: int


class Credentials(Protocol):
    """Users and delegation tokens that can log in by SCRAM on a listener."""

    def of_user(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user; None: no such user."""

    def of_token(self, token_id: str) -> Token | None:
        """Return a delegation token by its id; None: no such token."""


class NoCredentials:
    """Credentials without any user or token."""

    def of_user(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return None."""
        return None

    def of_token(self, token_id: str) -> Token | None:
        """Return None."""
        return None


class MetadataCredentials:
    """Credentials in the metadata.

    Args:
        image: returns the current metadata.
        secret_key: ``delegation.token.secret.key``; None: delegation tokens cannot log in.
    """

    def __init__(self, image: Callable[[], MetadataImage], secret_key: str | None) -> None:
        self._image = image
        self._secret_key = secret_key

    def of_user(self, mechanism: str, user: str) -> ScramCredential | None:
        """Return the credential of a user; None: no such user."""
        record = self._image().scram.get((MECHANISMS[mechanism].id, user))
        if record is None:
            return None
        return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)

    def of_token(self, token_id: str) -> Token | None:
        """Return a delegation token; None: no such token, or no secret key."""
        record = self._image().delegation_tokens.get(token_id)
        if record is None or self._secret_key is None:
            return None
        _, _, owner = record.owner.partition(":")
        return Token(password_of(token_id, self._secret_key), owner, record.expiration_timestamp)
