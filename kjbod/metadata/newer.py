"""Records and feature levels of a Kafka that is newer than this kjbod, and what they cost. Pure.

An observer (guard, agent, command line) goes on where Kafka's own nodes stop: it skips a record that it cannot decode,
and takes the known fields of a record whose version is above the known one. Its picture of the cluster is then

=============  ========================================================================================================
*whole*        each of these records is of a type that cannot concern a partition, a registration, a directory or a
               configuration (:data:`HARMLESS`)
*incomplete*   any other: a newer version of PartitionRecord, a type that nobody here knows, a record that is damaged
=============  ========================================================================================================

Nothing that cannot be undone is done by an incomplete picture: a guard leaves disks, brokers and replica lists alone,
an agent deletes no replica and leaves those that the picture lacks in their place. A snapshot without such a record
makes the picture whole again: :mod:`.fetching` asks for one after an hour. A newer metadata.version alone says nothing
about the records that were read, so the picture stays whole.

A controller is no observer: it reads its own log, and ends at the first record that it does not know, as Kafka does.
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
"""Types and versions that are counted apart; further ones count as :data:`OTHER`."""
KINDS_SHOWN: Final = 3
OTHER: Final = (-1, -1)
"""Type and version of a record whose head cannot be read, too."""
UPGRADE: Final = "upgrade kjbod"
PARTLY: Final = "only a part of the metadata is shown"

Kind = tuple[int, int]
"""Api key and version of a record."""


def is_harmless(api_key: int) -> bool:
    """Whether records of a type cannot concern a partition, a registration, a directory or a configuration."""
    return _NAMES.get(api_key) in HARMLESS


def is_named(api_key: int) -> bool:
    """Whether Kafka up to 4.4 has this record type."""
    return api_key in _NAMES


class Newer(Struct):
    """Records that an observer has met and not understood in full, by type and version.

    Attributes:
        counts: how many of each.
        contradictions: records that were skipped because they contradict the incomplete picture.
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
        """Number of records that were not understood in full."""
        return sum(self.counts.values())

    @property
    def incomplete(self) -> bool:
        """Whether one of the records may concern a partition, a registration, a directory or a configuration."""
        return any(not is_harmless(api_key) for api_key, _ in self.counts)

    @property
    def problem(self) -> str | None:
        """Reason why the picture is incomplete, with the remedy; None: it is whole."""
        if not self.counts:
            return None  # nearly always, and asked many times a second
        return self._text([kind for kind in self.counts if not is_harmless(kind[0])])

    @property
    def missing(self) -> str | None:
        """Reason why a program that shows all of the metadata lacks a part: any record counts. None: it lacks none."""
        return self._text(list(self.counts))

    @staticmethod
    def _text(kinds: list[Kind]) -> str | None:
        if not kinds:
            return None
        shown = ", ".join(_kind(*kind) for kind in sorted(kinds)[:KINDS_SHOWN])
        more = f" and {len(kinds) - KINDS_SHOWN} more kinds" if len(kinds) > KINDS_SHOWN else ""
        return f"the metadata have records that kjbod does not know ({shown}{more}): {UPGRADE}"

    def records(self) -> Iterator[UnknownRecord]:
        """The counts as records, for a state that is handed over as a snapshot."""
        for (api_key, version), count in self.counts.items():
            yield UnknownRecord(api_key=api_key, version=version, count=count)


def _kind(api_key: int, version: int) -> str:
    if api_key < 0:
        return "damaged"
    return f"{_NAMES.get(api_key, f'type {api_key}')} version {version}"


def why_newer(metadata_version: int) -> str | None:
    """Words for a metadata.version that is newer than kjbod knows; None: it is not."""
    if metadata_version <= versions.UNDERSTOOD:
        return None
    return f"metadata.version {metadata_version} is newer than kjbod knows: {UPGRADE}"


def lines_of(metadata_version: int, problem: str | None, consequence: str) -> tuple[str, ...]:
    """Lines about what kjbod does not know of the metadata, with the remedy; none where it knows all.

    Args:
        metadata_version: of the cluster.
        problem: :attr:`Newer.problem`, or :attr:`Newer.missing`.
        consequence: of that, in words.
    """
    level = why_newer(metadata_version)
    lines = () if level is None else (level,)
    return lines if problem is None else (*lines, f"{problem}; until then {consequence}")


def why_not_registered(features: Mapping[str, int]) -> str | None:
    """Reason why a controller refuses an agent of this kjbod at these finalized levels, with the kjbod that is needed;
    None: metadata.version is in the agent's range, which is the only range that the agent does not take over from the
    controller (``ClusterControlManager.processRegistrationFeature``)."""
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
