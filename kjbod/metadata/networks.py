"""Networks as the hosts of ACLs: ``10.0.0.0/8``, ``fe80::/10`` (KIP-1276; ``CidrUtils`` of Kafka 4.4.0). Pure.

Kafka looks at the networks of all ACLs, at each metadata.version; metadata.version decides only whether one may be
created. A text that is no network matches no host. Address bits behind the prefix are ignored.
"""

import re
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_V4: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})")
_V4_PREFIX: Final = re.compile(r"[0-9]{1,2}")
_V6_PREFIX: Final = re.compile(r"\+?[0-9]{1,9}")


def is_in_network(host: str, network: str) -> bool:
    """Whether an address lies in a network; not where one of them is neither IPv4 nor IPv6."""
    if "/" not in network or (found := parse_network(network)) is None:
        return False
    address = _address(host)
    if isinstance(found, IPv4Network):
        # Kafka's 0.0.0.0 lies in no network, and no client has that address.
        return isinstance(address, IPv4Address) and int(address) > 0 and address in found
    return isinstance(address, IPv6Address) and address in found


def parse_network(text: str) -> IPv4Network | IPv6Network | None:
    """Return the network of a text; None: it is none."""
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


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address as Java reads it: leading zeros are decimal, a scope id is ignored, and an IPv4 address that is
    written as an IPv6 one is neither."""
    if (octets := _V4.fullmatch(text)) is not None:
        numbers = [int(octet) for octet in octets.groups()]
        return IPv4Address(bytes(numbers)) if max(numbers) <= 255 else None
    try:
        address = IPv6Address(text.partition("%")[0])
    except AddressValueError:
        return None
    return None if address.ipv4_mapped is not None else address
