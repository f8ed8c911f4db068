"""Host names of a configuration and the addresses that they stand for. Asks the system's resolver, which may take its
time: not for an event loop."""

import socket

from kjbod.config.keys import Config
from kjbod.errors import ConfigError


def connections_by_address(config: Config) -> dict[str, int]:
    """``max.connections.per.ip.overrides``, each host as its addresses; of two for one address the later counts.

    A name stands for all addresses that it has now (Kafka: for the first of them).

    Raises:
        ConfigError: a name has no address.
    """
    found: dict[str, int] = {}
    problems = []
    for host, count in config.max_connections_per_ip_overrides.items():
        try:
            addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a name"
            problems.append(
                f"{config.source}: max.connections.per.ip.overrides={host}:{count}: "
                f"expected an address, or a name that can be resolved on this host ({reason})"
            )
            continue
        found |= {str(where[0]): count for *_, where in addresses}
    if problems:
        raise ConfigError(*problems)
    return found
