"""Reset rules, and the destruction of connections, by netlink. Starts no program, and reads no disk.

Reset rules are a table of nftables. Its chain and its set of ports are named for the broker's process. The kernel
removes the ports from the set :data:`PORTS_MS` after they were last added. Then the rule matches no packet. Connections
are destroyed by ``SOCK_DESTROY``. Sources: ``linux/netfilter/nf_tables.h``, ``linux/inet_diag.h``.
"""

from __future__ import annotations

import errno
import os
import socket
import struct


class Refused(Exception):  # noqa: N818 - what happened
    """The helper refuses a request. The text has the reason."""


PORTS_MS = 60_000


def attribute(kind: int, value: bytes) -> bytes:
    """Return a netlink attribute."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def nested(kind: int, *attributes: bytes) -> bytes:
    """Return a netlink attribute that contains attributes."""
    return attribute(kind | 0x8000, b"".join(attributes))


def number(kind: int, value: int) -> bytes:
    """Return a netlink attribute with a big-endian number, as nftables uses them."""
    return attribute(kind, struct.pack(">i", value))


def message(kind: int, flags: int, content: bytes, sequence: int = 0) -> bytes:
    """Return a netlink message."""
    return struct.pack("=IHHII", 16 + len(content), kind, flags | 1, sequence, 0) + content


def answers(netlink: socket.socket) -> list[tuple[int, int, bytes]]:
    """Return the messages of one datagram: kind, flags, content."""
    data, found = netlink.recv(1 << 20), []
    while len(data) >= 16:
        size, kind, flags, _, _ = struct.unpack_from("=IHHII", data)
        found.append((kind, flags, data[16:size]))
        data = data[(size + 3) & ~3 :]
    return found


def acknowledged(netlink: socket.socket, count: int) -> None:
    """Wait for ``count`` acknowledgements; raise the first error."""
    while count > 0:
        for kind, _, content in answers(netlink):
            if kind != 2:  # NLMSG_ERROR, which is an acknowledgement too
                continue
            code = -struct.unpack_from("=i", content)[0]
            if code:
                raise OSError(code, os.strerror(code))
            count -= 1


def open_netlink(protocol: int, what: str) -> socket.socket:
    """Open a netlink socket; raise :class:`Refused` if the kernel does not have that protocol."""
    try:
        return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        if error.errno in (errno.EPROTONOSUPPORT, errno.EAFNOSUPPORT):
            raise Refused(f"this kernel has no {what}") from None
        raise


NETLINK_SOCK_DIAG, NETLINK_NETFILTER = 4, 12
_INET = 1  # NFPROTO_INET
_TABLE, _DELETE_TABLE, _CHAIN, _GET_CHAIN, _RULE = 0, 2, 3, 4, 6  # NFT_MSG_NEWTABLE and so on
_SET, _ELEMENTS, _DELETE_ELEMENTS = 9, 12, 14
_SET_TIMEOUT, _TYPE_PORT = 0x10, 13
_MAKE, _ACK, _DUMP = 0x400, 4, 0x300


def _nft(kind: int, flags: int, *attributes: bytes) -> bytes:
    return message(10 << 8 | kind, flags, struct.pack(">BBH", _INET, 0, 0) + b"".join(attributes))


def _name(kind: int, text: str) -> bytes:
    return attribute(kind, text.encode() + b"\0")


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested(1, _name(1, name), nested(2, *attributes))


def _batch(*messages: bytes) -> None:
    with open_netlink(NETLINK_NETFILTER, "nftables (CONFIG_NF_TABLES)") as netlink:
        batch = struct.pack(">BBH", 0, 0, 10)
        netlink.send(b"".join((message(0x10, 0, batch), *messages, message(0x11, 0, batch))))
        acknowledged(netlink, len(messages))


def table_of(node: int, ports: list[int]) -> str:
    """Return the name of a broker's table. It has a port, because two brokers of one host may have the same id in two
    clusters."""
    return "_".join(map(str, ("kjbod_guard", node, *sorted(ports)[:1])))


def no_table(table: str) -> list[bytes]:
    """Return the messages that remove a table, also if it does not exist."""
    return [_nft(_TABLE, _MAKE | _ACK, _name(1, table)), _nft(_DELETE_TABLE, _ACK, _name(1, table))]


def reset(table: str, chain: str, ports: list[int], timeout_ms: int = PORTS_MS) -> None:
    """Answer every packet to these ports with a TCP reset; ``chain`` names the broker's process."""
    hook = nested(4, number(1, 1), number(2, -150))  # input, before the host's own rules
    named = (_name(1, table), _name(2, chain))
    kind = (number(3, _SET_TIMEOUT), number(4, _TYPE_PORT), number(5, 2), number(10, 1))
    expressions = (
        _expression("meta", number(2, 16), number(1, 1)),  # the protocol, into register 1
        _expression("cmp", number(1, 1), number(2, 0), nested(3, attribute(1, b"\x06"))),
        _expression("payload", number(1, 1), number(2, 2), number(3, 2), number(4, 2)),  # the destination's port
        _expression("lookup", _name(1, chain), number(2, 1)),
        _expression("reject", number(1, 1)),  # with tcp reset
    )
    _batch(
        *no_table(table),
        _nft(_TABLE, _MAKE | _ACK, _name(1, table)),
        _nft(_SET, _MAKE | _ACK, *named, *kind),
        _elements(named, ports, timeout_ms),
        _nft(_CHAIN, _MAKE | _ACK, _name(1, table), _name(3, chain), hook, _name(7, "filter")),
        _nft(_RULE, _MAKE | 0x800 | _ACK, *named, nested(4, *expressions)),
    )


