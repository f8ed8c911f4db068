"""The index of this broker's replicas over the metadata image."""

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.records import PartitionChangeRecord, PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from kjbod_agent.hosting import Hosted, Hosting, Update
from kjbod_agent.partitions import TopicIdPartition

D1, D2 = Uuid.of(2, 1), Uuid.of(2, 2)
TOPIC = Uuid.of(3, 1)
P0, P1 = TopicIdPartition(TOPIC, 0), TopicIdPartition(TOPIC, 1)


class World:
    """An image and the index of broker 1 over it."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.hosting = Hosting(1)

    def replay(self, *records: Record) -> list[Update]:
        changes = [change for record in records if (change := self.image.replay(record)) is not None]
        updates = self.hosting.apply(changes)
        fresh = Hosting(1)
        fresh.load(self.image)
        assert fresh.partitions == self.hosting.partitions
        return updates


def partition(number: int, replicas: tuple[int, ...], leader: int) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=TOPIC,
        replicas=replicas,
        isr=replicas,
        leader=leader,
        leader_epoch=0,
        partition_epoch=0,
        directories=(UNASSIGNED,) * len(replicas),
    )


def test_only_this_broker_s_replicas_count_and_a_change_says_what_was_before() -> None:
    world = World()
    updates = world.replay(TopicRecord(name="t", topic_id=TOPIC), partition(0, (1, 2), 1), partition(1, (2, 3), 2))
    assert updates == [Update(P0, None, Hosted("t", UNASSIGNED, True))]
    updates = world.replay(PartitionChangeRecord(partition_id=0, topic_id=TOPIC, directories=(D1, UNASSIGNED)))
    assert updates == [Update(P0, Hosted("t", UNASSIGNED, True), Hosted("t", D1, True))]
    assert world.replay(PartitionChangeRecord(partition_id=0, topic_id=TOPIC, isr=(1,))) == []


def test_a_replica_added_or_taken_away_by_a_reassignment_is_seen() -> None:
    world = World()
    world.replay(TopicRecord(name="t", topic_id=TOPIC), partition(1, (2,), 2))
    added = world.replay(
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC, replicas=(2, 1), directories=(D2, UNASSIGNED))
    )
    assert added == [Update(P1, None, Hosted("t", UNASSIGNED, False))]
    removed = world.replay(PartitionChangeRecord(partition_id=1, topic_id=TOPIC, replicas=(2,), directories=(D2,)))
    assert removed == [Update(P1, Hosted("t", UNASSIGNED, False), None)]


def test_a_deleted_topic_takes_its_replicas_along_and_a_change_and_its_reverse_are_nothing() -> None:
    world = World()
    assert (
        world.replay(TopicRecord(name="t", topic_id=TOPIC), partition(0, (1,), 1), RemoveTopicRecord(topic_id=TOPIC))
        == []
    )


def test_leaders_are_counted_where_their_replica_really_lies() -> None:
    world = World()
    world.replay(TopicRecord(name="t", topic_id=TOPIC), partition(0, (1, 2), 1), partition(1, (1, 2), 2))
    assert world.hosting.leaders_by(lambda _p, _h: D2) == {D2: 1}
