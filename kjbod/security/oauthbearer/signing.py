"""Signed assertions (RFC 7523): the library's signature with a key of a PEM file."""

import json
from collections.abc import Mapping
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

ALGORITHMS: Final = ("RS256", "ES256")
"""Algorithms of an assertion (``AssertionUtils``)."""


def sign(header: Mapping[str, Any], claims: Mapping[str, Any], pem: bytes, passphrase: str | None) -> str:
    """Return a signed token with these claims and this header, which names its algorithm.

    Raises:
        ValueError: the key cannot be read, or is for another algorithm; the text shows no part of the key.
    """
    algorithm = header["alg"]
    key_type = RSAKey if algorithm.startswith("RS") else ECKey
    try:
        key = key_type.import_key(pem, password=passphrase)
        if not key.is_private:
            raise ValueError
        registry = jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False)
        return jws.serialize_compact(dict(header), json.dumps(claims), key, registry=registry)
    except (JoseError, ValueError, TypeError):
        kind = "RSA" if key_type is RSAKey else "EC (P-256)"
        raise ValueError(
            f"expected a private {kind} key in PEM, for {algorithm}, with its passphrase if it has one"
        ) from None