def _elements(named: tuple[bytes, ...], ports: list[int], timeout_ms: int) -> bytes:
    limit = attribute(4, struct.pack(">Q", timeout_ms))
    rows = [nested(1, nested(1, attribute(1, struct.pack(">H", port))), limit) for port in sorted(set(ports))]
    return _nft(_ELEMENTS, _MAKE | _ACK, *named, nested(3, *rows))


def go_on(table: str, chain: str, ports: list[int], timeout_ms: int = PORTS_MS) -> None:
    """Add the ports to the set again, for another ``timeout_ms``.

    Raises:
        OSError: ENOENT: the rules were removed, or are for another process.
    """
    named = (_name(1, table), _name(2, chain))
    _batch(_nft(_DELETE_ELEMENTS, _ACK, *named), _elements(named, ports, timeout_ms))


def unreset(table: str) -> None:
    """Remove the reset rules."""
    _batch(*no_table(table))


def reset_for(table: str) -> str | None:
    """Return the chain in the table, which names the broker's process; None: there is no table."""
    with open_netlink(NETLINK_NETFILTER, "nftables (CONFIG_NF_TABLES)") as netlink:
        netlink.send(_nft(_GET_CHAIN, _DUMP))
        while True:
            for kind, _, content in answers(netlink):
                if kind == 2 and (code := -struct.unpack_from("=i", content)[0]):  # NLMSG_ERROR
                    raise OSError(code, os.strerror(code))
                if kind in (2, 3):  # NLMSG_DONE
                    return None
                found = {}
                rest = content[4:]
                while len(rest) >= 4:
                    size, key = struct.unpack_from("=HH", rest)
                    found[key & 0x3FFF] = rest[4:size]
                    rest = rest[(size + 3) & ~3 :]
                if found.get(1) == table.encode() + b"\0":
                    return found.get(3, b"").rstrip(b"\0").decode("ascii", "replace")


_LIVING = 0xFFF & ~(1 << 6 | 1 << 7 | 1 << 10)
"""TCP states of connections: all but TIME_WAIT, CLOSE and LISTEN."""


def destroy(ports: list[int]) -> int:
    """Destroy the connections to these local ports; return their number."""
    found: list[bytes] = []
    with open_netlink(NETLINK_SOCK_DIAG, "sock_diag (CONFIG_INET_DIAG)") as netlink:
        for family in (socket.AF_INET, socket.AF_INET6):
            question = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _LIVING) + bytes(48)
            netlink.send(message(20, _DUMP, question))  # SOCK_DIAG_BY_FAMILY
            over = False
            while not over:
                for kind, _, content in answers(netlink):
                    if kind == 2 and (code := -struct.unpack_from("=i", content)[0]):
                        raise OSError(code, f"sock_diag: {os.strerror(code)}")
                    over = over or kind in (2, 3)
                    if kind == 20 and struct.unpack_from(">H", content, 4)[0] in ports:
                        found.append(
                            struct.pack("=BBBBI", content[0], socket.IPPROTO_TCP, 0, 0, _LIVING) + content[4:52]
                        )
        gone = 0
        for each in found:
            netlink.send(message(21, _ACK, each))  # SOCK_DESTROY
            try:
                acknowledged(netlink, 1)
                gone += 1
            except OSError as error:
                if error.errno == errno.EOPNOTSUPP:
                    raise Refused("this kernel destroys no connections (CONFIG_INET_DIAG_DESTROY)") from None
                if error.errno != errno.ENOENT:  # the connection has ended by itself
                    raise
    return gone
