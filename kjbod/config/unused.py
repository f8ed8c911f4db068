"""Keys that a file sets and that change nothing in the process that reads it. Pure.

Most of Kafka's some 300 keys are a data plane's: they are ignored without a word, so that the file of a broker works as
it is. Named, once and in one line of the log, are those of which an operator would expect that they matter here: all
of a controller quorum, of its metadata, of moves between directories and of security; and keys of this table that
belong to the other role, or to none.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from kjbod.config.endpoints import PLAINTEXT
from kjbod.config.keys import Config, settings

EVENT: Final = "config.keys.without.effect"
NAMES_MAX: Final = 100
"""Keys in one line of the log; a file may have any number."""
STAND_INS: Final[Mapping[str, str]] = {
    "log.dir": "log.dirs",
    "broker.id": "node.id",
    "security.inter.broker.protocol": "inter.broker.listener.name",
}
"""Older names that Kafka still takes, and the key whose meaning they have."""
ONE_BY_ONE: Final = ("controller.", "metadata.", "internal.metadata.")
"""Whatever begins so and is not used is named: by it a mistyped key is found, too. Kafka 4.3.1 has of these, and kjbod
has no use for:

* ``controller.quorum.election.timeout.ms``, ``controller.quorum.election.backoff.max.ms`` and
  ``controller.quorum.auto.join.enable``: a quorum of one elects nobody, and an agent does not vote;
* ``controller.quorum.append.linger.ms``: kjbod's controller writes at once, and together what came meanwhile;
* ``controller.performance.*``: how long a controller's turns take is in its metrics.
"""
GROUPS: Final = ("sasl.", "ssl.", "listener.name.")
"""Named as a group: a file sets some twenty of them at a time. Where something is secured they count."""
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
"""Others of directories, security and start-up."""
OF_SECURED: Final = frozenset({"connections.max.reauth.ms", "principal.builder.class"})
"""These count where something is secured."""


def name_keys_without_effect(config: Config, role: str, log: Callable[..., object]) -> None:
    """Write one line with :func:`keys_without_effect` to ``log``, a logger's method; none where there are none."""
    if keys := keys_without_effect(config, role):
        log(EVENT, source=config.source, keys=list(keys))


def keys_without_effect(config: Config, role: str) -> tuple[str, ...]:
    """The keys to be named, sorted; at most :data:`NAMES_MAX`, and then how many more there are.

    Args:
        config: what was read.
        role: as which the process runs; of a combined node both, as ``process.roles`` has them.
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
    """Whether something else than plain text is spoken."""
    protocols = {config.controller_protocol or PLAINTEXT, *(one.protocol for one in config.listeners)}
    return protocols != {PLAINTEXT}
