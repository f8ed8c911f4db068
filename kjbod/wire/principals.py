"""Principal and host of a forwarded request, as encoded in an Envelope (KIP-590).

The principal is Kafka's ``DefaultPrincipalData`` after an int16 version (``DefaultKafkaPrincipalBuilder``). The host is
the 4 or 16 bytes of the client's address.
"""

import functools
import ipaddress
import struct
from typing import Final

from msgspec import Struct

from kjbod.wire.codec import Codec, Field, MalformedMessageError, Schema, compile_codec

_VERSION: Final = 0
_STRING_BYTES_MAX: Final = 32_767
"""Maximum bytes of a string in any message: old versions could not answer about a longer principal."""
_HOSTS_MAX: Final = 4_096
"""Maximum addresses whose text is cached."""
_INT16: Final = struct.Struct(">h")


class ForwardedPrincipal(Struct, frozen=True, kw_only=True):
    """The client that a broker authenticated."""

    principal_type: str
    """``User``, with Kafka's own principal builder."""
    name: str
    token_authenticated: bool = False
    """Whether the client logged in by a delegation token."""

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"

    @classmethod
    def of(cls, principal: str, *, token_authenticated: bool = False) -> "ForwardedPrincipal":
        """Return the principal from ``User:alice``."""
        kind, _, name = principal.partition(":")
        return cls(principal_type=kind, name=name, token_authenticated=token_authenticated)


_CODEC: Final[Codec[ForwardedPrincipal]] = compile_codec(
    Schema(
        "DefaultPrincipalData",
        _VERSION,
        True,
        (Field("principal_type", "string"), Field("name", "string"), Field("token_authenticated", "bool")),
    ),
    ForwardedPrincipal,
)


def encode_principal(principal: ForwardedPrincipal) -> bytes:
    """Return the bytes of ``EnvelopeRequest.request_principal``."""
    return _INT16.pack(_VERSION) + _CODEC.encode(principal)


def decode_principal(data: bytes | None) -> ForwardedPrincipal:
    """Decode a principal that :func:`encode_principal` or Kafka wrote.

    Raises:
        MalformedMessageError: no principal, another version, or malformed.
    """
    if data is None or len(data) < _INT16.size:
        raise MalformedMessageError("an envelope without a principal")
    (version,) = _INT16.unpack_from(data)
    if version != _VERSION:
        raise MalformedMessageError(f"a principal of version {version}, only {_VERSION} is known")
    found = _CODEC.decode_exact(data, _INT16.size)
    if max(len(found.principal_type.encode()), len(found.name.encode())) > _STRING_BYTES_MAX:
        raise MalformedMessageError(f"a principal of {len(data)} bytes: its parts have at most {_STRING_BYTES_MAX}")
    return found


def encode_host(host: str) -> bytes:
    """Return the bytes of ``EnvelopeRequest.client_host_address``.

    Raises:
        ValueError: not an IP address.
    """
    return ipaddress.ip_address(host.partition("%")[0]).packed


def decode_host(data: bytes) -> str:
    """Return the address as ACLs write it.

    Raises:
        MalformedMessageError: not 4 or 16 bytes.
    """
    try:
        address = ipaddress.ip_address(data)
    except ValueError:
        raise MalformedMessageError(f"a client address of {len(data)} bytes") from None
    return _host(address)


@functools.lru_cache(maxsize=_HOSTS_MAX)
def host_of_acls(host: str) -> str:
    """Return the address of a peer as ACLs write it; other text is returned unchanged."""
    try:
        return _host(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return host


def _host(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return an address like Java's ``InetAddress.getHostAddress``: IPv6 in full without leading zeros, a mapped IPv4
    address as IPv4."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{group:x}" for group in struct.unpack(">8H", address.packed))
