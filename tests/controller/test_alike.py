"""What is done once for all that are alike gives what would be given for each: records, bytes, registrations, index."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata import records
from kjbod.metadata.image import PartitionChange, PartitionRegistration, ReplayError
from kjbod.metadata.records import (
    AbortTransactionRecord,
    AnyRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionRecordRef,
    Record,
    decode_record,
    encode_alike,
    encode_record,
    for_partition,
)
from kjbod_controller_stub.partitions.index import PartitionIndex
from kjbod_controller_stub.partitions.replication import NOBODY, Replication
from kjbod_controller_stub.results import Draft, PartitionKey, Result
from kjbod_controller_stub.rules import KAFKA, KIP_858, Rules
from tests.controller.world import World, directories, directory, errors
from tests.depth import examples

BROKERS = (1, 2, 3, 4)
CALM = settings(max_examples=examples(50))
SHAPES = st.integers(0, 2**32)
INT32 = st.integers(-(2**31), 2**31 - 1)
IDS = st.binary(min_size=16, max_size=16).map(Uuid)
BROKER_LISTS = st.lists(INT32, max_size=4).map(tuple)
MAYBE_BROKERS = st.none() | BROKER_LISTS
MAYBE_IDS = st.none() | st.lists(IDS, max_size=4).map(tuple)


def scattered(rng: random.Random, rules: Rules, *, mixed: bool = True) -> World:
    """Topics that differ in their configuration, with partitions of shapes that hardly differ, in any order, and
    brokers in any state. ``mixed``: also of shapes that no controller makes, such as a leader that is no replica."""
    world = World(rules)
    for broker in BROKERS:
        world.join(broker)
    for topic in "abc":
        world.create(topic, *[tuple(rng.sample(BROKERS, 3)) for _ in range(8)])
        configs = {"unclean.leader.election.enable": rng.choice(["true", "false"]), "min.insync.replicas": "2"}
        world.controller.image.configs[2, topic] = {
            name: value for name, value in configs.items() if rng.random() < 0.5
        }
    for broker in BROKERS:
        if rng.random() < 0.3:
            world.beat(broker, fence=True)
    first, other = shape(rng), shape(rng)
    shapes = [shape(rng) for _ in range(3)]
    if mixed:
        shapes = [first, *(first | {name: other[name]} for name in first)]  # alike but for one thing
    for created in world.controller.image.topics.values():
        for number, old in created.partitions.items():
            created.partitions[number] = PartitionRegistration(
                **rng.choice(shapes),
                leader_epoch=rng.randrange(3),
                partition_epoch=old.partition_epoch + rng.randrange(3),
            )
            world.controller.index.apply(
                PartitionChange(created.id, created.name, number, old, created.partitions[number])
            )
    return world


def shape(rng: random.Random) -> dict[str, Any]:
    replicas = tuple(rng.sample(BROKERS, 3))
    in_sync = tuple(replica for replica in replicas if rng.random() < 0.6)
    eligible = tuple(replica for replica in replicas if replica not in in_sync and rng.random() < 0.5)
    leader = rng.choice([*in_sync, NOBODY])
    return {
        "replicas": replicas,
        "directories": tuple(
            rng.choice([MIGRATING, UNASSIGNED, LOST, directory(replica, rng.randrange(3))]) for replica in replicas
        ),
        "isr": in_sync,
        "leader": leader,
        "leader_recovery_state": rng.randrange(2),
        "adding_replicas": replicas[:1] if rng.random() < 0.2 else (),
        "removing_replicas": replicas[2:] if rng.random() < 0.2 else (),
        "eligible_leader_replicas": eligible,
        "last_known_elr": () if in_sync or eligible else replicas[:1],
    }


def whole(record: AnyRecord) -> Record:
    return record.whole() if isinstance(record, PartitionRecordRef) else record


def one_by_one(replication: Replication, draft: Draft, keys: list[PartitionKey], **brokers: int) -> list[Record]:
    """The records that the builder makes when it is asked for each partition."""
    gone = {broker for name, broker in brokers.items() if name != "add"}
    made: list[Record] = []
    for key in keys:
        partition = draft.partition(key)
        assert partition is not None
        builder = replication.builder(draft, key, partition, **brokers)
        if gone & set(partition.isr):
            builder.target_isr = tuple(replica for replica in partition.isr if replica not in gone)
        record = builder.build()
        if record is not None:
            made.append(record)
    return made


@pytest.mark.parametrize("rules", [KIP_858, KAFKA], ids=lambda rules: rules.name)
@pytest.mark.parametrize("what", ["remove", "add", "unclean"])
@CALM
@given(seed=SHAPES)
def test_partitions_of_one_shape_get_the_records_that_each_alone_would_get(rules: Rules, what: str, seed: int) -> None:
    rng = random.Random(seed)
    world = scattered(rng, rules)
    controller = world.controller
    keys = [(topic.id, number) for topic in controller.image.topics.values() for number in topic.partitions]
    rng.shuffle(keys)
    brokers = {what: rng.choice(BROKERS)}
    expected = one_by_one(controller.replication, Draft(controller.image), keys, **brokers)
    draft = Draft(controller.image)
    moved = controller.replication.leader_and_isr_updates(draft, keys, **brokers)
    made = [whole(record) for record in draft.records]
    assert made == expected
    assert moved == sum(isinstance(record, PartitionChangeRecord) and record.leader >= 0 for record in expected)
    for version in range(PartitionChangeRecord.VERSION_MAX, 3):
        assert [encode_record(record, version) for record in made] == [
            records._encode(record, version) for record in expected
        ]


@pytest.mark.parametrize("rules", [KIP_858, KAFKA], ids=lambda rules: rules.name)
@CALM
@given(seed=SHAPES)
def test_replicas_assigned_in_one_request_end_as_those_assigned_one_by_one(rules: Rules, seed: int) -> None:
    rng = random.Random(seed)
    together, alone = (scattered(random.Random(seed), rules, mixed=False) for _ in range(2))
    broker, where = rng.choice(BROKERS), rng.choice([LOST, *directories(BROKERS[0]), *directories(BROKERS[1])])
    topics = together.controller.image.topics
    numbers = {topic_id: tuple(rng.sample(range(9), rng.randint(1, 9))) for topic_id in topics}  # 8 does not exist
    answer = together.assign(broker, *((where, topic_id, numbers[topic_id]) for topic_id in topics))
    errors_alone = []
    for topic_id in topics:
        for number in numbers[topic_id]:
            errors_alone += errors(alone.assign(broker, (where, topic_id, (number,))))
    assert errors(answer) == errors_alone
    assert together.controller.image == alone.controller.image
    assert indexed(together.controller.index, together) == indexed(alone.controller.index, alone)


CHANGES = st.builds(
    PartitionChangeRecord,
    partition_id=INT32,
    topic_id=IDS,
    isr=MAYBE_BROKERS,
    leader=INT32,
    replicas=MAYBE_BROKERS,
    removing_replicas=MAYBE_BROKERS,
    adding_replicas=MAYBE_BROKERS,
    leader_recovery_state=st.integers(-1, 1),
    directories=MAYBE_IDS,
    eligible_leader_replicas=MAYBE_BROKERS,
    last_known_elr=MAYBE_BROKERS,
)
PARTITIONS = st.builds(
    PartitionRecord,
    partition_id=INT32,
    topic_id=IDS,
    replicas=BROKER_LISTS,
    isr=BROKER_LISTS,
    removing_replicas=BROKER_LISTS,
    adding_replicas=BROKER_LISTS,
    leader=INT32,
    leader_recovery_state=st.integers(0, 1),
    leader_epoch=INT32,
    partition_epoch=INT32,
    directories=st.lists(IDS, max_size=4).map(tuple),
    eligible_leader_replicas=MAYBE_BROKERS,
    last_known_elr=MAYBE_BROKERS,
)


@CALM
@given(record=CHANGES | PARTITIONS, topic_id=IDS, partition_id=INT32)
def test_a_record_whose_like_was_met_before_has_the_bytes_of_one_that_is_new(
    record: PartitionChangeRecord | PartitionRecord, topic_id: Uuid, partition_id: int
) -> None:
    encode_record(record)
    other = for_partition(record, topic_id, partition_id)
    assert (other.topic_id, other.partition_id) == (topic_id, partition_id)
    assert for_partition(other, record.topic_id, record.partition_id) == record
    value = encode_record(other)
    assert value == records._encode(other, record.VERSION_MAX)
    assert encode_alike(record, record.VERSION_MAX)(topic_id, partition_id) == value
    for _ in range(2):  # the first time and when it was met
        assert decode_record(value) == records._decode(value) == (other, record.VERSION_MAX)
        assert decode_record(memoryview(value)) == (other, record.VERSION_MAX)


@CALM
@given(seed=SHAPES, change=SHAPES)
def test_a_registration_merged_before_is_the_one_that_a_merge_makes(seed: int, change: int) -> None:
    before = PartitionRegistration(**shape(random.Random(seed)), leader_epoch=1, partition_epoch=1)
    after = shape(random.Random(change))
    record = PartitionChangeRecord(topic_id=Uuid.of(1, 1), partition_id=0, **after)
    assert before.merge(record) == before._merge(record)
    again = for_partition(record, Uuid.of(1, 2), 7)
    assert before.merge(again) is before.merge(record)


def indexed(index: PartitionIndex, world: World) -> dict[str, Any]:
    """All that an index says, in an order of its own."""
    told: dict[str, Any] = {"leaderless": sorted(index.leaderless()), "imbalanced": sorted(index.imbalanced())}
    for broker in BROKERS:
        told[f"isr {broker}"] = sorted(index.in_isr(broker))
        told[f"elr {broker}"] = sorted(index.in_elr(broker))
        told[f"leads {broker}"] = index.leads(broker)
        for where in (MIGRATING, UNASSIGNED, LOST, *(directory(broker, number) for number in range(3))):
            told[f"{broker} in {where}"] = sorted(index.in_directory(broker, where))
    return told


@CALM
@given(seed=SHAPES)
def test_the_index_after_any_changes_is_that_of_a_controller_that_begins_with_the_outcome(seed: int) -> None:
    rng = random.Random(seed)
    world = World(KIP_858)
    for broker in BROKERS:
        world.join(broker)
    for topic in "ab":
        world.create(topic, *[tuple(rng.sample(BROKERS, 3)) for _ in range(3)])
    for _ in range(12):
        topic_id = world.topic_id(rng.choice("ab"))
        change = PartitionChangeRecord(topic_id=topic_id, partition_id=rng.randrange(3), **shape(rng))
        world.controller.replay(change)
    fresh = World(KIP_858).controller
    for record in world.controller.image.to_records():
        fresh.replay(record)
    assert indexed(world.controller.index, world) == indexed(fresh.index, world)


@CALM
@given(seed=SHAPES)
def test_records_that_are_replayed_together_leave_what_they_leave_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    one, other = scattered(random.Random(seed), KIP_858), scattered(random.Random(seed), KIP_858)
    topics = [topic.id for topic in one.controller.image.topics.values()]
    likes: list[PartitionChangeRecord | PartitionRecord] = [
        PartitionChangeRecord(topic_id=topics[0], partition_id=0, **shape(rng)) for _ in range(3)
    ]
    likes += [
        PartitionRecord(topic_id=topics[0], partition_id=0, leader_epoch=0, partition_epoch=0, **shape(rng))
        for _ in range(2)
    ]
    alike = [PartitionRecordRef(rng.choice(likes), rng.choice(topics), rng.randrange(8)) for _ in range(40)]
    one.write(Result(records=tuple(alike)))
    other.write(Result(records=tuple(record.whole() for record in alike)))
    assert one.log == other.log
    assert one.controller.image == other.controller.image
    assert (one.controller.next_offset, one.controller.image.offset) == (
        other.controller.next_offset,
        other.controller.image.offset,
    )
    assert indexed(one.controller.index, one) == indexed(other.controller.index, other)
    assert one.controller.reassignments._in_progress == other.controller.reassignments._in_progress


@CALM
@given(seed=SHAPES)
def test_a_batch_that_is_recovered_at_once_leaves_what_its_records_leave_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    world = World(KIP_858)
    for broker in BROKERS:
        world.join(broker)
    for topic in "abc":
        world.create(topic, *[tuple(rng.sample(BROKERS, 3)) for _ in range(8)])
    topics = [world.topic_id(topic) for topic in "abc"]
    likes = [PartitionChangeRecord(topic_id=topics[0], partition_id=0, **shape(rng)) for _ in range(3)]
    marks: list[Record] = [NoOpRecord(), BeginTransactionRecord(), EndTransactionRecord(), AbortTransactionRecord()]
    records: list[AnyRecord] = [
        PartitionRecordRef(rng.choice(likes), rng.choice(topics), rng.randrange(8)) for _ in range(40)
    ]
    begun = False
    for place in sorted(rng.sample(range(40), 6), reverse=True):
        mark = rng.choice([marks[0], *(marks[2:] if not begun else marks[1:2])])  # from the end on
        begun = begun if mark is marks[0] else not begun
        records.insert(place, mark)
    if begun:
        records.insert(0, marks[1])
    at_once, one_by_one = world.replayed(), world.replayed()
    first = at_once.next_offset
    at_once.recover_batch(2, enumerate(records, start=first))
    for offset, record in enumerate(records, start=first):
        one_by_one.recover(offset, 2, whole(record))
    assert at_once.image == one_by_one.image
    assert (at_once.next_offset, at_once.features_offset) == (one_by_one.next_offset, one_by_one.features_offset)
    assert (at_once.image.offset, at_once.image.epoch) == (one_by_one.image.offset, one_by_one.image.epoch)
    assert indexed(at_once.index, world) == indexed(one_by_one.index, world)


def test_a_record_that_does_not_fit_is_told_with_its_offset() -> None:
    world = World()
    world.join(1)
    topic = world.create("t", (1,))
    fits = PartitionChangeRecord(topic_id=topic, partition_id=0, isr=(1,))
    wrong = PartitionChangeRecord(topic_id=topic, partition_id=0, directories=(MIGRATING, MIGRATING))
    for like, topic_id, number, problem in (
        (wrong, topic, 0, "1 replicas and 2 directories"),
        (fits, topic, 9, "partition 9 of topic .* does not exist"),
        (fits, Uuid.of(8, 8), 0, "for topic .*, which does not exist"),
    ):
        fresh = world.replayed()
        batch = [
            PartitionRecordRef(fits, topic, 0),
            PartitionRecordRef(fits, topic, 0),
            PartitionRecordRef(like, topic_id, number),
        ]
        with pytest.raises(ReplayError, match=f"metadata record at offset 7002: .*{problem}"):
            fresh.recover_batch(1, enumerate(batch, start=7_000))


@pytest.mark.parametrize(
    "record",
    [
        PartitionRecordRef(PartitionChangeRecord(topic_id=Uuid.of(1, 1), partition_id=0), Uuid.of(8, 8), 0),
        PartitionChangeRecord(topic_id=Uuid.of(8, 8), partition_id=0),
    ],
    ids=["alike", "whole"],
)
def test_a_change_of_nothing_is_a_bug_that_is_told(record: AnyRecord) -> None:
    with pytest.raises(ReplayError, match=r"topic .* does not exist"):
        World().write(Result(records=(record,)))
