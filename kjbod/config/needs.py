"""Keys that each command needs. Pure.

A value that cannot be read stops only a command that uses it: a variable of ``config.providers`` that this process
cannot resolve, as one of a unit's ``EnvironmentFile=``, and for most commands a value that is wrong, too. The others
read the file without that key (:attr:`.Config.unread`). A guard goes on without most of Kafka's keys, and says which.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from kjbod.config.keys import AGENT, CONTROLLER, GUARD, OWN_PREFIX, settings
from kjbod.config.unused import STAND_INS

NAMES: Final = (*settings(), *STAND_INS)
"""All keys that are read."""
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
"""Keys by which controllers are found."""
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
"""Keys of Kafka's by which a guard decides what it does to a disk: without one of them it observes."""


class Needs(Struct, frozen=True):
    """The keys that a command needs.

    Attributes:
        keys: without a value of one of them it does not run.
        uses: it goes on without those, and says so.
        checks_all: whether a value that is wrong stops it in whatever key, as it stops Kafka: a daemon's file, and
            one by which directories are formatted, is to be right.
    """

    keys: frozenset[str]
    uses: frozenset[str] = frozenset()
    checks_all: bool = False

    def stops(self, name: str, *, unresolved: bool) -> bool:
        """Whether a key without a value stops the command; ``unresolved``: for a variable, the text may be right."""
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
"""Of who says nothing."""
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
"""Of commands that ask a running agent or guard."""
LISTING: Final = Needs(ASKING.keys | _DIRECTORIES)
"""Of commands that list directories where neither runs."""
HISTORY: Final = Needs(frozenset({"kjbod.state.dir"}))
DIRECTORIES: Final = Needs(_DIRECTORIES, checks_all=True)
"""Of ``info``."""
FORMAT: Final = Needs(
    _NODE | _DIRECTORIES | {"process.roles", "kjbod.state.dir", "controller.quorum.voters"}, checks_all=True
)
FORMAT_VOTERS: Final = Needs(FORMAT.keys | _LISTENERS | CONTROLLERS | {"kjbod.host"}, checks_all=True)
"""With ``--standalone`` or ``--initial-controllers``: the addresses of controllers are written."""
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
"""The table, by command."""
