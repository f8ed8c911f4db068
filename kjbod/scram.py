"""Parse SCRAM credentials of ``kafka-storage format --add-scram`` (RFC 5802; ``storage.ScramParser``).

``SCRAM-SHA-256=[name=alice,password=alice-secret]`` or, with a password salted elsewhere,
``SCRAM-SHA-512=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]``.
"""

import base64
import binascii
import dataclasses
import hashlib
import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from kjbod.errors import KjbodError
from kjbod.metadata.records import UserScramCredentialRecord

if TYPE_CHECKING:
    import random


ITERATIONS_DEFAULT = 4096
ITERATIONS_MAX = 16384
_SALT_BYTES = 24


class ScramArgumentError(KjbodError):
    """An ``--add-scram`` argument that cannot be used."""


class Mechanism(Struct, frozen=True):
    """A SCRAM mechanism: its id in records and its hash."""

    id: int
    hash: str
    iterations_min: int = 4096


MECHANISMS: Mapping[str, Mechanism] = {"SCRAM-SHA-256": Mechanism(1, "sha256"), "SCRAM-SHA-512": Mechanism(2, "sha512")}


def parse_scram(argument: str, rng: "random.Random") -> UserScramCredentialRecord:
    """Return the record of one ``--add-scram`` argument; ``rng`` makes the salt if none is given.

    Raises:
        ScramArgumentError: in Kafka's words.
    """
    name, mechanism, components = _split(argument)
    user = components.pop("name", None)
    if user is None:
        raise ScramArgumentError("You must supply 'name' to add-scram")
    salt = _decode("salt", components.pop("salt", None))
    iterations = _iterations(name, mechanism, components.pop("iterations", None))
    password, salted = components.pop("password", None), components.pop("saltedpassword", None)
    if password is None and salted is None:
        raise ScramArgumentError("You must supply one of 'password' or 'saltedpassword' to add-scram")
    if password is None and salt is None:
        raise ScramArgumentError("You must supply 'salt' with 'saltedpassword' to add-scram")
    if components:
        raise ScramArgumentError(f"Unknown SCRAM configurations: {', '.join(sorted(components))}")
    salt = rng.randbytes(_SALT_BYTES) if salt is None else salt
    if password is not None:
        key = hashlib.pbkdf2_hmac(mechanism.hash, password.encode(), salt, iterations)
    else:
        key = _decode("saltedPassword", salted) or b""
    return credential(user, mechanism, salt=salt, salted_password=key, iterations=iterations)


def credential(
    user: str, mechanism: Mechanism, *, salt: bytes, salted_password: bytes, iterations: int
) -> UserScramCredentialRecord:
    """Return the record of a salted password (``ScramFormatter``)."""
    found = keys_of(salted_password, mechanism)
    return UserScramCredentialRecord(
        name=user,
        mechanism=mechanism.id,
        salt=salt,
        stored_key=found.stored,
        server_key=found.server,
        iterations=iterations,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Keys:
    """Keys derived from a salted password (RFC 5802, section 3)."""

    client: bytes = dataclasses.field(repr=False)
    stored: bytes = dataclasses.field(repr=False)
    server: bytes = dataclasses.field(repr=False)


def keys_of(salted_password: bytes, mechanism: Mechanism) -> Keys:
    """Return the keys of a salted password."""
    client = hmac.digest(salted_password, b"Client Key", mechanism.hash)
    server = hmac.digest(salted_password, b"Server Key", mechanism.hash)
    return Keys(client, hashlib.new(mechanism.hash, client).digest(), server)


def _split(argument: str) -> tuple[str, Mechanism, dict[str, str]]:
    name, equals, text = argument.strip().partition("=")
    if not equals:
        raise ScramArgumentError("Failed to find equals sign in SCRAM argument")  # it contains a password
    if name not in MECHANISMS:
        raise ScramArgumentError(f"The add-scram mechanism {name} is not supported.")
    if not text.startswith("["):
        raise ScramArgumentError("Expected configuration string to start with [")
    if not text.endswith("]"):
        raise ScramArgumentError("Expected configuration string to end with ]")
    components: dict[str, str] = {}
    for component in text[1:-1].split(","):
        key, equals, value = component.partition("=")
        if not equals:
            raise ScramArgumentError("No equals sign found in SCRAM component")  # it may be part of a password
        quoted = len(value) >= 2 and value.startswith('"') and value.endswith('"')
        components[key] = value[1:-1] if quoted else value
    return name, MECHANISMS[name], components


def _decode(what: str, text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramArgumentError(f"Failed to decode given {what}") from None


def _iterations(name: str, mechanism: Mechanism, text: str | None) -> int:
    if text is None:
        return ITERATIONS_DEFAULT
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ScramArgumentError(f"Failed to parse iterations count: {text}")
    java_name = name.replace("-", "_")
    if int(text) < mechanism.iterations_min:
        least = mechanism.iterations_min
        raise ScramArgumentError(f"The 'iterations' value must be >= {least} for add-scram using {java_name}")
    if int(text) > ITERATIONS_MAX:
        raise ScramArgumentError(f"The 'iterations' value must be <= {ITERATIONS_MAX} for add-scram using {java_name}")
    return int(text)
