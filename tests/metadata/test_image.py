"""What each metadata record does to the image of a cluster, and which records it refuses."""

import dataclasses
from typing import Any

import pytest
from msgspec import structs

from kjbod.ids import LOST, MIGRATING, UNASSIGNED, Uuid
from kjbod.metadata.image import (
    BROKER,
    TOPIC,
    BrokerChange,
    ConfigChange,
    ElrCleared,
    FeatureChange,
    MetadataImage,
    PartitionChange,
    PartitionRegistration,
    Replayer,
    ReplayError,
    TopicCreated,
    TopicDeleted,
    UnwritableMetadataError,
    changes_between,
    image_of,
    same_controller,
)
from kjbod.metadata.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FeatureRange,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    QuotaEntity,
    Record,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)
from tests.metadata.replicas import replicas_of

D1, D2, D3, D4 = (Uuid.of(100 + n, 1) for n in range(4))
NEGATIVE = Uuid.of(-5, 1)
"""Sorts before the others in Java's order, after them as bytes."""
T = Uuid.of(50, 50)
INCARNATION = Uuid.of(9, 9)


def register(broker_id: int = 1, epoch: int = 10, **fields: Any) -> RegisterBrokerRecord:
    given: dict[str, Any] = {"log_dirs": (D1, D2)} | fields
    return RegisterBrokerRecord(
        broker_id=broker_id, broker_epoch=epoch, incarnation_id=INCARNATION, end_points=(), features=(), **given
    )


def change(**fields: Any) -> BrokerRegistrationChangeRecord:
    given: dict[str, Any] = {"broker_id": 1, "broker_epoch": 10} | fields
    return BrokerRegistrationChangeRecord(**given)


def partition(number: int = 0, **fields: Any) -> PartitionRecord:
    given: dict[str, Any] = {
        "replicas": (1, 2, 3),
        "isr": (1, 2, 3),
        "leader": 1,
        "leader_epoch": 4,
        "partition_epoch": 7,
        "directories": (D1, UNASSIGNED, LOST),
    } | fields
    return PartitionRecord(partition_id=number, topic_id=T, **given)


def merge(number: int = 0, **fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=number, topic_id=T, **fields)


def image_with(*records: Record) -> MetadataImage:
    return image_of(records)


def registration(image: MetadataImage, number: int = 0) -> PartitionRegistration:
    found = image.partition(T, number)
    assert found is not None
    return found


TOPIC_RECORD = TopicRecord(name="t", topic_id=T)

# ---------------------------------------------------------------- brokers


def test_directories_of_a_broker_are_kept_in_the_order_of_java_ids() -> None:
    image = image_with(register(log_dirs=(D2, NEGATIVE, D1)))
    assert image.brokers[1].log_dirs == (NEGATIVE, D1, D2)


def test_a_replica_is_online_by_the_rules_of_directory_ids() -> None:
    broker = image_with(register()).brokers[1]
    online = {D1: True, D2: True, D3: False, UNASSIGNED: True, MIGRATING: True, LOST: False}
    assert {directory: broker.has_online_dir(directory) for directory in online} == online
    old = image_with(register(log_dirs=())).brokers[1]
    assert old.has_online_dir(D3), "a broker from before directories were recorded (KAFKA-16162)"
    assert not old.has_online_dir(LOST)


def test_a_new_replica_gets_the_only_directory_or_leaves_the_choice_to_the_broker() -> None:
    image = image_with(register(1), register(2, log_dirs=(D3,)), register(3, log_dirs=()))
    assert [image.default_dir(n) for n in (1, 2, 3, 4)] == [UNASSIGNED, D3, MIGRATING, UNASSIGNED]


