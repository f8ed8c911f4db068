"""Records and feature levels of a newer Kafka than kjbod knows, and their consequences. Pure.

Kafka's own nodes stop at such a record; an observer (guard, agent, command line) continues. It skips a record that it
cannot decode, and uses the known fields of a record with a newer version. Its metadata is then

=============  ========================================================================================================
*whole*        each of these records is of a type that cannot concern a partition, a registration, a directory or a
               configuration (:data:`HARMLESS`)
*incomplete*   any other: a newer version of PartitionRecord, a type that nobody here knows, a record that is damaged
=============  ========================================================================================================

With incomplete metadata nothing irreversible is done. A guard leaves disks, brokers and replica lists unchanged. An
agent deletes no replica, and keeps replicas that the metadata lacks. A snapshot without such a record makes the
metadata whole again: :mod:`.fetching` asks for one after an hour. A newer metadata.version alone does not affect the
records that were read, so the metadata stays whole.

A controller is not an observer: it reads its own log, and stops at the first unknown record, as Kafka does.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct, field

from kjbod.metadata import versions
from kjbod.metadata.records import RECORD_TYPES, UnknownRecord

HARMLESS: Final = frozenset(
    {
        "AccessControlEntryRecord",
        "ClientQuotaRecord",
        "DelegationTokenRecord",
        "NoOpRecord",
        "ProducerIdsRecord",
        "RegisterControllerRecord",
        "RemoveAccessControlEntryRecord",
        "RemoveDelegationTokenRecord",
        "RemoveUserScramCredentialRecord",
        "UnregisterControllerRecord",
        "UserScramCredentialRecord",
        "ZkMigrationStateRecord",
    }
)
"""Types, by the names of Kafka's schemas, that cannot concern a partition, a registration, a directory or a
configuration."""
_NAMES: Final[Mapping[int, str]] = {api_key: cls.__name__ for api_key, cls in RECORD_TYPES.items()}
"""Record types of Kafka 4.4 by api key (``MetadataRecordType``)."""
KINDS_MAX: Final = 100
"""Maximum types and versions that are counted separately; further ones count as :data:`OTHER`."""
KINDS_SHOWN: Final = 3
OTHER: Final = (-1, -1)
"""Type and version of a record whose head cannot be read, and of further kinds."""
UPGRADE: Final = "upgrade kjbod"
PARTLY: Final = "only a part of the metadata is shown"

Kind = tuple[int, int]
"""Api key and version of a record."""


def is_harmless(api_key: int) -> bool:
    """Return whether records of a type cannot concern a partition, a registration, a directory or a configuration."""
    return _NAMES.get(api_key) in HARMLESS


def is_named(api_key: int) -> bool:
    """Return whether Kafka up to 4.4 has this record type."""
    return api_key in _NAMES


class Newer(Struct):
    """Records that an observer has not understood in full, by type and version.

    Attributes:
        counts: number of records of each kind.
        contradictions: records that were skipped because they contradict the incomplete metadata.
    """

    counts: dict[Kind, int] = field(default_factory=dict)
    contradictions: int = 0

    def note(self, record: UnknownRecord) -> None:
        """Count a record."""
        kind = (record.api_key, record.version)
        if kind not in self.counts and len(self.counts) >= KINDS_MAX:
            kind = OTHER
        self.counts[kind] = self.counts.get(kind, 0) + record.count

    @property
    def total(self) -> int:
        """Return the number of records that were not understood in full."""
        return sum(self.counts.values())

    @property
    def incomplete(self) -> bool:
        """Return whether one of the records may concern a partition, a registration, a directory or a configuration."""
        return any(not is_harmless(api_key) for api_key, _ in self.counts)

    @property
    def problem(self) -> str | None:
        """Return why the metadata is incomplete, with the remedy; None: it is whole."""
        if not self.counts:
            return None  # the usual case, called many times a second
        return self._text([kind for kind in self.counts if not is_harmless(kind[0])])

    @property
    def missing(self) -> str | None:
        """Return why a program that shows all metadata lacks a part; here any unknown record counts. None: nothing is
        missing."""
        return self._text(list(self.counts))

    @staticmethod
    def _text(kinds: list[Kind]) -> str | None:
        if not kinds:
            return None
        shown = ", ".join(_kind(*kind) for kind in sorted(kinds)[:KINDS_SHOWN])
        more = f" and {len(kinds) - KINDS_SHOWN} more kinds" if len(kinds) > KINDS_SHOWN else ""
        return f"the metadata have records that kjbod does not know ({shown}{more}): {UPGRADE}"

    def records(self) -> Iterator[UnknownRecord]:
        """Return the counts as records, for a state that is delivered as a snapshot."""
        for (api_key, version), count in self.counts.items():
            yield UnknownRecord(api_key=api_key, version=version, count=count)


def _kind(api_key: int, version: int) -> str:
    if api_key < 0:
        return "damaged"
    return f"{_NAMES.get(api_key, f'type {api_key}')} version {version}"


def why_newer(metadata_version: int) -> str | None:
    """Return a message about a metadata.version that is newer than kjbod knows; None: it is not newer."""
    if metadata_version <= versions.UNDERSTOOD:
        return None
    return f"metadata.version {metadata_version} is newer than kjbod knows: {UPGRADE}"


def lines_of(metadata_version: int, problem: str | None, consequence: str) -> tuple[str, ...]:
    """Return lines about metadata that kjbod does not know, with the remedy; empty if it knows all.

    Args:
        metadata_version: metadata.version of the cluster.
        problem: :attr:`Newer.problem`, or :attr:`Newer.missing`.
        consequence: consequence for the user, as text.
    """
    level = why_newer(metadata_version)
    lines = () if level is None else (level,)
    return lines if problem is None else (*lines, f"{problem}; until then {consequence}")


def why_not_registered(features: Mapping[str, int]) -> str | None:
    """Return why a controller refuses an agent of this kjbod at these finalized levels, with the needed version of
    kjbod. None: metadata.version is in the agent's range. The agent takes all other ranges from the controller
    (``ClusterControlManager.processRegistrationFeature``)."""
    level = features.get(versions.METADATA_VERSION, versions.MINIMUM)
    if versions.MINIMUM <= level <= versions.UNDERSTOOD:
        return None
    name = versions.RELEASES.get(level)
    newest = f"{versions.UNDERSTOOD} ({versions.RELEASES[versions.UNDERSTOOD]})"
    if level > versions.UNDERSTOOD:
        remedy = f"upgrade kjbod to a version that offers {level}"
    else:
        remedy = f"raise the level to {versions.MINIMUM} or above (kafka-features upgrade)"
    return (
        f"the cluster is at metadata.version {level}{f' ({name})' if name else ''}, and this kjbod offers "
        f"{versions.MINIMUM} to {newest}: {remedy}"
    )
