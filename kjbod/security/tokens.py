"""The secret of a delegation token: the HMAC-SHA512 of its id by ``delegation.token.secret.key``
(``DelegationTokenManager.createHmac``, KIP-48). It is in no record: who has the key makes it again."""

import base64
import hmac


def hmac_of(token_id: str, secret_key: str) -> bytes:
    """The HMAC, by which a token is renewed and ended. What UTF-8 has not is a question mark in the key, as in Java."""
    return hmac.digest(secret_key.encode(errors="replace"), token_id.encode(), "sha512")


def password_of(token_id: str, secret_key: str) -> str:
    """The HMAC as the password of a login by SCRAM, whose user name is the token's id."""
    return base64.b64encode(hmac_of(token_id, secret_key)).decode()