def test_a_registration_says_where_in_the_log_it_is_and_a_change_keeps_that() -> None:
    image = MetadataImage()
    image.replay(register(), 42)
    image.replay(change(fenced=-1), 50)
    assert image.brokers[1].record_offset == 42
    assert image.offset == 50


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (change(fenced=-1), {"fenced": False}),
        (change(fenced=1), {"fenced": True}),
        (change(in_controlled_shutdown=1), {"in_controlled_shutdown": True}),
        (change(log_dirs=(D2,)), {"log_dirs": (D2,)}),
        (change(log_dirs=()), {}),
        (change(cordoned_log_dirs=()), {"cordoned_log_dirs": ()}),
        (change(cordoned_log_dirs=(D1,)), {"cordoned_log_dirs": (D1,)}),
        (UnfenceBrokerRecord(id=1, epoch=10), {"fenced": False}),
        (FenceBrokerRecord(id=1, epoch=10), {"fenced": True}),
    ],
)
def test_a_change_of_a_registration_changes_what_it_names_and_no_more(record: Record, expected: dict[str, Any]) -> None:
    image = image_with(register())
    before = image.brokers[1]
    after = dataclasses.replace(before, **expected)
    assert image.replay(record) == BrokerChange(1, before, after)
    assert image.brokers[1] == after


def test_controlled_shutdown_is_never_taken_back_by_a_change() -> None:
    image = image_with(register(), change(in_controlled_shutdown=1), change(fenced=-1))
    assert image.brokers[1].in_controlled_shutdown
    assert not image.brokers[1].active


def test_a_directory_belongs_to_the_broker_that_registered_it_until_that_goes() -> None:
    image = image_with(register(1), register(2, log_dirs=(D3,)))
    assert image.directory_owners == {D1: 1, D2: 1, D3: 2}
    with pytest.raises(ReplayError, match=f"broker 2 registers directory {D1}, which belongs to broker 1"):
        image.replay(register(2, log_dirs=(D1,)))
    image.replay(change(log_dirs=(D2,)))
    image.replay(register(2, log_dirs=(D1,)))
    assert image.directory_owners == {D1: 2, D2: 1}
    image.replay(UnregisterBrokerRecord(broker_id=1, broker_epoch=10))
    assert image.directory_owners == {D1: 2}
    assert 1 not in image.brokers


# ---------------------------------------------------------------- partitions


def test_a_partition_from_before_directories_is_migrating_on_every_replica() -> None:
    image = image_with(TOPIC_RECORD, partition(directories=()))
    assert registration(image).directories == (MIGRATING,) * 3
    assert registration(image).directory(2) == MIGRATING


def test_the_directory_of_a_broker_that_is_no_replica_is_an_error() -> None:
    image = image_with(TOPIC_RECORD, partition())
    assert registration(image).directory(3) == LOST
    with pytest.raises(KeyError):
        registration(image).directory(4)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (merge(isr=(1,)), {"isr": (1,)}),
        (merge(leader=2), {"leader": 2, "leader_epoch": 5}),
        (merge(leader=1), {"leader": 1, "leader_epoch": 5}),
        (merge(leader=-1), {"leader": -1, "leader_epoch": 5}),
        (merge(directories=(D2, D3, D4)), {"directories": (D2, D3, D4)}),
        (merge(directories=()), {"directories": (MIGRATING,) * 3}),
        (merge(leader_recovery_state=1), {"leader_recovery_state": 1}),
        (merge(adding_replicas=(4,), removing_replicas=(2,)), {"adding_replicas": (4,), "removing_replicas": (2,)}),
        (merge(replicas=(3, 2, 1)), {"replicas": (3, 2, 1)}),
        (merge(replicas=(1,), directories=(D4,)), {"replicas": (1,), "directories": (D4,)}),
        (
            merge(eligible_leader_replicas=(2,), last_known_elr=(3,)),
            {"eligible_leader_replicas": (2,), "last_known_elr": (3,)},
        ),
    ],
)
def test_a_partition_change_raises_the_partition_epoch_and_a_leader_the_leader_epoch(
    record: PartitionChangeRecord, expected: dict[str, Any]
) -> None:
    image = image_with(TOPIC_RECORD, partition())
    before = registration(image)
    after = structs.replace(before, partition_epoch=8, **expected)
    assert image.replay(record) == PartitionChange(T, "t", 0, before, after)
    assert registration(image) == after


