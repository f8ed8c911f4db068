"""Which features an agent registers."""

from kjbod.metadata import versions
from kjbod_agent.broker_features import registered_features


def ranges(supported: dict[str, tuple[int, int]], version: int = 4) -> dict[str, tuple[int, int]]:
    return {f.name: (f.min_supported_version, f.max_supported_version) for f in registered_features(supported, version)}


def test_every_feature_of_the_controller_is_listed_so_that_no_finalized_one_is_missing() -> None:
    assert ranges({"future.version": (0, 3), "group.version": (0, 9)})["future.version"] == (0, 3)
    assert ranges({"group.version": (0, 9)})["group.version"] == (0, 9)


def test_metadata_version_promises_only_what_the_agent_can_decode() -> None:
    assert ranges({"metadata.version": (7, 99)})["metadata.version"] == (7, versions.UNDERSTOOD)


def test_below_version_4_features_that_may_be_absent_are_left_out() -> None:
    assert set(ranges({"future.version": (1, 3)}, version=3)) == {"metadata.version", "future.version"}
