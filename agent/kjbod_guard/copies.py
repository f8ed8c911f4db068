"""Copies of the partitions in a log directory. They decide whether the guard may take the directory away. Pure.

A copy that counts is the replica of *another* broker that

* is in the ISR of the committed metadata,
* on a broker that is unfenced and not in controlled shutdown,
* in a directory that the broker's registration has online. A replica whose directory nobody has recorded yet
  (``UNASSIGNED``, ``LOST``, ``MIGRATING``) does not count: Kafka does not look at directories when it takes a replica
  into the ISR,
* and that no guard suspects (:mod:`.suspects`): its disk may stand still as this one does.

From these follow the two rules that no act of a guard breaks:

===========  ========================================================================================================
data         A file-system shutdown drops the page cache. It begins only when this replica of each partition there is
             out of the ISR, by committed metadata, and ``min.insync.replicas`` copies count. A replica that the
             controller keeps as an eligible or last known leader replica (ELR, LastKnownELR) is one without which the
             ISR is smaller than that, so it is never shut down either.
availability Before it, the directory is reported offline (or mounted over): the broker leaves the ISR of each partition
             there. That begins only when ``min.insync.replicas`` copies count for each, one at least: else a partition
             would have no leader, or take no records, which the disk would end when it answers again.
===========  ========================================================================================================

Both are asked of all directories on the file system, and of the broker's replicas whose directory nobody has recorded:
they may lie there. Such a replica is no copy for anybody, so its own place in the ISR is not waited for. Partitions
that were deleted are not in the metadata, and count no more.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from msgspec import Struct

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod_guard.observing import Key, Observed, Placed
from kjbod_guard.suspects import Suspects, current

_ANYWHERE: Final = frozenset({LOST, MIGRATING, UNASSIGNED})
"""Reserved directory ids of replicas that may lie in any directory."""


class Need(Struct, frozen=True):
    """Partitions in directories that do not have enough copies elsewhere.

    Attributes:
        sole: names of partitions without any copy.
        short: names of partitions with at least one copy, and fewer than ``min.insync.replicas``.
        in_sync: names of partitions whose replica here is in the ISR.
    """

    sole: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    in_sync: tuple[str, ...] = ()

    @property
    def refusal(self) -> str | None:
        """The reason for which the replicas here may not leave the ISR, in words; None: they may."""
        if self.sole:
            return f"{named(self.sole)} {_has(self.sole)} no other copy in sync"
        if self.short:
            return f"{named(self.short)} {_has(self.short)} fewer other copies in sync than min.insync.replicas"
        return None

    @property
    def why_not_shut_down(self) -> str | None:
        """The reason for which the file system may not be shut down now, in words; None: it may."""
        if self.refusal is not None:
            return self.refusal
        if self.in_sync:
            return f"the metadata still have the replica here in the ISR of {named(self.in_sync)}"
        return None


def copies(observed: Observed, placed: Placed, suspects: Mapping[int, Suspects] | None = None) -> tuple[int, ...]:
    """Return the brokers whose copies of a partition count.

    Args:
        observed: the metadata.
        placed: the partition.
        suspects: the records of other guards that count (:func:`.suspects.current`); None: they are looked up.
    """
    known = current(observed.suspects, observed.neighbours) if suspects is None else suspects
    found = []
    for broker_id in placed.isr:
        its, directory = observed.neighbours.get(broker_id), placed.directory_of(broker_id)
        if its is None or directory is None or not its.active or directory not in its.log_dirs:
            continue
        suspected = known.get(broker_id)
        if suspected is None or not suspected.has(directory):
            found.append(broker_id)
    return tuple(found)


def need(observed: Observed, directories: Collection[Uuid] | None, static_min_isr: int) -> Need:
    """Return which partitions need the replicas in these directories.

    Args:
        observed: the metadata.
        directories: ids of the directories that would be lost; None: all that the broker has online.
        static_min_isr: ``min.insync.replicas`` of the broker's file.
    """
    known = current(observed.suspects, observed.neighbours)
    online = () if observed.registration is None else observed.registration.log_dirs
    lost = frozenset(online if directories is None else directories)
    sole, short, in_sync = [], [], []
    for key, placed in observed.partitions.items():
        if placed.directory not in lost and placed.directory not in _ANYWHERE:
            continue
        if observed.broker_id not in placed.isr and (directories is None or observed.broker_id in placed.adding):
            # a fence matters only for replicas in sync; a replica that is being added counts only when in sync
            continue
        found = len(copies(observed, placed, known))
        if found == 0:
            sole.append(name_of(observed, key))
        elif found < observed.min_insync_replicas(key[0], static_min_isr):
            short.append(name_of(observed, key))
        if observed.broker_id in placed.isr and placed.directory in lost:
            in_sync.append(name_of(observed, key))
    return Need(tuple(sole), tuple(short), tuple(in_sync))


def name_of(observed: Observed, key: Key) -> str:
    """Return the name of a partition, as ``topic-0``."""
    return f"{observed.topics.get(key[0], key[0])}-{key[1]}"


def named(names: Iterable[str]) -> str:
    """Return the only name, or the number of names and the first one."""
    found = sorted(names)
    return found[0] if len(found) == 1 else f"{len(found)} partitions ({found[0]} is one)"


def _has(names: Collection[str]) -> str:
    return "has" if len(names) == 1 else "have"
