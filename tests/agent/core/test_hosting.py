"""The index of this broker's replicas over the metadata image."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import UNASSIGNED, Uuid
from kjbod.metadata.image import BROKER, MetadataImage, changes_between, image_of
from kjbod.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RemoveTopicRecord,
    TopicRecord,
)
from kjbod.metadata.versions import DIRECTORY_ASSIGNMENT, METADATA_VERSION
from kjbod_agent.replicas.hosting import Hosted, Hosting, Update, cordoned_log_dirs
from kjbod_host.partitions import TopicIdPartition
from tests.depth import examples
from tests.metadata.replicas import replicas_of

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


# ------------------------------------------------------------------------------------------------- counted in steps

TOPICS = tuple(Uuid.of(5, n) for n in range(6))


def _of(topic_id: Uuid, number: int, replicas: tuple[int, ...]) -> PartitionRecord:
    return PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=replicas,
        isr=replicas,
        leader=replicas[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(UNASSIGNED,) * len(replicas),
    )


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["delete", "away", "here", "grow"])), max_size=8),
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.booleans(),
)
def test_what_changes_while_a_big_image_is_counted_is_told_as_what_it_was(
    changes: list[tuple[int, str]], pauses: list[int], snapshot: bool
) -> None:
    image = MetadataImage()
    image.replay(FeatureLevelRecord(name=METADATA_VERSION, feature_level=DIRECTORY_ASSIGNMENT))
    for topic_id in TOPICS:
        image.replay(TopicRecord(name=f"t{topic_id}", topic_id=topic_id))
        image.replay(_of(topic_id, 0, (1, 2)))
        image.replay(_of(topic_id, 1, (2, 1)))
    known = {(t.id, n) for t, n, _ in replicas_of(image, 1)}
    hosting, current = Hosting(1), [image]
    steps = hosting.load_in_steps(lambda: current[0], 2)
    for (index, kind), pause in zip(changes, pauses, strict=False):
        for _ in range(pause):
            next(steps, None)
        topic_id = TOPICS[index]
        if topic_id not in current[0].topics:
            continue
        record: Record = {
            "delete": RemoveTopicRecord(topic_id=topic_id),
            "away": PartitionChangeRecord(
                partition_id=0, topic_id=topic_id, replicas=(3,), isr=(3,), leader=3, directories=(D1,)
            ),
            "here": PartitionChangeRecord(
                partition_id=0, topic_id=topic_id, replicas=(1,), isr=(1,), leader=1, directories=(D1,)
            ),
            "grow": _of(topic_id, 2, (1,)),
        }[kind]
        if snapshot:
            old = current[0]
            current[0] = image_of(old.to_records())
            current[0].replay(record)
            told = list(changes_between(old, current[0]))
        else:
            told = [change for change in [image.replay(record)] if change is not None]
        for update in hosting.apply(told):
            before = (update.partition.topic_id, update.partition.partition) in known
            assert (update.old is not None) == before, "what was this broker's is not new"
        known = {(t.id, n) for t, n, _ in replicas_of(current[0], 1)}
    for _ in steps:
        pass
    fresh = Hosting(1)
    fresh.load(current[0])
    assert hosting.partitions == fresh.partitions


# ------------------------------------------------------------------------------------------------------------ cordoned


@pytest.mark.parametrize(
    ("dynamic", "expected"),
    [
        ({}, {"/d1"}),
        ({"": "/d2"}, {"/d2"}),
        ({"1": "/d3, /d2", "": "*"}, {"/d2", "/d3"}),
        ({"1": "*"}, {"/d1", "/d2", "/d3"}),
        ({"1": ""}, set()),
        ({"2": "*"}, {"/d1"}),
    ],
)
def test_co_3_directories_are_cordoned_by_the_nearest_setting(dynamic: dict[str, str], expected: set[str]) -> None:
    image = MetadataImage()
    for broker, value in dynamic.items():
        image.replay(ConfigRecord(resource_type=BROKER, resource_name=broker, name="cordoned.log.dirs", value=value))
    assert cordoned_log_dirs(image, 1, ["/d1"], ["/d1", "/d2", "/d3"]) == expected
