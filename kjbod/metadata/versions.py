"""metadata.version levels, the record versions that each allows, and the features of Kafka up to 4.4.

Sources: ``server.common.MetadataVersion``, ``Feature``, ``TransactionVersion``, ``GroupVersion``,
``EligibleLeaderReplicasVersion``, ``ShareVersion``, ``StreamsVersion``. ``scripts/kafka-tables`` prints them from
Kafka's jars, and a test compares these tables with that output.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kjbod.errors import KjbodError
from kjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    Record,
    RegisterBrokerRecord,
)

METADATA_VERSION = "metadata.version"
KRAFT_VERSION = "kraft.version"
"""Not a FeatureLevelRecord: a control record of the log."""
TRANSACTION_VERSION = "transaction.version"
GROUP_VERSION = "group.version"
ELIGIBLE_LEADER_REPLICAS_VERSION = "eligible.leader.replicas.version"
SHARE_VERSION = "share.version"
STREAMS_VERSION = "streams.version"

MINIMUM = 7
"""3.3-IV3: the oldest level that Kafka 4.x runs; the level of a log that has no FeatureLevelRecord yet."""
DIRECTORY_ASSIGNMENT = 17
"""3.7-IV2 (KIP-858): registrations carry log directories, partitions carry directories."""
DYNAMIC_QUORUM = 21
"""3.9-IV0 (KIP-853): kraft.version 1."""
ELIGIBLE_LEADER_REPLICAS = 23
"""4.0-IV1 (KIP-966): partitions carry eligible leader replicas."""
CORDONED_LOG_DIRS = 30
"""4.3-IV0 (KIP-1066): registrations carry cordoned log directories."""
TRANSACTIONS = 13
"""3.6-IV1 (KIP-868): Begin, End and AbortTransactionRecord."""
SCRAM = 11
"""3.5-IV2 (KIP-900): UserScramCredentialRecord."""
DELEGATION_TOKENS = 14
"""3.6-IV2: DelegationTokenRecord."""
CONTROLLER_REGISTRATION = 15
"""3.7-IV0 (KIP-919): RegisterControllerRecord."""
NO_OP = 5
"""3.3-IV1: NoOpRecord."""
BOOTSTRAP_IN_SNAPSHOT = 31
"""4.4-IV0: Kafka reads the first records from the 0-0 snapshot. Older versions need bootstrap.checkpoint."""
CIDR_ACLS = 32
"""4.4-IV1 (KIP-1276): the host of an ACL may be a network."""
CONTROLLER_UNREGISTRATION = 33
"""4.4-IV2 (KIP-1312): UnregisterControllerRecord."""
LATEST = 33
"""The newest level that kjbod writes and offers: in a registration, by its controller, and when it formats."""
UNDERSTOOD = 33
"""The newest level whose records kjbod reads in full. Above it an observer continues as :mod:`.newer` describes. It may
be newer than :data:`LATEST`: kjbod may read a level before its controller supports it."""

CHANGED_METADATA = frozenset({7, 8, 11, 13, 14, 15, 17, 23, 30, 32, 33})
"""The levels that added records or fields (``MetadataVersion.didMetadataChange``): a downgrade from or across one of
them may lose metadata."""

_RELEASES = (
    "3.0-IV1 3.1-IV0 3.2-IV0 3.3-IV0 3.3-IV1 3.3-IV2 3.3-IV3 3.4-IV0 3.5-IV0 3.5-IV1 3.5-IV2 3.6-IV0 3.6-IV1 3.6-IV2 "
    "3.7-IV0 3.7-IV1 3.7-IV2 3.7-IV3 3.7-IV4 3.8-IV0 3.9-IV0 4.0-IV0 4.0-IV1 4.0-IV2 4.0-IV3 4.1-IV0 4.1-IV1 4.2-IV0 "
    "4.2-IV1 4.3-IV0 4.4-IV0 4.4-IV1 4.4-IV2"
)
RELEASES: Mapping[int, str] = MappingProxyType(dict(enumerate(_RELEASES.split(), start=1)))
"""The release name of each level: ``RELEASES[30] == "4.3-IV0"``."""
_LEVELS: Mapping[str, int] = {name: level for level, name in RELEASES.items()}

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        METADATA_VERSION: (MINIMUM, LATEST),
        KRAFT_VERSION: (0, 1),
        TRANSACTION_VERSION: (0, 2),
        GROUP_VERSION: (0, 1),
        ELIGIBLE_LEADER_REPLICAS_VERSION: (0, 1),
        SHARE_VERSION: (0, 2),
        STREAMS_VERSION: (0, 1),
    }
)
"""The levels, first and last, that kjbod writes and its controller offers: those of Kafka 4.4.0."""
UNDERSTOOD_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {**SUPPORTED_FEATURES, METADATA_VERSION: (MINIMUM, UNDERSTOOD)}
)
"""The levels, first and last, that kjbod understands: those of Kafka 4.4.0. An agent's registration lists them."""