def test_below_3_7_replicas_change_without_directories() -> None:
    image = image_with(TOPIC_RECORD, partition(directories=()), merge(replicas=(1, 4)))
    assert registration(image).directories == (MIGRATING, MIGRATING)


def test_clearing_eligible_leader_replicas_touches_only_partitions_that_have_some() -> None:
    other = TopicRecord(name="u", topic_id=Uuid.of(51, 0))
    image = image_with(TOPIC_RECORD, partition(0, eligible_leader_replicas=(2,)), partition(1), other)
    cleared = image.replay(ClearElrRecord(topic_name="t"))
    assert isinstance(cleared, ElrCleared)
    assert [(c.partition, c.new.partition_epoch) for c in cleared.partitions] == [(0, 8)]
    assert registration(image).eligible_leader_replicas == ()
    assert image.replay(ClearElrRecord(topic_name="")) == ElrCleared(())


def test_deleting_a_topic_deletes_its_partitions_and_configuration() -> None:
    image = image_with(
        TOPIC_RECORD,
        partition(),
        ConfigRecord(resource_type=TOPIC, resource_name="t", name="retention.ms", value="1"),
        ConfigRecord(resource_type=BROKER, resource_name="", name="min.insync.replicas", value="1"),
    )
    deleted = image.replay(RemoveTopicRecord(topic_id=T))
    assert isinstance(deleted, TopicDeleted)
    assert list(deleted.topic.partitions) == [0]
    assert image.topics == {}
    assert image.topic_ids == {}
    assert image.configs == {(BROKER, ""): {"min.insync.replicas": "1"}}
    created = image.replay(TopicRecord(name="t", topic_id=Uuid.of(60, 0)))
    assert isinstance(created, TopicCreated)


def test_replicas_of_a_broker_are_found() -> None:
    image = image_with(TOPIC_RECORD, partition(0), partition(1, replicas=(2,), directories=(D1,), isr=(2,)))
    assert [(topic.name, number) for topic, number, _ in replicas_of(image, 2)] == [("t", 0), ("t", 1)]
    assert [(topic.name, number) for topic, number, _ in replicas_of(image, 1)] == [("t", 0)]
    assert image.partition_count() == 2


# ---------------------------------------------------------------- the rest


def test_a_configuration_without_value_is_unset() -> None:
    image = MetadataImage()
    key: dict[str, Any] = {"resource_type": TOPIC, "resource_name": "t", "name": "k"}
    assert image.replay(ConfigRecord(**key, value="1")) == ConfigChange(TOPIC, "t", "k", None, "1")
    assert image.replay(ConfigRecord(**key, value=None)) == ConfigChange(TOPIC, "t", "k", "1", None)
    assert image.configs == {}


def test_a_feature_at_level_zero_is_gone_and_the_level_of_an_empty_log_is_the_oldest() -> None:
    image = MetadataImage()
    assert image.metadata_version == 7
    assert image.replay(FeatureLevelRecord(name="metadata.version", feature_level=30)) == FeatureChange(
        "metadata.version", 0, 30
    )
    image.replay(FeatureLevelRecord(name="share.version", feature_level=1))
    image.replay(FeatureLevelRecord(name="share.version", feature_level=0))
    assert image.features == {"metadata.version": 30}
    assert image.metadata_version == 30


OTHERS: list[tuple[Record, Record | None]] = [
    (
        ClientQuotaRecord(
            entity=(QuotaEntity(entity_type="user", entity_name="u"), QuotaEntity(entity_type="ip", entity_name=None)),
            key="rate",
            value=1.5,
            remove=False,
        ),
        ClientQuotaRecord(
            entity=(QuotaEntity(entity_type="ip", entity_name=None), QuotaEntity(entity_type="user", entity_name="u")),
            key="rate",
            value=0,
            remove=True,
        ),
    ),
    (
        AccessControlEntryRecord(
            id=D1,
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        ),
        RemoveAccessControlEntryRecord(id=D1),
    ),
    (
        UserScramCredentialRecord(name="u", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096),
        RemoveUserScramCredentialRecord(name="u", mechanism=1),
    ),
    (
        DelegationTokenRecord(
            owner="o",
            requester="r",
            renewers=("x",),
            issue_timestamp=1,
            max_timestamp=2,
            expiration_timestamp=3,
            token_id="i",
        ),
        RemoveDelegationTokenRecord(token_id="i"),
    ),
    (ProducerIdsRecord(broker_id=-1, broker_epoch=-1, next_producer_id=1000), None),
    (
        RegisterControllerRecord(
            controller_id=3000,
            incarnation_id=INCARNATION,
            zk_migration_ready=False,
            end_points=(),
            features=(FeatureRange(name="f", min_supported_version=0, max_supported_version=1),),
        ),
        None,
    ),
]


