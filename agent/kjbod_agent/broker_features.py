"""Features that a registration lists (``BrokerFeatures``; KIP-584).

The controller refuses a broker whose ranges do not hold every finalized level, kraft.version included, and one that
does not list metadata.version at all (119 on 4.3). The agent decodes metadata records, so its range of metadata.version
is a promise and stays what :mod:`kjbod.metadata.versions` knows. All other features are about data-plane protocols that
an agent has no part in: it understands whatever level the cluster agreed on, so it lists what the controller supports.
"""

from collections.abc import Mapping

from kjbod.metadata.versions import METADATA_VERSION, UNDERSTOOD_FEATURES
from kjbod.wire.messages import BrokerRegistrationRequestFeature

ZERO_MINIMUM_SINCE = 4
"""BrokerRegistration version from which on features with minimum 0 may be listed (KAFKA-17492)."""


def registered_features(
    supported: Mapping[str, tuple[int, int]], version: int = ZERO_MINIMUM_SINCE
) -> tuple[BrokerRegistrationRequestFeature, ...]:
    """The features to register, by name.

    Args:
        supported: lowest and highest level of each feature that the controller supports, from its ApiVersions answer.
        version: of the BrokerRegistration request; older ones leave out what may be absent (minimum 0).
    """
    ranges = dict(UNDERSTOOD_FEATURES)
    for name, (lowest, highest) in supported.items():
        known = ranges.get(name)
        if name != METADATA_VERSION:
            ranges[name] = (lowest, highest) if known is None else (min(lowest, known[0]), max(highest, known[1]))
    return tuple(
        BrokerRegistrationRequestFeature(name=name, min_supported_version=lowest, max_supported_version=highest)
        for name, (lowest, highest) in sorted(ranges.items())
        if lowest > 0 or version >= ZERO_MINIMUM_SINCE
    )
