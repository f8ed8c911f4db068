"""Find keys of a file without effect on the process that reads it. Pure.

Most of Kafka's some 300 keys belong to the data plane. They are silently ignored, so that a broker's file works
unchanged. One log line lists keys that an operator would expect to matter: keys of the controller quorum, its metadata,
moves between directories and security, and keys of this table for the other role, or for none.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kjbod.config.endpoints import PLAINTEXT
from kjbod.config.keys import Config, settings

EVENT: Final = "config.keys.without.effect"
NAMES_MAX: Final = 100
"""Maximum keys in one log line; a file may have any number."""
STAND_INS: Final[Mapping[str, str]] = {
    "log.dir": "log.dirs",
    "broker.id": "node.id",
    "security.inter.broker.protocol": "inter.broker.listener.name",
}
"""Older names that Kafka still accepts, with the key that replaced each."""
ONE_BY_ONE: Final = ("controller.", "metadata.", "internal.metadata.")
"""Every unused key with such a prefix is listed, so mistyped keys are found too. Kafka 4.3.1 has these keys, which
kjbod does not need:

* ``controller.quorum.election.timeout.ms``, ``controller.quorum.election.backoff.max.ms`` and
  ``controller.quorum.auto.join.enable``: a quorum of one elects nobody, and an agent does not vote;
* ``controller.quorum.append.linger.ms``: kjbod's controller writes at once, and together what came meanwhile;
* ``controller.performance.*``: how long a controller's turns take is in its metrics.
"""
GROUPS: Final = ("sasl.", "ssl.", "listener.name.")
"""Prefixes that are listed as a group: a file sets some twenty of these keys at a time. They have an effect on secured
connections."""
ALONE: Final = frozenset(
    {
        "alter.log.dirs.replication.quota.window.num",
        "alter.log.dirs.replication.quota.window.size.seconds",
        "early.start.listeners",
        "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads",
        "security.providers",
        "server.max.startup.time.ms",
    }
)
"""Other keys of directories, security and start-up."""
OF_SECURED: Final = frozenset({"connections.max.reauth.ms", "principal.builder.class"})
"""Keys with an effect only on secured connections."""


def name_keys_without_effect(config: Config, role: str, log: Callable[..., object]) -> None:
    """Log one line with :func:`keys_without_effect` through ``log``, a logger's method; none if there are none."""
    if keys := keys_without_effect(config, role):
        log(EVENT, source=config.source, keys=list(keys))


def keys_without_effect(config: Config, role: str) -> tuple[str, ...]:
    """Return the keys to list, sorted: at most :data:`NAMES_MAX`, then the number of further ones.

    Args:
        config: the configuration.
        role: role of the process; both roles of a combined node, as in ``process.roles``.
    """
    found = sorted(set(_without_effect(config, role)))
    more = len(found) - NAMES_MAX
    return (*found[:NAMES_MAX], f"and {more} more") if more > 0 else tuple(found)


def _without_effect(config: Config, role: str) -> Iterator[str]:
    table, roles = settings(), role.split(",")
    for name in config.properties:
        known = table.get(STAND_INS.get(name, name))
        if known is not None:
            if known.key.roles.isdisjoint(roles):
                yield name
        elif (name in OF_SECURED and not _is_secured(config)) or name in ALONE or name.startswith(ONE_BY_ONE):
            yield name
        else:
            yield from (f"{group}*" for group in GROUPS if name.startswith(group) and not _is_secured(config))


def _is_secured(config: Config) -> bool:
    """Return whether any secured protocol is configured."""
    protocols = {config.controller_protocol or PLAINTEXT, *(one.protocol for one in config.listeners)}
    return protocols != {PLAINTEXT}
