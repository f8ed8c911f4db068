"""Networks as the hosts of ACLs: ``10.0.0.0/8``, ``fe80::/10`` (KIP-1276; ``CidrUtils`` of Kafka 4.4.0). Pure.

Kafka evaluates the networks of all ACLs at each metadata.version; metadata.version decides only whether an ACL with a
network may be created. A text that is not a network matches no host. Address bits after the prefix are ignored.
"""

import re
from ipaddress import IPV4LENGTH, IPV6LENGTH, AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_V4: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})")
_V4_PREFIX: Final = re.compile(r"[0-9]{1,2}")
_V6_PREFIX: Final = re.compile(r"\+?[0-9]{1,9}")
_V6_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")
_OCTET_MAX: Final = 255


def is_in_network(host: str, network: str) -> bool:
    """Return whether an address is in a network; False if either is neither IPv4 nor IPv6."""
    if "/" not in network or (found := parse_network(network)) is None:
        return False
    address = _address(host)
    if isinstance(found, IPv4Network):
        # Kafka treats 0.0.0.0 as in no network, and no client has that address.
        return isinstance(address, IPv4Address) and int(address) > 0 and address in found
    return isinstance(address, IPv6Address) and address in found


def parse_network(text: str) -> IPv4Network | IPv6Network | None:
    """Parse a network; None: the text is not a network."""
    head, slash, prefix = text.partition("/")
    if not slash:
        return None
    address = _address(head.removeprefix("[").removesuffix("]")) if ":" in text else _address(head)
    bits_of = _V6_PREFIX if ":" in text else _V4_PREFIX
    if address is None or bits_of.fullmatch(prefix) is None or int(prefix) > address.max_prefixlen:
        return None
    if isinstance(address, IPv4Address):
        return IPv4Network((address, int(prefix)), strict=False)
    return IPv6Network((address, int(prefix)), strict=False)


def trouble_with_network(text: str) -> str | None:
    """Return the reason why a text with a slash is no network, in the words of Kafka's ``SubnetUtils``; None: the text
    is a network."""
    if parse_network(text) is not None:
        return None
    head, _, prefix = text.partition("/")
    if ":" in text:
        if _V6_NUMBER.fullmatch(prefix) is None:
            return f"Could not parse [{text}] - invalid prefix length"
        if not 0 <= int(prefix) <= IPV6LENGTH:
            return f"Could not parse [{text}] - prefix length must be between 0 and {IPV6LENGTH}"
        return f"Could not parse [{head}]"
    if (octets := _V4.fullmatch(head)) is None or _V4_PREFIX.fullmatch(prefix) is None:
        return f"Could not parse [{text}]"
    wrong = next((octet for octet in map(int, octets.groups()) if octet > _OCTET_MAX), None)
    if wrong is not None:
        return f"Value [{wrong}] not in range [0,{_OCTET_MAX}]"
    return f"Value [{int(prefix)}] not in range [0,{IPV4LENGTH}]"


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address as Java parses it. Leading zeros are decimal, and a scope id is ignored. An IPv4 address in
    IPv6 form is refused."""
    if (octets := _V4.fullmatch(text)) is not None:
        numbers = [int(octet) for octet in octets.groups()]
        return IPv4Address(bytes(numbers)) if max(numbers) <= _OCTET_MAX else None
    try:
        address = IPv6Address(text.partition("%")[0])
    except AddressValueError:
        return None
    return None if address.ipv4_mapped is not None else address
