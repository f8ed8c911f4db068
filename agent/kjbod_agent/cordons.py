"""Log directories that an agent cordons (KIP-1066), and why. Pure.

A controller places no new replica in a cordoned directory, and none on a broker all of whose directories are cordoned.
What lies there stays, and moves between the directories of a broker do not ask. Four reasons:

* a person named it (``cordoned.log.dirs``),
* it is slow, held or full (:mod:`kjbod_host.health.verdict`),
* it is nearly full (:mod:`.replicas.choice`, with hysteresis),
* brokers are registered that are no agents: then there are clients, who could not write to a partition that this agent
  leads, and to which it adds no second copy as a follower. All directories are cordoned, unless
  ``kjbod.placement.accept=always``. A broker that is fenced counts: it may come back, and one that never does can be
  unregistered.

An agent is known by its incarnation id (:func:`kjbod.ids.is_agent_incarnation`), which is in every registration.
"""

from typing import Final

from msgspec import Struct

from kjbod.ids import is_agent_incarnation
from kjbod.metadata.image import MetadataImage
from kjbod_host.health.state import Health

ALWAYS: Final = "always"
"""Value of ``kjbod.placement.accept``; the other one is ``auto``."""
NAMED_MAX: Final = 5
"""Brokers that are named one by one."""
CORDONED_HEALTH: Final = frozenset({Health.SLOW, Health.FULL, Health.HELD})
"""States in which a directory should get no new replicas."""


def brokers_that_are_no_agents(image: MetadataImage, own_id: int) -> tuple[int, ...]:
    """Ids of the other brokers that are registered and are no agents, ascending."""
    return tuple(
        sorted(
            number
            for number, broker in image.brokers.items()
            if number != own_id and not is_agent_incarnation(broker.incarnation_id)
        )
    )


class Admission(Struct, frozen=True):
    """Whether new partitions come to this agent.

    Attributes:
        brokers: that are registered and are no agents.
        accept: ``kjbod.placement.accept``.
        can_cordon: whether the cluster knows of cordons.
    """

    brokers: tuple[int, ...] = ()
    accept: str = "auto"
    can_cordon: bool = True

    @property
    def closed(self) -> bool:
        """Whether all directories are to be cordoned."""
        return bool(self.brokers) and self.accept != ALWAYS

    @property
    def exposed(self) -> bool:
        """Whether partitions come here that nobody can write to, and the agent cannot help it."""
        return self.closed and not self.can_cordon

    @property
    def text(self) -> str | None:
        """In words, where there is anything to say."""
        if not self.brokers:
            return None
        who = f"{_named(self.brokers)} no kjbod agent{'s' if len(self.brokers) > 1 else ''}"
        if not self.closed:
            return f"new partitions are accepted (kjbod.placement.accept=always) although {who}: nobody writes to them"
        if self.exposed:
            return (
                f"new partitions cannot be kept away although {who}: nobody writes to them, and the cluster cannot "
                "cordon log directories, which needs metadata.version 4.3-IV0 or later"
            )
        return (
            f"no new partitions, all log directories are cordoned: {who}, and nobody could write to a partition here "
            "(kjbod.placement.accept=always takes them all the same; a broker that is gone for good is to be "
            "unregistered)"
        )


def _named(brokers: tuple[int, ...]) -> str:
    named = ", ".join(map(str, brokers[:NAMED_MAX]))
    if len(brokers) == 1:
        return f"broker {named} is"
    more = len(brokers) - NAMED_MAX
    return f"brokers {named}{f' and {more} more' if more > 0 else ''} are"


def why_cordoned(health: Health | None, *, nearly_full: bool) -> str | None:
    """Return why an agent cordons a directory by itself; None: it does not."""
    if health in CORDONED_HEALTH:
        return str(health)
    return "nearly full" if nearly_full else None
