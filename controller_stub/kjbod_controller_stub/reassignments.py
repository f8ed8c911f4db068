"""AlterPartitionReassignments and ListPartitionReassignments, without any reassignment (KIP-455).

``kafka-reassign-partitions`` asks for one before it moves replicas between the directories of a broker, also when every
partition stays on its brokers. That is granted, and changes nothing. Whoever asks for more is told that this controller
does not offer it.
"""

from kjbod.metadata.image import MetadataImage
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
    ListPartitionReassignmentsResponse,
)
from kjbod_controller_stub.results import ApiError


def alter_reassignments(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    """The outcome for each partition: nothing changes."""
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        responses=tuple(
            AlterPartitionReassignmentsResponseTopic(
                name=topic.name,
                partitions=tuple(_answer(image, topic.name, partition) for partition in topic.partitions),
            )
            for topic in request.topics
        ),
    )


def list_reassignments() -> ListPartitionReassignmentsResponse:
    """None is in progress, whatever was asked."""
    return ListPartitionReassignmentsResponse()


def _answer(
    image: MetadataImage, topic: str, wanted: AlterPartitionReassignmentsRequestPartition
) -> AlterPartitionReassignmentsResponsePartition:
    try:
        _check(image, topic, wanted)
    except ApiError as error:
        return AlterPartitionReassignmentsResponsePartition(
            partition_index=wanted.partition_index, error_code=error.code, error_message=error.message
        )
    return AlterPartitionReassignmentsResponsePartition(partition_index=wanted.partition_index)


def _check(image: MetadataImage, topic: str, wanted: AlterPartitionReassignmentsRequestPartition) -> None:
    topic_id = image.topic_ids.get(topic)
    if topic_id is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    name = f"{topic}:{wanted.partition_index}"
    partition = image.partition(topic_id, wanted.partition_index)
    if partition is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}.")
    if wanted.replicas is None:
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    if wanted.replicas != partition.replicas:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Moving replicas between brokers is not offered by this controller yet: "
            f"partition {name} has replicas {list(partition.replicas)} and keeps them in this order.",
        )
