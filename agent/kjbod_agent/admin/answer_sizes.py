"""Sizes of answers from the metadata, estimated from known counts. Pure.

An estimate may be wrong by a factor, and never leaves anything out that grows with the cluster.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.wire.admin_messages import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeTopicPartitionsRequest,
    DescribeUserScramCredentialsRequest,
    ListConfigResourcesRequest,
)
from kjbod.wire.messages import DescribeClusterRequest, DescribeConfigsRequest, MetadataRequest

AT_ONCE: Final = 50
"""Parts of an answer that the event loop makes itself: less than a millisecond."""
CONFIGS_OF_RESOURCE: Final = 5
"""Parts that are reckoned for the configuration of one topic or broker."""


def parts_of(image: MetadataImage, message: object) -> int:
    """Partitions, brokers, ACLs and the like that make the answer, counted up to where they are more than
    :data:`AT_ONCE`."""
    return _PARTS[type(message)](image, message)


def _partitions(image: MetadataImage, ids: Iterable[Uuid | None]) -> int:
    count = 0
    for topic_id in ids:
        topic = None if topic_id is None else image.topics.get(topic_id)
        count += 1 if topic is None else 1 + len(topic.partitions)
        if count > AT_ONCE:
            break
    return count


def _metadata(image: MetadataImage, message: MetadataRequest) -> int:
    named = (image.topic_ids.get(each.name) if each.name else each.topic_id for each in message.topics or ())
    return len(image.brokers) + _partitions(image, named if message.topics else image.topics)


def _topic_partitions(image: MetadataImage, message: DescribeTopicPartitionsRequest) -> int:
    named = (image.topic_ids.get(each.name) for each in message.topics)
    return _partitions(image, named if message.topics else image.topics)


_PARTS: Final[Mapping[type[Any], Callable[[MetadataImage, Any], int]]] = {
    MetadataRequest: _metadata,
    DescribeTopicPartitionsRequest: _topic_partitions,
    DescribeClusterRequest: lambda image, message: len(image.brokers),
    DescribeConfigsRequest: lambda image, message: CONFIGS_OF_RESOURCE * len(message.resources),
    DescribeAclsRequest: lambda image, message: len(image.acls),
    DescribeClientQuotasRequest: lambda image, message: len(image.quotas),
    DescribeUserScramCredentialsRequest: lambda image, message: len(image.scram) + len(message.users or ()),
    ListConfigResourcesRequest: lambda image, message: len(image.topics) + len(image.configs),
}