@pytest.mark.parametrize(("made", "removed"), OTHERS, ids=lambda record: type(record).__name__)
def test_what_kjbod_does_not_use_survives_a_snapshot_too(made: Record, removed: Record | None) -> None:
    level = FeatureLevelRecord(name="metadata.version", feature_level=30)
    image = image_with(level, made)
    assert image != image_with(level)
    assert list(image.to_records())[1:] == [
        structs.replace(made, entity=tuple(reversed(made.entity))) if isinstance(made, ClientQuotaRecord) else made
    ]
    assert image_of(image.to_records()) == image
    if removed is not None:
        image.replay(removed)
        assert image == image_with(level)


@pytest.mark.parametrize("record", [NoOpRecord(), ZkMigrationStateRecord(zk_migration_state=0)])
def test_records_that_say_nothing_move_the_offset_only(record: Record) -> None:
    image = MetadataImage()
    assert image.replay(record, 17) is None
    assert (image, image.offset) == (MetadataImage(), 17)


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (change(broker_id=5), "broker 5, which is not registered"),
        (change(broker_epoch=11, fenced=1), "has epoch 11, the registration has 10"),
        (change(fenced=2), "fenced=2"),
        (change(in_controlled_shutdown=-1), "inControlledShutdown=-1"),
        (UnregisterBrokerRecord(broker_id=5, broker_epoch=1), "broker 5, which is not registered"),
        (UnregisterBrokerRecord(broker_id=1, broker_epoch=9), "has epoch 9, the registration has 10"),
        (FenceBrokerRecord(id=1, epoch=9), "has epoch 9"),
        (UnfenceBrokerRecord(id=5, epoch=9), "not registered"),
        (TopicRecord(name="t", topic_id=D1), "the topic exists already"),
        (TopicRecord(name="u", topic_id=T), "exists already"),
        (RemoveTopicRecord(topic_id=D1), "which does not exist"),
        (PartitionRecord(topic_id=D1, replicas=(1,), isr=(1,)), "which does not exist"),
        (partition(directories=(D1,)), "3 replicas and 1 directories"),
        (partition(leader_recovery_state=3), "leader recovery state 3"),
        (merge(9, leader=1), "partition 9 .* does not exist"),
        (merge(directories=(D1,)), "3 replicas and 1 directories"),
        (merge(replicas=(1,)), "gets 1 replicas and no directories"),
        (merge(leader_recovery_state=3), "leader recovery state 3"),
        (ClearElrRecord(topic_name="u"), "which does not exist"),
        (RemoveAccessControlEntryRecord(id=D4), "which does not exist"),
        (RemoveUserScramCredentialRecord(name="u", mechanism=1), "no such credential"),
    ],
)
def test_a_record_that_contradicts_the_log_is_refused_and_changes_nothing(record: Record, why: str) -> None:
    image, same = (image_with(register(), TOPIC_RECORD, partition()) for _ in range(2))
    with pytest.raises(ReplayError, match=why):
        image.replay(record, 99)
    assert image == same
    assert image.offset == -1


def test_a_snapshot_below_3_7_does_not_lose_directories_silently() -> None:
    with pytest.raises(UnwritableMetadataError, match="directories of partition 0"):
        list(image_with(TOPIC_RECORD, partition()).to_records(16))
    with pytest.raises(UnwritableMetadataError, match="log directories of broker 1"):
        list(image_with(register()).to_records(16))
    old = image_with(
        FeatureLevelRecord(name="metadata.version", feature_level=16),
        register(log_dirs=()),
        TOPIC_RECORD,
        partition(directories=()),
    )
    assert image_of(old.to_records()) == old


