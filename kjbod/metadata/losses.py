"""Metadata that a cluster would lose at a lower metadata.version, as text.

Kafka (``image.writer.ImageWriterOptions``, ``MetadataVersion.checkIfMetadataChanged``) decides by levels alone and
refuses a downgrade across any level that brought new kinds of records, whether the cluster has such records or not.
Here the records are counted, so that an operator sees before a downgrade what would be lost.
"""

from collections.abc import Iterator

from kjbod.ids import is_reserved
from kjbod.metadata import versions
from kjbod.metadata.image import MetadataImage


def losses(image: MetadataImage, metadata_version: int) -> list[str]:
    """Return lines for metadata of ``image`` that a snapshot at ``metadata_version`` could not hold, newest level
    first."""
    return [text for since, text in _held(image) if metadata_version < since]


def eligible_replicas(image: MetadataImage) -> int:
    """Return the number of partitions with eligible leader replicas, which are lost with
    ``eligible.leader.replicas.version`` 0."""
    return sum(
        bool(partition.eligible_leader_replicas or partition.last_known_elr)
        for topic in image.topics.values()
        for partition in topic.partitions.values()
    )


def _held(image: MetadataImage) -> Iterator[tuple[int, str]]:
    """Yield existing kinds of metadata, each with the first metadata.version that can hold it."""
    if networks := sum("/" in entry.host for entry in image.acls.values()):
        yield versions.CIDR_ACLS, f"{_of(networks, 'ACL')} for networks"
    cordoned = sum(bool(broker.cordoned_log_dirs) for broker in image.brokers.values())
    if cordoned:
        yield versions.CORDONED_LOG_DIRS, f"the cordoned log directories of {_of(cordoned, 'broker')}"
    if eligible := eligible_replicas(image):
        yield versions.ELIGIBLE_LEADER_REPLICAS, f"the eligible leader replicas of {_of(eligible, 'partition')}"
    with_directories = sum(bool(broker.log_dirs) for broker in image.brokers.values())
    if with_directories:
        yield versions.DIRECTORY_ASSIGNMENT, f"the log directories of {_of(with_directories, 'broker')}"
    if placed := _placed(image):
        yield versions.DIRECTORY_ASSIGNMENT, f"the directories of the replicas of {_of(placed, 'partition')}"
    if image.controllers:
        yield versions.CONTROLLER_REGISTRATION, f"{_of(len(image.controllers), 'registration')} of controllers"
    if image.delegation_tokens:
        yield versions.DELEGATION_TOKENS, _of(len(image.delegation_tokens), "delegation token")
    if image.scram:
        yield versions.SCRAM, _of(len(image.scram), "SCRAM credential")


def _placed(image: MetadataImage) -> int:
    return sum(
        any(not is_reserved(directory) for directory in partition.directories)
        for topic in image.topics.values()
        for partition in topic.partitions.values()
    )


def _of(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
