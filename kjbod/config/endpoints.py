"""The addresses in a server.properties: listeners, bootstrap servers and voters.

Parsers raise ``ValueError`` with what was expected; the loader adds key, value and file. Sources:
``SocketServerConfigs.listenerListToEndPoints``, ``Utils.getHost``, ``QuorumConfig.parseVoterConnections`` of 4.3.1.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Security protocols in the order of their ids on the wire, 0 to 3."""
DEFAULT_PROTOCOL_MAP: Mapping[str, str] = {name: name for name in SECURITY_PROTOCOLS}
PORT_MAX = 65535
INT_MAX = 2**31 - 1

_LISTENER = re.compile(r"(?P<name>.*)://(?P<address>.*)", re.ASCII)
_ADDRESS = re.compile(r"\[?(?P<host>[0-9a-zA-Z\-%._:]*?)\]?:(?P<port>[0-9]+)", re.ASCII)
"""As in Kafka, either bracket may be missing."""
_SCHEME = re.compile(r"[0-9a-zA-Z\-%._]*://", re.ASCII)
_HOST = re.compile(r"[0-9a-zA-Z\-%._:]+", re.ASCII)
_COUNT = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_LOOPBACK = "127.0.0.1"
_MAP_EXPECTED = f"expected NAME:PROTOCOL, the protocol one of {', '.join(SECURITY_PROTOCOLS)}"


class HostPort(Struct, frozen=True):
    """Address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Voter(Struct, frozen=True):
    """An entry of ``controller.quorum.voters``."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}@{HostPort(self.host, self.port)}"


class Listener(Struct, frozen=True):
    """A named endpoint.

    ``host`` of a listener to bind is empty for all interfaces. ``host`` of an advertised listener is never empty:
        without a host in the file it is this host's name, and ``host_given`` is false.
    """

    name: str
    host: str
    port: int
    protocol: str
    host_given: bool = True

    def __str__(self) -> str:
        return f"{self.name}://{HostPort(self.host, self.port)}"


def parse_host_port(text: str, *, port_min: int = 1, host_needed: bool = True) -> HostPort:
    """Parse ``host:port``, with an IPv6 host in brackets.

    Raises:
        ValueError: what was expected.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected host:port, an IPv6 host in brackets")
    host, port = match["host"], match["port"].lstrip("0") or "0"
    if host_needed and not host:
        raise ValueError("expected a host before the port")
    if len(port) > 5 or not port_min <= int(port) <= PORT_MAX:
        raise ValueError(f"expected a port from {port_min} to {PORT_MAX}")
    return HostPort(host, int(port))


def parse_server(text: str, *, port_min: int = 0) -> HostPort:
    """Parse ``host:port`` of a server to ask. The name of a listener before it, ``CONTROLLER://host:port``, is ignored
    (``Utils.getHost``). An empty host is this host.

    Raises:
        ValueError: what was expected.
    """
    found = parse_host_port(_SCHEME.sub("", text.strip(), count=1), port_min=port_min, host_needed=False)
    return found if found.host else HostPort(_LOOPBACK, found.port)


def parse_voter(text: str) -> Voter:
    """Parse ``id@host:port``.

    Raises:
        ValueError: what was expected.
    """
    node_id, at, address = text.strip().partition("@")
    if not at or not _COUNT.fullmatch(node_id) or not -INT_MAX - 1 <= int(node_id) <= INT_MAX:
        raise ValueError("expected id@host:port")
    where = parse_server(address)
    return Voter(int(node_id), where.host, where.port)


def parse_listener(text: str, protocols: Mapping[str, str], *, port_min: int = 0) -> Listener:
    """Parse ``NAME://host:port``: the name in any case, the host may be empty; ``protocols`` are by name.

    Raises:
        ValueError: what was expected.
    """
    match = _LISTENER.fullmatch(text.strip())
    if match is None or not match["name"]:
        raise ValueError("expected NAME://host:port")
    name = match["name"].upper()
    where = parse_host_port(match["address"], port_min=port_min, host_needed=False)
    if name not in protocols:
        raise ValueError(f"expected a security protocol for {name} in listener.security.protocol.map")
    return Listener(name, where.host, where.port, protocols[name])


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse ``NAME:PROTOCOL,...`` with names in upper case. Of two entries for one name in the same case, the later
    counts (``Csv.parseCsvMap``).

    Raises:
        ValueError: what was expected.
    """
    protocols: dict[str, str] = {}
    spelled: dict[str, str] = {}
    for entry in split_csv(text):
        name, colon, protocol = entry.rpartition(":")
        given, protocol = name.strip(), protocol.strip().upper()
        name = given.upper()
        if not colon or not given:
            raise ValueError(_MAP_EXPECTED)
        if spelled.setdefault(name, given) != given:
            raise ValueError(f"expected each name in one spelling, not {spelled[name]} and {given}")
        protocols[name] = protocol
    if not set(protocols.values()) <= set(SECURITY_PROTOCOLS):
        raise ValueError(_MAP_EXPECTED)
    return protocols


def split_csv(text: str) -> list[str]:
    """Return the entries between commas, without empty ones at the end (Java's ``String.split``)."""
    entries = [entry.strip() for entry in text.split(",")]
    while entries and not entries[-1]:
        entries.pop()
    return entries


def parse_host_counts(text: str) -> dict[str, int]:
    """Parse ``host:count,...`` of names or addresses, IPv6 addresses without brackets. Of two entries for one host the
    later counts (``Csv.parseCsvMap``). An empty host is this host; a negative count is 0.

    Raises:
        ValueError: what was expected.
    """
    counts: dict[str, int] = {}
    for entry in split_csv(text):
        host, colon, count = (part.strip() for part in entry.rpartition(":"))
        if not colon or not _HOST.fullmatch(host or _LOOPBACK):
            raise ValueError(f"expected host:count,..., an IPv6 host without brackets, not {entry or 'nothing'}")
        if not _COUNT.fullmatch(count) or not -INT_MAX - 1 <= int(count) <= INT_MAX:
            raise ValueError(f"expected a whole number up to {INT_MAX} after {host}:")
        counts[host or _LOOPBACK] = max(int(count), 0)
    return counts


def check_distinct(listeners: Iterable[Listener]) -> None:
    """Check that names differ, and ports too, except port 0 and one IPv4 beside one IPv6 address (KAFKA-12224).

    Raises:
        ValueError: what was expected.
    """
    names: set[str] = set()
    ports: dict[int, list[str]] = {}
    for listener in listeners:
        if listener.name in names:
            raise ValueError(f"expected a different name for each listener, not {listener.name} again")
        names.add(listener.name)
        if listener.port:
            ports.setdefault(listener.port, []).append(listener.host)
    for port, hosts in ports.items():
        if len(hosts) > 1 and sorted(map(_address_family, hosts)) != [4, 6]:
            raise ValueError(f"expected a different port for each listener, not {port} again")


def _address_family(host: str) -> int:
    if ":" in host:
        return 6
    return 4 if re.fullmatch(r"[0-9]+(\.[0-9]+){3}", host, re.ASCII) else 0
