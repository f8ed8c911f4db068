"""Change finalized feature levels (``FeatureControlManager``; KIP-584, KIP-1022).

A request is all or nothing. A level is finalized only when this controller, every registered broker and every
registered controller support it. ``metadata.version`` goes down only across levels that brought nothing new into the
metadata, so that nothing can be lost; shipped Kafka refuses the rest whether it is called safe or unsafe, and so does
this. Where the rules allow it (``Rules.names_losses``), the refusal counts what would be lost.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from kjbod.metadata import versions
from kjbod.metadata.image import MetadataImage
from kjbod.metadata.losses import losses
from kjbod.metadata.records import FeatureLevelRecord, FeatureRange, NoOpRecord, Record
from kjbod.wire.admin_messages import (
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    UpdateFeaturesResponseUpdatableFeature,
)
from kjbod.wire.error_codes import ErrorCode
from kjbod_controller_stub.configs.java_order import hash_map_order
from kjbod_controller_stub.results import ApiError, Result

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""``FeatureUpdate.UpgradeType``."""
_RESULTS_UNTIL = 1
"""The last version of the answer that has a line per feature."""

Levels: TypeAlias = tuple[int, int]
"""The first and the last level that a node supports."""
_DISABLED: Levels = (0, 0)


class Finalized(Struct, frozen=True, kw_only=True):
    """The finalized levels on which an answer depends."""

    image: MetadataImage
    node_id: int
    kraft_version: int
    supported: Mapping[str, Levels]
    """By this controller."""
    names_losses: bool = False

    def level(self, feature: str) -> int:
        """Return the finalized level of a feature."""
        if feature == versions.METADATA_VERSION:
            return self.image.metadata_version
        return self.kraft_version if feature == versions.KRAFT_VERSION else self.image.features.get(feature, 0)

    def levels_after(self, updates: Mapping[str, int]) -> dict[str, int]:
        """Return all levels after the change. kraft.version is included only if requested, as in Kafka."""
        return {**self.image.features, versions.METADATA_VERSION: self.image.metadata_version, **updates}


def update_features(finalized: Finalized, request: UpdateFeaturesRequest, *, api_version: int) -> Result:
    """Return the records that finalize the wanted levels; none if one level is refused.

    An answer before version 2 has a line for each feature when all went well, and none otherwise.
    """
    wanted = {update.feature: (update.max_version_level, update.upgrade_type) for update in request.feature_updates}
    levels = {feature: level for feature, (level, _) in wanted.items()}
    after = finalized.levels_after(levels)
    records: list[Record] = []
    kraft_version = None
    try:
        for feature in hash_map_order(wanted):
            level, upgrade_type = wanted[feature]
            records += _update(finalized, feature, level, upgrade_type, after)
            if feature == versions.KRAFT_VERSION and level > finalized.kraft_version:
                kraft_version = level
    except ApiError as error:
        return Result(
            answer=UpdateFeaturesResponse(
                error_code=error.code,
                error_message="The update failed for all features since the following feature had an error: "
                + error.message,
            )
        )
    each = () if api_version > _RESULTS_UNTIL else tuple(map(_updated, wanted))
    answer = UpdateFeaturesResponse(results=each)
    if request.validate_only:
        return Result(answer=answer)
    return Result(answer=answer, records=tuple(records), kraft_version=kraft_version)


def _updated(feature: str) -> UpdateFeaturesResponseUpdatableFeature:
    return UpdateFeaturesResponseUpdatableFeature(feature=feature, error_message="NONE")


