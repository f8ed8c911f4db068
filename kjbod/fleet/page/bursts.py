"""Disks of one rack that failed within minutes of each other, which are one thing to look at. Pure."""

from collections.abc import Iterable, Sequence

from kjbod.fleet.page.model import Incident
from kjbod.quick_dataclass import dataclass

WITHIN_MS = 30 * 60_000
"""As the failure rates count what failed together."""
DISKS_MIN = 3
RECENT_MS = 2 * 86_400_000
"""Before "now": older ones are history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Failures of one rack, each at most :data:`WITHIN_MS` after the one before."""

    fleet: str | None
    rack: str
    incidents: tuple[Incident, ...]
    """In order of time; of different disks at least :data:`DISKS_MIN`."""

    @property
    def first_ms(self) -> int:
        """Wall ms of the first failure."""
        return self.incidents[0].ts

    @property
    def span_ms(self) -> int:
        """Time from the first failure to the last one."""
        return self.incidents[-1].ts - self.first_ms

    @property
    def disks(self) -> int:
        """Different disks."""
        return len(_disks(self.incidents))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in order."""
        return tuple(sorted({incident.place.host for incident in self.incidents}))


def bursts(incidents: Iterable[Incident], now_ms: int) -> list[Burst]:
    """Bursts of the last :data:`RECENT_MS`, the newest first."""
    by_rack: dict[tuple[str | None, str], list[Incident]] = {}
    for incident in sorted(incidents, key=lambda each: each.ts):
        if incident.place.rack and incident.ts >= now_ms - RECENT_MS:
            by_rack.setdefault((incident.place.fleet, incident.place.rack), []).append(incident)
    found = [
        Burst(fleet=fleet, rack=rack, incidents=tuple(run))
        for (fleet, rack), of_rack in by_rack.items()
        for run in _runs(of_rack)
        if len(_disks(run)) >= DISKS_MIN
    ]
    return sorted(found, key=lambda burst: (-burst.first_ms, burst.fleet or "", burst.rack))


def _runs(incidents: Sequence[Incident]) -> list[list[Incident]]:
    runs: list[list[Incident]] = []
    for incident in incidents:
        if not runs or incident.ts - runs[-1][-1].ts > WITHIN_MS:
            runs.append([])
        runs[-1].append(incident)
    return runs


def _disks(incidents: Iterable[Incident]) -> set[tuple[object, ...]]:
    places = (incident.place for incident in incidents)
    return {(place.host, place.serial or place.dir_id or place.path) for place in places}
