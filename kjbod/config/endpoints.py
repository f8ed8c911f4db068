"""The addresses in a server.properties: listeners, bootstrap servers and voters.

Parsers raise ``ValueError`` with what was expected; the loader adds key, value and file. Sources:
``SocketServerConfigs.listenerListToEndPoints``, ``Utils.getHost``, ``QuorumConfig.parseVoterConnections`` of 4.3.1.
"""

import re
from collections.abc import Iterable, Mapping

from kjbod.quick_dataclass import dataclass

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""In the order of their ids on the wire, 0 to 3."""
DEFAULT_PROTOCOL_MAP: Mapping[str, str] = {name: name for name in SECURITY_PROTOCOLS}
PORT_MAX = 65535
INT_MAX = 2**31 - 1

_LISTENER = re.compile(r"(?P<name>.*)://(?P<address>.*)", re.ASCII)
_ADDRESS = re.compile(
    r"(?:\[(?P<bracketed>[0-9a-zA-Z\-%._:]*)\]|(?P<bare>[0-9a-zA-Z\-%._:]*)):(?P<port>[0-9]+)", re.ASCII
)
_HOST = re.compile(r"[0-9a-zA-Z\-%._:]+", re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HostPort:
    """Address of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Voter:
    """An entry of ``controller.quorum.voters``."""

    id: int
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.id}@{HostPort(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A named endpoint.

    ``host`` of a listener to bind is empty for all interfaces. ``host`` of an advertised listener is never empty: where
    the file names none it is this host's name, and ``host_given`` is false.
    """

    name: str
    host: str
    port: int
    protocol: str
    host_given: bool = True

    def __str__(self) -> str:
        return f"{self.name}://{HostPort(self.host, self.port)}"


def parse_host_port(text: str, *, port_min: int = 1, host_needed: bool = True) -> HostPort:
    """``host:port``, an IPv6 host in brackets.

    Raises:
        ValueError: what was expected.
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected host:port, an IPv6 host in brackets")
    host = match["bracketed"] if match["bracketed"] is not None else match["bare"]
    if host_needed and not host:
        raise ValueError("expected a host before the port")
    if len(match["port"]) > 6 or not port_min <= int(match["port"]) <= PORT_MAX:
        raise ValueError(f"expected a port from {port_min} to {PORT_MAX}")
    return HostPort(host, int(match["port"]))


def parse_voter(text: str) -> Voter:
    """``id@host:port``.

    Raises:
        ValueError: what was expected.
    """
    node_id, at, address = text.strip().partition("@")
    if not at or not _DIGITS.fullmatch(node_id) or int(node_id) > INT_MAX:
        raise ValueError("expected id@host:port")
    where = parse_host_port(address, port_min=0)
    return Voter(int(node_id), where.host, where.port)


def parse_listener(text: str, protocols: Mapping[str, str], *, port_min: int = 0) -> Listener:
    """``NAME://host:port``: the name in any case, the host may be empty; ``protocols`` is by name.

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
    """``NAME:PROTOCOL,...``, names in upper case.

    Raises:
        ValueError: what was expected.
    """
    protocols: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = entry.rpartition(":")
        name, protocol = name.strip().upper(), protocol.strip().upper()
        if not colon or not name or protocol not in SECURITY_PROTOCOLS:
            raise ValueError(f"expected NAME:PROTOCOL, the protocol one of {', '.join(SECURITY_PROTOCOLS)}")
        if name in protocols:
            raise ValueError(f"expected each name once, not {name} again")
        protocols[name] = protocol
    return protocols


def parse_host_counts(text: str) -> dict[str, int]:
    """``host:count,...``, names or addresses, an IPv6 address without brackets; of two for one host the later counts
    (``Csv.parseCsvMap``).

    Raises:
        ValueError: what was expected.
    """
    counts: dict[str, int] = {}
    for entry in text.split(",") if text.strip() else ():
        host, colon, count = (part.strip() for part in entry.rpartition(":"))
        if not colon or not _HOST.fullmatch(host):
            raise ValueError(
                f"expected host:count,..., an IPv6 host without brackets, not {entry.strip() or 'nothing'}"
            )
        if not _DIGITS.fullmatch(count) or int(count) > INT_MAX:
            raise ValueError(f"expected a whole number from 0 to {INT_MAX} after {host}:")
        counts[host] = int(count)
    return counts


def check_distinct(listeners: Iterable[Listener]) -> None:
    """Names differ; so do ports, except port 0 and one IPv4 beside one IPv6 address (KAFKA-12224).

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