def _update(
    finalized: Finalized, feature: str, level: int, upgrade_type: int, after: Mapping[str, int]
) -> list[Record]:
    if upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise _refused(feature, level, "The controller does not support the given upgrade type.")
    if level < 0:
        raise _refused(feature, level, "A feature version cannot be less than 0.")
    if reason := _not_supported(finalized, feature, level):
        raise _refused(feature, level, reason)
    current = finalized.level(feature)
    if level < current and upgrade_type == UPGRADE:
        raise _refused(
            feature,
            level,
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade.",
        )
    if level > current and upgrade_type != UPGRADE:
        raise _refused(feature, level, "Can't downgrade to a newer version.")
    if feature == versions.METADATA_VERSION:
        if level < current:
            _check_downgrade(finalized, level, unsafe=upgrade_type == UNSAFE_DOWNGRADE)
    elif feature == versions.KRAFT_VERSION:
        return _kraft_version_records(level, current, upgrade_type)
    else:
        _check_dependencies(feature, level, after)
    return [FeatureLevelRecord(name=feature, feature_level=level)]


def _refused(feature: str, level: int, reason: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_UPDATE_VERSION, f"Invalid update version {level} for feature {feature}. {reason}")


def _check_downgrade(finalized: Finalized, level: int, *, unsafe: bool) -> None:
    current = finalized.image.metadata_version
    if not versions.metadata_changed(level, current):
        return
    reason = (
        "Unsafe metadata downgrade is not supported in this version."
        if unsafe
        else "Refusing to perform the requested downgrade because it might delete metadata information."
    )
    if finalized.names_losses:
        lost = losses(finalized.image, level)
        reason += f" What would be lost: {'; '.join(lost)}." if lost else " Nothing of it is in use here."
    raise ApiError(
        ErrorCode.INVALID_UPDATE_VERSION,
        f"Unsupported metadata.version downgrade from {current} to {level}. {reason}",
    )


def _kraft_version_records(level: int, current: int, upgrade_type: int) -> list[Record]:
    """Return a record with an offset that the answer of an upgrade can wait for. The log itself writes the control
    records (``Result.kraft_version``)."""
    if upgrade_type == UPGRADE:
        return [NoOpRecord()]
    if level != current:
        raise _refused(versions.KRAFT_VERSION, level, "Can't downgrade the version of this feature.")
    return []


def _check_dependencies(feature: str, level: int, after: Mapping[str, int]) -> None:
    if feature not in versions.SUPPORTED_FEATURES:
        raise _refused(feature, level, f"Feature {feature} not found.")
    if level >= 1 and after[versions.METADATA_VERSION] < versions.MINIMUM:
        raise _refused(
            feature,
            level,
            f"{feature} could not be set to {level} because it depends on metadata.version={versions.MINIMUM} "
            f"({versions.release_name(versions.MINIMUM)})",
        )
    for other, needed in versions.dependencies(feature, level).items():
        if after.get(other, 0) < needed:
            raise _refused(
                feature, level, f"{feature} could not be set to {level} because it depends on {other} level {needed}"
            )


# ---------------------------------------------------------------- who supports what


def _not_supported(finalized: Finalized, feature: str, level: int) -> str | None:
    """Return the reason why a level cannot be finalized: the first node that does not support it."""
    for who, supported in _nodes(finalized, feature):
        low, high = supported
        if not low <= level <= high:
            if high == 0:
                return f"{who} does not support this feature."
            return f"{who} only supports versions {low if low == high else f'{low}-{high}'}"
    return None


def _nodes(finalized: Finalized, feature: str) -> Iterator[tuple[str, Levels]]:
    yield f"Local controller {finalized.node_id}", finalized.supported.get(feature, _DISABLED)
    for broker_id, broker in finalized.image.brokers.items():
        yield f"Broker {broker_id}", _levels(broker.features, feature)
    if finalized.image.metadata_version >= versions.CONTROLLER_REGISTRATION:
        for controller_id, controller in finalized.image.controllers.items():
            if controller_id != finalized.node_id:
                yield f"Controller {controller_id}", _levels(controller.features, feature)


def _levels(features: Iterable[FeatureRange], wanted: str) -> Levels:
    for feature in features:
        if feature.name == wanted:
            return feature.min_supported_version, feature.max_supported_version
    return _DISABLED
