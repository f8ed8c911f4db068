"""History of the metadata that an agent follows: whether it was lost or set back while it ran, and what is said of it.

A history that does not contain what was applied proves no deletion (:attr:`kjbod.metadata.fetching.Snapshot.parted`):
what is missing in it is kept.
"""

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from kjbod.metadata.image import MetadataImage
from kjbod_host.log_lines import LogLine, error, warning


class Parted(Struct, frozen=True):
    """The metadata of the cluster were lost or set back while this agent ran.

    Attributes:
        reason: what shows it.
        since_ms: when it was found, wall clock, milliseconds since the epoch.
        applied_offset: of the last record that had been applied.
        offset: of the last record of what was read instead.
        kept: replicas that are missing in it and were kept as strays; None: they were not counted, at a start.
    """

    reason: str
    since_ms: int
    applied_offset: int
    offset: int
    kept: int | None


def uncompared_line(reason: str, before: MetadataImage, after: MetadataImage) -> LogLine:
    """The line for metadata that cannot be compared with those that an earlier process had applied, as after a long
    time: it is no sign of a loss, and would hide one."""
    return warning(
        "metadata.history.uncompared",
        reason=f"whether it contains what an earlier process applied is not known: {reason}",
        applied_offset=before.offset,
        applied_epoch=before.epoch,
        offset=after.offset,
        epoch=after.epoch,
        consequence="all is well if the agent was down for long, or the controllers made a snapshot meanwhile; what it "
        "lacks proves no deletion: replicas that were marked as deleted before are kept as strays (kjbod strays)",
    )


class History:
    """Losses of the metadata's history since this agent started.

    Attributes:
        parted: the last time that it was lost or set back; None: it was not.
        behind: why nothing is applied: the controllers know only an older leader epoch; None: they do not.
    """

    def __init__(self) -> None:
        self.parted: Parted | None = None
        self.behind: str | None = None

    def lost(
        self, reason: str, before: MetadataImage, after: MetadataImage, *, kept: int | None, wall_ms: int
    ) -> LogLine:
        """Another history is followed from here on; the line that says so."""
        self.parted = Parted(reason, wall_ms, before.offset, after.offset, kept)
        return error(
            "metadata.history.lost",
            reason=f"what was read does not contain what was applied before: {reason}",
            applied_offset=before.offset,
            applied_epoch=before.epoch,
            offset=after.offset,
            epoch=after.epoch,
            kept=kept,
            consequence="replicas that are missing in it are kept as strays: see kjbod strays",
        )

    def on_behind(self, reason: str | None) -> list[LogLine]:
        """The controllers know only leader epochs before that which was followed; None: no longer. Says so."""
        self.behind = reason
        if reason is None:
            return []
        return [
            error(
                "metadata.history.behind",
                reason=reason,
                consequence="nothing more is applied: bring the controllers back that knew that epoch; if their "
                "history was lost or set back for good, restart this agent, which then follows what they have",
            )
        ]

    def as_json(self) -> dict[str, Any] | None:
        """Return the losses as JSON for ``kjbod status``; None: there are none."""
        if self.parted is None and self.behind is None:
            return None
        return {"lost": None if self.parted is None else asdict(self.parted), "behind": self.behind}
