"""Resolve host names of a configuration to addresses, with the system's resolver."""

import asyncio
import ipaddress

from kjbod.config.keys import Config
from kjbod.errors import ConfigError
from kjbod.runtime.names import LISTEN_TIMEOUT_MS, NAMES, Names, UnresolvedError


async def connections_by_address(config: Config, names: Names = NAMES) -> dict[str, int]:
    """Return ``max.connections.per.ip.overrides`` by address; of two entries for one address the later counts.

    A name means all of its current addresses (Kafka: only the first one).

    Raises:
        ConfigError: the name does not exist.
        UnresolvedError: the name servers do not answer: a restart may help.
    """
    overrides = config.max_connections_per_ip_overrides
    answers = await asyncio.gather(
        *(names.resolve(host, timeout_ms=LISTEN_TIMEOUT_MS) for host in overrides), return_exceptions=True
    )
    found: dict[str, int] = {}
    problems = []
    for (host, count), answer in zip(overrides.items(), answers, strict=True):
        if isinstance(answer, UnresolvedError) and answer.unknown:
            problems.append(
                f"{config.source}: max.connections.per.ip.overrides={host}:{count}: "
                f"expected an address, or a name that can be resolved on this host ({answer.reason})"
            )
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found |= dict.fromkeys(map(_plain, answer.addresses), count)
    if problems:
        raise ConfigError(*problems)
    return found


def _plain(address: str) -> str:
    """Return an address as a peer's address is written: ``::1`` for ``0:0::1``."""
    return str(ipaddress.ip_address(address))
