"""Finalized features: what may change, in Kafka's words, and what each metadata.version allows."""

import pytest

from kjbod.ids import MIGRATING, Uuid
from kjbod.metadata import versions
from kjbod.metadata.acls import ALLOW, LITERAL, Operation, ResourceType
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.losses import losses
from kjbod.metadata.records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    UserScramCredentialRecord,
    decode_record,
    encode_record,
)
from kjbod.wire.admin_messages import (
    UpdateFeaturesRequest,
    UpdateFeaturesRequestFeatureUpdateKey,
    UpdateFeaturesResponse,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod.wire.messages import BrokerRegistrationRequestFeature
from kjbod_controller_stub.configs.java_order import hash_map_order
from kjbod_controller_stub.rules import KAFKA
from tests.controller.world import FEATURES, NODE_ID, World, directories, directory

MV = versions.METADATA_VERSION
PREFIX = "The update failed for all features since the following feature had an error: "


def ask(
    world: World, *updates: tuple[str, int, int], validate_only: bool = False, version: int | None = None
) -> UpdateFeaturesResponse:
    """(feature, level, upgrade type) each."""
    request = UpdateFeaturesRequest(
        feature_updates=tuple(
            UpdateFeaturesRequestFeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ),
        validate_only=validate_only,
    )
    return world.ask(request, version)


def test_a_higher_metadata_version_is_finalized_and_all_later_records_follow_it() -> None:
    world = World(metadata_version=16)
    world.join(1)
    world.create("t", (1,))
    assert [version for record, version in zip_last(world) if isinstance(record, PartitionRecord)] == [0]
    assert ask(world, (MV, 17, 1)).error_code == 0
    assert world.last == [FeatureLevelRecord(name=MV, feature_level=17)]
    world.create("u", (1,))
    assert [version for record, version in zip_last(world) if isinstance(record, PartitionRecord)] == [1]
    assert world.controller.features_offset == world.log[-3].offset


def zip_last(world: World) -> list[tuple[object, int]]:
    return list(zip(world.last, world.last_versions, strict=True))


def test_a_broker_that_registers_again_after_the_upgrade_brings_its_directories_and_stays_unfenced() -> None:
    world = World(metadata_version=16)
    world.join(1)
    assert world.broker(1).log_dirs == ()
    epoch = world.broker(1).epoch
    ask(world, (MV, 30, 1))
    assert world.register(1).broker_epoch == epoch
    assert world.broker(1).log_dirs == directories(1)
    assert not world.broker(1).fenced


def test_a_downgrade_that_could_lose_nothing_needs_to_be_called_one() -> None:
    world = World(metadata_version=29)
    refused = ask(world, (MV, 24, 1))
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert refused.error_message == (
        f"{PREFIX}Invalid update version 24 for feature metadata.version. Can't downgrade the version of this feature "
        "without setting the upgrade type to either safe or unsafe downgrade."
    )
    assert ask(world, (MV, 24, 2)).error_code == 0
    assert world.controller.image.metadata_version == 24


@pytest.mark.parametrize("kind", [2, 3])
def test_a_downgrade_that_could_lose_something_is_refused_and_counts_it(kind: int) -> None:
    world = World(metadata_version=17)
    world.join(1)
    world.join(2)
    world.create("t", (1,), (2,))
    world.assign(1, (directory(1, 0), world.topic_id("t"), (0,)))
    refused = ask(world, (MV, 16, kind))
    assert refused.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert refused.error_message is not None
    assert "the log directories of 2 brokers; the directories of the replicas of 1 partition." in refused.error_message
    assert world.last == []


def test_under_kafkas_rules_the_refusal_is_kafkas() -> None:
    world = World(rules=KAFKA, metadata_version=30)
    assert ask(world, (MV, 29, 2)).error_message == (
        f"{PREFIX}Unsupported metadata.version downgrade from 30 to 29. Refusing to perform the requested downgrade "
        "because it might delete metadata information."
    )
    assert ask(world, (MV, 29, 3)).error_message == (
        f"{PREFIX}Unsupported metadata.version downgrade from 30 to 29. Unsafe metadata downgrade is not supported in "
        "this version."
    )


@pytest.mark.parametrize(
    ("feature", "level", "kind", "reason"),
    [
        (MV, 6, 2, f"Local controller {NODE_ID} only supports versions 7-33"),
        (MV, 34, 1, f"Local controller {NODE_ID} only supports versions 7-33"),
        ("group.version", 2, 1, f"Local controller {NODE_ID} only supports versions 0-1"),
        ("group.version", -1, 1, "A feature version cannot be less than 0."),
        ("group.version", 0, 0, "The controller does not support the given upgrade type."),
        ("group.version", 0, 1, "Can't downgrade the version of this feature without setting the upgrade type to"),
        ("no.such.feature", 1, 1, f"Local controller {NODE_ID} does not support this feature."),
        ("no.such.feature", 0, 2, "Feature no.such.feature not found."),
        ("transaction.version", 1, 1, "Can't downgrade the version of this feature"),
        ("kraft.version", 0, 2, "Can't downgrade the version of this feature."),
    ],
)
def test_what_cannot_be_finalized_is_refused_with_the_reason(feature: str, level: int, kind: int, reason: str) -> None:
    world = World()
    answer = ask(world, (feature, level, kind))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert answer.error_message is not None
    assert answer.error_message.startswith(f"{PREFIX}Invalid update version {level} for feature {feature}. {reason}")
    assert world.last == []


def test_every_registered_broker_has_to_support_the_level_fenced_or_not() -> None:
    world = World(metadata_version=25)
    old = BrokerRegistrationRequestFeature(name=MV, min_supported_version=7, max_supported_version=25)
    world.register(1)
    world.register(2, features=(old, *FEATURES[1:]))
    answer = ask(world, (MV, 30, 1))
    assert answer.error_message is not None
    assert answer.error_message.endswith("Broker 2 only supports versions 7-25")


def test_the_first_of_two_updates_is_checked_against_what_the_second_one_asks_for() -> None:
    answer = ask(World(metadata_version=25), ("share.version", 1, 1), (MV, 6, 3))
    assert answer.error_message is not None
    assert answer.error_message.endswith("could not be set to 1 because it depends on metadata.version=7 (3.3-IV3)")


def test_one_refusal_refuses_the_whole_request() -> None:
    world = World(metadata_version=25)
    answer = ask(world, (MV, 30, 1), ("group.version", 9, 1))
    assert answer.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert world.last == []


def test_a_dry_run_changes_nothing() -> None:
    world = World(metadata_version=25)
    assert ask(world, (MV, 30, 1), validate_only=True).error_code == 0
    assert world.last == []


def test_an_old_client_reads_a_line_for_each_feature() -> None:
    world = World(metadata_version=25)
    answer = ask(world, (MV, 26, 1), version=1)
    assert [(each.feature, each.error_code) for each in answer.results] == [(MV, 0)]


def test_level_zero_takes_a_feature_away() -> None:
    world = World()
    assert ask(world, ("streams.version", 0, 2)).error_code == 0
    assert "streams.version" not in world.controller.cluster.finalized_features()


def test_kraft_version_is_upgraded_by_the_log_not_by_a_feature_record() -> None:
    world = World()
    world.controller.cluster.kraft_version = 0
    answer = ask(world, ("kraft.version", 1, 1))
    assert answer.error_code == 0
    assert world.last == [NoOpRecord()]


def test_several_features_are_checked_and_written_in_the_order_of_javas_hash_map() -> None:
    assert hash_map_order(["metadata.version", "group.version", "transaction.version", "kraft.version"]) == [
        "group.version",
        "kraft.version",
        "metadata.version",
        "transaction.version",
    ]


# ---------------------------------------------------------------- levels


@pytest.mark.parametrize("level", [7, 8, 11, 14, 16, 17, 22, 23, 29, 30])
def test_a_snapshot_at_each_level_holds_what_the_level_allows(level: int) -> None:
    world = World(metadata_version=level)
    world.join(1)
    world.join(2, 1)
    world.create("t", (1, 2))
    image = world.controller.image
    again = MetadataImage()
    for record in image.to_records():
        decoded, version = decode_record(encode_record(record, versions.record_version(record, level)))
        assert version <= versions.record_version_max(type(record), level)
        again.replay(decoded)
    assert again.metadata_version == level
    assert again.brokers.keys() == image.brokers.keys()
    assert {broker.log_dirs for broker in again.brokers.values()} == {b.log_dirs for b in image.brokers.values()}
    expected = directories(2, 1)[0] if level >= versions.DIRECTORY_ASSIGNMENT else MIGRATING
    assert again.topics[world.topic_id("t")].partitions[0].directory(2) == expected


def test_below_3_7_iv2_nobody_has_directories_in_the_metadata() -> None:
    world = World(metadata_version=16)
    world.join(1)
    world.create("t", (1,))
    assert world.broker(1).log_dirs == ()
    assert world.partition("t").directories == (MIGRATING,)
    world.beat(1, offline=(directory(1, 0),))
    assert world.last == []
    answer = world.assign(1, (directory(1, 0), world.topic_id("t"), (0,)))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_below_4_3_iv0_nobody_has_cordoned_directories_in_the_metadata() -> None:
    world = World(metadata_version=29)
    world.join(1)
    world.beat(1, cordoned=(directory(1, 0),))
    assert world.last == []


@pytest.mark.parametrize(
    ("level", "register", "change", "partition"),
    [(7, 1, 0, 0), (8, 2, 0, 0), (16, 2, 0, 0), (17, 3, 0, 1), (23, 3, 0, 2), (30, 4, 0, 2)],
)
def test_records_have_the_versions_of_their_level(level: int, register: int, change: int, partition: int) -> None:
    world = World(metadata_version=level)
    world.join(1)
    world.create("t", (1,))
    seen = {type(written.record): written.version for written in world.log}
    assert seen[RegisterBrokerRecord] == register
    assert seen[BrokerRegistrationChangeRecord] == change
    assert seen[PartitionRecord] == partition
    world.join(2)
    world.beat(1, fence=True)
    changes = [version for record, version in zip_last(world) if isinstance(record, PartitionChangeRecord)]
    assert changes == [partition]


def acl(number: int, host: str) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=Uuid.of(32, number),
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        pattern_type=LITERAL,
        principal="User:a",
        host=host,
        operation=Operation.READ,
        permission_type=ALLOW,
    )


