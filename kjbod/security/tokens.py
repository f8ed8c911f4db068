"""Secret of a delegation token: the HMAC-SHA512 of its id with ``delegation.token.secret.key``
(``DelegationTokenManager.createHmac``, KIP-48). No record contains it: any holder of the key can compute it."""

import base64
import hmac


def hmac_of(token_id: str, secret_key: str) -> bytes:
    """Return the HMAC with which a token is renewed and expired. As in Java, characters of the key outside UTF-8 become
    a question mark."""
    return hmac.digest(secret_key.encode(errors="replace"), token_id.encode(), "sha512")


def password_of(token_id: str, secret_key: str) -> str:
    """Return the HMAC as the password of a SCRAM login, whose user name is the token's id."""
    return base64.b64encode(hmac_of(token_id, secret_key)).decode()