# The metadata.version from which formatting finalizes the feature at this level, newest first.
_DEFAULT_SINCE: Mapping[str, tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        ELIGIBLE_LEADER_REPLICAS_VERSION: ((26, 1),),
        GROUP_VERSION: ((22, 1),),
        SHARE_VERSION: ((31, 2), (28, 1)),
        STREAMS_VERSION: ((29, 1),),
        TRANSACTION_VERSION: ((24, 2),),
    }
)

_PARTITION_VERSIONS = ((ELIGIBLE_LEADER_REPLICAS, 2), (DIRECTORY_ASSIGNMENT, 1))
_VERSIONS_SINCE: Mapping[type[Record], tuple[tuple[int, int], ...]] = MappingProxyType(
    {
        RegisterBrokerRecord: ((CORDONED_LOG_DIRS, 4), (DIRECTORY_ASSIGNMENT, 3), (8, 2), (7, 1)),
        BrokerRegistrationChangeRecord: ((CORDONED_LOG_DIRS, 3), (DIRECTORY_ASSIGNMENT, 2), (7, 1)),
        PartitionRecord: _PARTITION_VERSIONS,
        PartitionChangeRecord: _PARTITION_VERSIONS,
    }
)
"""Per record type: (metadata.version, record version) from the newest down; 0 below all of them."""


class UnknownReleaseError(KjbodError):
    """A release name or metadata.version that Kafka up to 4.4 does not have."""


def release_name(level: int) -> str:
    """The name of a metadata.version: ``release_name(30) == "4.3-IV0"``.

    Raises:
        UnknownReleaseError: no such level.
    """
    if (name := RELEASES.get(level)) is None:
        raise UnknownReleaseError(f"Unknown metadata.version {level}")
    return name


def release_level(name: str) -> int:
    """The metadata.version of a release name; ``4.3`` means the last level of 4.3, as in Kafka
    (``MetadataVersion.fromVersionString``). Levels that Kafka 4.x cannot run are unknown too.

    Raises:
        UnknownReleaseError: no such release, or too old.
    """
    level = _LEVELS.get(name) or max((n for n, full in RELEASES.items() if full.split("-")[0] == name), default=0)
    if level < MINIMUM:
        raise UnknownReleaseError(
            f"Unknown release version '{name}'. Supported versions are: {RELEASES[MINIMUM]} to {RELEASES[UNDERSTOOD]}"
        )
    return level


def default_features(metadata_version: int) -> dict[str, int]:
    """Return the features that formatting at ``metadata_version`` finalizes: metadata.version first, then the
    others that are not zero, by name (``Feature.defaultLevel``). kraft.version is not included: the kind of
    quorum decides it."""
    others = {}
    for name, levels in sorted(_DEFAULT_SINCE.items()):
        if (level := next((one for since, one in levels if metadata_version >= since), 0)) > 0:
            others[name] = level
    return {METADATA_VERSION: metadata_version} | others


def version_mapping(metadata_version: int) -> dict[str, int]:
    """Every feature and its default at ``metadata_version``, zeros included, in the order in which
    ``kafka-storage version-mapping`` prints them."""
    kraft = {KRAFT_VERSION: int(metadata_version >= DYNAMIC_QUORUM)}
    finalized = default_features(metadata_version) | kraft
    return {name: finalized.get(name, 0) for name in SUPPORTED_FEATURES}


def dependencies(feature: str, level: int) -> dict[str, int]:
    """Return the levels of other features that a feature needs (``FeatureVersion.dependencies``). Up to Kafka 4.4, only
    one feature needs another."""
    if feature == ELIGIBLE_LEADER_REPLICAS_VERSION and level >= 1:
        return {METADATA_VERSION: ELIGIBLE_LEADER_REPLICAS}
    return {}


def metadata_changed(low: int, high: int) -> bool:
    """Return whether metadata of level ``high`` may not fit into the lower level ``low``
    (``MetadataVersion.checkIfMetadataChanged``)."""
    return any(low < level <= high for level in CHANGED_METADATA)


def record_version_max(record_type: type[Record], metadata_version: int) -> int:
    """The newest version of a record type that may be written at ``metadata_version``."""
    for since, version in _VERSIONS_SINCE.get(record_type, ()):
        if metadata_version >= since:
            return version
    return 0


def record_version(record: Record, metadata_version: int) -> int:
    """Return the version in which Kafka writes ``record`` at ``metadata_version``: the newest allowed version. A
    BrokerRegistrationChange uses the oldest version that can hold its values (as seen in the log of 4.3.1)."""
    newest = record_version_max(type(record), metadata_version)
    if not isinstance(record, BrokerRegistrationChangeRecord):
        return newest
    if record.cordoned_log_dirs is not None:
        needed = 3
    elif record.log_dirs:
        needed = 2
    else:
        needed = 1 if record.in_controlled_shutdown else 0
    # If the level does not allow a value, encoding refuses it, so nothing is lost silently.
    return min(needed, newest)