def test_what_a_level_cannot_hold_is_counted_and_nothing_else() -> None:
    image = MetadataImage()
    assert losses(image, versions.MINIMUM) == []
    image.replay(
        UserScramCredentialRecord(name="a", mechanism=1, salt=b"", stored_key=b"", server_key=b"", iterations=4096)
    )
    image.replay(
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=Uuid.of(1, 1),
            broker_epoch=5,
            end_points=(),
            features=(),
            log_dirs=directories(1),
            cordoned_log_dirs=(directory(1, 0),),
        )
    )
    image.replay(acl(1, "10.0.0.0/8"))
    image.replay(acl(2, "fe80::/10"))
    image.replay(acl(3, "10.0.0.1"))
    assert losses(image, 32) == []
    assert losses(image, 31) == losses(image, 30) == ["2 ACLs for networks"]
    image.replay(RemoveAccessControlEntryRecord(id=Uuid.of(32, 1)))
    image.replay(RemoveAccessControlEntryRecord(id=Uuid.of(32, 2)))
    assert losses(image, 30) == []
    assert losses(image, 29) == ["the cordoned log directories of 1 broker"]
    assert losses(image, 7) == [
        "the cordoned log directories of 1 broker",
        "the log directories of 1 broker",
        "1 SCRAM credential",
    ]
