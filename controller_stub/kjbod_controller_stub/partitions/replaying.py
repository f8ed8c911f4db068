"""Replay hundreds of thousands of partition records fast.

What a record makes of one partition it makes of all of its shape, but for the epochs, and so does what the index has
to do for it: the *effect* of the record that the others are like. It is looked up twice. By identity first: partitions
that also have their epochs in common share one registration, in a cluster that was just made nearly all do. Then by
shape: in a cluster that has lived each has epochs of its own.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from kjbod.ids import Uuid
from kjbod.metadata.image import MetadataImage, PartitionChange, PartitionRegistration, ReplayError, shape_of
from kjbod.metadata.records import NO_LEADER_CHANGE, PartitionChangeRecord, PartitionRecord, PartitionRecordRef
from kjbod_controller_stub.partitions.index import PartitionIndex, Step
from kjbod_controller_stub.partitions.reassignments import Reassignments, is_reassigning

KNOWN_MAX = 4_096
"""So many registrations are known by identity; then all are forgotten."""


class _Effect(Struct):
    """Effect of equal records on partitions with the same shape."""

    outcome: PartitionRegistration
    """With the epochs of the first of them."""
    step: Step
    is_reassigned: bool
    times: int = 0


def replay_alike(
    records: Sequence[PartitionRecordRef],
    offset: int,
    image: MetadataImage,
    index: PartitionIndex,
    reassignments: Reassignments,
) -> None:
    """Apply records to the image, and have all follow that looks at partitions. The first one is at ``offset``.

    Raises:
        ReplayError: there is no such topic or partition, or a record does not fit it; those before it are applied.
    """
    index.tidy()  # not later: the effects keep its steps
    effects: dict[tuple[int, Any], _Effect] = {}
    # With the old registration, so that nothing else gets its identity.
    known: dict[tuple[int, int], tuple[PartitionRegistration | None, PartitionRegistration, _Effect]] = {}
    topic_id: Uuid | None = None
    partitions: dict[int, PartitionRegistration] = {}
    base = 0
    for record in records:
        like, of_topic, number = record
        if of_topic is not topic_id:
            partitions, base = _topic(record, image, offset), index.handle(of_topic, 0)
            topic_id = of_topic
        old = partitions.get(number)
        found = known.get((id(like), id(old)))
        if found is None:
            if len(known) >= KNOWN_MAX:
                known.clear()
            found = known[id(like), id(old)] = (old, *_outcome(record, old, effects, index, offset))
        _, new, effect = found
        partitions[number] = new
        handle = base | number
        for members in effect.step.leaves:
            members.pop(handle, None)
        for members in effect.step.enters:
            members[handle] = None
        effect.times += 1
        if effect.is_reassigned:
            reassignments.apply(PartitionChange(of_topic, image.topics[of_topic].name, number, old, new))
        offset += 1
    for effect in effects.values():
        index.count(effect.step, effect.times)
    image.offset = offset - 1


def _topic(record: PartitionRecordRef, image: MetadataImage, offset: int) -> dict[int, PartitionRegistration]:
    topic = image.topics.get(record.topic_id)
    if topic is None:
        raise ReplayError(
            f"metadata record at offset {offset}: {type(record.like).__name__} for topic {record.topic_id}, which does "
            "not exist"
        )
    return topic.partitions


def _outcome(
    record: PartitionRecordRef,
    old: PartitionRegistration | None,
    effects: dict[tuple[int, Any], _Effect],
    index: PartitionIndex,
    offset: int,
) -> tuple[PartitionRegistration, _Effect]:
    """Return the result of a record for a partition."""
    like = record.like
    key = (id(like), None if old is None else shape_of(old))
    effect = effects.get(key)
    if isinstance(like, PartitionChangeRecord) and old is not None and effect is not None:
        leader_epoch = old.leader_epoch + (like.leader != NO_LEADER_CHANGE)
        new = effect.outcome.at(leader_epoch, old.partition_epoch + 1)
    else:
        try:
            new = _made(record, old)
        except ReplayError as error:
            raise ReplayError(f"metadata record at offset {offset}: {error}") from None
    if effect is None:
        is_reassigned = is_reassigning(new) or (old is not None and is_reassigning(old))
        effect = effects[key] = _Effect(new, index.step(old, new), is_reassigned)
    return new, effect


def _made(record: PartitionRecordRef, old: PartitionRegistration | None) -> PartitionRegistration:
    whole = record.whole()
    if isinstance(whole, PartitionRecord):
        return PartitionRegistration.of(whole)
    if old is None:
        raise ReplayError(
            f"PartitionChangeRecord: partition {record.partition_id} of topic {record.topic_id} does not exist"
        )
    return old.merge(whole)