# ---------------------------------------------------------------- snapshots and transactions


def test_differences_of_two_images_are_what_replay_would_have_said() -> None:
    level, gone = FeatureLevelRecord(name="metadata.version", feature_level=29), TopicRecord(name="gone", topic_id=D4)
    brokers = (register(1), register(2, log_dirs=(D3,)))
    old = image_with(level, *brokers, TOPIC_RECORD, partition(0), partition(1), gone)
    new = image_of(old.to_records())
    new.replay(RemoveTopicRecord(topic_id=D4))
    new.replay(UnregisterBrokerRecord(broker_id=2, broker_epoch=10))
    new.replay(merge(1, leader=2))
    new.replay(FeatureLevelRecord(name="metadata.version", feature_level=30))
    changes = list(changes_between(old, new))
    assert changes == [
        FeatureChange("metadata.version", 29, 30),
        BrokerChange(2, old.brokers[2], None),
        TopicDeleted(old.topics[D4]),
        PartitionChange(T, "t", 1, old.partition(T, 1), registration(new, 1)),
    ]
    assert list(changes_between(MetadataImage(), MetadataImage())) == []
    created = list(changes_between(MetadataImage(), new))
    assert [type(c) for c in created] == [FeatureChange, BrokerChange, TopicCreated, PartitionChange, PartitionChange]


def test_a_transaction_counts_at_its_end_or_not_at_all() -> None:
    replayer = Replayer()
    image = replayer.image
    replayer.replay(0, 1, TOPIC_RECORD)
    assert replayer.replay(1, 1, BeginTransactionRecord(name="x")) == ()
    assert replayer.replay(2, 1, partition(0)) == ()
    assert replayer.in_transaction
    assert (image.partition_count(), image.offset) == (0, 0)
    assert len(replayer.replay(3, 2, EndTransactionRecord())) == 1
    assert (image.partition_count(), image.offset, image.epoch) == (1, 3, 2)
    replayer.replay(4, 2, BeginTransactionRecord())
    replayer.replay(5, 2, partition(1))
    assert list(replayer.replay(6, 2, AbortTransactionRecord(reason="Controller failover"))) == []
    assert (image.partition_count(), image.offset) == (1, 6)
    replayer.skip(7, 3)
    assert (image.offset, image.epoch) == (7, 3)


@pytest.mark.parametrize(
    "records",
    [
        [EndTransactionRecord()],
        [AbortTransactionRecord()],
        [BeginTransactionRecord(), BeginTransactionRecord()],
    ],
)
def test_transactions_that_do_not_nest_are_refused(records: list[Record]) -> None:
    replayer = Replayer()
    with pytest.raises(ReplayError, match="TransactionRecord at offset"):
        for offset, record in enumerate(records):
            replayer.replay(offset, 1, record)


def test_a_refused_record_is_named_by_its_offset() -> None:
    with pytest.raises(ReplayError, match="metadata record at offset 31: "):
        Replayer().replay(31, 1, partition())


def test_a_controller_process_that_is_still_there_shows_that_nothing_was_set_back() -> None:
    def image(**incarnations: int) -> MetadataImage:
        ids = {int(name.removeprefix("c")): Uuid.of(8, number) for name, number in incarnations.items()}
        records = [
            RegisterControllerRecord(
                controller_id=number, incarnation_id=incarnation, zk_migration_ready=False, end_points=(), features=()
            )
            for number, incarnation in ids.items()
        ]
        return image_of(records)

    assert same_controller(image(c1=1), image(c1=1))
    assert same_controller(image(c1=1, c2=2, c3=3), image(c1=9, c2=2, c3=8)), "one was not restarted"
    assert not same_controller(image(c1=1), image(c1=2)), "restarted: nobody knows with what"
    assert not same_controller(image(c1=1), image(c2=1))
    assert not same_controller(image(), image())
