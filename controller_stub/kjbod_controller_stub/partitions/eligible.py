"""Eligible leader replicas (KIP-966) beyond single partitions: the feature, and ``min.insync.replicas``.

A replica is eligible because of what ``min.insync.replicas`` was when it left the ISR. So with the feature the value is
the same for all brokers, the cluster always has one, and a change of it clears what was eligible before
(``ConfigurationControlManager.createClearElrRecordsAsNeeded``, ``maybeGenerateElrSafetyRecords``).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import structs

from kjbod.metadata import versions
from kjbod.metadata.image import BROKER, TOPIC, MetadataImage
from kjbod.metadata.records import ClearElrRecord, ConfigRecord, FeatureLevelRecord, Record
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.results import ApiError, Result

MIN_ISR: Final = "min.insync.replicas"
_ALL_BROKERS: Final = (BROKER, "")


def is_enabled(image: MetadataImage) -> bool:
    """Return whether the feature eligible leader replicas is on (``FeatureControlManager.isElrFeatureEnabled``)."""
    return image.features.get(versions.ELIGIBLE_LEADER_REPLICAS_VERSION, 0) >= 1


def bootstrap_records(bootstrap: Iterable[Record], min_isr: int) -> tuple[ConfigRecord, ...]:
    """Return further records for an empty log if its formatting finalizes the feature: the cluster's
    ``min.insync.replicas`` from the controller's own configuration
    (``ActivationRecordsGenerator.recordsForEmptyLog``)."""
    for record in bootstrap:
        if isinstance(record, FeatureLevelRecord) and _finalizes(record):
            return (_min_isr("", str(min_isr)),)
    return ()


def safety_records(configs: Mapping[tuple[int, str], Mapping[str, str]], min_isr: int) -> Iterator[ConfigRecord]:
    """Return the records that must come before the one that finalizes the feature. They set the cluster's
    ``min.insync.replicas`` if it has none, and unset those of single brokers (``maybeGenerateElrSafetyRecords``)."""
    if MIN_ISR not in configs.get(_ALL_BROKERS, {}):
        yield _min_isr("", str(min_isr))
    for (kind, name), values in configs.items():
        if kind == BROKER and name and MIN_ISR in values:
            yield _min_isr(name, None)


def with_safety_records(result: Result, image: MetadataImage, min_isr: int) -> Result:
    """Return a result with the safety records first if it finalizes the feature; any other result unchanged."""
    for record in result.records:
        if isinstance(record, FeatureLevelRecord) and _finalizes(record):
            return structs.replace(result, records=(*safety_records(image.configs, min_isr), *result.records))
    return result


def check_change(image: MetadataImage, record: ConfigRecord) -> None:
    """Refuse a configuration that would give brokers different values.

    Raises:
        ApiError: INVALID_CONFIG: ``min.insync.replicas`` of one broker, or the removal of that of the cluster.
    """
    if record.name != MIN_ISR or record.resource_type != BROKER or not is_enabled(image):
        return
    if record.resource_name:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
        )
    if record.value is None:
        raise ApiError(
            ErrorCode.INVALID_CONFIG, "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        )


def clearing_records(image: MetadataImage, records: Iterable[Record]) -> list[ClearElrRecord]:
    """Return the records that follow a request's configuration records. Each change of ``min.insync.replicas`` clears
    the eligible leader replicas of its topic, or of all topics."""
    if not is_enabled(image):
        return []
    return [
        ClearElrRecord(topic_name=record.resource_name if record.resource_type == TOPIC else "")
        for record in records
        if isinstance(record, ConfigRecord) and record.name == MIN_ISR
    ]


def _finalizes(record: FeatureLevelRecord) -> bool:
    return record.name == versions.ELIGIBLE_LEADER_REPLICAS_VERSION and record.feature_level > 0


def _min_isr(broker: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=BROKER, resource_name=broker, name=MIN_ISR, value=value)
