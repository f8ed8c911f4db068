"""Blocks of producer ids, one per broker at a time (``ProducerIdControlManager``, KIP-730)."""

from typing import Final

from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import ProducerIdsRecord
from kjbod.wire.admin_messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import INT64_MAX
from kjbod_controller_stub.results import ApiError, Draft

BLOCK_SIZE: Final = 1_000
"""``ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE``."""


def allocate(draft: Draft, image: MetadataImage, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
    """Allocate the next block for a broker whose epoch was already checked.

    Raises:
        ApiError: UNKNOWN_SERVER_ERROR: all ids are used up.
    """
    first = image.next_producer_id
    if first > INT64_MAX - BLOCK_SIZE:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    draft.add(
        ProducerIdsRecord(
            broker_id=request.broker_id, broker_epoch=request.broker_epoch, next_producer_id=first + BLOCK_SIZE
        )
    )
    return AllocateProducerIdsResponse(producer_id_start=first, producer_id_len=BLOCK_SIZE)
