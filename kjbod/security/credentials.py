"""Logins by SCRAM as the metadata have them: credentials of users (``ScramImage``, KIP-554), and delegation tokens
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
    """A delegation token, as a login.

    Attributes:
        password: that goes with its id.
        owner: name of the user that it stands for.
        expires_ms: since 1970.
    """

    password: str = field(repr=False)
    owner: str
    expires_ms: int


class Credentials(Protocol):
    """Users and tokens that a listener knows by SCRAM."""

    def of_user(self, mechanism: str, user: str) -> ScramCredential | None:
        """The credential of a user; None: there is none."""

    def of_token(self, token_id: str) -> Token | None:
        """A delegation token; None: there is none."""


class NoCredentials:
    """Nobody is known."""

    def of_user(self, mechanism: str, user: str) -> ScramCredential | None:
        """None."""
        return None

    def of_token(self, token_id: str) -> Token | None:
        """None."""
        return None


class MetadataCredentials:
    """Credentials in the metadata.

    Args:
        image: the metadata as they are then.
        secret_key: ``delegation.token.secret.key``; None: tokens are no login.
    """

    def __init__(self, image: Callable[[], MetadataImage], secret_key: str | None) -> None:
        self._image = image
        self._secret_key = secret_key

    def of_user(self, mechanism: str, user: str) -> ScramCredential | None:
        """The credential of a user; None: there is none."""
        record = self._image().scram.get((MECHANISMS[mechanism].id, user))
        if record is None:
            return None
        return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)

    def of_token(self, token_id: str) -> Token | None:
        """A delegation token; None: there is none, or no secret key."""
        record = self._image().delegation_tokens.get(token_id)
        if record is None or self._secret_key is None:
            return None
        _, _, owner = record.owner.partition(":")
        return Token(password_of(token_id, self._secret_key), owner, record.expiration_timestamp)
