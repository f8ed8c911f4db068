"""Check whether an address can be listened on before a listener opens it (``bind(2)``, ``ip(7)``). A start that would
fail at its last listener has not written anything then."""

import socket

from kjbod.runtime.names import Log, listening_addresses

_ANY = ("0.0.0.0", "::")


async def refusal_of(host: str, port: int, log: Log) -> str:
    """Return why this process could not listen on ``host`` and ``port`` now; empty if it could.

    Args:
        host: an address or a name; empty for all addresses.
        port: 0 is always free.
        log: gets a line if the name takes long to resolve.

    Raises:
        UnresolvedError: the host has no address.
    """
    if not port:
        return ""
    for address in await listening_addresses(host, log) if host else _ANY:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
        except OSError as error:
            if host or family == socket.AF_INET:  # a host without IPv6 listens on its other addresses
                return error.strerror or str(error)
    return ""
