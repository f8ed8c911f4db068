"""Stray replicas of a broker that a guard watches: directories that the committed metadata do not assign. Pure.

==================================================  ====================================================================
a replica directory                                 is a stray
==================================================  ====================================================================
``*-stray``                                         yes: the broker set it aside at a start
``*-delete``                                        yes: the broker removes it
``*-future``                                        no: a move writes to it
of a topic that is not in the metadata              yes
of a partition without a replica on this broker     yes
assigned to another directory of this broker        yes
assigned to no directory, or to one that nobody     no: the broker has not assigned it yet, or an older broker assigns
knows                                               none
==================================================  ====================================================================

The last five rows need the metadata. Topic ids are not compared: that would take a file of each replica.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from kjbod.ids import Uuid, is_reserved
from kjbod_guard.observing import Observed
from kjbod_host.storage.api import Replica
from kjbod_host.strays import NO_TOPIC, NOT_HERE

SET_ASIDE: Final = "the broker set it aside at a start: the metadata did not assign it to this broker then"
DELETED: Final = "marked as deleted: the broker removes it after file.delete.delay.ms, or after its next start"
EVICTED: Final = "the guard removed this broker from the replica list; kjbod guard restore puts the broker back"
_BY_SUFFIX: Final[Mapping[str, str]] = {"stray": SET_ASIDE, "delete": DELETED}


class Found(Struct, frozen=True):
    """A stray replica.

    Attributes:
        replica: as the worker of the disk listed it.
        reason: why it is a stray, in words.
    """

    replica: Replica
    reason: str


def strays(
    replicas: Iterable[Replica], directory_id: Uuid, observed: Observed | None, paths: Mapping[Uuid, str]
) -> tuple[Found, ...]:
    """Return the strays among the replicas of a directory, in their order.

    Args:
        replicas: all replica directories of the log directory.
        directory_id: of the log directory.
        observed: the metadata; None: they are not followed, and only names tell.
        paths: of the directories of this broker, by id.
    """
    topic_ids = {} if observed is None else {name: topic_id for topic_id, name in observed.topics.items()}
    found = []
    for replica in replicas:
        reason = _BY_SUFFIX.get(replica.suffix)
        if observed is not None and not replica.suffix:
            reason = _why_unassigned(replica, topic_ids.get(replica.topic), directory_id, observed, paths)
        if reason is not None:
            found.append(Found(replica, reason))
    return tuple(found)


def _why_unassigned(
    replica: Replica, topic_id: Uuid | None, here: Uuid, observed: Observed, paths: Mapping[Uuid, str]
) -> str | None:
    """Return why the metadata do not assign a replica to a directory, in words; None: they do, or may."""
    if topic_id is None:
        return NO_TOPIC
    key = (topic_id, replica.partition)
    if (placed := observed.partitions.get(key)) is None:
        return EVICTED if key in observed.evicted else NOT_HERE
    if placed.directory == here or is_reserved(placed.directory):
        return None
    return f"the metadata assign this replica to {paths.get(placed.directory, f'directory {placed.directory}')}"
