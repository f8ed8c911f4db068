"""Replicas in a metadata image, by the broker that has them."""

from collections.abc import Iterator

from kjbod.metadata.image import MetadataImage, PartitionRegistration, Topic


def replicas_of(image: MetadataImage, broker_id: int) -> Iterator[tuple[Topic, int, PartitionRegistration]]:
    """Topic, number and registration of every partition with a replica on ``broker_id``."""
    for topic in image.topics.values():
        for number, partition in topic.partitions.items():
            if broker_id in partition.replicas:
                yield topic, number, partition
