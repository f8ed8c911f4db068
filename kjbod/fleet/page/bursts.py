"""Disks of one rack, or of one host, that failed within minutes of each other, which are one thing to look at. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kjbod.fleet.page.model import Incident

WITHIN_MS = 30 * 60_000
"""As the failure rates count what failed together."""
DISKS_MIN = 3
"""Of a rack."""
HOST_DISKS_MIN = 2
"""Of a host: its disks have less in common with chance."""
RECENT_MS = 2 * 86_400_000
"""Before "now": older ones are history."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """Failures of one rack, or of one host, each at most :data:`WITHIN_MS` after the one before."""

    fleet: str | None
    rack: str | None
    """None: of one host."""
    incidents: tuple[Incident, ...]
    """In order of time; of different disks."""

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
        return _disks(self.incidents)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in order."""
        return tuple(sorted({incident.place.host for incident in self.incidents}))


def bursts(incidents: Iterable[Incident], now_ms: int) -> list[Burst]:
    """Bursts of the last :data:`RECENT_MS`, the newest first; those of a host that are not part of one of its rack."""
    recent = [each for each in sorted(incidents, key=lambda each: each.ts) if each.ts >= now_ms - RECENT_MS]
    by_rack: dict[tuple[str | None, str], list[Incident]] = {}
    by_host: dict[str, list[Incident]] = {}
    for incident in recent:
        by_host.setdefault(incident.place.host, []).append(incident)
        if incident.place.rack:
            by_rack.setdefault((incident.place.fleet, incident.place.rack), []).append(incident)
    found = [
        Burst(fleet=fleet, rack=rack, incidents=run)
        for (fleet, rack), of_rack in by_rack.items()
        for run in _runs(of_rack)
        if _disks(run) >= DISKS_MIN
    ]
    told = {id(incident) for burst in found for incident in burst.incidents}
    found += [
        Burst(fleet=run[0].place.fleet, rack=None, incidents=run)
        for of_host in by_host.values()
        for run in _runs([incident for incident in of_host if id(incident) not in told])
        if _disks(run) >= HOST_DISKS_MIN
    ]
    return sorted(found, key=lambda burst: (-burst.first_ms, burst.fleet or "", burst.rack or "", burst.hosts))


def _runs(incidents: Sequence[Incident]) -> list[tuple[Incident, ...]]:
    runs: list[list[Incident]] = []
    for incident in incidents:
        if not runs or incident.ts - runs[-1][-1].ts > WITHIN_MS:
            runs.append([])
        runs[-1].append(incident)
    return [tuple(run) for run in runs]


def _disks(incidents: Iterable[Incident]) -> int:
    """Different disks, at least. A dead disk may tell its serial number at one time and not at another, and may have
    several directories: of the names and of the paths on a host the fewer ones count."""
    by_host: dict[str, tuple[set[str], set[str]]] = {}
    for place in (incident.place for incident in incidents):
        names, paths = by_host.setdefault(place.host, (set(), set()))
        names.add(place.serial or place.dir_id or place.path or "")
        paths.add(place.path or "")
    return sum(min(len(names), len(paths)) for names, paths in by_host.values())
