"""Records of suspected directories in the metadata log. Their order keeps guards from acting at the same time. Pure.

A guard cannot see the disks of other hosts. A stall of shared storage, a hypervisor or a fleet-wide job hits several
hosts at once; each guard then sees one bad disk, and counts on copies that are on disks which stand still as well. So
a guard writes into the metadata log which of its broker's directories it suspects, before it does anything that cannot
be undone. The controller puts these records in order, and each guard reads them in that order:

* A replica in a suspected directory is no copy to count on (:mod:`.copies`).
* A guard may do something irreversible only while its own record is in the log, is not older than :data:`VALID_MS`, and
  fewer than ``kjbod.guard.cut.max.brokers`` other brokers are in trouble (:func:`ahead`): brokers whose record is
  before its own, and brokers that lost a directory.

Two guards that write at the same time cannot both be first. A guard that was first and then stood still for longer than
:data:`VALID_MS` writes its record again, and is last. The others wait for :data:`AHEAD_MS`, which is longer.

The record is a dynamic configuration of the broker (``IncrementalAlterConfigs``; resource ``BROKER``, key
:data:`CONFIG`). Kafka takes keys that it does not know, does nothing with them, and shows them in
``kafka-configs --describe``. The guard removes it when the disk answers again, and when Kafka has the directory
offline. The record counts only for the registration of the broker that it names by epoch.
"""

import json
from collections.abc import Collection, Mapping
from typing import Final

from msgspec import Struct

from kjbod.ids import Uuid

CONFIG: Final = "kjbod.guard.suspect.log.dirs"
VALID_MS: Final = 20_000
"""How long a guard may act on its own record, counted from the request."""
AHEAD_MS: Final = 60_000
"""How long a record of another guard counts from when it was seen: three times as long as its guard may act on it."""
LOST_MS: Final = 60_000
"""How long a broker counts as in trouble after it was fenced or lost a directory."""
TRUSTED_MS: Final = 5_000
"""How long a disk of another broker that answered again delays actions here. A stall of several hosts mostly ends on
all of them within seconds."""
DIRECTORIES_MAX: Final = 1_000
"""Maximum number of directories that are read from one record; a broker has far fewer."""


class Neighbour(Struct, frozen=True):
    """Another broker.

    Attributes:
        epoch: of its registration.
        active: whether it is unfenced and not in controlled shutdown: it may lead.
        log_dirs: its online directories.
        fenced_ms: monotonic time of its last fence; None: none was seen.
        lost_ms: monotonic time when it last lost a directory, or was evicted from a partition; None: none was seen.
        cordoned_dirs: directories that get no new replicas (KIP-1066).
    """

    epoch: int
    active: bool
    log_dirs: frozenset[Uuid]
    fenced_ms: int | None = None
    lost_ms: int | None = None
    cordoned_dirs: frozenset[Uuid] = frozenset()

    @property
    def cordoned(self) -> bool:
        """Whether all its directories are cordoned (``BrokerRegistration.hasUncordonedDirs``)."""
        return bool(self.log_dirs) and self.log_dirs <= self.cordoned_dirs


class Suspects(Struct, frozen=True):
    """A record of a guard.

    Attributes:
        epoch: of the broker's registration; None: the record cannot be read, and counts for any.
        directories: that are suspected; empty: all of the broker.
        mark: of the request, so that a guard knows its own record.
        offset: of the record in the metadata log; -1: it came with a snapshot.
        seen_ms: monotonic time when it was seen.
        value: as it is in the log.
    """

    epoch: int | None
    directories: frozenset[Uuid]
    mark: str
    offset: int
    seen_ms: int
    value: str

    def has(self, directory: Uuid) -> bool:
        """Whether a directory is suspected."""
        return not self.directories or directory in self.directories


def encode(epoch: int, directories: Collection[str], mark: str) -> str:
    """Return the value of a record. No directories: all of the broker."""
    told = {"epoch": epoch, "log.dirs": sorted(directories), "mark": mark}
    return json.dumps(told, separators=(",", ":"))


def decode(value: str, offset: int, seen_ms: int) -> Suspects:
    """Return the record of a value. An unreadable value suspects all directories, because a guard may have written
    it."""
    try:
        told = json.loads(value)
        names = [str(one) for one in told["log.dirs"][:DIRECTORIES_MAX]]
        epoch, mark = told["epoch"], str(told["mark"])
        if type(epoch) is not int:
            raise TypeError(epoch)
        return Suspects(epoch, frozenset(map(Uuid.parse, names)), mark, offset, seen_ms, value)
    except (ValueError, LookupError, TypeError, RecursionError):
        return Suspects(None, frozenset(), "", offset, seen_ms, value)


def answered(trusted: tuple[int, int] | None, neighbours: Mapping[int, Neighbour], now_ms: int) -> int | None:
    """Return another broker whose disk answered again a short time ago; None: there is none. A record that was removed
    after the loss of a directory does not count.

    Args:
        trusted: the broker whose guard removed its record last, and when.
        neighbours: the other brokers, by id.
        now_ms: monotonic time.
    """
    if trusted is None or now_ms - trusted[1] >= TRUSTED_MS:
        return None
    its = neighbours.get(trusted[0])
    lost_ms = None if its is None else its.lost_ms
    return None if lost_ms is not None and now_ms - lost_ms < LOST_MS else trusted[0]


def current(suspects: Mapping[int, Suspects], neighbours: Mapping[int, Neighbour]) -> dict[int, Suspects]:
    """Return the records of other brokers that belong to the present registration of each broker."""
    return {
        broker_id: one
        for broker_id, one in suspects.items()
        if (its := neighbours.get(broker_id)) is not None and one.epoch in (None, its.epoch)
    }


def ahead(
    suspects: Mapping[int, Suspects],
    neighbours: Mapping[int, Neighbour],
    offset: int | None,
    now_ms: int,
    *,
    losses: bool = True,
    fences: bool = False,
) -> list[int]:
    """Return the brokers in trouble before this one: they count against the budget of the cluster.

    Args:
        suspects: the records, by broker id.
        neighbours: the other brokers, by id.
        offset: of this guard's own record; None: it has none, so that all others are before it.
        now_ms: monotonic time.
        losses: whether a broker that lost a directory within :data:`LOST_MS` counts.
        fences: whether a broker that was fenced within :data:`LOST_MS` counts.
    """
    first = {
        broker_id
        for broker_id, one in current(suspects, neighbours).items()
        if (offset is None or one.offset < offset) and now_ms - one.seen_ms < AHEAD_MS
    }

    def lately(at_ms: int | None) -> bool:
        return at_ms is not None and now_ms - at_ms < LOST_MS

    lost = {
        broker_id
        for broker_id, its in neighbours.items()
        if (losses and lately(its.lost_ms)) or (fences and not its.active and lately(its.fenced_ms))
    }
    return sorted(first | lost)
