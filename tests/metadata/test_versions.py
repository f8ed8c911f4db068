"""Levels of metadata.version: names, defaults, and which record versions they allow."""

import pytest

from kjbod.errors import UnsupportedVersionError
from kjbod.ids import Uuid
from kjbod.metadata import versions
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    encode_record,
)


def test_levels_and_release_names_are_kafkas() -> None:
    assert versions.release_name(30) == "4.3-IV0"
    assert versions.release_name(versions.DIRECTORY_ASSIGNMENT) == "3.7-IV2"
    for level in range(versions.MINIMUM, versions.UNDERSTOOD + 1):
        assert versions.release_level(versions.release_name(level)) == level
    assert versions.release_level("4.2") == 29


@pytest.mark.parametrize("name", ["", "4.9-IV0", "3.0-IV1", "3.2", "30"])
def test_a_release_that_kafka_4_cannot_run_is_named_with_those_it_can(name: str) -> None:
    expected = f"Unknown release version '{name}'. Supported versions are: 3.3-IV3 to 4.4-IV2"
    with pytest.raises(versions.UnknownReleaseError, match=expected):
        versions.release_level(name)


@pytest.mark.parametrize(
    ("level", "mapping"),  # as kafka-storage version-mapping of 4.3.1 prints
    [
        (7, (7, 0, 0, 0, 0, 0, 0)),
        (21, (21, 1, 0, 0, 0, 0, 0)),
        (22, (22, 1, 0, 1, 0, 0, 0)),
        (24, (24, 1, 2, 1, 0, 0, 0)),
        (26, (26, 1, 2, 1, 1, 0, 0)),
        (28, (28, 1, 2, 1, 1, 1, 0)),
        (29, (29, 1, 2, 1, 1, 1, 1)),
        (30, (30, 1, 2, 1, 1, 1, 1)),
    ],
)
def test_default_features_are_those_that_kafka_storage_prints(level: int, mapping: tuple[int, ...]) -> None:
    assert tuple(versions.version_mapping(level).values()) == mapping
    assert list(versions.version_mapping(level)) == list(versions.SUPPORTED_FEATURES)
    assert next(iter(versions.default_features(level))) == "metadata.version"
    assert "kraft.version" not in versions.default_features(level)


@pytest.mark.parametrize(
    ("level", "register", "partition", "change"),
    [
        (7, 1, 0, 1),
        (8, 2, 0, 1),
        (16, 2, 0, 1),
        (17, 3, 1, 2),
        (22, 3, 1, 2),
        (23, 3, 2, 2),
        (29, 3, 2, 2),
        (30, 4, 2, 3),
    ],
)
def test_newest_record_versions_follow_the_level(level: int, register: int, partition: int, change: int) -> None:
    assert versions.record_version_max(RegisterBrokerRecord, level) == register
    assert versions.record_version_max(PartitionRecord, level) == partition
    assert versions.record_version_max(PartitionChangeRecord, level) == partition
    assert versions.record_version_max(BrokerRegistrationChangeRecord, level) == change
    assert versions.record_version_max(NoOpRecord, level) == 0


def test_what_a_level_cannot_hold_is_refused_and_not_dropped() -> None:
    directory = Uuid.of(5, 5)
    record = BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, log_dirs=(directory,))
    assert versions.record_version(record, 17) == 2
    with pytest.raises(UnsupportedVersionError):
        encode_record(record, versions.record_version(record, 16))
