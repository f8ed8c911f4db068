"""Keys that each command needs. Pure.

An unreadable value stops only a command that uses it. Such a value has a variable of ``config.providers`` that this
process cannot resolve, for example from a unit's ``EnvironmentFile=``, or for most commands any wrong value. Other
commands read the file without that key (:attr:`.Config.unread`). A guard continues without most of Kafka's keys, and
reports them.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kjbod.config.keys import AGENT, CONTROLLER, GUARD, OWN_PREFIX, settings
from kjbod.config.unused import STAND_INS

NAMES: Final = (*settings(), *STAND_INS)
"""All keys that kjbod reads."""
_NODE: Final = frozenset({"node.id", "broker.id"})
_DIRECTORIES: Final = frozenset({"log.dirs", "log.dir", "metadata.log.dir"})
_LISTENERS: Final = frozenset({"listeners", "advertised.listeners"})
CONTROLLERS: Final = frozenset(
    {
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "listener.security.protocol.map",
    }
)
"""Keys with the addresses of controllers."""
_NOT_A_GUARDS: Final = frozenset(
    {
        "kjbod.agent.take.over",
        "kjbod.assignment.timeout.ms",
        "kjbod.move.bytes.per.second",
        "kjbod.move.concurrency",
        "kjbod.placement",
        "kjbod.placement.accept",
        "kjbod.placement.full.percent",
        "kjbod.role",
    }
)
DECISIVE: Final = frozenset({"log.dir.failure.timeout.ms", "metadata.log.dir", "min.insync.replicas"})
"""Kafka's keys on which a guard's actions on a disk depend: without one of them it only observes."""


class Needs(Struct, frozen=True):
    """The keys that a command needs.

    Attributes:
        keys: keys without which the command does not run.
        uses: keys that the command uses but can run without; it reports missing ones.
        checks_all: whether a wrong value of any key stops the command, as it stops Kafka. True for daemons, and for
            commands that format directories.
    """

    keys: frozenset[str]
    uses: frozenset[str] = frozenset()
    checks_all: bool = False

    def stops(self, name: str, *, unresolved: bool) -> bool:
        """Return whether an unreadable key stops the command; ``unresolved``: because of a variable, so the text may be
        right."""
        return name in self.keys or (self.checks_all and not unresolved)


def _of_roles(roles: frozenset[str]) -> frozenset[str]:
    table = settings()
    return frozenset(name for name in NAMES if table[STAND_INS.get(name, name)].key.roles & roles)


_OWN_OF_GUARD: Final = frozenset(
    name
    for name, setting in settings().items()
    if name.startswith(OWN_PREFIX) and setting.key.roles & (AGENT | GUARD) and name not in _NOT_A_GUARDS
)
EVERY: Final = Needs(frozenset(NAMES), checks_all=True)
"""Default: every key is needed."""
AGENT_NEEDS: Final = Needs(_of_roles(AGENT), checks_all=True)
CONTROLLER_NEEDS: Final = Needs(_of_roles(CONTROLLER), checks_all=True)
SERVER_NEEDS: Final = Needs(_of_roles(AGENT | CONTROLLER), checks_all=True)
GUARD_NEEDS: Final = Needs(
    _NODE | {"process.roles", "log.dirs", "log.dir"} | _OWN_OF_GUARD,
    CONTROLLERS
    | _LISTENERS
    | DECISIVE
    | {
        "broker.rack",
        "controller.quorum.fetch.max.bytes",
        "controller.quorum.fetch.snapshot.max.bytes",
        "controller.quorum.fetch.timeout.ms",
        "controller.quorum.request.timeout.ms",
        "controller.quorum.retry.backoff.ms",
        "inter.broker.listener.name",
        "security.inter.broker.protocol",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    },
)
ASKING: Final = Needs(_NODE | {"kjbod.state.dir"})
"""Needs of commands that ask a running agent or guard."""
LISTING: Final = Needs(ASKING.keys | _DIRECTORIES)
"""Needs of commands that list directories without an agent or guard."""
HISTORY: Final = Needs(frozenset({"kjbod.state.dir"}))
DIRECTORIES: Final = Needs(_DIRECTORIES, checks_all=True)
"""Needs of ``info``."""
FORMAT: Final = Needs(
    _NODE | _DIRECTORIES | {"process.roles", "kjbod.state.dir", "controller.quorum.voters"}, checks_all=True
)
FORMAT_VOTERS: Final = Needs(FORMAT.keys | _LISTENERS | CONTROLLERS | {"kjbod.host"}, checks_all=True)
"""Needs with ``--standalone`` or ``--initial-controllers``, which write the addresses of controllers."""
METADATA: Final = Needs(CONTROLLERS)
COMMANDS: Final[Mapping[str, Needs]] = {
    "agent": AGENT_NEEDS,
    "controller": CONTROLLER_NEEDS,
    "server": SERVER_NEEDS,
    "guard run, check": GUARD_NEEDS,
    "guard check --gate, release, restore; status, move, dirs": ASKING,
    "log-dirs, strays": LISTING,
    "guard history": HISTORY,
    "info": DIRECTORIES,
    "format": FORMAT,
    "format --standalone, --initial-controllers": FORMAT_VOTERS,
    "metadata": METADATA,
}
"""Needs by command."""
