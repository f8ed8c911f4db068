"""Infer the ``directory.id`` of each log directory without reading a disk. Pure.

No answer of a broker up to Kafka 4.3.1 has both path and id: DescribeLogDirs has the replicas of a path, the metadata
log has the replicas of an id (KIP-858). So a path has the id to which all its replicas are assigned, if no other path
of that broker has a replica of that id. The last path of a broker has the last registered id. Replicas that are being
moved do not count: they are assigned to their new directory before they are there. A move that ends between the
metadata and the answer would mislead, so the metadata is read again afterwards. If replicas do not agree, if there are
none, or if some were moved, no id is given: no majority, no guess. An offline directory has no id once the controller
knows that it is offline: an unregistered id may also be that of a directory that was removed from ``log.dirs``.
"""

from collections.abc import Collection, Mapping, Set
from typing import Final

from msgspec import Struct

from kjbod.ids import Uuid, is_reserved
from kjbod.metadata.image import MetadataImage

BY_REPLICAS: Final = "replicas"
BY_ELIMINATION: Final = "elimination"
MOVED: Final = "replicas of this broker, or its directories, changed while it was asked: ask again"
UNCHECKED: Final = "the metadata could not be read again, so nobody knows whether replicas moved meanwhile: ask again"


class Inferred(Struct, frozen=True):
    """An inferred id with the method, or the reason why none was found."""

    directory_id: Uuid | None
    by: str | None = None
    reason: str | None = None


def infer(
    online: Mapping[str, Set[Uuid]], offline: Collection[str], registered: Collection[Uuid], gone: Collection[Uuid]
) -> dict[str, Inferred]:
    """Return the id of each log directory of one broker.

    Args:
        online: paths, with the ids to which the metadata assigns the replicas there.
        offline: paths of offline directories.
        registered: ids that the broker has registered, which the controller considers online.
        gone: other ids to which replicas of this broker are assigned.
    """
    named = {path: ids & set(registered) for path, ids in online.items()}
    found = {
        path: Inferred(next(iter(ids)), BY_REPLICAS)
        for path, ids in named.items()
        if len(ids) == 1 and not any(ids & others for other, others in named.items() if other != path)
    }
    silent = [path for path, ids in named.items() if not ids]
    left = set(registered).difference(*named.values())
    if not offline and len(online) == len(registered) == len(found) + 1 and len(silent) == len(left) == 1:
        found[silent[0]] = Inferred(left.pop(), BY_ELIMINATION)
    if len(found) == len(online) and len(offline) == 1:
        left = set(registered).difference(each.directory_id for each in found.values())
        if len(left) == 1:  # the controller has not learned yet that it is offline
            found[next(iter(offline))] = Inferred(left.pop(), BY_ELIMINATION)
    if not registered and not gone:
        unregistered = Inferred(None, reason="the broker has registered no directory.id (KIP-858: metadata.version 17)")
        return dict.fromkeys((*online, *offline), unregistered)
    return {path: found.get(path) or _unknown(path, named, gone) for path in (*online, *offline)}


def _unknown(path: str, named: Mapping[str, Set[Uuid]], gone: Collection[Uuid]) -> Inferred:
    ids = named.get(path, ())
    if path not in named and gone:
        candidates = ", ".join(map(str, sorted(gone)))
        return Inferred(
            None,
            reason=f"replicas are assigned to {candidates}, which is not registered: that is the id of a directory "
            "that is offline, or that was taken out of log.dirs",
        )
    if not ids:
        return Inferred(None, reason="no replica tells which of several ids it has")
    shared = " and ".join(map(str, sorted(ids)))
    return Inferred(None, reason=f"replicas of {shared} do not lie in one directory each: is something being moved?")


def moved_between(before: MetadataImage, after: MetadataImage) -> set[int]:
    """Return the brokers that registered other directories between both images, or have a replica whose assigned
    directory changed."""
    found = {
        broker
        for broker, was in before.brokers.items()
        if (now := after.brokers.get(broker)) is not None and set(now.log_dirs) != set(was.log_dirs)
    }
    for topic_id, topic in before.topics.items():
        for number, old in topic.partitions.items():
            new = after.partition(topic_id, number)
            if new is None or (new.directories == old.directories and new.replicas == old.replicas):
                continue
            places = dict(zip(new.replicas, new.directories, strict=True))
            found.update(
                replica
                for replica, directory in zip(old.replicas, old.directories, strict=True)
                if not is_reserved(directory) and places.get(replica, directory) != directory
            )
    return found
